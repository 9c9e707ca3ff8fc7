//! Keys and half-open key ranges, ordered bytewise.

use alloc::vec::Vec;
use core::ops::Bound;

/// Separates the components of a key.
pub const SEPARATOR: u8 = b'|';

/// The table a key lives in: the bytes before its first `|`; `None` for the unnamed table.
#[inline]
#[must_use]
pub fn table_of(key: &[u8]) -> Option<&[u8]> {
    key.iter().position(|&byte| byte == SEPARATOR).map(|at| &key[..at])
}

/// The least byte string greater than every string that starts with `prefix`; empty where
/// there is none (an empty prefix, or one of 0xFF bytes alone), which means "to the end".
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|&byte| byte != 0xFF) {
        Some(at) => {
            let mut end = prefix[..=at].to_vec();
            end[at] += 1;
            end
        }
        None => Vec::new(),
    }
}

/// A key in two parts, where it lies so: whoever writes it somewhere else need not put it together first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyParts<'k> {
    /// What it begins with.
    pub stem: &'k [u8],
    /// What follows.
    pub rest: &'k [u8],
}

impl<'k> KeyParts<'k> {
    /// A key in one part.
    #[inline]
    #[must_use]
    pub fn whole(key: &'k [u8]) -> Self {
        Self { stem: key, rest: &[] }
    }

    /// How many bytes it has.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.stem.len() + self.rest.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The key.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        [self.stem, self.rest].concat()
    }

    /// The key, put together in room that is there.
    #[inline]
    pub fn put_into(self, room: &mut Vec<u8>) -> &[u8] {
        room.clear();
        room.extend_from_slice(self.stem);
        room.extend_from_slice(self.rest);
        room
    }
}

/// A half-open range of keys, `[first, last)`; an empty `last` means "to the end".
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyRange {
    /// The least key that may lie in the range.
    pub first: Vec<u8>,
    /// The least key beyond the range; empty: the range has no end.
    pub last: Vec<u8>,
}

impl KeyRange {
    /// `[first, last)`.
    #[must_use]
    pub fn new(first: &[u8], last: &[u8]) -> Self {
        Self { first: first.to_vec(), last: last.to_vec() }
    }

    /// Every key that starts with `prefix`.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { first: prefix.to_vec(), last: prefix_end(prefix) }
    }

    /// The range that holds `key` alone.
    #[must_use]
    pub fn point(key: &[u8]) -> Self {
        let mut last = key.to_vec();
        last.push(0);
        Self { first: key.to_vec(), last }
    }

    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self { first: Vec::new(), last: Vec::new() }
    }

    /// The same keys, of those with at most `key_bytes_max` bytes, between ends that are at most
    /// one byte longer: a longer end is cut behind the last key before it.
    #[must_use]
    pub fn cut(mut self, key_bytes_max: usize) -> Self {
        for end in [&mut self.first, &mut self.last] {
            if end.len() > key_bytes_max {
                end.truncate(key_bytes_max);
                end.push(0);
            }
        }
        self
    }

    /// Whether no key can lie in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.last.is_empty() && self.first >= self.last
    }

    /// Whether `key` lies in the range.
    #[inline]
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.first.as_slice() <= key && before_end(key, &self.last)
    }

    /// Whether every key of `other` lies in the range.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.is_empty() || (self.first <= other.first && end_at_most(&other.last, &self.last))
    }

    /// The keys that lie in both ranges (perhaps none).
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let last = if end_at_most(&self.last, &other.last) { &self.last } else { &other.last };
        Self { first: self.first.as_slice().max(&other.first).to_vec(), last: last.clone() }
    }

    /// The parts of the range that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Vec<Self> {
        if !self.overlaps(other) {
            return [self.clone()].into();
        }
        let mut left = Vec::new();
        if self.first < other.first {
            left.push(Self::new(&self.first, &other.first));
        }
        if !other.last.is_empty() {
            left.push(Self::new(&other.last, &self.last));
        }
        left.retain(|range| !range.is_empty());
        left
    }

    /// Whether some key lies in both ranges.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty()
            && !other.is_empty()
            && before_end(&self.first, &other.last)
            && before_end(&other.first, &self.last)
    }
}

/// A range end as a bound of an ordered map (empty: no end).
#[inline]
#[must_use]
pub fn end_bound(last: &[u8]) -> Bound<&[u8]> {
    if last.is_empty() { Bound::Unbounded } else { Bound::Excluded(last) }
}

/// The bounds of `[first, last)` in an ordered map, whose `range` takes none where `first` lies behind `last`.
#[inline]
#[must_use]
pub fn bounds<'r>(first: &'r [u8], last: &'r [u8]) -> (Bound<&'r [u8]>, Bound<&'r [u8]>) {
    (Bound::Included(first), end_bound(last))
}

/// Whether `key` lies before the range end `last` (empty: no end).
#[inline]
#[must_use]
pub fn before_end(key: &[u8], last: &[u8]) -> bool {
    last.is_empty() || key < last
}

/// Whether the range end `a` is at most the range end `b` (empty: no end, the greatest).
#[inline]
#[must_use]
pub fn end_at_most(a: &[u8], b: &[u8]) -> bool {
    b.is_empty() || (!a.is_empty() && a <= b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ends() {
        assert_eq!(prefix_end(b"t|ann|"), b"t|ann}");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"");
        assert_eq!(prefix_end(b""), b"");
    }

    #[test]
    fn what_is_left_of_a_range_without_another() {
        let range = KeyRange::new(b"c", b"m");
        let without = |first: &[u8], last: &[u8]| range.without(&KeyRange::new(first, last));
        assert_eq!(without(b"e", b"g"), [KeyRange::new(b"c", b"e"), KeyRange::new(b"g", b"m")]);
        assert_eq!(without(b"a", b"g"), [KeyRange::new(b"g", b"m")]);
        assert_eq!(without(b"g", b""), [KeyRange::new(b"c", b"g")]);
        assert_eq!(without(b"m", b"z"), [KeyRange::new(b"c", b"m")]);
        assert!(without(b"", b"").is_empty());
        let tail = KeyRange::new(b"c", b"");
        assert_eq!(tail.without(&range), [KeyRange::new(b"m", b"")]);
    }

    #[test]
    fn ranges_without_an_end() {
        let tail = KeyRange::new(b"m", b"");
        assert!(tail.contains(b"\xff\xff") && !tail.contains(b"l"));
        assert!(!tail.is_empty() && KeyRange::new(b"b", b"b").is_empty());
        assert!(tail.covers(&KeyRange::new(b"n", b"")));
        assert!(!KeyRange::new(b"m", b"z").covers(&KeyRange::new(b"n", b"")));
        assert_eq!(tail.intersection(&KeyRange::new(b"a", b"q")), KeyRange::new(b"m", b"q"));
        assert!(!KeyRange::new(b"a", b"b").overlaps(&KeyRange::new(b"b", b"c")));
    }

    #[test]
    fn cut_ends_hold_the_same_short_keys() {
        let texts: [&[u8]; 8] = [b"", b"a", b"aa", b"ab", b"aa\0", b"aab", b"abc", b"b"];
        for first in texts {
            for last in texts {
                let range = KeyRange::new(first, last);
                let cut = range.clone().cut(2);
                assert!(cut.first.len() <= 3 && cut.last.len() <= 3);
                for key in texts.iter().filter(|key| key.len() <= 2) {
                    assert_eq!(range.contains(key), cut.contains(key), "{range:?} {key:?}");
                }
            }
        }
    }

    #[test]
    fn tables() {
        assert_eq!(table_of(b"t|ann|1"), Some(&b"t"[..]));
        assert_eq!(table_of(b"session:42"), None);
        assert_eq!(table_of(b"|x"), Some(&b""[..]));
    }
}
