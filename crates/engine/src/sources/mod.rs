//! Tables whose base data a source has: reads ask for what is not here, and the source's changes are applied.
//!
//! A table may also be *kept*: clients write it, and every write goes to an embedded store as well
//! (`kept`). That is a source like any other, except that its changes are this engine's own.
//!
//! What is here of a table, and what is on its way, is in `loads`, with the invariants L1 to L4.

mod health;
mod kept;

pub(crate) use health::Sources;
pub(crate) use kept::{KEPT, Persistence};

use crate::base::{Gone, Put};
use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::loads::{LoadedData, LoadedId, Provider};
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::source::{Attributes, Change, Position};
use headwater_store::TableId;

impl Engine {
    /// One transaction at a source, which stands at `position` after it. Changes outside followed
    /// ranges are ignored, and so is a transaction delivered before.
    pub fn changed(&mut self, source: &str, position: Position, changes: &[Change]) {
        for table in self.base.loads.own_tables() {
            let Some(data) = self.base.loads.own_mut(table) else { continue };
            if data.is_kept() || data.source() != source || position <= data.seen {
                continue;
            }
            data.seen = position;
            for change in changes {
                self.change_at(table, position, change);
            }
        }
        self.base.reached(source, position);
    }

    fn change_at(&mut self, table: TableId, position: Position, change: &Change) {
        if !change.key.starts_with(self.store.table(table).prefix()) {
            return;
        }
        if !self.owns(&change.key) {
            return;
        }
        let Some(data) = self.base.loads.own_mut(table) else { return };
        data.note(position, &change.key, || {
            change.value.clone().map(|value| (value, Attributes::default()))
        });
        if data.ranges.position_of(&change.key).is_none_or(|loaded_at| position <= loaded_at) {
            return;
        }
        if self.views.catalog.writer_of(table, &change.key).is_some() {
            return;
        }
        match &change.value {
            Some(value) => {
                let value = self.store.pool.insert(value);
                self.put(table, &change.key, Put::from_keeper(value, None, 0));
            }
            None => _ = self.take(table, &change.key, Gone::ByKeeper),
        }
    }

    /// A table gets its source: what was computed while it was empty is not to be believed any more.
    pub(crate) fn begin_source(&mut self, table: TableId, source: &str) {
        let range = KeyRange::prefix(self.store.table(table).prefix());
        self.tell_reset(&range);
        self.invalidate_readers(table, &range);
        let provider = Provider::Source(String::from(source));
        self.base.loads.add_own(table, LoadedData::new(provider));
    }

    /// A table has no source any more: what was loaded is forgotten. Who waits for more finds none.
    pub(crate) fn end_source(&mut self, table: TableId) {
        if self.base.loads.own(table).is_none_or(LoadedData::is_kept) {
            return;
        }
        let range = KeyRange::prefix(self.store.table(table).prefix());
        self.tell_reset(&range);
        self.invalidate_readers(table, &range);
        self.unload(LoadedId::own(table), &range);
        self.drop_answers(LoadedId::own(table), &range);
        self.base.loads.end_own(table);
        self.notifications.retry_followed();
    }

    /// Forgets the loaded ranges in which the outputs of a join may have hidden keys of the
    /// source: they are to be seen once the join has gone, and were not kept.
    pub(crate) fn forget_hidden(&mut self, join: u32) {
        let plan = self.views.catalog.join(join).plan.clone();
        let table = plan.output_table;
        let Some(data) = self.base.loads.own_mut(table) else { return };
        let ranges = data.ranges.cut(&plan.join.output.range_of_all());
        // What was computed from these ranges is not kept up to date any more.
        let readers = self.views.catalog.role(table).map_or(&[][..], |role| &role.readers);
        let readers: Vec<_> = readers.iter().map(|reader| reader.join).collect();
        for reader in readers {
            self.reset_join(reader);
        }
        for range in ranges {
            self.drop_base_keys(table, &range);
            self.base.loads.unfollow(LoadedId::own(table), range);
        }
    }
}

impl BaseData {
    /// Other keys of a table are this shard's own from now on. Changes of those were not kept for the loads under way: answers that
    /// are older than the last change delivered are of no use.
    pub(crate) fn ask_anew(&mut self, table: TableId) {
        if let Some(data) = self.loads.own_mut(table) {
            data.ask_anew();
        }
    }
}
