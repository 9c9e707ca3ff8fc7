//! A home of which nothing is heard: what is here of it stays, and is shown again once it was resumed.

use headwater_base::source::{Attributes, Change, Pair};
use headwater_base::{KeyRange, Placement, Shard, ShardRefusal};
use headwater_engine::{
    Effect, Engine, Follower, NotifiedChange, RangeOptions, Settings, Stop, Ticket,
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
    let mut values = Vec::new();
    let each = &mut |_: &[u8], value: headwater_engine::Value<'_>| values.push(value.to_vec());
    // Outputs of both shards would lie here; those of the other one are its own.
    match engine.range(b"t|a|", b"t|a}", RangeOptions::default(), each) {
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
    engine.suspend_at(HOME);
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
    engine.suspend_at(HOME);
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
    engine.suspend_at(HOME);
    let range = resumed(&mut engine);
    // The next connection comes before the answer.
    engine.suspend_at(HOME);
    engine.resumed_at(HOME, &range, Some(&[]));
    assert!(engine.is_suspended(HOME), "what nobody waits for is no answer");
    assert_eq!(resumed(&mut engine), range);
    engine.resumed_at(HOME, &range, Some(&[]));
    assert_eq!(read(&mut engine).unwrap(), [b"old"; 3]);
    // What is evicted meanwhile is not followed in vain.
    engine.suspend_at(HOME);
    let range = resumed(&mut engine);
    engine.reset_at(HOME, &range);
    engine.resumed_at(HOME, &range, Some(&[]));
    let effects = engine.take_effects();
    assert!(effects.contains(&Effect::UnfollowAt { home: HOME, range }), "{effects:?}");
}

#[test]
fn who_waits_for_a_home_that_is_lost_for_long_is_told_so() {
    let mut engine = warm();
    engine.suspend_at(HOME);
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
    engine.suspend_at(HOME);
    let told = engine.take_notifications();
    assert!(matches!(told[..], [ref it] if matches!(it.what, NotifiedChange::Reset { .. })));
    assert_eq!(engine.followed_by(BY), []);
}
