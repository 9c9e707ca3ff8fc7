//! What is here of other shards' keys: for eviction, for reports and for tests.

use crate::engine::Engine;
use crate::loads::LoadedId;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::placement::Shard;
use headwater_policy::Heat;
use headwater_store::TableId;

/// What a shard holds of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteReport {
    /// Keys of other homes that are stored here.
    pub replicas: u64,
    /// Bytes of their keys and values.
    pub replica_bytes: u64,
    /// Ranges that are loaded from other homes, and followed there.
    pub loaded: u64,
    /// Ranges that are being loaded.
    pub loading: u64,
    /// Ranges that are being loaded, of which nothing will be kept.
    pub doomed: u64,
}

impl Engine {
    /// A range of a table's keys elsewhere in its turn: its first key, and how it is used.
    pub(crate) fn next_elsewhere(&mut self, table: TableId) -> Option<(LoadedId, Vec<u8>, Heat)> {
        let remote = self.placed.as_deref_mut()?.tables.get_mut(&table)?;
        let draw = self.memory.ranges.chance() as usize % remote.homes.len().max(1);
        let homes = remote.homes.iter_mut();
        let mut parts: Vec<_> = homes.filter(|(_, data)| data.ranges.len() > 0).collect();
        let at = draw % parts.len().max(1);
        let (home, data) = parts.get_mut(at)?;
        let (first, heat) = data.ranges.next_in_turn()?;
        Some((LoadedId { table, home: Some(**home) }, first, heat))
    }

    /// Some range of a table's keys elsewhere, named by a number.
    pub(crate) fn any_elsewhere(&self, table: TableId, draw: u64) -> Option<(LoadedId, Vec<u8>)> {
        let remote = self.placed.as_ref()?.tables.get(&table)?;
        let parts: Vec<_> = remote.homes.iter().filter(|(_, data)| data.ranges.len() > 0).collect();
        let count = parts.len().max(1) as u64;
        let (home, data) = parts.get((draw % count) as usize)?;
        Some((LoadedId { table, home: Some(**home) }, data.ranges.any(draw / count)?.to_vec()))
    }

    /// How many ranges of a table's keys elsewhere are loaded.
    pub(crate) fn loaded_elsewhere(&self, table: TableId) -> usize {
        let remote = self.placed.as_ref().and_then(|placed| placed.tables.get(&table));
        remote.map_or(0, |remote| remote.homes.values().map(|data| data.ranges.len()).sum())
    }

    /// What is here of other shards' keys.
    #[must_use]
    pub fn remote(&self) -> RemoteReport {
        let Some(placed) = &self.placed else { return RemoteReport::default() };
        let parts = || placed.tables.values().flat_map(|remote| remote.homes.values());
        RemoteReport {
            replicas: placed.replicas as u64,
            replica_bytes: placed.replica_bytes as u64,
            loaded: parts().map(|data| data.ranges.len() as u64).sum(),
            loading: parts().map(|data| data.loading() as u64).sum(),
            doomed: self.waits.useless() as u64,
        }
    }

    /// The homes of which something is here or on its way.
    #[must_use]
    pub fn homes_used(&self) -> Vec<Shard> {
        let Some(placed) = &self.placed else { return Vec::new() };
        let parts = placed.tables.values().flat_map(|remote| &remote.homes);
        let used = parts.filter(|(_, data)| data.ranges.len() + data.loading() > 0);
        let mut homes: Vec<_> = used.map(|(&home, _)| home).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    /// The ranges that are loaded from a home, table by table: for tests.
    #[must_use]
    pub fn loaded_of(&self, home: Shard) -> Vec<KeyRange> {
        let Some(placed) = &self.placed else { return Vec::new() };
        let parts = placed.tables.values().filter_map(|remote| remote.homes.get(&home));
        parts.flat_map(|data| data.ranges.all()).collect()
    }

    /// Calls `each` with every replica: for tests.
    pub fn replicas(&self, each: &mut dyn FnMut(&[u8], Vec<u8>)) {
        let Some(placed) = &self.placed else { return };
        let _ = self.store.scan(b"", b"", false, &mut |key, value| {
            if !placed.owns(key) {
                each(key, self.store.pool.view(self.store.pool.content(value)).to_vec());
            }
            ControlFlow::Continue(())
        });
    }

    /// Checks D1.
    pub(crate) fn check_replicas(&self) {
        let Some(placed) = &self.placed else { return };
        let (mut replicas, mut bytes) = (0, 0);
        let _ = self.store.scan(b"", b"", false, &mut |key, value| {
            let home = placed.placement.home(key);
            if home != placed.me {
                let table = self.store.table_of(key).expect("a stored key has a table");
                let data = placed.data(table, home).expect("D1");
                assert!(data.ranges.position_of(key).is_some(), "D1: {}", key.escape_ascii());
                replicas += 1;
                bytes += key.len() + self.store.pool.view(value).len();
            }
            ControlFlow::Continue(())
        });
        assert_eq!((replicas, bytes), (placed.replicas, placed.replica_bytes), "D1");
        let by_table: usize = placed.tables.values().map(|remote| remote.replicas).sum();
        assert_eq!(replicas, by_table, "D1");
    }
}
