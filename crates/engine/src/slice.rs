//! Work in slices: what takes long lets others go first.
//!
//! An operation that is sliced counts the source rows that its executions visit. When these are as many as a slice
//! has, it ends as one does that waits for data, and its ticket is woken by [`Engine::go_on`], which the
//! loop calls once in each of its turns. The operation is run again from its start then, and finds what it has
//! computed: status ranges are its memory. So a range that takes more rows than a slice has is divided at an output
//! key, and its parts are computed one after the other; what changes between them is maintained as everything
//! else that is materialized. The answer comes from the last run alone, and so from one moment.
//!
//! # Invariants
//! - Z1. Each slice makes progress: a range is computed, or one is divided. A range that cannot be divided (one
//!   output key, for example) is [gathered](crate::gather), or else computed as a whole, however many rows it takes.
//! - Z2. An operation that finds again and again undone what it has computed (because others write faster than it reads, or
//!   snapshots go before it has come to its end) is run as a whole after [`PASSES_MAX`] times, whatever others read
//!   meanwhile of the same join.
//! - Z3. What a read has computed goes after everything else that can be evicted. Where it went nevertheless
//!   [`SHORT_PASSES_MAX`] times, all of it does not fit into memory at one moment: the read fails for want of memory, and is not
//!   run as a whole.

use crate::choose::LET_GO_ROWS;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::explain::Verified;
use crate::report::{Effect, Ticket};
use crate::status::StatusId;
use crate::views::Views;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::key::before_end;

/// How often an operation begins its range anew before it is run as a whole (Z2).
const PASSES_MAX: u32 = 4;
/// How often it begins anew because some of what it had computed was evicted (Z3).
const SHORT_PASSES_MAX: u32 = 2;
/// How many reads of different ranges of one join are remembered that have come some way; of more of them, those that have not
/// gone on for longest begin anew. (Clients may have given them up.)
pub(crate) const SLICED_READS_MAX: usize = 256;

/// The slice of the operation under way, and the operations that have had one.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    /// Source rows that a sliced operation may visit before others go first. `None`: none is sliced.
    rows: Option<usize>,
    /// Whether the operation under way is sliced.
    active: bool,
    /// Source rows that it has visited since it was run, for what is kept when it ends for now.
    used: usize,
    /// All source rows that it has visited.
    visited: usize,
    /// It has had its slice, and goes on later.
    over: bool,
    /// How often it has begun its range anew because some of that was evicted (Z3).
    short_passes: u32,
    /// How often what reads had computed was evicted; and how often it was when the operation under way was begun: what went before is
    /// nothing to it.
    losses: u64,
    losses_before: u64,
    /// The latter, and its short passes, of operations that wait or go on later.
    short: BTreeMap<Ticket, (u64, u32)>,
    /// What is run next was run before.
    is_resumed: bool,
    /// How many executions are under way, each within the one before it.
    depth: usize,
    /// Who goes on, in this order.
    later: VecDeque<Ticket>,
    /// What operations that wait, or go on later, have verified so far.
    verified: BTreeMap<Ticket, Verified>,
    /// The operation that is run again.
    resumed: Option<Verified>,
    /// Where a part ends that fits into a slice.
    verified_end: Option<Vec<u8>>,
}

/// How far the reads of one range of a join's outputs have come.
#[derive(Debug)]
pub(crate) struct Frontier {
    wanted: KeyRange,
    /// Everything before it was current when the last slice ended.
    at: Vec<u8>,
    /// How often the range was begun anew.
    passes: u32,
    /// All of it was computed once.
    was_whole: bool,
    /// The last time that some of what was computed was evicted, as [`Slices::losses`] counts.
    lost_at: u64,
}

impl Frontier {
    /// Whether some of a range was computed for the read.
    fn has_computed(&self, first: &[u8], last: &[u8]) -> bool {
        (self.was_whole || *first < *self.at)
            && before_end(first, &self.wanted.last)
            && (last.is_empty() || *last > *self.wanted.first)
    }
}

impl Slices {
    /// How many rows a slice has; `None` where nothing is sliced.
    pub(crate) fn rows(&self) -> Option<usize> {
        self.rows
    }

    /// Whether the operation under way is sliced.
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// How many source rows one execution may visit.
    pub(crate) fn rows_max(&self) -> usize {
        self.rows.filter(|_| self.active).unwrap_or(usize::MAX)
    }

    /// Notes that an execution of the operation under way has visited so many source rows.
    #[inline]
    pub(crate) fn visit(&mut self, rows: usize) {
        self.visited += rows;
    }

    /// Source rows that the operation under way has visited, in executions that have ended.
    #[inline]
    pub(crate) fn visited(&self) -> usize {
        self.visited
    }

    /// Notes that what came of so many source rows is kept. (What is not must not count, or an operation that
    /// computes much that is stored nowhere would never come to anything else: Z1.)
    #[inline]
    pub(crate) fn keep(&mut self, rows: usize) {
        self.used += rows.max(1);
    }

    /// Whether something that came of the operation under way is kept.
    pub(crate) fn has_kept(&self) -> bool {
        self.active && self.used > 0
    }

    /// Whether the operation under way is to end for now.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// The operation under way goes on with this ticket.
    pub(crate) fn keep_short_passes(&mut self, ticket: Ticket) {
        if self.active {
            self.short.insert(ticket, (self.losses_before, self.short_passes));
        }
    }

    /// Ends the operation under way for now.
    pub(crate) fn end_for_now(&mut self) {
        self.over = true;
    }

    /// Whether the operation under way has used its slice up; if so it is to end for now.
    pub(crate) fn lets_others(&mut self) -> bool {
        self.over |= self.used >= self.rows_max();
        self.over
    }

    /// An execution begins; how many it is within.
    pub(crate) fn enter(&mut self) -> usize {
        self.depth += 1;
        self.depth - 1
    }

    /// The execution that began last has ended.
    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Whether the operation under way has used half of its slice.
    pub(crate) fn is_half_over(&self) -> bool {
        self.visited >= self.rows_max() / 2
    }

    /// The operation under way is done as a whole from now on.
    pub(crate) fn give_up(&mut self) {
        self.active = false;
    }

    /// Lets the operation under way go on later.
    pub(crate) fn postpone(&mut self, ticket: Ticket) {
        self.later.push_back(ticket);
    }

    /// What the operation that is run again has verified.
    pub(crate) fn take_verified(&mut self) -> Option<Verified> {
        self.resumed.take()
    }

    /// Where the next part to be verified ends, if all of what is left was too much.
    pub(crate) fn take_verified_end(&mut self) -> Option<Vec<u8>> {
        self.verified_end.take()
    }

    /// Notes where a part ends that fits into a slice.
    pub(crate) fn divide_verified(&mut self, at: Option<Vec<u8>>) {
        if at.is_some() {
            self.verified_end = at;
        }
    }

    /// Keeps what the operation under way has verified, which is run again at once.
    pub(crate) fn resume_verified(&mut self, verified: Verified) {
        self.resumed = Some(verified);
    }

    /// Keeps what an operation has verified until it is run again.
    pub(crate) fn keep_verified(&mut self, ticket: Ticket, verified: Verified) {
        self.verified.insert(ticket, verified);
    }
}

impl Engine {
    /// Sets how many source rows an operation may visit before others go first; `None`: all that it needs. Only
    /// what is run between [`Engine::begin_slice`] and [`Engine::end_slice`] is sliced.
    pub fn set_slice(&mut self, rows: Option<usize>) {
        self.reads.slices.rows = rows.map(|rows| rows.max(2));
    }

    /// What comes now is one operation, which is sliced.
    #[inline]
    pub fn begin_slice(&mut self) {
        let slices = &mut self.reads.slices;
        slices.active = slices.rows.is_some();
        slices.used = 0;
        slices.visited = 0;
        slices.over = false;
        if !slices.is_resumed {
            slices.short_passes = 0;
            slices.losses_before = slices.losses;
        }
        slices.verified_end = None;
    }

    /// The operation has ended, for now or for good.
    #[inline]
    pub fn end_slice(&mut self) {
        self.reads.slices.active = false;
        self.reads.slices.over = false;
        self.reads.slices.is_resumed = false;
        self.ending = None;
        self.base.loads.waits.forget_lacking();
        self.base.loads.waits.brought.end_operation();
        self.base.removals.end_operation();
        self.reads.listings.end_operation();
        self.reads.hints.end_operation();
        self.views.in_the_way.end_operation();
        if self.reads.slices.resumed.is_some() {
            self.reads.slices.resumed = None;
        }
        self.forget_resumed_read();
        if !self.reads.long_reads.is_empty() {
            self.forget_collected();
        }
    }

    /// The operation of this ticket is run again next.
    pub fn resume(&mut self, ticket: Ticket) {
        self.base.removals.resume(ticket);
        if let Some(short) = self.reads.slices.short.remove(&ticket) {
            self.reads.slices.is_resumed = true;
            (self.reads.slices.losses_before, self.reads.slices.short_passes) = short;
        }
        self.reads.listings.resume(ticket);
        self.reads.hints.resume(ticket);
        self.base.loads.waits.brought.resume(ticket);
        self.views.in_the_way.resume(ticket);
        if !self.reads.slices.verified.is_empty() {
            self.reads.slices.resumed = self.reads.slices.verified.remove(&ticket);
        }
        self.reads.resume_long_read(ticket);
        self.reads.long_reads.collections.resume(ticket);
    }

    /// Nobody waits for this ticket any more.
    pub fn forget_ticket(&mut self, ticket: Ticket) {
        self.reads.slices.verified.remove(&ticket);
        self.reads.slices.short.remove(&ticket);
        self.forget_long_read(ticket);
        self.forget_collected_of(ticket);
        self.base.removals.forget(ticket);
        self.reads.listings.forget(ticket);
        self.reads.hints.forget(ticket);
        self.base.loads.waits.brought.forget(ticket);
        self.views.in_the_way.forget(ticket);
        self.forget_later(ticket);
    }

    /// The operation of this ticket is run again at once, not when its turn comes.
    pub fn forget_later(&mut self, ticket: Ticket) {
        self.reads.slices.later.retain(|later| *later != ticket);
    }

    /// Wakes the operation whose next slice it is, and does the next slice of a large fan-out, of a removal, of what is loaded, of what expires and of memory that
    /// is given back, and of keys that are grouped. To be called once in
    /// each turn of the loop.
    pub fn go_on(&mut self) {
        if !self.views.fan_outs.is_empty() {
            self.feed_in_turn();
        } else if self.reads.slices.later.is_empty() {
            self.views.forget_waited();
        }
        if self.views.has_exhausted() {
            self.settle_accounts(LET_GO_ROWS);
        }
        if self.base.loads.are_arriving() || self.base.loads.have_arrived() {
            self.take_answers_in_turn();
        }
        if self.is_late() {
            self.expire_slice();
        }
        if self.has_discarded() {
            self.dissolve(self.reads.slices.rows().unwrap_or(usize::MAX));
        }
        if self.store.is_regrouping() {
            self.regroup_slice();
        }
        if self.base.removals.is_under_way() {
            self.remove_slice(self.reads.slices.rows().unwrap_or(usize::MAX));
        }
        if let Some(ticket) = self.reads.slices.later.pop_front() {
            self.base.loads.waits.effects.push(Effect::Wake(ticket));
        }
    }

    /// A ticket that is woken in one of the next turns.
    pub fn later_ticket(&mut self) -> Ticket {
        let ticket = self.next_ticket();
        self.reads.slices.postpone(ticket);
        ticket
    }

    /// Whether something has had a slice and is to go on.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        !self.reads.slices.later.is_empty()
            || !self.views.fan_outs.is_empty()
            || self.base.removals.is_under_way()
            || self.base.loads.are_arriving()
            || self.has_discarded()
            || self.store.is_regrouping()
            || self.is_late()
    }

    /// Where a read of `wanted` begins that was ended for now before; nothing where it begins at the start.
    ///
    /// # Errors
    /// It does not fit into memory (Z3).
    pub(crate) fn frontier(
        &mut self,
        join: u32,
        wanted: &KeyRange,
    ) -> Result<Option<Vec<u8>>, Missing> {
        if !self.reads.slices.active {
            return Ok(None);
        }
        let frontiers = &self.views.catalog.join(join).frontiers;
        let found = frontiers.iter().find(|frontier| frontier.wanted == *wanted);
        let Some(frontier) = found else { return Ok(None) };
        let is_short = frontier.lost_at > self.reads.slices.losses_before;
        if is_short && self.reads.slices.short_passes + 1 >= SHORT_PASSES_MAX {
            self.views.forget_frontier(join, wanted);
            self.memory.gave_up_for_good();
            return Err(Missing);
        }
        if frontier.passes >= PASSES_MAX {
            self.reads.slices.active = false;
            return Ok(None);
        }
        Ok(Some(frontier.at.clone()))
    }

    /// A read of `wanted` has come to its end, and looks at all of it once more; as a whole if that has happened too
    /// often (Z2).
    pub(crate) fn begin_anew(&mut self, join: u32, wanted: &KeyRange) {
        let frontiers = &mut self.views.catalog.join_mut(join).frontiers;
        if let Some(frontier) = frontiers.iter_mut().find(|frontier| frontier.wanted == *wanted) {
            frontier.at.clone_from(&wanted.first);
            frontier.was_whole = true;
            if core::mem::take(&mut frontier.lost_at) > self.reads.slices.losses_before {
                self.reads.slices.short_passes += 1;
            } else {
                frontier.passes += 1;
            }
            if frontier.passes >= PASSES_MAX {
                self.reads.slices.active = false;
            }
        }
    }

    /// Whether a range was computed for a read that goes on: it goes last (Z3).
    pub(crate) fn is_awaited(&self, id: StatusId) -> bool {
        let status = self.views.statuses.get(id);
        let frontiers = &self.views.catalog.join(status.join).frontiers;
        frontiers.iter().any(|frontier| frontier.has_computed(status.first(), status.last()))
            || self.reads.long_reads.await_some_of(
                self.views.catalog.join(status.join).layer,
                status.first(),
                status.last(),
            )
    }

    /// Notes for the reads that it was computed for that a range, which is about to be evicted, goes, and with it what was
    /// computed from it (Z3).
    pub(crate) fn note_short(&mut self, id: StatusId) {
        if self.memory.evicts_at_will {
            return;
        }
        self.reads.slices.losses += 1;
        let mut going = alloc::vec![id];
        while let Some(id) = going.pop() {
            let Some(status) = self.views.statuses.find(id) else { continue };
            status.dependents().extend(&mut going);
            for frontier in &mut self.views.catalog.join_mut(status.join).frontiers {
                if frontier.has_computed(status.first(), status.last()) {
                    frontier.lost_at = self.reads.slices.losses;
                }
            }
        }
    }

    /// A read of `wanted` has come to its end, and all of that is current.
    pub(crate) fn end_at_frontier(&mut self, join: u32, wanted: &KeyRange) {
        if self.views.forget_frontier(join, wanted).is_some() {
            self.reads.slices.short_passes = 0;
        }
    }
}

impl Views {
    /// A read of `wanted` has come as far as `at`, and ends for now.
    pub(crate) fn note_frontier(&mut self, join: u32, wanted: &KeyRange, at: Vec<u8>) {
        let known = self.forget_frontier(join, wanted);
        let mut frontier = known.unwrap_or_else(|| Frontier {
            wanted: wanted.clone(),
            at: Vec::new(),
            passes: 0,
            was_whole: false,
            lost_at: 0,
        });
        frontier.at = at;
        let frontiers = &mut self.catalog.join_mut(join).frontiers;
        if frontiers.len() >= SLICED_READS_MAX {
            frontiers.remove(0);
        }
        frontiers.push(frontier);
    }

    /// A read of `wanted` begins at its start.
    pub(crate) fn forget_frontier(&mut self, join: u32, wanted: &KeyRange) -> Option<Frontier> {
        let frontiers = &mut self.catalog.join_mut(join).frontiers;
        let at = frontiers.iter().position(|frontier| frontier.wanted == *wanted)?;
        Some(frontiers.remove(at))
    }
}
