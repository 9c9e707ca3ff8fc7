//! What belongs to base data beside the keys themselves: their ends, where they live, streams, what is on disk.

use crate::expiry::Expiries;
use crate::flush::Discarded;
use crate::loads::Loads;
use crate::removal::Removals;
use crate::shards::Placed;
use crate::spill::{SpilledValues, Spilling};
use crate::streams::Streams;
use alloc::boxed::Box;
use headwater_base::hash::Secret;

/// Base data, without the keys that the store holds.
#[derive(Debug)]
pub(crate) struct BaseData {
    pub(crate) expiries: Expiries,
    /// Ranges that are removed in slices.
    pub(crate) removals: Removals,
    /// What was there before everything was removed.
    pub(crate) discarded: Discarded,
    pub(crate) streams: Streams,
    pub(crate) spilling: Spilling,
    pub(crate) spilled: SpilledValues,
    /// Base data that lives elsewhere.
    pub(crate) loads: Loads,
    /// Where keys live, if not all here.
    pub(crate) placed: Option<Box<Placed>>,
}

impl BaseData {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            expiries: Expiries::new(secret),
            removals: Removals::default(),
            discarded: Discarded::default(),
            streams: Streams::default(),
            spilling: Spilling::default(),
            spilled: SpilledValues::default(),
            loads: Loads::default(),
            placed: None,
        }
    }
}
