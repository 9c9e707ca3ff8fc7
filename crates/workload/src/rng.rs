//! Seeded chance: xoshiro256++ (Blackman and Vigna, public domain), seeded by splitmix64,
//! and drawing from a weighted distribution in O(1) (Walker's and Vose's alias table).
//!
//! Own code because a workload must be the same for ever: a generator of a library may
//! change its stream with a version.

/// A seeded random number generator; the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`; any seed will do, 0 too.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        let state = core::array::from_fn(|_| {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = at;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        });
        Self { state }
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number in `0..bound` (0 where `bound` is 0).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index in `0..bound`.
    #[inline]
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// A number in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

/// Draws indices in proportion to given weights: O(n) to build, O(1) to draw.
#[derive(Clone, Debug)]
pub struct Alias {
    /// Of column `i`: the share that stays with `i`, and the index that takes the rest.
    columns: Vec<(f64, u32)>,
}

impl Alias {
    /// A table over `weights`, which are finite and not negative, and not all zero.
    ///
    /// # Panics
    /// There is no weight, or they are all zero.
    #[must_use]
    pub fn new(weights: &[f64]) -> Self {
        let total: f64 = weights.iter().sum();
        assert!(total > 0.0, "a distribution needs a positive weight");
        let scale = weights.len() as f64 / total;
        let mut columns: Vec<(f64, u32)> =
            weights.iter().enumerate().map(|(at, w)| (w * scale, at as u32)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..columns.len()).partition(|&at| columns[at].0 < 1.0);
        while let (Some(low), Some(&high)) = (small.pop(), large.last()) {
            columns[low].1 = high as u32;
            columns[high].0 -= 1.0 - columns[low].0;
            if columns[high].0 < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        // What is left over differs from 1 by rounding alone; its alias is itself.
        Self { columns }
    }

    /// An index, drawn in proportion to its weight.
    #[inline]
    #[must_use]
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let at = rng.index(self.columns.len());
        let (share, other) = self.columns[at];
        if rng.unit() < share { at } else { other as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut rng = Rng::new(1);
        let drawn = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        assert_eq!(drawn, [14971601782005023387, 13781649495232077965, 1847458086238483744]);
    }

    #[test]
    fn an_alias_table_keeps_the_proportions() {
        let weights = [1.0, 0.0, 3.0, 6.0];
        let alias = Alias::new(&weights);
        let mut rng = Rng::new(5);
        let mut counts = [0.0; 4];
        for _ in 0..100_000 {
            counts[alias.draw(&mut rng)] += 1.0;
        }
        for (count, weight) in counts.iter().zip(weights) {
            assert!((count / 10_000.0 - weight).abs() < 0.1, "{counts:?}");
        }
    }
}
