//! A page: a sorted run of (key, word) entries in one small allocation.
//!
//! Leaf pages hold key suffixes and value words; inner pages hold separators and child ids.
//! A group of a few dozen keys is one page, so a timeline is one allocation.
//!
//! # Layout
//! `[slot 0][slot 1]…[slot n-1] … free … [key bytes][prefix bytes]`. A slot is 16 bytes: the
//! word, the first four bytes behind the prefix, then offset and length of the key's bytes
//! within the page (16 bits each). Key bytes grow downwards from the end. What all keys have in
//! common is stored once, as the prefix. A search decides by the four bytes nearly always, and
//! so touches slots alone.
//!
//! # Invariants
//! - G1. Slots are in ascending order of their keys; no key occurs twice.
//! - G2. Every key in the page is the prefix followed by its slot's bytes.
//! - G3. `slots_end() <= heap`; bytes of removed keys stay behind as garbage, counted in
//!   `dead`, until the page is rebuilt.
//!
//! # Cost
//! Search is a binary search over slots; a key greater than all goes to the end after one
//! comparison (the output hint). Inserting moves 16 bytes per slot behind it. Arithmetic for a
//! timeline entry (`0001234567|u0000042`, prefix of 4 shared): 16 + 15 = 31 bytes, and at most
//! half as much again in free space.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_pool::{ValueRef, prefetch};

/// Bytes of one slot.
const SLOT_BYTES: usize = 16;

/// A page is split when it would grow beyond this, unless it holds very few keys.
pub(crate) const PAGE_BYTES_MAX: usize = 4096;

/// A page with fewer entries grows instead of being split, so that long keys fit.
const SPLIT_ENTRIES_MIN: usize = 8;

/// How many entries at a page's end are looked at first.
const NEAR_END: usize = 6;

/// A sorted run of entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    bytes: Box<[u8]>,
    count: u16,
    heap: u16,
    dead: u16,
    prefix: u16,
}

/// Length of the longest common prefix.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The first four bytes as a number: where two differ, they are ordered as the strings are.
#[inline]
fn head_of(rest: &[u8]) -> u32 {
    match rest {
        [a, b, c, d, ..] => u32::from_be_bytes([*a, *b, *c, *d]),
        _ => rest.iter().zip([24, 16, 8]).fold(0, |head, (&byte, by)| head | u32::from(byte) << by),
    }
}

impl Page {
    /// The places that a search near the end of the page reads.
    #[inline]
    pub(crate) fn near_end(&self) -> [Option<&u8>; 4] {
        let slots = self.len() * SLOT_BYTES;
        let heap = usize::from(self.heap);
        let last = slots.saturating_sub(1);
        [
            self.bytes.get(last),
            self.bytes.get(last.saturating_sub(64)),
            self.bytes.get(heap),
            self.bytes.last(),
        ]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Bytes that the page has allocated.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that a rebuilt page would need.
    #[inline]
    pub(crate) fn live_bytes(&self) -> usize {
        self.len() * SLOT_BYTES + self.bytes.len() - usize::from(self.heap) - usize::from(self.dead)
    }

    #[inline]
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.bytes[self.bytes.len() - usize::from(self.prefix)..]
    }

    #[inline]
    fn slot(&self, at: usize) -> (usize, usize) {
        let slot = &self.bytes[at * SLOT_BYTES + 12..at * SLOT_BYTES + 16];
        (
            usize::from(u16::from_le_bytes([slot[0], slot[1]])),
            usize::from(u16::from_le_bytes([slot[2], slot[3]])),
        )
    }

    /// The first bytes of the key behind the prefix, as a number.
    #[inline]
    fn head(&self, at: usize) -> u32 {
        let slot = &self.bytes[at * SLOT_BYTES + 8..at * SLOT_BYTES + 12];
        u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]])
    }

    /// How the key at `at` compares with prefix and `rest`, whose head is `head`.
    #[inline]
    fn compare(&self, at: usize, head: u32, rest: &[u8]) -> Ordering {
        self.head(at).cmp(&head).then_with(|| self.suffix(at).cmp(rest))
    }

    /// Writes slot `at`, all but its word.
    #[inline]
    fn write_slot(&mut self, at: usize, offset: usize, rest_head: u32, len: usize) {
        let slot = &mut self.bytes[at * SLOT_BYTES + 8..at * SLOT_BYTES + 16];
        slot[..4].copy_from_slice(&rest_head.to_le_bytes());
        slot[4..6].copy_from_slice(&(offset as u16).to_le_bytes());
        slot[6..].copy_from_slice(&(len as u16).to_le_bytes());
    }

    /// The key's bytes behind the prefix.
    #[inline]
    pub(crate) fn suffix(&self, at: usize) -> &[u8] {
        let (offset, len) = self.slot(at);
        &self.bytes[offset..offset + len]
    }

    #[inline]
    pub(crate) fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[at * SLOT_BYTES..at * SLOT_BYTES + 8]);
        u64::from_le_bytes(word)
    }

    #[inline]
    pub(crate) fn set_word(&mut self, at: usize, word: u64) {
        self.bytes[at * SLOT_BYTES..at * SLOT_BYTES + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Length of the key at `at`, prefix included.
    #[inline]
    pub(crate) fn key_len(&self, at: usize) -> usize {
        usize::from(self.prefix) + self.slot(at).1
    }

    /// Appends the key at `at` to `out`.
    #[inline]
    pub(crate) fn write_key(&self, at: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix());
        out.extend_from_slice(self.suffix(at));
    }

    pub(crate) fn key(&self, at: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.key_len(at));
        self.write_key(at, &mut key);
        key
    }

    /// Where `key` is (`Ok`), or where it would be inserted (`Err`).
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let count = self.len();
        if count == 0 {
            return Err(0);
        }
        let prefix = self.prefix();
        let shared = key.len().min(prefix.len());
        match key[..shared].cmp(&prefix[..shared]) {
            Ordering::Less => return Err(0),
            Ordering::Greater => return Err(count),
            Ordering::Equal if key.len() < prefix.len() => return Err(0),
            Ordering::Equal => {}
        }
        let rest = &key[prefix.len()..];
        let head = head_of(rest);
        // The output hint: most inserts into a timeline go behind its last entry.
        match self.compare(count - 1, head, rest) {
            Ordering::Less => return Err(count),
            Ordering::Equal => return Ok(count - 1),
            Ordering::Greater => {}
        }
        let (mut low, mut high) = (0, count - 1);
        // Reads of what is new, too, look among the last entries, which are in the cache.
        if count > 2 * NEAR_END {
            match self.compare(count - NEAR_END, head, rest) {
                Ordering::Less => low = count - NEAR_END + 1,
                Ordering::Equal => return Ok(count - NEAR_END),
                Ordering::Greater => high = count - NEAR_END,
            }
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.compare(middle, head, rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Where `key` is, if it is there; `hint` is where it was once.
    #[inline]
    pub(crate) fn find_near(&self, key: &[u8], hint: usize) -> Option<usize> {
        if hint < self.len() {
            let prefix = self.prefix();
            if let Some(rest) = key.strip_prefix(prefix)
                && self.head(hint) == head_of(rest)
                && self.suffix(hint) == rest
            {
                return Some(hint);
            }
        }
        self.search(key).ok()
    }

    /// Fetches what [`Page::find_near`] reads first.
    #[inline]
    pub(crate) fn fetch_slot(&self, hint: usize) {
        if hint < self.len() {
            prefetch(&self.bytes[hint * SLOT_BYTES]);
            prefetch(&self.bytes[self.bytes.len() - 1]);
        }
    }

    /// Fetches the key and the value of the entry at `hint`.
    #[inline]
    pub(crate) fn fetch_entry(&self, hint: usize) {
        if hint < self.len() {
            prefetch(&self.bytes[self.slot(hint).0.min(self.bytes.len() - 1)]);
            ValueRef::from_word(self.word(hint)).prefetch();
        }
    }

    /// The first entry whose key is at least `key`.
    #[inline]
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|at| at)
    }

    /// Inserts at the place that [`Page::search`] gave. `false`: the page is full, and must be
    /// split first.
    #[inline]
    #[must_use]
    pub(crate) fn insert(&mut self, at: usize, key: &[u8], word: u64) -> bool {
        let prefix = usize::from(self.prefix);
        let fits = key.len() >= prefix
            && key[..prefix] == *self.prefix()
            && (self.len() + 1) * SLOT_BYTES + key.len() - prefix <= usize::from(self.heap);
        if !fits && !self.make_room(at, key) {
            return false;
        }
        let rest = &key[usize::from(self.prefix)..];
        let end = usize::from(self.heap);
        let start = end - rest.len();
        self.bytes[start..end].copy_from_slice(rest);
        let slots_end = self.len() * SLOT_BYTES;
        let here = at * SLOT_BYTES;
        self.bytes.copy_within(here..slots_end, here + SLOT_BYTES);
        self.bytes[here..here + 8].copy_from_slice(&word.to_le_bytes());
        self.write_slot(at, start, head_of(rest), rest.len());
        self.heap = start as u16;
        self.count += 1;
        true
    }

    /// Rebuilds the page so that `key` fits; `false` where it would grow too large.
    fn make_room(&mut self, at: usize, key: &[u8]) -> bool {
        let prefix = self.prefix_with(at, key);
        let stored = usize::from(self.prefix);
        let mut need = prefix + (self.len() + 1) * SLOT_BYTES + key.len() - prefix;
        for entry in 0..self.len() {
            need += stored + self.slot(entry).1 - prefix;
        }
        if need > PAGE_BYTES_MAX && self.len() >= SPLIT_ENTRIES_MIN {
            return false;
        }
        // Room to grow by a third, in steps of 16 bytes as allocators have them.
        let capacity = if self.len() == 0 { need } else { need + need * 2 / 5 };
        let capacity = capacity.max(need).next_multiple_of(16);
        let capacity = if need <= PAGE_BYTES_MAX { capacity.min(PAGE_BYTES_MAX) } else { capacity };
        let same = prefix == stored && self.dead == 0 && capacity > self.bytes.len();
        *self = if same && self.count > 0 {
            self.grown(capacity)
        } else {
            self.rebuilt(0..self.len(), prefix, capacity)
        };
        true
    }

    /// The prefix that all keys and `key`, inserted at `at`, have in common.
    fn prefix_with(&self, at: usize, key: &[u8]) -> usize {
        let count = self.len();
        if count == 0 {
            // A lone key shares nothing yet: a prefix would have to be undone by the next.
            return 0;
        }
        let with_key = |entry: usize| {
            let shared = common_prefix(self.prefix(), key);
            if shared < usize::from(self.prefix) {
                shared
            } else {
                shared + common_prefix(self.suffix(entry), &key[shared..])
            }
        };
        // Keys are sorted, so the least and the greatest share least.
        let (first, last) = (self.suffix(0), self.suffix(count - 1));
        if at == 0 {
            with_key(count - 1)
        } else if at == count {
            with_key(0)
        } else {
            usize::from(self.prefix) + common_prefix(first, last)
        }
    }

    /// The same page with more room, where no key moves within it but by the room gained.
    fn grown(&self, capacity: usize) -> Self {
        let mut bytes = vec![0; capacity].into_boxed_slice();
        let (slots, heap) = (self.len() * SLOT_BYTES, usize::from(self.heap));
        let gained = capacity - self.bytes.len();
        bytes[..slots].copy_from_slice(&self.bytes[..slots]);
        bytes[heap + gained..].copy_from_slice(&self.bytes[heap..]);
        for slot in bytes[..slots].chunks_exact_mut(SLOT_BYTES) {
            let offset = u16::from_le_bytes([slot[12], slot[13]]) + gained as u16;
            slot[12..14].copy_from_slice(&offset.to_le_bytes());
        }
        Self { bytes, heap: (heap + gained) as u16, ..*self }
    }

    /// A page of the entries `range`, with a prefix of `prefix` bytes.
    fn rebuilt(&self, range: core::ops::Range<usize>, prefix: usize, capacity: usize) -> Self {
        let mut page = Self {
            bytes: vec![0; capacity].into_boxed_slice(),
            count: range.len() as u16,
            heap: 0,
            dead: 0,
            prefix: prefix as u16,
        };
        let mut heap = capacity - prefix;
        let stored = usize::from(self.prefix);
        let mut key = Vec::new();
        for (to, from) in range.enumerate() {
            key.clear();
            self.write_key(from, &mut key);
            if to == 0 {
                page.bytes[heap..].copy_from_slice(&key[..prefix]);
            }
            debug_assert!(stored + self.slot(from).1 >= prefix);
            let rest = &key[prefix..];
            heap -= rest.len();
            page.bytes[heap..heap + rest.len()].copy_from_slice(rest);
            let slot = to * SLOT_BYTES;
            page.bytes[slot..slot + 8].copy_from_slice(&self.word(from).to_le_bytes());
            page.write_slot(to, heap, head_of(rest), rest.len());
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
                + prefix;
        self.rebuilt(range, prefix, (need + need / 8).next_multiple_of(16))
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
        self.bytes.copy_within((at + 1) * SLOT_BYTES..slots_end, at * SLOT_BYTES);
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
        }
    }

    /// Asserts G1 to G3.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        assert!(self.len() * SLOT_BYTES <= usize::from(self.heap) || self.capacity() == 0);
        for at in 1..self.len() {
            assert!(self.key(at - 1) < self.key(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn a_page_is_a_sorted_map() {
        let mut state = 7u64;
        for round in 0..60 {
            let mut page = Page::default();
            let mut model = BTreeMap::new();
            for step in 0..400u64 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let draw = (state >> 33) as usize;
                let mut key =
                    [&b"common|"[..], b"", b"comm", b"x"][draw % (1 + round % 4)].to_vec();
                key.extend_from_slice(alloc::format!("{:b}", draw / 7 % 40).as_bytes());
                match page.search(&key) {
                    Ok(at) if draw.is_multiple_of(3) => {
                        assert_eq!(Some(page.remove(at)), model.remove(&key));
                    }
                    Ok(at) => {
                        page.set_word(at, step);
                        assert!(model.insert(key, step).is_some());
                    }
                    Err(at) => {
                        assert!(page.insert(at, &key, step));
                        assert!(model.insert(key, step).is_none());
                    }
                }
                page.check_invariants();
            }
            let held: BTreeMap<_, _> =
                (0..page.len()).map(|at| (page.key(at), page.word(at))).collect();
            assert_eq!(held, model);
            let right = page.split(0, false);
            let mut both = page.clone();
            both.merge(&right);
            both.check_invariants();
            assert_eq!(both.len(), model.len());
        }
    }
}
