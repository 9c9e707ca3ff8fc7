//! A table: groups reached through a hash, each an ordered tree of key suffixes.
//!
//! With boundary n, all keys that start with the same n components form a group; keys with
//! fewer components are *short* and live in a tree of the table's own. Without a boundary all
//! keys are short: the table is one tree.
//!
//! # Invariants
//! - B1. A group's keys are exactly the table's keys that start with the group's prefix, which
//!   ends with `|`; no short key lies between two of them.
//! - B2. `groups`, `by_prefix` and `order` hold the same groups.
//! - B3. A group without keys exists only while its note is not idle.
//! - B4. While the table is being regrouped (`regroup`), all keys from some key on are short, however many components they have:
//!   B1 holds of those before it.
//!
//! # Cost
//! Reaching a group is one hash of its prefix and one comparison; a scan across groups takes
//! them in order from a tree of their prefixes. A group's record is one cache line of 64 bytes,
//! its index slots 11 to 21 bytes, its place in the order some 25.

mod discarded;
mod mark;
mod offer;
mod regroup;
mod scan;

pub(crate) use offer::Place;
pub use scan::Scan;

use crate::index::Index;
use crate::slab::Slab;
use crate::tree::{Inserted, Tree};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use headwater_base::hash::Secret;
use headwater_base::{InlineBytes, KeyRange, key::SEPARATOR};
use headwater_pool::{Pool, ValueRef, prefetch};

/// What the engine writes on a group.
pub trait Note: Default {
    /// Whether a group without keys may be forgotten.
    fn is_idle(&self) -> bool;
}

impl Note for () {
    fn is_idle(&self) -> bool {
        true
    }
}

/// How far the way to a key has been fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trail {
    /// As far as it is worth while.
    End,
    /// The index slot of a group.
    GroupHash(u64),
    /// A group's record.
    Group(GroupId),
    /// The index slot of a single key.
    PointHash(u64),
    /// The record of its leaf.
    Leaf(u32),
    /// Its slot in the leaf.
    Slot(u32),
}

/// A group of one table. Valid until the group is forgotten (B3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupId(NonZeroU32);

impl GroupId {
    #[inline]
    fn new(number: u32) -> Self {
        Self(NonZeroU32::new(number + 1).expect("a table has fewer groups than there are numbers"))
    }

    #[inline]
    fn number(self) -> u32 {
        self.0.get() - 1
    }
}

/// A group. With a note of 24 bytes it fills one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Group<N> {
    /// Table name included; ends with `|`. Where it is short, reaching a group costs one cache miss less.
    prefix: InlineBytes<14>,
    tree: Tree,
    note: N,
}

/// What a table holds, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// Keys.
    pub keys: usize,
    /// Bytes of key text, group prefixes counted once per group.
    pub key_bytes: usize,
    /// Bytes that the referenced values occupy in the pool, shared ones counted per reference.
    pub value_bytes: usize,
    /// Bytes allocated for pages.
    pub page_bytes: usize,
}

/// One table's keys.
#[derive(Debug)]
pub struct Table<N> {
    /// `name|`, or nothing for the unnamed table.
    prefix: Box<[u8]>,
    boundary: usize,
    /// The keys from this one on are still to be grouped (B4).
    ungrouped: Option<Box<[u8]>>,
    groups: Slab<Group<N>>,
    by_prefix: Index,
    order: Tree,
    short: Tree,
    sizes: Sizes,
    secret: Secret,
    /// For the store's owner.
    marked: bool,
}

/// The group prefix of `key`: `boundary` components behind the first `skip` bytes, with their
/// last `|`; `None` for a short key.
#[inline]
fn group_prefix(key: &[u8], skip: usize, boundary: usize) -> Option<&[u8]> {
    if boundary == 0 {
        return None;
    }
    let mut left = boundary;
    for (at, &byte) in key[skip..].iter().enumerate() {
        if byte == SEPARATOR {
            left -= 1;
            if left == 0 {
                return Some(&key[..=skip + at]);
            }
        }
    }
    None
}

impl<N: Note> Table<N> {
    pub(crate) fn new(prefix: &[u8], boundary: usize, secret: &Secret) -> Self {
        Self {
            prefix: prefix.into(),
            boundary,
            ungrouped: None,
            groups: Slab::new(),
            by_prefix: Index::default(),
            order: Tree::new(),
            short: Tree::new(),
            sizes: Sizes::default(),
            secret: *secret,
            marked: false,
        }
    }

    /// `name|`, or nothing for the unnamed table.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Components behind the name that group keys.
    #[must_use]
    pub fn boundary(&self) -> usize {
        self.boundary
    }

    /// What the table holds.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Number of groups.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.by_prefix.len()
    }

    /// Bytes of group records, hash slots and group order.
    #[must_use]
    pub fn directory_bytes(&self) -> usize {
        self.groups.bytes()
            + self.by_prefix.bytes()
            + self.order.allocated_bytes()
            + size_of::<Self>()
    }

    fn group(&self, id: u32) -> &Group<N> {
        &self.groups[id]
    }

    fn group_mut(&mut self, id: u32) -> &mut Group<N> {
        &mut self.groups[id]
    }

    #[inline]
    fn find(&self, prefix: &[u8]) -> Option<u32> {
        self.by_prefix.find(self.secret.hash(prefix), |id| *self.group(id).prefix == *prefix)
    }

    /// The group whose prefix `prefix` is, if it exists.
    #[inline]
    #[must_use]
    pub fn group_of(&self, key: &[u8]) -> Option<GroupId> {
        let prefix = self.grouped(key)?;
        self.find(prefix).map(GroupId::new)
    }

    /// What all keys of the group of `key` begin with, whether or not the group exists.
    #[must_use]
    pub fn group_prefix_of<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        group_prefix(key, self.prefix.len(), self.boundary)
    }

    /// The group in which all of `[first, last)` lies, if there is one.
    #[inline]
    #[must_use]
    pub fn group_holding(&self, first: &[u8], last: &[u8]) -> Option<GroupId> {
        let prefix = group_prefix(first, self.prefix.len(), self.boundary)?;
        if !ends_within(last, prefix) || !self.is_regrouped(prefix) {
            return None;
        }
        self.find(prefix).map(GroupId::new)
    }

    /// The group in which all of `range` lies, made where it does not exist; `None` where the
    /// range may hold keys of several groups or short ones.
    pub fn group_around(&mut self, range: &KeyRange) -> Option<GroupId> {
        let prefix = group_prefix(&range.first, self.prefix.len(), self.boundary)?;
        let lies_in = ends_within(&range.last, prefix) && self.is_regrouped(prefix);
        lies_in.then(|| GroupId::new(self.find_or_create(prefix)))
    }

    /// Bytes that a group's pages and record take.
    #[must_use]
    pub fn group_bytes(&self, group: GroupId) -> usize {
        size_of::<Group<N>>() + self.group(group.number()).tree.allocated_bytes()
    }

    /// The note on a group.
    #[inline]
    #[must_use]
    pub fn note(&self, group: GroupId) -> &N {
        &self.group(group.number()).note
    }

    /// The note on a group, to be changed.
    pub fn note_mut(&mut self, group: GroupId) -> &mut N {
        &mut self.group_mut(group.number()).note
    }

    /// Forgets a group that has neither keys nor a note.
    pub fn forget_if_idle(&mut self, group: GroupId) {
        let record = self.group(group.number());
        if !record.tree.is_empty() || !record.note.is_idle() {
            return;
        }
        let record = self.groups.remove(group.number()).expect("B2: a group that is found exists");
        let hash = self.secret.hash(&record.prefix);
        self.by_prefix.remove(hash, group.number());
        self.order.remove(&record.prefix);
        self.sizes.key_bytes -= record.prefix.len();
    }

    fn find_or_create(&mut self, prefix: &[u8]) -> u32 {
        if let Some(id) = self.find(prefix) {
            return id;
        }
        let group =
            Group { prefix: InlineBytes::new(prefix), tree: Tree::new(), note: N::default() };
        let id = self.groups.insert(group);
        self.by_prefix.insert(self.secret.hash(prefix), id);
        self.order.insert(prefix, u64::from(id), None);
        self.sizes.key_bytes += prefix.len();
        id
    }

    /// The value of `key`.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<ValueRef> {
        let word = match self.grouped(key) {
            None => self.short.get(&key[self.prefix.len()..]),
            Some(prefix) => self.group(self.find(prefix)?).tree.get(&key[prefix.len()..]),
        };
        word.map(ValueRef::from_word)
    }

    /// As [`Table::get`]; the byte that is kept with the entry becomes what `heat` makes of it.
    #[inline]
    pub fn touch(&mut self, key: &[u8], heat: impl FnOnce(u8) -> u8) -> Option<ValueRef> {
        let word = match self.grouped(key) {
            None => self.short.touch(&key[self.prefix.len()..], heat),
            Some(prefix) => {
                let group = self.find(prefix)?;
                self.group_mut(group).tree.touch(&key[prefix.len()..], heat)
            }
        };
        word.map(ValueRef::from_word)
    }

    /// Gives `key`, if it has a value of its own, another one of these bytes, in the old one's
    /// place where nobody else holds that; `heat` is as for [`Table::touch`]. Whether it was done.
    #[inline]
    pub fn replace(
        &mut self,
        pool: &mut Pool,
        key: &[u8],
        bytes: &[u8],
        heat: impl FnOnce(u8) -> u8,
    ) -> bool {
        let (mut before, mut after) = (0, 0);
        let change = |word: u64, old_heat: u8| {
            let old = ValueRef::from_word(word);
            if old.is_handle() || old.is_cell() {
                return None;
            }
            before = pool.footprint(old);
            let new = pool.replace(old, bytes);
            after = pool.footprint(new);
            Some((new.to_word(), heat(old_heat)))
        };
        let there = match self.grouped(key) {
            None => self.short.update(&key[self.prefix.len()..], change),
            Some(prefix) => match self.find(prefix) {
                Some(group) => self.group_mut(group).tree.update(&key[prefix.len()..], change),
                None => false,
            },
        };
        self.sizes.value_bytes = self.sizes.value_bytes + after - before;
        there
    }

    /// Gives up to `most` entries that lie together, at a place that `draw` names: key, value, and
    /// the byte kept with it.
    pub fn sample(&self, draw: u64, most: usize, each: &mut impl FnMut(&[u8], ValueRef, u8)) {
        let mut key = Vec::new();
        let mut give = |base: &[u8], head: &[u8], tail: &[u8], word, heat| {
            key.clear();
            key.extend_from_slice(base);
            key.extend_from_slice(head);
            key.extend_from_slice(tail);
            each(&key, ValueRef::from_word(word), heat);
        };
        let slots = self.groups.end() as u64;
        let in_short = self.short.len() as u64;
        // Groups are drawn as often as all keys outside of them together hold entries.
        if draw % (in_short + self.by_prefix.len() as u64).max(1) < in_short || slots == 0 {
            let rest = draw / (in_short + self.by_prefix.len() as u64).max(1);
            self.short.sample(rest, most, &mut |head, tail, word, heat| {
                give(&self.prefix, head, tail, word, heat);
            });
            return;
        }
        let (start, rest) = ((draw % slots) as usize, draw / slots);
        let mut groups = self.groups.iter_from(start).chain(self.groups.iter());
        if let Some(group) = groups.find(|group| !group.tree.is_empty()) {
            group.tree.sample(rest, most, &mut |head, tail, word, heat| {
                give(&group.prefix, head, tail, word, heat);
            });
        }
    }

    /// Gives `key` a value and hands back the one it had. The reference counts are the
    /// caller's business.
    #[inline]
    pub fn insert(&mut self, pool: &Pool, key: &[u8], value: ValueRef) -> Option<ValueRef> {
        match self.grouped(key) {
            None => {
                let skip = self.prefix.len();
                insert_into(
                    &mut self.short,
                    &mut self.sizes,
                    pool,
                    &key[skip..],
                    (value, &self.secret),
                )
            }
            Some(prefix) => {
                let group = self.find_or_create(prefix);
                self.insert_in(pool, GroupId::new(group), &key[prefix.len()..], value)
            }
        }
    }

    /// As [`Table::insert`], for the key made of the group's prefix and `suffix`.
    #[inline]
    pub fn insert_in(
        &mut self,
        pool: &Pool,
        group: GroupId,
        suffix: &[u8],
        value: ValueRef,
    ) -> Option<ValueRef> {
        let record = &mut self.groups[group.number()];
        insert_into(&mut record.tree, &mut self.sizes, pool, suffix, (value, &self.secret))
    }

    /// As [`Tree::reserve`], for keys made of the group's prefix and what follows it.
    pub fn reserve_in(&mut self, group: GroupId, ends: (&[u8], &[u8]), count: usize, bytes: usize) {
        let tree = &mut self.groups[group.number()].tree;
        let before = tree.allocated_bytes();
        tree.reserve(ends, count, bytes);
        self.sizes.page_bytes = self.sizes.page_bytes + tree.allocated_bytes() - before;
    }

    /// The value of the key made of the group's prefix and `suffix`.
    #[inline]
    #[must_use]
    pub fn get_in(&self, group: GroupId, suffix: &[u8]) -> Option<ValueRef> {
        self.group(group.number()).tree.get(suffix).map(ValueRef::from_word)
    }

    /// A group's prefix, table name included.
    #[inline]
    #[must_use]
    pub fn group_prefix(&self, group: GroupId) -> &[u8] {
        &self.group(group.number()).prefix
    }

    /// Removes `key` and hands back its value.
    pub fn remove(&mut self, pool: &Pool, key: &[u8]) -> Option<ValueRef> {
        match self.grouped(key) {
            None => {
                let skip = self.prefix.len();
                remove_from(&mut self.short, &mut self.sizes, pool, &key[skip..])
            }
            Some(prefix) => {
                let id = self.find(prefix)?;
                let record = &mut self.groups[id];
                let removed =
                    remove_from(&mut record.tree, &mut self.sizes, pool, &key[prefix.len()..]);
                if record.tree.is_empty() {
                    self.forget_if_idle(GroupId::new(id));
                }
                removed
            }
        }
    }

    /// Fetches what finding `key` reads first.
    #[inline]
    pub(crate) fn warm_first(&self, key: &[u8]) -> Trail {
        match self.grouped(key) {
            Some(prefix) => {
                let hash = self.secret.hash(prefix);
                if let Some(slot) = self.by_prefix.first_slot(hash) {
                    prefetch(slot);
                }
                Trail::GroupHash(hash)
            }
            None => match self.short.fetch_point(&key[self.prefix.len()..]) {
                Some(hash) => Trail::PointHash(hash),
                None => Trail::End,
            },
        }
    }

    /// Fetches what comes next on the way to a key.
    #[inline]
    pub(crate) fn warm_next(&self, pool: &Pool, trail: Trail) -> Trail {
        match trail {
            Trail::End => Trail::End,
            Trail::GroupHash(hash) => {
                let Some(id) = self.by_prefix.find(hash, |_| true) else { return Trail::End };
                self.fetch_record(GroupId::new(id));
                Trail::Group(GroupId::new(id))
            }
            Trail::Group(id) => {
                self.fetch_end(id);
                Trail::End
            }
            Trail::PointHash(hash) => self.short.fetch_leaf(hash).map_or(Trail::End, Trail::Leaf),
            Trail::Leaf(point) => {
                self.short.fetch_slot(point);
                Trail::Slot(point)
            }
            Trail::Slot(point) => {
                if let Some(word) = self.short.fetch_entry(point) {
                    pool.prefetch_to_change(ValueRef::from_word(word));
                }
                Trail::End
            }
        }
    }

    /// Fetches a group's record into the processor's cache. A hint.
    #[inline]
    pub fn fetch_record(&self, id: GroupId) {
        if let Some(group) = self.groups.get(id.number()) {
            prefetch(group);
        }
    }

    /// Fetches what reading or writing the end of a group touches. A hint.
    #[inline]
    pub fn fetch_end(&self, id: GroupId) {
        for place in self.group(id.number()).tree.near_end().into_iter().flatten() {
            prefetch(place);
        }
    }

    /// Takes all values out, for the pool to release, and forgets every key and group.
    pub(crate) fn clear(&mut self, mut each: impl FnMut(ValueRef)) {
        self.short.for_each(|_, _, word| each(ValueRef::from_word(word)));
        for group in self.groups.iter() {
            group.tree.for_each(|_, _, word| each(ValueRef::from_word(word)));
        }
        let marked = self.marked;
        *self = Self::new(&self.prefix, self.boundary, &self.secret);
        self.marked = marked;
    }

    /// Slots read by finding all groups, and all single keys of a large table, with how many there are.
    #[cfg(test)]
    pub(crate) fn probes(&self) -> [Option<(usize, usize)>; 2] {
        [Some(self.by_prefix.probes()), self.short.probes()]
    }
}

/// Whether no key at or behind the prefix's first and before `last` lacks `prefix`, which
/// ends with `|`.
#[inline]
fn ends_within(last: &[u8], prefix: &[u8]) -> bool {
    let head = prefix.len() - 1;
    last.len() > head
        && last[..head] == prefix[..head]
        && (last[head] == SEPARATOR || (last[head] == SEPARATOR + 1 && last.len() == prefix.len()))
}

#[inline]
fn insert_into(
    tree: &mut Tree,
    sizes: &mut Sizes,
    pool: &Pool,
    suffix: &[u8],
    (value, secret): (ValueRef, &Secret),
) -> Option<ValueRef> {
    let before = tree.allocated_bytes();
    sizes.value_bytes += pool.footprint(value);
    match tree.insert(suffix, value.to_word(), Some(secret)) {
        Inserted::New => {
            sizes.keys += 1;
            sizes.key_bytes += suffix.len();
            sizes.page_bytes = sizes.page_bytes + tree.allocated_bytes() - before;
            None
        }
        Inserted::Replaced(word) => {
            let old = ValueRef::from_word(word);
            sizes.value_bytes -= pool.footprint(old);
            Some(old)
        }
    }
}

fn remove_from(tree: &mut Tree, sizes: &mut Sizes, pool: &Pool, suffix: &[u8]) -> Option<ValueRef> {
    let before = tree.allocated_bytes();
    let value = ValueRef::from_word(tree.remove(suffix)?);
    sizes.keys -= 1;
    sizes.key_bytes -= suffix.len();
    sizes.value_bytes -= pool.footprint(value);
    sizes.page_bytes = sizes.page_bytes + tree.allocated_bytes() - before;
    Some(value)
}
