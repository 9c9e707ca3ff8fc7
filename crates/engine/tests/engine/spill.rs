//! Long plain values that leave memory and come back, beside a plain map that says what is right.

use crate::bad_disk::BadDisk;
use headwater_base::Millis;
use headwater_base::memory::Meter;
use headwater_engine::{
    Engine, EngineError, Expiry, Policy, RangeOptions, Settings, Stop, TableOptions, ValuePlace,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

const LONG: usize = 5000;
const LONG_MIN: usize = 4096;

fn engine(policy: &str) -> (Engine, BadDisk) {
    let mut engine = Engine::new(Settings::default());
    let disk = BadDisk::default();
    engine.set_spill(Box::new(disk.clone()), LONG_MIN);
    engine.set_eviction_policy(Policy::named(policy).unwrap());
    (engine, disk)
}

fn long(seed: u8) -> Vec<u8> {
    (0..LONG).map(|at| seed.wrapping_add((at % 251) as u8)).collect()
}

fn set(engine: &mut Engine, key: &[u8], value: &[u8]) {
    engine.set(key, value, Expiry::Never).unwrap();
}

fn get(engine: &mut Engine, key: &[u8]) -> Option<Vec<u8>> {
    engine.get(key).unwrap().map(|value| value.to_vec())
}

fn spilled(engine: &Engine) -> u64 {
    engine.stats().spilled_values
}

fn is_spilled(engine: &Engine, key: &[u8]) -> bool {
    engine.value_place(key) == Some(ValuePlace::Disk)
}

#[test]
fn a_long_value_goes_to_disk_and_comes_back_when_it_is_read_again() {
    let (mut engine, _) = engine("allkeys-lru");
    set(&mut engine, b"k", &long(1));
    assert!(engine.evict_one());
    assert!(is_spilled(&engine, b"k"));
    let stats = engine.stats();
    assert_eq!((stats.keys, stats.spilled_values, stats.value_bytes), (1, 1, 0));
    assert_eq!((stats.spilled_bytes, engine.evicted().keys), (LONG as u64, 0));
    assert_eq!(get(&mut engine, b"k"), Some(long(1)));
    assert!(is_spilled(&engine, b"k"), "what is read once may never be read again");
    assert_eq!(get(&mut engine, b"k"), Some(long(1)));
    assert!(!is_spilled(&engine, b"k"));
    let stats = engine.stats();
    assert_eq!((stats.spilled_values, stats.spilled_bytes), (0, 0));
    assert!(stats.value_bytes > LONG as u64);
    engine.check_invariants();
}

#[test]
fn what_is_short_or_not_to_be_lost_does_not_go_to_disk() {
    let (mut engine, _) = engine("noeviction");
    set(&mut engine, b"k", &long(1));
    assert!(!engine.evict_one(), "a lost file would lose a key that must stay");
    engine.set_eviction_policy(Policy::named("volatile-lru").unwrap());
    assert!(!engine.evict_one());
    engine.set_expiry(b"k", Some(Millis(1000))).unwrap();
    assert!(engine.evict_one() && is_spilled(&engine, b"k"));
    assert_eq!(engine.expiry(b"k"), Ok(Some(Some(Millis(1000)))));
    engine.advance(Millis(1000));
    assert_eq!((spilled(&engine), engine.stats().spilled_bytes), (0, 0), "it expires on disk");
    engine.set_eviction_policy(Policy::named("allkeys-lru").unwrap());
    set(&mut engine, b"short", &long(1)[..LONG_MIN - 1]);
    assert!(engine.evict_one());
    assert_eq!((engine.key_count(), engine.evicted().keys), (0, 1));
}

#[test]
fn keys_of_spilled_values_are_keys_like_others() {
    let (mut engine, _) = engine("allkeys-lru");
    let spill = |engine: &mut Engine, key: &[u8], seed| {
        set(engine, key, &long(seed));
        while !is_spilled(engine, key) {
            assert!(engine.evict_one());
        }
    };
    spill(&mut engine, b"a|1", 1);
    set(&mut engine, b"a|1", b"new");
    assert_eq!((get(&mut engine, b"a|1"), spilled(&engine)), (Some(b"new".to_vec()), 0));
    spill(&mut engine, b"a|2", 2);
    assert_eq!(engine.append(b"a|2", b"tail"), Ok(LONG + 4));
    let whole = [&long(2)[..], b"tail"].concat();
    assert_eq!((get(&mut engine, b"a|2"), spilled(&engine)), (Some(whole.clone()), 0));
    spill(&mut engine, b"a|3", 3);
    assert_eq!(engine.stream_append(b"a|3", b"x", 0), Err(EngineError::WrongType.into()));
    assert!(!engine.is_stream(b"a|3"));
    let mut pairs = Vec::new();
    let read = engine.range(b"a|", b"a}", RangeOptions::default(), &mut |key, value| {
        pairs.push((key.to_vec(), value.to_vec()));
    });
    let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
    // What was there beside the spilled one may be gone, or spilled in its turn.
    assert!(pairs.contains(&pair(b"a|3", &long(3))));
    assert_eq!(read, Ok(pairs.len() as u64));
    assert_eq!(engine.remove(b"a|3"), Ok(true));
    engine.check_invariants();
    engine.flush();
    assert_eq!((engine.stats().spilled_bytes, engine.stats().value_bytes), (0, 0));
}

#[test]
fn where_a_value_is_is_no_change_to_those_who_watch_it() {
    let (mut engine, disk) = engine("allkeys-lru");
    set(&mut engine, b"k", &long(1));
    let count = engine.watch(b"k").unwrap();
    assert!(engine.evict_one());
    assert_eq!(engine.watched(b"k"), Ok(count));
    get(&mut engine, b"k");
    get(&mut engine, b"k");
    assert!(!is_spilled(&engine, b"k"));
    assert_eq!(engine.watched(b"k"), Ok(count));
    assert!(engine.evict_one());
    disk.0.borrow_mut().loses = 1;
    assert_ne!(engine.watched(b"k"), Ok(count), "it is lost");
    engine.unwatch(b"k");
}

#[test]
fn a_join_has_the_values_that_it_reads_brought_back() {
    let (mut engine, disk) = engine("allkeys-lru");
    let options = TableOptions { boundary: Some(1), ..TableOptions::default() };
    engine.table_set(b"p", &options).unwrap();
    for number in 0..4 {
        set(&mut engine, format!("p|bob|{number}").as_bytes(), &long(number));
    }
    while spilled(&engine) < 4 {
        assert!(engine.evict_one());
    }
    // One of them is lost: it is as if it had been evicted.
    let calls = disk.0.borrow().calls;
    disk.0.borrow_mut().loses = calls + 2;
    set(&mut engine, b"s|ann|bob", b"1");
    engine.join_add("t", "t|<u>|<p>|<n> = check s|<u>|<p> copy p|<p>|<n>", false).unwrap();
    assert_eq!((spilled(&engine), engine.key_count()), (0, 4));
    let count = engine.range(b"t|ann|", b"t|ann}", RangeOptions::default(), &mut |_, value| {
        assert_eq!(value.len(), LONG);
    });
    assert_eq!(count, Ok(3));
    // From now on they stay: no store could give them back.
    while engine.evict_one() {}
    assert_eq!((spilled(&engine), engine.key_count()), (0, 4));
    engine.check_invariants();
}

/// Says what a test wants it to say.
#[derive(Debug, Default)]
struct Notification(Cell<usize>);

impl Meter for Notification {
    fn used(&self) -> usize {
        self.0.get()
    }
}

#[test]
fn without_room_a_value_is_read_where_it_is_and_joins_are_refused() {
    let (mut engine, _) = engine("allkeys-lru");
    set(&mut engine, b"p|1", &long(1));
    assert!(engine.evict_one());
    engine.set_memory(Rc::new(Notification(Cell::new(2_000_000))), Some(1_000_000));
    engine.set_eviction_policy(Policy::named("noeviction").unwrap());
    for _ in 0..3 {
        assert_eq!(get(&mut engine, b"p|1"), Some(long(1)));
    }
    assert!(is_spilled(&engine, b"p|1"));
    let refused = engine.join_add("t", "t|<n> = copy p|<n>", false);
    assert_eq!(refused, Err(EngineError::OutOfMemory));
    assert_eq!(engine.append(b"p|1", b"x"), Err(Stop::Failed(EngineError::OutOfMemory)));
    assert_eq!(get(&mut engine, b"p|1"), Some(long(1)));
    engine.check_invariants();
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// After any history a read gives what was written last, or misses if the value had left memory.
#[test]
fn a_disk_that_loses_things_costs_misses_and_nothing_else() {
    let (mut misses, mut backs) = (0, 0);
    for seed in 0..120 {
        let rng = &mut Rng(seed);
        let (mut engine, disk) = engine("allkeys-lfu");
        disk.0.borrow_mut().loses = [0, 5, 23][seed as usize % 3];
        disk.0.borrow_mut().refuses = [0, 7, 0, 0][seed as usize % 4];
        let mut plain: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for _ in 0..400 {
            let key = format!("{}k{}", ["", "t|", "u|a|"][rng.below(3)], rng.below(6)).into_bytes();
            let elsewhere = is_spilled(&engine, &key);
            match rng.below(10) {
                0..=2 => {
                    let value = long(rng.below(250) as u8)[..[3, 100, LONG][rng.below(3)]].to_vec();
                    set(&mut engine, &key, &value);
                    plain.insert(key, value);
                }
                3 => {
                    let was = plain.get(&key).cloned().unwrap_or_default();
                    let length = engine.append(&key, b"more").unwrap();
                    let lost = elsewhere && length == 4;
                    let was = if lost { Vec::new() } else { was };
                    assert_eq!(length, was.len() + 4);
                    plain.insert(key, [&was[..], b"more"].concat());
                }
                4 => {
                    let was = plain.remove(&key).is_some();
                    assert_eq!(engine.remove(&key), Ok(was));
                }
                5 | 6 => {
                    // What is not spilled is evicted: then the key is gone.
                    let before = engine.evicted().keys;
                    engine.evict_one();
                    if engine.evicted().keys > before {
                        plain.retain(|key, _| engine.value_place(key).is_some());
                    }
                }
                7 | 8 => {
                    let got = get(&mut engine, &key);
                    if got.is_none() && elsewhere {
                        misses += 1;
                        plain.remove(&key);
                    }
                    backs += u32::from(elsewhere && !is_spilled(&engine, &key) && got.is_some());
                    assert_eq!(got, plain.get(&key).cloned());
                }
                _ => {
                    let all: Vec<_> = plain.keys().cloned().collect();
                    let away: Vec<bool> = all.iter().map(|key| is_spilled(&engine, key)).collect();
                    let mut seen = BTreeMap::new();
                    let mut each = |key: &[u8], value: headwater_pool::Value<'_>| {
                        seen.insert(key.to_vec(), value.to_vec());
                    };
                    engine.range(b"", b"", RangeOptions::default(), &mut each).unwrap();
                    for (key, away) in all.into_iter().zip(away) {
                        if away && !seen.contains_key(&key) {
                            misses += 1;
                            plain.remove(&key);
                        }
                    }
                    assert_eq!(seen, plain);
                }
            }
            engine.check_invariants();
            assert_eq!(engine.key_count(), plain.len() as u64);
        }
        engine.flush();
        let stats = engine.stats();
        assert_eq!((stats.value_bytes, stats.spilled_bytes), (0, 0), "seed {seed} leaks");
    }
    assert!(misses > 100 && backs > 100, "{misses} misses, {backs} came back");
}
