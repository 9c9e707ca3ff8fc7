//! `stats detail`: how often items were read, found, written and removed, by the first component of their keys.
//!
//! # Cost
//! While nobody has asked for it, a request looks at one flag; else a key costs one look into a map of at most [`PREFIXES_MAX`].

use headwater_command::Reply;
use std::collections::BTreeMap;

/// Keys of further prefixes are counted together.
const PREFIXES_MAX: usize = 1000;
/// What those are counted under. No key of memcached's has a space.
const OTHERS: &str = "(others)";
/// What ends a prefix: what ends the name of a table, and memcached's own.
pub(super) const DELIMITERS: [char; 2] = ['|', ':'];

/// What is counted of one prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct PrefixCounts {
    reads: u64,
    hits: u64,
    writes: u64,
    removals: u64,
}

/// What is done to an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ItemUse {
    /// It is read, and was there or not.
    Read { hit: bool },
    /// A value is to be stored.
    Write,
    /// It is to be removed.
    Remove,
}

/// What is counted by prefix.
#[derive(Debug, Default)]
pub(crate) struct Details {
    is_on: bool,
    prefixes: BTreeMap<Box<str>, PrefixCounts>,
}

/// What a key begins with, before a delimiter; without one a key has no prefix.
fn prefix_of(key: &[u8]) -> Option<String> {
    let end = key.iter().position(|&byte| DELIMITERS.contains(&char::from(byte)))?;
    Some(key[..end].escape_ascii().to_string())
}

impl Details {
    /// Counts a use of an item, if somebody has asked for it.
    #[inline]
    pub(super) fn count(&mut self, key: &[u8], used: ItemUse) {
        if self.is_on {
            self.count_prefix(key, used);
        }
    }

    #[cold]
    fn count_prefix(&mut self, key: &[u8], used: ItemUse) {
        let Some(mut prefix) = prefix_of(key) else { return };
        if self.prefixes.len() >= PREFIXES_MAX && !self.prefixes.contains_key(&*prefix) {
            prefix = String::from(OTHERS);
        }
        let counts = self.prefixes.entry(prefix.into()).or_default();
        match used {
            ItemUse::Read { hit } => {
                counts.reads += 1;
                counts.hits += u64::from(hit);
            }
            ItemUse::Write => counts.writes += 1,
            ItemUse::Remove => counts.removals += 1,
        }
    }

    /// Whether uses are counted.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Counts uses from now on, or no longer.
    pub(super) fn turn(&mut self, on: bool) {
        self.is_on = on;
    }

    /// Writes what was counted: a row for each prefix, of figures with their names.
    pub(super) fn write(&self, out: &mut impl Reply) {
        out.array(self.prefixes.len());
        for (prefix, counts) in &self.prefixes {
            let PrefixCounts { reads, hits, writes, removals } = *counts;
            out.map(5);
            out.bulk(b"prefix");
            out.bulk(prefix.as_bytes());
            for (name, figure) in
                [("get", reads), ("hit", hits), ("set", writes), ("del", removals)]
            {
                out.bulk(name.as_bytes());
                out.integer(figure as i64);
            }
        }
    }

    /// Forgets what was counted.
    pub(super) fn reset(&mut self) {
        self.prefixes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Details, ItemUse, OTHERS, PREFIXES_MAX, PrefixCounts};

    #[test]
    fn uses_are_counted_by_prefix_while_somebody_asks() {
        let mut details = Details::default();
        details.count(b"user:1", ItemUse::Write);
        assert!(details.prefixes.is_empty());
        details.is_on = true;
        details.count(b"user:1", ItemUse::Write);
        details.count(b"user|1:2", ItemUse::Read { hit: true });
        details.count(b"user:2", ItemUse::Read { hit: false });
        details.count(b"user:2", ItemUse::Remove);
        details.count(b"plain", ItemUse::Write);
        let expected = PrefixCounts { reads: 2, hits: 1, writes: 1, removals: 1 };
        assert_eq!(details.prefixes.len(), 1);
        assert_eq!(details.prefixes["user"], expected);
    }

    #[test]
    fn prefixes_are_bounded() {
        let mut details = Details { is_on: true, ..Details::default() };
        for number in 0..PREFIXES_MAX + 10 {
            details.count(format!("p{number}:x").as_bytes(), ItemUse::Write);
        }
        assert_eq!(details.prefixes.len(), PREFIXES_MAX + 1);
        assert_eq!(details.prefixes[OTHERS].writes, 10);
    }
}
