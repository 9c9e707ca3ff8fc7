//! `headwater demo --cluster`: three NATS servers and three nodes on one machine, with the data of the demonstration, and what to kill.

use super::data::{DataArgs, DemoTarget, Loaded};
use crate::client::{Client, Reply};
use crate::commands::processes::{NodeNews, Process, end, free_ports, free_runs, nats_server};
use crate::commands::serve::{ListenArgs, say_ready};
use crate::dial::{Place, TlsArgs};
use anyhow::{Context, bail, ensure};
use headwater_server::{Config, EndSignals, OptionalPort};
use std::ffi::OsString;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

const SERVERS: usize = 3;
const NODES: usize = 3;
/// How long servers and nodes may take until they are a cluster.
const BEGINS_WITHIN: Duration = Duration::from_secs(120);
/// How long it takes until what was killed is started again.
const RESTART: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
/// How long the owners of shards may take until they are connected.
const DEFINED_WITHIN: Duration = Duration::from_secs(60);
/// What is said of a failure, with one shard and with several.
const ONE_TAKES_OVER: &str = "The answer comes after some three seconds, when another node\n   \
    has taken over, with everything that was acknowledged. A line below says which:";
const OTHERS_TAKE_OVER: &str = "What it owned is owned by others after some three seconds, with everything\n   \
    that was acknowledged; until then, what needs it is answered CLUSTERDOWN. When it is back, it is given shards again:";
const PAUSE_OWNER: &str = "Pause the owner instead of killing it; when it goes on, it owns nothing, and stands by:\n   \
    kill -STOP PROCESS; sleep 5; kill -CONT PROCESS";
const KILL_PROCESS: &str = "Kill a single process of a node; the node starts it again, and another node may have its shard by then:\n   \
    pgrep -P PROCESS; kill -9 ONE OF THEM";
/// Keys that are sent at once.
const BATCH: usize = 1000;

/// Starts everything, says what to try, and goes on until SIGINT or SIGTERM.
pub(super) fn run(
    listen: ListenArgs,
    data: &DataArgs,
    (program, shards): (Option<PathBuf>, u16),
) -> anyhow::Result<ExitCode> {
    let ports = node_ports(listen, shards)?;
    let program = nats_server(program)?;
    let mut signals = EndSignals::new()?;
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let mut demo = Demo::new(folder.path(), &program, (ports, shards))?;
    let done = demo.begin(&mut signals).and_then(|has_begun| match has_begun {
        true => demo.show(data, &mut signals),
        false => Ok(()),
    });
    end(&mut demo.nodes);
    end(&mut demo.servers);
    done.map(|()| ExitCode::SUCCESS)
}

/// The nodes' first ports, of which each has one for each shard: the one that was given and those behind it, or free ones.
fn node_ports(listen: ListenArgs, shards: u16) -> anyhow::Result<Vec<u16>> {
    let mut config = Config::default();
    let usual = config.clone();
    listen.apply(&mut config);
    let port = config.listen.port;
    config.listen.port = usual.listen.port;
    // What the environment says is for other servers.
    let is_set = |name: &str| std::env::var_os(name).is_some();
    if is_set("HEADWATER_LOG_LEVEL") {
        config.log = usual.log.clone();
    }
    if is_set("HEADWATER_MEMORY") {
        config.memory = usual.memory.clone();
    }
    if is_set("HEADWATER_REQUIREPASS") {
        config.listen.requirepass = usual.listen.requirepass.clone();
    }
    ensure!(
        config == usual,
        "demo --cluster takes no settings of a server (allowed: --port, --graph, --posts, --seed, --shards, --nats-server)"
    );
    match port {
        OptionalPort::Off => bail!("demo --cluster needs a port (allowed: 0 to {})", u16::MAX - 2),
        OptionalPort::On(0) if shards == 1 => free_ports(NODES),
        OptionalPort::On(0) => free_runs(NODES, shards),
        OptionalPort::On(first) => {
            let last = first.checked_add(NODES as u16 * shards - 1);
            let last =
                last.with_context(|| format!("--port {first} leaves no room for {NODES} nodes"))?;
            Ok((first..=last).step_by(shards.into()).collect())
        }
    }
}

/// What nodes have said of shards.
struct ShardOwners {
    /// Which node owns each shard.
    of: Vec<Option<usize>>,
    /// By node and shard: it stands by or owns.
    begun: [Vec<bool>; NODES],
}

impl ShardOwners {
    fn new(shards: u16) -> Self {
        let shards = usize::from(shards);
        Self { of: vec![None; shards], begun: std::array::from_fn(|_| vec![false; shards]) }
    }

    fn note(&mut self, node: usize, shard: usize, news: NodeNews) {
        self.begun[node][shard] = true;
        match news {
            NodeNews::Owns => self.of[shard] = Some(node),
            NodeNews::StandsBy if self.of[shard] == Some(node) => self.of[shard] = None,
            NodeNews::StandsBy => {}
        }
    }

    /// The shards of a node.
    fn owned_by(&self, node: usize) -> Vec<String> {
        let all = self.of.iter().enumerate().filter(|(_, owner)| **owner == Some(node));
        all.map(|(shard, _)| shard.to_string()).collect()
    }

    /// Whether all are there, each shard has an owner, and none of these owns so much that it gives some up.
    fn are_settled(&self) -> bool {
        let counts = (0..NODES).map(|node| self.owned_by(node).len());
        let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
        let have_begun = self.begun.iter().flatten().all(|begun| *begun);
        have_begun && self.of.iter().all(Option::is_some) && most - least < 2
    }
}

/// The processes, and what they say.
struct Demo {
    servers: Vec<Process>,
    nodes: Vec<Process>,
    ports: Vec<u16>,
    shards: u16,
    owners: ShardOwners,
    urls: String,
    tells: Sender<(usize, String)>,
    lines: Receiver<(usize, String)>,
}

impl Demo {
    fn new(
        folder: &Path,
        program: &Path,
        (ports, shards): (Vec<u16>, u16),
    ) -> anyhow::Result<Self> {
        let nats_ports = free_ports(3 * SERVERS)?;
        let (clients, rest) = nats_ports.split_at(SERVERS);
        let (routes, monitoring) = rest.split_at(SERVERS);
        let urls = |ports: &[u16]| {
            let url = |port| format!("nats://127.0.0.1:{port}");
            ports.iter().map(url).collect::<Vec<_>>().join(",")
        };
        let mut servers = Vec::new();
        for at in 0..SERVERS {
            let name = format!("nats-{}", at + 1);
            let text = format!(
                "server_name: {name}\nlisten: 127.0.0.1:{}\nhttp: 127.0.0.1:{}\n\
                 jetstream {{ store_dir: {:?}, sync_interval: always }}\n\
                 cluster {{ name: demo, listen: 127.0.0.1:{}, routes: [{}] }}\n",
                clients[at],
                monitoring[at],
                folder.join(&name),
                routes[at],
                urls(routes)
            );
            let file = folder.join(format!("{name}.conf"));
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
            let arguments = vec![OsString::from("-c"), file.into()];
            let server = Process::new(&name, program, arguments);
            servers.push(server.logging_to(folder.join(format!("{name}.log"))));
        }
        let own = std::env::current_exe().context("this program")?;
        let urls = urls(clients);
        let mut nodes = Vec::new();
        for (at, port) in ports.iter().enumerate() {
            let name = format!("n{}", at + 1);
            let words = format!(
                "serve --shards {shards} --port {port} --node {name} --advertise 127.0.0.1:{port} --cluster {urls}"
            );
            let mut arguments: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            for port in monitoring {
                let address = format!("http://127.0.0.1:{port}");
                arguments.extend(["--nats-monitoring".into(), address.into()]);
            }
            arguments.extend(["--data".into(), folder.join(&name).into()]);
            let node = Process::new(&name, &own, arguments);
            let node = node.logging_to(folder.join(format!("{name}.log")));
            // There is no password here.
            nodes.push(node.without(&["HEADWATER_REQUIREPASS"]));
        }
        let (tells, lines) = channel();
        let owners = ShardOwners::new(shards);
        Ok(Self { servers, nodes, ports, shards, owners, urls, tells, lines })
    }

    fn start_node(&mut self, at: usize) -> anyhow::Result<()> {
        self.nodes[at].start(Some((at, self.tells.clone())))
    }

    /// What a line of a node says of which shard, if it is about one.
    fn news(&mut self, at: usize, line: &str) -> Option<(usize, NodeNews)> {
        let news = NodeNews::of(line)?;
        let (_, address) = line.split_once(" on 127.0.0.1:")?;
        let port = address.split(|letter: char| !letter.is_ascii_digit()).next()?;
        let shard = port.parse::<u16>().ok()?.checked_sub(self.ports[at])?;
        let shard = Some(usize::from(shard)).filter(|_| shard < self.shards)?;
        self.owners.note(at, shard, news);
        Some((shard, news))
    }

    /// Starts all, and waits until all data has owners, and the others stand by; whether nobody wants the end before.
    fn begin(&mut self, signals: &mut EndSignals) -> anyhow::Result<bool> {
        writeln!(std::io::stdout(), "three NATS servers and three nodes begin …")?;
        for server in &mut self.servers {
            server.start(None)?;
        }
        for at in 0..NODES {
            self.start_node(at)?;
        }
        let began = Instant::now();
        while !self.owners.are_settled() {
            if signals.came() {
                return Ok(false);
            }
            for process in self.servers.iter_mut().chain(&mut self.nodes) {
                process.expect_running()?;
            }
            if began.elapsed() >= BEGINS_WITHIN {
                bail!("no node owns the data within {} seconds", BEGINS_WITHIN.as_secs());
            }
            match self.lines.recv_timeout(LOOK) {
                Ok((at, line)) => _ = self.news(at, &line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nothing is heard of the nodes"),
            }
        }
        Ok(true)
    }

    /// Loads the data, says what there is and what to try, and tells what happens until somebody wants the end.
    fn show(&mut self, data: &DataArgs, signals: &mut EndSignals) -> anyhow::Result<()> {
        let owner = self.owners.of[0].unwrap_or_default();
        let mut target = ClusterTarget::connect(self.ports[owner])?;
        let loaded = data.load(&mut target)?;
        let text = self.text(owner, &loaded);
        std::io::stdout().write_all(text.as_bytes())?;
        let address = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
        say_ready(&self.ports.iter().map(address).collect::<Vec<_>>())?;
        self.watch(signals)
    }

    fn text(&self, owner: usize, loaded: &Loaded) -> String {
        let mut text = loaded.summary.clone();
        text.push_str("\nThree NATS servers keep the log:\n");
        for server in &self.servers {
            text += &format!("   {}  process {}\n", server.name, server.id());
        }
        text.push_str("Three nodes; a client may connect to any of them:\n");
        for (at, (node, port)) in self.nodes.iter().zip(&self.ports).enumerate() {
            let (name, id, does) = (&node.name, node.id(), self.does(at));
            text += &format!("   {name}  127.0.0.1:{port}  process {id}  {does}\n");
        }
        if self.shards > 1 {
            text += &format!(
                "Each has a process for each of {} shards, at ports one behind the other. Whoever is asked answers for all keys.\n",
                self.shards
            );
        }
        let other = (owner + 1) % NODES;
        let port = self.ports[other];
        let read = match &loaded.tour {
            Some(tour) => {
                text += &tour.text(port);
                tour.read(port)
            }
            None => format!("redis-cli -p {port} PING"),
        };
        let urls = &self.urls;
        let (owner, other) = (&self.nodes[owner], &self.nodes[other]);
        text += &format!(
            "Then let something fail. What was killed is started again after {} seconds.\n\n\
             6. Kill {}, and read through {} at once. {}\n   \
             kill -9 {}\n   {read}\n\n\
             7. Kill a NATS server, and read and write on: two of three are enough. Writes may wait for some seconds:\n   \
             kill -9 {}\n   {read}\n\n\
             8. {}\n\n\
             9. How the cluster does, and a node that is to own nothing, until --undo:\n   \
             headwater cluster status --cluster {urls}\n   \
             headwater cluster drain NODE --cluster {urls}\n\n\
             Ctrl-C ends all of it.\n\n",
            RESTART.as_secs(),
            if self.shards == 1 { "the owner" } else { &owner.name },
            other.name,
            if self.shards == 1 { ONE_TAKES_OVER } else { OTHERS_TAKE_OVER },
            owner.id(),
            self.servers[0].id(),
            if self.shards == 1 { PAUSE_OWNER } else { KILL_PROCESS },
        );
        text
    }

    /// What a node does.
    fn does(&self, at: usize) -> String {
        match &*self.owners.owned_by(at) {
            [] => String::from("stands by"),
            _ if self.shards == 1 => String::from("owns the data"),
            [shard] => format!("owns shard {shard}"),
            shards => format!("owns shards {}", shards.join(", ")),
        }
    }

    /// Tells what happens, and starts again what has ended, until somebody wants the end.
    fn watch(&mut self, signals: &mut EndSignals) -> anyhow::Result<()> {
        let mut out = std::io::stdout();
        let mut ended: Vec<(Instant, usize)> = Vec::new();
        while !signals.came() {
            while let Ok((at, line)) = self.lines.try_recv() {
                let Some((shard, news)) = self.news(at, &line) else { continue };
                let (name, id) = (&self.nodes[at].name, self.nodes[at].id());
                let (owned, stands_by) = match self.shards {
                    1 => (String::from("the data"), String::new()),
                    _ => (format!("shard {shard}"), format!(" for shard {shard}")),
                };
                match news {
                    NodeNews::Owns => writeln!(out, "{name} (process {id}) owns {owned}")?,
                    NodeNews::StandsBy => {
                        writeln!(out, "{name} (process {id}) stands by{stands_by}")?;
                    }
                }
            }
            for (at, process) in self.nodes.iter_mut().chain(&mut self.servers).enumerate() {
                if let Some(status) = process.ended() {
                    writeln!(out, "{} has ended: {status}", process.name)?;
                    ended.push((Instant::now(), at));
                }
            }
            let due = ended.iter().position(|(when, _)| when.elapsed() >= RESTART);
            if let Some((_, at)) = due.map(|due| ended.remove(due)) {
                match at.checked_sub(NODES) {
                    None => self.start_node(at)?,
                    Some(server) => self.servers[server].start(None)?,
                }
                let mut all = self.nodes.iter().chain(&self.servers);
                let process = all.nth(at).context("a process")?;
                writeln!(out, "{} is started again, as process {}", process.name, process.id())?;
            }
            out.flush()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// A cluster that is loaded through the node that owns the data.
struct ClusterTarget {
    client: Client,
    /// Keys that are not sent yet.
    batch: Vec<[String; 3]>,
}

impl ClusterTarget {
    fn connect(port: u16) -> anyhow::Result<Self> {
        let host = String::from("127.0.0.1");
        let place = Place { host, port, user: None, password: None, encrypted: false };
        let client = Client::connect(&place, &TlsArgs::default())?;
        Ok(Self { client, batch: Vec::new() })
    }
}

impl ClusterTarget {
    /// Has something defined for all shards: as soon as their owners are connected.
    fn define(&mut self, words: &[&str]) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.client.call(words)? {
                Reply::Error(text)
                    if text.starts_with("CLUSTERDOWN") && began.elapsed() < DEFINED_WITHIN =>
                {
                    std::thread::sleep(LOOK);
                }
                reply => return granted(reply),
            }
        }
    }
}

fn granted(reply: Reply) -> anyhow::Result<()> {
    match reply {
        Reply::Error(text) => bail!("the owner says: {text}"),
        _ => Ok(()),
    }
}

impl DemoTarget for ClusterTarget {
    fn table(&mut self, name: &str) -> anyhow::Result<()> {
        self.define(&["TABLE.SET", name, "BOUNDARY", "1"])
    }

    fn join(&mut self, name: &str, spec: &str) -> anyhow::Result<()> {
        self.define(&["JOIN.ADD", name, spec])
    }

    fn set(&mut self, key: String, value: String) -> anyhow::Result<()> {
        self.batch.push([String::from("SET"), key, value]);
        if self.batch.len() < BATCH { Ok(()) } else { self.finish() }
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let replies = self.client.call_all(&self.batch)?;
        self.batch.clear();
        replies.into_iter().try_for_each(granted)
    }
}
