//! Changes of a page: inserts, removals, and the rebuilding, splitting and merging that they need.
//!
//! Keeps G1 to G3 of the page.

use super::{
    PAGE_BYTES_MAX, PAGE_BYTES_MOST, PREFIX_INSIDE_MAX, Page, SLOT_BYTES, SPLIT_ENTRIES_MIN,
    common_prefix, head_of, outside, place_of, slot_of, strip,
};
use alloc::vec::Vec;

/// The capacity of a page that needs `need` bytes and would like `wanted`: room alone makes no page
/// larger than [`PAGE_BYTES_MAX`] (G5). What an allocator would leave unused behind it is the page's:
/// jemalloc has steps of 16 bytes up to 128, then four sizes per doubling.
fn capacity_for(need: usize, wanted: usize) -> usize {
    let wanted = wanted.clamp(need, need.max(PAGE_BYTES_MAX));
    let step = if wanted <= 128 { 16 } else { wanted.next_power_of_two() / 8 };
    wanted.next_multiple_of(step).min(PAGE_BYTES_MOST).max(need)
}

impl Page {
    /// Inserts at the place that [`Page::search`] gave. `false`: the page is full, and must be
    /// split first.
    #[inline]
    #[must_use]
    pub(crate) fn insert(&mut self, at: usize, key: &[u8], word: u64) -> bool {
        let prefix = usize::from(self.prefix);
        let fits = key.len() >= prefix
            && strip(key, self.prefix()).is_some()
            && (self.len() + 1) * SLOT_BYTES + key.len() - prefix <= usize::from(self.heap);
        if !fits && !self.make_room(at, key) {
            return false;
        }
        let rest = &key[usize::from(self.prefix)..];
        let end = usize::from(self.heap);
        let start = end - rest.len();
        let slots_end = self.len() * SLOT_BYTES;
        let here = at * SLOT_BYTES;
        let bytes = self.bytes_mut();
        bytes[start..end].copy_from_slice(rest);
        if here < slots_end {
            bytes.copy_within(here..slots_end, here + SLOT_BYTES);
        }
        bytes[here..here + 8].copy_from_slice(&word.to_le_bytes());
        self.write_slot(at, start, (head_of(rest), rest.len()), 0);
        self.heap = start as u16;
        self.count += 1;
        true
    }

    /// Rebuilds the page so that `key` fits; `false` where it would grow too large.
    fn make_room(&mut self, at: usize, key: &[u8]) -> bool {
        let prefix = self.prefix_with(at, key);
        let stored = usize::from(self.prefix);
        let mut need = outside(prefix) + (self.len() + 1) * SLOT_BYTES + key.len() - prefix;
        for entry in 0..self.len() {
            need += stored + self.slot(entry).1 - prefix;
        }
        if need > PAGE_BYTES_MAX && self.len() >= SPLIT_ENTRIES_MIN {
            return false;
        }
        // Room to grow by a tenth, and what the allocator gives beyond that.
        let capacity = if self.len() == 0 { need } else { need + need / 10 };
        let capacity = capacity_for(need, capacity);
        let same = prefix == stored && self.dead == 0 && capacity > self.capacity();
        *self = if same && self.count > 0 {
            self.grown(capacity)
        } else {
            self.rebuilt(0..self.len(), prefix, capacity)
        };
        true
    }

    /// Makes room for `count` more entries, two at least, whose keys take `bytes` together; `first` is the least of these,
    /// `last` the greatest. Where all that is too much for a page, it stays as it is.
    pub(crate) fn reserve(&mut self, (first, last): (&[u8], &[u8]), count: usize, bytes: usize) {
        let mut prefix = common_prefix(first, last);
        if self.len() > 0 {
            let ends = [0, self.len() - 1].map(|entry| self.shared_with(entry, first));
            prefix = prefix.min(ends[0]).min(ends[1]);
        }
        let stored = usize::from(self.prefix);
        let has_room =
            (self.len() + count) * SLOT_BYTES + bytes <= usize::from(self.heap) + count * stored;
        if prefix == stored && has_room {
            return;
        }
        let held: usize = (0..self.len()).map(|at| stored + self.slot(at).1 - prefix).sum();
        let slots = (self.len() + count) * SLOT_BYTES;
        let need = outside(prefix) + slots + held + bytes - count * prefix;
        if need > PAGE_BYTES_MAX {
            return;
        }
        let capacity = capacity_for(need, need);
        if self.len() > 0 {
            *self = self.rebuilt(0..self.len(), prefix, capacity);
            return;
        }
        *self = Self::with_capacity(capacity);
        let heap = capacity - outside(prefix);
        self.bytes_mut()[heap..].copy_from_slice(&first[..outside(prefix)]);
        let inside = prefix.min(PREFIX_INSIDE_MAX);
        self.inside[..inside].copy_from_slice(&first[..inside]);
        (self.prefix, self.heap) = (prefix as u16, heap as u16);
    }

    /// How many bytes the key at `entry` and `key` have in common.
    fn shared_with(&self, entry: usize, key: &[u8]) -> usize {
        let shared = common_prefix(self.prefix(), key);
        if shared < usize::from(self.prefix) {
            shared
        } else {
            shared + common_prefix(self.suffix(entry), &key[shared..])
        }
    }

    /// The prefix that all keys and `key`, inserted at `at`, have in common.
    fn prefix_with(&self, at: usize, key: &[u8]) -> usize {
        let count = self.len();
        if count == 0 {
            // A lone key shares nothing yet: a prefix would have to be undone by the next.
            return 0;
        }
        // Keys are sorted, so the least and the greatest share least.
        let (first, last) = (self.suffix(0), self.suffix(count - 1));
        if at == 0 {
            self.shared_with(count - 1, key)
        } else if at == count {
            self.shared_with(0, key)
        } else {
            usize::from(self.prefix) + common_prefix(first, last)
        }
    }

    /// The same page with more room, where no key moves within it but by the room gained.
    fn grown(&self, capacity: usize) -> Self {
        let mut page = Self::with_capacity(capacity);
        let (slots, heap) = (self.len() * SLOT_BYTES, usize::from(self.heap));
        let gained = capacity - self.capacity();
        let bytes = page.bytes_mut();
        bytes[..slots].copy_from_slice(&self.bytes()[..slots]);
        bytes[heap + gained..].copy_from_slice(&self.bytes()[heap..]);
        for slot in bytes[..slots].chunks_exact_mut(SLOT_BYTES) {
            let (offset, len) =
                place_of(u32::from_le_bytes([slot[12], slot[13], slot[14], slot[15]]));
            let moved = slot_of(offset + gained, len, slot[15]);
            slot[12..16].copy_from_slice(&moved.to_le_bytes());
        }
        page.count = self.count;
        page.heap = (heap + gained) as u16;
        page.dead = self.dead;
        page.prefix = self.prefix;
        page.inside = self.inside;
        page
    }

    /// A page of the entries `range`, with a prefix of `prefix` bytes.
    fn rebuilt(&self, range: core::ops::Range<usize>, prefix: usize, capacity: usize) -> Self {
        let mut page = Self::with_capacity(capacity);
        page.count = range.len() as u16;
        page.prefix = prefix as u16;
        let mut heap = capacity - outside(prefix);
        let stored = usize::from(self.prefix);
        let mut key = Vec::new();
        for (to, from) in range.enumerate() {
            key.clear();
            self.write_key(from, &mut key);
            if to == 0 {
                page.bytes_mut()[heap..].copy_from_slice(&key[..outside(prefix)]);
                let inside = prefix.min(PREFIX_INSIDE_MAX);
                page.inside[..inside].copy_from_slice(&key[..inside]);
            }
            debug_assert!(stored + self.slot(from).1 >= prefix);
            let rest = &key[prefix..];
            heap -= rest.len();
            page.bytes_mut()[heap..heap + rest.len()].copy_from_slice(rest);
            page.set_word(to, self.word(from));
            page.write_slot(to, heap, (head_of(rest), rest.len()), self.heat(from));
        }
        page.heap = heap as u16;
        page
    }

    /// A compact page of the entries `range`.
    fn part(&self, range: core::ops::Range<usize>) -> Self {
        if range.is_empty() {
            return Self::default();
        }
        let stored = usize::from(self.prefix);
        let prefix = if range.len() == 1 {
            0
        } else {
            stored + common_prefix(self.suffix(range.start), self.suffix(range.end - 1))
        };
        let need: usize =
            range.clone().map(|at| SLOT_BYTES + stored + self.slot(at).1 - prefix).sum::<usize>()
                + outside(prefix);
        self.rebuilt(range, prefix, capacity_for(need, need + need / 8))
    }

    /// Splits off the entries that belong behind a split for an insert at `at`: none where the
    /// insert goes to the end, so that ascending inserts fill their pages.
    pub(crate) fn split(&mut self, at: usize, last_page: bool) -> Self {
        let count = self.len();
        let middle = if last_page && at == count { count - 1 } else { count / 2 };
        let right = self.part(middle..count);
        *self = self.part(0..middle);
        right
    }

    /// Removes the entry at `at` and gives its word.
    pub(crate) fn remove(&mut self, at: usize) -> u64 {
        let word = self.word(at);
        self.dead += self.slot(at).1 as u16;
        let slots_end = self.len() * SLOT_BYTES;
        self.bytes_mut().copy_within((at + 1) * SLOT_BYTES..slots_end, at * SLOT_BYTES);
        self.count -= 1;
        if self.count == 0 {
            *self = Self::default();
        } else if self.live_bytes() * 2 + 64 < self.capacity() {
            *self = self.part(0..self.len());
        }
        word
    }

    /// Appends all entries of `other`, whose keys are greater than all of this page.
    pub(crate) fn merge(&mut self, other: &Self) {
        let mut key = Vec::new();
        for at in 0..other.len() {
            key.clear();
            other.write_key(at, &mut key);
            let done = self.insert(self.len(), &key, other.word(at));
            assert!(done, "merged pages fit in one page");
            self.set_heat(self.len() - 1, other.heat(at));
        }
    }
}
