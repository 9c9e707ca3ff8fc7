//! A cluster on one machine: three NATS servers and some nodes, each a process.

use crate::flows::nats;
use crate::measure::process;
use crate::peer::{Measured, free_port, program, stop};
use crate::wire::Connection;
use anyhow::{Context, Result, bail};
use core::time::Duration;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

/// NATS servers, and nodes of one shard: each has one of both on its machine, if they were machines.
pub(crate) const MACHINES: usize = 3;
/// Owners of several shards reach each other at a node's port and so much.
const LINK_PORT_OFFSET: u16 = 10_000;
/// How many ports are looked at for one that a node can have.
const NODE_PORT_TRIES: usize = 50_000;
/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// The stream of the shard's log.
pub(crate) const LOG: &str = "HW_bench_0";

/// What runs on one of the machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A NATS server.
    Nats,
    /// A node.
    Node,
}

/// The processes.
#[derive(Debug)]
pub(crate) struct Site {
    folder: tempfile::TempDir,
    headwater: PathBuf,
    nats: PathBuf,
    /// For clients of NATS, for its servers among one another, and for its pages.
    nats_ports: Vec<[u16; 3]>,
    /// For clients of nodes.
    ports: Vec<u16>,
    servers: [Option<Child>; MACHINES],
    nodes: Vec<Option<Child>>,
    /// With several, there is one node for each.
    shards: usize,
}

impl Site {
    /// Starts three nodes of one shard, and waits until one of them owns the data.
    ///
    /// # Errors
    /// A program is missing, or does not come up.
    pub(crate) fn start(headwater: PathBuf) -> Result<Self> {
        let site = Self::start_nodes(headwater, MACHINES, 1)?;
        site.owner()?;
        Ok(site)
    }

    /// Starts as many nodes as shards, and waits until each owns one of them.
    ///
    /// # Errors
    /// A program is missing, or does not come up.
    pub(crate) fn start_shards(headwater: PathBuf, shards: usize) -> Result<Self> {
        let site = Self::start_nodes(headwater, shards, shards)?;
        for at in 0..shards {
            site.until("each node owns its shard", |site| site.owns(at))?;
        }
        Ok(site)
    }

    /// Waits until each node can ask all others.
    ///
    /// # Errors
    /// One cannot, within two minutes.
    pub(crate) fn await_links(&self) -> Result<()> {
        for &port in &self.ports {
            self.until("each node has connections to all others", |_| {
                let answer = ask(port, &[b"PREFIX", b"any|", b"COUNT"], PATIENCE);
                answer.is_some_and(|answer| answer.first() == Some(&b':'))
            })?;
        }
        Ok(())
    }

    fn start_nodes(headwater: PathBuf, nodes: usize, shards: usize) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("headwater-bench-").tempdir()?;
        let nats_ports = (0..MACHINES)
            .map(|_| Ok([free_port()?, free_port()?, free_port()?]))
            .collect::<Result<Vec<_>>>()?;
        let ports = (0..nodes).map(|_| node_port()).collect::<Result<Vec<_>>>()?;
        let nats = program::nats()?;
        let servers = Default::default();
        let nodes = (0..nodes).map(|_| None).collect();
        let mut site = Self { folder, headwater, nats, nats_ports, ports, servers, nodes, shards };
        for at in 0..MACHINES {
            site.restart(Kind::Nats, at)?;
        }
        for at in 0..MACHINES {
            site.until("NATS is a cluster", |site| {
                let page = site.page(at, "jsz");
                let meta = page.get("meta_cluster");
                meta.is_some_and(|meta| {
                    meta["leader"].is_string() && meta["cluster_size"] == MACHINES
                })
            })?;
        }
        for at in 0..site.nodes.len() {
            site.restart(Kind::Node, at)?;
        }
        Ok(site)
    }

    /// How many nodes there are.
    #[must_use]
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Where clients reach a node.
    #[must_use]
    pub(crate) fn port(&self, node: usize) -> u16 {
        self.ports[node]
    }

    /// Where clients reach a NATS server.
    #[must_use]
    pub(crate) fn nats_port(&self, at: usize) -> u16 {
        self.nats_ports[at][0]
    }

    /// Waits until something holds.
    ///
    /// # Errors
    /// It does not, within two minutes.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Result<()> {
        let begun = Instant::now();
        while !holds(self) {
            stop::check()?;
            if begun.elapsed() > PATIENCE {
                bail!("waited in vain: {what}\n{}", self.logs());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn logs(&self) -> String {
        let log = |at: usize| {
            let path = self.folder.path().join(format!("node{at}.log"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().rev().take(5).fold(String::new(), |all, line| format!("{line}\n{all}"))
        };
        (0..self.nodes.len()).map(log).collect()
    }

    fn child(&mut self, kind: Kind, at: usize) -> &mut Option<Child> {
        match kind {
            Kind::Nats => &mut self.servers[at],
            Kind::Node => &mut self.nodes[at],
        }
    }

    /// Starts a server or node, if it does not run.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn restart(&mut self, kind: Kind, at: usize) -> Result<()> {
        if self.child(kind, at).is_some() {
            return Ok(());
        }
        let mut command = match kind {
            Kind::Nats => self.nats_command(at)?,
            Kind::Node => self.node_command(at),
        };
        let name = if kind == Kind::Nats { "nats" } else { "node" };
        let log = File::create(self.folder.path().join(format!("{name}{at}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{name} does not start"))?;
        stop::note(child.id(), Signal::KILL);
        *self.child(kind, at) = Some(child);
        Ok(())
    }

    fn nats_command(&self, at: usize) -> Result<Command> {
        let [port, route, page] = self.nats_ports[at];
        let routes: Vec<_> = self
            .nats_ports
            .iter()
            .map(|[_, route, _]| format!("nats://127.0.0.1:{route}"))
            .collect();
        let text = format!(
            "server_name: s{at}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{page}\n\
             jetstream {{ store_dir: {:?}, sync_interval: always }}\n\
             cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{}] }}\n",
            self.folder.path().join(format!("nats{at}")),
            routes.join(", "),
        );
        let settings = self.folder.path().join(format!("nats{at}.conf"));
        std::fs::write(&settings, text)?;
        let mut command = Command::new(&self.nats);
        command.arg("-c").arg(settings);
        Ok(command)
    }

    fn node_command(&self, at: usize) -> Command {
        let urls: Vec<_> =
            self.nats_ports.iter().map(|[port, ..]| format!("nats://127.0.0.1:{port}")).collect();
        let port = self.port(at).to_string();
        let mut command = Command::new(&self.headwater);
        command.args(["serve", "--bind", "127.0.0.1", "--port", &port]);
        command.args(["--shards", &self.shards.to_string()]);
        if self.shards > 1 {
            command.args(["--cluster-shard", &at.to_string()]);
        }
        command.args(["--cluster", &urls.join(","), "--cluster-name", "bench"]);
        for [_, _, page] in &self.nats_ports {
            command.args(["--nats-monitoring", &format!("http://127.0.0.1:{page}")]);
        }
        command.args(["--node", &format!("node{at}")]);
        command.args(["--advertise", &format!("127.0.0.1:{port}")]);
        command.arg("--data").arg(self.folder.path().join(format!("data{at}")));
        command
    }

    /// A page of a NATS server's figures; nothing where it says none.
    fn page(&self, at: usize, page: &str) -> Value {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.nats_ports[at][2]))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            write!(stream, "GET /{page} HTTP/1.0\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = ask().unwrap_or_default();
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_default()
    }

    /// Which NATS server leads a stream.
    ///
    /// # Errors
    /// None does for two minutes.
    pub(crate) fn leader(&self, stream: &str) -> Result<usize> {
        let mut leader = None;
        self.until("the stream has a leader", |site| {
            let pages = (0..MACHINES).map(|at| site.page(at, "jsz?accounts=true&streams=true"));
            leader = pages.into_iter().find_map(|page| {
                let streams = page["account_details"][0]["stream_detail"].as_array()?.clone();
                let found = streams.into_iter().find(|one| one["name"] == stream)?;
                found["cluster"]["leader"].as_str()?.strip_prefix('s')?.parse().ok()
            });
            leader.is_some()
        })?;
        leader.context("it was found just now")
    }

    /// Which node owns the data.
    ///
    /// # Errors
    /// None does for two minutes.
    pub(crate) fn owner(&self) -> Result<usize> {
        let mut owner = None;
        self.until("a node owns the data", |site| {
            owner = (0..site.nodes.len()).find(|&at| site.owns(at));
            owner.is_some()
        })?;
        owner.context("it was found just now")
    }

    /// Whether a node owns a shard.
    fn owns(&self, at: usize) -> bool {
        let told = ask(self.port(at), &[b"INFO", b"cluster"], Duration::from_secs(2));
        let name = format!("cluster_node:node{at}\r\n");
        told.is_some_and(|text| String::from_utf8_lossy(&text).contains(&name))
    }

    /// Sends a signal to what runs there; after SIGKILL, and SIGTERM, it is gone.
    ///
    /// # Errors
    /// It does not end.
    pub(crate) fn end(&mut self, kind: Kind, at: usize, signal: Signal) -> Result<()> {
        let Some(mut child) = self.child(kind, at).take() else { return Ok(()) };
        stop::send(child.id(), signal);
        stop::forget(child.id());
        child.wait().context("its end")?;
        Ok(())
    }

    /// Whether every server has all of every stream: who has not cannot lead, and two that remain would be none.
    fn is_in_step(&self) -> bool {
        let pages = (0..MACHINES).map(|at| self.page(at, "jsz?accounts=true&streams=true"));
        let streams: Vec<Value> = pages
            .filter_map(|page| page["account_details"][0]["stream_detail"].as_array().cloned())
            .flatten()
            .collect();
        // Only who leads a stream knows of the others.
        let led = |stream: &&Value| {
            let cluster = &stream["cluster"];
            let others = cluster["replicas"].as_array();
            others.is_some_and(|others| {
                others.len() + 1 == MACHINES && others.iter().all(|other| other["current"] == true)
            })
        };
        let names: BTreeSet<_> = streams.iter().map(|stream| stream["name"].as_str()).collect();
        let whole: BTreeSet<_> =
            streams.iter().filter(led).map(|stream| stream["name"].as_str()).collect();
        !names.is_empty() && names == whole
    }

    /// Starts all that does not run, and waits until NATS's servers are in step and all nodes serve.
    ///
    /// # Errors
    /// They do not come up.
    pub(crate) fn mend(&mut self) -> Result<()> {
        for (kind, count) in [(Kind::Nats, MACHINES), (Kind::Node, self.nodes.len())] {
            for at in 0..count {
                self.restart(kind, at)?;
            }
        }
        self.until("NATS's servers are in step", Self::is_in_step)?;
        self.owner()?;
        for at in 0..self.nodes.len() {
            self.until("every node forwards", |site| {
                ask(site.port(at), &[b"PING"], Duration::from_secs(2))
                    .is_some_and(|it| it[0] == b'+')
            })?;
        }
        Ok(())
    }

    /// CPU that a node has used.
    ///
    /// # Errors
    /// It does not run.
    pub(crate) fn cpu(&self, node: usize) -> Result<Duration> {
        let child = self.nodes[node].as_ref().context("the node does not run")?;
        process::cpu(child.id())
    }

    /// CPU that all nodes have used.
    ///
    /// # Errors
    /// One does not run.
    pub(crate) fn cpu_of_all(&self) -> Result<Duration> {
        (0..self.nodes.len()).map(|at| self.cpu(at)).sum()
    }

    /// A connection to a NATS server on which an inbox was subscribed to.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) fn nats(&self, at: usize, inbox: &str) -> Result<Connection> {
        let mut connection = Connection::open(self.nats_ports[at][0])?;
        nats::begin(&mut connection, inbox)?;
        Ok(connection)
    }
}

impl Measured for Site {
    fn connect_to(&self, number: usize) -> Result<Connection> {
        let port = self.port(number % self.nodes());
        Connection::open(port).with_context(|| format!("cannot connect to a node on port {port}"))
    }

    fn cpu_used(&self) -> Result<Duration> {
        self.cpu_of_all()
    }

    fn resident_max(&self) -> Result<u64> {
        let nodes = self.nodes.iter().flatten();
        nodes.map(|node| process::rss_max(node.id())).sum()
    }

    fn printed(&self) -> String {
        self.logs()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().chain(&mut self.servers).filter_map(Option::as_mut) {
            stop::send(child.id(), Signal::KILL);
            stop::forget(child.id());
            let _ended = child.wait();
        }
    }
}

/// A port for a node, with the one at which other owners reach it free as well.
fn node_port() -> Result<u16> {
    let is_free =
        |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port + LINK_PORT_OFFSET)).is_ok();
    for _ in 0..NODE_PORT_TRIES {
        let port = free_port()?;
        // Those of outgoing connections begin at 32 768: one of them may be taken by anybody.
        if port < LINK_PORT_OFFSET + 12_000 && is_free(port) {
            return Ok(port);
        }
    }
    bail!("no port of a node is free")
}

/// One request over a connection of its own: the first bytes of the answer, if there is one in time.
#[must_use]
pub(crate) fn ask(port: u16, words: &[&[u8]], patience: Duration) -> Option<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    let mut request = Vec::new();
    crate::wire::resp::command(&mut request, words);
    stream.write_all(&request).ok()?;
    let mut answer = vec![0; 16 << 10];
    let len = stream.read(&mut answer).ok()?;
    answer.truncate(len);
    (len > 0).then_some(answer)
}
