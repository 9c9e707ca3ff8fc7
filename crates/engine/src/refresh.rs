//! Freshness: making the status ranges of a read cover it, and clean (Pequod §3.2, §3.3).
//!
//! Gaps are filled by execution ([`crate::gaps`]). Logged check keys
//! are applied by running the rest of the loops with the key bound (partial invalidation).
//! Where keys of several check sources changed, the tuples that both concern cannot be told
//! apart any more, and the range is recomputed as a whole (complete invalidation).
//!
//! A step is never dearer than recomputing the range: where stale folds, or check keys that went, would together visit more
//! rows than that, the range is recomputed once for all of them. So a read costs at most about twice a recomputation, however
//! many removals came before it.

use crate::engine::Engine;
use crate::exec::{Execution, Missing};
use crate::fold::Folded;
use crate::kept::{is_group, is_short_group};
use crate::relate::is_point;
use crate::status::{StatusId, Work};
use crate::views::Views;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::key::{before_end, end_at_most};
use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Bindings, fixed_slots};

/// Reading over more ranges than this, gaps between them included, makes one of them all.
const RANGES_MERGED_MIN: usize = 8;
/// A read in slices makes one of so many ranges at a time, where it goes on.
const RANGES_MERGED_TOGETHER: usize = 128;

impl Engine {
    /// Makes what `join` gives in `range` materialized and current, and adds the status ranges
    /// that say so to `read`.
    pub(crate) fn ensure(
        &mut self,
        join: u32,
        range: &KeyRange,
        mut read: Option<&mut Vec<StatusId>>,
    ) -> Result<(), Missing> {
        if self.views.is_pull(join) || self.base.is_elsewhere(range) {
            return Ok(());
        }
        self.feed_below_or_wait(join)?;
        if range.first.len().max(range.last.len()) > Limits::KEY_BYTES_CEILING + 1 {
            return self.ensure(join, &range.clone().cut(Limits::KEY_BYTES_CEILING), read);
        }
        if let Some(id) = self.views.status_at(join, &range.first) {
            let status = self.views.statuses.get(id);
            if status.expires_at().is_none() && status.covers(&range.first, &range.last) {
                self.views.catalog.join_mut(join).counters.hits += 1;
                if let Some(read) = read {
                    read.push(id);
                } else if is_point(range) {
                    self.views.credit_key(id);
                }
                return self.refresh(id, range);
            }
        }
        let plan = self.views.catalog.join(join).plan.clone();
        let wanted = range.intersection(&plan.join.output.range_of_all());
        let wanted = plan.widened(wanted);
        if wanted.is_empty()
            || self.base.is_elsewhere(&wanted)
            || fixed_slots(&plan.join.output, &wanted).is_none()
        {
            return Ok(());
        }
        if !plan.join.mode.is_maintained() {
            self.drop_expired(join, &wanted);
        }
        let mut resumed = self.frontier(join, &wanted)?;
        let mut missing = Ok(());
        let mut at = resumed.clone().unwrap_or_else(|| wanted.first.clone());
        if self.reads.slices.is_active() {
            self.merge_scattered(join, &KeyRange::new(&at, &wanted.last), RANGES_MERGED_TOGETHER);
        } else {
            self.merge_scattered(join, &wanted, usize::MAX);
        }
        let mut is_filled = false;
        loop {
            let was_there = !core::mem::take(&mut is_filled);
            if was_there && self.reads.slices.lets_others() {
                self.views.note_frontier(join, &wanted, at);
                return Err(Missing);
            }
            let end = match self.views.status_at(join, &at) {
                Some(mut id) => {
                    if self.refresh(id, &wanted).is_err() {
                        missing = Err(Missing);
                        // It may have been divided, for the read to go on with the first part.
                        match self.views.status_at(join, &at) {
                            Some(part) => id = part,
                            None => return missing,
                        }
                    }
                    if let Some(read) = &mut read {
                        read.push(id);
                    }
                    self.views.note_snapshot(id);
                    self.views.catalog.join_mut(join).counters.hits += u64::from(was_there);
                    self.views.statuses.get(id).last().to_vec()
                }
                None => {
                    let gap = self.next_part(join, &at, &wanted.last);
                    match self.fill(join, &gap) {
                        // What was made or extended is met, refreshed and noted next, before others go first: a snapshot
                        // may be gone by then.
                        Ok(()) => {
                            is_filled = true;
                            continue;
                        }
                        Err(Missing) => missing = Err(Missing),
                    }
                    gap.last
                }
            };
            if self.memory.lacks() {
                // What comes behind would give up, too.
                if self.reads.slices.is_active() {
                    self.views.note_frontier(join, &wanted, at);
                } else {
                    self.views.forget_frontier(join, &wanted);
                }
                return Err(Missing);
            }
            if self.reads.slices.is_over() {
                self.views.note_frontier(join, &wanted, at);
                return Err(Missing);
            }
            if !end.is_empty() && before_end(&end, &wanted.last) {
                at = end;
            } else if resumed.take().is_some() {
                // What is before it may have changed since.
                self.begin_anew(join, &wanted);
                at.clone_from(&wanted.first);
            } else {
                if missing.is_ok() {
                    self.end_at_frontier(join, &wanted);
                }
                return missing;
            }
        }
    }

    /// What is to be filled next from `at` on: the gap, or the part of it that fits into a slice.
    fn next_part(&self, join: u32, at: &[u8], last: &[u8]) -> KeyRange {
        let mut gap = self.views.gap_from(join, at, last);
        if self.reads.slices.is_active() {
            let ends = self.views.catalog.join(join).part_ends.iter();
            let inside = ends.filter(|end| ***end > *at && before_end(end, &gap.last));
            if let Some(end) = inside.min() {
                gap.last = end.to_vec();
            }
        }
        gap
    }

    /// Makes one invalid range of many small ones with gaps between them, the first `most` of them: filling each gap by
    /// itself would leave ever more ranges behind.
    fn merge_scattered(&mut self, join: u32, wanted: &KeyRange, most: usize) {
        let installed = self.views.catalog.join(join);
        let goes_on =
            |more: bool| if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let mut behind = 0;
        installed.cover.each_behind(wanted, |_| {
            behind += 1;
            goes_on(behind < RANGES_MERGED_MIN)
        });
        if behind < RANGES_MERGED_MIN || !installed.mode().is_maintained() {
            return;
        }
        let mut ids: Vec<_> = self.views.status_at(join, &wanted.first).into_iter().collect();
        installed.cover.each_behind(wanted, |id| {
            if ids.len() < most {
                ids.push(id);
            }
            goes_on(ids.len() < most)
        });
        ids.truncate(most);
        let mut at = wanted.first.as_slice();
        let mut whole = wanted.clone();
        let mut gaps = false;
        for &id in &ids {
            let status = self.views.statuses.get(id);
            gaps |= *status.first() > *at;
            at = status.last();
            if *status.first() < *whole.first {
                whole.first = status.first().to_vec();
            }
            if !end_at_most(status.last(), &whole.last) {
                whole.last = status.last().to_vec();
            }
            if at.is_empty() {
                break;
            }
        }
        if ids.len() == most {
            whole.last = at.to_vec();
        } else {
            gaps |= !at.is_empty() && before_end(at, &wanted.last);
        }
        if !gaps {
            return;
        }
        for id in ids {
            self.forget(id);
        }
        let id = self.make_status(join, &whole);
        self.dirty(id).invalid = true;
    }

    /// Puts the outputs of a range that was computed as a whole: of each group those that the join keeps.
    pub(crate) fn put_all(&mut self, join: u32, range: &KeyRange, mut folded: Vec<Folded>) {
        self.keep_best(join, range, &mut folded);
        self.set_all(join, folded);
    }

    /// The same for a status range that had none.
    pub(crate) fn put_first(&mut self, id: StatusId, range: &KeyRange, mut folded: Vec<Folded>) {
        let join = self.views.statuses.get(id).join;
        self.keep_best(join, range, &mut folded);
        self.reserve_outputs(id, &folded);
        self.set_all(join, folded);
    }

    /// Makes room for outputs of a range that are about to come: a page that is made for them at once is as large as they
    /// are, and none of them moves.
    fn reserve_outputs(&mut self, id: StatusId, folded: &[Folded]) {
        let status = self.views.statuses.get(id);
        let (Some(group), [first, .., last]) = (status.group, folded) else { return };
        let layer = self.views.catalog.join(status.join).layer;
        let table = self.store.table_mut(layer).0;
        let skip = table.group_prefix(group).len();
        let bytes = folded.iter().map(|output| output.key.len() - skip).sum();
        table.reserve_in(group, (&first.key[skip..], &last.key[skip..]), folded.len(), bytes);
    }

    fn set_all(&mut self, join: u32, folded: Vec<Folded>) {
        for Folded { key, value, fold } in folded {
            self.set_output(join, &key, value, fold);
        }
    }

    /// Does the work that a read of `wanted` needs of a status range.
    pub(crate) fn refresh(&mut self, id: StatusId, wanted: &KeyRange) -> Result<(), Missing> {
        let status = self.views.statuses.get_mut(id);
        status.heat = self.memory.ranges.hit(status.heat);
        let plan = &self.views.catalog.join(status.join).plan;
        // Which outputs of a group are kept is decided by all that is to be done for it.
        let group = plan.join.keep.is_some().then(|| plan.whole_groups(wanted));
        let wanted = group.as_ref().unwrap_or(wanted);
        // Work that stays where the read accepts homes which are not heard: looked at in every round, it would never let it end.
        let (mut accepts, mut above_done) = (false, false);
        loop {
            let is_above_done = core::mem::take(&mut above_done);
            // What is done below may change what the range reads, and so note more for it.
            self.feed_or_wait(id)?;
            let Some(work) = &self.views.statuses.get(id).work else { return Ok(()) };
            if self.reads.slices.lets_others() {
                return Err(Missing);
            }
            if !work.suspended.is_empty() && !accepts {
                self.await_homes_of(id)?;
                accepts = true;
                continue;
            }
            if work.invalid {
                self.rebuild(id)?;
                continue;
            }
            if !work.upstream.is_empty() && !is_above_done {
                self.refresh_upstream(id)?;
                above_done = true;
                continue;
            }
            if work.log.is_mixed() || self.views.is_gathered_in_vain(id) {
                self.invalidate(id);
                continue;
            }
            if work.gathering {
                let whole = self.views.statuses.get(id).range();
                if !self.apply_log(id, &whole)? {
                    self.gather(id)?;
                }
                continue;
            }
            if self.apply_log(id, wanted)?
                || self.go_on_refolding(id, wanted)?
                || self.recompute_stale(id, wanted)?
            {
                continue;
            }
            self.settle(id);
            return Ok(());
        }
    }

    fn refresh_upstream(&mut self, id: StatusId) -> Result<(), Missing> {
        let work =
            self.views.statuses.get(id).work.as_ref().expect("refreshed because of its work");
        let upstream: Vec<_> = work.upstream.iter().copied().collect();
        let mut missing = Ok(());
        for source in upstream {
            let Some(status) = self.views.statuses.find(source) else { continue };
            let whole = status.range();
            self.counters.upstreams_refreshed += 1;
            if self.refresh(source, &whole).is_err() {
                missing = Err(Missing);
                continue;
            }
            // R4: it may have been good enough for this read alone.
            let relies = |work: &Work| !work.suspended.is_empty() || !work.upstream.is_empty();
            let work = self.views.statuses.find(source).and_then(|status| status.work.as_deref());
            if work.is_some_and(relies) {
                continue;
            }
            if let Some(work) = &mut self.views.statuses.get_mut(id).work {
                work.upstream.remove(&source);
            }
        }
        self.settle(id);
        missing
    }

    /// Recomputes the stale folds of `wanted`; whether there were any.
    fn recompute_stale(&mut self, id: StatusId, wanted: &KeyRange) -> Result<bool, Missing> {
        let Some(work) = &self.views.statuses.get(id).work else { return Ok(false) };
        let concerns = |key: &[u8]| wanted.contains(key) || is_short_group(key, wanted);
        let mut stale: Vec<_> = work.stale.iter().filter(|key| concerns(key)).cloned().collect();
        // What of a group is missing is known when the outputs are that there are.
        stale.sort_by_key(|key| is_group(key));
        let join = self.views.statuses.get(id).join;
        let mut missing = Ok(());
        for (at, key) in stale.iter().enumerate() {
            if self.reads.slices.lets_others() {
                missing = Err(Missing);
                break;
            }
            let status = self.views.statuses.get(id);
            let rows = status.work.as_ref().map(|work| work.refolded.rows_after(stale.len() - at));
            if rows.is_some_and(|rows| rows > status.visited().max(1)) {
                self.invalidate(id);
                break;
            }
            let before = self.counters.rows_read;
            let group = is_group(key).then(|| KeyRange::prefix(key));
            let is_full = group.is_some() && !self.views.is_short(join, key);
            let recomputed = match &group {
                Some(_) if is_full => Ok(Vec::new()),
                Some(group) => match self.compute_best(join, group) {
                    Some(best) => Ok(best),
                    None => self.recompute_fold(id, key),
                },
                None => self.recompute_fold(id, key),
            };
            let Ok(folded) = recomputed else {
                missing = Err(Missing);
                break;
            };
            // While the key is stale: what came meanwhile is in what was computed (N1).
            self.feed(id);
            self.reads.slices.keep(1);
            let visited = self.counters.rows_read - before;
            if let Some(work) = &mut self.views.statuses.get_mut(id).work {
                work.stale.remove(key);
                work.refolded.took(visited);
            }
            match group {
                Some(group) if !is_full => self.replace_outputs(id, &group, folded),
                Some(_) => {}
                None if folded.is_empty() => self.remove_output(join, key),
                None => {
                    for Folded { key, value, fold } in folded {
                        self.put_output(join, &key, value, fold);
                    }
                }
            }
        }
        self.settle(id);
        self.drain();
        missing.map(|()| !stale.is_empty())
    }

    /// Recomputes a range as a whole and changes only the outputs that differ.
    fn rebuild(&mut self, id: StatusId) -> Result<(), Missing> {
        let status = self.views.statuses.get(id);
        let (join, fixed, range) = (status.join, status.fixed(), status.range());
        let filed = status.filed();
        let divides_on = status.work.as_ref().is_some_and(|work| work.divides_on);
        let plan = self.views.catalog.join(join).plan.clone();
        let mut bindings = Bindings::new();
        fixed.bind(&plan.join.output, &range.first, &mut bindings);
        let mut execution = Execution::new(join, plan.clone(), &range);
        execution.follow = Some((&filed, fixed));
        if plan.join.mode.is_maintained() {
            execution.rows_max = self.reads.slices.rows_max();
        }
        execution.divides_on = divides_on;
        self.allow_gathering(&mut execution, &bindings);
        if self.run(&mut execution, 0, &bindings).is_err() {
            if execution.gathers {
                self.begin_gathering(id, execution.is_divisible);
                self.drain();
            } else if let Some(at) = execution.split {
                self.divide(id, &at);
            }
            return Err(Missing);
        }
        let Execution { tuples, spans, read, rows, visited, .. } = execution;
        self.reads.slices.keep(rows);
        self.note_whole(join, visited);
        let rows = spans.len() + 2 * tuples.tuples.len();
        let status = self.views.statuses.get_mut(id);
        status.rows = u32::try_from(rows).unwrap_or(u32::MAX);
        status.set_visited(visited);
        let folded = self.fold(&plan, tuples);
        if let Some(work) = &mut self.views.statuses.get_mut(id).work {
            work.invalid = false;
        }
        self.link(id, &spans, read);
        self.views.statuses.get_mut(id).since = self.now;
        self.settle(id);
        self.replace_outputs(id, &range, folded);
        self.views.catalog.join_mut(join).counters.rebuilds += 1;
        self.drain();
        Ok(())
    }

    /// Puts these outputs in the place of those that there are in a part of a status range, and changes only what differs.
    fn replace_outputs(&mut self, id: StatusId, range: &KeyRange, mut folded: Vec<Folded>) {
        let status = self.views.statuses.get(id);
        let (join, sifted) = (status.join, status.sifted);
        self.keep_best(join, range, &mut folded);
        for key in self.outputs_in(join, range, sifted) {
            if folded.binary_search_by(|folded| (*folded.key).cmp(&key)).is_err() {
                self.unset_output(join, &key);
            }
        }
        self.set_all(join, folded);
    }

    /// Drops the snapshots that overlap `wanted` and whose time is over.
    fn drop_expired(&mut self, join: u32, wanted: &KeyRange) {
        for id in self.views.overlapping(join, wanted) {
            if self.is_snapshot_over(id) {
                self.discard(id);
            }
        }
    }
}

impl Views {
    /// The status range of `join` in which `key` lies.
    pub(crate) fn status_at(&self, join: u32, key: &[u8]) -> Option<StatusId> {
        let id = self.catalog.join(join).cover.upto(key)?;
        self.statuses.get(id).contains(key).then_some(id)
    }

    /// The gap from `at` to the next status range, or to `last`.
    pub(crate) fn gap_from(&self, join: u32, at: &[u8], last: &[u8]) -> KeyRange {
        let next = self.catalog.join(join).cover.from(at);
        match next.map(|id| self.statuses.get(id).first()) {
            Some(next) if before_end(next, last) => KeyRange::new(at, next),
            _ => KeyRange::new(at, last),
        }
    }

    /// The status ranges of `join` that overlap `range`.
    pub(crate) fn overlapping(&self, join: u32, range: &KeyRange) -> Vec<StatusId> {
        let mut found: Vec<_> = self.status_at(join, &range.first).into_iter().collect();
        self.catalog.join(join).cover.each_behind(range, |id| {
            found.push(id);
            ControlFlow::Continue(())
        });
        found
    }
}
