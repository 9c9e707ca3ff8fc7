//! What a shard has written to another one and not handed over yet.
//!
//! Requests go with the end of the turn. What tells of keys here (answers, changes, copies) may show writes that a crash could still
//! take back: like the replies to clients here ([`DurableWrites`]) it waits until they are durable.
//!
//! # Invariants
//! - D1. What tells of keys goes in the order in which it was written: a change is never told before an answer that is older.
//!
//! # Cost
//! Where no write waits, which is so without a store, an empty list is looked at. A part that waits is copied each time that what is
//! before it goes.

use super::message::{MessageBatch, ShardMessage};
use crate::connection::ConnectionId;
use crate::service::DurableWrites;
use headwater_base::Shard;
use std::collections::VecDeque;

/// Bytes, or messages, for which there is room in a batch before they come.
const EXPECTED_MAX: usize = 4 << 10;

/// What was written to one shard.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) requests: MessageBatch,
    told: MessageBatch,
    /// What `told` needs, from which message on.
    gates: VecDeque<WriteGate>,
}

/// From here on messages may show a write.
#[derive(Clone, Copy, Debug)]
struct WriteGate {
    /// Its number.
    write: u64,
    /// The first message, and where its bytes begin.
    messages: usize,
    bytes: usize,
}

/// The messages that tell of keys, to add to.
#[derive(Debug)]
pub(crate) struct ToldBatch<'l> {
    /// Those so far.
    pub(crate) batch: &'l mut MessageBatch,
    /// The last of them shows the same writes: what follows may be joined with it.
    pub(crate) joins: bool,
}

fn empty(from: Shard) -> MessageBatch {
    MessageBatch { from, ..MessageBatch::default() }
}

/// Takes what is there. The next one will be about as long.
fn take(batch: &mut MessageBatch) -> MessageBatch {
    let next = MessageBatch {
        from: batch.from,
        bytes: Vec::with_capacity(batch.bytes.len().min(EXPECTED_MAX)),
        messages: Vec::with_capacity(batch.messages.len().min(EXPECTED_MAX)),
        connection: 0,
    };
    core::mem::replace(batch, next)
}

impl Outgoing {
    pub(super) fn new(from: Shard) -> Self {
        Self { requests: empty(from), told: empty(from), gates: VecDeque::new() }
    }

    /// What tells of keys, to be added to. The last write so far is `write`.
    #[inline]
    pub(super) fn told(&mut self, write: u64) -> ToldBatch<'_> {
        let messages = self.told.messages.len();
        let of_write = self.gates.back().filter(|gate| gate.write == write);
        let joins = of_write.is_some_and(|gate| gate.messages < messages);
        if of_write.is_none() {
            self.gates.push_back(WriteGate { write, messages, bytes: self.told.bytes.len() });
        }
        ToldBatch { batch: &mut self.told, joins }
    }

    /// Bytes that were not handed over.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.requests.bytes.len() + self.told.bytes.len()
    }

    /// Takes what may go, in this order: the last request may be to end.
    #[inline]
    pub(super) fn take(&mut self, writes: &DurableWrites) -> [Option<MessageBatch>; 2] {
        let requests = (!self.requests.messages.is_empty()).then(|| take(&mut self.requests));
        let told = if self.gates.is_empty() { None } else { self.take_told(writes) };
        [told, requests]
    }

    fn take_told(&mut self, writes: &DurableWrites) -> Option<MessageBatch> {
        if writes.withheld {
            return None;
        }
        let waits = |gate: &WriteGate| gate.write > writes.durable && !writes.failed;
        let Some(open) = self.gates.iter().position(waits) else {
            self.gates.clear();
            return (!self.told.messages.is_empty()).then(|| take(&mut self.told));
        };
        let WriteGate { messages, bytes, .. } = self.gates[open];
        self.gates.drain(..open);
        if messages == 0 {
            return None;
        }
        let rest = self.told.split_at(messages, bytes);
        for gate in &mut self.gates {
            (gate.messages, gate.bytes) = (gate.messages - messages, gate.bytes - bytes);
        }
        Some(core::mem::replace(&mut self.told, rest))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.requests.from);
    }

    /// A session is not to be told what waits to be told to it.
    pub(super) fn forget_answers(&mut self, of: ConnectionId) {
        let (all, mut gates) =
            (take(&mut self.told), core::mem::take(&mut self.gates).into_iter().peekable());
        let mut begin = 0;
        for (at, mut message) in all.messages.into_iter().enumerate() {
            if let Some(gate) = gates.next_if(|gate| gate.messages == at) {
                let (messages, bytes) = (self.told.messages.len(), self.told.bytes.len());
                self.gates.push_back(WriteGate { messages, bytes, ..gate });
            }
            let is_its = matches!(message, ShardMessage::Answers { session, .. } if session == of);
            if let Some(end) = message.end_mut() {
                let bytes = &all.bytes[begin..*end];
                begin = *end;
                if !is_its {
                    self.told.bytes.extend_from_slice(bytes);
                    *end = self.told.bytes.len();
                }
            }
            if !is_its {
                self.told.messages.push(message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64) -> ConnectionId {
        ConnectionId { slot: 0, number }
    }

    fn answer(lane: &mut Outgoing, write: u64, of: u64, text: &str) {
        let batch = lane.told(write).batch;
        batch.bytes.extend_from_slice(text.as_bytes());
        let end = batch.bytes.len();
        batch.messages.push(ShardMessage::Answers { session: session(of), end });
    }

    /// The texts of the messages that go.
    fn taken(lane: &mut Outgoing, durable: u64) -> Vec<String> {
        let writes = DurableWrites { last: 9, durable, ..DurableWrites::default() };
        let [told, requests] = lane.take(&writes);
        assert!(requests.is_none());
        let Some(mut told) = told else { return Vec::new() };
        assert_eq!(told.from, Shard(4));
        let mut begin = 0;
        let text = |message: &mut ShardMessage| {
            let end = message.end().unwrap();
            String::from_utf8(told.bytes[core::mem::replace(&mut begin, end)..end].to_vec())
        };
        told.messages.iter_mut().map(text).collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn what_shows_writes_waits_for_them_in_its_order() {
        let mut lane = Outgoing::new(Shard(4));
        let nothing: [&str; 0] = [];
        assert_eq!(taken(&mut lane, 0), nothing);
        answer(&mut lane, 0, 1, "shows nothing");
        assert_eq!(taken(&mut lane, 0), ["shows nothing"]);
        answer(&mut lane, 3, 1, "a");
        assert!(lane.told(3).joins && !lane.told(4).joins && !lane.told(4).joins, "behind others");
        answer(&mut lane, 4, 2, "bb");
        answer(&mut lane, 4, 1, "");
        answer(&mut lane, 7, 1, "ccc");
        assert_eq!((taken(&mut lane, 2), lane.bytes()), (Vec::new(), 6));
        assert_eq!(taken(&mut lane, 3), ["a"]);
        assert_eq!(taken(&mut lane, 3), nothing);
        answer(&mut lane, 7, 2, "d");
        assert_eq!(taken(&mut lane, 6), ["bb", ""]);
        assert_eq!(taken(&mut lane, 8), ["ccc", "d"]);
        assert_eq!((taken(&mut lane, 9), lane.bytes()), (Vec::new(), 0));
    }

    #[test]
    fn requests_wait_for_nothing() {
        let mut lane = Outgoing::new(Shard(4));
        answer(&mut lane, 3, 1, "a");
        lane.requests.messages.push(ShardMessage::Resume);
        let writes = DurableWrites { last: 3, ..DurableWrites::default() };
        assert!(matches!(lane.take(&writes), [None, Some(_)]));
        // Another node may be the owner: nothing tells of keys. Or nothing will be durable: who is told is told.
        let withheld = DurableWrites { durable: 3, withheld: true, ..writes };
        assert!(matches!(lane.take(&withheld), [None, None]));
        let failed = DurableWrites { failed: true, ..writes };
        assert!(matches!(lane.take(&failed), [Some(_), None]));
    }

    #[test]
    fn answers_of_one_session_are_forgotten() {
        let mut lane = Outgoing::new(Shard(4));
        for (write, of, text) in [(1, 1, "a"), (1, 2, "b"), (2, 1, "c"), (3, 2, "d"), (3, 1, "e")] {
            answer(&mut lane, write, of, text);
        }
        lane.told(3).batch.messages.push(ShardMessage::Broken { session: session(1) });
        lane.forget_answers(session(1));
        assert_eq!(lane.bytes(), 2);
        assert_eq!(taken(&mut lane, 2), ["b"]);
        let all = lane.take(&DurableWrites { durable: 3, ..DurableWrites::default() });
        let [Some(all), None] = all else { panic!("{all:?}") };
        assert_eq!((all.messages.len(), &all.bytes[..]), (2, &b"d"[..]));
    }
}
