//! Changing a part of a value: bytes within it, and its end.
//!
//! Both cost what is changed where the bytes concerned are nobody else's. Where they are shared, who
//! else refers to them keeps them (P3): to change bytes the value is copied then; to cut it, blocks
//! are only counted.

use crate::Pool;
use crate::blocks::NONE;
use crate::classes::BLOCK_BYTES_MAX;
use crate::reference::ValueRef;

impl Pool {
    /// Whether the reference is the only one to all that the value has from `offset` on, so that
    /// [`Pool::write_at`] changes it in its place.
    #[must_use]
    pub fn is_sole(&self, value: ValueRef, offset: usize) -> bool {
        if value.is_inline() {
            return false;
        }
        let mut address = value.address();
        loop {
            let metadata = self.blocks.metadata(address);
            // Values that end here, and blocks that follow, show what is written here.
            if metadata.references > 1 {
                return false;
            }
            let previous = if value.is_chained() { metadata.previous } else { NONE };
            if previous == NONE || self.blocks.end(previous) <= offset {
                return true;
            }
            address = previous;
        }
    }

    /// The value with `bytes` in the place of those from `offset` on, as a reference in exchange for
    /// `value`. Costs the blocks from there to the value's end if they are [not shared](Pool::is_sole),
    /// or else a copy of the value, beyond the limit if it must be.
    ///
    /// # Panics
    /// The value has no such bytes, or is a cell.
    #[must_use]
    pub fn write_at(&mut self, value: ValueRef, offset: usize, bytes: &[u8]) -> ValueRef {
        assert!(!value.is_cell(), "a cell is set as a whole");
        let until = offset + bytes.len();
        assert!(until <= value.len(), "the bytes to be written lie within the value");
        if bytes.is_empty() {
            return value;
        }
        if !self.is_sole(value, offset) {
            let mut whole = self.view(value).to_vec();
            whole[offset..until].copy_from_slice(bytes);
            let copy = self.insert(&whole);
            self.release(value);
            return copy;
        }
        let (mut address, mut end) = (value.address(), value.len());
        loop {
            let previous = self.blocks.metadata(address).previous;
            let start = if previous == NONE { 0 } else { self.blocks.end(previous) };
            let (from, to) = (offset.max(start), until.min(end));
            if from < to {
                self.blocks.write(address, from - start, &bytes[from - offset..to - offset]);
            }
            if start <= offset {
                return value;
            }
            (address, end) = (previous, start);
        }
    }

    /// The first `len` bytes of the value, as a reference in exchange for `value`. Costs the blocks
    /// that are cut off, and a copy of less than one block at most.
    ///
    /// # Panics
    /// The value has fewer bytes, or is a cell.
    #[must_use]
    pub fn cut(&mut self, value: ValueRef, len: usize) -> ValueRef {
        assert!(!value.is_cell() && len <= value.len(), "a value is cut to bytes that it has");
        if len == value.len() {
            return value;
        }
        let shorter = if len <= BLOCK_BYTES_MAX {
            let mut first = [0; BLOCK_BYTES_MAX];
            let mut filled = 0;
            for part in self.view(value).read_at(0, len) {
                first[filled..filled + part.len()].copy_from_slice(part);
                filled += part.len();
            }
            self.insert(&first[..len])
        } else {
            let mut address = value.address();
            let mut previous = self.blocks.metadata(address).previous;
            while previous != NONE && self.blocks.end(previous) >= len {
                address = previous;
                previous = self.blocks.metadata(address).previous;
            }
            self.blocks.count(address);
            ValueRef::in_blocks(address, len, previous != NONE)
        };
        self.release(value);
        shorter
    }
}
