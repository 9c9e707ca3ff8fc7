//! What several shards do as one step is there as a whole or not at all after a crash: servers are killed at any moment, and folders are
//! put together in which the log of any shard ends before its part.
//!
//! `HEADWATER_ATOMIC_KILLS=200` kills more often, `HEADWATER_ATOMIC_SEED=7` begins with another seed.

use crate::partitions::home;
use crate::shards::Draws;
use crate::support::{Server, number_from};
use redis::{Connection, RedisResult, Value, cmd};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const DURABILITIES: [&str; 3] = ["always", "interval", "none"];

fn start(data: &Path, shards: u16, durability: &str) -> Server {
    let shards = shards.to_string();
    let options = ["--shards", &shards, "--durability", durability, "--data"];
    Server::start(&[&options[..], &[data.to_str().unwrap()]].concat())
}

fn kill(server: Server) {
    server.signal(Signal::KILL);
    server.wait();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Puts a folder together: of each shard that `set` has a bit for, what `one` has; of all else, what `other` has.
fn compose(to: &Path, set: u32, (one, other): (&Path, &Path), shards: u16) {
    let _none_yet = fs::remove_dir_all(to);
    copy(other, to);
    for at in (0..shards).filter(|at| set >> at & 1 == 1) {
        let name = format!("shard-{at}");
        fs::remove_dir_all(to.join(&name)).unwrap();
        copy(&one.join(&name), &to.join(&name));
    }
}

fn ask(client: &mut Connection, line: &str) -> RedisResult<Value> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap());
    words.for_each(|word| _ = command.arg(word));
    command.query(client)
}

fn all(client: &mut Connection) -> BTreeMap<String, String> {
    cmd("PREFIX").arg("a|").query(client).unwrap()
}

/// A key of each shard, and another one of each.
fn keys(client: &mut Connection, shards: u16) -> Vec<String> {
    let mut found = vec![None; 2 * usize::from(shards)];
    for number in 0.. {
        let key = format!("a|{number}");
        let at = home(client, &key).1 as usize;
        let place = if found[at].is_none() { at } else { at + usize::from(shards) };
        found[place].get_or_insert(key);
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.into_iter().flatten().collect()
}

/// What is there before, what is done, and the shards that keep it. `0` to `5` with an `@` are keys; those of one shard are three apart.
struct Case {
    before: &'static [&'static str],
    done: &'static [&'static str],
    writers: u32,
}

const CASES: [Case; 11] = [
    Case {
        before: &["MSET @0 10 @1 20 @2 30"],
        done: &["MULTI", "DECRBY @0 3", "INCRBY @1 2", "INCR @2", "EXEC"],
        writers: 0b111,
    },
    Case { before: &["SET @0 old"], done: &["MSET @0 x @1 y @4 z"], writers: 0b011 },
    Case { before: &[], done: &["MSETNX @0 x @1 y @2 z"], writers: 0b111 },
    Case { before: &["MSET @0 1 @1 2 @5 3"], done: &["DEL @0 @1 @5 @3"], writers: 0b111 },
    Case { before: &["SET @0 thing"], done: &["RENAME @0 @2"], writers: 0b101 },
    Case { before: &["SET @2 thing PX 90000000"], done: &["RENAMENX @2 @1"], writers: 0b110 },
    Case { before: &["SET @0 thing"], done: &["COPY @0 @2"], writers: 0b100 },
    // A value that goes on within the transaction, and what comes behind it.
    Case {
        before: &["MSET @0 1 @1 2 @2 3"],
        done: &["MULTI", "INCR @1", "COPY @1 @3", "INCRBY @1 5", "RENAME @1 @5", "INCR @5", "EXEC"],
        writers: 0b111,
    },
    // What decides it is changed by it. All shards whose keys it names note what was decided.
    Case {
        before: &["MSET @0 1 @1 2"],
        done: &[
            "MULTI",
            "MSETNX @3 x @4 y",
            "MSETNX @3 a @5 b",
            "APPEND @0 7",
            "COPY @0 @4",
            "EXEC",
        ],
        writers: 0b111,
    },
    Case {
        before: &["MSET @0 1 @1 2 @2 3"],
        done: &["MULTI", "DEL @0 @1", "COPY @2 @0", "DEL @2", "MSET @1 7 @5 8", "EXEC"],
        writers: 0b111,
    },
    Case {
        before: &["MSET @0 1 @1 2 @2 3"],
        done: &["MULTI", "RANGE.DEL a| a}", "SET @3 x EX 100000", "EXPIRE @0 5", "EXEC"],
        writers: 0b111,
    },
];

/// Reads what a folder holds, in a server that is killed then.
fn held_by(data: &Path, durability: &str) -> BTreeMap<String, String> {
    let server = start(data, 3, durability);
    let held = all(&mut server.client(2));
    kill(server);
    held
}

#[test]
fn whatever_logs_end_before_their_part_all_of_a_step_is_there_or_nothing() {
    end_before_their_part(0);
}

#[test]
fn whatever_logs_end_all_of_a_step_is_there_or_nothing_with_syncs_at_intervals() {
    end_before_their_part(1);
}

#[test]
fn whatever_logs_end_all_of_a_step_is_there_or_nothing_without_syncs() {
    end_before_their_part(2);
}

/// Every third of the cases, each with the same one of the [`DURABILITIES`].
fn end_before_their_part(turn: usize) {
    let place = tempfile::tempdir().unwrap();
    let [data, before, after, made, unfinished, again] =
        ["data", "before", "after", "made", "unfinished", "again"]
            .map(|name| place.path().join(name));
    let durability = DURABILITIES[turn];
    for (at, case) in CASES.iter().enumerate().skip(turn).step_by(3) {
        for folder in [&data, &before, &after] {
            let _none_yet = fs::remove_dir_all(folder);
        }
        let server = start(&data, 3, durability);
        let mut client = server.client(2);
        let keys = keys(&mut client, 3);
        let named = |line: &str| {
            let mut line = line.to_owned();
            keys.iter()
                .enumerate()
                .for_each(|(at, key)| line = line.replace(&format!("@{at}"), key));
            line
        };
        // A step that is whole, and whose records are there.
        ask(&mut client, &named("MSET @3 0 @4 0 @5 0")).unwrap();
        ask(&mut client, &named("DEL @3 @4 @5")).unwrap();
        case.before.iter().for_each(|line| _ = ask(&mut client, &named(line)).unwrap());
        let old = all(&mut client);
        kill(server);
        copy(&data, &before);
        let server = start(&data, 3, durability);
        let mut client = server.client(2);
        case.done.iter().for_each(|line| _ = ask(&mut client, &named(line)).unwrap());
        let new = all(&mut client);
        kill(server);
        copy(&data, &after);
        assert_ne!(old, new, "case {at}");
        let more = number_from("HEADWATER_ATOMIC_KILLS", 0) > 0;
        for set in 1..7_u32 {
            compose(&made, set, (&after, &before), 3);
            let expected = if set & case.writers == 0 { &old } else { &new };
            assert_eq!(held_by(&made, durability), *expected, "case {at}, shards {set:03b}");
            if set != 1 << (at % 3) && !more {
                continue;
            }
            // What was finished may be lost again, at any of them; or nothing of it is.
            compose(&unfinished, set, (&after, &before), 3);
            for kept in (1..8_u32).filter(|kept| more || kept.count_ones() == 1) {
                compose(&again, kept, (&made, &unfinished), 3);
                let what = format!("case {at}, shards {set:03b}, then {kept:03b}");
                assert_eq!(held_by(&again, durability), *expected, "{what}");
            }
        }
    }
}

#[test]
fn what_was_done_before_a_partition_moved_is_not_done_again() {
    for durability in DURABILITIES {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        let server = start(&data, 3, durability);
        let mut client = server.client(2);
        let keys = keys(&mut client, 3);
        let [from, to, other] = [0, 1, 4].map(|at| keys[at].as_str());
        ask(&mut client, &format!("MSET {from} thing {other} 5")).unwrap();
        ask(&mut client, &format!("RENAME {from} {to}")).unwrap();
        for line in ["MULTI", &format!("DECR {other}"), &format!("INCR {from}"), "EXEC"] {
            ask(&mut client, line).unwrap();
        }
        for key in [to, other] {
            let (partition, _) = home(&mut client, key);
            ask(&mut client, &format!("SHARD.MOVE {partition} 2")).unwrap();
        }
        ask(&mut client, &format!("SET {to} new")).unwrap();
        let held = all(&mut client);
        kill(server);
        let expected = [(from, "1"), (to, "new"), (other, "4")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(held, BTreeMap::from(expected));
        for _ in 0..2 {
            assert_eq!(held_by(&data, durability), held, "{durability}");
        }
    }
}

const CLIENTS: u64 = 4;
const ACCOUNTS: u64 = 7;
const EACH: i64 = 1000;

/// What a client does, over and over: whether it was acknowledged, and the answer is not what a crash leaves unknown.
fn step(client: &mut Connection, draws: &mut Draws, me: u64, round: u64) -> RedisResult<()> {
    let (from, to) = (draws.below(ACCOUNTS), draws.below(ACCOUNTS));
    let lines = [
        String::from("MULTI"),
        format!("DECRBY a|{from} {round}"),
        format!("INCRBY a|{to} {round}"),
        format!("SET n|{me} {round}"),
        String::from("EXEC"),
    ];
    lines.iter().try_for_each(|line| ask(client, line).map(drop))?;
    ask(client, &format!("MSET m|{me}|x {round} m|x{me} {round} m|y{me} {round}"))?;
    ask(client, &format!("RENAME r|{me}x{} r|{me}x{round}", round - 1))?;
    let lines = [
        String::from("MULTI"),
        format!("SET c|{me} {round}"),
        format!("COPY c|{me} c|y{me} REPLACE"),
        format!("DEL c|z{me}"),
        format!("RENAME c|y{me} c|z{me}"),
        String::from("EXEC"),
    ];
    lines.iter().try_for_each(|line| ask(client, line).map(drop))
}

/// Checks that everything is there as a whole; `acknowledged`: the rounds that each client has done. Gives the next round of each.
fn check(server: &Server, acknowledged: &[u64]) -> Vec<u64> {
    let mut client = server.client(2);
    let accounts: BTreeMap<String, i64> = cmd("PREFIX").arg("a|").query(&mut client).unwrap();
    assert_eq!(accounts.values().sum::<i64>(), ACCOUNTS as i64 * EACH, "{accounts:?}");
    let renamed: BTreeMap<String, u64> = cmd("PREFIX").arg("r|").query(&mut client).unwrap();
    assert!(renamed.values().all(|value| *value == 7), "{renamed:?}");
    let mut get = |key: String| -> Option<u64> { cmd("GET").arg(key).query(&mut client).unwrap() };
    let mut next = Vec::new();
    for (me, &round) in acknowledged.iter().enumerate() {
        let transferred = get(format!("n|{me}")).unwrap_or(0);
        let [set, other, third] = [format!("m|{me}|x"), format!("m|x{me}"), format!("m|y{me}")]
            .map(|key| get(key).unwrap_or(0));
        assert!(set == other && set == third, "client {me}: {set} {other} {third}");
        let [copied, shown] =
            [format!("c|{me}"), format!("c|z{me}")].map(|key| get(key).unwrap_or(0));
        assert_eq!(copied, shown, "client {me}");
        let prefix = format!("r|{me}x");
        let there = renamed.keys().filter_map(|key| key.strip_prefix(&prefix)?.parse().ok());
        let there: Vec<u64> = there.collect();
        let [renamed] = there[..] else { panic!("client {me}: its key is at {there:?}") };
        for done in [transferred, set, renamed, copied] {
            assert!(done == round || done == round + 1, "client {me}: {done} of {round}");
        }
        assert!(transferred >= set && set >= renamed && renamed >= copied, "client {me}");
        next.push(transferred.max(round));
    }
    next
}

/// Has the clients' rounds begun anew, where the last one was cut off in its middle.
fn mend(client: &mut Connection, round: u64, me: u64) {
    let lines = [
        format!("MSET n|{me} {round} m|{me}|x {round} m|x{me} {round} m|y{me} {round}"),
        format!("MSET c|{me} {round} c|z{me} {round} r|{me}x{round} 7"),
    ];
    lines.iter().for_each(|line| _ = ask(client, line).unwrap());
    if round > 0 {
        ask(client, &format!("DEL r|{me}x{}", round - 1)).unwrap();
    }
}

fn kills(durability: &str, shards: u16, kills: u64) {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let mut server = start(&data, shards, durability);
    let mut client = server.client(2);
    for number in 0..ACCOUNTS {
        ask(&mut client, &format!("SET a|{number} {EACH}")).unwrap();
    }
    let mut draws = Draws(number_from("HEADWATER_ATOMIC_SEED", 1));
    let mut rounds = vec![0; CLIENTS as usize];
    for _ in 0..kills {
        let mut client = server.client(2);
        for (me, &round) in rounds.iter().enumerate() {
            mend(&mut client, round, me as u64);
        }
        let (done, over) = (Mutex::new(rounds.clone()), AtomicBool::new(false));
        thread::scope(|scope| {
            for me in 0..CLIENTS {
                let (done, over) = (&done, &over);
                let mut draws = Draws(draws.below(u64::MAX));
                // Before the server is killed, however late the thread begins.
                let mut client = server.client(2);
                scope.spawn(move || {
                    loop {
                        let round = done.lock().unwrap()[me as usize] + 1;
                        match step(&mut client, &mut draws, me, round) {
                            Ok(()) => done.lock().unwrap()[me as usize] = round,
                            Err(error) => {
                                assert!(over.load(Ordering::SeqCst), "{error}");
                                return;
                            }
                        }
                    }
                });
            }
            thread::sleep(Duration::from_micros(50_000 + draws.below(150_000)));
            over.store(true, Ordering::SeqCst);
            server.signal(Signal::KILL);
        });
        server.wait();
        server = start(&data, shards, durability);
        if draws.below(2) == 0 {
            // Perhaps while it finishes what was cut off.
            kill(server);
            server = start(&data, shards, durability);
        }
        rounds = check(&server, &done.into_inner().unwrap());
    }
}

#[test]
fn a_kill_leaves_all_of_what_several_shards_do_as_one_step_or_nothing() {
    let each = number_from("HEADWATER_ATOMIC_KILLS", 9).div_ceil(3);
    for (durability, shards) in DURABILITIES.into_iter().zip([2, 3, 4]) {
        kills(durability, shards, each);
    }
}
