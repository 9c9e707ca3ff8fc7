//! Nodes that should not own anything, because somebody is about to work on their machines: what the bucket says of them, and how a node follows it.
//!
//! ```text
//! drained  magic:4 format:2 zero:2 checksum:8 | count:2 (name:2+)…
//! ```
//!
//! One key names all drained nodes, instead of one key each. So whether a node is the last one that could own is decided by compare-and-set: of
//! two who drain two nodes at once, the second sees what the first has written. The key is no node's own, so it outlives their processes, and
//! is written while a node is away.
//!
//! # Invariants
//! - D1. A node takes no lease before it has read, in this life, that it is not drained ([`DrainLook::may_own`]).
//! - D2. A node that has read that it is drained takes no lease. One that has it gives it up: at once where it serves nobody yet,
//!   and else when the server has completed what is under way ([`ReplicaEffect::Leave`](crate::ReplicaEffect::Leave)). Nothing of W1 to W3 depends on that: a
//!   node that reads the key late, or never, owns the shard as any other does.

use crate::fields::{BadValue, ValueKind, take, text, write_text};
use crate::owner::node_of;
use crate::ownership::LeaseTimes;
use crate::seam::{BucketAnswer, BucketRequest, Monotonic, Revision};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

const DRAINED: ValueKind =
    ValueKind { magic: *b"HWDR", seed: 0x6c6f_6720_6472_6e31, has_state: false };

/// The nodes that are drained.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DrainedNodes {
    names: BTreeSet<String>,
}

impl DrainedNodes {
    /// The key of the bucket that names them.
    pub const KEY: &'static str = "drained";

    /// Whether this node is drained, or the node that this process is of.
    #[must_use]
    pub fn contains(&self, node: &str) -> bool {
        self.names.contains(node) || self.names.contains(node_of(node))
    }

    /// Drains a node, or ends that, for its processes as well; whether that changes anything.
    pub fn set(&mut self, node: &str, drained: bool) -> bool {
        if drained {
            return self.names.insert(node.into());
        }
        let before = self.names.len();
        self.names.retain(|name| name != node && node_of(name) != node);
        self.names.len() < before
    }

    /// Who of these nodes, which are heard, could own the shards if this node was drained as well.
    #[must_use]
    pub fn others<'a>(&self, node: &str, heard: &'a [String]) -> Vec<&'a str> {
        let could =
            |other: &&String| *other != node && node_of(other) != node && !self.contains(other);
        heard.iter().filter(could).map(String::as_str).collect()
    }

    /// The bytes of the key's value.
    ///
    /// # Panics
    /// There are 65536 nodes or more, or a name has 64 KiB or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        DRAINED.encode([0, 0], |bytes| {
            let count = u16::try_from(self.names.len()).expect("few nodes are drained");
            bytes.extend_from_slice(&count.to_le_bytes());
            self.names.iter().for_each(|name| write_text(name, bytes));
        })
    }

    /// Reads the key's value. Where there is no such key, nobody is drained.
    ///
    /// # Errors
    /// It does not name them.
    pub fn decode(revision: Revision, bytes: &[u8]) -> Result<Self, BadValue> {
        if revision == Revision(0) {
            return Ok(Self::default());
        }
        DRAINED.decode(bytes, |_, rest| {
            let count = u16::from_le_bytes(take(rest, 2)?.try_into().ok()?);
            let names = (0..count).map(|_| text(rest)).collect::<Option<_>>()?;
            Some(Self { names })
        })
    }
}

/// One node's looking at whether it is drained.
#[derive(Debug)]
pub struct DrainLook {
    node: String,
    times: LeaseTimes,
    /// Who is drained; `None`: it has not read the key yet.
    known: Option<DrainedNodes>,
    tag: u64,
    /// The request under way, and when it was sent.
    pending: Option<(u64, Monotonic)>,
    /// When the next look is due.
    due: Monotonic,
}

impl DrainLook {
    /// That of the node with this name; its requests' tags begin with `tag`.
    #[must_use]
    pub fn new(node: &str, times: LeaseTimes, tag: u64) -> Self {
        Self { node: node.into(), times, known: None, tag, pending: None, due: Monotonic(0) }
    }

    /// D1 and D2: whether this node may take a lease, or go on to own what it has.
    #[must_use]
    pub fn may_own(&self) -> bool {
        self.known.as_ref().is_some_and(|drained| !drained.contains(&self.node))
    }

    /// Whether it has read that this node is drained.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.known.as_ref().is_some_and(|drained| drained.contains(&self.node))
    }

    /// Who is drained, as far as it has read.
    #[must_use]
    pub fn drained(&self) -> Option<&DrainedNodes> {
        self.known.as_ref()
    }

    /// What is to be sent now.
    pub fn tick(&mut self, now: Monotonic) -> Option<BucketRequest> {
        if self.pending.is_some_and(|(_, sent)| now.since(sent) >= self.times.answer_millis) {
            self.pending = None;
        }
        if self.pending.is_some() || now < self.due {
            return None;
        }
        self.tag += 1;
        self.pending = Some((self.tag, now));
        self.due = Monotonic(now.0 + self.times.renew_millis);
        let tag = self.tag;
        Some(BucketRequest::Get { tag, key: String::from(DrainedNodes::KEY) })
    }

    /// An answer; one that is not awaited is ignored. Where it has failed, what was known before is true still.
    ///
    /// # Errors
    /// The key cannot be read: what was known before is true still, and a node that has not read it yet does not own.
    pub fn answered(&mut self, answer: &BucketAnswer, now: Monotonic) -> Result<(), BadValue> {
        if self.pending.take_if(|(tag, _)| *tag == answer.tag()).is_none() {
            return Ok(());
        }
        match answer {
            BucketAnswer::Get { entry: Some((revision, value)), .. } => {
                self.known = Some(DrainedNodes::decode(*revision, value)?);
            }
            BucketAnswer::Get { entry: None, .. } | BucketAnswer::Put { .. } => {
                self.due = Monotonic(now.0 + self.times.poll_millis);
            }
        }
        Ok(())
    }
}
