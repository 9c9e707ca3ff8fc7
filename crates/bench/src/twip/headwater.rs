//! Twip with joins: the server keeps the timelines.
//!
//! A subscription, a post and a read are one command each.

use super::world::World;
use super::{Backend, Entry, Post, Seen};
use crate::wire::{Connection, Input, Key, Loader, bad, key, resp};
use anyhow::{Context, Result};
use std::io;

/// How the join is installed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joins {
    /// The mode of the timelines' join, as it is written in it.
    pub mode: &'static str,
    /// Materialize all timelines before the run.
    pub all: bool,
    /// Celebrities have their own tables and a pull join.
    pub celebrities: bool,
    /// Tables have a boundary that is set, not inferred.
    pub boundary: bool,
    /// Reads end at the moment of the newest post, not at the end of the timeline.
    pub bounded: bool,
    /// Keys are of several nodes: each is set by itself.
    pub apart: bool,
}

/// Headwater with a timeline join.
#[derive(Debug)]
pub struct WithJoins {
    joins: Joins,
    celebrity: Vec<bool>,
    /// The moment of the newest post.
    now: u32,
}

impl WithJoins {
    /// The joins for this plan.
    #[must_use]
    pub fn new(joins: Joins, world: &World<'_>) -> Self {
        let celebrity = if joins.celebrities {
            world.plan.celebrity.clone()
        } else {
            vec![false; world.plan.graph.users]
        };
        Self { joins, celebrity, now: world.now() }
    }

    fn post_key(&self, poster: u32, time: u32) -> Key {
        let table: &[u8] = if self.celebrity[poster as usize] { b"cp|" } else { b"p|" };
        Key::new(table).user(poster).text(b"|").time(time)
    }

    fn install(&self, connection: &mut Connection) -> Result<()> {
        let mode = self.joins.mode;
        let timeline = format!(
            "t|<user>|<time>|<poster> = {mode} check s|<user>|<poster> copy p|<poster>|<time>"
        );
        let out = &mut connection.out;
        let mut commands = 1;
        if self.joins.boundary {
            for table in [&b"s"[..], b"p", b"t", b"cp"] {
                resp::command(out, &[b"TABLE.SET", table, b"BOUNDARY", b"1"]);
                commands += 1;
            }
        }
        resp::command(out, &[b"JOIN.ADD", b"timeline", timeline.as_bytes()]);
        if self.joins.celebrities {
            let by_time = b"ct|<time>|<poster> = copy cp|<poster>|<time>";
            let merged =
                b"t|<user>|<time>|<poster> = pull copy ct|<time>|<poster> check s|<user>|<poster>";
            resp::command(out, &[b"JOIN.ADD", b"celebrity_posts", by_time]);
            resp::command(out, &[b"JOIN.ADD", b"celebrity_timeline", merged]);
            commands += 2;
        }
        connection.flush()?;
        for _ in 0..commands {
            resp::skip(&mut connection.input).context("while installing the joins")?;
        }
        Ok(())
    }
}

/// Asks for the keys of `user`'s timeline from `since` on, up to those of `upto` if there is one.
#[inline]
pub(super) fn ask(out: &mut Vec<u8>, user: u32, since: u32, upto: Option<u32>) {
    let name = Key::new(b"t|").user(user);
    let first = name.text(b"|").time(since);
    let last = match upto {
        Some(upto) => name.text(b"|").time(upto + 1),
        None => name.text(b"}"),
    };
    resp::command(out, &[b"RANGE", &first, &last]);
}

/// Takes the pairs that a read of a timeline brought.
#[inline]
pub(super) fn pairs(input: &mut Input, mut each: Option<&mut Vec<Entry>>) -> io::Result<Seen> {
    let count = resp::array(input)? / 2;
    let mut newest = 0;
    for left in (0..count).rev() {
        let key = resp::string(input)?;
        let mut entry = None;
        // The key is `t|u0000042|0000000007|u0000008`.
        if left == 0 || each.is_some() {
            let number = |first: usize, digits: usize| {
                key.get(first..first + digits).and_then(key::number_of)
            };
            match (number(11, key::TIME_DIGITS), number(23, key::NAME_DIGITS)) {
                (Some(time), Some(poster)) if key.len() == 30 => {
                    newest = time as u32;
                    entry = Some((time as u32, poster as u32));
                }
                _ => return Err(bad(format!("no timeline key: {}", key.escape_ascii()))),
            }
        }
        let text = resp::string(input)?;
        if let (Some(into), Some((time, poster))) = (each.as_deref_mut(), entry) {
            into.push(Entry { time, poster, text: text.to_vec() });
        }
    }
    Ok(Seen { count, newest })
}

impl Backend for WithJoins {
    fn load(&mut self, world: &World<'_>, connection: &mut Connection) -> Result<()> {
        self.install(connection)?;
        let plan = world.plan;
        let mut loader = Loader::new(connection, resp::skip);
        let users = 0..plan.graph.users as u32;
        let subscriptions = users.clone().flat_map(|user| {
            world
                .follows(user)
                .map(move |poster| (Key::new(b"s|").user(user).text(b"|").user(poster), b"1"))
        });
        match self.joins.apart {
            true => resp::set_each(&mut loader, subscriptions)?,
            false => resp::set_all(&mut loader, subscriptions)?,
        }
        let posts = users.clone().flat_map(|poster| {
            let this = &*self;
            world
                .posts(poster)
                .iter()
                .map(move |&time| (this.post_key(poster, time), plan.text(time)))
        });
        match self.joins.apart {
            true => resp::set_each(&mut loader, posts)?,
            false => resp::set_all(&mut loader, posts)?,
        }
        if self.joins.all {
            for user in users {
                let prefix = Key::new(b"t|").user(user).text(b"|");
                resp::command(&mut loader.connection.out, &[b"PREFIX", &prefix, b"COUNT"]);
                loader.sent(1)?;
            }
        }
        loader.finish()
    }

    fn read(&mut self, out: &mut Vec<u8>, user: u32, since: u32) {
        ask(out, user, since, self.joins.bounded.then_some(self.now));
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
        self.now = self.now.max(post.time);
        let key = self.post_key(post.poster, post.time);
        resp::command(out, &[b"SET", &key, post.text]);
    }

    fn after_post(
        &mut self,
        input: &mut Input,
        _next: &mut Vec<u8>,
        _post: Post<'_>,
    ) -> io::Result<usize> {
        resp::skip(input).map(|()| 0)
    }

    fn subscribe(&mut self, out: &mut Vec<u8>, user: u32, poster: u32, _since: u32) {
        let key = Key::new(b"s|").user(user).text(b"|").user(poster);
        resp::command(out, &[b"SET", &key, b"1"]);
    }

    fn after_subscribe(
        &mut self,
        input: &mut Input,
        _next: &mut Vec<u8>,
        _user: u32,
        _since: u32,
    ) -> io::Result<usize> {
        resp::skip(input).map(|()| 0)
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        resp::skip(input)
    }
}
