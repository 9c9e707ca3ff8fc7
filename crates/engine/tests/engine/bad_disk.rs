//! A place to spill to, for tests.

use headwater_base::spill::Spill;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A disk that is too small, loses things and sometimes takes none.
#[derive(Clone, Debug, Default)]
pub(crate) struct BadDisk(pub(crate) Rc<RefCell<Kept>>);

#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) entries: BTreeMap<u64, Vec<u8>>,
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// Every so many puts fail, gets find nothing; 0: none.
    pub(crate) refuses: u64,
    pub(crate) loses: u64,
    pub(crate) calls: u64,
}

impl Spill for BadDisk {
    fn put(&mut self, id: u64, parts: &mut dyn Iterator<Item = &[u8]>) -> bool {
        let mut kept = self.0.borrow_mut();
        assert!(id >= kept.next, "numbers ascend");
        kept.next = id + 1;
        kept.calls += 1;
        if kept.refuses > 0 && kept.calls.is_multiple_of(kept.refuses) {
            return false;
        }
        kept.entries.insert(id, parts.flatten().copied().collect());
        while kept.entries.len() > 12 {
            kept.entries.pop_first();
            kept.first = *kept.entries.keys().next().unwrap();
        }
        true
    }

    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool {
        let mut kept = self.0.borrow_mut();
        kept.calls += 1;
        if kept.loses > 0 && kept.calls.is_multiple_of(kept.loses) {
            return false;
        }
        let found = kept.entries.get(&id);
        out.extend(found.into_iter().flatten());
        found.is_some()
    }

    fn remove(&mut self, id: u64) {
        let mut kept = self.0.borrow_mut();
        let was = kept.entries.remove(&id);
        assert!(was.is_some() || id < kept.first, "removed once");
    }

    fn clear(&mut self) {
        let kept = self.0.borrow();
        assert!(kept.entries.is_empty(), "all that is held is given back");
    }

    fn first(&self) -> u64 {
        self.0.borrow().first
    }

    fn bytes(&self) -> u64 {
        self.0.borrow().entries.values().map(|bytes| bytes.len() as u64).sum()
    }
}
