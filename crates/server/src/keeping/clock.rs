//! Time as whoever had the store before has told it: keys that have expired stay so, by whichever clock.

use super::EmbeddedStore;
use crate::log::event;
use headwater_base::Millis;
use std::time::{SystemTime, UNIX_EPOCH};

/// How far this machine's clock may be behind, in milliseconds, so that time waits for it. A clock that was further ahead was
/// wrong, and nothing would expire for as long.
const CLOCKS_APART: u64 = 60_000;

/// The moment from which time goes on that was `noted`, where this machine's clock says `wall`; by how much that is behind
/// otherwise.
fn goes_on_from(noted: Millis, wall: Millis) -> Result<Millis, u64> {
    match noted.0.saturating_sub(wall.0) {
        behind if behind > CLOCKS_APART => Err(behind),
        _ => Ok(noted),
    }
}

/// The time of day, by this machine's clock, or by that of a simulation.
fn wall() -> Millis {
    #[cfg(test)]
    if let Some(wall) = simulated::WALL.get() {
        return wall;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(since.as_millis() as u64)
}

#[cfg(test)]
pub(crate) mod simulated {
    use headwater_base::Millis;
    use std::cell::Cell;

    thread_local! {
        /// The time of day, for this thread.
        pub(crate) static WALL: Cell<Option<Millis>> = const { Cell::new(None) };
    }
}

impl EmbeddedStore {
    /// The last moment at which keys were gone because their time was over, by the clock of whoever had the store; the
    /// epoch, where there was none, or where it cannot have been right.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn time_before(&self) -> Result<Millis, String> {
        let noted = self.store.notes().time()?.unwrap_or_default();
        Ok(goes_on_from(noted, wall()).unwrap_or_else(|behind| {
            event!(
                warn,
                "store",
                "clock_behind",
                behind,
                "this clock is behind the one by which keys have expired: some may be there again"
            );
            Millis::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_waits_for_a_clock_that_is_a_little_behind() {
        assert_eq!(goes_on_from(Millis(1000), Millis(500)), Ok(Millis(1000)));
        assert_eq!(goes_on_from(Millis(0), Millis(500)), Ok(Millis(0)));
        assert_eq!(goes_on_from(Millis(61_000), Millis(1000)), Ok(Millis(61_000)));
        assert_eq!(goes_on_from(Millis(61_001), Millis(1000)), Err(60_001));
    }
}
