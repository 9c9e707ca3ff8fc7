//! Which rows of a table are keys at all: `WHERE "status = 'paid'"`.
//!
//! A filter is a part of SQL that can be judged here exactly as the database judges it, since changes are: comparisons of a column with a value, `IN`,
//! `IS NULL`, and what `AND`, `OR`, `NOT` and parentheses make of them. Integers have an order; of texts, enums, UUIDs and booleans
//! only whether they are equal is asked, because collations order texts in ways of their own.
//!
//! A row that the filter does not hold for has no key: it enters when it is changed so that it holds, and leaves when it is changed so that it does not.
//!
//! # Invariants
//! - F1. What is false and what is unknown (of NULL) both leave a row out, as in SQL; `NOT` of what is unknown is unknown.

use crate::mapping::{Cell, literal, quoted_name};
use std::cmp::Ordering;

/// A condition on the columns of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    /// All of these hold.
    All(Vec<Filter>),
    /// One of these holds.
    Any(Vec<Filter>),
    /// This does not hold.
    Not(Box<Filter>),
    /// The column is NULL.
    IsNull(String),
    /// The column is in such a relation to the value.
    Compare(String, Relation, String),
}

/// How a column and a value are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// `=`
    Equal,
    /// `<`
    Less,
    /// `>`
    Greater,
}

/// How deep parentheses and `NOT` may stand within each other.
const DEPTH_MAX: usize = 32;

/// Reads a filter.
///
/// # Errors
/// A sentence that says where it is none.
pub fn parse(text: &str) -> Result<Filter, String> {
    let mut reader = Reader { words: words(text)?, at: 0, depth: 0 };
    let filter = reader.any()?;
    match reader.words.get(reader.at) {
        None => Ok(filter),
        Some(word) => Err(format!("WHERE: `{}` is not expected there", word.shown())),
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Word {
    /// A name or a word of SQL, in small letters.
    Name(String),
    /// A name in double quotes.
    Quoted(String),
    /// A value: a text, or a number.
    Value(String),
    Sign(&'static str),
}

impl Word {
    fn shown(&self) -> String {
        match self {
            Self::Name(text) | Self::Quoted(text) | Self::Value(text) => text.clone(),
            Self::Sign(sign) => (*sign).to_owned(),
        }
    }
}

fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        if first == '\'' || first == '"' {
            let (inside, behind) = quoted(&rest[1..], first)
                .ok_or_else(|| format!("WHERE: a {first} is not closed"))?;
            words.push(if first == '"' { Word::Quoted(inside) } else { Word::Value(inside) });
            rest = behind;
        } else if first.is_ascii_digit() || first == '-' {
            let end = rest[1..].find(|next: char| !next.is_ascii_digit());
            let end = end.map_or(rest.len(), |end| end + 1);
            words.push(Word::Value(rest[..end].to_owned()));
            rest = &rest[end..];
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|next: char| !(next.is_alphanumeric() || next == '_'));
            let end = end.unwrap_or(rest.len());
            words.push(Word::Name(rest[..end].to_lowercase()));
            rest = &rest[end..];
        } else {
            let signs = ["<>", "!=", "<=", ">=", "=", "<", ">", "(", ")", ","];
            let sign = signs.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("WHERE: `{first}` has no meaning there"))?;
            words.push(Word::Sign(sign));
            rest = &rest[sign.len()..];
        }
        rest = rest.trim_start();
    }
    Ok(words)
}

/// What stands before the closing mark, which stands twice for itself; and what is behind.
fn quoted(text: &str, mark: char) -> Option<(String, &str)> {
    let mut inside = String::new();
    let mut rest = text;
    loop {
        let at = rest.find(mark)?;
        inside.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match rest.strip_prefix(mark) {
            Some(behind) => {
                inside.push(mark);
                rest = behind;
            }
            None => return Some((inside, rest)),
        }
    }
}

struct Reader {
    words: Vec<Word>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn is_next(&mut self, word: &str) -> bool {
        let is = match self.words.get(self.at) {
            Some(Word::Name(name)) => name == word,
            Some(Word::Sign(sign)) => *sign == word,
            _ => false,
        };
        self.at += usize::from(is);
        is
    }

    fn any(&mut self) -> Result<Filter, String> {
        let mut filters = vec![self.all()?];
        while self.is_next("or") {
            filters.push(self.all()?);
        }
        Ok(if filters.len() == 1 { filters.remove(0) } else { Filter::Any(filters) })
    }

    fn all(&mut self) -> Result<Filter, String> {
        let mut filters = vec![self.one()?];
        while self.is_next("and") {
            filters.push(self.one()?);
        }
        Ok(if filters.len() == 1 { filters.remove(0) } else { Filter::All(filters) })
    }

    fn one(&mut self) -> Result<Filter, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("WHERE: too many parentheses within each other".to_owned());
        }
        let filter = self.one_within();
        self.depth -= 1;
        filter
    }

    fn one_within(&mut self) -> Result<Filter, String> {
        if self.is_next("not") {
            return Ok(not(self.one()?));
        }
        if self.is_next("(") {
            let filter = self.any()?;
            return if self.is_next(")") { Ok(filter) } else { Err(self.lacks("`)`")) };
        }
        let column = match self.words.get(self.at) {
            Some(Word::Name(name) | Word::Quoted(name)) => name.clone(),
            _ => return Err(self.lacks("a column")),
        };
        self.at += 1;
        if self.is_next("is") {
            let negated = self.is_next("not");
            if !self.is_next("null") {
                return Err(self.lacks("NULL"));
            }
            let filter = Filter::IsNull(column);
            return Ok(if negated { not(filter) } else { filter });
        }
        let negated = self.is_next("not");
        if self.is_next("in") {
            if !self.is_next("(") {
                return Err(self.lacks("`(`"));
            }
            let mut any = Vec::new();
            loop {
                any.push(Filter::Compare(column.clone(), Relation::Equal, self.value()?));
                if self.is_next(")") {
                    break;
                }
                if !self.is_next(",") {
                    return Err(self.lacks("`,` or `)`"));
                }
            }
            let filter = Filter::Any(any);
            return Ok(if negated { not(filter) } else { filter });
        }
        if negated {
            return Err(self.lacks("IN"));
        }
        let relations = [
            ("=", Relation::Equal, false),
            ("<>", Relation::Equal, true),
            ("!=", Relation::Equal, true),
            ("<", Relation::Less, false),
            (">=", Relation::Less, true),
            (">", Relation::Greater, false),
            ("<=", Relation::Greater, true),
        ];
        for (sign, relation, negated) in relations {
            if self.is_next(sign) {
                let filter = Filter::Compare(column, relation, self.value()?);
                return Ok(if negated { not(filter) } else { filter });
            }
        }
        // A column alone is a boolean.
        Ok(Filter::Compare(column, Relation::Equal, "t".to_owned()))
    }

    fn value(&mut self) -> Result<String, String> {
        let value = match self.words.get(self.at) {
            Some(Word::Value(text)) => text.clone(),
            Some(Word::Name(name)) if name == "true" => "t".to_owned(),
            Some(Word::Name(name)) if name == "false" => "f".to_owned(),
            _ => return Err(self.lacks("a value: a number, 'a text', TRUE or FALSE")),
        };
        self.at += 1;
        Ok(value)
    }

    fn lacks(&self, what: &str) -> String {
        match self.words.get(self.at) {
            Some(word) => format!("WHERE: {what} is expected where `{}` stands", word.shown()),
            None => format!("WHERE: {what} is expected at the end"),
        }
    }
}

fn not(filter: Filter) -> Filter {
    Filter::Not(Box::new(filter))
}

impl Filter {
    /// The columns that it speaks of.
    pub fn columns(&self) -> Vec<&str> {
        match self {
            Self::All(filters) | Self::Any(filters) => {
                filters.iter().flat_map(Self::columns).collect()
            }
            Self::Not(filter) => filter.columns(),
            Self::IsNull(column) | Self::Compare(column, ..) => vec![column],
        }
    }

    /// Checks that its values are those of columns of these types, and that what it asks of them can be judged here; values are written as the
    /// database prints them from then on.
    ///
    /// # Errors
    /// A sentence that says what cannot.
    pub fn settle(&mut self, type_of: &dyn Fn(&str) -> FilterType) -> Result<(), String> {
        match self {
            Self::All(filters) | Self::Any(filters) => {
                filters.iter_mut().try_for_each(|filter| filter.settle(type_of))
            }
            Self::Not(filter) => filter.settle(type_of),
            Self::IsNull(_) => Ok(()),
            Self::Compare(column, relation, value) => match type_of(column) {
                FilterType::Integer => match value.parse::<i64>() {
                    Ok(number) => {
                        *value = number.to_string();
                        Ok(())
                    }
                    Err(_) => Err(format!(
                        "WHERE: {column} is an integer, and `{value}` is none of 64 bits"
                    )),
                },
                _ if *relation != Relation::Equal => Err(format!(
                    "WHERE: `<` and `>` are for integers, and {column} is none; = <> IN and IS NULL are for others"
                )),
                FilterType::Boolean => match value.to_ascii_lowercase().as_str() {
                    "t" | "true" => {
                        *value = "t".to_owned();
                        Ok(())
                    }
                    "f" | "false" => {
                        *value = "f".to_owned();
                        Ok(())
                    }
                    _ => Err(format!("WHERE: {column} is TRUE or FALSE, and not `{value}`")),
                },
                FilterType::Uuid => {
                    *value = value.to_ascii_lowercase();
                    Ok(())
                }
                FilterType::Text => Ok(()),
                FilterType::Other => Err(format!(
                    "WHERE: {column} is of a type that cannot be judged here: integers, texts of a deterministic collation, \
                     enums, UUIDs and booleans can, and IS NULL of any"
                )),
            },
        }
    }

    /// Whether it holds for a row; `None`: that is unknown (F1). `Err`: a value that it needs was not sent.
    pub fn holds<'a>(&self, cell: &dyn Fn(&str) -> Cell<'a>) -> Result<Option<bool>, NotSent> {
        match self {
            Self::All(filters) => fold(filters, cell, false),
            Self::Any(filters) => fold(filters, cell, true),
            Self::Not(filter) => Ok(filter.holds(cell)?.map(|holds| !holds)),
            Self::IsNull(column) => Ok(Some(cell(column) == Cell::Null)),
            Self::Compare(column, relation, value) => {
                let text = match cell(column) {
                    Cell::Null => return Ok(None),
                    Cell::Unchanged => return Err(NotSent),
                    Cell::Text(text) => text,
                };
                let order = match (text.parse::<i64>(), value.parse::<i64>()) {
                    (Ok(one), Ok(other)) if *relation != Relation::Equal => one.cmp(&other),
                    _ => text.cmp(value),
                };
                Ok(Some(match relation {
                    Relation::Equal => order == Ordering::Equal,
                    Relation::Less => order == Ordering::Less,
                    Relation::Greater => order == Ordering::Greater,
                }))
            }
        }
    }

    /// It as SQL.
    pub fn sql(&self) -> String {
        let list = |filters: &[Self], between: &str| {
            let all: Vec<_> = filters.iter().map(Self::sql).collect();
            format!("({})", all.join(between))
        };
        match self {
            Self::All(filters) => list(filters, " AND "),
            Self::Any(filters) => list(filters, " OR "),
            Self::Not(filter) => format!("(NOT {})", filter.sql()),
            Self::IsNull(column) => format!("({} IS NULL)", quoted_name(column)),
            Self::Compare(column, relation, value) => {
                let sign = match relation {
                    Relation::Equal => "=",
                    Relation::Less => "<",
                    Relation::Greater => ">",
                };
                format!("({} {sign} {})", quoted_name(column), literal(value))
            }
        }
    }
}

/// What is left of several: the first that decides, or unknown where one is.
fn fold<'a>(
    filters: &[Filter],
    cell: &dyn Fn(&str) -> Cell<'a>,
    decides: bool,
) -> Result<Option<bool>, NotSent> {
    let mut all = Ok(Some(!decides));
    for filter in filters {
        match filter.holds(cell) {
            Ok(Some(holds)) if holds == decides => return Ok(Some(decides)),
            Ok(None) if all.is_ok() => all = Ok(None),
            Err(NotSent) => all = Err(NotSent),
            Ok(_) => {}
        }
    }
    all
}

/// A long value that the change left as it was was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotSent;

/// What can be asked of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterType {
    /// Equality and order of numbers.
    Integer,
    /// Equality.
    Text,
    /// Equality, in small letters.
    Uuid,
    /// `t` or `f`.
    Boolean,
    /// Whether it is NULL.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(column: &str) -> FilterType {
        match column {
            "n" => FilterType::Integer,
            "b" => FilterType::Boolean,
            "u" => FilterType::Uuid,
            "x" => FilterType::Other,
            _ => FilterType::Text,
        }
    }

    fn filter(text: &str) -> Result<Filter, String> {
        let mut filter = parse(text)?;
        filter.settle(&type_of).map(|()| filter)
    }

    #[test]
    fn what_is_read_is_what_sql_reads() {
        let cases = [
            ("status = 'paid'", "(\"status\" = 'paid')"),
            (
                "Status <> 'it''s' and n>=-07",
                "((NOT (\"status\" = 'it''s')) AND (NOT (\"n\" < '-7')))",
            ),
            (
                "a = 'x' OR n < 3 AND NOT b",
                "((\"a\" = 'x') OR ((\"n\" < '3') AND (NOT (\"b\" = 't'))))",
            ),
            (
                "(a='x' or n IN (1, 2)) and \"O\"\"dd\" is not null",
                "(((\"a\" = 'x') OR ((\"n\" = '1') OR (\"n\" = '2'))) AND (NOT (\"O\"\"dd\" IS NULL)))",
            ),
            ("u not in ('AB')", "(NOT ((\"u\" = 'ab')))"),
            ("x is null", "(\"x\" IS NULL)"),
        ];
        for (text, sql) in cases {
            assert_eq!(filter(text).map(|filter| filter.sql()), Ok(sql.to_owned()), "{text}");
        }
        for wrong in [
            "",
            "status =",
            "status = paid",
            "= 'x'",
            "a = 'x",
            "a = 'x' b",
            "(a = 'x'",
            "n = 'many'",
            "a < 'x'",
            "b = 'maybe'",
            "x = 'y'",
            "n in ()",
            "n in (1 2)",
            "a is",
            "a not 'x'",
            "a; drop",
            "n = 99999999999999999999",
        ] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
        assert!(parse(&"(".repeat(100_000)).is_err());
    }

    #[test]
    fn what_is_unknown_leaves_out() {
        let holds = |text: &str, n: Option<&str>, a: Option<&str>| {
            let cell = |column: &str| match column {
                "n" => n,
                _ => a,
            };
            let cell = |column: &str| match cell(column) {
                None => Cell::Null,
                Some("…") => Cell::Unchanged,
                Some(text) => Cell::Text(text),
            };
            filter(text).unwrap().holds(&cell)
        };
        let cases = [
            ("n > 9", Some("10"), Ok(Some(true))),
            ("n > 9", Some("-10"), Ok(Some(false))),
            ("n = 7", None, Ok(None)),
            ("not n = 7", None, Ok(None)),
            ("n = 7 or a = 'x'", None, Ok(Some(true))),
            ("n = 7 and a = 'y'", None, Ok(Some(false))),
            ("n = 7 and a = 'x'", None, Ok(None)),
            ("n is null", None, Ok(Some(true))),
            ("n not in (1, 2)", Some("3"), Ok(Some(true))),
            ("n = 7", Some("…"), Err(NotSent)),
            ("n = 7 or a = 'x'", Some("…"), Ok(Some(true))),
            ("n = 7 and a = 'x'", Some("…"), Err(NotSent)),
            ("n is not null", Some("…"), Ok(Some(true))),
        ];
        for (text, n, expected) in cases {
            assert_eq!(holds(text, n, Some("x")), expected, "{text} of {n:?}");
        }
    }
}
