//! Reads of the first few keys of a range, or the last few: what they cost is what they show.
//!
//! `PREFIX t|ann| REV LIMIT 20` wants the newest posts of a timeline that may have 50 000. Which these are is not known before
//! the sources are looked at, but each source has them in its order: so one looks at the end of each source's span, and keeps
//! the best output keys that were seen, as many as are wanted. The worst of them divides the range. What lies before it holds as
//! many outputs as are wanted, and is made current as any range is; what lies behind it is not computed. A next page begins
//! where the first one ended, and extends it.
//!
//! What was seen is a hint and no more: the keys that a read shows are counted when the part is current, and where there are
//! too few (outputs that share a key, for example) the next part is looked for, twice as long as the last.
//!
//! # Cost
//! The look ([`crate::hints`]), and what is computed.

use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use crate::views::Views;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::key::{before_end, end_at_most};
use headwater_store::{Scan, TableId};

/// Reads of more keys than this have all of their range computed.
const LIMIT_MAX: u64 = 10_000;

/// How many reads are known that go on with the part which they have begun.
const LIMITED_READS_MAX: usize = 64;

/// A read of the first few keys of a range, or the last ones.
#[derive(PartialEq, Eq, Debug)]
struct LimitedRead {
    table: TableId,
    range: KeyRange,
    limit: u64,
    reverse: bool,
}

/// How far such a read has come: what it makes current of its range, and how many keys were wanted of what was added last.
#[derive(Debug)]
struct LimitedProgress {
    part: KeyRange,
    wanted: usize,
}

/// Reads that have had a slice, and go on with the part that they have begun: which one that is takes a look at many rows where few fulfil
/// the conditions. It is a hint still, that of a read which never came back included.
#[derive(Debug, Default)]
pub(crate) struct LimitedReads(Vec<(LimitedRead, LimitedProgress)>);

impl LimitedReads {
    fn take(&mut self, asked: &LimitedRead) -> Option<LimitedProgress> {
        let at = self.0.iter().position(|(other, _)| other == asked)?;
        Some(self.0.remove(at).1)
    }

    fn keep(&mut self, asked: LimitedRead, begun: LimitedProgress) {
        if self.0.len() >= LIMITED_READS_MAX {
            self.0.remove(0);
        }
        self.0.push((asked, begun));
    }
}

/// Ends a part of a range at `cut`, or begins it there for a read from the end, if that leaves less of it.
fn shorten(part: &mut KeyRange, cut: &[u8], reverse: bool) {
    if reverse && *cut > *part.first {
        part.first = cut.into();
    } else if !reverse && !cut.is_empty() && before_end(cut, &part.last) {
        part.last = cut.into();
    }
}

impl Engine {
    /// Makes a part of `range` current that holds the first `limit` keys (or the last ones), or all of it; which part that is.
    ///
    /// # Errors
    /// As for [`Engine::ensure_table`].
    pub(crate) fn ensure_limited(
        &mut self,
        table: TableId,
        range: &KeyRange,
        limit: u64,
        reverse: bool,
    ) -> Result<KeyRange, Missing> {
        let whole = |engine: &mut Self| engine.ensure_table(table, range).map(|()| range.clone());
        if let Some(part) = self.need_limited(table, range, limit, reverse)? {
            return Ok(part);
        }
        let Some(joins) = self.joins_to_limit(table, range, limit) else { return whole(self) };
        self.ensure_first(table, (&joins, &[]), (range, limit, reverse))
    }

    /// As [`Engine::ensure_limited`], of what these joins give; all of them [may be limited](Engine::may_limit). What is stored of the outputs of
    /// `others`, which nobody has made current, does not count.
    pub(crate) fn ensure_first(
        &mut self,
        table: TableId,
        (joins, others): (&[u32], &[u32]),
        (range, limit, reverse): (&KeyRange, u64, bool),
    ) -> Result<KeyRange, Missing> {
        let asked = LimitedRead { table, range: range.clone(), limit, reverse };
        let begun = self.reads.limited.take(&asked);
        let mut begun = match begun {
            Some(begun) => begun,
            None => self.begin_limited(joins, &asked)?,
        };
        let mut added = begun.part.clone();
        loop {
            if let Err(Missing) = self.ensure_joins(table, joins, &added) {
                self.keep_limited(asked, begun);
                return Err(Missing);
            }
            if begun.part == *range || self.holds(table, &begun.part, limit, others) {
                return Ok(begun.part);
            }
            let wanted = begun.wanted.saturating_mul(2).min(LIMIT_MAX as usize);
            let mut rest = range.clone();
            if reverse {
                rest.last.clone_from(&begun.part.first);
            } else {
                rest.first.clone_from(&begun.part.last);
            }
            added = match self.next_limited(joins, &rest, wanted, reverse) {
                Ok(added) => added,
                Err(Missing) => {
                    self.keep_limited(asked, begun);
                    return Err(Missing);
                }
            };
            if reverse {
                begun.part.first.clone_from(&added.first);
            } else {
                begun.part.last.clone_from(&added.last);
            }
            begun.wanted = wanted;
        }
    }

    /// Remembers how far a read has come that goes on later.
    fn keep_limited(&mut self, asked: LimitedRead, begun: LimitedProgress) {
        if self.reads.slices.is_active() {
            self.reads.limited.keep(asked, begun);
        }
    }

    fn begin_limited(
        &mut self,
        joins: &[u32],
        asked: &LimitedRead,
    ) -> Result<LimitedProgress, Missing> {
        let wanted = usize::try_from(asked.limit).unwrap_or(usize::MAX);
        let part = self.next_limited(joins, &asked.range, wanted, asked.reverse)?;
        Ok(LimitedProgress { part, wanted })
    }

    /// The joins that give keys in `range`, a part of one table, if less than all of these can be computed for a limited read.
    fn joins_to_limit(&self, table: TableId, range: &KeyRange, limit: u64) -> Option<Vec<u32>> {
        let joins = self.views.catalog.writers_within(table, range);
        self.may_limit(table, &joins, (range, limit)).then_some(joins)
    }

    /// Whether what these joins give first in a range, a part of one table, can be computed without the rest.
    pub(crate) fn may_limit(
        &self,
        table: TableId,
        joins: &[u32],
        (range, limit): (&KeyRange, u64),
    ) -> bool {
        if !(1..=LIMIT_MAX).contains(&limit) {
            return false;
        }
        let is_here = !self.base.spans_homes(range) && !self.base.is_elsewhere(range);
        let is_plain = self.views.catalog.role(table).is_some_and(|role| role.merged == 0)
            && self.base.loads.own(table).is_none();
        is_here
            && is_plain
            && !joins.is_empty()
            && joins.iter().all(|&join| self.begins_in_order(join))
    }

    /// Whether the first outputs of a join are found at the ends of its sources.
    fn begins_in_order(&self, join: u32) -> bool {
        let installed = self.views.catalog.join(join);
        let plan = &installed.plan;
        // What several joins give of a source is merged as it is read, not stored in order.
        let mut sources = installed.upstream.iter().zip(&plan.source_tables);
        let is_stored = sources.all(|(upstream, table)| {
            upstream.is_empty()
                || self.views.catalog.role(*table).is_none_or(|role| role.merged == 0)
        });
        installed.mode().is_maintained() && is_stored && plan.together_at.is_none()
    }

    /// The part of what is left that a limited read makes current next.
    fn next_limited(
        &mut self,
        joins: &[u32],
        rest: &KeyRange,
        wanted: usize,
        reverse: bool,
    ) -> Result<KeyRange, Missing> {
        let mut part = rest.clone();
        let mut open = Vec::new();
        for &join in joins {
            // What is there already costs nothing.
            match self.views.materialized_up_to(join, rest, reverse) {
                Some(cut) => shorten(&mut part, &cut, reverse),
                None => open.push(join),
            }
        }
        if !open.is_empty()
            && let Some(cut) = self.dividing_hint(&open, &part, (wanted, reverse), true)?
        {
            shorten(&mut part, &cut, reverse);
        }
        Ok(part)
    }

    /// Whether there are so many keys in a range, or more, the outputs of `others` left out.
    fn holds(&self, table: TableId, range: &KeyRange, limit: u64, others: &[u32]) -> bool {
        let mut left = limit;
        let is_of_others = |key: &[u8]| {
            others.iter().any(|&join| self.views.catalog.join(join).plan.join.output.matches(key))
        };
        let pool = &self.store.pool;
        let scan = Scan { pool, first: &range.first, last: &range.last, reverse: false };
        let flow = self.store.table(table).scan(&scan, &mut Vec::new(), &mut |key, value| {
            // Streams are no pairs.
            let is_pair = !matches!(Handle::of(value), Some(Handle::Stream(_)));
            left -= u64::from(is_pair && !is_of_others(key));
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        flow.is_break()
    }
}

impl Views {
    /// Where what is materialized of a join's outputs at the start of `range` ends (empty: nowhere), or where it begins at the end of
    /// `range`; `None`: there is nothing.
    fn materialized_up_to(&self, join: u32, range: &KeyRange, reverse: bool) -> Option<Vec<u8>> {
        if !reverse {
            let id = self.status_at(join, &range.first)?;
            return Some(self.statuses.get(id).last().to_vec());
        }
        let id = self.catalog.join(join).cover.before_end(&range.last)?;
        let status = self.statuses.get(id);
        end_at_most(&range.last, status.last()).then(|| status.first().to_vec())
    }
}
