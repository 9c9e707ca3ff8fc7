//! Where buffers come from.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::fmt::Debug;
use core::ptr::NonNull;

/// The memory behind a pool: large buffers, taken and given back whole.
///
/// # Safety
/// What [`Buffers::allocate`] gives is valid for reads and writes over the whole layout, is
/// aligned as the layout says, overlaps nothing else that is in use, and stays so until it is
/// released. Its bytes need not be initialised.
pub unsafe trait Buffers: Debug + Send {
    /// A new buffer, or `None` where there is no memory.
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>>;

    /// Takes back a buffer.
    ///
    /// # Safety
    /// `buffer` came from [`Buffers::allocate`] of this value with this layout, was not released
    /// before, and is not used again.
    unsafe fn release(&mut self, buffer: NonNull<u8>, layout: Layout);
}

/// Buffers from the program's global allocator.
#[derive(Debug, Default, Clone, Copy)]
pub struct GlobalBuffers;

// SAFETY: the global allocator promises what the trait asks.
unsafe impl Buffers for GlobalBuffers {
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        assert!(layout.size() > 0, "a buffer has bytes");
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc(layout) })
    }

    unsafe fn release(&mut self, buffer: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller promises that the buffer came from `allocate` with this layout.
        unsafe { dealloc(buffer.as_ptr(), layout) }
    }
}
