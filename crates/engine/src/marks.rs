//! Marks: what clients of caches keep beside a value, for the few keys that have any.
//!
//! A mark holds the flags that a client gave, the key's *version* (a number that the next write
//! changes, so that a client can write only over what it has read), and who is to renew a
//! value. The store that keeps a key keeps its flags, and nothing else of this. A key without a mark costs nothing: flags of 0 are not kept, and a version is given out when
//! it is first asked for and forgotten at the next write, after which a greater one is given.
//!
//! Derived keys, and those that a source keeps, have no marks: clients cannot write them. A version of theirs stands for the
//! value: it is the same while the value is, and none that a key which clients write ever has, so nothing can be written over it.
//!
//! # Invariants
//! - Y1. Only keys that are there have marks, in memory or in the store that keeps them: a mark goes with
//!   its key.
//! - Y2. No version is given out twice, whichever shard gives it, but for those that stand for values.
//! - Y3. No mark says nothing.
//!
//! # Cost
//! Where no key has a mark, a test. Otherwise a hash and a look, and for a key's first mark its
//! bytes once more and 40 bytes. The table grows in parts, so that it is never there twice.

use crate::engine::Engine;
use alloc::boxed::Box;
use alloc::vec::Vec;
use hashbrown::HashTable;
use headwater_base::hash::Secret;

/// Parts of the table, each of which grows by itself.
const PARTS: usize = 64;

/// The versions that stand for values: all others are less.
const OF_VALUE: u64 = 1 << 63;

/// What is kept beside a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    /// What the client gave with the value.
    pub flags: u32,
    /// The value is out of date, by a client's word.
    pub stale: bool,
    /// A client was told to renew the value.
    pub leased: bool,
    /// Uses are noted from here on.
    pub tracked: bool,
    /// The value was read since uses are noted.
    pub read: bool,
    /// Seconds since the epoch at which it was used last, since uses are noted.
    pub used_seconds: u32,
    /// The version; 0: nobody has asked for it.
    version: u64,
}

impl Mark {
    fn says_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The version, if somebody has asked for it since the last write.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        (self.version > 0).then_some(self.version)
    }
}

#[derive(Debug)]
struct Entry {
    key: Box<[u8]>,
    mark: Mark,
}

/// The marks of all keys.
#[derive(Debug)]
pub(crate) struct Marks {
    parts: Vec<HashTable<Entry>>,
    count: usize,
    key_bytes: usize,
    secret: Secret,
    last_version: u64,
    /// Versions are those numbers that leave this rest when they are divided by the number of shards, the divisor.
    rest: u64,
    divisor: u64,
}

impl Marks {
    pub(crate) fn new(secret: Secret) -> Self {
        let parts = (0..PARTS).map(|_| HashTable::new()).collect();
        Self { parts, count: 0, key_bytes: 0, secret, last_version: 0, rest: 0, divisor: 1 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        let slots: usize = self.parts.iter().map(HashTable::capacity).sum();
        slots * (size_of::<Entry>() + 1) + self.key_bytes
    }

    fn place(&self, key: &[u8]) -> (usize, u64) {
        let hash = self.secret.hash(key);
        // The bits in the middle: the table uses those at both ends.
        ((hash >> 32) as usize % PARTS, hash)
    }

    fn get(&self, key: &[u8]) -> Mark {
        let (part, hash) = self.place(key);
        let found = self.parts[part].find(hash, |entry| *entry.key == *key);
        found.map_or(Mark::default(), |entry| entry.mark)
    }

    /// Changes the mark of a key, or gives it one.
    fn change(&mut self, key: &[u8], how: impl FnOnce(&mut Mark)) {
        let (part, hash) = self.place(key);
        let secret = &self.secret;
        let part = &mut self.parts[part];
        if let Ok(mut entry) = part.find_entry(hash, |entry| *entry.key == *key) {
            how(&mut entry.get_mut().mark);
            if entry.get().mark.says_nothing() {
                entry.remove();
                self.count -= 1;
                self.key_bytes -= key.len();
            }
            return;
        }
        let mut mark = Mark::default();
        how(&mut mark);
        if !mark.says_nothing() {
            let rehash = |entry: &Entry| secret.hash(&entry.key);
            part.insert_unique(hash, Entry { key: key.into(), mark }, rehash);
            self.count += 1;
            self.key_bytes += key.len();
        }
    }

    /// Notes that a key was written: with other `flags`, where they are given.
    #[inline]
    pub(crate) fn written(&mut self, key: &[u8], flags: Option<u32>) {
        if !self.is_empty() || flags.is_some_and(|flags| flags != 0) {
            self.change(key, |mark| {
                *mark = Mark { flags: flags.unwrap_or(mark.flags), ..Mark::default() };
            });
        }
    }

    /// What was given with the value of `key`.
    #[inline]
    pub(crate) fn flags(&self, key: &[u8]) -> u32 {
        if self.is_empty() { 0 } else { self.get(key).flags }
    }

    /// A key was loaded that has flags in the store that keeps it.
    pub(crate) fn loaded(&mut self, key: &[u8], flags: u32) {
        self.change(key, |mark| mark.flags = flags);
    }

    /// A key went from memory, and will be loaded with its flags: a mark that says nothing else goes with it.
    pub(crate) fn unloaded(&mut self, key: &[u8]) {
        if !self.is_empty() {
            let flags = self.get(key).flags;
            if self.get(key) == (Mark { flags, ..Mark::default() }) {
                self.change(key, |mark| mark.flags = 0);
            }
        }
    }

    /// Forgets all; gives what there was.
    pub(crate) fn clear(&mut self) -> Self {
        let Self { last_version, rest, divisor, secret, .. } = *self;
        let empty = Self { last_version, rest, divisor, ..Self::new(secret) };
        core::mem::replace(self, empty)
    }

    /// Forgets a part of what [`Marks::clear`] gave; `false` where nothing is left.
    pub(crate) fn drop_part(&mut self) -> bool {
        self.parts.pop().is_some()
    }

    /// Gives out versions that no other shard does.
    pub(crate) fn set_shard(&mut self, me: u16, shards: u16) {
        (self.rest, self.divisor) = (u64::from(me), u64::from(shards.max(1)));
    }

    fn next_version(&mut self) -> u64 {
        let next = self.last_version + 1;
        self.last_version = next + (self.rest + self.divisor - next % self.divisor) % self.divisor;
        self.last_version
    }

    /// Each key that has a mark.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flatten().map(|entry| &*entry.key)
    }
}

impl Engine {
    /// The mark of `key`; of a key without one the empty mark.
    #[inline]
    #[must_use]
    pub fn mark(&self, key: &[u8]) -> Mark {
        if self.notifications.marks.is_empty() {
            return Mark::default();
        }
        let mark = self.notifications.marks.get(key);
        // The key may have become an output since.
        if mark.says_nothing() || self.check_owner(key).is_err() { Mark::default() } else { mark }
    }

    /// Changes the mark of `key`, which must be there. Its version stays.
    pub fn set_mark(&mut self, key: &[u8], how: impl FnOnce(&mut Mark)) {
        if self.check_owner(key).is_ok() {
            self.notifications.marks.change(key, how);
        }
    }

    /// The version of `key`, which must be there: every write of the key gives it another one. To
    /// a key that clients cannot write, and where memory is short, a version is given that nothing
    /// can be written over; that of the former is the same as long as its value is.
    pub fn version(&mut self, key: &[u8]) -> u64 {
        if let Some(version) = self.mark(key).version() {
            return version;
        }
        if self.check_owner(key).is_err() {
            return self.version_of_value(key);
        }
        let version = self.notifications.marks.next_version();
        if self.has_room(size_of::<Entry>() + 2 * key.len()) {
            self.notifications.marks.change(key, |mark| mark.version = version);
        }
        version
    }

    /// A version that stands for the value of a key.
    #[cold]
    fn version_of_value(&mut self, key: &[u8]) -> u64 {
        let value = match self.get(key) {
            Ok(Some(value)) => value.to_vec(),
            // What is not known now is none that was seen.
            Ok(None) | Err(_) => return self.notifications.marks.next_version(),
        };
        // All shards hash alike: a partition may move.
        const HASHED: Secret = Secret::fixed(OF_VALUE);
        OF_VALUE | HASHED.hash(&value)
    }

    /// Versions that are given out from now on are greater than `floor`.
    pub fn begin_versions(&mut self, floor: u64) {
        self.notifications.marks.last_version =
            self.notifications.marks.last_version.max(floor.min(u64::MAX >> 2));
    }

    /// Gives `key`, which must be there, a version of the client's own, or another one of the
    /// engine's.
    pub fn set_version(&mut self, key: &[u8], version: Option<u64>) {
        let version = version.unwrap_or_else(|| self.notifications.marks.next_version());
        // What is given out later is greater, whatever clients give (Y2).
        self.notifications.marks.last_version =
            self.notifications.marks.last_version.max(version.min(u64::MAX >> 1));
        if self.check_owner(key).is_ok() {
            self.notifications.marks.change(key, |mark| mark.version = version);
        }
    }
}
