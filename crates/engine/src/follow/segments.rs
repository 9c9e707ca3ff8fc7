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
use crate::range_map::RangeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_base::KeyRange;

/// Some followers, shared by all who name them.
pub(super) type Followers = Rc<[Follower]>;

/// The followed ranges (O1).
#[derive(Debug, Default)]
pub(crate) struct Segments {
    map: RangeMap<Followers>,
}

impl Segments {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Who follows `key`.
    #[inline]
    pub(crate) fn of(&self, key: &[u8]) -> Option<&Followers> {
        self.map.around(key).map(|(_, segment)| &segment.value)
    }

    /// Whether a key of `range` is followed.
    pub(crate) fn overlaps(&self, range: &KeyRange) -> bool {
        self.map.overlapping(range).next().is_some()
    }

    /// From the first to the last followed key of `range`.
    pub(crate) fn hull(&self, range: &KeyRange) -> Option<KeyRange> {
        let mut overlapping = self.map.overlapping(range);
        let (first, segment) = overlapping.next()?;
        let last = overlapping.last().map_or(segment.last(), |(_, segment)| segment.last());
        Some(KeyRange::new(first, last).intersection(range))
    }

    /// Has `by` follow all of `range`.
    pub(crate) fn add(&mut self, range: &KeyRange, by: Follower) {
        self.change(range, |followers| {
            let at = followers.binary_search(&by).err()?;
            let mut more = followers.to_vec();
            more.insert(at, by);
            Some(more)
        });
        let alone: Followers = [by].into();
        for gap in self.map.gaps(range) {
            self.map.insert(&gap, alone.clone());
        }
        self.map.join_neighbours(range);
    }

    /// Has `by` follow nothing of `range`; whether that changed anything.
    pub(crate) fn remove(&mut self, range: &KeyRange, by: Follower) -> bool {
        let changed = self.change(range, |followers| {
            let at = followers.binary_search(&by).ok()?;
            let mut fewer = followers.to_vec();
            fewer.remove(at);
            Some(fewer)
        });
        self.map.join_neighbours(range);
        changed
    }

    /// Takes out what is followed of `range`, and gives it with who followed it.
    pub(crate) fn cut(&mut self, range: &KeyRange) -> Vec<(KeyRange, Followers)> {
        self.map.cut(range)
    }

    /// Gives the parts of `range` other followers, where `change` does; whether it did. What has none
    /// is a segment no more. Segments that touch and have the same followers are left to be joined.
    fn change(
        &mut self,
        range: &KeyRange,
        change: impl Fn(&[Follower]) -> Option<Vec<Follower>>,
    ) -> bool {
        let mut changed = false;
        // Segments share their lists, before and after.
        let mut known: Option<(Followers, Followers)> = None;
        for (part, old) in self.map.cut(range) {
            let new = match &known {
                Some((before, after)) if Rc::ptr_eq(before, &old) => after.clone(),
                _ => match change(&old) {
                    None => old,
                    Some(followers) => {
                        changed = true;
                        let new: Followers = followers.into();
                        known = Some((old, new.clone()));
                        new
                    }
                },
            };
            if !new.is_empty() {
                self.map.insert(&part, new);
            }
        }
        changed
    }

    /// All parts that `by` follows.
    pub(crate) fn parts_of(&self, by: Follower) -> Vec<KeyRange> {
        let its = self.iter().filter(|(_, followers)| followers.contains(&by));
        its.map(|(range, _)| range).collect()
    }

    /// All segments, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyRange, &Followers)> {
        self.map.iter()
    }

    /// Bytes, about: ends, a share of tree nodes, and lists.
    pub(crate) fn bytes(&self) -> usize {
        let one = self.map.spans().map(|(first, segment)| {
            first.len() + segment.last().len() + 64 + 16 + segment.value.len() * 4
        });
        one.sum()
    }

    /// Asserts O1.
    pub(crate) fn check_invariants(&self) {
        let mut before: Option<(KeyRange, &Followers)> = None;
        for (range, followers) in self.map.iter() {
            assert!(!range.is_empty(), "O1");
            if let Some((before, its)) = before {
                assert!(!before.last.is_empty() && before.last <= range.first, "O1");
                assert!(before.last != range.first || its != followers, "O1");
            }
            assert!(!followers.is_empty() && followers.is_sorted_by(|a, b| a < b));
            before = Some((range, followers));
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
