//! What concurrent clients are told by a cluster of several shards is linearizable, whoever is cut off, paused or killed: for each key it is what one server would tell
//! that does one request after the other, whichever node is asked.
//!
//! `HEADWATER_CLUSTER_ROUNDS` says how often somebody is struck.

use crate::cluster::{Links, ask, connect, servers, text};
use crate::cluster_cut::{CLIENTS, Link, REGISTERS, Recorded, go_on, rounds};
use crate::cluster_shards::Cluster;
use crate::nats_servers::{LINK_PORT_OFFSET, SERVERS, free_ports};
use crate::support::{PATIENCE, Stops};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// Which shard each node is for.
const OF: [usize; 4] = [0, 1, 0, 1];
/// How many ways there are to strike somebody.
const WAYS: usize = 4;

/// A cluster each of whose nodes can be cut off from the NATS servers, and others from it.
fn start() -> Option<Cluster> {
    let (nats, turn) = servers("always")?;
    let mut all = free_ports(2 * OF.len());
    let found_at = all.split_off(OF.len());
    let link = |(node, found_at): (&u16, u16)| {
        let cut = Arc::new(AtomicBool::new(false));
        let to_nats = (0..SERVERS).map(|at| Link::to(nats.port(at), &cut).port).collect();
        // Clients, and the owners of other shards.
        for offset in [0, LINK_PORT_OFFSET] {
            let _ = Link::from(found_at + offset, node + offset, &cut);
        }
        Links { nats: to_nats, node: found_at, cut }
    };
    let links = all.iter().zip(found_at).map(link).collect();
    Some(Cluster::start_among(&OF, nats, turn, all, links))
}

/// The nodes that are for a shard.
fn nodes_of(shard: usize) -> Vec<usize> {
    (0..OF.len()).filter(|at| OF[*at] == shard).collect()
}

/// Strikes the owner of a shard, or both owners, and has all be well again.
fn strike(cluster: &mut Cluster, round: usize) {
    let shard = round / WAYS % 2;
    let nodes = nodes_of(shard);
    let struck = cluster.await_owner(&nodes);
    let cut = |cluster: &Cluster, at: usize, is: bool| {
        cluster.links[at].cut.store(is, Ordering::Release);
    };
    match round % WAYS {
        // Nobody hears it until another one has its shard.
        0 => {
            cut(cluster, struck, true);
            cluster.node(struck).forget_that_it_owns();
            assert_ne!(cluster.await_owner(&nodes), struck);
            sleep(Duration::from_secs(1));
            cut(cluster, struck, false);
        }
        1 => {
            cluster.kill(struck);
            assert_ne!(cluster.await_owner(&nodes), struck);
            cluster.begin(struck);
        }
        // It pauses for less than its lease, and for more.
        2 => {
            cluster.node(struck).signal(Signal::STOP);
            sleep(Duration::from_millis(1500));
            cluster.node(struck).signal(Signal::CONT);
            let struck = cluster.await_owner(&nodes);
            cluster.node(struck).forget_that_it_owns();
            cluster.node(struck).signal(Signal::STOP);
            assert_ne!(cluster.await_owner(&nodes), struck);
            cluster.node(struck).signal(Signal::CONT);
        }
        // Both shards lose their owners at once.
        _ => {
            let others = nodes_of(1 - shard);
            let other = cluster.await_owner(&others);
            [struck, other].into_iter().for_each(|at| cluster.kill(at));
            cluster.await_owner(&nodes);
            cluster.await_owner(&others);
            [struck, other].into_iter().for_each(|at| cluster.begin(at));
        }
    }
}

#[test]
fn what_clients_of_several_shards_are_told_is_linearizable_whoever_is_struck() {
    let Some(mut cluster) = start() else { return };
    cluster.define(0, &["JOIN.ADD", "d", "d|<n> = copy r|<n>"]);
    let (ends, recorded, ports) = (AtomicBool::new(false), Recorded::new(), cluster.ports.clone());
    let (ends, recorded) = (&ends, &recorded);
    thread::scope(|scope| {
        for me in 0..CLIENTS {
            let ports = &ports;
            scope.spawn(move || go_on(me, ports, ends, recorded));
        }
        let _stops = Stops(ends);
        for round in 0..rounds(WAYS) {
            sleep(Duration::from_secs(1));
            strike(&mut cluster, round);
        }
        recorded.wait();
    });
    recorded.check();
    for at in 0..OF.len() {
        let verified = cluster.ask(at, "VERIFY d| d}");
        assert_eq!(verified, redis::Value::Array(Vec::new()), "node {at}");
    }
    // Both shards have some of the registers, so requests went through others' owners.
    let first_half = |register: &usize| {
        let slot = cluster.ask(0, &format!("CLUSTER KEYSLOT r|{register}"));
        let redis::Value::Int(slot) = slot else { panic!("{slot:?}") };
        slot < 8192
    };
    let of_first = (0..REGISTERS).filter(first_half).count();
    assert!((1..REGISTERS).contains(&of_first), "{of_first} of {REGISTERS} are of one shard");
}

/// An owner that is cut off from the NATS servers alone may not answer, and nobody else has its shard: the others say so instead of waiting for it.
#[test]
fn nobody_waits_for_an_owner_that_is_cut_off_from_the_log() {
    let Some((nats, turn)) = servers("always") else { return };
    let ports = free_ports(2);
    let cut = Arc::new(AtomicBool::new(false));
    let direct = (0..SERVERS).map(|at| nats.port(at)).collect();
    let through = (0..SERVERS).map(|at| Link::to(nats.port(at), &cut).port).collect();
    let links = [direct, through].into_iter().zip(&ports).map(|(nats, node)| Links {
        nats,
        node: *node,
        cut: cut.clone(),
    });
    let links = links.collect();
    let cluster = Cluster::start_among(&[0, 1], nats, turn, ports, links);
    let of_second = |key: &String| {
        let slot = cluster.ask(0, &format!("CLUSTER KEYSLOT {key}"));
        matches!(slot, redis::Value::Int(8192..))
    };
    let key = (0..).map(|number| format!("key{number}")).find(of_second).unwrap();
    cluster.ask(0, &format!("SET {key} value"));
    cut.store(true, Ordering::Release);
    // What was sent before is answered as well, if it is by that nobody knows what has become of it.
    let mut client = connect(cluster.ports[0]);
    let began = Instant::now();
    loop {
        match ask(&mut client, &format!("GET {key}")) {
            Ok(value) => assert_eq!(text(&value), "value"),
            Err(why) if why.code() == Some("CLUSTERDOWN") => break,
            Err(why) => panic!("{why}"),
        }
        assert!(began.elapsed() < PATIENCE, "an owner without a lease answers");
        sleep(Duration::from_millis(20));
    }
    cut.store(false, Ordering::Release);
    assert_eq!(text(&cluster.ask(0, &format!("GET {key}"))), "value");
}
