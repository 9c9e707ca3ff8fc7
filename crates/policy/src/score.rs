//! What an entry is worth, with every number that went into it.

use crate::heat::HALF_LIFE;
use crate::{Heat, Order};
use core::fmt;

/// Bringing an entry back costs as much as reading so many bytes, besides its own: the round
/// trip. Entries much larger than this are judged by their uses alone.
pub const FETCH_BYTES: u32 = 4096;

/// What 2 to the power of a negative quarter is, over 65,536.
const QUARTERS: [u32; HALF_LIFE as usize] = [65_536, 55_109, 46_341, 38_968];

/// An entry that may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// How often it was used, and how long ago.
    pub heat: Heat,
    /// Bytes that its eviction gives back: key, value and what belongs to them.
    pub bytes: u32,
    /// What it costs to bring back, in bytes that could be read from a source in that time.
    pub cost: u32,
    /// Milliseconds until it expires, if it does.
    pub expires_ms: Option<u64>,
}

impl Candidate {
    /// A plain key: its cost is a fetch from where it came from.
    #[inline]
    #[must_use]
    pub fn plain(heat: Heat, bytes: u32) -> Self {
        Self { heat, bytes, cost: FETCH_BYTES.saturating_add(bytes), expires_ms: None }
    }
}

/// What an entry is worth; the least is evicted. Shown as `EXPLAIN` prints it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Score {
    /// What counts.
    pub worth: u64,
    /// By what it was judged.
    pub order: Order,
    /// Uses, as they were counted at the last one.
    pub uses: u8,
    /// Age in turnovers (for recency in thirty-seconds of one).
    pub age: u8,
    /// Bytes of the entry.
    pub bytes: u32,
    /// What it costs to bring back, in bytes read.
    pub cost: u32,
}

impl Score {
    /// Judges a candidate; `chance` is a random number.
    #[inline]
    pub(crate) fn of(order: Order, candidate: &Candidate, now: u8, chance: u64) -> Self {
        let (heat, bytes) = (candidate.heat, candidate.bytes);
        let age = heat.age(order, now);
        // A quarter is for being there: among those that were not used, age decides.
        let uses = u64::from(heat.count(order)) * 4 + 1;
        let quarter = u64::from(QUARTERS[usize::from(age % HALF_LIFE)]);
        let frequency = |scale: u64| ((uses * quarter) * scale) >> (age / HALF_LIFE);
        let worth = match order {
            Order::Recency => u64::from(u8::MAX - age),
            Order::Frequency => frequency(256),
            Order::Cost => frequency(u64::from(candidate.cost)) * 16 / u64::from(bytes.max(1)),
            Order::Expiry => candidate.expires_ms.unwrap_or(u64::MAX),
            Order::Random => chance,
        };
        Self { worth, order, uses: heat.count(order), age, bytes, cost: candidate.cost }
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worth, uses, age, bytes, cost, .. } = self;
        match self.order {
            Order::Recency => {
                write!(f, "last used {age}/{} turnovers ago: worth {worth}", crate::heat::FINE)
            }
            Order::Frequency => {
                write!(f, "{uses} uses, the last {age} turnovers ago: worth {worth}")
            }
            Order::Cost => write!(
                f,
                "{uses} uses, the last {age} turnovers ago, cost {cost}, {bytes} bytes: worth \
                 {worth}"
            ),
            Order::Expiry => write!(f, "expires: worth {worth}"),
            Order::Random => write!(f, "by chance: worth {worth}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn worth(order: Order, count: u8, age: u8, bytes: u32) -> u64 {
        let candidate = Candidate::plain(Heat::new(order, count, 100), bytes);
        Score::of(order, &candidate, 100 + age, 0).worth
    }

    #[test]
    fn uses_count_and_halve_every_four_turnovers() {
        for order in [Order::Frequency, Order::Cost] {
            assert!(worth(order, 3, 0, 100) > worth(order, 2, 0, 100));
            assert!(worth(order, 0, 0, 100) > worth(order, 0, 1, 100));
            assert_eq!(worth(order, 3, 4, 100), worth(order, 3, 0, 100) / 2);
            for age in 0..15 {
                assert!(worth(order, 9, age, 100) > worth(order, 9, age + 1, 100), "{age}");
            }
        }
    }

    #[test]
    fn size_matters_to_cost_alone_and_less_for_large_entries() {
        assert_eq!(worth(Order::Frequency, 3, 1, 100), worth(Order::Frequency, 3, 1, 9000));
        let ratio = |a, b| worth(Order::Cost, 3, 1, a) as f64 / worth(Order::Cost, 3, 1, b) as f64;
        assert!((1.8..2.0).contains(&ratio(100, 200)));
        assert!((1.0..1.1).contains(&ratio(100_000, 200_000)));
    }

    #[test]
    fn what_costs_more_to_bring_back_stays_longer() {
        let heat = Heat::new(Order::Cost, 2, 0);
        let cheap = Candidate::plain(heat, 500);
        let dear = Candidate { cost: 10 * cheap.cost, ..cheap };
        let worth = |candidate| Score::of(Order::Cost, candidate, 0, 0).worth;
        assert!(worth(&dear) / worth(&cheap) == 10);
        let most = Candidate { cost: u32::MAX, bytes: 0, ..dear };
        assert!(worth(&most) > worth(&dear));
    }

    #[test]
    fn the_least_recent_and_the_first_to_expire_are_worth_least() {
        assert!(worth(Order::Recency, 0, 3, 1) > worth(Order::Recency, 9, 4, 1));
        let at = |expires_ms| {
            let candidate = Candidate { expires_ms, ..Candidate::plain(Heat::default(), 1) };
            Score::of(Order::Expiry, &candidate, 0, 0).worth
        };
        assert!(at(Some(5)) < at(Some(6)) && at(Some(6)) < at(None));
    }

    #[test]
    fn every_part_is_shown() {
        let candidate = Candidate::plain(Heat::new(Order::Cost, 3, 0), 100);
        let text = Score::of(Order::Cost, &candidate, 2, 0).to_string();
        let expected = "3 uses, the last 2 turnovers ago, cost 4196, 100 bytes: worth ";
        assert!(text.starts_with(expected), "{text}");
    }
}
