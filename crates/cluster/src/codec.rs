//! Packets as bytes: what goes over a link between processes.
//!
//! The format has no version of its own: a link tells the version of both sides when it begins.

use crate::message::{Item, Message, Packet};
use crate::positions::Positions;
use alloc::borrow::ToOwned;
use alloc::vec::Vec;
use headwater_base::source::{Attributes, Change, FetchId, Pair, Position, StorePlace};
use headwater_base::wire::{WireReader, put_bytes, put_u32, put_u64};
use headwater_base::{KeyRange, Millis, ShardRefusal};

mod kind {
    pub(super) const HELLO: u8 = 0;
    pub(super) const PING: u8 = 1;
    pub(super) const PONG: u8 = 2;
    pub(super) const LOAD: u8 = 3;
    pub(super) const UNFOLLOW: u8 = 4;
    pub(super) const SYNC: u8 = 5;
    pub(super) const LOADED: u8 = 6;
    pub(super) const FAILED: u8 = 7;
    pub(super) const CHANGES: u8 = 8;
    pub(super) const SYNCED: u8 = 9;
    pub(super) const RESUME: u8 = 10;
    pub(super) const RESUMED: u8 = 11;
    pub(super) const NOT_RESUMED: u8 = 12;
    pub(super) const REACHED: u8 = 13;
}

mod item {
    pub(super) const SET: u8 = 0;
    pub(super) const REMOVED: u8 = 1;
    pub(super) const RESET: u8 = 2;
}

/// What stands for no expiry.
const NEVER: u64 = u64::MAX;

/// What stands for a life that the sender has not heard of.
const NOT_HEARD_OF: u64 = u64::MAX;

impl Packet {
    /// Writes it behind what `out` has.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_u64(out, self.epoch);
        put_u64(out, self.to_epoch.unwrap_or(NOT_HEARD_OF));
        put_u64(out, self.connection);
        put_u64(out, self.number);
        write_message(&self.message, out);
    }

    /// Reads what [`Packet::write`] has written; `None`: these bytes were not.
    #[must_use]
    pub fn read(bytes: &mut WireReader<'_>) -> Option<Self> {
        let epoch = bytes.u64()?;
        let to_epoch = Some(bytes.u64()?).filter(|epoch| *epoch != NOT_HEARD_OF);
        let (connection, number) = (bytes.u64()?, bytes.u64()?);
        Some(Self { epoch, to_epoch, connection, number, message: read_message(bytes)? })
    }
}

fn write_range(range: &KeyRange, out: &mut Vec<u8>) {
    put_bytes(out, &range.first);
    put_bytes(out, &range.last);
}

fn read_range(bytes: &mut WireReader<'_>) -> Option<KeyRange> {
    let first = bytes.bytes()?;
    Some(KeyRange::new(first, bytes.bytes()?))
}

fn write_place(place: StorePlace, out: &mut Vec<u8>) {
    put_u64(out, place.position.0);
    put_u64(out, place.checksum);
}

fn read_place(bytes: &mut WireReader<'_>) -> Option<StorePlace> {
    Some(StorePlace { position: Position(bytes.u64()?), checksum: bytes.u64()? })
}

fn write_message(message: &Message, out: &mut Vec<u8>) {
    match message {
        Message::Hello => out.push(kind::HELLO),
        Message::Ping => out.push(kind::PING),
        Message::Pong => out.push(kind::PONG),
        Message::Load { fetch, range } => {
            out.push(kind::LOAD);
            put_u64(out, fetch.0);
            write_range(range, out);
        }
        Message::Unfollow { range } => {
            out.push(kind::UNFOLLOW);
            write_range(range, out);
        }
        Message::Sync { request, after, hops } => {
            out.push(kind::SYNC);
            put_u64(out, *request);
            put_u32(out, after.all().len());
            after.all().iter().for_each(|&position| put_u64(out, position));
            put_u32(out, *hops as usize);
        }
        Message::Loaded { fetch, position, answer: Ok(pairs) } => {
            out.push(kind::LOADED);
            put_u64(out, fetch.0);
            put_u64(out, position.0);
            put_u32(out, pairs.len());
            for Pair { key, value, attributes } in pairs {
                put_bytes(out, key);
                put_bytes(out, value);
                put_u64(out, attributes.expires.map_or(NEVER, |at| at.0));
                put_u32(out, attributes.flags as usize);
            }
        }
        Message::Loaded { fetch, position, answer: Err(ShardRefusal { code, text }) } => {
            out.push(kind::FAILED);
            put_u64(out, fetch.0);
            put_u64(out, position.0);
            put_bytes(out, code.as_bytes());
            put_bytes(out, text.as_bytes());
        }
        Message::Changes { position, items } => {
            out.push(kind::CHANGES);
            put_u64(out, position.0);
            put_u32(out, items.len());
            items.iter().for_each(|item| write_item(item, out));
        }
        Message::Resume { range, since } => {
            out.push(kind::RESUME);
            write_range(range, out);
            write_place(*since, out);
        }
        Message::Resumed { range, position, changes } => {
            out.push(if changes.is_some() { kind::RESUMED } else { kind::NOT_RESUMED });
            write_range(range, out);
            put_u64(out, position.0);
            if let Some(changes) = changes {
                put_u32(out, changes.len());
                changes.iter().for_each(|change| write_change(change, out));
            }
        }
        Message::Reached(place) => {
            out.push(kind::REACHED);
            write_place(*place, out);
        }
        Message::Synced { request, position } => {
            out.push(kind::SYNCED);
            put_u64(out, *request);
            put_u64(out, position.0);
        }
    }
}

fn write_change(Change { key, value }: &Change, out: &mut Vec<u8>) {
    out.push(if value.is_some() { item::SET } else { item::REMOVED });
    put_bytes(out, key);
    if let Some(value) = value {
        put_bytes(out, value);
    }
}

fn write_item(item: &Item, out: &mut Vec<u8>) {
    match item {
        Item::Change(change) => write_change(change, out),
        Item::Reset(range) => {
            out.push(item::RESET);
            write_range(range, out);
        }
    }
}

fn read_message(bytes: &mut WireReader<'_>) -> Option<Message> {
    Some(match bytes.u8()? {
        kind::HELLO => Message::Hello,
        kind::PING => Message::Ping,
        kind::PONG => Message::Pong,
        kind::LOAD => Message::Load { fetch: FetchId(bytes.u64()?), range: read_range(bytes)? },
        kind::UNFOLLOW => Message::Unfollow { range: read_range(bytes)? },
        kind::SYNC => {
            let (request, count) = (bytes.u64()?, bytes.u32()?);
            let after = Positions::of(bytes.numbers(count)?);
            Message::Sync { request, after, hops: bytes.u32()? as u32 }
        }
        kind::LOADED => {
            let (fetch, position) = (FetchId(bytes.u64()?), Position(bytes.u64()?));
            let answer = Ok(bytes.list(20, read_pair)?);
            Message::Loaded { fetch, position, answer }
        }
        kind::FAILED => {
            let (fetch, position) = (FetchId(bytes.u64()?), Position(bytes.u64()?));
            let refusal =
                ShardRefusal { code: bytes.text()?.to_owned(), text: bytes.text()?.to_owned() };
            Message::Loaded { fetch, position, answer: Err(refusal) }
        }
        kind::CHANGES => {
            let position = Position(bytes.u64()?);
            Message::Changes { position, items: bytes.list(5, read_item)? }
        }
        kind::RESUME => Message::Resume { range: read_range(bytes)?, since: read_place(bytes)? },
        kind::RESUMED => {
            let (range, position) = (read_range(bytes)?, Position(bytes.u64()?));
            let changes = Some(bytes.list(5, read_change)?);
            Message::Resumed { range, position, changes }
        }
        kind::NOT_RESUMED => {
            let (range, position) = (read_range(bytes)?, Position(bytes.u64()?));
            Message::Resumed { range, position, changes: None }
        }
        kind::REACHED => Message::Reached(read_place(bytes)?),
        kind::SYNCED => Message::Synced { request: bytes.u64()?, position: Position(bytes.u64()?) },
        _ => return None,
    })
}

fn read_pair(bytes: &mut WireReader<'_>) -> Option<Pair> {
    let (key, value) = (bytes.bytes()?.to_vec(), bytes.bytes()?.to_vec());
    let expires = bytes.u64()?;
    let expires = (expires != NEVER).then_some(Millis(expires));
    let attributes = Attributes { expires, flags: bytes.u32()? as u32, is_stream: false };
    Some(Pair { key, value, attributes })
}

fn read_item(bytes: &mut WireReader<'_>) -> Option<Item> {
    match bytes.u8()? {
        item::RESET => Some(Item::Reset(read_range(bytes)?)),
        kind => Some(Item::Change(read_change_of(kind, bytes)?)),
    }
}

fn read_change(bytes: &mut WireReader<'_>) -> Option<Change> {
    let kind = bytes.u8()?;
    read_change_of(kind, bytes)
}

fn read_change_of(kind: u8, bytes: &mut WireReader<'_>) -> Option<Change> {
    let key = bytes.bytes()?.to_vec();
    match kind {
        item::SET => Some(Change { key, value: Some(bytes.bytes()?.to_vec()) }),
        item::REMOVED => Some(Change { key, value: None }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_base::Shard;

    fn packets() -> Vec<Packet> {
        let range = || KeyRange::new(b"p|a|", b"p|a}");
        let (fetch, position) = (FetchId(7), Position(1 << 40));
        let mut after = Positions::default();
        after.reach(Shard(2), Position(9));
        let pair = |expires, flags| Pair {
            key: b"k".to_vec(),
            value: b"".to_vec(),
            attributes: Attributes { expires, flags, is_stream: false },
        };
        let pairs = alloc::vec![pair(None, 0), pair(Some(Millis(3)), u32::MAX)];
        let items = alloc::vec![
            Item::Change(Change { key: b"a".to_vec(), value: Some(b"v".to_vec()) }),
            Item::Change(Change { key: b"b".to_vec(), value: None }),
            Item::Reset(range()),
        ];
        let place = StorePlace { position: Position(8), checksum: u64::MAX };
        let changes = alloc::vec![
            Change { key: b"a".to_vec(), value: Some(b"".to_vec()) },
            Change { key: b"".to_vec(), value: None },
        ];
        let messages = [
            Message::Hello,
            Message::Ping,
            Message::Pong,
            Message::Load { fetch, range: range() },
            Message::Unfollow { range: range() },
            Message::Sync { request: 5, after, hops: 3 },
            Message::Loaded { fetch, position, answer: Ok(pairs) },
            Message::Loaded {
                fetch,
                position,
                answer: Err(ShardRefusal { code: "OOM".to_owned(), text: "no".to_owned() }),
            },
            Message::Changes { position, items },
            Message::Resume { range: range(), since: place },
            Message::Resumed { range: range(), position, changes: Some(changes) },
            Message::Resumed { range: range(), position, changes: None },
            Message::Reached(place),
            Message::Synced { request: 6, position },
        ];
        let numbered = (0..).zip(messages);
        numbered
            .map(|(number, message)| {
                let to_epoch = (number % 2 == 0).then_some(number);
                Packet { epoch: 1, to_epoch, connection: 2, number, message }
            })
            .collect()
    }

    #[test]
    fn what_is_said_arrives_and_what_is_cut_is_refused() {
        let mut all = Vec::new();
        for packet in packets() {
            let mut bytes = Vec::new();
            packet.write(&mut bytes);
            for end in 0..bytes.len() {
                assert_eq!(Packet::read(&mut WireReader::of(&bytes[..end])), None, "{packet:?}");
            }
            all.append(&mut bytes);
        }
        let mut reader = WireReader::of(&all);
        for packet in packets() {
            assert_eq!(Packet::read(&mut reader), Some(packet));
        }
        assert!(reader.rest().is_empty());
    }
}
