//! A point at which all shards stand still together: what several engines must do in one step is done there.
//!
//! # Invariants
//! - T1. Nobody leaves a barrier before all have come, or the process ends.

use headwater_base::source::Pair;
use headwater_engine::EngineError;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Where the threads of all shards wait for one another.
#[derive(Debug)]
pub(crate) struct Barrier {
    shards: u16,
    state: Mutex<State>,
    changed: Condvar,
    /// Its shards share a thread: somebody else has them wait for one another.
    #[cfg(test)]
    simulated: std::sync::atomic::AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    here: u16,
    round: u64,
    over: bool,
    /// What one hands over to another: the keys of a partition, or why it stays.
    given: Option<Result<Arc<[Pair]>, MoveRefusal>>,
}

/// Why a partition stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MoveRefusal {
    /// Something is under way: it may be tried again.
    Busy(String),
    /// It cannot move.
    For(String),
}

impl From<String> for MoveRefusal {
    fn from(text: String) -> Self {
        Self::For(text)
    }
}

impl From<MoveRefusal> for EngineError {
    fn from(refusal: MoveRefusal) -> Self {
        match refusal {
            MoveRefusal::Busy(text) => Self::Busy { text, may_wait: false },
            MoveRefusal::For(text) => Self::Refused(text),
        }
    }
}

impl Barrier {
    pub(super) fn new(shards: u16) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self {
            shards,
            state,
            changed,
            #[cfg(test)]
            simulated: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Has somebody else see to it that shards wait for one another.
    #[cfg(test)]
    pub(crate) fn simulate(&self) {
        self.simulated.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether somebody else does.
    #[cfg(test)]
    pub(crate) fn is_simulated(&self) -> bool {
        self.simulated.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all are here; `false`: the process ends.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state();
        state.here += 1;
        if state.here == self.shards {
            state.here = 0;
            state.round += 1;
            self.changed.notify_all();
        }
        let round = state.round + u64::from(state.here > 0);
        while state.round < round && !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.over
    }

    /// Nobody waits for anybody any more.
    pub(crate) fn end(&self) {
        self.state().over = true;
        self.changed.notify_all();
    }

    /// Leaves something for the others, or says why not.
    pub(crate) fn give(&self, what: Result<Vec<Pair>, MoveRefusal>) {
        self.state().given = Some(what.map(Arc::from));
    }

    /// What was left for the others, or why nothing was.
    pub(crate) fn given(&self) -> Result<Arc<[Pair]>, MoveRefusal> {
        let nothing = || Err(MoveRefusal::For(String::from("nobody has given anything")));
        self.state().given.clone().unwrap_or_else(nothing)
    }

    /// Whether somebody has said why not.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.state().given, Some(Err(_)))
    }

    /// It is done.
    pub(crate) fn finish(&self) {
        self.state().given = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn nobody_leaves_before_all_have_come() {
        let (barrier, count) = (Barrier::new(3), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..=100 {
                        count.fetch_add(1, Ordering::SeqCst);
                        assert!(barrier.wait());
                        assert!(count.load(Ordering::SeqCst) >= 3 * round);
                        assert!(barrier.wait());
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::SeqCst), 300);
        barrier.end();
        assert!(!barrier.wait());
    }

    #[test]
    fn what_is_given_is_taken_once() {
        let barrier = Barrier::new(1);
        barrier.give(Err(String::from("no").into()));
        assert!(barrier.is_refused());
        assert_eq!(barrier.given().err(), Some(MoveRefusal::For(String::from("no"))));
        barrier.give(Ok(Vec::new()));
        assert!(barrier.given().is_ok_and(|pairs| pairs.is_empty()));
        barrier.finish();
        assert!(barrier.given().is_err(), "it is of another move");
    }
}
