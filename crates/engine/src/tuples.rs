//! What an execution finds at its value source: output keys, with the source keys and values that they come of.

use crate::catalog::{Pick, Plan};
use crate::divide::Refused;
use crate::engine::Engine;
use crate::exec::{Execution, Extent};
use crate::gather::Step;
use crate::rows::LookedAt;
use alloc::vec::Vec;
use core::cell::LazyCell;
use core::ops::{ControlFlow, Range};
use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Bindings, Passing};
use headwater_pool::{Pool, ValueRef};

/// One way in which an output key comes about.
#[derive(Clone, Debug)]
pub(crate) struct Tuple {
    pub(crate) key: Range<usize>,
    /// Empty where nobody asks for it.
    pub(crate) source_key: Range<usize>,
    /// One reference is held.
    pub(crate) value: ValueRef,
}

/// Tuples, with the text of their keys in one place.
#[derive(Debug, Default)]
pub(crate) struct Tuples {
    pub(crate) text: Vec<u8>,
    pub(crate) tuples: Vec<Tuple>,
}

/// What came of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Added {
    /// An output of the range.
    Here,
    /// An output whose key would be longer than any is.
    TooLong,
    /// Nothing, or an output that lies elsewhere.
    Not,
}

impl Tuples {
    /// Adds what comes of a row of the value source under `bindings`, if it lies in `range`.
    fn add(
        &mut self,
        plan: &Plan,
        (range, bindings): (&KeyRange, &Bindings<'_>),
        (key, row, value): (&[u8], &[u8], ValueRef),
    ) -> Added {
        let mut inner = *bindings;
        if !plan.source(plan.value_source()).bind(row, &mut inner) {
            return Added::Not;
        }
        let start = self.text.len();
        if !plan.join.output.fill(&inner, &mut self.text) {
            return Added::Not;
        }
        let output = &self.text[start..];
        // No key is longer: such an output does not exist.
        let is_too_long = output.len() > Limits::KEY_BYTES_CEILING;
        if is_too_long || !range.contains(output) {
            self.text.truncate(start);
            return if is_too_long { Added::TooLong } else { Added::Not };
        }
        let end = self.text.len();
        if plan.picks.is_some() || plan.join.on.is_some() {
            self.text.extend_from_slice(key);
        }
        let source_key = end..self.text.len();
        self.tuples.push(Tuple { key: start..end, source_key, value });
        Added::Here
    }

    pub(crate) fn key(&self, at: usize) -> &[u8] {
        &self.text[self.tuples[at].key.clone()]
    }

    pub(crate) fn source_key(&self, at: usize) -> &[u8] {
        &self.text[self.tuples[at].source_key.clone()]
    }

    /// Bytes that the tuples and their text take.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.text.len() + self.tuples.len() * size_of::<Tuple>()
    }

    /// Sorts by output key, then by value-source key.
    pub(crate) fn sort(&mut self) {
        let text = &self.text;
        let of = |tuple: &Tuple| (&text[tuple.key.clone()], &text[tuple.source_key.clone()]);
        if !self.tuples.is_sorted_by(|a, b| of(a) <= of(b)) {
            self.tuples.sort_by(|a, b| of(a).cmp(&of(b)));
        }
    }

    /// Gives all references back.
    pub(crate) fn release(self, pool: &mut Pool) {
        for tuple in self.tuples {
            pool.release(tuple.value);
        }
    }
}

impl Engine {
    /// Collects the tuples of a span of the value source, below the rows of the sources before it that `bindings` tell.
    //
    // A function of its own, as `warm_level` is.
    #[inline(never)]
    pub(crate) fn collect_tuples(
        &mut self,
        execution: &mut Execution<'_>,
        plan: &Plan,
        bindings: &Bindings<'_>,
        span: &KeyRange,
        step: &mut Option<Step>,
    ) {
        if execution.spans_only {
            return;
        }
        let source = plan.source(plan.value_source());
        let (range, sifted) = (execution.range, execution.sifted);
        let mut tuples = core::mem::take(&mut execution.tuples);
        let retained = tuples.tuples.len();
        let (allowance, mut visited) = (execution.allowance, 1);
        let most = match execution.rows_max {
            usize::MAX => usize::MAX,
            // What the loops above have visited leaves it as much as they had.
            most => most.saturating_sub(execution.values),
        };
        let (mut rows_here, mut skipped, mut is_cut) = (0, 0, false);
        let mut ahead = execution.ahead.take();
        let (mut refused, mut too_long) = (Refused::new(execution, plan), 0);
        // A row that is one too many is not looked at, and so leads nowhere that is known.
        let mut is_unread = false;
        let is_stepped = plan.value_source() == execution.stepped;
        let gathered_from = if is_stepped { execution.gathered_from() } else { usize::MAX };
        let pick = execution.pick;
        let is_reverse = pick == Some(Pick::Greatest);
        // Many spans have no keys: what can be passed over is found out at the first.
        let passing =
            LazyCell::new(|| Passing::of(&plan.join.output, range, &source.pattern, bindings));
        let passing = |key: &[u8]| LazyCell::force(&passing).as_ref()?.next(key);
        let looked_at = LookedAt {
            span,
            // Where a step goes on, and how many rows it takes, is told by all keys.
            passing: (step.is_none() && !is_reverse).then_some(&passing),
            is_reverse,
        };
        let (ending, mut is_late, mut led) = (self.ending.clone(), false, 0);
        let rows = self.rows(
            execution.join,
            plan.value_source(),
            looked_at,
            &mut |key, row, value, weight| {
                if step.as_mut().is_some_and(|step| !step.takes(rows_here, key)) {
                    return ControlFlow::Break(());
                }
                is_late = ending.as_ref().is_some_and(|ending| ending.is_over());
                if is_late {
                    return ControlFlow::Break(());
                }
                visited += weight.max(1) as u64;
                skipped += usize::from(weight == 0);
                is_cut = (rows_here >= most
                    && (!tuples.tuples.is_empty() || !refused.sample.is_empty()))
                    || rows_here >= gathered_from;
                if tuples.bytes() > allowance || is_cut {
                    rows_here += 1;
                    is_unread = true;
                    return ControlFlow::Break(());
                }
                rows_here += weight;
                let Some(row) = row else {
                    refused.note(range, (plan, bindings), key, weight);
                    return ControlFlow::Continue(());
                };
                let added = tuples.add(plan, (range, bindings), (key, row, value));
                too_long += u64::from(added == Added::TooLong);
                if added != Added::Here {
                    return ControlFlow::Continue(());
                }
                led += weight;
                if let Some(ahead) = &mut ahead
                    && !ahead.asked.contains(tuples.key(tuples.tuples.len() - 1))
                {
                    ahead.found += 1;
                    is_cut = ahead.is_over();
                }
                if is_cut || pick.is_some() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        self.counters.outputs_too_long += too_long;
        execution.ahead = ahead;
        execution.values += rows_here;
        execution.skipped += skipped;
        let looked_at = rows_here - usize::from(is_unread);
        execution.missed += looked_at.saturating_sub(led + refused.leading);
        refused.end(execution);
        execution.rows += rows_here;
        execution.visited += visited;
        self.hold_tuples(&mut tuples, retained, sifted);
        if rows.is_err() || is_late {
            execution.limit(Extent::Lacking);
        }
        if tuples.bytes() > allowance && execution.ahead.is_some() {
            is_cut = true;
        } else if tuples.bytes() > allowance {
            self.memory.gave_up(tuples.bytes());
            execution.limit(Extent::Lacking);
        }
        execution.tuples = tuples;
        // Outputs of other homes may have been all that there was until then.
        if is_cut {
            execution.limit(Extent::Cut);
        }
    }

    /// Takes references to the values of the tuples behind those that were there before, of own keys alone where they are to be `sifted`.
    fn hold_tuples(&mut self, tuples: &mut Tuples, retained: usize, sifted: bool) {
        if sifted {
            let (text, mut at) = (&tuples.text, 0);
            tuples.tuples.retain(|tuple| {
                at += 1;
                at <= retained || self.owns(&text[tuple.key.clone()])
            });
        }
        // The rows are borrowed only until now: a later level may change what they point at.
        for tuple in &tuples.tuples[retained..] {
            self.store.pool.retain(tuple.value);
        }
        self.release_row_holds();
    }
}
