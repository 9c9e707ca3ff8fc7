//! How long the maintenance of joins takes, as the engine estimates it by a stopwatch that counts how often it is looked at.

use headwater_engine::{Engine, Expiry, RangeOptions, Settings};
use std::cell::Cell;

/// What passes from one look at the stopwatch to the next, in nanoseconds.
const TICK: u64 = 100_000;
const TICK_MICROS: u64 = TICK / 1000;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

fn stopwatch() -> u64 {
    LOOKS.with(|looks| {
        looks.set(looks.get() + 1);
        looks.get() * TICK
    })
}

fn looks() -> u64 {
    LOOKS.with(Cell::get)
}

fn set(engine: &mut Engine, key: &str) {
    engine.set(key.as_bytes(), b"Hi", Expiry::Never).expect("a base key");
}

fn count(engine: &mut Engine, prefix: &str) -> u64 {
    let last = format!("{prefix}~");
    let options = RangeOptions::default();
    engine.range(prefix.as_bytes(), last.as_bytes(), options, &mut |_, _| {}).expect("no source")
}

fn micros(engine: &Engine, join: &str) -> u64 {
    let report = engine.join_report(join).expect("it is installed");
    let figure = report.counters.iter().find(|(name, _)| *name == "maintenance_usec");
    figure.expect("a counter").1
}

/// A timeline of one user, who follows one; so many posts come after it was read.
fn posted(posts: u64, stopwatch: Option<fn() -> u64>) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.set_stopwatch(stopwatch);
    let spec = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    engine.join_add("timeline", spec, false).expect("a join");
    set(&mut engine, "s|ann|bob");
    assert_eq!(count(&mut engine, "t|ann|"), 0);
    for post in 0..posts {
        set(&mut engine, &format!("p|bob|{post:06}"));
    }
    engine
}

#[test]
fn few_steps_are_timed_each_and_many_are_estimated() {
    // Each step that is timed takes one tick, so what all of them take is known.
    assert_eq!(micros(&posted(1, Some(stopwatch)), "timeline"), TICK_MICROS);
    assert_eq!(micros(&posted(50, Some(stopwatch)), "timeline"), 50 * TICK_MICROS);
    let (before, posts) = (looks(), 50_000);
    let told = micros(&posted(posts, Some(stopwatch)), "timeline");
    let error = told.abs_diff(posts * TICK_MICROS);
    assert!(error < posts * TICK_MICROS / 10, "{told}");
    assert!((looks() - before) * 25 < posts, "{} looks", looks() - before);
}

#[test]
fn without_a_stopwatch_everything_else_is_the_same() {
    let (with, without) = (posted(5000, Some(stopwatch)), posted(5000, None));
    assert_eq!(micros(&without, "timeline"), 0);
    let [with, without] = [&with, &without].map(|engine| {
        let mut report = engine.join_report("timeline").expect("it is installed");
        report.counters.retain(|(name, _)| *name != "maintenance_usec");
        (report, engine.stats())
    });
    assert_eq!(with, without);
}

#[test]
fn a_step_with_many_targets_is_timed_each_time_and_counts_once() {
    let mut engine = Engine::new(Settings::default());
    let spec = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    engine.join_add("timeline", spec, false).expect("a join");
    for user in 0..300 {
        set(&mut engine, &format!("s|{user:03}|bob"));
        assert_eq!(count(&mut engine, &format!("t|{user:03}|")), 0);
    }
    engine.reset_counters();
    engine.set_stopwatch(Some(stopwatch));
    for post in 0..500 {
        set(&mut engine, &format!("p|bob|{post:06}"));
    }
    assert_eq!(micros(&engine, "timeline"), 500 * TICK_MICROS);
    engine.reset_counters();
    assert_eq!(micros(&engine, "timeline"), 0);
}

#[test]
fn what_a_step_takes_within_another_counts_once() {
    let mut engine = Engine::new(Settings::default());
    for (name, spec) in [
        ("timeline", "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"),
        (
            "circle",
            "u|<club>|<user>|<time>|<poster> = check q|<club>|<user> copy t|<user>|<time>|<poster>",
        ),
    ] {
        engine.join_add(name, spec, false).expect("a join");
    }
    for key in ["p|bob|01", "p|eve|02", "s|ann|bob", "s|liz|bob", "q|go|ann"] {
        set(&mut engine, key);
    }
    assert_eq!((count(&mut engine, "u|go|"), count(&mut engine, "t|liz|")), (1, 1));
    // Both are noted, and what the second needs has the first to be applied.
    set(&mut engine, "s|liz|eve");
    set(&mut engine, "q|go|liz");
    engine.set_stopwatch(Some(stopwatch));
    let before = looks();
    assert_eq!(count(&mut engine, "u|go|"), 3);
    let (timeline, circle) = (micros(&engine, "timeline"), micros(&engine, "circle"));
    assert!(timeline > 0 && circle > 0, "{timeline} {circle}");
    // From the first look to the last one: no more has passed, whoever it is counted for.
    assert_eq!(timeline + circle, (looks() - before - 1) * TICK_MICROS);
}
