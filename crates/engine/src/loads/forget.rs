//! What was loaded goes again: it is evicted, of no interest, or not to be believed any more.

use super::{LoadedId, Loads};
use crate::base_data::BaseData;
use crate::engine::Engine;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_store::TableId;

impl Engine {
    /// Forgets what is loaded of `range`, and stops following it.
    pub(crate) fn unload(&mut self, part: LoadedId, range: &KeyRange) {
        for range in self.forget_part(part, range) {
            self.base.loads.unfollow(part, range);
        }
    }

    /// Forgets what is loaded of `range`, and gives the parts that were.
    pub(crate) fn forget_part(&mut self, part: LoadedId, range: &KeyRange) -> Vec<KeyRange> {
        let Some(data) = self.base.loads.data_mut(part) else { return Vec::new() };
        let mut parts = data.ranges.cut(range);
        if data.is_kept() {
            // Single keys are in memory without being in a loaded range (L3).
            parts = alloc::vec![range.clone()];
        }
        if !parts.is_empty() {
            self.reads.long_reads.collections.change_all();
        }
        for range in &parts {
            // What was computed from the range is not kept up to date any more.
            self.invalidate_readers(part.table, range);
            match part.home {
                None => self.drop_base_keys(part.table, range),
                Some(home) => self.drop_replicas(home, part.table, range),
            }
        }
        parts
    }

    /// Removes the base keys of a range, of which nobody is told.
    pub(crate) fn drop_base_keys(&mut self, table: TableId, range: &KeyRange) {
        self.tell_reset(range);
        let mut keys = Vec::new();
        self.scan_table(table, range, &mut |key, _| keys.push(key.to_vec()));
        keys.retain(|key| self.owns(key) && !self.views.catalog.gives(table, key));
        // What is kept is still there: its keys keep their marks, but for what will be loaded with them.
        let kept = self.base.is_kept(table);
        for key in keys {
            if self.remove_dead(&key) {
                continue;
            }
            self.unload_key(table, &key, kept);
        }
    }
}

impl BaseData {
    /// After all keys have gone: forgets what was loaded, and stops following it. What is kept is told to the embedded store
    /// by itself.
    pub(crate) fn forget_all_loaded(&mut self) {
        let Loads { own, elsewhere, waits, .. } = &mut self.loads;
        let own = own.iter_mut().flatten().map(|data| &mut **data).filter(|data| !data.is_kept());
        for data in own.chain(elsewhere.forget_all()) {
            for range in data.ranges.take() {
                data.provider.unfollow(range, waits);
            }
        }
    }

    /// Has loads from another shard that `concerned` names be of no use.
    pub(crate) fn spoil_loads(&mut self, part: LoadedId, concerned: impl Fn(&KeyRange) -> bool) {
        let Some(home) = part.home else { return };
        let Some((data, waits, _)) = self.loads.split(part) else { return };
        for (range, fetch) in data.take_loads(|range, _| concerned(range)) {
            waits.spoil(fetch, home, range);
        }
    }
}
