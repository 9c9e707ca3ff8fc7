//! Replicas: what is stored here of keys that have their home elsewhere.

use crate::base::Put;
use crate::base_data::BaseData;
use crate::cells;
use crate::engine::Engine;
use crate::loads::{LoadedData, LoadedId, Provider};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::placement::Shard;
use headwater_base::source::Change;
use headwater_store::TableId;

/// What is here of other shards' keys.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// Tables that joins read, and so pinned ones.
    tables: BTreeMap<TableId, Remote>,
    /// Replicas in all tables.
    pub(super) replicas: usize,
    /// Bytes of their keys and values.
    pub(super) replica_bytes: usize,
}

/// What is here of a table's keys elsewhere.
#[derive(Debug, Default)]
struct Remote {
    replicas: usize,
    homes: BTreeMap<Shard, LoadedData>,
}

impl Elsewhere {
    /// What is here of a table's keys at `home`.
    pub(crate) fn data(&self, table: TableId, home: Shard) -> Option<&LoadedData> {
        self.tables.get(&table)?.homes.get(&home)
    }

    #[inline]
    pub(crate) fn data_mut(&mut self, table: TableId, home: Shard) -> Option<&mut LoadedData> {
        self.tables.get_mut(&table)?.homes.get_mut(&home)
    }

    /// Keys of a table at `home` are asked for.
    pub(crate) fn add(&mut self, table: TableId, home: Shard) {
        let homes = &mut self.tables.entry(table).or_default().homes;
        homes.entry(home).or_insert_with(|| LoadedData::new(Provider::Home(home)));
    }

    /// The homes of which keys of a table were asked for.
    pub(crate) fn parts_of(&self, table: TableId) -> impl Iterator<Item = LoadedId> {
        let homes = self.tables.get(&table).into_iter().flat_map(|remote| remote.homes.keys());
        homes.map(move |&home| LoadedId { table, home: Some(home) })
    }

    /// All that was asked for.
    pub(crate) fn parts(&self) -> impl Iterator<Item = LoadedId> {
        self.tables.keys().flat_map(|&table| self.parts_of(table))
    }

    /// What is here of each, with its home.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Shard, &LoadedData)> {
        let homes = self.tables.values().flat_map(|remote| &remote.homes);
        homes.map(|(&home, data)| (home, data))
    }

    /// Tables of which keys were asked for.
    pub(crate) fn tables(&self) -> Vec<TableId> {
        self.tables.keys().copied().collect()
    }

    /// Replicas of a table.
    pub(super) fn replicas_of(&self, table: TableId) -> usize {
        self.tables.get(&table).map_or(0, |remote| remote.replicas)
    }

    /// After all keys have gone: there are no replicas. Gives what else is to be forgotten.
    pub(crate) fn forget_all(&mut self) -> impl Iterator<Item = &mut LoadedData> {
        (self.replicas, self.replica_bytes) = (0, 0);
        self.tables.values_mut().flat_map(|remote| {
            remote.replicas = 0;
            remote.homes.values_mut()
        })
    }

    /// Counts a replica that is stored, in the place of one with a value of `old` bytes perhaps.
    fn count(&mut self, table: TableId, key: &[u8], value: &[u8], old: Option<usize>) {
        self.replica_bytes += value.len();
        if let Some(old) = old {
            self.replica_bytes -= old;
            return;
        }
        self.replica_bytes += key.len();
        self.replicas += 1;
        self.tables.get_mut(&table).expect("D1").replicas += 1;
    }

    /// Counts a replica with so many bytes of key and value out.
    fn discount(&mut self, table: TableId, bytes: usize) {
        self.replicas -= 1;
        self.replica_bytes -= bytes;
        self.tables.get_mut(&table).expect("D1").replicas -= 1;
    }
}

impl Engine {
    /// Keys of a table that are no replicas.
    pub(crate) fn own_keys(&self, table: TableId) -> usize {
        self.store.table(table).sizes().keys - self.base.loads.elsewhere.replicas_of(table)
    }

    /// Changes at `home`, in its order and all at once. Those outside of what was loaded from there are ignored.
    pub fn changed_at(&mut self, home: Shard, changes: &[Change]) {
        if !changes.is_empty() {
            self.mix_suspended(home);
        }
        for Change { key, value } in changes {
            let Some(table) = self.store.table_of(key) else { continue };
            let part = LoadedId { table, home: Some(home) };
            if self.base.loads.data(part).is_none_or(|data| data.ranges.position_of(key).is_none())
            {
                continue;
            }
            match value {
                Some(value) => self.put_replica(home, table, key, value),
                None => self.remove_replica(home, table, key),
            }
        }
    }

    /// What was loaded of `range` from `home` is not to be believed any more, and not followed there: it is forgotten, and
    /// loaded again when it is wanted.
    pub fn reset_at(&mut self, home: Shard, range: &KeyRange) {
        for table in self.base.loads.elsewhere.tables() {
            let within = KeyRange::prefix(self.store.table(table).prefix()).intersection(range);
            if !within.is_empty() {
                self.forget_part(LoadedId { table, home: Some(home) }, &within);
            }
        }
        if *range == KeyRange::all() {
            self.end_suspension(home);
        }
    }

    /// Stores a key of another home.
    pub(crate) fn put_replica(&mut self, home: Shard, table: TableId, key: &[u8], value: &[u8]) {
        if !self.base.is_home_of(home, key) {
            return;
        }
        let old = self.store.table(table).get(key).map(|old| self.store.pool.view(old).len());
        self.base.loads.elsewhere.count(table, key, value, old);
        let value = self.store.pool.insert(value);
        self.put(table, key, Put::loaded(value, None, 0));
    }

    fn remove_replica(&mut self, home: Shard, table: TableId, key: &[u8]) {
        if !self.base.is_home_of(home, key) {
            return;
        }
        // It is no client's key (D4): only joins are told.
        let Some(old) = self.store.remove(table, key) else { return };
        let bytes = key.len() + self.store.pool.view(old).len();
        if self.views.has_readers(table) {
            let was = self.store.pool.content(old);
            self.notify(table, key, cells::Change::new(Some(was), None));
        }
        self.store.pool.release(old);
        self.base.loads.elsewhere.discount(table, bytes);
    }

    /// Removes the replicas of a range, of which nobody is told.
    pub(crate) fn drop_replicas(&mut self, home: Shard, table: TableId, range: &KeyRange) {
        let mut keys = Vec::new();
        self.scan_table(table, range, &mut |key, _| keys.push(key.to_vec()));
        keys.retain(|key| self.base.is_home_of(home, key));
        for key in keys {
            if let Some(value) = self.store.remove(table, &key) {
                let bytes = key.len() + self.store.pool.view(value).len();
                self.store.pool.release(value);
                self.base.loads.elsewhere.discount(table, bytes);
            }
        }
    }

    /// Forgets what is here of a table's keys elsewhere. Loads under way will be of no use.
    pub(crate) fn forget_elsewhere(&mut self, table: TableId) {
        let parts: Vec<_> = self.base.loads.elsewhere.parts_of(table).collect();
        for part in parts {
            self.unload(part, &KeyRange::all());
            self.base.spoil_loads(part, |_| true);
        }
        self.base.loads.elsewhere.tables.remove(&table);
    }

    /// Forgets what is here of the keys elsewhere of tables that no join reads.
    pub(crate) fn forget_unread(&mut self) {
        for table in self.base.loads.elsewhere.tables() {
            if !self.views.has_readers(table) {
                self.forget_elsewhere(table);
            }
        }
    }
}

impl BaseData {
    /// Whether keys of `table` are stored that this shard is not the home of.
    #[inline]
    pub(crate) fn has_replicas(&self, table: TableId) -> bool {
        self.placed.is_some() && self.loads.elsewhere.replicas_of(table) > 0
    }

    /// Replicas in all tables.
    pub(crate) fn replica_count(&self) -> usize {
        self.loads.elsewhere.replicas
    }

    fn is_home_of(&self, home: Shard, key: &[u8]) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.placement.home(key) == home)
    }
}
