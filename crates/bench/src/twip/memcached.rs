//! Twip on memcached, with strings that grow.
//!
//! `t<user>` is a timeline and `p<poster>` his posts: records one behind the other, each
//! `<time><poster><length><text>` with fixed digits, so that a client skips what it has seen
//! without reading it. `f<poster>` are the followers, eight bytes each. memcached cannot read a part of
//! a string, so every check transfers the whole timeline; the reads of a batch are one
//! multi-get. A post that meets a subscription may be appended twice; readers drop doubles.

use super::world::World;
use super::{Backend, Entry, Post, Seen};
use crate::wire::key::{TIME_DIGITS, number_of};
use crate::wire::{Connection, Input, Key, Loader, bad, memcached};
use anyhow::Result;
use std::io;

/// Digits of a user's number.
const USER_DIGITS: usize = 8;
/// Digits of a text's length.
const LENGTH_DIGITS: usize = 4;
/// Bytes before the text.
const HEAD: usize = TIME_DIGITS + USER_DIGITS + LENGTH_DIGITS;

/// memcached.
#[derive(Debug, Default)]
pub struct Strings {
    record: Vec<u8>,
    asked: bool,
}

fn key(kind: &[u8], user: u32) -> Key {
    Key::new(kind).decimal(u64::from(user))
}

fn write_record(into: &mut Vec<u8>, poster: u32, time: u32, text: &[u8]) {
    let head = Key::new(b"")
        .time(time)
        .number(u64::from(poster), USER_DIGITS)
        .number(text.len() as u64, LENGTH_DIGITS);
    into.extend_from_slice(&head);
    into.extend_from_slice(text);
}

/// A record within a string.
struct Record<'a> {
    /// Its moment, as digits: they compare as the numbers do.
    time: &'a [u8],
    poster: &'a [u8],
    text: &'a [u8],
    whole: &'a [u8],
}

/// The records of a string, in the order in which they were appended.
fn records(mut rest: &[u8]) -> impl Iterator<Item = io::Result<Record<'_>>> {
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let cut = || {
            let length = rest.get(HEAD - LENGTH_DIGITS..HEAD).and_then(number_of)? as usize;
            rest.split_at_checked(HEAD + length)
        };
        let Some((whole, behind)) = cut() else {
            rest = &[];
            return Some(Err(bad("a timeline has another form")));
        };
        rest = behind;
        let (head, text) = whole.split_at(HEAD);
        let (time, others) = head.split_at(TIME_DIGITS);
        Some(Ok(Record { time, poster: &others[..USER_DIGITS], text, whole }))
    })
}

impl Backend for Strings {
    fn load(&mut self, world: &World<'_>, connection: &mut Connection) -> Result<()> {
        let plan = world.plan;
        let mut loader = Loader::new(connection, memcached::stored);
        let mut text = Vec::new();
        for (poster, list) in world.followers().iter().enumerate() {
            text.clear();
            for &user in list {
                text.extend_from_slice(&Key::new(b"").number(u64::from(user), USER_DIGITS));
            }
            memcached::store(&mut loader.connection.out, b"set", &key(b"f", poster as u32), &text);
            loader.sent(1)?;
        }
        for user in 0..plan.graph.users as u32 {
            text.clear();
            for &time in world.posts(user) {
                write_record(&mut text, user, time, plan.text(time));
            }
            memcached::store(&mut loader.connection.out, b"set", &key(b"p", user), &text);
            text.clear();
            for entry in world.timeline(user, 0) {
                write_record(&mut text, entry.poster, entry.time, &entry.text);
            }
            memcached::store(&mut loader.connection.out, b"set", &key(b"t", user), &text);
            loader.sent(2)?;
        }
        loader.finish()
    }

    fn begin_reads(&mut self, _out: &mut Vec<u8>) {
        self.asked = false;
    }

    fn read(&mut self, out: &mut Vec<u8>, user: u32, _since: u32) {
        if !self.asked {
            self.asked = true;
            out.extend_from_slice(b"get");
        }
        out.push(b' ');
        out.extend_from_slice(&key(b"t", user));
    }

    fn end_reads(&mut self, out: &mut Vec<u8>) {
        if self.asked {
            out.extend_from_slice(b"\r\n");
        }
    }

    fn seen(
        &mut self,
        input: &mut Input,
        since: u32,
        mut each: Option<&mut Vec<Entry>>,
    ) -> io::Result<Seen> {
        let text = memcached::value(input)?.ok_or_else(|| bad("a timeline is missing"))?;
        let since = Key::new(b"").time(since);
        let since: &[u8] = &since;
        let mut count = 0;
        let mut newest: &[u8] = b"0";
        for record in records(text) {
            let record = record?;
            if record.time < since {
                continue;
            }
            count += 1;
            newest = newest.max(record.time);
            if let Some(into) = each.as_deref_mut() {
                let number =
                    |digits| number_of(digits).ok_or_else(|| bad("a record has no number"));
                let (time, poster) = (number(record.time)? as u32, number(record.poster)? as u32);
                into.push(Entry { time, poster, text: record.text.to_vec() });
            }
        }
        if let Some(into) = each {
            into.sort();
            into.dedup();
        }
        let newest = number_of(newest).ok_or_else(|| bad("a record has no moment"))?;
        Ok(Seen { count, newest: newest as u32 })
    }

    fn seen_all(&mut self, input: &mut Input) -> io::Result<()> {
        memcached::end(input)
    }

    fn post(&mut self, out: &mut Vec<u8>, post: Post<'_>) {
        self.record.clear();
        write_record(&mut self.record, post.poster, post.time, post.text);
        memcached::store(out, b"append", &key(b"p", post.poster), &self.record);
        memcached::get(out, &[&key(b"f", post.poster)]);
    }

    fn after_post(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        post: Post<'_>,
    ) -> io::Result<usize> {
        memcached::stored(input)?;
        self.record.clear();
        write_record(&mut self.record, post.poster, post.time, post.text);
        memcached::one(input, |found| {
            let list = found.ok_or_else(|| bad("a list of followers is missing"))?;
            for digits in list.chunks(USER_DIGITS) {
                let user = number_of(digits).ok_or_else(|| bad("a follower is no number"))?;
                memcached::store(next, b"append", &key(b"t", user as u32), &self.record);
            }
            Ok(list.len() / USER_DIGITS)
        })
    }

    fn subscribe(&mut self, out: &mut Vec<u8>, user: u32, poster: u32, _since: u32) {
        let name = Key::new(b"").number(u64::from(user), USER_DIGITS);
        memcached::store(out, b"append", &key(b"f", poster), &name);
        memcached::get(out, &[&key(b"p", poster)]);
    }

    fn after_subscribe(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        user: u32,
        since: u32,
    ) -> io::Result<usize> {
        memcached::stored(input)?;
        let since = Key::new(b"").time(since);
        let since: &[u8] = &since;
        self.record.clear();
        memcached::one(input, |found| {
            for record in records(found.unwrap_or_default()) {
                let record = record?;
                if record.time >= since {
                    self.record.extend_from_slice(record.whole);
                }
            }
            if self.record.is_empty() {
                return Ok(0);
            }
            memcached::store(next, b"append", &key(b"t", user), &self.record);
            Ok(1)
        })
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        memcached::stored(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_a_torn_one_is_refused() {
        let mut text = Vec::new();
        write_record(&mut text, 7, 42, b"hello");
        write_record(&mut text, 8, 43, b"");
        let read: Vec<_> = records(&text).map(|record| record.unwrap().text.to_vec()).collect();
        assert_eq!(read, [b"hello".to_vec(), Vec::new()]);
        assert!(records(&text[..text.len() - 1]).any(|record| record.is_err()));
    }
}
