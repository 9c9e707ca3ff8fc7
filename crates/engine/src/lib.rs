//! The engine of one shard: base keys, cache joins, and reads that are always fresh.

#![no_std]
extern crate alloc;

mod engine;
pub mod report;

pub use engine::{Engine, Settings};
pub use headwater_pool::Value;
pub use report::*;
