//! What a history asks of the engine, answered by an engine that has everything else besides.

use super::{Bound, Equipped, JOIN, KEY_BYTES, SPILLED_MIN, STREAMS, TABLE, new_node};
use crate::disk::Disk;
use crate::subject::{
    FollowerNotification, Pair, Subject, read_stream, refusal, take_notifications,
};
use headwater_base::{KeyRange, Millis};
use headwater_command::{Data, Keys, OwnedArgs, Strings};
use headwater_engine::{
    Difference, Engine, EngineError, Expiry, Follower, JoinInstalled, Policy, RangeOptions, Stop,
    StreamReport, TableOptions, TableReport, Ticket, Value,
};
use headwater_node::Node;

impl Subject for Equipped {
    fn engine(&mut self) -> &mut Engine {
        self.node.engine_mut()
    }
    fn may_run_out(&mut self) -> bool {
        self.by_chance || self.bound.is_some()
    }
    fn may_lose(&mut self, key: &[u8], expires: bool) -> bool {
        let policy = self.bound.map(|bound| bound.policy);
        if !self.may_forget && policy.is_some_and(|policy| policy.volatile && !expires) {
            return false;
        }
        let is_stream = headwater_base::table_of(key) == Some(STREAMS);
        let kept = self.store.is_some() && (self.keeps_streams || !is_stream);
        !kept && self.loses_some()
    }
    fn may_lose_bytes(&mut self) -> bool {
        !self.keeps_streams && (self.loses_some() || self.may_forget)
    }
    fn keeps_streams(&mut self) -> bool {
        self.keeps_streams
    }
    fn bound(&mut self, bytes: usize, policy: &str) {
        let policy = Policy::named(policy).expect("a policy");
        self.set_bound(Bound { bytes, policy });
    }
    fn unbound(&mut self) {
        if let Some(bound) = self.bound {
            self.set_bound(Bound { bytes: usize::MAX / 4, ..bound });
        }
    }
    fn spill(&mut self, bytes: u64) {
        if self.disk.is_none() && !self.may_forget {
            let disk = Disk::bounded(bytes);
            self.disk = Some(disk.clone());
            self.spill_to(disk, SPILLED_MIN);
        }
    }
    fn crash(&mut self) -> bool {
        let Some(store) = &mut self.store else { return false };
        self.short.crashes += 1;
        let kept = store.crash();
        self.pressure.own(|| self.node = new_node(&self.pressure));
        (self.disk, self.may_forget) = (None, false);
        self.equip(&kept);
        true
    }
    fn advance(&mut self, now: Millis) {
        self.now = now;
        self.run_short(|node| {
            node.engine_mut().advance(now);
            Ok(())
        })
        .expect("time passes");
    }
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        self.read(|engine| Ok(engine.get(key)?.map(|value| value.to_vec())))
    }
    fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        let must_know = expiry == Expiry::Keep && self.store.is_some();
        self.begin_load(key);
        let set = |node: &mut Node| {
            if must_know {
                node.engine_mut().know(key)?;
            }
            Ok(node.engine_mut().set(key, value, expiry)?)
        };
        self.write(key.len() + KEY_BYTES, value.len(), set).map_err(refusal)
    }
    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<usize, Stop> {
        self.write(key.len() + KEY_BYTES, tail.len(), |node| node.engine_mut().append(key, tail))
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        self.begin_load(key);
        self.run_short(|node| node.engine_mut().remove(key))
    }
    fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        self.run_short(|node| node.engine_mut().set_expiry(key, at))
    }
    fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        self.read(|engine| engine.expiry(key))
    }
    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
    ) -> Result<Vec<Pair>, Stop> {
        self.read(|engine| {
            let mut pairs = Vec::new();
            let mut each =
                |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
            engine.range(first, last, options, &mut each)?;
            Ok(pairs)
        })
    }
    fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        self.run_short(|node| node.engine_mut().remove_range(first, last))
    }
    fn go_on_removing(&mut self, ticket: Ticket) -> Result<u64, Stop> {
        let node = &mut self.node;
        self.pressure.own(|| {
            node.go_on();
            let engine = node.engine_mut();
            engine.resume(ticket);
            engine.begin_slice();
            // The range counts no more.
            let removed = engine.remove_range(b"", b"");
            engine.end_slice();
            removed
        })
    }
    fn incr(&mut self, key: &[u8], by: i64) -> Result<Option<i64>, Stop> {
        number(&self.command(20, &Data::Strings(Strings::IncrBy { key, by })))
    }
    fn copy(&mut self, from: &[u8], to: &[u8], replace: bool) -> Result<bool, Stop> {
        let copy = Data::Keys(Keys::Copy { from, to, replace });
        Ok(number(&self.command(1, &copy))? == Some(1))
    }
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<bool, Stop> {
        let rename = Data::Keys(Keys::Rename { from, to, if_absent: false });
        let answer = self.command(1, &rename);
        if answer.starts_with(b"+OK") {
            return Ok(true);
        }
        number(&answer).map(|_| false)
    }
    fn set_all(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Stop> {
        let words: OwnedArgs = pairs.iter().flat_map(|(key, value)| [&key[..], value]).collect();
        let bytes = pairs.iter().map(|(key, value)| key.len() + value.len() + KEY_BYTES).sum();
        let answer = self.command(bytes, &Data::Strings(Strings::MSet { pairs: words.args() }));
        if answer.starts_with(b"+OK") {
            return Ok(());
        }
        number(&answer).map(|_| ())
    }
    fn remove_all(&mut self, keys: &[Vec<u8>]) -> Result<u64, Stop> {
        let words: OwnedArgs = keys.iter().map(Vec::as_slice).collect();
        let answer = self.command(0, &Data::Keys(Keys::Del { keys: words.args() }));
        Ok(number(&answer)?.unwrap_or_default() as u64)
    }
    fn begin_transaction(&mut self) {
        self.node.engine_mut().begin_transaction();
        self.node.engine_mut().set_slice(None);
        if let Some(store) = &mut self.store {
            store.begin_transaction();
        }
    }
    fn end_transaction(&mut self) {
        self.node.engine_mut().end_transaction();
        self.node.engine_mut().set_slice(self.slice);
        if let Some(store) = &mut self.store {
            store.end_transaction();
            store.commit();
        }
    }
    fn forgets_while_looking(&mut self) -> bool {
        self.store.is_some() && self.bound.is_some()
    }
    fn key_count(&mut self) -> u64 {
        self.load_all();
        self.node.engine_mut().remove_all_dead();
        self.node.engine_mut().key_count()
    }
    fn scan(&mut self, cursor: &[u8], count: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        self.load_all();
        // As for SCAN.
        self.node.engine_mut().remove_all_dead();
        let mut keys = Vec::new();
        let next = self.node.engine_mut().scan(cursor, count, &mut |key| keys.push(key.to_vec()));
        (next, keys)
    }
    fn random_key(&mut self, draw: u64) -> Option<Vec<u8>> {
        self.load_all();
        self.node.engine_mut().remove_all_dead();
        self.node.engine_mut().random_key(draw)
    }
    fn flush(&mut self) {
        let flush = |node: &mut Node| {
            node.engine_mut().flush_ahead()?;
            node.engine_mut().flush();
            Ok(())
        };
        self.run_short(flush).expect("all keys go");
    }
    fn compact(&mut self, keys: usize) {
        self.pressure.own(|| self.node.engine_mut().compact_any(keys));
    }
    fn evict(&mut self, draw: u64, count: u64) -> Vec<Vec<u8>> {
        let times = if self.store.is_some() { 3 * count } else { count };
        for step in 0..times {
            if !self.pressure.own(|| self.node.engine_mut().evict_any(draw + step)) {
                break;
            }
        }
        let lost = self.disk.as_ref().filter(|_| self.loses).map_or(0, |disk| disk.lose(draw, 3));
        if lost == 0 {
            return Vec::new();
        }
        // A loss is found by a read, and is a miss from then on. Whether a join's output is
        // there is not for this to tell: the oracle knows it by its sources.
        let engine = self.node.engine_mut();
        let mut keys = Vec::new();
        engine.scan(b"", usize::MAX, &mut |key| keys.push(key.to_vec()));
        // What was read last is still in the engine's buffer: read again, it is in memory.
        keys.retain(|key| {
            let mut misses = || matches!(engine.get(key), Ok(None));
            misses() || misses()
        });
        keys
    }
    fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.read(|engine| engine.watch(key))
    }
    fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.read(|engine| engine.watched(key))
    }
    fn follow(&mut self, by: u32, range: &KeyRange) -> Result<Vec<Pair>, Stop> {
        // Nothing may come between the beginning and the read that belongs to it, so it is not divided.
        self.node.engine_mut().set_slice(None);
        let pairs = self.read(|engine| {
            engine.follow(range, Follower(by))?;
            let mut pairs = Vec::new();
            let mut each =
                |key: &[u8], value: Value<'_>| pairs.push((key.to_vec(), value.to_vec()));
            engine.range(&range.first, &range.last, RangeOptions::default(), &mut each)?;
            Ok(pairs)
        });
        self.node.engine_mut().set_slice(self.slice);
        pairs
    }
    fn told(&mut self) -> Vec<FollowerNotification> {
        let mut all = Vec::new();
        // What waits for data goes on when that is there.
        loop {
            let engine = self.node.engine_mut();
            all.extend(self.pressure.inside(|| take_notifications(engine)));
            if !self.store.as_ref().is_some_and(|store| store.is_asked()) {
                return all;
            }
            self.answer();
        }
    }
    fn join_add(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        let installed = self.add_join(name, text, replace)?;
        if let Some(store) = &mut self.store {
            store.define(&(JOIN, name.as_bytes().to_vec(), text.as_bytes().to_vec()));
            store.commit();
        }
        Ok(installed)
    }
    fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        self.pressure.inside(|| self.node.engine_mut().join_drop(name))?;
        if let Some(store) = &mut self.store {
            store.undefine(JOIN, name.as_bytes());
            store.commit();
        }
        Ok(())
    }
    fn table_set(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        self.set_table(name, options)?;
        if let (Some(store), Some(boundary)) = (&mut self.store, options.boundary) {
            store.define(&(TABLE, name.to_vec(), vec![boundary as u8]));
            store.commit();
        }
        Ok(())
    }
    fn tables(&mut self) -> Vec<TableReport> {
        self.load_all();
        self.node.engine_mut().tables()
    }
    fn verify(&mut self, range: &KeyRange, most: usize) -> Result<Vec<Difference>, Stop> {
        self.read(|engine| engine.verify(range, most))
    }
    fn stream_append(&mut self, key: &[u8], tail: &[u8]) -> Result<u64, EngineError> {
        let append = |node: &mut Node| node.engine_mut().stream_append(key, tail, 0);
        self.write(key.len() + KEY_BYTES, tail.len(), append).map_err(refusal)
    }
    fn stream_read(
        &mut self,
        key: &[u8],
        offset: u64,
        count: u64,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        self.read(|engine| read_stream(engine, key, offset, count)).map_err(refusal)
    }
    fn stream_trim(&mut self, key: &[u8], offset: u64) -> Result<Option<u64>, EngineError> {
        self.run_short(|node| node.engine_mut().stream_trim(key, offset)).map_err(refusal)
    }
    fn stream_report(&mut self, key: &[u8]) -> Result<Option<StreamReport>, EngineError> {
        self.read(|engine| engine.stream_report(key)).map_err(refusal)
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
        Some(("-WRONGTYPE", _)) => EngineError::WrongType,
        Some((_, why)) if why.starts_with("key of ") => {
            let mut numbers = why.split(' ').filter_map(|word| word.parse().ok());
            let mut next = || numbers.next().expect("the lengths are told");
            EngineError::KeyTooLong { length: next(), max: next() }
        }
        Some(("-ERR", why)) if why.contains("integer") || why.contains("overflow") => {
            return Ok(None);
        }
        Some(("-ERR", "no such key")) => return Ok(None),
        Some(_) => EngineError::Refused(text.to_owned()),
    }))
}
