//! Targets, and the sets that hold them.
//!
//! # Cost
//! The bytes of each member and at most a quarter more, or those of four where there are two or three. In a sorted set (one array while small,
//! chunks after) finding one is two binary searches, and inserting moves at most half a chunk (4
//! KiB). A span's targets are added at the end while they are few; removing one is a walk over
//! at most as many.

use super::ContextId;
use crate::status::StatusId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use headwater_pool::prefetch;

/// A status range that an updater serves, and the context in which it does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Target(u64);

impl Target {
    pub(crate) fn new(status: StatusId, context: ContextId) -> Self {
        Self(u64::from(status.0) << 32 | u64::from(context.0))
    }

    #[inline]
    pub(crate) fn status(self) -> StatusId {
        StatusId((self.0 >> 32) as u32)
    }

    #[inline]
    pub(crate) fn context(self) -> ContextId {
        ContextId(self.0 as u32)
    }
}

const CHUNK: usize = 512;
/// Room for the second member of a set, and those that follow.
const FEW: usize = 4;
/// Bytes that are fetched at once.
const LINE_BYTES: usize = 64;

/// The targets of one span: as they came while they are few, sorted beyond. Whoever adds one
/// knows that it is not there: status ranges hold theirs in order (R3). One alone, as most spans
/// have that a page of its own was made of, lies in the set itself.
#[derive(Debug)]
pub(crate) enum TargetSet {
    /// A set that never had more than this target.
    Only(Target),
    /// At most [`CHUNK`].
    Few(Vec<Target>),
    /// More, once there were.
    Sorted(Box<SortedSet<Target>>),
}

// An updater with a prefix of 30 bytes takes 72 bytes.
const _: () = assert!(size_of::<TargetSet>() == 24 && size_of::<SortedSet<Target>>() == 24);

impl Default for TargetSet {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl TargetSet {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Only(_) => false,
            Self::Few(few) => few.is_empty(),
            Self::Sorted(sorted) => sorted.is_empty(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Only(_) => 0,
            Self::Few(few) => few.capacity() * size_of::<Target>(),
            Self::Sorted(sorted) => size_of::<SortedSet<Target>>() + sorted.bytes(),
        }
    }

    /// Adds a target that is not there.
    pub(crate) fn insert(&mut self, target: Target) {
        match self {
            Self::Only(first) => {
                let mut few = Vec::with_capacity(FEW);
                few.extend([*first, target]);
                *self = Self::Few(few);
            }
            Self::Few(few) if few.capacity() == 0 => *self = Self::Only(target),
            Self::Few(few) if few.len() < CHUNK => insert_at(few, few.len(), target),
            Self::Few(few) => {
                let mut all = core::mem::take(few);
                all.push(target);
                all.sort_unstable();
                *self = Self::Sorted(Box::new(SortedSet::of_sorted(all)));
            }
            Self::Sorted(sorted) => {
                sorted.insert(target);
            }
        }
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, target: Target) -> bool {
        match self {
            Self::Only(only) => {
                let is_it = *only == target;
                if is_it {
                    *self = Self::default();
                }
                is_it
            }
            Self::Few(few) => {
                let Some(at) = few.iter().position(|held| *held == target) else { return false };
                few.swap_remove(at);
                if few.len() * 2 < few.capacity() {
                    few.shrink_to_fit();
                }
                true
            }
            Self::Sorted(sorted) => {
                let removed = sorted.remove(target);
                if sorted.is_empty() {
                    *self = Self::default();
                }
                removed
            }
        }
    }

    /// The target, where there is one alone.
    #[inline]
    pub(crate) fn only(&self) -> Option<Target> {
        match self {
            Self::Only(target) => Some(*target),
            Self::Few(few) => match few[..] {
                [target] => Some(target),
                _ => None,
            },
            Self::Sorted(_) => None,
        }
    }

    /// Fetches the place behind the last target. A hint.
    #[inline]
    pub(crate) fn fetch_end(&self) {
        match self {
            Self::Only(_) => {}
            Self::Few(few) => {
                if let Some(last) = few.last() {
                    prefetch(last);
                }
            }
            Self::Sorted(sorted) => sorted.fetch_end(),
        }
    }

    #[inline]
    pub(crate) fn extend(&self, found: &mut Vec<Target>) {
        match self {
            Self::Only(target) => found.push(*target),
            Self::Few(few) => found.extend_from_slice(few),
            Self::Sorted(sorted) => sorted.extend(found),
        }
    }
}

/// A set of small things.
#[derive(Debug)]
pub(crate) enum SortedSet<T> {
    /// A set that never had more than this member.
    Only(T),
    /// All members, in order.
    One(Vec<T>),
    /// At least two chunks, none empty; sorted within and among them.
    #[expect(clippy::box_collection, reason = "sets are many, and hardly one has several chunks")]
    Many(Box<Vec<Vec<T>>>),
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<T> SortedSet<T> {
    /// No members; it allocates nothing.
    pub(crate) const EMPTY: Self = Self::One(Vec::new());
}

/// Makes room for one more in steps of a quarter: targets are the bulk of an updater's memory.
fn insert_at<T>(chunk: &mut Vec<T>, at: usize, target: T) {
    if chunk.len() == chunk.capacity() {
        chunk.reserve_exact(2 + chunk.len() / 4);
    }
    chunk.insert(at, target);
}

impl<T: Copy + Ord> SortedSet<T> {
    /// The set of these members, of which none comes twice; nothing where one does.
    pub(crate) fn of_distinct(members: &[T]) -> Option<Self> {
        if let [only] = members {
            return Some(Self::Only(*only));
        }
        let mut all = members.to_vec();
        all.sort_unstable();
        let is_distinct = all.windows(2).all(|two| two[0] < two[1]);
        is_distinct.then(|| if all.len() > CHUNK { Self::of_sorted(all) } else { Self::One(all) })
    }

    /// A set of members that are in order, at least two, each once.
    fn of_sorted(all: Vec<T>) -> Self {
        Self::Many(Box::new(all.chunks(CHUNK * 3 / 4).map(<[T]>::to_vec).collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Only(_) => false,
            Self::One(chunk) => chunk.is_empty(),
            Self::Many(chunks) => chunks.is_empty(),
        }
    }

    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Only(_) => 1,
            Self::One(chunk) => chunk.len(),
            Self::Many(chunks) => chunks.iter().map(Vec::len).sum(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let of = |chunk: &Vec<T>| chunk.capacity() * size_of::<T>();
        match self {
            Self::Only(_) => 0,
            Self::One(chunk) => of(chunk),
            Self::Many(chunks) => {
                // Chunks are between a quarter and all full; the exact sum would cost a walk.
                (1 + chunks.capacity()) * size_of::<Vec<T>>()
                    + chunks.len() * CHUNK * 3 / 4 * size_of::<T>()
            }
        }
    }

    /// Whether it was not there.
    pub(crate) fn insert(&mut self, target: T) -> bool {
        match self {
            Self::Only(held) => {
                let (least, greatest) = match (*held).cmp(&target) {
                    Ordering::Less => (*held, target),
                    Ordering::Equal => return false,
                    Ordering::Greater => (target, *held),
                };
                let mut both = Vec::with_capacity(FEW);
                both.extend([least, greatest]);
                *self = Self::One(both);
            }
            Self::One(chunk) if chunk.capacity() == 0 => *self = Self::Only(target),
            Self::One(chunk) => {
                let Err(at) = chunk.binary_search(&target) else { return false };
                insert_at(chunk, at, target);
                if chunk.len() > CHUNK {
                    let right = chunk.split_off(chunk.len() / 2);
                    let left = core::mem::take(chunk);
                    *self = Self::Many(Box::new(alloc::vec![left, right]));
                }
            }
            Self::Many(chunks) => {
                let at = chunk_of(chunks, target);
                let chunk = &mut chunks[at];
                let Err(within) = chunk.binary_search(&target) else { return false };
                insert_at(chunk, within, target);
                if chunk.len() > CHUNK {
                    let middle = if within + 1 == chunk.len() { CHUNK } else { CHUNK / 2 };
                    let right = chunk.split_off(middle);
                    chunks.insert(at + 1, right);
                }
            }
        }
        true
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, target: T) -> bool {
        match self {
            Self::Only(held) => {
                if *held != target {
                    return false;
                }
                *self = Self::default();
            }
            Self::One(chunk) => {
                let Ok(at) = chunk.binary_search(&target) else { return false };
                chunk.remove(at);
                if chunk.len() * 2 < chunk.capacity() {
                    chunk.shrink_to_fit();
                }
            }
            Self::Many(chunks) => {
                let at = chunk_of(chunks, target);
                let Ok(within) = chunks[at].binary_search(&target) else { return false };
                chunks[at].remove(within);
                if chunks[at].is_empty() {
                    chunks.remove(at);
                }
                if chunks.len() <= 1 {
                    *self = Self::One(chunks.pop().unwrap_or_default());
                }
            }
        }
        true
    }

    /// Fetches the place behind the last member. A hint.
    #[inline]
    pub(crate) fn fetch_end(&self) {
        let chunk = match self {
            Self::Only(_) => None,
            Self::One(chunk) => Some(chunk),
            Self::Many(chunks) => chunks.last(),
        };
        if let Some(last) = chunk.and_then(|chunk| chunk.last()) {
            prefetch(last);
        }
    }

    /// Fetches the members, of a set that is not large. A hint.
    #[inline]
    pub(crate) fn fetch(&self) {
        if let Self::One(chunk) = self {
            chunk.chunks((LINE_BYTES / size_of::<T>()).max(1)).for_each(|line| prefetch(&line[0]));
        }
    }

    /// The members, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        let (one, many) = match self {
            Self::Only(member) => (core::slice::from_ref(member), &[][..]),
            Self::One(chunk) => (chunk.as_slice(), &[][..]),
            Self::Many(chunks) => (&[][..], chunks.as_slice()),
        };
        one.iter().chain(many.iter().flatten()).copied()
    }

    #[inline]
    pub(crate) fn extend(&self, found: &mut Vec<T>) {
        match self {
            Self::Only(member) => found.push(*member),
            Self::One(chunk) => found.extend_from_slice(chunk),
            Self::Many(chunks) => {
                found.reserve(self.len());
                chunks.iter().for_each(|chunk| found.extend_from_slice(chunk));
            }
        }
    }
}

/// The chunk in which `target` is or belongs.
fn chunk_of<T: Copy + Ord>(chunks: &[Vec<T>], target: T) -> usize {
    // Members are mostly added at the end.
    if let Some(last) = chunks.last()
        && last[0] <= target
    {
        return chunks.len() - 1;
    }
    chunks.partition_point(|chunk| chunk[0] <= target).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn a_set_of_distinct_members_is_as_if_they_had_been_inserted() {
        assert!(SortedSet::<u32>::of_distinct(&[]).is_some_and(|set| set.is_empty()));
        assert!(SortedSet::of_distinct(&[3, 1, 3]).is_none());
        for count in [1, 2, CHUNK, CHUNK + 1, 5 * CHUNK] {
            let count = count as u32;
            let members: Vec<u32> = (0..count).map(|number| number * 7919 % count * 2).collect();
            let distinct: BTreeSet<u32> = members.iter().copied().collect();
            let Some(mut set) = SortedSet::of_distinct(&members) else {
                assert!(distinct.len() < members.len());
                continue;
            };
            assert!(set.iter().eq(distinct.iter().copied()) && set.len() == members.len());
            // Odd numbers are new, even ones are there.
            assert!(distinct.iter().all(|&even| set.insert(even + 1) && !set.insert(even)));
            assert!(distinct.iter().all(|&even| set.remove(even) && !set.remove(even)));
            assert!(set.iter().eq(distinct.iter().map(|even| even + 1)));
        }
    }

    #[test]
    fn sorted_sets_and_target_sets_are_sets() {
        let mut set = SortedSet::default();
        let mut targets = TargetSet::default();
        let mut model = BTreeSet::new();
        let mut state = 3u64;
        for step in 0..60_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = if step < 8000 { step } else { (state >> 33) % 8000 };
            let target = Target(number * 3);
            if step < 20_000 || (step > 30_000 && step < 35_000) {
                let is_new = model.insert(target);
                assert_eq!(set.insert(target), is_new);
                if is_new {
                    targets.insert(target);
                }
            } else {
                let was_there = model.remove(&target);
                assert_eq!(set.remove(target), was_there);
                assert_eq!(targets.remove(target), was_there);
            }
            if step % 5000 == 0 {
                let mut all = Vec::new();
                set.extend(&mut all);
                assert!(all.iter().eq(model.iter()) && set.iter().eq(all.iter().copied()));
                all.clear();
                targets.extend(&mut all);
                all.sort_unstable();
                assert!(all.iter().eq(model.iter()));
            }
        }
        assert_eq!((set.is_empty(), targets.is_empty()), (model.is_empty(), model.is_empty()));
    }
}
