//! What a read needs is here, or is asked for.

use super::LoadedId;
use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::Missing;
use headwater_base::KeyRange;
use headwater_base::placement::Shard;
use headwater_store::TableId;

impl Engine {
    /// Checks that an own base key is here, and asks for it if it is not.
    #[inline]
    pub(crate) fn need_key(&mut self, table: TableId, key: &[u8]) -> Result<(), Missing> {
        let Some(data) = self.base.loads.own_mut(table) else { return Ok(()) };
        if data.ranges.serve_key(key, &self.memory.ranges) {
            return Ok(());
        }
        // L3.
        let is_there = || self.store.table(table).get(key).is_some();
        if data.is_kept() && (is_there() || self.base.loads.persistence.is_gone(key)) {
            return Ok(());
        }
        self.need(table, &KeyRange::point(key))
    }

    /// Checks that the own base keys of `range` are here, and asks for what is not.
    pub(crate) fn need(&mut self, table: TableId, range: &KeyRange) -> Result<(), Missing> {
        let Some(data) = self.base.loads.own_mut(table) else { return Ok(()) };
        if data.serve(range, &self.memory.ranges) {
            return Ok(());
        }
        self.ask(LoadedId::own(table), range)
    }

    /// Checks that those keys of `range` are here that `home` is home of, and asks for what is not.
    pub(crate) fn need_from(
        &mut self,
        home: Shard,
        table: TableId,
        range: &KeyRange,
    ) -> Result<(), Missing> {
        let part = LoadedId { table, home: Some(home) };
        let data = self.base.loads.data_mut(part);
        let is_here = data.is_some_and(|data| data.serve(range, &self.memory.ranges));
        self.await_home(home, is_here)?;
        if is_here { Ok(()) } else { self.ask(part, range) }
    }

    /// Whether an execution that looks beyond what was asked for finds here what a source has in `span`, or may ask other shards for
    /// it.
    pub(crate) fn is_here_ahead(
        &mut self,
        plan: &Plan,
        source: usize,
        span: &KeyRange,
        loads: bool,
    ) -> bool {
        let table = plan.source_tables[source];
        if let Some(data) = self.base.loads.own_mut(table)
            && !data.serve(span, &self.memory.ranges)
        {
            return false;
        }
        if loads || self.base.is_aligned(plan, source) {
            return true;
        }
        let Some(placed) = self.base.placed.as_deref() else { return true };
        let (me, suspended) = (placed.me, &self.base.loads.suspended);
        match placed.placement.home_of_range(span) {
            Some(home) if home == me => true,
            Some(home) if suspended.contains_key(&home) => false,
            Some(home) => self
                .base
                .loads
                .data_mut(LoadedId { table, home: Some(home) })
                .is_some_and(|data| data.serve(span, &self.memory.ranges)),
            None => false,
        }
    }

    /// Asks for what is not here of a part of a table's keys.
    #[cold]
    fn ask(&mut self, part: LoadedId, range: &KeyRange) -> Result<(), Missing> {
        let table = self.store.table(part.table);
        let wanted = KeyRange::prefix(table.prefix()).intersection(range);
        if wanted.is_empty() {
            return Ok(());
        }
        if self.base.loads.waits.brought.gives_up(&mut self.memory) {
            return Err(Missing);
        }
        let group = table.group_prefix_of(&wanted.first).map(KeyRange::prefix);
        if let Some(home) = part.home {
            self.base.loads.elsewhere.add(part.table, home);
        }
        let placed = self.base.placed.as_deref();
        // A source has nothing to load for this shard of a group whose keys all have another home.
        let is_own = |range: &KeyRange| {
            part.home.is_some() || placed.is_none_or(|placed| placed.may_own(range))
        };
        let Some((data, waits, persistence)) = self.base.loads.split(part) else { return Ok(()) };
        data.ask(part, &wanted, group.as_ref(), is_own, (waits, persistence, &self.memory.ranges))
    }
}
