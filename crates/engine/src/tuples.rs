//! What an execution finds: output keys, with the source keys and values that they come of.

use crate::catalog::Plan;
use alloc::vec::Vec;
use core::ops::Range;
use headwater_base::{KeyRange, Limits};
use headwater_pattern::Bindings;
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

impl Tuples {
    /// Adds what comes of a row of the value source under `bindings`, if it lies in `range`; whether it does.
    pub(crate) fn add(
        &mut self,
        plan: &Plan,
        (range, bindings): (&KeyRange, &Bindings<'_>),
        (key, row, value): (&[u8], &[u8], ValueRef),
    ) -> bool {
        let mut inner = *bindings;
        if !plan.source(plan.value_source()).bind(row, &mut inner) {
            return false;
        }
        let start = self.text.len();
        if !plan.join.output.fill(&inner, &mut self.text) {
            return false;
        }
        let output = &self.text[start..];
        // No key is longer: such an output does not exist.
        if output.len() > Limits::KEY_BYTES_CEILING || !range.contains(output) {
            self.text.truncate(start);
            return false;
        }
        let end = self.text.len();
        if plan.picks.is_some() || plan.join.on.is_some() {
            self.text.extend_from_slice(key);
        }
        let source_key = end..self.text.len();
        self.tuples.push(Tuple { key: start..end, source_key, value });
        true
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
