//! Streams through a client library and bare sockets: readers that wait, and all that may end it.

use crate::support::{PATIENCE, Server, Socket, request};
use redis::{Commands, Connection, RedisResult, Value, cmd, pipe};
use std::time::{Duration, Instant};

fn append(client: &mut Connection, key: &str, bytes: &[u8]) -> i64 {
    cmd("STREAM.APPEND").arg(key).arg(bytes).query(client).unwrap()
}

fn read(
    client: &mut Connection,
    key: &str,
    offset: u64,
    count: u64,
) -> RedisResult<Option<Vec<u8>>> {
    cmd("STREAM.READ").arg(key).arg(offset).arg(count).query(client)
}

fn blocked(client: &mut Connection) -> u64 {
    let info: redis::InfoDict = cmd("INFO").arg("clients").query(client).unwrap();
    info.get("blocked_clients").unwrap()
}

/// Waits until so many clients wait.
fn until_blocked(client: &mut Connection, count: u64) {
    let began = Instant::now();
    while blocked(client) != count {
        assert!(began.elapsed() < PATIENCE, "{count} clients should wait");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client that has asked for what is not there yet.
fn waiting(server: &Server, client: &mut Connection, words: &[&[u8]], count: u64) -> Socket {
    let mut socket = server.socket();
    socket.send(&request(words));
    until_blocked(client, count);
    socket
}

#[test]
fn long_streams_come_back_byte_for_byte() {
    for protocol in [2, 3] {
        let server = Server::start(&[]);
        let client = &mut server.client(protocol);
        let bytes: Vec<u8> = (0..3_000_000u32).flat_map(|at| at.to_le_bytes()).collect();
        let mut end = 0;
        for part in bytes.chunks(777_777) {
            end += part.len() as i64;
            assert_eq!(append(client, "s", part), end);
        }
        assert_eq!(read(client, "s", 0, u64::MAX).unwrap().unwrap(), bytes);
        for offset in [1, 262_143, 262_144, 5_000_001] {
            let got = read(client, "s", offset as u64, 600_000).unwrap().unwrap();
            assert_eq!(got, bytes[offset..offset + 600_000]);
        }
        assert_eq!(cmd("STREAM.TRIM").arg("s").arg(6_000_000).query(client), Ok(6_000_000));
        let error = read(client, "s", 0, 1).unwrap_err();
        assert_eq!(error.code(), Some("TRIMMED"));
        assert!(error.detail().unwrap().contains("6000000"));
        assert_eq!(read(client, "s", 6_000_000, 9).unwrap().unwrap(), bytes[6_000_000..6_000_009]);
        assert_eq!(client.del("s"), Ok(1));
        assert_eq!(read(client, "s", 0, 1).unwrap(), None);
    }
}

#[test]
fn a_reader_at_the_end_wakes_when_something_is_appended() {
    let server = Server::start(&[]);
    let client = &mut server.client(2);
    append(client, "s", b"old");
    let words: [&[u8]; 6] = [b"STREAM.READ", b"s", b"3", b"100", b"BLOCK", b"0"];
    let mut tail = waiting(&server, client, &words, 1);
    let mut early: [&[u8]; 6] = words;
    (early[1], early[2]) = (b"not-yet", b"0");
    let mut first = waiting(&server, client, &early, 2);
    // What it sends meanwhile waits behind it; others go on.
    tail.send(&request(&[b"PING"]));
    assert_eq!(client.set("v", 1), Ok(()));
    assert_eq!(append(client, "s", b"new"), 6);
    tail.expect(b"$3\r\nnew\r\n+PONG\r\n");
    until_blocked(client, 1);
    // A transaction shows a reader all that it appends.
    let ends: (i64, i64) = pipe()
        .atomic()
        .cmd("STREAM.APPEND")
        .arg("not-yet")
        .arg("one ")
        .cmd("STREAM.APPEND")
        .arg("not-yet")
        .arg("step")
        .query(client)
        .unwrap();
    assert_eq!(ends, (4, 8));
    first.expect(b"$8\r\none step\r\n");
    until_blocked(client, 0);
}

#[test]
fn a_reader_gives_up_in_time_and_in_transactions_at_once() {
    let server = Server::start(&[]);
    let client = &mut server.client(2);
    let mut socket = server.socket();
    let began = Instant::now();
    socket.send(&request(&[b"STREAM.READ", b"s", b"0", b"1", b"BLOCK", b"30"]));
    socket.expect(b"$-1\r\n");
    assert!(began.elapsed() >= Duration::from_millis(30), "not before its time");
    let (nothing,): (Value,) = pipe()
        .atomic()
        .cmd("STREAM.READ")
        .arg("s")
        .arg(0)
        .arg(1)
        .arg("BLOCK")
        .arg(0)
        .query(client)
        .unwrap();
    assert_eq!(nothing, Value::Nil);
    // A removal wakes it to look, and it goes on waiting, until its own time.
    append(client, "s", b"x");
    let began = Instant::now();
    let words: [&[u8]; 6] = [b"STREAM.READ", b"s", b"1", b"1", b"BLOCK", b"200"];
    let mut socket = waiting(&server, client, &words, 1);
    assert_eq!(client.del("s"), Ok(1));
    socket.expect(b"$-1\r\n");
    assert!(began.elapsed() >= Duration::from_millis(200), "not before its time");
    // A value in its place is answered at once.
    let words: [&[u8]; 6] = [b"STREAM.READ", b"s", b"0", b"1", b"BLOCK", b"0"];
    let mut socket = waiting(&server, client, &words, 1);
    assert_eq!(client.set("s", "value"), Ok(()));
    socket.expect(b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
    until_blocked(client, 0);
}

#[test]
fn a_reader_that_hangs_up_is_forgotten() {
    for shards in ["1", "3"] {
        a_reader_hangs_up(&Server::start(&["--shards", shards]));
    }
}

fn a_reader_hangs_up(server: &Server) {
    let client = &mut server.client(2);
    let words: [&[u8]; 6] = [b"STREAM.READ", b"s", b"0", b"1", b"BLOCK", b"0"];
    let gone: Vec<Socket> = (1..=20).map(|count| waiting(server, client, &words, count)).collect();
    drop(gone);
    until_blocked(client, 0);
    let mut killed = waiting(server, client, &words, 1);
    let killed_count: i64 =
        cmd("CLIENT").arg("KILL").arg("SKIPME").arg("yes").query(client).unwrap();
    assert!(killed_count >= 1);
    killed.expect_end(b"");
    until_blocked(client, 0);
    assert_eq!(append(client, "s", b"x"), 1);
}

#[test]
fn an_append_breaks_a_watch() {
    let server = Server::start(&[]);
    let (client, other) = (&mut server.client(2), &mut server.client(2));
    append(client, "s", b"x");
    for (change, fails) in [(true, true), (false, false)] {
        let _: () = cmd("WATCH").arg("s").query(client).unwrap();
        if change {
            append(other, "s", b"y");
        }
        let done: Option<(String,)> = pipe().atomic().set("v", 1).query(client).unwrap();
        assert_eq!(done.is_none(), fails);
    }
}

#[test]
fn a_spill_directory_has_one_server_and_outlives_a_kill() {
    let place = tempfile::tempdir().unwrap();
    let flags = ["--spill", place.path().to_str().unwrap(), "--spill-size", "67108864"];
    let server = Server::start(&flags);
    let client = &mut server.client(2);
    assert_eq!(append(client, "s", b"x"), 1);
    let mut second = crate::support::program();
    let refused = second.args(["serve", "--port", "0"]).args(flags).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("another process"), "{told}");
    // Killed, not asked to end; what lies about is no obstacle.
    drop(server);
    let server = Server::start(&flags);
    assert_eq!(read(&mut server.client(2), "s", 0, 1).unwrap(), None);
    let mut small = crate::support::program();
    let refused =
        small.args(["serve", "--port", "0", "--spill", "x", "--spill-size", "1000"]).output();
    let told = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(told.contains("67108864"), "{told}");
    assert!(!std::path::Path::new("x").exists());
}

/// A byte of a stream of the test below: any reader can tell whether it is right.
fn byte(stream: u64, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ stream as u8
}

#[test]
fn none_of_many_small_streams_vanishes_while_the_disk_has_room() {
    let place = tempfile::tempdir().unwrap();
    let spill = ["--spill", place.path().to_str().unwrap(), "--spill-size", "1gb"];
    let bound = ["--shards", "1", "--memory", "64mb", "--memory-policy", "allkeys-lru"];
    let server = Server::start(&[&bound[..], &spill[..]].concat());
    let client = &mut server.client(2);
    let (streams, bytes) = (30_000, 5_000);
    let whole = |stream: u64| (0..bytes).map(|at| byte(stream, at)).collect::<Vec<u8>>();
    for some in (0..streams).collect::<Vec<u64>>().chunks(100) {
        let mut all = pipe();
        for &stream in some {
            all.cmd("STREAM.APPEND").arg(format!("s{stream}")).arg(whole(stream)).ignore();
        }
        let () = all.query(client).unwrap();
    }
    let mut ends = 0;
    for some in (0..streams).collect::<Vec<u64>>().chunks(1000) {
        let mut all = pipe();
        some.iter().for_each(|stream| _ = all.cmd("STREAM.LEN").arg(format!("s{stream}")));
        let found: Vec<u64> = all.query(client).unwrap();
        ends += found.iter().filter(|end| **end == bytes).count();
    }
    assert_eq!(ends as u64, streams);
    let mut whole_ones = 0;
    for stream in (0..streams).step_by(37) {
        match read(client, &format!("s{stream}"), 0, bytes) {
            Ok(Some(found)) => {
                assert!(found == whole(stream), "s{stream}");
                whole_ones += 1;
            }
            // The disk was behind.
            Err(error) => assert_eq!(error.code(), Some("EVICTED"), "{error}"),
            Ok(None) => panic!("s{stream} has vanished"),
        }
    }
    assert!(whole_ones > 100, "{whole_ones}");
}

#[test]
fn live_streams_keep_their_ends_and_last_parts_while_memory_is_short() {
    let place = tempfile::tempdir().unwrap();
    let spill = ["--spill", place.path().to_str().unwrap(), "--spill-size", "100mb"];
    let bound = ["--shards", "1", "--memory", "48mb", "--memory-policy", "allkeys-lru"];
    for (flags, streams) in [(&spill[..], 8), (&[], 8), (&spill, 400)] {
        let server = Server::start(&[&bound[..], flags].concat());
        let client = &mut server.client(2);
        let appends = 5_000 / streams;
        for at in 0..appends {
            let mut all = pipe();
            for stream in 0..streams {
                let first = at * 32_000;
                let part: Vec<u8> =
                    (first..first + 32_000).map(|offset| byte(stream, offset)).collect();
                all.cmd("STREAM.APPEND").arg(format!("s{stream}")).arg(part);
                // Others come and go beside them.
                all.cmd("SET").arg(format!("v{}", at * streams + stream)).arg("x").ignore();
            }
            let ends: Vec<u64> = all.query(client).unwrap();
            assert!(ends.iter().all(|end| *end == (at + 1) * 32_000), "{ends:?} after {at}");
        }
        let (mut read_at, mut evicted) = (0, 0);
        for stream in 0..streams {
            let (key, end) = (format!("s{stream}"), appends * 32_000);
            // The last part is there, unless last parts are what fills the memory and the directory.
            let got = read(client, &key, end - 4_000, 4_000);
            assert!(streams > 8 || got.as_ref().is_ok_and(|got| got.is_some()), "{got:?}");
            for offset in (0..end).step_by(50_021) {
                match read(client, &key, offset, 300) {
                    Ok(Some(bytes)) => {
                        let expected = offset..offset + bytes.len() as u64;
                        assert!(bytes.iter().copied().eq(expected.map(|at| byte(stream, at))));
                        read_at += 1;
                    }
                    Ok(None) => panic!("{key} has vanished"),
                    Err(error) => {
                        assert_eq!(error.code(), Some("EVICTED"), "{error}");
                        evicted += 1;
                    }
                }
            }
            assert_eq!(append(client, &key, b"on"), end as i64 + 2);
        }
        assert!(read_at > 0 && evicted > 0, "{read_at} were there, {evicted} not");
    }
}
