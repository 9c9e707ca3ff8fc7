//! Bounded reads that move along a timeline: how much of the sources they read, and how much they materialize, as the engine
//! counts it.

use headwater_engine::{Engine, Expiry, RangeOptions, Settings};

const TIMELINE: &str = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

fn set(engine: &mut Engine, key: &str) {
    engine.set(key.as_bytes(), b"Hi", Expiry::Never).expect("a base key");
}

/// A user who follows so many.
fn follower(followees: u32) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("timeline", TIMELINE, false).expect("a join");
    for poster in 0..followees {
        set(&mut engine, &format!("s|ann|{poster:03}"));
    }
    engine
}

fn rows_read(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(name, _)| *name == "rows_read").expect("a counter").1
}

fn of_join(engine: &Engine, counter: &str) -> u64 {
    let report = engine.join_report("timeline").expect("it is installed");
    report.counters.iter().find(|(name, _)| *name == counter).expect("a counter").1
}

fn materialized(engine: &Engine) -> u64 {
    let tables = engine.tables();
    tables.iter().find(|table| table.name == b"t").expect("a table").keys
}

/// How many posts lie in a window.
fn window(engine: &mut Engine, from: u32, to: u32) -> u64 {
    let (first, last) = (format!("t|ann|{from:06}"), format!("t|ann|{to:06}"));
    let options = RangeOptions::default();
    engine.range(first.as_bytes(), last.as_bytes(), options, &mut |_, _| {}).expect("no source")
}

#[test]
fn windows_that_advance_with_time_read_no_sources_after_the_first() {
    let mut engine = follower(100);
    for time in 0..50 {
        set(&mut engine, &format!("p|{:03}|{time:06}", time % 100));
    }
    assert_eq!(window(&mut engine, 40, 50), 10);
    let before = rows_read(&engine);
    for now in 51..500 {
        set(&mut engine, &format!("p|{:03}|{:06}", now % 100, now - 1));
        // They overlap, touch, and leave gaps.
        let from = if now % 5 == 0 { now } else { now - 1 - now % 3 };
        assert_eq!(window(&mut engine, from, now + 1), u64::from(now - from.min(now)));
    }
    assert_eq!(rows_read(&engine) - before, 0);
    assert_eq!((of_join(&engine, "fills"), of_join(&engine, "status_ranges")), (1, 1));
    // A new subscription is applied by itself.
    set(&mut engine, "p|200|000480");
    set(&mut engine, "s|ann|200");
    assert_eq!(window(&mut engine, 470, 490), 21);
    assert!(rows_read(&engine) - before < 10);
}

/// 30 posters with 200 posts each.
fn long_past() -> Engine {
    let mut engine = follower(30);
    for time in 0..6000 {
        set(&mut engine, &format!("p|{:03}|{time:06}", time % 30));
    }
    engine
}

#[test]
fn windows_through_a_long_past_are_filled_in_ever_greater_parts() {
    let mut engine = long_past();
    for from in (0..6000).step_by(10) {
        assert_eq!(window(&mut engine, from, from + 10), 10);
    }
    let (fills, rows) = (of_join(&engine, "fills"), rows_read(&engine));
    assert!(fills <= 40, "600 windows are filled in {fills} parts");
    assert!(rows <= 4 * 6000, "{rows} rows are read for 6 000");
    assert_eq!(of_join(&engine, "status_ranges"), 1);
}

#[test]
fn a_window_of_a_long_past_stays_small() {
    let mut engine = long_past();
    assert_eq!(window(&mut engine, 1000, 1010), 10);
    assert!(materialized(&engine) <= 10 + 64, "{} posts", materialized(&engine));
    // Windows far from one another are ranges of their own, and what is between them is not computed.
    assert_eq!(window(&mut engine, 3000, 3010), 10);
    assert_eq!(window(&mut engine, 5000, 5010), 10);
    assert_eq!(of_join(&engine, "status_ranges"), 3);
    assert!(materialized(&engine) <= 3 * (10 + 128), "{} posts", materialized(&engine));
    // Each of them shows what is written in it, and what is read of it is current.
    for (at, from) in [1000, 3000, 5000].into_iter().enumerate() {
        set(&mut engine, &format!("p|{at:03}|{from:06}x"));
        assert_eq!(window(&mut engine, from, from + 10), 11);
    }
}

#[test]
fn windows_that_go_back_extend_the_range_before_which_they_lie() {
    let mut engine = long_past();
    for from in (5000..6000).rev().step_by(10) {
        window(&mut engine, from - 9, from + 1);
    }
    assert_eq!(window(&mut engine, 5000, 6000), 1000);
    assert_eq!(of_join(&engine, "status_ranges"), 1);
    assert_eq!(of_join(&engine, "updater_targets"), 31);
}

#[test]
fn what_a_join_saves_and_what_it_costs_is_counted() {
    let mut engine = follower(2);
    set(&mut engine, "p|000|000001");
    assert_eq!(window(&mut engine, 0, 100), 1);
    let counted = |engine: &Engine| ["hits", "updates", "outputs"].map(|it| of_join(engine, it));
    assert_eq!(counted(&engine), [0, 0, 1]);
    for _ in 0..5 {
        assert_eq!(window(&mut engine, 0, 100), 1);
    }
    assert_eq!(counted(&engine), [5, 0, 1]);
    set(&mut engine, "p|001|000002");
    set(&mut engine, "p|000|000001");
    // Nobody follows this one.
    set(&mut engine, "p|777|000003");
    assert_eq!(window(&mut engine, 0, 100), 2);
    assert_eq!(counted(&engine), [6, 2, 2]);
    assert_eq!(of_join(&engine, "fills"), 1);
}
