//! Commands about keys as such.

use super::strings::Deadline;
use crate::args::Args;

/// What OBJECT tells about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectFact {
    /// How the value is stored.
    Encoding,
    /// Seconds since the last use.
    IdleTime,
    /// How often it is used.
    Frequency,
    /// References to the value.
    References,
}

/// When a key expires that is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoredExpiry {
    /// Never.
    Never,
    /// Then.
    Deadline(Deadline),
    /// A number of milliseconds was given that is none, or negative: told after what else may be wrong.
    NotInteger,
    /// The number is negative.
    Negative,
}

/// Commands about keys as such.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Keys<'a> {
    /// Removes keys; answers how many were there.
    Del {
        /// The keys.
        keys: Args<'a>,
    },
    /// How many of the keys are there, repeated ones counted each time.
    Exists {
        /// The keys.
        keys: Args<'a>,
    },
    /// As EXISTS; a use of each key.
    Touch {
        /// The keys.
        keys: Args<'a>,
    },
    /// The type of a key's value.
    Type {
        /// The key.
        key: &'a [u8],
    },
    /// Moves a value to another key.
    Rename {
        /// The key that has the value.
        from: &'a [u8],
        /// The key that gets it.
        to: &'a [u8],
        /// Only if the second key is not there; answers 1 or 0 instead of OK.
        if_absent: bool,
    },
    /// Copies a value to another key.
    Copy {
        /// The key that has the value.
        from: &'a [u8],
        /// The key that gets it.
        to: &'a [u8],
        /// Even if the second key is there.
        replace: bool,
    },
    /// A value in the form that [`Keys::Restore`] takes.
    Dump {
        /// The key.
        key: &'a [u8],
    },
    /// Gives a key a value that was dumped.
    Restore {
        /// The key.
        key: &'a [u8],
        /// When it expires, where it does.
        expiry: RestoredExpiry,
        /// The value, as it was dumped.
        payload: &'a [u8],
        /// Even if the key is there.
        replace: bool,
    },
    /// The stored keys that match a glob pattern.
    Matching {
        /// The pattern.
        pattern: &'a [u8],
    },
    /// The stored keys of this shard that are in a slot of Redis Cluster.
    InSlot {
        /// The slot.
        slot: u16,
        /// How many keys to give at most; `None`: the number of keys is wanted instead.
        most: Option<u64>,
    },
    /// Some of the stored keys, to be continued.
    Scan {
        /// Where to continue; 0 starts.
        cursor: u64,
        /// Only keys that match this glob pattern.
        pattern: Option<&'a [u8]>,
        /// About how many keys to look at.
        count: u64,
        /// Only keys whose value is of this type.
        type_name: Option<&'a [u8]>,
    },
    /// Some stored key.
    RandomKey,
    /// How many keys are stored.
    DbSize,
    /// Removes all keys.
    Flush,
    /// A fact about a key's value.
    Object {
        /// Which fact.
        fact: ObjectFact,
        /// The key.
        key: &'a [u8],
    },
    /// Bytes that a key and its value occupy.
    MemoryUsage {
        /// The key.
        key: &'a [u8],
    },
    /// Bytes by kind.
    MemoryStats,
}
