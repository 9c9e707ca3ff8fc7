//! Where streams ended that are gone, so that another one under the same name begins behind them.
//!
//! Who follows a stream has an offset of it and nothing else. A stream that began at 0 again would give such a reader
//! other bytes for what it takes for the same place. So an offset of a name never means two bytes: what was removed
//! is behind the start of what comes later.
//!
//! # Cost
//! A name is remembered by a hash and its end. There are two generations; when the younger one is full, the older one is forgotten. Each
//! has [`NAMES_MIN`] names, or more where the memory bound is large: a 128th of it.

use alloc::collections::BTreeMap;

/// How many names a generation may have at least.
pub(super) const NAMES_MIN: usize = 1 << 13;
/// How many it may have where memory has no bound.
const NAMES_MAX: usize = 1 << 20;
/// A generation takes at most this part of the memory bound.
const SHARE: usize = 128;
/// What one takes, about.
const ENTRY_BYTES: usize = 32;

/// What is known of a stream that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Gone {
    /// Its end.
    pub(super) end: u64,
    /// It went for want of memory; nobody has removed it.
    pub(super) evicted: bool,
}

/// The streams that are gone, by hashes of their names.
#[derive(Debug, Default)]
pub(super) struct Ends {
    young: BTreeMap<u64, Gone>,
    old: BTreeMap<u64, Gone>,
}

impl Ends {
    /// Notes that a stream is gone, under a memory bound of so many bytes.
    pub(super) fn note(&mut self, name: u64, gone: Gone, bound: Option<usize>) {
        if gone.end == 0 {
            return;
        }
        let names = bound.map_or(NAMES_MAX, |bytes| bytes / SHARE / ENTRY_BYTES).max(NAMES_MIN);
        if self.young.len() >= names && !self.young.contains_key(&name) {
            self.old = core::mem::take(&mut self.young);
        }
        self.young.insert(name, gone);
    }

    /// What was the last stream of this name; its end is 0 where none is remembered.
    pub(super) fn of(&self, name: u64) -> Gone {
        self.young.get(&name).or_else(|| self.old.get(&name)).copied().unwrap_or_default()
    }

    pub(super) fn bytes(&self) -> usize {
        (self.young.len() + self.old.len()) * ENTRY_BYTES
    }
}
