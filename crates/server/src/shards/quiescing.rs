//! What a shard knows of rounds in which all shards quiesce: those that it coordinates, and those of others.

use crate::connection::ConnectionId;
use headwater_base::Shard;
use headwater_base::placement::Partition;
use std::collections::{BTreeSet, VecDeque};

/// What a client wants done while all shards stand still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WantedStep {
    /// The client.
    pub(crate) client: ConnectionId,
    pub(crate) step: CommonStep,
}

/// What all shards do together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommonStep {
    /// A partition moves.
    Move {
        partition: Partition,
        /// Its new home.
        to: Shard,
    },
    /// A backup begins.
    BeginBackup,
}

/// A round that this shard coordinates.
#[derive(Debug)]
pub(crate) struct QuiesceRound {
    /// Sequence number of the round, counted per coordinator.
    pub(crate) number: u64,
    /// The shards that have not said that they are quiescent.
    pub(crate) missing: BTreeSet<Shard>,
    /// When it is given up if they have not, in milliseconds of the server's life.
    pub(crate) deadline: u64,
    /// What is done then.
    pub(crate) wanted: WantedStep,
}

/// A request of a coordinator (which may be this shard) to quiesce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QuiesceRequest {
    pub(crate) coordinator: Shard,
    /// Sequence number of the round, counted per coordinator.
    pub(crate) number: u64,
    /// The coordinator knows that this shard is quiescent.
    pub(crate) is_answered: bool,
}

/// What a shard knows of such rounds.
#[derive(Debug, Default)]
pub(crate) struct Quiescing {
    /// What clients here want done, in order.
    pub(crate) wanted: VecDeque<WantedStep>,
    /// This shard waits for its turn to coordinate, or has it.
    pub(crate) is_in_line: bool,
    /// It has it.
    pub(crate) round: Option<QuiesceRound>,
    /// How many rounds it has coordinated.
    pub(crate) rounds: u64,
    /// Requests under way: of two, the first is about to end.
    pub(crate) requests: Vec<QuiesceRequest>,
    /// Requests that begin as soon as the sessions that were blocked before have had a turn.
    pub(crate) later: Vec<QuiesceRequest>,
    /// Who has had this shard find the keys of a partition that is to move.
    pub(crate) keys_wanted_by: Option<Shard>,
    /// A session of which something was still under way.
    pub(crate) undrained: Option<ConnectionId>,
}
