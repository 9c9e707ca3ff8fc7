//! Sessions: what they have written and seen, and requests that wait.

use headwater_base::{KeyRange, Shard};
use headwater_node::{Positions, Ticket, WaitId};
use std::collections::BTreeMap;

/// One client.
#[derive(Default)]
pub(crate) struct Session {
    /// Where shards stood at least after what it has done.
    pub(crate) positions: Positions,
    /// Takes up the positions of what it reads, too.
    pub(crate) causal: bool,
    /// Of each base key, the number of the value that it has written or seen last.
    pub(crate) seen: BTreeMap<Vec<u8>, usize>,
    /// Requests that wait.
    pub(crate) open: usize,
}

/// What is asked of one shard.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// The own keys of a range.
    Range(KeyRange),
    /// One key, whose home it is.
    Get(Vec<u8>),
    /// Whether what is stored is right.
    Verify(KeyRange),
    /// The own keys of a range, and their changes from then on for this follower.
    Watch(u32, KeyRange),
    /// That a key be removed.
    Remove(Vec<u8>),
    /// That the own keys of a range be removed.
    RemoveRange(KeyRange),
    /// That a key be there until this moment only, or for ever.
    Expire(Vec<u8>, Option<u64>),
}

impl Ask {
    /// The keys that it is about.
    pub(crate) fn range(&self) -> KeyRange {
        match self {
            Self::Range(range)
            | Self::Verify(range)
            | Self::Watch(_, range)
            | Self::RemoveRange(range) => range.clone(),
            Self::Get(key) | Self::Remove(key) | Self::Expire(key, _) => KeyRange::point(key),
        }
    }
}

/// Why a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    Data(Ticket),
    Settled(WaitId),
}

/// A request at one shard that waits.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) session: usize,
    pub(crate) shard: Shard,
    /// The shard at which it waits.
    pub(crate) waits_at: Shard,
    pub(crate) ask: Ask,
    /// How old may be what it is given, in milliseconds.
    pub(crate) accepts: u64,
    /// A position of the source, and the shards that must have come to it before.
    pub(crate) reach: (u64, Vec<usize>),
    /// What the session had done when it asked.
    pub(crate) after: Positions,
    pub(crate) seen: BTreeMap<Vec<u8>, usize>,
    pub(crate) until: Until,
    /// What had happened then.
    pub(crate) events: u64,
}
