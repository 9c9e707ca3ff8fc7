//! Encrypted connections of clients.
//!
//! A thread of its own listens where TLS is spoken and shakes hands (`handshake`): its cryptography and slow clients hold up no shard. Who
//! is through is handed to the first shard, which serves the client or hands it on, as it does with those it
//! accepts itself. From then on the shard that serves a client decrypts and encrypts in its turns (`stream`).
//!
//! - `files`: certificates and keys, and loading them anew.
//! - `handshake`: the thread.
//! - `stream`: one connection.
//! - `name`: what a client's certificate calls it.

mod files;
mod handshake;
mod name;
mod stream;

pub(crate) use files::{Certificates, between_nodes};
pub(crate) use handshake::{Arrivals, Doorway, HANDSHAKES_MAX, LATE, TOO_MANY, say_refused};
pub(crate) use name::of as name_of;
pub(crate) use stream::{ClientStream, InnerStream, STREAM_BYTES, TlsStream};
