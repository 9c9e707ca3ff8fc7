//! Files that are not as they were written: an error at start or of a load, never another answer.

mod common;

use common::{Rng, Told, close, copy, copy_at_rest, files, load, open, value_of};
use headwater_base::source::{Attributes, BaseStore};
use headwater_base::{KeyRange, Millis};
use headwater_keep::{Durability, Options};
use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// Fills a folder, with tables on disk where `many`, and changes much of it again. Where there are few, it is left as a crash
/// leaves it, with journals.
fn fill(folder: &Path, many: bool) -> (Content, usize) {
    let own = tempfile::tempdir().unwrap();
    let path = if many { folder } else { own.path() };
    let options = Options { durability: Durability::Always, ..Options::default() };
    let (store, told, _) = open(path, options);
    let mut keeper = store.keeper();
    let mut content = Content::new();
    let mut rng = Rng(if many { 1 } else { 2 });
    let steps = if many { 60_000 } else { 300 };
    for step in 0..steps {
        let key = format!("p|{:05}", rng.below(steps / 2)).into_bytes();
        if rng.below(5) == 0 {
            keeper.remove(&key);
            content.remove(&key);
        } else {
            let value = value_of(step, 10 + rng.below(300) as usize);
            let flags = (step % 7) as u32;
            let expires = (step % 3 == 0).then_some(Millis(1 << 50));
            keeper.put(
                &key,
                &mut value.chunks(4096),
                Attributes { expires, flags, is_stream: flags == 1 },
            );
            content.insert(key, value);
        }
        if step % (steps / 50) == 0 {
            let position = store.commit();
            told.wait_until(|| store.durable() >= position);
        }
    }
    keeper.define("join", b"t", b"t|<a> = copy p|<a>");
    let mut notes = store.notes();
    for number in 0..20_u8 {
        notes.put(&[b'r', number], &[number; 40]);
    }
    if !many {
        let position = store.commit();
        told.wait_until(|| store.durable() >= position);
        copy(copy_at_rest(path).path(), folder);
        for file in
            files(folder).iter().filter(|file| file.extension().is_some_and(|it| it == "jnl"))
        {
            // They are long in advance, and copied often.
            let most = written(&fs::read(file).unwrap()) as u64 + 4096;
            fs::File::options().write(true).open(file).unwrap().set_len(most).unwrap();
        }
    }
    drop((keeper, notes));
    close(store);
    (content, 21)
}

/// Opens a folder and reads all; a sentence where that is refused.
fn read(path: &Path) -> Result<(Content, usize), String> {
    let (store, told, definitions) = Told::try_open(path, Options::default())?;
    let mut keeper = store.keeper();
    let loaded = load(&store, &mut keeper, &told, &KeyRange::all());
    let notes = store.notes();
    let mut count = 0;
    let noted = notes.read(b"r", b"s", false, &mut |name, text| {
        assert!(text == [name[1]; 40], "a note that nobody wrote");
        count += 1;
        true
    });
    let result = noted.and(loaded).map(|loaded| {
        let pairs = loaded.pairs.into_iter().map(|pair| (pair.key, pair.value));
        (pairs.collect(), definitions.len() + count)
    });
    drop((keeper, notes));
    close(store);
    result
}

/// Damages one file after another, each in a fresh copy, and reads; gives how often that was refused,
/// and how often the damage changed nothing.
fn with_damage(many: bool, rounds: u64, damage: impl Fn(&Path, &mut Rng)) -> (usize, usize) {
    let place = tempfile::tempdir().unwrap();
    let expected = fill(place.path(), many);
    assert!(read(place.path()).unwrap() == expected, "undamaged data is read");
    let names: Vec<_> = files(place.path())
        .into_iter()
        .map(|file| file.strip_prefix(place.path()).unwrap().to_owned())
        .collect();
    let mut rng = Rng(7);
    let (mut refused, mut unchanged) = (0, 0);
    for _ in 0..rounds {
        for name in &names {
            let broken = tempfile::tempdir().unwrap();
            copy(place.path(), broken.path());
            damage(&broken.path().join(name), &mut rng);
            // A store that stops at a fault of its own is as good as a refusal.
            match catch_unwind(AssertUnwindSafe(|| read(broken.path()))) {
                Ok(Ok(found)) => {
                    assert!(found == expected, "wrong data with {} damaged", name.display());
                    unchanged += 1;
                }
                Ok(Err(why)) => {
                    assert!(!why.is_empty());
                    refused += 1;
                }
                Err(_) => panic!("damage in {} stops the program", name.display()),
            }
        }
    }
    (refused, unchanged)
}

/// The part of a file that was written: journals are made longer in advance.
fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1)
}

fn flip(file: &Path, rng: &mut Rng) {
    let mut bytes = fs::read(file).unwrap();
    let end = written(&bytes);
    if end > 0 {
        let at = rng.below(end as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        fs::write(file, bytes).unwrap();
    }
}

fn cut(file: &Path, rng: &mut Rng) {
    let bytes = fs::read(file).unwrap();
    let open = fs::File::options().write(true).open(file).unwrap();
    open.set_len(rng.below(written(&bytes) as u64 + 1)).unwrap();
}

#[test]
fn flipped_bits_are_never_believed() {
    let (refused, _) = with_damage(false, common::rounds(20), flip);
    assert!(refused > 0);
    let (refused, _) = with_damage(true, common::rounds(2), flip);
    assert!(refused > 0);
}

#[test]
fn cut_files_are_never_believed() {
    let (refused, _) = with_damage(false, common::rounds(5), cut);
    assert!(refused > 0);
    let (refused, _) = with_damage(true, common::rounds(2), cut);
    assert!(refused > 0);
}

#[test]
fn missing_files_are_noticed() {
    for many in [false, true] {
        let (refused, _) = with_damage(many, 1, |file, _| fs::remove_file(file).unwrap());
        assert!(refused > 0);
    }
}

#[test]
fn a_batch_that_a_failure_tore_goes_with_all_behind_it() {
    const KEYS: u64 = 100;
    let place = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::None, ..Options::default() };
    let (store, told, _) = open(place.path(), options);
    let mut keeper = store.keeper();
    for number in 0..KEYS {
        let (key, value) = (format!("p|{number:03}"), value_of(number, 2000));
        keeper.put(key.as_bytes(), &mut [&value[..]].into_iter(), Attributes::default());
        let last = store.commit();
        told.wait_until(|| store.notes().committed() >= last);
    }
    let left = copy_at_rest(place.path());
    drop(keeper);
    close(store);
    // The disk has what comes later, and a hole in what came before.
    let journal = left.path().join("store/0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    let hole = written(&bytes) / 2;
    bytes[hole..hole + 512].fill(0);
    fs::write(&journal, bytes).unwrap();
    // Neither does it have what the process had written down beside the store.
    for number in 0..2 {
        fs::write(left.path().join(format!("turns-{number}")), "").unwrap();
    }
    let (found, _) = read(left.path()).unwrap();
    let count = found.len() as u64;
    assert!(0 < count && count < KEYS, "{count} keys");
    for number in 0..count {
        assert_eq!(found.get(format!("p|{number:03}").as_bytes()), Some(&value_of(number, 2000)));
    }
}
