//! How to keep, and what is known of a store.

use headwater_base::Durability;
use std::time::Duration;

/// What removals leave free on the disk, if nothing more is asked for: they are written as well, and the store fails where
/// nothing can be.
pub const REMOVALS_BYTES_MIN: u64 = 4 << 20;

/// How to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// When writes are made safe.
    pub durability: Durability,
    /// Under [`Durability::Interval`], how long after the first write that is not safe yet.
    pub interval: Duration,
    /// A load of more bytes than this is refused.
    pub load_bytes_max: u64,
    /// Writes are refused while the disk has fewer bytes free, but for removals: those are refused where even
    /// [`REMOVALS_BYTES_MIN`] are not left.
    pub free_bytes_min: u64,
    /// Bytes that gather in memory until the store writes them as a table. More means fewer and longer
    /// writes; all that the store takes of memory is in proportion.
    pub table_bytes: u64,
    /// Bytes of keys that were written last and are remembered, where turns come from a log or go to one; 0: none are.
    pub recent_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            interval: Duration::from_secs(1),
            load_bytes_max: 256 << 20,
            free_bytes_min: 64 << 20,
            table_bytes: 16 << 20,
            recent_bytes: 0,
        }
    }
}

impl Options {
    /// What all this takes of memory, about, besides what is being loaded: a table that gathers and four that wait to
    /// be written, as much of operations in the queue and at the writer, and a cache of blocks.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        8 * self.table_bytes
    }
}

/// What is known of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStats {
    /// The last operation that was told.
    pub position: u64,
    /// The last one that is safe.
    pub durable: u64,
    /// Bytes of operations that wait for the writer.
    pub pending_bytes: u64,
    /// Batches written.
    pub batches: u64,
    /// Syncs done.
    pub syncs: u64,
    /// What they took together, in microseconds.
    pub sync_micros: u64,
    /// What the last one took, in microseconds.
    pub sync_micros_last: u64,
    /// Loads answered.
    pub loads: u64,
    /// Loads that failed.
    pub loads_failed: u64,
    /// Keys that loads gave.
    pub loaded_keys: u64,
    /// Bytes of keys and values that loads gave.
    pub loaded_bytes: u64,
    /// Bytes that the store takes on disk.
    pub disk_bytes: u64,
}
