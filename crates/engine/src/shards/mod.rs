//! One of several shards: whose keys are whose, and what is here of the others'.
//!
//! Each key has a home (`headwater_base::placement`). Clients' commands about a key are executed there, and
//! so are joins, group by group: this engine computes the outputs whose home it is, and no others. Where
//! an execution needs source keys of another home, it asks for them ([`Effect::LoadFrom`]), which
//! that home answers and follows up in one step: the answer and the changes after it come in the home's
//! order, through [`Engine::loaded_from`] and [`Engine::changed_at`]. What has come so is a *replica*. Base keys
//! and outputs of joins are the same here: a replica of an output is current because its home keeps
//! it so, and is not computed here.
//!
//! A range within one group has one home. A range over several is read of each home: every home gives the
//! keys that it is home of, so the parts are disjoint and make up the whole.
//!
//! # Invariants
//! - D1. A stored key whose home is another shard is a replica, and lies in a range that is loaded from that home. There
//!   are none in layers.
//! - D2. Ranges that are loaded from a home are as L1 says (`loads`): they hold exactly the keys that the home has there and
//!   is home of, as of the last thing the home said. So what a home says must be given to the engine in
//!   the order in which it was said.
//! - D3. A valid status range has read no span that is not loaded from each home that may have keys of it, but
//!   for spans of *aligned* sources: those whose placing components are the output's, so that only own keys give
//!   own outputs.
//! - D4. Clients see own keys alone: replicas are no keys of theirs, and are not counted.
//!
//! # Cost
//! Without a placement, a test of an option where an execution reads a span. With one, each span
//! that is not aligned costs the hash of its group and a search among the ranges of its home; one over
//! several groups, such a search for each home.

mod boundary;
mod give;
mod held;
mod moves;

pub use held::RemoteReport;

use crate::base::Put;
use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::{Execution, Missing};
use crate::loads::{LoadedData, LoadedId, Provider};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::placement::{Placement, Shard};
use headwater_base::source::Change;
use headwater_pattern::{Bindings, Component, Pattern};
use headwater_store::TableId;

/// The placement, and what is here of other shards' keys.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) me: Shard,
    pub(crate) placement: Placement,
    /// Tables that joins read, and so pinned ones.
    tables: BTreeMap<TableId, Remote>,
    /// Replicas in all tables.
    replicas: usize,
    /// Bytes of their keys and values.
    replica_bytes: usize,
}

/// What is here of a table's keys elsewhere.
#[derive(Debug, Default)]
struct Remote {
    replicas: usize,
    homes: BTreeMap<Shard, LoadedData>,
}

impl Placed {
    /// Whether a source that `bindings` or a range place in a group places the outputs there too: the
    /// components that place its keys are those that place the output's.
    pub(crate) fn is_aligned(&self, output: &Pattern, source: &Pattern) -> bool {
        let placing = self.placement.boundary(&output.table);
        let same = |(one, other): (&Component, &Component)| match (one, other) {
            (Component::Literal(one), Component::Literal(other)) => one == other,
            (Component::Slot { slot: one, .. }, Component::Slot { slot: other, .. }) => {
                one == other
            }
            _ => false,
        };
        placing == self.placement.boundary(&source.table)
            && output.components.len() >= placing
            && source.components.len() >= placing
            && output.components.iter().zip(&source.components).take(placing).all(same)
    }

    #[inline]
    pub(crate) fn owns(&self, key: &[u8]) -> bool {
        self.placement.home(key) == self.me
    }

    /// Whether own keys may lie in `range`.
    pub(crate) fn may_own(&self, range: &KeyRange) -> bool {
        self.placement.home_of_range(range).is_none_or(|home| home == self.me)
    }

    /// All shards but this one.
    fn others(&self) -> impl Iterator<Item = Shard> + use<> {
        let me = self.me;
        (0..self.placement.shards()).map(Shard).filter(move |&shard| shard != me)
    }

    /// Replicas of a table.
    pub(crate) fn replicas_of(&self, table: TableId) -> usize {
        self.tables.get(&table).map_or(0, |remote| remote.replicas)
    }

    /// What is here of a table's keys at `home`.
    pub(crate) fn data(&self, table: TableId, home: Shard) -> Option<&LoadedData> {
        self.tables.get(&table)?.homes.get(&home)
    }

    pub(crate) fn data_mut(&mut self, table: TableId, home: Shard) -> Option<&mut LoadedData> {
        self.tables.get_mut(&table)?.homes.get_mut(&home)
    }

    /// What was asked for of other homes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = LoadedId> {
        self.tables.iter().flat_map(|(&table, remote)| {
            remote.homes.keys().map(move |&home| LoadedId { table, home: Some(home) })
        })
    }

    /// After all keys have gone: there are no replicas. Gives what else is to be forgotten.
    pub(crate) fn forget_all(&mut self) -> impl Iterator<Item = &mut LoadedData> {
        (self.replicas, self.replica_bytes) = (0, 0);
        self.tables.values_mut().flat_map(|remote| {
            remote.replicas = 0;
            remote.homes.values_mut()
        })
    }
}

impl Engine {
    /// Makes this engine shard `me` of those that `placement` knows. To be called before anything else; with one
    /// shard it changes nothing.
    pub fn set_placement(&mut self, me: Shard, placement: Placement) {
        if placement.shards() > 1 {
            self.marks.set_shard(me.0, placement.shards());
            self.placed = Some(Box::new(Placed {
                me,
                placement,
                tables: BTreeMap::new(),
                replicas: 0,
                replica_bytes: 0,
            }));
        }
    }

    /// Where every key lives; `None`: all live here.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.placed.as_ref().map(|placed| &placed.placement)
    }

    /// Which shard this is.
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.placed.as_ref().map_or(Shard(0), |placed| placed.me)
    }

    /// Whether this shard is the home of `key`.
    #[inline]
    #[must_use]
    pub fn owns(&self, key: &[u8]) -> bool {
        self.placed.as_ref().is_none_or(|placed| placed.owns(key))
    }

    /// Whether keys of `table` are stored that this shard is not the home of.
    #[inline]
    pub(crate) fn has_replicas(&self, table: TableId) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.replicas_of(table) > 0)
    }

    /// Keys of a table that are no replicas.
    pub(crate) fn own_keys(&self, table: TableId) -> usize {
        let replicas = self.placed.as_ref().map_or(0, |placed| placed.replicas_of(table));
        self.store.table(table).sizes().keys - replicas
    }

    /// Replicas in all tables.
    pub(crate) fn replica_count(&self) -> usize {
        self.placed.as_ref().map_or(0, |placed| placed.replicas)
    }

    /// Whether all keys of `range` have their home elsewhere.
    pub(crate) fn is_elsewhere(&self, range: &KeyRange) -> bool {
        self.placed.as_ref().is_some_and(|placed| !placed.may_own(range))
    }

    /// Whether keys of other homes may lie in `range`.
    pub(crate) fn spans_homes(&self, range: &KeyRange) -> bool {
        let Some(placed) = &self.placed else { return false };
        placed.placement.home_of_range(range) != Some(placed.me)
    }

    /// Whether an execution with these bindings may give outputs of which this is the home.
    pub(crate) fn may_own(&self, plan: &Plan, bindings: &Bindings<'_>) -> bool {
        let Some(placed) = &self.placed else { return true };
        let output = &plan.join.output;
        let mut prefix = Vec::new();
        let bound = output.bound_prefix(bindings, &mut prefix);
        let placing = placed.placement.boundary(&output.table);
        bound < placing.min(output.components.len()) || placed.owns(&prefix)
    }

    /// Whether a source of a join concerns own outputs through own keys alone (D3).
    pub(crate) fn is_aligned(&self, plan: &Plan, source: usize) -> bool {
        let Some(placed) = &self.placed else { return true };
        placed.is_aligned(&plan.join.output, plan.pattern(source))
    }

    /// Makes the keys of a source span that others are home of current; whether own ones may lie in it.
    pub(crate) fn need_parts(
        &mut self,
        execution: &Execution<'_>,
        level: usize,
        span: &KeyRange,
    ) -> Result<bool, Missing> {
        let Some(placed) = &self.placed else { return Ok(true) };
        if placed.is_aligned(&execution.plan.join.output, execution.plan.pattern(level)) {
            return Ok(true);
        }
        self.need_elsewhere(execution.plan.source_tables[level], span)
    }

    /// Asks for those keys of `span` that are not here and have another home; whether own keys may lie in it.
    pub(crate) fn need_elsewhere(
        &mut self,
        table: TableId,
        span: &KeyRange,
    ) -> Result<bool, Missing> {
        let Some(placed) = &self.placed else { return Ok(true) };
        match placed.placement.home_of_range(span) {
            Some(home) if home == placed.me => Ok(true),
            Some(home) => self.need_from(home, table, span).map(|()| false),
            None => {
                let mut missing = Ok(true);
                for home in placed.others() {
                    if self.need_from(home, table, span).is_err() {
                        missing = Err(Missing);
                    }
                }
                missing
            }
        }
    }

    fn need_from(&mut self, home: Shard, table: TableId, span: &KeyRange) -> Result<(), Missing> {
        let Some(placed) = self.placed.as_deref_mut() else { return Ok(()) };
        // What is loaded lies within the table.
        if let Some(data) = placed.data_mut(table, home)
            && data.ranges.serve(&span.first, &span.last, &self.memory.ranges)
        {
            return Ok(());
        }
        self.load_from(home, table, span)
    }

    /// As [`Engine::need_from`], where not all of it is here perhaps.
    #[cold]
    fn load_from(&mut self, home: Shard, table: TableId, span: &KeyRange) -> Result<(), Missing> {
        let prefix = KeyRange::prefix(self.store.table(table).prefix());
        let wanted = prefix.intersection(span);
        let Some(placed) = self.placed.as_deref_mut() else { return Ok(()) };
        if wanted.is_empty() {
            return Ok(());
        }
        let homes = &mut placed.tables.entry(table).or_default().homes;
        let data = homes.entry(home).or_insert_with(|| LoadedData::new(Provider::Home(home)));
        data.ranges.touch(&wanted, &self.memory.ranges);
        let gaps = data.ranges.gaps(&wanted);
        if self.waits.lacks_useless(home, &gaps) {
            return Err(Missing);
        }
        let part = LoadedId { table, home: Some(home) };
        data.ask(part, &gaps, |_| true, (&mut self.waits, &mut self.keeping))
    }

    /// Changes at `home`, in its order and all at once. Those outside of what was loaded from there are ignored.
    pub fn changed_at(&mut self, home: Shard, changes: &[Change]) {
        for Change { key, value } in changes {
            let Some(table) = self.store.table_of(key) else { continue };
            let part = LoadedId { table, home: Some(home) };
            if self.loaded_data(part).is_none_or(|data| data.ranges.position_of(key).is_none()) {
                continue;
            }
            match value {
                Some(value) => self.put_replica(home, table, key, value),
                None => self.remove_replica(home, table, key),
            }
        }
    }

    /// What was loaded of `range` from `home` is not to be believed any more, and not followed there: it is forgotten, and
    /// loaded again when it is wanted.
    pub fn reset_at(&mut self, home: Shard, range: &KeyRange) {
        for table in self.tables_elsewhere() {
            let within = KeyRange::prefix(self.store.table(table).prefix()).intersection(range);
            if !within.is_empty() {
                self.forget_part(LoadedId { table, home: Some(home) }, &within);
            }
        }
    }

    pub(crate) fn put_replica(&mut self, home: Shard, table: TableId, key: &[u8], value: &[u8]) {
        let Some(placed) = self.placed.as_deref_mut() else { return };
        if placed.placement.home(key) != home {
            return;
        }
        match self.store.table(table).get(key) {
            Some(old) => placed.replica_bytes -= self.store.pool.view(old).len(),
            None => {
                placed.replicas += 1;
                placed.replica_bytes += key.len();
                if let Some(remote) = placed.tables.get_mut(&table) {
                    remote.replicas += 1;
                }
            }
        }
        placed.replica_bytes += value.len();
        let value = self.store.pool.insert(value);
        self.put(table, key, Put::loaded(value, None, 0));
    }

    fn remove_replica(&mut self, home: Shard, table: TableId, key: &[u8]) {
        let Some(placed) = self.placed.as_deref_mut() else { return };
        if placed.placement.home(key) != home {
            return;
        }
        // It is no client's key (D4): only joins are told.
        let Some(old) = self.store.remove(table, key) else { return };
        let bytes = key.len() + self.store.pool.view(old).len();
        if self.has_readers(table) {
            let was = self.store.pool.content(old);
            self.notify(table, key, crate::cells::Change::new(Some(was), None));
        }
        self.store.pool.release(old);
        self.replica_gone(table, bytes);
    }

    /// A replica with so many bytes of key and value is here no more.
    fn replica_gone(&mut self, table: TableId, bytes: usize) {
        let Some(placed) = self.placed.as_deref_mut() else { return };
        placed.replicas -= 1;
        placed.replica_bytes -= bytes;
        if let Some(remote) = placed.tables.get_mut(&table) {
            remote.replicas -= 1;
        }
    }

    /// Removes the replicas of a range, of which nobody is told.
    pub(crate) fn drop_replicas(&mut self, home: Shard, table: TableId, range: &KeyRange) {
        let mut keys = Vec::new();
        self.scan_table(table, range, &mut |key, _| keys.push(key.to_vec()));
        keys.retain(|key| self.placed.as_ref().is_some_and(|it| it.placement.home(key) == home));
        for key in keys {
            if let Some(value) = self.store.remove(table, &key) {
                let bytes = key.len() + self.store.pool.view(value).len();
                self.store.pool.release(value);
                self.replica_gone(table, bytes);
            }
        }
    }

    /// Forgets what is here of a table's keys elsewhere. Loads under way will be of no use.
    pub(crate) fn forget_elsewhere(&mut self, table: TableId) {
        let Some(placed) = &self.placed else { return };
        let Some(remote) = placed.tables.get(&table) else { return };
        let homes: Vec<_> = remote.homes.keys().copied().collect();
        for home in homes {
            let part = LoadedId { table, home: Some(home) };
            self.unload(part, &KeyRange::all());
            self.spoil_loads(part, |_| true);
        }
        if let Some(placed) = self.placed.as_deref_mut() {
            placed.tables.remove(&table);
        }
    }

    /// Forgets what is here of the keys elsewhere of tables that no join reads.
    pub(crate) fn forget_unread(&mut self) {
        for table in self.tables_elsewhere() {
            if !self.has_readers(table) {
                self.forget_elsewhere(table);
            }
        }
    }

    /// Tables of which keys elsewhere were asked for.
    pub(crate) fn tables_elsewhere(&self) -> Vec<TableId> {
        self.placed.as_ref().map_or(Vec::new(), |placed| placed.tables.keys().copied().collect())
    }
}
