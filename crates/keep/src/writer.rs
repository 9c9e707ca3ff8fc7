//! The thread that writes: what has gathered goes into the store as one batch, and is synced as asked.
//!
//! While it writes and syncs, the next turns gather: so under `always` a sync serves all of them
//! (group commit). Of a folder that is a copy of a log nobody waits for the store, so turns gather for a while longer: of
//! keys that are written often the store is told seldom. Whoever wants to see an operation in the store ends that
//! ([`Shared::want`]).
//!
//! # Cost
//! Of the operations of a batch on one key the store gets the last one. Its table in memory is a list that is searched, in cold memory, for each
//! key that is added: batches come to it in the order of their keys, in which the next one is near.

use crate::files::{DurableMark, Folder};
use crate::loader::View;
use crate::lost::Lost;
use crate::record::{STATE, State};
use crate::shared::{Keys, Queue, Shared, lock};
use crate::tables::Tables;
use crate::turn::{ENTRY_MEMORY, Op, Turn};
use crate::{Durability, Options, REMOVALS_BYTES_MIN, keys_keyspace};
use fjall::{Database, Keyspace, OwnedWriteBatch as WriteBatch, PersistMode, Readable};
use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// What a key has, or `None` where it is gone.
type KeyChange<'t> = (&'t [u8], Option<&'t [u8]>);

/// How often the room on the disk is looked at, at most.
const DISK_EVERY: Duration = Duration::from_millis(250);
/// After so many bytes of operations the tables of all keyspaces are ended, at the latest with the next one of keys.
const JOURNAL_BYTES: u64 = 16 << 20;
/// For how long turns gather at most that are safe in a log.
const GATHERS_FOR: Duration = Duration::from_millis(250);
/// How long the end waits at most for the store to write what is in its memory.
const LAST_TABLES: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// The key under which a table's prefix is noted: keys of the store are not empty.
pub(crate) fn table_key(prefix: &[u8]) -> Vec<u8> {
    [b"t", prefix].concat()
}

/// Commits a batch with the state in it; gives the state as it was written.
pub(crate) fn write_state(
    database: &Database,
    meta: &Keyspace,
    mut batch: WriteBatch,
    state: State,
) -> fjall::Result<State> {
    let state = State { number: database.seqno(), ..state };
    batch.insert(meta, STATE, state.write());
    batch.commit()?;
    Ok(state)
}

/// Takes the turns that are written next: all, but what is behind one that somebody wants to see the store behind. What came from a log goes
/// as a whole, since its place there is at the last turn alone.
fn take_turns(turns: &mut VecDeque<Turn>) -> VecDeque<Turn> {
    let is_own = turns.iter().all(|turn| turn.mark().is_none());
    let viewed = turns.iter().position(|turn| turn.viewer().is_some());
    match viewed {
        Some(at) if is_own => {
            let rest = turns.split_off(at + 1);
            core::mem::replace(turns, rest)
        }
        _ => core::mem::take(turns),
    }
}

/// What the thread owns.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) folder: Arc<Folder>,
    pub(crate) safe: DurableMark,
    pub(crate) options: Options,
    pub(crate) state: State,
    /// The keyspace of the keys: that of `state`, or of the batch under way.
    pub(crate) generation: u64,
    /// The tables that the store knows of.
    pub(crate) tables: Tables,
    /// When the oldest operation was written that is not synced.
    pub(crate) unsynced: Option<Instant>,
    /// When the first of the turns was seen that gather.
    pub(crate) gathers_since: Option<Instant>,
    /// Bytes of the operations of the last batch, without those that later ones make void.
    pub(crate) batch_bytes: u64,
    pub(crate) disk_seen: Instant,
    /// A sync was asked for, of all that is written.
    pub(crate) sync_asked: bool,
    /// Bytes of operations since the tables of all keyspaces were ended.
    pub(crate) journal_bytes: u64,
}

impl Writer {
    /// Writes until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        self.tell_size();
        while let Some(mut turns) = self.wait() {
            if !turns.is_empty() && !self.shared.failed.load(Ordering::Acquire) {
                let done = catch_unwind(AssertUnwindSafe(|| self.write(&turns)));
                self.note(done, &turns);
            } else if !turns.is_empty() {
                self.lose(&turns);
            }
            self.show(&turns);
            self.end_table();
            if self.is_sync_due() {
                let done = catch_unwind(AssertUnwindSafe(|| self.sync()));
                self.note(done, &VecDeque::new());
            }
            self.look_at_disk(!turns.is_empty());
            self.tell_size();
            if let Some(mut turn) = turns.pop_front() {
                drop(turns);
                // A large one is not to wait for its next use with all its memory.
                turn.reset(0);
                let mut queue = lock(&self.shared.queue);
                if queue.spare.len() < 2 {
                    queue.spare.push(turn);
                }
            }
            self.shared.holds_turns.store(false, Ordering::Release);
        }
        if !self.shared.failed.load(Ordering::Acquire) {
            let synced = catch_unwind(AssertUnwindSafe(|| self.sync()));
            if matches!(synced, Ok(Ok(()))) {
                let _best_effort = catch_unwind(AssertUnwindSafe(|| self.empty_journal()));
            }
        }
    }

    /// Gives a view of the store to those who want one behind `turns`.
    fn show(&self, turns: &VecDeque<Turn>) {
        for viewer in turns.iter().filter_map(Turn::viewer) {
            let view = match self.shared.failed.load(Ordering::Acquire) {
                false => View::of(&self.shared),
                true => Err(String::from("data can no longer be written")),
            };
            // Who has gone wants none.
            let _heard = viewer.send(view);
        }
    }

    /// Has the store write all that is in its memory alone, and empties its journal then: the next start reads none.
    fn empty_journal(&self) -> fjall::Result<()> {
        let shared = &self.shared;
        let keys = lock(&shared.keys).keyspace.clone();
        let all = [&keys, &shared.meta, &shared.definitions, &shared.notes, &shared.tables];
        for keyspace in all {
            keyspace.rotate_memtable()?;
        }
        let begun = Instant::now();
        while all.iter().any(|keyspace| keyspace.sealed_memtable_count() > 0) {
            if begun.elapsed() > LAST_TABLES {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        Ok(crate::journal::empty(&self.folder.store())?)
    }

    /// What is to be written now; `None` at the end.
    fn wait(&mut self) -> Option<VecDeque<Turn>> {
        let shared = self.shared.clone();
        let mut queue = lock(&shared.queue);
        loop {
            if let Some(least) = self.gathers_until(&queue) {
                let most = least.saturating_duration_since(Instant::now());
                let waited = self.shared.work.wait_timeout(queue, most);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            self.gathers_since = None;
            if !queue.turns.is_empty() {
                let turns = take_turns(&mut queue.turns);
                queue.bytes = queue.turns.iter().map(Turn::bytes).sum();
                self.shared.room.notify_all();
                self.shared.holds_turns.store(true, Ordering::Release);
                return Some(turns);
            }
            if queue.closing {
                return None;
            }
            if queue.sync_wanted {
                queue.sync_wanted = false;
                drop(queue);
                // Everything that was told before is written.
                self.sync_asked = true;
                return Some(VecDeque::new());
            }
            if queue.table_wanted {
                // Asked for until it is ended (`end_table`).
                return Some(VecDeque::new());
            }
            let until = match (self.options.durability, self.unsynced) {
                (Durability::Interval, Some(since)) => Some(since + self.options.interval),
                _ if self.shared.refusing.load(Ordering::Acquire) => {
                    Some(Instant::now() + DISK_EVERY)
                }
                _ => None,
            };
            let Some(until) = until else {
                queue = self.shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let most = until.saturating_duration_since(Instant::now());
            let (locked, timeout) =
                self.shared.work.wait_timeout(queue, most).unwrap_or_else(PoisonError::into_inner);
            queue = locked;
            if timeout.timed_out() && queue.turns.is_empty() {
                return Some(VecDeque::new());
            }
        }
    }

    /// Until when turns that wait are to gather; `None`: no longer.
    fn gathers_until(&mut self, queue: &Queue) -> Option<Instant> {
        let wants_all = queue.closing || queue.sync_wanted || queue.table_wanted;
        let is_long = queue.bytes >= self.shared.gathered_bytes_max();
        if queue.turns.is_empty()
            || wants_all
            || is_long
            || self.state.position < self.shared.wanted.load(Ordering::Acquire)
            || queue.turns.iter().any(|turn| turn.viewer().is_some())
        {
            return None;
        }
        let until = *self.gathers_since.get_or_insert_with(Instant::now) + GATHERS_FOR;
        (until > Instant::now()).then_some(until)
    }

    /// Has the store write what has gathered in its memory, where that is much, or where its memory is needed.
    fn end_table(&mut self) {
        let bytes = core::mem::take(&mut self.batch_bytes);
        let gathered = self.shared.gathered_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        self.journal_bytes += bytes;
        let works = !self.shared.failed.load(Ordering::Acquire);
        let shared = self.shared.clone();
        let asked = lock(&shared.queue).table_wanted;
        if asked && works {
            if shared.retained_bytes.load(Ordering::Acquire) > 0 {
                // A table without a record is not ended, and nothing would be let go of.
                let (batch, state) = (shared.database.batch(), self.state);
                let done = catch_unwind(AssertUnwindSafe(|| self.commit_state(batch, state)));
                self.note(done, &VecDeque::new());
            }
            self.rotate(core::slice::from_ref(&shared.meta));
            shared.retained_bytes.store(0, Ordering::Release);
        }
        if works && (gathered >= self.options.table_bytes || (asked && gathered > 0)) {
            shared.gathered_bytes.store(0, Ordering::Release);
            shared.retained_bytes.store(gathered, Ordering::Release);
            let mut ended = vec![lock(&shared.keys).keyspace.clone()];
            // A journal stays, and is read at start, as long as one table of what is in it is not on disk.
            if self.journal_bytes >= JOURNAL_BYTES.min(16 * self.options.table_bytes) {
                self.journal_bytes = 0;
                let others = [&shared.meta, &shared.definitions, &shared.notes, &shared.tables];
                ended.extend(others.map(Keyspace::clone));
            }
            self.rotate(&ended);
        }
        if asked {
            lock(&shared.queue).table_wanted = false;
        }
    }

    /// Ends the tables that the store gathers in its memory for these keyspaces, for them to be written. Of any that were ended
    /// before, and are on disk, it lets go.
    fn rotate(&mut self, ended: &[Keyspace]) {
        // First the journal: the store syncs it as well before it writes tables, but takes with them what was ended meanwhile. A
        // table that is safe while the state in the journal is lost would have keys of operations that count as not done.
        let done = catch_unwind(AssertUnwindSafe(|| {
            if self.unsynced.is_some() {
                self.sync()?;
            }
            ended.iter().try_for_each(|keyspace| keyspace.rotate_memtable().map(|_| ()))
        }));
        self.note(done, &VecDeque::new());
    }

    fn is_sync_due(&mut self) -> bool {
        let wanted = core::mem::take(&mut self.sync_asked);
        let Some(since) = self.unsynced else { return false };
        let due = match self.options.durability {
            Durability::None => false,
            Durability::Interval => since.elapsed() >= self.options.interval,
            Durability::Always => true,
        };
        (due || wanted) && !self.shared.failed.load(Ordering::Acquire)
    }

    /// Writes turns; what was committed is visible to loads at once.
    fn write(&mut self, turns: &VecDeque<Turn>) -> fjall::Result<()> {
        let shared = self.shared.clone();
        let mut keys = lock(&shared.keys).keyspace.clone();
        self.batch_bytes = turns.iter().map(|turn| turn.bytes() as u64).sum();
        let mut batch = shared.database.batch();
        let mut last = self.state.position;
        let (mut changes, mut emptied, mut put) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (position, op) in turns.iter().flat_map(Turn::ops) {
            if position <= last {
                // Of a turn that the store had a part of when the process ended.
                continue;
            }
            match op {
                Op::Put(key, record) => {
                    if let Some(prefix) = self.tables.add(key) {
                        batch.insert(&shared.tables, table_key(prefix), "");
                    }
                    changes.push((key, Some(record)));
                }
                Op::Remove(key) => changes.push((key, None)),
                Op::Define(key, record) => batch.insert(&shared.definitions, key, record),
                Op::Undefine(key) => batch.remove(&shared.definitions, key),
                Op::Note(name, record) => batch.insert(&shared.notes, name, record),
                Op::Unnote(name) => batch.remove(&shared.notes, name),
                Op::RemoveRange(first, end) => {
                    put.extend(changes.iter().map(|(key, _)| *key));
                    self.tell(&mut changes, &keys, &mut batch);
                    self.remove_range((first, end), &mut put, &keys, &mut batch)?;
                }
                Op::Clear => {
                    self.tell(&mut changes, &keys, &mut batch);
                    let new = self.clear(&mut batch)?;
                    emptied.push(core::mem::replace(&mut keys, new));
                    put.clear();
                }
            }
            last = position;
        }
        self.tell(&mut changes, &keys, &mut batch);
        if let Some(mark) = turns.iter().rev().find_map(Turn::mark) {
            self.state.mark = Some(mark);
        }
        self.commit_cleared(batch, last, &keys, emptied)
    }

    /// Has a batch make changes of keys, in the order in which they were made: the last one of each key.
    fn tell(&mut self, changes: &mut Vec<KeyChange<'_>>, keys: &Keyspace, batch: &mut WriteBatch) {
        changes.sort_by_key(|(key, _)| *key);
        for (at, (key, record)) in changes.iter().enumerate() {
            if changes.get(at + 1).is_some_and(|(next, _)| next == key) {
                let bytes = key.len() + record.map_or(0, <[u8]>::len);
                self.batch_bytes -= (bytes + ENTRY_MEMORY) as u64;
                continue;
            }
            match record {
                Some(record) => batch.insert(keys, *key, *record),
                None => batch.remove(keys, *key),
            }
        }
        changes.clear();
    }

    /// Commits a batch together with the position of its last operation.
    fn commit(&mut self, batch: WriteBatch, position: u64) -> fjall::Result<()> {
        if position == self.state.position {
            return Ok(());
        }
        self.commit_state(batch, State { position, ..self.state })?;
        self.reached(position);
        Ok(())
    }

    fn commit_state(&mut self, batch: WriteBatch, state: State) -> fjall::Result<()> {
        self.state = write_state(&self.shared.database, &self.shared.meta, batch, state)?;
        self.unsynced.get_or_insert_with(Instant::now);
        self.shared.counters.batches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Loads see everything up to `position` now.
    fn reached(&self, position: u64) {
        lock(&self.shared.progress).committed = position;
        self.shared.moved.notify_all();
        self.shared.survives(position);
        if self.shared.wakes_at_commit.load(Ordering::Acquire) {
            (self.shared.waker)();
        }
    }

    /// Writes a turn that a crash of the process left behind.
    pub(crate) fn recover(&mut self, turn: Turn) -> Result<(), String> {
        let found = [turn].into();
        let done = self.write(&found);
        self.end_table();
        done.map_err(|error| crate::describe(&error))
    }

    /// Has `batch` remove the keys of a range: those in the store, and those of `put`, which earlier operations of the batch may have put there. All
    /// go with one batch, so that no crash leaves a part of them.
    fn remove_range(
        &self,
        (first, last): (&[u8], &[u8]),
        put: &mut BTreeSet<&[u8]>,
        keys: &Keyspace,
        batch: &mut WriteBatch,
    ) -> fjall::Result<()> {
        if !last.is_empty() && first >= last {
            // It has no keys, and the set would not hear of it.
            return Ok(());
        }
        let within = put.range::<[u8], _>(headwater_base::key::bounds(first, last));
        for key in within.copied().collect::<Vec<_>>() {
            batch.remove(keys, key);
            put.remove(key);
        }
        let snapshot = self.shared.database.snapshot();
        for guard in snapshot.range::<&[u8], _>(keys, headwater_base::key::bounds(first, last)) {
            // A copy: what the store gives of a long key keeps all of the block in memory that it was read in, values and all.
            batch.remove(keys, &*guard.key()?);
        }
        Ok(())
    }

    /// Goes on with an empty keyspace: what is in force once `batch` is written, with what comes behind.
    fn clear(&mut self, batch: &mut WriteBatch) -> fjall::Result<Keyspace> {
        self.generation += 1;
        for prefix in self.tables.clear() {
            batch.remove(&self.shared.tables, table_key(&prefix));
        }
        keys_keyspace(&self.shared.database, self.generation, self.options.table_bytes)
    }

    /// As [`Self::commit`], of a batch behind which all keys are in the keyspace `keys`, and those in `emptied` count no more.
    fn commit_cleared(
        &mut self,
        batch: WriteBatch,
        position: u64,
        keys: &Keyspace,
        emptied: Vec<Keyspace>,
    ) -> fjall::Result<()> {
        if emptied.is_empty() {
            return self.commit(batch, position);
        }
        let generation = self.generation;
        self.commit_state(batch, State { position, generation, ..self.state })?;
        *lock(&self.shared.keys) = Keys { generation, keyspace: keys.clone() };
        // The old keyspace must not be gone before the state that says so is safe.
        self.shared.database.persist(PersistMode::SyncData)?;
        for keyspace in emptied {
            self.shared.database.delete_keyspace(keyspace)?;
        }
        self.reached(position);
        Ok(())
    }

    pub(crate) fn sync(&mut self) -> fjall::Result<()> {
        let begun = Instant::now();
        self.shared.database.persist(PersistMode::SyncData)?;
        let micros = begun.elapsed().as_micros() as u64;
        let counters = &self.shared.counters;
        counters.syncs.fetch_add(1, Ordering::Relaxed);
        counters.sync_micros.fetch_add(micros, Ordering::Relaxed);
        counters.sync_micros_last.store(micros, Ordering::Relaxed);
        self.unsynced = None;
        // A weaker check at the next start is no reason to refuse writes.
        let _best_effort = self.safe.write(self.state.position);
        self.shared.durable.store(self.state.position, Ordering::Release);
        (self.shared.waker)();
        Ok(())
    }

    /// Takes note of what came of a step; `turns` are those that it may have left undone.
    fn note(&mut self, done: std::thread::Result<fjall::Result<()>>, turns: &VecDeque<Turn>) {
        let why = match done {
            Ok(Ok(())) => return,
            Ok(Err(error)) => crate::describe(&error),
            Err(_) => String::from("the store stopped at a fault of its own"),
        };
        self.shared.failed.store(true, Ordering::Release);
        self.lose(turns);
        self.shared.room.notify_all();
        let why = format!("data can no longer be written: {why}");
        self.shared.refuse_for_folder(Some((why, false)));
    }

    /// Keeps operations that the store will not take.
    fn lose(&self, turns: &VecDeque<Turn>) {
        let mut progress = lock(&self.shared.progress);
        let committed = progress.committed;
        let lost = progress.lost.get_or_insert_with(|| Lost::after(committed));
        for (position, op) in turns.iter().flat_map(Turn::ops) {
            if position > committed {
                lost.add(position, op);
            }
        }
        drop(progress);
        self.shared.moved.notify_all();
    }

    /// Tells how large the store is.
    fn tell_size(&self) {
        let bytes = self.shared.database.disk_space().unwrap_or_default();
        self.shared.counters.disk_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Refuses writes while the disk has too little room, before the store fails for want of it.
    fn look_at_disk(&mut self, wrote: bool) {
        let refusing = lock(&self.shared.refusals).folder.is_some();
        if self.shared.failed.load(Ordering::Acquire)
            || self.disk_seen.elapsed() < DISK_EVERY
            || !(wrote || refusing)
        {
            return;
        }
        self.disk_seen = Instant::now();
        let Ok(free) = self.folder.bytes_free() else { return };
        let least = self.options.free_bytes_min;
        if free < least {
            let takes_removals = free >= least.min(REMOVALS_BYTES_MIN);
            let allowed =
                if takes_removals { "only what removes is taken" } else { "nothing is taken" };
            let why = format!(
                "the disk of the data has {free} bytes left, and {least} are to stay free: {allowed}"
            );
            self.shared.refuse_for_folder(Some((why, takes_removals)));
        } else if refusing {
            self.shared.refuse_for_folder(None);
        }
    }
}
