//! The text that a key column's value has within a key, and the way back.
//!
//! Keys are compared bytewise, so a text must be in the order of the values: `a < b` exactly where
//! `text(a) < text(b)`. And `|` ends a component, so no text holds one.
//!
//! | type | text | example |
//! | --- | --- | --- |
//! | `smallint`, `integer`, `bigint` | 5, 10 or 19 digits, or as many as `column:digits` says | `0000000100` |
//! | the same, below 0 | `-` and what is missing to all nines | -1: `-9999999998` |
//! | the same, as `column:plain` | as PostgreSQL prints it; *not* in order | `100` |
//! | `date` | ISO 8601 | `2026-01-31` |
//! | `timestamp` | ISO 8601 with six decimals | `2026-01-31T17:08:48.000000` |
//! | `timestamptz` | the same in UTC, then `Z` | `2026-01-31T17:08:48.000000Z` |
//! | `uuid` | lower case | `6ecd8c99-4036-403d-bf84-cf8400f67836` |
//! | `boolean` | `f`, `t` | `t` |
//! | `numeric`, `real`, `double precision` | see [`crate::number`] | 42: `C42.` |
//! | `text`, `varchar`, `name` | as it is, but `{` as `{{` and <code>&#124;</code> as `{}` | `bob` |
//!
//! # Invariants
//! - X1. A text is never the beginning of another text of its kind, but for `text` and `plain`.
//! - X2. Reading a text and writing it again gives the same text; anything else is no text of the kind.

use crate::number::Number;
use std::fmt::Write as _;

/// How the values of one key column are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Integers of so many digits, from `min` to `max`.
    Digits {
        /// How many.
        width: u32,
        /// The least value.
        min: i64,
        /// The greatest value.
        max: i64,
    },
    /// Integers as they are printed.
    Plain,
    /// A point in time, with or without a zone.
    Timestamp {
        /// Whether it is in UTC.
        zone: bool,
    },
    /// A day.
    Date,
    /// A UUID.
    Uuid,
    /// `f` or `t`.
    Bool,
    /// Numbers with a fraction.
    Number(Number),
    /// Characters.
    Text {
        /// Whether its collation compares bytes, and so an index on it serves ranges.
        bytewise: bool,
    },
}

/// The first and the last day that have a text, in days since 1970-01-01.
const DAYS: (i64, i64) = (-719_162, 2_932_896);
const DAY_MICROS: i64 = 86_400_000_000;

impl Kind {
    /// The kind of a type by its name in `pg_type`, with what the mapping asks for behind the colon.
    ///
    /// # Errors
    /// Values of the type have no text that is in their order; or the option is none.
    pub fn of(type_name: &str, option: Option<&str>, bytewise: bool) -> Result<Self, String> {
        let (width, min, max) = match type_name {
            "int2" => (5, i64::from(i16::MIN), i64::from(i16::MAX)),
            "int4" => (10, i64::from(i32::MIN), i64::from(i32::MAX)),
            "int8" => (19, i64::MIN, i64::MAX),
            other => {
                if let Some(option) = option {
                    return Err(format!(
                        "`:{option}` is for integers, and this is of type {other}"
                    ));
                }
                return Self::of_other(other, bytewise);
            }
        };
        match option {
            None => Ok(Self::Digits { width, min, max }),
            Some("plain") => Ok(Self::Plain),
            Some(digits) => {
                let digits: u32 =
                    digits.parse().ok().filter(|digits| (1..=19).contains(digits)).ok_or(
                        "behind the colon stands a number of digits from 1 to 19, or `plain`"
                            .to_owned(),
                    )?;
                let most = 10_i64.checked_pow(digits).map_or(i64::MAX, |power| power - 1);
                Ok(Self::Digits { width: digits, min: min.max(-most), max: max.min(most) })
            }
        }
    }

    fn of_other(type_name: &str, bytewise: bool) -> Result<Self, String> {
        match type_name {
            "timestamp" => Ok(Self::Timestamp { zone: false }),
            "timestamptz" => Ok(Self::Timestamp { zone: true }),
            "date" => Ok(Self::Date),
            "uuid" => Ok(Self::Uuid),
            "bool" => Ok(Self::Bool),
            "numeric" | "float4" | "float8" => Number::of(type_name, -1)
                .map(Self::Number)
                .ok_or_else(|| format!("the type {type_name} is not known")),
            "text" | "varchar" => Ok(Self::Text { bytewise }),
            // The type `name` is always compared bytewise.
            "name" => Ok(Self::Text { bytewise: true }),
            other => Err(format!(
                "values of type {other} cannot be in keys; those of smallint, integer, bigint, numeric, real, \
                 double precision, date, timestamp, timestamptz, uuid, boolean, text and varchar can"
            )),
        }
    }

    /// Appends the text of a value that PostgreSQL prints as `printed`; gives `false`, with nothing
    /// appended, where it has none: it is out of the kind's bounds.
    pub fn write(&self, printed: &str, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Digits { width, .. } => {
                let value = printed.parse().ok().filter(|&value| self.holds(value));
                let Some(value) = value else { return false };
                match (*width as usize).checked_sub(printed.len()) {
                    // These are its digits already.
                    Some(zeros) if printed.as_bytes()[0].is_ascii_digit() => {
                        out.resize(out.len() + zeros, b'0');
                        out.extend_from_slice(printed.as_bytes());
                    }
                    _ => self.write_integer(value, out),
                }
                true
            }
            Self::Plain => {
                out.extend_from_slice(printed.as_bytes());
                true
            }
            Self::Timestamp { zone } => {
                let Some(text) = timestamp(printed, *zone) else { return false };
                out.extend_from_slice(text.as_bytes());
                true
            }
            Self::Date => {
                let fits = printed.len() == 10 && days(printed).is_some();
                if fits {
                    out.extend_from_slice(printed.as_bytes());
                }
                fits
            }
            Self::Uuid | Self::Bool => {
                out.extend_from_slice(printed.as_bytes());
                true
            }
            Self::Number(number) => number.write(printed, out),
            Self::Text { .. } if !printed.bytes().any(|byte| matches!(byte, b'{' | b'|')) => {
                out.extend_from_slice(printed.as_bytes());
                true
            }
            Self::Text { .. } => {
                for byte in printed.bytes() {
                    match byte {
                        b'{' => out.extend_from_slice(b"{{"),
                        b'|' => out.extend_from_slice(b"{}"),
                        other => out.push(other),
                    }
                }
                true
            }
        }
    }

    /// What PostgreSQL reads the value from whose text is `text`; `None` if no value has it (X2).
    #[must_use]
    pub fn read(&self, text: &[u8]) -> Option<String> {
        if let Self::Number(number) = self {
            return number.read(text);
        }
        let text = std::str::from_utf8(text).ok()?;
        let printed = match self {
            Self::Plain => text.to_owned(),
            Self::Text { .. } => unescape(text)?,
            _ => return self.rank(text).map(|rank| self.text(rank)).map(|text| self.literal(text)),
        };
        if matches!(self, Self::Plain) {
            let value: i64 = printed.parse().ok()?;
            return (value.to_string() == printed).then_some(printed);
        }
        (!printed.contains('\0')).then_some(printed)
    }

    /// What PostgreSQL reads a text of a ranked kind from.
    fn literal(&self, text: String) -> String {
        match self {
            Self::Digits { .. } => match self.rank(&text) {
                Some(rank) => self.integer(rank).to_string(),
                None => text,
            },
            _ => text,
        }
    }

    /// The text of some value.
    #[must_use]
    pub fn sample(&self) -> String {
        match self {
            Self::Plain => "1".to_owned(),
            Self::Text { .. } => "m".to_owned(),
            Self::Number(_) => "B5.".to_owned(),
            _ => self.text(self.last_rank() / 2),
        }
    }

    /// The rank of the last value.
    fn last_rank(&self) -> u128 {
        match self {
            Self::Digits { min, max, .. } => (i128::from(*max) - i128::from(*min)).unsigned_abs(),
            Self::Timestamp { .. } => {
                u128::from(((DAYS.1 - DAYS.0 + 1) * DAY_MICROS - 1).unsigned_abs())
            }
            Self::Date => u128::from((DAYS.1 - DAYS.0).unsigned_abs()),
            Self::Uuid => u128::MAX,
            Self::Bool => 1,
            Self::Plain | Self::Text { .. } | Self::Number(_) => 0,
        }
    }

    /// Whether an integer is within the bounds.
    fn holds(&self, value: i64) -> bool {
        matches!(self, Self::Digits { min, max, .. } if (*min..=*max).contains(&value))
    }

    /// Appends the text of an integer that is within the bounds.
    fn write_integer(&self, value: i64, out: &mut Vec<u8>) {
        let Self::Digits { width, .. } = *self else { return };
        let mut rest = value.unsigned_abs();
        if value < 0 {
            out.push(b'-');
        }
        let from = out.len();
        out.resize(from + width as usize, b'0');
        for digit in out[from..].iter_mut().rev() {
            let last = (rest % 10) as u8;
            *digit = if value < 0 { b'9' - last } else { b'0' + last };
            rest /= 10;
        }
    }

    fn integer(&self, rank: u128) -> i64 {
        let Self::Digits { min, .. } = *self else { return 0 };
        (i128::from(min) + rank as i128) as i64
    }

    /// The text of the value of a rank.
    fn text(&self, rank: u128) -> String {
        match self {
            Self::Digits { .. } => {
                let mut text = Vec::new();
                self.write_integer(self.integer(rank), &mut text);
                String::from_utf8(text).unwrap_or_default()
            }
            Self::Timestamp { zone } => {
                let micros = rank as i64;
                let mut text = day_text(DAYS.0 + micros / DAY_MICROS);
                let rest = micros % DAY_MICROS;
                let (seconds, micros) = (rest / 1_000_000, rest % 1_000_000);
                let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
                let _ = write!(text, "T{hours:02}:{minutes:02}:{seconds:02}.{micros:06}");
                if *zone {
                    text.push('Z');
                }
                text
            }
            Self::Date => day_text(DAYS.0 + rank as i64),
            Self::Uuid => {
                let digits = format!("{rank:032x}");
                let parts =
                    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
                parts.join("-")
            }
            Self::Bool => if rank == 0 { "f" } else { "t" }.to_owned(),
            Self::Plain | Self::Text { .. } | Self::Number(_) => String::new(),
        }
    }

    /// The rank of the value with this text, found by its order.
    fn rank(&self, text: &str) -> Option<u128> {
        let rank = self.ceiling(text.as_bytes())?;
        (self.text(rank) == text).then_some(rank)
    }

    /// The least rank whose text is at least `bound`.
    fn ceiling(&self, bound: &[u8]) -> Option<u128> {
        let (mut low, mut high) = (0, self.last_rank());
        if self.text(high).as_bytes() < bound {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.text(middle).as_bytes() < bound {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    /// The first and the last value, as literals, whose text may begin a key's rest within `[low, high)`; `None` where
    /// no value does. For ranked kinds alone.
    #[must_use]
    pub fn between(&self, low: &[u8], high: Option<&[u8]>) -> Option<(String, String)> {
        let first = match self.ceiling(low) {
            // The text before may begin `low`, and `|` behind it be more than what follows there.
            Some(rank) => match rank.checked_sub(1) {
                Some(before) if low.starts_with(self.text(before).as_bytes()) => before,
                _ => rank,
            },
            None if low.starts_with(self.text(self.last_rank()).as_bytes()) => self.last_rank(),
            None => return None,
        };
        let last = match high {
            Some(high) => match self.ceiling(high) {
                Some(rank) => rank.checked_sub(1)?,
                None => self.last_rank(),
            },
            None => self.last_rank(),
        };
        let literal = |rank| self.literal(self.text(rank));
        (first <= last).then(|| (literal(first), literal(last)))
    }
}

/// Reads an escaped text.
fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(next) = chars.next() {
        plain.push(match next {
            '{' => match chars.next()? {
                '{' => '{',
                '}' => '|',
                _ => return None,
            },
            '|' => return None,
            other => other,
        });
    }
    Some(plain)
}

/// Days since 1970-01-01 of an ISO date with a year of four digits.
fn days(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let number =
        |range: core::ops::Range<usize>| text.get(range)?.parse::<u32>().ok().map(i64::from);
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    if year < 1 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March have their leap day at the end.
    let year = if month <= 2 { year - 1 } else { year };
    let of_era = year % 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(year / 400 * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

fn day_text(days: i64) -> String {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The text of a timestamp that is printed as `2026-01-31 17:08:48.5` or, in UTC, with `+00` behind.
fn timestamp(printed: &str, zone: bool) -> Option<String> {
    let printed = if zone { printed.strip_suffix("+00")? } else { printed };
    let (day, time) = printed.split_once(' ')?;
    days(day)?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    // Behind a time may stand BC.
    if clock.len() != 8 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(format!("{day}T{clock}.{fraction:0<6}{}", if zone { "Z" } else { "" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds() -> Vec<Kind> {
        let of = |name, option| Kind::of(name, option, true).unwrap();
        vec![
            of("int2", None),
            of("int4", None),
            of("int8", None),
            of("int8", Some("4")),
            of("int2", Some("19")),
            of("date", None),
            of("timestamp", None),
            of("timestamptz", None),
            of("uuid", None),
            of("bool", None),
        ]
    }

    fn written(kind: Kind, printed: &str) -> Option<String> {
        let mut out = Vec::new();
        kind.write(printed, &mut out).then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn texts_are_in_the_order_of_values_and_none_begins_another() {
        let mut random = fastrand::Rng::with_seed(1);
        for kind in kinds() {
            let last = kind.last_rank();
            let mut ranks = vec![0, 1, last, last - 1, last / 2, last / 2 + 1];
            ranks.extend((0..2000).map(|_| random.u128(0..=last)));
            ranks
                .extend((0..200).map(|_| (last / 2).saturating_add(random.u128(0..300)).min(last)));
            ranks.sort_unstable();
            ranks.dedup();
            for pair in ranks.windows(2) {
                let (a, b) = (kind.text(pair[0]), kind.text(pair[1]));
                assert!(a < b && !b.starts_with(&a) && !a.contains('|'), "{kind:?} {a} {b}");
            }
            for rank in ranks {
                let text = kind.text(rank);
                assert_eq!(kind.rank(&text), Some(rank), "{kind:?} {text}");
            }
        }
    }

    #[test]
    fn printed_values_and_literals() {
        let of = |name, option| Kind::of(name, option, true).unwrap();
        let cases = [
            (of("int4", None), "100", "0000000100"),
            (of("int4", None), "-1", "-9999999998"),
            (of("int4", Some("4")), "100", "0100"),
            (of("int4", Some("plain")), "100", "100"),
            (of("int8", None), "-9223372036854775808", "-0776627963145224191"),
            (of("int8", None), "9223372036854775807", "9223372036854775807"),
            (of("date", None), "2024-02-29", "2024-02-29"),
            (
                of("uuid", None),
                "6ecd8c99-4036-403d-bf84-cf8400f67836",
                "6ecd8c99-4036-403d-bf84-cf8400f67836",
            ),
            (of("bool", None), "t", "t"),
            (of("text", None), "a|b{c}d", "a{}b{{c}d"),
            (of("text", None), "", ""),
        ];
        for (kind, printed, text) in cases {
            assert_eq!(written(kind, printed).as_deref(), Some(text));
            assert_eq!(kind.read(text.as_bytes()).as_deref(), Some(printed), "{text}");
        }
        let stamp = of("timestamptz", None);
        assert_eq!(
            written(stamp, "2026-11-21 17:08:48.5+00").as_deref(),
            Some("2026-11-21T17:08:48.500000Z")
        );
        assert_eq!(
            stamp.read(b"2026-11-21T17:08:48.500000Z").as_deref(),
            Some("2026-11-21T17:08:48.500000Z")
        );
        assert_eq!(
            written(of("timestamp", None), "0001-01-01 00:00:00").as_deref(),
            Some("0001-01-01T00:00:00.000000")
        );
    }

    #[test]
    fn values_and_texts_out_of_bounds() {
        let of = |name, option| Kind::of(name, option, true).unwrap();
        assert_eq!(written(of("int4", Some("2")), "100"), None);
        assert_eq!(written(of("date", None), "infinity"), None);
        assert_eq!(written(of("date", None), "0044-03-15 BC"), None);
        assert_eq!(written(of("date", None), "10000-01-01"), None);
        assert_eq!(written(of("timestamp", None), "-infinity"), None);
        assert_eq!(written(of("timestamp", None), "0044-03-15 12:00:00 BC"), None);
        for (kind, text) in [
            (of("int4", None), "100"),
            (of("int4", None), "9999999999"),
            (of("int4", Some("plain")), "0100"),
            (of("int4", Some("plain")), "x"),
            (of("date", None), "2023-02-29"),
            (of("uuid", None), "6ECD8C99-4036-403d-bf84-cf8400f67836"),
            (of("text", None), "a{"),
            (of("text", None), "a{b"),
            (of("text", None), "a\0"),
        ] {
            assert_eq!(kind.read(text.as_bytes()), None, "{text}");
        }
        assert!(Kind::of("money", None, true).unwrap_err().contains("money"));
        assert!(Kind::of("numeric", Some("4"), true).is_err());
        assert!(Kind::of("text", Some("4"), true).is_err());
        assert!(Kind::of("int4", Some("20"), true).is_err());
    }

    #[test]
    fn escaped_texts_are_in_order() {
        let mut random = fastrand::Rng::with_seed(2);
        let letters = ['a', 'z', '{', '|', '}', '~', 'é', '\u{1}'];
        let mut draw = || -> String {
            let length = random.usize(0..5);
            (0..length).map(|_| letters[random.usize(0..letters.len())]).collect()
        };
        let kind = Kind::Text { bytewise: true };
        for _ in 0..20_000 {
            let (a, b) = (draw(), draw());
            let (x, y) = (written(kind, &a).unwrap(), written(kind, &b).unwrap());
            assert_eq!(a.cmp(&b), x.cmp(&y), "{a:?} {b:?}");
            assert_eq!(kind.read(x.as_bytes()), Some(a));
            assert!(!x.contains('|'));
        }
    }

    #[test]
    fn bounds_hold_every_value_that_can_begin_a_key() {
        let mut random = fastrand::Rng::with_seed(3);
        for kind in kinds() {
            let last = kind.last_rank();
            for _ in 0..300 {
                let mut bound = || {
                    let mut text = kind.text(random.u128(0..=last)).into_bytes();
                    text.truncate(random.usize(0..=text.len()));
                    if random.bool() {
                        text.push(random.u8(0x20..0x7f));
                    }
                    text
                };
                let (low, high) = (bound(), bound());
                let between = kind.between(&low, Some(&high));
                for _ in 0..20 {
                    let text = kind.text(random.u128(0..=last));
                    for rest in ["", "|", "|~~~"] {
                        let key = format!("{text}{rest}").into_bytes();
                        if key < low || key >= high {
                            continue;
                        }
                        let (first, last) = between.clone().unwrap();
                        let rank =
                            |literal: &str| kind.rank(&written_literal(kind, literal)).unwrap();
                        let here = kind.rank(&text).unwrap();
                        assert!(rank(&first) <= here && here <= rank(&last), "{kind:?} {text}");
                    }
                }
            }
        }
    }

    /// The text of a literal: integers are written, the others are their texts.
    fn written_literal(kind: Kind, literal: &str) -> String {
        if matches!(kind, Kind::Digits { .. }) {
            written(kind, literal).unwrap()
        } else {
            literal.to_owned()
        }
    }
}
