//! What a load reads. Alone in its process, since what that reads is counted.

mod common;

use common::{close, load, open};
use headwater_base::KeyRange;
use headwater_base::source::{Attributes, BaseStore};
use headwater_keep::Options;

#[test]
fn loads_read_their_range_alone() {
    let place = tempfile::tempdir().unwrap();
    let (store, told, _) = open(place.path(), Options::default());
    let mut keeper = store.keeper();
    for number in 0..100_000_u32 {
        let key = format!("p|{:03}|{number:06}", number % 1000);
        keeper.put(key.as_bytes(), &mut [&[b'v'; 100][..]].into_iter(), Attributes::default());
        if number % 1000 == 0 {
            store.commit();
        }
    }
    store.commit();
    drop(keeper);
    close(store);
    let (store, told_again, _) = open(place.path(), Options::default());
    drop(told);
    let mut keeper = store.keeper();
    // The store may be busy with its own files for a while, which counts as well.
    let read = (0..20_u32).map(|round| {
        let before = common::bytes_read();
        for user in [7, 300, 600] {
            let range = KeyRange::prefix(format!("p|{:03}|", user + 10 * round).as_bytes());
            let answer = load(&store, &mut keeper, &told_again, &range).unwrap();
            assert_eq!(answer.pairs.len(), 100);
        }
        common::bytes_read() - before
    });
    // Three times 13 KB of records, of 14 MB; blocks are 4 KB, and there are indexes and filters.
    let read = read.min().unwrap();
    assert!(read < 1_000_000, "{read} bytes read");
    assert_eq!(store.facts().loaded_keys, 6000);
}
