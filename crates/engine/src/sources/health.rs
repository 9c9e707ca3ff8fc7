//! How sources do: where they stand, whether they are up, and who waits for them to come so far.

use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::loads::LoadedId;
use crate::report::{Effect, EngineError, SourceReport, Stop, TableOptions, Ticket};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::source::{Health, Position};

/// What is known of the sources that tables have.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    map: BTreeMap<String, State>,
}

#[derive(Debug)]
struct State {
    seen: Position,
    health: Health,
    waiting: Vec<(Position, Ticket)>,
}

impl Default for State {
    fn default() -> Self {
        Self { seen: Position(0), health: Health::Up, waiting: Vec::new() }
    }
}

impl Sources {
    /// Notes that a source has come to `position`; gives the tickets that waited for that.
    pub(super) fn reach(&mut self, source: &str, position: Position) -> Vec<Ticket> {
        if !self.map.contains_key(source) {
            self.map.insert(String::from(source), State::default());
        }
        let Some(state) = self.map.get_mut(source) else { return Vec::new() };
        state.seen = state.seen.max(position);
        let (seen, mut woken) = (state.seen, Vec::new());
        state.waiting.retain(|&(wanted, ticket)| {
            let reached = wanted <= seen;
            if reached {
                woken.push(ticket);
            }
            !reached
        });
        woken
    }

    /// Whether some source is down.
    pub(crate) fn is_any_down(&self) -> bool {
        self.map.values().any(|source| matches!(source.health, Health::Down(_)))
    }

    /// Why what a source has given may be out of date.
    pub(crate) fn down(&self, source: &str) -> Option<&str> {
        match &self.map.get(source)?.health {
            Health::Up => None,
            Health::Down(reason) => Some(reason),
        }
    }
}

impl Engine {
    /// Whether [`Engine::table_set`] would accept this.
    ///
    /// # Errors
    /// As there.
    pub fn check_table(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        self.accept_table(name, options).map(|_| ())
    }

    /// Whether a key and a value are within the limits.
    ///
    /// # Errors
    /// They are not.
    pub fn check_lengths(&self, key: &[u8], value_bytes: usize) -> Result<(), EngineError> {
        self.check_bytes(key, value_bytes)
    }

    /// Notes how a source does. What was loaded of it is served all the same.
    pub fn source_health(&mut self, source: &str, health: Health) {
        self.base.loads.sources.map.entry(String::from(source)).or_default().health = health;
    }

    /// Forgets what was loaded of `range` from a source: it has lost track of what changed there.
    pub fn source_reset(&mut self, source: &str, range: &KeyRange) {
        for table in self.base.loads.own_tables() {
            let prefix = KeyRange::prefix(self.store.table(table).prefix());
            let part = prefix.intersection(range);
            let is_its = self.base.loads.own(table).is_some_and(|data| data.source() == source);
            if is_its && !part.is_empty() {
                self.unload(LoadedId::own(table), &part);
                self.drop_answers(LoadedId::own(table), &part);
            }
        }
    }

    /// Forgets a source that no table has any more.
    pub fn source_forget(&mut self, source: &str) {
        self.base.loads.sources.map.remove(source);
    }

    /// Waits until the changes of a source up to `position` are applied here.
    ///
    /// # Errors
    /// [`Stop::Wait`] where they are not yet.
    pub fn await_position(&mut self, source: &str, position: Position) -> Result<(), Stop> {
        if self.base.loads.sources.map.get(source).is_some_and(|state| state.seen >= position) {
            return Ok(());
        }
        let ticket = self.next_ticket();
        let state = self.base.loads.sources.map.entry(String::from(source)).or_default();
        state.waiting.push((position, ticket));
        Err(Stop::Wait(ticket))
    }

    /// Ends what [`Engine::await_position`] began, if the ticket was not woken.
    pub fn forget_position(&mut self, ticket: Ticket) {
        for state in self.base.loads.sources.map.values_mut() {
            state.waiting.retain(|&(_, waiting)| waiting != ticket);
        }
    }

    /// The sources that tables have, as they are seen from here.
    #[must_use]
    pub fn sources(&self) -> Vec<SourceReport> {
        let mut reports: BTreeMap<&str, SourceReport> = BTreeMap::new();
        for table in self.base.loads.own_tables() {
            let Some(data) = self.base.loads.own(table) else { continue };
            let source = data.source();
            let report = reports.entry(source).or_insert_with(|| SourceReport {
                name: String::from(source),
                down: self.base.loads.sources.down(source).map(String::from),
                ..SourceReport::default()
            });
            let prefix = self.store.table(table).prefix();
            report.tables.push(prefix.strip_suffix(b"|").unwrap_or(prefix).to_vec());
            report.position = report.position.max(data.seen);
            report.loaded += data.ranges.len() as u64;
            report.loading += data.loading() as u64;
            report.keys += self.store.table(table).sizes().keys as u64;
        }
        for (name, state) in &self.base.loads.sources.map {
            if let Some(report) = reports.get_mut(name.as_str()) {
                report.position = report.position.max(state.seen);
            }
        }
        reports.into_values().collect()
    }
}

impl BaseData {
    /// Applies that a source has come to `position`.
    pub(super) fn reached(&mut self, source: &str, position: Position) {
        let woken = self.loads.sources.reach(source, position);
        self.loads.waits.effects.extend(woken.into_iter().map(Effect::Wake));
    }
}
