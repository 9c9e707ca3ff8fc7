//! Hashes of keys: one that nobody outside can foresee, and one that is the same everywhere.
//!
//! Whatever clients send is hashed under a [`Secret`]. A table whose hashes can be foreseen is a list to whoever
//! sends it keys that agree in them; a seed alone does not help, where a block of a key can make a multiplication zero
//! whatever the seed is. So it is rapidhash, whose every multiplication has a secret word in both of its factors or in
//! what led to them, with all words drawn from the system's randomness. Tests pass a fixed secret and get the
//! same order in every run. Hashes, and what could be reckoned back to the secret, are shown to nobody.
//!
//! [`stable_hash`] is for what is kept or compared elsewhere: checksums, and numbers that stand for words. Keys with equal
//! stable hashes are easily made, so no table is filed by it. What stands for values that clients send and has to be the same
//! everywhere is hashed under a [`Secret::fixed`].

use core::fmt;
use core::hash::{BuildHasher, Hasher};
use rapidhash::v3::{RapidSecrets, rapidhash_v3_nano_inline};

/// What hashes depend on, and nobody outside knows.
#[derive(Clone, Copy)]
pub struct Secret(RapidSecrets);

impl Secret {
    /// Words that a secret is made of.
    pub const WORDS: usize = 8;

    /// The secret of these words, which were drawn at random.
    #[must_use]
    pub fn new(words: [u64; Self::WORDS]) -> Self {
        let [seed, secrets @ ..] = words;
        Self(RapidSecrets { seed, secrets })
    }

    /// A secret that is the same in every run: for tests and simulations, and for hashes that all servers must agree on.
    #[must_use]
    pub const fn fixed(seed: u64) -> Self {
        Self(RapidSecrets::seed(seed))
    }

    /// The hash of `bytes`.
    #[inline]
    #[must_use]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        rapidhash_v3_nano_inline::<true, false>(bytes, &self.0)
    }

    /// The hash of `bytes` that belong to the thing of this number: the same bytes of different things are
    /// told apart, and nobody can choose bytes to make up for the number.
    #[inline]
    #[must_use]
    pub fn hash_of(&self, number: u64, bytes: &[u8]) -> u64 {
        self.hash(bytes) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Default for Secret {
    fn default() -> Self {
        Self::fixed(0)
    }
}

/// Does not tell it.
impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

/// Builds [`KeyHasher`]s that share one secret.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHashBuilder {
    secret: Secret,
}

impl KeyHashBuilder {
    /// A builder whose hashers all have this secret.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        Self { secret }
    }
}

impl BuildHasher for KeyHashBuilder {
    type Hasher = KeyHasher;
    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { secret: self.secret }
    }
}

/// The `Hasher` form of [`Secret::hash`]: what was written is the seed of what is written next.
#[derive(Clone, Debug)]
pub struct KeyHasher {
    secret: Secret,
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.secret.0.seed = self.secret.hash(bytes);
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.secret.0.seed
    }
}

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

/// A hash that is the same in every process, and part of formats: for checksums and numbers that stand for words. Anybody
/// can make bytes whose stable hashes are equal.
#[must_use]
pub fn stable_hash(seed: u64, bytes: &[u8]) -> u64 {
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

#[cfg(test)]
mod tests;
