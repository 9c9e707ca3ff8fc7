//! The allocator of the program, and what it and the system tell about memory.
//!
//! The allocator is jemalloc: it keeps running counts of what a thread has allocated and freed, which cost
//! a load each to read, and knows how many pages it has in use. Linking this crate makes it the
//! allocator of the whole program.
//!
//! # Cost
//! [`Heap::gross`] and [`Heap::live`] are one and two loads. [`Heap::sample`] merges the allocator's
//! statistics and reads a file of the system: tens of microseconds.

use core::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use tikv_jemalloc_ctl::thread::ThreadLocal;
use tikv_jemalloc_ctl::{Access, AsName, Mib, epoch, epoch_mib, stats, thread};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// For how long freed pages wait to be used again before they go back to the system.
const DECAY_MILLISECONDS: isize = 1000;

/// What is known of the process's memory at one moment, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sample {
    /// Held by the program: sizes as the allocator rounds them.
    pub(crate) allocated: usize,
    /// Pages in which something is allocated.
    pub(crate) active: usize,
    /// What the allocator needs for itself.
    pub(crate) metadata: usize,
    /// Pages that the allocator holds, those of freed memory included.
    pub(crate) held: usize,
    /// Resident pages of the process, as the system counts them.
    pub(crate) resident: usize,
    /// Those of them that are pages of files: the program itself.
    pub(crate) files: usize,
}

impl Sample {
    /// What the allocator holds beside what is allocated: free pages, holes, its own needs. Pages that were never touched are not
    /// resident, whatever it counts.
    pub(crate) fn beside_allocated(&self) -> usize {
        let resident = self.resident.saturating_sub(self.files);
        self.held.min(resident).saturating_sub(self.allocated)
    }
}

/// The memory of the process, seen from the thread that serves.
pub(crate) struct Heap {
    allocated: ThreadLocal<u64>,
    freed: ThreadLocal<u64>,
    epoch: epoch_mib,
    /// Where this thread's memory comes from.
    arena: u32,
    /// The decay time of an arena, whose number is at [`ARENA_AT`].
    decay: Mib<[usize; 3]>,
    /// The pages of an arena in which something is allocated; its number is at [`ARENA_AT`] and one.
    pages_active: Mib<[usize; 4]>,
    statm: File,
    page: usize,
}

/// Where the number of an arena is among the parts of `arena.0.dirty_decay_ms`.
const ARENA_AT: usize = 1;

impl fmt::Debug for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("live", &self.live()).finish_non_exhaustive()
    }
}

fn told<T>(result: Result<T, tikv_jemalloc_ctl::Error>) -> io::Result<T> {
    result.map_err(|error| io::Error::other(format!("the allocator: {error}")))
}

impl Heap {
    /// The heap of this process, for use by this thread; `apart`: what it allocates from now on lies apart from what
    /// others do.
    pub(crate) fn new(apart: bool) -> io::Result<Self> {
        let arena = if apart {
            let arena: u32 = told("arenas.create\0".name().read())?;
            told("thread.arena\0".name().write(arena))?;
            arena
        } else {
            0
        };
        let heap = Self {
            allocated: told(thread::allocatedp::read())?,
            freed: told(thread::deallocatedp::read())?,
            epoch: told(epoch::mib())?,
            arena,
            decay: told("arena.0.dirty_decay_ms\0".name().mib())?,
            pages_active: told("stats.arenas.0.pactive\0".name().mib())?,
            statm: File::open("/proc/self/statm")?,
            page: rustix::param::page_size(),
        };
        for scope in [String::from("arenas"), format!("arena.{arena}")] {
            told(format!("{scope}.dirty_decay_ms\0").name().write(DECAY_MILLISECONDS))?;
            told(format!("{scope}.muzzy_decay_ms\0").name().write(0isize))?;
        }
        Ok(heap)
    }

    /// Bytes that this thread has ever allocated.
    #[inline]
    pub(crate) fn gross(&self) -> u64 {
        self.allocated.get()
    }

    /// Bytes that this thread has allocated and not freed. Only differences mean something:
    /// what one thread allocates another may free.
    #[inline]
    pub(crate) fn live(&self) -> usize {
        self.allocated.get().wrapping_sub(self.freed.get()) as usize
    }

    /// Everything that can be told now.
    pub(crate) fn sample(&self) -> Sample {
        // A count that cannot be read is left out; the resident size covers it.
        let _ = self.epoch.advance();
        let (resident, files) = self.statm();
        Sample {
            allocated: stats::allocated::read().unwrap_or(0),
            active: stats::active::read().unwrap_or(0),
            metadata: stats::metadata::read().unwrap_or(0),
            held: stats::resident::read().unwrap_or(0),
            resident,
            files,
        }
    }

    /// Whether freed memory is kept at hand for this thread. That saves time; but what is kept of each size serves
    /// no other, and keeps the pages around it from going back.
    pub(crate) fn set_thread_cache(&self, on: bool) {
        let _ = "thread.tcache.enabled\0".name().write(on);
    }

    /// Gives all freed pages of this thread back to the system.
    pub(crate) fn purge(&self) {
        self.purge_arena(self.arena);
    }

    /// The same for what lies there.
    fn purge_arena(&self, arena: u32) {
        let mut name = self.decay;
        name[ARENA_AT] = arena as usize;
        // A decay time of zero has the allocator purge at once.
        for time in [0, DECAY_MILLISECONDS] {
            let _ = name.write(time);
        }
    }

    /// Gives all freed pages of the process back to the system. Pages that threads beside the shards have freed wait
    /// there until such a thread allocates or frees again, however long that takes.
    pub(crate) fn purge_all(&self) {
        let count: u32 = "arenas.narenas\0".name().read().unwrap_or(0);
        (0..count).for_each(|arena| self.purge_arena(arena));
    }

    /// Bytes of pages in which something of this thread is allocated, as of the last sample.
    pub(crate) fn own_active(&self) -> usize {
        let mut name = self.pages_active;
        name[ARENA_AT + 1] = self.arena as usize;
        let pages: usize = name.read().unwrap_or(0);
        pages * self.page
    }

    /// Resident bytes, and those of them that are pages of files.
    fn statm(&self) -> (usize, usize) {
        let mut text = [0; 128];
        let count = self.statm.read_at(&mut text, 0).unwrap_or(0);
        let text = core::str::from_utf8(&text[..count]).unwrap_or_default();
        let mut pages = text.split(' ').skip(1).map(|field| field.parse().unwrap_or(0));
        let mut bytes = || pages.next().unwrap_or(0) * self.page;
        (bytes(), bytes())
    }
}

/// Has what the calling thread allocates lie with what the first shard does, whose freed pages go back to the system together with it; `at_hand`:
/// freed memory is kept at hand ([`Heap::set_thread_cache`]).
pub(crate) fn share_first_heap(at_hand: bool) {
    // Where it cannot be told, there are freed pages that go back later.
    let _ = "thread.arena\0".name().write(0u32);
    let _ = "thread.tcache.enabled\0".name().write(at_hand);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;

    #[test]
    fn what_is_allocated_is_counted_and_goes_back() {
        alone(module_path!(), "what_is_allocated_is_counted_and_goes_back", || {
            let heap = Heap::new(false).unwrap();
            let before = (heap.live(), heap.sample());
            let bytes = vec![1u8; 32 << 20];
            let with = (heap.live(), heap.sample());
            let more = with.0 - before.0;
            assert!(more >= bytes.len() && more < bytes.len() + (8 << 20));
            assert!(with.1.active >= before.1.active + bytes.len());
            drop(bytes);
            assert!(heap.live() < before.0 + (1 << 20));
            assert!(heap.gross() >= 32 << 20);
            heap.purge();
            let after = heap.sample();
            assert!(after.resident + (16 << 20) < with.1.resident);
            assert!(after.files > 0 && after.files < after.resident);
        });
    }
}
