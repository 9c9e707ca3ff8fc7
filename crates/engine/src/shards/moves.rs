//! Partitions that move to another home while all serve.
//!
//! Moves are rare, so what they may concern is forgotten rather than mended: ranges over several groups, and those
//! of the partition's groups.
//!
//! The order is: [`Engine::partition_pairs`] at the old home, [`Engine::keep_partition`] at the new one,
//! [`Engine::drop_partition`] at the old one, [`Engine::set_home`] at every shard, [`Engine::give_partition`] at the new one,
//! [`Engine::settle_kept`] at the old one, all of it between two operations of any shard. Until the third of them nothing has
//! changed for anybody.
//!
//! Where embedded stores keep base keys, a crash may come between any two of these. So who drives the shards notes on disk
//! that the partition is about to move before the second step, and where it lives from now on before the third; at the next
//! start the one of the two that is not its home by that note erases its keys.
//!
//! Keys that a source has are not handed over: the old home forgets what it has loaded of the partition, and the new one
//! loads it when it is wanted. A range over several groups that the new home has loaded lacks those keys, which were not its
//! own, and is forgotten as well.

use super::Placed;
use crate::accept::refused;
use crate::base::Put;
use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::handles::Handle;
use crate::loads::LoadedId;
use crate::report::{Effect, EngineError};
use alloc::format;
use alloc::vec::Vec;
use headwater_base::placement::{Partition, Shard};
use headwater_base::source::{Attributes, Pair};
use headwater_base::{KeyRange, Placement};
use headwater_store::TableId;

/// Whether keys of the partition may lie in `range`.
fn may_hold(placement: &Placement, range: &KeyRange, partition: Partition) -> bool {
    placement.partition_of_range(range).is_none_or(|other| other == partition)
}

fn bytes_of(pair: &Pair) -> u64 {
    (pair.key.len() + pair.value.len() + size_of::<Pair>()) as u64
}

fn holds_stream<T>(key: &[u8]) -> Result<T, EngineError> {
    refused(format!("'{}' holds a stream, which cannot move", key.escape_ascii()))
}

impl Engine {
    /// The base keys of a partition of which this is the home: of kept tables as the embedded store has them, those whose
    /// time is over among them. Nothing changes for anybody.
    ///
    /// # Errors
    /// One of them holds a stream, which cannot move; they have more than `bytes_max` bytes; the store cannot be read.
    pub fn partition_pairs(
        &mut self,
        partition: Partition,
        bytes_max: u64,
    ) -> Result<Vec<Pair>, EngineError> {
        self.complete_removal();
        let mut found = Vec::new();
        let tables: Vec<_> = self.store.tables().map(|(id, _)| id).collect();
        for table in tables {
            if self.base.loads.own(table).is_some_and(|data| !data.is_kept()) {
                continue;
            }
            self.keys_of(table, partition, &mut found);
        }
        let mut pairs = self.kept_pairs(partition, bytes_max)?;
        if let Some(stream) = pairs.iter().find(|pair| pair.attributes.is_stream) {
            return holds_stream(&stream.key);
        }
        let mut bytes: u64 = pairs.iter().map(bytes_of).sum();
        for (table, key) in &found {
            let Some(word) = self.store.table(*table).get(key) else { continue };
            if let Some(Handle::Stream(_)) = Handle::of(word) {
                return holds_stream(key);
            }
            if self.base.is_kept(*table) {
                continue;
            }
            let value = match Handle::of(word) {
                Some(Handle::Spilled(number)) => match self.read_spilled(*table, key, number) {
                    Some(value) => value.to_vec(),
                    None => continue,
                },
                _ => self.store.pool.view(word).to_vec(),
            };
            let attributes = Attributes {
                expires: self.base.expiries.get(key),
                flags: self.notifications.marks.flags(key),
                is_stream: false,
            };
            let pair = Pair { key: key.clone(), value, attributes };
            bytes += bytes_of(&pair);
            if bytes > bytes_max {
                let most = format!("more than {bytes_max} bytes");
                return refused(format!("its keys have {most}, which do not move at once"));
            }
            pairs.push(pair);
        }
        Ok(pairs)
    }

    /// The keys of a partition that the embedded store has.
    fn kept_pairs(
        &mut self,
        partition: Partition,
        bytes_max: u64,
    ) -> Result<Vec<Pair>, EngineError> {
        let Some(mut store) = self.base.loads.persistence.take() else { return Ok(Vec::new()) };
        let moves = |key: &[u8]| {
            let placed = self.base.placed.as_deref();
            placed.is_some_and(|placed| placed.placement.partition(key) == partition)
                && self.store.table_of(key).is_some_and(|table| self.base.has_kept(table))
        };
        let gathered = store.gather(&moves, bytes_max);
        self.base.loads.persistence.give_back(store);
        gathered.or_else(refused)
    }

    /// The new home's store takes over those keys of a partition that are kept, and has them safe. Nothing else changes.
    ///
    /// # Errors
    /// The store cannot; [`Engine::unkeep_partition`] undoes what it could.
    pub fn keep_partition(&mut self, pairs: &[Pair]) -> Result<(), EngineError> {
        for Pair { key, value, attributes } in pairs {
            let table = self.store.table_for(key);
            if self.writes_kept(table) {
                self.base.loads.persistence.put(key, value, *attributes);
            }
        }
        self.settle_kept()
    }

    /// Undoes [`Engine::keep_partition`].
    ///
    /// # Errors
    /// The store cannot erase the keys.
    pub fn unkeep_partition(&mut self, pairs: &[Pair]) -> Result<(), EngineError> {
        for Pair { key, .. } in pairs {
            if let Some(table) = self.store.table_of(key).filter(|&table| self.base.is_kept(table))
            {
                self.base.erase_kept(table, key);
            }
        }
        self.settle_kept()
    }

    /// The old home gives a partition up, with the keys that [`Engine::partition_pairs`] gave. What was computed
    /// goes with [`Engine::set_home`]; [`Engine::settle_kept`] says when the keys are gone from the store.
    pub fn drop_partition(&mut self, pairs: &[Pair]) {
        for Pair { key, .. } in pairs {
            let Some(table) = self.store.table_of(key) else { continue };
            if self.base.is_kept(table) {
                self.base.erase_kept(table, key);
            }
            // Readers are invalidated as a whole, and who watches the key is told with its new home.
            self.drop_base_keys(table, &KeyRange::point(key));
            self.notifications.marks.written(key, Some(0));
        }
    }

    /// Waits until the embedded store has everything safe that it was told.
    ///
    /// # Errors
    /// It cannot.
    pub fn settle_kept(&mut self) -> Result<(), EngineError> {
        self.base.loads.persistence.settle().or_else(refused)
    }

    /// The base keys of a partition in a table, of those that have their home here.
    fn keys_of(
        &mut self,
        table: TableId,
        partition: Partition,
        found: &mut Vec<(TableId, Vec<u8>)>,
    ) {
        let Some(placed) = self.base.placed.take() else { return };
        let catalog = core::mem::take(&mut self.views.catalog);
        let all = KeyRange::prefix(self.store.table(table).prefix());
        self.scan_table(table, &all, &mut |key, _| {
            if placed.placement.partition(key) == partition
                && placed.owns(key)
                && !catalog.gives(table, key)
            {
                found.push((table, key.to_vec()));
            }
        });
        self.base.placed = Some(placed);
        self.views.catalog = catalog;
    }

    /// Makes `home` the home of a partition, as every shard is to be told. What was computed from its keys, or loaded
    /// of them, is forgotten.
    pub fn set_home(&mut self, partition: Partition, home: Shard) {
        self.forget_partition(partition);
        let me = self.base.placed.as_deref().map(|placed| placed.me);
        let before = self.placement().map(|placement| placement.home_of(partition));
        if me == Some(home) || me == before {
            self.forget_sourced(partition);
        }
        if let Some(placed) = self.base.placed.as_deref_mut() {
            // Who watches a key here, there or not, would not hear of its next change.
            let placement = &placed.placement;
            self.notifications.watches.note_where(|key| placement.partition(key) == partition);
            placed.placement.assign(partition, home);
        }
        self.base.withdraw_loads();
    }

    /// Takes over a partition that another shard gave up; what of it is kept, the store has already
    /// ([`Engine::keep_partition`]). Keys whose time is over here are gone.
    pub fn give_partition(&mut self, partition: Partition, pairs: &[Pair]) {
        for Pair { key, value, attributes } in pairs {
            debug_assert!(self.placement().is_none_or(|it| it.partition(key) == partition));
            let Attributes { expires, flags, .. } = *attributes;
            let is_over = expires.is_some_and(|at| at <= self.now);
            let table = self.store.table_for(key);
            if self.writes_kept(table) {
                if is_over {
                    self.base.erase_kept(table, key);
                    continue;
                }
                self.base.note_kept(table, key, value, *attributes);
            }
            if is_over || self.views.catalog.gives(table, key) {
                continue;
            }
            let value = self.store.pool.insert(value);
            self.put(table, key, Put::from_keeper(value, expires, flags));
        }
    }

    /// Forgets what is loaded from sources of ranges in which keys of the partition may lie, as long as its home is still the
    /// old one.
    fn forget_sourced(&mut self, partition: Partition) {
        let Some(placement) = self.placement().cloned() else { return };
        for table in self.base.loads.own_tables() {
            let part = LoadedId::own(table);
            let Some(data) = self.base.loads.data(part).filter(|data| !data.is_kept()) else {
                continue;
            };
            let loaded: Vec<_> = data.ranges.all().collect();
            for range in loaded {
                if may_hold(&placement, &range, partition) {
                    self.unload(part, &range);
                }
            }
            self.base.ask_anew(table);
        }
    }

    /// Forgets everything computed or loaded that may have to do with the partition, as long as its home is still the old
    /// one.
    fn forget_partition(&mut self, partition: Partition) {
        let Some(Placed { placement, .. }) = self.base.placed.as_deref() else { return };
        let placement = placement.clone();
        let concerned = |range: &KeyRange| may_hold(&placement, range, partition);
        for join in self.views.catalog.ids() {
            for id in self.views.catalog.join(join).cover.ids() {
                let status = self.views.statuses.find(id);
                if status.is_some_and(|status| concerned(&status.range())) {
                    self.discard(id);
                }
            }
        }
        // Whoever has read own keys of the partition has to load them from now on.
        for id in self.views.updaters.reading_where(&concerned) {
            if self.views.statuses.find(id).is_some_and(|status| !status.is_invalid()) {
                let range = self.views.statuses.get(id).range();
                self.invalidate(id);
                self.tell_reset(&range);
            }
        }
        self.tell_resets_where(&concerned);
        for table in self.base.loads.elsewhere.tables() {
            let parts: Vec<_> = self.base.loads.elsewhere.parts_of(table).collect();
            for part in parts {
                let Some(data) = self.base.loads.data(part) else { continue };
                let gone: Vec<_> = data.ranges.all().filter(|range| concerned(range)).collect();
                for range in gone {
                    self.unload(part, &range);
                }
                self.base.spoil_loads(part, concerned);
            }
        }
    }
}

impl BaseData {
    /// Takes back loads of sources that nobody was asked for yet and that are others' from now on.
    fn withdraw_loads(&mut self) {
        for effect in core::mem::take(&mut self.loads.waits.effects) {
            match effect {
                Effect::Load { fetch, ref range, .. } if self.is_elsewhere(range) => {
                    for table in self.loads.own_tables() {
                        if let Some(data) = self.loads.own_mut(table) {
                            data.take_loads(|_, load| load == fetch);
                        }
                    }
                    self.loads.waits.withdraw(fetch);
                }
                effect => self.loads.waits.effects.push(effect),
            }
        }
    }
}
