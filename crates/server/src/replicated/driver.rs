//! The thread that has the replica: it passes on between the shard, the log and the bucket of leases.

use super::ending::{begin_again, stop_for_good};
use super::folder::{self, discard};
use super::formats::{Announcing, FORMATS};
use super::notices::ClusterNotices;
use super::others::{self, OtherOwners};
use super::servers::{NatsServers, Reached, Servers};
use super::snapshots::SnapshotEnds;
use super::standby::{Standby, StandbyStage, StandbyState, StandbyUsers};
use super::{Lease, LinkEnd, MemoryShare, monotonic};
use crate::log::event;
use headwater_config::{Config, ConfigError};
use headwater_jetstream::{JetStreamSettings, NodesSeen, RoomSeen};
use headwater_keep::{Acknowledger, LogMark, LogOrigin, Store};
use headwater_log::{
    AppendWindow, Balance, BalanceWish, BucketAnswer, DrainLook, DrainedNodes, Epoch, FolderFate,
    Heartbeat, LeaseTimes, LogEntry, LogPosition, LogRequest, Monotonic, Owner, Replica,
    ReplicaConfig, ReplicaEffect, ReplicaInput, ReplicaStop, Revision, Sequence, SnapshotEffect,
    SnapshotMark, SnapshotOrder, SnapshotTaken, Snapshots, StopReason, TURN_BYTES_MAX, Turn,
    node_of,
};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;
use tokio::sync::watch;

mod looking_after;
mod publishing;

/// The first tag of the replica's requests: those of the heartbeat, which has the same bucket, are less.
const REPLICA_TAGS: u64 = 1 << 40;
/// The first tag of an owner's requests for snapshots.
const SNAPSHOT_TAGS: u64 = 1 << 50;
/// The first tag of the requests that ask whether the node is drained.
const DRAIN_TAGS: u64 = 1 << 55;
/// The first tags of the requests about other shards: at the start, and from then on.
const AGREEING_TAGS: u64 = 1 << 56;
const OTHERS_TAGS: u64 = 1 << 57;
/// The first tag of those by which a node tells its settings.
const SETTINGS_TAGS: u64 = 1 << 58;
/// The first tag of those by which it announces its formats.
const FORMATS_TAGS: u64 = 1 << 59;
/// The first tag of the requests of a node that loads a snapshot.
const LOADING_TAGS: u64 = 1 << 60;
/// The replica is told the time this often, at least.
const TICK: Duration = Duration::from_millis(20);
/// How often leases, nodes and snapshots are looked after where appends come all the time, in milliseconds.
const LOOK_AFTER: u64 = 5;
/// How often the shard is told that it may not answer, in milliseconds.
const LAPSED_WAKE: u64 = 1000;
/// How often a node that stands by reads the log, in milliseconds.
const FOLLOW_MILLIS: u64 = 50;

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Told {
    /// An answer is there.
    Wake,
    /// The shard has executed a turn, which ends with this operation.
    Append { last: u64, turn: Vec<u8> },
    /// The server has its store.
    Serves(Acknowledger),
    /// The server has ended: others may have the shard. Answered when they know.
    Release(Sender<()>),
    /// A snapshot was stored, or that has failed.
    Taken(SnapshotTaken),
}

/// What the thread says.
pub(super) enum Event {
    /// This node owns the shard; the folder has all that is acknowledged, up to this place.
    Owns(Store, Option<LogMark>),
}

/// Where clients may be forwarded to: the owner of a shard, of whichever they ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OwnerSeen {
    pub(super) address: String,
    pub(super) shard: u16,
    pub(super) epoch: Epoch,
}

/// What the thread has in common with others: the lease, what the process may take, and what is told over HTTP until the server does.
pub(super) type DriverShared = (Arc<Lease>, MemoryShare, (Standby, Option<StandbyUsers>));

/// What the thread has.
pub(super) struct Driver {
    servers: Box<dyn Servers>,
    /// Who is in the cluster.
    pub(super) nodes: NodesSeen,
    /// Whether the NATS servers have room for what is written.
    pub(super) room: RoomSeen,
    heartbeat: Heartbeat,
    drain: DrainLook,
    announcing: Announcing,
    others: OtherOwners,
    /// Which node should own the shard, where there are several shards, and whether this one gives it up for that.
    balance: Option<Balance>,
    balances: bool,
    /// When it began, and for how long others should own the shard from then on.
    begun: Monotonic,
    recovers_millis: u64,
    /// What that said last, and when.
    placed: (Monotonic, BalanceWish),
    /// What the server needs for the owners of other shards.
    pub(super) links: LinkEnd,
    replica: Replica,
    node: Owner,
    /// The owner of this shard, if that is another node.
    owner: Option<Owner>,
    /// What the key of the owner had when it was looked at last, and since when.
    owner_seen: (Revision, Monotonic),
    /// What is told over HTTP until the server does, and who may ask.
    standby: Standby,
    users: Option<StandbyUsers>,
    notices: ClusterNotices,
    shard: u32,
    stream: String,
    snapshots: Snapshots,
    told: Sender<Told>,
    folder: PathBuf,
    /// What the folder is to name as its log, when that is known to be its.
    unnamed: Option<LogOrigin>,
    /// The folder, until the server has it.
    copy: Option<Store>,
    store: Option<Acknowledger>,
    /// Where the last record of data ends that the folder has, or is about to have.
    followed: Option<LogMark>,
    /// Turns under way, each with its last operation.
    appended: VecDeque<(Turn, u64)>,
    lease: Arc<Lease>,
    /// What the process may take, and what that was when the server was woken for it last.
    memory: (MemoryShare, Option<u64>),
    releasing: Option<Sender<()>>,
    /// When the shard was woken last for its lease's sake.
    woken: Monotonic,
    /// When leases, nodes and snapshots were looked after last.
    looked_after: Monotonic,
    /// Whether the NATS servers could be reached then.
    connected: bool,
    /// Whether the node was drained when that was last logged.
    drained: bool,
    /// It was logged that the shard is given up for the sake of balance.
    moves: bool,
}

impl Driver {
    /// Over the NATS servers of the settings.
    pub(super) fn new(
        config: &Config,
        settings: JetStreamSettings,
        (copy, folder): (Store, PathBuf),
        told: Sender<Told>,
        shared: DriverShared,
    ) -> Result<Self, ConfigError> {
        let reached = NatsServers::reach(settings, config.cluster.shard().into(), &told)?;
        Self::over(config, reached, (copy, folder), told, shared)
    }

    /// Over these servers.
    pub(super) fn over(
        config: &Config,
        reached: Reached,
        (copy, folder): (Store, PathBuf),
        told: Sender<Told>,
        (lease, memory, (standby, users)): DriverShared,
    ) -> Result<Self, ConfigError> {
        let (cluster, shards) = (&config.cluster, config.listen.shards.number());
        let shard = u32::from(cluster.shard());
        let Reached { mut servers, nodes, room, origin, message_bytes_max, incarnation } = reached;
        let stream = origin.stream.clone();
        let (made_anew, unnamed) = folder::compare(&folder, origin, copy.log_mark().is_some())
            .map_err(|why| ConfigError(format!("data-dir '{}': {why}", folder.display())))?;
        let bucket = servers.bucket();
        let secret = others::agree(bucket, AGREEING_TAGS, (cluster, shards))?;
        super::settings::tell(bucket, SETTINGS_TAGS, config);
        let (others, owners) = OtherOwners::new(cluster.shard(), shards, OTHERS_TAGS);
        let known = others.known();
        let links = LinkEnd { secret, owners, known };
        let balance = (shards > 1).then(|| Balance::new(&cluster.cluster_node, cluster.shard()));
        let (balances, recovers_millis) =
            (cluster.cluster_balance, cluster.recovers_seconds.saturating_mul(1000));
        let node = Owner {
            node: cluster.cluster_node.clone(),
            address: cluster.cluster_advertise.clone(),
            incarnation,
            epoch: Epoch(0),
            shard: cluster.shard(),
            released: false,
        };
        let announcing = Announcing::begin(bucket, FORMATS_TAGS, &node);
        let times = LeaseTimes::default();
        let window = AppendWindow { message_bytes_max, ..AppendWindow::default() };
        let config = ReplicaConfig {
            stream: stream.clone(),
            key: others::owner_key(shard),
            node: node.clone(),
            times,
            window,
            follow_millis: FOLLOW_MILLIS,
            made_anew,
            records: FORMATS.records,
        };
        let from = copy.log_mark().map_or(LogPosition::default(), |mark| LogPosition {
            sequence: Sequence(mark.sequence),
            checksum: mark.checksum,
        });
        Ok(Self {
            servers,
            nodes,
            room,
            heartbeat: Heartbeat::new(node.clone(), times, 0),
            drain: DrainLook::new(&node.node, times, DRAIN_TAGS),
            announcing,
            others,
            balance,
            balances,
            begun: monotonic(),
            recovers_millis,
            placed: (Monotonic(0), BalanceWish { keeps: true, defer_millis: 0 }),
            links,
            replica: Replica::new(config, from, REPLICA_TAGS),
            node,
            owner: None,
            owner_seen: (Revision(0), Monotonic(0)),
            standby,
            users,
            notices: ClusterNotices::default(),
            shard,
            stream,
            snapshots: Snapshots::new(
                shard,
                cluster.cluster_snapshot_bytes,
                times.answer_millis,
                SNAPSHOT_TAGS,
            ),
            told,
            folder,
            unnamed,
            followed: copy.log_mark(),
            copy: Some(copy),
            store: None,
            appended: VecDeque::new(),
            lease,
            memory: (memory, None),
            releasing: None,
            woken: Monotonic(0),
            looked_after: Monotonic(0),
            connected: true,
            drained: false,
            moves: false,
        })
    }

    /// Has records of older epochs count.
    #[cfg(test)]
    pub(super) fn believe_all(&mut self) {
        self.replica.believe_all();
    }

    /// Where the last record of data ends that the folder has, or is about to have.
    #[cfg(test)]
    pub(super) fn followed(&self) -> Option<LogMark> {
        self.followed
    }

    /// Runs until the process ends.
    pub(super) fn run(
        mut self,
        tells: &Receiver<Told>,
        says: &Sender<Event>,
        owners: &watch::Sender<Vec<OwnerSeen>>,
    ) {
        self.standby.enter(StandbyStage::Follows);
        loop {
            let first = tells.recv_timeout(TICK).ok();
            self.turn(first.into_iter().chain(tells.try_iter()), says, owners);
        }
    }

    /// One time round: what was told, what has been answered, and time.
    pub(super) fn turn(
        &mut self,
        told: impl Iterator<Item = Told>,
        says: &Sender<Event>,
        owners: &watch::Sender<Vec<OwnerSeen>>,
    ) {
        let now = monotonic();
        let mut effects = Vec::new();
        let mut is_due = now.since(self.looked_after) >= LOOK_AFTER;
        for told in told {
            is_due |= !matches!(told, Told::Wake | Told::Append { .. });
            self.hear(told, now, &mut effects);
        }
        while let Some(answer) = self.servers.log().receive() {
            self.replica.handle(ReplicaInput::Log(answer), now, &mut effects);
        }
        let mut has_heard = false;
        while let Some(answer) = self.servers.bucket().receive() {
            has_heard = true;
            self.hear_bucket(answer, now, &mut effects);
        }
        if has_heard {
            self.say_owners(owners);
        }
        // Whatever becomes of the shard is told at once.
        is_due |= has_heard || effects.iter().any(changes_owner);
        if is_due {
            self.look_after(now, &mut effects);
        }
        for effect in effects {
            self.follow(effect, says);
        }
        self.name_log();
        if is_due {
            self.publish();
            self.note_standby(owners, now);
        }
    }

    /// An answer of the bucket has come, to whichever part of the driver has asked.
    fn hear_bucket(
        &mut self,
        answer: BucketAnswer,
        now: Monotonic,
        effects: &mut Vec<ReplicaEffect>,
    ) {
        if let Err(why) = self.heartbeat.answered(&answer, now) {
            stop_for_good(&why.to_string());
        }
        self.look_whether_drained(&answer, now);
        self.look_who_owns(&answer, now);
        self.others.answered(&answer, now);
        let asks = self.announcing.answered(&answer);
        asks.into_iter().for_each(|request| self.servers.bucket().send(request));
        let known = (self.servers.extent(), self.replica.position());
        for effect in self.snapshots.answered(&answer, known, now) {
            self.snapshot(effect);
        }
        self.replica.handle(ReplicaInput::Bucket(answer), now, effects);
    }

    /// The record that the folder ends with was found in the log: it names the log from now on.
    fn name_log(&mut self) {
        if self.replica.has_confirmed()
            && let Some(log) = self.unnamed.take()
            && let Err(why) = log.write(&self.folder)
        {
            stop_for_good(&format!("the folder cannot be written: {why}"));
        }
    }

    /// Notes what is told over HTTP, as long as the node stands by.
    fn note_standby(&mut self, owners: &watch::Sender<Vec<OwnerSeen>>, now: Monotonic) {
        let Some(copy) = &self.copy else { return };
        let times = LeaseTimes::default();
        let since = self.owner_seen.1;
        let owner_is_heard = self.owner.is_some() && now.since(since) < times.claim_millis;
        let is_another = |it: &OwnerSeen| u32::from(it.shard) != self.shard;
        let facts = StandbyState {
            owner: self.owner.as_ref().map(|owner| (owner.epoch.0, since)),
            owner_is_heard,
            forwards: owner_is_heard || owners.borrow().iter().any(is_another),
            read: self.replica.read_last(),
            at_end: self.replica.was_at_end(),
            lag_records: self.replica.lag_records(),
            writes: self.heartbeat.writable_since().is_some(),
            drained: self.drained,
        };
        let unready = self.standby.note(facts, now);
        self.notices.of_standby(unready.as_deref(), owner_is_heard, now);
        if let Some(users) = &mut self.users {
            users.look(copy, self.followed, now);
        }
    }

    fn hear(&mut self, told: Told, now: Monotonic, effects: &mut Vec<ReplicaEffect>) {
        match told {
            Told::Wake => {}
            Told::Append { last, turn } => {
                if turn.len() > TURN_BYTES_MAX {
                    // Whoever reads such a record stops for good, so it is never written.
                    self.stop_answering(&too_long(turn.len()));
                }
                if let Some(turn) = self.replica.append(0, &turn, now, effects) {
                    self.appended.push_back((turn, last));
                }
            }
            Told::Serves(store) => self.store = Some(store),
            Told::Release(done) => {
                self.lease.answers_until.store(0, Ordering::Release);
                self.releasing = Some(done);
                self.replica.release(now, effects);
            }
            Told::Taken(taken) => {
                let counter = match taken {
                    SnapshotTaken::Stored(_) => Some(&self.lease.snapshots_taken),
                    SnapshotTaken::Nothing => None,
                    SnapshotTaken::Failed => Some(&self.lease.snapshots_failed),
                };
                counter.into_iter().for_each(|counter| _ = counter.fetch_add(1, Ordering::Relaxed));
                let effect = self.snapshots.taken(taken, now);
                effect.into_iter().for_each(|effect| self.snapshot(effect));
            }
        }
    }

    fn snapshot(&mut self, effect: SnapshotEffect) {
        match effect {
            SnapshotEffect::Bucket(request) => self.servers.bucket().send(request),
            SnapshotEffect::Take { above } => match &self.store {
                Some(store) => {
                    let ends = SnapshotEnds { above, has: self.followed };
                    let told = self.told.clone();
                    self.servers.take(store, (self.node.incarnation, ends), told);
                }
                None => drop(self.told.send(Told::Taken(SnapshotTaken::Failed))),
            },
            SnapshotEffect::Purge { below } => self.servers.log().send(LogRequest::Purge { below }),
            SnapshotEffect::Sweep { below } => self.servers.sweep(below),
            SnapshotEffect::Unreadable(bad) => {
                let why = format!(
                    "key {} of the bucket cannot be read: {bad}",
                    SnapshotMark::key(self.shard)
                );
                event!(warn, "cluster", "snapshot_failed", why);
            }
            SnapshotEffect::UnreadableOrder(bad) => {
                let why = format!(
                    "key {} of the bucket cannot be read: {bad}",
                    SnapshotOrder::key(self.shard)
                );
                event!(warn, "cluster", "snapshot_failed", why);
            }
        }
    }

    /// The log begins behind what the folder has: the folder is made anew of the newest snapshot.
    fn load(&mut self, stop: &StopReason) -> ! {
        self.standby.enter(StandbyStage::Loads);
        // The store is closed with it.
        if self.copy.take().is_none() {
            stop_for_good(&stop.to_string());
        }
        let named = (LOADING_TAGS, &*SnapshotMark::key(self.shard));
        match self.servers.load(named, &self.folder) {
            Ok(_) => begin_again(
                "a snapshot was loaded, since the log begins behind what the folder had",
            ),
            Err(why) => stop_for_good(&format!("{stop}; {why}")),
        }
    }

    /// Learns from an answer whether this node is drained.
    fn look_whether_drained(&mut self, answer: &BucketAnswer, now: Monotonic) {
        if let Err(bad) = self.drain.answered(answer, now) {
            // Nobody's data is in danger: who owns goes on to, and others that know may.
            let why = format!("key {} of the bucket cannot be read: {bad}", DrainedNodes::KEY);
            event!(warn, "cluster", "drained_unknown", why);
        }
        let drained = self.drain.is_drained();
        if self.drained != drained {
            self.drained = drained;
            match drained {
                true => event!(info, "cluster", "drained", "the node owns nothing from now on"),
                false => event!(info, "cluster", "undrained", "the node may own again"),
            }
        }
    }

    /// Learns from an answer to the replica's looking at the key who owns this shard.
    fn look_who_owns(&mut self, answer: &BucketAnswer, now: Monotonic) {
        let BucketAnswer::Get { tag, entry: Some((revision, value)) } = answer else { return };
        if !(REPLICA_TAGS..SNAPSHOT_TAGS).contains(tag) {
            return;
        }
        if self.owner_seen.0 != *revision {
            self.owner_seen = (*revision, now);
        }
        let found = (*revision != Revision(0)).then(|| Owner::decode(value).ok()).flatten();
        self.owner = found.filter(|found| !found.released && found.node != self.node.node);
    }

    /// Says where clients may be forwarded to: to a process of this node first, which is the shortest way, then to the shard's owner, then to any
    /// other. Each of them answers for all keys.
    fn say_owners(&self, owners: &watch::Sender<Vec<OwnerSeen>>) {
        let mut found: Vec<Owner> = self.others.holding(LeaseTimes::default());
        found.extend(self.owner.clone());
        let node = node_of(&self.node.node);
        let place = |owner: &Owner| (node_of(&owner.node) != node, owner.shard != self.node.shard);
        found.sort_by_key(place);
        let seen = |owner: Owner| OwnerSeen {
            address: owner.address,
            shard: owner.shard,
            epoch: owner.epoch,
        };
        let found: Vec<OwnerSeen> = found.into_iter().map(seen).collect();
        owners.send_if_modified(|before| {
            let differs = *before != found;
            *before = found;
            differs
        });
    }

    /// Nothing more is answered of what is not acknowledged: the process begins anew.
    fn stop_answering(&self, why: &str) -> ! {
        self.lease.answers_until.store(0, Ordering::Release);
        begin_again(why)
    }

    fn follow(&mut self, effect: ReplicaEffect, says: &Sender<Event>) {
        match effect {
            ReplicaEffect::Log(request) => self.servers.log().send(request),
            ReplicaEffect::Bucket(request) => self.servers.bucket().send(request),
            ReplicaEffect::Apply(LogEntry::Claim { .. }) => {}
            ReplicaEffect::Apply(LogEntry::Data { payload, position, .. }) => {
                // Behind a release the folder is the next process's.
                let Some(copy) = &self.copy else { return };
                self.followed = Some(mark(position));
                if let Err(why) = copy.follow(&payload, mark(position)) {
                    let (stream, sequence) = (&self.stream, position.sequence.0);
                    stop_for_good(&format!("message {sequence} of stream {stream}: {why}"));
                }
            }
            ReplicaEffect::Serve(epoch) => {
                let Some(copy) = self.copy.take() else {
                    begin_again("the log was claimed once more")
                };
                self.lease.epoch.store(epoch.0, Ordering::Release);
                drop(says.send(Event::Owns(copy, self.followed)));
            }
            ReplicaEffect::Leave => {
                self.lease.leaves.store(true, Ordering::Release);
                self.store.iter().for_each(Acknowledger::wake);
            }
            ReplicaEffect::Acknowledged { turn, position } => {
                let mut last = None;
                while self.appended.front().is_some_and(|next| next.0 <= turn) {
                    last = self.appended.pop_front().map(|(_, last)| last);
                }
                if let (Some(last), Some(store)) = (last, &self.store) {
                    store.acknowledged(last, mark(position));
                    self.followed = Some(mark(position));
                }
            }
            // The process begins anew by itself, or ends, as soon as others know that they may have the shard. Whatever its log has come to meanwhile (the next owner
            // may have let go of what this one has not read) is for whoever opens the folder next.
            ReplicaEffect::Stop(_) | ReplicaEffect::Halt(_) if self.releasing.is_some() => {}
            ReplicaEffect::Stop(_) => self.stop_answering(
                "the node owns the shard no more: its lease is lost, or the log has not acknowledged what it appended",
            ),
            ReplicaEffect::Halt(ReplicaStop::Log(stop)) => match stop.folder() {
                FolderFate::Reloads => self.load(&stop),
                FolderFate::Discarded { sequence } => {
                    self.standby.enter(StandbyStage::Loads);
                    discard(self.copy.take(), (&self.folder, &self.stream), &stop, sequence)
                }
                FolderFate::Stays => stop_for_good(&stop.to_string()),
            },
            ReplicaEffect::Halt(stop) => stop_for_good(&stop.to_string()),
        }
    }
}

/// Why the owner begins anew behind a turn that no record can have.
fn too_long(bytes: usize) -> String {
    format!(
        "a transaction, or another command, wrote {bytes} bytes, and a record of the log has at most {TURN_BYTES_MAX}: nothing of it was done"
    )
}

/// Whether an effect is about who owns the shard, and not about its data alone.
fn changes_owner(effect: &ReplicaEffect) -> bool {
    use ReplicaEffect::{Acknowledged, Apply, Log};
    !matches!(effect, Log(_) | Apply(LogEntry::Data { .. }) | Acknowledged { .. })
}

fn mark(position: LogPosition) -> LogMark {
    LogMark { sequence: position.sequence.0, checksum: position.checksum }
}
