//! Reads of more than memory holds end: what loads bring for an operation is counted, and with too much of it the operation fails.
//!
//! An operation that waits for data runs again from its start when that has come, and needs all of it at once. Where it needs more than fits into
//! memory, what comes last drives out what came first, so it would load and evict in turns without end. No single load need be
//! large for that: a range of which parts are here lacks what is between them.
//!
//! # Cost
//! Nothing without a memory limit; with one, an addition for each operation that waits for a load, when that is answered.

use super::waits::Waits;
use crate::engine::Engine;
use crate::memory::Memory;
use crate::report::Ticket;
use alloc::collections::BTreeMap;
use headwater_base::source::FetchId;

/// How many times the memory limit is brought for one operation before it fails. Others may evict what it waits for, so once is too little.
const LIMITS_MAX: u64 = 2;

/// The most operations whose bytes are counted at once. Those that began to wait first are forgotten beyond that: some are never run again.
const COUNTED_MAX: usize = 4096;

/// Bytes of keys and values that loads have brought for operations.
#[derive(Debug, Default)]
pub(crate) struct BroughtBytes {
    /// For the operation under way, before it was run this time.
    current: u64,
    /// For those that wait, or are to be run again.
    kept: BTreeMap<Ticket, u64>,
}

impl BroughtBytes {
    /// The operation of this ticket is run again.
    pub(crate) fn resume(&mut self, ticket: Ticket) {
        self.current = self.kept.remove(&ticket).unwrap_or_default();
    }

    /// The operation under way goes on with this ticket. `has_advanced`: something that it has computed stays, so it does not need all that
    /// was brought once more.
    pub(super) fn keep(&mut self, ticket: Ticket, has_advanced: bool) {
        let brought = core::mem::take(&mut self.current);
        if brought > 0 && !has_advanced {
            self.kept.insert(ticket, brought);
        }
    }

    /// Whether so much was brought for the operation under way, which lacks something still, that memory cannot hold all that it needs: then it has
    /// given up.
    pub(crate) fn gives_up(&self, memory: &mut Memory) -> bool {
        let most = (memory.part_of_limit(1) as u64).saturating_mul(LIMITS_MAX);
        let is_too_much = most > 0 && self.current > most;
        if is_too_much {
            memory.gave_up_for_good();
        }
        is_too_much
    }

    /// The operation under way has ended, for now or for good.
    #[inline]
    pub(crate) fn end_operation(&mut self) {
        self.current = 0;
    }

    /// Nobody waits for this ticket any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.kept.remove(&ticket);
    }
}

impl Waits {
    /// Notes that a load has brought so many bytes for those who wait for it.
    fn note_brought(&mut self, fetch: FetchId, bytes: u64) {
        for &ticket in self.by_fetch.get(&fetch).into_iter().flatten() {
            if bytes > 0 && self.waiting.contains_key(&ticket) {
                *self.brought.kept.entry(ticket).or_default() += bytes;
            }
        }
        while self.brought.kept.len() > COUNTED_MAX {
            self.brought.kept.pop_first();
        }
    }
}

impl Engine {
    /// What is run next was run before, outside of slices, and has waited with this ticket: what was brought for it counts, until
    /// [`Engine::end_counting`].
    pub fn resume_counting(&mut self, ticket: Ticket) {
        self.base.loads.waits.brought.resume(ticket);
    }

    /// What was run has ended, for now or for good.
    pub fn end_counting(&mut self) {
        self.base.loads.waits.brought.end_operation();
    }

    /// A load brings so many bytes of keys and values for those who wait for it.
    pub(crate) fn note_brought(&mut self, fetch: FetchId, bytes: impl FnOnce() -> u64) {
        if self.memory.part_of_limit(1) > 0 {
            self.base.loads.waits.note_brought(fetch, bytes());
        }
    }
}
