//! A range of keys as a condition on the key columns that an index can serve.
//!
//! What all keys of the range begin with gives columns that are equal to something; the next column is
//! bounded; the others are not mentioned. The condition holds for every row whose key is in the range, and perhaps for
//! some more, which whoever loads leaves out by their keys: bytewise order of keys and the order of columns differ where
//! texts have no fixed length, because `|` sorts after digits and letters.
//!
//! Bounds on texts are compared bytewise. An index serves them where the column's collation does that as well
//! (`COLLATE "C"`); elsewhere they only keep rows from being sent.

use crate::mapping::{Mapping, literal, quoted_name};
use crate::text::Kind;
use headwater_base::{KeyRange, prefix_end};

/// Has a text compared bytewise where its column does not.
const BYTEWISE: &str = " COLLATE \"C\"";

/// The condition for the keys of `range`, which lies within the mapping's prefix: `None` if no row can have such
/// a key.
#[must_use]
pub fn condition(mapping: &Mapping, range: &KeyRange) -> Option<String> {
    let within = KeyRange::prefix(&mapping.prefix).intersection(range);
    if within.is_empty() {
        return None;
    }
    let skipped = mapping.prefix.len();
    let low = &within.first[skipped..];
    let high = within.last.starts_with(&mapping.prefix).then(|| &within.last[skipped..]);
    let (common, whole) = common(low, high);
    let columns = mapping.kinds.iter().zip(&mapping.columns);
    let mut columns = columns.map(|(kind, column)| (kind, quoted_name(&column.name)));
    let mut conditions = Vec::new();
    let mut at = 0;
    let mut parts = common.split(|&byte| byte == b'|').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() && !whole {
            break;
        }
        let (kind, name) = columns.next()?;
        conditions.push(format!("{name} = {}", literal(&kind.read(part)?)));
        at += part.len() + 1;
    }
    let next = columns.next();
    if whole {
        return next.is_none().then(|| conditions.join(" AND "));
    }
    let (kind, name) = next?;
    let last_column = columns.next().is_none();
    // What is common stands in both ends, unless the upper end is just behind everything that begins so.
    let high = high.filter(|high| high.starts_with(&common[..at])).map(|high| &high[at..]);
    conditions.extend(bounds(*kind, &name, &low[at..], high, last_column)?);
    if conditions.is_empty() {
        conditions.push("true".to_owned());
    }
    Some(conditions.join(" AND "))
}

/// How many of the key's columns are equal to something in all keys of `range`; `None` if no row can have such a key.
#[must_use]
pub fn fixed_columns(mapping: &Mapping, range: &KeyRange) -> Option<usize> {
    let within = KeyRange::prefix(&mapping.prefix).intersection(range);
    if within.is_empty() {
        return None;
    }
    let skipped = mapping.prefix.len();
    let high = within.last.starts_with(&mapping.prefix).then(|| &within.last[skipped..]);
    let (common, whole) = common(&within.first[skipped..], high);
    let ended = common.iter().filter(|&&byte| byte == b'|').count();
    Some(ended + usize::from(whole))
}

/// The part of `range` that it begins with, or ends with if `at_end`, and that is equal in more columns: that of `p|ann|0000000100` to `p}` is what of it
/// begins with `p|ann|`. `None`: there is no such part, or it is all of it. A condition for the whole range does not bound the columns behind the
/// first that is not equal, so its rows in order would begin with those before `p|ann|0000000100`.
#[must_use]
pub fn narrowed(mapping: &Mapping, range: &KeyRange, at_end: bool) -> Option<KeyRange> {
    let mut part = range.clone();
    while let Some(fixed) = fixed_columns(mapping, &part) {
        let end = if at_end { &part.last } else { &part.first };
        let Some(rest) = end.strip_prefix(&*mapping.prefix) else { break };
        let mut ends = rest.iter().enumerate().filter(|&(_, &byte)| byte == b'|');
        let Some((at, _)) = ends.nth(fixed) else { break };
        let lead = &end[..=mapping.prefix.len() + at];
        let narrower = KeyRange::prefix(lead).intersection(&part);
        if narrower.is_empty() || narrower == part {
            break;
        }
        part = narrower;
    }
    (part != *range).then_some(part)
}

/// Whether an index on the key columns serves the condition for `range` in full.
#[must_use]
pub fn by_index(mapping: &Mapping, range: &KeyRange) -> bool {
    condition(mapping, range).is_none_or(|condition| !condition.contains(BYTEWISE))
}

/// What every key of `[low, high)` begins with, and whether that is the one key there is.
fn common<'a>(low: &'a [u8], high: Option<&[u8]>) -> (&'a [u8], bool) {
    let Some(high) = high else { return (&[], false) };
    if high.strip_prefix(low) == Some(&[0]) {
        return (low, true);
    }
    let same = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let behind_all = low.get(same).is_some() && prefix_end(&low[..=same]) == high;
    (&low[..same + usize::from(behind_all)], false)
}

/// Conditions on a column whose text begins the rest of a key within `[low, high)`.
fn bounds(
    kind: Kind,
    name: &str,
    low: &[u8],
    high: Option<&[u8]>,
    last_column: bool,
) -> Option<Vec<String>> {
    if let Kind::Number(number) = kind {
        return number.bounds(name, low, high);
    }
    if kind == Kind::Plain || (low.is_empty() && high.is_none()) {
        return Some(Vec::new());
    }
    let Kind::Text { bytewise } = kind else {
        let (first, last) = kind.between(low, high)?;
        return Some(vec![format!("{name} BETWEEN {} AND {}", literal(&first), literal(&last))]);
    };
    let name = if bytewise { name.to_owned() } else { format!("{name}{BYTEWISE}") };
    let mut conditions = Vec::new();
    let begin = low.split(|&byte| byte == b'|').next().unwrap_or(low);
    let (begin, _) = readable(begin);
    if !begin.is_empty() {
        let shorter = if last_column { Vec::new() } else { shorter(&begin, low, high) };
        let from = format!("{name} >= {}", literal(&begin));
        conditions.push(if shorter.is_empty() {
            from
        } else {
            format!("({from} OR {name} IN ({}))", shorter.join(", "))
        });
    }
    if let Some(high) = high {
        conditions.extend(below(&name, high));
    }
    Some(conditions)
}

/// The beginnings of `begin` that, with `|` behind them, begin keys of the range all the same.
fn shorter(begin: &str, low: &[u8], high: Option<&[u8]>) -> Vec<String> {
    let ends = begin.char_indices().map(|(at, _)| &begin[..at]);
    let within = ends.filter(|text| {
        let mut key = Vec::new();
        let _ = Kind::Text { bytewise: true }.write(text, &mut key);
        key.push(b'|');
        let keys = KeyRange::prefix(&key);
        keys.overlaps(&KeyRange::new(low, high.unwrap_or_default()))
    });
    within.map(literal).collect()
}

/// The longest beginning of `text` that is the text of some characters, and what of it is left.
fn readable(text: &[u8]) -> (String, &[u8]) {
    let kind = Kind::Text { bytewise: true };
    for end in (0..=text.len()).rev() {
        if let Some(plain) = kind.read(&text[..end]) {
            return (plain, &text[end..]);
        }
    }
    (String::new(), text)
}

/// The condition that a column's text begins a key's rest below `end`. `{` and `|` are `{{` and `{}` there, which is
/// below the `|` that ends a column.
fn below(name: &str, end: &[u8]) -> Option<String> {
    let component = end.split(|&byte| byte == b'|').next().unwrap_or(end);
    let (plain, rest) = readable(component);
    let bound = match &end[component.len() - rest.len()..] {
        [] => plain,
        // No text holds a zero.
        [0, ..] => return Some(format!("{name} <= {}", literal(&plain))),
        [b'|', ..] => format!("{plain}}}"),
        [b'{', next, ..] if *next > b'}' => format!("{plain}}}"),
        [b'{', b'|', ..] => format!("{plain}|"),
        [b'{', ..] => format!("{plain}{{"),
        rest => format!("{plain}{}", first_char_from(rest)?),
    };
    Some(format!("{name} < {}", literal(&bound)))
}

/// The least character that is encoded as at least these bytes.
fn first_char_from(bytes: &[u8]) -> Option<char> {
    let (mut low, mut high) = (1_u32, 0x11_0000_u32);
    while low < high {
        let middle = low + (high - low) / 2;
        // Nothing lies between the last character before the surrogates and the first behind them.
        let probe = char::from_u32(middle).unwrap_or('\u{E000}');
        if probe.encode_utf8(&mut [0; 4]).as_bytes() < bytes {
            low = probe as u32 + 1;
        } else if probe as u32 != middle {
            // A surrogate: the answer is below them, or it is the first character behind.
            high = 0xD800;
            if char::from_u32(high - 1)?.encode_utf8(&mut [0; 4]).as_bytes() < bytes {
                return Some(probe);
            }
        } else {
            high = middle;
        }
    }
    char::from_u32(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Cell, Column};

    fn mapping(types: &[(&str, Option<&str>)]) -> Mapping {
        let column =
            |at: usize| Column { name: format!("c{at}"), type_id: 25, base_id: 25, case: None };
        Mapping {
            prefix: b"p|".to_vec(),
            table: "t".to_owned(),
            columns: (0..types.len()).map(column).collect(),
            kinds: types
                .iter()
                .map(|(name, option)| Kind::of(name, *option, true).unwrap())
                .collect(),
            values: 0,
            filter: None,
            items: Vec::new(),
            json: false,
            key_bytes_max: 1024,
        }
    }

    fn of(mapping: &Mapping, first: &str, last: &str) -> Option<String> {
        condition(mapping, &KeyRange::new(first.as_bytes(), last.as_bytes()))
    }

    #[test]
    fn conditions() {
        let posts = mapping(&[("text", None), ("int4", None)]);
        let cases = [
            ("p|", "p}", Some("true")),
            ("", "", Some("true")),
            ("p|bob|", "p|bob}", Some("\"c0\" = 'bob' AND true")),
            (
                "p|bob|0000000100",
                "p|bob}",
                Some("\"c0\" = 'bob' AND \"c1\" BETWEEN '100' AND '2147483647'"),
            ),
            (
                "p|bob|0000000100",
                "p|bob|0000000200",
                Some("\"c0\" = 'bob' AND \"c1\" BETWEEN '100' AND '199'"),
            ),
            ("p|bob|0000000100", "p|bob|0000000100\0", Some("\"c0\" = 'bob' AND \"c1\" = '100'")),
            (
                "p|bob|00000001",
                "p|bob|00000002",
                Some("\"c0\" = 'bob' AND \"c1\" BETWEEN '100' AND '199'"),
            ),
            ("p|bob|100", "p|bob|100\0", None),
            ("p|bob", "p|bob\0", None),
            ("p|b", "p|c", Some("\"c0\" >= 'b' AND \"c0\" < 'c'")),
            ("p|it's|x", "p|it's|y", None),
            ("q|", "q}", None),
            (
                "p|ann|5",
                "p|bob|5",
                Some("(\"c0\" >= 'ann' OR \"c0\" IN ('a', 'an')) AND \"c0\" < 'bob}'"),
            ),
        ];
        for (first, last, expected) in cases {
            let found = of(&posts, first, last);
            let found = found.map(|text| text.replace(" AND true", ""));
            let expected = expected.map(|text| text.replace(" AND true", ""));
            assert_eq!(found, expected, "{first} {last}");
        }
    }

    #[test]
    fn parts_that_are_equal_in_more_columns() {
        let posts = mapping(&[("int4", None), ("text", None), ("int4", None)]);
        let part = |first: &str, last: &str, at_end| {
            narrowed(&posts, &KeyRange::new(first.as_bytes(), last.as_bytes()), at_end)
        };
        let of = |first: &str, last: &str| Some(KeyRange::new(first.as_bytes(), last.as_bytes()));
        assert_eq!(part("p|", "p}", false), None);
        assert_eq!(part("p|", "p}", true), None);
        assert_eq!(part("p|1|a", "p}", false), of("p|1|a", "p|1}"));
        assert_eq!(part("p|1|ann|5", "p}", false), of("p|1|ann|5", "p|1|ann}"));
        assert_eq!(part("p|1|ann|5", "p|1}", false), of("p|1|ann|5", "p|1|ann}"));
        assert_eq!(part("p|1|ann|5", "p|1|ann}", false), None);
        assert_eq!(part("p|1|ann|5", "p|1|ann|9", true), None);
        assert_eq!(part("p|", "p|1|ann|9", true), of("p|1|ann|", "p|1|ann|9"));
        assert_eq!(part("p|1|", "p|1|ann|", true), None);
        assert_eq!(part("p|", "p|1|ann|", true), of("p|1|", "p|1|ann|"));
    }

    /// What PostgreSQL would make of a condition, for the few forms there are.
    fn holds(condition: &str, cells: &[String]) -> bool {
        let mut rest = condition;
        loop {
            let (one, behind) = term(rest, cells);
            if !one {
                return false;
            }
            match behind.strip_prefix(" AND ") {
                Some(next) => rest = next,
                None => return behind.is_empty() || panic!("{behind}"),
            }
        }
    }

    fn term<'a>(text: &'a str, cells: &[String]) -> (bool, &'a str) {
        if let Some(rest) = text.strip_prefix("true") {
            return (true, rest);
        }
        if let Some(inner) = text.strip_prefix('(') {
            let (from, rest) = term(inner, cells);
            let rest = rest.strip_prefix(" OR ").unwrap();
            let cell = &cells[rest[2..3].parse::<usize>().unwrap()];
            let mut rest = rest[4..].strip_prefix(" IN (").unwrap();
            let mut any = from;
            loop {
                let (value, behind) = quoted(rest);
                any |= *cell == value;
                match behind.strip_prefix(", ") {
                    Some(next) => rest = next,
                    None => return (any, behind.strip_prefix("))").unwrap()),
                }
            }
        }
        let cell = &cells[text[2..3].parse::<usize>().unwrap()];
        let (operator, rest) = text[5..].split_once(' ').unwrap();
        let (value, behind) = quoted(rest);
        let number = |text: &str| text.parse::<i64>().unwrap();
        let fraction = |text: &str| text.parse::<f64>().unwrap();
        match operator {
            ">" => (fraction(cell) > fraction(&value), behind),
            "<" if value == "Infinity" => (true, behind),
            // No text that is drawn is a number.
            ">=" | "<=" if cell.parse::<f64>().is_ok() => {
                let order = fraction(cell).partial_cmp(&fraction(&value)).unwrap();
                (order.is_eq() || order.is_lt() == (operator == "<="), behind)
            }
            "=" => (*cell == value, behind),
            ">=" => (*cell >= value, behind),
            "<" => (*cell < value, behind),
            "<=" => (*cell <= value, behind),
            "BETWEEN" => {
                let (last, behind) = quoted(behind.strip_prefix(" AND ").unwrap());
                ((number(&value)..=number(&last)).contains(&number(cell)), behind)
            }
            other => panic!("{other}"),
        }
    }

    fn quoted(text: &str) -> (String, &str) {
        let mut value = String::new();
        let mut rest = text.strip_prefix('\'').unwrap_or_else(|| panic!("{text}"));
        loop {
            let (part, behind) = rest.split_once('\'').unwrap();
            value.push_str(part);
            match behind.strip_prefix('\'') {
                Some(more) => {
                    value.push('\'');
                    rest = more;
                }
                None => return (value, behind),
            }
        }
    }

    #[test]
    fn no_key_of_a_range_is_left_out() {
        let mut random = fastrand::Rng::with_seed(7);
        let shapes = [
            mapping(&[("text", None), ("int2", None)]),
            mapping(&[("int2", None), ("text", None)]),
            mapping(&[("text", None), ("text", None)]),
            mapping(&[("text", None), ("int2", Some("plain")), ("text", None)]),
            mapping(&[("text", None)]),
            mapping(&[("int2", Some("2")), ("int2", None)]),
            mapping(&[("numeric", None), ("text", None)]),
            mapping(&[("text", None), ("float8", None)]),
        ];
        let letters =
            ["a", "b", "{", "|", "}", "'", "é", "ÿ", "\u{FFFF}", "\u{10FFFF}", "\u{D7FF}"];
        let mut met = 0;
        for _ in 0..30_000 {
            let mapping = &shapes[random.usize(0..shapes.len())];
            let mut row = || -> Vec<String> {
                let one = |kind: &Kind| match kind {
                    Kind::Text { .. } => {
                        let length = random.usize(0..4);
                        (0..length).map(|_| letters[random.usize(0..letters.len())]).collect()
                    }
                    Kind::Number(_) => (f64::from(random.i16(-99..99)) / 8.0).to_string(),
                    _ => random.i16(-120..120).to_string(),
                };
                mapping.kinds.iter().map(one).collect()
            };
            let rows: Vec<_> = (0..12).map(|_| row()).collect();
            let key = |row: &[String]| {
                let cells: Vec<_> = row.iter().map(|text| Cell::Text(text)).collect();
                mapping.key(&cells)
            };
            let end = |random: &mut fastrand::Rng| {
                let mut end = key(&rows[random.usize(0..rows.len())]).unwrap_or(b"p|".to_vec());
                if random.bool() {
                    end.truncate(random.usize(2..=end.len()));
                }
                match random.u8(0..4) {
                    0 => end.push(random.u8(..)),
                    1 => end = prefix_end(&end),
                    2 => end.extend_from_slice(b"|"),
                    _ => {}
                }
                end
            };
            let first = end(&mut random);
            let range = match random.u8(0..4) {
                0 => KeyRange::point(&first),
                1 => KeyRange::prefix(&first),
                _ => KeyRange::new(&first, &end(&mut random)),
            };
            let condition = condition(mapping, &range);
            for row in &rows {
                if key(row).is_some_and(|key| range.contains(&key)) {
                    met += 1;
                    let text = condition.as_deref().unwrap_or_else(|| panic!("{range:?} {row:?}"));
                    assert!(holds(text, row), "{range:?} {row:?} {text}");
                }
            }
        }
        assert!(met > 10_000, "the ranges hold rows: {met}");
    }
}
