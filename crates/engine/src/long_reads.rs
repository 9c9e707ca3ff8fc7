//! Long reads: the pairs of a range as they were at one moment, given in slices while others write.
//!
//! A read that has more pairs than a slice is begun once all of its range is current. From then on, before a pair changes that
//! is still to be read, what the read is to show of it is saved with the read. So each slice gives what is stored, but for the
//! keys that have changed since the beginning: of these it gives what is saved. What was given is not saved any more.
//!
//! The number of pairs, with which an answer begins, is counted in slices too before the first pair is given.
//!
//! # Invariants
//! - L1. What a key of the rest of the range held when the read began is what is saved for it, if anything is, or else
//!   what is stored.
//! - L2. What a read saves is bounded: beyond the bound it is given up, and gives no more pairs.
//!
//! # Cost
//! Without long reads nothing but a look whether there are some, for each pair that changes. With them a lookup of the pair, and an
//! entry with its key for each that is still to be read; its value is held, not copied, unless it lies on disk.

use crate::collect::Collections;
use crate::engine::Engine;
use crate::handles::Handle;
use crate::long_read::{ENTRY_BYTES, LongRead, ReadPart, ReadPhase, ReadPlace};
use crate::read::within_one_table;
use crate::reads::Reads;
use crate::report::{RangeOptions, Ticket};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::take;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_pool::{Value, ValueRef};
use headwater_store::TableId;

/// As many pairs are counted in the time in which one source row is visited, or more.
const COUNTED_A_ROW: usize = 4;
/// A slice of an answer ends when its keys and values have so many bytes.
const GIVEN_BYTES: usize = 256 << 10;

/// How much of a range may be read at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtOnce {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: usize,
}

/// How far a long read has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadProgress {
    /// The pairs are being counted. Run the read again with this ticket, in the next turn.
    Counting(Ticket),
    /// There are so many; the next run begins to give them. [`Engine::forget_ticket`] ends it here.
    Counted(u64, Ticket),
    /// Some were given. Run the read again with this ticket, when its reader has taken them.
    Given(Ticket),
    /// All were given.
    Done,
    /// It was given up (L2), before anything was given, or after it was begun.
    GivenUp {
        /// Pairs were given, or their number.
        begun: bool,
    },
}

/// The long reads under way.
#[derive(Debug, Default)]
pub(crate) struct LongReads {
    list: Vec<LongRead>,
    /// What merged reads have computed so far.
    pub(crate) collections: Collections,
    /// Which one the operation under way goes on with.
    resumed: Option<Ticket>,
    /// How many bytes one may save (L2); 0: any number.
    bytes_max: usize,
}

impl LongReads {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.collections.is_empty()
    }

    /// Whether some of a range of a table is still to be given.
    pub(crate) fn await_some_of(&self, table: TableId, first: &[u8], last: &[u8]) -> bool {
        let some = || KeyRange::new(first, last);
        self.list.iter().any(|read| read.awaits_some_of(table, &some()))
    }

    /// How many bytes a reader may have kept for it (L2); 0: any number.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes that they take besides the values, which are in the pool.
    pub(crate) fn bytes(&self) -> usize {
        let list = self.list.iter();
        list.map(|read| {
            read.saved.len() * ENTRY_BYTES + read.collected_bytes + size_of::<LongRead>()
        })
        .sum::<usize>()
            + self.collections.bytes()
    }
}

impl Engine {
    /// Bounds what each long read may save of pairs that change while it is under way (L2); 0: it may save any number of bytes.
    pub fn set_long_read_bytes_max(&mut self, bytes: usize) {
        self.reads.long_reads.bytes_max = bytes;
    }

    /// How much of a range may be read at once; `None`: all, because the operation under way is not sliced, or there are several
    /// shards.
    #[inline]
    #[must_use]
    pub fn at_once(&self) -> Option<AtOnce> {
        if !self.reads.slices.is_active() || self.base.placed.is_some() {
            return None;
        }
        let pairs = self.reads.slices.rows_max() as u64;
        Some(AtOnce { pairs, bytes: GIVEN_BYTES })
    }

    /// The tables of a range.
    fn parts_of(&self, first: &[u8], last: &[u8]) -> Vec<(TableId, KeyRange)> {
        match within_one_table(first, last) {
            Some(prefix) => {
                let table = self.store.find(prefix);
                table.map(|table| (table, KeyRange::new(first, last))).into_iter().collect()
            }
            None => {
                let parts = self.store.parts(first, last).into_iter();
                parts.map(|(table, first, last)| (table, KeyRange { first, last })).collect()
            }
        }
    }

    /// The parts of a long read that begins. What is put together from several places was collected just now.
    fn parts_to_read(&mut self, first: &[u8], last: &[u8]) -> Vec<ReadPart> {
        let mut parts = Vec::new();
        for (table, range) in self.parts_of(first, last) {
            let collected = self.reads.long_reads.collections.take(table, &range);
            if collected.is_none()
                && self.views.catalog.role(table).is_none_or(|role| role.merged == 0)
            {
                parts.push(ReadPart { table, range, collected: None });
                continue;
            }
            for piece in collected.unwrap_or_default() {
                parts.push(ReadPart { table, range: piece.range, collected: Some(piece.rows) });
            }
        }
        parts
    }

    /// Whether the operation under way goes on with a long read.
    #[inline]
    #[must_use]
    pub fn goes_on_reading(&self) -> bool {
        self.reads.long_reads.resumed.is_some()
    }

    /// Begins a long read of what is there now: the range has just been [read](Engine::range) in this operation, and is current.
    pub fn begin_long_read(&mut self, first: &[u8], last: &[u8], options: RangeOptions) {
        let mut parts = self.parts_to_read(first, last);
        if options.reverse {
            parts.reverse();
        }
        for part in &parts {
            self.store.pin(part.table);
        }
        let collected = parts.iter().filter_map(|part| part.collected.as_deref());
        let collected_bytes = collected.map(crate::collect::bytes_of).sum();
        let ticket = self.next_ticket();
        let nowhere = ReadPlace { part: 0, at: Vec::new() };
        let mut read = LongRead {
            ticket,
            parts,
            reverse: options.reverse,
            left: options.limit.unwrap_or(u64::MAX),
            at: nowhere,
            phase: ReadPhase::Giving,
            saved: BTreeMap::new(),
            cells: BTreeMap::new(),
            bytes: 0,
            collected_bytes,
        };
        read.at = read.start_of(0);
        read.phase = ReadPhase::Counting { at: read.at.clone(), count: 0 };
        self.reads.long_reads.list.push(read);
        self.reads.long_reads.resumed = Some(ticket);
    }

    /// The next slice of the long read that the operation under way goes on with. The pairs that it gives go to `each`.
    pub fn go_on_reading(&mut self, each: &mut dyn FnMut(&[u8], Value<'_>)) -> ReadProgress {
        let resumed = self.reads.long_reads.resumed.take();
        let list = &mut self.reads.long_reads.list;
        let Some(at) = list.iter().position(|read| Some(read.ticket) == resumed) else {
            return ReadProgress::GivenUp { begun: true };
        };
        let mut read = list.swap_remove(at);
        read.ticket = self.next_ticket();
        let progress = match &read.phase {
            ReadPhase::Counting { at, count } => {
                let (at, count) = (at.clone(), *count);
                self.count_slice(&mut read, at, count)
            }
            ReadPhase::Giving => self.give_slice(&mut read, each),
            ReadPhase::GivenUp { begun } => ReadProgress::GivenUp { begun: *begun },
        };
        if let ReadProgress::Done | ReadProgress::GivenUp { .. } = progress {
            self.end_long_read(read);
        } else {
            self.reads.long_reads.list.push(read);
        }
        progress
    }

    fn count_slice(
        &mut self,
        read: &mut LongRead,
        mut place: ReadPlace,
        mut count: u64,
    ) -> ReadProgress {
        let mut most = self.reads.slices.rows_max().saturating_mul(COUNTED_A_ROW) as u64;
        most = most.min(read.left - count);
        read.visit(&self.store, &mut place, &mut |_, _, _| {
            count += 1;
            most -= 1;
            if most == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if place.part == read.parts.len() || count == read.left {
            read.left = count;
            read.phase = ReadPhase::Giving;
            return ReadProgress::Counted(count, read.ticket);
        }
        read.phase = ReadPhase::Counting { at: place, count };
        ReadProgress::Counting(read.ticket)
    }

    fn give_slice(
        &mut self,
        read: &mut LongRead,
        each: &mut dyn FnMut(&[u8], Value<'_>),
    ) -> ReadProgress {
        let mut place = read.at.clone();
        let mut most = self.reads.slices.rows_max() as u64;
        most = most.min(read.left);
        let (mut given, mut bytes, mut lost) = (0, 0, None);
        let (pool, spilled, spilling) =
            (&self.store.pool, &self.base.spilled, &mut self.base.spilling);
        read.visit(&self.store, &mut place, &mut |table, key, word| {
            let value = match Handle::spilled(word) {
                None => pool.view(word),
                Some(number) if spilling.fetch_value(&spilled.get(number)) => {
                    Value::of(spilling.fetched())
                }
                Some(_) => {
                    lost = Some((table, key.to_vec()));
                    return ControlFlow::Break(());
                }
            };
            bytes += key.len() + value.len();
            given += 1;
            each(key, value);
            if given == most || bytes >= GIVEN_BYTES {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if let Some((table, key)) = lost {
            self.lose_key(table, &key);
            return ReadProgress::GivenUp { begun: true };
        }
        read.left -= given;
        read.at = place;
        read.forget_given(&mut self.store.pool);
        debug_assert!(read.left == 0 || read.at.part < read.parts.len(), "as many as were counted");
        if read.left == 0 { ReadProgress::Done } else { ReadProgress::Given(read.ticket) }
    }

    /// Ends a long read, if this is the ticket of one.
    pub(crate) fn forget_long_read(&mut self, ticket: Ticket) {
        if let Some(at) = self.reads.long_reads.list.iter().position(|read| read.ticket == ticket) {
            let read = self.reads.long_reads.list.swap_remove(at);
            self.end_long_read(read);
        }
    }

    fn end_long_read(&mut self, mut read: LongRead) {
        read.forget_all(&mut self.store.pool);
        for part in read.parts {
            self.store.unpin(part.table);
        }
    }

    /// The operation that was to go on with a long read has come to something else.
    #[inline]
    pub(crate) fn forget_resumed_read(&mut self) {
        if let Some(ticket) = self.reads.long_reads.resumed.take() {
            self.forget_long_read(ticket);
        }
    }

    /// What long reads are to read goes as a whole: those that have not begun to give it will begin anew.
    pub(crate) fn give_up_long_reads(&mut self) {
        for mut read in take(&mut self.reads.long_reads.list) {
            let begun = !matches!(read.phase, ReadPhase::Counting { .. });
            read.give_up(&mut self.store.pool);
            for part in take(&mut read.parts) {
                self.store.unpin(part.table);
            }
            if begun {
                self.reads.long_reads.list.push(read);
            }
        }
    }

    /// Saves a pair for the long reads that are still to give it. To be called before the pair changes (L1).
    #[inline]
    pub(crate) fn save_pair(&mut self, table: TableId, key: &[u8]) {
        if !self.reads.long_reads.is_empty() {
            self.save_for_reads(table, key);
        }
    }

    #[cold]
    fn save_for_reads(&mut self, table: TableId, key: &[u8]) {
        self.reads.note_collected_changed(table, key);
        let mut reads = take(&mut self.reads.long_reads.list);
        for read in &mut reads {
            if read.is_given_up() || read.saved.contains_key(key) || !read.awaits(table, key) {
                continue;
            }
            let mut lost = false;
            match self.store.table(table).get(key).map(|word| (word, Handle::of(word))) {
                None | Some((_, Some(Handle::Stream(_)))) => read.save(&self.store.pool, key, None),
                Some((word, None)) => {
                    let value = read.shown(&self.store.pool, word);
                    read.save(&self.store.pool, key, Some(value));
                }
                Some((_, Some(Handle::Spilled(number)))) => {
                    if self.base.spilling.fetch_value(&self.base.spilled.get(number)) {
                        let value = self.store.pool.insert(self.base.spilling.fetched());
                        read.save(&self.store.pool, key, Some(value));
                        self.store.pool.release(value);
                    } else {
                        lost = true;
                    }
                }
            }
            let most = self.reads.long_reads.bytes_max;
            if lost || (most > 0 && read.bytes > most) {
                read.give_up(&mut self.store.pool);
            }
        }
        self.reads.long_reads.list = reads;
    }

    /// Saves what a cell holds for the long reads. To be called before it is set (L1).
    #[inline]
    pub(crate) fn save_cell(&mut self, cell: ValueRef) {
        let pool = &self.store.pool;
        for read in &mut self.reads.long_reads.list {
            if read.is_given_up() {
                continue;
            }
            read.cells.entry(cell.to_word()).or_insert_with(|| {
                pool.retain(cell);
                pool.content(cell)
            });
        }
    }
}

impl Reads {
    /// The operation of this ticket is run again next: it goes on with its long read, if it has one.
    pub(crate) fn resume_long_read(&mut self, ticket: Ticket) {
        if self.long_reads.list.iter().any(|read| read.ticket == ticket) {
            self.long_reads.resumed = Some(ticket);
        }
    }

    /// Notes that a pair changes in its place, for merged reads that have collected it.
    #[inline]
    pub(crate) fn note_collected_changed(&mut self, table: TableId, key: &[u8]) {
        if !self.long_reads.collections.is_empty() {
            self.long_reads.collections.note_changed(table, key);
        }
    }
}
