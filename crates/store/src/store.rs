//! All tables, in the order of their keys.

use crate::compact::Compaction;
use crate::table::{Note, Scan, Table, Trail};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::{Bound, ControlFlow};
use hashbrown::HashTable;
use headwater_base::hash::Secret;
use headwater_base::key::{SEPARATOR, before_end, end_at_most};
use headwater_base::prefix_end;
use headwater_pool::{Pool, ValueRef};

/// A table. Valid while the table has keys or is pinned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u32);

/// A table, and the part `[first, last)` of a range that falls to it.
pub type TablePart = (TableId, Vec<u8>, Vec<u8>);

/// Most keys that one [`Store::warm`] fetches for.
pub const WARM_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Slot<N> {
    pub(crate) table: Table<N>,
    pins: u32,
}

/// The ordered map of one shard.
#[derive(Debug)]
pub struct Store<N> {
    /// Where the values live.
    pub pool: Pool,
    pub(crate) tables: Vec<Option<Slot<N>>>,
    pub(crate) compaction: Compaction,
    /// What tables held that were cleared.
    discarded: Vec<Table<N>>,
    /// Tables whose keys are being grouped.
    regrouping: Vec<TableId>,
    free: Vec<u32>,
    by_name: HashTable<u32>,
    /// Named tables by `name|`.
    order: BTreeMap<Vec<u8>, u32>,
    secret: Secret,
    /// Tables that are made are marked.
    mark_new: bool,
    /// How many tables, and parts of ranges, were come by.
    visited: Cell<u64>,
}

impl<N: Note> Store<N> {
    /// The table of the keys without `|`. It always exists.
    pub const UNNAMED: TableId = TableId(0);

    /// An empty store whose hashes depend on `secret`.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        let unnamed = Slot { table: Table::new(b"", 0, &secret), pins: 1 };
        Self {
            pool: Pool::new(),
            tables: alloc::vec![Some(unnamed)],
            compaction: Compaction::default(),
            discarded: Vec::new(),
            regrouping: Vec::new(),
            free: Vec::new(),
            by_name: HashTable::new(),
            order: BTreeMap::new(),
            secret,
            mark_new: false,
            visited: Cell::new(0),
        }
    }

    /// Has tables that are made from now on [marked](Table::is_marked), or not.
    pub fn mark_new_tables(&mut self, marked: bool) {
        self.mark_new = marked;
    }

    /// The table whose keys start with `prefix` (`name|`), if it exists.
    #[inline]
    #[must_use]
    pub fn find(&self, prefix: &[u8]) -> Option<TableId> {
        self.by_name
            .find(self.secret.hash(prefix), |&id| {
                self.tables[id as usize].as_ref().is_some_and(|slot| slot.table.prefix() == prefix)
            })
            .map(|&id| TableId(id))
    }

    /// The table in which `key` lives, if it exists.
    #[inline]
    #[must_use]
    pub fn table_of(&self, key: &[u8]) -> Option<TableId> {
        match key.iter().position(|&byte| byte == SEPARATOR) {
            None => Some(Self::UNNAMED),
            Some(at) => self.find(&key[..=at]),
        }
    }

    /// Fetches what operations on `keys` will touch into the processor's cache: all at once,
    /// where the operations themselves would wait for one after the other. A hint; it changes
    /// nothing. Only the first [`WARM_MAX`] keys count. Gives the keys' tables; those that do not
    /// exist are given as the unnamed one.
    pub fn warm(&self, keys: &[&[u8]]) -> [TableId; WARM_MAX] {
        let mut trails = [(Self::UNNAMED, Trail::End); WARM_MAX];
        for (trail, key) in trails.iter_mut().zip(keys) {
            if let Some(table) = self.table_of(key) {
                *trail = (table, self.table(table).warm_first(key));
            }
        }
        for _ in 0..3 {
            for (table, trail) in &mut trails[..keys.len().min(WARM_MAX)] {
                *trail = self.table(*table).warm_next(&self.pool, *trail);
            }
        }
        trails.map(|(table, _)| table)
    }

    /// The table in which `key` lives, made where it does not exist.
    #[inline]
    pub fn table_for(&mut self, key: &[u8]) -> TableId {
        match key.iter().position(|&byte| byte == SEPARATOR) {
            None => Self::UNNAMED,
            Some(at) => self.find(&key[..=at]).unwrap_or_else(|| self.create(&key[..=at])),
        }
    }

    fn create(&mut self, prefix: &[u8]) -> TableId {
        let mut table = Table::new(prefix, 0, &self.secret);
        table.set_marked(self.mark_new);
        let id = self.add(Slot { table, pins: 0 });
        let (tables, secret) = (&self.tables, &self.secret);
        self.by_name.insert_unique(secret.hash(prefix), id.0, |&id| {
            tables[id as usize].as_ref().map_or(0, |slot| secret.hash(slot.table.prefix()))
        });
        self.order.insert(prefix.to_vec(), id.0);
        id
    }

    fn add(&mut self, slot: Slot<N>) -> TableId {
        match self.free.pop() {
            Some(id) => {
                self.tables[id as usize] = Some(slot);
                TableId(id)
            }
            None => {
                self.tables.push(Some(slot));
                TableId((self.tables.len() - 1) as u32)
            }
        }
    }

    /// A table for keys that start with `prefix`, reached only by the id given: a join's
    /// outputs where another join may produce the same keys.
    pub fn create_layer(&mut self, prefix: &[u8], boundary: usize) -> TableId {
        self.add(Slot { table: Table::new(prefix, boundary, &self.secret), pins: 1 })
    }

    /// Gives a table without a boundary one, by which [`Store::regroup`] groups the keys that it has.
    pub fn group_by(&mut self, id: TableId, boundary: usize) {
        if self.slot_mut(id).table.begin_regrouping(boundary) {
            self.regrouping.push(id);
        }
    }

    /// Whether keys are still to be grouped.
    #[inline]
    #[must_use]
    pub fn is_regrouping(&self) -> bool {
        !self.regrouping.is_empty()
    }

    /// Groups the next keys of tables that were given a boundary, about `most` of them.
    pub fn regroup(&mut self, most: usize) {
        let mut left = most.max(1);
        while left > 0
            && let Some(&id) = self.regrouping.last()
        {
            let slot = self.tables[id.0 as usize].as_mut();
            let done = slot.map_or(0, |slot| slot.table.regroup(&self.pool, left));
            // Another table may have its number by now.
            if done < left {
                self.regrouping.pop();
            }
            left -= done;
        }
    }

    /// Drops a layer and its keys.
    pub fn drop_layer(&mut self, id: TableId) {
        self.clear_table(id);
        self.tables[id.0 as usize] = None;
        self.free.push(id.0);
    }

    /// Keeps a table though it has no keys, until [`Store::unpin`].
    pub fn pin(&mut self, id: TableId) {
        self.slot_mut(id).pins += 1;
    }

    /// Undoes one [`Store::pin`].
    pub fn unpin(&mut self, id: TableId) {
        self.slot_mut(id).pins -= 1;
        self.forget_if_idle(id);
    }

    /// Forgets a table without keys that nobody pins.
    fn forget_if_idle(&mut self, id: TableId) {
        let Some(slot) = &self.tables[id.0 as usize] else { return };
        if slot.pins > 0 || slot.table.sizes().keys > 0 {
            return;
        }
        let prefix = slot.table.prefix().to_vec();
        let hash = self.secret.hash(&prefix);
        if let Ok(entry) = self.by_name.find_entry(hash, |&other| other == id.0) {
            entry.remove();
        }
        self.order.remove(&prefix);
        self.tables[id.0 as usize] = None;
        self.free.push(id.0);
    }

    fn slot_mut(&mut self, id: TableId) -> &mut Slot<N> {
        self.tables[id.0 as usize].as_mut().expect("a table id is valid while pinned or filled")
    }

    /// A table.
    #[inline]
    #[must_use]
    pub fn table(&self, id: TableId) -> &Table<N> {
        let slot = self.tables[id.0 as usize].as_ref();
        &slot.expect("a table id is valid while pinned or filled").table
    }

    /// A table, to be changed, and the pool beside it.
    #[inline]
    pub fn table_mut(&mut self, id: TableId) -> (&mut Table<N>, &mut Pool) {
        let slot = self.tables[id.0 as usize].as_mut();
        (&mut slot.expect("a table id is valid while pinned or filled").table, &mut self.pool)
    }

    /// Gives `key` a value, of which the store takes the caller's reference over, and hands
    /// back the value it had with its reference.
    #[inline]
    pub fn insert(&mut self, id: TableId, key: &[u8], value: ValueRef) -> Option<ValueRef> {
        let (table, pool) = self.table_mut(id);
        table.insert(pool, key, value)
    }

    /// Removes `key` and hands back its value with its reference.
    pub fn remove(&mut self, id: TableId, key: &[u8]) -> Option<ValueRef> {
        let (table, pool) = self.table_mut(id);
        let removed = table.remove(pool, key);
        if removed.is_some() && self.table(id).sizes().keys == 0 {
            self.forget_if_idle(id);
        }
        removed
    }

    /// Every table with its id, the unnamed one first, then by name. Layers are left out.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &Table<N>)> {
        core::iter::once(&0)
            .chain(self.order.values())
            .inspect(|_| self.visited.update(|visited| visited + 1))
            .map(|&id| (TableId(id), self.table(TableId(id))))
    }

    /// How many tables were come by, here and there, in going through several: what that costs where there are very many.
    #[must_use]
    pub fn visited(&self) -> u64 {
        self.visited.get()
    }

    /// Whether a table is kept though it has no keys.
    #[must_use]
    pub fn is_pinned(&self, id: TableId) -> bool {
        self.tables[id.0 as usize].as_ref().is_some_and(|slot| slot.pins > 0)
    }

    /// The tables that may hold keys of `[first, last)`, each with the part that falls to it,
    /// in key order. The unnamed table occurs once for each gap between named ones (S1).
    #[must_use]
    pub fn parts(&self, first: &[u8], last: &[u8]) -> Vec<TablePart> {
        self.walk(first, last).collect()
    }

    /// As [`Store::parts`], of which each is looked for when it is asked for: who stops early has not gone through all tables.
    pub fn walk(&self, first: &[u8], last: &[u8]) -> impl Iterator<Item = TablePart> {
        let mut left = Some((self.beyond_missing(first), last.to_vec()));
        core::iter::from_fn(move || {
            let (first, last) = left.take()?;
            let (table, until) = self.first_part(&first, &last)?;
            if until != last {
                left = Some((until.clone(), last));
            }
            Some((table, first, until))
        })
    }

    /// As [`Store::walk`], the last part first.
    fn walk_back(&self, first: &[u8], last: &[u8]) -> impl Iterator<Item = TablePart> {
        let mut left = Some((self.beyond_missing(first), last.to_vec()));
        core::iter::from_fn(move || {
            let (first, last) = left.take()?;
            let (table, from) = self.last_part(&first, &last)?;
            if from > first {
                left = Some((first, from.clone()));
            }
            Some((table, from, last))
        })
    }

    /// Where a range begins that begins at `first`: behind its table, where there is none.
    fn beyond_missing(&self, first: &[u8]) -> Vec<u8> {
        let prefix = first.iter().position(|&byte| byte == SEPARATOR).map(|at| &first[..=at]);
        match prefix.filter(|prefix| self.find(prefix).is_none()) {
            Some(prefix) => prefix_end(prefix),
            None => first.to_vec(),
        }
    }

    /// The part with which `[first, last)` begins: its table, and where it ends.
    fn first_part(&self, first: &[u8], last: &[u8]) -> Option<(TableId, Vec<u8>)> {
        self.visited.update(|visited| visited + 1);
        if !before_end(first, last) {
            return None;
        }
        let prefix = first.iter().position(|&byte| byte == SEPARATOR).map(|at| &first[..=at]);
        if let Some(prefix) = prefix
            && let Some(table) = self.find(prefix)
        {
            let end = prefix_end(prefix);
            let until = if end_at_most(last, &end) { last.to_vec() } else { end };
            return Some((table, until));
        }
        let mut behind = self.order.range::<[u8], _>((Bound::Excluded(first), Bound::Unbounded));
        let next = behind.next().map(|(prefix, _)| &prefix[..]);
        let until = next.filter(|next| before_end(next, last));
        Some((Self::UNNAMED, until.unwrap_or(last).to_vec()))
    }

    /// The part with which `[first, last)` ends: its table, and where it begins.
    fn last_part(&self, first: &[u8], last: &[u8]) -> Option<(TableId, Vec<u8>)> {
        self.visited.update(|visited| visited + 1);
        if !before_end(first, last) {
            return None;
        }
        let until = if last.is_empty() { Bound::Unbounded } else { Bound::Excluded(last) };
        let before = self.order.range::<[u8], _>((Bound::Unbounded, until)).next_back();
        let Some((prefix, &id)) = before else { return Some((Self::UNNAMED, first.to_vec())) };
        let end = prefix_end(prefix);
        let (table, from) = match end_at_most(last, &end) {
            true => (TableId(id), prefix),
            false => (Self::UNNAMED, &end),
        };
        Some((table, first.max(from).to_vec()))
    }

    /// Calls `each` with every key of `[first, last)` in order, or greatest first, until it
    /// breaks.
    pub fn scan(
        &self,
        first: &[u8],
        last: &[u8],
        reverse: bool,
        each: &mut impl FnMut(&[u8], ValueRef) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut key = Vec::new();
        let mut scan = |(id, from, to): TablePart| {
            let scan = Scan { pool: &self.pool, first: &from, last: &to, reverse };
            self.table(id).scan(&scan, &mut key, each)
        };
        match reverse {
            true => self.walk_back(first, last).try_for_each(&mut scan),
            false => self.walk(first, last).try_for_each(&mut scan),
        }
    }

    /// Removes every key of one table and releases the values.
    pub fn clear_table(&mut self, id: TableId) {
        let (table, pool) = self.table_mut(id);
        table.clear(|value| pool.release(value));
    }

    /// Removes every key; pinned tables stay, layers too. The values are released by [`Store::dissolve`].
    pub fn clear(&mut self) {
        for id in 0..self.tables.len() as u32 {
            if let Some(slot) = &mut self.tables[id as usize] {
                if slot.table.sizes().keys + slot.table.group_count() > 0 {
                    self.discarded.push(slot.table.detach());
                }
                self.forget_if_idle(TableId(id));
            }
        }
    }

    /// Whether values are left to be released of tables that were cleared.
    #[inline]
    #[must_use]
    pub fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Releases about `most` values of tables that were cleared.
    pub fn dissolve(&mut self, most: usize) {
        let mut left = most;
        while left > 0
            && let Some(table) = self.discarded.last_mut()
        {
            let done = table.dissolve(&mut self.pool, left);
            if done < left {
                self.discarded.pop();
            }
            left = left.saturating_sub(done + 1);
        }
    }
}

#[cfg(test)]
mod tests;
