//! What joins give: how an output gets its value, and loses it.
//!
//! An output that changes is itself a change, if joins read its table: it waits in a queue until it is told.

use crate::catalog::Fold;
use crate::cells::Change;
use crate::engine::Engine;
use crate::maintain::Changed;
use crate::relate::FEW;
use crate::updaters::Reader;
use crate::views::Views;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_pool::ValueRef;
use headwater_store::{Scan, TableId};

impl Engine {
    /// The keys that a join has materialized in `range`; own ones alone where the range is `sifted`.
    pub(crate) fn outputs_in(&self, join: u32, range: &KeyRange, sifted: bool) -> Vec<Vec<u8>> {
        let installed = self.views.catalog.join(join);
        let (output, pool) = (&installed.plan.join.output, &self.store.pool);
        let scan = Scan { pool, first: &range.first, last: &range.last, reverse: false };
        let mut held = Vec::new();
        let _ = self.store.table(installed.layer).scan(&scan, &mut Vec::new(), &mut |key, _| {
            if output.matches(key) && (!sifted || self.owns(key)) {
                held.push(key.to_vec());
            }
            ControlFlow::Continue(())
        });
        held
    }

    /// The value that a join has materialized for `key`.
    pub(crate) fn output(&self, join: u32, key: &[u8]) -> Option<ValueRef> {
        self.store.table(self.views.catalog.join(join).layer).get(key)
    }

    /// Gives an output its value, of which one reference is taken over. Where the join keeps some of each group, another one may go for it, or
    /// it is none.
    #[inline]
    pub(crate) fn put_output(
        &mut self,
        join: u32,
        key: &[u8],
        value: ValueRef,
        fold: Option<Fold>,
    ) {
        match self.views.catalog.join(join).plan.join.keep {
            None => self.set_output(join, key, value, fold),
            Some(keep) => self.put_kept(join, keep, key, value, fold),
        }
    }

    /// Removes an output, if it is there. Where the join keeps some of each group, another one may be missing then.
    #[inline]
    pub(crate) fn remove_output(&mut self, join: u32, key: &[u8]) {
        match self.views.catalog.join(join).plan.join.keep {
            None => self.unset_output(join, key),
            Some(keep) => self.remove_kept(join, keep, key),
        }
    }

    /// As [`Engine::put_output`], of an output that is kept.
    pub(crate) fn set_output(
        &mut self,
        join: u32,
        key: &[u8],
        value: ValueRef,
        fold: Option<Fold>,
    ) {
        let value = self.kept_value(join, value);
        let installed = self.views.catalog.join_mut(join);
        let (layer, table) = (installed.layer, installed.plan.output_table);
        if let Some(fold) = fold {
            let before = installed.folds.insert(key.into(), fold);
            self.forget_fold(before);
        }
        let told = self.views.has_readers(table);
        if told && let Some(change) = self.set_in_place(layer, key, value) {
            self.reads.note_collected_changed(layer, key);
            if self.is_followed(table) {
                self.tell_output(table, key);
            }
            self.output_changed(join, key, change);
            return;
        }
        self.save_pair(layer, key);
        let old = self.store.insert(layer, key, value);
        // What is the same reference is the same value, but for cells.
        if self.is_followed(table) && (old != Some(value) || value.is_cell()) {
            if layer == table {
                self.tell_set(key, value);
            } else {
                self.tell_output(table, key);
            }
        }
        if told {
            let was = old.map(|old| self.store.pool.content(old));
            self.output_changed(join, key, Change::new(was, Some(value)));
        }
        if let Some(old) = old {
            self.store.pool.release(old);
        }
    }

    /// As [`Engine::remove_output`], whatever is missing then.
    pub(crate) fn unset_output(&mut self, join: u32, key: &[u8]) {
        let installed = self.views.catalog.join_mut(join);
        let (layer, table) = (installed.layer, installed.plan.output_table);
        if !installed.folds.is_empty() {
            let before = installed.folds.remove(key);
            self.forget_fold(before);
        }
        self.save_pair(layer, key);
        if let Some(old) = self.store.remove(layer, key) {
            if self.is_followed(table) {
                self.tell_output(table, key);
            }
            if self.views.has_readers(table) {
                let was = self.store.pool.content(old);
                self.output_changed(join, key, Change::new(Some(was), None));
            }
            self.store.pool.release(old);
        }
    }

    /// Queues the change for the readers of the output's table, if what they see changes.
    fn output_changed(&mut self, join: u32, key: &[u8], mut change: Change) {
        let table = self.views.catalog.join(join).plan.output_table;
        if self.views.catalog.join(join).is_layered() {
            let (above, below) = self.other_layers(join, key);
            if above {
                return;
            }
            change.old = change.old.or(below);
            change.new = change.new.or(below);
        }
        for value in [change.old, change.new].into_iter().flatten() {
            self.store.pool.retain(value);
        }
        self.views.queue.push_back(Changed { table, key: key.into(), change });
    }

    /// Whether a later-installed join gives `key` too, and the value that the next earlier gives.
    fn other_layers(&self, join: u32, key: &[u8]) -> (bool, Option<ValueRef>) {
        let mine = self.views.catalog.join(join);
        let mut below: Option<(u64, ValueRef)> = None;
        for id in self.views.catalog.writers_within(mine.plan.output_table, &KeyRange::point(key)) {
            let other = self.views.catalog.join(id);
            if id == join || !other.is_layered() {
                continue;
            }
            if let Some(value) = self.store.table(other.layer).get(key) {
                if other.installed > mine.installed {
                    return (true, None);
                }
                if below.is_none_or(|(installed, _)| installed < other.installed) {
                    below = Some((other.installed, value));
                }
            }
        }
        (false, below.map(|(_, value)| value))
    }
}

impl Views {
    #[inline]
    pub(crate) fn has_readers(&self, table: TableId) -> bool {
        self.catalog.role(table).is_some_and(|role| !role.readers.is_empty())
    }

    /// Whether something that reads the table may have to be told of its changes: some reader has updaters, or there are too many to ask each.
    #[inline]
    pub(crate) fn listens(&self, table: TableId) -> bool {
        let Some(role) = self.catalog.role(table) else { return false };
        let is_told =
            |reader: &Reader| self.catalog.join(reader.join).depths[reader.source as usize] != 0;
        role.readers.len() > FEW || role.readers.iter().any(is_told)
    }
}
