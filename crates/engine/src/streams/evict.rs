//! Letting chunks go where memory is short: the oldest of a stream first.
//!
//! The last part of each stays, because it is what is read and written now, and so does where the stream ends: else it
//! would seem to begin anew. Only where last parts and records themselves fill the memory, those go that the policy
//! chooses: to disk, or for good.

use super::Body;
use crate::engine::Engine;

/// Last parts of streams may go where they take more than this part of what may be taken.
const STAYING_SHARE: usize = 8;
/// A last part of fewer bytes goes with its stream.
pub(super) const LAST_BYTES_MIN: usize = 256;

impl Engine {
    /// Puts the oldest chunk of some stream aside; `false` where there is no place or nothing to put.
    pub(crate) fn spill_one(&mut self) -> bool {
        if self.let_kept_chunk_go() {
            return true;
        }
        if !self.base.spilling.is_there() {
            return false;
        }
        let Some(number) = self.base.streams.next_long() else { return false };
        let stream = self.base.streams.get_mut(number);
        let Some(at) = stream.oldest_in_memory() else { return false };
        let Some(value) = stream.chunks[at].value() else { return false };
        let Some(spilled) = self.base.spilling.put_chunk(&self.store.pool, value) else {
            return false;
        };
        stream.set_body(at, Body::Disk(spilled));
        stream.settle(&mut self.store.pool, &mut self.base.spilling);
        self.store.pool.release(value);
        self.base.streams.refile(number);
        true
    }

    /// Whether so much of memory is last parts of streams that these have to go, too.
    #[must_use]
    pub fn ends_may_go(&self) -> bool {
        let limit = self.memory.memory_limit();
        limit.is_some_and(|limit| self.base.streams.staying_bytes() > limit / STAYING_SHARE)
    }

    /// Puts the last chunk of a stream aside, or lets it go; the stream stays, and ends where it did. `false` where that
    /// gives hardly anything: little is in memory of it.
    pub(crate) fn drop_last_chunk(&mut self, number: u32) -> bool {
        let (stream, pool) = (self.base.streams.get_mut(number), &mut self.store.pool);
        let Some(at) = stream.chunks.len().checked_sub(1) else { return false };
        let Some(value) = stream.chunks[at].value().filter(|value| value.len() >= LAST_BYTES_MIN)
        else {
            return false;
        };
        match self.base.spilling.put_chunk(pool, value) {
            Some(spilled) => {
                stream.set_body(at, Body::Disk(spilled));
                pool.release(value);
            }
            None => {
                stream.clear(pool, &mut self.base.spilling);
                self.memory.evicted.chunks += 1;
            }
        }
        stream.settle(pool, &mut self.base.spilling);
        self.base.streams.refile(number);
        true
    }

    /// Lets the oldest chunk in memory of a stream go for good, with all before it; `false` where
    /// only the last one is there.
    pub(crate) fn drop_oldest_chunk(&mut self, number: u32) -> bool {
        let stream = self.base.streams.get_mut(number);
        let Some(at) = stream.oldest_in_memory() else { return false };
        for _ in 0..=at {
            stream.drop_oldest(&mut self.store.pool, &mut self.base.spilling);
        }
        self.base.streams.refile(number);
        self.memory.evicted.chunks += 1;
        true
    }
}
