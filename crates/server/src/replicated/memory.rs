//! The part of its node's memory that a process may take, where a node has several: it changes as shards come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the process may take, as it was told last.
#[derive(Clone, Debug, Default)]
pub struct MemoryShare(Arc<AtomicU64>);

impl MemoryShare {
    /// So many bytes, from now on.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Release);
    }

    /// The bytes; `None`: what the settings say.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|bytes| *bytes > 0)
    }
}
