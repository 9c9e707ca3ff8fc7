//! `auto` joins: which of their ranges are kept up to date, and which are computed by each read.
//!
//! To keep a range costs work with each change of what it was computed from, whether it is read or not. Not to keep it costs a
//! computation with each read. Both are counted in rows, so that the choice depends on what is done, and on no clock.
//!
//! A range that is kept has an [`Account`]. What computing it for a read would have taken is added, what a change took is
//! subtracted, and there is never more in it than [`PATIENCE`] computations of what is usually read, or one of all of it. When
//! nothing is left it is *let go*: its outputs and targets go, and nobody maintains it. So a range that is read no more costs about
//! as much as it cost to compute it.
//!
//! From then on its reads are computed ([`crate::computed`]), and a [`Record`] has the balance: what each computation took is added,
//! and what the changes since the read before would have taken is subtracted. These are not known, as nobody counts them, but how many
//! came while it was kept, of so many changes of the join's tables, is. When the balance has reached [`KEPT_AGAIN_AFTER`] computations, and one
//! of all that the range held, the range is kept again. So a choice changes only where the other one would have saved more than changing
//! it costs.
//!
//! A range that was never read before is kept, or computed first, as turned out well for those that came before it ([`Prior`]).
//!
//! # Invariants
//! - H1. Only a range is let go that nobody follows and no other join's range depends on: who reads it through these would have
//!   it computed again at once.
//! - H2. What is chosen changes no answer: what is computed is what is kept, or would be.
//! - H3. Records are bounded ([`RECORDS_MAX`] for each join): where two fall on one place the later one stays. A range without a record is one
//!   that was never read.
//!
//! # Cost
//! A change of a range subtracts from a word that is looked at for each anyway. An account is looked at after as many changes as there
//! are rows in it, by a quarter at a time.

use crate::account::{Account, PATIENCE, changes_in, rate_of};
use crate::catalog::Plan;
use crate::engine::Engine;
use crate::status::{Fixed, Status, StatusId};
use crate::views::Views;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_pattern::{Mode, Operator};
use headwater_store::{GroupId, TableId};

/// A range is kept again when so many of its reads would have been saved.
const KEPT_AGAIN_AFTER: u64 = 2;
/// Accounts are looked at after so many changes, at least.
const CHANGES_MIN: u64 = 16;
/// Most records of a join, of 32 bytes each (H3).
const RECORDS_MAX: usize = 1 << 16;
const RECORDS_MIN: usize = 1 << 8;
/// With each computed read a rate becomes less by this part: so one that has become wrong is measured anew some day.
const RATE_FADES_SHIFT: u32 = 7;
/// After so many changes of ranges those before count half for the rate of an average range.
const RATE_WINDOW: u64 = 1 << 16;
/// The choice for ranges that were never read changes when keeping was right for so many more of the last ranges than computing, or the reverse.
const PRIOR_MOST: i32 = 16;
/// Ranges are let go with one write until they had so many rows: the others wait for the next one, or the next turn.
pub(crate) const LET_GO_ROWS: usize = 256;
/// A range with more outputs than this is not removed at once when it is let go: its outputs stay until it is computed again.
const OUTPUTS_MAX: u32 = 4096;
/// The same bound where ranges are let go [eagerly](Engine::choose_eagerly): ranges of the tests' histories have a few outputs, and some stay.
const OUTPUTS_MAX_EAGERLY: u32 = 2;

/// What is known of a range that is not kept, or was not.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    hash: u64,
    /// Rows that keeping it would have saved.
    balance: u32,
    /// Rows that computing all of it took when it was let go.
    whole: u32,
    /// Changes of the join's tables at the last read.
    read_at: u64,
    /// How often it changes.
    rate: u32,
    state: RecordState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RecordState {
    #[default]
    Vacant,
    /// Computed since its first read, and whether that was good is to be found out.
    Trial,
    /// Computed by each read.
    Computed,
    /// The next read makes it kept.
    Kept,
    /// Always kept by a read, as more rows must be looked at for it than a slice has.
    Large,
}

/// Whether a range that was never read is kept by its first read.
#[derive(Debug, Default)]
struct Prior {
    /// By how many ranges one was better than the other.
    lead: i32,
    computes: bool,
}

impl Prior {
    /// It turned out that keeping a range from its first read on was right, or would have been; or the reverse.
    fn learn(&mut self, lead: i32) {
        self.lead = (self.lead + lead).clamp(-PRIOR_MOST, PRIOR_MOST);
        if self.lead.abs() == PRIOR_MOST {
            self.computes = self.lead < 0;
        }
    }
}

/// What an `auto` join has learnt.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    records: Vec<Record>,
    used: usize,
    prior: Prior,
    /// Changes of kept ranges, and of the join's tables while each of these was kept.
    changes: u64,
    ticks: u64,
    /// Reads that were computed.
    pub(crate) computed: u64,
    /// Ranges that were let go.
    pub(crate) let_go: u64,
    /// Ranges that are kept again after they were computed for some reads.
    pub(crate) kept_again: u64,
}

impl Choices {
    /// What a join has learnt that has done nothing yet; nothing where its mode leaves no choice.
    pub(crate) fn of(mode: Mode) -> Option<Box<Self>> {
        (mode == Mode::Auto).then(Box::default)
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.records.capacity() * size_of::<Record>()
    }

    fn place(&self, hash: u64) -> usize {
        hash as usize & self.records.len().wrapping_sub(1)
    }

    fn record(&self, hash: u64) -> Option<&Record> {
        let record = self.records.get(self.place(hash))?;
        (record.state != RecordState::Vacant && record.hash == hash).then_some(record)
    }

    /// The record of a range, or a new one in its place.
    fn record_mut(&mut self, hash: u64) -> &mut Record {
        let is_crowded = 2 * self.used >= self.records.len();
        if is_crowded && self.records.len() < RECORDS_MAX {
            let more = (2 * self.records.len()).max(RECORDS_MIN);
            let old = core::mem::replace(&mut self.records, alloc::vec![Record::default(); more]);
            self.used = 0;
            for record in old.into_iter().filter(|old| old.state != RecordState::Vacant) {
                let place = self.place(record.hash);
                self.used += usize::from(self.records[place].state == RecordState::Vacant);
                self.records[place] = record;
            }
        }
        let place = self.place(hash);
        let record = &mut self.records[place];
        if record.state == RecordState::Vacant {
            self.used += 1;
        }
        if record.state == RecordState::Vacant || record.hash != hash {
            *record = Record { hash, ..Record::default() };
        }
        record
    }

    fn computes(&self, hash: u64) -> bool {
        match self.record(hash).map(|record| record.state) {
            None | Some(RecordState::Vacant) => self.prior.computes,
            Some(RecordState::Trial | RecordState::Computed) => true,
            Some(RecordState::Kept | RecordState::Large) => false,
        }
    }

    /// How often an average range changes.
    fn rate(&self) -> u32 {
        rate_of(self.changes, self.ticks)
    }

    fn note_rate(&mut self, changes: u64, ticks: u64) {
        self.changes += changes;
        self.ticks = self.ticks.saturating_add(ticks);
        if self.changes > RATE_WINDOW {
            self.changes /= 2;
            self.ticks /= 2;
        }
    }

    /// A read was computed that visited so many rows. Keeping its range is worth while when it would have saved some such reads, and what
    /// computing all of it takes.
    fn note_computed(&mut self, hash: u64, rows: u64, eagerly: bool, tick: u64) {
        self.computed += 1;
        let rate = self.rate();
        let record = self.record_mut(hash);
        let mut lead = 0;
        if record.state == RecordState::Vacant {
            (record.rate, record.state) = (rate, RecordState::Trial);
        } else {
            let spent = changes_in(record.rate, tick - record.read_at);
            let reads = KEPT_AGAIN_AFTER * rows;
            let worth = if eagerly { 1 } else { reads.max(u64::from(record.whole)) };
            let worth = u32::try_from(worth).unwrap_or(u32::MAX);
            let balance = (u64::from(record.balance) + rows).saturating_sub(spent);
            record.balance = u32::try_from(balance).map_or(worth, |balance| balance.min(worth));
            record.rate -= record.rate >> RATE_FADES_SHIFT;
            let is_trial = record.state == RecordState::Trial;
            let keeps = record.balance == worth;
            if is_trial && (keeps || spent > rows) {
                lead = if keeps { 1 } else { -1 };
                record.state = RecordState::Computed;
            }
            if keeps {
                record.state = RecordState::Kept;
                self.kept_again += 1;
            }
        }
        self.record_mut(hash).read_at = tick;
        self.prior.learn(lead);
    }

    /// Too many rows must be looked at to compute a range for one read: it is kept when it is read.
    fn note_large(&mut self, hash: u64) {
        self.record_mut(hash).state = RecordState::Large;
    }

    fn note_let_go(&mut self, hash: u64, whole: u64, (rate, tick): (u32, u64), in_vain: bool) {
        self.let_go += 1;
        let record = self.record_mut(hash);
        (record.balance, record.rate) = (0, rate);
        record.whole = u32::try_from(whole).unwrap_or(u32::MAX);
        record.read_at = tick;
        if record.state != RecordState::Large {
            record.state = RecordState::Computed;
        }
        if in_vain {
            self.prior.learn(-2);
        }
    }
}

impl Status {
    /// How many outputs it has, about.
    fn outputs(&self) -> u32 {
        self.rows.saturating_sub(u32::try_from(self.targets.len()).unwrap_or(u32::MAX)) / 2
    }

    /// Rows that a computation of the whole range would visit, about.
    fn rows_in_all(&self) -> u64 {
        self.visited().max(self.targets.len() as u64 + 1)
    }

    /// Rows that computing so many reads would have visited, which showed so many outputs together.
    fn rows_of_reads(&self, plan: &Plan, reads: u64, shown: u64) -> u64 {
        let (whole, targets) = (self.rows_in_all(), self.targets.len() as u64);
        if plan.together_at.is_some() {
            return reads * whole;
        }
        match plan.operator {
            // Each source of values is sought, and what is shown is looked at.
            Operator::Copy | Operator::Index | Operator::Map => reads * (targets + 1) + shown,
            _ => {
                let outputs = u64::from(self.outputs()).max(1);
                (whole * shown / outputs).min(reads * whole).max(reads)
            }
        }
    }
}

impl Engine {
    /// Has ranges of `auto` joins let go, and kept again, as soon as anything speaks for it, for tests: histories are short there.
    pub fn choose_eagerly(&mut self) {
        self.views.catalog.chooses_eagerly = true;
    }

    /// What the reads of a range are remembered by: what all its keys have in common.
    fn choice_hash(&self, join: u32, range: &KeyRange) -> u64 {
        let fixed = Fixed::of(&self.views.catalog.join(join).plan.join.output, range);
        self.memory.range_hash(join, &range.first[..fixed.prefix_bytes])
    }

    /// Whether a read of `range` is to be computed, and nothing of it kept.
    pub(crate) fn computes(&self, join: u32, range: &KeyRange) -> bool {
        let installed = self.views.catalog.join(join);
        let Some(choices) = &installed.choices else { return false };
        if installed.is_layered() || self.views.from_scratch || self.base.is_elsewhere(range) {
            return false;
        }
        let kept = self.views.status_at(join, &range.first).map(|id| self.views.statuses.get(id));
        if kept.is_some_and(|kept| !kept.is_invalid() && kept.covers(&range.first, &range.last)) {
            return false;
        }
        choices.computes(self.choice_hash(join, range))
    }

    /// A read of `range` was computed, which visited so many rows.
    pub(crate) fn note_computed(&mut self, join: u32, range: &KeyRange, rows: u64) {
        let (hash, tick) = (self.choice_hash(join, range), self.views.tick_of(join));
        let eagerly = self.views.catalog.chooses_eagerly;
        if let Some(choices) = &mut self.views.catalog.join_mut(join).choices {
            choices.note_computed(hash, rows, eagerly, tick);
        }
    }

    /// A read of `range` takes more rows than a slice has.
    pub(crate) fn note_large(&mut self, join: u32, range: &KeyRange) {
        let hash = self.choice_hash(join, range);
        if let Some(choices) = &mut self.views.catalog.join_mut(join).choices {
            choices.note_large(hash);
        }
    }

    /// The account of a range that begins to be kept; `None` where the join leaves no choice.
    pub(crate) fn open_account(&self, join: u32, range: &KeyRange) -> Option<Box<Account>> {
        let choices = self.views.catalog.join(join).choices.as_ref()?;
        let tick = self.views.tick_of(join);
        let granted = if self.views.catalog.chooses_eagerly { 1 } else { CHANGES_MIN as u32 };
        let is_trial = choices.record(self.choice_hash(join, range)).is_none();
        Some(Box::new(Account::open(granted, is_trial, tick)))
    }

    /// Notes what a read of a range of a table has saved where `auto` joins keep it: so many outputs were shown, and so many rows had
    /// to be visited for it. `group` holds all of the range, where there is one that does.
    pub(crate) fn credit_read(
        &mut self,
        (table, group): (TableId, Option<GroupId>),
        range: &KeyRange,
        shown: u64,
        visited: u64,
    ) {
        let some = self.views.catalog.some_writers(table, range);
        for at in 0.. {
            let Some(join) = self.views.catalog.nth_writer(table, some.as_deref(), at) else {
                break;
            };
            let installed = self.views.catalog.join(join);
            if installed.choices.is_none() {
                continue;
            }
            let plan = installed.plan.clone();
            if let Some(id) = group.and_then(|group| self.noted_range(join, (table, group), range))
            {
                self.views.credit(id, &plan, shown, visited);
                continue;
            }
            let mut visited = visited;
            for id in self.views.overlapping(join, range) {
                visited = self.views.credit(id, &plan, shown, visited);
            }
        }
    }

    /// The same of a read that the note of a group has served.
    #[inline]
    pub(crate) fn credit_group(&mut self, table: TableId, group: GroupId, shown: u64) {
        self.store.table_mut(table).0.note_mut(group).credit(shown);
    }

    /// Looks at accounts in which nothing is left, and lets ranges go, until these had so many rows. To be called between operations, or
    /// when a write is done.
    pub(crate) fn settle_accounts(&mut self, most: usize) {
        let mut rows = 0;
        while rows < most
            && let Some(id) = self.views.statuses.exhausted.pop()
        {
            rows += 1 + self.settle_account(id);
        }
    }

    /// Looks at an account; how many rows went, if the range was let go.
    fn settle_account(&mut self, id: StatusId) -> usize {
        let Some(status) = self.views.statuses.find(id) else { return 0 };
        if status.account().is_none() || self.views.statuses.landing(id).budget > 0 {
            return 0;
        }
        let (join, rows, whole) = (status.join, status.rows, status.rows_in_all());
        let eagerly = self.views.catalog.chooses_eagerly;
        let (stays, tick) = (self.must_stay(id), self.views.tick_of(join));
        let least = match (stays, eagerly) {
            (true, _) => PATIENCE * whole,
            (false, true) => 1,
            (false, false) => CHANGES_MIN,
        };
        let seen = self.rows_shown(id);
        let Some(account) = self.views.statuses.get_mut(id).account_mut() else { return 0 };
        let (spent, ticks) = (u64::from(account.granted), tick - account.looked);
        let has_paid = account.look(seen, whole, eagerly, tick);
        let granted = (account.balance > 0 || stays).then(|| account.grant(least));
        let (rate, in_vain) = (account.rate(), account.is_trial);
        let changes = u32::try_from(account.spent_in_all).unwrap_or(u32::MAX);
        let hash = self.choice_hash(join, &self.views.statuses.get(id).range());
        if let Some(choices) = &mut self.views.catalog.join_mut(join).choices {
            choices.note_rate(spent, ticks);
            choices.prior.learn(i32::from(has_paid));
            if granted.is_none() {
                choices.note_let_go(hash, whole, (rate, tick), in_vain);
            }
        }
        match granted {
            Some(granted) => {
                self.views.statuses.grant(id, granted);
                return 0;
            }
            None => {
                let outputs = self.views.statuses.get(id).outputs().saturating_add(changes);
                let most = if eagerly { OUTPUTS_MAX_EAGERLY } else { OUTPUTS_MAX };
                if outputs > most {
                    self.invalidate(id);
                } else {
                    self.discard(id);
                }
            }
        }
        rows as usize
    }

    /// How many reads the note of a range's group has counted, and rows that computing them would have visited. From now on it counts others.
    fn rows_shown(&mut self, id: StatusId) -> (u64, u64) {
        let status = self.views.statuses.get(id);
        let Some(group) = status.group else { return (0, 0) };
        let installed = self.views.catalog.join(status.join);
        let note = self.store.table_mut(installed.layer).0.note_mut(group);
        let (reads, shown) = note.take_reads(id);
        (reads, status.rows_of_reads(&installed.plan, reads, shown))
    }

    /// Whether a range may not be let go, whatever it costs (H1).
    fn must_stay(&self, id: StatusId) -> bool {
        let status = self.views.statuses.get(id);
        let installed = self.views.catalog.join(status.join);
        let is_read = status.dependents().iter().any(|by| self.views.statuses.find(by).is_some());
        is_read
            || installed.is_layered()
            || status.work.as_ref().is_some_and(|work| work.invalid || work.gathering)
            || (self.is_followed(installed.plan.output_table)
                && self.notifications.is_any_followed(&status.range()))
    }

    /// What is chosen for `range`, and why; `None` where the join leaves no choice.
    pub(crate) fn explain_choice(&self, join: u32, range: &KeyRange) -> Option<String> {
        let installed = self.views.catalog.join(join);
        let choices = installed.choices.as_ref()?;
        let kept = self.views.overlapping(join, range);
        if let Some(account) = kept.first().and_then(|&id| self.views.statuses.get(id).account()) {
            let more = match kept.len() {
                1 => String::new(),
                ranges => format!(" (the first of {ranges} ranges)"),
            };
            return Some(format!(
                "kept{more}: reads have saved {} rows, changes have taken {}",
                account.saved_in_all, account.spent_in_all
            ));
        }
        let record = choices.record(self.choice_hash(join, range));
        Some(match record.map(|record| (record, record.state)) {
            Some((_, RecordState::Kept)) => String::from("kept again from the next read on"),
            Some((_, RecordState::Large)) => String::from(
                "let go; kept by the next read, as it takes more rows than a slice has",
            ),
            Some((record, _)) => format!(
                "computed by each read: keeping it would have saved {} rows since, with {} of 1000 changes concerning it",
                record.balance,
                changes_in(record.rate, 1000)
            ),
            None if choices.prior.computes => String::from(
                "computed by the first reads, as most ranges that were kept at once were not read again",
            ),
            None => String::from("kept by the first read"),
        })
    }
}

impl Views {
    /// How many changes the tables have had that a join reads.
    fn tick_of(&self, join: u32) -> u64 {
        let mut tables: &[_] = &self.catalog.join(join).plan.source_tables;
        let mut tick = 0;
        while let [table, rest @ ..] = tables {
            if !rest.contains(table) {
                tick += self.catalog.role(*table).map_or(0, |role| role.changes);
            }
            tables = rest;
        }
        tick
    }

    /// Notes that a read of a range has saved what computing so many outputs takes, of which so many rows had to be visited
    /// nevertheless. Gives how many of these are others' to subtract.
    fn credit(&mut self, id: StatusId, plan: &Plan, shown: u64, visited: u64) -> u64 {
        let status = self.statuses.get_mut(id);
        let rows = status.rows_of_reads(plan, 1, shown);
        if let Some(account) = status.account_mut() {
            account.save(rows.saturating_sub(visited));
        }
        visited.saturating_sub(rows)
    }

    /// Notes that one output was read of a range that is kept.
    #[inline]
    pub(crate) fn credit_key(&mut self, id: StatusId) {
        let status = self.statuses.get_mut(id);
        if status.account().is_none() {
            return;
        }
        let plan = &self.catalog.join(status.join).plan;
        let is_copy = matches!(plan.operator, Operator::Copy | Operator::Index | Operator::Map);
        let rows = match is_copy && plan.together_at.is_none() {
            true => plan.join.sources.len() as u64 + 1,
            false => status.rows_of_reads(plan, 1, 1),
        };
        if let Some(account) = status.account_mut() {
            account.save(rows);
        }
    }

    /// Whether accounts wait to be looked at.
    pub(crate) fn has_exhausted(&self) -> bool {
        !self.statuses.exhausted.is_empty()
    }
}
