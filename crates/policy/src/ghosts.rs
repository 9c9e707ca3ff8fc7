//! Fingerprints of what was evicted lately, so that what comes back is not taken for new.
//!
//! A table of buckets of eight: 12 bits of the key's hash, and four of the count that the entry
//! had. A bucket forgets its oldest. A stranger is taken for a ghost once in 500 times, which
//! costs it nothing but an undeserved use.
//!
//! # Invariants
//! - F1. The bucket is chosen by the low bits of the hash and the fingerprint is from the high
//!   ones, so a table is doubled by standing twice: each ghost is found wherever it is looked for.
//!
//! # Cost
//! One cache line per call; 2 bytes per ghost, and as many ghosts as entries, or up to twice.

use crate::heat::COUNT_MAX;
use alloc::vec;
use alloc::vec::Vec;

const WAYS: usize = 8;
/// Ghosts of a small cache.
const LEAST: usize = 1024;

/// What was evicted lately.
#[derive(Clone, Debug)]
pub struct Ghosts {
    /// A power of two of them. A ghost is its fingerprint and its count plus one; 0 is none.
    buckets: Vec<[u16; WAYS]>,
}

impl Default for Ghosts {
    fn default() -> Self {
        Self { buckets: vec![[0; WAYS]; LEAST / WAYS] }
    }
}

impl Ghosts {
    /// Doubles the table as long as there are more entries than ghosts.
    pub fn fit(&mut self, entries: usize) {
        while self.buckets.len() * WAYS < entries {
            self.buckets.extend_from_within(..);
        }
    }

    /// Bytes that the table takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<[u16; WAYS]>()
    }

    #[inline]
    fn place(&mut self, hash: u64) -> (&mut [u16; WAYS], u16) {
        let at = hash as usize & (self.buckets.len() - 1);
        (&mut self.buckets[at], (hash >> 48) as u16 & 0xfff0)
    }

    /// Remembers what was evicted.
    #[inline]
    pub fn add(&mut self, hash: u64, count: u8) {
        let (bucket, print) = self.place(hash);
        bucket.rotate_right(1);
        bucket[0] = print | u16::from(count.min(COUNT_MAX - 1) + 1);
    }

    /// Forgets a ghost that comes back; gives the count that it had.
    #[inline]
    pub fn take(&mut self, hash: u64) -> Option<u8> {
        let (bucket, print) = self.place(hash);
        let found = bucket.iter_mut().find(|ghost| **ghost & 15 != 0 && **ghost & 0xfff0 == print);
        found.map(|ghost| (core::mem::take(ghost) & 15) as u8 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> u64 {
        let word = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn a_ghost_comes_back_once_with_its_count() {
        let mut ghosts = Ghosts::default();
        ghosts.add(hash(1), 3);
        ghosts.add(hash(2), 200);
        assert_eq!(ghosts.take(hash(1)), Some(3));
        assert_eq!(ghosts.take(hash(1)), None);
        assert_eq!(ghosts.take(hash(2)), Some(COUNT_MAX - 1));
    }

    #[test]
    fn the_latest_are_remembered_and_strangers_are_not() {
        let mut ghosts = Ghosts::default();
        ghosts.fit(4096);
        for number in 0..100_000 {
            ghosts.add(hash(number), 1);
        }
        let known = |ghosts: &Ghosts, range: core::ops::Range<u64>| {
            let mut ghosts = ghosts.clone();
            range.filter(|&number| ghosts.take(hash(number)).is_some()).count()
        };
        assert!(known(&ghosts, 99_000..100_000) > 980);
        assert!(known(&ghosts, 0..1_000) < 20);
        assert!(known(&ghosts, 200_000..201_000) < 20);
    }

    #[test]
    fn doubling_loses_none() {
        let mut ghosts = Ghosts::default();
        for number in 0..300 {
            ghosts.add(hash(number), 2);
        }
        let before = (0..300).filter(|&n| ghosts.clone().take(hash(n)).is_some()).count();
        ghosts.fit(10_000);
        assert_eq!(ghosts.bytes(), 16_384 * 2);
        let after = (0..300).filter(|&n| ghosts.clone().take(hash(n)).is_some()).count();
        assert_eq!(after, before);
        assert!(before > 290);
    }
}
