//! The port through which pure rooms learn how much memory is taken.

use core::fmt::Debug;

/// Tells how much memory is taken, of all that counts against the bound.
///
/// It is asked before every operation that takes memory, so it must be cheap: a load or two.
pub trait Meter: Debug {
    /// Bytes taken now.
    fn used(&self) -> usize;

    /// Looks anew at what is estimated between two looks.
    fn look_again(&self) {}

    /// Says that the operation under way is about to take so many bytes at once, so that others that share the bound leave them free.
    fn announce(&self, _bytes: usize) {}

    /// Has others that share the bound give up about so many bytes, where nothing here can go. Whether it is worth while
    /// to look again: `false` where there are no others, or they have nothing to give either.
    fn gain(&self, _bytes: usize) -> bool {
        false
    }

    /// Whether memory that was lacking is about to be given back by somebody, so that who has changed nothing yet should wait
    /// a moment and try again.
    fn comes(&self) -> bool {
        false
    }
}
