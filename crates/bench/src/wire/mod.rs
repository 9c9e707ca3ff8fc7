//! What the generator says to servers: RESP, memcached's text protocol and PostgreSQL's
//! message protocol, over plain blocking TCP.
//!
//! Everything is written into one growing buffer and sent with one `write`; replies are
//! parsed in place, without an allocation per reply. All systems share [`Connection`], so
//! none gets a better client than another.

pub mod connection;
pub mod key;
pub mod memcached;
pub mod postgres;
pub mod resp;
pub mod stream;

pub use connection::{Connection, Input, Loader};
pub use key::Key;

use std::io;

/// An error that says what the server did wrong.
pub(crate) fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
