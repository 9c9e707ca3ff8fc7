//! Operations that wait for data, who wakes them, and which loads are under way for them.
//!
//! # Cost
//! Waking costs what those cost who wait for the data, however many others wait. An answer is found by its
//! number in an ordered tree, however many loads are under way.

use super::LoadedId;
use super::brought::BroughtBytes;
use crate::engine::Engine;
use crate::report::{Effect, EngineError, Stop, Ticket};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::placement::Shard;
use headwater_base::source::FetchId;

/// Operations that wait, the loads that they wait for, and numbers for new ones.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    next_fetch: u64,
    next_ticket: u64,
    pub(super) waiting: BTreeMap<Ticket, BTreeSet<FetchId>>,
    /// Who waits for each load, in ascending order; some of them have failed since.
    pub(super) by_fetch: BTreeMap<FetchId, Vec<Ticket>>,
    /// What the operation under way lacks. It ends with the operation, whether that waits for it or not: what comes next must not
    /// wait for loads that have been answered by then.
    pub(crate) lacking: BTreeSet<FetchId>,
    /// Where each load under way is filed: among those of this table and home, by its first key.
    loads: BTreeMap<FetchId, (LoadedId, Vec<u8>)>,
    /// Loads from other shards whose answers will be of no use.
    useless: Vec<Useless>,
    pub(crate) brought: BroughtBytes,
    pub(crate) effects: Vec<Effect>,
}

/// A load that was asked for under another placement, or for a join that is gone. Nothing of its range is asked for again
/// before its answer has come, and then the home is told to forget the range.
#[derive(Debug)]
pub(super) struct Useless {
    fetch: FetchId,
    pub(super) home: Shard,
    pub(super) range: KeyRange,
}

impl Waits {
    /// A load begins for which the operation under way waits, filed by the first key of its range.
    pub(super) fn begin_load(&mut self, part: LoadedId, first: &[u8]) -> FetchId {
        let fetch = self.begin_unfiled();
        self.file(fetch, part, first);
        fetch
    }

    /// A load begins for which the operation under way waits, and which whoever asks for it files.
    pub(crate) fn begin_unfiled(&mut self) -> FetchId {
        let fetch = FetchId(self.next_fetch);
        self.next_fetch += 1;
        self.lacking.insert(fetch);
        fetch
    }

    /// A load begins that goes on where `before` ended, if somebody waits for that one; unless `wakes`, they wait for this one, too.
    pub(super) fn go_on(
        &mut self,
        before: FetchId,
        part: LoadedId,
        first: &[u8],
        wakes: bool,
    ) -> Option<FetchId> {
        let tickets = self.by_fetch.get(&before)?;
        let waiting = tickets.iter().copied().filter(|ticket| self.waiting.contains_key(ticket));
        let waiting: Vec<_> = waiting.collect();
        if waiting.is_empty() {
            return None;
        }
        let fetch = FetchId(self.next_fetch);
        self.next_fetch += 1;
        self.file(fetch, part, first);
        if !wakes {
            for ticket in &waiting {
                self.waiting.get_mut(ticket)?.insert(fetch);
            }
            self.by_fetch.insert(fetch, waiting);
        }
        Some(fetch)
    }

    /// A number for a part of a load's answer, for which those wait as well who wait for the load.
    pub(super) fn fork(&mut self, load: FetchId) -> FetchId {
        let fetch = FetchId(self.next_fetch);
        self.next_fetch += 1;
        let tickets = self.by_fetch.get(&load).into_iter().flatten().copied();
        let waiting: Vec<_> = tickets.filter(|ticket| self.waiting.contains_key(ticket)).collect();
        for ticket in &waiting {
            self.waiting.get_mut(ticket).map(|lacking| lacking.insert(fetch));
        }
        if !waiting.is_empty() {
            self.by_fetch.insert(fetch, waiting);
        }
        fetch
    }

    /// Files a load under way.
    pub(super) fn file(&mut self, fetch: FetchId, part: LoadedId, first: &[u8]) {
        self.loads.insert(fetch, (part, first.to_vec()));
    }

    /// Where a load was filed that has ended.
    pub(super) fn end_load(&mut self, fetch: FetchId) -> Option<(LoadedId, Vec<u8>)> {
        self.loads.remove(&fetch)
    }

    /// Ends a load whose answer will be ignored: who waits for it finds out what is to be had.
    pub(crate) fn withdraw(&mut self, fetch: FetchId) {
        self.loads.remove(&fetch);
        self.wake(fetch);
    }

    /// Has the answer of a load under way be of no use.
    pub(super) fn spoil(&mut self, fetch: FetchId, home: Shard, range: KeyRange) {
        self.loads.remove(&fetch);
        self.useless.push(Useless { fetch, home, range });
    }

    /// How many loads are under way of which something will be kept.
    pub(super) fn loads(&self) -> usize {
        self.loads.len()
    }

    /// Where a load under way is filed.
    pub(super) fn load(&self, fetch: FetchId) -> Option<(LoadedId, &[u8])> {
        self.loads.get(&fetch).map(|(part, first)| (*part, &**first))
    }

    /// The load of no use that this is the answer of.
    pub(super) fn take_useless(&mut self, fetch: FetchId) -> Option<Useless> {
        let at = self.useless.iter().position(|useless| useless.fetch == fetch)?;
        Some(self.useless.swap_remove(at))
    }

    /// How many loads are under way of which nothing will be kept.
    pub(crate) fn useless(&self) -> usize {
        self.useless.len()
    }

    /// Lets the operation under way wait for the loads of no use that overlap some of `ranges`; whether there are any.
    pub(crate) fn lacks_useless(&mut self, of: Shard, ranges: &[KeyRange]) -> bool {
        let in_the_way = self.useless.iter().filter(|&Useless { home, range, .. }| {
            *home == of && ranges.iter().any(|wanted| wanted.overlaps(range))
        });
        let fetches: Vec<_> = in_the_way.map(|useless| useless.fetch).collect();
        self.lacking.extend(&fetches);
        !fetches.is_empty()
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket - 1)
    }

    /// Lets the operation under way wait for all that it lacks.
    fn wait(&mut self) -> Ticket {
        let lacking = core::mem::take(&mut self.lacking);
        let ticket = self.ticket();
        for &fetch in &lacking {
            self.by_fetch.entry(fetch).or_default().push(ticket);
        }
        self.waiting.insert(ticket, lacking);
        ticket
    }

    /// How many operations wait.
    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Has nobody wait for what the operation under way lacks.
    #[inline]
    pub(crate) fn forget_lacking(&mut self) {
        if !self.lacking.is_empty() {
            self.lacking.clear();
        }
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

    /// Wakes all operations: they find out anew what they lack.
    pub(crate) fn wake_all(&mut self) {
        self.by_fetch.clear();
        let waiting = core::mem::take(&mut self.waiting).into_keys();
        self.effects.extend(waiting.map(Effect::Wake));
    }

    /// Fails all operations that waited for `fetch`.
    pub(crate) fn fail(&mut self, fetch: FetchId, error: &EngineError) {
        for ticket in self.by_fetch.remove(&fetch).unwrap_or_default() {
            if self.waiting.remove(&ticket).is_some() {
                self.brought.forget(ticket);
                self.effects.push(Effect::Fail { ticket, error: error.clone() });
            }
        }
    }
}

impl Engine {
    /// What an operation that met missing data answers.
    pub(crate) fn stop(&mut self) -> Stop {
        if self.memory.ends_lacking() {
            self.base.loads.waits.lacking.clear();
            return Stop::Failed(EngineError::OutOfMemory);
        }
        if let Some(ended) = self.ended() {
            self.base.loads.waits.lacking.clear();
            return ended;
        }
        debug_assert!(self.views.queue.is_empty(), "changes are applied before an operation ends");
        let has_advanced = self.reads.slices.has_kept();
        if self.reads.slices.is_over() {
            // What it lacks besides is asked for again when it goes on.
            self.base.loads.waits.lacking.clear();
            let ticket = self.base.loads.waits.ticket();
            self.reads.slices.postpone(ticket);
            self.reads.slices.keep_short_passes(ticket);
            self.reads.hints.keep(ticket);
            self.base.loads.waits.brought.keep(ticket, has_advanced);
            return Stop::Wait(ticket);
        }
        let ticket = self.base.loads.waits.wait();
        self.base.loads.waits.brought.keep(ticket, has_advanced);
        self.reads.slices.keep_short_passes(ticket);
        self.reads.hints.keep(ticket);
        Stop::Wait(ticket)
    }

    /// A ticket for an operation that waits for something that the engine does not know of.
    pub fn next_ticket(&mut self) -> Ticket {
        self.base.loads.waits.ticket()
    }

    /// Whether operations may have to wait for data at all.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.base.loads.persistence.is_some()
            || self.base.placed.is_some()
            || !self.base.loads.own_tables().is_empty()
    }

    /// How many operations wait for data.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.base.loads.waits.waiting()
    }

    /// Wakes an operation that got its ticket from [`Engine::next_ticket`].
    pub fn wake(&mut self, ticket: Ticket) {
        self.base.loads.waits.effects.push(Effect::Wake(ticket));
    }

    /// Takes what the engine asks of the world since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        let mut effects = core::mem::take(&mut self.base.loads.waits.effects);
        effects.extend(self.notifications.watches.take_woken().into_iter().map(Effect::Wake));
        effects.extend(self.calls.take_loaded().into_iter().map(Effect::Wake));
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::{FetchId, Waits};
    use crate::report::Effect;
    use crate::{Engine, Settings};

    #[test]
    fn nobody_waits_for_what_an_operation_lacked_that_has_failed() {
        let mut waits = Waits::default();
        let [failed, lacked] = [FetchId(1), FetchId(2)];
        waits.lacking.insert(failed);
        // It fails now, for another reason, instead of waiting.
        waits.forget_lacking();
        waits.lacking.insert(lacked);
        let ticket = waits.wait();
        waits.wake(failed);
        assert_eq!(waits.effects, []);
        waits.wake(lacked);
        assert_eq!(waits.effects, [Effect::Wake(ticket)]);
    }
    #[test]
    fn an_operation_that_has_ended_lacks_nothing() {
        let mut engine = Engine::new(Settings::default());
        engine.begin_slice();
        engine.base.loads.waits.lacking.insert(FetchId(1));
        engine.end_slice();
        assert!(engine.base.loads.waits.lacking.is_empty());
    }
}
