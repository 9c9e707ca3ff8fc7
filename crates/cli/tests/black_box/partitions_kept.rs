//! Partitions move where a store keeps data: answers stay the same, over restarts too, and whatever moment a crash hits, each
//! acknowledged write is there once, at its home.
//!
//! `HEADWATER_MOVE_KILLS=200` kills more often, `HEADWATER_MOVE_SEED=7` begins with another seed; for the comparisons
//! see `shards.rs`.

use crate::faults::Faults;
use crate::partitions::{home, while_partitions_move};
use crate::shards::{Draws, JOINS, answer_alike_unwatched, joined_alike, seeds};
use crate::support::{PATIENCE, Server, number_from, program, request};
use redis::{Connection, RedisResult, Value, cmd};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const SHARDS: u64 = 3;

fn options(place: &TempDir, durability: &str) -> Vec<String> {
    let path = place.path().join("data");
    let words = ["--shards", "3", "--data-plain", "yes", "--durability", durability, "--data"];
    let words = words.iter().map(|word| (*word).to_owned());
    words.chain([path.to_str().unwrap().to_owned()]).collect()
}

fn start(place: &TempDir, durability: &str) -> Server {
    let options = options(place, durability);
    Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>())
}

fn end(server: Server, how: Signal) {
    server.signal(how);
    server.wait();
}

fn all(client: &mut Connection, prefix: &str) -> BTreeMap<String, String> {
    cmd("PREFIX").arg(prefix).query(client).unwrap()
}

fn set(client: &mut Connection, key: &str, value: &str) {
    let () = cmd("SET").arg(key).arg(value).query(client).unwrap();
}

/// Moves the partition of a key.
fn try_move(client: &mut Connection, key: &str, to: u64) -> RedisResult<String> {
    let (partition, _) = home(client, key);
    cmd("SHARD.MOVE").arg(partition).arg(to).query(client)
}

#[test]
fn requests_are_answered_alike_while_kept_partitions_move() {
    let (place, one) = (TempDir::new().unwrap(), Server::start(&[]));
    let seeds = seeds(12);
    let middle = seeds.start + (seeds.end - seeds.start) / 2;
    for seeds in [seeds.start..middle, middle..seeds.end] {
        let three = start(&place, "interval");
        let moved = while_partitions_move(&three, || answer_alike_unwatched(&one, &three, seeds));
        assert!(moved > 0, "none has moved");
        end(three, Signal::TERM);
        let three = start(&place, "none");
        let (mut one, mut three) = (one.client(3), three.client(3));
        for table in ["u|", "v|"] {
            assert_eq!(all(&mut one, table), all(&mut three, table));
        }
        for key in (0..6).map(|at| format!("k{at}")) {
            let value = |client| cmd("GET").arg(&key).query::<Option<String>>(client).unwrap();
            assert_eq!(value(&mut one), value(&mut three), "{key}");
        }
    }
}

#[test]
fn joins_give_the_same_while_kept_partitions_move() {
    let (place, one) = (TempDir::new().unwrap(), Server::start(&[]));
    let add = |server: &Server| {
        for (name, spec) in JOINS {
            let mut add = cmd("JOIN.ADD");
            let _: Value = add.arg(name).arg(spec).query(&mut server.client(3)).unwrap();
        }
    };
    add(&one);
    add(&start(&place, "always"));
    let seeds = seeds(8);
    let middle = seeds.start + (seeds.end - seeds.start) / 2;
    for seeds in [seeds.start..middle, middle..seeds.end] {
        let three = start(&place, "none");
        let moved = while_partitions_move(&three, || joined_alike(&one, &three, seeds));
        assert!(moved > 0, "none has moved");
        end(three, Signal::TERM);
        let three = start(&place, "none");
        let (mut one, mut three) = (one.client(3), three.client(3));
        for table in ["s|", "p|", "vote|", "t|", "karma|", "page|", "hot|", "busy|"] {
            assert_eq!(all(&mut one, table), all(&mut three, table), "{table}");
        }
    }
}

#[test]
fn what_moves_keeps_its_time_and_its_flags() {
    let place = TempDir::new().unwrap();
    let mut options = options(&place, "interval");
    options.extend(["--memcached-port".to_owned(), "0".to_owned()]);
    let start = || Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    let server = start();
    let mut client = server.client(3);
    let () = cmd("TABLE.SET").arg("d").arg("BOUNDARY").arg(2).query(&mut client).unwrap();
    set(&mut client, "d|ann|1|x", "deep");
    let mut items = server.memcached();
    items.send(b"set d|ann|1|y 7 1000 3\r\ntwo\r\n");
    items.expect(b"STORED\r\n");
    let () = cmd("SET").arg("d|ann|1|z").arg(1).arg("PX").arg(200).query(&mut client).unwrap();
    let (_, shard) = home(&mut client, "d|ann|1|x");
    let to = (shard + 1) % SHARDS;
    assert_eq!(try_move(&mut client, "d|ann|1|x", to).unwrap(), "OK");
    // Where keys are on disk alone, a table is not placed otherwise.
    let refused = |client: &mut Connection| {
        let set = cmd("TABLE.SET").arg("d").arg("BOUNDARY").arg(1).query::<Value>(client);
        let error = set.unwrap_err().to_string();
        assert!(error.contains("only while the table has no keys"), "{error}");
    };
    refused(&mut client);
    end(server, Signal::TERM);
    thread::sleep(Duration::from_millis(200));
    let server = start();
    let mut client = server.client(3);
    refused(&mut client);
    for _ in 0..SHARDS {
        let (_, shard) = home(&mut client, "d|ann|1|x");
        let mut items = server.memcached();
        items.send(b"get d|ann|1|x d|ann|1|y d|ann|1|z\r\n");
        items.expect(b"VALUE d|ann|1|x 0 4\r\ndeep\r\nVALUE d|ann|1|y 7 3\r\ntwo\r\nEND\r\n");
        let left: u64 = cmd("TTL").arg("d|ann|1|y").query(&mut client).unwrap();
        assert!((900..=1000).contains(&left), "{left}");
        let () = try_move(&mut client, "d|ann|1|x", (shard + 1) % SHARDS).map(drop).unwrap();
    }
    assert_eq!(home(&mut client, "d|ann|1|x").1, to);
}

#[test]
fn what_is_too_large_to_move_at_once_stays() {
    let place = TempDir::new().unwrap();
    let mut options = options(&place, "none");
    options.extend(["--memory".to_owned(), "96mb".to_owned()]);
    let server = Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    let mut client = server.client(3);
    let value = "v".repeat(125_000);
    for at in 0..9 {
        set(&mut client, &format!("p|ann|{at}"), &value);
    }
    let (_, shard) = home(&mut client, "p|ann|0");
    let to = (shard + 1) % SHARDS;
    assert_eq!(try_move(&mut client, "p|ann|0", to).unwrap(), "OK");
    for at in 10..15 {
        set(&mut client, &format!("p|ann|{at}"), &value);
    }
    let error = try_move(&mut client, "p|ann|0", shard).unwrap_err().to_string();
    assert!(error.contains("more than 1572864 bytes"), "{error}");
    assert_eq!((home(&mut client, "p|ann|0").1, all(&mut client, "p|").len()), (to, 14));
    // Another one can.
    set(&mut client, "p|bob|0", "x");
    let (_, shard) = home(&mut client, "p|bob|0");
    assert_eq!(try_move(&mut client, "p|bob|0", (shard + 1) % SHARDS).unwrap(), "OK");
}

#[test]
#[expect(clippy::print_stdout, reason = "a long run says what it has shown")]
fn what_memory_has_no_room_for_moves_as_well() {
    const BOUND: u64 = 96 << 20;
    let place = TempDir::new().unwrap();
    let mut options = options(&place, "interval");
    options.extend(["--memory".to_owned(), "96mb".to_owned()]);
    let start = || Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>());
    let server = start();
    let mut client = server.client(3);
    let value = |group: u64| format!("{group:04000}");
    for group in 0..3000 {
        let mut all = redis::pipe();
        for at in 0..10 {
            all.cmd("SET").arg(format!("p|{group:04}|{at}")).arg(value(group)).ignore();
        }
        let () = all.query(&mut client).unwrap();
    }
    let check = |client: &mut Connection, group: u64| {
        let found = all(client, &format!("p|{group:04}|"));
        assert!(found.len() == 10 && found.values().all(|it| *it == value(group)), "{group}");
    };
    let mut worst = 0;
    for group in (0..3000).step_by(60) {
        let key = format!("p|{group:04}|");
        let (_, shard) = home(&mut client, &key);
        assert_eq!(try_move(&mut client, &key, (shard + 1) % SHARDS).unwrap(), "OK");
        worst = worst.max(server.memory_bytes("VmRSS"));
        check(&mut client, group);
    }
    end(server, Signal::TERM);
    let server = start();
    let mut client = server.client(3);
    (0..3000).for_each(|group| check(&mut client, group));
    let ratio = worst as f64 / BOUND as f64;
    println!("at most {ratio:.3} of the bound is resident while partitions move");
    assert!(ratio <= 1.05, "{ratio:.3} of the bound");
}

#[test]
fn a_damaged_map_is_an_error_at_start() {
    let place = TempDir::new().unwrap();
    let server = start(&place, "none");
    let mut client = server.client(3);
    set(&mut client, "p|ann|1", "x");
    let (_, shard) = home(&mut client, "p|ann|1");
    let file = place.path().join("data/headwater-placement");
    assert!(!file.exists());
    let () = try_move(&mut client, "p|ann|1", (shard + 1) % SHARDS).map(drop).unwrap();
    end(server, Signal::TERM);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("shards 3") && !text.contains("moving"), "{text:.80}");
    fs::write(&file, text.replacen("homes 0", "homes 1", 1)).unwrap();
    let output = program().args(["serve", "--port", "0"]).args(options(&place, "none")).output();
    let told = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(told.contains("headwater-placement is damaged"), "{told}");
    fs::write(&file, text).unwrap();
    let server = start(&place, "none");
    assert_eq!(all(&mut server.client(3), "p|").len(), 1);
}

/// The keys of a few partitions, one of which moves.
const GROUPS: [&str; 4] = ["ann", "bob", "cy", "dee"];

fn fill(client: &mut Connection) -> BTreeMap<String, String> {
    for at in 0..40 {
        set(client, &format!("p|{}|{at:02}", GROUPS[at % 4]), &at.to_string());
    }
    all(client, "p|")
}

/// Checks that the keys are these, and that no shard has any that it is not the home of: it would have them back with the
/// partition.
fn check_everywhere(client: &mut Connection, wanted: &BTreeMap<String, String>) {
    for _ in 0..SHARDS {
        assert_eq!(all(client, "p|"), *wanted);
        for group in GROUPS {
            let (_, shard) = home(client, &format!("p|{group}|"));
            let done = try_move(client, &format!("p|{group}|"), (shard + 1) % SHARDS);
            assert_eq!(done.unwrap(), "OK");
        }
    }
    assert_eq!(all(client, "p|"), *wanted);
}

#[test]
fn a_crash_between_any_two_steps_of_a_move_leaves_each_key_once() {
    let faults = Faults::new();
    // Before and after the file is put into place each time: as moving, at its new home, and as moved.
    for (fault, moved) in [
        ("place1", false),
        ("placed1", false),
        ("place2", false),
        ("placed2", true),
        ("place3", true),
        ("placed3", true),
    ] {
        let place = TempDir::new().unwrap();
        let server = faults.start(&options(&place, "always"));
        let mut client = server.client(3);
        let wanted = fill(&mut client);
        let (_, shard) = home(&mut client, "p|bob|");
        let to = (shard + 1) % SHARDS;
        faults.set(fault);
        let done = try_move(&mut client, "p|bob|", to);
        assert!(done.is_err(), "{fault}: it went on");
        assert!(!server.wait().success(), "{fault}");
        let server = start(&place, "always");
        let mut client = server.client(3);
        assert_eq!(home(&mut client, "p|bob|").1, if moved { to } else { shard }, "{fault}");
        let file = fs::read_to_string(place.path().join("data/headwater-placement"));
        assert!(!file.is_ok_and(|text| text.contains("moving")), "{fault}: it is not mended");
        // What is removed and written now is neither there again nor gone after a restart.
        let mut wanted = wanted;
        let () = cmd("DEL").arg("p|bob|01").query(&mut client).unwrap();
        wanted.remove("p|bob|01").unwrap();
        set(&mut client, "p|bob|99", "new");
        wanted.insert("p|bob|99".to_owned(), "new".to_owned());
        end(server, Signal::KILL);
        let server = start(&place, "always");
        check_everywhere(&mut server.client(3), &wanted);
    }
}

#[test]
fn a_move_that_cannot_be_noted_is_undone_or_ends_the_server() {
    let faults = Faults::new();
    for (fault, text) in [("stay1", "headwater-placement"), ("stay2", "headwater-placement")] {
        let place = TempDir::new().unwrap();
        let server = faults.start(&options(&place, "always"));
        let mut client = server.client(3);
        let wanted = fill(&mut client);
        let (_, shard) = home(&mut client, "p|bob|");
        faults.set(fault);
        let error = try_move(&mut client, "p|bob|", (shard + 1) % SHARDS).unwrap_err().to_string();
        assert!(error.contains(text), "{fault}: {error}");
        assert_eq!(home(&mut client, "p|bob|").1, shard);
        faults.set("none");
        check_everywhere(&mut client, &wanted);
        end(server, Signal::KILL);
        check_everywhere(&mut start(&place, "always").client(3), &wanted);
    }
    // It is not known which file is there after a failure of the machine: nothing may be written before that is clear.
    let place = TempDir::new().unwrap();
    let server = faults.start(&options(&place, "always"));
    let mut client = server.client(3);
    let wanted = fill(&mut client);
    let (_, shard) = home(&mut client, "p|bob|");
    faults.set("unsure2");
    assert!(try_move(&mut client, "p|bob|", (shard + 1) % SHARDS).is_err());
    assert!(!server.wait().success());
    check_everywhere(&mut start(&place, "always").client(3), &wanted);
}

/// Writes of one client, in order: a key, its value or none, and whether it was acknowledged.
type Wrote = Vec<(String, Option<String>, bool)>;

/// Writes and removes keys of all groups until the server is gone.
fn write_until_it_ends(port: u16, client: u64, seed: u64) -> Wrote {
    let (mut draws, mut wrote) = (Draws(seed ^ client << 32), Wrote::new());
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return wrote };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    loop {
        let (first, mut bytes) = (wrote.len(), Vec::new());
        for _ in 0..8 {
            let key = format!("p|{}|{client}-{:02}", draws.of(&GROUPS), draws.below(60));
            let value = (draws.below(4) > 0).then(|| draws.below(1 << 30).to_string());
            match &value {
                Some(value) => bytes.extend(request(&[b"SET", key.as_bytes(), value.as_bytes()])),
                None => bytes.extend(request(&[b"DEL", key.as_bytes()])),
            }
            wrote.push((key, value, false));
        }
        if stream.write_all(&bytes).is_err() {
            return wrote;
        }
        for (_, value, acknowledged) in &mut wrote[first..] {
            let mut answer = [0; 5];
            let answer = &mut answer[..if value.is_some() { 5 } else { 4 }];
            if stream.read_exact(answer).is_err() {
                return wrote;
            }
            assert!(matches!(&*answer, b"+OK\r\n" | b":0\r\n" | b":1\r\n"), "{answer:?}");
            *acknowledged = true;
        }
    }
}

fn move_until_it_ends(port: u16, seed: u64, ends: &AtomicBool) -> u64 {
    let (mut draws, mut moved) = (Draws(seed), 0);
    let url = format!("redis://127.0.0.1:{port}/");
    let Ok(mut client) = redis::Client::open(url).unwrap().get_connection() else { return 0 };
    while !ends.load(Ordering::Relaxed) {
        let (group, to) = (draws.of(&GROUPS), draws.below(SHARDS));
        let mut ask = cmd("SHARD.HOME");
        let known = ask.arg(format!("p|{group}|")).query::<BTreeMap<String, u64>>(&mut client);
        let Ok(known) = known else { return moved };
        let done = cmd("SHARD.MOVE").arg(known["partition"]).arg(to).query::<String>(&mut client);
        match done {
            Ok(_) => moved += 1,
            Err(error) if error.to_string().contains("try again") => {}
            Err(_) => return moved,
        }
    }
    moved
}

#[test]
#[expect(clippy::print_stdout, reason = "a long run says what it has shown")]
fn no_acknowledged_write_is_lost_when_the_server_is_killed_while_partitions_move() {
    const CLIENTS: u64 = 3;
    let rounds = number_from("HEADWATER_MOVE_KILLS", 12);
    let first = number_from("HEADWATER_MOVE_SEED", 1);
    let place = TempDir::new().unwrap();
    // What each key may hold.
    let mut known = BTreeMap::<String, Vec<Option<String>>>::new();
    let (mut moved, mut writes) = (0, 0);
    for seed in first..first + rounds {
        println!("seed {seed}");
        let server = start(&place, "always");
        let (port, ends) = (server.port, AtomicBool::new(false));
        let wrote: Vec<Wrote> = thread::scope(|scope| {
            let writer = |client| scope.spawn(move || write_until_it_ends(port, client, seed));
            let writers: Vec<_> = (0..CLIENTS).map(writer).collect();
            let mover = scope.spawn(|| move_until_it_ends(port, seed, &ends));
            // At no particular moment.
            thread::sleep(Duration::from_micros(30_000 + Draws(seed).below(270_000)));
            server.signal(Signal::KILL);
            ends.store(true, Ordering::Relaxed);
            moved += mover.join().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        server.wait();
        for (key, value, acknowledged) in wrote.into_iter().flatten() {
            let may = known.entry(key).or_insert_with(|| vec![None]);
            if acknowledged {
                may.clear();
                writes += 1;
            }
            may.push(value);
        }
        let server = start(&place, "always");
        let mut client = server.client(3);
        let found = all(&mut client, "p|");
        for (key, may) in &mut known {
            let holds = found.get(key).cloned();
            assert!(may.contains(&holds), "seed {seed}: {key} holds {holds:?}, not one of {may:?}");
            *may = vec![holds];
        }
        let more = found.keys().find(|key| !known.contains_key(*key));
        assert_eq!(more, None, "seed {seed}");
        if seed % 3 == 0 || seed + 1 == first + rounds {
            check_everywhere(&mut client, &found);
        }
        end(server, Signal::KILL);
    }
    assert!(writes > 0 && moved > 0, "{writes} writes, {moved} moves");
    println!(
        "{rounds} kills, {moved} moves: {writes} acknowledged writes are all there, each once"
    );
}
