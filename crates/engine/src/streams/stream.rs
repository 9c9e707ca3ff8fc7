//! One stream: its chunks and where it starts and ends.

use super::CHUNK_BYTES;
use alloc::collections::VecDeque;
use headwater_pool::{Pool, ValueRef};

/// A part of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Offset of its first byte.
    pub(crate) first: u64,
    /// Its bytes.
    pub(crate) value: ValueRef,
}

/// The bytes of one key, from `start` to `end`.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// What lies before was trimmed.
    pub(crate) start: u64,
    /// How many bytes were ever appended.
    pub(crate) end: u64,
    pub(crate) chunks: VecDeque<Chunk>,
}

impl Stream {
    /// The first offset that can be read: the end, where nothing is kept.
    pub(crate) fn first(&self) -> u64 {
        self.chunks.front().map_or(self.end, |chunk| chunk.first.max(self.start))
    }

    /// Puts `tail` behind the end; `expected` bytes more will probably follow.
    pub(crate) fn append(&mut self, pool: &mut Pool, tail: &[u8], expected: usize) {
        let mut rest = tail;
        while !rest.is_empty() {
            let free = self.chunks.back().map_or(0, |chunk| CHUNK_BYTES - chunk.value.len());
            let (part, later) =
                rest.split_at(rest.len().min(if free == 0 { CHUNK_BYTES } else { free }));
            let room = if free == 0 { CHUNK_BYTES } else { free } - part.len();
            let expected = expected.saturating_add(later.len()).min(room);
            match self.chunks.back_mut().filter(|_| free > 0) {
                Some(chunk) => chunk.value = pool.append(chunk.value, part, expected),
                None => {
                    let value = pool.append(ValueRef::EMPTY, part, expected);
                    self.chunks.push_back(Chunk { first: self.end, value });
                }
            }
            self.end += part.len() as u64;
            rest = later;
        }
    }

    /// Lets go of what lies before `offset`, which is at most the end.
    pub(crate) fn trim(&mut self, pool: &mut Pool, offset: u64) {
        if offset <= self.start {
            return;
        }
        self.start = offset;
        while let Some(chunk) = self.chunks.front_mut() {
            if chunk.first + chunk.value.len() as u64 <= offset {
                pool.release(chunk.value);
                self.chunks.pop_front();
                continue;
            }
            if chunk.first < offset {
                let before = (offset - chunk.first) as usize;
                let (rest, dropped) = pool.truncate_head(chunk.value, before);
                *chunk = Chunk { first: chunk.first + dropped as u64, value: rest };
            }
            break;
        }
        self.shrink();
    }

    /// Gives the room of many dropped chunks back.
    fn shrink(&mut self) {
        if self.chunks.capacity() > 4 * self.chunks.len().max(4) {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    /// Drops all chunks.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        for chunk in self.chunks.drain(..) {
            pool.release(chunk.value);
        }
    }

    /// Another stream with the same bytes, which are shared.
    pub(crate) fn copy(&self, pool: &Pool) -> Self {
        let chunks = self.chunks.clone();
        chunks.iter().for_each(|chunk| pool.retain(chunk.value));
        Self { chunks, ..*self }
    }

    /// The chunk that has the byte at `offset`, which is within what is kept.
    pub(crate) fn chunk_at(&self, offset: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.first <= offset).saturating_sub(1)
    }

    /// Bytes that the chunks take in the pool, as if nothing was shared.
    pub(crate) fn resident_bytes(&self, pool: &Pool) -> usize {
        self.chunks.iter().map(|chunk| pool.footprint(chunk.value)).sum()
    }

    /// Bytes of the chunks' records.
    pub(crate) fn record_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Asserts F1 and F2.
    pub(crate) fn check_invariants(&self) {
        let mut at = self.chunks.front().map_or(self.end, |chunk| chunk.first);
        for chunk in &self.chunks {
            let len = chunk.value.len();
            assert!(chunk.first == at && len > 0 && len <= CHUNK_BYTES, "F1");
            at += len as u64;
        }
        assert!(at == self.end && self.start <= self.first() && self.first() <= self.end, "F1, F2");
    }
}
