//! Disks that keep a shard's base keys over its restarts, with the promises of the embedded store (`headwater_keep`):
//! writes are told in order, what is synced stays, and of what is not a beginning stays. Loads are answered late, as of
//! the moment of the question or of the answer.

use headwater_base::source::{Attributes, StorePlace};
use headwater_base::{KeyRange, Millis};
use headwater_engine::{BaseStore, FetchId, Loaded, Pair, Position};
use headwater_model::rng::Rng;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

type Pairs = BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>;

/// So many writes are known to whoever resumes what it has of the shard.
const RECENT: usize = 40;

#[derive(Debug)]
enum Write {
    Put(Vec<u8>, Vec<u8>, Attributes),
    Remove(Vec<u8>),
    RemoveRange(KeyRange),
    Clear,
}

fn apply(pairs: &mut Pairs, write: &Write) {
    match write {
        Write::Put(key, value, attributes) => {
            pairs.insert(key.clone(), (value.clone(), *attributes));
        }
        Write::Remove(key) => drop(pairs.remove(key)),
        Write::RemoveRange(range) => pairs.retain(|key, _| !range.contains(key)),
        Write::Clear => pairs.clear(),
    }
}

#[derive(Debug)]
struct Asked {
    fetch: FetchId,
    range: KeyRange,
    then: Option<Loaded>,
}

#[derive(Debug, Default)]
struct State {
    pairs: Pairs,
    synced: Pairs,
    /// What was written since.
    unsynced: Vec<Write>,
    position: u64,
    asked: Vec<Asked>,
    questions: u64,
    /// Nothing becomes safe.
    refuses: bool,
    /// What the last writes were about, and the place before the first of them: none before a crash that has lost some.
    recent: VecDeque<KeyRange>,
}

impl State {
    fn write(&mut self, write: Write) -> Position {
        apply(&mut self.pairs, &write);
        self.recent.push_back(match &write {
            Write::Put(key, ..) | Write::Remove(key) => KeyRange::point(key),
            Write::RemoveRange(range) => range.clone(),
            Write::Clear => KeyRange::all(),
        });
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.unsynced.push(write);
        self.position += 1;
        Position(self.position)
    }

    fn show(&self, range: &KeyRange) -> Loaded {
        let pairs = self.named(&|key| range.contains(key));
        Loaded { position: Position(self.position), pairs, known: None }
    }

    fn named(&self, wanted: &dyn Fn(&[u8]) -> bool) -> Vec<Pair> {
        let inside = self.pairs.iter().filter(|(key, _)| wanted(key));
        let pairs = inside.map(|(key, (value, attributes))| Pair {
            key: key.clone(),
            value: value.clone(),
            attributes: *attributes,
        });
        pairs.collect()
    }
}

/// A disk, which the shard and the world share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk(Rc<RefCell<State>>);

impl Disk {
    /// Makes all that was written safe.
    pub(crate) fn sync(&self) {
        let state = &mut *self.0.borrow_mut();
        for write in state.unsynced.drain(..) {
            apply(&mut state.synced, &write);
        }
    }

    /// From now on nothing becomes safe, or it does again.
    pub(crate) fn refuse(&self, refuses: bool) {
        self.0.borrow_mut().refuses = refuses;
    }

    /// Is cut off from its shard: of what is not safe, the first `stays` writes are there. Whether anything was lost.
    pub(crate) fn crash(&self, stays: impl FnOnce(usize) -> usize) -> bool {
        let state = &mut *self.0.borrow_mut();
        let stays = stays(state.unsynced.len());
        let lost = stays < state.unsynced.len();
        state.unsynced.truncate(stays);
        for write in state.unsynced.drain(..) {
            apply(&mut state.synced, &write);
        }
        state.pairs.clone_from(&state.synced);
        state.asked.clear();
        if lost {
            // No place of before is one of this history.
            state.recent.clear();
            state.position += 1;
        }
        lost
    }

    /// Erases the keys that `unwanted` names, for good.
    pub(crate) fn remove_where(&self, unwanted: impl Fn(&[u8]) -> bool) {
        let strays = self.0.borrow().named(&unwanted);
        for Pair { key, .. } in strays {
            self.0.borrow_mut().write(Write::Remove(key));
        }
        self.sync();
    }

    /// What it holds, with the moments when keys expire.
    pub(crate) fn pairs(&self) -> BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)> {
        let state = self.0.borrow();
        let pair = |(key, (value, attributes)): (&Vec<u8>, &(Vec<u8>, Attributes))| {
            (key.clone(), (value.clone(), attributes.expires.map(|Millis(at)| at)))
        };
        state.pairs.iter().map(pair).collect()
    }

    pub(crate) fn is_asked(&self) -> bool {
        !self.0.borrow().asked.is_empty()
    }

    /// Answers to all questions, or to some of them, in any order.
    pub(crate) fn answers(&self, rng: &mut Rng, all: bool) -> Vec<(FetchId, Loaded)> {
        let state = &mut *self.0.borrow_mut();
        let mut asked = std::mem::take(&mut state.asked);
        rng.shuffle(&mut asked);
        let mut answers = Vec::new();
        for Asked { fetch, range, then } in asked {
            if all || rng.chance(60) {
                answers.push((fetch, then.unwrap_or_else(|| state.show(&range))));
            } else {
                state.asked.push(Asked { fetch, range, then });
            }
        }
        answers
    }
}

impl BaseStore for Disk {
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position {
        let value = parts.collect::<Vec<_>>().concat();
        self.0.borrow_mut().write(Write::Put(key.to_vec(), value, attributes))
    }

    fn remove(&mut self, key: &[u8]) -> Position {
        let mut state = self.0.borrow_mut();
        assert!(state.pairs.contains_key(key), "{} is removed twice", key.escape_ascii());
        state.write(Write::Remove(key.to_vec()))
    }

    fn remove_range(&mut self, range: &KeyRange) -> Position {
        self.0.borrow_mut().write(Write::RemoveRange(range.clone()))
    }

    fn clear(&mut self) -> Position {
        self.0.borrow_mut().write(Write::Clear)
    }

    fn note_time(&mut self, _now: Millis) {}

    fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        !self.0.borrow().pairs.keys().any(|key| range.contains(key))
    }

    fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        let mut state = self.0.borrow_mut();
        state.questions += 1;
        let then = state.questions.is_multiple_of(2).then(|| state.show(range));
        state.asked.push(Asked { fetch, range: range.clone(), then });
    }

    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        _bytes_max: u64,
    ) -> Result<Vec<Pair>, String> {
        self.settle()?;
        Ok(self.0.borrow().named(wanted))
    }

    fn settle(&mut self) -> Result<(), String> {
        if self.0.borrow().refuses {
            return Err(String::from("the disk is full"));
        }
        self.sync();
        Ok(())
    }

    fn reached(&self) -> Option<StorePlace> {
        // A crash may lose it: then the place is none of the disk's any more.
        Some(StorePlace { position: Position(self.0.borrow().position), checksum: 0 })
    }

    fn written_since(&mut self, place: StorePlace, range: &KeyRange) -> Option<Vec<Vec<u8>>> {
        let state = self.0.borrow();
        let since = state.position.checked_sub(place.position.0)? as usize;
        let behind = state.recent.len().checked_sub(since)?;
        let mut keys = BTreeSet::new();
        for written in state.recent.iter().skip(behind).filter(|written| written.overlaps(range)) {
            if *written != KeyRange::point(&written.first) {
                return None;
            }
            keys.insert(written.first.clone());
        }
        Some(keys.into_iter().collect())
    }
}
