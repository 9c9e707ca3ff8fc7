//! What shards ask of one another for tasks, and what they answer.

use crate::flows::Outcome;
use crate::record::Record;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use headwater_base::{Millis, Shard};

/// The task that a shard is asked to carry out a part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteTask {
    /// The flow's name.
    pub flow: String,
    /// Hash of the words by which the flow was declared.
    pub words: u64,
    /// The shard that has the record.
    pub origin: Shard,
    /// The record's place in the journal there.
    pub position: u64,
    /// When it was written: a record that was lost in a crash, and another one at its place, are two.
    pub at: Millis,
    /// How often the flow had been replayed there: what was done before may be done again.
    pub replays: u64,
    /// Every record there below this position is done for good.
    pub below: u64,
}

/// A part of a task, on keys of one other shard.
#[derive(Clone, PartialEq, Debug)]
pub enum RemoteEffect {
    /// Outputs are given a value, or removed.
    Put {
        /// The value.
        value: Option<Arc<[u8]>>,
        /// The outputs, in the order of the check keys that they are given for.
        outputs: Vec<Output>,
    },
    /// The flow's function is called.
    Call {
        /// The write that causes it.
        record: Record,
        /// The key that it is called for.
        key: Vec<u8>,
    },
}

impl RemoteEffect {
    /// Memory that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Put { value, outputs } => {
                let of = |output: &Output| output.check.len() + output.key.len() + 64;
                value.as_ref().map_or(0, |value| value.len())
                    + outputs.iter().map(of).sum::<usize>()
            }
            Self::Call { record, key } => record.reserved_bytes() + key.len(),
        }
    }

    /// The keys that it changes.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let (outputs, called) = match self {
            Self::Put { outputs, .. } => (outputs.as_slice(), None),
            Self::Call { key, .. } => (&[][..], Some(key.as_slice())),
        };
        outputs.iter().map(|output| output.key.as_slice()).chain(called)
    }
}

/// An output of a fan-out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// The key of the first `check` source that it is given for; empty: there is none.
    pub check: Vec<u8>,
    /// The output.
    pub key: Vec<u8>,
}

/// Keys that another shard is asked for: those of a range that it is home of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RemoteRead {
    /// The shard.
    pub home: Shard,
    /// The version of the placement by which it is that.
    pub version: u64,
    /// The first key, and the one behind the last.
    pub range: (Vec<u8>, Vec<u8>),
    /// At most so many, from the first on.
    pub limit: Option<u64>,
}

/// What one shard asks of another.
#[derive(Clone, PartialEq, Debug)]
pub enum RemoteRequest {
    /// To carry out a part of a task.
    Effect(Box<RemoteTask>, RemoteEffect),
    /// For keys.
    Read(RemoteRead),
}

/// What it is answered.
#[derive(Clone, PartialEq, Debug)]
pub enum RemoteResponse {
    /// What came of the part.
    Effect(Outcome),
    /// The keys, or why they are not known.
    Read(RemoteRead, Result<Vec<Vec<u8>>, Outcome>),
}

/// A request or a response, with the number by which the shard that asks knows the request.
#[derive(Clone, PartialEq, Debug)]
pub enum RemoteMessage {
    /// It is asked.
    Request(u64, RemoteRequest),
    /// It is answered.
    Response(u64, RemoteResponse),
}

impl RemoteMessage {
    /// What is answered to a request that cannot be sent: it is to be asked again. `None`: it is no request.
    #[must_use]
    pub fn unsent(self) -> Option<Self> {
        let Self::Request(number, request) = self else { return None };
        let response = match request {
            RemoteRequest::Effect(..) => RemoteResponse::Effect(Outcome::Waits),
            RemoteRequest::Read(read) => RemoteResponse::Read(read, Err(Outcome::Waits)),
        };
        Some(Self::Response(number, response))
    }

    /// Memory that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Request(_, RemoteRequest::Effect(_, effect)) => effect.bytes(),
            Self::Response(_, RemoteResponse::Read(_, Ok(keys))) => {
                keys.iter().map(|key| key.len() + 24).sum()
            }
            _ => 0,
        }
    }
}
