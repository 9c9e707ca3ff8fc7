//! Moving chunks out of buffers of the pool that hardly hold any: streams hold references that the store does not know of.

use super::Body;
use super::Streams;
use headwater_pool::Pool;

/// How far a compaction has come with streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MovingChunks {
    slot: usize,
    chunk: usize,
}

impl Streams {
    /// Offers chunks to the pool, which is being compacted, from where the last call has stopped, and looks at about `most` streams and
    /// chunks; how many looks are left: 0, unless all were offered.
    pub(crate) fn move_chunks(
        &mut self,
        pool: &mut Pool,
        at: &mut MovingChunks,
        most: usize,
    ) -> usize {
        let mut left = most;
        while left > 0 {
            let Some(slot) = self.slots.get_mut(at.slot) else { return left };
            left -= 1;
            let chunks = slot.as_mut().map(|stream| stream.chunks.iter_mut().skip(at.chunk));
            let mut looked = 0;
            let mut is_whole = true;
            for chunk in chunks.into_iter().flatten() {
                if looked == left {
                    is_whole = false;
                    break;
                }
                looked += 1;
                if let Body::Memory(value) = &mut chunk.body
                    && let Some(moved) = pool.moved(*value)
                {
                    *value = moved;
                }
            }
            left -= looked;
            *at = match is_whole {
                true => MovingChunks { slot: at.slot + 1, chunk: 0 },
                false => MovingChunks { chunk: at.chunk + looked, ..*at },
            };
        }
        0
    }
}
