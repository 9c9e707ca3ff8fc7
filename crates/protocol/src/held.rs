//! Long values within an output that are not copied into it.
//!
//! The bytes of a long value stay where they are until the socket takes them: the output has
//! its header and what follows, and `Held` says that the value's bytes come between.
//!
//! # Invariants
//! - H1. Places ascend, and none is behind the output's end.
//! - H2. Each value in `Held` has a reference of its own, which whoever empties it takes over.

use alloc::vec::Vec;
use headwater_pool::{Value, ValueRef};

/// Shorter values are copied: a reference and one more piece to write cost more.
const HELD_BYTES_MIN: usize = 16 << 10;

/// Values that belong into an output, and where.
#[derive(Debug, Default)]
pub struct Held {
    values: Vec<(usize, ValueRef)>,
    bytes: usize,
    dropped: Vec<ValueRef>,
    /// Nothing is held: every value is to be copied.
    whole: bool,
}

impl Held {
    /// Whether no value is held.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Bytes of the values.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Has all values copied from now on, or no more; whether they were.
    pub fn set_whole(&mut self, whole: bool) -> bool {
        core::mem::replace(&mut self.whole, whole)
    }

    /// Holds `value`, to be sent behind the first `at` bytes of the output. `false`: it is to be
    /// copied.
    pub(crate) fn hold(&mut self, at: usize, value: &Value<'_>) -> bool {
        if value.len() < HELD_BYTES_MIN || self.whole {
            return false;
        }
        let Some(held) = value.hold() else { return false };
        self.values.push((at, held));
        self.bytes += held.len();
        true
    }

    /// The output was cut to `len` bytes: values behind them are not to be sent.
    pub fn cut(&mut self, len: usize) {
        while let Some(&(at, value)) = self.values.last()
            && at > len
        {
            self.values.pop();
            self.bytes -= value.len();
            self.dropped.push(value);
        }
    }

    /// What was behind the first `from` bytes of the output has moved to be behind `to`.
    pub(crate) fn shift(&mut self, from: usize, to: usize) {
        for (at, _) in self.values.iter_mut().rev().take_while(|(at, _)| *at >= from) {
            *at = *at - from + to;
        }
    }

    /// Takes the values with their places.
    pub fn take(&mut self) -> impl Iterator<Item = (usize, ValueRef)> {
        self.bytes = 0;
        self.values.drain(..)
    }

    /// Takes the values that are not to be sent after all, to be released.
    #[inline]
    pub fn take_dropped(&mut self) -> Vec<ValueRef> {
        core::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Encoder, Version};
    use headwater_command::{Counted, Reply};
    use headwater_pool::Pool;

    /// The output as the client sees it.
    fn sent(pool: &mut Pool, out: &[u8], held: &mut Held) -> Vec<u8> {
        let (mut all, mut done) = (Vec::new(), 0);
        for (at, value) in held.take() {
            all.extend_from_slice(&out[done..at]);
            pool.view(value).write_to(&mut all);
            pool.release(value);
            done = at;
        }
        all.extend_from_slice(&out[done..]);
        for value in held.take_dropped() {
            pool.release(value);
        }
        all
    }

    #[test]
    fn an_output_with_held_values_reads_as_if_they_were_copied() {
        let mut pool = Pool::new();
        let long: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        let (long, short) = (pool.insert(&long), pool.insert(b"a short value"));
        let write = |out: &mut Encoder<'_>| {
            out.array(2);
            out.value(&pool.view(long));
            let mark = out.begin_counted(Counted::Array, 1);
            out.value(&pool.view(long));
            let rewound = out.mark();
            out.value(&pool.view(long));
            out.value(&pool.view(short));
            out.rewind(rewound);
            (0..150).for_each(|_| out.value(&pool.view(short)));
            out.value(&pool.view(long));
            out.end_counted(Counted::Array, mark, 152);
            out.value(&pool.view(short));
        };
        let (mut copied, mut out, mut held) = (Vec::new(), Vec::new(), Held::default());
        write(&mut Encoder::new(&mut copied, Version::Resp2));
        write(&mut Encoder::holding(&mut out, &mut held, Version::Resp2));
        assert_eq!(held.bytes(), 300_000);
        assert!(out.len() < 10_000);
        assert!(sent(&mut pool, &out, &mut held) == copied);
        pool.check_invariants([long, short]);
    }
}
