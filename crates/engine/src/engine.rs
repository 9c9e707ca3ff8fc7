//! The engine's interface.

use crate::report::*;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::{KeyRange, Limits, Millis};
use headwater_pool::Value;

/// What an engine is made with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Bounds on keys, values and joins.
    pub limits: Limits,
    /// Seeds the hashing of keys; random in a server, fixed in tests.
    pub hash_seed: u64,
}

/// One shard's keys, joins and everything derived.
///
/// Time is an input: call [`Engine::advance`] before the operations that happen then.
/// Every read sees all earlier writes in every view.
pub struct Engine {
    settings: Settings,
    now: Millis,
    keys: BTreeMap<Vec<u8>, (Vec<u8>, Option<Millis>)>,
}

impl Engine {
    /// An engine without keys, joins or tables.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, now: Millis(0), keys: BTreeMap::new() }
    }

    /// The bounds in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// Changes the bounds for what is written from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.settings.limits = limits;
    }

    /// Moves time to `now`: keys whose time has come are removed, in every view.
    /// Time that goes backwards is ignored.
    pub fn advance(&mut self, now: Millis) {
        if now <= self.now {
            return;
        }
        self.now = now;
        self.keys.retain(|_, (_, at)| at.is_none_or(|at| at > now));
    }

    /// The moment given last to [`Engine::advance`].
    #[must_use]
    pub fn now(&self) -> Millis {
        self.now
    }

    /// The value of `key`, computed where it is derived.
    ///
    /// # Errors
    /// [`Stop`]: data must be loaded first, or a source failed.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value<'_>>, Stop> {
        Ok(self.keys.get(key).map(|(value, _)| Value::of(value)))
    }

    /// Gives `key` this value.
    ///
    /// # Errors
    /// The key is a join's output, or the key or the value is too long.
    pub fn set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), EngineError> {
        let max = self.settings.limits.key_bytes_max;
        if key.len() > max {
            return Err(EngineError::KeyTooLong { length: key.len(), max });
        }
        let kept = self.keys.get(key).and_then(|(_, at)| *at);
        let at = match expiry {
            Expiry::Keep => kept,
            Expiry::Never => None,
            Expiry::At(at) => Some(at),
        };
        self.keys.insert(key.to_vec(), (value.to_vec(), at));
        Ok(())
    }

    /// Puts `tail` behind the value of `key` (behind nothing, where there is none) and gives
    /// the new length. The expiry is kept.
    ///
    /// # Errors
    /// As for [`Engine::set`]; [`Stop::Wait`] where the old value must be loaded first.
    pub fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<usize, Stop> {
        let mut value = self.keys.get(key).map(|(value, _)| value.clone()).unwrap_or_default();
        value.extend_from_slice(tail);
        self.set(key, &value, Expiry::Keep)?;
        Ok(value.len())
    }

    /// Removes `key`; whether it was there.
    ///
    /// # Errors
    /// The key is a join's output; or the old value must be loaded first.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, Stop> {
        Ok(self.keys.remove(key).is_some())
    }

    /// Sets or clears the expiry of `key`; whether the key is there.
    /// A moment that has passed removes the key.
    ///
    /// # Errors
    /// The key is a join's output.
    pub fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        match self.keys.get_mut(key) {
            Some((_, kept)) => *kept = at,
            None => return Ok(false),
        }
        if at.is_some_and(|at| at <= self.now) {
            self.keys.remove(key);
        }
        Ok(true)
    }

    /// When `key` expires: `None` if there is no such key, `Some(None)` if it never does.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        Ok(self.keys.get(key).map(|(_, at)| *at))
    }

    /// Calls `each` with the pairs of `[first, last)` (an empty `last`: to the end) in order,
    /// and gives their number. Nothing is called when the read must wait.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn range(
        &mut self,
        first: &[u8],
        last: &[u8],
        options: RangeOptions,
        each: &mut dyn FnMut(&[u8], Value<'_>),
    ) -> Result<u64, Stop> {
        let range = KeyRange::new(first, last);
        let mut found: Vec<_> = self.keys.iter().filter(|(key, _)| range.contains(key)).collect();
        if options.reverse {
            found.reverse();
        }
        found.truncate(options.limit.unwrap_or(u64::MAX) as usize);
        for (key, (value, _)) in &found {
            each(key, Value::of(value));
        }
        Ok(found.len() as u64)
    }

    /// Removes the base keys of `[first, last)` (an empty `last`: to the end) and gives their
    /// number. Join outputs in the range stay, as long as their sources do.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        let range = KeyRange::new(first, last);
        let before = self.keys.len();
        self.keys.retain(|key, _| !range.contains(key));
        Ok((before - self.keys.len()) as u64)
    }

    /// Keys stored or materialized now.
    #[must_use]
    pub fn key_count(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Some stored key, chosen by the random number `draw`; `None` where there is none.
    #[must_use]
    pub fn random_key(&self, draw: u64) -> Option<Vec<u8>> {
        let count = self.key_count();
        (count > 0).then(|| self.keys.keys().nth((draw % count) as usize).cloned()).flatten()
    }

    /// Calls `each` with about `count` stored or materialized keys that follow `cursor` (empty:
    /// from the start) and gives the cursor to continue from (empty: that was all). Keys that
    /// stay throughout a scan are given exactly once. Computes nothing.
    pub fn scan(&self, cursor: &[u8], count: usize, each: &mut dyn FnMut(&[u8])) -> Vec<u8> {
        let mut rest = self.keys.range(cursor.to_vec()..);
        for (key, _) in rest.by_ref().take(count) {
            each(key);
        }
        rest.next().map(|(key, _)| key.clone()).unwrap_or_default()
    }

    /// Removes all keys; joins and tables stay.
    pub fn flush(&mut self) {
        self.keys.clear();
    }

    /// Starts counting the changes of `key` for an optimistic transaction. Each call is
    /// undone by one [`Engine::unwatch`].
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn watch(&mut self, _key: &[u8]) -> Result<u64, Stop> {
        Ok(0)
    }

    /// The change count of a watched `key`: any change since [`Engine::watch`] makes it differ.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn watched(&mut self, _key: &[u8]) -> Result<u64, Stop> {
        Ok(0)
    }

    /// Ends what one [`Engine::watch`] began.
    pub fn unwatch(&mut self, _key: &[u8]) {}

    /// Installs a join under `name`; with `replace`, in place of one of that name.
    ///
    /// # Errors
    /// The text is no join, or the join cannot be accepted; the error says why and where.
    pub fn join_add(
        &mut self,
        _name: &str,
        _text: &str,
        _replace: bool,
    ) -> Result<JoinInstalled, EngineError> {
        Err(EngineError::Refused(String::from("joins are not there yet")))
    }

    /// Drops a join and what it materialized.
    ///
    /// # Errors
    /// No join has this name, or a push join reads its output in a way that forbids it.
    pub fn join_drop(&mut self, name: &str) -> Result<(), EngineError> {
        Err(EngineError::NoSuchJoin(String::from(name)))
    }

    /// The installed joins, in the order of their installation.
    #[must_use]
    pub fn joins(&self) -> Vec<JoinReport> {
        Vec::new()
    }

    /// Declares or changes a table (`name` without a `|`; empty: the table named by nothing,
    /// whose keys start with `|`). Regroups its keys where the boundary changes.
    ///
    /// # Errors
    /// The name or an option cannot be accepted.
    pub fn table_set(&mut self, _name: &[u8], _options: &TableOptions) -> Result<(), EngineError> {
        Ok(())
    }

    /// The tables that exist, the unnamed one included, in order of their names.
    #[must_use]
    pub fn tables(&self) -> Vec<TableReport> {
        Vec::new()
    }

    /// Says how the answer for `range` comes about, how fresh it is and what it costs.
    /// Computes nothing and changes nothing.
    #[must_use]
    pub fn explain(&self, _range: &KeyRange) -> Vec<ExplainLine> {
        Vec::new()
    }

    /// Recomputes `range` from its sources and compares with what a read gives; the first
    /// `most` differences. Never changes data.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn verify(&mut self, _range: &KeyRange, _most: usize) -> Result<Vec<Difference>, Stop> {
        Ok(Vec::new())
    }

    /// Sizes and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { keys: self.key_count(), ..Stats::default() }
    }

    /// Sets the counters of work back to zero.
    pub fn reset_counters(&mut self) {}

    /// The answer to [`Effect::Load`]: the pairs of its range as of `position`, or why not.
    pub fn loaded(&mut self, _fetch: FetchId, _answer: Result<Loaded, String>) {}

    /// Changes at a source, in its order. Those outside followed ranges are ignored.
    pub fn changed(&mut self, _source: &str, _changes: &[Change]) {}

    /// Takes what the engine asks of the world since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        Vec::new()
    }
}
