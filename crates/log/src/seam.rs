//! What a log and a bucket of leases offer, as requests and answers: the seam that JetStream and a simulation implement.
//!
//! A request is answered once, several times, late or never; an answer names its request, and one that is not awaited any
//! more is ignored. Nothing here blocks.

use crate::record::Epoch;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Milliseconds of a clock that never goes back and goes on while the machine is suspended. Clocks of two nodes have nothing in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// Milliseconds from `earlier` to `self`, or 0 if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The place of a message in a log; the first has 1, and 0 is the place before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The next place.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// What a key of a bucket has seen: grows with each write; 0 where there is no such key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Revision(pub u64);

/// What names a message of a log: a log that has it does not store it again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MessageId {
    /// The epoch of its owner.
    pub epoch: Epoch,
    /// Its number in the epoch; the claim has 0.
    pub number: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.number)
    }
}

/// A request to a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogRequest {
    /// Stores a message if `expected` is the last sequence.
    Append {
        /// What names it.
        id: MessageId,
        /// The last sequence that the log must have.
        expected: Sequence,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Gives messages from a sequence on.
    Read {
        /// What names the request.
        tag: u64,
        /// The first sequence.
        from: Sequence,
    },
    /// Removes all messages below a sequence. It has no answer; what is still there is removed by the next one.
    Purge {
        /// The first sequence that stays.
        below: Sequence,
    },
}

/// What has become of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendOutcome {
    /// Stored by a majority, under this sequence.
    Stored(Sequence),
    /// Not stored, and it will not be.
    Refused,
    /// It may be stored, or may be at a later time.
    Unknown,
}

/// Messages that were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogBatch {
    /// The messages, in order.
    pub messages: Vec<(Sequence, Vec<u8>)>,
    /// The first sequence that the log still has, or one that is not above the first that was asked for, which it has.
    pub first: Sequence,
    /// The last sequence of the log, as the server that has answered knew it.
    pub last: Sequence,
}

/// A log's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogAnswer {
    /// To [`LogRequest::Append`].
    Append {
        /// Which one.
        id: MessageId,
        /// What has become of it.
        outcome: AppendOutcome,
    },
    /// To [`LogRequest::Read`]; without a batch it has failed.
    Read {
        /// Which one.
        tag: u64,
        /// What was there.
        batch: Option<LogBatch>,
    },
}

/// A replicated log, as one node reaches it.
pub trait Log {
    /// Sends a request.
    fn send(&mut self, request: LogRequest);
    /// The next answer that is there.
    fn receive(&mut self) -> Option<LogAnswer>;
}

/// A request to a bucket of keys with revisions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BucketRequest {
    /// Reads a key.
    Get {
        /// What names the request.
        tag: u64,
        /// The key.
        key: String,
    },
    /// Writes a key if it has this revision.
    Put {
        /// What names the request.
        tag: u64,
        /// The key.
        key: String,
        /// The revision that the key must have; 0: there must be none.
        revision: Revision,
        /// Its new value.
        value: Vec<u8>,
    },
}

/// What has become of a write to a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutOutcome {
    /// Written; the key has this revision now.
    Written(Revision),
    /// Not written: the key has another revision.
    Refused,
    /// It may be written, or may be at a later time.
    Unknown,
}

/// A bucket's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BucketAnswer {
    /// To [`BucketRequest::Get`]; without a value it has failed. A revision of 0 says that there is no such key.
    Get {
        /// Which one.
        tag: u64,
        /// Revision and value.
        entry: Option<(Revision, Vec<u8>)>,
    },
    /// To [`BucketRequest::Put`].
    Put {
        /// Which one.
        tag: u64,
        /// What has become of it.
        outcome: PutOutcome,
    },
}

impl BucketAnswer {
    /// What names the request.
    #[must_use]
    pub fn tag(&self) -> u64 {
        match self {
            Self::Get { tag, .. } | Self::Put { tag, .. } => *tag,
        }
    }
}

/// A bucket of keys with revisions, as one node reaches it.
pub trait Bucket {
    /// Sends a request.
    fn send(&mut self, request: BucketRequest);
    /// The next answer that is there.
    fn receive(&mut self) -> Option<BucketAnswer>;
}
