//! What can be done with streams.

use super::bytes::Place;
use super::{Body, Stream, StreamBytes};
use crate::base::{NewValue, Origin, Put};
use crate::engine::Engine;
use crate::handles::Handle;
use crate::keyspace::WriteKind;
use crate::report::{EngineError, Expiry, Stop, Ticket};
use alloc::format;
use alloc::string::String;
use headwater_base::{EventKinds, Millis};
use headwater_store::TableId;

/// What STREAM.INFO tells. Offsets count from the first byte ever appended under the name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamReport {
    /// What lies before was trimmed.
    pub start: u64,
    /// The first offset that can be read; behind `start` where chunks were evicted.
    pub first: u64,
    /// The offset behind the last byte.
    pub end: u64,
    /// Parts that are kept.
    pub chunks: u64,
    /// Bytes that they take in memory.
    pub resident_bytes: u64,
    /// Bytes that are on disk.
    pub spilled_bytes: u64,
}

impl Engine {
    /// The number of the stream that `key` holds; `None` where there is no such key.
    pub(super) fn stream_of(&mut self, key: &[u8]) -> Result<Option<u32>, Stop> {
        self.remove_dead(key);
        let Some(table) = self.store.table_of(key) else { return Ok(None) };
        self.check_table_of_streams(table)?;
        self.know(key)?;
        match self.store.table(table).get(key) {
            None => Ok(None),
            Some(value) => Ok(Some(Handle::stream(value).ok_or(EngineError::WrongType)?)),
        }
    }

    /// What a stream under `key` is remembered by when it is gone.
    pub(super) fn name_of_stream(&self, key: &[u8]) -> u64 {
        self.settings.secret.hash(key)
    }

    /// Refuses tables in which values mean something to joins or sources.
    pub(super) fn check_table_of_streams(&self, table: TableId) -> Result<(), EngineError> {
        let Some(role) = self.views.catalog.role(table) else { return Ok(()) };
        let join = role.writers.first().copied().or(role.readers.first().map(|r| r.join));
        let by = match (join, self.base.loads.own(table)) {
            (Some(id), _) => format!("join '{}' is about it", self.views.catalog.join(id).name),
            (None, Some(data)) if data.is_kept() => return Ok(()),
            (None, Some(data)) => format!("source '{}' keeps it", data.source()),
            (None, None) => return Ok(()),
        };
        let prefix = self.store.table(table).prefix();
        let name = String::from_utf8_lossy(prefix.strip_suffix(b"|").unwrap_or(prefix));
        Err(EngineError::Refused(format!("table '{name}' cannot hold streams: {by}")))
    }

    /// Whether a key of `table` holds a stream.
    pub(crate) fn has_streams(&mut self, table: TableId) -> bool {
        if self.base.streams.len() == 0 {
            return false;
        }
        let mut found = false;
        let all = headwater_base::KeyRange::prefix(self.store.table(table).prefix());
        self.scan_table(table, &all, &mut |_, value| found |= Handle::stream(value).is_some());
        found
    }

    /// Whether `key` holds a stream now.
    #[must_use]
    pub fn is_stream(&self, key: &[u8]) -> bool {
        let Some(table) = self.store.table_of(key).filter(|_| !self.is_dead(key)) else {
            return false;
        };
        self.store.table(table).get(key).and_then(Handle::stream).is_some()
    }

    /// Puts `tail` behind the stream of `key`, which begins with it where there is none, and gives
    /// the new end. `expected` bytes more will probably follow. The expiry is kept.
    ///
    /// # Errors
    /// As for [`Engine::set`]; the key holds a value; its table cannot hold streams; or the key must be loaded first.
    pub fn stream_append(&mut self, key: &[u8], tail: &[u8], expected: usize) -> Result<u64, Stop> {
        self.check_write(key, tail.len())?;
        self.views.check_prepared_stream(key)?;
        let number = match self.stream_of(key)? {
            Some(number) => number,
            None => {
                let table = self.store.table_for(key);
                let is_kept = self.writes_kept(table);
                let name = self.name_of_stream(key);
                let stream = Stream::new(name, self.base.streams.gone(name));
                // A kept stream promises no bytes that were evicted while its name was not kept.
                let start = if is_kept { stream.end } else { stream.start };
                let number = self.base.streams.insert(Stream { is_kept, start, ..stream });
                let value = NewValue::Held(Handle::Stream(number).word());
                let writing = self.begin_writing(WriteKind::Stream);
                self.put(table, key, Put::rewritten(value));
                self.begin_writing(writing);
                number
            }
        };
        self.need_last_block(key, number)?;
        let stream = self.base.streams.get_mut(number);
        let (offset, is_kept) = (stream.end, stream.is_kept);
        stream.append(&mut self.store.pool, tail, expected);
        let end = stream.end;
        self.base.streams.refile(number);
        if is_kept {
            self.keep_appended(key, number, offset, tail);
        }
        self.notifications.watches.note(key);
        self.notifications.events.note(EventKinds::STREAMS, "stream.append", key);
        Ok(end)
    }

    /// Up to `count` bytes of the stream of `key` from `offset` on, as far as they are there;
    /// `None` where there is no such key. A read gives at least one byte if there is one.
    ///
    /// # Errors
    /// The bytes were trimmed or evicted; the offset lies beyond the end; the key holds a value; or what is read must be loaded first.
    pub fn stream_read(
        &mut self,
        key: &[u8],
        offset: u64,
        count: u64,
    ) -> Result<Option<StreamBytes<'_>>, Stop> {
        let Some(number) = self.stream_of(key)? else {
            let gone = self.base.streams.gone(self.name_of_stream(key));
            return match gone.evicted && offset < gone.end {
                true => Err(EngineError::Evicted { first: gone.end }.into()),
                false => Ok(None),
            };
        };
        self.settle_stream(number);
        let stream = self.base.streams.get(number);
        let (first, end) = (stream.first(), stream.end);
        if offset > end {
            return Err(EngineError::BeyondEnd { offset, end }.into());
        }
        if offset < stream.start {
            return Err(EngineError::Trimmed { first }.into());
        }
        if offset < first {
            return Err(EngineError::Evicted { first }.into());
        }
        let max = self.settings.limits.value_bytes_max as u64;
        let mut len = count.min(end - offset).min(max) as usize;
        let at = stream.chunk_at(offset);
        let skip = stream.chunks.get(at).map_or(0, |chunk| (offset - chunk.first) as usize);
        if let Some(Body::Disk(spilled)) = stream.chunks.get(at).map(|chunk| &chunk.body)
            && len > 0
        {
            // A read ends where its chunk does, so that one read brings back one chunk.
            len = len.min(spilled.len - skip);
            if !self.base.spilling.fetch_chunk(spilled) {
                return Err(EngineError::Evicted { first: self.lose_chunks(number, at) }.into());
            }
            let bytes = &self.base.spilling.fetched()[skip..skip + len];
            return Ok(Some(StreamBytes { place: Place::One(bytes), len }));
        }
        if self.base.streams.get(number).is_kept && len > 0 {
            let stream = self.base.streams.get(number);
            if let Some(lacking) = stream.lacks(&stream.chunks[at]) {
                return Err(self.need_chunk(key, lacking));
            }
            let most = stream.len_in_memory(at, skip + len) - skip;
            len = len.min(most);
            self.base.streams.get_mut(number).is_read(at);
        }
        let stream = self.base.streams.get(number);
        let chunks = stream.chunks.range(at.min(stream.chunks.len())..);
        Ok(Some(StreamBytes { place: Place::Chunks { pool: &self.store.pool, chunks, skip }, len }))
    }

    /// Lets go of what the disk no longer keeps of a stream.
    fn settle_stream(&mut self, number: u32) {
        self.base.streams.get_mut(number).settle(&mut self.store.pool, &mut self.base.spilling);
    }

    /// Lets go of the chunk at `at`, which the disk has lost, and of all before it; gives the
    /// first offset that is there then.
    pub(super) fn lose_chunks(&mut self, number: u32, at: usize) -> u64 {
        let stream = self.base.streams.get_mut(number);
        for _ in 0..=at {
            stream.drop_oldest(&mut self.store.pool, &mut self.base.spilling);
        }
        let first = stream.first();
        self.base.streams.refile(number);
        first
    }

    /// Lets go of what lies before `offset` in the stream of `key`, and gives what its start
    /// is then; `None` where there is no such key. Offsets stay what they are.
    ///
    /// # Errors
    /// The offset lies beyond the end; the key holds a value; or it must be loaded first.
    pub fn stream_trim(&mut self, key: &[u8], offset: u64) -> Result<Option<u64>, Stop> {
        let Some(number) = self.stream_of(key)? else { return Ok(None) };
        let stream = self.base.streams.get_mut(number);
        if offset > stream.end {
            return Err(EngineError::BeyondEnd { offset, end: stream.end }.into());
        }
        let before = stream.start;
        stream.trim(&mut self.store.pool, &mut self.base.spilling, offset);
        let (start, is_kept) = (stream.start, stream.is_kept);
        self.base.streams.refile(number);
        if start != before {
            if is_kept {
                self.keep_trimmed(key, before, start);
            }
            self.notifications.watches.note(key);
            self.notifications.events.note(EventKinds::STREAMS, "stream.trim", key);
        }
        Ok(Some(start))
    }

    /// Facts about the stream of `key`; `None` where there is no such key.
    ///
    /// # Errors
    /// The key holds a value, or must be loaded first.
    pub fn stream_report(&mut self, key: &[u8]) -> Result<Option<StreamReport>, Stop> {
        let Some(number) = self.stream_of(key)? else { return Ok(None) };
        self.settle_stream(number);
        let stream = self.base.streams.get(number);
        let resident = stream.resident_bytes(&self.store.pool) + stream.record_bytes();
        Ok(Some(StreamReport {
            start: stream.start,
            first: stream.first(),
            end: stream.end,
            chunks: stream.chunks.len() as u64,
            resident_bytes: resident as u64,
            spilled_bytes: stream.spilled_bytes() as u64,
        }))
    }

    /// Gives the stream of `from` to `to` as well, in place of what that holds; `expiry` is
    /// what `to` gets. The bytes are shared. They have the offsets of the original, or, where `to` had a stream before,
    /// such as lie behind its end.
    ///
    /// # Errors
    /// `to` cannot be written, its table cannot hold streams, or the stream must be loaded first.
    pub fn stream_copy(
        &mut self,
        from: &[u8],
        to: &[u8],
        expiry: Option<Millis>,
    ) -> Result<(), Stop> {
        self.check_write(to, 0)?;
        self.views.check_prepared_stream(to)?;
        if let Some(table) = self.store.table_of(to) {
            self.check_table_of_streams(table)?;
        }
        let Some(number) = self.stream_of(from)? else { return Ok(()) };
        let name = self.name_of_stream(to);
        let least = match self.stream_of(to) {
            Ok(Some(before)) => self.base.streams.get(before).end,
            Err(Stop::Wait(ticket)) => return Err(Stop::Wait(ticket)),
            _ => self.base.streams.gone(name).end,
        };
        self.need_all_chunks(from, number)?;
        let copy = self.base.streams.get(number).copy(&self.store.pool, name, least);
        let table = self.store.table_for(to);
        let is_kept = self.writes_kept(table);
        let start = if is_kept { copy.first() } else { copy.start };
        let copy = self.base.streams.insert(Stream { is_kept, start, ..copy });
        self.base.streams.refile(copy);
        let word = Handle::Stream(copy).word();
        let expiry = expiry.map_or(Expiry::Never, Expiry::At);
        let value = NewValue::Held(word);
        self.put(table, to, Put { value, expiry, flags: Some(0), origin: Origin::Client });
        let holds = self.store.table_of(to).and_then(|table| self.store.table(table).get(to));
        if is_kept && holds == Some(word) {
            self.keep_copied(to, copy);
            self.base.streams.refile(copy);
        }
        Ok(())
    }

    /// Has a ticket woken when `key` is written next. Each is undone by [`Engine::forget_tail`]
    /// unless it was woken.
    ///
    /// For readers at the end of a stream; a key that is not there may be waited for as well.
    pub fn await_tail(&mut self, key: &[u8]) -> Ticket {
        let ticket = self.next_ticket();
        self.notifications.watches.await_note(key, ticket);
        ticket
    }

    /// Whether a ticket is one of [`Engine::await_tail`] for `key`, and was not woken.
    #[must_use]
    pub fn awaits_tail(&self, key: &[u8], ticket: Ticket) -> bool {
        self.notifications.watches.awaits_note(key, ticket)
    }

    /// Ends what [`Engine::await_tail`] began.
    pub fn forget_tail(&mut self, key: &[u8], ticket: Ticket) {
        self.notifications.watches.forget_note(key, ticket);
    }

    pub(crate) fn drop_stream(&mut self, number: u32) {
        let (pool, spilling) = (&mut self.store.pool, &mut self.base.spilling);
        self.base.streams.remove(number, pool, spilling, self.memory.memory_limit());
    }

    pub(crate) fn drop_streams(&mut self) {
        self.withdraw_chunk_loads();
        let (pool, spilling) = (&mut self.store.pool, &mut self.base.spilling);
        self.base.streams.clear(pool, spilling, self.memory.memory_limit());
    }
}
