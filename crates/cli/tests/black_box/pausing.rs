//! CLIENT PAUSE, UNPAUSE and UNBLOCK, and channels of SPUBLISH, with one shard and with three.

use crate::support::{PATIENCE, Server, Socket, request};
use redis::{Connection, cmd};
use std::time::Instant;

/// Keys of three shards, some at each.
const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// The number of a client, as CLIENT ID says it.
pub(crate) fn number_of(socket: &mut Socket) -> u64 {
    socket.send(b"CLIENT ID\r\n");
    let line = socket.until(b"\r\n");
    std::str::from_utf8(&line[1..]).unwrap().trim().parse().unwrap()
}

/// Waits until the clients of these numbers all wait.
fn until_waiting(client: &mut Connection, numbers: &[u64]) {
    let began = Instant::now();
    loop {
        let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
        let waits = |number: &u64| {
            let head = format!("id={number} ");
            let waits = |line: &str| line.contains(" flags=b ") || line.contains(" cmd=exec ");
            list.lines().any(|line| line.starts_with(&head) && waits(line))
        };
        if numbers.iter().all(waits) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{numbers:?} should wait: {list}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn writes_wait_while_clients_are_paused() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(2);
        let () = cmd("CLIENT").arg("PAUSE").arg(1_000_000).arg("WRITE").query(client).unwrap();
        let mut writers: Vec<Socket> = KEYS.iter().map(|_| server.socket()).collect();
        let numbers: Vec<u64> = writers.iter_mut().map(number_of).collect();
        for (at, (writer, key)) in writers.iter_mut().zip(KEYS).enumerate() {
            if at % 2 == 0 {
                writer.send(&request(&[b"SET", key.as_bytes(), b"v"]));
                writer.send(b"PING\r\n");
            } else {
                writer.send(b"MULTI\r\n");
                writer.send(&request(&[b"SET", key.as_bytes(), b"v"]));
                writer.expect(b"+OK\r\n+QUEUED\r\n");
                writer.send(b"EXEC\r\n");
            }
        }
        until_waiting(client, &numbers);
        // Who reads goes on, and a transaction that only reads.
        let there: i64 = cmd("EXISTS").arg(&KEYS).query(client).unwrap();
        assert_eq!(there, 0);
        let read: (Option<String>,) =
            redis::pipe().atomic().cmd("GET").arg("a").query(client).unwrap();
        assert_eq!(read, (None,));
        let () = cmd("CLIENT").arg("UNPAUSE").query(client).unwrap();
        for (at, writer) in writers.iter_mut().enumerate() {
            writer.expect(if at % 2 == 0 { b"+OK\r\n+PONG\r\n" } else { b"*1\r\n+OK\r\n" });
        }
        let there: i64 = cmd("EXISTS").arg(&KEYS).query(client).unwrap();
        assert_eq!(there, 6);
    }
}

#[test]
fn writes_of_items_wait_while_clients_are_paused() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards, "--memcached-port", "0"]);
        let client = &mut server.client(2);
        let () = cmd("CLIENT").arg("PAUSE").arg(1_000_000).arg("WRITE").query(client).unwrap();
        let mut writers: Vec<Socket> = KEYS.iter().map(|_| server.memcached()).collect();
        for (writer, key) in writers.iter_mut().zip(KEYS) {
            // What is behind a write waits as well.
            writer.send(format!("get {key}\r\nset {key} 0 0 1\r\nv\r\nget {key}\r\n").as_bytes());
            writer.expect(b"END\r\n");
        }
        let mut counted = server.memcached();
        counted.send(b"get a\r\n");
        counted.expect(b"END\r\n");
        let there: i64 = cmd("EXISTS").arg(&KEYS).query(client).unwrap();
        assert_eq!(there, 0);
        let () = cmd("CLIENT").arg("UNPAUSE").query(client).unwrap();
        for (writer, key) in writers.iter_mut().zip(KEYS) {
            writer.expect(format!("STORED\r\nVALUE {key} 0 1\r\nv\r\nEND\r\n").as_bytes());
        }
        // Of all, what reads waits too; and goes on by itself.
        let began = Instant::now();
        let () = cmd("CLIENT").arg("PAUSE").arg(100).query(client).unwrap();
        counted.send(b"get a\r\n");
        counted.expect(b"VALUE a 0 1\r\nv\r\nEND\r\n");
        assert!(began.elapsed().as_millis() >= 100);
    }
}

#[test]
fn flows_rest_while_clients_are_paused() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(2);
        let flow = ["f", "ON", "in|<id>", "COPY", "out|<id> = copy in|<id>"];
        let _: redis::Value = cmd("FLOW.ADD").arg(&flow).query(client).unwrap();
        let inputs = KEYS.map(|key| format!("in|{key}"));
        let outputs = KEYS.map(|key| format!("out|{key}"));
        let count = |client: &mut Connection, keys: &[String]| -> usize {
            cmd("EXISTS").arg(keys).query(client).unwrap()
        };
        let began = Instant::now();
        for key in &inputs {
            let () = cmd("SET").arg(&[key, "v", "PX", "2000"]).query(client).unwrap();
        }
        while count(client, &outputs) < KEYS.len() {
            assert!(began.elapsed() < PATIENCE, "the flow should copy");
        }
        let () = cmd("CLIENT").arg("PAUSE").arg(1_000_000).arg("WRITE").query(client).unwrap();
        // They expire, which the flow follows when it may.
        while count(client, &inputs) > 0 {
            assert!(began.elapsed() < PATIENCE, "keys should expire");
        }
        for _turn in 0..200 {
            assert_eq!(count(client, &outputs), KEYS.len());
        }
        let () = cmd("CLIENT").arg("UNPAUSE").query(client).unwrap();
        while count(client, &outputs) > 0 {
            assert!(began.elapsed() < PATIENCE, "flows should go on");
        }
    }
}

#[test]
fn a_pause_of_all_ends_by_itself() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(2);
        let began = Instant::now();
        let () = cmd("CLIENT").arg("PAUSE").arg(100).query(client).unwrap();
        // A shorter and milder one changes nothing.
        let () = cmd("CLIENT").arg("PAUSE").arg(1).arg("WRITE").query(client).unwrap();
        let () = cmd("PING").query(client).unwrap();
        assert!(began.elapsed().as_millis() >= 100);
        for (words, error) in [
            (&["x"][..], "timeout is not an integer or out of range"),
            (&["-1"], "timeout is negative"),
            (&["1", "READ"], "CLIENT PAUSE mode must be WRITE or ALL"),
        ] {
            let refused = cmd("CLIENT").arg("PAUSE").arg(words).query::<()>(client).unwrap_err();
            assert_eq!(refused.detail(), Some(error));
        }
    }
}

#[test]
fn readers_that_wait_are_unblocked() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(2);
        for (at, key) in KEYS.iter().enumerate() {
            let mut reader = server.socket();
            let number = number_of(&mut reader);
            let words: [&[u8]; 6] = [b"STREAM.READ", key.as_bytes(), b"0", b"9", b"BLOCK", b"0"];
            reader.send(&request(&words));
            let how = if at % 2 == 0 { "TIMEOUT" } else { "ERROR" };
            let began = Instant::now();
            let mut unblock = || -> i64 {
                cmd("CLIENT").arg("UNBLOCK").arg(number).arg(how).query(client).unwrap()
            };
            while unblock() == 0 {
                assert!(began.elapsed() < PATIENCE, "it should wait");
            }
            reader.expect(match how {
                "TIMEOUT" => b"$-1\r\n",
                _ => b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n",
            });
            assert_eq!(unblock(), 0);
            reader.send(b"PING\r\n");
            reader.expect(b"+PONG\r\n");
        }
    }
}

#[test]
fn channels_of_spublish_are_apart_from_others() {
    for shards in ["1", "3"] {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(2);
        let mut listeners: Vec<Socket> = (0..4).map(|_| server.socket()).collect();
        for listener in &mut listeners {
            listener.send(b"SUBSCRIBE news\r\nSSUBSCRIBE news other\r\n");
            listener.expect(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
            listener.expect(b"*3\r\n$10\r\nssubscribe\r\n$4\r\nnews\r\n:1\r\n");
            listener.expect(b"*3\r\n$10\r\nssubscribe\r\n$5\r\nother\r\n:2\r\n");
        }
        assert_eq!(cmd("SPUBLISH").arg("news").arg("x").query(client), Ok(4));
        assert_eq!(cmd("PUBLISH").arg("other").arg("x").query(client), Ok(0));
        let mut names: Vec<String> = cmd("PUBSUB").arg("SHARDCHANNELS").query(client).unwrap();
        names.sort();
        assert_eq!(names, ["news", "other"]);
        let counts: (String, i64, String, i64) =
            cmd("PUBSUB").arg("SHARDNUMSUB").arg("news").arg("none").query(client).unwrap();
        assert_eq!(counts, ("news".into(), 4, "none".into(), 0));
        for listener in &mut listeners {
            listener.expect(b"*3\r\n$8\r\nsmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n");
            listener.send(b"SUNSUBSCRIBE news\r\nSUNSUBSCRIBE\r\nUNSUBSCRIBE\r\nGET a\r\n");
            listener.expect(b"*3\r\n$12\r\nsunsubscribe\r\n$4\r\nnews\r\n:1\r\n");
            listener.expect(b"*3\r\n$12\r\nsunsubscribe\r\n$5\r\nother\r\n:0\r\n");
            listener.expect(b"*3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n$-1\r\n");
        }
        assert_eq!(cmd("SPUBLISH").arg("news").arg("x").query(client), Ok(0));
    }
}
