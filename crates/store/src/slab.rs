//! Items under numbers of their own, in chunks: it never moves what it holds beyond the first chunk, grows by one chunk at
//! a time, and gives a chunk back as soon as nothing is left in it.
//!
//! # Invariants
//! - L1. `room` names exactly the chunks that can take another item.
//! - L2. A chunk without items holds no memory, and is not the last one.
//! - L3. The last item of a chunk is one: what is free behind it is not there.
//! - L4. Numbers follow from the order of insertions and removals alone: two slabs in which the same numbers are taken and
//!   freed in the same order give the same numbers.
//!
//! # Cost
//! An access looks at the chunk's place first. A new item goes into the first chunk with room, so that as items come and go
//! the last chunks empty and memory follows what is held. A freed number costs two bytes until it is used again.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Items of a chunk.
const CHUNK: usize = 1024;

/// Items by numbers that they keep until they are removed.
#[derive(Debug)]
pub struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    room: BTreeSet<u32>,
    len: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    items: Vec<Option<T>>,
    /// Which of them are none.
    free: Vec<u16>,
}

impl<T> Chunk<T> {
    const EMPTY: Self = Self { items: Vec::new(), free: Vec::new() };

    /// The item of this slot was taken out.
    fn freed(&mut self, slot: usize) {
        if slot + 1 < self.items.len() {
            self.free.push(slot as u16);
            return;
        }
        self.items.pop();
        if matches!(self.items.last(), Some(None)) {
            let end = self.items.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            self.items.truncate(end);
            self.free.retain(|slot| usize::from(*slot) < end);
        }
        if self.items.is_empty() {
            *self = Self::EMPTY;
        }
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && self.items.len() == CHUNK
    }

    fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<Option<T>>() + self.free.capacity() * size_of::<u16>()
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), room: BTreeSet::new(), len: 0, bytes: 0 }
    }
}

impl<T> Slab<T> {
    /// No items; it allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the greatest number that is taken.
    #[must_use]
    pub fn end(&self) -> usize {
        let last = self.chunks.last().map_or(0, |chunk| chunk.items.len());
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    /// Adds an item; its number.
    pub fn insert(&mut self, item: T) -> u32 {
        let at = match self.room.first() {
            Some(&at) => at as usize,
            None => {
                self.chunks.push(Chunk::EMPTY);
                let at = self.chunks.len() - 1;
                self.room.insert(at as u32);
                at
            }
        };
        let chunk = &mut self.chunks[at];
        let before = chunk.bytes();
        let slot = match chunk.free.pop() {
            Some(slot) => {
                chunk.items[usize::from(slot)] = Some(item);
                usize::from(slot)
            }
            None => {
                // The first chunk grows, since most slabs stay small; others are there at once.
                if at > 0 && chunk.items.is_empty() {
                    chunk.items.reserve_exact(CHUNK);
                }
                chunk.items.push(Some(item));
                chunk.items.len() - 1
            }
        };
        if chunk.is_full() {
            self.room.remove(&(at as u32));
        }
        self.bytes = self.bytes + self.chunks[at].bytes() - before;
        self.len += 1;
        (at * CHUNK + slot) as u32
    }

    /// Takes the item of this number out, if there is one.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let (at, slot) = (number as usize / CHUNK, number as usize % CHUNK);
        let chunk = self.chunks.get_mut(at)?;
        let (before, was_full) = (chunk.bytes(), chunk.is_full());
        let item = chunk.items.get_mut(slot)?.take()?;
        chunk.freed(slot);
        self.bytes = self.bytes + chunk.bytes() - before;
        if was_full {
            self.room.insert(at as u32);
        }
        while self.chunks.last().is_some_and(|last| last.items.is_empty()) {
            self.chunks.pop();
            self.room.remove(&(self.chunks.len() as u32));
        }
        if self.chunks.is_empty() {
            self.chunks = Vec::new();
        }
        self.len -= 1;
        Some(item)
    }

    /// The item of this number, if there is one.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        let chunk = self.chunks.get(number as usize / CHUNK)?;
        chunk.items.get(number as usize % CHUNK)?.as_ref()
    }

    /// The item of this number, to change.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(number as usize / CHUNK)?;
        chunk.items.get_mut(number as usize % CHUNK)?.as_mut()
    }

    /// The items from this number on, in order of their numbers.
    pub fn iter_from(&self, start: usize) -> impl Iterator<Item = &T> {
        let (chunk, at) = (start / CHUNK, start % CHUNK);
        let first = self.chunks.get(chunk).and_then(|chunk| chunk.items.get(at..));
        let rest = self.chunks.iter().skip(chunk + 1).flat_map(|chunk| &chunk.items);
        first.into_iter().flatten().chain(rest).flatten()
    }

    /// All items, in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.iter_from(0)
    }

    /// The item of the greatest number, and that number.
    pub fn last_mut(&mut self) -> Option<(u32, &mut T)> {
        let last = self.end().checked_sub(1)? as u32;
        Some((last, self.get_mut(last)?))
    }

    /// Bytes that the items take, and room for more.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // A set's nodes are half full at least.
        self.bytes
            + self.chunks.capacity() * size_of::<Chunk<T>>()
            + self.room.len() * 2 * size_of::<u32>()
    }

    /// Asserts what holds of every slab.
    #[cfg(test)]
    fn check_invariants(&self) {
        let taken = |chunk: &Chunk<T>| chunk.items.iter().flatten().count();
        assert_eq!(self.len, self.chunks.iter().map(taken).sum::<usize>());
        assert_eq!(self.bytes, self.chunks.iter().map(Chunk::bytes).sum::<usize>());
        for (at, chunk) in self.chunks.iter().enumerate() {
            assert_eq!(self.room.contains(&(at as u32)), taken(chunk) < CHUNK, "L1");
            assert_eq!(chunk.bytes() == 0, taken(chunk) == 0, "L2");
            assert!(!matches!(chunk.items.last(), Some(None)), "L3");
            assert_eq!(chunk.free.len() + taken(chunk), chunk.items.len(), "L3");
        }
        assert!(self.room.last().is_none_or(|at| (*at as usize) < self.chunks.len()), "L1");
        assert!(self.chunks.last().is_none_or(|last| taken(last) > 0), "L2");
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        let item = &self.chunks[number as usize / CHUNK].items[number as usize % CHUNK];
        item.as_ref().expect("a number that is asked for is taken")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        let item = &mut self.chunks[number as usize / CHUNK].items[number as usize % CHUNK];
        item.as_mut().expect("a number that is asked for is taken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use headwater_base::hash::stable_hash;

    #[test]
    fn items_keep_their_numbers_while_others_come_and_go() {
        let (mut slab, mut twin, mut model) = (Slab::new(), Slab::new(), BTreeMap::new());
        let mut state = 7;
        for step in 0..60_000_u64 {
            state = stable_hash(state, &step.to_le_bytes());
            // It grows to some chunks, and shrinks to nothing, again and again.
            let grows = step % 20_000 < 9_000;
            if grows && state % 4 > 0 || model.is_empty() {
                let number = slab.insert(step);
                assert_eq!(twin.insert(()), number, "L4");
                assert_eq!(model.insert(number, step), None);
            } else {
                let from = (state >> 8) as u32 % (slab.end() as u32 + 1);
                let near = model.range(from..).next().or(model.iter().next());
                let number = *near.expect("there is one").0;
                assert_eq!(slab.remove(number), model.remove(&number));
                assert_eq!((slab.remove(number), twin.remove(number)), (None, Some(())));
            }
            if step % 64 == 0 {
                slab.check_invariants();
                assert!(slab.iter().eq(model.values()));
                let start = (state >> 32) as usize % (slab.end() + 1);
                assert!(
                    slab.iter_from(start).eq(model.range(start as u32..).map(|(_, item)| item))
                );
                let last = slab.last_mut().map(|(number, item)| (number, *item));
                assert_eq!(last, model.iter().next_back().map(|(number, item)| (*number, *item)));
            }
        }
    }

    #[test]
    fn memory_follows_what_is_held() {
        let mut slab = Slab::new();
        let numbers: Vec<u32> = (0..100 * CHUNK).map(|item| slab.insert(item)).collect();
        let full = slab.bytes();
        let place: *const usize = &raw const slab[50_000];
        // Random ones go: every chunk keeps some.
        for &number in numbers.iter().filter(|number| **number % 10 > 0) {
            slab.remove(number);
        }
        assert!(core::ptr::eq(place, &raw const slab[50_000]));
        // While others come and go, the last chunks empty.
        for number in numbers.iter().rev().filter(|number| **number % 10 == 0) {
            let item = slab.remove(*number).expect("it has stayed");
            slab.insert(item);
        }
        assert_eq!(slab.len(), 10 * CHUNK);
        assert!(slab.bytes() < full / 5, "{} of {full}", slab.bytes());
        let rest: Vec<u32> = (0..slab.end() as u32).filter(|at| slab.get(*at).is_some()).collect();
        rest.into_iter().for_each(|number| assert!(slab.remove(number).is_some()));
        assert_eq!((slab.len(), slab.bytes(), slab.end()), (0, 0, 0));
    }
}
