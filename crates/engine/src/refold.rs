//! Stale folds, and short groups, that are recomputed piece by piece, because they have more sources than a slice has rows.
//!
//! Where the tuple goes that gave an output its value, the next best is among all that are left; where an output goes of a group of which others
//! were left out, so is the one that comes in its place. Such outputs are removed, and the keys of the source that is taken in
//! steps ([`crate::gather`]) are looked at anew, some in each slice: what comes of them is added as if it had just been written.
//! What is really written meanwhile changes the outputs as well. So a tuple may be added twice, which changes neither the
//! least nor the greatest; operators of which that is not true begin anew with any change.
//!
//! # Invariants
//! - RF1. What is being refolded has the best of tuples that there are: of all that come of keys before the place where it
//!   goes on, and perhaps of others. Where the best goes, it begins anew.
//! - RF2. Refolding that is undone again and again ends, as gathering does (J3).
//!
//! # Cost
//! That of computing the outputs as a whole, and the rows of up to five slices to find that there are so many.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::{Execution, Missing};
use crate::fold::Folded;
use crate::gather::{FIRST_SHARE, Step, fitting};
use crate::kept::{is_group, is_short_group};
use crate::rows::lead;
use crate::status::{StatusId, Work};
use crate::tuples::Tuples;
use crate::views::Views;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::{Operator, fixed_slots};

/// How far an output, or a group of them, has come.
#[derive(Debug, Default)]
pub(crate) struct Refolding {
    /// All keys of the source that is taken in steps before it were looked at. `None`: none were.
    at: Option<Vec<u8>>,
    /// How many of these keys are looked at next; 0: as many as are usual for the first step.
    rows: usize,
    /// What was known is void.
    begins_anew: bool,
}

/// The outputs that are noted stale by a key: itself, or all of a group.
pub(crate) fn stale_range(key: &[u8]) -> KeyRange {
    if is_group(key) { KeyRange::prefix(key) } else { KeyRange::point(key) }
}

impl Work {
    /// Notes that an output or a group must be recomputed. An output with which that is under way begins anew (RF1); whether a group is short is
    /// known when its last key was added.
    pub(crate) fn note_stale(&mut self, key: &[u8]) {
        match self.refolding.get_mut(key) {
            Some(refolding) => refolding.begins_anew |= !is_group(key),
            None => _ = self.stale.insert(key.into()),
        }
    }
}

/// Whether a tuple that is added twice counts once.
fn adds_once(plan: &Plan) -> bool {
    use Operator::{Avg, Count, Sum};
    !plan.tallies() && !matches!(plan.operator, Count | Sum | Avg)
}

impl Engine {
    /// What stale outputs are, computed at once; or, where that takes more than a slice, they are begun with.
    pub(crate) fn recompute_fold(
        &mut self,
        id: StatusId,
        key: &[u8],
    ) -> Result<Vec<Folded>, Missing> {
        let join = self.views.statuses.get(id).join;
        let plan = self.views.catalog.join(join).plan.clone();
        let range = stale_range(key);
        let Some(bindings) = fixed_slots(&plan.join.output, &range) else { return Ok(Vec::new()) };
        let mut execution = Execution::new(join, plan.clone(), &range);
        if !is_group(key) {
            execution.pick = plan.picks;
        }
        // How many outputs of a group there are is told with one that is stale.
        let is_whole = is_group(key) || plan.join.keep.is_none();
        if is_whole && self.may_gather(join) && self.holds_few_outputs(join, &range) {
            execution.rows_max = self.reads.slices.rows_max();
            execution.may_gather = true;
        }
        if self.run(&mut execution, 0, &bindings).is_err() {
            if execution.gathers {
                self.begin_refolding(id, key, execution.visited);
            }
            return Err(Missing);
        }
        self.note_whole(join, execution.visited);
        Ok(self.fold(&plan, execution.tuples))
    }

    fn begin_refolding(&mut self, id: StatusId, key: &[u8], visited: u64) {
        // What was noted for the range by changes before it must not be applied to what comes of it (N1).
        self.feed(id);
        let Some(work) = &mut self.views.statuses.get_mut(id).work else { return };
        if work.stale.remove(key) {
            work.refolding.insert(key.into(), Refolding::default());
            work.refolded.took_part(visited, true);
            self.clear_refolded(id, key);
        }
    }

    /// Removes outputs that are looked for anew.
    fn clear_refolded(&mut self, id: StatusId, key: &[u8]) {
        let status = self.views.statuses.get(id);
        let (join, sifted, range) = (status.join, status.sifted, stale_range(key));
        for key in self.outputs_in(join, &range, sifted) {
            self.unset_output(join, &key);
        }
        if is_group(key) {
            self.views.forget_kept(join, &range);
        }
        self.views.catalog.join_mut(join).gatherings += 1;
    }

    /// Takes a step with the first of what is being refolded in `wanted`; whether there was any.
    pub(crate) fn go_on_refolding(
        &mut self,
        id: StatusId,
        wanted: &KeyRange,
    ) -> Result<bool, Missing> {
        let status = self.views.statuses.get_mut(id);
        let visited_whole = status.visited().max(1);
        let Some(work) = &mut status.work else { return Ok(false) };
        let concerns = |key: &[u8]| wanted.contains(key) || is_short_group(key, wanted);
        let all = work.stale.len() + work.refolding.len();
        let found = work.refolding.iter_mut().find(|(key, _)| concerns(key));
        let Some((key, refolding)) = found else { return Ok(false) };
        let key = key.clone();
        if all > 1 && work.refolded.rows_after(all - 1) > visited_whole {
            self.invalidate(id);
            return Ok(true);
        }
        if refolding.begins_anew {
            *refolding = Refolding::default();
            self.feed(id);
            self.clear_refolded(id, &key);
            self.drain();
            return Ok(true);
        }
        let (from, rows) = (refolding.at.clone(), refolding.rows);
        let join = self.views.statuses.get(id).join;
        let plan = self.views.catalog.join(join).plan.clone();
        let most = match rows {
            _ if !self.may_gather(join) => usize::MAX,
            0 => (self.reads.slices.rows_max() / FIRST_SHARE).max(1),
            rows => rows,
        };
        let range = stale_range(&key);
        let Some(bindings) = fixed_slots(&plan.join.output, &range) else { return Ok(false) };
        let mut execution = Execution::new(join, plan.clone(), &range);
        execution.step = Some(Step { from, most, next: None });
        self.run(&mut execution, 0, &bindings)?;
        // What came meanwhile concerns what was added before (N1).
        self.feed(id);
        let Execution { tuples, visited, step, .. } = execution;
        self.reads.slices.keep(usize::try_from(visited).unwrap_or(usize::MAX));
        let next = step.and_then(|step| step.next);
        let rows_max = self.reads.slices.rows_max();
        // While it is taken out, what is added is no change of it.
        let work = self.views.statuses.get_mut(id).work.as_mut();
        let taken = work.and_then(|work| {
            work.refolded.took_part(visited, false);
            work.refolding.remove(&key)
        });
        let Some(mut refolding) = taken else {
            tuples.release(&mut self.store.pool);
            return Ok(true);
        };
        self.enter_tuples(id, &plan, tuples);
        if next.is_some() || refolding.begins_anew {
            refolding.rows = fitting(most, rows_max, visited);
            refolding.at = next;
            self.dirty(id).refolding.insert(key, refolding);
        } else {
            if self.views.is_short(join, &key) {
                self.mark_stale(id, &key);
            }
            self.counters.folds_gathered += 1;
            self.views.catalog.join_mut(join).gatherings = 0;
            self.settle(id);
        }
        self.drain();
        Ok(true)
    }

    fn enter_tuples(&mut self, id: StatusId, plan: &Plan, tuples: Tuples) {
        for at in 0..tuples.tuples.len() {
            let (key, source_key) = (tuples.key(at), tuples.source_key(at));
            self.add_tuple(id, plan, key, source_key, tuples.tuples[at].value);
        }
        tuples.release(&mut self.store.pool);
    }
}

impl Views {
    /// Whether a change of an output has it, or its group, begin anew.
    pub(crate) fn is_undone(&mut self, id: StatusId, plan: &Plan, key: &[u8]) -> bool {
        let Some(work) = &mut self.statuses.get_mut(id).work else { return false };
        if work.refolding.is_empty() || adds_once(plan) {
            return false;
        }
        let group = plan.join.keep.and_then(|keep| lead(key, keep.components));
        let of = if work.refolding.contains_key(key) { Some(key) } else { group };
        let refolding = of.and_then(|of| work.refolding.get_mut(of));
        refolding.map(|refolding| refolding.begins_anew = true).is_some()
    }
}
