//! Logs and leases on NATS JetStream: the seam of `headwater_log`, spoken to real servers.
//!
//! A thread of its own holds the connections. Requests go to it, in order, and are answered into the queue of whoever has asked;
//! `wake` is called behind each answer. Appends are published in the order in which they were given, each with the last sequence
//! that it expects and a `Nats-Msg-Id`; nothing is published twice. They go straight to the server that leads the log's stream, where it is one of those
//! that the settings name, and everything else through any server.
//!
//! # What counts as what
//! - An append or a write to the bucket is *refused* where the servers say that sequence or revision was another one. Everything else that is
//!   no acknowledgement is *unknown*: no answer within [`ANSWER_TIMEOUT`], a lost connection, a stream without a leader.
//! - Logs are read by batches of direct gets, which any replica answers that is not behind as far as it knows. What a read says may be
//!   old: a claim is accepted only at the true end.
//! - Snapshots are objects of a stream beside the log ([`JetStreamSnapshots`]).
//! - The bucket's keys are read from its stream's leader.
//! - Those who operate a cluster ask by calls that wait ([`JetStreamAdmin`]).
//!
//! # Servers that lose what they acknowledge
//! Unless a server syncs each message before it acknowledges it (`sync_interval: always`), a loss of power loses messages, or the stream. A
//! client cannot see that setting: it is read from each server's monitoring address at the start, and the start is refused where one says otherwise, or where
//! no more than half can be asked. It is not looked at again later.

mod admin;
mod check;
mod commands;
mod connect;
mod connection;
mod direct;
mod leader;
mod log_task;
mod nodes;
mod room;
mod settings;
mod snapshots;
mod streams;
mod waiting;

pub use admin::{
    AdminError, BucketEntry, CreateReport, JetStreamAdmin, StreamServer, StreamSummary,
};
pub use check::{ServerSync, server_sync};
pub use commands::ANSWER_TIMEOUT;
pub use connection::{JetStream, JetStreamBucket, JetStreamLog, Wake};
pub use nodes::NodesSeen;
pub use room::RoomSeen;
pub use settings::{JetStreamError, JetStreamSettings};
pub use snapshots::{JetStreamSnapshots, SnapshotDownload, SnapshotUpload};

/// This machine's monotonic clock, which goes on while it is suspended.
#[must_use]
pub fn monotonic() -> headwater_log::Monotonic {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    headwater_log::Monotonic(seconds * 1000 + nanos / 1_000_000)
}
