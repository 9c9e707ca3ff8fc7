//! A node's own writes to the bucket: they hold its name, and show that the bucket can be written (W2).

use crate::fields::BadValue;
use crate::owner::Owner;
use crate::ownership::LeaseTimes;
use crate::record::Epoch;
use crate::seam::{BucketAnswer, BucketRequest, Monotonic, PutOutcome, Revision};
use alloc::format;
use alloc::string::String;
use core::fmt;

/// Why a node must stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeartbeatError {
    /// Another process has the name.
    NameTaken {
        /// The name.
        node: String,
        /// Where that process is reached.
        address: String,
    },
    /// The key of its name cannot be read.
    Bad {
        /// The key.
        key: String,
        /// What is wrong with it.
        bad: BadValue,
    },
}

impl fmt::Display for HeartbeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTaken { node, address } => {
                write!(f, "another process is node '{node}' of this cluster, at {address}")
            }
            Self::Bad { key, bad } => {
                write!(f, "key {key} of the bucket of owners cannot be read: {bad}")
            }
        }
    }
}

/// How far a node is with its name.
#[derive(Clone, Copy, Debug)]
enum State {
    /// It looks who has the name.
    Joining(Option<SeenName>),
    /// Nobody else has it: its own writes go on from this revision.
    Joined(Revision),
    /// A write behind this revision was refused: it looks who has written.
    Uncertain(Revision),
}

/// Who has, or has had, the name.
#[derive(Clone, Copy, Debug)]
struct SeenName {
    revision: Revision,
    /// When that revision was first seen.
    since: Monotonic,
    /// How often it has changed. Of a process that has ended, one write at most is still under way: its later ones expect the same revision.
    changes: u32,
}

/// One node's heartbeat.
#[derive(Debug)]
pub struct Heartbeat {
    owner: Owner,
    key: String,
    times: LeaseTimes,
    state: State,
    tag: u64,
    /// The request under way, and when it was sent.
    pending: Option<(u64, Monotonic)>,
    /// When the next request is due.
    due: Monotonic,
    writable_since: Option<Monotonic>,
}

impl Heartbeat {
    /// That of a node, whose tags begin with `tag`.
    #[must_use]
    pub fn new(owner: Owner, times: LeaseTimes, tag: u64) -> Self {
        let key = format!("node.{}", owner.node);
        Self {
            owner,
            key,
            times,
            state: State::Joining(None),
            tag,
            pending: None,
            due: Monotonic(0),
            writable_since: None,
        }
    }

    /// Since when all of its writes have succeeded; `None`: the last one has not.
    #[must_use]
    pub fn writable_since(&self) -> Option<Monotonic> {
        self.writable_since
    }

    /// Tells from now on that this node has followed the log, whose last epoch is this one; 0: it has not.
    pub fn has_followed(&mut self, epoch: Epoch) {
        self.owner.epoch = epoch;
    }

    /// What is to be sent now.
    pub fn tick(&mut self, now: Monotonic) -> Option<BucketRequest> {
        if let Some((_, sent)) = self.pending {
            if now.since(sent) < self.times.answer_millis {
                return None;
            }
            self.failed(now);
        }
        if now < self.due {
            return None;
        }
        self.tag += 1;
        self.pending = Some((self.tag, now));
        let (tag, key) = (self.tag, self.key.clone());
        Some(match self.state {
            State::Joining(Some(SeenName { revision, since, .. }))
                if now.since(since) >= self.times.claim_millis =>
            {
                BucketRequest::Put { tag, key, revision, value: self.owner.encode() }
            }
            State::Joined(revision) => {
                BucketRequest::Put { tag, key, revision, value: self.owner.encode() }
            }
            State::Joining(_) | State::Uncertain(_) => BucketRequest::Get { tag, key },
        })
    }

    fn failed(&mut self, now: Monotonic) {
        self.pending = None;
        self.writable_since = None;
        self.due = Monotonic(now.0 + self.times.poll_millis);
    }

    /// An answer; one that is not awaited is ignored.
    ///
    /// # Errors
    /// The name is another process's: this one must stop.
    pub fn answered(
        &mut self,
        answer: &BucketAnswer,
        now: Monotonic,
    ) -> Result<(), HeartbeatError> {
        let Some((_, sent)) = self.pending.take_if(|(tag, _)| *tag == answer.tag()) else {
            return Ok(());
        };
        match answer {
            BucketAnswer::Get { entry: None, .. }
            | BucketAnswer::Put { outcome: PutOutcome::Unknown, .. } => self.failed(now),
            BucketAnswer::Get { entry: Some((revision, value)), .. } => {
                self.due = Monotonic(now.0 + self.times.poll_millis);
                return self.seen(*revision, value, now);
            }
            BucketAnswer::Put { outcome: PutOutcome::Written(revision), .. } => {
                self.state = State::Joined(*revision);
                self.writable_since = self.writable_since.or(Some(now));
                self.due = Monotonic(sent.0 + self.times.renew_millis);
            }
            BucketAnswer::Put { outcome: PutOutcome::Refused, .. } => {
                self.state = match self.state {
                    State::Joined(revision) | State::Uncertain(revision) => {
                        State::Uncertain(revision)
                    }
                    State::Joining(_) => State::Joining(None),
                };
                self.due = now;
            }
        }
        Ok(())
    }

    fn seen(
        &mut self,
        revision: Revision,
        value: &[u8],
        now: Monotonic,
    ) -> Result<(), HeartbeatError> {
        let other = match (revision, Owner::decode(value)) {
            (Revision(0), _) => None,
            (_, Ok(owner)) => Some(owner).filter(|owner| !owner.is_same(&self.owner)),
            (_, Err(bad)) => return Err(HeartbeatError::Bad { key: self.key.clone(), bad }),
        };
        let Some(other) = other else {
            // Nobody's, or its own, by a write whose outcome was unknown.
            self.state = State::Joined(revision);
            self.due = now;
            return Ok(());
        };
        let taken = || HeartbeatError::NameTaken {
            node: self.owner.node.clone(),
            address: other.address.clone(),
        };
        let changes = match self.state {
            State::Joining(None) => 0,
            State::Joining(Some(before)) if before.revision >= revision => return Ok(()),
            State::Joining(Some(before)) if before.changes > 0 => return Err(taken()),
            State::Joining(Some(_)) => 1,
            State::Joined(before) | State::Uncertain(before) if before < revision => {
                return Err(taken());
            }
            State::Joined(_) | State::Uncertain(_) => 0,
        };
        self.state = State::Joining(Some(SeenName { revision, since: now, changes }));
        Ok(())
    }
}
