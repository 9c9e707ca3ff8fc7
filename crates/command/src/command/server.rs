//! Commands about the server as a whole.

use crate::args::Args;

/// What SHUTDOWN is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShutdownOptions {
    /// Save first, or not; `None`: as configured.
    pub save: Option<bool>,
    /// Do not wait for replicas.
    pub now: bool,
    /// Also if saving fails.
    pub force: bool,
    /// Give up a shutdown that is under way.
    pub abort: bool,
}

/// Which commands COMMAND LIST names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListFilter<'a> {
    /// All.
    All,
    /// Those of a module.
    Module(&'a [u8]),
    /// Those of a category.
    Category(&'a [u8]),
    /// Those whose name matches a glob pattern.
    Pattern(&'a [u8]),
}

/// Commands about the server as a whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Server<'a> {
    /// Every command's description.
    Commands,
    /// How many commands there are.
    CommandCount,
    /// Descriptions of the named commands (all, where none is named).
    CommandInfo {
        /// The names.
        names: Args<'a>,
    },
    /// Documentation of the named commands (all, where none is named).
    CommandDocs {
        /// The names.
        names: Args<'a>,
    },
    /// Names of commands.
    CommandList(ListFilter<'a>),
    /// The keys of a request.
    CommandGetKeys {
        /// The request.
        request: Args<'a>,
    },
    /// The keys of a request, with what is done to each.
    CommandGetKeysAndFlags {
        /// The request.
        request: Args<'a>,
    },
    /// State and counters, as text.
    Info {
        /// The sections wanted (the usual ones, where none is named).
        sections: Args<'a>,
    },
    /// Settings that match glob patterns.
    ConfigGet {
        /// The patterns.
        patterns: Args<'a>,
    },
    /// Changes settings, all or none.
    ConfigSet {
        /// Names and values in turn.
        pairs: Args<'a>,
    },
    /// Sets counters back to zero.
    ConfigResetStat,
    /// Writes the settings back to the file.
    ConfigRewrite,
    /// Begins a backup.
    BackupBegin,
    /// The next bytes of one.
    BackupRead {
        /// Which one.
        backup: u64,
        /// Of this shard.
        shard: u64,
    },
    /// Ends one.
    BackupEnd {
        /// Which one.
        backup: u64,
    },
    /// The time of day.
    Time,
    /// What the server is to others: a master without replicas.
    Role,
    /// The slow commands that were executed last.
    SlowlogGet {
        /// At most this many; `None`: all.
        count: Option<u64>,
    },
    /// How many slow commands are remembered.
    SlowlogLen,
    /// Forgets slow commands.
    SlowlogReset,
    /// The last latency spike of each event.
    LatencyLatest,
    /// The latency spikes of one event.
    LatencyHistory {
        /// The event.
        event: &'a [u8],
    },
    /// How the times of the named commands are spread (of all, where none is named).
    LatencyHistogram {
        /// The commands.
        names: Args<'a>,
    },
    /// What the latency spikes say, in words.
    LatencyDoctor,
    /// Forgets latency spikes of the named events (all, where none is named).
    LatencyReset {
        /// The events.
        events: Args<'a>,
    },
    /// Occupies the server for a while.
    DebugSleep {
        /// How long.
        seconds: f64,
    },
    /// Says whether keys go when their time is over, or only when somebody looks at them.
    DebugSetActiveExpire {
        /// They go by themselves.
        on: bool,
    },
    /// Answers so that a client's reading can be tried.
    DebugProtocol {
        /// The kind of answer.
        kind: &'a [u8],
    },
    /// Gives unused memory back, where that is possible.
    MemoryPurge,
    /// What may be wrong with memory, in words.
    MemoryDoctor,
    /// The SHA-1 of a known script.
    ScriptLoad {
        /// In hexadecimal.
        sha: &'a str,
    },
    /// Which scripts are known.
    ScriptExists {
        /// Their SHA-1s, in hexadecimal.
        shas: Args<'a>,
    },
    /// Forgets nothing: the known scripts stay.
    ScriptFlush,
    /// Shows what all clients ask, line by line.
    Monitor,
    /// Ends the server.
    Shutdown(ShutdownOptions),
}
