//! What is done through any node for keys of any owner: functions, streams, tables that are not kept. An owner that stands still, and a client that reads
//! nothing, delay nobody who needs neither; and with an owner that is killed nothing of it is lost.

use crate::cluster::{connect, text};
use crate::cluster_shards::{Cluster, pairs};
use crate::cluster_views::names;
use crate::support::{PATIENCE, Socket, request};
use redis::Value;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The owner that is struck is of this shard, and this node is the next one.
const LOST: usize = 1;
const NEXT: usize = 3;
/// How often an owner stands still until somebody was held up by it alone.
const TRIES: usize = 10;

/// Makes the parameter the value, and replies with the value.
const PUT: &str = r#"(module
    (import "headwater" "param_read" (func $param_read (param i32 i32 i32) (result i32)))
    (import "headwater" "value_replace" (func $value_replace (param i32 i32)))
    (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
    (memory 1)
    (func (export "call") (result i32)
        (call $value_replace (i32.const 0) (call $param_read (i32.const 0) (i32.const 0) (i32.const 100)))
        (drop (call $reply_value (i32.const 0) (i32.const 100)))
        (i32.const 0)))"#;

/// Replies with the first two bytes of a value.
const HEAD: &str = r#"(module
    (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
    (func (export "call") (result i32)
        (drop (call $reply_value (i32.const 0) (i32.const 2)))
        (i32.const 0)))"#;

/// Loads a module through a node, as soon as all owners can be reached.
fn load(cluster: &Cluster, at: usize, name: &str, module: &str) {
    let module = wat::parse_str(module).unwrap();
    let began = Instant::now();
    let mut command = redis::cmd("FN.LOAD");
    command.arg(name).arg(&module).arg("REPLACE");
    while let Err(why) = command.query::<Value>(&mut connect(cluster.ports[at])) {
        assert!(why.code() == Some("CLUSTERDOWN") && began.elapsed() < PATIENCE, "{why}");
        sleep(Duration::from_millis(20));
    }
}

/// Every key's function is called through every node; what the values have come to.
fn call_all(
    cluster: &Cluster,
    nodes: &[usize],
    keys: &[Vec<String>],
    all: &mut BTreeMap<String, String>,
) {
    for key in keys.iter().flatten() {
        for at in nodes {
            let value = all.entry(key.clone()).or_default();
            *value += &at.to_string();
            let told = cluster.ask(*at, &format!("FN.CALL put {key} UPDATE {value}"));
            assert_eq!(text(&told), *value, "{key} through {at}");
        }
    }
}

/// Appends to a stream, once, also where nobody knows whether that was done.
fn append(cluster: &Cluster, at: usize, key: &str, bytes: &str) {
    let length = |cluster: &Cluster| match cluster.ask(at, &format!("STREAM.LEN {key}")) {
        Value::Int(length) => length,
        other => panic!("{other:?}"),
    };
    let (before, began) = (length(cluster), Instant::now());
    while length(cluster) == before {
        let words = format!("STREAM.APPEND {key} {bytes}");
        let _told = crate::cluster::ask(&mut connect(cluster.ports[at]), &words);
        assert!(began.elapsed() < PATIENCE, "nothing is appended to {key}");
    }
}

/// What is in memory, joins and streams, asked through each of these nodes.
fn check(cluster: &Cluster, nodes: &[usize], all: &BTreeMap<String, String>) {
    let heads = |prefix: &str| -> BTreeMap<String, String> {
        let head = |(key, value): (&String, &String)| {
            (key.replacen("c|", prefix, 1), value[..2].to_owned())
        };
        all.iter().map(head).collect()
    };
    for &at in nodes {
        cluster.expect((at, "PREFIX c|"), pairs, all);
        cluster.expect((at, "PREFIX head|"), pairs, &heads("head|"));
        let shown = cluster.ask(at, "FN.RANGE head c| c} ");
        assert_eq!(pairs(&shown), heads("c|"), "at {at}");
    }
}

/// An owner stands still, for less than its lease: what needs it waits, and what does not goes on meanwhile. `false`: it was without an owner before the
/// others were done.
fn stand_still(cluster: &Cluster, keys: &[Vec<String>]) -> bool {
    // On a machine with much to do its lease may be over before it goes on.
    let node = cluster.node(cluster.await_owner(&[NEXT, LOST]));
    let mut waits = Socket::new(TcpStream::connect(("127.0.0.1", cluster.ports[0])).unwrap());
    let asked = request(&[b"GET", keys[LOST][0].as_bytes()]);
    let mut client = connect(cluster.ports[0]);
    let mut other = Socket::new(TcpStream::connect(("127.0.0.1", cluster.ports[2])).unwrap());
    node.signal(Signal::STOP);
    waits.send(&asked);
    other.send(&asked);
    let mut is_done = true;
    for number in 0..10 {
        for key in [&keys[0][0], &keys[2][0]] {
            let set = format!("SET s{key} {number}");
            is_done &= crate::cluster::ask(&mut client, &set).is_ok();
            is_done &= crate::cluster::ask(&mut client, &format!("GET s{key}")).is_ok();
        }
    }
    // Nobody was told anything that they have waited for.
    for socket in [&mut waits, &mut other] {
        socket.stream().set_nonblocking(true).unwrap();
        let is_told = socket.stream().peek(&mut [0]);
        is_done &= is_told.is_err_and(|why| why.kind() == ErrorKind::WouldBlock);
        socket.stream().set_nonblocking(false).unwrap();
    }
    node.signal(Signal::CONT);
    is_done
}

/// A client reads nothing of what it has asked an owner for, by way of another node.
fn read_nothing(cluster: &Cluster, keys: &[Vec<String>]) -> Socket {
    let mut client = connect(cluster.ports[0]);
    let long = keys[LOST][0].replacen('c', "big", 1);
    redis::cmd("SET").arg(&long).arg("x".repeat(1 << 20)).exec(&mut client).unwrap();
    let mut lazy = Socket::new(TcpStream::connect(("127.0.0.1", cluster.ports[0])).unwrap());
    lazy.send(&request(&[b"GET", long.as_bytes()]).repeat(100));
    // The first one is there: all are under way.
    lazy.expect(b"$1048576\r\n");
    for key in keys.iter().flatten() {
        for at in [0, 2] {
            let _set = cluster.ask(at, &format!("SET s{key} {at}"));
            assert_eq!(text(&cluster.ask(at, &format!("GET s{key}"))), at.to_string());
        }
    }
    lazy
}

#[test]
fn functions_streams_and_what_is_not_kept_are_at_every_node_also_when_an_owner_is_struck() {
    let Some(mut cluster) = Cluster::start() else { return };
    let keys: Vec<Vec<String>> = names(&cluster, 'k', 3)
        .into_iter()
        .map(|names| names.into_iter().map(|name| format!("c|{name}")).collect())
        .collect();
    // By a node that owns one shard, and by one that stands by for another.
    load(&cluster, 0, "put", PUT);
    load(&cluster, NEXT, "head", HEAD);
    cluster.define(2, &["JOIN.ADD", "heads", "head|<k> = map:head c|<k>"]);
    cluster.define(0, &["TABLE.SET", "tmp", "KEEP", "NO"]);
    cluster.define(0, &["JOIN.ADD", "temps", "temps = count tmp|<k>"]);
    for (number, key) in keys.iter().flatten().enumerate() {
        let name = key.strip_prefix("c|").unwrap();
        let _set = cluster.ask(number % 4, &format!("SET tmp|{name} 1"));
        for at in [0, 2, NEXT] {
            append(&cluster, at, &format!("l|{name}"), &format!("{name}-{at}"));
        }
    }
    let mut all = BTreeMap::new();
    call_all(&cluster, &[0, 1, 2, NEXT], &keys, &mut all);
    check(&cluster, &[0, 1, 2, NEXT], &all);
    cluster.expect((2, "GET temps"), text, &String::from("9"));

    assert!((0..TRIES).any(|_| stand_still(&cluster, &keys)), "all others were held up");
    let lazy = read_nothing(&cluster, &keys);
    drop(lazy);

    cluster.kill(LOST);
    assert_eq!(cluster.await_owner(&[NEXT]), NEXT);
    check(&cluster, &[0, 2, NEXT], &all);
    call_all(&cluster, &[NEXT, 0, 2], &keys, &mut all);
    check(&cluster, &[0, 2, NEXT], &all);
    for (of, key) in
        keys.iter().enumerate().flat_map(|(of, keys)| keys.iter().map(move |key| (of, key)))
    {
        let name = key.strip_prefix("c|").unwrap();
        let long = format!("{name}-0{name}-2{name}-{NEXT}");
        let asked = format!("STREAM.READ l|{name} 0 100");
        assert_eq!(text(&cluster.ask(0, &asked)), long);
        append(&cluster, 2, &format!("l|{name}"), ".");
        assert_eq!(text(&cluster.ask(NEXT, &asked)), format!("{long}."));
        let is_there = i64::from(of != LOST);
        assert_eq!(cluster.ask(0, &format!("EXISTS tmp|{name}")), Value::Int(is_there), "{name}");
    }
    for at in [0, 2, NEXT] {
        cluster.expect((at, "GET temps"), text, &String::from("6"));
        cluster.expect((at, "PREFIX tmp| COUNT"), Value::clone, &Value::Int(6));
    }
    // A module that is replaced is at all of them.
    load(&cluster, 0, "first", HEAD);
    load(&cluster, 2, "first", &HEAD.replace("(i32.const 2)", "(i32.const 3)"));
    for key in keys.iter().flatten() {
        for at in [0, 2, NEXT] {
            let told = cluster.ask(at, &format!("FN.CALL first {key} "));
            assert_eq!(text(&told), all[key][..3]);
        }
    }
}
