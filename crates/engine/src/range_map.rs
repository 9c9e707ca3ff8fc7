//! Disjoint ranges of keys, each with a value.
//!
//! # Invariants
//! - I1. The ranges are disjoint, and none is empty. Asserted where one is added.
//!
//! # Cost
//! Finding the range around a key, or the first that overlaps a range, is a search in an ordered tree, however many there are.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, btree_map::Range};
use alloc::vec::Vec;
use core::ops::Bound;
use headwater_base::KeyRange;
use headwater_base::key::{before_end, end_at_most, end_bound};

/// Values of disjoint ranges, by first key (I1).
#[derive(Debug)]
pub(crate) struct RangeMap<T>(BTreeMap<Box<[u8]>, Span<T>>);

/// The range that begins at some key, without that key.
#[derive(Clone, Debug)]
pub(crate) struct Span<T> {
    /// Its end, exclusive; empty: there is none.
    last: Box<[u8]>,
    pub(crate) value: T,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Span<T> {
    /// Where the range ends; empty: it has no end.
    pub(crate) fn last(&self) -> &[u8] {
        &self.last
    }
}

impl<T> RangeMap<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every range with its value, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyRange, &T)> {
        self.spans().map(|(first, span)| (KeyRange::new(first, &span.last), &span.value))
    }

    /// As [`RangeMap::iter`], in place: first keys and the rest.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (&[u8], &Span<T>)> {
        self.0.iter().map(|(first, span)| (&**first, span))
    }

    /// The ranges from that on which begins at `key`, or behind it.
    pub(crate) fn from(&self, key: Bound<&[u8]>) -> Range<'_, Box<[u8]>, Span<T>> {
        self.0.range::<[u8], _>((key, Bound::Unbounded))
    }

    /// The range around `key`: its first key and the rest.
    #[inline]
    pub(crate) fn around(&self, key: &[u8]) -> Option<(&[u8], &Span<T>)> {
        let upto = (Bound::Unbounded, Bound::Included(key));
        let (first, span) = self.0.range::<[u8], _>(upto).next_back()?;
        before_end(key, &span.last).then_some((&**first, span))
    }

    /// As [`RangeMap::around`], to be changed.
    #[inline]
    pub(crate) fn around_mut(&mut self, key: &[u8]) -> Option<&mut Span<T>> {
        let upto = (Bound::Unbounded, Bound::Included(key));
        let (_, span) = self.0.range_mut::<[u8], _>(upto).next_back()?;
        before_end(key, &span.last).then_some(span)
    }

    /// The range that begins at `first`.
    pub(crate) fn at(&self, first: &[u8]) -> Option<KeyRange> {
        self.0.get(first).map(|span| KeyRange::new(first, &span.last))
    }

    /// The ranges that overlap `range`, in order: their first keys and the rest.
    pub(crate) fn overlapping(&self, range: &KeyRange) -> impl Iterator<Item = (&[u8], &Span<T>)> {
        let behind = self.from(Bound::Excluded(&*range.first));
        let behind = behind.take_while(|(first, _)| before_end(first, &range.last));
        let behind = behind.map(|(first, span)| (&**first, span));
        let around = self.around(&range.first);
        around.into_iter().chain(behind).filter(|_| !range.is_empty())
    }

    /// The values of ranges that overlap `range`, the last one first.
    pub(crate) fn overlapping_mut(&mut self, range: &KeyRange) -> impl Iterator<Item = &mut T> {
        let below = (Bound::Unbounded, end_bound(&range.last));
        let below = self.0.range_mut::<[u8], _>(below).rev();
        let overlapping = below.take_while(|(_, span)| before_end(&range.first, &span.last));
        overlapping.map(|(_, span)| &mut span.value).filter(|_| !range.is_empty())
    }

    /// The parts of `range` that no range covers, in order.
    pub(crate) fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        let mut gaps = Vec::new();
        let mut at = &*range.first;
        for (first, span) in self.overlapping(range) {
            if at < first {
                gaps.push(KeyRange::new(at, first));
            }
            if span.last.is_empty() {
                return gaps;
            }
            at = &span.last;
        }
        if before_end(at, &range.last) {
            gaps.push(KeyRange::new(at, &range.last));
        }
        gaps
    }

    /// Adds a range that overlaps no other.
    pub(crate) fn insert(&mut self, range: &KeyRange, value: T) {
        assert!(!range.is_empty() && self.overlapping(range).next().is_none(), "I1");
        self.0.insert(
            range.first.as_slice().into(),
            Span { last: range.last.as_slice().into(), value },
        );
    }

    /// Takes out the range that begins at `first`.
    pub(crate) fn remove(&mut self, first: &[u8]) -> Option<(KeyRange, T)> {
        let span = self.0.remove(first)?;
        Some((KeyRange::new(first, &span.last), span.value))
    }

    /// Takes out the range that ends at `last`, where another begins perhaps.
    pub(crate) fn remove_ending(&mut self, last: &[u8]) -> Option<(KeyRange, T)> {
        let below = (Bound::Unbounded, Bound::Excluded(last));
        let (first, span) = self.0.range::<[u8], _>(below).next_back()?;
        let first = (*span.last == *last).then(|| first.clone())?;
        self.remove(&first)
    }

    /// Takes all ranges out.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (KeyRange, T)> + use<T> {
        let all = core::mem::take(&mut self.0).into_iter();
        all.map(|(first, span)| (KeyRange::new(&first, &span.last), span.value))
    }

    /// Takes out the ranges that `concerned` names.
    pub(crate) fn take_where(
        &mut self,
        concerned: impl Fn(&KeyRange, &T) -> bool,
    ) -> Vec<(KeyRange, T)> {
        let concerned = self.iter().filter(|(range, value)| concerned(range, value));
        let firsts: Vec<_> = concerned.map(|(range, _)| range.first).collect();
        firsts.iter().filter_map(|first| self.remove(first)).collect()
    }
}

impl<T: Clone> RangeMap<T> {
    /// Cuts the range around `at` in two there; an empty `at` is the end of all keys, or their start.
    pub(crate) fn split(&mut self, at: &[u8]) {
        if at.is_empty() || self.0.contains_key(at) {
            return;
        }
        let Some(left) = self.around_mut(at) else { return };
        let right = left.clone();
        left.last = at.into();
        self.0.insert(at.into(), right);
    }

    /// Takes `range` out of the ranges, and gives the parts of it that were in one.
    pub(crate) fn cut(&mut self, range: &KeyRange) -> Vec<(KeyRange, T)> {
        if self.overlapping(range).next().is_none() {
            return Vec::new();
        }
        self.split(&range.first);
        self.split(&range.last);
        let firsts: Vec<Box<[u8]>> =
            self.overlapping(range).map(|(first, _)| first.into()).collect();
        firsts.iter().filter_map(|first| self.remove(first)).collect()
    }
}

impl<T: PartialEq> RangeMap<T> {
    /// Makes one of ranges that touch and have the same value, from before `range` to behind it.
    pub(crate) fn join_neighbours(&mut self, range: &KeyRange) {
        let below = (Bound::Unbounded, Bound::Excluded(&*range.first));
        let before = self.0.range::<[u8], _>(below).next_back();
        let mut at: Box<[u8]> = before.map_or(&*range.first, |(first, _)| first).into();
        loop {
            let mut two = self.0.range::<[u8], _>((Bound::Included(&*at), Bound::Unbounded));
            let (Some((left, span)), Some((right, next))) = (two.next(), two.next()) else {
                return;
            };
            if !end_at_most(right, &range.last) {
                return;
            }
            if span.last == *right && span.value == next.value {
                let (left, right) = (left.clone(), right.clone());
                let next = self.0.remove(&right).expect("it was just met");
                self.0.get_mut(&left).expect("it was just met").last = next.last;
                at = left;
            } else {
                at = right.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RangeMap;
    use alloc::vec::Vec;
    use headwater_base::KeyRange;

    /// Keys of one byte below this.
    const KEYS: u8 = 24;

    fn key(at: u8) -> Vec<u8> {
        if at == 0 || at >= KEYS { Vec::new() } else { [at].into() }
    }

    fn expand(ranges: impl Iterator<Item = (KeyRange, u64)>) -> [Option<u64>; KEYS as usize] {
        let mut keys = [None; KEYS as usize];
        for (range, value) in ranges {
            for at in (0..KEYS).filter(|at| range.contains(&[*at])) {
                assert_eq!(keys[at as usize].replace(value), None, "I1");
            }
        }
        keys
    }

    /// Random changes, compared with a value for each key.
    #[test]
    fn ranges_say_what_each_key_has() {
        let mut draw = 11u64;
        let mut below = |most: u64| {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) % most
        };
        let mut map = RangeMap::default();
        let mut right = [None; KEYS as usize];
        for step in 0..20_000 {
            let first = below(u64::from(KEYS)) as u8;
            let last = (first + 1 + below(6) as u8).min(KEYS);
            let range = KeyRange { first: key(first), last: key(last) };
            let part = first as usize..last as usize;
            let gaps = expand(map.gaps(&range).into_iter().map(|gap| (gap, 0)));
            let overlap: Vec<u64> = map.overlapping(&range).map(|(_, span)| span.value).collect();
            let mut values: Vec<u64> = right[part.clone()].iter().flatten().copied().collect();
            for (at, value) in right.iter().enumerate() {
                assert_eq!(gaps[at].is_some(), part.contains(&at) && value.is_none());
                assert_eq!(map.around(&[at as u8]).map(|(_, span)| span.value), *value);
            }
            values.dedup();
            let mut different = overlap.clone();
            different.dedup();
            assert_eq!(different, values);
            let mut reversed: Vec<u64> = map.overlapping_mut(&range).map(|value| *value).collect();
            reversed.reverse();
            assert_eq!(reversed, overlap);
            match below(4) {
                0 => {
                    let cut = expand(map.cut(&range).into_iter());
                    for at in 0..KEYS as usize {
                        let taken = if part.contains(&at) { right[at].take() } else { None };
                        assert_eq!(cut[at], taken);
                    }
                }
                1 => {
                    let at = below(3);
                    let taken = expand(map.take_where(|_, value| value % 3 == at).into_iter());
                    for (value, taken) in right.iter_mut().zip(taken) {
                        assert_eq!(value.take_if(|value| *value % 3 == at), taken);
                    }
                }
                _ => {
                    let value = if below(4) == 0 { 7 } else { step };
                    for gap in map.gaps(&range) {
                        map.insert(&gap, value);
                    }
                    right[part].iter_mut().for_each(|at| _ = at.get_or_insert(value));
                    map.join_neighbours(&range);
                }
            }
            assert_eq!(expand(map.iter().map(|(range, value)| (range, *value))), right);
        }
    }
}
