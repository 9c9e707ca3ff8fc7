//! A board in each system: who has which score, and the greatest of them.

use crate::wire::key::number_of;
use crate::wire::{Connection, Input, Key, Loader, bad, postgres, resp};
use anyhow::{Context, Result};
use std::io;

/// Digits of a player's number.
const DIGITS: usize = 8;
/// Pairs per command while loading.
const PAIRS: usize = 200;

/// A board that is asked for its first players, and told of new scores.
pub trait Board {
    /// Brings all scores, one for each player, into a server.
    ///
    /// # Errors
    /// The connection fails or the server refuses.
    fn load(&mut self, scores: &[u32], connection: &mut Connection) -> Result<()>;
    /// Readies another connection.
    ///
    /// # Errors
    /// As for [`Board::load`].
    fn prepare(&self, connection: &mut Connection) -> Result<()>;
    /// Asks for the first players.
    fn read(&self, out: &mut Vec<u8>);
    /// Takes them, in their order, into an empty list.
    ///
    /// # Errors
    /// The connection fails or the answer is none.
    fn got(&mut self, input: &mut Input, players: &mut Vec<u32>) -> io::Result<()>;
    /// Gives a player another score.
    fn score(&self, out: &mut Vec<u8>, player: u32, score: u32);
    /// Takes the answer to that.
    ///
    /// # Errors
    /// As for [`Board::got`].
    fn scored(&mut self, input: &mut Input) -> io::Result<()>;
}

fn player_of(text: &[u8]) -> io::Result<u32> {
    let number = number_of(text).map(|number| number as u32);
    number.ok_or_else(|| bad(format!("no player's name: {}", text.escape_ascii())))
}

fn name(player: u32) -> Key {
    Key::new(b"").number(u64::from(player), DIGITS)
}

/// Headwater: a join over the scores.
#[derive(Debug)]
pub struct Joined {
    /// How many players are shown.
    pub shown: u32,
    /// The join keeps no others.
    pub keeps: bool,
}

impl Board for Joined {
    fn load(&mut self, scores: &[u32], connection: &mut Connection) -> Result<()> {
        let keep = if self.keeps { format!(" keep {}", self.shown) } else { String::new() };
        let text = format!(
            "top|<board>|<score:number:desc>|<player> = index score|<board>|<player> as <score>{keep}"
        );
        resp::command(&mut connection.out, &[b"JOIN.ADD", b"top", text.as_bytes()]);
        connection.flush()?;
        resp::skip(&mut connection.input).context("while installing the join")?;
        let mut loader = Loader::new(connection, resp::skip);
        let pairs = scores.iter().enumerate().map(|(player, &score)| {
            let key = Key::new(b"score|b|").number(player as u64, DIGITS);
            (key, Key::new(b"").decimal(u64::from(score)))
        });
        resp::set_all(&mut loader, pairs)?;
        loader.finish()
    }

    fn prepare(&self, _connection: &mut Connection) -> Result<()> {
        Ok(())
    }

    fn read(&self, out: &mut Vec<u8>) {
        let shown = Key::new(b"").decimal(u64::from(self.shown));
        resp::command(out, &[b"PREFIX", b"top|b|", b"LIMIT", &shown, b"KEYS"]);
    }

    fn got(&mut self, input: &mut Input, players: &mut Vec<u32>) -> io::Result<()> {
        // A key says score and player; the value is empty.
        for _ in 0..resp::array(input)? {
            let key = resp::string(input)?;
            let name = key.len().checked_sub(DIGITS).map_or(key, |at| &key[at..]);
            players.push(player_of(name)?);
        }
        Ok(())
    }

    fn score(&self, out: &mut Vec<u8>, player: u32, score: u32) {
        let key = Key::new(b"score|b|").number(u64::from(player), DIGITS);
        resp::command(out, &[b"SET", &key, &Key::new(b"").decimal(u64::from(score))]);
    }

    fn scored(&mut self, input: &mut Input) -> io::Result<()> {
        resp::skip(input)
    }
}

/// A sorted set of Valkey or Redis.
#[derive(Debug)]
pub struct SortedSet {
    /// How many players are shown.
    pub shown: u32,
}

impl Board for SortedSet {
    fn load(&mut self, scores: &[u32], connection: &mut Connection) -> Result<()> {
        let mut loader = Loader::new(connection, resp::skip);
        for (at, chunk) in scores.chunks(PAIRS).enumerate() {
            let out = &mut loader.connection.out;
            resp::begin(out, 2 + 2 * chunk.len());
            resp::argument(out, b"ZADD");
            resp::argument(out, b"board");
            for (player, &score) in chunk.iter().enumerate() {
                resp::argument(out, &Key::new(b"").decimal(u64::from(score)));
                resp::argument(out, &name((at * PAIRS + player) as u32));
            }
            loader.sent(1)?;
        }
        loader.finish()
    }

    fn prepare(&self, _connection: &mut Connection) -> Result<()> {
        Ok(())
    }

    fn read(&self, out: &mut Vec<u8>) {
        let last = Key::new(b"").decimal(u64::from(self.shown) - 1);
        resp::command(out, &[b"ZREVRANGE", b"board", b"0", &last, b"WITHSCORES"]);
    }

    fn got(&mut self, input: &mut Input, players: &mut Vec<u32>) -> io::Result<()> {
        for _ in 0..resp::array(input)? / 2 {
            players.push(player_of(resp::string(input)?)?);
            resp::string(input)?;
        }
        Ok(())
    }

    fn score(&self, out: &mut Vec<u8>, player: u32, score: u32) {
        let score = Key::new(b"").decimal(u64::from(score));
        resp::command(out, &[b"ZADD", b"board", &score, &name(player)]);
    }

    fn scored(&mut self, input: &mut Input) -> io::Result<()> {
        resp::skip(input)
    }
}

/// A table of PostgreSQL with an index by score.
#[derive(Debug)]
pub struct Indexed {
    /// How many players are shown.
    pub shown: u32,
}

impl Board for Indexed {
    fn load(&mut self, scores: &[u32], connection: &mut Connection) -> Result<()> {
        let table = "CREATE UNLOGGED TABLE board (
            player integer PRIMARY KEY, score integer NOT NULL) WITH (fillfactor = 80)";
        postgres::run(connection, table).context("while making the table")?;
        let line = |(player, score): (usize, &u32)| format!("{player}\t{score}").into_bytes();
        postgres::copy(connection, "board", scores.iter().enumerate().map(line))?;
        for statement in
            ["CREATE INDEX ON board (score DESC, player)", "VACUUM ANALYZE", "CHECKPOINT"]
        {
            postgres::run(connection, statement).context(statement)?;
        }
        Ok(())
    }

    fn prepare(&self, connection: &mut Connection) -> Result<()> {
        let shown = self.shown;
        let read =
            format!("SELECT player, score FROM board ORDER BY score DESC, player LIMIT {shown}");
        postgres::prepare(connection, "r", &read).context("while preparing")?;
        let write = "UPDATE board SET score = $2 WHERE player = $1";
        postgres::prepare(connection, "w", write).context("while preparing")
    }

    fn read(&self, out: &mut Vec<u8>) {
        postgres::execute(out, "r", &[]);
        postgres::sync(out);
    }

    fn got(&mut self, input: &mut Input, players: &mut Vec<u32>) -> io::Result<()> {
        postgres::rows(input, |mut row| {
            players.push(row.integer()?);
            Ok(())
        })?;
        postgres::ready(input)
    }

    fn score(&self, out: &mut Vec<u8>, player: u32, score: u32) {
        postgres::execute(out, "w", &[&player.to_be_bytes(), &score.to_be_bytes()]);
        postgres::sync(out);
    }

    fn scored(&mut self, input: &mut Input) -> io::Result<()> {
        postgres::ready(input)
    }
}
