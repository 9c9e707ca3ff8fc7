//! When keys expire, and time, which is an input.
//!
//! Where very many keys expire at one moment they are removed in slices, a slice in each turn of the loop. Until then those that are
//! still stored are [dead](crate::dead).

use crate::base::Gone;
use crate::engine::Engine;
use crate::report::Stop;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use hashbrown::HashMap;
use headwater_base::Millis;
use headwater_base::hash::{KeyHashBuilder, Secret};

/// How often memory that values left goes back to the system, in milliseconds, and how much at
/// once: a few milliseconds' work at most.
const TRIM_EVERY: u64 = 1000;
const TRIM_BYTES: usize = 64 << 20;

/// When keys expire: by key, and in the order of their moments.
#[derive(Debug)]
pub(crate) struct Expiries {
    by_key: HashMap<Rc<[u8]>, Millis, KeyHashBuilder>,
    order: BTreeSet<(Millis, Rc<[u8]>)>,
    /// There are keys whose time has come and which are still stored.
    pub(crate) overdue: bool,
}

impl Expiries {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            by_key: HashMap::with_hasher(KeyHashBuilder::new(secret)),
            order: BTreeSet::new(),
            overdue: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Millis> {
        if self.by_key.is_empty() { None } else { self.by_key.get(key).copied() }
    }

    pub(crate) fn set(&mut self, key: &[u8], at: Option<Millis>) {
        if !self.by_key.is_empty()
            && let Some((key, old)) = self.by_key.remove_entry(key)
        {
            self.order.remove(&(old, key));
        }
        if let Some(at) = at {
            let key: Rc<[u8]> = key.into();
            self.by_key.insert(key.clone(), at);
            self.order.insert((at, key));
        }
    }

    /// Forgets up to `most` keys, of which nobody asks any more; how many there were.
    pub(crate) fn dissolve(&mut self, most: usize) -> usize {
        let mut done = 0;
        while done < most
            && let Some((_, key)) = self.order.pop_last()
        {
            self.by_key.remove(&key);
            done += 1;
        }
        done
    }

    /// The keys that expire, the first one first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &[u8]> {
        self.order.iter().map(|(_, key)| &**key)
    }

    /// The next key whose time has come.
    fn due(&self, now: Millis) -> Option<Rc<[u8]>> {
        self.order.first().filter(|(at, _)| *at <= now).map(|(_, key)| key.clone())
    }

    /// The first moment at which a key expires.
    pub(crate) fn next(&self) -> Option<Millis> {
        self.order.first().map(|(at, _)| *at)
    }

    pub(crate) fn bytes(&self) -> usize {
        // A map slot, a share of a tree node, and the text with its counts.
        self.by_key.capacity() * 25 + self.order.len() * (40 + 32)
    }
}

impl Engine {
    /// Moves time to `now`: keys whose time has come are removed, in every view.
    /// Time that goes backwards is ignored.
    pub fn advance(&mut self, now: Millis) {
        if now <= self.now {
            return;
        }
        if now.0 / TRIM_EVERY > self.now.0 / TRIM_EVERY {
            self.store.pool.trim(TRIM_BYTES);
        }
        self.now = now;
        self.expire_slice();
    }

    /// Removes keys whose time has come, and snapshots: as many as a slice has rows.
    pub(crate) fn expire_slice(&mut self) {
        let most = self.slices.rows().unwrap_or(usize::MAX);
        let mut done = 0;
        while let Some(key) = self.expiries.due(self.now)
            && done < most
        {
            // What was removed before its time came has not expired.
            if self.is_being_removed(&key) {
                self.take_removed(&key);
            } else {
                self.expire(&key);
            }
            done += 1;
        }
        self.expiries.overdue = self.expiries.due(self.now).is_some();
        // Nobody reads a snapshot whose time is over, whether it is there or not.
        while self.is_snapshot_due() && done < most {
            if let Some(&(_, id)) = self.snapshots.first() {
                done += (self.statuses.get(id).rows as usize).max(1);
                self.discard(id);
            }
        }
    }

    fn is_snapshot_due(&self) -> bool {
        self.snapshots.first().is_some_and(|&(at, _)| at <= self.now)
    }

    /// Whether there is something whose time has come.
    pub(crate) fn is_late(&self) -> bool {
        self.expiries.overdue || self.is_snapshot_due()
    }

    /// Whether the time of a key has come that is still there.
    #[inline]
    pub(crate) fn is_overdue(&self, key: &[u8]) -> bool {
        self.expiries.overdue && self.expiries.get(key).is_some_and(|at| at <= self.now)
    }

    /// Removes a key whose time has come.
    pub(crate) fn expire(&mut self, key: &[u8]) {
        self.counters.expired += 1;
        match self.store.table_of(key) {
            Some(table) => _ = self.take(table, key, Gone::Expired),
            None => self.expiries.set(key, None),
        }
    }

    /// How many keys have expired.
    #[must_use]
    pub fn expired_count(&self) -> u64 {
        self.counters.expired
    }

    /// The next moment at which [`Engine::advance`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        let snapshot = self.snapshots.first().map(|&(at, _)| at);
        self.expiries.next().into_iter().chain(snapshot).min()
    }

    /// Sets or clears the expiry of `key`; whether the key is there.
    /// A moment that has passed removes the key.
    ///
    /// # Errors
    /// The key is a join's output.
    pub fn set_expiry(&mut self, key: &[u8], at: Option<Millis>) -> Result<bool, Stop> {
        self.check_owner(key)?;
        self.know(key)?;
        let Some(table) = self.store.table_of(key) else { return Ok(false) };
        let Some(value) = self.store.table(table).get(key) else { return Ok(false) };
        let passed = at.is_some_and(|at| at <= self.now);
        if passed {
            self.take(table, key, Gone::Deleted);
        } else {
            self.expiries.set(key, at);
            self.watches.note(key);
            if self.is_kept(table) {
                self.tell_kept(table, key, value, at);
            }
        }
        Ok(true)
    }

    /// When `key` expires: `None` if there is no such key, `Some(None)` if it never does.
    ///
    /// # Errors
    /// As for [`Engine::get`].
    pub fn expiry(&mut self, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
        let there = self.find(key)?.is_some();
        Ok(there.then(|| self.expiries.get(key)))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Engine, Expiry, Settings};
    use headwater_base::Millis;

    #[test]
    fn memory_that_keys_left_goes_back_as_time_passes() {
        let mut engine = Engine::new(Settings::default());
        let key = |at: u64| alloc::format!("{at}").into_bytes();
        for at in 0..100 {
            engine.set(&key(at), &[b'x'; 50_000], Expiry::Never).unwrap();
        }
        let full = engine.store.pool.allocated();
        (0..100).for_each(|at| assert!(engine.remove(&key(at)).unwrap()));
        (1..=3).for_each(|second| engine.advance(Millis(second * 1000)));
        assert!(engine.store.pool.allocated() < full / 10);
    }
}
