//! What joins are to tables and to one another, kept as joins come and go (C4, C5).
//!
//! # Cost
//! A join that comes or goes costs what concerns it: the joins that it reads, and those that read it. A key of a table with
//! many joins finds those that it concerns by their literals; where a table has few, each is looked at.

use crate::catalog::{Catalog, Role};
use crate::status::shared_prefix;
use crate::updaters::Reader;
use crate::views::Views;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::{Mode, Pattern};
use headwater_store::TableId;

/// Up to so many joins of a table are looked at one by one.
pub(crate) const FEW: usize = 8;

/// Adds to an ordered list.
fn enter<T: Ord>(list: &mut Vec<T>, item: T) {
    if let Err(at) = list.binary_search(&item) {
        list.insert(at, item);
    }
}

/// Takes out of an ordered list.
fn leave<T: Ord>(list: &mut Vec<T>, item: &T) {
    if let Ok(at) = list.binary_search(item) {
        list.remove(at);
    }
}

impl Role {
    /// The joins that may give keys which match a pattern of this table, in order.
    fn writers_of(&self, catalog: &Catalog, pattern: &Pattern) -> Vec<u32> {
        let mut found = Vec::new();
        self.writing.of_pattern(pattern, &mut |id| found.push(id));
        catalog.compared.update(|compared| compared + found.len() as u64);
        found.retain(|&id| catalog.join(id).plan.join.output.may_collide(pattern));
        found.sort_unstable();
        found
    }

    /// The sources that may read keys which match a pattern of this table, in order.
    fn readers_of(&self, catalog: &Catalog, pattern: &Pattern) -> Vec<Reader> {
        let mut found = Vec::new();
        self.reading.of_pattern(pattern, &mut |reader| found.push(reader));
        catalog.compared.update(|compared| compared + found.len() as u64);
        let reads = |reader: &Reader| {
            let plan = &catalog.join(reader.join).plan;
            plan.pattern(reader.source as usize).may_collide(pattern)
        };
        found.retain(reads);
        found.sort_unstable();
        found
    }
}

impl Catalog {
    /// The joins of which an output may match `pattern`, a pattern of `table`.
    pub(crate) fn writers_of(&self, table: TableId, pattern: &Pattern) -> Vec<u32> {
        self.role(table).map_or(Vec::new(), |role| role.writers_of(self, pattern))
    }

    /// The joins that may read keys which match `pattern`, a pattern of `table`.
    pub(crate) fn readers_of(&self, table: TableId, pattern: &Pattern) -> Vec<u32> {
        let readers = self.role(table).map_or(Vec::new(), |role| role.readers_of(self, pattern));
        let mut joins: Vec<u32> = readers.into_iter().map(|reader| reader.join).collect();
        joins.dedup();
        joins
    }

    /// Enters a join that was added.
    pub(crate) fn relate(&mut self, id: u32) {
        let plan = self.join(id).plan.clone();
        let role = self.role_for(plan.output_table);
        enter(&mut role.writers, id);
        role.writing.insert(&plan.join.output, id);
        if plan.join.mode == Mode::Pull {
            self.count_merged(plan.output_table, true);
        }
        self.role_for(plan.output_table).autos += usize::from(plan.join.mode == Mode::Auto);
        for (source, &table) in plan.source_tables.iter().enumerate() {
            let reader = Reader { join: id, source: source as u32 };
            let role = self.role_for(table);
            enter(&mut role.readers, reader);
            role.reading.insert(plan.pattern(source), reader);
        }
        for (source, &table) in plan.source_tables.iter().enumerate() {
            let upstream = self.writers_of(table, plan.pattern(source));
            self.join_mut(id).upstream[source] = upstream;
        }
        for reader in self.sources_over(id) {
            enter(&mut self.join_mut(reader.join).upstream[reader.source as usize], id);
        }
        let rivals = self.rivals(id);
        self.join_mut(id).rivals = rivals.len() as u32;
        for other in rivals {
            self.join_mut(other).rivals += 1;
        }
        self.settle_depths(id);
    }

    /// Takes out a join that is about to be taken. Nothing listens for it any more, and it has no layer.
    pub(crate) fn unrelate(&mut self, id: u32) {
        let over = self.sources_over(id);
        for &reader in &over {
            leave(&mut self.join_mut(reader.join).upstream[reader.source as usize], &id);
        }
        for reader in over {
            self.settle_depths(reader.join);
        }
        for other in self.rivals(id) {
            self.join_mut(other).rivals -= 1;
        }
        let plan = self.join(id).plan.clone();
        let role = self.role_for(plan.output_table);
        leave(&mut role.writers, &id);
        role.writing.remove(&plan.join.output, id);
        if plan.join.mode == Mode::Pull {
            self.count_merged(plan.output_table, false);
        }
        self.role_for(plan.output_table).autos -= usize::from(plan.join.mode == Mode::Auto);
        for (source, &table) in plan.source_tables.iter().enumerate() {
            let reader = Reader { join: id, source: source as u32 };
            let role = self.role_for(table);
            leave(&mut role.readers, &reader);
            role.reading.remove(plan.pattern(source), reader);
        }
    }

    /// The sources that may read what a join gives.
    fn sources_over(&self, id: u32) -> Vec<Reader> {
        let plan = &self.join(id).plan;
        let role = self.role(plan.output_table);
        role.map_or(Vec::new(), |role| role.readers_of(self, &plan.join.output))
    }

    /// Has changes of its keys told to a source, or no more.
    pub(crate) fn listen(&mut self, reader: Reader, listens: bool) {
        let plan = self.join(reader.join).plan.clone();
        let source = reader.source as usize;
        let Some(role) = self.role_mut(plan.source_tables[source]) else { return };
        if listens {
            role.listening.insert(plan.pattern(source), reader);
        } else {
            role.listening.remove(plan.pattern(source), reader);
        }
    }

    /// The joins that read what `id` gives, directly or through others, and `id` itself.
    pub(crate) fn downstream(&self, id: u32) -> Vec<u32> {
        let mut found = alloc::vec![id];
        let mut seen = BTreeSet::from([id]);
        let mut next = 0;
        while let Some(&id) = found.get(next) {
            next += 1;
            let readers = self.sources_over(id).into_iter().map(|reader| reader.join);
            found.extend(readers.filter(|&reader| seen.insert(reader)));
        }
        found
    }

    /// The other joins that may produce keys which a join produces.
    pub(crate) fn rivals(&self, id: u32) -> Vec<u32> {
        let plan = &self.join(id).plan;
        let mut rivals = self.writers_of(plan.output_table, &plan.join.output);
        rivals.retain(|&other| other != id);
        rivals
    }

    /// Whether another installed join may produce a key that this one produces.
    pub(crate) fn collides(&self, id: u32) -> bool {
        self.join(id).rivals > 0
    }

    /// How deep some joins become, and those that read their outputs, once they read one of this depth: only those
    /// whose depth grows.
    pub(crate) fn deepened(&self, readers: Vec<u32>, depth: u32) -> BTreeMap<u32, u32> {
        let mut depths: BTreeMap<u32, u32> = BTreeMap::new();
        // What is less deep comes first, so that most joins are met once.
        let mut open: BTreeSet<(u32, u32)> =
            readers.into_iter().map(|id| (depth + 1, id)).collect();
        while let Some((depth, id)) = open.pop_first() {
            let before = depths.get(&id).copied().unwrap_or_else(|| self.join(id).depth);
            if depth > before {
                depths.insert(id, depth);
                let over = self.sources_over(id).into_iter();
                open.extend(over.map(|reader| (depth + 1, reader.join)));
            }
        }
        depths
    }

    /// Restores C6 for a join of which others were entered or taken out as what it reads.
    fn settle_depths(&mut self, id: u32) {
        let mut open = BTreeSet::from([(0, id)]);
        while let Some((_, id)) = open.pop_first() {
            let join = self.join(id);
            let above = join.upstream.iter().flatten().map(|&up| self.join(up).depth);
            let (before, depth) = (join.depth, 1 + above.max().unwrap_or(0));
            // One that has just come is new to its readers at any depth.
            if before == depth && depth > 1 {
                continue;
            }
            for reader in self.sources_over(id) {
                open.insert((self.join(reader.join).depth, reader.join));
            }
            self.join_mut(id).depth = depth;
            self.leave_depth(before);
            *self.depths.entry(depth).or_default() += 1;
        }
    }

    /// A join of this depth has gone, or has another one.
    pub(crate) fn leave_depth(&mut self, depth: u32) {
        if let Some(count) = self.depths.get_mut(&depth) {
            *count -= 1;
            if *count == 0 {
                self.depths.remove(&depth);
            }
        }
    }

    /// The first join that gives `key`, a key of `table`.
    #[inline]
    pub(crate) fn writer_of(&self, table: TableId, key: &[u8]) -> Option<u32> {
        let role = self.role(table)?;
        let gives = |id: u32| self.join(id).plan.join.output.matches(key);
        if role.writers.len() <= FEW {
            return role.writers.iter().copied().find(|&id| gives(id));
        }
        let mut found: Option<u32> = None;
        role.writing.of_key(key, &mut |id| {
            if found.is_none_or(|found| id < found) && gives(id) {
                found = Some(id);
            }
        });
        found
    }

    /// Which writers of `table` may give `key`, in order; `None`: take them all, they are few.
    #[inline]
    pub(crate) fn some_writers_of(&self, table: TableId, key: &[u8]) -> Option<Vec<u32>> {
        let role = self.role(table).filter(|role| role.writers.len() > FEW)?;
        let mut found = Vec::new();
        role.writing.of_key(key, &mut |id| found.push(id));
        found.sort_unstable();
        Some(found)
    }

    /// Which writers of `table` may give keys of `range`, in order; `None`: take them all, they are few.
    pub(crate) fn some_writers(&self, table: TableId, range: &KeyRange) -> Option<Vec<u32>> {
        let role = self.role(table).filter(|role| role.writers.len() > FEW)?;
        if is_point(range) {
            return self.some_writers_of(table, &range.first);
        }
        let prefix = &range.first[..shared_prefix(range)];
        let mut found = Vec::new();
        role.writing.of_prefix(prefix, &mut |id| found.push(id));
        found.sort_unstable();
        Some(found)
    }

    /// The joins that may read keys of `range`, a range of `table`.
    pub(crate) fn readers_within(&self, table: TableId, range: &KeyRange) -> Vec<u32> {
        let Some(role) = self.role(table) else { return Vec::new() };
        let prefix = &range.first[..shared_prefix(range)];
        let mut found = Vec::new();
        role.reading.of_prefix(prefix, &mut |reader| found.push(reader.join));
        self.compared.update(|compared| compared + found.len() as u64);
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The sources that may have updaters for keys of `range`, a range of `table`, in order.
    pub(crate) fn listeners_within(&self, table: TableId, range: &KeyRange) -> Vec<Reader> {
        let Some(role) = self.role(table) else { return Vec::new() };
        let prefix = &range.first[..shared_prefix(range)];
        let mut found = Vec::new();
        if is_point(range) {
            role.listening.of_key(&range.first, &mut |reader| found.push(reader));
        } else {
            role.listening.of_prefix(prefix, &mut |reader| found.push(reader));
        }
        found.sort_unstable();
        found
    }

    /// Whether a join gives `key`, a key of `table`.
    pub(crate) fn gives(&self, table: TableId, key: &[u8]) -> bool {
        self.writer_of(table, key).is_some()
    }

    /// All writers of `table` that may give keys of `range`, in order.
    pub(crate) fn writers_within(&self, table: TableId, range: &KeyRange) -> Vec<u32> {
        let all = || self.role(table).map_or(Vec::new(), |role| role.writers.clone());
        self.some_writers(table, range).unwrap_or_else(all)
    }

    /// The writer of this number among `some`, or else among all of `table`.
    #[inline]
    pub(crate) fn nth_writer(
        &self,
        table: TableId,
        some: Option<&[u32]>,
        at: usize,
    ) -> Option<u32> {
        match some {
            Some(some) => some.get(at).copied(),
            None => self.role(table)?.writers.get(at).copied(),
        }
    }

    /// Which sources a change of `key` may have to be told to, in order; `None`: take all that read the table.
    #[inline]
    pub(crate) fn some_readers(&self, table: TableId, key: &[u8]) -> Option<Vec<Reader>> {
        let role = self.role(table).filter(|role| role.readers.len() > FEW)?;
        let mut found = Vec::new();
        role.listening.of_key(key, &mut |reader| found.push(reader));
        found.sort_unstable();
        Some(found)
    }
}

impl Views {
    /// The joins whose outputs begin or cease to be cells with a join that comes or goes (V1): those that it may
    /// collide with, and those whose outputs nobody else reads.
    pub(crate) fn cells_about(&self, id: u32) -> Vec<u32> {
        let mut about = self.catalog.rivals(id);
        let plan = &self.catalog.join(id).plan;
        for &table in &plan.source_tables {
            let Some(role) = self.catalog.role(table) else { continue };
            if role.readers.iter().all(|reader| reader.join == id) {
                about.extend(&role.writers);
            }
        }
        about.push(id);
        about.sort_unstable();
        about.dedup();
        about
    }
}

/// Whether a range holds one key only.
pub(crate) fn is_point(range: &KeyRange) -> bool {
    range.last.len() == range.first.len() + 1
        && range.last.last() == Some(&0)
        && range.last.starts_with(&range.first)
}
