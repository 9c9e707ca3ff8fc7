//! How long maintenance takes, for each join: some steps are timed and stand for the others.
//!
//! A *step* is one change of a source key, told to one source of a join; a slice of a large fan-out; or what a read applies of logged
//! changes. The first [`TIMED_EACH`] steps of a join are all timed, later ones one of [`GAP_MEAN`] on average. How many are
//! left out is drawn by chance, or a pattern of writes could have the same kind of step timed each time. A timed step counts once for itself and
//! once for each that was left out before it. A step with [`TARGETS_MANY`] targets is always timed and counts for itself alone: a few of
//! those may take most of the time.
//!
//! The engine knows no clock: it is lent a function that tells nanoseconds, and without one nothing is timed.
//!
//! # Invariants
//! - W1. Time counts once: what a step takes within another one belongs to the inner step.
//! - W2. Nothing but the figure depends on the stopwatch.
//!
//! # Cost
//! A step that is not timed decrements a counter of its join. A timed one reads the clock twice, 50 to 100 ns.

use crate::engine::Engine;

/// Steps of a join that are timed without exception.
const TIMED_EACH: u64 = 64;
/// After those, one step of so many is timed, on average.
const GAP_MEAN: u64 = 64;
/// A step with so many targets is always timed.
const TARGETS_MANY: usize = 256;

/// What tells nanoseconds since some moment; it never goes back.
pub type Stopwatch = fn() -> u64;

/// The stopwatch, and what is being timed.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    stopwatch: Option<Stopwatch>,
    /// While a step is being timed: the nanoseconds that inner steps have taken so far.
    inner_nanos: Option<u64>,
    /// State of the generator that draws gaps.
    draws: u64,
}

/// What one join's maintenance has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MaintenanceTime {
    /// The estimate so far, in nanoseconds.
    pub(crate) nanos: u64,
    /// Steps that were timed for the estimate.
    timed: u64,
    /// Steps that are left out before the next one that is timed.
    left_out: u32,
    /// How many of those there were at first.
    gap: u32,
}

/// A step that is being timed.
#[derive(Debug)]
pub(crate) struct Step {
    begun: u64,
    /// For how many steps it stands; 0: it is timed for the sake of the one around it.
    weight: u64,
    /// What inner steps of the one around it had taken.
    around: Option<u64>,
}

impl Engine {
    /// Lends the engine a stopwatch, by which it tells how long the maintenance of each join takes.
    pub fn set_stopwatch(&mut self, stopwatch: Option<Stopwatch>) {
        self.timing.stopwatch = stopwatch;
    }

    /// A step of a join's maintenance begins; to be ended with [`Engine::end_step`].
    #[inline]
    pub(crate) fn begin_step(&mut self, join: u32) -> Option<Step> {
        let time = &mut self.views.catalog.join_mut(join).counters.maintenance;
        if time.left_out > 0 {
            time.left_out -= 1;
            self.timing.inner_nanos?;
            return self.begin_timed(0);
        }
        self.begin_sampled(join)
    }

    #[cold]
    fn begin_sampled(&mut self, join: u32) -> Option<Step> {
        self.timing.stopwatch?;
        let drawn = self.timing.draw();
        let time = &mut self.views.catalog.join_mut(join).counters.maintenance;
        let weight = u64::from(time.gap) + 1;
        time.timed += 1;
        time.gap = if time.timed < TIMED_EACH { 0 } else { (drawn % (2 * GAP_MEAN - 1)) as u32 };
        time.left_out = time.gap;
        self.begin_timed(weight)
    }

    fn begin_timed(&mut self, weight: u64) -> Option<Step> {
        let begun = (self.timing.stopwatch?)();
        Some(Step { begun, weight, around: self.timing.inner_nanos.replace(0) })
    }

    /// Says how many targets the step under way has: one with many is timed.
    #[inline]
    pub(crate) fn note_targets(&mut self, step: &mut Option<Step>, targets: usize) {
        if targets < TARGETS_MANY {
            return;
        }
        match step {
            Some(step) => step.weight = 1,
            None => *step = self.begin_timed(1),
        }
    }

    /// Ends what [`Engine::begin_step`] began.
    #[inline]
    pub(crate) fn end_step(&mut self, join: u32, step: Option<Step>) {
        if let Some(step) = step {
            self.end_timed(join, &step);
        }
    }

    #[cold]
    fn end_timed(&mut self, join: u32, step: &Step) {
        let now = self.timing.stopwatch.map_or(step.begun, |stopwatch| stopwatch());
        let nanos = now.saturating_sub(step.begun);
        let inner = self.timing.inner_nanos.take().unwrap_or_default();
        self.timing.inner_nanos = step.around.map(|before| before + nanos);
        let own = nanos.saturating_sub(inner);
        self.views.catalog.join_mut(join).counters.maintenance.nanos += own * step.weight;
    }
}

impl Timing {
    /// The next number of a sequence that looks random (splitmix64).
    fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.draws ^ (self.draws >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
