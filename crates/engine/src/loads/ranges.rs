//! Which ranges of a table are here, and how they are used.
//!
//! # Cost
//! Finding the range around a key is a search in a tree of ranges; cutting a part out of one adds
//! one.

use crate::range_map::RangeMap;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Bound;
use headwater_base::KeyRange;
use headwater_base::key::end_at_most;
use headwater_base::source::Position;
use headwater_policy::{Evictor, Heat};

/// The loaded ranges of one table and provider (L1).
#[derive(Debug, Default)]
pub(crate) struct LoadedRanges {
    map: RangeMap<Here>,
    /// Where the last range was looked at for eviction.
    hand: Box<[u8]>,
}

/// Neighbours that came by several loads become one range while they had so many rows together, at most: what is evicted
/// is a range.
const JOINED_ROWS_MAX: usize = 4096;

/// What is known of a loaded range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// The position of its load.
    pub(crate) position: Position,
    /// How many rows came with it.
    pub(crate) rows: usize,
    /// How it is used.
    pub(crate) heat: Heat,
}

impl Here {
    /// Takes over what is known of a neighbour, if the two can become one range.
    fn joins(&mut self, known: Self, seen: Position) -> bool {
        let (position, rows) = (self.position.max(known.position), self.rows + known.rows);
        let joins =
            self.position == known.position || (position <= seen && rows <= JOINED_ROWS_MAX);
        if joins {
            (self.position, self.rows) = (position, rows);
        }
        joins
    }
}

impl LoadedRanges {
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The parts of `range` that are not loaded.
    pub(crate) fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        self.map.gaps(range)
    }

    /// The loaded range around `key`.
    pub(crate) fn around(&self, key: &[u8]) -> Option<KeyRange> {
        self.map.around(key).map(|(first, here)| KeyRange::new(first, here.last()))
    }

    /// The position of the load in which `key` came.
    #[inline]
    pub(crate) fn position_of(&self, key: &[u8]) -> Option<Position> {
        self.map.around(key).map(|(_, here)| here.value.position)
    }

    /// Whether all of `[first, last)` lies in one loaded range, which is noted as read.
    #[inline]
    pub(crate) fn serve(&mut self, first: &[u8], last: &[u8], judge: &Evictor) -> bool {
        let here = self.map.around_mut(first).filter(|here| end_at_most(last, here.last()));
        here.is_some_and(|here| {
            here.value.heat = judge.hit(here.value.heat);
            true
        })
    }

    /// Whether `key` lies in a loaded range, which is noted as read.
    #[inline]
    pub(crate) fn serve_key(&mut self, key: &[u8], judge: &Evictor) -> bool {
        self.map.around_mut(key).is_some_and(|here| {
            here.value.heat = judge.hit(here.value.heat);
            true
        })
    }

    /// Adds a range that overlaps no other.
    pub(crate) fn insert(&mut self, range: &KeyRange, here: Here) {
        self.map.insert(range, here);
    }

    /// As [`LoadedRanges::insert`]; what came of the same load, or of another that shows the same moment, becomes one range with it. So do
    /// few rows beside few others, once changes have been delivered up to `seen`, behind the positions of both: their positions
    /// do not matter any more.
    pub(crate) fn append(&mut self, mut range: KeyRange, mut here: Here, seen: Position) {
        if let Some((before, known)) = self.map.remove_ending(&range.first) {
            if here.joins(known, seen) {
                range.first = before.first;
            } else {
                self.map.insert(&before, known);
            }
        }
        if !range.last.is_empty()
            && let Some((after, known)) = self.map.remove(&range.last)
        {
            if here.joins(known, seen) {
                range.last = after.last;
            } else {
                self.map.insert(&after, known);
            }
        }
        self.map.insert(&range, here);
    }

    /// As [`LoadedRanges::insert`]; neighbours become one range with it.
    pub(crate) fn merge(&mut self, mut range: KeyRange, mut here: Here) {
        if let Some((before, joined)) = self.map.remove_ending(&range.first) {
            here.position = here.position.max(joined.position);
            range.first = before.first;
        }
        if !range.last.is_empty()
            && let Some((after, joined)) = self.map.remove(&range.last)
        {
            here.position = here.position.max(joined.position);
            range.last = after.last;
        }
        self.map.insert(&range, here);
    }

    /// Takes `range` out of what is loaded, and gives the parts of it that were.
    pub(crate) fn cut(&mut self, range: &KeyRange) -> Vec<KeyRange> {
        self.map.cut(range).into_iter().map(|(part, _)| part).collect()
    }

    /// Forgets every range, and gives them.
    pub(crate) fn take(&mut self) -> Vec<KeyRange> {
        self.map.take().map(|(range, _)| range).collect()
    }

    /// Every range.
    pub(crate) fn all(&self) -> impl Iterator<Item = KeyRange> {
        self.map.iter().map(|(range, _)| range)
    }

    /// Notes that the loaded ranges over `range` are read.
    pub(crate) fn touch(&mut self, range: &KeyRange, judge: &Evictor) {
        for here in self.map.overlapping_mut(range) {
            here.heat = judge.hit(here.heat);
        }
    }

    /// The range that begins at `first`.
    pub(crate) fn at(&self, first: &[u8]) -> Option<KeyRange> {
        self.map.at(first)
    }

    /// The next range in turn for a look at its worth.
    pub(crate) fn next_in_turn(&mut self) -> Option<(Vec<u8>, Heat)> {
        let next = self.map.from(Bound::Excluded(&self.hand)).next();
        let next = next.map(|(first, here)| (&**first, here)).or_else(|| self.map.spans().next());
        let (first, heat) = next.map(|(first, here)| (first.to_vec(), here.value.heat))?;
        self.hand = first.as_slice().into();
        Some((first, heat))
    }

    /// The range that a number names, for tests: costs a walk.
    pub(crate) fn any(&self, draw: u64) -> Option<&[u8]> {
        let at = (draw % self.map.len().max(1) as u64) as usize;
        self.map.spans().nth(at).map(|(first, _)| first)
    }
}

#[cfg(test)]
mod tests {
    use super::{Here, LoadedRanges};
    use alloc::vec::Vec;
    use headwater_base::KeyRange;
    use headwater_base::source::Position;
    use headwater_policy::Heat;

    fn range(first: &str, last: &str) -> KeyRange {
        KeyRange::new(first.as_bytes(), last.as_bytes())
    }

    fn here() -> Here {
        Here { position: Position(1), rows: 1, heat: Heat::default() }
    }

    fn shown(ranges: &[KeyRange]) -> Vec<(&str, &str)> {
        let text = |bytes| core::str::from_utf8(bytes).unwrap();
        ranges.iter().map(|range| (text(&range.first), text(&range.last))).collect()
    }

    #[test]
    fn what_is_cut_out_is_missing_and_the_rest_stays() {
        let mut ranges = LoadedRanges::default();
        ranges.insert(&range("a", "f"), here());
        ranges.insert(&range("h", ""), here());
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
        let mut ranges = LoadedRanges::default();
        ranges.merge(range("a", "c"), here());
        ranges.merge(range("e", ""), here());
        ranges.merge(range("c", "e"), here());
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges.at(b"a"), Some(KeyRange::new(b"a", b"")));
    }

    #[test]
    fn every_range_has_its_turn() {
        let mut ranges = LoadedRanges::default();
        for (first, last) in [("a", "b"), ("c", "d"), ("e", "f")] {
            ranges.insert(&range(first, last), here());
        }
        let turns: Vec<_> = (0..4).map(|_| ranges.next_in_turn().unwrap().0).collect();
        assert_eq!(turns, [b"a", b"c", b"e", b"a"]);
    }
}
