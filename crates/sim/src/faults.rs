//! What may go wrong in one simulation.

use headwater_model::rng::Rng;

/// How many in a thousand steps or packets are struck; 0: none.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Packets that are lost.
    pub lost: usize,
    /// Packets that arrive twice.
    pub twice: usize,
    /// Packets that overtake others.
    pub early: usize,
    /// Shards that stop for a while.
    pub slow: usize,
    /// Shards that restart without their memory.
    pub crashes: usize,
    /// Partitions that move.
    pub moves: usize,
    /// Ranges that are evicted.
    pub evictions: usize,
    /// Joins that are added, dropped or replaced.
    pub joins: usize,
    /// Packets that say less than they were to say, which nobody can find out: what is checked has to show it.
    pub cut: usize,
}

impl Faults {
    /// Those of a seed: mostly some kinds, and in one case of five none.
    pub fn of(rng: &mut Rng) -> Self {
        let mut faults = Self::default();
        if rng.chance(20) {
            return faults;
        }
        let kinds = [
            (&mut faults.lost, 40),
            (&mut faults.twice, 40),
            (&mut faults.early, 40),
            (&mut faults.slow, 30),
            (&mut faults.crashes, 8),
            (&mut faults.moves, 20),
            (&mut faults.evictions, 60),
            (&mut faults.joins, 25),
        ];
        for (kind, most) in kinds {
            if rng.chance(40) {
                *kind = 1 + rng.below(most);
            }
        }
        faults
    }
}
