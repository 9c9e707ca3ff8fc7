//! What a key may hold instead of a value: a word that names something which the engine keeps elsewhere.
//!
//! The store sees an empty value, so that everything about keys as such (expiry, scans, counts, removal,
//! watches) is the same for all; who wants bytes tells them apart by a bit of the word in hand.

use headwater_pool::ValueRef;

const STREAM: u8 = 0;
const SPILLED: u8 = 1;

/// What is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handle {
    /// A stream, by its number.
    Stream(u32),
    /// A value that is not in memory, by the number of its record.
    Spilled(u32),
}

impl Handle {
    /// What a word names; `None` for a value.
    #[inline]
    pub(crate) fn of(word: ValueRef) -> Option<Self> {
        match word.as_handle()? {
            (SPILLED, number) => Some(Self::Spilled(number)),
            (_, number) => Some(Self::Stream(number)),
        }
    }

    /// The stream that a word names.
    #[inline]
    pub(crate) fn stream(word: ValueRef) -> Option<u32> {
        match Self::of(word)? {
            Self::Stream(number) => Some(number),
            Self::Spilled(_) => None,
        }
    }

    /// The spilled value that a word names.
    #[inline]
    pub(crate) fn spilled(word: ValueRef) -> Option<u32> {
        match Self::of(word)? {
            Self::Spilled(number) => Some(number),
            Self::Stream(_) => None,
        }
    }

    /// The word that names it.
    pub(crate) fn word(self) -> ValueRef {
        match self {
            Self::Stream(number) => ValueRef::handle(STREAM, number),
            Self::Spilled(number) => ValueRef::handle(SPILLED, number),
        }
    }
}
