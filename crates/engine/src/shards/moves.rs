//! Partitions that move to another home while all serve.
//!
//! Moves are rare, so what they may concern is forgotten rather than mended: ranges over several groups, and those
//! of the partition's groups.
//!
//! The order is: [`Engine::take_partition`] at the old home, [`Engine::set_home`] at every shard, [`Engine::give_partition`] at
//! the new one, all of it between two operations of any shard.

use super::Placed;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use crate::report::{EngineError, Expiry, Stop};
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

impl Engine {
    /// Gives a partition up: its base keys, which are no longer here. What was computed goes with
    /// [`Engine::set_home`].
    ///
    /// # Errors
    /// Keys must be loaded first, or one holds a stream: those stay where they are. Nothing has
    /// changed then.
    pub fn take_partition(&mut self, partition: Partition) -> Result<Vec<Pair>, Stop> {
        let mut found = Vec::new();
        let mut missing = Ok(());
        let tables: Vec<_> = self.store.tables().map(|(id, _)| id).collect();
        for table in tables {
            if self.is_kept(table) {
                let all = KeyRange::prefix(self.store.table(table).prefix());
                if self.need(table, &all).is_err() {
                    missing = Err(Missing);
                }
            }
            self.keys_of(table, partition, &mut found);
        }
        missing.map_err(|Missing| self.stop())?;
        let mut pairs = Vec::new();
        for (table, key) in &found {
            let Some(word) = self.store.table(*table).get(key) else { continue };
            let value = match Handle::of(word) {
                None => self.store.pool.view(word).to_vec(),
                Some(Handle::Stream(_)) => {
                    let shown = key.escape_ascii();
                    let text = format!("'{shown}' holds a stream, which cannot move");
                    return Err(EngineError::Refused(text).into());
                }
                Some(Handle::Spilled(number)) => match self.read_spilled(*table, key, number) {
                    Some(value) => value.to_vec(),
                    None => continue,
                },
            };
            let attributes =
                Attributes { expires: self.expiries.get(key), flags: self.marks.flags(key) };
            pairs.push(Pair { key: key.clone(), value, attributes });
        }
        for (table, key) in found {
            if self.is_kept(table) {
                self.erase_kept(table, &key);
            }
            if self.expiries.len() > 0 {
                self.expiries.set(&key, None);
            }
            // Readers are invalidated as a whole; who watches the key is told.
            self.watches.note(&key);
            self.drop_base_keys(table, &KeyRange::point(&key));
        }
        self.forget_partition(partition);
        Ok(pairs)
    }

    /// The base keys of a partition in a table, of those that have their home here.
    fn keys_of(
        &mut self,
        table: TableId,
        partition: Partition,
        found: &mut Vec<(TableId, Vec<u8>)>,
    ) {
        let Some(placed) = self.placed.take() else { return };
        let writers = self.catalog.role(table).map_or(Vec::new(), |role| role.writers.clone());
        let plans: Vec<_> =
            writers.into_iter().map(|id| self.catalog.join(id).plan.clone()).collect();
        let all = KeyRange::prefix(self.store.table(table).prefix());
        self.scan_table(table, &all, &mut |key, _| {
            if placed.placement.partition(key) == partition
                && placed.owns(key)
                && !plans.iter().any(|plan| plan.join.output.matches(key))
            {
                found.push((table, key.to_vec()));
            }
        });
        self.placed = Some(placed);
    }

    /// Makes `home` the home of a partition, as every shard is to be told. What was computed from its keys, or loaded
    /// of them, is forgotten.
    pub fn set_home(&mut self, partition: Partition, home: Shard) {
        self.forget_partition(partition);
        if let Some(placed) = self.placed.as_deref_mut() {
            placed.placement.assign(partition, home);
        }
    }

    /// Takes over a partition that another shard gave up. Keys whose time is over here, where it was not there, are gone.
    pub fn give_partition(&mut self, partition: Partition, pairs: Vec<Pair>) {
        for Pair { key, value, attributes: Attributes { expires, flags } } in pairs {
            debug_assert!(self.placement().is_none_or(|it| it.partition(&key) == partition));
            if expires.is_some_and(|at| at <= self.now) {
                continue;
            }
            let table = self.store.table_for(&key);
            let value = self.store.pool.insert(&value);
            if self.writes_kept(table) {
                self.marks.written(&key, Some(flags));
                self.put_kept(table, &key, value, expires);
            } else {
                self.put_base(table, &key, value);
                self.marks.written(&key, Some(flags));
                if let Expiry::At(at) = expires.map_or(Expiry::Never, Expiry::At) {
                    self.expiries.set(&key, Some(at));
                }
            }
        }
    }

    /// Forgets everything computed or loaded that may have to do with the partition, as long as its home is still the old
    /// one.
    fn forget_partition(&mut self, partition: Partition) {
        let Some(Placed { placement, .. }) = self.placed.as_deref() else { return };
        let placement = placement.clone();
        let concerned = |range: &KeyRange| may_hold(&placement, range, partition);
        for join in self.catalog.ids() {
            let statuses: Vec<_> = self.catalog.join(join).cover.values().copied().collect();
            for id in statuses {
                let status = self.statuses.find(id);
                if status.is_some_and(|status| concerned(&status.range())) {
                    self.discard(id);
                }
            }
        }
        // Whoever has read own keys of the partition has to load them from now on.
        for id in self.updaters.reading_where(&concerned) {
            if self.statuses.find(id).is_some_and(|status| !status.is_invalid()) {
                let range = self.statuses.get(id).range();
                self.invalidate(id);
                self.tell_reset(&range);
            }
        }
        self.tell_resets_where(&concerned);
        for table in self.tables_elsewhere() {
            let Some(placed) = self.placed.as_deref() else { return };
            let Some(remote) = placed.tables.get(&table) else { continue };
            let mut gone = Vec::new();
            for (&home, part) in &remote.homes {
                let ranges = part.loaded.all().filter(|range| concerned(range));
                gone.extend(ranges.map(|range| (home, range)));
            }
            let homes: Vec<_> = remote.homes.keys().copied().collect();
            for (home, range) in gone {
                self.unload_from(home, table, &range);
            }
            for home in homes {
                self.doom(home, table, concerned);
            }
        }
    }
}
