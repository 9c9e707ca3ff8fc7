//! Partial invalidation: logged check keys are applied to a status range when it is read (Pequod §3.2).
//!
//! A check key that came or went is applied by running the rest of the loops with the key bound. Where that visits more
//! rows than a recomputation of the range, or more than a slice may, the range is recomputed.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::{Execution, Missing};
use crate::log::LogEntry;
use crate::status::StatusId;
use crate::tuples::Tuples;
use crate::updaters::{CONTEXT_ROOM, Reader, Target, decode};
use crate::views::Views;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::key::before_end;
use headwater_pattern::Bindings;

/// More rows than a slice has are applied in one step where they are no more than such a part of those of the whole range…
const APPLIED_SHARE: usize = 8;
/// … and no more than so many slices have.
const APPLIED_SLICES: usize = 4;

/// What became of a logged check key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The logged key is applied, as far as there was anything to apply.
    Applied,
    /// The read does not concern it.
    Unconcerned,
    /// The status range has become clean meanwhile.
    Gone,
}

impl Engine {
    /// Notes that a check key came or went, unless that undoes what is noted (R2).
    pub(crate) fn log_check(
        &mut self,
        reader: Reader,
        target: Target,
        key: &[u8],
        was_there: bool,
    ) {
        let id = target.status();
        if self.views.statuses.get(id).is_invalid() {
            return;
        }
        self.views.statuses.charge(id);
        let entry = LogEntry { source: reader.source, context: target.context(), key };
        let work = self.dirty(id);
        if let Some(applied) = work.log.get(&entry) {
            // It was there, went and came back (or the reverse): nothing to apply.
            if applied != was_there {
                work.log.remove(&entry);
                self.views.updaters.contexts.release(target.context());
                self.settle(id);
            }
            return;
        }
        work.log.insert(&entry, was_there);
        self.views.updaters.contexts.retain(target.context());
        self.counters.checks_logged += 1;
    }

    /// Applies the logged check keys that concern `wanted`; whether there were any.
    pub(crate) fn apply_log(&mut self, id: StatusId, wanted: &KeyRange) -> Result<bool, Missing> {
        let Some(work) = &self.views.statuses.get(id).work else { return Ok(false) };
        if work.log.is_empty() {
            return Ok(false);
        }
        let join = self.views.statuses.get(id).join;
        let step = self.begin_step(join);
        let applied = self.apply_all_logged(id, wanted);
        self.end_step(join, step);
        applied
    }

    fn apply_all_logged(&mut self, id: StatusId, wanted: &KeyRange) -> Result<bool, Missing> {
        let Some(work) = &self.views.statuses.get(id).work else { return Ok(false) };
        if let Some((LogEntry { source, context, key }, was_there)) = work.log.only() {
            let mut room = core::mem::take(&mut self.scratch.entry_room);
            room.clear();
            room.extend_from_slice(key);
            let entry = LogEntry { source, context, key: room.as_slice() };
            let step = self.apply_logged(id, &entry, was_there, wanted);
            self.scratch.entry_room = room;
            let step = step?;
            if step != Step::Gone {
                self.settle(id);
            }
            return Ok(step != Step::Unconcerned);
        }
        let mut entries: Vec<_> =
            work.log.iter().map(|(entry, was)| (entry.clone(), was)).collect();
        // What a key gave goes before what it gives now comes: both may be one output.
        entries.sort_by_key(|(_, was_there)| !was_there);
        let mut applied = false;
        let mut gone = entries.iter().filter(|(_, was_there)| *was_there).count();
        // What is good enough for the read alone stays, and has been looked at.
        let upstream_before = work.upstream.len();
        for (LogEntry { source, context, key }, was_there) in entries {
            if was_there && self.views.is_dearer_to_take_out(id, gone) {
                self.invalidate(id);
                return Ok(true);
            }
            gone -= usize::from(was_there);
            let entry = LogEntry { source, context, key: &*key };
            let log = self.views.statuses.get(id).work.as_ref().map(|work| &work.log);
            if log.is_none_or(|log| log.get(&entry).is_none()) {
                continue;
            }
            if self.reads.slices.lets_others() {
                return Err(Missing);
            }
            match self.apply_logged(id, &entry, was_there, wanted)? {
                Step::Applied => applied = true,
                Step::Unconcerned => continue,
                Step::Gone => return Ok(true),
            }
            let Some(work) = &self.views.statuses.get(id).work else { return Ok(true) };
            if work.invalid || work.upstream.len() > upstream_before {
                break;
            }
        }
        self.settle(id);
        Ok(applied)
    }

    /// Applies one logged key if it concerns `wanted`; forgets it if it concerns nothing.
    fn apply_logged(
        &mut self,
        id: StatusId,
        entry: &LogEntry<&[u8]>,
        was_there: bool,
        wanted: &KeyRange,
    ) -> Result<Step, Missing> {
        let status = self.views.statuses.get(id);
        let plan = self.views.catalog.join(status.join).plan.clone();
        let mut range = self.scratch.range_room.take().unwrap_or_else(KeyRange::all);
        status.copy_range(&mut range);
        let fixed = status.fixed();
        let mut room = CONTEXT_ROOM;
        let context = self.views.updaters.contexts.get(entry.context, &mut room).to_vec();
        let mut bindings = Bindings::new();
        fixed.bind(&plan.join.output, &range.first, &mut bindings);
        decode(&context, &mut bindings);
        let bound = plan.source(entry.source as usize).bind(entry.key, &mut bindings);
        let mut prefix = core::mem::take(&mut self.scratch.prefix_room);
        prefix.clear();
        let output = &plan.join.output;
        let whole = output.bound_prefix(&bindings, &mut prefix) == output.components.len();
        let concerns = |wanted: &KeyRange| match (bound, whole) {
            (false, _) => true,
            (true, true) => wanted.contains(&prefix),
            (true, false) => prefix_overlaps(&prefix, wanted),
        };
        let step = if concerns(wanted) { Step::Applied } else { Step::Unconcerned };
        let keep = step == Step::Unconcerned && concerns(&range);
        self.scratch.prefix_room = prefix;
        let done = match step {
            Step::Applied => {
                let bindings = bound.then_some(&bindings);
                self.apply_entry(id, &plan, entry, was_there, &range, bindings)
            }
            _ => Ok(()),
        };
        self.scratch.range_room = Some(range);
        done?;
        if keep {
            return Ok(step);
        }
        let Some(work) = &mut self.views.statuses.get_mut(id).work else { return Ok(Step::Gone) };
        if work.log.remove(entry) {
            self.views.updaters.contexts.release(entry.context);
        }
        Ok(step)
    }

    /// Applies one check key that came or went, by running the rest of the loops for it.
    /// Without `bindings` nothing can come of it.
    fn apply_entry(
        &mut self,
        id: StatusId,
        plan: &Rc<Plan>,
        entry: &LogEntry<&[u8]>,
        was_there: bool,
        range: &KeyRange,
        bindings: Option<&Bindings<'_>>,
    ) -> Result<(), Missing> {
        let source = entry.source as usize;
        let table = plan.source_tables[source];
        let role = self.views.catalog.role(table);
        let is_base = role.is_some_and(|role| role.writers.is_empty())
            && self.base.loads.own(table).is_none();
        if is_base && self.base.placed.is_none() {
            // A change of a base key is logged or undoes one that is (R2): it differs now.
            debug_assert_eq!(self.is_row_visible(plan, source, entry.key), Ok(!was_there), "R2");
        } else if self.is_row_visible(plan, source, entry.key)? == was_there {
            return Ok(());
        }
        let is_there = !was_there;
        self.counters.checks_applied += 1;
        let Some(bindings) = bindings else { return Ok(()) };
        let status = self.views.statuses.get(id);
        // The targets are searched once all rows were read.
        status.targets.fetch();
        let (join, fixed) = (status.join, status.fixed());
        let wider = status.filed_wider();
        let filed = wider.as_ref().unwrap_or(range);
        let mut execution = Execution::new(join, plan.clone(), range);
        execution.follow = Some((filed, fixed));
        execution.stepped = source + 1;
        if self.reads.slices.is_active() {
            execution.rows_max = self.most_applied(id);
            execution.gives_up = true;
        }
        if self.run(&mut execution, source + 1, bindings).is_err() {
            if execution.is_given_up() {
                self.invalidate(id);
            }
            return Err(Missing);
        }
        // What came meanwhile comes before what is about to change (N1).
        self.feed(id);
        let Execution { tuples, spans, read, rows, visited, .. } = execution;
        self.reads.slices.keep(rows);
        if self.views.statuses.get(id).is_invalid() {
            tuples.release(&mut self.store.pool);
            return Ok(());
        }
        let status = self.views.statuses.get_mut(id);
        if is_there {
            status.visits_more(visited);
            self.link(id, &spans, read);
        } else {
            status.visits_less(visited);
            if let Some(work) = &mut status.work {
                work.taken_out.took(visited);
            }
            self.views.unlink(id, &spans);
        }
        self.apply_tuples(id, &tuples, is_there);
        tuples.release(&mut self.store.pool);
        self.drain();
        Ok(())
    }

    /// How many rows a check key that came or went may lead to in one step: as many as a slice has, or more where computing the range
    /// anew, in slices, is much dearer. Where it leads to more, the range is computed anew.
    fn most_applied(&self, id: StatusId) -> usize {
        let (rows, visited) = (self.reads.slices.rows_max(), self.views.statuses.get(id).visited());
        let visited = usize::try_from(visited).unwrap_or(usize::MAX);
        (visited / APPLIED_SHARE).clamp(rows, rows.saturating_mul(APPLIED_SLICES))
    }

    pub(crate) fn apply_tuples(&mut self, id: StatusId, tuples: &Tuples, added: bool) {
        debug_assert!(!self.views.fan_outs.concern(id), "N1");
        let plan = self.views.catalog.join(self.views.statuses.get(id).join).plan.clone();
        for (at, tuple) in tuples.tuples.iter().enumerate() {
            let (key, source_key) = (tuples.key(at), tuples.source_key(at));
            if added {
                self.add_tuple(id, &plan, key, source_key, tuple.value);
            } else {
                self.remove_tuple(id, &plan, key, source_key, tuple.value);
            }
        }
    }
}

impl Views {
    /// Whether taking out what so many more check keys gave that went visits more rows than recomputing
    /// what they leave. What check keys that came give is visited by a recomputation too.
    fn is_dearer_to_take_out(&self, id: StatusId, more: usize) -> bool {
        let status = self.statuses.get(id);
        if self.catalog.join(status.join).plan.is_plain_copy() {
            // There each row is an output, which a recomputation would have to take out as well.
            return false;
        }
        let rows = status.work.as_ref().map_or(0, |work| work.taken_out.rows_of(more));
        rows > status.visited().saturating_sub(rows).max(1)
    }
}

/// Whether some key of `range` may start with `prefix`.
pub(crate) fn prefix_overlaps(prefix: &[u8], range: &KeyRange) -> bool {
    !range.is_empty()
        && before_end(prefix, &range.last)
        && (*range.first <= *prefix || range.first.starts_with(prefix))
}
