//! What the engine's methods take and give back: options, outcomes, errors and reports.

use crate::stopwatch::MaintenanceTime;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_base::functions::CallError;
use headwater_base::source::{FetchId, Portion, Position};
use headwater_base::{KeyRange, Millis, Shard, ShardRefusal};

/// Why an operation did not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Data is being loaded; run the operation again when the engine reports this ticket
    /// through [`Effect::Wake`].
    Wait(Ticket),
    /// The operation was refused, or failed.
    Failed(EngineError),
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// One waiting operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// What the engine asks of the world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Load `range` from `source` as of some position, and follow its changes from there.
    Load {
        /// Names the answer: give it back to [`crate::Engine::loaded`].
        fetch: FetchId,
        /// The source, as [`TableOptions::source`] named it.
        source: String,
        /// The keys wanted.
        range: KeyRange,
        /// How many of them.
        portion: Portion,
    },
    /// The range is no longer kept: stop following it.
    Unfollow {
        /// The source, as [`TableOptions::source`] named it.
        source: String,
        /// The keys that were followed.
        range: KeyRange,
    },
    /// Give the keys of `range` that `home` is home of, as of some moment in its order, and the changes from there on.
    LoadFrom {
        /// Names the answer: give it back to [`crate::Engine::loaded_from`].
        fetch: FetchId,
        /// The shard that is asked.
        home: Shard,
        /// The keys wanted.
        range: KeyRange,
    },
    /// The keys of `range` are here as of the end of the connection to `home`: say which have changed since, and the changes from now on. Give the answer to
    /// [`crate::Engine::resumed_at`].
    ResumeFrom {
        /// The shard that is asked.
        home: Shard,
        /// The keys.
        range: KeyRange,
    },
    /// The range is no longer kept here: `home` need not tell its changes any more.
    UnfollowAt {
        /// The shard that tells them.
        home: Shard,
        /// The keys that were followed.
        range: KeyRange,
    },
    /// What this waiting operation lacked has arrived: run it again.
    Wake(Ticket),
    /// What this waiting operation lacked cannot be had: answer it with the error.
    Fail {
        /// The operation.
        ticket: Ticket,
        /// Its answer.
        error: EngineError,
    },
}

/// A refusal. Its `Display` text is complete but for the code word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineError {
    /// The key is the output of a join (named here): clients cannot write it.
    Joined {
        /// The join's name.
        join: String,
    },
    /// A key is longer than the limit.
    KeyTooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A value is longer than the limit.
    ValueTooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A join text, a name or an option that cannot be accepted; the text says why, over
    /// several lines where a caret points into the join's text.
    Refused(String),
    /// No join has this name.
    NoSuchJoin(String),
    /// What follows from writes of this key has no room for more.
    Busy {
        /// Whose room it is, and what is in it.
        text: String,
        /// The write may wait for room; otherwise it is refused.
        may_wait: bool,
    },
    /// A source did not deliver what was needed.
    SourceFailed {
        /// The source's name.
        source: String,
        /// What it said.
        message: String,
    },
    /// The home of keys that were needed has refused them, or cannot be reached.
    OfHome(ShardRefusal),
    /// The key holds a value of another type than the operation is for.
    WrongType,
    /// What was to be read of a stream was trimmed away.
    Trimmed {
        /// The first offset that is there.
        first: u64,
    },
    /// What was to be read of a stream went when memory was short.
    Evicted {
        /// The first offset that is there.
        first: u64,
    },
    /// An offset that the stream has not reached.
    BeyondEnd {
        /// What was asked for.
        offset: u64,
        /// The stream's end.
        end: u64,
    },
    /// A call of a function came to nothing.
    Function {
        /// The function's name.
        name: String,
        /// What it came to.
        error: CallError,
    },
    /// While a long range was read, so much of it changed that what it held before takes more bytes than a reader may have
    /// kept for it.
    Overtaken,
    /// The keys of a range that is computed for its reader take more bytes than a reader may have kept for it.
    TooMuchToCollect,
    /// It has taken longer than it may, and was ended before it had changed anything.
    TookTooLong {
        /// How long it may take.
        milliseconds: u64,
    },
    /// The memory bound leaves no room for what the operation would take, and nothing more can
    /// be evicted.
    OutOfMemory,
    /// So many existing keys match the output of a join that was to be installed.
    KeysInTheWay(u64),
}

impl EngineError {
    /// The word an error reply starts with.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::OfHome(refusal) => &refusal.code,
            Self::Joined { .. } => "JOINED",
            Self::SourceFailed { .. } => "SOURCE",
            Self::Busy { .. } => "BUSY",
            Self::WrongType => "WRONGTYPE",
            Self::Trimmed { .. } => "TRIMMED",
            Self::Evicted { .. } => "EVICTED",
            Self::OutOfMemory => "OOM",
            Self::TookTooLong { .. } => "TIMEOUT",
            Self::Function { error: CallError::NoSuchFunction, .. } => "NOFUNCTION",
            Self::Function { .. } => "FUNCTION",
            _ => "ERR",
        }
    }

    /// The error as another shard is told it.
    #[must_use]
    pub fn refusal(&self) -> ShardRefusal {
        ShardRefusal { code: self.code().to_owned(), text: self.to_string() }
    }

    /// The error as one about a join that was to be installed, which its text names.
    #[must_use]
    pub fn of_join(self, name: &str) -> Self {
        match self {
            Self::Refused(why) if !why.contains(&format!("join '{name}'")) => {
                Self::Refused(format!("join '{name}': {why}"))
            }
            other => other,
        }
    }
}

impl core::fmt::Display for EngineError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Joined { join } => write!(f, "key is maintained by join '{join}'"),
            Self::KeyTooLong { length, max } => {
                write!(f, "key of {length} bytes is longer than the limit of {max} (key-bytes-max)")
            }
            Self::ValueTooLong { length, max } => write!(
                f,
                "value of {length} bytes is longer than the limit of {max} (value-bytes-max)"
            ),
            Self::Refused(text) | Self::Busy { text, .. } => f.write_str(text),
            Self::NoSuchJoin(name) => write!(f, "no join is named '{name}'"),
            Self::OfHome(refusal) => f.write_str(&refusal.text),
            Self::SourceFailed { source, message } => write!(f, "source '{source}': {message}"),
            Self::Trimmed { first } => {
                write!(f, "the stream was trimmed: its first offset is {first}")
            }
            Self::Evicted { first } => write!(
                f,
                "this part of the stream is no longer kept: the first offset that is is {first}"
            ),
            Self::BeyondEnd { offset, end } => {
                write!(f, "offset {offset} is beyond the end of the stream, {end}")
            }
            Self::Function { name, error } => {
                write!(f, "function '{}' {error}", name.escape_debug())
            }
            Self::Overtaken => f.write_str(
                "too much of the range has changed while it was read (output-bytes-max): read it in parts",
            ),
            Self::TooMuchToCollect => f.write_str(
                "the keys of the range take too many bytes (output-bytes-max): read it in parts",
            ),
            Self::TookTooLong { milliseconds } => write!(
                f,
                "the command took longer than {milliseconds} ms (command-milliseconds-max)"
            ),
            // Redis's own words, which clients look for.
            Self::WrongType => {
                f.write_str("Operation against a key holding the wrong kind of value")
            }
            Self::OutOfMemory => f.write_str("command not allowed when used memory > 'maxmemory'."),
            Self::KeysInTheWay(1) => {
                f.write_str("1 existing key matches the join's output; remove it first")
            }
            Self::KeysInTheWay(found) => {
                write!(f, "{found} existing keys match the join's output; remove them first")
            }
        }
    }
}

impl core::error::Error for EngineError {}

/// What a write does to the key's expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// The key keeps the expiry it has.
    Keep,
    /// The key never expires.
    Never,
    /// The key is removed at this moment.
    At(Millis),
}

/// How a range is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeOptions {
    /// Greatest key first.
    pub reverse: bool,
    /// At most this many pairs.
    pub limit: Option<u64>,
}

/// What installing a join reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinInstalled {
    /// The join in the `<slot>` form.
    pub canonical: String,
    /// What the developer should know, a sentence each.
    pub warnings: Vec<String>,
}

/// One installed join, as JOIN.LIST and JOIN.INFO show it: `fields` in a fixed order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinReport {
    /// Its name.
    pub name: String,
    /// The join in the `<slot>` form.
    pub canonical: String,
    /// Warnings given at install.
    pub warnings: Vec<String>,
    /// Tables, by name, that were given a boundary when it was installed, with that.
    pub boundaries: Vec<(String, usize)>,
    /// Counters and bytes: name and number.
    pub counters: Vec<(&'static str, u64)>,
}

/// What TABLE.SET may change; `None` leaves a setting as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableOptions {
    /// How many components after the table's name group its keys.
    pub boundary: Option<usize>,
    /// The source that keeps the table's base data; an empty name: none does any more.
    pub source: Option<String>,
    /// Whether its base keys may be evicted by the policy in force. If nobody says: only where no
    /// join reads them.
    pub evict: Option<bool>,
    /// Whether the embedded store keeps its base data, which clients write. If nobody says: as
    /// [`crate::Engine::set_base_store`] says.
    pub keep: Option<bool>,
}

/// A source that tables have, as SOURCE.LIST and INFO show it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceReport {
    /// Its name.
    pub name: String,
    /// The names of the tables that it keeps.
    pub tables: Vec<Vec<u8>>,
    /// Where it stood at the last change that was applied.
    pub position: Position,
    /// Why what was loaded may be out of date.
    pub down: Option<String>,
    /// Ranges that are loaded.
    pub loaded: u64,
    /// Ranges that are being loaded.
    pub loading: u64,
    /// Keys in memory of its tables.
    pub keys: u64,
}

/// One table, as TABLE.LIST, TABLE.INFO and INFO show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableReport {
    /// Its name; empty for the unnamed table.
    pub name: Vec<u8>,
    /// How many components after the name group its keys.
    pub boundary: usize,
    /// Whether keys of the form `name|…` live here; `false` for the unnamed table.
    pub named: bool,
    /// Keys stored or materialized now.
    pub keys: u64,
    /// Groups that exist now.
    pub groups: u64,
    /// Bytes of key text in leaf pages.
    pub key_bytes: u64,
    /// Bytes of pages, group records and hash slots beyond the key text.
    pub index_bytes: u64,
    /// Bytes of values that are referred to from this table (shared ones counted here too).
    pub value_bytes: u64,
}

/// One thing that EXPLAIN says, in order: a title and its value, indented under what it explains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExplainLine {
    /// 0 for a statement about the whole answer, more for details of the line above.
    pub depth: usize,
    /// What is stated.
    pub title: String,
    /// The statement.
    pub text: String,
}

/// A key whose stored value is not what a recomputation gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The key.
    pub key: Vec<u8>,
    /// What a read of it gives.
    pub stored: Option<Vec<u8>>,
    /// What recomputing from the sources gives.
    pub recomputed: Option<Vec<u8>>,
}

/// Sizes of everything the engine keeps, for INFO and MEMORY STATS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Keys stored or materialized.
    pub keys: u64,
    /// Keys that will expire.
    pub keys_with_expiry: u64,
    /// Keys that expired since the start.
    pub expired: u64,
    /// Groups.
    pub groups: u64,
    /// Bytes of values outside their references, each counted once.
    pub value_bytes: u64,
    /// Bytes of key text in pages.
    pub key_bytes: u64,
    /// Bytes of pages, group records and hash slots beyond the key text.
    pub index_bytes: u64,
    /// Updaters (source spans that are followed) and their targets.
    pub updaters: u64,
    /// Targets of all updaters.
    pub updater_targets: u64,
    /// Bytes of updaters, targets and contexts.
    pub updater_bytes: u64,
    /// Status ranges.
    pub status_ranges: u64,
    /// Bytes of status ranges.
    pub status_range_bytes: u64,
    /// Streams.
    pub streams: u64,
    /// Bytes of streams beyond those of their chunks, which are values.
    pub stream_bytes: u64,
    /// Plain values that are outside of memory.
    pub spilled_values: u64,
    /// Bytes that were put aside outside of memory: chunks of streams, and plain values.
    pub spilled_bytes: u64,
    /// Further counters, name and number, in a fixed order: maintenance work done since the
    /// start (executions, invalidations, updates applied, values skipped as no number …).
    pub counters: Vec<(&'static str, u64)>,
}

/// Work that one join has caused since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct JoinCounters {
    /// Gaps filled by execution.
    pub(crate) fills: u64,
    /// Ranges recomputed as a whole.
    pub(crate) rebuilds: u64,
    /// Ranges evicted.
    pub(crate) evictions: u64,
    /// Reads of materialized ranges that were there.
    pub(crate) hits: u64,
    /// Changes of sources that were applied to materialized ranges: one for each range that a change concerns.
    pub(crate) updates: u64,
    /// What keeping materialized ranges up to date has taken.
    pub(crate) maintenance: MaintenanceTime,
}

/// Work done since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) executions: u64,
    pub(crate) rows_read: u64,
    pub(crate) readers_told: u64,
    /// Writes that were noted for so many ranges that they are applied in slices.
    pub(crate) fan_outs_noted: u64,
    pub(crate) fan_outs_deep: u64,
    /// Ranges that were computed piece by piece, because they cannot be divided, or not well.
    pub(crate) ranges_gathered: u64,
    /// Stale folds that were recomputed piece by piece.
    pub(crate) folds_gathered: u64,
    /// Ranges of other shards that went on behind a lost connection with what had changed since.
    pub(crate) ranges_resumed: u64,
    /// Those that were forgotten, because their home did not know what had changed.
    pub(crate) ranges_not_resumed: u64,
    pub(crate) updates: u64,
    pub(crate) updates_in_place: u64,
    pub(crate) checks_logged: u64,
    /// Ranges that were looked at because what is computed from them was read.
    pub(crate) upstreams_refreshed: u64,
    pub(crate) checks_applied: u64,
    pub(crate) folds_stale: u64,
    pub(crate) invalidations: u64,
    pub(crate) not_numbers: u64,
    pub(crate) unreadable: u64,
    /// Outputs that do not exist, since no key may be so long.
    pub(crate) outputs_too_long: u64,
    pub(crate) not_mapped: u64,
    pub(crate) expired: u64,
}
