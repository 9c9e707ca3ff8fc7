//! A source that does what a test says: it answers late, in any order, or with an error.
//!
//! The source holds the truth: a log of changes, numbered by position. Its map at any position
//! can be rebuilt from the log, so a load can be answered as of any moment since it was asked.

use crate::command::AsOf;
use headwater_base::KeyRange;
use headwater_base::key::end_at_most;
use headwater_base::source::{Attributes, LoadedPart};
use headwater_engine::{Change, FetchId, Loaded, Pair, Portion, Position};
use std::collections::BTreeMap;

/// A load that the engine asked for and that is not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenLoad {
    /// Names the answer.
    pub fetch: FetchId,
    /// The keys wanted.
    pub range: KeyRange,
    /// How many of them.
    pub portion: Portion,
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
        self.log.push(Change { key: key.to_vec(), value });
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
    pub fn ask(&mut self, fetch: FetchId, range: KeyRange, portion: Portion) {
        self.open.push(OpenLoad { fetch, range, portion, since: self.told() });
    }

    /// Takes an open load: the one numbered `load` (from 1), or the last where there are fewer.
    pub fn take(&mut self, load: usize) -> Option<OpenLoad> {
        let last = self.open.len().checked_sub(1)?;
        Some(self.open.remove(load.saturating_sub(1).min(last)))
    }

    /// The moment nearest to `as_of` that a load can be answered as of: none before it was asked.
    #[must_use]
    pub fn moment(&self, load: &OpenLoad, as_of: AsOf) -> u64 {
        match as_of {
            AsOf::Late(changes) => self.told().saturating_sub(changes).max(load.since),
            AsOf::Ahead(changes) => (self.told() + changes).min(self.position()),
        }
    }

    /// What the source delivers for a load; from now on its range is followed, or as much of it as was delivered.
    pub fn answer(&mut self, load: &OpenLoad, position: u64) -> Loaded {
        self.answer_part(load, position, usize::MAX)
    }

    /// As [`ScriptedSource::answer`], of `rows_max` rows at most.
    pub fn answer_part(&mut self, load: &OpenLoad, position: u64, rows_max: usize) -> Loaded {
        let OpenLoad { range, portion, .. } = load;
        let pairs = self.pairs_at(position).into_iter().filter(|(key, _)| range.contains(key));
        let mut pairs: Vec<_> = pairs
            .map(|(key, value)| Pair { key, value, attributes: Attributes::default() })
            .collect();
        let wanted =
            portion.rows.map_or(usize::MAX, |rows| usize::try_from(rows).unwrap_or(usize::MAX));
        let rows = wanted.min(rows_max).max(1);
        let mut known = None;
        if rows < pairs.len() {
            let mut part = range.clone();
            if portion.reverse {
                pairs.drain(..pairs.len() - rows);
                part.first.clone_from(&pairs[0].key);
            } else {
                part.last.clone_from(&pairs[rows].key);
                pairs.truncate(rows);
            }
            known = Some(part);
        }
        self.followed.push(known.clone().unwrap_or_else(|| range.clone()));
        Loaded { position: Position(position), pairs, known }
    }

    /// The first rows that the source finds for a load whose query goes on, `rows` at most, or nothing where that would be all of them. The
    /// load is of what is left from then on.
    pub fn answer_before(
        &mut self,
        load: &mut OpenLoad,
        position: u64,
        rows: usize,
    ) -> Option<LoadedPart> {
        let whole = load.portion.rows.is_none() && !load.portion.reverse;
        let pairs = self.pairs_at(position).into_iter();
        let keys = pairs.map(|(key, _)| key).filter(|key| load.range.contains(key));
        let next = keys.skip(1).nth(rows.max(1) - 1).filter(|_| whole)?;
        let known = KeyRange::new(&load.range.first, &next);
        let first = OpenLoad { range: known.clone(), ..load.clone() };
        let Loaded { position, pairs, .. } = self.answer(&first, position);
        load.range.first = next;
        let pairs = pairs.iter().map(|pair| (&*pair.key, &*pair.value)).collect();
        Some(LoadedPart { position, pairs, known })
    }

    /// The engine gives up a range: what is left of the followed ones.
    pub fn unfollow(&mut self, range: &KeyRange) {
        let mut left = Vec::new();
        for followed in self.followed.drain(..) {
            if !followed.overlaps(range) {
                left.push(followed);
                continue;
            }
            if followed.first < range.first {
                left.push(KeyRange::new(&followed.first, &range.first));
            }
            if !range.last.is_empty() && !end_at_most(&followed.last, &range.last) {
                left.push(KeyRange::new(&range.last, &followed.last));
            }
        }
        self.followed = left;
    }

    /// The changes that the engine was not told of are lost to it. Loads that are open will be
    /// answered as of later.
    pub fn lose(&mut self) {
        self.told = self.log.len();
        for load in &mut self.open {
            load.since = self.told as u64;
        }
    }

    /// The next `most` changes that the engine was not told of, each with its position. All
    /// changes are told, those that it does not follow as well.
    pub fn tell(&mut self, most: usize) -> Vec<(Position, Change)> {
        let end = self.log.len().min(self.told.saturating_add(most));
        let changes = (self.told..end).map(|at| (Position(at as u64 + 1), self.log[at].clone()));
        let changes = changes.collect();
        self.told = end;
        changes
    }
}
