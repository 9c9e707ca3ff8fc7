//! What a client asked that other shards answer, and their answers as it reads them.
//!
//! What crosses between shards is what was meant ([`ItemCommand`]) and what came of it; the words for that are the client's own. Of
//! a request that is under way only what its answer is written by is kept, as bytes that nobody else reads ([`Question`]).

use super::functions::{REGISTERED, write_called};
use super::items::{
    classic_count, classic_store, plain_remove, removed_line, touched_line, write_counted_line,
    written_line,
};
use super::meta::{write_counted, write_examined, write_found, write_written};
use super::stats::{statistics_of, write_statistics};
use headwater_command::items::{ItemCommand, StoreMode};
use headwater_engine::Value;
use headwater_protocol::Held;
use headwater_protocol::memcached::{Encoder, KEY_BYTES_MAX, Meta, MetaFlags, Request, Words};
use headwater_router::items::{counted_of, item_of, values, written_of};
use headwater_router::{Answer, Question, Token};

/// What the answer to a request is written by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum AnswerWords<'a> {
    /// Values of these keys; `versions`: with their versions.
    Get {
        keys: Words<'a>,
        versions: bool,
    },
    /// What came of storing, removing, counting, touching.
    Store,
    Remove,
    Count,
    Touch,
    /// What a function answers next to this key.
    Call {
        key: &'a [u8],
    },
    /// That a module was loaded.
    Register,
    /// Statistics, or that something was done.
    Statistics,
    /// The meta commands, by their letters.
    Meta(u8, Meta<'a>),
}

mod letter {
    pub(super) const GET: u8 = b'g';
    pub(super) const GETS: u8 = b'v';
    pub(super) const STORE: u8 = b's';
    pub(super) const REMOVE: u8 = b'd';
    pub(super) const COUNT: u8 = b'c';
    pub(super) const TOUCH: u8 = b't';
    pub(super) const CALL: u8 = b'f';
    pub(super) const REGISTER: u8 = b'r';
    pub(super) const STATISTICS: u8 = b'n';
    // Meta commands: `mg`, `ms`, `md`, `ma`, `me`.
    pub(super) const META_GET: u8 = b'G';
    pub(super) const META_SET: u8 = b'S';
    pub(super) const META_DELETE: u8 = b'D';
    pub(super) const META_COUNT: u8 = b'A';
    pub(super) const META_DEBUG: u8 = b'E';
}

impl AnswerWords<'_> {
    /// As bytes.
    pub(super) fn write(&self) -> Question {
        let mut out = Vec::new();
        match self {
            AnswerWords::Get { keys, versions } => {
                out.push(if *versions { letter::GETS } else { letter::GET });
                for key in *keys {
                    out.push(b' ');
                    out.extend_from_slice(key);
                }
            }
            AnswerWords::Store => out.push(letter::STORE),
            AnswerWords::Remove => out.push(letter::REMOVE),
            AnswerWords::Count => out.push(letter::COUNT),
            AnswerWords::Touch => out.push(letter::TOUCH),
            AnswerWords::Call { key } => {
                out.push(letter::CALL);
                out.extend_from_slice(key);
            }
            AnswerWords::Register => out.push(letter::REGISTER),
            AnswerWords::Statistics => out.push(letter::STATISTICS),
            AnswerWords::Meta(letter, meta) => {
                out.push(*letter);
                meta.write(&mut out);
            }
        }
        out.into()
    }
}

impl<'a> AnswerWords<'a> {
    fn read(question: &'a [u8]) -> Option<Self> {
        let (&first, rest) = question.split_first()?;
        Some(match first {
            letter::GET | letter::GETS => {
                AnswerWords::Get { keys: Words::of(rest), versions: first == letter::GETS }
            }
            letter::STORE => AnswerWords::Store,
            letter::REMOVE => AnswerWords::Remove,
            letter::COUNT => AnswerWords::Count,
            letter::TOUCH => AnswerWords::Touch,
            letter::CALL => AnswerWords::Call { key: rest },
            letter::REGISTER => AnswerWords::Register,
            letter::STATISTICS => AnswerWords::Statistics,
            _ => AnswerWords::Meta(first, Meta::of(rest)),
        })
    }
}

/// A request that other shards may execute: what it means, and what its answer is written by; `None`: no answer is wanted.
pub(super) struct Crossing<'a> {
    pub(super) command: ItemCommand<'a>,
    pub(super) asked: Option<AnswerWords<'a>>,
}

impl<'a> Crossing<'a> {
    fn new(command: ItemCommand<'a>, asked: AnswerWords<'a>) -> Self {
        Self { command, asked: Some(asked) }
    }

    fn unless(noreply: bool, command: ItemCommand<'a>, asked: AnswerWords<'a>) -> Self {
        Self { command, asked: (!noreply).then_some(asked) }
    }

    /// That of a request, whose key is decoded into `room` where that is needed. `None`: the client's shard executes it, or says
    /// what is wrong with it.
    pub(super) fn of(request: &Request<'a>, room: &'a mut [u8; KEY_BYTES_MAX]) -> Option<Self> {
        Some(match *request {
            Request::Get { keys, versions, expiry } => {
                let command = ItemCommand::Get { keys: keys.collect(), versions, expiry };
                Self::new(command, AnswerWords::Get { keys, versions })
            }
            Request::Store { key, value, flags, expiry, mode, seen, noreply } => {
                let or_forget = mode == StoreMode::Set && seen.is_none();
                let store = classic_store((key, value?), flags, expiry, (mode, seen));
                Self::unless(noreply, ItemCommand::Store { store, or_forget }, AnswerWords::Store)
            }
            // What it was to replace is not wanted any more.
            Request::TooLarge { key, replaces: true, .. } => {
                Self { command: ItemCommand::Remove(plain_remove(key)), asked: None }
            }
            Request::Count { key, by, down, noreply } => {
                let command = ItemCommand::Count(classic_count(key, by, down));
                Self::unless(noreply, command, AnswerWords::Count)
            }
            Request::Delete { key, noreply } => {
                Self::unless(noreply, ItemCommand::Remove(plain_remove(key)), AnswerWords::Remove)
            }
            Request::Touch { key, expiry, noreply } => {
                Self::unless(noreply, ItemCommand::Touch { key, expiry }, AnswerWords::Touch)
            }
            Request::Invoke { key, function, param, update, reply } => {
                let param = param?;
                let command = ItemCommand::Call { key, function, param, update, reply };
                Self::unless(!reply, command, AnswerWords::Call { key })
            }
            Request::Register { name, file, export } => {
                Self::new(ItemCommand::Register { name, file, export }, AnswerWords::Register)
            }
            Request::FlushAll { when, noreply } => {
                Self::unless(noreply, ItemCommand::Flush { when }, AnswerWords::Statistics)
            }
            Request::Stats { words } => {
                Self::new(ItemCommand::Statistics(statistics_of(words)?), AnswerWords::Statistics)
            }
            Request::MetaGet(meta) => {
                let flags = meta.flags().ok().filter(|_| meta.check_opaque().is_ok())?;
                let fetch = flags.fetch(meta.key(&flags, room));
                let command = ItemCommand::Fetch { fetch, value: flags.value };
                Self::new(command, AnswerWords::Meta(letter::META_GET, meta))
            }
            Request::MetaSet { meta, value } => {
                let flags = meta.flags().ok().filter(|_| meta.check_opaque().is_ok())?;
                let store = flags.store(meta.key(&flags, room), value?).ok()?;
                let command = ItemCommand::Store { store, or_forget: true };
                Self::new(command, AnswerWords::Meta(letter::META_SET, meta))
            }
            Request::MetaDelete(meta) => {
                let flags = meta.plain_flags().ok().filter(|_| meta.check_opaque().is_ok())?;
                let command = ItemCommand::Remove(flags.remove(meta.key(&flags, room)));
                Self::new(command, AnswerWords::Meta(letter::META_DELETE, meta))
            }
            Request::MetaCount(meta) => {
                let flags = meta.plain_flags().ok().filter(|_| meta.check_opaque().is_ok())?;
                let count = flags.count(meta.key(&flags, room)).ok()?;
                Self::new(ItemCommand::Count(count), AnswerWords::Meta(letter::META_COUNT, meta))
            }
            Request::MetaDebug(meta) => {
                let flags = meta.key_flag().ok()?;
                let command = ItemCommand::Examine { key: meta.key(&flags, room) };
                Self::new(command, AnswerWords::Meta(letter::META_DEBUG, meta))
            }
            _ => return None,
        })
    }
}

/// Writes an answer of other shards as the client reads it that has asked so.
pub(crate) fn write_answer(question: Option<&[u8]>, answer: Answer<'_>, out: &mut Vec<u8>) {
    let Some(asked) = question.and_then(AnswerWords::read) else { return };
    let mut held = Held::default();
    held.set_whole(true);
    let mut out = Encoder::new(out, &mut held, usize::MAX);
    if let Token::Error { code, text } = answer.token() {
        return write_error(code, &String::from_utf8_lossy(text), &mut out);
    }
    if write_outcome(&asked, answer, &mut out).is_none() {
        out.line("SERVER_ERROR a shard's answer cannot be read");
    }
}

/// What is a fault of the client's or of the server's says so itself, everything else has a code word.
fn write_error(code: &str, text: &str, out: &mut Encoder<'_>) {
    match code {
        "CLIENT_ERROR" | "SERVER_ERROR" => out.line(&format!("{code} {text}")),
        code => out.failed(code, &text),
    }
}

/// `None`: it is no answer to what was asked.
fn write_outcome(asked: &AnswerWords<'_>, answer: Answer<'_>, out: &mut Encoder<'_>) -> Option<()> {
    match *asked {
        AnswerWords::Get { keys, versions } => {
            for (key, found) in keys.zip(values(answer)) {
                if let Some((value, flags, version)) = found {
                    out.value(key, flags, versions.then_some(version), &Value::of(value));
                }
            }
            out.end();
        }
        AnswerWords::Store => out.line(written_line(written_of(answer)?)),
        AnswerWords::Remove => out.line(removed_line(written_of(answer)?)),
        AnswerWords::Count => write_counted_line(counted_of(answer)?, out),
        AnswerWords::Touch => {
            let Token::Boolean(there) = answer.token() else { return None };
            out.line(touched_line(there));
        }
        AnswerWords::Call { key } => write_called(key, answer.text(), out),
        AnswerWords::Register => out.line(REGISTERED),
        AnswerWords::Statistics => write_statistics(answer, out),
        AnswerWords::Meta(letter, ref meta) => {
            let flags = match letter {
                letter::META_DEBUG => meta.key_flag(),
                _ => meta.flags(),
            };
            return write_meta(letter, (meta, &flags.ok()?), answer, out);
        }
    }
    Some(())
}

fn write_meta(
    letter: u8,
    (meta, flags): (&Meta<'_>, &MetaFlags),
    answer: Answer<'_>,
    out: &mut Encoder<'_>,
) -> Option<()> {
    match letter {
        letter::META_SET | letter::META_DELETE => {
            write_written(meta, flags, written_of(answer)?, letter == letter::META_SET, out);
        }
        letter::META_COUNT => write_counted(meta, flags, counted_of(answer)?, out),
        _ => {
            let found = match answer.is_nothing() {
                true => None,
                false => Some(item_of(answer)?),
            };
            let found = found.as_ref().map(|(item, len)| (item, *len));
            if letter == letter::META_DEBUG {
                let mut room = [0; KEY_BYTES_MAX];
                let key = meta.key(flags, &mut room).len();
                write_examined(meta, found.map(|(item, len)| (item, key + len as usize)), out);
            } else {
                write_found(meta, flags, found, out);
            }
        }
    }
    Some(())
}
