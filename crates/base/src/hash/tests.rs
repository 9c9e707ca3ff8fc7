//! What both hashes promise: every byte counts, and nobody outside can choose keys that collide under a secret.

use super::{K0, K1, K2, KeyHashBuilder, Secret, stable_hash};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::BuildHasher;

#[test]
fn every_byte_and_the_length_count() {
    let secret = Secret::fixed(7);
    let text: Vec<u8> = (0..100).collect();
    let (mut stable, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for len in 0..text.len() {
        assert!(seen.insert(secret.hash(&text[..len])), "length {len}");
        assert!(stable.insert(stable_hash(7, &text[..len])), "length {len}");
        for at in 0..len {
            let mut changed = text[..len].to_vec();
            changed[at] ^= 0x80;
            assert!(seen.insert(secret.hash(&changed)), "length {len}, byte {at}");
            assert!(stable.insert(stable_hash(7, &changed)), "length {len}, byte {at}");
        }
    }
}

#[test]
fn the_secret_changes_the_hash_and_is_told_to_nobody() {
    assert_ne!(Secret::fixed(1).hash(b"user"), Secret::fixed(2).hash(b"user"));
    assert_ne!(stable_hash(1, b"user"), stable_hash(2, b"user"));
    assert_eq!(alloc::format!("{:?}", Secret::fixed(1)), "Secret");
}

#[test]
fn each_word_of_a_secret_that_is_used_counts() {
    let words = [11, 12, 13, 14, 15, 16, 17, 18].map(|word: u64| word.wrapping_mul(K0));
    let long = [b'k'; 100];
    let plain = Secret::new(words).hash(&long);
    // The seed, and the words that this variant of rapidhash multiplies by.
    for at in [0, 1, 2, 3] {
        let mut other = words;
        other[at] ^= 1 << 40;
        assert_ne!(Secret::new(other).hash(&long), plain, "word {at}");
    }
}

#[test]
fn what_is_hashed_in_several_steps_depends_on_all_of_them() {
    let builder = KeyHashBuilder::new(Secret::fixed(3));
    let mut seen = BTreeSet::new();
    for join in 0..50_u32 {
        for key in 0..50_u64 {
            assert!(seen.insert(builder.hash_one((join, key))));
        }
    }
}

/// Constants at which a multiplication of this construction is zero for everybody who did not draw his own: ours from
/// before, wyhash's and rapidhash's.
const KNOWN: [u64; 11] = [
    K0,
    K1,
    K2,
    0x589965cc75374cc3,
    0x1d8e4e27c47d124f,
    0xeb44accab455d165,
    0x2d358dccaa6c78a5,
    0x8bb84b93962eacc9,
    0x4b33a62ed433d4a3,
    0x4d5a2da51de1aa47,
    0x90ed1765281c388c,
];

/// Keys, all different, with such a constant at `at`.
fn with_constant(constant: u64, at: usize, len: usize) -> Vec<Vec<u8>> {
    let key = |number: u64| {
        let mut key = Vec::with_capacity(len);
        let mut state = number;
        while key.len() < len {
            key.extend_from_slice(&state.to_le_bytes());
            state = state.wrapping_add(1).wrapping_mul(K2);
        }
        key.truncate(len);
        key[at..at + 8].copy_from_slice(&constant.to_le_bytes());
        key
    };
    (1..=2000).map(key).collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn keys_that_make_a_multiplication_zero_spread_as_others_do() {
    let secret = Secret::fixed(5);
    for constant in KNOWN {
        for (at, len) in
            [(0, 16), (8, 16), (0, 24), (8, 24), (16, 40), (24, 40), (0, 100), (92, 100)]
        {
            let keys = with_constant(constant, at, len);
            let hashes: BTreeSet<u64> = keys.iter().map(|key| secret.hash(key)).collect();
            assert_eq!(hashes.len(), keys.len(), "{constant:x} at {at} of {len}");
            // As bits are used: the high ones by the store's index, the low ones by hashbrown.
            for bits in [|hash: u64| hash >> 48, |hash: u64| hash & 0xffff] {
                let homes: BTreeSet<u64> = hashes.iter().map(|&hash| bits(hash)).collect();
                // 2 000 of 65 536 places leave about 1 970 that differ.
                assert!(homes.len() > 1900, "{constant:x} at {at} of {len}: {}", homes.len());
            }
        }
    }
    // The families are what they are said to be: under the stable hash, one of them is one hash.
    let keys = with_constant(K1, 0, 16);
    let hashes: BTreeSet<u64> = keys.iter().map(|key| stable_hash(9, key)).collect();
    assert!(keys.len() > 1900 && hashes.len() == 1, "{}", hashes.len());
}

#[test]
fn one_key_of_many_things_spreads() {
    let secret = Secret::fixed(5);
    let of = |number: u64| secret.hash_of(number, b"p|ann|");
    let homes: BTreeSet<u64> = (0..2000).map(|join| of(join << 32) >> 48).collect();
    assert!(homes.len() > 1900, "{}", homes.len());
}
