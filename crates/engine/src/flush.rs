//! Removing all keys at once.
//!
//! What was there is put aside in one step, and everything begins empty. What computed ranges hold goes in slices before that, which
//! changes no answer; and the memory of what was put aside goes back in slices behind it. Until then it counts as taken, and is
//! the first to go where room is to be made. What outputs of tallies knew of very many values goes back in the same way.

use crate::catalog::Fold;
use crate::engine::Engine;
use crate::expiry::Expiries;
use crate::marks::Marks;
use crate::report::Stop;
use crate::tally::Tally;
use alloc::vec::Vec;
use headwater_base::KeyRange;

/// What was put aside beside the store's tables.
#[derive(Debug, Default)]
pub(crate) struct Discarded {
    expiries: Vec<Expiries>,
    marks: Vec<Marks>,
    tallies: Vec<Tally>,
}

impl Discarded {
    fn is_empty(&self) -> bool {
        self.expiries.is_empty() && self.marks.is_empty() && self.tallies.is_empty()
    }

    /// Forgets about `most` entries.
    fn dissolve(&mut self, most: usize) {
        if let Some(expiries) = self.expiries.last_mut() {
            if expiries.dissolve(most) < most {
                self.expiries.pop();
            }
        } else if let Some(tally) = self.tallies.last_mut() {
            if !tally.dissolve(most) {
                self.tallies.pop();
            }
        } else if let Some(marks) = self.marks.last_mut()
            && !marks.drop_part()
        {
            self.marks.pop();
        }
    }
}

/// What knows more values than this is given back in slices.
const KNOWN_MANY: usize = 1000;

impl Engine {
    /// Gives back what an output's fold knew.
    #[inline]
    pub(crate) fn forget_fold(&mut self, fold: Option<Fold>) {
        if let Some(Fold::Tally(tally)) = fold
            && tally.known().is_some_and(|known| known > KNOWN_MANY)
            && self.reads.slices.rows().is_some()
        {
            self.base.discarded.tallies.push(*tally);
        }
    }

    /// Does, in slices, most of the work of [`Engine::flush`] that must be done before it.
    ///
    /// # Errors
    /// [`Stop::Wait`] where the slice is over, or dead keys are to go first.
    pub fn flush_ahead(&mut self) -> Result<(), Stop> {
        self.settle_dead()?;
        if self.reads.slices.is_active() && self.base.placed.is_none() {
            for join in self.views.catalog.ids() {
                self.vacate_outputs(join, join)?;
            }
        }
        Ok(())
    }

    /// Removes all keys; joins and tables stay.
    pub fn flush(&mut self) {
        // Whoever waits for the end of a removal is answered how many keys that was.
        self.complete_removal();
        let mut watched = core::mem::take(&mut self.notifications.watches);
        watched.note_all();
        self.tell_reset(&KeyRange::all());
        self.views.fan_outs.clear(&mut self.store.pool);
        self.give_up_long_reads();
        self.reads.long_reads.collections.change_all();
        self.reset_joins();
        for join in self.views.catalog.ids() {
            self.views.catalog.join_mut(join).vacated = 0;
        }
        self.store.clear();
        self.drop_streams();
        self.base.drop_all_spilled();
        self.views.updaters.clear();
        let none = Expiries::new(self.settings.secret);
        let expiries = core::mem::replace(&mut self.base.expiries, none);
        if expiries.len() > 0 {
            self.base.discarded.expiries.push(expiries);
        }
        let marks = self.notifications.marks.clear();
        if !marks.is_empty() {
            self.base.discarded.marks.push(marks);
        }
        self.base.forget_all_loaded();
        self.clear_kept();
        self.notifications.watches = watched;
        if self.reads.slices.rows().is_none() {
            while self.has_discarded() {
                self.dissolve(usize::MAX);
            }
        }
    }

    /// Whether memory is left to be given back of what was there before everything was removed.
    #[inline]
    pub(crate) fn has_discarded(&self) -> bool {
        self.store.has_discarded() || !self.base.discarded.is_empty()
    }

    /// Gives memory back of about `most` of the keys that were there.
    pub(crate) fn dissolve(&mut self, most: usize) {
        if self.store.has_discarded() {
            self.store.dissolve(most);
        } else {
            self.base.discarded.dissolve(most);
        }
    }
}
