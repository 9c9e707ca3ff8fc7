//! A log before the store: the folder has what the log has acknowledged and nothing else, at the owner as at those who follow.

mod common;

use common::{Rng, Told, load};
use headwater_base::KeyRange;
use headwater_base::source::{Attributes, BaseStore};
use headwater_keep::{
    Acknowledger, FORMAT_FILE, Feed, LogMark, Options, Store, TurnLog, discard_copy,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What was appended: each turn with its last operation.
type Appended = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

#[derive(Debug)]
struct Queue(Appended);

impl TurnLog for Queue {
    fn append(&mut self, last: u64, turn: Vec<u8>) {
        self.0.lock().unwrap().push((last, turn));
    }
}

fn open(path: &Path, feed: Feed) -> (Store, Told) {
    let (store, told, _) = Told::try_open_with(path, Options::default(), feed).unwrap();
    (store, told)
}

fn mark(number: usize) -> LogMark {
    LogMark { sequence: number as u64, checksum: !(number as u64) }
}

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

fn keys(path: &Path) -> (Keys, Option<LogMark>) {
    let (store, told) = open(path, Feed::Follows);
    let loaded = load(&store, &mut store.keeper(), &told, &KeyRange::all()).unwrap();
    let pairs = loaded.pairs.into_iter().map(|pair| (pair.key.to_vec(), pair.value.to_vec()));
    (pairs.collect(), store.log_mark())
}

#[test]
fn the_folder_has_what_the_log_has_acknowledged() {
    for seed in 0..common::rounds(20) {
        let (owner, follower) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut rng = Rng(seed);
        // Turns of the log, of all lives of the owner, and the keys behind each.
        let (mut log, mut states) = (Vec::<Vec<u8>>::new(), vec![Keys::new()]);
        for _ in 0..4 {
            let appended = Appended::default();
            let (store, _told) = open(owner.path(), Feed::Log(Box::new(Queue(appended.clone()))));
            let last = store.log_mark().map_or(0, |mark| mark.sequence as usize);
            assert_eq!(last, log.len(), "seed {seed}: what was acknowledged is there, no more");
            let (mut keeper, acknowledger) = (store.keeper(), store.acknowledger());
            let (mut model, mut pending) = (states[log.len()].clone(), Vec::new());
            for _ in 0..rng.below(40) {
                for _ in 0..=rng.below(3) {
                    let key = format!("p|{}", rng.below(9)).into_bytes();
                    if rng.below(3) == 0 {
                        keeper.remove(&key);
                        model.remove(&key);
                    } else {
                        let value = rng.below(1000).to_string().into_bytes();
                        let none = Attributes::default();
                        keeper.put(&key, &mut core::iter::once(&value[..]), none);
                        model.insert(key, value);
                    }
                }
                store.commit();
                pending.push(model.clone());
                while !pending.is_empty() && rng.below(3) == 0 {
                    let (last, turn) = appended.lock().unwrap().remove(0);
                    log.push(turn);
                    states.push(pending.remove(0));
                    acknowledger.acknowledged(last, mark(log.len()));
                    assert!(store.survives().0 >= last);
                }
            }
            // What is not acknowledged at the end of the process is void.
        }
        let (store, _told) = open(follower.path(), Feed::Follows);
        for (at, turn) in log.iter().enumerate() {
            store.follow(turn, mark(at + 1)).unwrap();
        }
        if let Some(turn) = log.last() {
            let error = store.follow(turn, mark(log.len())).unwrap_err();
            assert!(error.contains("not a copy of this log"), "{error}");
            let cut = &turn[..turn.len() - 1];
            assert!(store.follow(cut, mark(log.len())).unwrap_err().contains("damaged"));
        }
        drop(store);
        let end = (!log.is_empty()).then(|| mark(log.len()));
        for place in [&owner, &follower] {
            assert_eq!(keys(place.path()), (states[log.len()].clone(), end), "seed {seed}");
        }
    }
}

/// A log that has what it is given before it says so to who gave it.
#[derive(Debug, Default)]
struct Quick(Arc<Mutex<(Option<Acknowledger>, usize)>>);

impl TurnLog for Quick {
    fn append(&mut self, last: u64, _: Vec<u8>) {
        let mut state = self.0.lock().unwrap();
        state.1 += 1;
        let at = mark(state.1);
        state.0.as_ref().expect("it is known by now").acknowledged(last, at);
    }
}

#[test]
fn what_the_log_has_at_once_comes_into_the_folder() {
    let place = tempfile::tempdir().unwrap();
    let quick = Quick::default();
    let known = quick.0.clone();
    let (store, _told) = open(place.path(), Feed::Log(Box::new(quick)));
    known.lock().unwrap().0 = Some(store.acknowledger());
    let mut keeper = store.keeper();
    for key in [&b"p|a"[..], b"p|b"] {
        keeper.put(key, &mut core::iter::once(&b"1"[..]), Attributes::default());
        store.commit();
    }
    known.lock().unwrap().0 = None;
    drop((keeper, store));
    let (pairs, end) = keys(place.path());
    assert_eq!((pairs.len(), end), (2, Some(mark(2))));
}

/// A store whose log takes little before writes are refused, and has what it was given in `appended`.
fn open_narrow(path: &Path, appended: &Appended) -> (Store, Told) {
    let options = Options { table_bytes: 64 << 10, ..Options::default() };
    let feed = Feed::Log(Box::new(Queue(appended.clone())));
    let (store, told, _) = Told::try_open_with(path, options, feed).unwrap();
    (store, told)
}

/// A key's value, of which some twenty are as much as a turn may have.
fn put(keeper: &mut impl BaseStore, number: usize) {
    let (key, value) = (format!("p|{number}"), vec![b'x'; 12_500]);
    keeper.put(key.as_bytes(), &mut core::iter::once(&value[..]), Attributes::default());
}

#[test]
fn writes_are_refused_behind_a_turn_that_is_long_until_the_log_has_it() {
    let (place, appended) = (tempfile::tempdir().unwrap(), Appended::default());
    let (store, _told) = open_narrow(place.path(), &appended);
    let mut keeper = store.keeper();
    let mut put = |number| put(&mut keeper, number);
    (0..20).for_each(&mut put);
    assert_eq!(store.refusal(), None);
    put(20);
    assert!(store.refusal().is_some(), "a turn may be as long as it likes");
    assert!(store.refuses_for_log());
    store.commit();
    assert!(store.refusal().is_some());
    let (last, turn) = appended.lock().unwrap().pop().unwrap();
    assert!(turn.len() >= 262_500);
    store.acknowledger().acknowledged(last, mark(1));
    assert_eq!((store.refusal(), store.refuses_for_log()), (None, false));
    // A transaction is one, however long it is.
    store.begin_transaction();
    (0..30).for_each(&mut put);
    assert_eq!(store.refusal(), None);
    store.end_transaction();
    assert!(store.refusal().is_some(), "more of them would be one turn with it");
    store.commit();
    assert!(store.refusal().is_some());
}

#[test]
fn what_the_log_has_acknowledged_in_part_and_what_the_disk_has_room_for_allow_nothing_more() {
    let (place, appended) = (tempfile::tempdir().unwrap(), Appended::default());
    let (store, _told) = open_narrow(place.path(), &appended);
    let mut keeper = store.keeper();
    for number in 0..20 {
        put(&mut keeper, number);
        store.commit();
    }
    assert!(store.refuses_for_log());
    let mut turns = std::mem::take(&mut *appended.lock().unwrap()).into_iter();
    let (first, _) = turns.next().unwrap();
    let acknowledger = store.acknowledger();
    acknowledger.acknowledged(first, mark(1));
    // The writer has the first of them, and looks at the disk, which it does every quarter of a second.
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(store.refuses_for_log());
    let (last, _) = turns.next_back().unwrap();
    acknowledger.acknowledged(last, mark(20));
    assert_eq!((store.refusal(), store.refuses_for_log()), (None, false));
}

#[test]
fn a_folder_is_a_servers_own_or_a_copy() {
    let place = tempfile::tempdir().unwrap();
    let (store, _told) = open(place.path(), Feed::Own);
    let none = Attributes::default();
    store.keeper().put(b"p|a", &mut core::iter::once(&b"1"[..]), none);
    drop(store);
    let error = Told::try_open_with(place.path(), Options::default(), Feed::Follows).unwrap_err();
    assert!(error.contains("begins with an empty folder"), "{error}");
    let copy = tempfile::tempdir().unwrap();
    let appended = Appended::default();
    let (store, _told) = open(copy.path(), Feed::Log(Box::new(Queue(appended.clone()))));
    store.keeper().put(b"p|a", &mut core::iter::once(&b"1"[..]), none);
    let last = store.commit().0;
    store.acknowledger().acknowledged(last, mark(1));
    drop(store);
    let error = Told::try_open_with(copy.path(), Options::default(), Feed::Own).unwrap_err();
    assert!(error.contains("a copy of a cluster's log"), "{error}");
}

#[test]
fn a_copy_that_is_discarded_is_kept_until_another_one_is() {
    let place = tempfile::tempdir().unwrap();
    let fill = |key: &[u8], at: usize| {
        let appended = Appended::default();
        let (store, _told) = open(place.path(), Feed::Log(Box::new(Queue(appended))));
        assert_eq!(store.log_mark(), None, "it is as a new one");
        let none = Attributes::default();
        store.keeper().put(key, &mut core::iter::once(&b"1"[..]), none);
        let last = store.commit().0;
        store.acknowledger().acknowledged(last, mark(at));
    };
    let mut aside = None;
    for (key, at) in [(b"p|a", 7), (b"p|b", 4)] {
        fill(key, at);
        let kept = discard_copy(place.path()).unwrap();
        assert_eq!(aside.get_or_insert_with(|| kept.clone()), &kept, "there is one at most");
        let (found, end) = keys(&kept);
        assert_eq!(found.keys().collect::<Vec<_>>(), [key]);
        assert_eq!(end, Some(mark(at)));
        assert_eq!(keys(place.path()), (Keys::new(), None));
    }
    // Cut short when the folder was no longer known by its format: it is as it was, and is discarded again.
    fill(b"p|c", 9);
    let kept = aside.unwrap();
    std::fs::rename(place.path().join(FORMAT_FILE), kept.join(FORMAT_FILE)).unwrap();
    assert_eq!(keys(place.path()).1, Some(mark(9)));
    discard_copy(place.path()).unwrap();
    assert_eq!(keys(&kept).1, Some(mark(9)));
    let (_store, _told) = open(place.path(), Feed::Follows);
    assert!(discard_copy(place.path()).unwrap_err().contains("another process"));
}

/// Programs that read the same format of a log's records understand each other, so the bytes of turns stay what they are. Where this fails, they have changed: make
/// that another format of records (`headwater_log::RECORD_FORMATS`), and go on writing and reading the ones before.
#[test]
fn the_bytes_of_a_turn_stay_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let appended = Appended::default();
    let (store, _told) = open(folder.path(), Feed::Log(Box::new(Queue(appended.clone()))));
    let mut keeper = store.keeper();
    let attributes = Attributes { flags: 7, ..Attributes::default() };
    keeper.put(b"k|a", &mut [&b"value"[..]].into_iter(), attributes);
    keeper.remove(b"k|b");
    keeper.remove_range(&KeyRange::new(b"k|c", b"k|d"));
    keeper.clear();
    store.commit();
    let turn = appended.lock().unwrap()[0].1.clone();
    assert_eq!(
        (turn.len(), headwater_base::hash::stable_hash(0, &turn)),
        (91, 14_299_881_694_721_514_121)
    );
}
