//! Where evicted bytes go and come back from: a directory of bounded size, which can be lost at any time.
//!
//! It is a cache's second tier and nothing else: what it gives is what was put, or nothing. It begins
//! empty, whatever an earlier process left there.
//!
//! The bytes are in [fjall](https://docs.rs/fjall), a log-structured store with large values in files
//! of their own. Entries are numbered in the order in which they come and lie in *segments*: one
//! keyspace each, an eighth of the size allowed. When the last segment is full and there is no
//! room for another, the oldest goes as a whole, files and all; so does one whose entries have
//! all been removed. Nothing is ever rewritten to get room back.
//!
//! # Invariants
//! - D1. Segments hold disjoint, ascending spans of numbers; all numbers below the first segment's
//!   are gone.
//! - D2. Bytes are given back only if their checksum holds, which covers the number, a generation that
//!   no other process has had, and the bytes themselves.
//! - D3. An error or a panic of the store costs the entries, never an answer; after [`FAILURES_MAX`]
//!   of them in a row nothing more is put.
//!
//! # Cost
//! A put copies the bytes once; a thread of our own writes them, [`BATCH_BYTES`] at a time, as finished tables
//! without a journal. A get is one lookup and one read, on the caller's thread. Memory: three
//! batches and the store's cache, [`MEMORY_BYTES`] in all. An entry that is larger than all batches together waits until those
//! before it are on disk, and is alone then.

mod record;
mod writer;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions};
use headwater_base::spill::Spill;
use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use writer::{Batch, Writer};

/// Parts that the size allowed is cut into.
const SEGMENTS: u64 = 8;
/// What the store's own files may take besides the segments, and a 128th of the size for its indexes.
const BESIDES_BYTES: u64 = 8 << 20;
/// The least size that can be allowed: eight segments worth the name.
pub const SIZE_MIN: u64 = BESIDES_BYTES + SEGMENTS * (7 << 20);
/// Bytes that are written together, where there is one directory in the process.
pub const BATCH_BYTES: usize = 2 << 20;
/// Bytes of the store's cache of blocks.
const CACHE_BYTES: u64 = 2 << 20;
/// The batch that is gathered, one that waits and one that is being written.
const BATCHES: usize = 3;
/// What all this takes of memory, about: the batches, with the store's buffers, and its cache.
pub const MEMORY_BYTES: u64 = (BATCHES as u64 + 1) * BATCH_BYTES as u64 + CACHE_BYTES;
/// The least of both where several directories have to share.
const PART_BYTES_MIN: usize = 256 << 10;
/// After so many failures in a row nothing more is put.
pub const FAILURES_MAX: u32 = 16;
/// The part of the directory that is ours, and is emptied.
const FOLDER: &str = "headwater-spill";
/// Held by the process that uses the directory.
const LOCK: &str = "headwater-spill.lock";

/// Consecutive entries that go together.
struct Segment {
    keyspace: Keyspace,
    /// The number of its first entry.
    first: u64,
    /// Bytes that it holds, removed ones included.
    bytes: u64,
    /// Entries that were not removed.
    live: u64,
}

/// A directory that evicted bytes are in.
pub struct Directory {
    /// Ends before the database does.
    writer: Writer,
    database: Database,
    segments: VecDeque<Segment>,
    /// Names the next segment.
    next_name: u64,
    /// The number behind the last one put.
    next: u64,
    segment_bytes: u64,
    batch_bytes: usize,
    generation: u64,
    failures: u32,
    /// What is being gathered for the last segment.
    gathering: Batch,
    /// Batches that may not be on disk yet.
    writing: VecDeque<Arc<Batch>>,
    /// Held as long as the directory is in use.
    _lock: File,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("segments", &self.segments.len())
            .field("bytes", &self.bytes())
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

impl Directory {
    /// Makes `path` the place for at most `size` bytes, and removes what an earlier process left.
    ///
    /// # Errors
    /// The directory cannot be written, is in use by another process, or the size is below
    /// [`SIZE_MIN`].
    pub fn open(path: &Path, size: u64) -> io::Result<Self> {
        Self::open_one_of(path, size, 1)
    }

    /// As [`Directory::open`], for one of `count` directories that share [`MEMORY_BYTES`] of memory.
    ///
    /// # Errors
    /// As for [`Directory::open`].
    pub fn open_one_of(path: &Path, size: u64, count: usize) -> io::Result<Self> {
        let part = |bytes: usize| (bytes / count.max(1)).max(PART_BYTES_MIN);
        if size < SIZE_MIN {
            let text = format!("{size} bytes are too few; the least is {SIZE_MIN}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        fs::create_dir_all(path)?;
        let lock = File::options().create(true).append(true).open(path.join(LOCK))?;
        lock.try_lock().map_err(|_| {
            io::Error::new(io::ErrorKind::ResourceBusy, "another process uses the directory")
        })?;
        let folder = path.join(FOLDER);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let database = Database::builder(&folder)
            .cache_size(part(CACHE_BYTES as usize) as u64)
            .worker_threads(1)
            .open()
            .map_err(io::Error::other)?;
        let random = RandomState::new();
        Ok(Self {
            writer: Writer::start()?,
            database,
            segments: VecDeque::new(),
            next_name: 0,
            next: 0,
            segment_bytes: (size - BESIDES_BYTES - size / 128) / SEGMENTS,
            batch_bytes: part(BATCH_BYTES),
            generation: random.hash_one(std::process::id()),
            failures: 0,
            gathering: Batch::default(),
            writing: VecDeque::new(),
            _lock: lock,
        })
    }

    /// Runs what the store does; `None` where it failed (D3).
    fn attempt<T>(&mut self, run: impl FnOnce(&mut Self) -> fjall::Result<T>) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| run(self))) {
            Ok(Ok(done)) => {
                self.failures = 0;
                Some(done)
            }
            Ok(Err(_)) | Err(_) => {
                self.failures += 1;
                None
            }
        }
    }

    /// Sees to it that the last segment takes `bytes` more.
    fn make_room(&mut self, id: u64, bytes: u64) -> fjall::Result<()> {
        if self.segments.back().is_some_and(|last| last.bytes + bytes <= self.segment_bytes) {
            return Ok(());
        }
        self.write_gathered();
        // One less than there may be: the new one will fill up.
        while self.segments.len() as u64 >= SEGMENTS {
            self.drop_segment(0)?;
        }
        let options = || {
            KeyspaceCreateOptions::default()
                .with_kv_separation(Some(KvSeparationOptions::default()))
        };
        let keyspace = self.database.keyspace(&format!("s{}", self.next_name), options)?;
        self.next_name += 1;
        self.segments.push_back(Segment { keyspace, first: id, bytes: 0, live: 0 });
        Ok(())
    }

    fn drop_segment(&mut self, at: usize) -> fjall::Result<()> {
        match self.segments.remove(at) {
            Some(segment) => self.database.delete_keyspace(segment.keyspace),
            None => Ok(()),
        }
    }

    /// Where the segment of an entry is.
    fn segment_of(&self, id: u64) -> Option<usize> {
        self.segments.partition_point(|segment| segment.first <= id).checked_sub(1)
    }

    /// Gives what has been gathered to the writer.
    fn write_gathered(&mut self) {
        let batch = Arc::new(core::mem::take(&mut self.gathering));
        self.wait_to_write(batch.bytes);
        if let Some(last) = self.segments.back()
            && !batch.entries.is_empty()
            && self.writer.write(last.keyspace.clone(), batch.clone())
        {
            self.writing.push_back(batch);
        }
        self.forget_written();
    }

    /// Waits until what is on its way to disk is no more than all batches may be with so many bytes more.
    fn wait_to_write(&mut self, more: usize) {
        let most = BATCHES * self.batch_bytes;
        self.forget_written();
        while self.writing.iter().map(|batch| batch.bytes).sum::<usize>() + more > most
            && let Some(first) = self.writing.pop_front()
        {
            first.wait();
        }
    }

    fn forget_written(&mut self) {
        while self.writing.front().is_some_and(|first| first.is_written()) {
            self.writing.pop_front();
        }
    }

    /// The record of an entry that is still in memory.
    fn in_memory(&self, id: u64) -> Option<&[u8]> {
        let written = self.writing.iter().find_map(|batch| batch.find(id));
        written.or_else(|| self.gathering.find(id))
    }
}

impl Spill for Directory {
    fn put(&mut self, id: u64, parts: &mut dyn Iterator<Item = &[u8]>) -> bool {
        debug_assert!(id >= self.next, "D1: numbers ascend");
        self.next = self.next.max(id + 1);
        if self.failures.max(self.writer.failures()) >= FAILURES_MAX {
            return false;
        }
        let parts: Vec<&[u8]> = parts.collect();
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if self.gathering.bytes + len > self.batch_bytes {
            // A large entry is a batch of its own.
            self.write_gathered();
            self.wait_to_write(len);
        }
        let record = record::write(self.generation, id, &parts);
        let bytes = record.len() as u64;
        if bytes > self.segment_bytes || self.attempt(|own| own.make_room(id, bytes)).is_none() {
            return false;
        }
        let Some(last) = self.segments.back_mut() else { return false };
        last.bytes += bytes;
        last.live += 1;
        self.gathering.bytes += record.len();
        self.gathering.entries.push((id, record));
        if self.gathering.bytes >= self.batch_bytes {
            self.write_gathered();
        }
        true
    }

    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool {
        let Some(at) = self.segment_of(id) else { return false };
        let generation = self.generation;
        let found;
        let record = match self.in_memory(id) {
            Some(record) => Some(record),
            None => {
                let keyspace = self.segments[at].keyspace.clone();
                found = self.attempt(|_| keyspace.get(id.to_be_bytes())).flatten();
                found.as_deref()
            }
        };
        let bytes = record.and_then(|record| record::read(record, generation, id));
        bytes.is_some_and(|bytes| {
            out.extend_from_slice(bytes);
            true
        })
    }

    fn remove(&mut self, id: u64) {
        let Some(at) = self.segment_of(id) else { return };
        let segment = &mut self.segments[at];
        segment.live = segment.live.saturating_sub(1);
        // The last segment goes on being filled.
        if segment.live == 0 && at + 1 < self.segments.len() {
            let _lost = self.attempt(|own| own.drop_segment(at));
        }
    }

    fn clear(&mut self) {
        self.gathering = Batch::default();
        while !self.segments.is_empty() {
            let _lost = self.attempt(|own| own.drop_segment(0));
        }
    }

    fn settle(&mut self) -> bool {
        self.write_gathered();
        let waited = !self.writing.is_empty();
        self.writing.drain(..).for_each(|batch| batch.wait());
        waited
    }

    fn first(&self) -> u64 {
        self.segments.front().map_or(self.next, |segment| segment.first)
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCHES, Directory, PART_BYTES_MIN, SIZE_MIN};
    use headwater_base::spill::Spill;

    #[test]
    fn what_is_on_its_way_to_disk_is_bounded_whatever_the_size_of_entries() {
        let folder = tempfile::tempdir().unwrap();
        let mut directory = Directory::open_one_of(folder.path(), 2 * SIZE_MIN, 64).unwrap();
        let batch = PART_BYTES_MIN;
        let mut larger = 0;
        for (id, len) in
            [batch / 3, 5 * batch, 10, 6 * batch, 4 * batch, batch - 1, batch, 2 * batch]
                .into_iter()
                .cycle()
                .take(80)
                .enumerate()
        {
            assert!(directory.put(id as u64, &mut vec![7; len].chunks(4096)));
            let in_memory = directory.gathering.bytes
                + directory.writing.iter().map(|batch| batch.bytes).sum::<usize>();
            larger = len.max(if len < batch { larger } else { 0 });
            // What has been gathered behind a large entry, while that is written, is no more than a batch.
            let most = (BATCHES * batch).max(larger) + batch + 1000;
            assert!(in_memory <= most, "{in_memory} bytes behind {len}; at most {most}");
        }
    }
}
