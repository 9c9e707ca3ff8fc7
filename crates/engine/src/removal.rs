//! Removals of ranges, in slices.
//!
//! A removal of more keys than a slice has rows is one step to everybody else, and takes many turns of the loop. It begins when
//! all that could refuse it is checked and all that it needs is loaded: the embedded store is told of the range, as one
//! operation, and from then on the base keys of the range are [dead](crate::dead). Each turn of the loop removes a slice of
//! them, in the order of the keys, and whoever names one removes it before. The command waits for the end, and
//! answers how many there were; if nobody waits for it any more, the removal is completed all the same.
//!
//! # Invariants
//! - X1. One removal is under way at most. Another one that does not fit into a slice waits until it has ended.
//! - X2. A base key of the range is dead if and only if it is stored, a slice has yet to come to it, and it was not written since the
//!   removal began: what is written in the range is spared.
//! - X3. Neither flows nor other shards are told of the changes of the range, or of what joins derive from it, one by one: a removal of what flows
//!   look at, or another shard follows, is done at once. Clients that follow keys of the range are told of each as it goes, of outputs
//!   as they change, and of those that joins leave to the next read when all keys are gone: such a read would wait for that too.

use crate::base::Gone;
use crate::dead::Looks;
use crate::engine::Engine;
use crate::report::{Effect, Stop, Ticket};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_store::{Scan, TableId};

/// A removal under way.
#[derive(Debug)]
struct Removal {
    /// What is left of its range: a slice has come to everything before.
    left: KeyRange,
    /// Keys of it that were written since it began.
    spared: BTreeSet<Box<[u8]>>,
    /// How many keys it has removed.
    removed: u64,
    /// Joins that read keys of its range, and those that read these.
    joins: BTreeSet<u32>,
    /// Clients follow keys of its range, or what joins derive from it.
    is_followed: bool,
    /// Who waits for its end.
    ticket: Option<Ticket>,
}

/// Removals in slices.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    under_way: Option<Removal>,
    /// How many keys those removals had whose commands have yet to answer.
    done: BTreeMap<Ticket, u64>,
    /// The operation under way is run again for the end of this removal.
    resumed: Option<Ticket>,
    /// How many have begun.
    begun: u64,
}

impl Removals {
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Notes that `key` is written: if it lies in the range that is being removed, that is after the removal.
    #[inline]
    pub(crate) fn spare(&mut self, key: &[u8]) {
        if let Some(removal) = &mut self.under_way
            && removal.left.contains(key)
            && !removal.spared.contains(key)
        {
            removal.spared.insert(key.into());
        }
    }

    /// Whether dead keys concern what an operation is about to look at.
    pub(crate) fn concerns(&self, looks: Looks<'_>) -> bool {
        let Some(removal) = &self.under_way else { return false };
        !removal.joins.is_empty()
            || match looks {
                Looks::Derived => false,
                Looks::Range(first, last) => {
                    let left = &removal.left;
                    (last.is_empty() || *left.first < *last)
                        && (left.last.is_empty() || *first < *left.last)
                }
            }
    }

    /// Whether followers are told of what a join leaves to the next read when all keys of the range are gone.
    pub(crate) fn delays(&self, join: u32) -> bool {
        self.under_way.as_ref().is_some_and(|removal| removal.joins.contains(&join))
    }

    /// Whether followers have yet to hear of some of what was removed.
    pub(crate) fn has_news(&self) -> bool {
        self.under_way.as_ref().is_some_and(|removal| removal.is_followed)
    }

    /// The operation of this ticket is run again next.
    pub(crate) fn resume(&mut self, ticket: Ticket) {
        self.resumed = self.is_awaited(ticket).then_some(ticket);
    }

    /// The operation under way has ended, for now or for good.
    #[inline]
    pub(crate) fn end_operation(&mut self) {
        if let Some(ticket) = self.resumed.take() {
            self.forget(ticket);
        }
    }

    /// Nobody waits for this ticket any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.done.remove(&ticket);
        if let Some(removal) = &mut self.under_way
            && removal.ticket == Some(ticket)
        {
            removal.ticket = None;
        }
    }

    fn is_awaited(&self, ticket: Ticket) -> bool {
        let awaits = |removal: &Removal| removal.ticket == Some(ticket);
        self.done.contains_key(&ticket) || self.under_way.as_ref().is_some_and(awaits)
    }
}

/// Base keys of a range, with their tables.
struct BaseKeys {
    keys: Vec<(TableId, Vec<u8>)>,
    /// Where to go on, if that was not all.
    next: Option<Vec<u8>>,
}

impl Engine {
    /// Removes the base keys of `[first, last)` (an empty `last`: to the end) and gives their
    /// number. Join outputs in the range stay, as long as their sources do.
    ///
    /// Where it is done in slices, it has begun when it waits for them, and is to be run again under its ticket
    /// ([`Engine::resume`]).
    ///
    /// # Errors
    /// [`Stop::Wait`] where keys must be loaded first, or it is done in slices. A table in the range is kept by a source.
    pub fn remove_range(&mut self, first: &[u8], last: &[u8]) -> Result<u64, Stop> {
        if let Some(ticket) = self.base.removals.resumed.take() {
            return self.await_removal(ticket);
        }
        if !last.is_empty() && first >= last {
            return Ok(0);
        }
        self.know_range(first, last)?;
        let range = KeyRange::new(first, last);
        let divides = self.reads.slices.is_active() && self.may_divide_removal(&range);
        let rows = if divides { self.reads.slices.rows_max() } else { usize::MAX };
        let found = self.base_keys(&range, rows);
        if found.next.is_none() {
            let mut removed = 0;
            for (table, key) in found.keys {
                removed += u64::from(self.take(table, &key, Gone::Deleted));
            }
            return Ok(removed);
        }
        if self.base.removals.is_under_way() {
            self.reads.slices.end_for_now();
            return Err(self.stop());
        }
        let ticket = self.next_ticket();
        self.begin_removal(range, ticket);
        Err(Stop::Wait(ticket))
    }

    /// Whether a part of the removal of `range` may be told before the rest (X3).
    fn may_divide_removal(&self, range: &KeyRange) -> bool {
        let tables = self.store.parts(&range.first, &range.last);
        !tables.iter().any(|&(table, ..)| self.notes(table))
            && (self.base.placed.is_none()
                || !self.is_removal_followed(range, &self.joins_over(range)))
    }

    /// The joins that read keys of `range`, directly or through others.
    fn joins_over(&self, range: &KeyRange) -> BTreeSet<u32> {
        let tables = self.store.parts(&range.first, &range.last).into_iter();
        let roles = tables.filter_map(|(table, ..)| self.views.catalog.role(table));
        let readers: BTreeSet<u32> =
            roles.flat_map(|role| role.readers.iter().map(|reader| reader.join)).collect();
        readers.into_iter().flat_map(|join| self.views.catalog.downstream(join)).collect()
    }

    /// Whether somebody follows a table of `range`, or of the outputs of these joins.
    fn is_removal_followed(&self, range: &KeyRange, joins: &BTreeSet<u32>) -> bool {
        let tables = self.store.parts(&range.first, &range.last).into_iter();
        let outputs = joins.iter().map(|&join| self.views.catalog.join(join).plan.output_table);
        tables.map(|(table, ..)| table).chain(outputs).any(|table| self.is_followed(table))
    }

    /// The own base keys of `range` among its first `most` rows.
    fn base_keys(&self, range: &KeyRange, most: usize) -> BaseKeys {
        let mut found = BaseKeys { keys: Vec::new(), next: None };
        let (mut visited, mut room) = (0, Vec::new());
        for (table, first, last) in self.store.parts(&range.first, &range.last) {
            let scan = Scan { pool: &self.store.pool, first: &first, last: &last, reverse: false };
            let flow = self.store.table(table).scan(&scan, &mut room, &mut |key, _| {
                if visited == most {
                    found.next = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                visited += 1;
                if self.is_own_base_key(table, key) {
                    found.keys.push((table, key.to_vec()));
                }
                ControlFlow::Continue(())
            });
            if flow.is_break() {
                break;
            }
        }
        found
    }

    fn is_own_base_key(&self, table: TableId, key: &[u8]) -> bool {
        !self.views.catalog.gives(table, key) && self.owns(key)
    }

    /// Tells who keeps keys of `range`, and who has copies of them, that they are gone; and removes the first slice.
    fn begin_removal(&mut self, range: KeyRange, ticket: Ticket) {
        self.erase_kept_range(&range);
        if self.notifications.watches.changed().is_some() {
            let (store, watches) = (&self.store, &mut self.notifications.watches);
            let _ = store
                .scan(&range.first, &range.last, false, &mut |key, _| watches.note_copied(key));
        }
        let joins = self.joins_over(&range);
        let is_followed = self.is_removal_followed(&range, &joins);
        self.base.removals.begun += 1;
        self.base.removals.under_way = Some(Removal {
            left: range,
            spared: BTreeSet::new(),
            removed: 0,
            joins,
            is_followed,
            ticket: Some(ticket),
        });
        self.remove_slice(self.reads.slices.rows_max());
    }

    /// The answer of a removal, if it has ended.
    fn await_removal(&mut self, ticket: Ticket) -> Result<u64, Stop> {
        if let Some(removed) = self.base.removals.done.remove(&ticket) {
            return Ok(removed);
        }
        let again = self.next_ticket();
        if let Some(removal) = &mut self.base.removals.under_way {
            removal.ticket = Some(again);
        }
        Err(Stop::Wait(again))
    }

    /// Whether the operation that waits with this ticket has begun to remove keys, which ends only when all of them are gone.
    #[must_use]
    pub fn is_removing(&self, ticket: Ticket) -> bool {
        self.base.removals.is_awaited(ticket)
    }

    /// How many removals in slices have begun.
    #[must_use]
    pub fn removals_begun(&self) -> u64 {
        self.base.removals.begun
    }

    /// Whether `key` is stored and lies in the range that is being removed (X2).
    pub(crate) fn is_being_removed(&self, key: &[u8]) -> bool {
        let Some(removal) = &self.base.removals.under_way else { return false };
        removal.left.contains(key)
            && !removal.spared.contains(key)
            && self.store.table_of(key).is_some_and(|table| {
                self.store.table(table).get(key).is_some() && self.is_own_base_key(table, key)
            })
    }

    /// Removes a key of the range that is being removed.
    pub(crate) fn take_removed(&mut self, key: &[u8]) {
        let Some(table) = self.store.table_of(key) else { return };
        let taken = self.take(table, key, Gone::WithRange);
        if let Some(removal) = &mut self.base.removals.under_way {
            removal.removed += u64::from(taken);
        }
    }

    /// Removes at once what is left of the range that is being removed.
    pub(crate) fn complete_removal(&mut self) {
        while self.base.removals.is_under_way() {
            self.remove_slice(usize::MAX);
        }
    }

    /// Removes keys of the range that is being removed, of so many rows at most.
    pub(crate) fn remove_slice(&mut self, rows: usize) {
        let Some(removal) = &self.base.removals.under_way else { return };
        let found = self.base_keys(&removal.left.clone(), rows);
        for (_, key) in found.keys {
            if self.is_being_removed(&key) {
                self.take_removed(&key);
            }
        }
        let Some(removal) = &mut self.base.removals.under_way else { return };
        if let Some(next) = found.next {
            removal.spared = removal.spared.split_off(&*next);
            removal.left.first = next;
            return;
        }
        let Removal { removed, ticket, .. } = *removal;
        self.base.removals.under_way = None;
        if let Some(ticket) = ticket {
            self.base.removals.done.insert(ticket, removed);
            self.base.loads.waits.effects.push(Effect::Wake(ticket));
        }
    }
}
