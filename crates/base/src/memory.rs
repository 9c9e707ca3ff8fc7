//! The port through which pure rooms learn how much memory is taken.

use core::fmt::Debug;

/// Tells how much memory is taken, of all that counts against the bound.
///
/// It is asked before every operation that takes memory, so it must be cheap: a load or two.
pub trait Meter: Debug {
    /// Bytes taken now.
    fn used(&self) -> usize;
}
