//! Room that executions and writes use again and again, so that they allocate nothing.

use crate::updaters::{ContextId, Target, UpdaterId};
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pool::ValueRef;

/// Whoever takes a room gives it back empty; what it holds means nothing between operations.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Values that a merged read has handed out.
    pub(crate) row_holds: Vec<ValueRef>,
    pub(crate) key_room: Vec<u8>,
    /// Room for a row of a source with a lens.
    pub(crate) row_room: Vec<u8>,
    pub(crate) output_room: Vec<u8>,
    pub(crate) entry_room: Vec<u8>,
    pub(crate) updater_room: Vec<UpdaterId>,
    pub(crate) prefix_room: Vec<u8>,
    pub(crate) range_room: Option<KeyRange>,
    pub(crate) target_room: Vec<Target>,
    /// Targets as their status range holds them.
    pub(crate) member_room: Vec<(UpdaterId, ContextId)>,
    /// Source spans of the levels of an execution that are within one another.
    pub(crate) span_rooms: Vec<KeyRange>,
}
