//! Which row is which key, and what value it has.
//!
//! The words of a mapping are `table` (a name, perhaps with its schema), `key` (columns in order, each perhaps with an
//! option behind a colon, see [`crate::text`]), `value`: one column, `JSON (a, b)`, or `EMPTY`, and `where`, see [`crate::filter`]. A column of the
//! value may be looked into, see [`crate::path`], or have its letters changed, see [`crate::case`]. Names are read as SQL reads them: small letters, unless in double quotes.
//!
//! A row's key is the table's prefix and the texts of the key columns, with `|` between.
//!
//! # Invariants
//! - K1. A row with NULL in a key column, or a value there that has no text, or a key that is too
//!   long, has no key: it is not in the table.
//! - K2. The value of a row is the same, byte for byte, whether it was loaded or followed: both come
//!   from the texts that PostgreSQL prints with the same settings.

use crate::case::TextCase;
use crate::filter::{self, Filter, NotSent};
use crate::path::{Part, Path};
use crate::text::Kind;

/// The words of a mapping, read but not yet compared with the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Words {
    /// The table's name, as SQL reads it.
    pub table: String,
    /// The key columns and their options.
    pub key: Vec<(String, Option<String>)>,
    /// What makes the value.
    pub value: ValueWords,
    /// Which rows are keys; `None`: all of them.
    pub filter: Option<Filter>,
}

/// What a value is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueWords {
    /// Nothing: it is empty.
    Empty,
    /// One column's text; empty for NULL.
    Column(Item),
    /// A JSON object of these columns.
    Json(Vec<Item>),
}

/// A column of a value, or a part of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// The column.
    pub column: String,
    /// Where in its value to look; `None`: it is the whole of it.
    pub path: Option<Path>,
    /// Which letters it has; `None`: its own.
    pub case: Option<TextCase>,
    /// What it is called in an object.
    pub name: String,
}

impl Item {
    /// A whole column.
    #[must_use]
    pub fn whole(name: String) -> Self {
        Self { column: name.clone(), path: None, case: None, name }
    }
}

/// A column that a mapping uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The object id of its type.
    pub type_id: u32,
    /// That of the type below, where it is a domain; the same elsewhere.
    pub base_id: u32,
    /// What the database is to compute from it, and whether its collation maps ASCII as ASCII; `None`: the column is taken as it is.
    pub case: Option<(TextCase, bool)>,
}

impl Column {
    /// The column, or what is computed from it, as SQL; `of`: what stands before the name.
    pub(crate) fn sql(&self, of: &str) -> String {
        let name = format!("{of}{}", quoted_name(&self.name));
        self.case.map_or_else(|| name.clone(), |(case, _)| case.sql(&name))
    }
}

/// How rows of a table become keys and values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// What its keys begin with.
    pub prefix: Vec<u8>,
    /// The table, quoted for SQL.
    pub table: String,
    /// The key's columns, then those of the value, then those that only the filter speaks of.
    pub columns: Vec<Column>,
    /// How many columns the value has.
    pub values: usize,
    /// Which rows are keys; `None`: all of them.
    pub filter: Option<Filter>,
    /// How the key's columns are written.
    pub kinds: Vec<Kind>,
    /// What of the value's columns it is made of; empty where they all are whole.
    pub items: Vec<Item>,
    /// Whether the value is a JSON object.
    pub json: bool,
    /// Longer keys are left out.
    pub key_bytes_max: usize,
}

/// What is known of a column of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cell<'a> {
    /// NULL.
    Null,
    /// A long value that the change left as it was, and that was not sent.
    Unchanged,
    /// A value as PostgreSQL prints it.
    Text(&'a str),
}

/// What is known of the value of a row that was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// This is it.
    Known(Vec<u8>),
    /// It is what it was.
    Unchanged,
    /// A part is new, another was not sent.
    Unknown,
}

/// Reads the words of a mapping.
///
/// # Errors
/// A sentence that says which word is wrong.
pub fn words(pairs: &[(String, String)]) -> Result<Words, String> {
    let (mut table, mut key, mut value, mut filter) = (None, None, "EMPTY", None);
    for (word, text) in pairs {
        if text.contains('\0') {
            return Err(format!(
                "{word} has a NUL byte, which PostgreSQL has in no name and no text"
            ));
        }
        match word.to_ascii_lowercase().as_str() {
            "table" => table = Some(text.trim().to_owned()),
            "key" => key = Some(names(text)?),
            "value" => value = text,
            "where" => filter = Some(filter::parse(text)?),
            other => {
                return Err(format!(
                    "a mapping has the words TABLE, KEY, VALUE and WHERE, and no `{other}`"
                ));
            }
        }
    }
    let table = table.filter(|table| !table.is_empty()).ok_or("the mapping lacks TABLE name")?;
    let key = key.filter(|key| !key.is_empty()).ok_or("the mapping lacks KEY (column, …)")?;
    let value = value_words(value, &table)?;
    Ok(Words { table, key, value, filter })
}

fn value_words(text: &str, table: &str) -> Result<ValueWords, String> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("empty") {
        return Ok(ValueWords::Empty);
    }
    let json = text.get(..4).filter(|word| word.eq_ignore_ascii_case("json"));
    let rest = json.map(|_| text[4..].trim_start()).filter(|rest| rest.starts_with('('));
    let mut columns = items(rest.unwrap_or(text), table)?;
    if rest.is_none() {
        return match columns.len() {
            0 => Ok(ValueWords::Empty),
            1 => Ok(ValueWords::Column(columns.remove(0))),
            _ => Err("a value of several columns is written JSON (a, b)".to_owned()),
        };
    }
    let unnamed = columns.iter().find(|item| item.name.is_empty());
    match unnamed {
        Some(Item { column, case: Some(case), .. }) => {
            let function = case.name();
            Err(format!(
                "{function}({column}) needs a name in JSON: {function}({column}) AS {column}"
            ))
        }
        Some(Item { column, .. }) => {
            Err(format!("a part of {column} needs a name in JSON: {column}->>'city' AS city"))
        }
        None => Ok(ValueWords::Json(columns)),
    }
}

/// Reads a list of columns and parts of columns, perhaps in parentheses.
fn items(text: &str, table: &str) -> Result<Vec<Item>, String> {
    let text = text.trim();
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    let mut list = Vec::new();
    let mut rest = inner.trim();
    while !rest.is_empty() {
        let whole = rest;
        let (column, after) =
            name(rest).ok_or_else(|| format!("`{rest}` begins with no column name"))?;
        let (column, case, path, mut after) = match changed_letters(&column, after) {
            Some((case, column, after)) => (column, Some(case), None, after.trim_start()),
            None => {
                let (path, after) = Path::read(after)?;
                (column, None, path, after)
            }
        };
        let mut item = Item { column: column.clone(), name: String::new(), path, case };
        if let Some(label) = after.get(..3).filter(|word| word.eq_ignore_ascii_case("as ")) {
            let (label, behind) = name(after[label.len()..].trim_start())
                .ok_or_else(|| format!("behind AS in `{whole}` stands no name"))?;
            (item.name, after) = (label, behind.trim_start());
        } else if item.path.is_none() && case.is_none() {
            item.name = column;
        }
        list.push(item);
        rest = match after.strip_prefix(',') {
            Some(next) if !next.trim().is_empty() => next.trim_start(),
            None if after.is_empty() => after,
            _ if after.starts_with(':') && !after.starts_with("::") => {
                let end = after.find(',').unwrap_or(after.len());
                return Err(format!("`{}` is for key columns alone", after[..end].trim()));
            }
            None if after.starts_with(|next: char| next.is_ascii_punctuation()) => {
                return Err(no_expression(whole, table));
            }
            _ => return Err(format!("`{text}` is no list of column names with commas between")),
        };
    }
    Ok(list)
}

/// What is behind a function's name, where that is a column in parentheses and the function one that changes letters.
fn changed_letters<'a>(function: &str, text: &'a str) -> Option<(TextCase, String, &'a str)> {
    let case = TextCase::named(function)?;
    let (column, behind) = name(text.trim_start().strip_prefix('(')?.trim_start())?;
    Some((case, column, behind.trim_start().strip_prefix(')')?))
}

/// Why an expression cannot be a value, and what is to be done.
fn no_expression(text: &str, table: &str) -> String {
    let mut depth = 0;
    let ends = |next: char| {
        depth += i32::from(next == '(') - i32::from(next == ')');
        depth < 0 || depth == 0 && next == ','
    };
    let expression = text.split(ends).next().unwrap_or(text).trim();
    format!(
        "`{expression}` is no column, no path like data->'a'->>'b' into one, and no lower(column) or upper(column). Have PostgreSQL compute it: ALTER TABLE {table} ADD derived text \
         GENERATED ALWAYS AS ({expression}) STORED, and name the column `derived` here (its changes are told by PostgreSQL 18 and by follow=triggers)"
    )
}

/// Reads a list of names with options, perhaps in parentheses.
fn names(text: &str) -> Result<Vec<(String, Option<String>)>, String> {
    let text = text.trim();
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    let mut list = Vec::new();
    let mut rest = inner.trim();
    while !rest.is_empty() {
        let (name, after) =
            name(rest).ok_or_else(|| format!("`{rest}` begins with no column name"))?;
        let mut after = after.trim_start();
        let mut option = None;
        if let Some(behind) = after.strip_prefix(':') {
            let end = behind.find(',').unwrap_or(behind.len());
            option = Some(behind[..end].trim().to_ascii_lowercase());
            after = &behind[end..];
        }
        list.push((name, option));
        rest = match after.strip_prefix(',') {
            Some(next) if !next.trim().is_empty() => next.trim_start(),
            None if after.is_empty() => after,
            _ => return Err(format!("`{text}` is no list of column names with commas between")),
        };
    }
    Ok(list)
}

/// One SQL name at the beginning of `text`, and what stands behind it.
fn name(text: &str) -> Option<(String, &str)> {
    if let Some(quoted) = text.strip_prefix('"') {
        let mut name = String::new();
        let mut chars = quoted.char_indices();
        while let Some((at, next)) = chars.next() {
            if next != '"' {
                name.push(next);
            } else if quoted[at + 1..].starts_with('"') {
                name.push('"');
                chars.next();
            } else {
                return (!name.is_empty()).then(|| (name, &quoted[at + 1..]));
            }
        }
        return None;
    }
    let in_name = |next: char| next.is_alphanumeric() || next == '_' || next == '$';
    let end = text.find(|next| !in_name(next)).unwrap_or(text.len());
    (end > 0).then(|| (text[..end].to_lowercase(), &text[end..]))
}

/// A name in double quotes.
#[must_use]
pub fn quoted_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as an SQL literal; backslashes stand for themselves.
#[must_use]
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Mapping {
    /// The columns of the value.
    #[must_use]
    pub fn value_columns(&self) -> &[Column] {
        &self.columns[self.kinds.len()..][..self.values]
    }

    /// Whether the database computes a part of the value.
    pub(crate) fn computes(&self) -> bool {
        self.columns.iter().any(|column| column.case.is_some())
    }

    /// Whether a row with these cells, one for each column, is a key.
    ///
    /// # Errors
    /// That cannot be said: a value was not sent.
    pub fn keeps(&self, cells: &[Cell<'_>]) -> Result<bool, NotSent> {
        let Some(filter) = &self.filter else { return Ok(true) };
        let cell = |name: &str| {
            let is_it = |column: &Column| column.name == name && column.case.is_none();
            let at = self.columns.iter().position(is_it);
            at.and_then(|at| cells.get(at).copied()).unwrap_or(Cell::Null)
        };
        Ok(filter.holds(&cell)? == Some(true))
    }

    /// The key of a row with these cells, one for each key column at least (K1).
    #[must_use]
    pub fn key(&self, cells: &[Cell<'_>]) -> Option<Vec<u8>> {
        let mut key = Vec::with_capacity(self.prefix.len() + 32);
        self.write_key(cells, &mut key).then_some(key)
    }

    /// Appends the key of a row, as [`Mapping::key`] gives it. Where it has none, gives `false`, and what was appended means nothing.
    pub(crate) fn write_key(&self, cells: &[Cell<'_>], out: &mut Vec<u8>) -> bool {
        let from = out.len();
        out.extend_from_slice(&self.prefix);
        for (at, (kind, cell)) in self.kinds.iter().zip(cells).enumerate() {
            if at > 0 {
                out.push(b'|');
            }
            let Cell::Text(printed) = cell else { return false };
            if !kind.write(printed, out) {
                return false;
            }
        }
        out.len() - from <= self.key_bytes_max
    }

    /// Appends the value of a row of which no cell is left out; whether there were none.
    pub(crate) fn write_value(&self, cells: &[Cell<'_>], out: &mut Vec<u8>) -> bool {
        let is_part = self.items.first().is_some_and(|item| item.path.is_some());
        if let [Cell::Text(text)] = &cells[self.kinds.len()..][..self.values]
            && !self.json
            && !is_part
        {
            out.extend_from_slice(text.as_bytes());
            return true;
        }
        let Value::Known(value) = self.value(cells) else { return false };
        out.extend_from_slice(&value);
        true
    }

    /// What is known of the value of a row of the log, which has columns as they are where the database is to compute something.
    #[must_use]
    pub fn value_of_raw(&self, cells: &[Cell<'_>]) -> Value {
        let known = |(column, cell): (&Column, &Cell<'_>)| match (column.case, cell) {
            (Some((case, maps_ascii)), Cell::Text(text)) => case.of(text, maps_ascii).map(Some),
            _ => Some(None),
        };
        let computed: Option<Vec<_>> = self.columns.iter().zip(cells).map(known).collect();
        let Some(computed) = computed else { return Value::Unknown };
        let with = cells.iter().zip(&computed);
        let cells: Vec<Cell<'_>> =
            with.map(|(cell, text)| text.as_deref().map_or(*cell, Cell::Text)).collect();
        self.value(&cells)
    }

    /// What is known of the value of a row with these cells, one for each column, computed where the database is to compute it.
    #[must_use]
    pub fn value(&self, cells: &[Cell<'_>]) -> Value {
        let cells = &cells[self.kinds.len()..][..self.values];
        let unchanged = cells.iter().filter(|cell| **cell == Cell::Unchanged).count();
        if unchanged > 0 {
            return if unchanged == cells.len() { Value::Unchanged } else { Value::Unknown };
        }
        if !self.json {
            return Value::Known(match (cells.first(), self.part(cells, 0)) {
                (_, Some(Part::Json(part))) => part.as_bytes().to_vec(),
                (_, Some(Part::Text(part))) => part.into_bytes(),
                (Some(Cell::Text(text)), None) => text.as_bytes().to_vec(),
                _ => Vec::new(),
            });
        }
        let mut json = Vec::with_capacity(64);
        json.push(b'{');
        for (at, (column, cell)) in self.value_columns().iter().zip(cells).enumerate() {
            if json.len() > 1 {
                json.push(b',');
            }
            json_text(self.items.get(at).map_or(&column.name, |item| &item.name), &mut json);
            json.push(b':');
            match (cell, self.part(cells, at)) {
                (_, Some(Part::Json(part))) => json.extend_from_slice(part.as_bytes()),
                (_, Some(Part::Text(part))) => json_text(&part, &mut json),
                (Cell::Text(text), None) => json_value(column.base_id, text, &mut json),
                _ => json.extend_from_slice(b"null"),
            }
        }
        json.push(b'}');
        Value::Known(json)
    }

    /// The part of a column of the value that is asked for; `None`: the whole of it.
    fn part<'a>(&self, cells: &[Cell<'a>], at: usize) -> Option<Part<'a>> {
        let path = self.items.get(at)?.path.as_ref()?;
        let column = self.value_columns().get(at)?;
        Some(match cells.get(at) {
            Some(Cell::Text(text)) => path.of(text, column.base_id == JSONB),
            _ => Part::Null,
        })
    }

    /// What PostgreSQL reads the key columns of `key` from; `None` if it is no row's key.
    #[must_use]
    pub fn literals(&self, key: &[u8]) -> Option<Vec<String>> {
        let rest = key.strip_prefix(&*self.prefix)?;
        let parts: Vec<_> = rest.split(|&byte| byte == b'|').collect();
        if parts.len() != self.kinds.len() {
            return None;
        }
        self.kinds.iter().zip(parts).map(|(kind, part)| kind.read(part)).collect()
    }
}

/// The object id of the type jsonb, and that of json.
pub(crate) const JSONB: u32 = 3802;
pub(crate) const JSON: u32 = 114;
/// Those of text and varchar.
pub(crate) const TEXT: u32 = 25;
pub(crate) const VARCHAR: u32 = 1043;

/// Appends a value of a type as JSON.
fn json_value(type_id: u32, text: &str, out: &mut Vec<u8>) {
    // The fixed object ids of PostgreSQL's own types.
    match type_id {
        16 => out.extend_from_slice(if text == "t" { b"true" } else { b"false" }),
        // int8, int2, int4, oid, json, jsonb
        20 | 21 | 23 | 26 | JSON | JSONB => out.extend_from_slice(text.as_bytes()),
        // float4, float8, numeric, which may be NaN or infinite
        700 | 701 | 1700 if !text.ends_with(['N', 'y']) => out.extend_from_slice(text.as_bytes()),
        _ => json_text(text, out),
    }
}

/// Appends a text as a JSON string.
fn json_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            other => out.push(other),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(word, text)| ((*word).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn no_word_has_what_no_text_of_postgresql_has() {
        let error = words(&pairs(&[("table", "a"), ("where", "x = '\0'"), ("key", "id")]));
        assert_eq!(
            error.unwrap_err(),
            "where has a NUL byte, which PostgreSQL has in no name and no text"
        );
        assert!(words(&pairs(&[("table", "a\0b"), ("key", "id")])).is_err());
    }

    #[test]
    fn words_of_mappings() {
        let read = words(&pairs(&[
            ("table", "shop.posts"),
            ("key", "(Poster, \"Odd \"\"Name\":4 , id:PLAIN)"),
            ("value", "json (a, \"B\")"),
            ("where", "a = 'x'"),
        ]))
        .unwrap();
        assert_eq!(read.table, "shop.posts");
        let key = [("poster", None), ("Odd \"Name", Some("4")), ("id", Some("plain"))];
        assert_eq!(
            read.key,
            key.map(|(name, option)| (name.to_owned(), option.map(str::to_owned)))
        );
        let whole = |name: &str| Item::whole(name.to_owned());
        assert_eq!(read.value, ValueWords::Json(vec![whole("a"), whole("B")]));
        let read = words(&pairs(&[("TABLE", "p"), ("KEY", "a,b"), ("VALUE", "json")])).unwrap();
        assert_eq!(read.value, ValueWords::Column(whole("json")));
        let value_words = |text| value_words(text, "posts");
        assert_eq!(value_words("Empty"), Ok(ValueWords::Empty));
        assert_eq!(value_words("\"Empty\""), Ok(ValueWords::Column(whole("Empty"))));
        let Ok(ValueWords::Json(items)) =
            value_words("JSON (id, data->'a' ->> 'b, c' as \"B\", data AS d)")
        else {
            panic!("three columns");
        };
        let named: Vec<_> = items.iter().map(|item| (&*item.column, &*item.name)).collect();
        assert_eq!(named, [("id", "id"), ("data", "B"), ("data", "d")]);
        assert!(items[1].path.is_some() && items[2].path.is_none());
        let Ok(ValueWords::Column(item)) = value_words("UPPER( \"Name\" )") else {
            panic!("one column");
        };
        assert_eq!((&*item.column, item.case), ("Name", Some(TextCase::Upper)));
        let Ok(ValueWords::Json(items)) = value_words("JSON (a, lower(b) AS b, lower)") else {
            panic!("three columns");
        };
        assert_eq!(items[1], Item { case: Some(TextCase::Lower), ..whole("b") });
        assert_eq!(items[2], whole("lower"));
        for (text, why) in [
            ("initcap(name)", "GENERATED ALWAYS AS (initcap(name)) STORED"),
            ("lower(a || b)", "GENERATED ALWAYS AS (lower(a || b)) STORED"),
            ("JSON (a, lower(b))", "lower(b) needs a name in JSON"),
            ("JSON (a, coalesce(b, 'x, y'), c)", "AS (coalesce(b, 'x, y')) STORED"),
            (
                "first || last",
                "ALTER TABLE posts ADD derived text GENERATED ALWAYS AS (first || last)",
            ),
            ("data->>'a'->'b'", "is a text"),
            ("JSON (data->'a')", "needs a name"),
            ("a::text", "AS (a::text)"),
            ("b:4", "for key columns alone"),
            ("b c", "no list"),
        ] {
            let found = value_words(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
        for wrong in [
            &[("key", "a")][..],
            &[("table", "p")],
            &[("table", "p"), ("key", "()")],
            &[("table", "p"), ("key", "a b")],
            &[("table", "p"), ("key", "a,")],
            &[("table", "p"), ("key", "a"), ("value", "b, c")],
            &[("table", "p"), ("key", "a"), ("value", "b:4")],
            &[("table", "p"), ("key", "\"a")],
            &[("table", "p"), ("key", "a"), ("colour", "red")],
        ] {
            assert!(words(&pairs(wrong)).is_err(), "{wrong:?}");
        }
    }

    fn mapping(json: bool) -> Mapping {
        let column = |name: &str, type_id| Column {
            name: name.to_owned(),
            type_id,
            base_id: type_id,
            case: None,
        };
        Mapping {
            prefix: b"p|".to_vec(),
            table: "\"posts\"".to_owned(),
            columns: vec![
                column("poster", 25),
                column("time", 23),
                column("tweet", 25),
                column("likes", 23),
                column("score", 701),
                column("tags", 3802),
                column("hot", 16),
            ],
            kinds: vec![
                Kind::of("text", None, true).unwrap(),
                Kind::of("int4", None, true).unwrap(),
            ],
            values: 5,
            filter: None,
            items: Vec::new(),
            json,
            key_bytes_max: 64,
        }
    }

    #[test]
    fn keys_and_values_of_rows() {
        use Cell::{Null, Text, Unchanged};
        let mut mapping = mapping(true);
        let cells = [
            Text("a|b"),
            Text("7"),
            Text("\"x\"\n\u{1}é"),
            Text("-3"),
            Text("NaN"),
            Text("[1, 2]"),
            Text("t"),
        ];
        assert_eq!(mapping.key(&cells).unwrap(), b"p|a{}b|0000000007");
        assert_eq!(
            mapping.literals(b"p|a{}b|0000000007").unwrap(),
            ["a|b".to_owned(), "7".to_owned()]
        );
        let json =
            r#"{"tweet":"\"x\"\n\u0001é","likes":-3,"score":"NaN","tags":[1, 2],"hot":true}"#;
        assert_eq!(mapping.value(&cells), Value::Known(json.as_bytes().to_vec()));
        let cells = [Text("a"), Text("7"), Unchanged, Null, Null, Null, Null];
        assert_eq!(mapping.value(&cells), Value::Unknown);
        assert_eq!(mapping.key(&[Text("a"), Null]), None);
        assert_eq!(mapping.key(&[Text(&"a".repeat(64)), Text("1")]), None);
        for key in [&b"p|a"[..], b"p|a|7", b"p|a|0000000007|x", b"q|a|0000000007"] {
            assert_eq!(mapping.literals(key), None);
        }
        let item = |path: &str, name: &str| Item {
            path: Path::read(path).unwrap().0,
            ..Item::whole(name.to_owned())
        };
        let cells =
            [Text("a"), Text("7"), Text("x"), Text("1"), Null, Text("[{\"t\": \"é\\n\"}]"), Null];
        mapping.items = vec![
            item("", "tweet"),
            item("", "n"),
            item("", "score"),
            item("->0->>'t'", "first"),
            item("", "hot"),
        ];
        let json = r#"{"tweet":"x","n":1,"score":null,"first":"é\n","hot":null}"#;
        assert_eq!(mapping.value(&cells), Value::Known(json.as_bytes().to_vec()));
        mapping.items[3] = item("->0", "first");
        let json = r#"{"tweet":"x","n":1,"score":null,"first":{"t": "é\n"},"hot":null}"#;
        assert_eq!(mapping.value(&cells), Value::Known(json.as_bytes().to_vec()));
        mapping.items.clear();
        mapping.json = false;
        mapping.columns.truncate(3);
        mapping.values = 1;
        assert_eq!(mapping.value(&[Text("a"), Text("7"), Unchanged]), Value::Unchanged);
        assert_eq!(mapping.value(&[Text("a"), Text("7"), Null]), Value::Known(Vec::new()));
        mapping.columns[2].case = Some((TextCase::Lower, true));
        assert_eq!(
            mapping.value_of_raw(&[Text("a"), Text("7"), Text("Ann")]),
            Value::Known(b"ann".to_vec())
        );
        assert_eq!(mapping.value_of_raw(&[Text("a"), Text("7"), Text("É")]), Value::Unknown);
        assert_eq!(mapping.value_of_raw(&[Text("a"), Text("7"), Null]), Value::Known(Vec::new()));
        assert_eq!(mapping.value_of_raw(&[Text("a"), Text("7"), Unchanged]), Value::Unchanged);
        mapping.columns.truncate(2);
        mapping.values = 0;
        assert_eq!(mapping.value(&[Text("a"), Text("7")]), Value::Known(Vec::new()));
    }

    #[test]
    fn quoting() {
        assert_eq!(quoted_name("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("it's \\"), "'it''s \\'");
    }
}
