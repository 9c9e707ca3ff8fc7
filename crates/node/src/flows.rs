//! Flows at work: writes become records, and tasks are run in slices.
//!
//! A slice is short, so that clients have their turn in between: a fan-out to half a million
//! followers is some thousand slices. What a slice writes, and how far its task has come, are told
//! to the same store before anybody else has a turn.

use crate::fan::{Fan, Put, SLICE_KEYS, put_all};
use crate::node::Node;
use crate::remote::{called_key, position_at};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use headwater_base::source::Change;
use headwater_base::{KeyRange, Millis, Shard};
use headwater_engine::{EngineError, FlowCall, NotedChange, RangeOptions, Stop, Ticket};
use headwater_flows::{
    Action, Definition, Flows, GivenUp, Journal, Operation, Outcome, Output, Record, RemoteEffect,
    RemoteEffects, Report, Task, WhenFull,
};
use headwater_pattern::{Bindings, Join, Pattern};

/// A backfill rests while so many of its tasks wait.
const BACKFILL_WAITING_MAX: u64 = 1024;

/// Flows, and what their work needs.
pub(crate) struct Working {
    pub(crate) flows: Flows,
    /// The journal outlives the process.
    pub(crate) durable: bool,
    pub(crate) backfills: Vec<Backfill>,
    /// Flows without room: their keys take no writes.
    pub(crate) closed: BTreeSet<String>,
    /// Writes that wait for room.
    blocked: Vec<Ticket>,
    /// What concerns other shards.
    pub(crate) remote: RemoteEffects,
}

/// Keys that were there before a flow.
pub(crate) struct Backfill {
    pub(crate) flow: String,
    pub(crate) on: Pattern,
    /// What is left of the keys.
    pub(crate) range: KeyRange,
    /// Keys ahead that were written since: they are records already.
    pub(crate) written: BTreeSet<Vec<u8>>,
}

/// What came of a slice.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// There is nothing to do now.
    Idle,
    /// Something was done.
    Done,
    /// Something is to be done outside; say what came of it with [`Node::finish_flow`].
    Outside {
        /// The task.
        task: Task,
        /// What is to be done.
        work: Outside,
    },
}

/// What is done for a task by whoever has the node.
#[derive(Clone, PartialEq, Debug)]
pub enum Outside {
    /// The value is published to this channel.
    Publish(Vec<u8>),
    /// The change is posted to a URL.
    Post {
        /// Where to.
        url: String,
        /// How long that may take, in milliseconds.
        timeout_ms: u64,
        /// The slots of the changed key, with their names.
        slots: Vec<(String, Vec<u8>)>,
        /// Tasks of this flow that run at a time.
        width: usize,
    },
    /// Keys of a table that a source has are given values, or removed. Then the task is done, or goes on from a mark.
    Write {
        /// The writes.
        changes: Vec<Change>,
        /// The mark.
        mark: Option<Vec<u8>>,
    },
}

/// What a slice of a fan-out leaves.
enum Sliced {
    /// The task is done, or waits for its next slice.
    Ended(Outcome),
    /// Something is to be done outside.
    Outside(Outside),
    /// Other shards were asked for something.
    Remote,
}

impl Working {
    pub(crate) fn new(journal: Box<dyn Journal>, durable: bool, seed: u64) -> Self {
        Self {
            flows: Flows::new(journal, seed),
            durable,
            backfills: Vec::new(),
            closed: BTreeSet::new(),
            blocked: Vec::new(),
            remote: RemoteEffects::new(durable),
        }
    }
}

impl Node {
    /// Sets where flows keep their records. To be called before there are any flows.
    pub fn set_journal(&mut self, journal: Box<dyn Journal>) {
        self.working = Working::new(journal, true, self.working_seed());
    }

    /// Records what was written in other ways than by [`Node::execute`], before the turn's writes are
    /// committed: so that a write and its record stay one.
    #[inline]
    pub fn record_writes(&mut self) {
        if self.engine.has_noted() {
            self.record_noted();
        }
    }

    /// Records what was written since the last time.
    #[cold]
    pub(crate) fn record_noted(&mut self) {
        let now = self.engine.now();
        for noted in self.engine.take_noted() {
            let operation = match noted.change {
                NotedChange::Set => Operation::Set,
                NotedChange::Delete => Operation::Delete,
                NotedChange::Expire => Operation::Expire,
            };
            self.working.flows.append(now, operation, &noted.key, &noted.value);
            for backfill in &mut self.working.backfills {
                if noted.key >= backfill.range.first && backfill.on.matches(&noted.key) {
                    backfill.written.insert(noted.key.clone());
                }
            }
        }
        self.limit();
    }

    /// Closes and opens keys as flows have room.
    pub(crate) fn limit(&mut self) {
        let Working { flows, closed, blocked, .. } = &mut self.working;
        let mut opened = false;
        for (name, definition, backlog) in flows.limiting() {
            let full = backlog >= definition.backlog_max;
            if full == closed.contains(name) {
                continue;
            }
            if full {
                let text = format!("flow '{name}' has {backlog} tasks waiting (BACKLOG)");
                let may_wait = definition.when_full == WhenFull::Block;
                self.engine.close_keys(&definition.on, text, may_wait);
                closed.insert(name.to_string());
            } else {
                self.engine.open_keys(&definition.on);
                closed.remove(name);
                opened = true;
            }
        }
        if opened {
            for ticket in blocked.drain(..) {
                self.engine.wake(ticket);
            }
        }
    }

    /// Whether writes are refused, or wait, because some flow has no room.
    #[must_use]
    pub fn has_full_flows(&self) -> bool {
        !self.working.closed.is_empty()
    }

    /// Has a write that found no room wait for it.
    pub(crate) fn block(&mut self) -> Ticket {
        let ticket = self.engine.next_ticket();
        self.working.blocked.push(ticket);
        ticket
    }

    /// Whether there is work for [`Node::step_flows`] now.
    #[must_use]
    pub fn flows_may_step(&self) -> bool {
        let working = &self.working;
        !working.flows.is_empty() && (working.flows.may_start() || self.may_backfill())
    }

    fn may_backfill(&self) -> bool {
        self.working.backfills.iter().any(|backfill| {
            let mut limiting = self.working.flows.limiting();
            limiting
                .find(|(name, ..)| *name == backfill.flow)
                .is_none_or(|(_, _, backlog)| backlog < BACKFILL_WAITING_MAX)
        })
    }

    /// When [`Node::step_flows`] will have work, if nothing is written before.
    #[must_use]
    pub fn flows_deadline(&self) -> Option<Millis> {
        self.working.flows.next_deadline()
    }

    /// Runs a slice of some task.
    pub fn step_flows(&mut self) -> Step {
        if self.working.flows.is_empty() {
            return Step::Idle;
        }
        let filled = self.may_backfill() && self.backfill();
        let now = self.engine.now();
        let Some(task) = self.working.flows.start(now) else {
            return if filled { Step::Done } else { Step::Idle };
        };
        let definition = match self.working.flows.definition(&task.flow) {
            Some((definition, _)) => definition.clone(),
            None => return Step::Done,
        };
        let outcome = match &definition.action {
            Action::Publish { channel } => {
                return Step::Outside { task, work: Outside::Publish(channel.clone()) };
            }
            Action::Post { url, timeout_ms } => {
                let (url, timeout_ms) = (url.clone(), *timeout_ms);
                let slots = slots_of(&definition, &task.record.key);
                let work = Outside::Post { url, timeout_ms, slots, width: definition.workers };
                return Step::Outside { task, work };
            }
            Action::Fanout(join) => match self.fan_out(join, &task) {
                Sliced::Ended(outcome) => outcome,
                Sliced::Outside(work) => return Step::Outside { task, work },
                Sliced::Remote => return Step::Done,
            },
            Action::Call { function, join, writes } => {
                let key = join.as_ref().and_then(|join| called_key(join, &task.record.key));
                if let Some(key) = key
                    && let Some(home) = self.home_elsewhere(&key)
                    && let Some(remote) = self.remote_task(&task)
                {
                    let record = (*task.record).clone();
                    let parts = alloc::vec![(home, RemoteEffect::Call { record, key })];
                    self.request_effects(task, remote, parts, &[], None);
                    return Step::Done;
                }
                let call = (function.as_str(), join.as_ref(), writes.as_slice());
                let position = self.flow_position(&task);
                self.call_for(&definition.on, call, &task.record, position)
            }
        };
        self.finish_flow(&task, outcome);
        Step::Done
    }

    /// Tells the journal that a turn is over. To be called before its writes are committed.
    pub fn end_turn(&mut self) {
        self.working.flows.journal_mut().flush();
    }

    /// Takes the tasks that were given up since this was asked last.
    #[inline]
    pub fn take_given_up(&mut self) -> Vec<GivenUp> {
        self.working.flows.take_given_up()
    }

    /// Says what came of a task that was run outside.
    pub fn finish_flow(&mut self, task: &Task, outcome: Outcome) {
        // What it wrote is a record before it counts as done.
        self.record_noted();
        self.working.flows.finish(task, outcome, self.engine.now());
        self.limit();
    }

    /// The home of a key, if that is another shard.
    fn home_elsewhere(&self, key: &[u8]) -> Option<Shard> {
        let home = self.engine.placement()?.home(key);
        (home != self.engine.shard()).then_some(home)
    }

    /// Calls a function for a changed key, which matches `on`, or for the key that it gives.
    pub(crate) fn call_for(
        &mut self,
        on: &Pattern,
        (function, join, writes): (&str, Option<&Join>, &[Pattern]),
        record: &Record,
        position: u64,
    ) -> Outcome {
        let mut own = None;
        if let Some(join) = join {
            let Some(key) = called_key(join, &record.key) else { return Outcome::Done };
            own = Some(key);
        }
        let word = record.operation.word();
        let mut param = format!("{word} {position} {} ", record.key.len()).into_bytes();
        param.extend_from_slice(&record.key);
        param.extend_from_slice(&record.value);
        let mut bindings = Bindings::new();
        on.bind(&record.key, &mut bindings);
        let slots: Vec<&[u8]> = bindings.iter().map(|(_, value)| value).collect();
        let called = self.engine.function_call_for_flow(&FlowCall {
            function: function.as_bytes(),
            key: own.as_deref(),
            changed: &record.key,
            value: record.has_value().then_some(&record.value),
            param: &param,
            slots: &slots,
            writes,
        });
        called.map_or_else(outcome_of, |()| Outcome::Done)
    }

    /// Puts or removes the next outputs that a changed key gives, as far as that can be done here.
    fn fan_out(&mut self, join: &Join, task: &Task) -> Sliced {
        let mut bindings = Bindings::new();
        let value_source = join.value_source();
        if !join.sources[value_source].pattern.bind(&task.record.key, &mut bindings) {
            return Sliced::Ended(Outcome::Done);
        }
        let value = task.record.has_value().then_some(&*task.record.value);
        let checks: Vec<&Pattern> = join
            .sources
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != value_source)
            .map(|(_, source)| &source.pattern)
            .collect();
        let sourced = self.engine.is_sourced(&join.output.range_of_all().first);
        let divided = self.engine.placement().is_some();
        let of = (task.flow.clone(), task.record.position);
        let found = self.working.remote.take_found(&of);
        // What must wait for data has put nothing yet: its outputs are put when all of them are known.
        let gathers = sourced || divided || self.engine.may_wait();
        let put = Put::of(&mut self.engine, value.filter(|_| !gathers));
        let mut fan = Fan {
            engine: &mut self.engine,
            output: &join.output,
            put,
            gathered: gathers.then(Vec::new),
            found: &found,
            missing: Vec::new(),
        };
        let done = fan.slice(&checks, &bindings, &task.mark);
        let (outputs, missing) = (fan.gathered.unwrap_or_default(), fan.missing);
        put.release(&mut self.engine);
        let mark = match done {
            Ok(mark) => mark,
            Err(stop) => return Sliced::Ended(outcome_of(stop)),
        };
        if !missing.is_empty() {
            self.working.remote.keep_found(of, found);
            let Working { flows, remote, .. } = &mut self.working;
            remote.request_keys(flows, task.clone(), missing);
            return Sliced::Remote;
        }
        if sourced && !outputs.is_empty() {
            let value = value.map(<[u8]>::to_vec);
            let change = |output: Output| Change { key: output.key, value: value.clone() };
            let changes = outputs.into_iter().map(change).collect();
            return Sliced::Outside(Outside::Write { changes, mark });
        }
        if divided && !outputs.is_empty() {
            return self.divide(task, outputs, value, mark);
        }
        Sliced::Ended(match put_all(&mut self.engine, outputs.iter(), value) {
            Ok(()) => mark.map_or(Outcome::Done, Outcome::Further),
            Err(stop) => outcome_of(stop),
        })
    }

    /// Has the homes of outputs put or remove them; those that live here are done.
    fn divide(
        &mut self,
        task: &Task,
        outputs: Vec<Output>,
        value: Option<&[u8]>,
        mark: Option<Vec<u8>>,
    ) -> Sliced {
        let mut parts: BTreeMap<Shard, Vec<Output>> = BTreeMap::new();
        let me = self.engine.shard();
        for output in outputs {
            let home = self.home_elsewhere(&output.key).unwrap_or(me);
            parts.entry(home).or_default().push(output);
        }
        let Some(remote) = self.remote_task(task) else { return Sliced::Ended(Outcome::Done) };
        let own = parts.remove(&me).unwrap_or_default();
        // Where nothing is done elsewhere, the task goes on in one step with this.
        let outcome = self.put_outputs(&remote, &own, value, !parts.is_empty());
        if outcome != Outcome::Done {
            return Sliced::Ended(outcome);
        }
        if parts.is_empty() {
            return Sliced::Ended(mark.map_or(Outcome::Done, Outcome::Further));
        }
        self.record_noted();
        let value: Option<Arc<[u8]>> = value.map(Arc::from);
        let part = |(home, outputs)| (home, RemoteEffect::Put { value: value.clone(), outputs });
        let parts = parts.into_iter().map(part).collect();
        self.request_effects(task.clone(), remote, parts, &own, mark);
        Sliced::Remote
    }

    /// Makes tasks of some keys that were there before their flow; whether there were any.
    fn backfill(&mut self) -> bool {
        let Some(mut backfill) = self.working.backfills.pop() else { return false };
        let options = RangeOptions { reverse: false, limit: Some(SLICE_KEYS) };
        let mut found = Vec::new();
        let read = self.engine.range(
            &backfill.range.first,
            &backfill.range.last,
            options,
            &mut |key, value| found.push((key.to_vec(), value.to_vec())),
        );
        if read.is_err() {
            // Its data is being loaded.
            self.working.backfills.push(backfill);
            return false;
        }
        let now = self.engine.now();
        let more = found.len() as u64 == SLICE_KEYS;
        if let Some((last, _)) = found.last() {
            backfill.range.first.clone_from(last);
            backfill.range.first.push(0);
        }
        for (key, value) in found {
            if backfill.on.matches(&key) && !backfill.written.remove(&key) {
                let flows = &mut self.working.flows;
                flows.append_for(&backfill.flow, now, Operation::Set, &key, &value);
            }
        }
        let state = backfill_state(&backfill.flow);
        let journal = self.working.flows.journal_mut();
        if more {
            journal.put(&state, Some(&backfill.range.first));
            self.working.backfills.push(backfill);
        } else {
            journal.put(&state, None);
        }
        self.limit();
        true
    }

    /// Has the engine note the writes that concern flows, and no others.
    pub(crate) fn note_tables(&mut self) {
        let flows = &mut self.working.flows;
        let names: Vec<String> = flows.reports().into_iter().map(|report| report.name).collect();
        let wanted: BTreeSet<Vec<u8>> = names
            .iter()
            .filter_map(|name| flows.definition(name))
            .map(|(definition, _)| table_prefix(&definition.on))
            .collect();
        for prefix in self.noted_tables.difference(&wanted) {
            self.engine.note_table(prefix, false);
        }
        for prefix in wanted.difference(&self.noted_tables) {
            self.engine.note_table(prefix, true);
        }
        self.noted_tables = wanted;
    }

    /// How each flow does.
    pub fn flow_reports(&mut self) -> Vec<Report> {
        let shard = self.engine.shard();
        let mut reports = self.working.flows.reports();
        for report in &mut reports {
            report.cursor = position_at(shard, report.cursor);
        }
        reports
    }
}

/// `name|`; nothing for keys without a table.
fn table_prefix(pattern: &Pattern) -> Vec<u8> {
    let mut prefix = pattern.table.clone();
    if !pattern.components.is_empty() {
        prefix.push(b'|');
    }
    prefix
}

/// The name of the state that says how far a backfill has come.
pub(crate) fn backfill_state(flow: &str) -> Vec<u8> {
    [b"b", flow.as_bytes(), b"\0"].concat()
}

/// The slots of a changed key, with their names.
fn slots_of(definition: &Definition, key: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut bindings = Bindings::new();
    definition.on.bind(key, &mut bindings);
    let named = |(slot, value): (usize, &[u8])| {
        let name = definition.slots.get(slot).cloned();
        (name.unwrap_or_default(), value.to_vec())
    };
    bindings.iter().map(named).collect()
}

/// What a task has come to that was stopped.
pub(crate) fn outcome_of(stop: Stop) -> Outcome {
    match stop {
        // It waits for data, or for room in another flow: that is no failure.
        Stop::Wait(_) | Stop::Failed(EngineError::Busy { .. }) => Outcome::Waits,
        Stop::Failed(error) => Outcome::Failed(format!("{} {error}", error.code())),
    }
}
