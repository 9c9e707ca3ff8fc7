//! The shard's end: what it tells gathers, one operation behind the other, until it is handed to the writer.
//!
//! # Cost
//! A lock that nobody else holds for long, and a copy of what is told.

use crate::loader::View;
use crate::log::Log;
use crate::lost::Lost;
use crate::notes;
use crate::outside::{self, TurnLog};
use crate::shared::{Request, Shared, lock};
use crate::survey::{Survey, Wanted};
use crate::tables::Tables;
use crate::turn::{Op, Turn};
use crate::walk;
use headwater_base::source::{Attributes, BaseStore, FetchId, Pair, Position, StorePlace};
use headwater_base::{KeyRange, Millis};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What is less than this part of a table is not worth one.
const GIVEN_BACK_PART: usize = 8;

/// What gathers for the next commit.
#[derive(Debug)]
pub(crate) struct NextCommit {
    pub(crate) turn: Turn,
    /// Where turns are written before the store has them; `None`: what tells of them waits for the store, or for a sync.
    pub(crate) log: Option<Log>,
    /// The log of several machines to which turns go first, and wait for it.
    pub(crate) outside: Option<Box<dyn TurnLog>>,
    pub(crate) tables: Tables,
    /// Keys are looked for.
    pub(crate) survey: Option<Survey>,
    /// What lies behind this operation belongs to a transaction that has not ended: the writer does not get it yet.
    pub(crate) open_behind: Option<u64>,
}

impl NextCommit {
    /// How many bytes a log of several machines is to take, where nothing is left open: a transaction is completed, whatever it comes to.
    fn bytes_for_log(&self) -> usize {
        let may_end = self.outside.is_some() && self.open_behind.is_none();
        if may_end { self.turn.bytes() } else { 0 }
    }

    /// What a load asked for now must wait for, and what it lays over that: the operations of a transaction that has not
    /// ended, as far as they concern `range`.
    fn seen_by_load(&self, range: &KeyRange) -> (u64, Option<Lost>) {
        let last = self.turn.last();
        let Some(behind) = self.open_behind.filter(|behind| *behind < last) else {
            return (last, None);
        };
        let mut over = Lost::after(behind);
        for (_, op) in self.turn.ops().filter(|(position, _)| *position > behind) {
            match op {
                Op::Put(key, _) | Op::Remove(key) if !range.contains(key) => {}
                Op::RemoveRange(first, end) if !range.overlaps(&KeyRange::new(first, end)) => {}
                op => over.add(last, op),
            }
        }
        over.last = last;
        (behind, Some(over))
    }
}

/// The shard's side.
#[derive(Debug)]
pub(crate) struct KeeperQueue {
    /// The position of the last operation told.
    pub(crate) told: AtomicU64,
    pub(crate) gathered: Mutex<NextCommit>,
    pub(crate) shared: Arc<Shared>,
}

impl KeeperQueue {
    /// Hands what was told to the writer, but for a transaction that has not ended; gives the last operation told.
    pub(crate) fn commit(&self) -> Position {
        let mut gathered = lock(&self.gathered);
        let last = gathered.turn.last();
        let open = gathered.open_behind.map(|behind| gathered.turn.split_behind(behind));
        if !gathered.turn.is_empty() {
            let full = core::mem::take(&mut gathered.turn);
            if let Some(log) = &mut gathered.log {
                match log.add(&full, || lock(&self.shared.progress).committed) {
                    Ok(()) => self.shared.survives(full.last()),
                    // The store has to take it then, or fail in its own way.
                    Err(_) => {
                        gathered.log = None;
                        self.shared.wakes_at_commit.store(true, Ordering::Release);
                    }
                }
            }
            gathered.turn = match &mut gathered.outside {
                Some(log) => {
                    let (last, bytes) = (full.last(), outside::encode(&full));
                    // First it is known to wait: the log may have it before this comes back.
                    let next = self.shared.await_log(full);
                    log.append(last, bytes);
                    next
                }
                None => self.shared.push(full),
            };
        }
        if let Some(open) = open {
            gathered.turn = open;
        }
        Position(last)
    }

    /// The same, and has a view of the store taken behind it.
    pub(crate) fn commit_viewed(&self, viewer: Sender<Result<View, String>>) {
        self.commit();
        let gathered = lock(&self.gathered);
        let last = gathered.open_behind.unwrap_or_else(|| gathered.turn.last());
        let turn = Turn::viewed_by(last, viewer);
        match gathered.outside {
            Some(_) => self.shared.await_view(turn),
            None => _ = self.shared.push(turn),
        }
    }

    /// Behind what was added to the turn that gathers: has that go to the log before it becomes too long.
    pub(crate) fn bound_turn(&self, gathered: MutexGuard<'_, NextCommit>) {
        let bytes = gathered.bytes_for_log();
        drop(gathered);
        self.shared.bound_turn(bytes);
    }

    /// Forgets what was told of a transaction that will not end.
    pub(crate) fn forget_open(&self) {
        let mut gathered = lock(&self.gathered);
        if let Some(behind) = gathered.open_behind.take() {
            drop(gathered.turn.split_behind(behind));
            self.told.fetch_min(gathered.turn.last(), Ordering::AcqRel);
        }
    }

    /// As [`StoreWatch::is_writing`].
    fn is_writing(&self) -> bool {
        let shared = &self.shared;
        if shared.failed.load(Ordering::Acquire) {
            // It gives nothing back.
            return false;
        }
        let ends_table = lock(&shared.queue).table_wanted;
        let committed = lock(&shared.progress).committed;
        ends_table
            || committed < self.told.load(Ordering::Acquire)
            // What is committed stays with the writer until it is counted, and synced where that is due.
            || shared.holds_turns.load(Ordering::Acquire)
            || self.is_busy()
    }

    /// As [`StoreWatch::is_busy`].
    fn is_busy(&self) -> bool {
        lock(&self.shared.keys).keyspace.sealed_memtable_count() > 0
            || self.shared.database.active_compactions() > 0
    }

    /// As [`StoreWatch::give_back`].
    fn give_back(&self) -> bool {
        let shared = &self.shared;
        let gathered = shared.gathered_bytes.load(Ordering::Acquire);
        let retained = shared.retained_bytes.load(Ordering::Acquire);
        if gathered + retained < (shared.queue_bytes_max / GIVEN_BACK_PART) as u64
            || shared.failed.load(Ordering::Acquire)
        {
            return false;
        }
        lock(&shared.queue).table_wanted = true;
        shared.work.notify_one();
        true
    }

    pub(crate) fn end_survey(&self) {
        let survey = lock(&self.gathered).survey.take();
        // Without the lock, since this waits for its thread.
        drop(survey);
    }

    /// The same, and has it synced soon.
    pub(crate) fn ask_sync(&self) -> Position {
        let last = self.commit();
        lock(&self.shared.queue).sync_wanted = true;
        self.shared.work.notify_one();
        last
    }
}

/// The shard's end of a store.
#[derive(Clone, Debug)]
pub struct StoreHandle {
    pub(crate) front: Arc<KeeperQueue>,
}

impl StoreHandle {
    /// Adds an operation to the turn that gathers.
    fn tell(&self, add: impl FnOnce(&mut NextCommit) -> u64) -> Position {
        let mut gathered = lock(&self.front.gathered);
        let position = add(&mut gathered);
        self.front.told.store(position, Ordering::Release);
        self.front.bound_turn(gathered);
        Position(position)
    }

    /// Keeps a definition, in the place of one of this name.
    pub fn define(&mut self, kind: &str, name: &[u8], text: &[u8]) -> Position {
        self.tell(|NextCommit { turn, .. }| {
            let order = turn.last() + 1;
            turn.define(&[kind.as_bytes(), name].join(&0), order, text)
        })
    }

    /// Forgets a definition.
    pub fn undefine(&mut self, kind: &str, name: &[u8]) -> Position {
        self.tell(|gathered| gathered.turn.undefine(&[kind.as_bytes(), name].join(&0)))
    }

    /// Begins to look for the keys that `wanted` names, so that [`BaseStore::gather`] of them, or of some of them, need not look at
    /// all keys. `done` is called from another thread when that is so.
    pub fn survey(&mut self, wanted: Wanted, done: Box<dyn Fn() + Send>) {
        self.front.end_survey();
        let mut gathered = lock(&self.front.gathered);
        let at = gathered.turn.last();
        gathered.survey = Some(Survey::begin(&self.front.shared, at, wanted, done));
    }

    /// Whether a survey has ended.
    #[must_use]
    pub fn is_surveyed(&self) -> bool {
        lock(&self.front.gathered).survey.as_ref().is_some_and(Survey::is_done)
    }

    /// What a survey has found is of no interest any more.
    pub fn end_survey(&mut self) {
        self.front.end_survey();
    }

    /// A way to see from any thread whether the store holds memory that it will give back; it does not keep the store open.
    #[must_use]
    pub fn watch(&self) -> StoreWatch {
        StoreWatch(Arc::downgrade(&self.front))
    }
}

/// Sees from any thread whether a store holds memory that it will give back. A store that is gone holds none.
#[derive(Clone, Debug)]
pub struct StoreWatch(Weak<KeeperQueue>);

impl StoreWatch {
    /// Whether threads of the store hold memory that they will give back: for what waits to be written, is being written, or is
    /// being brought into files.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.0.upgrade().is_some_and(|front| front.is_writing())
    }

    /// Whether threads of the store are writing or merging tables, for which they take memory.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.upgrade().is_some_and(|front| front.is_busy())
    }

    /// Has the store write what it keeps in memory until there is enough for a table, and let go of what it retains of the last
    /// one, where that is worth it: whoever lacks memory needs it more. Whether it will.
    #[must_use]
    pub fn give_back(&self) -> bool {
        self.0.upgrade().is_some_and(|front| front.give_back())
    }
}

impl BaseStore for StoreHandle {
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position {
        self.tell(|gathered| {
            let _may_be_new = gathered.tables.add(key);
            if let Some(survey) = &mut gathered.survey {
                survey.put(key);
            }
            gathered.turn.put(key, parts, attributes)
        })
    }

    fn remove(&mut self, key: &[u8]) -> Position {
        self.tell(|gathered| gathered.turn.remove(key))
    }

    fn remove_range(&mut self, range: &KeyRange) -> Position {
        self.tell(|gathered| gathered.turn.remove_range(range))
    }

    fn clear(&mut self) -> Position {
        self.tell(|gathered| {
            let _gone = gathered.tables.clear();
            gathered.turn.clear()
        })
    }

    fn note_time(&mut self, now: Millis) {
        self.tell(|gathered| gathered.turn.note(notes::TIME, &now.0.to_be_bytes()));
    }

    fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        lock(&self.front.gathered).tables.surely_none(range)
    }

    fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        let (at, over) = lock(&self.front.gathered).seen_by_load(range);
        let request = Request { fetch, range: range.clone(), at, over };
        lock(&self.front.shared.progress).requests.push_back(request);
        self.front.shared.counters.loads_asked.fetch_add(1, Ordering::Relaxed);
        // Both loaders, since the one that wakes may be waiting for a commit.
        self.front.shared.moved.notify_all();
        self.front.shared.want(at);
    }

    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        bytes_max: u64,
    ) -> Result<Vec<Pair>, String> {
        walk::gather(self, wanted, bytes_max)
    }

    fn settle(&mut self) -> Result<(), String> {
        walk::settle(self)
    }

    fn reached(&self) -> Option<StorePlace> {
        lock(&self.front.shared.recent).reached()
    }

    fn written_since(&mut self, place: StorePlace, range: &KeyRange) -> Option<Vec<Vec<u8>>> {
        let gathered = lock(&self.front.gathered);
        lock(&self.front.shared.recent).written_since(place, range, &gathered.turn)
    }
}
