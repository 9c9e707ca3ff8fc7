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
//!   writing the log did. One that somebody wants now ([`SnapshotOrder`]) is taken whatever the log has, if there is anything in it that the last one has not
//!   got; the order is answered once the key names it. Where the settings want no snapshots, the log is not purged below it.

use crate::fields::{BadValue, ValueKind, number, text, write_text};
use crate::order::SnapshotOrder;
use crate::reader::LogPosition;
use crate::seam::{BucketAnswer, BucketRequest, Monotonic, PutOutcome, Revision, Sequence};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const SNAPSHOT: ValueKind =
    ValueKind { magic: *b"HWSN", seed: 0x6c6f_6720_736e_6170, has_state: false };

/// How often the key is looked at where the log has enough bytes, in milliseconds.
const LOOK_MILLIS: u64 = 2000;
/// How often it is looked whether somebody wants a snapshot, in milliseconds.
const ORDER_MILLIS: u64 = 1000;
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
        SNAPSHOT.encode([0, 0], |bytes| {
            for number in [self.position.sequence.0, self.position.checksum, self.bytes] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            write_text(&self.object, bytes);
        })
    }

    /// Reads the key's value.
    ///
    /// # Errors
    /// It names no snapshot.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadValue> {
        SNAPSHOT.decode(bytes, |_, rest| {
            let (sequence, checksum) = (Sequence(number(rest)?), number(rest)?);
            let (bytes, object) = (number(rest)?, text(rest)?);
            Some(Self { position: LogPosition { sequence, checksum }, bytes, object })
        })
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
    /// Stores a state of the folder as an object, with all that is acknowledged now; [`Snapshots::taken`] is told how that ended.
    Take {
        /// What the last snapshot has: one that ends there is not stored again.
        above: Sequence,
    },
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
    Unreadable(BadValue),
    /// The key of orders cannot be read: none are taken notice of.
    UnreadableOrder(BadValue),
}

/// How storing a snapshot has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotTaken {
    /// The object is complete.
    Stored(SnapshotMark),
    /// The folder has nothing that the last snapshot has not got.
    Nothing,
    /// It has failed.
    Failed,
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
    /// The key of orders is being looked at.
    Ordering,
    /// An order is being answered.
    Answering,
}

/// An order that is being carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OrderUnderWay {
    id: u64,
    /// The revision of its key.
    revision: Revision,
}

/// An owner's snapshots of a shard.
#[derive(Debug)]
pub struct Snapshots {
    key: String,
    order_key: String,
    bytes_min: u64,
    answer_millis: u64,
    progress: SnapshotProgress,
    order: Option<OrderUnderWay>,
    tag: u64,
    /// When the request under way was sent.
    sent: Monotonic,
    due: Monotonic,
    /// When it is looked next whether somebody wants one.
    order_due: Monotonic,
}

impl Snapshots {
    /// Those of a shard, taken when its log has `bytes_min` bytes (0: never). Requests have tags from `tag` on; one that has no answer for `answer_millis` is
    /// given up.
    #[must_use]
    pub fn new(shard: u32, bytes_min: u64, answer_millis: u64, tag: u64) -> Self {
        Self {
            key: SnapshotMark::key(shard),
            order_key: SnapshotOrder::key(shard),
            bytes_min,
            answer_millis,
            progress: SnapshotProgress::Idle,
            order: None,
            tag,
            sent: Monotonic(0),
            due: Monotonic(0),
            order_due: Monotonic(0),
        }
    }

    /// What is to be done now; told again and again while the node owns the shard.
    pub fn tick(&mut self, log: LogExtent, now: Monotonic) -> Option<SnapshotEffect> {
        let asks =
            !matches!(self.progress, SnapshotProgress::Idle | SnapshotProgress::Taking { .. });
        if asks && now.since(self.sent) >= self.answer_millis {
            self.wait(now, RETRY_MILLIS);
        }
        if self.progress != SnapshotProgress::Idle {
            return None;
        }
        if now >= self.due && self.bytes_min > 0 && log.bytes >= self.bytes_min {
            return Some(self.look(now));
        }
        if now < self.order_due {
            return None;
        }
        self.order_due = Monotonic(now.0 + ORDER_MILLIS);
        self.progress = SnapshotProgress::Ordering;
        let key = self.order_key.clone();
        Some(self.get(key, now))
    }

    /// Looks which snapshot is named.
    fn look(&mut self, now: Monotonic) -> SnapshotEffect {
        self.progress = SnapshotProgress::Looking;
        let key = self.key.clone();
        self.get(key, now)
    }

    fn get(&mut self, key: String, now: Monotonic) -> SnapshotEffect {
        self.tag += 1;
        self.sent = now;
        SnapshotEffect::Bucket(BucketRequest::Get { tag: self.tag, key })
    }

    fn put(
        &mut self,
        key: String,
        revision: Revision,
        value: Vec<u8>,
        now: Monotonic,
    ) -> SnapshotEffect {
        self.tag += 1;
        self.sent = now;
        SnapshotEffect::Bucket(BucketRequest::Put { tag: self.tag, key, revision, value })
    }

    /// Ends what is under way; an order that is not done is found again.
    fn wait(&mut self, now: Monotonic, millis: u64) {
        self.progress = SnapshotProgress::Idle;
        self.order = None;
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
            (SnapshotProgress::Ordering, BucketAnswer::Get { entry, .. }) => match entry {
                Some((revision, value)) => Vec::from_iter(self.ordered(*revision, value, now)),
                None => Vec::new(),
            },
            (SnapshotProgress::Naming { mark }, BucketAnswer::Put { outcome, .. }) => {
                match outcome {
                    PutOutcome::Written(_) => {
                        let sequence = mark.position.sequence;
                        let mut effects = self.below(sequence);
                        effects.extend(self.answer_order(sequence, now));
                        effects
                    }
                    // Whether it is there is seen at the next look.
                    PutOutcome::Refused | PutOutcome::Unknown => {
                        self.wait(now, LOOK_MILLIS);
                        Vec::new()
                    }
                }
            }
            (SnapshotProgress::Answering, BucketAnswer::Put { .. }) => {
                // If it was not written, or in vain, the key says so at the next look.
                self.wait(now, LOOK_MILLIS);
                Vec::new()
            }
            (progress, _) => {
                self.progress = progress;
                Vec::new()
            }
        }
    }

    /// What the key of orders says.
    fn ordered(
        &mut self,
        revision: Revision,
        value: &[u8],
        now: Monotonic,
    ) -> Option<SnapshotEffect> {
        if revision == Revision(0) {
            return None;
        }
        match SnapshotOrder::decode(value) {
            Ok(SnapshotOrder::Wanted { id }) => {
                self.order = Some(OrderUnderWay { id, revision });
                Some(self.look(now))
            }
            Ok(SnapshotOrder::Done { .. }) => None,
            Err(bad) => {
                self.order_due = Monotonic(now.0 + RETRY_MILLIS);
                Some(SnapshotEffect::UnreadableOrder(bad))
            }
        }
    }

    /// Answers the order that is being carried out, if one is: the key names a snapshot up to this sequence.
    fn answer_order(&mut self, sequence: Sequence, now: Monotonic) -> Option<SnapshotEffect> {
        let Some(OrderUnderWay { id, revision }) = self.order.take() else {
            self.wait(now, LOOK_MILLIS);
            return None;
        };
        self.progress = SnapshotProgress::Answering;
        let value = SnapshotOrder::Done { id, sequence }.encode();
        let key = self.order_key.clone();
        Some(self.put(key, revision, value, now))
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
        // It was named, and the purge has not worked, or is not seen yet.
        let unpurged = before > log.first;
        let mut effects = if unpurged { self.below(before) } else { Vec::new() };
        let bytes_min = known.map_or(0, |mark| mark.bytes).max(self.bytes_min);
        let is_due = !unpurged && log.bytes >= bytes_min;
        if position.sequence <= before {
            effects.extend(self.answer_order(before, now));
        } else if self.order.is_some() || is_due {
            self.progress = SnapshotProgress::Taking { revision, before };
            effects.push(SnapshotEffect::Take { above: before });
        } else {
            self.wait(now, LOOK_MILLIS);
        }
        effects
    }

    /// An object was stored, or not.
    pub fn taken(&mut self, taken: SnapshotTaken, now: Monotonic) -> Option<SnapshotEffect> {
        let SnapshotProgress::Taking { revision, before } = self.progress else { return None };
        match taken {
            SnapshotTaken::Stored(mark) if mark.position.sequence > before => {
                let value = mark.encode();
                self.progress = SnapshotProgress::Naming { mark };
                let key = self.key.clone();
                Some(self.put(key, revision, value, now))
            }
            SnapshotTaken::Nothing => self.answer_order(before, now),
            SnapshotTaken::Stored(_) | SnapshotTaken::Failed => {
                self.wait(now, RETRY_MILLIS);
                self.order_due = self.due;
                None
            }
        }
    }

    /// What goes once the key names a snapshot with everything up to this sequence.
    fn below(&self, below: Sequence) -> Vec<SnapshotEffect> {
        // Where no snapshots are wanted, the log keeps everything.
        let purge = (self.bytes_min > 0).then_some(SnapshotEffect::Purge { below });
        purge.into_iter().chain([SnapshotEffect::Sweep { below }]).collect()
    }
}
