//! What is in a shard's stream and was not written there by its owner: it never becomes data, and where the log cannot be read because of it the node stops
//! and says which message that is. And NATS servers that speak TLS alone.

use crate::cluster::{ALL, Node, ask, connect, servers, servers_with, text};
use crate::cluster_formats::{Nats, until_logged};
use crate::cluster_refusals::refused;
use crate::nats_servers::{Servers, free_ports};
use crate::support::{PATIENCE, program};
use crate::tls::Authority;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The command of the only node of a cluster, which has the NATS servers at `urls`, and their monitoring.
fn command((urls, monitoring): (&str, &[String]), port: u16, data: &Path) -> Command {
    let mut command = program();
    command.args(["serve", "--shards", "1", "--node", "n1", "--port", &port.to_string()]);
    command.args(["--advertise", &format!("127.0.0.1:{port}"), "--cluster", urls]);
    monitoring.iter().for_each(|url| _ = command.args(["--nats-monitoring", url]));
    command.arg("--data").arg(data);
    command
}

/// The only node of a cluster.
struct Alone {
    command: Box<dyn Fn() -> Command>,
    node: Option<Node>,
    log: PathBuf,
    port: u16,
}

impl Alone {
    fn start(nats: &Servers, name: &'static str, folder: &Path) -> Self {
        let [port] = free_ports(1)[..] else { panic!("one port") };
        let log = folder.join(format!("{name}.log"));
        let (urls, monitoring) = (nats.urls(&ALL), nats.monitoring());
        let (data, log_file) = (folder.join(name), log.clone());
        let command = move || {
            let mut command = command((&urls, &monitoring), port, &data);
            command.args(["--cluster-name", name]).arg("--log-file").arg(&log_file);
            command
        };
        let mut alone = Self { command: Box::new(command), node: None, log, port };
        alone.begin();
        alone
    }

    fn begin(&mut self) {
        self.node = Some(Node::start((self.command)()));
    }

    fn until_owner(&self) {
        let began = Instant::now();
        while !self.node.as_ref().unwrap().owns() {
            assert!(began.elapsed() < PATIENCE, "it does not own its shard");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn end(&mut self) {
        let mut node = self.node.take().unwrap();
        node.signal(Signal::TERM);
        node.child.wait().unwrap();
    }

    /// Waits until it has stopped: the sentence.
    fn stopped(&mut self) -> String {
        let line = until_logged(&self.log, "event=\"stopped\"");
        let mut node = self.node.take().unwrap();
        assert_eq!(node.child.wait().unwrap().code(), Some(1));
        let (_, sentence) = line.split_once("message ").unwrap_or_else(|| panic!("{line}"));
        sentence.split('"').next().unwrap().to_owned()
    }
}

#[test]
fn what_no_owner_has_written_into_a_stream_never_becomes_data() {
    let Some((nats, _turn)) = servers("always") else { return };
    let folder = tempfile::tempdir().unwrap();
    let names = ["garbage", "cut", "damaged", "foreign", "doubled"];
    let mut all: Vec<Alone> =
        names.iter().map(|name| Alone::start(&nats, name, folder.path())).collect();
    let mut client = Nats::connect(&nats);
    let mut records = Vec::new();
    for (alone, name) in all.iter_mut().zip(names) {
        alone.until_owner();
        let mut redis = connect(alone.port);
        ask(&mut redis, &format!("SET k|a {name}")).unwrap();
        ask(&mut redis, "INCR n").unwrap();
        drop(redis);
        if name != "garbage" {
            alone.end();
        }
        let (last, record) = client.last(&format!("HW_{name}_0"), &format!("HW.{name}.0"));
        assert!(record.starts_with(b"HWLR"), "{}", record.escape_ascii());
        records.push((last, record));
    }
    for (at, name) in names.into_iter().enumerate() {
        let (last, own) = records[at].clone();
        let (bytes, why) = match name {
            "garbage" => (b"garbage".to_vec(), "it is no record of Headwater"),
            "cut" => (own[..own.len() - 1].to_vec(), "it is cut off, or too long"),
            "damaged" => {
                let mut bytes = own;
                *bytes.last_mut().unwrap() ^= 1;
                (bytes, "its checksum is wrong")
            }
            "foreign" => (records[0].1.clone(), "it was written for another stream"),
            _ => (own, ""),
        };
        client.publish(&format!("HW.{name}.0"), &bytes);
        let alone = &mut all[at];
        if name == "garbage" {
            // The owner finds that its log has another record than its own, before it acknowledges anything more.
            let told =
                redis::cmd("SET").arg("k|a").arg("late").query::<()>(&mut connect(alone.port));
            assert!(told.is_err(), "it was acknowledged");
        } else {
            alone.begin();
        }
        if name == "doubled" {
            // A record that comes twice counts once, and does not hold up who reads it.
            alone.until_owner();
            let mut redis = connect(alone.port);
            assert_eq!(text(&ask(&mut redis, "GET k|a").unwrap()), name);
            assert_eq!(ask(&mut redis, "INCR n").unwrap(), redis::Value::Int(2));
            continue;
        }
        let sentence = alone.stopped();
        let expected = format!("{} of stream HW_{name}_0 cannot be read: {why}", last + 1);
        assert!(sentence.starts_with(&expected), "{sentence}, not {expected}");
        // However often it is started.
        std::fs::remove_file(&alone.log).unwrap();
        alone.begin();
        assert_eq!(alone.stopped(), sentence);
    }
}

#[test]
fn nodes_speak_to_nats_servers_over_tls_with_certificates_both_ways() {
    let authority = Authority::new();
    let [of_servers, own] = ["server", "node"].map(|name| authority.issue(name));
    let trusted = authority.own.certificate.display();
    let more = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        of_servers.certificate, of_servers.key, authority.own.certificate
    );
    let Some((nats, _turn)) = servers_with("always", &more) else { return };
    let folder = tempfile::tempdir().unwrap();
    // The certificates are for this name.
    let urls = nats.urls(&ALL).replace("nats://127.0.0.1", "tls://localhost");
    let config = |name: &str, lines: &str| {
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, format!("[cluster]\n{lines}")).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let ca = format!("cluster-ca-cert-file = '{trusted}'\n");
    let keys = format!(
        "cluster-cert-file = '{}'\ncluster-key-file = '{}'\n",
        own.certificate.display(),
        own.key.display()
    );
    // Who does not trust the servers is not connected, nor is who shows them nothing.
    for (name, lines) in [("distrustful", &keys), ("nobody", &ca)] {
        let config = config(name, lines);
        let more = ["--config", &config, "--cluster-start-seconds", "1"];
        let told = refused(&nats, &urls, name, &more, folder.path());
        assert!(told.contains("cannot be reached"), "{name}: {told}");
    }
    let [port] = free_ports(1)[..] else { panic!("one port") };
    let (config, monitoring) = (config("good", &format!("{ca}{keys}")), nats.monitoring());
    for value in ["one", "two"] {
        let mut command = command((&urls, &monitoring), port, &folder.path().join(value));
        command.args(["--config", &config]);
        let mut node = Node::start(command);
        let mut client = connect(port);
        let began = Instant::now();
        while let Err(why) = ask(&mut client, &format!("SET k|{value} {value}")) {
            assert!(began.elapsed() < PATIENCE, "{why}");
            client = connect(port);
        }
        // The second one has an empty folder: what the first has written comes by way of the log.
        assert_eq!(text(&ask(&mut client, "GET k|one").unwrap()), "one");
        node.signal(Signal::TERM);
        node.child.wait().unwrap();
    }
}
