//! Three nodes and three NATS servers: whoever is killed, paused or ended, what was acknowledged stays, once.
//!
//! `HEADWATER_CLUSTER_ROUNDS` says how often the owner is struck.

use crate::cluster_writers::{Writers, check};
use crate::nats_servers::{self, SERVERS, Servers, free_ports};
use crate::support::{PATIENCE, Server, program};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write, stderr};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const NODES: usize = 3;
/// Bytes of a log that is purged: few, so that each test purges several times.
const SNAPSHOT_BYTES: &str = "20000";
/// How many tests may have a cluster at the same time. A cluster is six processes that mostly wait; three clusters are what a small machine bears.
const TURNS: usize = 3;
static TAKEN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
pub(crate) const ALL: [usize; SERVERS] = [0, 1, 2];

/// A node as a process; what it prints says whether it owns the shard.
pub(crate) struct Node {
    pub(crate) child: Child,
    owns: Arc<AtomicBool>,
    /// The lines that it has printed.
    said: Arc<Mutex<Vec<String>>>,
    /// The lines of its log.
    logged: Arc<Mutex<Vec<String>>>,
}

/// Whether a log says that an owner has lost its lease, or could hardly renew it: it may have refused to answer then.
pub(crate) fn has_lease_failed(log: &str) -> bool {
    ["its lease is lost", "event=\"lease_late\""].iter().any(|told| log.contains(told))
}

/// How often a test may find that a lease was lost that it relies on.
const TRIES: usize = 3;

/// [`while_leases_hold`], of a cluster of one shard that is started with these arguments.
pub(crate) fn while_nodes_keep_leases(
    arguments: &'static [&'static str],
    test: impl Fn(&mut Cluster),
) {
    while_leases_hold(
        || Cluster::start_with(arguments),
        test,
        |cluster| cluster.nodes.iter().flatten().any(Node::has_lost_lease),
    );
}

/// Runs a test of connections that go on while owners keep their leases, and again where one was lost: on a machine with much to do, that is nobody's fault.
pub(crate) fn while_leases_hold<T>(
    start: impl Fn() -> Option<T>,
    test: impl Fn(&mut T),
    is_lost: impl Fn(&T) -> bool,
) {
    for _ in 0..TRIES {
        let Some(mut cluster) = start() else { return };
        match catch_unwind(AssertUnwindSafe(|| test(&mut cluster))) {
            Ok(()) => return,
            Err(why) => {
                // What a node has said is read by another thread.
                sleep(Duration::from_millis(200));
                if !is_lost(&cluster) {
                    resume_unwind(why);
                }
            }
        }
    }
    panic!("leases were lost in each of {TRIES} clusters");
}

impl Node {
    /// Starts the program, and waits until it stands by.
    pub(crate) fn start(mut command: Command) -> Self {
        if std::env::var_os("HEADWATER_TEST_LOG_LEVEL").is_none() {
            // That a lease was lost is a warning.
            command.env("HEADWATER_LOG_LEVEL", "error, cluster=warn");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let logged = Arc::<Mutex<Vec<String>>>::default();
        let keeps = logged.clone();
        thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let _shown = writeln!(stderr(), "{line}");
                keeps.lock().unwrap().push(line);
            }
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let note = |said: &Mutex<Vec<String>>, line: &String| {
            said.lock().unwrap().push(line.clone());
        };
        // Where else it lets clients in comes first.
        let mut next = || lines.next().expect("a line").unwrap();
        let mut first = next();
        while !first.contains("stands by on") {
            note(&said, &first);
            first = next();
        }
        let owns = Arc::new(AtomicBool::new(false));
        let (told, says) = (owns.clone(), said.clone());
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                note(&says, &line);
                // A process that begins anew stands by first.
                told.store(line.contains(" ready on "), Ordering::Release);
            }
        });
        Self { child, owns, said, logged }
    }

    /// Where it has said last that something is spoken.
    pub(crate) fn address(&self, what: &str) -> String {
        let said = self.said.lock().unwrap();
        let found = said.iter().rev().find_map(|line| line.strip_prefix(what));
        found.unwrap_or_else(|| panic!("no {what} in {said:?}")).to_owned()
    }

    fn has_logged(&self, what: impl Fn(&str) -> bool) -> bool {
        self.logged.lock().unwrap().iter().any(|line| what(line))
    }

    /// Waits until its log has this.
    pub(crate) fn await_logged(&self, what: &str) {
        let began = Instant::now();
        while !self.has_logged(|line| line.contains(what)) {
            assert!(began.elapsed() < PATIENCE, "no {what} in its log");
            sleep(Duration::from_millis(5));
        }
    }

    /// Whether it owns its shard, as it says.
    pub(crate) fn owns(&self) -> bool {
        self.owns.load(Ordering::Acquire)
    }

    /// A node that cannot say so does not own its shard any more, or will not when it goes on.
    pub(crate) fn forget_that_it_owns(&self) {
        self.owns.store(false, Ordering::Release);
    }

    /// Whether it has lost a lease without having been asked to give it up.
    pub(crate) fn has_lost_lease(&self) -> bool {
        self.has_logged(has_lease_failed)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports through which a node and others reach each other, where they can be cut.
pub(crate) struct Links {
    /// Those of the NATS servers.
    pub(crate) nats: Vec<u16>,
    /// The one at which others find the node.
    pub(crate) node: u16,
    /// Whether nothing passes.
    pub(crate) cut: Arc<AtomicBool>,
}

pub(crate) struct Cluster {
    pub(crate) nats: Servers,
    /// The links of each node, where they can be cut.
    pub(crate) links: Vec<Links>,
    pub(crate) folder: TempDir,
    pub(crate) ports: Vec<u16>,
    pub(crate) nodes: Vec<Option<Node>>,
    /// Further arguments of each.
    pub(crate) arguments: &'static [&'static str],
    /// Where others find a node.
    host: String,
    _turn: Turn,
}

/// Three NATS servers that are one cluster, and the turn of the test that has them; `None`: there is no `nats-server` on this machine.
pub(crate) fn servers(sync: &str) -> Option<(Servers, Turn)> {
    begun(|program| Servers::start(program, sync))
}

/// As [`servers`], with further lines in their configuration.
pub(crate) fn servers_with(sync: &str, more: &str) -> Option<(Servers, Turn)> {
    begun(|program| Servers::start_with(program, sync, more))
}

fn begun(start: impl FnOnce(PathBuf) -> Servers) -> Option<(Servers, Turn)> {
    let Some(program) = nats_servers::program() else {
        let text = "skipped: there is no nats-server (HEADWATER_NATS_SERVER names one)";
        let mut out = stderr();
        writeln!(out, "{text}").unwrap();
        return None;
    };
    let turn = Turn::take();
    let nats = start(program);
    nats.wait();
    Some((nats, turn))
}

/// The turn of a test that has a cluster.
#[derive(Debug)]
pub(crate) struct Turn(());

impl Turn {
    /// Waits until another test may have one.
    pub(crate) fn take() -> Self {
        let (taken, is_free) = &TAKEN;
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = is_free.wait_while(taken, |taken| *taken == TURNS);
        *wait.unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (taken, is_free) = &TAKEN;
        *taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        is_free.notify_one();
    }
}

impl Cluster {
    /// `None`: there is no `nats-server` on this machine.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// As [`Cluster::start`], with further arguments for each node.
    pub(crate) fn start_with(arguments: &'static [&'static str]) -> Option<Self> {
        Self::start_among(arguments, servers("always")?, |_, _| None)
    }

    /// As [`Cluster::start_with`], with NATS servers that may have so much on disk.
    pub(crate) fn start_within(arguments: &'static [&'static str], room: &str) -> Option<Self> {
        let servers = servers(&format!("always, max_file_store: {room}"))?;
        Self::start_among(arguments, servers, |_, _| None)
    }

    /// As [`Cluster::start_with`]; nodes are reached, and reach the NATS servers, through the links that are made for their ports.
    pub(crate) fn start_linked(
        arguments: &'static [&'static str],
        link: impl Fn(&Servers, u16) -> Links,
    ) -> Option<Self> {
        Self::start_among(arguments, servers("always")?, |nats, port| Some(link(nats, port)))
    }

    fn start_among(
        arguments: &'static [&'static str],
        (nats, turn): (Servers, Turn),
        link: impl Fn(&Servers, u16) -> Option<Links>,
    ) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let ports = free_ports(NODES);
        let links = ports.iter().filter_map(|port| link(&nats, *port)).collect();
        let nodes = Vec::new();
        let host = String::from("127.0.0.1");
        let mut cluster = Self { nats, links, folder, ports, nodes, arguments, host, _turn: turn };
        cluster.begin_all();
        Some(cluster)
    }

    fn begin_all(&mut self) {
        for at in 0..NODES {
            self.nodes.push(None);
            self.begin(at);
        }
        self.owner();
    }

    /// As [`Cluster::start_with`], behind NATS servers with further lines in their configuration.
    pub(crate) fn start_behind(arguments: &'static [&'static str], more: &str) -> Option<Self> {
        Self::start_among(arguments, servers_with("always", more)?, |_, _| None)
    }

    /// As [`Cluster::start_with`], with nodes that find each other at this address.
    pub(crate) fn start_at(host: &str, arguments: &'static [&'static str]) -> Option<Self> {
        let (nats, turn) = servers("always")?;
        let (folder, ports) = (tempfile::tempdir().unwrap(), free_ports(NODES));
        let (links, nodes, host) = (Vec::new(), Vec::new(), host.to_owned());
        let mut cluster = Self { nats, links, folder, ports, nodes, arguments, host, _turn: turn };
        cluster.begin_all();
        Some(cluster)
    }

    pub(crate) fn begin(&mut self, at: usize) {
        self.nodes[at] = Some(Node::start(self.command(at)));
    }

    /// What starts a node.
    pub(crate) fn command(&self, at: usize) -> Command {
        let data = self.folder.path().join(format!("node{at}"));
        let port = self.ports[at];
        let mut command = program();
        command.args(["serve", "--shards", "1", "--port", &port.to_string()]);
        command.arg("--data").arg(data).args(["--node", &format!("node{at}")]);
        let links = self.links.get(at);
        let found_at = links.map_or(port, |links| links.node);
        command.args(["--advertise", &format!("{}:{found_at}", self.host)]);
        let urls = links.map_or(self.nats.urls(&ALL), |links| nats_servers::urls(&links.nats));
        command.args(["--cluster", &urls]);
        if !self.arguments.contains(&"--cluster-snapshot-bytes") {
            command.args(["--cluster-snapshot-bytes", SNAPSHOT_BYTES]);
        }
        command.args(self.arguments);
        for url in self.nats.monitoring() {
            command.args(["--nats-monitoring", &url]);
        }
        command
    }

    fn owner_now(&self) -> Option<usize> {
        (0..NODES).find(|&at| self.nodes[at].as_ref().is_some_and(Node::owns))
    }

    pub(crate) fn owner(&self) -> usize {
        self.owner_other_than(None)
    }

    /// Who owns the shard when `node`, which has owned it, does no more.
    pub(crate) fn owner_after(&self, node: usize) -> usize {
        self.owner_other_than(Some(node))
    }

    fn owner_other_than(&self, node: Option<usize>) -> usize {
        let began = Instant::now();
        loop {
            if let Some(owner) = self.owner_now().filter(|owner| Some(*owner) != node) {
                return owner;
            }
            assert!(began.elapsed() < PATIENCE, "nobody owns the shard, but for {node:?}");
            sleep(Duration::from_millis(20));
        }
    }

    /// A node that cannot say so does not own the shard any more, or will not when it goes on.
    pub(crate) fn forget_owner(&self, at: usize) {
        self.nodes[at].as_ref().expect("it runs").forget_that_it_owns();
    }

    pub(crate) fn signal(&self, at: usize, signal: Signal) {
        self.nodes[at].as_ref().expect("it runs").signal(signal);
    }

    pub(crate) fn end(&mut self, at: usize, signal: Signal) {
        self.signal(at, signal);
        let mut node = self.nodes[at].take().expect("it runs");
        node.child.wait().unwrap();
    }

    pub(crate) fn client(&self, at: usize) -> redis::Connection {
        connect(self.ports[at])
    }
}

pub(crate) fn connect(port: u16) -> redis::Connection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
    let began = Instant::now();
    loop {
        if let Ok(connection) = client.get_connection_with_timeout(PATIENCE) {
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            return connection;
        }
        assert!(began.elapsed() < PATIENCE, "nobody listens at {port}");
        sleep(Duration::from_millis(20));
    }
}

pub(crate) fn ask(
    connection: &mut redis::Connection,
    words: &str,
) -> redis::RedisResult<redis::Value> {
    ask_all(connection, &words.split(' ').collect::<Vec<_>>())
}

/// Asks again where the log takes no records for a moment, as it may on a machine with much to do: nothing was done then.
pub(crate) fn ask_all(
    connection: &mut redis::Connection,
    words: &[&str],
) -> redis::RedisResult<redis::Value> {
    let began = Instant::now();
    loop {
        match redis::cmd(words[0]).arg(&words[1..]).query(connection) {
            // What was queued for a transaction is gone with it.
            Err(why)
                if words != ["EXEC"] && is_refused_by_log(&why) && began.elapsed() < PATIENCE =>
            {
                sleep(Duration::from_millis(20));
            }
            told => return told,
        }
    }
}

/// Whether the log was what took no records, or no more of them for now.
pub(crate) fn is_refused_by_log(why: &redis::RedisError) -> bool {
    let said = why.to_string();
    let of_log = ["the log takes no records", "has not acknowledged", "is to take"];
    why.code() == Some("CLUSTERDOWN") && of_log.iter().any(|text| said.contains(text))
}

pub(crate) fn ask_once(
    connection: &mut redis::Connection,
    words: &str,
) -> redis::RedisResult<redis::Value> {
    let words: Vec<&str> = words.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).query(connection)
}

pub(crate) fn text(value: &redis::Value) -> String {
    match value {
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        redis::Value::VerbatimString { text, .. } => text.clone(),
        other => panic!("{other:?}"),
    }
}

/// Reads through a node, over another connection where one ends: a node that stands by may have passed it on to the owner before.
pub(crate) fn read(
    cluster: &Cluster,
    at: usize,
    client: &mut redis::Connection,
    words: &str,
) -> redis::Value {
    let began = Instant::now();
    loop {
        match ask(client, words) {
            Ok(value) => return value,
            Err(why) => assert!(began.elapsed() < PATIENCE, "{words}: {why}"),
        }
        *client = cluster.client(at);
    }
}

#[test]
fn whoever_is_struck_what_was_acknowledged_stays() {
    let Some(mut cluster) = Cluster::start() else { return };
    let writers = Writers::start(&cluster);
    let all = &writers.written;
    let rounds = std::env::var("HEADWATER_CLUSTER_ROUNDS").ok();
    let rounds: usize = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(4);
    for round in 0..rounds {
        sleep(Duration::from_secs(1));
        let struck = cluster.owner();
        match round % 4 {
            0 => {
                cluster.end(struck, Signal::KILL);
                cluster.owner();
                cluster.begin(struck);
            }
            1 => {
                cluster.signal(struck, Signal::STOP);
                cluster.forget_owner(struck);
                cluster.owner();
                cluster.signal(struck, Signal::CONT);
            }
            2 => {
                cluster.end(struck, Signal::TERM);
                cluster.owner();
                cluster.begin(struck);
            }
            _ => {
                // The owner with its folder, and the NATS server that leads the log.
                cluster.end(struck, Signal::KILL);
                let leads = cluster.nats.leader("HW_headwater_0");
                cluster.nats.kill(leads);
                let data = cluster.folder.path().join(format!("node{struck}"));
                std::fs::remove_dir_all(data).unwrap();
                sleep(Duration::from_secs(2));
                cluster.nats.restart(leads);
                cluster.owner();
                cluster.begin(struck);
            }
        }
        check(&cluster, (struck + 1) % NODES, all, false);
    }
    let all = writers.end();
    (0..NODES).for_each(|at| check(&cluster, at, &all, true));
    assert!(figure(&cluster, 0, "cluster_epoch") > rounds as u64);
    assert!((1..=2000).contains(&figure(&cluster, 0, "cluster_lease_milliseconds")));
    let least = all.iter().map(|written| written.lock().unwrap().counted).min();
    assert!(least > Some(10), "{least:?} writes were acknowledged");
    let appended: usize = all.iter().map(|written| written.lock().unwrap().appended.len()).sum();
    assert!(appended > 40, "{appended} lines were acknowledged");
}

#[test]
fn clients_of_redis_cluster_find_their_way_also_when_the_owner_is_killed() {
    let Some(mut cluster) = Cluster::start() else { return };
    let urls = cluster.ports.iter().map(|port| format!("redis://127.0.0.1:{port}/"));
    let client = redis::cluster::ClusterClient::new(urls).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut set = |key: &str, value: u64| {
        // This client does not look for another owner of a slot whose node cannot be reached: who uses it connects anew.
        let began = Instant::now();
        loop {
            let mut commands = [redis::cmd("SET"), redis::cmd("GET")];
            commands[0].arg(key).arg(value);
            commands[1].arg(key);
            let set = commands[0].query::<()>(&mut connection);
            match set.and_then(|()| commands[1].query::<u64>(&mut connection)) {
                Ok(found) => return found,
                Err(why) => assert!(began.elapsed() < PATIENCE, "{key}: {why}"),
            }
            sleep(Duration::from_millis(100));
            if let Ok(another) = client.get_connection() {
                connection = another;
            }
        }
    };
    for number in 0..50 {
        assert_eq!(set(&format!("p|{{b{number}}}|1"), number), number);
    }
    // All know all, whoever is asked.
    let owner = cluster.owner();
    let began = Instant::now();
    let shown = loop {
        let lines = text(&ask(&mut cluster.client((owner + 1) % NODES), "CLUSTER NODES").unwrap());
        if lines.lines().count() == NODES {
            break lines;
        }
        assert!(began.elapsed() < PATIENCE, "{lines}");
        sleep(Duration::from_millis(100));
    };
    let master = shown.lines().find(|line| line.contains("myself,master")).unwrap();
    let port = cluster.ports[owner];
    assert!(master.contains(&format!(" 127.0.0.1:{port}@0 ")), "{shown}");
    assert!(master.ends_with(" connected 0-16383"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains(" slave ")).count(), NODES - 1);
    let id = master.split(' ').next().unwrap();
    assert_eq!(text(&ask(&mut cluster.client(owner), "CLUSTER MYID").unwrap()), id);
    for (key, slot) in [("foo", 12182), ("{foo}bar", 12182), ("p|{foo}|1", 12182)] {
        let told = ask(&mut cluster.client(0), &format!("CLUSTER KEYSLOT {key}")).unwrap();
        assert_eq!(told, redis::Value::Int(slot), "{key}");
    }
    let info = text(&ask(&mut cluster.client(0), "INFO").unwrap());
    assert!(info.contains("\ncluster_enabled:1\r") && info.contains("\nredis_mode:cluster\r"));
    assert!(ask(&mut cluster.client(0), "READONLY").is_ok());
    let state = text(&ask(&mut cluster.client(0), "CLUSTER INFO").unwrap());
    assert!(state.contains("cluster_state:ok\r\n"), "{state}");
    // The only owner has all slots, and keys are where their clients look for them.
    let slot = ask(&mut cluster.client(0), "CLUSTER KEYSLOT p|{b7}|1").unwrap();
    let redis::Value::Int(slot) = slot else { panic!("{slot:?}") };
    let count = ask(&mut cluster.client(0), &format!("CLUSTER COUNTKEYSINSLOT {slot}"));
    assert_eq!(count.unwrap(), redis::Value::Int(1));

    cluster.end(owner, Signal::KILL);
    for number in 50..100 {
        assert_eq!(set(&format!("p|{{b{number}}}|1"), number), number);
    }
    let mut connection = client.get_connection().unwrap();
    for number in 0..100 {
        let key = format!("p|{{b{number}}}|1");
        assert_eq!(redis::cmd("GET").arg(key).query::<u64>(&mut connection).unwrap(), number);
    }
    // Who has gone is shown no more.
    let began = Instant::now();
    let gone = format!(":{port}@0 ");
    while text(&ask(&mut cluster.client((owner + 1) % NODES), "CLUSTER NODES").unwrap())
        .contains(&gone)
    {
        assert!(began.elapsed() < PATIENCE, "it is still shown");
        sleep(Duration::from_millis(200));
    }
}

/// A number of a node's INFO.
pub(crate) fn figure(cluster: &Cluster, at: usize, name: &str) -> u64 {
    let info = text(&ask(&mut cluster.client(at), "INFO cluster").unwrap());
    let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("{name}: {info}")).parse().unwrap()
}

#[test]
fn a_node_with_an_empty_folder_begins_with_a_snapshot_when_the_log_is_purged() {
    let Some(mut cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let join = "last|<user> = last p|<user>|<time>";
    let mut client = cluster.client(owner);
    ask_all(&mut client, &["JOIN.ADD", "last", join]).unwrap();
    ask(&mut client, "SET plain value").unwrap();
    // What is removed behind a snapshot, and what has a time to live, are as they were too.
    ask(&mut client, "SET p|gone|1 x").unwrap();
    ask(&mut client, "SET p|timed|1 x EX 10000").unwrap();
    let mut number = 0;
    let mut fill = |client: &mut redis::Connection, until: u64| {
        let began = Instant::now();
        while figure(&cluster, owner, "cluster_snapshots_taken") < until {
            for _ in 0..50 {
                number += 1;
                let value = "v".repeat(200);
                ask(client, &format!("SET p|u{}|{number:06} {value}{number}", number % 7)).unwrap();
            }
            assert!(began.elapsed() < 2 * PATIENCE, "no snapshot is taken");
        }
    };
    fill(&mut client, 1);
    ask(&mut client, "DEL p|gone|1").unwrap();
    fill(&mut client, 3);
    assert_eq!(figure(&cluster, owner, "cluster_snapshots_failed"), 0);
    // All writes are more than what of the log is left.
    let began = Instant::now();
    while figure(&cluster, owner, "cluster_log_bytes") > number * 200 {
        assert!(began.elapsed() < PATIENCE, "the log is not purged");
        sleep(Duration::from_millis(100));
    }
    // Each has a subject: older ones are removed.
    loop {
        let subjects = cluster.nats.subjects("HW_headwater_0_snapshots");
        if subjects == Some(1) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "there are {subjects:?}: old snapshots stay");
        sleep(Duration::from_millis(100));
    }
    let fresh = (owner + 1) % NODES;
    cluster.end(fresh, Signal::KILL);
    let data = cluster.folder.path().join(format!("node{fresh}"));
    std::fs::remove_dir_all(data).unwrap();
    cluster.begin(fresh);
    ask(&mut client, "SET p|u0|999999 final").unwrap();
    // It alone is left, so it has what it has by itself.
    cluster.end((owner + 2) % NODES, Signal::TERM);
    cluster.end(owner, Signal::TERM);
    assert_eq!(cluster.owner(), fresh);
    let mut client = cluster.client(fresh);
    let mut read = |words: &str| read(&cluster, fresh, &mut client, words);
    assert_eq!(read("PREFIX p|u COUNT"), redis::Value::Int(i64::try_from(number + 1).unwrap()));
    assert_eq!(text(&read("GET plain")), "value");
    assert_eq!(text(&read("GET last|u0")), "final");
    assert_eq!(read("EXISTS p|gone|1"), redis::Value::Int(0));
    assert!(matches!(read("TTL p|timed|1"), redis::Value::Int(9000..=10000)));
    assert_eq!(read("VERIFY last| last}"), redis::Value::Array(Vec::new()));
}

#[test]
fn users_and_owners_are_those_of_whichever_node_owns_the_data() {
    let Some(mut cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let mut admin = cluster.client(owner);
    for words in [
        "ACL SETUSER ann on >pw %R~t|* +@read",
        "ACL SETUSER deploy on >pw ~* &* +@all",
        "ACL SETUSER gone on >pw ~* +@all",
        "ACL DELUSER gone",
        "SET p|1 shown",
    ] {
        ask(&mut admin, words).unwrap();
    }
    let mut deploy = cluster.client(owner);
    ask(&mut deploy, "AUTH deploy pw").unwrap();
    let add = ["j", "t|<id> = copy p|<id>"];
    let _: redis::Value = redis::cmd("JOIN.ADD").arg(&add).query(&mut deploy).unwrap();
    ask(&mut admin, "ACL SETUSER default resetpass >secret").unwrap();
    cluster.end(owner, Signal::KILL);
    let next = cluster.owner();
    // Through the node that stands by as well.
    for at in (0..NODES).filter(|at| *at != owner) {
        let mut client = cluster.client(at);
        let error = ask(&mut client, "GET p|1").unwrap_err().to_string();
        assert!(error.contains("NOAUTH"), "{error}");
        assert!(ask(&mut client, "AUTH gone pw").is_err());
        ask(&mut client, "AUTH ann pw").unwrap();
        let error = ask(&mut client, "GET p|1").unwrap_err().to_string();
        assert!(error.contains("No permissions to access a key"), "{error}");
        assert_eq!(text(&ask(&mut client, "GET t|1").unwrap()), "shown");
    }
    let mut admin = cluster.client(next);
    ask(&mut admin, "AUTH secret").unwrap();
    ask(&mut admin, "ACL SETUSER deploy resetkeys").unwrap();
    let mut client = cluster.client(next);
    ask(&mut client, "AUTH ann pw").unwrap();
    let error = ask(&mut client, "GET t|1").unwrap_err().to_string();
    assert!(error.contains("its owner 'deploy' may no longer read"), "{error}");
}

#[test]
fn who_comes_through_another_node_is_no_client_of_the_owners_machine() {
    let Some(own) = crate::doors::own_address() else { return };
    if !own.is_ipv4() {
        return;
    }
    let Some(cluster) = Cluster::start_with(&["--bind", "0.0.0.0"]) else { return };
    for at in 0..NODES {
        let mut stream = TcpStream::connect((own, cluster.ports[at])).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"PING\r\n").unwrap();
        let mut told = String::new();
        let _ = stream.read_to_string(&mut told);
        assert!(told.starts_with("-DENIED "), "node {at}: {told}");
        ask(&mut cluster.client(at), "PING").unwrap();
    }
}

#[test]
fn a_backup_is_taken_of_the_node_that_owns_the_data() {
    let Some(cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let mut client = cluster.client((owner + 1) % NODES);
    for number in 0..100 {
        ask(&mut client, &format!("SET k|{number} {number}")).unwrap();
    }
    let (backup, data) = (cluster.folder.path().join("backup"), cluster.folder.path().join("data"));
    // Through another node as well.
    let mut command = program();
    command.args(["backup", "-p", &cluster.ports[(owner + 1) % NODES].to_string(), "--to"]);
    let taken = command.arg(&backup).output().unwrap();
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
    let mut command = program();
    command.args(["restore", "--from"]).arg(&backup).arg("--data").arg(&data);
    assert!(command.output().unwrap().status.success());
    let server = Server::start(&["--shards", "1", "--data", data.to_str().unwrap()]);
    let all = ask(&mut server.client(2), "PREFIX k| COUNT").unwrap();
    assert_eq!(all, redis::Value::Int(100));
}

#[test]
fn a_node_that_stands_by_goes_on_when_its_log_is_rotated() {
    let Some(mut cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    for at in (0..NODES).filter(|at| *at != owner) {
        // The lesser number is delivered first, where both are under way.
        cluster.signal(at, Signal::HUP);
        cluster.signal(at, Signal::TERM);
        let status = cluster.nodes[at].take().expect("it runs").child.wait().unwrap();
        assert_ne!(status.signal(), Some(Signal::HUP.as_raw()), "{status}");
    }
}

#[test]
fn without_a_quorum_clients_are_told_so() {
    let Some(cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let mut client = cluster.client(owner);
    ask(&mut client, "SET k|a 1").unwrap();
    cluster.nats.stop(0);
    cluster.nats.stop(1);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "it goes on to answer");
        let told = ask(&mut client, "GET k|a");
        if let Err(error) = &told {
            let text = error.to_string();
            assert!(text.contains("lease of shard 0 is too old"), "{text}");
            break;
        }
        sleep(Duration::from_millis(100));
    }
    cluster.nats.go_on(0);
    cluster.nats.go_on(1);
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < 2 * PATIENCE, "it does not answer again");
        let told = ask(&mut cluster.client(owner), "GET k|a");
        if told.is_ok_and(|value| text(&value) == "1") {
            break;
        }
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn nodes_begin_while_a_server_is_down() {
    let Some(mut cluster) = Cluster::start() else { return };
    let mut client = cluster.client(0);
    ask(&mut client, "SET k|a 1").unwrap();
    drop(client);
    cluster.nats.kill(0);
    for at in 0..NODES {
        cluster.end(at, Signal::TERM);
    }
    for at in 0..NODES {
        cluster.begin(at);
    }
    let owner = cluster.owner();
    assert_eq!(text(&ask(&mut cluster.client(owner), "GET k|a").unwrap()), "1");
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let mut command = program();
    command.args(["serve", "--port", "7999", "--data"]).arg(folder).args(arguments);
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{arguments:?} was accepted");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_a_node_lacks_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let all = ["--cluster", "nats://127.0.0.1:1", "--node", "a", "--advertise", "a:7379"];
    for (arguments, told) in [
        (&all[..2], "cluster-node"),
        (&all[..4], "cluster-advertise"),
        (&[&all[..], &["--shards", "2", "--cluster-shard", "2"]].concat()[..], "allowed: 0 to 1"),
        (
            &[&all[..4], &["--shards", "2", "--advertise", "a:60000"]].concat()[..],
            "allowed for --port and in --advertise: 1 to 55535",
        ),
        (&[&all[..], &["--port", "0"]].concat()[..], "port"),
        (&all[..], "monitoring"),
        (&[&all[..], &["--unsafe-sync"]].concat()[..], "cannot be reached"),
        (&[&all[..], &["--nats-monitoring", "http://127.0.0.1:1"]].concat()[..], "cannot be read"),
    ] {
        let arguments = &[arguments, &["--cluster-start-seconds", "1"]].concat()[..];
        let text = refused(folder.path(), arguments);
        assert!(text.contains(told), "{arguments:?}: {text}");
    }
}
