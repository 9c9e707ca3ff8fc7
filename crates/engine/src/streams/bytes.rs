//! What a read of a stream gives: bytes where they are.

use super::stream::Chunk;
use alloc::collections::vec_deque::Iter;
use headwater_pool::Pool;

/// Bytes of a stream, to be read part by part.
#[derive(Debug)]
pub struct StreamBytes<'a> {
    pub(super) place: Place<'a>,
    pub(super) len: usize,
}

#[derive(Debug)]
pub(super) enum Place<'a> {
    /// In chunks, the first of which has the first byte at `skip`.
    Chunks { pool: &'a Pool, chunks: Iter<'a, Chunk>, skip: usize },
    /// Brought back from disk.
    One(&'a [u8]),
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
        let (pool, chunks, mut skip) = match self.place {
            Place::One([]) => return,
            Place::One(bytes) => return each(bytes),
            Place::Chunks { pool, chunks, skip } => (pool, chunks, skip),
        };
        let mut left = self.len;
        for value in chunks.filter_map(Chunk::value) {
            if left == 0 {
                break;
            }
            for part in pool.view(value).read_at(skip, left) {
                each(part);
                left -= part.len();
            }
            skip = 0;
        }
    }
}
