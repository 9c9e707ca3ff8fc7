//! The port through which pure rooms put bytes aside, where memory is short.

use alloc::vec::Vec;
use core::fmt::Debug;

/// Keeps bytes outside of memory, as far as it can: what it is asked for is what was put, or nothing.
///
/// Entries go in the order of their numbers where room is wanted: all below [`Spill::first`] are gone.
/// It is asked on the thread that answers clients, so each call must take a bounded time.
pub trait Spill: Debug {
    /// Keeps the bytes of `parts`, one behind the other, under `id`, which is greater than any before.
    /// `false` where it cannot; the number is used up.
    fn put(&mut self, id: u64, parts: &mut dyn Iterator<Item = &[u8]>) -> bool;

    /// Appends the bytes kept under `id` to `out`; `false`, and nothing appended, where they are
    /// lost.
    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool;

    /// Forgets what was put under `id`: once for each put that succeeded.
    fn remove(&mut self, id: u64);

    /// Forgets everything. Numbers go on ascending.
    fn clear(&mut self);

    /// Waits until what was put takes no memory any more, as far as that can be waited for; whether there was any.
    fn settle(&mut self) -> bool {
        false
    }

    /// The least number that may still be there.
    fn first(&self) -> u64;

    /// Bytes that are taken up, which may be more than those that are kept.
    fn bytes(&self) -> u64;
}
