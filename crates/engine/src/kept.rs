//! Joins that keep some outputs of each group: the best ones, by the order of their keys (`keep N`).
//!
//! What is materialized are these outputs alone, so that all who read the table, watch it, or are told of its changes see what there is and
//! no more. One that is better than another one takes its place; the other is removed as if its sources had gone. When an
//! output goes of which others were left out, the group is *short*: it is noted stale, and the next read that it concerns computes
//! the group again, as it does with a fold that cannot tell its next best.
//!
//! # Invariants
//! - KP1. Of a group in a status range that is not invalid all outputs are there up to its edge, and as many as [`KeptGroup`] counts. It has no edge
//!   where none was left out. With an edge, it has as many as are kept, or is noted stale, or is being refolded.
//! - KP2. Status ranges hold groups as wholes: so do the ranges that are computed ([`Plan::widened`](crate::catalog::Plan::widened)).
//!
//! # Cost
//! For a change of an output beyond the edge one look at its group. For one that comes before it, two seeks more than without. A group
//! that is read first, or is short, is computed as far as it is kept, where the sources have its outputs in their order
//! ([`Engine::compute_best`]): as a limited read, it is a seek for each span of the value source and about as many rows as are kept. Else it is
//! computed as a whole.

use crate::catalog::{Fold, Plan};
use crate::engine::Engine;
use crate::exec::Missing;
use crate::fold::Folded;
use crate::logged::prefix_overlaps;
use crate::rows::lead;
use crate::status::StatusId;
use crate::views::Views;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::key::{SEPARATOR, bounds};
use headwater_pattern::Keep;
use headwater_pool::ValueRef;
use headwater_store::Scan;

/// What is there of a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeptGroup {
    /// How many outputs.
    count: usize,
    /// The worst output that there was when one was left out: what is worse is not there.
    edge: Option<Box<[u8]>>,
}

/// Whether what is noted stale is a group, not an output: those end with a component.
pub(crate) fn is_group(stale: &[u8]) -> bool {
    stale.ends_with(&[SEPARATOR])
}

/// Whether what is noted stale is a group of which keys lie in `range`.
pub(crate) fn is_short_group(stale: &[u8], range: &KeyRange) -> bool {
    is_group(stale) && prefix_overlaps(stale, range)
}

/// Whether a key is worse than another one.
fn is_worse(keep: &Keep, key: &[u8], than: &[u8]) -> bool {
    if keep.last { key < than } else { key > than }
}

impl Engine {
    /// Leaves out of computed outputs what a join does not keep of each group, and notes what is there of the groups in
    /// `range`, of which these are all outputs.
    pub(crate) fn keep_best(&mut self, join: u32, range: &KeyRange, folded: &mut Vec<Folded>) {
        let Some(keep) = self.views.catalog.join(join).plan.join.keep else { return };
        self.views.forget_kept(join, range);
        for (group, kept) in self.retain_best(&keep, folded) {
            self.views.catalog.join_mut(join).kept.insert(group, kept);
        }
    }

    /// Leaves out what is not kept; what is there of each group then.
    pub(crate) fn retain_best(
        &mut self,
        keep: &Keep,
        folded: &mut Vec<Folded>,
    ) -> Vec<(Box<[u8]>, KeptGroup)> {
        let group_of = |folded: &Folded| lead(&folded.key, keep.components).map(<[u8]>::len);
        let mut groups = Vec::new();
        let mut left_out = alloc::vec![false; folded.len()];
        let mut start = 0;
        while let Some(first) = folded.get(start) {
            let Some(length) = group_of(first) else { break };
            let group = &first.key[..length];
            let same = folded[start..].partition_point(|other| other.key.starts_with(group));
            let end = start + same;
            let over = same.saturating_sub(keep.most);
            let (out, best) = if keep.last {
                (start..start + over, start + over..end)
            } else {
                (end - over..end, start..end - over)
            };
            let worst = if keep.last { best.start } else { best.end - 1 };
            let edge = (over > 0).then(|| folded[worst].key.clone());
            groups.push((group.into(), KeptGroup { count: best.len(), edge }));
            left_out[out].fill(true);
            start = end;
        }
        let mut at = 0;
        folded.retain(|folded| {
            at += 1;
            if left_out[at - 1] {
                self.store.pool.release(folded.value);
            }
            !left_out[at - 1]
        });
        groups
    }

    /// As [`Engine::compute`], of a join that keeps some outputs of each group.
    pub(crate) fn compute_kept(
        &mut self,
        join: u32,
        range: &KeyRange,
    ) -> Result<Vec<Folded>, Missing> {
        let plan = self.views.catalog.join(join).plan.clone();
        let Some(keep) = &plan.join.keep else { return self.compute_all(join, range) };
        let mut folded = self.compute_all(join, &plan.whole_groups(range))?;
        self.retain_best(keep, &mut folded);
        folded.retain(|folded| {
            let is_wanted = range.contains(&folded.key);
            if !is_wanted {
                self.store.pool.release(folded.value);
            }
            is_wanted
        });
        Ok(folded)
    }

    /// More outputs of one group than its join keeps, the best ones, computed without the others, in order; nothing where that is not known to cost
    /// less than all of the group does.
    ///
    /// Which outputs are better than the others is known before all are where the sources have them in their order: not where what a value
    /// says is a part of it.
    pub(crate) fn compute_best(&mut self, join: u32, group: &KeyRange) -> Option<Vec<Folded>> {
        let installed = self.views.catalog.join(join);
        let plan = installed.plan.clone();
        let keep = plan.join.keep.as_ref()?;
        let is_group = lead(&group.first, keep.components) == Some(&*group.first)
            && *group == KeyRange::prefix(&group.first);
        let is_base = installed.upstream.iter().all(Vec::is_empty);
        let mut ordered = plan.join.output.components[keep.components..].iter();
        let by_value =
            ordered.any(|each| each.slot().is_some_and(|slot| plan.join.is_value_slot(slot)));
        let is_push = plan.join.mode.is_maintained();
        if !is_group || !is_base || !is_push || by_value || self.base.placed.is_some() {
            return None;
        }
        let cut = self.dividing_hint(&[join], group, (keep.most + 1, keep.last), false).ok()??;
        let part = if keep.last {
            KeyRange::new(&cut, &group.last)
        } else {
            KeyRange::new(&group.first, &cut)
        };
        let best = self.compute_all(join, &part).ok()?;
        if best.len() > keep.most {
            return Some(best);
        }
        // Some of what was seen gives no output.
        self.release_folded(best);
        None
    }

    /// Gives the references of outputs back that are not stored.
    pub(crate) fn release_folded(&mut self, folded: impl IntoIterator<Item = Folded>) {
        for Folded { value, .. } in folded {
            self.store.pool.release(value);
        }
    }

    pub(crate) fn put_kept(
        &mut self,
        join: u32,
        keep: Keep,
        key: &[u8],
        value: ValueRef,
        fold: Option<Fold>,
    ) {
        let Some(group) = lead(key, keep.components) else { return };
        if self.output(join, key).is_some() {
            self.set_output(join, key, value, fold);
            return;
        }
        let mut kept = self.views.catalog.join_mut(join).kept.remove(group).unwrap_or_default();
        let edge = kept.edge.as_ref();
        if edge.is_some_and(|edge| is_worse(&keep, key, edge)) {
            self.store.pool.release(value);
        } else {
            self.set_output(join, key, value, fold);
            kept.count += 1;
            if kept.count > keep.most {
                let [worst, next] = self.worst_two(join, &keep, group);
                if let Some(worst) = worst {
                    self.unset_output(join, &worst);
                    kept.count -= 1;
                }
                kept.edge = next.map(Vec::into_boxed_slice);
            }
        }
        self.views.catalog.join_mut(join).kept.insert(group.into(), kept);
    }

    pub(crate) fn remove_kept(&mut self, join: u32, keep: Keep, key: &[u8]) {
        let was_there = self.output(join, key).is_some();
        self.unset_output(join, key);
        let Some(group) = lead(key, keep.components).filter(|_| was_there) else { return };
        let groups = &mut self.views.catalog.join_mut(join).kept;
        let Some(kept) = groups.get_mut(group) else { return };
        kept.count -= 1;
        if kept.edge.is_some() {
            if let Some(id) = self.views.status_at(join, key) {
                self.mark_stale(id, group);
            }
        } else if kept.count == 0 {
            groups.remove(group);
        }
    }

    /// The worst output of a group that is there, and the next one.
    fn worst_two(&self, join: u32, keep: &Keep, group: &[u8]) -> [Option<Vec<u8>>; 2] {
        let installed = self.views.catalog.join(join);
        let (output, range) = (&installed.plan.join.output, KeyRange::prefix(group));
        let reverse = !keep.last;
        let scan = Scan { pool: &self.store.pool, first: &range.first, last: &range.last, reverse };
        let mut found = [None, None];
        let _ = self.store.table(installed.layer).scan(&scan, &mut Vec::new(), &mut |key, _| {
            if !output.matches(key) {
                return ControlFlow::Continue(());
            }
            let is_first = found[0].is_none();
            found[usize::from(!is_first)] = Some(key.to_vec());
            if is_first { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        found
    }

    /// Asserts KP1, for tests.
    pub(crate) fn check_kept(&self, join: u32) {
        let installed = self.views.catalog.join(join);
        let plan = &installed.plan;
        let Some(keep) = &plan.join.keep else { return };
        if plan.join.mode == headwater_pattern::Mode::Pull {
            return;
        }
        for id in installed.cover.ids() {
            let status = self.views.statuses.get(id);
            if status.is_invalid() {
                continue;
            }
            let range = status.range();
            let mut counts = alloc::collections::BTreeMap::<&[u8], usize>::new();
            let keys = self.outputs_in(join, &range, status.sifted);
            for key in &keys {
                *counts
                    .entry(lead(key, keep.components).expect("an output has a group"))
                    .or_default() += 1;
            }
            let known = installed.kept.iter().filter(|(group, _)| range.contains(group));
            for (group, kept) in known {
                let count = counts.remove(&**group).unwrap_or(0);
                assert_eq!(count, kept.count, "KP1: {group:?} {kept:?} {status:?}");
                assert!(count <= keep.most, "KP1: {count}");
                let stale = status.work.as_ref().is_some_and(|work| {
                    work.stale.contains(group) || work.refolding.contains_key(group)
                });
                assert!(
                    kept.edge.is_none() || count == keep.most || stale,
                    "KP1: short {group:?} {kept:?} {status:?}"
                );
            }
            assert!(counts.is_empty(), "KP1: {counts:?} {status:?}");
        }
    }
}

impl Views {
    /// Forgets what there is of the groups in a range, whose outputs go or are known anew.
    pub(crate) fn forget_kept(&mut self, join: u32, range: &KeyRange) {
        let kept = &mut self.catalog.join_mut(join).kept;
        if kept.is_empty() {
            return;
        }
        let within = kept.range::<[u8], _>(bounds(&range.first, &range.last));
        let groups: Vec<_> = within.map(|(group, _)| group.clone()).collect();
        for group in groups {
            kept.remove(&group);
        }
    }

    /// Whether an output is worse than what its join keeps of its group.
    #[inline]
    pub(crate) fn is_left_out(&self, status: StatusId, plan: &Plan, key: &[u8]) -> bool {
        let Some(keep) = &plan.join.keep else { return false };
        let kept = &self.catalog.join(self.statuses.get(status).join).kept;
        let edge = lead(key, keep.components)
            .and_then(|group| kept.get(group))
            .and_then(|kept| kept.edge.as_ref());
        edge.is_some_and(|edge| is_worse(keep, key, edge))
    }

    /// Whether a group has fewer outputs than are kept, and others were left out.
    pub(crate) fn is_short(&self, join: u32, group: &[u8]) -> bool {
        let installed = self.catalog.join(join);
        let most = installed.plan.join.keep.map_or(0, |keep| keep.most);
        let kept = installed.kept.get(group);
        kept.is_some_and(|kept| kept.edge.is_some() && kept.count < most)
    }

    /// What is there of the group that a range is a part of; nothing where a join keeps all, or it is a part of none.
    pub(crate) fn explain_kept(&self, join: u32, range: &KeyRange) -> Option<String> {
        let installed = self.catalog.join(join);
        let keep = installed.plan.join.keep?;
        let group = lead(&range.first, keep.components)?;
        if !KeyRange::prefix(group).covers(range) {
            return None;
        }
        let shown = group.escape_ascii();
        let known = installed.kept.get(group);
        let edge = known.and_then(|kept| kept.edge.as_ref());
        let count = known.map_or(0, |kept| kept.count);
        let rest = match edge {
            Some(edge) => format!("what is worse than {} is left out", edge.escape_ascii()),
            None => String::from("nothing is left out"),
        };
        Some(format!(
            "{count} of at most {} outputs of '{shown}' are materialized; {rest}",
            keep.most
        ))
    }
}
