//! Bindings: the slot values that a partial tuple of source keys has given so far.
//!
//! Values are borrowed from the keys they came from. A bit mask says which slots are bound, so
//! taking back a failed match is one assignment, and a copy is a plain copy of half a kilobyte
//! without allocation: an execution keeps one on its stack for each nested loop.

use core::fmt;

use crate::{SLOTS_MAX, SlotId};

/// Slot values found so far. Cheap to copy; never allocates.
///
/// A value must be a valid slot value (invariant I1: not empty, no `|`); every value that
/// [`Pattern::bind`](crate::Pattern::bind) binds is.
#[derive(Clone, Copy)]
pub struct Bindings<'k> {
    /// Bit `s` is set where slot `s` is bound; other entries of `values` mean nothing.
    bound: u32,
    values: [&'k [u8]; SLOTS_MAX],
}

const _: () = assert!(SLOTS_MAX <= u32::BITS as usize, "the mask has a bit for every slot");

impl<'k> Bindings<'k> {
    /// No slot is bound.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self { bound: 0, values: [&[]; SLOTS_MAX] }
    }

    /// The value of `slot`, if it is bound.
    #[inline]
    #[must_use]
    pub fn get(&self, slot: SlotId) -> Option<&'k [u8]> {
        self.is_bound(slot).then(|| self.values[slot])
    }

    /// Binds `slot` to `value`, in place of what it was bound to.
    #[inline]
    pub fn set(&mut self, slot: SlotId, value: &'k [u8]) {
        self.values[slot] = value;
        self.bound |= 1 << slot;
    }

    /// Unbinds `slot`.
    #[inline]
    pub fn clear(&mut self, slot: SlotId) {
        self.bound &= !(1 << slot);
    }

    /// Whether `slot` is bound.
    #[inline]
    #[must_use]
    pub fn is_bound(&self, slot: SlotId) -> bool {
        self.bound & (1 << slot) != 0
    }

    /// The bound slots and their values, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &'k [u8])> + '_ {
        let mut bound = self.bound;
        core::iter::from_fn(move || {
            let slot = bound.trailing_zeros() as usize;
            // Takes the lowest bit away.
            bound &= bound.checked_sub(1)?;
            Some((slot, self.values[slot]))
        })
    }

    /// Which slots are bound, to come back to with [`Bindings::restore`].
    #[inline]
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.bound
    }

    /// Unbinds what was bound since `mark` was taken; no slot bound then may have changed.
    #[inline]
    pub fn restore(&mut self, mark: u32) {
        self.bound = mark;
    }
}

impl Default for Bindings<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Bindings<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bound == other.bound && self.iter().eq(other.iter())
    }
}

impl Eq for Bindings<'_> {}

impl fmt::Debug for Bindings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(slot, value)| (slot, value.escape_ascii())))
            .finish()
    }
}
