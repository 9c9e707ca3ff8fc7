//! What is due again and again: the heartbeat, who is drained, which node should own the shard, and snapshots.

use super::Driver;
use crate::log::event;
use headwater_log::{
    BalanceWish, ClusterSeen, Epoch, LeaseTimes, Monotonic, ReplicaEffect, ReplicaInput,
    newest_for_all,
};

/// How often it is looked which node should own the shard, in milliseconds.
const BALANCE_LOOK: u64 = 100;

impl Driver {
    /// Does what is due by now.
    pub(super) fn look_after(&mut self, now: Monotonic, effects: &mut Vec<ReplicaEffect>) {
        self.looked_after = now;
        if core::mem::replace(&mut self.connected, self.servers.is_connected()) && !self.connected {
            self.replica.disconnected(now);
        }
        let asks = self.heartbeat.tick(now).into_iter().chain(self.drain.tick(now));
        let known = self.nodes.known();
        self.replica.set_newest_for_all(newest_for_all(&known, |formats| formats.records));
        let asks = asks.chain(self.others.tick(now)).chain(self.announcing.tick(&known, now));
        asks.for_each(|request| self.servers.bucket().send(request));
        let writable_since = self.heartbeat.writable_since();
        // Who has just failed is not given the shard, whatever it has followed.
        let recovers = now.since(self.begun) < self.recovers_millis;
        let followed = if recovers { Epoch(0) } else { self.replica.followed(now) };
        self.heartbeat.has_followed(followed);
        let BalanceWish { keeps, defer_millis } = self.place(now);
        // One that does not own takes nothing, whoever else of its node does.
        let waits = self.replica.serves().is_some() && self.others.is_to_wait(&self.node);
        let may_own = self.drain.may_own() || waits;
        let wants = keeps && may_own && self.releasing.is_none();
        let tick = ReplicaInput::Tick { wants, defer_millis, writable_since };
        self.replica.handle(tick, now, effects);
        if self.replica.serves().is_some() && self.store.is_some() && self.releasing.is_none() {
            let due = self.snapshots.tick(self.servers.extent(), now);
            due.into_iter().for_each(|effect| self.snapshot(effect));
        }
    }

    /// What the node should do so that shards are at nodes evenly.
    fn place(&mut self, now: Monotonic) -> BalanceWish {
        let (looked, mut wish) = self.placed;
        if now.since(looked) < BALANCE_LOOK {
            return wish;
        }
        if let Some(balance) = &mut self.balance
            && let Some(drained) = self.drain.drained()
            && let Some(holders) = self.others.holders(LeaseTimes::default())
        {
            let (processes, holders) = (&*self.nodes.all(), &*holders);
            wish = balance.look(&ClusterSeen { processes, drained, holders }, now);
            wish.keeps |= !self.balances;
        }
        self.placed = (now, wish);
        if !wish.keeps && self.replica.serves().is_some() && !self.moves {
            self.moves = true;
            event!(
                info,
                "cluster",
                "moves",
                shard = self.shard,
                "the node owns more shards than another, and gives this one up"
            );
        }
        wish
    }
}
