//! What is here of one provider's keys of a table, and what is on its way.

use super::ranges::LoadedRanges;
use super::{KeptReads, LoadedId, Provider, Waits};
use crate::exec::Missing;
use crate::range_map::RangeMap;
use crate::sources::{KEPT, Persistence};
use alloc::collections::BTreeMap;
use alloc::vec::{IntoIter, Vec};
use headwater_base::source::{Attributes, FetchId, Loaded, Pair, Portion, Position};
use headwater_base::{KeyRange, PackedPairs};
use headwater_policy::Evictor;

/// Bytes of keys and values after which a slice of an answer ends.
const SLICE_BYTES: usize = 256 << 10;

/// What is here of one provider's keys of a table.
#[derive(Debug)]
pub(crate) struct LoadedData {
    pub(crate) provider: Provider,
    pub(crate) ranges: LoadedRanges,
    pub(super) under_way: RangeMap<Load>,
    /// Where the provider stands, as far as is known here: the last change delivered.
    pub(crate) seen: Position,
}

/// A load under way.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) fetch: FetchId,
    /// Where the provider stood, as far as known here, when the load was asked for.
    pub(super) asked_at: Position,
    /// How much of its range is wanted.
    pub(super) portion: Portion,
    /// How many answers have come of what it goes on for (L5).
    pub(super) answers: u32,
    /// The last change of each key that was delivered since: its answer may not show it (L2).
    changes: Changes,
    /// What is left of its answer, where that is taken in slices (L4).
    pub(super) answer: Option<Answer>,
}

/// The last change of each key, and where the provider stood after it.
pub(super) type Changes = BTreeMap<Vec<u8>, (Position, Held)>;

/// What a key holds; nothing where there is no such key.
pub(super) type Held = Option<(Vec<u8>, Attributes)>;

/// An answer, or what is left of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) position: Position,
    /// The part of the range that it is of (L5), until that has been looked at.
    pub(super) known: Option<KeyRange>,
    pairs: AnswerPairs,
}

/// The pairs that are left of an answer.
#[derive(Debug)]
enum AnswerPairs {
    Single(IntoIter<Pair>),
    /// Those of one buffer from a place on.
    Packed(PackedPairs, usize),
}

impl From<Loaded> for Answer {
    fn from(Loaded { position, pairs, known }: Loaded) -> Self {
        Self { position, known, pairs: AnswerPairs::Single(pairs.into_iter()) }
    }
}

/// A slice of an answer.
pub(super) struct Slice {
    /// Pairs and changes that were looked at for it.
    pub(super) rows: usize,
    /// How many of the answer's next pairs it has.
    pub(super) count: usize,
    /// What takes the place of its pairs, or comes to them (L2).
    pub(super) late: Changes,
    /// Where the next slice begins; `None`: it is the last one.
    pub(super) end: Option<Vec<u8>>,
}

impl Answer {
    /// A part of an answer that comes in parts (L6).
    pub(super) fn part(position: Position, pairs: PackedPairs) -> Self {
        Self { position, known: None, pairs: AnswerPairs::Packed(pairs, 0) }
    }

    /// Bytes of keys and values that are left of it.
    pub(super) fn bytes(&self) -> u64 {
        match &self.pairs {
            AnswerPairs::Single(pairs) => {
                let bytes = |pair: &Pair| (pair.key.len() + pair.value.len()) as u64;
                pairs.as_slice().iter().map(bytes).sum()
            }
            AnswerPairs::Packed(pairs, next) => pairs.bytes_from(*next) as u64,
        }
    }

    /// How many pairs are left.
    fn left(&self) -> usize {
        match &self.pairs {
            AnswerPairs::Single(pairs) => pairs.len(),
            AnswerPairs::Packed(pairs, next) => pairs.len() - next,
        }
    }

    /// The key and the value at a place among the pairs that are left.
    #[inline]
    fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        match &self.pairs {
            AnswerPairs::Single(pairs) => {
                pairs.as_slice().get(at).map(|pair| (&*pair.key, &*pair.value))
            }
            AnswerPairs::Packed(pairs, next) => pairs.get(next + at),
        }
    }

    /// Whether all of so many next pairs, which are in the order of their keys, lie in a range.
    pub(super) fn is_within(&self, count: usize, range: &KeyRange) -> bool {
        let is_there = |at| self.get(at).is_none_or(|(key, _)| range.contains(key));
        matches!(self.pairs, AnswerPairs::Packed(..))
            && is_there(0)
            && count.checked_sub(1).is_none_or(is_there)
    }

    /// Takes the next pairs.
    pub(super) fn take(&mut self, count: usize, each: &mut impl FnMut(&[u8], &[u8], Attributes)) {
        match &mut self.pairs {
            AnswerPairs::Single(pairs) => {
                for Pair { key, value, attributes } in pairs.by_ref().take(count) {
                    each(&key, &value, attributes);
                }
            }
            AnswerPairs::Packed(pairs, next) => {
                for at in *next..*next + count {
                    if let Some((key, value)) = pairs.get(at) {
                        each(key, value, Attributes::default());
                    }
                }
                *next += count;
            }
        }
    }

    /// How many of its next pairs make a slice of `rows`; `None`: all of them are taken at once.
    fn next_count(&self, rows: Option<usize>) -> usize {
        let left = self.left();
        let Some(rows) = rows else { return left };
        let (mut count, mut bytes) = (0, 0);
        while count < rows.min(left)
            && bytes < SLICE_BYTES
            && let Some((key, value)) = self.get(count)
        {
            bytes += key.len() + value.len();
            count += 1;
        }
        let key = |at: usize| self.get(at).map(|(key, _)| key);
        debug_assert!(
            count == left || (1..=count).all(|at| key(at - 1) <= key(at)),
            "what is sliced is in the order of the keys"
        );
        // A slice ends between two keys.
        while count < left && count > 0 && key(count - 1) == key(count) {
            count += 1;
        }
        count
    }
}

impl Load {
    pub(super) fn new(fetch: FetchId, asked_at: Position, portion: Portion) -> Self {
        Self { fetch, asked_at, portion, answers: 0, changes: BTreeMap::new(), answer: None }
    }

    /// It goes on for loads that have had so many answers.
    pub(super) fn after(self, answers: u32) -> Self {
        Self { answers, ..self }
    }

    /// Takes out the changes of keys from `first` on.
    pub(super) fn cut_changes(&mut self, first: &[u8]) -> Changes {
        self.changes.split_off(first)
    }

    /// Has these changes be delivered since it was asked for.
    pub(super) fn with_changes(self, changes: Changes) -> Self {
        Self { changes, ..self }
    }

    /// The next pairs of its answer, `rows` of them at most (`None`: all), with the changes that came after it (L2).
    pub(super) fn next_slice(&mut self, answer: &mut Answer, rows: Option<usize>) -> Slice {
        let count = answer.next_count(rows);
        let next = answer.get(count).map(|(key, _)| key);
        let next_changed = rows.and_then(|rows| self.changes.keys().nth(rows));
        let end = next.into_iter().chain(next_changed.map(|key| &**key)).min().map(<[u8]>::to_vec);
        let left = end.as_ref().map(|end| self.changes.split_off(end));
        let mut late = core::mem::replace(&mut self.changes, left.unwrap_or_default());
        let changed = late.len();
        late.retain(|_, (position, _)| *position > answer.position);
        let count = match &end {
            // A change may end it before.
            Some(end) => (0..count)
                .rev()
                .find(|&at| answer.get(at).is_some_and(|(key, _)| key < &**end))
                .map_or(0, |at| at + 1),
            None => count,
        };
        Slice { rows: count + changed, count, late, end }
    }
}

impl LoadedData {
    pub(crate) fn new(provider: Provider) -> Self {
        Self {
            provider,
            ranges: LoadedRanges::default(),
            under_way: RangeMap::default(),
            seen: Position(0),
        }
    }

    /// Whether clients write the table, and the embedded store is told.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.provider, Provider::Store(_))
    }

    /// The source that has the keys, as clients name it.
    pub(crate) fn source(&self) -> &str {
        match &self.provider {
            Provider::Source(name) => name,
            Provider::Store(_) | Provider::Home(_) => KEPT,
        }
    }

    /// Whether all of `range` is loaded, which is noted as read.
    #[inline]
    pub(crate) fn serve(&mut self, range: &KeyRange, judge: &Evictor) -> bool {
        let serves = self.ranges.serve(&range.first, &range.last, judge);
        if serves {
            self.note_read(range);
        }
        serves
    }

    /// Notes that a range was asked for.
    #[inline]
    fn note_read(&mut self, range: &KeyRange) {
        if let Provider::Store(reads) = &mut self.provider
            && !is_point(range)
        {
            *reads = KeptReads::Ranges;
        }
    }

    /// How many loads are under way.
    pub(crate) fn loading(&self) -> usize {
        self.under_way.len()
    }

    /// The loads under way.
    pub(crate) fn fetches(&self) -> impl Iterator<Item = FetchId> {
        self.under_way.iter().map(|(_, load)| load.fetch)
    }

    /// Takes out the loads under way of ranges that `concerned` names.
    pub(crate) fn take_loads(
        &mut self,
        concerned: impl Fn(&KeyRange, FetchId) -> bool,
    ) -> Vec<(KeyRange, FetchId)> {
        self.take_where(|range, load| concerned(range, load.fetch))
    }

    fn take_where(
        &mut self,
        concerned: impl Fn(&KeyRange, &Load) -> bool,
    ) -> Vec<(KeyRange, FetchId)> {
        let taken = self.under_way.take_where(|range, load| concerned(range, load));
        taken.into_iter().map(|(range, load)| (range, load.fetch)).collect()
    }

    /// Takes out the loads of ranges that overlap `range` whose answers are being taken in.
    pub(super) fn take_answered(&mut self, range: &KeyRange) -> Vec<(KeyRange, FetchId)> {
        self.take_where(|loading, load| load.answer.is_some() && loading.overlaps(range))
    }

    /// Asks for the parts of `wanted` that are neither here nor on their way, of those that `is_own` names. Of a kept table
    /// all of `group` is asked for with a key of it: the keys of a group are read together, and one range is
    /// less to remember than many.
    ///
    /// # Errors
    /// The operation under way lacks some of it until it has come.
    pub(super) fn ask(
        &mut self,
        part: LoadedId,
        wanted: &KeyRange,
        group: Option<&KeyRange>,
        is_own: impl Fn(&KeyRange) -> bool,
        to: (&mut Waits, &mut Persistence, &Evictor),
    ) -> Result<(), Missing> {
        let (waits, persistence, judge) = to;
        self.note_read(wanted);
        self.ranges.touch(wanted, judge);
        let mut gaps = self.ranges.gaps(wanted);
        if let Some(group) = group.filter(|_| self.is_kept() && is_point(wanted))
            && !gaps.is_empty()
        {
            gaps = self.ranges.gaps(group);
        }
        if let Some(home) = part.home
            && waits.lacks_useless(home, &gaps)
        {
            return Err(Missing);
        }
        let mut missing = Ok(());
        for gap in &gaps {
            for (_, load) in self.under_way.overlapping(gap) {
                missing = Err(Missing);
                waits.lacking.insert(load.value.fetch);
            }
            for range in self.under_way.gaps(gap).into_iter().filter(&is_own) {
                missing = Err(Missing);
                let fetch = waits.begin_load(part, &range.first);
                let portion = Portion::default();
                self.under_way.insert(&range, Load::new(fetch, self.seen, portion));
                self.provider.load(fetch, range, portion, (waits, persistence));
            }
        }
        missing
    }

    /// Asks for the first keys of `gap`, of which nothing is here, or the last ones, as `portion` says; waits for those that are on their way.
    /// Parts that `is_own` does not name have none.
    pub(super) fn ask_portion(
        &mut self,
        part: LoadedId,
        gap: &KeyRange,
        portion: Portion,
        is_own: impl Fn(&KeyRange) -> bool,
        (waits, persistence): (&mut Waits, &mut Persistence),
    ) -> Missing {
        let mut free = self.under_way.gaps(gap);
        free.retain(is_own);
        let free = if portion.reverse { free.last() } else { free.first() };
        // Loads behind that are not waited for.
        let mut loads = Vec::new();
        for (first, load) in self.under_way.overlapping(gap) {
            if free.is_none_or(|free| (first < &*free.first) != portion.reverse) {
                loads.push(load.value.fetch);
            }
        }
        let load = if portion.reverse { loads.last() } else { loads.first() };
        match (free, load) {
            (_, Some(&fetch)) => _ = waits.lacking.insert(fetch),
            (Some(range), None) => {
                let fetch = waits.begin_load(part, &range.first);
                self.under_way.insert(range, Load::new(fetch, self.seen, portion));
                self.provider.load(fetch, range.clone(), portion, (waits, persistence));
            }
            (None, None) => debug_assert!(false, "some of the gap is own"),
        }
        Missing
    }

    /// Notes a change: the load under way that it concerns may come too late to show it (L2).
    pub(crate) fn note(&mut self, position: Position, key: &[u8], value: impl Fn() -> Held) {
        self.seen = self.seen.max(position);
        if let Some(load) = self.under_way.around_mut(key) {
            load.value.changes.insert(key.to_vec(), (position, value()));
        }
    }

    /// Notes that all keys of a range that is here are gone: no load of it is under way (L1).
    pub(crate) fn note_removed(&mut self, position: Position, range: &KeyRange) {
        debug_assert!(self.under_way.overlapping(range).next().is_none(), "all of it is here");
        self.seen = self.seen.max(position);
    }

    /// Answers of loads under way that are older than the last change delivered are of no use.
    pub(crate) fn ask_anew(&mut self) {
        for load in self.under_way.overlapping_mut(&KeyRange::all()) {
            load.asked_at = self.seen;
        }
    }
}

/// Whether the range holds one key alone.
fn is_point(range: &KeyRange) -> bool {
    range.last.split_last().is_some_and(|(end, key)| *end == 0 && key == range.first)
}
