//! What flows do on several shards: the effects of a task on keys of other homes are carried out there.
//!
//! Who is asked what, and when, is kept by [`RemoteEffects`]; here is what that takes of the engine. What this shard is home of
//! itself it does at once. A shard that is asked says that a part is done, that it is to be asked again (it is not the home any
//! more, or the key takes no writes now), or that it failed.

use crate::fan::{Put, know_outputs, own_keys};
use crate::flows::{Working, outcome_of};
use crate::node::Node;
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_base::placement::Partition;
use headwater_engine::Stop;
use headwater_flows::{
    Action, Outcome, Output, Record, RemoteEffect, RemoteEffects, RemoteMessage, RemoteRequest,
    RemoteResponse, RemoteTask, Task,
};

/// Bits of a position that name a place in the journal of one shard.
const PLACE_BITS: u32 = 48;

/// A position as all shards know it.
pub(crate) fn position_at(shard: Shard, position: u64) -> u64 {
    u64::from(shard.0) << PLACE_BITS | position
}

/// The shard, and the place in its journal, that such a position names.
pub(crate) fn place_of(position: u64) -> (u64, u64) {
    (position >> PLACE_BITS, position & ((1 << PLACE_BITS) - 1))
}

impl Node {
    /// The position of a task's record, as all shards know it: with several, it names the shard as well.
    #[must_use]
    pub fn flow_position(&self, task: &Task) -> u64 {
        position_at(self.engine.shard(), task.record.position)
    }

    /// What other shards are told of a task.
    pub(crate) fn remote_task(&self, task: &Task) -> Option<RemoteTask> {
        self.working.remote.describe(&self.working.flows, task, self.engine.shard())
    }

    /// Has other shards carry out parts of a task.
    pub(crate) fn request_effects(
        &mut self,
        task: Task,
        remote: RemoteTask,
        parts: Vec<(Shard, RemoteEffect)>,
        own: &[Output],
        mark: Option<Vec<u8>>,
    ) {
        let Some(placement) = self.engine.placement() else { return };
        let Working { flows, remote: effects, .. } = &mut self.working;
        effects.request_effects(flows, (task, remote), parts, (own, placement), mark);
    }

    fn placement_version(&self) -> u64 {
        self.engine.placement().map_or(0, |placement| placement.version())
    }

    /// What flows have told the store in this turn is its operations up to `told`; those up to `durable` will survive.
    pub fn end_flow_batch(&mut self, told: u64, durable: u64) {
        let Working { flows, remote, .. } = &mut self.working;
        remote.end_batch(flows, told, durable);
    }

    /// What tasks ask of other shards and are asked by them.
    #[must_use]
    pub fn remote_effects(&self) -> &RemoteEffects {
        &self.working.remote
    }

    /// The same, to change.
    pub fn remote_effects_mut(&mut self) -> &mut RemoteEffects {
        &mut self.working.remote
    }

    /// Takes in what another shard asks for a task, or answers.
    pub fn receive_remote(&mut self, from: Shard, message: RemoteMessage) {
        let version = self.placement_version();
        let Working { flows, remote, .. } = &mut self.working;
        if let Some((task, outcome)) = remote.receive(flows, from, message, version) {
            self.finish_flow(&task, outcome);
        }
    }

    /// What this shard and another have under way for flows is lost.
    pub fn lose_remote(&mut self, with: Shard) {
        let Working { flows, remote, .. } = &mut self.working;
        for (task, outcome) in remote.lost(flows, with) {
            self.finish_flow(&task, outcome);
        }
    }

    /// Carries out what another shard asks next; whether there was anything.
    pub fn serve_remote(&mut self) -> bool {
        let Some((from, number, request)) = self.working.remote.next_request() else {
            return false;
        };
        let response = match request {
            RemoteRequest::Effect(task, effect) => {
                RemoteResponse::Effect(self.carry_out(&task, &effect))
            }
            // Some keys might be found twice otherwise, or not at all.
            RemoteRequest::Read(read) if read.version != self.placement_version() => {
                RemoteResponse::Read(read, Err(Outcome::Waits))
            }
            RemoteRequest::Read(read) => {
                let range = (read.range.0.as_slice(), read.range.1.as_slice());
                match own_keys(&mut self.engine, range, read.limit).map_err(outcome_of) {
                    Err(Outcome::Waits) => {
                        let request = RemoteRequest::Read(read);
                        self.working.remote.postpone(from, number, request);
                        return true;
                    }
                    found => RemoteResponse::Read(read, found),
                }
            }
        };
        self.working.remote.respond(from, number, response);
        true
    }

    /// Carries out a part of a task of another shard.
    fn carry_out(&mut self, task: &RemoteTask, effect: &RemoteEffect) -> Outcome {
        // It is added or dropped just now.
        if !self.working.flows.knows(task) {
            return Outcome::Waits;
        }
        let outcome = match effect {
            RemoteEffect::Put { value, outputs } => {
                self.put_outputs(task, outputs, value.as_deref(), true)
            }
            RemoteEffect::Call { record, key } => self.call_remotely(task, record, key),
        };
        self.record_noted();
        outcome
    }

    /// Puts or removes outputs that this shard is home of, but for those that it has done already. `notes`: how far it has come
    /// is kept.
    pub(crate) fn put_outputs(
        &mut self,
        task: &RemoteTask,
        outputs: &[Output],
        value: Option<&[u8]>,
        notes: bool,
    ) -> Outcome {
        if !outputs.iter().all(|output| self.engine.owns(&output.key)) {
            return Outcome::Waits;
        }
        let before = self.working.flows.seen(task);
        let mut seen = before.as_deref();
        let is_new = |output: &&Output| before.as_ref().is_none_or(|seen| output.check > *seen);
        let left: Vec<&Output> = outputs.iter().filter(is_new).collect();
        if let Err(stop) = know_outputs(&mut self.engine, left.iter().copied(), value) {
            return outcome_of(stop);
        }
        let put = Put::of(&mut self.engine, value);
        let mut stopped: Option<Stop> = None;
        // Outputs of one check key are done together.
        for same in left.chunk_by(|one, other| one.check == other.check) {
            let done = same.iter().try_for_each(|output| put.put(&mut self.engine, &output.key));
            if let Err(stop) = done {
                stopped = Some(stop);
                break;
            }
            seen = seen.max(Some(&same[0].check));
        }
        put.release(&mut self.engine);
        if notes && let Some(mark) = seen {
            self.working.flows.note_seen(task, mark);
        }
        stopped.map_or(Outcome::Done, outcome_of)
    }

    fn call_remotely(&mut self, task: &RemoteTask, record: &Record, key: &[u8]) -> Outcome {
        let Some((definition, _)) = self.working.flows.definition(&task.flow) else {
            return Outcome::Waits;
        };
        let definition = definition.clone();
        let Action::Call { function, join, writes } = &definition.action else {
            return Outcome::Waits;
        };
        if !self.engine.owns(key) {
            return Outcome::Waits;
        }
        if self.working.flows.seen(task).is_some() {
            return Outcome::Done;
        }
        let position = position_at(task.origin, record.position);
        let call = (function.as_str(), join.as_ref(), writes.as_slice());
        let outcome = self.call_for(&definition.on, call, record, position);
        if outcome == Outcome::Done {
            self.working.flows.note_seen(task, &[]);
        }
        outcome
    }

    /// Whether a task that is not done was caused by a key that `concerns`, as far as that can be told in short time.
    pub fn flows_pending(&mut self, concerns: &dyn Fn(&[u8]) -> bool) -> bool {
        self.working.flows.pending(concerns)
    }

    /// Whether flows keep a partition from leaving this shard, from coming to it, or, where it does neither, from moving at
    /// all (G2).
    pub fn flows_keep_partition(
        &mut self,
        partition: Partition,
        leaves: bool,
        comes: bool,
    ) -> bool {
        let Some(placement) = self.engine.placement() else { return false };
        let Working { flows, remote, backfills, .. } = &mut self.working;
        remote.concern(flows, partition)
            || leaves && flows.pending(&|key| placement.partition(key) == partition)
            || (leaves || comes) && !backfills.is_empty()
    }

    /// Whether there is any flow.
    #[must_use]
    pub fn has_flows(&self) -> bool {
        !self.working.flows.is_empty()
    }
}

/// The key that a function is called for, when `key` has changed.
pub(crate) fn called_key(join: &headwater_pattern::Join, key: &[u8]) -> Option<Vec<u8>> {
    let (mut bindings, mut called) = (headwater_pattern::Bindings::new(), Vec::new());
    let bound = join.sources[0].pattern.bind(key, &mut bindings);
    (bound && join.output.fill(&bindings, &mut called)).then_some(called)
}
