//! How long calls may take, in time of the processor.
//!
//! The clock counts what the world calls time. In it a call may have stood still: its thread was put aside by a busy system. If
//! that ended calls, then what a join shows would depend on what else the machine has to do. So a call that the clock finds
//! at work is looked at, at each tick: from the first look on its thread's processor time counts. Calls that end within a tick,
//! which most do, are never looked at and pay nothing.
//!
//! Functions of flows may read other keys, for which their thread may wait for a disk. That is no time of the processor, but
//! nobody else is served meanwhile: so such calls also end when they have taken many times their limit of the world's time.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// How many times its limit a call may take of the world's time where it may wait.
const WAITS: u32 = 100;

/// The processor time of this thread.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// What calls that are under way may take, together.
#[derive(Debug)]
pub(crate) struct CallTime {
    most: Duration,
    may_wait: bool,
    /// What the clocks said at the first look at these calls.
    first: Option<TimesTaken>,
}

/// What this thread's clock and the world's say at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimesTaken {
    /// The processor time that the thread has had.
    processor: Duration,
    /// The moment, as the world counts.
    world: Instant,
}

impl TimesTaken {
    pub(crate) fn now() -> Self {
        Self { processor: processor_time(), world: Instant::now() }
    }
}

impl CallTime {
    /// Ticks between looks. The one under way may end at once.
    pub(crate) const TICKS: u64 = 1;

    /// Calls that begin now; `may_wait`: for what is not in memory.
    pub(crate) fn new(milliseconds: u64, may_wait: bool) -> Self {
        Self { most: Duration::from_millis(milliseconds), may_wait, first: None }
    }

    /// Looks at the calls; whether their time is over.
    pub(crate) fn is_over(&mut self, now: TimesTaken) -> bool {
        let first = *self.first.get_or_insert(now);
        let waits = || now.world.saturating_duration_since(first.world) >= self.most * WAITS;
        now.processor.saturating_sub(first.processor) >= self.most || self.may_wait && waits()
    }
}

#[cfg(test)]
mod tests {
    use super::{CallTime, TimesTaken};
    use std::time::{Duration, Instant};

    #[test]
    fn time_that_the_thread_did_not_have_does_not_count_unless_it_may_wait() {
        let start = Instant::now();
        let look = |processor: u64, world: u64| TimesTaken {
            processor: Duration::from_micros(70_000 + processor),
            world: start + Duration::from_millis(world),
        };
        for may_wait in [false, true] {
            let mut time = CallTime::new(10, may_wait);
            for (processor, world, is_over) in
                [(0, 0, false), (20, 10, false), (9_900, 999, false), (9_950, 1000, may_wait)]
            {
                assert_eq!(time.is_over(look(processor, world)), is_over, "{processor} {world}");
            }
            assert!(time.is_over(look(10_000, 1001)));
            let mut time = CallTime::new(10, may_wait);
            assert!(!time.is_over(look(0, 0)) && time.is_over(look(10_000, 11)));
        }
    }
}
