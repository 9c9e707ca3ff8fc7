//! `TABLE.SET … BOUNDARY` of a table that has very many keys works in slices.

use headwater_base::KeyRange;
use headwater_engine::{Engine, Expiry, RangeOptions, Settings, Stop, TableOptions, Value};

/// Rows of a slice.
const ROWS: usize = 100;
const USERS: usize = 2000;

fn set(engine: &mut Engine, key: &str) {
    engine.set(key.as_bytes(), b"text", Expiry::Never).expect("a base key");
}

fn count(engine: &mut Engine, prefix: &str) -> u64 {
    let last = headwater_base::prefix_end(prefix.as_bytes());
    let mut each = |_: &[u8], _: Value<'_>| {};
    engine.range(prefix.as_bytes(), &last, RangeOptions::default(), &mut each).expect("no source")
}

/// Sets a boundary in slices: how many there were.
fn regroup(engine: &mut Engine, name: &str, boundary: usize) -> usize {
    let options = TableOptions { boundary: Some(boundary), ..TableOptions::default() };
    for slices in 1..100_000 {
        engine.begin_slice();
        let ahead = engine.table_set_ahead(name.as_bytes(), &options);
        if ahead.is_ok() {
            engine.table_set(name.as_bytes(), &options).expect("a table");
            engine.end_slice();
            return slices;
        }
        engine.end_slice();
        let Err(Stop::Wait(ticket)) = ahead else { panic!("{ahead:?}") };
        engine.forget_later(ticket);
        engine.resume(ticket);
    }
    panic!("it does not end");
}

fn go_on(engine: &mut Engine) -> usize {
    let mut turns = 0;
    while engine.goes_on() {
        engine.go_on();
        turns += 1;
    }
    turns
}

#[test]
fn what_joins_give_is_dropped_in_slices_and_base_keys_are_grouped_in_slices() {
    let mut engine = Engine::new(Settings::default());
    engine.set_slice(Some(ROWS));
    engine.join_add("t", "t|<u>|<x>|<p> = check s|<u>|<p> copy p|<p>|<x>", false).expect("a join");
    for number in 0..USERS {
        set(&mut engine, &format!("s|u{number:04}|ann"));
    }
    for number in 0..5 {
        set(&mut engine, &format!("p|ann|{number}"));
        set(&mut engine, &format!("t|u0000|base{number}"));
    }
    for number in 0..USERS {
        assert_eq!(
            count(&mut engine, &format!("t|u{number:04}|")),
            if number == 0 { 10 } else { 5 }
        );
    }
    go_on(&mut engine);
    let materialized = engine.stats().status_ranges;
    assert!(materialized >= USERS as u64);
    let slices = regroup(&mut engine, "t", 2);
    // Each range counts for what it has, and for itself.
    assert!(slices >= USERS / ROWS, "{slices} slices");
    go_on(&mut engine);
    engine.check_invariants();
    assert_eq!(count(&mut engine, "t|"), 5 * USERS as u64 + 5);
    assert_eq!(engine.verify(&KeyRange::all(), 10), Ok(Vec::new()));
    // What is refused, or says what is so already, drops nothing.
    go_on(&mut engine);
    let before = engine.stats().status_ranges;
    assert_eq!(regroup(&mut engine, "t", 2), 1);
    assert_eq!(engine.stats().status_ranges, before);

    // Base keys without a boundary.
    for number in 0..USERS {
        set(&mut engine, &format!("b|g{number:04}|x"));
    }
    assert_eq!(regroup(&mut engine, "b", 1), 1);
    let groups = |engine: &Engine| engine.table(b"b").expect("a table").groups as usize;
    assert!(groups(&engine) < USERS, "they are yet to be grouped");
    assert_eq!(count(&mut engine, "b|"), USERS as u64);
    let turns = go_on(&mut engine);
    assert!(turns >= USERS / ROWS && groups(&engine) == USERS, "{turns} turns");
    assert_eq!(count(&mut engine, "b|g0007|"), 1);
    engine.check_invariants();
}
