//! Installing and dropping joins, and declaring tables.

use crate::accept::{COMPONENTS_MAX, refused};
use crate::catalog::{Fold, Installed, Plan};
use crate::choose::Choices;
use crate::cover::Cover;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::report::{EngineError, JoinCounters, JoinInstalled, JoinReport, Stop, TableOptions};
use crate::sources::KEPT;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use hashbrown::HashMap;
use headwater_base::hash::KeyHashBuilder;
use headwater_base::key::SEPARATOR;
use headwater_pattern::{Join, Mode, Pattern};
use headwater_store::{Store, TableId};

/// What dropping a range costs beside its rows, in rows.
pub(crate) const RANGE_ROWS: usize = 4;

/// How many slices may drop what a join has materialized while others read it anew.
const VACATED_MAX: u32 = 100_000;
/// How many of the joins that may give the same keys a warning names.
const RIVALS_NAMED: usize = 8;

impl Engine {
    /// Installs a join under `name`; with `replace`, in place of one of that name.
    ///
    /// # Errors
    /// The text is no join, or the join cannot be accepted; the error says why and where.
    pub fn join_add(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        let (join, old) = self.accept(name, text, replace)?;
        self.join_unprepare(name);
        if let Some(old) = old {
            self.drop_join(old);
        }
        let warnings = self.warnings(&join);
        let canonical = join.to_string();
        self.install(name, join, warnings.clone());
        Ok(JoinInstalled { canonical, warnings })
    }

    fn warnings(&self, join: &Join) -> Vec<String> {
        let mut warnings = Vec::new();
        if join.is_ambiguous() {
            warnings.push(String::from(
                "several source keys can give one output key, whose value is then that of the \
                 greatest value-source key: the output lacks a slot of its sources",
            ));
        }
        for (slot, other) in join.likely_misspelt() {
            warnings.push(format!(
                "slot <{slot}> occurs once, so anything matches it; did you mean <{other}>?"
            ));
        }
        for (at, source) in join.sources.iter().enumerate() {
            let filter = source.lens.as_ref().and_then(|lens| lens.filter.as_ref());
            if filter.is_some_and(|filter| filter.is_contradiction(&source.pattern)) {
                let number = at + 1;
                warnings.push(format!(
                    "nothing can fulfil the conditions of source {number}, so the join gives nothing"
                ));
            }
        }
        let table = self.store.table_of(&join.output.range_of_all().first);
        let others = table.map_or(Vec::new(), |it| self.views.catalog.writers_of(it, &join.output));
        for &other in others.iter().take(RIVALS_NAMED) {
            warnings.push(format!(
                "join '{}' may give the same keys; this join's values will be seen",
                self.views.catalog.join(other).name
            ));
        }
        if let Some(more) = others.len().checked_sub(RIVALS_NAMED).filter(|&more| more > 0) {
            warnings.push(format!("so may {more} more; this join's values will be seen"));
        }
        warnings
    }

    fn install(&mut self, name: &str, join: Join, warnings: Vec<String>) {
        // From now on others than those who read them may be concerned by outputs.
        self.feed_all();
        let output_table = self.pinned_table(&join.output);
        let tables: Vec<_> =
            join.sources.iter().map(|source| source.pattern.clone()).collect::<Vec<_>>();
        let tables: Vec<_> = tables.iter().map(|pattern| self.pinned_table(pattern)).collect();
        let boundaries = self.infer_boundaries(&join, output_table, &tables);
        let sources = join.sources.len();
        let canonical = join.to_string();
        let choices = Choices::of(join.mode);
        let plan = Rc::new(Plan::new(join, output_table, &tables));
        self.views.catalog.installs += 1;
        let secret = self.settings.secret;
        let id = self.views.catalog.add(Installed {
            name: String::from(name),
            canonical,
            plan,
            warnings,
            boundaries,
            vacated: 0,
            gatherings: 0,
            layer: output_table,
            installed: self.views.catalog.installs,
            cover: Cover::default(),
            frontiers: Vec::new(),
            part_ends: Vec::new(),
            kept: BTreeMap::new(),
            folds: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            depths: alloc::vec![0; sources],
            upstream: alloc::vec![Vec::new(); sources],
            rivals: 0,
            depth: 1,
            choices,
            counters: JoinCounters::default(),
        });
        self.views.catalog.relate(id);
        let about = self.views.cells_about(id);
        // As it was before the join came, which gives nothing yet.
        let kept = self.views.keepers_before(id, &about);
        // Readers of the table have yet to learn of the keys that the join gives.
        self.reset_join(id);
        self.forget_elsewhere(output_table);
        self.settle_layers(about.iter().copied());
        self.settle_cells(&about, &kept);
    }

    /// The table of a pattern's keys, kept while the pattern is in use.
    fn pinned_table(&mut self, pattern: &Pattern) -> TableId {
        let mut key = pattern.table.clone();
        let table = if pattern.components.is_empty() {
            Store::<crate::group_note::GroupNote>::UNNAMED
        } else {
            key.push(SEPARATOR);
            self.store.table_for(&key)
        };
        self.store.pin(table);
        table
    }

    /// Gives those of some joins that may collide with others a layer each, and takes it from those that no
    /// longer do (C3).
    fn settle_layers(&mut self, joins: impl Iterator<Item = u32>) {
        for id in joins {
            let installed = self.views.catalog.join(id);
            let hide = self.views.catalog.collides(id) && installed.mode() != Mode::Pull;
            if hide == installed.is_layered() {
                continue;
            }
            let (public, old) = (installed.plan.output_table, installed.layer);
            self.reset_join(id);
            let layer = if hide {
                let table = self.store.table(public);
                let (prefix, boundary) = (table.prefix().to_vec(), table.boundary());
                self.store.create_layer(&prefix, boundary)
            } else {
                self.store.drop_layer(old);
                public
            };
            self.views.catalog.join_mut(id).layer = layer;
            self.views.catalog.count_merged(public, hide);
        }
    }

    /// Drops a join and what it materialized.
    ///
    /// # Errors
    /// No join has this name.
    pub fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        let id = self.views.catalog.find(name);
        let id = id.ok_or_else(|| EngineError::NoSuchJoin(String::from(name)))?;
        self.drop_join(id);
        Ok(())
    }

    /// Whether [`Engine::join_drop`] would be done.
    ///
    /// # Errors
    /// [`EngineError::NoSuchJoin`].
    pub fn has_join(&self, name: &str) -> Result<(), EngineError> {
        let missing = || EngineError::NoSuchJoin(String::from(name));
        self.views.catalog.find(name).map(|_| ()).ok_or_else(missing)
    }

    /// Does, in slices, most of the work of [`Engine::join_drop`], if there is such a join.
    ///
    /// # Errors
    /// [`Stop::Wait`] where the slice is over.
    pub fn join_drop_ahead(&mut self, name: &str) -> Result<(), Stop> {
        self.feed_all_or_wait()?;
        self.vacated_ahead(name).map_or(Ok(()), |id| self.vacate(id))
    }

    /// Does, in slices, most of the work of an [`Engine::join_add`] that replaces a join.
    ///
    /// # Errors
    /// [`Stop::Wait`] where the slice is over; as for [`Engine::join_add`].
    pub(crate) fn join_replace_ahead(&mut self, name: &str, text: &str) -> Result<(), Stop> {
        let Some(old) = self.vacated_ahead(name) else { return Ok(()) };
        // What would be refused drops nothing. To ask takes time where there are many joins, so later slices do not.
        if self.views.catalog.join(old).vacated == 0 {
            self.accept(name, text, true)?;
        }
        self.vacate(old)
    }

    /// The join of this name, if what it and its readers have materialized is to go before it does: not where all is
    /// one step anyway.
    fn vacated_ahead(&self, name: &str) -> Option<u32> {
        let is_sliced = self.reads.slices.is_active() && self.base.placed.is_none();
        let join = self.views.catalog.find(name).filter(|_| is_sliced)?;
        let mut all = self.views.catalog.downstream(join).into_iter();
        all.any(|id| !self.views.catalog.join(id).cover.is_empty()).then_some(join)
    }

    /// Drops, in slices, what a join and those that read it have materialized, so that dropping the join takes
    /// little. It changes no answer: what is read meanwhile is computed anew.
    fn vacate(&mut self, join: u32) -> Result<(), Stop> {
        for id in self.views.catalog.downstream(join) {
            self.vacate_outputs(id, join)?;
        }
        Ok(())
    }

    /// Drops, in slices, what a join has materialized, on behalf of another one; or of itself, where all keys are to go.
    pub(crate) fn vacate_outputs(&mut self, id: u32, of: u32) -> Result<(), Stop> {
        // Who follows outputs would be told of each range by itself.
        if self.is_followed(self.views.catalog.join(id).plan.output_table) {
            return Ok(());
        }
        while self.views.catalog.join(of).vacated < VACATED_MAX {
            let Some(status) = self.views.catalog.join(id).cover.from(b"") else {
                break;
            };
            if self.reads.slices.lets_others() {
                self.views.catalog.join_mut(of).vacated += 1;
                return Err(self.stop());
            }
            let rows = self.views.statuses.get(status).rows as usize;
            self.discard(status);
            self.reads.slices.keep(rows + RANGE_ROWS);
        }
        Ok(())
    }

    /// Does, in slices, most of the work of an [`Engine::table_set`] that groups keys which joins give in another way.
    ///
    /// # Errors
    /// [`Stop::Wait`] where the slice is over; as for [`Engine::table_set`].
    pub fn table_set_ahead(&mut self, name: &[u8], options: &TableOptions) -> Result<(), Stop> {
        let Some(boundary) = options.boundary else { return Ok(()) };
        if !self.reads.slices.is_active() || self.base.placed.is_some() {
            return Ok(());
        }
        // What would be refused drops nothing.
        let prefix = self.accept_table(name, options)?;
        let Some(table) = self.store.find(&prefix) else { return Ok(()) };
        let role = self.views.catalog.role(table);
        let Some(role) = role.filter(|_| boundary != self.store.table(table).boundary()) else {
            return Ok(());
        };
        for writer in role.writers.clone() {
            self.vacate(writer)?;
        }
        Ok(())
    }

    fn drop_join(&mut self, id: u32) {
        self.feed_all();
        let mut about = self.views.cells_about(id);
        about.retain(|&other| other != id);
        let mut kept = about.clone();
        kept.retain(|&other| self.views.keeps_cells(other));
        self.forget_hidden(id);
        self.reset_join(id);
        self.forget_elsewhere(self.views.catalog.join(id).plan.output_table);
        self.views.catalog.unrelate(id);
        let installed = self.views.catalog.take(id);
        let table = installed.plan.output_table;
        if installed.is_layered() {
            self.store.drop_layer(installed.layer);
            self.views.catalog.count_merged(table, false);
        }
        self.settle_layers(about.iter().copied());
        self.settle_cells(&about, &kept);
        self.forget_unread();
        let plan = &installed.plan;
        for &table in plan.source_tables.iter().chain([&plan.output_table]) {
            self.store.unpin(table);
        }
        // Who waits for what the join read needs it no more: where the join's table is a source of its source's from now on,
        // shards that went on waiting would wait for one another.
        self.base.loads.waits.wake_all();
    }

    /// How often a join was installed.
    #[must_use]
    pub fn join_installs(&self) -> u64 {
        self.views.catalog.installs
    }

    /// How many joins read one another's outputs in a row, at most.
    #[must_use]
    pub fn join_depth(&self) -> u32 {
        self.views.catalog.depths.last_key_value().map_or(1, |(&depth, _)| depth)
    }

    /// The installed joins, in the order of their installation.
    #[must_use]
    pub fn joins(&self) -> Vec<JoinReport> {
        let mut joins: Vec<_> = self.views.catalog.iter().map(|(_, join)| join).collect();
        joins.sort_by_key(|join| join.installed);
        joins.into_iter().map(|join| self.report_join(join)).collect()
    }

    /// The installed join of this name.
    #[must_use]
    pub fn join_report(&self, name: &str) -> Option<JoinReport> {
        let id = self.views.catalog.find(name)?;
        Some(self.report_join(self.views.catalog.join(id)))
    }

    fn report_join(&self, join: &Installed) -> JoinReport {
        let chosen = join.choices.as_deref();
        let ids = join.cover.ids();
        let statuses = || ids.iter().map(|&id| self.views.statuses.get(id));
        JoinReport {
            name: join.name.clone(),
            canonical: join.canonical.clone(),
            warnings: join.warnings.clone(),
            boundaries: join.boundaries.clone(),
            counters: alloc::vec![
                ("status_ranges", join.cover.len() as u64),
                (
                    "status_ranges_clean",
                    statuses().filter(|status| status.is_clean()).count() as u64
                ),
                ("status_range_bytes", statuses().map(|status| status.bytes() as u64).sum()),
                ("updater_targets", statuses().map(|status| status.targets.len() as u64).sum()),
                ("fold_states", join.folds.len() as u64),
                ("fold_values", join.folds.values().map(Fold::values).sum()),
                ("fills", join.counters.fills),
                ("evictions", join.counters.evictions),
                ("rebuilds", join.counters.rebuilds),
                ("hits", join.counters.hits),
                ("updates", join.counters.updates),
                ("maintenance_usec", join.counters.maintenance.nanos.div_ceil(1000)),
                ("reads_computed", chosen.map_or(0, |chosen| chosen.computed)),
                ("ranges_let_go", chosen.map_or(0, |chosen| chosen.let_go)),
                ("ranges_kept_again", chosen.map_or(0, |chosen| chosen.kept_again)),
                ("outputs", self.own_keys(join.layer) as u64),
            ],
        }
    }

    /// The prefix of the table, if [`Engine::table_set`] accepts this.
    pub(crate) fn accept_table(
        &mut self,
        name: &[u8],
        options: &TableOptions,
    ) -> Result<Vec<u8>, EngineError> {
        let shown = String::from_utf8_lossy(name);
        self.remove_all_dead();
        let prefix = self.table_prefix(name)?;
        if let Some(boundary) = options.boundary
            && boundary > COMPONENTS_MAX
        {
            return refused(format!(
                "a boundary is 0 to {COMPONENTS_MAX} components, not {boundary}"
            ));
        }
        if let Some(keep) = options.keep {
            self.check_keep(&shown, self.store.find(&prefix), keep)?;
        }
        self.check_source_of(&prefix, options)?;
        if let Some(boundary) = options.boundary {
            self.check_placing(&prefix, boundary)?;
        }
        Ok(prefix)
    }

    /// Has a table stay, keys or not.
    pub(crate) fn declare_table(&mut self, table: TableId) {
        let role = self.views.catalog.role_for(table);
        if !role.declared {
            role.declared = true;
            self.store.pin(table);
        }
    }

    /// Declares or changes a table (`name` without a `|`; empty: the table named by nothing,
    /// whose keys start with `|`). Regroups its keys where the boundary changes: bit by bit, where the table had none
    /// ([`Engine::go_on`]).
    ///
    /// # Errors
    /// The name or an option cannot be accepted.
    pub fn table_set(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        let prefix = self.accept_table(name, options)?;
        if let Some(boundary) = options.boundary {
            self.place_by(&prefix, boundary);
        }
        let table = self.store.table_for(&prefix);
        self.declare_table(table);
        if let Some(keep) = options.keep {
            self.views.catalog.role_for(table).keep = Some(keep);
            if keep {
                self.keep_table(table);
            }
        }
        if options.evict.is_some() {
            self.views.catalog.role_for(table).evict = options.evict;
        }
        match options.source.as_deref() {
            Some("") => self.end_source(table),
            Some(source) if self.base.loads.own(table).is_none() => {
                self.begin_source(table, source)
            }
            _ => {}
        }
        if options.boundary.is_some() {
            self.views.catalog.role_for(table).boundary_set = true;
        }
        if let Some(boundary) = options.boundary
            && boundary != self.store.table(table).boundary()
        {
            let writers = self.views.catalog.role_for(table).writers.clone();
            for &id in &writers {
                self.reset_join(id);
                self.views.catalog.join_mut(id).vacated = 0;
            }
            // What a join gives is in the table itself, or in a layer of its own.
            let layers = writers.into_iter().map(|id| self.views.catalog.join(id).layer);
            for layer in layers.filter(|&layer| layer != table).chain([table]) {
                if self.store.table(layer).boundary() == 0 {
                    self.store.group_by(layer, boundary);
                } else {
                    let (table, pool) = self.store.table_mut(layer);
                    table.set_boundary(pool, boundary);
                }
            }
            if self.reads.slices.rows().is_none() {
                self.regroup_slice();
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Waits until no key is dead, and memory knows all base keys that a join's outputs could be, where an embedded store
    /// keeps them: [`Engine::join_add`] refuses joins that match any. A text that is no join is
    /// left to that.
    ///
    /// # Errors
    /// [`Stop::Wait`] where they must be loaded first.
    pub fn know_outputs(&mut self, text: &str) -> Result<(), Stop> {
        self.settle_dead()?;
        let Ok(join) = Join::parse(text, &self.settings.limits) else { return Ok(()) };
        let range = join.output.range_of_all();
        let Some(table) = self.store.table_of(&range.first) else { return Ok(()) };
        if !self.base.is_kept(table) {
            return Ok(());
        }
        self.need(table, &range).map_err(|Missing| self.stop())
    }

    /// `name|`.
    pub(crate) fn table_prefix(&self, name: &[u8]) -> Result<Vec<u8>, EngineError> {
        if name.contains(&SEPARATOR) || name.len() >= self.settings.limits.key_bytes_max {
            let shown = String::from_utf8_lossy(name);
            return refused(format!(
                "'{shown}' cannot be a table's name: it has a '|' or is too long"
            ));
        }
        let prefix = [name, &[SEPARATOR]].concat();
        self.check_not_record(&prefix)?;
        Ok(prefix)
    }

    /// Whether a table may have the source that is named.
    pub(crate) fn check_source_of(
        &self,
        prefix: &[u8],
        options: &TableOptions,
    ) -> Result<(), EngineError> {
        let Some(source) = options.source.as_ref().filter(|source| !source.is_empty()) else {
            return Ok(());
        };
        let shown = String::from_utf8_lossy(&prefix[..prefix.len() - 1]);
        if options.keep == Some(true) || source == KEPT {
            return refused(format!(
                "table '{shown}' cannot have a source and be kept by '{KEPT}' as well"
            ));
        }
        let existing = self.store.find(prefix);
        let held = existing.and_then(|id| self.base.loads.own(id));
        if held.is_some_and(|held| held.source() != source) {
            return refused(format!("table '{shown}' has another source already"));
        }
        let keys = existing.map_or(0, |id| self.own_keys(id));
        if held.is_none() && keys > 0 {
            return refused(format!(
                "table '{shown}' holds {keys} keys; a table gets its source while it is empty"
            ));
        }
        Ok(())
    }

    /// Whether a table may begin to be kept, or to be not.
    fn check_keep(
        &self,
        shown: &str,
        existing: Option<TableId>,
        keep: bool,
    ) -> Result<(), EngineError> {
        if keep && !self.has_base_store() {
            return refused(String::from(
                "there is no store on disk: start the server with --data",
            ));
        }
        let is_kept = existing.is_some_and(|id| self.base.is_kept(id));
        let keys = existing.map_or(0, |id| self.own_keys(id));
        if keep != is_kept && keys > 0 {
            return refused(format!(
                "table '{shown}' holds {keys} keys; whether it is kept is said while it is empty"
            ));
        }
        if is_kept && !keep {
            return refused(format!("table '{shown}' is kept: remove its keys and restart"));
        }
        Ok(())
    }
}
