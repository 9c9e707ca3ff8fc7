//! Twip on PostgreSQL, with triggers that keep a table of timelines.
//!
//! All three tables have the composite primary key that their query needs, and are unlogged:
//! a cache may lose them. A trigger on posts copies a post to each follower, one on
//! subscriptions copies the poster's recent posts. Both take an advisory lock on the poster:
//! without it a post and a subscription that meet would not see each other's rows, and the
//! post would be lost. Statements are prepared and pipelined; the reads of a batch share one
//! transaction, each write is its own.

use super::world::World;
use super::{Backend, Entry, Post, Seen};
use crate::wire::{Connection, Input, postgres};
use anyhow::{Context, Result};
use std::io;

const TABLES: &str = "
    CREATE UNLOGGED TABLE subscription (
        poster integer NOT NULL, usr integer NOT NULL, since integer NOT NULL,
        PRIMARY KEY (poster, usr));
    CREATE UNLOGGED TABLE post (
        poster integer NOT NULL, time integer NOT NULL, body text NOT NULL,
        PRIMARY KEY (poster, time));
    CREATE UNLOGGED TABLE timeline (
        usr integer NOT NULL, time integer NOT NULL, poster integer NOT NULL, body text NOT NULL,
        PRIMARY KEY (usr, time, poster));";

const TRIGGERS: &str = "
    CREATE FUNCTION deliver() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock(NEW.poster);
        INSERT INTO timeline SELECT usr, NEW.time, NEW.poster, NEW.body
            FROM subscription WHERE poster = NEW.poster ON CONFLICT DO NOTHING;
        RETURN NULL; END $$;
    CREATE FUNCTION backfill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock(NEW.poster);
        INSERT INTO timeline SELECT NEW.usr, time, poster, body
            FROM post WHERE poster = NEW.poster AND time >= NEW.since ON CONFLICT DO NOTHING;
        RETURN NULL; END $$;
    CREATE TRIGGER deliver AFTER INSERT ON post FOR EACH ROW EXECUTE FUNCTION deliver();
    CREATE TRIGGER backfill AFTER INSERT ON subscription
        FOR EACH ROW EXECUTE FUNCTION backfill();";

/// PostgreSQL.
#[derive(Debug, Default)]
pub struct Triggers;

impl Backend for Triggers {
    fn load(&mut self, world: &World<'_>, connection: &mut Connection) -> Result<()> {
        let plan = world.plan;
        let users = 0..plan.graph.users as u32;
        let line = |text: String| text.into_bytes();
        let body = |time| String::from_utf8_lossy(plan.text(time));
        postgres::run(connection, TABLES).context("while making the tables")?;
        let subscriptions = users.clone().flat_map(|user| {
            world.follows(user).map(move |poster| line(format!("{poster}\t{user}\t0")))
        });
        postgres::copy(connection, "subscription", subscriptions)?;
        let posts = users.clone().flat_map(|poster| {
            let times = world.posts(poster).iter();
            times.map(move |&time| line(format!("{poster}\t{time}\t{}", body(time))))
        });
        postgres::copy(connection, "post", posts)?;
        let timelines = users.flat_map(|user| {
            world.timeline(user, 0).into_iter().map(move |entry| {
                let Entry { time, poster, .. } = entry;
                line(format!("{user}\t{time}\t{poster}\t{}", body(time)))
            })
        });
        postgres::copy(connection, "timeline", timelines)?;
        postgres::run(connection, TRIGGERS).context("while making the triggers")?;
        // Alone: VACUUM cannot run within the transaction of several statements.
        postgres::run(connection, "VACUUM ANALYZE").context("while analysing")?;
        postgres::run(connection, "CHECKPOINT").context("while writing a checkpoint")
    }

    fn prepare(&self, connection: &mut Connection) -> Result<()> {
        let read = "SELECT time, poster, body FROM timeline WHERE usr = $1 AND time >= $2 \
                    ORDER BY usr, time, poster";
        for (name, statement) in [
            ("r", read),
            ("p", "INSERT INTO post VALUES ($1, $2, $3)"),
            ("s", "INSERT INTO subscription VALUES ($1, $2, $3)"),
        ] {
            postgres::prepare(connection, name, statement).context("while preparing")?;
        }
        Ok(())
    }

    fn read(&mut self, out: &mut Vec<u8>, user: u32, since: u32) {
        postgres::execute(out, "r", &[&user.to_be_bytes(), &since.to_be_bytes()]);
    }

    fn end_reads(&mut self, out: &mut Vec<u8>) {
        postgres::sync(out);
    }

    fn seen(
        &mut self,
        input: &mut Input,
        _since: u32,
        mut each: Option<&mut Vec<Entry>>,
    ) -> io::Result<Seen> {
        let mut newest = 0;
        let count = postgres::rows(input, |mut row| {
            newest = row.integer()?;
            if let Some(into) = each.as_deref_mut() {
                let poster = row.integer()?;
                into.push(Entry { time: newest, poster, text: row.bytes()?.to_vec() });
            }
            Ok(())
        })?;
        Ok(Seen { count, newest })
    }

    fn seen_all(&mut self, input: &mut Input) -> io::Result<()> {
        postgres::ready(input)
    }

    fn post(&mut self, out: &mut Vec<u8>, post: Post<'_>) {
        let (poster, time) = (post.poster.to_be_bytes(), post.time.to_be_bytes());
        postgres::execute(out, "p", &[&poster, &time, post.text]);
        postgres::sync(out);
    }

    fn after_post(
        &mut self,
        input: &mut Input,
        _next: &mut Vec<u8>,
        _post: Post<'_>,
    ) -> io::Result<usize> {
        postgres::ready(input).map(|()| 0)
    }

    fn subscribe(&mut self, out: &mut Vec<u8>, user: u32, poster: u32, since: u32) {
        let (poster, user) = (poster.to_be_bytes(), user.to_be_bytes());
        postgres::execute(out, "s", &[&poster, &user, &since.to_be_bytes()]);
        postgres::sync(out);
    }

    fn after_subscribe(
        &mut self,
        input: &mut Input,
        _next: &mut Vec<u8>,
        _user: u32,
        _since: u32,
    ) -> io::Result<usize> {
        postgres::ready(input).map(|()| 0)
    }

    fn skip(&mut self, input: &mut Input) -> io::Result<()> {
        postgres::ready(input)
    }
}
