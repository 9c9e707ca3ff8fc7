//! The time that the slow calls of one operation may take together.
//!
//! An operation may call functions for many outputs. Calls that end within a tick cost nothing here, however many they are: a
//! read of a hundred thousand outputs is right, if not quick. A slow call makes all that come after it suspicious: their
//! processor time is taken then, and that of the slow ones is added up. So a thread that was put aside by the
//! system is not taken for a function that is slow, and one that spins, with each call or with some, is stopped after about two
//! calls of the longest time.

use crate::call_time::processor_time;
use crate::clock::TICK;
use std::time::{Duration, Instant};

/// What the slow calls of an operation have taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    /// A call was slow.
    suspicious: bool,
    spent: Duration,
}

/// A call that has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    at: Instant,
    processor: Option<Duration>,
}

impl Budget {
    /// Whether so much has been spent.
    pub(crate) fn is_spent(&self, most: Duration) -> bool {
        self.spent >= most
    }

    pub(crate) fn begin(&self) -> Begun {
        Begun { processor: self.suspicious.then(processor_time), at: Instant::now() }
    }

    /// The call has ended, by its time limit or otherwise.
    pub(crate) fn end(&mut self, call: Begun, timed_out: bool) {
        match call.processor {
            None => self.suspicious = timed_out || call.at.elapsed() >= TICK,
            Some(before) => {
                let took = processor_time().saturating_sub(before);
                if timed_out || took >= TICK {
                    self.spent += took;
                }
            }
        }
    }
}
