//! The checks notice what nothing in the protocol can: what is left out of what shards, disks and clients are told.

use headwater_sim::{Cut, Faults};
use std::panic::{catch_unwind, set_hook, take_hook};

/// In how many of so many seeds something left out is noticed.
fn found(cut: Cut, change: impl Fn(&mut Faults)) -> usize {
    let fails = |seed| {
        let run = catch_unwind(std::panic::AssertUnwindSafe(|| {
            headwater_sim::run(seed, |faults| {
                faults.cut = Some(cut);
                change(faults);
            })
        }));
        !matches!(run, Ok(Ok(_)))
    };
    (0..SEEDS).filter(|&seed| fails(seed)).count()
}

const SEEDS: u64 = 40;

#[test]
fn what_is_left_out_is_found() {
    // Some of it makes an engine give up.
    set_hook(Box::new(|_| {}));
    let mut few = Vec::new();
    let mut tell = |cut, change: &dyn Fn(&mut Faults)| {
        let found = found(cut, change);
        if found < 3 {
            few.push((cut, found));
        }
    };
    tell(Cut::Changes, &|_| {});
    tell(Cut::Pairs, &|_| {});
    tell(Cut::Resumed, &|faults| {
        (faults.disks, faults.forgetful, faults.lost, faults.crashes) = (true, false, 40, 12);
    });
    tell(Cut::Positions, &|_| {});
    tell(Cut::Resets, &|faults| faults.evictions = 200);
    tell(Cut::Unfollows, &|faults| (faults.evictions, faults.joins) = (200, 100));
    tell(Cut::Notifications, &|faults| faults.watches = 200);
    tell(Cut::Expiry, &|faults| faults.lives = true);
    tell(Cut::Source, &|faults| faults.sources = true);
    tell(Cut::Disk, &|faults| {
        (faults.disks, faults.evictions, faults.crashes) = (true, 60, 20);
    });
    drop(take_hook());
    assert!(few.is_empty(), "of {SEEDS} seeds too few show what is left out: {few:?}");
}
