//! Who may touch which keys of one shard, while several shards do one thing.
//!
//! A transaction over several shards locks the partitions of its keys at each of them, one shard after the other in the order of
//! their numbers: so two transactions never wait for each other. Whatever else concerns these partitions waits meanwhile, in
//! the order in which it came.
//!
//! # Invariants
//! - B1. Of two entries with a partition in common, of which one is a transaction's, the later one is granted only when the earlier
//!   one is gone. So nobody waits for those that came later; and single requests never wait for one another.
//! - B2. Nobody waits for a session that could go on and does not (its client has gone, or takes no replies): the
//!   shard calls [`Locks::lapse`] once each time that it has woken sessions, and whoever had two times to go on has to ask anew.
//!
//! # Cost
//! Nothing where nothing is locked. A transaction's entry is compared with all others when it comes and with all later ones when it
//! goes; a session's with those of transactions alone. So very many sessions may wait.

use alloc::collections::BTreeMap;
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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

/// What waits for locks, or has them.
#[derive(Clone, Debug)]
struct Entry {
    owner: Owner,
    set: LockSet,
    /// Earlier entries in its way (B1); it is granted when there are none.
    waits_for: usize,
}

/// The locks of one shard.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    /// Transactions' entries, by sequence number: in the order in which they came.
    transactions: BTreeMap<u64, Entry>,
    /// Sessions' entries, by the same numbers.
    sessions: BTreeMap<u64, Entry>,
    numbers: BTreeMap<Owner, u64>,
    next: u64,
    /// Sessions' entries that were granted since [`Locks::lapse`] was called last.
    granted: Vec<u64>,
    /// Those that were granted before.
    overdue: Vec<u64>,
}

impl Locks {
    /// Whether nothing is locked, and nobody waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Whether a single request that comes now would have to wait for `set`.
    #[must_use]
    pub fn blocks(&self, set: &LockSet) -> bool {
        self.transactions.values().any(|entry| entry.set.meets(set))
    }

    /// Puts an entry behind the others; whether it is granted at once. An owner has one entry at most.
    pub fn request(&mut self, owner: Owner, set: LockSet) -> bool {
        let number = self.next;
        self.next += 1;
        let count = |entries: &BTreeMap<u64, Entry>| {
            entries.values().filter(|entry| entry.set.meets(&set)).count()
        };
        let mut waits_for = count(&self.transactions);
        if owner.is_transaction() {
            waits_for += count(&self.sessions);
        }
        let other = self.numbers.insert(owner, number);
        debug_assert!(other.is_none(), "{owner:?} has an entry");
        let entry = Entry { owner, set, waits_for };
        if owner.is_transaction() {
            self.transactions.insert(number, entry);
        } else {
            self.sessions.insert(number, entry);
            self.granted.extend((waits_for == 0).then_some(number));
        }
        waits_for == 0
    }

    /// Whether an owner's entry is granted; `None`: it has none.
    #[must_use]
    pub fn is_granted(&self, owner: Owner) -> Option<bool> {
        let number = self.numbers.get(&owner)?;
        let entries = if owner.is_transaction() { &self.transactions } else { &self.sessions };
        entries.get(number).map(|entry| entry.waits_for == 0)
    }

    /// The transactions of a coordinator that have an entry here.
    #[must_use]
    pub fn of_coordinator(&self, coordinator: Shard) -> Vec<TransactionId> {
        let owners = self.transactions.values().map(|entry| entry.owner);
        let transactions = owners.filter_map(|owner| match owner {
            Owner::Transaction(transaction) => Some(transaction),
            Owner::Session(_) => None,
        });
        transactions.filter(|transaction| transaction.coordinator == coordinator).collect()
    }

    /// Takes an owner's entry away, wherever it is; those that are granted by that, in the order in which they came.
    pub fn release(&mut self, owner: Owner) -> Vec<Owner> {
        let Some(number) = self.numbers.remove(&owner) else { return Vec::new() };
        let Some(gone) =
            self.transactions.remove(&number).or_else(|| self.sessions.remove(&number))
        else {
            return Vec::new();
        };
        let mut granted = Vec::new();
        let mut tell = |entries: &mut BTreeMap<u64, Entry>| {
            for (&number, entry) in entries.range_mut(number..) {
                if entry.set.meets(&gone.set) {
                    entry.waits_for -= 1;
                    if entry.waits_for == 0 {
                        granted.push((number, entry.owner));
                    }
                }
            }
        };
        tell(&mut self.transactions);
        if owner.is_transaction() {
            tell(&mut self.sessions);
        }
        granted.sort_unstable();
        let of_sessions = granted.iter().filter(|(_, owner)| !owner.is_transaction());
        self.granted.extend(of_sessions.map(|(number, _)| number));
        granted.into_iter().map(|(_, owner)| owner).collect()
    }

    /// Takes away the entries of sessions that were granted before the last call and are still there (B2): these sessions, and who is
    /// granted by that.
    pub fn lapse(&mut self) -> (Vec<u64>, Vec<Owner>) {
        let overdue = core::mem::take(&mut self.overdue);
        self.overdue = core::mem::take(&mut self.granted);
        let (mut lapsed, mut granted) = (Vec::new(), Vec::new());
        for number in overdue {
            let Some(&Entry { owner, .. }) = self.sessions.get(&number) else { continue };
            granted.extend(self.release(owner));
            if let Owner::Session(session) = owner {
                lapsed.push(session);
            }
        }
        (lapsed, granted)
    }

    /// Whether sessions' entries are granted that may have to be taken away.
    #[inline]
    #[must_use]
    pub fn may_lapse(&self) -> bool {
        !(self.granted.is_empty() && self.overdue.is_empty())
    }

    /// The transactions that have an entry.
    pub fn transactions(&self) -> impl Iterator<Item = TransactionId> {
        self.transactions.values().filter_map(|entry| match entry.owner {
            Owner::Transaction(transaction) => Some(transaction),
            Owner::Session(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

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

    #[test]
    fn who_does_not_go_on_has_to_ask_anew() {
        let mut locks = Locks::default();
        let [one, two, three] = [1, 2, 3].map(transaction);
        let (slow, quick) = (Owner::Session(7), Owner::Session(8));
        assert!(locks.request(one, set(&[1])) && !locks.request(slow, set(&[1])));
        assert!(!locks.request(quick, set(&[1])) && !locks.request(two, set(&[1])));
        assert!(!locks.may_lapse());
        assert_eq!(locks.release(one), [slow, quick]);
        assert!(locks.may_lapse());
        // Both have a time to go on.
        assert_eq!(locks.lapse(), (vec![], vec![]));
        assert_eq!(locks.release(quick), []);
        assert_eq!(locks.lapse(), (vec![7], vec![two]));
        assert!(!locks.may_lapse() && locks.is_granted(slow).is_none());
        // It stands behind those that came meanwhile.
        assert!(!locks.request(three, set(&[1])) && !locks.request(slow, set(&[1])));
        assert_eq!((locks.release(two), locks.release(three)), (vec![three], vec![slow]));
        assert_eq!((locks.lapse(), locks.release(slow)), ((vec![], vec![]), vec![]));
        assert_eq!(locks.lapse(), (vec![], vec![]));
        assert!(locks.is_empty() && !locks.may_lapse());
    }

    /// What [`Locks`] says is what comparing every entry with all before it says.
    #[test]
    fn grants_are_those_of_the_rule() {
        let mut state = 7_u64;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % end
        };
        for _ in 0..2000 {
            let (mut locks, mut entries) = (Locks::default(), Vec::<(Owner, LockSet)>::new());
            let is_granted = |entries: &[(Owner, LockSet)], at: usize| {
                let (owner, set) = &entries[at];
                !entries[..at].iter().any(|(other, others)| {
                    (other.is_transaction() || owner.is_transaction()) && others.meets(set)
                })
            };
            for number in 0..30 {
                if below(3) > 0 {
                    let owner =
                        if below(3) == 0 { transaction(number) } else { Owner::Session(number) };
                    let set = match below(6) {
                        0 => LockSet::All,
                        _ => set(&[below(4) as u16, below(4) as u16]),
                    };
                    entries.push((owner, set.clone()));
                    let granted = locks.request(owner, set);
                    assert_eq!(granted, is_granted(&entries, entries.len() - 1));
                } else if !entries.is_empty() {
                    let at = below(entries.len() as u64) as usize;
                    let before: Vec<_> =
                        (0..entries.len()).map(|at| is_granted(&entries, at)).collect();
                    let (owner, _) = entries.remove(at);
                    let newly = (at..entries.len())
                        .filter(|&at| is_granted(&entries, at) && !before[at + 1])
                        .map(|at| entries[at].0);
                    assert_eq!(locks.release(owner), newly.collect::<Vec<_>>());
                }
                for at in 0..entries.len() {
                    let granted = Some(is_granted(&entries, at));
                    assert_eq!(locks.is_granted(entries[at].0), granted);
                }
            }
        }
    }
}
