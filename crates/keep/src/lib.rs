//! The embedded store: base keys and definitions on disk, written as they change, loaded as they are wanted.
//!
//! The shard tells every write ([`StoreHandle`]), which costs a copy into the turn that gathers. At the end of a turn of the
//! server's loop, [`Store::commit`] hands the turn to a writer thread, which puts all turns that wait into
//! the store as one batch, and syncs the store's journal as [`Durability`] asks. Loads are answered by threads of their
//! own. Nothing here blocks the shard, except where the writer is megabytes behind, and while
//! keys are gathered that move to another store.
//!
//! The store is [fjall](https://docs.rs/fjall): a log-structured store in Rust, with atomic batches over several
//! keyspaces, snapshots, and checksums of journal batches and of table blocks. What it does not check is checked
//! here: its manifests at start, each record as it is read, and that the journal reaches as far as was once safe.
//!
//! # Invariants
//! - E1. Operations are numbered, without gaps, over restarts. The number of the last one that is in the store is in the
//!   store itself, and changes with it: whatever a snapshot shows, the position in it is exact.
//! - E2. A load shows every operation told before it was asked for.
//! - E3. [`Store::durable`] is at most the last operation that was synced: what a reply may tell of under
//!   [`Durability::Always`].
//!   Under the other two it may tell of what a crash of the process cannot take back ([`Store::survives`]): the turns that the shard
//!   has written down before the writer came to them are written to the store at the next start.
//! - E4. Bytes that are not as they were written are never given as a value: the start, or the load, fails
//!   with a sentence that says what is damaged.
//! - E5. After a failed write or sync nothing more is written, and [`Store::refusal`] says why. Loads go on,
//!   with what could not be written laid over what was.
//! - E6. What was told between two calls of [`Store::commit`] is in the store as a whole or not at all, whatever the moment of a
//!   crash. So the removal of a range of keys is one step, and a transaction is one batch, also where it waits for data while it
//!   is under way ([`Store::begin_transaction`]).
//!
//! # Cost
//! A write: one copy of key and value on the shard's thread, and another with a share of the turn's `pwrite`, but under `always`. On the writer's thread another one, an insertion into a
//! skip list, a batch's share of one `write` and one `fdatasync`. A load reads the blocks of its range. Memory:
//! [`Options::memory_bytes`], and what is being loaded.

mod backup;
mod files;
mod journal;
mod keeper;
mod loader;
mod log;
mod lost;
mod notes;
mod options;
mod origin;
mod outside;
mod recent;
mod record;
mod restore;
mod shared;
mod survey;
mod tables;
mod turn;
mod walk;
mod writer;

use crate::files::Folder;
use crate::keeper::{KeeperQueue, NextCommit};
pub use crate::notes::Notes;
use crate::record::{STATE, State};
use crate::shared::{Keys, Progress, Queue, Shared, lock};
use crate::tables::Tables;
use crate::turn::Turn;
use crate::writer::{Writer, write_state};
pub use backup::{BACKUP_FORMAT, BackupPiece, BackupReader};
pub use files::{FORMAT_FILE, discard_copy};
use fjall::compaction::Leveled;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
pub use headwater_base::Durability;
use headwater_base::source::{Position, Sink};
pub use keeper::{StoreHandle, StoreWatch};
pub use options::{Options, REMOVALS_BYTES_MIN, StoreStats};
pub use origin::LogOrigin;
pub use outside::{Acknowledger, Feed, LogMark, TurnLog};
pub use recent::RecentWrites;
pub use restore::{Restored, check_backup, restore, restore_copy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;
pub use survey::Wanted;

/// The writer is behind where this part of what may wait for it does.
const BEHIND: usize = 32;
/// Threads that load.
const LOADERS: usize = 2;

/// Something that was declared and is declared again at the next start: a join, a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Definition {
    /// What it is; no zero bytes.
    pub kind: String,
    /// Its name among those of its kind.
    pub name: Vec<u8>,
    /// Whatever whoever declared it needs to do so again.
    pub text: Vec<u8>,
}

/// An open store. Dropping it writes and syncs what was told.
#[derive(Debug)]
pub struct Store {
    front: Arc<KeeperQueue>,
    options: Options,
    /// Where what the folder had at the start ends in the log that it follows.
    log_mark: Option<LogMark>,
    writer: Option<JoinHandle<()>>,
    loaders: Vec<JoinHandle<()>>,
}

/// A sentence for an error of the store.
fn describe(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) => error.to_string(),
        fjall::Error::Locked => String::from("another process uses the store"),
        fjall::Error::Poisoned => String::from("an earlier write of the store failed"),
        fjall::Error::InvalidVersion(_) => {
            String::from("the store's files have another format than this server reads")
        }
        other => format!("the store's files are damaged ({other:?})"),
    }
}

/// The keyspace of the keys of a generation.
fn keys_name(generation: u64) -> String {
    format!("keys-{generation}")
}

/// The writer ends tables itself: the store would remember the size that a keyspace is made with.
fn table_options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
}

/// The store merges tables into ones of so many times the bytes that gather for one. While it writes such a table, the last key of each block of it stays in
/// memory, and with a key of more than 20 bytes all of the block that the key was read from: so what a merge takes is about the length of a table, and the
/// store's own default of 64 MiB is too much for a small memory. A keyspace keeps what it was made with.
const TABLES_MERGED: u64 = 1;

/// The keys of a generation, and tables of the length that they are merged into.
fn keys_keyspace(
    database: &Database,
    generation: u64,
    table_bytes: u64,
) -> fjall::Result<Keyspace> {
    let merged = Leveled::default().with_table_target_size(TABLES_MERGED * table_bytes);
    database.keyspace(&keys_name(generation), || {
        table_options().compaction_strategy(Arc::new(merged.clone()))
    })
}

/// What was found in the store at start.
struct Found {
    database: Database,
    meta: Keyspace,
    definitions: Keyspace,
    notes: Keyspace,
    tables: Keyspace,
    keys: Keys,
    state: State,
}

/// Opens fjall's part, and makes it where the folder is new.
fn open_database(folder: &Folder, options: &Options) -> Result<Found, String> {
    let text = |error: fjall::Error| describe(&error);
    let database = Database::builder(folder.store())
        .cache_size(options.table_bytes)
        .worker_threads(1)
        .open()
        .map_err(text)?;
    if !folder.is_new {
        for name in ["meta", "definitions", "notes", "tables"] {
            if !database.keyspace_exists(name) {
                return Err(format!("the store's part '{name}' is missing: the data is damaged"));
            }
        }
    }
    let meta = database.keyspace("meta", table_options).map_err(text)?;
    let definitions = database.keyspace("definitions", table_options).map_err(text)?;
    let notes = database.keyspace("notes", table_options).map_err(text)?;
    let tables = database.keyspace("tables", table_options).map_err(text)?;
    let state = match meta.get(STATE).map_err(text)? {
        Some(record) => State::read(&record).ok_or("the store's record of itself is damaged")?,
        None if folder.is_new => State::default(),
        None => return Err(String::from("the store's record of itself is missing")),
    };
    if !folder.is_new && !database.keyspace_exists(&keys_name(state.generation)) {
        return Err(String::from("the keys are missing: the data is damaged"));
    }
    let keyspace = keys_keyspace(&database, state.generation, options.table_bytes).map_err(text)?;
    // A flush that was cut short leaves the keyspace before or after it.
    for name in database.list_keyspace_names() {
        if name.starts_with("keys-") && *name != *keys_name(state.generation) {
            let stray = database.keyspace(&name, table_options).map_err(text)?;
            database.delete_keyspace(stray).map_err(text)?;
        }
    }
    if folder.is_new {
        write_state(&database, &meta, database.batch(), state).map_err(text)?;
        database.persist(PersistMode::SyncAll).map_err(text)?;
        folder.finish().map_err(|error| error.to_string())?;
    }
    let keys = Keys { generation: state.generation, keyspace };
    Ok(Found { database, meta, definitions, notes, tables, keys, state })
}

/// The tables that have had keys.
fn read_tables(keyspace: &Keyspace) -> fjall::Result<Tables> {
    let keys: fjall::Result<Vec<_>> = keyspace.iter().map(|guard| guard.key()).collect();
    Ok(Tables::of(keys?.into_iter().filter_map(|key| Some(key.split_first()?.1.to_vec()))))
}

/// All definitions, in the order in which they were made.
fn read_definitions(keyspace: &Keyspace) -> Result<Vec<Definition>, String> {
    let mut found = Vec::new();
    for guard in keyspace.iter() {
        let (key, record) = guard.into_inner().map_err(|error| describe(&error))?;
        let split = key.iter().position(|&byte| byte == 0);
        let text = record::read_definition(&key, &record);
        let (Some(split), Some((order, text))) = (split, text) else {
            return Err(format!("the definition '{}' is damaged", key.escape_ascii()));
        };
        let kind = String::from_utf8_lossy(&key[..split]).into_owned();
        let (name, text) = (key[split + 1..].to_vec(), text.to_vec());
        found.push((order, Definition { kind, name, text }));
    }
    found.sort_by_key(|(order, _)| *order);
    Ok(found.into_iter().map(|(_, definition)| definition).collect())
}

impl Store {
    /// The definitions that are on disk, in order; what was told a moment ago may not be there yet.
    ///
    /// # Errors
    /// They cannot be read, or one is damaged.
    pub fn definitions(&self) -> Result<Vec<Definition>, String> {
        read_definitions(&self.front.shared.definitions)
    }

    /// Opens the store in the folder `path`, and makes it where there is none. Loads are answered to `sink`; `waker` is called
    /// from other threads when [`Self::durable`] or [`Self::refusal`] has changed. The definitions are those to
    /// declare again, in order.
    ///
    /// # Errors
    /// The folder cannot be used, is used by another process, or is damaged; the sentence says which and where.
    pub fn open(
        path: &Path,
        options: Options,
        sink: Arc<dyn Sink>,
        waker: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(Self, Vec<Definition>), String> {
        Self::open_with(path, options, Feed::Own, sink, waker)
    }

    /// The same, of a store whose turns come from or go to a log.
    ///
    /// # Errors
    /// As for [`Self::open`]; or the folder is no copy of a log and should be, or the other way round.
    pub fn open_with(
        path: &Path,
        options: Options,
        feed: Feed,
        sink: Arc<dyn Sink>,
        waker: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(Self, Vec<Definition>), String> {
        let folder = Arc::new(Folder::open(path)?);
        folder.check_manifests()?;
        let (safe, told) = folder.safe().map_err(|error| format!("safe: {error}"))?;
        let is_short = |found: u64| match told {
            Some(told) if told > found => Err(format!(
                "the data is damaged: it ends with operation {found}, but all up to {told} were safe; \
                 to go on with what is left, remove the file 'safe'"
            )),
            _ => Ok(()),
        };
        let journals = journal::check(&folder.store()).or_else(|why| match told {
            Some(_) => Err(why),
            // Someone has removed the file that says what must be there.
            None => Ok(journal::End::default()),
        })?;
        journals.position.map_or(Ok(()), is_short)?;
        journals.mend()?;
        // Damaged files may stop the store at an assertion of its own.
        let found = catch_unwind(AssertUnwindSafe(|| open_database(&folder, &options)))
            .unwrap_or_else(|_| Err(String::from("the store's files are damaged")))?;
        let Found { database, meta, definitions, notes, tables, keys, state } = found;
        is_short(state.position)?;
        feed.check(state.position, state.mark)?;
        safe.write(state.position).map_err(|error| format!("safe: {error}"))?;
        let known = read_tables(&tables).map_err(|error| describe(&error))?;
        let progress = Progress { committed: state.position, ..Progress::default() };
        let shared = Arc::new(Shared {
            database,
            meta,
            keys: Mutex::new(keys),
            definitions,
            notes,
            tables,
            queue: Mutex::new(Queue::default()),
            recent: Mutex::new(feed.recent(&options, state)),
            awaited: Mutex::default(),
            queue_bytes_max: options.table_bytes as usize,
            gathers: !matches!(feed, Feed::Own),
            wanted: AtomicU64::new(0),
            gathered_bytes: AtomicU64::new(0),
            retained_bytes: AtomicU64::new(0),
            holds_turns: AtomicBool::new(false),
            work: Condvar::new(),
            room: Condvar::new(),
            progress: Mutex::new(progress),
            moved: Condvar::new(),
            // What the journal gave was synced while it was opened.
            durable: AtomicU64::new(state.position),
            survives: AtomicU64::new(state.position),
            wakes_at_commit: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            takes_removals: AtomicBool::new(true),
            refusals: Mutex::default(),
            failed: AtomicBool::new(false),
            counters: shared::Counters::default(),
            backups: Mutex::default(),
            sink,
            waker,
        });
        let mut writer = Writer {
            shared: shared.clone(),
            folder: folder.clone(),
            safe,
            options,
            state,
            generation: state.generation,
            tables: known,
            unsynced: None,
            gathers_since: None,
            batch_bytes: 0,
            sync_asked: false,
            journal_bytes: 0,
            disk_seen: Instant::now(),
        };
        let log = folder.recover_turns(&mut writer)?;
        let declared = read_definitions(&shared.definitions)?;
        let failed = |error: std::io::Error| error.to_string();
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        let front = Arc::new(KeeperQueue {
            told: AtomicU64::new(writer.state.position),
            gathered: Mutex::new(NextCommit {
                turn: Turn::after(writer.state.position),
                // Under `always` replies wait longer, for the sync; what a log has needs no file.
                log: (options.durability != Durability::Always && matches!(feed, Feed::Own))
                    .then_some(log),
                outside: match feed {
                    Feed::Log(log) => Some(log),
                    Feed::Own | Feed::Follows => None,
                },
                tables: writer.tables.clone(),
                survey: None,
                open_behind: None,
            }),
            shared: shared.clone(),
        });
        let mut store =
            Self { front, options, log_mark: state.mark, writer: None, loaders: Vec::new() };
        store.writer = Some(named("keep-write").spawn(move || writer.run()).map_err(failed)?);
        for _ in 0..LOADERS {
            let shared = shared.clone();
            let run = move || loader::run(&shared, options.load_bytes_max);
            store.loaders.push(named("keep-load").spawn(run).map_err(failed)?);
        }
        Ok((store, declared))
    }

    /// The shard's end.
    #[must_use]
    pub fn keeper(&self) -> StoreHandle {
        StoreHandle { front: self.front.clone() }
    }

    /// The shard's end of what it keeps for itself.
    #[must_use]
    pub fn notes(&self) -> Notes {
        Notes { front: self.front.clone() }
    }

    /// The tables that may have keys, by what their keys begin with: `name|`, or nothing for keys
    /// without a table.
    #[must_use]
    pub fn tables(&self) -> Vec<Vec<u8>> {
        lock(&self.front.gathered).tables.prefixes().map(<[u8]>::to_vec).collect()
    }

    /// Hands what was told since the last time to the writer; gives the position of the last operation told.
    pub fn commit(&self) -> Position {
        self.front.commit()
    }

    /// A transaction begins: until [`Self::end_transaction`] the writer gets nothing of what is told from now on. Loads
    /// show it.
    pub fn begin_transaction(&self) {
        let mut gathered = lock(&self.front.gathered);
        gathered.open_behind = Some(gathered.turn.last());
    }

    /// The transaction has ended: all of it is one batch with what [`Self::commit`] hands over next.
    pub fn end_transaction(&self) {
        let mut gathered = lock(&self.front.gathered);
        gathered.open_behind = None;
        self.front.bound_turn(gathered);
    }

    /// Forgets the part of a transaction that was told, where the rest will not come.
    pub fn forget_transaction(&self) {
        self.front.forget_open();
    }

    /// From now on [`Self::told`] counts the notes that were told as well, which otherwise are nobody's to wait for.
    pub fn count_notes(&self) {
        let last = lock(&self.front.gathered).turn.last();
        self.front.told.fetch_max(last, Ordering::AcqRel);
    }

    /// The last operation that was told, but for notes.
    #[inline]
    #[must_use]
    pub fn told(&self) -> Position {
        Position(self.front.told.load(Ordering::Acquire))
    }

    /// The last operation that is safe.
    #[inline]
    #[must_use]
    pub fn durable(&self) -> Position {
        Position(self.front.shared.durable.load(Ordering::Acquire))
    }

    /// The last operation that a crash of the process cannot take back: what a reply may tell of, but under
    /// [`Durability::Always`].
    #[inline]
    #[must_use]
    pub fn survives(&self) -> Position {
        Position(self.front.shared.survives.load(Ordering::Acquire))
    }

    /// Has everything that was told synced soon, whatever the durability; gives the last operation of it, notes included.
    pub fn ask_sync(&self) -> Position {
        self.front.ask_sync()
    }

    /// Whether so much waits for the writer that it has enough to do for a while.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        let shared = &self.front.shared;
        lock(&shared.queue).bytes > shared.gathered_bytes_max() + shared.queue_bytes_max / BEHIND
    }

    /// Whether writing has failed for good, so that [`Self::durable`] moves no more.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.front.shared.failed.load(Ordering::Acquire)
    }

    /// Why no writes are to be accepted now, if so.
    #[must_use]
    pub fn refusal(&self) -> Option<Arc<str>> {
        let shared = &self.front.shared;
        if !shared.refusing.load(Ordering::Acquire) {
            return None;
        }
        lock(&shared.refusals).why().cloned()
    }

    /// Whether that is because much waits for the log of several machines alone, which goes by when the log has it.
    #[must_use]
    pub fn refuses_for_log(&self) -> bool {
        let refusals = lock(&self.front.shared.refusals);
        refusals.folder.is_none() && refusals.log.is_some()
    }

    /// Whether removals are to be accepted though other writes are not: they make room.
    #[must_use]
    pub fn takes_removals(&self) -> bool {
        self.front.shared.takes_removals.load(Ordering::Acquire)
    }

    /// How it keeps.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// What is known of it now.
    #[must_use]
    pub fn facts(&self) -> StoreStats {
        let shared = &self.front.shared;
        let (gathered, position) = {
            let gathered = lock(&self.front.gathered);
            (gathered.turn.bytes(), gathered.turn.last())
        };
        let counters = &shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreStats {
            position,
            durable: read(&shared.durable),
            pending_bytes: (gathered + lock(&shared.queue).bytes) as u64,
            batches: read(&counters.batches),
            syncs: read(&counters.syncs),
            sync_micros: read(&counters.sync_micros),
            sync_micros_last: read(&counters.sync_micros_last),
            loads: read(&counters.loads),
            loads_failed: read(&counters.loads_failed),
            loaded_keys: read(&counters.loaded_keys),
            loaded_bytes: read(&counters.loaded_bytes),
            disk_bytes: read(&counters.disk_bytes),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.forget_transaction();
        self.commit();
        self.front.end_survey();
        let shared = &self.front.shared;
        lock(&shared.queue).closing = true;
        shared.work.notify_all();
        if let Some(writer) = self.writer.take() {
            let _ended = writer.join();
        }
        shared.end_backups();
        let mut gathered = lock(&self.front.gathered);
        let is_safe = shared.durable.load(Ordering::Acquire) == gathered.turn.last();
        if is_safe && let Some(log) = &mut gathered.log {
            log.empty();
        }
        drop(gathered);
        lock(&shared.progress).closing = true;
        shared.moved.notify_all();
        for loader in self.loaders.drain(..) {
            let _ended = loader.join();
        }
    }
}
