//! What a script can say, and how it is written.

use crate::bytes::unescape;

/// What a `set` does to the expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ttl {
    /// `keep`: it stays as it is.
    Keep,
    /// Nothing written: the key never expires.
    Never,
    /// `ttl MILLIS`: from now.
    Millis(u64),
}

/// The moment that a source's answer shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsOf {
    /// So many changes before the last one that the engine was told of.
    Late(u64),
    /// So many changes after it.
    Ahead(u64),
}

/// One line of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are the operands that each command's line names")]
pub enum Command {
    /// `set KEY VALUE [ttl MILLIS | keep]`
    Set { key: Vec<u8>, value: Vec<u8>, ttl: Ttl },
    /// `append KEY TAIL` prints the new length.
    Append { key: Vec<u8>, tail: Vec<u8> },
    /// `del KEY`
    Del { key: Vec<u8> },
    /// `expire KEY MILLIS`, and `persist KEY`.
    Expire { key: Vec<u8>, after: Option<u64> },
    /// `ttl KEY` prints the milliseconds left, `never`, or `-` for no key.
    TimeLeft { key: Vec<u8> },
    /// `advance MILLIS`: time passes.
    Advance { millis: u64 },
    /// `delrange FIRST LAST` prints how many keys it removed.
    DelRange { first: Vec<u8>, last: Vec<u8> },
    /// `flush`
    Flush,
    /// `incr KEY BY` prints the sum, or `-` where the key holds no number.
    Incr { key: Vec<u8>, by: i64 },
    /// `copy FROM TO [replace]` and `rename FROM TO` print whether they did anything.
    Copy { from: Vec<u8>, to: Vec<u8>, replace: bool, renames: bool },
    /// `mset KEY VALUE [KEY VALUE …]` sets all or none.
    SetAll { pairs: Vec<(Vec<u8>, Vec<u8>)> },
    /// `mdel KEY [KEY …]` removes all or none, and prints how many there were.
    DelAll { keys: Vec<Vec<u8>> },
    /// `multi`, and `exec`: what is between is one transaction.
    Multi { begins: bool },
    /// `evict N [from DRAW]` lets go of so many ranges that can be had again, as far as there
    /// are any.
    Evict { count: u64, draw: u64 },
    /// `compact N` moves the values of about so many keys to other places in memory.
    Compact { keys: usize },
    /// `join [NAME:] TEXT` and `replace NAME: TEXT` print warnings. Without a name joins are
    /// called `j1`, `j2` … in the order of their lines.
    Join { name: Option<String>, text: String, replace: bool },
    /// `drop NAME`
    Drop { name: String },
    /// `joins` prints name and text of each.
    Joins,
    /// `table NAME [boundary N] [source NAME]`
    Table { name: Vec<u8>, boundary: Option<usize>, source: Option<String> },
    /// `limit key|value|joins|sources|slots N` bounds what is written from now on.
    Limit { what: String, most: usize },
    /// `get KEY` prints `KEY = VALUE`, or `KEY -` for no key.
    Get { key: Vec<u8> },
    /// `range FIRST LAST [rev] [limit N]` and `prefix PREFIX [rev] [limit N]` print the pairs.
    Range { first: Vec<u8>, last: Vec<u8>, reverse: bool, limit: Option<u64> },
    /// `verify [FIRST LAST]` prints the differences.
    Verify { first: Vec<u8>, last: Vec<u8> },
    /// `scan` prints the keys stored or materialized now.
    Scan,
    /// `explain FIRST LAST` prints what EXPLAIN says.
    Explain { first: Vec<u8>, last: Vec<u8> },
    /// `stat NAME` prints one of the engine's counters.
    Stat { name: String },
    /// `watch KEY`
    Watch { key: Vec<u8> },
    /// `watched` prints each watched key with `changed` or `unchanged`.
    Watched,
    /// `unwatch` ends all watches.
    Unwatch,
    /// `follow BY FIRST LAST` has follower BY, a number, told of each change in the range.
    Follow { by: u32, first: Vec<u8>, last: Vec<u8> },
    /// `unfollow BY FIRST LAST` ends that for the range.
    Unfollow { by: u32, first: Vec<u8>, last: Vec<u8> },
    /// `told` prints what followers are told since the last time: `BY,BY KEY = VALUE`, `BY KEY -`, or
    /// `BY reset [FIRST, LAST)`.
    Told,
    /// `at SOURCE set KEY VALUE` and `at SOURCE del KEY` change what a source holds.
    AtSource { source: String, key: Vec<u8>, value: Option<Vec<u8>> },
    /// `deliver SOURCE [N]`: the source tells the engine of its next N changes (all).
    Deliver { source: String, most: usize },
    /// `lose SOURCE`: the source never tells of its other changes, and says so.
    Lose { source: String },
    /// `answer SOURCE [load N] [late N | ahead N]`: the source answers its N-th open load (the
    /// first; the last, where there are fewer) as it stood after the last change that it told,
    /// or some changes before or after that, where that is possible.
    Answer { source: String, load: usize, as_of: AsOf },
    /// `fail SOURCE MESSAGE [load N]`: an open load fails.
    Fail { source: String, message: String, load: usize },
    /// `loads` prints the open loads.
    Loads,
}

impl Command {
    /// Reads one line.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let mut words = Words { line, rest: rest.split_whitespace().collect() };
        let command = match word {
            "join" | "replace" => return Ok(join(rest.trim(), word == "replace")),
            "range" | "prefix" => words.range(word == "prefix")?,
            "table" => words.table()?,
            "at" | "deliver" | "lose" | "answer" | "fail" | "loads" => words.source(word)?,
            _ => words.plain(word)?,
        };
        match words.rest.first() {
            Some(extra) => Err(format!("`{line}`: `{extra}` is too much")),
            None => Ok(command),
        }
    }
}

fn join(text: &str, replace: bool) -> Command {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    match first.strip_suffix(':') {
        Some(name) => {
            Command::Join { name: Some(name.to_string()), text: rest.to_string(), replace }
        }
        None => Command::Join { name: None, text: text.to_string(), replace },
    }
}

struct Words<'a> {
    line: &'a str,
    rest: Vec<&'a str>,
}

impl Words<'_> {
    fn text(&mut self) -> Result<String, String> {
        if self.rest.is_empty() {
            return Err(format!("`{}`: a word is missing", self.line));
        }
        Ok(self.rest.remove(0).to_string())
    }

    fn bytes(&mut self) -> Result<Vec<u8>, String> {
        unescape(&self.text()?)
    }

    fn number(&mut self) -> Result<u64, String> {
        let word = self.text()?;
        word.parse().map_err(|_| format!("`{}`: `{word}` is no number", self.line))
    }

    fn takes(&mut self, word: &str) -> bool {
        let there = self.rest.first() == Some(&word);
        if there {
            self.rest.remove(0);
        }
        there
    }

    fn plain(&mut self, word: &str) -> Result<Command, String> {
        Ok(match word {
            "set" => {
                let (key, value) = (self.bytes()?, self.bytes()?);
                let ttl = if self.takes("keep") {
                    Ttl::Keep
                } else if self.takes("ttl") {
                    Ttl::Millis(self.number()?)
                } else {
                    Ttl::Never
                };
                Command::Set { key, value, ttl }
            }
            "append" => Command::Append { key: self.bytes()?, tail: self.bytes()? },
            "del" => Command::Del { key: self.bytes()? },
            "expire" => Command::Expire { key: self.bytes()?, after: Some(self.number()?) },
            "persist" => Command::Expire { key: self.bytes()?, after: None },
            "ttl" => Command::TimeLeft { key: self.bytes()? },
            "advance" => Command::Advance { millis: self.number()? },
            "delrange" => Command::DelRange { first: self.bytes()?, last: self.bytes()? },
            "flush" => Command::Flush,
            "multi" | "exec" => Command::Multi { begins: word == "multi" },
            "incr" => {
                let (key, by) = (self.bytes()?, self.text()?);
                let by = by.parse().map_err(|_| format!("`{}`: `{by}` is no number", self.line))?;
                Command::Incr { key, by }
            }
            "copy" => {
                let (from, to) = (self.bytes()?, self.bytes()?);
                Command::Copy { from, to, replace: self.takes("replace"), renames: false }
            }
            "rename" => {
                let (from, to) = (self.bytes()?, self.bytes()?);
                Command::Copy { from, to, replace: true, renames: true }
            }
            "mset" => {
                let mut pairs = vec![(self.bytes()?, self.bytes()?)];
                while !self.rest.is_empty() {
                    pairs.push((self.bytes()?, self.bytes()?));
                }
                Command::SetAll { pairs }
            }
            "mdel" => {
                let mut keys = vec![self.bytes()?];
                while !self.rest.is_empty() {
                    keys.push(self.bytes()?);
                }
                Command::DelAll { keys }
            }
            "evict" => Command::Evict {
                count: self.number()?,
                draw: if self.takes("from") { self.number()? } else { 0 },
            },
            "compact" => Command::Compact { keys: self.number()? as usize },
            "drop" => Command::Drop { name: self.text()? },
            "joins" => Command::Joins,
            "limit" => Command::Limit { what: self.text()?, most: self.number()? as usize },
            "get" => Command::Get { key: self.bytes()? },
            "verify" if self.rest.is_empty() => {
                Command::Verify { first: Vec::new(), last: Vec::new() }
            }
            "verify" => Command::Verify { first: self.bytes()?, last: self.bytes()? },
            "scan" => Command::Scan,
            "explain" => Command::Explain { first: self.bytes()?, last: self.bytes()? },
            "stat" => Command::Stat { name: self.text()? },
            "watch" => Command::Watch { key: self.bytes()? },
            "follow" | "unfollow" => {
                let by = self.number()?;
                let by = u32::try_from(by).map_err(|_| format!("`{by}` is no follower"))?;
                let (first, last) = (self.bytes()?, self.bytes()?);
                match word {
                    "follow" => Command::Follow { by, first, last },
                    _ => Command::Unfollow { by, first, last },
                }
            }
            "told" => Command::Told,
            "watched" => Command::Watched,
            "unwatch" => Command::Unwatch,
            _ => return Err(format!("`{}`: `{word}` is no command", self.line)),
        })
    }

    fn range(&mut self, prefix: bool) -> Result<Command, String> {
        let first = self.bytes()?;
        let last = if prefix { headwater_base::prefix_end(&first) } else { self.bytes()? };
        let reverse = self.takes("rev");
        let limit = if self.takes("limit") { Some(self.number()?) } else { None };
        Ok(Command::Range { first, last, reverse, limit })
    }

    fn table(&mut self) -> Result<Command, String> {
        let name = self.bytes()?;
        let boundary = if self.takes("boundary") { Some(self.number()? as usize) } else { None };
        let source = if self.takes("source") { Some(self.text()?) } else { None };
        Ok(Command::Table { name, boundary, source })
    }

    fn load(&mut self) -> Result<usize, String> {
        Ok(if self.takes("load") { self.number()? as usize } else { 1 })
    }

    fn source(&mut self, word: &str) -> Result<Command, String> {
        if word == "loads" {
            return Ok(Command::Loads);
        }
        let source = self.text()?;
        Ok(match word {
            "at" if self.takes("set") => {
                Command::AtSource { source, key: self.bytes()?, value: Some(self.bytes()?) }
            }
            "at" if self.takes("del") => {
                Command::AtSource { source, key: self.bytes()?, value: None }
            }
            "deliver" if self.rest.is_empty() => Command::Deliver { source, most: usize::MAX },
            "deliver" => Command::Deliver { source, most: self.number()? as usize },
            "lose" => Command::Lose { source },
            "answer" => {
                let load = self.load()?;
                let as_of = if self.takes("ahead") {
                    AsOf::Ahead(self.number()?)
                } else if self.takes("late") {
                    AsOf::Late(self.number()?)
                } else {
                    AsOf::Late(0)
                };
                Command::Answer { source, load, as_of }
            }
            "fail" => {
                let message = String::from_utf8_lossy(&self.bytes()?).into_owned();
                Command::Fail { source, message, load: self.load()? }
            }
            _ => return Err(format!("`{}`: a source can `set` or `del`", self.line)),
        })
    }
}
