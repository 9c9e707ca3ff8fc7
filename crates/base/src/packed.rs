//! Keys with their values in one buffer: what many rows are passed on in between threads.
//!
//! # Cost
//! Sixteen bytes a pair beside its own, and no allocation: a pair that has two of its own costs its reader and its writer more than its bytes do.

use crate::key::KeyRange;
use alloc::vec::Vec;

/// Pairs of keys and values in one buffer, in the order in which they were added.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackedPairs {
    bytes: Vec<u8>,
    /// Where the key of each pair ends, and where its value does.
    ends: Vec<(usize, usize)>,
}

impl PackedPairs {
    /// None, with room for about so many bytes and pairs.
    #[must_use]
    pub fn with_capacity(bytes: usize, pairs: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(pairs) }
    }

    /// Adds a pair that `write` appends to the buffer: its key first, of which it gives the end, then its value. Where it gives `None` there is no such
    /// pair.
    #[inline]
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<usize>) -> bool {
        let first = self.bytes.len();
        let key_end = write(&mut self.bytes).filter(|end| (first..=self.bytes.len()).contains(end));
        match key_end {
            Some(key_end) => self.ends.push((key_end, self.bytes.len())),
            None => self.bytes.truncate(first),
        }
        key_end.is_some()
    }

    /// Adds a pair.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    /// Takes the last pair away.
    pub fn pop(&mut self) {
        self.ends.pop();
        self.bytes.truncate(self.first(self.ends.len()));
    }

    /// Adds the pairs of `other` behind.
    pub fn append(&mut self, other: &Self) {
        other.iter().for_each(|(key, value)| self.push(key, value));
    }

    /// Keeps the pairs whose keys lie in a range.
    pub fn retain_within(&mut self, range: &KeyRange) {
        if self.iter().all(|(key, _)| range.contains(key)) {
            return;
        }
        let mut kept = Self::default();
        for (key, value) in self.iter().filter(|(key, _)| range.contains(key)) {
            kept.push(key, value);
        }
        *self = kept;
    }

    fn first(&self, at: usize) -> usize {
        at.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |ends| ends.1)
    }

    /// The pair at a place.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        let &(key_end, end) = self.ends.get(at)?;
        let first = self.first(at);
        self.bytes.get(first..end)?.split_at_checked(key_end - first)
    }

    /// The last pair.
    #[must_use]
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.get(self.len().checked_sub(1)?)
    }

    /// All pairs.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of keys and values from the pair at a place on.
    #[must_use]
    pub fn bytes_from(&self, at: usize) -> usize {
        self.bytes.len().saturating_sub(self.first(at))
    }
}

impl<'a> FromIterator<(&'a [u8], &'a [u8])> for PackedPairs {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], &'a [u8])>>(pairs: I) -> Self {
        let mut packed = Self::default();
        pairs.into_iter().for_each(|(key, value)| packed.push(key, value));
        packed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_where_they_were_put() {
        let mut packed = PackedPairs::with_capacity(16, 2);
        for (key, value) in [(&b"a"[..], &b"one"[..]), (b"", b""), (b"bc", b"")] {
            packed.push(key, value);
        }
        assert!(!packed.push_with(|bytes| {
            bytes.extend_from_slice(b"half");
            None
        }));
        let all: [(&[u8], &[u8]); 3] = [(b"a", b"one"), (b"", b""), (b"bc", b"")];
        assert!(packed.iter().eq(all));
        assert_eq!((packed.len(), packed.bytes_from(0), packed.bytes_from(1)), (3, 6, 2));
        assert_eq!((packed.last(), packed.get(3)), (Some(all[2]), None));
        packed.pop();
        assert!(packed.iter().eq(all[..2].iter().copied()));
        let more: PackedPairs = [all[0], all[2]].into_iter().collect();
        packed.append(&more);
        assert!(packed.iter().eq([all[0], all[1], all[0], all[2]]));
        packed.retain_within(&KeyRange::prefix(b"b"));
        assert!(packed.iter().eq([all[2]]));
        assert!(PackedPairs::default().is_empty() && PackedPairs::default().last().is_none());
    }
}
