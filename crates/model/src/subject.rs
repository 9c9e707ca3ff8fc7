//! What a history is run against: the engine, or something that misbehaves on purpose.

use crate::functions::Doubles;
use headwater_base::functions::Functions;
use headwater_base::hash::Secret;
use headwater_base::source::LoadedPart;
use headwater_base::{KeyRange, Millis};
use headwater_engine::{
    Change, Difference, Effect, Engine, EngineError, Expiry, FetchId, Follower, JoinInstalled,
    JoinReport, Loaded, Notification, NotifiedChange, Position, RangeOptions, Settings, Stats,
    Stop, StreamReport, TableOptions, TableReport, Ticket,
};

/// What followers are told, with what was shared in it copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FollowerNotification {
    /// Whose turn it is to hear it.
    pub followers: Vec<u32>,
    /// What has happened.
    pub change: FeedChange,
}

/// What has happened in a followed range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedChange {
    /// A key has this value.
    Set(Vec<u8>, Vec<u8>),
    /// A key is gone.
    Gone(Vec<u8>),
    /// What the range holds is not known any more.
    Reset(KeyRange),
}

/// Takes what an engine has to tell.
pub fn take_notifications(engine: &mut Engine) -> Vec<FollowerNotification> {
    engine.keep_followed();
    let mut all = Vec::new();
    for Notification { followers, what } in engine.take_notifications() {
        let change = match what {
            NotifiedChange::Set { key, value } => {
                let bytes = engine.held(value).to_vec();
                engine.release(value);
                FeedChange::Set(key.into(), bytes)
            }
            NotifiedChange::Gone { key } => FeedChange::Gone(key.into()),
            NotifiedChange::Reset { range } => FeedChange::Reset(range),
        };
        let followers = followers.iter().map(|follower| follower.0).collect();
        all.push(FollowerNotification { followers, change });
    }
    all
}

/// What refused an operation that never waits.
///
/// # Panics
/// It waits.
#[must_use]
pub fn refusal(stop: Stop) -> EngineError {
    match stop {
        Stop::Failed(error) => error,
        Stop::Wait(_) => panic!("it never waits"),
    }
}

/// Bytes of a stream.
///
/// # Errors
/// As for [`Engine::stream_read`].
pub fn read_stream(
    engine: &mut Engine,
    key: &[u8],
    offset: u64,
    count: u64,
) -> Result<Option<Vec<u8>>, Stop> {
    let Some(bytes) = engine.stream_read(key, offset, count)? else { return Ok(None) };
    let mut got = Vec::new();
    bytes.for_each(&mut |part| got.extend_from_slice(part));
    Ok(Some(got))
}

/// A key with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// The engine's methods, with owned results, so that a wrapper can falsify one of them.
#[expect(missing_docs, reason = "each method is the engine's method of the same name")]
#[expect(clippy::missing_errors_doc, reason = "each method is the engine's method of that name")]
pub trait Subject {
    fn engine(&mut self) -> &mut Engine;

    fn advance(&mut self, now: Millis) {
        self.engine().advance(now);
    }
    fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        Ok(self.engine().get(key)?.map(|value| value.to_vec()))
    }
    fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        self.engine().set(key, value, expiry)
    }
    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<usize, Stop> {
        self.engine().append(key, tail)
    }
    fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        self.engine().remove(key)
    }
    fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        self.engine().set_expiry(key, at)
    }
    fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        self.engine().expiry(key)
    }
    fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
    ) -> Result<Vec<Pair>, Stop> {
        let mut pairs = Vec::new();
        let mut each = |key: &[u8], value: headwater_engine::Value<'_>| {
            pairs.push((key.to_vec(), value.to_vec()));
        };
        let count = self.engine().range(first, last, options, &mut each)?;
        assert_eq!(count, pairs.len() as u64, "range() must give the number of pairs it called");
        Ok(pairs)
    }
    fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        self.engine().remove_range(first, last)
    }
    /// Does a slice of a removal that has begun and waits with this ticket; how many keys it removed, where it has ended.
    fn go_on_removing(&mut self, ticket: Ticket) -> Result<u64, Stop> {
        Err(Stop::Wait(ticket))
    }
    /// Why a value of this key would be refused.
    fn check(&mut self, key: &[u8]) -> Result<(), EngineError> {
        let max = self.engine().limits().key_bytes_max;
        match key.len() {
            length if length > max => Err(EngineError::KeyTooLong { length, max }),
            _ => self.engine().check_writable(key),
        }
    }
    /// Adds to the number that a base key holds; `None`: it holds no number, or the sum is none.
    fn incr(&mut self, key: &[u8], by: i64) -> Result<Option<i64>, Stop> {
        let old = self.get(key)?.unwrap_or_else(|| b"0".to_vec());
        let number = str::from_utf8(&old).ok().and_then(|text| text.parse::<i64>().ok());
        let number = number.filter(|number| number.to_string().as_bytes() == old);
        let Some(new) = number.and_then(|number| number.checked_add(by)) else { return Ok(None) };
        self.set(key, new.to_string().as_bytes(), Expiry::Keep)?;
        Ok(Some(new))
    }
    /// Gives `to` the value and the expiry of `from`; whether it did.
    fn copy(&mut self, from: &[u8], to: &[u8], replace: bool) -> Result<bool, Stop> {
        let Some(value) = self.get(from)? else { return Ok(false) };
        let expires = self.expiry(from)?.flatten();
        if !replace && self.get(to)?.is_some() {
            return Ok(false);
        }
        self.set(to, &value, expires.map_or(Expiry::Never, Expiry::At))?;
        Ok(true)
    }
    /// Moves the value and the expiry of `from` to `to`; whether there was one.
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<bool, Stop> {
        if self.get(from)?.is_none() {
            return Ok(false);
        }
        self.check(from)?;
        if from != to {
            self.copy(from, to, true)?;
            self.remove(from)?;
        }
        Ok(true)
    }
    /// Gives several keys values, all or none.
    fn set_all(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Stop> {
        for (key, _) in pairs {
            self.check(key)?;
        }
        for (key, value) in pairs {
            self.set(key, value, Expiry::Never)?;
        }
        Ok(())
    }
    /// Removes several keys, all or none; how many were there.
    fn remove_all(&mut self, keys: &[Vec<u8>]) -> Result<u64, Stop> {
        for key in keys {
            self.check(key)?;
        }
        let mut removed = 0;
        for key in keys {
            removed += u64::from(self.remove(key)?);
        }
        Ok(removed)
    }
    /// What follows is one transaction.
    fn begin_transaction(&mut self) {}
    /// It has ended.
    fn end_transaction(&mut self) {}
    /// Whether writes may be refused for want of memory.
    fn may_run_out(&mut self) -> bool {
        false
    }
    /// Whether a base key that no join reads, and that expires or not, may go for want of memory.
    fn may_lose(&mut self, _key: &[u8], _expires: bool) -> bool {
        false
    }
    /// Whether the oldest bytes of streams may.
    fn may_lose_bytes(&mut self) -> bool {
        false
    }
    /// Whether streams are as safe as other base data, and survive the process.
    fn keeps_streams(&mut self) -> bool {
        false
    }
    /// What may be taken of memory beside the empty engine, and what goes then.
    fn bound(&mut self, _bytes: usize, _policy: &str) {}
    /// Anything may be taken from now on.
    fn unbound(&mut self) {}
    /// Gives the engine a disk of so many bytes to spill to, if it has none.
    fn spill(&mut self, _bytes: u64) {}
    /// The process ends without a word, and begins again with what its store has kept; `false` where it has none, and
    /// nothing happens.
    fn crash(&mut self) -> bool {
        false
    }
    /// Moves the values of so many keys to other places in memory.
    fn compact(&mut self, keys: usize) {
        self.engine().compact_any(keys);
    }
    fn stream_append(&mut self, key: &[u8], tail: &[u8]) -> Result<u64, EngineError> {
        self.engine().stream_append(key, tail, 0).map_err(refusal)
    }
    fn stream_read(
        &mut self,
        key: &[u8],
        offset: u64,
        count: u64,
    ) -> Result<Option<Vec<u8>>, EngineError> {
        read_stream(self.engine(), key, offset, count).map_err(refusal)
    }
    fn stream_trim(&mut self, key: &[u8], offset: u64) -> Result<Option<u64>, EngineError> {
        self.engine().stream_trim(key, offset).map_err(refusal)
    }
    fn stream_report(&mut self, key: &[u8]) -> Result<Option<StreamReport>, EngineError> {
        self.engine().stream_report(key).map_err(refusal)
    }
    /// Whether looking at all keys may let some of them go: loading some makes room by dropping others.
    fn forgets_while_looking(&mut self) -> bool {
        false
    }
    fn key_count(&mut self) -> u64 {
        self.engine().remove_all_dead();
        self.engine().key_count()
    }
    fn scan(&mut self, cursor: &[u8], count: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        let mut keys = Vec::new();
        let next = self.engine().scan(cursor, count, &mut |key| keys.push(key.to_vec()));
        (next, keys)
    }
    fn random_key(&mut self, draw: u64) -> Option<Vec<u8>> {
        self.engine().random_key(draw)
    }
    fn flush(&mut self) {
        self.engine().flush();
    }
    /// Evicts, and gives the base keys that are gone for it.
    fn evict(&mut self, draw: u64, count: u64) -> Vec<Vec<u8>> {
        for step in 0..count {
            if !self.engine().evict_any(draw + step) {
                break;
            }
        }
        Vec::new()
    }
    fn watch(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.engine().watch(key)
    }
    fn watched(&mut self, key: &[u8]) -> Result<u64, Stop> {
        self.engine().watched(key)
    }
    fn unwatch(&mut self, key: &[u8]) {
        self.engine().unwatch(key);
    }
    /// Follows a range, and copies it.
    fn follow(&mut self, by: u32, range: &KeyRange) -> Result<Vec<Pair>, Stop> {
        self.engine().follow(range, Follower(by))?;
        let mut pairs = Vec::new();
        let options = RangeOptions::default();
        let mut each = |key: &[u8], value: headwater_engine::Value<'_>| {
            pairs.push((key.to_vec(), value.to_vec()));
        };
        self.engine().range(&range.first, &range.last, options, &mut each)?;
        Ok(pairs)
    }
    fn unfollow(&mut self, by: u32, range: &KeyRange) {
        self.engine().unfollow(range, Follower(by));
    }
    /// What followers are told since the last time.
    fn told(&mut self) -> Vec<FollowerNotification> {
        take_notifications(self.engine())
    }
    fn join_add(
        &mut self,
        name: &str,
        text: &str,
        replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        self.engine().join_add(name, text, replace)
    }
    fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        self.engine().join_drop(name)
    }
    fn joins(&mut self) -> Vec<JoinReport> {
        self.engine().joins()
    }
    fn table_set(&mut self, name: &[u8], options: &TableOptions) -> Result<(), EngineError> {
        self.engine().table_set(name, options)
    }
    fn tables(&mut self) -> Vec<TableReport> {
        self.engine().tables()
    }
    fn verify(&mut self, range: &KeyRange, most: usize) -> Result<Vec<Difference>, Stop> {
        self.engine().verify(range, most)
    }
    fn stats(&mut self) -> Stats {
        self.engine().stats()
    }
    fn loaded(&mut self, fetch: FetchId, answer: Result<Loaded, String>) {
        self.engine().loaded(fetch, answer);
    }
    fn loaded_part(&mut self, fetch: FetchId, part: LoadedPart) {
        self.engine().loaded_part(fetch, part);
    }
    fn changed(&mut self, source: &str, position: Position, changes: &[Change]) {
        self.engine().changed(source, position, changes);
    }
    fn source_reset(&mut self, source: &str) {
        self.engine().source_reset(source, &KeyRange::all());
    }
    fn take_effects(&mut self) -> Vec<Effect> {
        self.engine().take_effects()
    }
}

/// The engine as it is.
pub struct Plain(Engine);

impl Default for Plain {
    /// An empty engine with the hashing seed that histories use.
    fn default() -> Self {
        Self::with(Box::new(Doubles))
    }
}

impl Plain {
    /// As the default, with these functions.
    #[must_use]
    pub fn with(functions: Box<dyn Functions>) -> Self {
        let mut engine =
            Engine::new(Settings { secret: Secret::fixed(7), draws: 7, ..Settings::default() });
        engine.set_functions(functions);
        Self(engine)
    }
}

impl Subject for Plain {
    fn engine(&mut self) -> &mut Engine {
        &mut self.0
    }
}
