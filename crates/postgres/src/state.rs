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
//! - J4. `position` never goes back while one log is read, and every [`News::Changed`] is at a greater one than that before. A log that
//!   is begun anew may stand before the one that was read: a server with less history. Positions that are told are locations of
//!   the log plus `shift`, which grows then.
//! - J6. A query that gives rows in the order of their keys may have parts of its load told before it ends, each as an answer would be: at the position up to
//!   which the log has been read by then, with the kept transactions that it did not see. The load is of the rest from then on, and J1 to J3 hold for
//!   that.
//! - J5. News are passed to the sink, which may be full and wait, by threads that hold no lock but that for passing on; those
//!   who call a source only put news into `outbox`. So a sink may be emptied by the thread that calls.

use crate::followed::Followed;
use crate::loads::{Load, Recent};
use crate::mapping::{Mapping, Words};
use crate::output::Relation;
use crate::pool::{self, Side};
use crate::room::{Room, TRANSACTION_LIMIT};
use crate::settings::Settings;
use crate::signature::COMPARED_AGAIN;
use crate::snapshot::{Snapshot, Told};
use crate::work::{Job, Work};
use headwater_base::KeyRange;
use headwater_base::source::{Change, FetchId, Health, News, Position, Sink};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What all threads of a source hold.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// What loads may hold.
    pub(crate) room: Arc<Room>,
    sink: Arc<dyn Sink>,
    state: Mutex<State>,
    /// Held by whoever passes news on, so that they keep their order.
    passing: Mutex<()>,
    /// Something that a thread may wait for has changed.
    changed: Condvar,
    /// There is something to do for threads of a side, with a connection and without.
    bells: [[Condvar; 2]; 2],
}

/// What is passed on.
enum Word {
    News(News),
    /// What has happened and why, for the log.
    Note(&'static str, String),
}

/// What they hold under the lock.
pub(crate) struct State {
    /// News that were not passed on yet (J5).
    outbox: VecDeque<Word>,
    pub(crate) stopping: bool,
    /// The thread that reads the log has ended.
    pub(crate) ended: bool,
    pub(crate) health: Health,
    /// How changes are told, once that is known.
    pub(crate) way: Option<Way>,
    /// Somebody asked for a position: what was written is to be read soon.
    pub(crate) hurry: bool,
    /// The position that is about to be told: that of the last reading begun where there is no log to read, the end of what was read of it elsewhere.
    pub(crate) begun: u64,
    /// Up to where the log has been read.
    pub(crate) position: u64,
    /// The position of the last [`News::Changed`].
    told_position: u64,
    /// What is added to a location of the log to make a position of it: more than nothing once a server with less history has
    /// taken the place of another (J4).
    shift: u64,
    /// The server and the line of its history that is followed.
    pub(crate) line: Option<Line>,
    /// What is altered is told in the log, by our event trigger.
    pub(crate) alterations_told: bool,
    /// The tables are to be looked at soon.
    pub(crate) look: bool,
    /// The tables are to be looked at before anything greater than [`State::begun`] is told: somebody reads at a position of the database's own.
    pub(crate) look_first: bool,
    /// The last position that was given after they had been looked at.
    pub(crate) given: Option<u64>,
    /// Threads that wait for something to do, of each side: with a connection, and without.
    pub(crate) waiting: [[usize; 2]; 2],
    /// Loads were put back into the queue, and nobody was told.
    pub(crate) put_back: bool,
    /// Threads that write.
    pub(crate) writers: usize,
    /// How many transactions the log has told of.
    pub(crate) turn: u64,
    /// How often the log was begun anew, not where it had been left.
    pub(crate) epoch: u64,
    /// What had been committed where the log was begun.
    pub(crate) base: Snapshot,
    /// A number of a recent transaction, epoch and all.
    pub(crate) near: u64,
    pub(crate) told: Told,
    pub(crate) recent: VecDeque<Recent>,
    pub(crate) tables: BTreeMap<Vec<u8>, Table>,
    pub(crate) relations: HashMap<u32, Relation>,
    pub(crate) plans: crate::transaction::Plans,
    pub(crate) loads: BTreeMap<FetchId, Load>,
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) watch: Watch,
    generation: u64,
}

/// A server's history: whoever is promoted begins a new line of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    /// The number that a cluster of databases was made with, which its standbys share.
    pub(crate) system: String,
    pub(crate) timeline: u32,
}

/// How changes are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// By logical replication.
    Log,
    /// By triggers, which note them in a table.
    Queue,
}

/// A table of keys.
pub(crate) struct Table {
    /// Which declaration.
    pub(crate) generation: u64,
    pub(crate) words: Words,
    pub(crate) standing: TableReadiness,
    pub(crate) followed: Followed,
    /// How many bytes the keys and values of its rows had in the last load; 0: there was none.
    pub(crate) row_bytes: u64,
}

/// Whether a table can be loaded.
#[derive(Clone)]
pub(crate) enum TableReadiness {
    /// A thread is about to compare it with the database, or is at it.
    Asked,
    /// It was not compared with the database yet, for this reason.
    Unchecked(String),
    Ready(Arc<Ready>),
    /// What is declared and what the database has do not fit.
    Broken(String),
}

/// Why a table cannot be loaded that is [`TableReadiness::Asked`].
const COMPARED: &str = "the table is being compared with the database";

impl TableReadiness {
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
    /// For each number of the key's first columns that are equal to something: whether an index gives the rows in the order of the others,
    /// texts by their bytes.
    pub(crate) in_order: Vec<bool>,
    /// Changes whenever the table was altered in a way that matters.
    pub(crate) signature: String,
    /// The expression that gives it.
    pub(crate) signature_sql: String,
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
    pub(crate) loads_together: u64,
    pub(crate) rows: u64,
    pub(crate) rows_without_key: u64,
    /// Why the slot is to be dropped and the log begun anew, if it is.
    pub(crate) begin_anew: Option<String>,
    /// When the server was heard last on the connection that tells changes.
    pub(crate) heard: Option<Instant>,
}

impl Shared {
    pub(crate) fn new(settings: Settings, sink: Arc<dyn Sink>) -> Self {
        let health = Health::Down("not connected yet".to_owned());
        let state = State {
            outbox: VecDeque::from([Word::News(News::Health(health.clone()))]),
            stopping: false,
            ended: false,
            health,
            way: None,
            hurry: false,
            begun: 0,
            position: 0,
            told_position: 0,
            shift: 0,
            line: None,
            alterations_told: false,
            look: false,
            look_first: false,
            given: None,
            waiting: [[0; 2]; 2],
            put_back: false,
            writers: 0,
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
        let (state, passing) = (Mutex::new(state), Mutex::default());
        let (changed, bells) = Default::default();
        let room = Arc::new(Room::new(Arc::clone(&sink)));
        Self { settings, room, sink, state, passing, changed, bells }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves no half of a change that matters more than going on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes news on.
    pub(crate) fn pass_on(&self) {
        let _turn = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let next = {
                let mut state = self.lock();
                let next = state.outbox.pop_front();
                if next.is_none() && std::mem::take(&mut state.put_back) {
                    self.wake(&state, Side::Load);
                }
                next
            };
            let heard = match next {
                Some(Word::News(news)) => self.sink.tell(news),
                Some(Word::Note(what, why)) => {
                    self.sink.note(what, &why);
                    true
                }
                None => break,
            };
            if !heard {
                self.lock().stopping = true;
            }
        }
    }

    /// Notes what has happened, for whoever runs the server.
    pub(crate) fn note(&self, what: &'static str, why: &str) {
        self.lock().note(what, why);
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

    /// Wakes who waits for anything at all.
    pub(crate) fn wake_all(&self) {
        self.changed.notify_all();
        self.bells.iter().flatten().for_each(Condvar::notify_all);
    }

    /// Wakes a thread of a side that waits for something to do: one with a connection, else all of the others. To wake more would have
    /// them take turns at the lock while one of them works. Whoever takes a job wakes the next one if more is left.
    pub(crate) fn wake(&self, state: &State, side: Side) {
        match state.waiting[side as usize] {
            [0, 0] => {}
            [0, _] => self.bells[side as usize][1].notify_all(),
            [_, _] => self.bells[side as usize][0].notify_one(),
        }
    }

    /// Waits to be woken, as a thread of a side.
    pub(crate) fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        (side, connected): (Side, bool),
        length: Duration,
    ) -> MutexGuard<'a, State> {
        let (side, kind) = (side as usize, usize::from(!connected));
        state.waiting[side][kind] += 1;
        let waited = self.bells[side][kind].wait_timeout(state, length);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.waiting[side][kind] -= 1;
        state
    }

    /// Puts a job into the queue.
    pub(crate) fn queue(self: &Arc<Self>, work: Work) {
        let now = Instant::now();
        let deadline = now + self.settings.patience;
        let side = Side::of(&work);
        let more = {
            let mut state = self.lock();
            state.jobs.push_back(Job {
                work,
                not_before: now,
                deadline,
                trouble: None,
                alone: false,
            });
            let more = pool::lacks_writers(&state) && state.writers < self.settings.writers;
            state.writers += usize::from(more);
            self.wake(&state, side);
            more
        };
        if more && pool::spawn_writer(self).is_err() {
            // Those that there are do it, if any.
            self.lock().writers -= 1;
        }
    }
}

impl State {
    /// Has news passed on, behind those before.
    pub(crate) fn tell(&mut self, news: News) {
        self.outbox.push_back(Word::News(news));
    }

    /// Has a note passed on, behind the news before.
    pub(crate) fn note(&mut self, what: &'static str, why: &str) {
        self.outbox.push_back(Word::Note(what, why.to_owned()));
    }

    /// Notes that so many tables are loaded again, since more was changed than is kept at a time.
    pub(crate) fn note_too_large(&mut self, tables: usize) {
        self.note(
            "transaction too large",
            &format!("{tables} tables that were changed are loaded again ({TRANSACTION_LIMIT})"),
        );
    }

    /// Whether news wait to be passed on.
    pub(crate) fn has_news(&self) -> bool {
        !self.outbox.is_empty()
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
        let standing = TableReadiness::Asked;
        let generation = self.generation;
        let before = self.tables.remove(prefix);
        let followed = before.map(|table| table.followed).unwrap_or_default();
        let loaded = !followed.is_empty();
        self.tables
            .insert(prefix.to_vec(), Table { generation, words, standing, followed, row_bytes: 0 });
        self.plans.clear();
        if loaded {
            self.reset(KeyRange::prefix(prefix));
        }
        generation
    }

    /// Notes how changes are told from now on; tables that were made ready for another way are compared again.
    pub(crate) fn set_way(&mut self, way: Way) {
        if self.way.replace(way).is_some_and(|before| before != way) {
            for table in self.tables.values_mut() {
                if matches!(table.standing, TableReadiness::Ready(_)) {
                    table.standing = TableReadiness::Unchecked(COMPARED.to_owned());
                }
            }
            self.plans.clear();
        }
    }

    /// A position that is reached once all that was committed before now has been read, where there is no log
    /// to read.
    pub(crate) fn after_now(&mut self) -> u64 {
        self.hurry = true;
        self.begun.max(self.position) + 1
    }

    /// The position that is told for a location of the log.
    pub(crate) fn position_at(&self, location: u64) -> Position {
        Position(location.saturating_add(self.shift))
    }

    /// The location of the log of a position that was told.
    pub(crate) fn location(&self, position: Position) -> u64 {
        position.0.saturating_sub(self.shift)
    }

    /// A table was altered: nothing of it is to be believed until it has been compared again.
    pub(crate) fn altered(&mut self, prefix: &[u8], generation: u64) {
        let standing = TableReadiness::Unchecked(COMPARED_AGAIN.to_owned());
        self.look = true;
        let current = self.tables.get(prefix).is_some_and(|table| table.generation == generation);
        if current {
            let shown = prefix.escape_ascii();
            self.note("table altered", &format!("{shown}: it is compared again, and loaded again"));
        }
        self.set_standing(prefix, generation, standing);
    }

    /// Sets how a table stands, and says that nothing of it is to be believed if that was `Ready` before.
    pub(crate) fn set_standing(
        &mut self,
        prefix: &[u8],
        generation: u64,
        standing: TableReadiness,
    ) {
        let Some(table) = self.tables.get_mut(prefix) else { return };
        if table.generation != generation {
            return;
        }
        let shown = prefix.strip_suffix(b"|").unwrap_or(prefix).escape_ascii().to_string();
        let note = match (&table.standing, &standing) {
            (_, TableReadiness::Broken(why)) => Some(("table refused", format!("{shown}: {why}"))),
            (TableReadiness::Broken(_), TableReadiness::Ready(_)) => {
                Some(("table ready", format!("{shown}: it is as it should be again")))
            }
            _ => None,
        };
        let was_ready = matches!(table.standing, TableReadiness::Ready(_));
        let loaded = was_ready || !table.followed.is_empty();
        table.standing = standing;
        self.plans.clear();
        if loaded {
            self.generation += 1;
            // Loads whose queries were of the table as it was begin again.
            table.generation = self.generation;
            self.reset(KeyRange::prefix(prefix));
        }
        note.into_iter().for_each(|(what, why)| self.note(what, &why));
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
        let last = self.told_position.max(self.position);
        if position <= last {
            self.shift += last - position + 1;
        }
        (self.position, self.told_position, self.begun) = (position, position, position);
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
        // What was committed before is in whatever is loaded from now on.
        let position = self.position_at(position);
        self.tell(News::Changed { position, changes: Vec::new() });
        let found: Vec<_> = self.waiting().collect();
        for fetch in found {
            self.again(fetch, Duration::ZERO, "the log was begun anew");
        }
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
        self.apply(position, changes, resets, more);
    }

    /// Tells of changes up to `position`; `more` is at hand.
    pub(crate) fn apply(
        &mut self,
        position: u64,
        changes: Vec<Change>,
        resets: Vec<KeyRange>,
        more: bool,
    ) {
        // Before the changes: nobody is to see the rest of a transaction without what is to be loaded again.
        for range in resets {
            self.reset(range);
        }
        self.position = self.position.max(position);
        if changes.is_empty() {
            self.come_to(position, more);
        } else if position > self.told_position {
            self.told_position = position;
            let position = self.position_at(position);
            self.tell(News::Changed { position, changes });
            self.answer_waiting();
        }
    }

    /// The log has been read up to `position`, and nothing happened there; `more` is at hand.
    pub(crate) fn come_to(&mut self, position: u64, more: bool) {
        self.position = self.position.max(position);
        if !more && self.position > self.told_position {
            self.told_position = self.position;
            let position = self.position_at(self.position);
            self.tell(News::Changed { position, changes: Vec::new() });
        }
        self.answer_waiting();
    }
}
