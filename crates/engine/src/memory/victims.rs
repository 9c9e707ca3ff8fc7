//! Which range goes next: the one whose recomputation is cheapest for the memory that it frees
//! and the time it was not read.
//!
//! The paper leaves this to the future (Pequod §2.5 evicts by last use alone). The worth of a
//! range is what it costs to have it again, divided by its bytes and by its age in reads; the range of
//! least worth among a few drawn by chance goes.

use super::SAMPLES;
use crate::engine::Engine;
use crate::status::StatusId;
use alloc::vec::Vec;
use headwater_store::TableId;

/// Cost of loading a range again, in rows that could be computed in that time: a round trip
/// to another process.
const LOAD_ROWS: u32 = 1000;

/// Something that can be had again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    /// A status range with its outputs.
    Computed(StatusId),
    /// The loaded range of a table that begins here.
    Loaded(TableId, Vec<u8>),
}

/// What decides whether a range goes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Worth {
    /// Rows read and written to have it again.
    pub(crate) cost: u32,
    /// Bytes that it holds, about.
    pub(crate) bytes: usize,
    /// Reads since it was read.
    pub(crate) age: u32,
}

impl Worth {
    /// The less, the sooner it goes.
    pub(crate) fn value(self) -> f64 {
        f64::from(self.cost.max(1)) / (self.bytes.max(1) as f64 * (f64::from(self.age) + 1.0))
    }
}

impl Engine {
    /// The victim of least worth among some drawn by chance; `None` where there is nothing that
    /// can be had again.
    pub(super) fn choose_victim(&mut self, draw: u64) -> Option<Victim> {
        let mut best: Option<(f64, Victim)> = None;
        let mut offer = |worth: Worth, victim: Victim| {
            let value = worth.value();
            if best.as_ref().is_none_or(|(least, _)| value < *least) {
                best = Some((value, victim));
            }
        };
        let mut at = draw;
        for _ in 0..SAMPLES {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let Some(id) = self.statuses.near(at >> 33) else { break };
            offer(self.worth_of_range(id), Victim::Computed(id));
        }
        for table in self.catalog.sourced_tables() {
            let Some(sourced) = self.catalog.role(table).and_then(|role| role.sourced.as_ref())
            else {
                continue;
            };
            let bytes_each = self.store.table(table).sizes().page_bytes / sourced.counts().0.max(1);
            for _ in 0..SAMPLES {
                at = at
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let Some((first, used)) = sourced.some_loaded(at >> 33) else { break };
                let age = self.memory.age(used);
                let worth = Worth { cost: LOAD_ROWS, bytes: bytes_each, age };
                offer(worth, Victim::Loaded(table, first.to_vec()));
            }
        }
        best.map(|(_, victim)| victim)
    }

    /// Something that can go, whatever its worth.
    pub(super) fn any_victim(&self, draw: u64) -> Option<Victim> {
        let tables = self.catalog.sourced_tables();
        let (turn, draw) = (draw % (tables.len() as u64 + 1), draw / (tables.len() as u64 + 1));
        let of_table = |&table: &TableId| {
            let sourced = self.catalog.role(table)?.sourced.as_ref()?;
            Some(Victim::Loaded(table, sourced.some_loaded(draw)?.0.to_vec()))
        };
        let computed = || self.statuses.near(draw).map(Victim::Computed);
        // The kind whose turn it is comes first.
        let loaded =
            || tables.iter().cycle().skip(turn as usize).take(tables.len()).find_map(of_table);
        if turn == tables.len() as u64 {
            computed().or_else(loaded)
        } else {
            loaded().or_else(computed)
        }
    }

    /// What decides whether a status range goes.
    pub(crate) fn worth_of_range(&self, id: StatusId) -> Worth {
        let status = self.statuses.get(id);
        let mut used = status.used;
        let mut bytes = size_of::<crate::status::Status>() + status.bytes();
        if let Some(group) = status.group {
            let table = self.store.table(self.catalog.join(status.join).layer);
            bytes += table.group_bytes(group);
            let noted = table.note(group).ranges().iter().find(|noted| noted.status == id);
            if let Some(noted) = noted
                && self.memory.age(noted.used) < self.memory.age(used)
            {
                used = noted.used;
            }
        } else {
            bytes += status.rows as usize * 48;
        }
        // What depends on it would have to be recomputed, too.
        let dependents = status.dependents.len() as u32;
        let cost = if status.is_invalid() { 0 } else { (1 + dependents) * (1 + status.rows) };
        Worth { cost, bytes, age: self.memory.age(used) }
    }
}
