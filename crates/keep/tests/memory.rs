//! What a store gives back of its memory when it is asked to, as the allocator of the process counts it: so this test has a program
//! of its own.

mod common;

use common::{open, value_of};
use headwater_base::source::{Attributes, BaseStore};
use headwater_keep::Options;
use std::thread;
use tikv_jemalloc_ctl::{epoch, stats};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Bytes that this process has allocated and not freed.
fn allocated() -> usize {
    epoch::advance().unwrap();
    stats::allocated::read().unwrap()
}

#[test]
fn what_is_on_disk_leaves_memory_when_it_is_asked_for() {
    const VALUE: usize = 4 << 20;
    const VALUES: u64 = 16;
    let place = tempfile::tempdir().unwrap();
    let options = Options { table_bytes: 256 << 20, ..Options::default() };
    let (store, _told, _) = open(place.path(), options);
    let mut keeper = store.keeper();
    let watch = keeper.watch();
    let settle = || {
        while watch.is_writing() {
            thread::yield_now();
        }
    };
    let before = allocated();
    for at in 0..VALUES {
        let value = value_of(at, VALUE);
        let key = format!("p|{at}").into_bytes();
        keeper.put(&key, &mut [&*value].into_iter(), Attributes::default());
        store.commit();
        settle();
    }
    let whole = VALUE * VALUES as usize;
    assert!(
        allocated() > before + whole / 2,
        "it has them in memory until there is enough for a table"
    );
    // First it writes the table, and then it lets go of it; nothing is written meanwhile.
    while watch.give_back() {
        settle();
    }
    let (left, most) = (allocated(), before + whole / 2);
    assert!(left < most, "{left} of {most} bytes, and nothing more is coming");
}
