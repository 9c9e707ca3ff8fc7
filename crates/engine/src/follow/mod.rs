//! Followed ranges: whoever has copied a range is told of each change in it, base or derived.
//!
//! A *follower* is another shard that keeps a copy, or a client that watches. It follows a range, copies it
//! with a read, and is told from then on what becomes of each key, with the value that a read would
//! give. Where that is not known any more (what was materialized is evicted, a join is dropped, a table
//! gets a source …) it is told so once, with [`NotifiedChange::Reset`]: it follows that part no more, and has
//! to begin anew.
//!
//! Values of base keys are told as they are written. So are outputs, as they change; what joins leave
//! to the next read is done by [`Engine::keep_followed`]. Work that must wait for data to be loaded
//! waits, and is done when the data is there: until then a read of the range would wait as well. A key
//! that holds a stream is no pair of any range, and is told as gone.
//!
//! # Invariants
//! - O1. See `segments`.
//! - O2. What is followed is there: in it, each join has status ranges without gaps, is a push join, and
//!   a source's table is loaded. What takes any of that away tells a reset.
//! - O3. A table of which a key is followed is marked ([`Table::is_marked`](headwater_store::Table::is_marked)).
//! - O4. After [`Engine::keep_followed`] the status ranges over followed keys have no work left that
//!   concerns these, but for those that wait for data, for deep fan-outs (`fan_out`), or for the end of a removal (`removal`).
//!
//! # Cost
//! A write in a table that is not marked: a look at a flag. In one that is: a search among the
//! segments, and a record of the change, however many follow. Outputs of marked tables take the general
//! way when values fan out, not the shortest one.

mod segments;

use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use crate::notifications::Notifications;
use crate::report::{EngineError, Stop};
use crate::status::StatusId;
use crate::views::Views;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_base::key::before_end;
use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Mode, fixed_slots};
use headwater_pool::ValueRef;
use headwater_store::TableId;
use segments::Followers;
pub(crate) use segments::Segments;

/// Who follows ranges: a small number that the caller gives out, to a shard or a client's watch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Follower(pub u32);

impl Follower {
    /// Keeps copies of single keys that it has read by ranges. Where what it follows is not known any more it is told
    /// that each key of it is gone, and so is the first key that could be there; only where these would be too many is
    /// it told [`NotifiedChange::Reset`].
    pub const COPIES: Self = Self(u32::MAX - 1);
}

/// Bytes of keys of a range that are told as gone one by one.
const GONE_BYTES_MAX: usize = 1 << 20;

/// A change of what is followed.
#[derive(Clone, Debug)]
pub struct Notification {
    /// Who follows it, in ascending order.
    pub followers: Rc<[Follower]>,
    /// What has happened.
    pub what: NotifiedChange,
}

/// What has happened to what is followed.
#[derive(Clone, Debug)]
pub enum NotifiedChange {
    /// A key has this value now; perhaps it had it before.
    Set {
        /// The key.
        key: Box<[u8]>,
        /// Its value. One reference is held: give it back with [`Engine::release`]; look at it with
        /// [`Engine::held`].
        value: ValueRef,
    },
    /// There is no such key now; perhaps there was none before.
    Gone {
        /// The key.
        key: Box<[u8]>,
    },
    /// What this range holds is not known any more, and it is not followed any more.
    Reset {
        /// The range.
        range: KeyRange,
    },
}

/// What is followed, and what there is to tell.
#[derive(Debug, Default)]
pub(crate) struct Follows {
    segments: Segments,
    notifications: Vec<Notification>,
    /// Status ranges that got work to do, over followed keys.
    pending: BTreeSet<StatusId>,
    /// Those whose work lacks data that is being loaded.
    waiting: BTreeSet<StatusId>,
}

impl Follows {
    /// Bytes that it takes, without the values told.
    pub(crate) fn bytes(&self) -> usize {
        self.segments.bytes()
            + self.notifications.capacity() * size_of::<Notification>()
            + (self.pending.len() + self.waiting.len()) * 8
    }
}

impl Engine {
    /// From now on every change of a key in `range`, base or derived, is told for `by`. What joins
    /// give there is made current first. A read of the range right after it, before anything else happens,
    /// gives what the changes told from now on apply to.
    ///
    /// # Errors
    /// [`Stop::Wait`] where data must be loaded first: run it again. [`Stop::Failed`] where nobody maintains what
    /// a pull or snapshot join gives in the range.
    pub fn follow(&mut self, range: &KeyRange, by: Follower) -> Result<(), Stop> {
        self.release_row_holds();
        let range = &range.clone().cut(Limits::KEY_BYTES_CEILING);
        if range.is_empty() {
            return Ok(());
        }
        self.remove_all_dead();
        let parts = self.store.parts(&range.first, &range.last);
        for (table, first, last) in &parts {
            self.views.check_followable(*table, &KeyRange::new(first, last))?;
        }
        let mut missing = Ok(());
        for (table, first, last) in &parts {
            let part = KeyRange::new(first, last);
            // Of what lives elsewhere nothing is told, until it moves here and all that is followed is reset.
            if self.views.catalog.role(*table).is_some()
                && !self.base.is_elsewhere(&part)
                && self.ensure_table(*table, &part).is_err()
            {
                missing = Err(Missing);
            }
        }
        missing.map_err(|Missing| self.stop())?;
        // Computing one part may have given work to another one.
        for (table, first, last) in parts {
            // Tables are made and forgotten as joins are computed.
            let Some(table) = self.store.table_of(&first).filter(|&other| other == table) else {
                continue;
            };
            let part = KeyRange { first, last };
            for join in self.views.catalog.writers_within(table, &part) {
                let mut dirty = self.views.overlapping(join, &part);
                dirty.retain(|&id| !self.views.statuses.get(id).is_clean());
                self.notifications.follows.pending.extend(dirty);
            }
        }
        self.notifications.follows.segments.add(range, by);
        self.mark_tables(range);
        Ok(())
    }

    /// The parts of a range in which joins and sources give keys.
    #[must_use]
    pub fn given_in(&self, range: &KeyRange) -> Vec<KeyRange> {
        let parts = self.store.parts(&range.first, &range.last).into_iter();
        let is_given = |table: TableId| {
            self.views.catalog.role(table).is_some_and(|role| {
                !role.writers.is_empty()
                    || self.base.loads.own(table).is_some_and(|it| !it.is_kept())
            })
        };
        let given = parts.filter(|(table, ..)| is_given(*table));
        given.map(|(_, first, last)| KeyRange { first, last }).collect()
    }

    /// Whether outputs of the join may lie in `range` of which this is the home.
    fn gives_own_in(&self, join: u32, range: &KeyRange) -> bool {
        let plan = &self.views.catalog.join(join).plan;
        let mut range = range.clone();
        // Neighbouring keys that were followed one by one may live at one shard each.
        while self.base.is_elsewhere(&KeyRange::point(&range.first)) {
            range.first.push(0);
            if range.is_empty() || !range.last.starts_with(&range.first) {
                break;
            }
        }
        !range.is_empty()
            && !self.base.is_elsewhere(&range)
            && self.views.gives_in(join, &range).is_some_and(|within| {
                fixed_slots(&plan.join.output, &within)
                    .is_some_and(|bindings| self.base.may_own(plan, &bindings))
            })
    }

    /// Tells `by` of changes in `range` no more.
    pub fn unfollow(&mut self, range: &KeyRange, by: Follower) {
        let range = &range.clone().cut(Limits::KEY_BYTES_CEILING);
        if !range.is_empty() && self.notifications.follows.segments.remove(range, by) {
            self.mark_tables(range);
        }
    }

    /// Tells `by` of nothing any more.
    pub fn unfollow_all(&mut self, by: Follower) {
        for range in self.notifications.follows.segments.parts_of(by) {
            self.unfollow(&range, by);
        }
    }

    /// Whether there is something to tell.
    #[inline]
    #[must_use]
    pub fn has_notifications(&self) -> bool {
        !self.notifications.follows.notifications.is_empty()
    }

    /// Takes what has happened in followed ranges, in order.
    pub fn take_notifications(&mut self) -> Vec<Notification> {
        core::mem::take(&mut self.notifications.follows.notifications)
    }

    /// Does the work that joins have left to the next read of what is followed, so that the changes that
    /// come of it are told. To be called at the end of an operation.
    #[inline]
    pub fn keep_followed(&mut self) {
        if !self.notifications.follows.pending.is_empty() {
            self.do_pending();
        }
    }

    #[cold]
    fn do_pending(&mut self) {
        let mut later = BTreeSet::new();
        while let Some(id) = self.notifications.follows.pending.pop_first() {
            let Some(status) = self.views.statuses.find(id).filter(|status| !status.is_clean())
            else {
                continue;
            };
            let reads_others = self.views.catalog.join(status.join).depth > 1;
            let is_fed = self.views.fan_outs.is_any_deep()
                && (reads_others || self.views.fan_outs.concern(id));
            if is_fed || self.base.removals.delays(status.join) {
                later.insert(id);
                continue;
            }
            // What lies between two followed ranges is not worth two looks at the work.
            let Some(wanted) = self.notifications.follows.segments.hull(&status.range()) else {
                continue;
            };
            if self.refresh(id, &wanted).is_ok() {
                continue;
            }
            self.base.loads.waits.forget_lacking();
            if self.memory.ends_lacking() {
                self.tell_reset(&wanted);
            } else {
                self.notifications.follows.waiting.insert(id);
            }
        }
        self.notifications.follows.pending = later;
    }

    /// Whether all that is followed is as current as what was applied here.
    #[must_use]
    pub fn is_followed_current(&self) -> bool {
        self.notifications.follows.pending.is_empty()
            && self.notifications.follows.waiting.is_empty()
            && !self.views.fan_outs.is_any_deep()
            && !self.base.removals.has_news()
    }

    /// Whether anything is followed.
    #[must_use]
    pub fn is_anything_followed(&self) -> bool {
        !self.notifications.follows.segments.is_empty()
    }

    /// Tells resets of the followed ranges that `concerned` names.
    pub(crate) fn tell_resets_where(&mut self, concerned: &dyn Fn(&KeyRange) -> bool) {
        let ranges: Vec<_> =
            self.notifications.follows.segments.iter().map(|(range, _)| range).collect();
        for range in ranges.into_iter().filter(concerned) {
            self.tell_reset(&range);
        }
    }

    /// Gives up what waits for data: some will not come.
    pub(crate) fn give_up_followed(&mut self) {
        for id in core::mem::take(&mut self.notifications.follows.waiting) {
            if let Some(range) = self.views.statuses.find(id).map(|status| status.range()) {
                self.tell_reset(&range);
            }
        }
    }

    /// Notes that a status range is about to get work to do.
    #[inline]
    pub(crate) fn note_work(&mut self, id: StatusId) {
        if !self.notifications.follows.segments.is_empty() {
            let status = self.views.statuses.get(id);
            let table = self.views.catalog.join(status.join).plan.output_table;
            if self.is_followed(table)
                && self.notifications.follows.segments.overlaps(&status.range())
            {
                self.notifications.follows.pending.insert(id);
            }
        }
    }

    /// Whether keys of a table may be followed (O3).
    #[inline]
    pub(crate) fn is_followed(&self, table: TableId) -> bool {
        self.store.table(table).is_marked()
    }

    /// Tells that a key holds `word` now.
    #[cold]
    pub(crate) fn tell_set(&mut self, key: &[u8], word: ValueRef) {
        // Replicas are told of by their home.
        if !self.owns(key) {
            return;
        }
        let Some(followers) = self.notifications.follows.segments.of(key) else { return };
        let followers = followers.clone();
        let key = key.into();
        let what = match Handle::of(word) {
            Some(Handle::Stream(_)) => NotifiedChange::Gone { key },
            // Where its value lies is nobody's concern.
            Some(Handle::Spilled(_)) => return,
            None => {
                let value = self.store.pool.content(word);
                self.store.pool.retain(value);
                NotifiedChange::Set { key, value }
            }
        };
        self.notifications.follows.notifications.push(Notification { followers, what });
    }

    /// Tells that a key is gone.
    #[cold]
    pub(crate) fn tell_gone(&mut self, key: &[u8]) {
        if self.owns(key)
            && let Some(followers) = self.notifications.follows.segments.of(key)
        {
            let (followers, key) = (followers.clone(), key.into());
            self.notifications
                .follows
                .notifications
                .push(Notification { followers, what: NotifiedChange::Gone { key } });
        }
    }

    /// Tells what a read gives for an output of `table`, which a join has changed.
    #[cold]
    pub(crate) fn tell_output(&mut self, table: TableId, key: &[u8]) {
        if self.notifications.follows.segments.of(key).is_none() {
            return;
        }
        let some = self.views.catalog.some_writers_of(table, key);
        let all = || self.views.catalog.role(table).map_or(&[][..], |role| &role.writers);
        let writers = some.as_deref().unwrap_or_else(all);
        let mut seen: Option<(u64, ValueRef)> = None;
        for installed in writers.iter().map(|&id| self.views.catalog.join(id)) {
            if installed.is_layered()
                && seen.is_none_or(|(before, _)| before < installed.installed)
                && let Some(value) = self.store.table(installed.layer).get(key)
            {
                seen = Some((installed.installed, value));
            }
        }
        match seen.map(|(_, value)| value).or_else(|| self.store.table(table).get(key)) {
            Some(value) => self.tell_set(key, value),
            None => self.tell_gone(key),
        }
    }

    /// What `by` follows, in disjoint parts: for tests.
    #[must_use]
    pub fn followed_by(&self, by: Follower) -> Vec<KeyRange> {
        self.notifications.follows.segments.parts_of(by)
    }

    /// Tells that what `range` holds is not known any more, and ends that it is followed.
    #[inline]
    pub(crate) fn tell_reset(&mut self, range: &KeyRange) {
        if !self.notifications.follows.segments.is_empty() {
            self.reset_followed(range);
        }
    }

    #[cold]
    fn reset_followed(&mut self, range: &KeyRange) {
        let parts = self.notifications.follows.segments.cut(range);
        if parts.is_empty() {
            return;
        }
        if self.notifications.follows.segments.is_empty() {
            self.notifications.follows.pending.clear();
            self.notifications.follows.waiting.clear();
        }
        for (range, followers) in parts {
            let followers = self.tell_copies_gone(&range, followers);
            if !followers.is_empty() {
                self.notifications
                    .follows
                    .notifications
                    .push(Notification { followers, what: NotifiedChange::Reset { range } });
            }
        }
        self.mark_tables(range);
    }

    /// Tells [`Follower::COPIES`] that what is stored of a range is gone, and gives those who are told that the range is reset.
    fn tell_copies_gone(&mut self, range: &KeyRange, followers: Followers) -> Followers {
        let copies = Follower::COPIES;
        if !followers.contains(&copies) {
            return followers;
        }
        let mut keys = alloc::vec![Box::from(&*range.first)];
        let mut bytes = 0;
        let mut add = |key: &[u8]| {
            bytes += key.len();
            if bytes <= GONE_BYTES_MAX {
                keys.push(key.into());
            }
        };
        for (table, first, last) in self.store.parts(&range.first, &range.last) {
            let part = KeyRange { first, last };
            let writers = self.views.catalog.writers_within(table, &part);
            let layers = writers.into_iter().map(|id| self.views.catalog.join(id).layer);
            let mut tables: Vec<_> = layers.chain([table]).collect();
            tables.sort_unstable();
            tables.dedup();
            tables.iter().for_each(|&table| self.scan_table(table, &part, &mut |key, _| add(key)));
        }
        if bytes > GONE_BYTES_MAX {
            return followers;
        }
        let told =
            |key| Notification { followers: [copies].into(), what: NotifiedChange::Gone { key } };
        self.notifications.follows.notifications.extend(keys.into_iter().map(told));
        followers.iter().copied().filter(|&by| by != copies).collect()
    }

    /// Marks the tables of `range`, in which something has begun or ceased to be followed (O3).
    fn mark_tables(&mut self, range: &KeyRange) {
        let segments = &self.notifications.follows.segments;
        let none = segments.is_empty();
        // A table that is made later is one of them perhaps.
        self.store.mark_new_tables(!none);
        let tables: Vec<TableId> = if none {
            self.store.tables().map(|(id, _)| id).collect()
        } else {
            self.store.parts(&range.first, &range.last).into_iter().map(|(id, ..)| id).collect()
        };
        for id in tables {
            let prefix = self.store.table(id).prefix();
            // Keys without a table lie between all others.
            let marked =
                !none && (prefix.is_empty() || segments.overlaps(&KeyRange::prefix(prefix)));
            self.store.table_mut(id).0.set_marked(marked);
        }
    }

    /// Asserts O1, O2 and O3.
    pub(crate) fn check_followed(&self) {
        self.notifications.follows.segments.check_invariants();
        for (range, _) in self.notifications.follows.segments.iter() {
            for (table, first, last) in self.store.parts(&range.first, &range.last) {
                let part = KeyRange { first, last };
                assert!(self.is_followed(table), "O3");
                let Some(role) = self.views.catalog.role(table) else { continue };
                for &join in &role.writers {
                    let Some(within) = self.views.gives_in(join, &part) else { continue };
                    assert!(self.views.catalog.join(join).mode().is_maintained(), "O2");
                    let mut at = within.first.clone();
                    loop {
                        at = match self.views.status_at(join, &at) {
                            Some(id) => self.views.statuses.get(id).last().to_vec(),
                            None => {
                                let gap = self.views.gap_from(join, &at, &within.last);
                                // A shard gives nothing of what lives elsewhere.
                                assert!(!self.gives_own_in(join, &gap), "O2");
                                gap.last
                            }
                        };
                        if at.is_empty() || !before_end(&at, &within.last) {
                            break;
                        }
                    }
                }
                if let Some(data) = self.base.loads.own(table).filter(|data| !data.is_kept()) {
                    let gaps = data.ranges.gaps(&part);
                    assert!(gaps.iter().all(|gap| self.base.is_elsewhere(gap)), "O2");
                }
            }
        }
    }
}

impl Views {
    /// Refuses ranges that nobody maintains.
    fn check_followable(&self, table: TableId, part: &KeyRange) -> Result<(), EngineError> {
        for id in self.catalog.writers_within(table, part) {
            let installed = self.catalog.join(id);
            let mode = match installed.mode() {
                Mode::Push | Mode::Auto => continue,
                Mode::Pull => "pull",
                Mode::Snapshot { .. } => "snapshot",
            };
            if self.gives_in(id, part).is_some() {
                return Err(EngineError::Refused(alloc::format!(
                    "the range holds outputs of {mode} join '{}', of whose changes nobody is told; \
                     only push joins' outputs and base keys can be followed",
                    installed.name
                )));
            }
        }
        Ok(())
    }

    /// The part of `range` in which outputs of the join may lie.
    fn gives_in(&self, join: u32, range: &KeyRange) -> Option<KeyRange> {
        let output = &self.catalog.join(join).plan.join.output;
        let within = range.intersection(&output.range_of_all());
        (!within.is_empty() && fixed_slots(output, &within).is_some()).then_some(within)
    }
}

impl Notifications {
    /// Whether a key of `range` is followed.
    pub(crate) fn is_any_followed(&self, range: &KeyRange) -> bool {
        self.follows.segments.overlaps(range)
    }

    /// Has what waits for data tried again: some has come.
    pub(crate) fn retry_followed(&mut self) {
        self.follows.pending.append(&mut self.follows.waiting);
    }
}
