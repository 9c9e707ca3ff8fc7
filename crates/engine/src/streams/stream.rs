//! One stream: its chunks and where it starts and ends.

use super::CHUNK_BYTES;
use super::ends::Gone;
use super::evict::LAST_BYTES_MIN;
use crate::spill::{Spilled, Spilling};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_pool::{Pool, ValueRef};

/// Where the bytes of a chunk are.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Memory(ValueRef),
    /// Shared with copies of the stream.
    Disk(Rc<Spilled>),
    /// In the embedded store alone: so many bytes, which can be loaded.
    Kept(usize),
}

/// A part of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    /// Offset of its first byte.
    pub(crate) first: u64,
    pub(crate) body: Body,
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Memory(value) => value.len(),
            Body::Disk(spilled) => spilled.len,
            Body::Kept(len) => *len,
        }
    }

    /// The offset behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.first + self.len() as u64
    }

    /// Whether its bytes are in the embedded store alone.
    pub(super) fn is_kept_alone(&self) -> bool {
        matches!(self.body, Body::Kept(_))
    }

    /// The value, where it is in memory.
    pub(crate) fn value(&self) -> Option<ValueRef> {
        match &self.body {
            Body::Memory(value) => Some(*value),
            Body::Disk(_) | Body::Kept(_) => None,
        }
    }

    /// Room behind the bytes.
    fn free(&self) -> usize {
        self.value().map_or(0, |value| CHUNK_BYTES - value.len())
    }
}

/// The bytes of one key, from `start` to `end`.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// What lies before was trimmed.
    pub(crate) start: u64,
    /// The offset behind the last byte.
    pub(crate) end: u64,
    pub(crate) chunks: VecDeque<Chunk>,
    /// Whether the slab has it among those of which chunks can go.
    pub(super) filed_long: bool,
    /// What the slab counts as staying of it.
    pub(super) filed_staying: usize,
    /// The hash of its key.
    pub(super) name: u64,
    /// It is about to go for want of memory.
    pub(super) evicted: bool,
    /// Whether the embedded store has all of it: then nothing is lost with what goes from memory.
    pub(crate) is_kept: bool,
    /// How many of the chunks are in memory.
    pub(super) in_memory: usize,
    /// Where chunks end that were loaded and not read since: they do not go first.
    pub(super) awaited: Vec<u64>,
    /// How many records there may be of its last block.
    pub(super) records: u32,
}

impl Stream {
    /// An empty stream under a name, behind the one that had it before.
    pub(super) fn new(name: u64, gone: Gone) -> Self {
        // What was evicted goes on being that, and not trimmed.
        let start = if gone.evicted { 0 } else { gone.end };
        Self { name, start, end: gone.end, ..Self::default() }
    }

    /// The first offset that can be read: the end, where nothing is kept.
    pub(crate) fn first(&self) -> u64 {
        self.chunks.front().map_or(self.end, |chunk| chunk.first.max(self.start))
    }

    /// Puts `tail` behind the end; `expected` bytes more will probably follow.
    pub(crate) fn append(&mut self, pool: &mut Pool, tail: &[u8], expected: usize) {
        let mut rest = tail;
        while !rest.is_empty() {
            if self.chunks.back().is_none_or(|chunk| chunk.free() == 0) {
                self.chunks
                    .push_back(Chunk { first: self.end, body: Body::Memory(ValueRef::EMPTY) });
                self.in_memory += 1;
            }
            let Some(last) = self.chunks.back_mut() else { return };
            let free = last.free();
            let (part, later) = rest.split_at(rest.len().min(free));
            let expected = expected.saturating_add(later.len()).min(free - part.len());
            if let Body::Memory(value) = &mut last.body {
                *value = pool.append(*value, part, expected);
            }
            self.end += part.len() as u64;
            rest = later;
        }
    }

    /// Lets go of what lies before `offset`, which is at most the end.
    pub(crate) fn trim(&mut self, pool: &mut Pool, spilling: &mut Spilling, offset: u64) {
        if offset <= self.start {
            return;
        }
        self.start = offset;
        while let Some(chunk) = self.chunks.front_mut() {
            if chunk.end() > offset {
                if let Body::Memory(value) = &mut chunk.body
                    && chunk.first < offset
                {
                    let before = (offset - chunk.first) as usize;
                    let (rest, dropped) = pool.truncate_head(*value, before);
                    *value = rest;
                    chunk.first += dropped as u64;
                }
                break;
            }
            self.drop_oldest(pool, spilling);
        }
        self.shrink();
    }

    /// Lets go of the oldest chunk, wherever it is.
    pub(crate) fn drop_oldest(&mut self, pool: &mut Pool, spilling: &mut Spilling) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.in_memory -= usize::from(chunk.value().is_some());
            spilling.release(pool, chunk.body);
        }
    }

    /// Lets go of chunks that the disk no longer keeps.
    pub(crate) fn settle(&mut self, pool: &mut Pool, spilling: &mut Spilling) {
        while let Some(Body::Disk(spilled)) = self.chunks.front().map(|chunk| &chunk.body)
            && spilling.is_gone(spilled)
        {
            self.drop_oldest(pool, spilling);
        }
    }

    /// The oldest chunk in memory, but for the one that is appended to.
    pub(crate) fn oldest_in_memory(&self) -> Option<usize> {
        let at = match self.is_kept {
            // What was loaded may lie between what was not.
            true => self.chunks.iter().position(|chunk| {
                chunk.value().is_some() && !self.awaited.contains(&chunk.end())
            })?,
            false => self.chunks.partition_point(|chunk| chunk.value().is_none()),
        };
        (at + 1 < self.chunks.len()).then_some(at)
    }

    /// Whether more than the last chunk is in memory.
    pub(crate) fn is_long(&self) -> bool {
        let last = self.chunks.back().is_some_and(|chunk| chunk.value().is_some());
        self.in_memory > usize::from(last)
    }

    /// Gives the chunk at a place another body, and the one that it had.
    pub(super) fn set_body(&mut self, at: usize, body: Body) -> Body {
        self.in_memory += usize::from(matches!(body, Body::Memory(_)));
        let before = core::mem::replace(&mut self.chunks[at].body, body);
        self.in_memory -= usize::from(matches!(before, Body::Memory(_)));
        before
    }

    /// Whether nothing in memory is left of it that could go, and something has gone, to disk or for good.
    pub(crate) fn has_gone(&self) -> bool {
        let last = self.chunks.back().and_then(Chunk::value).map_or(0, |value| value.len());
        let begins = self.chunks.front().map(|chunk| &chunk.body);
        !self.is_long() && last < LAST_BYTES_MIN && !matches!(begins, Some(Body::Memory(_)))
    }

    /// Gives the room of many dropped chunks back.
    fn shrink(&mut self) {
        if self.chunks.capacity() > 4 * self.chunks.len().max(4) {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    /// What stays of it in memory where all chunks but the last have gone: that, and its record.
    pub(super) fn staying_bytes(&self) -> usize {
        if self.is_kept {
            // It can go as a whole.
            return 0;
        }
        let last = self.chunks.back().and_then(Chunk::value);
        size_of::<Option<Self>>() + last.map_or(0, |value| value.len())
    }

    /// Drops all chunks.
    pub(crate) fn clear(&mut self, pool: &mut Pool, spilling: &mut Spilling) {
        while !self.chunks.is_empty() {
            self.drop_oldest(pool, spilling);
        }
    }

    /// Another stream with the same bytes, which are shared, under another name. They have the same offsets, or, where
    /// that would be before `least`, larger ones.
    pub(super) fn copy(&self, pool: &Pool, name: u64, least: u64) -> Self {
        let by = least.saturating_sub(self.first());
        let mut chunks = self.chunks.clone();
        chunks.iter().filter_map(Chunk::value).for_each(|value| pool.retain(value));
        chunks.iter_mut().for_each(|chunk| chunk.first += by);
        let (start, end) = (self.start + by, self.end + by);
        Self { start, end, chunks, name, in_memory: self.in_memory, ..Self::default() }
    }

    /// The chunk that has the byte at `offset`, which is within what is kept.
    pub(crate) fn chunk_at(&self, offset: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.first <= offset).saturating_sub(1)
    }

    /// Bytes that the chunks take in the pool, as if nothing was shared.
    pub(crate) fn resident_bytes(&self, pool: &Pool) -> usize {
        self.chunks.iter().filter_map(Chunk::value).map(|value| pool.footprint(value)).sum()
    }

    /// Bytes of the chunks' records.
    pub(crate) fn record_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Bytes that are on disk, as if nothing was shared.
    pub(crate) fn spilled_bytes(&self) -> usize {
        let spilled = self.chunks.iter().filter(|chunk| chunk.value().is_none());
        spilled.map(Chunk::len).sum()
    }

    /// Asserts F1, F2, F4 and F6.
    pub(crate) fn check_invariants(&self) {
        let mut at = self.chunks.front().map_or(self.end, |chunk| chunk.first);
        let mut in_memory = 0;
        for chunk in &self.chunks {
            let len = chunk.len();
            assert!(chunk.first == at && len > 0 && len <= CHUNK_BYTES, "F1");
            assert!(chunk.value().is_some() || in_memory == 0 || self.is_kept, "F4");
            assert!(self.is_kept || !chunk.is_kept_alone(), "F6");
            in_memory += usize::from(chunk.value().is_some());
            at += len as u64;
        }
        assert_eq!(self.in_memory, in_memory, "chunks in memory are counted");
        assert!(at == self.end && self.start <= self.first() && self.first() <= self.end, "F1, F2");
    }
}
