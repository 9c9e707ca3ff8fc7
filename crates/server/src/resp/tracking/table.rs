//! The keys that clients have read and keep copies of: who is to be told when one changes, clients or their shards.
//!
//! # Invariants
//! - T1. `places` has the place of each entry under its key's hash, and `bytes` is what the entries take.
//!
//! # Cost
//! One hash and, for a new key, one allocation; about 60 bytes a key besides its own.

use hashbrown::HashTable;
use headwater_base::hash::Secret;

/// From so many clients of one key on, those that are gone are looked for when the list grows.
const CLIENTS_MANY: usize = 8;

/// A key that was read.
#[derive(Debug)]
pub(super) struct Entry<C> {
    pub(super) key: Box<[u8]>,
    /// Who keeps a copy. Some of them may be gone.
    pub(super) clients: Vec<C>,
}

impl<C> Entry<C> {
    fn bytes(&self) -> usize {
        // A place is a word and a byte of control, in a table that is half empty at worst.
        size_of::<Self>() + self.key.len() + self.clients.capacity() * size_of::<C>() + 10
    }
}

/// The keys.
#[derive(Debug)]
pub(super) struct Table<C> {
    entries: Vec<Entry<C>>,
    places: HashTable<u32>,
    secret: Secret,
    bytes: usize,
    /// Moves on with every entry that is taken to make room.
    hand: usize,
}

impl<C: Copy + PartialEq> Table<C> {
    pub(super) fn new(secret: Secret) -> Self {
        Self { entries: Vec::new(), places: HashTable::new(), secret, bytes: 0, hand: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many copies clients keep.
    pub(super) fn copies(&self) -> usize {
        self.entries.iter().map(|entry| entry.clients.len()).sum()
    }

    /// Whether somebody keeps a copy of a key.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.place(key).is_some()
    }

    /// The keys, with who keeps copies of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<C>> {
        self.entries.iter()
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        let hash = self.secret.hash(key);
        let found = self.places.find(hash, |&at| *self.entries[at as usize].key == *key);
        found.map(|&at| at as usize)
    }

    /// A client has read a key; `None`: somebody has who is told of all keys of a prefix.
    pub(super) fn add(&mut self, key: &[u8], client: Option<C>, is_gone: impl Fn(C) -> bool) {
        let Some(at) = self.place(key) else {
            let clients = client.into_iter().collect();
            let entry = Entry { key: key.into(), clients };
            self.bytes += entry.bytes();
            let (entries, secret) = (&self.entries, &self.secret);
            self.places.insert_unique(secret.hash(key), entries.len() as u32, |&at| {
                secret.hash(&entries[at as usize].key)
            });
            self.entries.push(entry);
            return;
        };
        let entry = &mut self.entries[at];
        self.bytes -= entry.bytes();
        if let Some(client) = client
            && !entry.clients.contains(&client)
        {
            if entry.clients.len() >= CLIENTS_MANY
                && entry.clients.len() == entry.clients.capacity()
            {
                entry.clients.retain(|&client| !is_gone(client));
            }
            entry.clients.push(client);
        }
        self.bytes += entry.bytes();
    }

    /// Who kept copies keeps none any more; the keys of which nobody does.
    pub(super) fn forget(&mut self, client: C) -> Vec<Box<[u8]>> {
        let mut alone = Vec::new();
        for at in 0..self.entries.len() {
            let entry = &mut self.entries[at];
            self.bytes -= entry.bytes();
            let before = entry.clients.len();
            entry.clients.retain(|other| *other != client);
            self.bytes += entry.bytes();
            if before > 0 && entry.clients.is_empty() {
                alone.push(entry.key.clone());
            }
        }
        alone.iter().for_each(|key| _ = self.take(key));
        alone
    }

    /// Takes a key out.
    pub(super) fn take(&mut self, key: &[u8]) -> Option<Entry<C>> {
        self.place(key).map(|at| self.take_at(at))
    }

    /// Takes a key out to make room; which one is nobody's choice.
    pub(super) fn take_any(&mut self) -> Option<Entry<C>> {
        if self.entries.is_empty() {
            return None;
        }
        self.hand = (self.hand + 1) % self.entries.len();
        Some(self.take_at(self.hand))
    }

    fn take_at(&mut self, at: usize) -> Entry<C> {
        self.unplace(at);
        let last = self.entries.len() - 1;
        if at != last {
            self.unplace(last);
            let (entries, secret) = (&self.entries, &self.secret);
            let hash = secret.hash(&entries[last].key);
            self.places.insert_unique(hash, at as u32, |&other| {
                // The moved one is still at the end.
                let other = if other as usize == at { last } else { other as usize };
                secret.hash(&entries[other].key)
            });
        }
        let entry = self.entries.swap_remove(at);
        self.bytes -= entry.bytes();
        entry
    }

    fn unplace(&mut self, at: usize) {
        let hash = self.secret.hash(&self.entries[at].key);
        if let Ok(found) = self.places.find_entry(hash, |&other| other as usize == at) {
            let _place = found.remove();
        }
    }

    /// Takes all keys out.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.secret);
    }
}

#[cfg(test)]
mod tests {
    use super::Table;
    use crate::connection::ConnectionId;
    use headwater_base::hash::Secret;
    use std::collections::BTreeMap;

    fn client(number: u64) -> ConnectionId {
        ConnectionId { slot: number as usize, number }
    }

    #[test]
    fn a_table_is_a_map_of_lists() {
        let (mut table, mut model) =
            (Table::<ConnectionId>::new(Secret::fixed(1)), BTreeMap::<Vec<u8>, Vec<u64>>::new());
        let mut state = 7u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        for _ in 0..20_000 {
            let key = format!("k{}", draw(300)).into_bytes();
            match draw(10) {
                0..6 => {
                    let number = 1 + draw(19);
                    table.add(&key, Some(client(number)), |_| false);
                    let numbers = model.entry(key).or_default();
                    if !numbers.contains(&number) {
                        numbers.push(number);
                    }
                }
                6..9 => {
                    let taken = table.take(&key).map(|entry| entry.clients);
                    let wanted = model.remove(&key);
                    let wanted = wanted.map(|numbers| numbers.into_iter().map(client).collect());
                    assert_eq!(taken, wanted);
                }
                _ => {
                    let taken = table.take_any();
                    assert_eq!(taken.is_some(), !model.is_empty());
                    assert!(taken.is_none_or(|entry| model.remove(&*entry.key).is_some()));
                }
            }
            assert_eq!(table.len(), model.len());
        }
        assert_eq!(table.copies(), model.values().map(Vec::len).sum::<usize>());
        while table.take_any().is_some() {}
        assert_eq!((table.len(), table.bytes(), table.places.len()), (0, 0, 0));
    }

    #[test]
    fn clients_that_are_gone_do_not_gather() {
        let mut table = Table::<ConnectionId>::new(Secret::fixed(1));
        for number in 0..10_000 {
            table.add(b"k", Some(client(number)), |other| other.number + 3 < number);
        }
        assert!(table.copies() < 40 && table.bytes() < 2000);
    }
}
