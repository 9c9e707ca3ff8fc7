//! CountingClients that count, in shards that are in processes of their own, and what each of them and all together know of the counters.
//!
//! A single counter is linearizable: whoever asks is told no less than anybody has been told before. What a shard has lost begins anew.

use super::busy::{Come, integer, request};
use super::mirror::is_of_lost_shard;
use super::pipe::{Pipe, State};
use super::tests::told;
use super::world::{Draws, PATIENCE, World};
use headwater_model::server::wire::{Frame, Wire};
use headwater_protocol::resp::ReplyCutter;
use std::time::{Duration, Instant};

/// Counters, each with a home of its own.
pub(super) const COUNTERS: usize = 6;

/// What a real disk needs no longer for.
pub(super) const DISK_PATIENCE: Duration = Duration::from_secs(60);

/// What a client has asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// A counter goes on.
    Count(usize),
    /// It is read.
    Read(usize),
    /// All of them are, as a join gives them at one shard.
    Derived,
    /// Several of them are.
    Several,
    /// One goes on, within a transaction that watches it.
    Transaction(usize),
    /// What is refused: one step of several shards.
    Divided,
}

/// When something was asked: what waits for a real disk may take real time, of which the simulated time knows nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AskedAt {
    uptime: u64,
    real: Instant,
}

impl AskedAt {
    pub(super) fn now(uptime: u64) -> Self {
        Self { uptime, real: Instant::now() }
    }

    /// Whether it has taken longer than it may.
    pub(super) fn is_late(&self, uptime: u64, patience: u64, has_disk: bool) -> bool {
        uptime - self.uptime > patience && (!has_disk || self.real.elapsed() > DISK_PATIENCE)
    }
}

/// A client, and what it knows of each counter: no less than what it was told.
pub(super) struct CountingClient {
    pipe: Pipe,
    bytes: Vec<u8>,
    pub(super) asked: Option<(Asked, usize, AskedAt)>,
    seen: [i64; COUNTERS],
    /// What it has written itself.
    wrote: [i64; COUNTERS],
    /// What the join has shown.
    derived: [i64; COUNTERS],
    /// The floors when it asked.
    floors: [i64; COUNTERS],
}

/// What is known of a counter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counter {
    /// Additions that were acknowledged.
    pub(super) done: i64,
    /// Those of which nobody knows.
    pub(super) unknown: i64,
}

pub(super) struct CountingClients {
    pub(super) all: Vec<CountingClient>,
    pub(super) counters: [Counter; COUNTERS],
    /// What each counter had come to at least, as far as anybody was told: whoever asks then is told no less.
    floors: [i64; COUNTERS],
    /// The home of each counter, and when what was there has been lost.
    homes: [usize; COUNTERS],
    pub(super) lost_at: [Option<u64>; COUNTERS],
    pub(super) draws: Draws,
    pub(super) answers: u64,
    pub(super) refused: u64,
    /// How often a client's server has ended.
    pub(super) ended: u64,
    has_disk: bool,
}

pub(super) fn counter(at: usize) -> String {
    format!("~count|{at}")
}

/// Whether a request was not executed, or nobody knows; `None`: it is no such answer.
fn is_executed(frame: &Frame) -> Option<bool> {
    let Frame::Error(text) = frame else { return None };
    if !text.starts_with("CLUSTERDOWN") {
        return None;
    }
    Some(text.contains("nobody knows"))
}

impl CountingClients {
    pub(super) fn new(world: &mut World, count: usize, seed: u64, has_disk: bool) -> Self {
        let mut client = |_| CountingClient {
            pipe: world.connect().0,
            bytes: Vec::new(),
            asked: None,
            seen: [0; COUNTERS],
            wrote: [0; COUNTERS],
            derived: [0; COUNTERS],
            floors: [0; COUNTERS],
        };
        let all = (0..count).map(&mut client).collect();
        let (counters, draws) = ([Counter::default(); COUNTERS], Draws::new(seed ^ 0xa9));
        let mut home = |at: usize| {
            let told = told(world, &["SHARD.HOME", &counter(at)]);
            let shard = told.trim_end().rsplit(':').next().and_then(|it| it.parse().ok());
            shard.expect("a shard's number")
        };
        let homes = core::array::from_fn(&mut home);
        Self {
            all,
            counters,
            floors: [0; COUNTERS],
            homes,
            lost_at: [None; COUNTERS],
            draws,
            answers: 0,
            refused: 0,
            ended: 0,
            has_disk,
        }
    }

    pub(super) fn step(&mut self, world: &mut World) -> Result<(), String> {
        let at = self.draws.below(self.all.len());
        match self.all[at].asked {
            None => {
                self.ask(at, world.uptime);
                Ok(())
            }
            Some(_) => self.look(at, world),
        }
    }

    /// A shard has ended, and has kept nothing: its counters begin anew.
    pub(super) fn lose(&mut self, shard: usize, now: u64) {
        for key in (0..COUNTERS).filter(|key| self.homes[*key] == shard) {
            self.counters[key] = Counter::default();
            (self.floors[key], self.lost_at[key]) = (0, Some(now));
            for client in &mut self.all {
                (client.seen[key], client.wrote[key], client.floors[key]) = (0, 0, 0);
            }
        }
    }

    /// Whether what was asked then, and is answered now, may have been executed before its counter was lost.
    fn may_be_lost(&self, key: usize, since: AskedAt) -> bool {
        self.lost_at[key].is_some_and(|at| since.uptime <= at)
    }

    /// The server of a client has ended: nobody knows what has become of what it asked. It goes on at another one.
    fn come_again(&mut self, at: usize, world: &mut World) {
        let client = &mut self.all[at];
        if let Some((Asked::Count(key) | Asked::Transaction(key), ..)) = client.asked.take() {
            self.counters[key].unknown += 1;
        }
        client.pipe = world.connect().0;
        client.bytes.clear();
        // What it has written itself is known of a connection.
        client.wrote = [0; COUNTERS];
        self.ended += 1;
    }

    fn ask(&mut self, at: usize, now: u64) {
        let key = self.draws.below(COUNTERS);
        let name = counter(key);
        let all: Vec<String> = (0..COUNTERS).map(counter).collect();
        let mut bytes = Vec::new();
        let mut say = |words: &[&str]| bytes.extend(request(words));
        let (asked, replies) = match self.draws.below(10) {
            0..4 => {
                say(&["INCR", &name]);
                (Asked::Count(key), 1)
            }
            4 => {
                say(&["GET", &name]);
                (Asked::Read(key), 1)
            }
            5 | 6 => {
                say(&["PREFIX", "d|all|"]);
                (Asked::Derived, 1)
            }
            7 => {
                let words = all.iter().map(String::as_str);
                say(&["MGET"].into_iter().chain(words).collect::<Vec<_>>());
                (Asked::Several, 1)
            }
            8 => {
                say(&["WATCH", &name]);
                say(&["MULTI"]);
                say(&["INCR", &name]);
                say(&["EXEC"]);
                (Asked::Transaction(key), 4)
            }
            _ => {
                say(&["MSET", &all[0], "0", &all[1], "0", &all[2], "0", &all[3], "0"]);
                (Asked::Divided, 1)
            }
        };
        let client = &mut self.all[at];
        client.asked = Some((asked, replies, AskedAt::now(now)));
        client.floors = self.floors;
        client.pipe.ask(&bytes);
    }

    /// Takes what has come for a client, and checks it when it is whole.
    pub(super) fn look(&mut self, at: usize, world: &mut World) -> Result<(), String> {
        let client = &mut self.all[at];
        let Some((asked, replies, since)) = client.asked.clone() else { return Ok(()) };
        let has_ended = {
            let State { told, server_ended, .. } = &mut *client.pipe.state();
            client.bytes.extend(told.drain(..));
            *server_ended
        };
        let (mut cutter, mut whole, mut end) = (ReplyCutter::default(), 0, 0);
        while let Some(length) = cutter.cut(&client.bytes[end..]) {
            (whole, end, cutter) = (whole + 1, end + length, ReplyCutter::default());
        }
        if whole < replies && has_ended {
            self.come_again(at, world);
            return Ok(());
        }
        if whole < replies {
            if since.is_late(world.uptime, PATIENCE, self.has_disk) {
                return Err(format!("{asked:?} has {whole} of {replies} replies"));
            }
            return Ok(());
        }
        let bytes = core::mem::take(&mut client.bytes);
        client.asked = None;
        let mut wire = Wire::over(Box::new(Come(bytes.iter().copied().collect())));
        let all: Result<Vec<Frame>, String> = (0..replies).map(|_| wire.frame()).collect();
        self.answers += 1;
        self.check(at, &asked, &all?, since)
            .map_err(|wrong| format!("{asked:?}: {wrong} ({})", bytes.escape_ascii()))
    }

    /// An addition was acknowledged with this number.
    fn counted(
        &mut self,
        at: usize,
        key: usize,
        number: i64,
        since: AskedAt,
    ) -> Result<(), String> {
        if self.may_be_lost(key, since) {
            self.counters[key].unknown += 1;
            return Ok(());
        }
        self.counters[key].done += 1;
        let client = &mut self.all[at];
        let before = client.seen[key].max(client.floors[key]);
        if number <= before {
            return Err(format!("counter {key} was at {before} before"));
        }
        (client.seen[key], client.wrote[key]) = (number, number);
        self.floors[key] = self.floors[key].max(number);
        Ok(())
    }

    fn check(
        &mut self,
        at: usize,
        asked: &Asked,
        all: &[Frame],
        since: AskedAt,
    ) -> Result<(), String> {
        let last = &all[all.len() - 1];
        if let Some(is_executed) = is_executed(last) {
            self.refused += 1;
            if let (Asked::Count(key) | Asked::Transaction(key), true) = (asked, is_executed) {
                self.counters[*key].unknown += 1;
            }
            return Ok(());
        }
        match asked {
            Asked::Count(key) => match integer(last) {
                Some(number) => self.counted(at, *key, number, since),
                None => Err(String::from("it is no number")),
            },
            Asked::Read(key) => {
                let number = if *last == Frame::Null { Some(0) } else { integer(last) };
                self.is_not_older(at, *key, number, since)
            }
            Asked::Several => {
                let Frame::Array(values) = last else { return Err(String::from("it is no list")) };
                (0..COUNTERS).zip(values).try_for_each(|(key, value)| {
                    let number = if *value == Frame::Null { Some(0) } else { integer(value) };
                    self.is_not_older(at, key, number, since)
                })
            }
            Asked::Derived => self.check_derived(at, last),
            Asked::Transaction(key) => match last {
                Frame::Null | Frame::NullArray => Ok(()),
                // A part of it was refused: WATCH, of which the transaction does not hear.
                Frame::Array(replies) => match replies.first().and_then(integer) {
                    Some(number) => self.counted(at, *key, number, since),
                    None => Err(String::from("it is no number")),
                },
                _ => Err(String::from("it is neither done nor given up")),
            },
            Asked::Divided => match last {
                Frame::Error(text) if text.starts_with("CROSSSLOT") => Ok(()),
                _ => Err(String::from("it is not refused")),
            },
        }
    }

    /// A single key is what somebody has last been told of it, or something later.
    fn is_not_older(
        &mut self,
        at: usize,
        key: usize,
        number: Option<i64>,
        since: AskedAt,
    ) -> Result<(), String> {
        if self.may_be_lost(key, since) {
            return Ok(());
        }
        let client = &mut self.all[at];
        let before = client.seen[key].max(client.floors[key]);
        match number {
            Some(number) if number >= before => {
                client.seen[key] = number;
                self.floors[key] = self.floors[key].max(number);
                Ok(())
            }
            number => Err(format!("counter {key} is {number:?}, and was {before}")),
        }
    }

    /// What the join gives is no older than what the client has written itself, or seen there.
    fn check_derived(&mut self, at: usize, last: &Frame) -> Result<(), String> {
        let Frame::Array(pairs) = last else {
            // Data of a shard is needed that cannot be reached.
            self.refused += 1;
            return match last {
                Frame::Error(text) if is_of_lost_shard(text) => Ok(()),
                _ => Err(String::from("it is neither there nor refused")),
            };
        };
        let mut shown = [0; COUNTERS];
        for pair in pairs.chunks(2) {
            let name = String::from_utf8(pair[0].text().unwrap_or_default()).unwrap_or_default();
            let key = name.rsplit('|').next().and_then(|it| it.parse::<usize>().ok());
            let (Some(key), Some(number)) = (key, integer(&pair[1])) else {
                return Err(String::from("it is no counter"));
            };
            shown[key] = number;
        }
        let client = &mut self.all[at];
        for (key, number) in shown.into_iter().enumerate() {
            if self.lost_at[key].is_some() {
                // A copy may be older than the loss for a while: in the end it is looked at.
                continue;
            }
            let before = client.derived[key].max(client.wrote[key]);
            if number < before {
                return Err(format!("the copy of counter {key} is {number}, and was {before}"));
            }
            client.derived[key] = number;
        }
        Ok(())
    }
}
