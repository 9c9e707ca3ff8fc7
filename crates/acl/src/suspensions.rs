//! The definitions that are refused, found by their names and by what they give.
//!
//! # Cost
//! Looking one up, by name or by a range that it gives a key of, is a binary search or two, whatever their number: every request asks.

use crate::definitions::{DefinitionKind, Reach, Suspended};
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_base::KeyRange;
use headwater_base::key::before_end;

/// A range that a refused join gives.
#[derive(Clone, PartialEq, Eq, Debug)]
struct GivenRange {
    range: KeyRange,
    /// The join that gives it, by its place among the refused definitions.
    at: usize,
    /// The place of the range with the greatest end, among this range and those that begin before it.
    farthest: usize,
}

/// Refused definitions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Suspensions {
    /// By kind and name.
    all: Vec<Suspended>,
    /// By their first keys; none is empty.
    given: Vec<GivenRange>,
}

/// Which of two ends of ranges is farther.
fn compare_ends(one: &[u8], other: &[u8]) -> Ordering {
    // An empty end is none at all.
    (one.is_empty(), one).cmp(&(other.is_empty(), other))
}

impl Suspensions {
    pub(crate) fn new(mut all: Vec<Suspended>) -> Self {
        all.sort_by(|one, other| one.id().cmp(&other.id()));
        let mut given = Vec::new();
        for (at, refused) in all.iter().enumerate() {
            if refused.kind == DefinitionKind::Join {
                let ranges = refused.writes.iter().filter(|range| !range.is_empty());
                given.extend(ranges.map(|range| GivenRange {
                    range: range.clone(),
                    at,
                    farthest: 0,
                }));
            }
        }
        given.sort_by(|one, other| one.range.first.cmp(&other.range.first));
        let mut farthest = 0;
        for at in 0..given.len() {
            if compare_ends(&given[at].range.last, &given[farthest].range.last).is_gt() {
                farthest = at;
            }
            given[at].farthest = farthest;
        }
        Self { all, given }
    }

    /// All of them, by kind and name.
    pub fn iter(&self) -> core::slice::Iter<'_, Suspended> {
        self.all.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The one of this kind and name.
    #[must_use]
    pub fn get(&self, kind: DefinitionKind, name: &str) -> Option<&Suspended> {
        let found = self.all.binary_search_by(|it| it.id().cmp(&(kind, name)));
        found.ok().map(|at| &self.all[at])
    }

    /// A refused join that gives keys of a range.
    #[must_use]
    pub fn giving(&self, range: &KeyRange) -> Option<&Suspended> {
        if range.is_empty() {
            return None;
        }
        let begun = self.given.partition_point(|own| before_end(&own.range.first, &range.last));
        let farthest = &self.given[self.given[begun.checked_sub(1)?].farthest];
        farthest.range.overlaps(range).then(|| &self.all[farthest.at])
    }

    /// The module of a function, `module` or `module.export`, if that is refused.
    #[must_use]
    pub fn module_of(&self, function: &str) -> Option<&Suspended> {
        self.get(DefinitionKind::Module, function.split('.').next().unwrap_or(function))
    }

    /// One that gives something that this reads or calls.
    #[must_use]
    pub(crate) fn behind(&self, reach: &Reach) -> Option<&Suspended> {
        // What a flow has written is there.
        let join = reach.reads.iter().find_map(|range| self.giving(range));
        join.or_else(|| reach.functions.iter().find_map(|name| self.module_of(name)))
    }
}

impl<'s> IntoIterator for &'s Suspensions {
    type Item = &'s Suspended;
    type IntoIter = core::slice::Iter<'s, Suspended>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;

    /// Every pair of some ranges, whatever else there is, is found or not as a look at each of them says.
    #[test]
    fn ranges_are_found_as_by_looking_at_each() {
        let ends: [&[u8]; 7] = [b"", b"a", b"a|", b"a|b", b"a}", b"b", b"c"];
        let mut ranges = Vec::new();
        for first in ends {
            ranges.extend(ends.iter().map(|last| KeyRange::new(first, last)));
        }
        for step in 1..40 {
            let some = ranges.iter().skip(step % 5).step_by(step);
            let all = some.enumerate().map(|(at, range)| Suspended {
                kind: if at % 4 == 3 { DefinitionKind::Flow } else { DefinitionKind::Join },
                name: format!("j{at}"),
                writes: [range.clone()].into(),
                reason: String::new(),
            });
            let found = Suspensions::new(all.collect());
            for range in &ranges {
                let gives = |it: &Suspended| {
                    it.kind == DefinitionKind::Join && it.writes[0].overlaps(range)
                };
                match found.giving(range) {
                    Some(it) => assert!(gives(it), "{range:?}, {it:?}"),
                    None => assert!(!found.iter().any(gives), "{range:?}, {found:?}"),
                }
            }
            for refused in &found {
                assert_eq!(found.get(refused.kind, &refused.name), Some(refused));
                assert_eq!(found.get(DefinitionKind::Module, &refused.name), None);
            }
        }
    }
}
