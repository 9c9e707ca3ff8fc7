//! Blocks in buffers: taken one by one, of a wanted size, by 32-bit addresses.
//!
//! A buffer holds blocks of one class, and in front of them an array with the metadata of each.
//! The address of a block is the number of its buffer (16 bits) and its number there (16 bits); one
//! table leads from a buffer to its memory. Buffers of a class that have a free block form a
//! list. A buffer whose last block becomes free belongs to no class any more: it is *idle*, takes
//! the next class that needs one, and can be returned to the system.
//!
//! Buffers grow with what their class holds, from 16 KiB up to the size that was set: a pool stays small,
//! although every class in use has a buffer of its own.
//!
//! # Invariants
//! - K1. A block is free, or counted by one or more references. Blocks from `fresh` on are free and were
//!   never used since the buffer took its class, so their memory may never have been touched; the
//!   other free ones are chained through `previous`.
//! - K2. A buffer is in its class's list if and only if it has a free block, and is not draining.
//! - K3. `allocated` is the sum of all buffers' bytes. It exceeds the limit only by what was asked
//!   for with [`Growth::Beyond`], or where the limit was lowered.
//!
//! K4 and K5, on emptying buffers, are in `compaction.rs`.
//!
//! # Cost
//! Taking and giving back touches one entry of metadata and the state of one buffer: O(1). Only
//! where the limit is reached, other classes are searched for room: O(classes).

use crate::buffers::Buffers;
use crate::classes::{BLOCK_BYTES, CLASSES, METADATA_BYTES};
use crate::value::FOLLOWED;
use alloc::alloc::handle_alloc_error;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::ptr::NonNull;

/// No block; no buffer; no number.
pub(crate) const NONE: u32 = u32::MAX;

pub(crate) const BUFFER_BYTES_MAX: usize = 2 << 20;
pub(crate) const BUFFER_BYTES_MIN: usize = 16 << 10;
/// What the limit must leave room for to have buffers of less than [`BUFFER_BYTES_MAX`].
const BUFFERS_UNDER_LIMIT: usize = 64;
/// The part of what a class has that its next buffer adds.
const CLASS_SHARE: usize = 8;
/// How many blocks a buffer has at least, if the limit allows.
const BLOCKS_MIN: usize = 16;
/// A pool of many buffers takes none that is smaller than this part of it, so that numbers suffice.
const LEAST_SHARE: usize = 16 << 10;
/// How many idle buffers are looked at for one of a fitting size.
const IDLE_LOOKS: usize = 8;
const BUFFER_ALIGN: usize = 4096;
const BLOCKS_MAX: usize = 0xffff;
const BUFFERS_MAX: usize = 0xffff;

/// What is known of a block, outside it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Metadata {
    /// The block before it in its value, or [`NONE`]; the next free one, if it is free.
    pub(crate) previous: u32,
    /// References to it: of values that end here, and of blocks that follow.
    pub(crate) references: u32,
    /// Length of the value up to the last byte that was written here, and in the highest bit
    /// whether a block follows or followed.
    pub(crate) end: u32,
}

const _: () = assert!(size_of::<Metadata>() == METADATA_BYTES);

/// Whether more memory may be taken than the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    Within,
    Beyond,
}

/// Where the blocks of a buffer are: all that reading needs.
#[derive(Clone, Copy)]
struct Place {
    blocks: *mut u8,
    metadata: *mut Metadata,
    block_bytes: u32,
}

const NOWHERE: Place =
    Place { blocks: core::ptr::null_mut(), metadata: core::ptr::null_mut(), block_bytes: 0 };

#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    /// `None`: the number is vacant.
    start: Option<NonNull<u8>>,
    pub(crate) bytes: usize,
    pub(crate) class: usize,
    pub(crate) blocks: u32,
    pub(crate) fresh: u32,
    pub(crate) free: u32,
    pub(crate) live: u32,
    pub(crate) next: u32,
    pub(crate) before: u32,
    /// K4.
    pub(crate) is_draining: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct List {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// All blocks of a pool.
pub(crate) struct Blocks {
    places: Vec<Place>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) with_room: [List; CLASSES],
    pub(crate) idle: Vec<u32>,
    vacant: Vec<u32>,
    source: Box<dyn Buffers>,
    pub(crate) limit: usize,
    buffer_bytes: usize,
    pub(crate) allocated: usize,
    pub(crate) idle_bytes: usize,
    /// The least that `idle_bytes` was since [`Blocks::trim`].
    idle_bytes_least: usize,
    /// Bytes of the blocks of buffers that have a class.
    pub(crate) held_bytes: usize,
    /// The same, by class.
    class_bytes: [usize; CLASSES],
    pub(crate) live_blocks: usize,
    pub(crate) live_bytes: usize,
    /// Buffers that are being emptied, and those that have been since.
    pub(crate) draining: usize,
    /// All buffers were to be emptied, so what moves takes memory from the system.
    pub(crate) draining_all: bool,
    /// Bytes of free blocks in those that are not empty.
    pub(crate) draining_bytes: usize,
}

// SAFETY: the pointers lead to buffers that only this value uses, and `Buffers` is `Send`. It is
// not `Sync`: counts are changed behind shared references (`Blocks::count`).
unsafe impl Send for Blocks {}

fn split(address: u32) -> (usize, usize) {
    ((address >> 16) as usize, (address & 0xffff) as usize)
}

fn layout(bytes: usize) -> Layout {
    // Aligned to themselves, whole buffers of 2 MiB can be huge pages.
    let align = if bytes == BUFFER_BYTES_MAX { BUFFER_BYTES_MAX } else { BUFFER_ALIGN };
    Layout::from_size_align(bytes, align).expect("the sizes of buffers are layouts")
}

impl Blocks {
    pub(crate) fn new(source: Box<dyn Buffers>) -> Self {
        Self {
            places: Vec::new(),
            buffers: Vec::new(),
            with_room: [List { first: NONE, last: NONE }; CLASSES],
            idle: Vec::new(),
            vacant: Vec::new(),
            source,
            limit: usize::MAX,
            buffer_bytes: BUFFER_BYTES_MAX,
            allocated: 0,
            idle_bytes: 0,
            idle_bytes_least: 0,
            held_bytes: 0,
            class_bytes: [0; CLASSES],
            live_blocks: 0,
            live_bytes: 0,
            draining: 0,
            draining_all: false,
            draining_bytes: 0,
        }
    }

    /// Sets the limit; buffers are as large as leaves at least 64 of them under it.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        let share = 1 << (limit / BUFFERS_UNDER_LIMIT).max(1).ilog2();
        self.buffer_bytes = share.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
    }

    /// Bytes of the tables beside the buffers.
    pub(crate) fn table_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
            + self.buffers.capacity() * size_of::<Buffer>()
            + (self.idle.capacity() + self.vacant.capacity()) * size_of::<u32>()
    }

    /// Bytes that can be stored at most before the limit is reached.
    pub(crate) fn available(&self) -> usize {
        let growth = self.limit.saturating_sub(self.allocated + self.table_bytes());
        let growth = growth - growth % BUFFER_BYTES_MIN;
        self.spare().saturating_add(growth)
    }

    /// Bytes of blocks that can be taken without taking more from the system.
    #[inline]
    pub(crate) fn spare(&self) -> usize {
        self.held_bytes - self.live_bytes - self.draining_bytes + self.idle_bytes
    }

    /// Takes a block: of the wanted class if there is room for one, or else of any class.
    #[inline]
    pub(crate) fn take(&mut self, class: usize, growth: Growth) -> Option<u32> {
        let buffer = self.with_room[class].first;
        if buffer == NONE {
            self.take_elsewhere(class, growth)
        } else {
            Some(self.take_from(buffer))
        }
    }

    #[inline]
    fn take_from(&mut self, number: u32) -> u32 {
        let buffer = &mut self.buffers[number as usize];
        let place = &self.places[number as usize];
        let index = if buffer.free == NONE {
            buffer.fresh += 1;
            buffer.fresh - 1
        } else {
            let index = buffer.free;
            // SAFETY: K1: the free chain names blocks of this buffer, whose metadata was written.
            buffer.free = unsafe { (*place.metadata.add(index as usize)).previous };
            index
        };
        debug_assert!(index < buffer.blocks);
        buffer.live += 1;
        self.live_blocks += 1;
        self.live_bytes += place.block_bytes as usize;
        if buffer.live == buffer.blocks {
            self.unlink(number);
        }
        number << 16 | index
    }

    #[cold]
    fn take_elsewhere(&mut self, class: usize, growth: Growth) -> Option<u32> {
        if let Some(at) = self.fitting_idle(class) {
            return Some(self.take_idle(at, class));
        }
        if let Some(number) = self.grow(class, Growth::Within) {
            return Some(self.take_from(number));
        }
        if let Some(at) = self.idle.len().checked_sub(1) {
            return Some(self.take_idle(at, class));
        }
        let larger = (class + 1..CLASSES).chain((0..class).rev());
        let other = larger.map(|class| self.with_room[class].first).find(|&number| number != NONE);
        if let Some(number) = other {
            return Some(self.take_from(number));
        }
        if growth == Growth::Within {
            return None;
        }
        let number = self.grow(class, Growth::Beyond);
        number.map(|number| self.take_from(number))
    }

    /// Where an idle buffer is in its list that has room for some blocks of a class.
    fn fitting_idle(&self, class: usize) -> Option<usize> {
        let wanted = BLOCKS_MIN / 2 * BLOCK_BYTES[class] as usize;
        let fits = |&at: &usize| self.buffers[self.idle[at] as usize].bytes >= wanted;
        (0..self.idle.len()).rev().take(IDLE_LOOKS).find(fits)
    }

    fn take_idle(&mut self, at: usize, class: usize) -> u32 {
        let number = self.idle.swap_remove(at);
        self.idle_bytes -= self.buffers[number as usize].bytes;
        self.idle_bytes_least = self.idle_bytes_least.min(self.idle_bytes);
        self.assign(number, class);
        self.take_from(number)
    }

    /// A new buffer for `class`.
    fn grow(&mut self, class: usize, growth: Growth) -> Option<u32> {
        let block_bytes = BLOCK_BYTES[class] as usize;
        let least = (self.allocated / LEAST_SHARE).next_power_of_two();
        let least = least.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        let wanted = (self.class_bytes[class] / CLASS_SHARE).max(block_bytes * BLOCKS_MIN);
        let mut bytes = wanted.next_power_of_two().clamp(least, self.buffer_bytes.max(least));
        if growth == Growth::Within {
            let room = self.limit.saturating_sub(self.allocated + self.table_bytes());
            if room < least {
                return None;
            }
            bytes = bytes.min(1 << room.ilog2());
        }
        let number = match self.vacant.pop() {
            Some(number) => number,
            None if self.buffers.len() == BUFFERS_MAX => return None,
            None => {
                self.places.push(NOWHERE);
                self.buffers.push(VACANT);
                self.buffers.len() as u32 - 1
            }
        };
        let Some(start) = self.source.allocate(layout(bytes)) else {
            self.vacant.push(number);
            if growth == Growth::Beyond {
                handle_alloc_error(layout(bytes));
            }
            return None;
        };
        self.allocated += bytes;
        self.buffers[number as usize] = Buffer { start: Some(start), bytes, ..VACANT };
        self.assign(number, class);
        Some(number)
    }

    /// Gives a buffer without blocks a class, and puts it first in the class's list.
    fn assign(&mut self, number: u32, class: usize) {
        let buffer = &mut self.buffers[number as usize];
        let block_bytes = BLOCK_BYTES[class] as usize;
        let blocks = (buffer.bytes / (block_bytes + METADATA_BYTES)).min(BLOCKS_MAX);
        let start = buffer.start.expect("only buffers with memory take a class").as_ptr();
        // SAFETY: the blocks fill the end of the buffer, and the metadata before them fits, by
        // the division; both are aligned, as the buffer's start, its size and the block's are
        // multiples of 8.
        let place = unsafe { start.add(buffer.bytes - blocks * block_bytes) };
        self.places[number as usize] = Place {
            blocks: place,
            metadata: start.cast::<Metadata>(),
            block_bytes: block_bytes as u32,
        };
        *buffer = Buffer { class, blocks: blocks as u32, fresh: 0, free: NONE, ..*buffer };
        self.held_bytes += blocks * block_bytes;
        self.class_bytes[class] += blocks * block_bytes;
        self.link(number);
    }

    /// Frees a block.
    #[inline]
    pub(crate) fn give_back(&mut self, address: u32) {
        let (number, index) = split(address);
        let buffer = &mut self.buffers[number];
        let place = &self.places[number];
        debug_assert!(index < buffer.fresh as usize && buffer.live > 0);
        // SAFETY: the block is one of this buffer's (K1), so its metadata is within it.
        unsafe {
            *place.metadata.add(index) = Metadata { previous: buffer.free, references: 0, end: 0 }
        };
        buffer.free = index as u32;
        buffer.live -= 1;
        self.live_blocks -= 1;
        self.live_bytes -= place.block_bytes as usize;
        if buffer.is_draining {
            self.draining_bytes += place.block_bytes as usize;
        }
        if buffer.live == 0 || buffer.live + 1 == buffer.blocks {
            self.changed_list(number as u32);
        }
    }

    /// After a block was freed: the buffer has room again, or nothing else.
    #[cold]
    fn changed_list(&mut self, number: u32) {
        let buffer = self.buffers[number as usize];
        let was_full = buffer.live + 1 == buffer.blocks;
        if buffer.is_draining {
            if buffer.live > 0 {
                return;
            }
            // All its blocks are free, with the one that was freed just now.
            self.draining_bytes -= buffer.blocks as usize * BLOCK_BYTES[buffer.class] as usize;
        } else if buffer.live > 0 {
            self.link(number);
            return;
        } else if !was_full {
            self.unlink(number);
        }
        let bytes = buffer.blocks as usize * BLOCK_BYTES[buffer.class] as usize;
        self.held_bytes -= bytes;
        self.class_bytes[buffer.class] -= bytes;
        self.idle_bytes += buffer.bytes;
        let cleared = Buffer { start: buffer.start, bytes: buffer.bytes, ..VACANT };
        self.buffers[number as usize] = cleared;
        self.places[number as usize] = NOWHERE;
        self.idle.push(number);
    }

    /// Returns idle buffers to the system, but for `keep` bytes of them; the bytes returned.
    pub(crate) fn shrink(&mut self, keep: usize) -> usize {
        let before = self.allocated;
        while self.idle_bytes > keep {
            let number = self.idle.pop().expect("idle bytes are those of idle buffers");
            let Buffer { start, bytes, .. } = self.buffers[number as usize];
            let start = start.expect("an idle buffer has memory");
            // SAFETY: the memory came from `allocate` with this layout; no block in it is live,
            // and the number is vacant from now on.
            unsafe { self.source.release(start, layout(bytes)) };
            self.buffers[number as usize] = VACANT;
            self.idle_bytes -= bytes;
            self.allocated -= bytes;
            self.vacant.push(number);
        }
        before - self.allocated
    }

    /// Returns up to about `most` bytes of the buffers that were to spare ever since the last call.
    pub(crate) fn trim(&mut self, most: usize) -> usize {
        let spare = self.idle_bytes_least.min(self.idle_bytes).min(most);
        let returned = self.shrink(self.idle_bytes - spare);
        self.idle_bytes_least = self.idle_bytes;
        returned
    }

    /// Puts a buffer with room into its class's list: before the others, so that the block that
    /// was freed last, which the processor still has in its cache, is taken next.
    pub(crate) fn link(&mut self, number: u32) {
        let class = self.buffers[number as usize].class;
        let first = core::mem::replace(&mut self.with_room[class].first, number);
        let buffer = &mut self.buffers[number as usize];
        (buffer.before, buffer.next) = (NONE, first);
        match first {
            NONE => self.with_room[class].last = number,
            first => self.buffers[first as usize].before = number,
        }
    }

    pub(crate) fn unlink(&mut self, number: u32) {
        let Buffer { class, before, next, .. } = self.buffers[number as usize];
        match before {
            NONE => self.with_room[class].first = next,
            before => self.buffers[before as usize].next = next,
        }
        match next {
            NONE => self.with_room[class].last = before,
            next => self.buffers[next as usize].before = before,
        }
    }

    /// Bytes of the block's class.
    #[inline]
    pub(crate) fn block_bytes(&self, address: u32) -> usize {
        self.places[split(address).0].block_bytes as usize
    }

    /// The block's class.
    pub(crate) fn class(&self, address: u32) -> usize {
        self.buffers[split(address).0].class
    }

    /// Where a block starts.
    #[inline]
    pub(crate) fn start(&self, address: u32) -> *mut u8 {
        let (number, index) = split(address);
        let place = &self.places[number];
        place.blocks.wrapping_add(index * place.block_bytes as usize)
    }

    /// Asks the processor for a block's first bytes, if there is such a block.
    #[inline]
    pub(crate) fn prefetch(&self, address: u32) {
        let (number, index) = split(address);
        if let Some(place) = self.places.get(number) {
            let offset = index.wrapping_mul(place.block_bytes as usize);
            crate::prefetch_address(place.blocks.wrapping_add(offset).cast());
        }
    }

    /// Asks the processor for what is known of a block, if there is such a block.
    #[inline]
    pub(crate) fn prefetch_metadata(&self, address: u32) {
        let (number, index) = split(address);
        if let Some(place) = self.places.get(number) {
            crate::prefetch_address(place.metadata.wrapping_add(index).cast());
        }
    }

    /// What is known of a live block.
    #[inline]
    pub(crate) fn metadata(&self, address: u32) -> Metadata {
        // SAFETY: a live block's metadata was written when it was taken.
        unsafe { *self.metadata_place(address) }
    }

    /// Sets what is known of a block that was taken.
    #[inline]
    pub(crate) fn set_metadata(&mut self, address: u32, metadata: Metadata) {
        // SAFETY: the block is one of this buffer's, so its metadata is within it.
        unsafe { *self.metadata_place(address) = metadata };
    }

    /// Counts one more reference to a live block.
    #[inline]
    pub(crate) fn count(&self, address: u32) {
        // SAFETY: a live block's metadata was written when it was taken; nobody holds a reference
        // to metadata, and the pool is not shared between threads, so that changing it behind
        // `&self` races with nothing.
        unsafe {
            let metadata = &raw mut (*self.metadata_place(address)).references;
            *metadata = (*metadata).checked_add(1).expect("fewer than 2^32 references");
        }
    }

    /// Length of the value up to the last byte of a live block.
    #[inline]
    pub(crate) fn end(&self, address: u32) -> usize {
        (self.metadata(address).end & !FOLLOWED) as usize
    }

    /// `len` bytes of a live block, `skip` bytes behind its start, that were written.
    #[inline]
    pub(crate) fn bytes(&self, address: u32, skip: usize, len: usize) -> &[u8] {
        debug_assert!(skip + len <= self.block_bytes(address));
        // SAFETY: the bytes are within the block and were written (P2). They are neither freed
        // nor written again while the pool is borrowed, as both take it mutably.
        unsafe { core::slice::from_raw_parts(self.start(address).add(skip), len) }
    }

    /// Writes `bytes` into a block that was taken, `skip` bytes behind its start.
    #[inline]
    pub(crate) fn write(&mut self, address: u32, skip: usize, bytes: &[u8]) {
        debug_assert!(skip + bytes.len() <= self.block_bytes(address));
        // SAFETY: the bytes are within the block. `bytes` may be those of another block, but not
        // of this place: `&mut self` ends all borrows of it but those of `Blocks::lasting`.
        unsafe { self.start(address).add(skip).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// As [`Blocks::bytes`], without a borrow of the pool, to copy from one block to another.
    ///
    /// # Safety
    /// The block stays live, and these bytes of it unwritten, as long as they are used.
    pub(crate) unsafe fn lasting<'a>(&self, address: u32, skip: usize, len: usize) -> &'a [u8] {
        // SAFETY: as in `bytes`, with the caller's promise instead of the borrow.
        unsafe { core::slice::from_raw_parts(self.start(address).add(skip), len) }
    }

    #[inline]
    fn metadata_place(&self, address: u32) -> *mut Metadata {
        let (number, index) = split(address);
        self.places[number].metadata.wrapping_add(index)
    }
}

const VACANT: Buffer = Buffer {
    start: None,
    bytes: 0,
    class: 0,
    blocks: 0,
    fresh: 0,
    free: NONE,
    live: 0,
    next: NONE,
    before: NONE,
    is_draining: false,
};

impl Drop for Blocks {
    fn drop(&mut self) {
        for buffer in &self.buffers {
            if let Some(start) = buffer.start {
                // SAFETY: the memory came from `allocate` with this layout, and nothing that
                // borrows from the pool outlives it.
                unsafe { self.source.release(start, layout(buffer.bytes)) };
            }
        }
    }
}
