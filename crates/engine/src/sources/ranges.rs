//! Which ranges of a table are here.
//!
//! # Cost
//! Finding the range around a key is a search in a tree of ranges; cutting a part out of one adds
//! one.

use super::subtract;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;
use headwater_base::KeyRange;
use headwater_base::key::{before_end, end_at_most};
use headwater_base::source::Position;
use headwater_policy::{Evictor, Heat};

/// The loaded ranges of one table, by first key (L1).
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    map: BTreeMap<Vec<u8>, Here>,
    /// Where the last range was looked at for eviction.
    hand: Vec<u8>,
}

/// A loaded range.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    /// Where it ends.
    pub(crate) last: Vec<u8>,
    /// The position of its load.
    pub(crate) position: Position,
    /// How it is used.
    pub(crate) heat: Heat,
}

impl Ranges {
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The parts of `range` that are not loaded.
    pub(crate) fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        let upto = (Bound::Unbounded, Bound::Included(&*range.first));
        let first = self.map.range::<[u8], _>(upto).next_back();
        let from = first.map_or(&*range.first, |(first, _)| first);
        let near = self.map.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        subtract(range, near.map(|(first, here)| (first, &here.last)))
    }

    /// The loaded range around `key`.
    pub(crate) fn around(&self, key: &[u8]) -> Option<(&Vec<u8>, &Here)> {
        let upto = (Bound::Unbounded, Bound::Included(key));
        let found = self.map.range::<[u8], _>(upto).next_back()?;
        before_end(key, &found.1.last).then_some(found)
    }

    /// Whether all of `[first, last)` lies in one loaded range, which is noted as read.
    #[inline]
    pub(crate) fn serve(&mut self, first: &[u8], last: &[u8], judge: &Evictor) -> bool {
        let upto = (Bound::Unbounded, Bound::Included(first));
        let Some((_, here)) = self.map.range_mut::<[u8], _>(upto).next_back() else {
            return false;
        };
        let serves = before_end(first, &here.last) && end_at_most(last, &here.last);
        if serves {
            here.heat = judge.hit(here.heat);
        }
        serves
    }

    /// Whether `key` lies in a loaded range, which is noted as read.
    #[inline]
    pub(crate) fn serve_key(&mut self, key: &[u8], judge: &Evictor) -> bool {
        let upto = (Bound::Unbounded, Bound::Included(key));
        let found = self.map.range_mut::<[u8], _>(upto).next_back();
        let Some((_, here)) = found.filter(|(_, here)| before_end(key, &here.last)) else {
            return false;
        };
        here.heat = judge.hit(here.heat);
        true
    }

    /// Adds a range that overlaps no other.
    pub(crate) fn insert(&mut self, first: Vec<u8>, here: Here) {
        self.map.insert(first, here);
    }

    /// As [`Ranges::insert`]; neighbours become one range with it.
    pub(crate) fn merge(&mut self, mut first: Vec<u8>, mut here: Here) {
        let below = (Bound::Unbounded, Bound::Excluded(&*first));
        let before = self.map.range::<[u8], _>(below).next_back();
        if let Some(before) = before.filter(|(_, before)| before.last == first) {
            let before = before.0.clone();
            let joined = self.map.remove(&before).expect("it was just found");
            here.position = here.position.max(joined.position);
            first = before;
        }
        if !here.last.is_empty()
            && let Some(after) = self.map.remove(&here.last)
        {
            here.position = here.position.max(after.position);
            here.last = after.last;
        }
        self.map.insert(first, here);
    }

    /// Takes `range` out of what is loaded, and gives the parts of it that were.
    pub(crate) fn cut(&mut self, range: &KeyRange) -> Vec<KeyRange> {
        let mut parts = Vec::new();
        while let Some((first, here)) = self.overlapping(range) {
            let (first, here) = (first.clone(), here.clone());
            self.map.remove(&first);
            let mut part = KeyRange::new(&first, &here.last);
            if first < range.first {
                let left = Here { last: range.first.clone(), ..here.clone() };
                part.first.clone_from(&range.first);
                self.map.insert(first, left);
            }
            if !range.last.is_empty() && !end_at_most(&here.last, &range.last) {
                part.last.clone_from(&range.last);
                self.map.insert(range.last.clone(), here);
            }
            parts.push(part);
        }
        parts
    }

    fn overlapping(&self, range: &KeyRange) -> Option<(&Vec<u8>, &Here)> {
        if let Some(found) = self.around(&range.first) {
            return Some(found);
        }
        let from = (Bound::Included(&*range.first), Bound::Unbounded);
        self.map.range::<[u8], _>(from).next().filter(|(first, _)| before_end(first, &range.last))
    }

    /// Forgets every range, and gives them.
    pub(crate) fn take(&mut self) -> Vec<KeyRange> {
        let map = core::mem::take(&mut self.map);
        map.into_iter().map(|(first, here)| KeyRange { first, last: here.last }).collect()
    }

    /// Every range.
    pub(crate) fn all(&self) -> impl Iterator<Item = KeyRange> {
        self.map.iter().map(|(first, here)| KeyRange::new(first, &here.last))
    }

    /// Notes that the loaded ranges over `range` are read.
    pub(crate) fn touch(&mut self, range: &KeyRange, judge: &Evictor) {
        let upto = (Bound::Unbounded, Bound::Excluded(&*range.last));
        let below: &mut dyn DoubleEndedIterator<Item = (&Vec<u8>, &mut Here)> =
            if range.last.is_empty() {
                &mut self.map.iter_mut()
            } else {
                &mut self.map.range_mut::<[u8], _>(upto)
            };
        for (_, here) in below.rev() {
            if !here.last.is_empty() && here.last <= range.first {
                break;
            }
            here.heat = judge.hit(here.heat);
        }
    }

    /// The range that begins at `first`.
    pub(crate) fn at(&self, first: &[u8]) -> Option<KeyRange> {
        self.map.get(first).map(|here| KeyRange::new(first, &here.last))
    }

    /// The next range in turn for a look at its worth.
    pub(crate) fn next_in_turn(&mut self) -> Option<(Vec<u8>, Heat)> {
        let after = (Bound::Excluded(&*self.hand), Bound::Unbounded);
        let next = self.map.range::<[u8], _>(after).next().or_else(|| self.map.iter().next());
        let (first, heat) = next.map(|(first, here)| (first.clone(), here.heat))?;
        self.hand.clone_from(&first);
        Some((first, heat))
    }

    /// The range that a number names, for tests: costs a walk.
    pub(crate) fn any(&self, draw: u64) -> Option<&[u8]> {
        let at = (draw % self.map.len().max(1) as u64) as usize;
        self.map.keys().nth(at).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::{Here, Ranges};
    use alloc::vec::Vec;
    use headwater_base::KeyRange;
    use headwater_base::source::Position;
    use headwater_policy::Heat;

    fn here(last: &str) -> Here {
        Here { last: last.into(), position: Position(1), heat: Heat::default() }
    }

    fn shown(ranges: &[KeyRange]) -> Vec<(&str, &str)> {
        let text = |bytes| core::str::from_utf8(bytes).unwrap();
        ranges.iter().map(|range| (text(&range.first), text(&range.last))).collect()
    }

    #[test]
    fn what_is_cut_out_is_missing_and_the_rest_stays() {
        let mut ranges = Ranges::default();
        ranges.insert(b"a".to_vec(), here("f"));
        ranges.insert(b"h".to_vec(), here(""));
        let cut = ranges.cut(&KeyRange::new(b"c", b"k"));
        assert_eq!(shown(&cut), [("c", "f"), ("h", "k")]);
        assert_eq!(shown(&ranges.gaps(&KeyRange::all())), [("", "a"), ("c", "k")]);
        let cut = ranges.cut(&KeyRange::new(b"m", b"n"));
        assert_eq!(shown(&cut), [("m", "n")]);
        let gaps = ranges.gaps(&KeyRange::all());
        assert_eq!(shown(&gaps), [("", "a"), ("c", "k"), ("m", "n")]);
        assert!(ranges.around(b"m").is_none() && ranges.around(b"n").is_some());
        assert!(ranges.cut(&KeyRange::new(b"c", b"k")).is_empty());
    }

    #[test]
    fn neighbours_become_one() {
        let mut ranges = Ranges::default();
        ranges.merge(b"a".to_vec(), here("c"));
        ranges.merge(b"e".to_vec(), here(""));
        ranges.merge(b"c".to_vec(), here("e"));
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges.at(b"a"), Some(KeyRange::new(b"a", b"")));
    }

    #[test]
    fn every_range_has_its_turn() {
        let mut ranges = Ranges::default();
        for (first, last) in [("a", "b"), ("c", "d"), ("e", "f")] {
            ranges.insert(first.into(), here(last));
        }
        let turns: Vec<_> = (0..4).map(|_| ranges.next_in_turn().unwrap().0).collect();
        assert_eq!(turns, [b"a", b"c", b"e", b"a"]);
    }
}
