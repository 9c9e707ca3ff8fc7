//! When keys expire, and time, which is an input.
//!
//! Where very many keys expire at one moment they are removed in slices, a slice in each turn of the loop. Until then those that are
//! still stored are [dead](crate::dead).

use crate::base::Gone;
use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::report::Stop;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use hashbrown::HashTable;
use headwater_base::Millis;
use headwater_base::hash::Secret;

/// How often memory that values left goes back to the system, in milliseconds, and how much at
/// once: a few milliseconds' work at most.
const TRIM_EVERY: u64 = 1000;
const TRIM_BYTES: usize = 64 << 20;

/// The parts of the table of keys that expire. A table that is full doubles, within one write: a part of it is little, for the write and for
/// a bound of memory.
const PARTS: usize = 64;

/// A key that expires.
#[derive(Debug)]
struct Expiring {
    key: Rc<[u8]>,
    at: Millis,
}

/// When keys expire: by key, and in the order of their moments.
#[derive(Debug)]
pub(crate) struct Expiries {
    by_key: Vec<HashTable<Expiring>>,
    secret: Secret,
    order: BTreeSet<(Millis, Rc<[u8]>)>,
    /// There are keys whose time has come and which are still stored.
    pub(crate) overdue: bool,
    /// They stay until somebody looks at them.
    lazy: bool,
    /// None goes, and all are shown, since nothing can be recorded now.
    held: bool,
    /// The last moment of which the embedded store knows that keys were gone, since it was over for them.
    noted: Millis,
}

impl Expiries {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            by_key: (0..PARTS).map(|_| HashTable::new()).collect(),
            secret,
            order: BTreeSet::new(),
            overdue: false,
            lazy: false,
            held: false,
            noted: Millis(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Millis> {
        if self.order.is_empty() {
            return None;
        }
        let (part, hash) = self.place(key);
        self.by_key[part].find(hash, |known| *known.key == *key).map(|known| known.at)
    }

    fn place(&self, key: &[u8]) -> (usize, u64) {
        let hash = self.secret.hash(key);
        // The bits in the middle: the table uses those at both ends.
        ((hash >> 32) as usize % PARTS, hash)
    }

    fn take(&mut self, key: &[u8]) -> Option<Expiring> {
        let (part, hash) = self.place(key);
        let found = self.by_key[part].find_entry(hash, |known| *known.key == *key);
        found.ok().map(|entry| entry.remove().0)
    }

    pub(crate) fn set(&mut self, key: &[u8], at: Option<Millis>) {
        if !self.order.is_empty()
            && let Some(Expiring { key, at }) = self.take(key)
        {
            self.order.remove(&(at, key));
        }
        if let Some(at) = at {
            let (part, hash) = self.place(key);
            let (key, secret): (Rc<[u8]>, _) = (key.into(), &self.secret);
            let known = Expiring { key: key.clone(), at };
            self.by_key[part].insert_unique(hash, known, |known| secret.hash(&known.key));
            self.order.insert((at, key));
        }
    }

    /// Forgets up to `most` keys, of which nobody asks any more; how many there were.
    pub(crate) fn dissolve(&mut self, most: usize) -> usize {
        let mut done = 0;
        while done < most
            && let Some((_, key)) = self.order.pop_last()
        {
            self.take(&key);
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
        self.order.first().filter(|(at, _)| *at <= now && !self.held).map(|(_, key)| key.clone())
    }

    /// The first moment at which a key expires.
    pub(crate) fn next(&self) -> Option<Millis> {
        self.order.first().map(|(at, _)| *at)
    }

    pub(crate) fn bytes(&self) -> usize {
        // A map slot, a share of a tree node, and the text with its counts.
        let slots: usize = self.by_key.iter().map(HashTable::capacity).sum();
        slots * (size_of::<Expiring>() + 1) + self.order.len() * (40 + 32)
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
        if self.base.expiries.lazy {
            self.base.expiries.overdue = self.base.expiries.due(now).is_some();
        } else {
            self.expire_slice();
        }
    }

    /// Says whether keys go when their time is over (the default), or only when somebody looks at them, or at what may
    /// depend on them. For tests.
    pub fn set_active_expiry(&mut self, on: bool) {
        self.base.expiries.lazy = !on;
    }

    /// Says whether keys whose time comes from now on stay, and are shown, until this is called again: an expiry must be recorded before it is
    /// shown, and that cannot be done now. It begins when those are gone whose time has come before.
    pub fn hold_expiries(&mut self, on: bool) {
        self.base.expiries.held = on && !self.base.expiries.overdue;
    }

    /// Removes keys whose time has come, and snapshots: as many as a slice has rows.
    pub(crate) fn expire_slice(&mut self) {
        let most = self.reads.slices.rows().unwrap_or(usize::MAX);
        let (mut done, mut kept) = (0, false);
        while let Some(key) = self.base.expiries.due(self.now)
            && done < most
        {
            // What was removed before its time came has not expired.
            if self.is_being_removed(&key) {
                self.take_removed(&key);
            } else {
                kept |= self.store.table_of(&key).is_some_and(|table| self.base.is_kept(table));
                self.expire(&key);
            }
            done += 1;
        }
        self.base.expiries.overdue = self.base.expiries.due(self.now).is_some();
        if kept || self.base.expiries.overdue {
            self.note_time();
        }
        // Nobody reads a snapshot whose time is over, whether it is there or not.
        while self.is_snapshot_due() && done < most {
            if let Some(&(_, id)) = self.views.snapshots.first() {
                done += (self.views.statuses.get(id).rows as usize).max(1);
                self.discard(id);
            }
        }
    }

    /// Has the embedded store know that keys are shown no more from this moment on. Some of them are still there: they are
    /// hidden, and whoever has the store next hides them as well.
    pub(crate) fn note_time(&mut self) {
        if self.base.expiries.noted < self.now {
            self.base.expiries.noted = self.now;
            self.base.tell_time(self.now);
        }
    }

    fn is_snapshot_due(&self) -> bool {
        self.views.snapshots.first().is_some_and(|&(at, _)| at <= self.now)
    }

    /// Whether there is something whose time has come.
    pub(crate) fn is_late(&self) -> bool {
        (self.base.expiries.overdue && !self.base.expiries.lazy) || self.is_snapshot_due()
    }

    /// Whether the time of a key has come that is still there.
    #[inline]
    pub(crate) fn is_overdue(&self, key: &[u8]) -> bool {
        self.base.expiries.overdue && self.base.expiries.get(key).is_some_and(|at| at <= self.now)
    }

    /// Removes a key whose time has come.
    pub(crate) fn expire(&mut self, key: &[u8]) {
        self.counters.expired += 1;
        if self.base.expiries.lazy {
            self.note_time();
        }
        match self.store.table_of(key) {
            Some(table) => _ = self.take(table, key, Gone::Expired),
            None => self.base.expiries.set(key, None),
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
        let snapshot = self.views.snapshots.first().map(|&(at, _)| at);
        let expiries = &self.base.expiries;
        let expiry = expiries.next().filter(|_| !(expiries.lazy || expiries.held));
        expiry.into_iter().chain(snapshot).min()
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
            if self.notifications.events.is_on() {
                self.notifications.events.expiry_set(key, self.base.expiries.get(key), at);
            }
            self.base.expiries.set(key, at);
            self.notifications.watches.note(key);
            if self.base.is_kept(table) {
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
        Ok(there.then(|| self.base.expiries.get(key)))
    }
}

impl BaseData {
    /// Whether keys whose time has come stay until somebody looks at them.
    pub(crate) fn expires_lazily(&self) -> bool {
        self.expiries.lazy
    }
}

#[cfg(test)]
mod grown {
    use super::Expiries;
    use headwater_base::Millis;
    use headwater_base::hash::Secret;

    /// A table that doubles as a whole takes a large part of a memory bound in one write.
    #[test]
    fn what_keys_that_expire_take_grows_little_by_little() {
        let mut expiries = Expiries::new(Secret::default());
        let (mut before, mut most) = (0, 0);
        for number in 0..100_000_u64 {
            expiries.set(&number.to_be_bytes(), Some(Millis(number)));
            most = most.max(expiries.bytes() - before);
            before = expiries.bytes();
        }
        assert!(most < before / 50, "{most} of {before} bytes at once");
        for number in 0..100_000_u64 {
            assert_eq!(expiries.get(&number.to_be_bytes()), Some(Millis(number)));
            expiries.set(&number.to_be_bytes(), None);
        }
        assert_eq!((expiries.len(), expiries.next()), (0, None));
    }
}
