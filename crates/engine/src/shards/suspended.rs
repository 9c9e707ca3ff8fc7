//! Homes of which nothing is heard for now: what was loaded from them stays, and is not shown before it was resumed.
//!
//! A home that cannot be reached any more, or whose next owner is another process, does not tell of changes. What is here of it is of one moment, and the next
//! owner may know what has changed since: then nothing needs to be loaded again, and what joins have computed from it goes on. Until then whatever relies on
//! it waits, as it would for a load. Who follows outputs of this shard that rely on it is told that they are reset, since these would not wait.
//!
//! # Invariants
//! - D5. While a home is suspended, a status range that has read keys of it has work to do (`Work::suspended`), and no execution reads what was loaded from it.
//!   Its ranges, replicas and targets stay as they are (D1–D3), but that D2 holds as of the end of the connection.
//!
//! # Cost
//! Suspending a home walks over the readers of its ranges, as forgetting these would. Where none is suspended, a read that needs another home's keys
//! looks at an empty map.

use crate::engine::Engine;
use crate::exec::Missing;
use crate::loads::{LoadedId, Provider};
use crate::report::{Effect, EngineError};
use crate::status::StatusId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use headwater_base::placement::Shard;
use headwater_base::source::{Change, FetchId, StorePlace};
use headwater_base::{KeyRange, ShardRefusal};

/// So many ranges of a home are being resumed at a time.
const RESUMED_AT_ONCE: usize = 256;

/// A home of which nothing is heard.
#[derive(Debug)]
pub(crate) struct Suspension {
    /// What operations wait for that need it.
    fetch: FetchId,
    /// Ranges that the home is yet to be asked for.
    left: Vec<KeyRange>,
    /// The first keys of those that it was asked for and has not answered.
    asked: BTreeSet<Vec<u8>>,
}

impl Engine {
    /// What was loaded from `home` is as old as the end of the connection: it is not shown until [`Engine::resume_from`] has had all of it resumed.
    pub fn suspend_at(&mut self, home: Shard) {
        if let Some(suspension) = self.base.loads.suspended.get_mut(&home) {
            // What it was asked for will not be answered.
            suspension.left.clear();
            suspension.asked.clear();
            return;
        }
        let ranges = self.ranges_of(home);
        if ranges.is_empty() {
            return;
        }
        let waits = &mut self.base.loads.waits;
        let fetch = waits.begin_unfiled();
        waits.forget_lacking();
        let (left, asked) = (Vec::new(), BTreeSet::new());
        self.base.loads.suspended.insert(home, Suspension { fetch, left, asked });
        let mut told = BTreeSet::new();
        for (part, range) in ranges {
            for id in self.views.readers_of(part.table, &range) {
                if self.views.statuses.find(id).is_some_and(|status| !status.is_invalid()) {
                    let homes = &mut self.dirty(id).suspended;
                    if !homes.contains(&home) {
                        homes.push(home);
                    }
                    self.tell_suspended(id, &mut told);
                }
            }
        }
    }

    /// Followers of a range, and of those that depend on it, are not told of it any more.
    fn tell_suspended(&mut self, id: StatusId, told: &mut BTreeSet<StatusId>) {
        let mut next = alloc::vec![id];
        while let Some(id) = next.pop() {
            let Some(status) = self.views.statuses.find(id).filter(|_| told.insert(id)) else {
                continue;
            };
            next.extend(status.dependents.iter());
            let range = status.range();
            self.tell_reset(&range);
        }
    }

    /// Whether what is here of `home` is not shown.
    #[must_use]
    pub fn is_suspended(&self, home: Shard) -> bool {
        self.base.loads.suspended.contains_key(&home)
    }

    /// A suspended home can be asked again: for all that is here of it ([`Effect::ResumeFrom`]).
    pub fn resume_from(&mut self, home: Shard) {
        let left: Vec<_> = self.ranges_of(home).into_iter().map(|(_, range)| range).collect();
        if let Some(suspension) = self.base.loads.suspended.get_mut(&home) {
            suspension.left = left;
            suspension.asked.clear();
            self.ask_resumption(home);
        }
    }

    /// Asks for the next ranges; where there are none, the home is suspended no more.
    fn ask_resumption(&mut self, home: Shard) {
        let loads = &mut self.base.loads;
        let Some(suspension) = loads.suspended.get_mut(&home) else { return };
        while suspension.asked.len() < RESUMED_AT_ONCE
            && let Some(range) = suspension.left.pop()
        {
            suspension.asked.insert(range.first.clone());
            loads.waits.effects.push(Effect::ResumeFrom { home, range });
        }
        if suspension.asked.is_empty() {
            self.end_suspension(home);
        }
    }

    /// The answer to [`Effect::ResumeFrom`]: the keys of the range that may have changed since the home was suspended, as they are now. `None`: nothing of the
    /// range is to be believed; it is loaded again when it is wanted.
    pub fn resumed_at(&mut self, home: Shard, range: &KeyRange, changes: Option<&[Change]>) {
        let suspension = self.base.loads.suspended.get_mut(&home);
        let is_asked = suspension.is_some_and(|it| it.asked.remove(&range.first));
        match changes {
            // It was asked for once more, since the connection began anew in the middle of a turn.
            Some(_) if !is_asked => return,
            Some(changes) => {
                self.counters.ranges_resumed += 1;
                self.changed_at(home, changes);
                // What was evicted meanwhile is followed by now, in vain.
                let table = self.store.table_of(&range.first);
                let data = table.and_then(|table| self.base.loads.elsewhere.data(table, home));
                let gone = match data {
                    Some(data) => data.ranges.gaps(range),
                    None => alloc::vec![range.clone()],
                };
                for range in gone {
                    Provider::Home(home).unfollow(range, &mut self.base.loads.waits);
                }
            }
            None => {
                self.counters.ranges_not_resumed += 1;
                self.reset_at(home, range);
            }
        }
        self.ask_resumption(home);
    }

    /// What is here of `home` is shown again, or is forgotten.
    pub(crate) fn end_suspension(&mut self, home: Shard) {
        if let Some(suspension) = self.base.loads.suspended.remove(&home) {
            self.base.loads.waits.wake(suspension.fetch);
            self.notifications.retry_followed();
        }
    }

    /// Has operations fail that wait for a suspended home: it was not heard for too long. Those that come next wait until this is called again.
    pub fn fail_suspended(&mut self, home: Shard, refusal: ShardRefusal) {
        let Some(suspension) = self.base.loads.suspended.get(&home) else { return };
        let fetch = suspension.fetch;
        self.base.loads.waits.fail(fetch, &EngineError::OfHome(refusal));
        self.give_up_followed();
    }

    /// Has the operation under way wait for `home`, if that is suspended.
    #[inline]
    pub(crate) fn await_home(&mut self, home: Shard) -> Result<(), Missing> {
        if self.base.loads.suspended.is_empty() {
            return Ok(());
        }
        let Some(suspension) = self.base.loads.suspended.get(&home) else { return Ok(()) };
        self.base.loads.waits.lacking.insert(suspension.fetch);
        Err(Missing)
    }

    /// Has the operation under way wait for the homes on which a status range relies and that are suspended.
    pub(crate) fn await_homes_of(&mut self, id: StatusId) -> Result<(), Missing> {
        let suspended = &self.base.loads.suspended;
        let Some(work) = &mut self.views.statuses.get_mut(id).work else { return Ok(()) };
        work.suspended.retain(|home| suspended.contains_key(home));
        if work.suspended.is_empty() {
            self.settle(id);
            return Ok(());
        }
        let awaited = work.suspended.iter().filter_map(|home| suspended.get(home));
        self.base.loads.waits.lacking.extend(awaited.map(|it| it.fetch));
        Err(Missing)
    }

    /// Everything that is loaded from a home.
    fn ranges_of(&self, home: Shard) -> Vec<(LoadedId, KeyRange)> {
        let of_home = self.base.loads.elsewhere.parts().filter(|part| part.home == Some(home));
        let ranges = |part: LoadedId| {
            let data = self.base.loads.data(part);
            data.into_iter().flat_map(move |data| data.ranges.all().map(move |range| (part, range)))
        };
        of_home.flat_map(ranges).collect()
    }

    /// As a home: whether all that can be in `range` is in the store, with every change: there is nothing of joins or sources, and nothing that is not kept.
    #[must_use]
    pub fn keeps_all_of(&self, range: &KeyRange) -> bool {
        let parts = self.store.parts(&range.first, &range.last);
        self.base.loads.persistence.is_some()
            && parts.into_iter().all(|(table, first, last)| {
                // A table that is kept since it was declared to be may have been another one before.
                let role = self.views.catalog.role(table);
                role.is_none_or(|role| role.keep.is_none())
                    && self.base.loads.own(table).is_none_or(|data| data.is_kept())
                    && self
                        .views
                        .catalog
                        .writers_within(table, &KeyRange { first, last })
                        .is_empty()
            })
    }

    /// As a home: the last place among its writes up to which nothing can be lost, if those who follow base keys here were given everything up to there.
    #[must_use]
    pub fn place_told(&self) -> Option<StorePlace> {
        let is_told = !self.has_notifications() && !self.base.removals.has_news();
        if is_told { self.base.loads.persistence.reached() } else { None }
    }

    /// As a home: the keys of `range` that were written behind `place`, if that is known.
    pub fn written_since(&mut self, place: StorePlace, range: &KeyRange) -> Option<Vec<Vec<u8>>> {
        self.base.loads.persistence.written_since(place, range)
    }
}
