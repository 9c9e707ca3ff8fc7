//! What clients write: base keys, one by one and by ranges.

use crate::base::{Gone, NewValue, Origin, Put};
use crate::dead::Looks;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use crate::report::{EngineError, Expiry, Stop};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_pool::ValueRef;
use headwater_store::{Scan, TableId};

/// A random key is found by counting keys of its table, up to so many; that takes less than a millisecond.
const COUNTED_OFF_MAX: u64 = 20_000;
/// In larger tables it is one of so many neighbours, some of which may be another shard's.
const SAMPLED: usize = 64;

impl Engine {
    /// Gives `key` this value. What keeps the expiry keeps the key's flags too.
    ///
    /// # Errors
    /// The key is a join's output, or the key or the value is too long.
    #[inline]
    pub fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        let flags = if expiry == Expiry::Keep { None } else { Some(0) };
        self.set_with(key, value, expiry, flags)
    }

    /// As [`Engine::set`], with flags that are kept beside the value.
    ///
    /// # Errors
    /// As for [`Engine::set`].
    pub fn set_flagged(
        &mut self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
        flags: u32,
    ) -> Result<(), EngineError> {
        self.set_with(key, value, expiry, Some(flags))
    }

    #[inline]
    fn set_with(
        &mut self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
        flags: Option<u32>,
    ) -> Result<(), EngineError> {
        self.check_write(key, value.len())?;
        let table = self.store.table_for(key);
        let value = NewValue::Bytes(value);
        self.put(table, key, Put { value, expiry, flags, origin: Origin::Client });
        Ok(())
    }

    /// A value that several keys are to be given with [`Engine::set_shared`]; to be given back with
    /// [`Engine::release`].
    pub fn share(&mut self, value: &[u8]) -> ValueRef {
        self.store.pool.insert(value)
    }

    /// As [`Engine::set`], of a value that is stored once for all keys that share it.
    ///
    /// # Errors
    /// As for [`Engine::set`].
    pub fn set_shared(&mut self, key: &[u8], value: ValueRef) -> Result<(), EngineError> {
        self.check_write(key, self.store.pool.view(value).len())?;
        let table = self.store.table_for(key);
        self.store.pool.retain(value);
        let value = NewValue::Held(value);
        self.put(
            table,
            key,
            Put { value, expiry: Expiry::Never, flags: Some(0), origin: Origin::Client },
        );
        Ok(())
    }

    /// Puts `tail` behind the value of `key` (behind nothing, where there is none) and gives
    /// the new length. The expiry is kept.
    ///
    /// # Errors
    /// As for [`Engine::set`]; [`Stop::Wait`] where the old value must be loaded first.
    pub fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<usize, Stop> {
        self.check_write(key, tail.len())?;
        self.know(key)?;
        let mut table = self.store.table_for(key);
        let old = self.store.table(table).get(key).unwrap_or(ValueRef::EMPTY);
        let old = match Handle::of(old) {
            None => self.store.pool.content(old),
            Some(Handle::Stream(_)) => return Err(EngineError::WrongType.into()),
            Some(Handle::Spilled(number)) => {
                let old = self.bring_back(table, key, number)?;
                // Other keys may have gone to make room, or this one, and the table with them.
                table = self.store.table_for(key);
                old.unwrap_or(ValueRef::EMPTY)
            }
        };
        let length = self.store.pool.view(old).len() + tail.len();
        self.check_write(key, length)?;
        // The old value must outlive the exchange: readers of the table are told of it.
        self.store.pool.retain(old);
        let value = self.store.pool.append(old, tail, 0);
        self.put(table, key, Put::rewritten(NewValue::Held(value)));
        Ok(length)
    }

    /// Removes `key`; whether it was there.
    ///
    /// # Errors
    /// The key is a join's output; or the old value must be loaded first.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        self.check_owner(key)?;
        self.know(key)?;
        Ok(self.remove_known(key)?)
    }

    /// As [`Engine::remove`], of a key of which memory [knows](Engine::know) whether it is there, or knew until it was removed.
    ///
    /// # Errors
    /// The key is a join's output.
    pub fn remove_known(&mut self, key: &[u8]) -> Result<bool, EngineError> {
        self.remove_dead(key);
        self.check_owner(key)?;
        let Some(table) = self.store.table_of(key) else { return Ok(false) };
        Ok(self.take(table, key, Gone::Deleted))
    }

    /// Waits until memory knows all base keys of `[first, last)` that an embedded store keeps.
    ///
    /// # Errors
    /// [`Stop::Wait`] where some must be loaded first; or a table in the range is kept by a source.
    pub fn know_range(&mut self, first: &[u8], last: &[u8]) -> Result<(), Stop> {
        self.remove_dead_or_wait(Looks::Range(first, last)).map_err(|Missing| self.stop())?;
        let parts = self.store.parts(first, last);
        // Before anything is asked for: what is refused must leave nothing to wait for.
        parts.iter().try_for_each(|&(table, ..)| self.check_source(table))?;
        let mut missing = Ok(());
        for (table, from, to) in parts {
            if self.base.is_kept(table)
                && self.need(table, &KeyRange { first: from, last: to }).is_err()
            {
                missing = Err(Missing);
            }
        }
        missing.map_err(|Missing| self.stop())
    }

    /// Whether clients may write or expire `key`, whatever its value. Loads and changes nothing.
    ///
    /// # Errors
    /// The key is a join's output, is kept by a source, or is too long.
    pub fn check_writable(&self, key: &[u8]) -> Result<(), EngineError> {
        self.check_write(key, 0)
    }

    /// Refuses what clients may not write.
    #[inline]
    pub(crate) fn check_write(&self, key: &[u8], value_bytes: usize) -> Result<(), EngineError> {
        self.check_bytes(key, value_bytes)?;
        self.check_not_record(key)?;
        self.check_owner(key)
    }

    /// Refuses what is too long.
    #[inline]
    pub(crate) fn check_bytes(&self, key: &[u8], value_bytes: usize) -> Result<(), EngineError> {
        let limits = &self.settings.limits;
        if key.len() > limits.key_bytes_max {
            return Err(EngineError::KeyTooLong { length: key.len(), max: limits.key_bytes_max });
        }
        if value_bytes > limits.value_bytes_max {
            let max = limits.value_bytes_max;
            return Err(EngineError::ValueTooLong { length: value_bytes, max });
        }
        Ok(())
    }

    /// Refuses keys that a join or a source maintains.
    #[inline]
    pub(crate) fn check_owner(&self, key: &[u8]) -> Result<(), EngineError> {
        if self.views.catalog.prepared.is_some() {
            self.views.check_prepared(key)?;
        }
        let Some(table) = self.store.table_of(key) else { return Ok(()) };
        if self.views.catalog.role(table).is_none() {
            return Ok(());
        }
        if let Some(id) = self.views.catalog.writer_of(table, key) {
            return Err(EngineError::Joined { join: self.views.catalog.join(id).name.clone() });
        }
        self.views.check_busy(table, key)?;
        self.check_source(table)
    }

    fn check_source(&self, table: TableId) -> Result<(), EngineError> {
        match self.base.loads.own(table) {
            None => Ok(()),
            Some(data) if data.is_kept() => Ok(()),
            Some(data) => {
                let prefix = self.store.table(table).prefix();
                let name = String::from_utf8_lossy(prefix.strip_suffix(b"|").unwrap_or(prefix));
                Err(EngineError::Refused(alloc::format!(
                    "table '{name}' is kept by source '{}': write there",
                    data.source()
                )))
            }
        }
    }

    /// Keys stored or materialized now.
    #[must_use]
    pub fn key_count(&self) -> u64 {
        let keys: u64 = self.store.tables().map(|(_, table)| table.sizes().keys as u64).sum();
        keys - self.base.replica_count() as u64
    }

    /// Some stored key, chosen by the random number `draw`; `None` where there is none. Each key of a small table is as likely as
    /// any other.
    #[must_use]
    pub fn random_key(&self, draw: u64) -> Option<Vec<u8>> {
        let count = self.key_count();
        let mut left = if count == 0 { return None } else { draw % count };
        for (id, table) in self.store.tables() {
            let keys = self.own_keys(id) as u64;
            if left >= keys {
                left -= keys;
                continue;
            }
            let mut found = None;
            let sifted = self.base.has_replicas(id);
            if keys > COUNTED_OFF_MAX {
                table.sample(draw / count, SAMPLED, &mut |key, _, _| {
                    if found.is_none() && (!sifted || self.owns(key)) {
                        found = Some(key.to_vec());
                    }
                });
                if found.is_some() {
                    return found;
                }
            }
            let (pool, first) = (&self.store.pool, self.store.table(id).prefix());
            let scan = Scan { pool, first, last: b"", reverse: false };
            let _ = table.scan(&scan, &mut Vec::new(), &mut |key, _| {
                if sifted && !self.owns(key) {
                    return ControlFlow::Continue(());
                }
                if left == 0 {
                    found = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                left -= 1;
                ControlFlow::Continue(())
            });
            return found;
        }
        None
    }

    /// Calls `each` with about `count` stored or materialized keys that follow `cursor` (empty:
    /// from the start) and gives the cursor to continue from (empty: that was all). Keys of other shards, and dead ones, count
    /// and are not given. Keys that stay throughout a scan are given exactly once. Computes nothing.
    pub fn scan(&self, cursor: &[u8], count: usize, each: &mut dyn FnMut(&[u8])) -> Vec<u8> {
        let mut next = Vec::new();
        let mut left = count.max(1);
        let sifted = self.base.replica_count() > 0;
        let _ = self.store.scan(cursor, b"", false, &mut |key, _| {
            if left == 0 {
                next = key.to_vec();
                return ControlFlow::Break(());
            }
            left -= 1;
            if (!sifted || self.owns(key)) && !self.is_dead(key) {
                each(key);
            }
            ControlFlow::Continue(())
        });
        next
    }
}
