//! Answers of sources that are taken in slices: what comes between, and what ends them.

use headwater_base::source::Attributes;
use headwater_base::{KeyRange, Placement, Shard};
use headwater_engine::{
    Change, Effect, Engine, FetchId, Loaded, Pair, Position, RangeOptions, Settings, Stop,
    TableOptions, Ticket,
};

const ROWS: u32 = 10;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn key(number: u32) -> Vec<u8> {
    format!("p|{number:04}").into_bytes()
}

fn all() -> KeyRange {
    KeyRange::prefix(b"p|")
}

/// What is in the table, or who waits for it.
fn read(engine: &mut Engine) -> Result<Pairs, Ticket> {
    let KeyRange { first, last } = all();
    let mut pairs = Vec::new();
    let done = engine.range(&first, &last, RangeOptions::default(), &mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
    });
    match done {
        Ok(_) => Ok(pairs),
        Err(Stop::Wait(ticket)) => Err(ticket),
        Err(other) => panic!("{other:?}"),
    }
}

/// An engine that works in slices of three rows, with a read that waits for all of a table: the read's ticket, and the load.
fn reading() -> (Engine, Ticket, FetchId) {
    let mut engine = Engine::new(Settings::default());
    engine.set_slice(Some(3));
    let options = TableOptions { source: Some("db".to_owned()), ..TableOptions::default() };
    engine.table_set(b"p", &options).unwrap();
    let ticket = read(&mut engine).unwrap_err();
    let effects = engine.take_effects();
    let [Effect::Load { fetch, ref range, .. }] = effects[..] else { panic!("{effects:?}") };
    assert_eq!(*range, all());
    (engine, ticket, fetch)
}

fn answer() -> Loaded {
    let pair = |number| Pair {
        key: key(number),
        value: b"loaded".to_vec(),
        attributes: Attributes::default(),
    };
    Loaded { position: Position(5), pairs: (0..ROWS).map(pair).collect() }
}

fn change(engine: &mut Engine, position: u64, number: u32, value: Option<&str>) {
    let value = value.map(|text| text.as_bytes().to_vec());
    engine.changed("db", Position(position), &[Change { key: key(number), value }]);
}

/// Lets it go on until it has nothing to do; how many turns that takes.
fn go_on(engine: &mut Engine) -> usize {
    let mut turns = 0;
    while engine.goes_on() {
        engine.go_on();
        engine.check_invariants();
        turns += 1;
    }
    turns
}

#[test]
fn a_load_is_taken_in_slices_and_changes_come_behind_its_rows() {
    let (mut engine, ticket, fetch) = reading();
    engine.loaded(fetch, Ok(answer()));
    assert_eq!(engine.key_count(), 3);
    assert_eq!(engine.take_effects(), [], "the reader waits until all of it is there");
    // Changes of a row that was taken in, of rows that come in later slices, and of one that the answer does not have.
    change(&mut engine, 6, 1, Some("changed"));
    change(&mut engine, 7, 7, Some("changed"));
    change(&mut engine, 8, 8, None);
    change(&mut engine, 9, 99, Some("new"));
    let first = engine.get(&key(1)).expect("it is there").map(|value| value.to_vec());
    assert_eq!(first.as_deref(), Some(&b"changed"[..]));
    assert_eq!(go_on(&mut engine), 3);
    assert_eq!(engine.take_effects(), [Effect::Wake(ticket)]);
    let pairs = read(&mut engine).unwrap();
    let value =
        |number| pairs.iter().find(|(at, _)| *at == key(number)).map(|(_, value)| &value[..]);
    assert_eq!(pairs.len(), 10);
    assert_eq!(
        (value(1), value(7), value(8)),
        (Some(&b"changed"[..]), Some(&b"changed"[..]), None)
    );
    assert_eq!((value(2), value(99)), (Some(&b"loaded"[..]), Some(&b"new"[..])));
}

#[test]
fn what_is_reset_between_slices_is_asked_for_again() {
    let (mut engine, ticket, fetch) = reading();
    engine.loaded(fetch, Ok(answer()));
    engine.source_reset("db", &all());
    let effects = engine.take_effects();
    let (unfollowed, woken): (Vec<_>, Vec<_>) =
        effects.into_iter().partition(|effect| matches!(effect, Effect::Unfollow { .. }));
    assert_eq!(unfollowed.len(), 2, "what was taken, and what was left");
    assert_eq!(woken, [Effect::Wake(ticket)]);
    go_on(&mut engine);
    assert_eq!(engine.key_count(), 0);
    assert!(read(&mut engine).is_err());
    let effects = engine.take_effects();
    assert!(matches!(&effects[..], [Effect::Load { range, .. }] if *range == all()), "{effects:?}");
}

#[test]
fn a_table_without_its_source_keeps_nothing_of_a_load() {
    let (mut engine, _, fetch) = reading();
    engine.loaded(fetch, Ok(answer()));
    let options = TableOptions { source: Some(String::new()), ..TableOptions::default() };
    engine.table_set(b"p", &options).unwrap();
    go_on(&mut engine);
    engine.check_invariants();
    assert_eq!(engine.key_count(), 0);
}

#[test]
fn what_is_not_sliced_is_taken_whole_beside_other_loads() {
    let mut engine = Engine::new(Settings::default());
    engine.set_slice(Some(3));
    engine.set_placement(Shard(0), Placement::even(2));
    let options = TableOptions { source: Some("db".to_owned()), ..TableOptions::default() };
    for table in [&b"p"[..], b"q"] {
        engine.table_set(table, &options).unwrap();
    }
    let mut load = |prefix: &str, value: Vec<u8>| {
        let last = format!("{prefix}}}").into_bytes();
        let first = format!("{prefix}|").into_bytes();
        let read = engine.range(&first, &last, RangeOptions::default(), &mut |_, _| {});
        assert!(matches!(read, Err(Stop::Wait(_))));
        let effects = engine.take_effects();
        let fetch = effects.iter().find_map(|effect| match effect {
            Effect::Load { fetch, .. } => Some(*fetch),
            _ => None,
        });
        let pair = |number: u32| Pair {
            key: format!("{prefix}|{number:04}").into_bytes(),
            value: value.clone(),
            attributes: Attributes::default(),
        };
        let pairs = (0..ROWS).map(pair).collect();
        engine.loaded(fetch.unwrap(), Ok(Loaded { position: Position(5), pairs }));
        assert!(!engine.goes_on(), "{prefix} is there as a whole");
    };
    load("p", b"short".to_vec());
    load("q", vec![b'x'; 100 << 10]);
}
