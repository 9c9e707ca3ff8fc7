//! How long commands take, at almost no cost.
//!
//! Reading the exact clock around each command would cost several percent of the server's
//! speed. As long as only commands of 10 ms and more are of interest, the coarse clock does
//! (the time of the last kernel tick, at most 10 ms old, without asking the hardware); below
//! that the exact clock is read.

use headwater_config::Observe;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Below this threshold the coarse clock is too coarse.
const COARSE_MICROSECONDS_MIN: u64 = 10_000;

/// Measures one command after the other.
#[derive(Debug)]
pub(crate) struct CommandClock {
    clock: ClockPrecision,
    /// Laps of fewer microseconds are not reported.
    least: u64,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
enum ClockPrecision {
    None,
    Coarse,
    Exact,
}

impl CommandClock {
    /// A clock that reports what SLOWLOG or LATENCY is interested in.
    pub(super) fn new(observe: &Observe) -> Self {
        let slow = u64::try_from(observe.slowlog_microseconds_min).ok();
        let late = observe.latency_milliseconds_min.checked_mul(1000).filter(|&micros| micros > 0);
        let least = slow.into_iter().chain(late).min();
        let clock = match least {
            None => ClockPrecision::None,
            Some(least) if least >= COARSE_MICROSECONDS_MIN => ClockPrecision::Coarse,
            Some(_) => ClockPrecision::Exact,
        };
        let mut clock = Self { clock, least: least.unwrap_or(u64::MAX), last: 0 };
        clock.begin();
        clock
    }

    /// The time, in microseconds since some moment.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        let id = match self.clock {
            ClockPrecision::None => return 0,
            ClockPrecision::Coarse => ClockId::MonotonicCoarse,
            ClockPrecision::Exact => ClockId::Monotonic,
        };
        let time = clock_gettime(id);
        (Duration::new(time.tv_sec as u64, time.tv_nsec as u32)).as_micros() as u64
    }

    /// The next command begins now.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.last = self.now();
    }

    /// The microseconds since a time of this clock, if they are of interest.
    pub(crate) fn since(&self, begun: u64) -> Option<u64> {
        self.of_interest(self.now().wrapping_sub(begun))
    }

    #[inline]
    fn of_interest(&self, took: u64) -> Option<u64> {
        (took >= self.least && !matches!(self.clock, ClockPrecision::None)).then_some(took)
    }

    /// A command has ended and the next one begins; the microseconds it took, if they are of
    /// interest.
    #[inline]
    pub(crate) fn lap(&mut self) -> Option<u64> {
        let now = self.now();
        let took = now.wrapping_sub(self.last);
        self.last = now;
        self.of_interest(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(slow: i64, late: u64) -> CommandClock {
        CommandClock::new(&Observe {
            slowlog_microseconds_min: slow,
            latency_milliseconds_min: late,
            ..Observe::default()
        })
    }

    #[test]
    fn only_what_is_of_interest_is_reported() {
        let mut all = clock(0, 0);
        all.begin();
        assert!(all.lap().is_some());
        let mut none = clock(-1, 0);
        none.begin();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(none.lap(), None);
        assert!(clock(1_000_000, 0).lap().is_none(), "a new clock starts now");
        for mut slow in [clock(10_000, 0), clock(-1, 10), clock(1_000_000, 10)] {
            slow.begin();
            assert_eq!(slow.lap(), None);
            std::thread::sleep(Duration::from_millis(40));
            assert!(slow.lap().is_some_and(|took| took >= 20_000));
        }
    }
}
