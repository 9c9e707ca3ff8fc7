//! Finding a command by its name, in any mixture of cases, without allocation.
//!
//! Five bytes of the name and its length make a word that differs for every command; one
//! multiplication spreads it over [`SLOTS`] slots. The multiplier is searched while compiling,
//! until no two commands share a slot, so that one comparison decides.

use super::{SPECS, Spec};

const SLOT_BITS: u32 = 10;
const SLOTS: usize = 1 << SLOT_BITS;
/// No command has this number: the table is smaller.
const FREE: u8 = u8::MAX;
const NAME_BYTES_MIN: usize = 3;
const NAME_BYTES_MAX: usize = 16;

/// A word that tells all commands apart; equal for both cases of a letter.
#[inline]
const fn word_of(name: &[u8]) -> u64 {
    let len = name.len();
    let bytes = [
        name[0] | 0x20,
        name[1] | 0x20,
        name[len / 2] | 0x20,
        name[len - 2] | 0x20,
        name[len - 1] | 0x20,
        len as u8,
        0,
        0,
    ];
    u64::from_le_bytes(bytes)
}

#[inline]
const fn slot_of(word: u64, multiplier: u64) -> usize {
    (word.wrapping_mul(multiplier) >> (64 - SLOT_BITS)) as usize
}

struct Index {
    multiplier: u64,
    slots: [u8; SLOTS],
}

/// A slot table without collisions under `multiplier`, if there is one.
const fn try_index(multiplier: u64) -> Option<Index> {
    let mut slots = [FREE; SLOTS];
    let mut at = 0;
    while at < SPECS.len() {
        let slot = slot_of(word_of(SPECS[at].name.as_bytes()), multiplier);
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
    let mut draw = 0x9e37_79b9_7f4a_7c15_u64;
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
    if !(NAME_BYTES_MIN..=NAME_BYTES_MAX).contains(&name.len()) {
        return None;
    }
    let at = INDEX.slots[slot_of(word_of(name), INDEX.multiplier)];
    let spec = SPECS.get(at as usize)?;
    spec.name.as_bytes().eq_ignore_ascii_case(name).then_some(spec)
}

/// The subcommand of this name.
#[must_use]
pub fn lookup_subcommand(container: &Spec, name: &[u8]) -> Option<&'static Spec> {
    container.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name))
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
