//! Parts of a table that are current, and what a read shows of them.

use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use crate::report::Stop;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::{KeyParts, KeyRange};
use headwater_pool::{Value, ValueRef};
use headwater_store::{GroupId, Scan, TableId};

/// A part of one table to be scanned.
pub(crate) struct Part<'a> {
    pub(crate) table: TableId,
    /// The group that holds all of it, if one does.
    pub(crate) group: Option<GroupId>,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
    pub(crate) reverse: bool,
    pub(crate) limit: u64,
}

impl Engine {
    /// Scans a current part of one table; how many pairs there were, and whether to go on.
    pub(crate) fn scan_part(
        &mut self,
        part: &Part<'_>,
        each: &mut impl FnMut(KeyParts<'_>, Value<'_>) -> ControlFlow<()>,
    ) -> Result<(u64, ControlFlow<()>), Stop> {
        let &Part { table, group, first, last, reverse, limit } = part;
        let (mut found, mut flow) = (0, ControlFlow::Continue(()));
        if limit == 0 {
            return Ok((found, flow));
        }
        if let Some(role) = self.views.catalog.role(table)
            && role.merged > 0
        {
            let range = KeyRange::new(first, last);
            if self.collects() {
                return self.give_collected(table, &range, (reverse, limit), each);
            }
            let mut rows = Vec::new();
            let writers = self.views.catalog.writers_within(table, &range);
            self.merged_rows(table, &writers, &range, &mut |key, value| {
                rows.push((Box::<[u8]>::from(key), value));
            })
            .map_err(|Missing| self.stop())?;
            if part.group.is_none() && self.base.has_replicas(table) {
                rows.retain(|(key, _)| self.owns(key));
            }
            if reverse {
                rows.reverse();
            }
            rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            for (key, value) in &rows {
                found += 1;
                flow = each(KeyParts::whole(key), self.store.pool.view(*value));
                if flow.is_break() {
                    break;
                }
            }
            self.release_row_holds();
            return Ok((found, flow));
        }
        let sifted = group.is_none() && self.base.has_replicas(table);
        let others = self.base.placed.as_deref().filter(|_| sifted);
        let (mut lost, mut whole) = (Vec::new(), Vec::new());
        let mut room = core::mem::take(&mut self.scratch.key_room);
        let pool = &self.store.pool;
        let ending = self.ending.clone();
        let (spilled, spilling) = (&self.base.spilled, &mut self.base.spilling);
        let mut visit = |key: KeyParts<'_>, value: ValueRef| {
            if ending.as_ref().is_some_and(|ending| ending.is_over()) {
                return ControlFlow::Break(());
            }
            if others.is_some_and(|placed| !placed.owns(key.put_into(&mut whole))) {
                return ControlFlow::Continue(());
            }
            if value.is_handle() {
                let Some(number) = Handle::spilled(value) else {
                    return ControlFlow::Continue(());
                };
                if !spilling.fetch_value(&spilled.get(number)) {
                    lost.push(key.to_vec());
                    return ControlFlow::Continue(());
                }
                flow = each(key, Value::of(spilling.fetched()));
            } else {
                flow = each(key, pool.view(value));
            }
            found += 1;
            if found < limit { flow } else { ControlFlow::Break(()) }
        };
        let keys = self.store.table(table);
        let scan = Scan { pool, first, last, reverse };
        let _ = keys.scan_parts(group, &scan, &mut room, &mut visit);
        self.scratch.key_room = room;
        lost.iter().for_each(|key| self.lose_key(table, key));
        match self.ended() {
            Some(ended) => Err(ended),
            None => Ok((found, flow)),
        }
    }

    /// As [`Engine::scan_part`], of a table of which what is read is collected.
    fn give_collected(
        &mut self,
        table: TableId,
        range: &KeyRange,
        (reverse, limit): (bool, u64),
        each: &mut impl FnMut(KeyParts<'_>, Value<'_>) -> ControlFlow<()>,
    ) -> Result<(u64, ControlFlow<()>), Stop> {
        self.collect(table, range, if reverse { u64::MAX } else { limit }, true)?;
        let (mut found, mut flow) = (0, ControlFlow::Continue(()));
        let mut rows = self.reads.collected();
        while found < limit
            && flow.is_continue()
            && let Some((key, value)) = if reverse { rows.next_back() } else { rows.next() }
        {
            found += 1;
            flow = each(KeyParts::whole(key), self.store.pool.view(*value));
        }
        Ok((found, flow))
    }
}
