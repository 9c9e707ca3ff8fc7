//! Seeds, many of them: `HEADWATER_SIM_SEEDS=50000` runs more, `HEADWATER_SIM_FIRST=3000` others, and
//! `HEADWATER_SIM_SEED=12` that one alone.

use headwater_model::generate::{KEPT_FROM, LENSED_FROM, TALLIED_FROM};
use headwater_sim::{Faults, Seen};
use many::{number, run_all};
use std::ops::Range;
use std::panic::catch_unwind;

mod many;

/// What happens in so many seeds that one of them at least must show it.
const HAPPENS: [&str; 41] = [
    "answers checked",
    "answers that are older",
    "answers that show all of a source",
    "answers that show all writes",
    "answers with snapshots",
    "changes told",
    "copies checked",
    "crashes within moves",
    "evictions",
    "folds gathered",
    "joins added",
    "joins not replaced",
    "joins refused",
    "joins replaced",
    "keys expired",
    "keys flushed",
    "keys loaded from shards",
    "loads from disk",
    "loads from sources",
    "loads from sources that failed",
    "moves undone",
    "partitions moved",
    "ranges gathered",
    "ranges not resumed",
    "ranges removed",
    "ranges resumed as they were",
    "ranges resumed with changes",
    "ranges unfollowed",
    "requests that failed with a source",
    "resets told",
    "restarts with all keys",
    "restarts with keys of before",
    "restarts with nothing",
    "slices gone on with",
    "sources that lost track",
    "transactions at sources",
    "waits for data",
    "waits for positions",
    "waits for positions of sources",
    "watches begun anew",
    "writes refused for a join to come",
];

/// Runs a simulation.
fn run(seed: u64, change: fn(&mut Faults)) -> Result<Seen, String> {
    let text = match catch_unwind(|| headwater_sim::run(seed, change)) {
        Ok(Ok(seen)) => return Ok(seen),
        Ok(Err(text)) => text,
        Err(_) => String::from("panics"),
    };
    Err(format!("HEADWATER_SIM_SEED={seed}: {text}"))
}

/// Seeds beyond the usual ones that have failed once.
const FAILED_ONCE: [u64; 10] =
    [20_232, 21_455, 23_546, 53_627, 56_156, 207_975, 305_146, 411_086, 413_638, 710_807];

/// Seeds that have failed once with sources that answer all that was asked for.
const FAILED_WHOLE: [u64; 11] =
    [369, 20_232, 21_455, 23_546, 53_627, 56_156, 207_975, 305_146, 411_086, 413_638, 710_807];

#[test]
fn seeds_that_failed_once_do_not_any_more() {
    // Then no read accepted what is older.
    let then = |faults: &mut Faults| faults.accepts = false;
    run(100_990, |faults| {
        (faults.slice_rows, faults.removals, faults.accepts) = (Some(2), false, false);
    })
    .unwrap();
    // A shard that went on, and had not looked at its clock; an answer to an earlier life's question.
    for seed in [1_898, 13_542] {
        run(seed, |_| {}).unwrap();
    }
    for seed in FAILED_WHOLE {
        run(seed, |faults| (faults.parts, faults.accepts) = (false, false)).unwrap();
    }
    for seed in FAILED_ONCE {
        run(seed, then).unwrap();
        run(seed, |faults| {
            (faults.slice_rows, faults.removals, faults.accepts) = (None, false, false);
        })
        .unwrap();
    }
}

#[test]
fn shards_answer_as_one() {
    let first = number("HEADWATER_SIM_FIRST").unwrap_or(0);
    answer_as_one(match number("HEADWATER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("HEADWATER_SIM_SEEDS").unwrap_or(750),
    });
}

#[test]
fn reads_that_accept_what_is_older_are_given_one_state_of_shards_that_are_not_heard() {
    let mut older = 0;
    for seed in 0..250 {
        let seen = run(seed, |faults| {
            (faults.accepts, faults.disks, faults.forgetful) = (true, true, false);
            (faults.lost, faults.twice, faults.early) = (40, 20, 20);
            (faults.slow, faults.moves, faults.slice_rows) = (0, 0, None);
        });
        older += seen.unwrap().get("answers that are older").copied().unwrap_or(0);
    }
    assert!(older >= 20, "there were {older}");
}

#[test]
fn shards_answer_as_one_where_joins_look_at_values() {
    let first = LENSED_FROM + number("HEADWATER_SIM_FIRST").unwrap_or(0);
    answer_as_one(first..first + number("HEADWATER_SIM_SEEDS").unwrap_or(500));
}

#[test]
fn shards_answer_as_one_where_joins_keep_some_outputs_of_each_group() {
    let first = KEPT_FROM + number("HEADWATER_SIM_FIRST").unwrap_or(0);
    answer_as_one(first..first + number("HEADWATER_SIM_SEEDS").unwrap_or(500));
}

#[test]
fn shards_answer_as_one_where_joins_count_values() {
    let first = TALLIED_FROM + number("HEADWATER_SIM_FIRST").unwrap_or(0);
    answer_as_one(first..first + number("HEADWATER_SIM_SEEDS").unwrap_or(500));
}

fn answer_as_one(seeds: Range<u64>) {
    run_all(seeds, |seed| run(seed, |_| {}), &HAPPENS, "HEADWATER_SIM_SHOW");
}
