//! A place to spill to that is in memory, and can lose what it holds.

use headwater_base::spill::Spill;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Debug, Default)]
struct Kept {
    entries: BTreeMap<u64, Vec<u8>>,
    puts: u64,
}

/// What was put, by its number. Clones are the same place.
#[derive(Clone, Debug, Default)]
pub struct Disk(Rc<RefCell<Kept>>);

impl Disk {
    /// Loses the bytes of one entry in `every`, from the one that `draw` names on; how many.
    pub fn lose(&self, draw: u64, every: u64) -> usize {
        let mut kept = self.0.borrow_mut();
        let before = kept.entries.len();
        let start = draw % every;
        kept.entries.retain(|id, _| id % every != start);
        before - kept.entries.len()
    }

    /// How often anything was put.
    #[must_use]
    pub fn puts(&self) -> u64 {
        self.0.borrow().puts
    }
}

impl Spill for Disk {
    fn put(&mut self, id: u64, parts: &mut dyn Iterator<Item = &[u8]>) -> bool {
        let mut kept = self.0.borrow_mut();
        kept.puts += 1;
        kept.entries.insert(id, parts.flatten().copied().collect());
        true
    }

    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool {
        let kept = self.0.borrow();
        let found = kept.entries.get(&id);
        out.extend(found.into_iter().flatten());
        found.is_some()
    }

    fn remove(&mut self, id: u64) {
        self.0.borrow_mut().entries.remove(&id);
    }

    fn clear(&mut self) {
        self.0.borrow_mut().entries.clear();
    }

    fn first(&self) -> u64 {
        0
    }

    fn bytes(&self) -> u64 {
        self.0.borrow().entries.values().map(|bytes| bytes.len() as u64).sum()
    }
}
