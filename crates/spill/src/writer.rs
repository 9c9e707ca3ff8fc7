//! The thread that writes: entries are gathered into batches, which go to disk one at a time.
//!
//! Whoever puts an entry waits for the disk only where two batches are waiting for it already.
//! Entries of batches that are not written yet are read from memory.

use fjall::Keyspace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::{io, thread};

/// Entries that are written together, by ascending number.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<(u64, Vec<u8>)>,
    pub(crate) bytes: usize,
    /// Set once the batch is on disk, or lost.
    written: OnceLock<()>,
}

impl Batch {
    /// The record of an entry.
    pub(crate) fn find(&self, id: u64) -> Option<&[u8]> {
        let at = self.entries.binary_search_by_key(&id, |(own, _)| *own).ok()?;
        Some(&self.entries[at].1)
    }

    /// Waits until the disk has what it will have of the batch: the thread sets that whatever happens, while it lives.
    pub(crate) fn wait(&self) {
        self.written.wait();
    }

    /// Whether the disk has what it will have of the batch.
    pub(crate) fn is_written(&self) -> bool {
        self.written.get().is_some()
    }
}

/// The thread, and the way to it.
pub(crate) struct Writer {
    batches: Option<SyncSender<(Keyspace, Arc<Batch>)>>,
    thread: Option<JoinHandle<()>>,
    failures: Arc<AtomicU32>,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (batches, waiting) = sync_channel::<(Keyspace, Arc<Batch>)>(1);
        let failures = Arc::new(AtomicU32::new(0));
        let count = failures.clone();
        let run = move || {
            for (keyspace, batch) in waiting {
                let done = catch_unwind(AssertUnwindSafe(|| write(&keyspace, &batch)));
                match done {
                    Ok(Ok(())) => count.store(0, Ordering::Relaxed),
                    Ok(Err(_)) | Err(_) => _ = count.fetch_add(1, Ordering::Relaxed),
                }
                let _first_time = batch.written.set(());
            }
        };
        let thread = thread::Builder::new().name(String::from("spill")).spawn(run)?;
        Ok(Self { batches: Some(batches), thread: Some(thread), failures })
    }

    /// Has a batch written; `false` where the thread has ended.
    pub(crate) fn write(&self, keyspace: Keyspace, batch: Arc<Batch>) -> bool {
        self.batches.as_ref().is_some_and(|batches| batches.send((keyspace, batch)).is_ok())
    }

    /// Batches in a row that could not be written.
    pub(crate) fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn write(keyspace: &Keyspace, batch: &Batch) -> fjall::Result<()> {
    let mut ingestion = keyspace.start_ingestion()?;
    for (id, record) in &batch.entries {
        ingestion.write(id.to_be_bytes(), record.as_slice())?;
    }
    ingestion.finish()
}
