//! Value memory: where the bytes of values live, shared by reference among their copies.
//!
//! A [`ValueRef`] is 8 bytes, whatever the value: values of up to 7 bytes are held in the
//! reference itself, longer ones in memory that the pool owns and counts. References are
//! counted by hand ([`Pool::retain`], [`Pool::release`]): a leaf page holds them as plain
//! words, so that splitting or moving a page is a copy of bytes.
//!
//! This implementation takes one allocation per value. The block pool will replace it behind
//! the same interface, which is why a value is read through [`Value::parts`].
//!
//! # Invariants
//! - P1. Each reference that the pool hands out is released exactly once; a retained one is
//!   another reference.
//! - P2. `Pool::bytes` is the sum of what live values outside their references occupy,
//!   counted once however many references share them.

#![no_std]
#![expect(unsafe_code, reason = "the one home of raw memory, with its invariants stated above")]
extern crate alloc;

use alloc::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use alloc::vec::Vec;
use core::ptr::NonNull;

/// A value: either its bytes, or where the pool keeps them.
///
/// Copying the word does not count as another reference: see [`Pool::retain`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueRef(u64);

/// Longest value that is held in its reference.
pub const INLINE_BYTES_MAX: usize = 7;
const INLINE_TAG: u64 = 1;
const HEADER_BYTES: usize = 8;

impl ValueRef {
    /// The empty value.
    pub const EMPTY: Self = Self(INLINE_TAG);

    /// The reference as a plain word, for storage in a page.
    #[inline]
    #[must_use]
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// The reference that [`ValueRef::to_word`] gave.
    #[inline]
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Fetches the value's first bytes into the processor's cache. A hint, which may be given
    /// for any word.
    #[inline]
    pub fn prefetch(self) {
        if !self.is_inline() {
            prefetch_address(core::ptr::without_provenance(self.0 as usize));
        }
    }

    /// Whether the bytes are in the reference itself, outside the pool's memory.
    #[inline]
    #[must_use]
    pub fn is_inline(self) -> bool {
        self.0 & INLINE_TAG != 0
    }
}

#[repr(C)]
struct Header {
    references: u32,
    len: u32,
}

/// A view of one value's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    inline: [u8; 8],
    /// `None`: the bytes are `inline[1..=len]`.
    outside: Option<&'a [u8]>,
}

impl<'a> Value<'a> {
    /// A view of bytes that are not in a pool.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { inline: [0; 8], outside: Some(bytes) }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match self.outside {
            Some(bytes) => bytes.len(),
            None => usize::from((self.inline[0] >> 1) & 7),
        }
    }

    /// Whether the value has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value's bytes, part by part, in order.
    #[inline]
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.contiguous())
    }

    #[inline]
    fn contiguous(&self) -> &[u8] {
        match self.outside {
            Some(bytes) => bytes,
            None => &self.inline[1..=self.len()],
        }
    }

    /// Appends the value's bytes to `out`.
    #[inline]
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for part in self.parts() {
            out.extend_from_slice(part);
        }
    }

    /// The value's bytes in one vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.write_to(&mut bytes);
        bytes
    }

    /// Whether the value's bytes are `bytes`.
    #[must_use]
    pub fn equals(&self, bytes: &[u8]) -> bool {
        self.contiguous() == bytes
    }
}

/// The memory of all values of one shard.
#[derive(Debug, Default)]
pub struct Pool {
    bytes: usize,
    values: usize,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores `bytes` and gives the first reference to them.
    ///
    /// # Panics
    /// Aborts, as any allocation does, where the system has no memory left.
    #[inline]
    #[must_use]
    pub fn insert(&mut self, bytes: &[u8]) -> ValueRef {
        if bytes.len() <= INLINE_BYTES_MAX {
            let mut word = [0; 8];
            word[0] = (bytes.len() as u8) << 1 | INLINE_TAG as u8;
            word[1..=bytes.len()].copy_from_slice(bytes);
            return ValueRef(u64::from_le_bytes(word));
        }
        self.insert_outside(bytes, &[])
    }

    fn insert_outside(&mut self, head: &[u8], tail: &[u8]) -> ValueRef {
        let len = head.len() + tail.len();
        let layout = layout_of(len);
        // SAFETY: the layout is never empty (it has a header); the header and both parts lie
        // inside it, and nothing else refers to the fresh memory.
        let start = unsafe {
            let Some(start) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            start.cast::<Header>().write(Header {
                references: 1,
                len: u32::try_from(len).expect("values are shorter than 4 GiB"),
            });
            let body = start.add(HEADER_BYTES);
            body.copy_from_nonoverlapping(NonNull::from(head).cast(), head.len());
            body.add(head.len()).copy_from_nonoverlapping(NonNull::from(tail).cast(), tail.len());
            start
        };
        self.bytes += layout.size();
        self.values += 1;
        ValueRef(start.as_ptr().expose_provenance() as u64)
    }

    /// Counts another reference to the value.
    #[inline]
    pub fn retain(&mut self, value: ValueRef) {
        if !value.is_inline() {
            // SAFETY: P1: a reference that has not been released points at a live header.
            unsafe { (*header_of(value)).references += 1 };
        }
    }

    /// Gives a reference back; the last one frees the value.
    #[inline]
    pub fn release(&mut self, value: ValueRef) {
        if value.is_inline() {
            return;
        }
        let header = header_of(value);
        // SAFETY: P1: a reference that has not been released points at a live header, and
        // after the last one nothing refers to the memory.
        unsafe {
            (*header).references -= 1;
            if (*header).references == 0 {
                let layout = layout_of((*header).len as usize);
                self.bytes -= layout.size();
                self.values -= 1;
                dealloc(header.cast(), layout);
            }
        }
    }

    /// The value's bytes.
    #[inline]
    #[must_use]
    pub fn view(&self, value: ValueRef) -> Value<'_> {
        if value.is_inline() {
            return Value { inline: value.0.to_le_bytes(), outside: None };
        }
        let header = header_of(value);
        // SAFETY: P1: the value stays live while the pool is borrowed, because releasing it
        // takes the pool mutably; its bytes follow its header.
        let bytes = unsafe {
            core::slice::from_raw_parts(
                header.cast::<u8>().add(HEADER_BYTES),
                (*header).len as usize,
            )
        };
        Value { inline: [0; 8], outside: Some(bytes) }
    }

    /// The value with `tail` behind it, as a reference in exchange for `value`.
    #[must_use]
    pub fn append(&mut self, value: ValueRef, tail: &[u8]) -> ValueRef {
        let head = self.view(value).to_vec();
        let longer = if head.len() + tail.len() <= INLINE_BYTES_MAX {
            self.insert(&[&head[..], tail].concat())
        } else {
            self.insert_outside(&head, tail)
        };
        self.release(value);
        longer
    }

    /// How many references share the value (1 for one that is held in its reference).
    #[must_use]
    pub fn references(&self, value: ValueRef) -> u64 {
        if value.is_inline() {
            return 1;
        }
        // SAFETY: P1: as in `view`.
        unsafe { u64::from((*header_of(value)).references) }
    }

    /// Bytes that the value occupies outside its references.
    #[inline]
    #[must_use]
    pub fn footprint(&self, value: ValueRef) -> usize {
        if value.is_inline() { 0 } else { layout_of(self.view(value).len()).size() }
    }

    /// Bytes that all values occupy outside their references, headers included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Values that live outside their references.
    #[must_use]
    pub fn values(&self) -> usize {
        self.values
    }
}

/// Asks the processor to fetch the cache line of `place`. A hint: it reads nothing that the
/// program could see, and is nothing at all where the processor has no such instruction.
#[inline]
pub fn prefetch<T>(place: &T) {
    prefetch_address(core::ptr::from_ref(place).cast());
}

#[inline]
fn prefetch_address(address: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching has no effect but on the cache, whatever the address; SSE is part of
    // every x86-64 processor.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[inline]
fn layout_of(len: usize) -> Layout {
    // SAFETY: 8 is a power of two, and a slice's length plus 8 does not reach isize::MAX.
    unsafe { Layout::from_size_align_unchecked(HEADER_BYTES + len, 8) }
}

#[inline]
fn header_of(value: ValueRef) -> *mut Header {
    core::ptr::with_exposed_provenance_mut(value.0 as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_and_all_memory_comes_back() {
        let mut pool = Pool::new();
        let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
        let mut held = Vec::new();
        for len in (0..40).chain([100, 1000, 5000]) {
            let value = pool.insert(&bytes[..len]);
            assert_eq!(pool.view(value).to_vec(), &bytes[..len]);
            assert_eq!(pool.view(value).len(), len);
            assert_eq!(value.is_inline(), len <= INLINE_BYTES_MAX);
            pool.retain(value);
            held.push((value, len));
        }
        for &(value, len) in &held {
            pool.release(value);
            assert_eq!(pool.view(value).to_vec(), &bytes[..len]);
        }
        assert!(pool.bytes() > 6000);
        for (value, _) in held {
            pool.release(value);
        }
        assert_eq!((pool.bytes(), pool.values()), (0, 0));
    }

    #[test]
    fn append_crosses_from_inline_to_outside() {
        let mut pool = Pool::new();
        let mut value = pool.insert(b"");
        let mut model = Vec::new();
        for step in 0..50u8 {
            value = pool.append(value, &[step, step + 1, step + 2]);
            model.extend_from_slice(&[step, step + 1, step + 2]);
            assert_eq!(pool.view(value).to_vec(), model);
        }
        pool.release(value);
        assert_eq!(pool.bytes(), 0);
    }
}
