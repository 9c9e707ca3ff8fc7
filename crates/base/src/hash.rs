//! A fast keyed hash for key bytes, and the `BuildHasher` that pure crates give to `hashbrown`.
//!
//! Folded 64x64->128 multiplication over 16-byte strides (the construction of wyhash). It is
//! keyed by a seed that the server draws at start, so a client cannot prepare colliding keys;
//! tests pass a fixed seed and get the same order in every run.

use core::hash::{BuildHasher, Hasher};

const K0: u64 = 0xa076_1d64_78bd_642f;
const K1: u64 = 0xe703_7ed1_a0b4_28db;
const K2: u64 = 0x8ebc_6af0_9c88_c6e3;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[inline]
fn half(bytes: &[u8], at: usize) -> u64 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u64::from(u32::from_le_bytes(four))
}

/// The 64-bit hash of `bytes` under `seed`.
#[inline]
#[must_use]
pub fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let mut state = seed ^ K0;
    let (low, high) = if len <= 16 {
        if len >= 8 {
            (word(bytes, 0), word(bytes, len - 8))
        } else if len >= 4 {
            (half(bytes, 0), half(bytes, len - 4))
        } else if len > 0 {
            let middle = u64::from(bytes[len / 2]);
            ((u64::from(bytes[0]) << 16) | (middle << 8) | u64::from(bytes[len - 1]), 0)
        } else {
            (0, 0)
        }
    } else {
        let mut at = 0;
        while at + 16 < len {
            state = fold(word(bytes, at) ^ K1, word(bytes, at + 8) ^ state);
            at += 16;
        }
        (word(bytes, len - 16), word(bytes, len - 8))
    };
    fold(K2 ^ len as u64, fold(low ^ K1, high ^ state))
}

/// Builds [`KeyHasher`]s that share one seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHashBuilder {
    seed: u64,
}

impl KeyHashBuilder {
    /// A builder whose hashers all start from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }
}

impl BuildHasher for KeyHashBuilder {
    type Hasher = KeyHasher;
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { state: self.seed }
    }
}

/// The `Hasher` form of [`hash_bytes`].
#[derive(Clone, Debug)]
pub struct KeyHasher {
    state: u64,
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.state = hash_bytes(self.state, bytes);
    }
    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.state = fold(self.state ^ K1, value ^ K2);
    }
    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::hash_bytes;

    #[test]
    fn every_byte_and_the_length_count() {
        let text: alloc::vec::Vec<u8> = (0..100).collect();
        let mut seen = alloc::collections::BTreeSet::new();
        for len in 0..text.len() {
            assert!(seen.insert(hash_bytes(7, &text[..len])), "length {len}");
            for at in 0..len {
                let mut changed = text[..len].to_vec();
                changed[at] ^= 0x80;
                assert!(seen.insert(hash_bytes(7, &changed)), "length {len}, byte {at}");
            }
        }
    }

    #[test]
    fn the_seed_changes_the_hash() {
        assert_ne!(hash_bytes(1, b"user"), hash_bytes(2, b"user"));
    }
}
