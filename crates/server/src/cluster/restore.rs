//! Filling a new, empty cluster with a backup.
//!
//! A backup has the bytes of a snapshot, so it becomes the first one. The log then begins behind it: its first record has sequence 2, is the claim of whoever
//! restores, in epoch 1, and is what the snapshot ends with. A node whose folder is empty asks for the first record, is told that it is not there, and loads the snapshot.
//!
//! # Why nobody serves an empty cluster meanwhile
//! The log begins with 2 before anything is in it. From then on no node with an empty folder gets by without the snapshot; until that is named, it tries again.
//! The key that names the owner is taken first, at revision 0: if anybody has owned the data, or gets there earlier, nothing is restored. With several shards, no snapshot
//! is named before all are stored, so some shards serve what others do not have only if naming fails midway.

use super::{ClusterAdmin, ClusterError, LOOK, PIECE_BYTES};
use crate::backup::BackupShard;
use crate::replicated::owner_key;
use headwater_jetstream::{ANSWER_TIMEOUT, JetStream, JetStreamBucket, Wake};
use headwater_keep::check_backup;
use headwater_log::{
    AppendOutcome, Bucket, BucketAnswer, BucketRequest, Epoch, Log, LogAnswer, LogId, LogPosition,
    LogRequest, MessageId, Owner, PutOutcome, RECORD_FORMATS, RecordHeader, RecordKind, Revision,
    Sequence, SnapshotMark,
};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

/// The first sequence of a log that begins behind a snapshot.
const BEGINS: Sequence = Sequence(2);
/// The epoch of whoever restores.
const EPOCH: Epoch = Epoch(1);
/// The name under which the data is owned while it is restored; a node's has no spaces.
const RESTORER: &str = "a restore";

/// What a cluster was filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoredCluster {
    /// Its shards.
    pub shards: u32,
    /// Keys.
    pub keys: u64,
    /// Bytes of the backup.
    pub bytes: u64,
}

/// The cluster's bucket while it is filled.
struct Filling {
    nats: JetStream,
    bucket: JetStreamBucket,
    wake: Wake,
    tag: u64,
}

/// A shard whose data is there, and not named yet.
struct FilledShard {
    shard: u32,
    /// Whoever restores, as its owner, and the revision at which that was written.
    own: Owner,
    owned: Revision,
    mark: SnapshotMark,
}

fn failed(why: impl std::fmt::Display) -> ClusterError {
    ClusterError(why.to_string())
}

/// The first answer that `take` knows, within the time that the servers have for one.
fn await_answer<T>(mut take: impl FnMut() -> Option<T>) -> Result<T, ClusterError> {
    let began = Instant::now();
    loop {
        if let Some(answer) = take() {
            return Ok(answer);
        }
        if began.elapsed() >= 2 * ANSWER_TIMEOUT {
            return Err(failed("the NATS servers do not answer"));
        }
        sleep(LOOK / 10);
    }
}

impl Filling {
    fn put(
        &mut self,
        key: &str,
        revision: Revision,
        value: Vec<u8>,
    ) -> Result<Revision, ClusterError> {
        self.tag += 1;
        let (tag, key) = (self.tag, key.to_owned());
        self.bucket.send(BucketRequest::Put { tag, key: key.clone(), revision, value });
        let outcome = await_answer(|| match self.bucket.receive()? {
            BucketAnswer::Put { tag: of, outcome } if of == tag => Some(outcome),
            _ => None,
        })?;
        match outcome {
            PutOutcome::Written(revision) => Ok(revision),
            PutOutcome::Refused => Err(failed(format_args!(
                "key {key} of the bucket of owners is there: the cluster is not empty, or a node has begun meanwhile"
            ))),
            PutOutcome::Unknown => {
                Err(failed(format_args!("key {key} of the bucket of owners cannot be written")))
            }
        }
    }

    /// Has the log begin with [`BEGINS`], and appends the claim that it begins with.
    fn begin_log(
        &self,
        admin: &ClusterAdmin,
        shard: u32,
        bytes: Vec<u8>,
    ) -> Result<(), ClusterError> {
        let mut log = self.nats.log(shard, self.wake.clone()).map_err(failed)?;
        log.send(LogRequest::Purge { below: BEGINS });
        let stream = admin.nats.settings().stream(shard);
        let mut first = Sequence(0);
        let began = Instant::now();
        while first != BEGINS {
            if began.elapsed() >= 2 * ANSWER_TIMEOUT {
                return Err(failed(format_args!(
                    "stream {stream} does not begin with {}, but with {}",
                    BEGINS.0, first.0
                )));
            }
            first = admin.nats.stream(&stream)?.first;
        }
        let (id, expected) = (MessageId { epoch: EPOCH, number: 0 }, Sequence(BEGINS.0 - 1));
        log.send(LogRequest::Append { id, expected, bytes });
        let outcome = await_answer(|| match log.receive()? {
            LogAnswer::Append { id: of, outcome } if of == id => Some(outcome),
            _ => None,
        })?;
        match outcome {
            AppendOutcome::Stored(at) if at == BEGINS => Ok(()),
            _ => Err(failed(format_args!("stream {stream} is not empty, or does not answer"))),
        }
    }
}

impl ClusterAdmin {
    /// Fills the cluster, in which nobody has owned anything yet, with a backup of one shard, or of a cluster of as many.
    ///
    /// # Errors
    /// The backup is not whole, or of several shards of one process, the cluster has another number of shards or is not empty, a node is heard, or the servers fail; the
    /// sentence says which.
    pub fn restore(&self, folder: &Path) -> Result<RestoredCluster, ClusterError> {
        let shards = BackupShard::all_of(folder).map_err(failed)?;
        let mut keys = 0;
        for shard in &shards {
            // What is damaged would be found by nodes, when it is too late.
            let checked = check_backup(&mut shard.open().map_err(failed)?);
            let named = |why| failed(format_args!("{}: {why}", shard.folder.display()));
            keys += checked.map_err(named)?.keys;
        }
        let count = shards.len() as u32;
        self.create(count)?;
        self.expect_empty(count)?;
        let nats = JetStream::connect(self.nats.settings().clone()).map_err(failed)?;
        let wake: Wake = Arc::new(|| {});
        let bucket = nats.bucket(wake.clone());
        let mut filling = Filling { nats, bucket, wake, tag: 0 };
        // All of it is there before any of it is named, so a part of a cluster serves only if naming fails midway.
        let filled: Result<Vec<FilledShard>, _> =
            (0..).zip(&shards).map(|(shard, from)| filling.fill(self, shard, from)).collect();
        let filled = filled?;
        for FilledShard { shard, mark, .. } in &filled {
            filling.put(&SnapshotMark::key(*shard), Revision(0), mark.encode())?;
        }
        for FilledShard { shard, own, owned, .. } in filled {
            let given = Owner { released: true, ..own };
            // A node that has taken it already has waited long enough.
            let _taken = filling.put(&owner_key(shard), owned, given.encode());
        }
        let bytes = shards.iter().map(|shard| shard.bytes).sum();
        Ok(RestoredCluster { shards: count, keys, bytes })
    }

    /// Refuses a cluster of so many shards that has, or may soon have, data.
    fn expect_empty(&self, shards: u32) -> Result<(), ClusterError> {
        let watched = self.watch()?;
        let cluster = &self.nats.settings().cluster;
        let heard: Vec<String> = (0..shards).flat_map(|shard| watched.heard(shard)).collect();
        if !heard.is_empty() {
            return Err(failed(format_args!(
                "nodes of cluster '{cluster}' are heard ({}): a cluster is filled before its first node starts",
                heard.join(", ")
            )));
        }
        let mut is_new = watched.view.owners.is_empty() && watched.view.snapshots.is_empty();
        for shard in 0..shards {
            let log = self.nats.stream(&self.nats.settings().stream(shard))?;
            is_new &= log.messages == 0 && log.last <= Sequence(1);
        }
        if !is_new {
            return Err(failed(format_args!(
                "cluster '{cluster}' is not empty: a backup is restored into a new one (--cluster-name gives it another name)"
            )));
        }
        Ok(())
    }
}

impl Filling {
    /// Stores a shard's backup as its first snapshot, and has its log begin behind it.
    fn fill(
        &mut self,
        admin: &ClusterAdmin,
        shard: u32,
        from: &BackupShard,
    ) -> Result<FilledShard, ClusterError> {
        let incarnation = RandomState::new().hash_one(1);
        let object = SnapshotMark::object_of(BEGINS, incarnation);
        self.store(shard, &object, &mut from.open().map_err(failed)?)?;
        let own = Owner {
            node: String::from(RESTORER),
            address: String::from("nowhere:0"),
            incarnation,
            epoch: EPOCH,
            shard: u16::try_from(shard).map_err(failed)?,
            released: false,
        };
        let owned = self.put(&owner_key(shard), Revision(0), own.encode())?;
        let header = RecordHeader {
            format: RECORD_FORMATS.oldest,
            kind: RecordKind::Claim,
            epoch: EPOCH,
            number: 0,
            before: 0,
            schema: 0,
        };
        let stream = admin.nats.settings().stream(shard);
        let (record, checksum) = header.encode(LogId::of(&stream), &own.encode());
        self.begin_log(admin, shard, record)?;
        let position = LogPosition { sequence: BEGINS, checksum };
        let mark = SnapshotMark { position, bytes: from.bytes, object };
        Ok(FilledShard { shard, own, owned, mark })
    }

    /// Stores the backup as a snapshot that nobody names yet.
    fn store(&self, shard: u32, object: &str, from: &mut impl Read) -> Result<(), ClusterError> {
        let mut upload = self.nats.snapshots(shard).store(object);
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let some = from.read(&mut piece).map_err(failed)?;
            if some == 0 {
                break;
            }
            upload.write(&piece[..some]).map_err(failed)?;
        }
        upload.finish().map_err(failed)?;
        Ok(())
    }
}
