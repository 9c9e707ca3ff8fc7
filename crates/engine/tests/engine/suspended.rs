//! A home of which nothing is heard: what is here of it stays, and is shown again once it was resumed.

use headwater_base::source::{Attributes, Change, Pair};
use headwater_base::{KeyRange, Millis, Placement, Shard, ShardRefusal};
use headwater_engine::{
    Effect, Engine, Expiry, Follower, NotifiedChange, RangeOptions, Settings, Stop, Ticket,
};

const HOME: Shard = Shard(0);
const BY: Follower = Follower(1 << 16);

/// Keys of the other shard, which the join turns around.
fn keys() -> Vec<Vec<u8>> {
    let placement = Placement::even(2);
    let keys = (0..200).map(|number: u32| format!("q|{number:04}|a").into_bytes());
    keys.filter(|key| placement.home(key) == HOME).take(3).collect()
}

fn read(engine: &mut Engine) -> Result<Vec<Vec<u8>>, Ticket> {
    read_of(engine, "t|a|")
}

/// The values of the keys that begin so.
fn read_of(engine: &mut Engine, prefix: &str) -> Result<Vec<Vec<u8>>, Ticket> {
    let mut values = Vec::new();
    let each = &mut |_: &[u8], value: headwater_engine::Value<'_>| values.push(value.to_vec());
    let KeyRange { first, last } = KeyRange::prefix(prefix.as_bytes());
    // Outputs of both shards would lie here; those of the other one are its own.
    match engine.range(&first, &last, RangeOptions::default(), each) {
        Ok(_) => Ok(values),
        Err(Stop::Wait(ticket)) => Err(ticket),
        Err(other) => panic!("{other:?}"),
    }
}

/// A shard whose read of outputs is warm.
fn warm() -> Engine {
    let mut engine = Engine::new(Settings::default());
    let me = (0..2).map(Shard).find(|&me| me != HOME).unwrap();
    engine.set_placement(me, Placement::even(2));
    assert_ne!(Placement::even(2).home(b"t|a|1"), HOME, "the outputs are own ones");
    engine.join_add("turned", "t|<a>|<b> = copy q|<b>|<a>", false).unwrap();
    let ticket = read(&mut engine).unwrap_err();
    let effects = engine.take_effects();
    let [Effect::LoadFrom { fetch, home: HOME, .. }] = effects[..] else { panic!("{effects:?}") };
    let pair = |key| Pair { key, value: b"old".to_vec(), attributes: Attributes::default() };
    engine.loaded_from(HOME, fetch, Ok(keys().into_iter().map(pair).collect()));
    assert_eq!(engine.take_effects(), [Effect::Wake(ticket)]);
    assert_eq!(read(&mut engine).unwrap(), [b"old"; 3]);
    engine
}

/// The one range that is asked for again.
fn resumed(engine: &mut Engine) -> KeyRange {
    engine.resume_from(HOME);
    let effects = engine.take_effects();
    let [Effect::ResumeFrom { home: HOME, range }] = &effects[..] else { panic!("{effects:?}") };
    range.clone()
}

#[test]
fn what_is_resumed_is_shown_with_what_has_changed_and_not_computed_again() {
    let mut engine = warm();
    engine.suspend_at(HOME, Millis(400));
    let ticket = read(&mut engine).unwrap_err();
    engine.check_invariants();
    assert_eq!(engine.take_effects(), [], "nothing is asked of whom nobody hears");
    let range = resumed(&mut engine);
    let executions = |engine: &Engine| {
        let stats = engine.stats();
        stats.counters.iter().find(|(name, _)| *name == "executions").unwrap().1
    };
    let before = executions(&engine);
    let [first, second, _] = &keys()[..] else { panic!("three keys") };
    let changes = [
        Change { key: first.clone(), value: Some(b"new".to_vec()) },
        Change { key: second.clone(), value: None },
    ];
    assert!(engine.is_suspended(HOME));
    engine.resumed_at(HOME, &range, Some(&changes));
    assert!(!engine.is_suspended(HOME));
    assert_eq!(engine.take_effects(), [Effect::Wake(ticket)]);
    assert_eq!(read(&mut engine).unwrap(), [&b"new"[..], b"old"]);
    assert_eq!(executions(&engine), before);
    engine.check_invariants();
}

#[test]
fn what_cannot_be_resumed_is_loaded_again() {
    let mut engine = warm();
    engine.suspend_at(HOME, Millis(400));
    let range = resumed(&mut engine);
    engine.resumed_at(HOME, &range, None);
    read(&mut engine).unwrap_err();
    let effects = engine.take_effects();
    assert!(matches!(effects[..], [Effect::LoadFrom { home: HOME, .. }]), "{effects:?}");
    engine.check_invariants();
}

#[test]
fn a_connection_that_ends_again_has_all_asked_for_again() {
    let mut engine = warm();
    engine.suspend_at(HOME, Millis(400));
    let range = resumed(&mut engine);
    // The next connection comes before the answer.
    engine.suspend_at(HOME, Millis(400));
    engine.resumed_at(HOME, &range, Some(&[]));
    assert!(engine.is_suspended(HOME), "what nobody waits for is no answer");
    assert_eq!(resumed(&mut engine), range);
    engine.resumed_at(HOME, &range, Some(&[]));
    assert_eq!(read(&mut engine).unwrap(), [b"old"; 3]);
    // What is evicted meanwhile is not followed in vain.
    engine.suspend_at(HOME, Millis(400));
    let range = resumed(&mut engine);
    engine.reset_at(HOME, &range);
    engine.resumed_at(HOME, &range, Some(&[]));
    let effects = engine.take_effects();
    assert!(effects.contains(&Effect::UnfollowAt { home: HOME, range }), "{effects:?}");
}

#[test]
fn who_waits_for_a_home_that_is_lost_for_long_is_told_so() {
    let mut engine = warm();
    engine.suspend_at(HOME, Millis(400));
    let ticket = read(&mut engine).unwrap_err();
    let refusal = ShardRefusal { code: String::from("CLUSTERDOWN"), text: String::from("why") };
    engine.fail_suspended(HOME, refusal.clone());
    let effects = engine.take_effects();
    let [Effect::Fail { ticket: failed, ref error }] = effects[..] else { panic!("{effects:?}") };
    assert_eq!((failed, error.refusal()), (ticket, refusal));
    // It is there still.
    let range = resumed(&mut engine);
    engine.resumed_at(HOME, &range, Some(&[]));
    assert_eq!(read(&mut engine).unwrap(), [b"old"; 3]);
}

#[test]
fn followers_of_what_relies_on_a_suspended_home_are_told_that_it_is_reset() {
    let mut engine = warm();
    engine.follow(&KeyRange::new(b"t|a|", b"t|a}"), BY).unwrap();
    engine.suspend_at(HOME, Millis(400));
    let told = engine.take_notifications();
    assert!(matches!(told[..], [ref it] if matches!(it.what, NotifiedChange::Reset { .. })));
    assert_eq!(engine.followed_by(BY), []);
}

/// What is here of the home was last heard 600 ms ago.
fn suspended() -> Engine {
    let mut engine = warm();
    engine.suspend_at(HOME, Millis(400));
    engine.pass_time(Millis(1_000));
    engine
}

/// As a read that accepts what is so old.
fn read_accepting(engine: &mut Engine, millis: u64, prefix: &str) -> Result<Vec<Vec<u8>>, Ticket> {
    engine.accept_age(millis);
    let read = read_of(engine, prefix);
    engine.accept_age(0);
    engine.check_invariants();
    read
}

#[test]
fn a_read_that_accepts_the_age_of_what_is_here_does_not_wait() {
    let mut engine = suspended();
    assert_eq!(read_accepting(&mut engine, 600, "t|a|").unwrap(), [b"old"; 3]);
    read_accepting(&mut engine, 599, "t|a|").unwrap_err();
    read(&mut engine).unwrap_err();
    engine.pass_time(Millis(1_001));
    read_accepting(&mut engine, 600, "t|a|").unwrap_err();
    let refusal = ShardRefusal { code: String::from("CLUSTERDOWN"), text: String::from("why") };
    engine.fail_suspended(HOME, refusal);
    assert_eq!(read_accepting(&mut engine, 601, "t|a|").unwrap(), [b"old"; 3]);
    // What is heard later does not make what is here younger.
    engine.suspend_at(HOME, Millis(1_000));
    read_accepting(&mut engine, 600, "t|a|").unwrap_err();
    let explained = engine.explain(&KeyRange::prefix(b"t|a|"));
    let tells = |text: &str| text.contains("waits for shard 0, last heard 601 ms ago");
    assert!(explained.iter().any(|line| tells(&line.text)), "{explained:?}");
}

#[test]
fn what_such_a_read_computes_is_seen_by_no_other_one_until_it_was_resumed() {
    let mut engine = suspended();
    engine.join_add("again", "u|<a>|<b> = copy q|<b>|<a>", false).unwrap();
    engine.join_add("above", "v|<a>|<b> = copy u|<a>|<b>", false).unwrap();
    engine.join_add("counted", "w|<a> = count u|<a>|<b>", false).unwrap();
    engine.take_effects();
    for _ in 0..2 {
        for prefix in ["v|a|", "u|a|"] {
            assert_eq!(read_accepting(&mut engine, 600, prefix).unwrap(), [b"old"; 3]);
            read_of(&mut engine, prefix).unwrap_err();
        }
        assert_eq!(read_accepting(&mut engine, 600, "w|a").unwrap(), [b"3"]);
        read_of(&mut engine, "w|a").unwrap_err();
        engine.check_invariants();
    }
    assert_eq!(engine.take_effects(), [], "nothing is asked of whom nobody hears");
    let range = resumed(&mut engine);
    let gone = Change { key: keys()[0].clone(), value: None };
    engine.resumed_at(HOME, &range, Some(&[gone]));
    for prefix in ["v|a|", "u|a|", "t|a|"] {
        assert_eq!(read_of(&mut engine, prefix).unwrap(), [b"old"; 2]);
    }
    assert_eq!(read_of(&mut engine, "w|a").unwrap(), [b"2"]);
    engine.check_invariants();
}

#[test]
fn own_changes_are_seen_by_such_a_read() {
    let mut engine = warm();
    engine.join_add("checked", "c|<a>|<b> = check s|<a>|<b> copy q|<b>|<a>", false).unwrap();
    let names: Vec<_> = keys().iter().map(|key| key[2..6].to_vec()).collect();
    let follow = |engine: &mut Engine, name: &[u8]| {
        let key = [b"s|a|", name].concat();
        engine.set(&key, b"", Expiry::Never).unwrap();
    };
    assert_eq!(read_of(&mut engine, "c|a|").unwrap(), [b""; 0]);
    engine.follow(&KeyRange::prefix(b"c|a|"), BY).unwrap();
    engine.suspend_at(HOME, Millis(400));
    engine.pass_time(Millis(1_000));
    assert!(!engine.has_notifications(), "it has read nothing of the home");
    follow(&mut engine, &names[0]);
    engine.keep_followed();
    assert_eq!(read_accepting(&mut engine, 600, "c|a|").unwrap(), [b"old"]);
    follow(&mut engine, &names[1]);
    assert_eq!(read_accepting(&mut engine, 600, "c|a|").unwrap(), [b"old"; 2]);
    engine.remove(&[b"s|a|", &*names[0]].concat()).unwrap();
    assert_eq!(read_accepting(&mut engine, 600, "c|a|").unwrap(), [b"old"]);
    read_of(&mut engine, "c|a|").unwrap_err();
    // Followers have heard that they know nothing of it any more, and nothing that is old.
    let told = engine.take_notifications();
    let is_reset =
        |it: &headwater_engine::Notification| matches!(it.what, NotifiedChange::Reset { .. });
    assert!(!told.is_empty() && told.iter().all(is_reset), "{told:?}");
    let range = resumed(&mut engine);
    engine.resumed_at(HOME, &range, Some(&[]));
    assert_eq!(read_of(&mut engine, "c|a|").unwrap(), [b"old"]);
}

#[test]
fn what_is_not_here_and_what_is_kept_for_others_is_waited_for() {
    let mut engine = suspended();
    engine.join_add("more", "m|<a>|<b> = copy x|<b>|<a>", false).unwrap();
    engine.join_add("kept", "k|<a>|<b> = snapshot 10 copy q|<b>|<a>", false).unwrap();
    engine.join_add("pulled", "l|<a>|<b> = pull copy q|<b>|<a>", false).unwrap();
    engine.take_effects();
    read_accepting(&mut engine, 600, "m|a|").unwrap_err();
    read_accepting(&mut engine, 600, "k|a|").unwrap_err();
    assert_eq!(read_accepting(&mut engine, 600, "l|a|").unwrap(), [b"old"; 3]);
    read_of(&mut engine, "l|a|").unwrap_err();
    assert_eq!(engine.take_effects(), []);
}

#[test]
fn what_is_partly_of_the_next_owner_is_of_no_age() {
    let mut engine = suspended();
    let _range = resumed(&mut engine);
    engine.changed_at(HOME, &[Change { key: keys()[0].clone(), value: Some(b"new".to_vec()) }]);
    read_accepting(&mut engine, 86_400_000, "t|a|").unwrap_err();
    // Neither is it when that one ends, too.
    engine.suspend_at(HOME, Millis(1_000));
    read_accepting(&mut engine, 86_400_000, "t|a|").unwrap_err();
    let range = resumed(&mut engine);
    engine.resumed_at(HOME, &range, Some(&[]));
    assert_eq!(read(&mut engine).unwrap(), [&b"new"[..], b"old", b"old"]);
}

/// Who accepts what is here of a home that is not heard does what was logged meanwhile in one go: it does not look at what it relies on anew for each key.
#[test]
fn what_was_logged_meanwhile_is_applied_in_one_go() {
    let mut engine = warm();
    engine.join_add("both", "w|<a>|<n>|<b> = check own|<a>|<n> copy t|<a>|<b>", false).unwrap();
    let count = |engine: &Engine, name: &str| {
        engine.stats().counters.iter().find(|(it, _)| *it == name).unwrap().1
    };
    engine.set(b"own|a|first", b"1", Expiry::Never).unwrap();
    assert_eq!(read_of(&mut engine, "w|a|").unwrap().len(), 3);
    engine.suspend_at(HOME, Millis(400));
    for number in 0..50 {
        engine.set(format!("own|a|{number:02}").as_bytes(), b"1", Expiry::Never).unwrap();
    }
    engine.accept_age(10_000);
    engine.pass_time(Millis(1_000));
    let before = count(&engine, "upstreams_refreshed");
    assert_eq!(read_of(&mut engine, "w|a|").unwrap(), vec![b"old"; 153]);
    assert_eq!(count(&engine, "checks_applied"), 50);
    let looked = count(&engine, "upstreams_refreshed") - before;
    assert!((1..=3).contains(&looked), "{looked}");
    engine.check_invariants();
}

/// Where a home is there and does not answer, who waits is told, and what was asked for is taken in whenever it comes.
#[test]
fn who_waits_for_a_load_that_does_not_come_can_be_told_so() {
    let mut engine = Engine::new(Settings::default());
    let me = (0..2).map(Shard).find(|&me| me != HOME).unwrap();
    engine.set_placement(me, Placement::even(2));
    engine.join_add("turned", "t|<a>|<b> = copy q|<b>|<a>", false).unwrap();
    let refusal = ShardRefusal { code: String::from("BUSY"), text: String::from("why") };
    engine.fail_loads_of(HOME, &refusal);
    let first = read(&mut engine).unwrap_err();
    let effects = engine.take_effects();
    let [Effect::LoadFrom { fetch, home: HOME, .. }] = effects[..] else { panic!("{effects:?}") };
    engine.fail_loads_of(me, &refusal);
    assert_eq!(engine.take_effects(), []);
    engine.fail_loads_of(HOME, &refusal);
    let effects = engine.take_effects();
    let [Effect::Fail { ticket, ref error }] = effects[..] else { panic!("{effects:?}") };
    assert_eq!((ticket, error.refusal()), (first, refusal.clone()));
    // The home is not asked a second time for a range that is on its way.
    let second = read(&mut engine).unwrap_err();
    assert_eq!(engine.take_effects(), []);
    let pair = |key| Pair { key, value: b"old".to_vec(), attributes: Attributes::default() };
    engine.loaded_from(HOME, fetch, Ok(keys().into_iter().map(pair).collect()));
    assert_eq!(engine.take_effects(), [Effect::Wake(second)]);
    assert_eq!(read(&mut engine).unwrap(), [b"old"; 3]);
    engine.check_invariants();
}
