//! Change counts of single keys, for optimistic transactions.
//!
//! Every write of a base key counts. A derived key is not written by anybody: it counts as
//! changed if its value differs from the one seen last when it is looked at.
//!
//! A reader at the end of a stream waits for the next change of its key: it is woken once, by the same
//! note that counts the change.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use hashbrown::HashMap;
use headwater_base::hash::KeyHashBuilder;

use crate::changed::ChangedKeys;
use crate::engine::Engine;
use crate::handles::Handle;
use crate::report::{Stop, Ticket};

#[derive(Debug, Default)]
struct Watch {
    users: usize,
    changes: u64,
    /// What the key was when last looked at: a derived key changes without being written.
    last: Option<Vec<u8>>,
    /// Woken by the next change.
    waiting: Vec<Ticket>,
}

impl Watch {
    fn is_used(&self) -> bool {
        self.users > 0 || !self.waiting.is_empty()
    }
}

/// The keys that transactions watch.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    keys: HashMap<Box<[u8]>, Watch, KeyHashBuilder>,
    woken: Vec<Ticket>,
    /// Every key that is written, where somebody asks for them.
    changed: Option<ChangedKeys>,
}

impl Watches {
    /// Counts a write of `key`.
    #[inline]
    pub(crate) fn note(&mut self, key: &[u8]) {
        if let Some(changed) = &mut self.changed {
            changed.note(key);
        }
        self.note_watched(key);
    }

    /// As [`Watches::note`], where whoever keeps copies of values outside was told of the write before.
    #[inline]
    pub(crate) fn note_watched(&mut self, key: &[u8]) {
        if !self.keys.is_empty()
            && let Some(watch) = self.keys.get_mut(key)
        {
            watch.changes += 1;
            if !watch.waiting.is_empty() {
                self.woken.append(&mut watch.waiting);
                if watch.users == 0 {
                    self.keys.remove(key);
                }
            }
        }
    }

    /// Counts a write of every key that was there.
    pub(crate) fn note_all(&mut self) {
        if let Some(changed) = &mut self.changed {
            changed.note_all();
        }
        self.keys.retain(|_, watch| {
            watch.changes += u64::from(watch.last.is_some());
            self.woken.append(&mut watch.waiting);
            watch.is_used()
        });
    }

    /// Counts a write of each watched key of these, there or not.
    pub(crate) fn note_where(&mut self, is_one: impl Fn(&[u8]) -> bool) {
        let keys: Vec<Box<[u8]>> = self.keys.keys().filter(|key| is_one(key)).cloned().collect();
        keys.iter().for_each(|key| self.note(key));
    }

    /// Tells whoever keeps copies of values outside that a key is written; no more need be told where all keys count so.
    pub(crate) fn note_copied(&mut self, key: &[u8]) -> ControlFlow<()> {
        let Some(changed) = &mut self.changed else { return ControlFlow::Break(()) };
        changed.note(key);
        if changed.all() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Lists written keys, or no more.
    pub(crate) fn list_changes(&mut self, on: bool) {
        if on != self.changed.is_some() {
            self.changed = on.then(ChangedKeys::default);
        }
    }

    /// The keys listed.
    #[inline]
    pub(crate) fn changed(&self) -> Option<&ChangedKeys> {
        self.changed.as_ref()
    }

    /// The keys listed, to be taken.
    pub(crate) fn changed_mut(&mut self) -> Option<&mut ChangedKeys> {
        self.changed.as_mut()
    }

    /// Has `ticket` woken when `key` changes.
    pub(crate) fn await_note(&mut self, key: &[u8], ticket: Ticket) {
        self.keys.entry(key.into()).or_default().waiting.push(ticket);
    }

    /// Whether a ticket waits for the next note of `key`.
    pub(crate) fn awaits_note(&self, key: &[u8], ticket: Ticket) -> bool {
        self.keys.get(key).is_some_and(|watch| watch.waiting.contains(&ticket))
    }

    /// Ends what [`Watches::await_note`] began, if the ticket was not woken.
    pub(crate) fn forget_note(&mut self, key: &[u8], ticket: Ticket) {
        if let Some(watch) = self.keys.get_mut(key) {
            watch.waiting.retain(|&waiting| waiting != ticket);
            if !watch.is_used() {
                self.keys.remove(key);
            }
        }
    }

    /// Takes the tickets whose keys have changed.
    pub(crate) fn take_woken(&mut self) -> Vec<Ticket> {
        core::mem::take(&mut self.woken)
    }
}

impl Engine {
    /// The value of `key`; of a stream nothing, since every append is noted.
    fn look(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        let Some(word) = self.find(key)? else { return Ok(None) };
        let (spilled, table) = (Handle::spilled(word), self.store.table_of(key));
        if let (Some(number), Some(table)) = (spilled, table) {
            // Where it is makes no difference.
            let there = self.fetch_spilled(table, key, number);
            return Ok(there.then(|| self.base.spilling.fetched().to_vec()));
        }
        Ok(Some(self.store.pool.view(word).to_vec()))
    }

    /// Starts counting the changes of `key` for an optimistic transaction. Each call is
    /// undone by one [`Engine::unwatch`].
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        let last = self.look(key)?;
        let watch = self
            .notifications
            .watches
            .keys
            .entry(key.into())
            .or_insert_with(|| Watch { last: last.clone(), ..Watch::default() });
        watch.users += 1;
        if watch.last != last {
            watch.changes += 1;
            watch.last = last;
        }
        Ok(watch.changes)
    }

    /// The change count of a watched `key`: any change since [`Engine::watch`] makes it differ.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        let last = self.look(key)?;
        let Some(watch) = self.notifications.watches.keys.get_mut(key) else { return Ok(0) };
        if watch.last != last {
            watch.changes += 1;
            watch.last = last;
        }
        Ok(watch.changes)
    }

    /// Ends what one [`Engine::watch`] began.
    pub fn unwatch(&mut self, key: &[u8]) {
        if let Some(watch) = self.notifications.watches.keys.get_mut(key) {
            watch.users -= 1;
            if !watch.is_used() {
                self.notifications.watches.keys.remove(key);
            }
        }
    }
}
