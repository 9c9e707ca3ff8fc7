//! What a shard knows of times at which all hold: those that it leads, and those that others do.

use crate::connection::ConnectionId;
use headwater_base::Shard;
use headwater_base::placement::Partition;
use std::collections::{BTreeSet, VecDeque};

/// A partition that is about to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moving {
    /// Who wants it.
    pub(crate) client: ConnectionId,
    pub(crate) partition: Partition,
    /// Its new home.
    pub(crate) to: Shard,
}

/// A time at which all hold, led by this shard.
#[derive(Debug)]
pub(crate) struct Leading {
    /// Sequence number of the barrier, counted per shard that leads.
    pub(crate) number: u64,
    /// The shards that have not said that they hold.
    pub(crate) missing: BTreeSet<Shard>,
    /// When it is given up if they have not.
    pub(crate) deadline: u64,
    /// What is done then.
    pub(crate) moving: Moving,
}

/// Another shard, or this one, has this shard hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hold {
    /// Who leads.
    pub(crate) leader: Shard,
    /// Sequence number of the barrier, counted per shard that leads.
    pub(crate) number: u64,
    /// It was told that this shard holds.
    pub(crate) told: bool,
}

/// What a shard knows of such times.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// The moves that clients here want, in order.
    pub(crate) wants: VecDeque<Moving>,
    /// This shard waits for its turn, or has it.
    pub(crate) enlisted: bool,
    /// It has it.
    pub(crate) leading: Option<Leading>,
    /// How many times it has led.
    pub(crate) led: u64,
    /// Who has this shard hold: of two, the first is about to release it.
    pub(crate) holds: Vec<Hold>,
    /// Who is to have it hold, as soon as those that it has held have had a turn.
    pub(crate) deferred: Vec<Hold>,
    /// Who has had this shard find the keys of a partition that is to move.
    pub(crate) surveyed_by: Option<Shard>,
    /// A session of which something was still under way.
    pub(crate) undrained: Option<ConnectionId>,
}
