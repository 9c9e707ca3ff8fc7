//! A shard whose owner gives it up in the orderly way, or has just been lost: what others have to ask of it waits for the next owner.
//!
//! The owner tells all others that it leaves. From then on they keep what they have to ask, and say so: behind that nothing more comes from them. The owner
//! answers what has come, and tells them once more: when they have said so again, all its answers are there, and it can go without anybody noticing more than a pause.
//!
//! # Invariants
//! - L1. What is kept was never sent: it can be asked of the next owner, or be refused, and is executed once at most.

use headwater_base::Shard;
use std::collections::{BTreeMap, BTreeSet};

use super::Shards;
use super::message::ShardMessage;
use crate::connection::ConnectionId;

/// How long what is asked of a shard waits for its next owner, from when the last one was lost, in milliseconds. Behind that it is refused at once.
pub(crate) const KEPT_FOR: u64 = 5_000;
/// So many bytes may wait; what is asked beyond that is refused.
pub(crate) const KEPT_BYTES: usize = 16 << 20;

/// A request that waits for an owner.
#[derive(Debug)]
pub(crate) struct KeptAsk {
    /// The shard that it is for.
    pub(crate) to: Shard,
    /// Whose it is.
    pub(crate) session: ConnectionId,
    /// Its name.
    pub(crate) id: u64,
    /// What is sent.
    pub(crate) frame: Vec<u8>,
}

/// What a shard knows of owners that go.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// Requests that wait, oldest first.
    pub(crate) kept: Vec<KeptAsk>,
    /// Shards whose owners are about to go, and since when: nothing is sent to them.
    leaving: BTreeMap<Shard, u64>,
    /// When each shard's owner was lost, in milliseconds of the server's life.
    pub(crate) lost_at: Vec<u64>,
    /// Those that have yet to say that they send nothing more, where this shard's owner is about to go.
    awaited: BTreeSet<Shard>,
}

impl Departures {
    /// Whether what is asked of a shard may wait still.
    pub(crate) fn keeps(&self, shard: Shard, now: u64) -> bool {
        let lost_at = self.lost_at.get(usize::from(shard.0)).copied().unwrap_or(0);
        match self.leaving.get(&shard) {
            // It completes what is under way first.
            Some(since) => now < since + 2 * KEPT_FOR,
            None => now < lost_at + KEPT_FOR,
        }
    }

    /// Whether the owner of a shard is about to go.
    pub(super) fn is_leaving(&self, shard: Shard) -> bool {
        self.leaving.contains_key(&shard)
    }

    /// Whether that of one of these is.
    pub(crate) fn is_any_leaving(&self, shards: &BTreeSet<Shard>) -> bool {
        shards.iter().any(|shard| self.is_leaving(*shard))
    }

    /// The owner of a shard is lost.
    pub(crate) fn lose(&mut self, shard: Shard, now: u64) {
        self.leaving.remove(&shard);
        self.awaited.remove(&shard);
        let at = usize::from(shard.0);
        self.lost_at.resize(self.lost_at.len().max(at + 1), 0);
        self.lost_at[at] = now;
    }

    /// Whether something waits for the next owner of another shard.
    pub(crate) fn awaits_owners(&self) -> bool {
        !self.kept.is_empty() || !self.leaving.is_empty()
    }

    /// Another shard says that it sends nothing more.
    pub(crate) fn hear_left(&mut self, shard: Shard) {
        self.awaited.remove(&shard);
    }

    /// Whether others have yet to say that they send nothing more.
    pub(crate) fn awaits(&self) -> bool {
        !self.awaited.is_empty()
    }
}

impl Shards {
    /// Tells the owners of the other shards that this one is about to go.
    pub(crate) fn leave(&mut self) {
        if !self.outbox.are_apart() {
            return;
        }
        for to in self.outbox.others().filter(|to| !self.outbox.is_lost(*to)).collect::<Vec<_>>() {
            self.departures.awaited.insert(to);
            self.outbox.to(to).messages.push(ShardMessage::Leaves);
        }
    }

    /// The owner of another shard is about to go.
    pub(crate) fn let_leave(&mut self, shard: Shard, now: u64) {
        self.departures.leaving.entry(shard).or_insert(now);
        self.outbox.to(shard).messages.push(ShardMessage::Left);
    }

    /// Sends what has waited for this shard's owner.
    pub(crate) fn send_kept(&mut self, to: Shard) {
        for kept in self.departures.kept.extract_if(.., |kept| kept.to == to) {
            self.outbox.count_request();
            let batch = self.outbox.to(to);
            batch.bytes.extend_from_slice(&kept.frame);
            let end = batch.bytes.len();
            batch.messages.push(ShardMessage::Asks { session: kept.session, end });
        }
    }
}
