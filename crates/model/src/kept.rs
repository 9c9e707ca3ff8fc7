//! The engine with all its base data kept by an embedded store that is a map: whatever is evicted, or
//! loaded late, the answers must be those of an engine that has everything.
//!
//! Operations that wait are run again when what they lack has arrived, so that a history sees none of
//! it. Before some writes a load of the same keys is begun, and answered after them, as of
//! before.

use crate::functions::Doubles;
use crate::subject::{Pair, Subject, ToldTo, take_told};
use headwater_base::hash::Secret;
use headwater_base::source::Attributes;
use headwater_base::{KeyRange, Millis};
use headwater_command::{Keys, OwnedArgs, Strings};
use headwater_engine::{
    Difference, Engine, EngineError, Expiry, FetchId, Follower, JoinInstalled, Keep, Loaded,
    Position, RangeOptions, Settings, Stop, TableReport, Value,
};
use headwater_node::{Data, Node, Outcome};
use headwater_protocol::resp::{Encoder, Version};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What the store holds, and what was asked of it.
#[derive(Debug, Default)]
struct Disk {
    pairs: BTreeMap<Vec<u8>, (Vec<u8>, Attributes)>,
    position: u64,
    /// Loads that are not answered, with what they show.
    asked: Vec<(FetchId, Loaded)>,
}

impl Disk {
    fn next(&mut self) -> Position {
        self.position += 1;
        Position(self.position)
    }
}

#[derive(Debug)]
struct Store(Rc<RefCell<Disk>>);

impl Keep for Store {
    fn put(
        &mut self,
        key: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
        attributes: Attributes,
    ) -> Position {
        let mut disk = self.0.borrow_mut();
        disk.pairs.insert(key.to_vec(), (parts.collect::<Vec<_>>().concat(), attributes));
        disk.next()
    }
    fn remove(&mut self, key: &[u8]) -> Position {
        let mut disk = self.0.borrow_mut();
        assert!(disk.pairs.remove(key).is_some(), "a key is removed that is not there");
        disk.next()
    }
    fn clear(&mut self) -> Position {
        let mut disk = self.0.borrow_mut();
        disk.pairs.clear();
        disk.next()
    }
    fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        !self.0.borrow().pairs.keys().any(|key| range.contains(key))
    }
    fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        let mut disk = self.0.borrow_mut();
        let inside = disk.pairs.iter().filter(|(key, _)| range.contains(key));
        let pairs = inside.map(|(key, (value, attributes))| headwater_engine::Pair {
            key: key.clone(),
            value: value.clone(),
            attributes: *attributes,
        });
        let loaded = Loaded { position: Position(disk.position), pairs: pairs.collect() };
        disk.asked.push((fetch, loaded));
    }
    fn gather(
        &mut self,
        wanted: &dyn Fn(&[u8]) -> bool,
        _bytes_max: u64,
    ) -> Result<Vec<headwater_engine::Pair>, String> {
        let disk = self.0.borrow();
        let inside = disk.pairs.iter().filter(|(key, _)| wanted(key));
        let pair = |(key, (value, attributes)): (&Vec<u8>, &(Vec<u8>, Attributes))| {
            headwater_engine::Pair {
                key: key.clone(),
                value: value.clone(),
                attributes: *attributes,
            }
        };
        Ok(inside.map(pair).collect())
    }
    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// An engine whose base data is kept.
pub struct Kept {
    node: Node,
    disk: Rc<RefCell<Disk>>,
    writes: u64,
}

impl Default for Kept {
    fn default() -> Self {
        let settings = Settings { secret: Secret::fixed(7), draws: 7, ..Settings::default() };
        let mut node = Node::new(settings);
        let disk = Rc::<RefCell<Disk>>::default();
        let engine = node.engine_mut();
        engine.set_functions(Box::new(Doubles));
        engine.set_keep(Box::new(Store(disk.clone())), &[], true, true).expect("no table is named");
        Self { node, disk, writes: 0 }
    }
}

/// How often an operation may wait before it counts as stuck.
const PATIENCE: usize = 1000;

impl Kept {
    /// How many loads the store was asked for so far.
    fn answer(&mut self) {
        let asked = std::mem::take(&mut self.disk.borrow_mut().asked);
        for (fetch, loaded) in asked {
            self.node.engine_mut().loaded(fetch, Ok(loaded));
        }
        self.node.engine_mut().take_effects();
    }

    fn patient<T>(
        &mut self,
        mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        for _ in 0..PATIENCE {
            let told = self.disk.borrow().position;
            match operation(self.node.engine_mut()) {
                Err(Stop::Wait(_)) => {
                    assert_eq!(self.disk.borrow().position, told, "what waits has written nothing");
                    self.answer();
                }
                done => return done,
            }
        }
        panic!("an operation waits though all loads were answered");
    }

    /// A command's answer in RESP2, when all that it waits for has come.
    fn command(&mut self, command: &Data<'_>) -> Vec<u8> {
        for _ in 0..PATIENCE {
            let (told, mut out) = (self.disk.borrow().position, Vec::new());
            let mut encoder = Encoder::new(&mut out, Version::Resp2);
            match self.node.execute(command, &mut encoder) {
                Outcome::Done => return out,
                Outcome::Waiting(_) => {
                    assert_eq!(self.disk.borrow().position, told, "what waits has written nothing");
                    self.answer();
                }
            }
        }
        panic!("a command waits though all loads were answered");
    }

    /// Has everything in memory.
    fn load_all(&mut self) {
        let options = RangeOptions::default();
        self.patient(|engine| engine.range(b"", b"", options, &mut |_, _| {}))
            .expect("the store answers");
    }

    /// Begins a load that some writes come to be late for.
    fn begin_load(&mut self, key: &[u8]) {
        self.writes += 1;
        if self.writes.is_multiple_of(2) {
            self.answer();
        }
        if self.writes.is_multiple_of(3) {
            drop(self.node.engine_mut().get(key).map(drop));
        }
    }
}

impl Subject for Kept {
    fn engine(&mut self) -> &mut Engine {
        self.node.engine_mut()
    }
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.patient(|engine| Ok(engine.get(key)?.map(|value| value.to_vec())))
    }
    fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        if expiry == Expiry::Keep {
            self.patient(|engine| engine.know(key)).expect("the store answers");
        }
        self.begin_load(key);
        self.node.engine_mut().set(key, value, expiry)
    }
    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<usize, Stop> {
        self.patient(|engine| engine.append(key, tail))
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        self.begin_load(key);
        self.patient(|engine| engine.remove(key))
    }
    fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        self.patient(|engine| engine.set_expiry(key, at))
    }
    fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        self.patient(|engine| engine.expiry(key))
    }
    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
    ) -> Result<Vec<Pair>, Stop> {
        self.patient(|engine| {
            let mut pairs = Vec::new();
            let mut each =
                |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
            engine.range(first, last, options, &mut each)?;
            Ok(pairs)
        })
    }
    fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        self.patient(|engine| engine.remove_range(first, last))
    }
    fn incr(&mut self, key: &[u8], by: i64) -> Result<Option<i64>, Stop> {
        number(&self.command(&Data::Strings(Strings::IncrBy { key, by })))
    }
    fn copy(&mut self, from: &[u8], to: &[u8], replace: bool) -> Result<bool, Stop> {
        Ok(number(&self.command(&Data::Keys(Keys::Copy { from, to, replace })))? == Some(1))
    }
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<bool, Stop> {
        let answer = self.command(&Data::Keys(Keys::Rename { from, to, if_absent: false }));
        if answer.starts_with(b"+OK") {
            return Ok(true);
        }
        number(&answer).map(|_| false)
    }
    fn set_all(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Stop> {
        let words: OwnedArgs = pairs.iter().flat_map(|(key, value)| [&key[..], value]).collect();
        let answer = self.command(&Data::Strings(Strings::MSet { pairs: words.args() }));
        if answer.starts_with(b"+OK") {
            return Ok(());
        }
        number(&answer).map(|_| ())
    }
    fn remove_all(&mut self, keys: &[Vec<u8>]) -> Result<u64, Stop> {
        let words: OwnedArgs = keys.iter().map(Vec::as_slice).collect();
        let answer = self.command(&Data::Keys(Keys::Del { keys: words.args() }));
        Ok(number(&answer)?.unwrap_or_default() as u64)
    }
    fn begin_transaction(&mut self) {
        self.node.engine_mut().begin_transaction();
    }
    fn end_transaction(&mut self) {
        self.node.engine_mut().end_transaction();
    }
    fn key_count(&mut self) -> u64 {
        self.load_all();
        self.node.engine_mut().key_count()
    }
    fn scan(&mut self, cursor: &[u8], count: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        self.load_all();
        let mut keys = Vec::new();
        let next = self.node.engine_mut().scan(cursor, count, &mut |key| keys.push(key.to_vec()));
        (next, keys)
    }
    fn random_key(&mut self, draw: u64) -> Option<Vec<u8>> {
        self.load_all();
        self.node.engine_mut().random_key(draw)
    }
    fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.patient(|engine| engine.watch(key))
    }
    fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.patient(|engine| engine.watched(key))
    }
    fn evict(&mut self, draw: u64, count: u64) -> Vec<Vec<u8>> {
        for step in 0..3 * count {
            if !self.node.engine_mut().evict_any(draw + step) {
                break;
            }
        }
        Vec::new()
    }
    fn follow(&mut self, by: u32, range: &KeyRange) -> Result<Vec<Pair>, Stop> {
        self.patient(|engine| {
            engine.follow(range, Follower(by))?;
            let mut pairs = Vec::new();
            let mut each =
                |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
            engine.range(&range.first, &range.last, RangeOptions::default(), &mut each)?;
            Ok(pairs)
        })
    }
    fn told(&mut self) -> Vec<ToldTo> {
        let mut all = take_told(self.node.engine_mut());
        // What waits for data goes on when that is there.
        while !self.disk.borrow().asked.is_empty() {
            self.answer();
            all.extend(take_told(self.node.engine_mut()));
        }
        all
    }
    fn join_add(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        self.patient(|engine| engine.know_outputs(text)).expect("the store answers");
        self.node.engine_mut().join_add(name, text, replace)
    }
    fn tables(&mut self) -> Vec<TableReport> {
        self.load_all();
        self.node.engine_mut().tables()
    }
    fn verify(&mut self, range: &KeyRange, most: usize) -> Result<Vec<Difference>, Stop> {
        self.patient(|engine| engine.verify(range, most))
    }
}

/// What an answer in RESP2 says: a number, none where the command had nothing to work with, or why it was refused.
fn number(answer: &[u8]) -> Result<Option<i64>, Stop> {
    let text = String::from_utf8_lossy(answer);
    let text = text.trim_end();
    let quoted = || text.split('\'').nth(1).unwrap_or_default().to_owned();
    Err(Stop::Failed(match text.split_once(' ') {
        None => return Ok(text.strip_prefix(':').and_then(|digits| digits.parse().ok())),
        Some(("-JOINED", _)) => EngineError::Joined { join: quoted() },
        Some(("-OOM", _)) => EngineError::OutOfMemory,
        Some((_, why)) if why.starts_with("key of ") => {
            let mut numbers = why.split(' ').filter_map(|word| word.parse().ok());
            let mut next = || numbers.next().expect("the lengths are told");
            EngineError::KeyTooLong { length: next(), max: next() }
        }
        Some((_, why)) if why.starts_with("a key has at least") => EngineError::KeyEmpty,
        Some(("-ERR", why)) if why.contains("integer") || why.contains("overflow") => {
            return Ok(None);
        }
        Some(("-ERR", "no such key")) => return Ok(None),
        Some(_) => EngineError::Refused(text.to_owned()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Kept {
        /// The flags of a key, once it is in memory again.
        fn flags_after_eviction(&mut self, key: &[u8]) -> u32 {
            // Each kind of what can go has its turn.
            (0..60).for_each(|draw| _ = self.node.engine_mut().evict_any(draw));
            assert_eq!(
                self.node.engine_mut().mark(key).flags,
                0,
                "memory holds nothing of what is on disk"
            );
            self.get(key).expect("the store answers").expect("the key is there");
            self.node.engine_mut().check_invariants();
            self.node.engine_mut().mark(key).flags
        }
    }

    #[test]
    fn flags_come_back_with_their_keys() {
        let mut kept = Kept::default();
        for key in [&b"p|bob|1"[..], b"plain"] {
            let set = kept.node.engine_mut().set_flagged(key, b"value", Expiry::Never, 7);
            set.expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 7);
            kept.append(key, b" and more").expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 7, "appending keeps them");
            kept.set_expiry(key, Some(Millis(1 << 40))).expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 7, "so does an expiry");
            kept.set(key, b"other", Expiry::Never).expect("a base key");
            assert_eq!(kept.flags_after_eviction(key), 0, "a value without flags has none");
        }
    }
}
