//! Answers of loads: what was asked for is here, and goes into the store; a source's in slices (L4).

use super::data::{Answer, Load, Slice};
use super::{Here, LoadedId, Provider};
use crate::base::Put;
use crate::engine::Engine;
use crate::report::EngineError;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::key::before_end;
use headwater_base::placement::Shard;
use headwater_base::source::{Attributes, FetchId, Loaded, Pair, Position};
use headwater_base::{KeyRange, ShardRefusal};

/// Why a load came to nothing.
enum LoadFailure {
    OfSource(String),
    OfHome(ShardRefusal),
}

impl Engine {
    /// The answer to [`Effect::Load`](crate::Effect::Load): the pairs of its range as of a position, or why not.
    /// An answer that nobody waits for any more is ignored.
    pub fn loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) {
        if self.base.streams.loads_chunk(fetch) {
            return self.chunk_loaded(fetch, answer);
        }
        self.arrived(None, fetch, answer.map_err(LoadFailure::OfSource));
    }

    /// The answer to [`Effect::LoadFrom`](crate::Effect::LoadFrom): the keys of its range that `home` is home of, or why not.
    /// An answer that nobody waits for any more is ignored.
    pub fn loaded_from(
        &mut self,
        home: Shard,
        fetch: FetchId,
        answer: Result<Vec<Pair>, ShardRefusal>,
    ) {
        // Answers and changes of another shard come in one order: they need no positions.
        let answer = answer.map(|pairs| Loaded { position: Position(0), pairs, known: None });
        if answer.is_ok() {
            self.mix_suspended(home);
        }
        self.arrived(Some(home), fetch, answer.map_err(LoadFailure::OfHome));
    }

    fn arrived(
        &mut self,
        from: Option<Shard>,
        fetch: FetchId,
        answer: Result<Loaded, LoadFailure>,
    ) {
        match answer {
            Ok(_) => self.notifications.retry_followed(),
            Err(_) => self.give_up_followed(),
        }
        if let Some(useless) = self.base.loads.waits.take_useless(fetch) {
            if answer.is_ok() {
                Provider::Home(useless.home).unfollow(useless.range, &mut self.base.loads.waits);
            }
            self.base.loads.waits.wake(fetch);
            return;
        }
        let Some((part, first)) = self.base.loads.waits.end_load(fetch) else { return };
        assert_eq!(part.home, from, "loads have numbers of their own");
        let Some((data, waits, _)) = self.base.loads.split(part) else { return };
        let Some((range, load)) = data.under_way.remove(&first) else { return };
        match answer {
            Err(LoadFailure::OfSource(message)) => {
                let error = EngineError::SourceFailed { source: data.provider.name(), message };
                waits.fail(fetch, &error);
            }
            Err(LoadFailure::OfHome(refusal)) => waits.fail(fetch, &EngineError::OfHome(refusal)),
            Ok(Loaded { known: Some(known), .. }) if known.intersection(&range).is_empty() => {
                let message = String::from("it gave nothing of what was asked for");
                let error = EngineError::SourceFailed { source: data.provider.name(), message };
                waits.fail(fetch, &error);
            }
            Ok(loaded) => {
                let answer: Answer = loaded.into();
                self.note_brought(fetch, || answer.bytes());
                self.take_answer(part, &range, load, answer);
            }
        }
    }

    /// Takes the next slices of answers that have come (L4), as many rows as a slice has.
    pub(crate) fn take_answers_in_turn(&mut self) {
        self.base.loads.arriving.rows_taken = 0;
        let rows = self.reads.slices.rows().unwrap_or(usize::MAX);
        while self.base.loads.arriving.rows_taken < rows
            && let Some(fetch) = self.base.loads.arriving.queue.pop_front()
        {
            // What is not there any more was dropped meanwhile.
            let Some((part, first)) = self.base.loads.waits.end_load(fetch) else { continue };
            let Some(data) = self.base.loads.data_mut(part) else { continue };
            let Some((range, mut load)) = data.under_way.remove(&first) else { continue };
            let answer = load.answer.take().expect("its answer has come");
            self.take_answer(part, &range, load, answer);
        }
    }

    /// Takes an answer, or what is left of it: of a source's, as much as there is time for in this turn.
    pub(super) fn take_answer(
        &mut self,
        part: LoadedId,
        range: &KeyRange,
        mut load: Load,
        mut answer: Answer,
    ) {
        let fetch = load.fetch;
        let Some((data, waits, persistence)) = self.base.loads.split(part) else { return };
        let is_own = part.home.is_some()
            || data.is_kept()
            || self.base.placed.as_deref().is_none_or(|placed| placed.may_own(range));
        if !is_own {
            // Its home is another shard by now.
            data.provider.unfollow(answer.known.unwrap_or_else(|| range.clone()), waits);
            waits.wake(fetch);
            // Others' data will not come from here any more.
            return self.notifications.retry_followed();
        }
        if answer.position < load.asked_at {
            // Changes between were delivered before they were of interest: ask again.
            let anew = Load::new(fetch, data.seen, load.portion).after(load.answers);
            data.under_way.insert(range, anew);
            waits.file(fetch, part, &range.first);
            // A source follows the range for each answer.
            data.provider.unfollow(answer.known.unwrap_or_else(|| range.clone()), waits);
            data.provider.load(fetch, range.clone(), load.portion, (waits, persistence));
            return;
        }
        let known = answer.known.take();
        let known =
            known.map(|known| self.base.go_on_behind(part, range, &load, (known, answer.bytes())));
        let range = known.as_ref().unwrap_or(range);
        let Some(data) = self.base.loads.data_mut(part) else { return };
        let is_sliced = matches!(data.provider, Provider::Source(_));
        let rows = self.reads.slices.rows().filter(|_| is_sliced);
        let rows_left = rows.map(|rows| rows.saturating_sub(self.base.loads.arriving.rows_taken));
        let mut left = range.clone();
        if rows_left != Some(0) {
            let mut slice = load.next_slice(&mut answer, rows_left);
            self.base.loads.arriving.rows_taken += slice.rows.max(1);
            let end = slice.end.take().filter(|end| before_end(end, &range.last));
            let Some(end) = end else {
                self.take_in(part, range, &mut answer, slice);
                self.base.loads.waits.wake(fetch);
                return self.notifications.retry_followed();
            };
            left.first = end.max(left.first);
            let taken = KeyRange { first: range.first.clone(), last: left.first.clone() };
            if taken.is_empty() {
                // Pairs beside what was asked for.
                answer.take(slice.count, &mut |_, _, _| {});
            } else {
                self.take_in(part, &taken, &mut answer, slice);
            }
        }
        let Some((data, waits, _)) = self.base.loads.split(part) else { return };
        load.answer = Some(answer);
        data.under_way.insert(&left, load);
        waits.file(fetch, part, &left.first);
        self.base.loads.arriving.queue.push_back(fetch);
    }

    /// Drops what is left of answers for keys of `range` that are being taken in: who waits for them asks again.
    pub(crate) fn drop_answers(&mut self, part: LoadedId, range: &KeyRange) {
        let Some((data, waits, _)) = self.base.loads.split(part) else { return };
        let dropped = data.take_answered(range);
        if dropped.is_empty() {
            return;
        }
        for (range, fetch) in dropped {
            data.provider.unfollow(range, waits);
            waits.withdraw(fetch);
        }
        self.notifications.retry_followed();
    }

    /// Notes that a range is loaded, and stores its keys: those of a slice of an answer.
    fn take_in(
        &mut self,
        part: LoadedId,
        range: &KeyRange,
        answer: &mut Answer,
        Slice { count, late, .. }: Slice,
    ) {
        let hash = self.memory.range_hash(part.table.0, &range.first);
        let heat = self.memory.ranges.inserted(hash, self.views.statuses.len());
        let written = late.values().filter(|(_, held)| held.is_some()).count();
        let here = Here { position: answer.position, rows: count + written, heat };
        let Some(data) = self.base.loads.data_mut(part) else { return };
        if data.is_kept() {
            data.ranges.merge(range.clone(), here);
        } else {
            data.ranges.append(range.clone(), here, data.seen);
        }
        let kept = self.base.is_kept(part.table);
        let is_within = answer.is_within(count, range);
        answer.take(count, &mut |key, value, attributes| {
            if (is_within || range.contains(key)) && (late.is_empty() || !late.contains_key(key)) {
                self.take_in_pair(part, kept, (key, value, attributes));
            }
        });
        for (key, (_, held)) in late {
            if let Some((value, attributes)) = held
                && range.contains(&key)
            {
                self.take_in_pair(part, kept, (&key, &value, attributes));
            }
        }
    }

    #[inline]
    fn take_in_pair(
        &mut self,
        LoadedId { table, home }: LoadedId,
        kept: bool,
        (key, value, attributes): (&[u8], &[u8], Attributes),
    ) {
        if let Some(home) = home {
            return self.put_replica(home, table, key, value);
        }
        let Attributes { expires, flags, is_stream } = attributes;
        if self.views.catalog.gives(table, key)
            || !self.owns(key)
            || (kept && !self.takes_kept(table, key, attributes))
        {
            if is_stream {
                self.note_kept_end(key, value);
            }
            return;
        }
        if is_stream {
            return self.take_in_stream(table, key, value, expires);
        }
        let value = self.store.pool.insert(value);
        self.put(table, key, Put::loaded(value, expires, flags));
    }
}
