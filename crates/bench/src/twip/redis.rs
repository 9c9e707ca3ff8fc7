//! Twip on Redis and Valkey, with sorted sets.
//!
//! `t:<user>` is a timeline, `p:<poster>` are his posts: sorted sets by moment, the text in
//! the member (`<time>|<poster>|<text>`), so that a read is one `ZRANGEBYSCORE` and no
//! second look-up. `f:<poster>` is the set of followers, as plain numbers: small ones are
//! kept as compact integer sets. A post adds itself, asks who follows, and is then added to each
//! timeline, all of one batch in one pipeline. A subscription adds the poster's recent posts
//! with one `ZADD`.

use super::world::World;
use super::{Backend, Entry, Post, Seen};
use crate::wire::key::{NAME_DIGITS, TIME_DIGITS, number_of};
use crate::wire::{Connection, Input, Key, Loader, bad, resp};
use anyhow::Result;
use std::io;

/// Members per command while loading.
const MEMBERS: usize = 500;
/// Where the text begins in a member.
const TEXT: usize = TIME_DIGITS + 1 + 1 + NAME_DIGITS + 1;

/// Redis or Valkey.
#[derive(Debug, Default)]
pub struct SortedSets {
    /// The member in the making.
    member: Vec<u8>,
}

fn timeline(user: u32) -> Key {
    Key::new(b"t:").decimal(u64::from(user))
}

fn posts(poster: u32) -> Key {
    Key::new(b"p:").decimal(u64::from(poster))
}

fn followers(poster: u32) -> Key {
    Key::new(b"f:").decimal(u64::from(poster))
}

fn score(time: u32) -> Key {
    Key::new(b"").decimal(u64::from(time))
}

fn write_member(into: &mut Vec<u8>, poster: u32, time: u32, text: &[u8]) {
    into.clear();
    into.extend_from_slice(&Key::new(b"").time(time).text(b"|").user(poster).text(b"|"));
    into.extend_from_slice(text);
}

/// The moment of a member.
fn time_of(member: &[u8]) -> io::Result<u32> {
    let time = member.get(..TIME_DIGITS).and_then(number_of);
    time.map(|time| time as u32).ok_or_else(|| bad("a member of a timeline has another form"))
}

impl SortedSets {
    /// Adds members to one sorted set.
    fn add<'a>(
        &mut self,
        loader: &mut Loader<'_>,
        key: &[u8],
        entries: &[(u32, u32)],
        text: impl Fn(u32) -> &'a [u8],
    ) -> Result<()> {
        for chunk in entries.chunks(MEMBERS) {
            let out = &mut loader.connection.out;
            resp::begin(out, 2 + 2 * chunk.len());
            resp::argument(out, b"ZADD");
            resp::argument(out, key);
            for &(time, poster) in chunk {
                write_member(&mut self.member, poster, time, text(time));
                resp::argument(out, &score(time));
                resp::argument(out, &self.member);
            }
            loader.sent(1)?;
        }
        Ok(())
    }
}

impl Backend for SortedSets {
    fn load(&mut self, world: &World<'_>, connection: &mut Connection) -> Result<()> {
        let plan = world.plan;
        let mut loader = Loader::new(connection, resp::skip);
        for (poster, list) in world.followers().iter().enumerate() {
            for users in list.chunks(MEMBERS) {
                let out = &mut loader.connection.out;
                resp::begin(out, 2 + users.len());
                resp::argument(out, b"SADD");
                resp::argument(out, &followers(poster as u32));
                for &user in users {
                    resp::argument(out, &score(user));
                }
                loader.sent(1)?;
            }
        }
        for user in 0..plan.graph.users as u32 {
            let own: Vec<_> = world.posts(user).iter().map(|&time| (time, user)).collect();
            self.add(&mut loader, &posts(user), &own, |time| plan.text(time))?;
            let read: Vec<_> =
                world.timeline(user, 0).iter().map(|entry| (entry.time, entry.poster)).collect();
            self.add(&mut loader, &timeline(user), &read, |time| plan.text(time))?;
        }
        loader.finish()
    }

    fn read(&mut self, out: &mut Vec<u8>, user: u32, since: u32) {
        resp::command(out, &[b"ZRANGEBYSCORE", &timeline(user), &score(since), b"+inf"]);
    }

    fn seen(
        &mut self,
        input: &mut Input,
        _since: u32,
        mut each: Option<&mut Vec<Entry>>,
    ) -> io::Result<Seen> {
        let count = resp::array(input)?;
        let mut newest = 0;
        for left in (0..count).rev() {
            let member = resp::string(input)?;
            if left == 0 || each.is_some() {
                newest = time_of(member)?;
            }
            if let Some(into) = each.as_deref_mut() {
                let poster = member.get(TIME_DIGITS + 2..TEXT - 1).and_then(number_of);
                let poster = poster.ok_or_else(|| bad("a member has no poster"))? as u32;
                into.push(Entry { time: newest, poster, text: member[TEXT..].to_vec() });
            }
        }
        Ok(Seen { count, newest })
    }

    fn post(&mut self, out: &mut Vec<u8>, post: Post<'_>) {
        write_member(&mut self.member, post.poster, post.time, post.text);
        resp::command(out, &[b"ZADD", &posts(post.poster), &score(post.time), &self.member]);
        resp::command(out, &[b"SMEMBERS", &followers(post.poster)]);
    }

    fn after_post(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        post: Post<'_>,
    ) -> io::Result<usize> {
        resp::skip(input)?;
        write_member(&mut self.member, post.poster, post.time, post.text);
        let score = score(post.time);
        let count = resp::array(input)?;
        for _ in 0..count {
            let key = Key::new(b"t:").text(resp::string(input)?);
            resp::command(next, &[b"ZADD", &key, &score, &self.member]);
        }
        Ok(count)
    }

    fn subscribe(&mut self, out: &mut Vec<u8>, user: u32, poster: u32, since: u32) {
        resp::command(out, &[b"SADD", &followers(poster), &score(user)]);
        resp::command(out, &[b"ZRANGEBYSCORE", &posts(poster), &score(since), b"+inf"]);
    }

    fn after_subscribe(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        user: u32,
        _since: u32,
    ) -> io::Result<usize> {
        resp::skip(input)?;
        let count = resp::array(input)?;
        if count == 0 {
            return Ok(0);
        }
        resp::begin(next, 2 + 2 * count);
        resp::argument(next, b"ZADD");
        resp::argument(next, &timeline(user));
        for _ in 0..count {
            let member = resp::string(input)?;
            resp::argument(next, &score(time_of(member)?));
            resp::argument(next, member);
        }
        Ok(1)
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        resp::skip(input)
    }
}
