//! Explanations tell as much as they can in a few milliseconds, whatever they are about.

use headwater_base::KeyRange;
use headwater_engine::{Engine, Expiry, ExplainLine, Settings};

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a write");
}

/// The numbers before `what` in all lines.
fn numbers(lines: &[ExplainLine], what: &str) -> Vec<u64> {
    let before = lines
        .iter()
        .filter_map(|line| line.text.split(what).next().filter(|it| it.len() < line.text.len()));
    before.filter_map(|text| text.rsplit(' ').next()?.parse().ok()).collect()
}

#[test]
fn one_explanation_looks_at_so_many_keys_however_many_joins_it_is_about() {
    let mut engine = Engine::new(Settings::default());
    for number in 0..300 {
        let text = format!("t|{number:03}|<a>|<b> = copy s|<a>|<b>");
        engine.join_add(&format!("j{number}"), &text, false).expect("a join");
    }
    for number in 0..1000 {
        set(&mut engine, &format!("s|{number:04}|x"), "value");
    }
    let lines = engine.explain(&KeyRange::prefix(b"t|"));
    let counted = numbers(&lines, " matching keys stored");
    assert_eq!(counted.len(), 200, "so many joins are told of");
    assert_eq!(counted[0], 1000, "the first ones are told of as they are");
    assert!(counted.iter().sum::<u64>() <= 40_000, "{counted:?}");
    assert!(lines.iter().any(|line| line.text.starts_with("and up to 100 more")), "{lines:?}");
    // One of them alone is told of as a whole.
    let lines = engine.explain(&KeyRange::prefix(b"t|299|"));
    assert_eq!(numbers(&lines, " matching keys stored"), [1000]);
}

#[test]
fn values_that_are_read_count_by_their_bytes() {
    let mut engine = Engine::new(Settings::default());
    let text = "t|<a> = copy s|<a> where json(.read) = false";
    engine.join_add("j", text, false).expect("a join");
    let long = format!("{{\"read\":false,\"text\":\"{}\"}}", "x".repeat(64_000));
    for number in 0..200 {
        set(&mut engine, &format!("s|{number:03}"), &long);
    }
    let lines = engine.explain(&KeyRange::prefix(b"t|"));
    let counted = numbers(&lines, " matching keys stored");
    assert!(counted[0] > 5 && counted[0] < 50, "{counted:?}");
}

#[test]
fn an_explanation_tells_of_so_many_tables() {
    let mut engine = Engine::new(Settings::default());
    for number in 0..500 {
        set(&mut engine, &format!("s{number:03}|x"), "value");
    }
    let lines = engine.explain(&KeyRange::new(b"s", b"t"));
    let tables: Vec<_> = lines.iter().filter(|line| line.title == "table").collect();
    assert_eq!(tables.len(), 201);
    assert!(tables[200].text.starts_with("and more"), "{:?}", tables[200]);
}
