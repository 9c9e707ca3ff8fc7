//! Messages between shards as bytes: what goes over a link between processes.
//!
//! A frame has one batch, its number among those of its direction ([`FrameSequence`](super::FrameSequence)), and a checksum of all of that: what one
//! shard has written to another in a turn of its loop. What is about the process that both
//! would share (clients that change their thread, rounds in which all stand still, metrics, settings) has no form: between processes it
//! is not said.
//!
//! A connection has a format, on which both sides have agreed when it began. There is one format so far; what a later one says in another way is
//! decided by it here, and the messages of those before go on being written and read.
//!
//! # Invariants
//! - L1. What is read of a frame can be taken in without a look at its places: they lie in its bytes, in order.
//! - L2. Nothing of a frame is taken in unless all of it is what a shard would write: requests, answers and changes in it are
//!   whole, and name shards that there are.
//! - L3. Nothing of a frame is taken in whose bytes have changed on their way.

use super::message::{MessageBatch, ShardMessage};
use crate::connection::ConnectionId;
use crate::keeping::read_definitions;
use crate::resp::{Note, Origin, TrackingNote, are_changes, are_copies, is_monitored};
use headwater_base::Shard;
use headwater_base::hash::stable_hash;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u32, put_u64};
use headwater_node::{Packet, RemoteMessage};
use headwater_router::{are_answers, are_requests};

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
    pub(super) const LEAVES: u8 = 17;
    pub(super) const LEFT: u8 = 18;

    /// Whether there is this kind in a format: those of later ones are neither written nor read where a connection has an earlier one.
    pub(super) fn is_of(kind: u8, format: u16) -> bool {
        let since = match kind {
            ASKS..=LEFT => 4,
            _ => return false,
        };
        format >= since
    }
}

/// A message that has no form between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unsayable;

/// Who has sent a frame, as it has proved when the connection began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) shard: Shard,
    /// Its life.
    pub(crate) epoch: u64,
    /// How many shards there are.
    pub(crate) shards: u16,
    /// The format of what goes over the connection, on which both sides have agreed.
    pub(crate) format: u16,
}

/// Bytes of a frame's checksum.
const SEAL_BYTES: usize = 8;

fn sum_of(content: &[u8]) -> [u8; SEAL_BYTES] {
    stable_hash(0, content).to_le_bytes()
}

/// Ends a frame's content, which begins at `start`, with its checksum (L3).
pub(crate) fn seal(start: usize, out: &mut Vec<u8>) {
    let sum = sum_of(&out[start..]);
    out.extend_from_slice(&sum);
}

/// Two shards never connect so often.
const CONNECTIONS_MAX: u64 = 1 << 48;

impl MessageBatch {
    /// Writes the content of the frame of this number, in this format, behind what `out` has.
    ///
    /// # Errors
    /// It has a message that another process is not told, or not in this format; nothing of it was written.
    pub(crate) fn write(
        &self,
        (format, number): (u16, u64),
        out: &mut Vec<u8>,
    ) -> Result<(), Unsayable> {
        let start = out.len();
        put_u64(out, number);
        put_u16(out, self.from.0.into());
        put_bytes(out, &self.bytes);
        put_u32(out, self.messages.len());
        for message in &self.messages {
            let at = out.len();
            if let Err(error) = write_message(message, out) {
                out.truncate(start);
                return Err(error);
            }
            if !kind::is_of(out[at], format) {
                out.truncate(start);
                return Err(Unsayable);
            }
        }
        seal(start, out);
        Ok(())
    }

    /// Reads a frame's number and content, which this shard has sent.
    ///
    /// # Errors
    /// Why these bytes were not written there by [`MessageBatch::write`].
    pub(crate) fn read(frame: &[u8], sender: &Sender) -> Result<(u64, Self), &'static str> {
        let sealed = frame.split_last_chunk::<SEAL_BYTES>();
        let content = sealed.filter(|(content, sum)| sum_of(content) == **sum);
        let (content, _) = content.ok_or("its bytes are not those that were written")?;
        let read =
            Self::read_messages(content, sender.format).ok_or("it is cut, or of another form")?;
        read.1.fault(sender).map_or(Ok(read), Err)
    }

    /// What is wrong with what its messages have (L2).
    fn fault(&self, sender: &Sender) -> Option<&'static str> {
        if self.from != sender.shard {
            return Some("it says that it is another shard's");
        }
        let shards = sender.shards;
        let mut begin = 0;
        for message in &self.messages {
            let end = message.end().unwrap_or(begin);
            let bytes = &self.bytes[begin..end];
            begin = end;
            let (is_right, otherwise) = match message {
                ShardMessage::Asks { .. } => {
                    (are_requests(bytes, sender.shard, shards), "a request cannot be read")
                }
                ShardMessage::HandedOn { origin, .. } => (
                    origin.shard.0 < shards && are_requests(bytes, origin.shard, shards),
                    "a request that was handed on cannot be read",
                ),
                ShardMessage::Answers { .. } => (are_answers(bytes), "an answer cannot be read"),
                ShardMessage::Changes { .. } => {
                    (are_changes(bytes), "a change of what is watched cannot be read")
                }
                ShardMessage::Copies { .. } => {
                    (are_copies(bytes), "a note of clients' copies cannot be read")
                }
                ShardMessage::Monitored { .. } => {
                    (is_monitored(bytes), "a request for monitors cannot be read")
                }
                ShardMessage::Definitions { .. } => {
                    (read_definitions(bytes).is_some(), "what is defined cannot be read")
                }
                ShardMessage::Packet(packet) => (
                    packet.epoch == sender.epoch && packet.connection < CONNECTIONS_MAX,
                    "a packet is of another life of the shard, or of no connection",
                ),
                ShardMessage::Flow(message) => {
                    (message.names_shards(shards), "a task is of a shard that is none")
                }
                _ => (true, ""),
            };
            if !is_right {
                return Some(otherwise);
            }
        }
        (begin < self.bytes.len()).then_some("it has bytes that are no message's")
    }

    fn read_messages(frame: &[u8], format: u16) -> Option<(u64, Self)> {
        let frame = &mut WireReader::of(frame);
        let number = frame.u64()?;
        let from = Shard(frame.u16()? as u16);
        let bytes = frame.bytes()?.to_vec();
        let mut before = 0;
        let messages = frame.list(1, |frame| {
            let (message, end) = read_message(frame, (format, before))?;
            before = end.unwrap_or(before);
            (before <= bytes.len()).then_some(message)
        })?;
        let batch = Self { from, bytes, messages, connection: 0 };
        frame.rest().is_empty().then_some((number, batch))
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
        ShardMessage::Leaves => out.push(kind::LEAVES),
        ShardMessage::Left => out.push(kind::LEFT),
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
        | ShardMessage::HandedTo { .. }
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
        | ShardMessage::Lost { .. }
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
    (format, before): (u16, usize),
) -> Option<(ShardMessage, Option<usize>)> {
    let kind = frame.u8().filter(|kind| kind::is_of(*kind, format))?;
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
        kind::LEAVES => ShardMessage::Leaves,
        kind::LEFT => ShardMessage::Left,
        kind::PACKET => ShardMessage::Packet(Box::new(Packet::read(frame)?)),
        kind::FLOW => ShardMessage::Flow(Box::new(RemoteMessage::read(frame)?)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{changes_example, copies_example, monitored_example};
    use headwater_command::{OwnedArgs, Reply, table};
    use headwater_model::rng::Rng;
    use headwater_router::{Ask, AskHeader, answer_of, write_answer, write_ask};

    fn sender(shard: u16) -> Sender {
        Sender { shard: Shard(shard), epoch: 0, shards: 10, format: 4 }
    }

    /// One that has a kind, a name and a text of one byte each.
    const DEFINITIONS: [u8; 19] =
        [1, 0, 0, 0, 1, 0, 0, 0, b'a', 1, 0, 0, 0, b'b', 1, 0, 0, 0, b'c'];

    /// Batches with each kind of message.
    fn batches() -> Vec<MessageBatch> {
        let session = ConnectionId { slot: 5, number: 1 << 35 };
        let origin = Origin { shard: Shard(2), session };
        let mut bytes = Vec::new();
        let mut messages = Vec::new();
        let mut say = |content: &[u8], message: &dyn Fn(usize) -> ShardMessage| {
            bytes.extend_from_slice(content);
            messages.push(message(bytes.len()));
        };
        let (mut ask, mut answer) = (Vec::new(), Vec::new());
        let get: OwnedArgs = [&b"GET"[..], b"a|b"].into_iter().collect();
        let command = Ask::Command(table::lookup(b"get").unwrap(), get.args());
        write_ask(&AskHeader::default(), &command, &mut ask);
        write_answer(1, 2, &[3], &answer_of(|out| out.bulk(b"value")), &mut answer);
        let twice = |one: &[u8]| [one, one].concat();
        say(&twice(&ask), &|end| ShardMessage::Asks { session, end });
        say(b"", &|_| ShardMessage::Gone { session });
        say(&twice(&copies_example()), &|end| ShardMessage::Copies { end });
        say(&twice(&changes_example()), &|end| ShardMessage::Changes { end });
        say(b"", &|_| ShardMessage::HungUp { session });
        say(b"name", &|end| ShardMessage::Publish { name: 2, end });
        say(&ask, &|end| ShardMessage::HandedOn { origin, end });
        say(b"", &|_| ShardMessage::Broken { session });
        say(&twice(&answer), &|end| ShardMessage::Answers { session, end });
        say(&monitored_example(), &|end| ShardMessage::Monitored { end });
        say(b"", &|_| ShardMessage::Defined { digest: 1 << 60 });
        say(b"", &|_| ShardMessage::AskDefinitions);
        say(b"", &|_| ShardMessage::Leaves);
        say(b"", &|_| ShardMessage::Left);
        say(&DEFINITIONS, &|end| ShardMessage::Definitions { end });
        let notes = Note::examples().into_iter().map(Box::new);
        messages.extend(notes.map(ShardMessage::Watching));
        let notes = TrackingNote::examples().into_iter().map(Box::new);
        messages.extend(notes.map(ShardMessage::Tracking));
        let hello = Packet::read(&mut WireReader::of(&[0; 33])).unwrap();
        messages.push(ShardMessage::Packet(Box::new(hello)));
        // A read, of the shard whose number the tenth byte is.
        let mut task = [0; 36];
        (task[0], task[9]) = (3, 2);
        let task = RemoteMessage::read(&mut WireReader::of(&task)).unwrap();
        messages.push(ShardMessage::Flow(Box::new(task)));
        let whole = MessageBatch { from: Shard(1), bytes, messages, connection: 0 };
        vec![whole, MessageBatch { from: Shard(9), ..MessageBatch::default() }]
    }

    fn frame_of(batch: &MessageBatch) -> Vec<u8> {
        let mut frame = Vec::new();
        batch.write((4, 7), &mut frame).unwrap();
        frame
    }

    #[test]
    fn batches_arrive_and_what_is_cut_is_refused() {
        for batch in batches() {
            let (mut frame, sender) = (frame_of(&batch), sender(batch.from.0));
            let (number, read) = MessageBatch::read(&frame, &sender).unwrap();
            assert_eq!((number, format!("{read:?}")), (7, format!("{batch:?}")));
            for end in 0..frame.len() {
                assert!(MessageBatch::read(&frame[..end], &sender).is_err(), "{end}");
            }
            frame.push(0);
            assert!(MessageBatch::read(&frame, &sender).is_err());
        }
    }

    /// Of each kind that has content, one whose content is cut, or of a shard that there is not (L2).
    #[test]
    fn what_messages_have_is_whole_or_refused() {
        let whole = &batches()[0];
        let (mut begin, mut refused) = (0, Vec::new());
        for message in &whole.messages {
            let end = message.end().unwrap_or(begin);
            let content = &whole.bytes[begin..end];
            begin = end;
            let cut = content.len().saturating_sub(1);
            let message = match *message {
                ShardMessage::Asks { session, .. } => ShardMessage::Asks { session, end: cut },
                ShardMessage::HandedOn { origin, .. } => {
                    ShardMessage::HandedOn { origin, end: cut }
                }
                ShardMessage::Answers { session, .. } => {
                    ShardMessage::Answers { session, end: cut }
                }
                ShardMessage::Changes { .. } => ShardMessage::Changes { end: cut },
                ShardMessage::Copies { .. } => ShardMessage::Copies { end: cut },
                ShardMessage::Monitored { .. } => ShardMessage::Monitored { end: cut },
                ShardMessage::Definitions { .. } => ShardMessage::Definitions { end: cut },
                _ => continue,
            };
            let bytes = content[..cut].to_vec();
            let batch = MessageBatch { bytes, messages: vec![message], ..MessageBatch::default() };
            refused.push(MessageBatch::read(&frame_of(&batch), &sender(0)).unwrap_err());
        }
        assert_eq!(refused.len(), 7, "{refused:?}");
        refused.dedup();
        assert_eq!(refused.len(), 7, "each says what it is: {refused:?}");
        // The same, of another shard, another life, and of fewer shards: the origin of what was handed on is none.
        let right = sender(1);
        for wrong in [
            Sender { shard: Shard(0), ..right },
            Sender { epoch: 1, ..right },
            Sender { shards: 2, ..right },
        ] {
            assert!(MessageBatch::read(&frame_of(whole), &wrong).is_err(), "{wrong:?}");
        }
        let late = MessageBatch { bytes: b"more".to_vec(), ..MessageBatch::default() };
        assert!(MessageBatch::read(&frame_of(&late), &sender(0)).is_err());
    }

    #[test]
    fn what_is_the_process_s_own_is_not_said() {
        let mut frame = b"before".to_vec();
        let messages = vec![ShardMessage::Resume];
        let batch = MessageBatch { messages, ..MessageBatch::default() };
        assert_eq!(batch.write((4, 7), &mut frame), Err(Unsayable));
        assert_eq!(frame, b"before");
    }

    /// Each kind of message goes over connections of the format that it came with, and later ones.
    #[test]
    fn what_a_format_does_not_have_is_neither_written_nor_read() {
        let batch = &batches()[0];
        let mut frame = b"before".to_vec();
        assert_eq!(batch.write((3, 7), &mut frame), Err(Unsayable));
        assert_eq!(frame, b"before");
        let older = Sender { format: 3, ..sender(1) };
        assert!(MessageBatch::read(&frame_of(batch), &older).is_err());
        let newer = Sender { format: 5, ..sender(1) };
        let mut frame = Vec::new();
        batch.write((5, 7), &mut frame).unwrap();
        assert!(MessageBatch::read(&frame, &newer).is_ok());
        assert!(!kind::is_of(kind::LEFT + 1, u16::MAX));
    }

    /// Programs that read the same format understand each other, so its bytes stay what they are. Where this fails, something was changed that crosses
    /// links: make that another format (`LINK_FORMATS`), go on writing and reading the ones before, and give it numbers of its own here. A command that
    /// is new has no number in the formats before; what was not released yet may change without.
    #[test]
    fn the_bytes_of_a_format_stay_what_they_are() {
        let frames: Vec<u8> = batches().iter().flat_map(frame_of).collect();
        let names: Vec<u8> =
            (0..).map_while(table::spec_of).flat_map(|spec| spec.name.bytes()).collect();
        let hash = |bytes: &[u8]| stable_hash(0, bytes);
        let found = (frames.len(), hash(&frames), hash(&names));
        assert_eq!(found, (1163, 1_075_971_830_100_259_425, 14_934_656_054_712_803_024));
    }

    /// A bit of a frame that is another one on its way is noticed, whichever it is (L3).
    #[test]
    fn no_changed_bit_is_taken_in() {
        let frame = frame_of(&batches()[0]);
        for bit in 0..8 * frame.len() {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let why = MessageBatch::read(&changed, &sender(1)).unwrap_err();
            assert_eq!(why, "its bytes are not those that were written", "bit {bit}");
        }
    }

    /// Whatever the bytes are that a shard has written: each message's lie in the batch's, and one follows the other (L1).
    #[test]
    fn any_bytes_are_taken_in_or_refused() {
        let content = |batch: &MessageBatch| {
            let mut frame = frame_of(batch);
            frame.truncate(frame.len() - SEAL_BYTES);
            frame
        };
        let frames: Vec<Vec<u8>> = batches().iter().map(content).collect();
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
            seal(0, &mut frame);
            let Ok((_, batch)) = MessageBatch::read(&frame, &sender(1)) else { continue };
            taken += 1;
            let mut before = 0;
            for message in &batch.messages {
                let name = match message {
                    ShardMessage::Publish { name, .. } => *name,
                    _ => 0,
                };
                let end = message.end().unwrap_or(before);
                assert!(before + name <= end && end <= batch.bytes.len(), "round {round}");
                before = end;
            }
        }
        assert!(taken > 10, "{taken}");
    }
}
