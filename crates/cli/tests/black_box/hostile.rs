//! Input that no honest client sends gets an error or a closed connection, and takes little
//! memory; other clients are served all the while.

use crate::support::{PATIENCE, Server, request};
use std::io::Write;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The server still answers others.
#[track_caller]
fn still_serves(server: &Server) {
    let mut socket = server.socket();
    socket.send(b"PING\r\n");
    socket.expect(b"+PONG\r\n");
}

#[test]
fn absurd_lengths_are_refused_before_their_bytes_come() {
    let server = Server::start(&[]);
    let before = server.memory_bytes("VmHWM");
    for (sent, told) in [
        (&b"*1000000000\r\n"[..], &b"-ERR Protocol error: invalid multibulk length\r\n"[..]),
        (b"*1\r\n$10737418240\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n$-1\r\n", b"-ERR Protocol error: invalid bulk length\r\n"),
        (b"*x\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*2\r\nfoo\r\n", b"-ERR Protocol error: expected '$', got 'f'\r\n"),
        (b"GET \"a\r\n", b"-ERR Protocol error: unbalanced quotes in request\r\n"),
    ] {
        let mut socket = server.socket();
        socket.send(sent);
        socket.expect_end(told);
    }
    still_serves(&server);
    assert!(server.memory_bytes("VmHWM") < before + 8 * MIB);
}

#[test]
fn announced_arguments_take_memory_only_as_they_come() {
    let server = Server::start(&[]);
    let before = server.memory_bytes("VmRSS");
    // Many connections, each of which announces as much as is allowed and sends little.
    let mut sockets: Vec<_> = (0..200).map(|_| server.socket()).collect();
    for socket in &mut sockets {
        socket.send(b"*1048576\r\n$3\r\nDEL\r\n$134000000\r\nabc");
    }
    still_serves(&server);
    assert!(server.memory_bytes("VmRSS") < before + 32 * MIB);
}

#[test]
fn an_endless_line_is_cut_off() {
    let server = Server::start(&[]);
    let mut socket = server.socket();
    let _ = socket.try_send(&vec![b'a'; 1 << 20]);
    let got = socket.rest();
    // The reply may be lost when the server closes on unread input.
    let told = b"-ERR Protocol error: too big inline request\r\n";
    assert!(got.is_empty() || got == told, "{}", got.escape_ascii());
    still_serves(&server);
}

#[test]
fn garbage_ends_or_is_answered() {
    const BYTES: &[u8] = b"*$0123456789\r\n\r\n-+:GETSX\" \\x\0\xff";
    let server = Server::start(&[]);
    let mut state = 0x9e37_79b9_u32;
    for round in 0..300 {
        let mut socket = server.socket();
        let bytes: Vec<u8> = (0..200 + round)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Mostly the bytes that the protocol is made of.
                BYTES[(state >> 16) as usize % BYTES.len()]
            })
            .collect();
        let _ = socket.try_send(&bytes);
        // The server may have closed already, which ends sending too.
        let _ = socket.stream().shutdown(std::net::Shutdown::Write);
        socket.rest();
    }
    still_serves(&server);
}

#[test]
fn half_requests_are_kept_until_they_are_whole() {
    let server = Server::start(&[]);
    let mut slow = server.socket();
    let long = vec![b'v'; 100_000];
    let bytes = [request(&[b"SET", b"k", &long]), request(&[b"STRLEN", b"k"])].concat();
    for (at, piece) in bytes.chunks(9_973).enumerate() {
        slow.send(piece);
        if at % 3 == 0 {
            still_serves(&server);
        }
    }
    slow.expect(b"+OK\r\n:100000\r\n");
    for byte in request(&[b"SET", b"k", b"bytewise"]) {
        slow.send(&[byte]);
    }
    slow.expect(b"+OK\r\n");
    slow.send(b"  get\tk  \r\n\r\nECHO \"a\\x41\"\r\n");
    slow.expect(b"$8\r\nbytewise\r\n$2\r\naA\r\n");
    // What came whole is answered though the client ends in the middle of a request.
    slow.send(b"PING\r\n*2\r\n$3\r\nGET\r\n$1\r\n");
    slow.end_sending();
    slow.expect_end(b"+PONG\r\n");
}

#[test]
fn who_never_reads_is_stopped_and_then_disconnected() {
    let server = Server::with_config(
        "[clients]\noutput-bytes-soft = 1048576\noutput-stuck-seconds-max = 2\n",
    );
    let mut socket = server.socket();
    socket.send(&request(&[b"SET", b"k", &vec![b'v'; 10_000]]));
    socket.expect(b"+OK\r\n");
    let before = server.memory_bytes("VmRSS");
    let pipeline = request(&[b"GET", b"k"]).repeat(1000);
    let began = Instant::now();
    // Each round asks for 10 MB; the server stops reading, so sending stops too, and then it
    // hangs up.
    let failed = loop {
        match socket.stream().write_all(&pipeline) {
            Ok(()) => assert!(began.elapsed() < PATIENCE, "the server takes everything"),
            Err(error) => break error,
        }
        assert!(server.memory_bytes("VmRSS") < before + 32 * MIB);
    };
    assert_ne!(failed.kind(), std::io::ErrorKind::WouldBlock, "the server never hangs up");
    still_serves(&server);
}

#[test]
fn a_reader_that_is_merely_slow_gets_everything() {
    let server = Server::with_config("[clients]\noutput-bytes-soft = 65536\n");
    let mut socket = server.socket();
    let value = vec![b'v'; 10_000];
    socket.send(&request(&[b"SET", b"k", &value]));
    socket.expect(b"+OK\r\n");
    let mut writer = socket.stream().try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        writer.write_all(&request(&[b"GET", b"k"]).repeat(3000)).unwrap();
    });
    let reply = [b"$10000\r\n", &value[..], b"\r\n"].concat();
    for round in 0..3000 {
        if round % 1000 == 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
        socket.expect(&reply);
    }
    sender.join().unwrap();
}

#[test]
fn a_subscriber_that_never_reads_is_disconnected() {
    let server = Server::with_config("[clients]\npubsub-output-bytes-max = 1048576\n");
    let mut deaf = server.socket();
    deaf.send(b"SUBSCRIBE news\r\n");
    deaf.expect(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    let mut speaker = server.socket();
    let message = request(&[b"PUBLISH", b"news", &vec![b'm'; 100_000]]);
    let began = Instant::now();
    loop {
        speaker.send(&message);
        let mut reply = [0; 4];
        std::io::Read::read_exact(speaker.stream(), &mut reply).unwrap();
        if &reply == b":0\r\n" {
            break;
        }
        assert_eq!(&reply, b":1\r\n");
        assert!(began.elapsed() < PATIENCE, "the subscriber is never disconnected");
    }
    still_serves(&server);
}

#[test]
fn too_many_clients_are_told() {
    for shards in ["1", "3"] {
        no_client_more(&Server::start(&["--maxclients", "2", "--shards", shards]));
    }
}

fn no_client_more(server: &Server) {
    let mut first = server.socket();
    first.send(b"PING\r\n");
    first.expect(b"+PONG\r\n");
    let mut second = server.socket();
    // Another thread may accept the next one.
    second.send(b"PING\r\n");
    second.expect(b"+PONG\r\n");
    server.socket().expect_end(b"-ERR max number of clients reached\r\n");
    drop(second);
    // The place is free again, as soon as the server has noticed.
    let began = Instant::now();
    loop {
        let mut again = server.socket();
        let _ = again.try_send(b"PING\r\n");
        let mut head = [0; 1];
        if std::io::Read::read(again.stream(), &mut head).is_ok() && head == *b"+" {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "the place never becomes free");
    }
    first.send(b"PING\r\n");
    first.expect(b"+PONG\r\n");
}

#[test]
fn idle_clients_are_closed_but_not_subscribers() {
    let server = Server::with_config("[clients]\nidle-seconds-max = 1\n");
    let mut listener = server.socket();
    listener.send(b"SUBSCRIBE news\r\n");
    listener.expect(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    server.socket().expect_end(b"");
    let mut speaker = server.socket();
    speaker.send(b"PUBLISH news hi\r\n");
    speaker.expect(b":1\r\n");
    listener.expect(b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\nhi\r\n");
}
