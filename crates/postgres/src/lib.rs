//! PostgreSQL as a source of base data: rows of its tables are keys, loaded by range and followed by
//! logical replication.
//!
//! | part | what it is for |
//! | --- | --- |
//! | [`mapping`], [`text`], [`case`] | which row is which key |
//! | [`range`] | a range of keys as a condition on columns |
//! | [`url`], `password`, [`wire`], `socket`, `tls`, `login` | connections |
//! | [`output`], `transaction` | what the log tells |
//! | `state`, `loads`, `room` | loads and the log, put together without a gap, in bounded memory |
//! | `declare`, `signature` | comparing a mapping with the database, and noticing when it is altered |
//! | `pool`, `follow`, `watch` | the threads |
//! | `queue` | following by triggers, where the log is not to be had |
//!
//! [`connect`] gives a source; `docs/postgres.md` tells its users what the database must grant.

pub mod case;
pub mod filter;
pub mod followed;
pub mod mapping;
pub mod number;
pub mod output;
mod page;
pub mod range;
pub mod settings;
pub mod snapshot;
pub mod text;
pub mod url;
pub mod wire;

mod catalog;
mod declare;
mod error;
mod follow;
mod indexes;
mod json;
mod loads;
mod login;
mod password;
pub mod path;
mod pool;
mod prepared;
mod publication;
mod query;
mod queue;
mod room;
mod signature;
mod socket;
mod source;
mod state;
pub mod terms;
mod tls;
mod transaction;
mod watch;
mod work;
mod write;

pub use source::{Postgres, connect, connect_for};
