//! Operations that the store did not take: reads go on as if it had, until the server ends.
//!
//! After a failed write or sync no further write is accepted, but memory already has what came until
//! then. A load that did not show it would let a read go back in time.

use crate::turn::Op;
use std::collections::BTreeMap;

/// What the lost operations come to.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// The keys below are all there are.
    cleared: bool,
    /// Records, and keys that are gone.
    keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Ranges that are gone; what is in `keys` came later.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    /// The last of the operations.
    pub(crate) last: u64,
}

/// Whether a key lies in `[first, last)` (an empty `last`: to the end).
pub(crate) fn is_within(key: &[u8], first: &[u8], last: &[u8]) -> bool {
    key >= first && (last.is_empty() || key < last)
}

impl Lost {
    /// Nothing is lost behind `position` yet.
    pub(crate) fn after(position: u64) -> Self {
        Self { last: position, ..Self::default() }
    }

    pub(crate) fn add(&mut self, position: u64, op: Op<'_>) {
        self.last = position;
        match op {
            Op::Put(key, record) => _ = self.keys.insert(key.to_vec(), Some(record.to_vec())),
            Op::Remove(key) => _ = self.keys.insert(key.to_vec(), None),
            Op::RemoveRange(first, last) => {
                self.keys.retain(|key, _| !is_within(key, first, last));
                self.ranges.push((first.to_vec(), last.to_vec()));
            }
            Op::Clear => *self = Self { cleared: true, last: position, ..Self::default() },
            Op::Define(..) | Op::Undefine(_) | Op::Note(..) | Op::Unnote(_) => {}
        }
    }

    /// Whether the store's record of a key counts no longer.
    pub(crate) fn hides(&self, key: &[u8]) -> bool {
        self.cleared
            || self.keys.contains_key(key)
            || self.ranges.iter().any(|(first, last)| is_within(key, first, last))
    }

    /// The records that the store lacks.
    pub(crate) fn records(
        &self,
        first: &[u8],
        last: &[u8],
    ) -> impl Iterator<Item = (&[u8], &[u8])> {
        let known = self
            .keys
            .range::<[u8], _>((core::ops::Bound::Included(first), core::ops::Bound::Unbounded));
        known
            .take_while(move |(key, _)| last.is_empty() || key.as_slice() < last)
            .filter_map(|(key, record)| Some((key.as_slice(), record.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_laid_over_the_store() {
        let mut lost = Lost::default();
        lost.add(3, Op::Put(b"a", b"1"));
        lost.add(4, Op::Put(b"b", b"2"));
        lost.add(5, Op::RemoveRange(b"b", b"c"));
        lost.add(6, Op::Remove(b"d"));
        assert!(lost.hides(b"a") && lost.hides(b"b") && lost.hides(b"d") && !lost.hides(b"c"));
        let records: Vec<_> = lost.records(b"", b"").collect();
        assert_eq!((records, lost.last), (vec![(&b"a"[..], &b"1"[..])], 6));
        assert_eq!(lost.records(b"b", b"").count() + lost.records(b"", b"a").count(), 0);
        lost.add(7, Op::Clear);
        assert!(lost.hides(b"c") && lost.records(b"", b"").count() == 0 && lost.last == 7);
    }
}
