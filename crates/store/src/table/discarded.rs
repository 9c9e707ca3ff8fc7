//! What a table held that was cleared: its values and pages go back bit by bit.

use super::{Note, Table};
use crate::tree::Tree;
use core::mem::replace;
use headwater_pool::{Pool, ValueRef};

impl<N: Note> Table<N> {
    /// Empties the table, and gives what it held as one that nobody can find.
    pub(crate) fn detach(&mut self) -> Self {
        let mut empty = Self::new(&self.prefix, self.boundary, &self.secret);
        empty.marked = self.marked;
        replace(self, empty)
    }

    /// Releases about `most` keys, groups and pages of a table that was detached; how many there were, fewer where nothing
    /// is left.
    pub(crate) fn dissolve(&mut self, pool: &mut Pool, most: usize) -> usize {
        let mut each = |word| pool.release(ValueRef::from_word(word));
        let mut done = dissolve(&mut self.short, &mut each, most);
        while done < most {
            match self.groups.last_mut() {
                None => break,
                Some((number, group)) => {
                    let left = most - done;
                    let keys = dissolve(&mut group.tree, &mut each, left);
                    done += keys;
                    if keys < left {
                        self.groups.remove(number);
                    }
                }
            }
            done += 1;
        }
        if done < most {
            // Its words are the groups' numbers.
            done += dissolve(&mut self.order, &mut |_| (), most - done);
        }
        done
    }
}

/// Takes pages out of a tree until they had `most` entries, and calls `each` with the words of its leaves; how many entries there
/// were.
fn dissolve(tree: &mut Tree, each: &mut impl FnMut(u64), most: usize) -> usize {
    let mut done = 0;
    while done < most
        && let Some(entries) = tree.drop_page(each)
    {
        done += entries.max(1);
    }
    done
}
