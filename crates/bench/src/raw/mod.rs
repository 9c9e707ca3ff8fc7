//! Raw speed: GET, SET, a mix of both, multi-gets, and reads of ranges, over a matrix of value
//! sizes and pipelines; and the same against a server that answers with a constant.
//!
//! Every key belongs to one connection and is never twice in a batch, so the value that each
//! GET must bring is known exactly; one in [`points::LOOK`] is compared byte by byte.

pub mod points;
pub mod ranges;
pub mod run;

use core::fmt;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Operation {
    /// Reads of one key.
    Get,
    /// Writes of one key.
    Set,
    /// Nine reads to one write.
    Mixed,
    /// One read of as many keys as the pipeline is deep.
    Mget,
    /// Reads of neighbouring keys; sorted sets read them by score.
    Range,
    /// The same; sorted sets read them by name.
    RangeLex,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Mixed => "mixed",
            Self::Mget => "mget",
            Self::Range => "range",
            Self::RangeLex => "range-lex",
        })
    }
}

/// Bytes that fill values: nothing in them repeats at any distance that matters.
#[derive(Clone, Debug)]
pub struct Filler {
    bytes: Vec<u8>,
}

/// Bytes at the head of a value that tell its key and generation.
pub const MARK_BYTES: usize = 12;

impl Filler {
    /// Enough for values of `value_bytes`.
    #[must_use]
    pub fn new(value_bytes: usize) -> Self {
        let mut rng = headwater_workload::Rng::new(7);
        let bytes = (0..value_bytes + 4096).map(|_| b'a' + rng.below(26) as u8).collect();
        Self { bytes }
    }

    /// The value of `key` in its generation: a mark, and filler behind it.
    pub fn write(&self, into: &mut Vec<u8>, key: u32, generation: u8, value_bytes: usize) {
        let mark =
            crate::wire::Key::new(b"").number(u64::from(key), 9).number(u64::from(generation), 3);
        into.extend_from_slice(&mark);
        into.extend_from_slice(self.tail(key, value_bytes));
    }

    fn tail(&self, key: u32, value_bytes: usize) -> &[u8] {
        let at = key as usize % 4096;
        &self.bytes[at..at + value_bytes - MARK_BYTES]
    }

    /// Whether `value` is that of `key` in its generation.
    #[must_use]
    pub fn is(&self, value: &[u8], key: u32, generation: u8, value_bytes: usize) -> bool {
        let mark =
            crate::wire::Key::new(b"").number(u64::from(key), 9).number(u64::from(generation), 3);
        value.len() == value_bytes
            && value.starts_with(&mark)
            && &value[MARK_BYTES..] == self.tail(key, value_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_by_key_generation_and_content() {
        let filler = Filler::new(64);
        let mut value = Vec::new();
        filler.write(&mut value, 5, 1, 64);
        assert!(filler.is(&value, 5, 1, 64));
        assert!(!filler.is(&value, 6, 1, 64));
        assert!(!filler.is(&value, 5, 2, 64));
        value[63] ^= 1;
        assert!(!filler.is(&value, 5, 1, 64));
    }
}
