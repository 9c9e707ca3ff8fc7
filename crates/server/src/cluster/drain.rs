//! Draining a node, so that somebody can work on its machine, and forgetting one that has ended.

use super::{ClusterAdmin, ClusterError, LOOK, Watched, is_of};
use crate::replicated::{SETTINGS_KEY, owner_key};
use headwater_log::{Announcement, DrainedNodes, Owner, Revision};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What is wanted of a node that is drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrainWish {
    /// It is drained also where nobody is left who could own.
    pub force: bool,
    /// How long others may take until they own what it has owned.
    pub within: Duration,
}

/// What has become of a node that was drained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrainOutcome {
    /// Whether it was drained before.
    pub before: bool,
    /// What it owned, and who does now; `None`: nobody.
    pub shards: Vec<(u32, Option<String>)>,
}

/// The sentence for a name that no node has.
fn unknown(node: &str, watched: &Watched) -> ClusterError {
    ClusterError(format!("there is no node '{node}' (nodes: {})", watched.view.names()))
}

/// What is left of a node with a shard.
enum Remains {
    Nothing(Option<String>),
    Owns,
    Untaken,
}

impl ClusterAdmin {
    /// Drains a node, and waits until others own what it has owned.
    ///
    /// # Errors
    /// There is no such node, nobody would be left who could own, or it takes too long; the sentence says which.
    pub fn drain(&self, node: &str, wish: DrainWish) -> Result<DrainOutcome, ClusterError> {
        let watched = self.watch()?;
        let processes = watched.view.processes(node);
        if processes.is_empty() {
            return Err(unknown(node, &watched));
        }
        // Who could take each shard that it is for.
        let mut others: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        let changed = self.change(DrainedNodes::KEY, |revision, value| {
            let mut drained = decode(revision, value)?;
            for (_, process) in &processes {
                let shard = u32::from(process.shard);
                let heard = watched.heard(shard);
                let could = drained.others(node, &heard);
                if could.is_empty() && !wish.force {
                    return Err(ClusterError(format!(
                        "node '{node}' is the last one that could own the data of shard {shard}: of the nodes that are heard ({}), no other is not drained (--force drains it all the same, and nobody owns the data then)",
                        heard.join(", ")
                    )));
                }
                others.insert(shard, could.into_iter().map(str::to_owned).collect());
            }
            Ok(drained.set(node, true).then(|| drained.encode()))
        })?;
        let mut shards = Vec::new();
        // It may have taken a shard while the cluster was looked at.
        for (shard, (_, owner)) in self.view()?.owners {
            if !is_of(&owner.node, node) {
                continue;
            }
            let others = others.get(&shard).map(Vec::as_slice).unwrap_or_default();
            // A node that is away gives nothing up by itself, and nobody else may be there to take it.
            let awaits = !others.is_empty() || watched.hears(&owner.node);
            if awaits || !owner.released {
                let taker =
                    if awaits { self.until_taken(node, shard, others, wish)? } else { None };
                shards.push((shard, taker));
            }
        }
        Ok(DrainOutcome { before: !changed, shards })
    }

    /// Waits until a drained node has not got a shard any more; who has it then, where others could take it.
    fn until_taken(
        &self,
        node: &str,
        shard: u32,
        others: &[String],
        wish: DrainWish,
    ) -> Result<Option<String>, ClusterError> {
        let began = Instant::now();
        loop {
            let (revision, value) = self.read_key(&owner_key(shard))?;
            let owner = Owner::decode(&value).ok().filter(|_| revision != Revision(0));
            let remains = match owner {
                Some(owner) if owner.released || !is_of(&owner.node, node) => {
                    let taker = (!owner.released).then_some(owner.node);
                    let is_done = taker.is_some() || others.is_empty();
                    if is_done { Remains::Nothing(taker) } else { Remains::Untaken }
                }
                Some(_) => Remains::Owns,
                None => Remains::Untaken,
            };
            let seconds = wish.within.as_secs();
            let late = began.elapsed() >= wish.within;
            match remains {
                Remains::Nothing(taker) => return Ok(taker),
                Remains::Owns if late => {
                    return Err(ClusterError(format!(
                        "node '{node}' is drained, and owns shard {shard} still after {seconds} seconds: its log says why, and `headwater cluster drain {node} --undo` ends the wish"
                    )));
                }
                Remains::Untaken if late => {
                    return Err(ClusterError(format!(
                        "node '{node}' has given shard {shard} up, and nobody has taken it within {seconds} seconds (could: {})",
                        others.join(", ")
                    )));
                }
                Remains::Owns | Remains::Untaken => self.nats.pause(LOOK),
            }
        }
    }

    /// Lets a node own again; whether it was drained.
    ///
    /// # Errors
    /// There is no such node, or the bucket cannot be written.
    pub fn undrain(&self, node: &str) -> Result<bool, ClusterError> {
        let watched = self.watch()?;
        if watched.view.processes(node).is_empty() && !watched.view.drained.contains(node) {
            return Err(unknown(node, &watched));
        }
        self.forget_drained(node)
    }

    fn forget_drained(&self, node: &str) -> Result<bool, ClusterError> {
        self.change(DrainedNodes::KEY, |revision, value| {
            let mut drained = decode(revision, value)?;
            Ok(drained.set(node, false).then(|| drained.encode()))
        })
    }

    /// Forgets a node that has ended, and that it was drained.
    ///
    /// # Errors
    /// There is no such node, it is heard, or the bucket cannot be written.
    pub fn remove(&self, node: &str) -> Result<(), ClusterError> {
        let watched = self.watch()?;
        let known = watched.view.processes(node);
        if known.is_empty() && !watched.view.drained.contains(node) {
            return Err(unknown(node, &watched));
        }
        let is_heard = |life: &Owner| {
            let (process, address) = (&life.node, &life.address);
            ClusterError(format!(
                "node '{process}' is heard, at {address}: only a node that has ended can be removed (end it, and wait 5 seconds)"
            ))
        };
        // A node that is one of several processes now may have left its own name behind: what is heard stays.
        let (heard, gone): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|(_, life)| watched.hears(&life.node));
        if let (Some((_, life)), true) = (heard.first(), gone.is_empty()) {
            return Err(is_heard(life));
        }
        for (revision, life) in gone {
            let process = &life.node;
            // What it has told first, so that what a node tells that begins meanwhile stays.
            for keys in [SETTINGS_KEY, Announcement::KEYS] {
                let told = format!("{keys}{process}");
                let (written, _) = self.read_key(&told)?;
                if written != Revision(0) {
                    self.nats.remove(&told, written)?;
                }
            }
            let key = format!("node.{process}");
            self.nats.remove(&key, revision)?;
            // A node that has begun meanwhile has written a later revision, which stays.
            if self.read_key(&key)?.0 != Revision(0) {
                return Err(is_heard(life));
            }
        }
        if heard.is_empty() { self.forget_drained(node).map(drop) } else { Ok(()) }
    }
}

fn decode(revision: Revision, value: &[u8]) -> Result<DrainedNodes, ClusterError> {
    DrainedNodes::decode(revision, value).map_err(|bad| {
        let key = DrainedNodes::KEY;
        ClusterError(format!("key {key} of the bucket of owners cannot be read: {bad}"))
    })
}
