//! The cover of a join: its status ranges, by where they begin.
//!
//! # Cost
//! A tree of pages, in which ranges of one table share what their first keys begin with: 30 to 40 bytes a range, where an
//! ordered map of whole keys takes 60. Finding one is O(log n).

use crate::status::StatusId;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::{KeyRange, Limits};
use headwater_store::tree::Tree;

/// The status ranges of one join, in order.
#[derive(Debug, Default)]
pub(crate) struct Cover {
    by_first: Tree,
}

fn id(word: u64) -> StatusId {
    StatusId(word as u32)
}

fn end(last: &[u8]) -> Option<&[u8]> {
    (!last.is_empty()).then_some(last)
}

impl Cover {
    /// How many ranges there are.
    pub(crate) fn len(&self) -> usize {
        self.by_first.len()
    }

    /// Whether the join has no ranges.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_first.is_empty()
    }

    /// Bytes that the tree takes.
    pub(crate) fn bytes(&self) -> usize {
        self.by_first.allocated_bytes()
    }

    /// Enters the range that begins at `first`.
    pub(crate) fn insert(&mut self, first: &[u8], id: StatusId) {
        // A page has no bits for longer ones.
        assert!(first.len() <= Limits::KEY_BYTES_CEILING + 1, "a range begins at a key");
        // Without a secret: all is found by descent, nothing by hashes of whole keys.
        self.by_first.insert(first, u64::from(id.0), None);
    }

    /// Takes out the range that begins at `first`.
    pub(crate) fn remove(&mut self, first: &[u8]) {
        self.by_first.remove(first);
    }

    /// The range that begins at `first`.
    pub(crate) fn at(&self, first: &[u8]) -> Option<StatusId> {
        self.by_first.get(first).map(id)
    }

    /// The last range that begins at `key` or before it.
    #[inline]
    pub(crate) fn upto(&self, key: &[u8]) -> Option<StatusId> {
        self.by_first.word_at_or_before(key).map(id)
    }

    /// The last range that begins before `key`.
    pub(crate) fn before(&self, key: &[u8]) -> Option<StatusId> {
        self.last_before(Some(key))
    }

    /// The last range that begins before the end of a key range.
    pub(crate) fn before_end(&self, last: &[u8]) -> Option<StatusId> {
        self.last_before(end(last))
    }

    fn last_before(&self, key: Option<&[u8]>) -> Option<StatusId> {
        let found = self
            .by_first
            .descend(b"", key, &|_| (), &mut |_, _, word| ControlFlow::Break(id(word)));
        found.break_value()
    }

    /// The first range that begins at `key` or behind it.
    pub(crate) fn from(&self, key: &[u8]) -> Option<StatusId> {
        let found = self
            .by_first
            .ascend(key, None, &|_| (), &mut |_, _, word| ControlFlow::Break(id(word)));
        found.break_value()
    }

    /// Calls `each` with the ranges that begin within `range`, but not where it does, until it breaks.
    pub(crate) fn each_behind(
        &self,
        range: &KeyRange,
        mut each: impl FnMut(StatusId) -> ControlFlow<()>,
    ) {
        let first = range.first.as_slice();
        let _ = self.by_first.ascend(first, end(&range.last), &|_| (), &mut |head, tail, word| {
            let is_first = first.strip_prefix(head).is_some_and(|rest| rest == tail);
            if is_first { ControlFlow::Continue(()) } else { each(id(word)) }
        });
    }

    /// The first range that begins behind `key`.
    pub(crate) fn behind(&self, key: &[u8]) -> Option<StatusId> {
        let mut found = None;
        self.each_behind(&KeyRange::new(key, b""), |id| {
            found = Some(id);
            ControlFlow::Break(())
        });
        found
    }

    /// All ranges, in order.
    pub(crate) fn ids(&self) -> Vec<StatusId> {
        let mut ids = Vec::with_capacity(self.len());
        self.by_first.for_each(|_, _, word| ids.push(id(word)));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use core::ops::Bound;

    /// One of few ordinary keys, or of bytes that are awkward, up to the longest.
    fn drawn_key(draw: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
        if draw(3) > 0 {
            return alloc::format!("t|user{:04}|{:b}", draw(1000), draw(4)).into_bytes();
        }
        let bytes = [0, 1, b'|', b'}', 0xfe, 0xff];
        let len = if draw(8) == 0 { Limits::KEY_BYTES_CEILING - 2 } else { draw(6) as usize };
        let mut key = alloc::vec![bytes[draw(6) as usize]; len];
        key.extend((0..3).map(|_| bytes[draw(6) as usize]));
        key
    }

    #[test]
    fn a_cover_is_an_ordered_map() {
        let (mut cover, mut model) = (Cover::default(), BTreeMap::<Vec<u8>, StatusId>::new());
        let mut state = 9u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for step in 0..6000 {
            let key = drawn_key(&mut draw);
            if draw(10) < if step / 1500 % 2 == 0 { 8 } else { 3 } {
                let status = StatusId(step);
                cover.insert(&key, status);
                model.insert(key, status);
            } else {
                cover.remove(&key);
                model.remove(&key);
            }
            let (key, last) = (drawn_key(&mut draw), drawn_key(&mut draw));
            let (key, last) = (&key[..key.len() - draw(3) as usize], &last[..]);
            let upto = |bound| model.range::<[u8], _>((Bound::Unbounded, bound)).next_back();
            let from = |bound| model.range::<[u8], _>((bound, Bound::Unbounded)).next();
            let told = |pair: Option<(&Vec<u8>, &StatusId)>| pair.map(|(_, id)| *id);
            assert_eq!(cover.at(key), model.get(key).copied());
            assert_eq!(cover.upto(key), told(upto(Bound::Included(key))));
            assert_eq!(cover.before(key), told(upto(Bound::Excluded(key))));
            assert_eq!(cover.before_end(b""), told(model.iter().next_back()));
            assert_eq!(cover.before_end(last), told(upto(Bound::Excluded(last))));
            let mut behind = Vec::new();
            cover.each_behind(&KeyRange::new(key, last), |id| {
                behind.push(id);
                ControlFlow::Continue(())
            });
            let within = model.iter().filter(|(it, _)| it[..] > *key && it[..] < *last);
            assert!(behind.iter().eq(within.map(|(_, id)| id)));
            assert_eq!(cover.from(key), told(from(Bound::Included(key))));
            assert_eq!(cover.behind(key), told(from(Bound::Excluded(key))));
            assert_eq!((cover.len(), cover.is_empty()), (model.len(), model.is_empty()));
            if step % 100 == 0 {
                assert!(cover.ids().iter().eq(model.values()));
            }
        }
    }
}
