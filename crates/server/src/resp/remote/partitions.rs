//! What becomes of a partition's keys when it moves, at its old home and at its new one, in memory and on disk.
//!
//! All shards stand still meanwhile (`moves`). Where a store keeps base data, a crash may come at any moment: the order
//! of what is done here, and what the next start makes of it, is that of `keeping/homes.rs`.

use crate::keeping::{EmbeddedStore, Way};
use crate::resp::ShardService;
use crate::resp::parts::Stores;
use crate::shards::ShardMessage;
use headwater_base::Shard;
use headwater_base::placement::Partition;
use headwater_engine::Pair;

/// A partition with more than this share of the memory bound stays: what moves is in memory several times for a moment.
const MOVE_SHARE: u64 = 64;
/// With a low bound, one with more than this stays.
const MOVE_BYTES_MIN: u64 = 1 << 20;
/// Without a bound, one with more than this stays.
const MOVE_BYTES: u64 = 256 << 20;

impl ShardService {
    /// Bytes that may move at once, where there is a store.
    fn move_bytes_max(&self) -> u64 {
        match self.settings.config.memory.max.0 {
            _ if self.stores.keeping.is_none() => u64::MAX,
            0 => MOVE_BYTES,
            bound => (bound / MOVE_SHARE).max(MOVE_BYTES_MIN),
        }
    }

    /// The old home begins to look for the keys of a partition on disk.
    pub(super) fn begin_survey(&mut self, partition: Partition, coordinator: Shard) {
        let Some(shards) = &mut self.others.shards else { return };
        shards.surveys_for = Some(coordinator);
        shards.quiescing.keys_wanted_by = Some(coordinator);
        let placement = self.node.engine().placement();
        if let (Some(keeping), Some(placement)) = (&mut self.stores.keeping, placement) {
            keeping.survey(partition, placement.clone(), Box::new(self.stores.hub.inbox.bell()));
        }
    }

    /// Says that they are found, if they are.
    pub(super) fn tell_keys_found(&mut self) {
        let Some(shards) = &mut self.others.shards else { return };
        let Some(coordinator) = shards.surveys_for else { return };
        if self.stores.keeping.as_ref().is_none_or(EmbeddedStore::is_surveyed) {
            shards.surveys_for = None;
            shards.outbox.to(coordinator).messages.push(ShardMessage::KeysFound);
        }
    }

    /// The old home says what there is to be moved, and notes that it is about to be.
    pub(super) fn offer_partition(&mut self, way: Way) -> Result<Vec<Pair>, String> {
        self.stores.may_move()?;
        let bytes_max = self.move_bytes_max();
        let engine = self.node.engine_mut();
        if let (Some(keeping), Some(placement)) = (&mut self.stores.keeping, engine.placement()) {
            keeping.check_survey(placement);
        }
        let pairs = engine.partition_pairs(way.partition, bytes_max);
        let pairs = pairs.map_err(|error| error.to_string())?;
        if let (Some(keeping), Some(placement)) = (&self.stores.keeping, engine.placement()) {
            keeping.begin_move(placement, way)?;
        }
        Ok(pairs)
    }

    /// The new home has its store take the keys over, and decides that they live here from now on; or nothing has changed.
    pub(super) fn keep_partition(&mut self, way: Way, pairs: &[Pair]) -> Result<(), String> {
        let may_move = self.stores.may_move();
        let Some(keeping) = &self.stores.keeping else { return Ok(()) };
        let engine = self.node.engine_mut();
        let kept =
            may_move.and_then(|()| engine.keep_partition(pairs).map_err(|error| error.to_string()));
        let Some(placement) = engine.placement() else { return Ok(()) };
        let done = kept.and_then(|()| keeping.decide_move(placement, way));
        if done.is_err() {
            // What cannot be undone now is undone at the next start.
            let placement = placement.clone();
            if engine.unkeep_partition(pairs).is_ok() {
                keeping.end_move(&placement);
            }
        }
        done
    }

    /// The partition lives at its new home now.
    pub(super) fn partition_moves(&mut self, me: Shard, way: Way, pairs: &[Pair]) {
        let engine = self.node.engine_mut();
        if me == way.from {
            engine.drop_partition(pairs);
        }
        engine.set_home(way.partition, way.to);
        if me == way.to {
            engine.give_partition(way.partition, pairs);
        }
        // Where that fails, the next start erases what is left here.
        if me == way.from
            && engine.settle_kept().is_ok()
            && let (Some(keeping), Some(placement)) = (&self.stores.keeping, engine.placement())
        {
            keeping.end_move(placement);
        }
    }
}

impl Stores {
    /// What was found is of no use any more.
    pub(super) fn end_survey(&mut self) {
        if let Some(keeping) = &mut self.keeping {
            keeping.end_survey();
        }
    }

    /// Whether the store takes writes.
    fn may_move(&self) -> Result<(), String> {
        self.write_refusal().map_or(Ok(()), |why| Err(why.to_string()))
    }
}
