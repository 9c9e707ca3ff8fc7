//! Shards in processes of their own, whose connections are cut and made again while clients are busy, and which end and begin anew with what they have
//! kept.
//!
//! What must be so: everybody is answered; what is acknowledged is done, once, and what was refused as not executed is not; who reads what joins
//! give sees what it has written; and when all are connected again, everything that is derived, told or copied is right.

use super::busy::request;
use super::counting::{AskedAt, COUNTERS, Counter, CountingClients, DISK_PATIENCE, counter};
use super::mirror::{Mirror, Pairs};
use super::tests::{seeds, shards};
use super::world::{PATIENCE, World};
use headwater_config::{Config, Flow, Join};
use headwater_protocol::resp::ReplyCutter;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

thread_local! {
    /// What a test takes out to see that it is noticed: that frames are taken in once, and in order.
    static FRAMES_AS_THEY_COME: Cell<bool> = const { Cell::new(false) };
}

/// Turns in which comes what waits for its time while nothing happens, as a watch that is begun anew does.
const LATER: u32 = 2000;

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

/// Whether shards end and begin anew.
enum Restarts<'f> {
    /// They do not.
    Never,
    /// With what they have kept in this folder.
    Kept(&'f str),
    /// With nothing.
    Lost,
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
fn run(count: u16, seed: u64, ends: &Restarts<'_>) -> Result<Ran, String> {
    let folder = if let Restarts::Kept(folder) = ends { Some(*folder) } else { None };
    let world = &mut World::apart(count, seed, &|config| {
        if let Some(folder) = folder {
            config.data.data_dir = folder.to_owned();
        }
        if !matches!(ends, Restarts::Never) {
            begin_with_them(config);
        }
    });
    while !world.is_quiet() {
        world.turn();
    }
    if matches!(ends, Restarts::Never) {
        define_them(world)?;
    }
    let ranges = [["~count|", "~count}"], ["d|", "d}"], ["e", "f"], ["g|", "g}"]];
    let mut mirrors = ranges.map(|it| Mirror::begin(world, it));
    let mut clients = CountingClients::new(world, 2 + seed as usize % 5, seed, folder.is_some());
    // Half of the networks do worse than to break.
    world.faults.are_unnoticed = FRAMES_AS_THEY_COME.get();
    if seed.is_multiple_of(2) {
        (world.faults.twice, world.faults.overtaken, world.faults.lost) = (30, 300, 400);
        world.faults.damaged = 300;
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
        if !matches!(ends, Restarts::Never) && clients.draws.below(800) == 0 {
            let shard = clients.draws.below(world.shards());
            world.restart(shard);
            if folder.is_none() {
                clients.lose(shard, world.uptime);
            }
        }
        world.turn();
        mirrors.iter_mut().try_for_each(|mirror| mirror.look_at(world))?;
    }
    let faults = world.faults;
    (world.faults.twice, world.faults.overtaken, world.faults.lost) = (0, 0, 0);
    world.faults.damaged = 0;
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
    let lost = clients.lost_at.iter().any(Option::is_some);
    let mut turns = 0;
    while let Err(wrong) = check_end(&clients.counters, mirrors.each_ref().map(|it| &it.copy), lost)
    {
        turns += 1;
        let is_late =
            if folder.is_none() { turns > LATER } else { began.elapsed() > DISK_PATIENCE };
        if is_late {
            let reads = ["PREFIX d|all|", "VERIFY d| d}", "MGET e ~count|0 ~count|1 ~count|2"];
            let reads = reads.map(|words| format!("{words}: {}", read_now(words, world)));
            return Err(format!("{wrong}; a client reads {}", reads.join(", ")));
        }
        world.turn();
        mirrors.iter_mut().try_for_each(|mirror| mirror.look_at(world))?;
    }
    let CountingClients { answers, refused, ended, .. } = clients;
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

/// What there is when all are connected: counters, and what a join, a sum and a flow have made of them. Where something was lost, tasks of the flow
/// may have been as well.
fn check_end(known: &[Counter], copies: [&Pairs; 4], lost: bool) -> Result<(), String> {
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
        if lost && what == "a flow" {
            continue;
        }
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
            let done = run(count, seed, &Restarts::Never);
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
            let done = run(count, seed, &Restarts::Kept(folder.path().to_str().unwrap()));
            ended += done.unwrap_or_else(|wrong| panic!("{name}: {wrong}")).ended;
        }
    }
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    assert!(alone || ended > 10, "servers of clients have ended {ended} times");
}

#[test]
fn a_shard_that_ends_alone_and_has_kept_nothing_begins_anew_and_so_does_what_is_derived_of_it() {
    let mut ended = 0;
    for count in shards("2,3") {
        for seed in seeds(5) {
            let name =
                format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
            let done = run(count, seed, &Restarts::Lost);
            ended += done.unwrap_or_else(|wrong| panic!("{name}: {wrong}")).ended;
        }
    }
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    assert!(alone || ended > 30, "servers of clients have ended {ended} times");
}

/// What is wrong is found: where nobody looks at the numbers of frames, one that comes twice counts twice, and one that is lost is waited
/// for without end, or not missed.
#[test]
fn frames_that_are_taken_in_as_they_come_are_noticed() {
    let found = seeds(4).into_iter().filter(|seed| {
        FRAMES_AS_THEY_COME.set(true);
        let done = run(3, *seed & !1, &Restarts::Never);
        FRAMES_AS_THEY_COME.set(false);
        done.is_err()
    });
    let alone = std::env::var("HEADWATER_SIMULATED_SEED").is_ok();
    assert!(found.count() > 2 || alone);
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
        // CountingClients of all shards.
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
                let right = check_end(&known, mirrors.each_ref().map(|it| &it.copy), false);
                right.unwrap_or_else(|wrong| {
                    panic!("seed {seed}, {last:?} long after {first:?}, mirrors {at}: {wrong}")
                });
            }
        }
    }
}
