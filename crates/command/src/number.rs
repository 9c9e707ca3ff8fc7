//! Whole numbers as decimal text, without allocation.
//!
//! # Cost
//! Formatting writes two digits per division; parsing is one multiplication per digit.

use core::fmt;

/// Longest decimal text of an `i64`.
pub const I64_TEXT_MAX: usize = 20;

const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut at = 0;
    while at < 100 {
        pairs[at] = [b'0' + (at / 10) as u8, b'0' + (at % 10) as u8];
        at += 1;
    }
    pairs
};

/// Decimal text of a number, held in place.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; I64_TEXT_MAX],
    start: u8,
}

impl Text {
    /// The digits, with a sign where the number is negative.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }
}

/// The decimal text of `number`.
#[inline]
#[must_use]
pub fn unsigned(number: u64) -> Text {
    let mut bytes = [0; I64_TEXT_MAX];
    let start = write_digits(&mut bytes, number);
    Text { bytes, start: start as u8 }
}

/// The decimal text of `number`.
#[inline]
#[must_use]
pub fn signed(number: i64) -> Text {
    let mut bytes = [0; I64_TEXT_MAX];
    let mut start = write_digits(&mut bytes, number.unsigned_abs());
    if number < 0 {
        start -= 1;
        bytes[start] = b'-';
    }
    Text { bytes, start: start as u8 }
}

#[inline]
fn write_digits(bytes: &mut [u8; I64_TEXT_MAX], mut rest: u64) -> usize {
    let mut at = I64_TEXT_MAX;
    while rest >= 100 {
        let pair = PAIRS[(rest % 100) as usize];
        rest /= 100;
        at -= 2;
        bytes[at] = pair[0];
        bytes[at + 1] = pair[1];
    }
    if rest >= 10 {
        let pair = PAIRS[rest as usize];
        at -= 2;
        bytes[at] = pair[0];
        bytes[at + 1] = pair[1];
    } else {
        at -= 1;
        bytes[at] = b'0' + rest as u8;
    }
    at
}

/// The number that `text` is the canonical decimal text of: no spaces, no plus sign, no leading
/// zeros, no minus zero; `None` for anything else.
#[inline]
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if let [b'0'] = digits {
        return (!negative).then_some(0);
    }
    if digits.is_empty() || digits.len() > 19 || digits[0] == b'0' {
        return None;
    }
    let mut magnitude = 0_u64;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits fit 64 bits.
        magnitude = magnitude * 10 + u64::from(digit);
    }
    if negative {
        (magnitude <= 1 << 63).then(|| 0_i64.wrapping_sub_unsigned(magnitude))
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// As [`parse_i64`], for numbers from 0 to `u64::MAX`.
#[must_use]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    if let [b'0'] = text {
        return Some(0);
    }
    if text.is_empty() || text[0] == b'0' {
        return None;
    }
    text.iter().try_fold(0_u64, |number, &digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Sign and magnitude of the number that `text` begins with: after white space, with a sign of either
/// kind, and with nothing behind the digits but white space and what follows that.
fn read(text: &[u8]) -> Option<(bool, u64)> {
    let text = text.trim_ascii_start();
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || text.get(digits).is_some_and(|next| !next.is_ascii_whitespace()) {
        return None;
    }
    let magnitude = text[..digits].iter().try_fold(0_u64, |number, &digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    Some((negative, magnitude))
}

/// The number from 0 to `u64::MAX` that `text` begins with, as C's `strtoull` reads it.
#[inline]
#[must_use]
pub fn read_u64(text: &[u8]) -> Option<u64> {
    read(text).filter(|&(negative, magnitude)| !negative || magnitude == 0).map(|read| read.1)
}

/// The number that `text` begins with, as C's `strtoll` reads it.
#[inline]
#[must_use]
pub fn read_i64(text: &[u8]) -> Option<i64> {
    let (negative, magnitude) = read(text)?;
    if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Bytes with one unit and two decimals, as INFO shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Human(pub usize);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{}B", self.0),
            1024..0x10_0000 => write!(f, "{:.2}K", bytes / 1024.0),
            0x10_0000..0x4000_0000 => write!(f, "{:.2}M", bytes / 1_048_576.0),
            _ => write!(f, "{:.2}G", bytes / 1_073_741_824.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_unit() {
        assert_eq!(alloc::format!("{}", Human(1_572_864)), "1.50M");
        assert_eq!(alloc::format!("{}", Human(1023)), "1023B");
    }

    #[test]
    fn numbers_are_read_as_c_does() {
        for (text, number) in
            [("5", 5), (" 55", 55), ("+5", 5), ("5 c", 5), ("007\t", 7), ("-0", 0)]
        {
            assert_eq!(read_u64(text.as_bytes()), Some(number), "{text:?}");
        }
        for text in ["", "-", "-5", "abc", "5c", "0x5", "5.0", "18446744073709551616", " "] {
            assert_eq!(read_u64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(read_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(read_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(read_i64(b"-9223372036854775809"), None);
        assert_eq!(read_i64(b"9223372036854775808"), None);
    }

    #[test]
    fn text_and_number_agree_at_the_edges() {
        for number in [0, 1, 9, 10, 99, 100, 101, 12_345, i64::MAX, i64::MIN, -1, -10, -100] {
            let text = signed(number);
            assert_eq!(text.as_bytes(), alloc::format!("{number}").as_bytes());
            assert_eq!(parse_i64(text.as_bytes()), Some(number));
        }
        assert_eq!(unsigned(u64::MAX).as_bytes(), b"18446744073709551615");
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
    }

    #[test]
    fn only_canonical_text_is_a_number() {
        for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "1e3"] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_i64(b"-9223372036854775809"), None);
    }
}
