//! Snapshots of a shard: objects in a stream beside its log.
//!
//! Each object has a subject of its own, with the name of the object at its end; its pieces are the subject's messages, in order, and the last one
//! says by a header that it is. What was not stored to its end is no snapshot, and goes when a later one is named: all that a
//! name tells is needed for that.
//!
//! The calls here wait for the servers: they are for a thread of their own.

use crate::commands::ANSWER_TIMEOUT;
use crate::connection::{Command, is_connected};
use crate::direct::{direct_get, header};
use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use futures_util::TryStreamExt;
use headwater_log::{LogExtent, Sequence, SnapshotMark};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver as Waits, Sender as Tells, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender};

/// Pieces under way to or from the servers.
const PIECES: usize = 8;
/// Bytes that one read of an object gives, about.
const READ_BYTES: usize = 2 << 20;
/// How long a replica may lack the rest of an object that is complete.
const BEHIND_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(1);
/// The header of an object's last piece; it says how many there are.
const END: &str = "Headwater-Pieces";

/// Where a shard's snapshots are.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotNames {
    pub(crate) log: String,
    pub(crate) stream: String,
    /// What subjects of objects begin with.
    pub(crate) prefix: String,
    pub(crate) replicas: usize,
}

impl SnapshotNames {
    pub(crate) fn config(&self) -> Config {
        Config {
            name: self.stream.clone(),
            subjects: vec![format!("{}.*", self.prefix)],
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            num_replicas: self.replicas,
            max_messages: -1,
            max_bytes: -1,
            allow_direct: true,
            description: Some("snapshots of a shard of Headwater".into()),
            ..Config::default()
        }
    }
}

/// What the connection's thread is asked to do for snapshots.
pub(crate) enum SnapshotCommand {
    /// Stores an object of the pieces that come, of which the last is `None`.
    Store { name: String, pieces: Receiver<Option<Vec<u8>>>, ended: Tells<Result<(), String>> },
    /// Gives an object's pieces.
    Fetch { name: String, pieces: Sender<Result<Vec<u8>, String>> },
    /// Removes objects that end before this sequence.
    Sweep { below: Sequence },
    /// Looks again and again how much of the log there is.
    Look(Arc<Mutex<LogExtent>>),
}

/// The snapshots of a shard.
#[derive(Clone)]
pub struct JetStreamSnapshots {
    pub(crate) names: Arc<SnapshotNames>,
    pub(crate) commands: UnboundedSender<Command>,
    pub(crate) extent: Arc<Mutex<LogExtent>>,
    pub(crate) message_bytes_max: usize,
}

impl std::fmt::Debug for JetStreamSnapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JetStreamSnapshots").field("names", &self.names).finish_non_exhaustive()
    }
}

/// An object that is being stored.
#[derive(Debug)]
pub struct SnapshotUpload {
    pieces: Sender<Option<Vec<u8>>>,
    ended: Waits<Result<(), String>>,
    bytes: u64,
    message_bytes_max: usize,
}

const THREAD_ENDED: &str = "the connection to NATS has ended";

impl SnapshotUpload {
    /// Stores bytes behind those that were given before.
    ///
    /// # Errors
    /// It has failed; the sentence says why.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        for piece in bytes.chunks(self.message_bytes_max.max(1)) {
            if self.pieces.blocking_send(Some(piece.to_vec())).is_err() {
                return self.ended.recv().unwrap_or_else(|_| Err(THREAD_ENDED.into()));
            }
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Ends the object, which is complete then; gives its bytes. One that is dropped before is not.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn finish(self) -> Result<u64, String> {
        drop(self.pieces.blocking_send(None));
        self.ended.recv().unwrap_or_else(|_| Err(THREAD_ENDED.into()))?;
        Ok(self.bytes)
    }
}

/// An object that is read.
#[derive(Debug)]
pub struct SnapshotDownload {
    pieces: Receiver<Result<Vec<u8>, String>>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for SnapshotDownload {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            match self.pieces.blocking_recv() {
                Some(Ok(piece)) => (self.piece, self.at) = (piece, 0),
                Some(Err(why)) => return Err(io::Error::other(why)),
                None => return Ok(0),
            }
        }
        let some = into.len().min(self.piece.len() - self.at);
        into[..some].copy_from_slice(&self.piece[self.at..self.at + some]);
        self.at += some;
        Ok(some)
    }
}

impl JetStreamSnapshots {
    fn command(&self, command: SnapshotCommand) {
        // Where the thread has ended, the other end of what was given along says so.
        drop(self.commands.send(Command::Snapshot(self.names.clone(), command)));
    }

    /// Begins to store an object; the stream is made where there is none.
    #[must_use]
    pub fn store(&self, name: &str) -> SnapshotUpload {
        let (pieces, receives) = tokio::sync::mpsc::channel(PIECES);
        let (ends, ended) = channel();
        let name = String::from(name);
        self.command(SnapshotCommand::Store { name, pieces: receives, ended: ends });
        SnapshotUpload { pieces, ended, bytes: 0, message_bytes_max: self.message_bytes_max }
    }

    /// Reads an object from its beginning.
    #[must_use]
    pub fn fetch(&self, name: &str) -> SnapshotDownload {
        let (sends, pieces) = tokio::sync::mpsc::channel(PIECES);
        self.command(SnapshotCommand::Fetch { name: String::from(name), pieces: sends });
        SnapshotDownload { pieces, piece: Vec::new(), at: 0 }
    }

    /// Removes the objects that end before this sequence. What is left of them for want of an answer goes with the next ones.
    pub fn sweep(&self, below: Sequence) {
        self.command(SnapshotCommand::Sweep { below });
    }

    /// How much of the log the servers had a moment ago.
    #[must_use]
    pub fn extent(&self) -> LogExtent {
        *self.extent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries a command out, beside all others.
pub(crate) async fn run(context: Context, names: Arc<SnapshotNames>, command: SnapshotCommand) {
    match command {
        SnapshotCommand::Store { name, pieces, ended } => {
            let _heard = ended.send(store(&context, &names, &name, pieces).await);
        }
        SnapshotCommand::Fetch { name, pieces } => {
            if let Err(why) = fetch(&context, &names, &name, &pieces).await {
                let _heard = pieces.send(Err(why)).await;
            }
        }
        SnapshotCommand::Sweep { below } => drop(sweep(&context, &names, below).await),
        SnapshotCommand::Look(extent) => look(&context, &names, &extent).await,
    }
}

fn text(why: impl std::fmt::Display) -> String {
    why.to_string()
}

async fn store(
    context: &Context,
    names: &SnapshotNames,
    name: &str,
    mut pieces: Receiver<Option<Vec<u8>>>,
) -> Result<(), String> {
    let made = context.get_or_create_stream(names.config()).await;
    made.map_err(|why| format!("stream {}: {why}", names.stream))?;
    let subject = format!("{}.{name}", names.prefix);
    let mut under_way = VecDeque::new();
    let (mut waiting, mut count): (Option<Vec<u8>>, u64) = (None, 0);
    loop {
        // The last piece is known to be the last once the end has come.
        let next = pieces.recv().await.ok_or("whoever stores it has given it up")?;
        let ends = next.is_none();
        let piece = core::mem::replace(&mut waiting, next);
        if ends || piece.is_some() {
            count += 1;
            let mut headers = HeaderMap::new();
            if ends {
                headers.insert(END, count.to_string().as_str());
            }
            let bytes = piece.unwrap_or_default().into();
            let sent = context.publish_with_headers(subject.clone(), headers, bytes).await;
            under_way.push_back(sent.map_err(text)?);
        }
        while under_way.len() >= PIECES || (ends && !under_way.is_empty()) {
            let Some(sent) = under_way.pop_front() else { break };
            sent.await.map_err(text)?;
        }
        if ends {
            return Ok(());
        }
    }
}

async fn fetch(
    context: &Context,
    names: &SnapshotNames,
    name: &str,
    pieces: &Sender<Result<Vec<u8>, String>>,
) -> Result<(), String> {
    let subject = format!("{}.{name}", names.prefix);
    let (mut from, mut taken, mut heard) = (1, 0, Instant::now());
    loop {
        let asked = serde_json::json!({
            "seq": from, "next_by_subj": subject, "batch": PIECES, "max_bytes": READ_BYTES,
        });
        let read = direct_get(context, &names.stream, asked);
        let batch = tokio::time::timeout(ANSWER_TIMEOUT, read).await.ok().flatten();
        let Some(batch) = batch.filter(|batch| !batch.messages.is_empty()) else {
            if heard.elapsed() >= BEHIND_MAX {
                return Err(format!(
                    "snapshot {name} of stream {} ends after {taken} pieces, and is not complete",
                    names.stream
                ));
            }
            tokio::time::sleep(LOOK / 5).await;
            continue;
        };
        heard = Instant::now();
        let mut count = None;
        for piece in batch.messages {
            (from, taken) = (piece.sequence + 1, taken + 1);
            count = count.or_else(|| header(&piece.headers, END));
            if pieces.send(Ok(piece.bytes)).await.is_err() {
                return Ok(());
            }
        }
        match count {
            Some(count) if count == taken => return Ok(()),
            Some(count) => {
                return Err(format!(
                    "snapshot {name} has {taken} pieces, and was stored with {count}"
                ));
            }
            None => {}
        }
    }
}

async fn sweep(context: &Context, names: &SnapshotNames, below: Sequence) -> Option<()> {
    let stream = context.get_stream(&names.stream).await.ok()?;
    let subjects = stream.info_with_subjects(format!("{}.*", names.prefix)).await.ok()?;
    let subjects: Vec<(String, usize)> = subjects.try_collect().await.ok()?;
    for (subject, _) in subjects {
        let name = subject.rsplit('.').next().unwrap_or_default();
        if SnapshotMark::sequence_of(name).is_some_and(|sequence| sequence < below) {
            stream.purge().filter(subject).await.ok()?;
        }
    }
    Some(())
}

async fn look(context: &Context, names: &SnapshotNames, extent: &Mutex<LogExtent>) {
    loop {
        let stream = async { context.get_stream(&names.log).await.ok() };
        if is_connected(context)
            && let Ok(Some(stream)) = tokio::time::timeout(ANSWER_TIMEOUT, stream).await
        {
            let state = &stream.cached_info().state;
            let seen = LogExtent { first: Sequence(state.first_sequence), bytes: state.bytes };
            *extent.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        }
        tokio::time::sleep(LOOK).await;
    }
}
