//! Seeds of nodes that contend for a shard: `HEADWATER_LOG_SEEDS=100000` runs more, `HEADWATER_LOG_FIRST=3000` others,
//! `HEADWATER_LOG_SEED=12` that one alone, and `HEADWATER_LOG_SHOW=1` shows how often what happened.

use headwater_sim::replicated::{LogCut, LogFaults, run};
use many::{number, run_all};
use std::collections::BTreeMap;
use std::panic::{catch_unwind, set_hook, take_hook};

mod many;

/// What happens in so many seeds that one of them at least must show it.
const HAPPENS: [&str; 16] = [
    "answers",
    "appends refused in silence",
    "bucket without a leader",
    "drains undone",
    "late appends behind a claim",
    "log without a leader",
    "nodes cut off",
    "owners that give up, being drained",
    "owners that stop",
    "pauses",
    "reads answered in silence",
    "requests kept back",
    "restarts",
    "snapshots loaded",
    "snapshots ordered",
    "steps with two who believe to own",
];

fn simulate(seed: u64, change: fn(&mut LogFaults)) -> Result<BTreeMap<&'static str, u64>, String> {
    let text = match catch_unwind(|| run(seed, change)) {
        Ok(Ok(seen)) => return Ok(seen),
        Ok(Err(text)) => text,
        Err(_) => String::from("panics"),
    };
    Err(format!("HEADWATER_LOG_SEED={seed}: {text}"))
}

#[test]
fn nothing_acknowledged_is_lost() {
    let first = number("HEADWATER_LOG_FIRST").unwrap_or(0);
    let seeds = match number("HEADWATER_LOG_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("HEADWATER_LOG_SEEDS").unwrap_or(3000),
    };
    run_all(seeds, |seed| simulate(seed, |_| {}), &HAPPENS, "HEADWATER_LOG_SHOW");
}

/// In how many of so many seeds something left out is noticed, and what is said then.
fn found(cut: LogCut, change: fn(&mut LogFaults)) -> Vec<String> {
    let simulate = |seed| {
        let run = catch_unwind(|| {
            run(seed, |faults| {
                change(faults);
                faults.cut = Some(cut);
            })
        });
        run.unwrap_or_else(|_| Err(String::from("panics"))).err()
    };
    (0..CUT_SEEDS).filter_map(simulate).collect()
}

/// What an owner has under way is kept back, and others claim meanwhile.
fn trap(faults: &mut LogFaults) {
    *faults = LogFaults { traps: 100, stalls: 1, ..LogFaults::default() };
}

/// Seeds for each of what is left out.
const CUT_SEEDS: u64 = 200;

#[test]
fn what_is_left_out_is_found() {
    set_hook(Box::new(|_| {}));
    let all = [
        (LogCut::Epochs, "in the end", found(LogCut::Epochs, trap)),
        (LogCut::Lease, "behind epoch", found(LogCut::Lease, |faults| faults.pauses = 4)),
        (
            LogCut::Prefix,
            "in the end",
            found(LogCut::Prefix, |faults| {
                *faults = LogFaults { traps: 60, late: 400, ..LogFaults::default() };
            }),
        ),
        (
            LogCut::Naming,
            "P1",
            found(LogCut::Naming, |faults| {
                *faults = LogFaults { snapshots: 5000, ..LogFaults::default() };
            }),
        ),
        (
            LogCut::Drained,
            "D2",
            found(LogCut::Drained, |faults| {
                *faults = LogFaults { drains: 20, ..LogFaults::default() };
            }),
        ),
    ];
    drop(take_hook());
    for (cut, says, texts) in all {
        let rightly = texts.iter().filter(|text| text.contains(says)).count();
        assert!(rightly >= 3, "{cut:?}: {rightly} of {CUT_SEEDS} seeds say so: {texts:#?}");
    }
}
