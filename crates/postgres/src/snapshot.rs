//! Which transactions a query saw, and which the log has told of.

use std::collections::BTreeMap;

/// What `pg_current_snapshot()` says: the transactions whose work a query sees.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// All before this one have ended.
    pub oldest: u64,
    /// This one and all later ones were not there yet.
    pub next: u64,
    /// Of those between, these were under way; in order.
    pub under_way: Vec<u64>,
}

impl Snapshot {
    /// Reads `10:20:10,14,15`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let oldest = parts.next()?.parse().ok()?;
        let next = parts.next()?.parse().ok()?;
        let list = parts.next()?.split(',').filter(|one| !one.is_empty());
        let mut under_way = list.map(|one| one.parse().ok()).collect::<Option<Vec<u64>>>()?;
        under_way.sort_unstable();
        Some(Self { oldest, next, under_way })
    }

    /// Whether it sees the work of a transaction, if that was not undone.
    #[must_use]
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.next && (xid < self.oldest || self.under_way.binary_search(&xid).is_err())
    }

    /// The transactions, of those before `end`, whose work it does not see.
    fn unseen(&self, end: u64) -> impl Iterator<Item = u64> {
        let before = self.under_way.iter().copied().take_while(move |&xid| xid < end);
        before.chain(self.next..end.max(self.next))
    }

    /// Whether some transaction is seen by `other` but not by this one.
    #[must_use]
    pub fn lacks_some_of(&self, other: &Self) -> bool {
        self.unseen(other.next).any(|xid| other.sees(xid))
    }
}

/// A transaction's whole number, from its last 32 bits and some number that is less than 2³¹ away.
#[must_use]
pub fn widened(xid: u32, near: u64) -> u64 {
    let away = xid.wrapping_sub(near as u32) as i32;
    near.saturating_add_signed(i64::from(away))
}

/// The transactions that the log has told of, and when, in the order of telling.
#[derive(Debug, Default)]
pub struct Told {
    by_xid: BTreeMap<u64, u64>,
}

impl Told {
    /// Notes that a transaction was the `turn`th to be told of.
    pub fn note(&mut self, xid: u64, turn: u64) {
        self.by_xid.insert(xid, turn);
    }

    /// Whether some transaction was told of before `turn` that `snapshot` does not see: it has been written to the log,
    /// and was not yet to be seen.
    #[must_use]
    pub fn has_unseen_before(&self, turn: u64, snapshot: &Snapshot) -> bool {
        let before = |xid: &u64| self.by_xid.get(xid).is_some_and(|&told| told < turn);
        snapshot.under_way.iter().any(before)
            || self.by_xid.range(snapshot.next..).any(|(_, &told)| told < turn)
    }

    /// Forgets those before `oldest`, which every later snapshot sees.
    pub fn forget_before(&mut self, oldest: u64) {
        self.by_xid = self.by_xid.split_off(&oldest);
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_xid.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_xid.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.by_xid.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots() {
        let snapshot = Snapshot::parse("10:20:14,10").unwrap();
        let seen: Vec<_> = (8..22).filter(|&xid| snapshot.sees(xid)).collect();
        assert_eq!(seen, [8, 9, 11, 12, 13, 15, 16, 17, 18, 19]);
        assert_eq!(
            Snapshot::parse("10:10:"),
            Some(Snapshot { oldest: 10, next: 10, under_way: vec![] })
        );
        for wrong in ["", "10", "10:20", "10:20:x"] {
            assert_eq!(Snapshot::parse(wrong), None);
        }
    }

    #[test]
    fn transactions_that_one_snapshot_sees_and_another_does_not() {
        let at = |text| Snapshot::parse(text).unwrap();
        assert!(!at("10:20:10,14").lacks_some_of(&at("10:20:10,14")));
        assert!(at("10:20:10,14").lacks_some_of(&at("10:20:10")));
        assert!(!at("10:30:10,14,25").lacks_some_of(&at("10:20:10,14")));
        assert!(at("10:20:").lacks_some_of(&at("10:22:20")));
        assert!(!at("10:20:").lacks_some_of(&at("10:22:20,21")));
        assert!(at("10:20:10").lacks_some_of(&at("15:20:")));
    }

    #[test]
    fn transactions_told_of_before_they_are_seen() {
        let mut told = Told::default();
        for (turn, xid) in [(1, 10), (2, 12), (3, 11), (4, 20)] {
            told.note(xid, turn);
        }
        let at = |text| Snapshot::parse(text).unwrap();
        assert!(!told.has_unseen_before(9, &at("21:21:")));
        assert!(told.has_unseen_before(9, &at("20:20:")));
        assert!(!told.has_unseen_before(4, &at("20:20:")));
        assert!(told.has_unseen_before(4, &at("11:21:11")));
        assert!(!told.has_unseen_before(3, &at("11:21:11")));
        told.forget_before(12);
        assert_eq!(told.len(), 2);
    }

    #[test]
    fn numbers_are_widened_to_the_nearest() {
        let epoch = 1_u64 << 32;
        assert_eq!(widened(5, 7), 5);
        assert_eq!(widened(5, epoch + 3), epoch + 5);
        assert_eq!(widened(u32::MAX, epoch + 3), epoch - 1);
        assert_eq!(widened(2, epoch - 1), epoch + 2);
    }
}
