//! How far this shard has come with tasks of others: what it has done is not done again.

use super::RemoteTask;
use crate::flows::{Flows, Task};
use crate::record::Record;
use crate::states::{position_of, state_name};
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_base::hash::stable_hash;

/// Positions by which a cursor has to have come further before states are looked through.
const FORGET_STEP: u64 = 64;
/// Records that [`Flows::pending`] looks at, at most.
const PENDING_MAX: u64 = 4096;

/// What a flow's words are compared by.
pub(super) fn hash_of(words: &str) -> u64 {
    stable_hash(0, words.as_bytes())
}

impl Flows {
    /// A task goes on at other shards, and leaves its worker to others until [`Flows::finish`] says what came of it.
    pub(crate) fn free_worker(&mut self, task: &Task) {
        if let Some((generation, flow)) = self.flows.get_mut(&task.flow)
            && *generation == task.generation
        {
            flow.free_worker(task.record.position);
        }
    }

    /// Whether the flow that a task is of is here as well, by the same words.
    #[must_use]
    pub fn knows(&self, task: &RemoteTask) -> bool {
        let flow = self.flows.get(&task.flow);
        flow.is_some_and(|(_, flow)| hash_of(&flow.text) == task.words)
    }

    /// How far this shard has come with a task, if it has begun: as [`Flows::note_seen`] was told last.
    pub fn seen(&mut self, task: &RemoteTask) -> Option<Vec<u8>> {
        let mut found = None;
        self.journal.states(&seen_name(task), &mut |_, state| found = Some(state.to_vec()));
        let (replays, rest) = found.as_deref()?.split_first_chunk::<8>()?;
        let (at, mark) = rest.split_first_chunk::<8>()?;
        let same =
            u64::from_be_bytes(*replays) == task.replays && u64::from_be_bytes(*at) == task.at.0;
        same.then(|| mark.to_vec())
    }

    /// Keeps how far this shard has come with a task, with the effects.
    pub fn note_seen(&mut self, task: &RemoteTask, mark: &[u8]) {
        let numbers = [task.replays.to_be_bytes(), task.at.0.to_be_bytes()];
        let state = [numbers.as_flattened(), mark].concat();
        self.journal.put(&seen_name(task), Some(&state));
        self.forget_seen(task);
    }

    /// Forgets what is done for good at the task's shard.
    fn forget_seen(&mut self, task: &RemoteTask) {
        let of = seen_prefix(&task.flow, task.origin);
        let forgotten = self.forgotten.entry(of.clone()).or_default();
        // A cursor may go back, too: after a replay.
        if task.below <= *forgotten || task.below - *forgotten < FORGET_STEP {
            return;
        }
        *forgotten = task.below;
        let mut over = Vec::new();
        self.journal.states(&of, &mut |name, _| {
            if position_of(name).is_some_and(|position| position < task.below) {
                over.push(name.to_vec());
            }
        });
        for name in over {
            self.journal.put(&name, None);
        }
    }

    /// Whether a flow has a task in memory for the record at this position.
    #[must_use]
    pub fn has_task(&self, flow: &str, position: u64) -> bool {
        self.flows.get(flow).is_some_and(|(_, flow)| flow.has_task(position))
    }

    /// Whether a record that is not done for some flow has a key that `concerns`; so it is, too, where more records wait
    /// than can be looked at.
    pub fn pending(&mut self, concerns: &dyn Fn(&[u8]) -> bool) -> bool {
        let unfinished = self.flows.values().filter(|(_, flow)| flow.backlog > 0);
        let Some(from) = unfinished.map(|(_, flow)| flow.cursor()).min() else { return false };
        let end = self.journal.end();
        if end - from > PENDING_MAX {
            return true;
        }
        let (mut at, mut found) = (from, false);
        let flows = &self.flows;
        while at < end && !found {
            let before = at;
            self.journal.read(at, PENDING_MAX as usize, &mut |record: Record| {
                at = record.position + 1;
                let is_pending = || flows.values().any(|(_, flow)| flow.awaits(&record));
                found |= concerns(&record.key) && is_pending();
            });
            if at == before {
                return true;
            }
        }
        found
    }
}

fn seen_prefix(flow: &str, origin: Shard) -> Vec<u8> {
    [&state_name(b'h', flow, None)[..], &origin.0.to_be_bytes()].concat()
}

fn seen_name(task: &RemoteTask) -> Vec<u8> {
    [seen_prefix(&task.flow, task.origin), task.position.to_be_bytes().to_vec()].concat()
}
