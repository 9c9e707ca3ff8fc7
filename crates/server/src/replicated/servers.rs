//! The servers of a cluster, as the thread of a node reaches them: NATS servers, or those of a simulation.

use super::driver::Told;
use super::snapshots::{self, SnapshotEnds};
use headwater_config::ConfigError;
use headwater_jetstream::{
    JetStream, JetStreamBucket, JetStreamLog, JetStreamSettings, JetStreamSnapshots, NodesSeen,
    RoomSeen, Wake,
};
use headwater_keep::{Acknowledger, LogOrigin};
use headwater_log::{Bucket, Log, LogExtent, Sequence};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// What a node asks of them.
pub(super) trait Servers: Send {
    /// The log of its shard.
    fn log(&mut self) -> &mut dyn Log;
    /// The bucket of all shards.
    fn bucket(&mut self) -> &mut dyn Bucket;
    /// Whether one can be reached.
    fn is_connected(&self) -> bool;
    /// How much of the log they had a moment ago.
    fn extent(&self) -> LogExtent;
    /// Removes snapshots that end before this place.
    fn sweep(&self, below: Sequence);
    /// Begins to store a snapshot of what the folder has; [`Told::Taken`] says how that ended.
    fn take(&self, store: &Acknowledger, of: (u64, SnapshotEnds), told: Sender<Told>);
    /// Makes the folder a copy of the snapshot that a key of the bucket names; gives the last record that it has.
    fn load(&mut self, named: (u64, &str), folder: &Path) -> Result<Sequence, String>;
}

/// Servers, and what a node knows of them when it begins.
pub(super) struct Reached {
    pub(super) servers: Box<dyn Servers>,
    pub(super) nodes: NodesSeen,
    pub(super) room: RoomSeen,
    /// The log of the node's shard.
    pub(super) origin: LogOrigin,
    pub(super) message_bytes_max: usize,
    /// What tells this life of the node from all others.
    pub(super) incarnation: u64,
}

/// NATS servers.
pub(super) struct NatsServers {
    // The connection lives as long as this.
    _nats: JetStream,
    log: JetStreamLog,
    bucket: JetStreamBucket,
    snapshots: JetStreamSnapshots,
}

impl NatsServers {
    /// Connects. Whenever they answer, that is told.
    ///
    /// # Errors
    /// They cannot be reached, or are not to be trusted.
    pub(super) fn reach(
        settings: JetStreamSettings,
        shard: u32,
        told: &Sender<Told>,
    ) -> Result<Reached, ConfigError> {
        let refuse =
            |why: headwater_jetstream::JetStreamError| ConfigError(format!("cluster: {why}"));
        let stream = settings.stream(shard);
        let nats = JetStream::connect(settings).map_err(refuse)?;
        let (nodes, room) = (nats.nodes(), nats.room().map_err(refuse)?);
        let tells = told.clone();
        let wake: Wake = Arc::new(move || drop(tells.send(Told::Wake)));
        let log = nats.log(shard, wake.clone()).map_err(refuse)?;
        let origin = LogOrigin { stream, created: log.created() };
        let (bucket, snapshots) = (nats.bucket(wake), nats.snapshots(shard));
        let message_bytes_max = nats.message_bytes_max();
        let servers = Box::new(Self { _nats: nats, log, bucket, snapshots });
        let incarnation = RandomState::new().hash_one(1);
        Ok(Reached { servers, nodes, room, origin, message_bytes_max, incarnation })
    }
}

impl Servers for NatsServers {
    fn log(&mut self) -> &mut dyn Log {
        &mut self.log
    }

    fn bucket(&mut self) -> &mut dyn Bucket {
        &mut self.bucket
    }

    fn is_connected(&self) -> bool {
        self.log.is_connected()
    }

    fn extent(&self) -> LogExtent {
        self.snapshots.extent()
    }

    fn sweep(&self, below: Sequence) {
        self.snapshots.sweep(below);
    }

    fn take(&self, store: &Acknowledger, of: (u64, SnapshotEnds), told: Sender<Told>) {
        snapshots::take(store, self.snapshots.clone(), of, told);
    }

    fn load(&mut self, named: (u64, &str), folder: &Path) -> Result<Sequence, String> {
        snapshots::load(&mut self.bucket, &self.snapshots, named, folder)
    }
}
