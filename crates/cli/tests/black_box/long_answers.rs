//! Answers with very many pairs are given in slices: others are served, and write, while a client takes its answer, which shows
//! the moment at which it began.

use crate::support::{Server, Socket, request};
use redis::Connection;
use std::fmt::Write;

/// Keys that are read; their values together take more than sockets hold.
const KEYS: usize = 20_000;
const VALUE_BYTES: usize = 3000;

fn key(number: usize) -> String {
    format!("k|{number:05}")
}

fn value(number: usize) -> String {
    format!("{number:0VALUE_BYTES$}")
}

fn server() -> (Server, Connection) {
    let server = Server::start(&["--shards", "1"]);
    let mut client = server.client(3);
    for first in (0..KEYS).step_by(1000) {
        let mut set = redis::cmd("MSET");
        for number in first..first + 1000 {
            set.arg(key(number)).arg(value(number));
        }
        set.exec(&mut client).unwrap();
    }
    redis::cmd("CONFIG").arg("SET").arg("slice-rows").arg(100).exec(&mut client).unwrap();
    (server, client)
}

/// The pairs as RESP2 has them.
fn answer(numbers: impl DoubleEndedIterator<Item = usize>) -> Vec<u8> {
    let mut pairs = String::new();
    let mut count = 0;
    for number in numbers {
        let (key, value) = (key(number), value(number));
        write!(pairs, "${}\r\n{key}\r\n${VALUE_BYTES}\r\n{value}\r\n", key.len()).unwrap();
        count += 2;
    }
    format!("*{count}\r\n{pairs}").into_bytes()
}

/// Asks for an answer, and takes only its first line for now.
fn ask(server: &Server, words: &[&[u8]], header: &str) -> Socket {
    let mut asking = server.socket();
    asking.send(&request(words));
    asking.expect(header.as_bytes());
    asking
}

fn run(client: &mut Connection, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.exec(client).unwrap();
}

/// Changes of every kind, at both ends of what is read and in its midst.
fn change(client: &mut Connection) {
    for number in [0, 1, KEYS / 2, KEYS - 2, KEYS - 1] {
        run(client, &["SET", &key(number), "another"]);
        run(client, &["APPEND", &key((number + 5) % KEYS), "more"]);
    }
    for number in [3, KEYS / 2 + 7, KEYS - 3] {
        run(client, &["DEL", &key(number)]);
        run(client, &["SET", &format!("{}|new", key(number)), "new"]);
        run(client, &["SETRANGE", &key(number + 1), "10", "changed"]);
    }
    run(client, &["RENAME", &key(KEYS / 2 + 20), "moved"]);
    run(client, &["PEXPIRE", &key(KEYS - 50), "1"]);
    run(client, &["RANGE.DEL", &key(KEYS - 300), &key(KEYS - 200)]);
}

#[test]
fn an_answer_shows_the_moment_at_which_it_began() {
    let (server, mut client) = server();
    let mut forth = ask(&server, &[b"PREFIX", b"k|"], "*40000\r\n");
    let back = [&b"RANGE"[..], b"k|", b"k}", b"REV", b"LIMIT", b"19990"];
    let mut back = ask(&server, &back, "*39980\r\n");
    let mut all = ask(&server, &[b"RANGE", b"", b""], "*40000\r\n");
    change(&mut client);
    let expected = answer(0..KEYS);
    let body = expected.len() - "*40000\r\n".len();
    for socket in [&mut forth, &mut all] {
        assert!(socket.take(body) == expected[expected.len() - body..], "it is as it was");
    }
    let expected = answer((10..KEYS).rev());
    let body = expected.len() - "*39980\r\n".len();
    assert!(back.take(body) == expected[expected.len() - body..], "it is as it was");
    // Who asks now sees what is so now.
    let now: Vec<String> = redis::cmd("PREFIX").arg("k|").arg("KEYS").query(&mut client).unwrap();
    assert_eq!(now.len(), KEYS - 3 + 3 - 1 - 1 - 100);
    assert!(now.contains(&format!("{}|new", key(3))) && !now.contains(&key(3)));
}

#[test]
fn requests_and_messages_come_behind_an_answer() {
    let (server, mut client) = server();
    let mut socket = server.socket();
    socket.send(b"HELLO 3\r\nCLIENT TRACKING ON BCAST PREFIX k|\r\nSUBSCRIBE news\r\n");
    socket.until(b"subscribe\r\n$4\r\nnews\r\n:1\r\n");
    socket.send(b"PREFIX k|\r\nECHO behind\r\n");
    socket.expect(b"%20000\r\n");
    run(&mut client, &["SET", &key(KEYS - 1), "another"]);
    run(&mut client, &["PUBLISH", "news", "hello"]);
    let expected = answer(0..KEYS);
    let body = expected.len() - "*40000\r\n".len();
    let got = socket.take(body);
    let same =
        got.iter().zip(&expected[expected.len() - body..]).take_while(|(a, b)| a == b).count();
    let odd = got[same.saturating_sub(50)..(same + 200).min(body)].escape_ascii().to_string();
    assert_eq!(same, body, "nothing comes within it: {odd}");
    let behind = String::from_utf8(socket.until(b"$6\r\nbehind\r\n")).unwrap();
    assert!(behind.contains("invalidate") && behind.contains("hello"), "{behind}");
}

#[test]
fn an_answer_that_too_much_overtakes_is_broken_off() {
    let (server, mut client) = server();
    run(
        &mut client,
        &["CONFIG", "SET", "output-bytes-soft", "4000000", "output-bytes-max", "8000000"],
    );
    let mut asking = ask(&server, &[b"PREFIX", b"k|"], "*40000\r\n");
    for number in 0..KEYS {
        run(&mut client, &["SET", &key(number), "another"]);
    }
    let rest = asking.rest();
    let expected = answer(0..KEYS);
    let expected = &expected["*40000\r\n".len()..];
    assert!(rest.len() < expected.len() && rest == expected[..rest.len()], "what it got was right");
}

#[test]
fn what_is_kept_for_a_reader_goes_with_it() {
    let (server, mut client) = server();
    let mut used = || -> u64 {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut client).unwrap();
        let line = info.lines().find(|line| line.starts_with("used_memory:")).unwrap();
        line["used_memory:".len()..].parse().unwrap()
    };
    let full = used();
    let asking = ask(&server, &[b"PREFIX", b"k|"], "*40000\r\n");
    let mut client = server.client(3);
    for number in 0..KEYS {
        run(&mut client, &["SET", &key(number), "short"]);
    }
    assert!(used() > full / 2, "it is kept");
    drop(asking);
    // The loop hears of it in a turn to come.
    while used() > full / 2 {}
}

#[test]
fn counting_ends_in_one_moment_too() {
    let (server, mut client) = server();
    let mut socket = server.socket();
    // All of it is in one batch of input, so the counts begin before the removals are done, or after.
    socket.send(b"PREFIX k| COUNT\r\nPREFIX k| COUNT\r\n");
    run(&mut client, &["FLUSHALL"]);
    let first = String::from_utf8(socket.until(b"\r\n")).unwrap();
    assert!(first == ":20000\r\n" || first == ":0\r\n", "{first}");
    let second = String::from_utf8(socket.until(b"\r\n")).unwrap();
    assert!(second == ":20000\r\n" || second == ":0\r\n", "{second}");
}
