//! The memory bound: how much may be taken, and what goes when that is not enough.
//!
//! How much is taken is an input ([`Meter`]): the process that the engine lives in counts
//! everything, and this room keeps below what it is told. Room is made before an operation
//! takes it ([`Engine::make_room`]), never while one is under way, so that an answer never
//! stands on data that has just gone.
//!
//! What can go is what can come back: materialized ranges are recomputed (Pequod §2.5), loaded ranges
//! are loaded again. Base keys go by the policy that the administrator chose; those that joins
//! read stay, unless their table says otherwise.
//!
//! # Invariants
//! - M1. Evicting a range changes no answer: what depends on it is recomputed before it is read
//!   again.
//!
//! # Cost
//! A check is a comparison. A victim is the least of a few drawn by chance, so it costs the same
//! however much there is. Where victims leave memory in pieces, all keys are looked at now and then, a few
//! nanoseconds each, to bring what stays together: once for every 32nd of the values that went. A read of a base key stores a byte beside it, if a policy wants that
//! and the byte is another one.

mod evict;
mod victims;

pub(crate) use evict::FED_TOGETHER;

use crate::engine::Engine;
use crate::streams::MovingChunks;
use alloc::rc::Rc;
use headwater_base::hash::Secret;
use headwater_base::memory::Meter;
use headwater_policy::{Evictor, Heat, Order, Policy};
use headwater_pool::ValueRef;
use headwater_store::TableId;

/// The part of the limit that free blocks among the values may exceed it by: one in so many.
const SPARE_BEYOND: usize = 64;

/// Free blocks are worth a compaction where they are more by this part of what values take.
const COMPACTION_SHARE: usize = 32;
/// Where others have more than this in memory, they evict before values on disk are given up.
const STORED_MIN: usize = 256 << 10;
/// How much is evicted at a time, where what is taken is beyond the limit by no more than [`BEYOND_SHARE`].
const EVICTED_TOGETHER: u32 = 64;
/// Of a range, as many outputs are evicted in the time in which one thing is.
const OUTPUTS_A_THING: usize = 32;
/// As many things are evicted in the time of a step of a compaction.
const THINGS_A_COMPACTION_STEP: u32 = 8;
/// The part of the limit that eviction may be behind.
const BEYOND_SHARE: usize = 64;
/// An operation that has given up is run again when it has this part of the limit, at least: with less than it needs for a slice it
/// would give up as often as it may.
const LEAST_WANTED_SHARE: usize = 1024;
/// How often an operation that goes on in slices may lack memory at one place, with room made for it each time.
const SHORTAGES_MAX: u32 = 8;
/// How many keys are looked at in one step of a compaction.
const COMPACTION_STEP: usize = 1 << 12;

/// The bound, and what is known of use.
#[derive(Debug)]
pub(crate) struct Memory {
    meter: Option<Rc<dyn Meter>>,
    limit: Option<usize>,
    policy: Policy,
    /// Judges ranges.
    pub(crate) ranges: Evictor,
    /// Judges keys, where any may go.
    keys: Option<Evictor>,
    /// Those of kept tables may go under any policy.
    is_persistent: bool,
    /// Keys that were there when it was looked at last.
    key_count: usize,
    /// A table whose keys stay for now.
    pub(crate) staying: Option<TableId>,
    pub(crate) evicted: Evicted,
    /// Free bytes among the values that the last compaction left.
    scattered: usize,
    /// How far a compaction has come with streams.
    moving: MovingChunks,
    pub(crate) compactions: u64,
    /// What the operation under way would take at least, where it has given up; nothing in it: no memory that may become
    /// free is enough.
    lacking: Option<Option<usize>>,
    /// What the last operation that failed for want of memory would have taken at least.
    wanted: Option<usize>,
    /// How many bytes are to be gained still, where eviction goes on in steps.
    to_gain: Option<usize>,
    /// What goes does so for no want of memory.
    pub(crate) evicts_at_will: bool,
    /// Outputs of ranges that were evicted since a step began to count them.
    outputs_gone: usize,
    /// Outputs that writes have added since it was looked at what is taken, about.
    fed: usize,
    secret: Secret,
    draws: u64,
}

/// The memory of values, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValueMemory {
    /// Taken from the system.
    pub taken: usize,
    /// Free for further values.
    pub spare: usize,
    /// What was never written of the free part: it takes no memory yet.
    pub untouched: usize,
}

/// What has been evicted so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Materialized ranges of joins.
    pub ranges: u64,
    /// Ranges that had been loaded from sources.
    pub loaded: u64,
    /// Base keys.
    pub keys: u64,
    /// Oldest parts of streams, for good.
    pub chunks: u64,
}

impl Memory {
    pub(crate) fn new(secret: Secret, draws: u64) -> Self {
        Self {
            meter: None,
            limit: None,
            policy: Policy { volatile: false, order: None },
            ranges: Evictor::new(Order::Cost, draws),
            keys: None,
            is_persistent: false,
            key_count: 0,
            staying: None,
            evicted: Evicted::default(),
            scattered: 0,
            moving: MovingChunks::default(),
            compactions: 0,
            lacking: None,
            wanted: None,
            to_gain: None,
            evicts_at_will: false,
            outputs_gone: 0,
            fed: 0,
            secret,
            draws,
        }
    }

    /// Lets keys of kept tables go.
    pub(crate) fn begin_persistence(&mut self) {
        self.is_persistent = true;
        if self.keys.is_none() {
            self.judge();
        }
    }

    fn judge(&mut self) {
        let order = self.policy.order.or(self.is_persistent.then_some(Order::Cost));
        self.keys = order.map(|order| Evictor::new(order, self.draws));
    }

    /// The byte of a key's heat after one more use; the same where no policy asks for it.
    #[inline]
    pub(crate) fn used_again(&self, heat: u8) -> u8 {
        self.keys.as_ref().map_or(heat, |keys| keys.hit(Heat::from_byte(heat)).byte())
    }

    /// Ends the operation under way; whether it has given up for want of memory.
    pub(crate) fn ends_lacking(&mut self) -> bool {
        let lacking = self.lacking.take();
        self.wanted = lacking.unwrap_or(self.wanted);
        lacking.is_some()
    }

    /// An operation that has just failed for want of memory did so `times` times before, each time with the room that was made for it: others
    /// take some of that, so twice as much is to be made each time, and none where that has come to nothing [`SHORTAGES_MAX`] times.
    pub(crate) fn want_again(&mut self, times: u32) {
        self.wanted = self.wanted.filter(|_| times < SHORTAGES_MAX);
        self.wanted = self.wanted.map(|bytes| bytes.saturating_mul(1 << times));
    }

    /// Notes that an operation could be done with so many bytes more.
    pub(crate) fn want(&mut self, bytes: usize) {
        self.wanted = Some(bytes);
    }

    /// Bytes that remembering what was evicted takes.
    pub(crate) fn bytes(&self) -> usize {
        self.ranges.bytes() + self.keys.as_ref().map_or(0, Evictor::bytes)
    }
}

impl Engine {
    /// Sets what tells how much memory is taken, and how much may be. Without a limit nothing
    /// is evicted.
    pub fn set_memory(&mut self, meter: Rc<dyn Meter>, limit: Option<usize>) {
        self.memory.meter = Some(meter);
        self.memory.limit = limit;
    }

    /// Changes how much memory may be taken. What is above it goes with the next
    /// [`Engine::make_room`].
    pub fn set_memory_limit(&mut self, limit: Option<usize>) {
        self.memory.limit = limit;
    }

    /// Sets which base keys may be evicted, and by what they are judged. Use before this is
    /// forgotten.
    pub fn set_eviction_policy(&mut self, policy: Policy) {
        if self.memory.policy != policy {
            self.memory.policy = policy;
            self.memory.judge();
        }
    }

    /// Which base keys may be evicted.
    #[must_use]
    pub fn eviction_policy(&self) -> Policy {
        self.memory.policy
    }

    /// Sets what the memory of values may take from the system. Where it is reached, free blocks
    /// of other sizes serve, before it is exceeded.
    pub fn set_value_memory_limit(&mut self, bytes: usize) {
        self.store.pool.set_limit(bytes);
    }

    /// What the memory of values has taken from the system. Costs a look at every buffer.
    #[must_use]
    pub fn value_memory(&self) -> ValueMemory {
        let pool = &self.store.pool;
        let (taken, spare) = (pool.allocated(), pool.spare());
        ValueMemory { taken, spare, untouched: pool.untouched() }
    }

    /// Whether `bytes` more fit under the limit as things are.
    #[inline]
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        match (&self.memory.meter, self.memory.limit) {
            (Some(meter), Some(limit)) => meter.used().saturating_add(bytes) <= limit,
            _ => true,
        }
    }

    /// By how much `bytes` more would exceed the limit and what is let through beyond it.
    #[must_use]
    pub fn excess(&self, bytes: usize) -> usize {
        match (&self.memory.meter, self.memory.limit) {
            (Some(meter), Some(limit)) => {
                let most = limit + self.let_through(limit);
                meter.used().saturating_add(bytes).saturating_sub(most)
            }
            _ => 0,
        }
    }

    /// As [`Engine::has_room`], where `values` bytes more are in values: for those the free blocks
    /// among the values serve. A part of what is free there is let through beyond the limit, up
    /// to [`SPARE_BEYOND`]: evicting more would free more blocks, but no memory.
    #[inline]
    pub(crate) fn has_room_for(&self, bytes: usize, values: usize) -> bool {
        let (Some(meter), Some(limit)) = (&self.memory.meter, self.memory.limit) else {
            return true;
        };
        let spare = self.store.pool.spare();
        let lacking = values.saturating_sub(spare - spare / 8);
        let taken = meter.used().saturating_add(bytes).saturating_add(lacking);
        taken <= limit + self.let_through(limit)
    }

    /// As [`Engine::has_room_for`], with [`BEYOND_SHARE`] of the limit more.
    fn has_nearly_room_for(&self, bytes: usize, values: usize) -> bool {
        let more = self.memory.limit.map_or(0, |limit| limit / BEYOND_SHARE);
        self.has_room_for(bytes.saturating_sub(more), values)
    }

    /// How far beyond the limit what is taken is let through.
    #[inline]
    fn let_through(&self, limit: usize) -> usize {
        (self.store.pool.spare() / 8).min(limit / SPARE_BEYOND)
    }

    /// How many bytes an execution may collect before it gives up. What it collects is stored after,
    /// so that three times as much must fit, by the measure of [`Engine::has_room_for`]: else one that
    /// gave up would find room without anything having gone, and give up again.
    pub(crate) fn allowance(&self) -> usize {
        match (&self.memory.meter, self.memory.limit) {
            (Some(meter), Some(limit)) => {
                (limit + self.let_through(limit)).saturating_sub(meter.used()) / 3
            }
            _ => usize::MAX,
        }
    }

    /// Evicts until `bytes` more fit under the limit; `false` where all that can go has gone
    /// and they still do not fit. To be called between operations. What is little beyond the limit goes in steps,
    /// one a call, so that nobody waits for long.
    #[inline]
    pub fn make_room(&mut self, bytes: usize) -> bool {
        self.make_room_for(bytes, 0)
    }

    /// As [`Engine::make_room`], for `values` bytes in values besides `bytes` of anything else.
    #[inline]
    pub fn make_room_for(&mut self, bytes: usize, values: usize) -> bool {
        self.has_room_for(bytes, values)
            || self.evict_for(bytes, values, u32::MAX).unwrap_or_default()
    }

    /// As [`Engine::make_room_for`], beside a `reserve` that is to be free, in steps where work is [done in slices](Engine::set_slice),
    /// however much is lacking: `None` where this is to be called again, when others were served. Until the reserve is there, each
    /// caller has to free more than it takes, and does not wait for all of it.
    #[inline]
    pub fn make_room_in_steps(
        &mut self,
        bytes: usize,
        values: usize,
        reserve: usize,
    ) -> Option<bool> {
        let whole = bytes.saturating_add(reserve);
        if self.has_room_for(whole, values) {
            self.memory.to_gain = None;
            return Some(true);
        }
        if self.reads.slices.rows().is_none() {
            return self.evict_for(whole, values, u32::MAX);
        }
        let before = self.used_but_spare();
        let done = self.evict_for(whole, values, EVICTED_TOGETHER);
        let gained = before.saturating_sub(self.used_but_spare());
        let takes = bytes.saturating_add(values);
        if done.is_none() && gained / 2 > takes && self.has_room_for(bytes, values) {
            self.memory.to_gain = None;
            return Some(true);
        }
        done
    }

    /// Bytes that are taken, but for what is free among the values.
    fn used_but_spare(&self) -> usize {
        self.memory.used().saturating_sub(self.store.pool.spare())
    }

    /// Evicts for so many bytes, not much more than `most` things; `None` where it is to go on.
    #[cold]
    fn evict_for(&mut self, bytes: usize, values: usize, most: u32) -> Option<bool> {
        if self.memory.limit.is_some_and(|limit| bytes.saturating_add(values) > limit) {
            // It would not fit beside nothing.
            return Some(false);
        }
        let (before, lacked) = (self.memory.used(), self.memory.lacking_for(bytes, values));
        let mut looks_at = self.stored_bytes_after(bytes + values);
        let mut looked = false;
        let mut evicted = 0_u32;
        self.memory.outputs_gone = 0;
        while !self.has_room_for(bytes, values) {
            if evicted >= EVICTED_TOGETHER && self.has_nearly_room_for(bytes, values) {
                return Some(true);
            }
            if evicted >= most {
                return self.memory.has_gained(before.saturating_sub(self.memory.used()), lacked);
            }
            if self.stored_bytes() < looks_at {
                // What went is with another thread, or others have grown: it is to be known before more goes.
                self.memory.look_again();
                looks_at = self.stored_bytes_after(bytes + values);
                continue;
            }
            // What the values leave free goes before anything that is of use.
            let gained = self.store.pool.shrink(2 * values) > 0
                || self.compact(self.memory.lacking_for(bytes, values), 2 * values);
            let asks_first = !gained && self.is_on_disk();
            if asks_first && self.memory.gain(self.memory.lacking_for(bytes, values)) {
                continue;
            }
            evicted += if gained { THINGS_A_COMPACTION_STEP } else { 1 };
            let could_go = gained || self.evict_one();
            let outputs = core::mem::take(&mut self.memory.outputs_gone) / OUTPUTS_A_THING;
            evicted = evicted.saturating_add(u32::try_from(outputs).unwrap_or(u32::MAX));
            if !could_go && !self.memory.gain(self.memory.lacking_for(bytes, values)) {
                // What is on its way to disk is memory still, and others have freed some of what is counted here.
                if !self.base.spilling.settle() && (looked || !self.base.spilling.is_there()) {
                    return Some(false);
                }
                looked = true;
                self.memory.look_again();
            }
        }
        Some(true)
    }

    /// Bytes of values that are in memory.
    fn stored_bytes(&self) -> usize {
        self.store.pool.allocated() - self.store.pool.spare()
    }

    /// Whether what can be evicted is on disk already, but for a little: what goes next is lost, and gives hardly any
    /// memory.
    fn is_on_disk(&self) -> bool {
        self.base.spilling.holds_any() && self.stored_bytes() < STORED_MIN
    }

    /// What is left of them when so much has gone that `bytes` should be free.
    fn stored_bytes_after(&self, bytes: usize) -> usize {
        let share = 2 * self.store.pool.allocated() / COMPACTION_SHARE;
        self.stored_bytes().saturating_sub(bytes.saturating_mul(2).saturating_add(share))
    }

    /// Evicts until so many bytes less are taken; `false` where all that can go has gone before. Others that share the
    /// bound ask for this. To be called between operations.
    pub fn give_up(&mut self, bytes: usize) -> bool {
        let Some(meter) = self.memory.meter.clone() else { return false };
        let most = meter.used().saturating_sub(bytes);
        // Values on their way to disk are memory still: so much and no more of them goes for what is asked.
        let (had, enough) = (self.stored_bytes(), self.stored_bytes_after(bytes));
        let has_given = |own: &Self| had > enough && own.stored_bytes() <= enough;
        while meter.used() > most && !has_given(self) {
            if self.is_on_disk() {
                return false;
            }
            let lacking = meter.used() - most;
            let gained = self.store.pool.shrink(0) > 0 || self.compact(lacking, 0);
            if !gained && !self.evict_one() {
                return false;
            }
        }
        true
    }

    /// Brings scattered values together where that gives about `lacking` bytes of memory back, or
    /// goes on with it; whether something was done.
    pub fn compact(&mut self, lacking: usize, keep: usize) -> bool {
        let pool = &self.store.pool;
        if !pool.is_compacting() {
            let (spare, share) = (pool.spare(), pool.allocated() / COMPACTION_SHARE);
            // What could not be won the last time will not be won now.
            self.memory.scattered = self.memory.scattered.min(spare);
            if spare < self.memory.scattered + share.max(lacking) {
                return false;
            }
            if !self.store.begin_compaction() {
                self.memory.scattered = spare;
                return false;
            }
            self.memory.compactions += 1;
            self.memory.moving = MovingChunks::default();
        }
        self.move_values(COMPACTION_STEP, keep);
        if !self.store.pool.is_compacting() {
            self.memory.scattered = self.store.pool.spare();
        }
        true
    }

    /// Goes on with moving the values of about `keys` keys within memory, or begins to, whether it gains anything or
    /// not. For tests: values may move at any time.
    pub fn compact_any(&mut self, keys: usize) {
        if !self.store.pool.is_compacting() {
            self.memory.moving = MovingChunks::default();
            if !self.store.begin_moving_all() {
                return;
            }
        }
        self.move_values(keys, 0);
    }

    /// Goes on with a compaction, for about `most` values: those of streams first.
    fn move_values(&mut self, most: usize, keep: usize) {
        let (streams, pool) = (&mut self.base.streams, &mut self.store.pool);
        match streams.move_chunks(pool, &mut self.memory.moving, most) {
            0 => _ = pool.shrink(keep),
            left => _ = self.store.compact(left, keep),
        }
    }

    /// After an operation failed with [`OutOfMemory`](crate::EngineError::OutOfMemory): evicts
    /// for it; whether it is worth while to run it again.
    pub fn make_room_again(&mut self) -> bool {
        self.memory.wanted.take().is_some_and(|bytes| self.make_room(bytes))
    }

    /// Whether what an operation lacked is about to be given back by somebody: it should be run again in a moment.
    #[must_use]
    pub fn room_comes(&self) -> bool {
        self.memory.meter.as_ref().is_some_and(|meter| meter.comes())
    }

    /// What has been evicted so far.
    #[must_use]
    pub fn evicted(&self) -> Evicted {
        self.memory.evicted
    }

    /// The value of a stored key, which is noted as used.
    #[inline]
    pub(crate) fn stored(&mut self, table: TableId, key: &[u8]) -> Option<ValueRef> {
        if self.memory.keys.is_none() {
            return self.store.table(table).get(key);
        }
        self.store.table_mut(table).0.touch(key, |heat| self.memory.used_again(heat))
    }

    /// How often a stored key was used lately, halved for the time since, without counting this as a use; `None`
    /// where the policy in force counts no uses, or where there is no such key.
    pub fn uses(&mut self, key: &[u8]) -> Option<u8> {
        let keys = self.memory.keys.as_ref()?;
        let table = self.store.table_of(key)?;
        let mut found = None;
        self.store.table_mut(table).0.touch(key, |heat| {
            found = keys.uses(Heat::from_byte(heat));
            heat
        })?;
        found
    }

    /// Notes that a base key came or was written again.
    #[inline]
    pub(crate) fn note_written(&mut self, table: TableId, key: &[u8], is_new: bool) {
        let Some(keys) = &mut self.memory.keys else { return };
        if is_new {
            self.memory.key_count += 1;
            let heat = keys.inserted(self.memory.secret.hash(key), self.memory.key_count);
            self.store.table_mut(table).0.touch(key, |_| heat.byte());
        } else {
            self.store.table_mut(table).0.touch(key, |heat| self.memory.used_again(heat));
        }
    }
}

impl Memory {
    /// What may be taken altogether; `None`: there is no bound.
    pub(crate) fn memory_limit(&self) -> Option<usize> {
        self.limit
    }

    /// Notes what a step has gained, of what was lacking before it; `None` where another one is to come. What went in all
    /// steps counts, as if it had gone at once: a look at what is taken, between them, finds the holes that it left.
    fn has_gained(&mut self, gained: usize, lacked: usize) -> Option<bool> {
        let left = self.to_gain.get_or_insert(lacked);
        *left = left.saturating_sub(gained);
        if *left > 0 {
            return None;
        }
        self.to_gain = None;
        Some(true)
    }

    /// Bytes that are taken.
    fn used(&self) -> usize {
        self.meter.as_ref().map_or(0, |meter| meter.used())
    }

    pub(crate) fn look_again(&self) {
        if let Some(meter) = &self.meter {
            meter.look_again();
        }
    }

    /// Tells others that share the bound what is about to be taken at once.
    pub(crate) fn announce(&self, bytes: usize) {
        if let Some(meter) = &self.meter {
            meter.announce(bytes);
        }
    }

    /// Asks others that share the bound for memory.
    fn gain(&self, bytes: usize) -> bool {
        self.meter.as_ref().is_some_and(|meter| meter.gain(bytes))
    }

    /// Bytes that are lacking beside what the values have to spare.
    fn lacking_for(&self, bytes: usize, values: usize) -> usize {
        let (Some(meter), Some(limit)) = (&self.meter, self.limit) else { return 0 };
        (meter.used() + bytes + values).saturating_sub(limit)
    }

    /// What one of `parts` equal parts of the memory limit has; nothing, without a limit.
    pub(crate) fn part_of_limit(&self, parts: usize) -> usize {
        self.limit.unwrap_or(0) / parts
    }

    /// Notes that an operation gave up for want of memory after collecting `bytes`.
    pub(crate) fn gave_up(&mut self, bytes: usize) {
        let least = self.limit.unwrap_or(0) / LEAST_WANTED_SHARE;
        self.lacking = Some(Some(bytes.saturating_mul(6).max(least)));
    }

    /// Notes that an operation gave up for want of memory, and would do so again, whatever went for it.
    pub(crate) fn gave_up_for_good(&mut self) {
        self.lacking = Some(None);
    }

    /// Whether the operation under way has given up for want of memory.
    pub(crate) fn lacks(&self) -> bool {
        self.lacking.is_some()
    }
}
