//! What nodes that stand by answer over HTTP: whether they live and are ready, and how far they follow; and that the port goes over to the server.

use crate::cluster::{ALL, Cluster, NODES, ask};
use crate::http::get_at;
use crate::nats_servers::free_ports;
use crate::support::{PATIENCE, program};
use crate::tls::{Authority, Dial, Identity, NEW};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(50);
/// A request that shows the token.
const WITH_TOKEN: &str = "GET /metrics HTTP/1.0\r\nAuthorization: Bearer s3cret\r\nX-Asked:";

/// Asks until an answer is as it should be, and gives it.
fn until(what: &str, mut answer: impl FnMut() -> String, is_so: impl Fn(&str) -> bool) -> String {
    let began = Instant::now();
    loop {
        let told = answer();
        if is_so(&told) {
            return told;
        }
        assert!(began.elapsed() < PATIENCE, "{what}:\n{told}");
        sleep(LOOK);
    }
}

impl Cluster {
    fn asked(&self, at: usize, request: &str) -> String {
        let node = self.nodes[at].as_ref().expect("it runs");
        get_at(&node.address("HTTP on "), request).unwrap_or_default()
    }

    fn await_ready(&self, at: usize) {
        let is_ready = |answer: &str| answer.contains(" 200 ");
        until("the node is not ready", || self.asked(at, "GET /readyz"), is_ready);
    }

    /// Waits until a node is not ready, for a reason with this in it.
    fn await_unready(&self, at: usize, why: &str) {
        let is_so = |answer: &str| answer.contains(" 503 ") && answer.contains(why);
        until("the node is ready", || self.asked(at, "GET /readyz"), is_so);
    }

    /// Waits until the figures of a node have these lines.
    fn await_figures(&self, at: usize, lines: &[&str]) -> String {
        let has = |answer: &str| lines.iter().all(|line| answer.lines().any(|it| it == *line));
        let figures = || self.asked(at, WITH_TOKEN);
        until(&format!("{lines:?} are not in the figures of {at}"), figures, has)
    }
}

/// A file with settings that want a token for figures.
fn settings(folder: &Path, more: &str) -> &'static str {
    crate::cluster_doors::settings(folder, &format!("[http]\nhttp-token = \"s3cret\"\n{more}"))
}

#[test]
fn nodes_that_stand_by_say_how_they_do_and_hand_their_port_on() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--http-port", "0", "--config", settings(folder.path(), "")];
    let words: &'static [&'static str] = Box::leak(Box::new(words));
    let Some(mut cluster) = Cluster::start_with(words) else { return };
    let owner = cluster.owner();
    ask(&mut cluster.client(owner), "SET k|a 1").unwrap();
    let standby = [
        "headwater_cluster_owner{shard=\"0\"} 0.0",
        "headwater_cluster_owner_known 1.0",
        "headwater_cluster_standby_followed 1.0",
        "headwater_cluster_standby_lag_records 0.0",
        "headwater_cluster_drained 0.0",
    ];
    let owns = ["headwater_cluster_owner{shard=\"0\"} 1.0"];
    for at in 0..NODES {
        cluster.await_ready(at);
        assert!(cluster.asked(at, "GET /healthz").contains(" 200 "));
        let refused = cluster.asked(at, "GET /metrics");
        assert!(refused.contains(" 401 ") && !refused.contains("headwater_"), "{refused}");
        let told = cluster.await_figures(at, if at == owner { &owns } else { &standby });
        assert!(told.contains("\nheadwater_cluster_lease_age_milliseconds "), "{told}");
        assert!(told.contains("\nheadwater_cluster_epoch 1.0\n"), "{told}");
        assert_eq!(told.contains("\nheadwater_keys "), at == owner, "{told}");
        let value = cluster.asked(at, "GET /v1/keys/k%7Ca");
        assert!(value.contains(" 200 ") && value.ends_with("\r\n\r\n1"), "{value}");
    }

    cluster.end(owner, Signal::KILL);
    let standbys: Vec<usize> = (0..NODES).filter(|at| *at != owner).collect();
    let ports = standbys.iter().map(|at| cluster.nodes[*at].as_ref().unwrap().address("HTTP on "));
    let ports: Vec<String> = ports.collect();
    let next = cluster.owner_after(owner);
    cluster.await_figures(next, &owns);
    for (at, port) in standbys.iter().zip(&ports) {
        assert_eq!(&cluster.nodes[*at].as_ref().unwrap().address("HTTP on "), port);
        cluster.await_ready(*at);
    }

    // An owner that is drained stands by, as a process that has begun anew.
    let mut drain = program();
    drain.args(["cluster", "drain", &format!("node{next}"), "--cluster", &cluster.nats.urls(&ALL)]);
    assert!(drain.stdout(Stdio::null()).status().unwrap().success());
    let drained = ["headwater_cluster_owner{shard=\"0\"} 0.0", "headwater_cluster_drained 1.0"];
    cluster.await_figures(next, &drained);
    cluster.await_ready(next);
    let next = *standbys.iter().find(|at| **at != next).unwrap();
    cluster.await_figures(next, &owns);

    // Nobody can do anything without the log; but all live.
    (0..ALL.len()).for_each(|server| cluster.nats.kill(server));
    for at in standbys {
        cluster.await_unready(at, if at == next { "lease" } else { "NATS" });
        assert!(cluster.asked(at, "GET /healthz").contains(" 200 "));
    }
}

/// A process that ends with this.
struct Waits(Child);

impl Drop for Waits {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// Whether the command of a probe that the documents show succeeds where it is asked for this port.
fn probes(probe: &str, port: u16) -> bool {
    let path = format!("{}/../../docs/cluster.md", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix(probe)).expect("the probe");
    let (_, command) = line.split_once("[bash, -c, \"").expect("a command");
    let (command, _) = command.split_once("\"]}").expect("its end");
    let command = command.replace("\\\\", "\\").replace("7380", &port.to_string());
    Command::new("bash").args(["-c", &command]).status().unwrap().success()
}

#[test]
fn a_node_that_waits_for_nats_servers_lives_and_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.issue("server");
    let [port, http, https, nobody] = free_ports(4)[..] else { panic!("four ports") };
    let more = format!(
        "[tls]\ntls-http-port = {https}\ntls-cert-file = '{}'\ntls-key-file = '{}'\ntls-auth-clients = \"no\"\n",
        own.certificate.display(),
        own.key.display()
    );
    let mut command = program();
    command.args(["serve", "--shards", "1", "--node", "n1", "--port", &port.to_string()]);
    command.args(["--advertise", &format!("127.0.0.1:{port}"), "--http-port", &http.to_string()]);
    command.args(["--cluster", &format!("nats://127.0.0.1:{nobody}"), "--config"]);
    command.arg(settings(folder.path(), &more));
    command.args(["--nats-monitoring", &format!("http://127.0.0.1:{nobody}")]);
    command.arg("--data").arg(folder.path().join("data"));
    let _node = Waits(command.stdout(Stdio::null()).spawn().unwrap());
    let at = format!("127.0.0.1:{http}");
    let get = |request: &str| get_at(&at, request).unwrap_or_default();
    until("it lives", || get("GET /healthz"), |answer| answer.contains(" 200 "));
    let unready = get("GET /readyz");
    assert!(unready.contains(" 503 ") && unready.contains("waits for the NATS"), "{unready}");
    let told = get(WITH_TOKEN);
    assert!(told.contains("\nheadwater_cluster_owner_known 0.0\n"), "{told}");
    let refused = get("GET /v1/keys/k");
    assert!(refused.contains(" 503 ") && refused.contains("waits for the NATS"), "{refused}");
    assert_eq!((probes("livenessProbe:", http), probes("readinessProbe:", http)), (true, false));

    let trusted = authority.own.certificate.clone();
    let address = ([127, 0, 0, 1], https).into();
    let encrypted = |request: &str| {
        let dial = Dial { address, trusted: trusted.clone(), own: None, versions: NEW };
        let mut connection = dial.connect();
        write!(connection.0, "{request} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        // An end without a farewell is an end.
        let _read = connection.0.read_to_string(&mut answer);
        answer
    };
    assert!(encrypted("GET /healthz").contains(" 200 "));
    assert!(encrypted("GET /metrics").contains(" 401 "));
    assert!(encrypted(WITH_TOKEN).contains("\nheadwater_cluster_owner_known 0.0\n"));
}

/// A certificate is worth at a node that stands by what it is worth at the owner, also where clients have set its user.
#[test]
fn certificates_prove_at_nodes_that_stand_by_who_may_have_figures() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let own = authority.issue("server");
    let [watcher, shop, late] = ["watcher", "shop", "late"].map(|name| authority.issue_to(name));
    let more = format!(
        "[tls]\ntls-http-port = 0\ntls-cert-file = '{}'\ntls-key-file = '{}'\ntls-ca-cert-file = '{}'\n\
         tls-auth-clients-user = 'CN'\n\
         [[user]]\nname = 'watcher'\nrules = 'on +info'\n\
         [[user]]\nname = 'shop'\nrules = 'on ~s* +@all -info'\n",
        own.certificate.display(),
        own.key.display(),
        authority.own.certificate.display()
    );
    let words = ["--config", settings(folder.path(), &more)];
    let Some(cluster) = Cluster::start_with(Box::leak(Box::new(words))) else { return };
    let owner = cluster.owner();
    let code = |at: usize, who: &Identity, request: &str| {
        let address = cluster.nodes[at].as_ref().unwrap().address("HTTPS on ").parse().unwrap();
        let trusted = authority.own.certificate.clone();
        let dial = Dial { address, trusted, own: Some(who.clone()), versions: NEW };
        let mut connection = dial.connect();
        write!(connection.0, "{request} HTTP/1.0\r\n\r\n").unwrap();
        let line = connection.line().unwrap();
        line.split(' ').nth(1).unwrap().to_owned()
    };
    for at in 0..NODES {
        assert_eq!(code(at, &watcher, "GET /metrics"), "200", "{at}, of which {owner} owns");
        for other in [&shop, &late] {
            assert_eq!(code(at, other, "GET /metrics"), "401", "{at}, of which {owner} owns");
            assert_eq!(code(at, other, WITH_TOKEN), "200");
            assert_eq!(code(at, other, "GET /healthz"), "200");
        }
    }
    ask(&mut cluster.client(owner), "ACL SETUSER late on +info").unwrap();
    for at in 0..NODES {
        until("the user is not known", || code(at, &late, "GET /metrics"), |code| code == "200");
    }
    ask(&mut cluster.client(owner), "ACL SETUSER late -info").unwrap();
    for at in 0..NODES {
        until("the user may still", || code(at, &late, "GET /metrics"), |code| code == "401");
    }
}
