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
pub enum Asked {
    /// The log of its shard.
    Log(LogRequest),
    /// The bucket of all shards.
    Bucket(BucketRequest),
}

/// What it is answered.
#[derive(Clone, Debug)]
pub enum Answered {
    /// By the log.
    Log(LogAnswer),
    /// By the bucket.
    Bucket(BucketAnswer),
}

/// Who asks: a node, and the number of its life.
pub type Asker = (usize, u64);

/// Most messages that a read gives.
const READ_MESSAGES: usize = 16;

/// The log of a shard.
#[derive(Debug, Default)]
struct ShardLog {
    /// Messages, the first of which has sequence 1.
    messages: Vec<Vec<u8>>,
    /// How many were purged.
    purged: usize,
    ids: BTreeMap<MessageId, u64>,
    /// Appends that are kept back until somebody claims.
    kept_back: Vec<(Asker, LogRequest)>,
    /// Appends of an epoch that were stored behind a claim of a greater one.
    trapped: u64,
    greatest: u64,
}

/// Servers, and the network between them and nodes.
#[derive(Debug)]
pub struct Cloud {
    logs: Vec<ShardLog>,
    /// Whose log each node's is.
    log_of: Vec<usize>,
    /// All states that keys have had.
    keys: BTreeMap<String, Vec<(Revision, Vec<u8>)>>,
    revision: u64,
    /// When there is a leader again, of the logs.
    pub log_leads: u64,
    /// The same, of the bucket.
    pub bucket_leads: u64,
    /// Until when what a node sends is kept back.
    pub stalled: Vec<u64>,
    /// Until when a node is cut off.
    pub cut_off: Vec<u64>,
    asked: BTreeMap<(u64, u64), (Asker, Asked)>,
    answers: BTreeMap<(u64, u64), (Asker, Answered)>,
    /// When the last request and the last answer of a node arrive.
    last: Vec<(u64, u64)>,
    count: u64,
}

impl ShardLog {
    fn last(&self) -> u64 {
        self.messages.len() as u64
    }

    fn store(&mut self, id: MessageId, bytes: Vec<u8>) -> AppendOutcome {
        self.messages.push(bytes);
        self.ids.insert(id, self.last());
        self.trapped += u64::from(id.epoch.0 < self.greatest);
        self.greatest = self.greatest.max(id.epoch.0);
        AppendOutcome::Stored(Sequence(self.last()))
    }
}

impl Cloud {
    /// Empty logs of shards, and an empty bucket; each node is for one shard.
    #[must_use]
    pub fn new(shards_of_nodes: &[usize]) -> Self {
        let logs = shards_of_nodes.iter().max().map_or(0, |last| last + 1);
        let nodes = shards_of_nodes.len();
        Self {
            logs: (0..logs).map(|_| ShardLog::default()).collect(),
            log_of: shards_of_nodes.to_vec(),
            keys: BTreeMap::new(),
            revision: 0,
            log_leads: 0,
            bucket_leads: 0,
            stalled: vec![0; nodes],
            cut_off: vec![0; nodes],
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            last: vec![(0, 0); nodes],
            count: 0,
        }
    }

    /// The last sequence of a shard's log.
    #[must_use]
    pub fn last(&self, shard: usize) -> u64 {
        self.logs[shard].last()
    }

    /// How many messages of it were purged.
    #[must_use]
    pub fn purged(&self, shard: usize) -> usize {
        self.logs[shard].purged
    }

    /// What of it there is.
    #[must_use]
    pub fn extent(&self, shard: usize) -> LogExtent {
        let log = &self.logs[shard];
        let bytes = log.messages[log.purged..].iter().map(Vec::len).sum::<usize>() as u64;
        LogExtent { first: Sequence(log.purged as u64 + 1), bytes }
    }

    /// How many appends of an epoch were stored behind a claim of a greater one.
    #[must_use]
    pub fn trapped(&self) -> u64 {
        self.logs.iter().map(|log| log.trapped).sum()
    }

    /// All keys of the bucket, with what they have now.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Revision, &[u8])> {
        let last = |states: &'_ [(Revision, Vec<u8>)]| states.len().checked_sub(1);
        self.keys.iter().filter_map(move |(key, states)| {
            let (revision, value) = &states[last(states)?];
            Some((&**key, *revision, &**value))
        })
    }

    /// Answers at once, as servers do that nothing has happened to.
    pub fn bucket_at_once(&mut self, request: BucketRequest) -> BucketAnswer {
        self.bucket(&mut Rng::new(0), &LogFaults::default(), request)
    }

    /// The last value of a key of the bucket.
    #[must_use]
    pub fn value_of(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key)?.last().map(|(_, value)| &**value)
    }

    /// Somebody who operates the cluster writes a key of the bucket.
    pub fn write(&mut self, key: &str, value: Vec<u8>) {
        self.revision += 1;
        self.keys.entry(key.into()).or_default().push((Revision(self.revision), value));
    }

    /// A node sends a request.
    pub fn send(
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
        let log = &mut self.logs[self.log_of[node]];
        let waits = |id: MessageId| {
            let mut kept = log.kept_back.iter();
            kept.any(|(_, request)| matches!(request, LogRequest::Append { id: kept, .. } if kept.epoch == id.epoch))
        };
        let keeps_back = rng.below(1000) < faults.traps
            || matches!(&asked, Asked::Log(LogRequest::Append { id, .. }) if waits(*id));
        let mut at = (now + 1 + rng.below(30) as u64).max(stalled);
        match asked {
            Asked::Log(request @ LogRequest::Append { id, .. }) if id.number > 0 && keeps_back => {
                log.kept_back.push((asker, request));
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
    pub fn serve(&mut self, rng: &mut Rng, faults: &LogFaults, now: u64) {
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
            let shard = self.log_of[asker.0];
            let before = self.last(shard);
            let answer = match asked {
                Asked::Log(request) => self.log(rng, faults, shard, request).map(Answered::Log),
                Asked::Bucket(request) => Some(Answered::Bucket(self.bucket(rng, faults, request))),
            };
            if let Some(answer) = answer {
                self.answer(rng, faults, now, asker, answer);
            }
            if claims && self.last(shard) > before {
                let some = 2 + rng.below(3);
                let kept_back = std::mem::take(&mut self.logs[shard].kept_back);
                for (asker, request) in kept_back.into_iter().take(some) {
                    let answer = self.log(rng, faults, shard, request).map(Answered::Log);
                    answer.into_iter().for_each(|one| self.answer(rng, faults, now, asker, one));
                }
            }
        }
    }

    /// The next answer that has arrived at a node; those to earlier lives are lost.
    pub fn arrived(&mut self, now: u64, asker: Asker) -> Option<Answered> {
        let due = self.answers.range(..=(now, u64::MAX));
        let key = due.filter(|(_, (to, _))| to.0 == asker.0).map(|(&key, _)| key).next()?;
        let (to, answer) = self.answers.remove(&key)?;
        if to == asker { Some(answer) } else { self.arrived(now, asker) }
    }

    fn log(
        &mut self,
        rng: &mut Rng,
        faults: &LogFaults,
        shard: usize,
        request: LogRequest,
    ) -> Option<LogAnswer> {
        let log = &mut self.logs[shard];
        match request {
            LogRequest::Append { id, expected, bytes } => {
                let outcome = match log.ids.get(&id) {
                    Some(&sequence) => AppendOutcome::Stored(Sequence(sequence)),
                    None if rng.below(1000) < faults.refused => AppendOutcome::Refused,
                    None if expected.0 != log.last() => AppendOutcome::Refused,
                    None => log.store(id, bytes),
                };
                Some(LogAnswer::Append { id, outcome })
            }
            LogRequest::Read { tag, from } => {
                // A replica that is behind answers.
                let stale = if rng.below(1000) < faults.stale { rng.below(8) } else { 0 };
                let end = log.messages.len().saturating_sub(stale).max(log.purged);
                let first = (from.0 as usize).saturating_sub(1).max(log.purged).min(end);
                let some = first..end.min(first + 1 + rng.below(READ_MESSAGES));
                let messages = some.map(|at| (Sequence(at as u64 + 1), log.messages[at].clone()));
                let batch = LogBatch {
                    messages: messages.collect(),
                    first: Sequence(log.purged as u64 + 1),
                    last: Sequence(end as u64),
                };
                Some(LogAnswer::Read { tag, batch: Some(batch) })
            }
            LogRequest::Purge { below } => {
                log.purged = log.purged.max((below.0 as usize).saturating_sub(1));
                None
            }
        }
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
