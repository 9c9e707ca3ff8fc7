//! Memory of the system's: huge pages for the pool's buffers, and the pages of the program itself.
//!
//! A buffer of the pool is as large as a huge page, 2 MiB, and aligned as one. In pages of 4 KiB,
//! filling it takes 512 page faults, which cost more than the copying, and reading it needs 512
//! entries of the processor's tables; in a huge page, one. Linux gives huge pages to
//! who asks (`/sys/kernel/mm/transparent_hugepage/enabled` says `madvise`), so we ask.
//!
//! ```
//! use headwater_buffers::HugePages;
//! use headwater_pool::{OwnedBuffers, Pool};
//!
//! let mut pool = Pool::with_buffers(Box::new(OwnedBuffers::new(HugePages)));
//! let value = pool.insert(b"in a huge page, once the pool is large");
//! assert_eq!(pool.view(value).len(), 38);
//! ```
//!
//! # Invariants
//! - H1. Only buffers of whole huge pages are mapped; smaller ones, of small pools, are the global
//!   allocator's: a huge page takes all its memory at the first byte.
//! - H2. Pages of a mapping outside the buffer are never touched, so they take no memory.
//!
//! # Cost
//! Two system calls a buffer, to take it and to advise, and one to return it.

mod program;

pub use program::Program;

use core::alloc::Layout;
use headwater_pool::{Owner, Owners};
pub use memmap2::MmapMut;
use memmap2::MmapOptions;

/// Bytes of a huge page, on the processors that we know.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Anonymous mappings that the system is advised to back with huge pages.
#[derive(Debug, Default, Clone, Copy)]
pub struct HugePages;

impl Owners for HugePages {
    fn take(&mut self, layout: Layout) -> Option<Owner> {
        if !layout.size().is_multiple_of(HUGE_PAGE_BYTES) || layout.align() < HUGE_PAGE_BYTES {
            return None;
        }
        // The system aligns mappings to small pages; the buffer is where a huge one begins.
        let mapping = map(layout.size() + layout.align())?;
        Some(Box::new(mapping))
    }
}

/// Zeroed memory of at least `bytes` bytes, in huge pages where the system has them; `None` where
/// it has no memory.
#[must_use]
pub fn map(bytes: usize) -> Option<MmapMut> {
    let mapping = MmapOptions::new().len(bytes).map_anon().ok()?;
    advise(&mapping);
    Some(mapping)
}

#[cfg(target_os = "linux")]
fn advise(mapping: &MmapMut) {
    // A kernel built without huge pages refuses; then small ones serve.
    let _ = mapping.advise(memmap2::Advice::HugePage);
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &MmapMut) {}

#[cfg(test)]
mod tests {
    use super::{HUGE_PAGE_BYTES, HugePages};
    use core::alloc::Layout;
    use headwater_pool::{OwnedBuffers, Owners, Pool};

    #[test]
    fn small_buffers_are_left_to_the_global_allocator() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        assert!(HugePages.take(layout(HUGE_PAGE_BYTES / 2, 4096)).is_none());
        let mut owner = HugePages.take(layout(HUGE_PAGE_BYTES, HUGE_PAGE_BYTES)).unwrap();
        let bytes = (*owner).as_mut();
        let skip = bytes.as_ptr().align_offset(HUGE_PAGE_BYTES);
        assert!(skip + HUGE_PAGE_BYTES <= bytes.len());
    }

    #[test]
    fn a_pool_that_outgrows_small_buffers_keeps_its_values() {
        let mut pool = Pool::with_buffers(Box::new(OwnedBuffers::new(HugePages)));
        // Beyond the size from which buffers are of 2 MiB.
        let count = (140 << 20) / 100_000;
        let values: Vec<_> = (0..count).map(|at| pool.insert(&vec![at as u8; 100_000])).collect();
        for (at, &value) in values.iter().enumerate() {
            assert!(pool.view(value).equals(&vec![at as u8; 100_000]));
        }
        for value in values {
            pool.release(value);
        }
        assert!(pool.shrink(0) > 140 << 20);
        assert_eq!(pool.idle(), 0);
    }
}
