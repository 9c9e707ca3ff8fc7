//! What the engine under test takes of memory, and how much of it others have taken.
//!
//! A history's own books, the oracle and the engine share a thread, so the allocator's count of that thread is looked at around
//! each of the engine's operations alone: what is allocated and freed *inside* is the engine's. What an
//! operation gives back is copied outside, and freed where it was allocated.
//!
//! The count is jemalloc's. In a program that has another allocator it stands still, and nothing is ever evicted.

use crate::rng::Rng;
use headwater_base::memory::Meter;
use headwater_base::source::{Attributes, BaseStore, FetchId, Pair, Position};
use headwater_base::spill::Spill;
use headwater_base::{KeyRange, Millis};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tikv_jemalloc_ctl::thread::{ThreadLocal, allocatedp, deallocatedp};

/// What the engine may take where others take memory by chance.
pub const LIMIT_BY_CHANCE: usize = 1 << 30;

/// Tells the engine how much is taken.
pub struct Pressure {
    allocated: ThreadLocal<u64>,
    freed: ThreadLocal<u64>,
    /// What the engine took when it was left last.
    own: Cell<u64>,
    /// The thread's count when it was entered; `None`: it is not under way.
    entered_at: Cell<Option<u64>>,
    rng: RefCell<Rng>,
    /// How often of a hundred looks others have taken nearly everything.
    percent: usize,
    /// They give it back for a while.
    eased: Cell<bool>,
}

impl std::fmt::Debug for Pressure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pressure").field("used", &self.used()).finish_non_exhaustive()
    }
}

impl Pressure {
    /// Nothing is taken; in so many of a hundred looks others will have taken nearly everything.
    ///
    /// # Panics
    /// The allocator does not tell.
    #[must_use]
    pub fn new(percent: usize) -> Rc<Self> {
        Rc::new(Self {
            allocated: allocatedp::read().expect("jemalloc counts"),
            freed: deallocatedp::read().expect("jemalloc counts"),
            own: Cell::new(0),
            entered_at: Cell::new(None),
            rng: RefCell::new(Rng::new(percent as u64)),
            percent,
            eased: Cell::new(true),
        })
    }

    fn live(&self) -> u64 {
        self.allocated.get().wrapping_sub(self.freed.get())
    }

    fn enter(&self) {
        self.entered_at.set(Some(self.live()));
    }

    fn leave(&self) {
        if let Some(at) = self.entered_at.take() {
            self.own.set(self.own.get().wrapping_add(self.live().wrapping_sub(at)));
        }
    }

    /// Does something that is the engine's, and gives what stays its own or takes no memory.
    pub fn own<T>(&self, operation: impl FnOnce() -> T) -> T {
        self.enter();
        let done = operation();
        self.leave();
        done
    }

    /// Does something that is the engine's, and gives a copy of what comes of it.
    pub fn inside<T: Clone>(&self, operation: impl FnOnce() -> T) -> T {
        let done = self.own(operation);
        let copy = done.clone();
        self.own(|| drop(done));
        copy
    }

    /// Does something that is not the engine's, though the engine asks for it.
    fn outside<T>(&self, operation: impl FnOnce() -> T) -> T {
        let within = self.entered_at.get().is_some();
        self.leave();
        let done = operation();
        if within {
            self.enter();
        }
        done
    }

    /// Whether others take nothing for now.
    pub fn ease(&self, eased: bool) {
        self.eased.set(eased);
    }
}

impl Meter for Pressure {
    fn used(&self) -> usize {
        let since = self.entered_at.get().map_or(0, |at| self.live().wrapping_sub(at));
        let own = self.own.get().wrapping_add(since).cast_signed().max(0) as usize;
        if self.percent == 0 || self.eased.get() {
            return own;
        }
        let mut rng = self.rng.borrow_mut();
        match (rng.chance(self.percent), rng.chance(50)) {
            (false, _) => own,
            // A little is left, or nothing.
            (true, true) => LIMIT_BY_CHANCE - 1 - rng.below(3000),
            (true, false) => LIMIT_BY_CHANCE + 1,
        }
    }
}

/// A port of the engine's, whose own memory does not count as the engine's.
#[derive(Debug)]
pub struct Outside<P>(pub Rc<Pressure>, pub P);

impl<P: Spill> Spill for Outside<P> {
    fn put(&mut self, id: u64, parts: &mut dyn Iterator<Item = &[u8]>) -> bool {
        self.0.outside(|| self.1.put(id, parts))
    }
    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool {
        // The buffer is the engine's.
        self.1.get(id, out)
    }
    fn remove(&mut self, id: u64) {
        self.0.outside(|| self.1.remove(id));
    }
    fn clear(&mut self) {
        self.0.outside(|| self.1.clear());
    }
    fn settle(&mut self) -> bool {
        self.0.outside(|| self.1.settle())
    }
    fn first(&self) -> u64 {
        self.1.first()
    }
    fn bytes(&self) -> u64 {
        self.1.bytes()
    }
}

impl BaseStore for Outside<Box<dyn BaseStore>> {
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position {
        self.0.outside(|| self.1.put(key, parts, attributes))
    }
    fn remove(&mut self, key: &[u8]) -> Position {
        self.0.outside(|| self.1.remove(key))
    }
    fn remove_range(&mut self, range: &KeyRange) -> Position {
        self.0.outside(|| self.1.remove_range(range))
    }
    fn clear(&mut self) -> Position {
        self.0.outside(|| self.1.clear())
    }
    fn note_time(&mut self, now: Millis) {
        self.0.outside(|| self.1.note_time(now));
    }
    fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        self.0.outside(|| self.1.holds_nothing(range))
    }
    fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        self.0.outside(|| self.1.load(fetch, range));
    }
    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        bytes_max: u64,
    ) -> Result<Vec<Pair>, String> {
        self.0.outside(|| self.1.gather(wanted, bytes_max))
    }
    fn settle(&mut self) -> Result<(), String> {
        self.0.outside(|| self.1.settle())
    }
}
