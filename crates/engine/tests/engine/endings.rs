//! What is done as a whole ends at its deadline, if it has changed nothing until then.

use headwater_base::KeyRange;
use headwater_engine::{
    Deadline, Engine, EngineError, Expiry, RangeOptions, Settings, Stop, Value,
};
use std::cell::Cell;

thread_local! {
    /// How often the clock was looked at: the time is that.
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

fn clock() -> u64 {
    LOOKS.set(LOOKS.get() + 1);
    LOOKS.get()
}

/// A deadline after so many looks at the clock.
fn after(looks: u64) -> Option<Deadline> {
    Some(Deadline { clock, at: LOOKS.get() + looks, milliseconds: 7 })
}

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a base key");
}

fn read(engine: &mut Engine, prefix: &str) -> Result<u64, Stop> {
    let last = headwater_base::prefix_end(prefix.as_bytes());
    let mut each = |_: &[u8], _: Value<'_>| {};
    let read = engine.range(prefix.as_bytes(), &last, RangeOptions::default(), &mut each);
    engine.end_slice();
    read
}

fn rows_read(engine: &Engine) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(counter, _)| *counter == "rows_read").expect("a counter").1
}

const TOO_LONG: Result<u64, Stop> = Err(Stop::Failed(EngineError::TookTooLong { milliseconds: 7 }));

/// All pairs of 300 keys, and what other joins make of them.
fn engine() -> Engine {
    let mut engine = Engine::new(Settings::default());
    for (name, join) in [
        ("pairs", "c|<x>|<y> = check a|<x> copy b|<y>"),
        ("pulled", "p|<x>|<y> = pull check a|<x> copy b|<y>"),
        ("counts", "n|<x> = count c|<x>|<y>"),
    ] {
        engine.join_add(name, join, false).expect("a join");
    }
    for number in 0..300 {
        set(&mut engine, &format!("a|{number:03}"), "");
        set(&mut engine, &format!("b|{number:03}"), "text");
    }
    engine
}

#[test]
fn computing_ends_at_the_deadline_and_leaves_nothing_behind() {
    for prefix in ["c|", "p|", "n|", "c|007|", "n|008"] {
        let mut engine = engine();
        let before = rows_read(&engine);
        engine.end_by(after(1));
        assert_eq!(read(&mut engine, prefix), TOO_LONG, "{prefix}: it is late already");
        if prefix.len() == 2 {
            engine.end_by(after(20));
            assert_eq!(read(&mut engine, prefix), TOO_LONG, "{prefix}");
        }
        let rows = rows_read(&engine) - before;
        assert!(rows < 20_000, "{prefix}: {rows} of 90 000 rows were read");
        engine.check_invariants();
        // The next one has no deadline, or one that it keeps.
        engine.end_by(after(1_000_000));
        let found = read(&mut engine, prefix).expect("it is in time");
        assert_eq!(found, if prefix.len() > 2 { 1 } else { 300 }.max(found), "{prefix}");
        assert_eq!(engine.verify(&KeyRange::all(), 10), Ok(Vec::new()));
    }
}

#[test]
fn scans_and_lists_end_at_the_deadline() {
    let mut engine = Engine::new(Settings::default());
    for number in 0..100_000 {
        set(&mut engine, &format!("k|{number:05}"), "v");
    }
    for prefix in ["k|", ""] {
        let mut seen = 0;
        engine.end_by(after(10));
        let read =
            engine.range(prefix.as_bytes(), b"", RangeOptions::default(), &mut |_, _| seen += 1);
        engine.end_slice();
        assert_eq!(read, TOO_LONG);
        assert!(seen < 5000, "{seen} keys were read");
    }
    let mut seen = 0;
    engine.end_by(after(3));
    let listed = engine.list_keys(usize::MAX, &mut |_| {
        seen += 1;
        false
    });
    engine.end_slice();
    assert_eq!(listed, TOO_LONG.map(|_| None));
    assert!(seen < 80_000, "{seen} keys were listed");
}

#[test]
fn a_write_is_ended_by_nothing_once_it_has_changed_something() {
    let mut engine = engine();
    assert_eq!(read(&mut engine, "c|"), Ok(90_000));
    assert_eq!(read(&mut engine, "n|"), Ok(300));
    engine.end_by(after(0));
    set(&mut engine, "b|new", "more");
    engine.end_slice();
    engine.end_by(after(0));
    assert_eq!(engine.remove(b"a|000"), Ok(true));
    engine.end_slice();
    engine.end_by(after(0));
    assert_eq!(engine.remove_range(b"b|1", b"b|2"), Ok(100));
    engine.end_slice();
    engine.check_invariants();
    assert_eq!(read(&mut engine, "c|"), Ok(299 * 201));
    assert_eq!(engine.verify(&KeyRange::all(), 10), Ok(Vec::new()));
}
