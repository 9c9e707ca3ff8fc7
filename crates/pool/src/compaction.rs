//! Getting whole buffers back from a pool in which free blocks are scattered.
//!
//! A buffer goes back to the system only when no value is in it. Where values go in another order than
//! they came, a few stay in every buffer, so free blocks serve values of their size and nothing else. A
//! compaction chooses the emptiest buffers of each class, as many as the others have room for; whoever
//! holds the references offers them, and what lies in the chosen buffers moves.
//!
//! # Invariants
//! - K4. Of a *draining* buffer no block is taken, so it is in no list. `draining_bytes` are its free
//!   blocks, which do not count as spare.
//! - K5. A value moves only if the reference that is offered is its only one.
//!
//! # Cost
//! Beginning and ending: a look at every buffer. An offer of a value that stays: a look at the table of
//! buffers for each of its blocks.

use crate::blocks::{Blocks, Growth, NONE};
use crate::classes::{BLOCK_BYTES, CLASSES};
use crate::pool::Pool;
use crate::reference::ValueRef;
use alloc::vec::Vec;

impl Blocks {
    /// Chooses the buffers to drain; whether there are any.
    fn begin_draining(&mut self) -> bool {
        let mut by_class: [Vec<u32>; CLASSES] = [const { Vec::new() }; CLASSES];
        for (number, buffer) in self.buffers.iter().enumerate() {
            if buffer.blocks > 0 {
                by_class[buffer.class].push(number as u32);
            }
        }
        let mut chosen = false;
        for mut numbers in by_class {
            let buffers = &self.buffers;
            let live: u32 = numbers.iter().map(|&number| buffers[number as usize].live).sum();
            // The fullest stay, until there is room for all that is live; the rest is drained.
            numbers.sort_unstable_by_key(|&number| {
                let buffer = &buffers[number as usize];
                (u64::from(buffer.blocks - buffer.live) << 32) / u64::from(buffer.blocks)
            });
            let mut room = 0;
            for number in numbers {
                let buffer = &self.buffers[number as usize];
                if room < live {
                    room += buffer.blocks;
                } else if buffer.live < buffer.blocks {
                    self.drain(number);
                    chosen = true;
                }
            }
        }
        chosen
    }

    fn drain(&mut self, number: u32) {
        let buffer = &mut self.buffers[number as usize];
        buffer.is_draining = true;
        let free = (buffer.blocks - buffer.live) as usize;
        self.draining_bytes += free * BLOCK_BYTES[buffer.class] as usize;
        self.draining += 1;
        // A full one is in no list (K2).
        if free > 0 {
            self.unlink(number);
        }
    }

    /// Drains all buffers; whether there are any.
    fn drain_all(&mut self) -> bool {
        for number in 0..self.buffers.len() {
            if self.buffers[number].blocks > 0 {
                self.drain(number as u32);
            }
        }
        self.draining_all = self.draining > 0;
        self.draining_all
    }

    /// Gives the buffers that were not emptied back to their classes.
    fn end_draining(&mut self) {
        for number in 0..self.buffers.len() as u32 {
            let buffer = &mut self.buffers[number as usize];
            if core::mem::take(&mut buffer.is_draining) && buffer.live < buffer.blocks {
                self.link(number);
            }
        }
        (self.draining, self.draining_bytes, self.draining_all) = (0, 0, false);
    }

    #[inline]
    fn is_draining(&self, address: u32) -> bool {
        self.buffers[(address >> 16) as usize].is_draining
    }

    /// Whether a block of the class can be had without taking more from the system.
    fn has_block(&self, class: usize) -> bool {
        self.draining_all || self.with_room[class].first != NONE || !self.idle.is_empty()
    }
}

impl Pool {
    /// Begins to empty the buffers that hardly hold anything, into free blocks of the same sizes
    /// elsewhere; whether there are any. To be followed by [`Pool::moved`] for references
    /// that are out, and by [`Pool::end_compaction`], after which [`Pool::shrink`] returns what
    /// became empty.
    ///
    /// ```
    /// let mut pool = headwater_pool::Pool::new();
    /// let mut values: Vec<_> = (0..10_000u32).map(|at| pool.insert(&[at as u8; 300])).collect();
    /// // Nine in ten go, and leave each buffer with some.
    /// let mut at = 0;
    /// values.retain(|&value| {
    ///     at += 1;
    ///     let stays = at % 10 == 0;
    ///     if !stays {
    ///         pool.release(value);
    ///     }
    ///     stays
    /// });
    /// assert_eq!(pool.shrink(0), 0);
    /// assert!(pool.begin_compaction());
    /// for value in &mut values {
    ///     *value = pool.moved(*value).unwrap_or(*value);
    /// }
    /// pool.end_compaction();
    /// assert!(pool.shrink(0) > 2_000_000);
    /// ```
    pub fn begin_compaction(&mut self) -> bool {
        self.end_compaction();
        self.blocks.begin_draining()
    }

    /// As [`Pool::begin_compaction`], but every value is to move: nothing is gained by it, and holders of
    /// references that rely on addresses are found by it.
    pub fn begin_moving_all(&mut self) -> bool {
        self.end_compaction();
        self.blocks.drain_all()
    }

    /// Whether buffers are being emptied.
    #[must_use]
    pub fn is_compacting(&self) -> bool {
        self.blocks.draining > 0
    }

    /// Ends a compaction, as far as it has come.
    pub fn end_compaction(&mut self) {
        if self.blocks.draining > 0 {
            self.blocks.end_draining();
        }
    }

    /// Moves a value that lies in a buffer which is being emptied, if this is the only reference to
    /// it: the reference that takes its place. `None` where the value stays.
    #[inline]
    pub fn moved(&mut self, value: ValueRef) -> Option<ValueRef> {
        if value.is_inline() || !value.is_chained() && !self.blocks.is_draining(value.address()) {
            return None;
        }
        self.moved_blocks(value)
    }

    fn moved_blocks(&mut self, value: ValueRef) -> Option<ValueRef> {
        let (mut address, mut drains) = (value.address(), false);
        loop {
            let metadata = self.blocks.metadata(address);
            if metadata.references > 1 {
                return None;
            }
            drains |= self.blocks.is_draining(address);
            if metadata.previous == NONE {
                break;
            }
            address = metadata.previous;
        }
        if !drains {
            return None;
        }
        let (mut last, mut successor, mut address) = (value.address(), NONE, value.address());
        let mut moved = false;
        while address != NONE {
            let previous = self.blocks.metadata(address).previous;
            if let Some(new) = self.moved_block(address) {
                moved = true;
                address = new;
                if successor == NONE {
                    last = new;
                } else {
                    self.change(successor, |metadata| metadata.previous = new);
                }
            }
            (successor, address) = (address, previous);
        }
        moved.then(|| ValueRef::in_blocks(last, value.len(), value.is_chained()))
    }

    /// Moves a block of a value with one reference, if it is in a buffer that is being emptied and there is room:
    /// the block that takes its place. Long values move a block at a time, so that nothing
    /// is taken for them beside what there is.
    fn moved_block(&mut self, address: u32) -> Option<u32> {
        let class = self.blocks.class(address);
        if !self.blocks.is_draining(address) || !self.blocks.has_block(class) {
            return None;
        }
        let metadata = self.blocks.metadata(address);
        let before = if metadata.previous == NONE { 0 } else { self.blocks.end(metadata.previous) };
        let len = self.blocks.end(address) - before;
        let new = self.blocks.take(class, Growth::Within)?;
        if self.blocks.block_bytes(new) < len {
            self.blocks.give_back(new);
            return None;
        }
        // SAFETY: the block is live until it is given back below, and not written: `new` is another.
        let bytes = unsafe { self.blocks.lasting(address, 0, len) };
        self.blocks.write(new, 0, bytes);
        self.blocks.set_metadata(new, metadata);
        self.blocks.give_back(address);
        Some(new)
    }
}
