//! One process of a node: its thread for the replica, and the server where it owns its shard. What happens to it is said by others.

use super::super::clock::simulated as clock;
use super::super::driver::{Driver, Event, Told};
use super::super::ending::ProcessEnd;
use super::super::forward::ClientKeeper;
use super::super::servers::Reached;
use super::super::standby::Standby;
use super::super::{Lease, MemoryShare, OwnerSeen, ReplicaEnd};
use super::servers::{Shared, SimulatedServers};
use crate::connection::ConnectionId;
use crate::keeping;
use crate::reactor::Reactor;
use crate::resp::ShardService;
use crate::service::{Service, Time};
use crate::shards::links::LinkedOwner;
use crate::shards::{Shards, Transport};
use headwater_base::{Millis, Shard};
use headwater_config::{Config, ConfigError, NodeShards, ShardCount};
use headwater_jetstream::{NodesSeen, RoomSeen};
use headwater_keep::{LogMark, LogOrigin, Store};
use headwater_log::Monotonic;
use headwater_model::rng::Rng;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The time of day at which simulations begin.
const BEGIN: u64 = 1_800_000_000_000;
/// The uptime of servers at their beginning: later than what the true clock said while they were made.
const BEGIN_UPTIME: u64 = 600_000;
/// How long what is under way may take where a server ends, and how long it waits for the log, and for others to know that they may have the shard.
const REST: u64 = 1000;
const SETTLE: u64 = 60_000;
const RELEASE: u64 = 2000;
/// How long the threads of a process may take to leave its folder, in real time.
const LEAVES: Duration = Duration::from_secs(20);

/// A server that owns its shard.
pub(super) struct Serving {
    pub(super) reactor: Reactor<ShardService>,
    pub(super) transport: Option<Arc<Transport>>,
}

/// What a process is about.
pub(super) enum Stage {
    /// It follows the log.
    StandsBy,
    /// It owns the shard, and becomes the server at this time.
    Begins(u64),
    /// It is the server.
    Serves(Box<Serving>),
    /// It gives the shard up: what is under way comes to its end, from this time on. Others are told twice, as a loop does that comes to rest.
    Rests(Box<Serving>, u64, bool),
    /// The log is to have everything.
    Settles(Box<Serving>, u64),
    /// Others are to know that they may have the shard.
    Releases(Receiver<()>, u64),
}

/// A process.
pub(super) struct Process {
    pub(super) index: usize,
    pub(super) shard: u16,
    pub(super) life: u64,
    /// Speed of its clock in percent, where that began, and how far its time of day is from the true one.
    speed: u64,
    offset: u64,
    ahead: u64,
    /// It does nothing until then.
    pub(super) paused: u64,
    pub(super) folder: PathBuf,
    config: Config,
    shared: Shared,
    nodes: NodesSeen,
    driver: Driver,
    told: Sender<Told>,
    tells: Receiver<Told>,
    says: Sender<Event>,
    events: Receiver<Event>,
    owners: watch::Sender<Vec<OwnerSeen>>,
    pub(super) end: ReplicaEnd,
    followed: Option<LogMark>,
    pub(super) stage: Stage,
}

/// A process of a shard of so many, in one of its lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessLife {
    pub(super) index: usize,
    pub(super) shard: u16,
    pub(super) shards: u16,
    pub(super) life: u64,
}

fn config_of(which: ProcessLife, folder: &Path, snapshot_bytes: u64) -> Config {
    let mut config = Config::default();
    config.listen.bind = Vec::new();
    config.listen.shards = ShardCount::Number(which.shards);
    config.cluster.cluster_nats = String::from("simulated");
    config.cluster.cluster_node = format!("n{}", which.index);
    config.cluster.cluster_advertise = format!("n{}:7379", which.index);
    config.cluster.cluster_shard = NodeShards::One(which.shard);
    config.cluster.cluster_snapshot_bytes = snapshot_bytes;
    config.data.data_dir = folder.to_string_lossy().into_owned();
    config.data.data_plain = true;
    config
}

impl Process {
    /// A process begins, with what its folder has.
    pub(super) fn start(
        which: ProcessLife,
        folder: PathBuf,
        shared: &Shared,
        rng: &mut Rng,
    ) -> Result<Self, String> {
        let ProcessLife { index, shard, life, .. } = which;
        let (speed, offset) = (92 + rng.below(17) as u64, rng.below(1_000_000) as u64);
        let clocks_apart = shared.lock().clocks_apart as usize;
        let snapshot_bytes = shared.lock().faults.snapshots.div_ceil(10) as u64;
        let config = config_of(which, &folder, snapshot_bytes);
        let (told, tells) = channel();
        let (says, events) = channel();
        let (owners, _) = watch::channel(Vec::new());
        let lease = Arc::<Lease>::default();
        let memory = MemoryShare::default();
        let why = |why: ConfigError| format!("n{index} does not begin: {why}");
        let (standby, _) = Standby::begin(&config, &mut Vec::new()).map_err(why)?;
        let copy = open_when_free(&config).map_err(why)?;
        let copy_folder = keeping::copy_folder(&config).map_err(why)?;
        let servers = SimulatedServers {
            shared: shared.clone(),
            asker: (index, life),
            shard: shard.into(),
            log_answers: VecDeque::new(),
            bucket_answers: VecDeque::new(),
        };
        let nodes = NodesSeen::default();
        let reached = Reached {
            servers: Box::new(servers),
            nodes: nodes.clone(),
            room: RoomSeen::default(),
            origin: LogOrigin { stream: format!("HW_sim_{shard}"), created: 1 },
            message_bytes_max: shared.lock().message_bytes_max,
            incarnation: life * 100 + index as u64,
        };
        let now = shared.lock().now;
        clock::set(Monotonic(offset + now * speed / 100));
        shared.lock().at_once = true;
        let kept = (lease.clone(), memory.clone(), (standby.clone(), None));
        let driver = Driver::over(&config, reached, (copy, copy_folder), told.clone(), kept);
        shared.lock().at_once = false;
        let mut driver = driver.map_err(why)?;
        if super::BELIEVES_ALL.get() {
            driver.believe_all();
        }
        let door = ClientKeeper::nowhere();
        let end = ReplicaEnd::of(&driver, shard, told.clone(), (lease, memory, standby), door);
        Ok(Self {
            index,
            shard,
            life,
            speed,
            offset,
            ahead: rng.below(clocks_apart) as u64,
            paused: now,
            folder,
            config,
            shared: shared.clone(),
            nodes,
            driver,
            told,
            tells,
            says,
            events,
            owners,
            end,
            followed: None,
            stage: Stage::StandsBy,
        })
    }

    pub(super) fn clock(&self, now: u64) -> Monotonic {
        Monotonic(self.offset + now * self.speed / 100)
    }

    /// The server, if it is one that takes clients.
    pub(super) fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.stage {
            Stage::Serves(serving) => Some(serving),
            _ => None,
        }
    }

    /// Whether it is a server that takes clients.
    pub(super) fn serves(&self) -> bool {
        matches!(self.stage, Stage::Serves(_))
    }

    /// The server, as long as it has turns.
    pub(super) fn server(&mut self) -> Option<&mut Serving> {
        match &mut self.stage {
            Stage::Serves(serving) | Stage::Rests(serving, ..) | Stage::Settles(serving, _) => {
                Some(serving)
            }
            _ => None,
        }
    }

    /// Whether something waits for the owner of another shard.
    pub(super) fn awaits_owners(&mut self) -> bool {
        let shards = self.server().and_then(|it| it.reactor.service.others.shards.as_ref());
        shards.is_some_and(|shards| shards.departures.awaits_owners())
    }

    /// Whether it may answer now.
    pub(super) fn may_answer(&self, now: u64) -> bool {
        clock::set(self.clock(now));
        self.end.may_answer()
    }

    /// The owner of another shard, as far as it knows.
    pub(super) fn linked_owner(&self, shard: u16) -> Option<LinkedOwner> {
        self.end.links.owners.borrow().get(usize::from(shard)).cloned().flatten()
    }

    /// The place of the log up to which its folder has, or is about to have, everything.
    pub(super) fn followed(&self) -> Option<LogMark> {
        self.driver.followed()
    }

    /// The thread of the replica has a turn; how the process ends, if it does.
    pub(super) fn drive(&mut self, now: u64) -> Option<ProcessEnd> {
        clock::set(self.clock(now));
        let Self { driver, tells, says, owners, .. } = self;
        let turn = || driver.turn(tells.try_iter(), says, owners);
        match catch_unwind(AssertUnwindSafe(turn)) {
            Ok(()) => None,
            Err(end) => match end.downcast::<ProcessEnd>() {
                Ok(end) => Some(*end),
                Err(panic) => resume_unwind(panic),
            },
        }
    }

    /// It is looked who is in the cluster.
    pub(super) fn look_at_nodes(&self) {
        let (nodes, known) = self.shared.lock().look();
        self.nodes.set(nodes, known);
    }

    /// What lies beyond the thread of the replica: a server begins, has a turn, ends.
    pub(super) fn go_on(
        &mut self,
        now: u64,
        clients: &[(ConnectionId, bool)],
    ) -> Result<Option<ProcessEnd>, String> {
        clock::set(self.clock(now));
        let time = Time {
            wall: Millis(BEGIN + self.ahead + now),
            uptime: BEGIN_UPTIME + now * self.speed / 100,
        };
        keeping::clock::simulated::WALL.set(Some(time.wall));
        match core::mem::replace(&mut self.stage, Stage::StandsBy) {
            Stage::StandsBy => {
                if let Ok(Event::Owns(copy, followed)) = self.events.try_recv() {
                    self.end.keep_recent(copy);
                    self.followed = followed;
                    let common = &mut *self.shared.lock();
                    self.stage = Stage::Begins(now + common.rng.below(300) as u64);
                }
            }
            Stage::Begins(at) if at > now => self.stage = Stage::Begins(at),
            Stage::Begins(_) => self.stage = Stage::Serves(Box::new(self.begin()?)),
            Stage::Serves(mut serving) => {
                has_turn(&mut serving.reactor, time, clients);
                self.stage = match serving.reactor.service.stopping() {
                    None => Stage::Serves(serving),
                    Some(_) => {
                        serving.reactor.simulate_coming_to_rest();
                        Stage::Rests(serving, now, false)
                    }
                };
            }
            Stage::Rests(mut serving, since, again) => {
                has_turn(&mut serving.reactor, time, clients);
                let is_late = now >= since + REST;
                self.stage = if serving.reactor.simulate_is_underway() && !is_late {
                    Stage::Rests(serving, since, again)
                } else if !again && !is_late {
                    serving.reactor.simulate_coming_to_rest();
                    Stage::Rests(serving, since, true)
                } else {
                    serving.reactor.service.stopped();
                    Stage::Settles(serving, now)
                };
            }
            Stage::Settles(mut serving, since) => {
                has_turn(&mut serving.reactor, time, &[]);
                let writes = serving.reactor.service.durable_writes();
                if writes.last > writes.durable && now < since + SETTLE {
                    self.stage = Stage::Settles(serving, since);
                } else {
                    drop(serving);
                    let (done, waits) = channel();
                    drop(self.told.send(Told::Release(done)));
                    self.stage = Stage::Releases(waits, now);
                }
            }
            Stage::Releases(done, since) => {
                if done.try_recv().is_ok() || now >= since + RELEASE {
                    return Ok(Some(ProcessEnd::Again(String::from("it has given the shard up"))));
                }
                self.stage = Stage::Releases(done, since);
            }
        }
        Ok(None)
    }

    /// The server of the shard that it owns.
    fn begin(&self) -> Result<Serving, String> {
        let why = |why: ConfigError| format!("n{} does not serve: {why}", self.index);
        keeping::check_copy(&self.config, self.followed).map_err(why)?;
        let shards = self.config.listen.shards.number();
        let transport = (shards > 1).then(|| Transport::apart(Shard(self.shard), shards, 1));
        let known = transport
            .as_ref()
            .map(|transport| Shards::of_epoch(Shard(self.shard), transport, self.end.epoch()));
        let service =
            ShardService::behind(self.config.clone(), known, None, Some(self.end.clone()));
        let mut reactor =
            Reactor::beside(&self.config, service.map_err(why)?, Vec::new()).map_err(why)?;
        if transport.is_none() {
            reactor.service.find_unfinished().map_err(why)?;
        }
        Ok(Serving { reactor, transport })
    }
}

/// A server has a turn, and as many more as its disk needs: what that does without the log's doing is done at once.
fn has_turn(reactor: &mut Reactor<ShardService>, time: Time, clients: &[(ConnectionId, bool)]) {
    // What the log has acknowledged meanwhile lets the disk go on.
    let _waited = has_answers(&reactor.service);
    reactor.simulate_turn(time, clients);
    while has_answers(&reactor.service) {
        reactor.simulate_turn(time, &[]);
    }
}

/// Waits for what the disk has to answer, if there is something.
fn has_answers(service: &ShardService) -> bool {
    let answered =
        service.stores.keeping.as_ref().map_or(0, keeping::EmbeddedStore::loads_answered);
    service.stores.hub.inbox.simulate_answers(answered)
}

/// Opens a folder that threads of the process before may still be about to leave: they have real time.
fn open_when_free(config: &Config) -> Result<Store, ConfigError> {
    let began = Instant::now();
    loop {
        match keeping::open_copy(config) {
            Err(why) if why.0.contains("another process uses") && began.elapsed() < LEAVES => {
                std::thread::sleep(Duration::from_millis(2));
            }
            opened => return opened,
        }
    }
}
