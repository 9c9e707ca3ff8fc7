//! Shards of this process that do not go on, as another one sees them.
//!
//! A shard has ten turns a second at least, whatever there is to do. One that has none for a minute waits for something that does not come, a disk
//! for example, and nobody knows for how long.

use headwater_base::Shard;

/// How long a shard may have no turn, in milliseconds.
pub(crate) const STALLED_MAX: u64 = 60_000;
/// How often it is looked.
const LOOK_EVERY: u64 = 1000;

/// What was seen of the shards.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    looked: u64,
    /// By shard: how many turns it has had, and since when so many.
    seen: Vec<(u64, u64)>,
}

impl Stalls {
    /// Whether it is time to look.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now >= self.looked + LOOK_EVERY
    }

    /// The shards that do not go on, which have had so many turns; whether each was not among them before.
    pub(crate) fn look(
        &mut self,
        now: u64,
        turns: impl Iterator<Item = u64>,
    ) -> Vec<(Shard, bool)> {
        // Who had no turn himself for a while does not know whether others had: the process may have been stopped.
        let was_stopped = now > self.looked + 3 * LOOK_EVERY;
        let before = core::mem::replace(&mut self.looked, now);
        let mut stalled = Vec::new();
        for (at, turns) in turns.enumerate() {
            if at == self.seen.len() {
                self.seen.push((turns, now));
            }
            let (seen, since) = &mut self.seen[at];
            if *seen != turns || was_stopped {
                (*seen, *since) = (turns, now);
            } else if now >= *since + STALLED_MAX {
                stalled.push((Shard(at as u16), before < *since + STALLED_MAX));
            }
        }
        stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_turn_for_a_minute_does_not_go_on() {
        let mut stalls = Stalls::default();
        let mut look = |second: u64, turns: [u64; 2]| stalls.look(1000 * second, turns.into_iter());
        for second in 0..=70 {
            // The first one goes on, the second one did until the tenth second.
            let stalled = look(second, [second, second.min(10)]);
            let wanted = if second < 70 { vec![] } else { vec![(Shard(1), true)] };
            assert_eq!(stalled, wanted, "{second}");
        }
        assert_eq!(look(71, [71, 10]), [(Shard(1), false)]);
        assert_eq!(look(72, [72, 11]), []);
        // Whoever looks had no turn for two minutes: of others he knows nothing.
        assert_eq!(look(200, [73, 11]), []);
        for second in 201..260 {
            assert_eq!(look(second, [73, 11]), [], "{second}");
        }
        assert_eq!(look(260, [73, 11]), [(Shard(0), true), (Shard(1), true)]);
        assert!(!stalls.is_due(260_999) && stalls.is_due(261_000));
    }
}
