//! memcached's text protocol, classic and meta: requests in, answers out.
//!
//! [`parse`] cuts a request out of the receive buffer and says what it asks, in the terms of
//! [`headwater_command::items`]; [`Encoder`] writes the answer. Nothing is allocated and nothing is
//! copied but values into the output. The contract is memcached's `doc/protocol.txt` and
//! what memcached 1.6.18 answers, error lines included.
//!
//! A request is a line, and for commands that store a block of data behind it. Words of the line
//! are separated by spaces alone. What is wrong with a line decides whether the data is skipped:
//! where its length could be read, by and large. `invoke` and `register` are our own (`functions`).

mod base64;
mod encoder;
mod functions;
mod meta;
mod parser;
mod words;

pub use encoder::Encoder;
pub use meta::{KEY_BYTES_MAX, Meta, MetaFlags};
pub use parser::{Limits, Parsed, Request, parse};
pub use words::Words;

/// The version of memcached whose commands and answers these are.
pub const VERSION: &str = "1.6.18";
