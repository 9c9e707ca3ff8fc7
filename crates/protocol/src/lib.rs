//! Bytes to commands and answers to bytes. Sans-IO: no sockets, no clock.
//!
//! [`resp`] is the protocol of Redis, [`memcached`] that of memcached; neither knows the other.

#![no_std]
extern crate alloc;

mod held;
pub mod memcached;
pub mod resp;

pub use held::Held;
