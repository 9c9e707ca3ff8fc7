//! Several shards in one process: each a thread with an engine, a loop and clients of its own.
//!
//! A client's requests are decoded by the shard that it is connected to. What concerns keys is executed at their
//! home: requests and answers go there and back, typed, as messages (`transport`). Who executes what, in which order answers
//! go out, and how several shards do one thing, `headwater-router` decides; `resp/remote` brings it together with sessions.
//!
//! # Cost
//! A forwarded request is copied once each way. Locks and wake-ups are one for
//! each pair of shards in a turn, however many requests there are.

mod barrier;
mod codec;
mod comparison;
mod count;
mod departures;
mod lines;
pub(crate) mod links;
mod message;
mod names;
mod outgoing;
mod position;
mod position_waits;
mod quiescing;
mod recorded;
mod sequence;
mod stalls;
mod transport;
mod turns;

pub(crate) use barrier::MoveRefusal;
pub(crate) use codec::Sender;
#[cfg(test)]
pub(crate) use codec::seal;
pub(crate) use comparison::DefinitionComparison;
pub(crate) use count::settle;
pub(crate) use departures::{Departures, KEPT_BYTES, KeptAsk};
pub(crate) use message::{MessageBatch, ShardMessage};
pub(crate) use names::{Heard, Names};
pub(crate) use outgoing::ToldBatch;
pub(crate) use position::{of_text as position_of_text, text_of as text_of_position};
pub(crate) use position_waits::{Awaiting, POSITIONS_WAIT_MAX, PositionWaits};
pub(crate) use quiescing::{CommonStep, QuiesceRequest, QuiesceRound, Quiescing, WantedStep};
pub(crate) use recorded::{FoundRecords, Recorded};
pub(crate) use sequence::{FrameArrival, FrameSequence};
pub(crate) use stalls::{STALLED_MAX, Stalls};
pub(crate) use transport::{Outbox, Transport};

use crate::connection::ConnectionId;
use crate::memory::CommonShare;
use crate::resp::{LockWait, Origin};
use headwater_base::hash::KeyHashBuilder;
use headwater_base::{Millis, Shard};
use headwater_node::Peers;
use headwater_router::{Ask, AskHeader, Locks, Requests, TransactionId, write_ask};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How long answers that are ready may wait for those behind them, in milliseconds; more than one, since time is counted
/// in whole ones.
pub(crate) const DEFERRED_FOR: u64 = 2;

/// What a shard knows of the others.
#[derive(Debug)]
pub(crate) struct Shards {
    /// Which one this is.
    pub(crate) me: Shard,
    /// How many of its lives others may know of.
    pub(crate) lives_before: u64,
    /// What goes to them.
    pub(crate) outbox: Outbox,
    /// Loads from other shards, and theirs from here.
    pub(crate) peers: Peers,
    /// Sessions that wait until what is here shows their writes elsewhere.
    pub(crate) waits: PositionWaits,
    /// The connections here that stand for clients of other shards.
    pub(crate) remote_sessions: HashMap<Origin, ConnectionId, KeyHashBuilder>,
    /// Who has asked this shard to find the keys of a partition, and was not told yet that it has.
    pub(crate) surveys_for: Option<Shard>,
    /// Rounds in which all shards quiesce.
    pub(crate) quiescing: Quiescing,
    /// Who may touch which keys, while several shards do one thing.
    pub(crate) locks: Locks,
    /// Who waits for a transaction's lock here.
    pub(crate) lock_waits: HashMap<TransactionId, ConnectionId>,
    /// Sessions that wait for others' locks, by number.
    pub(crate) blocked: HashMap<u64, LockWait>,
    /// The digest of the transactions that this shard has executed together with each other one.
    pub(crate) digests: Vec<u64>,
    /// Transactions that sessions here have begun.
    pub(crate) transactions: u64,
    /// Clients for whom answers are ready that wait for others, with the moment since when.
    pub(crate) deferred: VecDeque<(ConnectionId, u64)>,
    /// Sessions whose next request waits until less waits for this shard.
    pub(crate) crowded: Vec<(ConnectionId, Shard)>,
    /// What was seen of whether the others go on.
    pub(crate) stalls: Stalls,
    /// What waits for other shards' owners.
    pub(crate) departures: Departures,
    /// Bytes of memory that parts may take which have been agreed to, by their transactions: other writes leave them free.
    pub(crate) reserved: HashMap<TransactionId, usize>,
    /// The sum of these.
    pub(crate) reserved_bytes: usize,
    /// What transactions of shards in other processes have prepared here.
    pub(crate) prepared: HashMap<TransactionId, Requests>,
    /// Whether the definitions here are those of the first shard, in a process of its own.
    pub(crate) comparison: DefinitionComparison,
    /// The digest of the definitions that the first shard has told last.
    pub(crate) told_definitions: Option<u64>,
}

impl Shards {
    /// What the shard `me` knows when it begins.
    pub(crate) fn of(me: Shard, transport: &Arc<Transport>) -> Box<Self> {
        // In one process shards live and end together, and messages are not lost: there is one epoch, and time says nothing.
        Self::of_epoch(me, transport, 1)
    }

    /// The same in this of its lives, which others may outlive: each has a greater number than those before.
    pub(crate) fn of_epoch(me: Shard, transport: &Arc<Transport>, epoch: u64) -> Box<Self> {
        let outbox = Outbox::new(me, transport.clone());
        let mut peers = Peers::new(me, outbox.shards(), epoch, Millis(0));
        for other in (0..outbox.shards()).map(Shard).filter(|other| outbox.is_lost(*other)) {
            peers.lost(other, Millis(0), 0);
        }
        let remote_sessions = HashMap::with_hasher(KeyHashBuilder::default());
        let (waits, deferred) = (PositionWaits::default(), VecDeque::new());
        let (quiescing, surveys_for, crowded) = (Quiescing::default(), None, Vec::new());
        let (locks, lock_waits, blocked) = (Locks::default(), HashMap::new(), HashMap::new());
        let (digests, transactions) = (Vec::new(), 0);
        let (departures, prepared) = (Departures::default(), HashMap::new());
        Box::new(Self {
            me,
            lives_before: epoch - 1,
            outbox,
            peers,
            waits,
            remote_sessions,
            surveys_for,
            quiescing,
            locks,
            lock_waits,
            blocked,
            digests,
            transactions,
            deferred,
            crowded,
            stalls: Stalls::default(),
            departures,
            prepared,
            reserved: HashMap::new(),
            reserved_bytes: 0,
            comparison: DefinitionComparison::default(),
            told_definitions: None,
        })
    }

    /// Whether this shard tells of what is the process's, and not its own: one shard of each process does.
    pub(crate) fn tells_of_process(&self) -> bool {
        self.me == Shard(0) || self.outbox.are_apart()
    }

    /// What this shard and the others know of each other's memory.
    pub(crate) fn common_memory(&self) -> CommonShare {
        CommonShare::new(self.me, self.outbox.transport().clone())
    }

    /// Posts what the engines have to say to one another; `write`: the last write so far.
    pub(crate) fn post_packets(&mut self, write: u64) {
        // In one process all shards end together, and what replicas show goes with it. Others outlive this one: they are told of no write
        // that it could lose.
        let are_apart = self.outbox.are_apart();
        for (to, packet) in self.peers.take_packets() {
            let batch = match are_apart {
                true => self.outbox.tell(to, write).batch,
                false => self.outbox.to(to),
            };
            batch.messages.push(ShardMessage::Packet(Box::new(packet)));
        }
    }

    /// Names the next transaction of a session here.
    pub(crate) fn next_transaction(&mut self) -> TransactionId {
        self.transactions += 1;
        TransactionId { coordinator: self.me, number: self.transactions }
    }

    /// A transaction was executed here together with these shards.
    pub(crate) fn count_transaction(&mut self, transaction: TransactionId, shards: &[Shard]) {
        self.digests.resize(usize::from(self.outbox.shards()), 0);
        for shard in shards.iter().filter(|shard| **shard != self.me) {
            if let Some(digest) = self.digests.get_mut(usize::from(shard.0)) {
                *digest ^= transaction.digest();
            }
        }
    }

    /// Sends a request of a session of this shard to another shard (or to this one, behind what it does
    /// now).
    #[inline]
    pub(crate) fn ask(
        &mut self,
        to: Shard,
        session: ConnectionId,
        header: &AskHeader,
        ask: &Ask<'_>,
    ) {
        if self.outbox.is_lost(to) || self.departures.is_leaving(to) {
            let mut frame = Vec::new();
            write_ask(header, ask, &mut frame);
            self.departures.kept.push(KeptAsk { to, session, id: header.id, frame });
            // Where it does not wait, it is answered in a turn of its own.
            self.outbox.transport().ring(self.me);
            return;
        }
        self.outbox.count_request();
        let batch = self.outbox.to(to);
        write_ask(header, ask, &mut batch.bytes);
        let end = batch.bytes.len();
        if let Some(ShardMessage::Asks { session: last, end: upto }) = batch.messages.last_mut()
            && *last == session
        {
            *upto = end;
            return;
        }
        batch.messages.push(ShardMessage::Asks { session, end });
    }
}
