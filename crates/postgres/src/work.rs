//! What the connections of the pool are asked to do.

use crate::mapping::Words;
use headwater_base::source::{Change, FetchId};
use std::time::Instant;

/// What is to be done on a connection of the pool.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) not_before: Instant,
    pub(crate) deadline: Instant,
    /// Why it was put off.
    pub(crate) trouble: Option<String>,
    /// Not together with others: that went wrong.
    pub(crate) alone: bool,
}

pub(crate) enum Work {
    Load(FetchId),
    Declare {
        request: u64,
        prefix: Vec<u8>,
        generation: u64,
    },
    Examine {
        request: u64,
        words: Words,
    },
    Position {
        request: u64,
    },
    /// Has the log go on behind everything that was written.
    Mark,
    Write {
        request: u64,
        changes: Vec<Change>,
    },
}
