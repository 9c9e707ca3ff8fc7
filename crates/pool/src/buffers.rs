//! Where buffers come from.

use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::alloc::Layout;
use core::fmt::{self, Debug};
use core::ptr::NonNull;

/// The memory behind a pool: large buffers, taken and given back whole.
///
/// Memory that is owned by a value of its own, as a mapped file's is, comes to a pool without
/// `unsafe` by way of [`OwnedBuffers`].
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

/// An owner of bytes, which frees them when it is dropped.
pub type Owner = Box<dyn AsMut<[u8]> + Send>;

/// Gives memory for buffers, each with its owner.
pub trait Owners: Debug + Send {
    /// Memory in which a buffer of this layout lies, wherever its alignment puts it; `None` leaves
    /// the buffer to the global allocator.
    fn take(&mut self, layout: Layout) -> Option<Owner>;
}

/// Buffers inside memory that others own: a safe way to bring a pool memory of one's own. Those
/// that are refused, or do not fit, come from the global allocator.
///
/// ```
/// use headwater_pool::{OwnedBuffers, Owner, Owners, Pool};
/// use std::alloc::Layout;
///
/// #[derive(Debug)]
/// struct Vectors;
///
/// impl Owners for Vectors {
///     fn take(&mut self, layout: Layout) -> Option<Owner> {
///         Some(Box::new(vec![0u8; layout.size() + layout.align()]))
///     }
/// }
///
/// let mut pool = Pool::with_buffers(Box::new(OwnedBuffers::new(Vectors)));
/// let value = pool.insert(b"kept in a vector");
/// assert!(pool.view(value).equals(b"kept in a vector"));
/// ```
pub struct OwnedBuffers<S> {
    source: S,
    /// Owners that are out, by the address of the buffer inside.
    owners: BTreeMap<usize, Leaked>,
}

/// An owner whose bytes are in use: from [`Box::into_raw`], and from there back when they no
/// longer are.
struct Leaked(*mut (dyn AsMut<[u8]> + Send));

// SAFETY: what it points to is `Send`, and nobody else has the pointer.
unsafe impl Send for Leaked {}

impl Drop for Leaked {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, once, and is used here for the last time: a `Leaked`
        // is dropped when its buffer is released, or was never given to anyone.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl<S: Owners> OwnedBuffers<S> {
    /// Buffers in memory from `source`.
    #[must_use]
    pub fn new(source: S) -> Self {
        Self { source, owners: BTreeMap::new() }
    }

    fn take(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let owner = Leaked(Box::into_raw(self.source.take(layout)?));
        // SAFETY: the pointer came from a box just now. The reference may live until the owner is
        // dropped, which is when the buffer is released: so the bytes may be used until then.
        let bytes = unsafe { (*owner.0).as_mut() };
        let skip = bytes.as_ptr().align_offset(layout.align());
        let end = skip.checked_add(layout.size())?;
        let buffer = NonNull::from(bytes.get_mut(skip..end)?).cast::<u8>();
        let twice = self.owners.insert(buffer.as_ptr() as usize, owner);
        assert!(twice.is_none(), "memory is given once");
        Some(buffer)
    }
}

impl<S: Debug> Debug for OwnedBuffers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBuffers")
            .field("source", &self.source)
            .field("buffers", &self.owners.len())
            .finish()
    }
}

// SAFETY: a buffer is a part of the bytes that an owner lends until it is dropped, of the layout's
// size and alignment; no other owner has them, as two mutable slices do not overlap. The owner is
// dropped with the release. The others are the global allocator's.
unsafe impl<S: Owners> Buffers for OwnedBuffers<S> {
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        self.take(layout).or_else(|| GlobalBuffers.allocate(layout))
    }

    unsafe fn release(&mut self, buffer: NonNull<u8>, layout: Layout) {
        if self.owners.remove(&(buffer.as_ptr() as usize)).is_none() {
            // SAFETY: no owner has it, so it came from the global allocator with this layout.
            unsafe { GlobalBuffers.release(buffer, layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffers, OwnedBuffers, Owner, Owners};
    use crate::Pool;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::vec;
    use alloc::vec::Vec;
    use core::alloc::Layout;
    use core::sync::atomic::{AtomicUsize, Ordering};

    /// Gives memory, too little of it, and none in turn, and counts what is out.
    #[derive(Debug)]
    struct FlakyMemory {
        asked: usize,
        out: Arc<AtomicUsize>,
    }

    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl AsMut<[u8]> for Counted {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Owners for FlakyMemory {
        fn take(&mut self, layout: Layout) -> Option<Owner> {
            self.asked += 1;
            let bytes = match self.asked % 3 {
                0 => layout.size() - 1,
                1 => layout.size() + layout.align(),
                _ => return None,
            };
            self.out.fetch_add(1, Ordering::Relaxed);
            Some(Box::new(Counted(vec![0; bytes], self.out.clone())))
        }
    }

    #[test]
    fn owners_are_dropped_with_their_buffers() {
        let out = Arc::new(AtomicUsize::new(0));
        let source = FlakyMemory { asked: 0, out: out.clone() };
        let mut pool = Pool::with_buffers(Box::new(OwnedBuffers::new(source)));
        let values: Vec<_> = (0..900u32).map(|at| pool.insert(&[at as u8; 1000])).collect();
        assert!(out.load(Ordering::Relaxed) > 1);
        pool.check_invariants(values.iter().copied());
        for (at, &value) in values.iter().enumerate() {
            assert!(pool.view(value).equals(&[at as u8; 1000]));
            pool.release(value);
        }
        assert!(pool.shrink(0) > 900_000);
        assert_eq!(out.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn buffers_are_aligned_whatever_their_owner_has() {
        let out = Arc::new(AtomicUsize::new(0));
        let mut buffers = OwnedBuffers::new(FlakyMemory { asked: 0, out: out.clone() });
        let layout = Layout::from_size_align(1 << 16, 1 << 16).unwrap();
        for _ in 0..6 {
            let buffer = buffers.allocate(layout).unwrap();
            assert_eq!(buffer.as_ptr() as usize % layout.align(), 0);
            // SAFETY: the buffer came from there with this layout, and is not used again.
            unsafe { buffers.release(buffer, layout) };
        }
        assert_eq!(out.load(Ordering::Relaxed), 0);
    }
}
