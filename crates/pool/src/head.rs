//! The head of a value: cut off, or put before it.
//!
//! The chain of a value leads from its last block to its first, and offsets count from the head:
//! so both cost a look at the metadata of every block that stays.

use crate::blocks::{Growth, Metadata, NONE};
use crate::classes::BLOCK_BYTES_MAX;
use crate::pool::Pool;
use crate::reference::{VALUE_BYTES_MAX, ValueRef};
use crate::value::FOLLOWED;
use alloc::vec::Vec;

impl Pool {
    /// Frees blocks from the value's head on that lie within its first `bytes` bytes. Gives the
    /// rest, in exchange for `value`, and the number of bytes that were dropped: at most `bytes`,
    /// and less by less than a block.
    ///
    /// Costs a look at the metadata of every block that stays, as the offsets there move. What
    /// stays is copied, beyond the limit if it must be, if other references share it.
    #[must_use]
    pub fn truncate_head(&mut self, value: ValueRef, bytes: usize) -> (ValueRef, usize) {
        if bytes >= value.len() {
            self.release(value);
            return (ValueRef::EMPTY, value.len());
        }
        if value.is_inline() || !value.is_chained() {
            return (value, 0);
        }
        let (mut first, mut alone) = (value.address(), true);
        let (dropped, before) = loop {
            let Metadata { previous, references, .. } = self.blocks.metadata(first);
            alone &= references == 1;
            if previous == NONE {
                return (value, 0);
            }
            let start = self.blocks.end(previous);
            if start <= bytes {
                break (start, previous);
            }
            first = previous;
        };
        if !alone {
            let mut kept = Vec::with_capacity(value.len() - dropped);
            self.view(value).read_at(dropped, value.len()).for_each(|part| kept.extend(part));
            let rest = self.insert(&kept);
            self.release(value);
            return (rest, dropped);
        }
        self.shift(value.address(), first, 0usize.wrapping_sub(dropped));
        self.change(first, |metadata| metadata.previous = NONE);
        self.release_chain(before);
        let chained = first != value.address();
        (ValueRef::in_blocks(value.address(), value.len() - dropped, chained), dropped)
    }

    /// Adds `by` to the offsets of all blocks from `last` back to `first`.
    fn shift(&mut self, last: u32, first: u32, by: usize) {
        let mut address = last;
        loop {
            let mut metadata = self.blocks.metadata(address);
            let end = (metadata.end & !FOLLOWED).wrapping_add(by as u32);
            metadata.end = end & !FOLLOWED | metadata.end & FOLLOWED;
            self.blocks.set_metadata(address, metadata);
            if address == first {
                return;
            }
            address = metadata.previous;
        }
    }

    /// The value with `head` before it, as a reference in exchange for `value`, beyond the limit
    /// if it must be. Costs what is prepended and a look at the metadata of every block; a
    /// short value, and one that other references share, is copied.
    ///
    /// # Panics
    /// As [`Pool::insert`], for the length of both.
    #[must_use]
    pub fn prepend(&mut self, value: ValueRef, head: &[u8]) -> ValueRef {
        if head.is_empty() {
            return value;
        }
        let total = head.len() + value.len();
        assert!(total <= VALUE_BYTES_MAX, "a value has less than 1 GiB");
        if let (Some(first), true) = (self.first_if_alone(value), total > BLOCK_BYTES_MAX) {
            let front = self.insert_with(head, 0, Growth::Beyond).expect("growth is allowed");
            if !front.is_inline() {
                self.shift(value.address(), first, head.len());
                self.change(first, |metadata| metadata.previous = front.address());
                self.change(front.address(), |metadata| metadata.end |= FOLLOWED);
                return ValueRef::in_blocks(value.address(), total, true);
            }
        }
        let joined = [head, &self.view(value).to_vec()].concat();
        let joined = self.insert(&joined);
        self.release(value);
        joined
    }

    /// The first block of a value in blocks that no other reference shares.
    fn first_if_alone(&self, value: ValueRef) -> Option<u32> {
        let mut address = if value.is_inline() { None } else { Some(value.address()) };
        while let Some(at) = address {
            let Metadata { previous, references, .. } = self.blocks.metadata(at);
            if references > 1 {
                return None;
            }
            if previous == NONE {
                return address;
            }
            address = Some(previous);
        }
        None
    }
}
