//! What a flow is: which writes concern it, what it does, and how hard it tries.

use crate::backoff::Backoff;
use crate::record::Operation;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_pattern::{Join, Pattern};

/// What is done for each task.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// A registered function is called.
    Call {
        /// The function's name.
        function: String,
        /// A join of which the changed key is the one source: its output is the key whose value the function may
        /// change. `None`: it is called for the changed key.
        join: Option<Join>,
        /// The other keys that it may put and remove.
        writes: Vec<Pattern>,
    },
    /// The outputs of a join are put or removed that the changed key, its value source, gives: copies of
    /// its value along the keys of the `check` sources, or just one.
    Fanout(Join),
    /// The change is posted to a URL.
    Post {
        /// Where to.
        url: String,
        /// How long that may take, in milliseconds.
        timeout_ms: u64,
    },
    /// The value is published to a channel.
    Publish {
        /// The channel.
        channel: Vec<u8>,
    },
}

impl Action {
    /// The patterns of keys that it may write.
    #[must_use]
    pub fn puts(&self) -> Vec<&Pattern> {
        match self {
            Self::Call { join, writes, .. } => {
                join.iter().map(|join| &join.output).chain(writes).collect()
            }
            Self::Fanout(join) => alloc::vec![&join.output],
            Self::Post { .. } | Self::Publish { .. } => Vec::new(),
        }
    }
}

/// What happens to writes when a flow's backlog is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// They are refused.
    #[default]
    Reject,
    /// They wait.
    Block,
    /// They are done, and the oldest task is forgotten.
    DropOldest,
}

/// A flow as it was declared.
#[derive(Clone, PartialEq, Debug)]
pub struct Definition {
    /// Which keys concern it.
    pub on: Pattern,
    /// The names of that pattern's slots, by number.
    pub slots: Vec<String>,
    /// Which operations do.
    pub operations: Vec<Operation>,
    /// What it does.
    pub action: Action,
    /// Tasks that run at a time.
    pub workers: usize,
    /// How often a task is tried before it is dead.
    pub attempts_max: u32,
    /// How long it rests in between.
    pub backoff: Backoff,
    /// Tasks that may be waiting.
    pub backlog_max: u64,
    /// What happens when so many are.
    pub when_full: WhenFull,
}

impl Definition {
    /// A flow with the usual options.
    #[must_use]
    pub fn new(on: Pattern, action: Action) -> Self {
        Self {
            on,
            slots: Vec::new(),
            operations: Operation::ALL.to_vec(),
            action,
            workers: 4,
            attempts_max: 8,
            backoff: Backoff::default(),
            backlog_max: 1_000_000,
            when_full: WhenFull::default(),
        }
    }

    /// Whether a write concerns the flow.
    #[must_use]
    pub fn concerns(&self, operation: Operation, key: &[u8]) -> bool {
        self.operations.contains(&operation) && self.on.matches(key)
    }
}
