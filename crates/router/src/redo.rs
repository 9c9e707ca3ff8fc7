//! A transaction of which a crash has left a part: what is missing is done ([`crate::record`]).
//!
//! It goes the way that it went: the same rounds and steps, under locks. What a shard has a record of is not asked for again: it is
//! answered as it was, if that is known and decides anything.
//!
//! # Invariants
//! - R1. The furthest record tells all that was decided before it. Whatever a shard has done is there up to its own
//!   furthest record, and nothing behind it is.

use crate::answer::answer_of;
use crate::ask::Ask;
use crate::locks::{LockSet, TransactionId};
use crate::pending::Inner;
use crate::program::{Step, StepAsk};
use crate::record::{Place, Record};
use crate::transaction::{Finished, Next, Plan, Transaction};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use headwater_base::{Placement, Shard};
use headwater_command::Reply;

/// A transaction that is done from where a crash has left it. [`Redo::next`] says what to ask, and is called again with the answers.
#[derive(Clone, Debug)]
pub struct Redo {
    transaction: Transaction,
    /// Keys that it carries live where they did.
    placement: Placement,
    /// How far each shard has come.
    done: BTreeMap<Shard, Place>,
    /// What was decided.
    decided: BTreeMap<Place, Vec<Vec<u8>>>,
    /// The answers that are known to the steps under way, in order; `None`: it is asked.
    known: Vec<Option<Inner>>,
}

/// A step, and what its shard keeps with it.
pub type RecordedStep = (Step, Option<Vec<u8>>);

/// What becomes of a step.
enum Found {
    /// It was answered so.
    Known(Vec<u8>),
    /// Its shard has not done it: the shard is asked.
    Missing(Step),
    /// Nothing but locks is left of it.
    Locks(Step),
}

fn nulls(count: usize) -> Vec<u8> {
    answer_of(|out| {
        out.array(count);
        (0..count).for_each(|_| out.null());
    })
}

impl Redo {
    /// The rest of a transaction, which is called `id` from now on, of which shards have these records, each its furthest one;
    /// `over`: those that know that they have done theirs, without one. A lock may take `wait` milliseconds. `None`: these are
    /// no records.
    #[must_use]
    pub fn new(
        id: TransactionId,
        records: &BTreeMap<Shard, Vec<u8>>,
        over: impl Iterator<Item = Shard>,
        placement: &Placement,
        wait: u64,
    ) -> Option<Self> {
        let mut done = BTreeMap::new();
        for (shard, record) in records {
            done.insert(*shard, Place::of_record(record)?);
        }
        let furthest = done.iter().max_by_key(|(_, place)| **place)?.0;
        let record = Record::read(&records[furthest])?;
        done.extend(over.map(|shard| (shard, Place::END)));
        let mut placement = placement.clone();
        for (key, home) in &record.homes {
            placement.assign(placement.partition(key), *home);
        }
        let mut plan = Plan::new(id, wait);
        plan.locks = Some(record.shards().into_iter().map(|at| (at, LockSet::All)).collect());
        let decided = record.recording.decided.clone();
        plan.recording = Some(record.recording);
        plan.items = record.items;
        let transaction = Transaction::new(plan);
        Some(Self { transaction, placement, done, decided, known: Vec::new() })
    }

    /// The steps that come next, each with what its shard keeps with it; their answers are wanted together, in their order. None:
    /// it is over.
    ///
    /// # Errors
    /// A shard has refused its part.
    pub fn next(&mut self, answers: Vec<Inner>) -> Result<Vec<RecordedStep>, Vec<u8>> {
        let mut asked = answers.into_iter();
        let known = core::mem::take(&mut self.known).into_iter();
        let mut answers: Vec<Inner> =
            known.filter_map(|known| known.or_else(|| asked.next())).collect();
        loop {
            let steps = match self.transaction.next(&self.placement, &answers) {
                Next::Ask(steps) => steps,
                Next::Now(_) => {
                    // Its session has gone.
                    answers = Vec::new();
                    continue;
                }
                Next::Finished(Finished::Done(_)) => return Ok(Vec::new()),
                Next::Finished(Finished::Refused(error)) => return Err(error),
                Next::Finished(_) => return Err(nulls(0)),
            };
            let mut missing = Vec::new();
            for (at, step) in steps.into_iter().enumerate() {
                let from = step.at;
                let known = match self.find(step, at) {
                    Found::Known(answer) => Some(Inner { from, answer, digests: Vec::new() }),
                    Found::Locks(step) => {
                        missing.push((step, None));
                        None
                    }
                    Found::Missing(step) => {
                        let record = self.transaction.record_of(&self.placement, &step);
                        missing.push((step, record));
                        None
                    }
                };
                self.known.push(known);
            }
            if !missing.is_empty() {
                return Ok(missing);
            }
            answers = core::mem::take(&mut self.known).into_iter().flatten().collect();
        }
    }

    /// Whether nothing of it is missing anywhere.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let (mut redo, mut answers) = (self.clone(), Vec::new());
        while let Ok(steps) = redo.next(core::mem::take(&mut answers)) {
            if steps.is_empty() {
                return true;
            }
            for (step, _) in steps {
                let answer = match &step.ask {
                    StepAsk::Whole(Ask::Lock { .. }) if redo.transaction.is_locking() => {
                        answer_of(|out| out.ok())
                    }
                    StepAsk::Whole(Ask::Execute { requests, .. }) if requests.is_empty() => {
                        nulls(0)
                    }
                    _ => return false,
                };
                answers.push(Inner { from: step.at, answer, digests: Vec::new() });
            }
        }
        false
    }

    /// What is known of a step, which is the one at `at` of those that are asked together.
    fn find(&self, mut step: Step, at: usize) -> Found {
        let place = self.transaction.place();
        let is_done = self.done.get(&step.at).is_some_and(|done| *done >= place);
        let decided = self.decided.get(&place).and_then(|answers| answers.get(at)).cloned();
        match (&mut step.ask, decided) {
            (StepAsk::Whole(Ask::Lock { .. }), _) if self.transaction.is_locking() => {
                Found::Locks(step)
            }
            (StepAsk::Whole(Ask::Lock { .. }) | StepAsk::Carry { .. }, Some(answer)) => {
                Found::Known(answer)
            }
            (StepAsk::Put { if_absent, .. }, decided) => {
                let ok = answer_of(|out| out.ok());
                match decided {
                    Some(answer) if answer != ok || is_done => Found::Known(answer),
                    None if is_done => Found::Known(ok),
                    decided => {
                        // It was found out that nothing is in its way.
                        *if_absent &= decided.is_none();
                        Found::Missing(step)
                    }
                }
            }
            // A shard that was asked for a value has it still, or what it was is known: nothing behind it was begun before.
            (StepAsk::Whole(Ask::Execute { .. }), decided) if self.transaction.is_reading() => {
                decided.map_or(Found::Missing(step), Found::Known)
            }
            (StepAsk::Whole(Ask::Execute { last, requests, .. }), _) if is_done => {
                if !*last {
                    return Found::Known(nulls(requests.len()));
                }
                requests.clear();
                Found::Locks(step)
            }
            _ => Found::Missing(step),
        }
    }
}
