//! What the documents show is what the program answers.
//!
//! A fenced block with lines that start with `> ` is a conversation, as `redis-cli --raw` shows
//! it. The blocks of one document are one conversation with one server, in their order. `other> ` is a request of another client, and
//! `message>` stands before what a client is sent without having asked. Figures in the `status:` and `eviction:` lines of EXPLAIN (times,
//! bytes, uses) are not compared, nor are positions. A server is started with what a page says in a comment (`is started with: …`).
//!
//! Lines for a shell are run ([`commands`]), settings and other files are held against what reads them ([`files`]). What is run
//! elsewhere (Python and TypeScript by the tests of those clients, `curl` and scripts for browsers by `tests/page`, sources by
//! `tests/postgres`) must be named there, and what nothing runs must be one of the exceptions ([`every_block`]).

use std::time::Duration;

mod commands;
mod conversations;
mod every_block;
mod files;
mod pages;
mod server;

/// How long something may take that comes a moment later.
const PATIENCE: Duration = Duration::from_secs(30);
