//! Clients that are busy with keys of their own while a script runs: they transfer between accounts on all shards, and read what
//! all of these hold together.
//!
//! Their keys lie behind all others, and stay: a script sees that they are there, and never what they hold.

use super::commands::Words;
use super::wire::{Frame, Wire, encoded};
use crate::rng::Rng;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How many accounts there are.
pub const ACCOUNTS: usize = 6;
/// What each holds at first.
pub const EACH: i64 = 1000;

/// The key of an account.
#[must_use]
pub fn account(at: usize) -> String {
    format!("~account|{at}")
}

/// The request that opens the accounts.
pub(super) fn accounts() -> Words {
    let pairs = (0..ACCOUNTS).flat_map(|at| [account(at), EACH.to_string()]);
    [String::from("MSET")].into_iter().chain(pairs).map(String::into_bytes).collect()
}

/// Busy clients of one server.
pub(super) struct Busy {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Busy {
    /// Starts them.
    pub(super) fn start(address: SocketAddr, patience: Duration) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let start = |seed: u64| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let mut wire = Wire::connect(address, patience)?;
                let mut rng = Rng::new(seed);
                while !over.load(Ordering::Relaxed) {
                    round(&mut wire, &mut rng)?;
                }
                Ok(())
            })
        };
        let threads = (0..2).map(start).collect();
        Self { over, threads }
    }

    /// Ends them; what they have found wrong.
    pub(super) fn end(self) -> Result<(), String> {
        self.over.store(true, Ordering::Relaxed);
        let join = |thread: JoinHandle<Result<(), String>>| {
            let ended = thread.join().unwrap_or_else(|_| Err(String::from("it panics")));
            ended.map_err(|wrong| format!("a busy client: {wrong}"))
        };
        let all: Vec<_> = self.threads.into_iter().map(join).collect();
        all.into_iter().collect()
    }
}

/// A transfer, or a look at all accounts.
fn round(wire: &mut Wire, rng: &mut Rng) -> Result<(), String> {
    if rng.chance(40) {
        let last = String::from("~account}");
        let mut words = match rng.below(2) {
            0 => vec![String::from("RANGE"), account(0), last, String::from("VALUES")],
            _ => vec![String::from("MGET")],
        };
        if words.len() == 1 {
            words.extend((0..ACCOUNTS).map(account));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (_, reply) = wire.ask(&words)?;
        let Frame::Array(values) = &reply else { return Err(format!("{words:?}: {reply:?}")) };
        let number = |value: &Frame| {
            let text = value.text().unwrap_or_default();
            String::from_utf8_lossy(&text).parse::<i64>().unwrap_or(0)
        };
        let sum: i64 = values.iter().map(number).sum();
        if sum != ACCOUNTS as i64 * EACH {
            return Err(format!("{words:?}: {values:?}, which is {sum}"));
        }
        return Ok(());
    }
    let from = rng.below(ACCOUNTS);
    let to = (from + 1 + rng.below(ACCOUNTS - 1)) % ACCOUNTS;
    let amount = rng.below(9).to_string();
    let requests: [Vec<String>; 4] = [
        vec![String::from("MULTI")],
        vec![String::from("DECRBY"), account(from), amount.clone()],
        vec![String::from("INCRBY"), account(to), amount],
        vec![String::from("EXEC")],
    ];
    let mut bytes = Vec::new();
    for words in requests {
        let words: Words = words.into_iter().map(String::into_bytes).collect();
        bytes.extend(encoded(&words));
    }
    wire.send(&bytes, &[])?;
    let replies = (0..4).map(|_| wire.frame()).collect::<Result<Vec<_>, _>>()?;
    match &replies[3] {
        Frame::Array(done) if matches!(&done[..], [Frame::Integer(_), Frame::Integer(_)]) => Ok(()),
        other => Err(format!("a transfer is answered {other:?}")),
    }
}
