//! The engine of one shard: base keys, cache joins, and reads that are always fresh.
//!
//! A *cache join* (Pequod, NSDI 2014) says how output keys come from source keys. The engine
//! materializes what is asked for, notes which spans are known (`status`), leaves updaters on
//! the source spans it read (`updaters`), and from then on changes outputs as sources change
//! (`maintain`), or when they are read (`refresh`). Everything can be forgotten and computed again.
//!
//! The engine does no I/O and knows no clock: time, and data from elsewhere, are inputs, and
//! what it asks of the world comes out as [`Effect`]s. (A [`Stopwatch`] may be lent to it, whose readings go into figures alone.)

#![no_std]
extern crate alloc;

mod accept;
mod account;
mod base;
mod base_data;
mod catalog;
mod cells;
mod changed;
mod choose;
mod collect;
mod computed;
mod cover;
mod dead;
mod divide;
mod ending;
mod engine;
mod exec;
mod expiry;
mod explain;
mod fan_out;
mod flush;
mod fold;
mod follow;
mod functions;
mod gaps;
mod gather;
mod group_note;
mod grouping;
mod handles;
mod hints;
mod in_the_way;
mod invariants;
mod joins;
mod kept;
mod keyspace;
mod lifetime;
mod limited;
mod listing;
mod loads;
mod log;
mod logged;
mod long_read;
mod long_reads;
mod maintain;
mod marks;
mod memory;
mod noted;
mod notifications;
mod output_keys;
mod outputs;
mod part;
mod range_map;
mod read;
mod reads;
mod refold;
mod refresh;
mod relate;
mod removal;
mod report;
mod rows;
mod scratch;
mod shards;
mod slice;
mod snapshots;
mod sources;
mod span;
mod spill;
mod status;
mod stopwatch;
mod streams;
mod tally;
mod tuples;
mod updaters;
mod views;
mod warm;
mod watches;
mod write;

pub use changed::ChangedKeys;
pub use ending::Deadline;
pub use engine::{Engine, Settings};
pub use explain::MayRead;
pub use follow::{Follower, Notification, NotifiedChange};
pub use functions::{CallOptions, FlowCall, Folded};
pub use headwater_base::source::{
    BaseStore, Change, FetchId, Health, Loaded, Pair, Portion, Position,
};
pub use headwater_policy::Policy;
pub use headwater_pool::{Value, ValueRef};
pub use headwater_store::WARM_MAX;
pub use keyspace::{KeyspaceEvent, WriteKind};
pub use long_reads::{AtOnce, ReadProgress};
pub use marks::Mark;
pub use memory::{Evicted, ValueMemory};
pub use noted::{Noted, NotedChange};
pub use report::{
    Difference, Effect, EngineError, Expiry, ExplainLine, JoinInstalled, JoinReport, RangeOptions,
    SourceReport, Stats, Stop, TableOptions, TableReport, Ticket,
};
pub use shards::RemoteReport;
pub use spill::ValuePlace;
pub use stopwatch::Stopwatch;
pub use streams::{CHUNK_BYTES, StreamBytes, StreamReport};
