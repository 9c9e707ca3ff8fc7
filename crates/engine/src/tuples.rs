//! What an execution finds: output keys, with the source keys and values that they come of.

use alloc::vec::Vec;
use core::ops::Range;
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
