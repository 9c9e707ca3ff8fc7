//! Shards in processes of their own, whose connections are cut and made again while clients are busy, and which end and begin anew with what they have
//! kept.
//!
//! What must be so: everybody is answered; what is acknowledged is done, once, and what was refused as not executed is not; who reads what joins
//! give sees what it has written; and when all are connected again, everything that is derived, told or copied is right.

use super::busy::{Come, integer, request};
use super::mirror::{Mirror, Pairs, is_of_lost_shard};
use super::pipe::{Pipe, State};
use super::tests::{seeds, shards};
use super::world::{Draws, PATIENCE, World};
use headwater_config::{Config, Flow, Join};
use headwater_model::server::wire::{Frame, Wire};
use headwater_protocol::resp::ReplyCutter;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Counters, each with a home of its own.
const COUNTERS: usize = 6;

/// What a real disk needs no longer for.
const DISK_PATIENCE: Duration = Duration::from_secs(60);

/// What a client has asked.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Asked {
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
struct AskedAt {
    uptime: u64,
    real: Instant,
}

impl AskedAt {
    fn now(uptime: u64) -> Self {
        Self { uptime, real: Instant::now() }
    }

    /// Whether it has taken longer than it may.
    fn is_late(&self, uptime: u64, patience: u64, has_disk: bool) -> bool {
        uptime - self.uptime > patience && (!has_disk || self.real.elapsed() > DISK_PATIENCE)
    }
}

/// A client, and what it knows of each counter: no less than what it was told.
struct Client {
    pipe: Pipe,
    bytes: Vec<u8>,
    asked: Option<(Asked, usize, AskedAt)>,
    seen: [i64; COUNTERS],
    /// What it has written itself.
    wrote: [i64; COUNTERS],
    /// What the join has shown.
    derived: [i64; COUNTERS],
}

/// What is known of a counter.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// Additions that were acknowledged.
    done: i64,
    /// Those of which nobody knows.
    unknown: i64,
}

struct Clients {
    all: Vec<Client>,
    counters: [Counter; COUNTERS],
    draws: Draws,
    answers: u64,
    refused: u64,
    /// How often a client's server has ended.
    ended: u64,
    has_disk: bool,
}

fn counter(at: usize) -> String {
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

impl Clients {
    fn new(world: &mut World, count: usize, seed: u64, has_disk: bool) -> Self {
        let mut client = |_| Client {
            pipe: world.connect().0,
            bytes: Vec::new(),
            asked: None,
            seen: [0; COUNTERS],
            wrote: [0; COUNTERS],
            derived: [0; COUNTERS],
        };
        let all = (0..count).map(&mut client).collect();
        let (counters, draws) = ([Counter::default(); COUNTERS], Draws::new(seed ^ 0xa9));
        Self { all, counters, draws, answers: 0, refused: 0, ended: 0, has_disk }
    }

    fn step(&mut self, world: &mut World) -> Result<(), String> {
        let at = self.draws.below(self.all.len());
        match self.all[at].asked {
            None => {
                self.ask(at, world.uptime);
                Ok(())
            }
            Some(_) => self.look(at, world),
        }
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
        client.pipe.ask(&bytes);
    }

    /// Takes what has come for a client, and checks it when it is whole.
    fn look(&mut self, at: usize, world: &mut World) -> Result<(), String> {
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
        self.check(at, &asked, &all?)
            .map_err(|wrong| format!("{asked:?}: {wrong} ({})", bytes.escape_ascii()))
    }

    /// An addition was acknowledged with this number.
    fn counted(&mut self, at: usize, key: usize, number: i64) -> Result<(), String> {
        self.counters[key].done += 1;
        let seen = &mut self.all[at].seen[key];
        if number <= *seen {
            return Err(format!("counter {key} was at {seen} before"));
        }
        *seen = number;
        self.all[at].wrote[key] = number;
        Ok(())
    }

    fn check(&mut self, at: usize, asked: &Asked, all: &[Frame]) -> Result<(), String> {
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
                Some(number) => self.counted(at, *key, number),
                None => Err(String::from("it is no number")),
            },
            Asked::Read(key) => {
                let number = if *last == Frame::Null { Some(0) } else { integer(last) };
                self.is_not_older(at, *key, number)
            }
            Asked::Several => {
                let Frame::Array(values) = last else { return Err(String::from("it is no list")) };
                (0..COUNTERS).zip(values).try_for_each(|(key, value)| {
                    let number = if *value == Frame::Null { Some(0) } else { integer(value) };
                    self.is_not_older(at, key, number)
                })
            }
            Asked::Derived => self.check_derived(at, last),
            Asked::Transaction(key) => match last {
                Frame::Null | Frame::NullArray => Ok(()),
                // A part of it was refused: WATCH, of which the transaction does not hear.
                Frame::Array(replies) => match replies.first().and_then(integer) {
                    Some(number) => self.counted(at, *key, number),
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

    fn is_not_older(&mut self, at: usize, key: usize, number: Option<i64>) -> Result<(), String> {
        let seen = &mut self.all[at].seen[key];
        match number {
            Some(number) if number >= *seen => {
                *seen = number;
                Ok(())
            }
            number => Err(format!("counter {key} is {number:?}, and was {seen}")),
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
            let before = client.derived[key].max(client.wrote[key]);
            if number < before {
                return Err(format!("the copy of counter {key} is {number}, and was {before}"));
            }
            client.derived[key] = number;
        }
        Ok(())
    }
}

/// A join, a sum, and a flow, and what they copy.
const JOINS: [(&str, &str); 2] =
    [("d", "d|all|<n> = copy ~count|<n>"), ("e", "e = sum ~count|<n>")];
const FLOW: (&str, &str, &str) = ("g", "~count|<n>", "g|all|<n> = copy ~count|<n>");

/// Has shards begin with them.
fn begin_with_them(config: &mut Config) {
    let join = |(name, spec): (&str, &str)| Join { name: name.to_owned(), spec: spec.to_owned() };
    config.joins = JOINS.into_iter().map(join).collect();
    let (name, on, copy) = FLOW;
    let (name, on, copy) = (name.to_owned(), on.to_owned(), Some(copy.to_owned()));
    config.flows = vec![Flow { name, on, copy, ..Flow::default() }];
}

/// Has a client define them.
pub(super) fn define_them(world: &mut World) -> Result<(), String> {
    let (first, _) = world.connect();
    for (name, spec) in JOINS {
        first.ask(&request(&["JOIN.ADD", name, spec]));
    }
    let (name, on, copy) = FLOW;
    first.ask(&request(&["FLOW.ADD", name, "ON", on, "COPY", copy]));
    let mut replies = 0;
    while replies < 3 {
        world.turn();
        let mut state = first.state();
        let told: Vec<u8> = state.told.iter().copied().collect();
        if told.starts_with(b"-") {
            return Err(format!("it cannot be defined: {}", told.escape_ascii()));
        }
        if let Some(length) = ReplyCutter::default().cut(&told) {
            replies += 1;
            state.told.drain(..length);
        }
    }
    Ok(())
}

/// What has come about.
struct Ran {
    answers: u64,
    /// How many of them were refusals.
    refused: u64,
    /// How often clients' servers have ended.
    ended: u64,
    /// Frames that came twice, and were dropped.
    dropped: u64,
    /// Connections that have ended because a frame was missing.
    cut: u64,
}

/// Cuts connections, and makes them again, while clients are busy, and has shards end and begin anew where their data is kept in a folder.
fn run(count: u16, seed: u64, folder: Option<&str>) -> Result<Ran, String> {
    let world = &mut World::apart(count, seed, &|config| {
        if let Some(folder) = folder {
            config.data.data_dir = folder.to_owned();
            begin_with_them(config);
        }
    });
    while !world.is_quiet() {
        world.turn();
    }
    if folder.is_none() {
        define_them(world)?;
    }
    let ranges = [["~count|", "~count}"], ["d|", "d}"], ["e", "f"], ["g|", "g}"]];
    let mut mirrors = ranges.map(|it| Mirror::begin(world, it));
    let mut clients = Clients::new(world, 2 + seed as usize % 5, seed, folder.is_some());
    // Half of the networks do worse than to break.
    if seed.is_multiple_of(2) {
        (world.faults.twice, world.faults.overtaken, world.faults.lost) = (30, 300, 400);
    }
    for _ in 0..5000 {
        if clients.draws.below(3) == 0 {
            clients.step(world)?;
        }
        if clients.draws.below(150) == 0 {
            let one = clients.draws.below(world.shards());
            let other = (one + 1 + clients.draws.below(world.shards() - 1)) % world.shards();
            if world.are_connected(one, other) {
                world.cut(one, other);
            } else {
                world.connect_shards(one, other);
            }
        }
        if folder.is_some() && clients.draws.below(800) == 0 {
            world.restart(clients.draws.below(world.shards()));
        }
        world.turn();
        mirrors.iter_mut().try_for_each(|mirror| mirror.look_at(world))?;
    }
    let faults = world.faults;
    (world.faults.twice, world.faults.overtaken, world.faults.lost) = (0, 0, 0);
    // What was lost last nobody misses: connections that lose something, and carry on, are none.
    world.cut_all();
    world.connect_all();
    // Everybody is answered, and whatever is still on its way comes.
    let ended = AskedAt::now(world.uptime);
    loop {
        world.turn();
        mirrors.iter_mut().try_for_each(|mirror| mirror.look_at(world))?;
        let waits = clients.all.iter().position(|client| client.asked.is_some());
        if let Some(at) = waits {
            clients.look(at, world)?;
        } else if world.is_quiet() && mirrors.iter().all(Mirror::is_whole) {
            break;
        }
        if ended.is_late(world.uptime, 10 * PATIENCE, folder.is_some()) {
            return Err(String::from("it never ends"));
        }
    }
    // Flows wait for a real disk, of which the simulated time knows nothing.
    let began = Instant::now();
    while let Err(wrong) = check_end(&clients.counters, mirrors.each_ref().map(|it| &it.copy)) {
        if folder.is_none() || began.elapsed() > DISK_PATIENCE {
            let reads = ["PREFIX d|all|", "VERIFY d| d}", "MGET e ~count|0 ~count|1 ~count|2"];
            let reads = reads.map(|words| format!("{words}: {}", read_now(words, world)));
            return Err(format!("{wrong}; a client reads {}", reads.join(", ")));
        }
        world.turn();
        mirrors.iter_mut().try_for_each(|mirror| mirror.look_at(world))?;
    }
    let Clients { answers, refused, ended, .. } = clients;
    Ok(Ran { answers, refused, ended, dropped: faults.dropped, cut: faults.refused })
}

/// What a client is answered now.
fn read_now(words: &str, world: &mut World) -> String {
    let (pipe, _) = world.connect();
    pipe.ask(&request(&words.split(' ').collect::<Vec<_>>()));
    for _ in 0..10_000 {
        world.turn();
        let told: Vec<u8> = pipe.state().told.iter().copied().collect();
        if ReplyCutter::default().cut(&told).is_some() {
            return told.escape_ascii().to_string();
        }
    }
    String::from("nothing")
}

/// What there is when all are connected: counters, and what a join, a sum and a flow have made of them.
fn check_end(known: &[Counter], copies: [&Pairs; 4]) -> Result<(), String> {
    let [counters, copied, sum, done_later] = copies;
    let mut expected = BTreeMap::new();
    let mut total = 0;
    for (key, known) in known.iter().enumerate() {
        let value = counters.get(counter(key).as_bytes());
        let number = value.and_then(|value| String::from_utf8_lossy(value).parse().ok());
        let number: i64 = number.unwrap_or(0);
        if number < known.done || number > known.done + known.unknown {
            return Err(format!("counter {key} is {number}: {known:?}"));
        }
        total += number;
        if let Some(value) = value {
            expected.insert(key.to_string(), value.clone());
        }
    }
    for (what, prefix, copies) in [("a join", "d|all|", copied), ("a flow", "g|all|", done_later)] {
        let names = expected
            .iter()
            .map(|(key, value)| ([prefix, key].concat().into_bytes(), value.clone()));
        if !copies.iter().map(|(key, value)| (key.clone(), value.clone())).eq(names) {
            return Err(format!("{what} has {copies:?}, but there is {expected:?}"));
        }
    }
    let sum = sum.values().next().map_or(&b"0"[..], |sum| sum);
    if sum != total.to_string().into_bytes() {
        return Err(format!("the sum is {}, but {total} is", sum.escape_ascii()));
    }
    Ok(())
}

#[test]
fn whatever_connection_is_cut_everybody_is_answered_and_nothing_is_wrong() {
    let mut all = Ran { answers: 0, refused: 0, ended: 0, dropped: 0, cut: 0 };
    for count in shards("2,3,5") {
        for seed in seeds(20) {
            let name =
                format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
            let done = run(count, seed, None);
            let done = done.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            (all.answers, all.refused) = (all.answers + done.answers, all.refused + done.refused);
            (all.dropped, all.cut) = (all.dropped + done.dropped, all.cut + done.cut);
        }
    }
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    let Ran { answers, refused, dropped, cut, .. } = all;
    assert!(
        alone || refused > 100 && answers > 2 * refused,
        "{answers} answers, {refused} refused"
    );
    assert!(alone || dropped > 100 && cut > 20, "{dropped} frames came twice, {cut} were missed");
}

#[test]
fn a_shard_that_ends_alone_has_all_that_was_acknowledged_when_it_is_back() {
    let mut ended = 0;
    for count in shards("2,3") {
        for seed in seeds(2) {
            let name =
                format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
            let folder = tempfile::tempdir().unwrap();
            let done = run(count, seed, folder.path().to_str());
            ended += done.unwrap_or_else(|wrong| panic!("{name}: {wrong}")).ended;
        }
    }
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    assert!(alone || ended > 10, "servers of clients have ended {ended} times");
}

/// Time passes, and mirrors hear what they are told.
fn pass(world: &mut World, mirrors: &mut [Mirror], millis: u64) -> Result<(), String> {
    let until = world.uptime + millis;
    while world.uptime < until {
        world.turn();
        mirrors.iter_mut().try_for_each(|mirror| mirror.look_at(world))?;
    }
    Ok(())
}

/// Each counter goes on by one.
fn count_all(
    world: &mut World,
    mirrors: &mut [Mirror],
    known: &mut [Counter],
) -> Result<(), String> {
    let (client, _) = world.connect();
    for (key, known) in known.iter_mut().enumerate() {
        client.ask(&request(&["INCR", &counter(key)]));
        let mut told = Vec::new();
        while ReplyCutter::default().cut(&told).is_none() {
            pass(world, mirrors, 1)?;
            told.extend(client.state().told.drain(..));
        }
        if told[0] != b':' {
            return Err(format!("counter {key}: {}", told.escape_ascii()));
        }
        known.done += 1;
    }
    Ok(())
}

/// Two connections are lost, and there again one long after the other: a shard that is back may need data of the third one, which it does not have, before
/// what is watched of its keys can begin anew.
#[test]
fn a_watch_that_a_shard_could_not_begin_anew_is_begun_when_it_can() {
    let links = [(0, 1), (0, 2), (1, 2)];
    for seed in 1..=2 {
        let world = &mut World::apart(3, seed, &|_| {});
        while !world.is_quiet() {
            world.turn();
        }
        define_them(world).unwrap();
        let ranges = [["~count|", "~count}"], ["d|", "d}"], ["e", "f"], ["g|", "g}"]];
        // Clients of all shards.
        let mut all: Vec<[Mirror; 4]> =
            (0..6).map(|_| ranges.map(|it| Mirror::begin(world, it))).collect();
        let mirrors = all.as_flattened_mut();
        let mut known = [Counter::default(); COUNTERS];
        pass(world, mirrors, 1000).unwrap();
        for (first, last) in links.iter().flat_map(|one| links.map(|other| (*one, other))) {
            if first == last {
                continue;
            }
            world.cut(last.0, last.1);
            world.cut(first.0, first.1);
            pass(world, mirrors, 500).unwrap();
            world.connect_shards(first.0, first.1);
            // Longer than a shard waits for data of one that it cannot reach.
            pass(world, mirrors, 5000).unwrap();
            world.connect_shards(last.0, last.1);
            pass(world, mirrors, 3000).unwrap();
            count_all(world, mirrors, &mut known).unwrap();
            pass(world, mirrors, 3000).unwrap();
            for (at, mirrors) in mirrors.as_chunks::<4>().0.iter().enumerate() {
                let right = check_end(&known, mirrors.each_ref().map(|it| &it.copy));
                right.unwrap_or_else(|wrong| {
                    panic!("seed {seed}, {last:?} long after {first:?}, mirrors {at}: {wrong}")
                });
            }
        }
    }
}
