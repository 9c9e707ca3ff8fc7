//! Backups of a shard's store, and folders of data that are made of them.

use super::cluster::Nobody;
use super::{EmbeddedStore, folder_of, homes};
use headwater_base::Shard;
use headwater_keep::{BackupReader, Options, Restored, Store, restore};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

impl EmbeddedStore {
    /// Begins to read out what the store has and was told until now.
    ///
    /// # Errors
    /// What was told cannot be written any more, or there is no thread.
    pub(crate) fn begin_backup(&self) -> Result<BackupReader, String> {
        if self.store.failed() {
            let why = "data can no longer be written, so the last state is not on disk";
            return Err(String::from(why));
        }
        self.store.begin_backup().map_err(|why| format!("no thread for the backup: {why}"))
    }

    /// The file that says which shard has which keys, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn placement_file(&self) -> Result<Option<Vec<u8>>, String> {
        homes::bytes(self.path.as_ref())
    }
}

/// Makes the part of one of so many shards in a new folder of data out of what was read out of it.
///
/// # Errors
/// What was read out is damaged, or the folder cannot be written; the sentence says why.
pub(crate) fn restore_shard(
    data: &Path,
    shard: Shard,
    shards: u16,
    from: &mut dyn Read,
) -> Result<Restored, String> {
    let folder = folder_of(data, shard, shards)?;
    let restored = restore(&folder, from)?;
    // It is opened once as a server does it: so it is known to be whole, and the next start reads no journal.
    let (store, _) = Store::open(&folder, Options::default(), Arc::new(Nobody), Box::new(|| {}))?;
    drop(store);
    Ok(restored)
}

/// Puts the file that says which shard has which keys into a new folder of data.
///
/// # Errors
/// It is not what was written, or cannot be put there.
pub(crate) fn restore_placement(data: &Path, shards: u16, bytes: &[u8]) -> Result<(), String> {
    homes::put(data, bytes)?;
    homes::read(data, shards).map(|_| ())
}
