//! One flow: its cursor, and the tasks that are in memory.

use crate::dead::DeadTasks;
use crate::definition::Definition;
use crate::journal::Journal;
use crate::record::Record;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::Millis;

/// Tasks of one flow in memory.
pub const WINDOW: usize = 256;
/// Records read from the journal at once.
const READ: usize = 64;
/// Most records that are looked at for newer writes of keys.
const LOOKED_AT_MAX: u64 = 1 << 16;

/// Where a task stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// An earlier task of its key is not done.
    Behind,
    /// It may run.
    Ready,
    /// It runs.
    Running,
    /// The task waits for effects that other shards carry out.
    Remote,
    /// It will be tried again then.
    Resting(Millis),
}

#[derive(Debug)]
struct Pending {
    record: Rc<Record>,
    stage: Stage,
    /// How often it has failed.
    failures: u32,
    /// How far it has come, in whatever terms whoever runs it likes.
    mark: Vec<u8>,
}

/// How a flow does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// No task is started.
    pub paused: bool,
    /// Tasks that are not done.
    pub backlog: u64,
    /// Records of the journal that its cursor has not passed.
    pub lag: u64,
    /// Its cursor.
    pub cursor: u64,
    /// Tasks that run.
    pub running: usize,
    /// Tasks that were done.
    pub done: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Tasks that were dropped for want of room.
    pub dropped: u64,
    /// Tasks that failed too often.
    pub dead: usize,
    /// When the oldest task that is not done was written.
    pub oldest: Option<Millis>,
}

/// Counts since the flow is there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) done: u64,
    pub(crate) failures: u64,
    pub(crate) dropped: u64,
}

/// A flow at work.
#[derive(Debug)]
pub(crate) struct Flow {
    name: Vec<u8>,
    pub(crate) definition: Rc<Definition>,
    /// How it was written.
    pub(crate) text: String,
    pub(crate) paused: bool,
    /// Nothing of it is done, because the rights behind it are gone.
    pub(crate) refused: bool,
    pub(crate) counts: Counts,
    /// Tasks not done, in memory or not.
    pub(crate) backlog: u64,
    /// The next record to be looked at.
    next: u64,
    tasks: BTreeMap<u64, Pending>,
    /// Tasks above the cursor that were done before the process ended.
    done_ahead: BTreeSet<u64>,
    /// The tasks of each key, the first one first.
    keys: BTreeMap<Vec<u8>, VecDeque<u64>>,
    ready: VecDeque<u64>,
    resting: BTreeSet<(Millis, u64)>,
    running: usize,
    /// Tasks under way at other shards, which take up no worker.
    remote: usize,
    /// How often it was taken back to an earlier position.
    pub(crate) replays: u64,
    pub(crate) dead: DeadTasks,
    /// The cursor that the journal was told last.
    told: u64,
}

impl Flow {
    pub(crate) fn new(name: &str, definition: Definition, text: String, cursor: u64) -> Self {
        Self {
            name: name.as_bytes().to_vec(),
            definition: Rc::new(definition),
            text,
            paused: false,
            refused: false,
            counts: Counts::default(),
            backlog: 0,
            next: cursor,
            tasks: BTreeMap::new(),
            done_ahead: BTreeSet::new(),
            keys: BTreeMap::new(),
            ready: VecDeque::new(),
            resting: BTreeSet::new(),
            running: 0,
            remote: 0,
            replays: 0,
            dead: DeadTasks::default(),
            told: cursor,
        }
    }

    /// The least position that is not done (F1).
    pub(crate) fn cursor(&self) -> u64 {
        self.tasks.keys().next().copied().unwrap_or(self.next)
    }

    /// Takes records into memory until there are [`WINDOW`] tasks.
    fn refill(&mut self, journal: &mut dyn Journal) {
        while self.tasks.len() < WINDOW && self.next < journal.end() {
            let mut read = Vec::new();
            journal.read(self.next, READ, &mut |record| read.push(record));
            if read.is_empty() {
                return;
            }
            for record in read {
                if self.tasks.len() >= WINDOW {
                    break;
                }
                self.next = record.position + 1;
                if self.concerns(&record) && !self.done_ahead.remove(&record.position) {
                    self.take_in(Rc::new(record), 0, Vec::new());
                }
            }
        }
    }

    /// Whether a record is a task of this flow.
    pub(crate) fn concerns(&self, record: &Record) -> bool {
        match &record.only {
            Some(name) => *name == self.name,
            None => self.definition.concerns(record.operation, &record.key),
        }
    }

    /// Whether there is a task for this position in memory.
    pub(crate) fn has_task(&self, position: u64) -> bool {
        self.tasks.contains_key(&position)
    }

    /// Whether a record is a task that is not done, as far as that is known in memory.
    pub(crate) fn awaits(&self, record: &Record) -> bool {
        let position = record.position;
        self.tasks.contains_key(&position)
            || (position >= self.next
                && self.concerns(record)
                && !self.done_ahead.contains(&position))
    }

    fn take_in(&mut self, record: Rc<Record>, failures: u32, mark: Vec<u8>) {
        let position = record.position;
        let queue = self.keys.entry(record.key.clone()).or_default();
        let first = queue.is_empty();
        queue.push_back(position);
        let stage = if first { Stage::Ready } else { Stage::Behind };
        self.tasks.insert(position, Pending { record, stage, failures, mark });
        if first {
            self.ready.push_back(position);
        }
    }

    /// Takes a task that may run now.
    pub(crate) fn start(
        &mut self,
        journal: &mut dyn Journal,
        now: Millis,
    ) -> Option<(Rc<Record>, u32, Vec<u8>)> {
        if self.paused || self.refused || self.running >= self.definition.workers {
            return None;
        }
        while let Some(&(at, position)) = self.resting.first()
            && at <= now
        {
            self.resting.pop_first();
            if let Some(task) = self.tasks.get_mut(&position) {
                task.stage = Stage::Ready;
                self.ready.push_back(position);
            }
        }
        // While long tasks are under way there is always one that is ready: others are taken in all the same.
        if self.ready.is_empty() || self.tasks.len() <= WINDOW * 3 / 4 {
            self.refill(journal);
        }
        let position = self.ready.pop_front()?;
        let task = self.tasks.get_mut(&position)?;
        task.stage = Stage::Running;
        self.running += 1;
        Some((task.record.clone(), task.failures + 1, task.mark.clone()))
    }

    /// Whether this task runs.
    pub(crate) fn runs(&self, position: u64) -> bool {
        let stage = self.tasks.get(&position).map(|task| task.stage);
        matches!(stage, Some(Stage::Running | Stage::Remote))
    }

    /// A task that runs goes on at other shards, and leaves its worker to others.
    pub(crate) fn free_worker(&mut self, position: u64) {
        if let Some(task) = self.tasks.get_mut(&position)
            && task.stage == Stage::Running
        {
            task.stage = Stage::Remote;
            self.running -= 1;
            self.remote += 1;
        }
    }

    /// A task that runs, or is under way at other shards, does so no more.
    fn stops(&mut self, position: u64) {
        match self.tasks.get(&position).map(|task| task.stage) {
            Some(Stage::Running) => self.running -= 1,
            Some(Stage::Remote) => self.remote -= 1,
            _ => {}
        }
    }

    /// A task has come further; it goes on after others had their turn.
    pub(crate) fn further(&mut self, position: u64, mark: Vec<u8>) {
        if let Some(task) = self.tasks.get_mut(&position) {
            task.mark = mark;
        }
        self.again(position);
    }

    /// A task is to be run once more from where it was.
    pub(crate) fn again(&mut self, position: u64) {
        self.stops(position);
        if let Some(task) = self.tasks.get_mut(&position) {
            task.stage = Stage::Ready;
            self.ready.push_back(position);
        }
    }

    /// A task lacks something: it rests until then, as far as it has come.
    pub(crate) fn waits(&mut self, position: u64, until: Millis) {
        self.stops(position);
        if let Some(task) = self.tasks.get_mut(&position) {
            task.stage = Stage::Resting(until);
            self.resting.insert((until, position));
        }
    }

    /// A task has failed: it rests, or, if that was the last attempt, gives its record.
    pub(crate) fn failed(&mut self, position: u64, now: Millis, seed: u64) -> Option<u32> {
        self.stops(position);
        let task = self.tasks.get_mut(&position)?;
        self.counts.failures += 1;
        task.failures += 1;
        if task.failures >= self.definition.attempts_max {
            task.stage = Stage::Ready;
            return Some(task.failures);
        }
        let until = Millis(now.0 + self.definition.backoff.delay(task.failures, seed ^ position));
        task.stage = Stage::Resting(until);
        self.resting.insert((until, position));
        None
    }

    /// How often a task has failed, and how far it has come.
    pub(crate) fn state_of(&self, position: u64) -> Option<(u32, &[u8])> {
        self.tasks.get(&position).map(|task| (task.failures, task.mark.as_slice()))
    }

    /// A running task ends, one way or another.
    pub(crate) fn ended(&mut self, position: u64) {
        self.stops(position);
        self.forget(position);
    }

    /// Forgets a task; the next one of its key may run. Gives its record.
    pub(crate) fn forget(&mut self, position: u64) -> Option<Rc<Record>> {
        let task = self.tasks.remove(&position)?;
        match task.stage {
            Stage::Resting(at) => drop(self.resting.remove(&(at, position))),
            Stage::Ready => self.ready.retain(|&other| other != position),
            Stage::Running | Stage::Remote | Stage::Behind => {}
        }
        self.backlog = self.backlog.saturating_sub(1);
        if let Some(queue) = self.keys.get_mut(&task.record.key) {
            let was_first = queue.front() == Some(&position);
            queue.retain(|&other| other != position);
            match queue.front().copied() {
                None => drop(self.keys.remove(&task.record.key)),
                Some(next) if was_first => {
                    if let Some(task) = self.tasks.get_mut(&next) {
                        task.stage = Stage::Ready;
                        self.ready.push_back(next);
                    }
                }
                Some(_) => {}
            }
        }
        Some(task.record)
    }

    /// Forgets the oldest task that does not run; gives its position.
    pub(crate) fn drop_oldest(&mut self, journal: &mut dyn Journal) -> Option<u64> {
        self.refill(journal);
        let idle =
            |(_, task): &(&u64, &Pending)| !matches!(task.stage, Stage::Running | Stage::Remote);
        let position = *self.tasks.iter().find(idle)?.0;
        self.forget(position);
        self.counts.dropped += 1;
        Some(position)
    }

    /// Forgets all tasks in memory and goes on from `cursor`.
    pub(crate) fn rewind(&mut self, cursor: u64) {
        self.tasks.clear();
        self.keys.clear();
        self.ready.clear();
        self.resting.clear();
        self.done_ahead.clear();
        self.running = 0;
        self.remote = 0;
        self.next = cursor;
    }

    /// What was known of a task when the process ended.
    pub(crate) fn restore(&mut self, journal: &mut dyn Journal, states: &[(u64, u32, Vec<u8>)]) {
        self.refill(journal);
        for (position, failures, mark) in states {
            if let Some(task) = self.tasks.get_mut(position) {
                task.failures = *failures;
                task.mark.clone_from(mark);
            }
        }
    }

    pub(crate) fn set_done_ahead(&mut self, done: BTreeSet<u64>) {
        self.done_ahead = done;
    }

    /// The greatest sequence number of each of these keys' tasks that wait or run; `None`: there are more tasks than are
    /// looked at.
    pub(crate) fn newest_of(
        &self,
        keys: &BTreeSet<&[u8]>,
        journal: &mut dyn Journal,
    ) -> Option<BTreeMap<Vec<u8>, u64>> {
        let mut newest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut note = |record: &Record| {
            if keys.contains(&*record.key) {
                let greatest = newest.entry(record.key.clone()).or_default();
                *greatest = record.sequence.max(*greatest);
            }
        };
        self.tasks.values().for_each(|task| note(&task.record));
        let (mut at, end) = (self.next, journal.end());
        if end.saturating_sub(at) > LOOKED_AT_MAX {
            return None;
        }
        while at < end {
            let before = at;
            journal.read(at, READ, &mut |record| {
                at = record.position + 1;
                if self.awaits(&record) {
                    note(&record);
                }
            });
            if at == before {
                break;
            }
        }
        Some(newest)
    }

    /// The cursor that the journal was told last.
    pub(crate) fn told(&self) -> u64 {
        self.told
    }

    /// The cursor, if the journal has not been told that it has come so far.
    pub(crate) fn untold(&mut self) -> Option<(u64, u64)> {
        let (told, cursor) = (self.told, self.cursor());
        self.told = cursor;
        (cursor != told).then_some((told, cursor))
    }

    /// When something may be started that may not now: the end of the first rest.
    pub(crate) fn deadline(&self) -> Option<Millis> {
        let free = !self.paused && !self.refused && self.running < self.definition.workers;
        self.resting.first().filter(|_| free).map(|&(at, _)| at)
    }

    /// Whether a task may be started now.
    pub(crate) fn may_start(&self, end: u64) -> bool {
        let more = !self.ready.is_empty() || (self.next < end && self.tasks.len() < WINDOW);
        let rests = self.paused || self.refused;
        !rests && self.running < self.definition.workers && more
    }

    pub(crate) fn report(&self, name: &str, journal: &mut dyn Journal) -> Report {
        let mut oldest = self.tasks.values().next().map(|task| task.record.at);
        if oldest.is_none() && self.backlog > 0 {
            journal.read(self.next, READ, &mut |record| {
                if self.concerns(&record) {
                    oldest = oldest.or(Some(record.at));
                }
            });
        }
        Report {
            name: String::from(name),
            paused: self.paused,
            backlog: self.backlog,
            lag: journal.end().saturating_sub(self.cursor()),
            cursor: self.cursor(),
            running: self.running + self.remote,
            done: self.counts.done,
            failures: self.counts.failures,
            dropped: self.counts.dropped,
            dead: self.dead.len(),
            oldest,
        }
    }
}
