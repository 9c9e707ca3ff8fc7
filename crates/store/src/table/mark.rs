//! A table's mark: a flag that means nothing to the store, and is looked at before each write.

use super::{Note, Table};

impl<N: Note> Table<N> {
    /// The flag that the store's owner has set.
    #[inline]
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.marked
    }

    /// Sets the flag.
    pub fn set_marked(&mut self, marked: bool) {
        self.marked = marked;
    }
}
