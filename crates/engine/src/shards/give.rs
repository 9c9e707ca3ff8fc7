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
        if let Err(Stop::Failed(error)) = given {
            // Who gets nothing has nothing to follow.
            self.unfollow(range, by);
            return Err(error.into());
        }
        given?;
        Ok(pairs)
    }
}
