//! An index from hashes to 32-bit ids: open addressing, one cache line a lookup.
//!
//! # Layout
//! A slot is 8 bytes: 32 bits of the hash, and the id plus one (0: the slot is free). A slot's
//! home comes from the same 32 bits, so entries move without asking what they stand for.
//! A large index is cut into [`SEGMENTS`] by the first bits, each of which grows by itself: growing
//! takes a small part of the index twice for a moment, not all of it.
//!
//! # Invariants
//! - I1. Between an entry's home and the entry no slot is free.
//! - I2. At most three quarters of the slots of a segment are taken; and at least a quarter, beyond the smallest one.
//!
//! # Cost
//! A lookup reads one cache line nearly always, whose address is known from the hash alone, so
//! that it can be fetched ahead. 11 to 21 bytes an entry.

use alloc::vec::Vec;

/// Segments of a large index.
const SEGMENTS: usize = 64;
/// An index of so many entries is cut into segments.
const LARGE: usize = 16 << 10;

/// Slots of the smallest segment that has any.
const LEAST: usize = 8;

/// Ids by hash; equal hashes are told apart by the caller.
#[derive(Debug, Default)]
pub struct Index {
    segments: Vec<Segment>,
    /// How many bits of the tag say which segment.
    bits: u32,
    len: usize,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    slots: Vec<u64>,
    len: usize,
}

#[inline]
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The tag of a slot.
#[inline]
fn tag_in(slot: u64) -> u32 {
    (slot >> 32) as u32
}

impl Segment {
    /// Where entries begin whose tags have these bits behind those of the segment.
    #[inline]
    fn home(&self, rest: u32) -> usize {
        ((u64::from(rest) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn insert(&mut self, slot: u64, bits: u32) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            // Half as much again, not double: the index is memory that counts.
            self.resize((self.slots.len() * 3 / 2).max(LEAST), bits);
        }
        self.place(slot, bits);
        self.len += 1;
    }

    fn resize(&mut self, capacity: usize, bits: u32) {
        let old = core::mem::replace(&mut self.slots, alloc::vec![0; capacity]);
        for slot in old.into_iter().filter(|slot| *slot != 0) {
            self.place(slot, bits);
        }
    }

    fn place(&mut self, slot: u64, bits: u32) {
        let mut at = self.home(tag_in(slot) << bits);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }

    /// The slot of the first entry with this tag that `is` says yes to.
    fn slot_where(&self, tag: u32, bits: u32, mut is: impl FnMut(u32) -> bool) -> usize {
        let mut at = self.home(tag << bits);
        loop {
            let slot = self.slots[at];
            assert!(slot != 0, "an entry to be changed is there");
            if tag_in(slot) == tag && is(slot as u32 - 1) {
                return at;
            }
            at = self.after(at);
        }
    }

    /// Frees a slot.
    fn remove(&mut self, mut free: usize, bits: u32) {
        // Entries behind move up where they may, so that I1 holds without tombstones.
        let mut at = free;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let home = self.home(tag_in(slot) << bits);
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
        } else if self.len * 4 < self.slots.len() && self.slots.len() > LEAST {
            self.resize((self.len * 2).max(LEAST), bits);
        }
    }
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
        let slots: usize = self.segments.iter().map(|segment| segment.slots.capacity()).sum();
        slots * 8 + self.segments.capacity() * size_of::<Segment>()
    }

    /// The number of the segment for this tag.
    #[inline]
    fn segment_of(&self, tag: u32) -> usize {
        ((u64::from(tag) << self.bits) >> 32) as usize
    }

    /// The slot that a lookup of `hash` reads first.
    #[inline]
    #[must_use]
    pub fn first_slot(&self, hash: u64) -> Option<&u64> {
        let tag = tag(hash);
        let segment = self.segments.get(self.segment_of(tag))?;
        segment.slots.get(segment.home(tag << self.bits))
    }

    /// The id under `hash` that `is` says yes to.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let segment = self.segments.get(self.segment_of(tag))?;
        if segment.len == 0 {
            return None;
        }
        let mut at = segment.home(tag << self.bits);
        loop {
            let slot = segment.slots[at];
            if slot == 0 {
                return None;
            }
            let id = slot as u32 - 1;
            if tag_in(slot) == tag && is(id) {
                return Some(id);
            }
            at = segment.after(at);
        }
    }

    /// Enters an id that is not there.
    pub fn insert(&mut self, hash: u64, id: u32) {
        if self.segments.is_empty() {
            self.segments.push(Segment::default());
        } else if self.len == LARGE && self.bits == 0 {
            self.cut();
        }
        let tag = tag(hash);
        let segment = self.segment_of(tag);
        self.segments[segment].insert(u64::from(tag) << 32 | u64::from(id + 1), self.bits);
        self.len += 1;
    }

    /// Cuts the index into segments.
    #[cold]
    fn cut(&mut self) {
        self.bits = SEGMENTS.ilog2();
        let old = core::mem::replace(&mut self.segments, alloc::vec![Segment::default(); SEGMENTS]);
        for slot in old.into_iter().flat_map(|segment| segment.slots).filter(|slot| *slot != 0) {
            let segment = self.segment_of(tag_in(slot));
            self.segments[segment].insert(slot, self.bits);
        }
    }

    /// Gives an entry that is there another id.
    pub(crate) fn change(&mut self, hash: u64, is: impl FnMut(u32) -> bool, id: u32) {
        let (tag, bits) = (tag(hash), self.bits);
        let number = self.segment_of(tag);
        let segment = &mut self.segments[number];
        let at = segment.slot_where(tag, bits, is);
        segment.slots[at] = u64::from(tag) << 32 | u64::from(id + 1);
    }

    /// Removes the entry of `id`, which is there.
    pub fn remove(&mut self, hash: u64, id: u32) {
        self.remove_where(hash, |other| other == id);
    }

    /// Removes an entry that is there.
    pub(crate) fn remove_where(&mut self, hash: u64, is: impl FnMut(u32) -> bool) {
        let (tag, bits) = (tag(hash), self.bits);
        let number = self.segment_of(tag);
        let segment = &mut self.segments[number];
        let at = segment.slot_where(tag, bits, is);
        segment.remove(at, bits);
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        }
    }

    /// Slots that finding all entries once reads, by how many entries there are.
    #[cfg(test)]
    pub(crate) fn probes(&self) -> (usize, usize) {
        let mut read = 0;
        for segment in &self.segments {
            for (at, slot) in segment.slots.iter().enumerate().filter(|(_, slot)| **slot != 0) {
                let home = segment.home(tag_in(*slot) << self.bits);
                read += (at + segment.slots.len() - home) % segment.slots.len() + 1;
            }
        }
        (read, self.len)
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

    #[test]
    fn a_large_index_grows_in_small_steps() {
        let mut index = Index::default();
        let hash = |id: u32| u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut before = 0;
        for id in 0..300_000 {
            index.insert(hash(id), id);
            let bytes = index.bytes();
            assert!(id < 20_000 || bytes - before < bytes / 50, "{before} to {bytes} at {id}");
            before = bytes;
        }
        assert!(before < 300_000 * 24);
        for id in 0..300_000 {
            assert_eq!(index.find(hash(id), |other| other == id), Some(id));
            if id % 3 > 0 {
                index.remove(hash(id), id);
            }
        }
        for id in 0..300_000 {
            let there = (id % 3 == 0).then_some(id);
            assert_eq!(index.find(hash(id), |other| other == id), there);
        }
        // It shrinks in steps as small as those in which it has grown.
        for id in (0..300_000).step_by(3) {
            let before = index.bytes();
            index.remove(hash(id), id);
            let (len, bytes) = (index.len(), index.bytes());
            assert!(bytes <= 32 * len + 64 * (8 * LEAST + 32), "{bytes} for {len}");
            assert!(len < 20_000 || before - bytes < before / 50, "{before} to {bytes} at {len}");
        }
        assert_eq!((index.len(), index.bytes()), (0, 0));
    }
}
