//! Snapshots: states of a shard that are kept outside of its log, and what of the log is purged because of them.
//!
//! A log that is never purged grows with every write, and a node with an empty folder reads all of it. So the owner has a state of its folder
//! stored as an *object*, and a key of the bucket names the newest one: a [`SnapshotMark`]. A node that needs messages which are purged loads the object
//! that the key names, and reads the log from there.
//!
//! # Invariants
//! - P1. The log is purged below a record only when the key names a complete object with everything up to that record.
//! - P2. The key is replaced by compare-and-set, and only by a mark with a greater sequence. An owner of before may finish its object
//!   late, when the log is purged further already: its mark is refused, or is not written.
//! - P3. An object is removed only when the key names one with a greater sequence.
//! - P4. A snapshot is taken when the log has as many bytes as the settings say, and as many as the last one: writing snapshots takes no more than
//!   writing the log did.

use crate::fields::{number, take, text};
use crate::reader::LogPosition;
use crate::seam::{BucketAnswer, BucketRequest, Monotonic, PutOutcome, Revision, Sequence};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use headwater_base::hash::stable_hash;

const MAGIC: [u8; 4] = *b"HWSN";
const FORMAT: u16 = 1;
const SEED: u64 = 0x6c6f_6720_736e_6170;

/// How often the key is looked at where the log has enough bytes, in milliseconds.
const LOOK_MILLIS: u64 = 2000;
/// How long it takes until a snapshot is tried again that has failed, or a key looked at again that cannot be read.
const RETRY_MILLIS: u64 = 10_000;

/// A complete snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotMark {
    /// The last record that it has.
    pub position: LogPosition,
    /// Its size in bytes.
    pub bytes: u64,
    /// The name of its object.
    pub object: String,
}

/// Why a key's value names no snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadSnapshot {
    /// It is damaged, or somebody else's.
    Damaged,
    /// Its format is not one that this version reads.
    Format(u16),
}

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("it is damaged, or was not written by Headwater"),
            Self::Format(format) => write!(
                f,
                "it has format {format}, and this version of Headwater reads format {FORMAT} alone"
            ),
        }
    }
}

impl SnapshotMark {
    /// The key of the bucket that names the newest snapshot of a shard.
    #[must_use]
    pub fn key(shard: u32) -> String {
        format!("snapshot.{shard}")
    }

    /// The name of an object with everything up to a record; `taker` is a number that each process draws.
    #[must_use]
    pub fn object_of(sequence: Sequence, taker: u64) -> String {
        format!("{:020}-{taker:016x}", sequence.0)
    }

    /// The last sequence that an object has, by its name; `None`: it is no snapshot's.
    #[must_use]
    pub fn sequence_of(object: &str) -> Option<Sequence> {
        let (sequence, _) = object.split_once('-')?;
        sequence.parse().ok().map(Sequence)
    }

    /// The bytes of the key's value.
    ///
    /// # Panics
    /// The object's name has 64 KiB or more.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 2 + 8]);
        for number in [self.position.sequence.0, self.position.checksum, self.bytes] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let length = u16::try_from(self.object.len()).expect("names of objects are short");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(self.object.as_bytes());
        let checksum = stable_hash(SEED, &bytes[16..]);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the key's value.
    ///
    /// # Errors
    /// It names no snapshot.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadSnapshot> {
        if bytes.len() < 6 || bytes[..4] != MAGIC {
            return Err(BadSnapshot::Damaged);
        }
        let format = u16::from_le_bytes([bytes[4], bytes[5]]);
        if format != FORMAT {
            return Err(BadSnapshot::Format(format));
        }
        Self::fields(bytes).ok_or(BadSnapshot::Damaged)
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(6..)?;
        let zero = take(&mut rest, 2)?;
        let told = number(&mut rest)?;
        if zero != [0, 0] || told != stable_hash(SEED, rest) {
            return None;
        }
        let (sequence, checksum) = (Sequence(number(&mut rest)?), number(&mut rest)?);
        let (bytes, object) = (number(&mut rest)?, text(&mut rest)?);
        let position = LogPosition { sequence, checksum };
        rest.is_empty().then_some(Self { position, bytes, object })
    }
}

/// What an owner knows of its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogExtent {
    /// The first sequence that the servers have.
    pub first: Sequence,
    /// Bytes that they have, of one copy.
    pub bytes: u64,
}

/// What is to be done for snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotEffect {
    /// Asks the bucket.
    Bucket(BucketRequest),
    /// Stores a state of the folder as an object; [`Snapshots::taken`] is told how that ended.
    Take,
    /// P1: the log is to be purged below this sequence.
    Purge {
        /// The first sequence that stays.
        below: Sequence,
    },
    /// P3: objects are to be removed that end before this sequence.
    Sweep {
        /// The end of the first that stays.
        below: Sequence,
    },
    /// The key cannot be read: no snapshots are taken.
    Unreadable(BadSnapshot),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum SnapshotProgress {
    /// The key is looked at when that is due.
    Idle,
    /// The key is being looked at.
    Looking,
    /// The object is being stored. The key has this revision, and names a snapshot up to this sequence.
    Taking { revision: Revision, before: Sequence },
    /// The key is being written.
    Naming { mark: SnapshotMark },
}

/// An owner's snapshots of a shard.
#[derive(Debug)]
pub struct Snapshots {
    key: String,
    bytes_min: u64,
    answer_millis: u64,
    progress: SnapshotProgress,
    tag: u64,
    /// When the request under way was sent.
    sent: Monotonic,
    due: Monotonic,
}

impl Snapshots {
    /// Those of a shard, taken when its log has `bytes_min` bytes (0: never). Requests have tags from `tag` on; one that has no answer for `answer_millis` is
    /// given up.
    #[must_use]
    pub fn new(shard: u32, bytes_min: u64, answer_millis: u64, tag: u64) -> Self {
        Self {
            key: SnapshotMark::key(shard),
            bytes_min,
            answer_millis,
            progress: SnapshotProgress::Idle,
            tag,
            sent: Monotonic(0),
            due: Monotonic(0),
        }
    }

    /// What is to be done now; told again and again while the node owns the shard.
    pub fn tick(&mut self, log: LogExtent, now: Monotonic) -> Option<SnapshotEffect> {
        let asks =
            matches!(self.progress, SnapshotProgress::Looking | SnapshotProgress::Naming { .. });
        if asks && now.since(self.sent) >= self.answer_millis {
            self.wait(now, RETRY_MILLIS);
        }
        let is_due = self.progress == SnapshotProgress::Idle && now >= self.due;
        if !is_due || self.bytes_min == 0 || log.bytes < self.bytes_min {
            return None;
        }
        self.progress = SnapshotProgress::Looking;
        self.tag += 1;
        self.sent = now;
        let (tag, key) = (self.tag, self.key.clone());
        Some(SnapshotEffect::Bucket(BucketRequest::Get { tag, key }))
    }

    fn wait(&mut self, now: Monotonic, millis: u64) {
        self.progress = SnapshotProgress::Idle;
        self.due = Monotonic(now.0 + millis);
    }

    /// An answer of the bucket; one that is not awaited is ignored. `position`: the last record that is acknowledged.
    pub fn answered(
        &mut self,
        answer: &BucketAnswer,
        (log, position): (LogExtent, LogPosition),
        now: Monotonic,
    ) -> Vec<SnapshotEffect> {
        if answer.tag() != self.tag {
            return Vec::new();
        }
        match (core::mem::replace(&mut self.progress, SnapshotProgress::Idle), answer) {
            (SnapshotProgress::Looking, BucketAnswer::Get { entry, .. }) => match entry {
                Some((revision, value)) => self.looked(*revision, value, (log, position), now),
                None => {
                    self.wait(now, RETRY_MILLIS);
                    Vec::new()
                }
            },
            (SnapshotProgress::Naming { mark }, BucketAnswer::Put { outcome, .. }) => {
                self.wait(now, LOOK_MILLIS);
                match outcome {
                    PutOutcome::Written(_) => below(mark.position.sequence),
                    // Whether it is there is seen at the next look.
                    PutOutcome::Refused | PutOutcome::Unknown => Vec::new(),
                }
            }
            (progress, _) => {
                self.progress = progress;
                Vec::new()
            }
        }
    }

    fn looked(
        &mut self,
        revision: Revision,
        value: &[u8],
        (log, position): (LogExtent, LogPosition),
        now: Monotonic,
    ) -> Vec<SnapshotEffect> {
        let known = match (revision, SnapshotMark::decode(value)) {
            (Revision(0), _) => None,
            (_, Ok(mark)) => Some(mark),
            (_, Err(bad)) => {
                self.wait(now, RETRY_MILLIS);
                return Vec::from([SnapshotEffect::Unreadable(bad)]);
            }
        };
        let before = known.as_ref().map_or(Sequence(0), |mark| mark.position.sequence);
        self.wait(now, LOOK_MILLIS);
        if before > log.first {
            // It was named, and the purge has not worked, or is not seen yet.
            return below(before);
        }
        let bytes_min = known.map_or(0, |mark| mark.bytes).max(self.bytes_min);
        if log.bytes < bytes_min || position.sequence <= before {
            return Vec::new();
        }
        self.progress = SnapshotProgress::Taking { revision, before };
        Vec::from([SnapshotEffect::Take])
    }

    /// An object was stored, or that has failed.
    pub fn taken(&mut self, mark: Option<SnapshotMark>, now: Monotonic) -> Option<SnapshotEffect> {
        let SnapshotProgress::Taking { revision, before } = self.progress else { return None };
        let Some(mark) = mark.filter(|mark| mark.position.sequence > before) else {
            self.wait(now, RETRY_MILLIS);
            return None;
        };
        let value = mark.encode();
        self.progress = SnapshotProgress::Naming { mark };
        self.tag += 1;
        self.sent = now;
        let (tag, key) = (self.tag, self.key.clone());
        Some(SnapshotEffect::Bucket(BucketRequest::Put { tag, key, revision, value }))
    }
}

/// What goes once the key names a snapshot with everything up to this sequence.
fn below(below: Sequence) -> Vec<SnapshotEffect> {
    Vec::from([SnapshotEffect::Purge { below }, SnapshotEffect::Sweep { below }])
}
