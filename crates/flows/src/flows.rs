//! All flows of a shard, and their journal.

use crate::dead::{Dead, DeadTasks, GivenUp};
use crate::definition::{Definition, WhenFull};
use crate::flow::{Flow, Report};
use crate::journal::Journal;
use crate::record::{Operation, Record, sequence_at};
use crate::states::{cursor_bytes, cursor_of, dead_bytes, dead_of, position_of, state_name};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_base::Millis;

/// Records read at once, where they are counted.
const READ: usize = 1024;
/// How long a task rests that waits for something, in milliseconds.
const WAIT: u64 = 1;
/// Longest name of a flow.
const NAME_BYTES_MAX: usize = 64;

/// A task that is to be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// The flow's name.
    pub flow: String,
    /// Which of the flows of this name it is: one that was dropped and declared again is another.
    pub generation: u64,
    /// What it is about.
    pub record: Rc<Record>,
    /// How often it is tried with this time.
    pub attempt: u32,
    /// How far it had come, as [`Outcome::Further`] said; empty at first.
    pub mark: Vec<u8>,
}

/// What came of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All of it is done.
    Done,
    /// A part is done: it goes on from this mark when others have had their turn.
    Further(Vec<u8>),
    /// It lacks something that will be there in a moment: it is tried again then, from where it was. That is
    /// no failure.
    Waits,
    /// What it lacked is there: it goes on from where it was.
    Again,
    /// It failed, with a sentence that says why.
    Failed(String),
}

/// Why a flow is not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub String);

pub(crate) fn refused<T>(text: String) -> Result<T, Refusal> {
    Err(Refusal(text))
}

/// All flows.
#[derive(Debug)]
pub struct Flows {
    pub(crate) flows: BTreeMap<String, (u64, Flow)>,
    pub(crate) journal: Box<dyn Journal>,
    generation: u64,
    /// Whose turn it was last.
    turn: String,
    /// Seeds the chance in delays.
    seed: u64,
    /// Records that are kept though every flow has passed them, for replays.
    retained: u64,
    /// For each flow and shard whose tasks were carried out here: below which position that is forgotten.
    pub(crate) forgotten: BTreeMap<Vec<u8>, u64>,
    /// Tasks that were given up and are to be told of.
    pub(crate) given_up: Vec<GivenUp>,
    /// The next record's sequence number is at least this one.
    sequence: u64,
}

impl Flows {
    /// No flows, over a journal.
    #[must_use]
    pub fn new(mut journal: Box<dyn Journal>, seed: u64) -> Self {
        // Records that were passed have left their mark with the cursors; of those that are left the last one has the
        // greatest number, where it is none that is tried once more (behind which the cursor was told, too).
        let mut sequence = 0;
        journal.states(b"c", &mut |_, state| {
            sequence = cursor_of(state).map_or(0, |(_, known)| known).max(sequence);
        });
        let last = journal.end().saturating_sub(1);
        journal.read(last, 1, &mut |record| sequence = sequence.max(record.sequence + 1));
        Self {
            flows: BTreeMap::new(),
            journal,
            generation: 0,
            turn: String::new(),
            seed,
            retained: 0,
            forgotten: BTreeMap::new(),
            given_up: Vec::new(),
            sequence,
        }
    }

    /// Keeps so many records that every flow has passed, for [`Flows::replay`].
    pub fn retain(&mut self, records: u64) {
        self.retained = records;
        self.release();
    }

    /// Whether there is no flow.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The journal.
    pub fn journal_mut(&mut self) -> &mut dyn Journal {
        &mut *self.journal
    }

    /// Whether a flow would be added: [`Flows::add`] refuses what this refuses.
    ///
    /// # Errors
    /// The name is taken or none, or the flow would be in a cycle.
    pub fn may_add(&self, name: &str, definition: &Definition) -> Result<(), Refusal> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return refused(format!("a flow's name has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if self.flows.contains_key(name) {
            return refused(format!("a flow is named '{name}' already: FLOW.DROP it first"));
        }
        if definition.workers == 0 || definition.attempts_max == 0 || definition.backlog_max == 0 {
            return refused(String::from("WORKERS, MAX-ATTEMPTS and BACKLOG are at least 1"));
        }
        match self.cycle(name, definition) {
            Some(way) => refused(format!("it would cause itself: {}", way.join(" -> "))),
            None => Ok(()),
        }
    }

    /// Adds a flow, which begins with the next record, or goes on where the journal knows it to be: whether it
    /// does that.
    ///
    /// # Errors
    /// As for [`Flows::may_add`].
    pub fn add(
        &mut self,
        name: &str,
        definition: Definition,
        text: String,
    ) -> Result<bool, Refusal> {
        self.may_add(name, &definition)?;
        let end = self.journal.end();
        let known = self.state(b'c', name, None);
        let known = known.and_then(|state| Some(cursor_of(&state)?.0));
        let cursor = known.unwrap_or(end).clamp(self.journal.first(), end);
        let mut flow = Flow::new(name, definition, text, cursor);
        if known.is_some() {
            self.restore(name, &mut flow);
        } else {
            self.tell_cursor(name, cursor);
        }
        self.generation += 1;
        self.flows.insert(name.to_string(), (self.generation, flow));
        Ok(known.is_some())
    }

    /// A state that the journal keeps.
    fn state(&mut self, kind: u8, flow: &str, position: Option<u64>) -> Option<Vec<u8>> {
        let wanted = state_name(kind, flow, position);
        let mut found = None;
        self.journal.states(&wanted, &mut |name, state| {
            if *name == *wanted {
                found = Some(state.to_vec());
            }
        });
        found
    }

    /// Has the journal forget a flow's states of these kinds.
    fn forget_states(&mut self, flow: &str, kinds: &[u8]) {
        for &kind in kinds {
            let mut names = Vec::new();
            self.journal.states(&state_name(kind, flow, None), &mut |name, _| {
                names.push(name.to_vec());
            });
            for name in names {
                self.journal.put(&name, None);
            }
        }
    }

    /// Takes up what the journal knows of a flow.
    fn restore(&mut self, name: &str, flow: &mut Flow) {
        let (mut done, mut states) = (BTreeSet::new(), Vec::new());
        self.journal.states(&state_name(b'd', name, None), &mut |name, _| {
            done.extend(position_of(name));
        });
        self.journal.states(&state_name(b't', name, None), &mut |name, state| {
            let failures = state.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
            if let (Some(position), Some(failures)) = (position_of(name), failures) {
                states.push((position, failures, state[4..].to_vec()));
            }
        });
        let mut dead = DeadTasks::default();
        self.journal.states(&state_name(b'x', name, None), &mut |name, state| {
            if let Some(position) = position_of(name)
                && let Some(found) = dead_of(position, state)
            {
                dead.insert(found);
            }
        });
        flow.dead = dead;
        flow.paused = self.state(b'p', name, None).is_some();
        let replays = self.state(b'g', name, None);
        flow.replays = replays.as_deref().and_then(position_of).unwrap_or(0);
        flow.backlog = count_tasks(&mut *self.journal, flow, flow.cursor(), &done);
        flow.set_done_ahead(done);
        flow.restore(&mut *self.journal, &states);
    }

    /// The way from a flow through others back to itself, if there is one.
    fn cycle(&self, name: &str, definition: &Definition) -> Option<Vec<String>> {
        let mut ways: Vec<(Vec<String>, &Definition)> =
            alloc::vec![(alloc::vec![name.to_string()], definition)];
        let mut seen = BTreeSet::new();
        while let Some((way, from)) = ways.pop() {
            let causes = |on: &Definition| from.action.puts().iter().any(|p| p.may_collide(&on.on));
            if causes(definition) {
                let back = [way, alloc::vec![name.to_string()]].concat();
                return Some(back);
            }
            for (other, (_, flow)) in &self.flows {
                if causes(&flow.definition) && seen.insert(other) {
                    let mut way = way.clone();
                    way.push(other.clone());
                    ways.push((way, &flow.definition));
                }
            }
        }
        None
    }

    /// Drops a flow with all its tasks; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        if self.flows.remove(name).is_none() {
            return false;
        }
        self.forget_states(name, b"bcdghtxp");
        let seen = state_name(b'h', name, None);
        self.forgotten.retain(|of, _| !of.starts_with(&seen));
        self.release();
        true
    }

    /// Whether a write of `key` concerns any flow.
    #[must_use]
    pub fn concern(&self, operation: Operation, key: &[u8]) -> bool {
        self.flows.values().any(|(_, flow)| flow.definition.concerns(operation, key))
    }

    /// Each flow by which writes may be held up: its name, its declaration, and the tasks that wait in
    /// it. Those with [`Definition::backlog_max`] or more have no room.
    pub fn limiting(&self) -> impl Iterator<Item = (&str, &Definition, u64)> {
        let flows = self.flows.iter().map(|(name, (_, flow))| (name, flow));
        let limiting = flows.filter(|(_, flow)| flow.definition.when_full != WhenFull::DropOldest);
        limiting.map(|(name, flow)| (name.as_str(), &*flow.definition, flow.backlog))
    }

    /// Records a write, if it concerns any flow; whether it did.
    pub fn append(&mut self, now: Millis, operation: Operation, key: &[u8], value: &[u8]) -> bool {
        if !self.concern(operation, key) {
            return false;
        }
        let sequence = self.next_sequence(now);
        self.record((now, sequence), operation, key, value, None);
        true
    }

    /// Records a write for one flow alone: of a key that was there before it.
    pub fn append_for(
        &mut self,
        flow: &str,
        now: Millis,
        operation: Operation,
        key: &[u8],
        value: &[u8],
    ) {
        let sequence = self.next_sequence(now);
        self.record((now, sequence), operation, key, value, Some(flow.as_bytes().to_vec()));
    }

    /// The sequence number of a write (F5). They follow the clock, so that they also grow as keys move between shards, but
    /// never fall back with it.
    fn next_sequence(&mut self, now: Millis) -> u64 {
        let sequence = self.sequence.max(sequence_at(now));
        self.sequence = sequence + 1;
        sequence
    }

    /// Tells the journal how far a flow has come.
    pub(crate) fn tell_cursor(&mut self, name: &str, cursor: u64) {
        let state = cursor_bytes(cursor, self.sequence);
        self.journal.put(&state_name(b'c', name, None), Some(&state));
    }

    pub(crate) fn record(
        &mut self,
        (at, sequence): (Millis, u64),
        operation: Operation,
        key: &[u8],
        value: &[u8],
        only: Option<Vec<u8>>,
    ) {
        let position = self.journal.end();
        let (key, value) = (key.to_vec(), value.to_vec());
        let record = Record { position, sequence, at, operation, key, value, only };
        self.journal.append(&record);
        let mut dropped = Vec::new();
        for (name, (_, flow)) in &mut self.flows {
            if !flow.concerns(&record) {
                continue;
            }
            flow.backlog += 1;
            let over = flow.backlog > flow.definition.backlog_max;
            if over && flow.definition.when_full == WhenFull::DropOldest {
                let oldest = flow.drop_oldest(&mut *self.journal);
                dropped.extend(oldest.map(|oldest| (name.clone(), oldest)));
            }
        }
        for (name, position) in dropped {
            self.settled(&name, position);
        }
    }

    /// The next task to be run, of the flows in turn.
    pub fn start(&mut self, now: Millis) -> Option<Task> {
        use core::ops::Bound::{Excluded, Unbounded};
        for _ in 0..self.flows.len() {
            let after = (Excluded(self.turn.as_str()), Unbounded);
            let next = self.flows.range::<str, _>(after).next().or(self.flows.iter().next());
            let Some(name) = next.map(|(name, _)| name.clone()) else { continue };
            self.turn.clone_from(&name);
            let Some((generation, flow)) = self.flows.get_mut(&name) else { continue };
            if let Some((record, attempt, mark)) = flow.start(&mut *self.journal, now) {
                return Some(Task { flow: name, generation: *generation, record, attempt, mark });
            }
        }
        // Flows that nothing concerns let go of the journal all the same.
        self.release();
        None
    }

    /// Says what came of a task. One of a flow that has gone meanwhile is ignored.
    pub fn finish(&mut self, task: &Task, outcome: Outcome, now: Millis) {
        let position = task.record.position;
        let seed = self.seed;
        let Some((generation, flow)) = self.flows.get_mut(&task.flow) else { return };
        if *generation != task.generation || !flow.runs(position) {
            return;
        }
        match outcome {
            Outcome::Done => {
                flow.counts.done += 1;
                flow.ended(position);
                for dead in flow.dead.overtake(&task.record) {
                    let state = state_name(b'x', &task.flow, Some(dead.record.position));
                    self.journal.put(&state, Some(&dead_bytes(dead)));
                }
                self.settled(&task.flow, position);
            }
            Outcome::Further(mark) => {
                flow.further(position, mark);
                self.tell_task(&task.flow, position);
            }
            Outcome::Again => flow.again(position),
            Outcome::Waits => flow.waits(position, Millis(now.0 + WAIT)),
            Outcome::Failed(error) => match flow.failed(position, now, seed) {
                None => self.tell_task(&task.flow, position),
                Some(attempts) => {
                    let record = (*task.record).clone();
                    flow.forget(position);
                    let dead = Dead { record, attempts, error, at: now, overtaken: false };
                    self.bury(&task.flow, dead);
                    self.settled(&task.flow, position);
                }
            },
        }
    }

    /// Tells the journal how often a task has failed and how far it has come.
    fn tell_task(&mut self, name: &str, position: u64) {
        let Some((_, flow)) = self.flows.get(name) else { return };
        if let Some((failures, mark)) = flow.state_of(position) {
            let state = [&failures.to_be_bytes()[..], mark].concat();
            self.journal.put(&state_name(b't', name, Some(position)), Some(&state));
        }
    }

    /// Tells the journal that a task is not to be run any more (F1).
    fn settled(&mut self, name: &str, position: u64) {
        let Some((_, flow)) = self.flows.get_mut(name) else { return };
        let moved = flow.untold();
        let cursor = flow.cursor();
        self.journal.put(&state_name(b't', name, Some(position)), None);
        if position >= cursor {
            self.journal.put(&state_name(b'd', name, Some(position)), Some(b""));
        }
        if let Some((from, to)) = moved {
            self.tell_cursor(name, to);
            let (least, most) =
                (state_name(b'd', name, Some(from)), state_name(b'd', name, Some(to)));
            let mut passed = Vec::new();
            self.journal.states(&state_name(b'd', name, None), &mut |state, _| {
                if *state >= *least && *state < *most {
                    passed.push(state.to_vec());
                }
            });
            for state in passed {
                self.journal.put(&state, None);
            }
            self.release();
        }
    }

    /// Lets the journal forget what nobody needs (F4).
    fn release(&mut self) {
        let end = self.journal.end();
        let least = self.flows.values().map(|(_, flow)| flow.cursor()).min().unwrap_or(end);
        self.journal.release(least.saturating_sub(self.retained));
    }

    /// The moment at which something may be started that may not now.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        self.flows.values().filter_map(|(_, flow)| flow.deadline()).min()
    }

    /// Whether a task may be started now.
    #[must_use]
    pub fn may_start(&self) -> bool {
        let end = self.journal.end();
        self.flows.values().any(|(_, flow)| flow.may_start(end))
    }

    /// Stops or goes on to start tasks of a flow; whether there is one of this name.
    pub fn pause(&mut self, name: &str, paused: bool) -> bool {
        let Some((_, flow)) = self.flows.get_mut(name) else { return false };
        flow.paused = paused;
        self.journal.put(&state_name(b'p', name, None), paused.then_some(&b""[..]));
        true
    }

    /// Refuses to start tasks of a flow, or does so no more; whether there is one of this name. Nobody keeps that: whoever refuses
    /// says so again after a restart.
    pub fn refuse(&mut self, name: &str, refused: bool) -> bool {
        let Some((_, flow)) = self.flows.get_mut(name) else { return false };
        flow.refused = refused;
        true
    }

    /// Goes back, or on, to a position of the journal: the records from there on are tasks again.
    ///
    /// # Errors
    /// There is no such flow, or the journal does not reach so far; that is said of positions that begin with `base`.
    pub fn replay(&mut self, name: &str, position: u64, base: u64) -> Result<u64, Refusal> {
        let (first, end) = (self.journal.first(), self.journal.end());
        if !self.flows.contains_key(name) {
            return refused(format!("no flow is named '{name}'"));
        }
        if !(first..=end).contains(&position) {
            let (first, end) = (base | first, base | end);
            return refused(format!("the journal has the positions {first} to {end}"));
        }
        self.forget_states(name, b"dt");
        let Some((generation, flow)) = self.flows.get_mut(name) else {
            return refused(format!("no flow is named '{name}'"));
        };
        // What runs now is not waited for.
        self.generation += 1;
        *generation = self.generation;
        flow.rewind(position);
        flow.replays += 1;
        let replays = flow.replays.to_be_bytes();
        let backlog = count_tasks(&mut *self.journal, flow, position, &BTreeSet::new());
        flow.backlog = backlog;
        flow.untold();
        self.tell_cursor(name, position);
        self.journal.put(&state_name(b'g', name, None), Some(&replays));
        Ok(backlog)
    }

    /// A flow's declaration, and the text it was given in.
    #[must_use]
    pub fn definition(&self, name: &str) -> Option<(&Rc<Definition>, &str)> {
        self.flows.get(name).map(|(_, flow)| (&flow.definition, flow.text.as_str()))
    }

    /// All flows, by their names.
    pub fn definitions(&self) -> impl Iterator<Item = (&str, &Definition)> {
        self.flows.iter().map(|(name, (_, flow))| (name.as_str(), &*flow.definition))
    }

    /// How each flow does, in order of names.
    pub fn reports(&mut self) -> Vec<Report> {
        let journal = &mut *self.journal;
        self.flows.iter().map(|(name, (_, flow))| flow.report(name, journal)).collect()
    }
}

/// How many records from `from` on are tasks of a flow, but for those that are `done`.
fn count_tasks(journal: &mut dyn Journal, flow: &Flow, from: u64, done: &BTreeSet<u64>) -> u64 {
    let (mut at, mut tasks) = (from, 0);
    while at < journal.end() {
        let before = at;
        journal.read(at, READ, &mut |record| {
            at = record.position + 1;
            tasks += u64::from(flow.concerns(&record) && !done.contains(&record.position));
        });
        if at == before {
            break;
        }
    }
    tasks
}
