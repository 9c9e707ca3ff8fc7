//! The memory bound: what goes for it, what stays, and what is refused.

use headwater_base::memory::Meter;
use headwater_engine::{Engine, EngineError, Expiry, RangeOptions, Settings, Stop, TableOptions};
use std::cell::Cell;
use std::rc::Rc;

/// Counts the bytes that the engine itself tells of, as often as a test refreshes it.
#[derive(Debug, Default)]
struct Told(Cell<usize>);

impl Meter for Told {
    fn used(&self) -> usize {
        self.0.get()
    }
}

fn bytes(engine: &Engine) -> usize {
    let stats = engine.stats();
    (stats.value_bytes
        + stats.key_bytes
        + stats.index_bytes
        + stats.updater_bytes
        + stats.status_range_bytes) as usize
}

fn timelines(users: usize) -> Engine {
    let mut engine = Engine::new(Settings::default());
    let options = TableOptions { boundary: Some(1), ..TableOptions::default() };
    engine.table_set(b"t", &options).expect("a table");
    let text = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
    engine.join_add("timeline", text, false).expect("a join");
    for time in 0..50 {
        set(&mut engine, &format!("p|bob|{time:03}"), "a post of some length");
    }
    for user in 0..users {
        set(&mut engine, &format!("s|u{user:04}|bob"), "1");
    }
    engine
}

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a base key");
}

fn fills(engine: &Engine) -> u64 {
    engine.stats().counters.iter().find(|(name, _)| *name == "executions").map_or(0, |(_, n)| *n)
}

fn read(engine: &mut Engine, user: usize) -> Result<u64, Stop> {
    let (first, last) = (format!("t|u{user:04}|"), format!("t|u{user:04}}}"));
    engine.range(first.as_bytes(), last.as_bytes(), RangeOptions::default(), &mut |_, _| {})
}

#[test]
fn timelines_that_are_read_stay_and_others_go() {
    let mut engine = timelines(400);
    let base = bytes(&engine);
    let told = Rc::new(Told::default());
    engine.set_memory(told.clone(), Some(base + 250_000));
    let mut again = 0;
    for round in 0..20 {
        for user in (0..20).chain(20 + round * 19..20 + (round + 1) * 19) {
            told.0.set(bytes(&engine));
            // One at a time, because the meter is read by hand here.
            while !engine.has_room(40_000) {
                assert!(engine.evict_one());
                told.0.set(bytes(&engine));
            }
            let fills = fills(&engine);
            assert_eq!(read(&mut engine, user), Ok(50));
            if user < 20 && round > 0 {
                again += self::fills(&engine) - fills;
            }
        }
    }
    assert!(engine.evicted().ranges > 100, "{:?}", engine.evicted());
    assert!(bytes(&engine) < base + 250_000);
    assert!(again < 40, "{again} of 380 reads of what is read often had to compute it again");
}

#[test]
fn base_keys_that_joins_read_never_go() {
    let mut engine = timelines(10);
    (0..10).for_each(|user| assert_eq!(read(&mut engine, user), Ok(50)));
    let told = Rc::new(Told(Cell::new(1000)));
    engine.set_memory(told, Some(1000));
    assert!(!engine.make_room(1), "the meter still says that all is taken");
    assert_eq!(engine.evicted().ranges, 10);
    assert_eq!(engine.key_count(), 60);
    engine.set_memory_limit(None);
    assert_eq!(read(&mut engine, 3), Ok(50));
}

#[test]
fn a_read_that_takes_more_than_the_bound_is_refused_and_leaves_nothing() {
    let mut engine = timelines(1);
    for time in 50..5000 {
        set(&mut engine, &format!("p|bob|{time:04}"), "a post of some length");
    }
    let told = Rc::new(Told(Cell::new(1_000_000)));
    engine.set_memory(told, Some(1_100_000));
    assert_eq!(read(&mut engine, 0), Err(Stop::Failed(EngineError::OutOfMemory)));
    assert!(!engine.make_room_again());
    assert_eq!((engine.stats().status_ranges, engine.stats().keys), (0, 5001));
    engine.set_memory_limit(Some(1_000_000_000));
    assert_eq!(read(&mut engine, 0), Ok(5000));
}
