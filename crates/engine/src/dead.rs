//! Dead keys: gone for everybody, and stored until a slice comes to them.
//!
//! Where very many keys go at one moment, because their time has come ([`crate::expiry`]) or a client removes a range
//! ([`crate::removal`]), they are removed in slices, a slice in each turn of the loop. Nobody sees one that is still stored:
//! an operation that names a key removes it first if it is dead ([`Engine::remove_dead`]), and one that looks at keys
//! that it cannot name, or at what a join gives, waits until none of these is dead ([`Engine::remove_dead_or_wait`]). What
//! is not divided, and so may not wait, removes all of them itself.

use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::report::Stop;

/// What an operation is about to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Looks<'k> {
    /// What joins give for keys that it names.
    Derived,
    /// Everything in `[first, last)` (an empty `last`: to the end).
    Range(&'k [u8], &'k [u8]),
}

impl Engine {
    /// Whether `key` is dead and still stored.
    #[inline]
    pub(crate) fn is_dead(&self, key: &[u8]) -> bool {
        self.base.has_dead() && (self.is_overdue(key) || self.is_being_removed(key))
    }

    /// Removes `key` if it is dead; whether it was. To be called before an operation looks at a key.
    #[inline]
    pub(crate) fn remove_dead(&mut self, key: &[u8]) -> bool {
        self.base.has_dead() && self.remove_if_dead(key)
    }

    fn remove_if_dead(&mut self, key: &[u8]) -> bool {
        if self.is_being_removed(key) {
            self.take_removed(key);
            return true;
        }
        let is_overdue = self.is_overdue(key);
        if is_overdue {
            self.expire(key);
        }
        is_overdue
    }

    /// Removes all dead keys; nothing, where the operations that they died of could remove all of them at once.
    pub fn remove_all_dead(&mut self) {
        self.remove_overdue();
        self.complete_removal();
    }

    /// Removes all keys whose time has come.
    pub fn remove_overdue(&mut self) {
        while self.base.expiries.overdue {
            self.expire_slice();
        }
    }

    /// Has all dead keys removed, for what counts keys or walks over them.
    ///
    /// # Errors
    /// [`Stop::Wait`] where the operation is sliced, and others go first.
    pub fn settle_dead(&mut self) -> Result<(), Stop> {
        self.remove_dead_or_wait(Looks::Range(b"", b"")).map_err(|Missing| self.stop())
    }

    /// Has all dead keys removed that concern what an operation is about to look at.
    ///
    /// # Errors
    /// The operation is sliced, and others go first.
    #[inline]
    pub(crate) fn remove_dead_or_wait(&mut self, looks: Looks<'_>) -> Result<(), Missing> {
        if self.base.has_dead() { self.remove_concerned_or_wait(looks) } else { Ok(()) }
    }

    #[cold]
    fn remove_concerned_or_wait(&mut self, looks: Looks<'_>) -> Result<(), Missing> {
        if !self.base.expiries.overdue && !self.base.removals.concerns(looks) {
            return Ok(());
        }
        if !self.reads.slices.is_active() || self.base.expires_lazily() {
            self.remove_all_dead();
            return Ok(());
        }
        self.reads.slices.end_for_now();
        Err(Missing)
    }
}

impl BaseData {
    /// Whether any key is dead.
    #[inline]
    pub(crate) fn has_dead(&self) -> bool {
        self.expiries.overdue || self.removals.is_under_way()
    }
}
