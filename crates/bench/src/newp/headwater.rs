//! Newp on Headwater: interleaved joins, or separate ones.

use super::site::Site;
use super::{Comment, KeptPage, Pages};
use crate::wire::key::{NAME_DIGITS, number_of};
use crate::wire::{Connection, Input, Key, Loader, bad, resp};
use anyhow::{Context, Result};
use headwater_workload::newp::{BOUNDARIES, INTERLEAVED, KARMA};
use std::io;

/// Digits of an article's or comment's number.
const ID_DIGITS: usize = 8;
/// Bytes of `u0000042|00000007|`.
const ARTICLE_BYTES: usize = 1 + NAME_DIGITS + 1 + ID_DIGITS + 1;
/// Bytes of `page|u0000042|00000007|`.
const PAGE_BYTES: usize = 5 + ARTICLE_BYTES;
/// Bytes of `comment|u0000042|00000007|`.
const COMMENT_BYTES: usize = 8 + ARTICLE_BYTES;

const RANK: [&str; 2] = ["rank", "rank|<author>|<id> = count vote|<author>|<id>|<voter>"];

/// Headwater.
#[derive(Debug)]
pub struct Joined {
    interleaved: bool,
    /// Commenters of the page in hand.
    commenters: Vec<u32>,
    /// The sum of all numbers that were read: the work of a client that shows them.
    shown: u64,
}

fn under(table: &[u8], site: &Site, article: u32) -> Key {
    Key::new(table)
        .user(site.authors[article as usize])
        .text(b"|")
        .number(u64::from(article), ID_DIGITS)
}

fn comment_key(site: &Site, article: u32, id: u32, commenter: u32) -> Key {
    under(b"comment|", site, article)
        .text(b"|")
        .number(u64::from(id), ID_DIGITS)
        .text(b"|")
        .user(commenter)
}

/// Reads `00000007|u0000042`: a comment's number and its commenter.
fn comment_of(key: &[u8]) -> io::Result<(u32, u32)> {
    let id = key.get(..ID_DIGITS).and_then(number_of);
    let commenter = key.get(ID_DIGITS + 2..).and_then(number_of);
    match (id, commenter) {
        (Some(id), Some(commenter)) => Ok((id as u32, commenter as u32)),
        _ => Err(bad(format!("no comment's key: {}", key.escape_ascii()))),
    }
}

fn count_of(value: &[u8]) -> io::Result<u32> {
    number_of(value).map(|count| count as u32).ok_or_else(|| bad("a count is no number"))
}

impl Joined {
    /// With interleaved joins, or separate ones.
    #[must_use]
    pub fn new(interleaved: bool) -> Self {
        Self { interleaved, commenters: Vec::new(), shown: 0 }
    }

    /// Takes a whole page, which comes in the order of its keys: `a`, `c`, `k`, `r`.
    fn got_page(&mut self, input: &mut Input, mut keep: KeptPage<'_>) -> io::Result<bool> {
        let mut karma_of = 0;
        for _ in 0..resp::array(input)? / 2 {
            let key = resp::string(input)?;
            let Some((&kind, rest)) = key.get(PAGE_BYTES..).and_then(<[u8]>::split_first) else {
                return Err(bad(format!("no page's key: {}", key.escape_ascii())));
            };
            let mut comment = (0, 0);
            if keep.is_some() && (kind == b'c' || kind == b'k') {
                comment = comment_of(&rest[1..])?;
            }
            let value = resp::string(input)?;
            let count = match kind {
                b'k' | b'r' => count_of(value)?,
                _ => 0,
            };
            self.shown += u64::from(count);
            let Some(page) = keep.as_deref_mut() else { continue };
            let (id, commenter) = comment;
            match kind {
                b'a' => page.text = value.to_vec(),
                b'r' => page.rank = count,
                b'c' => {
                    page.comments.push(Comment { id, commenter, text: value.to_vec(), karma: 0 })
                }
                // The commenters without karma have no key here.
                b'k' => {
                    while page.comments.get(karma_of).is_some_and(|comment| comment.id < id) {
                        karma_of += 1;
                    }
                    match page.comments.get_mut(karma_of) {
                        Some(comment) if comment.id == id && comment.commenter == commenter => {
                            comment.karma = count;
                        }
                        _ => return Err(bad("a page shows the karma of no comment")),
                    }
                }
                _ => return Err(bad("a page has a key of another kind")),
            }
        }
        Ok(false)
    }

    fn got_parts(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        mut keep: KeptPage<'_>,
    ) -> io::Result<bool> {
        let text = resp::string(input)?;
        if let Some(page) = keep.as_deref_mut() {
            page.text = text.to_vec();
        }
        let rank = resp::bulk(input)?.map_or(Ok(0), count_of)?;
        self.shown += u64::from(rank);
        if let Some(page) = keep.as_deref_mut() {
            page.rank = rank;
        }
        self.commenters.clear();
        for _ in 0..resp::array(input)? / 2 {
            let key = resp::string(input)?;
            let (id, commenter) = comment_of(key.get(COMMENT_BYTES..).unwrap_or_default())?;
            self.commenters.push(commenter);
            let text = resp::string(input)?;
            if let Some(page) = keep.as_deref_mut() {
                page.comments.push(Comment { id, commenter, text: text.to_vec(), karma: 0 });
            }
        }
        if self.commenters.is_empty() {
            return Ok(false);
        }
        resp::begin(next, 1 + self.commenters.len());
        resp::argument(next, b"MGET");
        for &commenter in &self.commenters {
            resp::argument(next, &Key::new(b"karma|").user(commenter));
        }
        Ok(true)
    }
}

impl Pages for Joined {
    fn load(&mut self, site: &Site, connection: &mut Connection) -> Result<()> {
        let joins: &[[&str; 2]] = if self.interleaved { &INTERLEAVED } else { &[RANK] };
        let out = &mut connection.out;
        let boundaries = || BOUNDARIES.into_iter().chain([("rank", 1)]);
        for (table, boundary) in boundaries() {
            let words = ["TABLE.SET", table, "BOUNDARY", &boundary.to_string()];
            resp::command(out, &words.map(str::as_bytes));
        }
        for [name, text] in core::iter::once(&KARMA).chain(joins) {
            resp::command(out, &["JOIN.ADD", name, text].map(str::as_bytes));
        }
        connection.flush()?;
        for _ in 0..boundaries().count() + 1 + joins.len() {
            resp::skip(&mut connection.input).context("while installing the joins")?;
        }
        let mut loader = Loader::new(connection, resp::skip);
        let articles = 0..site.authors.len() as u32;
        let texts = articles.clone().map(|id| (under(b"article|", site, id), site.text(id)));
        resp::set_all(&mut loader, texts)?;
        for article in articles {
            let comments = &site.comments[article as usize];
            let comment = |&(id, commenter): &(u32, u32)| {
                (comment_key(site, article, id, commenter), site.comment_text(id))
            };
            resp::set_all(&mut loader, comments.iter().map(comment))?;
            let vote = |&voter: &u32| (under(b"vote|", site, article).text(b"|").user(voter), b"1");
            resp::set_all(&mut loader, site.voters[article as usize].iter().map(vote))?;
        }
        loader.finish()
    }

    fn read(&mut self, out: &mut Vec<u8>, site: &Site, article: u32) {
        if self.interleaved {
            resp::command(out, &[b"PREFIX", &under(b"page|", site, article).text(b"|")]);
        } else {
            resp::command(out, &[b"GET", &under(b"article|", site, article)]);
            resp::command(out, &[b"GET", &under(b"rank|", site, article)]);
            resp::command(out, &[b"PREFIX", &under(b"comment|", site, article).text(b"|")]);
        }
    }

    fn got(
        &mut self,
        input: &mut Input,
        next: &mut Vec<u8>,
        keep: KeptPage<'_>,
    ) -> io::Result<bool> {
        if self.interleaved {
            self.got_page(input, keep)
        } else {
            self.got_parts(input, next, keep)
        }
    }

    fn got_more(&mut self, input: &mut Input, mut keep: KeptPage<'_>) -> io::Result<()> {
        for at in 0..resp::array(input)? {
            let karma = resp::bulk(input)?.map_or(Ok(0), count_of)?;
            self.shown += u64::from(karma);
            if let Some(comment) = keep.as_deref_mut().and_then(|page| page.comments.get_mut(at)) {
                comment.karma = karma;
            }
        }
        Ok(())
    }

    fn vote(&mut self, out: &mut Vec<u8>, site: &Site, article: u32, voter: u32) {
        let key = under(b"vote|", site, article).text(b"|").user(voter);
        resp::command(out, &[b"SET", &key, b"1"]);
    }

    fn voted(
        &mut self,
        input: &mut Input,
        _next: &mut Vec<u8>,
        _site: &Site,
        _article: u32,
    ) -> io::Result<bool> {
        resp::skip(input).map(|()| false)
    }

    fn comment(&mut self, out: &mut Vec<u8>, site: &Site, article: u32, id: u32, commenter: u32) {
        let key = comment_key(site, article, id, commenter);
        resp::command(out, &[b"SET", &key, site.comment_text(id)]);
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        resp::skip(input)
    }
}
