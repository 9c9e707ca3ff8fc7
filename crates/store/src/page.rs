//! A page: a sorted run of (key, word) entries in one small allocation.
//!
//! Leaf pages hold key suffixes and value words; inner pages hold separators and child ids.
//! A group of a few dozen keys is one page, so a timeline is one allocation.
//!
//! # Layout
//! `[slot 0][slot 1]…[slot n-1] … free … [key bytes][prefix bytes]`. A slot is 16 bytes: the
//! word, the first four bytes behind the prefix, then offset and length of the key's bytes
//! within the page (13 and 11 bits), and a byte for the owner of the entry: its heat. Key bytes grow downwards from the end. What all keys have in
//! common is stored once, as the prefix: a short one in the page's record, beside the address of
//! its memory, a longer one behind the key bytes. A search decides by the prefix and the four
//! bytes nearly always, and so touches the record and slots alone.
//!
//! # Invariants
//! - G1. Slots are in ascending order of their keys; no key occurs twice.
//! - G2. Every key in the page is the prefix followed by its slot's bytes.
//! - G3. `slots_end() <= heap`; bytes of removed keys stay behind as garbage, counted in
//!   `dead`, until the page is rebuilt.
//! - G4. `start` is where `capacity` initialized bytes begin that belong to this page alone; a
//!   page without capacity has no memory.
//! - G5. A page has at most `PAGE_BYTES_MOST` bytes: a slot has no bits for an offset beyond
//!   `PAGE_BYTES_CEILING`. Asserted where memory is allocated, in release as well.
//!
//! # Cost
//! Search is a binary search over slots; a key greater than all goes to the end after one
//! comparison (the output hint). Inserting moves 16 bytes per slot behind it. Arithmetic for a
//! timeline entry (`0001234567|u0000042`, prefix of 4 shared): 16 + 15 = 31 bytes. A page that grows gets a tenth more than it
//! needs, and what the allocator would leave unused behind that; one that is made for keys which come together gets no more than
//! they need.

#![expect(
    unsafe_code,
    reason = "pages own raw memory (G4): a record of 24 bytes has room for a short prefix"
)]

mod edit;

use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ptr::NonNull;
use headwater_base::Limits;
use headwater_pool::prefetch;

/// Bytes of one slot.
const SLOT_BYTES: usize = 16;

/// A page is split when it would grow beyond this, unless it holds very few keys.
pub(crate) const PAGE_BYTES_MAX: usize = 4096;

/// A page with fewer entries grows instead of being split, so that long keys fit.
const SPLIT_ENTRIES_MIN: usize = 4;

/// No page grows larger: offsets are of 13 bits.
const PAGE_BYTES_CEILING: usize = 1 << 13;

/// What the longest keys make of a page that has too few to be split.
const PAGE_BYTES_MOST: usize = {
    // What stands for a place between keys may be a byte longer.
    let few = SPLIT_ENTRIES_MIN * (SLOT_BYTES + Limits::KEY_BYTES_CEILING + 1);
    (if few > PAGE_BYTES_MAX { few } else { PAGE_BYTES_MAX }).next_multiple_of(16)
};
const _: () = assert!(PAGE_BYTES_MOST.is_multiple_of(16) && PAGE_BYTES_MOST < PAGE_BYTES_CEILING);

/// Bits of the length of a key's bytes in a slot; those of the offset follow.
const LEN_BITS: u32 = 11;
const _: () = assert!(Limits::KEY_BYTES_CEILING < 1 << LEN_BITS);

/// How many entries at a page's end are looked at first.
const NEAR_END: usize = 6;

/// Prefixes up to this long are in the page's record.
const PREFIX_INSIDE_MAX: usize = 6;

/// A sorted run of entries. The record is 24 bytes.
#[derive(Debug)]
pub(crate) struct Page {
    start: NonNull<u8>,
    capacity: u16,
    count: u16,
    heap: u16,
    dead: u16,
    prefix: u16,
    /// The first bytes of the prefix.
    inside: [u8; PREFIX_INSIDE_MAX],
}

// SAFETY: a page's memory belongs to it alone (G4), as a boxed slice's does.
unsafe impl Send for Page {}
// SAFETY: as above; a shared page is only read.
unsafe impl Sync for Page {}

impl Default for Page {
    fn default() -> Self {
        Self {
            start: NonNull::dangling(),
            capacity: 0,
            count: 0,
            heap: 0,
            dead: 0,
            prefix: 0,
            inside: [0; PREFIX_INSIDE_MAX],
        }
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        let mut page = Self::with_capacity(self.capacity());
        page.bytes_mut().copy_from_slice(self.bytes());
        page.count = self.count;
        page.heap = self.heap;
        page.dead = self.dead;
        page.prefix = self.prefix;
        page.inside = self.inside;
        page
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.capacity > 0 {
            // SAFETY: G4: the memory was allocated with this layout, and is the page's own.
            unsafe { dealloc(self.start.as_ptr(), layout_of(self.capacity())) };
        }
    }
}

#[inline]
fn layout_of(capacity: usize) -> Layout {
    Layout::array::<u8>(capacity).expect("a page is smaller than 64 KiB")
}

/// Length of the longest common prefix.
#[inline]
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// What follows `prefix` in `key`, if it starts with it. Short prefixes are compared here: a call
/// would cost more.
#[inline]
fn strip<'a>(key: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = key.split_at_checked(prefix.len())?;
    let same = if prefix.len() <= PREFIX_INSIDE_MAX {
        head.iter().zip(prefix).all(|(a, b)| a == b)
    } else {
        head == prefix
    };
    same.then_some(rest)
}

/// The first four bytes as a number: where two differ, they are ordered as the strings are.
#[inline]
fn head_of(rest: &[u8]) -> u32 {
    match rest {
        [a, b, c, d, ..] => u32::from_be_bytes([*a, *b, *c, *d]),
        _ => rest.iter().zip([24, 16, 8]).fold(0, |head, (&byte, by)| head | u32::from(byte) << by),
    }
}

/// Offset, length and heat as a slot holds them.
#[inline]
fn slot_of(offset: usize, len: usize, heat: u8) -> u32 {
    debug_assert!(offset <= PAGE_BYTES_CEILING && len < 1 << LEN_BITS);
    len as u32 | (offset as u32) << LEN_BITS | u32::from(heat) << 24
}

/// Offset and length in a slot.
#[inline]
fn place_of(slot: u32) -> (usize, usize) {
    let offset = slot >> LEN_BITS & (PAGE_BYTES_CEILING as u32 - 1);
    (offset as usize, (slot & ((1 << LEN_BITS) - 1)) as usize)
}

/// How many bytes a prefix takes behind the key bytes.
#[inline]
fn outside(prefix: usize) -> usize {
    if prefix > PREFIX_INSIDE_MAX { prefix } else { 0 }
}

impl Page {
    /// An empty page with room for so many bytes.
    fn with_capacity(capacity: usize) -> Self {
        assert!(capacity <= PAGE_BYTES_MOST, "G5: a page of {capacity} bytes");
        let mut page = Self::default();
        if capacity > 0 {
            let layout = layout_of(capacity);
            page.capacity = u16::try_from(capacity).expect("a page is smaller than 64 KiB");
            // SAFETY: the layout is not empty.
            let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
                handle_alloc_error(layout)
            };
            page.start = start;
        }
        page.heap = page.capacity;
        page
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: G4; what borrows the bytes borrows the page.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.capacity()) }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; the page is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity()) }
    }

    /// The places that a search near the end of the page reads.
    #[inline]
    pub(crate) fn near_end(&self) -> [Option<&u8>; 3] {
        let bytes = self.bytes();
        let last = (self.len() * SLOT_BYTES).saturating_sub(1);
        [bytes.get(last), bytes.get(last.saturating_sub(64)), bytes.get(usize::from(self.heap))]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Bytes that the page has allocated.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        usize::from(self.capacity)
    }

    /// Bytes that a rebuilt page would need.
    #[inline]
    pub(crate) fn live_bytes(&self) -> usize {
        self.len() * SLOT_BYTES + self.capacity() - usize::from(self.heap) - usize::from(self.dead)
    }

    #[inline]
    pub(crate) fn prefix(&self) -> &[u8] {
        let len = usize::from(self.prefix);
        match self.inside.get(..len) {
            Some(prefix) => prefix,
            None => &self.bytes()[self.capacity() - len..],
        }
    }

    #[inline]
    fn slot(&self, at: usize) -> (usize, usize) {
        let slot = &self.bytes()[at * SLOT_BYTES + 12..at * SLOT_BYTES + 16];
        place_of(u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]))
    }

    /// The byte that the entry's owner keeps with it.
    #[inline]
    pub(crate) fn heat(&self, at: usize) -> u8 {
        self.bytes()[at * SLOT_BYTES + 15]
    }

    #[inline]
    pub(crate) fn set_heat(&mut self, at: usize, heat: u8) {
        self.bytes_mut()[at * SLOT_BYTES + 15] = heat;
    }

    /// The first bytes of the key behind the prefix, as a number.
    #[inline]
    fn head(&self, at: usize) -> u32 {
        let slot = &self.bytes()[at * SLOT_BYTES + 8..at * SLOT_BYTES + 12];
        u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]])
    }

    /// How the key at `at` compares with prefix and `rest`, whose head is `head`.
    #[inline]
    fn compare(&self, at: usize, head: u32, rest: &[u8]) -> Ordering {
        self.head(at).cmp(&head).then_with(|| self.suffix(at).cmp(rest))
    }

    /// Writes slot `at`, all but its word.
    #[inline]
    fn write_slot(&mut self, at: usize, offset: usize, (rest_head, len): (u32, usize), heat: u8) {
        let slot = &mut self.bytes_mut()[at * SLOT_BYTES + 8..at * SLOT_BYTES + 16];
        slot[..4].copy_from_slice(&rest_head.to_le_bytes());
        slot[4..].copy_from_slice(&slot_of(offset, len, heat).to_le_bytes());
    }

    /// The key's bytes behind the prefix.
    #[inline]
    pub(crate) fn suffix(&self, at: usize) -> &[u8] {
        let (offset, len) = self.slot(at);
        &self.bytes()[offset..offset + len]
    }

    #[inline]
    pub(crate) fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes()[at * SLOT_BYTES..at * SLOT_BYTES + 8]);
        u64::from_le_bytes(word)
    }

    #[inline]
    pub(crate) fn set_word(&mut self, at: usize, word: u64) {
        self.bytes_mut()[at * SLOT_BYTES..at * SLOT_BYTES + 8].copy_from_slice(&word.to_le_bytes());
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
        let Some(rest) = strip(key, prefix) else {
            return Err(if key < prefix { 0 } else { count });
        };
        let head = head_of(rest);
        // The output hint: most inserts into a timeline go behind its last entry.
        match self.compare(count - 1, head, rest) {
            Ordering::Less => return Err(count),
            Ordering::Equal => return Ok(count - 1),
            Ordering::Greater => {}
        }
        // A scan of all that is there begins before the first entry.
        if rest.is_empty() || head < self.head(0) {
            return if rest.is_empty() && self.suffix(0).is_empty() { Ok(0) } else { Err(0) };
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
            if let Some(rest) = strip(key, prefix)
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
            prefetch(&self.bytes()[hint * SLOT_BYTES]);
        }
    }

    /// Fetches the key of the entry at `hint`, and gives its word.
    #[inline]
    pub(crate) fn fetch_entry(&self, hint: usize) -> Option<u64> {
        if hint >= self.len() {
            return None;
        }
        prefetch(&self.bytes()[self.slot(hint).0.min(self.capacity() - 1)]);
        Some(self.word(hint))
    }

    /// The first entry whose key is at least `key`.
    #[inline]
    pub(crate) fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|at| at)
    }

    /// Asserts G1 to G5.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        assert!(self.capacity() <= PAGE_BYTES_MOST, "G5");
        assert!(self.len() * SLOT_BYTES <= usize::from(self.heap) || self.capacity() == 0);
        let inside = self.prefix().len().min(PREFIX_INSIDE_MAX);
        assert_eq!(self.inside[..inside], self.prefix()[..inside]);
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
                        page.set_heat(at, step as u8);
                        assert!(model.insert(key, step).is_some());
                    }
                    Err(at) => {
                        assert!(page.insert(at, &key, step));
                        assert_eq!(page.heat(at), 0);
                        page.set_heat(at, step as u8);
                        assert!(model.insert(key, step).is_none());
                    }
                }
                page.check_invariants();
            }
            let held: BTreeMap<_, _> =
                (0..page.len()).map(|at| (page.key(at), page.word(at))).collect();
            assert_eq!(held, model);
            let warm = |page: &Page| (0..page.len()).all(|at| page.heat(at) == page.word(at) as u8);
            assert!(warm(&page), "an entry keeps its heat wherever it moves");
            let right = page.split(0, false);
            let mut both = page.clone();
            both.merge(&right);
            both.check_invariants();
            assert_eq!(both.len(), model.len());
            assert!(warm(&both));
        }
    }

    #[test]
    fn a_page_with_room_for_what_comes_does_not_grow_for_it() {
        let key = |stem: &str, number: usize| alloc::format!("{stem}{number:06}").into_bytes();
        for held in [0, 1, 2, 7] {
            for (stem, count) in [("", 2), ("c|", 3), ("c|longer stem|", 10), ("0123", 90)] {
                let mut page = Page::default();
                let mut all = BTreeMap::new();
                for number in 0..held {
                    let key = key(["a", "c|long", "z"][number % 3], number);
                    let at = page.search(&key).unwrap_err();
                    assert!(page.insert(at, &key, number as u64));
                    all.insert(key, number as u64);
                }
                let new: Vec<_> = (0..count).map(|number| key(stem, number)).collect();
                let bytes = new.iter().map(Vec::len).sum();
                page.reserve((&new[0], &new[count - 1]), count, bytes);
                page.check_invariants();
                let capacity = page.capacity();
                for (word, key) in new.into_iter().enumerate() {
                    let at = page.search(&key).unwrap_err();
                    assert!(page.insert(at, &key, word as u64));
                    page.check_invariants();
                    all.insert(key, word as u64);
                }
                assert_eq!(page.capacity(), capacity, "{held} and {count} of {stem}");
                assert!(
                    capacity <= (page.live_bytes() + 16) * 5 / 4,
                    "{held} and {count} of {stem}"
                );
                assert!((0..page.len()).map(|at| (page.key(at), page.word(at))).eq(all));
            }
        }
        let mut page = Page::default();
        page.reserve((b"a", b"z"), 1000, 10_000);
        assert_eq!(page.capacity(), 0, "too much for a page");
        // What comes may be something else.
        page.reserve((b"announced 1", b"announced 2"), 2, 22);
        assert!(page.insert(page.search(b"other").unwrap_err(), b"other", 1));
        page.check_invariants();
        assert_eq!((page.len(), page.key(0)), (1, b"other".to_vec()));
    }
}
