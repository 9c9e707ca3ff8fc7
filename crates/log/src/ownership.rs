//! Who owns a shard: one key of the bucket, which is taken and renewed by compare-and-set (W1 to W3).
//!
//! What makes it safe: a claimant's write succeeds only if the revision is the one that it has seen for 3 s. The renewal that made that
//! revision was sent before it was first seen, and 2 s behind that its owner stops answering. The second between is for clocks that
//! run at different speeds. That the claimant's own writes have succeeded meanwhile makes nothing safer: it keeps
//! everybody from taking everything when the bucket has had no leader for a while.
//!
//! An owner whose lease is older than 2 s has not lost the shard: if its next renewal succeeds, nobody has taken it, and it goes on.

use crate::fields::BadValue;
use crate::owner::Owner;
use crate::record::Epoch;
use crate::seam::{BucketAnswer, BucketRequest, Monotonic, PutOutcome, Revision};
use crate::silence::Silence;
use alloc::string::String;

/// Times of leases, in milliseconds: all nodes of a cluster must have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseTimes {
    /// How often an owner renews, and a node shows that it lives.
    pub renew_millis: u64,
    /// How long an owner answers from sending a renewal on.
    pub lease_millis: u64,
    /// How long a revision must stay unchanged before others take the lease.
    pub claim_millis: u64,
    /// How often others look.
    pub poll_millis: u64,
    /// How long an answer of the bucket is awaited.
    pub answer_millis: u64,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            renew_millis: 1000,
            lease_millis: 2000,
            claim_millis: 3000,
            poll_millis: 200,
            answer_millis: 1000,
        }
    }
}

/// What somebody who may want a shard knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contest {
    /// Whether this node wants it.
    pub wants: bool,
    /// How much longer it waits before it takes it, because another one should ([`Balance`](crate::Balance)).
    pub defer_millis: u64,
    /// [`Heartbeat::writable_since`](crate::Heartbeat::writable_since).
    pub writable_since: Option<Monotonic>,
    /// The greatest epoch that was seen in the log.
    pub log_epoch: Epoch,
}

/// What has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnershipEvent {
    /// This node owns the shard from now on, with this epoch, in which nothing was appended yet.
    Taken(Epoch),
    /// It does not any more.
    Lost,
    /// The key cannot be read: nobody may own the shard.
    Bad(BadValue),
}

/// What is known of the key when another node has the shard.
#[derive(Clone, Copy, Debug)]
struct Seen {
    revision: Revision,
    /// When that revision was first seen.
    since: Monotonic,
    epoch: Epoch,
    released: bool,
}

/// What a request under way is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Look,
    Take(Epoch),
    Renew(Epoch),
    Release,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    tag: u64,
    sent: Monotonic,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Another node has it, or nobody.
    Watching(Option<Seen>),
    /// This node has it.
    Held(HeldLease),
    /// This node has had it, and a write was refused: it looks whose the key is.
    Uncertain(HeldLease),
}

/// A lease that this node has.
#[derive(Clone, Copy, Debug)]
struct HeldLease {
    epoch: Epoch,
    revision: Revision,
    /// When the last renewal that succeeded was sent; none: it was not renewed yet.
    renewed: Option<Monotonic>,
    /// The epoch that the next one must have, at least.
    at_least: Epoch,
    releases: bool,
}

/// One node's part in who owns a shard.
#[derive(Debug)]
pub struct Ownership {
    node: Owner,
    key: String,
    times: LeaseTimes,
    state: State,
    tag: u64,
    pending: Option<Pending>,
    due: Monotonic,
    silence: Silence,
}

impl Ownership {
    /// That of `node` in the shard whose owner `key` names; tags begin with `tag`.
    #[must_use]
    pub fn new(node: Owner, key: String, times: LeaseTimes, tag: u64) -> Self {
        let state = State::Watching(None);
        let (due, silence) = (Monotonic(0), Silence::default());
        Self { node, key, times, state, tag, pending: None, due, silence }
    }

    /// The epoch in which this node owns the shard, whether or not its lease is young enough to answer.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        match &self.state {
            State::Held(held) | State::Uncertain(held) => Some(held.epoch),
            State::Watching(_) => None,
        }
    }

    /// W1: whether the owner may answer. Asked behind what was executed.
    #[must_use]
    pub fn may_answer(&self, now: Monotonic) -> bool {
        self.answers_until().is_some_and(|until| now < until)
    }

    /// When the owner stops answering unless it renews its lease; `None`: it does not answer.
    #[must_use]
    pub fn answers_until(&self) -> Option<Monotonic> {
        let (State::Held(held) | State::Uncertain(held)) = &self.state else { return None };
        Some(Monotonic(held.renewed?.0 + self.times.lease_millis))
    }

    /// W4: whether nothing of this node's writes to the bucket has succeeded for too long.
    #[must_use]
    pub fn is_silent(&self, now: Monotonic) -> bool {
        self.silence.is_long(now)
    }

    /// The connection is lost: what an owner has under way is not answered any more, and it renews its lease as soon as it can.
    pub fn disconnected(&mut self, now: Monotonic) {
        if matches!(self.state, State::Watching(_)) {
            return;
        }
        self.silence.lost();
        if self.pending.take().is_some() {
            self.unknown(now);
        }
        self.due = self.due.min(Monotonic(now.0 + self.times.poll_millis));
    }

    /// Has this owner take a greater epoch, above `than` as well; [`OwnershipEvent::Taken`] says when.
    pub fn raise(&mut self, than: Epoch, now: Monotonic) {
        if let State::Held(held) | State::Uncertain(held) = &mut self.state {
            let at_least = Epoch(held.epoch.max(than).0 + 1);
            if held.at_least < at_least {
                held.at_least = at_least;
                self.due = now;
            }
        }
    }

    /// Has this owner give the shard up: it stops answering first.
    pub fn release(&mut self, now: Monotonic) {
        if let State::Held(held) | State::Uncertain(held) = &mut self.state {
            held.releases = true;
            held.renewed = None;
            self.due = now;
        }
    }

    /// What is to be sent now.
    pub fn tick(&mut self, contest: &Contest, now: Monotonic) -> Option<BucketRequest> {
        if let Some(pending) = &self.pending {
            if now.since(pending.sent) < self.times.answer_millis {
                return None;
            }
            self.pending = None;
            self.unknown(now);
        }
        if now < self.due {
            return None;
        }
        Some(match self.state {
            State::Watching(_) | State::Uncertain(_) => self.look(now),
            State::Held(held) if held.releases => {
                self.put(Purpose::Release, held.revision, held.epoch, now)
            }
            State::Held(held) => {
                let epoch = match held.at_least > held.epoch {
                    true => Epoch(held.at_least.0.max(contest.log_epoch.0 + 1)),
                    false => held.epoch,
                };
                self.put(Purpose::Renew(epoch), held.revision, epoch, now)
            }
        })
    }

    fn look(&mut self, now: Monotonic) -> BucketRequest {
        let tag = self.begin(Purpose::Look, now);
        BucketRequest::Get { tag, key: self.key.clone() }
    }

    fn put(
        &mut self,
        purpose: Purpose,
        revision: Revision,
        epoch: Epoch,
        now: Monotonic,
    ) -> BucketRequest {
        let tag = self.begin(purpose, now);
        let released = purpose == Purpose::Release;
        self.silence.asks(now);
        let value = Owner { epoch, released, ..self.node.clone() }.encode();
        BucketRequest::Put { tag, key: self.key.clone(), revision, value }
    }

    fn begin(&mut self, purpose: Purpose, now: Monotonic) -> u64 {
        self.tag += 1;
        self.pending = Some(Pending { tag: self.tag, sent: now, purpose });
        self.tag
    }

    /// A request has failed, or its outcome is unknown: whoever holds a lease tries again with the revision that it knows, and everybody else looks anew.
    fn unknown(&mut self, now: Monotonic) {
        if let State::Watching(seen) = &mut self.state {
            *seen = None;
        }
        self.due = Monotonic(now.0 + self.times.poll_millis);
    }

    /// An answer, and what is to be sent next, if anything is; one that is not awaited is ignored.
    pub fn answered(
        &mut self,
        answer: &BucketAnswer,
        contest: &Contest,
        now: Monotonic,
    ) -> (Option<OwnershipEvent>, Option<BucketRequest>) {
        let Some(pending) = self.pending.take_if(|pending| pending.tag == answer.tag()) else {
            return (None, None);
        };
        match answer {
            BucketAnswer::Get { entry: None, .. }
            | BucketAnswer::Put { outcome: PutOutcome::Unknown, .. } => {
                self.unknown(now);
                (None, None)
            }
            BucketAnswer::Get { entry: Some((revision, value)), .. } => {
                self.seen(*revision, value, pending.sent, contest, now)
            }
            BucketAnswer::Put { outcome: PutOutcome::Refused, .. } => {
                self.refused(now);
                (None, None)
            }
            BucketAnswer::Put { outcome: PutOutcome::Written(revision), .. } => {
                (self.written(pending, *revision, now), None)
            }
        }
    }

    fn refused(&mut self, now: Monotonic) {
        self.state = match self.state {
            State::Held(held) | State::Uncertain(held) => State::Uncertain(held),
            State::Watching(_) => State::Watching(None),
        };
        self.due = now;
    }

    fn written(
        &mut self,
        pending: Pending,
        revision: Revision,
        now: Monotonic,
    ) -> Option<OwnershipEvent> {
        let renewed = Some(pending.sent);
        self.silence.heard(false, now);
        self.due = Monotonic(pending.sent.0 + self.times.renew_millis);
        match (pending.purpose, &mut self.state) {
            (Purpose::Take(epoch), _) => {
                let (at_least, releases) = (epoch, false);
                self.state =
                    State::Held(HeldLease { epoch, revision, renewed, at_least, releases });
                Some(OwnershipEvent::Taken(epoch))
            }
            (Purpose::Renew(epoch), State::Held(held)) => {
                let raised = epoch > held.epoch;
                (held.revision, held.epoch) = (revision, epoch);
                if !held.releases {
                    held.renewed = renewed;
                }
                if held.releases || held.at_least > epoch {
                    self.due = now;
                }
                raised.then_some(OwnershipEvent::Taken(epoch))
            }
            (Purpose::Release, _) => {
                self.state = State::Watching(None);
                Some(OwnershipEvent::Lost)
            }
            (Purpose::Look | Purpose::Renew(_), _) => None,
        }
    }

    fn seen(
        &mut self,
        revision: Revision,
        value: &[u8],
        sent: Monotonic,
        contest: &Contest,
        now: Monotonic,
    ) -> (Option<OwnershipEvent>, Option<BucketRequest>) {
        self.due = Monotonic(now.0 + self.times.poll_millis);
        let owner = match (revision, Owner::decode(value)) {
            (Revision(0), _) => None,
            (_, Ok(owner)) => Some(owner),
            (_, Err(bad)) => return (Some(OwnershipEvent::Bad(bad)), None),
        };
        let own = owner.as_ref().filter(|owner| owner.is_same(&self.node) && !owner.released);
        match (self.state, own) {
            (State::Uncertain(held), Some(own)) => {
                // A write of its own whose outcome was unknown. Its time counts from the next renewal on. An epoch that it has
                // raised unknowingly may not be used: it is raised once more.
                let raised = own.epoch > held.epoch;
                let at_least = if raised { Epoch(own.epoch.0 + 1) } else { held.at_least };
                self.state = State::Held(HeldLease { revision, at_least, ..held });
                self.due = now;
                (None, None)
            }
            (State::Uncertain(_), None) => {
                self.state = State::Watching(None);
                (Some(OwnershipEvent::Lost), None)
            }
            (State::Watching(_), Some(own)) => {
                // A lease that it has taken unknowingly: it takes it once more, with an epoch of which it knows.
                let epoch = Epoch(own.epoch.max(contest.log_epoch).0 + 1);
                if !contest.wants || contest.writable_since.is_none() {
                    return (None, None);
                }
                (None, Some(self.put(Purpose::Take(epoch), revision, epoch, now)))
            }
            (State::Watching(before), None) => {
                let before = before.filter(|before| before.revision == revision);
                let seen = before.unwrap_or(Seen {
                    revision,
                    since: now,
                    epoch: owner.as_ref().map_or(Epoch(0), |owner| owner.epoch),
                    released: owner.is_some_and(|owner| owner.released),
                });
                self.state = State::Watching(Some(seen));
                (None, self.take(&seen, sent, contest, now))
            }
            (State::Held(_), _) => (None, None),
        }
    }

    /// W2: takes the lease, if that is time.
    fn take(
        &mut self,
        seen: &Seen,
        sent: Monotonic,
        contest: &Contest,
        now: Monotonic,
    ) -> Option<BucketRequest> {
        let writable = contest.writable_since.filter(|_| contest.wants)?;
        let (quiet_since, least) = match seen.released {
            true => (seen.since, 0),
            false => (seen.since.max(writable), self.times.claim_millis),
        };
        if sent.since(quiet_since) < least + contest.defer_millis {
            return None;
        }
        let epoch = Epoch(seen.epoch.max(contest.log_epoch).0 + 1);
        Some(self.put(Purpose::Take(epoch), seen.revision, epoch, now))
    }
}
