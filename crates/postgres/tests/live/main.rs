//! The source against a real PostgreSQL, which each test starts for itself.
#![expect(clippy::print_stderr, reason = "a test says why it is skipped")]

#[expect(dead_code, reason = "these tests need no authority")]
#[path = "../../../../tests/certificates.rs"]
mod certificates;
mod declare;
mod follow;
mod interrupted;
mod model;
mod pages;
mod proxy;
mod random;
mod server;
mod streamed;
