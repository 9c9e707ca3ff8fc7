//! Keys and range ends beyond the longest key: nothing is lost, nothing crashes.

use headwater_base::KeyRange;
use headwater_engine::{Engine, Expiry, RangeOptions, Settings, TableOptions};

fn keys(engine: &mut Engine, first: &[u8], last: &[u8]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let read = engine.range(first, last, RangeOptions::default(), &mut |key, _| {
        keys.push(key.to_vec());
    });
    assert_eq!(read, Ok(keys.len() as u64));
    keys
}

fn engine(join: &str) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("j", join, false).expect("a join");
    for table in [&b"o"[..], b"s", b"u"] {
        let options = TableOptions { boundary: Some(1), ..TableOptions::default() };
        engine.table_set(table, &options).expect("a boundary");
    }
    engine
}

#[test]
fn outputs_longer_than_any_key_do_not_exist() {
    // Sixteen copies of a long slot would be a key of 16 000 bytes.
    let output = "<a>|".repeat(16);
    let mut engine = engine(&format!("o|{output}<b> = copy s|<a>|<b>"));
    for fill in [b'x', b'y', b'z'] {
        let long = [b"s|", &[fill; 1000][..], b"|1"].concat();
        engine.set(&long, b"v", Expiry::Never).expect("a key within the limit");
    }
    engine.set(b"s|k|1", b"v", Expiry::Never).expect("a short key");
    let short = [&b"o|"[..], &b"k|".repeat(16), b"1"].concat();
    assert_eq!(keys(&mut engine, b"o|", b"o}"), core::slice::from_ref(&short));
    // Maintenance leaves them out as well.
    for fill in [b'p', b'q'] {
        let long = [b"s|", &[fill; 1000][..], b"|2"].concat();
        engine.set(&long, b"v", Expiry::Never).expect("a key within the limit");
    }
    assert_eq!(keys(&mut engine, b"o|", b"o}"), [short]);
    assert_eq!(engine.verify(&KeyRange::all(), 10), Ok(Vec::new()));
    engine.check_invariants();
}

#[test]
fn range_ends_may_be_of_any_length() {
    let mut engine = engine("o|<a>|<b> = check u|<a> copy s|<a>|<b>");
    engine.set(b"u|k", b"", Expiry::Never).expect("a key");
    engine.set(b"s|k|1", b"v", Expiry::Never).expect("a key");
    for length in [1023, 1024, 1025, 1026, 70_000, 3_000_000] {
        let long = |head: &[u8], tail: &[u8]| [head, &vec![b'k'; length], tail].concat();
        let none: Vec<Vec<u8>> = Vec::new();
        assert_eq!(keys(&mut engine, &long(b"o|", b"|"), &long(b"o|", b"}")), none);
        assert_eq!(keys(&mut engine, b"o|k", &long(b"o|~", b"|")), [b"o|k|1"]);
        // A `|` sorts after letters, so the short key lies behind the long end.
        let all = [&b"o|k|1"[..], b"s|k|1", b"u|k"];
        assert_eq!(keys(&mut engine, &long(b"o|", b"|"), b""), all);
        assert_eq!(engine.get(&long(b"o|", b"|1")).map(|value| value.is_some()), Ok(false));
        engine.check_invariants();
    }
}

/// Where values make keys too long, an explanation names whose.
#[test]
fn keys_whose_outputs_are_too_long_are_named() {
    let mut engine = engine("o|<id>|<x> = index v|<id> as <x>");
    engine.set(b"v|1", "x".repeat(1024).as_bytes(), Expiry::Never).expect("a key");
    engine.set(b"v|2", "x".repeat(1019).as_bytes(), Expiry::Never).expect("a key");
    engine.set(b"v|3", "x".repeat(1025).as_bytes(), Expiry::Never).expect("a key");
    assert_eq!(keys(&mut engine, b"o|", b"o}").len(), 1);
    let lines = engine.explain(&KeyRange::new(b"o|", b"o}"));
    let text = lines.iter().find(|line| line.title == "source").expect("a source").text.clone();
    assert!(text.contains("3 matching keys stored, of which 1 count"), "{text}");
    assert!(text.contains("stand for at v|3;"), "{text}");
    assert!(text.ends_with("would have more than 1024 bytes at v|1"), "{text}");
}

/// A change of a value that changes nothing of what a join uses of it reaches no output.
#[test]
fn what_a_join_does_not_use_of_a_value_updates_nothing() {
    for (join, output) in [
        ("o|<c> = index v|<id> as json(.c) <c>", "o|a"),
        ("o|<c> = count v|<id> as json(.c) <c>", "o|a"),
        ("o|<id> = count v|<id>|<n> where json(.c) = 'a'", "o|1"),
    ] {
        let mut engine = engine(join);
        let key = if join.contains("<n>") { &b"v|1|1"[..] } else { b"v|1" };
        let updates = |engine: &Engine| {
            let stats = engine.stats();
            stats.counters.iter().find(|(name, _)| *name == "updates_applied").expect("one").1
        };
        engine.set(key, br#"{"c":"a","n":1}"#, Expiry::Never).expect("a key");
        assert_eq!(keys(&mut engine, b"o|", b"o}"), [output.as_bytes().to_vec()]);
        let before = updates(&engine);
        engine.set(key, br#"{"c":"a","n":2}"#, Expiry::Never).expect("a key");
        assert_eq!(updates(&engine), before, "{join}");
        engine.set(key, br#"{"c":"b","n":2}"#, Expiry::Never).expect("a key");
        assert!(updates(&engine) > before, "{join}");
        assert_ne!(keys(&mut engine, b"o|", b"o}"), [output.as_bytes().to_vec()], "{join}");
        engine.check_invariants();
    }
}

/// Outputs whose keys would be too long do not exist, and are counted, whether a read or a write comes to them.
#[test]
fn outputs_that_are_too_long_are_counted() {
    let counted = |engine: &Engine| {
        let stats = engine.stats();
        stats.counters.iter().find(|(name, _)| *name == "outputs_too_long").expect("a counter").1
    };
    for conditions in ["", " where value = 'v'"] {
        let mut engine = engine(&format!("o|<a>|<b> = check u|<a> copy s|<b>{conditions}"));
        let (head, tail) = ("a".repeat(600), "b".repeat(600));
        let source = |tail: &str| format!("s|{tail}").into_bytes();
        engine.set(format!("u|{head}").as_bytes(), b"", Expiry::Never).expect("a key");
        engine.set(&source(&tail), b"v", Expiry::Never).expect("a key");
        engine.set(&source("b"), b"v", Expiry::Never).expect("a key");
        assert_eq!(keys(&mut engine, b"o|", b"o}"), [format!("o|{head}|b").into_bytes()]);
        let once = counted(&engine);
        assert!(once > 0);
        engine.set(&source(&"c".repeat(600)), b"v", Expiry::Never).expect("a key");
        assert_eq!(keys(&mut engine, b"o|", b"o}").len(), 1);
        assert_eq!(counted(&engine), once + 1);
        engine.set(&source("c"), b"v", Expiry::Never).expect("a key");
        assert_eq!(keys(&mut engine, b"o|", b"o}").len(), 2);
        assert_eq!(counted(&engine), once + 1);
        engine.check_invariants();
    }
}
