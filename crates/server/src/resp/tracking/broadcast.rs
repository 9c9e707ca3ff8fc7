//! Clients that are told of all keys with some prefix, whoever has read them (BCAST).
//!
//! # Invariants
//! - P1. `lengths` counts the prefixes of each length; a prefix is there while a client has it.
//!
//! # Cost
//! A written key is looked up once for each length that some prefix has. A key is told once a turn, however often it
//! was written.

use crate::connection::ConnectionId;
use headwater_base::key::before_end;
use headwater_base::{KeyRange, Shard};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of keys that one prefix gathers in a turn; beyond, all of its keys count as changed.
const BYTES_MAX: usize = 1 << 20;

/// What has changed under one prefix since it was told.
#[derive(Debug, Default)]
pub(super) struct PrefixChanges {
    pub(super) clients: BTreeSet<ConnectionId>,
    /// Other shards whose clients have this prefix: they gather for themselves.
    shards: BTreeSet<Shard>,
    /// Each key with the client that wrote it last, if one did.
    pub(super) changed: BTreeMap<Box<[u8]>, Option<ConnectionId>>,
    bytes: usize,
    /// There was more than is listed.
    pub(super) all: bool,
}

/// The prefixes.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    by_prefix: BTreeMap<Vec<u8>, PrefixChanges>,
    lengths: BTreeMap<usize, usize>,
    /// Something was gathered.
    dirty: bool,
}

impl Prefixes {
    pub(super) fn len(&self) -> usize {
        self.by_prefix.len()
    }

    /// A client has this prefix; whether it is the first one here.
    pub(super) fn add(&mut self, prefix: &[u8], client: ConnectionId) -> bool {
        let clients = &mut self.entry(prefix).clients;
        clients.insert(client) && clients.len() == 1
    }

    /// A client of another shard has this prefix.
    pub(super) fn add_shard(&mut self, prefix: &[u8], shard: Shard) {
        self.entry(prefix).shards.insert(shard);
    }

    fn entry(&mut self, prefix: &[u8]) -> &mut PrefixChanges {
        if !self.by_prefix.contains_key(prefix) {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        self.by_prefix.entry(prefix.to_vec()).or_default()
    }

    /// A client has this prefix no more; whether none here has.
    pub(super) fn remove(&mut self, prefix: &[u8], client: ConnectionId) -> bool {
        let Some(gathered) = self.by_prefix.get_mut(prefix) else { return false };
        let is_last = gathered.clients.remove(&client) && gathered.clients.is_empty();
        if is_last {
            (gathered.all, gathered.bytes) = (false, 0);
            gathered.changed.clear();
        }
        self.forget_unused(prefix);
        is_last
    }

    /// No client of another shard has this prefix any more.
    pub(super) fn remove_shard(&mut self, prefix: &[u8], shard: Shard) {
        if let Some(gathered) = self.by_prefix.get_mut(prefix) {
            gathered.shards.remove(&shard);
            self.forget_unused(prefix);
        }
    }

    /// The prefixes that clients of another shard have.
    pub(super) fn of_shard(&self, shard: Shard) -> Vec<Vec<u8>> {
        let all = self.by_prefix.iter();
        let of = all.filter(|(_, gathered)| gathered.shards.contains(&shard));
        of.map(|(prefix, _)| prefix.clone()).collect()
    }

    /// The prefixes that clients of this shard have.
    pub(super) fn own(&self) -> Vec<Vec<u8>> {
        let all = self.by_prefix.iter();
        let own = all.filter(|(_, gathered)| !gathered.clients.is_empty());
        own.map(|(prefix, _)| prefix.clone()).collect()
    }

    fn forget_unused(&mut self, prefix: &[u8]) {
        let is_used =
            |gathered: &PrefixChanges| !(gathered.clients.is_empty() && gathered.shards.is_empty());
        if self.by_prefix.get(prefix).is_none_or(is_used) {
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

    /// Other shards that are to be told of a key.
    pub(super) fn shards_of(&self, key: &[u8], into: &mut Vec<Shard>) {
        let prefixes = self.lengths.keys().map_while(|&length| key.get(..length));
        for gathered in prefixes.filter_map(|prefix| self.by_prefix.get(prefix)) {
            into.extend(&gathered.shards);
        }
    }

    /// All other shards that are to be told of some key.
    pub(super) fn shards(&self, into: &mut Vec<Shard>) {
        self.by_prefix.values().for_each(|gathered| into.extend(&gathered.shards));
    }

    /// A key has changed.
    pub(super) fn note(&mut self, key: &[u8], writer: Option<ConnectionId>) {
        for &length in self.lengths.keys() {
            let Some(prefix) = key.get(..length) else { return };
            let Some(gathered) = self.by_prefix.get_mut(prefix) else { continue };
            if gathered.clients.is_empty() {
                continue;
            }
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

    /// The parts of a range that lie under prefixes, here or at other shards: those of no other prefix's part.
    pub(super) fn within(&self, range: &KeyRange) -> Vec<KeyRange> {
        // Clients may ask for a range that ends before it begins.
        if range.is_empty() {
            return Vec::new();
        }
        // Prefixes of the range's first key hold all of it, or its beginning.
        let above = self.lengths.keys().map_while(|&length| range.first.get(..length));
        if let Some(above) = above.into_iter().find(|&prefix| self.by_prefix.contains_key(prefix)) {
            let mut parts = vec![KeyRange::prefix(above).intersection(range)];
            if let Some(rest) = range.without(&parts[0]).pop() {
                parts.extend(self.within(&rest));
            }
            return parts;
        }
        let mut parts: Vec<KeyRange> = Vec::new();
        let from = self.by_prefix.range(range.first.clone()..);
        for (prefix, _) in from.take_while(|(prefix, _)| before_end(prefix, &range.last)) {
            let is_within = |part: &KeyRange| part.contains(prefix);
            if !parts.last().is_some_and(is_within) {
                parts.push(KeyRange::prefix(prefix).intersection(range));
            }
        }
        parts
    }

    /// The parts of the range of a prefix that was removed which lie under no other prefix.
    pub(super) fn outside(&self, removed: &[u8]) -> Vec<KeyRange> {
        let mut rest = vec![KeyRange::prefix(removed)];
        for part in self.within(&rest[0].clone()) {
            rest = rest.iter().flat_map(|range| range.without(&part)).collect();
        }
        rest
    }

    /// Any key of a range may have changed.
    pub(super) fn note_range(&mut self, range: &KeyRange) {
        for (prefix, gathered) in &mut self.by_prefix {
            if KeyRange::prefix(prefix).overlaps(range) && !gathered.clients.is_empty() {
                gathered.all = true;
                gathered.changed.clear();
                self.dirty = true;
            }
        }
    }

    /// Other shards that are to be told of some key of a range.
    pub(super) fn shards_within(&self, range: &KeyRange) -> BTreeSet<Shard> {
        let all = self.by_prefix.iter();
        let concerned = all.filter(|(prefix, _)| KeyRange::prefix(prefix).overlaps(range));
        concerned.flat_map(|(_, gathered)| &gathered.shards).copied().collect()
    }

    /// Gives what was gathered under each prefix, and begins anew.
    pub(super) fn take(&mut self, mut each: impl FnMut(&PrefixChanges)) {
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
    fn ranges_are_cut_at_prefixes() {
        let client = ConnectionId { slot: 0, number: 1 };
        let mut prefixes = Prefixes::default();
        ["b", "bc", "d|", "f"]
            .iter()
            .for_each(|prefix| _ = prefixes.add(prefix.as_bytes(), client));
        let parts = |prefixes: &Prefixes, first: &str, last: &str| -> Vec<String> {
            let parts = prefixes.within(&KeyRange::new(first.as_bytes(), last.as_bytes()));
            let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
            parts.iter().map(|part| text(&part.first) + ".." + &text(&part.last)).collect()
        };
        for (first, last, wanted) in [
            ("a", "a~", &[][..]),
            ("a", "", &["b..c", "d|..d}", "f..g"]),
            ("bcd", "bce", &["bcd..bce"]),
            ("bcd", "d|5", &["bcd..c", "d|..d|5"]),
            ("d|a|", "d|b|", &["d|a|..d|b|"]),
            ("d}", "f", &[]),
            ("bd", "b", &[]),
            ("f", "a", &[]),
        ] {
            assert_eq!(parts(&prefixes, first, last), wanted, "{first} {last}");
        }
        prefixes.remove(b"b", client);
        let rest = prefixes.outside(b"b");
        assert_eq!(rest, [KeyRange::new(b"b", b"bc"), KeyRange::new(b"bd", b"c")]);
        prefixes.add(b"", client);
        assert_eq!(parts(&prefixes, "a", ""), ["a.."]);
        prefixes.remove(b"d|", client);
        assert_eq!(prefixes.outside(b"d|"), []);
    }

    #[test]
    fn each_prefix_gathers_its_keys_once() {
        let [one, two] = [1, 2].map(|number| ConnectionId { slot: 0, number });
        let mut prefixes = Prefixes::default();
        for (prefix, client) in [("", one), ("p|", one), ("p|", two), ("q|", two)] {
            let is_first = prefix != "p|" || client == one;
            assert_eq!(prefixes.add(prefix.as_bytes(), client), is_first);
        }
        prefixes.add_shard(b"p|", Shard(3));
        prefixes.add_shard(b"x", Shard(2));
        let mut shards = Vec::new();
        prefixes.shards_of(b"p|a", &mut shards);
        prefixes.shards_of(b"xy", &mut shards);
        assert_eq!(shards, [Shard(3), Shard(2)]);
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
            assert_eq!(prefixes.remove(prefix.as_bytes(), client), prefix != "p|" || client == two);
        }
        prefixes.remove_shard(b"p|", Shard(3));
        prefixes.remove_shard(b"x", Shard(2));
        assert_eq!((prefixes.len(), prefixes.lengths.len()), (0, 0));
    }
}
