//! Messages between shards as bytes: what goes over a link between processes.
//!
//! A frame has one batch: all that one shard has written to another in a turn of its loop. What is about the process that both
//! would share (clients that change their thread, rounds in which all stand still, metrics, settings) has no form: between processes it
//! is not said.
//!
//! # Invariants
//! - L1. What is read of a frame can be taken in without a look at its places: they lie in its bytes, in order.

use super::message::{MessageBatch, ShardMessage};
use crate::connection::ConnectionId;
use crate::resp::{Note, Origin, TrackingNote};
use headwater_base::Shard;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u32, put_u64};
use headwater_node::{Packet, RemoteMessage};

mod kind {
    pub(super) const ASKS: u8 = 0;
    pub(super) const HANDED_ON: u8 = 1;
    pub(super) const ANSWERS: u8 = 2;
    pub(super) const GONE: u8 = 3;
    pub(super) const HUNG_UP: u8 = 4;
    pub(super) const BROKEN: u8 = 5;
    pub(super) const PUBLISH: u8 = 6;
    pub(super) const MONITORED: u8 = 7;
    pub(super) const WATCHING: u8 = 8;
    pub(super) const CHANGES: u8 = 9;
    pub(super) const TRACKING: u8 = 10;
    pub(super) const COPIES: u8 = 11;
    pub(super) const PACKET: u8 = 12;
    pub(super) const FLOW: u8 = 13;
    pub(super) const DEFINED: u8 = 14;
    pub(super) const ASK_DEFINITIONS: u8 = 15;
    pub(super) const DEFINITIONS: u8 = 16;
}

/// A message that has no form between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unsayable;

impl MessageBatch {
    /// Writes a frame's content behind what `out` has.
    ///
    /// # Errors
    /// It has a message that another process is not told; nothing of it was written.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Result<(), Unsayable> {
        let start = out.len();
        put_u16(out, self.from.0.into());
        put_bytes(out, &self.bytes);
        put_u32(out, self.messages.len());
        for message in &self.messages {
            if let Err(error) = write_message(message, out) {
                out.truncate(start);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads a frame's content; `None`: these bytes were not written by [`MessageBatch::write`].
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let frame = &mut WireReader::of(frame);
        let from = Shard(frame.u16()? as u16);
        let bytes = frame.bytes()?.to_vec();
        let mut before = 0;
        let messages = frame.list(1, |frame| {
            let (message, end) = read_message(frame, before)?;
            before = end.unwrap_or(before);
            (before <= bytes.len()).then_some(message)
        })?;
        frame.rest().is_empty().then_some(Self { from, bytes, messages, connection: 0 })
    }
}

fn write_message(message: &ShardMessage, out: &mut Vec<u8>) -> Result<(), Unsayable> {
    match message {
        ShardMessage::Asks { session, end } => {
            out.push(kind::ASKS);
            session.write(out);
            put_u32(out, *end);
        }
        ShardMessage::HandedOn { origin, end } => {
            out.push(kind::HANDED_ON);
            put_u16(out, origin.shard.0.into());
            origin.session.write(out);
            put_u32(out, *end);
        }
        ShardMessage::Answers { session, end } => {
            out.push(kind::ANSWERS);
            session.write(out);
            put_u32(out, *end);
        }
        ShardMessage::Gone { session } => {
            out.push(kind::GONE);
            session.write(out);
        }
        ShardMessage::HungUp { session } => {
            out.push(kind::HUNG_UP);
            session.write(out);
        }
        ShardMessage::Broken { session } => {
            out.push(kind::BROKEN);
            session.write(out);
        }
        ShardMessage::Publish { name, end } => {
            out.push(kind::PUBLISH);
            put_u32(out, *name);
            put_u32(out, *end);
        }
        ShardMessage::Monitored { end } => {
            out.push(kind::MONITORED);
            put_u32(out, *end);
        }
        ShardMessage::Watching(note) => {
            out.push(kind::WATCHING);
            note.write(out);
        }
        ShardMessage::Changes { end } => {
            out.push(kind::CHANGES);
            put_u32(out, *end);
        }
        ShardMessage::Tracking(note) => {
            out.push(kind::TRACKING);
            note.write(out);
        }
        ShardMessage::Copies { end } => {
            out.push(kind::COPIES);
            put_u32(out, *end);
        }
        ShardMessage::Defined { digest } => {
            out.push(kind::DEFINED);
            put_u64(out, *digest);
        }
        ShardMessage::AskDefinitions => out.push(kind::ASK_DEFINITIONS),
        ShardMessage::Definitions { end } => {
            out.push(kind::DEFINITIONS);
            put_u32(out, *end);
        }
        ShardMessage::Packet(packet) => {
            out.push(kind::PACKET);
            packet.write(out);
        }
        ShardMessage::Flow(message) => {
            out.push(kind::FLOW);
            message.write(out);
        }
        ShardMessage::Client(_)
        | ShardMessage::FindKeys { .. }
        | ShardMessage::KeysFound
        | ShardMessage::Quiesce { .. }
        | ShardMessage::Quiescent { .. }
        | ShardMessage::Resume
        | ShardMessage::MayQuiesce
        | ShardMessage::Move { .. }
        | ShardMessage::BeginBackup
        | ShardMessage::AskFigures
        | ShardMessage::Settings(_)
        | ShardMessage::Figures(_)
        | ShardMessage::Stop
        | ShardMessage::Lost
        | ShardMessage::Found => return Err(Unsayable),
    }
    Ok(())
}

/// The place behind a message's bytes, which begin at `before`.
fn read_end(frame: &mut WireReader<'_>, before: usize) -> Option<usize> {
    frame.u32().filter(|end| *end >= before)
}

/// A message, and the place behind its bytes, if it has any.
fn read_message(
    frame: &mut WireReader<'_>,
    before: usize,
) -> Option<(ShardMessage, Option<usize>)> {
    let kind = frame.u8()?;
    let (message, end) = match kind {
        kind::ASKS => {
            let (session, end) = (ConnectionId::read(frame)?, read_end(frame, before)?);
            (ShardMessage::Asks { session, end }, end)
        }
        kind::HANDED_ON => {
            let shard = Shard(frame.u16()? as u16);
            let origin = Origin { shard, session: ConnectionId::read(frame)? };
            let end = read_end(frame, before)?;
            (ShardMessage::HandedOn { origin, end }, end)
        }
        kind::ANSWERS => {
            let (session, end) = (ConnectionId::read(frame)?, read_end(frame, before)?);
            (ShardMessage::Answers { session, end }, end)
        }
        kind::PUBLISH => {
            let (name, end) = (frame.u32()?, read_end(frame, before)?);
            ((name <= end - before).then_some(ShardMessage::Publish { name, end })?, end)
        }
        kind::MONITORED => {
            let end = read_end(frame, before)?;
            (ShardMessage::Monitored { end }, end)
        }
        kind::CHANGES => {
            let end = read_end(frame, before)?;
            (ShardMessage::Changes { end }, end)
        }
        kind::COPIES => {
            let end = read_end(frame, before)?;
            (ShardMessage::Copies { end }, end)
        }
        kind::DEFINITIONS => {
            let end = read_end(frame, before)?;
            (ShardMessage::Definitions { end }, end)
        }
        kind => return Some((read_other(kind, frame)?, None)),
    };
    Some((message, Some(end)))
}

/// A message without bytes beside it.
fn read_other(kind: u8, frame: &mut WireReader<'_>) -> Option<ShardMessage> {
    Some(match kind {
        kind::GONE => ShardMessage::Gone { session: ConnectionId::read(frame)? },
        kind::HUNG_UP => ShardMessage::HungUp { session: ConnectionId::read(frame)? },
        kind::BROKEN => ShardMessage::Broken { session: ConnectionId::read(frame)? },
        kind::WATCHING => ShardMessage::Watching(Box::new(Note::read(frame)?)),
        kind::TRACKING => ShardMessage::Tracking(Box::new(TrackingNote::read(frame)?)),
        kind::DEFINED => ShardMessage::Defined { digest: frame.u64()? },
        kind::ASK_DEFINITIONS => ShardMessage::AskDefinitions,
        kind::PACKET => ShardMessage::Packet(Box::new(Packet::read(frame)?)),
        kind::FLOW => ShardMessage::Flow(Box::new(RemoteMessage::read(frame)?)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_model::rng::Rng;

    /// Batches with each kind of message.
    fn batches() -> Vec<MessageBatch> {
        let session = ConnectionId { slot: 5, number: 1 << 35 };
        let origin = Origin { shard: Shard(2), session };
        let (asks, copies, changes) = (3, 7, 7);
        let mut messages = vec![
            ShardMessage::Asks { session, end: asks },
            ShardMessage::Gone { session },
            ShardMessage::Copies { end: copies },
            ShardMessage::Changes { end: changes },
            ShardMessage::HungUp { session },
            ShardMessage::Publish { name: 2, end: 10 },
            ShardMessage::HandedOn { origin, end: 11 },
            ShardMessage::Broken { session },
            ShardMessage::Answers { session, end: 12 },
            ShardMessage::Monitored { end: 13 },
            ShardMessage::Defined { digest: 1 << 60 },
            ShardMessage::AskDefinitions,
            ShardMessage::Definitions { end: 13 },
        ];
        let notes = Note::examples().into_iter().map(Box::new);
        messages.extend(notes.map(ShardMessage::Watching));
        let notes = TrackingNote::examples().into_iter().map(Box::new);
        messages.extend(notes.map(ShardMessage::Tracking));
        let hello = Packet::read(&mut WireReader::of(&[0; 25])).unwrap();
        messages.push(ShardMessage::Packet(Box::new(hello)));
        let bytes = b"0123456789abc".to_vec();
        let whole = MessageBatch { from: Shard(1), bytes, messages, connection: 0 };
        vec![whole, MessageBatch { from: Shard(9), ..MessageBatch::default() }]
    }

    #[test]
    fn batches_arrive_and_what_is_cut_is_refused() {
        for batch in batches() {
            let mut frame = Vec::new();
            batch.write(&mut frame).unwrap();
            let read = MessageBatch::read(&frame).unwrap();
            assert_eq!(format!("{read:?}"), format!("{batch:?}"));
            for end in 0..frame.len() {
                assert!(MessageBatch::read(&frame[..end]).is_none(), "{end}");
            }
            frame.push(0);
            assert!(MessageBatch::read(&frame).is_none());
        }
    }

    #[test]
    fn what_is_the_process_s_own_is_not_said() {
        let mut frame = b"before".to_vec();
        let messages = vec![ShardMessage::Resume];
        let batch = MessageBatch { messages, ..MessageBatch::default() };
        assert_eq!(batch.write(&mut frame), Err(Unsayable));
        assert_eq!(frame, b"before");
    }

    /// Whatever the bytes are: each message's lie in the batch's, and one follows the other (L1).
    #[test]
    fn any_bytes_are_taken_in_or_refused() {
        let frames: Vec<Vec<u8>> = batches()
            .iter()
            .map(|batch| {
                let mut frame = Vec::new();
                batch.write(&mut frame).unwrap();
                frame
            })
            .collect();
        let mut taken = 0;
        let rounds = std::env::var("HEADWATER_FUZZ_ROUNDS").ok();
        for round in 0..rounds.map_or(20_000, |text| text.parse().expect("a number")) {
            let mut rng = Rng::new(round);
            let mut frame = rng.pick(&frames).clone();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(frame.len().max(1));
                match rng.below(3) {
                    0 => frame.truncate(at),
                    _ if frame.is_empty() => {}
                    1 => frame[at] = rng.below(256) as u8,
                    _ => frame[at] ^= 1 << rng.below(8),
                }
            }
            let Some(mut batch) = MessageBatch::read(&frame) else { continue };
            taken += 1;
            let mut before = 0;
            for message in &mut batch.messages {
                let name = match message {
                    ShardMessage::Publish { name, .. } => *name,
                    _ => 0,
                };
                let end = message.end_mut().map_or(before, |end| *end);
                assert!(before + name <= end && end <= batch.bytes.len(), "round {round}");
                before = end;
            }
        }
        assert!(taken > 10, "{taken}");
    }
}
