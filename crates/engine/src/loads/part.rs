//! Parts of ranges of a source: reads that want the first few keys of one, or the last ones, and answers that are of a part (L5).
//!
//! A read with a limit needs a part that holds as many keys as it wants, from where it begins. What is here of it is counted; behind that as many
//! rows are asked for as are wanting, and the source says how far it knows the range. With several shards a part of the rows
//! are others' keys: so many times as many are asked for, and again where that was not enough.

use super::data::Load;
use super::{LoadedId, Provider};
use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::source::Portion;
use headwater_store::{Scan, TableId};

/// With several shards no fewer rows are asked for.
const SHARED_ROWS_MIN: u64 = 64;

impl Engine {
    /// Makes sure that a part of `range` is here that holds its first `limit` keys, or its last ones, where the table is of a source and has no other
    /// keys; which part that is. `None`: all of the range is needed, or is here.
    pub(crate) fn need_limited(
        &mut self,
        table: TableId,
        range: &KeyRange,
        limit: u64,
        reverse: bool,
    ) -> Result<Option<KeyRange>, Missing> {
        let Some(data) = self.base.loads.own(table) else { return Ok(None) };
        let is_plain = self.views.catalog.role(table).is_none_or(|role| role.merged == 0)
            && self.views.catalog.writers_within(table, range).is_empty();
        if !is_plain || !matches!(data.provider, Provider::Source(_)) || limit == 0 {
            return Ok(None);
        }
        let wanted = KeyRange::prefix(self.store.table(table).prefix()).intersection(range);
        let mut gaps = data.ranges.gaps(&wanted);
        let placed = self.base.placed.as_deref();
        let is_own = |range: &KeyRange| placed.is_none_or(|placed| placed.may_own(range));
        gaps.retain(is_own);
        let gap = if reverse { gaps.last() } else { gaps.first() };
        let Some(gap) = gap else { return Ok(None) };
        let known = match reverse {
            true => gap.last != wanted.last,
            false => gap.first != wanted.first,
        };
        let mut held = 0;
        if known {
            let known = match reverse {
                true => KeyRange::new(&gap.last, &wanted.last),
                false => KeyRange::new(&wanted.first, &gap.first),
            };
            held = self.own_keys_within(table, &known, limit);
            if held == limit {
                if let Some(data) = self.base.loads.own_mut(table) {
                    data.ranges.touch(&known, &self.memory.ranges);
                }
                return Ok(Some(known));
            }
        }
        if self.base.loads.waits.brought.gives_up(&mut self.memory) {
            return Err(Missing);
        }
        let mut rows = limit - held;
        if let Some(placed) = placed {
            let shards = u64::from(placed.placement.shards());
            rows = rows.saturating_mul(shards).max(SHARED_ROWS_MIN);
        }
        let portion = Portion { rows: Some(rows), reverse, bytes_before: 0 };
        let part = LoadedId::own(table);
        let Some((data, waits, persistence)) = self.base.loads.split(part) else { return Ok(None) };
        Err(data.ask_portion(part, gap, portion, is_own, (waits, persistence)))
    }

    /// How many own keys there are in a range, `limit` at most.
    fn own_keys_within(&self, table: TableId, range: &KeyRange, limit: u64) -> u64 {
        let others = self.base.placed.as_deref().filter(|_| self.base.has_replicas(table));
        let mut found = 0;
        let pool = &self.store.pool;
        let scan = Scan { pool, first: &range.first, last: &range.last, reverse: false };
        let _ = self.store.table(table).scan(&scan, &mut Vec::new(), &mut |key, value| {
            let is_pair = !matches!(Handle::of(value), Some(Handle::Stream(_)));
            found += u64::from(is_pair && others.is_none_or(|placed| placed.owns(key)));
            if found == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }
}

impl BaseData {
    /// An answer is of the part `known` of a load's range, with so many bytes: where all was wanted, and somebody waits for it, the rest is
    /// asked for. Gives what is known of the range.
    pub(super) fn go_on_behind(
        &mut self,
        part: LoadedId,
        range: &KeyRange,
        load: &Load,
        (known, bytes): (KeyRange, u64),
    ) -> KeyRange {
        let known = known.intersection(range);
        if load.portion.rows.is_some() {
            return known;
        }
        let answers = load.answers + 1;
        let portion = Portion { bytes_before: load.portion.bytes_before + bytes, ..load.portion };
        let Some((data, waits, persistence)) = self.loads.split(part) else { return known };
        let placed = self.placed.as_deref();
        let is_own = |range: &KeyRange| placed.is_none_or(|placed| placed.may_own(range));
        for rest in
            range.without(&known).into_iter().filter(|rest| part.home.is_some() || is_own(rest))
        {
            // Now and then they look whether that was enough: a read of the first few keys may be among them.
            let wakes = answers.is_power_of_two();
            let Some(fetch) = waits.go_on(load.fetch, part, &rest.first, wakes) else { break };
            data.under_way.insert(&rest, Load::new(fetch, data.seen, portion).after(answers));
            data.provider.load(fetch, rest, portion, (&mut *waits, &mut *persistence));
        }
        known
    }
}
