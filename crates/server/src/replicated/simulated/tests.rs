//! Seeds of nodes of a cluster, and what is left out on purpose.

use super::world::{Breadth, ClusterShape, Ran, Seen, run};
use super::{ANSWERS_AT_ONCE, BELIEVES_ALL};
use headwater_sim::replicated::LogFaults;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::LocalKey;

/// What happens in so many seeds that one of them at least must show it.
const HAPPENS: [&str; 12] = [
    "answers",
    "bucket without a leader",
    "connections that servers end",
    "disks lost",
    "drains undone",
    "late appends behind a claim",
    "logs without a leader",
    "new beginnings",
    "nodes cut off",
    "older disks",
    "owners that give up",
    "pauses",
];

const ONE_SHARD: ClusterShape = ClusterShape { shards: 1, nodes: 3, breadth: Breadth::Wide };
const TWO_SHARDS: ClusterShape = ClusterShape { shards: 2, nodes: 2, breadth: Breadth::Wide };
const ONE_SHARD_NARROW: ClusterShape = ClusterShape { breadth: Breadth::Narrow, ..ONE_SHARD };
const TWO_SHARDS_NARROW: ClusterShape = ClusterShape { breadth: Breadth::Narrow, ..TWO_SHARDS };
/// Seeds for each of what is left out.
const CUT_SEEDS: u64 = 20;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn simulate(
    seed: u64,
    shape: ClusterShape,
    change: &dyn Fn(&mut LogFaults),
) -> Result<Ran, String> {
    let ran = catch_unwind(AssertUnwindSafe(|| run(seed, shape, change)));
    let ran = ran.unwrap_or_else(|_| Err(String::from("it panics")));
    ran.map_err(|wrong| format!("HEADWATER_NODES_SEED={seed}: {wrong}"))
}

/// Runs seeds in as many threads as there are processors.
fn run_all(otherwise: u64, shape: ClusterShape) -> Seen {
    let first = number("HEADWATER_NODES_FIRST").unwrap_or(0);
    let seeds = match number("HEADWATER_NODES_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("HEADWATER_NODES_SEEDS").unwrap_or(otherwise),
    };
    let (next, all, wrong) =
        (AtomicU64::new(seeds.start), Mutex::new(Seen::new()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match simulate(seed, shape, &|_| {}) {
                Ok(ran) => {
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    ran.seen
                        .into_iter()
                        .for_each(|(what, count)| *all.entry(what).or_default() += count);
                }
                Err(text) => wrong.lock().unwrap_or_else(PoisonError::into_inner).push(text),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(wrong.is_empty(), "{} seeds:\n{}", wrong.len(), wrong.join("\n"));
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(number("HEADWATER_NODES_SHOW").is_none(), "{all:#?}");
    all
}

/// What happens with several shards besides.
const HAPPENS_BETWEEN: [&str; 3] = [
    "connections between owners",
    "operations of which a server says that nobody knows",
    "owners cut off from one another",
];

fn check(all: &Seen, happens: &[&str]) {
    let alone = number("HEADWATER_NODES_SEED").is_some();
    let missing: Vec<_> = happens.iter().filter(|what| !all.contains_key(*what)).collect();
    assert!(alone || missing.is_empty(), "{missing:?} did not happen: {all:#?}");
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_seen_is_undone() {
    check(&run_all(100, ONE_SHARD), &HAPPENS);
}

#[test]
fn owners_of_two_shards_tell_each_other_nothing_that_is_lost() {
    check(&run_all(60, TWO_SHARDS), &[&HAPPENS[..], &HAPPENS_BETWEEN].concat());
}

/// Seeds that failed once. With two shards: an answer to what was under way at another shard said that it was not executed, and half a transaction was executed
/// where the other half had waited for too long; what a client had asked for who hung up waited for an owner, and was done behind the last read. Of both kinds, last: a
/// node that gave its shard up stopped for good, since the next owner had let go of what it had not read of the log.
#[test]
fn what_failed_once_does_not_any_more() {
    let two = [18, 19, 61, 96, 100_351, 40_468].map(|seed| (seed, TWO_SHARDS_NARROW));
    for (seed, shape) in two.into_iter().chain([(80_021, ONE_SHARD_NARROW)]) {
        simulate(seed, shape, &|_| {}).unwrap();
    }
}

/// Those of two shards were not once, since what was asked of a disk could be answered within the same turn.
#[test]
fn a_seed_is_the_same_each_time() {
    let one = (0..8).map(|seed| (seed, ONE_SHARD));
    let narrow = [5, 10, 15, 22, 39, 41, 44, 45].map(|seed| (seed, TWO_SHARDS_NARROW));
    let two = (0..8).map(|seed| (seed, TWO_SHARDS));
    for (seed, shape) in one.chain(narrow).chain(two) {
        let run = || simulate(seed, shape, &|_| {}).unwrap();
        let (first, second) = (run(), run());
        let mut pairs = first.asked.iter().zip(&second.asked);
        let differs = pairs.find(|(one, other)| one != other);
        assert!(first == second, "seed {seed} of {shape:?} differs from itself: {differs:?}");
    }
}

/// In how many seeds something left out is noticed, and what is said then.
fn found(
    cut: &'static LocalKey<Cell<bool>>,
    shape: ClusterShape,
    change: &dyn Fn(&mut LogFaults),
) -> Vec<String> {
    cut.set(true);
    let found = (0..CUT_SEEDS).filter_map(|seed| simulate(seed, shape, change).err()).collect();
    cut.set(false);
    found
}

/// Whether it says one of these often enough.
fn check_found(found: &[String], says: &[&str]) {
    let is_right = |text: &&String| says.iter().any(|said| text.contains(said));
    let rightly = found.iter().filter(is_right).count();
    assert!(rightly > 2, "{rightly} of {CUT_SEEDS} seeds say so: {found:#?}");
}

/// The trap: what an owner has under way arrives behind the next one's claim.
#[test]
fn records_of_older_epochs_that_are_taken_for_data_are_noticed() {
    let trap = |faults: &mut LogFaults| {
        *faults = LogFaults { traps: 100, stalls: 1, ..LogFaults::default() };
    };
    check_found(&found(&BELIEVES_ALL, ONE_SHARD, &trap), &["not a copy of this log"]);
}

#[test]
fn answers_that_do_not_wait_for_the_log_are_noticed() {
    let lost = ["is lost", "which is '", "came to", "in the end:", "had", "post "];
    let losses = |faults: &mut LogFaults| {
        *faults = LogFaults { crashes: 3, leaders: 3, ..LogFaults::default() };
    };
    check_found(&found(&ANSWERS_AT_ONCE, ONE_SHARD, &losses), &lost);
    check_found(&found(&ANSWERS_AT_ONCE, TWO_SHARDS, &losses), &lost);
}
