//! Data that lives elsewhere: loads, the changes that follow them, and operations that wait.
//!
//! A table with a source holds the ranges that were asked for. A read of anything else asks
//! the source to load it and waits; when the load has arrived, the operation runs again from
//! its start, and so answers from one state. Reads that lack the same range share one load.
//!
//! A table may also be *kept*: clients write it, and every write goes to an embedded store as well
//! (`kept`). That is a source like any other, except that its changes are this engine's own.
//!
//! # Invariants
//! - L1. Loaded ranges are disjoint; a loaded range holds exactly what the source had at the
//!   later of its load's position and the last change delivered, as far as this shard is the home of it.
//! - L2. Changes of a range that is being loaded are kept until the load arrives; those up to
//!   the load's position are in it already.
//! - L3. A key of a kept table that is in memory, inside of a loaded range or not, has the value
//!   and the expiry that the embedded store was told last.

mod health;
mod kept;
mod ranges;
mod waits;

pub(crate) use health::Sources;
pub(crate) use kept::{KEPT, Keeping};
pub(crate) use ranges::{Here, Ranges};
pub(crate) use waits::Waits;

use crate::engine::Engine;
use crate::exec::Missing;
use crate::report::{Effect, EngineError, Stop, Ticket};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::key::before_end;
use headwater_base::source::{Attributes, Change, FetchId, Loaded, Position};
use headwater_policy::Heat;
use headwater_store::TableId;

/// A table's source, and what of it is here.
#[derive(Debug)]
pub(crate) struct Sourced {
    pub(crate) name: String,
    /// Clients write the table, and the embedded store is told.
    pub(crate) kept: bool,
    /// Ranges of more than one key were asked for.
    ranged: bool,
    loaded: Ranges,
    loading: Vec<Loading>,
    /// The last change delivered.
    seen: Position,
}

#[derive(Debug)]
struct Loading {
    fetch: FetchId,
    range: KeyRange,
    /// Where the source stood, as far as known here, when the load was asked for.
    asked_at: Position,
    changes: Vec<Late>,
}

/// A change that a load under way may not show.
#[derive(Debug)]
struct Late {
    position: Position,
    key: Vec<u8>,
    value: Held,
}

/// What a key holds; nothing where there is no such key.
type Held = Option<(Vec<u8>, Attributes)>;

impl Sourced {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            kept: false,
            ranged: false,
            loaded: Ranges::default(),
            loading: Vec::new(),
            seen: Position(0),
        }
    }

    /// A loaded range in its turn: its first key, and how it is used.
    pub(crate) fn next_loaded(&mut self) -> Option<(Vec<u8>, Heat)> {
        self.loaded.next_in_turn()
    }

    /// Some loaded range, named by a number.
    pub(crate) fn any_loaded(&self, draw: u64) -> Option<&[u8]> {
        self.loaded.any(draw)
    }

    /// The loaded range that begins at `first`.
    pub(crate) fn loaded_from(&self, first: &[u8]) -> Option<KeyRange> {
        self.loaded.at(first)
    }

    /// Every loaded range.
    pub(crate) fn loaded_ranges(&self) -> impl Iterator<Item = KeyRange> {
        self.loaded.all()
    }

    /// Takes `range` out of what is loaded, and gives the parts of it that were.
    pub(crate) fn cut(&mut self, range: &KeyRange) -> Vec<KeyRange> {
        self.loaded.cut(range)
    }

    /// The parts of `range` that are not loaded.
    pub(crate) fn not_loaded(&self, range: &KeyRange) -> Vec<KeyRange> {
        self.loaded.gaps(range)
    }

    /// A load will not be asked for.
    pub(crate) fn withdraw(&mut self, fetch: FetchId) {
        self.loading.retain(|loading| loading.fetch != fetch);
    }

    /// Ranges loaded and being loaded.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.loaded.len(), self.loading.len())
    }

    /// Where the source stands as far as is known here.
    pub(crate) fn seen(&self) -> Position {
        self.seen
    }

    /// Notes a change for the loads under way that it may come too late for (L2).
    fn note(&mut self, position: Position, key: &[u8], value: impl Fn() -> Held) {
        for loading in &mut self.loading {
            if loading.range.contains(key) {
                loading.changes.push(Late { position, key: key.to_vec(), value: value() });
            }
        }
    }
}

/// What is left of `range` without the given ranges, which are in ascending order.
pub(crate) fn subtract<'a>(
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
    /// Checks that a base key is here, and asks for it if it is not.
    #[inline]
    pub(crate) fn need_key(&mut self, table: TableId, key: &[u8]) -> Result<(), Missing> {
        let role = self.catalog.role_mut(table);
        let Some(sourced) = role.and_then(|role| role.sourced.as_deref_mut()) else {
            return Ok(());
        };
        let here = sourced.loaded.serve_key(key, &self.memory.ranges);
        // L3.
        if here || (sourced.kept && self.store.table(table).get(key).is_some()) {
            return Ok(());
        }
        if sourced.kept && self.keeping.is_gone(key) {
            return Ok(());
        }
        self.need(table, &KeyRange::point(key))
    }

    /// Checks that the base keys of `range` are here, and asks for what is not.
    pub(crate) fn need(&mut self, table: TableId, range: &KeyRange) -> Result<(), Missing> {
        let role = self.catalog.role_mut(table);
        let Some(sourced) = role.and_then(|role| role.sourced.as_deref_mut()) else {
            return Ok(());
        };
        if sourced.loaded.serve(&range.first, &range.last, &self.memory.ranges) {
            sourced.ranged |= !is_point(range);
            return Ok(());
        }
        let prefix = KeyRange::prefix(self.store.table(table).prefix());
        let wanted = prefix.intersection(range);
        let group = self.group_range(table, &wanted.first);
        let (waits, placed) = (&mut self.waits, self.placed.as_deref());
        // Of a group whose home is another shard there are no own keys to be loaded.
        let may_own = |range: &KeyRange| placed.is_none_or(|placed| placed.may_own(range));
        let Some(sourced) = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut())
        else {
            return Ok(());
        };
        if wanted.is_empty() {
            return Ok(());
        }
        let is_point = is_point(&wanted);
        sourced.ranged |= !is_point;
        sourced.loaded.touch(&wanted, &self.memory.ranges);
        let mut gaps = sourced.loaded.gaps(&wanted);
        if sourced.kept && is_point && !gaps.is_empty() {
            // The keys of a group are read together, and one range is less to remember than many.
            gaps = group.map_or(gaps, |group| sourced.loaded.gaps(&group));
        }
        let mut missing = Ok(());
        for gap in &gaps {
            let mut under_way: Vec<_> =
                sourced.loading.iter().filter(|loading| loading.range.overlaps(gap)).collect();
            under_way.sort_by(|a, b| a.range.first.cmp(&b.range.first));
            for loading in &under_way {
                missing = Err(Missing);
                waits.lacking.insert(loading.fetch);
            }
            let others =
                under_way.iter().map(|loading| (&loading.range.first, &loading.range.last));
            for range in subtract(gap, others) {
                if !may_own(&range) {
                    continue;
                }
                missing = Err(Missing);
                let fetch = waits.fetch();
                waits.lacking.insert(fetch);
                let (asked_at, changes) = (sourced.seen, Vec::new());
                sourced.loading.push(Loading { fetch, range: range.clone(), asked_at, changes });
                if sourced.kept {
                    self.keeping.load(fetch, &range);
                } else {
                    let source = sourced.name.clone();
                    waits.effects.push(Effect::Load { fetch, source, range });
                }
            }
        }
        missing
    }

    /// The keys of the group in which `key` is, where its table has groups.
    fn group_range(&self, table: TableId, key: &[u8]) -> Option<KeyRange> {
        self.store.table(table).group_prefix_of(key).map(KeyRange::prefix)
    }

    /// What an operation that met missing data answers.
    pub(crate) fn stop(&mut self) -> Stop {
        if self.memory.ends_lacking() {
            self.waits.lacking.clear();
            return Stop::Failed(EngineError::OutOfMemory);
        }
        debug_assert!(self.queue.is_empty(), "changes are applied before an operation ends");
        if self.slices.is_over() {
            // What it lacks besides is asked for again when it goes on.
            self.waits.lacking.clear();
            let ticket = self.waits.ticket();
            self.slices.postpone(ticket);
            return Stop::Wait(ticket);
        }
        Stop::Wait(self.waits.wait())
    }

    /// A ticket for an operation that waits for something that the engine does not know of.
    pub fn next_ticket(&mut self) -> Ticket {
        self.waits.ticket()
    }

    /// Whether operations may have to wait for data at all.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.keeping.is_some() || self.placed.is_some() || !self.catalog.sourced_tables().is_empty()
    }

    /// How many operations wait for data.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waits.waiting()
    }

    /// Wakes an operation that got its ticket from [`Engine::next_ticket`].
    pub fn wake(&mut self, ticket: Ticket) {
        self.waits.effects.push(Effect::Wake(ticket));
    }

    /// The answer to [`Effect::Load`]: the pairs of its range as of a position, or why not.
    /// An answer that nobody waits for any more is ignored.
    pub fn loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) {
        match answer {
            Ok(_) => self.retry_followed(),
            Err(_) => self.give_up_followed(),
        }
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
                Ok(_)
                    if self.placed.as_ref().is_some_and(|placed| {
                        !sourced.kept && !placed.may_own(&sourced.loading[at].range)
                    }) =>
                {
                    // Its home is another shard by now.
                    let Loading { range, .. } = sourced.loading.swap_remove(at);
                    let source = sourced.name.clone();
                    self.waits.effects.push(Effect::Unfollow { source, range });
                    self.waits.wake(fetch);
                }
                Ok(loaded) if loaded.position < sourced.loading[at].asked_at => {
                    // Changes between were delivered before they were of interest: ask again.
                    let loading = &mut sourced.loading[at];
                    loading.asked_at = sourced.seen;
                    loading.changes.clear();
                    let (source, range) = (sourced.name.clone(), loading.range.clone());
                    if sourced.kept {
                        self.keeping.load(fetch, &range);
                    } else {
                        // The source follows it for each answer.
                        let (from, given) = (source.clone(), range.clone());
                        self.waits.effects.push(Effect::Unfollow { source: from, range: given });
                        self.waits.effects.push(Effect::Load { fetch, source, range });
                    }
                }
                Ok(loaded) => {
                    let loading = sourced.loading.swap_remove(at);
                    let (range, position) = (loading.range.clone(), loaded.position);
                    let hash = self.memory.range_hash(table.0, &range.first);
                    let heat = self.memory.ranges.inserted(hash, self.statuses.len());
                    let here = Here { last: range.last, position, heat };
                    if sourced.kept {
                        sourced.loaded.merge(range.first, here);
                    } else {
                        sourced.loaded.insert(range.first, here);
                    }
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
            loaded.pairs.into_iter().map(|p| (p.key, (p.value, p.attributes))).collect();
        for Late { position, key, value } in loading.changes {
            if position > loaded.position {
                match value {
                    Some(value) => pairs.insert(key, value),
                    None => pairs.remove(&key),
                };
            }
        }
        let kept = self.is_kept(table);
        for (key, (value, Attributes { expires, flags })) in pairs {
            if !loading.range.contains(&key)
                || self.catalog.gives(table, &key)
                || !self.owns(&key)
                || (kept && !self.takes_kept(table, &key, expires))
            {
                continue;
            }
            let value = self.store.pool.insert(&value);
            self.place_base(table, &key, value);
            if expires.is_some() {
                self.expiries.set(&key, expires);
            }
            if flags != 0 {
                self.marks.loaded(&key, flags);
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
            if sourced.kept || sourced.name != source || position <= sourced.seen {
                continue;
            }
            sourced.seen = position;
            for change in changes {
                self.change_at(table, position, change);
            }
        }
        self.reached(source, position);
    }

    fn change_at(&mut self, table: TableId, position: Position, change: &Change) {
        if !change.key.starts_with(self.store.table(table).prefix()) {
            return;
        }
        if !self.owns(&change.key) {
            return;
        }
        let role = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut());
        let Some(sourced) = role else { return };
        sourced.note(position, &change.key, || {
            change.value.clone().map(|value| (value, Attributes::default()))
        });
        let here = sourced.loaded.around(&change.key);
        if here.is_none_or(|(_, here)| position <= here.position) {
            return;
        }
        if self.catalog.writer_of(table, &change.key).is_some() {
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

    /// Other keys of a table are this shard's own from now on. Changes of those were not kept for the loads under way: answers that
    /// are older than the last change delivered are of no use.
    pub(crate) fn ask_anew(&mut self, table: TableId) {
        let role = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut());
        let Some(sourced) = role else { return };
        for loading in &mut sourced.loading {
            loading.asked_at = sourced.seen;
        }
    }

    /// A table gets its source: what was computed while it was empty is not to be believed any more.
    pub(crate) fn begin_source(&mut self, table: TableId, source: &str) {
        let range = KeyRange::prefix(self.store.table(table).prefix());
        self.tell_reset(&range);
        self.invalidate_readers(table, &range);
        let role = self.catalog.role_for(table);
        role.sourced = Some(Box::new(Sourced::new(String::from(source))));
    }

    /// A table has no source any more: what was loaded is forgotten. Who waits for more finds none.
    pub(crate) fn end_source(&mut self, table: TableId) {
        if self.sourced(table).is_none_or(|sourced| sourced.kept) {
            return;
        }
        let range = KeyRange::prefix(self.store.table(table).prefix());
        self.tell_reset(&range);
        self.invalidate_readers(table, &range);
        self.unload(table, &range);
        let role = self.catalog.role_for(table);
        for loading in role.sourced.take().into_iter().flat_map(|sourced| sourced.loading) {
            self.waits.wake(loading.fetch);
        }
        self.retry_followed();
    }

    /// Forgets the loaded ranges in which the outputs of a join may have hidden keys of the
    /// source: they are to be seen once the join has gone, and were not kept.
    pub(crate) fn forget_hidden(&mut self, join: u32) {
        let plan = self.catalog.join(join).plan.clone();
        let table = plan.output_table;
        let Some(role) = self.catalog.role_mut(table) else { return };
        let Some(sourced) = &mut role.sourced else { return };
        let hidden = plan.join.output.range_of_all();
        let (ranges, kept) = (sourced.loaded.cut(&hidden), sourced.kept);
        let source = sourced.name.clone();
        // What was computed from these ranges is not kept up to date any more.
        let readers: Vec<_> = role.readers.iter().map(|reader| reader.join).collect();
        for reader in readers {
            self.reset_join(reader);
        }
        for range in ranges {
            self.drop_base_keys(table, &range);
            if !kept {
                self.waits.effects.push(Effect::Unfollow { source: source.clone(), range });
            }
        }
    }

    /// Removes the base keys of a range, of which nobody is told.
    pub(crate) fn drop_base_keys(&mut self, table: TableId, range: &KeyRange) {
        self.tell_reset(range);
        let mut keys = Vec::new();
        self.scan_table(table, range, &mut |key, _| keys.push(key.to_vec()));
        keys.retain(|key| !self.catalog.gives(table, key) && self.owns(key));
        // What is kept is still there: its keys keep their marks, but for what will be loaded with them.
        let kept = self.is_kept(table);
        for key in keys {
            if self.expiries.len() > 0 {
                self.expiries.set(&key, None);
            }
            if let Some(value) = self.store.remove(table, &key) {
                self.store.pool.release(value);
            }
            if kept {
                self.marks.unloaded(&key);
            } else {
                self.marks.written(&key, Some(0));
            }
        }
    }

    /// Forgets what was loaded, and stops following it.
    pub(crate) fn forget_loaded(&mut self) {
        let tables: Vec<_> = self.store.tables().map(|(id, _)| id).collect();
        for table in tables {
            let role = self.catalog.role_mut(table).and_then(|role| role.sourced.as_mut());
            let Some(sourced) = role.filter(|sourced| !sourced.kept) else { continue };
            let source = sourced.name.clone();
            for range in sourced.loaded.take() {
                self.waits.effects.push(Effect::Unfollow { source: source.clone(), range });
            }
        }
    }

    /// Takes what the engine asks of the world since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        let mut effects = core::mem::take(&mut self.waits.effects);
        effects.extend(self.watches.take_woken().into_iter().map(Effect::Wake));
        effects.extend(self.take_loaded().into_iter().map(Effect::Wake));
        effects
    }
}

/// Whether the range holds one key alone.
fn is_point(range: &KeyRange) -> bool {
    range.last.split_last().is_some_and(|(end, key)| *end == 0 && key == range.first)
}
