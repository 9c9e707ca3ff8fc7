//! Nodes that cannot be in their cluster end, with a sentence.

use crate::cluster::{ALL, Cluster, NODES, ask, servers_with};
use crate::nats_servers::{Servers, free_ports};
use crate::support::{PATIENCE, program};
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
}
