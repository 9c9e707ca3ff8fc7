//! Ranges of a table that were asked of another home and have not come.
//!
//! # Invariants
//! - L1. The ranges of one home are disjoint.
//!
//! # Cost
//! Finding those that overlap a range, and taking one out, is a search in an ordered tree, however many are under way.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;
use headwater_base::KeyRange;
use headwater_base::key::before_end;
use headwater_base::source::FetchId;

/// Loads under way of one home, by their first keys (L1).
#[derive(Debug, Default)]
pub(super) struct Loads(BTreeMap<Vec<u8>, Load>);

#[derive(Debug)]
struct Load {
    last: Vec<u8>,
    fetch: FetchId,
}

impl Loads {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a load of a range that overlaps no other.
    pub(super) fn insert(&mut self, range: &KeyRange, fetch: FetchId) {
        self.0.insert(range.first.clone(), Load { last: range.last.clone(), fetch });
    }

    /// Takes out the load that begins at `first`: its range.
    pub(super) fn remove(&mut self, first: &[u8]) -> Option<KeyRange> {
        let (first, load) = self.0.remove_entry(first)?;
        Some(KeyRange { first, last: load.last })
    }

    /// The loads that overlap `range`, in order: first key, end, and what each is called.
    pub(super) fn overlapping(
        &self,
        range: &KeyRange,
    ) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>, FetchId)> {
        let upto = (Bound::Unbounded, Bound::Included(&*range.first));
        let around = self.0.range::<[u8], _>(upto).next_back();
        let around = around.filter(|(_, load)| before_end(&range.first, &load.last));
        let behind = (Bound::Excluded(&*range.first), Bound::Unbounded);
        let rest = self.0.range::<[u8], _>(behind);
        let rest = rest.take_while(|(first, _)| before_end(first, &range.last));
        around.into_iter().chain(rest).map(|(first, load)| (first, &load.last, load.fetch))
    }

    /// Takes out the loads of ranges that `concerned` names.
    pub(super) fn take(
        &mut self,
        concerned: impl Fn(&KeyRange) -> bool,
    ) -> Vec<(FetchId, KeyRange)> {
        let mut taken = Vec::new();
        self.0.retain(|first, load| {
            let range = KeyRange::new(first, &load.last);
            let goes = concerned(&range);
            if goes {
                taken.push((load.fetch, range));
            }
            !goes
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::Loads;
    use alloc::vec::Vec;
    use headwater_base::KeyRange;
    use headwater_base::source::FetchId;

    #[test]
    fn loads_are_found_by_what_they_overlap() {
        let mut loads = Loads::default();
        for (number, (first, last)) in [("b", "d"), ("d", "f"), ("h", "")].into_iter().enumerate() {
            let range = KeyRange::new(first.as_bytes(), last.as_bytes());
            loads.insert(&range, FetchId(number as u64));
        }
        let found = |loads: &Loads, first: &str, last: &str| -> Vec<u64> {
            let range = KeyRange::new(first.as_bytes(), last.as_bytes());
            loads.overlapping(&range).map(|(.., fetch)| fetch.0).collect()
        };
        assert_eq!(found(&loads, "", ""), [0, 1, 2]);
        assert_eq!(found(&loads, "a", "b"), []);
        assert_eq!(found(&loads, "c", "d"), [0]);
        assert_eq!(found(&loads, "c", "e"), [0, 1]);
        assert_eq!(found(&loads, "f", "h"), []);
        assert_eq!(found(&loads, "z", ""), [2]);
        assert_eq!(loads.remove(b"d"), Some(KeyRange::new(b"d", b"f")));
        assert_eq!(loads.remove(b"e"), None);
        let taken = loads.take(|range| range.last.is_empty());
        assert_eq!(taken, [(FetchId(2), KeyRange::new(b"h", b""))]);
        assert_eq!((found(&loads, "", ""), loads.len()), ([0].to_vec(), 1));
    }
}
