//! Reads of what `auto` joins have let go: computed, shown, and stored nowhere ([`crate::choose`]).
//!
//! What is stored of the table besides (base keys, outputs of other joins) is merged with what is computed. A read that takes more
//! rows than a slice has is none of these: it makes its range kept, in slices as any read does.
//!
//! # Cost
//! That of the execution; the keys that are shown, and references to their values, are collected first. A read with a limit
//! computes about as much as it shows ([`crate::limited`]).

use crate::engine::Engine;
use crate::exec::{Execution, Missing};
use crate::fold::Folded;
use crate::handles::Handle;
use crate::relate::FEW;
use crate::report::RangeOptions;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::{KeyParts, KeyRange};
use headwater_pattern::fixed_slots;
use headwater_pool::{Value, ValueRef};
use headwater_store::{GroupId, TableId};

/// Pairs in order; references of their values are held.
pub(crate) type ComputedRows = Vec<(Box<[u8]>, ValueRef)>;

impl Engine {
    /// The pairs of what was `asked` for, a part of a table, where some of them are not kept; `None`: all are, or are from now on. `group` holds all
    /// of the range, where there is one that does.
    pub(crate) fn read_computed(
        &mut self,
        table: TableId,
        group: Option<GroupId>,
        asked: &KeyRange,
        options: RangeOptions,
    ) -> Result<Option<ComputedRows>, Missing> {
        let Some(role) = self.views.catalog.role(table) else { return Ok(None) };
        if role.autos == 0 || role.merged > 0 || self.base.loads.own(table).is_some() {
            return Ok(None);
        }
        if let Some(group) = group
            && role.writers.len() <= FEW
            && role.writers.iter().all(|&join| self.is_noted_kept(join, (table, group), asked))
        {
            return Ok(None);
        }
        let writers = self.views.catalog.writers_within(table, asked);
        let limit = options.limit.unwrap_or(u64::MAX);
        let limited = self.may_limit(table, &writers, (asked, limit));
        let (computed, kept): (Vec<_>, Vec<_>) =
            writers.into_iter().partition(|&join| self.computes(join, asked));
        if computed.is_empty() {
            return Ok(None);
        }
        // What is looked at: all of it, or where the kept outputs are that a limited read may show.
        let mut range = asked.clone();
        if limited && !kept.is_empty() {
            let wanted = (asked, limit, options.reverse);
            range = self.ensure_first(table, (&kept, &computed), wanted)?;
        } else {
            for join in kept {
                self.ensure(join, asked, None)?;
            }
        }
        let range = &range;
        let mut rows = Vec::new();
        for &join in &computed {
            let before = self.counters.rows_read;
            let folded = if limited {
                self.compute_limited(join, (range, asked), limit, options.reverse)
            } else {
                self.compute_once(join, range, asked)
            };
            match folded {
                Ok(folded) => rows.extend(folded.into_iter().map(|it| (it.key, it.value))),
                Err(Missing) => {
                    self.scratch.row_holds.extend(rows.iter().map(|(_, value)| *value));
                    return Err(Missing);
                }
            }
            let visited = self.counters.rows_read - before;
            self.note_computed(join, asked, visited);
        }
        if !self.add_stored((table, range), options, &computed, &mut rows) {
            self.scratch.row_holds.extend(rows.iter().map(|(_, value)| *value));
            computed.iter().for_each(|&join| self.note_large(join, asked));
            return Ok(None);
        }
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let over = if options.reverse {
            0..rows.len().saturating_sub(most)
        } else {
            most.min(rows.len())..rows.len()
        };
        let others: Vec<_> = rows.drain(over).collect();
        others.into_iter().for_each(|(_, value)| self.store.pool.release(value));
        Ok(Some(rows))
    }

    /// Whether a group has noted that the outputs of `join` in `range` are kept.
    fn is_noted_kept(&self, join: u32, group: (TableId, GroupId), range: &KeyRange) -> bool {
        self.noted_range(join, group, range)
            .is_some_and(|id| !self.views.statuses.get(id).is_invalid())
    }

    /// Gives the pairs of `range` to `each`, until it says that no more are wanted; how many it was given. A long read may begin with
    /// them, as long as the operation is under way.
    pub(crate) fn give_computed(
        &mut self,
        (table, range, reverse): (TableId, KeyRange, bool),
        rows: ComputedRows,
        each: &mut impl FnMut(KeyParts<'_>, Value<'_>) -> ControlFlow<()>,
    ) -> u64 {
        let mut given = 0;
        let mut left = rows.iter();
        while let Some((key, value)) = if reverse { left.next_back() } else { left.next() } {
            given += 1;
            if each(KeyParts::whole(key), self.store.pool.view(*value)).is_break() {
                break;
            }
        }
        if self.reads.slices.is_active() {
            let collections = &mut self.reads.long_reads.collections;
            collections.keep_computed(table, range, rows, &mut self.store.pool);
        } else {
            rows.into_iter().for_each(|(_, value)| self.store.pool.release(value));
        }
        given
    }

    /// The value of a key of a table, if the join that may give it computes it for the read; `None`: it is kept, or will be.
    pub(crate) fn get_computed(
        &mut self,
        table: TableId,
        key: &[u8],
    ) -> Result<Option<Option<ValueRef>>, Missing> {
        let Some(role) = self.views.catalog.role(table) else { return Ok(None) };
        if role.autos == 0 || role.merged > 0 || self.base.loads.own(table).is_some() {
            return Ok(None);
        }
        let point = KeyRange::point(key);
        let Some(join) = self.views.catalog.writer_of(table, key) else { return Ok(None) };
        if !self.computes(join, &point) {
            return Ok(None);
        }
        let before = self.counters.rows_read;
        let folded = self.compute_once(join, &point, &point)?;
        self.scratch.row_holds.extend(folded.iter().map(|it| it.value));
        let visited = self.counters.rows_read - before;
        self.note_computed(join, &point, visited);
        Ok(Some(folded.first().map(|it| it.value)))
    }

    /// Adds the stored pairs of a range of a table that the joins do not give which computed theirs, as many as are shown; `false` where some of
    /// them are not in memory.
    fn add_stored(
        &mut self,
        (table, range): (TableId, &KeyRange),
        options: RangeOptions,
        computed: &[u32],
        rows: &mut ComputedRows,
    ) -> bool {
        let plans: Vec<_> =
            computed.iter().map(|&join| self.views.catalog.join(join).plan.clone()).collect();
        let sifted = self.base.has_replicas(table);
        let mut stored = Vec::new();
        let mut spilled = false;
        // Where the table holds copies of other shards' keys, some stored keys are left out below: which of them a page shows is not
        // known while they are copied, so all are.
        let most = options.limit.filter(|_| !sifted).unwrap_or(u64::MAX);
        self.scan_table_until(table, range, options.reverse, &mut |key, value| {
            if plans.iter().any(|plan| plan.join.output.matches(key)) {
                return ControlFlow::Continue(());
            }
            if stored.len() as u64 >= most {
                return ControlFlow::Break(());
            }
            spilled |= matches!(Handle::of(value), Some(Handle::Spilled(_)));
            if !value.is_handle() {
                stored.push((Box::<[u8]>::from(key), value));
            }
            ControlFlow::Continue(())
        });
        let pool = &mut self.store.pool;
        stored.iter().for_each(|(_, value)| pool.retain(*value));
        rows.append(&mut stored);
        if sifted {
            let (own, others): (Vec<_>, Vec<_>) =
                core::mem::take(rows).into_iter().partition(|(key, _)| self.owns(key));
            *rows = own;
            others.into_iter().for_each(|(_, value)| self.store.pool.release(value));
        }
        !spilled
    }

    /// As [`Engine::compute`], of a part of a range which fits into a slice.
    ///
    /// # Errors
    /// As for [`Engine::compute`]; or it does not: what was `asked` for is kept from now on.
    fn compute_once(
        &mut self,
        join: u32,
        range: &KeyRange,
        asked: &KeyRange,
    ) -> Result<Vec<Folded>, Missing> {
        let plan = self.views.catalog.join(join).plan.clone();
        let whole = match &plan.join.keep {
            Some(_) => plan.whole_groups(range),
            None => range.clone(),
        };
        if let Some(best) = self.compute_best(join, &whole) {
            return Ok(self.show_kept(join, range, best));
        }
        let Some(bindings) = fixed_slots(&plan.join.output, &whole) else { return Ok(Vec::new()) };
        let mut execution = Execution::new(join, plan.clone(), &whole);
        execution.rows_max = self.reads.slices.rows_max();
        execution.may_gather = self.may_gather(join);
        if self.run(&mut execution, 0, &bindings).is_err() {
            if execution.split.is_some() || execution.gathers {
                self.note_large(join, asked);
            }
            return Err(Missing);
        }
        let folded = self.fold(&plan, execution.tuples);
        Ok(self.show_kept(join, range, folded))
    }

    /// Leaves out what is not kept of each group, and what is not in `range`.
    fn show_kept(&mut self, join: u32, range: &KeyRange, mut folded: Vec<Folded>) -> Vec<Folded> {
        let plan = self.views.catalog.join(join).plan.clone();
        let Some(keep) = &plan.join.keep else { return folded };
        self.retain_best(keep, &mut folded);
        let (shown, others): (Vec<_>, Vec<_>) =
            folded.into_iter().partition(|folded| range.contains(&folded.key));
        self.release_folded(others);
        shown
    }

    /// The first outputs of a part of the range that was `asked` for, or the last ones, with at least `limit` of them if there are so many.
    fn compute_limited(
        &mut self,
        join: u32,
        (range, asked): (&KeyRange, &KeyRange),
        limit: u64,
        reverse: bool,
    ) -> Result<Vec<Folded>, Missing> {
        let mut rest = range.clone();
        let mut wanted = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        loop {
            let cut = match self.dividing_hint(&[join], &rest, (wanted, reverse), true) {
                Ok(cut) => cut,
                Err(Missing) => {
                    self.release_folded(found);
                    return Err(Missing);
                }
            };
            let is_last = cut.is_none();
            let part = match cut {
                None => rest.clone(),
                Some(cut) if reverse => KeyRange::new(&cut, &rest.last),
                Some(cut) => KeyRange::new(&rest.first, &cut),
            };
            match self.compute_once(join, &part, asked) {
                Ok(folded) => found.extend(folded),
                Err(Missing) => {
                    self.release_folded(found);
                    return Err(Missing);
                }
            }
            if is_last || found.len() as u64 >= limit {
                return Ok(found);
            }
            if reverse {
                rest.last = part.first;
            } else {
                rest.first = part.last;
            }
            wanted = wanted.saturating_mul(2);
        }
    }
}
