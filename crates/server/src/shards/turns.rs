//! Which shard may have all others quiesce: one at a time, in the order in which they wanted to.

use headwater_base::Shard;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The shards that want all to quiesce; the first has its turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<VecDeque<Shard>>);

impl Turns {
    /// Puts a shard, which is not among them, behind the others; whether its turn has come.
    pub(crate) fn enlist(&self, shard: Shard) -> bool {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(shard);
        queue.len() == 1
    }

    /// The turn of a shard is over; it wants another one if `again`. Whose turn it is now.
    pub(crate) fn end(&self, shard: Shard, again: bool) -> Option<Shard> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(queue.front(), Some(&shard), "it is its turn");
        queue.pop_front();
        if again {
            queue.push_back(shard);
        }
        queue.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_in_order() {
        let turns = Turns::default();
        assert!(turns.enlist(Shard(2)) && !turns.enlist(Shard(0)));
        assert_eq!(turns.end(Shard(2), true), Some(Shard(0)));
        assert!(!turns.enlist(Shard(1)));
        assert_eq!(turns.end(Shard(0), false), Some(Shard(2)));
        assert_eq!(turns.end(Shard(2), false), Some(Shard(1)));
        assert_eq!(turns.end(Shard(1), true), Some(Shard(1)));
        assert_eq!(turns.end(Shard(1), false), None);
    }
}
