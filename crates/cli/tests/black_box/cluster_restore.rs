//! `headwater cluster restore`: a backup becomes the data of a new cluster.

use crate::cluster::{ALL, Cluster, NODES, ask, ask_all, read, text};
use crate::support::{PATIENCE, program};
use redis::Value;
use rustix::process::Signal;
use std::path::Path;
use std::time::Instant;

/// Restores into the cluster with this name; whether that was done, and what was told.
fn restore(cluster: &Cluster, name: &str, from: &Path) -> (bool, String) {
    let mut command = program();
    command.args(["cluster", "restore", "--cluster-name", name, "--from"]).arg(from);
    command.args(["--cluster", &cluster.nats.urls(&ALL)]);
    for url in cluster.nats.monitoring() {
        command.args(["--nats-monitoring", &url]);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), text)
}

#[test]
fn a_new_cluster_is_filled_with_a_backup() {
    let Some(mut cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let mut client = cluster.client(owner);
    let join = "last|<user> = last p|<user>|<time>";
    ask_all(&mut client, &["JOIN.ADD", "last", join]).unwrap();
    for number in 0..200 {
        ask(&mut client, &format!("SET p|u{}|{number:06} {number}", number % 7)).unwrap();
    }
    ask(&mut client, "SET plain value").unwrap();
    let backup = cluster.folder.path().join("backup");
    let mut command = program();
    command.args(["backup", "-p", &cluster.ports[owner].to_string(), "--to"]).arg(&backup);
    assert!(command.output().unwrap().status.success());
    // A cluster whose nodes are there, and one that has data.
    let (is_done, told) = restore(&cluster, "headwater", &backup);
    assert!(!is_done && told.contains("are heard"), "{told}");
    for at in 0..NODES {
        cluster.end(at, Signal::TERM);
        std::fs::remove_dir_all(cluster.folder.path().join(format!("node{at}"))).unwrap();
    }
    let began = Instant::now();
    loop {
        let (is_done, told) = restore(&cluster, "headwater", &backup);
        assert!(!is_done, "{told}");
        if told.contains("is not empty") {
            break;
        }
        assert!(told.contains("are heard") && began.elapsed() < PATIENCE, "{told}");
    }
    // Backups that are not whole, or damaged.
    let bad = cluster.folder.path().join("bad");
    std::fs::create_dir(&bad).unwrap();
    let (is_done, told) = restore(&cluster, "second", &bad);
    assert!(!is_done && told.contains("has no whole backup"), "{told}");
    let note = "Headwater backup, format 2\ntaken 1\nshards 2\nbytes 1 1\nplacement no\n";
    std::fs::write(bad.join("headwater-backup"), note).unwrap();
    let (is_done, told) = restore(&cluster, "second", &bad);
    assert!(!is_done && told.contains("is of 2 shards in one process"), "{told}");
    std::fs::copy(backup.join("headwater-backup"), bad.join("headwater-backup")).unwrap();
    std::fs::create_dir(bad.join("shard-0")).unwrap();
    for (at, piece) in std::fs::read_dir(backup.join("shard-0")).unwrap().enumerate() {
        let piece = piece.unwrap();
        let mut bytes = std::fs::read(piece.path()).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= u8::from(at == 0);
        std::fs::write(bad.join("shard-0").join(piece.file_name()), bytes).unwrap();
    }
    let (is_done, told) = restore(&cluster, "second", &bad);
    assert!(!is_done && told.contains("damaged"), "{told}");

    let (is_done, told) = restore(&cluster, "second", &backup);
    assert!(is_done && told.contains("201 keys"), "{told}");
    let (is_done, told) = restore(&cluster, "second", &backup);
    assert!(!is_done && told.contains("is not empty"), "{told}");
    cluster.arguments = &["--cluster-name", "second"];
    (0..NODES).for_each(|at| cluster.begin(at));
    let holds = |cluster: &Cluster, at: usize, more: i64| {
        let mut client = cluster.client(at);
        let mut read = |words: &str| read(cluster, at, &mut client, words);
        assert_eq!(read("PREFIX p|u COUNT"), Value::Int(200 + more));
        assert_eq!(text(&read("GET plain")), "value");
        assert_eq!(text(&read("GET last|u3")), if more > 0 { "new" } else { "199" });
        assert_eq!(read("VERIFY last| last}"), Value::Array(Vec::new()));
    };
    let owner = cluster.owner();
    (0..NODES).for_each(|at| holds(&cluster, at, 0));
    // It goes on as any other cluster does.
    ask(&mut cluster.client(owner), "SET p|u3|999999 new").unwrap();
    cluster.end(owner, Signal::KILL);
    cluster.owner();
    holds(&cluster, (owner + 1) % NODES, 1);
}
