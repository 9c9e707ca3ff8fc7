//! Newp on Redis and Valkey.
//!
//! `a:<id>` is an article, `v:<id>` the set of its voters (its size is the rank), `c:<id>` the
//! list of its comments, `k:<user>` a karma counter. A page is `GET`, `SCARD` and `LRANGE` in
//! one pipeline, then one `MGET` of the commenters' karma. A vote adds to the set and, if it was
//! new, increments the author's counter.

use super::site::Site;
use super::{Comment, KeptPage, Pages};
use crate::wire::key::number_of;
use crate::wire::{Connection, Input, Key, Loader, bad, resp};
use anyhow::Result;
use std::io;

/// Digits of the numbers in a comment.
const DIGITS: usize = 8;
/// Elements per command while loading.
const ELEMENTS: usize = 500;

/// Redis or Valkey.
#[derive(Debug, Default)]
pub struct Counters {
    commenters: Vec<u32>,
    element: Vec<u8>,
    /// The sum of all numbers that were read: the work of a client that shows them.
    shown: u64,
}

fn key(kind: &[u8], number: u32) -> Key {
    Key::new(kind).decimal(u64::from(number))
}

fn write_comment(into: &mut Vec<u8>, id: u32, commenter: u32, text: &[u8]) {
    into.clear();
    let head = Key::new(b"").number(u64::from(id), DIGITS).number(u64::from(commenter), DIGITS);
    into.extend_from_slice(&head);
    into.extend_from_slice(text);
}

impl Pages for Counters {
    fn load(&mut self, site: &Site, connection: &mut Connection) -> Result<()> {
        let mut loader = Loader::new(connection, resp::skip);
        for article in 0..site.authors.len() as u32 {
            let text = site.text(article);
            resp::command(&mut loader.connection.out, &[b"SET", &key(b"a:", article), text]);
            loader.sent(1)?;
            for comments in site.comments[article as usize].chunks(ELEMENTS) {
                let out = &mut loader.connection.out;
                resp::begin(out, 2 + comments.len());
                resp::argument(out, b"RPUSH");
                resp::argument(out, &key(b"c:", article));
                for &(id, commenter) in comments {
                    write_comment(&mut self.element, id, commenter, site.comment_text(id));
                    resp::argument(out, &self.element);
                }
                loader.sent(1)?;
            }
            for voters in site.voters[article as usize].chunks(ELEMENTS) {
                let out = &mut loader.connection.out;
                resp::begin(out, 2 + voters.len());
                resp::argument(out, b"SADD");
                resp::argument(out, &key(b"v:", article));
                for &voter in voters {
                    resp::argument(out, &key(b"", voter));
                }
                loader.sent(1)?;
            }
        }
        for (user, &karma) in site.karma.iter().enumerate() {
            let value = key(b"", karma);
            let out = &mut loader.connection.out;
            resp::command(out, &[b"SET", &key(b"k:", user as u32), &value]);
            loader.sent(1)?;
        }
        loader.finish()
    }

    fn read(&mut self, out: &mut Vec<u8>, _site: &Site, article: u32) {
        resp::command(out, &[b"GET", &key(b"a:", article)]);
        resp::command(out, &[b"SCARD", &key(b"v:", article)]);
        resp::command(out, &[b"LRANGE", &key(b"c:", article), b"0", b"-1"]);
    }

    fn got(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        mut keep: KeptPage<'_>,
    ) -> io::Result<bool> {
        let text = resp::string(input)?;
        if let Some(page) = keep.as_deref_mut() {
            page.text = text.to_vec();
        }
        let rank = resp::integer(input)?;
        self.shown += rank as u64;
        if let Some(page) = keep.as_deref_mut() {
            page.rank = rank as u32;
        }
        self.commenters.clear();
        for _ in 0..resp::array(input)? {
            let element = resp::string(input)?;
            let number = |first: usize| element.get(first..first + DIGITS).and_then(number_of);
            let (Some(id), Some(commenter)) = (number(0), number(DIGITS)) else {
                return Err(bad("a comment has another form"));
            };
            self.commenters.push(commenter as u32);
            if let Some(page) = keep.as_deref_mut() {
                let text = element[2 * DIGITS..].to_vec();
                let (id, commenter) = (id as u32, commenter as u32);
                page.comments.push(Comment { id, commenter, text, karma: 0 });
            }
        }
        if self.commenters.is_empty() {
            return Ok(false);
        }
        resp::begin(next, 1 + self.commenters.len());
        resp::argument(next, b"MGET");
        for &commenter in &self.commenters {
            resp::argument(next, &key(b"k:", commenter));
        }
        Ok(true)
    }

    fn got_more(&mut self, input: &mut Input, mut keep: KeptPage<'_>) -> io::Result<()> {
        for at in 0..resp::array(input)? {
            let karma = resp::bulk(input)?.map_or(Some(0), number_of);
            let karma = karma.ok_or_else(|| bad("a karma is no number"))?;
            self.shown += karma;
            if let Some(comment) = keep.as_deref_mut().and_then(|page| page.comments.get_mut(at)) {
                comment.karma = karma as u32;
            }
        }
        Ok(())
    }

    fn vote(&mut self, out: &mut Vec<u8>, _site: &Site, article: u32, voter: u32) {
        resp::command(out, &[b"SADD", &key(b"v:", article), &key(b"", voter)]);
    }

    fn voted(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        site: &Site,
        article: u32,
    ) -> io::Result<bool> {
        if resp::integer(input)? == 0 {
            return Ok(false);
        }
        let author = site.authors[article as usize];
        resp::command(next, &[b"INCR", &key(b"k:", author)]);
        Ok(true)
    }

    fn comment(&mut self, out: &mut Vec<u8>, site: &Site, article: u32, id: u32, commenter: u32) {
        write_comment(&mut self.element, id, commenter, site.comment_text(id));
        resp::command(out, &[b"RPUSH", &key(b"c:", article), &self.element]);
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        resp::skip(input)
    }
}
