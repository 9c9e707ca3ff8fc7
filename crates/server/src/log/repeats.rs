//! No more than so many lines of one kind within a minute.
//!
//! A client decides how often it gives a wrong password, so it must not decide how many lines that makes. Every kind of
//! event (a place in the code) has a count for each minute; what comes beyond it is left out, and how much that
//! was is told once the minute is over.
//!
//! # Cost
//! An event that is logged, or left out, takes a lock and a look at a table that has one entry for each kind.

use super::event;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// What is counted together.
const MINUTE: Duration = Duration::from_secs(60);
/// The target of what this file tells, which is never left out.
const OWN: &str = "log";

/// The lines of one kind.
struct Kind {
    of: &'static Metadata<'static>,
    began: Instant,
    lines: u64,
    left_out: u64,
}

/// Counts events, and leaves out what is too much.
#[derive(Clone)]
pub(super) struct Repeats {
    most: Arc<AtomicU64>,
    kinds: Arc<Mutex<HashMap<Identifier, Kind>>>,
}

impl Repeats {
    pub(super) fn new(most: u64) -> Self {
        Self { most: Arc::new(AtomicU64::new(most)), kinds: Arc::default() }
    }

    pub(super) fn set_most(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Whether one more line of a kind is logged.
    fn admit(&self, of: &'static Metadata<'static>, now: Instant) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let kind =
            kinds.entry(of.callsite()).or_insert(Kind { of, began: now, lines: 0, left_out: 0 });
        if now.duration_since(kind.began) >= MINUTE {
            (kind.began, kind.lines) = (now, 0);
        }
        let fits = kind.lines < most;
        let counted = if fits { &mut kind.lines } else { &mut kind.left_out };
        *counted += 1;
        fits
    }

    /// How many lines of which kinds were left out in minutes that are over, or in all; they are counted from 0 again.
    fn take_left_out(&self, all: bool, now: Instant) -> Vec<(&'static str, u64)> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let over = kinds
            .values_mut()
            .filter(|kind| kind.left_out > 0 && (all || now.duration_since(kind.began) >= MINUTE));
        over.map(|kind| (kind.of.name(), core::mem::take(&mut kind.left_out))).collect()
    }

    /// Tells what was left out, and how many lines could not be written.
    pub(super) fn tell(&self, all: bool, lost: u64) {
        for (kind, count) in self.take_left_out(all, Instant::now()) {
            event!(warn, "log", "left_out", kind, count, "lines of one kind were left out");
        }
        if lost > 0 {
            event!(warn, "log", "lost", count = lost, "lines could not be written");
        }
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let of = event.metadata();
        of.target() == OWN || self.admit(of, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::{MINUTE, Repeats};
    use std::time::{Duration, Instant};
    use tracing::Metadata;
    use tracing::callsite::Callsite;

    /// Two kinds of events.
    fn kinds() -> [&'static Metadata<'static>; 2] {
        let one =
            tracing::callsite! { name: "one", kind: tracing::metadata::Kind::EVENT, fields: a };
        let two =
            tracing::callsite! { name: "two", kind: tracing::metadata::Kind::EVENT, fields: a };
        [one.metadata(), two.metadata()]
    }

    #[test]
    fn what_is_too_much_is_counted_for_each_kind_and_minute() {
        let repeats = Repeats::new(3);
        let [one, two] = kinds();
        let began = Instant::now();
        let admitted = (0..10).filter(|_| repeats.admit(one, began)).count();
        assert_eq!(admitted, 3);
        assert!(repeats.admit(two, began), "another kind has a count of its own");
        let later = began + MINUTE - Duration::from_millis(1);
        assert!(!repeats.admit(one, later));
        assert_eq!(repeats.take_left_out(false, later), []);
        let after = began + MINUTE;
        assert_eq!(repeats.take_left_out(false, after), [("one", 8)]);
        assert_eq!(repeats.take_left_out(true, after), []);
        assert!(repeats.admit(one, after), "a new minute");
        repeats.set_most(1);
        assert!(!repeats.admit(one, after));
        assert_eq!(repeats.take_left_out(true, after), [("one", 1)]);
    }
}
