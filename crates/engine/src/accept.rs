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
        if let Some((other, _)) = &self.catalog.prepared {
            return refused(format!("join '{other}' is being installed; try again when it is"));
        }
        let (join, _) = self.accept(name, text, replace)?;
        self.catalog.prepared = Some((String::from(name), join));
        Ok(())
    }

    /// Ends what [`Engine::join_prepare`] began for this name: the join is not installed.
    pub fn join_unprepare(&mut self, name: &str) {
        self.catalog.prepared.take_if(|(prepared, _)| prepared == name);
    }

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

    /// Whether the join may be installed, and in place of which.
    pub(crate) fn accept(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<(Join, Option<u32>), EngineError> {
        // What is no key any more is in nobody's way.
        self.expire_all();
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
        Ok((join, old))
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
        if !exists && self.catalog.len() >= max {
            return refused(format!("at most {max} joins can be installed (joins-max)"));
        }
        Ok(())
    }

    /// The joins, but for `old`, that may read what a pattern describes.
    fn readers_but(&self, output: &Pattern, old: Option<u32>) -> Vec<u32> {
        let table = self.store.table_of(&output.range_of_all().first);
        let mut joins = table.map_or(Vec::new(), |table| self.catalog.readers_of(table, output));
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
            let output = &self.catalog.join(id).plan.join.output;
            if reads(output) {
                let mut names = Vec::new();
                let mut at = Some(next);
                while let Some(&(id, before)) = at.and_then(|at| found.get(at)) {
                    names.push(self.catalog.join(id).name.as_str());
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

    /// Refuses a push join over outputs that are not kept up to date (C2).
    fn check_modes(&self, join: &Join, old: Option<u32>) -> Result<(), EngineError> {
        if join.mode != Mode::Push {
            let readers = self.readers_but(&join.output, old);
            let mut readers = readers.into_iter().map(|id| self.catalog.join(id));
            return match readers.find(|reader| reader.mode() == Mode::Push) {
                None => Ok(()),
                Some(reader) => refused(format!(
                    "push join '{}' reads this output, so the join cannot be {}",
                    reader.name,
                    mode_name(join.mode)
                )),
            };
        }
        for source in &join.sources {
            let pattern = &source.pattern;
            let Some(table) = self.store.table_of(&pattern.range_of_all().first) else { continue };
            for id in self.catalog.writers_of(table, pattern) {
                let writer = self.catalog.join(id);
                if Some(id) != old && writer.mode() != Mode::Push {
                    return refused(format!(
                        "a push join cannot read the output of {} join '{}'; make it pull or snapshot",
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
        if reads.iter().all(BTreeSet::is_empty) {
            return Ok(());
        }
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
        let rivals = self.catalog.writers_of(table, output);
        let outputs: Vec<_> =
            rivals.into_iter().map(|id| (id, self.catalog.join(id).plan.clone())).collect();
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
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Push => "push",
        Mode::Pull => "pull",
        Mode::Snapshot { .. } => "snapshot",
    }
}
