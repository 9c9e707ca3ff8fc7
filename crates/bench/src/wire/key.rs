//! Short keys, built on the stack: fixed-width numbers, so that they sort as they count.

use core::ops::Deref;

/// Digits of a moment in keys.
pub const TIME_DIGITS: usize = 10;
/// Digits of a number behind a letter: `u0000042`.
pub const NAME_DIGITS: usize = 7;

/// A key of at most 96 bytes in the making.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    bytes: [u8; 96],
    length: usize,
}

impl Key {
    /// A key that starts with `text`.
    #[inline]
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        Self { bytes: [0; 96], length: 0 }.text(text)
    }

    /// The key followed by `text`.
    #[inline]
    #[must_use]
    pub fn text(mut self, text: &[u8]) -> Self {
        self.bytes[self.length..self.length + text.len()].copy_from_slice(text);
        self.length += text.len();
        self
    }

    /// The key followed by `number` with exactly `digits` digits.
    #[inline]
    #[must_use]
    pub fn number(mut self, number: u64, digits: usize) -> Self {
        let mut rest = number;
        for at in (self.length..self.length + digits).rev() {
            self.bytes[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        self.length += digits;
        self
    }

    /// The key followed by a user's name, `u0000042`.
    #[inline]
    #[must_use]
    pub fn user(self, user: u32) -> Self {
        self.text(b"u").number(u64::from(user), NAME_DIGITS)
    }

    /// The key followed by a moment, `0000000042`.
    #[inline]
    #[must_use]
    pub fn time(self, time: u32) -> Self {
        self.number(u64::from(time), TIME_DIGITS)
    }

    /// The key followed by `number` without leading zeros.
    #[inline]
    #[must_use]
    pub fn decimal(self, number: u64) -> Self {
        let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
        self.number(number, digits)
    }
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The number that these decimal digits write; `None` where one is no digit.
#[inline]
#[must_use]
pub fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, &digit| {
        digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_with_fixed_widths() {
        assert_eq!(&*Key::new(b"t|").user(42).text(b"|").time(7), b"t|u0000042|0000000007");
        assert_eq!(&*Key::new(b"t:").decimal(0), b"t:0");
        assert_eq!(&*Key::new(b"t:").decimal(1000), b"t:1000");
    }

    #[test]
    fn digits_read_back() {
        assert_eq!(number_of(b"0000000042"), Some(42));
        assert_eq!(number_of(b"4x"), None);
        assert_eq!(number_of(b""), None);
    }
}
