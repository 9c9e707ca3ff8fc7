//! How long a failed task rests before it is tried again.

use headwater_base::hash::stable_hash;

/// Delays that double from `first_ms` up to `most_ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// After the first failure, in milliseconds.
    pub first_ms: u64,
    /// The longest, in milliseconds.
    pub most_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first_ms: 100, most_ms: 60_000 }
    }
}

impl Backoff {
    /// The delay after so many failures (from 1): between half of its step and all of it, so that
    /// tasks that failed together do not come back together. `seed` tells tasks apart.
    #[must_use]
    pub fn delay(&self, failures: u32, seed: u64) -> u64 {
        let doublings = failures.saturating_sub(1).min(40);
        let step = self.first_ms.saturating_mul(1 << doublings).min(self.most_ms);
        let chance = stable_hash(seed, &failures.to_le_bytes());
        step - chance % (step / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;

    #[test]
    fn delays_double_up_to_the_most_and_differ() {
        let backoff = Backoff { first_ms: 100, most_ms: 1000 };
        for (failures, step) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (90, 1000)] {
            for seed in 0..50 {
                let delay = backoff.delay(failures, seed);
                assert!((step / 2..=step).contains(&delay), "{failures}: {delay}");
            }
        }
        let first = backoff.delay(3, 0);
        assert!((1..50).any(|seed| backoff.delay(3, seed) != first));
    }
}
