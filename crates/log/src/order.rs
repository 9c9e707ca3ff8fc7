//! A snapshot that somebody wants now: what a key of the bucket says of it, until the owner has stored one.
//!
//! ```text
//! order    magic:4 format:2 state:1 zero:1 checksum:8 | id:8 sequence:8
//! ```
//!
//! Whoever operates the cluster writes the key, and waits until it says that the order is done. It is the owner's to answer, whoever that is meanwhile: an
//! order that one has not completed is the next one's. One that takes the place of another is newer, so what is stored for it has what
//! the other was to have.

use crate::fields::{number, take};
use crate::seam::Sequence;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::hash::stable_hash;

const MAGIC: [u8; 4] = *b"HWOR";
const FORMAT: u16 = 1;
const SEED: u64 = 0x6c6f_6720_6f72_6431;

/// An order of a snapshot. Its id is a number that whoever gives it draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotOrder {
    /// A snapshot is to be stored that begins from now on.
    Wanted {
        /// Which order it is.
        id: u64,
    },
    /// It is stored and named, or there is nothing that an earlier one has not got.
    Done {
        /// Which order it was.
        id: u64,
        /// The last sequence that the named snapshot has; 0: the log has no data yet, and there is none.
        sequence: Sequence,
    },
}

/// Why a key's value is no order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadOrder {
    /// It is damaged, or somebody else's.
    Damaged,
    /// Its format is not one that this version reads.
    Format(u16),
}

impl fmt::Display for BadOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("it is damaged, or was not written by Headwater"),
            Self::Format(format) => write!(
                f,
                "it has format {format}, and this version of Headwater reads format {FORMAT} alone"
            ),
        }
    }
}

impl SnapshotOrder {
    /// The key of the bucket that has the order for a shard.
    #[must_use]
    pub fn key(shard: u32) -> String {
        format!("snapshot-order.{shard}")
    }

    /// The bytes of the key's value.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let (state, id, sequence) = match self {
            Self::Wanted { id } => (0, id, Sequence(0)),
            Self::Done { id, sequence } => (1, id, sequence),
        };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[state, 0]);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&sequence.0.to_le_bytes());
        let checksum = checksum_of(&bytes);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the key's value.
    ///
    /// # Errors
    /// It is no order.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadOrder> {
        if bytes.len() < 6 || bytes[..4] != MAGIC {
            return Err(BadOrder::Damaged);
        }
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        if format != FORMAT {
            return Err(BadOrder::Format(format));
        }
        Self::fields(bytes).ok_or(BadOrder::Damaged)
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(6..)?;
        let state = take(&mut rest, 2)?;
        let told = number(&mut rest)?;
        let (id, sequence) = (number(&mut rest)?, Sequence(number(&mut rest)?));
        if !rest.is_empty() || told != checksum_of(bytes) {
            return None;
        }
        match state {
            [0, 0] if sequence == Sequence(0) => Some(Self::Wanted { id }),
            [1, 0] => Some(Self::Done { id, sequence }),
            _ => None,
        }
    }
}

/// Of everything but the place where it is.
fn checksum_of(bytes: &[u8]) -> u64 {
    stable_hash(SEED ^ stable_hash(SEED, &bytes[..8]), &bytes[16..])
}
