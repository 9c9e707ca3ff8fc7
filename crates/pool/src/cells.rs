//! Cells: short values that change in place, for all that hold a reference to them.
//!
//! A counter that twenty thousand pages show is one cell and as many references to it: setting
//! it is one write. A cell holds what a reference can hold, so its content needs no memory
//! besides, and looking at it is one look at an array.
//!
//! # Invariants
//! - P4. A cell's content is a value held in its reference; a cell that nobody refers to is free.

use crate::{Pool, ValueRef};
use alloc::vec::Vec;

/// Bytes of a cell.
pub(crate) const CELL_BYTES: usize = size_of::<Cell>();

#[derive(Debug)]
struct Cell {
    content: ValueRef,
    /// 0: the cell is free.
    references: core::cell::Cell<u32>,
}

/// The cells of a pool.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    cells: Vec<Cell>,
    free: Vec<u32>,
}

impl Cells {
    /// A new cell, with one reference to it.
    pub(crate) fn add(&mut self, content: ValueRef) -> u32 {
        let cell = Cell { content, references: 1.into() };
        match self.free.pop() {
            Some(at) => {
                self.cells[at as usize] = cell;
                at
            }
            None => {
                self.cells.push(cell);
                u32::try_from(self.cells.len() - 1).expect("cells are fewer than references")
            }
        }
    }

    #[inline]
    pub(crate) fn content(&self, at: u32) -> ValueRef {
        self.cells[at as usize].content
    }

    pub(crate) fn set(&mut self, at: u32, content: ValueRef) {
        self.cells[at as usize].content = content;
    }

    /// Bytes taken from the system.
    pub(crate) fn allocated(&self) -> usize {
        self.cells.capacity() * CELL_BYTES + self.free.capacity() * size_of::<u32>()
    }

    /// Cells that something refers to.
    pub(crate) fn live(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    pub(crate) fn references(&self, at: u32) -> u32 {
        self.cells[at as usize].references.get()
    }

    #[inline]
    pub(crate) fn retain(&self, at: u32) {
        let references = &self.cells[at as usize].references;
        references.set(references.get() + 1);
    }

    /// Counts one reference less.
    #[inline]
    pub(crate) fn release(&mut self, at: u32) {
        let references = &self.cells[at as usize].references;
        debug_assert!(references.get() > 0, "P1: released once too often");
        references.set(references.get() - 1);
        if references.get() == 0 {
            self.free.push(at);
        }
    }
}

impl Pool {
    /// A cell that holds an inline value, with one reference to it: [`Pool::set_cell`] changes
    /// what all references to it show. They are retained and released as any others. Only a cell's
    /// [content](Pool::content) can be appended to or cut.
    ///
    /// # Panics
    /// The value is not inline.
    #[must_use]
    pub fn share(&mut self, value: ValueRef) -> ValueRef {
        assert!(value.is_inline() && !value.is_cell(), "a cell holds an inline value");
        ValueRef::in_cell(self.cells.add(value))
    }

    /// Gives a cell another inline value.
    ///
    /// # Panics
    /// One is no cell, or the other not inline.
    pub fn set_cell(&mut self, cell: ValueRef, value: ValueRef) {
        assert!(cell.is_cell(), "it is a cell that changes in place");
        assert!(value.is_inline() && !value.is_cell(), "a cell holds an inline value");
        self.cells.set(cell.cell(), value);
    }

    /// What a cell holds now, as a value that stays; any other value as it is. No reference is
    /// counted.
    #[inline]
    #[must_use]
    pub fn content(&self, value: ValueRef) -> ValueRef {
        if value.is_cell() { self.cells.content(value.cell()) } else { value }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pool, ValueRef};

    #[test]
    fn a_cell_changes_for_all_that_hold_it() {
        let mut pool = Pool::new();
        let one = pool.insert(b"1");
        let cell = pool.share(one);
        let other = pool.share(pool.content(cell));
        pool.retain(cell);
        pool.check_invariants([cell, cell, other]);
        assert!(cell.is_cell() && other.is_cell() && cell != other && !one.is_cell());
        let before = pool.content(cell);
        let more = pool.insert(b"1234567");
        pool.set_cell(cell, more);
        assert!(pool.view(cell).equals(b"1234567") && pool.view(cell).len() == 7);
        assert!(pool.view(before).equals(b"1") && pool.view(other).equals(b"1"));
        assert_eq!((pool.references(cell), pool.references(other)), (2, 1));
        assert!(pool.bytes() > 0 && pool.allocated() >= pool.bytes());
        pool.release(cell);
        pool.release(other);
        pool.check_invariants([cell]);
        pool.release(cell);
        let again = pool.share(ValueRef::EMPTY);
        assert!(pool.view(again).is_empty());
        pool.release(again);
        pool.check_invariants([]);
        assert_eq!(pool.bytes(), 0);
    }
}
