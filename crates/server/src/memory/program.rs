//! When the pages of the program go that hardly anything uses.
//!
//! A start runs through megabytes of code that is not needed again, and so do commands that come once. Under a
//! memory bound such pages are room for data: they go when the server is ready, and then ever less often.

use core::time::Duration;
use headwater_buffers::Program;

/// Between the start and the first time.
const FIRST: Duration = Duration::from_millis(100);
/// The longest between two times.
const LONGEST: Duration = Duration::from_secs(600);

/// The pages of the program, and when they go next.
#[derive(Debug)]
pub(crate) struct ProgramPages {
    program: Program,
    /// Milliseconds of uptime.
    due: u64,
    interval: u64,
}

impl ProgramPages {
    /// Those of this process, which has just started.
    pub(crate) fn of_this_process() -> Self {
        let first = FIRST.as_millis() as u64;
        Self { program: Program::of_this_process(), due: first, interval: first }
    }

    /// The same for a server; none where it runs within a test, which begins very many.
    pub(crate) fn of_server() -> Self {
        if cfg!(test) {
            return Self { program: Program::default(), due: u64::MAX, interval: 0 };
        }
        Self::of_this_process()
    }

    /// Lets all go; those that are needed come back.
    pub(crate) fn forget(&self) {
        self.program.forget();
    }

    /// The same, if it is time to; `uptime` in milliseconds.
    pub(crate) fn forget_in_time(&mut self, uptime: u64) {
        if uptime >= self.due {
            self.forget();
            self.due = uptime + self.interval;
            self.interval = (self.interval * 2).min(LONGEST.as_millis() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_ever_less_often() {
        let mut pages = ProgramPages::of_this_process();
        let mut times = Vec::new();
        for uptime in (0..4_000_000).step_by(50) {
            let due = pages.due;
            pages.forget_in_time(uptime);
            if pages.due != due {
                times.push(uptime / 100);
            }
        }
        assert_eq!(times[..6], [1, 2, 4, 8, 16, 32]);
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps.iter().max(), Some(&6000));
    }
}
