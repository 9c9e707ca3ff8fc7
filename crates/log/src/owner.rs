//! What a key of the bucket says: who owns a shard, or which life of a node has its name.
//!
//! ```text
//! owner    magic:4 format:2 state:1 zero:1 checksum:8 | epoch:8 incarnation:8 node:2+ address:2+
//! ```

use crate::fields::{number, text};
use crate::record::Epoch;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::hash::stable_hash;

const MAGIC: [u8; 4] = *b"HWOW";
const FORMAT: u16 = 1;
const SEED: u64 = 0x6c6f_6720_6f77_6e31;

/// Who owns a shard, or has owned it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The name of the node.
    pub node: String,
    /// Where other nodes and clients reach it.
    pub address: String,
    /// A number that each start of a process draws: a node that has restarted is not who it was.
    pub incarnation: u64,
    /// Its epoch.
    pub epoch: Epoch,
    /// It has given the shard up: the next owner need not wait.
    pub released: bool,
}

/// Why bytes name no owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadOwner {
    /// They are damaged, or somebody else's.
    Damaged,
    /// Their format is not one that this version reads.
    Format(u16),
}

impl fmt::Display for BadOwner {
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

fn checksum_of(bytes: &[u8]) -> u64 {
    stable_hash(SEED ^ stable_hash(SEED, &bytes[..8]), &bytes[16..])
}

impl Owner {
    /// Whether `other` is the same life of the same node.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.node == other.node && self.incarnation == other.incarnation
    }

    /// The bytes of a key's value.
    ///
    /// # Panics
    /// Name or address have 64 KiB or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[u8::from(self.released), 0]);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.epoch.0.to_le_bytes());
        bytes.extend_from_slice(&self.incarnation.to_le_bytes());
        for text in [&self.node, &self.address] {
            let length = u16::try_from(text.len()).expect("names and addresses are short");
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        let checksum = checksum_of(&bytes);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a key's value.
    ///
    /// # Errors
    /// It names no owner.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadOwner> {
        if bytes.len() < 6 || bytes[..4] != MAGIC {
            return Err(BadOwner::Damaged);
        }
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        if format != FORMAT {
            return Err(BadOwner::Format(format));
        }
        Self::fields(bytes).ok_or(BadOwner::Damaged)
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let (head, mut rest) = bytes.split_at_checked(16)?;
        if head[8..] != checksum_of(bytes).to_le_bytes() || head[6] > 1 || head[7] != 0 {
            return None;
        }
        let (epoch, incarnation) = (Epoch(number(&mut rest)?), number(&mut rest)?);
        let (node, address) = (text(&mut rest)?, text(&mut rest)?);
        let owner = Self { node, address, incarnation, epoch, released: head[6] == 1 };
        rest.is_empty().then_some(owner)
    }
}
