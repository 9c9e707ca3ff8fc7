//! The keys that were written last, for followers in other processes that have what was there at some place and ask what has changed since.
//!
//! A place is an operation at which a turn ends in the log, with the checksum of the log's record that ends there: whoever has the log knows it, so a
//! process that has stood by tells the same as the one that wrote. What is remembered has a bound, and older places are known no more; nor are those before
//! a definition was changed, or all keys were removed, since more than keys has changed then.
//!
//! # Cost
//! A turn is a copy of its keys. The first question puts all of them into an ordered map, later ones add what is new; it goes when nobody asks for a while.

use crate::outside::LogMark;
use crate::turn::{Op, Turn};
use headwater_base::KeyRange;
use headwater_base::source::{Position, StorePlace};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Nobody asks any more, after so many turns.
const UNASKED_TURNS: usize = 1024;

/// Keys that one turn has written.
#[derive(Debug, Default)]
struct RecentTurn {
    /// Its last operation, and the checksum of the record that ends there, where one does and is acknowledged.
    last: u64,
    checksum: Option<u64>,
    /// The keys, each behind its length.
    keys: Vec<u8>,
    /// Ranges that it has removed.
    removed: Vec<KeyRange>,
}

impl RecentTurn {
    fn of(turn: &Turn) -> Option<Self> {
        let mut recent = Self { last: turn.last(), ..Self::default() };
        for (_, op) in turn.ops() {
            match op {
                Op::Put(key, _) | Op::Remove(key) => {
                    recent.keys.extend_from_slice(&(key.len() as u32).to_le_bytes());
                    recent.keys.extend_from_slice(key);
                }
                Op::RemoveRange(first, last) => recent.removed.push(KeyRange::new(first, last)),
                Op::Clear | Op::Define(..) | Op::Undefine(_) => return None,
                Op::Note(..) | Op::Unnote(_) => {}
            }
        }
        Some(recent)
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.keys[..];
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk::<4>()?;
            let (key, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = behind;
            Some(key)
        })
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.keys.capacity() + self.removed.len() * size_of::<KeyRange>()
    }
}

/// Keys by the turn that has written them last.
#[derive(Debug, Default)]
struct RecentIndex {
    keys: BTreeMap<Vec<u8>, u64>,
    upto: u64,
    unasked: usize,
}

/// What was written last.
#[derive(Debug, Default)]
pub struct RecentWrites {
    /// So many bytes are remembered, about; 0: nothing is.
    bytes_max: usize,
    bytes: usize,
    /// The place before the first turn.
    begin: u64,
    begin_checksum: Option<u64>,
    turns: VecDeque<RecentTurn>,
    reached: Option<StorePlace>,
    index: Option<RecentIndex>,
}

impl RecentWrites {
    /// Nothing behind the operation `begin`, which ends at this mark, and from now on as much as fits.
    pub(crate) fn new(bytes_max: usize, begin: u64, mark: Option<LogMark>) -> Self {
        let mut recent = Self { bytes_max, ..Self::default() };
        recent.begin_at(begin, mark.map(|mark| mark.checksum));
        recent
    }

    fn begin_at(&mut self, begin: u64, checksum: Option<u64>) {
        (self.begin, self.begin_checksum) = (begin, checksum);
        (self.bytes, self.index) = (0, None);
        self.turns.clear();
        let place = |checksum| StorePlace { position: Position(begin), checksum };
        self.reached = checksum.map(place).filter(|_| self.bytes_max > 0);
    }

    /// The last operation of which it knows.
    fn end(&self) -> u64 {
        self.turns.back().map_or(self.begin, |turn| turn.last)
    }

    /// Goes on with what another store of the same keys has remembered, where that ends at the same operation.
    pub(crate) fn go_on_from(&mut self, before: Self) {
        if before.end() == self.end() && self.bytes_max > 0 {
            *self = Self { bytes_max: self.bytes_max, ..before };
        }
    }

    /// Remembers a turn.
    pub(crate) fn push(&mut self, turn: &Turn) {
        if self.bytes_max == 0 || turn.is_empty() {
            return;
        }
        let Some(recent) = RecentTurn::of(turn) else {
            let reached = self.reached;
            self.begin_at(turn.last(), None);
            self.reached = reached;
            return;
        };
        self.bytes += recent.bytes();
        self.turns.push_back(recent);
        while self.bytes > self.bytes_max
            && let Some(first) = self.turns.pop_front()
        {
            self.bytes -= first.bytes();
            (self.begin, self.begin_checksum) = (first.last, first.checksum);
            // What it has of that stays, and is of no consequence.
        }
        if let Some(index) = &mut self.index {
            index.unasked += 1;
            if index.unasked >= UNASKED_TURNS {
                self.index = None;
            }
        }
    }

    /// The log has everything up to the operation `last`, where a record of this checksum ends.
    pub(crate) fn acknowledged(&mut self, last: u64, checksum: u64) {
        if self.bytes_max == 0 {
            return;
        }
        let at = self.turns.partition_point(|turn| turn.last < last);
        if let Some(turn) = self.turns.get_mut(at).filter(|turn| turn.last == last) {
            turn.checksum = Some(checksum);
        } else if self.begin == last {
            self.begin_checksum = Some(checksum);
        }
        self.reached = Some(StorePlace { position: Position(last), checksum });
    }

    /// The last place that the log has acknowledged.
    pub(crate) fn reached(&self) -> Option<StorePlace> {
        self.reached
    }

    /// Whether all that was written behind a place is remembered.
    fn knows(&self, place: StorePlace) -> bool {
        let at = self.turns.partition_point(|turn| turn.last < place.position.0);
        let checksum = match self.turns.get(at) {
            Some(turn) if turn.last == place.position.0 => turn.checksum,
            _ if self.begin == place.position.0 => self.begin_checksum,
            _ => None,
        };
        checksum == Some(place.checksum)
    }

    /// The keys of `range` that were written behind `place`, by these turns and by one that gathers; `None`: that is not known.
    pub(crate) fn written_since(
        &mut self,
        place: StorePlace,
        range: &KeyRange,
        gathers: &Turn,
    ) -> Option<Vec<Vec<u8>>> {
        if !self.knows(place) {
            return None;
        }
        let gathers = RecentTurn::of(gathers)?;
        let behind = self.turns.iter().rev().take_while(|turn| turn.last > place.position.0);
        let mut removed = behind.chain([&gathers]).flat_map(|turn| &turn.removed);
        if removed.any(|removed| removed.overlaps(range)) {
            return None;
        }
        let begin = self.begin;
        let index =
            self.index.get_or_insert_with(|| RecentIndex { upto: begin, ..Default::default() });
        index.unasked = 0;
        let new = self.turns.partition_point(|turn| turn.last <= index.upto);
        for turn in self.turns.range(new..) {
            for key in turn.keys() {
                index.keys.insert(key.to_vec(), turn.last);
            }
            index.upto = turn.last;
        }
        let known = index.keys.range(range.first.clone()..);
        let inside = known.take_while(|(key, _)| range.contains(key));
        let written = inside.filter(|(_, turn)| **turn > place.position.0);
        let mut keys: BTreeSet<Vec<u8>> = written.map(|(key, _)| key.clone()).collect();
        keys.extend(gathers.keys().filter(|key| range.contains(key)).map(<[u8]>::to_vec));
        Some(keys.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_base::source::Attributes;

    fn turn(after: u64, keys: &[&str]) -> Turn {
        let mut turn = Turn::after(after);
        for key in keys {
            turn.put(key.as_bytes(), &mut std::iter::once(&b"value"[..]), Attributes::default());
        }
        turn
    }

    fn place(position: u64) -> StorePlace {
        StorePlace { position: Position(position), checksum: position * 7 }
    }

    fn mark(sequence: u64, position: u64) -> LogMark {
        LogMark { sequence, checksum: position * 7 }
    }

    /// One that knows five turns of two keys each, of which four are acknowledged.
    fn filled(bytes_max: usize) -> RecentWrites {
        let mut recent = RecentWrites::new(bytes_max, 10, Some(mark(1, 10)));
        for at in 0..5 {
            let key = format!("p|{at}");
            recent.push(&turn(10 + 2 * at, &[&key, "q|"]));
        }
        for at in 1..5 {
            recent.acknowledged(10 + 2 * at, (10 + 2 * at) * 7);
        }
        recent
    }

    fn since(recent: &mut RecentWrites, at: StorePlace, range: &KeyRange) -> Option<Vec<String>> {
        let keys = recent.written_since(at, range, &turn(20, &["p|9", "r|"]))?;
        Some(keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect())
    }

    #[test]
    fn what_was_written_behind_a_place_is_known_and_nothing_before() {
        let mut recent = filled(1 << 20);
        let posts = KeyRange::prefix(b"p|");
        assert_eq!(recent.reached(), Some(place(18)));
        for (at, keys) in [
            (10, &["p|0", "p|1", "p|2", "p|3", "p|4", "p|9"][..]),
            (14, &["p|2", "p|3", "p|4", "p|9"]),
            (18, &["p|4", "p|9"]),
        ] {
            assert_eq!(since(&mut recent, place(at), &posts).unwrap(), keys);
        }
        assert_eq!(since(&mut recent, place(12), &KeyRange::all()).unwrap().len(), 7);
        // No turn ends there, or not in this history, or the log does not have it yet.
        for unknown in [place(11), place(9), place(20), place(22)] {
            assert_eq!(since(&mut recent, unknown, &posts), None, "{unknown:?}");
        }
        let other = StorePlace { checksum: 1, ..place(14) };
        assert_eq!(since(&mut recent, other, &posts), None);
        recent.push(&turn(20, &["p|0"]));
        assert_eq!(since(&mut recent, place(18), &posts).unwrap(), ["p|0", "p|4", "p|9"]);
    }

    #[test]
    fn older_places_are_forgotten() {
        let one = RecentTurn::of(&turn(10, &["p|0", "q|"])).unwrap().bytes();
        let mut recent = filled(2 * one);
        assert_eq!(recent.turns.len(), 2);
        assert_eq!(since(&mut recent, place(14), &KeyRange::all()), None);
        assert!(since(&mut recent, place(16), &KeyRange::all()).is_some());
        let mut none = filled(0);
        assert_eq!((none.reached(), since(&mut none, place(18), &KeyRange::all())), (None, None));
    }

    #[test]
    fn where_more_than_keys_has_changed_nothing_is_known() {
        let posts = KeyRange::prefix(b"p|");
        let mut recent = filled(1 << 20);
        let mut removal = Turn::after(20);
        removal.remove_range(&KeyRange::new(b"p|1", b"p|3"));
        recent.push(&removal);
        assert_eq!(since(&mut recent, place(18), &posts), None);
        assert!(since(&mut recent, place(18), &KeyRange::prefix(b"q|")).is_some());
        for at in 0..2 {
            let mut recent = filled(1 << 20);
            let mut last = Turn::after(20);
            match at {
                0 => last.clear(),
                _ => last.define(b"join\0t", 1, b"text"),
            };
            assert_eq!(recent.written_since(place(18), &posts, &last), None, "it gathers");
            recent.push(&last);
            assert_eq!(since(&mut recent, place(18), &posts), None);
            recent.acknowledged(21, 21 * 7);
            assert_eq!(since(&mut recent, place(21), &posts).unwrap(), ["p|9"]);
        }
    }

    #[test]
    fn the_next_store_goes_on_where_it_ends_at_the_same_operation() {
        let posts = KeyRange::prefix(b"p|");
        let mut next = RecentWrites::new(1 << 20, 20, Some(mark(9, 20)));
        next.go_on_from(filled(1 << 20));
        assert_eq!(since(&mut next, place(14), &posts).unwrap().len(), 4);
        let mut other = RecentWrites::new(1 << 20, 18, None);
        other.go_on_from(filled(1 << 20));
        assert_eq!(since(&mut other, place(14), &posts), None);
    }
}
