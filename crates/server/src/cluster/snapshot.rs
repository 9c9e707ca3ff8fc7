//! A snapshot that is stored now, instead of when the log is long enough.

use super::{ClusterAdmin, ClusterError, LOOK};
use crate::replicated::owner_key;
use headwater_log::{Owner, Revision, Sequence, SnapshotMark, SnapshotOrder};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// A snapshot that was ordered, and is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedSnapshot {
    /// The last sequence of the log that it contains.
    pub sequence: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl ClusterAdmin {
    /// The shards of the cluster.
    ///
    /// # Errors
    /// There is no such cluster.
    pub fn shards(&self) -> Result<Vec<u32>, ClusterError> {
        Ok(self.view()?.shards().into_iter().collect())
    }

    /// Has the owner of a shard store a snapshot of everything that is acknowledged now, and waits until it is the newest one that the bucket names. `None`: the
    /// shard has no data yet.
    ///
    /// # Errors
    /// Nobody owns the shard, or it takes too long.
    pub fn snapshot(
        &self,
        shard: u32,
        within: Duration,
    ) -> Result<Option<OrderedSnapshot>, ClusterError> {
        // Where the bucket is not there at all, that is what is wrong.
        self.view()?;
        let began = Instant::now();
        let key = SnapshotOrder::key(shard);
        let id = RandomState::new().hash_one(1);
        let mut ordered = Revision(0);
        self.change(&key, |revision, value| {
            // A write whose outcome was not known may have been carried out.
            ordered = revision;
            let is_own = match SnapshotOrder::decode(value) {
                Ok(SnapshotOrder::Wanted { id: found } | SnapshotOrder::Done { id: found, .. }) => {
                    found == id
                }
                Err(_) => false,
            };
            Ok((!is_own).then(|| SnapshotOrder::Wanted { id }.encode()))
        })?;
        loop {
            let (revision, value) = self.read_key(&key)?;
            let order = SnapshotOrder::decode(&value).ok().filter(|_| revision > ordered);
            // What is done for a later order has what this one is about as well.
            if let Some(SnapshotOrder::Done { sequence, .. }) = order {
                return self.named(shard, sequence);
            }
            if began.elapsed() >= within {
                return Err(self.why_late(shard, within));
            }
            self.nats.pause(LOOK);
        }
    }

    /// The snapshot that the bucket names: the one with everything up to this sequence, or a later one.
    fn named(
        &self,
        shard: u32,
        sequence: Sequence,
    ) -> Result<Option<OrderedSnapshot>, ClusterError> {
        if sequence == Sequence(0) {
            return Ok(None);
        }
        let mark = self.newest_snapshot(shard)?;
        let sequence = mark.position.sequence.0;
        Ok(Some(OrderedSnapshot { sequence, bytes: mark.bytes }))
    }

    /// The snapshot of a shard that the bucket names.
    pub(super) fn newest_snapshot(&self, shard: u32) -> Result<SnapshotMark, ClusterError> {
        let key = SnapshotMark::key(shard);
        let (_, value) = self.read_key(&key)?;
        SnapshotMark::decode(&value).map_err(|bad| {
            ClusterError(format!("key {key} of the bucket of owners cannot be read: {bad}"))
        })
    }

    fn why_late(&self, shard: u32, within: Duration) -> ClusterError {
        let seconds = within.as_secs();
        let owner = self.nats.entry(&owner_key(shard)).ok();
        let owner = owner.and_then(|(_, value)| Owner::decode(&value).ok());
        let who = match owner.filter(|owner| !owner.released) {
            Some(owner) => {
                format!("the log of its owner '{}' says why (snapshot_failed)", owner.node)
            }
            None => String::from("nobody owns it"),
        };
        ClusterError(format!(
            "no snapshot of shard {shard} was stored within {seconds} seconds: {who}; whoever owns it stores one all the same"
        ))
    }
}
