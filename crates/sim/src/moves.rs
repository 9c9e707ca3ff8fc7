//! Partitions that move: from memory to memory and from disk to disk. Where shards keep keys on disk, all of them may crash between any two
//! steps, as they do where they are threads of one process; or the new home's disk cannot take the keys.

use crate::disk::Disk;
use crate::world::World;
use headwater_base::Shard;
use headwater_base::placement::Partition;
use std::collections::BTreeMap;

/// After what all shards crash.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Crash {
    /// The new home was given some of the keys.
    Given,
    /// It has them safe.
    Kept,
    /// It is decided that it is the home.
    Decided,
    /// The old home has erased some of them.
    Erased,
}

impl World {
    pub(crate) fn move_partition(&mut self) -> Result<(), String> {
        let key = self.key();
        let partition = self.placement.partition(&key);
        let from = usize::from(self.placement.home_of(partition).0);
        let to = self.rng.below(self.shards.len());
        if from == to || self.change.is_some() {
            return Ok(());
        }
        // A turn's effects are dealt with before all stand still.
        for at in 0..self.shards.len() {
            if !self.shards[at].has_no_rest() {
                self.settle(at)?;
            }
        }
        let stays = |error| format!("{partition:?} stays: {error}");
        let crashes = [Crash::Given, Crash::Kept, Crash::Decided, Crash::Erased];
        let crash = (self.faults.disks && self.faults.crashes > 0 && self.rng.chance(20))
            .then(|| *self.rng.pick(&crashes));
        let (from_engine, most) = (&mut self.shards[from].engine, u64::MAX);
        let pairs = from_engine.partition_pairs(partition, most).map_err(stays)?;
        let is_refused = self.faults.disks && self.rng.chance(5);
        if is_refused || crash == Some(Crash::Given) {
            self.at_disk(to, |disk| disk.refuse(true));
            let kept = self.shards[to].engine.keep_partition(&pairs);
            self.at_disk(to, |disk| disk.refuse(false));
            if kept.is_ok() {
                return Err(format!("{partition:?} is said to be safe at shard {to}"));
            }
            if crash.is_some() {
                return self.crash_in_move(partition, to);
            }
            self.note("moves undone");
            self.shards[to].engine.unkeep_partition(&pairs).map_err(|error| error.to_string())?;
            return self.check_shards();
        }
        self.shards[to].engine.keep_partition(&pairs).map_err(stays)?;
        if crash == Some(Crash::Kept) {
            return self.crash_in_move(partition, to);
        }
        self.placement.assign(partition, Shard(to as u16));
        if crash == Some(Crash::Decided) {
            return self.crash_in_move(partition, from);
        }
        self.shards[from].engine.drop_partition(&pairs);
        if crash == Some(Crash::Erased) {
            return self.crash_in_move(partition, from);
        }
        for one in &mut self.shards {
            one.engine.set_home(partition, Shard(to as u16));
        }
        self.shards[to].engine.give_partition(partition, &pairs);
        self.shards[from].engine.settle_kept().map_err(|error| error.to_string())?;
        let placement = &self.placement;
        let all = std::mem::take(&mut self.shards[from].oracle.base).into_iter();
        let (moved, stay) = all.partition(|(key, _)| placement.partition(key) == partition);
        self.shards[from].oracle.base = stay;
        self.shards[to].oracle.base.extend::<BTreeMap<_, _>>(moved);
        let now = self.shards[to].oracle.now;
        self.shards[to].oracle.advance(now);
        self.note("partitions moved");
        self.check_shards()?;
        (0..self.shards.len()).for_each(|at| self.done_at(at));
        self.settle_all()
    }

    fn at_disk(&self, at: usize, what: impl Fn(&Disk)) {
        self.shards[at].disk.iter().for_each(what);
    }

    /// All shards crash while a partition moves, of which `stray` may have keys but is not the home.
    fn crash_in_move(&mut self, partition: Partition, stray: usize) -> Result<(), String> {
        self.note("crashes within moves");
        let all: Vec<_> = (0..self.shards.len()).collect();
        self.restart(&all, Some((stray, partition)))?;
        self.settle_all()
    }
}
