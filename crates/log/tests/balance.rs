//! Which node should own which shard: what single looks say, and that clusters come to rest evenly.

use headwater_base::hash::stable_hash;
use headwater_log::{
    Balance, ClusterSeen, DEFER_MILLIS, DrainedNodes, Epoch, Monotonic, Owner, SETTLE_MILLIS,
    ShardHolder, node_of,
};
use std::collections::BTreeMap;

fn process(node: &str, shard: u16, epoch: u64) -> Owner {
    Owner {
        node: format!("{node}/{shard}"),
        address: String::from("a:1"),
        incarnation: 1,
        epoch: Epoch(epoch),
        shard,
        released: false,
    }
}

fn held(node: &str, shard: u16) -> ShardHolder {
    let process = Some(format!("{node}/{shard}"));
    ShardHolder { process, epoch: Epoch(1), holds: true, released: false }
}

/// A cluster of nodes that are for all of its shards.
struct Cluster {
    processes: Vec<Owner>,
    drained: DrainedNodes,
    holders: Vec<ShardHolder>,
    balances: BTreeMap<String, Balance>,
    moves: usize,
}

impl Cluster {
    fn new(nodes: &[&str], holders: Vec<ShardHolder>) -> Self {
        let shards = 0..holders.len() as u16;
        let of_node = |node: &&str| {
            let node = String::from(*node);
            shards.clone().map(move |shard| process(&node, shard, 1)).collect::<Vec<_>>()
        };
        let processes: Vec<Owner> = nodes.iter().flat_map(of_node).collect();
        let balance = |it: &Owner| (it.node.clone(), Balance::new(&it.node, it.shard));
        let balances = processes.iter().map(balance).collect();
        let drained = DrainedNodes::default();
        Self { processes, drained, holders, balances, moves: 0 }
    }

    fn without(mut self, node: &str) -> Self {
        self.processes.retain(|process| node_of(&process.node) != node);
        self
    }

    /// What a process should do: whether it keeps its shard, and how long it defers.
    fn look(&mut self, process: &str, now: u64) -> (bool, u64) {
        let seen = ClusterSeen {
            processes: &self.processes,
            drained: &self.drained,
            holders: &self.holders,
        };
        let wish = self.balances.get_mut(process).unwrap().look(&seen, Monotonic(now));
        (wish.keeps, wish.defer_millis)
    }

    /// The nodes that should take a shard first.
    fn first(&mut self, shard: u16) -> Vec<String> {
        let of_shard = self.processes.iter().filter(|process| process.shard == shard);
        let names: Vec<String> = of_shard.map(|process| process.node.clone()).collect();
        let first = names.into_iter().filter(|name| self.look(name, 0).1 == 0);
        first.map(|name| node_of(&name).to_owned()).collect()
    }

    fn loads(&self) -> BTreeMap<&str, usize> {
        let mut loads: BTreeMap<&str, usize> =
            self.processes.iter().map(|process| (node_of(&process.node), 0)).collect();
        for holder in self.holders.iter().filter(|holder| holder.holds) {
            *loads.get_mut(node_of(holder.process.as_ref().unwrap())).unwrap() += 1;
        }
        loads
    }

    /// Some seconds in which processes look in an order that the seed says: who should leaves, and who is first takes.
    fn round(&mut self, seed: u64, now: u64) {
        let mut order: Vec<(u64, String, u16)> = self
            .processes
            .iter()
            .map(|it| (stable_hash(seed ^ now, it.node.as_bytes()), it.node.clone(), it.shard))
            .collect();
        order.sort();
        for (_, name, shard) in order {
            let (keeps, defer_millis) = self.look(&name, now);
            let holder = &mut self.holders[usize::from(shard)];
            if holder.holds && holder.process.as_deref() == Some(&*name) {
                if !keeps {
                    (holder.holds, holder.released) = (false, true);
                    self.moves += 1;
                    // Its process begins anew.
                    self.balances.insert(name.clone(), Balance::new(&name, shard));
                }
            } else if !holder.holds && defer_millis == 0 && !self.drained.contains(&name) {
                *holder = held(node_of(&name), shard);
            }
        }
    }
}

#[test]
fn a_free_shard_is_for_the_node_that_owns_the_least() {
    let holders = vec![held("a", 0), held("b", 1), held("b", 2), ShardHolder::default()];
    let mut cluster = Cluster::new(&["a", "b"], holders);
    assert_eq!(cluster.look("a/3", 0), (true, 0));
    assert_eq!(cluster.look("b/3", 0), (true, DEFER_MILLIS));
    // Who does not know yet that a shard is free does not come before others.
    cluster.holders[3] = held("b", 3);
    assert_eq!(cluster.look("b/3", 0), (true, DEFER_MILLIS));
    cluster.holders[3] = ShardHolder::default();
    // Not for one that is drained, nor for one that is not heard.
    cluster.drained.set("a", true);
    assert_eq!(cluster.first(3), ["b"]);
    cluster.drained.set("a", false);
    assert_eq!(cluster.without("a").first(3), ["b"]);
}

#[test]
fn a_silent_owner_is_not_waited_for_and_one_that_has_given_up_may_be() {
    let lost = |released| ShardHolder { holds: false, released, ..held("a", 0) };
    for seed in 0..20 {
        let other = format!("n{seed}");
        let mut cluster = Cluster::new(&["a", &other], vec![lost(false), held(&other, 1)]);
        assert_eq!(cluster.first(0), [&*other]);
        cluster.holders[0] = lost(true);
        assert_eq!(cluster.first(0), ["a"]);
    }
}

#[test]
fn who_has_not_followed_the_log_takes_a_shard_only_where_nobody_has() {
    let lost = ShardHolder { holds: false, epoch: Epoch(7), ..held("z", 0) };
    let mut cluster = Cluster::new(&["a", "b"], vec![lost, held("b", 1), held("b", 2)]);
    assert_eq!(cluster.first(0), ["a"]);
    cluster.processes.iter_mut().filter(|it| it.node == "b/0").for_each(|it| it.epoch = Epoch(7));
    assert_eq!(cluster.first(0), ["b"]);
    // Nor does an owner give it a shard.
    let mut cluster = Cluster::new(&["a", "b"], vec![held("b", 0), held("b", 1)]);
    cluster.processes.iter_mut().filter(|it| it.node == "a/0").for_each(|it| it.epoch = Epoch(0));
    let leaves = |cluster: &mut Cluster, name: &str| {
        cluster.look(name, 0);
        !cluster.look(name, SETTLE_MILLIS).0
    };
    assert!(!leaves(&mut cluster, "b/0"));
    assert!(leaves(&mut cluster, "b/1"));
}

#[test]
fn a_shard_moves_when_that_has_been_right_for_a_while() {
    let mut cluster = Cluster::new(&["a", "b"], vec![held("a", 0), held("a", 1)]);
    let leaving = |cluster: &mut Cluster, now: u64| -> Vec<bool> {
        ["a/0", "a/1"].map(|name| !cluster.look(name, now).0).to_vec()
    };
    assert_eq!(leaving(&mut cluster, 5), [false, false]);
    assert_eq!(leaving(&mut cluster, 4 + SETTLE_MILLIS), [false, false]);
    let moved = leaving(&mut cluster, 5 + SETTLE_MILLIS);
    assert_eq!(moved.iter().filter(|leaves| **leaves).count(), 1, "{moved:?}");
    // While the other one is away, the time begins anew.
    let away = std::mem::take(&mut cluster.processes);
    assert_eq!(leaving(&mut cluster, 6 + SETTLE_MILLIS), [false, false]);
    cluster.processes = away;
    assert_eq!(leaving(&mut cluster, 7 + SETTLE_MILLIS), [false, false]);
}

#[test]
fn clusters_come_to_rest_evenly_and_move_no_more_than_that_takes() {
    for seed in 0..150 {
        let number = |what: &[u8], below: u64| stable_hash(seed, what) % below;
        let nodes: Vec<String> = (0..2 + number(b"nodes", 5)).map(|at| format!("n{at}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let shards = 1 + number(b"shards", 12) as u16;
        let holders = (0..shards).map(|shard| {
            let at = number(format!("holder {shard}").as_bytes(), nodes.len() as u64 + 1) as usize;
            nodes.get(at).map_or(ShardHolder::default(), |node| held(node, shard))
        });
        let mut cluster = Cluster::new(&nodes, holders.collect());
        let before = cluster.loads();
        let even = usize::from(shards) / nodes.len();
        let beyond: usize = before.values().map(|load| load.saturating_sub(even)).sum();
        for round in 0..200 {
            cluster.round(seed, round * 1000);
        }
        let (loads, moves) = (cluster.loads(), cluster.moves);
        assert_eq!(loads.values().sum::<usize>(), usize::from(shards), "seed {seed}");
        let (most, least) = (loads.values().max().unwrap(), loads.values().min().unwrap());
        assert!(most - least <= 1, "seed {seed}: {loads:?}");
        assert!(moves <= beyond, "seed {seed}: {moves} moves, {beyond} shards beyond {even}");
        cluster.moves = 0;
        (200..400).for_each(|round| cluster.round(seed, round * 1000));
        assert_eq!(cluster.moves, 0, "seed {seed}: it is at rest");
    }
}
