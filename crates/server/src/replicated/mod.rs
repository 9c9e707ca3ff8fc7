//! A node of a cluster: one that owns the shard executes, the others stand by.
//!
//! All nodes follow the shard's log, which NATS JetStream keeps, and apply what is acknowledged there to the folders of their own. One has the
//! lease: it runs the server, gives each turn's writes to the log first, and lets nothing out before the log has acknowledged all that it may show.
//! The others forward their clients' connections to it, byte for byte, or to the owner of another shard, who answers for all. When the owner is gone, another one takes the lease, has the log read to
//! its end, and becomes the server.
//!
//! `headwater_log` decides all of that and says why it is right. Here are its thread (`driver`), what the program tells of its formats (`formats`), the snapshots of its folder (`snapshots`), the door of a node that stands by (`forward`, over TLS `encrypted`, to owners `reaching`), what it tells over HTTP (`standby`), and what the
//! server asks ([`ReplicaEnd`]).
//!
//! # Invariants
//! - N1. Nothing leaves the server that may show a write which the log has not acknowledged, nor anything at all when the lease is too old:
//!   [`DurableWrites`](crate::service::DurableWrites) says both, and is asked behind the execution, before bytes go out.
//! - N2. What an owner has in memory may be void once it has stopped owning. So it begins anew, as another process would: from its
//!   folder, which has acknowledged writes alone.

mod clock;
mod driver;
mod encrypted;
mod ending;
mod folder;
mod formats;
mod forward;
mod linked;
mod memory;
mod notices;
mod others;
mod reaching;
mod servers;
mod settings;
#[cfg(test)]
pub(crate) mod simulated;
mod snapshots;
mod standby;
mod upstream;

pub(crate) use formats::FORMATS;
pub(crate) use linked::LinkedShard;
pub use memory::MemoryShare;
pub(crate) use others::{KnownOwners, SHARDS_KEY, owner_key};
pub(crate) use settings::{SETTINGS_KEY, read as read_settings};
pub(crate) use standby::{LEASE_AGE, Standby, owner_metric};

use crate::handover::Inherited;
use crate::log::{self, event};
use crate::shards::links::{LinkedOwners, Secret};
use crate::signals::{self, EndSignals};
use crate::{Server, descriptors, keeping};
use clock::monotonic;
#[cfg(test)]
use driver::OwnerSeen;
use driver::{Driver, Event, Told};
use forward::{ClientKeeper, Forwarding, can_greet};
use headwater_config::{Cluster, Config, ConfigError, Size};
use headwater_jetstream::{JetStreamSettings, NodesSeen, RoomSeen};
use headwater_keep::{Acknowledger, LogMark, RecentWrites, Store, TurnLog};
use headwater_log::Epoch;
use rustix::process::Signal;
use signal_hook_mio::v1_0::Signals;
use standby::StandbyStage;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// How long the end waits for NATS to know that others may have the shard.
const RELEASE: Duration = Duration::from_secs(2);
/// How long a process that begins anew waits for the last answers over HTTP, and how often it looks.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
const LAST_LOOK: Duration = Duration::from_millis(5);

/// Why writes are refused while a NATS server is nearly full.
const NO_ROOM: &str = "a NATS server has hardly any room left for JetStream: purge or remove streams there, or raise max_file_store";

/// W4 of the log: why writes are refused while the servers do not answer.
const NO_QUORUM: &str = "the log takes no records: is there a quorum of the NATS servers, which this node reaches? Nothing was done; reads go on until the lease is over";

/// How often a node that stands by looks whether a signal has come.
const SIGNALS_LOOK: Duration = Duration::from_millis(100);

/// What threads know of the lease.
#[derive(Debug, Default)]
struct Lease {
    /// Until when answers may go out, by this machine's clock in milliseconds; 0: none may.
    answers_until: AtomicU64,
    /// The epoch in which this node owns the shard; 0: it has not.
    epoch: AtomicU64,
    /// Whether the servers do not answer, so that nothing more is to be appended.
    silent: AtomicBool,
    /// Whether this node is to give the shard up, for now or because it is drained: its server ends in the orderly way.
    leaves: AtomicBool,
    /// Whether it has been asked to end (SHUTDOWN), and so is not to begin anew.
    ends: AtomicBool,
    /// When the last renewal was sent that has succeeded; 0: none has.
    renewed: AtomicU64,
    /// Bytes and records that were appended and are not acknowledged.
    unacknowledged_bytes: AtomicU64,
    unacknowledged_records: AtomicU64,
    /// Snapshots that this owner has stored, and that it has failed to.
    snapshots_taken: AtomicU64,
    snapshots_failed: AtomicU64,
    /// Bytes that the log had a moment ago.
    log_bytes: AtomicU64,
}

/// What is known of the node that owns the shard.
#[derive(Clone, Debug)]
pub(crate) struct LeaseStats {
    /// The shard.
    pub(crate) shard: u16,
    /// The epoch in which it owns the shard.
    pub(crate) epoch: u64,
    /// How long it may answer without another renewal, in milliseconds.
    pub(crate) answers_millis: u64,
    /// How long ago the last renewal was sent that has succeeded, in milliseconds.
    pub(crate) age_millis: u64,
    /// Bytes that were appended to the log and are not acknowledged.
    pub(crate) unacknowledged_bytes: u64,
    /// The records that they are.
    pub(crate) unacknowledged_records: u64,
    /// Bytes that the log had a moment ago.
    pub(crate) log_bytes: u64,
    /// Snapshots that this owner has stored.
    pub(crate) snapshots_taken: u64,
    /// Snapshots that it has failed to store.
    pub(crate) snapshots_failed: u64,
    /// Which part of its room the fullest NATS server has left; `None`: that is not known.
    pub(crate) nats_left: Option<f64>,
    /// The other shards, and whether they have owners, as far as that is known.
    pub(crate) others: Vec<(u16, bool)>,
}

/// What the server needs for the owners of other shards.
#[derive(Clone, Debug)]
pub(crate) struct LinkEnd {
    /// What owners prove to one another that they know.
    pub(crate) secret: Secret,
    /// Who they are.
    pub(crate) owners: watch::Receiver<LinkedOwners>,
    /// The same, for clients.
    pub(crate) known: KnownOwners,
}

/// The server's end of its replica.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaEnd {
    shard: u16,
    lease: Arc<Lease>,
    told: Sender<Told>,
    nodes: NodesSeen,
    room: RoomSeen,
    /// What is said where there is no room, and no quorum.
    no_room: Arc<str>,
    no_quorum: Arc<str>,
    links: LinkEnd,
    memory: MemoryShare,
    standby: Standby,
    /// The door at which this node had clients before it owned the shard: they are clients of this server now.
    door: ClientKeeper,
    /// What the next process has of this one, when it has ended.
    left: Arc<Mutex<Inherited>>,
    /// Whether the server accepts no more clients, so that they wait for the next process.
    closing: Arc<watch::Sender<bool>>,
    /// What was written last, from the store that followed the log for the one of the server.
    recent: Arc<Mutex<RecentWrites>>,
}

impl ReplicaEnd {
    /// That of a thread.
    fn of(
        driver: &Driver,
        shard: u16,
        told: Sender<Told>,
        (lease, memory, standby): (Arc<Lease>, MemoryShare, Standby),
        door: ClientKeeper,
    ) -> Self {
        Self {
            shard,
            lease,
            told,
            nodes: driver.nodes.clone(),
            room: driver.room.clone(),
            no_room: Arc::from(NO_ROOM),
            no_quorum: Arc::from(NO_QUORUM),
            links: driver.links.clone(),
            memory,
            standby,
            door,
            left: Arc::default(),
            closing: Arc::default(),
            recent: Arc::default(),
        }
    }

    /// N1: whether answers may go out now.
    pub(crate) fn may_answer(&self) -> bool {
        monotonic().0 < self.lease.answers_until.load(Ordering::Acquire)
    }

    /// What nodes prove to one another that they know.
    pub(crate) fn secret(&self) -> &Secret {
        &self.links.secret
    }

    /// The shard and the epoch in which this process owns it.
    pub(crate) fn owned(&self) -> (u16, u64) {
        (self.shard, self.epoch())
    }

    /// Has this node keep the clients that the server is about to part with, where the process begins anew.
    pub(crate) fn keep_clients(&self) {
        if self.leaves() {
            self.door.keep();
        }
    }

    /// The next process has these sockets, if there is one.
    pub(crate) fn leave(&self, left: Inherited) {
        let mut all = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        all.listeners.extend(left.listeners);
        all.clients.extend(left.clients);
    }

    /// The next process listens where this socket does, if there is one.
    pub(crate) fn leave_open(&self, listener: BorrowedFd<'_>) {
        // Where there is no descriptor for it, the next process binds the address.
        if let Ok(again) = listener.try_clone_to_owned() {
            let mut all = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            all.listeners.push(again.into());
        }
    }

    /// Says that no more clients are accepted.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Waits a moment until those are answered who were accepted before.
    fn await_last_answers(&self) {
        let began = Instant::now();
        while self.closing.receiver_count() > 0 && began.elapsed() < LAST_ANSWERS {
            std::thread::sleep(LAST_LOOK);
        }
    }

    /// Whether that is so, from now on.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Why writes are refused, if they are: renewals of the lease need room as well, or nobody could answer.
    pub(crate) fn refusal(&self) -> Option<Arc<str>> {
        if self.is_silent() {
            return Some(self.no_quorum.clone());
        }
        self.room.is_short().then(|| self.no_room.clone())
    }

    /// Whether the servers take nothing, as far as this node knows.
    pub(crate) fn is_silent(&self) -> bool {
        self.lease.silent.load(Ordering::Relaxed)
    }

    /// Whether the server is to end, because the node gives the shard up.
    pub(crate) fn leaves(&self) -> bool {
        self.lease.leaves.load(Ordering::Acquire)
    }

    /// The process ends with its server, also where it is to give the shard up meanwhile.
    pub(crate) fn end(&self) {
        self.lease.ends.store(true, Ordering::Release);
    }

    /// Closes the store of the node that stood by, and keeps what was written last.
    fn keep_recent(&self, copy: Store) {
        *self.recent.lock().unwrap_or_else(PoisonError::into_inner) = copy.take_recent();
    }

    /// Takes what was written last when the store of the node that stood by was closed.
    pub(crate) fn take_recent(&self) -> RecentWrites {
        core::mem::take(&mut *self.recent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the process has told over HTTP until now.
    pub(crate) fn standby(&self) -> &Standby {
        &self.standby
    }

    /// What of its node's memory the process may take.
    pub(crate) fn memory(&self) -> &MemoryShare {
        &self.memory
    }

    /// The server ends in the orderly way, and the process begins anew with what is in the log by then.
    pub(crate) fn begin_anew(&self) {
        self.lease.leaves.store(true, Ordering::Release);
    }

    /// What those who operate the cluster look at.
    pub(crate) fn facts(&self) -> LeaseStats {
        let until = self.lease.answers_until.load(Ordering::Acquire);
        let (now, renewed) = (monotonic().0, self.lease.renewed.load(Ordering::Relaxed));
        let others = (0..self.links.known.shards()).filter(|shard| *shard != self.shard);
        LeaseStats {
            shard: self.shard,
            epoch: self.epoch(),
            answers_millis: until.saturating_sub(now),
            age_millis: now.saturating_sub(renewed),
            unacknowledged_records: self.lease.unacknowledged_records.load(Ordering::Relaxed),
            unacknowledged_bytes: self.lease.unacknowledged_bytes.load(Ordering::Relaxed),
            log_bytes: self.lease.log_bytes.load(Ordering::Relaxed),
            snapshots_taken: self.lease.snapshots_taken.load(Ordering::Relaxed),
            snapshots_failed: self.lease.snapshots_failed.load(Ordering::Relaxed),
            nats_left: self.room.part_left(),
            others: others.map(|shard| (shard, self.is_owned(shard))).collect(),
        }
    }

    /// The epoch in which this node owns the shard.
    pub(crate) fn epoch(&self) -> u64 {
        self.lease.epoch.load(Ordering::Acquire)
    }

    /// The nodes for a shard that are there, its owner first, as far as that is known: their names and addresses.
    pub(crate) fn nodes(&self, shard: u16) -> Vec<(String, String)> {
        let owner = self.links.known.of(shard);
        let of_shard = self.nodes.all().into_iter().filter(|node| node.shard == shard);
        let others = of_shard.map(|node| (node.node, node.address));
        let is_other = |node: &(String, String)| owner.as_ref().is_none_or(|it| it.0 != node.0);
        owner.iter().cloned().chain(others.filter(is_other)).collect()
    }

    /// The epoch of another shard's owner; 0: none is known.
    pub(crate) fn epoch_of(&self, shard: u16) -> u64 {
        self.links.known.epoch(shard)
    }

    /// Whether another shard has an owner, as far as that is known.
    pub(crate) fn is_owned(&self, shard: u16) -> bool {
        self.links.known.of(shard).is_some()
    }

    /// Where turns go.
    pub(crate) fn turn_log(&self) -> Box<dyn TurnLog> {
        Box::new(self.clone())
    }

    /// What the log acknowledges is told to this store from now on.
    pub(crate) fn tells(&self, store: Acknowledger) {
        drop(self.told.send(Told::Serves(store)));
    }
}

impl TurnLog for ReplicaEnd {
    fn append(&mut self, last: u64, turn: Vec<u8>) {
        // Where its thread has ended nothing is acknowledged any more.
        drop(self.told.send(Told::Append { last, turn }));
    }
}

/// How the settings say that NATS is reached.
pub(crate) fn jetstream_settings(cluster: &Cluster) -> JetStreamSettings {
    let file = |path: &String| (!path.is_empty()).then(|| PathBuf::from(path));
    let files = (file(&cluster.cluster_cert_file), file(&cluster.cluster_key_file));
    JetStreamSettings {
        servers: cluster.cluster_nats.clone(),
        cluster: cluster.cluster_name.clone(),
        credentials: file(&cluster.cluster_credentials),
        tls_ca: file(&cluster.cluster_ca_cert_file),
        tls_identity: Option::zip(files.0, files.1),
        tls_required: false,
        monitoring: cluster.cluster_monitoring.clone(),
        unsafe_sync: cluster.cluster_unsafe_sync,
        replicas: cluster.cluster_replicas,
        start: match cluster.cluster_start_seconds {
            0 => None,
            seconds => Some(Duration::from_secs(seconds)),
        },
    }
}

/// This process as a node of its cluster.
pub struct ClusterNode {
    end: ReplicaEnd,
    events: Receiver<Event>,
    /// Where the folder must end.
    followed: Option<LogMark>,
    forwarding: Option<Forwarding>,
    /// Where clients were forwarded from, for the server.
    listeners: Vec<TcpListener>,
    /// SIGHUP, which would end a process that does not hear of it.
    signals: Signals,
    /// SIGHUP has come: the settings are to be read again.
    is_to_reload: bool,
    /// What ends the process for good, from when the server has been bound.
    ends: Option<EndSignals>,
}

impl ClusterNode {
    /// Joins the cluster that the settings name: follows the log from where the folder ends, and forwards clients to the owner, those that it has inherited
    /// first. What the process may take of its node's memory may change at any time.
    ///
    /// # Errors
    /// A setting cannot be, NATS cannot be reached or is not to be trusted, the folder is no copy of the log, or the port is taken.
    pub fn join(
        config: &Config,
        memory: MemoryShare,
        mut inherited: Inherited,
    ) -> Result<Self, ConfigError> {
        let signals = signals::listen(&[Signal::HUP])?;
        let mut config = config.clone();
        crate::shards::settle(&mut config)?;
        config.read_secrets()?;
        config.check()?;
        if config.has_shard_processes() {
            let shards = config.listen.shards;
            return Err(ConfigError(format!(
                "the folder has copies of {shards} shards (allowed: --shards {shards}, and --cluster-shard where the node is for one of them)"
            )));
        }
        let settings = jetstream_settings(&config.cluster);
        if let Some(warning) = descriptors::provide_for_forwarding(&mut config) {
            event!(warn, "server", "lowered", warning, "a setting was lowered");
        }
        let (standby, users) = Standby::begin(&config, &mut inherited.listeners)?;
        let store = keeping::open_copy(&config)?;
        let (told, tells) = channel();
        let (says, events) = channel();
        let (lease, tells_end) = (Arc::<Lease>::default(), told.clone());
        let (says_owners, owners) = watch::channel(Vec::new());
        let folder = keeping::copy_folder(&config)?;
        let (shared, share) = ((lease.clone(), memory.clone(), (standby.clone(), users)), memory);
        let driver = Driver::new(&config, settings, (store, folder), told, shared)?;
        let (inner, inners) = mpsc::unbounded_channel();
        let secret = driver.links.secret;
        let ways = (inners, standby.tls_door(&config));
        let forwarding = Forwarding::start(&config, owners, secret, inherited, ways)?;
        // Nobody else sets where clients of HTTP are passed on.
        let _set = standby.door.set(can_greet(&config).then_some(inner));
        let (shared, door) = ((lease, share, standby), forwarding.keeper());
        let end = ReplicaEnd::of(&driver, config.cluster.shard(), tells_end, shared, door);
        let run = move || driver.run(&tells, &says, &says_owners);
        let thread = std::thread::Builder::new().name(String::from("replica")).spawn(run);
        thread.map_err(|why| ConfigError(format!("no thread for the log: {why}")))?;
        let (cluster, node) = (&*config.cluster.cluster_name, &*config.cluster.cluster_node);
        event!(
            info,
            "cluster",
            "stands_by",
            cluster,
            node,
            "the node follows the log, and forwards its clients"
        );
        Ok(Self {
            end,
            events,
            followed: None,
            forwarding: Some(forwarding),
            listeners: Vec::new(),
            signals,
            is_to_reload: false,
            ends: None,
        })
    }

    /// Where clients are forwarded from: those that speak RESP, memcached's protocol, and both over TLS.
    #[must_use]
    pub fn addresses(&self) -> [Vec<SocketAddr>; 4] {
        self.forwarding.as_ref().map(|it| it.addresses.clone()).unwrap_or_default()
    }

    /// Where it speaks HTTP, if it does.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.end.standby.http()
    }

    /// Where it speaks HTTP over TLS.
    #[must_use]
    pub fn https_addresses(&self) -> &[SocketAddr] {
        self.end.standby.https()
    }

    /// Waits until this node owns the shard. Its clients are the server's from then on, and the folder is free for that.
    ///
    /// # Errors
    /// The thread of the log has ended.
    pub fn until_owner(&mut self) -> Result<(), ConfigError> {
        let Event::Owns(copy, followed) = loop {
            if self.signals.pending().next().is_some() {
                log::reopen();
                self.end.standby.reload_certificates();
                self.is_to_reload = true;
            }
            match self.events.recv_timeout(SIGNALS_LOOK) {
                Ok(event) => break event,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ConfigError(String::from("the thread of the log has ended")));
                }
            }
        };
        event!(
            info,
            "cluster",
            "owns",
            "the node has the lease, and all of the log: it becomes the server"
        );
        self.end.standby.enter(StandbyStage::Begins);
        self.end.keep_recent(copy);
        self.followed = followed;
        if let Some(forwarding) = &mut self.forwarding {
            self.listeners = forwarding.owns(Epoch(self.end.epoch()));
        }
        Ok(())
    }

    /// The server of the shard that this node owns.
    ///
    /// # Errors
    /// As for [`Server::bind`].
    pub fn bind(&mut self, mut config: Config) -> Result<Server, ConfigError> {
        // The log has all keys, or a node that takes over would lack some.
        config.data.data_plain = true;
        if let Some(bytes) = self.end.memory.bytes() {
            config.memory.max = Size(bytes);
        }
        self.end.standby.hand_on_ports(&mut config, &self.addresses());
        keeping::check_copy(&config, self.followed)?;
        let listeners = core::mem::take(&mut self.listeners);
        let server = Server::bind_behind(config, Some(self.end.clone()), listeners)?;
        // From here on these signals have the server end, which forgets them then.
        self.ends = Some(EndSignals::new()?);
        Ok(server)
    }

    /// Lets another node have the shard at once.
    pub fn release(&self) {
        let (done, waits) = channel();
        drop(self.end.told.send(Told::Release(done)));
        // Who is not heard is waited for by the others, as long as a lease lasts.
        let _in_time = waits.recv_timeout(RELEASE);
    }

    /// Whether the settings were to be read again while this node stood by.
    #[must_use]
    pub fn is_to_reload(&self) -> bool {
        self.is_to_reload
    }

    /// Lets another node have the shard at once; for when the server has ended. A node that gives it up because it is drained goes on, as a process that
    /// begins anew and stands by, and so does one that begins anew for its definitions' sake; any other is to end then.
    pub fn leave(mut self) {
        self.release();
        let mut is_to_end = self.end.lease.ends.load(Ordering::Acquire)
            || self.ends.as_mut().is_some_and(EndSignals::came);
        if self.end.leaves() && !is_to_end {
            self.end.await_last_answers();
            let left = &mut *self.end.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.clients.extend(self.forwarding.take().into_iter().flat_map(Forwarding::leave));
            // Meanwhile one may have come.
            is_to_end = self.ends.as_mut().is_some_and(EndSignals::came);
            if is_to_end {
                return;
            }
            ending::begin_again_with(
                "the node is drained, has left the shard to another one, or has taken over definitions: it has given the shard up, and stands by",
                left,
            );
        }
    }
}
