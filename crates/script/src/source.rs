//! A source that does what a test says: it answers late, in any order, or with an error.
//!
//! The source holds the truth: a log of changes, numbered by position. Its map at any position
//! can be rebuilt from the log, so a load can be answered as of any moment since it was asked.

use headwater_base::KeyRange;
use headwater_engine::{Change, FetchId, Loaded, Position};
use std::collections::BTreeMap;

/// A load that the engine asked for and that is not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenLoad {
    /// Names the answer.
    pub fetch: FetchId,
    /// The keys wanted.
    pub range: KeyRange,
    /// How far the engine had been told of changes when it asked.
    pub since: u64,
}

/// One scripted source.
#[derive(Clone, Debug, Default)]
pub struct ScriptedSource {
    log: Vec<Change>,
    told: usize,
    /// Loads to be answered, in the order in which they were asked.
    pub open: Vec<OpenLoad>,
    /// The ranges that the engine follows: those whose load was answered.
    pub followed: Vec<KeyRange>,
}

impl ScriptedSource {
    /// Where the source stands.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.log.len() as u64
    }

    /// How far the engine has been told.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told as u64
    }

    /// Changes a key at the source; the engine does not know yet.
    pub fn change(&mut self, key: &[u8], value: Option<Vec<u8>>) {
        let position = Position(self.position() + 1);
        self.log.push(Change { position, key: key.to_vec(), value });
    }

    /// Every pair as of a position.
    #[must_use]
    pub fn pairs_at(&self, position: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut pairs = BTreeMap::new();
        for change in &self.log[..position as usize] {
            match &change.value {
                Some(value) => pairs.insert(change.key.clone(), value.clone()),
                None => pairs.remove(&change.key),
            };
        }
        pairs
    }

    /// The engine asks for a range.
    pub fn ask(&mut self, fetch: FetchId, range: KeyRange) {
        self.open.push(OpenLoad { fetch, range, since: self.told() });
    }

    /// Takes the load with this index out of the open ones, with its answer as of `position`.
    ///
    /// # Panics
    /// There is no such load, or the engine was told of later changes before it asked.
    pub fn answer(&mut self, index: usize, position: u64) -> (FetchId, Loaded) {
        let load = self.open.remove(index);
        assert!(load.since <= position && position <= self.position(), "no moment to answer as of");
        let inside = |key: &Vec<u8>| load.range.contains(key);
        let pairs = self.pairs_at(position).into_iter().filter(|(key, _)| inside(key)).collect();
        self.followed.push(load.range);
        (load.fetch, Loaded { position: Position(position), pairs })
    }

    /// The next `most` changes that the engine was not told of. All changes are told, those that
    /// it does not follow as well.
    pub fn tell(&mut self, most: usize) -> Vec<Change> {
        let end = self.log.len().min(self.told + most);
        let changes = self.log[self.told..end].to_vec();
        self.told = end;
        changes
    }
}
