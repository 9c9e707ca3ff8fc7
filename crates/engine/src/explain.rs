//! EXPLAIN and VERIFY: why an answer is what it is, and whether it is right.

use crate::dead::Looks;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::report::{Difference, ExplainLine, Stop};
use crate::views::Views;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::{KeyRange, Limits};
use headwater_pattern::{Mode, containing_range, fixed_slots};
use headwater_pool::ValueRef;
use headwater_store::{Scan, TableId};

mod sources;

/// Most source spans and status ranges that one explanation lists.
const LISTED_MAX: usize = 20;
/// Most tables, and most joins, that one explanation tells of.
const TOLD_MAX: usize = 200;
/// Most keys that an explanation looks at for a number of them, and joins for sources that are down: it takes a few milliseconds, whatever it is about. A
/// span may take half of what those before it have left, so that the first ones leave something to the others.
const LOOKED_AT_MAX: u64 = 40_000;
/// A key whose value is read counts as one more for each so many bytes.
const BYTES_A_KEY: u64 = 64;

/// What an explanation may still look at and tell.
#[derive(Debug)]
struct Budget {
    keys: u64,
    tables: usize,
    joins: usize,
}

impl Budget {
    fn whole() -> Self {
        Self { keys: LOOKED_AT_MAX, tables: TOLD_MAX, joins: TOLD_MAX }
    }
}

fn line(depth: usize, title: &str, text: String) -> ExplainLine {
    ExplainLine { depth, title: String::from(title), text }
}

/// Key text that a person can read: bytes outside printable ASCII as `\xhh`.
fn shown(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

fn shown_range(range: &KeyRange) -> String {
    let last = if range.last.is_empty() { String::from("end") } else { shown(&range.last) };
    format!("[{}, {last})", shown(&range.first))
}

/// Whether someone may read all keys of a range.
pub type MayRead<'r> = dyn Fn(&KeyRange) -> bool + Send + 'r;

/// How far a verification has come that is done in slices.
#[derive(Debug)]
pub(crate) struct Verified {
    /// What is to be verified still.
    left: Option<KeyRange>,
    /// Where the part ends that is next, and those that it is a part of, the least last.
    ends: Vec<Vec<u8>>,
    differences: Vec<Difference>,
    /// How often the next part has failed for want of memory.
    shortages: u32,
}

impl Verified {
    /// Notes that `part`, with which what is left begins, is verified.
    fn pass(&mut self, part: &KeyRange) {
        self.ends.pop();
        self.shortages = 0;
        self.left = self.left.take().filter(|left| part.last != left.last).map(|mut left| {
            left.first.clone_from(&part.last);
            left
        });
    }
}

impl Engine {
    /// Says how the answer for `range` comes about, how fresh it is and what it costs.
    /// Computes nothing and changes nothing.
    #[must_use]
    pub fn explain(&self, range: &KeyRange) -> Vec<ExplainLine> {
        self.explain_to(range, &|_| true)
    }

    /// The same to someone who may not read everything: of a source whose keys are not to be read it tells neither keys nor how many
    /// there are, nor of changes to them; and of ranges that are known, what lies within `range`.
    #[must_use]
    pub fn explain_to(&self, range: &KeyRange, may_read: &MayRead<'_>) -> Vec<ExplainLine> {
        let mut lines = alloc::vec![line(0, "range", shown_range(range))];
        let mut budget = Budget::whole();
        for (table, first, last) in self.store.walk(&range.first, &range.last) {
            if budget.tables == 0 {
                lines.push(line(
                    0,
                    "table",
                    String::from("and more of them: ask for a part of the range"),
                ));
                break;
            }
            budget.tables -= 1;
            let part = KeyRange { first, last };
            self.explain_part(table, &part, may_read, &mut budget, &mut lines);
        }
        lines
    }

    /// Calls `each`, which says how many bytes of the value it has read, with the keys of a table in `range`, with half of those at most that
    /// the budget has left; what comes before their number.
    fn look_at_some(
        &self,
        table: TableId,
        range: &KeyRange,
        budget: &mut Budget,
        each: &mut dyn FnMut(&[u8], ValueRef) -> usize,
    ) -> &'static str {
        let most = budget.keys / 2;
        let mut looked = 0;
        let pool = &self.store.pool;
        let scan = Scan { pool, first: &range.first, last: &range.last, reverse: false };
        let flow = self.store.table(table).scan(&scan, &mut Vec::new(), &mut |key, value| {
            if looked >= most {
                return ControlFlow::Break(());
            }
            looked += 1 + each(key, value) as u64 / BYTES_A_KEY;
            ControlFlow::Continue(())
        });
        budget.keys -= looked.min(most);
        if flow.is_break() { "at least " } else { "" }
    }

    fn explain_part(
        &self,
        table: TableId,
        part: &KeyRange,
        may_read: &MayRead<'_>,
        budget: &mut Budget,
        lines: &mut Vec<ExplainLine>,
    ) {
        let prefix = self.store.table(table).prefix();
        let name = match prefix.strip_suffix(b"|") {
            Some(name) => format!("'{}'", shown(name)),
            None => String::from("(unnamed)"),
        };
        let (mut keys, mut key_bytes, mut value_bytes, mut shared) = (0u64, 0, 0, 0u64);
        let mut replicas = 0u64;
        let pool = &self.store.pool;
        let part_of_all = self.look_at_some(table, part, budget, &mut |key, value| {
            if !self.owns(key) {
                replicas += 1;
                return 0;
            }
            keys += 1;
            key_bytes += key.len();
            value_bytes += pool.footprint(value);
            shared += u64::from(pool.references(value) > 1);
            0
        });
        lines.push(line(0, "table", name));
        lines.push(line(1, "stored now", format!(
            "{part_of_all}{keys} keys, {key_bytes} bytes of keys, {value_bytes} bytes of values ({shared} shared)"
        )));
        let boundary = self.store.table(table).boundary();
        if boundary > 0 {
            lines.push(line(1, "grouped by", self.explain_boundary(table, boundary)));
        }
        if replicas > 0 {
            let text = format!("{replicas} keys of other shards, which joins read here");
            lines.push(line(1, "replicas", text));
        }
        if self.views.catalog.role(table).is_none() {
            lines.push(line(
                1,
                "freshness",
                String::from("base data, written here: always current"),
            ));
            return;
        }
        if let Some(data) = self.base.loads.own(table) {
            let (source, loaded, loading) = (data.source(), data.ranges.len(), data.loading());
            lines.push(line(
                1,
                "source",
                format!(
                    "'{source}' at position {}; {loaded} ranges loaded, {loading} loading",
                    data.seen.0
                ),
            ));
            if let Some(reason) = self.base.loads.sources.down(source) {
                lines.push(line(1, "stale", format!("'{source}' is down: {reason}")));
            }
        }
        let mut joined = false;
        let writers = self.views.catalog.writers_within(table, part);
        for (at, &id) in writers.iter().enumerate() {
            if budget.joins == 0 {
                let left = writers.len() - at;
                lines.push(line(
                    1,
                    "join",
                    format!("and up to {left} more: ask for a part of the range"),
                ));
                joined = true;
                break;
            }
            joined |= self.explain_join(id, part, may_read, budget, lines);
        }
        if !joined {
            lines.push(line(1, "freshness", String::from("base data: no join gives keys here")));
        }
    }

    /// Whether the join can give keys of `part`.
    fn explain_join(
        &self,
        id: u32,
        part: &KeyRange,
        may_read: &MayRead<'_>,
        budget: &mut Budget,
        lines: &mut Vec<ExplainLine>,
    ) -> bool {
        let join = self.views.catalog.join(id);
        let plan = &join.plan;
        let Some(fixed) = fixed_slots(&plan.join.output, part) else { return false };
        budget.joins -= 1;
        lines.push(line(1, "join", format!("'{}': {}", join.name, join.canonical)));
        let bound: Vec<_> = fixed
            .iter()
            .map(|(slot, value)| format!("{} = {}", plan.join.slots[slot], shown(value)))
            .collect();
        if !bound.is_empty() {
            lines.push(line(2, "fixed slots", bound.join(", ")));
        }
        if let Some(text) = self.views.explain_kept(id, part) {
            lines.push(line(2, "kept", text));
        }
        if let Some(text) = self.explain_choice(id, part) {
            lines.push(line(2, "choice", text));
        }
        if let Some(text) = self.views.explain_tally(id, part) {
            lines.push(line(2, "values", text));
        }
        // Sources behind the first depend on its keys: their spans are shown unnarrowed.
        let mut hides = false;
        for (at, source) in plan.join.sources.iter().enumerate() {
            let span = containing_range(&plan.join.output, part, &source.pattern, &fixed);
            let shown_source = format!(
                "{} {}{}",
                source.operator,
                plan.join.show(&source.pattern),
                plan.join.show_lens(source)
            );
            let text = match span {
                Some(span) if !may_read(&span) => {
                    hides = true;
                    format!("{shown_source} is hidden: there is no right to read all that it reads")
                }
                Some(span) => self.explain_reading(plan, at, &span, budget, shown_source),
                None => format!("{shown_source} has nothing to give"),
            };
            lines.push(line(2, "source", text));
        }
        let mut down = BTreeMap::new();
        if self.base.loads.sources.is_any_down() {
            self.down_behind(id, budget, &mut BTreeSet::new(), &mut down);
        }
        for (name, reason) in down {
            lines.push(line(2, "stale", format!("'{name}' is down: {reason}")));
        }
        if hides {
            self.views.outline_status(id, part, lines);
        } else {
            self.explain_status(id, part, lines);
        }
        true
    }

    /// The sources that are down and have data which a join reads, directly or through other joins, with the reasons.
    fn down_behind<'a>(
        &'a self,
        join: u32,
        budget: &mut Budget,
        seen: &mut BTreeSet<u32>,
        down: &mut BTreeMap<&'a str, &'a str>,
    ) {
        if budget.keys == 0 || !seen.insert(join) {
            return;
        }
        budget.keys -= 1;
        for &table in &self.views.catalog.join(join).plan.source_tables {
            let Some(role) = self.views.catalog.role(table) else { continue };
            if let Some(data) = self.base.loads.own(table)
                && let Some(reason) = self.base.loads.sources.down(data.source())
            {
                down.insert(data.source(), reason);
            }
            for &writer in &role.writers {
                self.down_behind(writer, budget, seen, down);
            }
        }
    }

    fn explain_status(&self, id: u32, part: &KeyRange, lines: &mut Vec<ExplainLine>) {
        let join = self.views.catalog.join(id);
        if join.mode() == Mode::Pull {
            lines.push(line(
                2,
                "freshness",
                format!(
                    "pull: computed by every read, stored nowhere{}",
                    self.explain_suspended(None)
                ),
            ));
            return;
        }
        let ids = self.views.overlapping(id, part);
        if ids.is_empty() {
            lines.push(line(
                2,
                "status",
                format!(
                    "not materialized; the next read computes it{}",
                    self.explain_suspended(None)
                ),
            ));
        }
        for &id in ids.iter().take(LISTED_MAX) {
            let status = self.views.statuses.get(id);
            let state = match (&status.work, status.expires_at()) {
                (_, Some(at)) => format!(
                    "snapshot of {} ms ago, valid for {} ms more",
                    self.now.since(status.since),
                    at.since(self.now)
                ),
                (None, None) => String::from("valid and maintained"),
                (Some(work), None) if work.invalid => {
                    String::from("invalid; recomputed by the next read")
                }
                (Some(work), None) if work.gathering => {
                    String::from("computed in part; the next read goes on with it")
                }
                (Some(work), None) => format!(
                    "maintained; the next read applies {} changed check keys, {} stale folds, {} changed ranges upstream",
                    work.log.len(),
                    work.stale.len() + work.refolding.len(),
                    work.upstream.len()
                ),
            };
            lines.push(line(
                2,
                "status",
                format!(
                    "{} {state}{}; computed {} ms ago, {} updater targets, {} bytes",
                    shown_range(&status.range()),
                    self.explain_suspended(Some(id)),
                    self.now.since(status.since),
                    status.targets.len(),
                    status.bytes()
                ),
            ));
            let worth = self.worth_of_range(id);
            lines.push(line(2, "eviction", format!("{worth}")));
        }
        if ids.len() > LISTED_MAX {
            lines.push(line(2, "status", format!("and {} more ranges", ids.len() - LISTED_MAX)));
        }
    }

    /// Recomputes `range` from its sources and compares with what a read gives; the first
    /// `most` differences. Outputs of snapshot joins are left out: they may be old by contract.
    /// Never changes data.
    ///
    /// Where it is done in slices, each part is compared at one moment, and different parts at different ones.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn verify(&mut self, range: &KeyRange, most: usize) -> Result<Vec<Difference>, Stop> {
        let range = range.clone().cut(Limits::KEY_BYTES_CEILING);
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let mut verified = self.reads.slices.take_verified().unwrap_or_else(|| Verified {
            left: Some(range),
            ends: Vec::new(),
            differences: Vec::new(),
            shortages: 0,
        });
        while let Some(left) = &verified.left
            && verified.differences.len() < most
        {
            let part = match verified.ends.last() {
                Some(end) => KeyRange::new(&left.first, end),
                None => left.clone(),
            };
            let looks = Looks::Range(&part.first, &part.last);
            if self.remove_dead_or_wait(looks).is_err()
                || self.verify_tables(&part, most, &mut verified).is_err()
            {
                if let Some(at) = self.reads.slices.take_verified_end() {
                    verified.ends.push(at);
                }
                let stop = self.stop();
                match stop {
                    Stop::Wait(ticket) => self.reads.slices.keep_verified(ticket, verified),
                    Stop::Failed(_) => {
                        self.memory.want_again(verified.shortages);
                        verified.shortages += 1;
                        self.reads.slices.resume_verified(verified);
                    }
                }
                return Err(stop);
            }
            verified.pass(&part);
            // What it needs for the next part is not what it needed for this one.
            self.base.loads.waits.brought.end_operation();
        }
        verified.differences.truncate(most);
        Ok(verified.differences)
    }

    fn verify_tables(
        &mut self,
        range: &KeyRange,
        most: usize,
        verified: &mut Verified,
    ) -> Result<(), Missing> {
        if self.reads.slices.is_half_over() {
            self.reads.slices.end_for_now();
            return Err(Missing);
        }
        let mut differences = Vec::new();
        for (table, first, last) in self.store.parts(&range.first, &range.last) {
            if verified.differences.len() + differences.len() >= most {
                break;
            }
            let part = KeyRange { first, last };
            let writers = self.views.catalog.role(table).map(|role| role.writers.clone());
            let Some(writers) = writers.filter(|writers| !writers.is_empty()) else { continue };
            differences.extend(self.verify_part(table, &writers, &part)?);
        }
        verified.differences.extend(differences);
        Ok(())
    }

    fn verify_part(
        &mut self,
        table: TableId,
        writers: &[u32],
        part: &KeyRange,
    ) -> Result<Vec<Difference>, Missing> {
        // What is computed from scratch says how much is to be compared at once, so that nothing is materialized
        // that the same slice does not compare.
        let mut recomputed = BTreeMap::new();
        self.views.from_scratch = true;
        let result = self.visible_pairs(table, writers, part, &mut recomputed);
        self.views.from_scratch = false;
        result?;
        self.ensure_table(table, part)?;
        let mut read = BTreeMap::new();
        self.visible_pairs(table, writers, part, &mut read)?;
        let old: Vec<_> = writers
            .iter()
            .filter(|&&id| self.views.reads_snapshots(id))
            .map(|&id| self.views.catalog.join(id).plan.clone())
            .collect();
        let mut keys: Vec<&Vec<u8>> = read.keys().chain(recomputed.keys()).collect();
        keys.sort();
        keys.dedup();
        Ok(keys
            .into_iter()
            .filter(|key| read.get(*key) != recomputed.get(*key))
            .filter(|key| !old.iter().any(|plan| plan.join.output.matches(key)))
            .map(|key| Difference {
                key: key.clone(),
                stored: read.get(key).cloned(),
                recomputed: recomputed.get(key).cloned(),
            })
            .collect())
    }

    fn visible_pairs(
        &mut self,
        table: TableId,
        writers: &[u32],
        part: &KeyRange,
        pairs: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), Missing> {
        let mut rows = Vec::new();
        let result = self.merged_rows(table, writers, part, &mut |key, value| {
            rows.push((key.to_vec(), value));
        });
        for (key, value) in rows.into_iter().filter(|(key, _)| self.owns(key)) {
            pairs.insert(key, self.store.pool.view(value).to_vec());
        }
        self.release_row_holds();
        result
    }
}

impl Views {
    /// As [`Engine::explain_status`], without what changes to sources have left to do, nor where ranges end beyond `part`.
    fn outline_status(&self, id: u32, part: &KeyRange, lines: &mut Vec<ExplainLine>) {
        let text = match self.catalog.join(id).mode() {
            Mode::Pull => "pull: computed by every read, stored nowhere",
            Mode::Snapshot { .. } => "snapshot: recomputed once it is too old",
            Mode::Push | Mode::Auto => match self.overlapping(id, part).is_empty() {
                true => "not materialized; the next read computes it",
                false => "materialized, at least in part, and maintained",
            },
        };
        lines.push(line(2, "status", String::from(text)));
    }

    /// Whether the join is a snapshot, or reads one.
    fn reads_snapshots(&self, id: u32) -> bool {
        let join = self.catalog.join(id);
        matches!(join.mode(), Mode::Snapshot { .. })
            || join.upstream.iter().flatten().any(|&up| self.reads_snapshots(up))
    }
}
