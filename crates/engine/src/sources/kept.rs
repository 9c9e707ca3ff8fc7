//! Tables that clients write and an embedded store keeps.
//!
//! Every write goes to the store as it is done, and into memory. What of it is in memory may go
//! at any time, since it can be loaded again. Loads of ranges are as from any source; a single
//! key that is in memory needs none (L3), so that keys that are read one by one are evicted one by
//! one, and no range is remembered for each.

use crate::base_data::BaseData;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::group_note::GroupNote;
use crate::handles::Handle;
use crate::loads::{Here, KeptReads, LoadedData, LoadedId, Provider};
use crate::report::{EngineError, Stop};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::key::SEPARATOR;
use headwater_base::source::{Attributes, BaseStore, FetchId, Position, StorePlace};
use headwater_base::stream_records::{STREAM_RECORDS, stream_records};
use headwater_base::{KeyRange, Millis};
use headwater_policy::Heat;
use headwater_pool::ValueRef;
use headwater_store::{Scan, Store, TableId};

/// What the embedded store is called where sources have names.
pub(crate) const KEPT: &str = "data";

/// Keys of a range that go at once.
const RUN_KEYS: usize = 64;

/// The embedded store, if there is one, and how far it has been written.
#[derive(Debug, Default)]
pub(crate) struct Persistence {
    store: Option<Box<dyn BaseStore>>,
    /// The last write of a partition's keys that were taken over and are not in memory yet.
    taken: Position,
    /// The last write of this shard.
    written: Position,
    /// Keys that a transaction under way has removed, so that they are known to be gone; `None`: there is none under way.
    gone: Option<BTreeSet<Vec<u8>>>,
}

impl Persistence {
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.store.is_some()
    }

    /// Whether the transaction under way has removed `key`.
    pub(crate) fn is_gone(&self, key: &[u8]) -> bool {
        self.gone.as_ref().is_some_and(|gone| gone.contains(key))
    }

    pub(crate) fn load(&mut self, fetch: FetchId, range: &KeyRange) {
        self.store.as_mut().expect("a kept table has a store").load(fetch, range);
    }

    /// Takes the store out for a while.
    pub(crate) fn take(&mut self) -> Option<Box<dyn BaseStore>> {
        self.store.take()
    }

    /// Puts it back.
    pub(crate) fn give_back(&mut self, store: Box<dyn BaseStore>) {
        self.store = Some(store);
    }

    /// Has the store keep a key that memory does not have yet.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], attributes: Attributes) {
        if let Some(store) = &mut self.store {
            self.taken = store.put(key, &mut core::iter::once(value), attributes);
        }
    }

    /// Has the store keep a key that is its own.
    pub(crate) fn write(&mut self, key: &[u8], value: &[u8]) {
        if let Some(store) = &mut self.store {
            self.written = store.put(key, &mut core::iter::once(value), Attributes::default());
        }
    }

    /// Has the store erase a range of keys, all of which are its own, or are in memory.
    pub(crate) fn erase(&mut self, range: &KeyRange) -> Option<Position> {
        let position = self.store.as_mut()?.remove_range(range);
        self.written = position;
        Some(position)
    }

    /// Whether the store surely holds no key of `range`.
    pub(crate) fn holds_nothing(&mut self, range: &KeyRange) -> bool {
        self.store.as_mut().is_none_or(|store| store.holds_nothing(range))
    }

    /// As [`BaseStore::reached`].
    pub(crate) fn reached(&self) -> Option<StorePlace> {
        self.store.as_ref()?.reached()
    }

    /// As [`BaseStore::written_since`].
    pub(crate) fn written_since(
        &mut self,
        place: StorePlace,
        range: &KeyRange,
    ) -> Option<Vec<Vec<u8>>> {
        self.store.as_mut()?.written_since(place, range)
    }

    /// Waits until the store has everything safe.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        self.store.as_mut().map_or(Ok(()), |store| store.settle())
    }
}

impl Engine {
    /// Sets the embedded store, which holds keys of `tables` (names; those with keys). It keeps tables with a name where
    /// [`TableOptions::keep`](crate::TableOptions::keep) does not say otherwise, and keys without a table where `unnamed`
    /// says so. To be called before anything else.
    ///
    /// # Errors
    /// A name cannot be a table's.
    pub fn set_base_store(
        &mut self,
        store: Box<dyn BaseStore>,
        tables: &[Vec<u8>],
        unnamed: bool,
    ) -> Result<(), EngineError> {
        self.base.loads.persistence = Persistence { store: Some(store), ..Persistence::default() };
        self.memory.begin_persistence();
        for name in tables {
            if STREAM_RECORDS.strip_suffix(&[SEPARATOR]) == Some(name) {
                continue;
            }
            let prefix = self.table_prefix(name)?;
            let table = self.store.table_for(&prefix);
            self.keep_table(table);
        }
        if unnamed {
            self.keep_table(Store::<GroupNote>::UNNAMED);
        }
        Ok(())
    }

    /// Whether there is an embedded store.
    #[must_use]
    pub fn has_base_store(&self) -> bool {
        self.base.loads.persistence.is_some()
    }

    /// A transaction begins: what it removes it need not look for again.
    pub fn begin_transaction(&mut self) {
        if self.base.loads.persistence.is_some() {
            self.base.loads.persistence.gone = Some(BTreeSet::new());
        }
    }

    /// It has ended.
    pub fn end_transaction(&mut self) {
        self.base.loads.persistence.gone = None;
    }

    /// The last write that the embedded store was given. An operation that waits has given it none.
    #[must_use]
    pub fn base_store_written(&self) -> Position {
        self.base.loads.persistence.written
    }

    /// Whether the table that is about to be written is kept.
    #[inline]
    pub(crate) fn writes_kept(&mut self, table: TableId) -> bool {
        self.base.loads.persistence.is_some() && self.adopt(table)
    }

    fn adopt(&mut self, table: TableId) -> bool {
        if let Some(data) = self.base.loads.own(table) {
            return data.is_kept();
        }
        // Keys without a table are kept from the start, or never.
        let is_unnamed = table == Store::<GroupNote>::UNNAMED;
        let is_refused =
            self.views.catalog.role(table).is_some_and(|role| role.keep == Some(false));
        if is_unnamed || is_refused {
            return false;
        }
        // What it holds already is no base key: those are told from the first one on.
        self.keep_table(table);
        true
    }

    /// Whether the embedded store may keep a key that is written.
    #[must_use]
    pub fn may_keep(&self, key: &[u8]) -> bool {
        if !self.base.loads.persistence.is_some() {
            return false;
        }
        match self.store.table_of(key) {
            Some(table) if self.base.loads.own(table).is_some() => self.base.has_kept(table),
            Some(table) => {
                let role = self.views.catalog.role(table);
                table != Store::<GroupNote>::UNNAMED && role.is_none_or(|it| it.keep != Some(false))
            }
            None => true,
        }
    }

    /// Has the embedded store keep a table.
    pub(crate) fn keep_table(&mut self, table: TableId) {
        let prefix = self.store.table(table).prefix().to_vec();
        let range = KeyRange::prefix(&prefix);
        let store = self.base.loads.persistence.store.as_mut().expect("there is a store");
        let nothing = store.holds_nothing(&range);
        if self.base.loads.own(table).is_some() {
            return;
        }
        let mut data = LoadedData::new(Provider::Store(KeptReads::Keys));
        if nothing {
            data.ranges
                .insert(&range, Here { position: Position(0), rows: 0, heat: Heat::default() });
        } else {
            self.tell_reset(&range);
        }
        self.base.loads.add_own(table, data);
        self.declare_table(table);
    }

    /// Tells the embedded store what a key holds now.
    pub(crate) fn tell_kept(
        &mut self,
        table: TableId,
        key: &[u8],
        value: ValueRef,
        expires: Option<Millis>,
    ) {
        let store = self.base.loads.persistence.store.as_mut().expect("there is a store");
        let flags = self.notifications.marks.flags(key);
        let stream = Handle::stream(value).map(|number| self.base.streams.get(number));
        let head = stream.map(|stream| stream.head().encode());
        let attributes = Attributes { expires, flags, is_stream: head.is_some() };
        // A stream's handle has the content of an empty value.
        let view = self.store.pool.view(self.store.pool.content(value));
        let position = match &head {
            Some(head) => store.put(key, &mut core::iter::once(&head[..]), attributes),
            None => store.put(key, &mut view.parts(), attributes),
        };
        let held = || head.map_or_else(|| view.to_vec(), |head| head.to_vec());
        self.base.loads.persistence.written = position;
        if let Some(gone) = &mut self.base.loads.persistence.gone {
            gone.remove(key);
        }
        if let Some(data) = self.base.loads.own_mut(table) {
            data.note(position, key, || Some((held(), attributes)));
        }
    }

    /// Tells the embedded store that the keys of a range are gone, all of which is in memory where it is kept.
    pub(crate) fn erase_kept_range(&mut self, range: &KeyRange) {
        let mut kept = self.store.parts(&range.first, &range.last);
        kept.retain(|&(table, ..)| self.base.is_kept(table));
        if kept.is_empty() {
            return;
        }
        // Records of streams go with their streams, wherever they lie.
        let records = KeyRange::prefix(STREAM_RECORDS);
        let before = KeyRange { first: Vec::new(), last: records.first };
        let behind = KeyRange { first: records.last, last: Vec::new() };
        let mut erased = Position(0);
        for part in [before, behind].map(|part| part.intersection(range)) {
            if !part.is_empty()
                && let Some(position) = self.base.loads.persistence.erase(&part)
            {
                erased = position;
            }
        }
        for (table, first, last) in kept {
            if let Some(data) = self.base.loads.own_mut(table) {
                data.note_removed(erased, &KeyRange { first, last });
            }
        }
    }

    /// Tells the embedded store that all keys are gone.
    pub(crate) fn clear_kept(&mut self) {
        let Some(store) = self.base.loads.persistence.store.as_mut() else { return };
        let position = store.clear();
        self.base.loads.persistence.written = position;
        for table in self.base.loads.own_tables() {
            let range = KeyRange::prefix(self.store.table(table).prefix());
            let kept = self.base.loads.own_mut(table).filter(|data| data.is_kept());
            let Some(data) = kept else { continue };
            data.seen = position;
            data.ranges.take();
            data.ranges.insert(&range, Here { position, rows: 0, heat: Heat::default() });
            // What loads under way show was there before.
            for (_, fetch) in data.take_loads(|_, _| true) {
                self.base.loads.waits.withdraw(fetch);
            }
        }
    }

    /// Whether a pair that was loaded is to be taken into memory: not where memory knows better, and
    /// not where its time is over.
    pub(crate) fn takes_kept(
        &mut self,
        table: TableId,
        key: &[u8],
        Attributes { expires, is_stream, .. }: Attributes,
    ) -> bool {
        if self.store.table_of(key) != Some(table) || self.store.table(table).get(key).is_some() {
            return false;
        }
        let over = expires.is_some_and(|at| at <= self.now);
        if over {
            self.base.erase_kept(table, key);
            if is_stream {
                self.base.erase_records(key, 0, None);
            }
            self.note_time();
        }
        !over
    }

    /// Waits until memory knows whether `key` is there, and what with: for writes that leave a part
    /// of it as it was.
    ///
    /// # Errors
    /// [`Stop::Wait`] where it must be loaded first.
    #[inline]
    pub fn know(&mut self, key: &[u8]) -> Result<(), Stop> {
        self.remove_dead(key);
        if !self.base.loads.persistence.is_some() {
            return Ok(());
        }
        let Some(table) = self.store.table_of(key) else { return Ok(()) };
        self.need_key(table, key).map_err(|Missing| self.stop())
    }

    /// Lets go of a key of a kept table, with others that are read with it.
    pub(crate) fn evict_kept(&mut self, table: TableId, key: &[u8]) {
        let Some(role) = self.views.catalog.role(table) else { return };
        let Some(data) = self.base.loads.own(table) else { return };
        let around = data.ranges.around(key);
        if matches!(data.provider, Provider::Store(KeptReads::Ranges)) || !role.readers.is_empty() {
            let range = self.run_from(table, key, around);
            self.unload(LoadedId::own(table), &range);
            return;
        }
        // Keys that are read one by one: where a range has been evicted from, it is none.
        if around.is_some()
            && let Some(data) = self.base.loads.own_mut(table)
        {
            data.ranges.take();
        }
        self.drop_base_keys(table, &KeyRange::point(key));
    }

    /// A few keys from `key` on, or its group where that is small, within `whole`.
    pub(crate) fn run_from(&self, table: TableId, key: &[u8], whole: Option<KeyRange>) -> KeyRange {
        let Some(whole) = whole else { return KeyRange::point(key) };
        if let Some(group) = self.store.table(table).group_prefix_of(key).map(KeyRange::prefix) {
            let group = group.intersection(&whole);
            if let Some(range) = self.few_keys(table, &group, RUN_KEYS * 4) {
                return range;
            }
        }
        let run = KeyRange::new(key, &whole.last);
        if let Some(range) = self.few_keys(table, &run, RUN_KEYS) {
            return range;
        }
        let last = self.nth_key(table, &run, RUN_KEYS);
        KeyRange { first: key.to_vec(), last: last.unwrap_or(whole.last) }
    }

    /// The range, if it holds at most so many keys.
    fn few_keys(&self, table: TableId, range: &KeyRange, most: usize) -> Option<KeyRange> {
        self.nth_key(table, range, most).is_none().then(|| range.clone())
    }

    fn nth_key(&self, table: TableId, range: &KeyRange, at: usize) -> Option<Vec<u8>> {
        let mut left = at;
        let mut found = None;
        let pool = &self.store.pool;
        let scan = Scan { pool, first: &range.first, last: &range.last, reverse: false };
        let _ = self.store.table(table).scan(&scan, &mut Vec::new(), &mut |key, _| {
            if left == 0 {
                found = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            left -= 1;
            ControlFlow::Continue(())
        });
        found
    }
}

impl BaseData {
    #[inline]
    pub(crate) fn is_kept(&self, table: TableId) -> bool {
        self.loads.persistence.is_some() && self.has_kept(table)
    }

    /// As [`BaseData::is_kept`], where the store may be out for a while.
    pub(crate) fn has_kept(&self, table: TableId) -> bool {
        self.loads.own(table).is_some_and(LoadedData::is_kept)
    }

    /// Notes what the embedded store was given of a partition that was taken over: loads under way may not show it (L2).
    pub(crate) fn note_kept(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
    ) {
        // A later position than its own: nothing else was told meanwhile.
        let position = self.loads.persistence.taken;
        if let Some(data) = self.loads.own_mut(table) {
            data.note(position, key, || Some((value.to_vec(), attributes)));
        }
    }

    /// Tells the embedded store that time has come to this moment, at which keys are gone.
    pub(crate) fn tell_time(&mut self, now: Millis) {
        if let Some(store) = &mut self.loads.persistence.store {
            store.note_time(now);
        }
    }

    /// Erases the records of the stream under `key` that begin in `[from, to)`; without `to`, at `from` or behind it.
    pub(crate) fn erase_records(&mut self, key: &[u8], from: u64, to: Option<u64>) {
        let range = stream_records(key, from, to);
        if !range.is_empty() {
            let _position = self.loads.persistence.erase(&range);
        }
    }

    /// Tells the embedded store that a key is gone.
    pub(crate) fn erase_kept(&mut self, table: TableId, key: &[u8]) {
        let store = self.loads.persistence.store.as_mut().expect("there is a store");
        let position = store.remove(key);
        self.loads.persistence.written = position;
        if let Some(gone) = &mut self.loads.persistence.gone {
            gone.insert(key.to_vec());
        }
        if let Some(data) = self.loads.own_mut(table) {
            data.note(position, key, || None);
        }
    }
}
