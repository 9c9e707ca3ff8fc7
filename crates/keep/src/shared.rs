//! What the shard, the writer and the loaders have in common.

use crate::backup::BackupThread;
use crate::lost::Lost;
use crate::outside::Awaited;
use crate::recent::RecentWrites;
use crate::turn::Turn;
use fjall::{Database, Keyspace};
use headwater_base::KeyRange;
use headwater_base::source::{FetchId, Sink};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Turns that gather are less than this part of what may wait.
const GATHERED_PART: usize = 4;

/// Locks; what a thread that panicked left is as good as any other, since each change is one assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns on their way to the writer.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) turns: VecDeque<Turn>,
    pub(crate) bytes: usize,
    /// Emptied turns, for new use.
    pub(crate) spare: Vec<Turn>,
    /// What is written is to be synced, whatever the durability.
    pub(crate) sync_wanted: bool,
    /// What is in the store's memory alone is to be written, however little it is, and what it retains is to go.
    pub(crate) table_wanted: bool,
    /// No more will come.
    pub(crate) closing: bool,
}

/// A load that was asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) fetch: FetchId,
    pub(crate) range: KeyRange,
    /// The operations up to here must be seen.
    pub(crate) at: u64,
    /// Later ones that must be seen as well, and that the store does not have yet.
    pub(crate) over: Option<Lost>,
}

/// How far the writer has come, and what waits for that.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The last operation that loads can see in the store.
    pub(crate) committed: u64,
    /// Operations that the store did not take.
    pub(crate) lost: Option<Lost>,
    pub(crate) requests: VecDeque<Request>,
    pub(crate) closing: bool,
}

/// Where the keys are.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) generation: u64,
    pub(crate) keyspace: Keyspace,
}

/// Numbers for whoever operates the server.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) batches: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) sync_micros: AtomicU64,
    pub(crate) sync_micros_last: AtomicU64,
    /// Asking the store would wait for a sync under way.
    pub(crate) disk_bytes: AtomicU64,
    pub(crate) loads_asked: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) loads_failed: AtomicU64,
    pub(crate) loaded_keys: AtomicU64,
    pub(crate) loaded_bytes: AtomicU64,
}

/// What all threads see.
pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) meta: Keyspace,
    pub(crate) keys: Mutex<Keys>,
    pub(crate) definitions: Keyspace,
    pub(crate) notes: Keyspace,
    /// The prefixes of the tables that have had keys.
    pub(crate) tables: Keyspace,
    pub(crate) queue: Mutex<Queue>,
    /// Turns are safe in a log of several machines: the writer lets them gather ([`crate::writer`]).
    pub(crate) gathers: bool,
    /// The last operation that somebody waits to see in the store: up to there nothing gathers.
    pub(crate) wanted: AtomicU64,
    /// What was written last.
    pub(crate) recent: Mutex<RecentWrites>,
    /// What the log has not acknowledged.
    pub(crate) awaited: Mutex<Awaited>,
    /// The shard waits when so many bytes of operations wait for the writer.
    pub(crate) queue_bytes_max: usize,
    /// Bytes of operations since a table was ended: the store has them in its memory, and in its journal.
    pub(crate) gathered_bytes: AtomicU64,
    /// Bytes of the last table that was ended: the store keeps them in its memory, when they are on disk, too, until it ends
    /// another one, of whichever keyspace.
    pub(crate) retained_bytes: AtomicU64,
    /// The writer holds operations that it has taken from the queue, in the store or not.
    pub(crate) holds_turns: AtomicBool,
    /// The writer has something to do.
    pub(crate) work: Condvar,
    /// The queue has become shorter.
    pub(crate) room: Condvar,
    pub(crate) progress: Mutex<Progress>,
    /// The writer has come further, or a load was asked for.
    pub(crate) moved: Condvar,
    /// The last operation that replies may tell of.
    pub(crate) durable: AtomicU64,
    /// The last operation that a crash of the process cannot take back.
    pub(crate) survives: AtomicU64,
    /// Somebody waits for operations to be in the store.
    pub(crate) wakes_at_commit: AtomicBool,
    /// Whether writes are refused, and why.
    pub(crate) refusing: AtomicBool,
    /// Whether that goes for all but removals.
    pub(crate) takes_removals: AtomicBool,
    pub(crate) refusals: Mutex<Refusals>,
    /// Whether the writer has failed for good.
    pub(crate) failed: AtomicBool,
    pub(crate) counters: Counters,
    /// Threads that read states out.
    pub(crate) backups: Mutex<Vec<BackupThread>>,
    pub(crate) sink: Arc<dyn Sink>,
    /// Called when `durable` has moved, or writes are refused from now on.
    pub(crate) waker: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("durable", &self.durable).finish_non_exhaustive()
    }
}

/// Why writes are refused. Whoever gives a reason takes that one back, whatever else there is.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The folder cannot take more, or not what writes; and whether it takes what only removes.
    pub(crate) folder: Option<(Arc<str>, bool)>,
    /// A log of several machines has much to take.
    pub(crate) log: Option<Arc<str>>,
}

impl Refusals {
    /// The reason that is told: what lasts longer.
    pub(crate) fn why(&self) -> Option<&Arc<str>> {
        self.folder.as_ref().map(|(why, _)| why).or(self.log.as_ref())
    }
}

impl Shared {
    /// Gives a turn to the writer, and waits where it is far behind.
    pub(crate) fn push(&self, turn: Turn) -> Turn {
        let mut queue = lock(&self.queue);
        while queue.bytes >= self.queue_bytes_max && !self.failed.load(Ordering::Acquire) {
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let last = turn.last();
        queue.bytes += turn.bytes();
        queue.turns.push_back(turn);
        let mut next = queue.spare.pop().unwrap_or_default();
        drop(queue);
        self.work.notify_one();
        next.reset(last);
        next
    }

    /// Bytes of turns that the writer lets gather.
    pub(crate) fn gathered_bytes_max(&self) -> usize {
        if self.gathers { self.queue_bytes_max / GATHERED_PART } else { 0 }
    }

    /// Has the writer write what is up to `position` as soon as it can: somebody waits to see it in the store.
    pub(crate) fn want(&self, position: u64) {
        if self.gathers && lock(&self.progress).committed < position {
            self.wanted.fetch_max(position, Ordering::AcqRel);
            // The writer looks and begins to wait under this lock.
            drop(lock(&self.queue));
            self.work.notify_one();
        }
    }

    /// A crash of the process cannot take back what is up to `position`.
    pub(crate) fn survives(&self, position: u64) {
        self.survives.fetch_max(position, Ordering::AcqRel);
    }

    /// Refuses writes for the folder's sake from now on, or no more; with whether what only removes is taken.
    pub(crate) fn refuse_for_folder(&self, why: Option<(String, bool)>) {
        self.change_refusals(|it| it.folder = why.map(|(why, takes)| (Arc::from(why), takes)));
        (self.waker)();
    }

    /// The same for the sake of a log of several machines. Whoever is to be told is woken by the caller.
    pub(crate) fn refuse_for_log(&self, why: Option<String>) {
        self.change_refusals(|it| it.log = why.map(Arc::from));
    }

    fn change_refusals(&self, change: impl FnOnce(&mut Refusals)) {
        let mut refusals = lock(&self.refusals);
        change(&mut refusals);
        let takes_removals = refusals.log.is_none()
            && refusals.folder.as_ref().is_none_or(|(_, takes_removals)| *takes_removals);
        self.takes_removals.store(takes_removals, Ordering::Release);
        self.refusing.store(refusals.why().is_some(), Ordering::Release);
    }
}
