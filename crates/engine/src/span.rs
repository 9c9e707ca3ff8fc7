//! Source spans that an execution reads, on which updaters are left.

use crate::catalog::Plan;
use crate::exec::Execution;
use crate::status::Fixed;
use crate::updaters::encode;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::{Bindings, containing_range};

/// A source span that an execution read.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) source: usize,
    /// How many leading components all keys of the span share.
    pub(crate) depth: usize,
    prefix_bytes: usize,
    pub(crate) range: KeyRange,
    /// Encoded slots.
    pub(crate) context: Vec<u8>,
}

impl Span {
    /// The leading components that all keys of the span share.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.range.first[..self.prefix_bytes]
    }
}

/// Keeps a span that was read, if updaters are to be left on it.
pub(crate) fn follow_span(
    execution: &mut Execution<'_>,
    plan: &Plan,
    level: usize,
    bindings: &Bindings<'_>,
    span: KeyRange,
) {
    let Some((full, fixed)) = execution.follow else { return };
    let range = if full == execution.range {
        Some(span)
    } else {
        containing_range(&plan.join.output, full, plan.pattern(level), bindings)
    };
    if let Some(range) = range {
        execution.spans.push(span_of(plan, level, bindings, fixed, range));
    }
}

fn span_of(
    plan: &Plan,
    source: usize,
    bindings: &Bindings<'_>,
    fixed: Fixed,
    range: KeyRange,
) -> Span {
    // The range begins with what the bindings give of the pattern.
    let (depth, prefix_bytes) = plan.pattern(source).bound_prefix_size(bindings);
    let mut context = Vec::new();
    let mask = !(fixed.slots | plan.prefix_slots(source, depth));
    encode(bindings, mask, &mut context);
    Span { source, depth, prefix_bytes, range, context }
}
