//! Which range or key goes next.
//!
//! Of each there is one byte, its heat (`headwater_policy`). A few are drawn by chance, and the
//! one that is worth least goes. Ranges are always judged by what it costs to have them again, beside their
//! bytes and their use (Pequod §2.5 evicts by last use alone, and leaves the rest to the
//! future); keys by the policy that the administrator chose.

use crate::engine::Engine;
use crate::handles::Handle;
use crate::loads::LoadedId;
use crate::status::StatusId;
use crate::streams::Stream;
use alloc::vec::Vec;
use headwater_policy::{Candidate, Heat, Least, Order, SAMPLES, Score};
use headwater_pool::ValueRef;
use headwater_store::TableId;

/// What computing a row costs, in bytes that could be read in that time.
const ROW_BYTES: u32 = 256;

/// Bytes that a value takes of which an output knows how often it is there; most rows have another one.
const TALLIED_BYTES: usize = 64;

/// Entries that are looked at together: they lie in one page.
const TOGETHER: usize = 4;

/// How many keys are drawn where only those that expire may go.
const VOLATILE_DRAWS: usize = 4 * SAMPLES;

/// How many computed ranges are drawn at most where many of them were computed for reads that go on.
const AWAITED_DRAWS: usize = 8 * SAMPLES;

/// How many keys are drawn at most where the values of many are not in memory.
const SPILLED_DRAWS: usize = 64 * SAMPLES;

/// Bytes of a spilled value's record and of its key's entry.
const SPILLED_BYTES: usize = 32;

/// Something that can go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    /// A status range with its outputs.
    Computed(StatusId),
    /// The loaded range that begins here.
    Loaded(LoadedId, Vec<u8>),
    /// A base key.
    Key(TableId, Vec<u8>, Heat),
}

impl Engine {
    /// The victim of least worth among some drawn by chance; `None` where nothing can go.
    pub(super) fn choose_victim(&mut self) -> Option<Victim> {
        let (range, range_bytes) = self.choose_range();
        let key = self.choose_key();
        let by_cost = self.memory.keys.as_ref().is_some_and(|keys| keys.order() == Order::Cost);
        match (range, key) {
            (Some((range, a)), Some((key, b))) => {
                let range_first = if by_cost {
                    a.worth <= b.worth
                } else {
                    // What cannot be compared takes turns, by bytes.
                    let derived = self.views.statuses.len() * range_bytes;
                    let all = self.store.pool.bytes().max(1);
                    self.memory.ranges.chance() % (all + derived) as u64 > all as u64 / 2
                };
                Some(if range_first { range } else { key })
            }
            (range, key) => range.or(key).map(|(victim, _)| victim),
        }
    }

    /// The range of least worth among some drawn by chance, and the bytes of a computed one, about.
    fn choose_range(&mut self) -> (Option<(Victim, Score)>, usize) {
        let mut least = Least::default();
        let mut of_awaited = Least::default();
        let (mut bytes_drawn, mut drawn, mut is_found) = (0, 0, false);
        for count in 1..=AWAITED_DRAWS {
            let draw = self.memory.ranges.chance();
            let Some(id) = self.views.statuses.near(draw) else { break };
            let candidate = self.range_candidate(id);
            bytes_drawn += candidate.bytes as usize;
            drawn = count;
            let score = self.memory.ranges.score(&candidate);
            if self.is_awaited(id) {
                of_awaited.offer(Victim::Computed(id), score);
            } else {
                least.offer(Victim::Computed(id), score);
                is_found = true;
            }
            if let Some(heat) = self.memory.ranges.renewed(candidate.heat) {
                self.views.statuses.get_mut(id).heat = heat;
            }
            if count >= SAMPLES && is_found {
                break;
            }
        }
        for table in self.base.loads.own_tables() {
            let sizes = self.store.table(table).sizes();
            for _ in 0..SAMPLES {
                let Some(data) = self.base.loads.own_mut(table) else { break };
                let count = data.ranges.len();
                // Of a kept table the keys go, until there are hardly any.
                if data.is_kept() && sizes.keys >= count {
                    break;
                }
                let Some((first, heat)) = data.ranges.next_in_turn() else { break };
                let bytes = sizes.page_bytes / count.max(1);
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                let score = self.memory.ranges.score(&Candidate::plain(heat, bytes));
                least.offer(Victim::Loaded(LoadedId::own(table), first), score);
            }
        }
        for table in self.base.loads.elsewhere.tables() {
            let keys = self.store.table(table).sizes();
            let (count, replicas) =
                (self.base.loaded_elsewhere(table), keys.keys - self.own_keys(table));
            let bytes = keys.page_bytes / keys.keys.max(1) * replicas / count.max(1);
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            for _ in 0..SAMPLES {
                let Some((part, first, heat)) = self.next_elsewhere(table) else { break };
                let score = self.memory.ranges.score(&Candidate::plain(heat, bytes));
                least.offer(Victim::Loaded(part, first), score);
            }
        }
        (least.take().or(of_awaited.take()), bytes_drawn / drawn.max(1))
    }

    /// What decides whether a status range goes.
    pub(crate) fn range_candidate(&self, id: StatusId) -> Candidate {
        let status = self.views.statuses.get(id);
        let mut heat = status.heat;
        let mut bytes = size_of::<crate::status::Status>() + status.bytes();
        if let Some(group) = status.group {
            let table = self.store.table(self.views.catalog.join(status.join).layer);
            bytes += table.group_bytes(group);
            let noted = table.note(group).ranges().iter().find(|noted| noted.status == id);
            // Reads that the group's note answers leave their mark there.
            heat = noted.map_or(heat, |noted| noted.heat);
        } else {
            bytes += status.rows as usize * 48;
        }
        if self.views.catalog.join(status.join).plan.tallies() {
            bytes += status.visited() as usize * TALLIED_BYTES;
        }
        // What depends on it would have to be recomputed, too.
        let dependents = status.dependents().len() as u32;
        let rows =
            if status.is_invalid() { 0 } else { (1 + dependents).saturating_mul(status.rows) };
        Candidate {
            heat,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            cost: rows.saturating_mul(ROW_BYTES).saturating_add(1),
            expires_ms: None,
        }
    }

    /// What a status range is worth, for EXPLAIN.
    pub(crate) fn worth_of_range(&self, id: StatusId) -> Score {
        self.memory.ranges.clone().score(&self.range_candidate(id))
    }

    fn choose_key(&mut self) -> Option<(Victim, Score)> {
        let mut keys = self.memory.keys.take()?;
        let volatile = self.memory.policy.volatile;
        let mut least = Least::default();
        // A key whose value went already gives little memory back, and loses the value, or where a stream ends: one goes where
        // hardly any others are left.
        let mut of_spilled = Least::default();
        let by_expiry = keys.order() == Order::Expiry;
        if !by_expiry || self.base.loads.persistence.is_some() {
            let mut tables = self.evictable_tables();
            tables.retain(|&(table, _)| !by_expiry || self.base.is_kept(table));
            let total: u64 = tables.iter().map(|(_, keys)| keys).sum();
            let ends_stay = self.base.streams.len() > 0 && !self.ends_may_go();
            let some_stay = self.base.spilled.len() > 0 || self.base.streams.len() > 0;
            let most = match (some_stay, volatile) {
                (true, _) => SPILLED_DRAWS,
                (false, true) => VOLATILE_DRAWS,
                (false, false) => SAMPLES,
            };
            let mut drawn = 0;
            for _ in 0..most / TOGETHER {
                if total == 0 || drawn >= SAMPLES {
                    break;
                }
                let mut at = keys.chance() % total;
                let table = tables.iter().find(|(_, count)| {
                    let here = at < *count;
                    at = at.wrapping_sub(*count);
                    here
                });
                let Some(&(table, _)) = table else { break };
                let draw = keys.chance();
                let volatile = volatile && !self.base.is_kept(table);
                let mut renewed = Vec::new();
                self.store.table(table).sample(draw, TOGETHER, &mut |key, value, heat| {
                    if (volatile && self.base.expiries.get(key).is_none()) || !self.owns(key) {
                        return;
                    }
                    let stream = Handle::stream(value).map(|it| self.base.streams.get(it));
                    if ends_stay && stream.is_some_and(|it| !it.is_long() && !it.is_kept) {
                        return;
                    }
                    let spilled =
                        Handle::spilled(value).map(|number| self.base.spilled.get(number));
                    let gone = spilled.is_some_and(|spilled| self.base.spilling.is_gone(&spilled));
                    let heat = Heat::from_byte(heat);
                    let bytes = key.len() + 16 + self.footprint(value);
                    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                    let mut score = keys.score(&Candidate::plain(heat, bytes));
                    if gone {
                        score.worth = 0;
                    }
                    let spares = spilled.is_some() && !gone || stream.is_some_and(Stream::has_gone);
                    drawn += usize::from(!spares);
                    let least = if spares { &mut of_spilled } else { &mut least };
                    if least.is_below(score) {
                        least.offer(Victim::Key(table, key.to_vec(), heat), score);
                    }
                    if let Some(heat) = keys.renewed(heat) {
                        renewed.push((key.to_vec(), heat));
                    }
                });
                for (key, heat) in renewed {
                    self.store.table_mut(table).0.touch(&key, |_| heat.byte());
                }
            }
        }
        let mut chosen = least.take().or(of_spilled.take());
        if chosen.is_none() && volatile {
            chosen = self.next_to_expire().map(|(table, key)| {
                let score = keys.score(&Candidate::plain(Heat::default(), 0));
                (Victim::Key(table, key, Heat::default()), score)
            });
        }
        self.memory.keys = Some(keys);
        chosen
    }

    /// Bytes that a key's value takes, or what goes of a stream at once.
    fn footprint(&self, value: ValueRef) -> usize {
        let number = match Handle::of(value) {
            None => return self.store.pool.footprint(value),
            Some(Handle::Spilled(_)) => return SPILLED_BYTES,
            Some(Handle::Stream(number)) => number,
        };
        let stream = self.base.streams.get(number);
        let goes = stream.oldest_in_memory().and_then(|at| stream.chunks[at].value());
        goes.map_or_else(|| stream.resident_bytes(&self.store.pool), |value| value.len())
    }

    /// The evictable key that expires first.
    fn next_to_expire(&self) -> Option<(TableId, Vec<u8>)> {
        let ends_stay = !self.ends_may_go();
        let evictable = self.base.expiries.in_order().filter_map(|key| {
            let table = self.store.table_of(key)?;
            self.is_evictable(table).then_some((table, key))
        });
        let stays = |(table, key): &(TableId, &[u8])| {
            let stream = self.store.table(*table).get(key).and_then(Handle::stream);
            let stream = stream.map(|number| self.base.streams.get(number));
            ends_stay && stream.is_some_and(|it| !it.is_long() && !it.is_kept)
        };
        // So many streams are passed over and no more.
        let found = evictable.take(SPILLED_DRAWS).find(|at| !stays(at))?;
        Some((found.0, found.1.to_vec()))
    }

    /// Whether base keys of the table may be given up: those that nobody else keeps, only
    /// where no join reads them, unless the administrator says otherwise.
    pub(crate) fn is_evictable(&self, table: TableId) -> bool {
        let policy = self.memory.policy.order.is_some();
        if self.memory.staying == Some(table) {
            return false;
        }
        self.views.catalog.role(table).map_or(policy, |role| match self.base.loads.own(table) {
            Some(data) => data.is_kept(),
            None => {
                policy && role.writers.is_empty() && role.evict.unwrap_or(role.readers.is_empty())
            }
        })
    }

    /// Tables whose base keys may go, with the number of their keys.
    fn evictable_tables(&self) -> Vec<(TableId, u64)> {
        let tables = self.store.tables().map(|(id, table)| (id, table.sizes().keys as u64));
        tables.filter(|&(id, keys)| keys > 0 && self.is_evictable(id)).collect()
    }

    /// Something that can go, whatever its worth.
    pub(super) fn any_victim(&self, draw: u64) -> Option<Victim> {
        let tables = self.base.loads.own_tables();
        let kinds = tables.len() as u64 + 1;
        let (turn, draw) = (draw % kinds, draw / kinds);
        let of_table = |&table: &TableId| {
            let data = self.base.loads.own(table)?;
            if data.is_kept() && draw % 3 > 0 {
                let mut found = None;
                self.store.table(table).sample(draw / 3, 1, &mut |key, _, heat| {
                    if self.owns(key) {
                        found = Some(Victim::Key(table, key.to_vec(), Heat::from_byte(heat)));
                    }
                });
                return found;
            }
            Some(Victim::Loaded(LoadedId::own(table), data.ranges.any(draw)?.to_vec()))
        };
        let of_others = || {
            let tables = self.base.loads.elsewhere.tables();
            let count = tables.len().max(1) as u64;
            let table = *tables.get((draw % count) as usize)?;
            let (part, first) = self.base.any_elsewhere(table, draw / count)?;
            Some(Victim::Loaded(part, first))
        };
        if draw.is_multiple_of(3)
            && let Some(victim) = of_others()
        {
            return Some(victim);
        }
        let computed = || self.views.statuses.near(draw).map(Victim::Computed);
        // The kind whose turn it is comes first.
        let from_turn = tables.iter().cycle().skip(turn as usize).take(tables.len());
        let loaded = || from_turn.clone().find_map(of_table);
        if turn == tables.len() as u64 {
            computed().or_else(loaded)
        } else {
            loaded().or_else(computed)
        }
    }
}
