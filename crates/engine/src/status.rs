//! Status ranges: which spans of a join's output are materialized, and how well (Pequod §3.2).
//!
//! A read is answerable only when every byte of its span lies in clean status ranges; the rest
//! is a *gap*, which execution fills. An absent key in a clean range is a fact.
//!
//! # Invariants
//! - R1. The status ranges of one join are non-empty and disjoint; `cover` orders them.
//! - R2. `applied check keys x current value keys` is what a push range holds: a change of a
//!   value source is applied at once, a change of a check source is logged in `Work::log`
//!   and applied by the next read that it concerns.
//! - R3. A push range that is not invalid owns a target for every source span that it read.
//! - R4. A range that is not clean is named in `Work::upstream` of each range that depends on it.
//!
//! # Cost
//! A range is a record of 96 bytes, its two ends, and for targets beyond the first 8 bytes each, in places that are made by four at least. Finding the one that
//! serves a read is a look at the note of the output's group, or O(log n) without a group.

mod record;

pub(crate) use record::Status;

use crate::log::Log;
use crate::refold::Refolding;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_base::key::SEPARATOR;
use headwater_base::{KeyRange, Limits, Shard};
use headwater_pattern::{Bindings, Component, Pattern};
use headwater_pool::prefetch;
use headwater_store::{Chunks, GroupId, Slab};

/// A status range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct StatusId(pub(crate) u32);

/// What must be done before a push range can be read.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Nothing of the range is known any more: it is recomputed as a whole.
    pub(crate) invalid: bool,
    /// Only a part of what the range holds was added yet (`gather`).
    pub(crate) gathering: bool,
    /// One key of a source leads to more rows than a slice may gather: the range is divided, also where its parts read the
    /// same rows again (J4).
    pub(crate) divides_on: bool,
    /// Changed check keys.
    pub(crate) log: Log,
    /// Output keys whose fold must be recomputed.
    pub(crate) stale: BTreeSet<Box<[u8]>>,
    /// Output keys whose fold is being recomputed piece by piece.
    pub(crate) refolding: BTreeMap<Box<[u8]>, Refolding>,
    /// Homes of keys that it has read, of which nothing was heard for a while: it waits for those that are suspended still.
    pub(crate) suspended: Vec<Shard>,
    /// Ranges of other joins, read by this one, that are not clean.
    pub(crate) upstream: BTreeSet<StatusId>,
    /// What applying check keys that went took since the range was clean.
    pub(crate) taken_out: Steps,
    /// What recomputing stale folds one by one took since then.
    pub(crate) refolded: Steps,
}

impl Work {
    pub(crate) fn is_empty(&self) -> bool {
        !self.invalid
            && !self.gathering
            && self.log.is_empty()
            && self.stale.is_empty()
            && self.refolding.is_empty()
            && self.suspended.is_empty()
            && self.upstream.is_empty()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.log.bytes()
            + self.stale.iter().map(|key| key.len() + 32).sum::<usize>()
            + self.refolding.keys().map(|key| 2 * key.len() + 96).sum::<usize>()
            + self.upstream.len() * 8
            + self.suspended.capacity() * size_of::<Shard>()
    }
}

/// Rows that steps of maintenance visited which a recomputation of the range would have made needless.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    done: u64,
    rows: u64,
}

impl Steps {
    /// One more was taken, and visited so many rows.
    pub(crate) fn took(&mut self, rows: u64) {
        self.done += 1;
        self.rows += rows;
    }

    /// A step that is taken in parts has visited so many rows more; the first part begins it.
    pub(crate) fn took_part(&mut self, rows: u64, begins: bool) {
        self.done += u64::from(begins);
        self.rows += rows;
    }

    /// Rows that so many more steps will visit, if they are as those that were taken.
    pub(crate) fn rows_of(&self, more: usize) -> u64 {
        match self.done {
            0 => 0,
            done => (self.rows / done).saturating_mul(more as u64),
        }
    }

    /// Rows visited by all steps, after so many more.
    pub(crate) fn rows_after(&self, more: usize) -> u64 {
        self.rows.saturating_add(self.rows_of(more))
    }
}

/// The leading components that every key of an output range shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fixed {
    /// Bytes of the range's first key up to and with the `|` behind the last such component;
    /// the whole key where the range holds one key only.
    pub(crate) prefix_bytes: usize,
    /// Components of the output that these bytes hold.
    pub(crate) components: usize,
    /// Slots of the output that are fixed thereby, as bits.
    pub(crate) slots: u32,
}

impl Fixed {
    /// What `range` fixes of `output`. The range must be able to hold an output key.
    pub(crate) fn of(output: &Pattern, range: &KeyRange) -> Self {
        let is_point = range.last.len() == range.first.len() + 1
            && range.last.last() == Some(&0)
            && range.last.starts_with(&range.first);
        let prefix_bytes = if is_point { range.first.len() } else { shared_prefix(range) };
        let (mut slots, mut components) = (0, 0);
        for_components(output, &range.first[..prefix_bytes], is_point, |component, _| {
            components += 1;
            if let Component::Slot { slot, .. } = component {
                slots |= 1 << slot;
            }
        });
        Self { prefix_bytes, components, slots }
    }

    /// What ranges that fix this have in common: nothing where it is no more than the table, or a whole key.
    pub(crate) fn stem(self, first: &[u8]) -> Option<&[u8]> {
        let prefix = &first[..self.prefix_bytes];
        (self.components > 0 && prefix.ends_with(&[SEPARATOR])).then_some(prefix)
    }

    /// Binds the fixed slots to their values in `first`, the range's first key.
    #[inline]
    pub(crate) fn bind<'k>(self, output: &Pattern, first: &'k [u8], bindings: &mut Bindings<'k>) {
        let prefix = &first[..self.prefix_bytes];
        let whole = !prefix.ends_with(b"|");
        for_components(output, prefix, whole, |component, value| {
            if let Component::Slot { slot, .. } = component {
                bindings.set(*slot, value);
            }
        });
    }
}

/// Calls `each` with the components of `output` that `prefix` holds in full. Where the prefix
/// is a `whole` key, its last component counts though no `|` ends it.
#[inline]
pub(crate) fn for_components<'k>(
    output: &Pattern,
    prefix: &'k [u8],
    whole: bool,
    mut each: impl FnMut(&Component, &'k [u8]),
) {
    let mut parts = prefix.split(|&byte| byte == SEPARATOR);
    parts.next();
    let mut parts = parts.peekable();
    for component in &output.components {
        let Some(part) = parts.next() else { return };
        if parts.peek().is_some() || (whole && !part.is_empty()) {
            each(component, part);
        }
    }
}

/// Length of the longest prefix ending in `|` that all keys of the range share.
pub(crate) fn shared_prefix(range: &KeyRange) -> usize {
    let (first, last) = (&range.first, &range.last);
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    // Where the ends differ by one in one byte and `last` stops there, `first`'s byte is fixed.
    let shared = if last.len() == common + 1
        && first.get(common).is_some_and(|&byte| byte.checked_add(1) == Some(last[common]))
    {
        common + 1
    } else {
        common
    };
    first[..shared].iter().rposition(|&byte| byte == SEPARATOR).map_or(0, |at| at + 1)
}

/// Whether a range that ends at `last` reaches to the end of `prefix`.
pub(crate) fn is_open(prefix: &[u8], last: &[u8]) -> bool {
    !prefix.is_empty() && reaches_end(prefix, last)
}

/// Whether a range that ends at `last` leaves out no key that starts with `prefix` for being
/// too great.
#[inline]
pub(crate) fn reaches_end(prefix: &[u8], last: &[u8]) -> bool {
    // As `prefix_end(prefix) <= last`, without making the one.
    let Some(at) = prefix.iter().rposition(|&byte| byte != 0xFF) else { return last.is_empty() };
    match last.get(..at) {
        _ if last.is_empty() => true,
        None => *last > prefix[..at],
        Some(start) => match start.cmp(&prefix[..at]) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => last.get(at).is_some_and(|&byte| byte > prefix[at]),
        },
    }
}

/// The first eight bytes as a number: where two differ, they are ordered as the strings are.
#[inline]
pub(crate) fn head(bytes: &[u8]) -> u64 {
    let mut eight = [0; 8];
    let len = bytes.len().min(8);
    eight[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(eight)
}

/// What an update of a plain copy needs to know of a status range: 24 bytes with the mark of a free place, so that a post
/// with ten thousand followers touches less than half a cache line for each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Landing {
    /// The group into which outputs go: the range reaches to its end, and fixes no more than
    /// its prefix. `None`: look at the range itself.
    pub(crate) group: Option<GroupId>,
    /// Components that the group's prefix holds.
    pub(crate) components: u32,
    /// What changes may take still before the range's account is looked at; 0 where there is none, or it is to be looked at.
    pub(crate) budget: u32,
    /// The first bytes of what follows the prefix in the range's first key.
    from: [u8; 8],
}

const _: () = assert!(size_of::<Option<Landing>>() == 24);

impl Landing {
    /// Where prefix and suffix are at most this long, no output is too long for a key.
    pub(crate) const PART_BYTES_MAX: usize = Limits::KEY_BYTES_CEILING / 2;

    /// Whether the key of `suffix` certainly lies in the range.
    #[inline]
    pub(crate) fn admits(&self, suffix_head: u64) -> bool {
        suffix_head > u64::from_be_bytes(self.from)
    }
}

/// A status range, and where in [`Statuses::live`] it stands.
#[derive(Debug)]
struct Held {
    status: Box<Status>,
    place: u32,
}

/// All status ranges of one shard.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    /// In pieces of their own, so that what goes gives its memory back.
    held: Slab<Held>,
    /// The numbers in use, in any order, so that one can be drawn however few there are.
    live: Chunks<u32>,
    /// Where each lands, under the same numbers.
    landings: Slab<Landing>,
    /// Ranges that have nothing left in their accounts, or had when they were added.
    pub(crate) exhausted: Vec<StatusId>,
}

impl Statuses {
    pub(crate) fn add(&mut self, status: Status) -> StatusId {
        let place = self.live.len() as u32;
        let id = self.held.insert(Held { status: Box::new(status), place });
        let landing = self.landings.insert(Landing::default());
        assert_eq!(id, landing, "numbers are taken and freed in the same order");
        self.live.push(id);
        StatusId(id)
    }

    pub(crate) fn take(&mut self, id: StatusId) -> Status {
        let held = self.held.remove(id.0).expect("a status range is dropped once");
        self.landings.remove(id.0);
        let last = self.live.pop().expect("what is held is live");
        if last != id.0 {
            self.live[held.place as usize] = last;
            self.held[last].place = held.place;
        }
        *held.status
    }

    pub(crate) fn find(&self, id: StatusId) -> Option<&Status> {
        self.held.get(id.0).map(|held| &*held.status)
    }

    #[inline]
    pub(crate) fn get(&self, id: StatusId) -> &Status {
        &self.held[id.0].status
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: StatusId) -> &mut Status {
        &mut self.held[id.0].status
    }

    /// Fetches the record of a status range that probably exists. A hint.
    #[inline]
    pub(crate) fn fetch(&self, id: StatusId) {
        if let Some(held) = self.held.get(id.0) {
            prefetch(&*held.status);
        }
        self.fetch_landing(id);
    }

    /// Where updates of the range land; nowhere, if it is gone.
    #[inline]
    pub(crate) fn landing(&self, id: StatusId) -> Landing {
        self.landings.get(id.0).copied().unwrap_or_default()
    }

    /// Fetches where updates of the range land. A hint.
    #[inline]
    pub(crate) fn fetch_landing(&self, id: StatusId) {
        if let Some(landing) = self.landings.get(id.0) {
            prefetch(landing);
        }
    }

    /// Subtracts a change from what a range may take before its account is looked at, if it has one.
    #[inline]
    pub(crate) fn charge(&mut self, id: StatusId) {
        if let Some(landing) = self.landings.get_mut(id.0)
            && landing.budget > 0
        {
            landing.budget -= 1;
            if landing.budget == 0 {
                self.exhausted.push(id);
            }
        }
    }

    /// Lets changes take so much before the range's account is looked at again.
    pub(crate) fn grant(&mut self, id: StatusId, budget: u32) {
        self.landings[id.0].budget = budget;
    }

    /// Notes where updates of the range land, given its group's prefix.
    pub(crate) fn set_landing(&mut self, id: StatusId, group_prefix: &[u8]) {
        let status = self.get(id);
        let fixed = status.fixed();
        let lands = status.open
            && !status.sifted
            && fixed.prefix_bytes == group_prefix.len()
            && group_prefix.len() <= Landing::PART_BYTES_MAX;
        self.landings[id.0] = Landing {
            group: status.group.filter(|_| lands),
            components: fixed.components as u32,
            budget: self.landings[id.0].budget,
            from: head(&status.first()[fixed.prefix_bytes..]).to_be_bytes(),
        };
    }

    /// The status range that a draw names; `None` where there is none.
    pub(crate) fn near(&self, draw: u64) -> Option<StatusId> {
        let count = self.len() as u64;
        (count > 0).then(|| StatusId(self.live[(draw % count) as usize]))
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Status> {
        self.held.iter().map(|held| &*held.status)
    }

    /// Bytes of all records.
    pub(crate) fn bytes(&self) -> usize {
        self.held.bytes()
            + self.landings.bytes()
            + self.live.bytes()
            + self.exhausted.capacity() * size_of::<StatusId>()
            + self.len() * size_of::<Status>()
            + self.iter().map(Status::bytes).sum::<usize>()
    }
}
