//! The home's side: what others ask for, they get, and follow from then on.

use crate::engine::Engine;
use crate::follow::Follower;
use crate::report::{RangeOptions, Stop};
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::source::{Attributes, Pair};

impl Engine {
    /// The own keys of a range, base keys and outputs of joins, with their values as they are now, for a shard that follows
    /// their changes from here on.
    ///
    /// # Errors
    /// As for [`Engine::follow`].
    pub fn give_part(&mut self, range: &KeyRange, by: Follower) -> Result<Vec<Pair>, Stop> {
        self.follow(range, by)?;
        let mut pairs = Vec::new();
        let options = RangeOptions::default();
        let given = self.range(&range.first, &range.last, options, &mut |key, value| {
            let (key, value) = (key.to_vec(), value.to_vec());
            pairs.push(Pair { key, value, attributes: Attributes::default() });
        });
        // Who gets nothing, or nothing yet, has nothing to follow: what is waited for may fail.
        given.inspect_err(|_| self.unfollow(range, by))?;
        Ok(pairs)
    }
}
