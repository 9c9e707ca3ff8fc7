//! What is here of other shards' keys: for eviction, for reports and for tests.

use crate::base_data::BaseData;
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
    pub withdrawn: u64,
}

impl Engine {
    /// A range of a table's keys elsewhere in its turn: its first key, and how it is used.
    pub(crate) fn next_elsewhere(&mut self, table: TableId) -> Option<(LoadedId, Vec<u8>, Heat)> {
        let draw = self.memory.ranges.chance();
        let part = self.base.drawn_elsewhere(table, draw)?;
        let (first, heat) = self.base.loads.data_mut(part)?.ranges.next_in_turn()?;
        Some((part, first, heat))
    }

    /// What is here of other shards' keys.
    #[must_use]
    pub fn remote(&self) -> RemoteReport {
        let elsewhere = &self.base.loads.elsewhere;
        RemoteReport {
            replicas: elsewhere.replicas as u64,
            replica_bytes: elsewhere.replica_bytes as u64,
            loaded: elsewhere.iter().map(|(_, data)| data.ranges.len() as u64).sum(),
            loading: elsewhere.iter().map(|(_, data)| data.loading() as u64).sum(),
            withdrawn: self.base.loads.waits.useless() as u64,
        }
    }

    /// The homes of which something is here or on its way.
    #[must_use]
    pub fn homes_used(&self) -> Vec<Shard> {
        let parts = self.base.loads.elsewhere.iter();
        let used = parts.filter(|(_, data)| data.ranges.len() + data.loading() > 0);
        let mut homes: Vec<_> = used.map(|(home, _)| home).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    /// The ranges that are loaded from a home, table by table: for tests.
    #[must_use]
    pub fn loaded_of(&self, home: Shard) -> Vec<KeyRange> {
        let its = self.base.loads.elsewhere.iter().filter(|(of, _)| *of == home);
        its.flat_map(|(_, data)| data.ranges.all()).collect()
    }

    /// Calls `each` with every replica: for tests.
    pub fn replicas(&self, each: &mut dyn FnMut(&[u8], Vec<u8>)) {
        let Some(placed) = &self.base.placed else { return };
        let _ = self.store.scan(b"", b"", false, &mut |key, value| {
            if !placed.owns(key) {
                each(key, self.store.pool.view(self.store.pool.content(value)).to_vec());
            }
            ControlFlow::Continue(())
        });
    }

    /// Checks D1.
    pub(crate) fn check_replicas(&self) {
        let Some(placed) = &self.base.placed else { return };
        let (mut replicas, mut bytes) = (0, 0);
        let _ = self.store.scan(b"", b"", false, &mut |key, value| {
            let home = placed.placement.home(key);
            if home != placed.me {
                let table = self.store.table_of(key).expect("a stored key has a table");
                let data = self.base.loads.elsewhere.data(table, home).expect("D1");
                assert!(data.ranges.position_of(key).is_some(), "D1: {}", key.escape_ascii());
                replicas += 1;
                bytes += key.len() + self.store.pool.view(value).len();
            }
            ControlFlow::Continue(())
        });
        let elsewhere = &self.base.loads.elsewhere;
        assert_eq!((replicas, bytes), (elsewhere.replicas, elsewhere.replica_bytes), "D1");
        let by_table = elsewhere.tables().into_iter().map(|table| elsewhere.replicas_of(table));
        assert_eq!(replicas, by_table.sum::<usize>(), "D1");
    }
}

impl BaseData {
    /// The part that a number names, of those of a table's keys elsewhere of which something is here.
    fn drawn_elsewhere(&self, table: TableId, draw: u64) -> Option<LoadedId> {
        let parts = self.loads.elsewhere.parts_of(table);
        let has_some =
            |part: &LoadedId| self.loads.data(*part).is_some_and(|it| it.ranges.len() > 0);
        let parts: Vec<_> = parts.filter(has_some).collect();
        parts.get((draw % parts.len().max(1) as u64) as usize).copied()
    }

    /// Some range of a table's keys elsewhere, named by a number.
    pub(crate) fn any_elsewhere(&self, table: TableId, draw: u64) -> Option<(LoadedId, Vec<u8>)> {
        let part = self.drawn_elsewhere(table, draw)?;
        Some((part, self.loads.data(part)?.ranges.any(draw)?.to_vec()))
    }

    /// How many ranges of a table's keys elsewhere are loaded.
    pub(crate) fn loaded_elsewhere(&self, table: TableId) -> usize {
        let parts = self.loads.elsewhere.parts_of(table);
        parts.filter_map(|part| self.loads.data(part)).map(|data| data.ranges.len()).sum()
    }
}
