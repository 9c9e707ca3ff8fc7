//! What is told of base keys, for those who ask to hear of it.

use headwater_base::{EventKinds, Millis};
use headwater_engine::{Engine, Expiry, Settings, WriteKind};

const ALL: EventKinds = EventKinds::GENERIC
    .and(EventKinds::STRINGS)
    .and(EventKinds::STREAMS)
    .and(EventKinds::EXPIRED)
    .and(EventKinds::EVICTED);

fn taken(engine: &mut Engine) -> Vec<String> {
    let shown = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let events = engine.take_keyspace_events();
    events.iter().map(|it| format!("{} {}", it.word, shown(&it.key))).collect()
}

#[test]
fn what_is_done_to_base_keys_is_listed_once_somebody_asks() {
    let mut engine = Engine::new(Settings::default());
    engine.join_add("j", "n|<u> = count s|<u>|<p>", false).unwrap();
    engine.set(b"s|a|1", b"", Expiry::Never).unwrap();
    assert!(!engine.has_keyspace_events());
    engine.set_keyspace_events(ALL);
    engine.set(b"s|a|1", b"x", Expiry::At(Millis(10))).unwrap();
    assert!(engine.get(b"n|a").unwrap().is_some());
    assert!(engine.remove(b"s|a|1").unwrap());
    assert!(!engine.remove(b"s|a|1").unwrap());
    // What the join gives has changed twice, and nobody has written it.
    assert_eq!(taken(&mut engine), ["set s|a|1", "expire s|a|1", "del s|a|1"]);
    engine.set(b"k", b"x", Expiry::At(Millis(20))).unwrap();
    engine.set_expiry(b"k", None).unwrap();
    engine.set_expiry(b"k", None).unwrap();
    engine.set_expiry(b"k", Some(Millis(30))).unwrap();
    engine.advance(Millis(30));
    let expected = ["set k", "expire k", "persist k", "expire k", "expired k"];
    assert_eq!(taken(&mut engine), expected);
    // What would be over at once is not written; what was there goes.
    engine.set(b"k", b"x", Expiry::At(Millis(1))).unwrap();
    assert_eq!(taken(&mut engine), [""; 0]);
    engine.set(b"k", b"x", Expiry::Never).unwrap();
    engine.set(b"k", b"x", Expiry::At(Millis(1))).unwrap();
    assert_eq!(taken(&mut engine), ["set k", "del k"]);
    engine.flush();
    assert_eq!(taken(&mut engine), [""; 0]);
}

#[test]
fn what_is_written_names_the_event_and_new_keys_are_told_before_it() {
    let mut engine = Engine::new(Settings::default());
    engine.set_keyspace_events(ALL.and(EventKinds::NEW));
    engine.set(b"a", b"1", Expiry::Never).unwrap();
    engine.begin_writing(WriteKind::Rename);
    engine.set(b"b", b"1", Expiry::At(Millis(5))).unwrap();
    assert!(engine.remove(b"a").unwrap());
    engine.begin_writing(WriteKind::Append);
    engine.append(b"b", b"2").unwrap();
    engine.begin_writing(WriteKind::Set);
    engine.stream_append(b"s", b"x", 0).unwrap();
    engine.stream_append(b"s", b"x", 0).unwrap();
    engine.stream_trim(b"s", 1).unwrap();
    let expected = [
        "new a",
        "set a",
        "new b",
        "rename_from a",
        "rename_to b",
        "append b",
        "new s",
        "stream.append s",
        "stream.append s",
        "stream.trim s",
    ];
    assert_eq!(taken(&mut engine), expected);
}

#[test]
fn only_the_kinds_that_are_asked_for_are_listed() {
    let mut engine = Engine::new(Settings::default());
    engine.set_keyspace_events(EventKinds::EXPIRED);
    engine.set(b"a", b"1", Expiry::At(Millis(5))).unwrap();
    engine.set(b"b", b"1", Expiry::Never).unwrap();
    assert!(engine.remove(b"b").unwrap());
    engine.advance(Millis(5));
    assert_eq!(taken(&mut engine), ["expired a"]);
    engine.set_keyspace_events(EventKinds::NONE);
    engine.set(b"a", b"1", Expiry::At(Millis(6))).unwrap();
    engine.advance(Millis(6));
    assert!(!engine.has_keyspace_events());
}

#[test]
fn each_key_of_a_removed_range_is_told() {
    let mut engine = Engine::new(Settings::default());
    engine.set_keyspace_events(EventKinds::GENERIC);
    for number in 0..20 {
        engine.set(format!("a|{number:02}").as_bytes(), b"", Expiry::Never).unwrap();
    }
    engine.set_slice(Some(4));
    engine.begin_slice();
    assert!(engine.remove_range(b"a|", b"a}").is_err(), "it is done in slices");
    engine.end_slice();
    while engine.goes_on() {
        engine.go_on();
    }
    let expected: Vec<String> = (0..20).map(|number| format!("del a|{number:02}")).collect();
    assert_eq!(taken(&mut engine), expected);
}
