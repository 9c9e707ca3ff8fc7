//! Commands about flows.

use crate::args::Args;

/// What a flow does for each write that concerns it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FlowAction<'a> {
    /// Calls a function.
    Call {
        /// The function.
        function: &'a str,
        /// The pattern of the key whose value it may change, filled in from the changed one.
        key: Option<&'a str>,
        /// The patterns of the other keys that it may write, with spaces between.
        writes: &'a str,
    },
    /// Puts and removes the outputs of a join.
    Fanout {
        /// The join's text.
        join: &'a str,
    },
    /// Posts the change to a URL.
    Post {
        /// Where to.
        url: &'a str,
        /// How long that may take, in milliseconds; `None`: as usual.
        timeout_ms: Option<u64>,
    },
    /// Publishes the value.
    Publish {
        /// The channel.
        channel: &'a [u8],
    },
}

/// What happens to writes when the backlog is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowFull {
    /// They are refused.
    Reject,
    /// They wait.
    Block,
    /// The oldest task is forgotten.
    DropOldest,
}

/// How hard a flow tries; `None`: as usual.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FlowOptions {
    /// Tasks that run at a time.
    pub workers: Option<u64>,
    /// How often a task is tried.
    pub attempts_max: Option<u64>,
    /// The first and the longest rest after a failure, in milliseconds.
    pub backoff: Option<(u64, u64)>,
    /// Tasks that may wait, and what happens beyond.
    pub backlog: Option<(u64, FlowFull)>,
    /// Keys that are there already are tasks as well.
    pub backfill: bool,
    /// Which operations concern it; `None`: all.
    pub operations: Option<FlowOperations>,
}

/// Some of the operations on keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowOperations {
    /// A key is given a value.
    pub set: bool,
    /// A key is removed.
    pub delete: bool,
    /// A key's time is over.
    pub expire: bool,
}

/// Commands about flows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Flows<'a> {
    /// Adds a flow.
    Add {
        /// Its name.
        name: &'a str,
        /// The pattern of the keys that concern it.
        on: &'a str,
        /// What it does.
        action: FlowAction<'a>,
        /// How hard it tries.
        options: FlowOptions,
        /// The words of all that, to show and to declare it again.
        words: Args<'a>,
    },
    /// Drops a flow and its tasks.
    Drop {
        /// Its name.
        name: &'a str,
    },
    /// The flows.
    List,
    /// How a flow does.
    Info {
        /// Its name.
        name: &'a str,
    },
    /// Starts no more tasks, or does again.
    Pause {
        /// Its name.
        name: &'a str,
        /// Whether it rests.
        paused: bool,
    },
    /// The tasks that failed too often.
    Dead {
        /// Its name.
        name: &'a str,
    },
    /// Has dead tasks tried again.
    Retry {
        /// Its name.
        name: &'a str,
        /// Which; `None`: all.
        position: Option<u64>,
        /// Also those that a newer write of their key has overtaken.
        force: bool,
    },
    /// Forgets dead tasks.
    Discard {
        /// Its name.
        name: &'a str,
        /// Which; `None`: all.
        position: Option<u64>,
    },
    /// Runs the records from a position on again.
    Replay {
        /// Its name.
        name: &'a str,
        /// The first record's position.
        position: u64,
    },
}
