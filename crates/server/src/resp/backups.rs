//! BACKUP.BEGIN, BACKUP.READ and BACKUP.END: one state of all shards, taken by a client piece by piece while the server goes on.
//!
//! All shards quiesce for the beginning alone ([`super::remote`]): then no request is on its way between them, so that what their stores were told
//! until then is one state. Each store's writer takes a snapshot there, and a thread reads it (`headwater_keep`, `backup.rs`).
//!
//! # Invariants
//! - One backup is under way at a time: it holds on the disk what is removed and overwritten meanwhile.
//! - A backup ends with the client that has begun it, and gives way to another one when nothing was taken of it for a while.

use super::session::{Session, Waiting};
use super::{Flow, ShardService, Turn, encoder};
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::log::event;
use crate::resp::parts::OtherShards;
use crate::resp::parts::Stores;
use crate::shards::{CommonStep, MoveRefusal, ShardMessage, WantedStep};
use headwater_base::Shard;
use headwater_command::{Args, OwnedArgs, Reply};
use headwater_keep::{BackupPiece, BackupReader};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A backup of which nothing was taken for so long gives way to another one.
const IDLE: Duration = Duration::from_secs(10);

/// The backup that is under way, as all shards know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommonBackup(Arc<Mutex<Backups>>);

#[derive(Debug, Default)]
struct Backups {
    /// How many there were.
    begun: u64,
    now: Option<Backup>,
}

#[derive(Debug)]
struct Backup {
    number: u64,
    /// Who has begun it.
    client: (Shard, ConnectionId),
    /// What each shard reads out; none before all have begun.
    readers: Vec<(Shard, BackupReader)>,
    /// The file that says which shard has which keys, if there is one.
    placement: Option<Vec<u8>>,
    /// The client knows that it has begun.
    is_told: bool,
    touched: Instant,
}

impl CommonBackup {
    fn lock(&self) -> MutexGuard<'_, Backups> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a client's backup.
    fn begin(&self, client: (Shard, ConnectionId)) -> Result<(), String> {
        let mut backups = self.lock();
        if let Some(now) = backups.now.as_ref().filter(|now| now.touched.elapsed() < IDLE) {
            return Err(format!(
                "backup {0} is under way: one is taken at a time (BACKUP.END {0} ends it)",
                now.number
            ));
        }
        backups.begun += 1;
        let (number, touched) = (backups.begun, Instant::now());
        backups.now = Some(Backup {
            number,
            client,
            readers: Vec::new(),
            placement: None,
            is_told: false,
            touched,
        });
        Ok(())
    }

    /// Adds what a shard reads out, and what it knows of where keys live.
    fn add(&self, shard: Shard, reader: BackupReader, placement: Option<Vec<u8>>) {
        if let Some(now) = &mut self.lock().now {
            now.readers.push((shard, reader));
            now.placement = now.placement.take().or(placement);
        }
    }

    /// The backup that a client has begun and does not know of yet: its number, and the file of where keys live.
    fn begun_by(&self, client: (Shard, ConnectionId)) -> Option<(u64, Option<Vec<u8>>)> {
        let mut backups = self.lock();
        let now = backups.now.as_mut().filter(|now| now.client == client && !now.is_told)?;
        if now.readers.is_empty() {
            return None;
        }
        now.is_told = true;
        now.touched = Instant::now();
        Some((now.number, now.placement.take()))
    }

    /// What comes next.
    fn take(&self, number: u64, shard: u64) -> Result<BackupPiece, String> {
        let mut backups = self.lock();
        let now = backups.now.as_mut().filter(|now| now.number == number);
        let now = now.ok_or_else(|| format!("there is no backup {number} under way"))?;
        now.touched = Instant::now();
        // Whoever takes the shards one after the other is not late with the last one.
        now.readers.iter().for_each(|(_, reader)| reader.touch());
        let found = now.readers.iter().find(|(at, _)| u64::from(at.0) == shard);
        let (_, reader) = found.ok_or_else(|| format!("there is no shard {shard}"))?;
        reader.take().map_err(|why| format!("the backup failed: {why}"))
    }

    fn end(&self, number: u64) -> bool {
        let mut backups = self.lock();
        let is_known = backups.now.as_ref().is_some_and(|now| now.number == number);
        if is_known {
            backups.now = None;
        }
        is_known
    }

    /// It could not begin.
    fn give_up(&self, client: (Shard, ConnectionId)) {
        let mut backups = self.lock();
        if backups.now.as_ref().is_some_and(|now| now.client == client) {
            backups.now = None;
        }
    }
}

impl ShardService {
    /// BACKUP.BEGIN: the session waits until all shards have begun, and looks again.
    pub(super) fn backup_begin(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        let client = (self.others.me(), work.connection.id);
        if let Some((number, placement)) = self.stores.backup.begun_by(client) {
            self.others.tell_backup(number, placement.as_deref(), work);
            return Flow::Next;
        }
        let refusal = match &self.stores.keeping {
            None => Some(String::from(
                "nothing is kept on disk, so there is nothing to back up: start the server with --data",
            )),
            Some(_) if self.others.are_apart() => Some(String::from(
                "a node has one shard of the cluster: headwater cluster backup writes a backup of all of them",
            )),
            Some(_) => self.stores.backup.begin(client).err(),
        };
        if let Some(why) = refusal {
            encoder(work).error("ERR", format_args!("{why}"));
            return Flow::Next;
        }
        work.connection.session.backs_up = true;
        if self.others.shards.is_some() {
            let wanted = WantedStep { client: work.connection.id, step: CommonStep::BeginBackup };
            self.want_step(wanted);
            let request = Waiting::Request(OwnedArgs::of(args));
            work.connection.session.waiting = Some(Box::new(request));
            return Flow::Parked;
        }
        match self.begin_shard_backup() {
            Ok(()) => {
                if let Some((number, placement)) = self.stores.backup.begun_by(client) {
                    self.others.tell_backup(number, placement.as_deref(), work);
                }
            }
            Err(why) => {
                self.stores.backup.give_up(client);
                encoder(work).error("ERR", format_args!("{why}"));
            }
        }
        Flow::Next
    }

    /// Begins to read this shard's store out.
    fn begin_shard_backup(&mut self) -> Result<(), String> {
        let me = self.others.me();
        // What flows note of the writes of this turn is of the same state.
        self.node.record_writes();
        self.node.end_turn();
        let keeping = self.stores.keeping.as_ref().ok_or("nothing is kept on disk")?;
        let placement = keeping.placement_file()?;
        self.stores.backup.add(me, keeping.begin_backup()?, placement);
        Ok(())
    }

    /// Begins a backup together with all other shards: nobody executes anything before all have.
    pub(super) fn back_up_with_all(
        &mut self,
        coordinator: Shard,
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &self.others.shards else { return };
        let (me, barrier) = (shards.me, shards.outbox.barrier().clone());
        if let Err(why) = self.begin_shard_backup() {
            barrier.give(Err(MoveRefusal::For(why)));
        }
        if !barrier.wait() {
            return;
        }
        self.end_quiescing(coordinator);
        let Some(shards) = &self.others.shards else { return };
        let wanted = shards.quiescing.round.as_ref().map(|round| round.wanted);
        if let Some(wanted) = wanted.filter(|_| coordinator == me) {
            let refusal = barrier.is_refused().then(|| barrier.given().err()).flatten();
            barrier.finish();
            self.end_step(wanted, refusal, connections);
            self.end_round();
        }
    }

    /// A client has gone, and with it the backup that it has begun.
    pub(super) fn forget_backup(&mut self, id: ConnectionId, session: &mut Session) {
        if core::mem::take(&mut session.backs_up) {
            self.stores.backup.give_up((self.others.me(), id));
        }
    }

    /// A backup that a client wanted has not begun.
    pub(super) fn backup_refused(&self, client: ConnectionId) {
        self.stores.backup.give_up((self.others.me(), client));
    }
}

impl OtherShards {
    fn tell_backup(&mut self, number: u64, placement: Option<&[u8]>, work: &mut Turn<'_>) {
        let mut out = encoder(work);
        out.map(3);
        out.bulk(b"backup");
        out.integer(number as i64);
        out.bulk(b"shards");
        out.integer(i64::from(self.shard_count()));
        out.bulk(b"placement");
        match placement {
            Some(bytes) => out.bulk(bytes),
            None => out.null(),
        }
        let peer = &work.connection.peer;
        event!(info, "store", "backup_begun", number, %peer, "a client takes a backup");
    }

    /// All shards are quiescent: they begin the backup in step.
    pub(super) fn back_up_in_step(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        for at in (0..shards.outbox.shards()).map(Shard) {
            shards.outbox.to(at).messages.push(ShardMessage::BeginBackup);
        }
    }
}

impl Stores {
    /// BACKUP.READ: bytes, none where there are none yet, nothing at the end.
    pub(super) fn backup_read(&mut self, number: u64, shard: u64, work: &mut Turn<'_>) {
        let mut out = encoder(work);
        match self.backup.take(number, shard) {
            Ok(BackupPiece::Pending) => out.bulk(b""),
            Ok(BackupPiece::Bytes(bytes)) => out.bulk(&bytes),
            Ok(BackupPiece::End) => out.null(),
            Err(why) => out.error("ERR", format_args!("{why}")),
        }
    }

    /// BACKUP.END
    pub(super) fn backup_end(&mut self, number: u64, work: &mut Turn<'_>) {
        let was_under_way = self.backup.end(number);
        if was_under_way {
            let peer = &work.connection.peer;
            event!(info, "store", "backup_ended", number, %peer, "a client has ended its backup");
        }
        encoder(work).integer(i64::from(was_under_way));
    }
}
