//! Which keys somebody follows: ranges that may overlap, each asked for and given up on its own.
//!
//! Ends of ranges cut the keys into spans; each knows how many ranges lie over it.
//!
//! # Invariants
//! - W1. Neighbouring spans have different depths; the first span, which begins at the empty key, is there always.
//! - W2. A key is followed exactly where more ranges over it were followed than unfollowed.
//!
//! # Cost
//! O(log n) for a key; O(log n + spans within) for a range.

use core::ops::Bound;
use headwater_base::KeyRange;
use std::collections::BTreeMap;

/// The ranges that are followed.
#[derive(Debug)]
pub struct Followed {
    /// How many ranges lie over the keys from each one on, up to the next.
    spans: BTreeMap<Vec<u8>, u32>,
}

impl Default for Followed {
    fn default() -> Self {
        Self { spans: BTreeMap::from([(Vec::new(), 0)]) }
    }
}

impl Followed {
    /// Whether `key` is followed.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.depth(key) > 0
    }

    fn depth(&self, key: &[u8]) -> u32 {
        let upto = (Bound::Unbounded, Bound::Included(key));
        self.spans.range::<[u8], _>(upto).next_back().map_or(0, |(_, &depth)| depth)
    }

    /// Follows a range.
    pub fn add(&mut self, range: &KeyRange) {
        self.change(range, |depth| depth.saturating_add(1));
    }

    /// Gives up a range that was followed.
    pub fn remove(&mut self, range: &KeyRange) {
        self.change(range, |depth| depth.saturating_sub(1));
    }

    fn change(&mut self, range: &KeyRange, to: impl Fn(u32) -> u32) {
        if range.is_empty() {
            return;
        }
        let depth = self.depth(&range.first);
        self.spans.entry(range.first.clone()).or_insert(depth);
        let mut end = Bound::Unbounded;
        if !range.last.is_empty() {
            let depth = self.depth(&range.last);
            self.spans.entry(range.last.clone()).or_insert(depth);
            end = Bound::Excluded(&*range.last);
        }
        for (_, depth) in self.spans.range_mut::<[u8], _>((Bound::Included(&*range.first), end)) {
            *depth = to(*depth);
        }
        // Only at the ends may neighbours have become equal.
        for at in [&range.first, &range.last] {
            let before = (Bound::Unbounded, Bound::Excluded(&**at));
            let before = self.spans.range::<[u8], _>(before).next_back().map(|(_, &depth)| depth);
            if !at.is_empty() && before.is_some() && before == self.spans.get(at).copied() {
                self.spans.remove(at);
            }
        }
    }

    /// How many spans are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether nothing is followed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.values().all(|&depth| depth == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_followed_where_more_ranges_were_added_than_removed() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let (mut followed, mut ranges) = (Followed::default(), Vec::<KeyRange>::new());
            for _ in 0..60 {
                if random.bool() || ranges.is_empty() {
                    let (a, b) = (random.u8(..20), random.u8(..20));
                    let last = if random.u8(..8) == 0 { vec![] } else { vec![a.max(b)] };
                    let range = KeyRange { first: vec![a.min(b)], last };
                    followed.add(&range);
                    ranges.push(range);
                } else {
                    let range = ranges.swap_remove(random.usize(..ranges.len()));
                    followed.remove(&range);
                }
                for key in 0..25 {
                    let expected = ranges.iter().filter(|range| range.contains(&[key])).count();
                    assert_eq!(followed.depth(&[key]) as usize, expected);
                }
                let depths: Vec<_> = followed.spans.values().collect();
                assert!(depths.windows(2).all(|pair| pair[0] != pair[1]), "W1: {depths:?}");
            }
            for range in ranges {
                followed.remove(&range);
            }
            assert!(followed.is_empty() && followed.len() == 1);
        }
    }
}
