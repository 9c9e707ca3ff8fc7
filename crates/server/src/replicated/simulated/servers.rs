//! The servers that keep logs and bucket, as one process reaches them: those of the room `sim`, with what it may do to requests and answers.

use super::super::driver::Told;
use super::super::servers::Servers;
use super::super::snapshots::{self, SnapshotEnds};
use headwater_keep::{Acknowledger, LogMark, restore_copy};
use headwater_log::{
    Announcement, Bucket, BucketAnswer, BucketRequest, KnownProcess, Log, LogAnswer, LogExtent,
    LogRequest, Owner, Revision, Sequence, SnapshotMark, SnapshotTaken,
};
use headwater_model::rng::Rng;
use headwater_sim::replicated::{Answered, Asked, Asker, Cloud, LogFaults};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A node that has not written its name for so long is not there.
const GONE: u64 = 5000;

/// A snapshot that is on its way to the servers.
struct Storing {
    /// When that ends; `false`: it fails.
    ends: (u64, bool),
    asker: Asker,
    shard: usize,
    mark: SnapshotMark,
    bytes: Vec<u8>,
    told: Sender<Told>,
}

/// What all processes of a cluster share.
pub(super) struct Common {
    pub(super) rng: Rng,
    pub(super) cloud: Cloud,
    pub(super) faults: LogFaults,
    pub(super) now: u64,
    /// A process begins: it is answered at once.
    pub(super) at_once: bool,
    /// What a message of a log may have at most.
    pub(super) message_bytes_max: usize,
    /// How far the times of day of two processes are apart, at most, in milliseconds.
    pub(super) clocks_apart: u64,
    /// Snapshots of shards that are stored, by their names.
    objects: BTreeMap<(usize, String), Vec<u8>>,
    storing: Vec<Storing>,
    /// Names in the bucket: the revision that was seen last, since when, and whether it has changed.
    seen: BTreeMap<String, (Revision, u64, bool)>,
}

/// What all processes of a cluster share, for one of them.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Common>>);

impl Shared {
    pub(super) fn new(rng: Rng, faults: LogFaults, cloud: Cloud) -> Self {
        Self(Arc::new(Mutex::new(Common {
            rng,
            cloud,
            faults,
            now: 0,
            at_once: false,
            message_bytes_max: 300,
            clocks_apart: 400,
            objects: BTreeMap::new(),
            storing: Vec::new(),
            seen: BTreeMap::new(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Common> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Common {
    /// The servers do what has arrived.
    pub(super) fn serve(&mut self) {
        self.cloud.serve(&mut self.rng, &self.faults, self.now);
        let (done, rest) =
            core::mem::take(&mut self.storing).into_iter().partition(|it| it.ends.0 <= self.now);
        self.storing = rest;
        for Storing { ends, shard, mark, bytes, told, .. } in done {
            let taken = if ends.1 {
                self.objects.insert((shard, mark.object.clone()), bytes);
                SnapshotTaken::Stored(mark)
            } else {
                SnapshotTaken::Failed
            };
            drop(told.send(Told::Taken(taken)));
        }
    }

    /// A process has ended, and with it what it was storing.
    pub(super) fn forget(&mut self, asker: Asker) {
        self.storing.retain(|it| it.asker != asker);
    }

    /// Who is in the cluster, and all that are known, as a look shows it.
    pub(super) fn look(&mut self) -> (Vec<Owner>, Vec<KnownProcess>) {
        let (mut nodes, mut known) = (Vec::new(), Vec::new());
        let announced: BTreeMap<String, Vec<u8>> = self
            .cloud
            .entries()
            .filter_map(|(key, _, value)| {
                Some((key.strip_prefix(Announcement::KEYS)?.to_owned(), value.to_vec()))
            })
            .collect();
        let now = self.now;
        for (key, revision, value) in self.cloud.entries() {
            let Some(name) = key.strip_prefix("node.") else { continue };
            let Ok(owner) = Owner::decode(value) else { continue };
            let entry = self.seen.entry(name.to_owned()).or_insert((revision, now, false));
            if entry.0 != revision {
                *entry = (revision, now, true);
            }
            let is_there = now - entry.1 < GONE;
            if is_there {
                nodes.push(owner.clone());
            }
            let announced = announced.get(name).and_then(|value| Announcement::decode(value));
            known.push(KnownProcess { owner, announced, is_heard: is_there && entry.2 });
        }
        (nodes, known)
    }
}

/// The servers, as one process reaches them.
pub(super) struct SimulatedServers {
    pub(super) shared: Shared,
    pub(super) asker: Asker,
    pub(super) shard: usize,
    pub(super) log_answers: VecDeque<LogAnswer>,
    pub(super) bucket_answers: VecDeque<BucketAnswer>,
}

impl SimulatedServers {
    fn ask(&self, asked: Asked) {
        let Common { rng, cloud, faults, now, .. } = &mut *self.shared.lock();
        cloud.send(rng, faults, *now, self.asker, asked);
    }

    /// Takes what has arrived.
    fn hear(&mut self) {
        let Common { cloud, now, .. } = &mut *self.shared.lock();
        while let Some(answer) = cloud.arrived(*now, self.asker) {
            match answer {
                Answered::Log(answer) => self.log_answers.push_back(answer),
                Answered::Bucket(answer) => self.bucket_answers.push_back(answer),
            }
        }
    }
}

impl Log for SimulatedServers {
    fn send(&mut self, request: LogRequest) {
        self.ask(Asked::Log(request));
    }

    fn receive(&mut self) -> Option<LogAnswer> {
        self.hear();
        self.log_answers.pop_front()
    }
}

impl Bucket for SimulatedServers {
    fn send(&mut self, request: BucketRequest) {
        let mut common = self.shared.lock();
        if common.at_once {
            let answer = common.cloud.bucket_at_once(request);
            self.bucket_answers.push_back(answer);
            return;
        }
        drop(common);
        self.ask(Asked::Bucket(request));
    }

    fn receive(&mut self) -> Option<BucketAnswer> {
        self.hear();
        self.bucket_answers.pop_front()
    }
}

impl Servers for SimulatedServers {
    fn log(&mut self) -> &mut dyn Log {
        self
    }

    fn bucket(&mut self) -> &mut dyn Bucket {
        self
    }

    fn is_connected(&self) -> bool {
        let common = self.shared.lock();
        // Some notice at once that they are cut off, others by waiting in vain.
        self.asker.1.is_multiple_of(2) || common.cloud.cut_off[self.asker.0] <= common.now
    }

    fn extent(&self) -> LogExtent {
        self.shared.lock().cloud.extent(self.shard)
    }

    fn sweep(&self, below: Sequence) {
        let goes = |name: &String| {
            SnapshotMark::sequence_of(name).is_some_and(|sequence| sequence < below)
        };
        let objects = &mut self.shared.lock().objects;
        objects.retain(|(shard, name), _| *shard != self.shard || !goes(name));
    }

    /// What is read out of the folder does not take simulated time; that it is stored does.
    fn take(&self, store: &Acknowledger, (taker, ends): (u64, SnapshotEnds), told: Sender<Told>) {
        let read = || -> Result<Option<(SnapshotMark, Vec<u8>)>, String> {
            let Some((position, reader)) = snapshots::begin(store, ends)? else { return Ok(None) };
            let mut all = Vec::new();
            while let Some(bytes) = snapshots::next(&reader)? {
                all.extend(bytes);
            }
            let object = SnapshotMark::object_of(position.sequence, taker);
            // How much a store says to have does not belong to the simulation.
            let bytes = 100;
            Ok(Some((SnapshotMark { position, bytes, object }, all)))
        };
        match read() {
            Ok(Some((mark, bytes))) => {
                let common = &mut *self.shared.lock();
                let slow = if common.rng.chance(30) { 8000 } else { 300 };
                let at = common.now + common.rng.below(slow) as u64;
                let ends = (at, common.rng.below(1000) >= common.faults.lost);
                let (asker, shard) = (self.asker, self.shard);
                common.storing.push(Storing { ends, asker, shard, mark, bytes, told });
            }
            Ok(None) => drop(told.send(Told::Taken(SnapshotTaken::Nothing))),
            Err(_) => drop(told.send(Told::Taken(SnapshotTaken::Failed))),
        }
    }

    fn load(&mut self, (_, key): (u64, &str), folder: &Path) -> Result<Sequence, String> {
        let common = self.shared.lock();
        let value = common.cloud.value_of(key).ok_or("no snapshot is named")?;
        let mark = SnapshotMark::decode(value).map_err(|bad| bad.to_string())?;
        let object = common.objects.get(&(self.shard, mark.object.clone()));
        let mut bytes = &**object.ok_or_else(|| format!("{} is not there", mark.object))?;
        let (sequence, checksum) = (mark.position.sequence, mark.position.checksum);
        restore_copy(folder, &mut bytes, LogMark { sequence: sequence.0, checksum })
            .map_err(|why| why.to_string())?;
        Ok(sequence)
    }
}
