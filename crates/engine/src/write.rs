//! Writes of base keys, and their expiry.

use crate::cells::Change;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use crate::noted::NotedChange;
use crate::report::{EngineError, Expiry, Stop};
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use hashbrown::HashMap;
use headwater_base::hash::{KeyHashBuilder, Secret};
use headwater_base::{KeyRange, Millis};
use headwater_pool::ValueRef;
use headwater_store::{Scan, TableId};

/// How often memory that values left goes back to the system, in milliseconds, and how much at
/// once: a few milliseconds' work at most.
const TRIM_EVERY: u64 = 1000;
const TRIM_BYTES: usize = 64 << 20;

/// When keys expire: by key, and in the order of their moments.
#[derive(Debug)]
pub(crate) struct Expiries {
    by_key: HashMap<Rc<[u8]>, Millis, KeyHashBuilder>,
    order: BTreeSet<(Millis, Rc<[u8]>)>,
}

impl Expiries {
    pub(crate) fn new(secret: Secret) -> Self {
        Self { by_key: HashMap::with_hasher(KeyHashBuilder::new(secret)), order: BTreeSet::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Millis> {
        if self.by_key.is_empty() { None } else { self.by_key.get(key).copied() }
    }

    pub(crate) fn set(&mut self, key: &[u8], at: Option<Millis>) {
        if !self.by_key.is_empty()
            && let Some((key, old)) = self.by_key.remove_entry(key)
        {
            self.order.remove(&(old, key));
        }
        if let Some(at) = at {
            let key: Rc<[u8]> = key.into();
            self.by_key.insert(key.clone(), at);
            self.order.insert((at, key));
        }
    }

    /// The keys that expire, the first one first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &[u8]> {
        self.order.iter().map(|(_, key)| &**key)
    }

    /// The next key whose time has come.
    fn due(&self, now: Millis) -> Option<Rc<[u8]>> {
        self.order.first().filter(|(at, _)| *at <= now).map(|(_, key)| key.clone())
    }

    /// The first moment at which a key expires.
    pub(crate) fn next(&self) -> Option<Millis> {
        self.order.first().map(|(at, _)| *at)
    }

    pub(crate) fn bytes(&self) -> usize {
        // A map slot, a share of a tree node, and the text with its counts.
        self.by_key.capacity() * 25 + self.order.len() * (40 + 32)
    }
}

impl Engine {
    /// Moves time to `now`: keys whose time has come are removed, in every view.
    /// Time that goes backwards is ignored.
    pub fn advance(&mut self, now: Millis) {
        if now <= self.now {
            return;
        }
        if now.0 / TRIM_EVERY > self.now.0 / TRIM_EVERY {
            self.store.pool.trim(TRIM_BYTES);
        }
        self.now = now;
        while let Some(key) = self.expiries.due(now) {
            self.expiries.set(&key, None);
            self.counters.expired += 1;
            if let Some(table) = self.store.table_of(&key) {
                self.erase(table, &key, NotedChange::Expire);
            }
        }
        while let Some(&(at, id)) = self.snapshots.first()
            && at <= now
        {
            self.discard(id);
        }
    }

    /// The next moment at which [`Engine::advance`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        let snapshot = self.snapshots.first().map(|&(at, _)| at);
        self.expiries.next().into_iter().chain(snapshot).min()
    }

    /// Gives `key` this value. What keeps the expiry keeps the key's flags too.
    ///
    /// # Errors
    /// The key is a join's output, or the key or the value is too long.
    pub fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        self.set_with(key, value, expiry, if expiry == Expiry::Keep { None } else { Some(0) })
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
        self.note_value(table, key, value);
        self.store.pool.retain(value);
        if self.writes_kept(table) {
            self.put_kept(table, key, value, None);
        } else {
            self.put_base(table, key, value);
            if self.expiries.len() > 0 {
                self.expiries.set(key, None);
            }
        }
        self.marks.written(key, Some(0));
        Ok(())
    }

    /// Gives `key` this value, and these flags or those that it has.
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
        if self.writes_kept(table) {
            self.marks.written(key, flags);
            self.set_kept(table, key, value, expiry);
            return Ok(());
        }
        self.note_set(table, key, value);
        // Where no join reads the table, nobody asks for the old value.
        if self.has_readers(table) || !self.replace(table, key, value) {
            let value = self.store.pool.insert(value);
            self.put_base(table, key, value);
        }
        self.marks.written(key, flags);
        match expiry {
            Expiry::Keep => {}
            Expiry::Never if self.expiries.len() == 0 => {}
            Expiry::Never => self.expiries.set(key, None),
            Expiry::At(at) if at <= self.now => {
                self.expiries.set(key, None);
                self.erase(table, key, NotedChange::Delete);
            }
            Expiry::At(at) => self.expiries.set(key, Some(at)),
        }
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
        self.note_value(table, key, value);
        if self.writes_kept(table) {
            let expires = self.expiries.get(key);
            self.put_kept(table, key, value, expires);
        } else {
            self.put_base(table, key, value);
        }
        self.marks.written(key, None);
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
        self.check_owner(key)?;
        let Some(table) = self.store.table_of(key) else { return Ok(false) };
        if self.expiries.len() > 0 {
            self.expiries.set(key, None);
        }
        Ok(self.erase(table, key, NotedChange::Delete))
    }

    /// Removes a base key, from the embedded store as well where it is kept there.
    fn erase(&mut self, table: TableId, key: &[u8], change: NotedChange) -> bool {
        let there = self.remove_base(table, key);
        if there {
            self.note_gone(table, key, change);
        }
        if there && self.is_kept(table) {
            self.erase_kept(table, key);
        }
        there
    }

    /// [`Engine::set`] for a kept table.
    fn set_kept(&mut self, table: TableId, key: &[u8], value: &[u8], expiry: Expiry) {
        let expires = match expiry {
            Expiry::Keep => self.expiries.get(key),
            Expiry::Never => None,
            Expiry::At(at) => Some(at),
        };
        self.note_set(table, key, value);
        let value = self.store.pool.insert(value);
        self.put_kept(table, key, value, expires);
        if expires.is_some_and(|at| at <= self.now) {
            self.expiries.set(key, None);
            self.erase(table, key, NotedChange::Delete);
        }
    }

    /// Sets or clears the expiry of `key`; whether the key is there.
    /// A moment that has passed removes the key.
    ///
    /// # Errors
    /// The key is a join's output.
    pub fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        self.check_owner(key)?;
        self.know(key)?;
        let Some(table) = self.store.table_of(key) else { return Ok(false) };
        let Some(value) = self.store.table(table).get(key) else { return Ok(false) };
        let passed = at.is_some_and(|at| at <= self.now);
        self.expiries.set(key, at.filter(|_| !passed));
        if passed {
            self.erase(table, key, NotedChange::Delete);
        } else {
            self.watches.note(key);
            if self.is_kept(table) {
                self.tell_kept(table, key, value, at);
            }
        }
        Ok(true)
    }

    /// When `key` expires: `None` if there is no such key, `Some(None)` if it never does.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        let there = self.find(key)?.is_some();
        Ok(there.then(|| self.expiries.get(key)))
    }

    /// Waits until memory knows all base keys of `[first, last)` that an embedded store keeps.
    ///
    /// # Errors
    /// [`Stop::Wait`] where some must be loaded first; or a table in the range is kept by a source.
    pub fn know_range(&mut self, first: &[u8], last: &[u8]) -> Result<(), Stop> {
        let mut missing = Ok(());
        for (table, from, to) in self.store.parts(first, last) {
            self.check_source(table)?;
            if self.is_kept(table) && self.need(table, &KeyRange { first: from, last: to }).is_err()
            {
                missing = Err(Missing);
            }
        }
        missing.map_err(|Missing| self.stop())
    }

    /// Removes the base keys of `[first, last)` (an empty `last`: to the end) and gives their
    /// number. Join outputs in the range stay, as long as their sources do.
    ///
    /// # Errors
    /// A table in the range is kept by a source.
    pub fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        if !last.is_empty() && first >= last {
            return Ok(0);
        }
        self.know_range(first, last)?;
        let mut removed = 0;
        for (table, from, to) in self.store.parts(first, last) {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            let catalog = core::mem::take(&mut self.catalog);
            self.scan_table(table, &KeyRange { first: from, last: to }, &mut |key, _| {
                if !catalog.gives(table, key) {
                    keys.push(key.to_vec());
                }
            });
            self.catalog = catalog;
            keys.retain(|key| self.owns(key));
            for key in keys {
                if self.expiries.len() > 0 {
                    self.expiries.set(&key, None);
                }
                removed += u64::from(self.erase(table, &key, NotedChange::Delete));
            }
        }
        Ok(removed)
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
        if key.is_empty() {
            return Err(EngineError::KeyEmpty);
        }
        Ok(())
    }

    /// Refuses keys that a join or a source maintains.
    #[inline]
    pub(crate) fn check_owner(&self, key: &[u8]) -> Result<(), EngineError> {
        if self.catalog.prepared.is_some() {
            self.check_prepared(key)?;
        }
        let Some(table) = self.store.table_of(key) else { return Ok(()) };
        if self.catalog.role(table).is_none() {
            return Ok(());
        }
        if let Some(id) = self.catalog.writer_of(table, key) {
            return Err(EngineError::Joined { join: self.catalog.join(id).name.clone() });
        }
        self.check_busy(table, key)?;
        self.check_source(table)
    }

    fn check_source(&self, table: TableId) -> Result<(), EngineError> {
        match self.catalog.role(table).and_then(|role| role.sourced.as_ref()) {
            None => Ok(()),
            Some(sourced) if sourced.kept => Ok(()),
            Some(sourced) => {
                let prefix = self.store.table(table).prefix();
                let name = String::from_utf8_lossy(prefix.strip_suffix(b"|").unwrap_or(prefix));
                Err(EngineError::Refused(alloc::format!(
                    "table '{name}' is kept by source '{}': write there",
                    sourced.name
                )))
            }
        }
    }

    /// Gives a base key that has a value another one, in the old one's place if possible; whether
    /// it was done. No reader is told.
    #[inline]
    fn replace(&mut self, id: TableId, key: &[u8], bytes: &[u8]) -> bool {
        let (table, pool) = self.store.table_mut(id);
        let is_followed = table.is_marked();
        let replaced = table.replace(pool, key, bytes, |heat| self.memory.used(heat));
        if replaced {
            self.watches.note(key);
            if is_followed && let Some(value) = self.store.table(id).get(key) {
                self.tell_set(key, value);
            }
        }
        replaced
    }

    /// Gives a base key its value, of which one reference is taken over, and tells its readers.
    pub(crate) fn put_base(&mut self, table: TableId, key: &[u8], value: ValueRef) {
        self.watches.note(key);
        self.place_base(table, key, value);
    }

    /// As [`Engine::put_base`], of a value that the key has had: it comes back into memory.
    pub(crate) fn place_base(&mut self, table: TableId, key: &[u8], value: ValueRef) {
        let old = self.store.insert(table, key, value);
        self.note_written(table, key, old.is_none());
        if self.is_followed(table) {
            self.tell_set(key, value);
        }
        if self.has_readers(table) {
            let change = self.replaced((table, key), old, value);
            self.notify(table, key, change);
        }
        if let Some(old) = old {
            self.drop_value(old);
        }
    }

    /// Gives back what a key held.
    #[inline]
    fn drop_value(&mut self, old: ValueRef) {
        match Handle::of(old) {
            Some(Handle::Stream(number)) => self.drop_stream(number),
            Some(Handle::Spilled(number)) => self.drop_spilled(number),
            None => self.store.pool.release(old),
        }
    }

    /// Removes a base key and tells its readers; whether it was there.
    pub(crate) fn remove_base(&mut self, table: TableId, key: &[u8]) -> bool {
        let is_followed = self.is_followed(table);
        let Some(old) = self.store.remove(table, key) else { return false };
        self.watches.note(key);
        if is_followed {
            self.tell_gone(key);
        }
        self.marks.written(key, Some(0));
        if self.has_readers(table) {
            let was = self.store.pool.content(old);
            self.notify(table, key, Change::new(Some(was), None));
        }
        self.drop_value(old);
        true
    }

    /// Removes all keys; joins and tables stay.
    pub fn flush(&mut self) {
        let mut watched = core::mem::take(&mut self.watches);
        watched.note_all();
        self.tell_reset(&KeyRange::all());
        self.reset_joins();
        self.store.clear();
        self.drop_streams();
        self.drop_all_spilled();
        self.updaters.clear();
        self.expiries = Expiries::new(self.settings.secret);
        self.marks.clear();
        self.forget_loaded();
        self.forget_all_elsewhere();
        self.clear_kept();
        self.watches = watched;
    }

    /// Keys stored or materialized now.
    #[must_use]
    pub fn key_count(&self) -> u64 {
        let keys: u64 = self.store.tables().map(|(_, table)| table.sizes().keys as u64).sum();
        keys - self.replica_count() as u64
    }

    /// Some stored key, chosen by the random number `draw`; `None` where there is none.
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
            let (pool, first) = (&self.store.pool, self.store.table(id).prefix());
            let scan = Scan { pool, first, last: b"", reverse: false };
            let sifted = self.has_replicas(id);
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
    /// from the start) and gives the cursor to continue from (empty: that was all). Keys that
    /// stay throughout a scan are given exactly once. Computes nothing.
    pub fn scan(&self, cursor: &[u8], count: usize, each: &mut dyn FnMut(&[u8])) -> Vec<u8> {
        let mut next = Vec::new();
        let mut left = count.max(1);
        let sifted = self.replica_count() > 0;
        let _ = self.store.scan(cursor, b"", false, &mut |key, _| {
            if sifted && !self.owns(key) {
                return ControlFlow::Continue(());
            }
            if left == 0 {
                next = key.to_vec();
                return ControlFlow::Break(());
            }
            left -= 1;
            each(key);
            ControlFlow::Continue(())
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use crate::{Engine, Expiry, Settings};
    use headwater_base::Millis;

    #[test]
    fn memory_that_keys_left_goes_back_as_time_passes() {
        let mut engine = Engine::new(Settings::default());
        let key = |at: u64| alloc::format!("{at}").into_bytes();
        for at in 0..100 {
            engine.set(&key(at), &[b'x'; 50_000], Expiry::Never).unwrap();
        }
        let full = engine.store.pool.allocated();
        (0..100).for_each(|at| assert!(engine.remove(&key(at)).unwrap()));
        (1..=3).for_each(|second| engine.advance(Millis(second * 1000)));
        assert!(engine.store.pool.allocated() < full / 10);
    }
}
