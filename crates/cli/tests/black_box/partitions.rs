//! Partitions move from shard to shard while clients are served, and what was written is waited for.
//!
//! `HEADWATER_SHARDS_ROUNDS=1000` compares more often; `HEADWATER_SHARDS_SEED=7` begins with another seed.

use crate::shards::{Draws, JOINS, answer_alike_unwatched, joined_alike, joined_servers, seeds};
use crate::support::{Server, request};
use redis::{Connection, Value, cmd};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

const SHARDS: u64 = 3;

pub(crate) fn home(client: &mut Connection, key: &str) -> (u64, u64) {
    let home: BTreeMap<String, u64> = cmd("SHARD.HOME").arg(key).query(client).unwrap();
    (home["partition"], home["shard"])
}

/// Keys of those that the other tests write, to find partitions that have some.
fn some_key(draws: &mut Draws) -> String {
    let person = draws.of(&["ann", "bob", "cy", "dee", "eve"]);
    match draws.below(3) {
        0 => format!("k{}", draws.below(6)),
        1 => format!("{{tag{}}}1", draws.below(2)),
        _ => format!("u|{person}|1"),
    }
}

/// Moves partitions until it is told to stop; how many have moved.
fn keep_moving(server: &Server, seed: u64, stop: &AtomicBool) -> u64 {
    let (mut client, mut draws, mut moved) = (server.client(3), Draws(seed), 0);
    while !stop.load(Ordering::Relaxed) {
        let key = some_key(&mut draws);
        let (partition, shard) = home(&mut client, &key);
        let to = (shard + 1 + draws.below(SHARDS - 1)) % SHARDS;
        let done = cmd("SHARD.MOVE").arg(partition).arg(to).query::<String>(&mut client);
        match done {
            Ok(_) => {
                assert_eq!(home(&mut client, &key), (partition, to));
                moved += 1;
            }
            Err(error) => assert!(error.to_string().contains("try again"), "{error}"),
        }
    }
    moved
}

/// Runs `work` while partitions of a server move.
pub(crate) fn while_partitions_move(server: &Server, work: impl FnOnce()) -> u64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| keep_moving(server, 11, &stop));
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        let moved = mover.join().unwrap();
        if let Err(panic) = worked {
            std::panic::resume_unwind(panic);
        }
        moved
    })
}

#[test]
fn requests_are_answered_alike_while_partitions_move() {
    let (one, three) = (Server::start(&["--shards", "1"]), Server::start(&["--shards", "3"]));
    let moved = while_partitions_move(&three, || answer_alike_unwatched(&one, &three, seeds(30)));
    assert!(moved > 0, "none has moved");
}

#[test]
fn joins_give_the_same_while_partitions_move() {
    let (one, three) = joined_servers();
    let moved = while_partitions_move(&three, || joined_alike(&one, &three, seeds(30)));
    assert!(moved > 0, "none has moved");
}

#[test]
fn several_clients_lose_nothing_while_partitions_move() {
    let server = Server::start(&["--shards", "3"]);
    let each = 400;
    let moved = while_partitions_move(&server, || {
        std::thread::scope(|scope| {
            for number in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    let mut client = server.client(3);
                    let (mine, ours) = (format!("k{number}"), "k5");
                    for count in 1..=each {
                        let own: i64 = cmd("INCR").arg(&mine).query(&mut client).unwrap();
                        assert_eq!(own, count);
                        let _: i64 = cmd("INCR").arg(ours).query(&mut client).unwrap();
                    }
                });
            }
        });
    });
    let mut client = server.client(3);
    let total: i64 = cmd("GET").arg("k5").query(&mut client).unwrap();
    let keys: i64 = cmd("DBSIZE").query(&mut client).unwrap();
    assert_eq!((total, keys), (4 * each, 5));
    assert!(moved > 0, "none has moved");
    let rows: Vec<BTreeMap<String, u64>> = cmd("SHARD.LIST").query(&mut client).unwrap();
    let sum = |name: &str| rows.iter().map(|row| row[name]).sum::<u64>();
    assert_eq!((rows.len(), sum("partitions"), sum("keys")), (3, 4096, 5));
}

#[test]
fn what_cannot_move_stays() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(3);
    let () =
        cmd("STREAM.APPEND").arg("log").arg("first").query::<Value>(&mut client).map(drop).unwrap();
    let (partition, shard) = home(&mut client, "log");
    let mut to = |partition: u64, shard: u64| {
        cmd("SHARD.MOVE").arg(partition).arg(shard).query::<String>(&mut client)
    };
    let error = to(partition, (shard + 1) % 3).unwrap_err().to_string();
    assert!(error.contains("holds a stream"), "{error}");
    assert_eq!(to(partition, shard).unwrap(), "OK");
    let error = to(4096, 0).unwrap_err().to_string();
    assert!(error.contains("there is no partition 4096 (0 to 4095)"), "{error}");
    let error = to(0, 3).unwrap_err().to_string();
    assert!(error.contains("there is no shard 3 (0 to 2)"), "{error}");
    // A client that waits at the end of a stream keeps no partition from moving.
    let mut waiting = server.client(3);
    let mut reader = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let words: [&[u8]; 6] = [b"STREAM.READ", b"log", b"5", b"10", b"BLOCK", b"0"];
    reader.write_all(&request(&words)).unwrap();
    let blocked = |client: &mut Connection| {
        let info: String = cmd("INFO").arg("clients").query(client).unwrap();
        info.contains("blocked_clients:1")
    };
    while !blocked(&mut waiting) {
        std::thread::yield_now();
    }
    let (partition, shard) = home(&mut waiting, "k1");
    let moved: String =
        cmd("SHARD.MOVE").arg(partition).arg((shard + 1) % 3).query(&mut waiting).unwrap();
    assert_eq!(moved, "OK");
}

#[test]
fn another_connection_sees_what_was_written() {
    let server = Server::start(&["--shards", "3"]);
    let mut writers: Vec<_> = (0..6).map(|_| server.client(3)).collect();
    let mut readers: Vec<_> = (0..6).map(|_| server.client(3)).collect();
    let (name, spec) = JOINS[0];
    let _: Value = cmd("JOIN.ADD").arg(name).arg(spec).query(&mut writers[0]).unwrap();
    let () = cmd("SET").arg("s|ann|bob").arg(1).query(&mut writers[0]).unwrap();
    for number in 0..300usize {
        let writer = &mut writers[number % 6];
        let () = cmd("SET").arg(format!("p|bob|{number:04}")).arg("x").query(writer).unwrap();
        let count = if number.is_multiple_of(2) {
            let position: String = cmd("SHARD.POSITION").query(writer).unwrap();
            let mut read = cmd("RANGE");
            read.arg("t|ann|").arg("t|ann}").arg("COUNT").arg("AT").arg(&position);
            read.query::<usize>(&mut readers[number % 6]).unwrap()
        } else {
            let shown: u64 = cmd("WAIT").arg(3).arg(0).query(writer).unwrap();
            assert_eq!(shown, 3);
            let mut read = cmd("PREFIX");
            read.arg("t|ann|").arg("COUNT").query::<usize>(&mut readers[number % 6]).unwrap()
        };
        assert_eq!(count, number + 1);
    }
    // Positions of another run are reached; what is none is refused.
    let read = |client: &mut Connection, at: &str| {
        let mut read = cmd("PREFIX");
        read.arg("t|ann|").arg("COUNT").arg("AT").arg(at).query::<usize>(client)
    };
    assert_eq!(read(&mut readers[0], "shards-00-1.2").unwrap(), 300);
    assert!(read(&mut readers[0], "shards-00-1.x").is_err());
    let one = Server::start(&["--shards", "1"]);
    let mut client = one.client(3);
    let position: String = cmd("SHARD.POSITION").query(&mut client).unwrap();
    assert_eq!(read(&mut client, &position).unwrap(), 0);
    assert_eq!(cmd("WAIT").arg(1).arg(10).query::<i64>(&mut client).unwrap(), 1);
}

#[test]
fn a_post_crosses_once_to_each_shard_however_many_follow() {
    const FOLLOWERS: usize = 2000;
    let server = Server::start(&["--shards", "8"]);
    let mut client = server.client(3);
    let (name, spec) = JOINS[0];
    let _: Value = cmd("JOIN.ADD").arg(name).arg(spec).query(&mut client).unwrap();
    let mut follow = cmd("MSET");
    for user in 0..FOLLOWERS {
        follow.arg(format!("s|u{user}|star")).arg(1);
    }
    let () = follow.query(&mut client).unwrap();
    let posts = |client: &mut Connection| {
        let mut reads = redis::pipe();
        for user in 0..FOLLOWERS {
            reads.cmd("PREFIX").arg(format!("t|u{user}|")).arg("COUNT");
        }
        reads.query::<Vec<usize>>(client).unwrap().iter().sum::<usize>()
    };
    assert_eq!(posts(&mut client), 0);
    let sent = |client: &mut Connection| {
        let info: String = cmd("INFO").arg("shards").query(client).unwrap();
        let sent = info.lines().find_map(|line| line.strip_prefix("shards_changes_sent:"));
        sent.unwrap().parse::<u64>().unwrap()
    };
    let before = sent(&mut client);
    let () = cmd("SET").arg("p|star|1").arg("hello").query(&mut client).unwrap();
    assert_eq!(posts(&mut client), FOLLOWERS);
    assert_eq!(sent(&mut client) - before, 7);
}
