//! The invariants, checked against the references that are out: for tests, and to find leaks.

use crate::blocks::{Buffer, List, NONE};
use crate::classes::BLOCK_BYTES;
use crate::pool::Pool;
use crate::reference::ValueRef;
use crate::value::FOLLOWED;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

impl Pool {
    /// Checks everything that the pool promises of itself. `held` are all references that are
    /// out, each as often as it was handed out or retained.
    ///
    /// Costs a look at every block.
    ///
    /// # Panics
    /// Something is wrong: a block is leaked, or missing, or a count is not what it should be.
    pub fn check_invariants(&self, held: impl IntoIterator<Item = ValueRef>) {
        let held: Vec<ValueRef> = held.into_iter().collect();
        self.check_cells(&held);
        let live = self.check_values(held);
        let free = self.check_buffers();
        let blocks: BTreeSet<u32> = live.keys().copied().collect();
        assert!(blocks.is_disjoint(&free), "K1: a block is live and free");
        assert_eq!(blocks.len(), self.blocks.live_blocks, "K1: blocks without a reference");
        let bytes: usize = blocks.iter().map(|&address| self.blocks.block_bytes(address)).sum();
        assert_eq!(bytes, self.blocks.live_bytes);
    }

    fn check_cells(&self, held: &[ValueRef]) {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for value in held.iter().filter(|value| value.is_cell()) {
            assert!(self.content(*value).is_inline() && !self.content(*value).is_cell(), "P4");
            *counts.entry(value.cell()).or_default() += 1;
        }
        for (&cell, &count) in &counts {
            assert_eq!(self.cells.references(cell), count, "P1: references to cell {cell}");
        }
        assert_eq!(counts.len(), self.cells.live(), "P4: cells without a reference");
    }

    /// The blocks of the values, each with its references.
    fn check_values(&self, held: impl IntoIterator<Item = ValueRef>) -> BTreeMap<u32, u32> {
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for value in held.into_iter().filter(|value| !value.is_inline()) {
            let last = self.blocks.metadata(value.address());
            assert!((last.end & !FOLLOWED) as usize >= value.len(), "P3");
            assert_eq!(last.previous != NONE, value.is_chained(), "P2");
            let before = if last.previous == NONE { 0 } else { self.blocks.end(last.previous) };
            assert!(before < value.len(), "P3: the last block has bytes of its value");
            let mut address = value.address();
            loop {
                let count = counts.entry(address).or_default();
                *count += 1;
                let previous = self.blocks.metadata(address).previous;
                if *count > 1 || previous == NONE {
                    break;
                }
                address = previous;
            }
        }
        for (&address, &count) in &counts {
            let metadata = self.blocks.metadata(address);
            assert_eq!(metadata.references, count, "P1: references to {address:#x}");
            let (mut start, end) = (0, self.blocks.end(address));
            if metadata.previous != NONE {
                start = self.blocks.end(metadata.previous);
                let before = self.blocks.metadata(metadata.previous);
                assert!(before.end & FOLLOWED != 0, "P3: a followed block may not grow");
            }
            assert!(start < end && end - start <= self.blocks.block_bytes(address), "P2");
        }
        counts
    }

    /// The free blocks that were used before.
    fn check_buffers(&self) -> BTreeSet<u32> {
        let mut free = BTreeSet::new();
        let (mut held_bytes, mut live) = (0, 0);
        for (number, buffer) in self.blocks.buffers.iter().enumerate() {
            let mut index = buffer.free;
            while index != NONE {
                assert!(index < buffer.fresh, "K1");
                let address = (number as u32) << 16 | index;
                assert!(free.insert(address), "K1: the free chain has a circle");
                assert_eq!(self.blocks.metadata(address).references, 0, "K1");
                index = self.blocks.metadata(address).previous;
            }
            if buffer.blocks > 0 {
                assert!(buffer.live > 0, "a buffer without live blocks is idle");
                held_bytes += buffer.blocks as usize * BLOCK_BYTES[buffer.class] as usize;
                live += buffer.live as usize;
            }
        }
        assert_eq!((held_bytes, live), (self.blocks.held_bytes, self.blocks.live_blocks));
        let fresh: u32 = self.blocks.buffers.iter().map(|buffer| buffer.fresh).sum();
        assert_eq!(fresh as usize, live + free.len(), "K1");
        let mut listed = BTreeSet::new();
        for (class, &List { first, last }) in self.blocks.with_room.iter().enumerate() {
            let (mut number, mut before) = (first, NONE);
            while number != NONE {
                let buffer = &self.blocks.buffers[number as usize];
                assert!(buffer.class == class && buffer.live < buffer.blocks, "K2");
                assert!(!buffer.is_draining, "K4");
                assert!(buffer.before == before && listed.insert(number), "K2");
                (number, before) = (buffer.next, number);
            }
            assert_eq!(last, before, "K2");
        }
        let with_room = self.blocks.buffers.iter().filter(|buffer| buffer.live < buffer.blocks);
        let (draining, staying): (Vec<&Buffer>, Vec<&Buffer>) =
            with_room.partition(|buffer| buffer.is_draining);
        assert_eq!(staying.len(), listed.len(), "K2");
        let drained = draining.iter().map(|buffer| {
            (buffer.blocks - buffer.live) as usize * BLOCK_BYTES[buffer.class] as usize
        });
        assert_eq!(drained.sum::<usize>(), self.blocks.draining_bytes, "K4");
        let idle =
            self.blocks.idle.iter().map(|&number| self.blocks.buffers[number as usize].bytes);
        assert_eq!(idle.sum::<usize>(), self.blocks.idle_bytes);
        let all = self.blocks.buffers.iter().map(|buffer| buffer.bytes);
        assert_eq!(all.sum::<usize>(), self.blocks.allocated, "K3");
        free
    }
}
