//! The store against a plain map: random operations, loads and reopenings; a folder that is in use; lost keyspaces.

mod common;

use common::{Rng, Told, close, load, open, rounds, value_of};
use headwater_base::source::{Attributes, BaseStore, News, Sink};
use headwater_base::{KeyRange, Millis};
use headwater_keep::{Durability, Feed, Options, Store, StoreHandle, StoreWatch};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{fs, thread};

type Model = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

fn key_of(rng: &mut Rng) -> Vec<u8> {
    let table = ["p", "q", "s"][rng.below(3) as usize];
    format!("{table}|{}|{:03}", rng.below(4), rng.below(60)).into_bytes()
}

fn range_of(rng: &mut Rng) -> KeyRange {
    match rng.below(4) {
        0 => KeyRange::all(),
        1 => KeyRange::prefix(&key_of(rng)[..4]),
        2 => KeyRange::point(&key_of(rng)),
        _ => KeyRange::new(&key_of(rng), &key_of(rng)),
    }
}

fn expected(model: &Model, range: &KeyRange) -> Vec<(Vec<u8>, Vec<u8>, Attributes)> {
    let within = model.iter().filter(|(key, _)| range.contains(key));
    within.map(|(key, (value, with))| (key.clone(), value.clone(), *with)).collect()
}

fn history(seed: u64, durability: Durability) {
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability, ..Options::default() };
    let (mut store, told, definitions) = open(place.path(), options);
    assert!(definitions.is_empty());
    let mut keeper = store.keeper();
    let mut told = told;
    let (mut model, mut joins) = (Model::new(), Vec::<(Vec<u8>, Vec<u8>)>::new());
    let mut rng = Rng(seed);
    let mut position = 0;
    let mut before_open = None;
    for step in 0..1500 {
        let before = position;
        match rng.below(100) {
            0..50 => {
                let key = key_of(&mut rng);
                let most = if rng.below(50) == 0 { 60_000 } else { 100 };
                let len = rng.below(most) as usize;
                let value = value_of(step, len);
                let expires = (rng.below(4) == 0).then(|| Millis(rng.below(1 << 40)));
                let attributes = Attributes {
                    expires,
                    flags: rng.below(3) as u32,
                    is_stream: rng.below(4) == 0,
                };
                position = keeper.put(&key, &mut value.chunks(4096), attributes).0;
                model.insert(key, (value, attributes));
            }
            50..65 => {
                let key = key_of(&mut rng);
                position = keeper.remove(&key).0;
                model.remove(&key);
            }
            65 => {
                let range = range_of(&mut rng);
                position = keeper.remove_range(&range).0;
                model.retain(|key, _| !range.contains(key));
            }
            66 => {
                position = keeper.clear().0;
                model.clear();
            }
            67..72 => {
                let name = format!("j{}", rng.below(5)).into_bytes();
                joins.retain(|(known, _)| *known != name);
                if rng.below(2) == 0 {
                    let text = value_of(step, 20);
                    position = keeper.define("join", &name, &text).0;
                    joins.push((name, text));
                } else {
                    position = keeper.undefine("join", &name).0;
                }
            }
            72..76 => _ = store.commit(),
            // Within a transaction everything is as ever, until it ends or comes to nothing.
            76..78 if before_open.is_none() => {
                store.begin_transaction();
                before_open = Some((position, model.clone(), joins.clone()));
            }
            76..80 => {
                store.end_transaction();
                before_open = None;
            }
            80..98 => {
                let range = range_of(&mut rng);
                if keeper.holds_nothing(&range) {
                    assert_eq!(expected(&model, &range), [], "seed {seed}, step {step}");
                }
                // What was told counts, committed or not.
                let answer = load(&store, &mut keeper, &told, &range).unwrap();
                assert_eq!(answer.position.0, position, "seed {seed}, step {step}");
                let mut found: Vec<_> =
                    answer.pairs.into_iter().map(|p| (p.key, p.value, p.attributes)).collect();
                found.sort_by(|a, b| a.0.cmp(&b.0));
                assert_eq!(found, expected(&model, &range), "seed {seed}, step {step}: {range:?}");
            }
            _ => {
                drop(keeper);
                close(store);
                if let Some(before) = before_open.take() {
                    (position, model, joins) = before;
                }
                let (again, again_told, definitions) = open(place.path(), options);
                (store, told) = (again, again_told);
                keeper = store.keeper();
                assert_eq!((store.durable().0, store.facts().position), (position, position));
                let tables = store.tables();
                let is_known = |key: &Vec<u8>| tables.contains(&key[..2].to_vec());
                assert!(model.keys().all(is_known), "seed {seed}, step {step}");
                let found: Vec<_> = definitions.into_iter().map(|d| (d.name, d.text)).collect();
                assert_eq!(found, joins, "seed {seed}, step {step}");
            }
        }
        assert!(position <= before + 1, "E1");
    }
}

#[test]
fn the_store_is_a_map_whatever_happens() {
    for seed in 0..rounds(1) {
        for durability in [Durability::None, Durability::Interval, Durability::Always] {
            history(seed, durability);
        }
    }
}

/// Tells of a value.
fn put(keeper: &mut StoreHandle, key: &str, value: &str) -> u64 {
    keeper.put(key.as_bytes(), &mut [value.as_bytes()].into_iter(), Attributes::default()).0
}

#[test]
fn a_transaction_is_one_batch_whatever_it_waits_for() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Always, ..Options::default() };
    let (store, told, _) = open(place.path(), options);
    let mut keeper = store.keeper();
    let before = put(&mut keeper, "p|before", "1");
    store.begin_transaction();
    for number in 0..3 {
        put(&mut keeper, &format!("p|{number}"), "x");
        let loaded = load(&store, &mut keeper, &told, &KeyRange::prefix(b"p|")).unwrap();
        assert_eq!(
            (loaded.pairs.len(), loaded.position.0),
            (number + 2, before + number as u64 + 1)
        );
        told.wait_until(|| store.durable().0 >= before);
        assert_eq!(store.durable().0, before, "nothing of it is written");
    }
    let batches = store.facts().batches;
    store.end_transaction();
    let last = store.commit();
    told.wait_until(|| store.durable() >= last);
    assert_eq!((store.facts().batches, last.0), (batches + 1, before + 3));
}

#[test]
fn removing_all_keys_is_one_batch_with_what_surrounds_it() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Always, ..Options::default() };
    let (store, told, _) = open(place.path(), options);
    let mut keeper = store.keeper();
    for round in 1..=3 {
        put(&mut keeper, "p|before", "1");
        keeper.clear();
        put(&mut keeper, "q|between", "2");
        keeper.clear();
        put(&mut keeper, "r|behind", "3");
        let last = store.commit();
        told.wait_until(|| store.durable() >= last);
        assert_eq!(store.facts().batches, round);
        let loaded = load(&store, &mut keeper, &told, &KeyRange::all()).unwrap();
        assert_eq!(loaded.pairs[0].key, b"r|behind");
        assert_eq!((loaded.pairs.len(), store.tables()), (1, vec![b"r|".to_vec()]));
    }
    drop(keeper);
    close(store);
    let (store, told, _) = open(place.path(), options);
    let loaded = load(&store, &mut store.keeper(), &told, &KeyRange::all()).unwrap();
    assert_eq!((loaded.pairs.len(), store.tables()), (1, vec![b"r|".to_vec()]));
}

#[test]
fn what_is_durable_follows_what_was_told() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Always, ..Options::default() };
    let (store, told, _) = open(place.path(), options);
    let mut keeper = store.keeper();
    for number in 0..50_u64 {
        keeper.put(&number.to_be_bytes(), &mut [&b"x"[..]].into_iter(), Attributes::default());
        if number % 10 == 9 {
            let position = store.commit();
            assert_eq!(position.0, number + 1);
            told.wait_until(|| store.durable() >= position);
        }
    }
    let facts = store.facts();
    assert!(facts.syncs >= 1 && facts.syncs <= 5, "{facts:?}");
    assert_eq!((facts.position, facts.durable, facts.pending_bytes), (50, 50, 0));
}

#[test]
fn a_sync_can_be_asked_for() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::None, ..Options::default() };
    let (store, told, _) = open(place.path(), options);
    for round in 1..=3 {
        let position =
            store.keeper().put(b"k", &mut [&b"x"[..]].into_iter(), Attributes::default());
        store.ask_sync();
        told.wait_until(|| store.durable() >= position);
        assert_eq!(store.facts().syncs, round);
    }
}

#[test]
fn keys_that_lie_apart_are_gathered_and_removed_as_told_so_far() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::None, ..Options::default() };
    let (store, _told, _) = open(place.path(), options);
    let mut keeper = store.keeper();
    let attributes = Attributes { expires: Some(Millis(7)), flags: 3, is_stream: false };
    for number in 0..10_000 {
        let key = format!("p|{number:05}");
        keeper.put(key.as_bytes(), &mut [&b"some"[..], b"thing"].into_iter(), attributes);
    }
    let odd = |key: &[u8]| key.ends_with(b"1");
    let last = keeper.remove(b"p|00011");
    let found = keeper.gather(&odd, u64::MAX).unwrap();
    assert!(store.durable() >= last);
    assert_eq!(found.len(), 999);
    assert!(found.iter().all(|pair| odd(&pair.key) && pair.value == b"something"));
    assert!(found.iter().all(|pair| pair.attributes == attributes));
    let error = keeper.gather(&odd, 10_000).unwrap_err();
    assert!(error.contains("10000 bytes"), "{error}");
    assert_eq!(keeper.remove_where(&|key| !odd(key)), Ok(9000));
    drop(keeper);
    close(store);
    let (store, told, _) = open(place.path(), options);
    let left = load(&store, &mut store.keeper(), &told, &KeyRange::all()).unwrap();
    assert_eq!(left.pairs.len(), 999);
    assert_eq!(store.keeper().settle(), Ok(()));
}

#[test]
fn a_survey_finds_what_is_put_meanwhile() {
    let mut rng = Rng(3);
    for round in 0..rounds(20) {
        let place = tempfile::tempdir().unwrap();
        let (store, told, _) = open(place.path(), Options::default());
        let (mut keeper, mut model) = (store.keeper(), Model::new());
        let odd = |key: &[u8]| key.ends_with(b"1");
        let ended = Arc::new(AtomicBool::new(false));
        let begins = rng.below(300);
        for step in 0..400 {
            if step == begins {
                let done = ended.clone();
                let done = move || done.store(true, Ordering::Relaxed);
                keeper.survey(Arc::new(odd), Box::new(done));
            }
            let key = key_of(&mut rng);
            match rng.below(40) {
                0 => {
                    keeper.clear();
                    model.clear();
                }
                1..8 => {
                    keeper.remove(&key);
                    model.remove(&key);
                }
                _ => {
                    let value = value_of(step, 9);
                    let none = Attributes::default();
                    keeper.put(&key, &mut core::iter::once(&value[..]), none);
                    model.insert(key, (value, none));
                }
            }
            if rng.below(9) == 0 {
                store.commit();
            }
        }
        if round % 2 == 0 {
            store.commit();
            told.wait_until(|| ended.load(Ordering::Relaxed));
            assert!(keeper.is_surveyed());
        }
        let found = keeper.gather(&odd, u64::MAX).unwrap();
        let found: Model =
            found.into_iter().map(|pair| (pair.key, (pair.value, pair.attributes))).collect();
        model.retain(|key, _| odd(key));
        assert_eq!(found, model, "round {round}");
        keeper.end_survey();
        assert!(!keeper.is_surveyed());
        // One that nobody waits for ends with the store.
        keeper.put(b"p|1", &mut core::iter::empty(), Attributes::default());
        keeper.survey(Arc::new(odd), Box::new(|| {}));
    }
}

#[test]
fn a_load_beyond_the_limit_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { load_bytes_max: 10_000, ..Options::default() };
    let (store, told, _) = open(place.path(), options);
    let mut keeper = store.keeper();
    for number in 0..100 {
        let key = format!("p|{number:03}");
        keeper.put(key.as_bytes(), &mut [&[b'v'; 200][..]].into_iter(), Attributes::default());
    }
    let error = load(&store, &mut keeper, &told, &KeyRange::all()).unwrap_err();
    assert!(error.contains("10000 bytes"), "{error}");
    let few = load(&store, &mut keeper, &told, &KeyRange::prefix(b"p|00")).unwrap();
    assert_eq!(few.pairs.len(), 10);
}

#[test]
fn a_folder_has_one_user_and_a_known_format() {
    let place = tempfile::tempdir().unwrap();
    let (store, _, _) = open(place.path(), Options::default());
    let error = Told::try_open(place.path(), Options::default()).unwrap_err();
    assert!(error.contains("another process"), "{error}");
    close(store);
    fs::write(place.path().join("headwater-data"), "Headwater data, format 9\n").unwrap();
    let error = Told::try_open(place.path(), Options::default()).unwrap_err();
    assert!(error.contains("format 1") && error.contains("format 9"), "{error}");
    fs::write(place.path().join("file"), "x").unwrap();
    assert!(Told::try_open(&place.path().join("file"), Options::default()).is_err());
}

#[test]
fn a_folder_whose_making_was_cut_short_is_made_again() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir_all(place.path().join("store")).unwrap();
    fs::write(place.path().join("store/0.jnl"), "").unwrap();
    fs::write(place.path().join("store/version"), "").unwrap();
    let (store, _, _) = open(place.path(), Options::default());
    store.keeper().put(b"k", &mut [&b"v"[..]].into_iter(), Attributes::default());
    close(store);
    // The format file was not there yet, but the store was: nothing of it may go.
    fs::remove_file(place.path().join("headwater-data")).unwrap();
    let (store, told, _) = open(place.path(), Options::default());
    let found = load(&store, &mut store.keeper(), &told, &KeyRange::all()).unwrap();
    assert_eq!(found.pairs.len(), 1);
    close(store);
    fs::remove_file(place.path().join("store/version")).unwrap();
    let error = Told::try_open(place.path(), Options::default()).unwrap_err();
    assert!(error.contains("damaged"), "{error}");
}

#[test]
fn writes_are_refused_while_the_disk_is_full() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { free_bytes_min: u64::MAX, ..Options::default() };
    let (store, told, _) = open(place.path(), options);
    assert_eq!(store.refusal(), None);
    let mut keeper = store.keeper();
    told.wait_until(|| {
        keeper.put(b"k", &mut [&b"v"[..]].into_iter(), Attributes::default());
        store.commit();
        store.refusal().is_some()
    });
    let why = store.refusal().unwrap();
    assert!(why.contains("bytes left"), "{why}");
    assert!(!store.failed());
    let found = load(&store, &mut keeper, &told, &KeyRange::all()).unwrap();
    assert_eq!(found.pairs.len(), 1);
}

fn _assert_send(store: Store) -> impl Send {
    store
}

struct NobodyListens;

impl Sink for NobodyListens {
    fn tell(&self, _: News) -> bool {
        true
    }
}

/// Whoever lacks memory waits for a store that is writing: a batch is in memory for as long as its sync takes.
#[test]
fn a_store_is_writing_until_what_it_has_written_is_synced() {
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Always, ..Options::default() };
    let watch = Arc::new(OnceLock::<StoreWatch>::new());
    // The writer's thread wakes the shard as soon as a batch is synced; it holds the batch then.
    let (seen, at_sync) = channel();
    let (look, seen) = (watch.clone(), Mutex::new(seen));
    let waker = Box::new(move || {
        if let Some(watch) = look.get() {
            let _gone = seen.lock().unwrap().send(watch.is_writing());
        }
    });
    let (store, _) =
        Store::open_with(place.path(), options, Feed::Own, Arc::new(NobodyListens), waker).unwrap();
    let mut keeper = store.keeper();
    watch.set(keeper.watch()).unwrap();
    for step in 0..20 {
        keeper.put(b"p|1", &mut [&*value_of(step, 1000)].into_iter(), Attributes::default());
        store.commit();
        assert!(at_sync.recv_timeout(Duration::from_secs(60)).unwrap(), "{step}");
    }
    while watch.get().unwrap().is_writing() {
        thread::yield_now();
    }
}
