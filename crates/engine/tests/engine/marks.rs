//! Flags and versions of keys, for clients that keep or compare them.

use headwater_base::Millis;
use headwater_engine::{Engine, Expiry, Policy, Settings};

/// A key whose bytes stand out among those of indexes.
const LONG: &[u8] = &[b'k'; 1000];

fn marked(flags: u32) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.set_flagged(b"k", b"v", Expiry::Never, flags).unwrap();
    engine
}

/// Bytes of indexes where `LONG` was set with these flags, and this was done then.
fn index_bytes(flags: u32, then: impl FnOnce(&mut Engine)) -> u64 {
    let mut engine = Engine::new(Settings::default());
    engine.set_flagged(LONG, b"v", Expiry::Never, flags).unwrap();
    assert_eq!(engine.mark(LONG).flags, flags);
    then(&mut engine);
    engine.check_invariants();
    engine.stats().index_bytes
}

#[test]
fn keys_without_marks_cost_nothing() {
    let without = index_bytes(0, |_| {});
    assert!(index_bytes(7, |_| {}) > without + LONG.len() as u64);
    let written = index_bytes(7, |engine| engine.set(LONG, b"w", Expiry::Never).unwrap());
    assert!(written < without + LONG.len() as u64);
}

#[test]
fn marks_go_with_their_keys() {
    let ends: [fn(&mut Engine); 6] = [
        |engine| assert!(engine.remove(LONG).unwrap()),
        |engine| assert_eq!(engine.remove_range(b"", b"").unwrap(), 1),
        |engine| {
            engine.set_expiry(LONG, Some(Millis(5))).unwrap();
            engine.advance(Millis(6));
        },
        |engine| engine.set(LONG, b"x", Expiry::At(Millis(0))).unwrap(),
        Engine::flush,
        |engine| {
            engine.set_eviction_policy(Policy::named("allkeys-lru").unwrap());
            assert!(engine.evict_one());
        },
    ];
    for end in ends {
        assert!(index_bytes(7, end) < index_bytes(0, end) + LONG.len() as u64);
    }
}

#[test]
fn every_write_gives_another_version() {
    let mut engine = marked(0);
    let mut last = 0;
    let writes: [fn(&mut Engine); 5] = [
        |engine| engine.set(b"k", b"v", Expiry::Never).unwrap(),
        |engine| engine.set(b"k", b"longer than an inline value", Expiry::Keep).unwrap(),
        |engine| assert!(engine.append(b"k", b"tail").is_ok()),
        |engine| engine.flush(),
        |engine| engine.set_version(b"k", None),
    ];
    for write in writes {
        write(&mut engine);
        if engine.get(b"k").unwrap().is_none() {
            engine.set(b"k", b"v", Expiry::Never).unwrap();
        }
        let version = engine.version(b"k");
        assert!(version > last);
        assert_eq!(engine.version(b"k"), version, "as long as nobody writes");
        last = version;
    }
    engine.set_version(b"k", Some(last + 100));
    assert_eq!(engine.version(b"k"), last + 100);
    engine.set(b"k", b"v", Expiry::Never).unwrap();
    assert_eq!(engine.version(b"k"), last + 101);
}

#[test]
fn what_changes_a_value_in_part_keeps_its_flags() {
    let mut engine = marked(7);
    engine.append(b"k", b"w").unwrap();
    engine.set(b"k", b"5", Expiry::Keep).unwrap();
    engine.set_expiry(b"k", Some(Millis(1000))).unwrap();
    assert_eq!(engine.mark(b"k").flags, 7);
}

#[test]
fn derived_keys_have_versions_that_nobody_can_write_over() {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("j", "b|<x> = copy a|<x>", false).unwrap();
    engine.set_flagged(b"a|1", b"v", Expiry::Never, 7).unwrap();
    assert!(engine.get(b"b|1").unwrap().is_some());
    assert_eq!(engine.mark(b"b|1").flags, 0);
    let version = engine.version(b"b|1");
    assert_eq!(engine.version(b"b|1"), version, "as long as the value is the same");
    assert!(version > engine.version(b"a|1"), "it is no base key's");
    engine.set(b"a|1", b"w", Expiry::Never).unwrap();
    assert_ne!(engine.version(b"b|1"), version);
    engine.set_mark(b"b|1", |mark| mark.stale = true);
    assert!(!engine.mark(b"b|1").stale);
    engine.check_invariants();
}
