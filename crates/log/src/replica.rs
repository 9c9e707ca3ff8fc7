//! One node's copy of a shard: it follows the log, and where it has the lease it claims the log, appends and answers.
//!
//! What has to be sent and done comes out as [`ReplicaEffect`]s. A node has applied what [`ReplicaEffect::Apply`] says, and as an
//! owner what it has appended itself; of the latter, what is not acknowledged is gone with [`ReplicaEffect::Stop`], and comes again by
//! [`ReplicaEffect::Apply`] if the log has it.

mod facts;

use crate::appender::{AppendWindow, Appender, Progress, Turn};
use crate::fields::BadValue;
use crate::formats::FormatRange;
use crate::owner::Owner;
use crate::ownership::{Contest, LeaseTimes, Ownership, OwnershipEvent};
use crate::reader::{LogEntry, LogPosition, LogReader, StopReason};
use crate::record::{Epoch, LogId, RecordHeader, RecordKind};
use crate::seam::{
    AppendOutcome, BucketAnswer, BucketRequest, LogAnswer, LogBatch, LogRequest, MessageId,
    Monotonic, Sequence,
};
use crate::silence::Silence;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// How long after a failure the log is read again, in milliseconds.
const RETRY_MILLIS: u64 = 50;

/// For how long a follower that was at the end of the log has followed it, in milliseconds.
const FOLLOWED_MILLIS: u64 = 2000;

/// What a replica must know from the start.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The stream of the shard's log.
    pub stream: String,
    /// The key of the bucket that names the shard's owner.
    pub key: String,
    /// This node; its epoch says nothing.
    pub node: Owner,
    /// Times of leases.
    pub times: LeaseTimes,
    /// How much is appended at a time.
    pub window: AppendWindow,
    /// How often a follower reads, in milliseconds.
    pub follow_millis: u64,
    /// The state that it begins with says to be of an earlier stream of this name.
    pub made_anew: bool,
    /// The formats of records that it reads.
    pub records: FormatRange,
}

/// What a replica is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaInput {
    /// Time has passed; what this node knows of the bucket, and whether it wants the shard. Told at least every 50 ms.
    Tick {
        /// Whether this node may own the shard: [`DrainLook::may_own`](crate::DrainLook::may_own).
        wants: bool,
        /// [`Contest::defer_millis`].
        defer_millis: u64,
        /// [`Heartbeat::writable_since`](crate::Heartbeat::writable_since).
        writable_since: Option<Monotonic>,
    },
    /// The log has answered.
    Log(LogAnswer),
    /// The bucket has answered.
    Bucket(BucketAnswer),
}

/// What a replica wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaEffect {
    /// Asks the log.
    Log(LogRequest),
    /// Asks the bucket.
    Bucket(BucketRequest),
    /// Applies a record of the log, which is acknowledged.
    Apply(LogEntry),
    /// Begins to execute: all records up to its claim have been applied.
    Serve(Epoch),
    /// All turns up to this one are acknowledged: what waited for them may go out, if [`Replica::may_answer`].
    Acknowledged {
        /// The last of them, in the epoch of the last [`ReplicaEffect::Serve`].
        turn: Turn,
        /// Where it ends: what a folder that has applied it names.
        position: LogPosition,
    },
    /// D2: the node is to give the shard up. It executes nothing new, completes what is under way, and calls [`Replica::release`]. Said once in each
    /// epoch.
    Leave,
    /// Stops executing, and goes back to what was at this position: whatever was appended behind it may be in the log or not.
    Stop(LogPosition),
    /// Stops for good.
    Halt(ReplicaStop),
}

/// Why a replica stops for good: a sentence for who operates the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplicaStop {
    /// The log is not to be believed, or begins too late.
    Log(StopReason),
    /// The key that names the owner cannot be read.
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        bad: BadValue,
    },
}

impl fmt::Display for ReplicaStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(reason) => reason.fmt(f),
            Self::Key { key, bad } => {
                write!(f, "key {key} of the bucket of owners cannot be read: {bad}")
            }
        }
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
struct ReadUnderWay {
    tag: u64,
    sent: Monotonic,
}

/// A claim under way.
#[derive(Clone, Copy, Debug)]
struct ClaimUnderWay {
    expected: Sequence,
    checksum: u64,
    sent: Monotonic,
}

#[derive(Debug)]
enum Role {
    /// Applies what others append.
    Follows,
    /// Has the lease, reads to the end of the log, and claims it there.
    Claims { epoch: Epoch, claim: Option<ClaimUnderWay> },
    /// Owns the log; turns up to here are acknowledged. `leaves`: [`ReplicaEffect::Leave`] was said.
    Serves { appender: Appender, acknowledged: LogPosition, leaves: bool },
    /// Has stopped for good.
    Halted,
}

/// One node's copy of a shard.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    log: LogId,
    ownership: Ownership,
    contest: Contest,
    reader: LogReader,
    role: Role,
    tag: u64,
    read: Option<ReadUnderWay>,
    /// When the next read is due.
    due: Monotonic,
    /// When it was at the end of the log last.
    at_end: Option<Monotonic>,
    /// When the log has answered a read last, and what its last sequence was then.
    end: Option<(Monotonic, Sequence)>,
    /// What has become of the appends of its last epoch.
    silence: Silence,
    /// The newest format of records that all known processes read; `None`: that is not known.
    for_all: Option<u16>,
    /// The newest format that the log is known to have; 0: none. Whoever does not read it has stopped there, so nodes that come later with an older
    /// program change nothing.
    in_log: u16,
    /// The first turn of a newer one, which is not acknowledged.
    raised: Option<(Turn, u16)>,
    /// [`Self::believe_all`].
    believes_all: bool,
}

impl Replica {
    /// A replica whose state is what it was at `from`; its requests' tags begin with `tag`.
    #[must_use]
    pub fn new(config: ReplicaConfig, from: LogPosition, tag: u64) -> Self {
        let (node, key) = (config.node.clone(), config.key.clone());
        let ownership = Ownership::new(node, key, config.times, tag);
        let contest =
            Contest { wants: false, defer_millis: 0, writable_since: None, log_epoch: Epoch(0) };
        Self {
            log: LogId::of(&config.stream),
            ownership,
            contest,
            reader: LogReader::new(&config.stream, from).with_formats(config.records),
            role: Role::Follows,
            tag,
            read: None,
            due: Monotonic(0),
            at_end: None,
            end: None,
            silence: Silence::default(),
            for_all: None,
            in_log: 0,
            raised: None,
            believes_all: false,
            config,
        }
    }

    /// Takes records of older epochs than the last claim's for data from now on: what a simulation has to notice.
    #[doc(hidden)]
    pub fn believe_all(&mut self) {
        self.believes_all = true;
        self.reader = self.reader.clone().believing_all(true);
    }

    /// Appends the data of a turn that was executed; `None`: it does not serve.
    pub fn append(
        &mut self,
        schema: u64,
        payload: &[u8],
        now: Monotonic,
        effects: &mut Vec<ReplicaEffect>,
    ) -> Option<Turn> {
        let format = self.writes();
        let Role::Serves { appender, .. } = &mut self.role else { return None };
        appender.set_format(format);
        let turn = appender.append(schema, payload);
        if self.raised.is_none() && format > self.in_log {
            self.raised = Some((turn, format));
        }
        pump(appender, &mut self.silence, now, effects);
        Some(turn)
    }

    /// The last turn that was appended: what an answer that shows it has to wait for.
    #[must_use]
    pub fn last_turn(&self) -> Option<Turn> {
        match &self.role {
            Role::Serves { appender, .. } => Some(appender.last_turn()),
            _ => None,
        }
    }

    /// Gives the shard up, for others to take at once.
    pub fn release(&mut self, now: Monotonic, effects: &mut Vec<ReplicaEffect>) {
        self.contest.wants = false;
        self.ownership.release(now);
        self.stop(now, effects);
        self.role = Role::Follows;
    }

    /// Does what an input says.
    pub fn handle(
        &mut self,
        input: ReplicaInput,
        now: Monotonic,
        effects: &mut Vec<ReplicaEffect>,
    ) {
        if matches!(self.role, Role::Halted) {
            return;
        }
        self.contest.log_epoch = self.reader.epoch();
        match input {
            ReplicaInput::Tick { wants, defer_millis, writable_since } => {
                // A5: others may have the shard, whose folders are copies of this log.
                let wants = wants && !self.config.made_anew;
                self.contest = Contest { wants, defer_millis, writable_since, ..self.contest };
                if !wants {
                    self.leave(now, effects);
                }
                effects.extend(self.ownership.tick(&self.contest, now).map(ReplicaEffect::Bucket));
            }
            ReplicaInput::Bucket(answer) => {
                let (event, next) = self.ownership.answered(&answer, &self.contest, now);
                effects.extend(next.map(ReplicaEffect::Bucket));
                if let Some(event) = event {
                    self.ownership_changed(event, now, effects);
                }
            }
            ReplicaInput::Log(LogAnswer::Append { id, outcome }) => {
                self.appended(id, outcome, now, effects);
            }
            ReplicaInput::Log(LogAnswer::Read { tag, batch }) => {
                if self.read.take_if(|read| read.tag == tag).is_some() {
                    self.was_read(batch, now, effects);
                }
            }
        }
        self.go_on(now, effects);
    }

    /// D2: this node should not own the shard.
    fn leave(&mut self, now: Monotonic, effects: &mut Vec<ReplicaEffect>) {
        match &mut self.role {
            Role::Serves { leaves, .. } => {
                if !core::mem::replace(leaves, true) {
                    effects.push(ReplicaEffect::Leave);
                }
            }
            // Nobody has been served in this epoch: there is nothing to complete.
            Role::Claims { .. } => self.release(now, effects),
            Role::Follows | Role::Halted => {}
        }
    }

    /// What time alone brings: reads, claims, and appends that take too long.
    fn go_on(&mut self, now: Monotonic, effects: &mut Vec<ReplicaEffect>) {
        let timeout = self.config.window.timeout_millis;
        if self.read.take_if(|read| now.since(read.sent) >= timeout).is_some() {
            self.due = now;
        }
        let overdue = match &mut self.role {
            Role::Serves { appender, .. } => {
                pump(appender, &mut self.silence, now, effects);
                appender.is_overdue(now)
            }
            Role::Claims { claim, .. } => {
                claim.is_some_and(|claim| now.since(claim.sent) >= timeout)
            }
            _ => false,
        };
        if overdue {
            self.claim_again(now, effects);
        }
        let reads = match &self.role {
            Role::Follows => true,
            Role::Claims { claim, .. } => claim.is_none(),
            _ => false,
        };
        if reads && self.read.is_none() && now >= self.due {
            self.tag += 1;
            self.read = Some(ReadUnderWay { tag: self.tag, sent: now });
            let (tag, from) = (self.tag, self.reader.wants());
            effects.push(ReplicaEffect::Log(LogRequest::Read { tag, from }));
        }
    }

    fn ownership_changed(
        &mut self,
        event: OwnershipEvent,
        now: Monotonic,
        effects: &mut Vec<ReplicaEffect>,
    ) {
        match event {
            OwnershipEvent::Taken(epoch) => {
                self.stop(now, effects);
                self.role = Role::Claims { epoch, claim: None };
                // What was read before the lease was taken may not be all: it is read once more.
                self.read = None;
                self.due = now;
            }
            OwnershipEvent::Lost => {
                self.stop(now, effects);
                self.role = Role::Follows;
            }
            OwnershipEvent::Bad(bad) => {
                let key = self.config.key.clone();
                self.halt(ReplicaStop::Key { key, bad }, effects);
            }
        }
    }

    /// A1: what is not acknowledged is void, and the log is read from there on.
    fn stop(&mut self, now: Monotonic, effects: &mut Vec<ReplicaEffect>) {
        if let Role::Serves { acknowledged, .. } = &self.role {
            let position = *acknowledged;
            self.raised = None;
            let reader = LogReader::new(&self.config.stream, position);
            let reader = reader.with_formats(self.config.records);
            self.reader = reader.believing_all(self.believes_all);
            effects.push(ReplicaEffect::Stop(position));
            self.role = Role::Follows;
            self.read = None;
            self.due = now;
        }
    }

    /// Takes a greater epoch, with which it claims the log again.
    fn claim_again(&mut self, now: Monotonic, effects: &mut Vec<ReplicaEffect>) {
        self.stop(now, effects);
        self.ownership.raise(self.reader.epoch(), now);
        self.role = Role::Follows;
        self.due = Monotonic(now.0 + RETRY_MILLIS);
        effects.extend(self.ownership.tick(&self.contest, now).map(ReplicaEffect::Bucket));
    }

    fn halt(&mut self, stop: ReplicaStop, effects: &mut Vec<ReplicaEffect>) {
        if let Role::Serves { acknowledged, .. } = &self.role {
            effects.push(ReplicaEffect::Stop(*acknowledged));
        }
        self.role = Role::Halted;
        effects.push(ReplicaEffect::Halt(stop));
    }

    fn appended(
        &mut self,
        id: MessageId,
        outcome: AppendOutcome,
        now: Monotonic,
        effects: &mut Vec<ReplicaEffect>,
    ) {
        match &mut self.role {
            Role::Serves { appender, acknowledged, .. } => {
                let progress = appender.answered(id, outcome);
                if matches!(outcome, AppendOutcome::Stored(_)) && id.epoch == appender.epoch() {
                    self.silence.heard(appender.unacknowledged_bytes() > 0, now);
                }
                match progress {
                    Progress::Nothing => {}
                    Progress::Acknowledged { turn, position } => {
                        *acknowledged = position;
                        if let Some((_, format)) = self.raised.take_if(|(first, _)| *first <= turn)
                        {
                            self.in_log = format;
                        }
                        effects.push(ReplicaEffect::Acknowledged { turn, position });
                    }
                    Progress::Void => self.claim_again(now, effects),
                }
            }
            Role::Claims { epoch, claim } if id == (MessageId { epoch: *epoch, number: 0 }) => {
                let Some(under_way) = claim.take() else { return };
                match outcome {
                    AppendOutcome::Stored(at) if at == under_way.expected.next() => {
                        self.claimed(under_way, effects);
                    }
                    _ => self.claim_again(now, effects),
                }
            }
            _ => {}
        }
    }

    /// The log has accepted the claim: nothing was behind what was read.
    fn claimed(&mut self, claim: ClaimUnderWay, effects: &mut Vec<ReplicaEffect>) {
        let Role::Claims { epoch, .. } = self.role else { return };
        let sequence = claim.expected.next();
        if let Some(missing) = self.reader.unconfirmed() {
            let reason = StopReason::Missing {
                stream: self.config.stream.clone(),
                sequence: missing.sequence,
                found: sequence,
            };
            return self.halt(ReplicaStop::Log(reason), effects);
        }
        let position = LogPosition { sequence, checksum: claim.checksum };
        let payload = self.config.node.encode();
        effects.push(ReplicaEffect::Apply(LogEntry::Claim { position, epoch, payload }));
        let appender = Appender::new(self.log, epoch, position, self.config.window);
        self.silence = Silence::default();
        self.role = Role::Serves { appender, acknowledged: position, leaves: false };
        effects.push(ReplicaEffect::Serve(epoch));
    }

    fn was_read(
        &mut self,
        batch: Option<LogBatch>,
        now: Monotonic,
        effects: &mut Vec<ReplicaEffect>,
    ) {
        let Some(batch) = batch else {
            self.due = Monotonic(now.0 + RETRY_MILLIS);
            return;
        };
        let unconfirmed = self.reader.unconfirmed().filter(|_| self.config.made_anew);
        if let Some(LogPosition { sequence, .. }) = unconfirmed
            && !(batch.first..=batch.last).contains(&sequence)
        {
            let (stream, has) = (self.config.stream.clone(), (batch.first, batch.last));
            let reason = StopReason::MadeAnew { stream, sequence, has };
            return self.halt(ReplicaStop::Log(reason), effects);
        }
        if let Err(reason) = self.reader.begins_at(batch.first) {
            return self.halt(ReplicaStop::Log(reason), effects);
        }
        for (sequence, bytes) in &batch.messages {
            match self.reader.read(*sequence, bytes) {
                Ok(entry) => effects.extend(entry.map(ReplicaEffect::Apply)),
                Err(reason) => return self.halt(ReplicaStop::Log(reason), effects),
            }
        }
        self.config.made_anew &= !self.has_confirmed();
        self.in_log = self.in_log.max(self.reader.newest_format());
        self.end = Some((now, batch.last));
        let at_end = self.reader.at() >= batch.last || self.reader.unconfirmed().is_some();
        if at_end {
            self.at_end = Some(now);
        }
        match self.role {
            _ if !at_end => {
                // Where nothing has come, the server that has answered knows less than it says.
                let pause = if batch.messages.is_empty() { RETRY_MILLIS } else { 0 };
                self.due = Monotonic(now.0 + pause);
            }
            Role::Claims { epoch, claim: None } => self.claim(epoch, batch.last, now, effects),
            _ => self.due = Monotonic(now.0 + self.config.follow_millis),
        }
    }

    /// Claims the log behind all that was read; a record that must be there and was not keeps `last` where the log ends.
    fn claim(
        &mut self,
        epoch: Epoch,
        last: Sequence,
        now: Monotonic,
        effects: &mut Vec<ReplicaEffect>,
    ) {
        if self.reader.epoch() >= epoch {
            return self.claim_again(now, effects);
        }
        let before = self.reader.last_checksum();
        // That it is accepted before a record that must be there proves that it is lost: all who read the claim are told.
        let number = self.reader.unconfirmed().map_or(0, |missing| missing.sequence.0);
        let (format, kind) = (self.writes(), RecordKind::Claim);
        let header = RecordHeader { format, kind, epoch, number, before, schema: 0 };
        let (bytes, checksum) = header.encode(self.log, &self.config.node.encode());
        let expected = match self.reader.unconfirmed() {
            Some(missing) => last.min(Sequence(missing.sequence.0 - 1)),
            None => self.reader.at(),
        };
        let id = MessageId { epoch, number: 0 };
        effects.push(ReplicaEffect::Log(LogRequest::Append { id, expected, bytes }));
        let claim = Some(ClaimUnderWay { expected, checksum, sent: now });
        self.role = Role::Claims { epoch, claim };
    }
}

/// Sends what there is room for.
fn pump(
    appender: &mut Appender,
    silence: &mut Silence,
    now: Monotonic,
    effects: &mut Vec<ReplicaEffect>,
) {
    while let Some(request) = appender.next(now) {
        silence.asks(now);
        effects.push(ReplicaEffect::Log(request));
    }
}
