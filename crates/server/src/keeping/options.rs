//! How the settings say that data is kept.

use headwater_config::Config;
use headwater_keep::{Durability, Options};
use std::time::Duration;

/// A load of more than this share of the memory bound is refused.
const LOAD_SHARE: u64 = 4;
/// The store gathers this share of the bound, within what makes sense to it.
const TABLE_SHARE: u64 = 32;
const TABLE_BYTES_MIN: u64 = 1 << 20;
/// Bytes of keys written last that an owner remembers, and who stands by: other shards go on at the next owner where these reach back to what they have.
const RECENT_BYTES: usize = 4 << 20;

/// Those of each store, where there are so many shards.
pub(super) fn options(config: &Config, shards: u16) -> Options {
    let data = &config.data;
    let mut options = Options {
        durability: data.durability.parse().unwrap_or_default(),
        interval: Duration::from_millis(data.durability_milliseconds),
        free_bytes_min: data.data_free_bytes_min.0,
        ..Options::default()
    };
    if config.is_clustered() {
        // What is safe is in the log.
        options.durability = Durability::None;
    }
    if config.is_clustered() && config.listen.shards.number() > 1 {
        options.recent_bytes = RECENT_BYTES;
    }
    if config.memory.max.0 > 0 {
        options.load_bytes_max = config.memory.max.0 / LOAD_SHARE;
        let share = config.memory.max.0 / TABLE_SHARE / u64::from(shards);
        options.table_bytes = share.clamp(TABLE_BYTES_MIN, options.table_bytes);
    }
    options
}
