//! Base data that lives elsewhere and is here: what was loaded, is followed, and is on its way.
//!
//! A read of what is not here asks for it to be loaded, from a source, the embedded store or the shard that is
//! home of the keys ([`Provider`]), and waits. When it has come, the operation runs again from its start, and so answers
//! from one state. Reads that lack the same range share one load. What was loaded is followed: whoever it came
//! from tells its changes, until it is told that the range is of no interest any more.
//!
//! [`LoadedData`] is the state of it, for one table and provider. What is particular to sources, to the embedded store and to
//! other shards is in `sources`, `sources/kept` and `shards`.
//!
//! # Invariants
//! - L1. Loaded ranges of a table and provider are disjoint, and so are the ranges under way; a loaded range holds exactly what
//!   the provider had at the later of its load's position and the last change delivered, as far as the keys are those that
//!   are loaded from it (own ones from a source, its own from another shard).
//! - L2. Changes of a range that is being loaded are kept until the load arrives; those up to
//!   the load's position are in it already. Other shards need none kept: their answers and changes come in one order.
//! - L3. A key of a kept table that is in memory, inside of a loaded range or not, has the value
//!   and the expiry that the embedded store was told last.

mod arrive;
mod forget;
mod ranges;
mod waits;

pub(crate) use ranges::{Here, LoadedRanges};
pub(crate) use waits::Waits;

use crate::catalog::Catalog;
use crate::engine::Engine;
use crate::exec::Missing;
use crate::range_map::RangeMap;
use crate::report::Effect;
use crate::sources::{KEPT, Keeping};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::placement::Shard;
use headwater_base::source::{Attributes, FetchId, Loaded, Pair, Position};
use headwater_store::TableId;

/// Where base data is loaded from, and its changes come from.
#[derive(Clone, Debug)]
pub(crate) enum Provider {
    /// The embedded store: clients write the table, and it is told of every write.
    Store(KeptReads),
    /// A source, by its name.
    Source(String),
    /// The shard that is home of the keys.
    Home(Shard),
}

/// How keys of a kept table were asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeptReads {
    /// One by one: they are evicted one by one.
    Keys,
    /// In ranges of several keys, at times.
    Ranges,
}

impl Provider {
    /// What it is called where sources have names.
    fn name(&self) -> String {
        match self {
            Self::Store(_) => String::from(KEPT),
            Self::Source(name) => name.clone(),
            Self::Home(home) => format!("shard-{}", home.0),
        }
    }

    /// Asks for a range, and its changes from then on.
    fn load(&self, fetch: FetchId, range: KeyRange, waits: &mut Waits, keeping: &mut Keeping) {
        waits.effects.push(match self {
            Self::Store(_) => return keeping.load(fetch, &range),
            Self::Source(name) => Effect::Load { fetch, source: name.clone(), range },
            Self::Home(home) => Effect::LoadFrom { fetch, home: *home, range },
        });
    }

    /// Says that the changes of a range are of no interest any more.
    pub(crate) fn unfollow(&self, range: KeyRange, waits: &mut Waits) {
        waits.effects.push(match self {
            // Its changes are this engine's own.
            Self::Store(_) => return,
            Self::Source(name) => Effect::Unfollow { source: name.clone(), range },
            Self::Home(home) => Effect::UnfollowAt { home: *home, range },
        });
    }
}

/// The keys of a table that come from one provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoadedId {
    pub(crate) table: TableId,
    /// The other shard that is home of them; `None`: they are own keys, and come from the table's source or store.
    pub(crate) home: Option<Shard>,
}

impl LoadedId {
    /// The own keys of a table.
    pub(crate) fn own(table: TableId) -> Self {
        Self { table, home: None }
    }
}

/// What is here of one provider's keys of a table.
#[derive(Debug)]
pub(crate) struct LoadedData {
    pub(crate) provider: Provider,
    pub(crate) ranges: LoadedRanges,
    under_way: RangeMap<Load>,
    /// Where the provider stands, as far as is known here: the last change delivered.
    pub(crate) seen: Position,
}

/// A load under way.
#[derive(Debug)]
struct Load {
    fetch: FetchId,
    /// Where the provider stood, as far as known here, when the load was asked for.
    asked_at: Position,
    /// Changes that it may not show (L2).
    changes: Vec<Late>,
}

/// A change that a load under way may not show.
#[derive(Debug)]
struct Late {
    position: Position,
    key: Vec<u8>,
    value: Held,
}

/// What a key holds; nothing where there is no such key.
type Held = Option<(Vec<u8>, Attributes)>;

impl Load {
    /// The pairs of its answer with the changes that came after it (L2).
    fn with_changes(self, loaded: Loaded) -> Vec<Pair> {
        let late = self.changes.into_iter().filter(|late| late.position > loaded.position);
        let late: BTreeMap<_, _> = late.map(|Late { key, value, .. }| (key, value)).collect();
        let mut pairs = loaded.pairs;
        pairs.retain(|pair| !late.contains_key(&pair.key));
        let written = late.into_iter().filter_map(|(key, value)| Some((key, value?)));
        pairs.extend(written.map(|(key, (value, attributes))| Pair { key, value, attributes }));
        pairs
    }
}

impl LoadedData {
    pub(crate) fn new(provider: Provider) -> Self {
        Self {
            provider,
            ranges: LoadedRanges::default(),
            under_way: RangeMap::default(),
            seen: Position(0),
        }
    }

    /// Whether clients write the table, and the embedded store is told.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.provider, Provider::Store(_))
    }

    /// The source that has the keys, as clients name it.
    pub(crate) fn source(&self) -> &str {
        match &self.provider {
            Provider::Source(name) => name,
            Provider::Store(_) | Provider::Home(_) => KEPT,
        }
    }

    /// Notes that a range was asked for.
    #[inline]
    pub(crate) fn note_read(&mut self, range: &KeyRange) {
        if let Provider::Store(reads) = &mut self.provider
            && !is_point(range)
        {
            *reads = KeptReads::Ranges;
        }
    }

    /// How many loads are under way.
    pub(crate) fn loading(&self) -> usize {
        self.under_way.len()
    }

    /// The loads under way.
    pub(crate) fn fetches(&self) -> impl Iterator<Item = FetchId> {
        self.under_way.iter().map(|(_, load)| load.fetch)
    }

    /// Takes out the loads under way of ranges that `concerned` names.
    pub(crate) fn take_loads(
        &mut self,
        concerned: impl Fn(&KeyRange, FetchId) -> bool,
    ) -> Vec<(KeyRange, FetchId)> {
        let taken = self.under_way.take_where(|range, load| concerned(range, load.fetch));
        taken.into_iter().map(|(range, load)| (range, load.fetch)).collect()
    }

    /// Asks for the parts of `gaps` that are not on their way, of those that `is_wanted` names.
    ///
    /// # Errors
    /// The operation under way lacks some of `gaps` until they have come.
    pub(crate) fn ask(
        &mut self,
        part: LoadedId,
        gaps: &[KeyRange],
        is_wanted: impl Fn(&KeyRange) -> bool,
        (waits, keeping): (&mut Waits, &mut Keeping),
    ) -> Result<(), Missing> {
        let mut missing = Ok(());
        for gap in gaps {
            for (_, load) in self.under_way.overlapping(gap) {
                missing = Err(Missing);
                waits.lacking.insert(load.value.fetch);
            }
            for range in self.under_way.gaps(gap).into_iter().filter(&is_wanted) {
                missing = Err(Missing);
                let fetch = waits.begin_load(part, &range.first);
                let load = Load { fetch, asked_at: self.seen, changes: Vec::new() };
                self.under_way.insert(&range, load);
                self.provider.load(fetch, range, waits, keeping);
            }
        }
        missing
    }

    /// Notes a change for the load under way that it may come too late for (L2).
    pub(crate) fn note(&mut self, position: Position, key: &[u8], value: impl Fn() -> Held) {
        if let Some(load) = self.under_way.around_mut(key) {
            load.value.changes.push(Late { position, key: key.to_vec(), value: value() });
        }
    }

    /// Answers of loads under way that are older than the last change delivered are of no use.
    pub(crate) fn ask_anew(&mut self) {
        for load in self.under_way.overlapping_mut(&KeyRange::all()) {
            load.asked_at = self.seen;
        }
    }
}

/// Whether the range holds one key alone.
pub(crate) fn is_point(range: &KeyRange) -> bool {
    range.last.split_last().is_some_and(|(end, key)| *end == 0 && key == range.first)
}

impl Catalog {
    /// The table's own keys that come from a source or the embedded store.
    #[inline]
    pub(crate) fn sourced_mut(&mut self, table: TableId) -> Option<&mut LoadedData> {
        self.role_mut(table)?.sourced.as_deref_mut()
    }
}

impl Engine {
    /// What is here of a part of a table's keys, where they live elsewhere.
    pub(crate) fn loaded_data(&self, part: LoadedId) -> Option<&LoadedData> {
        match part.home {
            None => self.catalog.role(part.table)?.sourced.as_deref(),
            Some(home) => self.placed.as_deref()?.data(part.table, home),
        }
    }

    pub(super) fn loaded_data_mut(&mut self, part: LoadedId) -> Option<&mut LoadedData> {
        match part.home {
            None => self.catalog.sourced_mut(part.table),
            Some(home) => self.placed.as_deref_mut()?.data_mut(part.table, home),
        }
    }

    /// Checks L1, and that loads under way are filed as what they are.
    pub(crate) fn check_loads(&self) {
        let mut loads = 0;
        let elsewhere = self.placed.iter().flat_map(|placed| placed.parts());
        let own = self.catalog.sourced_tables().into_iter().map(LoadedId::own);
        for part in own.chain(elsewhere) {
            let data = self.loaded_data(part).expect("what is named is there");
            for (range, load) in data.under_way.iter() {
                assert_eq!(data.ranges.gaps(&range), core::slice::from_ref(&range), "L1");
                assert_eq!(self.waits.load(load.fetch), Some((part, &*range.first)));
                loads += 1;
            }
        }
        assert_eq!(loads, self.waits.loads());
    }
}
