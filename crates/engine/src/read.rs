//! Reads: make the range current, then scan it.
//!
//! # Cost
//! A read of a range that one clean status range covers is a hash for the group, a look at its
//! note, and the scan.

use crate::dead::Looks;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::group_note::Noted;
use crate::handles::Handle;
use crate::part::Part;
use crate::relate::is_point;
use crate::report::{EngineError, RangeOptions, Stop};
use crate::status::StatusId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::ControlFlow;
use headwater_base::key::{SEPARATOR, end_at_most};
use headwater_base::{KeyParts, KeyRange, Limits};
use headwater_pattern::Mode;
use headwater_pool::{Value, ValueRef};
use headwater_store::{GroupId, TableId};

/// A visible pair, of which a merged read holds a reference.
struct Row {
    key: Box<[u8]>,
    /// Greater for joins installed later; 0 for the public table.
    installed: u64,
    value: ValueRef,
}

impl Engine {
    /// Whether joins may give keys that begin so; `first` is a key, or the prefix of some.
    #[must_use]
    pub fn may_derive(&self, first: &[u8]) -> bool {
        if self.views.catalog.len() == 0 {
            return false;
        }
        if !first.contains(&SEPARATOR) {
            return true;
        }
        let role = self.store.table_of(first).and_then(|table| self.views.catalog.role(table));
        role.is_some_and(|role| !role.writers.is_empty())
    }

    /// A value that is [held](Value::hold).
    #[must_use]
    pub fn held(&self, value: ValueRef) -> Value<'_> {
        self.store.pool.view(value)
    }

    /// Gives back the reference to a value that was [held](Value::hold).
    pub fn release(&mut self, value: ValueRef) {
        self.store.pool.release(value);
    }

    /// The value of `key`, computed where it is derived.
    ///
    /// # Errors
    /// [`Stop`]: data must be loaded first, or a source failed; or the key holds a stream.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value<'_>>, Stop> {
        match self.find(key)? {
            Some(word) if word.is_handle() => self.get_elsewhere(key, word),
            found => Ok(found.map(|value| self.store.pool.view(value))),
        }
    }

    /// What a key holds whose word names it.
    #[cold]
    fn get_elsewhere(&mut self, key: &[u8], word: ValueRef) -> Result<Option<Value<'_>>, Stop> {
        match (Handle::of(word), self.store.table_of(key)) {
            (Some(Handle::Spilled(number)), Some(table)) => {
                Ok(self.read_spilled(table, key, number))
            }
            _ => Err(EngineError::WrongType.into()),
        }
    }

    /// As [`Engine::get`], of whatever type; the word lives until the next operation.
    #[inline]
    pub(crate) fn find(&mut self, key: &[u8]) -> Result<Option<ValueRef>, Stop> {
        if key.len() > Limits::KEY_BYTES_CEILING {
            return Ok(None);
        }
        self.remove_dead(key);
        let Some(table) = self.store.table_of(key) else { return Ok(None) };
        if self.views.catalog.role(table).is_some() {
            return self.get_derived(table, key).map_err(|Missing| self.stop());
        }
        Ok(self.stored(table, key))
    }

    /// As [`Engine::get`], for a table that joins read or write. The value lives until the next
    /// operation.
    fn get_derived(&mut self, table: TableId, key: &[u8]) -> Result<Option<ValueRef>, Missing> {
        if self.views.catalog.role(table).is_some_and(|role| !role.writers.is_empty()) {
            self.remove_dead_or_wait(Looks::Derived)?;
        }
        self.release_row_holds();
        if let Some(computed) = self.get_computed(table, key)? {
            return Ok(computed);
        }
        self.ensure_key(table, key)?;
        let role = self.views.catalog.role(table);
        if role.is_some_and(|role| role.merged > 0) {
            let point = KeyRange::point(key);
            let writers = self.views.catalog.writers_within(table, &point);
            let mut found = None;
            self.merged_rows(table, &writers, &point, &mut |_, value| {
                found = Some(value);
            })?;
            return Ok(found);
        }
        Ok(self.stored(table, key))
    }

    /// Makes what joins and sources give for `key` current.
    fn ensure_key(&mut self, table: TableId, key: &[u8]) -> Result<(), Missing> {
        let Some(role) = self.views.catalog.role(table) else { return Ok(()) };
        if role.writers.is_empty() && self.base.loads.own(table).is_none() {
            return Ok(());
        }
        let mut missing = Ok(());
        let mut point: Option<KeyRange> = None;
        let some = self.views.catalog.some_writers_of(table, key);
        for at in 0.. {
            let Some(join) = self.views.catalog.nth_writer(table, some.as_deref(), at) else {
                break;
            };
            if !self.views.catalog.join(join).plan.join.output.matches(key) {
                continue;
            }
            let point = point.get_or_insert_with(|| KeyRange::point(key));
            let group = self.store.table(table).group_of(key);
            if self.ensure_in(join, table, group, point).is_err() {
                missing = Err(Missing);
            }
        }
        if self.need_key(table, key).is_err() {
            missing = Err(Missing);
        }
        missing
    }

    /// Makes what these joins give in a part of a table current.
    pub(crate) fn ensure_joins(
        &mut self,
        table: TableId,
        joins: &[u32],
        range: &KeyRange,
    ) -> Result<(), Missing> {
        let mut missing = Ok(());
        for &join in joins {
            // Groups may be made as joins are computed, so each looks again.
            let group = self.store.table(table).group_holding(&range.first, &range.last);
            if self.ensure_in(join, table, group, range).is_err() {
                missing = Err(Missing);
            }
        }
        missing
    }

    /// Whether each join of `table` has noted on `group` that it serves `[first, last)`, all of
    /// which lies in the group.
    #[inline]
    fn is_ready(&mut self, table: TableId, group: GroupId, first: &[u8]) -> bool {
        let Some(role) = self.views.catalog.role(table) else { return false };
        if !self.views.fan_outs.is_empty() {
            return false;
        }
        let (table, _) = self.store.table_mut(table);
        let suffix = &first[table.group_prefix(group).len()..];
        let note = table.note_mut(group);
        // Where there are many, most have nothing in the group: they are not asked one by one.
        role.writers.len() <= crate::relate::FEW
            && role.writers.iter().all(|&join| note.serving(join, suffix, &self.memory.ranges))
    }

    /// Makes what `join` gives in `range`, all of which lies in `group`, current.
    fn ensure_in(
        &mut self,
        join: u32,
        table: TableId,
        group: Option<GroupId>,
        range: &KeyRange,
    ) -> Result<(), Missing> {
        if let Some(id) = group.and_then(|group| self.noted_range(join, (table, group), range)) {
            self.views.catalog.join_mut(join).counters.hits += 1;
            if is_point(range) {
                self.views.credit_key(id);
            }
            return self.refresh(id, range);
        }
        self.ensure(join, range, None)
    }

    /// The status range of `join` that holds all of `range` and that a group has noted, which is found sooner than in the join's cover.
    pub(crate) fn noted_range(
        &self,
        join: u32,
        (table, group): (TableId, GroupId),
        range: &KeyRange,
    ) -> Option<StatusId> {
        let of_join = |noted: &&Noted| noted.join == join;
        let noted = self.store.table(table).note(group).ranges().iter().filter(of_join);
        noted.map(|noted| noted.status).find(|&id| {
            let status = self.views.statuses.get(id);
            status.expires_at().is_none() && status.covers(&range.first, &range.last)
        })
    }

    /// Makes everything in a part of a table current.
    pub(crate) fn ensure_table(&mut self, table: TableId, range: &KeyRange) -> Result<(), Missing> {
        let group = self.store.table(table).group_holding(&range.first, &range.last);
        self.ensure_part(table, group, range)
    }

    /// As [`Engine::ensure_table`]; `group` holds all of the range, where there is one that does.
    fn ensure_part(
        &mut self,
        table: TableId,
        mut group: Option<GroupId>,
        range: &KeyRange,
    ) -> Result<(), Missing> {
        if self.views.catalog.role(table).is_none() {
            return Ok(());
        }
        let mut missing = Ok(());
        let some = self.views.catalog.some_writers(table, range);
        for at in 0.. {
            let Some(join) = self.views.catalog.nth_writer(table, some.as_deref(), at) else {
                break;
            };
            if at > 0 {
                // Groups may be made as joins are computed, so each further join looks again.
                group = self.store.table(table).group_holding(&range.first, &range.last);
            }
            if self.ensure_in(join, table, group, range).is_err() {
                missing = Err(Missing);
            }
        }
        if self.need(table, range).is_err() {
            missing = Err(Missing);
        }
        missing
    }

    /// Calls `each` with the pairs of `[first, last)` (an empty `last`: to the end) in order,
    /// and gives their number. Nothing is called when the read must wait. Streams are no pairs
    /// and are left out.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
        each: &mut dyn FnMut(&[u8], Value<'_>),
    ) -> Result<u64, Stop> {
        self.range_until(first, last, options, &mut |key, value| {
            each(key, value);
            ControlFlow::Continue(())
        })
    }

    /// As [`Engine::range`], until `each` says that no more pairs are wanted.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn range_until(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
        each: &mut impl FnMut(&[u8], Value<'_>) -> ControlFlow<()>,
    ) -> Result<u64, Stop> {
        let mut whole = Vec::new();
        self.range_parts_until(first, last, options, &mut |key, value| {
            each(key.put_into(&mut whole), value)
        })
    }

    /// As [`Engine::range_until`], with the keys as they lie, which costs less where they are written elsewhere.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn range_parts_until(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
        each: &mut impl FnMut(KeyParts<'_>, Value<'_>) -> ControlFlow<()>,
    ) -> Result<u64, Stop> {
        let found = self.read_until(first, last, options, each);
        if let Err(Stop::Wait(ticket)) = found {
            self.keep_collected(ticket);
        }
        found
    }

    fn read_until(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
        each: &mut impl FnMut(KeyParts<'_>, Value<'_>) -> ControlFlow<()>,
    ) -> Result<u64, Stop> {
        self.release_row_holds();
        if !last.is_empty() && first >= last {
            return Ok(0);
        }
        if first.len().max(last.len()) > Limits::KEY_BYTES_CEILING + 1 {
            let range = KeyRange::new(first, last).cut(Limits::KEY_BYTES_CEILING);
            return self.read_until(&range.first, &range.last, options, each);
        }
        self.remove_dead_or_wait(Looks::Range(first, last)).map_err(|Missing| self.stop())?;
        let limit = options.limit.unwrap_or(u64::MAX);
        if let Some(prefix) = within_one_table(first, last) {
            let Some(table) = self.store.find(prefix) else { return Ok(0) };
            return self.read_in_table(table, (first, last), options, each);
        }
        let mut parts = self.store.parts(first, last);
        let mut missing = Ok(());
        for (table, from, to) in &parts {
            if self.views.catalog.role(*table).is_some()
                && self.ensure_table(*table, &KeyRange::new(from, to)).is_err()
            {
                missing = Err(Missing);
            }
        }
        missing.map_err(|Missing| self.stop())?;
        for (table, from, to) in &parts {
            // All of it is of one moment, also where `each` ends the read before it comes to this part.
            let is_merged = self.views.catalog.role(*table).is_some_and(|role| role.merged > 0);
            if is_merged && self.collects() {
                let most = if options.reverse { u64::MAX } else { limit };
                self.collect(*table, &KeyRange::new(from, to), most, false)?;
            }
        }
        if options.reverse {
            parts.reverse();
        }
        let mut found = 0;
        for (table, from, to) in parts {
            if found == limit {
                break;
            }
            let reverse = options.reverse;
            let (first, last, limit) = (&*from, &*to, limit - found);
            let part = Part { table, group: None, first, last, reverse, limit };
            let (more, flow) = self.scan_part(&part, each)?;
            found += more;
            if flow.is_break() {
                break;
            }
        }
        Ok(found)
    }

    /// As [`Engine::range_until`], of a range that lies in one table.
    fn read_in_table(
        &mut self,
        table: TableId,
        (first, last): (&[u8], &[u8]),
        options: RangeOptions,
        each: &mut impl FnMut(KeyParts<'_>, Value<'_>) -> ControlFlow<()>,
    ) -> Result<u64, Stop> {
        let limit = options.limit.unwrap_or(u64::MAX);
        let mut group = self.store.table(table).group_holding(first, last);
        let visited = self.counters.rows_read;
        let (mut ready, mut chooses) = (false, false);
        if let Some(role) = self.views.catalog.role(table)
            && (!role.writers.is_empty() || self.base.loads.own(table).is_some())
        {
            let simple = self.base.loads.own(table).is_none() && role.merged == 0;
            chooses = role.autos > 0;
            ready = simple && group.is_some_and(|group| self.is_ready(table, group, first));
            if ready {
                self.views.catalog.count_hits(table);
            }
            let range = || KeyRange::new(first, last);
            if !ready
                && chooses
                && let Some(rows) = self
                    .read_computed(table, group, &range(), options)
                    .map_err(|Missing| self.stop())?
            {
                return Ok(self.give_computed((table, range(), options.reverse), rows, each));
            }
            if !ready && options.limit.is_some() {
                let part = self
                    .ensure_limited(table, &range(), limit, options.reverse)
                    .map_err(|Missing| self.stop())?;
                let visited = self.counters.rows_read - visited;
                let group = self.store.table(table).group_holding(&part.first, &part.last);
                let (first, last, reverse) = (&*part.first, &*part.last, options.reverse);
                let scanned = Part { table, group, first, last, reverse, limit };
                let (found, _) = self.scan_part(&scanned, each)?;
                if chooses {
                    self.credit_read((table, group), &part, found, visited);
                }
                return Ok(found);
            }
            if !ready {
                self.ensure_part(table, group, &range()).map_err(|Missing| self.stop())?;
                group = self.store.table(table).group_holding(first, last);
            }
        }
        let visited = self.counters.rows_read - visited;
        let part = Part { table, group, first, last, reverse: options.reverse, limit };
        let (found, _) = self.scan_part(&part, each)?;
        if chooses {
            match group.filter(|_| ready) {
                Some(group) => self.credit_group(table, group, found),
                None => {
                    let range = KeyRange::new(first, last);
                    self.credit_read((table, group), &range, found, visited);
                }
            }
        }
        Ok(found)
    }

    /// Calls `each` with the visible keys of a table in `span`: the public table's, and what
    /// `writers` give from their layers or by computing it now, the later-installed one first.
    /// The values are held until [`Engine::release_row_holds`].
    pub(crate) fn merged_rows(
        &mut self,
        table: TableId,
        writers: &[u32],
        span: &KeyRange,
        each: &mut dyn FnMut(&[u8], ValueRef),
    ) -> Result<(), Missing> {
        let mut rows = Vec::new();
        let mut missing = Ok(());
        for &join in writers {
            let installed = self.views.catalog.join(join);
            let (installed, layer, mode, layered) =
                (installed.installed, installed.layer, installed.mode(), installed.is_layered());
            let computed = mode == Mode::Pull || (self.views.from_scratch && mode.is_maintained());
            if computed {
                match self.compute(join, span) {
                    Ok(folded) => rows.extend(folded.into_iter().map(|folded| Row {
                        key: folded.key,
                        installed,
                        value: folded.value,
                    })),
                    Err(Missing) => missing = Err(Missing),
                }
            } else if layered {
                let mut found = Vec::new();
                self.reads.long_reads.collections.note_read(layer, span);
                self.scan_table(layer, span, &mut |key, value| {
                    found.push(Row { key: key.into(), installed, value });
                });
                self.hold(&found);
                rows.append(&mut found);
            }
        }
        if self.reads.slices.is_over() {
            self.scratch.row_holds.extend(rows.iter().map(|row| row.value));
            return Err(Missing);
        }
        let mut public = Vec::new();
        let outputs: Vec<_> = if self.views.from_scratch {
            let ids = self.views.catalog.role(table).map_or(&[][..], |role| &role.writers);
            let push = |id: &&u32| self.views.catalog.join(**id).mode().is_maintained();
            ids.iter().filter(push).map(|&id| self.views.catalog.join(id).plan.clone()).collect()
        } else {
            Vec::new()
        };
        let placed = self.base.placed.take();
        self.reads.long_reads.collections.note_read(table, span);
        let (ending, mut is_late) = (self.ending.clone(), false);
        self.scan_table_until(table, span, false, &mut |key, value| {
            is_late = ending.as_ref().is_some_and(|ending| ending.is_over());
            if is_late {
                return ControlFlow::Break(());
            }
            if !outputs.iter().any(|plan| plan.join.output.matches(key))
                || placed.as_ref().is_some_and(|placed| !placed.owns(key))
            {
                public.push(Row { key: key.into(), installed: 0, value });
            }
            ControlFlow::Continue(())
        });
        self.base.placed = placed;
        self.hold(&public);
        rows.append(&mut public);
        rows.sort_by(|a, b| (&a.key, Reverse(a.installed)).cmp(&(&b.key, Reverse(b.installed))));
        rows.chunk_by(|a, b| a.key == b.key).for_each(|same| each(&same[0].key, same[0].value));
        self.scratch.row_holds.extend(rows.iter().map(|row| row.value));
        if is_late { Err(Missing) } else { missing }
    }

    fn hold(&mut self, rows: &[Row]) {
        for row in rows {
            self.store.pool.retain(row.value);
        }
    }

    /// Gives back the references that merged reads hold.
    pub(crate) fn release_row_holds(&mut self) {
        while let Some(value) = self.scratch.row_holds.pop() {
            self.store.pool.release(value);
        }
    }

    /// Whether a reader of `table` sees `key`.
    pub(crate) fn is_visible(&mut self, table: TableId, key: &[u8]) -> Result<bool, Missing> {
        let own =
            self.base.placed.is_none() || self.need_elsewhere(table, &KeyRange::point(key))?;
        if own {
            self.need_key(table, key)?;
        }
        if self.store.table(table).get(key).is_some() {
            return Ok(true);
        }
        let Some(role) = self.views.catalog.role(table) else { return Ok(false) };
        Ok(role.writers.iter().any(|&join| {
            let installed = self.views.catalog.join(join);
            installed.is_layered() && self.store.table(installed.layer).get(key).is_some()
        }))
    }
}

/// `name|`, where all keys of `[first, last)` start with it.
#[inline]
pub(crate) fn within_one_table<'a>(first: &'a [u8], last: &[u8]) -> Option<&'a [u8]> {
    let at = first.iter().position(|&byte| byte == SEPARATOR)?;
    let prefix = &first[..=at];
    let inside = last.starts_with(prefix)
        || (last.len() == prefix.len() && last[..at] == prefix[..at] && last[at] == SEPARATOR + 1)
        || (!last.is_empty() && end_at_most(last, prefix));
    inside.then_some(prefix)
}
