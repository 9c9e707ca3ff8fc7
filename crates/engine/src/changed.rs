//! The keys that were written, for whoever keeps copies of values outside.
//!
//! # Invariants
//! - K1. The list holds every base key that was written since it was taken last, or says that any may have been.
//! - K2. It takes at most [`BYTES_MAX`] and a key more.
//!
//! # Cost
//! Where nobody asks, a write looks at one flag; else the key's bytes are copied.

use crate::engine::Engine;
use alloc::vec::Vec;
use headwater_pattern::Pattern;

/// More than this is not listed one by one: then all keys may have changed.
const BYTES_MAX: usize = 1 << 20;

/// Base keys that were written, each as often as it was.
#[derive(Debug, Default)]
pub struct ChangedKeys {
    all: bool,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ChangedKeys {
    /// Whether any key may have changed, besides those that are listed.
    #[must_use]
    pub fn all(&self) -> bool {
        self.all
    }

    /// The keys.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.all = false;
        self.bytes.clear();
        self.ends.clear();
    }

    fn is_empty(&self) -> bool {
        !self.all && self.ends.is_empty()
    }

    pub(crate) fn note(&mut self, key: &[u8]) {
        if self.bytes.len() >= BYTES_MAX {
            self.note_all();
        } else if !self.all {
            self.bytes.extend_from_slice(key);
            self.ends.push(self.bytes.len());
        }
    }

    pub(crate) fn note_all(&mut self) {
        *self = Self { all: true, ..Self::default() };
    }
}

impl Engine {
    /// Whether a key is what a join or a source gives, which nobody writes here.
    #[must_use]
    pub fn is_given(&self, key: &[u8]) -> bool {
        let Some(table) = self.store.table_of(key) else { return false };
        self.base.loads.own(table).is_some_and(|data| !data.is_kept())
            || self.views.catalog.writer_of(table, key).is_some()
    }

    /// The name of a join that gives every key which matches a pattern, so that nobody writes one.
    #[must_use]
    pub fn giver_of(&self, pattern: &Pattern) -> Option<&str> {
        let table = self.store.table_of(&pattern.range_of_all().first)?;
        let writers = self.views.catalog.writers_of(table, pattern);
        let mut joins = writers.into_iter().map(|id| self.views.catalog.join(id));
        joins.find(|join| join.plan.join.output.covers(pattern)).map(|join| &*join.name)
    }

    /// Lists the base keys that are written from now on, or none any more.
    pub fn list_changes(&mut self, on: bool) {
        self.notifications.watches.list_changes(on);
    }

    /// Whether [`Engine::take_changed`] has something.
    #[inline]
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.notifications.watches.changed().is_some_and(|changed| !changed.is_empty())
    }

    /// Takes the base keys that were written since the last time; what `into` held is forgotten.
    pub fn take_changed(&mut self, into: &mut ChangedKeys) {
        into.clear();
        if let Some(changed) = self.notifications.watches.changed_mut() {
            core::mem::swap(changed, into);
        }
    }
}
