//! Webhooks of a cluster whose owner is killed while posts are under way: none is missing, and whoever gets one twice can tell.

use crate::cluster::{ask_all, connect};
use crate::cluster_shards::{Cluster, OF};
use crate::receiver::{Manner, Receiver};
use crate::support::PATIENCE;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// The node that is killed, and the one that stands by for its shard.
const OF_LOST: [usize; 2] = [1, 3];

/// The value of a header.
fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let found = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name} in {head}"))
}

/// Sets keys that are set once, over the other nodes, until it is told to end: those that were acknowledged.
fn write(ports: &[u16], name: usize, ends: &AtomicBool) -> Vec<String> {
    let mut clients: Vec<_> = ports.iter().map(|port| connect(*port)).collect();
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let (key, at) = (format!("n|{name}-{number}"), number % ports.len());
        // Where nobody knows whether it was done, there may be a post.
        match ask_all(&mut clients[at], &["SET", &key, &key]) {
            Ok(_) => acknowledged.push(key),
            Err(why) if why.is_io_error() => clients[at] = connect(ports[at]),
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
    acknowledged
}

#[test]
fn posts_come_at_least_once_and_are_known_when_they_come_again_after_an_owner_was_killed() {
    let Some(mut cluster) = Cluster::start_with(&OF, &["--connect-allow", "127.0.0.1:*"]) else {
        return;
    };
    let receiver = Receiver::start();
    let url = format!("http://{}/", receiver.address);
    cluster.define(0, &["FLOW.ADD", "hook", "ON", "n|<id>", "HTTP", "POST", &url]);
    let ends = AtomicBool::new(false);
    let ports = [cluster.ports[0], cluster.ports[2]];
    let lost = OF_LOST[0];
    let acknowledged: Vec<String> = thread::scope(|scope| {
        let ends = &ends;
        let writers: Vec<_> =
            (0..2).map(|name| scope.spawn(move || write(&ports, name, ends))).collect();
        let stops = crate::support::Stops(ends);
        receiver.wait_for(60);
        // What is under way now was posted, and nobody but the receiver knows.
        receiver.behaves(Manner::Hangs);
        receiver.wait_for(receiver.got().len() + 4);
        cluster.kill(lost);
        receiver.behaves(Manner::Takes);
        let _next = cluster.await_owner(&OF_LOST[1..]);
        receiver.wait_for(receiver.got().len() + 60);
        drop(stops);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let began = Instant::now();
    let got = loop {
        let got = receiver.got();
        let taken: BTreeSet<&str> =
            got.iter().filter(|got| got.taken).filter_map(|got| got.body["key"].as_str()).collect();
        let missing = acknowledged.iter().filter(|key| !taken.contains(key.as_str()));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            break got;
        }
        assert!(began.elapsed() < PATIENCE, "{} posts are missing: {missing:?}", missing.len());
        sleep(Duration::from_millis(100));
    };
    // Each key is written once: all posts of it are one, and no two keys have the same.
    let mut of_key: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut repeated = 0;
    for got in &got {
        let key = got.body["key"].as_str().unwrap();
        assert_eq!(got.body["value"], key);
        let this = (header(&got.head, "idempotency-key"), header(&got.head, "headwater-sequence"));
        assert_eq!(this.1, got.body["sequence"].to_string());
        if let Some(first) = of_key.insert(key, this) {
            assert_eq!(first, this, "{key} is posted as another change");
            repeated += 1;
        }
    }
    assert!(repeated > 0, "nothing was posted again");
    let keys: BTreeSet<_> = of_key.values().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), of_key.len(), "two changes have one Idempotency-Key");
}
