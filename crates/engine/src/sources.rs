//! Data that lives elsewhere: loads, the changes that follow them, and operations that wait.
//!
//! A table with a source holds the ranges that were asked for. A read of anything else asks
//! the source to load it and waits; when the load has arrived, the operation runs again from
//! its start, and so answers from one state. Reads that lack the same range share one load.
//!
//! # Invariants
//! - L1. `loaded` ranges are disjoint; a loaded range holds exactly what the source had at the
//!   later of its load's position and the last change delivered.
//! - L2. Changes of a range that is being loaded are kept until the load arrives; those up to
//!   the load's position are in it already.

use crate::engine::Engine;
use crate::exec::Missing;
use crate::memory::range_hash;
use crate::report::{Effect, EngineError, Stop, Ticket};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::key::before_end;
use headwater_base::source::{Change, FetchId, Loaded, Pair, Position};
use headwater_policy::{Evictor, Heat};
use headwater_store::TableId;

/// A table's source, and what of it is here.
#[derive(Debug)]
pub(crate) struct Sourced {
    pub(crate) name: String,
    /// By first key.
    loaded: BTreeMap<Vec<u8>, Here>,
    loading: Vec<Loading>,
    /// The last change delivered.
    seen: Position,
}

/// A loaded range.
#[derive(Debug)]
struct Here {
    /// Where it ends.
    last: Vec<u8>,
    /// The position of its load.
    position: Position,
    /// How it is used.
    heat: Heat,
}

#[derive(Debug)]
struct Loading {
    fetch: FetchId,
    range: KeyRange,
    /// Where the source stood, as far as known here, when the load was asked for.
    asked_at: Position,
    changes: Vec<(Position, Change)>,
}

/// Operations that wait, and numbers for new ones.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    next_fetch: u64,
    next_ticket: u64,
    waiting: BTreeMap<Ticket, BTreeSet<FetchId>>,
    /// What the operation under way lacks.
    lacking: BTreeSet<FetchId>,
    pub(crate) effects: Vec<Effect>,
}

impl Sourced {
    pub(crate) fn new(name: String) -> Self {
        Self { name, loaded: BTreeMap::new(), loading: Vec::new(), seen: Position(0) }
    }

    /// The parts of `range` that are not loaded.
    fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        subtract(range, self.loaded.iter().map(|(first, here)| (first, &here.last)))
    }

    /// The position of the loaded range around `key`.
    fn loaded_at(&self, key: &[u8]) -> Option<Position> {
        let upto = (core::ops::Bound::Unbounded, core::ops::Bound::Included(key));
        let (_, here) = self.loaded.range::<[u8], _>(upto).next_back()?;
        before_end(key, &here.last).then_some(here.position)
    }

    /// Some loaded range, found from a draw: its first key, and how it is used.
    pub(crate) fn some_loaded(&self, draw: u64) -> Option<(&[u8], Heat)> {
        // Ranges are few beside their keys, and only evictions ask: a walk will do.
        let at = (draw % self.loaded.len().max(1) as u64) as usize;
        self.loaded.iter().nth(at).map(|(first, here)| (first.as_slice(), here.heat))
    }

    /// Forgets the loaded range that begins at `first`.
    pub(crate) fn forget(&mut self, first: &[u8]) -> Option<KeyRange> {
        let (first, here) = self.loaded.remove_entry(first)?;
        Some(KeyRange { first, last: here.last })
    }

    /// Notes that the loaded ranges over `range` are read.
    fn touch(&mut self, range: &KeyRange, judge: &Evictor) {
        let upto = (core::ops::Bound::Unbounded, core::ops::Bound::Excluded(&*range.last));
        let below: &mut dyn DoubleEndedIterator<Item = (&Vec<u8>, &mut Here)> =
            if range.last.is_empty() {
                &mut self.loaded.iter_mut()
            } else {
                &mut self.loaded.range_mut::<[u8], _>(upto)
            };
        for (_, here) in below.rev() {
            if !here.last.is_empty() && here.last <= range.first {
                break;
            }
            here.heat = judge.hit(here.heat);
        }
    }

    /// Ranges loaded and being loaded.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.loaded.len(), self.loading.len())
    }

    /// Where the source stands as far as is known here.
    pub(crate) fn seen(&self) -> Position {
        self.seen
    }
}

/// What is left of `range` without the given ranges, which are in ascending order.
fn subtract<'a>(
    range: &KeyRange,
    others: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
) -> Vec<KeyRange> {
    let mut gaps = Vec::new();
    let mut at = range.first.clone();
    for (first, last) in others {
        if !before_end(first, &range.last) {
            break;
        }
        if !last.is_empty() && *last <= at {
            continue;
        }
        if *first > at {
            gaps.push(KeyRange { first: at.clone(), last: first.clone() });
        }
        if last.is_empty() {
            return gaps;
        }
        at.clone_from(last);
    }
    if before_end(&at, &range.last) {
        gaps.push(KeyRange { first: at, last: range.last.clone() });
    }
    gaps
}

impl Engine {
    /// Checks that the base keys of `range` are here, and asks for what is not.
    pub(crate) fn need(&mut self, table: TableId, range: &KeyRange) -> Result<(), Missing> {
        if self.catalog.role(table).is_none_or(|role| role.sourced.is_none()) {
            return Ok(());
        }
        let wanted = KeyRange::prefix(self.store.table(table).prefix()).intersection(range);
        let waits = &mut self.waits;
        let Some(sourced) = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut())
        else {
            return Ok(());
        };
        if wanted.is_empty() {
            return Ok(());
        }
        sourced.touch(&wanted, &self.memory.ranges);
        let gaps = sourced.gaps(&wanted);
        for gap in &gaps {
            let mut under_way: Vec<_> =
                sourced.loading.iter().filter(|loading| loading.range.overlaps(gap)).collect();
            under_way.sort_by(|a, b| a.range.first.cmp(&b.range.first));
            waits.lacking.extend(under_way.iter().map(|loading| loading.fetch));
            let others =
                under_way.iter().map(|loading| (&loading.range.first, &loading.range.last));
            for range in subtract(gap, others) {
                let fetch = FetchId(waits.next_fetch);
                waits.next_fetch += 1;
                waits.lacking.insert(fetch);
                waits.effects.push(Effect::Load {
                    fetch,
                    source: sourced.name.clone(),
                    range: range.clone(),
                });
                let asked_at = sourced.seen;
                sourced.loading.push(Loading { fetch, range, asked_at, changes: Vec::new() });
            }
        }
        if gaps.is_empty() { Ok(()) } else { Err(Missing) }
    }

    /// What an operation that met missing data answers.
    pub(crate) fn stop(&mut self) -> Stop {
        if self.memory.ends_lacking() {
            self.waits.lacking.clear();
            return Stop::Failed(EngineError::OutOfMemory);
        }
        debug_assert!(self.queue.is_empty(), "changes are applied before an operation ends");
        let lacking = core::mem::take(&mut self.waits.lacking);
        let ticket = self.next_ticket();
        self.waits.waiting.insert(ticket, lacking);
        Stop::Wait(ticket)
    }

    pub(crate) fn next_ticket(&mut self) -> Ticket {
        self.waits.next_ticket += 1;
        Ticket(self.waits.next_ticket - 1)
    }

    /// The answer to [`Effect::Load`]: the pairs of its range as of a position, or why not.
    /// An answer that nobody waits for any more is ignored.
    pub fn loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) {
        let tables: Vec<_> = self.store.tables().map(|(id, _)| id).collect();
        for table in tables {
            let role = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut());
            let Some(sourced) = role else { continue };
            let at = sourced.loading.iter().position(|loading| loading.fetch == fetch);
            let Some(at) = at else { continue };
            match answer {
                Err(message) => {
                    sourced.loading.swap_remove(at);
                    let source = sourced.name.clone();
                    self.waits.fail(fetch, &EngineError::SourceFailed { source, message });
                }
                Ok(loaded) if loaded.position < sourced.loading[at].asked_at => {
                    // Changes between were delivered before they were of interest: ask again.
                    let loading = &mut sourced.loading[at];
                    loading.asked_at = sourced.seen;
                    loading.changes.clear();
                    self.waits.effects.push(Effect::Load {
                        fetch,
                        source: sourced.name.clone(),
                        range: loading.range.clone(),
                    });
                }
                Ok(loaded) => {
                    let loading = sourced.loading.swap_remove(at);
                    let (range, position) = (loading.range.clone(), loaded.position);
                    let hash = range_hash(table.0, &range.first);
                    let heat = self.memory.ranges.inserted(hash, self.statuses.len());
                    sourced.loaded.insert(range.first, Here { last: range.last, position, heat });
                    self.take_in(table, loading, loaded);
                    self.waits.wake(fetch);
                }
            }
            return;
        }
    }

    /// Stores a load's pairs and the changes that came after it (L2).
    fn take_in(&mut self, table: TableId, loading: Loading, loaded: Loaded) {
        let mut pairs: BTreeMap<_, _> =
            loaded.pairs.into_iter().map(|Pair { key, value, .. }| (key, value)).collect();
        for (position, Change { key, value }) in loading.changes {
            if position > loaded.position {
                match value {
                    Some(value) => pairs.insert(key, value),
                    None => pairs.remove(&key),
                };
            }
        }
        let outputs: Vec<_> = match self.catalog.role(table) {
            Some(role) => {
                role.writers.iter().map(|&id| self.catalog.join(id).plan.clone()).collect()
            }
            None => Vec::new(),
        };
        for (key, value) in pairs {
            if loading.range.contains(&key)
                && !outputs.iter().any(|plan| plan.join.output.matches(&key))
            {
                let value = self.store.pool.insert(&value);
                self.put_base(table, &key, value);
            }
        }
    }

    /// One transaction at a source, which stands at `position` after it. Changes outside followed
    /// ranges are ignored, and so is a transaction delivered before.
    pub fn changed(&mut self, source: &str, position: Position, changes: &[Change]) {
        let tables: Vec<_> = self.store.tables().map(|(id, _)| id).collect();
        for table in tables {
            let role = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut());
            let Some(sourced) = role else { continue };
            if sourced.name != source || position <= sourced.seen {
                continue;
            }
            sourced.seen = position;
            for change in changes {
                self.change_at(table, position, change);
            }
        }
    }

    fn change_at(&mut self, table: TableId, position: Position, change: &Change) {
        if !change.key.starts_with(self.store.table(table).prefix()) {
            return;
        }
        let role = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut());
        let Some(sourced) = role else { return };
        for loading in &mut sourced.loading {
            if loading.range.contains(&change.key) {
                loading.changes.push((position, change.clone()));
            }
        }
        if sourced.loaded_at(&change.key).is_none_or(|loaded| position <= loaded) {
            return;
        }
        let writers = self.catalog.role(table).map_or(&[][..], |role| &role.writers);
        if writers.iter().any(|&id| self.catalog.join(id).plan.join.output.matches(&change.key)) {
            return;
        }
        match &change.value {
            Some(value) => {
                let value = self.store.pool.insert(value);
                self.put_base(table, &change.key, value);
            }
            None => {
                self.remove_base(table, &change.key);
            }
        }
    }

    /// Forgets the loaded ranges in which the outputs of a join may have hidden keys of the
    /// source: they are to be seen once the join has gone, and were not kept.
    pub(crate) fn forget_hidden(&mut self, join: u32) {
        let plan = self.catalog.join(join).plan.clone();
        let table = plan.output_table;
        let Some(role) = self.catalog.role_mut(table) else { return };
        let Some(sourced) = &mut role.sourced else { return };
        let hidden = plan.join.output.range_of_all();
        let mut ranges = Vec::new();
        sourced.loaded.retain(|first, here| {
            let range = KeyRange::new(first, &here.last);
            let keep = !range.overlaps(&hidden);
            if !keep {
                ranges.push(range);
            }
            keep
        });
        let source = sourced.name.clone();
        // What was computed from these ranges is not kept up to date any more.
        let readers: Vec<_> = role.readers.iter().map(|reader| reader.join).collect();
        for reader in readers {
            self.reset_join(reader);
        }
        for range in ranges {
            self.drop_base_keys(table, &range);
            self.waits.effects.push(Effect::Unfollow { source: source.clone(), range });
        }
    }

    /// Removes the base keys of a range, of which nobody is told.
    pub(crate) fn drop_base_keys(&mut self, table: TableId, range: &KeyRange) {
        let writers = self.catalog.role(table).map_or(Vec::new(), |role| role.writers.clone());
        let mut keys = Vec::new();
        self.scan_table(table, range, &mut |key, _| keys.push(key.to_vec()));
        let is_output = |key: &[u8]| {
            writers.iter().any(|&id| self.catalog.join(id).plan.join.output.matches(key))
        };
        keys.retain(|key| !is_output(key));
        for key in keys {
            if let Some(value) = self.store.remove(table, &key) {
                self.store.pool.release(value);
            }
        }
    }

    /// Forgets what was loaded, and stops following it.
    pub(crate) fn forget_loaded(&mut self) {
        let tables: Vec<_> = self.store.tables().map(|(id, _)| id).collect();
        for table in tables {
            let role = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut());
            let Some(sourced) = role else { continue };
            for (first, here) in core::mem::take(&mut sourced.loaded) {
                self.waits.effects.push(Effect::Unfollow {
                    source: sourced.name.clone(),
                    range: KeyRange { first, last: here.last },
                });
            }
        }
    }

    /// Takes what the engine asks of the world since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        let mut effects = core::mem::take(&mut self.waits.effects);
        effects.extend(self.watches.take_woken().into_iter().map(Effect::Wake));
        effects
    }
}

impl Waits {
    /// Wakes the operations for which `fetch` was the last thing they waited for.
    fn wake(&mut self, fetch: FetchId) {
        let effects = &mut self.effects;
        self.waiting.retain(|&ticket, lacking| {
            let woken = lacking.remove(&fetch) && lacking.is_empty();
            if woken {
                effects.push(Effect::Wake(ticket));
            }
            !woken
        });
    }

    /// Fails all operations that waited for `fetch`.
    fn fail(&mut self, fetch: FetchId, error: &EngineError) {
        let effects = &mut self.effects;
        self.waiting.retain(|&ticket, lacking| {
            let failed = lacking.contains(&fetch);
            if failed {
                effects.push(Effect::Fail { ticket, error: error.clone() });
            }
            !failed
        });
    }
}
