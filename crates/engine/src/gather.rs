//! Ranges that are computed piece by piece, because they cannot be divided, or not well.
//!
//! Where a range takes more rows than a slice has, it is divided at an output key ([`crate::divide`]). One output key
//! with very many sources cannot be, nor can outputs that all come of very many keys of one of the join's sources. A timeline of many
//! posters who have posted little could be, but each part would look for its rows among the posts of all of them. Such a range is
//! *gathered*: it is made with nothing in it, as if that source had no keys, and these are added to it, some in each slice, as
//! if they had just been written. It has targets meanwhile as any range has (R3), so what changes of keys that were added
//! changes its outputs. A key of the source that is still to be added is none of its business, and whether it comes, goes or
//! changes is seen when it is added (J1). The range is read when all were added; until then it is not clean.
//!
//! The source that is taken in steps is the first one of which more than one key can lead to the range: of `check a|<a>` and
//! `count v|<a>|<u>`, for one `<a>`, the second.
//!
//! # Invariants
//! - J1. A range that is being gathered holds what comes of those keys of the source that is taken in steps which lie before the place
//!   where it goes on. Changes of the others do not reach it; one of a source before it, of which there is one key, has it begin anew.
//! - J2. Nothing of such a range is recomputed from all keys before the last is added: what is stale stays so.
//! - J3. Gatherings that are undone again and again (by changes that make the range unknown, or for want of memory) end: after
//!   [`BEGUN_MAX`] ranges of a join were begun, and none completed, one is computed as a whole (Z2).
//! - J4. A step visits at most [`GATHERED_FROM`] times as many rows as a slice has: with more, it is tried with fewer keys. Where one
//!   key alone leads to more, a range that can be divided is invalid from then on, and divided; another one takes them all at once.
//!
//! # Cost
//! About twice that of computing the range as a whole. A write looks whether any range is being gathered.

use crate::divide::divides;
use crate::engine::Engine;
use crate::exec::{Execution, GATHERED_FROM, Missing};
use crate::status::StatusId;
use crate::updaters::{Reader, Target};
use crate::views::Views;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_pattern::Bindings;
use headwater_store::Scan;

/// How many ranges of a join may be begun before one is completed (J3).
const BEGUN_MAX: u32 = 64;
/// Ranges that could be divided as well are gathered only while fewer than so many of the join have been begun.
const SPARSE_BEGUN_MAX: u32 = BEGUN_MAX / 2;
/// Of so many parts of a slice's rows the first step takes one.
pub(crate) const FIRST_SHARE: usize = 64;
/// A slice adds at most this many times as many keys of a source as the slice before it: what rows these lead to is not known, and may be more.
const GROWTH_MAX: usize = 4;

/// How far a range has come that is being gathered.
#[derive(Debug)]
pub(crate) struct Gathering {
    /// The source that is taken in steps ([`Execution::stepped`]).
    source: usize,
    /// All of its keys before this one were added. `None`: none were.
    at: Option<Vec<u8>>,
    /// How many of these keys are looked at next.
    rows: usize,
    /// There is a key at which the range could be divided.
    is_divisible: bool,
}

/// A part of the keys of the source that is taken in steps.
#[derive(Debug)]
pub(crate) struct Step {
    /// The first key; `None`: that of the span.
    pub(crate) from: Option<Vec<u8>>,
    /// How many keys may be looked at.
    pub(crate) most: usize,
    /// The first key behind them, if there is one.
    pub(crate) next: Option<Vec<u8>>,
}

impl Step {
    /// What of the source's span belongs to the step and those behind it.
    pub(crate) fn rest_of(&self, span: &KeyRange) -> KeyRange {
        let from = self.from.as_ref().unwrap_or(&span.first);
        KeyRange::new(from.max(&span.first), &span.last)
    }

    /// Whether a key that is come to belongs to the step, before which so many were looked at.
    pub(crate) fn takes(&mut self, before: usize, key: &[u8]) -> bool {
        let takes = before < self.most;
        if !takes {
            self.next = Some(key.to_vec());
        }
        takes
    }
}

/// How many keys of a source fill a slice, if they take what so many took.
pub(crate) fn fitting(keys: usize, rows_max: usize, visited: u64) -> usize {
    let fitting = (keys as u64).saturating_mul(rows_max as u64) / visited.max(1);
    let most = keys.saturating_mul(GROWTH_MAX).clamp(1, rows_max);
    usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, most)
}

impl Engine {
    /// Whether a range of a join may be gathered if it is not divided: nobody is told of its outputs one by one.
    pub(crate) fn may_gather(&self, join: u32) -> bool {
        let installed = self.views.catalog.join(join);
        self.reads.slices.is_active()
            && installed.mode().is_maintained()
            && installed.gatherings < BEGUN_MAX
            && !self.is_followed(installed.plan.output_table)
    }

    /// Whether a range has so few outputs of a join that they can be removed in one step.
    pub(crate) fn holds_few_outputs(&self, join: u32, range: &KeyRange) -> bool {
        let mut rows = 0;
        let installed = self.views.catalog.join(join);
        let (output, table) = (&installed.plan.join.output, self.store.table(installed.layer));
        let scan =
            Scan { pool: &self.store.pool, first: &range.first, last: &range.last, reverse: false };
        let flow = table.scan(&scan, &mut Vec::new(), &mut |key, _| {
            rows += usize::from(output.matches(key));
            if rows > self.reads.slices.rows_max() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        flow.is_continue()
    }

    /// Begins to gather a range, which has no targets. Its outputs, from before, go.
    pub(crate) fn begin_gathering(&mut self, id: StatusId, is_divisible: bool) {
        let status = self.views.statuses.get(id);
        let (join, range, sifted) = (status.join, status.range(), status.sifted);
        for key in self.outputs_in(join, &range, sifted) {
            self.unset_output(join, &key);
        }
        self.views.forget_kept(join, &range);
        self.views.catalog.join_mut(join).gatherings += 1;
        let rows = (self.reads.slices.rows_max() / FIRST_SHARE).max(1);
        self.views.gatherings.insert(id, Gathering { source: 0, at: None, rows, is_divisible });
        let work = self.dirty(id);
        work.invalid = false;
        work.gathering = true;
    }

    /// Notes that a range of a join was computed as a whole (J3).
    pub(crate) fn note_whole(&mut self, join: u32, visited: u64) {
        if visited > self.reads.slices.rows_max() as u64 {
            self.views.catalog.join_mut(join).gatherings = 0;
        }
    }

    /// Adds the next keys of a source to a range that is being gathered.
    pub(crate) fn gather(&mut self, id: StatusId) -> Result<(), Missing> {
        let Some(gathering) = self.views.gatherings.get(&id) else { return Ok(()) };
        let most = if self.reads.slices.is_active() { gathering.rows } else { usize::MAX };
        let (from, is_divisible) = (gathering.at.clone(), gathering.is_divisible);
        let status = self.views.statuses.get(id);
        let (join, fixed, range) = (status.join, status.fixed(), status.range());
        let filed = status.filed();
        let plan = self.views.catalog.join(join).plan.clone();
        let mut bindings = Bindings::new();
        fixed.bind(&plan.join.output, &range.first, &mut bindings);
        let mut execution = Execution::new(join, plan, &range);
        execution.follow = Some((&filed, fixed));
        execution.step = Some(Step { from, most, next: None });
        if self.reads.slices.is_active() && (most > 1 || is_divisible) {
            execution.rows_max = self.reads.slices.rows_max().saturating_mul(GATHERED_FROM);
            execution.gives_up = true;
        }
        if self.run(&mut execution, 0, &bindings).is_err() {
            if execution.is_given_up() {
                self.gather_less(id, most);
            }
            return Err(Missing);
        }
        // What came meanwhile concerns what was added before (N1).
        self.feed(id);
        let Execution { tuples, spans, read, visited, stepped, step, .. } = execution;
        self.reads.slices.keep(usize::try_from(visited).unwrap_or(usize::MAX));
        if !self.views.gatherings.contains_key(&id) || self.views.is_gathered_in_vain(id) {
            tuples.release(&mut self.store.pool);
            return Ok(());
        }
        let rows = spans.len() + 2 * tuples.tuples.len();
        let status = self.views.statuses.get_mut(id);
        status.rows = status.rows.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX));
        status.visits_more(visited);
        self.link(id, &spans, read);
        let next = step.and_then(|step| step.next);
        if let (Some(gathering), Some(_)) = (self.views.gatherings.get_mut(&id), &next) {
            gathering.source = stepped;
            gathering.at.clone_from(&next);
            gathering.rows = fitting(most, self.reads.slices.rows_max(), visited);
        }
        self.apply_tuples(id, &tuples, true);
        tuples.release(&mut self.store.pool);
        if next.is_none() {
            self.views.end_gathering(id);
            if let Some(work) = &mut self.views.statuses.get_mut(id).work {
                work.gathering = false;
            }
            self.counters.ranges_gathered += 1;
            let installed = self.views.catalog.join_mut(join);
            installed.gatherings = 0;
            installed.counters.fills += 1;
            self.settle(id);
        }
        self.drain();
        Ok(())
    }

    /// Tries fewer keys of the source that is taken in steps, where so many led to more rows than a slice may gather; one alone has
    /// its range divided (J4).
    fn gather_less(&mut self, id: StatusId, keys: usize) {
        let Some(gathering) = self.views.gatherings.get_mut(&id) else { return };
        if keys > 1 {
            gathering.rows = (keys / GROWTH_MAX).max(1);
        } else {
            self.invalidate(id);
            self.dirty(id).divides_on = true;
        }
    }

    /// Says of an execution for a status range, below what `bindings` fix, whether it is gathered where it takes more rows than a slice.
    pub(crate) fn allow_gathering(&self, execution: &mut Execution<'_>, bindings: &Bindings<'_>) {
        let (join, plan) = (execution.join, &execution.plan);
        let may_gather = execution.ahead.is_none()
            && !execution.divides_on
            && self.may_gather(join)
            && self.holds_few_outputs(join, execution.range);
        // Parts of a range that a check source divides have spans of their own.
        let divides = || (0..plan.value_source()).any(|level| divides(plan, level, bindings));
        let begun = self.views.catalog.join(join).gatherings;
        execution.gathers_sparse = may_gather && begun < SPARSE_BEGUN_MAX && !divides();
        execution.may_gather = may_gather;
    }
}

impl Views {
    /// Whether a change of a key of a source does not reach a range, which has yet to add it (J1).
    pub(crate) fn is_ahead(&self, reader: Reader, target: Target, key: &[u8]) -> bool {
        self.gatherings.get(&target.status()).is_some_and(|gathering| {
            reader.source as usize == gathering.source
                && gathering.at.as_ref().is_none_or(|at| key >= at.as_slice())
        })
    }

    /// Whether a key of a source before the one that is taken in steps has come or gone (J1).
    pub(crate) fn is_gathered_in_vain(&self, id: StatusId) -> bool {
        let Some(gathering) = self.gatherings.get(&id) else { return false };
        let Some(work) = &self.statuses.get(id).work else { return false };
        work.log.iter().any(|(entry, _)| (entry.source as usize) < gathering.source)
    }

    /// A range is gathered no more.
    pub(crate) fn end_gathering(&mut self, id: StatusId) {
        if !self.gatherings.is_empty() {
            self.gatherings.remove(&id);
        }
    }
}
