//! How far each shard has come, as somebody knows it.

use alloc::vec::Vec;
use headwater_base::Shard;
use headwater_base::source::Position;

/// A position for each shard; one that is not named is at its start. A session carries one, which only grows: the
/// positions of its writes, and of what it has read if it is to see nothing older elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Positions(Vec<u64>);

impl Positions {
    /// How far `shard` has come.
    #[must_use]
    pub fn get(&self, shard: Shard) -> Position {
        Position(self.0.get(usize::from(shard.0)).copied().unwrap_or(0))
    }

    /// These, from the first shard on.
    #[must_use]
    pub fn of(positions: Vec<u64>) -> Self {
        Self(positions)
    }

    /// All of them, from the first shard on.
    #[must_use]
    pub fn all(&self) -> &[u64] {
        &self.0
    }

    /// Notes that `shard` has come to `position` at least.
    pub fn reach(&mut self, shard: Shard, position: Position) {
        let at = usize::from(shard.0);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = self.0[at].max(position.0);
    }

    /// Takes the greater position of each shard.
    pub fn merge(&mut self, other: &Self) {
        for (at, &position) in other.0.iter().enumerate() {
            self.reach(Shard(at as u16), Position(position));
        }
    }

    /// Whether each shard has come as far here as in `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(at, &position)| position <= self.get(Shard(at as u16)).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_only_grow() {
        let mut positions = Positions::default();
        positions.reach(Shard(2), Position(5));
        positions.reach(Shard(2), Position(3));
        let mut other = Positions::default();
        other.reach(Shard(0), Position(1));
        assert_eq!(positions.get(Shard(2)), Position(5));
        assert!(!positions.covers(&other) && positions.covers(&Positions::default()));
        positions.merge(&other);
        assert!(positions.covers(&other) && !other.covers(&positions));
    }
}
