//! Twip on Headwater as a plain ordered cache: no join; the clients keep the timelines.
//!
//! Keys: `t|<user>|<time>|<poster>` holds a copy of each post, `p|<poster>|<time>` the post,
//! `f|<poster>|<user>` says who follows. A post looks the followers up and writes a copy for
//! each, the inactive too; a subscription copies the poster's recent posts. Post and
//! subscription each write before they look, so that one of two that meet sees the other.

use super::headwater::{ask, pairs};
use super::world::World;
use super::{Backend, Entry, Post, Seen};
use crate::wire::{Connection, Input, Key, Loader, bad, key, resp};
use anyhow::Result;
use std::io;

/// Pairs per `MSET`.
const PAIRS: usize = 100;

/// Headwater without joins.
#[derive(Debug, Default)]
pub struct ClientManaged {
    /// Followers or posts found, kept to avoid an allocation for each.
    found: Vec<u32>,
    /// Their texts, one behind the other, with the ends.
    texts: Vec<u8>,
    ends: Vec<usize>,
}

/// The key of a post's copy in a timeline.
fn copy_key(user: u32, time: u32, poster: u32) -> Key {
    Key::new(b"t|").user(user).text(b"|").time(time).text(b"|").user(poster)
}

impl Backend for ClientManaged {
    fn load(&mut self, world: &World<'_>, connection: &mut Connection) -> Result<()> {
        for table in [b"f", b"p", b"t"] {
            resp::command(&mut connection.out, &[b"TABLE.SET", table, b"BOUNDARY", b"1"]);
        }
        let mut loader = Loader::new(connection, resp::skip);
        loader.sent(3)?;
        let plan = world.plan;
        for user in 0..plan.graph.users as u32 {
            let follows = world.follows(user);
            let follower = |poster| Key::new(b"f|").user(poster).text(b"|").user(user);
            resp::set_all(&mut loader, follows.map(|poster| (follower(poster), b"1")))?;
            let post =
                |&time: &u32| (Key::new(b"p|").user(user).text(b"|").time(time), plan.text(time));
            resp::set_all(&mut loader, world.posts(user).iter().map(post))?;
            let timeline = world.timeline(user, 0);
            let copy = |entry: Entry| (copy_key(user, entry.time, entry.poster), entry.text);
            resp::set_all(&mut loader, timeline.into_iter().map(copy))?;
        }
        loader.finish()
    }

    fn read(&mut self, out: &mut Vec<u8>, user: u32, since: u32) {
        ask(out, user, since, None);
    }

    fn seen(
        &mut self,
        input: &mut Input,
        _since: u32,
        each: Option<&mut Vec<Entry>>,
    ) -> io::Result<Seen> {
        pairs(input, each)
    }

    fn post(&mut self, out: &mut Vec<u8>, post: Post<'_>) {
        let key = Key::new(b"p|").user(post.poster).text(b"|").time(post.time);
        resp::command(out, &[b"SET", &key, post.text]);
        let first = Key::new(b"f|").user(post.poster).text(b"|");
        let last = Key::new(b"f|").user(post.poster).text(b"}");
        resp::command(out, &[b"RANGE", &first, &last, b"KEYS"]);
    }

    fn after_post(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        post: Post<'_>,
    ) -> io::Result<usize> {
        resp::skip(input)?;
        self.found.clear();
        for _ in 0..resp::array(input)? {
            let found = resp::string(input)?;
            // `f|u0000042|u0000007`.
            let user = found.get(12..12 + key::NAME_DIGITS).and_then(key::number_of);
            let user = user.ok_or_else(|| bad("a follower's key has another form"))?;
            self.found.push(user as u32);
        }
        let mut commands = 0;
        for users in self.found.chunks(PAIRS) {
            commands += 1;
            resp::begin(next, 1 + 2 * users.len());
            resp::argument(next, b"MSET");
            for &user in users {
                resp::argument(next, &copy_key(user, post.time, post.poster));
                resp::argument(next, post.text);
            }
        }
        Ok(commands)
    }

    fn subscribe(&mut self, out: &mut Vec<u8>, user: u32, poster: u32, since: u32) {
        let key = Key::new(b"f|").user(poster).text(b"|").user(user);
        resp::command(out, &[b"SET", &key, b"1"]);
        let first = Key::new(b"p|").user(poster).text(b"|").time(since);
        let last = Key::new(b"p|").user(poster).text(b"}");
        resp::command(out, &[b"RANGE", &first, &last]);
    }

    fn after_subscribe(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        user: u32,
        _since: u32,
    ) -> io::Result<usize> {
        resp::skip(input)?;
        self.found.clear();
        self.texts.clear();
        self.ends.clear();
        let mut poster = 0;
        for _ in 0..resp::array(input)? / 2 {
            // `p|u0000007|0000000042`.
            let found = resp::string(input)?;
            let number = |first, digits| found.get(first..first + digits).and_then(key::number_of);
            let (Some(by), Some(time)) =
                (number(3, key::NAME_DIGITS), number(11, key::TIME_DIGITS))
            else {
                return Err(bad("a post's key has another form"));
            };
            poster = by as u32;
            self.found.push(time as u32);
            self.texts.extend_from_slice(resp::string(input)?);
            self.ends.push(self.texts.len());
        }
        if self.found.is_empty() {
            return Ok(0);
        }
        resp::begin(next, 1 + 2 * self.found.len());
        resp::argument(next, b"MSET");
        let mut begin = 0;
        for (&time, &end) in self.found.iter().zip(&self.ends) {
            resp::argument(next, &copy_key(user, time, poster));
            resp::argument(next, &self.texts[begin..end]);
            begin = end;
        }
        Ok(1)
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        resp::skip(input)
    }
}
