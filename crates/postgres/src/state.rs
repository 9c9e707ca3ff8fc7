//! What the threads of a source share: its tables, what the log has told of, and the loads under way.
//!
//! Everything that is told, is told under the one lock, so news are in the order of the log. A load runs in a snapshot
//! of its own, which lies somewhere beside the log; this is how the two are put together:
//!
//! 1. From the turn on at which a load begins, the transactions that the log tells of are kept.
//! 2. The load's query notes which transactions it sees, and then where the log ends, its *horizon*: all that it sees is
//!    written before that.
//! 3. Once the log has been read up to the horizon, the kept transactions that the query did not see are applied to its rows.
//!    That is the answer, at the position up to which the log has been read.
//!
//! # Invariants
//! - J1. A transaction that a query does not see is one of those kept, or will be told of after the answer: if the log had told
//!   of it before the load began (it was written and not yet to be seen), the load begins again.
//! - J2. `recent` holds every transaction since the oldest load under way, and nothing if there is none.
//! - J3. Changes that are kept or told are those of keys that somebody follows; a load's range is followed before it begins.
//! - J4. `position` never goes back, and every [`News::Changed`] is at a greater one than that before.

use crate::followed::Followed;
use crate::mapping::{Mapping, Words};
use crate::output::Relation;
use crate::settings::Settings;
use crate::snapshot::{Snapshot, Told};
use headwater_base::KeyRange;
use headwater_base::source::{Change, FetchId, Health, Loaded, News, Pair, Position, Sink};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What all threads of a source hold.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    state: Mutex<State>,
    /// Something that a thread may wait for has changed.
    pub(crate) changed: Condvar,
}

/// What they hold under the lock.
pub(crate) struct State {
    sink: Arc<dyn Sink>,
    pub(crate) stopping: bool,
    pub(crate) health: Health,
    /// Up to where the log has been read.
    pub(crate) position: u64,
    /// The position of the last [`News::Changed`].
    told_position: u64,
    /// How many transactions the log has told of.
    turn: u64,
    /// How often the log was begun anew, not where it had been left.
    epoch: u64,
    /// What had been committed where the log was begun.
    base: Snapshot,
    /// A number of a recent transaction, epoch and all.
    pub(crate) near: u64,
    pub(crate) told: Told,
    recent: VecDeque<Recent>,
    pub(crate) tables: BTreeMap<Vec<u8>, Table>,
    pub(crate) relations: HashMap<u32, Relation>,
    pub(crate) plans: crate::transaction::Plans,
    loads: BTreeMap<FetchId, Load>,
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) watch: Watch,
    generation: u64,
}

/// A table of keys.
pub(crate) struct Table {
    /// Which declaration.
    pub(crate) generation: u64,
    pub(crate) words: Words,
    pub(crate) standing: Standing,
    pub(crate) followed: Followed,
}

/// Whether a table can be loaded.
#[derive(Clone)]
pub(crate) enum Standing {
    /// A thread is about to compare it with the database, or is at it.
    Asked,
    /// It was not compared with the database yet, for this reason.
    Unchecked(String),
    Ready(Arc<Ready>),
    /// What is declared and what the database has do not fit.
    Broken(String),
}

/// Why a table cannot be loaded that is [`Standing::Asked`].
const COMPARED: &str = "the table is being compared with the database";

impl Standing {
    /// Why it cannot be loaded.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Asked | Self::Ready(_) => COMPARED.to_owned(),
            Self::Unchecked(reason) | Self::Broken(reason) => reason.clone(),
        }
    }
}

/// A table as the database has it.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) mapping: Mapping,
    /// Its object id.
    pub(crate) relation: u32,
    /// Queries that see all transactions before this one may be believed: older ones may have changed rows before
    /// the table was published.
    pub(crate) since: u64,
    /// Changes whenever the table was altered in a way that matters.
    pub(crate) signature: String,
}

/// A transaction that the log told of.
struct Recent {
    turn: u64,
    xid: u64,
    changes: Arc<[Change]>,
    resets: Arc<[KeyRange]>,
}

struct Load {
    prefix: Vec<u8>,
    range: KeyRange,
    deadline: Instant,
    following: bool,
    /// The next turn, and the epoch, when its query began.
    since: u64,
    epoch: u64,
    /// Which declaration its query is of.
    generation: u64,
    begun: Instant,
    found: Option<Found>,
    /// Why it has been begun again, if it was.
    trouble: Option<String>,
}

/// What a load's query gave.
pub(crate) struct Found {
    pub(crate) snapshot: Snapshot,
    /// Where the log ended after the snapshot was taken.
    pub(crate) horizon: u64,
    pub(crate) pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What is to be done on a connection of the pool.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) not_before: Instant,
    pub(crate) deadline: Instant,
    /// Why it was put off.
    pub(crate) trouble: Option<String>,
}

pub(crate) enum Work {
    Load(FetchId),
    Declare { request: u64, prefix: Vec<u8>, generation: u64 },
    Position { request: u64 },
    Write { request: u64, changes: Vec<Change> },
}

/// What those who operate it are told.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) slot: String,
    pub(crate) log_block_bytes: u64,
    pub(crate) behind_bytes: u64,
    pub(crate) retained_bytes: u64,
    pub(crate) reconnections: u64,
    pub(crate) resets: u64,
    pub(crate) transactions: u64,
    pub(crate) changes: u64,
    pub(crate) loads: u64,
    pub(crate) loads_failed: u64,
    pub(crate) loads_again: u64,
    pub(crate) rows: u64,
    pub(crate) rows_without_key: u64,
    /// The slot holds back too much: it is to be dropped.
    pub(crate) drop_slot: bool,
}

/// What a load's query needs.
pub(crate) struct Query {
    pub(crate) ready: Arc<Ready>,
    pub(crate) range: KeyRange,
}

impl Shared {
    pub(crate) fn new(settings: Settings, sink: Arc<dyn Sink>) -> Self {
        let state = State {
            sink,
            stopping: false,
            health: Health::Down("not connected yet".to_owned()),
            position: 0,
            told_position: 0,
            turn: 0,
            epoch: 0,
            base: Snapshot::default(),
            near: 0,
            told: Told::default(),
            recent: VecDeque::new(),
            tables: BTreeMap::new(),
            relations: HashMap::new(),
            plans: HashMap::new(),
            loads: BTreeMap::new(),
            jobs: VecDeque::new(),
            watch: Watch { log_block_bytes: 8192, ..Watch::default() },
            generation: 0,
        };
        Self { settings, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves no half of a change that matters more than going on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a while; gives `false` where the source is to end.
    pub(crate) fn pause(&self, length: Duration) -> bool {
        let until = Instant::now() + length;
        let mut state = self.lock();
        while !state.stopping {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Puts a job into the queue.
    pub(crate) fn queue(&self, work: Work) {
        let now = Instant::now();
        let deadline = now + self.settings.patience;
        self.lock().jobs.push_back(Job { work, not_before: now, deadline, trouble: None });
        self.changed.notify_all();
    }
}

impl State {
    pub(crate) fn tell(&mut self, news: News) {
        if !self.sink.tell(news) {
            self.stopping = true;
        }
    }

    /// Notes how the source does, and tells it where that is news.
    pub(crate) fn set_health(&mut self, health: Health) {
        if self.health != health {
            self.health = health.clone();
            self.tell(News::Health(health));
        }
    }

    /// Declares a table, or declares it again; its generation.
    pub(crate) fn declare(&mut self, prefix: &[u8], words: Words) -> u64 {
        self.generation += 1;
        let standing = Standing::Asked;
        let generation = self.generation;
        let before = self.tables.remove(prefix);
        let followed = before.map(|table| table.followed).unwrap_or_default();
        let loaded = !followed.is_empty();
        self.tables.insert(prefix.to_vec(), Table { generation, words, standing, followed });
        self.plans.clear();
        if loaded {
            self.reset(KeyRange::prefix(prefix));
        }
        generation
    }

    /// Sets how a table stands, and says that nothing of it is to be believed if that was `Ready` before.
    pub(crate) fn set_standing(&mut self, prefix: &[u8], generation: u64, standing: Standing) {
        let Some(table) = self.tables.get_mut(prefix) else { return };
        if table.generation != generation {
            return;
        }
        let was_ready = matches!(table.standing, Standing::Ready(_));
        let loaded = was_ready || !table.followed.is_empty();
        table.standing = standing;
        self.plans.clear();
        if loaded {
            self.generation += 1;
            // Loads whose queries were of the table as it was begin again.
            table.generation = self.generation;
            self.reset(KeyRange::prefix(prefix));
        }
    }

    pub(crate) fn reset(&mut self, range: KeyRange) {
        self.watch.resets += 1;
        self.tell(News::Reset { range });
    }

    /// The table that `key` is in.
    pub(crate) fn table_of(&self, key: &[u8]) -> Option<(&Vec<u8>, &Table)> {
        let upto = (std::ops::Bound::Unbounded, std::ops::Bound::Included(key));
        let before = self.tables.range::<[u8], _>(upto).rev();
        before.into_iter().find(|(prefix, _)| key.starts_with(prefix))
    }

    /// The log is begun anew at `position`, where `base` had been committed: what was loaded cannot be followed.
    pub(crate) fn begin_anew(&mut self, position: u64, base: Snapshot) {
        self.epoch += 1;
        self.position = self.position.max(position);
        self.near = base.next;
        self.base = base;
        self.told.clear();
        self.recent.clear();
        self.relations.clear();
        self.plans.clear();
        let prefixes: Vec<_> = self.tables.keys().cloned().collect();
        for prefix in prefixes {
            self.reset(KeyRange::prefix(&prefix));
        }
        let found: Vec<_> = self.waiting().collect();
        for fetch in found {
            self.again(fetch, Duration::ZERO, "the log was begun anew");
        }
    }

    /// Takes a new load.
    pub(crate) fn load(&mut self, fetch: FetchId, range: &KeyRange, deadline: Instant) {
        let Some((prefix, _)) = self.table_of(&range.first) else {
            let answer = Err("no table is declared for these keys".to_owned());
            return self.tell(News::Loaded { fetch, answer });
        };
        let now = Instant::now();
        let load = Load {
            prefix: prefix.clone(),
            range: range.clone(),
            deadline,
            following: false,
            since: 0,
            epoch: 0,
            generation: 0,
            begun: now,
            found: None,
            trouble: None,
        };
        self.watch.loads += 1;
        self.loads.insert(fetch, load);
        self.jobs.push_back(Job {
            work: Work::Load(fetch),
            not_before: now,
            deadline,
            trouble: None,
        });
    }

    /// Whether a load's query can begin: `Err` says what it waits for.
    pub(crate) fn can_load(&self, fetch: FetchId) -> Result<(), String> {
        let Some(load) = self.loads.get(&fetch) else { return Ok(()) };
        if let Health::Down(reason) = &self.health {
            return Err(reason.clone());
        }
        match self.tables.get(&load.prefix).map(|table| &table.standing) {
            Some(Standing::Asked) => Err(COMPARED.to_owned()),
            Some(Standing::Unchecked(reason)) => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    /// A load's query begins now (J3): what it is to ask, if it is still wanted and possible.
    pub(crate) fn begin_load(&mut self, fetch: FetchId) -> Option<Query> {
        let load = self.loads.get_mut(&fetch)?;
        let Some(table) = self.tables.get_mut(&load.prefix) else {
            self.fail_load(fetch, "the table was withdrawn".to_owned());
            return None;
        };
        let ready = match &table.standing {
            Standing::Ready(ready) => Arc::clone(ready),
            standing => {
                let reason = standing.reason();
                self.fail_load(fetch, reason);
                return None;
            }
        };
        if !load.following {
            load.following = true;
            table.followed.add(&load.range);
        }
        load.since = self.turn;
        load.epoch = self.epoch;
        load.generation = table.generation;
        load.begun = Instant::now();
        Some(Query { ready, range: load.range.clone() })
    }

    /// What a load's query gave. Tells the answer if the log has been read far enough.
    pub(crate) fn found(&mut self, fetch: FetchId, found: Found) {
        let Some(load) = self.loads.get_mut(&fetch) else { return };
        self.near = self.near.max(found.snapshot.next);
        load.found = Some(found);
        self.answer(fetch);
    }

    /// Loads that wait for the log.
    fn waiting(&self) -> impl Iterator<Item = FetchId> {
        self.loads.iter().filter(|(_, load)| load.found.is_some()).map(|(&fetch, _)| fetch)
    }

    /// Whether some load has waited for the log for so long.
    pub(crate) fn waits_for_log(&self, length: Duration) -> bool {
        self.loads.values().any(|load| load.found.is_some() && load.begun.elapsed() >= length)
    }

    /// When the oldest query under way began.
    pub(crate) fn oldest_load(&self) -> Option<Instant> {
        self.loads.values().filter(|load| load.following).map(|load| load.begun).min()
    }

    /// Has a load begin again after a pause.
    pub(crate) fn again(&mut self, fetch: FetchId, pause: Duration, trouble: &str) {
        let Some(load) = self.loads.get_mut(&fetch) else { return };
        load.found = None;
        load.trouble = Some(trouble.to_owned());
        let (deadline, trouble) = (load.deadline, load.trouble.clone());
        self.watch.loads_again += 1;
        let not_before = Instant::now() + pause;
        self.jobs.push_back(Job { work: Work::Load(fetch), not_before, deadline, trouble });
    }

    /// Answers a load with what went wrong.
    pub(crate) fn fail_load(&mut self, fetch: FetchId, message: String) {
        let Some(load) = self.loads.remove(&fetch) else { return };
        if let Some(table) = self.tables.get_mut(&load.prefix).filter(|_| load.following) {
            table.followed.remove(&load.range);
        }
        self.watch.loads_failed += 1;
        self.forget_recent();
        self.tell(News::Loaded { fetch, answer: Err(message) });
    }

    /// Fails loads that have waited for the log too long.
    pub(crate) fn fail_overdue(&mut self) {
        let now = Instant::now();
        let overdue: Vec<_> =
            self.waiting().filter(|fetch| self.loads[fetch].deadline <= now).collect();
        for fetch in overdue {
            let reason = match &self.health {
                Health::Down(reason) => reason.clone(),
                Health::Up => "its changes did not arrive in time".to_owned(),
            };
            self.fail_load(fetch, reason);
        }
    }

    /// Tells the answer of a load whose query is done, if the log has been read far enough.
    fn answer(&mut self, fetch: FetchId) {
        let Some(load) = self.loads.get_mut(&fetch) else { return };
        let Some(table) = self.tables.get(&load.prefix) else {
            return self.fail_load(fetch, "the table was withdrawn".to_owned());
        };
        let Standing::Ready(ready) = &table.standing else {
            // It waits, or fails, where it begins.
            return self.again(fetch, Duration::ZERO, "the table was altered");
        };
        let Some(found) = load.found.as_ref() else { return };
        if load.epoch != self.epoch || load.generation != table.generation {
            return self.again(fetch, Duration::ZERO, "the table was altered");
        }
        if found.snapshot.oldest < ready.since {
            let trouble = "transactions are under way that began before the table was published";
            return self.again(fetch, Duration::from_millis(20), trouble);
        }
        if found.horizon > self.position {
            return;
        }
        let unseen =
            |recent: &&Recent| recent.turn >= load.since && !found.snapshot.sees(recent.xid);
        let told_before = self.told.has_unseen_before(load.since, &found.snapshot)
            || found.snapshot.lacks_some_of(&self.base);
        let doubtful = self
            .recent
            .iter()
            .filter(unseen)
            .any(|recent| recent.resets.iter().any(|range| range.overlaps(&load.range)));
        if told_before || doubtful {
            let trouble = "transactions ended that cannot be seen yet";
            return self.again(fetch, Duration::from_millis(2), trouble);
        }
        let late: Vec<_> =
            self.recent.iter().filter(unseen).map(|recent| Arc::clone(&recent.changes)).collect();
        let Some(Load { range, found: Some(found), .. }) = self.loads.remove(&fetch) else {
            return;
        };
        self.watch.rows += found.pairs.len() as u64;
        let answer = Ok(Loaded {
            position: Position(self.position),
            pairs: with_changes(found.pairs, &range, &late),
        });
        self.forget_recent();
        self.tell(News::Loaded { fetch, answer });
    }

    /// The log told of a transaction, which ends at `position`. `more` is at hand.
    pub(crate) fn transaction(
        &mut self,
        xid: u64,
        position: u64,
        changes: Vec<Change>,
        resets: Vec<KeyRange>,
        more: bool,
    ) {
        self.told.note(xid, self.turn);
        self.watch.transactions += 1;
        self.watch.changes += changes.len() as u64;
        let keep = self.loads.values().any(|load| load.following);
        if keep && !(changes.is_empty() && resets.is_empty()) {
            let recent = Recent {
                turn: self.turn,
                xid,
                changes: changes.clone().into(),
                resets: resets.clone().into(),
            };
            self.recent.push_back(recent);
        }
        self.turn += 1;
        // Before the changes: nobody is to see the rest of a transaction without what is to be loaded again.
        for range in resets {
            self.reset(range);
        }
        self.position = self.position.max(position);
        if changes.is_empty() {
            self.come_to(position, more);
        } else if position > self.told_position {
            self.told_position = position;
            self.tell(News::Changed { position: Position(position), changes });
            self.answer_waiting();
        }
    }

    /// The log has been read up to `position`, and nothing happened there; `more` is at hand.
    pub(crate) fn come_to(&mut self, position: u64, more: bool) {
        self.position = self.position.max(position);
        if !more && self.position > self.told_position {
            self.told_position = self.position;
            let position = Position(self.position);
            self.tell(News::Changed { position, changes: Vec::new() });
        }
        self.answer_waiting();
    }

    fn answer_waiting(&mut self) {
        let position = self.position;
        let arrived = |load: &Load| load.found.as_ref().is_some_and(|at| at.horizon <= position);
        let arrived: Vec<_> =
            self.loads.iter().filter(|(_, load)| arrived(load)).map(|(&fetch, _)| fetch).collect();
        for fetch in arrived {
            self.answer(fetch);
        }
    }

    /// Forgets the transactions that no load under way began before (J2).
    fn forget_recent(&mut self) {
        let following = self.loads.values().filter(|load| load.following);
        let oldest = following.map(|load| load.since).min().unwrap_or(u64::MAX);
        while self.recent.front().is_some_and(|recent| recent.turn < oldest) {
            self.recent.pop_front();
        }
    }
}

/// The pairs of a query with the changes of a range that it did not see.
fn with_changes(
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    range: &KeyRange,
    late: &[Arc<[Change]>],
) -> Vec<Pair> {
    let mut changed: BTreeMap<&[u8], Option<&Vec<u8>>> = BTreeMap::new();
    for change in late.iter().flat_map(|changes| changes.iter()) {
        if range.contains(&change.key) {
            changed.insert(&change.key, change.value.as_ref());
        }
    }
    let pair = |key, value| Pair { key, value, expires: None };
    let kept = pairs.into_iter().filter(|(key, _)| !changed.contains_key(&**key));
    let mut all: Vec<_> = kept.map(|(key, value)| pair(key, value)).collect();
    let late =
        changed.iter().filter_map(|(key, value)| Some(pair(key.to_vec(), (*value)?.clone())));
    all.extend(late);
    all
}
