//! Keys with their values in few buffers: what many rows are passed on in between threads.
//!
//! # Cost
//! 24 bytes a pair beside its own, and no allocation: a pair that has two of its own costs its reader and its writer more than its bytes do. A full
//! buffer is not moved: another one begins behind it, so many pairs take hardly more than their bytes.

use crate::key::KeyRange;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

/// Bytes of a buffer, behind which another one begins.
const CHUNK_BYTES: usize = 256 << 10;
/// What it has room for: the pair that fills it goes beyond that.
const CHUNK_ROOM: usize = CHUNK_BYTES + CHUNK_BYTES / 16;

/// Pairs of keys and values in few buffers, in the order in which they were added, or in that of their keys.
#[derive(Clone, Default)]
pub struct PackedPairs {
    chunks: Vec<Vec<u8>>,
    places: Vec<PairPlace>,
    /// Bytes of the pairs.
    bytes: usize,
    /// What is given back with the pairs.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

/// Where a pair is: its key in a buffer, and behind that its value.
#[derive(Clone, Copy, Debug)]
struct PairPlace {
    chunk: u32,
    key_length: u32,
    first: usize,
    end: usize,
}

impl PairPlace {
    fn length(self) -> usize {
        self.end - self.first
    }

    fn pair(self, chunks: &[Vec<u8>]) -> Option<(&[u8], &[u8])> {
        let pair = chunks.get(self.chunk as usize)?.get(self.first..self.end)?;
        pair.split_at_checked(self.key_length as usize)
    }

    fn key(self, chunks: &[Vec<u8>]) -> &[u8] {
        self.pair(chunks).map_or(&[], |(key, _)| key)
    }
}

impl PackedPairs {
    /// None, with room for about so many bytes and pairs.
    #[must_use]
    pub fn with_capacity(bytes: usize, pairs: usize) -> Self {
        let chunks = [Vec::with_capacity(bytes.min(CHUNK_BYTES))].into();
        Self { chunks, places: Vec::with_capacity(pairs), ..Self::default() }
    }

    /// Adds a pair that `write` appends to a buffer: its key first, of which it gives the end, then its value. Where it gives `None` there is no such
    /// pair.
    #[inline]
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<usize>) -> bool {
        if self.chunks.last().is_none_or(|chunk| chunk.len() >= CHUNK_BYTES) {
            self.begin_chunk();
        }
        let last = self.chunks.len() - 1;
        let Some(chunk) = self.chunks.get_mut(last) else { return false };
        let first = chunk.len();
        let key_end = write(chunk).filter(|end| (first..=chunk.len()).contains(end));
        let lengths = key_end
            .and_then(|end| Some((u32::try_from(last).ok()?, u32::try_from(end - first).ok()?)));
        let Some((at, key_length)) = lengths else {
            chunk.truncate(first);
            return false;
        };
        let place = PairPlace { chunk: at, key_length, first, end: chunk.len() };
        self.bytes += place.length();
        self.places.push(place);
        true
    }

    #[cold]
    fn begin_chunk(&mut self) {
        // The first one is as small as it can be.
        let room = if self.chunks.is_empty() { 0 } else { CHUNK_ROOM };
        self.chunks.push(Vec::with_capacity(room));
    }

    /// Adds a pair.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.push_with(|out| {
            out.extend_from_slice(key);
            let key_end = out.len();
            out.extend_from_slice(value);
            Some(key_end)
        });
    }

    /// Takes the last pair away.
    pub fn pop(&mut self) {
        let Some(place) = self.places.pop() else { return };
        self.bytes -= place.length();
        if let Some(chunk) = self.chunks.get_mut(place.chunk as usize)
            && place.end == chunk.len()
        {
            chunk.truncate(place.first);
        }
    }

    /// Adds the pairs of `other` behind, and holds what they hold; what these held is given back where they hold something.
    pub fn append(&mut self, other: &Self) {
        other.iter().for_each(|(key, value)| self.push(key, value));
        self.held = other.held.clone().or_else(|| self.held.take());
    }

    /// Keeps the pairs whose keys `keeps` names. No bytes are moved.
    pub fn retain(&mut self, keeps: impl Fn(&[u8]) -> bool) {
        let (chunks, bytes) = (&self.chunks, &mut self.bytes);
        self.places.retain(|place| {
            let keeps = keeps(place.key(chunks));
            *bytes -= if keeps { 0 } else { place.length() };
            keeps
        });
    }

    /// Keeps the pairs whose keys lie in a range.
    pub fn retain_within(&mut self, range: &KeyRange) {
        self.retain(|key| range.contains(key));
    }

    /// Has the pairs come in the order of their keys; those of one key stay as they are. No bytes are moved.
    pub fn sort(&mut self) {
        let chunks = &self.chunks;
        if !self.places.is_sorted_by(|one, next| one.key(chunks) <= next.key(chunks)) {
            self.places.sort_by(|one, next| one.key(chunks).cmp(next.key(chunks)));
        }
    }

    /// Keeps something until the pairs are dropped: what gives back the room that they take.
    pub fn hold(&mut self, held: Arc<dyn Any + Send + Sync>) {
        self.held = Some(held);
    }

    /// The pair at a place.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        self.places.get(at)?.pair(&self.chunks)
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
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of keys and values.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of keys and values from the pair at a place on.
    #[must_use]
    pub fn bytes_from(&self, at: usize) -> usize {
        match at {
            0 => self.bytes(),
            _ => self.places.iter().skip(at).map(|place| place.length()).sum(),
        }
    }
}

impl PartialEq for PackedPairs {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PackedPairs {}

impl fmt::Debug for PackedPairs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_map().entries(self.iter()).finish()
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
        assert_eq!((packed.bytes(), packed.bytes_from(1)), (2, 0));
        packed.push(b"a", b"1");
        packed.push(b"a", b"2");
        packed.sort();
        let sorted: [(&[u8], &[u8]); 3] = [(b"a", b"1"), (b"a", b"2"), (b"bc", b"")];
        assert!(packed.iter().eq(sorted));
        assert_eq!((packed.bytes(), packed.bytes_from(2)), (6, 2));
        packed.pop();
        assert!(packed.iter().eq(sorted[..2].iter().copied()));
        assert_eq!(packed.bytes(), 4);
        // Several buffers.
        let long = alloc::vec![b'x'; CHUNK_BYTES / 3];
        (b'b'..=b'i').for_each(|key| packed.push(&[key], &long));
        assert_eq!((packed.chunks.len(), packed.len()), (3, 10));
        assert_eq!(packed.bytes(), 4 + 8 * (1 + long.len()));
        let all = (b'b'..=b'i').map(|key| ([key], &*long));
        assert!(packed.iter().skip(2).zip(all).all(|(one, (key, value))| one == (&key[..], value)));
        packed.retain(|key| key == b"i");
        packed.pop();
        assert_eq!((packed.bytes(), packed.len()), (0, 0));
        assert!(PackedPairs::default().is_empty() && PackedPairs::default().last().is_none());
    }
}
