//! An embedded store that is a map in memory, and what a history asks of any such store.

use headwater_base::source::Attributes;
use headwater_base::{KeyRange, Millis};
use headwater_engine::{BaseStore, FetchId, Loaded, Pair, Position};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// An answer to a load.
pub type Answer = (FetchId, Result<Loaded, String>);

/// Something that was declared: of what kind, its name, and what it says.
pub type Definition = (&'static str, Vec<u8>, Vec<u8>);

/// An embedded store.
pub trait Stored {
    /// The engine's end of it.
    fn keep(&self) -> Box<dyn BaseStore>;
    /// The prefixes of the tables that it holds keys of.
    fn tables(&self) -> Vec<Vec<u8>>;
    /// The last operation that it was told.
    fn told(&self) -> u64;
    /// Whether some load is not answered.
    fn is_asked(&self) -> bool;
    /// Answers all loads that it was asked for; it waits for them.
    fn answers(&mut self) -> Vec<Answer>;
    /// What is told from now on is one batch.
    fn begin_transaction(&mut self);
    /// It has ended.
    fn end_transaction(&mut self);
    /// A turn has ended: what was told is acknowledged.
    fn commit(&mut self);
    /// Keeps a definition, behind all others.
    fn define(&mut self, definition: &Definition);
    /// Forgets a definition.
    fn undefine(&mut self, kind: &'static str, name: &[u8]);
    /// The process ends without a word, and another one opens the store; the definitions that it finds, in order.
    fn crash(&mut self) -> Vec<Definition>;
}

/// What the store holds.
#[derive(Clone, Debug, Default)]
struct StoredItem {
    pairs: BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>,
    definitions: Vec<Definition>,
    position: u64,
}

/// A store in memory: what it holds, and the loads that it was asked for.
#[derive(Debug, Default)]
struct Disk {
    held: StoredItem,
    /// What it held when the transaction under way began.
    before: Option<StoredItem>,
    /// Loads that are not answered, with what they show.
    asked: Vec<(FetchId, Loaded)>,
}

impl Disk {
    fn next(&mut self) -> Position {
        self.held.position += 1;
        Position(self.held.position)
    }
}

fn pair((key, (value, attributes)): (&Vec<u8>, &(Vec<u8>, Attributes))) -> Pair {
    Pair { key: key.clone(), value: value.clone(), attributes: *attributes }
}

#[derive(Debug)]
struct End(Rc<RefCell<Disk>>);

impl BaseStore for End {
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position {
        let mut disk = self.0.borrow_mut();
        disk.held.pairs.insert(key.to_vec(), (parts.collect::<Vec<_>>().concat(), attributes));
        disk.next()
    }
    fn remove(&mut self, key: &[u8]) -> Position {
        let mut disk = self.0.borrow_mut();
        assert!(disk.held.pairs.remove(key).is_some(), "a key is removed that is not there");
        disk.next()
    }
    fn remove_range(&mut self, range: &KeyRange) -> Position {
        let mut disk = self.0.borrow_mut();
        disk.held.pairs.retain(|key, _| !range.contains(key));
        disk.next()
    }
    fn clear(&mut self) -> Position {
        let mut disk = self.0.borrow_mut();
        disk.held.pairs.clear();
        disk.next()
    }
    fn note_time(&mut self, _now: Millis) {}

    fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        !self.0.borrow().held.pairs.keys().any(|key| range.contains(key))
    }
    fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        let mut disk = self.0.borrow_mut();
        let inside = disk.held.pairs.iter().filter(|(key, _)| range.contains(key));
        let loaded = Loaded {
            position: Position(disk.held.position),
            pairs: inside.map(pair).collect(),
            known: None,
        };
        disk.asked.push((fetch, loaded));
    }
    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        _bytes_max: u64,
    ) -> Result<Vec<Pair>, String> {
        let disk = self.0.borrow();
        Ok(disk.held.pairs.iter().filter(|(key, _)| wanted(key)).map(pair).collect())
    }
    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// A store that is a map.
#[derive(Debug, Default)]
pub struct Map(Rc<RefCell<Disk>>);

impl Stored for Map {
    fn keep(&self) -> Box<dyn BaseStore> {
        Box::new(End(self.0.clone()))
    }
    fn tables(&self) -> Vec<Vec<u8>> {
        let disk = self.0.borrow();
        let tables = disk.held.pairs.keys().filter_map(|key| headwater_base::table_of(key));
        let mut tables: Vec<Vec<u8>> = tables.map(<[u8]>::to_vec).collect();
        tables.dedup();
        tables
    }
    fn told(&self) -> u64 {
        self.0.borrow().held.position
    }
    fn is_asked(&self) -> bool {
        !self.0.borrow().asked.is_empty()
    }
    fn answers(&mut self) -> Vec<Answer> {
        let asked = std::mem::take(&mut self.0.borrow_mut().asked);
        asked.into_iter().map(|(fetch, loaded)| (fetch, Ok(loaded))).collect()
    }
    fn begin_transaction(&mut self) {
        let disk = &mut *self.0.borrow_mut();
        disk.before = Some(disk.held.clone());
    }
    fn end_transaction(&mut self) {
        self.0.borrow_mut().before = None;
    }
    fn commit(&mut self) {}
    fn define(&mut self, definition: &Definition) {
        self.undefine(definition.0, &definition.1);
        self.0.borrow_mut().held.definitions.push(definition.clone());
    }
    fn undefine(&mut self, kind: &'static str, name: &[u8]) {
        let definitions = &mut self.0.borrow_mut().held.definitions;
        definitions.retain(|(of, known, _)| (*of, &known[..]) != (kind, name));
    }
    fn crash(&mut self) -> Vec<Definition> {
        let disk = &mut *self.0.borrow_mut();
        if let Some(before) = disk.before.take() {
            disk.held = before;
        }
        disk.asked.clear();
        disk.held.definitions.clone()
    }
}
