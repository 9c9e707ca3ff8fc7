//! The replicated log of a shard, and who owns it: what is decided, without a clock or a socket.
//!
//! A shard's writes go to a log that several servers keep (NATS JetStream, a journal, a simulation: [`Log`]). One node at a time
//! owns the shard: it holds a lease in a bucket of keys with revisions ([`Bucket`]), has claimed the log by a record,
//! and appends. Consensus, replication and the arbitration of leases are the servers'; what is here is how records are written and
//! read so that nothing acknowledged is lost or undone, whoever appends meanwhile.
//!
//! # Why an expected sequence is not enough
//! Each append says behind which sequence it belongs. An owner that appends without waiting has several under way. A new owner claims
//! at sequence 11; of the old owner's late messages that expect 10 to 15, the first is refused, and those that expect 11 to 15 are
//! accepted, as 12 to 16. So a record carries its owner's epoch, its number within it and the checksum of the record before it; and:
//!
//! # Invariants
//! - A1. A record is acknowledged when the log has it and all of its epoch before it. An append that is refused, or whose outcome is
//!   unknown, voids everything after it: the owner stops, takes a new epoch, reads the log again and claims it again.
//! - A2. A reader takes a record for data if its epoch is that of the last claim, and its number and checksum say that it
//!   follows the last one taken. It passes over records of older epochs, and over the rest of an epoch in which a number is
//!   missing, whose owner has acknowledged none of that.
//! - A3. A claim is accepted at the one sequence behind all that its claimant has read. So all readers agree on what is data.
//! - A4. What is damaged, foreign or of a newer format, what a purge has removed too early, and an acknowledged record that is
//!   missing stop the shard with a sentence that names stream and sequence ([`StopReason`]). They are never data.
//! - A5. A folder is discarded only where another record was read in the place of the one that it ends with, or where the log is another one than the folder names and begins
//!   behind that ([`FolderFate`]); never because the log ends before. A node whose folder names another log owns nothing until its record was found in this one.
//! - P1. The log is purged only below a snapshot that is complete and named ([`Snapshots`]).
//! - W1. An owner answers while its lease is younger than 2 s, counted from *sending* the last renewal that succeeded; it is
//!   asked behind each batch that was executed, before the batch's replies go out ([`Replica::may_answer`]).
//! - W2. Nobody takes a lease whose revision it has not seen unchanged for 3 s of its own clock, in which its own writes to the bucket succeeded.
//! - W3. Epochs only grow: one more than the greatest of the log's and the last owner's; and one epoch is written by one claimant, as the bucket says.
//! - W4. A write is refused before it is executed while the servers do not answer ([`Replica::is_silent`]); reads go on until the lease is over.
//! - D1, D2. A node that is drained takes no lease, nor does one that does not know yet; an owner that is drained completes what is under way and gives
//!   its lease up ([`DrainLook`]).
//! - F1 to F3. Newer formats are written when all known processes have announced that they read them ([`Announcement`]).
//! - S1, S2. A free shard is for the node that owns the least, and one that owns two more than another gives one up ([`Balance`]).
//!
//! # Cost
//! 60 bytes and one hash over the bytes for each message; from 1 KiB on, an LZ4 of the payload. Nothing is read back of what an owner appends itself.

#![no_std]
extern crate alloc;

mod appender;
mod balance;
mod compression;
mod drain;
mod fields;
mod formats;
mod heartbeat;
mod order;
mod owner;
mod ownership;
mod reader;
mod record;
mod replica;
mod seam;
mod silence;
mod snapshot;

pub use appender::{AppendWindow, Appender, Progress, Turn};
pub use balance::{Balance, BalanceWish, ClusterSeen, DEFER_MILLIS, SETTLE_MILLIS, ShardHolder};
pub use drain::{DrainLook, DrainedNodes};
pub use fields::BadValue;
pub use formats::{
    Announcement, FormatRange, Formats, KnownProcess, format_to_write, newest_for_all, why_apart,
};
pub use heartbeat::{Heartbeat, HeartbeatError};
pub use order::SnapshotOrder;
pub use owner::{Owner, node_of};
pub use ownership::{Contest, LeaseTimes, Ownership, OwnershipEvent};
pub use reader::{FolderFate, LogEntry, LogPosition, LogReader, StopReason};
pub use record::{
    BadRecord, Epoch, HEADER_BYTES, LogId, LogMessage, RECORD_FORMATS, RecordHeader, RecordKind,
    TURN_BYTES_MAX,
};
pub use replica::{Replica, ReplicaConfig, ReplicaEffect, ReplicaInput, ReplicaStop};
pub use seam::{
    AppendOutcome, Bucket, BucketAnswer, BucketRequest, Log, LogAnswer, LogBatch, LogRequest,
    MessageId, Monotonic, PutOutcome, Revision, Sequence,
};
pub use silence::Silence;
pub use snapshot::{LogExtent, SnapshotEffect, SnapshotMark, SnapshotTaken, Snapshots};
