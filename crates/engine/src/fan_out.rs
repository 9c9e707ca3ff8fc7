//! Large fan-outs: a write that very many status ranges show is applied to them in slices.
//!
//! The base key has its new value at once, and the write is done. What is to become of the outputs is noted with the
//! targets that the change concerns, and applied by and by, a slice in each turn of the loop. A read of a range, and any other
//! change of it, applies what is noted for that range first: so nobody can tell the difference, but by how
//! long others wait.
//!
//! Only copies are noted, whose outputs no join reads and nobody follows: there a range shows a change to those alone
//! who read it. Before that ceases to be so (a join is added, a range is followed), all that is noted is applied.
//!
//! # Invariants
//! - N1. What is noted for a range is applied in the order of the writes, and before anything else changes
//!   the range or its targets. A range that is invalidated or dropped has nothing noted for it, as it will be computed anew: so
//!   the number of a range, and its contexts, mean what they meant when the change was noted.
//! - N2. What is noted is bounded: where it is too much, the next write applies the oldest changes as a whole.
//!
//! # Cost
//! Eight bytes and a bit for each target, as long as the change is noted. A read finds what is noted for a range by a binary search
//! for each change.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::status::StatusId;
use crate::updaters::Target;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use headwater_pool::{Pool, ValueRef};

/// How many changes may be noted, and with how many targets (N2): 64 MiB of them.
const FAN_OUTS_MAX: usize = 256;
const TARGETS_MAX: usize = 8 << 20;

/// A change of a value source's key, as its targets are to see it.
#[derive(Debug)]
struct FanOut {
    plan: Rc<Plan>,
    /// Slots of the source that all keys of the updater share.
    known_slots: u32,
    key: Box<[u8]>,
    /// References are held.
    old: Option<ValueRef>,
    new: Option<ValueRef>,
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
        let rest = self.targets[first..].iter();
        first..first + rest.take_while(|target| target.status() == id).count()
    }

    /// Takes the targets of a range.
    fn take_of(&mut self, id: StatusId, taken: &mut Vec<Target>) {
        for at in self.places_of(id) {
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
        for value in [self.old, self.new].into_iter().flatten() {
            pool.release(value);
        }
    }
}

/// Changes that have yet to be applied to some of their targets, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct FanOuts {
    list: VecDeque<FanOut>,
    /// In all of the list, whether they are done or not.
    targets: usize,
}

impl FanOuts {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether something is noted for a range.
    pub(crate) fn concern(&self, id: StatusId) -> bool {
        self.list.iter().any(|fan_out| fan_out.places_of(id).any(|at| fan_out.is_left(at)))
    }

    /// Forgets what is noted for a range (N1).
    #[inline]
    pub(crate) fn forget(&mut self, id: StatusId) {
        if !self.list.is_empty() {
            let mut taken = Vec::new();
            self.list.iter_mut().for_each(|fan_out| fan_out.take_of(id, &mut taken));
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.list.drain(..).for_each(|fan_out| fan_out.release(pool));
        self.targets = 0;
    }
}

impl Engine {
    /// Notes a change for its targets, where these are more than a slice has and may see it later; whether that was done.
    pub(crate) fn note_fan_out(
        &mut self,
        plan: &Rc<Plan>,
        targets: &[Target],
        known_slots: u32,
        key: &[u8],
        (old, new): (Option<ValueRef>, Option<ValueRef>),
    ) -> bool {
        let Some(most) = self.slices.rows() else { return false };
        let Some(target) = targets.first().filter(|_| targets.len() > most) else { return false };
        let layer = self.catalog.join(self.statuses.get(target.status()).join).layer;
        let needs = size_of_val(targets) + targets.len() / 8 + key.len();
        if !plan.is_plain_copy() || !self.is_quiet(layer, plan) || !self.has_room(needs) {
            return false;
        }
        for value in [old, new].into_iter().flatten() {
            self.store.pool.retain(value);
        }
        let mut targets = targets.to_vec();
        targets.sort_unstable();
        self.fan_outs.targets += targets.len();
        let done = alloc::vec![0; targets.len().div_ceil(64)].into_boxed_slice();
        let (plan, key) = (plan.clone(), key.into());
        self.fan_outs.list.push_back(FanOut {
            plan,
            known_slots,
            key,
            old,
            new,
            targets,
            done,
            next: 0,
        });
        self.counters.fan_outs_noted += 1;
        true
    }

    /// Applies what is noted for a range, which is about to be read or changed (N1).
    #[inline]
    pub(crate) fn feed(&mut self, id: StatusId) {
        if !self.fan_outs.is_empty() {
            self.feed_range(id);
        }
    }

    #[cold]
    fn feed_range(&mut self, id: StatusId) {
        // A range that is about to be used is not one that may go to make room.
        let writing = core::mem::replace(&mut self.writing, false);
        for at in 0..self.fan_outs.list.len() {
            let mut taken = Vec::new();
            self.fan_outs.list[at].take_of(id, &mut taken);
            self.apply_part(at, &taken);
        }
        self.writing = writing;
    }

    /// Applies the next slice of the oldest change.
    pub(crate) fn feed_next(&mut self) {
        let most = self.slices.rows().unwrap_or(usize::MAX);
        let Some(oldest) = self.fan_outs.list.front_mut() else { return };
        let mut taken = Vec::new();
        let goes_on = oldest.take_next(most, &mut taken);
        let writing = core::mem::replace(&mut self.writing, true);
        self.apply_part(0, &taken);
        self.writing = writing;
        if !goes_on && let Some(fan_out) = self.fan_outs.list.pop_front() {
            self.fan_outs.targets -= fan_out.targets.len();
            fan_out.release(&mut self.store.pool);
        }
    }

    /// Makes room for one more change (N2) within a write: ranges may go for it.
    #[inline]
    pub(crate) fn bound_fan_outs(&mut self) {
        while self.writing
            && (self.fan_outs.list.len() >= FAN_OUTS_MAX || self.fan_outs.targets >= TARGETS_MAX)
        {
            self.feed_next();
        }
    }

    /// Applies all that is noted.
    pub(crate) fn feed_all(&mut self) {
        while !self.fan_outs.is_empty() {
            self.feed_next();
        }
    }

    fn apply_part(&mut self, at: usize, targets: &[Target]) {
        if targets.is_empty() {
            return;
        }
        let FanOut { plan, known_slots, key, old, new, .. } = &self.fan_outs.list[at];
        let (plan, known_slots, key, values) =
            (plan.clone(), *known_slots, key.clone(), (*old, *new));
        self.update_targets(&plan, targets, known_slots, &key, values);
    }
}
