//! The engine's invariants, asserted: for tests, which call this after every operation.

use crate::engine::Engine;
use crate::handles::Handle;
use crate::maintain::leading;
use crate::status::StatusId;
use crate::updaters::{CONTEXT_ROOM, Reader, Target, decode};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_pattern::{Bindings, Mode};
use headwater_pool::ValueRef;
use headwater_store::{Scan, TableId};

impl Engine {
    /// Asserts what the essays of `status`, `updaters`, `catalog` and `marks` promise (R1, R3, R4, U1,
    /// C2, C3, C6, KP1, V1, V2, Y1, O1–O3), and that what groups note of status ranges is so. Costs a walk over everything.
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn check_invariants(&self) {
        assert!(self.views.queue.is_empty(), "changes are applied before an operation ends");
        assert!(
            self.base.loads.waits.lacking.is_empty(),
            "what an operation lacked is forgotten when it ends, whether it waits for it or not"
        );
        self.check_handles();
        self.check_replicas();
        self.base.check_loads();
        let mut statuses = 0;
        let mut targets = 0;
        for (join, installed) in self.views.catalog.iter() {
            let mut end: Option<Vec<u8>> = None;
            for id in installed.cover.ids() {
                let status = self.views.statuses.get(id);
                let first = status.first();
                assert!(status.join == join, "the cover names its own");
                assert_eq!(installed.cover.at(first), Some(id), "a range is where it begins");
                assert!(!status.range().is_empty(), "R1");
                // The range before must have an end, at or before this one's start.
                assert!(end.is_none_or(|end| !end.is_empty() && *end <= *first), "R1");
                end = Some(status.last().to_vec());
                statuses += 1;
                targets += self.check_status(id);
            }
            assert!(
                installed.is_layered()
                    == (self.views.catalog.collides(join) && installed.mode() != Mode::Pull),
                "C3"
            );
            self.check_kept(join);
            self.check_tallies(join);
            assert_eq!(installed.rivals as usize, self.views.catalog.rivals(join).len(), "C3");
            let above =
                installed.upstream.iter().flatten().map(|&up| self.views.catalog.join(up).depth);
            assert_eq!(installed.depth, 1 + above.max().unwrap_or(0), "C6");
            for &up in installed.upstream.iter().flatten() {
                let push = |join: u32| self.views.catalog.join(join).mode().is_maintained();
                assert!(!push(join) || push(up), "C2");
            }
        }
        assert_eq!(
            self.views.catalog.depths.values().map(|&joins| joins as usize).sum::<usize>(),
            self.views.catalog.len(),
            "C6"
        );
        self.check_cells();
        self.check_followed();
        for key in self.notifications.marks.keys() {
            let stored = self.store.table_of(key).is_some_and(|table| {
                self.store.table(table).get(key).is_some()
                    || self.views.catalog.role(table).is_some()
            });
            assert!(stored, "Y1");
        }
        self.views.updaters.check_counts();
        assert_eq!(
            statuses,
            self.views.statuses.len(),
            "every status range is in its join's cover"
        );
        assert_eq!(
            targets,
            self.views.updaters.targets(),
            "R3: every target is its status range's"
        );
    }

    /// Checks who holds cells (V1), and that the outputs of a source key's are it (V2).
    fn check_cells(&self) {
        for (_, installed) in self.views.catalog.iter() {
            if installed.is_layered() {
                self.each_cell(installed.layer, &mut |_, _| panic!("V1: no layer holds cells"));
            }
        }
        for (table, _) in self.store.tables() {
            self.each_cell(table, &mut |key, cell| {
                let role =
                    self.views.catalog.role(table).expect("V1: somebody reads or writes cells");
                let mut keepers = role.writers.iter().filter(|&&join| self.views.keeps_cells(join));
                let is_copy = keepers
                    .any(|&join| self.views.catalog.join(join).plan.join.output.matches(key));
                assert!(!is_copy || !self.views.has_readers(table), "V1");
                for &reader in &role.readers {
                    self.check_copies(reader, key, cell);
                }
            });
        }
    }

    fn each_cell(&self, table: TableId, each: &mut dyn FnMut(&[u8], ValueRef)) {
        let table = self.store.table(table);
        let pool = &self.store.pool;
        let scan = Scan { pool, first: table.prefix(), last: b"", reverse: false };
        let _ = table.scan(&scan, &mut Vec::new(), &mut |key, value| {
            if value.is_cell() {
                each(key, value);
            }
            ControlFlow::Continue(())
        });
    }

    /// Checks that what a reader who keeps cells shows for a source key is its cell.
    fn check_copies(&self, reader: Reader, key: &[u8], cell: ValueRef) {
        let plan = &self.views.catalog.join(reader.join).plan;
        let source = reader.source as usize;
        let pattern = plan.pattern(source);
        let copies = source == plan.value_source() && self.views.keeps_cells(reader.join);
        if !copies || !pattern.matches(key) {
            return;
        }
        let mut targets = Vec::new();
        for depth in 0..=pattern.components.len() {
            let prefix = leading(key, depth, pattern.components.len());
            if let Some(id) = self.views.updaters.find(reader, prefix) {
                self.views.updaters.targets_of(id, key, &mut targets);
            }
        }
        // What is noted for a range is applied before it is read (N1).
        targets.retain(|target| !self.views.fan_outs.concern(target.status()));
        for target in targets {
            let status = self.views.statuses.get(target.status());
            let mut room = CONTEXT_ROOM;
            let mut bindings = Bindings::new();
            let mut output = Vec::new();
            status.fixed().bind(&plan.join.output, status.first(), &mut bindings);
            decode(self.views.updaters.contexts.get(target.context(), &mut room), &mut bindings);
            if pattern.bind(key, &mut bindings)
                && plan.join.output.fill(&bindings, &mut output)
                && status.contains(&output)
            {
                let shown = self.output(reader.join, &output);
                assert!(shown.is_none_or(|shown| shown == cell), "V2");
            }
        }
    }

    /// Checks F1–F3, W1 and W2.
    fn check_handles(&self) {
        let (mut streams, mut spilled) = (0, 0);
        let _ = self.store.scan(b"", b"", false, &mut |key, value| {
            match Handle::of(value) {
                None => {}
                Some(Handle::Stream(number)) => {
                    self.base.streams.get(number).check_invariants();
                    streams += 1;
                }
                Some(Handle::Spilled(number)) => {
                    self.base.spilled.get(number);
                    assert!(self.store.table_of(key).is_some_and(|id| self.may_spill(id)), "W2");
                    spilled += 1;
                }
            }
            ControlFlow::Continue(())
        });
        assert_eq!(streams, self.base.streams.len(), "F3");
        assert_eq!(spilled, self.base.spilled.len(), "W1");
        self.base.streams.check_filed();
    }

    /// Checks one status range; the number of its targets.
    fn check_status(&self, id: StatusId) -> usize {
        let status = self.views.statuses.get(id);
        let mut targets = Vec::new();
        status.targets.extend(&mut targets);
        assert!(!status.is_invalid() || targets.is_empty(), "R3: an invalid range has no target");
        let range = status.filed();
        for &(updater, context) in &targets {
            let span = self.views.span_of_target(id, &range, updater, context);
            let (reader, _) = self.views.updaters.describe(updater);
            self.check_suspended(id, reader.source as usize, &span);
            assert!(self.views.updaters.is_filed(updater, &span, Target::new(id, context)), "U1");
        }
        let gathering = status.work.as_ref().is_some_and(|work| work.gathering);
        assert_eq!(gathering, self.views.gatherings.contains_key(&id), "J1");
        if !status.is_clean() {
            for dependent in status.dependents().iter() {
                let work = self.views.statuses.get(dependent).work.as_ref();
                let told = work.is_some_and(|work| work.invalid || work.upstream.contains(&id));
                assert!(told, "R4");
            }
        }
        for source in status.sources().iter() {
            assert!(
                self.views.statuses.get(source).dependents().iter().any(|it| it == id),
                "ranges know each other"
            );
        }
        if let Some(group) = status.group {
            let layer = self.views.catalog.join(status.join).layer;
            let table = self.store.table(layer);
            let noted = table.note(group).ranges().iter().find(|noted| noted.status == id);
            let suffix = &status.first()[table.group_prefix(group).len()..];
            let serves = noted.expect("a group notes its status ranges").serves(suffix);
            assert!(
                !serves || status.is_clean(),
                "a group notes a range ready only if it is clean"
            );
        }
        targets.len()
    }
}
