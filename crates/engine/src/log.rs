//! The log of a push range: check keys that came or went since they were applied (R2).
//!
//! # Invariants
//! - Entries are ordered, and occur once each, with whether the key was there when last applied.
//!
//! # Cost
//! Most ranges are read after each change or two: a few entries are one array, of which a
//! search is a handful of comparisons. Beyond that it is a tree, and everything is O(log n).

use crate::updaters::ContextId;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Entries that an array may hold.
const FEW: usize = 16;

/// A check key, and the target for which it is logged.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LogEntry<K = Box<[u8]>> {
    pub(crate) source: u32,
    pub(crate) context: ContextId,
    pub(crate) key: K,
}

impl LogEntry {
    fn borrowed(&self) -> LogEntry<&[u8]> {
        LogEntry { source: self.source, context: self.context, key: &self.key }
    }
}

impl LogEntry<&[u8]> {
    fn owned(&self) -> LogEntry {
        LogEntry { source: self.source, context: self.context, key: self.key.into() }
    }
}

/// Check keys whose presence changed.
#[derive(Debug)]
pub(crate) enum Log {
    Few(Vec<(LogEntry, bool)>),
    Many(BTreeMap<LogEntry, bool>),
}

impl Default for Log {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Log {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(entries) => entries.len(),
            Self::Many(entries) => entries.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry, where it is the only one.
    pub(crate) fn only(&self) -> Option<(LogEntry<&[u8]>, bool)> {
        match self {
            Self::Few(entries) => match &entries[..] {
                [(entry, was)] => Some((entry.borrowed(), *was)),
                _ => None,
            },
            Self::Many(_) => None,
        }
    }

    /// Whether the key was there when last applied, if it is logged.
    pub(crate) fn get(&self, entry: &LogEntry<&[u8]>) -> Option<bool> {
        match self {
            Self::Few(entries) => find(entries, entry).ok().map(|at| entries[at].1),
            Self::Many(entries) => entries.get(&entry.owned()).copied(),
        }
    }

    /// Adds an entry that is not there yet.
    pub(crate) fn insert(&mut self, entry: &LogEntry<&[u8]>, was_there: bool) {
        match self {
            Self::Few(entries) if entries.len() < FEW => {
                let at = find(entries, entry).unwrap_or_else(|at| at);
                if entries.capacity() == 0 {
                    entries.reserve_exact(1);
                }
                entries.insert(at, (entry.owned(), was_there));
            }
            Self::Few(entries) => {
                let mut many: BTreeMap<_, _> = core::mem::take(entries).into_iter().collect();
                many.insert(entry.owned(), was_there);
                *self = Self::Many(many);
            }
            Self::Many(entries) => {
                entries.insert(entry.owned(), was_there);
            }
        }
    }

    /// Takes an entry out; whether it was there.
    pub(crate) fn remove(&mut self, entry: &LogEntry<&[u8]>) -> bool {
        match self {
            Self::Few(entries) => match find(entries, entry) {
                Ok(at) => {
                    entries.remove(at);
                    true
                }
                Err(_) => false,
            },
            Self::Many(entries) => entries.remove(&entry.owned()).is_some(),
        }
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LogEntry, bool)> {
        let (few, many) = match self {
            Self::Few(entries) => (Some(entries), None),
            Self::Many(entries) => (None, Some(entries)),
        };
        let few = few.into_iter().flatten().map(|(entry, was)| (entry, *was));
        few.chain(many.into_iter().flatten().map(|(entry, was)| (entry, *was)))
    }

    /// Whether entries are of several sources.
    pub(crate) fn is_mixed(&self) -> bool {
        match self {
            Self::Few(entries) => match (entries.first(), entries.last()) {
                (Some((first, _)), Some((last, _))) => first.source != last.source,
                _ => false,
            },
            Self::Many(entries) => match (entries.first_key_value(), entries.last_key_value()) {
                (Some((first, _)), Some((last, _))) => first.source != last.source,
                _ => false,
            },
        }
    }

    /// Bytes beside the log's own.
    pub(crate) fn bytes(&self) -> usize {
        let text = self.iter().map(|(entry, _)| entry.key.len()).sum::<usize>();
        let each = size_of::<(LogEntry, bool)>();
        text + match self {
            Self::Few(entries) => entries.capacity() * each,
            // Nodes of trees are between half and all full.
            Self::Many(entries) => entries.len() * each * 4 / 3,
        }
    }
}

fn find(entries: &[(LogEntry, bool)], entry: &LogEntry<&[u8]>) -> Result<usize, usize> {
    entries.binary_search_by(|(other, _)| other.borrowed().cmp(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::updaters::NO_CONTEXT;

    #[test]
    fn a_log_is_an_ordered_map() {
        let mut log = Log::default();
        let mut model = BTreeMap::new();
        let mut state = 5u64;
        for step in 0..20_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Grows to many and shrinks to none again and again.
            let most = if step / 500 % 2 == 0 { 8 } else { 2 };
            let key = [(state >> 33) as u8 % 40];
            let source = (state >> 43) as u32 % 2;
            let entry = LogEntry { source, context: NO_CONTEXT, key: &key[..] };
            assert_eq!(log.get(&entry), model.get(&entry.owned()).copied());
            if (state >> 50) % 10 < most && log.get(&entry).is_none() {
                log.insert(&entry, step % 2 == 0);
                model.insert(entry.owned(), step % 2 == 0);
            } else {
                assert_eq!(log.remove(&entry), model.remove(&entry.owned()).is_some());
            }
            assert!(log.iter().eq(model.iter().map(|(entry, &was)| (entry, was))));
            assert_eq!((log.len(), log.is_empty()), (model.len(), model.is_empty()));
            let mut sources: Vec<_> = model.keys().map(|entry| entry.source).collect();
            sources.dedup();
            assert_eq!(log.is_mixed(), sources.len() > 1);
            if let Some((only, was)) = log.only() {
                assert!(model.iter().eq([(&only.owned(), &was)]));
            }
        }
    }
}
