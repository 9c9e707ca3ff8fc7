//! Several shards in one process: each a thread with an engine, a loop and clients of its own.
//!
//! A client's requests are decoded by the shard that it is connected to. What concerns keys is executed at their
//! home: requests and answers go there and back, typed, by mail (`mail`). Who executes what, in which order answers
//! go out, and how several shards do one thing, `headwater-router` decides; `resp/remote` brings it together with sessions.
//!
//! # Cost
//! A forwarded request is copied once each way. Locks and wake-ups are one for
//! each pair of shards in a turn, however many requests there are.

mod count;
mod holding;
mod mail;
mod meeting;
mod names;
mod position;
mod recorded;
mod turns;

pub(crate) use count::settle;
pub(crate) use holding::{Hold, Holding, Leading, Moving};
pub(crate) use mail::{Letter, Mail, Office, Post};
pub(crate) use meeting::Stays;
pub(crate) use names::{Heard, Names};
pub(crate) use position::{of_text as position_of_text, text_of as text_of_position};
pub(crate) use recorded::{FoundRecords, Recorded};

use crate::connection::ConnectionId;
use crate::memory::CommonShare;
use crate::resp::{LockWait, Origin};
use headwater_base::hash::KeyHashBuilder;
use headwater_base::{Millis, Shard};
use headwater_node::{Peers, WaitId};
use headwater_router::{Ask, AskHeader, Locks, TransactionId, write_ask};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How long answers that are ready may wait for those behind them, in milliseconds; more than one, since time is counted
/// in whole ones.
pub(crate) const HELD_BACK_FOR: u64 = 2;

/// What a shard knows of the others.
#[derive(Debug)]
pub(crate) struct Shards {
    /// Which one this is.
    pub(crate) me: Shard,
    /// Letters.
    pub(crate) post: Post,
    /// Loads from other shards, and theirs from here.
    pub(crate) peers: Peers,
    /// Sessions that wait until what is here shows their writes elsewhere.
    pub(crate) waits: HashMap<WaitId, ConnectionId>,
    /// The connections here that stand for clients of other shards.
    pub(crate) backs: HashMap<Origin, ConnectionId, KeyHashBuilder>,
    /// Who has asked this shard to find the keys of a partition, and was not told yet that it has.
    pub(crate) surveys_for: Option<Shard>,
    /// Times at which all hold.
    pub(crate) holding: Holding,
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
    pub(crate) held_back: VecDeque<(ConnectionId, u64)>,
    /// Sessions whose next request waits until less waits for its shard.
    pub(crate) crowded: Vec<ConnectionId>,
}

impl Shards {
    /// What the shard `me` knows when it begins.
    pub(crate) fn of(me: Shard, office: &Arc<Office>) -> Box<Self> {
        let post = Post::new(me, office.clone());
        // Shards live and end together, and letters are not lost: there is one epoch, and time says nothing.
        let peers = Peers::new(me, post.shards(), 1, Millis(0));
        let backs = HashMap::with_hasher(KeyHashBuilder::default());
        let (waits, held_back) = (HashMap::new(), VecDeque::new());
        let (holding, surveys_for, crowded) = (Holding::default(), None, Vec::new());
        let (locks, lock_waits, blocked) = (Locks::default(), HashMap::new(), HashMap::new());
        let (digests, transactions) = (Vec::new(), 0);
        Box::new(Self {
            me,
            post,
            peers,
            waits,
            backs,
            surveys_for,
            holding,
            locks,
            lock_waits,
            blocked,
            digests,
            transactions,
            held_back,
            crowded,
        })
    }

    /// What this shard and the others know of each other's memory.
    pub(crate) fn common_memory(&self) -> CommonShare {
        CommonShare::new(self.me, self.post.office().clone())
    }

    /// Posts what the engines have to say to one another.
    pub(crate) fn post_packets(&mut self) {
        for (to, packet) in self.peers.take_packets() {
            self.post.to(to).letters.push(Letter::Packet(Box::new(packet)));
        }
    }

    /// Names the next transaction of a session here.
    pub(crate) fn next_transaction(&mut self) -> TransactionId {
        self.transactions += 1;
        TransactionId { coordinator: self.me, number: self.transactions }
    }

    /// A transaction was executed here together with these shards.
    pub(crate) fn count_transaction(&mut self, transaction: TransactionId, shards: &[Shard]) {
        self.digests.resize(usize::from(self.post.shards()), 0);
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
        self.post.count_request();
        let mail = self.post.to(to);
        write_ask(header, ask, &mut mail.bytes);
        let end = mail.bytes.len();
        if let Some(Letter::Asks { session: last, end: upto }) = mail.letters.last_mut()
            && *last == session
        {
            *upto = end;
            return;
        }
        mail.letters.push(Letter::Asks { session, end });
    }
}
