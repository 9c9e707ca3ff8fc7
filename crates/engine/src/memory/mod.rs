//! The memory bound: how much may be taken, and what goes when that is not enough.
//!
//! How much is taken is an input ([`Meter`]): the process that the engine lives in counts
//! everything, and this room keeps below what it is told. Room is made before an operation
//! takes it ([`Engine::make_room`]), never while one is under way, so that an answer never
//! stands on data that has just gone.
//!
//! What can go is what can come back: materialized ranges are recomputed (Pequod §2.5), loaded ranges
//! are loaded again. Base keys that nobody can give back stay.
//!
//! # Invariants
//! - M1. Evicting changes no answer: what depends on an evicted range is recomputed before it
//!   is read again.
//!
//! # Cost
//! A check is a comparison. A victim is the worst of [`SAMPLES`] drawn by chance, so it costs
//! the same however many ranges there are.

mod evict;
mod victims;

use crate::engine::Engine;
use alloc::rc::Rc;
use headwater_base::memory::Meter;

/// How many ranges are drawn to choose one victim.
const SAMPLES: usize = 12;

/// The bound, and what is known of use.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    meter: Option<Rc<dyn Meter>>,
    limit: Option<usize>,
    /// Counts reads, so that ranges can say when they were read last.
    pub(crate) clock: u32,
    draws: u64,
    pub(crate) evicted: Evicted,
    /// What the operation that has just failed would have taken at least.
    lacking: Option<usize>,
}

/// What has been evicted so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Materialized ranges of joins.
    pub ranges: u64,
    /// Ranges that had been loaded from sources.
    pub loaded: u64,
}

impl Memory {
    /// How many reads ago `used` was.
    pub(crate) fn age(&self, used: u32) -> u32 {
        self.clock.wrapping_sub(used)
    }

    /// Whether the operation under way has given up for want of memory.
    pub(crate) fn is_lacking(&self) -> bool {
        self.lacking.is_some()
    }

    /// How many bytes an execution may collect before it gives up. What it collects is
    /// stored after, so that three times as much must fit.
    pub(crate) fn allowance(&self) -> usize {
        match (&self.meter, self.limit) {
            (Some(meter), Some(limit)) => limit.saturating_sub(meter.used()) / 3,
            _ => usize::MAX,
        }
    }

    /// The next number of a SplitMix64 generator.
    pub(super) fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.draws ^ (self.draws >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Engine {
    /// Sets what tells how much memory is taken, and how much may be. Without a limit nothing
    /// is evicted.
    pub fn set_memory(&mut self, meter: Rc<dyn Meter>, limit: Option<usize>) {
        self.memory.meter = Some(meter);
        self.memory.limit = limit;
    }

    /// Changes how much memory may be taken. What is above it goes with the next
    /// [`Engine::make_room`].
    pub fn set_memory_limit(&mut self, limit: Option<usize>) {
        self.memory.limit = limit;
    }

    /// Whether `bytes` more fit under the limit as things are.
    #[inline]
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        match (&self.memory.meter, self.memory.limit) {
            (Some(meter), Some(limit)) => meter.used().saturating_add(bytes) <= limit,
            _ => true,
        }
    }

    /// Evicts until `bytes` more fit under the limit; `false` where all that can go has gone
    /// and they still do not fit. To be called between operations.
    #[inline]
    pub fn make_room(&mut self, bytes: usize) -> bool {
        self.has_room(bytes) || self.evict_for(bytes)
    }

    #[cold]
    fn evict_for(&mut self, bytes: usize) -> bool {
        while !self.has_room(bytes) {
            if !self.evict_one() {
                return false;
            }
        }
        true
    }

    /// Notes that an operation gave up for want of memory after collecting `bytes`.
    pub(crate) fn gave_up(&mut self, bytes: usize) {
        self.memory.lacking = Some(bytes.saturating_mul(6));
    }

    /// After an operation failed with [`OutOfMemory`](crate::EngineError::OutOfMemory): evicts
    /// for it; whether it is worth while to run it again.
    pub fn make_room_again(&mut self) -> bool {
        self.memory.lacking.take().is_some_and(|bytes| self.make_room(bytes))
    }

    /// What has been evicted so far.
    #[must_use]
    pub fn evicted(&self) -> Evicted {
        self.memory.evicted
    }
}
