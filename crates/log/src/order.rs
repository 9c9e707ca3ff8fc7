//! A snapshot that somebody wants now: what a key of the bucket says of it, until the owner has stored one.
//!
//! ```text
//! order    magic:4 format:2 state:1 zero:1 checksum:8 | id:8 sequence:8
//! ```
//!
//! Whoever operates the cluster writes the key, and waits until it says that the order is done. It is the owner's to answer, whoever that is meanwhile: an
//! order that one has not completed is the next one's. One that takes the place of another is newer, so what is stored for it has what
//! the other was to have.

use crate::fields::{BadValue, ValueKind, number};
use crate::seam::Sequence;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const ORDER: ValueKind =
    ValueKind { magic: *b"HWOR", seed: 0x6c6f_6720_6f72_6431, has_state: true };

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
        ORDER.encode([state, 0], |bytes| {
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&sequence.0.to_le_bytes());
        })
    }

    /// Reads the key's value.
    ///
    /// # Errors
    /// It is no order.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadValue> {
        ORDER.decode(bytes, |state, rest| {
            let (id, sequence) = (number(rest)?, Sequence(number(rest)?));
            match state {
                [0, 0] if sequence == Sequence(0) => Some(Self::Wanted { id }),
                [1, 0] => Some(Self::Done { id, sequence }),
                _ => None,
            }
        })
    }
}
