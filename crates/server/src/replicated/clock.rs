//! The clock of leases: that of the machine, or of a simulation.

#[cfg(not(test))]
pub(super) use headwater_jetstream::monotonic;
#[cfg(test)]
pub(super) use simulated::monotonic;

#[cfg(test)]
pub(super) mod simulated {
    use headwater_log::Monotonic;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<Option<Monotonic>> = const { Cell::new(None) };
    }

    /// From now on it is this time, for this thread.
    pub(in crate::replicated) fn set(now: Monotonic) {
        NOW.set(Some(now));
    }

    /// What time it is.
    pub(in crate::replicated) fn monotonic() -> Monotonic {
        NOW.get().unwrap_or_else(headwater_jetstream::monotonic)
    }
}
