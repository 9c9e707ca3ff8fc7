//! Where a range is divided that takes more rows than a slice has.

use crate::catalog::Plan;
use crate::exec::Execution;
use crate::logged::prefix_overlaps;
use crate::rows::lead;
use alloc::vec::Vec;
use headwater_base::key::{SEPARATOR, before_end, prefix_end};
use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Bindings, Component, Pattern};

/// About how many rows of a slice are sampled, to tell where to divide a range.
const SAMPLED: usize = 64;
/// A range of at least so many source spans is gathered, if it may be, where these have fewer rows than [`ROWS_A_SPAN`] on average.
const SPARSE_MIN: usize = 16;
/// A look for a span's rows takes about as long as so many rows: the group is found by a hash, and an updater is left there.
const ROWS_A_SPAN: usize = 4;

impl Execution<'_> {
    /// Whether the parts of the range would take much more together than the whole.
    pub(crate) fn is_dear_in_parts(&self) -> bool {
        if self.divides_on {
            return false;
        }
        // The range is a part already of what these rows are read for: each further part would read them again, or pass them over.
        let misses = self.missed + self.skipped > (self.values + self.skipped) / 4;
        // Each part would look for rows of its own in each span of the whole.
        let spans = self.spans.len();
        let is_sparse = spans >= SPARSE_MIN && spans > self.values / ROWS_A_SPAN;
        misses || (self.gathers_sparse && is_sparse)
    }

    /// A key that divides the range such that the part before it has about half of the outputs that were found
    /// before the execution was over; nothing where none does.
    pub(crate) fn dividing_key(&self) -> Option<Vec<u8>> {
        let tuples = (0..self.tuples.tuples.len()).map(|at| self.tuples.key(at));
        let mut keys: Vec<&[u8]> = self.sample.iter().map(Vec::as_slice).chain(tuples).collect();
        let together_at = self.plan.together_at;
        if let Some(at) = together_at {
            // A part of what belongs together would take all of its rows.
            keys = keys.into_iter().filter_map(|key| lead(key, at)).collect();
        }
        keys.sort_unstable();
        let divides = |key: &[u8]| *key > *self.range.first && before_end(key, &self.range.last);
        let (low, high) = keys.split_at(keys.len() / 2);
        // What outputs begin with may be longer than any output that is kept: a range ends behind the last key before it.
        let cut = |key: &[u8]| KeyRange::new(key, b"").cut(Limits::KEY_BYTES_CEILING).first;
        let mut found = high.iter().chain(low.iter().rev()).map(|key| cut(key));
        if let Some(key) = found.find(|key| divides(key)) {
            return Some(key);
        }
        // All are one key, or begin with one prefix, at the start of the range: that is a part of its own.
        let first = *keys.first()?;
        let next = match first.last() {
            Some(&SEPARATOR) => prefix_end(first),
            _ => [first, &[0]].concat(),
        };
        Some(cut(&next)).filter(|next| divides(next))
    }
}

/// Whether keys of a source say more of the output key's beginning than `bindings` do.
pub(crate) fn divides(plan: &Plan, level: usize, bindings: &Bindings<'_>) -> bool {
    let output = &plan.join.output;
    let (depth, _) = output.bound_prefix_size(bindings);
    match output.components.get(depth) {
        Some(Component::Slot { slot, .. }) => plan.source_slots(level) & (1 << slot) != 0,
        _ => false,
    }
}

/// Whether outputs that come of a source key may lie in `range`.
pub(crate) fn leads_into(
    range: &KeyRange,
    plan: &Plan,
    (pattern, key): (&Pattern, &[u8]),
    bindings: &Bindings<'_>,
    prefix: &mut Vec<u8>,
) -> bool {
    let mut inner = *bindings;
    if !pattern.bind(key, &mut inner) {
        return false;
    }
    prefix.clear();
    plan.join.output.bound_prefix(&inner, prefix);
    prefix_overlaps(prefix, range)
}

/// Takes the beginnings of output keys that the rows of a level lead to.
pub(crate) fn sample_rows(
    execution: &mut Execution<'_>,
    plan: &Plan,
    level: usize,
    bindings: &Bindings<'_>,
    (text, ends): (&[u8], &[usize]),
) {
    let mut start = 0;
    for &end in ends {
        let mut inner = *bindings;
        if plan.source(level).bind(&text[start..end], &mut inner) {
            let mut prefix = Vec::new();
            plan.join.output.bound_prefix(&inner, &mut prefix);
            execution.sample.push(prefix);
        }
        start = end;
    }
}

/// How many rows lie between a sampled one and the next, `every` on average. Spans may all have as many rows as that, and a fixed step would take
/// the same place of each.
fn gap_behind(sampled: usize, every: usize) -> usize {
    let mixed = (sampled as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    1 + (mixed % (2 * every as u64 - 1)) as usize
}

/// Keys of the value source whose values fulfil no condition, and which would have led into the range: where there are
/// more of them than a slice has rows, they say where to divide it as outputs do.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The sample takes one of about so many refused rows; none where the execution is not sliced, or its source looks at no values.
    every: Option<usize>,
    /// As how many rows they count.
    pub(crate) leading: usize,
    /// From how many on the next one is in the sample. The first of each span would tell nothing of where the others lie.
    next: usize,
    /// What the output keys of those that were sampled begin with, of the execution's other spans as well.
    pub(crate) sample: Vec<Vec<u8>>,
    prefix: Vec<u8>,
}

impl Refused {
    pub(crate) fn new(execution: &mut Execution<'_>, plan: &Plan) -> Self {
        let is_sliced = execution.rows_max != usize::MAX && execution.pick.is_none();
        let every = (execution.rows_max / SAMPLED).max(1);
        Self {
            every: (is_sliced && plan.has_lens(plan.value_source())).then_some(every),
            leading: 0,
            next: execution.unsampled,
            sample: core::mem::take(&mut execution.sample),
            prefix: Vec::new(),
        }
    }

    /// Gives the sample back, which goes on with the rows of the next span.
    pub(crate) fn end(self, execution: &mut Execution<'_>) {
        execution.sample = self.sample;
        execution.unsampled = self.next.saturating_sub(self.leading);
    }

    /// Notes a key that gives no row, and counts as so many.
    pub(crate) fn note(
        &mut self,
        range: &KeyRange,
        (plan, bindings): (&Plan, &Bindings<'_>),
        key: &[u8],
        weight: usize,
    ) {
        let Some(every) = self.every else { return };
        let pattern = plan.pattern(plan.value_source());
        if leads_into(range, plan, (pattern, key), bindings, &mut self.prefix) {
            if self.leading >= self.next {
                self.sample.push(self.prefix.clone());
                self.next = self.leading + gap_behind(self.sample.len(), every);
            }
            self.leading += weight;
        }
    }
}
