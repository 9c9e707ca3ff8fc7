//! Words of a line, separated by spaces.
//!
//! # Cost
//! A line is searched eight bytes at a time.

/// Where `byte` first is in `bytes`.
#[inline]
pub(super) fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let mut chunks = bytes.chunks_exact(8);
    let mut at = 0;
    for chunk in &mut chunks {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        // A byte is zero where it is the one that is sought; the lowest such top bit is right.
        let differ = u64::from_le_bytes(eight) ^ (ONES * u64::from(byte));
        let zeros = differ.wrapping_sub(ONES) & !differ & TOPS;
        if zeros != 0 {
            return Some(at + zeros.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    chunks.remainder().iter().position(|&other| other == byte).map(|found| at + found)
}

/// The words of a line, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    /// The words of `line`.
    #[inline]
    #[must_use]
    pub fn of(line: &'a [u8]) -> Self {
        Self { rest: line }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut rest = self.rest;
        while let [b' ', behind @ ..] = rest {
            rest = behind;
        }
        if rest.is_empty() {
            self.rest = rest;
            return None;
        }
        let (word, behind) = match find(rest, b' ') {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &rest[rest.len()..]),
        };
        self.rest = behind;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn bytes_are_found_wherever_they_are() {
        for len in 0..40 {
            let mut bytes = alloc::vec![0x80_u8; len];
            assert_eq!(find(&bytes, b'\n'), None);
            for at in (0..len).rev() {
                bytes[at] = b'\n';
                assert_eq!(find(&bytes, b'\n'), Some(at), "{at} of {len}");
            }
        }
        assert_eq!(find(b"\x0b\x0b\x0a\x0b\x0a\x0b\x0b\x0b", b'\n'), Some(2));
        assert_eq!(find(b"\x01\x00\x00\x00\x00\x00\x00\x00", 0), Some(1));
    }

    #[test]
    fn words_lie_between_spaces() {
        let words = |line: &'static str| -> Vec<&[u8]> { Words::of(line.as_bytes()).collect() };
        assert_eq!(words("  get a  bb "), [b"get" as &[u8], b"a", b"bb"]);
        assert_eq!(words("a\tb c"), [b"a\tb" as &[u8], b"c"]);
        assert!(words("   ").is_empty() && words("").is_empty());
    }
}
