//! Updaters: which status ranges a change of a source key concerns (Pequod §3.2).
//!
//! When a join has read a span of source keys for a status range, it leaves an *updater*
//! there. All spans that one source pattern reads under the same leading components (all of
//! `p|bob|…`) share one updater; the status ranges that it serves are its *targets*. A poster
//! with ten thousand followers is one updater with ten thousand targets of 8 bytes.
//!
//! A target is a status range and a *context*: the slot values that led to the span and that
//! neither the status range nor the updater's prefix fixes. Equal contexts are stored once.
//! Most timelines need none.
//!
//! # Invariants
//! - U1. A status range's targets are filed for a range that holds it (`Status::filed`): the range itself, or, where
//!   it is the last under its fixed prefix, all up to the end of that prefix, so that nothing is filed anew when it grows.
//!   A target whose span for that range ends before its updater's prefix does lies in `bounded` under exactly this span;
//!   all others lie in `open`. What is beyond the status range is told by a look at it, which a change must touch anyway.
//! - U2. An updater without targets does not exist, nor does a context without targets.
//!
//! # Cost
//! A change finds each updater by one hash of its leading components; finding the targets
//! among bounded spans is O(log n + found). A target costs 8 bytes here and 8 in its status range.

mod context;
mod intervals;
mod targets;

pub(crate) use context::{CONTEXT_ROOM, ContextId, Contexts, NO_CONTEXT, decode, encode};
pub(crate) use targets::{SortedSet, Target};

use crate::span::{Ends, SourceSpans};
use crate::status::{StatusId, reaches_end};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use headwater_base::hash::Secret;
use headwater_base::{InlineBytes, KeyRange};
use headwater_pool::prefetch;
use headwater_store::{GroupId, Index, Slab, TableId, WARM_MAX};
use intervals::Intervals;
use targets::TargetSet;

/// One updater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct UpdaterId(pub(crate) u32);

/// Whose source span an updater watches: a join, and the index of its source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Reader {
    pub(crate) join: u32,
    pub(crate) source: u32,
}

#[derive(Debug)]
struct Updater {
    reader: Reader,
    /// The leading components that all watched keys share.
    prefix: InlineBytes<30>,
    open: TargetSet,
    bounded: Option<Box<Intervals>>,
}

/// How far the way to an updater's targets has been fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trail {
    /// As far as it is worth while.
    End,
    /// The index slot.
    Hash(u64),
    /// The updater's record.
    Updater(UpdaterId),
    /// Its newest targets.
    Targets(UpdaterId),
    /// The status range of its only target, which is not fetched yet.
    Only(StatusId),
    /// That status range.
    Range(StatusId),
    /// The group in which it lies.
    Group(TableId, GroupId),
}

/// All updaters of one shard.
#[derive(Debug)]
pub(crate) struct Updaters {
    updaters: Slab<Updater>,
    by_prefix: Index,
    pub(crate) contexts: Contexts,
    targets: usize,
    bytes: usize,
    secret: Secret,
}

fn hash(secret: &Secret, reader: Reader, prefix: &[u8]) -> u64 {
    secret.hash_of(u64::from(reader.join) << 32 | u64::from(reader.source), prefix)
}

/// The span as U1 files it: `None` where it reaches to the end of its prefix, or where the
/// prefix is a whole key.
fn filed_span<'a>(prefix: &[u8], (first, last): Ends<'a>) -> Option<Ends<'a>> {
    let open = !prefix.ends_with(b"|") || reaches_end(prefix, last);
    (!open).then_some((first, last))
}

fn ends(span: &KeyRange) -> Ends<'_> {
    (&span.first, &span.last)
}

impl Updaters {
    pub(crate) fn new(secret: Secret) -> Self {
        Self {
            updaters: Slab::new(),
            by_prefix: Index::new(),
            contexts: Contexts::new(secret),
            targets: 0,
            bytes: 0,
            secret,
        }
    }

    /// Number of updaters.
    pub(crate) fn len(&self) -> usize {
        self.by_prefix.len()
    }

    /// Number of targets of all updaters.
    pub(crate) fn targets(&self) -> usize {
        self.targets
    }

    /// Bytes of updaters, targets and contexts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.updaters.bytes() + self.by_prefix.bytes() + self.contexts.bytes()
    }

    /// Asserts that nothing is counted where there is nothing.
    pub(crate) fn check_counts(&self) {
        if self.len() == 0 {
            assert_eq!((self.targets(), self.bytes, self.contexts.len()), (0, 0, 0));
        }
    }

    #[inline]
    pub(crate) fn find(&self, reader: Reader, prefix: &[u8]) -> Option<UpdaterId> {
        self.find_hashed(hash(&self.secret, reader, prefix), reader, prefix)
    }

    #[inline]
    fn find_hashed(&self, hash: u64, reader: Reader, prefix: &[u8]) -> Option<UpdaterId> {
        self.by_prefix
            .find(hash, |id| {
                let updater = &self.updaters[id];
                updater.reader == reader && *updater.prefix == *prefix
            })
            .map(UpdaterId)
    }

    /// The updaters of these spans of a join, with the newest targets of each on their way into the processor's cache. One that is
    /// made must be given a target (U2).
    ///
    /// Each is found by a look at a slot, and then at its record: these are taken side by side for many spans, and their misses overlap.
    pub(crate) fn find_or_create_each(
        &mut self,
        join: u32,
        spans: &SourceSpans,
        found: &mut Vec<UpdaterId>,
    ) {
        let mut hashes = [0; WARM_MAX];
        let mut spans = spans.iter();
        while spans.len() > 0 {
            let some = spans.len().min(WARM_MAX);
            let hashes = &mut hashes[..some];
            let reader = |source: usize| Reader { join, source: source as u32 };
            let ahead = spans.clone();
            for (hashed, span) in hashes.iter_mut().zip(ahead) {
                *hashed = hash(&self.secret, reader(span.source), span.prefix);
                self.fetch_slot(*hashed);
            }
            for &hashed in &*hashes {
                self.fetch_record(hashed);
            }
            for (&hashed, span) in hashes.iter().zip(spans.by_ref()) {
                let id = self.find_or_create(hashed, reader(span.source), span.prefix);
                self.fetch_end(id);
                found.push(id);
            }
        }
    }

    fn find_or_create(&mut self, hash: u64, reader: Reader, prefix: &[u8]) -> UpdaterId {
        if let Some(id) = self.find_hashed(hash, reader, prefix) {
            return id;
        }
        let updater = Updater {
            reader,
            prefix: InlineBytes::new(prefix),
            open: TargetSet::default(),
            bounded: None,
        };
        self.bytes += updater.prefix.bytes_elsewhere();
        let id = self.updaters.insert(updater);
        self.by_prefix.insert(hash, id);
        UpdaterId(id)
    }

    fn updater(&self, id: UpdaterId) -> &Updater {
        &self.updaters[id.0]
    }

    /// Whose updater it is, and the leading components that it watches.
    pub(crate) fn describe(&self, id: UpdaterId) -> (Reader, &[u8]) {
        let updater = self.updater(id);
        (updater.reader, &updater.prefix)
    }

    /// Fetches what finding an updater reads first. A hint, as all that follows from it.
    #[inline]
    pub(crate) fn warm_first(&self, reader: Reader, prefix: &[u8]) -> Trail {
        let hash = hash(&self.secret, reader, prefix);
        if self.fetch_slot(hash) { Trail::Hash(hash) } else { Trail::End }
    }

    /// Fetches the slot of the index that a lookup of `hash` reads first; whether there is one.
    #[inline]
    fn fetch_slot(&self, hash: u64) -> bool {
        let slot = self.by_prefix.first_slot(hash);
        slot.into_iter().for_each(prefetch);
        slot.is_some()
    }

    /// Fetches the record of the updater that probably has this hash.
    #[inline]
    fn fetch_record(&self, hash: u64) -> Option<UpdaterId> {
        let id = self.by_prefix.find(hash, |_| true)?;
        self.updaters[id].fetch();
        Some(UpdaterId(id))
    }

    /// Fetches what comes next on the way to an updater's targets.
    #[inline]
    pub(crate) fn warm_next(&self, trail: Trail) -> Trail {
        match trail {
            Trail::Hash(hash) => self.fetch_record(hash).map_or(Trail::End, Trail::Updater),
            Trail::Updater(id) => {
                self.fetch_end(id);
                Trail::Targets(id)
            }
            Trail::Targets(id) => self
                .updater(id)
                .open
                .only()
                .map_or(Trail::End, |target| Trail::Only(target.status())),
            _ => Trail::End,
        }
    }

    /// Fetches what adding the newest target touches. A hint.
    #[inline]
    pub(crate) fn fetch_end(&self, id: UpdaterId) {
        self.updater(id).open.fetch_end();
    }

    /// Adds a target, which is not there, for `span` to the updater of `prefix`.
    #[inline]
    pub(crate) fn add(&mut self, id: UpdaterId, prefix: &[u8], span: Ends<'_>, target: Target) {
        self.file(id, filed_span(prefix, span), target);
    }

    fn file(&mut self, id: UpdaterId, span: Option<Ends<'_>>, target: Target) {
        let updater = &mut self.updaters[id.0];
        self.targets += 1;
        let Some((first, last)) = span else {
            let before = updater.open.bytes();
            updater.open.insert(target);
            self.bytes = self.bytes + updater.open.bytes() - before;
            return;
        };
        let before = updater.bytes();
        updater.bounded.get_or_insert_default().insert(first, last, target);
        self.bytes = self.bytes + updater.bytes() - before;
    }

    fn unfile(&mut self, id: UpdaterId, span: Option<Ends<'_>>, target: Target) -> bool {
        let updater = &mut self.updaters[id.0];
        let before = updater.bytes();
        let removed = match (span, &mut updater.bounded) {
            (None, _) => updater.open.remove(target),
            (Some((first, last)), Some(bounded)) => bounded.remove(first, last, target),
            (Some(_), None) => false,
        };
        self.bytes = self.bytes + updater.bytes() - before;
        self.targets -= usize::from(removed);
        removed
    }

    /// Removes a target that was added for `span`. The updater goes with its last target.
    pub(crate) fn remove(&mut self, id: UpdaterId, span: Ends<'_>, target: Target) {
        let filed = filed_span(&self.updater(id).prefix, span);
        let removed = self.unfile(id, filed, target);
        assert!(removed, "a target is filed under its span (U1)");
        let updater = &mut self.updaters[id.0];
        if updater.open.is_empty() && updater.bounded.as_ref().is_none_or(|spans| spans.is_empty())
        {
            let hash = hash(&self.secret, updater.reader, &updater.prefix);
            self.bytes = self.bytes - updater.prefix.bytes_elsewhere() - updater.bytes();
            self.by_prefix.remove(hash, id.0);
            self.updaters.remove(id.0);
        }
    }

    /// Whether a target is filed under `span`.
    pub(crate) fn is_filed(&self, id: UpdaterId, span: &KeyRange, target: Target) -> bool {
        let updater = self.updater(id);
        let mut found = Vec::new();
        match filed_span(&updater.prefix, ends(span)) {
            None => updater.open.extend(&mut found),
            Some((first, _)) => {
                if let Some(bounded) = &updater.bounded {
                    bounded.stab(first, &mut |targets| targets.extend(&mut found));
                }
            }
        }
        found.contains(&target)
    }

    /// Files a target anew whose span has changed.
    pub(crate) fn refile(&mut self, id: UpdaterId, old: &KeyRange, new: &KeyRange, target: Target) {
        let prefix = self.updater(id).prefix.clone();
        let (old, new) = (filed_span(&prefix, ends(old)), filed_span(&prefix, ends(new)));
        if old == new {
            return;
        }
        let removed = self.unfile(id, old, target);
        assert!(removed, "a target is filed under its span (U1)");
        self.file(id, new, target);
    }

    /// Appends the targets that a change of `key` may concern.
    #[inline]
    pub(crate) fn targets_of(&self, id: UpdaterId, key: &[u8], found: &mut Vec<Target>) {
        let updater = self.updater(id);
        updater.open.extend(found);
        if let Some(bounded) = &updater.bounded {
            bounded.stab(key, &mut |targets| targets.extend(found));
        }
    }

    /// Appends the targets of an updater whose spans may have keys in `range`.
    pub(crate) fn targets_within(&self, id: UpdaterId, range: &KeyRange, found: &mut Vec<Target>) {
        self.updater(id).within(range, found);
    }

    /// Appends the targets of some readers, in order, whose spans may have keys in `range`. A walk over all updaters, once
    /// for all of these readers.
    pub(crate) fn reading(&self, readers: &[Reader], range: &KeyRange, found: &mut Vec<Target>) {
        for updater in self.updaters.iter() {
            if readers.binary_search(&updater.reader).is_ok()
                && KeyRange::prefix(&updater.prefix).overlaps(range)
            {
                updater.within(range, found);
            }
        }
    }

    /// The status ranges with a target under leading components whose range `concerned` names. A walk over all updaters.
    pub(crate) fn reading_where(
        &self,
        concerned: &dyn Fn(&KeyRange) -> bool,
    ) -> BTreeSet<StatusId> {
        let mut found = Vec::new();
        for updater in self.updaters.iter() {
            let whole = !updater.prefix.ends_with(b"|");
            let range = if whole {
                KeyRange::point(&updater.prefix)
            } else {
                KeyRange::prefix(&updater.prefix)
            };
            if concerned(&range) {
                updater.open.extend(&mut found);
                if let Some(bounded) = &updater.bounded {
                    bounded.overlapping(&range, &mut |targets| targets.extend(&mut found));
                }
            }
        }
        found.into_iter().map(Target::status).collect()
    }

    /// Forgets all updaters.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.secret);
    }
}

impl Updater {
    /// Fetches it. A hint.
    #[inline]
    fn fetch(&self) {
        prefetch(self);
        // It may lie in two lines of the cache.
        prefetch(&self.bounded);
    }

    /// Appends the targets whose spans may have keys in `range`.
    fn within(&self, range: &KeyRange, found: &mut Vec<Target>) {
        self.open.extend(found);
        if let Some(bounded) = &self.bounded {
            bounded.overlapping(range, &mut |targets| targets.extend(found));
        }
    }

    fn bytes(&self) -> usize {
        self.open.bytes() + self.bounded.as_ref().map_or(0, |bounded| bounded.bytes())
    }
}
