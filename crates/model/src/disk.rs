//! A place to spill to that is in memory, can be of bounded size, and can lose what it holds.

use headwater_base::spill::Spill;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Debug, Default)]
struct Kept {
    entries: BTreeMap<u64, Vec<u8>>,
    puts: u64,
    bytes: u64,
    /// What it may hold; `None`: anything.
    bytes_max: Option<u64>,
    /// All numbers below have gone for room.
    first: u64,
}

impl Kept {
    fn take(&mut self, id: u64) {
        if let Some(bytes) = self.entries.remove(&id) {
            self.bytes -= bytes.len() as u64;
        }
    }
}

/// What was put, by its number. Clones are the same place.
#[derive(Clone, Debug, Default)]
pub struct Disk(Rc<RefCell<Kept>>);

impl Disk {
    /// A place for so many bytes: for what comes beyond that the oldest goes.
    #[must_use]
    pub fn bounded(bytes: u64) -> Self {
        Self(Rc::new(RefCell::new(Kept { bytes_max: Some(bytes), ..Kept::default() })))
    }

    /// Loses the bytes of one entry in `every`, from the one that `draw` names on; how many.
    pub fn lose(&self, draw: u64, every: u64) -> usize {
        let mut kept = self.0.borrow_mut();
        let start = draw % every;
        let lost: Vec<u64> =
            kept.entries.keys().copied().filter(|id| id % every == start).collect();
        lost.iter().for_each(|id| kept.take(*id));
        lost.len()
    }

    /// How often anything was put.
    #[must_use]
    pub fn puts(&self) -> u64 {
        self.0.borrow().puts
    }
}

impl Spill for Disk {
    fn put(&mut self, id: u64, parts: &mut dyn Iterator<Item = &[u8]>) -> bool {
        let kept = &mut *self.0.borrow_mut();
        let bytes: Vec<u8> = parts.flatten().copied().collect();
        let most = kept.bytes_max.unwrap_or(u64::MAX);
        if bytes.len() as u64 > most {
            return false;
        }
        kept.puts += 1;
        kept.bytes += bytes.len() as u64;
        kept.entries.insert(id, bytes);
        while kept.bytes > most
            && let Some((&oldest, _)) = kept.entries.first_key_value()
        {
            kept.take(oldest);
            kept.first = oldest + 1;
        }
        true
    }

    fn get(&mut self, id: u64, out: &mut Vec<u8>) -> bool {
        let kept = self.0.borrow();
        let found = kept.entries.get(&id);
        out.extend(found.into_iter().flatten());
        found.is_some()
    }

    fn remove(&mut self, id: u64) {
        self.0.borrow_mut().take(id);
    }

    fn clear(&mut self) {
        let mut kept = self.0.borrow_mut();
        kept.entries.clear();
        kept.bytes = 0;
    }

    fn first(&self) -> u64 {
        self.0.borrow().first
    }

    fn bytes(&self) -> u64 {
        self.0.borrow().bytes
    }
}
