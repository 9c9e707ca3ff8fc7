//! Base data that is kept across restarts: what comes back, what is never lost, and what is refused.

use crate::support::{PATIENCE, Server, name_shards, number_from, program, request};
use redis::{Connection, RedisResult, Value, cmd};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn start(place: &TempDir, more: &[&str]) -> Server {
    let path = place.path().join("data");
    Server::start(&[&["--data", path.to_str().unwrap()], more].concat())
}

fn ask<T: redis::FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    try_ask(connection, words).unwrap()
}

fn try_ask<T: redis::FromRedisValue>(
    connection: &mut Connection,
    words: &[&str],
) -> RedisResult<T> {
    let mut command = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query(connection)
}

/// The number behind a name in INFO.
fn info(connection: &mut Connection, name: &str) -> u64 {
    let text: String = ask(connection, &["INFO", "persistence"]);
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap();
    line.parse().unwrap()
}

#[test]
fn a_restart_keeps_keys_times_and_definitions() {
    for (how, durability, shards) in [
        (Signal::TERM, "none", "1"),
        (Signal::TERM, "interval", "1"),
        (Signal::KILL, "always", "1"),
        (Signal::TERM, "interval", "3"),
        (Signal::KILL, "always", "3"),
    ] {
        let place = folder();
        let options = ["--durability", durability, "--shards", shards];
        let server = start(&place, &options);
        let mut client = server.client(2);
        let _: () = ask(&mut client, &["TABLE.SET", "t", "BOUNDARY", "1"]);
        let spec = "t|<u>|<time>|<p> = check s|<u>|<p> copy p|<p>|<time>";
        let _: Value = ask(&mut client, &["JOIN.ADD", "timeline", spec]);
        let _: Value = ask(&mut client, &["JOIN.ADD", "gone", "n|<u> = count s|<u>|<p>"]);
        let _: () = ask(&mut client, &["JOIN.DROP", "gone"]);
        let _: () = ask(&mut client, &["SET", "s|ann|bob", "1"]);
        let _: () = ask(&mut client, &["SET", "p|bob|100", "first"]);
        let _: () = ask(&mut client, &["SET", "p|bob|200", "second", "EX", "1000"]);
        let _: () = ask(&mut client, &["SET", "p|bob|300", "over", "PX", "300"]);
        let _: () = ask(&mut client, &["SET", "p|bob|400", "removed"]);
        let _: () = ask(&mut client, &["DEL", "p|bob|400"]);
        let _: () = ask(&mut client, &["APPEND", "p|bob|100", "!"]);
        let _: () = ask(&mut client, &["SET", "plain", "x"]);
        let _: () = ask(&mut client, &["TABLE.SET", "u", "KEEP", "NO"]);
        let _: () = ask(&mut client, &["SET", "u|x", "x"]);
        server.signal(how);
        server.wait();
        thread::sleep(Duration::from_millis(300));
        let server = start(&place, &options);
        let mut client = server.client(2);
        let found: BTreeMap<String, String> = ask(&mut client, &["PREFIX", "t|ann|"]);
        let wanted = [("t|ann|100|bob", "first!"), ("t|ann|200|bob", "second")];
        assert_eq!(found, wanted.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let left: u64 = ask(&mut client, &["TTL", "p|bob|200"]);
        assert!((900..=1000).contains(&left), "{left}");
        for key in ["p|bob|300", "p|bob|400", "plain", "u|x"] {
            assert_eq!(ask::<Option<String>>(&mut client, &["GET", key]), None, "{key}");
        }
        let joins: Vec<BTreeMap<String, String>> = ask(&mut client, &["JOIN.LIST"]);
        assert_eq!(joins.iter().map(|join| &*join["name"]).collect::<Vec<_>>(), ["timeline"]);
        let table: BTreeMap<String, Value> = ask(&mut client, &["TABLE.INFO", "t"]);
        assert_eq!(table["boundary"], Value::Int(1));
        // Definitions outlive the keys.
        let _: () = ask(&mut client, &["FLUSHALL"]);
        server.signal(Signal::TERM);
        server.wait();
        let server = start(&place, &options);
        let mut client = server.client(2);
        let found: Vec<String> = ask(&mut client, &["PREFIX", "p|"]);
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(ask::<Vec<Value>>(&mut client, &["JOIN.LIST"]).len(), 1);
    }
}

#[test]
fn keys_without_a_table_are_kept_if_that_is_asked_for() {
    let place = folder();
    for round in 0..3 {
        let server = start(&place, &["--data-plain", "yes"]);
        let mut client = server.client(2);
        assert_eq!(ask::<u64>(&mut client, &["INCR", "visits"]), round + 1);
        server.signal(Signal::TERM);
        server.wait();
    }
}

#[test]
fn keys_beside_outputs_of_a_join_are_kept() {
    let place = folder();
    let server = start(&place, &[]);
    let mut client = server.client(2);
    let spec = "page|<user>|<what> = copy s|<user>|<what>";
    let _: Value = ask(&mut client, &["JOIN.ADD", "page", spec]);
    let _: () = ask(&mut client, &["SET", "s|ann|1", "given"]);
    assert_eq!(ask::<String>(&mut client, &["GET", "page|ann|1"]), "given");
    let _: () = ask(&mut client, &["SET", "page|ann", "written"]);
    server.signal(Signal::TERM);
    server.wait();
    let server = start(&place, &[]);
    let mut client = server.client(2);
    let found: Vec<(String, String)> = ask(&mut client, &["PREFIX", "page|"]);
    let wanted = [("page|ann", "written"), ("page|ann|1", "given")];
    assert_eq!(found, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn flags_of_memcached_are_kept_with_their_values() {
    let place = folder();
    let options = ["--data-plain", "yes", "--memcached-port", "0"];
    let server = start(&place, &options);
    let mut items = server.memcached();
    items
        .send(b"set a 7 0 3\r\none\r\nset p|b 4294967295 1000 3\r\ntwo\r\nappend a 0 0 1\r\n!\r\n");
    items.expect(b"STORED\r\nSTORED\r\nSTORED\r\n");
    server.signal(Signal::TERM);
    server.wait();
    let server = start(&place, &options);
    let mut items = server.memcached();
    items.send(b"get a p|b\r\n");
    items.expect(b"VALUE a 7 4\r\none!\r\nVALUE p|b 4294967295 3\r\ntwo\r\nEND\r\n");
    // A flow's output has no flags, whatever the key had before.
    let mut client = server.client(2);
    let copy = ["FLOW.ADD", "copy", "ON", "n|<x>", "COPY", "p|<x> = copy n|<x>"];
    let _: Value = ask(&mut client, &copy);
    let _: String = ask(&mut client, &["SET", "n|b", "new"]);
    while ask::<String>(&mut client, &["GET", "p|b"]) != "new" {
        thread::yield_now();
    }
    items.send(b"get p|b\r\n");
    items.expect(b"VALUE p|b 0 3\r\nnew\r\nEND\r\n");
    server.signal(Signal::TERM);
    server.wait();
    let server = start(&place, &options);
    let mut items = server.memcached();
    items.send(b"get p|b\r\n");
    items.expect(b"VALUE p|b 0 3\r\nnew\r\nEND\r\n");
}

#[test]
fn a_folder_has_one_server() {
    let place = folder();
    let _server = start(&place, &[]);
    let path = place.path().join("data");
    let second = program().args(["serve", "--port", "0", "--data"]).arg(&path).output().unwrap();
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && told.contains("another process"), "{told}");
    assert!(told.contains(path.to_str().unwrap()), "{told}");
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_files_are_an_error_at_start() {
    let place = folder();
    let server = start(&place, &["--durability", "always"]);
    let mut client = server.client(2);
    for number in 0..20 {
        let _: () = ask(&mut client, &["SET", &format!("p|{number}"), "value"]);
    }
    server.signal(Signal::KILL);
    server.wait();
    let path = place.path().join("data");
    flip(&path.join("store/0.jnl"), 700);
    let second = program().args(["serve", "--port", "0", "--data"]).arg(&path).output().unwrap();
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && told.contains("damaged"), "{told}");
}

/// One client's writes in a run: acknowledged up to a number, sent up to another.
struct Wrote {
    acknowledged: u64,
    sent: u64,
}

/// Writes until the server is gone: a new key each time, and one that is written again and again.
fn write_until_it_ends(port: u16, client: u64, from: u64, ends: &AtomicBool) -> Wrote {
    const PIPELINE: u64 = 16;
    let mut wrote = Wrote { acknowledged: from, sent: from };
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return wrote };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while !ends.load(Ordering::Relaxed) {
        let mut bytes = Vec::new();
        for number in wrote.sent + 1..=wrote.sent + PIPELINE {
            let text = number.to_string();
            let key = format!("p|{client}|{number}");
            bytes.extend(request(&[b"SET", key.as_bytes(), text.as_bytes()]));
            let last = format!("last|{client}");
            bytes.extend(request(&[b"SET", last.as_bytes(), text.as_bytes()]));
        }
        wrote.sent += PIPELINE;
        if stream.write_all(&bytes).is_err() {
            break;
        }
        let mut answer = [0; 10];
        for _ in 0..PIPELINE {
            if stream.read_exact(&mut answer).is_err() {
                return wrote;
            }
            assert_eq!(&answer, b"+OK\r\n+OK\r\n");
            wrote.acknowledged += 1;
        }
    }
    wrote
}

#[test]
fn no_acknowledged_write_is_lost_when_the_server_is_killed() {
    for durability in ["always", "interval", "none"] {
        kill_again_and_again("1", durability);
    }
}

#[test]
fn no_acknowledged_write_is_lost_when_a_server_of_three_shards_is_killed() {
    for durability in ["always", "interval", "none"] {
        kill_again_and_again("3", durability);
    }
}

#[test]
fn the_number_of_shards_stays() {
    let place = folder();
    let server = start(&place, &["--shards", "3"]);
    let _: () = ask(&mut server.client(2), &["SET", "p|bob|1", "x"]);
    server.signal(Signal::TERM);
    server.wait();
    let path = place.path().join("data");
    for shards in ["1", "2"] {
        let serve = ["serve", "--port", "0", "--shards", shards, "--data", path.to_str().unwrap()];
        let output = program().args(serve).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("divided among 3 shards") && told.contains("allowed: 3"), "{told}");
    }
    let server = start(&place, &["--shards", "3"]);
    let value: String = ask(&mut server.client(2), &["GET", "p|bob|1"]);
    assert_eq!(value, "x");
}

#[expect(clippy::print_stdout, reason = "a long run says what it has shown")]
fn kill_again_and_again(shards: &str, durability: &str) {
    const CLIENTS: u64 = 4;
    let rounds = number_from("HEADWATER_KILLS", 5);
    let place = folder();
    let mut acknowledged = [0; CLIENTS as usize];
    // What was sent without being answered may be there after this round's kill, or an earlier one's.
    let mut sent = [0; CLIENTS as usize];
    let mut checked = 0;
    for round in 0..rounds {
        let server = start(&place, &["--durability", durability, "--shards", shards]);
        let (port, ends) = (server.port, AtomicBool::new(false));
        let wrote: Vec<Wrote> = thread::scope(|scope| {
            let ends = &ends;
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let from = acknowledged[client as usize];
                    scope.spawn(move || write_until_it_ends(port, client, from, ends))
                })
                .collect();
            // At no particular moment.
            thread::sleep(Duration::from_micros(20_000 + round * 7919 % 150_000));
            server.signal(Signal::KILL);
            ends.store(true, Ordering::Relaxed);
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        server.wait();
        let server = start(&place, &["--durability", durability, "--shards", shards]);
        let mut connection = server.client(2);
        for (client, wrote) in wrote.iter().enumerate() {
            let from = acknowledged[client];
            let keys: Vec<String> =
                (from + 1..=wrote.acknowledged).map(|n| format!("p|{client}|{n}")).collect();
            for keys in keys.chunks(500) {
                let words: Vec<&str> =
                    core::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
                let values: Vec<Option<String>> = ask(&mut connection, &words);
                for (key, value) in keys.iter().zip(values) {
                    let number = key.rsplit('|').next();
                    assert_eq!(
                        value.as_deref(),
                        number,
                        "{durability}, round {round}: {key} is lost"
                    );
                    checked += 1;
                }
            }
            let last: Option<u64> = ask(&mut connection, &["GET", &format!("last|{client}")]);
            let last = last.unwrap_or(0);
            sent[client] = wrote.sent.max(wrote.acknowledged).max(sent[client]);
            assert!(
                (wrote.acknowledged..=sent[client]).contains(&last),
                "{durability}, round {round}: {last} of {} acknowledged",
                wrote.acknowledged
            );
            // What was written without an answer is there, or is written again.
            acknowledged[client] = wrote.acknowledged;
        }
        server.signal(Signal::KILL);
        server.wait();
    }
    assert!(checked > 0, "nothing was acknowledged");
    println!("{durability}: {rounds} kills: {checked} acknowledged writes are all there");
}

#[test]
fn base_data_outgrows_memory() {
    // The store has what it merges in memory in other ways where keys are long.
    outgrows_memory(8, 1000);
    outgrows_memory(40, 20_000);
}

#[expect(clippy::print_stdout, reason = "a long run says what it has shown")]
fn outgrows_memory(digits: usize, length: usize) {
    const BOUND: u64 = 64 << 20;
    let times = number_from("HEADWATER_DATA_TIMES", 3);
    let place = folder();
    let arguments = ["--memory", "64mb", "--durability", "none"];
    let server = start(&place, &arguments);
    let keys = times * BOUND / length as u64;
    let value_of = |number: u64| format!("{number:0length$}");
    let mut worst = 0;
    let mut client = server.client(2);
    let mut write = |client: &mut Connection, numbers: core::ops::Range<u64>| {
        let mut pipe = redis::pipe();
        for number in numbers {
            let key = format!("p|{:04}|{number:0digits$}", number % 5000);
            pipe.cmd("SET").arg(key).arg(value_of(number)).ignore();
        }
        let done: RedisResult<()> = pipe.query(client);
        assert!(done.is_ok(), "after {} keys: {:.200}", worst, format!("{done:?}"));
        worst = worst.max(server.memory_bytes("VmRSS"));
    };
    let together = (500_000 / length as u64).max(1);
    for first in (0..keys).step_by(together as usize) {
        write(&mut client, first..(first + together).min(keys));
    }
    // All of it is read back, range by range, in another order than it was written.
    let mut found = 0;
    for group in 0..5000_u64 {
        let pairs: BTreeMap<String, String> =
            ask(&mut client, &["PREFIX", &format!("p|{group:04}|")]);
        for (key, value) in pairs {
            let number: u64 = key[7..].parse().unwrap();
            assert!(number % 5000 == group && value == value_of(number), "{key}");
            found += 1;
        }
        if group % 100 == 0 {
            worst = worst.max(server.memory_bytes("VmRSS"));
        }
    }
    assert_eq!(found, keys);
    assert!(info(&mut client, "data_loaded_keys") >= keys / 2, "memory held it all");
    let ratio = worst as f64 / BOUND as f64;
    println!("{times} times the bound: at most {ratio:.3} of it resident, {keys} keys read back");
    assert!(ratio <= 1.05, "{ratio:.3} of the bound");
}

/// Bytes of a stream, of which any few say where they are.
fn bytes_at(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|at| ((at / 8) >> (at % 8 * 3)) as u8).collect()
}

fn stream_read(client: &mut Connection, key: &str, offset: usize, count: usize) -> Vec<u8> {
    cmd("STREAM.READ").arg(key).arg(offset).arg(count).query(client).unwrap()
}

#[test]
fn streams_outgrow_memory_and_survive_the_server() {
    for (shards, how) in [("1", Signal::KILL), ("3", Signal::TERM)] {
        let place = folder();
        // What each shard needs is left of it in both.
        let (bound, memory) = if shards == "1" { (96, "96mb") } else { (144, "144mb") };
        let options = ["--memory", memory, "--shards", shards, "--data-plain", "yes"];
        let server = start(&place, &options);
        let mut client = server.client(2);
        // Much more than memory holds, in pieces that end anywhere.
        let (piece, pieces) = (333_333, 180);
        let keys = ["log|ann", "log|bob", "plain"];
        for at in 0..pieces {
            for key in keys {
                let mut append = cmd("STREAM.APPEND");
                append.arg(key).arg(bytes_at(at * piece, piece));
                assert_eq!(append.query::<usize>(&mut client), Ok((at + 1) * piece));
            }
            let resident = server.memory_bytes("VmRSS");
            assert!(resident <= (bound << 20) * 21 / 20, "{resident} bytes of {bound} MiB");
        }
        let end = piece * pieces;
        let check = |client: &mut Connection, from: usize| {
            for key in keys {
                assert_eq!(ask::<usize>(client, &["STREAM.LEN", key]), end);
                for offset in (from..end).step_by(2_777_777).chain([end - 1]) {
                    let got = stream_read(client, key, offset, 10_000);
                    assert!(!got.is_empty());
                    assert_eq!(got, bytes_at(offset, got.len()), "{key} from {offset}");
                }
                assert_eq!(stream_read(client, key, end, 10), b"");
            }
        };
        check(&mut client, 0);
        let trimmed = 20_000_000;
        for key in keys {
            let told: usize = ask(&mut client, &["STREAM.TRIM", key, &trimmed.to_string()]);
            assert_eq!(told, trimmed);
        }
        let _: bool = ask(&mut client, &["EXPIRE", "log|bob", "1000"]);
        let _: usize = ask(&mut client, &["STREAM.APPEND", "log|gone", "bytes"]);
        let _: usize = ask(&mut client, &["DEL", "log|gone"]);
        let _: usize = ask(&mut client, &["STREAM.APPEND", "log|value", "bytes"]);
        let _: () = ask(&mut client, &["SET", "log|value", "one"]);
        let _: usize = ask(&mut client, &["STREAM.APPEND", "log|short", "some bytes"]);
        server.signal(how);
        server.wait();
        let server = start(&place, &options);
        let mut client = server.client(2);
        check(&mut client, trimmed);
        let error = try_ask::<Value>(&mut client, &["STREAM.READ", "log|ann", "0", "1"]);
        assert_eq!(error.unwrap_err().code(), Some("TRIMMED"));
        assert!(ask::<u64>(&mut client, &["TTL", "log|bob"]) > 900);
        assert_eq!(ask::<u64>(&mut client, &["EXISTS", "log|gone"]), 0);
        assert_eq!(ask::<String>(&mut client, &["GET", "log|value"]), "one");
        assert_eq!(ask::<String>(&mut client, &["TYPE", "log|short"]), "stream");
        let _: () = ask(&mut client, &["RENAME", "log|short", "log|short2"]);
        let _: usize = ask(&mut client, &["STREAM.APPEND", "log|short2", ", and more"]);
        server.signal(how);
        server.wait();
        let server = start(&place, &options);
        let mut client = server.client(2);
        // Who would wait for more waits for the disk first, whatever else is asked behind it.
        let mut pipe = redis::pipe();
        for word in [
            "STREAM.READ log|short2 0 4 BLOCK 1",
            "PING",
            "MULTI",
            "STREAM.READ plain 20000000 4 BLOCK 0",
            "EXEC",
            "PING",
        ] {
            let mut words = word.split(' ');
            let mut command = cmd(words.next().unwrap());
            words.for_each(|word| _ = command.arg(word));
            pipe.add_command(command);
        }
        let answers: Vec<Value> = pipe.query(&mut client).unwrap();
        let [first, pong, begun, queued, exec, last] = &answers[..] else { panic!("{answers:?}") };
        let plain = Value::BulkString(bytes_at(20_000_000, 4));
        assert_eq!(*first, Value::BulkString(b"some".to_vec()));
        assert_eq!(
            (pong, last),
            (&Value::SimpleString("PONG".into()), &Value::SimpleString("PONG".into()))
        );
        assert_eq!((begun, queued), (&Value::Okay, &Value::SimpleString("QUEUED".into())));
        assert_eq!(*exec, Value::Array(vec![plain]));
        assert_eq!(ask::<u64>(&mut client, &["EXISTS", "log|short"]), 0);
        assert_eq!(stream_read(&mut client, "log|short2", 0, 100), b"some bytes, and more");
        let _: () = ask(&mut client, &["FLUSHALL"]);
        server.signal(how);
        server.wait();
        let server = start(&place, &options);
        let mut client = server.client(2);
        let gone = ask::<Option<String>>(&mut client, &["STREAM.READ", "log|ann", "0", "1"]);
        assert_eq!(gone, None);
    }
}

#[test]
fn what_frees_room_is_taken_while_the_disk_has_too_little() {
    for shards in ["1", "3"] {
        let place = folder();
        let server = start(&place, &["--shards", shards]);
        let mut client = server.client(2);
        for key in
            ["p|ann|1", "p|ann|2", "p|bob|1", "p|bob|2", "p|bob|3", "p|cid|1", "p|cid|2", "q|1"]
        {
            let _: () = ask(&mut client, &["SET", key, "value"]);
        }
        server.signal(Signal::TERM);
        server.wait();
        // No disk has so much left.
        let file = place.path().join("headwater.toml");
        fs::write(&file, "[data]\ndata-free-bytes-min = \"1000000000gb\"\n").unwrap();
        let options =
            ["--shards", shards, "--config", file.to_str().unwrap(), "--memcached-port", "0"];
        let server = start(&place, &options);
        let mut client = server.client(2);
        let begun = Instant::now();
        let refusal = loop {
            assert!(begun.elapsed() < PATIENCE, "writes are taken");
            // Each shard looks at the disk when it writes.
            let set = |key: &str| try_ask::<()>(&mut server.client(2), &["SET", key, "x"]);
            let refused: Vec<_> =
                ["p|ann|1", "p|bob|1", "p|cid|1", "q|1"].map(set).into_iter().collect();
            if let Some(refused) =
                refused.into_iter().map(RedisResult::err).collect::<Option<Vec<_>>>()
            {
                break refused[0].to_string();
            }
        };
        assert!(refusal.contains("MISCONF") && refusal.contains("only what removes"), "{refusal}");
        assert_eq!(ask::<u64>(&mut client, &["DEL", "p|ann|1"]), 1);
        assert_eq!(ask::<u64>(&mut client, &["UNLINK", "p|ann|2"]), 1);
        assert_eq!(
            ask::<Option<String>>(&mut client, &["GETDEL", "p|cid|2"]).as_deref(),
            Some("value")
        );
        // To expire at once is to be removed.
        for words in [&["EXPIRE", "p|bob|1", "0"][..], &["PEXPIREAT", "p|bob|2", "1"]] {
            assert_eq!(ask::<u64>(&mut client, words), 1);
            assert!(!ask::<bool>(&mut client, &["EXISTS", words[1]]));
        }
        assert_eq!(ask::<u64>(&mut client, &["RANGE.DEL", "p|bob|", "p|bob}"]), 1);
        for refused in [&["APPEND", "q|1", "x"][..], &["PERSIST", "q|1"], &["EXPIRE", "q|1", "9"]] {
            let error = try_ask::<Value>(&mut client, refused).unwrap_err();
            assert_eq!(error.code(), Some("MISCONF"), "{refused:?}");
        }
        // Whoever reads no answer is told nothing, whichever shard has the key.
        let mut items = server.memcached();
        for key in ["p|ann|1", "p|bob|1", "p|cid|1", "q|1"] {
            items.send(format!("set {key} 0 0 1 noreply\r\nx\r\nmn\r\n").as_bytes());
            items.expect(b"MN\r\n");
            items.send(format!("set {key} 0 0 1\r\nx\r\n").as_bytes());
            assert!(items.until(b"\r\n").starts_with(b"SERVER_ERROR "), "{shards} {key}");
        }
        if shards == "1" {
            let error = try_ask::<Value>(&mut client, &["RENAME", "q|1", "q|2"]).unwrap_err();
            assert_eq!(error.code(), Some("MISCONF"));
            // A transaction is carried out as a whole, or not at all.
            let parts: [(&[&str], bool); 3] = [
                (&["SET", "q|1", "y"], false),
                (&["EXPIRE", "q|1", "9"], false),
                (&["EXPIRE", "p|cid|1", "-1"], true),
            ];
            for (words, done) in parts {
                let _: () = ask(&mut client, &["MULTI"]);
                let _: () = ask(&mut client, words);
                let _: () = ask(&mut client, &["DEL", "q|1"]);
                let exec = try_ask::<Value>(&mut client, &["EXEC"]);
                assert_eq!(exec.is_ok(), done, "{words:?}: {exec:?}");
                assert_eq!(ask::<bool>(&mut client, &["EXISTS", "q|1"]), !done);
            }
        }
        assert_eq!(ask::<u64>(&mut client, &["RANGE.DEL", "p|", "p}"]), u64::from(shards == "3"));
        server.signal(Signal::TERM);
        server.wait();
        // What was removed is gone for good.
        let server = start(&place, &["--shards", shards]);
        let mut client = server.client(2);
        assert_eq!(ask::<Vec<String>>(&mut client, &["PREFIX", "p|", "KEYS"]), [""; 0]);
        server.signal(Signal::TERM);
        server.wait();
        let server = start(&place, &options);
        let mut client = server.client(2);
        let _: () = ask(&mut client, &["FLUSHALL"]);
    }
}

#[test]
fn a_store_that_cannot_write_refuses_writes_and_goes_on_reading() {
    let place = folder();
    let path = place.path().join("data");
    // Files beyond a limit then fail with an error, as on a full disk, instead of a signal.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_headwater")]);
    shell.args(["serve", "--port", "0"]);
    name_shards(&mut shell);
    shell.args(["--durability", "always", "--data"]).arg(&path);
    let server = Server::spawn(shell);
    let mut client = server.client(2);
    let _: () = ask(&mut client, &["SET", "p|1", "safe"]);
    let limit = Rlimit { current: Some(4096), maximum: Some(4096) };
    let pid = Pid::from_raw(server.id() as i32).unwrap();
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    // No write that fails is acknowledged: the connection ends, or it is refused.
    let value = "v".repeat(2000);
    let begun = Instant::now();
    let mut acknowledged = vec![String::from("p|1")];
    let refusal = loop {
        assert!(begun.elapsed() < PATIENCE, "it goes on writing");
        let key = format!("p|{}", acknowledged.len() + 1);
        match try_ask::<()>(&mut client, &["SET", &key, &value]) {
            Ok(()) => acknowledged.push(key),
            Err(error) if error.code() == Some("MISCONF") => break error.to_string(),
            Err(_) => client = server.client(2),
        }
    };
    assert!(refusal.contains("can no longer be written"), "{refusal}");
    assert!(refusal.contains("os error"), "{refusal}");
    for key in &acknowledged {
        assert!(ask::<Option<String>>(&mut client, &["GET", key]).is_some(), "{key}");
    }
    let error = try_ask::<Value>(&mut client, &["DEL", "p|1"]).unwrap_err();
    assert_eq!(error.code(), Some("MISCONF"));
    let status: String = ask(&mut client, &["INFO", "persistence"]);
    assert!(status.contains("data_write_status:err"), "{status}");
    server.signal(Signal::KILL);
    server.wait();
    let server = start(&place, &[]);
    let mut client = server.client(2);
    for key in &acknowledged {
        assert!(ask::<Option<String>>(&mut client, &["GET", key]).is_some(), "{key} is lost");
    }
    let _: () = ask(&mut client, &["SET", "p|1", "again"]);
}
