//! What holds the entries: the pool, a map of vectors, and memory that is only copied to and from.

use anyhow::{Context, Result};
use headwater_buffers::{HugePages, MmapMut};
use headwater_pool::{OwnedBuffers, Pool, ValueRef};
use headwater_workload::entries::EntryCache;
use std::collections::HashMap;

/// The pool, with huge pages, and a map from keys to references.
#[derive(Debug)]
pub struct Pooled {
    pool: Pool,
    values: HashMap<u64, ValueRef>,
    room: Vec<u8>,
}

impl Pooled {
    /// An empty one.
    #[must_use]
    pub fn new(huge_pages: bool) -> Self {
        let pool = if huge_pages {
            Pool::with_buffers(Box::new(OwnedBuffers::new(HugePages)))
        } else {
            Pool::new()
        };
        Self { pool, values: HashMap::new(), room: Vec::new() }
    }

    fn value(&mut self, key: u64) -> &mut ValueRef {
        self.values.get_mut(&key).expect("the steps name entries that are there")
    }
}

impl EntryCache for Pooled {
    fn insert(&mut self, key: u64, bytes: &[u8]) {
        self.values.insert(key, self.pool.insert(bytes));
    }

    fn append(&mut self, key: u64, bytes: &[u8]) {
        let value = *self.value(key);
        *self.value(key) = self.pool.append(value, bytes, 0);
    }

    fn replace(&mut self, key: u64, bytes: &[u8]) {
        let value = *self.value(key);
        *self.value(key) = self.pool.replace(value, bytes);
    }

    fn read(&mut self, key: u64, look: &mut dyn FnMut(&[u8])) {
        let value = *self.value(key);
        self.room.clear();
        self.pool.view(value).write_to(&mut self.room);
        look(&self.room);
    }

    fn delete(&mut self, key: u64) {
        let value = self.values.remove(&key).expect("the steps name entries that are there");
        self.pool.release(value);
    }
}

/// A map of vectors, which a reader copies to a new vector or to one that it keeps.
#[derive(Debug)]
pub struct Vectors {
    entries: HashMap<u64, Vec<u8>>,
    room: Option<Vec<u8>>,
}

impl Vectors {
    /// An empty one. `reuse`: readers keep a vector to copy into.
    #[must_use]
    pub fn new(reuse: bool) -> Self {
        Self { entries: HashMap::new(), room: reuse.then(Vec::new) }
    }
}

impl EntryCache for Vectors {
    fn insert(&mut self, key: u64, bytes: &[u8]) {
        self.entries.insert(key, bytes.to_vec());
    }

    fn append(&mut self, key: u64, bytes: &[u8]) {
        let entry = self.entries.get_mut(&key).expect("the steps name entries that are there");
        entry.extend_from_slice(bytes);
    }

    fn replace(&mut self, key: u64, bytes: &[u8]) {
        self.entries.insert(key, bytes.to_vec());
    }

    fn read(&mut self, key: u64, look: &mut dyn FnMut(&[u8])) {
        let entry = &self.entries[&key];
        match &mut self.room {
            Some(room) => {
                room.clear();
                room.extend_from_slice(entry);
                look(room);
            }
            None => look(std::hint::black_box(&entry.clone())),
        }
    }

    fn delete(&mut self, key: u64) {
        self.entries.remove(&key);
    }
}

/// Memory in huge pages, touched beforehand, with a slot for each entry: the least that copying can
/// cost. The slots are found by a map, as in the others.
#[derive(Debug)]
pub struct Copies {
    memory: MmapMut,
    slot: usize,
    free: Vec<usize>,
    /// Where an entry is, and its length.
    entries: HashMap<u64, (usize, usize)>,
    room: Vec<u8>,
}

impl Copies {
    /// Slots for so many entries of so many bytes.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn new(entries: usize, bytes: usize) -> Result<Self> {
        let mut memory = headwater_buffers::map(entries * bytes)
            .with_context(|| format!("no memory for {entries} entries of {bytes} bytes"))?;
        memory.fill(1);
        let free = (0..entries).rev().map(|slot| slot * bytes).collect();
        Ok(Self { memory, slot: bytes, free, entries: HashMap::new(), room: Vec::new() })
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl EntryCache for Copies {
    fn insert(&mut self, key: u64, bytes: &[u8]) {
        let at = self.free.pop().expect("there are slots for all entries of the steps");
        self.entries.insert(key, (at, bytes.len()));
        self.write(at, bytes);
    }

    fn append(&mut self, key: u64, bytes: &[u8]) {
        let entry = self.entries.get_mut(&key).expect("the steps name entries that are there");
        let (at, len) = *entry;
        entry.1 = len + bytes.len();
        assert!(entry.1 <= self.slot, "a slot holds the longest entry");
        self.write(at + len, bytes);
    }

    fn replace(&mut self, key: u64, bytes: &[u8]) {
        let entry = self.entries.get_mut(&key).expect("the steps name entries that are there");
        entry.1 = bytes.len();
        let at = entry.0;
        self.write(at, bytes);
    }

    fn read(&mut self, key: u64, look: &mut dyn FnMut(&[u8])) {
        let (at, len) = self.entries[&key];
        self.room.clear();
        self.room.extend_from_slice(&self.memory[at..at + len]);
        look(&self.room);
    }

    fn delete(&mut self, key: u64) {
        let entry = self.entries.remove(&key);
        self.free.push(entry.expect("the steps name entries that are there").0);
    }
}
