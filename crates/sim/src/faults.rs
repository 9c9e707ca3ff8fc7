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
    /// Shards that restart, without their memory.
    pub crashes: usize,
    /// Partitions that move.
    pub moves: usize,
    /// Ranges that are evicted.
    pub evictions: usize,
    /// Joins that are added, dropped or replaced.
    pub joins: usize,
    /// FLUSHALL.
    pub flushes: usize,
    /// Clients that begin or cease to watch a range.
    pub watches: usize,
    /// Loads from the source that fail.
    pub source_fails: usize,
    /// That the source loses track of what has changed.
    pub source_losses: usize,
    /// Some tables have a source.
    pub sources: bool,
    /// The source answers with a part of what was asked for, at times and where that will do.
    pub parts: bool,
    /// Keys expire.
    pub lives: bool,
    /// Shards keep base keys on disk, over their restarts.
    pub disks: bool,
    /// Of what was written last, a shard's disk may lose some in a crash.
    pub forgetful: bool,
    /// How many rows a slice has; `None`: everything is done as a whole.
    pub slice_rows: Option<usize>,
    /// Clients remove ranges.
    pub removals: bool,
    /// Some reads accept what is older.
    pub accepts: bool,
    /// What is left out again and again, on purpose. Nobody can find that out: what is checked has to show it.
    pub cut: Option<Cut>,
}

/// What may be left out, on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// A change that a home tells another shard.
    Changes,
    /// That what was loaded is not to be believed any more.
    Resets,
    /// That a range is followed no more.
    Unfollows,
    /// A key of a range that is loaded.
    Pairs,
    /// A change of a range that is resumed.
    Resumed,
    /// That a home has not come as far as it says.
    Positions,
    /// A change that a watching client is told.
    Notifications,
    /// A key that is read from disk.
    Disk,
    /// That time moves, to engines.
    Expiry,
    /// A change that a source tells a shard.
    Source,
}

impl Faults {
    /// Those of a seed: mostly some kinds, and in one case of five none.
    pub fn of(rng: &mut Rng) -> Self {
        let (slice_rows, removals, accepts) = apart(rng);
        let mut faults = Self {
            watches: if rng.chance(40) { 20 + rng.below(100) } else { 0 },
            lives: rng.chance(40),
            disks: rng.chance(40),
            forgetful: rng.chance(50),
            sources: rng.chance(40),
            parts: true,
            slice_rows,
            removals,
            accepts,
            ..Self::default()
        };
        if rng.chance(20) {
            return faults;
        }
        let kinds = [
            (&mut faults.lost, 40),
            (&mut faults.twice, 40),
            (&mut faults.early, 40),
            (&mut faults.slow, 30),
            (&mut faults.crashes, 12),
            (&mut faults.moves, 60),
            (&mut faults.evictions, 60),
            (&mut faults.joins, 40),
            (&mut faults.flushes, 8),
            (&mut faults.source_fails, 150),
            (&mut faults.source_losses, 20),
        ];
        for (kind, most) in kinds {
            if rng.chance(40) {
                *kind = 1 + rng.below(most);
            }
        }
        faults
    }
}

/// Slices so short that most of what is read takes several of them, whether ranges are removed, and whether reads accept what is older. They are drawn from a stream of
/// their own, so that a seed's history is the same with them and without.
fn apart(rng: &Rng) -> (Option<usize>, bool, bool) {
    let mut rng = Rng::new(rng.clone().bits());
    (*rng.pick(&[None, Some(2), Some(3), Some(10)]), rng.chance(50), rng.chance(50))
}
