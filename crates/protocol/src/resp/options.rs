//! Reading single arguments: numbers, words, texts and deadlines.

use super::refusal::Refusal;
use headwater_command::{Deadline, Spec, number};

/// No clock of the next thousand years gives more milliseconds: a deadline this far from the
/// end of numbers can be added to any moment.
const NOW_MILLIS_MAX: i64 = 1 << 45;

/// Whether `arg` is `word` (in lower case), in any mixture of cases.
#[inline]
pub(super) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// A whole number.
pub(super) fn integer(arg: &[u8]) -> Result<i64, Refusal<'_>> {
    number::parse_i64(arg).ok_or(Refusal::NotInteger)
}

/// Text that must be UTF-8.
pub(super) fn text<'a>(arg: &'a [u8], otherwise: &'static str) -> Result<&'a str, Refusal<'a>> {
    core::str::from_utf8(arg).map_err(|_| Refusal::Text(otherwise))
}

/// How a deadline is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// In seconds, not milliseconds.
    pub(super) seconds: bool,
    /// From now, not since the epoch.
    pub(super) relative: bool,
}

impl Unit {
    /// The unit that the options of SET and GETEX name.
    pub(super) fn of_option(arg: &[u8]) -> Option<Self> {
        [("ex", true, true), ("px", false, true), ("exat", true, false), ("pxat", false, false)]
            .into_iter()
            .find(|(word, _, _)| is(arg, word))
            .map(|(_, seconds, relative)| Self { seconds, relative })
    }
}

/// A deadline; `spec` is the command that an error names.
pub(super) fn deadline<'a>(
    arg: &'a [u8],
    unit: Unit,
    positive: bool,
    spec: &'static Spec,
) -> Result<Deadline, Refusal<'a>> {
    let given = integer(arg)?;
    let invalid = Refusal::InvalidExpire(spec);
    if positive && given <= 0 {
        return Err(invalid);
    }
    let millis = if unit.seconds { given.checked_mul(1000).ok_or(invalid)? } else { given };
    if !unit.relative {
        return Ok(Deadline::At(millis));
    }
    if millis > i64::MAX - NOW_MILLIS_MAX {
        return Err(invalid);
    }
    Ok(Deadline::After(millis))
}
