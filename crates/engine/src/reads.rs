//! What goes on over several slices of time, others being served between.

use crate::hints::Hints;
use crate::limited::LimitedReads;
use crate::listing::Listings;
use crate::long_reads::LongReads;
use crate::slice::Slices;

/// Operations that are given in slices.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// How long an operation may take before others go first.
    pub(crate) slices: Slices,
    pub(crate) long_reads: LongReads,
    /// How far limited reads have come.
    pub(crate) limited: LimitedReads,
    /// Where they look for where they may end.
    pub(crate) hints: Hints,
    pub(crate) listings: Listings,
}
