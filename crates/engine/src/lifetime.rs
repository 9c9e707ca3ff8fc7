//! The life of a status range: made, linked to what it reads, resized, invalidated, dropped.
//!
//! Whatever links a range to others is kept in step here: its place in the join's cover (R1), the
//! note of its group, its targets (R3), and which ranges it has read and is read by (R4).

use crate::engine::Engine;
use crate::span::SourceSpans;
use crate::status::{Fixed, Status, StatusId, is_open};
use crate::updaters::{CONTEXT_ROOM, ContextId, Reader, SortedSet, Target, UpdaterId, decode};
use crate::views::Views;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::{Bindings, Mode, containing_range};

impl Engine {
    /// A new status range over `range`, without targets.
    pub(super) fn make_status(&mut self, join: u32, range: &KeyRange) -> StatusId {
        let installed = self.views.catalog.join(join);
        let plan = installed.plan.clone();
        let layer = installed.layer;
        let group = self.store.table_mut(layer).0.group_around(range);
        let fixed = Fixed::of(&plan.join.output, range);
        let expires_at = match plan.join.mode {
            Mode::Snapshot { millis } => Some(self.now.plus(millis).min(Status::EXPIRES_LAST)),
            _ => None,
        };
        let sifted = self.base.spans_homes(range);
        let hash = self.memory.range_hash(join, &range.first);
        let heat = self.memory.ranges.inserted(hash, self.views.statuses.len());
        let account = self.open_account(join, range);
        let grant = account.as_ref().map_or(0, |account| account.granted());
        let notes = group.map(|group| self.store.table(layer).note(group).ranges());
        let beside = notes.and_then(|notes| notes.first());
        let beside = beside.map(|noted| self.views.statuses.get(noted.status));
        let mut status = Status::new(join, range, fixed, beside);
        (status.sifted, status.group) = (sifted, group);
        (status.since, status.heat) = (self.now, heat);
        if let Some(account) = account {
            status.set_account(account);
        }
        if let Some(at) = expires_at {
            status.expire_at(at);
        }
        let id = self.views.statuses.add(status);
        self.views.statuses.grant(id, grant);
        self.note(id);
        if let Some(at) = expires_at {
            self.views.snapshots.insert((at, id));
        }
        self.views.catalog.join_mut(join).cover.insert(&range.first, id);
        id
    }

    /// Changes a status range's ends and files its targets anew, where that matters.
    pub(super) fn resize(&mut self, id: StatusId, whole: &KeyRange, rooted: bool) {
        debug_assert!(!self.views.fan_outs.concern(id), "N1");
        let sifted = self.base.spans_homes(whole);
        let status = self.views.statuses.get_mut(id);
        status.sifted = sifted;
        let old = status.filed();
        let join = status.join;
        if *status.first() != *whole.first {
            let cover = &mut self.views.catalog.join_mut(join).cover;
            cover.remove(status.first());
            cover.insert(&whole.first, id);
        }
        if !status.is_of(whole) {
            status.set_range(whole);
        }
        status.rooted = rooted;
        let filed = status.filed();
        if filed != old {
            let mut targets = Vec::new();
            status.targets.extend(&mut targets);
            for (updater, context) in targets {
                let before = self.views.span_of_target(id, &old, updater, context);
                let after = self.views.span_of_target(id, &filed, updater, context);
                self.views.updaters.refile(updater, &before, &after, Target::new(id, context));
            }
        }
        self.note(id);
    }

    /// Notes on the group of a status range how it stands.
    pub(crate) fn note(&mut self, id: StatusId) {
        let status = self.views.statuses.get(id);
        let Some(group) = status.group else { return };
        let layer = self.views.catalog.join(status.join).layer;
        let table = self.store.table_mut(layer).0;
        let prefix = table.group_prefix(group);
        self.views.statuses.set_landing(id, prefix);
        let status = self.views.statuses.get(id);
        let suffix = &status.first()[prefix.len()..];
        let reaches_end = is_open(prefix, status.last());
        table.note_mut(group).set(id, status, suffix, reaches_end);
    }

    /// Notes on the group of a status range whether it is clean.
    #[inline]
    pub(crate) fn note_clean(&mut self, id: StatusId, clean: bool) {
        let status = self.views.statuses.get(id);
        let Some(group) = status.group else { return };
        let layer = self.views.catalog.join(status.join).layer;
        self.store.table_mut(layer).0.note_mut(group).set_clean(id, clean);
    }

    /// Adds targets for the spans, and notes the status ranges read.
    pub(super) fn link(&mut self, id: StatusId, spans: &SourceSpans, read: Vec<StatusId>) {
        debug_assert!(!self.views.fan_outs.concern(id), "N1");
        let join = self.views.statuses.get(id).join;
        if !self.views.catalog.join(join).mode().is_maintained() {
            return;
        }
        let mut found = core::mem::take(&mut self.scratch.updater_room);
        found.clear();
        self.views.updaters.find_or_create_each(join, spans, &mut found);
        let mut targets = core::mem::take(&mut self.scratch.member_room);
        targets.clear();
        let mut listening = None;
        for (span, &updater) in spans.iter().zip(&found) {
            if listening.replace((span.source, span.depth)) != Some((span.source, span.depth)) {
                self.listen_at(join, span.source, span.depth);
            }
            targets.push((updater, self.views.updaters.contexts.intern(span.context)));
        }
        // A range without targets takes them all at once.
        let held = &mut self.views.statuses.get_mut(id).targets;
        let all = if held.is_empty() { SortedSet::of_distinct(&targets) } else { None };
        let are_new = all.is_some();
        if let Some(all) = all {
            *held = all;
        }
        for (span, &(updater, context)) in spans.iter().zip(&targets) {
            let is_new =
                are_new || self.views.statuses.get_mut(id).targets.insert((updater, context));
            if is_new {
                let target = Target::new(id, context);
                self.views.updaters.add(updater, span.prefix, span.ends, target);
            } else {
                self.views.updaters.contexts.release(context);
            }
        }
        self.scratch.updater_room = found;
        self.scratch.member_room = targets;
        for source in read {
            self.depend(id, source);
        }
        if !self.base.loads.suspended.is_empty() {
            self.rely_on_homes_of(id, spans);
        }
    }

    /// Notes that updaters of a source of a join watch keys by so many leading components.
    fn listen_at(&mut self, join: u32, source: usize, depth: usize) {
        let depths = &mut self.views.catalog.join_mut(join).depths[source];
        if core::mem::replace(depths, *depths | 1 << depth) == 0 {
            self.views.catalog.listen(Reader { join, source: source as u32 }, true);
        }
    }

    /// Notes that `id` has read `source`.
    fn depend(&mut self, id: StatusId, source: StatusId) {
        // A range that was read early in an execution may have been merged into another since,
        // which was read too; its id may even name a range of another join by now.
        let Some(status) = self.views.statuses.find(source) else { return };
        let reader = self.views.catalog.join(self.views.statuses.get(id).join);
        if !reader.upstream.iter().flatten().any(|&join| join == status.join) {
            return;
        }
        self.views.statuses.get_mut(id).add_source(source);
        self.views.statuses.get_mut(source).add_dependent(id);
        if !self.views.statuses.get(source).is_clean() {
            self.dirty(id).upstream.insert(source);
        }
    }

    /// Complete invalidation: the whole range is recomputed by the next read.
    pub(crate) fn invalidate(&mut self, id: StatusId) {
        self.counters.invalidations += 1;
        self.views.drop_targets(id);
        self.views.end_gathering(id);
        let work = self.dirty(id);
        work.invalid = true;
        work.gathering = false;
        work.stale.clear();
        work.refolding.clear();
        work.upstream.clear();
        work.suspended.clear();
        let log = core::mem::take(&mut work.log);
        for (entry, _) in log.iter() {
            self.views.updaters.contexts.release(entry.context);
        }
        let sources = self.views.statuses.get_mut(id).take_sources();
        for source in sources.iter() {
            if self.views.statuses.find(source).is_some() {
                self.views.statuses.get_mut(source).remove_dependent(id);
            }
        }
    }

    /// Drops a status range's record; its outputs stay, for its successor to compare with.
    pub(crate) fn forget(&mut self, id: StatusId) {
        self.invalidate(id);
        let status = self.views.statuses.take(id);
        let installed = self.views.catalog.join_mut(status.join);
        installed.cover.remove(status.first());
        let layer = installed.layer;
        if let Some(at) = status.expires_at() {
            self.views.snapshots.remove(&(at, id));
        }
        if let Some(group) = status.group {
            let table = self.store.table_mut(layer).0;
            table.note_mut(group).remove(id);
            table.forget_if_idle(group);
        }
        for dependent in status.dependents().iter() {
            if self.views.statuses.find(dependent).is_some() {
                self.views.statuses.get_mut(dependent).remove_source(id);
                self.invalidate(dependent);
            }
        }
    }

    /// Makes two ranges of an invalid one; what depends on it depends on both.
    pub(crate) fn divide(&mut self, id: StatusId, at: &[u8]) {
        debug_assert!(
            self.views.statuses.get(id).is_invalid(),
            "only what is invalid has no targets"
        );
        let status = self.views.statuses.get_mut(id);
        let (join, whole) = (status.join, status.range());
        let divides_on = status.work.as_ref().is_some_and(|work| work.divides_on);
        let dependents = status.take_dependents();
        let is_there = |&dependent: &StatusId| self.views.statuses.find(dependent).is_some();
        let dependents: Vec<_> = dependents.iter().filter(is_there).collect();
        for &dependent in &dependents {
            let dependent = self.views.statuses.get_mut(dependent);
            dependent.remove_source(id);
            if let Some(work) = &mut dependent.work {
                work.upstream.remove(&id);
            }
        }
        self.forget(id);
        for part in [KeyRange::new(&whole.first, at), KeyRange::new(at, &whole.last)] {
            let part = self.make_status(join, &part);
            for &dependent in &dependents {
                self.views.statuses.get_mut(dependent).add_source(part);
                self.views.statuses.get_mut(part).add_dependent(dependent);
            }
            let work = self.dirty(part);
            (work.invalid, work.divides_on) = (true, divides_on);
        }
    }

    /// Drops a status range and its outputs, of which nobody is told.
    pub(crate) fn discard(&mut self, id: StatusId) {
        let status = self.views.statuses.get(id);
        let (join, range, sifted) = (status.join, status.range(), status.sifted);
        self.forget(id);
        if self.views.catalog.join(join).mode().is_maintained() {
            self.tell_reset(&range);
        }
        let layer = self.views.catalog.join(join).layer;
        self.views.forget_kept(join, &range);
        for key in self.outputs_in(join, &range, sifted) {
            let fold = self.views.catalog.join_mut(join).folds.remove(&*key);
            self.forget_fold(fold);
            self.save_pair(layer, &key);
            if let Some(value) = self.store.remove(layer, &key) {
                self.store.pool.release(value);
            }
        }
    }

    /// Drops everything that `join`, and what reads it, has materialized.
    pub(crate) fn reset_join(&mut self, join: u32) {
        self.reset_each(self.views.catalog.downstream(join));
    }

    /// Drops everything that joins have materialized.
    pub(crate) fn reset_joins(&mut self) {
        self.reset_each(self.views.catalog.ids());
    }

    fn reset_each(&mut self, joins: Vec<u32>) {
        self.reads.long_reads.collections.change_all();
        for id in joins {
            for status in self.views.catalog.join(id).cover.ids() {
                self.discard(status);
            }
            let outputs = self.views.catalog.join(id).plan.join.output.range_of_all();
            self.tell_reset(&outputs);
            for source in 0..self.views.catalog.join(id).depths.len() {
                if core::mem::take(&mut self.views.catalog.join_mut(id).depths[source]) != 0 {
                    self.views.catalog.listen(Reader { join: id, source: source as u32 }, false);
                }
            }
        }
    }
}

impl Views {
    /// The source span under which a target is filed while those of its status range are filed for `range`.
    pub(crate) fn span_of_target(
        &self,
        id: StatusId,
        range: &KeyRange,
        updater: UpdaterId,
        context: ContextId,
    ) -> KeyRange {
        let status = self.statuses.get(id);
        let plan = &self.catalog.join(status.join).plan;
        let (reader, prefix) = self.updaters.describe(updater);
        let pattern = plan.pattern(reader.source as usize);
        let mut bindings = Bindings::new();
        let whole = !prefix.ends_with(b"|");
        crate::status::for_components(pattern, prefix, whole, |component, value| {
            if let headwater_pattern::Component::Slot { slot, .. } = component {
                bindings.set(*slot, value);
            }
        });
        status.fixed().bind(&plan.join.output, &range.first, &mut bindings);
        let mut room = CONTEXT_ROOM;
        decode(self.updaters.contexts.get(context, &mut room), &mut bindings);
        containing_range(&plan.join.output, range, pattern, &bindings)
            .expect("a target was added for a span that contributes")
    }

    /// Removes the targets of spans that led to nothing any more.
    pub(super) fn unlink(&mut self, id: StatusId, spans: &SourceSpans) {
        debug_assert!(!self.fan_outs.concern(id), "N1");
        let join = self.statuses.get(id).join;
        for span in spans.iter() {
            let reader = Reader { join, source: span.source as u32 };
            let Some(updater) = self.updaters.find(reader, span.prefix) else { continue };
            let context = self.updaters.contexts.intern(span.context);
            if self.statuses.get_mut(id).targets.remove((updater, context)) {
                self.updaters.remove(updater, span.ends, Target::new(id, context));
                self.updaters.contexts.release(context);
            }
            self.updaters.contexts.release(context);
        }
    }

    fn drop_targets(&mut self, id: StatusId) {
        self.fan_outs.forget(id);
        let range = self.statuses.get(id).filed();
        let mut targets = Vec::new();
        self.statuses.get(id).targets.extend(&mut targets);
        for (updater, context) in targets {
            let span = self.span_of_target(id, &range, updater, context);
            self.updaters.remove(updater, (&span.first, &span.last), Target::new(id, context));
            self.updaters.contexts.release(context);
        }
        self.statuses.get_mut(id).targets = SortedSet::default();
    }
}
