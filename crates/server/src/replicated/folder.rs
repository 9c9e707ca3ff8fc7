//! A folder that is no copy of its log: it is put aside, and the node begins anew.

use super::ending::{begin_again, stop_for_good};
use crate::log::event;
use headwater_keep::{Store, discard_copy};
use headwater_log::{Sequence, StopReason};
use std::path::Path;

/// The log `stream` has another record, at `sequence`, where the folder ends: the process begins with an empty one. Without the folder's `copy`, which is
/// closed first, a server has what is there, and that is never discarded.
pub(super) fn discard(
    copy: Option<Store>,
    (folder, stream): (&Path, &str),
    stop: &StopReason,
    sequence: Sequence,
) -> ! {
    if copy.is_none() {
        stop_for_good(&stop.to_string());
    }
    drop(copy);
    match discard_copy(folder) {
        Ok(kept) => {
            let (sequence, kept) = (sequence.0, kept.display());
            event!(warn, "cluster", "folder_discarded", stream, sequence, %kept);
            begin_again("the log has another record where the folder ended");
        }
        Err(why) => stop_for_good(&format!("{stop}; {why}")),
    }
}
