//! How long calls may take, in time of the processor.
//!
//! The clock counts what the world calls time. In it a call may have stood still: its thread was put aside by a busy system, or
//! waited for a disk. If that ended calls, then what a join shows would depend on what else the machine has to do. So a
//! call that the clock finds at work is looked at: from then on its thread's processor time counts. Calls that end within a
//! tick, which most do, are never looked at and pay nothing.

use crate::clock::TICK;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The processor time of this thread.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// What calls that are under way may take, together.
#[derive(Debug)]
pub(crate) struct CallTime {
    most: Duration,
    /// The thread's processor time at the first look.
    since: Option<Duration>,
}

impl CallTime {
    /// Ticks before the first look. The tick under way may end at once.
    pub(crate) const FIRST_TICKS: u64 = 1;

    /// Calls that begin now.
    pub(crate) fn new(milliseconds: u64) -> Self {
        Self { most: Duration::from_millis(milliseconds), since: None }
    }

    /// Looks at the calls, at the given processor time: how many ticks there are before the next look, at least one; nothing when
    /// their time is over.
    pub(crate) fn look(&mut self, now: Duration) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let left =
            self.most.checked_sub(now.saturating_sub(since)).filter(|left| !left.is_zero())?;
        Some(left.as_millis().div_ceil(TICK.as_millis()).max(1) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::CallTime;
    use std::time::Duration;

    #[test]
    fn time_that_the_thread_did_not_have_does_not_count() {
        let at = Duration::from_micros;
        let mut time = CallTime::new(10);
        assert_eq!(time.look(at(70_000)), Some(10));
        // Ten ticks later it has had the processor for a few microseconds.
        assert_eq!(time.look(at(70_020)), Some(9));
        assert_eq!(time.look(at(79_900)), Some(1));
        assert_eq!(time.look(at(80_000)), None);
        assert_eq!(time.look(at(99_000)), None);
    }
}
