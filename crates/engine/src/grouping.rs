//! Boundaries that nobody set: what the patterns of joins say of how their keys are read.
//!
//! A join's outputs are mostly read for one value of their first slot (one user's timeline), and its sources within what the
//! loops above them have bound (one user's subscriptions, one poster's posts). Where a table that has no boundary is read so, its keys are
//! grouped accordingly when the join is installed. Groups change no answer, and nothing of where keys live
//! (`headwater_base::placement`): that goes by the boundaries that were set.
//!
//! # Invariants
//! - E1. What TABLE.SET said of a table's boundary holds, whatever joins come; a boundary that was inferred stays until TABLE.SET says
//!   another, or until the table goes.

use crate::engine::Engine;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::key::SEPARATOR;
use headwater_pattern::{Component, Join, Pattern};
use headwater_store::TableId;

/// How many keys are grouped in the time in which one source row is visited.
const GROUPED_A_ROW: usize = 1;

/// The slot that the keys of a pattern can be grouped by, and how many components that takes: the first one, if some component follows it.
fn grouping_slot(pattern: &Pattern) -> Option<(usize, usize)> {
    let slots = pattern.components.iter().enumerate();
    let mut slots = slots.filter_map(|(at, component)| match component {
        Component::Slot { slot, .. } => Some((*slot, at + 1)),
        Component::Literal(_) => None,
    });
    slots.next()
}

fn slots_of(pattern: &Pattern) -> u32 {
    pattern.slots().fold(0, |slots, slot| slots | 1 << slot)
}

/// How many components group the keys of a join's output and of each of its sources, as its loops read them; 0: none do.
pub(crate) fn suggested(join: &Join) -> (usize, Vec<usize>) {
    let leads = |slot: usize| {
        let mut firsts = join.sources.iter().filter_map(|source| grouping_slot(&source.pattern));
        firsts.any(|(first, _)| first == slot)
    };
    let first = grouping_slot(&join.output).filter(|&(slot, _)| leads(slot));
    let mut bound = first.map_or(0, |(slot, _)| 1u32 << slot);
    let groups = |pattern: &Pattern, (_, boundary): (usize, usize)| {
        if boundary < pattern.components.len() { boundary } else { 0 }
    };
    let sources = join.sources.iter().map(|source| {
        let slots = slots_of(&source.pattern);
        let is_range = slots & !bound != 0;
        let first = grouping_slot(&source.pattern);
        let first = first.filter(|(slot, _)| is_range && bound & (1 << slot) != 0);
        bound |= slots;
        first.map_or(0, |first| groups(&source.pattern, first))
    });
    let sources = sources.collect();
    (first.map_or(0, |first| groups(&join.output, first)), sources)
}

impl Engine {
    /// Gives the tables that a join names the boundaries that its patterns suggest, where they have none and none was set; which
    /// these are.
    pub(crate) fn infer_boundaries(
        &mut self,
        join: &Join,
        output: TableId,
        sources: &[TableId],
    ) -> Vec<(String, usize)> {
        let (of_output, of_sources) = suggested(join);
        let all = sources.iter().copied().zip(of_sources).chain([(output, of_output)]);
        let mut inferred = Vec::new();
        for (table, boundary) in all {
            let is_set = self.views.catalog.role(table).is_some_and(|role| role.boundary_set);
            if boundary == 0 || is_set || self.store.table(table).boundary() > 0 {
                continue;
            }
            self.store.group_by(table, boundary);
            let prefix = self.store.table(table).prefix();
            let name = prefix.strip_suffix(&[SEPARATOR]).unwrap_or(prefix);
            inferred.push((String::from_utf8_lossy(name).into_owned(), boundary));
        }
        if self.reads.slices.rows().is_none() {
            self.regroup_slice();
        }
        inferred
    }

    /// What groups the keys of a table, and who said so, for EXPLAIN.
    pub(crate) fn explain_boundary(&self, table: TableId, boundary: usize) -> String {
        let is_set = self.views.catalog.role(table).is_some_and(|role| role.boundary_set);
        let plural = if boundary == 1 { "" } else { "s" };
        let by = if is_set { "as TABLE.SET says" } else { "as a join reads them" };
        let rest =
            if self.store.table(table).is_regrouping() { "; some are yet to be" } else { "" };
        format!("{boundary} component{plural}, {by}{rest}")
    }

    /// Groups the next keys of tables whose boundary was inferred.
    pub(crate) fn regroup_slice(&mut self) {
        let rows = self.reads.slices.rows().unwrap_or(usize::MAX);
        self.store.regroup(rows.saturating_mul(GROUPED_A_ROW));
    }
}

#[cfg(test)]
mod tests {
    use super::suggested;
    use alloc::vec::Vec;
    use headwater_base::Limits;
    use headwater_pattern::Join;

    #[test]
    fn boundaries_follow_from_how_the_loops_read() {
        let of = |text: &str| -> (usize, Vec<usize>) {
            suggested(&Join::parse(text, &Limits::default()).expect("a join"))
        };
        let cases: [(&str, usize, &[usize]); 10] = [
            ("t|<u>|<x>|<p> = check s|<u>|<p> copy p|<p>|<x>", 1, &[1, 1]),
            ("karma|<a> = count vote|<a>|<id>|<v>", 0, &[1]),
            ("page|<a>|<id>|r = count vote|<a>|<id>|<v>", 1, &[1]),
            ("page|<a>|<id>|k|<c>|<w> = check m|<a>|<id>|<c>|<w> copy karma|<w>", 1, &[1, 0]),
            // One group for each moment would hold hardly more than a key.
            ("ct|<x>|<p> = copy cp|<p>|<x>", 0, &[0]),
            ("t|<u>|<x>|<p> = pull copy ct|<x>|<p> check s|<u>|<p>", 1, &[0, 0]),
            ("t|new|<u>|<x> = copy s|<u>|all|<x>", 2, &[1]),
            // Read as a whole, or key by key.
            ("all|<kind> = count p|<p>|<x> check kind|<kind>", 0, &[0, 0]),
            ("name|<u> = copy n|<u>", 0, &[0]),
            ("x|<a>|<b> = check y|<b>|<a> copy z|<b>|<a>", 0, &[0, 0]),
        ];
        for (text, output, sources) in cases {
            assert_eq!(of(text), (output, sources.to_vec()), "{text}");
        }
    }
}
