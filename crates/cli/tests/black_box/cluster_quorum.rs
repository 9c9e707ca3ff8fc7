//! NATS servers without a quorum: writes are refused before they are executed, reads are answered until the lease is over, and what was
//! acknowledged stays.

use crate::cluster::{Cluster, NODES, ask, ask_once, text};
use crate::cluster_writers::{Writers, check};
use crate::support::PATIENCE;
use redis::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a refusal says.
const SENTENCE: &str = "the log takes no records";
/// How often it is tried to see both: on a slow machine a lease may end before anybody has looked.
const TRIES: usize = 20;
const LOOK: Duration = Duration::from_millis(20);

/// Two of the three servers are stopped as long as this lives.
struct Stopped<'a>(&'a Cluster);

impl<'a> Stopped<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        cluster.nats.stop(0);
        cluster.nats.stop(1);
        Self(cluster)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.nats.go_on(0);
        self.0.nats.go_on(1);
    }
}

/// Writes until that succeeds; where.
fn until_written(cluster: &Cluster, words: &str) -> usize {
    let began = Instant::now();
    loop {
        for at in 0..NODES {
            if ask_once(&mut cluster.client(at), words).is_ok() {
                return at;
            }
        }
        assert!(began.elapsed() < 2 * PATIENCE, "writes are refused for good");
        sleep(LOOK);
    }
}

/// Why writes are refused, as INFO says it; `None`: it is not answered.
fn refusal(client: &mut redis::Connection) -> Option<String> {
    let info = text(&ask_once(client, "INFO persistence").ok()?);
    let line = info.lines().find_map(|line| line.strip_prefix("data_write_refusal:"));
    Some(line.expect("there is a store").trim().to_owned())
}

/// What an idle owner answers once it knows, before its lease is over; `None`: the lease was over first.
fn refused_and_read(cluster: &Cluster, owner: usize) -> Option<Vec<String>> {
    let mut client = cluster.client(owner);
    let door = cluster.nodes[owner].as_ref().expect("it runs").address("memcached's protocol on ");
    let mut items = TcpStream::connect(door).unwrap();
    items.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut items_say = |words: &[u8]| {
        items.write_all(words).ok()?;
        let mut line = String::new();
        BufReader::new(&items).read_line(&mut line).ok()?;
        Some(line)
    };
    let _stopped = Stopped::new(cluster);
    let began = Instant::now();
    while refusal(&mut client)?.is_empty() {
        assert!(began.elapsed() < PATIENCE, "writes are taken without a quorum");
    }
    let mut told = Vec::new();
    for words in ["SET k|refused 1", "DEL k|a", "INCR n", "COPY k|a k|refused", "EXPIRE k|a 1"] {
        let refused = ask_once(&mut client, words).err()?;
        assert_eq!(refused.code(), Some("CLUSTERDOWN"), "{words}: {refused}");
        told.push(refused.to_string());
    }
    let refused = items_say(b"set k|refused 0 0 1\r\n1\r\n")?;
    assert!(refused.starts_with("SERVER_ERROR "), "{refused}");
    told.push(refused);
    ask_once(&mut client, "MULTI").ok()?;
    ask_once(&mut client, "SET k|refused 1").ok()?;
    told.push(ask_once(&mut client, "EXEC").err()?.to_string());
    let read = ask_once(&mut client, "GET k|a").ok()?;
    assert_eq!(text(&read), "1");
    assert_eq!(items_say(b"get k|a\r\n")?, "VALUE k|a 0 1\r\n");
    Some(told)
}

#[test]
fn without_a_quorum_writes_are_refused_while_reads_are_answered() {
    let Some(cluster) = Cluster::start_with(&["--memcached-port", "0"]) else { return };
    until_written(&cluster, "SET k|a 1");
    let told = (0..TRIES).find_map(|_| {
        let told = refused_and_read(&cluster, cluster.owner());
        until_written(&cluster, "SET k|again 1");
        told
    });
    for told in told.expect("a write is refused while reads are answered") {
        assert!(told.contains(SENTENCE), "{told}");
    }
    let mut client = cluster.client(cluster.owner());
    assert_eq!(ask(&mut client, "EXISTS k|refused n").unwrap(), Value::Int(0));
    assert_eq!(ask(&mut client, "TTL k|a").unwrap(), Value::Int(-1));
}

/// A write as a client that does not wait for its answer.
struct Sent(TcpStream);

impl Sent {
    fn new(port: u16, key: &str) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(format!("SET {key} 1\r\n").as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self(stream)
    }

    /// What it is told within a moment; empty: nothing yet, or its connection has ended.
    fn answer(&mut self) -> String {
        let mut bytes = [0; 1000];
        match self.0.read(&mut bytes) {
            Ok(count) => String::from_utf8_lossy(&bytes[..count]).into_owned(),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                String::new()
            }
            Err(_) => String::new(),
        }
    }
}

/// Whether a write is refused while one that was given to the log before waits for what becomes of it.
fn refused_behind_one_that_waits(
    cluster: &Cluster,
    owner: usize,
    acknowledged: &mut Vec<String>,
) -> bool {
    let port = cluster.ports[owner];
    let stopped = Stopped::new(cluster);
    let mut waiting: Vec<(String, Sent)> = Vec::new();
    let refused = loop {
        let key = format!("k|{}|{}", acknowledged.len(), waiting.len());
        let mut sent = Sent::new(port, &key);
        let told = sent.answer();
        match &*told {
            "" => waiting.push((key, sent)),
            "+OK\r\n" => acknowledged.push(key),
            _ => break told.contains(SENTENCE),
        }
        assert!(waiting.len() < 200, "writes are taken without a quorum");
    };
    let waits = !waiting.is_empty();
    drop(stopped);
    for (key, mut sent) in waiting {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            if sent.answer() == "+OK\r\n" {
                acknowledged.push(key);
                break;
            }
        }
    }
    refused && waits
}

#[test]
fn a_write_is_refused_at_once_though_others_wait_for_what_becomes_of_them() {
    let Some(cluster) = Cluster::start() else { return };
    let mut acknowledged = Vec::new();
    let seen = (0..TRIES).any(|_| {
        let owner = cluster.owner();
        let seen = refused_behind_one_that_waits(&cluster, owner, &mut acknowledged);
        until_written(&cluster, "SET k|again 1");
        seen
    });
    assert!(seen, "a write is refused while another one waits");
    let at = until_written(&cluster, "SET k|again 1");
    let mut client = cluster.client(at);
    for key in acknowledged {
        assert_eq!(text(&ask(&mut client, &format!("GET {key}")).unwrap()), "1", "{key}");
    }
}

#[test]
fn what_was_acknowledged_before_a_quorum_was_lost_and_after_it_is_back_stays() {
    let Some(mut cluster) = Cluster::start() else { return };
    let writers = Writers::start(&cluster);
    for round in 0..3 {
        let before = writers.least();
        let began = Instant::now();
        while writers.least() < before + 3 {
            assert!(began.elapsed() < 2 * PATIENCE, "round {round}: nobody writes");
            sleep(LOOK);
        }
        if round == 1 {
            [0, 1].into_iter().for_each(|at| cluster.nats.kill(at));
            sleep(Duration::from_millis(1200));
            [0, 1].into_iter().for_each(|at| cluster.nats.restart(at));
        } else {
            let _stopped = Stopped::new(&cluster);
            sleep(Duration::from_millis(if round == 0 { 1200 } else { 4000 }));
        }
    }
    let before = writers.least();
    let began = Instant::now();
    while writers.least() < before + 3 {
        assert!(began.elapsed() < 2 * PATIENCE, "nobody writes in the end");
        sleep(LOOK);
    }
    let all = writers.end();
    check(&cluster, cluster.owner(), &all, true);
}
