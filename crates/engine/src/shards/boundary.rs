//! Boundaries of tables, which decide where keys live.

use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::loads::LoadedId;
use crate::report::EngineError;
use alloc::format;
use alloc::string::String;
use headwater_base::KeyRange;
use headwater_base::key::SEPARATOR;
use headwater_store::TableId;

impl Engine {
    /// Whether a table, by its prefix, may have another boundary: with several shards not where its keys
    /// would live elsewhere then, or joins rely on where they do.
    pub(crate) fn check_placing(
        &mut self,
        prefix: &[u8],
        boundary: usize,
    ) -> Result<(), EngineError> {
        let Some(placed) = &self.base.placed else { return Ok(()) };
        let name = prefix.strip_suffix(&[SEPARATOR]).unwrap_or(prefix);
        let now = placed.placement.boundary(name);
        let Some(table) = self.store.find(prefix).filter(|_| boundary.max(1) != now) else {
            return Ok(());
        };
        let role = self.views.catalog.role(table);
        let is_read = role.is_some_and(|it| !it.readers.is_empty() || !it.writers.is_empty());
        // What a source has can be forgotten.
        let is_loaded = self.base.loads.own(table).is_some_and(|data| !data.is_kept());
        let has_keys = !is_loaded && self.store.table(table).sizes().keys > 0;
        if is_read || has_keys || self.base.may_have_kept(table, prefix) {
            let shown = String::from_utf8_lossy(name);
            return Err(EngineError::Refused(format!(
                "the boundary of table '{shown}' says where its keys live: with several shards it can be changed \
                 only while the table has no keys and no join names it (it is {now})"
            )));
        }
        Ok(())
    }

    /// Places the keys of a table by so many components.
    pub(crate) fn place_by(&mut self, prefix: &[u8], boundary: usize) {
        let name = prefix.strip_suffix(&[SEPARATOR]).unwrap_or(prefix);
        let changes = self.placement().is_some_and(|it| it.boundary(name) != boundary.max(1));
        if changes {
            // Others are home of some of it from now on, and this shard of what others were.
            self.tell_reset(&KeyRange::prefix(prefix));
        }
        if let Some(table) = self.store.find(prefix).filter(|_| changes)
            && self.base.loads.own(table).is_some_and(|data| !data.is_kept())
        {
            self.unload(LoadedId::own(table), &KeyRange::prefix(prefix));
            self.base.ask_anew(table);
        }
        if let Some(placed) = &mut self.base.placed {
            placed.placement.set_boundary(name, boundary);
        }
    }
}

impl BaseData {
    /// Whether the embedded store may hold keys of a table: it knows that there are none where there never were any, or
    /// all were removed at once.
    fn may_have_kept(&mut self, table: TableId, prefix: &[u8]) -> bool {
        self.is_kept(table) && !self.loads.persistence.holds_nothing(&KeyRange::prefix(prefix))
    }
}
