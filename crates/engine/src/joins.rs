//! Installing and dropping joins, and declaring tables.

use crate::catalog::{Installed, Plan};
use crate::engine::Engine;
use crate::exec::Missing;
use crate::report::{EngineError, JoinCounters, JoinInstalled, JoinReport, Stop, TableOptions};
use crate::shards::Placed;
use crate::sources::{KEPT, Sourced};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use hashbrown::HashMap;
use headwater_base::KeyRange;
use headwater_base::hash::KeyHashBuilder;
use headwater_base::key::SEPARATOR;
use headwater_pattern::{Join, Mode, Pattern};
use headwater_store::{Store, TableId};

/// Most components that one pattern may have behind its table.
const COMPONENTS_MAX: usize = 31;

fn refused<T>(text: String) -> Result<T, EngineError> {
    Err(EngineError::Refused(text))
}

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
        let old = self.catalog.find(name);
        self.check_name(name, old.is_some(), replace)?;
        let limits = &self.settings.limits;
        let join = Join::parse(text, limits).map_err(|e| EngineError::Refused(e.to_string()))?;
        let patterns = join.sources.iter().map(|source| &source.pattern).chain([&join.output]);
        if let Some(long) = patterns.into_iter().find(|p| p.components.len() > COMPONENTS_MAX) {
            return refused(format!(
                "a pattern has at most {COMPONENTS_MAX} components; '{}' has {}",
                join.show(long),
                long.components.len()
            ));
        }
        self.check_cycle(name, &join, old)?;
        self.check_modes(&join, old)?;
        self.check_homes(&join, old)?;
        self.check_base_keys(&join.output, old)?;
        self.check_streams(&join)?;
        self.check_function(&join)?;
        self.unspill_for(&join)?;
        if let Some(old) = old {
            self.drop_join(old);
        }
        let warnings = self.warnings(&join);
        let canonical = join.to_string();
        self.install(name, join, warnings.clone());
        Ok(JoinInstalled { canonical, warnings })
    }

    fn check_name(&self, name: &str, exists: bool, replace: bool) -> Result<(), EngineError> {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return refused(format!(
                "a join's name has 1 to 64 bytes, letters, digits and _ - . : only; got '{name}'"
            ));
        }
        if exists && !replace {
            return refused(format!("join '{name}' exists already; add REPLACE to replace it"));
        }
        let max = self.settings.limits.joins_max;
        if !exists && self.catalog.iter().count() >= max {
            return refused(format!("at most {max} joins can be installed (joins-max)"));
        }
        Ok(())
    }

    /// Refuses a join that would read its own output, directly or through others (C1).
    fn check_cycle(&self, name: &str, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        let reads = |reader: &Join, output: &Pattern| {
            reader.sources.iter().any(|source| source.pattern.may_collide(output))
        };
        // Each path leads from what the new join gives to a reader of it.
        let mut paths: Vec<Vec<u32>> = Vec::new();
        if reads(join, &join.output) {
            return refused(format!("join '{name}' would read its own output: {name} -> {name}"));
        }
        for (id, other) in self.catalog.iter() {
            if Some(id) != old && reads(&other.plan.join, &join.output) {
                paths.push(alloc::vec![id]);
            }
        }
        let mut seen: Vec<u32> = paths.iter().map(|path| path[0]).collect();
        let mut next = 0;
        while let Some(path) = paths.get(next).cloned() {
            next += 1;
            let last = self.catalog.join(path[path.len() - 1]);
            if reads(join, &last.plan.join.output) {
                let names: Vec<_> =
                    path.iter().map(|&id| self.catalog.join(id).name.as_str()).collect();
                return refused(format!(
                    "join '{name}' would read its own output: {name} -> {} -> {name}",
                    names.join(" -> ")
                ));
            }
            for (id, other) in self.catalog.iter() {
                let feeds = reads(&other.plan.join, &last.plan.join.output);
                if Some(id) != old && !seen.contains(&id) && feeds {
                    seen.push(id);
                    let mut longer = path.clone();
                    longer.push(id);
                    paths.push(longer);
                }
            }
        }
        Ok(())
    }

    /// Refuses a push join over outputs that are not kept up to date (C2).
    fn check_modes(&self, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        for (id, other) in self.catalog.iter() {
            if Some(id) == old {
                continue;
            }
            let theirs = &other.plan.join;
            let reads = |reader: &Join, output: &Pattern| {
                reader.sources.iter().any(|source| source.pattern.may_collide(output))
            };
            if join.mode == Mode::Push && theirs.mode != Mode::Push && reads(join, &theirs.output) {
                return refused(format!(
                    "a push join cannot read the output of {} join '{}'; make it pull or snapshot",
                    mode_name(theirs.mode),
                    other.name
                ));
            }
            if join.mode != Mode::Push && theirs.mode == Mode::Push && reads(theirs, &join.output) {
                return refused(format!(
                    "push join '{}' reads this output, so the join cannot be {}",
                    other.name,
                    mode_name(join.mode)
                ));
            }
        }
        Ok(())
    }

    /// Refuses a join that would have to read elsewhere what nobody keeps up to date: across shards, outputs of pull and
    /// snapshot joins are read at their home alone.
    fn check_homes(&self, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        let Some(placed) = &self.placed else { return Ok(()) };
        let others: Vec<_> = self.catalog.iter().filter(|(id, _)| Some(*id) != old).collect();
        let reads_away = |reader: &Join, lazy: &Join| {
            lazy.mode != Mode::Push
                && reader.sources.iter().any(|source| {
                    source.pattern.range_of_all().overlaps(&lazy.output.range_of_all())
                        && !placed.is_aligned(&reader.output, &source.pattern)
                })
        };
        for (_, other) in others {
            let theirs = &other.plan.join;
            if reads_away(join, theirs) || reads_away(theirs, join) {
                return refused(format!(
                    "with several shards, the output of a pull or snapshot join can be read by joins whose outputs lie \
                     in the same groups alone: see join '{}'",
                    other.name
                ));
            }
        }
        self.check_tables(placed, join, old)
    }

    /// Refuses a join by which shards could wait for one another's parts of tables in a circle. A home
    /// answers with its part of a table when all joins that write it there are current.
    fn check_tables(
        &self,
        placed: &Placed,
        join: &Join,
        old: Option<u32>,
    ) -> Result<(), EngineError> {
        let others = self.catalog.iter().filter(|(id, _)| Some(*id) != old);
        let joins: Vec<&Join> =
            others.map(|(_, other)| &other.plan.join).chain(core::iter::once(join)).collect();
        // The tables that each join reads of other shards, by itself or for what feeds it.
        let mut reads: Vec<BTreeSet<&[u8]>> = joins
            .iter()
            .map(|join| {
                let away = join
                    .sources
                    .iter()
                    .filter(|source| !placed.is_aligned(&join.output, &source.pattern));
                away.map(|source| source.pattern.table.as_slice()).collect()
            })
            .collect();
        let feeds: Vec<Vec<usize>> = joins
            .iter()
            .map(|join| {
                let fed = |other: &usize| {
                    join.sources.iter().any(|source| {
                        // By its table where it is read elsewhere, by its keys where it is here.
                        let output = &joins[*other].output;
                        source.pattern.may_collide(output)
                            || (source.pattern.table == output.table
                                && !placed.is_aligned(&join.output, &source.pattern))
                    })
                };
                (0..joins.len()).filter(fed).collect()
            })
            .collect();
        for _ in 0..joins.len() {
            for at in 0..joins.len() {
                for &other in &feeds[at] {
                    let more = reads[other].clone();
                    reads[at].extend(more);
                }
            }
        }
        for (join, reads) in joins.iter().zip(&reads) {
            if reads.contains(join.output.table.as_slice()) {
                return refused(format!(
                    "with several shards, joins that write table '{}' cannot read it of other shards, directly or through other joins",
                    String::from_utf8_lossy(&join.output.table)
                ));
            }
        }
        Ok(())
    }

    /// Refuses a join whose outputs clients have written already.
    fn check_base_keys(&mut self, output: &Pattern, old: Option<u32>) -> Result<(), EngineError> {
        let all = output.range_of_all();
        let Some(table) = self.store.table_of(&all.first) else { return Ok(()) };
        let outputs: Vec<_> = match self.catalog.role(table) {
            Some(role) => {
                role.writers.iter().map(|&id| (id, self.catalog.join(id).plan.clone())).collect()
            }
            None => Vec::new(),
        };
        debug_assert!(old.is_none_or(|old| self.catalog.iter().any(|(id, _)| id == old)));
        let mut found = 0u64;
        let placed = self.placed.take();
        self.scan_table(table, &all, &mut |key, _| {
            if output.matches(key)
                && placed.as_ref().is_none_or(|placed| placed.owns(key))
                && !outputs.iter().any(|(_, plan)| plan.join.output.matches(key))
            {
                found += 1;
            }
        });
        self.placed = placed;
        if found > 0 {
            return refused(format!(
                "{found} existing {} the join's output; remove {} first",
                if found == 1 { "key matches" } else { "keys match" },
                if found == 1 { "it" } else { "them" }
            ));
        }
        Ok(())
    }

    /// Refuses a join about a table that holds streams.
    fn check_streams(&mut self, join: &Join) -> Result<(), EngineError> {
        let patterns = join.sources.iter().map(|source| &source.pattern).chain([&join.output]);
        for pattern in patterns {
            let Some(table) = self.store.table_of(&pattern.range_of_all().first) else { continue };
            if self.has_streams(table) {
                let shown = join.show(pattern);
                return refused(format!("the table of '{shown}' holds streams; remove them first"));
            }
        }
        Ok(())
    }

    fn warnings(&self, join: &Join) -> Vec<String> {
        let mut warnings = Vec::new();
        if join.is_ambiguous() {
            warnings.push(String::from(
                "several source keys can give one output key, whose value is then that of the \
                 greatest value-source key: the output lacks a slot of its sources",
            ));
        }
        for (_, other) in self.catalog.iter() {
            if other.plan.join.output.may_collide(&join.output) {
                warnings.push(format!(
                    "join '{}' may give the same keys; this join's values will be seen",
                    other.name
                ));
            }
        }
        warnings
    }

    fn install(&mut self, name: &str, join: Join, warnings: Vec<String>) {
        let output_table = self.pinned_table(&join.output);
        let tables: Vec<_> =
            join.sources.iter().map(|source| source.pattern.clone()).collect::<Vec<_>>();
        let tables: Vec<_> = tables.iter().map(|pattern| self.pinned_table(pattern)).collect();
        let kept = self.keepers();
        let sources = join.sources.len();
        let canonical = join.to_string();
        let plan = Rc::new(Plan::new(join, output_table, &tables));
        self.catalog.installs += 1;
        let seed = self.settings.hash_seed;
        let id = self.catalog.add(Installed {
            name: String::from(name),
            canonical,
            plan,
            warnings,
            layer: output_table,
            installed: self.catalog.installs,
            cover: BTreeMap::new(),
            folds: HashMap::with_hasher(KeyHashBuilder::new(seed)),
            depths: alloc::vec![0; sources],
            upstream: alloc::vec![Vec::new(); sources],
            counters: JoinCounters::default(),
        });
        self.catalog.relate();
        // Readers of the table have yet to learn of the keys that the join gives.
        self.reset_join(id);
        self.forget_elsewhere(output_table);
        self.settle_layers();
        self.settle_cells(&kept);
    }

    /// The table of a pattern's keys, kept while the pattern is in use.
    fn pinned_table(&mut self, pattern: &Pattern) -> TableId {
        let mut key = pattern.table.clone();
        let table = if pattern.components.is_empty() {
            Store::<crate::status::GroupNote>::UNNAMED
        } else {
            key.push(SEPARATOR);
            self.store.table_for(&key)
        };
        self.store.pin(table);
        table
    }

    /// Gives joins that may collide a layer each, and takes it from those that no longer do
    /// (C3).
    fn settle_layers(&mut self) {
        for id in self.catalog.ids() {
            let installed = self.catalog.join(id);
            let hide = self.catalog.collides(id) && installed.mode() != Mode::Pull;
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
            self.catalog.join_mut(id).layer = layer;
        }
        self.catalog.relate();
    }

    /// Drops a join and what it materialized.
    ///
    /// # Errors
    /// No join has this name.
    pub fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        let id = self.catalog.find(name);
        let id = id.ok_or_else(|| EngineError::NoSuchJoin(String::from(name)))?;
        self.drop_join(id);
        Ok(())
    }

    fn drop_join(&mut self, id: u32) {
        let kept = self.keepers();
        self.forget_hidden(id);
        self.reset_join(id);
        self.forget_elsewhere(self.catalog.join(id).plan.output_table);
        let installed = self.catalog.take(id);
        if installed.is_layered() {
            self.store.drop_layer(installed.layer);
        }
        self.catalog.relate();
        self.settle_layers();
        self.settle_cells(&kept);
        self.forget_unread();
        let plan = &installed.plan;
        for &table in plan.source_tables.iter().chain([&plan.output_table]) {
            self.store.unpin(table);
        }
    }

    /// How often a join was installed.
    #[must_use]
    pub fn join_installs(&self) -> u64 {
        self.catalog.installs
    }

    /// How many joins read one another's outputs in a row, at most.
    #[must_use]
    pub fn join_depth(&self) -> u32 {
        let ids = self.catalog.ids();
        let mut depths: BTreeMap<u32, u32> = BTreeMap::new();
        // No join reads its own output (C1), so each round settles those whose sources are.
        for _ in &ids {
            for &id in &ids {
                let above = self.catalog.join(id).upstream.iter().flatten();
                let most = above.map(|up| depths.get(up).copied().unwrap_or(1)).max();
                depths.insert(id, 1 + most.unwrap_or(0));
            }
        }
        depths.values().copied().max().unwrap_or(1)
    }

    /// The installed joins, in the order of their installation.
    #[must_use]
    pub fn joins(&self) -> Vec<JoinReport> {
        let mut joins: Vec<_> = self.catalog.iter().map(|(_, join)| join).collect();
        joins.sort_by_key(|join| join.installed);
        joins.into_iter().map(|join| self.report_join(join)).collect()
    }

    fn report_join(&self, join: &Installed) -> JoinReport {
        let statuses = || join.cover.values().map(|&id| self.statuses.get(id));
        JoinReport {
            name: join.name.clone(),
            canonical: join.canonical.clone(),
            warnings: join.warnings.clone(),
            counters: alloc::vec![
                ("status_ranges", join.cover.len() as u64),
                (
                    "status_ranges_clean",
                    statuses().filter(|status| status.is_clean()).count() as u64
                ),
                ("status_range_bytes", statuses().map(|status| status.bytes() as u64).sum()),
                ("updater_targets", statuses().map(|status| status.targets.len() as u64).sum()),
                ("fold_states", join.folds.len() as u64),
                ("fills", join.counters.fills),
                ("evictions", join.counters.evictions),
                ("rebuilds", join.counters.rebuilds),
            ],
        }
    }

    /// Declares or changes a table (`name` without a `|`; empty: the table named by nothing,
    /// whose keys start with `|`). Regroups its keys where the boundary changes.
    ///
    /// # Errors
    /// The name or an option cannot be accepted.
    pub fn table_set(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        let shown = String::from_utf8_lossy(name);
        let prefix = self.table_prefix(name)?;
        if let Some(boundary) = options.boundary
            && boundary > COMPONENTS_MAX
        {
            return refused(format!(
                "a boundary is 0 to {COMPONENTS_MAX} components, not {boundary}"
            ));
        }
        let existing = self.store.find(&prefix);
        if let Some(keep) = options.keep {
            self.check_keep(&shown, existing, keep)?;
        }
        self.check_source_of(&prefix, options)?;
        if let Some(boundary) = options.boundary {
            self.check_placing(&prefix, boundary)?;
            self.place_by(&prefix, boundary);
        }
        let table = self.store.table_for(&prefix);
        if !self.catalog.role_for(table).declared {
            self.store.pin(table);
            self.catalog.role_for(table).declared = true;
        }
        if let Some(keep) = options.keep {
            self.catalog.role_for(table).unkept = !keep;
            if keep {
                self.keep_table(table);
            }
        }
        if options.evict.is_some() {
            self.catalog.role_for(table).evict = options.evict;
        }
        if let Some(source) = &options.source {
            if self.sourced(table).is_none() {
                self.tell_reset(&KeyRange::prefix(&prefix));
            }
            let role = self.catalog.role_for(table);
            role.sourced.get_or_insert_with(|| Box::new(Sourced::new(source.clone())));
        }
        if let Some(boundary) = options.boundary
            && boundary != self.store.table(table).boundary()
        {
            let writers = self.catalog.role_for(table).writers.clone();
            for &id in &writers {
                self.reset_join(id);
            }
            for layer in writers.into_iter().map(|id| self.catalog.join(id).layer).chain([table]) {
                let (table, pool) = self.store.table_mut(layer);
                table.set_boundary(pool, boundary);
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Waits until memory knows all base keys that a join's outputs could be, where an embedded store
    /// keeps them: [`Engine::join_add`] refuses joins that match any. A text that is no join is
    /// left to that.
    ///
    /// # Errors
    /// [`Stop::Wait`] where they must be loaded first.
    pub fn know_outputs(&mut self, text: &str) -> Result<(), Stop> {
        let Ok(join) = Join::parse(text, &self.settings.limits) else { return Ok(()) };
        let range = join.output.range_of_all();
        let Some(table) = self.store.table_of(&range.first) else { return Ok(()) };
        if !self.is_kept(table) {
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
        Ok([name, &[SEPARATOR]].concat())
    }

    /// Whether a table may have the source that is named.
    pub(crate) fn check_source_of(
        &self,
        prefix: &[u8],
        options: &TableOptions,
    ) -> Result<(), EngineError> {
        let Some(source) = &options.source else { return Ok(()) };
        let shown = String::from_utf8_lossy(&prefix[..prefix.len() - 1]);
        if options.keep == Some(true) || source == KEPT {
            return refused(format!(
                "table '{shown}' cannot have a source and be kept by '{KEPT}' as well"
            ));
        }
        let existing = self.store.find(prefix);
        let held = existing.and_then(|id| self.sourced(id));
        if held.is_some_and(|held| held.name != *source) {
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
        if keep && !self.has_keep() {
            return refused(String::from(
                "there is no store on disk: start the server with --data",
            ));
        }
        let is_kept = existing.is_some_and(|id| self.is_kept(id));
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

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Push => "push",
        Mode::Pull => "pull",
        Mode::Snapshot { .. } => "snapshot",
    }
}
