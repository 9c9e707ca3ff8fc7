//! What a key of the bucket says: who owns a shard, or which life of a node has its name.
//!
//! ```text
//! owner    magic:4 format:2 state:1 zero:1 checksum:8 | epoch:8 incarnation:8 node:2+ address:2+ [shard:2]
//! ```
//!
//! The shard is left out where it is the first one and nothing follows.

use crate::fields::{BadValue, ValueKind, number, take, text, write_text};
use crate::record::Epoch;
use alloc::string::String;
use alloc::vec::Vec;

const OWNER: ValueKind =
    ValueKind { magic: *b"HWOW", seed: 0x6c6f_6720_6f77_6e31, has_state: true };

/// The node that a process is of: nodes that are for several shards have a process for each, `NODE/SHARD`.
#[must_use]
pub fn node_of(process: &str) -> &str {
    process.split_once('/').map_or(process, |(node, _)| node)
}

/// Who owns a shard, or has owned it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The name of the node, or of its process for the shard ([`node_of`]).
    pub node: String,
    /// Where other nodes and clients reach it.
    pub address: String,
    /// The shard that the node is for.
    pub shard: u16,
    /// A number that each start of a process draws: a node that has restarted is not who it was.
    pub incarnation: u64,
    /// The epoch in which it owns the shard; of a node that tells that it lives, that of the log which it has followed, or 0.
    pub epoch: Epoch,
    /// It has given the shard up: the next owner need not wait.
    pub released: bool,
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
        OWNER.encode([u8::from(self.released), 0], |bytes| {
            bytes.extend_from_slice(&self.epoch.0.to_le_bytes());
            bytes.extend_from_slice(&self.incarnation.to_le_bytes());
            write_text(&self.node, bytes);
            write_text(&self.address, bytes);
            if self.shard > 0 {
                bytes.extend_from_slice(&self.shard.to_le_bytes());
            }
        })
    }

    /// Reads a key's value.
    ///
    /// # Errors
    /// It names no owner.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadValue> {
        OWNER.decode(bytes, |state, rest| {
            let released = match state {
                [released @ (0 | 1), 0] => released == 1,
                _ => return None,
            };
            let (epoch, incarnation) = (Epoch(number(rest)?), number(rest)?);
            let (node, address) = (text(rest)?, text(rest)?);
            let shard = match rest.is_empty() {
                true => 0,
                false => u16::from_le_bytes(take(rest, 2)?.try_into().ok()?),
            };
            Some(Self { node, address, shard, incarnation, epoch, released })
        })
    }
}
