//! A running server, asked over sockets, against the oracle.
//!
//! [`draw`] makes from a seed what several clients ask, one pipeline after the other; [`run()`] asks one server, or several beside each other,
//! and holds every reply, every message and every byte against what [`state`] says; [`check_seed`] makes a script short that fails.
//! The server may have any number of shards: the answers must be the same.

mod at_once;
mod bits;
mod busy;
mod caches;
pub mod commands;
pub mod draw;
pub mod expected;
pub mod place;
mod run;
pub mod script;
mod shrink;
mod site;
pub mod state;
pub mod wire;

pub use at_once::run_at_once;
pub use busy::{ACCOUNTS, EACH, account};
pub use run::{run, run_at};
pub use script::Script;
pub use site::is_in_use;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What expires then is not there any more.
const PAST: u64 = 1_000_000;
/// How long a failing script may be made shorter.
const SHRINKING: Duration = Duration::from_secs(120);
/// While a script is made shorter, servers that do not answer are given up earlier.
const SHRINKING_PATIENCE: Duration = Duration::from_secs(2);
/// How often a script may succeed before it counts as one that does not fail: what threads do is not the same each time.
const TRIES: usize = 4;

/// A script that fails.
#[derive(Clone, Debug)]
pub struct Found {
    /// Why.
    pub wrong: String,
    /// The shortest one found.
    pub script: Script,
    /// How many of the last attempts have failed.
    pub often: (usize, usize),
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.wrong)?;
        writeln!(f, "(fails in {} of {} attempts)\n\n{}", self.often.0, self.often.1, self.script)
    }
}

/// What sort of thing is wrong: a script that is made shorter goes on to fail in that way.
fn kind(wrong: &str) -> usize {
    let kinds = [
        "a push within",
        "hung up",
        "no reply",
        "the copy of",
        "messages",
        "clients",
        "a busy",
        "TRYAGAIN",
    ];
    kinds.iter().position(|kind| wrong.contains(kind)).unwrap_or(kinds.len())
}

/// Runs a script, and makes it short if it fails. `servers` gives the servers for each attempt; they are told whether the one before has
/// failed, and must be empty then as well.
///
/// # Errors
/// The script that fails.
pub fn check_script(
    script: &Script,
    patience: Duration,
    servers: &mut dyn FnMut(bool) -> Vec<SocketAddr>,
) -> Result<(), Box<Found>> {
    let mut failed = None;
    check(script, &mut |script| {
        let patience = if failed.is_some() { SHRINKING_PATIENCE.min(patience) } else { patience };
        let done = run(script, &servers(failed.unwrap_or(false)), patience);
        failed = Some(done.is_err());
        done
    })
}

/// Makes a script short that fails; `attempt` runs one.
///
/// # Errors
/// As [`check_script`].
pub fn check(
    script: &Script,
    attempt: &mut dyn FnMut(&Script) -> Result<(), String>,
) -> Result<(), Box<Found>> {
    let Err(mut wrong) = attempt(script) else { return Ok(()) };
    let began = Instant::now();
    let kind = kind(&wrong);
    let mut fails = |candidate: &Script| {
        let tries = if began.elapsed() < SHRINKING { TRIES } else { 0 };
        let mut same = |_| attempt(candidate).err().filter(|it| self::kind(it) == kind);
        let found = (0..tries).find_map(&mut same);
        found.map(|found| wrong = found).is_some()
    };
    // Only what fails again can be made shorter.
    let script = if fails(script) { shrink::shrink(script, &mut fails) } else { script.clone() };
    let often = (0..8).filter(|_| attempt(&script).is_err()).count();
    Err(Box::new(Found { wrong, script, often: (often, 8) }))
}

/// Runs the script of a seed, without some [`draw::SUBJECTS`].
///
/// # Errors
/// As [`check_script`].
pub fn check_seed(
    seed: u64,
    without: &[String],
    patience: Duration,
    servers: &mut dyn FnMut(bool) -> Vec<SocketAddr>,
) -> Result<(), Box<Found>> {
    check_script(&draw::script(seed, without), patience, servers)
}
