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
pub(crate) struct SourceSpans {
    spans: Vec<SpanOffsets>,
    /// The bytes of all spans: the first key of one, its end and its context, then those of the next.
    text: Vec<u8>,
}

/// A kept span, with its places in the text: where its first key begins, its end, its context, and where that ends.
#[derive(Debug)]
struct SpanOffsets {
    source: usize,
    depth: usize,
    prefix_bytes: usize,
    first: usize,
    last: usize,
    context: usize,
    end: usize,
}

/// The first key of a span, and what is behind its last.
pub(crate) type Ends<'s> = (&'s [u8], &'s [u8]);

/// A source span that an execution read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceSpan<'s> {
    pub(crate) source: usize,
    /// How many leading components all keys of the span share.
    pub(crate) depth: usize,
    /// These components.
    pub(crate) prefix: &'s [u8],
    pub(crate) ends: Ends<'s>,
    /// Encoded slots.
    pub(crate) context: &'s [u8],
}

impl SourceSpans {
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn clear(&mut self) {
        self.spans.clear();
        self.text.clear();
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = SourceSpan<'_>> + Clone {
        self.spans.iter().map(|offsets| {
            let first = &self.text[offsets.first..offsets.last];
            SourceSpan {
                source: offsets.source,
                depth: offsets.depth,
                prefix: &first[..offsets.prefix_bytes],
                ends: (first, &self.text[offsets.last..offsets.context]),
                context: &self.text[offsets.context..offsets.end],
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
        self.spans.push(SpanOffsets { source, depth, prefix_bytes, first, last, context, end });
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
