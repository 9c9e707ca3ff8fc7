//! Long plain values that are not in memory.
//!
//! A value that the policy would evict goes to the spill instead, if it is long. Its key stays, and
//! holds a handle. The first read gives the bytes from the buffer; one that is read again comes back into
//! memory, so that reading everything once moves nothing. Whether a spilled value is still there is
//! found out when it is read: a lost one is a key that was evicted.
//!
//! # Invariants
//! - W1. A record is in the slab while exactly one key holds its handle.
//! - W2. Only tables that no join reads or writes and no source keeps hold such handles: joins see
//!   values, and what they read must not be lost. A join that comes has them brought back first.
//!
//! # Cost
//! Memory: 16 bytes for each, beside its key. A read: one of the port, and a copy.

use super::{Spilled, Spilling};
use crate::base::Gone;
use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::handles::Handle;
use crate::report::EngineError;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::Join;
use headwater_policy::Order;
use headwater_pool::{Value, ValueRef};
use headwater_store::{Slab, TableId};

/// A value may be spilled if it takes at most this part of the memory limit: reading it wants as much.
const LIMIT_SHARE: usize = 64;

/// One value.
#[derive(Clone, Copy, Debug)]
struct Record {
    id: u64,
    len: u32,
    /// It was read since it is on disk.
    was_read: bool,
}

/// The values by the numbers of their handles.
#[derive(Debug, Default)]
pub(crate) struct SpilledValues {
    records: Slab<Record>,
    /// The shortest value that goes to disk, in bytes.
    pub(super) value_bytes_min: usize,
}

impl SpilledValues {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Bytes that their records take.
    pub(crate) fn bytes(&self) -> usize {
        self.records.bytes()
    }

    fn insert(&mut self, spilled: Spilled) -> u32 {
        let record = Record { id: spilled.id, len: spilled.len as u32, was_read: false };
        self.records.insert(record)
    }

    /// What the port knows it by.
    pub(crate) fn get(&self, number: u32) -> Spilled {
        let record = &self.records[number];
        Spilled { id: record.id, len: record.len as usize }
    }

    /// Notes a read; whether there was one before.
    fn note_read(&mut self, number: u32) -> bool {
        core::mem::replace(&mut self.records[number].was_read, true)
    }

    fn remove(&mut self, number: u32) -> Spilled {
        let record = self.records.remove(number).expect("W1: a handle's record is there");
        Spilled { id: record.id, len: record.len as usize }
    }

    fn clear(&mut self) {
        *self = Self { value_bytes_min: self.value_bytes_min, ..Self::default() };
    }
}

impl Spilling {
    /// Brings a value back into the buffer; `false` where it is lost.
    pub(crate) fn fetch_value(&mut self, spilled: &Spilled) -> bool {
        let found = self.fetch(spilled);
        if found != Some(false) {
            self.values.note_get(found.is_some());
        }
        found.is_some()
    }
}

impl Engine {
    /// Whether the values of a table may be spilled (W2).
    pub(crate) fn may_spill(&self, table: TableId) -> bool {
        let role = self.views.catalog.role(table);
        role.is_none_or(|role| role.writers.is_empty() && role.readers.is_empty())
            && self.base.loads.own(table).is_none()
    }

    /// Puts a key's value aside, if it is one of those that go; whether it was done.
    pub(crate) fn spill_value(&mut self, table: TableId, key: &[u8], value: ValueRef) -> bool {
        let most = self.memory.memory_limit().map_or(usize::MAX, |limit| limit / LIMIT_SHARE);
        if !self.base.spilling.is_there()
            || value.is_handle()
            || value.is_cell()
            || !(self.base.spilled.value_bytes_min..=most).contains(&value.len())
            || !self.may_spill(table)
            // What expires first goes, and would be the next to go again.
            || self.eviction_policy().order == Some(Order::Expiry)
        {
            return false;
        }
        let put = self.base.spilling.put(&self.store.pool, value);
        self.base.spilling.values.note_put(put.is_some());
        let Some(spilled) = put else { return false };
        let handle = Handle::Spilled(self.base.spilled.insert(spilled)).word();
        self.store.insert(table, key, handle);
        self.store.pool.release(value);
        true
    }

    /// Puts some value aside that the policy lets go, whatever its worth; `false` where there is
    /// none. For tests: it looks at all.
    pub(crate) fn spill_any(&mut self, draw: u64) -> bool {
        let policy = self.eviction_policy();
        if !self.base.spilling.is_there() || policy.order.is_none() {
            return false;
        }
        let mut found: Vec<(TableId, Vec<u8>, ValueRef)> = Vec::new();
        let mut tables: Vec<TableId> = self.store.tables().map(|(table, _)| table).collect();
        tables.retain(|&table| self.is_evictable(table));
        for table in tables {
            let all = KeyRange::prefix(self.store.table(table).prefix());
            self.scan_table(table, &all, &mut |key, value| found.push((table, key.into(), value)));
        }
        let start = draw as usize % found.len().max(1);
        let mut from_start = found[start..].iter().chain(&found[..start]);
        from_start.any(|(table, key, value)| {
            let may_go = !policy.volatile || self.base.expiries.get(key).is_some();
            may_go && self.spill_value(*table, key, *value)
        })
    }

    /// The bytes that `key` of `table` holds as the spilled value of this number: from the buffer, or,
    /// where they were read before and there is room, from memory from now on. `None` where they
    /// are lost: so is the key then.
    #[cold]
    pub(crate) fn read_spilled(
        &mut self,
        table: TableId,
        key: &[u8],
        number: u32,
    ) -> Option<Value<'_>> {
        if !self.fetch_spilled(table, key, number) {
            return None;
        }
        if self.base.spilled.note_read(number)
            && let Some(value) = self.take_back(key, number)
        {
            return Some(self.store.pool.view(value));
        }
        Some(Value::of(self.base.spilling.fetched()))
    }

    /// Brings a key's value into the buffer; `false` where it is lost, and the key with it.
    pub(crate) fn fetch_spilled(&mut self, table: TableId, key: &[u8], number: u32) -> bool {
        let spilled = self.base.spilled.get(number);
        // A value that is read is twice in memory where it stays there: in the buffer, and among the others.
        self.memory.announce(2 * spilled.len);
        let there = self.base.spilling.fetch_value(&spilled);
        if !there {
            self.lose_key(table, key);
        }
        there
    }

    /// Removes a key whose value is lost: whoever watches it is told.
    pub(crate) fn lose_key(&mut self, table: TableId, key: &[u8]) {
        self.take(table, key, Gone::Evicted);
    }

    /// Gives a key the value that was fetched for it, where there is room in memory.
    fn take_back(&mut self, key: &[u8], number: u32) -> Option<ValueRef> {
        let handle = Handle::Spilled(number).word();
        let has_room = self.make_room_for(0, self.base.spilling.fetched().len());
        // The key itself may have gone to make room, and the table with it.
        let table = self.store.table_of(key)?;
        if !has_room || self.store.table(table).get(key) != Some(handle) {
            return None;
        }
        let value = self.store.pool.insert(self.base.spilling.fetched());
        self.store.insert(table, key, value);
        self.base.drop_spilled(number);
        Some(value)
    }

    /// Brings a key's spilled value back into memory, because it is about to change; `None` where it
    /// is lost, and the key with it.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn bring_back(
        &mut self,
        table: TableId,
        key: &[u8],
        number: u32,
    ) -> Result<Option<ValueRef>, EngineError> {
        if !self.fetch_spilled(table, key, number) {
            return Ok(None);
        }
        self.take_back(key, number).map(Some).ok_or(EngineError::OutOfMemory)
    }

    /// Brings back the spilled values of the tables that a join is about.
    ///
    /// # Errors
    /// There is no room for them.
    pub(crate) fn unspill_for(&mut self, join: &Join) -> Result<(), EngineError> {
        for pattern in join.sources.iter().map(|source| &source.pattern).chain([&join.output]) {
            if let Some(table) = self.store.table_of(&pattern.range_of_all().first) {
                self.unspill_table(table)?;
            }
        }
        Ok(())
    }

    /// Brings back the spilled values of a table that a join is going to read (W2). Those that
    /// are lost are keys that were evicted.
    ///
    /// # Errors
    /// There is no room for them.
    fn unspill_table(&mut self, table: TableId) -> Result<(), EngineError> {
        if self.base.spilled.len() == 0 {
            return Ok(());
        }
        let mut found: Vec<(Vec<u8>, u32)> = Vec::new();
        let all = KeyRange::prefix(self.store.table(table).prefix());
        self.scan_table(table, &all, &mut |key, value| {
            found.extend(Handle::spilled(value).map(|number| (key.to_vec(), number)));
        });
        self.memory.staying = Some(table);
        let mut fits = true;
        for (key, number) in found {
            fits =
                !self.fetch_spilled(table, &key, number) || self.take_back(&key, number).is_some();
            if !fits {
                break;
            }
        }
        self.memory.staying = None;
        if fits { Ok(()) } else { Err(EngineError::OutOfMemory) }
    }
}

impl BaseData {
    /// Forgets a spilled value that no key holds any more.
    pub(crate) fn drop_spilled(&mut self, number: u32) {
        let spilled = self.spilled.remove(number);
        self.spilling.remove(spilled.id);
    }

    /// Forgets all that is spilled.
    pub(crate) fn drop_all_spilled(&mut self) {
        for record in self.spilled.records.iter() {
            self.spilling.remove(record.id);
        }
        self.spilled.clear();
        self.spilling.clear();
    }
}
