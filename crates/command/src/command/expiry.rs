//! Commands about when keys expire.

use super::Deadline;
use headwater_base::Millis;

/// When EXPIRE and its kin act.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExpireCondition {
    /// In any case.
    #[default]
    Always,
    /// Only if the key has no expiry.
    IfNone,
    /// Only if the key has an expiry.
    IfSome,
    /// Only if the new expiry is later than the one the key has.
    IfLater,
    /// Only if the new expiry is earlier, or the key has none.
    IfEarlier,
    /// Only if the key has an expiry and the new one is earlier.
    IfSomeAndEarlier,
}

/// How a remaining or final time is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeUnit {
    /// In seconds.
    Seconds,
    /// In milliseconds.
    Millis,
}

impl Expiry<'_> {
    /// Whether it has its key expire at once, and writes nothing else.
    #[must_use]
    pub fn removes(&self, now: Millis) -> bool {
        matches!(self, Self::Expire { deadline, .. } if deadline.moment(now) <= now)
    }
}

/// Commands about when keys expire.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Expiry<'a> {
    /// Sets the expiry; answers 1 or 0.
    Expire {
        /// The key.
        key: &'a [u8],
        /// The moment.
        deadline: Deadline,
        /// When to act at all.
        condition: ExpireCondition,
    },
    /// Time that remains: -1 without expiry, -2 without key.
    Remaining {
        /// The key.
        key: &'a [u8],
        /// How to tell it.
        unit: TimeUnit,
    },
    /// The moment of expiry: -1 without expiry, -2 without key.
    Moment {
        /// The key.
        key: &'a [u8],
        /// How to tell it.
        unit: TimeUnit,
    },
    /// Clears the expiry; answers 1 or 0.
    Persist {
        /// The key.
        key: &'a [u8],
    },
}
