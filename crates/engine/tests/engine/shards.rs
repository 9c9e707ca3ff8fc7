//! What a shard promises those that drive several of them; whole histories are in `headwater-sim`.

use headwater_base::source::{Attributes, Pair};
use headwater_base::{Millis, Placement, Shard};
use headwater_engine::{Engine, EngineError, Expiry, Settings};

fn shard(me: u16) -> Engine {
    let mut engine = Engine::new(Settings::default());
    engine.set_placement(Shard(me), Placement::even(2));
    engine
}

/// A key of the table whose home is shard 0.
fn own(table: &str) -> Vec<u8> {
    let placement = Placement::even(2);
    let keys = (0..).map(|at| format!("{table}|{at}").into_bytes());
    keys.into_iter().find(|key| placement.home(key) == Shard(0)).expect("some key lives there")
}

#[test]
fn a_join_that_is_prepared_can_be_installed_whatever_is_written() {
    let mut engine = shard(0);
    let (key, text) = (own("t"), "t|<a> = copy s|<a>");
    engine.join_prepare("t", text, false).unwrap();
    let joined = Err(EngineError::Joined { join: String::from("t") });
    assert_eq!(engine.set(&key, b"x", Expiry::Never), joined);
    assert!(engine.stream_append(&own("s"), b"x", 0).is_err());
    assert!(engine.joins().is_empty());
    assert!(engine.join_prepare("u", "u|<a> = copy s|<a>", false).is_err(), "one at a time");
    engine.join_unprepare("t");
    engine.set(&key, b"x", Expiry::Never).unwrap();
    assert!(engine.join_prepare("t", text, false).is_err(), "a key stands in its way");
    engine.remove(&key).unwrap();
    engine.join_prepare("t", text, false).unwrap();
    engine.join_add("t", text, false).unwrap();
    engine.join_prepare("t", "t|<a> = copy r|<a>", true).unwrap();
    assert_eq!(engine.joins()[0].canonical, text, "what is to be replaced goes on");
}

#[test]
fn keys_whose_time_is_over_do_not_arrive_with_their_partition() {
    let mut engine = shard(0);
    engine.advance(Millis(100));
    let (key, later) = (own("s"), own("r"));
    for (key, at) in [(&key, 100), (&later, 101)] {
        let attributes = Attributes { expires: Some(Millis(at)), ..Attributes::default() };
        let pair = Pair { key: key.clone(), value: b"x".to_vec(), attributes };
        let partition = Placement::even(2).partition(key);
        engine.give_partition(partition, &[pair]);
    }
    assert!(engine.get(&key).unwrap().is_none());
    assert!(engine.get(&later).unwrap().is_some());
    engine.advance(Millis(101));
    assert!(engine.get(&later).unwrap().is_none());
}
