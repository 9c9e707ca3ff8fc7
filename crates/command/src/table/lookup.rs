//! Finding a command by its name, in any mixture of cases, without allocation.
//!
//! The name is loaded as two words, which are spread over [`SLOTS`] slots. The multiplier is searched
//! while compiling, until no two commands share a slot, so that one comparison decides.

use super::{Id, SPECS, Spec};
use crate::Args;

const SLOT_BITS: u32 = 12;
const SLOTS: usize = 1 << SLOT_BITS;
/// How many commands and subcommands there are: one more than the greatest number of an id.
pub const NUMBERS: usize = Id::Shutdown as usize + 1;
/// No command has this number: the table is smaller.
const FREE: u8 = u8::MAX;
const NAME_BYTES_MIN: usize = 3;
const NAME_BYTES_MAX: usize = 16;
/// The bit by which the two cases of a letter differ, in every byte of a word.
const CASE: u64 = 0x2020_2020_2020_2020;
/// Odd numbers without a pattern.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// All bytes of a name in two words, which overlap where the name is shorter than 16 bytes.
#[inline]
const fn words_of(name: &[u8]) -> [u64; 2] {
    if let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        [u64::from_le_bytes(*first), u64::from_le_bytes(*last)]
    } else if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        [u32::from_le_bytes(*first) as u64, u32::from_le_bytes(*last) as u64]
    } else if let (Some(first), Some(last)) = (name.first_chunk::<2>(), name.last_chunk::<2>()) {
        [u16::from_le_bytes(*first) as u64, u16::from_le_bytes(*last) as u64]
    } else {
        [0, 0]
    }
}

/// The slot of a name; the same for both cases of a letter.
#[inline]
const fn slot_of(words: [u64; 2], len: usize, multiplier: u64) -> usize {
    let [low, high] = [words[0] | CASE, words[1] | CASE];
    let mixed = low.wrapping_mul(multiplier) ^ high.wrapping_mul(SPREAD) ^ len as u64;
    (mixed.wrapping_mul(SPREAD) >> (64 - SLOT_BITS)) as usize
}

/// A command's name, ready to be compared.
#[derive(Clone, Copy)]
struct Entry {
    words: [u64; 2],
    /// The bits that may differ: the case bits of letters.
    free: [u64; 2],
    len: usize,
}

/// The case bits of the letters in a word of a name in lower case.
const fn letters(word: u64) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < 64 {
        if ((word >> at) as u8).is_ascii_lowercase() {
            bits |= 0x20 << at;
        }
        at += 8;
    }
    bits
}

static ENTRIES: [Entry; SPECS.len()] = {
    let mut entries = [Entry { words: [0, 0], free: [0, 0], len: 0 }; SPECS.len()];
    let mut at = 0;
    while at < SPECS.len() {
        let words = words_of(SPECS[at].name.as_bytes());
        let free = [letters(words[0]), letters(words[1])];
        entries[at] = Entry { words, free, len: SPECS[at].name.len() };
        at += 1;
    }
    entries
};

struct Index {
    multiplier: u64,
    slots: [u8; SLOTS],
}

/// A slot table without collisions under `multiplier`, if there is one.
const fn try_index(multiplier: u64) -> Option<Index> {
    let mut slots = [FREE; SLOTS];
    let mut at = 0;
    while at < SPECS.len() {
        let name = SPECS[at].name.as_bytes();
        let slot = slot_of(words_of(name), name.len(), multiplier);
        if slots[slot] != FREE {
            return None;
        }
        slots[slot] = at as u8;
        at += 1;
    }
    Some(Index { multiplier, slots })
}

static INDEX: Index = {
    assert!(SPECS.len() < FREE as usize);
    let mut draw = SPREAD;
    loop {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        if let Some(index) = try_index(draw | 1) {
            break index;
        }
    }
};

/// The command of this name.
#[inline]
#[must_use]
pub fn lookup(name: &[u8]) -> Option<&'static Spec> {
    let len = name.len();
    if !(NAME_BYTES_MIN..=NAME_BYTES_MAX).contains(&len) {
        return None;
    }
    let words = words_of(name);
    let at = INDEX.slots[slot_of(words, len, INDEX.multiplier)] as usize;
    let entry = ENTRIES.get(at)?;
    let differs = ((words[0] ^ entry.words[0]) & !entry.free[0])
        | ((words[1] ^ entry.words[1]) & !entry.free[1])
        | (len ^ entry.len) as u64;
    if differs == 0 { SPECS.get(at) } else { None }
}

/// Every command and subcommand by the number of its id.
static BY_NUMBER: [Option<&Spec>; NUMBERS] = {
    let mut specs = [None; NUMBERS];
    let mut at = 0;
    while at < SPECS.len() {
        specs[SPECS[at].id as usize] = Some(&SPECS[at]);
        let mut sub = 0;
        while sub < SPECS[at].subcommands.len() {
            specs[SPECS[at].subcommands[sub].id as usize] = Some(&SPECS[at].subcommands[sub]);
            sub += 1;
        }
        at += 1;
    }
    specs
};

/// The command or subcommand whose id has this number.
#[inline]
#[must_use]
pub fn spec_of(number: usize) -> Option<&'static Spec> {
    BY_NUMBER.get(number).copied().flatten()
}

/// The subcommand of this name.
#[must_use]
pub fn lookup_subcommand(container: &Spec, name: &[u8]) -> Option<&'static Spec> {
    container.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name))
}

/// The command or subcommand that a request names, if it has as many arguments as that takes.
#[must_use]
pub fn spec_for(args: Args<'_>) -> Option<&'static Spec> {
    let spec = lookup(args.get(0)?)?;
    let spec = match args.get(1) {
        Some(name) if !spec.subcommands.is_empty() => lookup_subcommand(spec, name)?,
        _ => spec,
    };
    spec.arity_fits(args.len()).then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        for spec in SPECS {
            let upper = spec.name.to_ascii_uppercase();
            let mixed: alloc::vec::Vec<u8> = spec
                .name
                .bytes()
                .enumerate()
                .map(|(at, byte)| if at % 2 == 0 { byte.to_ascii_uppercase() } else { byte })
                .collect();
            for name in [spec.name.as_bytes(), upper.as_bytes(), &mixed] {
                assert!(core::ptr::eq(lookup(name).unwrap(), spec));
            }
            assert!(lookup(&[spec.name.as_bytes(), b"x"].concat()).is_none());
            for spec in [spec].into_iter().chain(spec.subcommands) {
                assert_eq!(spec_of(spec.id as usize), Some(spec));
            }
            let mut other = spec.name.as_bytes().to_vec();
            for at in 0..other.len() {
                other[at] ^= 0x80;
                assert!(lookup(&other).is_none());
                other[at] ^= 0x80;
            }
        }
        for name in [&b""[..], b"a", b"ge", b"get ", b"range\x0edel", b"averyverylongcommandname"] {
            assert!(lookup(name).is_none(), "{name:?}");
        }
    }
}
