//! What a read of a stream gives: bytes where they are.

use super::stream::Chunk;
use alloc::collections::vec_deque::Iter;
use headwater_pool::Pool;

/// Bytes of a stream, to be read part by part.
#[derive(Debug)]
pub struct StreamBytes<'a> {
    pub(super) pool: &'a Pool,
    /// The chunks from the one with the first byte on.
    pub(super) chunks: Iter<'a, Chunk>,
    /// Where the first byte is in the first chunk.
    pub(super) skip: usize,
    pub(super) len: usize,
}

impl StreamBytes<'_> {
    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: the offset is the stream's end, or none were asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the bytes to `each`, part by part in order; no part is empty.
    pub fn for_each(self, each: &mut dyn FnMut(&[u8])) {
        let (mut skip, mut left) = (self.skip, self.len);
        for chunk in self.chunks {
            if left == 0 {
                break;
            }
            for part in self.pool.view(chunk.value).read_at(skip, left) {
                each(part);
                left -= part.len();
            }
            skip = 0;
        }
    }
}
