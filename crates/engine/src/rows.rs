//! The rows that the sources of joins read: keys, and what their values bind.
//!
//! A source with a lens ([`headwater_pattern::lens`]) sees a key as the row that key and value give, or not at all. So a value that
//! binds something else takes one row away and brings another, and one that a condition admits no longer takes its row
//! away: to all that maintains a join these are keys of a source that come and go.
//!
//! # Cost
//! Without a lens a row is the key, and nothing is looked at.

use crate::catalog::Plan;
use crate::cells::Change;
use crate::engine::Engine;
use crate::exec::Missing;
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::key::SEPARATOR;
use headwater_pattern::lens::Look;
use headwater_pattern::{Component, Source};
use headwater_pool::{Pool, ValueRef};
use headwater_store::{Scan, TableId};

/// How often keys of no use may be passed over within one span of a source for nothing: a few seeks are part of finding the span's rows. Each
/// further one counts as a row, so that a slice ends however many there are.
const SKIPPED_FREE: usize = 8;

/// A key whose value is looked at counts as one row more for each so many bytes of that: reading them takes as long.
pub(crate) const BYTES_A_ROW: usize = 1024;

/// Takes a key, the row that it gives, if it gives one, its value, and as how many rows it counts: none where what follows was passed over.
pub(crate) type EachRow<'e> =
    dyn FnMut(&[u8], Option<&[u8]>, ValueRef, usize) -> ControlFlow<()> + 'e;

/// Takes a key, the row that it gives, if it gives one, and as how many rows it counts.
pub(crate) type EachRowAlone<'e> = dyn FnMut(&[u8], Option<&[u8]>, usize) -> ControlFlow<()> + 'e;

/// Tells where the next key may lie that is of use, behind one that is of none ([`headwater_pattern::Passing::next`]).
pub(crate) type PassOver<'r> = dyn Fn(&[u8]) -> Option<&'r [u8]> + 'r;

/// Which keys of a source are looked at, and in which order.
#[derive(Clone, Copy)]
pub(crate) struct LookedAt<'r> {
    pub(crate) span: &'r KeyRange,
    /// Keys that it says are of no use may be left out; for those who begin with the first alone.
    pub(crate) passing: Option<&'r PassOver<'r>>,
    /// The last key comes first.
    pub(crate) is_reverse: bool,
}

impl<'r> LookedAt<'r> {
    /// All keys of a span, in order.
    pub(crate) fn all(span: &'r KeyRange) -> Self {
        Self { span, passing: None, is_reverse: false }
    }
}

/// The rows of a key before and after a change; none where it gave, or gives, none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rows {
    pub(crate) old: Option<Vec<u8>>,
    pub(crate) new: Option<Vec<u8>>,
    /// The new value does not give what a slot is to stand for.
    pub(crate) unreadable: bool,
}

/// Looks at a key and its value through a source's lens. The row that they give is then in `row` alone.
pub(crate) fn look(
    source: &Source,
    pool: &Pool,
    key: &[u8],
    value: ValueRef,
    row: &mut Vec<u8>,
) -> Look {
    row.clear();
    let view = pool.view(pool.content(value));
    let mut parts = view.parts();
    let bytes = match (parts.next(), parts.next()) {
        (None, _) => Cow::Borrowed(&[][..]),
        (Some(part), None) => Cow::Borrowed(part),
        _ => Cow::Owned(view.to_vec()),
    };
    source.look(key, &bytes, row)
}

/// As how many rows a key counts whose value is looked at.
fn weight_of(pool: &Pool, value: ValueRef) -> usize {
    1 + pool.view(pool.content(value)).len() / BYTES_A_ROW
}

/// The rows of a source that a change of a key takes and brings. The key matches the source's pattern.
pub(crate) fn rows_of(
    source: &Source,
    pool: &Pool,
    key: &[u8],
    (old, new): (Option<ValueRef>, Option<ValueRef>),
) -> Rows {
    let mut last = Look::Row;
    let mut of = |value: Option<ValueRef>| {
        let mut row = Vec::new();
        last = look(source, pool, key, value?, &mut row);
        (last == Look::Row).then_some(row)
    };
    let (old, new_row) = (of(old), of(new));
    Rows { old, new: new_row, unreadable: new.is_some() && last == Look::Unreadable }
}

impl Plan {
    pub(crate) fn source(&self, source: usize) -> &Source {
        &self.join.sources[source]
    }

    /// Whether a source looks at its values before it takes a key.
    #[inline]
    pub(crate) fn has_lens(&self, source: usize) -> bool {
        self.join.sources[source].lens.is_some()
    }

    /// What of `range` and beside it is computed at once where a value gives components of the output. What a value gives is
    /// not known before all values are read that the key's other slots admit: whoever asks for some of the board's scores has
    /// the board computed, unless the other slots name a few keys of the source. Which outputs of a group are kept is not known before all are.
    pub(crate) fn widened(&self, range: KeyRange) -> KeyRange {
        let Some(at) = self.together_at else { return range };
        let output = &self.join.output;
        let Some(fixed) = headwater_pattern::fixed_slots(output, &range) else { return range };
        let is_fixed = |component: &Component| match component {
            Component::Slot { slot, .. } => {
                fixed.is_bound(*slot) && !self.join.is_value_slot(*slot)
            }
            Component::Literal(_) => false,
        };
        if self.join.keep.is_none() && output.components[at..].iter().any(is_fixed) {
            return range;
        }
        let KeyRange { first, last } = range;
        let first = lead(&first, at).map(<[u8]>::to_vec).unwrap_or(first);
        // What ends where a group begins has nothing of that.
        let within = lead(&last, at).filter(|lead| lead.len() < last.len());
        let last = within.map(headwater_base::prefix_end).unwrap_or(last);
        KeyRange { first, last }
    }

    /// What of a range may hold outputs, with all of each group of which it has a part.
    pub(crate) fn whole_groups(&self, range: &KeyRange) -> KeyRange {
        self.widened(range.intersection(&self.join.output.range_of_all()))
    }
}

/// What a key has of the table and so many components, and the `|` behind them; `None` where it has no more than these.
pub(crate) fn lead(key: &[u8], components: usize) -> Option<&[u8]> {
    let separators = key.iter().enumerate().filter(|(_, byte)| **byte == SEPARATOR);
    separators.map(|(at, _)| &key[..=at]).nth(components)
}

impl Engine {
    /// Calls `each` with the rows of the keys in `span`, of a source that no join writes, until it says that it wants no more; with
    /// nothing where a key gives no row, and with as how many rows it counts.
    pub(crate) fn rows_in_order(
        &mut self,
        join: u32,
        source: usize,
        span: &KeyRange,
        reverse: bool,
        each: &mut EachRowAlone<'_>,
    ) {
        let plan = self.views.catalog.join(join).plan.clone();
        let source_of = plan.source(source);
        let mut row = core::mem::take(&mut self.scratch.row_room);
        let mut key = core::mem::take(&mut self.scratch.key_room);
        let pool = &self.store.pool;
        let scan = Scan { pool, first: &span.first, last: &span.last, reverse };
        let table = self.store.table(plan.source_tables[source]);
        let _ = table.scan(&scan, &mut key, &mut |key, value| {
            if !source_of.pattern.matches(key) {
                return each(key, None, 1);
            }
            if source_of.lens.is_none() {
                return each(key, Some(key), 1);
            }
            let is_row = look(source_of, pool, key, value, &mut row) == Look::Row;
            each(key, is_row.then_some(&row[..]), weight_of(pool, value))
        });
        self.scratch.key_room = key;
        self.scratch.row_room = row;
    }

    /// Calls `each` with the keys of a source's pattern in `span` (base keys, and outputs of other joins as a client would see
    /// them) until it says that it wants no more.
    pub(crate) fn rows(
        &mut self,
        join: u32,
        source: usize,
        LookedAt { span, passing, is_reverse }: LookedAt<'_>,
        each: &mut EachRow<'_>,
    ) -> Result<(), Missing> {
        let installed = self.views.catalog.join(join);
        let plan = installed.plan.clone();
        let source_of = plan.source(source);
        let table = plan.source_tables[source];
        let merged = self.views.catalog.role(table).is_some_and(|role| role.merged > 0);
        let mut row = core::mem::take(&mut self.scratch.row_room);
        let mut unreadable = 0;
        let mut on_row = |pool: &Pool, key: &[u8], value: ValueRef, passed_as: Option<usize>| {
            if let Some(weight) = passed_as {
                return each(key, None, value, weight);
            }
            if source_of.lens.is_none() {
                return each(key, Some(key), value, 1);
            }
            let matches = source_of.pattern.matches(key);
            let weight = if matches { weight_of(pool, value) } else { 1 };
            let seen = matches.then(|| look(source_of, pool, key, value, &mut row));
            unreadable += u64::from(seen == Some(Look::Unreadable));
            each(key, (seen == Some(Look::Row)).then_some(&row[..]), value, weight)
        };
        let mut done = Ok(());
        if merged || (self.views.from_scratch && !installed.upstream[source].is_empty()) {
            let upstream = installed.upstream[source].clone();
            let mut flow = ControlFlow::Continue(());
            let mut rows = Vec::new();
            done = self.merged_rows(table, &upstream, span, &mut |key, value| {
                rows.push((key.to_vec(), value));
            });
            if is_reverse {
                rows.reverse();
            }
            for (key, value) in &rows {
                if flow.is_continue() {
                    flow = on_row(&self.store.pool, key, *value, None);
                }
            }
        } else {
            self.reads.long_reads.collections.note_read(table, span);
            let mut room = core::mem::take(&mut self.scratch.key_room);
            let pool = &self.store.pool;
            let table = self.store.table(table);
            let (mut from, mut skipped) = (Some(&span.first[..]), 0);
            while let Some(first) = from.take() {
                let scan = Scan { pool, first, last: &span.last, reverse: is_reverse };
                let _ = table.scan(&scan, &mut room, &mut |key, value| {
                    if let Some(next) = passing.and_then(|passing| passing(key)) {
                        skipped += 1;
                        let weight = usize::from(skipped > SKIPPED_FREE);
                        let flow = on_row(pool, key, value, Some(weight));
                        from = flow.is_continue().then_some(next);
                        return ControlFlow::Break(());
                    }
                    on_row(pool, key, value, None)
                });
            }
            self.scratch.key_room = room;
        }
        self.scratch.row_room = row;
        self.counters.unreadable += unreadable;
        done
    }

    /// The keys of one table in `span`, layers left out.
    pub(crate) fn scan_table(
        &mut self,
        table: TableId,
        span: &KeyRange,
        each: &mut dyn FnMut(&[u8], ValueRef),
    ) {
        self.scan_table_until(table, span, false, &mut |key, value| {
            each(key, value);
            ControlFlow::Continue(())
        });
    }

    /// As [`Engine::scan_table`], from the last key on where it goes in `reverse`, until `each` wants no more.
    pub(crate) fn scan_table_until(
        &mut self,
        table: TableId,
        span: &KeyRange,
        reverse: bool,
        each: &mut dyn FnMut(&[u8], ValueRef) -> ControlFlow<()>,
    ) {
        let mut key = core::mem::take(&mut self.scratch.key_room);
        let pool = &self.store.pool;
        let scan = Scan { pool, first: &span.first, last: &span.last, reverse };
        let _ = self.store.table(table).scan(&scan, &mut key, &mut |key, value| each(key, value));
        self.scratch.key_room = key;
    }

    /// Whether a reader of `table` sees a row of a source: the key, with a value that gives this row.
    pub(crate) fn is_row_visible(
        &mut self,
        plan: &Plan,
        source: usize,
        row: &[u8],
    ) -> Result<bool, Missing> {
        let table = plan.source_tables[source];
        let source = plan.source(source);
        let key = source.key_of(row);
        if !self.is_visible(table, key)? {
            return Ok(false);
        }
        if source.lens.is_none() {
            return Ok(true);
        }
        let mut value = self.store.table(table).get(key);
        if self.views.catalog.role(table).is_some_and(|role| role.merged > 0) {
            let point = KeyRange::point(key);
            let writers = self.views.catalog.writers_within(table, &point);
            let merged = self.merged_rows(table, &writers, &point, &mut |_, seen| {
                value = Some(seen);
            });
            if merged.is_err() {
                self.release_row_holds();
                return Err(Missing);
            }
        }
        let mut seen = Vec::new();
        let pool = &self.store.pool;
        let gives =
            value.is_some_and(|value| look(source, pool, key, value, &mut seen) == Look::Row);
        self.release_row_holds();
        Ok(gives && seen == row)
    }

    /// The changes of a check source's rows that a change of a key makes: for each whether the row was there before.
    pub(crate) fn checked_rows(
        &mut self,
        plan: &Plan,
        source: usize,
        key: &[u8],
        change: &Change,
    ) -> [Option<(Vec<u8>, bool)>; 2] {
        let Rows { old, new, unreadable } =
            rows_of(plan.source(source), &self.store.pool, key, (change.old, change.new));
        self.counters.unreadable += u64::from(unreadable);
        if old == new {
            return [None, None];
        }
        [old.map(|row| (row, true)), new.map(|row| (row, false))]
    }
}
