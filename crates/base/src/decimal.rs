//! Exact decimal numbers, as the aggregates `sum`, `avg`, `min` and `max` use them.

use alloc::vec::Vec;

/// An exact decimal number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Decimal(i64);

impl Decimal {
    /// Reads `[+-]digits[.digits]`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        core::str::from_utf8(text).ok()?.parse().ok().map(Self)
    }

    /// Appends the canonical text.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(alloc::format!("{}", self.0).as_bytes());
    }
}
