//! The servers that keep log and bucket, and the way to them.

use super::run::LogFaults;
use headwater_log::{
    AppendOutcome, BucketAnswer, BucketRequest, LogAnswer, LogBatch, LogExtent, LogRequest,
    MessageId, PutOutcome, Revision, Sequence,
};
use headwater_model::rng::Rng;
use std::collections::BTreeMap;

/// What a node asks.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Log(LogRequest),
    Bucket(BucketRequest),
}

/// What it is answered.
#[derive(Clone, Debug)]
pub(super) enum Answered {
    Log(LogAnswer),
    Bucket(BucketAnswer),
}

/// Who asks: a node, and the number of its life.
pub(super) type Asker = (usize, u64);

/// Most messages that a read gives.
const READ_MESSAGES: usize = 16;

/// Servers, and the network between them and nodes.
#[derive(Default)]
pub(super) struct Cloud {
    /// Messages, the first of which has sequence 1.
    messages: Vec<Vec<u8>>,
    /// How many were purged.
    purged: usize,
    ids: BTreeMap<MessageId, u64>,
    /// All states that keys have had.
    keys: BTreeMap<String, Vec<(Revision, Vec<u8>)>>,
    revision: u64,
    /// When there is a leader again, of the log and of the bucket.
    pub(super) log_leads: u64,
    pub(super) bucket_leads: u64,
    /// Until when what a node sends is kept back.
    pub(super) stalled: [u64; super::run::NODES],
    /// Until when a node is cut off.
    pub(super) cut_off: [u64; super::run::NODES],
    asked: BTreeMap<(u64, u64), (Asker, Asked)>,
    answers: BTreeMap<(u64, u64), (Asker, Answered)>,
    /// When the last request and the last answer of a node arrive.
    last: [(u64, u64); super::run::NODES],
    count: u64,
    /// Appends that are kept back until somebody claims.
    kept_back: Vec<(Asker, LogRequest)>,
    /// Appends of an epoch that were stored behind a claim of a greater one.
    pub(super) trapped: u64,
    greatest: u64,
}

impl Cloud {
    /// The last sequence.
    pub(super) fn last(&self) -> u64 {
        self.messages.len() as u64
    }

    /// How many messages were purged.
    pub(super) fn purged(&self) -> usize {
        self.purged
    }

    /// What of the log there is.
    pub(super) fn extent(&self) -> LogExtent {
        let bytes = self.messages[self.purged..].iter().map(Vec::len).sum::<usize>() as u64;
        LogExtent { first: Sequence(self.purged as u64 + 1), bytes }
    }

    /// The last value of a key of the bucket.
    pub(super) fn value_of(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key)?.last().map(|(_, value)| &**value)
    }

    /// Somebody who operates the cluster writes a key of the bucket.
    pub(super) fn write(&mut self, key: &str, value: Vec<u8>) {
        self.revision += 1;
        self.keys.entry(key.into()).or_default().push((Revision(self.revision), value));
    }

    /// A node sends a request.
    pub(super) fn send(
        &mut self,
        rng: &mut Rng,
        faults: &LogFaults,
        now: u64,
        asker: Asker,
        asked: Asked,
    ) {
        let node = asker.0;
        let is_append = matches!(asked, Asked::Log(LogRequest::Append { .. }));
        let stalled = self.stalled[node].max(match self.cut_off[node] > now {
            // What is sent into a cut is lost, or waits in a buffer until it is over.
            true if rng.chance(50) => self.cut_off[node],
            true => return,
            false => 0,
        });
        if rng.below(1000) < faults.lost {
            return;
        }
        // Once one of an epoch is kept back, so are those behind it.
        let waits = |id: MessageId| {
            let mut kept = self.kept_back.iter();
            kept.any(|(_, request)| matches!(request, LogRequest::Append { id: kept, .. } if kept.epoch == id.epoch))
        };
        let keeps_back = rng.below(1000) < faults.traps
            || matches!(&asked, Asked::Log(LogRequest::Append { id, .. }) if waits(*id));
        let mut at = (now + 1 + rng.below(30) as u64).max(stalled);
        match asked {
            Asked::Log(request @ LogRequest::Append { id, .. }) if id.number > 0 && keeps_back => {
                self.kept_back.push((asker, request));
            }
            asked => self.send_at(rng, faults, &mut at, asker, (asked, is_append)),
        }
    }

    fn send_at(
        &mut self,
        rng: &mut Rng,
        faults: &LogFaults,
        at: &mut u64,
        asker: Asker,
        (asked, is_append): (Asked, bool),
    ) {
        let node = asker.0;
        if is_append && rng.below(1000) < faults.early {
            *at += rng.below(400) as u64;
        } else {
            *at = (*at).max(self.last[node].0);
            self.last[node].0 = *at;
        }
        self.count += 1;
        self.asked.insert((*at, self.count), (asker, asked));
    }

    fn answer(
        &mut self,
        rng: &mut Rng,
        faults: &LogFaults,
        now: u64,
        asker: Asker,
        answer: Answered,
    ) {
        let times = if rng.below(1000) < faults.twice { 2 } else { 1 };
        for _ in 0..times {
            if rng.below(1000) < faults.lost || self.cut_off[asker.0] > now {
                continue;
            }
            let mut at = now + 1 + rng.below(30) as u64;
            // Late answers of the bucket cost a node its lease: some are enough.
            let late = match &answer {
                Answered::Log(_) => faults.late,
                Answered::Bucket(_) => faults.late.div_ceil(8),
            };
            if rng.below(1000) < late {
                at += rng.below(7000) as u64;
            } else {
                at = at.max(self.last[asker.0].1);
                self.last[asker.0].1 = at;
            }
            self.count += 1;
            self.answers.insert((at, self.count), (asker, answer.clone()));
        }
    }

    /// Does what has arrived by `now`.
    pub(super) fn serve(&mut self, rng: &mut Rng, faults: &LogFaults, now: u64) {
        while let Some(entry) = self.asked.first_entry().filter(|entry| entry.key().0 <= now) {
            let (asker, asked) = entry.remove();
            let leads = match &asked {
                Asked::Log(_) => self.log_leads,
                Asked::Bucket(_) => self.bucket_leads,
            };
            if leads > now {
                match rng.below(3) {
                    // Nobody is there to answer.
                    0 => {}
                    1 => {
                        let answer = failed(&asked);
                        self.answer(rng, faults, now, asker, answer);
                    }
                    _ => {
                        self.count += 1;
                        self.asked.insert((leads, self.count), (asker, asked));
                    }
                }
                continue;
            }
            let claims =
                matches!(&asked, Asked::Log(LogRequest::Append { id, .. }) if id.number == 0);
            let before = self.last();
            let answer = match asked {
                Asked::Log(request) => self.log(rng, faults, request).map(Answered::Log),
                Asked::Bucket(request) => Some(Answered::Bucket(self.bucket(rng, faults, request))),
            };
            if let Some(answer) = answer {
                self.answer(rng, faults, now, asker, answer);
            }
            if claims && self.last() > before {
                let some = 2 + rng.below(3);
                for (asker, request) in std::mem::take(&mut self.kept_back).into_iter().take(some) {
                    let answer = self.log(rng, faults, request).map(Answered::Log);
                    answer.into_iter().for_each(|one| self.answer(rng, faults, now, asker, one));
                }
            }
        }
    }

    /// The next answer that has arrived at a node; those to earlier lives are lost.
    pub(super) fn arrived(&mut self, now: u64, asker: Asker) -> Option<Answered> {
        let due = self.answers.range(..=(now, u64::MAX));
        let key = due.filter(|(_, (to, _))| to.0 == asker.0).map(|(&key, _)| key).next()?;
        let (to, answer) = self.answers.remove(&key)?;
        if to == asker { Some(answer) } else { self.arrived(now, asker) }
    }

    fn log(&mut self, rng: &mut Rng, faults: &LogFaults, request: LogRequest) -> Option<LogAnswer> {
        match request {
            LogRequest::Append { id, expected, bytes } => {
                let outcome = match self.ids.get(&id) {
                    Some(&sequence) => AppendOutcome::Stored(Sequence(sequence)),
                    None if rng.below(1000) < faults.refused => AppendOutcome::Refused,
                    None if expected.0 != self.last() => AppendOutcome::Refused,
                    None => self.store(id, bytes),
                };
                Some(LogAnswer::Append { id, outcome })
            }
            LogRequest::Read { tag, from } => {
                // A replica that is behind answers.
                let stale = if rng.below(1000) < faults.stale { rng.below(8) } else { 0 };
                let end = self.messages.len().saturating_sub(stale).max(self.purged);
                let first = (from.0 as usize).saturating_sub(1).max(self.purged).min(end);
                let some = first..end.min(first + 1 + rng.below(READ_MESSAGES));
                let messages = some.map(|at| (Sequence(at as u64 + 1), self.messages[at].clone()));
                let batch = LogBatch {
                    messages: messages.collect(),
                    first: Sequence(self.purged as u64 + 1),
                    last: Sequence(end as u64),
                };
                Some(LogAnswer::Read { tag, batch: Some(batch) })
            }
            LogRequest::Purge { below } => {
                self.purged = self.purged.max((below.0 as usize).saturating_sub(1));
                None
            }
        }
    }

    fn store(&mut self, id: MessageId, bytes: Vec<u8>) -> AppendOutcome {
        self.messages.push(bytes);
        self.ids.insert(id, self.last());
        self.trapped += u64::from(id.epoch.0 < self.greatest);
        self.greatest = self.greatest.max(id.epoch.0);
        AppendOutcome::Stored(Sequence(self.last()))
    }

    fn bucket(
        &mut self,
        rng: &mut Rng,
        faults: &LogFaults,
        request: BucketRequest,
    ) -> BucketAnswer {
        match request {
            BucketRequest::Get { tag, key } => {
                let states = self.keys.get(&key).map_or(&[][..], Vec::as_slice);
                let stale = if rng.below(1000) < faults.stale { rng.below(3) } else { 0 };
                let state = states.len().checked_sub(1 + stale).map(|at| states[at].clone());
                BucketAnswer::Get { tag, entry: Some(state.unwrap_or_default()) }
            }
            BucketRequest::Put { tag, key, revision, value } => {
                let states = self.keys.entry(key).or_default();
                let current = states.last().map_or(Revision(0), |(revision, _)| *revision);
                if current != revision || rng.below(1000) < faults.refused {
                    return BucketAnswer::Put { tag, outcome: PutOutcome::Refused };
                }
                self.revision += 1;
                states.push((Revision(self.revision), value));
                let outcome = PutOutcome::Written(Revision(self.revision));
                BucketAnswer::Put { tag, outcome }
            }
        }
    }
}

/// What is answered where there is no leader.
fn failed(asked: &Asked) -> Answered {
    match asked {
        Asked::Log(LogRequest::Append { id, .. }) => {
            Answered::Log(LogAnswer::Append { id: *id, outcome: AppendOutcome::Unknown })
        }
        Asked::Log(LogRequest::Read { tag, .. }) => {
            Answered::Log(LogAnswer::Read { tag: *tag, batch: None })
        }
        Asked::Log(LogRequest::Purge { .. }) => {
            Answered::Log(LogAnswer::Read { tag: 0, batch: None })
        }
        Asked::Bucket(BucketRequest::Get { tag, .. }) => {
            Answered::Bucket(BucketAnswer::Get { tag: *tag, entry: None })
        }
        Asked::Bucket(BucketRequest::Put { tag, .. }) => {
            Answered::Bucket(BucketAnswer::Put { tag: *tag, outcome: PutOutcome::Unknown })
        }
    }
}
