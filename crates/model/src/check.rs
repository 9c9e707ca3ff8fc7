//! Runs the histories of many seeds on several threads, and shrinks the first that fails.

use crate::drive::Failure;
use crate::equipped::Equipped;
use crate::history::{Op, script};
use crate::shrink::shrink;
use crate::story::StoryOracle;
use crate::subject::{Plain, Subject};
use crate::{drive, drive_sources, generate, generate_long, generate_sources};
use headwater_script::story::rewritten;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, mpsc};
use std::time::{Duration, Instant};

/// Makes what histories are run against.
pub type MakeSubject = fn() -> Box<dyn Subject>;

/// Which histories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// All data is here, and every read answers at once.
    Plain,
    /// Sources keep some tables, and answer when they like.
    Sources,
    /// Thousands of operations at a memory bound.
    Long,
    /// Plain ones in which the process is killed and begins again.
    Crashes,
}

impl Kind {
    /// The history that belongs to a seed.
    #[must_use]
    pub fn history(self, seed: u64) -> Vec<Op> {
        match self {
            Self::Plain => generate::history(seed),
            Self::Sources => generate_sources::history(seed),
            Self::Long => generate_long::history(seed),
            Self::Crashes => generate::with_crashes(seed, generate::history(seed)),
        }
    }

    /// What they are run against, if nobody says otherwise.
    #[must_use]
    pub fn subject(self) -> MakeSubject {
        match self {
            Self::Plain | Self::Sources => || Box::new(Plain::default()),
            Self::Long => || Box::new(Equipped::default()),
            Self::Crashes => || Box::new(Equipped::kept_in_a_map()),
        }
    }

    fn run(self, subject: &mut dyn Subject, ops: &[Op]) -> Result<(), Failure> {
        match self {
            Self::Plain | Self::Long | Self::Crashes => drive::run(subject, ops),
            Self::Sources => drive_sources::run(subject, ops),
        }
    }
}

/// What to check.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The kind of histories.
    pub kind: Kind,
    /// The first seed.
    pub first_seed: u64,
    /// How many seeds follow each other.
    pub seeds: u64,
    /// On how many threads.
    pub threads: usize,
    /// What is checked: the engine, except in tests of this room.
    pub subject: MakeSubject,
}

impl Plan {
    /// The engine, with the histories of these seeds.
    #[must_use]
    pub fn engine(kind: Kind, first_seed: u64, seeds: u64, threads: usize) -> Self {
        Self { kind, first_seed, seeds, threads, subject: kind.subject() }
    }
}

/// How many histories a test checks: those that `HEADWATER_HISTORIES` asks for, or `usual`.
///
/// # Panics
/// The variable is no number.
#[must_use]
pub fn wanted_histories(usual: u64) -> u64 {
    let wanted = std::env::var("HEADWATER_HISTORIES").ok();
    wanted.map_or(usual, |number| number.parse().expect("HEADWATER_HISTORIES is a number"))
}

/// Checks so many histories from a seed on, on all cores.
///
/// # Panics
/// One of them fails.
pub fn assert_holds(kind: Kind, first_seed: u64, histories: u64, subject: MakeSubject) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let plan = Plan { subject, ..Plan::engine(kind, first_seed, histories, threads) };
    let found = check(&plan, 1, &mut |_| {});
    assert!(found.is_empty(), "{}", found[0]);
}

/// A history that failed, made short.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed it came from.
    pub seed: u64,
    /// What was different when it was shortest.
    pub failure: Failure,
    /// The shortest history found.
    pub ops: Vec<Op>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {} fails: {}", self.seed, readable(&self.failure.message))?;
        writeln!(f, "shrunk to {} operations:\n", self.ops.len())?;
        let script = script(&self.ops);
        let story =
            format!("# Seed {}: {{say what it is about}}.\n{}", self.seed, readable(&script));
        if self.ops.len() > 80 || story.len() < script.len() {
            return f.write_str(&story); // Too long to be told by anyone.
        }
        let make = || -> Box<dyn headwater_script::Target> { Box::new(StoryOracle::default()) };
        // A story needs its lower half to be read; the oracle then fills it in.
        f.write_str(&rewritten(&format!("{story}----\n"), &make).unwrap_or(story))
    }
}

/// Lines that a person can read: of those with long values the beginning.
fn readable(text: &str) -> String {
    const MOST: usize = 240;
    let short = |line: &str| match line.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}… ({} bytes)\n", &line[..at], line.len()),
        None => format!("{line}\n"),
    };
    text.lines().map(short).collect()
}

/// The seed that a thread is busy with, and since when.
type AtWork = Mutex<Option<(u64, Instant)>>;

/// How long one history may take before it counts as endless.
const HANG: Duration = Duration::from_secs(60);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Panics on checking threads are results; they print nothing.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
}

/// Runs one history; a panic is a failure like any other.
///
/// # Errors
/// The first difference, or the panic.
pub fn attempt(kind: Kind, subject: MakeSubject, ops: &[Op]) -> Result<(), Failure> {
    quiet_panics();
    let was = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(|| kind.run(&mut *subject(), ops)));
    QUIET.set(was);
    result.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("?");
        Err(Failure { ops: ops.len(), message: format!("panics: {text}") })
    })
}

/// Runs the history of one seed, and shrinks it where it fails.
#[must_use]
pub fn check_seed(kind: Kind, subject: MakeSubject, seed: u64) -> Option<Found> {
    let mut ops = kind.history(seed);
    let first = attempt(kind, subject, &ops).err()?;
    ops.truncate(first.ops);
    // A failure at the very end needs no more than what came before it, too.
    let mut failure = first;
    let started = Instant::now();
    let ops = shrink(&ops, &mut |candidate| {
        let outcome =
            if started.elapsed() < HANG / 2 { attempt(kind, subject, candidate) } else { Ok(()) };
        outcome.map_err(|found| failure = found).is_err()
    });
    Some(Found { seed, failure, ops })
}

/// Runs the histories of all seeds, and gives those that failed, shrunk, until `most` are found.
///
/// `progress` hears how many histories have been run, a few times a second.
///
/// # Panics
/// A checking thread panicked outside a history.
#[must_use]
pub fn check(plan: &Plan, most: usize, progress: &mut dyn FnMut(u64)) -> Vec<Found> {
    let next = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let at_work: Vec<Arc<AtWork>> = (0..plan.threads.max(1)).map(|_| Arc::default()).collect();
    let mut workers = Vec::new();
    for current in &at_work {
        let (next, stop) = (Arc::clone(&next), Arc::clone(&stop));
        let (current, sender, plan) = (Arc::clone(current), sender.clone(), *plan);
        workers.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= plan.seeds {
                    break;
                }
                let seed = plan.first_seed.wrapping_add(at);
                *current.lock().expect("a plain store") = Some((seed, Instant::now()));
                if let Some(found) = check_seed(plan.kind, plan.subject, seed)
                    && sender.send(found).is_err()
                {
                    break;
                }
                *current.lock().expect("a plain store") = None;
            }
        }));
    }
    drop(sender);
    let mut all: Vec<Found> = Vec::new();
    while all.len() < most {
        match receiver.recv_timeout(Duration::from_millis(200)) {
            Ok(found) => all.push(found),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                progress(next.load(Ordering::Relaxed).min(plan.seeds));
            }
        }
        let endless = at_work.iter().find_map(|current| {
            let (seed, since) = (*current.lock().expect("a plain load"))?;
            (since.elapsed() > HANG && all.iter().all(|found| found.seed != seed)).then_some(seed)
        });
        if let Some(seed) = endless {
            let message = format!("does not end within {} s", HANG.as_secs());
            let ops = plan.kind.history(seed);
            all.push(Found { seed, failure: Failure { ops: ops.len(), message }, ops });
            return all;
        }
    }
    stop.store(true, Ordering::Relaxed);
    drop(receiver);
    for worker in workers {
        worker.join().expect("a checking thread panics only inside a history");
    }
    all.sort_by_key(|found| found.seed);
    all
}
