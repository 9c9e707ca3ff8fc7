//! The part of its node's memory that a process may take, where a node has several: it changes as shards come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stands for a share that nobody has told yet.
const UNTOLD: u64 = u64::MAX;

/// What the process may take, as it was told last.
#[derive(Clone, Debug)]
pub struct MemoryShare(Arc<AtomicU64>);

impl Default for MemoryShare {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNTOLD)))
    }
}

impl MemoryShare {
    /// Sets what the process may take, in bytes; 0: as much as there is.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Release);
    }

    /// The bytes, or 0 for no bound; `None`: what the settings say.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|bytes| *bytes != UNTOLD)
    }
}
