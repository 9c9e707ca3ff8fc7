//! A log of several machines before the store: turns go to it first, and the store takes what the log has acknowledged.
//!
//! At the shard's owner each commit gives its turn to a [`TurnLog`], and the turn waits until [`Acknowledger::acknowledged`] says that it is
//! safe. Only then it goes to the writer, with the place in the log where it ends, which is in the same batch as the turn: whatever of the folder survives,
//! it says from where the log is to be read. At a standby the same turns come out of the log, and are applied by [`Store::follow`].
//! The folder is a copy, so nothing of it needs to be synced before a reply: [`Durability`](crate::Durability) says
//! nothing here.

use crate::recent::RecentWrites;
use crate::record::State;
use crate::shared::{Shared, lock};
use crate::turn::Turn;
use crate::{Options, Store};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The first byte of a turn in a log. A newer one is to be written only in records of a newer format, which nodes have announced that they read.
const FORMAT: u8 = 1;

/// A turn may come to as much as so many queues of what waits for the log.
const TURN_QUEUES: usize = 4;

/// A place in the log, and the checksum of the record that ends there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogMark {
    /// The place.
    pub sequence: u64,
    /// The checksum.
    pub checksum: u64,
}

/// A log that turns go to before the store has them.
pub trait TurnLog: Send + fmt::Debug {
    /// Takes the turn that ends with the operation `last`; [`Acknowledger::acknowledged`] says when it is safe.
    fn append(&mut self, last: u64, turn: Vec<u8>);
}

/// What a store's turns come from, and where they go first.
#[derive(Debug)]
pub enum Feed {
    /// From the shard, to this folder alone.
    Own,
    /// From the shard, to a log.
    Log(Box<dyn TurnLog>),
    /// From a log: [`Store::follow`] applies them.
    Follows,
}

impl Feed {
    /// Remembers what is written from now on to the store of a folder in this state.
    pub(crate) fn recent(&self, options: &Options, state: State) -> RecentWrites {
        let bytes_max = if matches!(self, Self::Own) { 0 } else { options.recent_bytes };
        RecentWrites::new(bytes_max, state.position, state.mark)
    }

    /// Whether it is the one of a folder that ends with this operation, and there in its log.
    pub(crate) fn check(&self, position: u64, mark: Option<LogMark>) -> Result<(), String> {
        let why = match (self, mark) {
            (Self::Own, Some(_)) => {
                "it is a copy of a cluster's log, and is used by a node of that cluster alone"
            }
            (Self::Log(_) | Self::Follows, None) if position > 0 => {
                "it has data of a server without a cluster: a node begins with an empty folder"
            }
            _ => return Ok(()),
        };
        Err(String::from(why))
    }
}

/// Turns that were appended and are not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    turns: VecDeque<Turn>,
    bytes: usize,
    /// Bytes of the turn that gathers, where that is too long to have anything added.
    gathering: usize,
    refuses: bool,
}

impl Shared {
    /// Keeps a turn until the log has it; gives one for what comes behind it. Where much waits, writes are refused: the shard serves reads meanwhile.
    pub(crate) fn await_log(&self, turn: Turn) -> Turn {
        let next = Turn::after(turn.last());
        lock(&self.recent).push(&turn);
        let mut awaited = lock(&self.awaited);
        awaited.bytes += turn.bytes();
        awaited.gathering = 0;
        awaited.turns.push_back(turn);
        let bytes = awaited.bytes;
        if bytes >= self.queue_bytes_max {
            self.refuse_behind(&mut awaited, || {
                format!(
                    "the log of the cluster has not acknowledged {bytes} bytes of earlier writes: is there a quorum of its servers?"
                )
            });
        }
        next
    }

    /// Refuses writes behind a turn that gathers, where that is as long as a turn may become: the log has to have it first.
    pub(crate) fn bound_turn(&self, bytes: usize) {
        if bytes < self.turn_bytes_max() {
            return;
        }
        let mut awaited = lock(&self.awaited);
        awaited.gathering = bytes;
        self.refuse_behind(&mut awaited, || {
            format!(
                "the log of the cluster is to take {bytes} bytes first, which were written together"
            )
        });
    }

    /// How many bytes a turn for a log may come to before writes are refused until that has it: a turn is one record, which can only be so long.
    fn turn_bytes_max(&self) -> usize {
        self.queue_bytes_max.saturating_mul(TURN_QUEUES)
    }

    /// Refuses writes until the log has most of what waits for it. State and reason change together, under the lock of what waits.
    fn refuse_behind(&self, awaited: &mut Awaited, why: impl FnOnce() -> String) {
        if !core::mem::replace(&mut awaited.refuses, true) {
            self.refuse_for_log(Some(why()));
            (self.waker)();
        }
    }

    /// Has a view taken behind what waits for the log now, or at once where nothing does.
    pub(crate) fn await_view(&self, turn: Turn) {
        let mut awaited = lock(&self.awaited);
        if awaited.turns.is_empty() {
            drop(awaited);
            self.push(turn);
        } else {
            awaited.turns.push_back(turn);
        }
    }

    /// Forgets what waits for the log.
    pub(crate) fn forget_awaited(&self) {
        lock(&self.awaited).turns.clear();
    }

    /// Gives the writer what ends with the operation `last` at the latest; `mark` is where that ends in the log.
    fn acknowledged(&self, last: u64, mark: LogMark) {
        lock(&self.recent).acknowledged(last, mark.checksum);
        let mut awaited = lock(&self.awaited);
        let count = awaited.turns.iter().take_while(|turn| turn.last() <= last).count();
        let mut turns: VecDeque<Turn> = awaited.turns.drain(..count).collect();
        if let Some(end) = turns.back_mut() {
            end.set_mark(mark);
        }
        let bytes: usize = turns.iter().map(Turn::bytes).sum();
        awaited.bytes -= bytes;
        if awaited.refuses && awaited.bytes + awaited.gathering < self.queue_bytes_max / 2 {
            awaited.refuses = false;
            self.refuse_for_log(None);
        }
        drop(awaited);
        let mut queue = lock(&self.queue);
        queue.bytes += bytes;
        queue.turns.append(&mut turns);
        drop(queue);
        self.work.notify_one();
        self.survives(last);
        (self.waker)();
    }
}

/// Tells a store what its log has; for the thread that hears the log.
#[derive(Clone, Debug)]
pub struct Acknowledger {
    pub(crate) shared: Arc<Shared>,
}

impl Acknowledger {
    /// The log has everything up to the operation `last`, which ends at `mark`.
    pub fn acknowledged(&self, last: u64, mark: LogMark) {
        self.shared.acknowledged(last, mark);
    }

    /// Whether the folder cannot be written any more.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Has the shard look at what waits to be sent.
    pub fn wake(&self) {
        (self.shared.waker)();
    }
}

/// The bytes of a turn in a log.
pub(crate) fn encode(turn: &Turn) -> Vec<u8> {
    let mut out = vec![FORMAT];
    let bytes = turn.encode(&mut out);
    out.extend_from_slice(bytes);
    out
}

/// The turn in a log's record.
///
/// # Errors
/// There is none.
pub(crate) fn decode(record: &[u8]) -> Result<Turn, String> {
    let (&format, rest) = record.split_first().ok_or("it is empty")?;
    if format != FORMAT {
        return Err(format!("it has format {format}, and this version reads format {FORMAT}"));
    }
    Turn::decode_whole(rest).ok_or_else(|| String::from("it is damaged"))
}

impl Store {
    /// Where what the folder has ends in the log that it follows; `None`: it follows none yet.
    #[must_use]
    pub fn log_mark(&self) -> Option<LogMark> {
        self.log_mark
    }

    /// What was written last, for the next store of the folder.
    #[must_use]
    pub fn take_recent(&self) -> RecentWrites {
        core::mem::take(&mut *lock(&self.front.shared.recent))
    }

    /// Remembers what the last store of the folder did of what was written last; nothing was told yet.
    pub fn remember(&self, recent: RecentWrites) {
        lock(&self.front.shared.recent).go_on_from(recent);
    }

    /// How many loads were asked for that are answered, or will be without anybody's doing: a simulation waits for them. The others wait for what the log has not
    /// acknowledged.
    #[doc(hidden)]
    #[must_use]
    pub fn loads_answered(&self) -> u64 {
        let (shared, survives) = (&self.front.shared, self.survives().0);
        let requests = &lock(&shared.progress).requests;
        let wait = requests.iter().filter(|request| request.at > survives).count() as u64;
        shared.counters.loads_asked.load(Ordering::Relaxed) - wait
    }

    /// For the thread that hears the log.
    #[must_use]
    pub fn acknowledger(&self) -> Acknowledger {
        Acknowledger { shared: self.front.shared.clone() }
    }

    /// Applies a record of the log that ends at `mark`; waits where the writer is behind.
    ///
    /// # Errors
    /// It is no turn, or does not follow what the folder has.
    pub fn follow(&self, record: &[u8], mark: LogMark) -> Result<(), String> {
        if self.failed() {
            return Err(String::from("the folder cannot be written any more"));
        }
        let mut turn = decode(record)?;
        let mut gathered = lock(&self.front.gathered);
        let (has, before) = (gathered.turn.last(), turn.before());
        if has != before {
            return Err(format!(
                "it follows operation {before}, and the folder ends with {has}: the folder is not a copy of this log"
            ));
        }
        turn.set_mark(mark);
        let mut recent = lock(&self.front.shared.recent);
        recent.push(&turn);
        recent.acknowledged(turn.last(), mark.checksum);
        drop(recent);
        self.front.told.store(turn.last(), Ordering::Release);
        gathered.turn = self.front.shared.push(turn);
        Ok(())
    }
}
