//! Kinds of keyspace events: what settings ask for, and the engine tells.

/// Kinds of events, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventKinds(u8);

impl EventKinds {
    /// None.
    pub const NONE: Self = Self(0);
    /// What is not about values of some type: removals, expiries, names.
    pub const GENERIC: Self = Self(1);
    /// Writes of values.
    pub const STRINGS: Self = Self(1 << 1);
    /// Writes of streams.
    pub const STREAMS: Self = Self(1 << 2);
    /// Keys whose time was over.
    pub const EXPIRED: Self = Self(1 << 3);
    /// Keys that memory had no room for.
    pub const EVICTED: Self = Self(1 << 4);
    /// Keys that were not there before.
    pub const NEW: Self = Self(1 << 5);

    /// These and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether some of those are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}
