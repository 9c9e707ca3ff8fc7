//! Followers: each keeps a copy of what it follows, by what it is told alone. The copies must be what
//! the oracle says.

use crate::oracle::Pairs;
use crate::subject::{FeedChange, FollowerNotification, Pair};
use headwater_base::KeyRange;
use headwater_script::bytes::escape;
use std::collections::BTreeMap;

/// Follows, each by whom and of what, without what one of them follows no more.
#[must_use]
pub fn unfollowed(
    follows: Vec<(u32, KeyRange)>,
    by: u32,
    range: &KeyRange,
) -> Vec<(u32, KeyRange)> {
    let rest = |(other, held): (u32, KeyRange)| {
        let left = if other == by { held.without(range) } else { vec![held] };
        left.into_iter().map(move |range| (other, range))
    };
    follows.into_iter().flat_map(rest).collect()
}

/// What one follower has.
#[derive(Default)]
struct Copy {
    /// What it follows; disjoint.
    ranges: Vec<KeyRange>,
    pairs: Pairs,
}

impl Copy {
    fn follows(&self, key: &[u8]) -> bool {
        self.ranges.iter().any(|range| range.contains(key))
    }
}

/// The copies of all followers.
#[derive(Default)]
pub struct Copies(BTreeMap<u32, Copy>);

impl Copies {
    /// Whether nobody follows anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.values().all(|copy| copy.ranges.is_empty())
    }

    /// All who have ever followed something.
    pub fn followers(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// A follower follows a range, which holds these pairs.
    pub fn add(&mut self, by: u32, range: &KeyRange, pairs: Vec<Pair>) {
        self.cut(by, range);
        let copy = self.0.entry(by).or_default();
        copy.ranges.push(range.clone());
        copy.pairs.extend(pairs);
    }

    /// A follower follows a range no more.
    pub fn cut(&mut self, by: u32, range: &KeyRange) {
        let copy = self.0.entry(by).or_default();
        copy.ranges = copy.ranges.iter().flat_map(|held| held.without(range)).collect();
        copy.pairs.retain(|key, _| !range.contains(key));
    }

    /// Applies what followers are told, and gives what they have lost.
    ///
    /// # Errors
    /// Somebody is told what does not concern it.
    pub fn hear(
        &mut self,
        told: Vec<FollowerNotification>,
    ) -> Result<Vec<(u32, KeyRange)>, String> {
        let mut lost = Vec::new();
        for FollowerNotification { followers, change } in told {
            if followers.is_empty() {
                return Err(format!("tells nobody of {change:?}"));
            }
            for by in followers {
                if let FeedChange::Reset(range) = &change {
                    self.cut(by, range);
                    lost.push((by, range.clone()));
                    continue;
                }
                let copy = self.0.entry(by).or_default();
                let (FeedChange::Set(key, _) | FeedChange::Gone(key)) = &change else { continue };
                if !copy.follows(key) {
                    return Err(format!("tells {by} of {}, which it does not follow", escape(key)));
                }
                match &change {
                    FeedChange::Set(key, value) => {
                        copy.pairs.insert(key.clone(), value.clone());
                    }
                    _ => drop(copy.pairs.remove(key)),
                }
            }
        }
        Ok(lost)
    }

    /// Compares all copies with what a reader sees.
    ///
    /// # Errors
    /// A copy has something else.
    pub fn compare(&self, seen: &Pairs) -> Result<(), String> {
        for (by, copy) in &self.0 {
            let right = |key: &Vec<u8>| seen.get(key).filter(|_| copy.follows(key));
            let mut keys = copy.pairs.keys().chain(seen.keys());
            if let Some(key) = keys.find(|key| right(key) != copy.pairs.get(*key)) {
                let show = |value: Option<&Vec<u8>>| {
                    value.map_or_else(|| String::from("nothing"), |value| escape(value))
                };
                let (has, right) = (show(copy.pairs.get(key)), show(right(key)));
                return Err(format!("follower {by} has {has} for {}, not {right}", escape(key)));
            }
        }
        Ok(())
    }
}
