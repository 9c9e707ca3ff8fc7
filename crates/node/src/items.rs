//! Execution of what clients of caches ask: items, their versions and their leases.
//!
//! # Invariants
//! - N3. What can refuse or wait comes before the first change, so that running it again is running
//!   it once.

use crate::node::{Node, check_writable};
use crate::numbers::gather;
use headwater_base::Millis;
use headwater_command::items::{
    Count, Counted, Fetch, Item, Lease, Remove, Seen, Store, StoreMode, Written,
};
use headwater_command::{GetExpiry, SetExpiry, number};
use headwater_engine::{Engine, EngineError, Expiry, Mark, Stop, Value, WriteKind};

/// Longer values are not the text of a number.
const NUMBER_TEXT_MAX: usize = 64;

/// The expiry of a write as the engine takes it.
fn engine_expiry(expiry: SetExpiry, now: Millis) -> Expiry {
    match expiry {
        SetExpiry::Never => Expiry::Never,
        SetExpiry::Keep => Expiry::Keep,
        SetExpiry::Deadline(deadline) => Expiry::At(deadline.moment(now)),
    }
}

/// When an item expires that would expire `at`, after `expiry` is put into force.
fn changed(at: Option<Millis>, expiry: GetExpiry, now: Millis) -> Option<Millis> {
    match expiry {
        GetExpiry::Keep => at,
        GetExpiry::Persist => None,
        GetExpiry::Deadline(deadline) => Some(deadline.moment(now)),
    }
}

/// When the item of `key` expires; `None` where there is none. A stream is no item.
fn expiry_of(engine: &mut Engine, key: &[u8]) -> Result<Option<Option<Millis>>, Stop> {
    let found = engine.expiry(key)?;
    Ok(found.filter(|_| !engine.is_stream(key)))
}

/// Puts the expiry of an item into force.
fn put_expiry(engine: &mut Engine, key: &[u8], expiry: GetExpiry) -> Result<(), Stop> {
    if expiry != GetExpiry::Keep {
        let at = changed(None, expiry, engine.now());
        engine.set_expiry(key, at)?;
    }
    Ok(())
}

/// Whether the version that a client has seen is the item's.
fn is_seen(engine: &Engine, key: &[u8], version: u64) -> bool {
    engine.mark(key).version() == Some(version)
}

/// Gives an item that was just written its version; which one, if that is `wanted`.
fn number_written(engine: &mut Engine, key: &[u8], give: Option<u64>, wanted: bool) -> u64 {
    match give {
        Some(version) => {
            engine.set_version(key, Some(version));
            version
        }
        None if wanted => engine.version(key),
        None => 0,
    }
}

fn now_seconds(engine: &Engine) -> u32 {
    (engine.now().0 / 1000) as u32
}

impl Node {
    /// Has what found a flow's backlog full wait for it, where the flow says so.
    #[cold]
    fn wait_for_flows(&mut self, stop: Stop) -> Stop {
        match stop {
            Stop::Failed(EngineError::Busy { may_wait: true, .. }) => Stop::Wait(self.block()),
            stop => stop,
        }
    }

    /// Runs until there is memory for it, or no more can be made.
    #[inline]
    pub(crate) fn with_room<T>(
        &mut self,
        mut run: impl FnMut(&mut Self) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        loop {
            match run(self) {
                Err(Stop::Failed(EngineError::OutOfMemory)) if self.engine.make_room_again() => {}
                ended => return ended.map_err(|stop| self.wait_for_flows(stop)),
            }
        }
    }

    /// Gives `answer` the value of `key` with its flags.
    ///
    /// # Errors
    /// Data must be loaded first, or cannot be; nothing was answered.
    #[inline]
    pub fn item(
        &mut self,
        key: &[u8],
        answer: impl FnOnce(Option<(&Value<'_>, u32)>),
    ) -> Result<(), Stop> {
        let flags = self.engine.mark(key).flags;
        loop {
            let stop = match self.engine.get(key) {
                Ok(Some(value)) => {
                    answer(Some((&value, flags)));
                    return Ok(());
                }
                Ok(None) | Err(Stop::Failed(EngineError::WrongType)) => {
                    answer(None);
                    return Ok(());
                }
                Err(stop) => stop,
            };
            let lacking = matches!(stop, Stop::Failed(EngineError::OutOfMemory));
            if !(lacking && self.engine.make_room_again()) {
                return Err(stop);
            }
        }
    }

    /// Gives `answer` an item, and changes what reading it is to change.
    ///
    /// # Errors
    /// Data must be loaded first, or cannot be; or clients may not change the key. Nothing was
    /// answered.
    pub fn fetch(
        &mut self,
        fetch: &Fetch<'_>,
        answer: impl FnOnce(Option<&Item<'_>>),
    ) -> Result<(), Stop> {
        let head = self.with_room(|node| look(&mut node.engine, fetch))?;
        let Some(head) = head else {
            answer(None);
            return Ok(());
        };
        match self.engine.get(fetch.key) {
            Ok(Some(value)) => answer(Some(&Item { value, ..head })),
            // It was there a moment ago.
            _ => answer(Some(&head)),
        }
        // The last thing: it may remove the item.
        if head.lease != Lease::Won || fetch.vivify.is_none() {
            put_expiry(&mut self.engine, fetch.key, fetch.expiry)?;
        }
        Ok(())
    }

    /// Changes when an item expires; whether it is there.
    ///
    /// # Errors
    /// As for [`Node::fetch`].
    pub fn touch(&mut self, key: &[u8], expiry: GetExpiry) -> Result<bool, Stop> {
        self.with_room(|node| {
            check_writable(&node.engine, key)?;
            let there = expiry_of(&mut node.engine, key)?.is_some();
            if there {
                put_expiry(&mut node.engine, key, expiry)?;
            }
            Ok(there)
        })
    }

    /// Gives an item a value.
    ///
    /// # Errors
    /// Data must be loaded first, or cannot be; clients may not change the key; the value is too
    /// long. Nothing has changed.
    #[inline]
    pub fn store(&mut self, store: &Store<'_>) -> Result<Written, Stop> {
        if store.mode == StoreMode::Set && store.seen.is_none() {
            let expiry = engine_expiry(store.expiry, self.engine.now());
            return match self.engine.set_flagged(store.key, store.value, expiry, store.flags) {
                Ok(()) => Ok(self.written(store, expiry)),
                Err(error) => Err(self.wait_for_flows(error.into())),
            };
        }
        self.with_room(|node| node.store_if(store))
    }

    /// What is told of a value that was stored.
    #[inline]
    fn written(&mut self, store: &Store<'_>, expiry: Expiry) -> Written {
        let gone = matches!(expiry, Expiry::At(at) if at <= self.engine.now());
        if gone || !store.version && store.give.is_none() {
            return Written::Done(0);
        }
        Written::Done(number_written(&mut self.engine, store.key, store.give, store.version))
    }

    fn store_if(&mut self, store: &Store<'_>) -> Result<Written, Stop> {
        let Store { key, value, mode, .. } = *store;
        check_writable(&self.engine, key)?;
        let there = expiry_of(&mut self.engine, key)?.is_some();
        let mut expiry = engine_expiry(store.expiry, self.engine.now());
        let mut stale = None;
        if let Some(seen) = store.seen.filter(|_| mode != StoreMode::Add) {
            if there {
                let Some(mark) = self.compare(key, seen) else { return Ok(Written::Changed) };
                if mark.stale {
                    stale = Some(mark);
                    expiry = Expiry::Keep;
                }
            } else if !matches!(mode, StoreMode::Append | StoreMode::Prepend) {
                return Ok(Written::Missing);
            }
        }
        match mode {
            StoreMode::Add if there => return Ok(Written::Refused),
            StoreMode::Replace if !there => return Ok(Written::Refused),
            StoreMode::Append | StoreMode::Prepend => {
                let done = match store.vivify {
                    _ if there => self.extend(store)?,
                    Some(vivify) => {
                        expiry = engine_expiry(vivify, self.engine.now());
                        self.engine.set_flagged(key, value, expiry, store.flags)?;
                        true
                    }
                    None => false,
                };
                if !done {
                    return Ok(Written::Refused);
                }
                if there {
                    expiry = Expiry::Keep;
                }
            }
            _ => self.engine.set_flagged(key, value, expiry, store.flags)?,
        }
        let written = self.written(store, expiry);
        if let Some(old) = stale {
            self.engine.set_mark(key, |mark| {
                mark.stale = true;
                mark.leased = old.leased;
            });
        }
        Ok(written)
    }

    /// Whether a client that has seen this may write: the mark that the item keeps, which is stale
    /// where what was seen is older than the item.
    fn compare(&mut self, key: &[u8], seen: Seen) -> Option<Mark> {
        if is_seen(&self.engine, key, seen.version) {
            return Some(Mark::default());
        }
        let older = seen.or_newer && seen.version < self.engine.version(key);
        let mut mark = self.engine.mark(key);
        mark.stale = true;
        older.then_some(mark)
    }

    /// Puts bytes behind or before the value of an item; `false` where it would be too long.
    fn extend(&mut self, store: &Store<'_>) -> Result<bool, Stop> {
        let Store { key, value, mode, .. } = *store;
        let done = if mode == StoreMode::Append {
            self.engine.begin_writing(WriteKind::Append);
            let done = self.engine.append(key, value).map(drop);
            self.engine.begin_writing(WriteKind::Set);
            done
        } else {
            self.scratch.clear();
            self.scratch.extend_from_slice(value);
            let room = self.engine.limits().value_bytes_max.saturating_sub(value.len());
            let Some(old) = self.engine.get(key)?.filter(|old| old.len() <= room) else {
                return Ok(false);
            };
            old.write_to(&mut self.scratch);
            let done = self.engine.set(key, &self.scratch, Expiry::Keep).map_err(Stop::from);
            self.trim_scratch();
            done
        };
        match done {
            Err(Stop::Failed(EngineError::ValueTooLong { .. })) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Removes an item, or makes it stale.
    ///
    /// # Errors
    /// As for [`Node::fetch`].
    pub fn remove(&mut self, remove: &Remove<'_>) -> Result<Written, Stop> {
        self.with_room(|node| {
            let engine = &mut node.engine;
            let key = remove.key;
            check_writable(engine, key)?;
            if engine.expiry(key)?.is_none() {
                return Ok(Written::Missing);
            }
            if remove.seen.is_some_and(|seen| !is_seen(engine, key, seen)) {
                return Ok(Written::Changed);
            }
            if remove.stale.is_none() && !remove.value_only {
                engine.remove(key)?;
                return Ok(Written::Done(0));
            }
            if remove.value_only {
                engine.set_flagged(key, b"", Expiry::Keep, 0)?;
            }
            engine.set_version(key, remove.give);
            if let Some(expiry) = remove.stale {
                engine.set_mark(key, |mark| {
                    mark.stale = true;
                    mark.leased = false;
                });
                put_expiry(engine, key, expiry)?;
            }
            Ok(Written::Done(0))
        })
    }

    /// Adds to an item that is a number.
    ///
    /// # Errors
    /// As for [`Node::store`].
    pub fn count(&mut self, count: &Count<'_>) -> Result<Counted, Stop> {
        self.with_room(|node| count_in(&mut node.engine, count))
    }
}

/// Makes the changes that an answer depends on; the item but for its value, or `None` where it is
/// not there.
fn look(engine: &mut Engine, fetch: &Fetch<'_>) -> Result<Option<Item<'static>>, Stop> {
    let Fetch { key, .. } = *fetch;
    if fetch.expiry != GetExpiry::Keep {
        check_writable(engine, key)?;
    }
    let now = engine.now();
    let left = |at: Option<Millis>| at.map(|at| at.since(now));
    let mut head = Item {
        value: Value::of(b""),
        flags: 0,
        version: 0,
        left_before: None,
        left: None,
        lease: Lease::Free,
        stale: false,
        read: false,
        idle_seconds: 0,
    };
    let Some(at) = expiry_of(engine, key)? else {
        let Some(expiry) = fetch.vivify else { return Ok(None) };
        check_writable(engine, key)?;
        let expiry = engine_expiry(expiry, now);
        engine.set_flagged(key, b"", expiry, 0)?;
        head.lease = Lease::Won;
        head.left = if let Expiry::At(at) = expiry { left(Some(at)) } else { None };
        head.left_before = head.left;
        if head.left != Some(0) {
            engine.set_mark(key, |mark| mark.leased = true);
            head.version = number_written(engine, key, None, fetch.version);
        }
        return Ok(Some(head));
    };
    let mark = engine.mark(key);
    head.flags = mark.flags;
    head.stale = mark.stale;
    head.left_before = left(at);
    head.left = left(changed(at, fetch.expiry, now));
    if fetch.version {
        head.version = engine.version(key);
    }
    let late = match (fetch.renew_within, head.left_before) {
        // In whole seconds, as it is told.
        (Some(within), Some(left)) => (left.div_ceil(1000) * 1000) as i64 <= within - 1000,
        _ => false,
    };
    if mark.leased {
        head.lease = Lease::Taken;
    } else if fetch.leases && (mark.stale || late) {
        head.lease = Lease::Won;
        engine.set_mark(key, |mark| mark.leased = true);
    }
    if fetch.uses || mark.tracked {
        let seconds = now_seconds(engine);
        head.read = mark.read;
        if mark.tracked {
            head.idle_seconds = seconds.saturating_sub(mark.used_seconds);
        }
        engine.set_mark(key, |mark| {
            if !fetch.untouched || !mark.tracked {
                mark.used_seconds = seconds;
            }
            mark.tracked = true;
            mark.read |= !fetch.untouched;
        });
    }
    Ok(Some(head))
}

fn count_in(engine: &mut Engine, count: &Count<'_>) -> Result<Counted, Stop> {
    let key = count.key;
    check_writable(engine, key)?;
    let now = engine.now();
    let left = |at: Option<Millis>| at.map(|at| at.since(now));
    let Some(at) = engine.expiry(key)? else {
        let Some((number, expiry)) = count.vivify else { return Ok(Counted::Missing) };
        let expiry = engine_expiry(expiry, now);
        engine.set_flagged(key, number::unsigned(number).as_bytes(), expiry, 0)?;
        let left = if let Expiry::At(at) = expiry { left(Some(at)) } else { None };
        let stays = left != Some(0);
        let version =
            if stays { number_written(engine, key, count.give, count.version) } else { 0 };
        return Ok(Counted::Done { number, version, left_before: left, left, made: true });
    };
    if count.seen.is_some_and(|seen| !is_seen(engine, key, seen)) {
        return Ok(Counted::Changed);
    }
    let mut room = [0; NUMBER_TEXT_MAX];
    let (old, length) = match engine.get(key)? {
        Some(value) => (gather(&value, &mut room).and_then(number::read_u64), value.len()),
        None => (None, 0),
    };
    let Some(old) = old else { return Ok(Counted::NotNumber) };
    let number = if count.down { old.saturating_sub(count.by) } else { old.wrapping_add(count.by) };
    let (text, before) = (number::unsigned(number), engine.mark(key));
    engine.begin_writing(WriteKind::Increment);
    let done = engine.set(key, text.as_bytes(), Expiry::Keep);
    engine.begin_writing(WriteKind::Set);
    done?;
    // As with memcached, the item is the same one while its number needs no more room; else it is a new one.
    if text.as_bytes().len() <= length && before != Mark::default() {
        engine.set_mark(key, |mark| {
            mark.stale = before.stale;
            mark.leased = before.leased;
            mark.tracked = before.tracked;
            mark.read = before.read;
            mark.used_seconds = before.used_seconds;
        });
    }
    let version = number_written(engine, key, count.give, count.version);
    put_expiry(engine, key, count.expiry)?;
    Ok(Counted::Done {
        number,
        version,
        left_before: left(at),
        left: left(changed(at, count.expiry, now)),
        made: false,
    })
}
