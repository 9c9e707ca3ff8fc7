//! Transactions over several shards are one step for everybody, whatever becomes of their clients.
//!
//! `HEADWATER_SHARDS_ROUNDS=1000` does more of them; `HEADWATER_SHARDS_SEED=7` begins with another seed.

use crate::partitions::while_partitions_move;
use crate::shards::{Draws, Pipe, seeds};
use crate::support::{PATIENCE, Server, request};
use redis::{Connection, Value, cmd};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ACCOUNTS: u64 = 9;
const EACH: i64 = 1000;

fn account(number: u64) -> String {
    format!("account{number}")
}

fn three_shards() -> Server {
    let server = Server::start(&["--shards", "3"]);
    let mut set = cmd("MSET");
    for number in 0..ACCOUNTS {
        set.arg(account(number)).arg(EACH);
    }
    let () = set.query(&mut server.client(2)).unwrap();
    server
}

/// Takes from one account and gives to another, if neither has changed meanwhile; whether it did.
fn transfer(client: &mut Connection, draws: &mut Draws) -> bool {
    let from = draws.below(ACCOUNTS);
    let to = (from + 1 + draws.below(ACCOUNTS - 1)) % ACCOUNTS;
    let amount = draws.below(50) as i64;
    let (from, to) = (account(from), account(to));
    let () = cmd("WATCH").arg(&from).arg(&to).query(client).unwrap();
    let (has, other): (i64, i64) = cmd("MGET").arg(&from).arg(&to).query(client).unwrap();
    let (less, more) = ((has - amount).to_string(), (other + amount).to_string());
    match in_transaction(client, &[&["SET", &from, &less], &["SET", &to, &more]]) {
        Some(answer) => answer != Value::Nil,
        None => false,
    }
}

/// What EXEC answers; `None`: it is to be tried again.
fn in_transaction(client: &mut Connection, requests: &[&[&str]]) -> Option<Value> {
    let () = cmd("MULTI").query(client).unwrap();
    for words in requests {
        let queued: String = cmd(words[0]).arg(&words[1..]).query(client).unwrap();
        assert_eq!(queued, "QUEUED");
    }
    match cmd("EXEC").query(client) {
        Ok(answer) => Some(answer),
        Err(error) => {
            assert_eq!(error.code(), Some("TRYAGAIN"), "{error}");
            None
        }
    }
}

/// All accounts, read in one transaction, or by one command.
fn total(client: &mut Connection, at_once: bool) -> i64 {
    if at_once {
        let keys: Vec<String> = (0..ACCOUNTS).map(account).collect();
        let reads: Vec<_> = keys.iter().map(|key| ["GET", key.as_str()]).collect();
        let reads: Vec<&[&str]> = reads.iter().map(|words| &words[..]).collect();
        loop {
            if let Some(answer) = in_transaction(client, &reads) {
                let all: Vec<i64> = redis::from_redis_value(answer).unwrap();
                return all.iter().sum();
            }
        }
    }
    let mut read = cmd("MGET");
    for number in 0..ACCOUNTS {
        read.arg(account(number));
    }
    read.query::<Vec<i64>>(client).unwrap().iter().sum()
}

/// Has four clients transfer, and two read, in the meantime of `each` transfers by each of them.
fn transfers_keep_the_total(server: &Server, seed: u64, each: u64) {
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|number| {
                let (done, server) = (&done, &server);
                scope.spawn(move || {
                    let (mut client, mut draws) = (server.client(3), Draws(seed * 10 + number));
                    for _ in 0..each {
                        let did = transfer(&mut client, &mut draws);
                        done.fetch_add(u64::from(did), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let readers: Vec<_> = [true, false]
            .map(|in_transaction| {
                let (over, server) = (&over, &server);
                scope.spawn(move || {
                    let mut client = server.client(2);
                    while !over.load(Ordering::Relaxed) {
                        assert_eq!(total(&mut client, in_transaction), ACCOUNTS as i64 * EACH);
                    }
                })
            })
            .into_iter()
            .collect();
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        written.into_iter().for_each(Result::unwrap);
    });
    assert!(done.into_inner() > 0, "no transfer was done");
}

#[test]
fn what_is_transferred_over_shards_is_never_seen_half() {
    let server = three_shards();
    let rounds = seeds(100);
    transfers_keep_the_total(&server, rounds.start, rounds.end - rounds.start);
}

#[test]
fn transfers_are_one_step_while_partitions_move() {
    let server = three_shards();
    let moved = while_partitions_move(&server, || {
        let rounds = seeds(60);
        transfers_keep_the_total(&server, rounds.start, rounds.end - rounds.start);
    });
    assert!(moved > 0, "none has moved");
}

#[test]
fn a_client_that_goes_leaves_nobody_waiting_and_nothing_half() {
    let server = three_shards();
    let mut watcher = server.client(3);
    for round in 0..40u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = request(&[b"CLIENT", b"ID"]);
        bytes.extend(request(&[b"MULTI"]));
        for number in 0..ACCOUNTS {
            let by: &[u8] = if number == 0 { b"-8" } else { b"1" };
            bytes.extend(request(&[b"INCRBY", account(number).as_bytes(), by]));
        }
        // So long that its answer is not taken in one piece.
        for number in 0..20 {
            let key = format!("long{number}");
            bytes.extend(request(&[b"SETRANGE", key.as_bytes(), b"100000", b"x"]));
            bytes.extend(request(&[b"GET", key.as_bytes()]));
        }
        bytes.extend(request(&[b"EXEC"]));
        stream.write_all(&bytes).unwrap();
        if round % 2 == 0 {
            let mut id = [0; 64];
            let read = stream.read(&mut id).unwrap();
            let id: String = String::from_utf8_lossy(&id[1..read]).lines().next().unwrap().into();
            let _: i64 = cmd("CLIENT").arg("KILL").arg("ID").arg(id).query(&mut watcher).unwrap();
        }
        drop(stream);
        assert_eq!(total(&mut watcher, round % 3 == 0), ACCOUNTS as i64 * EACH);
    }
}

#[test]
fn what_waits_for_other_clients_does_not_wait_in_a_transaction() {
    let server = three_shards();
    let mut client = server.client(3);
    let mut all = redis::pipe();
    all.atomic();
    for number in 0..6 {
        let (log, end) = (format!("log{number}"), 3 * i64::from(number > 2));
        if end > 0 {
            all.cmd("STREAM.APPEND").arg(&log).arg("abc");
        }
        all.cmd("STREAM.READ").arg(&log).arg(end).arg(10).arg("BLOCK").arg(0);
    }
    let done: Vec<Value> = all.query(&mut client).unwrap();
    let lens = [Value::Nil, Value::Nil, Value::Nil].into_iter();
    let ends = (0..3).flat_map(|_| [Value::Int(3), Value::Nil]);
    assert_eq!(done, lens.chain(ends).collect::<Vec<_>>());
}

#[test]
fn errors_are_elements_and_streams_stay() {
    let server = three_shards();
    let mut client = server.client(3);
    let _: i64 = cmd("STREAM.APPEND").arg("log").arg("abc").query(&mut client).unwrap();
    let () = cmd("SET").arg("text").arg("x").query(&mut client).unwrap();
    let mut elsewhere = (0..).map(|at| format!("log{at}")).filter(|key| {
        let home = |client: &mut Connection, key: &str| {
            let home: std::collections::BTreeMap<String, u64> =
                cmd("SHARD.HOME").arg(key).query(client).unwrap();
            home["shard"]
        };
        let mut client = server.client(3);
        home(&mut client, key) != home(&mut client, "log")
    });
    let other = elsewhere.next().unwrap();
    let refused = cmd("RENAME").arg("log").arg(&other).query::<Value>(&mut client).unwrap_err();
    assert!(refused.to_string().contains("'log' holds a stream"), "{refused}");
    let mut pipe = Pipe::new(&server, 3);
    let requests: [&[&str]; 6] = [
        &["MULTI"],
        &["INCR", "text"],
        &["COPY", "log", &other],
        &["INCR", "account1"],
        &["INCR", &other],
        &["EXEC"],
    ];
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let Some(Value::Array(answer)) = pipe.run(&requests.map(words)).pop() else {
        panic!("EXEC is answered with a list");
    };
    assert!(matches!(answer[0], Value::ServerError(_)), "{answer:?}");
    assert!(matches!(answer[1], Value::ServerError(_)), "{answer:?}");
    assert_eq!(answer[2..], [Value::Int(EACH + 1), Value::Int(1)]);
    let kept: i64 = cmd("STREAM.LEN").arg("log").query(&mut client).unwrap();
    assert_eq!(kept, 3);
}

#[test]
fn clients_that_hang_up_while_they_wait_for_a_lock_leave_nothing_locked() {
    let server = Server::start(&["--memcached-port", "0", "--shards", "3"]);
    let mut set = cmd("MSET");
    for number in 0..ACCOUNTS {
        set.arg(account(number)).arg(EACH);
    }
    let () = set.query(&mut server.client(2)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, over) = (&server, &over);
        for protocol in ["memcached", "RESP"] {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut socket =
                        if protocol == "RESP" { server.socket() } else { server.memcached() };
                    let ask = |number: u64| match protocol {
                        "RESP" => format!("GET {}\r\n", account(number % ACCOUNTS)),
                        _ => format!("get {}\r\n", account(number % ACCOUNTS)),
                    };
                    socket.send((0..40).map(ask).collect::<String>().as_bytes());
                }
            });
        }
        let writers: Vec<_> = (0..3)
            .map(|number| {
                scope.spawn(move || {
                    let (mut client, mut draws) = (server.client(2), Draws(number));
                    for _ in 0..200 {
                        let (from, to) = (draws.below(ACCOUNTS), draws.below(ACCOUNTS));
                        let (from, to) = (account(from), account(to));
                        let requests = [&["DECRBY", &from, "1"][..], &["INCRBY", &to, "1"]];
                        let done = in_transaction(&mut client, &requests);
                        assert!(done.is_some(), "somebody has left a lock");
                    }
                })
            })
            .collect();
        let done: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        done.into_iter().for_each(Result::unwrap);
    });
    assert_eq!(total(&mut server.client(2), true), ACCOUNTS as i64 * EACH);
}
