//! A backup: one state of a store, read out while the store goes on.
//!
//! The state is that behind everything that was told when the backup began: the writer takes a snapshot there. A thread reads the snapshot, and its
//! bytes wait in a short queue until somebody takes them.
//!
//! ```text
//! "Headwater backup of a shard, format 1\n"
//! part:1 key_bytes:4 record_bytes:4 key record     each definition, note, table and key, in this order
//! 0:1 position:8 entries:8 check:8                 the end; the checksum covers all before it
//! ```
//!
//! Numbers are little-endian; keys and records are those of the store ([`crate::record`]). [`crate::restore`] makes a folder of it.
//!
//! # Cost
//! One look at each block of the store, by a thread of its own; memory for some pieces. What is overwritten or removed meanwhile stays on disk until the backup
//! ends.

use crate::loader::View;
use crate::outside::{Acknowledger, LogMark};
use crate::record::{read_definition, read_value};
use crate::shared::{Shared, lock};
use crate::{Store, describe};
use fjall::{Keyspace, Readable};
use headwater_base::hash::stable_hash;
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// What a backup begins with, but for the number of its format.
pub(crate) const TITLE: &str = "Headwater backup of a shard, format ";
/// The format that is written and read. Nodes of a cluster load backups as snapshots, and announce this: a newer one is to be written only where all of them read it.
pub const BACKUP_FORMAT: u16 = 1;
/// What a backup of that format begins with.
pub(crate) const HEADER: &[u8] = b"Headwater backup of a shard, format 1\n";
/// The seed of the checksum: part of the format.
const SEED: u64 = 0x6261_636b_7570_0001;
/// Bytes of a piece, about.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait to be taken.
const PIECES: usize = 4;
/// A backup that nobody is seen to be taking for so long is given up: it holds old data on the disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an entry is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Definitions = 1,
    Notes = 2,
    Tables = 3,
    Keys = 4,
}

impl Part {
    pub(crate) fn of(number: u8) -> Option<Self> {
        [Self::Definitions, Self::Notes, Self::Tables, Self::Keys]
            .into_iter()
            .find(|part| *part as u8 == number)
    }

    /// Whether a record is as it was written, as far as that can be seen.
    pub(crate) fn is_whole(self, key: &[u8], record: &[u8]) -> bool {
        match self {
            Self::Definitions => read_definition(key, record).is_some(),
            Self::Notes | Self::Keys => read_value(key, record).is_some(),
            Self::Tables => true,
        }
    }
}

/// The checksum of an entry and of all before it.
pub(crate) fn check_entry(before: u64, part: Part, key: &[u8], record: &[u8]) -> u64 {
    stable_hash(stable_hash(before ^ part as u64, key), record)
}

/// The checksum at the end.
pub(crate) fn check_end(before: u64, position: u64) -> u64 {
    stable_hash(before, &position.to_le_bytes())
}

/// The checksum of nothing.
pub(crate) fn check_of_none() -> u64 {
    stable_hash(SEED, HEADER)
}

/// What comes next of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BackupPiece {
    /// Nothing is there yet.
    Pending,
    /// These bytes.
    Bytes(Vec<u8>),
    /// There are no more.
    End,
}

/// What has been read out, and not been taken.
#[derive(Debug)]
struct Pieces {
    ready: VecDeque<Vec<u8>>,
    /// How it ended.
    ended: Option<Result<(), String>>,
    /// Nobody wants the rest.
    abandoned: bool,
    /// When somebody was last seen to be taking the backup.
    touched: Instant,
}

#[derive(Debug)]
struct Pipe {
    pieces: Mutex<Pieces>,
    taken: Condvar,
}

impl Pipe {
    fn new() -> Self {
        let (ready, touched) = (VecDeque::new(), Instant::now());
        let pieces = Pieces { ready, ended: None, abandoned: false, touched };
        Self { pieces: Mutex::new(pieces), taken: Condvar::new() }
    }

    /// Adds a piece once there is room.
    fn put(&self, piece: Vec<u8>) -> Result<(), String> {
        let mut pieces = lock(&self.pieces);
        while pieces.ready.len() >= PIECES && !pieces.abandoned {
            let left = PATIENCE.saturating_sub(pieces.touched.elapsed());
            if left.is_zero() {
                return Err(format!(
                    "nobody has asked for any of it for {} seconds",
                    PATIENCE.as_secs()
                ));
            }
            let waited = self.taken.wait_timeout(pieces, left);
            (pieces, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if pieces.abandoned {
            return Err(String::from("the backup was ended"));
        }
        pieces.ready.push_back(piece);
        Ok(())
    }

    fn abandon(&self) {
        lock(&self.pieces).abandoned = true;
        self.taken.notify_all();
    }
}

/// The end of a backup at which its bytes are taken; it is given up when this is dropped.
#[derive(Debug)]
pub struct BackupReader {
    pipe: Arc<Pipe>,
}

impl BackupReader {
    /// The backup is being taken, of this shard or of another one: it is not given up.
    pub fn touch(&self) {
        lock(&self.pipe.pieces).touched = Instant::now();
    }

    /// What comes next.
    ///
    /// # Errors
    /// The state cannot be read to its end; the sentence says why.
    pub fn take(&self) -> Result<BackupPiece, String> {
        let mut pieces = lock(&self.pipe.pieces);
        if let Some(piece) = pieces.ready.pop_front() {
            self.pipe.taken.notify_all();
            return Ok(BackupPiece::Bytes(piece));
        }
        match pieces.ended.clone() {
            None => Ok(BackupPiece::Pending),
            Some(Ok(())) => Ok(BackupPiece::End),
            Some(Err(why)) => Err(why),
        }
    }
}

impl Drop for BackupReader {
    fn drop(&mut self) {
        self.pipe.abandon();
    }
}

/// A thread that reads a state out.
#[derive(Debug)]
pub(crate) struct BackupThread {
    pipe: Arc<Pipe>,
    thread: JoinHandle<()>,
}

/// Writes entries one behind the other.
struct Output<'p> {
    pipe: &'p Pipe,
    piece: Vec<u8>,
    entries: u64,
    check: u64,
}

impl Output<'_> {
    fn add(&mut self, part: Part, key: &[u8], record: &[u8]) -> Result<(), String> {
        if !part.is_whole(key, record) {
            let name = key.escape_ascii();
            return Err(format!("the record of '{name}' is damaged"));
        }
        self.entries += 1;
        self.check = check_entry(self.check, part, key, record);
        self.piece.push(part as u8);
        self.piece.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.piece.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.bytes(key)?;
        self.bytes(record)
    }

    /// Adds bytes; a value may take more than one piece.
    fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while self.piece.len() + bytes.len() >= PIECE_BYTES {
            let (now, later) =
                bytes.split_at(PIECE_BYTES.saturating_sub(self.piece.len()).min(bytes.len()));
            self.piece.extend_from_slice(now);
            self.pipe.put(mem::take(&mut self.piece))?;
            bytes = later;
        }
        self.piece.extend_from_slice(bytes);
        Ok(())
    }

    fn end(mut self, position: u64) -> Result<(), String> {
        self.piece.push(0);
        for number in [position, self.entries, check_end(self.check, position)] {
            self.piece.extend_from_slice(&number.to_le_bytes());
        }
        self.pipe.put(self.piece)
    }
}

fn read_out(shared: &Shared, view: &View, pipe: &Pipe) -> Result<(), String> {
    let mut out = Output { pipe, piece: HEADER.to_vec(), entries: 0, check: check_of_none() };
    let parts: [(Part, &Keyspace); 4] = [
        (Part::Definitions, &shared.definitions),
        (Part::Notes, &shared.notes),
        (Part::Tables, &shared.tables),
        (Part::Keys, &view.keys),
    ];
    for (part, keyspace) in parts {
        for guard in view.snapshot.iter(keyspace) {
            let (key, record) = guard.into_inner().map_err(|error| describe(&error))?;
            out.add(part, &key, &record)?;
        }
    }
    out.end(view.state.position)
}

fn run(shared: &Shared, view: impl FnOnce() -> Result<View, String>, pipe: &Pipe) {
    let read = || read_out(shared, &view()?, pipe);
    let done = catch_unwind(AssertUnwindSafe(read));
    let done = done.unwrap_or_else(|_| Err(String::from("it stopped at a fault of its own")));
    lock(&pipe.pieces).ended = Some(done);
}

impl Shared {
    /// Begins to read out the state that `view` gives.
    fn begin_backup(
        self: &Arc<Self>,
        view: impl FnOnce() -> Result<View, String> + Send + 'static,
    ) -> io::Result<BackupReader> {
        let pipe = Arc::new(Pipe::new());
        let (shared, own) = (self.clone(), pipe.clone());
        let named = Builder::new().name(String::from("keep-backup"));
        let thread = named.spawn(move || run(&shared, view, &own))?;
        let mut backups = lock(&self.backups);
        backups.retain(|backup| !backup.thread.is_finished());
        backups.push(BackupThread { pipe: pipe.clone(), thread });
        Ok(BackupReader { pipe })
    }

    /// Ends all backups that are under way, once the writer has ended.
    pub(crate) fn end_backups(&self) {
        // What the log has not acknowledged is behind views that will never be.
        self.forget_awaited();
        for BackupThread { pipe, thread } in mem::take(&mut *lock(&self.backups)) {
            pipe.abandon();
            let _ended = thread.join();
        }
    }
}

impl Store {
    /// Begins to read out the state behind everything that was told until now.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn begin_backup(&self) -> io::Result<BackupReader> {
        let (viewer, view) = channel();
        let waits = move || view.recv().map_err(|_| String::from("the store has ended"))?;
        let reader = self.front.shared.begin_backup(waits)?;
        self.front.commit_viewed(viewer);
        Ok(reader)
    }
}

impl Acknowledger {
    /// Where what the folder has now ends in the log; `None`: it has nothing of it.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn log_mark(&self) -> Result<Option<LogMark>, String> {
        Ok(View::of(&self.shared)?.state.mark)
    }

    /// Has the writer write what the log has acknowledged as soon as it can: somebody waits to see it in the folder.
    pub fn want_acknowledged(&self) {
        self.shared.want(self.shared.survives.load(Ordering::Acquire));
    }

    /// Begins to read out a state of the folder: what it has now, all of which the log has acknowledged. Says where that ends in the log; `None`: the
    /// folder has nothing of the log.
    ///
    /// # Errors
    /// The store cannot be read, or there is no thread for it.
    pub fn begin_backup(&self) -> Result<Option<(LogMark, BackupReader)>, String> {
        let view = View::of(&self.shared)?;
        let Some(mark) = view.state.mark else { return Ok(None) };
        let reader = self.shared.begin_backup(move || Ok(view));
        Ok(Some((mark, reader.map_err(|error| error.to_string())?)))
    }
}
