//! The memory bound of the process: how much is taken, of how much.
//!
//! The bound covers everything that is resident: values, keys, indexes, joins, clients, the allocator's
//! own needs, the program. What is taken is sampled from the allocator and the system, and in
//! between follows the allocator's count of what this thread holds. A sample is due whenever the heap
//! could have grown noticeably since the last one.
//!
//! # Invariants
//! - B1. Between two samples the process cannot grow by more than [`Gauge::step`] bytes and one
//!   command.
//! - B2. What would make resident more than the bound, if it were all touched, is given back to the
//!   system first.
//!
//! # Where the limits are
//! Of the bound, the engine may have [`TARGET`]; a write must leave the [reserve](Gauge::reserve) of
//! that free, for what reads compute, replies, and clients. Pages that are half empty count as
//! taken, but where they alone exceed the target, a part of it is let through, in proportion to
//! what is free within them: evicting more would make more holes, not fewer pages. Beyond
//! [`CEILING`] nothing is let through.

mod clients;
mod common;
mod heap;
mod program;
mod stores;

pub(crate) use clients::{CLIENT_BYTES, ClientShare};
pub(crate) use common::{Common, Share as CommonShare};
pub(crate) use heap::{Sample, share_first_heap};
pub(crate) use program::ProgramPages;

use crate::sources::SourceMemory;
use core::cell::{Cell, OnceCell};
use headwater_base::memory::Meter;
use headwater_config::LEAST_FOR_DATA;
use headwater_keep::StoreHandle;
use heap::Heap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stores::WatchedStores;

/// What the engine may fill, in 1/1024 of the bound.
const TARGET: usize = 972;
/// Up to where half-empty pages may exceed the target, in 1/1024 of the bound.
const CEILING: usize = 993;
/// What writes leave free, in 1/1024 of the bound.
const RESERVE: usize = 32;
/// Bytes outside the heap that no page of a file holds: stacks and the program's variables.
const OUTSIDE: usize = 512 << 10;
/// The share of free memory within pages that is let through beyond the target.
const HOLES_SHARE: usize = 8;
/// What a further shard takes before it has any data, about.
const SHARD_BYTES: usize = 2 << 20;
/// How often a shard that has nothing to evict asks the others for one command.
const ASKS_MAX: u32 = 8;
/// What a store's threads may take from one moment to the next, in tables: one that is brought to disk and its compressed form,
/// and a batch on its way.
const TABLES_APART: usize = 3;
/// The same in values, where those are larger than a table; and one that is read and written as tables are merged.
const VALUES_APART: usize = TABLES_APART + 2;
/// How long a command waits at most for memory that a store's threads will give back, where nobody is served meanwhile, in
/// milliseconds.
const STORE_PATIENCE: u64 = 2000;
/// The same where others are served: as long as a slow disk may take for a table.
pub(crate) const POSTPONED_PATIENCE: u64 = 20_000;
/// How often it looks meanwhile, or is tried again, in milliseconds.
pub(crate) const STORE_LOOK: u64 = 2;
/// For how long what a look has not found is not looked for again: a look takes longer than the write that it is for, and where
/// memory is full, every write would have one.
const NOTHING_FOUND_FOR: Duration = Duration::from_millis(1);
/// For how long a start waits at most for the threads of stores.
const SETTLES_FOR: Duration = Duration::from_secs(10);

fn part(bound: usize, of_1024: usize) -> usize {
    bound / 1024 * of_1024
}

/// Tells the engine how much is taken.
#[derive(Debug)]
pub(crate) struct Gauge {
    heap: Heap,
    bound: Cell<Option<usize>>,
    /// What other threads may take at any time, of the bound.
    apart: Cell<usize>,
    /// What writes leave free beside the reserve.
    on_its_way: Cell<usize>,
    /// What is taken beside what this thread holds.
    beside: Cell<usize>,
    /// The count of allocated bytes at which the next sample is due.
    due: Cell<u64>,
    peak: Cell<usize>,
    /// What was free for values and never written when it was looked at last.
    untouched: Cell<usize>,
    /// What commands have announced that they take.
    announced: Cell<usize>,
    /// What pages of the program may take at any time, resident or not.
    program: Cell<usize>,
    /// Sources, whose threads take memory that no shard holds.
    sources: OnceCell<Arc<SourceMemory>>,
    /// The other shards, where there are several.
    common: Option<CommonShare>,
    /// The store on disk, where there is one shard; else the others know of it, too (`common`).
    only_stores: WatchedStores,
    /// How long a command may still wait for it.
    patience: Cell<Duration>,
    /// The command under way is to let others be served meanwhile.
    lets_others: Cell<bool>,
    /// It lacked what the store will give back.
    comes: Cell<bool>,
    /// What the threads of stores hold at most, about.
    for_stores: Cell<usize>,
    /// What those of one may take from one look to the next.
    for_one: Cell<usize>,
    /// How often others may still be asked for the command under way.
    asks_left: Cell<u32>,
    /// When others were last found to have freed nothing.
    nothing_found: Cell<Option<Instant>>,
    /// How often it has looked.
    looks: Cell<u64>,
    /// What is taken as a simulation has it, whatever is true of the process.
    #[cfg(test)]
    simulated: Cell<Option<usize>>,
}

impl Meter for Gauge {
    #[inline]
    fn used(&self) -> usize {
        #[cfg(test)]
        if let Some(used) = self.simulated.get() {
            return used;
        }
        self.beside.get().wrapping_add(self.heap.live())
    }

    #[cold]
    fn look_again(&self) {
        self.refresh(self.untouched.get());
    }

    #[inline]
    fn announce(&self, bytes: usize) {
        self.announce_beside(bytes, || self.untouched.get());
    }

    #[cold]
    fn gain(&self, bytes: usize) -> bool {
        #[cfg(test)]
        if self.simulated.get().is_some() {
            return false;
        }
        let (Some(common), Some(left)) = (&self.common, self.asks_left.get().checked_sub(1)) else {
            return self.wait_for_store(bytes);
        };
        self.asks_left.set(left);
        // A little more than is lacking: what is freed leaves holes.
        if common.wait_for(bytes + bytes / 8 + self.bound.get().unwrap_or(0) / 256) {
            self.refresh(self.untouched.get());
            common.end_dry();
            return true;
        }
        // What is there now may have come from others than those that were asked: a store's threads have freed it since the last look.
        self.finds_more() || self.wait_for_store(bytes)
    }

    fn comes(&self) -> bool {
        self.gains_soon()
    }
}

impl Gauge {
    /// So much is taken from now on, of the bound.
    #[cfg(test)]
    pub(crate) fn simulate(&self, used: usize) {
        self.simulated.set(Some(used));
    }

    /// A gauge of this process, to be used by this thread.
    pub(crate) fn new(common: Option<CommonShare>) -> io::Result<Self> {
        // Simulated shards are one thread's, and too many for an arena each.
        let apart = common.as_ref().is_some_and(|common| !common.is_first()) && !cfg!(test);
        let gauge = Self {
            heap: Heap::new(apart)?,
            bound: Cell::new(None),
            apart: Cell::new(0),
            on_its_way: Cell::new(0),
            beside: Cell::new(0),
            due: Cell::new(0),
            peak: Cell::new(0),
            untouched: Cell::new(0),
            announced: Cell::new(0),
            program: Cell::new(0),
            sources: OnceCell::new(),
            common,
            only_stores: WatchedStores::default(),
            patience: Cell::new(Duration::from_millis(STORE_PATIENCE)),
            lets_others: Cell::new(false),
            comes: Cell::new(false),
            for_stores: Cell::new(0),
            for_one: Cell::new(0),
            asks_left: Cell::new(ASKS_MAX),
            nothing_found: Cell::new(None),
            looks: Cell::new(0),
            #[cfg(test)]
            simulated: Cell::new(None),
        };
        gauge.refresh(0);
        Ok(gauge)
    }

    /// Counts on the threads of the stores of all shards: what those of one take grows with its `table`, in bytes, is `most` at
    /// most, and is given back when it is written.
    pub(crate) fn set_store(&self, store: &StoreHandle, (table, most): (usize, usize)) {
        let bytes = TABLES_APART * table;
        self.stores().add(store.watch());
        self.apart.set(self.apart.get() + bytes * self.shards());
        self.for_stores.set(most * self.shards());
        self.for_one.set(bytes);
    }

    /// What the threads of a store may take for values of so many bytes beyond what is left to them anyway: what they do with
    /// tables they do with a value that is larger than one.
    pub(crate) fn beside_values(&self, bytes: usize) -> usize {
        match self.for_one.get() {
            0 => 0,
            apart => bytes.saturating_mul(VALUES_APART).saturating_sub(apart),
        }
    }

    /// Counts what threads of sources are about to take.
    pub(crate) fn set_sources(&self, sources: &Arc<SourceMemory>) {
        // A shard has its sources once.
        let _ = self.sources.set(Arc::clone(sources));
    }

    /// The stores whose threads take of the same bound.
    fn stores(&self) -> &WatchedStores {
        self.common.as_ref().map_or(&self.only_stores, CommonShare::stores)
    }

    /// Whether a command whose largest value has so many bytes had better wait: the threads of a store are writing or merging
    /// tables, for which they may hold several values of that size, and those of several stores that do so at the same time
    /// would take too much. What fits a table is left room for.
    #[inline]
    pub(crate) fn store_delays(&self, largest: impl FnOnce() -> usize) -> bool {
        let apart = self.for_one.get();
        let delays = apart > 0 && largest() > apart / TABLES_APART && self.stores().is_any_busy();
        if delays {
            self.comes.set(true);
        }
        delays
    }

    /// Whether memory comes without anything being evicted: the threads of stores give some back, by themselves or because they
    /// are asked to now, or other shards look what became of what they announced.
    pub(crate) fn is_coming(&self) -> bool {
        let look = || self.common.as_ref().is_some_and(CommonShare::have_others_look);
        self.stores().is_any_writing() || self.stores().give_back() | look()
    }

    /// Whether this shard announced what a command takes, and has not looked since.
    pub(crate) fn has_announced(&self) -> bool {
        self.common.as_ref().is_some_and(CommonShare::has_announced)
    }

    /// Looks whether others have freed something since the last look, if it has not just found that they have not.
    fn finds_more(&self) -> bool {
        if self.nothing_found.get().is_some_and(|at| at.elapsed() < NOTHING_FOUND_FOR) {
            return false;
        }
        let before = self.used();
        // Pages that other threads have freed and not given back count as taken.
        if self.for_one.get() > 0 {
            self.heap.purge_all();
        }
        self.refresh(self.untouched.get());
        let found = self.used() < before;
        self.nothing_found.set((!found).then(Instant::now));
        found
    }

    /// Waits for a store's threads to give about so many bytes back; whether they or others gave any.
    #[cold]
    fn wait_for_store(&self, bytes: usize) -> bool {
        if self.lets_others.get() {
            let comes = self.is_coming();
            self.comes.set(comes);
            if comes {
                // When it has come, that is to be seen: whatever was not found before.
                self.nothing_found.set(None);
                return false;
            }
            // It may have ended after the last look.
            return self.finds_more();
        }
        let (began, before) = (Instant::now(), self.used());
        let mut gave = false;
        while began.elapsed() < self.patience.get() && self.is_coming() {
            std::thread::sleep(Duration::from_millis(STORE_LOOK));
            if let Some(common) = self.common.as_ref().filter(|common| common.asked() > 0) {
                // It has nothing to give itself, and who asks is not to wait for that (C1).
                common.answer(0, true);
            }
            self.refresh(self.untouched.get());
            gave = self.used() < before;
            if self.used().saturating_add(bytes) <= before {
                break;
            }
        }
        self.patience.set(self.patience.get().saturating_sub(began.elapsed()));
        gave || self.finds_more()
    }

    /// Sets the bound, in bytes.
    pub(crate) fn set_bound(&self, bound: Option<usize>) {
        self.bound.set(bound);
        self.heap.set_thread_cache(bound.is_none());
        self.due.set(0);
    }

    /// Leaves so many bytes of the bound to other threads: what they take is seen only by the next
    /// sample.
    pub(crate) fn set_apart(&self, bytes: usize) {
        self.apart.set(self.apart.get() + bytes);
    }

    /// Has writes leave so many bytes more free, for what is on its way between threads.
    pub(crate) fn set_on_its_way(&self, bytes: usize) {
        self.on_its_way.set(bytes);
    }

    /// Leaves so many bytes of the bound to pages of the program: what runs seldom comes when it is
    /// needed, and must find room.
    pub(crate) fn set_program(&self, bytes: usize) {
        // The first shard begins with all pages of the start, the others when most have gone.
        let most = self.common.as_ref().map_or(bytes, |common| common.tell_program(bytes));
        self.program.set(most);
    }

    /// At a start, waits until the threads of stores have done what a crash left them, as long as that takes much of a bound: it is not what the
    /// server takes.
    pub(crate) fn let_stores_settle(&self, bound: usize) {
        let began = Instant::now();
        loop {
            self.heap.purge_all();
            let sample = self.heap.sample();
            let empty = sample.resident.saturating_sub(sample.files);
            if empty + self.beside_empty(&sample) <= bound
                || !self.stores().is_any_busy()
                || began.elapsed() > SETTLES_FOR
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(STORE_LOOK));
        }
    }

    /// The least bound that the server can work with; `ready`: what it took when it was ready, `None` if it is about to be.
    pub(crate) fn least(&self, ready: Option<Sample>) -> usize {
        const STEP: usize = 1 << 20;
        let sample = ready.unwrap_or_else(|| self.heap.sample());
        let empty = sample.resident.saturating_sub(sample.files);
        let empty = self
            .common
            .as_ref()
            .map_or(empty, |common| common.tell_empty(empty + common.to_come() * SHARD_BYTES));
        (empty + self.beside_empty(&sample)).div_ceil(STEP) * STEP
    }

    /// What a server needs beside what it takes without data.
    fn beside_empty(&self, sample: &Sample) -> usize {
        // Pages of the program come and go with what it runs and what the system has room for: what is left to them counts
        // as taken, and of those that were there only what exceeds it. Both are of one moment, so that none counts twice.
        let program = self.program.get().max(sample.files);
        let beside = program + self.apart.get() + self.for_stores.get() + self.on_its_way.get();
        // What is read from a store needs room at each shard: none lends its last to another.
        let shards = if self.for_stores.get() > 0 { self.shards() } else { 1 };
        beside + shards * LEAST_FOR_DATA
    }

    /// What a bound leaves to data, and to what comes and goes with them; `ready`: as in [`Gauge::least`].
    pub(crate) fn left_for_data(&self, bound: usize, ready: Option<Sample>) -> usize {
        bound.saturating_sub(self.least(ready).saturating_sub(LEAST_FOR_DATA))
    }

    /// What the process took when all shards were ready, without pages of files and what the allocator holds beside what is
    /// allocated; `ready`: when this one was.
    pub(crate) fn at_start(&self, ready: Sample) -> usize {
        let apart = ready.files + ready.beside_allocated();
        let bytes = ready.resident.saturating_sub(apart);
        self.common.as_ref().map_or(bytes, |common| common.tell_ready(bytes))
    }

    /// What the engine may have altogether; `None`: there is no bound.
    pub(crate) fn limit(&self) -> Option<usize> {
        let most = |bound| part(bound, TARGET).saturating_sub(self.apart.get());
        self.bound.get().map(most)
    }

    /// What a write leaves free.
    pub(crate) fn reserve(&self) -> usize {
        self.bound.get().map_or(0, |bound| part(bound, RESERVE) + self.on_its_way.get())
    }

    /// Whether the heap may have grown so much that a sample is due.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.heap.gross() >= self.due.get()
    }

    /// Bytes that are resident, or will be without further allocation: `untouched` bytes are free
    /// for values but were never written. What else was allocated and never written is found
    /// by the next sample.
    fn taken(sample: &Sample, untouched: usize) -> usize {
        let in_use = sample.active + sample.metadata + sample.files + OUTSIDE;
        in_use.min(sample.resident + untouched)
    }

    /// How much may be allocated before the next sample, by each of so many shards.
    fn step(bound: usize, taken: usize, shards: usize) -> usize {
        (part(bound, TARGET).saturating_sub(taken) / 4).max(bound / 256) / shards
    }

    /// Looks again at what is taken. `untouched` bytes are free within the memory of values and
    /// were never written.
    ///
    /// Pages of freed memory do not stay where what is announced could not be resident beside them.
    pub(crate) fn refresh(&self, untouched: usize) {
        self.untouched.set(untouched);
        self.looks.set(self.looks.get() + 1);
        let announced = self.announced.get();
        let mut sample = self.heap.sample();
        self.peak.set(self.peak.get().max(sample.resident));
        let bound = self.bound.get().unwrap_or(usize::MAX);
        let common = self.common.as_ref();
        let shards = common.map_or(1, CommonShare::shards);
        let untouched = common.map_or(untouched, |common| common.tell_untouched(untouched));
        let promised = common.map_or(0, CommonShare::promised_to_others)
            + self.sources.get().map_or(0, |sources| sources.promised());
        let mut taken = Self::taken(&sample, untouched);
        let step = Self::step(bound, taken + promised, shards);
        let most = |sample: &Sample| {
            let more = step.max(announced);
            sample.resident.saturating_add(untouched + promised).saturating_add(more)
        };
        if most(&sample) > part(bound, TARGET) {
            self.heap.purge();
            sample = self.heap.sample();
            if most(&sample) > part(bound, TARGET)
                && sample.held.saturating_sub(sample.active + sample.metadata) > step
            {
                self.heap.purge_all();
                sample = self.heap.sample();
            }
            // No page of freed memory is left in it: what is resident is taken.
            taken = sample.resident + untouched;
        }
        taken += self.program.get().saturating_sub(sample.files) + promised;
        let above = taken.saturating_sub(part(bound, TARGET));
        let holes = sample.active.saturating_sub(sample.allocated);
        let let_through = above.min(holes / HOLES_SHARE).min(part(bound, CEILING - TARGET));
        self.beside.set((taken - let_through).wrapping_sub(self.heap.live()));
        let step = Self::step(bound, taken, shards);
        self.due.set(self.heap.gross().saturating_add(step as u64));
        if let Some(common) = common {
            let promised = if self.bound.get().is_some() { step } else { 0 };
            common.tell(self.heap.own_active(), promised, announced);
        }
    }

    /// The other shards, where there are several.
    pub(crate) fn common(&self) -> Option<&CommonShare> {
        self.common.as_ref()
    }

    /// How many shards share the bound.
    pub(crate) fn shards(&self) -> usize {
        self.common.as_ref().map_or(1, CommonShare::shards)
    }

    /// How much may be allocated now before the next sample.
    pub(crate) fn step_now(&self) -> usize {
        self.due.get().saturating_sub(self.heap.gross()) as usize
    }

    /// A command is about to take so much: where that is more than what may be taken between two samples, it is looked first, and
    /// others are told. As [`Gauge::refresh`], it is told what is free for values and was never written. That holds until
    /// [`Gauge::end_announced`].
    #[inline]
    pub(crate) fn announce_beside(&self, bytes: usize, untouched: impl FnOnce() -> usize) {
        if bytes > self.step_now() && self.bound.get().is_some() {
            if let Some(common) = &self.common {
                // Before it looks: of two that look at the same time, one at least sees what the other is about to take.
                common.promise(bytes);
            }
            self.announced.set(self.announced.get() + bytes);
            self.refresh(untouched());
        }
    }

    /// What was announced has been taken, or will not be.
    #[inline]
    pub(crate) fn end_announced(&self) {
        self.announced.set(0);
    }

    /// This thread will free what another has allocated: without a word it would seem to hold less than it does until
    /// the next sample.
    #[inline]
    pub(crate) fn take_over(&self, bytes: impl FnOnce() -> usize) {
        if self.bound.get().is_some() {
            self.beside.set(self.beside.get().wrapping_add(bytes()));
        }
    }

    /// A command begins: others may be asked for memory again.
    #[inline]
    pub(crate) fn begin_command(&self) {
        self.asks_left.set(ASKS_MAX);
        self.patience.set(Duration::from_millis(STORE_PATIENCE));
        self.lets_others.set(false);
        self.comes.set(false);
    }

    /// Whether the command under way lacked what a store will give back.
    #[inline]
    pub(crate) fn gains_soon(&self) -> bool {
        self.comes.get()
    }

    /// As [`Gauge::begin_command`], one that has waited for so many milliseconds and can be put off: it is told that what
    /// it lacks [comes](Meter::comes), as long as it has patience, and the thread does not wait.
    #[inline]
    pub(crate) fn begin_postponable(&self, waited: u64) {
        self.begin_command();
        self.patience.set(Duration::ZERO);
        self.lets_others.set(waited < POSTPONED_PATIENCE);
    }

    /// A sample, for those who report.
    pub(crate) fn sample(&self) -> Sample {
        let sample = self.heap.sample();
        self.peak.set(self.peak.get().max(sample.resident));
        sample
    }

    /// The largest resident size that was seen.
    pub(crate) fn peak(&self) -> usize {
        self.peak.get()
    }

    /// The bound; `None`: there is none.
    pub(crate) fn bound(&self) -> Option<usize> {
        self.bound.get()
    }

    /// Gives the freed pages of this shard back to the system.
    pub(crate) fn purge(&self) {
        self.heap.purge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::alone;
    use crate::shards::Transport;
    use headwater_base::Shard;

    #[test]
    fn what_others_have_freed_meanwhile_is_a_gain() {
        alone(module_path!(), "what_others_have_freed_meanwhile_is_a_gain", || {
            let transport = Transport::new(2);
            // The other shard has nothing to give, and no store writes.
            CommonShare::new(Shard(1), transport.clone()).answer(0, true);
            let gauge = Gauge::new(Some(CommonShare::new(Shard(0), transport))).unwrap();
            gauge.set_bound(Some(4 << 30));
            let bytes = vec![1u8; 256 << 20];
            gauge.refresh(0);
            let with = gauge.used();
            std::thread::spawn(move || drop(bytes)).join().unwrap();
            assert!(gauge.used() > with - (1 << 20), "it has not looked since");
            assert!(gauge.gain(1 << 20) && gauge.used() < with - (128 << 20));
        });
    }

    #[test]
    fn who_lacks_memory_does_not_look_for_each_write() {
        alone(module_path!(), "who_lacks_memory_does_not_look_for_each_write", || {
            let transport = Transport::new(2);
            CommonShare::new(Shard(1), transport.clone()).answer(0, true);
            let alone = Gauge::new(None).unwrap();
            for gauge in [alone, Gauge::new(Some(CommonShare::new(Shard(0), transport))).unwrap()] {
                gauge.set_bound(Some(1 << 20));
                let (began, before) = (Instant::now(), gauge.looks.get());
                for _ in 0..10_000 {
                    gauge.begin_postponable(0);
                    gauge.gain(1000);
                }
                // About one a millisecond, by another clock than this one.
                let looks = u128::from(gauge.looks.get() - before);
                let most = 8 + 2 * began.elapsed().as_millis();
                assert!(looks <= most, "{looks} in {:?}", began.elapsed());
            }
        });
    }
}
