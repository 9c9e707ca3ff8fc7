//! Bytes to commands and answers to bytes. Sans-IO: no sockets, no clock.

#![no_std]
extern crate alloc;

pub mod resp;
