//! What a start reads: a part that does not grow with what is kept.

mod common;

use common::{bytes_read, copy_at_rest, open, rounds};
use headwater_base::source::{Attributes, BaseStore};
use headwater_keep::{Durability, Options, Store};
use std::path::Path;
use std::time::Instant;

/// Bytes of a value, unless `HEADWATER_KEEP_VALUE` says otherwise.
const VALUE: u64 = 4096;
/// Bytes that are written.
const WRITTEN: u64 = 300 << 20;
/// A start reads a journal twice, and there are two, or three where the disk is slow to take the tables
/// of the oldest. Without a bound it would be twice what is written.
const READ_AFTER_CRASH: u64 = 400 << 20;
/// After an end there is nothing in journals.
const READ_AFTER_END: u64 = 8 << 20;

/// Writes keys, one batch or more for every few of them.
fn write(path: &Path, options: Options, keys: u64, value: &[u8]) -> Store {
    let (store, told, _) = open(path, options);
    let mut keeper = store.keeper();
    for number in 0..keys {
        let key = format!("p|{}|{number}", number % 1000);
        keeper.put(key.as_bytes(), &mut [value].into_iter(), Attributes::default());
        if number % 8 == 0 {
            store.commit();
        }
        if number % 4096 == 0 {
            // Batches are small where clients wait for their replies.
            let last = store.commit();
            told.wait_until(|| store.notes().committed() >= last);
        }
    }
    store
}

#[test]
#[expect(clippy::print_stdout, reason = "a long run says what it has shown")]
fn a_start_reads_a_bounded_part_of_what_is_kept() {
    let options = Options { durability: Durability::None, ..Options::default() };
    let value = std::env::var("HEADWATER_KEEP_VALUE").ok().and_then(|text| text.parse().ok());
    let value = vec![7; value.unwrap_or(VALUE) as usize];
    let keys = WRITTEN * rounds(1) / value.len() as u64;
    let place = tempfile::tempdir().unwrap();
    let store = write(place.path(), options, keys, &value);
    let left = copy_at_rest(place.path());
    drop(store);
    for (how, path, most) in
        [("a crash", left.path(), READ_AFTER_CRASH), ("an end", place.path(), READ_AFTER_END)]
    {
        let (before, begun) = (bytes_read(), Instant::now());
        let (store, ..) = open(path, options);
        let (read, took) = (bytes_read() - before, begun.elapsed());
        println!("{keys} keys, after {how}: {read} bytes read in {took:.2?}");
        assert!(read < most, "{read} bytes after {how}");
        drop(store);
    }
}
