//! Clients that are told of all keys with some prefix, whoever has read them (BCAST).
//!
//! # Invariants
//! - P1. `lengths` counts the prefixes of each length; a prefix is there while a client has it.
//!
//! # Cost
//! A written key is looked up once for each length that some prefix has. A key is told once a turn, however often it
//! was written.

use crate::connection::ConnectionId;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of keys that one prefix gathers in a turn; beyond, all of its keys count as changed.
const BYTES_MAX: usize = 1 << 20;

/// What has changed under one prefix since it was told.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) clients: BTreeSet<ConnectionId>,
    /// Each key with the client that wrote it last, if one did.
    pub(super) changed: BTreeMap<Box<[u8]>, Option<ConnectionId>>,
    bytes: usize,
    /// There was more than is listed.
    pub(super) all: bool,
}

/// The prefixes.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    by_prefix: BTreeMap<Vec<u8>, Gathered>,
    lengths: BTreeMap<usize, usize>,
    /// Something was gathered.
    dirty: bool,
}

impl Prefixes {
    pub(super) fn len(&self) -> usize {
        self.by_prefix.len()
    }

    pub(super) fn add(&mut self, prefix: &[u8], client: ConnectionId) {
        let new = !self.by_prefix.contains_key(prefix);
        self.by_prefix.entry(prefix.to_vec()).or_default().clients.insert(client);
        if new {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, prefix: &[u8], client: ConnectionId) {
        let Some(gathered) = self.by_prefix.get_mut(prefix) else { return };
        gathered.clients.remove(&client);
        if !gathered.clients.is_empty() {
            return;
        }
        self.by_prefix.remove(prefix);
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// A key has changed.
    pub(super) fn note(&mut self, key: &[u8], writer: Option<ConnectionId>) {
        for &length in self.lengths.keys() {
            let Some(prefix) = key.get(..length) else { return };
            let Some(gathered) = self.by_prefix.get_mut(prefix) else { continue };
            self.dirty = true;
            if gathered.all {
                continue;
            }
            if gathered.changed.insert(key.into(), writer).is_none() {
                gathered.bytes += key.len();
            }
            if gathered.bytes > BYTES_MAX {
                gathered.all = true;
                gathered.changed = BTreeMap::new();
            }
        }
    }

    /// What was gathered is told by other means.
    pub(super) fn forget_gathered(&mut self) {
        self.take(|_| {});
    }

    /// Gives what was gathered under each prefix, and begins anew.
    pub(super) fn take(&mut self, mut each: impl FnMut(&Gathered)) {
        if !core::mem::take(&mut self.dirty) {
            return;
        }
        for gathered in self.by_prefix.values_mut() {
            if gathered.all || !gathered.changed.is_empty() {
                each(gathered);
                (gathered.all, gathered.bytes) = (false, 0);
                gathered.changed.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prefix_gathers_its_keys_once() {
        let [one, two] = [1, 2].map(|number| ConnectionId { slot: 0, number });
        let mut prefixes = Prefixes::default();
        for (prefix, client) in [("", one), ("p|", one), ("p|", two), ("q|", two)] {
            prefixes.add(prefix.as_bytes(), client);
        }
        for key in ["p|a", "x", "p|a", "p"] {
            prefixes.note(key.as_bytes(), Some(one));
        }
        let taken = |prefixes: &mut Prefixes| {
            let mut found = Vec::new();
            prefixes.take(|it| {
                let keys = it.changed.keys().map(|key| String::from_utf8_lossy(key).into_owned());
                found.push((it.clients.len(), keys.collect::<Vec<_>>(), it.all));
            });
            found
        };
        let list = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>();
        let wanted = [(1, list(&["p", "p|a", "x"]), false), (2, list(&["p|a"]), false)];
        assert_eq!(taken(&mut prefixes), wanted);
        assert_eq!(taken(&mut prefixes), []);
        for number in 0..2000 {
            prefixes.note(format!("q|{number:01000}").as_bytes(), None);
        }
        prefixes.remove(b"", one);
        assert_eq!(taken(&mut prefixes), [(1, Vec::new(), true)]);
        for (prefix, client) in [("p|", one), ("p|", two), ("q|", two)] {
            prefixes.remove(prefix.as_bytes(), client);
        }
        assert_eq!((prefixes.len(), prefixes.lengths.len()), (0, 0));
    }
}
