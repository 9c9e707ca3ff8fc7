//! Commands about shards.

/// Commands about shards.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sharding<'a> {
    /// Waits until shards show what this session has written.
    Wait {
        /// How many.
        shards: u64,
        /// For at most so long; 0: for ever.
        millis: u64,
    },
    /// What this session has written, to be given to RANGE … AT.
    Position,
    /// All shards.
    List,
    /// Where a key lives.
    Home {
        /// The key.
        key: &'a [u8],
    },
    /// Moves a partition.
    Move {
        /// Its number.
        partition: u64,
        /// The number of the shard that is to be its home.
        shard: u64,
    },
}
