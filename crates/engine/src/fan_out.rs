//! Large fan-outs: a write that concerns very many status ranges is applied to them in slices.
//!
//! The base key has its new value at once, and the write is done. What is to become of the outputs is noted with the
//! targets that the change concerns, and applied by and by, a slice in each turn of the loop. A read of a range, and any other
//! change of it, applies what is noted for that range first: so nobody can tell the difference, but by how
//! long others wait.
//!
//! Changes of values and of checks are noted alike, whatever the join makes of them. A fold takes each change into account
//! once: nothing may be computed for a range from base data that has changed already, and be changed once more by what is noted
//! (N1).
//!
//! A fan-out is *deep* where outputs of its join are read by other joins, or followed. These have yet to learn of what is noted:
//! they are as they would be if the write came later. So whoever reads what joins make of other joins' outputs waits until
//! all deep fan-outs are done; and who follows outputs is told of the changes as they come, slice by slice, in order.
//!
//! # Invariants
//! - N1. What is noted for a range is applied in the order of the writes, and before anything else changes
//!   the range or its targets. A range that is invalidated or dropped has nothing noted for it, as it will be computed anew: so
//!   the number of a range, and its contexts, mean what they meant when the change was noted.
//! - N2. What is noted is bounded: where it is too much, commands that write wait, and other writes apply the oldest changes
//!   as a whole.
//! - N3. A join that reads other joins computes and refreshes nothing while there are deep fan-outs, and no read adds any. So a
//!   range that is clean shows all that was written (R4), once a read has come to it.
//!
//! # Cost
//! Eight bytes and a bit for each target, as long as the change is noted. A read finds what is noted for a range by a binary search
//! for each change.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::report::Stop;
use crate::status::StatusId;
use crate::updaters::{Reader, Target};
use crate::views::Views;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use headwater_pool::{Pool, ValueRef};

/// How many changes may be noted, and with how many targets (N2): 64 MiB of them, or the part of the memory bound that
/// [`MEMORY_SHARE`] says.
const FAN_OUTS_MAX: usize = 64;
const TARGETS_MAX: usize = 8 << 20;
const MEMORY_SHARE: usize = 16;
/// How many targets are fed before it is looked whether the slice is over; and how many, where ranges go for others.
const PART: usize = 256;
const PART_EVICTING: usize = 16;
/// After how many slices, in which somebody waited for deep fan-outs, commands that write wait until these are done.
const SLICES_WAITED_MAX: u32 = 1000;

/// A change of a source's key.
#[derive(Clone, Debug)]
struct SourceChange {
    plan: Rc<Plan>,
    /// Who reads the key: as a value, or as a check.
    reader: Reader,
    /// Slots of the source that all keys of the updater share.
    known_slots: u32,
    key: Box<[u8]>,
    /// References are held. Of a check source's key they say no more than whether it was there, and is.
    old: Option<ValueRef>,
    new: Option<ValueRef>,
}

/// A change, as its targets are to see it.
#[derive(Debug)]
struct FanOut {
    change: Rc<SourceChange>,
    /// Others than those who read them are concerned by the outputs.
    deep: bool,
    /// In ascending order.
    targets: Vec<Target>,
    /// A bit for each target: nothing is left to be done for it.
    done: Box<[u64]>,
    /// All targets before this one are done.
    next: usize,
}

impl FanOut {
    /// Whether something is left to be done for the target at `at`.
    fn is_left(&self, at: usize) -> bool {
        self.done[at / 64] & 1 << (at % 64) == 0
    }

    /// Takes the target at `at`, if it is not done.
    fn take(&mut self, at: usize) -> Option<Target> {
        let target = self.is_left(at).then(|| self.targets[at]);
        self.done[at / 64] |= 1 << (at % 64);
        target
    }

    /// Where the targets of a range are.
    fn places_of(&self, id: StatusId) -> Range<usize> {
        let first = self.targets.partition_point(|target| target.status() < id);
        match self.targets.get(first) {
            Some(target) if target.status() == id => {
                let rest = &self.targets[first..];
                first..first + rest.partition_point(|target| target.status() == id)
            }
            _ => first..first,
        }
    }

    /// How many targets of a range something is left to be done for.
    fn left_of(&self, id: StatusId) -> usize {
        self.places_of(id).filter(|&at| self.is_left(at)).count()
    }

    /// Takes up to `most` targets of a range.
    fn take_of(&mut self, id: StatusId, most: usize, taken: &mut Vec<Target>) {
        let most = taken.len().saturating_add(most);
        for at in self.places_of(id) {
            if taken.len() == most {
                break;
            }
            taken.extend(self.take(at));
        }
    }

    /// Takes up to `most` targets; whether there may be more.
    fn take_next(&mut self, most: usize, taken: &mut Vec<Target>) -> bool {
        while self.next < self.targets.len() && taken.len() < most {
            taken.extend(self.take(self.next));
            self.next += 1;
        }
        self.next < self.targets.len()
    }

    fn release(self, pool: &mut Pool) {
        for value in [self.change.old, self.change.new].into_iter().flatten() {
            pool.release(value);
        }
    }
}

/// Changes that have yet to be applied to some of their targets, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct FanOuts {
    list: VecDeque<FanOut>,
    /// For how many in all of the list there is memory.
    targets: usize,
    /// How many of them are deep.
    deep: usize,
    /// In how many slices somebody has waited for deep ones, since one who waited could go on.
    waited: u32,
    /// What dropping ranges in the slice under way cost, in rows.
    dropped_rows: usize,
}

impl FanOuts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether something is noted that others than those who read the outputs are concerned by.
    #[inline]
    pub(crate) fn is_any_deep(&self) -> bool {
        self.deep > 0
    }

    /// Notes that a range was dropped which had so many rows.
    pub(crate) fn note_dropped(&mut self, rows: usize) {
        self.dropped_rows += rows;
    }

    /// Whether something is noted for a range.
    pub(crate) fn concern(&self, id: StatusId) -> bool {
        self.list.iter().any(|fan_out| fan_out.places_of(id).any(|at| fan_out.is_left(at)))
    }

    /// Whether more than `most` is noted for the ranges of some targets.
    fn hold_more_than(&self, most: usize, targets: &[Target]) -> bool {
        let mut left = 0;
        let ranges = targets.chunk_by(|a, b| a.status() == b.status());
        self.list.iter().any(|fan_out| {
            ranges.clone().any(|targets| {
                left += fan_out.left_of(targets[0].status());
                left > most
            })
        })
    }

    /// Forgets what is noted for a range (N1).
    #[inline]
    pub(crate) fn forget(&mut self, id: StatusId) {
        if !self.list.is_empty() {
            let mut taken = Vec::new();
            self.list.iter_mut().for_each(|fan_out| fan_out.take_of(id, usize::MAX, &mut taken));
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.list.drain(..).for_each(|fan_out| fan_out.release(pool));
        *self = Self::default();
    }

    /// Takes a change from the list that is applied.
    fn remove(&mut self, at: usize) -> Option<FanOut> {
        let fan_out = self.list.remove(at)?;
        self.targets -= fan_out.targets.capacity();
        self.deep -= usize::from(fan_out.deep);
        Some(fan_out)
    }
}

impl Engine {
    /// Notes a change for its targets, where these are more than a slice has and may see it later, or where so much is
    /// noted for their ranges already; whether that was done. The targets are left as they are, or taken.
    pub(crate) fn note_fan_out(
        &mut self,
        reader: Reader,
        plan: &Rc<Plan>,
        targets: &mut Vec<Target>,
        known_slots: u32,
        key: &[u8],
        (old, new): (Option<ValueRef>, Option<ValueRef>),
    ) -> bool {
        let Some(most) = self.reads.slices.rows() else { return false };
        let is_large = targets.len() > most;
        if !is_large && !self.views.fan_outs.hold_more_than(most, targets) {
            return false;
        }
        let is_followed = self.is_followed(plan.output_table);
        let deep = is_followed || self.views.has_readers(plan.output_table);
        // Reads add none (N3), and other shards are told of a change before they hear that it was made.
        if deep && (!self.views.writing || (is_followed && self.base.placed.is_some())) {
            return false;
        }
        for value in [old, new].into_iter().flatten() {
            self.store.pool.retain(value);
        }
        // Large ones are kept as they lie: near the memory bound there may be no room for another copy.
        let mut targets =
            if is_large { core::mem::take(targets) } else { targets.as_slice().into() };
        targets.sort_unstable();
        let done = alloc::vec![0; targets.len().div_ceil(64)].into_boxed_slice();
        let (plan, key) = (plan.clone(), key.into());
        let change = Rc::new(SourceChange { plan, reader, known_slots, key, old, new });
        self.views.fan_outs.targets += targets.capacity();
        self.views.fan_outs.deep += usize::from(deep);
        self.views.fan_outs.list.push_back(FanOut { change, deep, targets, done, next: 0 });
        self.counters.fan_outs_noted += 1;
        self.counters.fan_outs_deep += u64::from(deep);
        true
    }

    /// Applies what is noted for a range, which is about to be changed (N1). What comes of it is in the queue.
    #[inline]
    pub(crate) fn feed(&mut self, id: StatusId) {
        if !self.views.fan_outs.is_empty() {
            self.feed_range(id, usize::MAX);
        }
    }

    /// Applies what is noted for a range, which is about to be read, and for all that it is computed from (N1, N3).
    ///
    /// # Errors
    /// The operation is sliced, and others go first.
    #[inline]
    pub(crate) fn feed_or_wait(&mut self, id: StatusId) -> Result<(), Missing> {
        if self.views.fan_outs.is_empty() { Ok(()) } else { self.feed_slice(id) }
    }

    #[cold]
    fn feed_slice(&mut self, id: StatusId) -> Result<(), Missing> {
        self.feed_below_or_wait(self.views.statuses.get(id).join)?;
        let rows_max = self.reads.slices.rows_max();
        loop {
            let fed = self.feed_range(id, rows_max);
            self.drain();
            if fed == 0 {
                return Ok(());
            }
            if rows_max != usize::MAX {
                self.reads.slices.keep(fed);
                if self.reads.slices.lets_others() && self.views.fan_outs.concern(id) {
                    return Err(Missing);
                }
            }
        }
    }

    /// Applies all that is noted for what a join reads, if that is other joins (N3).
    ///
    /// # Errors
    /// The operation is sliced, and others go first.
    #[inline]
    pub(crate) fn feed_below_or_wait(&mut self, join: u32) -> Result<(), Missing> {
        if !self.views.fan_outs.is_any_deep() || self.views.catalog.join(join).depth <= 1 {
            return Ok(());
        }
        self.feed_deep_or_wait()
    }

    #[cold]
    fn feed_deep_or_wait(&mut self) -> Result<(), Missing> {
        if self.reads.slices.is_active() {
            self.views.fan_outs.waited += 1;
            self.reads.slices.end_for_now();
            return Err(Missing);
        }
        // Nothing may go that an operation under way has met.
        let writing = core::mem::replace(&mut self.views.writing, false);
        while let Some(at) = self.views.fan_outs.list.iter().position(|fan_out| fan_out.deep) {
            let mut taken = Vec::new();
            self.views.fan_outs.list[at].take_next(usize::MAX, &mut taken);
            let Some(fan_out) = self.views.fan_outs.remove(at) else { break };
            self.apply_noted(&fan_out.change, &taken);
            self.drain();
            fan_out.release(&mut self.store.pool);
        }
        self.views.writing = writing;
        Ok(())
    }

    /// Applies up to `most` of what is noted for a range, the oldest first; how much that was.
    #[cold]
    fn feed_range(&mut self, id: StatusId, most: usize) -> usize {
        // A range that is about to be used is not one that may go to make room.
        let writing = core::mem::replace(&mut self.views.writing, false);
        let mut fed = 0;
        for at in 0..self.views.fan_outs.list.len() {
            let mut taken = Vec::new();
            self.views.fan_outs.list[at].take_of(id, most - fed, &mut taken);
            if taken.is_empty() {
                continue;
            }
            let change = self.views.fan_outs.list[at].change.clone();
            self.apply_noted(&change, &taken);
            fed += taken.len();
            if fed == most {
                break;
            }
        }
        self.views.writing = writing;
        fed
    }

    /// Applies the next slice of what is noted.
    pub(crate) fn feed_next(&mut self) {
        let most = self.reads.slices.rows().unwrap_or(usize::MAX);
        let writing = core::mem::replace(&mut self.views.writing, true);
        let (mut used, mut part) = (0, PART);
        while used < most && !self.views.fan_outs.is_empty() {
            let fed = self.feed_part(part.min(most - used));
            let dropped = core::mem::take(&mut self.views.fan_outs.dropped_rows);
            part = if dropped > 0 { PART_EVICTING } else { PART };
            used += fed + dropped;
        }
        self.views.writing = writing;
    }

    /// Applies a part of the oldest change to up to `most` targets; to how many.
    fn feed_part(&mut self, most: usize) -> usize {
        let Some(oldest) = self.views.fan_outs.list.front_mut() else { return 0 };
        let mut taken = Vec::new();
        let change = oldest.change.clone();
        // What comes of the last part may need room for more to be noted.
        let last =
            if oldest.take_next(most, &mut taken) { None } else { self.views.fan_outs.remove(0) };
        self.apply_noted(&change, &taken);
        if let Some(fan_out) = last {
            fan_out.release(&mut self.store.pool);
        }
        taken.len()
    }

    /// Applies the next slice of what is noted, with all that comes of it.
    pub(crate) fn feed_in_turn(&mut self) {
        self.feed_next();
        let writing = core::mem::replace(&mut self.views.writing, true);
        self.drain();
        self.views.writing = writing;
    }

    /// Whether so much is noted that no more may be (N2).
    fn notes_enough(&self) -> bool {
        let of_memory = |limit| limit / MEMORY_SHARE / size_of::<Target>();
        let most = self.memory.memory_limit().map_or(TARGETS_MAX, of_memory).min(TARGETS_MAX);
        self.views.fan_outs.list.len() >= FAN_OUTS_MAX || self.views.fan_outs.targets >= most
    }

    /// Makes room for one more change (N2) within a write: ranges may go for it.
    #[inline]
    pub(crate) fn bound_fan_outs(&mut self) {
        while self.views.writing && !self.views.fan_outs.is_empty() && self.notes_enough() {
            self.feed_next();
        }
    }

    /// Has a command wait that may write, where too much is noted (N2), or somebody has waited for too long until all is
    /// applied. To be called before the command changes anything; with the key, where it writes one alone: one that no join reads adds
    /// nothing to what is noted.
    ///
    /// # Errors
    /// [`Stop::Wait`]: the operation is sliced, and others go first.
    #[inline]
    pub fn admit_write(&mut self, key: Option<&[u8]>) -> Result<(), Stop> {
        if self.views.fan_outs.is_empty() || !self.reads.slices.is_active() {
            return Ok(());
        }
        let is_read =
            |key| self.store.table_of(key).is_some_and(|table| self.views.has_readers(table));
        if key.is_some_and(|key| !is_read(key)) {
            return Ok(());
        }
        if self.notes_enough() || self.views.fan_outs.waited > SLICES_WAITED_MAX {
            self.reads.slices.end_for_now();
            return Err(self.stop());
        }
        Ok(())
    }

    /// Applies all that is noted.
    pub fn feed_all(&mut self) {
        while !self.views.fan_outs.is_empty() {
            self.feed_in_turn();
        }
    }

    /// Has all applied that is noted.
    ///
    /// # Errors
    /// [`Stop::Wait`]: the operation is sliced, and others go first.
    pub(crate) fn feed_all_or_wait(&mut self) -> Result<(), Stop> {
        if self.views.fan_outs.is_empty() || !self.reads.slices.is_active() {
            return Ok(());
        }
        self.views.fan_outs.waited += 1;
        self.reads.slices.end_for_now();
        Err(self.stop())
    }

    /// Applies a change to some of its targets. What comes of it is in the queue.
    fn apply_noted(&mut self, change: &Rc<SourceChange>, targets: &[Target]) {
        if targets.is_empty() {
            return;
        }
        let SourceChange { plan, reader, known_slots, key, old, new } = &**change;
        let alone = self.begin_calls();
        let mut step = self.begin_step(reader.join);
        self.note_targets(&mut step, targets.len());
        if reader.source as usize == plan.value_source() {
            self.update_targets(plan, targets, *known_slots, key, (*old, *new));
        } else {
            for &target in targets {
                self.log_check(*reader, target, key, old.is_some());
            }
        }
        self.end_step(reader.join, step);
        if alone {
            self.end_calls();
        }
    }
}

impl Views {
    /// Nobody waits for what is noted any more.
    pub(crate) fn forget_waited(&mut self) {
        self.fan_outs.waited = 0;
    }
}
