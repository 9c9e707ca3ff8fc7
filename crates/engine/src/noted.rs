//! Writes of base keys that somebody outside wants to hear of, and tables that take no writes for now.
//!
//! # Cost
//! Where nobody listens, a write looks at one flag.

use crate::engine::Engine;
use crate::report::EngineError;
use crate::views::Views;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_pattern::Pattern;
use headwater_pool::ValueRef;
use headwater_store::TableId;

/// What was done to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotedChange {
    /// It was given a value.
    Set,
    /// It was removed.
    Delete,
    /// Its time was over.
    Expire,
}

/// A write of a base key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Noted {
    /// What was done.
    pub change: NotedChange,
    /// The key.
    pub key: Vec<u8>,
    /// The value that it was given; empty if none.
    pub value: Vec<u8>,
}

/// The writes since they were taken last.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Some table's writes are noted.
    on: bool,
    list: Vec<Noted>,
}

/// Keys that take no writes for now.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pattern: Pattern,
    /// Why not.
    text: String,
    may_wait: bool,
}

impl Engine {
    /// Notes the writes of base keys of the table that `prefix` (`name|`) names, or of keys without
    /// a table (empty), or does so no more.
    pub fn note_table(&mut self, prefix: &[u8], on: bool) {
        let table = self.store.table_for(prefix);
        self.declare_table(table);
        self.views.catalog.role_for(table).noted = on;
        self.notifications.notes.on = self.views.catalog.any_noted();
    }

    /// Whether the table of `key` is kept by a source that clients do not write.
    #[must_use]
    pub fn is_sourced(&self, key: &[u8]) -> bool {
        let table = self.store.table_of(key);
        table.is_some_and(|table| self.base.loads.own(table).is_some_and(|data| !data.is_kept()))
    }

    /// Whether writes were noted.
    #[inline]
    #[must_use]
    pub fn has_noted(&self) -> bool {
        !self.notifications.notes.list.is_empty()
    }

    /// Takes the writes that were noted, in their order.
    pub fn take_noted(&mut self) -> Vec<Noted> {
        core::mem::take(&mut self.notifications.notes.list)
    }

    #[inline]
    pub(crate) fn notes(&self, table: TableId) -> bool {
        self.notifications.notes.on && self.views.catalog.role(table).is_some_and(|role| role.noted)
    }

    /// Notes that a key has a value now.
    #[inline]
    pub(crate) fn note_set(&mut self, table: TableId, key: &[u8], value: &[u8]) {
        if self.notes(table) {
            let (key, value) = (key.to_vec(), value.to_vec());
            self.notifications.notes.list.push(Noted { change: NotedChange::Set, key, value });
        }
    }

    /// As [`Engine::note_set`], of a value in the pool.
    pub(crate) fn note_value(&mut self, table: TableId, key: &[u8], value: ValueRef) {
        if self.notes(table) {
            let value = self.store.pool.view(self.store.pool.content(value)).to_vec();
            self.note_set(table, key, &value);
        }
    }

    /// Notes that a key is gone.
    #[inline]
    pub(crate) fn note_gone(&mut self, table: TableId, key: &[u8], change: NotedChange) {
        if self.notes(table) {
            self.notifications.notes.list.push(Noted {
                change,
                key: key.to_vec(),
                value: Vec::new(),
            });
        }
    }

    /// Refuses writes of keys that `pattern` matches, with this text, until [`Engine::open_keys`].
    pub fn close_keys(&mut self, pattern: &Pattern, text: String, may_wait: bool) {
        let table = self.store.table_for(&pattern.range_of_all().first);
        let busy = &mut self.views.catalog.role_for(table).busy;
        busy.retain(|busy| busy.pattern != *pattern);
        busy.push(Busy { pattern: pattern.clone(), text, may_wait });
    }

    /// Ends what [`Engine::close_keys`] began.
    pub fn open_keys(&mut self, pattern: &Pattern) {
        let table = self.store.table_for(&pattern.range_of_all().first);
        self.views.catalog.role_for(table).busy.retain(|busy| busy.pattern != *pattern);
    }
}

impl Views {
    /// Refuses keys that take no writes for now.
    #[inline]
    pub(crate) fn check_busy(&self, table: TableId, key: &[u8]) -> Result<(), EngineError> {
        let Some(role) = self.catalog.role(table) else { return Ok(()) };
        match role.busy.iter().find(|busy| busy.pattern.matches(key)) {
            None => Ok(()),
            Some(busy) => {
                Err(EngineError::Busy { text: busy.text.clone(), may_wait: busy.may_wait })
            }
        }
    }
}
