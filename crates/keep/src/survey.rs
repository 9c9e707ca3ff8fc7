//! Keys that belong together but do not lie together, looked for beside the shard's work: so gathering them later costs no look
//! at all keys.
//!
//! A thread goes through the keys as they are when it begins. Those that are put from then on are looked at as they come. Both
//! together are all that there can be; what of them is still there, and what it holds, is read when they are gathered.
//!
//! # Cost
//! All keys are read, once, by a thread of their own. Each put meanwhile is looked at; each key that is found is in memory.

use crate::describe;
use crate::loader::View;
use crate::shared::{Shared, lock};
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often a survey that waits looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(10);

/// Which keys are looked for.
pub type Wanted = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Keys that were found; `None`: they are not all found yet.
type Found = Arc<Mutex<Option<Result<Vec<Vec<u8>>, String>>>>;

/// A survey under way, or done.
pub(crate) struct Survey {
    wanted: Wanted,
    /// Those that were put since it began.
    put: BTreeSet<Vec<u8>>,
    found: Found,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Survey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Survey").field("put", &self.put.len()).finish_non_exhaustive()
    }
}

impl Survey {
    /// Begins one that has seen everything up to the operation `at`; `done` is called when it ends.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        at: u64,
        wanted: Wanted,
        done: Box<dyn Fn() + Send>,
    ) -> Self {
        let (found, stop) = (Found::default(), Arc::<AtomicBool>::default());
        shared.want(at);
        let (shared, looks_for) = (shared.clone(), wanted.clone());
        let (finds, stops) = (found.clone(), stop.clone());
        let run = move || {
            let look = || look(&shared, at, &*looks_for, &stops);
            let keys = catch_unwind(AssertUnwindSafe(look));
            let fault = |_| Err(String::from("it stopped at a fault of its own"));
            *lock(&finds) = Some(keys.unwrap_or_else(fault));
            done();
        };
        let thread = thread::Builder::new().name(String::from("keep-survey")).spawn(run).ok();
        if thread.is_none() {
            *lock(&found) = Some(Err(String::from("there is no thread for it")));
        }
        Self { wanted, put: BTreeSet::new(), found, stop, thread }
    }

    /// A key is put.
    pub(crate) fn put(&mut self, key: &[u8]) {
        if (self.wanted)(key) {
            self.put.insert(key.to_vec());
        }
    }

    /// Whether it has ended.
    pub(crate) fn is_done(&self) -> bool {
        lock(&self.found).is_some()
    }

    /// All keys that there can be; `None`: it has not come to know.
    pub(crate) fn keys(&self) -> Option<BTreeSet<Vec<u8>>> {
        let found = lock(&self.found);
        let found = found.as_ref()?.as_ref().ok()?;
        Some(found.iter().chain(&self.put).cloned().collect())
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn look(
    shared: &Shared,
    at: u64,
    wanted: &dyn Fn(&[u8]) -> bool,
    stop: &AtomicBool,
) -> Result<Vec<Vec<u8>>, String> {
    let mut progress = lock(&shared.progress);
    while progress.committed < at {
        if progress.closing || progress.lost.is_some() || stop.load(Ordering::Relaxed) {
            return Err(String::from("the store does not come so far"));
        }
        // A look now and then, since nobody says when it is to stop.
        let waited = shared.moved.wait_timeout(progress, LOOK);
        progress = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(progress);
    let View { snapshot, keys, .. } = View::of(shared)?;
    let mut found = Vec::new();
    for guard in fjall::Readable::iter(&snapshot, &keys) {
        if stop.load(Ordering::Relaxed) {
            return Err(String::from("nobody wants it any more"));
        }
        let key = guard.key().map_err(|error| describe(&error))?;
        if wanted(&key) {
            found.push(key.to_vec());
        }
    }
    Ok(found)
}
