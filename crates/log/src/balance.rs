//! Which node should own which shard, where nodes are for several of them.
//!
//! A node that is for several shards has a process for each, named `NODE/SHARD` ([`node_of`]). Leases alone would give all shards to the node that
//! looks first, and leave them there when the others come back. So each process asks here what it should do for its own shard. All compute the
//! same from what the bucket says, so nobody has to agree on anything.
//!
//! # Invariants
//! - S1. A shard without an owner should go to the node that owns the least, of those that are heard, are not drained and have followed the log;
//!   where several do, hashes of their names and the shard's decide, so that a cluster's shards do not all meet at one node. Every other node
//!   waits [`DEFER_MILLIS`] longer before it takes the lease: nobody depends on a node that is not there after all.
//! - S2. An owner gives a shard up where its node owns two more than another that could take it, and that has been so for [`SETTLE_MILLIS`]: one
//!   shard after the other, of the node that owns the most, while all shards have owners. So the numbers come to differ by one at most, nothing
//!   moves that need not.
//!
//! Nothing of W1 to W3 depends on this: who computes something else, because it knows less, takes a shard later or gives one up too early.

use crate::drain::DrainedNodes;
use crate::owner::{Owner, node_of};
use crate::record::Epoch;
use crate::seam::Monotonic;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use headwater_base::hash::stable_hash;

/// How much longer a node waits for a lease that another one should take.
pub const DEFER_MILLIS: u64 = 1000;
/// How long a shard should have moved before it does.
pub const SETTLE_MILLIS: u64 = 10_000;

/// What is known of who owns a shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardHolder {
    /// The process that owns it, or has owned it last.
    pub process: Option<String>,
    /// The epoch of that.
    pub epoch: Epoch,
    /// It owns it still: it has not given it up, and was heard.
    pub holds: bool,
    /// It has given it up, rather than become silent.
    pub released: bool,
}

/// What a process knows of its cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterSeen<'a> {
    /// The processes that are heard. The epoch of each is that of its shard's log where it has followed that ([`Replica::followed`](crate::Replica::followed)), or 0.
    pub processes: &'a [Owner],
    /// The nodes that are drained.
    pub drained: &'a DrainedNodes,
    /// The owners of all shards.
    pub holders: &'a [ShardHolder],
}

impl<'a> ClusterSeen<'a> {
    /// The shards that are owned.
    fn held(&self) -> impl Iterator<Item = (&'a ShardHolder, u16)> {
        self.holders.iter().zip(0..).filter(|(holder, _)| holder.holds)
    }

    /// How many shards each node owns, but for this one.
    fn loads(&self, without: Option<u16>) -> BTreeMap<&'a str, usize> {
        let mut loads = BTreeMap::new();
        for (holder, _) in self.held().filter(|(_, shard)| Some(*shard) != without) {
            let process = holder.process.as_deref();
            process.into_iter().for_each(|it| *loads.entry(node_of(it)).or_default() += 1);
        }
        loads
    }

    /// The nodes that could take a shard: those that have followed its log up to its last owner, or all, if none has.
    fn could_take(&self, shard: u16) -> Vec<&'a str> {
        let Some(holder) = self.holders.get(usize::from(shard)) else { return Vec::new() };
        let holder_node = holder.process.as_deref().map(node_of);
        let is_lost = |node: &str| !holder.holds && !holder.released && holder_node == Some(node);
        let could = self.processes.iter().filter(|process| {
            let node = node_of(&process.node);
            process.shard == shard && !self.drained.contains(&process.node) && !is_lost(node)
        });
        let all: Vec<&Owner> = could.collect();
        let followed = all.iter().filter(|process| process.epoch >= holder.epoch);
        let followed: Vec<&str> = followed.map(|process| node_of(&process.node)).collect();
        match followed.is_empty() {
            true => all.into_iter().map(|process| node_of(&process.node)).collect(),
            false => followed,
        }
    }

    /// S1: the node that should take a shard; `None`: nobody could. Who asks may not know yet that nobody owns it.
    fn should_take(&self, shard: u16) -> Option<&'a str> {
        let mut loads = self.loads(Some(shard));
        let all = self.holders.iter().zip(0..);
        let free = all.filter(|(holder, free)| !holder.holds || *free == shard);
        for (_, free) in free {
            let could = self.could_take(free);
            let load = |node: &&str| loads.get(node).copied().unwrap_or_default();
            let least = could.into_iter().min_by_key(|node| (load(node), rank(node, free)));
            if free == shard {
                return least;
            }
            least.into_iter().for_each(|node| *loads.entry(node).or_default() += 1);
        }
        None
    }

    /// S2: the shard that should move next; `None`: none, or one is on its way.
    fn should_move(&self) -> Option<u16> {
        let loads = self.loads(None);
        let load = |node: &str| loads.get(node).copied().unwrap_or_default();
        let mut moves = Vec::new();
        for (holder, shard) in self.holders.iter().zip(0..) {
            let from = node_of(holder.process.as_deref().filter(|_| holder.holds)?);
            // It goes to nobody who has not followed its log.
            let could = self.could_take(shard).into_iter().filter(|to| {
                let mut of_node = self.processes.iter().filter(|it| node_of(&it.node) == *to);
                *to != from && of_node.any(|it| it.shard == shard && it.epoch >= holder.epoch)
            });
            let least = could.min_by_key(|to| (load(to), rank(to, shard)));
            moves.extend(least.filter(|to| load(to) + 2 <= load(from)).map(|to| {
                let (from, to) = ((Reverse(load(from)), from), (load(to), rank(to, shard)));
                (from, to, shard)
            }));
        }
        moves.into_iter().min().map(|(_, _, shard)| shard)
    }
}

/// Where a node stands for a shard among those that own as much: less is better.
fn rank(node: &str, shard: u16) -> Reverse<u64> {
    Reverse(stable_hash(u64::from(shard), node.as_bytes()))
}

/// What a process should do for its shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BalanceWish {
    /// It goes on to own the shard if it does.
    pub keeps: bool,
    /// How much longer it waits before it takes the shard.
    pub defer_millis: u64,
}

/// One process's part in it.
#[derive(Debug)]
pub struct Balance {
    process: String,
    shard: u16,
    /// Since when it should give its shard up.
    leaves_since: Option<Monotonic>,
}

impl Balance {
    /// That of the process with this name, which is for this shard.
    #[must_use]
    pub fn new(process: &str, shard: u16) -> Self {
        Self { process: process.into(), shard, leaves_since: None }
    }

    /// What it should do, by what is known now.
    pub fn look(&mut self, seen: &ClusterSeen<'_>, now: Monotonic) -> BalanceWish {
        let node = node_of(&self.process);
        let holder = seen.holders.get(usize::from(self.shard));
        let is_mine = holder.is_some_and(|holder| holder.process.as_ref() == Some(&self.process));
        let leaves = is_mine && seen.should_move() == Some(self.shard);
        self.leaves_since = leaves.then(|| self.leaves_since.unwrap_or(now));
        let keeps = self.leaves_since.is_none_or(|since| now.since(since) < SETTLE_MILLIS);
        let first = seen.should_take(self.shard);
        let defers = first.is_some_and(|first| first != node);
        BalanceWish { keeps, defer_millis: if defers { DEFER_MILLIS } else { 0 } }
    }
}
