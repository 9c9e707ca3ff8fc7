//! The sources, which all shards of the process share: one connection to a database, and one follower of its log, however many
//! shards there are. Shards in processes of their own have sources of their own.
//!
//! # Invariants
//! - S1. A source is dropped only while no shard has a table of it, and a table gets none that is dropped: both are looked at
//!   under the lock.
//! - S2. Nothing waits while it holds the lock: sources are asked without being waited for, and end outside of it.
//!
//! # Cost
//! A lock for each question to a source. News do not take it.

use super::inbox::{Inbox, Outlets, Slots, Tag, of_all, place};
use super::kinds;
use headwater_base::source::{Change, FetchId, Portion, Position, Source};
use headwater_base::{KeyRange, Shard};
use headwater_postgres::terms::Terms;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All sources of the process.
pub(crate) struct Common {
    slots: Slots,
    /// The shards take these when they begin.
    inboxes: Mutex<Vec<Option<Inbox>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sources: BTreeMap<String, Entry>,
    /// How many there ever were.
    count: u64,
    /// What the process may take, if it is bounded.
    memory_bound: Option<u64>,
}

/// A source, with what it was made from.
struct Entry {
    kind: String,
    /// Where it is, without its password.
    shown: String,
    tag: Arc<Tag>,
    source: Box<dyn Source>,
    /// Which shards have which of its tables, by their prefix.
    tables: BTreeMap<Vec<u8>, BTreeSet<Shard>>,
}

/// What a source was made from.
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) url: String,
}

impl core::fmt::Debug for Common {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_struct("Common").finish_non_exhaustive()
    }
}

fn none(name: &str) -> String {
    format!("no source is named '{name}'")
}

impl Common {
    /// No sources, for so many shards of this process, of which this is the first one.
    pub(crate) fn new(first: Shard, shards: u16) -> Arc<Self> {
        let memory = Arc::default();
        let inboxes: Vec<_> = (0..shards).map(|_| Inbox::new(&memory)).collect();
        let slots = Slots { first, all: inboxes.iter().map(Inbox::slot).collect() };
        let inboxes = Mutex::new(inboxes.into_iter().map(Some).collect());
        Arc::new(Self { slots, inboxes, state: Mutex::default() })
    }

    /// The shard that does what is done once for all shards of the process.
    pub(super) fn first(&self) -> Shard {
        self.slots.first
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inbox of a shard, which takes it once.
    pub(super) fn take_inbox(&self, shard: Shard) -> Inbox {
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let inbox = place(self.slots.first, shard)
            .and_then(|at| inboxes.get_mut(at))
            .and_then(Option::take);
        inbox.expect("each shard begins once")
    }

    /// Adds a source, which begins to connect.
    ///
    /// # Errors
    /// The name is taken, or kind or URL cannot be accepted.
    pub(super) fn add(
        &self,
        name: &str,
        kind: &str,
        url: &str,
        terms: &Terms,
    ) -> Result<(), String> {
        let mut state = self.lock();
        if state.sources.contains_key(name) {
            return Err(format!("a source is named '{name}' already: SOURCE.DROP it first"));
        }
        let tag = self.tag(&mut state, name);
        let sink = Arc::new(Outlets { tag: tag.clone(), slots: self.slots.clone() });
        let (source, shown) = kinds::open(kind, name, url, terms, sink)?;
        state.insert(kind, shown, tag, source);
        Ok(())
    }

    /// Adds a source that is made already; what it tells its news to.
    #[cfg(test)]
    pub(crate) fn insert(
        &self,
        name: &str,
        source: Box<dyn Source>,
    ) -> Arc<dyn headwater_base::source::Sink> {
        let mut state = self.lock();
        let tag = self.tag(&mut state, name);
        state.insert("test", String::from("test://"), tag.clone(), source);
        Arc::new(Outlets { tag, slots: self.slots.clone() })
    }

    fn tag(&self, state: &mut State, name: &str) -> Arc<Tag> {
        state.count += 1;
        Tag::new(name, state.count, &self.slots)
    }

    /// Tells the sources what the process may take.
    pub(super) fn set_memory_bound(&self, bytes: Option<u64>) {
        let mut state = self.lock();
        state.memory_bound = bytes;
        state.sources.values_mut().for_each(|entry| entry.source.set_memory_bound(bytes));
    }

    /// Drops a source.
    ///
    /// # Errors
    /// There is none, or tables have it (S1).
    pub(super) fn drop_source(&self, name: &str) -> Result<(), String> {
        let mut state = self.lock();
        let entry = state.sources.get(name).ok_or_else(|| none(name))?;
        if !entry.tables.is_empty() {
            return Err(format!("source '{name}' keeps tables: {}", entry.shown_tables(", ")));
        }
        let entry = state.sources.remove(name);
        drop(state);
        // S2: its end may take a moment.
        drop(entry);
        Ok(())
    }

    /// Notes that a shard has a table of a source; whether it had none before.
    ///
    /// # Errors
    /// There is no such source.
    pub(super) fn enter(&self, name: &str, prefix: &[u8], shard: Shard) -> Result<bool, String> {
        let mut state = self.lock();
        let entry = state.sources.get_mut(name).ok_or_else(|| none(name))?;
        Ok(entry.tables.entry(prefix.to_vec()).or_default().insert(shard))
    }

    /// Notes that a shard does not have a table of a source any more. With the last one the source is told.
    pub(super) fn leave(&self, name: &str, prefix: &[u8], shard: Shard) {
        let mut state = self.lock();
        let Some(entry) = state.sources.get_mut(name) else { return };
        let Some(shards) = entry.tables.get_mut(prefix) else { return };
        shards.remove(&shard);
        if shards.is_empty() {
            entry.tables.remove(prefix);
            entry.source.withdraw(prefix);
        }
    }

    /// What the sources were made from, in order of their names.
    pub(super) fn list(&self) -> Vec<Made> {
        let state = self.lock();
        let made = |(name, entry): (&String, &Entry)| {
            let (kind, url) = (entry.kind.clone(), entry.shown.clone());
            Made { name: name.clone(), kind, url }
        };
        state.sources.iter().map(made).collect()
    }

    /// Facts of a source for those who operate it, its tables and the position that all shards have applied first.
    pub(super) fn facts(&self, name: &str) -> Vec<(&'static str, String)> {
        let state = self.lock();
        let Some(entry) = state.sources.get(name) else { return Vec::new() };
        let position = entry.source.show_position(entry.tag.reached());
        let mut facts = vec![("tables", entry.shown_tables(",")), ("position", position)];
        facts.extend(entry.source.facts());
        facts
    }

    /// The number of a source that is there.
    pub(super) fn number_of(&self, name: &str) -> Option<u64> {
        self.lock().sources.get(name).map(|entry| entry.tag.number)
    }

    fn with<T>(&self, name: &str, ask: impl FnOnce(&mut dyn Source) -> T) -> Result<T, String> {
        let mut state = self.lock();
        let entry = state.sources.get_mut(name).ok_or_else(|| none(name))?;
        Ok(ask(&mut *entry.source))
    }

    pub(super) fn declare(
        &self,
        name: &str,
        (shard, request): (Shard, u64),
        prefix: &[u8],
        mapping: &[(String, String)],
    ) -> Result<(), String> {
        let request = of_all(shard, request);
        self.with(name, |source| source.declare(request, prefix, mapping))
    }

    pub(super) fn examine(
        &self,
        name: &str,
        by: (Shard, u64),
        mapping: &[(String, String)],
    ) -> Result<(), String> {
        self.with(name, |source| source.examine(of_all(by.0, by.1), mapping))
    }

    pub(super) fn load(
        &self,
        name: &str,
        (shard, fetch): (Shard, FetchId),
        range: &KeyRange,
        portion: Portion,
    ) -> Result<(), String> {
        let fetch = FetchId(of_all(shard, fetch.0));
        self.with(name, |source| source.load(fetch, range, portion))
    }

    pub(super) fn unfollow(&self, name: &str, range: &KeyRange) {
        // Nobody follows anything at a source that is not there.
        let _ = self.with(name, |source| source.unfollow(range));
    }

    pub(super) fn position(&self, name: &str, by: (Shard, u64)) -> Result<(), String> {
        self.with(name, |source| source.position(of_all(by.0, by.1)))
    }

    pub(super) fn write(
        &self,
        name: &str,
        by: (Shard, u64),
        changes: &[Change],
    ) -> Result<(), String> {
        self.with(name, |source| source.write(of_all(by.0, by.1), changes))
    }

    /// The source and the position that a text names: `source:position`, or the position alone where there
    /// is one source.
    ///
    /// # Errors
    /// There is no such source, or the text is no position of it.
    pub(super) fn resolve(&self, text: &[u8]) -> Result<(String, Position), String> {
        let shown = text.escape_ascii();
        let (name, position) = match text.iter().position(|&byte| byte == b':') {
            Some(at) => (Some(&text[..at]), &text[at + 1..]),
            None => (None, text),
        };
        let state = self.lock();
        let sources = &state.sources;
        let found = match name {
            Some(name) => sources.iter().find(|(other, _)| other.as_bytes() == name),
            None if sources.len() > 1 => {
                return Err(format!(
                    "'{shown}' may be a position of several sources: write source:{shown}"
                ));
            }
            None => sources.iter().next(),
        };
        let Some((name, entry)) = found else {
            return Err(format!("'{shown}' is no position: there is no such source"));
        };
        Ok((name.clone(), entry.source.parse_position(position)?))
    }

    /// A position as text, which [`Common::resolve`] reads.
    pub(super) fn show(&self, name: &str, position: Position) -> String {
        let shown = self.with(name, |source| source.show_position(position));
        format!("{name}:{}", shown.unwrap_or_else(|_| position.0.to_string()))
    }
}

impl State {
    fn insert(&mut self, kind: &str, shown: String, tag: Arc<Tag>, mut source: Box<dyn Source>) {
        source.set_memory_bound(self.memory_bound);
        let (name, kind) = (tag.name.to_string(), kind.to_owned());
        let entry = Entry { kind, shown, tag, source, tables: BTreeMap::new() };
        self.sources.insert(name, entry);
    }
}

impl Entry {
    fn shown_tables(&self, between: &str) -> String {
        let name = |prefix: &Vec<u8>| {
            prefix.strip_suffix(b"|").unwrap_or(prefix).escape_ascii().to_string()
        };
        self.tables.keys().map(name).collect::<Vec<_>>().join(between)
    }
}
