//! Who follows which keys: disjoint ranges, each with its followers.
//!
//! # Invariants
//! - O1. Segments are disjoint and not empty; each has at least one follower, in ascending order and
//!   once; of neighbours that touch, the followers differ.
//!
//! # Cost
//! Finding the followers of a key is a search in an ordered tree. Following a range looks at the
//! segments that it overlaps.

use super::Follower;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Bound;
use headwater_base::KeyRange;
use headwater_base::key::{before_end, end_at_most};

/// Some followers, shared by all who name them.
pub(super) type Followers = Rc<[Follower]>;

#[derive(Clone, Debug)]
struct Segment {
    /// Empty: to the end.
    last: Box<[u8]>,
    followers: Followers,
}

/// The followed ranges (O1).
#[derive(Debug, Default)]
pub(crate) struct Segments {
    map: BTreeMap<Box<[u8]>, Segment>,
}

impl Segments {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The segment in which `key` lies, or that ends before it.
    #[inline]
    fn at_most(&self, key: &[u8]) -> Option<(&[u8], &Segment)> {
        let upto = (Bound::Unbounded, Bound::Included(key));
        self.map.range::<[u8], _>(upto).next_back().map(|(first, segment)| (&**first, segment))
    }

    /// Who follows `key`.
    #[inline]
    pub(crate) fn of(&self, key: &[u8]) -> Option<&Followers> {
        let (_, segment) = self.at_most(key)?;
        before_end(key, &segment.last).then_some(&segment.followers)
    }

    /// The segments that overlap `range`, in order.
    fn overlapping(&self, range: &KeyRange) -> impl Iterator<Item = (&[u8], &Segment)> {
        let before = self.at_most(&range.first);
        let before = before.filter(|(_, segment)| before_end(&range.first, &segment.last));
        let from = (Bound::Excluded(&*range.first), Bound::Unbounded);
        let rest = self.map.range::<[u8], _>(from);
        let rest = rest.take_while(|(first, _)| before_end(first, &range.last));
        let rest = rest.map(|(first, segment)| (&**first, segment));
        before.into_iter().chain(rest).filter(|_| !range.is_empty())
    }

    /// Whether a key of `range` is followed.
    pub(crate) fn overlaps(&self, range: &KeyRange) -> bool {
        self.overlapping(range).next().is_some()
    }

    /// From the first to the last followed key of `range`.
    pub(crate) fn hull(&self, range: &KeyRange) -> Option<KeyRange> {
        let mut overlapping = self.overlapping(range);
        let (first, segment) = overlapping.next()?;
        let last = overlapping.last().map_or(&segment.last, |(_, segment)| &segment.last);
        Some(KeyRange::new(first, last).intersection(range))
    }

    /// Has `by` follow all of `range`.
    pub(crate) fn add(&mut self, range: &KeyRange, by: Follower) {
        self.change(range, |followers| match followers.binary_search(&by) {
            Ok(_) => None,
            Err(at) => {
                let mut more = followers.to_vec();
                more.insert(at, by);
                Some(more)
            }
        });
        let mut gaps = Vec::new();
        let mut at = Some(range.first.as_slice());
        for (first, segment) in self.overlapping(range) {
            match at {
                Some(from) if *from < *first => gaps.push(KeyRange::new(from, first)),
                _ => {}
            }
            at = (!segment.last.is_empty()).then_some(&segment.last);
        }
        if let Some(from) = at.filter(|from| before_end(from, &range.last)) {
            gaps.push(KeyRange::new(from, &range.last));
        }
        let alone: Followers = [by].into();
        for KeyRange { first, last } in gaps {
            let segment = Segment { last: last.into(), followers: alone.clone() };
            self.map.insert(first.into(), segment);
        }
        self.join_neighbours(range);
    }

    /// Has `by` follow nothing of `range`; whether that changed anything.
    pub(crate) fn remove(&mut self, range: &KeyRange, by: Follower) -> bool {
        let changed = self.change(range, |followers| {
            let at = followers.binary_search(&by).ok()?;
            let mut fewer = followers.to_vec();
            fewer.remove(at);
            Some(fewer)
        });
        if changed {
            self.join_neighbours(range);
        }
        changed
    }

    /// Takes out what is followed of `range`, and gives it with who followed it.
    pub(crate) fn cut(&mut self, range: &KeyRange) -> Vec<(KeyRange, Followers)> {
        if !self.overlaps(range) {
            return Vec::new();
        }
        self.split(&range.first);
        self.split(&range.last);
        let firsts: Vec<Box<[u8]>> =
            self.overlapping(range).map(|(first, _)| first.into()).collect();
        let mut parts = Vec::new();
        for first in firsts {
            if let Some(segment) = self.map.remove(&first) {
                parts.push((KeyRange::new(&first, &segment.last), segment.followers));
            }
        }
        parts
    }

    /// Gives the parts of `range` other followers, where `change` does; whether it did. What has none
    /// is a segment no more.
    fn change(
        &mut self,
        range: &KeyRange,
        change: impl Fn(&[Follower]) -> Option<Vec<Follower>>,
    ) -> bool {
        if !self.overlaps(range) {
            return false;
        }
        self.split(&range.first);
        self.split(&range.last);
        let firsts: Vec<Box<[u8]>> =
            self.overlapping(range).map(|(first, _)| first.into()).collect();
        let mut changed = false;
        // Segments share their lists, before and after.
        let mut known: Option<(Followers, Followers)> = None;
        for first in firsts {
            let Some(segment) = self.map.get_mut(&first) else { continue };
            if let Some((old, new)) = &known
                && Rc::ptr_eq(old, &segment.followers)
            {
                segment.followers = new.clone();
                continue;
            }
            let Some(followers) = change(&segment.followers) else { continue };
            changed = true;
            if followers.is_empty() {
                self.map.remove(&first);
                continue;
            }
            let new: Followers = followers.into();
            known = Some((segment.followers.clone(), new.clone()));
            segment.followers = new;
        }
        // Where nothing changed, the cuts go again.
        if !changed {
            self.join_neighbours(range);
        }
        changed
    }

    /// Cuts the segment around `at` in two there; an empty `at` is the end of all keys, or their start.
    fn split(&mut self, at: &[u8]) {
        if at.is_empty() {
            return;
        }
        let Some((first, segment)) = self.at_most(at) else { return };
        if *first == *at || !before_end(at, &segment.last) {
            return;
        }
        let (first, right) = (Box::<[u8]>::from(first), segment.clone());
        if let Some(left) = self.map.get_mut(&first) {
            left.last = at.into();
        }
        self.map.insert(at.into(), right);
    }

    /// Makes one of neighbours with the same followers, from before `range` to behind it.
    fn join_neighbours(&mut self, range: &KeyRange) {
        let below = (Bound::Unbounded, Bound::Excluded(&*range.first));
        let before = self.map.range::<[u8], _>(below).next_back();
        let mut at: Box<[u8]> = match before {
            Some((first, _)) => first.clone(),
            None => range.first.as_slice().into(),
        };
        loop {
            let from = (Bound::Included(&*at), Bound::Unbounded);
            let mut two = self.map.range::<[u8], _>(from);
            let (Some((left, segment)), Some((right, next))) = (two.next(), two.next()) else {
                return;
            };
            if !end_at_most(right, &range.last) || (range.last.is_empty() && right.is_empty()) {
                return;
            }
            if segment.last == *right && segment.followers == next.followers {
                let (left, right) = (left.clone(), right.clone());
                let next = self.map.remove(&right).expect("it was just met");
                self.map.get_mut(&left).expect("it was just met").last = next.last;
                at = left;
            } else {
                at = right.clone();
            }
        }
    }

    /// All parts that `by` follows.
    pub(crate) fn parts_of(&self, by: Follower) -> Vec<KeyRange> {
        let its = self.map.iter().filter(|(_, segment)| segment.followers.contains(&by));
        its.map(|(first, segment)| KeyRange::new(first, &segment.last)).collect()
    }

    /// All segments, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyRange, &Followers)> {
        self.map
            .iter()
            .map(|(first, segment)| (KeyRange::new(first, &segment.last), &segment.followers))
    }

    /// Bytes, about: ends, a share of tree nodes, and lists.
    pub(crate) fn bytes(&self) -> usize {
        let one = self.map.iter().map(|(first, segment)| {
            first.len() + segment.last.len() + 64 + 16 + segment.followers.len() * 4
        });
        one.sum()
    }

    /// Asserts O1.
    pub(crate) fn check_invariants(&self) {
        let mut before: Option<&Segment> = None;
        for (first, segment) in &self.map {
            assert!(!KeyRange::new(first, &segment.last).is_empty(), "O1");
            if let Some(before) = before {
                assert!(!before.last.is_empty() && before.last <= *first, "O1");
                assert!(before.last != *first || before.followers != segment.followers, "O1");
            }
            assert!(!segment.followers.is_empty() && segment.followers.is_sorted_by(|a, b| a < b));
            before = Some(segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Follower, Segments};
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use headwater_base::KeyRange;

    /// Random changes, compared with a set of (key, follower).
    #[test]
    fn segments_say_who_follows_each_key() {
        let keys: Vec<Vec<u8>> = (0..40u8)
            .map(|at| [b'a' + at / 6, b'a' + at % 6][..1 + usize::from(at % 6 > 0)].to_vec())
            .collect();
        let mut draw = 7u64;
        let mut below = |most: usize| {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) as usize % most
        };
        for _ in 0..200 {
            let mut segments = Segments::default();
            let mut right = BTreeSet::new();
            for _ in 0..40 {
                let first =
                    if below(8) == 0 { Vec::new() } else { keys[below(keys.len())].clone() };
                let last = if below(8) == 0 { Vec::new() } else { keys[below(keys.len())].clone() };
                let range = KeyRange { first, last };
                let by = Follower(below(4) as u32);
                let inside: Vec<&Vec<u8>> = keys.iter().filter(|key| range.contains(key)).collect();
                if range.is_empty() {
                    continue;
                }
                match below(6) {
                    0..=2 => {
                        segments.add(&range, by);
                        right.extend(inside.iter().map(|key| ((*key).clone(), by)));
                    }
                    3..=4 => {
                        segments.remove(&range, by);
                        inside.iter().for_each(|key| _ = right.remove(&((*key).clone(), by)));
                    }
                    _ => {
                        let parts = segments.cut(&range);
                        for (key, by) in &right {
                            let told = parts
                                .iter()
                                .any(|(part, to)| part.contains(key) && to.contains(by));
                            assert_eq!(told, range.contains(key));
                        }
                        right.retain(|(key, _)| !range.contains(key));
                    }
                }
                segments.check_invariants();
                for key in &keys {
                    let of: Vec<Follower> = segments.of(key).map_or(Vec::new(), |of| of.to_vec());
                    let wanted = right.iter().filter(|(at, _)| at == key).map(|(_, by)| *by);
                    assert_eq!(of, wanted.collect::<Vec<_>>(), "{key:?}");
                }
                let hull = segments.hull(&range);
                let mut within = right.iter().map(|(key, _)| key).filter(|key| range.contains(key));
                assert!(within.all(|key| hull.as_ref().is_some_and(|hull| hull.contains(key))));
            }
        }
    }
}
