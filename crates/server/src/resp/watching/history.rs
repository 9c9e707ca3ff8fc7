//! What was told lately of ranges that are or were watched, for clients that come back.
//!
//! A range that is watched is recorded as well: by a follower of the history's own, which stays for a
//! while when the last watch of the range has ended. The record is bounded; what a client asks for that
//! was dropped, or was never recorded, it has to read again.
//!
//! # Invariants
//! - H1. Of each kept range, all that was told since the number `since` is in the record, as far as the
//!   record reaches back: behind `floor`.
//!
//! # Cost
//! A change of a kept range is recorded once, as it crosses between shards.

use headwater_base::KeyRange;
use std::collections::VecDeque;

/// How long a range is kept that nobody watches any more, in milliseconds.
const LINGER: u64 = 60_000;
/// What an entry takes besides its text.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// What has happened, with its number.
#[derive(Debug)]
struct Entry {
    number: u64,
    what: HistoryEvent,
}

#[derive(Debug)]
enum HistoryEvent {
    /// A change of a key as it crosses between shards, and where the key is in it.
    Change(Box<[u8]>, core::ops::Range<u32>),
    /// A range that had to be read again.
    Reset(KeyRange),
}

/// A range that is recorded.
#[derive(Debug)]
struct Kept {
    range: KeyRange,
    /// It is recorded since this number.
    since: u64,
    watches: usize,
    /// When it is forgotten, in milliseconds of the server's life, once nobody watches it.
    until: u64,
}

/// The record, and the ranges that are in it.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Entries up to this number were dropped.
    floor: u64,
    kept: Vec<Kept>,
}

impl History {
    /// Bytes of the record.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records a change.
    pub(super) fn add(
        &mut self,
        number: u64,
        text: &[u8],
        key: core::ops::Range<usize>,
        most: usize,
    ) {
        let key = key.start as u32..key.end as u32;
        self.push(number, HistoryEvent::Change(text.into(), key), text.len(), most);
    }

    /// Records that a range had to be read again.
    pub(super) fn add_reset(&mut self, number: u64, range: &KeyRange, most: usize) {
        let bytes = range.first.len() + range.last.len();
        self.push(number, HistoryEvent::Reset(range.clone()), bytes, most);
    }

    fn push(&mut self, number: u64, what: HistoryEvent, bytes: usize, most: usize) {
        self.bytes += bytes + ENTRY_BYTES;
        self.entries.push_back(Entry { number, what });
        self.shrink(most);
    }

    /// Drops the oldest entries until the record has at most so many bytes.
    pub(super) fn shrink(&mut self, most: usize) {
        while self.bytes > most
            && let Some(Entry { number, what }) = self.entries.pop_front()
        {
            self.floor = number;
            self.bytes -= ENTRY_BYTES
                + match what {
                    HistoryEvent::Change(text, _) => text.len(),
                    HistoryEvent::Reset(range) => range.first.len() + range.last.len(),
                };
        }
    }

    /// Calls `each` with number and bytes of every change in `range` behind the number `from`; `false` where not all
    /// is known, after some calls perhaps.
    pub(super) fn replay(
        &self,
        range: &KeyRange,
        from: u64,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> bool {
        let is_kept = |kept: &Kept| kept.range.covers(range) && kept.since <= from;
        if from < self.floor || !self.kept.iter().any(is_kept) {
            return false;
        }
        let start = self.entries.partition_point(|entry| entry.number <= from);
        for entry in self.entries.range(start..) {
            match &entry.what {
                HistoryEvent::Change(text, key) => {
                    if range.contains(&text[key.start as usize..key.end as usize]) {
                        each(entry.number, text);
                    }
                }
                HistoryEvent::Reset(reset) if reset.overlaps(range) => return false,
                HistoryEvent::Reset(_) => {}
            }
        }
        true
    }

    /// A watch of `range` begins, which is recorded from the number `now` on if it was not before.
    pub(super) fn begin(&mut self, range: &KeyRange, now: u64) {
        match self.kept.iter_mut().find(|kept| kept.range == *range) {
            Some(kept) => kept.watches += 1,
            None => {
                self.kept.push(Kept { range: range.clone(), since: now, watches: 1, until: 0 });
            }
        }
    }

    /// A range that was lost and is watched is recorded again from the number `now` on.
    pub(super) fn resume(&mut self, range: &KeyRange, now: u64, watches: usize) {
        if self.kept.iter().all(|kept| kept.range != *range) {
            self.kept.push(Kept { range: range.clone(), since: now, watches, until: 0 });
        }
    }

    /// A watch of `range` has ended; the range stays for a while.
    pub(super) fn end(&mut self, range: &KeyRange, uptime: u64) {
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.range == *range) {
            kept.watches = kept.watches.saturating_sub(1);
            kept.until = uptime + LINGER;
        }
    }

    /// What overlaps `range` was lost: it is recorded no more.
    pub(super) fn lose(&mut self, range: &KeyRange) -> Vec<KeyRange> {
        let lost = |kept: &Kept| kept.range.overlaps(range);
        self.forget(lost)
    }

    /// Forgets the ranges whose time is over.
    pub(super) fn forget_old(&mut self, uptime: u64) -> Vec<KeyRange> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        self.forget(|kept| kept.watches == 0 && kept.until <= uptime)
    }

    /// Forgets some ranges, and gives the parts that are in no other.
    fn forget(&mut self, is_over: impl Fn(&Kept) -> bool) -> Vec<KeyRange> {
        let mut parts: Vec<KeyRange> =
            self.kept.extract_if(.., |kept| is_over(kept)).map(|kept| kept.range).collect();
        for kept in &self.kept {
            parts = parts.iter().flat_map(|part| part.without(&kept.range)).collect();
        }
        if self.kept.is_empty() {
            self.shrink(0);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::{History, LINGER};
    use headwater_base::KeyRange;

    fn told(history: &mut History, number: u64, key: &str) {
        history.add(number, key.as_bytes(), 0..key.len(), 400);
    }

    fn replayed(history: &History, range: &KeyRange, from: u64) -> Option<Vec<String>> {
        let mut all = Vec::new();
        let done = history.replay(range, from, &mut |_, text| {
            all.push(String::from_utf8(text.to_vec()).unwrap());
        });
        done.then_some(all)
    }

    #[test]
    fn what_is_kept_is_told_again_and_the_rest_is_not_known() {
        let mut history = History::default();
        let (all, some) = (KeyRange::new(b"a", b"m"), KeyRange::new(b"b", b"d"));
        history.begin(&all, 3);
        told(&mut history, 4, "a");
        told(&mut history, 5, "c");
        assert_eq!(replayed(&history, &some, 4), Some(vec![String::from("c")]));
        assert_eq!(replayed(&history, &some, 5), Some(Vec::new()));
        assert_eq!(replayed(&history, &all, 3).unwrap().len(), 2);
        assert_eq!(replayed(&history, &all, 2), None, "it was not recorded then");
        assert_eq!(replayed(&history, &KeyRange::all(), 4), None, "that much never was");
        history.add_reset(6, &KeyRange::new(b"l", b"z"), 400);
        assert_eq!(replayed(&history, &all, 5), None);
        assert!(replayed(&history, &some, 5).is_some() && replayed(&history, &all, 6).is_some());
        for number in 7..40 {
            told(&mut history, number, "k");
        }
        assert!(history.bytes() <= 400);
        assert_eq!(replayed(&history, &all, 7), None, "it was dropped");
        assert_eq!(replayed(&history, &all, 38).unwrap().len(), 1);
    }

    #[test]
    fn a_range_stays_for_a_while_and_as_long_as_another_has_it() {
        let mut history = History::default();
        let (all, some) = (KeyRange::new(b"a", b"m"), KeyRange::new(b"b", b"d"));
        history.begin(&all, 0);
        history.begin(&some, 0);
        history.end(&all, 100);
        assert!(history.forget_old(99 + LINGER).is_empty());
        let parts = history.forget_old(100 + LINGER);
        assert_eq!(parts, [KeyRange::new(b"a", b"b"), KeyRange::new(b"d", b"m")]);
        assert_eq!(history.lose(&KeyRange::point(b"c")), [some]);
        assert!(history.forget_old(u64::MAX).is_empty());
    }
}
