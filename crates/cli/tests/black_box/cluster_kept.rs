//! What a cluster keeps of each kind of data when its owner is killed: plain keys and those of tables, streams, times to live, versions, and values that
//! are longer than a message may be; and of tables that are not to be kept, nothing.

use crate::cluster::{Cluster, NODES, ask, ask_all, read, text};
use crate::shards::Draws;
use crate::support::{PATIENCE, Socket};
use redis::Value;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What is asked before the owner is killed; a line is one command.
const WRITES: &str = "\
TABLE.SET tmp KEEP NO
JOIN.ADD both both|<user>|<time> = check s|<user> copy tmp|<user>|<time>
JOIN.ADD kept kept|<user>|<time> = check tmp|<user> copy p|<user>|<time>
JOIN.ADD number number|<user> = count tmp|<user>|<time>
JOIN.ADD other other|<user> = count p|<user>|<time>
SET s|ann 1
SET p|ann|1 one
SET p|ann|2 two
SET tmp|ann 1
SET tmp|ann|1 one
SET tmp|ann|2 two EX 10000
TABLE.SET notes KEEP NO
STREAM.APPEND notes|stream lost
SET plain a
APPEND plain b
SETRANGE plain 4 c
SET old x
RENAME old new
COPY new twice
SET taken x
GETDEL taken
SETBIT bits 100 1
INCRBYFLOAT float 2.5
STREAM.APPEND log one-two-three
STREAM.APPEND log -four
STREAM.TRIM log 4
STREAM.APPEND chapter|log|1 of-a-table
STREAM.APPEND gone x
DEL gone
STREAM.APPEND timed x
PEXPIRE timed 9000000
SET short x PX 5
SETEX long 9000 x
SET later x
EXPIRE later 9000
SET stays x EX 9000
PERSIST stays
SET moved x EX 9000
SET moved y KEEPTTL
GETEX moved EX 8000";

/// What is answered by whoever owns the data then; what is not told is `-`, an error `!`.
const READS: &[(&str, &str)] = &[
    ("GET plain", "ab..c"),
    ("EXISTS old taken gone short", "0"),
    ("GET new", "x"),
    ("GET twice", "x"),
    ("BITPOS bits 1", "100"),
    ("GET float", "2.5"),
    ("STREAM.READ log 4 100", "two-three-four"),
    ("STREAM.LEN log", "18"),
    ("STREAM.READ chapter|log|1 0 100", "of-a-table"),
    ("STREAM.READ timed 0 100", "x"),
    ("GET stays", "x"),
    ("TTL stays", "-1"),
    ("TTL plain", "-1"),
    ("TTL short", "-2"),
    ("GET moved", "y"),
    ("GET p|ann|1", "one"),
    ("GET other|ann", "2"),
    ("PREFIX p|ann| COUNT", "2"),
];

/// What is there of what is not to be kept, and of what comes of it: before, and after.
const NOT_KEPT: &[(&str, &str, &str)] = &[
    ("EXISTS tmp|ann tmp|ann|1 tmp|ann|2 notes|stream", "4", "0"),
    ("PREFIX tmp| COUNT", "3", "0"),
    ("PREFIX both| COUNT", "2", "0"),
    ("PREFIX kept| COUNT", "2", "0"),
    ("GET number|ann", "2", "-"),
    ("STREAM.READ notes|stream 0 9", "lost", "-"),
];

/// Times to live, in seconds, at most.
const TIMES: &[(&str, i64)] = &[("timed", 9000), ("long", 9000), ("later", 9000), ("moved", 8000)];

fn shown(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::Nil => String::from("-"),
        Value::Okay => String::from("OK"),
        Value::SimpleString(text) => text.clone(),
        value => text(value).replace('\0', "."),
    }
}

impl Cluster {
    /// What is answered through a node by whoever owns the data, to what may be asked again.
    fn told(&self, at: usize, words: &str) -> Value {
        read(self, at, &mut self.client(at), words)
    }
}

fn words(line: &str) -> Vec<&str> {
    // The text of a join is one word.
    let at = if line.starts_with("JOIN.ADD") { 3 } else { usize::MAX };
    line.splitn(at, ' ').collect()
}

/// What the node answers; `began` is before anything was written.
fn check(cluster: &Cluster, at: usize, is_kept: bool, began: Instant) {
    for (asked, expected) in READS {
        assert_eq!(shown(&cluster.told(at, asked)), *expected, "{asked} at {at}");
    }
    for (asked, before, after) in NOT_KEPT {
        let expected = if is_kept { before } else { after };
        assert_eq!(shown(&cluster.told(at, asked)), *expected, "{asked} at {at}");
    }
    for (key, most) in TIMES {
        let Value::Int(left) = cluster.told(at, &format!("TTL {key}")) else { panic!("{key}") };
        let least = most - began.elapsed().as_secs() as i64 - 2;
        assert!((least..=*most).contains(&left), "{key} has {left} s left");
    }
    assert_eq!(cluster.told(at, "VERIFY both| other}"), Value::Array(Vec::new()));
}

/// Versions of a key that is written, removed and written anew, with the same values at each owner.
fn versions(cluster: &Cluster, found: &mut BTreeSet<String>) -> String {
    let node = cluster.nodes[cluster.owner()].as_ref().unwrap();
    let address = node.address("memcached's protocol on ");
    let mut client = Socket::new(TcpStream::connect(address).unwrap());
    let mut last = String::new();
    for number in 0..40 {
        client.send(format!("set v|key 0 0 1\r\n{}\r\ngets v|key\r\n", number % 7).as_bytes());
        let told = String::from_utf8(client.until(b"END\r\n")).unwrap();
        let line = told.lines().nth(1).unwrap_or_else(|| panic!("{told}"));
        last = line.rsplit(' ').next().unwrap().to_owned();
        assert!(found.insert(last.clone()), "version {last} is given again");
        if number % 5 == 0 {
            client.send(b"delete v|key\r\n");
            client.expect(b"DELETED\r\n");
        }
    }
    last
}

/// A version of an owner before is refused by this one, though the key has the same value.
fn refuse(cluster: &Cluster, version: &str) {
    let node = cluster.nodes[cluster.owner()].as_ref().unwrap();
    let address = node.address("memcached's protocol on ");
    let mut client = Socket::new(TcpStream::connect(address).unwrap());
    client.send(format!("cas v|key 0 0 5 {version}\r\nstale\r\n").as_bytes());
    client.expect(b"EXISTS\r\n");
}

#[test]
fn the_next_owner_has_all_kinds_of_data_but_those_that_are_not_to_be_kept() {
    let Some(mut cluster) = Cluster::start_with(&["--memcached-port", "0"]) else { return };
    let began = Instant::now();
    let owner = cluster.owner();
    let mut client = cluster.client((owner + 1) % NODES);
    for line in WRITES.lines() {
        ask_all(&mut client, &words(line)).unwrap_or_else(|why| panic!("{line}: {why}"));
    }
    while ask(&mut client, "EXISTS short").unwrap() != Value::Int(0) {
        assert!(began.elapsed() < PATIENCE, "it does not expire");
        sleep(Duration::from_millis(5));
    }
    check(&cluster, owner, true, began);
    let mut found = BTreeSet::new();
    let mut version = versions(&cluster, &mut found);
    // Its time is over while nobody owns the data.
    ask(&mut client, "SET meanwhile x PX 1000").unwrap();
    drop(client);
    let mut struck = owner;
    for round in 0..2 {
        cluster.end(struck, Signal::KILL);
        let next = cluster.owner_after(struck);
        refuse(&cluster, &version);
        for at in (0..NODES).filter(|at| *at != struck) {
            while cluster.told(at, "EXISTS meanwhile") != Value::Int(0) {
                assert!(began.elapsed() < PATIENCE, "it does not expire");
                sleep(Duration::from_millis(20));
            }
            let _removed = cluster.told(at, "DEL v|key");
            check(&cluster, at, false, began);
        }
        version = versions(&cluster, &mut found);
        // Such tables are written to as before, and what comes of them is.
        let mut client = cluster.client(next);
        ask(&mut client, &format!("SET tmp|bob{round}|1 x")).unwrap();
        assert_eq!(shown(&cluster.told(next, &format!("GET number|bob{round}"))), "1");
        cluster.begin(struck);
        struck = next;
    }
}

/// Bytes that nothing makes shorter, and none of which is like its neighbours.
pub(crate) fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut draws = Draws(seed);
    (0..length.div_ceil(8)).flat_map(|_| draws.below(u64::MAX).to_le_bytes()).take(length).collect()
}

/// What a message to NATS may have, if nobody has said otherwise.
const MOST: usize = 1 << 20;
const LENGTHS: [usize; 7] =
    [MOST - 300, MOST - 100, MOST - 1, MOST, MOST + 1, 4 * MOST, 9 * MOST + 12_345];

#[test]
fn values_that_are_longer_than_a_message_are_whole_at_the_next_owner() {
    let Some(mut cluster) = Cluster::start_with(&["--cluster-snapshot-bytes", "0"]) else { return };
    let owner = cluster.owner();
    let through = |cluster: &Cluster, at: usize, key: &str| -> Vec<u8> {
        match cluster.told(at, &format!("GET {key}")) {
            Value::BulkString(bytes) => bytes,
            other => panic!("{key} is {other:?}"),
        }
    };
    let write = |client: &mut redis::Connection, words: &[&[u8]]| {
        let began = Instant::now();
        let mut command = redis::Cmd::new();
        command.arg(words);
        while let Err(why) = command.exec(client) {
            assert!(crate::cluster::is_refused_by_log(&why) && began.elapsed() < PATIENCE, "{why}");
        }
    };
    let mut expected = Vec::new();
    for (number, length) in LENGTHS.into_iter().enumerate() {
        let (key, value) = (format!("v|{number}"), bytes(length, number as u64));
        write(&mut cluster.client((owner + number) % NODES), &[b"MSET", key.as_bytes(), &value]);
        expected.push((key, value));
    }
    // Several in one turn, between short ones; a part of one is changed; and one is a stream.
    let pair = [bytes(2 * MOST, 20), bytes(3 * MOST, 21)];
    let mut client = cluster.client(owner);
    write(
        &mut client,
        &[b"MSET", b"short", b"1", b"m|a", &pair[0], b"m|b", &pair[1], b"m|c", b"2"],
    );
    let [first, mut second] = pair;
    ask(&mut client, "SETRANGE m|b 2000000 changed").unwrap();
    second[2_000_000..2_000_007].copy_from_slice(b"changed");
    expected.extend([(String::from("m|a"), first), (String::from("m|b"), second)]);
    let long = bytes(3 * MOST, 22);
    let (one, other) = long.split_at(MOST + 7);
    for part in [one, other] {
        write(&mut client, &[b"STREAM.APPEND", b"stream", part]);
    }
    for (key, value) in &expected {
        for at in 0..NODES {
            assert!(through(&cluster, at, key) == *value, "{key} at {at} is another one");
        }
    }

    // One is under way when the owner is killed: it is there as a whole, or as it was.
    let late = bytes(9 * MOST, 30);
    let mut socket = Socket::new(TcpStream::connect(("127.0.0.1", cluster.ports[owner])).unwrap());
    socket.send(&crate::support::request(&[b"SET", b"v|5", &late]));
    cluster.end(owner, Signal::KILL);
    cluster.owner_after(owner);
    let check = |cluster: &Cluster, at: usize| {
        for (key, value) in &expected {
            let found = through(cluster, at, key);
            let is_late = key == "v|5" && found == late;
            assert!(found == *value || is_late, "{key} at {at} is another one");
        }
        assert_eq!(through(cluster, at, "short"), b"1");
        let mut read = Vec::new();
        while let Value::BulkString(part) =
            cluster.told(at, &format!("STREAM.READ stream {} 1000000", read.len()))
            && !part.is_empty()
        {
            read.extend(part);
        }
        assert!(read == long, "the stream at {at} is another one");
    };
    (0..NODES).filter(|at| *at != owner).for_each(|at| check(&cluster, at));
    // A node without a folder has it all from the log.
    fs::remove_dir_all(cluster.folder.path().join(format!("node{owner}"))).unwrap();
    cluster.begin(owner);
    (0..NODES).filter(|at| *at != owner).for_each(|at| cluster.end(at, Signal::TERM));
    assert_eq!(cluster.owner(), owner);
    check(&cluster, owner);
}
