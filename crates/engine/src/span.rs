//! Source spans that an execution reads, on which updaters are left.

use crate::catalog::Plan;
use crate::exec::Execution;
use crate::status::Fixed;
use crate::updaters::encode;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::{Bindings, containing_range};

/// The source spans that an execution has read, with their text in one place.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    spans: Vec<Placed>,
    /// Of each span its first key, its end, and its context.
    text: Vec<u8>,
}

/// A kept span, with its places in the text: where its first key begins, its end, its context, and where that ends.
#[derive(Debug)]
struct Placed {
    source: usize,
    depth: usize,
    prefix_bytes: usize,
    first: usize,
    last: usize,
    context: usize,
    end: usize,
}

/// A source span that an execution read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'s> {
    pub(crate) source: usize,
    /// How many leading components all keys of the span share.
    pub(crate) depth: usize,
    /// These components.
    pub(crate) prefix: &'s [u8],
    /// The first key of the span, and what is behind its last.
    pub(crate) ends: (&'s [u8], &'s [u8]),
    /// Encoded slots.
    pub(crate) context: &'s [u8],
}

impl Spans {
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn clear(&mut self) {
        self.spans.clear();
        self.text.clear();
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Span<'_>> + Clone {
        self.spans.iter().map(|placed| {
            let first = &self.text[placed.first..placed.last];
            Span {
                source: placed.source,
                depth: placed.depth,
                prefix: &first[..placed.prefix_bytes],
                ends: (first, &self.text[placed.last..placed.context]),
                context: &self.text[placed.context..placed.end],
            }
        })
    }

    fn push(
        &mut self,
        plan: &Plan,
        source: usize,
        bindings: &Bindings<'_>,
        fixed: Fixed,
        range: &KeyRange,
    ) {
        // The range begins with what the bindings give of the pattern.
        let (depth, prefix_bytes) = plan.pattern(source).bound_prefix_size(bindings);
        let first = self.text.len();
        self.text.extend_from_slice(&range.first);
        let last = self.text.len();
        self.text.extend_from_slice(&range.last);
        let context = self.text.len();
        encode(bindings, !(fixed.slots | plan.prefix_slots(source, depth)), &mut self.text);
        let end = self.text.len();
        self.spans.push(Placed { source, depth, prefix_bytes, first, last, context, end });
    }
}

/// Keeps a span that was read, if updaters are to be left on it.
pub(crate) fn follow_span(
    execution: &mut Execution<'_>,
    plan: &Plan,
    level: usize,
    bindings: &Bindings<'_>,
    span: &KeyRange,
) {
    let Some((full, fixed)) = execution.follow else { return };
    if full == execution.range {
        execution.spans.push(plan, level, bindings, fixed, span);
    } else if let Some(range) =
        containing_range(&plan.join.output, full, plan.pattern(level), bindings)
    {
        execution.spans.push(plan, level, bindings, fixed, &range);
    }
}
