//! A table's values, offered little by little to who may move them.

use super::{Note, Table};
use headwater_pool::ValueRef;

/// How far [`Table::offer`] has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    tree: usize,
    leaf: usize,
}

impl<N: Note> Table<N> {
    /// Offers about `most` values from a place on to `each`, which may give another reference of the same
    /// bytes for one; whether there are more. The place is then where to go on. What is written
    /// in between may be missed.
    pub(crate) fn offer(
        &mut self,
        place: &mut Place,
        most: usize,
        each: &mut impl FnMut(ValueRef) -> Option<ValueRef>,
    ) -> bool {
        let mut each = |word| each(ValueRef::from_word(word)).map(ValueRef::to_word);
        let mut offered = 0;
        while offered < most {
            // The table's own tree comes first, then the groups'.
            let tree = match place.tree.checked_sub(1) {
                None => Some(&mut self.short),
                Some(group) if group >= self.groups.end() => return false,
                Some(group) => self.groups.get_mut(group as u32).map(|group| &mut group.tree),
            };
            match tree.and_then(|tree| tree.offer_leaf(place.leaf, &mut each)) {
                Some(count) => {
                    offered += count + 1;
                    place.leaf += 1;
                }
                None => *place = Place { tree: place.tree + 1, leaf: 0 },
            }
        }
        true
    }
}
