//! One simulation: processes, and what goes wrong with them; `finish` looks at what was promised.

mod finish;

use super::super::ending::ProcessEnd;
use super::clients::Clients;
use super::history::{Asked, History};
use super::links::Links;
use super::process::{Process, ProcessLife};
use super::servers::Shared;
use crate::connection::ConnectionId;
use crate::simulated::{Pipe, ServerEnd};
use crate::wire_protocol::WireProtocol;
use headwater_log::DrainedNodes;
use headwater_model::rng::Rng;
use headwater_sim::replicated::{Cloud, LogFaults};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How long a step is, in milliseconds.
const STEP: u64 = 10;
/// How long things go wrong, and how long it may take until all is well again.
const TROUBLE: u64 = 20_000;
const CALM: u64 = 60_000;
/// What a message of the log may have at most, so that large values, and whole turns of several clients, are in parts.
const MESSAGE_BYTES_MAX: [usize; 3] = [100, 160, 300];
/// How far clocks are apart: so little that the times of values can be looked at, or by more than it takes to have another owner, so that one that is behind would have
/// what had gone return.
const CLOCKS_APART: [u64; 3] = [400, 400, 20_000];
/// How often it is looked who is in the cluster.
const LOOK: u64 = 1000;

/// How often what has happened.
pub(super) type Seen = BTreeMap<&'static str, u64>;

/// What a simulation was like.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Ran {
    pub(super) seen: Seen,
    /// All that clients have asked, and been told.
    pub(super) asked: Vec<Asked>,
}

/// How many kinds of operations clients ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Breadth {
    /// Those that there were when some of the seeds failed that are tested again.
    Narrow,
    /// Everything.
    Wide,
}

/// How many shards there are, how many nodes each of them has, and what clients ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterShape {
    pub(super) shards: u16,
    pub(super) nodes: usize,
    pub(super) breadth: Breadth,
}

/// Where clients connect.
pub(super) trait Servers {
    /// A connection to some server; `None`: there is none.
    fn connect(&mut self, protocol: WireProtocol, rng: &mut Rng) -> Option<Pipe>;
}

/// A client's connection at a server.
struct Connected {
    process: usize,
    life: u64,
    id: ConnectionId,
    pipe: Pipe,
}

/// All processes, and who is connected to them.
struct Cluster {
    processes: Vec<Option<Process>>,
    connected: Vec<Connected>,
    now: u64,
    port: u16,
}

impl Servers for Cluster {
    fn connect(&mut self, protocol: WireProtocol, rng: &mut Rng) -> Option<Pipe> {
        let serves = |at: &usize| self.processes[*at].as_ref().is_some_and(Process::serves);
        let serving: Vec<usize> = (0..self.processes.len()).filter(serves).collect();
        if serving.is_empty() {
            return None;
        }
        let process = *rng.pick(&serving);
        let it = self.processes[process].as_mut()?;
        let life = it.life;
        let (pipe, reactor) = (Pipe::default(), &mut it.serving()?.reactor);
        self.port = self.port.wrapping_add(1).max(1024);
        let peer = SocketAddr::from(([10, 0, 0, 1], self.port));
        let id = reactor.simulate_client_of(protocol, ServerEnd::of(&pipe), peer);
        self.connected.push(Connected { process, life, id, pipe: pipe.clone() });
        Some(pipe)
    }
}

/// A simulation.
pub(super) struct World {
    rng: Rng,
    shared: Shared,
    shards: u16,
    nodes: usize,
    breadth: Breadth,
    cluster: Cluster,
    links: Links,
    folders: TempDir,
    /// Folders of earlier lives.
    older: Vec<Option<PathBuf>>,
    clients: Clients,
    history: History,
    lives: u64,
    folder_count: u64,
    drained: DrainedNodes,
    /// Whether clients ask, and until when.
    wave: (bool, u64),
    seen: Seen,
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &to)?,
            false => _ = std::fs::copy(entry.path(), &to)?,
        }
    }
    Ok(())
}

/// Where files are written fastest.
fn room() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("there is room for folders")
}

impl World {
    /// That of a seed.
    pub(super) fn new(
        seed: u64,
        ClusterShape { shards, nodes, breadth }: ClusterShape,
        change: &dyn Fn(&mut LogFaults),
    ) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let mut faults = LogFaults::of(&mut rng);
        change(&mut faults);
        let shard_of: Vec<usize> = (0..usize::from(shards) * nodes).map(|at| at / nodes).collect();
        let cloud = Cloud::new(&shard_of);
        let shared = Shared::new(Rng::new(rng.bits()), faults, cloud);
        let clients = Clients::new(1 + rng.below(5), *rng.pick(&[30, 50, 90]), breadth);
        if breadth == Breadth::Wide {
            let common = &mut *shared.lock();
            common.message_bytes_max = *rng.pick(&MESSAGE_BYTES_MAX);
            common.clocks_apart = *rng.pick(&CLOCKS_APART);
        }
        let history = History::new(shared.lock().clocks_apart);
        let cluster = Cluster { processes: Vec::new(), connected: Vec::new(), now: 0, port: 0 };
        let mut world = Self {
            rng,
            shared,
            shards,
            nodes,
            breadth,
            cluster,
            links: Links::default(),
            folders: room(),
            older: vec![None; shard_of.len()],
            clients,
            history,
            lives: 0,
            folder_count: 0,
            drained: DrainedNodes::default(),
            wave: (false, 0),
            seen: Seen::new(),
        };
        for at in 0..shard_of.len() {
            let folder = world.new_folder();
            world.cluster.processes.push(None);
            world.start(at, folder)?;
        }
        Ok(world)
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn new_folder(&mut self) -> PathBuf {
        self.folder_count += 1;
        self.folders.path().join(self.folder_count.to_string())
    }

    /// A process's next life.
    fn start(&mut self, at: usize, folder: PathBuf) -> Result<(), String> {
        self.lives += 1;
        let which = ProcessLife {
            index: at,
            shard: (at / self.nodes) as u16,
            shards: self.shards,
            life: self.lives,
        };
        let process = Process::start(which, folder, &self.shared, &mut self.rng)?;
        self.cluster.processes[at] = Some(process);
        Ok(())
    }

    /// A process ends with everything in its memory; gives its folder.
    fn end(&mut self, at: usize) -> PathBuf {
        let process = self.cluster.processes[at].take().expect("there is one");
        let (folder, life) = (process.folder.clone(), process.life);
        if process.serves() {
            self.count("owners that end");
        }
        drop(process);
        self.cluster.connected.retain(|client| client.process != at);
        self.shared.lock().forget((at, life));
        folder
    }

    /// A process is killed, and begins anew with what its disk has, or an older one had, or with nothing.
    fn crash(&mut self, at: usize) -> Result<(), String> {
        let mut folder = self.end(at);
        match self.rng.below(4) {
            0 => {
                self.count("disks lost");
                folder = self.new_folder();
            }
            1 if self.older[at].is_some() => {
                self.count("older disks");
                folder = self.older[at].take().expect("there is one");
            }
            _ if self.rng.chance(30) => {
                let to = self.new_folder();
                copy_folder(&folder, &to).map_err(|why| why.to_string())?;
                self.older[at] = Some(to);
            }
            _ => {}
        }
        self.start(at, folder)
    }

    fn strikes(&mut self, of_thousand: usize) -> bool {
        self.rng.below(1000) < of_thousand
    }

    /// Faults of one step.
    fn trouble(&mut self) -> Result<(), String> {
        let now = self.cluster.now;
        let until = |rng: &mut Rng, most: usize| now + 50 + rng.below(most) as u64;
        let faults = self.shared.lock().faults.clone();
        if self.strikes(faults.leaders) {
            self.count("logs without a leader");
            self.shared.lock().cloud.log_leads = until(&mut self.rng, 6000);
        }
        if self.strikes(faults.leaders) {
            self.count("bucket without a leader");
            self.shared.lock().cloud.bucket_leads = until(&mut self.rng, 6000);
        }
        if self.strikes(faults.drains) {
            self.drain();
        }
        if self.shards > 1 && self.strikes(faults.cuts) {
            self.count("owners cut off from one another");
            let of = |rng: &mut Rng, shard: usize| shard * self.nodes + rng.below(self.nodes);
            let pair = (of(&mut self.rng, 0), of(&mut self.rng, 1));
            let until = until(&mut self.rng, 5000);
            self.links.apart.insert(pair, until);
        }
        for at in 0..self.cluster.processes.len() {
            if self.strikes(faults.stalls) {
                self.count("requests kept back");
                self.shared.lock().cloud.stalled[at] = until(&mut self.rng, 7000);
            }
            if self.strikes(faults.cuts) {
                self.count("nodes cut off");
                self.shared.lock().cloud.cut_off[at] = until(&mut self.rng, 7000);
            }
            if self.strikes(faults.pauses) {
                self.count("pauses");
                let until = until(&mut self.rng, 7000);
                self.cluster.processes[at].as_mut().expect("there is one").paused = until;
            }
            if self.strikes(faults.crashes) {
                self.count("kills");
                self.crash(at)?;
            }
        }
        Ok(())
    }

    /// Somebody drains a node, or ends that; of each shard one node at least is left that may own it.
    fn drain(&mut self) {
        let at = self.rng.below(self.cluster.processes.len());
        let name = |at: usize| format!("n{at}");
        let first = at / self.nodes * self.nodes;
        let nodes: Vec<String> = (first..first + self.nodes).map(name).collect();
        let drains = !self.drained.contains(&name(at));
        if drains && self.drained.others(&name(at), &nodes).is_empty() {
            return;
        }
        self.count(if drains { "nodes drained" } else { "drains undone" });
        self.drained.set(&name(at), drains);
        self.shared.lock().cloud.write(DrainedNodes::KEY, self.drained.encode());
    }

    /// What a process's clients have sent.
    fn news(&mut self, at: usize) -> Vec<(ConnectionId, bool)> {
        let Some(life) = self.cluster.processes[at].as_ref().map(|it| it.life) else {
            return Vec::new();
        };
        let mut news = Vec::new();
        for client in self.cluster.connected.iter().filter(|it| (it.process, it.life) == (at, life))
        {
            let mut state = client.pipe.state();
            if core::mem::take(&mut state.news) {
                news.push((client.id, state.client_ended));
            }
        }
        news
    }

    /// A process has a turn: its thread for the replica and its server, in any order.
    fn turn(&mut self, at: usize) -> Result<Option<ProcessEnd>, String> {
        let now = self.cluster.now;
        let server_first = self.rng.chance(50);
        for drives in [!server_first, server_first] {
            let end = if drives {
                self.cluster.processes[at].as_mut().and_then(|it| it.drive(now))
            } else {
                let news = self.news(at);
                let Some(process) = &mut self.cluster.processes[at] else { return Ok(None) };
                let served = process.serves();
                let end = process.go_on(now, &news)?;
                let serves = process.serves();
                match (served, serves) {
                    (false, true) => {
                        self.count("owners");
                    }
                    (true, false) => self.count("owners that give up"),
                    _ => {}
                }
                end
            };
            if end.is_some() {
                return Ok(end);
            }
        }
        Ok(None)
    }

    fn step(&mut self) -> Result<(), String> {
        self.cluster.now += STEP;
        let now = self.cluster.now;
        {
            let common = &mut *self.shared.lock();
            common.now = now;
            common.serve();
        }
        self.links.step(&mut self.cluster.processes, &mut self.rng, now);
        let mut order: Vec<usize> = (0..self.cluster.processes.len()).collect();
        self.rng.shuffle(&mut order);
        for at in order {
            let Some(process) = &mut self.cluster.processes[at] else { continue };
            if process.paused > now {
                continue;
            }
            if now.is_multiple_of(LOOK) {
                process.look_at_nodes();
            }
            match self.turn(at)? {
                None => {}
                Some(ProcessEnd::Again(why)) => {
                    self.count(if why.contains("snapshot") {
                        "snapshots loaded"
                    } else {
                        "new beginnings"
                    });
                    let folder = self.end(at);
                    self.start(at, folder)?;
                }
                // An earlier life's writes arrive: it looks as if that lived.
                Some(ProcessEnd::ForGood(why)) if why.contains("another process is node") => {
                    self.count("names taken");
                    let folder = self.end(at);
                    self.start(at, folder)?;
                }
                Some(ProcessEnd::ForGood(why)) => {
                    return Err(format!("at {now}: n{at} stops for good: {why}"));
                }
            }
        }
        self.clients.look(&mut self.history, now)?;
        self.cluster.connected.retain(|client| {
            let state = client.pipe.state();
            state.news || !(state.server_ended || state.client_ended)
        });
        Ok(())
    }

    /// Clients come and go in waves: what arrives late finds a log to which nobody else appends.
    fn draw(&mut self) {
        let now = self.cluster.now;
        if now >= self.wave.1 {
            let most = if self.wave.0 { 2500 } else { 500 };
            self.wave = (!self.wave.0, now + 50 + self.rng.below(most) as u64);
        }
        if self.history.asked.len() > 600 || !(self.wave.0 && self.rng.chance(35)) {
            return;
        }
        for _ in 0..1 + self.rng.below(6) {
            self.clients.ask(&mut self.rng, &mut self.cluster, &mut self.history, now);
        }
    }
}

/// Runs the simulation of a seed; `change` is told its faults first.
///
/// # Errors
/// What was promised was not kept.
pub(super) fn run(
    seed: u64,
    shape: ClusterShape,
    change: &dyn Fn(&mut LogFaults),
) -> Result<Ran, String> {
    let mut world = World::new(seed, shape, change)?;
    let faults = world.shared.lock().faults.clone();
    world.shared.lock().faults = LogFaults { snapshots: faults.snapshots, ..LogFaults::default() };
    world.define()?;
    world.shared.lock().faults = faults;
    let until = world.cluster.now + TROUBLE;
    while world.cluster.now < until {
        world.trouble()?;
        world.draw();
        world.step()?;
    }
    world.finish().map_err(|wrong| world.with_history(wrong))?;
    let seen = world.clients.seen;
    let counts = [
        ("answers", world.history.answers()),
        ("refusals", world.history.refusals()),
        ("connections between owners", world.links.made),
        ("late appends behind a claim", world.shared.lock().cloud.trapped()),
        ("connections that servers end", seen.ended),
        ("clients that hang up", seen.hung_up),
        ("operations of which a server says that nobody knows", seen.unknown),
    ];
    world.seen.extend(counts);
    world.seen.retain(|_, count| *count > 0);
    Ok(Ran { seen: world.seen, asked: world.history.asked })
}
