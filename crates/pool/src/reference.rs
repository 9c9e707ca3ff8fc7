//! References to values: 8 bytes, whatever the value.
//!
//! A short value is the reference. A longer one is the address of its last block with the
//! value's length, so that a length costs no look at memory, and so that a reference to a value
//! stays what it is when others append behind it.
//!
//! | bits | inline | in a cell | in blocks |
//! | --- | --- | --- | --- |
//! | 0 | 1 | 1 | 0 |
//! | 1 | length, with bits 2 and 3 | 0 | whether the value has more than one block |
//! | 2–31 | … | 0, but for bit 4 | length |
//! | 4 | 0 | 1 | … |
//! | 8–63 | the bytes | | |
//! | 32–63 | | number of the cell | address of the last block |
//!
//! Bit 5 of an inline word makes it a *handle*: an empty value whose bits 6 and 7 are a kind and bits 32–63 a
//! number, which mean something to its owner.

/// Longest value that is held in its reference.
pub const INLINE_BYTES_MAX: usize = 7;

/// Longest value: 1 GiB less a byte.
pub const VALUE_BYTES_MAX: usize = (1 << 30) - 1;

const INLINE: u64 = 1;
const HANDLE: u64 = 1 << 5;
const KIND_SHIFT: u32 = 6;
const CHAINED: u64 = 2;
const LENGTH_SHIFT: u32 = 2;
const CELL: u64 = 1 << 4;
const ADDRESS_SHIFT: u32 = 32;

/// A value: either its bytes, or where the pool keeps them.
///
/// Copying the word does not count as another reference: see [`Pool::retain`](crate::Pool::retain).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueRef(u64);

impl ValueRef {
    /// The empty value.
    pub const EMPTY: Self = Self(INLINE);

    /// The value `bytes`, of at most [`INLINE_BYTES_MAX`] bytes.
    #[inline]
    pub(crate) fn inline(bytes: &[u8]) -> Self {
        let mut word = [0; 8];
        word[0] = (bytes.len() as u8) << 1 | INLINE as u8;
        word[1..=bytes.len()].copy_from_slice(bytes);
        Self(u64::from_le_bytes(word))
    }

    /// The value of `len` bytes that ends in the block at `address`.
    #[inline]
    pub(crate) fn in_blocks(address: u32, len: usize, chained: bool) -> Self {
        debug_assert!(len <= VALUE_BYTES_MAX);
        let chained = if chained { CHAINED } else { 0 };
        Self(u64::from(address) << ADDRESS_SHIFT | (len as u64) << LENGTH_SHIFT | chained)
    }

    /// The reference as a plain word, for storage in a page.
    #[inline]
    #[must_use]
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// The reference that [`ValueRef::to_word`] gave.
    #[inline]
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The cell of a number.
    #[inline]
    pub(crate) fn in_cell(number: u32) -> Self {
        Self(u64::from(number) << ADDRESS_SHIFT | CELL | INLINE)
    }

    /// Whether the value is a cell: see [`Pool::share`](crate::Pool::share).
    #[inline]
    #[must_use]
    pub fn is_cell(self) -> bool {
        self.0 & (CELL | INLINE) == CELL | INLINE
    }

    /// The number of a cell.
    #[inline]
    pub(crate) fn cell(self) -> u32 {
        (self.0 >> ADDRESS_SHIFT) as u32
    }

    /// A word that stands for something that its owner keeps outside the pool, under `number`, and of
    /// one of four kinds (0 to 3). To the pool it is an empty value: retaining and releasing it mean
    /// nothing.
    #[inline]
    #[must_use]
    pub fn handle(kind: u8, number: u32) -> Self {
        debug_assert!(kind < 4, "there are four kinds of handles");
        let kind = u64::from(kind & 3) << KIND_SHIFT;
        Self(u64::from(number) << ADDRESS_SHIFT | kind | HANDLE | INLINE)
    }

    /// The kind and the number that [`ValueRef::handle`] was given; `None` for a value.
    #[inline]
    #[must_use]
    pub fn as_handle(self) -> Option<(u8, u32)> {
        let kind = (self.0 >> KIND_SHIFT & 3) as u8;
        if self.is_handle() { Some((kind, (self.0 >> ADDRESS_SHIFT) as u32)) } else { None }
    }

    /// Whether the word is a handle.
    #[inline]
    #[must_use]
    pub fn is_handle(self) -> bool {
        self.0 & (HANDLE | INLINE) == HANDLE | INLINE
    }

    /// Whether the bytes are in the reference itself, or in a cell: not in blocks.
    #[inline]
    #[must_use]
    pub fn is_inline(self) -> bool {
        self.0 & INLINE != 0
    }

    /// Length of the value in bytes; not known to the reference of a cell.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the value is empty, not the reference")]
    pub fn len(self) -> usize {
        debug_assert!(!self.is_cell(), "the length of a cell is its content's");
        if self.is_inline() {
            (self.0 >> 1 & 7) as usize
        } else {
            (self.0 as u32 >> LENGTH_SHIFT) as usize
        }
    }

    /// The inline bytes behind one byte of tag and length.
    #[inline]
    pub(crate) fn inline_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Whether a value in blocks has more than one.
    #[inline]
    pub(crate) fn is_chained(self) -> bool {
        self.0 & CHAINED != 0
    }

    /// The last block of a value that is not inline.
    #[inline]
    pub(crate) fn address(self) -> u32 {
        (self.0 >> ADDRESS_SHIFT) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::ValueRef;
    use crate::Pool;

    #[test]
    fn a_handle_is_no_value_and_no_value_is_a_handle() {
        for (kind, number) in [(0, 0), (1, 1), (2, 77), (3, u32::MAX)] {
            let handle = ValueRef::handle(kind, number);
            assert_eq!(handle.as_handle(), Some((kind, number)));
            assert_eq!(ValueRef::from_word(handle.to_word()), handle);
            assert!(handle.is_inline() && !handle.is_cell() && handle.len() == 0);
        }
        let mut pool = Pool::new();
        for len in (0..40).chain([300, 4096, 4097, 16 << 10, 100_000]) {
            let value = pool.insert(&alloc::vec![0xFF; len]);
            assert_eq!(value.as_handle(), None, "{len} bytes");
            pool.release(value);
        }
    }
}
