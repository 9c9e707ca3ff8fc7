//! What those who operate a cluster ask of it, from any machine that reaches its NATS servers.
//!
//! Nothing here speaks to a node: the bucket of owners says who owns what, who lives and who is drained, and takes what nodes are to do. So all of it needs
//! the rights that a node has at NATS, and none at a node.
//!
//! Who is *heard* is seen by waiting: a node writes its key every second, so a key that stays unchanged for a few seconds is one of a node that is away, by
//! whatever clock. Owners' leases are looked at in the same way.

mod backup;
mod create;
mod drain;
mod restore;
mod snapshot;
mod status;

pub use backup::BackupTaken;
pub use create::ClusterCreated;
pub use drain::{DrainOutcome, DrainWish};
pub use restore::RestoredCluster;
pub use snapshot::OrderedSnapshot;
pub use status::{ClusterStatus, LogStatus, NodeStatus, ServerStatus, ShardStatus, SnapshotStatus};

use crate::replicated::{SETTINGS_KEY, SHARDS_KEY, jetstream_settings, read_settings};
use headwater_config::Config;
use headwater_jetstream::{AdminError, BucketEntry, JetStreamAdmin};
use headwater_log::{
    Announcement, DrainedNodes, KnownProcess, Owner, PutOutcome, Revision, SnapshotMark, node_of,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

/// How long the servers may take to be reached, where the settings do not say.
const REACHED_WITHIN: Duration = Duration::from_secs(10);
/// A node that has not written its key for so long is not heard.
const GONE: Duration = Duration::from_secs(5);
/// How long it may take until the bucket can be read again.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// How often the bucket is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Bytes of a snapshot that are sent, or taken, at a time.
const PIECE_BYTES: usize = 256 << 10;
/// How often a write is tried that others have come before.
const TRIES: u32 = 20;
/// How often a key is read that the servers do not give: its stream may be about to have another leader.
const READS: u32 = 5;

/// Why something was not done: a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterError(pub String);

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ClusterError {}

impl From<AdminError> for ClusterError {
    fn from(error: AdminError) -> Self {
        Self(match error {
            AdminError::Missing(what) => format!(
                "the NATS servers have no {what}: is the cluster's name right? A node makes it when it starts, as `headwater cluster create` does"
            ),
            AdminError::Unavailable(why) => why,
        })
    }
}

/// Somebody who operates a cluster.
#[derive(Debug)]
pub struct ClusterAdmin {
    nats: JetStreamAdmin,
}

/// What the bucket says.
#[derive(Clone, Debug, Default)]
struct BucketView {
    /// The owners of shards, of now or before.
    owners: BTreeMap<u32, (Revision, Owner)>,
    nodes: BTreeMap<String, (Revision, Owner)>,
    snapshots: BTreeMap<u32, SnapshotMark>,
    drained: DrainedNodes,
    /// How many shards the cluster has, if that is known.
    count: Option<u32>,
    /// The settings of nodes that are to be the same at all of them.
    settings: BTreeMap<String, BTreeMap<String, String>>,
    /// What processes have announced.
    announced: BTreeMap<String, Announcement>,
    /// Keys that cannot be read: a sentence for each.
    unreadable: Vec<String>,
}

impl BucketView {
    fn of(entries: Vec<BucketEntry>) -> Self {
        let mut view = Self::default();
        for BucketEntry { key, revision, value } in entries {
            if let Err(why) = view.take(&key, revision, &value) {
                view.unreadable
                    .push(format!("key {key} of the bucket of owners cannot be read: {why}"));
            }
        }
        view
    }

    /// Takes what a key says; keys of other uses are passed over.
    fn take(&mut self, key: &str, revision: Revision, value: &[u8]) -> Result<(), String> {
        let owner = || Owner::decode(value).map_err(|bad| bad.to_string());
        if let Some(node) = key.strip_prefix("node.") {
            self.nodes.insert(node.to_owned(), (revision, owner()?));
        } else if let Some(shard) = shard_of(key, "owner.") {
            self.owners.insert(shard, (revision, owner()?));
        } else if let Some(shard) = shard_of(key, "snapshot.") {
            let mark = SnapshotMark::decode(value).map_err(|bad| bad.to_string())?;
            self.snapshots.insert(shard, mark);
        } else if let Some(node) = key.strip_prefix(Announcement::KEYS) {
            self.announced.extend(Announcement::decode(value).map(|it| (node.to_owned(), it)));
        } else if let Some(node) = key.strip_prefix(SETTINGS_KEY) {
            self.settings.insert(node.to_owned(), read_settings(value));
        } else if key == SHARDS_KEY {
            let count = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            self.count = Some(count.ok_or("it is no number")?);
        } else if key == DrainedNodes::KEY {
            let drained = DrainedNodes::decode(revision, value);
            self.drained = drained.map_err(|bad| bad.to_string())?;
        }
        Ok(())
    }

    /// The revisions of what is renewed again and again.
    fn renewed(&self) -> BTreeMap<Renewed, Revision> {
        let nodes = self.nodes.iter().map(|(name, (at, _))| (Renewed::Node(name.clone()), *at));
        let owners = self.owners.iter().filter(|(_, (_, owner))| !owner.released);
        nodes.chain(owners.map(|(shard, (at, _))| (Renewed::Owner(*shard), *at))).collect()
    }

    /// All shards, whether or not somebody has owned them.
    fn shards(&self) -> BTreeSet<u32> {
        self.owners.keys().copied().chain(0..self.count.unwrap_or(1)).collect()
    }

    /// The processes of a node, or the one that is named: each with the revision of its key.
    fn processes(&self, node: &str) -> Vec<(Revision, &Owner)> {
        let of_node = self.nodes.iter().filter(|(name, _)| is_of(name, node));
        of_node.map(|(_, (revision, process))| (*revision, process)).collect()
    }

    /// Nodes that are known, for a sentence.
    fn names(&self) -> String {
        let names: Vec<&str> = self.nodes.keys().map(String::as_str).collect();
        if names.is_empty() { String::from("none") } else { names.join(", ") }
    }
}

/// Whether a process is the one that `node` names, or one of the node's.
fn is_of(process: &str, node: &str) -> bool {
    process == node || node_of(process) == node
}

fn shard_of(key: &str, prefix: &str) -> Option<u32> {
    key.strip_prefix(prefix)?.parse().ok()
}

/// What is renewed again and again by whoever has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Renewed {
    Node(String),
    Owner(u32),
}

/// What the bucket says, and which of it was renewed while it was looked at.
#[derive(Debug)]
struct Watched {
    view: BucketView,
    renewed: BTreeSet<Renewed>,
}

impl Watched {
    fn hears(&self, node: &str) -> bool {
        self.renewed.contains(&Renewed::Node(node.to_owned()))
    }

    /// All processes that are known, with what they have announced.
    fn known(&self) -> Vec<KnownProcess> {
        let process = |(name, (_, owner)): (&String, &(Revision, Owner))| KnownProcess {
            owner: Owner { node: name.clone(), ..owner.clone() },
            announced: self.view.announced.get(name).cloned(),
            is_heard: self.hears(name),
        };
        self.view.nodes.iter().map(process).collect()
    }

    /// The nodes for a shard that are heard.
    fn heard(&self, shard: u32) -> Vec<String> {
        let nodes = self.view.nodes.iter();
        let of_shard = nodes.filter(|(_, (_, node))| u32::from(node.shard) == shard);
        of_shard.map(|(name, _)| name).filter(|node| self.hears(node)).cloned().collect()
    }
}

impl ClusterAdmin {
    /// Connects to the NATS servers of the settings.
    ///
    /// # Errors
    /// The settings name none, or none can be reached.
    pub fn connect(config: &Config) -> Result<Self, ClusterError> {
        config.cluster.check_servers().map_err(|why| ClusterError(why.to_string()))?;
        let mut settings = jetstream_settings(&config.cluster);
        settings.start = settings.start.or(Some(REACHED_WITHIN));
        let nats = JetStreamAdmin::connect(settings);
        let nats = nats.map_err(|why| ClusterError(format!("cluster: {why}")))?;
        Ok(Self { nats })
    }

    fn view(&self) -> Result<BucketView, AdminError> {
        Ok(BucketView::of(self.nats.entries()?))
    }

    /// Looks at the bucket until everything that can be renewed was, or [`GONE`] lies between the first look and the last one that was answered: what is not
    /// seen is not silent.
    fn watch(&self) -> Result<Watched, AdminError> {
        let mut view = self.view()?;
        let first = view.renewed();
        let mut renewed = BTreeSet::new();
        let began = Instant::now();
        let mut looked = Duration::ZERO;
        loop {
            let now = view.renewed();
            // What was not there before has been written since.
            let changed = now.iter().filter(|(what, at)| first.get(what) != Some(at));
            renewed.extend(changed.map(|(what, _)| what.clone()));
            if now.keys().all(|what| renewed.contains(what)) || looked >= GONE {
                return Ok(Watched { view, renewed });
            }
            self.nats.pause(LOOK);
            let asked = began.elapsed();
            match self.view() {
                Ok(next) => (view, looked) = (next, asked),
                Err(why) if asked >= ANSWERED_WITHIN => return Err(why),
                Err(_) => {}
            }
        }
    }

    /// A key of the bucket, also where the bucket has no leader for a moment.
    fn read_key(&self, key: &str) -> Result<(Revision, Vec<u8>), AdminError> {
        for _ in 1..READS {
            if let Ok(entry) = self.nats.entry(key) {
                return Ok(entry);
            }
            self.nats.pause(LOOK);
        }
        self.nats.entry(key)
    }

    /// Writes a key by compare-and-set, as often as others come before: `change` gives the new value of a revision and value, if anything changes. Whether
    /// anything was.
    fn change(
        &self,
        key: &str,
        mut change: impl FnMut(Revision, &[u8]) -> Result<Option<Vec<u8>>, ClusterError>,
    ) -> Result<bool, ClusterError> {
        for _ in 0..TRIES {
            let (revision, value) = self.read_key(key)?;
            let Some(value) = change(revision, &value)? else { return Ok(false) };
            match self.nats.put(key, revision, value) {
                PutOutcome::Written(_) => return Ok(true),
                // If it was written all the same, that is seen when it is read.
                PutOutcome::Refused | PutOutcome::Unknown => self.nats.pause(LOOK),
            }
        }
        Err(ClusterError(format!("key {key} of the bucket of owners cannot be written")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_log::Epoch;

    fn entry(key: &str, revision: u64, value: Vec<u8>) -> BucketEntry {
        BucketEntry { key: key.into(), revision: Revision(revision), value }
    }

    #[test]
    fn what_a_bucket_says_is_read_and_what_cannot_be_is_named() {
        let owner = |released| Owner {
            node: "a".into(),
            address: "a:1".into(),
            shard: 0,
            incarnation: 1,
            epoch: Epoch(3),
            released,
        };
        let mut drained = DrainedNodes::default();
        drained.set("b", true);
        let view = BucketView::of(vec![
            entry("owner.0", 5, owner(false).encode()),
            entry("node.a", 6, owner(false).encode()),
            entry("node.a.b", 7, owner(false).encode()),
            entry("drained", 8, drained.encode()),
            entry("snapshot.0", 9, b"x".to_vec()),
            entry("other", 9, b"x".to_vec()),
        ]);
        assert_eq!(view.names(), "a, a.b");
        assert!(view.drained.contains("b"));
        assert_eq!(view.unreadable.len(), 1);
        assert!(view.unreadable[0].contains("snapshot.0"), "{:?}", view.unreadable);
        assert_eq!(view.renewed().len(), 3);
        // What was given up is renewed by nobody.
        let view = BucketView::of(vec![entry("owner.0", 5, owner(true).encode())]);
        assert!(view.renewed().is_empty());
        assert_eq!(view.shards().into_iter().collect::<Vec<_>>(), [0]);
    }
}
