//! Homes of which nothing is heard for now: what was loaded from them stays, and is not shown before it was resumed.
//!
//! A home that cannot be reached any more, or whose next owner is another process, does not tell of changes. What is here of it is of one moment, and the next
//! owner may know what has changed since: then nothing needs to be loaded again, and what joins have computed from it goes on. Until then whatever relies on
//! it waits, as it would for a load. Who follows outputs of this shard that rely on it is told that they are reset, since these would not wait.
//!
//! A read may accept what is old ([`Engine::accept_age`]): it goes on with what is here of a home that was heard so lately, in what joins have computed and in
//! executions of its own. What these leave behind has the same work to do as what was there when the home was suspended, so nobody else sees it. What is not here
//! is waited for as ever. Once something has come of the next owner, what is here of the home is no longer of one moment, and no age makes it so: every
//! read waits until all of it was resumed. A snapshot is kept for readers who accept nothing, so it is never computed from what is old.
//!
//! # Invariants
//! - D5. While a home is suspended, a valid status range that has read keys of it has work to do (`Work::suspended`), and an execution reads what was loaded from
//!   it only for a read that accepts its age. Its ranges, replicas and targets stay as they are (D1–D3), but that D2 holds as of the moment when the home was
//!   last heard, until the first change comes of its next owner.
//!
//! # Cost
//! Suspending a home walks over the readers of its ranges, as forgetting these would. Where none is suspended, a read that needs another home's keys
//! looks at an empty map.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::loads::{LoadedId, Provider};
use crate::report::{Effect, EngineError};
use crate::span::SourceSpans;
use crate::status::StatusId;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use headwater_base::placement::Shard;
use headwater_base::source::{Change, FetchId, StorePlace};
use headwater_base::{KeyRange, Millis, ShardRefusal};

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
    /// When it was last heard, by the clock of [`Engine::pass_time`].
    heard: Millis,
    /// Some of what is here is of the next owner already.
    is_mixed: bool,
}

/// What the operation under way makes of homes of which nothing is heard.
#[derive(Debug, Default)]
pub(crate) struct Acceptance {
    /// A home that was heard so many milliseconds ago is good enough.
    millis: u64,
    now: Millis,
}

impl Acceptance {
    fn takes(&self, suspension: &Suspension) -> bool {
        self.millis > 0 && !suspension.is_mixed && self.now.since(suspension.heard) <= self.millis
    }
}

impl Engine {
    /// What was loaded from `home` is as old as the moment at which that was last heard: it is not shown until [`Engine::resume_from`] has had all of it
    /// resumed, but to reads that accept it.
    pub fn suspend_at(&mut self, home: Shard, heard: Millis) {
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
        let suspension = Suspension { fetch, left, asked, heard, is_mixed: false };
        self.base.loads.suspended.insert(home, suspension);
        let mut told = BTreeSet::new();
        for (part, range) in ranges {
            for id in self.views.readers_of(part.table, &range) {
                if self.views.statuses.find(id).is_some_and(|status| !status.is_invalid()) {
                    self.rely_on_suspended(id, home, &mut told);
                }
            }
        }
    }

    /// A range relies on a home that is suspended (D5).
    fn rely_on_suspended(&mut self, id: StatusId, home: Shard, told: &mut BTreeSet<StatusId>) {
        let homes = &mut self.dirty(id).suspended;
        if !homes.contains(&home) {
            homes.push(home);
        }
        self.tell_suspended(id, told);
    }

    /// The suspended homes that may have keys of a span that a source of a join reads.
    fn suspended_homes(&self, plan: &Plan, source: usize, span: &KeyRange) -> Vec<Shard> {
        let all = self.base.loads.suspended.keys().copied();
        let Some(placed) = self.base.placed.as_deref() else { return Vec::new() };
        if placed.is_aligned(&plan.join.output, plan.pattern(source)) {
            return Vec::new();
        }
        let home = placed.placement.home_of_range(span);
        all.filter(|it| home.is_none_or(|home| home == *it)).collect()
    }

    /// A range was computed from these spans: where they are of homes that are suspended, it relies on these (D5).
    #[cold]
    pub(crate) fn rely_on_homes_of(&mut self, id: StatusId, spans: &SourceSpans) {
        let plan = self.views.catalog.join(self.views.statuses.get(id).join).plan.clone();
        let mut homes = BTreeSet::new();
        for span in spans.iter() {
            let range = KeyRange::new(span.ends.0, span.ends.1);
            homes.extend(self.suspended_homes(&plan, span.source, &range));
        }
        for home in homes {
            self.rely_on_suspended(id, home, &mut BTreeSet::new());
        }
    }

    /// Followers of a range, and of those that depend on it, are not told of it any more.
    fn tell_suspended(&mut self, id: StatusId, told: &mut BTreeSet<StatusId>) {
        let mut next = alloc::vec![id];
        while let Some(id) = next.pop() {
            let Some(status) = self.views.statuses.find(id).filter(|_| told.insert(id)) else {
                continue;
            };
            next.extend(status.dependents().iter());
            let range = status.range();
            self.tell_reset(&range);
        }
    }

    /// Whether what is here of `home` is not shown.
    #[must_use]
    pub fn is_suspended(&self, home: Shard) -> bool {
        self.base.loads.suspended.contains_key(&home)
    }

    /// Moves the clock by which homes are heard: that of [`Engine::suspend_at`], which never goes back.
    #[inline]
    pub fn pass_time(&mut self, now: Millis) {
        self.base.loads.acceptance.now = now;
    }

    /// When a suspended home was last heard, if what is here of it is as of then: for tests.
    #[must_use]
    pub fn heard_of(&self, home: Shard) -> Option<Millis> {
        let suspension = self.base.loads.suspended.get(&home)?;
        (!suspension.is_mixed).then_some(suspension.heard)
    }

    /// The reads from now on go on with what is here of a suspended home that was last heard so many milliseconds ago or later; 0: with none.
    #[inline]
    pub fn accept_age(&mut self, millis: u64) {
        self.base.loads.acceptance.millis = millis;
    }

    /// Something has come of a home: if it is suspended, what is here of it is not of one moment any more.
    #[inline]
    pub(crate) fn mix_suspended(&mut self, home: Shard) {
        if let Some(suspension) = self.base.loads.suspended.get_mut(&home) {
            suspension.is_mixed = true;
        }
    }

    /// The suspended homes on which a range relies, or any execution might, as they are told to people.
    pub(crate) fn explain_suspended(&self, id: Option<StatusId>) -> String {
        let loads = &self.base.loads;
        let work = id.and_then(|id| self.views.statuses.get(id).work.as_ref());
        let relies = |home| work.is_some_and(|work| work.suspended.contains(home));
        let mut text = String::new();
        for (home, it) in loads.suspended.iter().filter(|(home, _)| id.is_none() || relies(home)) {
            let _ = match it.is_mixed {
                true => write!(text, "; waits for shard {}, which is being resumed", home.0),
                false => write!(
                    text,
                    "; waits for shard {}, last heard {} ms ago (STALE ms)",
                    home.0,
                    loads.acceptance.now.since(it.heard)
                ),
            };
        }
        text
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

    /// Has operations fail that wait for loads from a home, which go on: it has not answered for too long. Those that come next wait until this is called
    /// again.
    pub fn fail_loads_of(&mut self, home: Shard, refusal: &ShardRefusal) {
        let loads = &mut self.base.loads;
        let of_home = loads.elsewhere.iter().filter(|(it, _)| *it == home);
        let fetches: Vec<FetchId> = of_home.flat_map(|(_, data)| data.fetches()).collect();
        for fetch in &fetches {
            loads.waits.fail(*fetch, &EngineError::OfHome(refusal.clone()));
        }
        if !fetches.is_empty() {
            self.give_up_followed();
        }
    }

    /// Has the operation under way wait for `home`, if that is suspended, and it does not accept what `is_here` of it.
    #[inline]
    pub(crate) fn await_home(&mut self, home: Shard, is_here: bool) -> Result<(), Missing> {
        if self.base.loads.suspended.is_empty() {
            return Ok(());
        }
        let loads = &mut self.base.loads;
        let Some(suspension) = loads.suspended.get(&home) else { return Ok(()) };
        if is_here && self.views.window.is_none() && loads.acceptance.takes(suspension) {
            return Ok(());
        }
        loads.waits.lacking.insert(suspension.fetch);
        Err(Missing)
    }

    /// Has the operation under way wait for the homes on which a status range relies and that are suspended, if it does not accept what is here of them.
    pub(crate) fn await_homes_of(&mut self, id: StatusId) -> Result<(), Missing> {
        let (suspended, acceptance) = (&self.base.loads.suspended, &self.base.loads.acceptance);
        let Some(work) = &mut self.views.statuses.get_mut(id).work else { return Ok(()) };
        work.suspended.retain(|home| suspended.contains_key(home));
        if work.suspended.is_empty() {
            self.settle(id);
            return Ok(());
        }
        let accepts = self.views.window.is_none();
        let awaited = work.suspended.iter().filter_map(|home| suspended.get(home));
        let awaited = awaited.filter(|it| !(accepts && acceptance.takes(it)));
        let lacking = &mut self.base.loads.waits.lacking;
        let mut missing = Ok(());
        for suspension in awaited {
            lacking.insert(suspension.fetch);
            missing = Err(Missing);
        }
        missing
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

    /// Checks D5 for a span that a range has read.
    pub(crate) fn check_suspended(&self, id: StatusId, source: usize, span: &KeyRange) {
        let status = self.views.statuses.get(id);
        let plan = &self.views.catalog.join(status.join).plan;
        for home in self.suspended_homes(plan, source, span) {
            let waits = status.work.as_ref().is_some_and(|it| it.suspended.contains(&home));
            assert!(waits, "D5: {:?} relies on {home:?}", status.range());
        }
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
