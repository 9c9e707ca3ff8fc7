//! The machine's power is taken away at any moment: of what was not synced any part may be on the disk, in any order. Whatever it is, the store
//! opens, has everything that it had called safe, and shows the state at one of its operations.
//!
//! A process writes to a store while `record.c` notes every change of its files. From that record the folder is built as it could be
//! after a failure at some point: files with what was synced and with any of the later writes, torn at sectors; folders with
//! any of the changes since they were synced, up to one of them.

#[path = "../common/mod.rs"]
mod common;
mod disk;

use common::{Rng, close, load, open, value_of};
use disk::Disk;
use headwater_base::KeyRange;
use headwater_base::source::{Attributes, BaseStore};
use headwater_keep::{Durability, Options, StoreHandle};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Operations of each process that writes.
const OPERATIONS: u64 = 1200;
/// Where the process notes what is safe.
const SAFE: &str = "told";
/// Cuts for each durability, unless `HEADWATER_POWER_CUTS` says how many there are in all.
const CUTS: u64 = 15;
/// Says to a process of this test what it is to do.
const TASK: &str = "HEADWATER_POWER_TASK";

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// One operation.
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    RemoveRange(KeyRange),
    Clear,
}

/// The operation with a number.
fn change(number: u64) -> Change {
    let mut rng = Rng(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let key = format!("p|{}|{:03}", rng.below(5), rng.below(200)).into_bytes();
    match rng.below(400) {
        0 => Change::Clear,
        1..5 => Change::RemoveRange(KeyRange::prefix(&key[..4])),
        5..80 => Change::Remove(key),
        _ => {
            let most = if rng.below(20) == 0 { 20_000 } else { 1500 };
            Change::Put(key, value_of(number, rng.below(most) as usize))
        }
    }
}

fn tell(keeper: &mut StoreHandle, number: u64) {
    let _position = match change(number) {
        Change::Put(key, value) => {
            keeper.put(&key, &mut [&value[..]].into_iter(), Attributes::default())
        }
        Change::Remove(key) => keeper.remove(&key),
        Change::RemoveRange(range) => keeper.remove_range(&range),
        Change::Clear => keeper.clear(),
    };
}

fn apply(content: &mut Content, number: u64) {
    match change(number) {
        Change::Put(key, value) => _ = content.insert(key, value),
        Change::Remove(key) => _ = content.remove(&key),
        Change::RemoveRange(range) => content.retain(|key, _| !range.contains(key)),
        Change::Clear => content.clear(),
    }
}

/// The keys that differ, the first few of them, with the lengths of their values.
fn differences(expected: &Content, found: &Content) -> String {
    let length = |content: &Content, key| content.get(key).map(Vec::len);
    let keys: std::collections::BTreeSet<&Vec<u8>> = expected.keys().chain(found.keys()).collect();
    let keys = keys.into_iter().filter(|&key| expected.get(key) != found.get(key));
    let told = keys.take(20).map(|key| {
        let (should, is) = (length(expected, key), length(found, key));
        format!("{}: {is:?} bytes, not {should:?}; ", key.escape_ascii())
    });
    let told: String = told.collect();
    if told.is_empty() {
        return told;
    }
    format!("{told}of {} keys, and {} found", expected.len(), found.len())
}

fn options(durability: Durability) -> Options {
    let interval = Duration::from_millis(30);
    // So small that tables are written and merged all the time.
    Options { durability, interval, table_bytes: 64 << 10, free_bytes_min: 0, ..Options::default() }
}

/// What the process does whose files are recorded.
fn work(folder: &Path, durability: Durability, ends: bool) {
    let mut options_of_note = File::options();
    let options_of_note = options_of_note.write(true).create(true).truncate(false);
    let note = options_of_note.open(folder.join(SAFE)).unwrap();
    let (store, told, _) = open(&folder.join("data"), options(durability));
    let mut keeper = store.keeper();
    let first = store.facts().position + 1;
    for number in first..first + OPERATIONS {
        tell(&mut keeper, number);
        if number % 7 == 0 {
            let last = store.commit();
            if number % 10 == 0 {
                told.wait_until(|| store.notes().committed() >= last);
            }
            note.write_all_at(&store.durable().0.to_le_bytes(), 0).unwrap();
        }
    }
    if ends {
        drop(keeper);
        close(store);
    } else {
        // A crash of the process takes nothing back.
        let last = store.commit();
        told.wait_until(|| store.survives() >= last || store.durable() >= last);
        std::process::exit(0);
    }
}

fn record(folder: &Path, file: &Path, durability: Durability) {
    let library = file.with_extension("so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/power/record.c");
    let mut cc = Command::new("cc");
    let cc = cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library);
    assert!(cc.args([source, "-ldl"]).status().unwrap().success(), "record.c is compiled");
    for ends in [false, true, false] {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "what_was_safe_survives_a_failure_of_the_machine", "--nocapture"]);
        process.env(TASK, format!("{durability} {ends}")).env("LD_PRELOAD", &library);
        process.env("RECORD_FOLDER", folder).env("RECORD_FILE", file);
        let output = process.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Opens what a failure has left, and reads all; gives the position and the content.
fn read(path: &Path, durability: Durability) -> Result<(u64, Content), String> {
    let (store, told, _) = common::Told::try_open(path, options(durability))?;
    let mut keeper = store.keeper();
    let loaded = load(&store, &mut keeper, &told, &KeyRange::all());
    let position = store.facts().position;
    drop(keeper);
    close(store);
    Ok((position, loaded?.pairs.into_iter().map(|pair| (pair.key, pair.value)).collect()))
}

#[expect(clippy::print_stdout, reason = "a long run says what it has shown")]
fn cut(durability: Durability, cuts: u64) {
    let place = tempfile::tempdir().unwrap();
    let place = place.path().canonicalize().unwrap();
    let (folder, file) = (place.join("disk"), place.join("record"));
    fs::create_dir(&folder).unwrap();
    record(&folder, &file, durability);
    let bytes = fs::read(&file).unwrap();
    let mut rng = Rng(cuts);
    let all = disk::count(&bytes);
    let mut moments: Vec<u64> = (0..cuts).map(|_| rng.below(all + 1)).collect();
    moments.sort_unstable();
    let (mut disk, mut done, mut rest) = (Disk::default(), 0, &bytes[..]);
    let (mut content, mut reached, mut most) = (Content::new(), 0, 0);
    for (number, moment) in moments.into_iter().enumerate() {
        while done < moment {
            rest = disk.take(rest);
            done += 1;
        }
        let safe =
            disk.written(SAFE).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        let image = tempfile::tempdir().unwrap();
        disk.build(image.path(), &mut rng);
        let data = image.path().join("data");
        let what = format!("{durability}, cut {number}: after change {moment} of {all}");
        let found = catch_unwind(AssertUnwindSafe(|| read(&data, durability)));
        let (position, found) = found
            .unwrap_or_else(|_| panic!("{what}"))
            .unwrap_or_else(|why| panic!("{what}: {why}"));
        assert!(position >= safe, "{what}: {position} of {safe} safe ones");
        if position < reached {
            (content, reached) = (Content::new(), 0);
        }
        while reached < position {
            reached += 1;
            apply(&mut content, reached);
        }
        let differences = differences(&content, &found);
        assert!(differences.is_empty(), "{what}: not the state at {position}: {differences}");
        most = most.max(position - safe);
    }
    println!(
        "{durability}: {cuts} cuts in {all} changes, at most {most} operations more than were safe"
    );
}

#[test]
fn what_was_safe_survives_a_failure_of_the_machine() {
    if let Ok(task) = std::env::var(TASK) {
        let (durability, ends) = task.split_once(' ').unwrap();
        let folder = std::env::var("RECORD_FOLDER").unwrap();
        work(Path::new(&folder), durability.parse().unwrap(), ends == "true");
        return;
    }
    let asked = std::env::var("HEADWATER_POWER_CUTS").ok().and_then(|text| text.parse().ok());
    for durability in [Durability::Always, Durability::Interval, Durability::None] {
        cut(durability, asked.map_or(CUTS, |all: u64| all / 3));
    }
}
