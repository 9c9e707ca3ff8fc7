//! Values in blocks: stored, shared, appended to, cut and given back.

use crate::blocks::{Blocks, Buffer, Growth, Metadata, NONE};
use crate::buffers::{Buffers, GlobalBuffers};
use crate::cells::{CELL_BYTES, Cells};
use crate::classes::{self, BLOCK_BYTES, BLOCK_BYTES_MAX, METADATA_BYTES};
use crate::reference::{INLINE_BYTES_MAX, VALUE_BYTES_MAX, ValueRef};
use crate::value::{FOLLOWED, Value};
use alloc::boxed::Box;
use core::fmt;

/// The pool has no room for the value within its limit. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pool is full")
    }
}

impl core::error::Error for Full {}

/// The memory of all values of one shard.
pub struct Pool {
    pub(crate) blocks: Blocks,
    pub(crate) cells: Cells,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("blocks", &self.blocks())
            .field("bytes", &self.bytes())
            .field("allocated", &self.allocated())
            .finish_non_exhaustive()
    }
}

/// What to put behind the first `end` bytes of a chain.
struct Tail<'b> {
    previous: u32,
    end: usize,
    first: &'b [u8],
    second: &'b [u8],
    /// Bytes that will probably follow.
    expected: usize,
}

impl Pool {
    /// An empty pool without a limit, with memory from the global allocator.
    #[must_use]
    pub fn new() -> Self {
        Self::with_buffers(Box::new(GlobalBuffers))
    }

    /// An empty pool that takes at most `bytes` from the system, tables included.
    #[must_use]
    pub fn with_limit(bytes: usize) -> Self {
        let mut pool = Self::new();
        pool.set_limit(bytes);
        pool
    }

    /// An empty pool with memory from `buffers`.
    #[must_use]
    pub fn with_buffers(buffers: Box<dyn Buffers>) -> Self {
        Self { blocks: Blocks::new(buffers), cells: Cells::default() }
    }

    /// Sets what the pool may take from the system, in bytes. A limit below what it has taken
    /// returns idle buffers and takes no more; values stay.
    pub fn set_limit(&mut self, bytes: usize) {
        self.blocks.set_limit(bytes);
        let above = self.allocated().saturating_sub(bytes);
        if above > 0 {
            self.blocks.shrink(self.blocks.idle_bytes.saturating_sub(above));
        }
    }

    /// What the pool may take from the system, in bytes; `usize::MAX` where no limit is set.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.blocks.limit
    }

    /// Returns memory that no value is in to the system, but for `keep` bytes; gives the bytes
    /// returned. To be called when there is time, with a reserve that saves taking it again.
    pub fn shrink(&mut self, keep: usize) -> usize {
        self.blocks.shrink(keep)
    }

    /// Returns memory to the system that was to spare ever since the last call: up to about `most`
    /// bytes, which bounds the time that it takes; gives the bytes returned. To be called now and then.
    /// Memory that values leave and come back to between two calls stays.
    pub fn trim(&mut self, most: usize) -> usize {
        self.blocks.trim(most)
    }

    /// Stores `bytes` and gives the first reference to them, beyond the limit if it must be.
    ///
    /// # Panics
    /// Aborts, as any allocation does, where the system has no memory left. Panics for more than
    /// [`VALUE_BYTES_MAX`] bytes.
    #[inline]
    #[must_use]
    pub fn insert(&mut self, bytes: &[u8]) -> ValueRef {
        self.insert_with(bytes, 0, Growth::Beyond).expect("growth beyond the limit is allowed")
    }

    /// As [`Pool::insert`], within the limit. `expected` bytes will probably be appended.
    ///
    /// # Errors
    /// There is no room within the limit.
    ///
    /// # Panics
    /// Panics for more than [`VALUE_BYTES_MAX`] bytes.
    #[inline]
    pub fn try_insert(&mut self, bytes: &[u8], expected: usize) -> Result<ValueRef, Full> {
        self.insert_with(bytes, expected, Growth::Within)
    }

    #[inline]
    pub(crate) fn insert_with(
        &mut self,
        bytes: &[u8],
        expected: usize,
        growth: Growth,
    ) -> Result<ValueRef, Full> {
        if bytes.len() <= INLINE_BYTES_MAX {
            return Ok(ValueRef::inline(bytes));
        }
        if bytes.len() <= BLOCK_BYTES_MAX && expected == 0 {
            let class = classes::class_of(bytes.len());
            let address = self.blocks.take(class, growth).ok_or(Full)?;
            if self.blocks.block_bytes(address) >= bytes.len() {
                self.blocks.write(address, 0, bytes);
                let end = bytes.len() as u32;
                self.blocks.set_metadata(address, Metadata { previous: NONE, references: 1, end });
                return Ok(ValueRef::in_blocks(address, bytes.len(), false));
            }
            self.blocks.give_back(address);
        }
        self.chain(&Tail { previous: NONE, end: 0, first: bytes, second: &[], expected }, growth)
    }

    /// Writes a tail into fresh blocks. The reference to `previous` is taken over, unless there
    /// is no room: then nothing has changed.
    fn chain(&mut self, tail: &Tail<'_>, growth: Growth) -> Result<ValueRef, Full> {
        let total = tail.first.len() + tail.second.len();
        assert!(total <= VALUE_BYTES_MAX - tail.end, "a value has less than 1 GiB");
        if growth == Growth::Within && total > self.blocks.available() {
            return Err(Full);
        }
        let whole = tail.end + total <= BLOCK_BYTES_MAX;
        let (mut last, mut written) = (tail.previous, 0);
        while written < total {
            let left = total - written;
            let room = left.saturating_add(tail.expected);
            let class = classes::next_class(room, whole || tail.expected > 0);
            let Some(address) = self.blocks.take(class, growth) else {
                while last != tail.previous {
                    let before = self.blocks.metadata(last).previous;
                    self.blocks.give_back(last);
                    last = before;
                }
                return Err(Full);
            };
            let len = left.min(self.blocks.block_bytes(address));
            let from_first = tail.first.len().saturating_sub(written).min(len);
            if from_first > 0 {
                self.blocks.write(address, 0, &tail.first[written..written + from_first]);
            }
            if len > from_first {
                let at = written + from_first - tail.first.len();
                let bytes = &tail.second[at..at + len - from_first];
                self.blocks.write(address, from_first, bytes);
            }
            written += len;
            let followed = if written < total { FOLLOWED } else { 0 };
            let end = (tail.end + written) as u32 | followed;
            self.blocks.set_metadata(address, Metadata { previous: last, references: 1, end });
            last = address;
        }
        if tail.previous != NONE {
            self.change(tail.previous, |metadata| metadata.end |= FOLLOWED);
        }
        let chained = self.blocks.metadata(last).previous != NONE;
        Ok(ValueRef::in_blocks(last, tail.end + total, chained))
    }

    pub(crate) fn change(&mut self, address: u32, how: impl FnOnce(&mut Metadata)) {
        let mut metadata = self.blocks.metadata(address);
        how(&mut metadata);
        self.blocks.set_metadata(address, metadata);
    }

    /// Counts another reference to the value.
    #[inline]
    pub fn retain(&self, value: ValueRef) {
        if !value.is_inline() {
            self.blocks.count(value.address());
        } else if value.is_cell() {
            self.cells.retain(value.cell());
        }
    }

    /// Gives a reference back; the last one frees the value's blocks, as far as no other value
    /// shares them.
    #[inline]
    pub fn release(&mut self, value: ValueRef) {
        if !value.is_inline() {
            self.release_chain(value.address());
        } else if value.is_cell() {
            self.cells.release(value.cell());
        }
    }

    /// Gives back a reference to the chain that ends in the block at `address`.
    #[inline]
    pub(crate) fn release_chain(&mut self, mut address: u32) {
        loop {
            let metadata = self.blocks.metadata(address);
            debug_assert!(metadata.references > 0, "P1: released once too often");
            if metadata.references > 1 {
                let references = metadata.references - 1;
                self.blocks.set_metadata(address, Metadata { references, ..metadata });
                return;
            }
            self.blocks.give_back(address);
            if metadata.previous == NONE {
                return;
            }
            address = metadata.previous;
        }
    }

    /// The value's bytes.
    #[inline]
    #[must_use]
    pub fn view(&self, value: ValueRef) -> Value<'_> {
        if value.is_inline() {
            Value::inline(self.content(value))
        } else if value.is_chained() {
            Value::chain(&self.blocks, value)
        } else {
            Value::of(self.blocks.bytes(value.address(), 0, value.len()))
        }
    }

    /// Fetches the value's first bytes (of a long value, those of its last block) into the
    /// processor's cache, and where its other blocks are. A hint, which may be given for any word.
    #[inline]
    pub fn prefetch(&self, value: ValueRef) {
        if !value.is_inline() {
            self.blocks.prefetch(value.address());
            if value.len() > BLOCK_BYTES_MAX {
                self.blocks.prefetch_metadata(value.address());
            }
        }
    }

    /// As [`Pool::prefetch`], with what retaining and releasing touches.
    #[inline]
    pub fn prefetch_to_change(&self, value: ValueRef) {
        if !value.is_inline() {
            self.blocks.prefetch(value.address());
            self.blocks.prefetch_metadata(value.address());
        }
    }

    /// The value with `tail` behind it, as a reference in exchange for `value`, beyond the limit
    /// if it must be. See [`Pool::try_append`].
    ///
    /// # Panics
    /// As [`Pool::insert`], for the length of both.
    #[must_use]
    pub fn append(&mut self, value: ValueRef, tail: &[u8], expected: usize) -> ValueRef {
        let longer = self.append_with(value, tail, expected, Growth::Beyond);
        longer.expect("growth beyond the limit is allowed")
    }

    /// The value with `tail` behind it, as a reference in exchange for `value`; `expected` bytes
    /// more will probably follow. Other references to the value keep their length, and share
    /// the blocks. Costs what is appended, and a copy of less than one block at most.
    ///
    /// # Errors
    /// There is no room within the limit; `value` is as it was.
    ///
    /// # Panics
    /// As [`Pool::insert`], for the length of both.
    pub fn try_append(
        &mut self,
        value: ValueRef,
        tail: &[u8],
        expected: usize,
    ) -> Result<ValueRef, Full> {
        self.append_with(value, tail, expected, Growth::Within)
    }

    fn append_with(
        &mut self,
        value: ValueRef,
        tail: &[u8],
        expected: usize,
        growth: Growth,
    ) -> Result<ValueRef, Full> {
        let total = value.len() + tail.len();
        assert!(total <= VALUE_BYTES_MAX, "a value has less than 1 GiB");
        if tail.is_empty() {
            return Ok(value);
        }
        if value.is_inline() {
            let (bytes, len) = (value.inline_bytes(), value.len());
            if total <= INLINE_BYTES_MAX {
                let mut joined = [0; INLINE_BYTES_MAX];
                joined[..len].copy_from_slice(&bytes[1..=len]);
                joined[len..total].copy_from_slice(tail);
                return Ok(ValueRef::inline(&joined[..total]));
            }
            let first = &bytes[1..=len];
            return self
                .chain(&Tail { previous: NONE, end: 0, first, second: tail, expected }, growth);
        }
        let address = value.address();
        let metadata = self.blocks.metadata(address);
        let previous = if value.is_chained() { metadata.previous } else { NONE };
        let start = if previous == NONE { 0 } else { self.blocks.end(previous) };
        let used = value.len() - start;
        let alone = metadata.references == 1;
        let at_end = (metadata.end & !FOLLOWED) as usize == value.len();
        // Nobody else's bytes are behind ours, and no block follows that counts ours (P3).
        let in_place = alone || (at_end && metadata.end & FOLLOWED == 0);
        let block_bytes = self.blocks.block_bytes(address);
        if in_place && tail.len() <= block_bytes - used {
            self.blocks.write(address, used, tail);
            self.change(address, |metadata| metadata.end = total as u32);
            return Ok(ValueRef::in_blocks(address, total, value.is_chained()));
        }
        if (in_place || at_end) && block_bytes == BLOCK_BYTES_MAX {
            // A full-sized block stays, and others follow.
            let expected = expected.max(total / 8);
            let here = if in_place { tail.len().min(block_bytes - used) } else { 0 };
            let (first, second) = (&tail[here..], &[][..]);
            let end = value.len() + here;
            let longer =
                self.chain(&Tail { previous: address, end, first, second, expected }, growth)?;
            if in_place {
                self.blocks.write(address, used, &tail[..here]);
                self.change(address, |metadata| metadata.end = end as u32 | FOLLOWED);
            }
            return Ok(longer);
        }
        // The last block's bytes move to a larger block, with the tail.
        // SAFETY: the block is live until it is released below, and nothing writes to it.
        let first = unsafe { self.blocks.lasting(address, 0, used) };
        // Who appends once will do so again: an eighth more room, so that moving is rare.
        let expected = expected.max(total / 8);
        let moved = Tail { previous, end: start, first, second: tail, expected };
        let longer = self.chain(&moved, growth)?;
        if previous != NONE {
            self.blocks.count(previous);
        }
        self.release_chain(address);
        Ok(longer)
    }

    /// Puts `bytes` in the place of the value, as a reference in exchange for it, beyond the
    /// limit if it must be. Blocks that nobody shares are written again if they fit.
    ///
    /// # Panics
    /// As [`Pool::insert`].
    #[must_use]
    pub fn replace(&mut self, value: ValueRef, bytes: &[u8]) -> ValueRef {
        self.replace_with(value, bytes, Growth::Beyond).expect("growth beyond the limit is allowed")
    }

    /// As [`Pool::replace`], within the limit.
    ///
    /// # Errors
    /// There is no room within the limit for both; `value` is as it was.
    ///
    /// # Panics
    /// As [`Pool::insert`].
    pub fn try_replace(&mut self, value: ValueRef, bytes: &[u8]) -> Result<ValueRef, Full> {
        self.replace_with(value, bytes, Growth::Within)
    }

    fn replace_with(
        &mut self,
        value: ValueRef,
        bytes: &[u8],
        growth: Growth,
    ) -> Result<ValueRef, Full> {
        let fits = !value.is_inline()
            && bytes.len() > INLINE_BYTES_MAX
            && bytes.len() <= VALUE_BYTES_MAX
            && classes::footprint(bytes.len()) == classes::footprint(value.len());
        if fits && self.rewrite(value, bytes) {
            return Ok(ValueRef::in_blocks(value.address(), bytes.len(), value.is_chained()));
        }
        let new = self.insert_with(bytes, 0, growth)?;
        self.release(value);
        Ok(new)
    }

    /// Writes `bytes` into the value's blocks if they fit and nobody shares them.
    fn rewrite(&mut self, value: ValueRef, bytes: &[u8]) -> bool {
        // From the last block to the first: each keeps its start, the last takes the rest.
        let (mut address, mut end) = (value.address(), bytes.len());
        loop {
            let Metadata { previous, references, .. } = self.blocks.metadata(address);
            let start = if previous == NONE { 0 } else { self.blocks.end(previous) };
            if references > 1 || start >= end || end - start > self.blocks.block_bytes(address) {
                return false;
            }
            if previous == NONE {
                break;
            }
            (address, end) = (previous, start);
        }
        let (mut address, mut end) = (value.address(), bytes.len());
        loop {
            let previous = self.blocks.metadata(address).previous;
            let start = if previous == NONE { 0 } else { self.blocks.end(previous) };
            self.blocks.write(address, 0, &bytes[start..end]);
            if end == bytes.len() {
                self.change(address, |metadata| metadata.end = end as u32);
            }
            if previous == NONE {
                return true;
            }
            (address, end) = (previous, start);
        }
    }

    /// How many references share the value's last block (1 for a value that is its reference).
    #[must_use]
    pub fn references(&self, value: ValueRef) -> u64 {
        if value.is_cell() {
            return u64::from(self.cells.references(value.cell()));
        }
        if value.is_inline() {
            return 1;
        }
        u64::from(self.blocks.metadata(value.address()).references)
    }

    /// Bytes that the value occupies outside its references, with its share of metadata, if it
    /// was stored at once. The same for every value of its length, whatever it shares.
    #[inline]
    #[must_use]
    pub fn footprint(&self, value: ValueRef) -> usize {
        match value.is_inline() {
            true if value.is_cell() => CELL_BYTES,
            true => 0,
            false => classes::footprint(value.len()),
        }
    }

    /// Bytes of all blocks that values are in, with their metadata, and of cells; shared ones
    /// count once.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.live_bytes
            + self.blocks.live_blocks * METADATA_BYTES
            + self.cells.live() * CELL_BYTES
    }

    /// Blocks that values are in.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.live_blocks
    }

    /// Bytes taken from the system: all buffers and tables.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.blocks.allocated + self.blocks.table_bytes() + self.cells.allocated()
    }

    /// Bytes of free blocks, with their metadata, in buffers that other values are in. Costs a
    /// look at every buffer.
    #[must_use]
    pub fn free(&self) -> usize {
        let free = |buffer: &Buffer| (buffer.blocks - buffer.live) as usize;
        let metadata = self.blocks.buffers.iter().map(free).sum::<usize>() * METADATA_BYTES;
        self.blocks.held_bytes - self.blocks.live_bytes + metadata
    }

    /// Bytes of buffers that no value is in: what [`Pool::shrink`] could return.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.blocks.idle_bytes
    }

    /// Bytes that can be stored without taking more from the system, if they come in full blocks.
    #[inline]
    #[must_use]
    pub fn spare(&self) -> usize {
        self.blocks.spare()
    }

    /// Bytes of blocks that no value was ever in, whose memory was perhaps never touched. Costs a
    /// look at every buffer.
    #[must_use]
    pub fn untouched(&self) -> usize {
        let fresh = |buffer: &Buffer| {
            (buffer.blocks - buffer.fresh) as usize * BLOCK_BYTES[buffer.class] as usize
        };
        self.blocks.buffers.iter().map(fresh).sum()
    }

    /// Bytes that can still be stored within the limit, if they come in full blocks.
    #[must_use]
    pub fn available(&self) -> usize {
        self.blocks.available()
    }

    /// Sizes of blocks, ascending.
    #[must_use]
    pub fn block_sizes() -> &'static [u32] {
        &BLOCK_BYTES
    }
}
