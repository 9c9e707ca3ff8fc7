//! The source against a real PostgreSQL, which each test starts for itself.
#![expect(clippy::print_stderr, reason = "a test says why it is skipped")]

mod declare;
mod follow;
mod model;
mod random;
mod server;
