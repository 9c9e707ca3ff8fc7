//! Whose copy a folder is; one that is no copy of its node's log is refused, or put aside, so that the node begins anew.

use super::ending::{begin_again, stop_for_good};
use crate::log::event;
use headwater_keep::{LogOrigin, Store, discard_copy};
use headwater_log::{Sequence, StopReason};
use std::path::Path;

/// Compares the log that the folder names with the node's. Gives whether it names an earlier stream of the same name, and what it is to name when its last
/// record was found in the log; one that has no record yet names it from now on.
///
/// # Errors
/// The folder is another shard's, or another cluster's, or cannot be read or written.
pub(super) fn compare(
    folder: &Path,
    log: LogOrigin,
    has_records: bool,
) -> Result<(bool, Option<LogOrigin>), String> {
    if !has_records {
        return log.write(folder).map(|()| (false, None));
    }
    match LogOrigin::of(folder)? {
        None => Ok((false, Some(log))),
        Some(found) if found == log => Ok((false, None)),
        Some(found) if found.stream == log.stream => Ok((true, Some(log))),
        Some(found) => Err(format!(
            "it is a copy of stream {}, and this node is for stream {} (allowed: the folder that this node has had, or an empty one)",
            found.stream, log.stream
        )),
    }
}

/// The log `stream` is not the one that the folder is a copy of, which ends at `sequence`: the process begins with an empty one. Without the folder's `copy`, which is
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
            begin_again("the log is not the one that the folder was a copy of");
        }
        Err(why) => stop_for_good(&format!("{stop}; {why}")),
    }
}
