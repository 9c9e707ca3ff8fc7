//! Transactions over several shards of which stores keep records, so that a crash leaves all of each or nothing: which of them are
//! safe everywhere, so that their records can go.
//!
//! A transaction gets its number when it has all of its locks, so where two concern the same keys, their numbers have the order in which they
//! were executed. It is *open* from then on until the last record of it is synced, whatever the durability: until then a failure of the machine could
//! take the part of one shard and leave that of another one.
//!
//! # Invariants
//! - R1. What is below [`Recorded::floor`] is done and synced at all shards. A shard that lets records go keeps the floor in their place, so a record
//!   that is missing below it is not taken for a part that is missing.
//!
//! # Cost
//! A lock for a few words, twice for each record and twice for each transaction.

use headwater_base::Shard;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a shard has found in its store at start.
#[derive(Debug)]
pub(crate) struct FoundRecords {
    /// Everything below this number is done.
    pub(crate) floor: u64,
    /// The furthest record of each transaction, by number.
    pub(crate) records: BTreeMap<u64, Vec<u8>>,
}

/// What all shards know of such transactions.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    state: Mutex<State>,
    /// What a crash has left by half is being finished: no client is served yet.
    finishing: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next transaction.
    next: u64,
    /// Those that are open, with how many reasons there are for it.
    open: BTreeMap<u64, u32>,
    found: BTreeMap<Shard, FoundRecords>,
}

impl Recorded {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A shard tells what it has found.
    pub(crate) fn found(&self, shard: Shard, found: FoundRecords) {
        let mut state = self.state();
        let last = found.records.last_key_value().map_or(0, |(number, _)| number + 1);
        state.next = state.next.max(last).max(found.floor);
        state.found.insert(shard, found);
    }

    /// What all shards have found.
    pub(crate) fn take_found(&self) -> BTreeMap<Shard, FoundRecords> {
        core::mem::take(&mut self.state().found)
    }

    /// A transaction that was found is to be finished.
    pub(crate) fn open(&self, number: u64) {
        self.state().open.insert(number, 1);
        self.finishing.store(true, Ordering::Release);
    }

    /// All of them are.
    pub(crate) fn finished(&self) {
        self.finishing.store(false, Ordering::Release);
    }

    /// Whether some are to be finished before clients are served.
    #[inline]
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Acquire)
    }

    /// The number of a transaction that begins to be executed. It is open until its coordinator closes it, too.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, 1);
        number
    }

    /// A shard has a record of an open transaction, which is not synced yet; gives the floor.
    pub(crate) fn hold(&self, number: u64) -> u64 {
        let mut state = self.state();
        *state.open.entry(number).or_default() += 1;
        state.open.first_key_value().map_or(number, |(first, _)| *first)
    }

    /// One of the reasons for which it is open is gone.
    pub(crate) fn close(&self, number: u64) {
        let mut state = self.state();
        let Some(reasons) = state.open.get_mut(&number) else { return };
        *reasons -= 1;
        if *reasons == 0 {
            state.open.remove(&number);
        }
    }

    /// The first number that is open, or will be (R1).
    pub(crate) fn floor(&self) -> u64 {
        let state = self.state();
        state.open.first_key_value().map_or(state.next, |(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_anywhere_holds_the_floor() {
        let recorded = Recorded::default();
        let records = BTreeMap::from([(7, Vec::new())]);
        recorded.found(Shard(0), FoundRecords { floor: 3, records });
        recorded.found(Shard(1), FoundRecords { floor: 9, records: BTreeMap::new() });
        assert_eq!((recorded.floor(), recorded.take_found().len()), (9, 2));
        recorded.open(7);
        assert!(recorded.is_finishing() && recorded.floor() == 7);
        let [one, two] = [recorded.begin(), recorded.begin()];
        assert_eq!((one, two), (9, 10));
        recorded.hold(one);
        recorded.hold(two);
        for number in [7, one, two, two] {
            recorded.close(number);
        }
        recorded.finished();
        assert!(!recorded.is_finishing() && recorded.floor() == one);
        recorded.close(one);
        assert_eq!(recorded.floor(), 11);
    }
}
