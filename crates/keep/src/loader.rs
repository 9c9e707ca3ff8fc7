//! The threads that load: exactly the keys of a range, as of a known operation.
//!
//! A load waits until the writer has committed what was told before it. Then it reads a snapshot, in which the
//! position is a record like any other: so what it has read and the position that it tells belong together.

use crate::describe;
use crate::record::{STATE, State, read_value};
use crate::shared::{Keys, Request, Shared, lock};
use fjall::{Keyspace, Readable, Snapshot};
use headwater_base::key::bounds;
use headwater_base::source::{Loaded, News, Pair, Position};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Answers requests until there will be no more.
pub(crate) fn run(shared: &Shared, load_bytes_max: u64) {
    while let Some(request) = wait(shared) {
        let done = catch_unwind(AssertUnwindSafe(|| load(shared, &request, load_bytes_max)));
        let answer = done.unwrap_or_else(|_| Err(String::from("it stopped at a fault of its own")));
        let counters = &shared.counters;
        match &answer {
            Ok(loaded) => {
                let bytes: usize = loaded.pairs.iter().map(|p| p.key.len() + p.value.len()).sum();
                counters.loads.fetch_add(1, Ordering::Relaxed);
                counters.loaded_keys.fetch_add(loaded.pairs.len() as u64, Ordering::Relaxed);
                counters.loaded_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            Err(_) => _ = counters.loads_failed.fetch_add(1, Ordering::Relaxed),
        }
        shared.sink.tell(News::Loaded { fetch: request.fetch, answer });
    }
}

/// The next request whose operations are committed, or lost; `None` at the end.
fn wait(shared: &Shared) -> Option<Request> {
    let mut progress = lock(&shared.progress);
    loop {
        if progress.closing {
            return None;
        }
        let (committed, lost) = (progress.committed, progress.lost.is_some());
        // Requests come in the order of what they wait for.
        let ready =
            progress.requests.front().is_some_and(|request| lost || request.at <= committed);
        if ready {
            return progress.requests.pop_front();
        }
        progress = shared.moved.wait(progress).unwrap_or_else(PoisonError::into_inner);
    }
}

/// The store at one moment.
pub(crate) struct View {
    pub(crate) snapshot: Snapshot,
    pub(crate) state: State,
    /// Where its keys are.
    pub(crate) keys: Keyspace,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("state", &self.state).finish_non_exhaustive()
    }
}

impl View {
    /// As it is now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn of(shared: &Shared) -> Result<Self, String> {
        loop {
            let snapshot = shared.database.snapshot();
            let record = snapshot.get(&shared.meta, STATE).map_err(|error| describe(&error))?;
            let state = record.as_deref().and_then(State::read);
            let state = state.ok_or("the store's record of itself is damaged")?;
            let Keys { generation, keyspace: keys } = lock(&shared.keys).clone();
            // Between the two, all keys may have been removed: look again.
            if generation == state.generation {
                return Ok(Self { snapshot, state, keys });
            }
        }
    }
}

fn load(shared: &Shared, request: &Request, load_bytes_max: u64) -> Result<Loaded, String> {
    let (first, last) = (&*request.range.first, &*request.range.last);
    if request.range.is_empty() {
        let position = request.over.as_ref().map_or(request.at, |over| over.last);
        return Ok(Loaded { position: Position(position), pairs: Vec::new(), known: None });
    }
    // Once something is lost, nothing more is committed: so any later snapshot is what it is laid over.
    let has_lost = lock(&shared.progress).lost.is_some();
    let View { snapshot, state, keys } = View::of(shared)?;
    let mut pairs = Vec::new();
    let mut bytes = 0;
    let mut add = |key: &[u8], record: &[u8]| {
        let damaged = || format!("the record of the key '{}' is damaged", key.escape_ascii());
        let (value, attributes) = read_value(key, record).ok_or_else(damaged)?;
        bytes += (key.len() + value.len() + size_of::<Pair>()) as u64;
        if bytes > load_bytes_max {
            return Err(format!(
                "the range asked for has more than {load_bytes_max} bytes: ask for less at once"
            ));
        }
        pairs.push(Pair { key: key.to_vec(), value: value.to_vec(), attributes });
        Ok(())
    };
    let mut position = state.position;
    if has_lost && let Some(lost) = &lock(&shared.progress).lost {
        position = position.max(lost.last);
    }
    // Unless the transaction has ended meanwhile, and is in the store.
    let over = request.over.as_ref().filter(|over| over.last > position);
    let over_hides = |key: &[u8]| over.is_some_and(|over| over.hides(key));
    if has_lost && let Some(lost) = &lock(&shared.progress).lost {
        for (key, record) in lost.records(first, last).filter(|(key, _)| !over_hides(key)) {
            add(key, record)?;
        }
    }
    if let Some(over) = over {
        position = over.last;
        for (key, record) in over.records(first, last) {
            add(key, record)?;
        }
    }
    let mut add_stored = |key: &[u8], record: &[u8]| {
        let hidden = over_hides(key)
            || has_lost && lock(&shared.progress).lost.as_ref().is_some_and(|lost| lost.hides(key));
        if hidden { Ok(()) } else { add(key, record) }
    };
    if last.strip_prefix(first) == Some(&[0]) {
        // A single key is looked up in the tables whose filters have it. A range is looked for in all that it may lie in, a block of each of which
        // is in memory then: where values are long, that is much.
        let record = snapshot.get(&keys, first).map_err(|error| describe(&error))?;
        record.map_or(Ok(()), |record| add_stored(first, &record))?;
    } else {
        for guard in snapshot.range::<&[u8], _>(&keys, bounds(first, last)) {
            let (key, record) = guard.into_inner().map_err(|error| describe(&error))?;
            add_stored(&key, &record)?;
        }
    }
    Ok(Loaded { position: Position(position), pairs, known: None })
}
