//! Streams: byte sequences that grow at the end and are let go of from the start.
//!
//! A stream is what its key holds instead of a value: the store has a handle for it
//! ([`ValueRef::handle`](headwater_pool::ValueRef::handle)), so that everything about keys as such (expiry, scans, counts,
//! removal, watches) is the same for both, and a read of a value tells one from the other
//! by a bit of the word it has in hand anyway. Offsets count from the first byte ever appended and
//! stay valid whatever is let go of.
//!
//! The bytes are in *chunks* of up to 256 KiB, each a value of the pool. An append writes into the
//! last chunk's last block; letting go of the oldest bytes drops whole chunks and, within the first
//! one that stays, whole blocks. A copied stream shares its chunks with the original, as any values
//! are shared.
//!
//! Streams and joins stay apart: a table that a join reads or writes, or that a source keeps, holds
//! no stream, and ranges of pairs leave streams out.
//!
//! # Invariants
//! - F1. Chunks are contiguous, ascending and without empty ones; the last one ends at `end`.
//! - F2. `start` is at most the offset of the first byte that is kept, but for bytes of its block
//!   that were trimmed; what lies between was evicted.
//! - F3. A stream is in the slab while exactly one key holds its handle.
//!
//! # Cost
//! Appending: a look at the last chunk, and the bytes. Reading: a binary search among the chunks,
//! at most 64 looks at metadata within one, and the bytes. Trimming: the chunks that go.
//! A chunk's record takes 24 bytes, so a stream of 1 GiB has 96 KiB of them.

mod bytes;
mod operations;
mod stream;
#[cfg(test)]
mod tests;

pub use bytes::StreamBytes;
pub use operations::StreamReport;
pub(crate) use stream::Stream;

use alloc::vec::Vec;
use headwater_pool::Pool;

/// Most bytes of a chunk: also the unit that is evicted and spilled.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// The streams by the numbers of their handles.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    slots: Vec<Option<Stream>>,
    free: Vec<u32>,
}

impl Streams {
    /// Takes a stream in and gives its number.
    pub(crate) fn insert(&mut self, stream: Stream) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = Some(stream);
                number
            }
            None => {
                self.slots.push(Some(stream));
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// The stream of a handle that a key holds (F3).
    pub(crate) fn get(&self, number: u32) -> &Stream {
        self.slots[number as usize].as_ref().expect("F3: a handle's stream is there")
    }

    /// As [`Streams::get`], to change it.
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Stream {
        self.slots[number as usize].as_mut().expect("F3: a handle's stream is there")
    }

    /// Drops a stream and its chunks.
    fn remove(&mut self, number: u32, pool: &mut Pool) {
        if let Some(mut stream) = self.slots[number as usize].take() {
            stream.clear(pool);
            self.free.push(number);
        }
    }

    /// Drops all streams.
    fn clear(&mut self, pool: &mut Pool) {
        for stream in self.slots.iter_mut().flatten() {
            stream.clear(pool);
        }
        *self = Self::default();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.slots.iter().flatten()
    }

    /// How many streams there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes of all records, without the chunks' own.
    pub(crate) fn bytes(&self) -> usize {
        let chunks: usize = self.iter().map(Stream::record_bytes).sum();
        self.slots.capacity() * size_of::<Option<Stream>>() + self.free.capacity() * 4 + chunks
    }
}
