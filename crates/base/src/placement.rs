//! Which shard is the home of which keys.
//!
//! A key is placed by the hash of its *group*: the components behind the table's name that the table's
//! boundary binds (one, where none was declared), without that name. So `s|ann|bob` and `t|ann|100`
//! live together. Groups hash into a fixed number of partitions, and a map, which can change, says which
//! shard is the home of each partition. A key without a table is placed by its first `{tag}`, as
//! clients of Redis Cluster know it, or by all of its bytes.
//!
//! In a cluster groups have Redis Cluster's slots instead, four to a partition: so its clients find the home of a key without a table, and of one whose
//! group has a `{tag}`.
//!
//! # Invariants
//! - P1. A key's partition depends on its bytes and its table's boundary alone, not on the process: it is the same
//!   on each shard and machine.
//!
//! # Cost
//! A look for separators and a multiplication for each byte of the group; a lookup by the table's name
//! only while some table has a boundary of two or more.

use crate::KeyRange;
use crate::key::{SEPARATOR, end_at_most};
use crate::slots::{SLOTS, slot_of};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// How many partitions there are.
pub const PARTITIONS: usize = 4096;

/// Slots of a partition.
const SLOTS_EACH: u16 = SLOTS / PARTITIONS as u16;

/// One of the partitions that groups hash into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Partition(pub u16);

/// One shard, by its number from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Shard(pub u16);

/// Where every key lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    shards: u16,
    homes: Vec<Shard>,
    /// Counts the changes of the map.
    version: u64,
    /// The same for maps that place every key alike.
    digest: u64,
    /// Names of tables whose boundary is two or more.
    deep: BTreeMap<Vec<u8>, usize>,
    /// Groups have Redis Cluster's slots.
    by_slots: bool,
}

/// The part that one fact has in a placement's digest.
fn digest_of(number: u64, name: &[u8]) -> u64 {
    let mut mixed = number ^ 0x9e37_79b9_7f4a_7c15;
    for &byte in name.iter().chain(&[0xff; 8]) {
        mixed = (mixed ^ u64::from(byte)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 29;
    }
    mixed
}

fn digest_of_homes(homes: &[Shard]) -> u64 {
    let each = homes.iter().enumerate();
    each.fold(0, |all, (at, home)| all ^ digest_of(home.0.into(), &(at as u16).to_le_bytes()))
}

impl Placement {
    /// Partitions dealt out to `shards` shards in turn.
    ///
    /// # Panics
    /// There are no shards, or more than partitions.
    #[must_use]
    pub fn even(shards: u16) -> Self {
        assert!((1..=PARTITIONS).contains(&usize::from(shards)), "1 to {PARTITIONS} shards");
        let homes: Vec<Shard> = (0..PARTITIONS as u16).map(|at| Shard(at % shards)).collect();
        let digest = digest_of_homes(&homes);
        Self { shards, homes, version: 0, digest, deep: BTreeMap::new(), by_slots: false }
    }

    /// Redis Cluster's slots dealt out to `shards` shards in runs.
    ///
    /// # Panics
    /// There are no shards, or more than partitions.
    #[must_use]
    pub fn by_slots(shards: u16) -> Self {
        assert!((1..=PARTITIONS).contains(&usize::from(shards)), "1 to {PARTITIONS} shards");
        let run = |at: usize| Shard((at * usize::from(shards) / PARTITIONS) as u16);
        let homes: Vec<Shard> = (0..PARTITIONS).map(run).collect();
        let digest = digest_of_homes(&homes) ^ digest_of(0, b"slots");
        Self { shards, homes, version: 0, digest, deep: BTreeMap::new(), by_slots: true }
    }

    /// The slots of a shard, first and last; `None`: keys are not placed by slots, or it has none.
    #[must_use]
    pub fn slots(&self, shard: Shard) -> Option<(u16, u16)> {
        let first = self.homes.iter().position(|home| *home == shard).filter(|_| self.by_slots)?;
        let last = self.homes.iter().rposition(|home| *home == shard)?;
        Some((first as u16 * SLOTS_EACH, (last as u16 + 1) * SLOTS_EACH - 1))
    }

    #[inline]
    fn partition_of(&self, group: &[u8]) -> Partition {
        if self.by_slots { Partition(slot_of(group) / SLOTS_EACH) } else { partition_of(group) }
    }

    /// The partitions at these homes, in order; `None` where these are not those of all partitions, or one is none of the
    /// shards.
    #[must_use]
    pub fn of(shards: u16, homes: Vec<Shard>) -> Option<Self> {
        let known = homes.len() == PARTITIONS && homes.iter().all(|home| home.0 < shards);
        let digest = digest_of_homes(&homes);
        let deep = BTreeMap::new();
        known.then_some(Self { shards, homes, version: 0, digest, deep, by_slots: false })
    }

    /// The home of each partition, in order.
    #[must_use]
    pub fn homes(&self) -> &[Shard] {
        &self.homes
    }

    /// Tables (named without their separator) whose keys are grouped by more than one component, with how many.
    pub fn boundaries(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.deep.iter().map(|(table, &boundary)| (&**table, boundary))
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// How often the map has changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A number that two placements have in common if they place every key alike, and hardly otherwise.
    #[inline]
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Makes `home` the home of a partition.
    pub fn assign(&mut self, partition: Partition, home: Shard) {
        let before = core::mem::replace(&mut self.homes[usize::from(partition.0)], home);
        for home in [before, home] {
            self.digest ^= digest_of(home.0.into(), &partition.0.to_le_bytes());
        }
        self.version += 1;
    }

    /// A table (named without its separator) groups its keys by so many components.
    pub fn set_boundary(&mut self, table: &[u8], boundary: usize) {
        let before = if boundary > 1 {
            self.deep.insert(table.to_vec(), boundary)
        } else {
            self.deep.remove(table)
        };
        for boundary in before.into_iter().chain((boundary > 1).then_some(boundary)) {
            self.digest ^= digest_of(boundary as u64, table);
        }
    }

    /// The home of a partition.
    #[inline]
    #[must_use]
    pub fn home_of(&self, partition: Partition) -> Shard {
        self.homes[usize::from(partition.0)]
    }

    /// The home of a key.
    #[inline]
    #[must_use]
    pub fn home(&self, key: &[u8]) -> Shard {
        if self.shards == 1 { Shard(0) } else { self.home_of(self.partition(key)) }
    }

    /// The partition of a key.
    #[inline]
    #[must_use]
    pub fn partition(&self, key: &[u8]) -> Partition {
        match key.iter().position(|&byte| byte == SEPARATOR) {
            Some(at) => {
                let (group, _) = split_group(&key[at + 1..], self.boundary(&key[..at]));
                self.partition_of(group)
            }
            None => self.partition_of(tag(key)),
        }
    }

    /// The slot of a key, where keys are placed by slots: that of what places it.
    #[must_use]
    pub fn slot(&self, key: &[u8]) -> u16 {
        match key.iter().position(|&byte| byte == SEPARATOR) {
            Some(at) => {
                let (group, _) = split_group(&key[at + 1..], self.boundary(&key[..at]));
                slot_of(group)
            }
            None => slot_of(key),
        }
    }

    /// How many components place a table's keys.
    #[inline]
    #[must_use]
    pub fn boundary(&self, table: &[u8]) -> usize {
        if self.deep.is_empty() { 1 } else { self.deep.get(table).copied().unwrap_or(1) }
    }

    /// The partition of all keys of a range, where they have one. A range that may hold keys
    /// of several has none, and so has one that reaches over tables.
    #[must_use]
    pub fn partition_of_range(&self, range: &KeyRange) -> Option<Partition> {
        let is_point = range.last.len() == range.first.len() + 1
            && range.last.ends_with(&[0])
            && range.last.starts_with(&range.first);
        if is_point {
            return Some(self.partition(&range.first));
        }
        let at = range.first.iter().position(|&byte| byte == SEPARATOR)?;
        let (group, is_whole) =
            split_group(&range.first[at + 1..], self.boundary(&range.first[..at]));
        if !is_whole || range.last.is_empty() {
            return None;
        }
        let mut end = range.first[..at + 1 + group.len()].to_vec();
        end.push(SEPARATOR + 1);
        end_at_most(&range.last, &end).then(|| self.partition_of(group))
    }

    /// The home of all keys of a range, where they have one.
    #[must_use]
    pub fn home_of_range(&self, range: &KeyRange) -> Option<Shard> {
        if self.shards == 1 {
            return Some(Shard(0));
        }
        self.partition_of_range(range).map(|partition| self.home_of(partition))
    }
}

/// The first `boundary` components of `rest`, and whether a separator follows them.
#[inline]
fn split_group(rest: &[u8], boundary: usize) -> (&[u8], bool) {
    let mut left = boundary;
    for (at, &byte) in rest.iter().enumerate() {
        if byte == SEPARATOR {
            left -= 1;
            if left == 0 {
                return (&rest[..at], true);
            }
        }
    }
    (rest, false)
}

/// What of a key without a table places it.
#[inline]
fn tag(key: &[u8]) -> &[u8] {
    let inside = key.iter().position(|&byte| byte == b'{').map(|at| &key[at + 1..]);
    let tag =
        inside.and_then(|rest| rest.iter().position(|&byte| byte == b'}').map(|end| &rest[..end]));
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// FNV-1a, with its bits mixed at the end: short groups differ in few bits.
#[inline]
fn partition_of(group: &[u8]) -> Partition {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in group {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Partition((hash >> (64 - PARTITIONS.trailing_zeros())) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_that_are_alike_have_one_digest() {
        let (mut one, mut other) = (Placement::even(3), Placement::even(3));
        assert_eq!(one.digest(), other.digest());
        one.set_boundary(b"t", 2);
        one.assign(Partition(7), Shard(0));
        assert_ne!(one.digest(), other.digest());
        other.assign(Partition(7), Shard(2));
        other.assign(Partition(7), Shard(0));
        other.set_boundary(b"t", 3);
        assert_ne!(one.digest(), other.digest());
        other.set_boundary(b"t", 2);
        assert_eq!(one.digest(), other.digest());
        let rebuilt = Placement::of(3, one.homes().to_vec()).unwrap();
        other.set_boundary(b"t", 1);
        assert_eq!(rebuilt.digest(), other.digest());
    }

    #[test]
    fn clients_of_redis_cluster_find_homes_by_slots() {
        for shards in [1, 2, 3, 7, 4096] {
            let placement = Placement::by_slots(shards);
            let mut next = 0;
            for shard in (0..shards).map(Shard) {
                let (first, last) = placement.slots(shard).unwrap();
                assert_eq!(first, next, "{shards} shards, {shard:?}");
                next = last + 1;
            }
            assert_eq!(next, SLOTS);
            for key in ["foo", "", "a{b}c", "p|{bob}|1", "s|{bob}|ann", "x}{y}{z}"] {
                let home = placement.home(key.as_bytes());
                let (first, last) = placement.slots(home).unwrap();
                assert!((first..=last).contains(&slot_of(key.as_bytes())), "{key}");
            }
            assert_eq!(placement.home(b"p|bob|1"), placement.home(b"s|bob|2"));
        }
        assert_eq!(Placement::even(3).slots(Shard(0)), None);
        assert_ne!(Placement::even(1).digest(), Placement::by_slots(1).digest());
    }

    #[test]
    fn groups_live_together_whatever_their_table() {
        let placement = Placement::even(7);
        for name in ["ann", "bob", "", "a\u{7f}"] {
            let key = |table: &str, rest: &str| alloc::format!("{table}|{name}{rest}").into_bytes();
            let home = placement.home(&key("s", "|bob"));
            assert_eq!(home, placement.home(&key("t", "|100|bob")));
            assert_eq!(home, placement.home(&key("karma", "")));
        }
        assert_eq!(placement.home(b"{ann}:1"), placement.home(b"x{ann}y"));
        assert_eq!(placement.partition(b"a{}b"), partition_of(b"a{}b"));
    }

    #[test]
    fn a_range_has_a_partition_only_if_all_of_its_keys_do() {
        let mut placement = Placement::even(3);
        let of = |placement: &Placement, first: &[u8], last: &[u8]| {
            placement.partition_of_range(&KeyRange::new(first, last))
        };
        let ann = Some(placement.partition(b"t|ann|1"));
        assert_eq!(of(&placement, b"t|ann|", b"t|ann}"), ann);
        assert_eq!(of(&placement, b"t|ann|5", b"t|ann|7"), ann);
        assert_eq!(of(&placement, b"t|ann", b"t|ann\0"), ann);
        let several: [(&[u8], &[u8]); 6] = [
            (b"t|ann", b"t|ann}"),
            (b"t|ann|", b"t|ann~"),
            (b"t|ann|", b""),
            (b"t|", b"t}"),
            (b"", b""),
            (b"plain", b"plaio"),
        ];
        for (first, last) in several {
            assert_eq!(of(&placement, first, last), None, "{first:?}");
        }
        placement.set_boundary(b"t", 2);
        assert_eq!(of(&placement, b"t|ann|", b"t|ann}"), None);
        assert_eq!(of(&placement, b"t|ann|5|", b"t|ann|5}"), Some(partition_of(b"ann|5")));
        assert_eq!(placement.partition(b"t|ann|5|x"), partition_of(b"ann|5"));
        assert_eq!(placement.partition(b"t|ann"), partition_of(b"ann"));
    }

    #[test]
    fn partitions_are_used_evenly_and_can_be_moved() {
        let mut placement = Placement::even(4);
        let mut counts = [0u32; 4];
        for number in 0..40_000 {
            let key = alloc::format!("u|{number:05}|x").into_bytes();
            counts[usize::from(placement.home(&key).0)] += 1;
        }
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
        let (partition, home) = (placement.partition(b"u|7|x"), placement.home(b"u|7|x"));
        let other = Shard((home.0 + 1) % 4);
        placement.assign(partition, other);
        assert_eq!((placement.home(b"u|7|x"), placement.version()), (other, 1));
        let again = Placement::of(4, placement.homes().to_vec()).unwrap();
        assert_eq!(again.home(b"u|7|x"), other);
        assert_eq!(Placement::of(3, placement.homes().to_vec()), None);
        assert_eq!(Placement::of(4, placement.homes()[1..].to_vec()), None);
    }
}
