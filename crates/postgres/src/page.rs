//! Pages: the first keys of a range or the last ones, by one query, and how far they are all there are.
//!
//! Rows are asked for in an order of the database, so many at most. What is known then is the range up to the last key that came, if the
//! order is that of the keys. It is for columns whose texts have a fixed length, and for a text that stands last and is compared
//! bytewise. A text that another column follows is not: `ann|` stands behind `anna|`. For that there are two ways:
//!
//! - [`Edge::Below`]: rows come in the order of the columns, which an index may have. All that has not come begins with the last row's text or a
//!   greater one, so the keys below that text are known. Where all rows that came have the same text, and no longer text of the range begins with
//!   it, the keys up to the last one are.
//! - Rows are sorted by the text as it stands in keys, with its `|`. No index has that order: the table is read, but little is kept of it.
//!
//! A text whose column is not compared bytewise is sorted by `COLLATE "C"`, which an index may have as well. Without an order that an index has, a range
//! is best answered as a whole, and in sorted pages if it is too large for that: each reads the table, but is as small as any.
//!
//! # Invariants
//! - P1. Keys that came in another order than is believed here have nothing be known: databases of odd encodings compare oddly.
//! - P2. Where the order is beyond doubt, which is that of columns without texts, the keys up to any row are known as soon as the row has come, and are told
//!   of while others are on their way. The last one is kept back, so that something is left for the end.

use crate::loads::Query;
use crate::mapping::{Cell, Column, Mapping, quoted_name};
use crate::prepared::parametrized;
use crate::query::{restricted, rows_sql, rows_where, write_pair};
use crate::range::{condition, fixed_columns};
use crate::text::Kind;
use headwater_base::{KeyRange, PackedPairs};

/// How the rows of a page are ordered, and what that says of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    /// Columns or expressions, in order.
    order: Vec<String>,
    /// So many rows are asked for.
    pub(crate) rows: u64,
    reverse: bool,
    edge: Edge,
    /// Whether what has come is known before the rest has (P2).
    streams: bool,
}

/// What is known behind the rows that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    /// Everything up to the last key.
    Last,
    /// Everything below the text of this column in the last row.
    Below(usize),
}

/// The pages that may serve a load, the cheapest first; none where it is best answered as a whole. `sorts`: it is not to be answered as a whole,
/// whatever its pages cost.
pub(crate) fn pages(query: &Query, sorts: bool) -> Vec<Page> {
    let mapping = &query.ready.mapping;
    let portion = query.portion;
    let Some(fixed) = fixed_columns(mapping, &query.range) else { return Vec::new() };
    if fixed >= mapping.kinds.len() {
        return Vec::new();
    }
    // Beside a range that begins or ends within a component a row may lie that its condition holds for, too.
    let first = &query.range.first;
    let beside = u64::from(!first.ends_with(b"|") || query.range != KeyRange::prefix(first));
    let rows = portion.rows.map_or(query.rows_max, |rows| (rows + beside).clamp(1, query.rows_max));
    let reverse = portion.reverse;
    let columns = mapping.kinds.iter().zip(&mapping.columns).enumerate().skip(fixed);
    let name = |kind: &Kind, column: &Column| ordered_name(*kind, &column.name);
    let names: Vec<_> = columns.clone().map(|(_, (kind, column))| name(kind, column)).collect();
    let last = mapping.kinds.len() - 1;
    let by_index = query.ready.is_in_order(fixed);
    let in_order = |at: usize, kind: &Kind| match kind {
        Kind::Text { .. } => at == last,
        Kind::Plain => false,
        _ => true,
    };
    let mut pages = Vec::new();
    let kinds = &mapping.kinds[fixed..];
    let is_plain = columns.clone().all(|(at, (kind, _))| in_order(at, kind));
    let all_but_first = columns.clone().skip(1).all(|(at, (kind, _))| in_order(at, kind));
    let begins_with_text = matches!(kinds.first(), Some(Kind::Text { .. }));
    // What one of these said nothing of, another would not either.
    let may_be_below = begins_with_text && all_but_first && !reverse && !query.in_pages;
    if !is_plain && may_be_below && by_index {
        let edge = Edge::Below(fixed);
        pages.push(Page { order: names.clone(), rows, reverse, edge, streams: false });
    }
    let whole = portion.rows.is_none();
    if whole && !(by_index && is_plain || sorts) {
        return pages;
    }
    let order = columns.zip(names).map(|((at, (kind, column)), ordered)| {
        let name = quoted_name(&column.name);
        match kind {
            Kind::Text { .. } if at < last => {
                format!(
                    "(replace(replace({name}, '{{', '{{{{'), '|', '{{}}') || '|') COLLATE \"C\""
                )
            }
            Kind::Plain if at == last => format!("({name}::text) COLLATE \"C\""),
            Kind::Plain => format!("({name}::text || '|') COLLATE \"C\""),
            _ => ordered,
        }
    });
    let is_surely_ordered = |kind: &Kind| !matches!(kind, Kind::Text { .. } | Kind::Plain);
    let streams = whole && !reverse && kinds.iter().all(is_surely_ordered);
    let page = Page { order: order.collect(), rows, reverse, edge: Edge::Last, streams };
    pages.push(page.clone());
    if rows < query.rows_max {
        // Rows without a key, or beside the range, may be all that came.
        pages.push(Page { rows: query.rows_max, ..page });
    }
    pages
}

/// A column as rows are sorted by it: a text by its bytes.
fn ordered_name(kind: Kind, name: &str) -> String {
    let name = quoted_name(name);
    match kind {
        Kind::Text { bytewise: false } => format!("{name} COLLATE \"C\""),
        _ => name,
    }
}

impl Page {
    /// Which of its statements gives the rows.
    pub(crate) fn rows_at(&self) -> usize {
        usize::from(self.edge != Edge::Last)
    }

    /// The statement for its rows; before it perhaps another one, which says whether some text begins with the first row's and is longer.
    pub(crate) fn sql(&self, query: &Query) -> String {
        let mut sql = rows_sql(&[query]);
        self.sort(query, &mut sql);
        let mapping = &query.ready.mapping;
        if let Edge::Below(at) = self.edge {
            let name = ordered_name(mapping.kinds[at], &mapping.columns[at].name);
            let wanted = condition(mapping, &query.range).unwrap_or_else(|| "false".to_owned());
            let wanted = restricted(mapping, wanted);
            let texts = format!("SELECT {name} AS t FROM {} WHERE {wanted}", mapping.table);
            // Before the rows, which may be cut off.
            sql = format!(
                "SELECT EXISTS (SELECT FROM ({texts}) o, ({texts} ORDER BY {name} LIMIT 1) f \
                 WHERE o.t > f.t AND o.t < f.t || '}}'); {sql}"
            );
        }
        sql
    }

    /// The statement for its rows and the values of its parameters, where it is one that serves other ranges as well.
    pub(crate) fn prepared(&self, query: &Query) -> Option<(String, Vec<String>)> {
        // What a limited read asks for differs each time.
        if self.edge != Edge::Last || query.portion.rows.is_some() {
            return None;
        }
        let mapping = &query.ready.mapping;
        let (wanted, values) = parametrized(&condition(mapping, &query.range)?);
        let mut sql = rows_where(mapping, format!("({wanted})"));
        self.sort(query, &mut sql);
        Some((sql, values))
    }

    /// Has the rows of a statement come in order, so many at most.
    fn sort(&self, query: &Query, sql: &mut String) {
        let mapping = &query.ready.mapping;
        let fixed = mapping.kinds.len() - self.order.len();
        for column in &mapping.columns[fixed..mapping.kinds.len()] {
            // Rows without a key would come first, or last.
            sql.push_str(&format!(" AND {} IS NOT NULL", quoted_name(&column.name)));
        }
        let way = if self.reverse { " DESC" } else { "" };
        let order: Vec<_> = self.order.iter().map(|term| format!("{term}{way}")).collect();
        sql.push_str(&format!(" ORDER BY {} LIMIT {}", order.join(", "), self.rows));
    }
}

/// The rows of a page as they come.
pub(crate) struct PageRows<'a> {
    page: &'a Page,
    query: &'a Query,
    /// Those in the range; behind them the pair of a row that was begun.
    pub(crate) pairs: PackedPairs,
    /// Whether the row that was begun has a pair.
    begun: bool,
    rows: u64,
    first: Option<String>,
    last: Option<String>,
    /// The last row's key where it is beside the range; `None`: it is that of the last pair.
    last_beside: Option<Vec<u8>>,
    /// P1.
    is_ordered: bool,
    /// Whether a longer text begins with the first row's.
    pub(crate) is_begun_by_first: bool,
}

impl<'a> PageRows<'a> {
    pub(crate) fn new(page: &'a Page, query: &'a Query) -> Self {
        Self {
            page,
            query,
            pairs: PackedPairs::default(),
            begun: false,
            rows: 0,
            first: None,
            last: None,
            last_beside: None,
            is_ordered: true,
            is_begun_by_first: true,
        }
    }

    /// Begins with a row, which is then taken or given up; how many bytes its key and value have.
    pub(crate) fn begin(&mut self, columns: &[Option<&str>]) -> usize {
        let before = self.pairs.bytes();
        self.begun = self.pairs.push_with(|out| write_pair(self.query, columns, out));
        self.pairs.bytes() - before
    }

    /// Gives up the row that was begun.
    pub(crate) fn give_up(&mut self) {
        if std::mem::take(&mut self.begun) {
            self.pairs.pop();
        }
    }

    /// Takes the row that was begun.
    pub(crate) fn take(&mut self, columns: &[Option<&str>]) {
        self.rows += 1;
        if let Edge::Below(at) = self.page.edge {
            let text = columns.get(at).copied().flatten();
            if self.first.is_none() {
                self.first = text.map(str::to_owned);
            }
            self.last = text.map(str::to_owned);
        }
        if !std::mem::take(&mut self.begun) {
            return;
        }
        let Some((key, _)) = self.pairs.last() else { return };
        let before = self.pairs.len().checked_sub(2).and_then(|at| self.pairs.get(at));
        let before = self.last_beside.as_deref().or(before.map(|(key, _)| key));
        if let (Edge::Last, Some(before)) = (self.page.edge, before) {
            self.is_ordered &= if self.page.reverse { key < before } else { key > before };
        }
        if self.query.range.contains(key) {
            self.last_beside = None;
        } else {
            self.last_beside = Some(key.to_vec());
            self.pairs.pop();
        }
    }

    fn last_key(&self) -> Option<&[u8]> {
        let within = || self.pairs.last().map(|(key, _)| key);
        self.last_beside.as_deref().or_else(within)
    }

    /// The pairs that have come since the last part, but for the last one, and the part of the range that they are all of, where that can be said
    /// before the rest has come (P2).
    pub(crate) fn take_part(&mut self) -> Option<(PackedPairs, KeyRange)> {
        if !self.page.streams || !self.is_ordered || self.pairs.len() < 2 {
            return None;
        }
        let mut rest = PackedPairs::with_capacity(self.pairs.bytes(), self.pairs.len());
        let (key, value) = self.pairs.last()?;
        rest.push(key, value);
        let known = KeyRange::new(&self.query.range.first, key);
        self.pairs.pop();
        Some((std::mem::replace(&mut self.pairs, rest), known))
    }

    /// Whether the keys have come in the order that is believed in.
    pub(crate) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// The pairs, and the part of the range that they are all of (`None`: all of it), where some of it is known. `cut`: some rows were not
    /// taken.
    pub(crate) fn end(mut self, cut: bool) -> Option<(PackedPairs, Option<KeyRange>)> {
        if !cut && self.rows < self.page.rows {
            return Some((self.pairs, None));
        }
        let range = &self.query.range;
        let last_key = self.last_key().filter(|_| self.is_ordered)?.to_vec();
        let behind = [&*last_key, &[0]].concat();
        let known = match self.page.edge {
            Edge::Last if self.page.reverse => KeyRange::new(&last_key, &range.last),
            Edge::Last => KeyRange::new(&range.first, &behind),
            Edge::Below(at) => {
                let upto = text_of(&self.query.ready.mapping, at, self.last.as_deref()?, &last_key);
                let below = KeyRange::new(&range.first, &upto?);
                if self.first == self.last && !self.is_begun_by_first {
                    KeyRange::new(&range.first, &behind)
                } else if self.pairs.iter().any(|(key, _)| below.contains(key)) {
                    below
                } else {
                    return None;
                }
            }
        };
        let known = known.intersection(range);
        if known.is_empty() {
            return None;
        }
        self.pairs.retain_within(&known);
        let is_all = known == *range;
        Some((self.pairs, (!is_all).then_some(known)))
    }
}

/// What keys of this text begin with, up to the text and without the `|` behind it.
fn text_of(mapping: &Mapping, at: usize, text: &str, key: &[u8]) -> Option<Vec<u8>> {
    let rest = key.strip_prefix(&*mapping.prefix)?;
    let mut upto = mapping.prefix.clone();
    for part in rest.split(|&byte| byte == b'|').take(at) {
        upto.extend_from_slice(part);
        upto.push(b'|');
    }
    mapping.kinds.get(at)?.write(text, &mut upto).then_some(upto)
}

/// Bytes of the rows of a page that a connection takes in before it cuts the rest off.
pub(crate) const PAGE_BYTES_MAX: usize = 8 << 20;
/// What a page is to have.
const PAGE_BYTES: u64 = 4 << 20;

/// How many rows a page is to have where rows have so many bytes; 0: that is not known.
pub(crate) fn page_rows(row_bytes: u64) -> u64 {
    match row_bytes {
        0 => 4096,
        // A power of two, so that few statements differ in it.
        bytes => 1 << (PAGE_BYTES / bytes).clamp(16, 16_384).ilog2(),
    }
}

/// Rows of up to so many columns need no list of their own.
const COLUMNS_FEW: usize = 8;

/// Calls with the cells of a row.
pub(crate) fn with_cells<T>(columns: &[Option<&str>], then: impl FnOnce(&[Cell<'_>]) -> T) -> T {
    let mut cells = columns.iter().map(|text| text.map_or(Cell::Null, Cell::Text));
    let mut few = [Cell::Null; COLUMNS_FEW];
    match few.get_mut(..columns.len()) {
        Some(few) => {
            few.iter_mut().zip(&mut cells).for_each(|(one, cell)| *one = cell);
            then(few)
        }
        None => then(&cells.collect::<Vec<_>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Ready;
    use headwater_base::source::Portion;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    /// A query of a table of these columns, with an index on them and without.
    fn query(types: &[(&str, bool)], range: KeyRange, portion: Portion, rows_max: u64) -> Query {
        query_of(types, true, range, portion, rows_max)
    }

    fn query_of(
        types: &[(&str, bool)],
        in_order: bool,
        range: KeyRange,
        portion: Portion,
        rows_max: u64,
    ) -> Query {
        let column =
            |at: usize| Column { name: format!("c{at}"), type_id: 25, base_id: 25, case: None };
        let kind = |(name, bytewise): &(&str, bool)| match *name {
            "plain" => Kind::Plain,
            name => Kind::of(name, None, *bytewise).unwrap(),
        };
        let mapping = Mapping {
            prefix: b"p|".to_vec(),
            table: "t".to_owned(),
            columns: (0..types.len()).map(column).collect(),
            kinds: types.iter().map(kind).collect(),
            values: 0,
            filter: None,
            items: Vec::new(),
            json: false,
            key_bytes_max: 1024,
        };
        let ready = Ready {
            mapping,
            relation: 1,
            since: 0,
            in_order: vec![in_order; types.len()],
            signature: String::new(),
            signature_sql: String::new(),
        };
        let ready = Arc::new(ready);
        Query { ready, range, portion, attempt: 1, rows_max, in_pages: false }
    }

    #[test]
    fn what_is_asked() {
        let first = Portion { rows: Some(3), ..Portion::default() };
        let last = Portion { reverse: true, ..first };
        let asked = |query: &Query, sorts| -> Vec<String> {
            let order =
                |page: &Page| page.sql(query).rsplit(" ORDER BY ").next().unwrap().to_owned();
            pages(query, sorts).iter().map(order).collect()
        };
        let sql = |types: &[(&str, bool)], prefix: &str, portion| -> Vec<String> {
            asked(&query(types, KeyRange::prefix(prefix.as_bytes()), portion, 100), false)
        };
        let all = KeyRange::prefix(b"p|");
        let unserved = |types: &[(&str, bool)], portion, sorts| {
            asked(&query_of(types, false, all.clone(), portion, 100), sorts)
        };
        let posts = [("text", true), ("int4", true)];
        assert_eq!(sql(&[("int4", true)], "p|", first), ["\"c0\" LIMIT 3", "\"c0\" LIMIT 100"]);
        assert_eq!(sql(&[("int4", true)], "p|", last)[0], "\"c0\" DESC LIMIT 3");
        assert_eq!(sql(&[("int4", true)], "p|", Portion::default()), ["\"c0\" LIMIT 100"]);
        assert_eq!(sql(&posts, "p|bob|", last)[0], "\"c1\" DESC LIMIT 3");
        assert_eq!(sql(&[("text", false)], "p|", first)[0], "\"c0\" COLLATE \"C\" LIMIT 3");
        assert_eq!(
            sql(&[("text", false)], "p|", Portion::default()),
            ["\"c0\" COLLATE \"C\" LIMIT 100"]
        );
        // Without an index: as a whole, by one query, unless that is too much.
        assert_eq!(unserved(&[("text", false)], first, false)[0], "\"c0\" COLLATE \"C\" LIMIT 3");
        assert_eq!(unserved(&[("text", false)], Portion::default(), false), [""; 0]);
        assert_eq!(unserved(&[("text", true)], Portion::default(), true), ["\"c0\" LIMIT 100"]);
        let other = [("text", false), ("int4", true)];
        assert_eq!(
            sql(&other, "p|", Portion::default()),
            ["\"c0\" COLLATE \"C\", \"c1\" LIMIT 100"]
        );
        assert_eq!(unserved(&other, Portion::default(), false), [""; 0]);
        assert!(unserved(&other, Portion::default(), true)[0].starts_with("(replace"));
        let found = sql(&posts, "p|", first);
        assert_eq!(found[0], "\"c0\", \"c1\" LIMIT 3");
        assert!(found[1].starts_with("(replace(replace(\"c0\", '{', '{{'), '|', '{}') || '|')"));
        assert!(sql(&posts, "p|", last)[0].starts_with("(replace"), "by no index");
        assert_eq!(sql(&[("text", true)], "p|bob|", first), [""; 0], "there is no such row");
    }

    /// What the database makes of a term.
    fn sorted_by(term: &str, row: &[String]) -> Vec<u8> {
        let at: usize = term.split_once("\"c").unwrap().1[..1].parse().unwrap();
        let text = &row[at];
        if term.starts_with("(replace") {
            return (text.replace('{', "{{").replace('|', "{}") + "|").into_bytes();
        }
        if term.contains("|| '|'") {
            return (text.clone() + "|").into_bytes();
        }
        match text.parse::<i64>() {
            Ok(number) if !term.contains("COLLATE") => (number + 1000).to_be_bytes().to_vec(),
            _ if text.contains('.') => {
                (text.parse::<f64>().unwrap() + 1000.0).to_bits().to_be_bytes().to_vec()
            }
            _ => text.clone().into_bytes(),
        }
    }

    /// A row of columns of these types.
    fn draw_row(random: &mut fastrand::Rng, types: &[(&str, bool)]) -> Vec<String> {
        const LETTERS: [&str; 7] = ["a", "b", "{", "|", "}", "!", "é"];
        let one = |(name, _): &(&str, bool)| match *name {
            "text" => {
                let length = random.usize(0..3);
                (0..length).map(|_| LETTERS[random.usize(0..LETTERS.len())]).collect()
            }
            "numeric" | "float4" => format!("{:.3}", f64::from(random.i16(-12..12)) / 8.0),
            _ => random.i16(-12..12).to_string(),
        };
        types.iter().map(one).collect()
    }

    /// Whether a text is another one and a byte that is not behind `|`, at least.
    fn begins(text: &str, first: &str) -> bool {
        let rest = text.strip_prefix(first);
        rest.is_some_and(|rest| rest.as_bytes().first().is_some_and(|&byte| byte <= b'|'))
    }

    #[test]
    fn what_is_known_of_a_range_is_all_there_is() {
        let mut random = fastrand::Rng::with_seed(11);
        let shapes: [&[(&str, bool)]; 9] = [
            &[("numeric", true), ("text", true)],
            &[("text", true), ("float4", true)],
            &[("int2", true)],
            &[("text", true)],
            &[("text", true), ("int2", true)],
            &[("text", true), ("text", true)],
            &[("int2", true), ("text", false)],
            &[("text", false), ("int2", true)],
            &[("plain", true), ("text", true), ("int2", true)],
        ];
        let (mut parts, mut unknown, mut streamed) = ([0; 2], 0, 0);
        for _ in 0..20_000 {
            let types = shapes[random.usize(0..shapes.len())];
            let rows: BTreeSet<_> = (0..14).map(|_| draw_row(&mut random, types)).collect();
            let portion = Portion {
                rows: random.bool().then(|| random.u64(1..8)),
                reverse: random.bool(),
                bytes_before: 0,
            };
            let (all, rows_max) = (KeyRange::prefix(b"p|"), random.u64(2..9));
            let mut query = query_of(types, random.u8(..4) > 0, all, portion, rows_max);
            let key = |query: &Query, row: &[String]| {
                let cells: Vec<_> = row.iter().map(|text| Cell::Text(text)).collect();
                query.ready.mapping.key(&cells).unwrap()
            };
            let keys: Vec<_> = rows.iter().map(|row| key(&query, row)).collect();
            if random.bool() {
                let mut some = keys[random.usize(0..keys.len())].clone();
                some.truncate(random.usize(2..=some.len()));
                query.range = match random.bool() {
                    true => KeyRange::prefix(&some),
                    false => KeyRange::new(&some, b"p}"),
                };
            }
            let within: BTreeSet<_> =
                keys.iter().filter(|key| query.range.contains(key)).cloned().collect();
            let fixed = fixed_columns(&query.ready.mapping, &query.range).unwrap();
            let lead: Vec<_> = query.range.first.split(|&byte| byte == b'|').collect();
            let is_seen = |row: &&Vec<String>| {
                let key = key(&query, row);
                let own: Vec<_> = key.split(|&byte| byte == b'|').collect();
                own[..=fixed] == lead[..=fixed]
            };
            for page in pages(&query, random.bool()) {
                let mut answer: Vec<_> = rows.iter().filter(is_seen).collect();
                let order = |row: &Vec<String>| -> Vec<_> {
                    page.order.iter().map(|term| sorted_by(term, row)).collect()
                };
                answer.sort_by_key(|row| order(row));
                if page.reverse {
                    answer.reverse();
                }
                let mut taken = PageRows::new(&page, &query);
                if let (Edge::Below(at), Some(first)) = (page.edge, answer.first()) {
                    taken.is_begun_by_first = answer.iter().any(|row| begins(&row[at], &first[at]));
                }
                let mut told = BTreeSet::new();
                for row in answer.iter().take(page.rows as usize) {
                    let columns: Vec<_> = row.iter().map(|text| Some(&**text)).collect();
                    taken.begin(&columns);
                    taken.take(&columns);
                    if random.u8(..3) == 0
                        && let Some((pairs, known)) = taken.take_part()
                    {
                        streamed += 1;
                        told.extend(pairs.iter().map(|(key, _)| key.to_vec()));
                        let there = within.iter().filter(|key| known.contains(key));
                        assert!(there.eq(&told), "P2: {query:?} {page:?} {known:?}");
                        assert!(query.range.covers(&known) && known != query.range);
                    }
                }
                let Some((pairs, known)) = taken.end(false) else {
                    unknown += 1;
                    continue;
                };
                parts[usize::from(page.edge != Edge::Last)] += usize::from(known.is_some());
                let known = known.unwrap_or_else(|| query.range.clone());
                assert!(told.is_empty() || !pairs.is_empty(), "something is kept back");
                let got: BTreeSet<_> =
                    told.into_iter().chain(pairs.iter().map(|(key, _)| key.to_vec())).collect();
                let there: BTreeSet<_> =
                    within.iter().filter(|key| known.contains(key)).cloned().collect();
                assert_eq!(got, there, "{query:?} {page:?} {known:?}");
                let edge = match page.reverse {
                    true => known.last == query.range.last,
                    false => known.first == query.range.first,
                };
                assert!(edge, "{known:?} of {:?}", query.range);
            }
        }
        assert!(parts[0] > 2000 && parts[1] > 400 && unknown > 100, "{parts:?} {unknown}");
        assert!(streamed > 500, "{streamed}");
    }
}
