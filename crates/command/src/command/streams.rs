//! Commands about streams.

/// Commands about streams. Offsets count from the first byte ever appended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Streams<'a> {
    /// Puts bytes behind a stream; answers the new end.
    Append {
        /// The key.
        key: &'a [u8],
        /// The bytes.
        tail: &'a [u8],
        /// How many bytes will probably follow them.
        expected: u64,
    },
    /// Bytes of a stream from an offset on.
    Read {
        /// The key.
        key: &'a [u8],
        /// The first byte wanted.
        offset: u64,
        /// At most so many.
        count: u64,
        /// Where there is none yet, wait so many milliseconds; 0: as long as it takes.
        block: Option<u64>,
    },
    /// Lets go of what lies before an offset; answers the new start.
    Trim {
        /// The key.
        key: &'a [u8],
        /// The first byte that stays.
        offset: u64,
    },
    /// The end of a stream.
    Len {
        /// The key.
        key: &'a [u8],
    },
    /// Facts about a stream.
    Info {
        /// The key.
        key: &'a [u8],
    },
}
