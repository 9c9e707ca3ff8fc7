//! What other threads bring to a loop, and how it hears of it.
//!
//! # Invariants
//! - M1. A loop that waits for sockets has said so and then found nothing here; whoever brings something puts it down first and
//!   looks whether the loop waits then. So one of the two sees the other, and a loop that is at work is not woken: it looks
//!   here in every turn.

use mio::Waker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Things for one loop, in the order in which they were brought.
#[derive(Debug)]
pub(crate) struct LoopInbox<T> {
    all: Mutex<Vec<T>>,
    waker: OnceLock<Arc<Waker>>,
    /// There is something, or somebody wants the loop to come round.
    full: AtomicBool,
    /// The loop waits for sockets, and is to be woken.
    sleeps: AtomicBool,
}

impl<T> Default for LoopInbox<T> {
    fn default() -> Self {
        Self {
            all: Mutex::new(Vec::new()),
            waker: OnceLock::new(),
            full: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
        }
    }
}

impl<T> LoopInbox<T> {
    /// Sets what wakes the loop.
    pub(crate) fn set_waker(&self, waker: Arc<Waker>) {
        // There is one loop, which sets it once.
        let _ = self.waker.set(waker);
    }

    /// Brings something.
    pub(crate) fn put(&self, things: impl Iterator<Item = T>) {
        self.all().extend(things);
        self.ring();
    }

    /// Has the loop come round.
    pub(crate) fn ring(&self) {
        // M1: all of this is in one order for all threads.
        self.full.store(true, Ordering::SeqCst);
        if self.sleeps.load(Ordering::SeqCst)
            && self.sleeps.swap(false, Ordering::SeqCst)
            && let Some(waker) = self.waker.get()
        {
            // An event is counted, which fails where very many are: then the loop is being woken.
            let _ = waker.wake();
        }
    }

    /// Takes what is there.
    #[inline]
    pub(crate) fn take(&self) -> Vec<T> {
        if !self.full.load(Ordering::Acquire) || !self.full.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        core::mem::take(&mut *self.all())
    }

    /// What is there, to be looked at where it is.
    pub(crate) fn all(&self) -> MutexGuard<'_, Vec<T>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the loop may wait for sockets: nothing is there. It is woken when something comes.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        let may = !self.full.load(Ordering::SeqCst);
        if !may {
            self.sleeps.store(false, Ordering::SeqCst);
        }
        may
    }

    /// Whether the loop waits for sockets.
    #[inline]
    pub(crate) fn sleeps(&self) -> bool {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// The loop waits no longer.
    pub(crate) fn awoke(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_sleeps_only_where_nothing_is_there() {
        let inbox = LoopInbox::default();
        assert!(inbox.take().is_empty() && inbox.may_sleep() && inbox.sleeps());
        inbox.put([1, 2].into_iter());
        assert!(!inbox.sleeps(), "whoever brings something wakes it");
        assert!(!inbox.may_sleep());
        inbox.put([3].into_iter());
        assert_eq!(inbox.take(), [1, 2, 3]);
        assert!(inbox.take().is_empty() && inbox.may_sleep());
        inbox.awoke();
        assert!(!inbox.sleeps());
        inbox.ring();
        assert!(!inbox.may_sleep(), "somebody wants it to come round");
        assert!(inbox.take().is_empty() && inbox.may_sleep());
    }
}
