//! What shards write to one another.
//!
//! # Cost
//! The bytes of all messages of a turn lie in one buffer: a message is some words and its bytes.

use crate::arrival::Arrival;
use crate::connection::ConnectionId;
use crate::http::Metric;
use crate::resp::{Note, Origin, TrackingNote};
use headwater_base::Shard;
use headwater_base::placement::Partition;
use headwater_node::{Packet, RemoteMessage};
use std::time::Instant;

/// What one shard writes to another. Bytes are those up to `end` in the batch's buffer, from the end
/// of the message before.
#[derive(Debug)]
pub(crate) enum ShardMessage {
    /// Requests of a client, to be executed here: frames of `headwater_router::Ask`.
    Asks {
        /// The client's session at the sender.
        session: ConnectionId,
        /// Where the bytes end.
        end: usize,
    },
    /// A request of a client of any shard whose keys have got this home meanwhile.
    HandedOn {
        /// The client's session.
        origin: Origin,
        /// Where the bytes end.
        end: usize,
    },
    /// The same, for the shard of the client: another one answers a request than the one that it has asked.
    HandedTo {
        /// The client's session at the receiver.
        session: ConnectionId,
        /// The request's number there.
        id: u64,
        /// Who answers it.
        home: Shard,
    },
    /// Answers to such requests: frames of `headwater_router::write_answer`.
    Answers {
        /// The session at the receiver.
        session: ConnectionId,
        /// Where the bytes end.
        end: usize,
    },
    /// The client has gone.
    Gone {
        /// Its session at the sender.
        session: ConnectionId,
    },
    /// The client sends no more: what waits for others to write need wait no longer.
    HungUp {
        /// Its session at the sender.
        session: ConnectionId,
    },
    /// What executes a client's requests has ended: so must its connection.
    Broken {
        /// The session at the receiver.
        session: ConnectionId,
    },
    /// A client that was accepted elsewhere is to be served here.
    Client(Arrival),
    /// A message for a channel, from a flow.
    Publish {
        /// Bytes of the channel's name.
        name: usize,
        /// Where name and message end.
        end: usize,
    },
    /// What a client has asked, for the monitors of the receiver.
    Monitored {
        /// Where the bytes end.
        end: usize,
    },
    /// Something about clients' watches of ranges.
    Watching(Box<Note>),
    /// Changes of what the receiver's clients watch, in order.
    Changes {
        /// Where the bytes end.
        end: usize,
    },
    /// Something about copies that clients keep.
    Tracking(Box<TrackingNote>),
    /// Keys that clients of the receiver have read, and keys that have changed, in order.
    Copies {
        /// Where the bytes end.
        end: usize,
    },
    /// The digest of what is defined at the sender.
    Defined {
        /// The digest.
        digest: u64,
    },
    /// All that is defined at the receiver is asked for.
    AskDefinitions,
    /// All that is defined at the sender.
    Definitions {
        /// Where the bytes end.
        end: usize,
    },
    /// Loads, changes, and how far everybody has come.
    Packet(Box<Packet>),
    /// Something about tasks of flows.
    Flow(Box<RemoteMessage>),
    /// A partition is to move away: its keys on disk are to be found first.
    FindKeys {
        /// Which one.
        partition: Partition,
    },
    /// They are found.
    KeysFound,
    /// Requests of clients are to be blocked, and those that were sent to other shards to be answered.
    Quiesce {
        /// Sequence number of the round, counted per coordinator.
        number: u64,
    },
    /// That is so at the sender.
    Quiescent {
        /// Sequence number of the round.
        number: u64,
    },
    /// Requests go on.
    Resume,
    /// The receiver may coordinate the next round.
    MayQuiesce,
    /// All shards are quiescent, and move a partition in step.
    Move {
        /// Which partition.
        partition: Partition,
        /// Its new home.
        to: Shard,
    },
    /// All shards are quiescent, and begin a backup in step.
    BeginBackup,
    /// The receiver's metrics are asked for over HTTP.
    AskFigures,
    /// The first shard has read these settings again: names and values.
    Settings(Vec<(String, String)>),
    /// The sender's metrics.
    Figures(Vec<Metric>),
    /// The sender's owner is about to give its shard up: nothing more is to be asked of it.
    Leaves,
    /// Nothing more is asked of the receiver, whose owner is about to give its shard up.
    Left,
    /// The process is to end.
    Stop,
    /// Shards in processes of their own: there is no connection to the sender any more. What both wrote to each other and has not come is
    /// lost.
    Lost {
        /// When something was heard over the connection last; `None`: just then.
        heard: Option<Instant>,
    },
    /// There is a connection to the sender, which begins with what it writes from now on.
    Found,
}

/// The messages of one sender in one of its turns.
#[derive(Debug, Default)]
pub(crate) struct MessageBatch {
    /// Who wrote them.
    pub(crate) from: Shard,
    /// The bytes of all of them.
    pub(crate) bytes: Vec<u8>,
    /// The messages, in order.
    pub(crate) messages: Vec<ShardMessage>,
    /// Over which connection they go, where shards are in processes of their own: the sender's count of those that it has heard of.
    pub(crate) connection: u64,
}

impl MessageBatch {
    /// Memory that it takes, about.
    pub(crate) fn memory(&self) -> usize {
        let packets = self.messages.iter().map(|message| match message {
            ShardMessage::Packet(packet) => packet.bytes(),
            ShardMessage::Flow(message) => message.bytes(),
            _ => 0,
        });
        self.bytes.capacity()
            + self.messages.capacity() * size_of::<ShardMessage>()
            + packets.sum::<usize>()
    }
}

impl MessageBatch {
    /// Cuts it before the message at this place, whose bytes begin there; what is behind.
    pub(crate) fn split_at(&mut self, messages: usize, bytes: usize) -> Self {
        let mut messages = self.messages.split_off(messages);
        for end in messages.iter_mut().filter_map(ShardMessage::end_mut) {
            *end -= bytes;
        }
        let bytes = self.bytes.split_off(bytes);
        Self { from: self.from, bytes, messages, connection: self.connection }
    }

    /// Cuts it behind the message that has its receiver move a partition; what is behind it. `None`: it has none.
    #[cfg(test)]
    pub(crate) fn split_at_move(&mut self) -> Option<Self> {
        let at = self.messages.iter().position(|it| matches!(it, ShardMessage::Move { .. }))?;
        let ends = self.messages[..=at].iter().filter_map(|message| message.end());
        let begin = ends.max().unwrap_or(0);
        Some(self.split_at(at + 1, begin))
    }
}

impl ShardMessage {
    /// Where its bytes end in the batch's buffer, if it has any.
    pub(crate) fn end(&self) -> Option<usize> {
        match self {
            Self::Asks { end, .. }
            | Self::HandedOn { end, .. }
            | Self::Answers { end, .. }
            | Self::Publish { end, .. }
            | Self::Monitored { end }
            | Self::Changes { end }
            | Self::Definitions { end }
            | Self::Copies { end } => Some(*end),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(super) fn end_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Asks { end, .. }
            | Self::HandedOn { end, .. }
            | Self::Answers { end, .. }
            | Self::Publish { end, .. }
            | Self::Monitored { end }
            | Self::Changes { end }
            | Self::Definitions { end }
            | Self::Copies { end } => Some(end),
            _ => None,
        }
    }
}
