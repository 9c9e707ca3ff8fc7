//! Backups: what is restored is the state at which the backup began, whatever was written meanwhile, or an error.

mod common;

use common::{Rng, Told, load, open, value_of};
use headwater_base::source::{Attributes, BaseStore};
use headwater_base::{KeyRange, Millis};
use headwater_keep::{
    BackupPiece, BackupReader, Feed, LogMark, Options, Restored, Store, StoreHandle, TurnLog,
    restore, restore_copy,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

type Keys = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

/// All of a backup, or why there is no more of it.
fn take_all(reader: &BackupReader) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    loop {
        match reader.take()? {
            BackupPiece::Pending => thread::sleep(Duration::from_millis(1)),
            BackupPiece::Bytes(bytes) => all.extend(bytes),
            BackupPiece::End => return Ok(all),
        }
    }
}

fn restored(backup: &[u8]) -> Result<(tempfile::TempDir, Restored), String> {
    let folder = tempfile::tempdir().unwrap();
    let restored = restore(folder.path(), &mut &*backup)?;
    Ok((folder, restored))
}

#[test]
fn a_backup_of_another_format_is_refused_with_its_number() {
    for (number, told) in [("2\n", "format 2"), ("11", "format 11"), ("9\nand more", "format 9")] {
        let backup =
            format!("Headwater backup of a shard, format {number}and what there is behind it");
        let why = restored(backup.as_bytes()).unwrap_err();
        assert_eq!(why, format!("it has {told}, and this version reads format 1 alone"));
    }
    let why = restored(b"Another file that is at least as long as the first line").unwrap_err();
    assert_eq!(why, "it is no backup of a shard");
}

fn keys(store: &Store, told: &Told) -> Keys {
    let loaded = load(store, &mut store.keeper(), told, &KeyRange::all()).unwrap();
    loaded.pairs.into_iter().map(|pair| (pair.key, (pair.value, pair.attributes))).collect()
}

fn change(keeper: &mut StoreHandle, model: &mut Keys, rng: &mut Rng) {
    let key = format!("{}|{}", ["a", "b", "c"][rng.below(3) as usize], rng.below(50)).into_bytes();
    match rng.below(60) {
        0 => {
            keeper.clear();
            model.clear();
        }
        1..=3 => {
            let range = KeyRange::new(&key, b"b|3");
            keeper.remove_range(&range);
            model.retain(|key, _| !range.contains(key));
        }
        4..=15 => {
            keeper.remove(&key);
            model.remove(&key);
        }
        at => {
            let long = if at == 16 { 600_000 } else { 40 };
            let value = value_of(rng.below(1 << 20), rng.below(long) as usize);
            let expires = (at % 4 == 0).then_some(Millis(at));
            let attributes = Attributes { expires, flags: (at % 3) as u32, is_stream: at % 5 == 0 };
            keeper.put(&key, &mut core::iter::once(&value[..]), attributes);
            model.insert(key, (value, attributes));
        }
    }
}

#[test]
fn what_is_restored_is_the_state_at_which_the_backup_began() {
    for seed in 0..common::rounds(12) {
        let folder = tempfile::tempdir().unwrap();
        let (store, told, _) = open(folder.path(), Options::default());
        let (mut keeper, mut model, mut rng) = (store.keeper(), Keys::new(), Rng(seed));
        let mut notes = store.notes();
        for round in 0..4 {
            for _ in 0..rng.below(200) {
                change(&mut keeper, &mut model, &mut rng);
                if rng.below(4) == 0 {
                    store.commit();
                }
            }
            let name = format!("join {round}");
            keeper.define("join", name.as_bytes(), b"text");
            notes.put(b"note", &[round]);
            // Part of a transaction that has not ended is none of it.
            let expected = model.clone();
            let is_open = rng.below(2) == 0;
            if is_open {
                store.begin_transaction();
                change(&mut keeper, &mut model, &mut rng);
            }
            let reader = store.begin_backup().unwrap();
            for _ in 0..rng.below(200) {
                change(&mut keeper, &mut model, &mut rng);
            }
            store.end_transaction();
            store.commit();
            let backup = take_all(&reader).unwrap();
            let (copy, restored) = restored(&backup).unwrap();
            assert_eq!(restored.keys, expected.len() as u64);
            let (copied, told_copy, declared) = open(copy.path(), Options::default());
            assert!(keys(&copied, &told_copy) == expected, "seed {seed}, round {round}");
            let names: Vec<_> = declared.iter().map(|it| it.name.as_slice()).collect();
            let all: Vec<_> = (0..=round).map(|at| format!("join {at}").into_bytes()).collect();
            assert_eq!(names, all);
            let mut found = Vec::new();
            let note = &mut |name: &[u8], text: &[u8]| {
                found.push((name.to_vec(), text.to_vec()));
                true
            };
            copied.notes().read(b"", b"z", false, note).unwrap();
            assert_eq!(found, [(b"note".to_vec(), vec![round])]);
            // It is a store like any other.
            copied.keeper().put(b"z", &mut core::iter::once(&b"1"[..]), Attributes::default());
            common::close(copied);
            let (again, told_again, _) = open(copy.path(), Options::default());
            assert_eq!(keys(&again, &told_again).len(), expected.len() + 1);
        }
        assert!(keys(&store, &told) == model);
    }
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _told, _) = open(folder.path(), Options::default());
    let mut keeper = store.keeper();
    keeper.define("join", b"t", b"text");
    store.notes().put(b"note", b"1");
    for at in 0..3 {
        let key = format!("p|{at}");
        keeper.put(key.as_bytes(), &mut core::iter::once(&b"value"[..]), Attributes::default());
    }
    let backup = take_all(&store.begin_backup().unwrap()).unwrap();
    restored(&backup).unwrap();
    for at in 0..backup.len() {
        let mut bad = backup.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(restored(&bad).is_err(), "byte {at}");
    }
    for len in (0..backup.len()).step_by(3) {
        let why = restored(&backup[..len]).unwrap_err();
        assert!(why.contains("cut short"), "{why}");
    }
    let longer = [&backup[..], b"x"].concat();
    assert!(restored(&longer).unwrap_err().contains("damaged"));
    let why = restore(folder.path(), &mut &*backup).unwrap_err();
    assert!(why.contains("another process"), "{why}");
    drop(keeper);
    common::close(store);
    let why = restore(folder.path(), &mut &*backup).unwrap_err();
    assert!(why.contains("has data already"), "{why}");
}

#[test]
fn a_backup_that_nobody_takes_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _told, _) = open(folder.path(), Options::default());
    let mut keeper = store.keeper();
    for at in 0..100_u64 {
        let value = value_of(at, 60_000);
        let key = format!("p|{at}");
        keeper.put(key.as_bytes(), &mut core::iter::once(&value[..]), Attributes::default());
        store.commit();
    }
    let (dropped, kept) = (store.begin_backup().unwrap(), store.begin_backup().unwrap());
    drop((dropped, keeper));
    common::close(store);
    assert!(take_all(&kept).unwrap_err().contains("ended"));
    // The folder is free.
    common::close(open(folder.path(), Options::default()).0);
}

#[derive(Debug)]
struct Queue(Arc<Mutex<Vec<u64>>>);

impl TurnLog for Queue {
    fn append(&mut self, last: u64, _: Vec<u8>) {
        self.0.lock().unwrap().push(last);
    }
}

fn behind_log(path: &Path) -> (Store, Arc<Mutex<Vec<u64>>>) {
    let appended = Arc::new(Mutex::new(Vec::new()));
    let feed = Feed::Log(Box::new(Queue(appended.clone())));
    (Told::try_open_with(path, Options::default(), feed).unwrap().0, appended)
}

#[test]
fn what_a_log_has_not_acknowledged_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let (store, appended) = behind_log(folder.path());
    let put = |key: &[u8]| {
        store.keeper().put(key, &mut core::iter::once(&b"v"[..]), Attributes::default());
        store.commit();
    };
    let acknowledge = |last: u64| {
        store.acknowledger().acknowledged(last, LogMark { sequence: last, checksum: last });
    };
    take_all(&store.begin_backup().unwrap()).unwrap();
    put(b"a");
    let reader = store.begin_backup().unwrap();
    assert_eq!(reader.take(), Ok(BackupPiece::Pending));
    let all = appended.lock().unwrap().clone();
    acknowledge(*all.last().unwrap());
    let backup = take_all(&reader).unwrap();
    // What is restored is nobody's copy of a log.
    let (copy, restored) = restored(&backup).unwrap();
    assert_eq!(restored.keys, 1);
    common::close(open(copy.path(), Options::default()).0);
    // The place in the log belongs to the last operation, also where a view was taken between.
    put(b"b");
    let between = store.begin_backup().unwrap();
    put(b"c");
    let last = *appended.lock().unwrap().last().unwrap();
    acknowledge(last);
    take_all(&between).unwrap();
    put(b"d");
    let never = store.begin_backup().unwrap();
    common::close(store);
    assert!(take_all(&never).is_err());
    let (store, _) = behind_log(folder.path());
    assert_eq!(store.log_mark(), Some(LogMark { sequence: last, checksum: last }));
}

#[test]
fn a_copy_of_a_log_is_made_anew_of_another_ones_state() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, appended) = behind_log(folder.path());
    let write = |store: &Store, key: &[u8]| {
        store.keeper().put(key, &mut core::iter::once(&b"v"[..]), Attributes::default());
        store.commit();
        *appended.lock().unwrap().last().unwrap()
    };
    assert!(store.acknowledger().begin_backup().unwrap().is_none(), "it has nothing of the log");
    let first = write(&store, b"p|a");
    let mark = LogMark { sequence: 40, checksum: 7 };
    store.acknowledger().acknowledged(first, mark);
    // Not acknowledged, and so not in it.
    write(&store, b"p|never");
    let (at, backup) = loop {
        if let Some((at, reader)) = store.acknowledger().begin_backup().unwrap() {
            break (at, take_all(&reader).unwrap());
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(at, mark);
    drop(store);

    // The other node's folder has something else, from an earlier part of the log.
    let follows = |path: &Path| Told::try_open_with(path, Options::default(), Feed::Follows);
    let (store, appended) = behind_log(other.path());
    store.keeper().put(b"p|old", &mut core::iter::once(&b"v"[..]), Attributes::default());
    store.commit();
    let last = *appended.lock().unwrap().last().unwrap();
    store.acknowledger().acknowledged(last, LogMark { sequence: 3, checksum: 3 });
    drop(store);
    assert_eq!(follows(other.path()).unwrap().0.log_mark().unwrap().sequence, 3);

    // Cut short, it is the copy of an empty log, from which no node begins where the log is purged.
    for cut in [backup.len() - 1, backup.len() / 2, 50] {
        assert!(restore_copy(other.path(), &mut &backup[..cut], mark).is_err());
        assert_eq!(follows(other.path()).unwrap().0.log_mark(), None);
    }
    assert_eq!(restore_copy(other.path(), &mut &*backup, mark).unwrap().keys, 1);
    let (store, told, _) = follows(other.path()).unwrap();
    assert_eq!(store.log_mark(), Some(mark));
    let found: Vec<_> = keys(&store, &told).into_keys().collect();
    assert_eq!(found, [b"p|a".to_vec()]);
}
