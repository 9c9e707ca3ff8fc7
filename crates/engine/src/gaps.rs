//! Gaps: what of a join's output is not materialized yet, filled when it is read.
//!
//! A client that comes back for what is new reads `[last, now)` again and again, and would leave a range for each read. So a
//! neighbour that fixes the same components is extended rather than a new range made. And a range grows beyond what was asked
//! for, to the end of its fixed prefix (of the user's timeline) where little lies there: an absent key is a fact too, and all
//! later windows are in the range then. Where more lies there, it grows by about as much as it holds already, so that windows
//! which move through a long past come to a gap ever more rarely.
//!
//! What lies ahead is not known before the sources are read. It is read in one execution with what was asked for, which
//! gives up when it has found too much beyond; what it has found says how far the next one may go.
//!
//! # Invariants
//! - G1. For what was not asked for, no more than [`AHEAD_MIN`] outputs are found, or as many as the rows that the extended
//!   range took, and about twice that in all. Nothing is loaded for it, but from other shards for a range that is extended.
//!
//! # Cost
//! That of two executions at most, beyond that of the gap itself; where a range is extended, of as many more rows as it holds.

use crate::catalog::Plan;
use crate::divide::leads_into;
use crate::engine::Engine;
use crate::exec::{Execution, Missing};
use crate::slice::SLICED_READS_MAX;
use crate::status::{Fixed, StatusId};
use crate::views::Views;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::key::{before_end, end_at_most, prefix_end};
use headwater_pattern::{Bindings, Pattern};

/// How many outputs beyond the range that was asked for count as few.
pub(crate) const AHEAD_MIN: usize = 32;

/// How far an execution may look beyond what was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ahead<'r> {
    /// What was asked for.
    pub(crate) asked: &'r KeyRange,
    /// How many outputs, or rows that lead to some, may be found beyond it.
    pub(crate) most: usize,
    /// How many were.
    pub(crate) found: usize,
    /// Whether what is not here may be asked for of other shards.
    pub(crate) loads: bool,
    /// Rows of the first source that have been looked at, the present one included, and how many it has.
    pub(crate) progress: (usize, usize),
    /// There was too much; with a key up to which there probably is not.
    pub(crate) end: Option<Option<Vec<u8>>>,
}

/// Why a gap was not filled.
enum Unfilled {
    Missing,
    /// There is too much beyond what was asked for; perhaps not up to this key.
    TooFar(Option<Vec<u8>>),
}

impl Ahead<'_> {
    /// Whether more was found than may be.
    pub(crate) fn is_over(&self) -> bool {
        self.found > self.most
    }

    /// Notes that too much was found, these outputs among it.
    pub(crate) fn give_up<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        let (mut beyond, mut before): (Vec<&[u8]>, usize) = (Vec::new(), 0);
        for key in keys {
            if *key < *self.asked.first {
                before += 1;
            } else if !self.asked.contains(key) {
                beyond.push(key);
            }
        }
        beyond.sort_unstable();
        let (done, of) = self.progress;
        let rank = (self.most / 2).saturating_sub(before) * done / of.max(1);
        let end = beyond.get(rank).filter(|key| rank > 0 && ***key > *self.asked.last);
        self.end = Some(end.map(|key| key.to_vec()));
    }
}

impl Execution<'_> {
    /// Notes that a key of a source was met: whether there are too many that lead beyond what was asked for.
    pub(crate) fn is_too_far(
        &mut self,
        plan: &Plan,
        key: (&Pattern, &[u8]),
        bindings: &Bindings<'_>,
        prefix: &mut Vec<u8>,
    ) -> bool {
        let Some(ahead) = &mut self.ahead else { return false };
        ahead.found += usize::from(!leads_into(ahead.asked, plan, key, bindings, prefix));
        ahead.is_over()
    }

    /// Notes of how many rows of a source so many have been looked at; the first source counts.
    pub(crate) fn note_progress(&mut self, level: usize, progress: (usize, usize)) {
        if let Some(ahead) = self.ahead.as_mut().filter(|_| level == 0) {
            ahead.progress = progress;
        }
    }
}

impl Engine {
    /// Sets how many outputs beyond what was asked for are few, for tests: worlds are small there.
    pub fn set_growth(&mut self, outputs: usize) {
        self.views.growth = outputs;
    }

    /// Whether an execution looks beyond what was asked for, and lacks data for that.
    pub(crate) fn is_missing_ahead(
        &mut self,
        execution: &Execution<'_>,
        level: usize,
        span: &KeyRange,
    ) -> bool {
        let Some(ahead) = &execution.ahead else { return false };
        !self.is_here_ahead(&execution.plan, level, span, ahead.loads)
    }

    /// Fills a gap, extending a neighbour where it fixes the same components.
    pub(crate) fn fill(&mut self, join: u32, gap: &KeyRange) -> Result<(), Missing> {
        if !self.views.catalog.join(join).mode().is_maintained() {
            return settled(self.fill_alone(join, gap, None));
        }
        let output = &self.views.catalog.join(join).plan.join.output;
        let fixed = Fixed::of(output, gap);
        let (before, behind) = (self.range_before(join, gap, fixed), self.range_behind(join, gap));
        let touches =
            |engine: &Self, id: StatusId| *engine.views.statuses.get(id).last() == *gap.first;
        if let Some(id) = behind
            && (self.views.statuses.get(id).rooted
                || before.is_none_or(|before| !touches(self, before)))
        {
            let mut whole = self.views.statuses.get(id).range();
            whole.first.clone_from(&gap.first);
            return settled(self.extend(id, gap, whole, None));
        }
        if let Some(id) = before {
            let status = self.views.statuses.get(id);
            let (range, rows) = (status.range(), status.rows as usize);
            let end = self.views.end_ahead(join, gap, fixed).unwrap_or_else(|| gap.last.clone());
            let mut wide = KeyRange::new(&range.last, &end);
            if wide != *gap && self.fill_ahead(join, Some(id), gap, &mut wide, rows)? {
                return Ok(());
            }
            if range.last == gap.first {
                let whole = KeyRange::new(&range.first, &gap.last);
                return settled(self.extend(id, gap, whole, None));
            }
        }
        if let Some(end) = self.views.end_ahead(join, gap, fixed) {
            let mut wide = KeyRange::new(&gap.first, &end);
            if self.fill_ahead(join, None, gap, &mut wide, 0)? {
                return Ok(());
            }
        }
        settled(self.fill_alone(join, gap, None))
    }

    /// Fills as much of `wide` as has little beyond `gap`, all of which it holds; whether that was done.
    fn fill_ahead(
        &mut self,
        join: u32,
        extended: Option<StatusId>,
        gap: &KeyRange,
        wide: &mut KeyRange,
        rows: usize,
    ) -> Result<bool, Missing> {
        let installed = self.views.catalog.join(join);
        // All that belongs together is asked for already.
        if installed.plan.together_at.is_some()
            || installed.upstream.iter().any(|joins| !joins.is_empty())
        {
            return Ok(false);
        }
        let mut most = self.views.growth.max(rows).min(self.reads.slices.rows_max());
        for _ in 0..2 {
            let loads = extended.is_some();
            let (progress, end) = ((1, 1), None);
            let ahead = Ahead { asked: gap, most, found: 0, loads, progress, end };
            let filled = match extended {
                None => self.fill_alone(join, wide, Some(ahead)),
                Some(id) => {
                    let whole = KeyRange::new(self.views.statuses.get(id).first(), &wide.last);
                    self.extend(id, wide, whole, Some(ahead))
                }
            };
            match filled {
                Ok(()) => return Ok(true),
                Err(Unfilled::Missing) => return Err(Missing),
                Err(Unfilled::TooFar(Some(end))) => wide.last = end,
                Err(Unfilled::TooFar(None)) => return Ok(false),
            }
            most *= 2;
        }
        Ok(false)
    }

    /// The range that ends where a gap begins, or before that if it fixes the same components.
    fn range_before(&self, join: u32, gap: &KeyRange, fixed: Fixed) -> Option<StatusId> {
        let id = self.views.catalog.join(join).cover.before(&gap.first)?;
        let status = self.views.statuses.get(id);
        let is_near = fixed == status.fixed()
            && fixed.stem(&gap.first).is_some_and(|stem| status.first().starts_with(stem));
        if *status.last() != *gap.first && !is_near {
            return None;
        }
        let whole = KeyRange::new(status.first(), &gap.last);
        (self.may_extend(id, &whole)).then_some(id)
    }

    /// The range that begins where a gap ends.
    fn range_behind(&self, join: u32, gap: &KeyRange) -> Option<StatusId> {
        let id = self.views.catalog.join(join).cover.at(&gap.last)?;
        let whole = KeyRange::new(&gap.first, self.views.statuses.get(id).last());
        self.may_extend(id, &whole).then_some(id)
    }

    /// Whether a range may become one of these ends.
    fn may_extend(&self, id: StatusId, whole: &KeyRange) -> bool {
        let status = self.views.statuses.get(id);
        // What is large goes in one step some day.
        let is_large = self.reads.slices.rows().is_some_and(|most| status.rows as usize > 2 * most);
        let output = &self.views.catalog.join(status.join).plan.join.output;
        !is_large && Fixed::of(output, whole) == status.fixed()
    }

    /// Files the targets of the range before `first` that fixes the same for no more than that range: another one is the last now.
    fn uproot_before(&mut self, join: u32, first: &[u8], fixed: Fixed) {
        let Some(id) = self.views.catalog.join(join).cover.before(first) else { return };
        let status = self.views.statuses.get(id);
        let is_near = status.fixed() == fixed
            && fixed.stem(first).is_some_and(|stem| status.first().starts_with(stem));
        if is_near && status.rooted && !status.open && !self.views.fan_outs.concern(id) {
            let range = status.range();
            self.resize(id, &range, false);
        }
    }

    /// Makes a range of a gap.
    fn fill_alone(
        &mut self,
        join: u32,
        gap: &KeyRange,
        ahead: Option<Ahead<'_>>,
    ) -> Result<(), Unfilled> {
        let plan = self.views.catalog.join(join).plan.clone();
        let is_push = plan.join.mode.is_maintained();
        let fixed = Fixed::of(&plan.join.output, gap);
        let mut bindings = Bindings::new();
        fixed.bind(&plan.join.output, &gap.first, &mut bindings);
        let rooted = is_push && self.views.is_last(join, gap, fixed);
        let mut filed = gap.clone();
        if let Some(stem) = fixed.stem(&gap.first).filter(|_| rooted) {
            filed.last = prefix_end(stem);
        }
        let mut execution = Execution::new(join, plan.clone(), gap);
        if is_push {
            execution.follow = Some((&filed, fixed));
        }
        execution.rows_max = self.reads.slices.rows_max();
        execution.ahead = ahead;
        self.allow_gathering(&mut execution, &bindings);
        let best = match execution.ahead {
            None => self.compute_best(join, gap),
            Some(_) => None,
        };
        execution.spans_only = best.is_some();
        let outer = self.begin_snapshot(plan.join.mode);
        let done = self.run(&mut execution, 0, &bindings);
        let oldest = self.end_snapshot(outer);
        if done.is_err() {
            self.release_folded(best.into_iter().flatten());
            return Err(self.unfilled(join, gap, execution));
        }
        let Execution { tuples, spans, read, rows, visited, .. } = execution;
        self.reads.slices.keep(rows);
        self.note_whole(join, visited);
        let id = self.make_status(join, gap);
        if !is_push {
            self.date_snapshot(id, oldest);
            let is_filled = |end: &[u8]| *end > *gap.first && end_at_most(end, &gap.last);
            self.views.catalog.join_mut(join).part_ends.retain(|end| !is_filled(end));
        }
        if rooted {
            self.uproot_before(join, &gap.first, fixed);
        }
        let outputs = best.as_ref().map_or(tuples.tuples.len(), Vec::len);
        let rows = spans.len() + 2 * outputs;
        let status = self.views.statuses.get_mut(id);
        status.rooted = rooted;
        status.rows = u32::try_from(rows).unwrap_or(u32::MAX);
        status.set_visited(visited);
        self.link(id, &spans, read);
        let folded = match best {
            Some(best) => best,
            None => self.fold(&plan, tuples),
        };
        self.views.catalog.join_mut(join).counters.fills += 1;
        self.put_first(id, gap, folded);
        self.drain();
        Ok(())
    }

    /// Grows a status range over the gap beside it.
    fn extend(
        &mut self,
        id: StatusId,
        gap: &KeyRange,
        whole: KeyRange,
        ahead: Option<Ahead<'_>>,
    ) -> Result<(), Unfilled> {
        let all = self.views.statuses.get(id).range();
        // Logged keys would otherwise be applied to the gap, whose execution sees them already.
        self.refresh(id, &all).map_err(|Missing| Unfilled::Missing)?;
        let status = self.views.statuses.get(id);
        let (join, fixed) = (status.join, status.fixed());
        let rooted = status.rooted || self.views.is_last(join, &whole, fixed);
        let mut filed = whole.clone();
        if let Some(stem) = fixed.stem(&whole.first).filter(|_| rooted) {
            filed.last = prefix_end(stem);
        }
        let plan = self.views.catalog.join(join).plan.clone();
        let mut bindings = Bindings::new();
        let first = self.views.statuses.get(id).first().to_vec();
        fixed.bind(&plan.join.output, &first, &mut bindings);
        let mut execution = Execution::new(join, plan.clone(), gap);
        execution.follow = Some((&filed, fixed));
        execution.rows_max = self.reads.slices.rows_max();
        execution.ahead = ahead;
        self.allow_gathering(&mut execution, &bindings);
        if self.run(&mut execution, 0, &bindings).is_err() {
            return Err(self.unfilled(join, gap, execution));
        }
        // What came meanwhile concerns the range as it was: the gap's execution has seen it (N1).
        self.feed(id);
        let Execution { tuples, spans, read, rows, visited, .. } = execution;
        self.reads.slices.keep(rows);
        self.note_whole(join, visited);
        let clean = self.views.statuses.get(id).is_clean();
        self.resize(id, &whole, rooted);
        if self.views.statuses.get(id).is_invalid() {
            tuples.release(&mut self.store.pool);
            return Ok(());
        }
        let rows = spans.len() + 2 * tuples.tuples.len();
        let status = self.views.statuses.get_mut(id);
        status.rows = status.rows.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX));
        status.visits_more(visited);
        self.link(id, &spans, read);
        let folded = self.fold(&plan, tuples);
        self.views.catalog.join_mut(join).counters.fills += 1;
        self.put_all(join, gap, folded);
        if !clean {
            self.invalidate(id);
        }
        self.drain();
        Ok(())
    }

    /// What is to be done where an execution for a gap came to no end.
    fn unfilled(&mut self, join: u32, gap: &KeyRange, execution: Execution<'_>) -> Unfilled {
        if let Some(end) = execution.ahead.and_then(|ahead| ahead.end) {
            return Unfilled::TooFar(end);
        }
        let gathers = execution.gathers.then_some(execution.is_divisible);
        self.divide_gap(join, gap, execution.split, gathers);
        Unfilled::Missing
    }

    /// Where filling a gap takes more than a slice: what is to be computed next is the part before `split`, if there is
    /// one; or else the gap is gathered, if that is what is to be done: `gathers` tells whether it could be divided as well.
    fn divide_gap(
        &mut self,
        join: u32,
        gap: &KeyRange,
        split: Option<Vec<u8>>,
        gathers: Option<bool>,
    ) {
        if let Some(is_divisible) = gathers {
            let id = self.make_status(join, gap);
            self.begin_gathering(id, is_divisible);
        }
        let Some(split) = split else { return };
        if !self.views.catalog.join(join).mode().is_maintained() {
            // A range of it is what was computed at one moment.
            let ends = &mut self.views.catalog.join_mut(join).part_ends;
            ends.retain(|end| **end != *split);
            if ends.len() >= SLICED_READS_MAX {
                ends.remove(0);
            }
            ends.push(split.into());
            return;
        }
        for part in [KeyRange::new(&gap.first, &split), KeyRange::new(&split, &gap.last)] {
            let id = self.make_status(join, &part);
            self.dirty(id).invalid = true;
        }
    }
}

impl Views {
    /// Where what may be filled together with a gap ends: at the end of what its keys have in common, or at the next range. Nothing where
    /// the gap reaches there.
    fn end_ahead(&self, join: u32, gap: &KeyRange, fixed: Fixed) -> Option<Vec<u8>> {
        let mut end = prefix_end(fixed.stem(&gap.first)?);
        if gap.last.is_empty() {
            return None;
        }
        let next = self.catalog.join(join).cover.from(&gap.last);
        if let Some(next) = next.map(|id| self.statuses.get(id).first())
            && before_end(next, &end)
        {
            end = next.to_vec();
        }
        before_end(&gap.last, &end).then_some(end)
    }

    /// Whether no range of a join begins behind `range`, within what its keys have in common.
    fn is_last(&self, join: u32, range: &KeyRange, fixed: Fixed) -> bool {
        let Some(stem) = fixed.stem(&range.first) else { return false };
        let behind = self.catalog.join(join).cover.behind(&range.first);
        behind.is_none_or(|next| !self.statuses.get(next).first().starts_with(stem))
    }
}

/// As a gap is filled that reaches no further than what was asked for.
fn settled(filled: Result<(), Unfilled>) -> Result<(), Missing> {
    filled.map_err(|_| Missing)
}
