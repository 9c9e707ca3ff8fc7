//! What shards say to one another.

use crate::Positions;
use alloc::vec::Vec;
use headwater_base::source::{Change, FetchId, Pair, Position, StorePlace};
use headwater_base::{KeyRange, ShardRefusal};

/// A message on its way, with what tells whether it is the next one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The life of the sender: greater after each of its restarts.
    pub epoch: u64,
    /// The life of the receiver for which it is meant: `None` where the sender has heard of none.
    pub to_epoch: Option<u64>,
    /// The connection between the two, which counts how often they had to begin anew.
    pub connection: u64,
    /// Counts the packets in this direction of the connection, from 0.
    pub number: u64,
    /// What is said.
    pub message: Message,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// The connection begins anew.
    Hello,
    /// Are you there?
    Ping,
    /// I am.
    Pong,
    /// To a home: give me your part of this range, and its changes from there on.
    Load {
        /// Names the answer.
        fetch: FetchId,
        /// The keys wanted.
        range: KeyRange,
    },
    /// To a home: I have this range as of a place among your writes; tell me what has changed since, and its changes from there on.
    Resume {
        /// The keys.
        range: KeyRange,
        /// The place, which an earlier life of the home may have told.
        since: StorePlace,
    },
    /// To a home: changes of this range are of no interest any more.
    Unfollow {
        /// The keys that were followed.
        range: KeyRange,
    },
    /// To a home: say where you stand, once you have told me what you have.
    Sync {
        /// Names the answer.
        request: u64,
        /// What must have been applied at the home before it answers.
        after: Positions,
        /// How many further shards the home may have to ask for that in turn.
        hops: u32,
    },
    /// From a home: its part of a range, or why there is none.
    Loaded {
        /// Which load.
        fetch: FetchId,
        /// Where the home stands at least.
        position: Position,
        /// The keys of the range that it is home of.
        answer: Result<Vec<Pair>, ShardRefusal>,
    },
    /// From a home: what has changed of what is followed there, in order, to be applied at once.
    Changes {
        /// Where the home stands after it.
        position: Position,
        /// What has changed.
        items: Vec<Item>,
    },
    /// From a home: what has changed of a range that is to be resumed.
    Resumed {
        /// Which range.
        range: KeyRange,
        /// Where the home stands at least.
        position: Position,
        /// The keys that may have changed, as they are now. `None`: that is not known, and the range is not followed.
        changes: Option<Vec<Change>>,
    },
    /// From a home: what was told shows everything up to this place among its writes, which cannot be lost any more.
    Reached(StorePlace),
    /// From a home: all that happened there up to a position has been told.
    Synced {
        /// Which request.
        request: u64,
        /// Where the home stands.
        position: Position,
    },
}

/// One thing that a home tells a follower.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A key has another value, or none.
    Change(Change),
    /// This range is followed no more: what was loaded of it is not to be believed.
    Reset(KeyRange),
}

impl Packet {
    /// Memory that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_pair = |pair: &Pair| size_of::<Pair>() + pair.key.len() + pair.value.len();
        let of_change = |change: &Change| {
            size_of::<Change>() + change.key.len() + change.value.as_ref().map_or(0, Vec::len)
        };
        let of_item = |item: &Item| match item {
            Item::Change(change) => of_change(change),
            Item::Reset(range) => size_of::<Item>() + range.first.len() + range.last.len(),
        };
        let beside = match &self.message {
            Message::Loaded { answer: Ok(pairs), .. } => pairs.iter().map(of_pair).sum(),
            Message::Changes { items, .. } => items.iter().map(of_item).sum(),
            Message::Resumed { changes: Some(changes), .. } => changes.iter().map(of_change).sum(),
            _ => 0,
        };
        size_of::<Self>() + beside
    }
}
