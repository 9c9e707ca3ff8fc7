//! The stores on disk, whose threads take memory that no shard holds.
//!
//! They are asked themselves, by whichever shard: what another one last saw of its store is older than what it has written since.

use headwater_keep::StoreWatch;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The stores of all shards that share a bound.
#[derive(Debug, Default)]
pub(crate) struct WatchedStores(Mutex<Vec<StoreWatch>>);

impl WatchedStores {
    fn lock(&self) -> MutexGuard<'_, Vec<StoreWatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, store: StoreWatch) {
        self.lock().push(store);
    }

    /// Whether the threads of any hold memory that they will give back.
    pub(crate) fn is_any_writing(&self) -> bool {
        self.lock().iter().any(StoreWatch::is_writing)
    }

    /// Whether the threads of any are writing or merging tables.
    pub(crate) fn is_any_busy(&self) -> bool {
        self.lock().iter().any(StoreWatch::is_busy)
    }

    /// Has all write what they keep in memory until there is enough for a table; whether any will.
    pub(crate) fn give_back(&self) -> bool {
        self.lock().iter().filter(|store| store.give_back()).count() > 0
    }
}
