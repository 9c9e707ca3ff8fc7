//! Targets, and the sets that hold them: one sorted array while small, sorted chunks after.
//!
//! # Cost
//! The bytes of each member and at most a quarter more; finding one is two binary searches, inserting
//! moves at most half a chunk (4 KiB).

use super::ContextId;
use crate::status::StatusId;
use alloc::vec::Vec;

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

/// The targets of one span.
pub(crate) type TargetSet = SortedSet<Target>;

/// A set of small things.
#[derive(Debug)]
pub(crate) enum SortedSet<T> {
    /// All members, in order.
    One(Vec<T>),
    /// At least two chunks, none empty; sorted within and among them.
    Many(Vec<Vec<T>>),
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self::One(Vec::new())
    }
}

/// Makes room for one more in steps of a quarter: targets are the bulk of an updater's memory.
fn insert_at<T>(chunk: &mut Vec<T>, at: usize, target: T) {
    if chunk.len() == chunk.capacity() {
        chunk.reserve_exact(2 + chunk.len() / 4);
    }
    chunk.insert(at, target);
}

impl<T: Copy + Ord> SortedSet<T> {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::One(chunk) => chunk.is_empty(),
            Self::Many(chunks) => chunks.is_empty(),
        }
    }

    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(chunk) => chunk.len(),
            Self::Many(chunks) => chunks.iter().map(Vec::len).sum(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let of = |chunk: &Vec<T>| chunk.capacity() * size_of::<T>();
        match self {
            Self::One(chunk) => of(chunk),
            Self::Many(chunks) => {
                // Chunks are between a quarter and all full; the exact sum would cost a walk.
                chunks.capacity() * size_of::<Vec<T>>()
                    + chunks.len() * CHUNK * 3 / 4 * size_of::<T>()
            }
        }
    }

    /// Whether it was not there.
    pub(crate) fn insert(&mut self, target: T) -> bool {
        match self {
            Self::One(chunk) => {
                let Err(at) = chunk.binary_search(&target) else { return false };
                insert_at(chunk, at, target);
                if chunk.len() > CHUNK {
                    let right = chunk.split_off(chunk.len() / 2);
                    let left = core::mem::take(chunk);
                    *self = Self::Many(alloc::vec![left, right]);
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

    /// The member, where there is one alone.
    #[inline]
    pub(crate) fn only(&self) -> Option<T> {
        match self {
            Self::One(chunk) => match chunk[..] {
                [member] => Some(member),
                _ => None,
            },
            Self::Many(_) => None,
        }
    }

    /// Fetches the place behind the last member. A hint.
    #[inline]
    pub(crate) fn fetch_end(&self) {
        let chunk = match self {
            Self::One(chunk) => Some(chunk),
            Self::Many(chunks) => chunks.last(),
        };
        if let Some(last) = chunk.and_then(|chunk| chunk.last()) {
            headwater_pool::prefetch(last);
        }
    }

    #[inline]
    pub(crate) fn extend(&self, found: &mut Vec<T>) {
        match self {
            Self::One(chunk) => found.extend_from_slice(chunk),
            Self::Many(chunks) => chunks.iter().for_each(|chunk| found.extend_from_slice(chunk)),
        }
    }
}

/// The chunk in which `target` is or belongs.
fn chunk_of<T: Copy + Ord>(chunks: &[Vec<T>], target: T) -> usize {
    chunks.partition_point(|chunk| chunk[0] <= target).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn a_target_set_is_a_set() {
        let mut set = TargetSet::default();
        let mut model = BTreeSet::new();
        let mut state = 3u64;
        for step in 0..60_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = if step < 8000 { step } else { (state >> 33) % 8000 };
            let target = Target(number * 3);
            if step < 20_000 || (step > 30_000 && step < 35_000) {
                assert_eq!(set.insert(target), model.insert(target));
            } else {
                assert_eq!(set.remove(target), model.remove(&target));
            }
            if step % 5000 == 0 {
                let mut all = Vec::new();
                set.extend(&mut all);
                assert!(all.iter().eq(model.iter()));
            }
        }
        assert_eq!(set.is_empty(), model.is_empty());
    }
}
