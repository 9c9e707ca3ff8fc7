//! Values that change where they are copied: a change of a counter that many keys show costs
//! one write.
//!
//! When a short value that plain copies show is changed, the source key and all its copies get
//! one cell (`headwater_pool::Pool::share`); from then on a change sets the cell. A copy is
//! then current without anyone having looked for it: nothing waits for a read, and a read has
//! nothing to do but to look into the cell. Values that never change stay as they are, so that
//! posts on timelines cost neither a cell nor a look into one.
//!
//! # Invariants
//! - V1. A cell belongs to one source key, in whose public table it lies. Beside it, only outputs
//!   of joins that *keep cells* hold it: plain copies, pushed into a public table that no join
//!   reads. Nobody has to be told when one of these changes.
//! - V2. While a source key has a cell, each of its outputs in a valid range of a join that
//!   keeps cells is that cell.
//!
//! So a change that sets a cell reaches all who keep cells by R2 and R3, and is told to all
//! others with the values of before and after, which are held in their references (P4).

use crate::engine::Engine;
use crate::views::Views;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pool::ValueRef;
use headwater_store::TableId;

/// What became of the value of one key. No value is a cell but `cell`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) old: Option<ValueRef>,
    pub(crate) new: Option<ValueRef>,
    /// Who keeps cells shows the new value already.
    pub(crate) in_place: bool,
    /// What those who keep cells are to show from now on, instead of `new`.
    pub(crate) cell: Option<ValueRef>,
}

impl Change {
    pub(crate) fn new(old: Option<ValueRef>, new: Option<ValueRef>) -> Self {
        Self { old, new, in_place: false, cell: None }
    }
}

impl Engine {
    /// What an output of the join is given for `value`, of which one reference is taken over.
    #[inline]
    pub(crate) fn kept_value(&mut self, join: u32, value: ValueRef) -> ValueRef {
        if !value.is_cell() || self.views.keeps_cells(join) {
            return value;
        }
        let content = self.store.pool.content(value);
        self.store.pool.release(value);
        content
    }

    /// Sets the cell of an output that joins read, if it has one that can take the value; what
    /// its readers are to be told then.
    #[inline]
    pub(crate) fn set_in_place(
        &mut self,
        table: TableId,
        key: &[u8],
        value: ValueRef,
    ) -> Option<Change> {
        let held = self.store.table(table).get(key).filter(|_| value.is_inline())?;
        held.is_cell().then(|| self.set_cell(held, value))
    }

    /// What readers of a base key are told after `value` took the place of `old`, which the
    /// caller releases. If that was the key's cell, it is set, and takes its place again: most
    /// base keys are new or have none, and are not looked up for it.
    #[inline]
    pub(crate) fn replaced(
        &mut self,
        (table, key): (TableId, &[u8]),
        old: Option<ValueRef>,
        value: ValueRef,
    ) -> Change {
        match old {
            Some(cell) if cell.is_cell() && value.is_inline() => {
                self.store.pool.retain(cell);
                // What comes out is the value, of which a cell holds no reference (P4).
                self.store.insert(table, key, cell);
                self.set_cell(cell, value)
            }
            _ => Change::new(old.map(|old| self.store.pool.content(old)), Some(value)),
        }
    }

    fn set_cell(&mut self, cell: ValueRef, value: ValueRef) -> Change {
        self.save_cell(cell);
        let was = self.store.pool.content(cell);
        self.store.pool.set_cell(cell, value);
        self.counters.updates_in_place += 1;
        Change { in_place: true, ..Change::new(Some(was), Some(value)) }
    }

    /// Gives a source key a cell, if its change to a short value is the last one that there is,
    /// for those who keep cells to show from now on (V2).
    ///
    /// Outputs may be under way from an execution to the store only within reads, in which no
    /// cell is made.
    pub(crate) fn make_cell(&mut self, table: TableId, key: &[u8], change: &mut Change) {
        let (Some(_), Some(new), None) = (change.old, change.new, change.cell) else { return };
        if !self.views.writing || !new.is_inline() || !self.views.queue.is_empty() {
            return;
        }
        // Outputs in layers are not cells' source keys (V1), nor are those that are hidden.
        if self.store.table(table).get(key) == Some(new) {
            let cell = self.store.pool.share(new);
            self.store.insert(table, key, cell);
            change.cell = Some(cell);
        }
    }

    /// Restores V1 and V2 for some joins after a change of what is installed; `before` are those that kept
    /// cells then.
    pub(crate) fn settle_cells(&mut self, joins: &[u32], before: &[u32]) {
        for &join in joins {
            let installed = self.views.catalog.join(join);
            let plan = installed.plan.clone();
            let materialized = !installed.cover.is_empty();
            match (before.contains(&join), self.views.keeps_cells(join)) {
                // Readers of its outputs are to be told of each change.
                (true, false) if self.views.has_readers(plan.output_table) => {
                    self.dissolve_cells(plan.output_table);
                }
                // Its outputs are not the cells that their source keys may have.
                (false, true) if materialized => {
                    self.dissolve_cells(plan.source_tables[plan.value_source()]);
                }
                _ => {}
            }
        }
    }

    /// Puts contents in the place of a table's cells.
    fn dissolve_cells(&mut self, table: TableId) {
        let mut found = Vec::new();
        let all = KeyRange::prefix(self.store.table(table).prefix());
        self.scan_table(table, &all, &mut |key, value| {
            if value.is_cell() {
                found.push((key.to_vec(), value));
            }
        });
        for (key, cell) in found {
            self.save_pair(table, &key);
            let content = self.store.pool.content(cell);
            self.store.insert(table, &key, content);
            self.store.pool.release(cell);
        }
    }
}

impl Views {
    /// Whether outputs of the join may be cells of what they copy (V1).
    pub(crate) fn keeps_cells(&self, join: u32) -> bool {
        let installed = self.catalog.join(join);
        installed.mode().is_maintained()
            && installed.plan.is_plain_copy()
            && !installed.is_layered()
            && !self.has_readers(installed.plan.output_table)
    }

    /// Which of some joins kept cells before `new` was entered. No layer has changed since.
    pub(crate) fn keepers_before(&self, new: u32, joins: &[u32]) -> Vec<u32> {
        let kept = |&join: &u32| {
            let installed = self.catalog.join(join);
            let role = self.catalog.role(installed.plan.output_table);
            join != new
                && installed.mode().is_maintained()
                && installed.plan.is_plain_copy()
                && !installed.is_layered()
                && role.is_none_or(|role| role.readers.iter().all(|reader| reader.join == new))
        };
        joins.iter().copied().filter(kept).collect()
    }
}
