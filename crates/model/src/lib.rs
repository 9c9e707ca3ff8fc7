//! The naive oracle, and random histories that drive the engine against it.
//!
//! [`oracle`] says what every read must give, by recomputing it with nested loops. [`generate`]
//! makes a history from a seed, [`drive`] runs it on the engine and the oracle together and
//! compares, [`shrink`] makes a failing one short, and [`check`] does all that for many seeds.
//!
//! For tests and `headwater check` only: nothing here is fast, and much of it panics.

pub mod check;
pub mod copies;
pub mod disk;
pub mod drive;
pub mod drive_sources;
pub mod equipped;
pub mod expect;
pub mod functions;
pub mod generate;
pub mod generate_long;
pub mod generate_sources;
pub mod history;
pub mod join;
pub mod lens;
pub mod number;
pub mod oracle;
pub mod pressure;
pub mod rng;
pub mod server;
pub mod shrink;
pub mod store;
pub mod story;
pub mod subject;
mod tally;
