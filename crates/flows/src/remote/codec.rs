//! What shards write to one another about tasks, as bytes: what goes over a link between processes.
//!
//! The format has no version of its own: a link tells the version of both sides when it begins.

use super::message::{
    Output, RemoteEffect, RemoteMessage, RemoteRead, RemoteRequest, RemoteResponse, RemoteTask,
};
use crate::flows::Outcome;
use crate::record::Record;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::vec::Vec;
use headwater_base::wire::{WireReader, put_bytes, put_u16, put_u32, put_u64};
use headwater_base::{Millis, Shard};

mod kind {
    pub(super) const PUT: u8 = 0;
    pub(super) const REMOVE: u8 = 1;
    pub(super) const CALL: u8 = 2;
    pub(super) const READ: u8 = 3;
    pub(super) const EFFECT_DONE: u8 = 4;
    pub(super) const FOUND: u8 = 5;
    pub(super) const NOT_FOUND: u8 = 6;
}

mod outcome {
    pub(super) const DONE: u8 = 0;
    pub(super) const FURTHER: u8 = 1;
    pub(super) const WAITS: u8 = 2;
    pub(super) const AGAIN: u8 = 3;
    pub(super) const FAILED: u8 = 4;
}

impl RemoteMessage {
    /// Writes it behind what `out` has.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Request(number, RemoteRequest::Effect(task, effect)) => {
                let kind = match effect {
                    RemoteEffect::Put { value: Some(_), .. } => kind::PUT,
                    RemoteEffect::Put { value: None, .. } => kind::REMOVE,
                    RemoteEffect::Call { .. } => kind::CALL,
                };
                begin(kind, *number, out);
                write_task(task, out);
                write_effect(effect, out);
            }
            Self::Request(number, RemoteRequest::Read(read)) => {
                begin(kind::READ, *number, out);
                write_read(read, out);
            }
            Self::Response(number, RemoteResponse::Effect(outcome)) => {
                begin(kind::EFFECT_DONE, *number, out);
                write_outcome(outcome, out);
            }
            Self::Response(number, RemoteResponse::Read(read, Ok(keys))) => {
                begin(kind::FOUND, *number, out);
                write_read(read, out);
                put_u32(out, keys.len());
                keys.iter().for_each(|key| put_bytes(out, key));
            }
            Self::Response(number, RemoteResponse::Read(read, Err(outcome))) => {
                begin(kind::NOT_FOUND, *number, out);
                write_read(read, out);
                write_outcome(outcome, out);
            }
        }
    }

    /// Whether it names none but the shards that there are: so many.
    #[must_use]
    pub fn names_shards(&self, shards: u16) -> bool {
        let shard = match self {
            Self::Request(_, RemoteRequest::Effect(task, _)) => task.origin,
            Self::Request(_, RemoteRequest::Read(read))
            | Self::Response(_, RemoteResponse::Read(read, _)) => read.home,
            Self::Response(_, RemoteResponse::Effect(_)) => return true,
        };
        shard.0 < shards
    }

    /// Reads what [`RemoteMessage::write`] has written; `None`: these bytes were not.
    #[must_use]
    pub fn read(bytes: &mut WireReader<'_>) -> Option<Self> {
        let (kind, number) = (bytes.u8()?, bytes.u64()?);
        Some(match kind {
            kind::PUT | kind::REMOVE | kind::CALL => {
                let task = Box::new(read_task(bytes)?);
                let effect = read_effect(kind, bytes)?;
                Self::Request(number, RemoteRequest::Effect(task, effect))
            }
            kind::READ => Self::Request(number, RemoteRequest::Read(read_read(bytes)?)),
            kind::EFFECT_DONE => {
                Self::Response(number, RemoteResponse::Effect(read_outcome(bytes)?))
            }
            kind::FOUND => {
                let read = read_read(bytes)?;
                let keys = bytes.list(4, |bytes| bytes.bytes().map(<[u8]>::to_vec))?;
                Self::Response(number, RemoteResponse::Read(read, Ok(keys)))
            }
            kind::NOT_FOUND => {
                let read = read_read(bytes)?;
                let outcome = read_outcome(bytes)?;
                Self::Response(number, RemoteResponse::Read(read, Err(outcome)))
            }
            _ => return None,
        })
    }
}

fn begin(kind: u8, number: u64, out: &mut Vec<u8>) {
    out.push(kind);
    put_u64(out, number);
}

fn write_task(task: &RemoteTask, out: &mut Vec<u8>) {
    put_bytes(out, task.flow.as_bytes());
    put_u64(out, task.words);
    put_u16(out, task.origin.0.into());
    put_u64(out, task.position);
    put_u64(out, task.at.0);
    put_u64(out, task.replays);
    put_u64(out, task.below);
}

fn read_task(bytes: &mut WireReader<'_>) -> Option<RemoteTask> {
    Some(RemoteTask {
        flow: bytes.text()?.to_owned(),
        words: bytes.u64()?,
        origin: Shard(bytes.u16()? as u16),
        position: bytes.u64()?,
        at: Millis(bytes.u64()?),
        replays: bytes.u64()?,
        below: bytes.u64()?,
    })
}

fn write_effect(effect: &RemoteEffect, out: &mut Vec<u8>) {
    match effect {
        RemoteEffect::Put { value, outputs } => {
            if let Some(value) = value {
                put_bytes(out, value);
            }
            put_u32(out, outputs.len());
            for Output { check, key } in outputs {
                put_bytes(out, check);
                put_bytes(out, key);
            }
        }
        RemoteEffect::Call { record, key } => {
            put_u64(out, record.position);
            put_bytes(out, &record.to_bytes());
            put_bytes(out, key);
        }
    }
}

fn read_effect(kind: u8, bytes: &mut WireReader<'_>) -> Option<RemoteEffect> {
    if kind == kind::CALL {
        let position = bytes.u64()?;
        let record = Record::from_bytes(position, bytes.bytes()?)?;
        return Some(RemoteEffect::Call { record, key: bytes.bytes()?.to_vec() });
    }
    let value = if kind == kind::PUT { Some(bytes.bytes()?.into()) } else { None };
    let outputs = bytes.list(8, |bytes| {
        let check = bytes.bytes()?.to_vec();
        Some(Output { check, key: bytes.bytes()?.to_vec() })
    })?;
    Some(RemoteEffect::Put { value, outputs })
}

fn write_read(read: &RemoteRead, out: &mut Vec<u8>) {
    put_u16(out, read.home.0.into());
    put_u64(out, read.version);
    put_bytes(out, &read.range.0);
    put_bytes(out, &read.range.1);
    out.push(u8::from(read.limit.is_some()));
    put_u64(out, read.limit.unwrap_or_default());
}

fn read_read(bytes: &mut WireReader<'_>) -> Option<RemoteRead> {
    let home = Shard(bytes.u16()? as u16);
    let version = bytes.u64()?;
    let first = bytes.bytes()?.to_vec();
    let range = (first, bytes.bytes()?.to_vec());
    let (is_limited, limit) = (bytes.flag()?, bytes.u64()?);
    Some(RemoteRead { home, version, range, limit: is_limited.then_some(limit) })
}

fn write_outcome(outcome: &Outcome, out: &mut Vec<u8>) {
    match outcome {
        Outcome::Done => out.push(outcome::DONE),
        Outcome::Further(mark) => {
            out.push(outcome::FURTHER);
            put_bytes(out, mark);
        }
        Outcome::Waits => out.push(outcome::WAITS),
        Outcome::Again => out.push(outcome::AGAIN),
        Outcome::Failed(reason) => {
            out.push(outcome::FAILED);
            put_bytes(out, reason.as_bytes());
        }
    }
}

fn read_outcome(bytes: &mut WireReader<'_>) -> Option<Outcome> {
    Some(match bytes.u8()? {
        outcome::DONE => Outcome::Done,
        outcome::FURTHER => Outcome::Further(bytes.bytes()?.to_vec()),
        outcome::WAITS => Outcome::Waits,
        outcome::AGAIN => Outcome::Again,
        outcome::FAILED => Outcome::Failed(bytes.text()?.to_owned()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Operation;

    fn messages() -> Vec<RemoteMessage> {
        let task = || {
            Box::new(RemoteTask {
                flow: "fan".to_owned(),
                words: 1 << 50,
                origin: Shard(3),
                position: 7,
                at: Millis(8),
                replays: 9,
                below: 6,
            })
        };
        let record = Record {
            position: 7,
            sequence: 1 << 30,
            at: Millis(5),
            operation: Operation::Set,
            key: b"k".to_vec(),
            value: b"v".to_vec(),
            only: Some(b"fan".to_vec()),
        };
        let output = Output { check: b"s|a|b".to_vec(), key: b"t|a|1|b".to_vec() };
        let read = |limit| RemoteRead {
            home: Shard(1),
            version: 2,
            range: (b"s|a|".to_vec(), b"s|a}".to_vec()),
            limit,
        };
        let effects = [
            RemoteEffect::Put {
                value: Some(b"x"[..].into()),
                outputs: alloc::vec![output.clone(), output],
            },
            RemoteEffect::Put { value: None, outputs: Vec::new() },
            RemoteEffect::Call { record, key: b"c".to_vec() },
        ];
        let outcomes = || {
            [
                Outcome::Done,
                Outcome::Further(b"mark".to_vec()),
                Outcome::Waits,
                Outcome::Again,
                Outcome::Failed("why".to_owned()),
            ]
        };
        let requests = effects
            .into_iter()
            .map(|effect| RemoteRequest::Effect(task(), effect))
            .chain([None, Some(5)].map(|limit| RemoteRequest::Read(read(limit))))
            .map(|request| RemoteMessage::Request(1 << 33, request));
        let found = Ok(alloc::vec![b"one".to_vec(), Vec::new()]);
        let responses = outcomes()
            .map(RemoteResponse::Effect)
            .into_iter()
            .chain(outcomes().map(|outcome| RemoteResponse::Read(read(None), Err(outcome))))
            .chain([RemoteResponse::Read(read(Some(0)), found)])
            .map(|response| RemoteMessage::Response(4, response));
        requests.chain(responses).collect()
    }

    #[test]
    fn what_is_written_arrives_and_what_is_cut_is_refused() {
        let mut all = Vec::new();
        for message in messages() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            for end in 0..bytes.len() {
                let read = RemoteMessage::read(&mut WireReader::of(&bytes[..end]));
                assert_eq!(read, None, "{message:?}");
            }
            all.append(&mut bytes);
        }
        let mut reader = WireReader::of(&all);
        for message in messages() {
            assert_eq!(RemoteMessage::read(&mut reader), Some(message));
        }
        assert!(reader.rest().is_empty());
    }
}
