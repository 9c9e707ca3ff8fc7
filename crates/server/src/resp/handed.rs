//! Flows on several shards: what a task does at other shards, and what others' tasks do here.
//!
//! A task whose effects are on keys of other homes is handed over ([`headwater_node::Work`]), and the keys of other homes that a
//! fan-out follows are asked for, a page at a time. Letters carry both, and the answers.
//!
//! # Invariants
//! - G1. With a store, no other shard hears of a task before its record will survive a crash of the process (under
//!   `always`: of the machine), and the task's own shard hears that a part is done, or of keys, only when that is so of
//!   the effects, and of the keys. So no effect outlives its cause, and none is missing of what counts as done.
//! - G2. A partition stays where it is while a task that is not done was caused by one of its keys, or has been handed over
//!   with one.
//!
//! # Cost
//! A letter each way for a task and home (for 256 outputs of a fan-out), and a commit of the store before each of them.

use super::Resp;
use crate::keeping::{Keeping, Way};
use crate::shards::{Letter, Stays};
use headwater_base::Shard;
use headwater_base::placement::Partition;
use headwater_node::{FlowOutcome, Handed, Output, Read, Task, Work};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Tasks with so many bytes may be under way elsewhere without a worker.
const AWAY_BYTES_MAX: usize = 1 << 20;

/// What shards write to one another about tasks. Each is named by a number of the shard that has its record.
#[derive(Debug)]
pub(crate) enum FlowNote {
    /// A part of a task is to be carried out.
    Run(u64, Box<Handed>, Work),
    /// What came of it.
    Ran(u64, FlowOutcome),
    /// A task asks for keys, by the homes of this version.
    Read(u64, u64, Read),
    /// They are these, by the homes of this version; or why they are not known.
    Found(u64, u64, Read, Result<Vec<Vec<u8>>, FlowOutcome>),
}

impl FlowNote {
    /// Memory that it takes, about.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Run(_, _, work) => work.bytes(),
            Self::Found(_, _, _, Ok(keys)) => keys.iter().map(|key| key.len() + 24).sum(),
            _ => 0,
        }
    }
}

/// A task that others carry out.
#[derive(Debug)]
struct Away {
    task: Task,
    /// Parts that are not answered.
    missing: usize,
    /// What is known of the others.
    outcome: FlowOutcome,
    /// Where it goes on when all are done.
    mark: Option<Vec<u8>>,
    bytes: usize,
}

/// A task that waits for keys.
#[derive(Debug)]
struct Reading {
    task: Task,
    missing: usize,
    found: Vec<(Read, Vec<Vec<u8>>)>,
    /// Why it does not get all of them.
    stopped: Option<FlowOutcome>,
}

/// What a shard knows of tasks that concern several.
#[derive(Debug, Default)]
pub(super) struct Handing {
    next: u64,
    away: HashMap<u64, Away>,
    /// The partitions of the keys that a task has handed over, until all of that is done, by flow and place in the journal.
    concerned: HashMap<(String, u64), Vec<Partition>>,
    /// Bytes of what they do.
    away_bytes: usize,
    reading: HashMap<u64, Reading>,
    /// What others ask of this shard, and what waits for data.
    asked: VecDeque<(Shard, FlowNote)>,
    /// All of that waits.
    stuck: bool,
    /// Letters that wait for the store, each with the operation that must be safe; `None`: it is told at the end
    /// of the turn.
    gated: VecDeque<(Option<u64>, Shard, FlowNote)>,
}

/// The worse of two: a failure counts more than waiting.
fn worse(one: FlowOutcome, other: FlowOutcome) -> FlowOutcome {
    match (&one, &other) {
        (FlowOutcome::Failed(_), _) | (_, FlowOutcome::Done) => one,
        (_, FlowOutcome::Failed(_)) | (FlowOutcome::Done, _) => other,
        _ => one,
    }
}

impl Resp {
    /// Has other shards carry out parts of a task.
    pub(super) fn hand_over(
        &mut self,
        task: Task,
        handed: Box<Handed>,
        parts: Vec<(Shard, Work)>,
        own: &[Output],
        mark: Option<Vec<u8>>,
    ) {
        let Some(placement) = self.node.engine().placement() else { return };
        let of = |output: &Output| placement.partition(&output.key);
        let mut partitions: Vec<Partition> = own.iter().map(of).collect();
        for (_, work) in &parts {
            match work {
                Work::Put { outputs, .. } => partitions.extend(outputs.iter().map(of)),
                Work::Call { key, .. } => partitions.push(placement.partition(key)),
            }
        }
        partitions.sort_unstable_by_key(|partition| partition.0);
        partitions.dedup();
        let name = (task.flow.clone(), task.record.position);
        let bytes = parts.iter().map(|(_, work)| work.bytes()).sum();
        let handing = &mut self.outside.handing;
        if handing.away_bytes + bytes <= AWAY_BYTES_MAX {
            self.node.hand_over(&task);
        }
        handing.away_bytes += bytes;
        let number = handing.next;
        handing.next += 1;
        let (missing, outcome) = (parts.len(), FlowOutcome::Done);
        handing.concerned.insert(name, partitions);
        handing.away.insert(number, Away { task, missing, outcome, mark, bytes });
        for (to, work) in parts {
            self.tell_when_safe(to, FlowNote::Run(number, handed.clone(), work));
        }
    }

    /// Asks other shards for keys that a task needs.
    pub(super) fn ask_for_flow(&mut self, task: Task, reads: Vec<Read>) {
        let version = self.homes_version();
        let handing = &mut self.outside.handing;
        let number = handing.next;
        handing.next += 1;
        self.node.hand_over(&task);
        let (missing, found) = (reads.len(), Vec::new());
        handing.reading.insert(number, Reading { task, missing, found, stopped: None });
        for read in reads {
            self.tell_of_task(read.home, FlowNote::Read(number, version, read));
        }
    }

    fn homes_version(&self) -> u64 {
        self.node.engine().placement().map_or(0, |placement| placement.version())
    }

    fn tell_of_task(&mut self, to: Shard, note: FlowNote) {
        if let Some(shards) = &mut self.shards {
            shards.post.to(to).letters.push(Letter::Flow(Box::new(note)));
        }
    }

    /// The same, when the store has safe what was done up to the end of this turn (G1).
    fn tell_when_safe(&mut self, to: Shard, note: FlowNote) {
        if self.keeping.is_some() {
            self.outside.handing.gated.push_back((None, to, note));
        } else {
            self.tell_of_task(to, note);
        }
    }

    /// The turn's operations end with this one: what has waited for the store goes out.
    pub(super) fn flows_kept(&mut self, told: u64) {
        if self.shards.is_none() || !self.node.has_flows() && self.outside.handing.gated.is_empty()
        {
            return;
        }
        let safe = self.keeping.as_ref().map_or(0, Keeping::survives);
        self.node.flows_told(told, safe);
        for (operation, ..) in &mut self.outside.handing.gated {
            operation.get_or_insert(told);
        }
        while let Some((Some(operation), ..)) = self.outside.handing.gated.front()
            && *operation <= safe
            && let Some((_, to, note)) = self.outside.handing.gated.pop_front()
        {
            self.tell_of_task(to, note);
        }
    }

    /// A letter of another shard about a task.
    pub(super) fn take_flow_note(&mut self, from: Shard, note: FlowNote) {
        match note {
            FlowNote::Run(..) | FlowNote::Read(..) => {
                self.outside.handing.asked.push_back((from, note));
                self.outside.handing.stuck = false;
            }
            FlowNote::Ran(number, outcome) => self.part_ran(number, outcome),
            FlowNote::Found(number, version, read, keys) => {
                self.part_found(number, version, read, keys);
            }
        }
    }

    fn part_ran(&mut self, number: u64, outcome: FlowOutcome) {
        let handing = &mut self.outside.handing;
        let Some(away) = handing.away.get_mut(&number) else { return };
        away.outcome = worse(core::mem::replace(&mut away.outcome, FlowOutcome::Done), outcome);
        away.missing -= 1;
        if away.missing > 0 {
            return;
        }
        let Some(Away { task, outcome, mark, bytes, .. }) = handing.away.remove(&number) else {
            return;
        };
        handing.away_bytes -= bytes;
        if outcome == FlowOutcome::Done {
            handing.concerned.remove(&(task.flow.clone(), task.record.position));
        }
        let outcome = match (outcome, mark) {
            (FlowOutcome::Done, Some(mark)) => FlowOutcome::Further(mark),
            (outcome, _) => outcome,
        };
        self.node.finish_flow(&task, outcome);
    }

    fn part_found(
        &mut self,
        number: u64,
        version: u64,
        read: Read,
        keys: Result<Vec<Vec<u8>>, FlowOutcome>,
    ) {
        // Homes have changed meanwhile: some keys might be told twice, or not at all.
        let keys = if version == self.homes_version() { keys } else { Err(FlowOutcome::Waits) };
        let handing = &mut self.outside.handing;
        let Some(reading) = handing.reading.get_mut(&number) else { return };
        match keys {
            Ok(keys) => reading.found.push((read, keys)),
            Err(why) => {
                let before = reading.stopped.take().unwrap_or(FlowOutcome::Done);
                reading.stopped = Some(worse(before, why));
            }
        }
        reading.missing -= 1;
        if reading.missing > 0 {
            return;
        }
        let Some(Reading { task, found, stopped, .. }) = handing.reading.remove(&number) else {
            return;
        };
        match stopped {
            Some(why) => self.node.finish_flow(&task, why),
            None => self.node.give_reads(&task, found),
        }
    }

    /// Whether other shards ask something of this one that can be done now.
    pub(super) fn is_asked_by_flows(&self) -> bool {
        !self.outside.handing.asked.is_empty() && !self.outside.handing.stuck
    }

    /// Does what other shards ask, for so long.
    pub(super) fn run_asked(&mut self, began: Instant, most: Duration) {
        let mut waiting = VecDeque::new();
        while let Some((from, note)) = self.outside.handing.asked.pop_front() {
            match note {
                FlowNote::Run(number, handed, work) => {
                    let outcome = self.node.run_handed(&handed, &work);
                    let is_done = outcome == FlowOutcome::Done;
                    let note = FlowNote::Ran(number, outcome);
                    if is_done {
                        self.tell_when_safe(from, note);
                    } else {
                        self.tell_of_task(from, note);
                    }
                }
                FlowNote::Read(number, version, read) => {
                    let here = self.homes_version();
                    let range = (read.range.0.as_slice(), read.range.1.as_slice());
                    let found = match here == version {
                        true => self.node.read_for_flow(range, read.limit),
                        false => Err(FlowOutcome::Waits),
                    };
                    if here == version && found == Err(FlowOutcome::Waits) {
                        waiting.push_back((from, FlowNote::Read(number, version, read)));
                        continue;
                    }
                    self.tell_when_safe(from, FlowNote::Found(number, here, read, found));
                }
                FlowNote::Ran(..) | FlowNote::Found(..) => {}
            }
            if began.elapsed() >= most {
                break;
            }
        }
        let handing = &mut self.outside.handing;
        handing.stuck = handing.asked.is_empty() && !waiting.is_empty();
        handing.asked.extend(waiting);
    }

    /// When what waits here is to be looked at again, in milliseconds of the server's life.
    pub(super) fn handing_deadline(&self) -> Option<u64> {
        let Handing { asked, gated, .. } = &self.outside.handing;
        (!asked.is_empty() || !gated.is_empty()).then_some(self.time.uptime + 1)
    }

    /// Whether flows let a partition go (G2); all shards stand still.
    pub(super) fn flows_may_move(&mut self, way: Way) -> Result<(), Stays> {
        if !self.node.has_flows() {
            return Ok(());
        }
        let shards = self.shards.as_ref().map(|shards| shards.me);
        let Some(placement) = self.node.engine().placement().cloned() else { return Ok(()) };
        let concerned = |key: &[u8]| placement.partition(key) == way.partition;
        let node = &self.node;
        let handing = &mut self.outside.handing;
        handing.concerned.retain(|(flow, place), _| node.has_flow_task(flow, *place));
        let busy = handing.concerned.values().any(|all| all.contains(&way.partition))
            || shards == Some(way.from) && self.node.flows_pending(&concerned)
            || (shards == Some(way.from) || shards == Some(way.to)) && self.node.flows_backfill();
        if busy {
            let text = format!("flows have tasks that concern partition {}", way.partition.0);
            return Err(Stays::Busy(text + ": try again when they are done"));
        }
        // What is done is not to be done again at the new home, whatever moment a crash comes at.
        self.node.engine_mut().settle_kept().map_err(|error| Stays::For(error.to_string()))
    }
}
