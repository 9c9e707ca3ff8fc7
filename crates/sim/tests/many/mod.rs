//! Many seeds on all cores, and how often what happened in them.

use headwater_sim::Seen;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The number that a variable of the environment says.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs seeds until five have failed, and shows what happened where the variable `show` is set. Of a thousand seeds or more at
/// least one must show each of `happens`.
pub(crate) fn run_all(
    seeds: Range<u64>,
    run: impl Fn(u64) -> Result<Seen, String> + Sync,
    happens: &[&str],
    show: &str,
) {
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let all = Mutex::new(Seen::new());
    let count = || failed.lock().expect("no thread panics").len();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while count() < 5 {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    match run(seed) {
                        Ok(seen) => {
                            let mut all = all.lock().expect("no thread panics");
                            seen.into_iter()
                                .for_each(|(what, n)| *all.entry(what).or_default() += n);
                        }
                        Err(text) => failed.lock().expect("no thread panics").push(text),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no thread panics");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let all = all.into_inner().expect("no thread panics");
    if number(show).is_some() {
        panic!("{all:#?}");
    }
    if seeds.end - seeds.start >= 1000 {
        let never: Vec<_> = happens.iter().filter(|what| !all.contains_key(**what)).collect();
        assert!(never.is_empty(), "never happens: {never:?}; but {all:#?}");
    }
}
