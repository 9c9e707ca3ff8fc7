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
//! An offset under a name means one byte for as long as the process lives: a stream that comes where another one was
//! begins behind the end of that ([`ends`]), and so does a copy.
//!
//! Streams and joins stay apart: a table that a join reads or writes, or that a source keeps, holds
//! no stream, and ranges of pairs leave streams out.
//!
//! # Invariants
//! - F1. Chunks are contiguous, ascending and without empty ones; the last one ends at `end`.
//! - F2. `start` is at most the offset of the first byte that is kept, but for bytes of its block
//!   that were trimmed; what lies between was evicted.
//! - F3. A stream is in the slab while exactly one key holds its handle, and in `long` while more
//!   than its last chunk is in memory.
//! - F4. Chunks that were spilled come before those in memory.
//! - F5. What is kept of a stream lies behind the ends of those that its name had before, as far as they are remembered.
//! - F6. Of a stream in a table that an embedded store keeps, that has every byte ([`kept`]); none of it is spilled, and its chunks go from memory in any order.
//!
//! # Cost
//! Appending: a look at the last chunk, and the bytes. Reading: a binary search among the chunks,
//! at most 64 looks at metadata within one, and the bytes. Trimming: the chunks that go.
//! A chunk's record takes 24 bytes, so a stream of 1 GiB has 96 KiB of them.

mod bytes;
mod ends;
mod evict;
mod kept;
mod moving;
mod operations;
mod stream;

pub use bytes::StreamBytes;
pub(crate) use moving::MovingChunks;
pub use operations::StreamReport;
pub(crate) use stream::{Body, Stream};

use crate::spill::Spilling;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use ends::{Ends, Gone};
use headwater_pool::Pool;
use kept::KeptStreams;

/// Most bytes of a chunk: also the unit that is evicted and spilled.
pub const CHUNK_BYTES: usize = 256 << 10;

/// The streams by the numbers of their handles.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    slots: Vec<Option<Stream>>,
    free: Vec<u32>,
    /// Streams of which chunks can go.
    long: BTreeSet<u32>,
    /// The same of those that the embedded store keeps: nothing is lost there.
    long_kept: BTreeSet<u32>,
    kept: KeptStreams,
    /// Whose turn it was last to let a chunk go.
    turn: u32,
    /// Bytes of memory that stay where all that can go of streams by itself has gone.
    staying: usize,
    ends: Ends,
    /// Those of streams that the embedded store has, and memory not: one that is replaced there unseen ended there.
    unloaded: Ends,
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

    /// Notes whether chunks of a stream can go, and what stays of it then, after it has changed.
    pub(crate) fn refile(&mut self, number: u32) {
        let stream = self.get_mut(number);
        let (long, stays) = (stream.is_long(), stream.staying_bytes());
        let before = core::mem::replace(&mut stream.filed_staying, stays);
        self.staying = self.staying + stays - before;
        let stream = self.get_mut(number);
        if stream.filed_long != long {
            stream.filed_long = long;
            let filed = if stream.is_kept { &mut self.long_kept } else { &mut self.long };
            if long {
                filed.insert(number);
            } else {
                filed.remove(&number);
            }
        }
    }

    /// The next stream of which a chunk can go: each in turn.
    pub(crate) fn next_long(&mut self) -> Option<u32> {
        let next = self.long.range(self.turn + 1..).next().or(self.long.first()).copied()?;
        self.turn = next;
        Some(next)
    }

    /// Bytes of memory that stay where all that can go of streams by itself has gone: their last parts and records.
    pub(crate) fn staying_bytes(&self) -> usize {
        self.staying
    }

    /// What the last stream was that had this name, and is gone.
    fn gone(&self, name: u64) -> Gone {
        let (gone, unloaded) = (self.ends.of(name), self.unloaded.of(name));
        if unloaded.end > gone.end { unloaded } else { gone }
    }

    /// Notes that the stream which is about to be removed goes for want of memory.
    pub(crate) fn is_evicted(&mut self, number: u32) {
        self.get_mut(number).evicted = true;
    }

    /// Drops a stream and its chunks, under a memory bound of so many bytes.
    fn remove(
        &mut self,
        number: u32,
        pool: &mut Pool,
        spilling: &mut Spilling,
        bound: Option<usize>,
    ) {
        if let Some(stream) = self.slots[number as usize].as_ref() {
            let gone = Gone { end: stream.end, evicted: stream.evicted };
            self.ends.note(stream.name, gone, bound);
            self.unload(number, pool, spilling);
        }
    }

    /// Drops what memory has of a stream.
    fn unload(&mut self, number: u32, pool: &mut Pool, spilling: &mut Spilling) {
        if let Some(mut stream) = self.slots[number as usize].take() {
            self.staying -= stream.filed_staying;
            stream.clear(pool, spilling);
            self.long.remove(&number);
            self.long_kept.remove(&number);
            self.free.push(number);
        }
    }

    /// Drops all streams.
    fn clear(&mut self, pool: &mut Pool, spilling: &mut Spilling, bound: Option<usize>) {
        for stream in self.slots.iter_mut().flatten() {
            self.ends.note(stream.name, Gone { end: stream.end, evicted: false }, bound);
            stream.clear(pool, spilling);
        }
        let (ends, kept) = (core::mem::take(&mut self.ends), core::mem::take(&mut self.kept));
        let unloaded = core::mem::take(&mut self.unloaded);
        *self = Self { ends, unloaded, kept, ..Self::default() };
    }

    /// Asserts what F3 says of `long`.
    pub(crate) fn check_filed(&self) {
        for (number, stream) in self.slots.iter().enumerate() {
            let long = stream.as_ref().is_some_and(Stream::is_long);
            let kept = stream.as_ref().is_some_and(|stream| stream.is_kept);
            assert_eq!(self.long.contains(&(number as u32)), long && !kept, "F3");
            assert_eq!(self.long_kept.contains(&(number as u32)), long && kept, "F3");
        }
        let staying: usize = self.iter().map(Stream::staying_bytes).sum();
        assert_eq!(self.staying, staying, "what stays is counted");
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
        self.slots.capacity() * size_of::<Option<Stream>>()
            + self.free.capacity() * 4
            + self.ends.bytes()
            + self.unloaded.bytes()
            + chunks
    }
}
