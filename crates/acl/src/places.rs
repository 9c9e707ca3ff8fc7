//! Where in a list an item is, so that a list of many thousands is put together in as many steps.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use core::borrow::Borrow;

/// The places of items in a list to which items are only added, or of which all go. It says nothing that the list does not.
#[derive(Clone, Debug)]
pub(crate) struct Places<K>(BTreeMap<K, usize>);

impl<K> Default for Places<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K> PartialEq for Places<K> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<K> Eq for Places<K> {}

impl<K: Ord> Places<K> {
    /// Where an item is in a list of `len` items; where it is not, its place is behind them from now on.
    pub(crate) fn find_or_add<Q>(&mut self, item: &Q, len: usize) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        if len == 0 {
            self.0.clear();
        }
        let found = self.0.get(item).copied();
        if found.is_none() {
            self.0.insert(item.to_owned(), len);
        }
        found
    }

    /// Where an item is, or was before all went.
    pub(crate) fn find<Q: Ord + ?Sized>(&self, item: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        self.0.get(item).copied()
    }

    /// The places of a list from which items were taken.
    pub(crate) fn of(list: impl Iterator<Item = K>) -> Self {
        Self(list.enumerate().map(|(at, item)| (item, at)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use alloc::rc::Rc;
    use alloc::vec::Vec;
    use core::cell::Cell;
    use core::cmp::Ordering;

    #[derive(Clone, Debug)]
    struct Counted(u32, Rc<Cell<u64>>);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted {}

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.update(|compared| compared + 1);
            self.0.cmp(&other.0)
        }
    }

    #[test]
    fn a_long_list_without_duplicates_is_put_together_in_about_as_many_steps() {
        let compared = Rc::new(Cell::new(0));
        let (mut list, mut places) = (Vec::new(), Places::default());
        for number in 0..20_000 {
            let item = Counted(number % 15_000, compared.clone());
            match places.find_or_add(&item, list.len()) {
                Some(at) => assert_eq!(list[at], item.0),
                None => list.push(item.0),
            }
        }
        assert_eq!(list, (0..15_000).collect::<Vec<_>>());
        // Twice 20 000 times the depth of a tree of so many.
        assert!(compared.get() < 20_000 * 100, "{}", compared.get());
        list.clear();
        assert_eq!(places.find_or_add(&Counted(7, compared), list.len()), None);
    }
}
