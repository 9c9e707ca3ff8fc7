//! The ordered map of one shard: tables, groups, pages.
//!
//! Keys are ordered bytewise over the whole store; tables and groups are ways to reach them
//! quickly and change no answer. Values are words that name bytes in the
//! [`Pool`](headwater_pool::Pool); this room moves them about and counts them, and its callers
//! retain and release them.
//!
//! # Invariants
//! - S1. A key that has a `|` lives in the table of the bytes before its first `|`; all other
//!   keys live in the unnamed table.
//! - S2. A table without keys exists only while it is pinned.
//!
//! # Cost
//! Reaching a table is one hash of its short name.

#![no_std]
extern crate alloc;

mod chunks;
mod compact;
mod index;
mod page;
mod slab;
mod store;
mod table;
pub mod tree;

pub use chunks::Chunks;
pub use index::Index;
pub use slab::Slab;
pub use store::{Store, TableId, TablePart, WARM_MAX};
pub use table::{GroupId, Note, Scan, Sizes, Table};
