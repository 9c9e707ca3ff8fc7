//! Long values are sent from where they are, whatever happens to their keys meanwhile.

use crate::support::{Server, request};
use std::io::Write;

/// Bytes that look different everywhere.
fn bytes(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Bytes that values take, as the server counts them.
fn value_bytes(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO").arg("memory").query(&mut server.client(2)).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory_values:"));
    line.expect("a line for values").parse().unwrap()
}

#[test]
fn they_arrive_whole_and_in_order_among_others() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    let values = [bytes(15_000, 1), bytes(20_000, 2), bytes(300_001, 3), bytes(9 << 20, 4)];
    for (at, value) in values.iter().enumerate() {
        socket.send(&request(&[b"SET", &[b'a' + at as u8], value]));
        socket.expect(b"+OK\r\n");
    }
    let mut asked = Vec::new();
    let mut expected = Vec::new();
    for round in 0..40u32 {
        let (one, other) = (round as usize % 3, round as usize * 7 % 4);
        asked.extend(request(&[b"GET", &[b'a' + one as u8]]));
        expected.extend(bulk(&values[one]));
        asked.extend(request(&[b"MGET", &[b'a' + other as u8], b"none", &[b'a' + one as u8]]));
        expected.extend(
            [b"*3\r\n", &bulk(&values[other])[..], b"$-1\r\n", &bulk(&values[one])].concat(),
        );
        asked.extend(b"MULTI\r\nGET c\r\nPING\r\nEXEC\r\n");
        expected.extend(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n");
        expected.extend([&bulk(&values[2])[..], b"+PONG\r\n"].concat());
        asked.extend(b"CLIENT REPLY SKIP\r\nGET d\r\nPREFIX c\r\n");
        expected.extend([b"*2\r\n", &bulk(b"c")[..], &bulk(&values[2])].concat());
    }
    let mut writer = socket.stream().try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&asked).unwrap());
    socket.expect(&expected);
    sender.join().unwrap();
}

#[test]
fn they_arrive_as_they_were_though_their_keys_are_changed_or_gone() {
    let server = Server::start(&[]);
    let empty = value_bytes(&server);
    let mut socket = server.socket();
    let value = bytes(40 << 20, 5);
    socket.send(&request(&[b"SET", b"k", &value]));
    socket.expect(b"+OK\r\n");
    // The socket cannot take all of it: the rest waits while the key is changed.
    socket.send(&[request(&[b"GET", b"k"]), request(&[b"STRLEN", b"k"])].concat());
    let mut other = server.socket();
    other.send(&request(&[b"APPEND", b"k", b"more"]));
    other.expect(format!(":{}\r\n", (40 << 20) + 4).as_bytes());
    other.send(&request(&[b"SET", b"k", &bytes(40 << 20, 6)]));
    other.expect(b"+OK\r\n");
    other.send(b"FLUSHALL\r\n");
    other.expect(b"+OK\r\n");
    assert!(value_bytes(&server) > 0, "what is being sent is not gone");
    socket.expect(&bulk(&value));
    socket.expect(format!(":{}\r\n", 40 << 20).as_bytes());
    assert_eq!(value_bytes(&server), empty);
}

#[test]
fn a_client_that_leaves_gives_them_back() {
    let server = Server::start(&[]);
    let empty = value_bytes(&server);
    let mut socket = server.socket();
    socket.send(&request(&[b"SET", b"k", &bytes(40 << 20, 7)]));
    socket.expect(b"+OK\r\n");
    socket.send(&request(&[b"GET", b"k"]).repeat(3));
    socket.expect(format!("${}\r\n", 40 << 20).as_bytes());
    drop(socket);
    let mut other = server.socket();
    other.send(b"DEL k\r\n");
    other.expect(b":1\r\n");
    let began = std::time::Instant::now();
    while value_bytes(&server) > empty {
        assert!(began.elapsed() < crate::support::PATIENCE, "the value is still held");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
