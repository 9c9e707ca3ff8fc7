//! Operations that wait for data, and who wakes them.
//!
//! # Cost
//! Waking costs what those cost who wait for the data, however many others wait.

use crate::report::{Effect, EngineError, Ticket};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use headwater_base::source::FetchId;

/// Operations that wait, and numbers for new ones.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    pub(crate) next_fetch: u64,
    next_ticket: u64,
    waiting: BTreeMap<Ticket, BTreeSet<FetchId>>,
    /// Who waits for each load, in ascending order; some of them have failed since.
    by_fetch: BTreeMap<FetchId, Vec<Ticket>>,
    /// What the operation under way lacks.
    pub(crate) lacking: BTreeSet<FetchId>,
    pub(crate) effects: Vec<Effect>,
}

impl Waits {
    pub(crate) fn fetch(&mut self) -> FetchId {
        self.next_fetch += 1;
        FetchId(self.next_fetch - 1)
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket - 1)
    }

    /// Lets the operation under way wait for all that it lacks.
    pub(super) fn wait(&mut self) -> Ticket {
        let lacking = core::mem::take(&mut self.lacking);
        let ticket = self.ticket();
        for &fetch in &lacking {
            self.by_fetch.entry(fetch).or_default().push(ticket);
        }
        self.waiting.insert(ticket, lacking);
        ticket
    }

    /// How many operations wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Has nobody wait for what the operation under way lacks.
    pub(crate) fn forget_lacking(&mut self) {
        self.lacking.clear();
    }

    /// Wakes the operations for which `fetch` was the last thing they waited for.
    pub(crate) fn wake(&mut self, fetch: FetchId) {
        for ticket in self.by_fetch.remove(&fetch).unwrap_or_default() {
            let Some(lacking) = self.waiting.get_mut(&ticket) else { continue };
            if lacking.remove(&fetch) && lacking.is_empty() {
                self.waiting.remove(&ticket);
                self.effects.push(Effect::Wake(ticket));
            }
        }
    }

    /// Fails all operations that waited for `fetch`.
    pub(crate) fn fail(&mut self, fetch: FetchId, error: &EngineError) {
        for ticket in self.by_fetch.remove(&fetch).unwrap_or_default() {
            if self.waiting.remove(&ticket).is_some() {
                self.effects.push(Effect::Fail { ticket, error: error.clone() });
            }
        }
    }
}
