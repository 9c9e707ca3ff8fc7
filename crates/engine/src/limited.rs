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
//! A seek for each span of the value source, and a row or two more, besides the rows of the check sources. Where a source does not
//! order its keys as the output does, each of its spans is looked at as far as there are keys wanted. Where another join gives the source, it
//! is made current as far as it is looked at, which costs a limited read of it.

use crate::catalog::Plan;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::handles::Handle;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::{Bound, ControlFlow};
use headwater_base::key::{before_end, end_bound};
use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Bindings, containing_range, fixed_slots};
use headwater_store::{Scan, TableId};

/// Reads of more keys than this have all of their range computed.
const LIMIT_MAX: u64 = 10_000;
/// More rows than this are not looked at for a hint, beside those wanted.
const ROWS_MAX: usize = 20_000;

/// The best output keys that were seen.
struct Best<'r> {
    range: &'r KeyRange,
    reverse: bool,
    wanted: usize,
    keys: BTreeSet<Vec<u8>>,
    /// How many rows may be looked at still.
    rows: usize,
    /// What is not here is asked for.
    loads: bool,
    /// Something was, and has yet to come.
    lacks: bool,
}

impl Best<'_> {
    /// Takes an output key; whether one behind it in the order of the read may be of use still.
    fn offer(&mut self, key: &[u8]) -> bool {
        let full = self.keys.len() >= self.wanted;
        let worst = if self.reverse { self.keys.first() } else { self.keys.last() };
        if full && worst.is_some_and(|worst| if self.reverse { key <= worst } else { key >= worst })
        {
            return false;
        }
        self.keys.insert(key.to_vec());
        if self.keys.len() > self.wanted {
            if self.reverse {
                self.keys.pop_first();
            } else {
                self.keys.pop_last();
            }
        }
        true
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
        let Some(join) = self.join_to_limit(table, range, limit) else { return whole(self) };
        let mut rest = range.clone();
        let mut wanted = usize::try_from(limit).unwrap_or(usize::MAX);
        loop {
            let (part, is_last) = self.next_limited(join, &rest, wanted, reverse)?;
            self.ensure_table(table, &part)?;
            let done = if reverse {
                KeyRange::new(&part.first, &range.last)
            } else {
                KeyRange::new(&range.first, &part.last)
            };
            if is_last || self.holds(table, &done, limit) {
                return Ok(done);
            }
            if reverse {
                rest.last = part.first;
            } else {
                rest.first = part.last;
            }
            wanted = wanted.saturating_mul(2);
        }
    }

    /// The join that alone gives keys in `range`, a part of one table, if less than all of them can be computed for a limited read.
    pub(crate) fn join_to_limit(
        &self,
        table: TableId,
        range: &KeyRange,
        limit: u64,
    ) -> Option<u32> {
        let is_here = !self.base.spans_homes(range) && !self.base.is_elsewhere(range);
        if limit == 0 || limit > LIMIT_MAX || !is_here {
            return None;
        }
        let role = self.views.catalog.role(table)?;
        if role.merged > 0 || self.base.loads.own(table).is_some() {
            return None;
        }
        let [join] = self.views.catalog.writers_within(table, range)[..] else { return None };
        let installed = self.views.catalog.join(join);
        let plan = &installed.plan;
        // What several joins give of a source is merged as it is read, not stored in order.
        let mut sources = installed.upstream.iter().zip(&plan.source_tables);
        let is_stored = sources.all(|(upstream, table)| {
            upstream.is_empty()
                || self.views.catalog.role(*table).is_none_or(|role| role.merged == 0)
        });
        let is_kept = installed.mode().is_maintained();
        (is_kept && is_stored && plan.together_at.is_none()).then_some(join)
    }

    /// The part of what is left that a limited read has made current next, and whether it is all of that.
    fn next_limited(
        &mut self,
        join: u32,
        rest: &KeyRange,
        wanted: usize,
        reverse: bool,
    ) -> Result<(KeyRange, bool), Missing> {
        let all = (rest.clone(), true);
        // What is there already costs nothing.
        let cover = &self.views.catalog.join(join).cover;
        if reverse {
            let below = (Bound::Unbounded, end_bound(&rest.last));
            if let Some((first, &id)) = cover.range::<[u8], _>(below).next_back()
                && headwater_base::key::end_at_most(&rest.last, &self.views.statuses.get(id).last)
            {
                if **first <= *rest.first {
                    return Ok(all);
                }
                return Ok((KeyRange::new(first, &rest.last), false));
            }
        } else if let Some(id) = self.views.status_at(join, &rest.first) {
            let end = self.views.statuses.get(id).last.to_vec();
            if end.is_empty() || !before_end(&end, &rest.last) {
                return Ok(all);
            }
            return Ok((KeyRange::new(&rest.first, &end), false));
        }
        Ok(match self.dividing_hint(join, rest, (wanted, reverse), true)? {
            Some(cut) if reverse => (KeyRange::new(&cut, &rest.last), false),
            Some(cut) => (KeyRange::new(&rest.first, &cut), false),
            None => all,
        })
    }

    /// Whether there are so many keys in a range, or more.
    fn holds(&self, table: TableId, range: &KeyRange, limit: u64) -> bool {
        let mut left = limit;
        let pool = &self.store.pool;
        let scan = Scan { pool, first: &range.first, last: &range.last, reverse: false };
        let flow = self.store.table(table).scan(&scan, &mut Vec::new(), &mut |_, value| {
            // Streams are no pairs.
            left -= u64::from(!matches!(Handle::of(value), Some(Handle::Stream(_))));
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        flow.is_break()
    }

    /// A key within `range` such that about `wanted` outputs lie before it (or from it on); nothing where that is not known
    /// to be less than all of it, or data is not here.
    ///
    /// # Errors
    /// Data is not here, and is asked for, since the hint `loads` what it needs.
    pub(crate) fn dividing_hint(
        &mut self,
        join: u32,
        range: &KeyRange,
        (wanted, reverse): (usize, bool),
        loads: bool,
    ) -> Result<Option<Vec<u8>>, Missing> {
        let plan = self.views.catalog.join(join).plan.clone();
        let Some(bindings) = fixed_slots(&plan.join.output, range) else { return Ok(None) };
        let rows = ROWS_MAX.saturating_add(wanted);
        let mut best =
            Best { range, reverse, wanted, keys: BTreeSet::new(), rows, loads, lacks: false };
        let is_known = self.look_for_best(join, &plan, 0, &bindings, &mut best);
        self.counters.rows_read += (rows - best.rows) as u64;
        if best.lacks {
            return Err(Missing);
        }
        if !is_known || best.keys.len() < wanted {
            return Ok(None);
        }
        if reverse {
            return Ok(best.keys.pop_first().filter(|cut| *cut > range.first));
        }
        let cut = best.keys.pop_last().map(|mut cut| {
            cut.push(0);
            cut
        });
        Ok(cut.filter(|cut| before_end(cut, &range.last)))
    }

    /// Asks for what is not here of a source's span.
    fn need_source(&mut self, plan: &Plan, level: usize, span: &KeyRange) -> Result<(), Missing> {
        let table = plan.source_tables[level];
        if !self.base.is_aligned(plan, level) && !self.need_elsewhere(table, span)? {
            return Ok(());
        }
        self.need(table, span)
    }

    /// Makes what other joins give of a source's span current, as far as it is to be looked at; which part that is. `None`: that takes a read
    /// which may ask for what is not here.
    fn ensure_upstream(
        &mut self,
        plan: &Plan,
        level: usize,
        span: &KeyRange,
        best: &Best<'_>,
    ) -> Option<Result<KeyRange, Missing>> {
        if !best.loads {
            return None;
        }
        let table = plan.source_tables[level];
        if level != plan.value_source() {
            return Some(self.ensure_table(table, span).map(|()| span.clone()));
        }
        // More rows than outputs that are wanted are of use only where the source has another order, and then this is a hint.
        Some(self.ensure_limited(table, span, best.wanted as u64, best.reverse))
    }

    /// Looks at the rows of sources from `level` on; whether all could be looked at that had to be.
    fn look_for_best(
        &mut self,
        join: u32,
        plan: &Rc<Plan>,
        level: usize,
        bindings: &Bindings<'_>,
        best: &mut Best<'_>,
    ) -> bool {
        let (pattern, source) = (plan.pattern(level), plan.source(level));
        let output = &plan.join.output;
        let Some(mut span) = containing_range(output, best.range, pattern, bindings) else {
            return true;
        };
        if !self.is_here_ahead(plan, level, &span, false) {
            if !best.loads {
                return false;
            }
            if self.need_source(plan, level, &span).is_err() {
                best.lacks = true;
                return true;
            }
        }
        if !self.views.catalog.join(join).upstream[level].is_empty() {
            match self.ensure_upstream(plan, level, &span, best) {
                Some(Ok(part)) => span = part,
                Some(Err(Missing)) => {
                    best.lacks = true;
                    return true;
                }
                None => return false,
            }
        }
        if level == plan.value_source() {
            let mut key = Vec::new();
            let reverse = best.reverse;
            self.rows_in_order(join, level, &span, reverse, &mut |row, weight| {
                if best.rows == 0 {
                    return ControlFlow::Break(());
                }
                best.rows = best.rows.saturating_sub(weight);
                let mut inner = *bindings;
                key.clear();
                let gives = row.is_some_and(|row| source.bind(row, &mut inner))
                    && output.fill(&inner, &mut key)
                    && key.len() <= Limits::KEY_BYTES_CEILING
                    && best.range.contains(&key);
                if gives && !best.offer(&key) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            return best.rows > 0;
        }
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        self.rows_in_order(join, level, &span, false, &mut |row, weight| {
            if best.rows == 0 {
                return ControlFlow::Break(());
            }
            best.rows = best.rows.saturating_sub(weight);
            if let Some(row) = row {
                text.extend_from_slice(row);
                ends.push(text.len());
            }
            ControlFlow::Continue(())
        });
        if best.rows == 0 {
            return false;
        }
        let mut start = 0;
        for end in ends {
            let mut inner = *bindings;
            if source.bind(&text[start..end], &mut inner)
                && !self.look_for_best(join, plan, level + 1, &inner, best)
            {
                return false;
            }
            start = end;
        }
        true
    }
}
