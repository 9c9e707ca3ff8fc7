//! Execution: nested loops over source keys, within the containing ranges of an output range.
//!
//! An execution changes nothing: it collects tuples, the source spans that it read (for
//! updaters), and the status ranges of other joins that it relied on. Only when all data was
//! there are they applied, so an execution that must wait for a load leaves no trace and is
//! simply run again (a restart context of its own would save work, never change an answer).
//!
//! # Cost
//! One containing range and one seek for each span; one match for each source key in it.

use crate::catalog::{Pick, Plan};
use crate::divide::{divides, leads_into, sample_rows};
use crate::engine::Engine;
use crate::fold::Folded;
use crate::gaps::Ahead;
use crate::gather::Step;
use crate::relate::is_point;
use crate::rows::LookedAt;
use crate::span::{SourceSpans, follow_span};
use crate::status::{Fixed, StatusId};
use crate::tuples::Tuples;
use crate::views::Views;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_pattern::{Bindings, Mode, put_containing_range};
use headwater_store::WARM_MAX;

/// A range of which a source has so many times the keys that a slice has, which do not say where to divide it, is gathered.
pub(crate) const GATHERED_FROM: usize = 4;

/// Some data is being loaded: the operation must be run again later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missing;

/// How much an execution has seen of what it needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Extent {
    /// All of it.
    Whole,
    /// Data is missing, or memory: nothing of it is kept.
    Lacking,
    /// It has visited more rows than it may: the same, and its range is to be divided.
    Cut,
}

/// What an execution works on and what it found.
#[derive(Debug)]
pub(crate) struct Execution<'r> {
    pub(crate) join: u32,
    pub(crate) plan: Rc<Plan>,
    /// The output keys wanted.
    pub(crate) range: &'r KeyRange,
    /// The status range for whose updaters spans are collected, and what it fixes.
    pub(crate) follow: Option<(&'r KeyRange, Fixed)>,
    pub(crate) tuples: Tuples,
    pub(crate) spans: SourceSpans,
    pub(crate) read: Vec<StatusId>,
    extent: Extent,
    /// Outputs of several homes may come out, of which only own ones are wanted.
    pub(crate) sifted: bool,
    /// How many bytes the tuples may take.
    pub(crate) allowance: usize,
    /// Source rows visited that count towards `rows_max`.
    pub(crate) rows: usize,
    /// Rows of the value source among `rows`.
    pub(crate) values: usize,
    /// Rows of the value source of which no output of the range came.
    pub(crate) missed: usize,
    /// How often keys of the value source were passed over.
    pub(crate) skipped: usize,
    /// How many rows of the value source, and how many of the check sources, it may visit; with more it is cut.
    pub(crate) rows_max: usize,
    /// Rows that the operation had visited before it.
    began: usize,
    /// It may look beyond what was asked for, if little is there; with more it is cut.
    pub(crate) ahead: Option<Ahead<'r>>,
    /// A range that cannot be divided is gathered.
    pub(crate) may_gather: bool,
    /// A range whose source spans have few rows each is gathered, though it could be divided.
    pub(crate) gathers_sparse: bool,
    /// A range is divided also where its parts read the same rows again.
    pub(crate) divides_on: bool,
    /// Where the execution takes more rows than it may, it is neither divided nor gathered, but given up.
    pub(crate) gives_up: bool,
    /// The range is to be gathered: it takes more rows than a slice, and is not divided.
    pub(crate) gathers: bool,
    /// There is a key at which the range could be divided.
    pub(crate) is_divisible: bool,
    /// The outputs are known already: rows of the value source are not looked at, and spans alone are collected.
    pub(crate) spans_only: bool,
    /// Of each span of the value source the row alone is wanted that its operator takes, the range being one output key.
    pub(crate) pick: Option<Pick>,
    /// The first source of which more than one key can lead to the range: it is the one that is taken in steps.
    pub(crate) stepped: usize,
    /// The keys of the source that is taken in steps which are looked at; `None`: all.
    pub(crate) step: Option<Step>,
    /// Beginnings of output keys, from the rows of sources that were visited before it was cut.
    pub(crate) sample: Vec<Vec<u8>>,
    /// How many rows are to be passed before the next is taken into the sample.
    pub(crate) unsampled: usize,
    /// Where to divide the range, once it is over.
    pub(crate) split: Option<Vec<u8>>,
    /// Rows of sources that were looked at, a span counting as one.
    pub(crate) visited: u64,
}

impl<'r> Execution<'r> {
    pub(crate) fn new(join: u32, plan: Rc<Plan>, range: &'r KeyRange) -> Self {
        Self {
            join,
            plan,
            range,
            follow: None,
            tuples: Tuples::default(),
            spans: SourceSpans::default(),
            read: Vec::new(),
            extent: Extent::Whole,
            sifted: false,
            allowance: usize::MAX,
            rows: 0,
            values: 0,
            missed: 0,
            skipped: 0,
            rows_max: usize::MAX,
            began: 0,
            ahead: None,
            may_gather: false,
            gathers_sparse: false,
            divides_on: false,
            gives_up: false,
            gathers: false,
            is_divisible: false,
            spans_only: false,
            pick: None,
            stepped: 0,
            step: None,
            sample: Vec::new(),
            unsampled: 0,
            split: None,
            visited: 0,
        }
    }

    /// After how many keys of the source that is taken in steps the range is to be gathered, where no key says where to divide it.
    pub(crate) fn gathered_from(&self) -> usize {
        let is_bounded = self.may_gather || self.gives_up || self.ahead.is_some();
        if is_bounded { self.rows_max.saturating_mul(GATHERED_FROM) } else { usize::MAX }
    }

    /// Whether a level is the one that is taken in steps; `span` has the keys that can lead to the range.
    fn is_stepped(&mut self, level: usize, span: &KeyRange) -> bool {
        if level == self.stepped && level < self.plan.value_source() && is_point(span) {
            self.stepped += 1;
        }
        level == self.stepped
    }

    /// How many keys of a source are looked at that do not say where to divide the range; with more it is cut.
    fn crowded_from(&self, is_stepped: bool) -> usize {
        if is_stepped { self.gathered_from() } else { self.rows_max.saturating_mul(GATHERED_FROM) }
    }

    /// Notes that a source has too many such keys. Below others, what the outputs of their keys begin with divides the range.
    fn note_crowded(&mut self, plan: &Plan, bindings: &Bindings<'_>, is_stepped: bool) {
        if is_stepped {
            self.gathers = true;
        } else {
            let mut prefix = Vec::new();
            plan.join.output.bound_prefix(bindings, &mut prefix);
            self.sample.push(prefix);
        }
    }

    /// Whether it took more rows than it may, and was given up for that.
    pub(crate) fn is_given_up(&self) -> bool {
        self.gives_up && self.extent == Extent::Cut
    }

    /// It has seen no more than this.
    pub(crate) fn limit(&mut self, extent: Extent) {
        self.extent = self.extent.max(extent);
    }
}

impl Engine {
    /// Runs the loops from source `level` on. Where data is missing, all of it that can be
    /// known to be missing is asked for, and nothing is kept.
    pub(crate) fn run(
        &mut self,
        execution: &mut Execution<'_>,
        level: usize,
        bindings: &Bindings<'_>,
    ) -> Result<(), Missing> {
        if self.base.placed.is_some() {
            if self.base.is_elsewhere(execution.range) {
                return Ok(());
            }
            execution.sifted = self.base.spans_homes(execution.range);
        }
        self.counters.executions += 1;
        execution.allowance = self.allowance();
        execution.began = self.reads.slices.visited();
        if self.reads.slices.enter() == 0 && self.computes_in_parts() {
            execution.rows_max = self.reads.slices.rows_max();
        }
        self.level(execution, level, bindings);
        if execution.extent == Extent::Cut
            && let Some(ahead) = &mut execution.ahead
        {
            let tuples = &execution.tuples;
            ahead.give_up((0..tuples.tuples.len()).map(|at| tuples.key(at)));
        } else if execution.is_given_up() {
            self.reads.slices.end_for_now();
        } else if execution.extent == Extent::Cut {
            if !execution.gathers {
                let key = execution.dividing_key();
                execution.is_divisible = key.is_some();
                execution.split = key.filter(|_| !execution.is_dear_in_parts());
                execution.gathers = execution.split.is_none() && execution.may_gather;
            }
            core::mem::take(&mut execution.tuples).release(&mut self.store.pool);
            if execution.split.is_some() || execution.gathers {
                self.reads.slices.end_for_now();
            } else {
                // Z1.
                self.start_over(execution);
                self.level(execution, level, bindings);
            }
        }
        self.reads.slices.leave();
        self.counters.rows_read += execution.visited;
        if execution.extent != Extent::Whole {
            core::mem::take(&mut execution.tuples).release(&mut self.store.pool);
            return Err(Missing);
        }
        self.reads.slices.visit(execution.rows);
        execution.read.sort_unstable();
        execution.read.dedup();
        Ok(())
    }

    /// Makes an execution begin anew, which may visit as many rows as there are.
    fn start_over(&mut self, execution: &mut Execution<'_>) {
        self.counters.rows_read += core::mem::take(&mut execution.visited);
        execution.rows_max = usize::MAX;
        execution.extent = Extent::Whole;
        execution.spans.clear();
        execution.read.clear();
        execution.sample = Vec::new();
    }

    fn level(&mut self, execution: &mut Execution<'_>, level: usize, bindings: &Bindings<'_>) {
        if execution.extent == Extent::Cut
            || self.reads.slices.is_over()
            || self.memory.lacks()
            || self.has_to_end()
        {
            execution.limit(Extent::Lacking);
            return;
        }
        let plan = execution.plan.clone();
        let mut span = self.scratch.span_rooms.pop().unwrap_or_else(KeyRange::all);
        let (output, pattern) = (&plan.join.output, plan.pattern(level));
        if put_containing_range(output, execution.range, pattern, bindings, &mut span) {
            self.visit_span(execution, &plan, level, bindings, &span);
        }
        self.scratch.span_rooms.push(span);
    }

    /// Runs the loop over the keys of a source in `span`, and those within it.
    fn visit_span(
        &mut self,
        execution: &mut Execution<'_>,
        plan: &Rc<Plan>,
        level: usize,
        bindings: &Bindings<'_>,
        span: &KeyRange,
    ) {
        if self.is_missing_ahead(execution, level, span) {
            execution.limit(Extent::Cut);
            return;
        }
        if self.prepare(execution, level, span).is_err() {
            execution.limit(Extent::Lacking);
        }
        let pattern = plan.pattern(level);
        let is_stepped = execution.is_stepped(level, span);
        let mut step = if is_stepped { execution.step.take() } else { None };
        let rest = step.as_ref().map(|step| step.rest_of(span));
        let looked_at = rest.as_ref().unwrap_or(span);
        if level == plan.value_source() {
            self.collect_tuples(execution, plan, bindings, looked_at, &mut step);
            if is_stepped {
                execution.step = step;
            }
            follow_span(execution, plan, level, bindings, span);
            return;
        }
        let (mut text, mut visited): (Vec<u8>, u64) = (Vec::new(), 1);
        let mut ends: Vec<usize> = Vec::new();
        // More rows than these are of use only where they do not tell where to divide the range.
        let divides = divides(plan, level, bindings) && !plan.has_lens(level);
        let most = if divides { execution.rows_max } else { usize::MAX };
        let crowded_from = if divides { usize::MAX } else { execution.crowded_from(is_stepped) };
        let (mut leading, mut looked, mut is_crowded) = (0, 0, false);
        let mut prefix = Vec::new();
        let rows = self.rows(
            execution.join,
            level,
            LookedAt::all(looked_at),
            &mut |key, row, _, weight| {
                if step.as_mut().is_some_and(|step| !step.takes(looked, key)) {
                    return ControlFlow::Break(());
                }
                visited += weight as u64;
                if looked >= crowded_from {
                    is_crowded = true;
                    return ControlFlow::Break(());
                }
                looked += weight;
                let Some(row) = row else { return ControlFlow::Continue(()) };
                // A span may have to hold more keys than lead into the range.
                let leads = match most {
                    usize::MAX => pattern.matches(key),
                    _ => leads_into(execution.range, plan, (pattern, key), bindings, &mut prefix),
                };
                leading += usize::from(leads);
                if leading > most {
                    return ControlFlow::Break(());
                }
                if divides && execution.is_too_far(plan, (pattern, key), bindings, &mut prefix) {
                    return ControlFlow::Break(());
                }
                if leads {
                    text.extend_from_slice(row);
                    ends.push(text.len());
                }
                ControlFlow::Continue(())
            },
        );
        self.release_row_holds();
        execution.visited += visited;
        if rows.is_err() {
            execution.limit(Extent::Lacking);
        }
        if is_stepped {
            execution.step = step;
        }
        if is_crowded {
            execution.note_crowded(plan, bindings, is_stepped);
        }
        if is_crowded || execution.ahead.as_ref().is_some_and(Ahead::is_over) {
            execution.limit(Extent::Cut);
            return;
        }
        if divides {
            execution.rows += leading;
        }
        if divides && self.is_over(execution) && ends.len() > 1 {
            sample_rows(execution, plan, level, bindings, (&text, &ends));
            return;
        }
        follow_span(execution, plan, level, bindings, span);
        self.descend(execution, plan, level, bindings, (&text, &ends));
    }

    /// Runs the loops below a level for each of its rows: their text, and where each ends.
    fn descend(
        &mut self,
        execution: &mut Execution<'_>,
        plan: &Plan,
        level: usize,
        bindings: &Bindings<'_>,
        (text, ends): (&[u8], &[usize]),
    ) {
        let mut start = 0;
        let mut inner = *bindings;
        let mark = inner.mark();
        for (at, &end) in ends.iter().enumerate() {
            if execution.extent == Extent::Cut {
                break;
            }
            if at % WARM_MAX == 0 {
                self.warm_level(plan, level, bindings, &text[start..], &ends[at..], start);
            }
            inner.restore(mark);
            execution.note_progress(level, (at + 1, ends.len()));
            if plan.source(level).bind(&text[start..end], &mut inner)
                && (!execution.sifted || self.base.may_own(plan, &inner))
            {
                self.level(execution, level + 1, &inner);
            }
            start = end;
        }
    }

    /// Makes the keys of a source span current.
    fn prepare(
        &mut self,
        execution: &mut Execution<'_>,
        level: usize,
        span: &KeyRange,
    ) -> Result<(), Missing> {
        let mut missing = Ok(());
        let count = if self.views.from_scratch {
            0
        } else {
            self.views.catalog.join(execution.join).upstream[level].len()
        };
        for at in 0..count {
            let up = self.views.catalog.join(execution.join).upstream[level][at];
            let collections = &mut self.reads.long_reads.collections;
            collections.note_relied(up, span);
            let reading = collections.suspend();
            let done = self.ensure(up, span, Some(&mut execution.read));
            self.reads.long_reads.collections.go_on(reading);
            if done.is_err() {
                missing = Err(Missing);
            }
        }
        let table = execution.plan.source_tables[level];
        let own = self.need_parts(execution, level, span);
        if own.is_err() || (own == Ok(true) && self.need(table, span).is_err()) {
            missing = Err(Missing);
        }
        missing
    }

    /// How many source rows an execution may visit still.
    fn rows_left(&self, execution: &Execution<'_>) -> usize {
        if execution.rows_max == usize::MAX {
            return usize::MAX;
        }
        // What is computed for it from scratch, and stored nowhere, is a part of it.
        let within = if self.computes_in_parts() {
            self.reads.slices.visited() - execution.began
        } else {
            0
        };
        execution.rows_max.saturating_sub(execution.rows - execution.values + within)
    }

    fn is_over(&self, execution: &mut Execution<'_>) -> bool {
        let over = execution.rows_max != usize::MAX && self.rows_left(execution) == 0;
        if over {
            execution.limit(Extent::Cut);
        }
        over
    }

    /// Whether what is computed now is stored nowhere, and divided where it takes more rows than a slice has.
    fn computes_in_parts(&self) -> bool {
        self.views.from_scratch || self.reads.long_reads.collections.is_under_way()
    }

    /// What a join gives for `range`, computed now and stored nowhere, folded and in order.
    pub(crate) fn compute(&mut self, join: u32, range: &KeyRange) -> Result<Vec<Folded>, Missing> {
        if self.views.catalog.join(join).plan.join.keep.is_some() {
            self.compute_kept(join, range)
        } else {
            self.compute_all(join, range)
        }
    }

    /// The same, as if the join kept all outputs.
    pub(crate) fn compute_all(
        &mut self,
        join: u32,
        range: &KeyRange,
    ) -> Result<Vec<Folded>, Missing> {
        let plan = self.views.catalog.join(join).plan.clone();
        let Some(bindings) = headwater_pattern::fixed_slots(&plan.join.output, range) else {
            return Ok(Vec::new());
        };
        let mut execution = Execution::new(join, plan.clone(), range);
        if self.run(&mut execution, 0, &bindings).is_err() {
            self.reads.slices.divide_verified(execution.split);
            return Err(Missing);
        }
        Ok(self.fold(&plan, execution.tuples))
    }
}

impl Views {
    /// Whether reads of the join compute it each time.
    pub(crate) fn is_pull(&self, join: u32) -> bool {
        self.catalog.join(join).mode() == Mode::Pull
    }
}
