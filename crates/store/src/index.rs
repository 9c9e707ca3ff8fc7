//! An index from hashes to 32-bit ids: open addressing, one cache line a lookup.
//!
//! # Layout
//! A slot is 8 bytes: 32 bits of the hash, and the id plus one (0: the slot is free). A slot's
//! home comes from the same 32 bits, so entries move without asking what they stand for.
//!
//! # Invariants
//! - I1. Between an entry's home and the entry no slot is free.
//! - I2. At most three quarters of the slots are taken.
//!
//! # Cost
//! A lookup reads one cache line nearly always, whose address is known from the hash alone, so
//! that it can be fetched ahead. 11 to 21 bytes an entry.

use alloc::vec::Vec;

/// Ids by hash; equal hashes are told apart by the caller.
#[derive(Debug, Default)]
pub struct Index {
    slots: Vec<u64>,
    len: usize,
}

#[inline]
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

impl Index {
    /// An index without entries; it allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the slots take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * 8
    }

    /// Where entries with this tag begin.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// The slot that a lookup of `hash` reads first.
    #[inline]
    #[must_use]
    pub fn first_slot(&self, hash: u64) -> Option<&u64> {
        self.slots.get(self.home(tag(hash)))
    }

    /// The id under `hash` that `is` says yes to.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let tag = tag(hash);
        let mut at = self.home(tag);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            let id = slot as u32 - 1;
            if (slot >> 32) as u32 == tag && is(id) {
                return Some(id);
            }
            at = self.after(at);
        }
    }

    /// Enters an id that is not there.
    pub fn insert(&mut self, hash: u64, id: u32) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        self.place(u64::from(tag(hash)) << 32 | u64::from(id + 1));
        self.len += 1;
    }

    fn place(&mut self, slot: u64) {
        let mut at = self.home((slot >> 32) as u32);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    fn grow(&mut self) {
        // Half as much again, not double: the index is memory that counts.
        let capacity = (self.slots.len() * 3 / 2).max(8);
        let old = core::mem::replace(&mut self.slots, alloc::vec![0; capacity]);
        for slot in old.into_iter().filter(|slot| *slot != 0) {
            self.place(slot);
        }
    }

    /// The slot of the first entry under `hash` that `is` says yes to.
    fn slot_where(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> usize {
        let tag = tag(hash);
        let mut at = self.home(tag);
        loop {
            let slot = self.slots[at];
            assert!(slot != 0, "an entry to be changed is there");
            if (slot >> 32) as u32 == tag && is(slot as u32 - 1) {
                return at;
            }
            at = self.after(at);
        }
    }

    /// Gives an entry that is there another id.
    pub(crate) fn change(&mut self, hash: u64, is: impl FnMut(u32) -> bool, id: u32) {
        let at = self.slot_where(hash, is);
        self.slots[at] = u64::from(tag(hash)) << 32 | u64::from(id + 1);
    }

    /// Removes the entry of `id`, which is there.
    pub fn remove(&mut self, hash: u64, id: u32) {
        self.remove_where(hash, |other| other == id);
    }

    /// Removes an entry that is there.
    pub(crate) fn remove_where(&mut self, hash: u64, is: impl FnMut(u32) -> bool) {
        let mut free = self.slot_where(hash, is);
        // Entries behind move up where they may, so that I1 holds without tombstones.
        let mut at = free;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let home = self.home((slot >> 32) as u32);
            let count = self.slots.len();
            let from_home = |to: usize| (to + count - home) % count;
            if from_home(free) < from_home(at) {
                self.slots[free] = slot;
                free = at;
            }
        }
        self.slots[free] = 0;
        self.len -= 1;
        if self.len == 0 {
            self.slots = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn an_index_finds_what_was_entered_also_under_equal_hashes() {
        let mut index = Index::default();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut state = 5u64;
        for step in 0..60_000u32 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let id = (state >> 40) as u32 % 3000;
            // Few different hashes, crowded at both ends of the table.
            let hash = [1u64 << 32, u64::MAX, u64::MAX - (7 << 32), state << 20][id as usize % 4];
            if let Some(hash) = model.remove(&id) {
                index.remove(hash, id);
            } else if step % 4000 < 3000 {
                model.insert(id, hash);
                index.insert(hash, id);
            }
            if step % 500 == 0 {
                for (&id, &hash) in &model {
                    assert_eq!(index.find(hash, |other| other == id), Some(id));
                }
            }
            assert_eq!(index.len(), model.len());
            assert_eq!(index.find(hash, |_| false), None);
        }
    }
}
