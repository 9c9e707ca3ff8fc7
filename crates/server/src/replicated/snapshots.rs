//! Snapshots of the folder: taken by the owner, so that the log can be purged, and loaded by a node that needs what is purged.
//!
//! When one is taken and what is purged then is decided by [`headwater_log::Snapshots`]; here are the thread that reads the folder out and the loading.

use super::driver::Told;
use crate::log::event;
use headwater_jetstream::{JetStreamBucket, JetStreamSnapshots};
use headwater_keep::{Acknowledger, BackupPiece, BackupReader, LogMark, restore_copy};
use headwater_log::{
    Bucket, BucketAnswer, BucketRequest, LogPosition, Revision, Sequence, SnapshotMark,
    SnapshotTaken,
};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// How often it is looked whether more has been read out of the folder.
const LOOK: Duration = Duration::from_millis(2);
/// How long the folder may take to have what is acknowledged.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
/// How long the bucket may take to say which snapshot is the newest.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
/// How often a snapshot that cannot be loaded is tried, and how long after each time: a newer one may have taken its place.
const TRIES: u32 = 10;
const RETRY: Duration = Duration::from_secs(1);

/// Between which places of the log a snapshot must end.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotEnds {
    /// What the last one has: one that ends there is not stored again.
    pub(super) above: Sequence,
    /// What is acknowledged: the folder has it, or is about to.
    pub(super) has: Option<LogMark>,
}

/// Begins to store what the folder has as an object; [`Told::Taken`] says how that ended.
pub(super) fn take(
    store: &Acknowledger,
    snapshots: JetStreamSnapshots,
    (taker, ends): (u64, SnapshotEnds),
    told: Sender<Told>,
) {
    let (store, failed) = (store.clone(), told.clone());
    let run = move || {
        let began = Instant::now();
        let taken = upload(&store, &snapshots, (taker, ends));
        match &taken {
            Ok(SnapshotTaken::Stored(mark)) => {
                let (sequence, bytes) = (mark.position.sequence.0, mark.bytes);
                let millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                event!(info, "cluster", "snapshot_taken", sequence, bytes, millis);
            }
            Ok(SnapshotTaken::Nothing | SnapshotTaken::Failed) => {}
            Err(why) => event!(warn, "cluster", "snapshot_failed", why),
        }
        // Where the replica's thread has ended, nobody wants to know.
        drop(told.send(Told::Taken(taken.unwrap_or(SnapshotTaken::Failed))));
    };
    if let Err(why) = Builder::new().name(String::from("snapshot")).spawn(run) {
        event!(warn, "cluster", "snapshot_failed", why = why.to_string());
        drop(failed.send(Told::Taken(SnapshotTaken::Failed)));
    }
}

/// Waits until the folder has what was acknowledged before.
fn await_folder(store: &Acknowledger, has: Option<LogMark>) -> Result<(), String> {
    let began = Instant::now();
    let reaches = |mark: Option<LogMark>| {
        has.is_none_or(|has| mark.is_some_and(|mark| mark.sequence >= has.sequence))
    };
    store.want_acknowledged();
    while !reaches(store.log_mark()?) {
        if began.elapsed() >= WRITTEN_WITHIN {
            let seconds = WRITTEN_WITHIN.as_secs();
            return Err(format!(
                "the folder does not have what is acknowledged within {seconds} seconds"
            ));
        }
        sleep(LOOK);
    }
    Ok(())
}

/// A snapshot of the folder that is read out, and where it ends; `None`: there is none to be stored.
pub(super) fn begin(
    store: &Acknowledger,
    ends: SnapshotEnds,
) -> Result<Option<(LogPosition, BackupReader)>, String> {
    await_folder(store, ends.has)?;
    let Some((mark, reader)) = store.begin_backup()? else { return Ok(None) };
    let position = LogPosition { sequence: Sequence(mark.sequence), checksum: mark.checksum };
    // Its object might have the name of the one that is stored.
    Ok((position.sequence > ends.above).then_some((position, reader)))
}

/// The next bytes of a snapshot; `None`: these were all.
pub(super) fn next(reader: &BackupReader) -> Result<Option<Vec<u8>>, String> {
    loop {
        reader.touch();
        match reader.take()? {
            BackupPiece::Pending => sleep(LOOK),
            BackupPiece::Bytes(bytes) => return Ok(Some(bytes)),
            BackupPiece::End => return Ok(None),
        }
    }
}

fn upload(
    store: &Acknowledger,
    snapshots: &JetStreamSnapshots,
    (taker, ends): (u64, SnapshotEnds),
) -> Result<SnapshotTaken, String> {
    let Some((position, reader)) = begin(store, ends)? else { return Ok(SnapshotTaken::Nothing) };
    let object = SnapshotMark::object_of(position.sequence, taker);
    let mut upload = snapshots.store(&object);
    while let Some(bytes) = next(&reader)? {
        upload.write(&bytes)?;
    }
    let bytes = upload.finish()?;
    Ok(SnapshotTaken::Stored(SnapshotMark { position, bytes, object }))
}

/// Asks the bucket which snapshot is the newest. All other answers are dropped: the caller has no other use for the bucket any more.
fn named(bucket: &mut JetStreamBucket, tag: u64, key: &str) -> Result<SnapshotMark, String> {
    bucket.send(BucketRequest::Get { tag, key: String::from(key) });
    let began = Instant::now();
    while began.elapsed() < NAMED_WITHIN {
        match bucket.receive() {
            Some(BucketAnswer::Get { tag: of, entry: Some((revision, value)) }) if of == tag => {
                if revision == Revision(0) {
                    return Err(format!("key {key} of the bucket names no snapshot"));
                }
                return SnapshotMark::decode(&value)
                    .map_err(|bad| format!("key {key} of the bucket cannot be read: {bad}"));
            }
            Some(BucketAnswer::Get { tag: of, entry: None }) if of == tag => break,
            Some(_) => {}
            None => sleep(LOOK),
        }
    }
    Err(String::from("the bucket does not say which snapshot is the newest"))
}

/// Makes the folder a copy of the newest snapshot, which a key of the bucket names, whatever it was; gives the last record that it has.
///
/// # Errors
/// There is none, or it cannot be loaded, though it was tried again and again.
pub(super) fn load(
    bucket: &mut JetStreamBucket,
    snapshots: &JetStreamSnapshots,
    (tags, key): (u64, &str),
    folder: &Path,
) -> Result<Sequence, String> {
    let mut tries = 0;
    loop {
        tries += 1;
        let loaded = named(bucket, tags + u64::from(tries), key).and_then(|mark| {
            let LogPosition { sequence, checksum } = mark.position;
            let at = LogMark { sequence: sequence.0, checksum };
            let mut object = snapshots.fetch(&mark.object);
            let restored = restore_copy(folder, &mut object, at)
                .map_err(|why| format!("snapshot {}: {why}", mark.object))?;
            let (sequence, keys) = (mark.position.sequence, restored.keys);
            event!(info, "cluster", "snapshot_loaded", sequence = sequence.0, keys);
            Ok(sequence)
        });
        match loaded {
            Ok(sequence) => return Ok(sequence),
            Err(why) if tries >= TRIES => return Err(why),
            Err(why) => event!(warn, "cluster", "snapshot_not_loaded", why),
        }
        sleep(RETRY);
    }
}
