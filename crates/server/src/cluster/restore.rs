//! Filling a new, empty cluster with a backup.
//!
//! A backup has the bytes of a snapshot, so it becomes the first one. The log then begins behind it: its first record has sequence 2, is the claim of whoever
//! restores, in epoch 1, and is what the snapshot ends with. A node whose folder is empty asks for the first record, is told that it is not there, and loads the snapshot.
//!
//! # Why nobody serves an empty cluster meanwhile
//! The log begins with 2 before anything is in it. From then on no node with an empty folder gets by without the snapshot; until that is named, it tries again.
//! The key that names the owner is taken first, at revision 0: if anybody has owned the data, or gets there earlier, nothing is restored.

use super::{ClusterAdmin, ClusterError, LOOK};
use crate::backup::OnlyShard;
use crate::replicated::owner_key;
use headwater_jetstream::{ANSWER_TIMEOUT, JetStream, JetStreamBucket, JetStreamLog, Wake};
use headwater_keep::check_backup;
use headwater_log::{
    AppendOutcome, Bucket, BucketAnswer, BucketRequest, Epoch, Log, LogAnswer, LogId, LogPosition,
    LogRequest, MessageId, Owner, PutOutcome, RecordHeader, RecordKind, Revision, Sequence,
    SnapshotMark,
};
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

/// Bytes of a backup that are sent at a time.
const PIECE_BYTES: usize = 256 << 10;
/// The first sequence of a log that begins behind a snapshot.
const BEGINS: Sequence = Sequence(2);
/// The epoch of whoever restores.
const EPOCH: Epoch = Epoch(1);
/// The name under which the data is owned while it is restored; a node's has no spaces.
const RESTORER: &str = "a restore";

/// What a cluster was filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoredCluster {
    /// Keys.
    pub keys: u64,
    /// Bytes of the backup.
    pub bytes: u64,
}

/// The cluster's log and bucket while it is filled.
struct Filling {
    nats: JetStream,
    log: JetStreamLog,
    bucket: JetStreamBucket,
    tag: u64,
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
    fn begin_log(&mut self, admin: &ClusterAdmin, bytes: Vec<u8>) -> Result<(), ClusterError> {
        self.log.send(LogRequest::Purge { below: BEGINS });
        let stream = admin.nats.settings().stream(0);
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
        self.log.send(LogRequest::Append { id, expected, bytes });
        let outcome = await_answer(|| match self.log.receive()? {
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
    /// Fills the cluster, in which nobody has owned anything yet, with a backup of one shard.
    ///
    /// # Errors
    /// The backup is not whole, it or the cluster has several shards, the cluster is not empty, a node is heard, or the servers fail; the sentence says which.
    pub fn restore(&self, folder: &Path) -> Result<RestoredCluster, ClusterError> {
        let shard = OnlyShard::of(folder).map_err(failed)?;
        // What is damaged would be found by nodes, when it is too late.
        let checked = check_backup(&mut shard.open().map_err(failed)?);
        let keys =
            checked.map_err(|why| failed(format_args!("{}: {why}", shard.folder.display())))?.keys;
        self.create(1)?;
        self.expect_empty()?;
        let settings = self.nats.settings().clone();
        let stream = settings.stream(0);
        let nats = JetStream::connect(settings).map_err(failed)?;
        let wake: Wake = Arc::new(|| {});
        let log = nats.log(0, wake.clone()).map_err(failed)?;
        let bucket = nats.bucket(wake);
        let mut filling = Filling { nats, log, bucket, tag: 0 };

        let incarnation = RandomState::new().hash_one(1);
        let object = SnapshotMark::object_of(BEGINS, incarnation);
        filling.store(&object, &mut shard.open().map_err(failed)?)?;
        let own = Owner {
            node: String::from(RESTORER),
            address: String::from("nowhere:0"),
            incarnation,
            epoch: EPOCH,
            shard: 0,
            released: false,
        };
        let owned = filling.put(&owner_key(0), Revision(0), own.encode())?;
        let header =
            RecordHeader { kind: RecordKind::Claim, epoch: EPOCH, number: 0, before: 0, schema: 0 };
        let (record, checksum) = header.encode(LogId::of(&stream), &own.encode());
        filling.begin_log(self, record)?;
        let position = LogPosition { sequence: BEGINS, checksum };
        let mark = SnapshotMark { position, bytes: shard.bytes, object };
        filling.put(&SnapshotMark::key(0), Revision(0), mark.encode())?;
        let given = Owner { released: true, ..own };
        // A node that has taken it already has waited long enough.
        let _taken = filling.put(&owner_key(0), owned, given.encode());
        Ok(RestoredCluster { keys, bytes: shard.bytes })
    }

    /// Refuses a cluster that has, or may soon have, data.
    fn expect_empty(&self) -> Result<(), ClusterError> {
        let watched = self.watch()?;
        let cluster = &self.nats.settings().cluster;
        let heard = watched.heard(0);
        if !heard.is_empty() {
            return Err(failed(format_args!(
                "nodes of cluster '{cluster}' are heard ({}): a cluster is filled before its first node starts",
                heard.join(", ")
            )));
        }
        let log = self.nats.stream(&self.nats.settings().stream(0))?;
        let is_new = watched.view.owners.is_empty() && watched.view.snapshots.is_empty();
        if !is_new || log.messages > 0 || log.last > Sequence(1) {
            return Err(failed(format_args!(
                "cluster '{cluster}' is not empty: a backup is restored into a new one (--cluster-name gives it another name)"
            )));
        }
        Ok(())
    }
}

impl Filling {
    /// Stores the backup as a snapshot that nobody names yet.
    fn store(&self, object: &str, from: &mut impl Read) -> Result<(), ClusterError> {
        let mut upload = self.nats.snapshots(0).store(object);
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
