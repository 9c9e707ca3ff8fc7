//! memcached's protocol with several shards: the same random requests, pipelined, to a server of one shard and to one of
//! several; and what comes together.
//!
//! `HEADWATER_SHARDS_ROUNDS=1000` compares more often; `HEADWATER_SHARDS_SEED=7` begins with another seed.

use crate::bound::Draws;
use crate::support::{PATIENCE, Server, Socket, number_from};
use std::io::Read;
use std::time::Instant;

fn start(shards: &str) -> Server {
    Server::start(&["--memcached-port", "0", "--shards", shards])
}

fn key(draws: &mut Draws) -> String {
    format!("k{}", draws.below(8))
}

/// A request, with its data.
fn item(draws: &mut Draws) -> String {
    let key = key(draws);
    let noreply = ["", "", "", " noreply"][draws.below(4) as usize];
    let value = ["1", "15", "value", "", "a\r\nEND\r\n"][draws.below(5) as usize];
    let len = value.len();
    match draws.below(24) {
        0..5 => {
            let verb = ["set", "set", "add", "replace", "append", "prepend"];
            let verb = verb[draws.below(6) as usize];
            format!("{verb} {key} {} 0 {len}{noreply}\r\n{value}\r\n", draws.below(3))
        }
        5..12 => {
            let verb = ["get ", "get ", "gat 100 "][draws.below(3) as usize];
            let keys: Vec<String> = (0..=draws.below(5)).map(|_| self::key(draws)).collect();
            format!("{verb}{}\r\n", keys.join(" "))
        }
        12 => format!("incr {key} {}{noreply}\r\n", draws.below(9)),
        13 => format!("decr {key} {}{noreply}\r\n", draws.below(9)),
        14 => format!("delete {key}{noreply}\r\n"),
        15 => format!("touch {key} 100{noreply}\r\n"),
        16 => format!("ms {key} {len} T0 F7{}\r\n{value}\r\n", [" q", ""][draws.below(2) as usize]),
        17 => format!("mg {key} v k f{}\r\n", [" q", " O12"][draws.below(2) as usize]),
        18 => format!("md {key} q\r\nmn\r\n"),
        19 => format!("ma {key} N0 J5 v{}\r\n", [" q", ""][draws.below(2) as usize]),
        // `k1`, in base64.
        20 => String::from("mg azE= v k b\r\n"),
        21 => meta(draws, &key),
        22 => format!("get {}\r\n", "x".repeat(251)),
        _ => match draws.below(8) {
            0 => format!("flush_all{noreply}\r\n"),
            1 => String::from("nonsense\r\n"),
            2 => format!("set {key} 0 0 x\r\n"),
            3 => String::from("verbosity 1\r\n"),
            _ => format!("mg {key}\r\n"),
        },
    }
}

/// A meta command whose flags do more than the usual.
fn meta(draws: &mut Draws, key: &str) -> String {
    let quiet = [" q", ""][draws.below(2) as usize];
    match draws.below(9) {
        0 => String::from("mn\r\n"),
        1 => format!("mg {key} s t v T{}{quiet}\r\n", 50 + 50 * draws.below(2)),
        2 => format!("mg {key} N100 R200 v t k Oabc\r\n"),
        3 => format!("mg {key} h s f\r\n"),
        4 => format!("md {key} I T100 O7 k{quiet}\r\n"),
        5 => format!("md {key} x{quiet}\r\n"),
        6 => format!("ma {key} MD D2 N100 J9 t v k\r\n"),
        7 => {
            let mode = ["A", "P", "E", "R", "S", "x"][draws.below(6) as usize];
            format!("ms {key} 2 M{mode} N100 k O1{quiet}\r\n7x\r\n")
        }
        _ => format!("mg {key} v v\r\nma {key} Dx\r\nms {key} 1 T0\r\nxyz\r\n"),
    }
}

/// The answer to all of these requests: up to that of one that comes last.
fn answer(socket: &mut Socket, requests: &str) -> String {
    socket.send(requests.as_bytes());
    socket.send(b"mg the-end k\r\n");
    let mut got = Vec::new();
    while !got.ends_with(b"EN kthe-end\r\n") {
        let mut some = [0; 65536];
        let count = socket.stream().read(&mut some).unwrap();
        assert!(count > 0, "closed after {}", got.escape_ascii());
        got.extend_from_slice(&some[..count]);
    }
    got.escape_ascii().to_string()
}

#[test]
fn several_shards_answer_as_one() {
    let rounds = number_from("HEADWATER_SHARDS_ROUNDS", 60);
    let first = number_from("HEADWATER_SHARDS_SEED", 1);
    let (one, three) = (start("1"), start("3"));
    let mut sockets: Vec<_> = (0..3).map(|_| (one.memcached(), three.memcached())).collect();
    for seed in first..first + rounds {
        let mut draws = Draws(seed);
        for _ in 0..12 {
            let requests: Vec<_> = (0..=draws.below(14)).map(|_| item(&mut draws)).collect();
            let requests = requests.concat();
            let (one, three) = &mut sockets[draws.below(3) as usize];
            let expected = answer(one, &requests);
            assert_eq!(answer(three, &requests), expected, "seed {seed}: {requests}");
        }
    }
}

#[test]
fn long_values_and_many_keys_come_in_order() {
    let server = start("3");
    let mut items = server.memcached();
    let value = "v".repeat(100_000);
    let sets: Vec<_> =
        (0..30).map(|at| format!("set big{at} {at} 0 100000\r\n{value}\r\n")).collect();
    items.send(sets.concat().as_bytes());
    items.expect("STORED\r\n".repeat(30).as_bytes());
    let keys: Vec<_> = (0..30).rev().map(|at| format!("big{at}")).collect();
    items.send(format!("get {}\r\nmn\r\n", keys.join(" ")).as_bytes());
    for at in (0..30).rev() {
        items.expect(format!("VALUE big{at} {at} 100000\r\n{value}\r\n").as_bytes());
    }
    items.expect(b"END\r\nMN\r\n");
    // A value too long is skipped, and what it was to replace goes, wherever that lives.
    for at in 0..6 {
        let large = 600_000_000u64;
        let request = format!("set big{at} 0 0 {large}\r\n");
        let mut other = server.memcached();
        other.send(request.as_bytes());
        other.expect(b"SERVER_ERROR object too large for cache\r\n");
        items.send(format!("get big{at}\r\n").as_bytes());
        items.expect(b"END\r\n");
    }
}

#[test]
fn what_all_shards_know_comes_together() {
    let server = start("3");
    let (mut items, mut resp) = (server.memcached(), server.socket());
    for at in 0..30 {
        items.send(format!("set k{at} 0 0 1\r\nx\r\n").as_bytes());
        items.expect(b"STORED\r\n");
    }
    items.send(b"stats\r\n");
    let stats = String::from_utf8(items.until(b"END\r\n")).unwrap();
    for line in ["curr_items 30", "cmd_set 30", "threads 3", "curr_connections 2"] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} is not in\n{stats}");
    }
    // Both protocols have the same keys, and versions are different ones on all shards.
    resp.send(b"GET k7\r\nDBSIZE\r\n");
    resp.expect(b"$1\r\nx\r\n:30\r\n");
    let mut versions = Vec::new();
    for at in 0..30 {
        items.send(format!("gets k{at}\r\n").as_bytes());
        let line = String::from_utf8(items.until(b"END\r\n")).unwrap();
        let version = line.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned();
        items.send(format!("cas k{at} 0 0 1 {version}\r\ny\r\n").as_bytes());
        items.expect(b"STORED\r\n");
        items.send(format!("cas k{at} 0 0 1 {version}\r\nz\r\n").as_bytes());
        items.expect(b"EXISTS\r\n");
        versions.push(version);
    }
    versions.sort();
    versions.dedup();
    assert_eq!(versions.len(), 30);
    // One key is at one shard, and what the others have counted is told all the same.
    items.send(b"flush_all\r\nget k1\r\nset only 0 0 1\r\nx\r\n");
    items.expect(b"OK\r\nEND\r\nSTORED\r\n");
    for at in 0..30 {
        resp.send(format!("SET k{at} v PX 1\r\n").as_bytes());
        resp.expect(b"+OK\r\n");
    }
    let mut told = |request: &[u8]| {
        items.send(request);
        String::from_utf8(items.until(b"END\r\n")).unwrap()
    };
    let began = Instant::now();
    while !told(b"stats\r\n").contains("STAT reclaimed 30\r\n") {
        assert!(began.elapsed() < PATIENCE, "they should expire");
    }
    let of_class = told(b"stats items\r\n");
    assert!(of_class.contains("items:1:number 1\r\n"), "{of_class}");
    assert!(of_class.contains("items:1:reclaimed 30\r\n"), "{of_class}");
    told(b"delete only\r\nget only\r\n");
    assert_eq!(told(b"stats items\r\n"), "END\r\n");
    items.send(b"flush_all\r\nget k1 k2 k3\r\nstats reset\r\n");
    items.expect(b"OK\r\nEND\r\nRESET\r\n");
    resp.send(b"DBSIZE\r\n");
    resp.expect(b":0\r\n");
}

#[test]
fn what_joins_give_shows_what_was_written_before() {
    let server = start("3");
    let (mut items, mut client) = (server.memcached(), server.client(3));
    for (name, spec) in [
        ("karma", "karma|<author> = count vote|<author>|<id>|<voter>"),
        ("page", "page|<voter>|<author> = check vote|<author>|<id>|<voter> copy karma|<author>"),
    ] {
        let _: redis::Value =
            redis::cmd("JOIN.ADD").arg(name).arg(spec).query(&mut client).unwrap();
    }
    for round in 1..30 {
        let request =
            format!("set vote|ann|{round}|bob 0 0 1\r\n1\r\nget karma|ann\r\nget page|bob|ann\r\n");
        items.send(request.as_bytes());
        let (digits, number) = (round.to_string().len(), round);
        items.expect(
            format!(
                "STORED\r\nVALUE karma|ann 0 {digits}\r\n{number}\r\nEND\r\n\
                 VALUE page|bob|ann 0 {digits}\r\n{number}\r\nEND\r\n"
            )
            .as_bytes(),
        );
    }
}
