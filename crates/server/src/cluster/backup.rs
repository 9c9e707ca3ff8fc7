//! A backup of a cluster: the owner of each shard stores a snapshot, which becomes the backup of the shard.
//!
//! A snapshot has the bytes of a backup. The owner of a shard may store another one at any time, and removes those before it: then what was read of the older one is
//! given up, and the newer one is read, five times at most.

use super::{ClusterAdmin, ClusterError, PIECE_BYTES};
use crate::backup::{BackupBytes, NewBackup};
use headwater_jetstream::JetStream;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// How often a snapshot may have been removed before it was read.
const TRIES: u32 = 5;

/// A backup that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackupTaken {
    /// The shards of the cluster.
    pub shards: u32,
    /// Their bytes.
    pub bytes: BackupBytes,
}

impl ClusterAdmin {
    /// Writes a backup of the cluster into the folder `to`, which is new or empty. What is the same in the backup in the folder `older` is not written again.
    /// Each shard is as it was at a moment of its own after this has begun.
    ///
    /// # Errors
    /// A folder cannot be used, a shard has no owner or no data, or its snapshot takes longer than `within`.
    pub fn backup(
        &self,
        to: &Path,
        older: Option<&Path>,
        within: Duration,
    ) -> Result<BackupTaken, ClusterError> {
        NewBackup::check_folders(to, older).map_err(ClusterError)?;
        let shards = self.shards()?;
        for shard in &shards {
            if self.snapshot(*shard, within)?.is_none() {
                return Err(ClusterError(format!("shard {shard} has no data yet")));
            }
        }
        let nats = JetStream::connect(self.nats.settings().clone());
        let nats = nats.map_err(|why| ClusterError(why.to_string()))?;
        let mut backup = NewBackup::begin(to, older, None).map_err(ClusterError)?.placed_by_slots();
        for shard in &shards {
            self.take_newest(&nats, *shard, &mut backup)?;
        }
        let bytes = backup.finish().map_err(ClusterError)?;
        Ok(BackupTaken { shards: shards.len() as u32, bytes })
    }

    fn take_newest(
        &self,
        nats: &JetStream,
        shard: u32,
        backup: &mut NewBackup,
    ) -> Result<(), ClusterError> {
        let mut tries = 0;
        loop {
            let mark = self.newest_snapshot(shard)?;
            let mut from = nats.snapshots(shard).fetch(&mark.object);
            let mut left = mark.bytes;
            let next = || {
                let mut piece = vec![0; PIECE_BYTES];
                let some = from.read(&mut piece).map_err(|why| why.to_string())?;
                left = left.saturating_sub(some as u64);
                match some {
                    0 if left > 0 => Err(format!("{left} bytes of the snapshot are missing")),
                    0 => Ok(None),
                    _ => {
                        piece.truncate(some);
                        Ok(Some(piece))
                    }
                }
            };
            let Err(why) = backup.add_shard(next) else { return Ok(()) };
            tries += 1;
            if tries == TRIES || self.newest_snapshot(shard)? == mark {
                return Err(ClusterError(format!("shard {shard}: {why}")));
            }
        }
    }
}
