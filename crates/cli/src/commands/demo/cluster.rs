//! `headwater demo --cluster`: three NATS servers and three nodes on one machine, with the data of the demonstration, and what to kill.

use super::data::{DataArgs, DemoTarget, Loaded};
use crate::client::{Client, Reply};
use crate::commands::processes::{NodeNews, Process, end, free_ports, nats_server};
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
/// Keys that are sent at once.
const BATCH: usize = 1000;

/// Starts everything, says what to try, and goes on until SIGINT or SIGTERM.
pub(super) fn run(
    listen: ListenArgs,
    data: &DataArgs,
    program: Option<PathBuf>,
) -> anyhow::Result<ExitCode> {
    let ports = node_ports(listen)?;
    let program = nats_server(program)?;
    let mut signals = EndSignals::new()?;
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let mut demo = Demo::new(folder.path(), &program, ports)?;
    let done = demo.begin(&mut signals).and_then(|owner| match owner {
        Some(owner) => demo.show(owner, data, &mut signals),
        None => Ok(()),
    });
    end(&mut demo.nodes);
    end(&mut demo.servers);
    done.map(|()| ExitCode::SUCCESS)
}

/// The nodes' ports: the one that was given and those behind it, or those that the system chooses.
fn node_ports(listen: ListenArgs) -> anyhow::Result<Vec<u16>> {
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
        "demo --cluster takes no settings of a server (allowed: --port, --graph, --posts, --seed, --nats-server)"
    );
    match port {
        OptionalPort::Off => bail!("demo --cluster needs a port (allowed: 0 to {})", u16::MAX - 2),
        OptionalPort::On(0) => free_ports(NODES),
        OptionalPort::On(first) => {
            let last = first.checked_add(NODES as u16 - 1);
            let last =
                last.with_context(|| format!("--port {first} leaves no room for {NODES} nodes"))?;
            Ok((first..=last).collect())
        }
    }
}

/// The processes, and what they say.
struct Demo {
    servers: Vec<Process>,
    nodes: Vec<Process>,
    ports: Vec<u16>,
    urls: String,
    tells: Sender<(usize, String)>,
    lines: Receiver<(usize, String)>,
}

impl Demo {
    fn new(folder: &Path, program: &Path, ports: Vec<u16>) -> anyhow::Result<Self> {
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
                "serve --shards 1 --port {port} --node {name} --advertise 127.0.0.1:{port} --cluster {urls}"
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
        Ok(Self { servers, nodes, ports, urls, tells, lines })
    }

    fn start_node(&mut self, at: usize) -> anyhow::Result<()> {
        self.nodes[at].start(Some((at, self.tells.clone())))
    }

    /// Starts all, and waits until a node owns the data, and the others stand by; `None`: somebody wants the end before.
    fn begin(&mut self, signals: &mut EndSignals) -> anyhow::Result<Option<usize>> {
        writeln!(std::io::stdout(), "three NATS servers and three nodes begin …")?;
        for server in &mut self.servers {
            server.start(None)?;
        }
        for at in 0..NODES {
            self.start_node(at)?;
        }
        let (began, mut owner, mut begun) = (Instant::now(), None, [false; NODES]);
        while owner.is_none() || begun.contains(&false) {
            if signals.came() {
                return Ok(None);
            }
            for process in self.servers.iter_mut().chain(&mut self.nodes) {
                process.expect_running()?;
            }
            if began.elapsed() >= BEGINS_WITHIN {
                bail!("no node owns the data within {} seconds", BEGINS_WITHIN.as_secs());
            }
            match self.lines.recv_timeout(LOOK) {
                Ok((at, line)) => match NodeNews::of(&line) {
                    Some(NodeNews::Owns) => (begun[at], owner) = (true, Some(at)),
                    Some(NodeNews::StandsBy) => {
                        begun[at] = true;
                        owner = owner.filter(|owner| *owner != at);
                    }
                    None => {}
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nothing is heard of the nodes"),
            }
        }
        Ok(owner)
    }

    /// Loads the data, says what there is and what to try, and tells what happens until somebody wants the end.
    fn show(
        &mut self,
        owner: usize,
        data: &DataArgs,
        signals: &mut EndSignals,
    ) -> anyhow::Result<()> {
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
            let does = if at == owner { "owns the data" } else { "stands by" };
            let (name, id) = (&node.name, node.id());
            text += &format!("   {name}  127.0.0.1:{port}  process {id}  {does}\n");
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
             6. Kill the owner, and read through {} at once. The answer comes after some three seconds, when another node\n   \
             has taken over, with everything that was acknowledged. A line below says which:\n   \
             kill -9 {}\n   {read}\n\n\
             7. Kill a NATS server, and read and write on: two of three are enough. Writes may wait for some seconds:\n   \
             kill -9 {}\n   {read}\n\n\
             8. Pause the owner instead of killing it; when it goes on, it owns nothing, and stands by:\n   \
             kill -STOP PROCESS; sleep 5; kill -CONT PROCESS\n\n\
             9. How the cluster does, and a node that is to own nothing, until --undo:\n   \
             headwater cluster status --cluster {urls}\n   \
             headwater cluster drain NODE --cluster {urls}\n\n\
             Ctrl-C ends all of it.\n\n",
            RESTART.as_secs(),
            other.name,
            owner.id(),
            self.servers[0].id(),
        );
        text
    }

    /// Tells what happens, and starts again what has ended, until somebody wants the end.
    fn watch(&mut self, signals: &mut EndSignals) -> anyhow::Result<()> {
        let mut out = std::io::stdout();
        let mut ended: Vec<(Instant, usize)> = Vec::new();
        while !signals.came() {
            while let Ok((at, line)) = self.lines.try_recv() {
                let (name, id) = (&self.nodes[at].name, self.nodes[at].id());
                match NodeNews::of(&line) {
                    Some(NodeNews::Owns) => writeln!(out, "{name} (process {id}) owns the data")?,
                    Some(NodeNews::StandsBy) => writeln!(out, "{name} (process {id}) stands by")?,
                    None => {}
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

fn granted(reply: Reply) -> anyhow::Result<()> {
    match reply {
        Reply::Error(text) => bail!("the owner says: {text}"),
        _ => Ok(()),
    }
}

impl DemoTarget for ClusterTarget {
    fn table(&mut self, name: &str) -> anyhow::Result<()> {
        granted(self.client.call(&["TABLE.SET", name, "BOUNDARY", "1"])?)
    }

    fn join(&mut self, name: &str, spec: &str) -> anyhow::Result<()> {
        granted(self.client.call(&["JOIN.ADD", name, spec])?)
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
