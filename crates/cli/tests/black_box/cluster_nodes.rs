//! Nodes that are for all shards of their cluster, with a process for each: they come to own equally many, end as one, and lose what they own as one.

use crate::cluster::{
    ALL, Turn, ask, ask_all, connect, has_lease_failed, servers, text, while_leases_hold,
};
use crate::cluster_planned::Counting;
use crate::nats_servers::{LINK_PORT_OFFSET, Servers, free_ports};
use crate::support::{PATIENCE, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NODES: usize = 3;
const SHARDS: u16 = 3;
const LOOK: Duration = Duration::from_millis(50);
/// How long a shard should have moved before it does: `headwater_log::SETTLE_MILLIS`.
const SETTLE_MILLIS: u64 = 10_000;
/// What a node may take, and what is left free for each of its processes that stands by.
const MEMORY: u64 = 3 << 30;
const STANDBY: u64 = 32 << 20;
/// How much of each node's log is shown where a test fails.
const LOG_SHOWN: usize = 6000;

/// The first of so many free ports in a row, for each node.
fn free_runs(runs: usize, length: u16) -> Vec<u16> {
    let mut found = Vec::new();
    let began = Instant::now();
    while found.len() < runs {
        assert!(began.elapsed() < PATIENCE, "no {length} ports in a row are free");
        let ports = free_ports(length.into());
        if ports.windows(2).all(|pair| pair[1] == pair[0] + 1) {
            found.push(ports[0]);
        }
    }
    found
}

/// Waits until this is so, and says what it was about if it does not come.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        sleep(LOOK);
    }
}

/// What nodes are called: as machines are, with dots.
fn name(at: usize) -> String {
    format!("n{at}.example")
}

struct Nodes {
    nats: Servers,
    folder: TempDir,
    ports: Vec<u16>,
    children: Vec<Option<Child>>,
    _turn: Turn,
}

impl Nodes {
    /// Nodes that have begun; `None`: there is no `nats-server` on this machine.
    fn start() -> Option<Self> {
        let (nats, turn) = servers("always")?;
        let folder = tempfile::tempdir().unwrap();
        let ports = free_runs(NODES, SHARDS);
        let children = (0..NODES).map(|_| None).collect();
        let mut nodes = Self { nats, folder, ports, children, _turn: turn };
        nodes.let_in(500);
        (0..NODES).for_each(|at| nodes.begin(at, &[]));
        Some(nodes)
    }

    fn command(&self, at: usize, more: &[&str]) -> Command {
        let port = self.ports[at];
        let mut command = program();
        command.args(["serve", "--shards", &SHARDS.to_string(), "--port", &port.to_string()]);
        command.args(["--log-level", "info"]);
        command.args(["--node", &name(at), "--advertise", &format!("127.0.0.1:{port}")]);
        command.arg("--data").arg(self.folder.path().join(format!("n{at}")));
        command.args(["--cluster", &self.nats.urls(&ALL)]);
        for url in self.nats.monitoring() {
            command.args(["--nats-monitoring", &url]);
        }
        command.args(["--memory", &MEMORY.to_string()]).args(more);
        command.arg("--config").arg(self.folder.path().join("headwater.toml"));
        command
    }

    /// Has the configuration file say how many clients a process lets in.
    fn let_in(&self, most: usize) {
        let file = self.folder.path().join("headwater.toml");
        fs::write(file, format!("[clients]\nclients-max = {most}\n")).unwrap();
    }

    fn log(&self, at: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("n{at}.log"))).unwrap()
    }

    fn begin(&mut self, at: usize, more: &[&str]) {
        let path = self.folder.path().join(format!("n{at}.log"));
        let log = File::options().create(true).append(true).open(path).unwrap();
        let mut command = self.command(at, more);
        self.children[at] = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    fn signal(&self, at: usize, signal: Signal) {
        kill_process(Pid::from_child(self.children[at].as_ref().unwrap()), signal).unwrap();
    }

    fn kill(&mut self, at: usize) {
        self.signal(at, Signal::KILL);
        self.ended(at);
    }

    /// Waits until a node has ended, with all of its processes.
    fn ended(&mut self, at: usize) -> ExitStatus {
        let mut child = self.children[at].take().expect("it runs");
        let mut status = None;
        until("the node does not end", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        let listens = |port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok();
        let ports = self.ports[at]..self.ports[at] + SHARDS;
        until("a process of the node goes on", || ports.clone().all(|port| !listens(port)));
        status.unwrap()
    }

    /// What `headwater cluster` says with these words.
    fn operate(&self, words: &[&str]) -> String {
        let mut command = program();
        command.arg("cluster").args(words).args(["--cluster", &self.nats.urls(&ALL)]);
        for url in self.nats.monitoring() {
            command.args(["--nats-monitoring", &url]);
        }
        let output = command.output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    /// How many shards each node owns, and how many have an owner.
    fn owned(&self) -> (BTreeMap<String, usize>, usize) {
        let status: Value = serde_json::from_str(&self.operate(&["status", "--json"])).unwrap();
        let mut owned = BTreeMap::new();
        // Before the first node has begun there is no cluster to look at.
        for node in status["nodes"].as_array().into_iter().flatten() {
            let (name, shard) = node["node"].as_str().unwrap().split_once('/').unwrap();
            assert_eq!(node["shard"].to_string(), shard);
            *owned.entry(name.to_owned()).or_default() += node["owns"].as_array().unwrap().len();
        }
        let all = owned.values().sum();
        (owned, all)
    }

    /// Waits until these nodes own so many shards each.
    fn until_owned(&self, expected: [usize; NODES]) {
        let mut seen = None;
        until(&format!("the nodes should own {expected:?}"), || {
            let (owned, all) = self.owned();
            let is_so = expected
                .iter()
                .enumerate()
                .all(|(at, count)| owned.get(&name(at)).copied().unwrap_or_default() == *count);
            seen = Some((owned, all));
            is_so
        });
        assert_eq!(seen.unwrap().1, usize::from(SHARDS));
    }

    /// Waits until those processes of a node that own shards may take so much of its memory, each.
    fn until_they_may_take(&self, at: usize, owning: u64, bytes: u64) {
        until(&format!("{owning} processes of n{at} should have {bytes} bytes each"), || {
            let ports = self.ports[at]..self.ports[at] + SHARDS;
            let with_share = ports.filter(|port| {
                let mut client = connect(*port);
                // What stands by passes on what it is asked.
                let info = ask(&mut client, "INFO").map(|info| text(&info)).unwrap_or_default();
                info.contains(&format!("\r\ntcp_port:{port}\r\n"))
                    && info.contains(&format!("\r\nmaxmemory:{bytes}\r\n"))
            });
            with_share.count() as u64 == owning
        });
    }

    /// Waits until all owners have found one another: they answer for keys of all shards then.
    fn until_they_know_one_another(&self) {
        for port in self.ports.iter().flat_map(|port| *port..*port + SHARDS) {
            (0..20).for_each(|number| _ = self.answer(port, &format!("GET p|{number}")));
        }
    }

    /// What a process answers once all shards have owners that it knows.
    fn answer(&self, port: u16, words: &str) -> redis::Value {
        let mut found = None;
        until(&format!("no answer to {words} at {port}"), || {
            found = ask(&mut connect(port), words).ok();
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for at in 0..NODES {
                let log = self.log(at);
                let last = log.char_indices().rev().nth(LOG_SHOWN).map_or(0, |(at, _)| at);
                // There is nowhere else to say it.
                let _shown = writeln!(std::io::stderr(), "n{at}:\n{}", &log[last..]);
            }
        }
        for child in self.children.iter_mut().flatten() {
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// Nodes own a shard each; a node that is killed loses what it owns, with everything acknowledged; and one that comes back is given a shard again.
#[test]
fn nodes_come_to_own_equally_many_and_what_one_loses_others_have() {
    let Some(mut nodes) = Nodes::start() else { return };
    nodes.until_owned([1, 1, 1]);
    nodes.until_they_know_one_another();
    let port = nodes.ports[0];
    ask_all(&mut connect(port), &["JOIN.ADD", "all", "sum = sum p|<n>"]).unwrap();
    let write = |nodes: &Nodes, numbers: std::ops::Range<u32>, at: &[usize]| {
        for number in numbers {
            // Any process of any node takes any key.
            let port = nodes.ports[at[number as usize % at.len()]] + number as u16 / 3 % SHARDS;
            nodes.answer(port, &format!("SET p|{number} {number}"));
        }
    };
    let expect = |nodes: &Nodes, count: u32, at: &[usize]| {
        for port in at.iter().flat_map(|at| nodes.ports[*at]..nodes.ports[*at] + SHARDS) {
            for number in [0, count / 2, count - 1] {
                let found = nodes.answer(port, &format!("GET p|{number}"));
                assert_eq!(text(&found), number.to_string(), "at {port}");
            }
            let sum = (0..count).sum::<u32>().to_string();
            // Over a connection of its own nobody is owed what others have written just now through other nodes.
            until(&format!("the sum is not {sum} at {port}"), || {
                text(&nodes.answer(port, "GET sum")) == sum
            });
        }
    };
    write(&nodes, 0..60, &[0, 1, 2]);
    expect(&nodes, 60, &[0, 1, 2]);
    (0..NODES).for_each(|at| nodes.until_they_may_take(at, 1, MEMORY - 2 * STANDBY));
    nodes.kill(0);
    write(&nodes, 60..61, &[1, 2]);
    expect(&nodes, 61, &[1, 2]);
    let owned = nodes.owned().0;
    assert_eq!(owned[&name(0)], 0);
    let both = if owned[&name(1)] == 2 { 1 } else { 2 };
    nodes.until_they_may_take(both, 2, (MEMORY - STANDBY) / 2);
    nodes.begin(0, &[]);
    nodes.until_owned([1, 1, 1]);
    nodes.until_they_may_take(both, 1, MEMORY - 2 * STANDBY);
    expect(&nodes, 61, &[0, 1, 2]);
    // One that is drained owns nothing, until it may again.
    let told = nodes.operate(&["drain", &name(1)]);
    assert!(told.contains("n1.example is drained: n"), "{told}");
    assert_eq!(nodes.owned().0[&name(1)], 0);
    expect(&nodes, 61, &[0, 1, 2]);
    let told = nodes.operate(&["drain", &name(1), "--undo"]);
    assert!(told.contains("n1.example may own again"), "{told}");
    nodes.until_owned([1, 1, 1]);
    expect(&nodes, 61, &[0, 1, 2]);
    // A node that has ended is forgotten with all of its processes, and not before.
    let told = nodes.operate(&["remove", &name(2)]);
    assert!(told.contains("is heard, at "), "{told}");
    nodes.signal(2, Signal::TERM);
    assert!(nodes.ended(2).success());
    until("n2 is heard still", || {
        nodes.operate(&["remove", &name(2)]).contains("n2.example is forgotten")
    });
    assert!(!nodes.owned().0.contains_key(&name(2)));
    expect(&nodes, 61, &[0, 1]);
}

/// A process of a node that is killed is started again, and the others do not notice; a client that ends one ends the node.
#[test]
fn a_node_starts_its_processes_again_and_ends_as_one() {
    let Some(mut nodes) = Nodes::start() else { return };
    nodes.until_owned([1, 1, 1]);
    nodes.answer(nodes.ports[0], "SET key value");
    let id = |nodes: &Nodes, port: u16| {
        let info = text(&nodes.answer(port, "INFO server"));
        let id = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
        id.parse::<i32>().unwrap()
    };
    // What stands by says who owns: its own processes are found by what they listen at.
    let children = |nodes: &Nodes, at: usize| -> BTreeMap<String, i32> {
        let node = nodes.children[at].as_ref().unwrap().id();
        let list = format!("/proc/{node}/task/{node}/children");
        let all = fs::read_to_string(list).unwrap();
        // One that is just beginning has no such words yet.
        let child = |id: &str| {
            let line = fs::read_to_string(format!("/proc/{id}/cmdline")).ok()?;
            let mut words = line.split('\0').skip_while(|word| *word != "--shard-process");
            Some((words.nth(1)?.to_owned(), id.parse().unwrap()))
        };
        all.split_whitespace().filter_map(child).collect()
    };
    let before = children(&nodes, 1);
    assert_eq!(before.keys().collect::<Vec<_>>(), ["0", "1", "2"]);
    let killed = before["2"];
    kill_process(Pid::from_raw(killed).unwrap(), Signal::KILL).unwrap();
    until("the process is not started again", || {
        let now = children(&nodes, 1);
        now.get("2").is_some_and(|id| *id != killed)
    });
    let after = children(&nodes, 1);
    assert_eq!((after["0"], after["1"]), (before["0"], before["1"]));
    until("it is not told", || nodes.log(1).contains("event=\"shard_process_ended\" shard=2"));
    // Lines say whose they are.
    for shard in 0..SHARDS {
        let line = format!("\n{}/{shard} ", name(1));
        until("lines of all processes", || nodes.log(1).contains(&line));
    }
    assert_eq!(text(&nodes.answer(nodes.ports[1] + 2, "GET key")), "value");
    // All processes read their settings again: the one that owns at once, the others when they do.
    nodes.let_in(400);
    nodes.signal(1, Signal::HUP);
    let lets_in = |nodes: &Nodes, port: u16| {
        until("the settings are not read again", || {
            format!("{:?}", nodes.answer(port, "CONFIG GET maxclients")).contains("400")
        });
    };
    (0..SHARDS).for_each(|shard| lets_in(&nodes, nodes.ports[1] + shard));
    nodes.operate(&["drain", &name(0)]);
    nodes.operate(&["drain", &name(2)]);
    nodes.until_owned([0, 3, 0]);
    (0..SHARDS).for_each(|shard| lets_in(&nodes, nodes.ports[1] + shard));
    [0, 2].into_iter().for_each(|at| _ = nodes.operate(&["drain", &name(at), "--undo"]));
    nodes.until_owned([1, 1, 1]);
    // A process that owns its shard is asked to end.
    let owner = (0..SHARDS).map(|shard| nodes.ports[0] + shard).find(|port| {
        let mine = children(&nodes, 0);
        mine.values().any(|process| *process == id(&nodes, *port))
    });
    let _closed = ask(&mut connect(owner.expect("n0 owns a shard")), "SHUTDOWN");
    assert!(nodes.ended(0).success());
    // One that cannot begin is no node.
    let http = (nodes.ports[0] + 1).to_string();
    let refused = nodes.command(0, &["--http-port", &http]).output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("allowed: at least 3 apart"), "{why}");
    let taken = std::net::TcpListener::bind(("127.0.0.1", nodes.ports[0] + 1)).unwrap();
    let refused = nodes.command(0, &[]).output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("the process of shard 1 cannot begin"), "{why}");
    drop(taken);
    // Nor does one that cannot serve keep others from it: what it finds when it owns a shard, it has owned for a moment.
    let port = nodes.ports[0] + LINK_PORT_OFFSET;
    let taken = (port..port + SHARDS).map(|port| std::net::TcpListener::bind(("127.0.0.1", port)));
    let taken: Vec<_> = taken.collect::<Result<_, _>>().unwrap();
    let before = nodes.log(0).len();
    nodes.begin(0, &[]);
    until("a process does not stand by", || {
        let log = nodes.log(0).split_off(before);
        (0..SHARDS).all(|shard| log.contains(&format!("node=\"{}/{shard}\"", name(0))))
    });
    nodes.kill(1);
    nodes.until_owned([0, 0, 3]);
    nodes.begin(1, &[]);
    // Each of its processes is left a shard once, and not again: though it owns the fewest.
    let tries = |nodes: &Nodes| -> Vec<usize> {
        let log = nodes.log(0).split_off(before);
        let of_process = |shard: u16| {
            let process = format!("{}/{shard} ", name(0));
            let owns = |line: &&str| line.starts_with(&process) && line.contains("event=\"owns\"");
            log.lines().filter(owns).count()
        };
        (0..SHARDS).map(of_process).collect()
    };
    until("it is left none", || tries(&nodes).contains(&1));
    sleep(2 * Duration::from_millis(SETTLE_MILLIS));
    let all = tries(&nodes);
    assert!(all.iter().all(|tries| *tries <= 1), "{all:?}");
    until("shards have no owner", || {
        let (owned, all) = nodes.owned();
        all == usize::from(SHARDS) && owned[&name(0)] == 0
    });
    drop(taken);
}

/// What flows owe for acknowledged writes is done, at other shards as well, though nodes are killed while it is owed.
#[test]
fn flows_do_what_they_owe_though_nodes_are_killed() {
    const USERS: usize = 12;
    const POSTS: usize = 120;
    let Some(mut nodes) = Nodes::start() else { return };
    nodes.until_owned([1, 1, 1]);
    nodes.until_they_know_one_another();
    let fan = "t|<user>|<time> = check f|<poster>|<user> copy p|<poster>|<time>";
    let flow = ["FLOW.ADD", "fan", "ON", "p|<poster>|<time>", "FANOUT", fan];
    ask_all(&mut connect(nodes.ports[0]), &flow).unwrap();
    for user in 0..USERS {
        nodes.answer(nodes.ports[0], &format!("SET f|bob|u{user} 1"));
    }
    for post in 0..POSTS {
        // Whoever is killed, a node that goes on takes the post.
        let at = [1, 2, 0][post * 3 / POSTS];
        nodes.answer(nodes.ports[at], &format!("SET p|bob|{post:04} {post}"));
        match post {
            20 => nodes.kill(0),
            60 => {
                nodes.begin(0, &[]);
                nodes.until_owned([1, 1, 1]);
            }
            100 => nodes.kill(1),
            _ => {}
        }
    }
    for user in 0..USERS {
        let mut found = Vec::new();
        until(&format!("posts are missing in the timeline of {user}"), || {
            let read = ask(&mut connect(nodes.ports[2]), &format!("PREFIX t|u{user}| VALUES"));
            let Ok(redis::Value::Array(values)) = read else { return false };
            found = values.iter().map(text).collect();
            found.len() >= POSTS
        });
        let posts: Vec<String> = (0..POSTS).map(|post| post.to_string()).collect();
        assert_eq!(found, posts, "user {user}");
    }
}

#[test]
fn connections_go_on_while_nodes_of_several_shards_are_drained_and_end() {
    while_leases_hold(Nodes::start, drain_while_clients_count, |nodes| {
        (0..NODES).any(|at| has_lease_failed(&nodes.log(at)))
    });
}

fn drain_while_clients_count(nodes: &mut Nodes) {
    nodes.until_owned([1; NODES]);
    // Each asks for keys of all shards.
    let counting: Vec<_> = nodes
        .ports
        .iter()
        .map(|port| [1, 20].map(|many| Counting::start(*port, many, 50)))
        .collect();
    for at in [0, 1, 2, 0] {
        counting.iter().flatten().for_each(Counting::go_on);
        nodes.operate(&["drain", &name(at)]);
        counting.iter().flatten().for_each(Counting::go_on);
        nodes.operate(&["drain", &name(at), "--undo"]);
        until("the node may not own again", || {
            let status = nodes.operate(&["status", "--json"]);
            let status: Value = serde_json::from_str(&status).unwrap();
            let all = status["nodes"].as_array().unwrap();
            all.iter().all(|node| node["heard"] == true && node["drained"] == false)
        });
    }
    let mut counting = counting.into_iter();
    counting.next().unwrap().into_iter().for_each(Counting::end);
    nodes.signal(0, Signal::TERM);
    nodes.ended(0);
    let rest: Vec<_> = counting.flatten().collect();
    rest.iter().for_each(Counting::go_on);
    rest.into_iter().for_each(Counting::end);
}
