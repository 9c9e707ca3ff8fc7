//! A growing array in chunks: it never moves what it holds, so that growing takes one chunk, and
//! not all of it twice.
//!
//! # Invariants
//! - H1. All chunks but the last hold [`CHUNK`] items.
//!
//! # Cost
//! An access looks at the chunk's place first. Beyond the first chunk, at most a chunk is unused.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Items of a chunk.
const CHUNK: usize = 1024;

/// Items by their numbers, which are given in order.
#[derive(Debug)]
pub struct Chunks<T> {
    chunks: Vec<Vec<T>>,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T> Chunks<T> {
    /// No items; it allocates nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> usize {
        let last = self.chunks.last().map_or(0, Vec::len);
        self.chunks.len().saturating_sub(1) * CHUNK + last
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds an item behind the others.
    pub fn push(&mut self, item: T) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(item),
            None => self.chunks.push(alloc::vec![item]),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(item);
                self.chunks.push(chunk);
            }
        }
    }

    /// Takes the last item out.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.chunks.last_mut()?;
        let item = last.pop();
        if last.is_empty() {
            self.chunks.pop();
        }
        item
    }

    /// The item of this number, if there is one.
    #[inline]
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    /// Bytes that the items take, and room for more.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let last = self.chunks.last().map_or(0, Vec::capacity);
        let items = self.chunks.len().saturating_sub(1) * CHUNK + last;
        items * size_of::<T>() + self.chunks.capacity() * size_of::<Vec<T>>()
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_numbers_and_places() {
        let mut chunks = Chunks::new();
        assert_eq!((chunks.len(), chunks.get(0), chunks.bytes()), (0, None, 0));
        for number in 0..2 * CHUNK {
            chunks.push(number);
        }
        let place: *const usize = &raw const chunks[CHUNK];
        (2 * CHUNK..5 * CHUNK + 7).for_each(|number| chunks.push(number));
        assert_eq!(chunks.len(), 5 * CHUNK + 7);
        assert!((0..chunks.len()).all(|number| chunks[number] == number));
        chunks[CHUNK] = 5;
        assert_eq!((chunks.get(CHUNK), chunks.get(chunks.len())), (Some(&5), None));
        assert!(core::ptr::eq(place, &raw const chunks[CHUNK]));
        assert!(chunks.bytes() < (6 * CHUNK + 64) * 8);
        assert_eq!(chunks.pop(), Some(5 * CHUNK + 6));
        (0..5 * CHUNK + 6).for_each(|_| assert!(chunks.pop().is_some()));
        assert_eq!((chunks.pop(), chunks.len(), chunks.is_empty()), (None, 0, true));
    }
}
