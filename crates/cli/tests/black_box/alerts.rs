//! Each alert of `deploy/alerts.yml` in the state that it names: the log says why, and a Prometheus that asks `/metrics` raises it, and
//! no other.

use crate::cluster::{ALL, Cluster, NODES};
use crate::http::{address, get_at};
use crate::nats_servers::free_ports;
use crate::support::{PATIENCE, Server, Socket};
use redis::{Value, cmd};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The alerts, in the order of the file, and what the log calls their states. Who is down writes nothing.
const EVENTS: [(&str, Option<&str>); 18] = [
    ("HeadwaterDown", None),
    ("HeadwaterWritesRefused", Some("store_refuses")),
    ("HeadwaterSourceDown", Some("source_down")),
    ("HeadwaterMemoryFull", Some("no_room")),
    ("HeadwaterClientsRefused", Some("client_refused")),
    ("HeadwaterClientsEnded", Some("client_evicted")),
    ("HeadwaterManyErrors", Some("many_errors")),
    ("HeadwaterFewHits", Some("few_hits")),
    ("HeadwaterFlowDead", Some("dead_letter")),
    ("HeadwaterFlowLate", Some("flow_late")),
    ("HeadwaterShardWithoutOwner", Some("no_owner")),
    // What is not there writes nothing either.
    ("HeadwaterNoStandby", None),
    ("HeadwaterStandbyBehind", Some("unready")),
    ("HeadwaterLeaseLate", Some("lease_late")),
    ("HeadwaterLinkDown", Some("link_ended")),
    ("HeadwaterMessagesRefused", Some("link_ended")),
    ("HeadwaterSnapshotsFail", Some("snapshot_failed")),
    // Before writes are refused.
    ("HeadwaterNatsNearlyFull", None),
];

/// A rule behind all others of its group, which are evaluated one after the other: it is true once they have seen a few answers.
const SEEN: &str =
    "      - alert: Seen\n        expr: sum_over_time(up{job=\"headwater\"}[5m]) >= 4\n";

fn rules() -> String {
    let path = format!("{}/../../deploy/alerts.yml", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(path).unwrap()
}

/// A Prometheus with the rules, which asks a server.
struct Prometheus {
    process: Child,
    port: u16,
}

impl Prometheus {
    /// Begins to ask at these addresses; nobody does where there is none on this machine.
    fn start(folder: &Path, addresses: &[String]) -> Option<Self> {
        let late = "headwater_flow_oldest_pending_ms > 60000";
        let rules = rules();
        assert!(rules.contains(late));
        // A test has no minute: it is late by as many milliseconds.
        let rules = rules.replace(late, "headwater_flow_oldest_pending_ms > 60");
        fs::write(folder.join("rules.yml"), rules + SEEN).unwrap();
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
            rule_files: [rules.yml]\n\
            scrape_configs:\n  - job_name: headwater\n    static_configs: [{{targets: {addresses:?}}}]\n"
        );
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        let [port] = free_ports(1)[..] else { panic!("one port") };
        let mut command = Command::new("prometheus");
        command.current_dir(folder).args(["--config.file=prometheus.yml", "--log.level=error"]);
        command.arg(format!("--storage.tsdb.path=figures-{port}"));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(process) => process,
            Err(error) => {
                let is_needed = std::env::var_os("HEADWATER_NEEDS_PROMETHEUS").is_some();
                assert!(!is_needed, "prometheus: {error}");
                let text = "skipped: there is no prometheus; the log alone is looked at";
                let mut out = std::io::stderr();
                writeln!(out, "{text}").unwrap();
                return None;
            }
        };
        Some(Self { process, port })
    }

    /// Which alerts are raised, or are to be as soon as their state has lasted long enough.
    fn alerts(&mut self) -> BTreeSet<String> {
        assert_eq!(self.process.try_wait().unwrap(), None, "Prometheus has ended");
        let place = format!("127.0.0.1:{}", self.port);
        // It takes a moment until it answers at all.
        let Ok(answer) = get_at(&place, "GET /api/v1/alerts") else { return BTreeSet::new() };
        let Some((_, body)) = answer.split_once("\r\n\r\n") else { return BTreeSet::new() };
        let Ok(told) = serde_json::from_str::<serde_json::Value>(body) else {
            return BTreeSet::new();
        };
        let mut raised = BTreeSet::new();
        for alert in told["data"]["alerts"].as_array().into_iter().flatten() {
            let name = alert["labels"]["alertname"].as_str().unwrap();
            // A label that the figures do not have would leave a hole.
            let summary = alert["annotations"]["summary"].as_str().unwrap_or_default();
            assert!(!summary.contains("  ") && !summary.contains('<'), "{name}: {summary}");
            raised.insert(name.to_owned());
        }
        raised
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server, its log, and who asks it.
struct Watched<'a> {
    server: Server,
    log: &'a Path,
    prometheus: Option<Prometheus>,
    /// What has to be raised by now.
    raised: BTreeSet<String>,
}

impl<'a> Watched<'a> {
    fn start(folder: &Path, log: &'a Path, words: &[&str]) -> Self {
        let common =
            ["--http-port", "0", "--log-file", log.to_str().unwrap(), "--log-level", "info"];
        let server = Server::start(&[&common[..], words].concat());
        let prometheus = Prometheus::start(folder, &[address(&server).to_owned()]);
        let mut watched = Self { server, log, prometheus, raised: BTreeSet::new() };
        watched.until_raised("Seen");
        watched
    }

    /// Waits until an alert is raised beside those before and no other, and until the log says why.
    fn until_raised(&mut self, alert: &str) {
        self.raised.insert(alert.to_owned());
        let event = EVENTS.iter().find(|(other, _)| *other == alert).and_then(|(_, event)| *event);
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(self.log).unwrap_or_default();
            let is_told = event.is_none_or(|event| text.contains(&format!("event=\"{event}\"")));
            let raised = self.prometheus.as_mut().map(Prometheus::alerts);
            if is_told && raised.as_ref().is_none_or(|raised| *raised == self.raised) {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{:?} expected, raised: {raised:?}\n{text}",
                self.raised
            );
            sleep(Duration::from_millis(20));
        }
    }

    fn client(&self) -> redis::Connection {
        self.server.client(2)
    }

    /// The server ends, which is a state of its own.
    fn end(self) {
        let Self { server, prometheus, .. } = self;
        drop(server);
        let Some(mut prometheus) = prometheus else { return };
        let began = Instant::now();
        while !prometheus.alerts().contains("HeadwaterDown") {
            assert!(began.elapsed() < PATIENCE, "it is not down");
            sleep(Duration::from_millis(20));
        }
    }
}

fn ask(client: &mut redis::Connection, words: &[&str]) -> redis::RedisResult<Value> {
    cmd(words[0]).arg(&words[1..]).query(client)
}

/// What is looked up and is not there, what is refused, a source that is down, and flows.
fn misses_errors_and_definitions(watched: &mut Watched<'_>) {
    let client = &mut watched.client();
    let keys: Vec<String> = (0..1100).map(|key| format!("nothing|{key}")).collect();
    let mget: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    ask(client, &mget).unwrap();
    watched.until_raised("HeadwaterFewHits");
    (0..200).for_each(|_| _ = ask(client, &["INCR", "k"]).unwrap_err());
    watched.until_raised("HeadwaterManyErrors");

    // Nobody is there.
    ask(client, &["SOURCE.ADD", "s", "postgres", "postgres://a@127.0.0.1:1/x"]).unwrap();
    watched.until_raised("HeadwaterSourceDown");

    let dead = [
        "FLOW.ADD",
        "dead",
        "ON",
        "in|<id>",
        "COPY",
        "out|<id> = copy in|<id>",
        "MAX-ATTEMPTS",
        "1",
    ];
    ask(client, &dead).unwrap();
    // What the flow writes is a join's from now on: it cannot.
    ask(client, &["JOIN.ADD", "taken", "out|<id:1> = copy other|<id:1>"]).unwrap();
    ask(client, &["SET", "in|1", "v"]).unwrap();
    watched.until_raised("HeadwaterFlowDead");
    ask(client, &["CONFIG", "SET", "flow-late-milliseconds", "60"]).unwrap();
    ask(client, &["FLOW.ADD", "late", "ON", "news|<id>", "PUBLISH", "channel"]).unwrap();
    ask(client, &["FLOW.PAUSE", "late"]).unwrap();
    ask(client, &["SET", "news|1", "v"]).unwrap();
    watched.until_raised("HeadwaterFlowLate");
}

/// Clients that begin more than there is room for.
fn clients_that_take_much(watched: &mut Watched<'_>) {
    let client = &mut watched.client();
    ask(client, &["CLIENT", "NO-EVICT", "ON"]).unwrap();
    let begun = [&b"*2\r\n$3\r\nGET\r\n$1000000\r\n"[..], &[b'k'; 500_000]].concat();
    let many: Vec<Socket> = (0..12)
        .map(|_| {
            let mut one = watched.server.socket();
            let _ = one.try_send(&begun);
            one
        })
        .collect();
    ask(client, &["CONFIG", "SET", "clients-bytes-max", "3mb"]).unwrap();
    watched.until_raised("HeadwaterClientsEnded");
    drop(many);
}

#[test]
fn each_alert_is_raised_in_its_state_and_in_no_other() {
    let rules = rules();
    let alerts = rules.split("- alert: ").skip(1).map(|rule| rule.lines().next().unwrap());
    assert_eq!(alerts.collect::<Vec<_>>(), EVENTS.map(|(alert, _)| alert));
    for shards in ["1", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let start = |words: &[&str]| {
            let words = [&["--shards", shards], words].concat();
            Watched::start(folder.path(), &log, &words)
        };

        let mut watched = start(&["--memory", "256mb"]);
        let client = &mut watched.client();
        for _ in 0..40 {
            ask(client, &["SET", "k", "v"]).unwrap();
            ask(client, &["GET", "k"]).unwrap();
        }
        misses_errors_and_definitions(&mut watched);
        clients_that_take_much(&mut watched);
        watched.end();

        let file = folder.path().join("headwater.toml");
        let config = |text: &str| fs::write(&file, text).unwrap();
        config("[clients]\nclients-max = 16\n");
        let mut watched = start(&["--config", file.to_str().unwrap()]);
        let many: Vec<Socket> = (0..24).map(|_| watched.server.socket()).collect();
        watched.until_raised("HeadwaterClientsRefused");
        drop(many);

        let mut watched = start(&["--memory", "64mb", "--memory-policy", "noeviction"]);
        let client = &mut watched.client();
        let value = "v".repeat(1000);
        let lacks =
            (0..200_000).any(|key| ask(client, &["SET", &format!("k|{key}"), &value]).is_err());
        assert!(lacks);
        watched.until_raised("HeadwaterMemoryFull");

        // No disk has so much left.
        config("[data]\ndata-free-bytes-min = \"1000000000gb\"\n");
        let data = folder.path().join("data");
        let data = ["--data", data.to_str().unwrap(), "--data-plain", "yes"];
        let mut watched = start(&[&data[..], &["--config", file.to_str().unwrap()]].concat());
        let client = &mut watched.client();
        // The disk is looked at when something is written to it.
        let began = Instant::now();
        while ask(client, &["SET", "k", "v"]).is_ok() {
            assert!(began.elapsed() < PATIENCE, "writes are taken");
        }
        watched.until_raised("HeadwaterWritesRefused");
    }
}

/// A cluster is well, with whoever stands by; then nobody can own anything, since the NATS servers are gone.
#[test]
fn alerts_of_clusters_are_raised_where_nobody_can_own_and_in_no_other_state() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let words = ["--http-port", "0", "--log-level", "info", "--log-file", log.to_str().unwrap()];
    let words = words.map(|word| &*Box::leak(word.to_owned().into_boxed_str()));
    let Some(mut cluster) = Cluster::start_with(Box::leak(Box::new(words))) else { return };
    let nodes = cluster.nodes.iter().flatten();
    let addresses: Vec<String> = nodes.map(|node| node.address("HTTP on ")).collect();
    let Some(mut prometheus) = Prometheus::start(folder.path(), &addresses) else { return };
    let mut await_raised = |expected: &[&str]| {
        let expected: BTreeSet<String> = expected.iter().map(|it| (*it).to_owned()).collect();
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let events = EVENTS.iter().filter(|(alert, _)| expected.contains(*alert));
            let mut events = events.filter_map(|(_, event)| *event);
            let raised = prometheus.alerts();
            if raised == expected
                && events.all(|event| text.contains(&format!("event=\"{event}\"")))
            {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{expected:?}, not {raised:?}\n{text}");
            sleep(Duration::from_millis(20));
        }
    };
    await_raised(&["Seen"]);
    (0..ALL.len()).for_each(|server| cluster.nats.kill(server));
    await_raised(&[
        "Seen",
        "HeadwaterWritesRefused",
        "HeadwaterLeaseLate",
        "HeadwaterShardWithoutOwner",
        "HeadwaterStandbyBehind",
    ]);
    for at in 1..NODES {
        cluster.end(at, Signal::KILL);
    }
    // Which one is left may be the owner or not: that nobody could take over is seen all the same.
    let began = Instant::now();
    while !prometheus.alerts().contains("HeadwaterNoStandby") {
        assert!(began.elapsed() < PATIENCE, "nobody stands by");
        sleep(Duration::from_millis(20));
    }
}
