//! Whether a join may be installed, and keeping it so until it is installed on all shards.
//!
//! Where several shards have to install a join or none of them, each is asked first. What one has agreed to stays
//! possible until it is told more: keys that the join will give are refused as if it were installed
//! ([`Engine::join_prepare`]).
//!
//! # Cost
//! A write looks whether anything is prepared: a word.

use crate::engine::Engine;
use crate::report::EngineError;
use crate::shards::Placed;
use crate::views::Views;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_pattern::{Join, Mode, Pattern};

/// Most components that one pattern may have behind its table.
pub(crate) const COMPONENTS_MAX: usize = 31;

pub(crate) fn refused<T>(text: String) -> Result<T, EngineError> {
    Err(EngineError::Refused(text))
}

impl Engine {
    /// Asks whether [`Engine::join_add`] would install the join. If so, it will, whatever clients write in between: no key
    /// that the join gives can be written, and no stream begun in its tables, until it is installed, or given up with
    /// [`Engine::join_unprepare`]. Nothing else changes; with `replace`, the join that is there goes on. Between the two
    /// no other join may be installed or dropped here, no function dropped, no boundary changed and no partition moved.
    ///
    /// # Errors
    /// As for [`Engine::join_add`]; or another join is prepared.
    pub fn join_prepare(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<(), EngineError> {
        if let Some((other, _)) = &self.views.catalog.prepared {
            return refused(format!("join '{other}' is being installed; try again when it is"));
        }
        self.views.check_new_name(name)?;
        let (join, _) = self.accept(name, text, replace)?;
        self.views.catalog.prepared = Some((String::from(name), join));
        Ok(())
    }

    /// Ends what [`Engine::join_prepare`] began for this name: the join is not installed.
    pub fn join_unprepare(&mut self, name: &str) {
        self.views.catalog.prepared.take_if(|(prepared, _)| prepared == name);
    }

    /// Whether [`Engine::join_prepare`] has agreed to a join of this name that is not installed yet.
    #[must_use]
    pub fn is_join_prepared(&self, name: &str) -> bool {
        self.views.catalog.prepared.as_ref().is_some_and(|(prepared, _)| prepared == name)
    }

    /// Whether the join may be installed, and in place of which.
    pub(crate) fn accept(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<(Join, Option<u32>), EngineError> {
        // What is no key any more is in nobody's way.
        self.remove_all_dead();
        let old = self.views.catalog.find(name);
        self.check_place(name, old.is_some(), replace)?;
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
        self.check_depth(&join, old)?;
        self.check_modes(&join, old)?;
        self.check_homes(&join, old)?;
        self.check_base_keys(&join.output)?;
        self.check_streams(&join)?;
        self.calls.check_function(&join)?;
        self.unspill_for(&join)?;
        Ok((join, old))
    }

    /// Whether there is a place for a join of this name.
    fn check_place(&self, name: &str, exists: bool, replace: bool) -> Result<(), EngineError> {
        if exists && !replace {
            return refused(format!("join '{name}' exists already; add REPLACE to replace it"));
        }
        let max = self.settings.limits.joins_max;
        if !exists && self.views.catalog.len() >= max {
            return refused(format!("at most {max} joins can be installed (joins-max)"));
        }
        Ok(())
    }

    /// The joins, but for `old`, that may read what a pattern describes.
    fn readers_but(&self, output: &Pattern, old: Option<u32>) -> Vec<u32> {
        let table = self.store.table_of(&output.range_of_all().first);
        let mut joins =
            table.map_or(Vec::new(), |table| self.views.catalog.readers_of(table, output));
        joins.retain(|&id| Some(id) != old);
        joins
    }

    /// Refuses a join that would read its own output, directly or through others (C1).
    fn check_cycle(&self, name: &str, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        let reads =
            |output: &Pattern| join.sources.iter().any(|source| source.pattern.may_collide(output));
        if reads(&join.output) {
            return refused(format!("join '{name}' would read its own output: {name} -> {name}"));
        }
        // Readers of what the new join gives, directly or through others, each with the one before it.
        let mut found: Vec<(u32, Option<usize>)> = Vec::new();
        let mut seen = BTreeSet::new();
        let first = self.readers_but(&join.output, old);
        found.extend(first.into_iter().filter(|&id| seen.insert(id)).map(|id| (id, None)));
        let mut next = 0;
        while let Some(&(id, _)) = found.get(next) {
            let output = &self.views.catalog.join(id).plan.join.output;
            if reads(output) {
                let mut names = Vec::new();
                let mut at = Some(next);
                while let Some(&(id, before)) = at.and_then(|at| found.get(at)) {
                    names.push(self.views.catalog.join(id).name.as_str());
                    at = before;
                }
                names.reverse();
                return refused(format!(
                    "join '{name}' would read its own output: {name} -> {} -> {name}",
                    names.join(" -> ")
                ));
            }
            let readers = self.readers_but(output, old);
            let new = readers.into_iter().filter(|&id| seen.insert(id));
            found.extend(new.map(|id| (id, Some(next))));
            next += 1;
        }
        Ok(())
    }

    /// Refuses a join by which more joins would read one another's outputs in a row than may be: what is read or written
    /// at one end is computed through all of them.
    fn check_depth(&self, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        let most = self.settings.limits.join_depth_max;
        let writers_of = |pattern: &Pattern| {
            let table = self.store.table_of(&pattern.range_of_all().first);
            table.map_or(Vec::new(), |table| self.views.catalog.writers_of(table, pattern))
        };
        let upstream = join.sources.iter().flat_map(|source| writers_of(&source.pattern));
        let upstream = upstream.filter(|&id| Some(id) != old);
        let depth = 1 + upstream.map(|id| self.views.catalog.join(id).depth).max().unwrap_or(0);
        let readers = self.readers_but(&join.output, old);
        let deeper = self.views.catalog.deepened(readers, depth);
        let deepest = deeper.into_values().max().unwrap_or(depth).max(depth);
        if deepest > most {
            return refused(format!(
                "{deepest} joins would read one another's outputs in a row, and at most {most} may (join-depth-max)"
            ));
        }
        Ok(())
    }

    /// Refuses a push join over outputs that are not kept up to date (C2).
    fn check_modes(&self, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        if !join.mode.is_maintained() {
            let readers = self.readers_but(&join.output, old);
            let mut readers = readers.into_iter().map(|id| self.views.catalog.join(id));
            return match readers.find(|reader| reader.mode().is_maintained()) {
                None => Ok(()),
                Some(reader) => refused(format!(
                    "{} join '{}' reads this output, so the join cannot be {}",
                    mode_name(reader.mode()),
                    reader.name,
                    mode_name(join.mode)
                )),
            };
        }
        for source in &join.sources {
            let pattern = &source.pattern;
            let Some(table) = self.store.table_of(&pattern.range_of_all().first) else { continue };
            for id in self.views.catalog.writers_of(table, pattern) {
                let writer = self.views.catalog.join(id);
                if Some(id) != old && !writer.mode().is_maintained() {
                    return refused(format!(
                        "{} join cannot read the output of {} join '{}'; make it pull or snapshot",
                        if join.mode == Mode::Auto { "an auto" } else { "a push" },
                        mode_name(writer.mode()),
                        writer.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Refuses a join that would have to read elsewhere what nobody keeps up to date: across shards, outputs of pull and
    /// snapshot joins are read at their home alone.
    fn check_homes(&self, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        let Some(placed) = &self.base.placed else { return Ok(()) };
        let placing = placed.placement.boundary(&join.output.table);
        if let Some(keep) = join.keep.filter(|keep| keep.components < placing) {
            let shown = |components: usize| match components {
                0 => String::from("the table's name alone"),
                1 => String::from("the first component"),
                more => format!("the first {more} components"),
            };
            return refused(format!(
                "with several shards, keys of table '{}' are at home where {} of each say, and the join keeps {} of all keys that share {}: these would \
                 be at several shards",
                String::from_utf8_lossy(&join.output.table),
                shown(placing),
                keep.most,
                shown(keep.components)
            ));
        }
        let reads_away = |reader: &Join, lazy: &Join| {
            !lazy.mode.is_maintained()
                && reader.sources.iter().any(|source| {
                    source.pattern.range_of_all().overlaps(&lazy.output.range_of_all())
                        && !placed.is_aligned(&reader.output, &source.pattern)
                })
        };
        let mut about: Vec<u32> = Vec::new();
        for source in &join.sources {
            if !placed.is_aligned(&join.output, &source.pattern) {
                let range = source.pattern.range_of_all();
                let table = self.store.table_of(&range.first);
                about.extend(
                    table.into_iter().flat_map(|it| self.views.catalog.writers_within(it, &range)),
                );
            }
        }
        if !join.mode.is_maintained() {
            let range = join.output.range_of_all();
            let table = self.store.table_of(&range.first);
            about.extend(
                table.into_iter().flat_map(|it| self.views.catalog.readers_within(it, &range)),
            );
        }
        about.sort_unstable();
        about.dedup();
        for id in about.into_iter().filter(|&id| Some(id) != old) {
            let other = self.views.catalog.join(id);
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
    ///
    /// So a join waits for all joins that write a table of which it reads keys elsewhere, and for those whose keys it reads
    /// here. There was no circle before the join: one that there is now leads through it.
    fn check_tables(
        &self,
        placed: &Placed,
        join: &Join,
        old: Option<u32>,
    ) -> Result<(), EngineError> {
        let output = self.store.table_of(&join.output.range_of_all().first);
        let role = output.and_then(|table| self.views.catalog.role(table));
        let is_read = role.is_some_and(|role| !role.readers.is_empty());
        let mut seen = BTreeSet::new();
        let mut tables = BTreeSet::new();
        let mut open = Vec::new();
        let mut next = Some(join);
        while let Some(reader) = next {
            for source in &reader.sources {
                let pattern = &source.pattern;
                let is_away = !placed.is_aligned(&reader.output, pattern);
                if pattern.may_collide(&join.output)
                    || (is_away && pattern.table == join.output.table)
                {
                    return refused(format!(
                        "with several shards, joins that write table '{}' cannot read it of other shards, directly or through other joins",
                        String::from_utf8_lossy(&pattern.table)
                    ));
                }
                let table = self.store.table_of(&pattern.range_of_all().first);
                let Some(table) = table.filter(|_| is_read) else { continue };
                let writers = if !is_away {
                    self.views.catalog.writers_of(table, pattern)
                } else if tables.insert(&*pattern.table) {
                    let all = self.views.catalog.role(table).map_or(&[][..], |role| &role.writers);
                    let writes = |id: &u32| {
                        self.views.catalog.join(*id).plan.join.output.table == pattern.table
                    };
                    self.views.catalog.compared.update(|compared| compared + all.len() as u64);
                    all.iter().copied().filter(writes).collect()
                } else {
                    continue;
                };
                let new = writers.into_iter().filter(|&id| Some(id) != old && seen.insert(id));
                open.extend(new);
            }
            next = open.pop().map(|id| &self.views.catalog.join(id).plan.join);
        }
        Ok(())
    }

    /// Refuses a join whose outputs clients have written already.
    fn check_base_keys(&mut self, output: &Pattern) -> Result<(), EngineError> {
        let found = self.base_keys_in_the_way(output);
        if found > 0 {
            return Err(EngineError::KeysInTheWay(found));
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
}

impl Views {
    /// Refuses keys of joins that are about to be installed.
    #[inline]
    pub(crate) fn check_prepared(&self, key: &[u8]) -> Result<(), EngineError> {
        match self.catalog.prepared.as_ref().filter(|(_, join)| join.output.matches(key)) {
            None => Ok(()),
            Some((name, _)) => Err(EngineError::Joined { join: name.clone() }),
        }
    }

    /// Refuses streams in tables of joins that are about to be installed.
    pub(crate) fn check_prepared_stream(&self, key: &[u8]) -> Result<(), EngineError> {
        if let Some((name, join)) = &self.catalog.prepared {
            let patterns = join.sources.iter().map(|source| &source.pattern).chain([&join.output]);
            for pattern in patterns {
                if headwater_base::table_of(key).unwrap_or(b"") == pattern.table {
                    let table = String::from_utf8_lossy(&pattern.table);
                    return refused(format!(
                        "table '{table}' cannot hold streams: join '{name}' is about it"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether clients may give a join this name. One that is there, because an earlier version took its name, keeps it.
    pub(crate) fn check_new_name(&self, name: &str) -> Result<(), EngineError> {
        if self.catalog.find(name).is_some() {
            return Ok(());
        }
        headwater_base::text::check_name("join", name).map_err(EngineError::Refused)
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Push => "push",
        Mode::Auto => "auto",
        Mode::Pull => "pull",
        Mode::Snapshot { .. } => "snapshot",
    }
}
