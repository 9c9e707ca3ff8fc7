//! Maintenance: what a change of one key does to everything derived from it.
//!
//! A change goes to the updaters of the key's leading components. Value sources update their
//! targets' outputs at once; check sources log the key on the status range (R2). An output
//! that changes is itself a change, if joins read its table: changes wait in a queue, so that
//! a chain of joins needs no stack.
//!
//! # Cost
//! Per change and reading pattern one hash; per target of a plain copy one look at its status
//! range and one insert into its group, with the output's suffix built once for all of them.

use crate::catalog::Plan;
use crate::cells::Change;
use crate::choose::LET_GO_ROWS;
use crate::engine::Engine;
use crate::memory::FED_TOGETHER;
use crate::rows::{Rows, rows_of};
use crate::status::{Landing, StatusId, Work, head};
use crate::updaters::{CONTEXT_ROOM, Reader, Target, decode};
use crate::views::Views;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_base::Limits;
use headwater_base::key::SEPARATOR;
use headwater_pattern::{Bindings, Component, Operator};
use headwater_pool::ValueRef;
use headwater_store::TableId;

/// A key that has changed, as a reader of its table sees it. References are held.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) table: TableId,
    pub(crate) key: Box<[u8]>,
    pub(crate) change: Change,
}

/// The outputs of one source key for all status ranges that fix as many components.
struct Fan {
    components: usize,
    /// What follows the fixed prefix; `None` where the general way must be taken.
    suffix: Option<Vec<u8>>,
    /// Its first bytes, as status ranges note them.
    head: u64,
    /// Whether key and context alone decide what follows the prefix.
    usable: bool,
}

impl Engine {
    /// Applies a change to all that reads the key's table. The caller keeps the references.
    pub(crate) fn notify(&mut self, table: TableId, key: &[u8], change: Change) {
        if !self.views.listens(table) {
            if let Some(role) = self.views.catalog.role_mut(table) {
                role.changes += 1;
            }
            return;
        }
        self.views.writing = true;
        let alone = self.begin_calls();
        self.apply_change(table, key, change);
        self.drain();
        if self.views.has_exhausted() {
            self.settle_accounts(LET_GO_ROWS);
        }
        if alone {
            self.end_calls();
        }
        self.views.writing = false;
    }

    /// Applies the queued changes of outputs.
    pub(crate) fn drain(&mut self) {
        while let Some(Changed { table, key, change }) = self.views.queue.pop_front() {
            self.apply_change(table, &key, change);
            for value in [change.old, change.new].into_iter().flatten() {
                self.store.pool.release(value);
            }
        }
    }

    fn apply_change(&mut self, table: TableId, key: &[u8], mut change: Change) {
        let elsewhere = !self.owns(key);
        if let Some(role) = self.views.catalog.role_mut(table) {
            role.changes += 1;
        }
        if let Some(some) = self.views.catalog.some_readers(table, key) {
            for reader in some {
                let depths = self.views.catalog.join(reader.join).depths[reader.source as usize];
                if depths != 0 {
                    self.tell_reader(reader, depths, (table, key, elsewhere), &mut change);
                }
            }
            return;
        }
        let Some(role) = self.views.catalog.role(table) else { return };
        for at in 0..role.readers.len() {
            let Some(&reader) =
                self.views.catalog.role(table).and_then(|role| role.readers.get(at))
            else {
                return;
            };
            let depths = self.views.catalog.join(reader.join).depths[reader.source as usize];
            if depths != 0 {
                self.tell_reader(reader, depths, (table, key, elsewhere), &mut change);
            }
        }
    }

    fn tell_reader(
        &mut self,
        reader: Reader,
        depths: u32,
        (table, key, elsewhere): (TableId, &[u8], bool),
        change: &mut Change,
    ) {
        self.counters.readers_told += 1;
        let plan = self.views.catalog.join(reader.join).plan.clone();
        let source = reader.source as usize;
        if !plan.pattern(source).matches(key) {
            return;
        }
        if elsewhere && self.base.is_aligned(&plan, source) {
            return;
        }
        let is_value = source == plan.value_source();
        if is_value || !plan.has_lens(source) {
            if is_value || change.old.is_some() != change.new.is_some() {
                self.tell_targets(reader, &plan, depths, (table, key, key), change);
            }
            return;
        }
        for (row, was_there) in self.checked_rows(&plan, source, key, change).into_iter().flatten()
        {
            let value = |is_there: bool| is_there.then_some(ValueRef::EMPTY);
            let mut change = Change::new(value(was_there), value(!was_there));
            self.tell_targets(reader, &plan, depths, (table, key, &row), &mut change);
        }
    }

    /// Tells the targets of a source that a key changed; of one that checks, that the row came or went which key and value give.
    fn tell_targets(
        &mut self,
        reader: Reader,
        plan: &Rc<Plan>,
        depths: u32,
        (table, key, row): (TableId, &[u8], &[u8]),
        change: &mut Change,
    ) {
        let source = reader.source as usize;
        let is_value = source == plan.value_source();
        let keeps_cells = is_value && self.views.keeps_cells(reader.join);
        let shows = keeps_cells && change.in_place;
        if shows && !self.is_followed(plan.output_table) {
            return;
        }
        self.bound_fan_outs();
        let mut step = self.begin_step(reader.join);
        let mut targets = core::mem::take(&mut self.scratch.target_room);
        let components = plan.pattern(source).components.len();
        for depth in 0..=components {
            if depths & (1 << depth) == 0 {
                continue;
            }
            let Some(id) = self.views.updaters.find(reader, leading(key, depth, components)) else {
                continue;
            };
            targets.clear();
            self.views.updaters.targets_of(id, key, &mut targets);
            self.note_targets(&mut step, targets.len());
            if !self.views.gatherings.is_empty() {
                targets.retain(|&target| !self.views.is_ahead(reader, target, key));
            }
            if shows {
                self.tell_copies(plan, &targets, key, change.new);
                continue;
            }
            let known = plan.prefix_slots(source, depth);
            let mut values = (change.old, change.new);
            if keeps_cells && !targets.is_empty() {
                self.make_cell(table, key, change);
                values.1 = change.cell.or(values.1);
            }
            if !is_value {
                // Who checks a key asks for no more than whether it is there.
                let (old, new) = values;
                values = (old.map(|_| ValueRef::EMPTY), new.map(|_| ValueRef::EMPTY));
            }
            if self.note_fan_out(reader, plan, &mut targets, known, row, values) {
                continue;
            }
            for target in &targets {
                self.feed(target.status());
            }
            if is_value {
                self.update_targets(plan, &targets, known, key, values);
            } else {
                for &target in &targets {
                    self.log_check(reader, target, row, change.old.is_some());
                }
            }
        }
        self.scratch.target_room = targets;
        self.end_step(reader.join, step);
    }

    /// Tells that copies of a source key, which are its cell, have its new value.
    fn tell_copies(&mut self, plan: &Plan, targets: &[Target], key: &[u8], new: Option<ValueRef>) {
        let Some(value) = new else { return };
        let mut output = core::mem::take(&mut self.scratch.output_room);
        for &target in targets {
            if self.output_of(plan, target, key, &mut output)
                && self.store.table(plan.output_table).get(&output).is_some()
            {
                self.tell_set(&output, value);
            }
        }
        self.scratch.output_room = output;
    }

    /// Whether a change of outputs in the layer concerns those alone who read them.
    pub(crate) fn is_quiet(&self, layer: TableId, plan: &Plan) -> bool {
        layer == plan.output_table && !self.views.has_readers(layer) && !self.is_followed(layer)
    }

    pub(crate) fn update_targets(
        &mut self,
        plan: &Rc<Plan>,
        targets: &[Target],
        known_slots: u32,
        key: &[u8],
        (old, new): (Option<ValueRef>, Option<ValueRef>),
    ) {
        let source = plan.source(plan.value_source());
        let rows = source.lens.as_ref().map(|_| rows_of(source, &self.store.pool, key, (old, new)));
        if let Some(rows) = &rows {
            self.counters.unreadable += u64::from(rows.unreadable);
            // An `index` or a `count` uses nothing of a value but what is in its row.
            let by_rows = matches!(plan.join.operator(), Operator::Index | Operator::Count);
            if rows.old == rows.new && (by_rows || rows.old.is_none()) {
                return;
            }
        }
        self.counters.updates += targets.len() as u64;
        let mut fan: Option<Fan> = None;
        let mut output = core::mem::take(&mut self.scratch.output_room);
        let join = targets.first().map(|target| self.views.statuses.get(target.status()).join);
        let layer = join.map(|join| {
            let join = self.views.catalog.join_mut(join);
            join.counters.updates += targets.len() as u64;
            join.layer
        });
        let quiet = layer.filter(|&layer| self.is_quiet(layer, plan));
        // What changes under a long read is saved first.
        let direct = quiet.filter(|_| self.reads.long_reads.is_empty());
        // Outputs that nothing is computed from may go while there are more to come: they are computed again when
        // they are read.
        let (may_go, mut unfed, mut gone) = (quiet.is_some() && new.is_some(), false, false);
        for (at, &target) in targets.iter().enumerate() {
            if let Some(layer) = quiet {
                self.fetch_ahead(layer, &targets[at..]);
            }
            if may_go && at.is_multiple_of(FED_TOGETHER) {
                unfed = self.views.writing && self.lacks_room_to_feed();
                gone |= unfed;
            }
            if gone && self.views.statuses.find(target.status()).is_none() {
                continue;
            }
            if unfed {
                self.evict_unfed(target.status());
                continue;
            }
            let landing = self.views.statuses.landing(target.status());
            if landing.budget > 0 {
                self.views.statuses.charge(target.status());
            }
            let components = match landing.group {
                Some(_) => landing.components as usize,
                None => self.views.statuses.get(target.status()).fixed().components,
            };
            if fan.as_ref().is_none_or(|fan| fan.components != components) {
                let status = self.views.statuses.get(target.status());
                // A fixed slot that the key holds too would have to be compared, unless all
                // keys of the updater have it.
                let slots = status.fixed().slots;
                let shared = slots & plan.source_slots(plan.value_source()) & !known_slots;
                let usable = shared == 0 && plan.is_plain_copy();
                let suffix = usable.then(|| fan_suffix(plan, components, key)).flatten();
                let head = suffix.as_deref().map_or(0, head);
                fan = Some(Fan { components, suffix, head, usable });
            }
            if target.context() != crate::updaters::NO_CONTEXT {
                let usable = fan.as_ref().is_some_and(|fan| fan.usable);
                let done = match (direct, new) {
                    (Some(layer), Some(value)) if usable => {
                        self.copy_in_context(plan, target, (layer, key), value, &mut output)
                    }
                    _ => false,
                };
                if !done {
                    self.update_target(plan, target, (key, rows.as_ref()), (old, new), &mut output);
                }
                continue;
            }
            let Some(Fan { suffix: Some(suffix), head, .. }) = &fan else {
                self.update_target(plan, target, (key, rows.as_ref()), (old, new), &mut output);
                continue;
            };
            if let (Some(layer), Some(group), Some(value), true) =
                (direct, landing.group, new, landing.admits(*head))
                && suffix.len() <= Landing::PART_BYTES_MAX
            {
                let (table, pool) = self.store.table_mut(layer);
                pool.retain(value);
                if let Some(old) = table.insert_in(pool, group, suffix, value) {
                    pool.release(old);
                }
            } else if self.views.statuses.get(target.status()).ends_by_suffix() {
                self.copy_to(target.status(), suffix, new, &mut output);
            } else {
                self.update_target(plan, target, (key, rows.as_ref()), (old, new), &mut output);
            }
        }
        self.scratch.output_room = output;
    }

    /// Copies a value to where a context says, if the output lands in a group and its range
    /// certainly holds it; whether it was done.
    #[inline]
    fn copy_in_context(
        &mut self,
        plan: &Plan,
        target: Target,
        (layer, key): (TableId, &[u8]),
        value: ValueRef,
        output: &mut Vec<u8>,
    ) -> bool {
        let landing = self.views.statuses.landing(target.status());
        let Some(group) = landing.group else { return false };
        let mut room = CONTEXT_ROOM;
        let mut bindings = Bindings::new();
        decode(self.views.updaters.contexts.get(target.context(), &mut room), &mut bindings);
        output.clear();
        let certain = plan.pattern(plan.value_source()).bind(key, &mut bindings)
            && fill_rest(plan, landing.components as usize, &bindings, output)
            && output.len() <= Landing::PART_BYTES_MAX
            && landing.admits(head(output));
        if certain {
            let (table, pool) = self.store.table_mut(layer);
            pool.retain(value);
            if let Some(old) = table.insert_in(pool, group, output, value) {
                pool.release(old);
            }
        }
        certain
    }

    /// Fetches what the targets that come next will touch, each thing a few targets before it
    /// is needed, since each says where the next one lies.
    #[inline]
    fn fetch_ahead(&self, layer: TableId, targets: &[Target]) {
        let table = self.store.table(layer);
        if let Some(target) = targets.get(12) {
            self.views.statuses.fetch_landing(target.status());
        }
        if let Some(group) =
            targets.get(8).and_then(|target| self.views.statuses.landing(target.status()).group)
        {
            table.fetch_record(group);
        }
        if let Some(group) =
            targets.get(4).and_then(|target| self.views.statuses.landing(target.status()).group)
        {
            table.fetch_end(group);
        }
    }

    /// A plain copy into a range of whose fixed prefix all outputs end alike, if that lies in it.
    #[inline]
    fn copy_to(
        &mut self,
        id: StatusId,
        suffix: &[u8],
        new: Option<ValueRef>,
        output: &mut Vec<u8>,
    ) {
        let status = self.views.statuses.get(id);
        if status.is_invalid() || !status.contains_suffix(suffix) {
            return;
        }
        let join = status.join;
        let prefix = status.prefix();
        output.clear();
        output.extend_from_slice(prefix);
        output.extend_from_slice(suffix);
        if output.len() > Limits::KEY_BYTES_CEILING {
            self.counters.outputs_too_long += u64::from(new.is_some());
            return;
        }
        if self.views.statuses.get(id).sifted && !self.owns(output) {
            return;
        }
        match new {
            Some(value) => {
                self.store.pool.retain(value);
                self.put_output(join, output, value, None);
            }
            None => self.remove_output(join, output),
        }
    }

    /// The output key of a row of the value source, by a target; `false` where there is none.
    fn output_of(&mut self, plan: &Plan, target: Target, row: &[u8], output: &mut Vec<u8>) -> bool {
        let status = self.views.statuses.get(target.status());
        if status.is_invalid() {
            return false;
        }
        let mut room = CONTEXT_ROOM;
        let mut bindings = Bindings::new();
        status.fixed().bind(&plan.join.output, status.first(), &mut bindings);
        decode(self.views.updaters.contexts.get(target.context(), &mut room), &mut bindings);
        output.clear();
        if !plan.source(plan.value_source()).bind(row, &mut bindings)
            || !plan.join.output.fill(&bindings, output)
        {
            return false;
        }
        if output.len() > Limits::KEY_BYTES_CEILING {
            self.counters.outputs_too_long += 1;
            return false;
        }
        status.contains(output) && (!status.sifted || self.owns(output))
    }

    fn update_target(
        &mut self,
        plan: &Plan,
        target: Target,
        (key, rows): (&[u8], Option<&Rows>),
        (old, new): (Option<ValueRef>, Option<ValueRef>),
        output: &mut Vec<u8>,
    ) {
        let Some(rows) = rows else {
            if self.output_of(plan, target, key, output) {
                self.update_output(plan, target.status(), (output, key), (old, new));
            }
            return;
        };
        if rows.old == rows.new {
            if let Some(row) = &rows.new
                && self.output_of(plan, target, row, output)
            {
                self.update_output(plan, target.status(), (output, key), (old, new));
            }
            return;
        }
        // A fold of both loses the one before it has the other.
        for (row, values) in [(&rows.old, (old, None)), (&rows.new, (None, new))] {
            if let Some(row) = row
                && self.output_of(plan, target, row, output)
            {
                self.update_output(plan, target.status(), (output, key), values);
            }
        }
    }

    /// Enters a change of a source key in the output that comes of it.
    fn update_output(
        &mut self,
        plan: &Plan,
        id: StatusId,
        (output, key): (&[u8], &[u8]),
        change: (Option<ValueRef>, Option<ValueRef>),
    ) {
        let status = self.views.statuses.get_mut(id);
        match change {
            (None, Some(new)) => {
                status.visits_more(1);
                self.add_tuple(id, plan, output, key, new);
            }
            (Some(old), None) => {
                status.visits_less(1);
                self.remove_tuple(id, plan, output, key, old);
            }
            (Some(old), Some(new)) => self.update_tuple(id, plan, output, key, (old, new)),
            (None, None) => {}
        }
    }

    /// The work of a status range, which is no longer clean; ranges that depend on it are told
    /// (R4).
    pub(crate) fn dirty(&mut self, id: StatusId) -> &mut Work {
        self.note_work(id);
        if self.views.statuses.get(id).is_clean() {
            let dependents: Vec<_> = self.views.statuses.get(id).dependents().iter().collect();
            for dependent in dependents {
                self.dirty(dependent).upstream.insert(id);
            }
            self.views.statuses.get_mut(id).work = Some(Box::default());
            self.note_clean(id, false);
        }
        self.views.statuses.get_mut(id).work.get_or_insert_default()
    }

    /// Makes a status range clean if no work is left.
    pub(crate) fn settle(&mut self, id: StatusId) {
        let status = self.views.statuses.get_mut(id);
        if status.work.as_ref().is_some_and(|work| work.is_empty()) {
            status.work = None;
            self.note_clean(id, true);
        }
    }

    pub(crate) fn mark_stale(&mut self, status: StatusId, key: &[u8]) {
        self.dirty(status).note_stale(key);
        self.counters.folds_stale += 1;
    }
}

impl Views {
    pub(crate) fn is_stale(&self, status: StatusId, key: &[u8]) -> bool {
        let work = self.statuses.get(status).work.as_ref();
        work.is_some_and(|work| work.stale.contains(key))
    }
}

/// The first `depth` components of a key, ending in `|`; the whole key where these are all.
#[inline]
pub(crate) fn leading(key: &[u8], depth: usize, components: usize) -> &[u8] {
    if depth == components {
        return key;
    }
    let mut separators = key.iter().enumerate().filter(|(_, byte)| **byte == SEPARATOR);
    separators.nth(depth).map_or(key, |(at, _)| &key[..=at])
}

/// What follows the first components in the output of a source key, if the key alone gives it.
fn fan_suffix(plan: &Plan, components: usize, key: &[u8]) -> Option<Vec<u8>> {
    let mut bindings = Bindings::new();
    let mut suffix = Vec::new();
    let filled = components > 0
        && plan.pattern(plan.value_source()).bind(key, &mut bindings)
        && fill_rest(plan, components, &bindings, &mut suffix);
    filled.then_some(suffix)
}

/// Appends what follows the first components of the output; `false` where there is nothing, or
/// a slot is unbound or breaks its width.
#[inline]
fn fill_rest(plan: &Plan, components: usize, bindings: &Bindings<'_>, out: &mut Vec<u8>) -> bool {
    let rest = plan.join.output.components.get(components..).unwrap_or_default();
    for (at, component) in rest.iter().enumerate() {
        if at > 0 {
            out.push(SEPARATOR);
        }
        match component {
            Component::Literal(literal) => out.extend_from_slice(literal),
            Component::Slot { slot, width } => match bindings.get(*slot) {
                Some(value) if width.is_none_or(|width| width == value.len()) => {
                    out.extend_from_slice(value);
                }
                _ => return false,
            },
        }
    }
    !rest.is_empty()
}
