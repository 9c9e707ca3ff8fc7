//! What is derived: joins, what is known of their outputs, and the updaters that keep them up to date.

use crate::catalog::Catalog;
use crate::fan_out::FanOuts;
use crate::gaps::AHEAD_MIN;
use crate::gather::Gathering;
use crate::in_the_way::InTheWay;
use crate::maintain::Changed;
use crate::snapshots::Window;
use crate::status::{StatusId, Statuses};
use crate::updaters::Updaters;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use headwater_base::Millis;
use headwater_base::hash::Secret;

/// Joins and what is materialized of them. The outputs themselves are in the store.
#[derive(Debug)]
pub(crate) struct Views {
    pub(crate) catalog: Catalog,
    pub(crate) updaters: Updaters,
    pub(crate) statuses: Statuses,
    /// Snapshot ranges in the order in which their time ends.
    pub(crate) snapshots: BTreeSet<(Millis, StatusId)>,
    /// The snapshot that is being computed.
    pub(crate) window: Option<Window>,
    /// Changes that large fan-outs have yet to bring to some ranges.
    pub(crate) fan_outs: FanOuts,
    /// Ranges that are being gathered.
    pub(crate) gatherings: BTreeMap<StatusId, Gathering>,
    pub(crate) in_the_way: InTheWay,
    /// How many outputs beyond what was asked for are few (G1).
    pub(crate) growth: usize,
    /// Changes of outputs that joins have yet to be told of; empty between operations.
    pub(crate) queue: VecDeque<Changed>,
    /// A write is being applied: no execution is under way.
    pub(crate) writing: bool,
    /// Joins are computed from base keys alone, for VERIFY.
    pub(crate) from_scratch: bool,
}

impl Views {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            catalog: Catalog::default(),
            updaters: Updaters::new(secret),
            statuses: Statuses::default(),
            snapshots: BTreeSet::new(),
            window: None,
            fan_outs: FanOuts::default(),
            gatherings: BTreeMap::new(),
            in_the_way: InTheWay::default(),
            growth: AHEAD_MIN,
            queue: VecDeque::new(),
            writing: false,
            from_scratch: false,
        }
    }

    /// Bytes of all records of status ranges, and of what leads to them.
    pub(crate) fn status_range_bytes(&self) -> usize {
        let covers = self.catalog.iter().map(|(_, join)| join.cover.bytes());
        self.statuses.bytes() + covers.sum::<usize>()
    }
}
