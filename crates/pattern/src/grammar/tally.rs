//! Operators with a number behind them, and the slot that a source looks at in the place of the value.
//!
//! ```text
//! tally  = "distinct" | "distinct~" NUMBER | "topk" NUMBER | "percentile" PERCENT
//! source = tally pattern { "as" … } [ "on" "<" slot ">" ] [ "where" … ]
//! ```

use super::{Parsed, Reader, Word, found};
use crate::join::MILLIONTHS_MAX;
use crate::{JoinError, Operator, Pattern, SlotId, Source};
use alloc::format;
use alloc::string::ToString;

/// Most values that `distinct~` may be told to hold.
const HELD_MAX: u32 = 1_000_000;
/// Most values that `topk` may be told to give.
const TOP_MAX: u32 = 1_000;
/// Digits behind the point of a percentage.
const FRACTION_DIGITS: usize = 6;

impl<'t> Reader<'t> {
    /// The operator that a word and the number behind it are; `None` where it is a word that has none.
    pub(super) fn numbered(&mut self, word: Word<'t>) -> Parsed<Option<Operator>> {
        let of: fn(u32) -> Operator = match word.text {
            "distinct~" => Operator::DistinctAbout,
            "topk" => Operator::Top,
            "percentile" => Operator::Percentile,
            _ => return Ok(None),
        };
        self.take(word);
        let number = self.peek();
        let (read, needs) = match word.text {
            "distinct~" => (
                whole(number.text, HELD_MAX),
                format!("how many values it holds before it estimates, from 1 to {HELD_MAX}"),
            ),
            "topk" => (
                whole(number.text, TOP_MAX),
                format!("how many values it gives, from 1 to {TOP_MAX}"),
            ),
            _ => (
                percent(number.text),
                format!(
                    "a number from 0 to 100, with at most {FRACTION_DIGITS} digits behind the point"
                ),
            ),
        };
        let Some(read) = read else {
            let message = format!("`{}` needs {needs}, found {}", word.text, found(number));
            return self.fail(number.at, message);
        };
        self.take(number);
        Ok(Some(of(read)))
    }

    /// The slot behind `on`.
    pub(super) fn on(&mut self) -> Parsed<Word<'t>> {
        let word = self.peek();
        let inner = word.text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
        let Some(name) = inner.filter(|name| !name.is_empty()) else {
            let message = format!("`on` needs a <slot> of this source, found {}", found(word));
            return self.fail(word.at, message);
        };
        self.take(word);
        Ok(Word { text: name, at: word.at })
    }
}

/// Which slot the value source looks at, of those that `names` says there are.
pub(super) fn slot_of(
    text: &str,
    word: Word<'_>,
    id: Option<SlotId>,
    source: &Source,
    output: &Pattern,
) -> Parsed<SlotId> {
    let name = word.text;
    let fail = |message: &dyn ToString| Err(JoinError::new(text, word.at, message.to_string()));
    let own = id.filter(|id| source.slots().any(|slot| slot == *id));
    let Some(id) = own else {
        return fail(&format!(
            "<{name}> is no slot of this source: `on` names one of its key, or one that its value binds with `as`"
        ));
    };
    if output.has_slot(id) {
        return fail(&format!(
            "<{name}> is a part of the output's key, so that each output has one value of it"
        ));
    }
    Ok(id)
}

/// A number from 1 to `most` in digits.
fn whole(text: &str, most: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && (1..=most).contains(number))
}

/// The millionths of a percentage.
fn percent(text: &str) -> Option<u32> {
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (text, ""),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !(1..=3).contains(&whole.len()) || fraction.len() > FRACTION_DIGITS {
        return None;
    }
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let padded = whole.bytes().chain(fraction.bytes());
    let zeros = core::iter::repeat_n(b'0', FRACTION_DIGITS - fraction.len());
    let millionths =
        padded.chain(zeros).fold(0u32, |number, digit| number * 10 + u32::from(digit - b'0'));
    (millionths <= MILLIONTHS_MAX).then_some(millionths)
}

#[cfg(test)]
mod tests {
    use crate::{Join, Operator};
    use alloc::string::ToString;
    use headwater_base::Limits;

    fn parse(text: &str) -> Result<Join, crate::JoinError> {
        Join::parse(text, &Limits::default())
    }

    #[test]
    fn numbers_stand_behind_operators() {
        for (text, operator) in [
            ("u|<p> = distinct v|<p>|<t>", Operator::Distinct),
            ("u|<p> = distinct v|<p>|<u> on <u>", Operator::Distinct),
            (
                "u|<p> = distinct~ 100 v|<p>|<u> on <u> where value = 1",
                Operator::DistinctAbout(100),
            ),
            ("u|<p> = topk 3 v|<p>|<i> as json(.tag) <tag> on <tag>", Operator::Top(3)),
            (
                "u|<p> = pull check s|<p> percentile 99.9 v|<p>|<i>",
                Operator::Percentile(99_900_000),
            ),
            ("u|<p> = percentile 0.000001 v|<p>|<i>", Operator::Percentile(1)),
            ("u|<p> = percentile 100 v|<p>|<i>", Operator::Percentile(100_000_000)),
        ] {
            let join = parse(text).expect(text);
            assert_eq!(join.to_string(), text);
            assert_eq!(join.operator(), operator, "{text}");
            assert_eq!(join.on.is_some(), text.contains(" on "), "{text}");
        }
        let bare = parse("u|p = topk 2 v|p|i").unwrap();
        assert_eq!(bare.to_string(), "u|<p> = topk 2 v|<p>|<i>");
        let long = parse("u|<p> = percentile 050.50 v|<p>|<i>").unwrap();
        assert_eq!(long.to_string(), "u|<p> = percentile 50.5 v|<p>|<i>");
    }

    #[test]
    fn what_they_cannot_be_told_is_said() {
        for (text, column, says) in [
            (
                "u|<p> = topk v|<p>|<i>",
                14,
                "how many values it gives, from 1 to 1000, found `v|<p>|<i>`",
            ),
            ("u|<p> = topk 0 v|<p>|<i>", 14, "from 1 to 1000"),
            ("u|<p> = topk 1001 v|<p>|<i>", 14, "from 1 to 1000"),
            ("u|<p> = topk +1 v|<p>|<i>", 14, "from 1 to 1000"),
            ("u|<p> = distinct~ v|<p>|<i>", 19, "before it estimates"),
            ("u|<p> = percentile 101 v|<p>|<i>", 20, "from 0 to 100"),
            ("u|<p> = percentile 100.000001 v|<p>|<i>", 20, "from 0 to 100"),
            ("u|<p> = percentile 1.0000001 v|<p>|<i>", 20, "6 digits"),
            ("u|<p> = percentile 5. v|<p>|<i>", 20, "6 digits"),
            ("u|<p> = percentile", 19, "found the end"),
            ("u|<p> = topk 3", 15, "expected a pattern after `topk`"),
            ("u|<p> = distinct v|<p>|<i> on i", 31, "needs a <slot>"),
            ("u|<p> = distinct v|<p>|<i> on <x>", 31, "<x> is no slot of this source"),
            ("u|<p> = check s|<p>|<x> distinct v|<p>|<i> on <x>", 47, "no slot of this source"),
            ("u|<p> = distinct v|<p>|<i> on <p>", 31, "a part of the output's key"),
            (
                "u|<p> = count v|<p>|<i> on <i>",
                25,
                "`on` is for distinct, distinct~, topk and percentile",
            ),
            ("u|<p> = distinct v|<p>|<i> where value = 1 on <i>", 44, "`on` stands before `where`"),
            ("u|<p> = distinct v|<p>|<i> on <i> on <i>", 35, "one `on`"),
            ("u|<p> = distinct v|<p>|<i> on <i> as <x>", 35, "`as` stands before `on`"),
            ("u|p = distinct v|p|i on i", 22, "<slot>"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.message.contains(says), "{text}: {}", error.message);
            assert_eq!(error.column, column, "{text}: {}", error.message);
        }
    }
}
