//! Effects on keys of other shards: what these are asked, what they answer, and when either may be sent.
//!
//! The shard that has a record keeps its task, with the task's place in the order, its attempts and its end. It asks the homes of
//! other keys to carry out parts of the task ([`RemoteEffect`]), or for keys that a fan-out follows ([`RemoteRead`]). When all of
//! them have answered, the task goes on, or is done. What it takes to do this is in one place, [`RemoteEffects`], on either
//! side: whoever drives it carries requests out, and brings messages from shard to shard.
//!
//! After a crash a shard is asked again, and must not do again what it has done: so it keeps, in one batch with the effects, a
//! state that says how far it has come with the task ([`Flows::note_seen`]), until the task is done for good where its record is.
//!
//! # Invariants
//! - G1. With a store, no other shard hears of a task before its record will survive a crash of the process (under
//!   `always`: of the machine), and the task's own shard hears that a part is done, or of keys, only when that is so of
//!   the effects, and of the keys. So no effect outlives its cause, and none is missing of what counts as done.
//! - G2. A partition stays where it is while a task that is not done was caused by one of its keys, or has effects on
//!   one that others were asked for.
//!
//! # Cost
//! A message each way for a task and home (for 256 outputs of a fan-out), and a commit of the store before each of them. One state
//! in the journal for a part that was carried out, and a look at those of the flow now and then.

mod codec;
mod message;
mod seen;

pub use message::{
    Output, RemoteEffect, RemoteMessage, RemoteRead, RemoteRequest, RemoteResponse, RemoteTask,
};

use crate::flows::{Flows, Outcome, Task};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::placement::Partition;
use headwater_base::{Placement, Shard};
use seen::hash_of;

/// Tasks whose effects have so many bytes may be under way elsewhere without a worker.
const EFFECT_BYTES_MAX: usize = 1 << 20;
/// Tasks that keys were found for. Beyond these, those of tasks that were dropped are forgotten.
const FOUND_MAX: usize = 1024;

/// A task, by its flow and its place in the journal.
type TaskName = (String, u64);

/// The keys that were found by each read.
pub type FoundKeys = BTreeMap<RemoteRead, Vec<Vec<u8>>>;

/// A task of this shard whose requests are not all answered.
#[derive(Debug)]
struct PendingTask {
    task: Task,
    /// The shards that have not answered, as often as they were asked.
    missing: Vec<Shard>,
    /// The worst of what was answered.
    outcome: Outcome,
    wants: Wants,
}

/// What a task waits for.
#[derive(Debug)]
enum Wants {
    /// Effects of so many bytes. It goes on from the mark then, or is done.
    Effects {
        bytes: usize,
        mark: Option<Vec<u8>>,
    },
    Keys(FoundKeys),
}

/// How far a flow has come for good.
#[derive(Debug, Default)]
struct DurableCursor {
    position: u64,
    /// The operation that tells the store of the next position, which is not durable yet.
    next: Option<(u64, u64)>,
}

/// What tasks of this shard ask of others, and what others' tasks ask of this one.
#[derive(Debug, Default)]
pub struct RemoteEffects {
    /// There is a store: what is to survive is sent when it has it (G1).
    is_durable: bool,
    next: u64,
    pending: BTreeMap<u64, PendingTask>,
    /// Bytes of all effects that are not answered.
    effect_bytes: usize,
    /// The partitions of the keys that a task has effects on, until all of them are done (G2).
    partitions: BTreeMap<TaskName, Vec<Partition>>,
    /// Keys of others that tasks have asked for, until their next slice.
    found: BTreeMap<TaskName, FoundKeys>,
    cursors: BTreeMap<String, DurableCursor>,
    /// Requests of other shards.
    inbox: VecDeque<(Shard, u64, RemoteRequest)>,
    /// Those that wait for data here.
    waiting: Vec<(Shard, u64, RemoteRequest)>,
    outbox: Vec<(Shard, RemoteMessage)>,
    /// Messages that wait for the store, with the operation that must be durable; `None`: it is known at the end of the batch.
    unacknowledged: VecDeque<(Option<u64>, Shard, RemoteMessage)>,
}

/// The worse of two: a failure counts more than waiting.
fn worse(one: Outcome, other: Outcome) -> Outcome {
    match (&one, &other) {
        (Outcome::Failed(_), _) | (_, Outcome::Done) => one,
        (_, Outcome::Failed(_)) | (Outcome::Done, _) => other,
        _ => one,
    }
}

impl RemoteEffects {
    /// Nothing is asked. `is_durable`: effects and records outlive the process once a store has them, of which
    /// [`RemoteEffects::end_batch`] hears.
    #[must_use]
    pub fn new(is_durable: bool) -> Self {
        Self { is_durable, ..Self::default() }
    }

    /// What other shards are told of a task of this one.
    #[must_use]
    pub fn describe(&self, flows: &Flows, task: &Task, origin: Shard) -> Option<RemoteTask> {
        let (_, flow) = flows.flows.get(&task.flow)?;
        let durable = match self.cursors.get(&task.flow) {
            _ if !self.is_durable => u64::MAX,
            known => known.map_or(0, |known| known.position),
        };
        Some(RemoteTask {
            flow: task.flow.clone(),
            words: hash_of(&flow.text),
            origin,
            position: task.record.position,
            at: task.record.at,
            replays: flow.replays,
            below: durable.min(flow.cursor()),
        })
    }

    /// Has other shards carry out parts of a task, which has had effects on keys of this shard already.
    pub fn request_effects(
        &mut self,
        flows: &mut Flows,
        (task, remote): (Task, RemoteTask),
        parts: Vec<(Shard, RemoteEffect)>,
        (own, placement): (&[Output], &Placement),
        mark: Option<Vec<u8>>,
    ) {
        let keys = own.iter().map(|output| output.key.as_slice());
        let keys = keys.chain(parts.iter().flat_map(|(_, effect)| effect.keys()));
        let mut partitions: Vec<Partition> = keys.map(|key| placement.partition(key)).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let bytes = parts.iter().map(|(_, effect)| effect.bytes()).sum();
        if self.effect_bytes + bytes <= EFFECT_BYTES_MAX {
            flows.free_worker(&task);
        }
        self.effect_bytes += bytes;
        self.partitions.insert((task.flow.clone(), task.record.position), partitions);
        let asked = parts.iter().map(|(to, _)| *to).collect();
        let number = self.begin(task, asked, Wants::Effects { bytes, mark });
        for (to, effect) in parts {
            let request = RemoteRequest::Effect(remote.clone().into(), effect);
            self.send_when_durable(to, RemoteMessage::Request(number, request));
        }
    }

    /// Asks other shards for keys that a task needs.
    pub fn request_keys(&mut self, flows: &mut Flows, task: Task, reads: Vec<RemoteRead>) {
        flows.free_worker(&task);
        let asked = reads.iter().map(|read| read.home).collect();
        let number = self.begin(task, asked, Wants::Keys(FoundKeys::new()));
        for read in reads {
            let (to, request) = (read.home, RemoteRequest::Read(read));
            self.outbox.push((to, RemoteMessage::Request(number, request)));
        }
    }

    fn begin(&mut self, task: Task, missing: Vec<Shard>, wants: Wants) -> u64 {
        self.next += 1;
        let pending = PendingTask { task, missing, outcome: Outcome::Done, wants };
        self.pending.insert(self.next, pending);
        self.next
    }

    fn send_when_durable(&mut self, to: Shard, message: RemoteMessage) {
        if self.is_durable {
            self.unacknowledged.push_back((None, to, message));
        } else {
            self.outbox.push((to, message));
        }
    }

    /// A batch of the store ends with the operation `told`; those up to `durable` will survive. What has waited for that can
    /// be sent.
    pub fn end_batch(&mut self, flows: &Flows, told: u64, durable: u64) {
        for (name, (_, flow)) in &flows.flows {
            let now = flow.cursor();
            let cursor = match self.cursors.get_mut(name) {
                Some(known) => known,
                None => self.cursors.entry(name.clone()).or_default(),
            };
            if let Some((_, position)) = cursor.next.take_if(|(told, _)| *told <= durable) {
                cursor.position = position;
            }
            if cursor.position != now {
                cursor.next.get_or_insert((told, now));
            }
        }
        for (operation, ..) in &mut self.unacknowledged {
            operation.get_or_insert(told);
        }
        while let Some((Some(operation), ..)) = self.unacknowledged.front()
            && *operation <= durable
            && let Some((_, to, message)) = self.unacknowledged.pop_front()
        {
            self.outbox.push((to, message));
        }
    }

    /// Takes the messages that can be sent.
    pub fn take_messages(&mut self) -> Vec<(Shard, RemoteMessage)> {
        core::mem::take(&mut self.outbox)
    }

    /// Takes in a message of another shard, while the placement has this version. Gives the task whose last answer it is,
    /// and what has come of that.
    pub fn receive(
        &mut self,
        flows: &Flows,
        from: Shard,
        message: RemoteMessage,
        version: u64,
    ) -> Option<(Task, Outcome)> {
        let (number, response) = match message {
            RemoteMessage::Request(number, request) => {
                self.inbox.push_back((from, number, request));
                return None;
            }
            RemoteMessage::Response(number, response) => (number, response),
        };
        let pending = self.pending.get_mut(&number)?;
        let outcome = match (response, &mut pending.wants) {
            (RemoteResponse::Effect(outcome), _) => outcome,
            // Homes have changed meanwhile: some keys might be found twice, or not at all.
            (RemoteResponse::Read(read, _), _) if read.version != version => Outcome::Waits,
            (RemoteResponse::Read(_, Err(outcome)), _) => outcome,
            (RemoteResponse::Read(read, Ok(keys)), Wants::Keys(found)) => {
                found.insert(read, keys);
                Outcome::Done
            }
            (RemoteResponse::Read(_, Ok(_)), Wants::Effects { .. }) => Outcome::Waits,
        };
        self.answered(flows, from, number, outcome)
    }

    /// A shard has answered a request of this number. Gives the task whose last answer it is, and what has come of that.
    fn answered(
        &mut self,
        flows: &Flows,
        from: Shard,
        number: u64,
        outcome: Outcome,
    ) -> Option<(Task, Outcome)> {
        let pending = self.pending.get_mut(&number)?;
        let place = pending.missing.iter().position(|shard| *shard == from)?;
        pending.missing.swap_remove(place);
        pending.outcome = worse(core::mem::replace(&mut pending.outcome, Outcome::Done), outcome);
        if !pending.missing.is_empty() {
            return None;
        }
        let PendingTask { task, outcome, wants, .. } = self.pending.remove(&number)?;
        let name = (task.flow.clone(), task.record.position);
        let outcome = match (outcome, wants) {
            (outcome, Wants::Effects { bytes, mark }) => {
                self.effect_bytes -= bytes;
                if outcome == Outcome::Done {
                    self.partitions.remove(&name);
                    mark.map_or(Outcome::Done, Outcome::Further)
                } else {
                    outcome
                }
            }
            (Outcome::Done, Wants::Keys(found)) => {
                if self.found.len() > FOUND_MAX {
                    self.found.retain(|(flow, position), _| flows.has_task(flow, *position));
                }
                self.keep_found(name, found);
                Outcome::Again
            }
            (outcome, Wants::Keys(_)) => outcome,
        };
        Some((task, outcome))
    }

    /// What this shard and another have under way is lost. What the other was asked is to be asked again: gives the tasks that had no
    /// answer of another one to wait for, and what has come of them.
    pub fn lost(&mut self, flows: &Flows, with: Shard) -> Vec<(Task, Outcome)> {
        self.inbox.retain(|(by, ..)| *by != with);
        self.waiting.retain(|(by, ..)| *by != with);
        self.outbox.retain(|(to, _)| *to != with);
        self.unacknowledged.retain(|(_, to, _)| *to != with);
        let asked = |(number, pending): (&u64, &PendingTask)| {
            pending.missing.iter().filter(|shard| **shard == with).map(|_| *number).collect()
        };
        let numbers: Vec<Vec<u64>> = self.pending.iter().map(asked).collect();
        let numbers = numbers.into_iter().flatten();
        numbers.filter_map(|number| self.answered(flows, with, number, Outcome::Waits)).collect()
    }

    /// Takes the keys that were found for a task, by its flow and its place in the journal.
    pub fn take_found(&mut self, task: &TaskName) -> FoundKeys {
        self.found.remove(task).unwrap_or_default()
    }

    /// Keeps what was found for a task until its next slice.
    pub fn keep_found(&mut self, task: TaskName, found: FoundKeys) {
        self.found.entry(task).or_default().extend(found);
    }

    /// A flow has gone, or goes back.
    pub fn forget(&mut self, flow: &str) {
        self.cursors.remove(flow);
        self.found.retain(|(of, _), _| of != flow);
    }

    /// Takes the next request of another shard, to be answered with [`RemoteEffects::respond`], or with
    /// [`RemoteEffects::postpone`] where it waits for data.
    pub fn next_request(&mut self) -> Option<(Shard, u64, RemoteRequest)> {
        self.inbox.pop_front()
    }

    /// A request waits until [`RemoteEffects::retry`].
    pub fn postpone(&mut self, from: Shard, number: u64, request: RemoteRequest) {
        self.waiting.push((from, number, request));
    }

    /// Has requests that wait looked at again, behind the others.
    pub fn retry(&mut self) {
        self.inbox.extend(self.waiting.drain(..));
    }

    /// Answers a request.
    pub fn respond(&mut self, to: Shard, number: u64, response: RemoteResponse) {
        let is_refused =
            matches!(&response, RemoteResponse::Effect(outcome) if *outcome != Outcome::Done);
        let message = RemoteMessage::Response(number, response);
        if is_refused {
            self.outbox.push((to, message));
        } else {
            self.send_when_durable(to, message);
        }
    }

    /// Whether requests of others can be carried out now.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Whether something waits for data here, or for the store.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.unacknowledged.is_empty()
    }

    /// Whether a task that is not done has effects on keys of a partition (G2).
    pub fn concern(&mut self, flows: &Flows, partition: Partition) -> bool {
        self.partitions.retain(|(flow, position), _| flows.has_task(flow, *position));
        self.partitions.values().any(|all| all.contains(&partition))
    }
}
