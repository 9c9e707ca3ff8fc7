//! A cluster of several shards: each has an owner of its own, whoever is asked answers, and what one loses nobody has been told of.

use crate::cluster::{ALL, Links, Node, Turn, ask, ask_all, connect, servers, text};
use crate::nats_servers::{self, Servers, free_ports};
use crate::support::{PATIENCE, Server, program};
use crate::tls::Authority;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SHARDS: usize = 3;
/// Which shard each node is for: two are for the second one.
pub(crate) const OF: [usize; 4] = [0, 1, 2, 1];

pub(crate) struct Cluster {
    pub(crate) nats: Servers,
    /// The links of each node, where they can be cut.
    pub(crate) links: Vec<Links>,
    folder: TempDir,
    pub(crate) ports: Vec<u16>,
    nodes: Vec<Option<Node>>,
    /// Which shard each node is for.
    of: &'static [usize],
    /// What the cluster is called.
    name: &'static str,
    /// A file with settings of all nodes, which are then found by a name.
    config: Option<PathBuf>,
    /// Further arguments of each.
    arguments: &'static [&'static str],
    _turn: Turn,
}

impl Cluster {
    /// `None`: there is no `nats-server` on this machine.
    pub(crate) fn start() -> Option<Self> {
        let (nats, turn) = servers("always")?;
        Some(Self::start_among(&OF, nats, turn, free_ports(OF.len()), Vec::new()))
    }

    /// A cluster whose nodes are for these shards, with these further arguments. `None`: there is no `nats-server` on this machine.
    pub(crate) fn start_with(
        of: &'static [usize],
        arguments: &'static [&'static str],
    ) -> Option<Self> {
        let (nats, turn) = servers("always, max_file_store: 10GB")?;
        let mut cluster = Self::of_nodes(of, nats, turn, free_ports(of.len()), Vec::new());
        cluster.arguments = arguments;
        cluster.begin_all();
        Some(cluster)
    }

    /// Where a node has said last that something is spoken.
    pub(crate) fn said(&self, at: usize, what: &str) -> String {
        self.nodes[at].as_ref().expect("it runs").address(what)
    }

    /// A cluster whose nodes are for these shards: the first ones own them, and the others stand by. Where there are links they are found by those.
    pub(crate) fn start_among(
        of: &'static [usize],
        nats: Servers,
        turn: Turn,
        ports: Vec<u16>,
        links: Vec<Links>,
    ) -> Self {
        let mut cluster = Self::of_nodes(of, nats, turn, ports, links);
        cluster.begin_all();
        cluster
    }

    /// A cluster none of whose nodes has begun.
    fn of_nodes(
        of: &'static [usize],
        nats: Servers,
        turn: Turn,
        ports: Vec<u16>,
        links: Vec<Links>,
    ) -> Self {
        let nodes = of.iter().map(|_| None).collect();
        let folder = tempfile::tempdir().unwrap();
        let (name, config) = ("headwater", None);
        let arguments: &'static [&'static str] = &[];
        Self { nats, links, folder, ports, nodes, of, name, config, arguments, _turn: turn }
    }

    fn begin_all(&mut self) {
        let (shards, nodes) = (self.shards(), self.of.len());
        (0..shards).for_each(|at| self.begin(at));
        (0..shards).for_each(|at| _ = self.await_owner(&[at]));
        (shards..nodes).for_each(|at| self.begin(at));
    }

    fn shards(&self) -> usize {
        self.of.iter().max().map_or(0, |last| last + 1)
    }

    fn command(&self, at: usize, shards: usize, name: &str) -> Command {
        let port = self.ports[at];
        let mut command = program();
        command.args(["serve", "--port", &port.to_string(), "--node", name]);
        let of = self.of[at].to_string();
        command.args(["--shards", &shards.to_string(), "--cluster-shard", &of]);
        command.args(["--cluster-name", self.name]);
        command.arg("--data").arg(self.folder.path().join(name));
        let links = self.links.get(at);
        let found_at = links.map_or(port, |links| links.node);
        let host = if self.config.is_some() { "localhost" } else { "127.0.0.1" };
        command.args(["--advertise", &format!("{host}:{found_at}")]);
        command.args(self.arguments);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        let urls = links.map_or(self.nats.urls(&ALL), |links| nats_servers::urls(&links.nats));
        command.args(["--cluster", &urls]);
        for url in self.nats.monitoring() {
            command.args(["--nats-monitoring", &url]);
        }
        command
    }

    pub(crate) fn begin(&mut self, at: usize) {
        let command = self.command(at, self.shards(), &format!("node{at}"));
        self.nodes[at] = Some(Node::start(command));
    }

    /// Waits until one of these nodes owns its shard, and says which.
    pub(crate) fn await_owner(&self, of: &[usize]) -> usize {
        let owns = |at: &&usize| self.nodes[**at].as_ref().is_some_and(Node::owns);
        let began = Instant::now();
        loop {
            if let Some(owner) = of.iter().find(owns) {
                return *owner;
            }
            assert!(began.elapsed() < PATIENCE, "none of {of:?} owns its shard");
            sleep(Duration::from_millis(20));
        }
    }

    /// The node as a process.
    pub(crate) fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("it runs")
    }

    /// What `headwater cluster` says.
    fn status(&self, words: &[&str]) -> String {
        let mut command = program();
        command.arg("cluster").args(words).args(["--cluster", &self.nats.urls(&ALL)]);
        command.args(["--cluster-name", self.name]);
        for url in self.nats.monitoring() {
            command.args(["--nats-monitoring", &url]);
        }
        let output = command.output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    pub(crate) fn kill(&mut self, at: usize) {
        let mut node = self.nodes[at].take().expect("it runs");
        kill_process(Pid::from_child(&node.child), Signal::KILL).unwrap();
        node.child.wait().unwrap();
    }

    /// Has a node define something for all shards, as soon as all of them are connected.
    pub(crate) fn define(&self, at: usize, words: &[&str]) {
        let began = Instant::now();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        while let Err(why) = command.query::<redis::Value>(&mut connect(self.ports[at])) {
            assert!(why.code() == Some("CLUSTERDOWN") && began.elapsed() < PATIENCE, "{why}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Asks until there is an answer other than that a shard has no owner.
    pub(crate) fn ask(&self, at: usize, words: &str) -> redis::Value {
        let mut client = connect(self.ports[at]);
        let began = Instant::now();
        loop {
            match ask(&mut client, words) {
                Ok(value) => return value,
                Err(why) if why.code() == Some("CLUSTERDOWN") || why.is_io_error() => {
                    assert!(began.elapsed() < PATIENCE, "{words}: {why}");
                }
                Err(why) => panic!("{words}: {why}"),
            }
            sleep(Duration::from_millis(20));
            client = connect(self.ports[at]);
        }
    }

    /// Waits until a view is what it must become. Over a connection of its own nobody is owed what others have written just now through other nodes.
    pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        (at, words): (usize, &str),
        of: impl Fn(&redis::Value) -> T,
        expected: &T,
    ) {
        let began = Instant::now();
        loop {
            let given = of(&self.ask(at, words));
            if given == *expected {
                return;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{words} of node {at}: {given:?}, not {expected:?}"
            );
            sleep(Duration::from_millis(20));
        }
    }
}

/// The pairs of a reply.
pub(crate) fn pairs(value: &redis::Value) -> BTreeMap<String, String> {
    let redis::Value::Array(all) = value else { panic!("{value:?}") };
    all.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

fn integer(value: &redis::Value) -> u16 {
    let redis::Value::Int(number) = value else { panic!("{value:?}") };
    u16::try_from(*number).unwrap()
}

/// What Redis Cluster's clients ask owners for: the keys of a slot.
fn keys_are_in_slots_of_their_owners(cluster: &Cluster) {
    let in_slot = |at: usize, slot: u16, most: usize| {
        let keys = cluster.ask(at, &format!("CLUSTER GETKEYSINSLOT {slot} {most}"));
        let redis::Value::Array(keys) = keys else { panic!("{keys:?}") };
        keys.iter().map(text).collect::<Vec<_>>()
    };
    for number in 0..10 {
        // A key of a table is in the slot of what places it.
        let (tag, derived) = (format!("{{c{number}}}"), format!("inslot|{{c{number}}}|1"));
        let mut keys = [format!("{tag}a"), format!("{tag}b"), derived];
        for key in &keys {
            let _set = cluster.ask(0, &format!("SET {key} x"));
        }
        let slot = integer(&cluster.ask(0, &format!("CLUSTER KEYSLOT {tag}")));
        let owner = usize::from(slot / 5464);
        keys.sort();
        for at in 0..SHARDS {
            let count = integer(&cluster.ask(at, &format!("CLUSTER COUNTKEYSINSLOT {slot}")));
            let mut found = in_slot(at, slot, 10);
            found.sort();
            let expected = if at == owner { &keys[..] } else { &[] };
            assert_eq!((usize::from(count), &*found), (expected.len(), expected), "at {at}");
        }
        assert_eq!((in_slot(owner, slot, 2).len(), in_slot(owner, slot, 0).len()), (2, 0));
    }
    for (words, why) in [
        ("COUNTKEYSINSLOT 16384", "no such slot"),
        ("GETKEYSINSLOT -1 1", "no such slot"),
        ("GETKEYSINSLOT 1 -1", "negative"),
        ("COUNTKEYSINSLOT x", "not an integer"),
    ] {
        let refused = ask(&mut connect(cluster.ports[0]), &format!("CLUSTER {words}"));
        let told = refused.unwrap_err().to_string();
        assert!(told.contains(why), "{words}: {told}");
    }
}

/// The epoch of a shard is that of its owner, whoever is asked.
fn each_owner_is_shown_with_its_epoch(cluster: &Cluster) {
    let field = |text: &str, name: &str| -> u64 {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.expect("the field").parse().unwrap()
    };
    let epochs: Vec<u64> = (0..SHARDS)
        .map(|at| field(&text(&cluster.ask(at, "INFO cluster")), "cluster_epoch:"))
        .collect();
    let state = text(&cluster.ask(0, "CLUSTER INFO"));
    assert_eq!(field(&state, "cluster_current_epoch:"), *epochs.iter().max().unwrap());
    assert_eq!(field(&state, "cluster_my_epoch:"), epochs[0]);
    let nodes = text(&cluster.ask(0, "CLUSTER NODES"));
    for (at, epoch) in epochs.iter().enumerate() {
        let port = cluster.ports[at];
        let line = nodes.lines().find(|line| line.contains(&format!(":{port}@0 "))).unwrap();
        assert_eq!(line.split(' ').nth(6), Some(&*epoch.to_string()), "{nodes}");
    }
}

/// What a transaction has written is told to other shards once it is safe: a read within it that needs them has that happen first.
fn transactions_wait_for_nothing_that_they_hold_back(cluster: &Cluster) {
    // What a user's list shows of what is counted goes by way of the shards where that is counted.
    cluster.define(0, &["JOIN.ADD", "counts", "f|<p> = count s|<u>|<p>"]);
    cluster.define(2, &["JOIN.ADD", "shown", "top|<u>|<p> = check s|<u>|<p> copy f|<p>"]);
    let mut all = BTreeMap::new();
    for (at, number) in (0..OF.len()).flat_map(|at| (0..4).map(move |number| (at, number))) {
        let set = format!("SET s|a|p{at}{number} 1");
        let began = Instant::now();
        let done = loop {
            let mut client = connect(cluster.ports[at]);
            let mut queued = ["MULTI", &set, "PREFIX top|a|"].into_iter();
            let done = match queued.try_for_each(|words| ask(&mut client, words).map(drop)) {
                Ok(()) => ask(&mut client, "EXEC"),
                Err(why) => Err(why),
            };
            match done {
                Err(why) if why.code() == Some("CLUSTERDOWN") => {
                    assert!(began.elapsed() < PATIENCE, "{why}");
                    sleep(Duration::from_millis(20));
                }
                done => break done.unwrap(),
            }
        };
        let redis::Value::Array(done) = done else { panic!("{done:?}") };
        let is_read = matches!(done[..], [redis::Value::Okay, redis::Value::Array(_)]);
        assert!(is_read, "node {at}, {set}: {done:?}");
        all.insert(format!("top|a|p{at}{number}"), String::from("1"));
    }
    cluster.expect((0, "PREFIX top|a|"), pairs, &all);
}

#[test]
fn shards_of_several_nodes_answer_as_one_and_lose_nothing_with_an_owner() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.define(0, &["JOIN.ADD", "copies", "t|all|<n> = copy p|<n>"]);
    cluster.define(1, &["JOIN.ADD", "all", "sum = sum p|<n>"]);
    let mut written = BTreeMap::new();
    let mut count = |cluster: &Cluster, nodes: &[usize], numbers: std::ops::Range<usize>| {
        for number in numbers {
            // Whoever is asked, and whoever owns the key.
            let _done =
                cluster.ask(nodes[number % nodes.len()], &format!("SET p|{number:03} {number}"));
            written.insert(format!("t|all|{number:03}"), number.to_string());
        }
        written.clone()
    };
    let all = count(&cluster, &[0, 1, 2, 3], 0..60);
    transactions_wait_for_nothing_that_they_hold_back(&cluster);
    let sum = |all: &BTreeMap<String, String>| -> u64 {
        all.values().map(|number| number.parse::<u64>().unwrap()).sum()
    };
    // A node that stands by passes on.
    for at in 0..OF.len() {
        cluster.expect((at, "PREFIX t|all|"), pairs, &all);
        cluster.expect((at, "GET sum"), text, &sum(&all).to_string());
    }
    // Clients of Redis Cluster find the owner of a key by its slot.
    let slots = |cluster: &Cluster, at: usize| -> Vec<(u16, u16, u16)> {
        let redis::Value::Array(all) = cluster.ask(at, "CLUSTER SLOTS") else { panic!("no slots") };
        let number = |value: &redis::Value| match value {
            redis::Value::Int(number) => u16::try_from(*number).unwrap(),
            other => panic!("{other:?}"),
        };
        let row = |row: redis::Value| {
            let redis::Value::Array(row) = row else { panic!("{row:?}") };
            let redis::Value::Array(owner) = &row[2] else { panic!("{row:?}") };
            (number(&row[0]), number(&row[1]), number(&owner[1]))
        };
        all.into_iter().map(row).collect()
    };
    let ports = &cluster.ports;
    let expected =
        [(0, 5463, ports[0]), (5464, 10923, ports[1]), (10924, 16383, ports[2])].to_vec();
    for at in 0..OF.len() {
        assert_eq!(slots(&cluster, at), expected, "node {at}");
    }
    keys_are_in_slots_of_their_owners(&cluster);
    each_owner_is_shown_with_its_epoch(&cluster);
    // One step of several shards is refused, and does nothing; what can be divided is.
    let mut client = connect(cluster.ports[0]);
    let several: Vec<String> = (0..60).map(|number| format!("p|{number:03}")).collect();
    let code =
        |done: redis::RedisResult<redis::Value>| done.map_err(|why| why.code().map(str::to_owned));
    let refused = Err(Some(String::from("CROSSSLOT")));
    let all_at_once = format!("MSET {} x", several.join(" x "));
    assert_eq!(code(ask(&mut client, &all_at_once)), refused);
    let _set = cluster.ask(0, "SET copied|0 here");
    let mut crossed = 0;
    for number in 1..20 {
        let to = format!("copied|{number}");
        let is_crossed = code(ask(&mut client, &format!("COPY copied|0 {to}"))) == refused;
        let is_there = cluster.ask(1, &format!("GET {to}")) != redis::Value::Nil;
        assert_ne!(is_crossed, is_there, "{to}");
        crossed += u64::from(is_crossed);
    }
    assert!((1..19).contains(&crossed), "{crossed} of 19 are of other shards");
    let there: u64 = redis::cmd("EXISTS").arg(&several).query(&mut client).unwrap();
    let values: Vec<u64> = redis::cmd("MGET").arg(&several).query(&mut client).unwrap();
    assert_eq!((there, values), (60, (0..60).collect()));
    assert_eq!(ask(&mut client, "DEL none|1 none|2 none|3").unwrap(), redis::Value::Int(0));
    // The owner of a shard ends: what is asked of its keys waits for the node that stands by, or is refused, and all others are there.
    cluster.kill(1);
    assert!(text(&ask(&mut client, "INFO").unwrap()).contains("cluster_node:node0"));
    for number in 0..60 {
        match ask(&mut client, &format!("GET p|{number:03}")) {
            Ok(value) => assert_eq!(text(&value), number.to_string()),
            Err(why) => assert_eq!(why.code(), Some("CLUSTERDOWN"), "{why}"),
        }
    }
    cluster.await_owner(&[3]);
    let all = count(&cluster, &[0, 2, 3], 60..80);
    for at in [0, 2, 3] {
        cluster.expect((at, "PREFIX t|all|"), pairs, &all);
        cluster.expect((at, "GET sum"), text, &sum(&all).to_string());
        assert_eq!(cluster.ask(at, "VERIFY t| t}"), redis::Value::Array(Vec::new()));
    }
    let moved: Vec<u16> = slots(&cluster, 0).into_iter().map(|(.., port)| port).collect();
    assert_eq!(moved, [cluster.ports[0], cluster.ports[3], cluster.ports[2]]);
    let status = cluster.status(&["status"]);
    assert!(status.contains("shard 1") && status.contains("node3"), "{status}");
    assert!(status.contains("shard 2") && !status.contains("problem"), "{status}");
    // Nobody else is for that shard.
    let refused = cluster.status(&["drain", "node3"]);
    assert!(refused.contains("node 'node3' is the last one"), "{refused}");
    let taken = cluster.status(&["snapshot"]);
    for shard in 0..SHARDS {
        assert!(taken.contains(&format!("shard {shard}: snapshot up to")), "{taken}");
    }
    // All of them end, and all is there again, joins included.
    [0, 2, 3].into_iter().for_each(|at| cluster.kill(at));
    (0..SHARDS).for_each(|at| cluster.begin(at));
    (0..SHARDS).for_each(|at| _ = cluster.await_owner(&[at]));
    cluster.expect((1, "PREFIX t|all|"), pairs, &all);
    cluster.expect((2, "GET sum"), text, &sum(&all).to_string());
}

#[test]
fn a_node_for_another_number_of_shards_is_refused() {
    let Some(cluster) = Cluster::start() else { return };
    let refused = cluster.status(&["create", "--shards", "2"]);
    assert!(refused.contains("the cluster has 3 shards, and was to have 2"), "{refused}");
    let refused = cluster.command(3, 2, "other").output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        why.contains("the cluster has 3 shards, and shards is 2 (allowed: --shards 3)"),
        "{why}"
    );
    let unknown = cluster.command(3, 1, "another").output().unwrap();
    let why = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        why.contains("cluster-shard (--cluster-shard) is 1") && why.contains("allowed: 0 to 0"),
        "{why}"
    );
}

#[test]
fn owners_connect_over_tls_alone_where_that_is_said() {
    let Some((nats, turn)) = servers("always") else { return };
    let mut cluster = Cluster::of_nodes(&[0, 1], nats, turn, free_ports(2), Vec::new());
    let (authority, stranger) = (Authority::new(), Authority::new());
    let config = |name: &str, by: &Authority| {
        let own = by.issue(name);
        let text = format!(
            "[cluster]\ncluster-link-tls = true\ncluster-ca-cert-file = {:?}\ncluster-cert-file = {:?}\ncluster-key-file = {:?}\n",
            authority.own.certificate, own.certificate, own.key
        );
        let path = authority.folder.path().join(format!("{name}.toml"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let ours = config("ours", &authority);
    cluster.config = Some(ours.clone());
    cluster.begin_all();
    cluster.define(0, &["JOIN.ADD", "copies", "t|all|<n> = copy p|<n>"]);
    let mut all = BTreeMap::new();
    for number in 0..20 {
        let _done = cluster.ask(number % 2, &format!("SET p|{number:03} {number}"));
        all.insert(format!("t|all|{number:03}"), number.to_string());
    }
    for at in 0..2 {
        cluster.expect((at, "PREFIX t|all|"), pairs, &all);
    }
    // Neither one without a certificate, nor one whose certificate somebody else has signed, is connected.
    let without = authority.folder.path().join("without.toml");
    std::fs::write(&without, "[cluster]\ncluster-link-tls = false\n").unwrap();
    for refused in [without, config("theirs", &stranger)] {
        cluster.kill(1);
        cluster.config = Some(refused.clone());
        cluster.begin(1);
        cluster.await_owner(&[1]);
        // Owners try to connect several times a second.
        for at in (0..2).cycle().take(12) {
            let mut client = connect(cluster.ports[at]);
            let answers: Vec<_> =
                (0..20).map(|number| ask(&mut client, &format!("GET p|{number:03}"))).collect();
            let lost = answers.iter().filter(|it| it.is_err()).count();
            assert!((1..20).contains(&lost), "node {at}, {}: {lost}", refused.display());
            sleep(Duration::from_millis(250));
        }
    }
    cluster.kill(1);
    cluster.config = Some(ours);
    cluster.begin(1);
    cluster.await_owner(&[1]);
    for at in 0..2 {
        cluster.expect((at, "PREFIX t|all|"), pairs, &all);
    }
}

/// Waits until these nodes know a user, or do not.
fn until_known(cluster: &Cluster, user: &str, nodes: &[usize], is: bool) {
    let began = Instant::now();
    for at in nodes {
        while (cluster.ask(*at, &format!("ACL GETUSER {user}")) != redis::Value::Nil) != is {
            assert!(began.elapsed() < PATIENCE, "node {at}, user {user}: known should be {is}");
            sleep(Duration::from_millis(50));
        }
    }
}

/// A definition that a shard has missed, for want of an owner, it takes over from the first shard; one that the first shard has
/// missed is undone. A message for a channel reaches the subscribers of all nodes.
#[test]
fn definitions_that_were_missed_are_taken_over_from_the_first_shard() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.define(2, &["ACL", "SETUSER", "ada", "on", ">secret", "~*", "&*", "+@all"]);
    until_known(&cluster, "ada", &[0, 1, 2], true);
    // Whose definition it is, all of them know.
    let url = |port: u16| format!("redis://ada:secret@127.0.0.1:{port}");
    let mut client = redis::Client::open(url(cluster.ports[1])).unwrap().get_connection().unwrap();
    ask_all(&mut client, &["JOIN.ADD", "copies", "t|<n> = copy p|<n>"]).unwrap();
    for at in 0..SHARDS {
        let owners = format!("{:?}", cluster.ask(at, "ACL OWNERS"));
        assert!(owners.contains("copies") && owners.contains("ada"), "node {at}: {owners}");
    }
    let mut subscriber = connect(cluster.ports[2]);
    let mut channel = subscriber.as_pubsub();
    channel.subscribe("news").unwrap();
    for at in 0..SHARDS {
        let heard = cluster.ask(at, &format!("PUBLISH news {at}"));
        assert_eq!(heard, redis::Value::Int(1), "node {at}");
        assert_eq!(channel.get_message().unwrap().get_payload::<String>().unwrap(), at.to_string());
    }
    // The shard has no owner when this is defined.
    [3, 1].into_iter().for_each(|at| cluster.kill(at));
    let missed = ask(&mut connect(cluster.ports[0]), "ACL SETUSER bob on >secret ~* +@all");
    assert_eq!(missed.unwrap_err().code(), Some("CLUSTERDOWN"));
    until_known(&cluster, "bob", &[0, 2], true);
    cluster.begin(1);
    until_known(&cluster, "bob", &[1], true);
    // The first shard has no owner when this is defined.
    cluster.kill(0);
    let undone = ask(&mut connect(cluster.ports[1]), "ACL SETUSER eve on >secret ~* +@all");
    assert_eq!(undone.unwrap_err().code(), Some("CLUSTERDOWN"));
    until_known(&cluster, "eve", &[1, 2], true);
    cluster.begin(0);
    until_known(&cluster, "eve", &[0, 1, 2], false);
    until_known(&cluster, "bob", &[0, 1, 2], true);
    let list = format!("{:?}", cluster.ask(1, "JOIN.LIST"));
    assert!(list.contains("copies"), "{list}");
}

/// Waits until each shard has an owner to which all shards answer, and compares what joins give of it.
fn expect_all(cluster: &Cluster, all: &BTreeMap<String, String>, sum: u64) {
    for at in 0..SHARDS {
        cluster.await_owner(&[at]);
    }
    for at in 0..SHARDS {
        cluster.expect((at, "PREFIX t|all|"), pairs, all);
        cluster.expect((at, "GET sum"), text, &sum.to_string());
    }
}

/// A backup of several shards fills a new cluster of as many.
#[test]
fn a_backup_of_several_shards_fills_a_new_cluster() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.define(0, &["JOIN.ADD", "copies", "t|all|<n> = copy p|<n>"]);
    cluster.define(0, &["JOIN.ADD", "all", "sum = sum p|<n>"]);
    let write = |cluster: &Cluster, numbers: std::ops::Range<u64>| {
        for number in numbers {
            let _set = cluster.ask((number % 3) as usize, &format!("SET p|{number:03} {number}"));
        }
    };
    let expected = |count: u64| -> (BTreeMap<String, String>, u64) {
        let all = (0..count).map(|number| (format!("t|all|{number:03}"), number.to_string()));
        (all.collect(), (0..count).sum())
    };
    write(&cluster, 0..100);
    let folder = |cluster: &Cluster, name: &str| cluster.folder.path().join(name);
    let shown = |path: &std::path::Path| path.display().to_string();
    let (first, second) = (folder(&cluster, "first"), folder(&cluster, "second"));
    let told = cluster.status(&["backup", "--to", &shown(&first)]);
    assert!(told.contains("of 3 shard(s)"), "{told}");
    let refused = cluster.status(&["backup", "--to", &shown(&first)]);
    assert!(refused.contains("is not empty"), "{refused}");
    write(&cluster, 100..120);
    let told = cluster.status(&["backup", "--to", &shown(&second), "--older", &shown(&first)]);
    assert!(told.contains("of it not in"), "{told}");
    let refused = cluster.status(&["restore", "--from", &shown(&second)]);
    assert!(refused.contains("are heard"), "{refused}");
    // Shards in one process have other keys, so neither takes the backup of the other.
    let data = folder(&cluster, "data");
    let restored =
        program().args(["restore", "--from"]).arg(&first).arg("--data").arg(&data).output();
    let why = String::from_utf8(restored.unwrap().stderr).unwrap();
    assert!(why.contains("headwater cluster restore") && !data.exists(), "{why}");
    let server = Server::start(&["--data", &shown(&data), "--data-plain", "yes", "--shards", "3"]);
    let _set: redis::Value = ask(&mut server.client(2), "SET plain value").unwrap();
    let of_process = folder(&cluster, "of-process");
    let mut backup = program();
    backup.args(["backup", "-p", &server.port.to_string(), "--to"]).arg(&of_process);
    assert!(backup.status().unwrap().success());
    let refused = cluster.status(&["restore", "--from", &shown(&of_process)]);
    assert!(refused.contains("is of 3 shards in one process"), "{refused}");
    // A new cluster has the newer one.
    (0..OF.len()).for_each(|at| cluster.kill(at));
    cluster.name = "other";
    let told = cluster.status(&["create", "--shards", "2"]);
    assert!(told.contains("HW_other_1"), "{told}");
    let refused = cluster.status(&["restore", "--from", &shown(&second)]);
    assert!(refused.contains("the cluster has 2 shards, and was to have 3"), "{refused}");
    cluster.name = "second";
    let told = cluster.status(&["restore", "--from", &shown(&second)]);
    assert!(told.contains("120 keys") && told.contains("of 3 shards"), "{told}");
    let refused = cluster.status(&["restore", "--from", &shown(&second)]);
    assert!(refused.contains("is not empty"), "{refused}");
    for at in 0..SHARDS {
        std::fs::remove_dir_all(folder(&cluster, &format!("node{at}"))).unwrap();
        cluster.begin(at);
    }
    let (all, sum) = expected(120);
    expect_all(&cluster, &all, sum);
    write(&cluster, 120..130);
    let (all, sum) = expected(130);
    expect_all(&cluster, &all, sum);
}
