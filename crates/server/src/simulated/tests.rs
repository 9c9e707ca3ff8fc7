//! What clients of a simulated server are answered.

use super::busy::{Busy, COUNT, LENT_MAX, PAIR, PLACES, beginning, request};
use super::mirror::{Mirror, Pairs};
use super::world::{PATIENCE, Simulated, World};
use headwater_model::server::{ACCOUNTS, EACH, Script, account, check, draw, run_at};
use headwater_protocol::resp::ReplyCutter;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

pub(super) fn shards(otherwise: &str) -> Vec<u16> {
    let named = std::env::var("HEADWATER_SIMULATED_SHARDS");
    let named = named.unwrap_or_else(|_| otherwise.to_owned());
    named.split(',').map(|number| number.parse().expect("a number of shards")).collect()
}

/// Seeds that failed once, with two, three or five shards.
const FAILED_ONCE: [u64; 5] = [1453, 2768, 12432, 16482, 22886];

/// The seeds to run: one, or so many and those that failed once.
pub(super) fn seeds(otherwise: u64) -> Vec<u64> {
    match number("HEADWATER_SIMULATED_SEED") {
        Some(seed) => vec![seed],
        None => {
            let many = number("HEADWATER_SIMULATED_SEEDS").unwrap_or(otherwise);
            FAILED_ONCE.into_iter().chain(1..=many).collect()
        }
    }
}

/// What clients ask: what a file says, or what is drawn.
fn script_of(seed: u64) -> Script {
    match std::env::var("HEADWATER_SIMULATED_SCRIPT") {
        Ok(path) => Script::parse(&std::fs::read_to_string(path).unwrap()).unwrap(),
        Err(_) => draw::script(seed, &[]),
    }
}

pub(super) fn simulated(shards: u16, seed: u64) -> Simulated {
    Simulated(Rc::new(RefCell::new(World::new(shards, seed, &|_| {}))))
}

/// Runs a script on so many shards, whose threads have the order that is drawn by the seed; every reply must be the oracle's.
pub(super) fn check_replies(count: u16, seed: u64, script: &Script) {
    let checked = check(script, &mut |script| {
        let run = || run_at(script, &simulated(count, seed));
        catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(String::from("it panics")))
    });
    let name = format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
    checked.unwrap_or_else(|found| panic!("{name}: {found}"));
}

#[test]
fn every_reply_is_the_oracles_whatever_order_threads_have() {
    for count in shards("2,3,5") {
        for seed in seeds(60) {
            check_replies(count, seed, &script_of(seed));
        }
    }
}

#[test]
fn what_many_clients_do_at_once_is_seen_whole() {
    for count in shards("2,3,5") {
        let mut moves = 0;
        for seed in seeds(30) {
            let place = simulated(count, seed);
            let done = at_once(&place, seed, if seed.is_multiple_of(3) { 0 } else { count });
            let name =
                format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
            let answers = done.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            assert!(answers > 20, "{name}: {answers} answers");
            moves += place.0.borrow().moves;
        }
        assert!(number("HEADWATER_SIMULATED_SEED").is_some() || moves > 30, "{moves} moves");
    }
}

/// What a client is told, up to the end of one answer.
pub(super) fn told(world: &mut World, words: &[&str]) -> String {
    let (pipe, _) = world.connect();
    pipe.ask(&request(words));
    let began = world.uptime;
    loop {
        world.turn();
        let told: Vec<u8> = pipe.state().told.iter().copied().collect();
        if ReplyCutter::default().cut(&told).is_some() {
            return String::from_utf8_lossy(&told).into_owned();
        }
        assert!(world.uptime < began + PATIENCE, "{words:?} is not answered");
    }
}

/// Who names a position that a shard has not come to waits for it, and not for ever; meanwhile the shards have better to do than to ask one
/// another.
#[test]
fn a_position_that_no_shard_comes_to_is_waited_for_with_pauses_and_not_for_ever() {
    let world = &mut World::new(3, 1, &|_| {});
    told(world, &["JOIN.ADD", "d", "d|all|<n> = copy p|<n>"]);
    for at in 0..9 {
        told(world, &["SET", &format!("p|{at}"), "1"]);
    }
    told(world, &["PREFIX", "d|all|"]);
    let here = told(world, &["SHARD.POSITION"]);
    let here = here.lines().nth(1).unwrap().to_owned();
    let (run, _) = here.rsplit_once('-').unwrap();
    let shown = told(world, &["PREFIX", "d|all|", "AT", &here]);
    assert!(shown.starts_with("*18\r\n"), "{shown}");
    let (before, began) = (world.packets_sent(), world.uptime);
    let shown = told(world, &["PREFIX", "d|all|", "AT", &format!("{run}-9999999.9999999.9999999")]);
    assert!(shown.starts_with("-TRYAGAIN what this request is to show of shard "), "{shown}");
    let (packets, waited) = (world.packets_sent() - before, world.uptime - began);
    assert!((10_000..11_000).contains(&waited), "{waited} ms");
    assert!(packets < 2000, "{packets} packets");
    // One that comes about meanwhile is shown.
    let (pipe, _) = world.connect();
    let next: Vec<String> = here
        .rsplit_once('-')
        .unwrap()
        .1
        .split('.')
        .map(|number| (number.parse::<u64>().unwrap() + 2).to_string())
        .collect();
    pipe.ask(&request(&["PREFIX", "d|all|", "AT", &format!("{run}-{}", next.join("."))]));
    for at in 0..30 {
        told(world, &["SET", &format!("p|{at}"), "2"]);
    }
    while pipe.state().told.is_empty() {
        world.turn();
    }
    assert_eq!(pipe.state().told.front(), Some(&b'*'));
}

/// Has clients be busy for a while; how many answers they got.
fn at_once(place: &Simulated, seed: u64, moves_among: u16) -> Result<u64, String> {
    let world = &mut *place.0.borrow_mut();
    let (first, _) = world.connect();
    first.ask(&beginning());
    while first.state().told.is_empty() {
        world.turn();
    }
    // What joins give of keys of all shards, and of each.
    for (name, join) in [("a", "d|<n> = copy ~account|<n>"), ("b", "e = sum ~account|<n>")] {
        first.ask(&request(&["JOIN.ADD", name, join]));
    }
    let follows = "g|all|<n> = copy ~account|<n>";
    first.ask(&request(&["FLOW.ADD", "g", "ON", "~account|<n>", "COPY", follows, "BACKFILL"]));
    let mirrors = [["~", ""], ["d|", "d}"], ["e", "f"], ["g|", "g}"]];
    let mut mirrors = mirrors.map(|it| Mirror::begin(world, it));
    let mut busy = Busy::new(2 + seed as usize % 7, seed, false);
    busy.moves_among = moves_among;
    busy.defines = seed.is_multiple_of(2);
    busy.begin(world);
    for _ in 0..6000 {
        if world.draws.below(3) == 0 {
            busy.step(world);
        }
        world.turn();
        mirrors.iter_mut().try_for_each(Mirror::look)?;
    }
    busy.end(world)?;
    // Whatever is still on its way comes, and what is there for a while only goes.
    let ended = world.uptime;
    let is_over = |world: &World| world.uptime > ended + LENT_MAX + 1000 && world.is_quiet();
    while !(is_over(world) && mirrors.iter().all(Mirror::is_whole)) {
        world.turn();
        mirrors.iter_mut().try_for_each(Mirror::look)?;
        if world.uptime > ended + 10 * PATIENCE {
            return Err(String::from("it never ends"));
        }
    }
    let [all, copied, sum, done_later] = mirrors.map(|mirror| mirror.copy);
    let now = read_all(world)?;
    if now != all {
        return Err(format!("a mirror has {}, but there is {}", shown(&all), shown(&now)));
    }
    for (what, prefix, copies) in
        [("a join", &b"d|"[..], copied), ("a flow", b"g|all|", done_later)]
    {
        let accounts = now.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(b"~account|")?;
            Some(([prefix, name].concat(), value.clone()))
        });
        if !copies.iter().map(|(key, value)| (key.clone(), value.clone())).eq(accounts) {
            let (copies, now) = (shown(&copies), shown(&now));
            return Err(format!("{what} has copied {copies}, but there is {now}"));
        }
    }
    let total = (ACCOUNTS as i64 * EACH).to_string().into_bytes();
    if sum.into_values().collect::<Vec<_>>() != [total] {
        return Err(String::from("the sum is not that of the accounts"));
    }
    Ok(busy.answers)
}

#[test]
fn a_crash_at_any_moment_leaves_every_step_whole() {
    for count in shards("2,3") {
        for seed in seeds(10) {
            let done = crashes(count, seed);
            let name =
                format!("HEADWATER_SIMULATED_SEED={seed} HEADWATER_SIMULATED_SHARDS={count}");
            done.unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        }
    }
}

/// Has a server end between any two turns of its shards again and again, and begin anew with what it has kept.
fn crashes(shards: u16, seed: u64) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    let mut acknowledged = 0;
    for round in 0..6 {
        let seed = seed.wrapping_mul(100) + round;
        let mut world = World::new(shards, seed, &|config| config.data.data_dir.clone_from(&path));
        let world = &mut world;
        if round == 0 {
            let (first, _) = world.connect();
            first.ask(&beginning());
            while first.state().told.is_empty() {
                world.turn();
            }
        }
        let all = read_all(world)?;
        if !is_whole(&all) {
            return Err(format!("after crash {round}: {}", shown(&all)));
        }
        if number_at(&all, COUNT) < Some(acknowledged) {
            let shown = shown(&all);
            return Err(format!("after crash {round}: {acknowledged} were acknowledged: {shown}"));
        }
        let mut busy = Busy::new(4, seed, false);
        busy.moves_among = if seed.is_multiple_of(2) { shards } else { 0 };
        busy.count_on_from(number_at(&all, COUNT).unwrap_or(0));
        busy.begin(world);
        for _ in 0..200 + world.draws.below(600) {
            if world.draws.below(3) == 0 {
                busy.step(world);
            }
            world.turn();
        }
        busy.wrong.take().map_or(Ok(()), Err)?;
        acknowledged = busy.counted();
    }
    Ok(())
}

/// The number that a key holds.
pub(super) fn number_at(all: &Pairs, key: &str) -> Option<i64> {
    String::from_utf8_lossy(all.get(key.as_bytes())?).parse().ok()
}

/// Whether no step of the clients that are busy is there by half.
pub(super) fn is_whole(all: &Pairs) -> bool {
    let total: Option<i64> = (0..ACCOUNTS).map(|at| number_at(all, &account(at))).sum();
    let places = PLACES.iter().filter(|place| number_at(all, place).is_some()).count();
    total == Some(ACCOUNTS as i64 * EACH)
        && number_at(all, PAIR[0]) == number_at(all, PAIR[1])
        && places == 1
}

/// All keys of the clients that are busy.
pub(super) fn read_all(world: &mut World) -> Result<Pairs, String> {
    let mut mirror = Mirror::begin(world, ["~", ""]);
    while !mirror.is_whole() {
        world.turn();
        mirror.look()?;
    }
    Ok(mirror.copy)
}

pub(super) fn shown(pairs: &Pairs) -> String {
    let shown = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        format!("{} {}", key.escape_ascii(), value.escape_ascii())
    };
    pairs.iter().map(shown).collect::<Vec<_>>().join(", ")
}
