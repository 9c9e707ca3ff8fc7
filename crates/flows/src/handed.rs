//! Tasks that are handed over: their effects are on keys of other shards, which carry them out.
//!
//! The shard that has the record keeps the task, with its place in the order, its attempts and its end. Another shard is
//! asked to carry out a part of it, and answers when what it did is as safe as a write is; then the task goes on, or is
//! done. After a crash it is asked again, and must not do again what it has done: so it keeps, in one batch with the
//! effects, a state that says how far it has come with the task ([`Flows::note_seen`]), until the task is done for good
//! where its record is.
//!
//! # Cost
//! One state in the journal for a part that was carried out, and a look at those of the flow now and then.

use crate::flows::{Flows, Task};
use crate::record::Record;
use crate::states::{position_of, state_name};
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::hash::stable_hash;
use headwater_base::{Millis, Shard};

/// Positions by which a cursor has to have come further before states are looked through.
const FORGET_STEP: u64 = 64;
/// Records that [`Flows::pending`] looks at, at most.
const PENDING_MAX: u64 = 4096;

/// Which task a shard is asked to carry out a part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handed {
    /// The flow's name.
    pub flow: String,
    /// Stands for the words by which it was declared.
    pub words: u64,
    /// The shard that has the record.
    pub origin: Shard,
    /// Its place in the journal there.
    pub position: u64,
    /// When it was written: a record that was lost in a crash, and another one at its place, are two.
    pub at: Millis,
    /// How often the flow had been replayed there: what was done before may be done again.
    pub replays: u64,
    /// Every record there below this position is done for good.
    pub below: u64,
}

/// What a flow's words are compared by.
fn hash_of(words: &str) -> u64 {
    stable_hash(0, words.as_bytes())
}

impl Flows {
    /// What another shard is told of a task. `below`: see [`Handed::below`].
    #[must_use]
    pub fn handed(&self, task: &Task, origin: Shard, below: u64) -> Option<Handed> {
        let (_, flow) = self.flows.get(&task.flow)?;
        Some(Handed {
            flow: task.flow.clone(),
            words: hash_of(&flow.text),
            origin,
            position: task.record.position,
            at: task.record.at,
            replays: flow.replays,
            below,
        })
    }

    /// A task goes on elsewhere, and leaves its worker to others until [`Flows::finish`] says what came of it.
    pub fn hand_over(&mut self, task: &Task) {
        if let Some((generation, flow)) = self.flows.get_mut(&task.flow)
            && *generation == task.generation
        {
            flow.hand_over(task.record.position);
        }
    }

    /// Whether the flow that a task is of is here as well, by the same words.
    #[must_use]
    pub fn knows(&self, handed: &Handed) -> bool {
        let flow = self.flows.get(&handed.flow);
        flow.is_some_and(|(_, flow)| hash_of(&flow.text) == handed.words)
    }

    /// The position that each flow has not passed, in order of names.
    pub fn cursors(&self) -> impl Iterator<Item = (&str, u64)> {
        self.flows.iter().map(|(name, (_, flow))| (name.as_str(), flow.cursor()))
    }

    /// The position that a flow has not passed.
    #[must_use]
    pub fn cursor(&self, flow: &str) -> Option<u64> {
        self.flows.get(flow).map(|(_, flow)| flow.cursor())
    }

    /// How far this shard has come with a task, if it has begun: as [`Flows::note_seen`] was told last.
    pub fn seen(&mut self, handed: &Handed) -> Option<Vec<u8>> {
        let mut found = None;
        self.journal.states(&seen_name(handed), &mut |_, state| found = Some(state.to_vec()));
        let (replays, rest) = found.as_deref()?.split_first_chunk::<8>()?;
        let (at, mark) = rest.split_first_chunk::<8>()?;
        let same = u64::from_be_bytes(*replays) == handed.replays
            && u64::from_be_bytes(*at) == handed.at.0;
        same.then(|| mark.to_vec())
    }

    /// Keeps how far this shard has come with a task, with the effects.
    pub fn note_seen(&mut self, handed: &Handed, mark: &[u8]) {
        let numbers = [handed.replays.to_be_bytes(), handed.at.0.to_be_bytes()];
        let state = [numbers.as_flattened(), mark].concat();
        self.journal.put(&seen_name(handed), Some(&state));
        self.forget_seen(handed);
    }

    /// Forgets what is done for good at the task's shard.
    fn forget_seen(&mut self, handed: &Handed) {
        let of = seen_prefix(&handed.flow, handed.origin);
        let forgotten = self.forgotten.entry(of.clone()).or_default();
        // A cursor may go back, too: after a replay.
        if handed.below <= *forgotten || handed.below - *forgotten < FORGET_STEP {
            return;
        }
        *forgotten = handed.below;
        let mut over = Vec::new();
        self.journal.states(&of, &mut |name, _| {
            if position_of(name).is_some_and(|position| position < handed.below) {
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

fn seen_name(handed: &Handed) -> Vec<u8> {
    [seen_prefix(&handed.flow, handed.origin), handed.position.to_be_bytes().to_vec()].concat()
}
