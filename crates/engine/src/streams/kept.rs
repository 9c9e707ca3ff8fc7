//! Streams of tables that an embedded store keeps: it has every byte, and memory what is read and written.
//!
//! Each append goes to the store as it is done, as records of the bytes and a new head ([`headwater_base::stream_records`]). So chunks go
//! from memory without being lost, or the whole stream does with its key. A load of the key brings the head alone, and the chunks come one by one as they are
//! read.
//!
//! Records are erased with what held them, by whoever writes the key; and before a stream begins, in any case: so no byte of an earlier one can be taken
//! for its own. Where a value replaces a stream of which memory has nothing, and where a crash comes into the removal of a range, records stay
//! until then, or until all keys are removed.
//!
//! # Cost
//! Appending: a copy of the bytes and two operations of the store, and once for each 1024 appends a rewrite of up to 256 KiB. A read of bytes that are not in memory: a load of up to 256 KiB, which stay. `COPY` and
//! `RENAME` have all chunks in memory at once, and write them anew.

use super::ends::Gone;
use super::stream::Chunk;
use super::{Body, CHUNK_BYTES, Stream, Streams};
use crate::base::Put;
use crate::engine::Engine;
use crate::handles::Handle;
use crate::report::{EngineError, Stop};
use crate::sources::KEPT;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::Millis;
use headwater_base::source::{FetchId, Loaded, Pair};
use headwater_base::stream_records::{
    STREAM_BLOCK, STREAM_RECORDS, StreamHead, is_stream_record, stream_block, stream_record,
    stream_record_offset, stream_records,
};
use headwater_pool::{Pool, ValueRef};
use headwater_store::TableId;

const _: () = assert!(STREAM_BLOCK <= CHUNK_BYTES as u64, "the bytes of a block make a chunk");

/// When a block has so many records, they are made one: else a load of many short ones would take many times their bytes.
const RECORDS_MAX: u32 = 1024;
/// Chunks of a stream that do not go first, because they were loaded for somebody.
const AWAITED_MAX: usize = 8;
/// Streams that are looked at for a chunk that can go.
const LOOKED_AT: usize = 16;
/// A stream of which more than this part of the memory bound would have to be loaded is not copied.
const COPIED_PART: usize = 4;

/// What there is to know of kept streams beside each.
#[derive(Debug, Default)]
pub(super) struct KeptStreams {
    /// Chunks on their way.
    loads: BTreeMap<FetchId, ChunkLoad>,
    /// The same by key and end.
    under_way: BTreeMap<(Vec<u8>, u64), FetchId>,
    /// Whose turn it was last to let a chunk go.
    turn: u32,
}

/// A chunk on its way.
#[derive(Debug)]
struct ChunkLoad {
    key: Vec<u8>,
    /// Records are asked for from this offset on.
    from: u64,
    /// The offset behind its last byte.
    end: u64,
}

impl Stream {
    /// The stream of a head: none of it is in memory.
    fn of_head(name: u64, StreamHead { start, end, records }: StreamHead) -> Self {
        let mut stream = Self { name, start, end, records, is_kept: true, ..Self::default() };
        let mut first = start;
        while first < end {
            let next = (stream_block(first) + STREAM_BLOCK).min(end);
            let body = Body::Kept((next - first) as usize);
            stream.chunks.push_back(Chunk { first, body });
            first = next;
        }
        stream
    }

    /// What the store has of it under its key.
    pub(crate) fn head(&self) -> StreamHead {
        StreamHead { start: self.start, end: self.end, records: self.records }
    }

    /// The offsets at which what is to be loaded of a chunk begins and ends; `None`: it is here.
    pub(super) fn lacks(&self, chunk: &Chunk) -> Option<(u64, u64)> {
        chunk.is_kept_alone().then(|| (chunk.first.max(self.start), chunk.end()))
    }

    /// Notes that the chunk at a place was read: it may go like others.
    pub(super) fn is_read(&mut self, at: usize) {
        if !self.awaited.is_empty() {
            let end = self.chunks.get(at).map(Chunk::end);
            self.awaited.retain(|awaited| Some(*awaited) != end);
        }
    }

    /// Notes that a chunk was loaded that ends there.
    fn is_awaited(&mut self, end: u64) {
        if self.awaited.len() == AWAITED_MAX {
            self.awaited.remove(0);
        }
        self.awaited.push(end);
    }

    /// Lets the chunk at a place go from memory, for the store has it.
    fn let_go(&mut self, at: usize, pool: &mut Pool) {
        let len = self.chunks[at].len();
        if let Body::Memory(value) = self.set_body(at, Body::Kept(len)) {
            pool.release(value);
        }
        // Many short ones would come of last chunks that go again and again.
        self.unite(at);
        if at > 0 {
            self.unite(at - 1);
        }
    }

    /// Makes one chunk of that at a place and the next one, where both are in the store alone and short.
    fn unite(&mut self, at: usize) {
        let kept = |at: usize| match self.chunks.get(at)?.body {
            Body::Kept(len) => Some(len),
            _ => None,
        };
        if let (Some(len), Some(next)) = (kept(at), kept(at + 1))
            && len + next <= CHUNK_BYTES
        {
            self.chunks[at].body = Body::Kept(len + next);
            self.chunks.remove(at + 1);
        }
    }

    /// How many bytes from the chunk at a place on are in memory without a gap.
    pub(super) fn len_in_memory(&self, at: usize, most: usize) -> usize {
        let mut len = 0;
        for value in self.chunks.range(at..).map_while(Chunk::value) {
            len += value.len();
            if len >= most {
                break;
            }
        }
        len
    }
}

impl Streams {
    /// Notes that a name had a stream which ended there, or behind that.
    fn note_end(&mut self, name: u64, end: u64, bound: Option<usize>) {
        if end > self.gone(name).end {
            self.unloaded.note(name, Gone { end, evicted: false }, bound);
        }
    }

    /// Forgets the chunks on their way; who waited for them.
    fn take_chunk_loads(&mut self) -> impl Iterator<Item = FetchId> + use<> {
        self.kept.under_way.clear();
        core::mem::take(&mut self.kept.loads).into_keys()
    }

    /// The next kept stream of which a chunk can go: each in turn.
    fn next_long_kept(&mut self) -> Option<u32> {
        let after = self.kept.turn.saturating_add(1);
        let next = self.long_kept.range(after..).next().or(self.long_kept.first()).copied()?;
        self.kept.turn = next;
        Some(next)
    }

    /// The load under way that will bring the chunk of `key` which ends at an offset.
    fn chunk_load(&self, key: &[u8], end: u64) -> Option<FetchId> {
        self.kept.under_way.get(&(key.to_vec(), end)).copied()
    }

    /// Whether a load is one of a chunk.
    pub(crate) fn loads_chunk(&self, fetch: FetchId) -> bool {
        self.kept.loads.contains_key(&fetch)
    }
}

impl Engine {
    /// Refuses keys that are the embedded store's own.
    #[inline]
    pub(crate) fn check_not_record(&self, key: &[u8]) -> Result<(), EngineError> {
        if key.first() == Some(&0) && self.has_base_store() && is_stream_record(key) {
            let shown = STREAM_RECORDS.escape_ascii();
            return Err(EngineError::Refused(format!(
                "keys that begin with '{shown}' are those under which streams are kept on disk"
            )));
        }
        Ok(())
    }

    /// Lets a chunk of a kept stream go from memory; `false` where there is none.
    pub(super) fn let_kept_chunk_go(&mut self) -> bool {
        for _ in 0..LOOKED_AT {
            let Some(number) = self.base.streams.next_long_kept() else { return false };
            let stream = self.base.streams.get_mut(number);
            if let Some(at) = stream.oldest_in_memory() {
                stream.let_go(at, &mut self.store.pool);
                self.base.streams.refile(number);
                return true;
            }
        }
        false
    }

    /// Waits until all of a kept stream's last block is in memory, where its records are to be made one.
    ///
    /// # Errors
    /// [`Stop::Wait`] where some of it must be loaded first.
    pub(super) fn need_last_block(&mut self, key: &[u8], number: u32) -> Result<(), Stop> {
        let stream = self.base.streams.get(number);
        if !stream.is_kept || stream.records < RECORDS_MAX {
            return Ok(());
        }
        let block = stream_block(stream.end);
        let mut last = stream.chunks.iter().rev().take_while(|chunk| chunk.end() > block);
        match last.find_map(|chunk| stream.lacks(chunk)) {
            Some(lacking) => Err(self.need_chunk(key, lacking)),
            None => Ok(()),
        }
    }

    /// Makes one record of those that a stream has in the block of an offset and before it; whether all of that is in memory.
    fn unite_records(&mut self, key: &[u8], number: u32, tail_from: u64) -> bool {
        let stream = self.base.streams.get(number);
        let from = stream_block(tail_from);
        let mut bytes = Vec::new();
        let mut first = None;
        let block = stream.chunks.range(stream.chunk_at(from).min(stream.chunks.len())..);
        for chunk in block.take_while(|chunk| chunk.first < tail_from) {
            let (begin, end) = (chunk.first.max(from), chunk.end());
            if end <= from {
                continue;
            }
            let Some(value) = chunk.value() else { return false };
            first.get_or_insert(begin);
            let skip = (begin - chunk.first) as usize;
            let count = (end.min(tail_from) - begin) as usize;
            let mut left = count;
            for part in self.store.pool.view(value).read_at(skip, count) {
                let part = &part[..part.len().min(left)];
                bytes.extend_from_slice(part);
                left -= part.len();
            }
        }
        if let Some(first) = first {
            self.base.erase_records(key, from, Some(tail_from));
            self.keep_bytes(key, first, &bytes);
        }
        true
    }

    /// Tells the store what was appended to a kept stream, from `offset` on.
    pub(super) fn keep_appended(&mut self, key: &[u8], number: u32, offset: u64, tail: &[u8]) {
        if offset == stream_block(offset) {
            self.base.streams.get_mut(number).records = 0;
        }
        if self.base.streams.get(number).records >= RECORDS_MAX
            && self.unite_records(key, number, offset)
        {
            self.base.streams.get_mut(number).records = 1;
        }
        self.keep_bytes(key, offset, tail);
        let stream = self.base.streams.get_mut(number);
        let is_same_block = stream_block(offset) == stream_block(stream.end);
        stream.records = if is_same_block { stream.records.saturating_add(1) } else { 1 };
        self.keep_head(key);
    }

    /// Tells the store that bytes of a kept stream were trimmed.
    pub(super) fn keep_trimmed(&mut self, key: &[u8], before: u64, start: u64) {
        let (from, to) = (stream_block(before), stream_block(start));
        if from < to {
            self.base.erase_records(key, from, Some(to));
        }
        self.keep_head(key);
    }

    /// Tells the store of all bytes of a stream that was copied to `key`. Those that are spilled are in the store alone from now on.
    pub(super) fn keep_copied(&mut self, key: &[u8], number: u32) {
        let (mut at, mut lost) = (0, false);
        while let Some(chunk) = self.base.streams.get(number).chunks.get(at) {
            let first = chunk.first;
            let bytes = match &chunk.body {
                Body::Kept(_) => None,
                Body::Memory(value) => Some(self.store.pool.view(*value).to_vec()),
                Body::Disk(spilled) => {
                    let spilled = spilled.clone();
                    let found = self.base.spilling.fetch_chunk(&spilled);
                    found.then(|| self.base.spilling.fetched().to_vec())
                }
            };
            let Some(bytes) = bytes else {
                // The disk has lost it: what there is of the copy begins behind.
                let first = self.lose_chunks(number, at);
                self.base.streams.get_mut(number).start = first;
                (at, lost) = (0, true);
                continue;
            };
            self.keep_bytes(key, first, &bytes);
            let (stream, pool) = (self.base.streams.get_mut(number), &mut self.store.pool);
            if matches!(stream.chunks[at].body, Body::Disk(_)) {
                let body = stream.set_body(at, Body::Kept(bytes.len()));
                self.base.spilling.release(pool, body);
            }
            at += 1;
        }
        if lost {
            let start = self.base.streams.get(number).start;
            self.base.erase_records(key, 0, Some(stream_block(start)));
            self.keep_head(key);
        }
    }

    fn keep_bytes(&mut self, key: &[u8], mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = (stream_block(offset) + STREAM_BLOCK - offset) as usize;
            let (part, rest) = bytes.split_at(bytes.len().min(room));
            self.base.loads.persistence.write(&stream_record(key, offset), part);
            offset += part.len() as u64;
            bytes = rest;
        }
    }

    fn keep_head(&mut self, key: &[u8]) {
        let Some(table) = self.store.table_of(key) else { return };
        if let Some(value) = self.store.table(table).get(key) {
            self.tell_kept(table, key, value, self.base.expiries.get(key));
        }
    }

    /// What a key of a kept table is about to hold is another value: erases the records of the stream that it holds, and those that there may be where it
    /// is a stream.
    #[inline]
    pub(crate) fn erase_replaced_stream(&mut self, table: TableId, key: &[u8], new: ValueRef) {
        let is_stream = Handle::stream(new).is_some();
        if !is_stream && self.base.streams.len() == 0 {
            return;
        }
        let old = self.store.table(table).get(key);
        if old != Some(new) && (is_stream || old.and_then(Handle::stream).is_some()) {
            self.base.erase_records(key, 0, None);
        }
    }

    /// Takes the head of a stream into memory, which was loaded.
    pub(crate) fn take_in_stream(
        &mut self,
        table: TableId,
        key: &[u8],
        head: &[u8],
        expires: Option<Millis>,
    ) {
        // A join that came since sees none of it, and neither does who asks for it.
        let Some(head) = StreamHead::decode(head) else { return };
        if self.check_table_of_streams(table).is_err() {
            return;
        }
        let stream = Stream::of_head(self.name_of_stream(key), head);
        let number = self.base.streams.insert(stream);
        self.base.streams.refile(number);
        self.put(table, key, Put::loaded(Handle::Stream(number).word(), expires, 0));
    }

    /// Notes where a stream ends that may be removed while memory has nothing of it: what comes then begins behind that.
    pub(crate) fn note_kept_end(&mut self, key: &[u8], head: &[u8]) {
        let end = StreamHead::decode(head).map_or(0, |head| head.end);
        let (name, bound) = (self.name_of_stream(key), self.memory.memory_limit());
        self.base.streams.note_end(name, end, bound);
    }

    /// Lets what memory has of a kept stream go.
    pub(crate) fn unload_stream(&mut self, number: u32) {
        let (name, end) = (self.base.streams.get(number).name, self.base.streams.get(number).end);
        self.base.streams.note_end(name, end, self.memory.memory_limit());
        let (pool, spilling) = (&mut self.store.pool, &mut self.base.spilling);
        self.base.streams.unload(number, pool, spilling);
    }

    /// Waits until all that a copy of the stream of `from`, if there is one, to `to` needs is in memory, or spilled.
    ///
    /// # Errors
    /// [`Stop::Wait`] where some of it must be loaded first; or that is more than memory has room for.
    pub fn know_stream_copied(&mut self, from: &[u8], to: &[u8]) -> Result<(), Stop> {
        let known = self.know(to);
        match self.stream_of(from)? {
            Some(number) => self.need_all_chunks(from, number).and(known),
            None => known,
        }
    }

    /// Waits until all of a stream is in memory, or spilled.
    ///
    /// # Errors
    /// As for [`Engine::know_stream_copied`].
    pub(super) fn need_all_chunks(&mut self, key: &[u8], number: u32) -> Result<(), Stop> {
        let stream = self.base.streams.get(number);
        let wanted: Vec<_> = stream.chunks.iter().filter_map(|chunk| stream.lacks(chunk)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let bytes: u64 = wanted.iter().map(|(first, end)| end - first).sum();
        let most =
            self.memory.memory_limit().map_or(u64::MAX, |limit| (limit / COPIED_PART) as u64);
        if bytes > most {
            let shown = key.escape_ascii();
            return Err(EngineError::Refused(format!(
                "{bytes} bytes of the stream '{shown}' are on disk alone, and memory has room for {most} to copy at once"
            ))
            .into());
        }
        for lacking in wanted {
            self.ask_for_chunk(key, lacking);
        }
        Err(self.stop())
    }

    /// Forgets the chunks on their way: who waits for them finds out what there is.
    pub(super) fn withdraw_chunk_loads(&mut self) {
        for fetch in self.base.streams.take_chunk_loads() {
            self.base.loads.waits.wake(fetch);
        }
    }

    /// What an operation answers that needs bytes of a chunk which only the store has ([`Stream::lacks`]).
    pub(super) fn need_chunk(&mut self, key: &[u8], lacking: (u64, u64)) -> Stop {
        self.ask_for_chunk(key, lacking);
        self.stop()
    }

    fn ask_for_chunk(&mut self, key: &[u8], (first, end): (u64, u64)) {
        if self.base.loads.waits.brought.gives_up(&mut self.memory) {
            return;
        }
        if let Some(fetch) = self.base.streams.chunk_load(key, end) {
            self.base.loads.waits.lacking.insert(fetch);
            return;
        }
        let fetch = self.base.loads.waits.begin_unfiled();
        let from = stream_block(first);
        let load = ChunkLoad { key: key.to_vec(), from, end };
        self.base.streams.kept.under_way.insert((key.to_vec(), end), fetch);
        self.base.streams.kept.loads.insert(fetch, load);
        let range = stream_records(key, from, Some(end));
        self.base.loads.persistence.load(fetch, &range);
    }

    /// The answer to a load of a chunk: its bytes come into memory, if it is still wanted.
    pub(crate) fn chunk_loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) {
        let Some(load) = self.base.streams.kept.loads.remove(&fetch) else { return };
        self.base.streams.kept.under_way.remove(&(load.key.clone(), load.end));
        match answer.and_then(|loaded| self.take_in_chunk(fetch, &load, loaded.pairs)) {
            Ok(()) => self.base.loads.waits.wake(fetch),
            Err(message) => {
                let error = EngineError::SourceFailed { source: String::from(KEPT), message };
                self.base.loads.waits.fail(fetch, &error);
            }
        }
    }

    fn take_in_chunk(
        &mut self,
        fetch: FetchId,
        ChunkLoad { key, from, end }: &ChunkLoad,
        mut pairs: Vec<Pair>,
    ) -> Result<(), String> {
        let word = self.store.table_of(key).and_then(|table| self.store.table(table).get(key));
        let Some(number) = word.and_then(Handle::stream) else { return Ok(()) };
        let stream = self.base.streams.get(number);
        let at = stream.chunk_at(end.saturating_sub(1));
        let Some(chunk) = stream.chunks.get(at) else { return Ok(()) };
        let first = match stream.lacks(chunk) {
            Some((first, ends)) if ends == *end && (*from..*end).contains(&first) => first,
            // The chunk that was asked for has been trimmed, appended to, or divided otherwise since: whoever needs it asks again.
            _ => return Ok(()),
        };
        pairs.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let bytes = bytes_of_records(&pairs, first, *end).map_err(|offset| {
            let shown = key.escape_ascii();
            format!("the bytes of the stream '{shown}' from {offset} on are missing on disk")
        })?;
        self.note_brought(fetch, || bytes.len() as u64);
        let value = self.store.pool.insert(&bytes);
        let stream = self.base.streams.get_mut(number);
        stream.set_body(at, Body::Memory(value));
        stream.chunks[at].first = first;
        stream.is_awaited(*end);
        self.base.streams.refile(number);
        Ok(())
    }
}

/// The bytes from `first` to `end`, out of records in the order of their offsets.
///
/// # Errors
/// The first offset that none of them has.
fn bytes_of_records(pairs: &[Pair], first: u64, end: u64) -> Result<Vec<u8>, u64> {
    let mut bytes = Vec::with_capacity((end - first) as usize);
    let mut at = first;
    for Pair { key, value, .. } in pairs {
        let offset = stream_record_offset(key).ok_or(at)?;
        let behind = offset + value.len() as u64;
        if behind <= at || at >= end {
            continue;
        }
        let part = value.get(at.checked_sub(offset).ok_or(at)? as usize..).ok_or(at)?;
        let part = &part[..part.len().min((end - at) as usize)];
        bytes.extend_from_slice(part);
        at += part.len() as u64;
    }
    if at == end { Ok(bytes) } else { Err(at) }
}
