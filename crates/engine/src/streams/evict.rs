//! Letting chunks go where memory is short: the oldest of a stream first, and never the last.

use super::stream::Body;
use crate::engine::Engine;

impl Engine {
    /// Puts the oldest chunk of some stream aside; `false` where there is no place or nothing to put.
    pub(crate) fn spill_one(&mut self) -> bool {
        if !self.spilling.is_there() {
            return false;
        }
        let Some(number) = self.streams.next_long() else { return false };
        let stream = self.streams.get_mut(number);
        let Some(at) = stream.oldest_in_memory() else { return false };
        let Some(value) = stream.chunks[at].value() else { return false };
        let Some(spilled) = self.spilling.put_chunk(&self.store.pool, value) else { return false };
        stream.chunks[at].body = Body::Disk(spilled);
        stream.settle(&mut self.store.pool, &mut self.spilling);
        self.store.pool.release(value);
        self.streams.refile(number);
        true
    }

    /// Lets the oldest chunk in memory of a stream go for good, with all before it; `false` where
    /// only the last one is there.
    pub(crate) fn drop_oldest_chunk(&mut self, number: u32) -> bool {
        let stream = self.streams.get_mut(number);
        let Some(at) = stream.oldest_in_memory() else { return false };
        for _ in 0..=at {
            stream.drop_oldest(&mut self.store.pool, &mut self.spilling);
        }
        self.streams.refile(number);
        self.memory.evicted.chunks += 1;
        true
    }
}
