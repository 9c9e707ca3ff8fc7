//! Who may touch which keys of one shard, while several shards do one thing.
//!
//! A transaction over several shards locks the partitions of its keys at each of them, one shard after the other in the order of
//! their numbers: so two transactions never wait for each other. Whatever else concerns these partitions waits meanwhile, in
//! the order in which it came.
//!
//! # Invariants
//! - B1. Of two entries with a partition in common, of which one is a transaction's, the later one is granted only when the earlier
//!   one is gone. So nobody waits for those that came later; and single requests never wait for one another.
//!
//! # Cost
//! Nothing where nothing is locked. An entry is compared with all before it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_base::placement::Partition;

/// Names a transaction over several shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransactionId {
    /// The shard of its client.
    pub coordinator: Shard,
    /// Sequence number of the transaction, counted there.
    pub number: u64,
}

impl TransactionId {
    /// A number that no other transaction is likely to have, the same at each shard.
    #[must_use]
    pub fn digest(self) -> u64 {
        let mut mixed = self.number ^ (u64::from(self.coordinator.0) << 48);
        for multiplier in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ (mixed >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = mixed.wrapping_mul(multiplier);
        }
        mixed ^ (mixed >> 29)
    }
}

/// Partitions of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockSet {
    /// All of them.
    All,
    /// These, each once, in order.
    Of(Vec<Partition>),
}

impl LockSet {
    /// These partitions.
    pub fn of(partitions: impl Iterator<Item = Partition>) -> Self {
        let mut partitions: Vec<_> = partitions.collect();
        partitions.sort_unstable();
        partitions.dedup();
        Self::Of(partitions)
    }

    /// Takes those of another set besides.
    pub fn add(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::All, _) => {}
            (_, Self::All) => *self = Self::All,
            (Self::Of(own), Self::Of(others)) => {
                own.extend_from_slice(others);
                own.sort_unstable();
                own.dedup();
            }
        }
    }

    /// Whether both have a partition in common.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Of(own), Self::Of(others)) => {
                let (few, many) =
                    if own.len() < others.len() { (own, others) } else { (others, own) };
                few.iter().any(|partition| many.binary_search(partition).is_ok())
            }
            (Self::Of(set), Self::All) | (Self::All, Self::Of(set)) => !set.is_empty(),
            (Self::All, Self::All) => true,
        }
    }
}

/// Whose entry it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A transaction's, until it gives it back.
    Transaction(TransactionId),
    /// That of a connection of this shard's (by its number) whose next request waits for others.
    Session(u64),
}

impl Owner {
    fn is_transaction(self) -> bool {
        matches!(self, Self::Transaction(_))
    }
}

#[derive(Clone, Debug)]
struct Entry {
    owner: Owner,
    set: LockSet,
    granted: bool,
}

impl Entry {
    /// Whether somebody who comes later must wait until it is gone (B1).
    fn blocks(&self, owner: Owner, set: &LockSet) -> bool {
        (self.owner.is_transaction() || owner.is_transaction()) && self.set.meets(set)
    }
}

/// The locks of one shard.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    /// In the order in which they came.
    entries: VecDeque<Entry>,
}

impl Locks {
    /// Whether nothing is locked, and nobody waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a single request that comes now would have to wait for `set`.
    #[must_use]
    pub fn blocks(&self, set: &LockSet) -> bool {
        let entries = self.entries.iter();
        entries.filter(|entry| entry.owner.is_transaction()).any(|entry| entry.set.meets(set))
    }

    /// Puts an entry behind the others; whether it is granted at once.
    pub fn request(&mut self, owner: Owner, set: LockSet) -> bool {
        debug_assert!(self.entries.iter().all(|entry| entry.owner != owner), "one for each");
        let granted = !self.entries.iter().any(|entry| entry.blocks(owner, &set));
        self.entries.push_back(Entry { owner, set, granted });
        granted
    }

    /// Whether an owner's entry is granted; `None`: it has none.
    #[must_use]
    pub fn is_granted(&self, owner: Owner) -> Option<bool> {
        self.entries.iter().find(|entry| entry.owner == owner).map(|entry| entry.granted)
    }

    /// Takes an owner's entry away, wherever it is; those that are granted by that.
    pub fn release(&mut self, owner: Owner) -> Vec<Owner> {
        let Some(at) = self.entries.iter().position(|entry| entry.owner == owner) else {
            return Vec::new();
        };
        self.entries.remove(at);
        let mut granted = Vec::new();
        for later in at..self.entries.len() {
            let entry = &self.entries[later];
            let waits = |before: &Entry| before.blocks(entry.owner, &entry.set);
            if !entry.granted && !self.entries.range(..later).any(waits) {
                granted.push(entry.owner);
                self.entries[later].granted = true;
            }
        }
        granted
    }

    /// The transactions that have an entry.
    pub fn transactions(&self) -> impl Iterator<Item = TransactionId> {
        self.entries.iter().filter_map(|entry| match entry.owner {
            Owner::Transaction(transaction) => Some(transaction),
            Owner::Session(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(partitions: &[u16]) -> LockSet {
        LockSet::of(partitions.iter().map(|&number| Partition(number)))
    }

    fn transaction(number: u64) -> Owner {
        Owner::Transaction(TransactionId { coordinator: Shard(0), number })
    }

    #[test]
    fn who_came_first_is_served_first() {
        let mut locks = Locks::default();
        let [one, two, three] = [1, 2, 3].map(transaction);
        assert!(locks.is_empty() && locks.request(one, set(&[1, 2])));
        assert!(!locks.request(two, set(&[2, 3])) && locks.request(three, set(&[4])));
        // It does not overtake the second, though nobody has the partition yet.
        assert!(!locks.request(Owner::Session(7), set(&[3])) && locks.blocks(&set(&[3])));
        assert!(!locks.request(Owner::Session(8), set(&[3])));
        assert!(!locks.blocks(&set(&[5])) && locks.blocks(&LockSet::All));
        assert_eq!(locks.release(one), [two]);
        assert_eq!(locks.is_granted(Owner::Session(7)), Some(false));
        // Single requests go on together, and those that come meanwhile do not wait.
        assert_eq!(locks.release(two), [Owner::Session(7), Owner::Session(8)]);
        assert!(!locks.blocks(&set(&[3])) && locks.release(Owner::Session(8)).is_empty());
        assert_eq!(locks.release(two), []);
        assert!(!locks.request(two, LockSet::All));
        assert_eq!(locks.release(three), []);
        assert_eq!(locks.release(Owner::Session(7)), [two]);
        assert_eq!(locks.release(two), []);
        assert!(locks.is_empty());
    }

    #[test]
    fn who_gives_up_makes_way() {
        let mut locks = Locks::default();
        let [one, two, three] = [1, 2, 3].map(transaction);
        assert!(locks.request(one, set(&[1])));
        assert!(!locks.request(two, LockSet::All) && !locks.request(three, set(&[2])));
        assert_eq!(locks.release(two), [three]);
        assert_eq!(locks.transactions().count(), 2);
    }
}
