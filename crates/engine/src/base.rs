//! Base data: the one way by which a base key gets a value or loses it.
//!
//! What must follow a change is done here, for all who change base keys, and always in this order: flows take note,
//! marks are set, the embedded store is told, the value is stored, who watches the key and who follows its range is told,
//! joins are maintained, and the expiry is set. What of this applies is said by the change's origin.
//!
//! Two things pass by: where a stored value lies may change (cells, spilled values, compaction) without the
//! value changing, and [`Engine::flush`] empties everything at once.

use crate::cells::Change;
use crate::engine::Engine;
use crate::handles::Handle;
use crate::noted::NotedChange;
use crate::report::Expiry;
use headwater_base::Millis;
use headwater_pool::ValueRef;
use headwater_store::TableId;

/// Who gives a base key its value, which says who hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A client, a function or a flow: everybody hears of it, and the embedded store is told.
    Client,
    /// Who keeps the key (a source, or its home until now): its flows and its store know of it.
    Keeper,
    /// The key has had the value all along, which comes into memory: who watches it is not told.
    Load,
}

/// A value that a base key is given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewValue<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// What is in the pool; one reference is taken over.
    Held(ValueRef),
    /// What the key holds already, and was changed in its place where no join reads it.
    InPlace(ValueRef),
}

/// What a base key is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put<'a> {
    pub(crate) value: NewValue<'a>,
    pub(crate) expiry: Expiry,
    /// The client's flags; `None`: those that the key has.
    pub(crate) flags: Option<u32>,
    pub(crate) origin: Origin,
}

impl<'a> Put<'a> {
    /// A client's change of a part of a value: expiry and flags stay.
    pub(crate) fn rewritten(value: NewValue<'a>) -> Self {
        Self { value, expiry: Expiry::Keep, flags: None, origin: Origin::Client }
    }

    /// A value from whoever keeps the key.
    pub(crate) fn from_keeper(value: ValueRef, expires: Option<Millis>, flags: u32) -> Self {
        let expiry = expires.map_or(Expiry::Never, Expiry::At);
        let value = NewValue::Held(value);
        Self { value, expiry, flags: Some(flags), origin: Origin::Keeper }
    }

    /// A value that comes into memory.
    pub(crate) fn loaded(value: ValueRef, expires: Option<Millis>, flags: u32) -> Self {
        Self { origin: Origin::Load, ..Self::from_keeper(value, expires, flags) }
    }
}

/// Why a base key goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// A client, a function or a flow removed it.
    Deleted,
    /// Its time is over.
    Expired,
    /// Its range was removed, as one step of which all were told who are to hear of it.
    WithRange,
    /// Who keeps it removed it.
    ByKeeper,
    /// Memory had no room for it, or its spilled value is lost.
    Evicted,
}

impl Engine {
    /// Gives a base key a value.
    #[inline]
    pub(crate) fn put(&mut self, table: TableId, key: &[u8], put: Put<'_>) {
        let Put { value, expiry, flags, origin } = put;
        let is_client = origin == Origin::Client;
        if is_client {
            self.never_end();
        }
        // Its table may have gone with what it held.
        let table =
            if is_client && self.remove_dead(key) { self.store.table_for(key) } else { table };
        self.base.removals.spare(key);
        let noted = is_client && self.notifications.events.is_on();
        let is_new = noted && self.store.table(table).get(key).is_none();
        self.note_in_the_way(table, key);
        let kept = is_client && self.writes_kept(table);
        if is_client && self.notes(table) {
            match value {
                NewValue::Bytes(bytes) => self.note_set(table, key, bytes),
                NewValue::Held(value) | NewValue::InPlace(value) if !value.is_handle() => {
                    self.note_value(table, key, value);
                }
                // Streams are not noted.
                NewValue::Held(_) | NewValue::InPlace(_) => {}
            }
        }
        match (origin, flags) {
            (Origin::Load, None | Some(0)) => {}
            (Origin::Load, Some(flags)) => self.notifications.marks.loaded(key, flags),
            (_, flags) => self.notifications.marks.written(key, flags),
        }
        let told = kept.then_some(expiry);
        match value {
            // Where no join reads the table, nobody asks for the old value.
            NewValue::Bytes(bytes)
                if !kept && !self.views.has_readers(table) && self.replace(table, key, bytes) => {}
            NewValue::Bytes(bytes) => {
                let value = self.store.pool.insert(bytes);
                self.put_held(table, key, value, told, origin);
            }
            NewValue::Held(value) => {
                self.put_held(table, key, value, told, origin);
            }
            NewValue::InPlace(value) => {
                self.tell_keeper(table, key, value, told);
                self.notifications.watches.note(key);
                if self.is_followed(table) {
                    self.tell_set(key, value);
                }
            }
        }
        match expiry {
            Expiry::Keep => {}
            Expiry::Never if self.base.expiries.len() == 0 => {}
            Expiry::Never => self.base.expiries.set(key, None),
            Expiry::At(at) if at <= self.now => {
                let before = self.notifications.events.len();
                self.take(table, key, Gone::Deleted);
                if is_new {
                    // Nobody has seen it.
                    self.notifications.events.cut(before);
                }
                return;
            }
            Expiry::At(at) => self.base.expiries.set(key, Some(at)),
        }
        if noted {
            self.notifications.events.wrote(key, is_new, expiry);
        }
    }

    /// Tells the embedded store what a key is about to hold, where it keeps the key and is to hear of it.
    #[inline]
    fn tell_keeper(&mut self, table: TableId, key: &[u8], value: ValueRef, kept: Option<Expiry>) {
        let expires = match kept {
            None => return,
            Some(Expiry::Keep) => self.base.expiries.get(key),
            Some(Expiry::Never) => None,
            Some(Expiry::At(at)) => Some(at),
        };
        self.tell_kept(table, key, value, expires);
    }

    fn put_held(
        &mut self,
        table: TableId,
        key: &[u8],
        value: ValueRef,
        kept: Option<Expiry>,
        origin: Origin,
    ) {
        if kept.is_some() {
            self.erase_replaced_stream(table, key, value);
        }
        self.tell_keeper(table, key, value, kept);
        if origin != Origin::Load {
            self.notifications.watches.note(key);
        }
        self.save_pair(table, key);
        let old = self.store.insert(table, key, value);
        self.note_written(table, key, old.is_none());
        if self.is_followed(table) {
            self.tell_set(key, value);
        }
        if self.views.has_readers(table) {
            let change = self.replaced((table, key), old, value);
            self.notify(table, key, change);
        }
        if let Some(old) = old {
            self.drop_value(old);
        }
    }

    /// Gives a base key that has a value another one, in the old one's place if possible; whether
    /// it was done. No reader is told.
    #[inline]
    fn replace(&mut self, id: TableId, key: &[u8], bytes: &[u8]) -> bool {
        self.save_pair(id, key);
        let (table, pool) = self.store.table_mut(id);
        let is_followed = table.is_marked();
        let replaced = table.replace(pool, key, bytes, |heat| self.memory.used_again(heat));
        if replaced {
            self.notifications.watches.note(key);
            if is_followed && let Some(value) = self.store.table(id).get(key) {
                self.tell_set(key, value);
            }
        }
        replaced
    }

    /// Takes a base key away, with its expiry and its mark; whether it was there.
    pub(crate) fn take(&mut self, table: TableId, key: &[u8], gone: Gone) -> bool {
        if self.base.expiries.len() > 0 {
            self.base.expiries.set(key, None);
        }
        let is_followed = self.is_followed(table);
        self.save_pair(table, key);
        let Some(old) = self.store.remove(table, key) else { return false };
        if self.notifications.events.is_on() {
            self.notifications.events.gone(key, gone);
        }
        match gone {
            Gone::Deleted => {
                self.never_end();
                self.note_gone(table, key, NotedChange::Delete);
            }
            Gone::Expired => self.note_gone(table, key, NotedChange::Expire),
            Gone::WithRange | Gone::ByKeeper | Gone::Evicted => {}
        }
        self.notifications.marks.written(key, Some(0));
        if matches!(gone, Gone::Deleted | Gone::Expired) && self.base.is_kept(table) {
            self.base.erase_kept(table, key);
        }
        if let Some(number) = Handle::stream(old)
            && self.base.streams.get(number).is_kept
        {
            self.base.erase_records(key, 0, None);
        }
        match gone {
            Gone::WithRange => self.notifications.watches.note_watched(key),
            Gone::Deleted | Gone::Expired | Gone::ByKeeper | Gone::Evicted => {
                self.notifications.watches.note(key);
            }
        }
        if is_followed {
            self.tell_gone(key);
        }
        if self.views.has_readers(table) {
            let was = self.store.pool.content(old);
            self.notify(table, key, Change::new(Some(was), None));
        }
        self.drop_value(old);
        true
    }

    /// Takes a base key out of memory, of which nobody is told: its range is said to be unknown. What keeps it
    /// `kept` keeps its flags as well.
    pub(crate) fn unload_key(&mut self, table: TableId, key: &[u8], kept: bool) {
        if self.base.expiries.len() > 0 {
            self.base.expiries.set(key, None);
        }
        self.save_pair(table, key);
        match self.store.remove(table, key) {
            Some(value) if kept && let Some(number) = Handle::stream(value) => {
                self.unload_stream(number);
            }
            Some(value) => self.drop_value(value),
            None => {}
        }
        if kept {
            self.notifications.marks.unloaded(key);
        } else {
            self.notifications.marks.written(key, Some(0));
        }
    }

    /// Gives back what a key held.
    #[inline]
    fn drop_value(&mut self, old: ValueRef) {
        match Handle::of(old) {
            Some(Handle::Stream(number)) => self.drop_stream(number),
            Some(Handle::Spilled(number)) => self.base.drop_spilled(number),
            None => self.store.pool.release(old),
        }
    }
}
