//! The engine's invariants, asserted: for tests, which call this after every operation.

use crate::engine::Engine;
use crate::status::StatusId;
use crate::updaters::Target;
use alloc::vec::Vec;
use headwater_pattern::Mode;

impl Engine {
    /// Asserts what the essays of `status`, `updaters` and `catalog` promise (R1, R3, R4, U1,
    /// C2, C3), and that what groups note of status ranges is so. Costs a walk over everything.
    ///
    /// # Panics
    /// Where an invariant does not hold.
    pub fn check_invariants(&self) {
        assert!(self.queue.is_empty(), "changes are applied before an operation ends");
        let mut statuses = 0;
        let mut targets = 0;
        for (join, installed) in self.catalog.iter() {
            let mut end: Option<Vec<u8>> = None;
            for (first, &id) in &installed.cover {
                let status = self.statuses.get(id);
                assert!(status.join == join && status.first == *first, "the cover names its own");
                assert!(!status.range().is_empty(), "R1");
                // The range before must have an end, at or before this one's start.
                assert!(end.is_none_or(|end| !end.is_empty() && *end <= **first), "R1");
                end = Some(status.last.to_vec());
                statuses += 1;
                targets += self.check_status(id);
            }
            assert!(
                installed.is_layered()
                    == (self.catalog.collides(join) && installed.mode() != Mode::Pull),
                "C3"
            );
            for &up in installed.upstream.iter().flatten() {
                let push = |join: u32| self.catalog.join(join).mode() == Mode::Push;
                assert!(!push(join) || push(up), "C2");
            }
        }
        assert_eq!(statuses, self.statuses.len(), "every status range is in its join's cover");
        assert_eq!(targets, self.updaters.targets(), "R3: every target is its status range's");
    }

    /// Checks one status range; the number of its targets.
    fn check_status(&self, id: StatusId) -> usize {
        let status = self.statuses.get(id);
        let mut targets = Vec::new();
        status.targets.extend(&mut targets);
        assert!(!status.is_invalid() || targets.is_empty(), "R3: an invalid range has no target");
        let range = status.range();
        for &(updater, context) in &targets {
            let span = self.span_of_target(id, &range, updater, context);
            assert!(self.updaters.is_filed(updater, &span, Target::new(id, context)), "U1");
        }
        if !status.is_clean() {
            for &dependent in &status.dependents {
                let work = self.statuses.get(dependent).work.as_ref();
                let told = work.is_some_and(|work| work.invalid || work.upstream.contains(&id));
                assert!(told, "R4");
            }
        }
        for &source in &status.sources {
            assert!(self.statuses.get(source).dependents.contains(&id), "ranges know each other");
        }
        if let Some(group) = status.group {
            let layer = self.catalog.join(status.join).layer;
            let table = self.store.table(layer);
            let noted = table.note(group).ranges().iter().find(|noted| noted.status == id);
            let suffix = &status.first[table.group_prefix(group).len()..];
            let serves = noted.expect("a group notes its status ranges").serves(suffix);
            assert!(
                !serves || status.is_clean(),
                "a group notes a range ready only if it is clean"
            );
        }
        targets.len()
    }
}
