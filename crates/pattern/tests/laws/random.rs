//! A small seeded generator, so that every run draws the same cases and a failing one is known by
//! its seed.

/// A xorshift generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn byte(&mut self, from: &[u8]) -> u8 {
        from[self.below(from.len())]
    }

    /// One to `most` bytes.
    pub(crate) fn bytes(&mut self, from: &[u8], most: usize) -> Vec<u8> {
        let len = 1 + self.below(most);
        (0..len).map(|_| self.byte(from)).collect()
    }
}
