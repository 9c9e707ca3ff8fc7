//! How much time commands take: all of each kind, exactly, and how it is spread.
//!
//! Reading the clock around each command would cost several percent of the server's speed. So it is read where one run of
//! requests of one kind ends and the next begins: at the ends of what a connection sends at once, and where a pipeline goes
//! on with another command. All time is counted that way, and is that of the right command; only how it is spread among
//! the requests of one run is not known, and each counts with their mean.
//!
//! # Invariants
//! - T1. While a run is under way (`running`), `began` is when it began. Outside of a turn of a connection none is.
//! - T2. The spread of a shard's times is written by that shard alone, and read by all.
//!
//! # Cost
//! A comparison and an addition for each request, and two readings of the clock for each run.

use headwater_command::Id;
use headwater_command::table::NUMBERS;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// So many requests of a run at most count with one mean.
const RUN_MAX: u32 = 32;
/// Each doubling of a time is divided into so many classes: a percentile is right to 1/16.
const CLASSES: u64 = 16;
const CLASS_BITS: u32 = CLASSES.ilog2();
/// Times of 2^40 nanoseconds, some 18 minutes, and more are one class.
const DOUBLINGS: u32 = 40;
const CLASSES_ALL: usize = (CLASSES * (DOUBLINGS as u64 - CLASS_BITS as u64 + 1)) as usize;

/// The class of a time.
fn class_of(nanos: u64) -> usize {
    if nanos < CLASSES {
        return nanos as usize;
    }
    let doubling = nanos.ilog2().min(DOUBLINGS - 1);
    let part = (nanos >> (doubling - CLASS_BITS)).min(2 * CLASSES - 1) - CLASSES;
    (u64::from(doubling - CLASS_BITS + 1) * CLASSES + part) as usize
}

/// The greatest time of a class.
fn most_of(class: usize) -> u64 {
    let class = class as u64;
    if class < CLASSES {
        return class;
    }
    let shift = (class / CLASSES - 1) as u32;
    ((CLASSES + class % CLASSES + 1) << shift) - 1
}

/// How the times of one command are spread: requests by class.
type Classes = Box<[AtomicU64]>;

/// How the times of each command are spread at one shard.
#[derive(Debug)]
struct Spread {
    commands: Vec<OnceLock<Classes>>,
}

impl Spread {
    fn new() -> Self {
        Self { commands: (0..NUMBERS).map(|_| OnceLock::new()).collect() }
    }

    fn add(&self, id: Id, nanos: u64, count: u64) {
        let classes = self.commands[id as usize]
            .get_or_init(|| (0..CLASSES_ALL).map(|_| AtomicU64::new(0)).collect());
        let class = &classes[class_of(nanos)];
        // Nobody else writes (T2).
        class.store(class.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    fn reset(&self) {
        for classes in self.commands.iter().filter_map(OnceLock::get) {
            classes.iter().for_each(|class| class.store(0, Ordering::Relaxed));
        }
    }
}

/// How the times of commands are spread at all shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spreads(Arc<Mutex<Vec<Arc<Spread>>>>);

/// How the times of one command are spread at all shards together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Distribution {
    classes: Vec<u64>,
    /// Requests.
    pub(super) count: u64,
}

impl Spreads {
    fn begin(&self) -> Arc<Spread> {
        let own = Arc::new(Spread::new());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(own.clone());
        own
    }

    /// How the times of a command are spread; `None`: it was not asked for.
    pub(super) fn of(&self, id: Id) -> Option<Distribution> {
        let shards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut classes = vec![0; CLASSES_ALL];
        for own in shards.iter().filter_map(|shard| shard.commands[id as usize].get()) {
            for (sum, class) in classes.iter_mut().zip(own) {
                *sum += class.load(Ordering::Relaxed);
            }
        }
        let count = classes.iter().sum();
        (count > 0).then_some(Distribution { classes, count })
    }
}

impl Distribution {
    /// The time, in nanoseconds, that so many of a hundred requests do not exceed.
    pub(super) fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((self.count as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return most_of(class);
            }
        }
        0
    }

    /// How many requests took at most so many microseconds, for each doubling that has further ones. The doublings are of
    /// 1.024 microseconds.
    pub(super) fn doublings(&self) -> Vec<(i64, u64)> {
        let mut steps = Vec::new();
        let (mut seen, mut told, mut class) = (0, 0, 0);
        for doubling in 10..=DOUBLINGS {
            while class < CLASSES_ALL && most_of(class) < 1 << doubling {
                seen += self.classes[class];
                class += 1;
            }
            if seen > told {
                steps.push(((1 << doubling) / 1000, seen));
                told = seen;
            }
        }
        steps
    }
}

/// The times of the commands that this shard executes.
#[derive(Debug)]
pub(super) struct CommandTimes {
    running: Option<Id>,
    /// Requests of the run.
    count: u32,
    began: u64,
    /// All time, by the number of the command's id.
    nanos: Vec<u64>,
    /// It is counted how times are spread.
    spreads: bool,
    own: Arc<Spread>,
    pub(super) all: Spreads,
}

impl CommandTimes {
    /// Nothing was executed yet.
    pub(super) fn new(all: Spreads) -> Self {
        let own = all.begin();
        let nanos = vec![0; NUMBERS];
        Self { running: None, count: 0, began: 0, nanos, spreads: true, own, all }
    }

    /// A request of this kind begins, or goes on that has waited.
    #[inline]
    pub(super) fn enter(&mut self, id: Id) {
        if self.running != Some(id) || self.count >= RUN_MAX {
            self.change(Some(id));
        }
    }

    /// The request is executed here, and has not been before.
    #[inline]
    pub(super) fn count(&mut self) {
        self.count += 1;
    }

    /// No request is executed any more.
    #[inline]
    pub(super) fn rest(&mut self) {
        if self.running.is_some() {
            self.change(None);
        }
    }

    fn change(&mut self, next: Option<Id>) {
        let now = now();
        if let Some(id) = self.running {
            let took = now.saturating_sub(self.began);
            self.nanos[id as usize] += took;
            if self.count > 0 && self.spreads {
                let count = u64::from(self.count);
                self.own.add(id, took / count, count);
            }
        }
        (self.running, self.count, self.began) = (next, 0, now);
    }

    /// Says whether it is counted how times are spread, from now on.
    pub(super) fn set_spreads(&mut self, on: bool) {
        self.spreads = on;
    }

    /// The microseconds that all executions of a command took.
    pub(super) fn micros(&self, id: Id) -> u64 {
        self.nanos[id as usize] / 1000
    }

    /// CONFIG RESETSTAT.
    pub(super) fn reset(&mut self) {
        self.nanos.fill(0);
        self.own.reset();
    }
}

/// A moment, in nanoseconds.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_the_times_up_to_its_greatest() {
        for class in 0..CLASSES_ALL {
            assert_eq!(class_of(most_of(class)), class);
            let next = class_of(most_of(class) + 1);
            assert!(next == class + 1 || class + 1 == CLASSES_ALL, "{class}");
        }
        assert_eq!(class_of(u64::MAX), CLASSES_ALL - 1);
    }

    #[test]
    fn shards_are_taken_together() {
        let all = Spreads::default();
        let (one, other) = (all.begin(), all.begin());
        assert_eq!(all.of(Id::Get), None);
        one.add(Id::Get, 900, 90);
        other.add(Id::Get, 5_000, 9);
        other.add(Id::Get, 2_000_000, 1);
        let spread = all.of(Id::Get).unwrap();
        assert_eq!(spread.count, 100);
        assert_eq!(spread.doublings(), [(1, 90), (8, 99), (2097, 100)]);
        let within = |percent, nanos: u64| {
            let told = spread.percentile(percent);
            assert!(told >= nanos && told <= nanos + nanos / 16, "{told} for {nanos}");
        };
        within(0.0, 900);
        within(50.0, 900);
        within(99.0, 5_000);
        within(99.9, 2_000_000);
        within(100.0, 2_000_000);
        other.reset();
        assert_eq!(all.of(Id::Get).unwrap().count, 90);
    }

    #[test]
    fn a_run_counts_with_its_mean_and_all_time_is_some_commands() {
        let mut times = CommandTimes::new(Spreads::default());
        let before = now();
        for _ in 0..40 {
            times.enter(Id::Get);
            times.count();
        }
        times.enter(Id::Set);
        times.count();
        // It has waited, and goes on.
        times.rest();
        times.enter(Id::Set);
        times.enter(Id::Incr);
        times.rest();
        times.rest();
        let took = now() - before;
        assert!(times.nanos.iter().sum::<u64>() <= took);
        let counts = [Id::Get, Id::Set, Id::Incr].map(|id| times.all.of(id).map(|it| it.count));
        assert_eq!(counts, [Some(40), Some(1), None]);
        times.reset();
        assert_eq!((times.micros(Id::Get), times.all.of(Id::Get)), (0, None));
        times.set_spreads(false);
        times.enter(Id::Get);
        times.count();
        times.rest();
        assert_eq!(times.all.of(Id::Get), None);
    }
}
