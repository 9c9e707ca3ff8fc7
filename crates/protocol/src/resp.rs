//! RESP2 and RESP3, the protocols of Redis: requests in, answers out.
//!
//! [`RequestParser`] cuts a request's arguments out of the receive buffer, [`find`] and [`decode`] turn
//! them into a [`headwater_command::Command`], [`Encoder`] writes the answer. None of them
//! allocates on the way of GET, SET and RANGE.

mod acl;
mod bits;
mod cluster;
mod connection;
mod decode;
mod encoder;
mod expiry;
mod flows;
mod functions;
mod inline;
mod introspection;
mod keys;
mod options;
mod parser;
mod peek;
mod pubsub;
mod ranges;
mod refusal;
mod replies;
mod scripts;
mod shards;
mod streams;
mod strings;
mod tables;
mod transactions;

pub use decode::{decode, find};
pub use encoder::{Encoder, Version};
pub use parser::{Limits, Parsed, ProtocolError, RequestParser};
pub use peek::peek_key;
pub use refusal::Refusal;
pub use replies::{ReplyCutter, elements, integer, is_error, text};
