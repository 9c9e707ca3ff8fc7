//! Stale folds that are recomputed piece by piece, because they have more sources than a slice has rows.
//!
//! Where the tuple goes that gave an output its value, the next best is among all that are left. Such an output is removed, and the keys of the
//! join's first source are looked at anew, some in each slice: what comes of them is added to the output as if it had just been written. What
//! is really written meanwhile changes the output as well. So a tuple may be added twice, which changes neither the
//! least nor the greatest; operators of which that is not true begin anew with any change.
//!
//! # Invariants
//! - RF1. An output that is being refolded has the best of tuples that there are: of all that come of keys before the place where it
//!   goes on, and perhaps of others. Where the best goes, it is stale again, and begins anew.
//! - RF2. Refolding that is undone again and again ends, as gathering does (J3).
//!
//! # Cost
//! That of computing the output as a whole, and the rows of up to five slices to find that it has so many.

use crate::catalog::{Fold, Plan};
use crate::engine::Engine;
use crate::exec::{Execution, Missing, Tuples};
use crate::fold::Folded;
use crate::gather::{FIRST_SHARE, Step, fitting};
use crate::status::StatusId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::fixed_slots;

/// How far an output has come.
#[derive(Debug)]
pub(crate) struct Refolding {
    /// All keys of the first source before it were looked at. `None`: none were.
    at: Option<Vec<u8>>,
    /// How many of these keys are looked at next.
    rows: usize,
}

impl Engine {
    /// Recomputes one stale fold, at once or, where that takes more than a slice, beginning with it.
    pub(crate) fn recompute_fold(
        &mut self,
        id: StatusId,
        key: &[u8],
    ) -> Result<Vec<Folded>, Missing> {
        let join = self.statuses.get(id).join;
        let plan = self.catalog.join(join).plan.clone();
        let range = KeyRange::point(key);
        let Some(bindings) = fixed_slots(&plan.join.output, &range) else { return Ok(Vec::new()) };
        let mut execution = Execution::new(join, plan.clone(), &range);
        execution.pick = plan.picks;
        if self.may_gather(join) && plan.join.keep.is_none() {
            execution.rows_max = self.slices.rows_max();
            execution.may_gather = true;
        }
        if self.run(&mut execution, 0, &bindings).is_err() {
            if execution.gathers {
                self.begin_refolding(id, key);
            }
            return Err(Missing);
        }
        self.note_whole(join, execution.visited);
        Ok(self.fold(&plan, execution.tuples))
    }

    fn begin_refolding(&mut self, id: StatusId, key: &[u8]) {
        // What was noted for the range by changes before it must not be applied to what comes of it (N1).
        self.feed(id);
        let join = self.statuses.get(id).join;
        let rows = (self.slices.rows_max() / FIRST_SHARE).max(1);
        let Some(work) = &mut self.statuses.get_mut(id).work else { return };
        if work.stale.remove(key) {
            work.refolding.insert(key.into(), Refolding { at: None, rows });
            self.catalog.join_mut(join).gatherings += 1;
            self.remove_output(join, key);
        }
    }

    /// Whether an output is being refolded.
    pub(crate) fn is_refolding(&self, id: StatusId, key: &[u8]) -> bool {
        let work = self.statuses.get(id).work.as_ref();
        work.is_some_and(|work| work.refolding.contains_key(key))
    }

    /// Takes a step with the first output of `wanted` that is being refolded; whether there was one.
    pub(crate) fn go_on_refolding(
        &mut self,
        id: StatusId,
        wanted: &KeyRange,
    ) -> Result<bool, Missing> {
        let Some(work) = &self.statuses.get(id).work else { return Ok(false) };
        let found = work.refolding.iter().find(|(key, _)| wanted.contains(key));
        let Some((key, Refolding { at, rows })) = found else { return Ok(false) };
        let (key, from) = (key.clone(), at.clone());
        let most = if self.slices.is_active() { *rows } else { usize::MAX };
        let join = self.statuses.get(id).join;
        let plan = self.catalog.join(join).plan.clone();
        let range = KeyRange::point(&key);
        let Some(bindings) = fixed_slots(&plan.join.output, &range) else { return Ok(false) };
        let mut execution = Execution::new(join, plan.clone(), &range);
        execution.step = Some(Step { from, most, next: None });
        self.run(&mut execution, 0, &bindings)?;
        // What came meanwhile concerns what was added before (N1).
        self.feed(id);
        let Execution { tuples, visited, step, .. } = execution;
        self.slices.keep(usize::try_from(visited).unwrap_or(usize::MAX));
        let next = step.and_then(|step| step.next);
        let rows_max = self.slices.rows_max();
        let work = self.statuses.get_mut(id).work.as_mut();
        let Some(refolding) = work.and_then(|work| work.refolding.get_mut(&key)) else {
            // It has become stale again.
            tuples.release(&mut self.store.pool);
            return Ok(true);
        };
        if next.is_some() {
            refolding.at.clone_from(&next);
            refolding.rows = fitting(most, rows_max, visited);
        }
        self.enter_tuples(id, &plan, &key, tuples);
        if next.is_none() {
            if let Some(work) = &mut self.statuses.get_mut(id).work {
                work.refolding.remove(&key);
            }
            self.counters.folds_gathered += 1;
            self.catalog.join_mut(join).gatherings = 0;
            self.settle(id);
        }
        self.drain();
        Ok(true)
    }

    /// Adds the tuples of a step to the output.
    fn enter_tuples(&mut self, id: StatusId, plan: &Plan, key: &[u8], tuples: Tuples) {
        if plan.tallies() {
            for at in 0..tuples.tuples.len() {
                let new = (None, Some(tuples.tuples[at].value));
                self.change_tally(id, plan, key, tuples.source_key(at), new);
            }
            tuples.release(&mut self.store.pool);
            return;
        }
        // One output, so at most one value.
        for Folded { key, value, fold } in self.fold(plan, tuples) {
            let from: Box<[u8]> = match fold {
                Some(Fold::From(from)) => from,
                _ => Box::default(),
            };
            self.add_tuple(id, plan, &key, &from, value);
            self.store.pool.release(value);
        }
    }
}
