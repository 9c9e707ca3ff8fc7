//! When an operation ends that is not divided, though it is not done.
//!
//! What works in slices is ended between two of them, by whoever has it go on. What is done as a whole, as a transaction's commands
//! are, would go on to its end however long that takes. So it is lent a clock, and looks at it wherever it goes over many keys before
//! it has changed anything: an execution, and the scan of a range. From its first write on nothing ends it, or a part of the write
//! would be missing.
//!
//! # Cost
//! One comparison for a key where there is no deadline; else a count, and a look at the clock for every [`KEYS_A_LOOK`].

use crate::engine::Engine;
use crate::report::{EngineError, Stop};
use crate::stopwatch::Stopwatch;
use alloc::rc::Rc;
use core::cell::Cell;

/// How many keys an operation goes over between two looks at the clock.
const KEYS_A_LOOK: u32 = 256;

/// When an operation ends.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// What tells the time.
    pub clock: Stopwatch,
    /// The moment, as the clock tells it.
    pub at: u64,
    /// How long the operation may take, for the error.
    pub milliseconds: u64,
}

/// The deadline of the operation under way.
#[derive(Debug)]
pub(crate) struct Ending {
    deadline: Deadline,
    /// Keys until the next look at the clock.
    left: Cell<u32>,
    is_over: Cell<bool>,
}

impl Ending {
    /// Whether the operation is to end, before it goes over many keys more.
    fn look(&self) -> bool {
        self.left.set(0);
        self.is_over()
    }

    /// Whether the operation is to end, before it goes over one key more.
    pub(crate) fn is_over(&self) -> bool {
        if self.left.get() > 0 {
            self.left.update(|left| left - 1);
        } else {
            self.left.set(KEYS_A_LOOK);
            self.is_over.update(|over| over || (self.deadline.clock)() >= self.deadline.at);
        }
        self.is_over.get()
    }
}

impl Engine {
    /// The operation that comes now is done as a whole, and ends at this moment if it has changed nothing until then; it fails with
    /// [`EngineError::TookTooLong`]. [`Engine::end_slice`] says that it has ended.
    pub fn end_by(&mut self, deadline: Option<Deadline>) {
        self.ending = deadline.map(|deadline| {
            Rc::new(Ending { deadline, left: Cell::new(0), is_over: Cell::new(false) })
        });
    }

    /// Whether the operation under way is to end.
    #[inline]
    pub(crate) fn has_to_end(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.is_over())
    }

    /// The same, before it goes over many keys more.
    pub(crate) fn has_to_end_now(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.look())
    }

    /// The operation under way changes something: nothing ends it any more.
    #[inline]
    pub(crate) fn never_end(&mut self) {
        if self.ending.is_some() {
            self.ending = None;
        }
    }

    /// What an operation answers that has come to its end.
    pub(crate) fn ended(&self) -> Option<Stop> {
        let ending = self.ending.as_ref().filter(|ending| ending.is_over.get())?;
        let milliseconds = ending.deadline.milliseconds;
        Some(EngineError::TookTooLong { milliseconds }.into())
    }
}
