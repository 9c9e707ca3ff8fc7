//! Commands about the bits of values.

use crate::args::Args;
use crate::bits::BitOperation;

/// A window over a value, as offsets of its first and last byte or bit; negative ones count from the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BitWindow {
    /// The first one.
    pub start: i64,
    /// The last one; `None`: none was given, so that it is the value's last.
    pub end: Option<i64>,
    /// They count bits, not bytes.
    pub bits: bool,
}

/// Commands about the bits of values. Bit 0 is the highest one of the first byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bits<'a> {
    /// Sets or clears a bit; answers what it was.
    Set {
        /// The key.
        key: &'a [u8],
        /// Which bit.
        offset: u64,
        /// What it becomes.
        bit: bool,
    },
    /// A bit.
    Get {
        /// The key.
        key: &'a [u8],
        /// Which bit.
        offset: u64,
    },
    /// How many bits are set.
    Count {
        /// The key.
        key: &'a [u8],
        /// Where they are counted; `None`: everywhere.
        window: Option<BitWindow>,
    },
    /// Where the first bit is that is set, or clear.
    Position {
        /// The key.
        key: &'a [u8],
        /// Which kind is sought.
        bit: bool,
        /// Where it is sought.
        window: BitWindow,
    },
    /// Gives a key the bits of others, put together; answers its length.
    Combine {
        /// How.
        operation: BitOperation,
        /// The key that is written.
        to: &'a [u8],
        /// The keys that are read.
        from: Args<'a>,
    },
    /// Reads and writes whole numbers of some bits within a value.
    Fields {
        /// The key.
        key: &'a [u8],
        /// What is done, as it was given and checked: see [`crate::bits::field_steps`].
        steps: Args<'a>,
        /// None of it writes.
        read_only: bool,
    },
}
