//! Answers of sources that are taken in slices: what comes between, and what ends them.

use headwater_base::memory::Meter;
use headwater_base::source::{Attributes, LoadedPart};
use headwater_base::{KeyRange, Placement, Shard};
use headwater_engine::{
    Change, Effect, Engine, EngineError, FetchId, Loaded, Pair, Portion, Position, RangeOptions,
    Settings, Stop, TableOptions, Ticket,
};
use std::rc::Rc;

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
    Loaded { position: Position(5), pairs: (0..ROWS).map(pair).collect(), known: None }
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
fn what_other_shards_give_is_taken_whole_beside_loads_of_sources() {
    let mut engine = Engine::new(Settings::default());
    engine.set_slice(Some(3));
    let placement = Placement::even(2);
    engine.set_placement(Shard(0), placement.clone());
    let options = TableOptions { source: Some("db".to_owned()), ..TableOptions::default() };
    engine.table_set(b"p", &options).unwrap();
    engine.join_add("turned", "t|<a>|<b> = copy q|<b>|<a>", false).unwrap();
    read(&mut engine).unwrap_err();
    let [(fetch, ..)] = asked(&mut engine)[..] else { panic!("one load") };
    let turned = engine.range(b"t|", b"t}", RangeOptions::default(), &mut |_, _| {});
    let Err(Stop::Wait(ticket)) = turned else { panic!("{turned:?}") };
    let effects = engine.take_effects();
    let [Effect::LoadFrom { fetch: other, home: Shard(1), .. }] = effects[..] else {
        panic!("{effects:?}")
    };
    engine.loaded(fetch, Ok(answer()));
    assert!(engine.goes_on(), "the source's answer has more slices");
    // In the same turn, and in no order.
    let keys = (0..200).rev().map(|number: u32| format!("q|{number:04}|a").into_bytes());
    let keys = keys.filter(|key| placement.home(key) == Shard(1)).take(10);
    let pair = |key| Pair { key, value: vec![b'x'; 100 << 10], attributes: Attributes::default() };
    let pairs: Vec<_> = keys.map(pair).collect();
    engine.loaded_from(Shard(1), other, Ok(pairs));
    assert!(engine.take_effects().contains(&Effect::Wake(ticket)));
    engine.check_invariants();
}

#[test]
fn what_a_home_refuses_is_told_in_its_words() {
    let mut engine = Engine::new(Settings::default());
    engine.set_placement(Shard(0), Placement::even(2));
    engine.join_add("turned", "t|<a>|<b> = copy q|<b>|<a>", false).unwrap();
    let turned = engine.range(b"t|", b"t}", RangeOptions::default(), &mut |_, _| {});
    let Err(Stop::Wait(ticket)) = turned else { panic!("{turned:?}") };
    let effects = engine.take_effects();
    let [Effect::LoadFrom { fetch, home, .. }] = effects[..] else { panic!("{effects:?}") };
    let refusal = EngineError::OutOfMemory.refusal();
    engine.loaded_from(home, fetch, Err(refusal));
    let effects = engine.take_effects();
    let [Effect::Fail { ticket: failed, ref error }] = effects[..] else { panic!("{effects:?}") };
    let own = EngineError::OutOfMemory;
    assert_eq!((failed, error.code()), (ticket, own.code()));
    assert_eq!(error.to_string(), own.to_string());
}

/// An answer of a part alone: these numbers, and up to where they are all there are.
fn part(numbers: std::ops::Range<u32>, known: (u32, u32)) -> Loaded {
    let mut loaded = answer();
    loaded.pairs = loaded.pairs.drain(numbers.start as usize..numbers.end as usize).collect();
    let last = if known.1 >= ROWS { all().last } else { key(known.1) };
    let first = if known.0 == 0 { all().first } else { key(known.0) };
    loaded.known = Some(KeyRange { first, last });
    loaded
}

fn asked(engine: &mut Engine) -> Vec<(FetchId, KeyRange, Portion)> {
    let effects = engine.take_effects().into_iter();
    let loads = effects.filter_map(|effect| match effect {
        Effect::Load { fetch, range, portion, .. } => Some((fetch, range, portion)),
        _ => None,
    });
    loads.collect()
}

fn sourced() -> Engine {
    let mut engine = Engine::new(Settings::default());
    let options = TableOptions { source: Some("db".to_owned()), ..TableOptions::default() };
    engine.table_set(b"p", &options).unwrap();
    engine
}

fn read_some(engine: &mut Engine, limit: u64, reverse: bool) -> Result<u64, Ticket> {
    let KeyRange { first, last } = all();
    let options = RangeOptions { limit: Some(limit), reverse };
    match engine.range(&first, &last, options, &mut |_, _| {}) {
        Ok(count) => Ok(count),
        Err(Stop::Wait(ticket)) => Err(ticket),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn a_limited_read_asks_for_what_it_wants_and_a_longer_one_for_the_rest() {
    let mut engine = sourced();
    assert!(read_some(&mut engine, 3, false).is_err());
    let [(fetch, range, portion)] = &asked(&mut engine)[..] else { panic!() };
    assert_eq!((range, portion.rows, portion.reverse), (&all(), Some(3), false));
    engine.loaded(*fetch, Ok(part(0..3, (0, 3))));
    engine.check_invariants();
    assert_eq!(read_some(&mut engine, 3, false), Ok(3));
    assert_eq!(read_some(&mut engine, 2, false), Ok(2));
    assert_eq!(engine.take_effects().len(), 1, "the reader was woken, and nothing was asked");
    // From the end.
    assert!(read_some(&mut engine, 2, true).is_err());
    let [(fetch, range, portion)] = &asked(&mut engine)[..] else { panic!() };
    let behind = KeyRange { first: key(3), last: all().last };
    assert_eq!((range, portion.rows, portion.reverse), (&behind, Some(2), true));
    engine.loaded(*fetch, Ok(part(8..10, (8, ROWS))));
    assert_eq!(read_some(&mut engine, 2, true), Ok(2));
    // The rest, by two readers of which one wants less.
    assert!(read_some(&mut engine, 5, false).is_err());
    let loads = asked(&mut engine);
    let [(fetch, range, portion)] = &loads[..] else { panic!("{loads:?}") };
    assert_eq!((range, portion.rows), (&KeyRange { first: key(3), last: key(8) }, Some(2)));
    assert!(read(&mut engine).is_err());
    assert_eq!(asked(&mut engine), [], "it waits for what is on its way");
    engine.loaded(*fetch, Ok(part(3..5, (3, 5))));
    assert_eq!(read_some(&mut engine, 5, false), Ok(5));
    assert!(read(&mut engine).is_err());
    let [(fetch, range, portion)] = &asked(&mut engine)[..] else { panic!() };
    assert_eq!((range, portion.rows), (&KeyRange { first: key(5), last: key(8) }, None));
    engine.loaded(*fetch, Ok(part(5..8, (5, 8))));
    assert_eq!(read(&mut engine).map(|pairs| pairs.len()), Ok(10));
    engine.check_invariants();
}

#[test]
fn a_load_goes_on_where_a_part_ended_and_keeps_it_when_the_rest_fails() {
    let mut engine = sourced();
    let ticket = read(&mut engine).unwrap_err();
    let mut from = 0;
    for step in [2, 1, 2] {
        let loads = asked(&mut engine);
        let (fetch, range, portion) = match &loads[..] {
            [load] => load.clone(),
            // The reader was woken to look whether this was enough.
            [] => {
                assert!(read(&mut engine).is_err());
                continue;
            }
            _ => panic!("{loads:?}"),
        };
        assert_eq!(portion.bytes_before, u64::from(from) * 12);
        assert_eq!((range.last, portion.rows), (all().last, None));
        engine.loaded(fetch, Ok(part(from..from + step, (from, from + step))));
        engine.check_invariants();
        from += step;
        let _ = ticket;
        if read(&mut engine).is_ok() {
            panic!("not all is there");
        }
    }
    let (fetch, ..) = asked(&mut engine)[0].clone();
    engine.loaded(fetch, Err("cut off".to_owned()));
    let failed = engine.take_effects();
    assert!(failed.iter().any(|effect| matches!(effect, Effect::Fail { .. })), "{failed:?}");
    assert!(read(&mut engine).is_err());
    let [(_, range, _)] = &asked(&mut engine)[..] else { panic!() };
    assert_eq!(range.first, key(from), "what had come is there");
}

#[test]
fn a_part_that_holds_nothing_is_no_answer() {
    let mut engine = sourced();
    let ticket = read(&mut engine).unwrap_err();
    let (fetch, ..) = asked(&mut engine)[0].clone();
    let known = Some(KeyRange::new(&key(4), &key(4)));
    engine.loaded(fetch, Ok(Loaded { pairs: Vec::new(), known, ..answer() }));
    let effects = engine.take_effects();
    assert!(
        matches!(&effects[..], [Effect::Fail { ticket: failed, .. }] if *failed == ticket),
        "{effects:?}"
    );
}

/// A part of an answer whose rest follows: these numbers, and up to where they are all there are.
fn before(numbers: std::ops::Range<u32>) -> LoadedPart {
    let first = if numbers.start == 0 { all().first } else { key(numbers.start) };
    let known = KeyRange { first, last: key(numbers.end) };
    let Loaded { position, pairs, .. } = part(numbers.clone(), (numbers.start, numbers.end));
    let pairs = pairs.iter().map(|pair| (&*pair.key, &*pair.value)).collect();
    LoadedPart { position, pairs, known }
}

#[test]
fn rows_are_here_before_the_rest_has_come() {
    let mut engine = sourced();
    let ticket = read(&mut engine).unwrap_err();
    let (fetch, ..) = asked(&mut engine)[0].clone();
    engine.loaded_part(fetch, before(0..3));
    engine.check_invariants();
    assert_eq!(
        engine.take_effects(),
        [],
        "nobody is woken before all is there, and nothing is asked"
    );
    assert_eq!(read_some(&mut engine, 3, false), Ok(3));
    // A change of a row that is here, and one of a row that is on its way.
    let change = |number, value: &str| Change { key: key(number), value: Some(value.into()) };
    engine.changed("db", Position(7), &[change(1, "one"), change(5, "five"), change(8, "old")]);
    engine.loaded_part(fetch, before(3..6));
    engine.check_invariants();
    let rest = LoadedPart { position: Position(8), ..before(6..9) };
    engine.loaded_part(fetch, rest);
    engine.loaded(fetch, Ok(Loaded { known: None, ..part(9..10, (9, ROWS)) }));
    assert!(engine.take_effects().contains(&Effect::Wake(ticket)));
    let pairs = read(&mut engine).unwrap();
    assert_eq!(pairs.len(), 10);
    let value = |number: usize| String::from_utf8_lossy(&pairs[number].1).into_owned();
    assert_eq!((value(1), value(5)), ("one".to_owned(), "five".to_owned()));
    assert_ne!(value(8), "old", "its part is later than the change");
    engine.check_invariants();
}

#[test]
fn what_has_come_stays_when_the_rest_fails() {
    let mut engine = sourced();
    let ticket = read(&mut engine).unwrap_err();
    let (fetch, ..) = asked(&mut engine)[0].clone();
    engine.loaded_part(fetch, before(0..4));
    engine.loaded(fetch, Err("cut off".to_owned()));
    let failed = engine.take_effects();
    assert!(
        matches!(&failed[..], [Effect::Fail { ticket: failed, .. }] if *failed == ticket),
        "{failed:?}"
    );
    assert!(read(&mut engine).is_err());
    let [(_, range, portion)] = &asked(&mut engine)[..] else { panic!() };
    assert_eq!((&range.first, portion.bytes_before), (&key(4), 0));
    // A part of a load that has ended says nothing.
    engine.loaded_part(fetch, before(4..6));
    engine.check_invariants();
    assert!(read_some(&mut engine, 5, false).is_err());
}

#[test]
fn a_part_that_is_forgotten_is_asked_for_again_and_the_rest_is_not() {
    let mut engine = sourced();
    assert!(read(&mut engine).is_err());
    let (fetch, ..) = asked(&mut engine)[0].clone();
    engine.loaded_part(fetch, before(0..4));
    engine.source_reset("db", &all());
    let effects = engine.take_effects();
    let gone = KeyRange { first: all().first, last: key(4) };
    assert!(
        matches!(&effects[..], [Effect::Unfollow { range, .. }] if *range == gone),
        "{effects:?}"
    );
    engine.loaded(fetch, Ok(Loaded { known: None, ..part(4..10, (4, ROWS)) }));
    engine.check_invariants();
    assert!(read(&mut engine).is_err());
    let loads = asked(&mut engine);
    let [(fetch, range, _)] = &loads[..] else { panic!("{loads:?}") };
    assert_eq!(*range, gone);
    engine.loaded(*fetch, Ok(Loaded { known: None, ..part(0..4, (0, 4)) }));
    assert_eq!(read(&mut engine).map(|pairs| pairs.len()), Ok(10));
}

#[test]
fn a_load_that_goes_on_counts_the_bytes_of_its_parts() {
    let mut engine = sourced();
    assert!(read(&mut engine).is_err());
    let (fetch, ..) = asked(&mut engine)[0].clone();
    engine.loaded_part(fetch, before(0..2));
    engine.loaded(fetch, Ok(part(2..3, (2, 3))));
    let loads = asked(&mut engine);
    let [(_, range, portion)] = &loads[..] else { panic!("{loads:?}") };
    assert_eq!((&range.first, portion.bytes_before), (&key(3), 3 * 12));
}

#[test]
fn parts_are_taken_in_slices_as_answers_are() {
    let (mut engine, ticket, fetch) = reading();
    engine.loaded_part(fetch, before(0..5));
    engine.check_invariants();
    assert_eq!(engine.key_count(), 3);
    change(&mut engine, 6, 4, Some("late"));
    engine.loaded_part(fetch, LoadedPart { position: Position(6), ..before(5..9) });
    change(&mut engine, 7, 9, Some("later"));
    engine.loaded(fetch, Ok(Loaded { known: None, ..part(9..10, (9, ROWS)) }));
    assert!(go_on(&mut engine) > 1);
    assert_eq!(engine.take_effects(), [Effect::Wake(ticket)], "all of it is there");
    let pairs = read(&mut engine).unwrap();
    let changed: Vec<_> = pairs.iter().filter(|(_, value)| value != b"loaded").collect();
    assert_eq!((pairs.len(), changed.len()), (10, 2));
    assert_eq!((&*changed[0].1, &*changed[1].1), (&b"late"[..], &b"later"[..]));
}

/// Memory that never seems to be taken: what goes here goes because the test says so.
#[derive(Debug)]
struct Empty;

impl Meter for Empty {
    fn used(&self) -> usize {
        0
    }
}

/// Reads all of the table as a client does, where what is loaded goes before the reader runs again, `times` times; what came of it, and how many bytes were
/// loaded.
fn read_losing(engine: &mut Engine, times: usize) -> (Result<usize, EngineError>, usize) {
    let (mut bytes, mut resumed) = (0, None);
    for time in 0.. {
        engine.begin_slice();
        if let Some(ticket) = resumed {
            engine.resume(ticket);
        }
        let KeyRange { first, last } = all();
        let done = engine.range(&first, &last, RangeOptions::default(), &mut |_, _| {});
        engine.end_slice();
        match done {
            Ok(count) => return (Ok(count as usize), bytes),
            Err(Stop::Failed(error)) => return (Err(error), bytes),
            Err(Stop::Wait(ticket)) => resumed = Some(ticket),
        }
        assert!(time < 100, "it loads and evicts without end");
        for (fetch, range, _) in asked(engine) {
            let mut answer = answer();
            answer.pairs.retain(|pair| range.contains(&pair.key));
            bytes +=
                answer.pairs.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
            engine.loaded(fetch, Ok(answer));
            go_on(engine);
        }
        if time < times {
            (0..20).for_each(|draw| _ = engine.evict_any(draw));
        }
    }
    unreachable!("the loop has no end")
}

#[test]
fn a_read_ends_for_which_more_is_loaded_than_memory_holds() {
    let limited = || {
        let mut engine = sourced();
        engine.set_memory(Rc::new(Empty), Some(200));
        engine
    };
    let mut engine = limited();
    let (done, bytes) = read_losing(&mut engine, usize::MAX);
    assert_eq!(done, Err(EngineError::OutOfMemory));
    assert!((400..=600).contains(&bytes), "{bytes}");
    // It counts for each read anew, and what goes a few times is loaded again.
    assert_eq!(read_losing(&mut engine, usize::MAX).0, Err(EngineError::OutOfMemory));
    assert_eq!(read_losing(&mut engine, 3), (Ok(10), 480));
    engine.check_invariants();
    // Parts are here, and the gaps between them are loaded one by one.
    let mut engine = limited();
    assert!(read_some(&mut engine, 3, false).is_err());
    for (fetch, ..) in asked(&mut engine) {
        engine.loaded(fetch, Ok(part(0..3, (0, 3))));
    }
    assert_eq!(read_losing(&mut engine, usize::MAX).0, Err(EngineError::OutOfMemory));
    // Nothing is counted without a limit.
    let mut engine = sourced();
    assert_eq!(read_losing(&mut engine, 50).0, Ok(10));
}
