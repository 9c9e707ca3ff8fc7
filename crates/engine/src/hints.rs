//! Where a limited read may end: the first few outputs of joins in a range, or the last few, looked for at the ends of the sources' spans.
//!
//! What is found is a hint: a key such that about as many outputs as are wanted lie before it. Whoever asked computes that part, and counts.
//! So nothing that changes while a look goes on has to be noticed by it.
//!
//! A look of an operation that is sliced ends for now when it has visited as many rows as a slice has, and goes on from the row where it
//! ended when the operation is run again ([`crate::slice`]). Its operation may look for several hints; those that took more than one
//! slice are remembered until the operation ends.
//!
//! # Cost
//! A seek for each span of the value source, and a row or two more, besides the rows of the check sources. Where a source does not
//! order its keys as the output does, each of its spans is looked at as far as there are keys wanted. Where another join gives the source, it
//! is made current as far as it is looked at, which costs a limited read of it.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::report::Ticket;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::key::before_end;
use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Bindings, containing_range, fixed_slots};

/// More rows than this are not looked at for a hint, beside those wanted.
const ROWS_MAX: usize = 20_000;
/// How many rows a look may visit in each slice even if other looks of its operation have used the slice up: otherwise it might never end.
const ROWS_MIN: usize = 64;
/// Rows of a check source that are read at once.
const ROWS_AT_ONCE: usize = 64;
/// How many hints of an operation are remembered.
const HINTS_MAX: usize = 8;

/// The hints of the operation under way, and of those that go on later.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Those of operations that wait, or go on later.
    kept: BTreeMap<Ticket, Vec<RememberedHint>>,
    /// Those of the operation under way.
    current: Vec<RememberedHint>,
    /// How many rows it has visited for hints.
    visited: usize,
}

impl Hints {
    /// The operation of this ticket is run again next.
    #[inline]
    pub(crate) fn resume(&mut self, ticket: Ticket) {
        if !self.kept.is_empty() {
            self.current = self.kept.remove(&ticket).unwrap_or_default();
        }
    }

    /// The operation under way goes on with this ticket.
    #[inline]
    pub(crate) fn keep(&mut self, ticket: Ticket) {
        if !self.current.is_empty() {
            self.kept.insert(ticket, core::mem::take(&mut self.current));
        }
    }

    /// The operation under way has ended, for now or for good.
    #[inline]
    pub(crate) fn end_operation(&mut self) {
        self.current.clear();
        self.visited = 0;
    }

    /// Nobody waits for this ticket any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.kept.remove(&ticket);
    }

    fn take(&mut self, wanted: &WantedHint<'_>) -> Option<HintProgress> {
        let at = self.current.iter().position(|known| known.is_of(wanted))?;
        Some(self.current.remove(at).progress)
    }

    fn put(&mut self, wanted: &WantedHint<'_>, progress: HintProgress) {
        if self.current.len() >= HINTS_MAX {
            self.current.remove(0);
        }
        let WantedHint { joins, range, outputs, reverse } = *wanted;
        let (joins, range) = (joins.to_vec(), range.clone());
        self.current.push(RememberedHint { joins, range, outputs, reverse, progress });
    }
}

/// Which outputs a hint is wanted of: so many of these joins' first ones in a range, or of the last ones.
struct WantedHint<'r> {
    joins: &'r [u32],
    range: &'r KeyRange,
    outputs: usize,
    reverse: bool,
}

/// A wanted hint, and how far the look for it has come.
#[derive(Debug)]
struct RememberedHint {
    joins: Vec<u32>,
    range: KeyRange,
    outputs: usize,
    reverse: bool,
    progress: HintProgress,
}

impl RememberedHint {
    fn is_of(&self, wanted: &WantedHint<'_>) -> bool {
        self.joins == wanted.joins
            && self.range == *wanted.range
            && (self.outputs, self.reverse) == (wanted.outputs, wanted.reverse)
    }
}

/// How far a look has come that took more than a slice.
#[derive(Debug)]
enum HintProgress {
    /// It goes on from here.
    At(SeenOutputs),
    /// It has ended, and gives this hint.
    Ended(Option<Vec<u8>>),
}

/// What was found so far, and where the look goes on.
#[derive(Debug, Default)]
struct SeenOutputs {
    /// The best output keys that were seen.
    keys: BTreeSet<Vec<u8>>,
    /// How many rows were visited.
    rows: usize,
    /// The join whose sources are looked at: it and all before it are, in the order of [`WantedHint::joins`].
    join: usize,
    /// The keys of its sources, from the first one on, that the look has come to.
    at: Vec<Vec<u8>>,
}

/// Why a look ends before it has seen all that it has to.
enum Unfinished {
    /// No hint can be given: it would take more rows than a look may visit, or data that is not here and may not be asked for.
    Unknown,
    /// The look goes on in another slice.
    Later,
}

/// A look under way.
struct Looking<'w> {
    wanted: &'w WantedHint<'w>,
    found: SeenOutputs,
    /// How many rows may be visited before others go first.
    left: usize,
    /// Where the look ended in the slice before: keys of the sources, from the first source on, until they are reached.
    resumed: Vec<Vec<u8>>,
    /// Data that is not here is asked for.
    loads: bool,
    /// Data was asked for, and has yet to come.
    lacks: bool,
}

impl Looking<'_> {
    /// Takes an output key; whether one behind it in the order of the read may be of use still.
    fn offer(&mut self, key: &[u8]) -> bool {
        let (keys, reverse) = (&mut self.found.keys, self.wanted.reverse);
        let full = keys.len() >= self.wanted.outputs;
        let worst = if reverse { keys.first() } else { keys.last() };
        if full && worst.is_some_and(|worst| if reverse { key <= worst } else { key >= worst }) {
            return false;
        }
        keys.insert(key.to_vec());
        if keys.len() > self.wanted.outputs {
            if reverse {
                keys.pop_first();
            } else {
                keys.pop_last();
            }
        }
        true
    }

    /// The look has come to a key of a source.
    fn come_to(&mut self, level: usize, key: &[u8]) {
        self.found.at.truncate(level + 1);
        match self.found.at.get_mut(level) {
            Some(at) => {
                at.clear();
                at.extend_from_slice(key);
            }
            None => self.found.at.push(key.to_vec()),
        }
    }

    /// Visits a key of a source, which counts as so many rows.
    fn visit(&mut self, level: usize, key: &[u8], rows: usize) -> Result<(), Unfinished> {
        if self.left == 0 {
            self.come_to(level, key);
            return Err(Unfinished::Later);
        }
        self.left = self.left.saturating_sub(rows);
        self.found.rows += rows;
        if self.found.rows > ROWS_MAX.saturating_add(self.wanted.outputs) {
            return Err(Unfinished::Unknown);
        }
        Ok(())
    }

    /// Leaves out of a span what was looked at before, up to the key where the look ended.
    fn go_on(&self, level: usize, span: &mut KeyRange, reverse: bool) {
        match self.resumed.get(level) {
            // The end does not belong to a range.
            Some(at) if reverse && span.contains(at) => {
                span.last = at.iter().copied().chain([0]).collect();
            }
            Some(at) if span.contains(at) => span.first.clone_from(at),
            _ => {}
        }
    }
}

impl Engine {
    /// A key within `range` such that about so many outputs of these joins lie before it (or from it on); nothing where that is not known
    /// to be less than all of it, or data is not here.
    ///
    /// # Errors
    /// Data is not here, and is asked for, since the hint `loads` what it needs; or the look goes on in another slice.
    pub(crate) fn dividing_hint(
        &mut self,
        joins: &[u32],
        range: &KeyRange,
        (outputs, reverse): (usize, bool),
        loads: bool,
    ) -> Result<Option<Vec<u8>>, Missing> {
        let wanted = WantedHint { joins, range, outputs, reverse };
        let known = self.reads.hints.take(&wanted);
        let took_slices = known.is_some();
        let mut found = match known {
            Some(HintProgress::Ended(cut)) => {
                self.reads.hints.put(&wanted, HintProgress::Ended(cut.clone()));
                return Ok(cut);
            }
            Some(HintProgress::At(found)) => found,
            None => SeenOutputs::default(),
        };
        let rows = found.rows;
        let slice = if loads { self.reads.slices.rows_max() } else { usize::MAX };
        let left = slice.saturating_sub(self.reads.hints.visited).max(slice.min(ROWS_MIN));
        let resumed = core::mem::take(&mut found.at);
        let mut looking = Looking { wanted: &wanted, found, left, resumed, loads, lacks: false };
        let ended = self.look_at_sources(&mut looking);
        let Looking { mut found, lacks, .. } = looking;
        let visited = found.rows - rows;
        self.counters.rows_read += visited as u64;
        self.reads.hints.visited += visited;
        if lacks {
            // The look begins again when the data has come that it lacks.
            return Err(Missing);
        }
        let is_known = match ended {
            Ok(()) => true,
            Err(Unfinished::Unknown) => false,
            Err(Unfinished::Later) => {
                self.reads.slices.end_for_now();
                self.reads.hints.put(&wanted, HintProgress::At(found));
                return Err(Missing);
            }
        };
        let cut = if !is_known || found.keys.len() < outputs {
            None
        } else if reverse {
            found.keys.pop_first().filter(|cut| *cut > range.first)
        } else {
            let behind = found.keys.pop_last().map(|mut cut| {
                cut.push(0);
                cut
            });
            behind.filter(|cut| before_end(cut, &range.last))
        };
        if took_slices {
            self.reads.hints.put(&wanted, HintProgress::Ended(cut.clone()));
        }
        Ok(cut)
    }

    fn look_at_sources(&mut self, looking: &mut Looking<'_>) -> Result<(), Unfinished> {
        let wanted = looking.wanted;
        for (at, &join) in wanted.joins.iter().enumerate().skip(looking.found.join) {
            looking.found.join = at;
            looking.found.at.clear();
            let plan = self.views.catalog.join(join).plan.clone();
            if let Some(bindings) = fixed_slots(&plan.join.output, wanted.range) {
                self.look_for_best(join, &plan, 0, &bindings, looking)?;
            }
            looking.resumed.clear();
        }
        Ok(())
    }

    /// Asks for what is not here of a source's span.
    fn need_source(&mut self, plan: &Plan, level: usize, span: &KeyRange) -> Result<(), Missing> {
        let table = plan.source_tables[level];
        if !self.base.is_aligned(plan, level) && !self.need_elsewhere(table, span)? {
            return Ok(());
        }
        self.need(table, span)
    }

    /// Makes what other joins give of a source's span current, as far as it is to be looked at; which part that is. `None`: that takes a read
    /// which may ask for what is not here.
    fn ensure_upstream(
        &mut self,
        (join, plan): (u32, &Plan),
        level: usize,
        span: &KeyRange,
        looking: &Looking<'_>,
    ) -> Option<Result<KeyRange, Missing>> {
        if !looking.loads {
            return None;
        }
        let table = plan.source_tables[level];
        // Others may give keys of the table, this join among them.
        let givers = self.views.catalog.join(join).upstream[level].clone();
        let (limit, reverse) = (looking.wanted.outputs as u64, looking.wanted.reverse);
        if level == plan.value_source() && self.may_limit(table, &givers, (span, limit)) {
            // More rows than outputs that are wanted are of use only where the source has another order, and then this is a hint.
            return Some(self.ensure_first(table, (&givers, &[]), (span, limit, reverse)));
        }
        Some(self.ensure_joins(table, &givers, span).map(|()| span.clone()))
    }

    /// Looks at the rows of sources from `level` on.
    fn look_for_best(
        &mut self,
        join: u32,
        plan: &Rc<Plan>,
        level: usize,
        bindings: &Bindings<'_>,
        looking: &mut Looking<'_>,
    ) -> Result<(), Unfinished> {
        let (pattern, wanted) = (plan.pattern(level), looking.wanted);
        let output = &plan.join.output;
        let Some(mut span) = containing_range(output, wanted.range, pattern, bindings) else {
            return Ok(());
        };
        if !self.is_here_ahead(plan, level, &span, false) {
            if !looking.loads {
                return Err(Unfinished::Unknown);
            }
            if self.need_source(plan, level, &span).is_err() {
                looking.lacks = true;
                return Ok(());
            }
        }
        if !self.views.catalog.join(join).upstream[level].is_empty() {
            match self.ensure_upstream((join, plan), level, &span, looking) {
                Some(Ok(part)) => span = part,
                Some(Err(Missing)) if self.reads.slices.is_over() => return Err(Unfinished::Later),
                Some(Err(Missing)) => {
                    // What else lacks is asked for at the same time.
                    looking.lacks = true;
                    return Ok(());
                }
                None => return Err(Unfinished::Unknown),
            }
        }
        if level == plan.value_source() {
            return self.look_at_values(join, plan, (level, span), bindings, looking);
        }
        let source = plan.source(level);
        looking.go_on(level, &mut span, false);
        let (mut text, mut rows) = (Vec::new(), Vec::new());
        let mut next = Some(core::mem::take(&mut span.first));
        while let Some(first) = next.take() {
            span.first = first;
            self.rows_in_order(join, level, &span, false, &mut |key, row, weight| {
                if rows.len() == ROWS_AT_ONCE {
                    next = Some(key.into());
                    return ControlFlow::Break(());
                }
                let start = text.len();
                text.extend_from_slice(key);
                let row_start = text.len();
                text.extend_from_slice(row.unwrap_or_default());
                rows.push((start, row_start, row.map(|_| text.len()), weight));
                ControlFlow::Continue(())
            });
            for (start, row_start, end, weight) in rows.drain(..) {
                let key = &text[start..row_start];
                // The key at which the look ended in the slice before was visited then.
                if looking.resumed.get(level).is_none_or(|at| at != key) {
                    looking.resumed.clear();
                    looking.visit(level, key, weight)?;
                }
                looking.come_to(level, key);
                let mut inner = *bindings;
                if let Some(end) = end
                    && source.bind(&text[row_start..end], &mut inner)
                {
                    self.look_for_best(join, plan, level + 1, &inner, looking)?;
                }
                looking.resumed.clear();
            }
            text.clear();
        }
        Ok(())
    }

    /// Looks at the rows of the value source, from the end where the outputs are that are wanted.
    fn look_at_values(
        &mut self,
        join: u32,
        plan: &Rc<Plan>,
        (level, mut span): (usize, KeyRange),
        bindings: &Bindings<'_>,
        looking: &mut Looking<'_>,
    ) -> Result<(), Unfinished> {
        let (source, output) = (plan.source(level), &plan.join.output);
        let wanted = looking.wanted;
        let reverse = wanted.reverse;
        looking.go_on(level, &mut span, reverse);
        looking.resumed.clear();
        let (mut output_key, mut ended) = (Vec::new(), Ok(()));
        self.rows_in_order(join, level, &span, reverse, &mut |key, row, weight| {
            ended = looking.visit(level, key, weight);
            if ended.is_err() {
                return ControlFlow::Break(());
            }
            let mut inner = *bindings;
            output_key.clear();
            let gives = row.is_some_and(|row| source.bind(row, &mut inner))
                && output.fill(&inner, &mut output_key)
                && output_key.len() <= Limits::KEY_BYTES_CEILING
                && wanted.range.contains(&output_key);
            if gives && !looking.offer(&output_key) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        ended
    }
}
