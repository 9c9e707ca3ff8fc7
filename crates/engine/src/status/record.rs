//! The record of one status range, packed: materialized ranges are many, and most of what one may have it has not.

use super::{Fixed, Work};
use crate::account::Account;
use crate::status::StatusId;
use crate::updaters::{ContextId, SortedSet, UpdaterId};
use alloc::boxed::Box;
use alloc::rc::Rc;
use headwater_base::key::{before_end, end_at_most, prefix_end};
use headwater_base::{KeyRange, Limits, Millis};
use headwater_policy::Heat;
use headwater_store::GroupId;

/// One status range.
#[derive(Debug)]
pub(crate) struct Status {
    /// The range's first key, then what is behind its last: nothing where it has no end. Ranges of several joins that hold the
    /// same of one group have it together.
    ends: Rc<[u8]>,
    /// `None`: clean.
    pub(crate) work: Option<Box<Work>>,
    /// Every target that serves this range.
    pub(crate) targets: SortedSet<(UpdaterId, ContextId)>,
    /// Dependencies between ranges, an expiry and an account, which few ranges have.
    rare: Option<Box<Rare>>,
    /// When it was computed.
    pub(crate) since: Millis,
    pub(crate) join: u32,
    /// Rows of sources and outputs that computing it took, about.
    pub(crate) rows: u32,
    /// Rows that recomputing it would visit, about; no more than fit.
    visited: u32,
    /// The slots of [`Fixed`], then the rest of it.
    slots: u32,
    prefix_bytes: u16,
    components: u16,
    first_bytes: u16,
    /// Whether the range reaches to the end of its fixed prefix.
    pub(crate) open: bool,
    /// Whether its targets are filed as if it did, so that they stay where they are as it grows.
    pub(crate) rooted: bool,
    /// Whether outputs of other homes may lie in it, of which only own ones are its.
    pub(crate) sifted: bool,
    /// How it is used; a group that notes the range knows better.
    pub(crate) heat: Heat,
    /// The group of the output table in which the whole range lies.
    pub(crate) group: Option<GroupId>,
}

const _: () = assert!(size_of::<Status>() == 96, "a size that allocators have");
const _: () =
    assert!(Limits::KEY_BYTES_CEILING < u16::MAX as usize, "ends are keys, or just behind one");

/// What few status ranges have.
#[derive(Debug)]
struct Rare {
    dependents: SortedSet<StatusId>,
    sources: SortedSet<StatusId>,
    /// [`NEVER`], where it does not expire.
    expires_at: Millis,
    account: Option<Box<Account>>,
}

const _: () = assert!(size_of::<Rare>() == 64, "a size that allocators have");

const NEVER: Millis = Millis(u64::MAX);

impl Default for Rare {
    fn default() -> Self {
        let (dependents, sources) = (SortedSet::EMPTY, SortedSet::EMPTY);
        Self { dependents, sources, expires_at: NEVER, account: None }
    }
}

impl Rare {
    fn is_empty(&self) -> bool {
        self.dependents.is_empty()
            && self.sources.is_empty()
            && self.expires_at == NEVER
            && self.account.is_none()
    }
}

/// What a range without others beside it depends on.
static NONE: SortedSet<StatusId> = SortedSet::EMPTY;

impl Status {
    /// The last moment at which a range may expire.
    pub(crate) const EXPIRES_LAST: Millis = Millis(NEVER.0 - 1);

    /// A clean range, of which nothing is known yet; `beside` is another one, which may have the same ends.
    pub(crate) fn new(join: u32, range: &KeyRange, fixed: Fixed, beside: Option<&Self>) -> Self {
        let number = |number: usize| u16::try_from(number).expect("keys are short");
        let mut status = Self {
            ends: Rc::default(),
            work: None,
            targets: SortedSet::default(),
            rare: None,
            since: Millis(0),
            join,
            rows: 0,
            visited: 0,
            slots: fixed.slots,
            prefix_bytes: number(fixed.prefix_bytes),
            components: number(fixed.components),
            first_bytes: 0,
            open: false,
            rooted: false,
            sifted: false,
            heat: Heat::default(),
            group: None,
        };
        match beside.filter(|other| other.is_of(range)) {
            Some(other) => status.share_range(other),
            None => status.set_range(range),
        }
        status
    }

    /// Whether its ends are those of `range`.
    pub(crate) fn is_of(&self, range: &KeyRange) -> bool {
        *self.first() == *range.first && *self.last() == *range.last
    }

    fn share_range(&mut self, other: &Self) {
        (self.ends, self.first_bytes) = (other.ends.clone(), other.first_bytes);
        self.open = super::is_open(self.prefix(), self.last());
    }

    /// Gives it other ends, which fix the same.
    pub(crate) fn set_range(&mut self, range: &KeyRange) {
        self.first_bytes = u16::try_from(range.first.len()).expect("keys are short");
        self.ends = [&*range.first, &*range.last].concat().into();
        self.open = super::is_open(self.prefix(), self.last());
    }

    /// The range's first key.
    #[inline]
    pub(crate) fn first(&self) -> &[u8] {
        &self.ends[..usize::from(self.first_bytes)]
    }

    /// What is behind the range's last key; empty: it has no end.
    #[inline]
    pub(crate) fn last(&self) -> &[u8] {
        &self.ends[usize::from(self.first_bytes)..]
    }

    /// What all keys of the range have in common.
    #[inline]
    pub(crate) fn fixed(&self) -> Fixed {
        Fixed {
            prefix_bytes: usize::from(self.prefix_bytes),
            components: usize::from(self.components),
            slots: self.slots,
        }
    }

    /// The leading components that all keys of the range share.
    #[inline]
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.ends[..usize::from(self.prefix_bytes)]
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.work.is_none()
    }

    pub(crate) fn range(&self) -> KeyRange {
        KeyRange::new(self.first(), self.last())
    }

    /// The range for which its targets are filed: it holds at least this one (U1).
    pub(crate) fn filed(&self) -> KeyRange {
        self.filed_wider().unwrap_or_else(|| self.range())
    }

    /// The range for which its targets are filed, where that is not this range itself.
    pub(crate) fn filed_wider(&self) -> Option<KeyRange> {
        (self.rooted && !self.open)
            .then(|| KeyRange { first: self.first().to_vec(), last: prefix_end(self.prefix()) })
    }

    /// Makes `range` this range.
    pub(crate) fn copy_range(&self, range: &mut KeyRange) {
        range.first.clear();
        range.first.extend_from_slice(self.first());
        range.last.clear();
        range.last.extend_from_slice(self.last());
    }

    /// Whether `key` lies in the range.
    #[inline]
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        *self.first() <= *key && before_end(key, self.last())
    }

    /// Whether all of `[first, last)` lies in the range.
    #[inline]
    pub(crate) fn covers(&self, first: &[u8], last: &[u8]) -> bool {
        *self.first() <= *first && end_at_most(last, self.last())
    }

    /// Whether what follows the fixed prefix in a key tells if the key lies in the range.
    #[inline]
    pub(crate) fn ends_by_suffix(&self) -> bool {
        self.open || self.last().starts_with(self.prefix())
    }

    /// Whether the key in which `suffix` follows the fixed prefix lies in the range, of which
    /// [`Status::ends_by_suffix`] holds.
    #[inline]
    pub(crate) fn contains_suffix(&self, suffix: &[u8]) -> bool {
        let prefix_bytes = usize::from(self.prefix_bytes);
        *suffix >= self.first()[prefix_bytes..]
            && (self.open || *suffix < self.last()[prefix_bytes..])
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.invalid)
    }

    /// Rows that recomputing it would visit, about: what its executions visited, with what came and
    /// went since where it has folds.
    #[inline]
    pub(crate) fn visited(&self) -> u64 {
        u64::from(self.visited)
    }

    /// Recomputing it would visit so many rows.
    #[inline]
    pub(crate) fn set_visited(&mut self, rows: u64) {
        self.visited = u32::try_from(rows).unwrap_or(u32::MAX);
    }

    /// Recomputing it would visit so many rows more.
    #[inline]
    pub(crate) fn visits_more(&mut self, rows: u64) {
        self.set_visited(self.visited().saturating_add(rows));
    }

    /// Recomputing it would visit so many rows less.
    #[inline]
    pub(crate) fn visits_less(&mut self, rows: u64) {
        self.set_visited(self.visited().saturating_sub(rows));
    }

    /// Ranges of other joins that read this one.
    pub(crate) fn dependents(&self) -> &SortedSet<StatusId> {
        self.rare.as_ref().map_or(&NONE, |rare| &rare.dependents)
    }

    /// Ranges of other joins that this one read.
    pub(crate) fn sources(&self) -> &SortedSet<StatusId> {
        self.rare.as_ref().map_or(&NONE, |rare| &rare.sources)
    }

    /// Another range has read this one.
    pub(crate) fn add_dependent(&mut self, id: StatusId) {
        self.rare.get_or_insert_default().dependents.insert(id);
    }

    /// It has read another range.
    pub(crate) fn add_source(&mut self, id: StatusId) {
        self.rare.get_or_insert_default().sources.insert(id);
    }

    /// Another range that has read this one, or not, does so no more.
    pub(crate) fn remove_dependent(&mut self, id: StatusId) {
        self.change_rare(|rare| rare.dependents.remove(id));
    }

    /// A range that it has read, or not, is of no interest any more.
    pub(crate) fn remove_source(&mut self, id: StatusId) {
        self.change_rare(|rare| rare.sources.remove(id));
    }

    /// Takes out who has read it.
    pub(crate) fn take_dependents(&mut self) -> SortedSet<StatusId> {
        self.change_rare(|rare| core::mem::take(&mut rare.dependents)).unwrap_or_default()
    }

    /// Takes out what it has read.
    pub(crate) fn take_sources(&mut self) -> SortedSet<StatusId> {
        self.change_rare(|rare| core::mem::take(&mut rare.sources)).unwrap_or_default()
    }

    fn change_rare<R>(&mut self, change: impl FnOnce(&mut Rare) -> R) -> Option<R> {
        let rare = self.rare.as_mut()?;
        let result = change(rare);
        if rare.is_empty() {
            self.rare = None;
        }
        Some(result)
    }

    /// Snapshots: the moment from which it may not be read.
    #[inline]
    pub(crate) fn expires_at(&self) -> Option<Millis> {
        self.rare.as_ref().map(|rare| rare.expires_at).filter(|at| *at != NEVER)
    }

    /// It may not be read from this moment on, which is [`Status::EXPIRES_LAST`] or before.
    pub(crate) fn expire_at(&mut self, at: Millis) {
        debug_assert!(at <= Self::EXPIRES_LAST, "what is behind it means never");
        self.rare.get_or_insert_default().expires_at = at;
    }

    /// What keeping it has saved and cost, where its join chooses which ranges it keeps.
    #[inline]
    pub(crate) fn account(&self) -> Option<&Account> {
        self.rare.as_ref()?.account.as_deref()
    }

    /// Its account, to be changed.
    #[inline]
    pub(crate) fn account_mut(&mut self) -> Option<&mut Account> {
        self.rare.as_mut()?.account.as_deref_mut()
    }

    /// Gives it an account.
    pub(crate) fn set_account(&mut self, account: Box<Account>) {
        self.rare.get_or_insert_default().account = Some(account);
    }

    /// Bytes beside its record.
    pub(crate) fn bytes(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| {
            size_of::<Rare>()
                + rare.dependents.bytes()
                + rare.sources.bytes()
                + rare.account.as_ref().map_or(0, |_| size_of::<Account>())
        });
        let work = self.work.as_ref().map_or(0, |work| work.bytes());
        let ends = (2 * size_of::<usize>() + self.ends.len()) / Rc::strong_count(&self.ends);
        ends + self.targets.bytes() + rare + work
    }
}
