//! `headwater cluster …` on real NATS servers and nodes.

use crate::cluster::{ALL, Cluster, NODES, ask, figure, read, servers, text};
use crate::cluster_kept::bytes;
use crate::cluster_writers::{Writers, check};
use crate::support::{PATIENCE, program};
use rustix::process::Signal;
use serde_json::Value;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a subcommand has come to.
pub(crate) struct Told {
    pub(crate) is_well: bool,
    pub(crate) out: String,
    pub(crate) errors: String,
}

/// Runs a subcommand with the servers of a cluster.
pub(crate) fn operate(cluster: &Cluster, words: &str) -> Told {
    operate_at(&cluster.nats.urls(&ALL), words)
}

fn operate_at(urls: &str, words: &str) -> Told {
    let mut command = program();
    command.arg("cluster").args(words.split(' ')).args(["--cluster", urls]);
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, errors) = (text(output.stdout), text(output.stderr));
    Told { is_well: output.status.success(), out, errors }
}

/// Asks for the status until something holds of it, and of whether all is well.
pub(crate) fn status(cluster: &Cluster, what: &str, holds: impl Fn(&Value, bool) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let told = operate(cluster, "status --json");
        let status = serde_json::from_str(&told.out)
            .unwrap_or_else(|why| panic!("{why}: {}{}", told.out, told.errors));
        if holds(&status, told.is_well) {
            return status;
        }
        assert!(began.elapsed() < 2 * PATIENCE, "waited in vain: {what}: {status:#}");
        sleep(Duration::from_millis(100));
    }
}

pub(crate) fn name(at: usize) -> String {
    format!("node{at}")
}

/// What the status says of a node.
pub(crate) fn node_of(status: &Value, at: usize) -> Value {
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    nodes.into_iter().find(|node| node["node"] == *name(at)).unwrap_or_default()
}

pub(crate) fn all_heard(status: &Value) -> bool {
    (0..NODES).all(|at| node_of(status, at)["heard"] == true)
}

#[test]
fn the_status_says_who_owns_the_data_and_what_is_wrong() {
    let Some(mut cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    ask(&mut cluster.client(owner), "SET k|a 1").unwrap();
    let is_whole = |status: &Value, is_well| is_well && all_heard(status);
    let found = status(&cluster, "all is well", is_whole);
    let shard = &found["shards"][0];
    assert_eq!((&found["cluster"], &found["quorum"]), (&"headwater".into(), &true.into()));
    assert_eq!((&shard["owner"], &shard["shard"]), (&name(owner).into(), &0.into()));
    assert_eq!(shard["address"], format!("127.0.0.1:{}", cluster.ports[owner]));
    assert!(shard["epoch"].as_u64() >= Some(1), "{found:#}");
    let log = &shard["log"];
    assert_eq!(log["stream"], "HW_headwater_0");
    assert!(log["last"].as_u64() >= log["first"].as_u64() && log["bytes"].as_u64() > Some(0));
    assert_eq!(log["servers"].as_array().map(Vec::len), Some(3));
    assert_eq!(node_of(&found, owner)["owns"], serde_json::json!([0]));
    assert_eq!(found["problems"], serde_json::json!([]));
    // For people.
    let shown = operate(&cluster, "status").out;
    for part in ["cluster headwater: there is a quorum", "OWNER", "HEARD", &name(owner)] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // The settings may be in a file, and the cluster must be there.
    let file = cluster.folder.path().join("settings.toml");
    let settings = format!("[cluster]\ncluster-nats = \"{}\"\n", cluster.nats.urls(&ALL));
    std::fs::write(&file, settings).unwrap();
    let mut command = program();
    command.args(["cluster", "status", "--config"]).arg(&file);
    assert!(String::from_utf8_lossy(&command.output().unwrap().stdout).contains(&name(owner)));
    let told = operate(&cluster, "status --cluster-name other");
    assert!(
        !told.is_well && told.errors.contains("is the cluster's name right?"),
        "{}",
        told.errors
    );
    // A node that has ended is shown, and is not heard.
    cluster.end(owner, Signal::KILL);
    let next = cluster.owner();
    status(&cluster, "another owns the data", |found, is_well| {
        let shard = &found["shards"][0];
        is_well && shard["owner"] == *name(next) && node_of(found, owner)["heard"] == false
    });
    // It comes back with other settings than the others.
    let different = "different settings of cluster-snapshot-bytes";
    assert!(!found["warnings"].to_string().contains("different settings"), "{found:#}");
    cluster.arguments = &["--cluster-snapshot-bytes", "1234567"];
    cluster.begin(owner);
    let found = status(&cluster, "settings differ", |found, _| {
        all_heard(found) && found["warnings"].to_string().contains(different)
    });
    let warnings = found["warnings"].to_string();
    assert!(warnings.contains(&format!("1234567 at {}", name(owner))), "{warnings}");
    assert_eq!(warnings.matches("different settings").count(), 1, "{warnings}");
    cluster.end(owner, Signal::KILL);
    // Nobody owns the data, and then nobody can.
    for at in (0..NODES).filter(|at| *at != owner) {
        cluster.end(at, Signal::KILL);
    }
    let found = status(&cluster, "nobody owns the data", |found, is_well| {
        !is_well && found["shards"][0]["owner"].is_null() && found["quorum"] == true
    });
    let problems = found["problems"].to_string();
    assert!(problems.contains("shard 0 has no owner: "), "{problems}");
    assert!(problems.contains("no node is heard"), "{problems}");
    cluster.nats.kill(0);
    cluster.nats.kill(1);
    let found = status(&cluster, "there is no quorum", |found, is_well| {
        !is_well && found["quorum"] == false
    });
    assert!(found["problems"].to_string().contains("quorum"), "{found:#}");
}

#[test]
fn a_drained_node_owns_nothing_until_that_is_undone() {
    let Some(mut cluster) = Cluster::start() else { return };
    status(&cluster, "all is well", |status, is_well| is_well && all_heard(status));
    let first = cluster.owner();
    ask(&mut cluster.client(first), "SET k|a 1").unwrap();
    let told = operate(&cluster, "drain nobody");
    assert!(!told.is_well && told.errors.contains("there is no node 'nobody'"), "{}", told.errors);
    assert!(told.errors.contains("node0, node1, node2"), "{}", told.errors);
    let told = operate(&cluster, &format!("drain {}", name(first)));
    assert!(told.is_well, "{}", told.errors);
    assert!(told.out.contains(" owns shard 0 now"), "{}", told.out);
    let second = cluster.owner_after(first);
    assert!(told.out.contains(&format!("{} owns shard 0", name(second))), "{}", told.out);
    // It goes on, as the same process, and forwards.
    assert_eq!(text(&read(&cluster, first, &mut cluster.client(first), "GET k|a")), "1");
    let child = &mut cluster.nodes[first].as_mut().expect("it runs").child;
    assert!(child.try_wait().unwrap().is_none());
    let found = status(&cluster, "it is drained", |status, is_well| {
        is_well && node_of(status, first)["drained"] == true && all_heard(status)
    });
    assert_eq!(node_of(&found, first)["owns"], serde_json::json!([]));
    // Again changes nothing.
    let told = operate(&cluster, &format!("drain {}", name(first)));
    assert!(told.is_well && told.out.contains("was drained before"), "{}", told.out);
    // It outlives the process.
    cluster.end(first, Signal::TERM);
    cluster.begin(first);
    cluster.end(second, Signal::KILL);
    let third = cluster.owner();
    assert_eq!(third, NODES - first - second);
    status(&cluster, "the killed one is not heard", |status, is_well| {
        is_well
            && node_of(status, second)["heard"] == false
            && node_of(status, first)["heard"] == true
    });
    // Nobody else is left.
    let told = operate(&cluster, &format!("drain {}", name(third)));
    assert!(
        !told.is_well && told.errors.contains("is the last one that could own"),
        "{}",
        told.errors
    );
    assert_eq!(cluster.owner(), third);
    let told = operate(&cluster, &format!("drain {} --force", name(third)));
    assert!(told.is_well, "{}", told.errors);
    assert!(told.out.contains("nobody owns shard 0 now"), "{}", told.out);
    let found = status(&cluster, "all are drained", |_, is_well| !is_well);
    assert!(found["problems"].to_string().contains("that are heard are drained"), "{found:#}");
    let told = operate(&cluster, &format!("drain {} --undo", name(first)));
    assert!(told.is_well && told.out.contains("may own again"), "{}", told.out);
    assert_eq!(cluster.owner_after(third), first);
    assert_eq!(text(&read(&cluster, third, &mut cluster.client(third), "GET k|a")), "1");
    let told = operate(&cluster, &format!("drain {} --undo", name(first)));
    assert!(told.is_well && told.out.contains("was not drained"), "{}", told.out);
}

#[test]
fn what_is_acknowledged_while_owners_are_drained_stays() {
    let Some(cluster) = Cluster::start() else { return };
    status(&cluster, "all is well", |status, is_well| is_well && all_heard(status));
    let writers = Writers::start(&cluster);
    for _ in 0..3 {
        let least = writers.least();
        let began = Instant::now();
        while writers.least() < least + 20 {
            assert!(began.elapsed() < 2 * PATIENCE, "nothing is acknowledged");
            sleep(Duration::from_millis(50));
        }
        let owner = cluster.owner();
        let drain = format!("drain {}", name(owner));
        let began = Instant::now();
        let told = loop {
            let told = operate(&cluster, &drain);
            if told.is_well {
                break told;
            }
            // The log is so short here that nodes load snapshots, and are not heard before they have their names again.
            assert!(told.errors.contains("is the last one that could own"), "{}", told.errors);
            assert!(began.elapsed() < 2 * PATIENCE, "{}", told.errors);
        };
        assert!(told.out.contains("owns shard 0 now"), "{}", told.out);
        check(&cluster, owner, &writers.written, false);
        let told = operate(&cluster, &format!("drain {} --undo", name(owner)));
        assert!(told.is_well, "{}", told.errors);
    }
    let all = writers.end();
    (0..NODES).for_each(|at| check(&cluster, at, &all, true));
}

#[test]
fn a_node_that_has_ended_is_forgotten_and_may_come_back() {
    let Some(mut cluster) = Cluster::start() else { return };
    status(&cluster, "all is well", |status, is_well| is_well && all_heard(status));
    let gone = (cluster.owner() + 1) % NODES;
    let words = format!("remove {}", name(gone));
    let told = operate(&cluster, &words);
    assert!(!told.is_well && told.errors.contains("is heard, at 127.0.0.1:"), "{}", told.errors);
    assert!(operate(&cluster, &format!("drain {}", name(gone))).is_well);
    cluster.end(gone, Signal::KILL);
    let began = Instant::now();
    loop {
        let told = operate(&cluster, &words);
        if told.is_well {
            break;
        }
        assert!(told.errors.contains("is heard"), "{}", told.errors);
        assert!(began.elapsed() < PATIENCE, "{}", told.errors);
    }
    let forgotten = |found: &Value, is_well| is_well && node_of(found, gone).is_null();
    status(&cluster, "it is forgotten", forgotten);
    let told = operate(&cluster, &words);
    assert!(!told.is_well && told.errors.contains("there is no node"), "{}", told.errors);
    cluster.begin(gone);
    status(&cluster, "it is back, and may own", |found, is_well| {
        let node = node_of(found, gone);
        is_well && node["heard"] == true && node["drained"] == false
    });
}

#[test]
fn a_cluster_that_is_not_named_or_not_there_is_told() {
    let mut command = program();
    let told = command.args(["cluster", "status"]).output().unwrap();
    assert!(!told.status.success());
    assert!(String::from_utf8_lossy(&told.stderr).contains("--cluster"), "{told:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    std::fs::write(
        &file,
        "[cluster]\ncluster-nats = \"nats://127.0.0.1:1\"\ncluster-start-seconds = 1\n",
    )
    .unwrap();
    for json in [false, true] {
        let mut command = program();
        command.args(["cluster", "status", "--config"]).arg(&file);
        let told = command.args(json.then_some("--json")).output().unwrap();
        assert!(!told.status.success());
        let text = String::from_utf8([told.stdout, told.stderr].concat()).unwrap();
        assert!(text.contains("NATS cannot be reached"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).is_ok(), json, "{text}");
    }
}

/// Before the servers are full, writes end: the lease is renewed there as well, and reads go on.
#[test]
fn writes_are_refused_while_a_nats_server_is_nearly_full() {
    let arguments = &["--cluster-snapshot-bytes", "1000000000"];
    let Some(mut cluster) = Cluster::start_within(arguments, "64MB") else { return };
    let owner = cluster.owner();
    let mut client = cluster.client(owner);
    let mut node = cluster.client((owner + 1) % NODES);
    // Text, none of which the log can make shorter.
    let long: String = bytes(100_000, 1).into_iter().map(|it| char::from(b'0' + it % 64)).collect();
    let set = |client: &mut redis::Connection, at: usize| {
        redis::cmd("SET").arg(format!("k|{}", at % 5)).arg(&long).query::<()>(client)
    };
    // Not so fast that it is full before anybody has looked.
    let refused = (0..2000).find_map(|at| {
        sleep(Duration::from_millis(10));
        set(&mut client, at).err()
    });
    let refused = refused.expect("there is no room in the end");
    assert_eq!(refused.code(), Some("CLUSTERDOWN"), "{refused}");
    assert!(refused.to_string().contains("hardly any room"), "{refused}");
    for words in ["DEL k|0", "INCR n", "COPY k|0 k|9"] {
        let refused = ask(&mut client, words).unwrap_err();
        assert_eq!(refused.code(), Some("CLUSTERDOWN"), "{words}: {refused}");
    }
    ask(&mut node, "MULTI").unwrap();
    let queued = ask(&mut node, "SET a b");
    let refused = ask(&mut node, "EXEC").unwrap_err().to_string();
    assert!(refused.contains("CLUSTERDOWN") && queued.is_ok(), "{refused}, {queued:?}");
    // A node that could not renew its lease would not be the owner any more after so long.
    let epoch = figure(&cluster, owner, "cluster_epoch");
    sleep(Duration::from_secs(5));
    assert_eq!(text(&ask(&mut node, "GET k|0").unwrap()).len(), long.len());
    assert_eq!(figure(&cluster, owner, "cluster_epoch"), epoch);
    // The log is purged below a snapshot.
    let told = operate(&cluster, "snapshot");
    assert!(told.is_well, "{}", told.errors);
    let began = Instant::now();
    while let Err(why) = set(&mut node, 0) {
        assert_eq!(why.code(), Some("CLUSTERDOWN"), "{why}");
        assert!(began.elapsed() < PATIENCE, "writes are refused for good");
        sleep(Duration::from_millis(100));
    }
    cluster.end(owner, Signal::KILL);
    cluster.owner();
}

#[test]
fn a_snapshot_is_stored_when_it_is_asked_for() {
    // None is taken by itself.
    let Some(mut cluster) = Cluster::start_with(&["--cluster-snapshot-bytes", "1000000000"]) else {
        return;
    };
    let told = operate(&cluster, "snapshot");
    assert!(
        told.is_well && told.out.contains("there is no data yet"),
        "{}{}",
        told.out,
        told.errors
    );
    let owner = cluster.owner();
    let mut client = cluster.client(owner);
    for number in 0..100 {
        ask(&mut client, &format!("SET k|{number:03} {number}")).unwrap();
    }
    let sequence = |told: &Told| -> u64 {
        assert!(told.is_well, "{}", told.errors);
        let rest = told.out.split("snapshot up to ").nth(1).unwrap_or_default();
        rest.split(' ').next().and_then(|word| word.parse().ok()).expect(&told.out)
    };
    let first = sequence(&operate(&cluster, "snapshot"));
    // Where nothing was written since, there is nothing to store.
    assert_eq!(sequence(&operate(&cluster, "snapshot")), first);
    let found = status(&cluster, "it is named", |_, is_well| is_well);
    assert_eq!(found["shards"][0]["snapshot"]["sequence"], first);
    ask(&mut client, "SET k|100 100").unwrap();
    let second = sequence(&operate(&cluster, "snapshot"));
    assert!(second > first, "{second} is not above {first}");
    // The log is purged below it, and a node with an empty folder has all the same.
    status(&cluster, "the log is purged", |status, _| {
        status["shards"][0]["log"]["first"].as_u64() == Some(second)
    });
    let fresh = (owner + 1) % NODES;
    cluster.end(fresh, Signal::KILL);
    std::fs::remove_dir_all(cluster.folder.path().join(format!("node{fresh}"))).unwrap();
    cluster.begin(fresh);
    cluster.end((owner + 2) % NODES, Signal::TERM);
    cluster.end(owner, Signal::TERM);
    assert_eq!(cluster.owner(), fresh);
    let count = read(&cluster, fresh, &mut cluster.client(fresh), "PREFIX k| COUNT");
    assert_eq!(count, redis::Value::Int(101));
    // Whoever owns the data takes it, or nobody.
    cluster.end(fresh, Signal::TERM);
    let told = operate(&cluster, "snapshot --within 1");
    assert!(!told.is_well && told.errors.contains("nobody owns it"), "{}", told.errors);
}

#[test]
fn a_cluster_is_made_beforehand_and_what_is_wrong_is_named() {
    let Some((nats, _turn)) = servers("2m") else { return };
    let urls = nats.urls(&ALL);
    let monitoring = nats.monitoring();
    let create = |more: &[&str]| {
        let mut command = program();
        command.args(["cluster", "create", "--cluster", &urls]).args(more);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let all: Vec<&str> =
        monitoring.iter().flat_map(|address| ["--nats-monitoring", address]).collect();
    let (is_well, text) = create(&[]);
    assert!(!is_well && text.contains("without their monitoring addresses"), "{text}");
    let (is_well, text) = create(&all);
    assert!(!is_well, "{text}");
    for server in ["'s0'", "'s1'", "'s2'"] {
        let told = text.lines().find(|line| line.contains(server));
        assert!(told.is_some_and(|line| line.contains("sync_interval: always")), "{text}");
    }
    // Nothing was made.
    let told = operate_at(&urls, "status");
    assert!(
        !told.is_well && told.errors.contains("have no stream KV_HW_headwater_owners"),
        "{}",
        told.errors
    );
    for _ in 0..2 {
        let (is_well, text) = create(&["--unsafe-sync"]);
        assert!(is_well && text.contains("nodes can be started"), "{text}");
        for name in [
            "bucket HW_headwater_owners",
            "stream HW_headwater_0:",
            "stream HW_headwater_0_snapshots",
        ] {
            assert!(text.contains(name), "{name}: {text}");
        }
    }
    let told = operate_at(&urls, "status");
    assert!(
        !told.is_well && told.out.contains("no node has owned it yet"),
        "{}{}",
        told.out,
        told.errors
    );
    // Each that is there with other settings.
    let (is_well, text) = create(&["--unsafe-sync", "--cluster-replicas", "1"]);
    assert!(!is_well, "{text}");
    for name in
        ["bucket HW_headwater_owners", "stream HW_headwater_0:", "stream HW_headwater_0_snapshots"]
    {
        let line = text.lines().find(|line| line.contains(name));
        assert!(line.is_some_and(|line| line.contains("replicas 3 (must be 1)")), "{name}: {text}");
    }
}
