//! Letting go of what can be had again, so that no answer changes (M1).

use super::victims::Victim;
use crate::base::Gone;
use crate::engine::Engine;
use crate::handles::Handle;
use crate::joins::RANGE_ROWS;
use crate::maintain::leading;
use crate::relate::is_point;
use crate::rows::lead;
use crate::status::{StatusId, shared_prefix};
use crate::updaters::Target;
use crate::views::Views;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::key::SEPARATOR;
use headwater_policy::Heat;
use headwater_store::TableId;

/// Keys that are gone, or rows of a range under removal, that are looked at to make room.
const DEAD_TOGETHER: usize = 64;
/// A range with more outputs than so many for each row of a slice goes in parts.
const OUTPUTS_A_ROW: usize = 4;
/// After how many outputs of one write memory is looked at.
pub(crate) const FED_TOGETHER: usize = 64;
/// After how many of them it is looked at anew what is taken.
const FED_BETWEEN_LOOKS: usize = 16 * FED_TOGETHER;
/// What an output takes besides its value, about: its place in a page that may be split for it.
const FED_BYTES: usize = 128;

impl Engine {
    /// Evicts the range of least worth among some drawn by chance; `false` where nothing can go.
    pub fn evict_one(&mut self) -> bool {
        // What is gone, or dead, takes room that nobody needs.
        if self.has_discarded() {
            self.dissolve(DEAD_TOGETHER);
            return true;
        }
        if self.base.removals.is_under_way() {
            self.remove_slice(DEAD_TOGETHER);
            return true;
        }
        // Nothing is lost by putting a chunk aside, and there is nothing larger that could go.
        if self.spill_one() {
            return true;
        }
        let victim = self.choose_victim();
        self.evict(victim)
    }

    /// Evicts a range that `draw` names, or spills a value, whatever its worth; `false` where nothing can go. For
    /// tests: any range may go at any time.
    pub fn evict_any(&mut self, draw: u64) -> bool {
        if draw.is_multiple_of(2) && self.spill_any(draw / 2) {
            return true;
        }
        let victim = self.any_victim(draw);
        self.memory.evicts_at_will = true;
        let is_evicted = self.evict(victim);
        self.memory.evicts_at_will = false;
        is_evicted || self.spill_any(draw)
    }

    fn evict(&mut self, victim: Option<Victim>) -> bool {
        match victim {
            None => return false,
            Some(Victim::Key(_, key, _)) if self.remove_dead(&key) => {}
            Some(Victim::Key(table, key, _)) if self.base.is_kept(table) => {
                self.memory.evicted.loaded += 1;
                self.evict_kept(table, &key);
            }
            Some(Victim::Key(table, key, heat)) => {
                let Some(value) = self.store.table(table).get(&key) else { return true };
                if let Some(number) = Handle::stream(value) {
                    // Of a stream the oldest part goes.
                    if self.drop_oldest_chunk(number) || self.drop_last_chunk(number) {
                        return true;
                    }
                    self.base.streams.is_evicted(number);
                } else if self.spill_value(table, &key, value) {
                    return true;
                }
                self.memory.evicted.keys += 1;
                self.evict_key(table, &key, heat);
            }
            Some(Victim::Computed(id)) => {
                let part = self.divide_to_evict(id);
                self.evict_computed(part);
            }
            Some(Victim::Loaded(part, first)) => {
                self.memory.evicted.loaded += 1;
                if let Some(whole) =
                    self.base.loads.data(part).and_then(|data| data.ranges.at(&first))
                {
                    let range = match part.home {
                        None => self.run_from(part.table, &first, Some(whole)),
                        Some(_) => whole,
                    };
                    for id in self.views.readers_of(part.table, &range) {
                        self.note_short(id);
                    }
                    self.unload(part, &range);
                }
            }
        }
        true
    }

    /// Drops a status range with its outputs.
    fn evict_computed(&mut self, id: StatusId) {
        self.note_short(id);
        let (join, heat) = (self.views.statuses.get(id).join, self.range_candidate(id).heat);
        let hash = self.memory.range_hash(join, self.views.statuses.get(id).first());
        self.memory.ranges.evicted(hash, heat, self.views.statuses.len());
        self.views.catalog.join_mut(join).counters.evictions += 1;
        self.memory.evicted.ranges += 1;
        self.discard(id);
    }

    /// Where a range has many more outputs than a slice has rows, makes two of it, of which the second one is to be computed anew;
    /// the one that is to go.
    fn divide_to_evict(&mut self, id: StatusId) -> StatusId {
        let status = self.views.statuses.get(id);
        let (join, range, mut outputs) = (status.join, status.range(), 0);
        let most =
            self.reads.slices.rows().map_or(usize::MAX, |rows| rows.saturating_mul(OUTPUTS_A_ROW));
        let layer = self.views.catalog.join(join).layer;
        let mut split = None;
        self.scan_table_until(layer, &range, false, &mut |key, _| {
            outputs += 1;
            if outputs <= most {
                return ControlFlow::Continue(());
            }
            split = Some(key.to_vec());
            ControlFlow::Break(())
        });
        self.memory.outputs_gone += outputs;
        if let (Some(split), Some(at)) =
            (&mut split, self.views.catalog.join(join).plan.together_at)
        {
            split.truncate(lead(split, at).map_or(0, <[u8]>::len));
        }
        let Some(split) = split.filter(|split| *split > range.first) else { return id };
        let is_one_moment = !self.views.catalog.join(join).mode().is_maintained();
        if is_one_moment || self.is_followed(self.views.catalog.join(join).plan.output_table) {
            return id;
        }
        self.note_short(id);
        self.invalidate(id);
        self.divide(id, &split);
        self.views.status_at(join, &range.first).expect("one of the two begins where the whole did")
    }

    /// Whether a write that has many outputs must not add more of them as things are: what it adds now would have to
    /// go after it.
    pub(crate) fn lacks_room_to_feed(&mut self) -> bool {
        let needs = FED_TOGETHER * FED_BYTES;
        if !self.has_room_for(needs, 0) {
            return true;
        }
        self.memory.fed += FED_TOGETHER;
        if self.memory.fed < FED_BETWEEN_LOOKS {
            return false;
        }
        // Pages that are split leave others half empty, which no count of bytes tells. So does what goes, which is no reason
        // for more to go: it is not looked at before more has come.
        self.memory.fed = 0;
        self.memory.look_again();
        !self.has_room_for(needs, 0)
    }

    /// Drops a range that a write would have added to, so that its next read computes it.
    pub(crate) fn evict_unfed(&mut self, id: StatusId) {
        self.views.fan_outs.note_dropped(self.views.statuses.get(id).rows as usize + RANGE_ROWS);
        self.evict_computed(id);
    }

    /// Removes a base key as expiry would: whoever watches it or reads it is told.
    fn evict_key(&mut self, table: TableId, key: &[u8], heat: Heat) {
        self.memory.key_count = self.key_count() as usize;
        let hash = self.memory.secret.hash(key);
        if let Some(keys) = &mut self.memory.keys {
            keys.evicted(hash, heat, self.memory.key_count);
        }
        self.take(table, key, Gone::Evicted);
    }

    /// Has what was computed from keys of `range` recomputed.
    pub(crate) fn invalidate_readers(&mut self, table: TableId, range: &KeyRange) {
        for id in self.views.readers_of(table, range) {
            if let Some(status) = self.views.statuses.find(id).filter(|status| !status.is_invalid())
            {
                let range = status.range();
                self.invalidate(id);
                // Keeping it current would load again what has to go.
                self.tell_reset(&range);
            }
        }
    }
}

impl Views {
    /// The status ranges that have read, or may have read, keys of `range`.
    ///
    /// Where the range says as many leading components of its keys as the updaters of a source share, these are looked up:
    /// only where they share more, all are walked over.
    pub(crate) fn readers_of(&self, table: TableId, range: &KeyRange) -> BTreeSet<StatusId> {
        let (first, point) = (&*range.first, is_point(range));
        let shared = &first[..shared_prefix(range)];
        let known = shared.iter().filter(|&&byte| byte == SEPARATOR).count();
        let (mut found, mut walked) = (Vec::new(), Vec::new());
        for reader in self.catalog.listeners_within(table, range) {
            let installed = self.catalog.join(reader.join);
            let depths = installed.depths[reader.source as usize];
            let pattern = installed.plan.pattern(reader.source as usize);
            let components = pattern.components.len();
            // Behind the table's name there is a separator that begins no component.
            let told = if point { components + 1 } else { known };
            if point && !pattern.matches(first) {
                continue;
            }
            if depths.checked_shr(told as u32).unwrap_or(0) != 0 {
                walked.push(reader);
                continue;
            }
            for depth in (0..told.min(components + 1)).filter(|depth| depths & (1 << depth) != 0) {
                if let Some(id) = self.updaters.find(reader, leading(first, depth, components)) {
                    self.updaters.targets_within(id, range, &mut found);
                }
            }
        }
        if !walked.is_empty() {
            self.updaters.reading(&walked, range, &mut found);
        }
        found.into_iter().map(Target::status).collect()
    }
}

impl super::Memory {
    /// What a materialized or loaded range is remembered by, with the number of its join or table.
    pub(crate) fn range_hash(&self, number: u32, first: &[u8]) -> u64 {
        self.secret.hash_of(u64::from(number), first)
    }
}
