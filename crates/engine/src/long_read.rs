//! One long read: what is still to be given of it, and what is saved for it ([`crate::long_reads`]).

use crate::collect::Collected;
use crate::group_note::GroupNote;
use crate::handles::Handle;
use crate::report::Ticket;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::take;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::key::bounds;
use headwater_pool::{Pool, ValueRef};
use headwater_store::{Scan, Store, TableId};

/// Bytes of an entry for a key besides its key and value, about.
pub(crate) const ENTRY_BYTES: usize = 64;

/// What is done with a pair: its table, its key, and what the read shows of it, which may be the handle of a spilled value.
pub(crate) type Visit<'v> = dyn FnMut(TableId, &[u8], ValueRef) -> ControlFlow<()> + 'v;

/// Where a read goes on: in a part, at a key.
#[derive(Clone, Debug)]
pub(crate) struct ReadPlace {
    pub(crate) part: usize,
    /// The first key of the rest of the part. Where the greatest key comes first, the one behind the rest, and empty where
    /// the rest has no end.
    pub(crate) at: Vec<u8>,
}

/// A part of a range, which lies in one table.
#[derive(Debug)]
pub(crate) struct ReadPart {
    pub(crate) table: TableId,
    pub(crate) range: KeyRange,
    /// What the read shows of it, where that is stored nowhere.
    pub(crate) collected: Option<Vec<Collected>>,
}

#[derive(Debug)]
pub(crate) enum ReadPhase {
    Counting { at: ReadPlace, count: u64 },
    Giving,
    GivenUp { begun: bool },
}

#[derive(Debug)]
pub(crate) struct LongRead {
    /// Who goes on with it.
    pub(crate) ticket: Ticket,
    /// In the order in which they are read. Their tables are pinned.
    pub(crate) parts: Vec<ReadPart>,
    pub(crate) reverse: bool,
    /// How many pairs may yet be given.
    pub(crate) left: u64,
    /// All before was given.
    pub(crate) at: ReadPlace,
    pub(crate) phase: ReadPhase,
    /// What keys of the rest held when the read began, and hold no more. References are held.
    pub(crate) saved: BTreeMap<Box<[u8]>, Option<ValueRef>>,
    /// What cells held then that were set since, by the cells' words. References of the cells are held.
    pub(crate) cells: BTreeMap<u64, ValueRef>,
    /// Bytes of what is saved.
    pub(crate) bytes: usize,
    /// Bytes of what was collected, but for the values.
    pub(crate) collected_bytes: usize,
}

impl ReadPart {
    /// Whether what the read shows of it is stored in this table.
    pub(crate) fn is_stored_in(&self, table: TableId) -> bool {
        self.table == table && self.collected.is_none()
    }
}

impl LongRead {
    /// Where a part begins.
    pub(crate) fn start_of(&self, part: usize) -> ReadPlace {
        let at = self
            .parts
            .get(part)
            .map(|part| if self.reverse { &part.range.last } else { &part.range.first });
        ReadPlace { part, at: at.cloned().unwrap_or_default() }
    }

    /// What of a place's part is still to be read.
    pub(crate) fn rest_of(&self, place: &ReadPlace) -> KeyRange {
        let range = &self.parts[place.part].range;
        if self.reverse {
            KeyRange::new(&range.first, &place.at)
        } else {
            KeyRange::new(&place.at, &range.last)
        }
    }

    /// Whether a key is still to be given.
    pub(crate) fn awaits(&self, table: TableId, key: &[u8]) -> bool {
        let rest = self.parts.iter().enumerate().skip(self.at.part);
        rest.filter(|(_, part)| part.is_stored_in(table)).any(|(at, part)| {
            if at == self.at.part {
                self.rest_of(&self.at).contains(key)
            } else {
                part.range.contains(key)
            }
        })
    }

    pub(crate) fn awaits_some_of(&self, table: TableId, some: &KeyRange) -> bool {
        let rest = self.parts.iter().enumerate().skip(self.at.part);
        rest.filter(|(_, part)| part.is_stored_in(table)).any(|(at, part)| {
            let left = if at == self.at.part { &self.rest_of(&self.at) } else { &part.range };
            left.overlaps(some)
        })
    }

    /// What the read shows of a stored word, which is no handle.
    pub(crate) fn shown(&self, pool: &Pool, word: ValueRef) -> ValueRef {
        if !word.is_cell() {
            return word;
        }
        self.cells.get(&word.to_word()).copied().unwrap_or_else(|| pool.content(word))
    }

    /// Gives `each` the pairs from `place` on, until it breaks, and moves `place` behind the last one.
    pub(crate) fn visit(
        &self,
        store: &Store<GroupNote>,
        place: &mut ReadPlace,
        each: &mut Visit<'_>,
    ) {
        while let Some(part) = self.parts.get(place.part) {
            let (table, rest) = (part.table, self.rest_of(place));
            if let Some(rows) = &part.collected {
                if self.visit_collected(&store.pool, table, rows, place, each).is_break() {
                    return;
                }
                *place = self.start_of(place.part + 1);
                continue;
            }
            let mut saved = self.saved_in(&rest).peekable();
            let mut stopped_at = Vec::new();
            let mut give = |key: &[u8], word: ValueRef| {
                if Handle::of(word).is_some() && Handle::spilled(word).is_none() {
                    return ControlFlow::Continue(());
                }
                let flow = each(table, key, word);
                if flow.is_break() {
                    stopped_at.extend_from_slice(key);
                    if !self.reverse {
                        stopped_at.push(0);
                    }
                }
                flow
            };
            let scan = Scan {
                pool: &store.pool,
                first: &rest.first,
                last: &rest.last,
                reverse: self.reverse,
            };
            let mut flow = store.table(table).scan(&scan, &mut Vec::new(), &mut |key, word| {
                let is_before = |other: &[u8]| if self.reverse { other > key } else { other < key };
                while let Some((gone, value)) = saved.next_if(|(other, _)| is_before(other)) {
                    if let Some(value) = value {
                        give(gone, value)?;
                    }
                }
                match saved.next_if(|(other, _)| **other == *key) {
                    Some((_, Some(value))) => give(key, value),
                    Some((_, None)) => ControlFlow::Continue(()),
                    None if word.is_handle() => give(key, word),
                    None => give(key, self.shown(&store.pool, word)),
                }
            });
            for (gone, value) in saved {
                if flow.is_continue()
                    && let Some(value) = value
                {
                    flow = give(gone, value);
                }
            }
            if flow.is_break() {
                place.at = stopped_at;
                return;
            }
            *place = self.start_of(place.part + 1);
        }
    }

    /// As [`LongRead::visit`], of a part that was collected.
    pub(crate) fn visit_collected(
        &self,
        pool: &Pool,
        table: TableId,
        rows: &[Collected],
        place: &mut ReadPlace,
        each: &mut Visit<'_>,
    ) -> ControlFlow<()> {
        let at = rows.partition_point(|(key, _)| **key < *place.at);
        let (before, behind) = rows.split_at(at);
        let mut rest = match self.reverse {
            true if place.at.is_empty() => rows.iter(),
            true => before.iter(),
            false => behind.iter(),
        };
        while let Some((key, value)) = if self.reverse { rest.next_back() } else { rest.next() } {
            if each(table, key, self.shown(pool, *value)).is_break() {
                place.at = key.to_vec();
                if !self.reverse {
                    place.at.push(0);
                }
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// What is saved in a range, in the order in which it is read.
    pub(crate) fn saved_in(
        &self,
        range: &KeyRange,
    ) -> impl Iterator<Item = (&[u8], Option<ValueRef>)> {
        let mut found = (!range.is_empty())
            .then(|| self.saved.range::<[u8], _>(bounds(&range.first, &range.last)));
        let reverse = self.reverse;
        core::iter::from_fn(move || {
            let found = found.as_mut()?;
            let next = if reverse { found.next_back() } else { found.next() };
            next.map(|(key, value)| (&**key, *value))
        })
    }

    /// Saves what a key held when the read began.
    pub(crate) fn save(&mut self, pool: &Pool, key: &[u8], value: Option<ValueRef>) {
        if let Some(value) = value {
            pool.retain(value);
        }
        self.bytes += saved_bytes(pool, key, value);
        self.saved.insert(key.into(), value);
    }

    /// Lets go of what is saved for keys that were given.
    pub(crate) fn forget_given(&mut self, pool: &mut Pool) {
        if self.at.part >= self.parts.len() {
            self.forget_all(pool);
            return;
        }
        let given = self.parts[..self.at.part].iter_mut().rev();
        for rows in given.map_while(|part| part.collected.as_mut().filter(|rows| !rows.is_empty()))
        {
            self.collected_bytes -= crate::collect::bytes_of(rows);
            take(rows).into_iter().for_each(|(_, value)| pool.release(value));
        }
        let given = if self.reverse {
            if self.at.at.is_empty() { return } else { self.saved.split_off(&*self.at.at) }
        } else {
            let rest = self.saved.split_off(&*self.at.at);
            core::mem::replace(&mut self.saved, rest)
        };
        for (key, value) in given {
            self.bytes -= saved_bytes(pool, &key, value);
            if let Some(value) = value {
                pool.release(value);
            }
        }
    }

    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self.phase, ReadPhase::GivenUp { .. })
    }

    pub(crate) fn give_up(&mut self, pool: &mut Pool) {
        let begun = matches!(self.phase, ReadPhase::Giving);
        self.phase = ReadPhase::GivenUp { begun };
        self.forget_all(pool);
    }

    pub(crate) fn forget_all(&mut self, pool: &mut Pool) {
        take(&mut self.saved).into_values().flatten().for_each(|value| pool.release(value));
        take(&mut self.cells).into_keys().for_each(|cell| pool.release(ValueRef::from_word(cell)));
        for rows in self.parts.iter_mut().filter_map(|part| part.collected.as_mut()) {
            take(rows).into_iter().for_each(|(_, value)| pool.release(value));
        }
        self.bytes = 0;
        self.collected_bytes = 0;
    }
}

/// What an entry counts, whose value may be held by others as well.
fn saved_bytes(pool: &Pool, key: &[u8], value: Option<ValueRef>) -> usize {
    ENTRY_BYTES + key.len() + value.map_or(0, |value| pool.view(value).len())
}
