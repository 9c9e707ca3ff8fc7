//! The words every other room uses: keys, key ranges, times, limits, exact decimals, hashing,
//! and the ports to what lives outside.
//!
//! Nothing here knows a slot, a socket or a clock.

#![no_std]
extern crate alloc;

pub mod connect;
pub mod decimal;
pub mod durability;
pub mod event_kinds;
pub mod functions;
pub mod hash;
pub mod inline_bytes;
pub mod key;
pub mod limits;
pub mod memory;
pub mod ordered;
pub mod packed;
pub mod placement;
pub mod refusal;
pub mod slots;
pub mod source;
pub mod spill;
pub mod stream_records;
pub mod text;
pub mod time;
pub mod wire;

pub use decimal::Decimal;
pub use durability::Durability;
pub use event_kinds::EventKinds;
pub use inline_bytes::InlineBytes;
pub use key::{KeyParts, KeyRange, prefix_end, table_of};
pub use limits::Limits;
pub use ordered::{Kind, Ordered};
pub use packed::PackedPairs;
pub use placement::{Partition, Placement, Shard};
pub use refusal::ShardRefusal;
pub use time::Millis;
