//! Flows through failures: `kill -9` at any moment under load, disks that are full, tear writes, or fail to sync. What was
//! acknowledged has its effects afterwards, and effects that are counted are counted once.
//!
//! `HEADWATER_FLOW_KILLS=300` kills more often than the usual few times.

use crate::faults::Faults;
use crate::flows::{BALANCE, ask, count, settle};
use crate::receiver::Receiver;
use crate::shards::Draws;
use crate::support::{PATIENCE, Server, Stops, request};
use redis::{Connection, Value, cmd, pipe};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FOLLOWERS: u64 = 700;
/// Requests sent at once.
const BATCH: u64 = 16;

fn options(data: &Path, (shards, durability): Kind) -> Vec<String> {
    let path = data.to_str().unwrap();
    let words = ["--data", path, "--durability", durability, "--memcached-port", "0", "--shards"];
    words.into_iter().map(String::from).chain([shards.to_string()]).collect()
}

/// How many shards a server has, and which durability.
type Kind = (u16, &'static str);

fn start(data: &Path, kind: Kind) -> Server {
    let options = options(data, kind);
    Server::start(&options.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Votes that a function counts, and posts that are copied to followers.
fn declare(client: &mut Connection) {
    // Where there are several shards, a vote lives on any, and is counted on another.
    let () = ask(client, &["TABLE.SET", "vote", "BOUNDARY", "2"]).unwrap();
    let module = wat::parse_str(BALANCE).unwrap();
    let () = cmd("FN.LOAD").arg("balance").arg(module).query(client).unwrap();
    let votes = ["FLOW.ADD", "votes", "ON", "vote|<a>|<b>", "CALL", "balance", "KEY", "karma|<a>"];
    let _: Value = ask(client, &votes).unwrap();
    let fan = "t|<user>|<time>|<poster> = check f|<poster>|<user> copy p|<poster>|<time>";
    let words = ["FLOW.ADD", "fan", "ON", "p|<poster>|<time>", "FANOUT", fan];
    let _: Value = ask(client, &words).unwrap();
    // What is shown is counted: an output that is put twice would be.
    let shown = ["FLOW.ADD", "shown", "ON", "t|<user>|<time>|<poster>", "CALL", "balance"];
    let _: Value = ask(client, &[&shown[..], &["KEY", "sum|<poster>"]].concat()).unwrap();
    let mut batch = pipe();
    for user in 0..FOLLOWERS {
        batch.set(format!("f|bob|{user:04}"), "").ignore();
    }
    let () = batch.query(client).unwrap();
}

/// What a client has sent, and how much of it was acknowledged: numbers from `from` on.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: u64,
    acknowledged: u64,
}

/// Votes, and posts now and then, until the server is gone or refuses. Through memcached's protocol, or RESP.
fn vote(address: SocketAddr, memcached: bool, name: &str, from: u64, ends: &AtomicBool) -> Sent {
    let mut sent = Sent { from, acknowledged: from };
    let Ok(mut stream) = TcpStream::connect(address) else { return sent };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut next = from;
    while !ends.load(Ordering::Relaxed) {
        let mut bytes = Vec::new();
        for number in next..next + BATCH {
            // One in sixteen is a post.
            let key = if number % BATCH == 7 {
                format!("p|bob|{name}-{number:06}")
            } else {
                format!("vote|{name}|{number:06}")
            };
            if memcached {
                bytes.extend(format!("set {key} 0 0 4\r\ntext\r\n").as_bytes());
            } else {
                bytes.extend(request(&[b"SET", key.as_bytes(), b"text"]));
            }
        }
        next += BATCH;
        if stream.write_all(&bytes).is_err() {
            break;
        }
        let good: &[u8] = if memcached { b"STORED\r\n" } else { b"+OK\r\n" };
        let mut answer = vec![0; good.len()];
        for _ in 0..BATCH {
            if stream.read_exact(&mut answer).is_err() || answer != good {
                return sent;
            }
            sent.acknowledged += 1;
        }
    }
    sent
}

/// Moves partitions until the server is gone; how many have moved.
fn keep_moving(mut client: Connection, name: &str) -> u64 {
    let (mut moved, mut draws) = (0, Draws(1));
    loop {
        // One that is written to all the time, or any.
        let partition = match draws.below(4) {
            0 => {
                let key = format!("karma|{name}");
                let home = ask::<BTreeMap<String, u64>>(&mut client, &["SHARD.HOME", &key]);
                let Ok(home) = home else { return moved };
                home["partition"]
            }
            _ => draws.below(4096),
        };
        let (partition, to) = (partition.to_string(), draws.below(3).to_string());
        match ask::<String>(&mut client, &["SHARD.MOVE", &partition, &to]) {
            Ok(_) => moved += 1,
            Err(error) if error.is_connection_dropped() || error.is_io_error() => return moved,
            Err(error) => assert!(error.to_string().contains("try again"), "{error}"),
        }
    }
}

fn memcached_of(server: &Server) -> SocketAddr {
    let line = server.told().lines().find_map(|line| line.strip_prefix("memcached's protocol on "));
    line.expect("the line that says where").parse().unwrap()
}

fn settle_all(client: &mut Connection) {
    // What causes others first.
    ["votes", "fan", "shown"].iter().for_each(|flow| settle(client, flow));
}

/// All that was acknowledged is there, if all of that is `safe`; all effects are, and no vote was counted twice.
fn check(client: &mut Connection, sent: &[(String, Sent)], safe: bool) {
    settle_all(client);
    for (name, sent) in sent {
        let is_post = |number: &u64| number % BATCH == 7;
        let end = if safe { sent.acknowledged } else { sent.from };
        for number in sent.from..end {
            let key = if is_post(&number) {
                format!("p|bob|{name}-{number:06}")
            } else {
                format!("vote|{name}|{number:06}")
            };
            assert_eq!(ask(client, &["EXISTS", &key]), Ok(1), "{key} is lost");
        }
        let there = count(client, &format!("vote|{name}|"));
        let karma: Option<u64> = ask(client, &["GET", &format!("karma|{name}")]).unwrap();
        assert_eq!(karma.unwrap_or(0), there, "votes of {name}");
    }
    let posts: Vec<String> = ask(client, &["PREFIX", "p|bob|", "KEYS"]).unwrap();
    let outputs = posts.len() as u64 * FOLLOWERS;
    assert_eq!(count(client, "t|"), outputs);
    let sum: Option<u64> = ask(client, &["GET", "sum|bob"]).unwrap();
    assert_eq!(sum.unwrap_or(0), outputs);
    for user in [0, FOLLOWERS / 2, FOLLOWERS - 1] {
        assert_eq!(count(client, &format!("t|{user:04}|")), posts.len() as u64);
    }
}

#[test]
fn no_effect_is_missing_or_double_when_the_server_is_killed_at_any_moment() {
    kill_at_any_moment((1, "always"));
}

#[test]
fn no_effect_on_other_shards_is_missing_or_double_when_the_server_is_killed_at_any_moment() {
    kill_at_any_moment((3, "always"));
}

#[test]
fn what_a_kill_leaves_of_writes_and_of_effects_agrees_without_syncs() {
    kill_at_any_moment((3, "interval"));
}

#[expect(clippy::print_stdout, reason = "a long run says what it has shown")]
fn kill_at_any_moment(kind: Kind) {
    let asked = std::env::var("HEADWATER_FLOW_KILLS").ok();
    let rounds: u64 = asked.and_then(|text| text.parse().ok()).unwrap_or(4);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = start(&data, kind);
    declare(&mut server.client(3));
    server.signal(Signal::TERM);
    server.wait();
    let (mut acknowledged, mut moved) = (0, 0);
    for round in 0..10 * rounds {
        // On a machine with much to do, nothing may be acknowledged at first: it gets more time then.
        let more = round / rounds;
        if more > 0 && acknowledged > 0 {
            break;
        }
        let server = start(&data, kind);
        let ends = AtomicBool::new(false);
        let addresses = [SocketAddr::from(([127, 0, 0, 1], server.port)), memcached_of(&server)];
        // New names each time, so that checks do not grow; every few rounds it is killed while it recovers, too.
        let sent: Vec<(String, Sent)> = std::thread::scope(|scope| {
            let mover = server.client(3);
            let mover = (kind.0 > 1 && round % 2 == 1)
                .then(|| scope.spawn(move || keep_moving(mover, &format!("r{round}c1"))));
            let clients: Vec<_> = (0..4)
                .map(|client| {
                    let (ends, name) = (&ends, format!("r{round}c{client}"));
                    let (at, memcached) = (addresses[client % 2], client % 2 == 1);
                    scope.spawn(move || (name.clone(), vote(at, memcached, &name, 0, ends)))
                })
                .collect();
            let longer = if mover.is_some() { 300_000 } else { 10_000 };
            let micros = (longer + round * 7919 % 120_000) * (1 + more);
            std::thread::sleep(Duration::from_micros(micros));
            server.signal(Signal::KILL);
            ends.store(true, Ordering::Relaxed);
            moved += mover.map_or(0, |mover| mover.join().unwrap());
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        server.wait();
        if round % 3 == 2 {
            let server = start(&data, kind);
            std::thread::sleep(Duration::from_micros(round * 1237 % 30_000));
            server.signal(Signal::KILL);
            server.wait();
        }
        let server = start(&data, kind);
        let mut client = server.client(3);
        check(&mut client, &sent, kind.1 == "always");
        acknowledged += sent.iter().map(|(_, sent)| sent.acknowledged).sum::<u64>();
        // What is left would make later rounds long.
        let _: u64 = ask(&mut client, &["RANGE.DEL", "p|", "p}"]).unwrap();
        settle_all(&mut client);
        assert_eq!(count(&mut client, "t|"), 0);
        drop(client);
        server.signal(Signal::KILL);
        server.wait();
    }
    assert!(acknowledged > 0, "nothing was acknowledged");
    println!(
        "{rounds} kills, {kind:?}: {acknowledged} acknowledged writes have their effects, once; {moved} moves"
    );
}

/// Writes of eight keys, each with a greater number, until the server is gone.
fn count_up(server: &Server, from: u64, ends: &AtomicBool) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut next = from;
    while !ends.load(Ordering::Relaxed) {
        let mut bytes = Vec::new();
        for number in next..next + 8 {
            let key = format!("n|{}", number % 8);
            bytes.extend(request(&[b"SET", key.as_bytes(), number.to_string().as_bytes()]));
        }
        next += 8;
        let mut answers = [0; 8 * b"+OK\r\n".len()];
        if stream.write_all(&bytes).is_err() || stream.read_exact(&mut answers).is_err() {
            break;
        }
    }
    next
}

#[test]
fn receivers_of_webhooks_can_tell_which_post_is_newer_whatever_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let url = format!("http://{}/", receiver.address);
    let mut next = 0;
    for (round, shards) in [1, 1, 3].into_iter().enumerate() {
        let data = folder.path().join(format!("data-{shards}"));
        let start = || start(&data, (shards, "interval"));
        let declared = start();
        // The writer waits for the receiver: there is no more to be posted than that.
        let words = ["FLOW.ADD", "hook", "ON", "n|<id>", "HTTP", "POST", &url];
        let words = [&words[..], &["BACKLOG", "50", "BLOCK"]].concat();
        let _known: Result<Value, _> = ask(&mut declared.client(3), &words);
        drop(declared);
        for kill in 0..3 {
            let server = start();
            let ends = AtomicBool::new(false);
            let before = receiver.got().len();
            next = std::thread::scope(|scope| {
                let writer = scope.spawn(|| count_up(&server, next, &ends));
                let stops = Stops(&ends);
                receiver.wait_for(before + 20 + 10 * (round + kill));
                server.signal(Signal::KILL);
                drop(stops);
                writer.join().unwrap()
            });
            server.wait();
        }
        let server = start();
        let mut client = server.client(3);
        settle(&mut client, "hook");
        // Who keeps the greatest number of each key has what the server has.
        let mut kept: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut values: BTreeMap<u64, u64> = BTreeMap::new();
        for got in receiver.got() {
            let sequence = got.body["sequence"].as_u64().unwrap();
            assert!(got.head.contains(&format!("headwater-sequence: {sequence}\r\n")));
            let value = got.body["value"].as_str().unwrap().parse().unwrap();
            let key = got.body["key"].as_str().unwrap().to_owned();
            assert!(value % 8 == key[2..].parse::<u64>().unwrap());
            let of_key = kept.entry(key).or_insert((sequence, value));
            *of_key = (sequence, value).max(*of_key);
            if shards == 1 {
                assert_eq!(
                    *values.entry(sequence).or_insert(value),
                    value,
                    "one number, one write"
                );
            }
        }
        if shards == 1 {
            let by_number: Vec<u64> = values.into_values().collect();
            assert!(by_number.is_sorted(), "numbers are in the order of the writes");
        }
        for (key, (_, value)) in kept {
            assert_eq!(ask(&mut client, &["GET", &key]), Ok(value), "{key}");
        }
    }
}

#[test]
fn flows_go_on_after_a_store_that_failed() {
    let faults = Faults::new();
    let folder = tempfile::tempdir().unwrap();
    for fault in ["sync", "full", "torn"] {
        let data = folder.path().join(fault);
        let server = faults.start(&options(&data, (1, "always")));
        let mut client = server.client(3);
        declare(&mut client);
        let ends = AtomicBool::new(false);
        let addresses = [SocketAddr::from(([127, 0, 0, 1], server.port)), memcached_of(&server)];
        let began = Instant::now();
        let sent: Vec<(String, Sent)> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..2)
                .map(|client| {
                    let (ends, name) = (&ends, format!("c{client}"));
                    let (at, memcached) = (addresses[client], client == 1);
                    scope.spawn(move || (name.clone(), vote(at, memcached, &name, 0, ends)))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(150));
            faults.set(fault);
            // Each of them ends by itself: it was refused, or its connection ended.
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert!(began.elapsed() < PATIENCE);
        assert!(sent.iter().all(|(_, sent)| sent.acknowledged > 0), "{fault}: {sent:?}");
        if fault == "torn" {
            server.wait();
        } else {
            // It goes on reading, and refuses writes.
            let mut client = server.client(3);
            assert_eq!(ask(&mut client, &["EXISTS", "vote|c0|000000"]), Ok(1));
            let refused = ask::<()>(&mut client, &["SET", "vote|late|1", ""]).unwrap_err();
            assert_eq!(refused.code(), Some("MISCONF"), "{fault}: {refused}");
            drop(client);
            server.signal(Signal::KILL);
            server.wait();
        }
        let server = start(&data, (1, "always"));
        let mut client = server.client(3);
        check(&mut client, &sent, true);
        assert_eq!(count(&mut client, "vote|late|"), 0);
        let () = ask(&mut client, &["SET", "vote|late|2", ""]).unwrap();
        settle(&mut client, "votes");
        assert_eq!(ask(&mut client, &["GET", "karma|late"]), Ok(1));
    }
}
