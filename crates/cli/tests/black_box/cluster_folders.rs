//! Nodes whose folders do not end with what their log has there, of another log, or with more than it has; and one whose folder cannot be written.

use crate::cluster::{ALL, Cluster, NODES, Node, ask, read, text};
use crate::support::{PATIENCE, program};
use redis::Value;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The next cluster: other logs of the same NATS servers. Its snapshots are those that are ordered.
const SECOND: [&str; 4] = ["--cluster-name", "second", "--cluster-snapshot-bytes", "100000000"];

fn folder_of(cluster: &Cluster, at: usize) -> PathBuf {
    cluster.folder.path().join(format!("node{at}"))
}

fn fill(cluster: &Cluster, name: &str, count: usize) {
    let mut client = cluster.client(cluster.owner());
    for number in 0..count {
        ask(&mut client, &format!("SET {name}|{number} {name}")).unwrap();
    }
}

/// The folder of a node that has owned sixty records and more; its cluster is ended, and the second one has begun.
fn folder_of_another_log(cluster: &mut Cluster) -> PathBuf {
    let owner = cluster.owner();
    fill(cluster, "old", 60);
    let others = (0..NODES).filter(|at| *at != owner);
    for at in others.chain([owner]) {
        cluster.end(at, Signal::TERM);
    }
    let kept = cluster.folder.path().join("old");
    fs::rename(folder_of(cluster, owner), &kept).unwrap();
    for at in (0..NODES).filter(|at| *at != owner) {
        fs::remove_dir_all(folder_of(cluster, at)).unwrap();
    }
    cluster.arguments = &SECOND;
    (0..NODES).for_each(|at| cluster.begin(at));
    kept
}

/// What a folder says of which stream it is a copy.
const ORIGIN: &str = "headwater-log";

fn origin(data: &Path) -> String {
    fs::read_to_string(data.join(ORIGIN)).unwrap_or_default()
}

/// Puts a folder in the place of a node's that has ended.
fn replace(cluster: &Cluster, at: usize, folder: &Path) -> PathBuf {
    let data = folder_of(cluster, at);
    fs::remove_dir_all(&data).unwrap();
    fs::rename(folder, &data).unwrap();
    data
}

/// Has a folder say that it is a copy of the second cluster's stream, as that was made earlier.
fn call_earlier(data: &Path) {
    fs::write(data.join(ORIGIN), "stream HW_second_0\ncreated 1\n").unwrap();
}

/// Starts a node that has ended, with a log of its own; where that is.
fn begin_logged(cluster: &mut Cluster, at: usize) -> PathBuf {
    let log = cluster.folder.path().join("warned.log");
    let file = String::from(log.to_str().unwrap()).leak();
    let more = ["--log-level", "warn", "--log-file", &*file];
    cluster.arguments = [&SECOND[..], &more].concat().leak();
    cluster.begin(at);
    cluster.arguments = &SECOND;
    log
}

/// Waits until a log has a text.
fn until_logged(log: &Path, what: &str) -> String {
    let began = Instant::now();
    loop {
        let logged = fs::read_to_string(log).unwrap_or_default();
        if logged.contains(what) {
            return logged;
        }
        assert!(began.elapsed() < PATIENCE, "no {what}: {logged}");
        sleep(Duration::from_millis(50));
    }
}

/// Waits until a node has ended by itself, as it must.
fn until_ended(cluster: &mut Cluster, at: usize) {
    let mut node = cluster.nodes[at].take().expect("it runs");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = node.child.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed() < PATIENCE, "node {at} goes on");
        sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(1), "{status}");
}

fn snapshot(cluster: &Cluster) {
    let mut command = program();
    command.args(["cluster", "snapshot", "--cluster-name", "second"]);
    command.args(["--cluster", &cluster.nats.urls(&ALL)]);
    for url in cluster.nats.monitoring() {
        command.args(["--nats-monitoring", &url]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_node_whose_folder_is_of_another_log_discards_it_and_begins_anew() {
    let Some(mut cluster) = Cluster::start() else { return };
    let old = folder_of_another_log(&mut cluster);
    let owner = cluster.owner();
    let (struck, third) = ((owner + 1) % NODES, (owner + 2) % NODES);
    fill(&cluster, "purged", 20);
    snapshot(&cluster);
    // Where the folder ends, there is another record.
    fill(&cluster, "new", 100);
    cluster.end(struck, Signal::TERM);
    let data = replace(&cluster, struck, &old);
    // As an earlier version has left it.
    fs::remove_file(data.join(ORIGIN)).unwrap();
    let log = begin_logged(&mut cluster, struck);
    let logged = until_logged(&log, "a snapshot was loaded");
    let warned = logged.lines().find(|line| line.contains("event=\"folder_discarded\""));
    let warned = warned.unwrap_or_else(|| panic!("{logged}"));
    assert!(warned.contains("WARN") && warned.contains("stream=\"HW_second_0\""), "{warned}");
    let sequence = warned.split("sequence=").nth(1).and_then(|rest| rest.split(' ').next());
    let sequence: u64 = sequence.unwrap().parse().unwrap();
    assert!((60..120).contains(&sequence), "{warned}");
    let kept = data.join("discarded");
    assert!(warned.contains(kept.to_str().unwrap()), "{warned}");
    assert!(kept.join("headwater-data").exists() && kept.join("store").exists());

    ask(&mut cluster.client(owner), "SET last 1").unwrap();
    // It alone is left, so it has what it has by itself.
    cluster.end(third, Signal::TERM);
    cluster.end(owner, Signal::TERM);
    assert_eq!(cluster.owner(), struck);
    let mut client = cluster.client(struck);
    let mut read = |words: &str| read(&cluster, struck, &mut client, words);
    assert_eq!(read("PREFIX purged| COUNT"), Value::Int(20));
    assert_eq!(read("PREFIX new| COUNT"), Value::Int(100));
    assert_eq!(read("PREFIX old| COUNT"), Value::Int(0));
    assert_eq!(text(&read("GET last")), "1");
    // It names its log now.
    assert_eq!(origin(&data), origin(&folder_of(&cluster, third)));
}

#[test]
fn a_node_whose_folder_has_more_than_the_log_stops_and_keeps_it() {
    let Some(mut cluster) = Cluster::start() else { return };
    let old = folder_of_another_log(&mut cluster);
    let owner = cluster.owner();
    let struck = (owner + 1) % NODES;
    fill(&cluster, "new", 10);
    cluster.end(struck, Signal::TERM);
    let data = replace(&cluster, struck, &old);
    fs::remove_file(data.join(ORIGIN)).unwrap();
    // Nobody but this node could own the shard.
    cluster.end((owner + 2) % NODES, Signal::TERM);
    cluster.end(owner, Signal::TERM);
    let log = begin_logged(&mut cluster, struck);
    until_ended(&mut cluster, struck);
    let told = "of stream HW_second_0 was acknowledged and is lost";
    let logged = until_logged(&log, told);
    let sentence = logged.lines().find(|line| line.contains(told)).unwrap();
    let sequence = sentence.split("message ").nth(1).and_then(|rest| rest.split(' ').next());
    // However often it is started again, and whoever else reads the log, which has what that has asked there.
    for at in [struck, owner] {
        fs::remove_file(&log).unwrap();
        let again = begin_logged(&mut cluster, at);
        until_ended(&mut cluster, at);
        let sentence = format!("message {} {told}", sequence.unwrap());
        until_logged(&again, &sentence);
        let data = folder_of(&cluster, at);
        assert!(data.join("headwater-data").exists() && !data.join("discarded").exists());
    }
}

#[test]
fn a_node_refuses_the_folder_of_another_cluster_and_leaves_it_as_it_is() {
    let Some(mut cluster) = Cluster::start() else { return };
    let old = folder_of_another_log(&mut cluster);
    let named = origin(&old);
    assert!(named.starts_with("stream HW_headwater_0\ncreated 1"), "{named}");
    let owner = cluster.owner();
    let struck = (owner + 1) % NODES;
    // Whether anybody owns the shard or not.
    cluster.end(struck, Signal::TERM);
    let data = replace(&cluster, struck, &old);
    for owned in [true, false] {
        if !owned {
            (0..NODES).filter(|at| *at != struck).for_each(|at| cluster.end(at, Signal::TERM));
        }
        let output = cluster.command(struck).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8(output.stderr).unwrap();
        let sentence = "it is a copy of stream HW_headwater_0, and this node is for stream HW_second_0 (allowed: the folder that this node has had, or an empty one)";
        assert!(told.contains(sentence) && told.contains(data.to_str().unwrap()), "{told}");
        assert_eq!(origin(&data), named);
        assert!(data.join("headwater-data").exists() && !data.join("discarded").exists());
    }
    // At a node of its own cluster the folder that was refused elsewhere can still be used.
    cluster.arguments = &[];
    cluster.begin(struck);
    assert_eq!(cluster.owner(), struck);
    let mut client = cluster.client(struck);
    assert_eq!(read(&cluster, struck, &mut client, "PREFIX old| COUNT"), Value::Int(60));
}

#[test]
fn a_folder_of_an_earlier_stream_that_went_further_is_kept_and_the_cluster_goes_on() {
    let Some(mut cluster) = Cluster::start() else { return };
    let old = folder_of_another_log(&mut cluster);
    let owner = cluster.owner();
    let (struck, third) = ((owner + 1) % NODES, (owner + 2) % NODES);
    fill(&cluster, "new", 10);
    cluster.end(struck, Signal::TERM);
    let data = replace(&cluster, struck, &old);
    call_earlier(&data);
    // Nobody owns the shard, and this node does not either.
    cluster.end(third, Signal::TERM);
    cluster.end(owner, Signal::TERM);
    let log = begin_logged(&mut cluster, struck);
    until_ended(&mut cluster, struck);
    let logged = until_logged(&log, "is a copy of an earlier stream HW_second_0, up to message");
    assert!(logged.contains("start the node with an empty one"), "{logged}");
    assert!(data.join("headwater-data").exists() && !data.join("discarded").exists());
    // Nothing was noted in the log: it goes on with those whose folders are its copies.
    cluster.begin(owner);
    assert_eq!(cluster.owner(), owner);
    fill(&cluster, "more", 10);
    // What the log has instead, once it has as much, is what counts.
    fill(&cluster, "beyond", 100);
    fs::remove_file(&log).unwrap();
    let log = begin_logged(&mut cluster, struck);
    until_logged(&log, "event=\"folder_discarded\"");
    let is_named = || origin(&data) == origin(&folder_of(&cluster, owner));
    let began = Instant::now();
    while !is_named() {
        assert!(began.elapsed() < PATIENCE, "the new folder names no log");
        sleep(Duration::from_millis(20));
    }
    let kept = data.join("discarded");
    assert!(kept.join("headwater-data").exists());
    assert_eq!(origin(&kept), "stream HW_second_0\ncreated 1\n");
}

#[test]
fn a_folder_of_an_earlier_stream_is_put_aside_where_the_log_begins_behind_it() {
    let Some(mut cluster) = Cluster::start() else { return };
    let old = folder_of_another_log(&mut cluster);
    let owner = cluster.owner();
    let struck = (owner + 1) % NODES;
    fill(&cluster, "new", 150);
    snapshot(&cluster);
    // The log has nothing any more of where the folder ends.
    fill(&cluster, "last", 1);
    cluster.end(struck, Signal::TERM);
    let data = replace(&cluster, struck, &old);
    call_earlier(&data);
    let log = begin_logged(&mut cluster, struck);
    let logged = until_logged(&log, "a snapshot was loaded");
    assert!(logged.contains("event=\"folder_discarded\""), "{logged}");
    assert!(data.join("discarded").join("store").exists());
    cluster.end((owner + 2) % NODES, Signal::TERM);
    cluster.end(owner, Signal::TERM);
    assert_eq!(cluster.owner(), struck);
    let mut client = cluster.client(struck);
    assert_eq!(read(&cluster, struck, &mut client, "PREFIX new| COUNT"), Value::Int(150));
    assert_eq!(origin(&data), origin(&folder_of(&cluster, owner)));
}

#[test]
fn an_owner_that_cannot_write_its_folder_ends_and_another_node_has_all_that_was_acknowledged() {
    let Some(mut cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let (struck, third) = ((owner + 1) % NODES, (owner + 2) % NODES);
    cluster.end(struck, Signal::TERM);
    // Files beyond a limit then fail with an error, as on a full disk, instead of a signal.
    let plain = cluster.command(struck);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(plain.get_program());
    shell.args(plain.get_args()).env("HEADWATER_LOG_LEVEL", "error");
    cluster.nodes[struck] = Some(Node::start(shell));
    cluster.end(third, Signal::TERM);
    cluster.end(owner, Signal::TERM);
    assert_eq!(cluster.owner(), struck);
    cluster.begin(third);
    cluster.begin(owner);
    let mut client = cluster.client(third);
    ask(&mut client, "SET p|0 before").unwrap();
    let pid = Pid::from_child(&cluster.nodes[struck].as_ref().expect("it runs").child);
    let limit = Rlimit { current: Some(4096), maximum: Some(4096) };
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();

    let (value, mut acknowledged) = ("v".repeat(2000), vec![0]);
    let (began, mut number) = (Instant::now(), 0);
    let is_over = |cluster: &mut Cluster| {
        let node = cluster.nodes[struck].as_mut().expect("it was started");
        node.child.try_wait().unwrap().is_some()
    };
    while !is_over(&mut cluster) {
        assert!(began.elapsed() < PATIENCE, "it goes on without a folder");
        number += 1;
        match ask(&mut client, &format!("SET p|{number} {value}")) {
            Ok(_) => acknowledged.push(number),
            Err(_) => client = cluster.client(third),
        }
    }
    until_ended(&mut cluster, struck);
    let next = cluster.owner();
    assert_ne!(next, struck);
    let check = |cluster: &Cluster, at: usize, acknowledged: &[u64]| {
        let mut client = cluster.client(at);
        for number in acknowledged {
            let found = text(&read(cluster, at, &mut client, &format!("GET p|{number}")));
            let is = if *number == 0 { "before" } else { &*value };
            assert_eq!(found, is, "p|{number} was acknowledged");
        }
    };
    check(&cluster, third, &acknowledged);
    acknowledged.push(number + 1);
    ask(&mut cluster.client(next), &format!("SET p|{} {value}", number + 1)).unwrap();
    // Where there is room again, it has all that the others have.
    cluster.begin(struck);
    for at in (0..NODES).filter(|at| *at != struck) {
        cluster.end(at, Signal::TERM);
    }
    assert_eq!(cluster.owner(), struck);
    check(&cluster, struck, &acknowledged);
}
