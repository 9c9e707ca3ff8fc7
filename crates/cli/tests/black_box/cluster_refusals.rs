//! Nodes that cannot be in their cluster end, with a sentence.

use crate::cluster::{ALL, Cluster, NODES, ask, read, servers_with, text};
use crate::nats_servers::{Servers, free_ports};
use crate::support::{PATIENCE, program};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Instant;

/// What a node writes to standard error that ends by itself, as it must.
pub(crate) fn refused(
    nats: &Servers,
    urls: &str,
    name: &str,
    more: &[&str],
    folder: &Path,
) -> String {
    let [port] = free_ports(1)[..] else { panic!("one port") };
    let log = folder.join("refused.log");
    let mut command = program();
    command.args(["serve", "--shards", "1", "--node", name, "--port", &port.to_string()]);
    command.args(["--advertise", &format!("127.0.0.1:{port}"), "--cluster", urls]).args(more);
    for url in nats.monitoring() {
        command.args(["--nats-monitoring", &url]);
    }
    command.arg("--data").arg(folder.join("refused"));
    command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    let read = || fs::read_to_string(&log).unwrap();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() >= PATIENCE {
            let _gone = (child.kill(), child.wait());
            panic!("it goes on:\n{}", read());
        }
        sleep(std::time::Duration::from_millis(20));
    };
    assert!(!status.success(), "{}", read());
    read()
}

#[test]
fn a_second_process_of_one_name_ends_and_the_first_goes_on() {
    let Some(cluster) = Cluster::start() else { return };
    let first = (cluster.owner() + 1) % NODES;
    let (nats, name) = (&cluster.nats, format!("node{first}"));
    let folder = tempfile::tempdir().unwrap();
    let told = refused(nats, &nats.urls(&ALL), &name, &[], folder.path());
    let why = format!(
        "another process is node '{name}' of this cluster, at 127.0.0.1:{}",
        cluster.ports[first]
    );
    assert!(told.contains(&why) && told.contains("event=\"stopped\""), "{told}");
    ask(&mut cluster.client(first), "SET k|a 1").unwrap();
}

#[test]
fn a_node_that_nats_does_not_let_in_ends() {
    let users = "authorization { user: headwater, password: right }";
    let Some((nats, _turn)) = servers_with("always", users) else { return };
    let folder = tempfile::tempdir().unwrap();
    let urls = |login: &str| nats.urls(&ALL).replace("nats://", &format!("nats://{login}"));
    for login in ["headwater:wrong@", "somebody:right@", ""] {
        let told = refused(&nats, &urls(login), "n1", &[], folder.path());
        assert!(told.contains("authorization violation"), "'{login}': {told}");
        assert!(!told.contains("wrong"), "the password is nobody's affair: {told}");
    }
    let (settings, credentials) =
        (folder.path().join("headwater.toml"), folder.path().join("nats.creds"));
    let text = format!("[cluster]\ncluster-credentials = '{}'\n", credentials.display());
    fs::write(&settings, text).unwrap();
    let words = ["--config", settings.to_str().unwrap()];
    for text in [None, Some("these are none")] {
        text.iter().for_each(|text| fs::write(&credentials, text).unwrap());
        let told = refused(&nats, &urls(""), "n1", &words, folder.path());
        assert!(told.contains("nats.creds"), "{told}");
    }
    // Who has the right password makes what a cluster needs.
    let mut create = program();
    create.args(["cluster", "create", "--shards", "1", "--cluster", &urls("headwater:right@")]);
    for url in nats.monitoring() {
        create.args(["--nats-monitoring", &url]);
    }
    let told = create.output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}

/// A file with settings that name a file with credentials of `tests/nats`.
fn with_credentials(folder: &Path, name: &str) -> &'static str {
    let credentials = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/nats").join(name);
    let file = folder.join(format!("{name}.toml"));
    let text = format!("[cluster]\ncluster-credentials = '{}'\n", credentials.display());
    fs::write(&file, text).unwrap();
    Box::leak(file.to_str().unwrap().to_owned().into_boxed_str())
}

/// NATS servers that let in whoever an operator's account vouches for.
#[test]
fn nodes_and_commands_are_let_in_with_a_file_with_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_credentials(folder.path(), "node.creds");
    let words: &'static [&'static str] = Box::leak(Box::new(["--config", file]));
    let operator = include_str!("../../../../tests/nats/operator.conf");
    let Some(mut cluster) = Cluster::start_behind(words, operator) else { return };
    let owner = cluster.owner();
    ask(&mut cluster.client(owner), "SET k|a 1").unwrap();
    // With what they are let in by once more, when the connection breaks.
    cluster.nats.kill(0);
    let next = (owner + 1) % NODES;
    cluster.end(owner, Signal::KILL);
    cluster.owner_after(owner);
    let value = read(&cluster, next, &mut cluster.client(next), "GET k|a");
    assert_eq!(text(&value), "1");

    let stranger = with_credentials(folder.path(), "stranger.creds");
    let (nats, urls) = (&cluster.nats, cluster.nats.urls(&[1, 2]));
    for more in [&["--config", stranger][..], &[]] {
        let told = refused(nats, &urls, "n1", more, folder.path());
        assert!(told.contains("authorization violation"), "{told}");
    }
    let status = |more: &[&str]| {
        let mut status = program();
        status.args(["cluster", "status", "--cluster", &urls]).args(more).output().unwrap()
    };
    let told = status(words);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(&format!("node{next}")), "{told}");
    assert!(!status(&["--config", stranger]).status.success());
}
