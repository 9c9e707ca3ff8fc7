//! What concerns the store as a whole: scans, watches, and what is checked at the end.

use super::{Run, Scan, Watched, failed, same};
use crate::history::Op;
use headwater_script::bytes::escape;
use std::collections::BTreeSet;

impl Run<'_> {
    /// Every base key is given once, and whatever else is given is some join's.
    pub(super) fn scan(&mut self, count: usize) -> Result<(), String> {
        let mut cursor = Vec::new();
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for _ in 0..10_000 {
            let (next, given) = self.subject.scan(&cursor, count);
            keys.extend(given);
            cursor = next;
            if cursor.is_empty() {
                break;
            }
        }
        if !cursor.is_empty() {
            return Err(String::from("does not end"));
        }
        let set: BTreeSet<&Vec<u8>> = keys.iter().collect();
        self.look_for_losses(b"", b"", &|key| set.contains(&key.to_vec()))?;
        same(&set.len(), &keys.len())?;
        if !self.subject.forgets_while_looking() {
            same(&(keys.len() as u64), &self.subject.key_count())?;
        }
        if let Some(missing) = self.oracle.base.keys().find(|key| !set.contains(key)) {
            return Err(format!("{} is missing", escape(missing)));
        }
        for draw in 0..3 {
            let drawn = self.subject.random_key(draw * 7);
            if drawn.as_ref().map_or(!set.is_empty(), |key| !set.contains(key)) {
                return Err(format!("the random key {drawn:?} is none of those scanned"));
            }
        }
        let strange = |key: &&&Vec<u8>| {
            !self.oracle.base.contains_key(**key) && self.oracle.owners(key).is_empty()
        };
        match set.iter().find(strange) {
            Some(key) => Err(format!("{} is no base key and no join's", escape(key))),
            None => Ok(()),
        }
    }

    /// Keys that stay throughout a scan are given exactly once, whatever else happens.
    pub(super) fn scan_step(&mut self, count: usize) -> Result<(), String> {
        let start = || Scan {
            cursor: Vec::new(),
            stayed: self.oracle.base.keys().map(|key| (key.clone(), 0)).collect(),
        };
        let mut scan = self.scan.take().unwrap_or_else(start);
        let (cursor, given) = self.subject.scan(&scan.cursor, count);
        for key in given {
            if let Some(times) = scan.stayed.get_mut(&key) {
                *times += 1;
            }
        }
        scan.cursor = cursor;
        let over = scan.cursor.is_empty();
        let missed: Vec<Vec<u8>> = scan
            .stayed
            .iter()
            .filter(|(_, times)| **times == 0)
            .map(|(key, _)| key.clone())
            .collect();
        for key in missed.iter().filter(|_| over) {
            if self.is_lost(key)? {
                scan.stayed.remove(key);
            }
        }
        let wrong = scan.stayed.iter().find(|(_, times)| **times > 1 || (over && **times == 0));
        if let Some((key, times)) = wrong {
            return Err(format!("{} was there all the time, but given {times} times", escape(key)));
        }
        self.scan = Some(scan).filter(|_| !over);
        Ok(())
    }

    /// Snapshots change when they are read, so their keys are not watched here.
    pub(super) fn watch(&mut self, key: &[u8]) -> Result<(), String> {
        if self.tells_moments() {
            return Ok(());
        }
        self.is_lost(key)?;
        let count = failed(self.subject.watch(key))?;
        let value = self.view().seen.get(key).cloned();
        let key = key.to_vec();
        self.watches.push(Watched {
            key,
            count,
            value,
            changed: false,
            derived: false,
            quiet: true,
        });
        Ok(())
    }

    pub(super) fn watched(&mut self) -> Result<(), String> {
        if self.tells_moments() {
            return Ok(());
        }
        for watch in &mut self.watches {
            let count = failed(self.subject.watched(&watch.key))?;
            if watch.changed && count == watch.count {
                return Err(format!("misses the change of {}", escape(&watch.key)));
            }
            if watch.quiet && !self.subject.may_lose_bytes() && count != watch.count {
                return Err(format!("nothing happened, but {} changed", escape(&watch.key)));
            }
        }
        Ok(())
    }

    /// Reads and verifies everything: table by table, then the whole store, both ways.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.step(&Op::Exec)?;
        while !self.removing.is_empty() {
            self.go_on_removing()?;
        }
        self.watched()?;
        self.look_for_losses(b"", b"", &|_| false)?;
        self.subject.unbound();
        self.look_for_losses(b"", b"", &|_| false)?;
        self.scan(3)?;
        let keys = self.allowed();
        let tables: BTreeSet<Vec<u8>> = keys
            .keys()
            .filter_map(|key| headwater_base::table_of(key).map(<[u8]>::to_vec))
            .collect();
        for table in tables {
            let prefix = [&table[..], b"|"].concat();
            self.range(&prefix, &headwater_base::prefix_end(&prefix), false, None)?;
        }
        for key in keys.keys() {
            self.get(key).map_err(|text| format!("get {}: {text}", escape(key)))?;
        }
        self.range(b"", b"", true, None)?;
        self.range(b"", b"", false, None)?;
        self.hear()?;
        self.verify(b"", b"")?;
        self.scan(100)?;
        self.hear()?;
        self.leaves_nothing()
    }

    /// Without keys and joins nothing is kept: no value, no updater, no status range.
    fn leaves_nothing(&mut self) -> Result<(), String> {
        let expiring = self.oracle.base.values().filter(|(_, at)| at.is_some()).count() as u64;
        let stats = self.subject.stats();
        same(&stats.keys, &self.subject.key_count())?;
        same(&stats.keys_with_expiry, &expiring)?;
        let tables = self.subject.tables();
        let keys: u64 = tables.iter().map(|table| table.keys).sum();
        let groups: u64 = tables.iter().map(|table| table.groups).sum();
        let key_bytes: u64 = tables.iter().map(|table| table.key_bytes).sum();
        // Joins that may collide keep their outputs beside the tables as well.
        same(&keys, &stats.keys)?;
        same(&(groups > stats.groups || key_bytes > stats.key_bytes), &false)?;
        self.step(&Op::Unwatch)?;
        self.unfollow_all()?;
        self.step(&Op::Flush)?;
        while let Some(installed) = self.oracle.joins.first() {
            let name = installed.name.clone();
            self.step(&Op::JoinDrop { name })?;
        }
        // The memory of what is gone goes back in slices.
        let engine = self.subject.engine();
        while engine.goes_on() {
            engine.go_on();
        }
        let left = self.subject.stats();
        let left = [
            ("keys", left.keys),
            ("keys with expiry", left.keys_with_expiry),
            ("groups", left.groups),
            ("bytes of values", left.value_bytes),
            ("bytes on disk", left.spilled_bytes),
            ("streams", left.streams),
            ("bytes of keys", left.key_bytes),
            ("updaters", left.updaters),
            ("targets", left.updater_targets),
            ("status ranges", left.status_ranges),
        ];
        if let Some((what, number)) = left.iter().find(|(_, number)| *number > 0) {
            return Err(format!("{number} {what} are left in an empty store"));
        }
        for table in self.subject.tables() {
            let left = table.keys + table.groups + table.key_bytes + table.value_bytes;
            if left > 0 {
                return Err(format!("an empty store reports {table:?}"));
            }
        }
        Ok(())
    }
}
