//! Merged reads in slices: what joins that are computed at each read give of a range, and tables whose joins give the same keys.
//!
//! What such a read shows is stored nowhere as it is. So it is collected: the range is divided into pieces, each of which a slice
//! computes and keeps with the ranges of source keys that it was computed from. What changes of these while further pieces are
//! collected is noted, and the pieces concerned are computed again when all others are there. The read answers when all pieces
//! are of one moment, its last.
//!
//! What other joins keep of the sources is made current before it is read, and once more when all pieces are there: what that
//! changes is noted as any change is.
//!
//! # Invariants
//! - C1. A piece is what its range gives now, unless a key that is noted as changed since lies in a range that it has read, or a range
//!   of another join that it relied on is not current.
//! - C2. Reads end: after [`PASSES_MAX`] times, the pieces that have changed once more are computed in one step.
//!
//! # Cost
//! A seek in what the read depends on for each key that changes meanwhile. The keys that are collected, and references
//! to their values, are kept until they were given: at most so many bytes as a reader may have kept for it.

use crate::engine::Engine;
use crate::exec::Missing;
use crate::reads::Reads;
use crate::report::{EngineError, Stop, Ticket};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem::take;
use core::ops::ControlFlow;
use headwater_base::KeyRange;
use headwater_base::key::{before_end, bounds};
use headwater_pool::{Pool, ValueRef};
use headwater_store::TableId;

/// How often pieces that have changed are computed anew in slices.
const PASSES_MAX: u32 = 4;
/// Most ranges of one table that a piece remembers one by one; of more it remembers the one range that holds them all.
const SPANS_MAX: usize = 64;
/// Most keys of which it is remembered that they have changed while a read is collected; with more, all that was collected counts as changed.
const CHANGED_MAX: usize = 10_000;
/// Bytes of a pair besides its key, about.
const PAIR_BYTES: usize = 40;
/// Bytes of a range that was relied on besides its ends, about.
const SPAN_BYTES: usize = 64;

/// A pair that was collected; a reference of its value is held.
pub(crate) type Collected = (Box<[u8]>, ValueRef);

/// Makes a range hold another one as well, and all that is between them.
fn widen(hull: &mut KeyRange, span: &KeyRange) {
    if span.first < hull.first {
        hull.first.clone_from(&span.first);
    }
    if !hull.last.is_empty() && (span.last.is_empty() || span.last > hull.last) {
        hull.last.clone_from(&span.last);
    }
}

/// What a piece was computed from.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// Ranges of tables that were read, with the number of the last change before that.
    read: BTreeMap<TableId, Vec<(KeyRange, u64)>>,
    /// Outputs of other joins that were made current for it.
    relied: BTreeSet<(u32, Vec<u8>, Vec<u8>)>,
}

impl Spans {
    fn note(&mut self, table: TableId, span: &KeyRange, changes: u64) {
        let spans = self.read.entry(table).or_default();
        if let [(hull, _)] = &mut spans[..]
            && hull.covers(span)
        {
            return;
        }
        spans.push((span.clone(), changes));
        if spans.len() > SPANS_MAX {
            let hull = spans.drain(..).reduce(|(mut hull, since), (span, changes)| {
                widen(&mut hull, &span);
                (hull, since.min(changes))
            });
            spans.extend(hull);
        }
    }

    /// Bytes of what was relied on, about; what was read is little.
    fn bytes(&self) -> usize {
        let relied = self.relied.iter();
        relied.map(|(_, first, last)| first.len() + last.len() + SPAN_BYTES).sum()
    }
}

/// A part of a range, as it was when it was computed.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) range: KeyRange,
    pub(crate) rows: Vec<Collected>,
    /// What it was computed from; `None`: it is all of its range, and of no use later.
    read: Option<Spans>,
    /// The number of the last change before it.
    changes: u64,
}

impl Piece {
    /// Bytes that it takes besides the values, which are in the pool.
    fn bytes(&self) -> usize {
        bytes_of(&self.rows) + self.read.as_ref().map_or(0, Spans::bytes)
    }
}

/// A merged read of a range of a table.
#[derive(Debug)]
pub(crate) struct Collecting {
    table: TableId,
    range: KeyRange,
    /// Nothing else is read by the operation: what is computed at once need not be kept.
    is_alone: bool,
    /// In order, and disjoint.
    pieces: Vec<Piece>,
    /// Where parts end that fit into a slice, the next one last.
    ends: Vec<Vec<u8>>,
    /// All that was read of each table, and what is between.
    hulls: BTreeMap<TableId, KeyRange>,
    /// Keys of that which have changed since the first piece was computed, and the numbers of their last changes.
    changed: BTreeMap<TableId, BTreeMap<Box<[u8]>, u64>>,
    keys_changed: usize,
    changes: u64,
    /// Everything has changed, and this was the number of that.
    all_changed: u64,
    passes: u32,
    bytes: usize,
}

impl Collecting {
    fn new(table: TableId, range: KeyRange, is_alone: bool) -> Self {
        Self {
            table,
            range,
            is_alone,
            pieces: Vec::new(),
            ends: Vec::new(),
            hulls: BTreeMap::new(),
            changed: BTreeMap::new(),
            keys_changed: 0,
            changes: 0,
            all_changed: 0,
            passes: 0,
            bytes: 0,
        }
    }

    fn note_read(&mut self, table: TableId, span: &KeyRange) {
        match self.hulls.get_mut(&table) {
            Some(hull) => widen(hull, span),
            None => _ = self.hulls.insert(table, span.clone()),
        }
    }

    fn note_changed(&mut self, table: TableId, key: &[u8]) {
        if !self.hulls.get(&table).is_some_and(|hull| hull.contains(key)) {
            return;
        }
        self.changes += 1;
        let keys = self.changed.entry(table).or_default();
        if let Some(changes) = keys.get_mut(key) {
            *changes = self.changes;
        } else if self.keys_changed < CHANGED_MAX {
            keys.insert(key.into(), self.changes);
            self.keys_changed += 1;
        } else {
            self.change_all();
        }
    }

    fn change_all(&mut self) {
        self.changes += 1;
        self.all_changed = self.changes;
        self.changed.clear();
        self.keys_changed = 0;
    }

    /// Whether something has changed that a piece was computed from.
    fn has_changed(&self, piece: &Piece) -> bool {
        let Some(Spans { read, .. }) = &piece.read else { return true };
        piece.changes < self.all_changed
            || self.changed.iter().any(|(table, keys)| {
                let mut spans = read.get(table).into_iter().flatten();
                spans.any(|(span, since)| {
                    let within = || keys.range::<[u8], _>(bounds(&span.first, &span.last));
                    !span.is_empty() && within().any(|(_, changes)| changes > since)
                })
            })
    }

    /// Drops the pieces that have changed since they were computed; whether there were any.
    fn drop_changed(&mut self, pool: &mut Pool) -> bool {
        let pieces = take(&mut self.pieces);
        let (gone, kept): (Vec<_>, Vec<_>) =
            pieces.into_iter().partition(|piece| self.has_changed(piece));
        self.pieces = kept;
        self.changed.clear();
        self.keys_changed = 0;
        let any = !gone.is_empty();
        for piece in gone {
            // What comes in its place is as large, about.
            if !piece.range.last.is_empty() {
                self.ends.push(piece.range.last.clone());
            }
            self.bytes -= piece.bytes();
            piece.rows.into_iter().for_each(|(_, value)| pool.release(value));
        }
        self.ends.sort_unstable_by(|a, b| b.cmp(a));
        self.ends.dedup();
        any
    }

    /// What is to be computed next; nothing where all is there, or the first `limit` pairs are.
    fn next_part(&mut self, limit: u64) -> Option<(usize, KeyRange)> {
        let (mut at, mut pairs) = (self.range.first.clone(), 0);
        let mut place = 0;
        for piece in &self.pieces {
            if piece.range.first != at {
                break;
            }
            pairs += piece.rows.len() as u64;
            place += 1;
            at.clone_from(&piece.range.last);
            if at.is_empty() {
                return None;
            }
        }
        if pairs >= limit || !before_end(&at, &self.range.last) {
            return None;
        }
        let next = self.pieces.get(place).map_or(&self.range.last, |piece| &piece.range.first);
        let mut part = KeyRange::new(&at, next);
        while self.ends.pop_if(|end| *end <= part.first).is_some() {}
        if let Some(end) = self.ends.last().filter(|end| before_end(end, &part.last)) {
            part.last.clone_from(end);
        }
        Some((place, part))
    }

    fn release(self, pool: &mut Pool) {
        let rows = self.pieces.into_iter().flat_map(|piece| piece.rows);
        rows.for_each(|(_, value)| pool.release(value));
    }
}

pub(crate) fn bytes_of(rows: &[Collected]) -> usize {
    rows.iter().map(|(key, _)| key.len() + PAIR_BYTES).sum()
}

/// The merged reads that are collected.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    /// Those of operations that wait, or go on later.
    kept: BTreeMap<Ticket, Vec<Collecting>>,
    /// Those of the operation under way.
    current: Vec<Collecting>,
    /// What the piece under way reads.
    reading: Option<Spans>,
}

impl Collections {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.current.is_empty()
    }

    /// Notes that a range of a table is read, if a piece is under way.
    #[inline]
    pub(crate) fn note_read(&mut self, table: TableId, span: &KeyRange) {
        if let Some(reading) = &mut self.reading
            && let Some(collecting) = self.current.last_mut()
        {
            reading.note(table, span, collecting.changes);
            collecting.note_read(table, span);
        }
    }

    /// Notes that outputs of a join are made current for the piece under way.
    pub(crate) fn note_relied(&mut self, join: u32, span: &KeyRange) {
        if let Some(reading) = &mut self.reading {
            reading.relied.insert((join, span.first.clone(), span.last.clone()));
        }
    }

    /// What the piece under way has read, which is none of what is done until it is given back.
    pub(crate) fn suspend(&mut self) -> Option<Spans> {
        self.reading.take()
    }

    /// Gives back what was taken by [`Collections::suspend`].
    pub(crate) fn go_on(&mut self, reading: Option<Spans>) {
        self.reading = reading;
    }

    /// Whether a piece is under way, which may take as many rows as a slice has.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.reading.is_some()
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Collecting> {
        self.kept.values_mut().flatten().chain(&mut self.current)
    }

    pub(crate) fn note_changed(&mut self, table: TableId, key: &[u8]) {
        self.each().for_each(|collecting| collecting.note_changed(table, key));
    }

    /// Notes that nothing is known any more of what has been collected.
    pub(crate) fn change_all(&mut self) {
        self.each().for_each(Collecting::change_all);
    }

    /// The operation of this ticket is run again next.
    pub(crate) fn resume(&mut self, ticket: Ticket) {
        if !self.kept.is_empty()
            && let Some(kept) = self.kept.remove(&ticket)
        {
            self.current = kept;
        }
    }

    /// Bytes that they take besides the values, which are in the pool.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.values().flatten().chain(&self.current).map(|collecting| collecting.bytes).sum()
    }

    /// Keeps the pairs of a range of a table that were computed for the operation under way.
    pub(crate) fn keep_computed(
        &mut self,
        table: TableId,
        range: KeyRange,
        rows: Vec<Collected>,
        pool: &mut Pool,
    ) {
        let known = |it: &Collecting| it.table == table && it.range == range;
        if let Some(at) = self.current.iter().position(known) {
            self.current.swap_remove(at).release(pool);
        }
        let mut whole = Collecting::new(table, range.clone(), true);
        whole.bytes = bytes_of(&rows);
        whole.pieces.push(Piece { range, rows, read: None, changes: 0 });
        self.current.push(whole);
    }

    /// What was collected of a range of a table.
    pub(crate) fn take(&mut self, table: TableId, range: &KeyRange) -> Option<Vec<Piece>> {
        let known = |it: &Collecting| it.table == table && it.range == *range;
        let at = self.current.iter().position(known)?;
        Some(self.current.swap_remove(at).pieces)
    }
}

impl Engine {
    /// Whether the operation under way collects what it reads of tables that are put together from several places: with one
    /// shard alone.
    pub(crate) fn collects(&self) -> bool {
        self.reads.slices.is_active() && !self.views.from_scratch && self.base.placed.is_none()
    }

    /// Collects the visible pairs of `range`, or its first `limit` ones, which are kept until the operation ends; a slice of the
    /// work. `is_alone`: the operation reads nothing else.
    pub(crate) fn collect(
        &mut self,
        table: TableId,
        range: &KeyRange,
        limit: u64,
        is_alone: bool,
    ) -> Result<(), Stop> {
        let current = &mut self.reads.long_reads.collections.current;
        let known = |it: &Collecting| it.table == table && it.range == *range;
        let collecting = match current.iter().position(known) {
            Some(at) => current.remove(at),
            None => Collecting::new(table, range.clone(), is_alone),
        };
        current.push(collecting);
        self.collect_pieces(limit)
    }

    /// The collection under way. It stays where it is told of what changes, as what pieces rely on is made current.
    fn collecting(&mut self) -> &mut Collecting {
        self.reads.long_reads.collections.current.last_mut().expect("one is under way")
    }

    fn collect_pieces(&mut self, limit: u64) -> Result<(), Stop> {
        let bytes_max = self.reads.long_reads.bytes_max();
        if self.collecting().passes > PASSES_MAX {
            self.reads.slices.give_up();
        }
        loop {
            let Some((place, part)) = self.collecting().next_part(limit) else {
                // What was begun and completed in this run cannot have changed.
                let is_whole = self.collecting().pieces.iter().all(|piece| piece.read.is_none());
                if !is_whole {
                    self.renew_relied().map_err(|Missing| self.stop())?;
                }
                if is_whole || !self.drop_changed_pieces() {
                    return Ok(());
                }
                let collecting = self.collecting();
                collecting.passes += 1;
                if collecting.passes > PASSES_MAX {
                    self.reads.slices.give_up();
                }
                continue;
            };
            if self.reads.slices.lets_others() {
                return Err(self.stop());
            }
            let piece = self.collect_piece(part).map_err(|Missing| self.stop())?;
            let collecting = self.collecting();
            collecting.bytes += piece.bytes();
            let is_too_much = bytes_max > 0 && collecting.bytes > bytes_max;
            if is_too_much && piece.read.is_some() {
                collecting.bytes -= piece.bytes();
                piece.rows.into_iter().for_each(|(_, value)| self.store.pool.release(value));
                return Err(EngineError::TooMuchToCollect.into());
            }
            collecting.pieces.insert(place, piece);
        }
    }

    fn drop_changed_pieces(&mut self) -> bool {
        let current = &mut self.reads.long_reads.collections.current;
        current.last_mut().is_some_and(|last| last.drop_changed(&mut self.store.pool))
    }

    /// Makes what the pieces relied on current once more, which changes what has changed there.
    fn renew_relied(&mut self) -> Result<(), Missing> {
        // What is known to have changed is computed anew anyway: its join may be gone.
        let collecting = self.collecting();
        let pieces = collecting.pieces.iter().filter(|piece| !collecting.has_changed(piece));
        let spans = pieces.filter_map(|piece| piece.read.as_ref());
        let relied: BTreeSet<_> = spans.flat_map(|spans| spans.relied.iter().cloned()).collect();
        let mut missing = Ok(());
        for (join, first, last) in relied {
            if self.ensure(join, &KeyRange { first, last }, None).is_err() {
                missing = Err(Missing);
            }
            if self.reads.slices.is_over() {
                break;
            }
        }
        missing
    }

    /// Computes a part, or the beginning of it that fits into a slice.
    fn collect_piece(&mut self, mut part: KeyRange) -> Result<Piece, Missing> {
        let table = self.collecting().table;
        let visited = self.reads.slices.visited();
        let stored = self.cut_at_rows(table, &mut part);
        let writers = self.views.catalog.writers_within(table, &part);
        let collecting = self.collecting();
        let changes = collecting.changes;
        let is_all = collecting.is_alone && part == collecting.range;
        self.reads.long_reads.collections.reading = Some(Spans::default());
        let mut rows: Vec<Collected> = Vec::new();
        let merged = self.merged_rows(table, &writers, &part, &mut |key, value| {
            rows.push((key.into(), value));
        });
        let read = self.reads.long_reads.collections.reading.take().filter(|_| !is_all);
        if merged.is_err() {
            self.release_row_holds();
            let end = self.reads.slices.take_verified_end();
            self.collecting().ends.extend(end);
            return Err(Missing);
        }
        rows.iter().for_each(|(_, value)| self.store.pool.retain(*value));
        self.release_row_holds();
        self.reads.slices.keep(self.reads.slices.visited() - visited + stored);
        Ok(Piece { range: part, rows, read, changes })
    }

    /// Cuts a part of a table behind as many stored keys as a slice has rows; how many there are.
    fn cut_at_rows(&mut self, table: TableId, part: &mut KeyRange) -> usize {
        let most = self.reads.slices.rows_max();
        let writers = self.views.catalog.writers_within(table, part);
        let layers = writers.iter().map(|&join| self.views.catalog.join(join));
        let layers = layers.filter(|join| join.is_layered()).map(|join| join.layer);
        let mut stored = 0;
        for layer in layers.chain([table]).collect::<Vec<_>>() {
            let (mut found, mut end) = (0, None);
            self.scan_table_until(layer, part, false, &mut |key, _| {
                if found == most {
                    end = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                found += 1;
                ControlFlow::Continue(())
            });
            stored += found;
            if let Some(end) = end {
                part.last = end;
            }
        }
        stored
    }

    /// Keeps what the operation under way has collected until it is run again with this ticket.
    pub(crate) fn keep_collected(&mut self, ticket: Ticket) {
        let collections = &mut self.reads.long_reads.collections;
        if collections.current.is_empty() {
            return;
        }
        let current = take(&mut collections.current);
        // What was read at once was of that moment.
        let (kept, gone): (Vec<_>, Vec<_>) = current
            .into_iter()
            .partition(|collecting| collecting.pieces.iter().all(|piece| piece.read.is_some()));
        if !kept.is_empty() {
            collections.kept.insert(ticket, kept);
        }
        for collecting in gone {
            collecting.release(&mut self.store.pool);
        }
    }

    /// Lets go of what the operation under way has collected.
    #[inline]
    pub(crate) fn forget_collected(&mut self) {
        for collecting in take(&mut self.reads.long_reads.collections.current) {
            collecting.release(&mut self.store.pool);
        }
    }

    /// Nobody waits for this ticket any more.
    pub(crate) fn forget_collected_of(&mut self, ticket: Ticket) {
        let kept = self.reads.long_reads.collections.kept.remove(&ticket);
        for collecting in kept.into_iter().flatten() {
            collecting.release(&mut self.store.pool);
        }
    }
}

impl Reads {
    /// The pairs that were collected last.
    pub(crate) fn collected(&self) -> impl DoubleEndedIterator<Item = &Collected> {
        let pieces = self.long_reads.collections.current.last().map(|last| &last.pieces);
        pieces.into_iter().flatten().flat_map(|piece| &piece.rows)
    }
}
