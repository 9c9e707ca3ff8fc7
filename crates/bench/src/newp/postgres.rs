//! Newp on PostgreSQL: indexed tables, and counters kept by a trigger.
//!
//! Ranks and karma are small rows of their own with free space in their pages, so that an
//! update stays in its page and touches no index. Tables are unlogged. A page is two prepared
//! statements; the reads of a batch share one transaction, each write is its own.

use super::site::Site;
use super::{Comment, KeptPage, Pages};
use crate::wire::{Connection, Input, bad, postgres};
use anyhow::{Context, Result};
use std::io;

const TABLES: &str = "
    CREATE UNLOGGED TABLE article (
        id integer PRIMARY KEY, author integer NOT NULL, body text NOT NULL);
    CREATE UNLOGGED TABLE rank (article integer PRIMARY KEY, votes integer NOT NULL)
        WITH (fillfactor = 50);
    CREATE UNLOGGED TABLE karma (usr integer PRIMARY KEY, votes integer NOT NULL)
        WITH (fillfactor = 50);
    CREATE UNLOGGED TABLE vote (
        article integer NOT NULL, voter integer NOT NULL, PRIMARY KEY (article, voter));
    CREATE UNLOGGED TABLE comment (
        article integer NOT NULL, id integer NOT NULL, commenter integer NOT NULL,
        body text NOT NULL, PRIMARY KEY (article, id));";

const TRIGGER: &str = "
    CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE rank SET votes = votes + 1 WHERE article = NEW.article;
        UPDATE karma SET votes = votes + 1
            WHERE usr = (SELECT author FROM article WHERE id = NEW.article);
        RETURN NULL; END $$;
    CREATE TRIGGER counted AFTER INSERT ON vote FOR EACH ROW EXECUTE FUNCTION counted();";

/// PostgreSQL.
#[derive(Debug, Default)]
pub struct Tables {
    /// The sum of all numbers that were read: the work of a client that shows them.
    shown: u64,
}

impl Pages for Tables {
    fn load(&mut self, site: &Site, connection: &mut Connection) -> Result<()> {
        postgres::run(connection, TABLES).context("while making the tables")?;
        let articles = 0..site.authors.len() as u32;
        let line = |text: String| text.into_bytes();
        let article = |id: u32| {
            let body = String::from_utf8_lossy(site.text(id));
            line(format!("{id}\t{}\t{body}", site.authors[id as usize]))
        };
        postgres::copy(connection, "article", articles.clone().map(article))?;
        let count = |(id, votes): (usize, &u32)| line(format!("{id}\t{votes}"));
        postgres::copy(connection, "rank", site.ranks.iter().enumerate().map(count))?;
        postgres::copy(connection, "karma", site.karma.iter().enumerate().map(count))?;
        let votes = articles.clone().flat_map(|id| {
            let voters = site.voters[id as usize].iter();
            voters.map(move |voter| line(format!("{id}\t{voter}")))
        });
        postgres::copy(connection, "vote", votes)?;
        let comments = articles.flat_map(|article| {
            site.comments[article as usize].iter().map(move |&(id, commenter)| {
                let body = String::from_utf8_lossy(site.comment_text(id));
                line(format!("{article}\t{id}\t{commenter}\t{body}"))
            })
        });
        postgres::copy(connection, "comment", comments)?;
        postgres::run(connection, TRIGGER).context("while making the trigger")?;
        postgres::run(connection, "VACUUM ANALYZE").context("while analysing")?;
        postgres::run(connection, "CHECKPOINT").context("while writing a checkpoint")
    }

    fn prepare(&self, connection: &mut Connection) -> Result<()> {
        for (name, statement) in [
            (
                "a",
                "SELECT r.votes, a.body FROM article a JOIN rank r ON r.article = a.id \
                 WHERE a.id = $1",
            ),
            (
                "c",
                "SELECT c.id, c.commenter, k.votes, c.body \
                 FROM comment c JOIN karma k ON k.usr = c.commenter WHERE c.article = $1",
            ),
            ("v", "INSERT INTO vote VALUES ($1, $2) ON CONFLICT DO NOTHING"),
            ("w", "INSERT INTO comment VALUES ($1, $2, $3, $4)"),
        ] {
            postgres::prepare(connection, name, statement).context("while preparing")?;
        }
        Ok(())
    }

    fn read(&mut self, out: &mut Vec<u8>, _site: &Site, article: u32) {
        postgres::execute(out, "a", &[&article.to_be_bytes()]);
        postgres::execute(out, "c", &[&article.to_be_bytes()]);
    }

    fn end_reads(&mut self, out: &mut Vec<u8>) {
        postgres::sync(out);
    }

    fn got(
        &mut self,
        input: &mut Input,
        _next: &mut Vec<u8>,
        mut keep: KeptPage<'_>,
    ) -> io::Result<bool> {
        let mut shown = 0;
        let found = postgres::rows(input, |mut row| {
            let votes = row.integer()?;
            shown += u64::from(votes);
            if let Some(page) = keep.as_deref_mut() {
                page.rank = votes;
                page.text = row.bytes()?.to_vec();
            }
            Ok(())
        })?;
        if found != 1 {
            return Err(bad("an article is missing"));
        }
        postgres::rows(input, |mut row| {
            let (id, commenter, karma) = (row.integer()?, row.integer()?, row.integer()?);
            shown += u64::from(karma);
            if let Some(page) = keep.as_deref_mut() {
                page.comments.push(Comment { id, commenter, text: row.bytes()?.to_vec(), karma });
            }
            Ok(())
        })?;
        self.shown += shown;
        Ok(false)
    }

    fn got_all(&mut self, input: &mut Input) -> io::Result<()> {
        postgres::ready(input)
    }

    fn vote(&mut self, out: &mut Vec<u8>, _site: &Site, article: u32, voter: u32) {
        postgres::execute(out, "v", &[&article.to_be_bytes(), &voter.to_be_bytes()]);
        postgres::sync(out);
    }

    fn voted(
        &mut self,
        input: &mut Input,
        _next: &mut Vec<u8>,
        _site: &Site,
        _article: u32,
    ) -> io::Result<bool> {
        postgres::ready(input).map(|()| false)
    }

    fn comment(&mut self, out: &mut Vec<u8>, site: &Site, article: u32, id: u32, commenter: u32) {
        let numbers = [article, id, commenter].map(u32::to_be_bytes);
        let text = site.comment_text(id);
        postgres::execute(out, "w", &[&numbers[0], &numbers[1], &numbers[2], text]);
        postgres::sync(out);
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        postgres::ready(input)
    }
}
