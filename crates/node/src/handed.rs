//! What flows do on several shards: the effects of a task on keys of other homes are carried out there.
//!
//! The shard that has the record keeps the task ([`headwater_flows::Handed`]). It finds out which keys are concerned, and
//! hands what is to be done to their homes; what it is home of itself it does at once. A shard that is asked says that a
//! part is done, that it is to be asked again (it is not the home any more, or the key takes no writes now), or that it failed.

use crate::fan::{Output, Put, Read, Reads, know_outputs, own_keys};
use crate::flows::{Working, outcome_of};
use crate::node::Node;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_engine::Stop;
use headwater_flows::{Action, Handed, Outcome, Record, Task};

/// Bits of a position that name a place in the journal of one shard.
const PLACE_BITS: u32 = 48;

/// Tasks with more keys of others than these: those of tasks that were dropped are forgotten.
const READS_KEPT: usize = 1024;

/// A position as all shards know it.
pub(crate) fn position_at(shard: Shard, position: u64) -> u64 {
    u64::from(shard.0) << PLACE_BITS | position
}

/// The shard, and the place in its journal, that such a position names.
pub(crate) fn place_of(position: u64) -> (u64, u64) {
    (position >> PLACE_BITS, position & ((1 << PLACE_BITS) - 1))
}

/// What a shard is asked to do for a task.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// Outputs are given a value, or removed.
    Put {
        /// The value.
        value: Option<Arc<[u8]>>,
        /// The outputs, in the order of the check keys that they are given for.
        outputs: Vec<Output>,
    },
    /// The flow's function is called.
    Call {
        /// The write that causes it.
        record: Record,
        /// The key that it is called for.
        key: Vec<u8>,
    },
}

impl Work {
    /// Memory that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put { value, outputs } => {
                let of = |output: &Output| output.check.len() + output.key.len() + 64;
                value.as_ref().map_or(0, |value| value.len())
                    + outputs.iter().map(of).sum::<usize>()
            }
            Self::Call { record, key } => record.reserved_bytes() + key.len(),
        }
    }
}

/// How far a flow has come for good.
#[derive(Debug, Default)]
struct Cursor {
    safe: u64,
    /// It is told to the store as this operation, and not safe yet.
    told: Option<(u64, u64)>,
}

/// What a shard keeps for tasks whose keys live elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Afar {
    /// Keys of other shards that tasks have asked for.
    pub(crate) reads: BTreeMap<(String, u64), Reads>,
    cursors: BTreeMap<String, Cursor>,
}

impl Afar {
    /// A flow has gone, or goes back.
    pub(crate) fn forget(&mut self, flow: &str) {
        self.cursors.remove(flow);
        self.reads.retain(|(of, _), _| of != flow);
    }
}

impl Node {
    /// The position of a task's record, as all shards know it: with several, it names the shard as well.
    #[must_use]
    pub fn flow_position(&self, task: &Task) -> u64 {
        position_at(self.engine.shard(), task.record.position)
    }

    /// What other shards are told of a task.
    pub(crate) fn handed(&self, task: &Task) -> Option<Handed> {
        let cursor = self.working.flows.cursor(&task.flow)?;
        let safe = match self.working.afar.cursors.get(&task.flow) {
            _ if !self.working.durable => cursor,
            known => known.map_or(0, |known| known.safe),
        };
        self.working.flows.handed(task, self.engine.shard(), safe.min(cursor))
    }

    /// What flows have told the store in this turn is its operations up to `told`; those up to `safe` will survive.
    pub fn flows_told(&mut self, told: u64, safe: u64) {
        let Working { flows, afar, .. } = &mut self.working;
        for (name, now) in flows.cursors() {
            let cursor = match afar.cursors.get_mut(name) {
                Some(known) => known,
                None => afar.cursors.entry(name.to_string()).or_default(),
            };
            if let Some((_, position)) = cursor.told.take_if(|(told, _)| *told <= safe) {
                cursor.safe = position;
            }
            if cursor.safe != now {
                cursor.told.get_or_insert((told, now));
            }
        }
    }

    /// A task goes on elsewhere, and leaves its worker to others.
    pub fn hand_over(&mut self, task: &Task) {
        self.working.flows.hand_over(task);
    }

    /// Gives a task the keys that it has asked other shards for.
    pub fn give_reads(&mut self, task: &Task, read: Vec<(Read, Vec<Vec<u8>>)>) {
        let Working { flows, afar, .. } = &mut self.working;
        if afar.reads.len() > READS_KEPT {
            afar.reads.retain(|(flow, position), _| flows.has_task(flow, *position));
        }
        let of = (task.flow.clone(), task.record.position);
        self.working.afar.reads.entry(of).or_default().extend(read);
        self.finish_flow(task, Outcome::Again);
    }

    /// Keys have another home now: what was read of them is read again.
    pub fn forget_reads(&mut self) {
        self.working.afar.reads.clear();
    }

    /// The first keys of a range that this shard is home of, for a task of another shard.
    ///
    /// # Errors
    /// [`Outcome::Waits`]: they are being loaded. Otherwise why they cannot be read.
    pub fn read_for_flow(
        &mut self,
        range: (&[u8], &[u8]),
        limit: Option<u64>,
    ) -> Result<Vec<Vec<u8>>, Outcome> {
        own_keys(&mut self.engine, range, limit).map_err(outcome_of)
    }

    /// Carries out what another shard hands over.
    pub fn run_handed(&mut self, handed: &Handed, work: &Work) -> Outcome {
        // It is added or dropped just now.
        if !self.working.flows.knows(handed) {
            return Outcome::Waits;
        }
        let outcome = match work {
            Work::Put { value, outputs } => {
                self.put_outputs(handed, outputs, value.as_deref(), true)
            }
            Work::Call { record, key } => self.call_handed(handed, record, key),
        };
        self.record_noted();
        outcome
    }

    /// Puts or removes outputs that this shard is home of, but for those that it has done already. `notes`: how far it has come
    /// is kept.
    pub(crate) fn put_outputs(
        &mut self,
        handed: &Handed,
        outputs: &[Output],
        value: Option<&[u8]>,
        notes: bool,
    ) -> Outcome {
        if !outputs.iter().all(|output| self.engine.owns(&output.key)) {
            return Outcome::Waits;
        }
        let before = self.working.flows.seen(handed);
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
            self.working.flows.note_seen(handed, mark);
        }
        stopped.map_or(Outcome::Done, outcome_of)
    }

    fn call_handed(&mut self, handed: &Handed, record: &Record, key: &[u8]) -> Outcome {
        let Some((definition, _)) = self.working.flows.definition(&handed.flow) else {
            return Outcome::Waits;
        };
        let definition = definition.clone();
        let Action::Call { function, join, writes } = &definition.action else {
            return Outcome::Waits;
        };
        if !self.engine.owns(key) {
            return Outcome::Waits;
        }
        if self.working.flows.seen(handed).is_some() {
            return Outcome::Done;
        }
        let position = position_at(handed.origin, record.position);
        let call = (function.as_str(), join.as_ref(), writes.as_slice());
        let outcome = self.call_for(&definition.on, call, record, position);
        if outcome == Outcome::Done {
            self.working.flows.note_seen(handed, &[]);
        }
        outcome
    }

    /// Whether a task that is not done was caused by a key that `concerns`, as far as that can be told in short time.
    pub fn flows_pending(&mut self, concerns: &dyn Fn(&[u8]) -> bool) -> bool {
        self.working.flows.pending(concerns)
    }

    /// Whether a flow has a task that is not done for the record at this place of this shard's journal.
    #[must_use]
    pub fn has_flow_task(&self, flow: &str, place: u64) -> bool {
        self.working.flows.has_task(flow, place)
    }

    /// Whether keys that were there before their flow are still looked for.
    #[must_use]
    pub fn flows_backfill(&self) -> bool {
        !self.working.backfills.is_empty()
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
