//! Operations that wait for data, and who wakes them.

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
        let effects = &mut self.effects;
        self.waiting.retain(|&ticket, lacking| {
            let woken = lacking.remove(&fetch) && lacking.is_empty();
            if woken {
                effects.push(Effect::Wake(ticket));
            }
            !woken
        });
    }

    /// Fails all operations that waited for `fetch`.
    pub(crate) fn fail(&mut self, fetch: FetchId, error: &EngineError) {
        let effects = &mut self.effects;
        self.waiting.retain(|&ticket, lacking| {
            let failed = lacking.contains(&fetch);
            if failed {
                effects.push(Effect::Fail { ticket, error: error.clone() });
            }
            !failed
        });
    }
}
