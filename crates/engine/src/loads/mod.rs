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
//! - L4. An answer of a source is taken in slices, in the order of the keys. What was taken is a loaded range; the rest is a range under way
//!   until its slice comes, of which changes are kept (L2). What ends the one or the other between slices need not know of the load.
//! - L5. An answer of a source may be of a part of what was asked for. That part is loaded; where all was wanted the load goes on with the
//!   rest, as long as somebody waits for it, and what has come stays whatever becomes of the rest.
//! - L6. An answer of a source may come in parts while its query goes on, each from where the one before ended. A part is taken as an answer of its
//!   own, under a number of its own; what is left stays under way under the load's number.
//! - L3. A key of a kept table that is in memory, inside of a loaded range or not, has the value
//!   and the expiry that the embedded store was told last.

mod arrive;
mod brought;
mod data;
mod forget;
mod need;
mod part;
mod ranges;
mod streamed;
mod waits;

pub(crate) use data::LoadedData;
pub(crate) use ranges::Here;
pub(crate) use waits::Waits;

use crate::base_data::BaseData;
use crate::report::Effect;
use crate::shards::{Acceptance, Elsewhere, Suspension};
use crate::sources::{KEPT, Persistence, Sources};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use headwater_base::KeyRange;
use headwater_base::placement::Shard;
use headwater_base::source::{FetchId, Portion};
use headwater_store::TableId;

/// Base data that lives elsewhere: what of it is here, what is on its way, and who waits for that.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    /// The own keys of tables that have a source or are kept, by the tables' numbers.
    own: Vec<Option<Box<LoadedData>>>,
    /// Keys of other shards.
    pub(crate) elsewhere: Elsewhere,
    /// Other shards of which nothing is heard for now.
    pub(crate) suspended: BTreeMap<Shard, Suspension>,
    /// What the operation under way makes of these.
    pub(crate) acceptance: Acceptance,
    pub(crate) waits: Waits,
    pub(crate) sources: Sources,
    pub(crate) persistence: Persistence,
    arriving: Arriving,
}

/// Answers that are taken in slices.
#[derive(Debug, Default)]
struct Arriving {
    /// The loads of which something is left, but for those that were dropped, in the order of their next slices.
    queue: VecDeque<FetchId>,
    /// Rows taken in this turn.
    rows_taken: usize,
}

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

    /// Asks for a range, and its changes from then on. A store and other shards bring all of it.
    fn load(
        &self,
        fetch: FetchId,
        range: KeyRange,
        portion: Portion,
        (waits, persistence): (&mut Waits, &mut Persistence),
    ) {
        waits.effects.push(match self {
            Self::Store(_) => return persistence.load(fetch, &range),
            Self::Source(name) => Effect::Load { fetch, source: name.clone(), range, portion },
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

impl Loads {
    /// The own keys of a table that has a source or is kept.
    #[inline]
    pub(crate) fn own(&self, table: TableId) -> Option<&LoadedData> {
        self.own.get(table.0 as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn own_mut(&mut self, table: TableId) -> Option<&mut LoadedData> {
        self.own.get_mut(table.0 as usize)?.as_deref_mut()
    }

    /// The tables that have a source or are kept.
    pub(crate) fn own_tables(&self) -> Vec<TableId> {
        let tables = self.own.iter().enumerate().filter(|(_, data)| data.is_some());
        tables.map(|(at, _)| TableId(at as u32)).collect()
    }

    /// Has the own keys of a table come from elsewhere from now on.
    pub(crate) fn add_own(&mut self, table: TableId, data: LoadedData) {
        let at = table.0 as usize;
        if self.own.len() <= at {
            self.own.resize_with(at + 1, || None);
        }
        self.own[at] = Some(Box::new(data));
    }

    /// The own keys of a table come from nowhere else any more; who waits for them finds what there is.
    pub(crate) fn end_own(&mut self, table: TableId) {
        let data = self.own.get_mut(table.0 as usize).and_then(Option::take);
        for fetch in data.iter().flat_map(|data| data.fetches()) {
            self.waits.withdraw(fetch);
        }
    }

    /// Whether answers have come that are not wholly taken in.
    #[inline]
    pub(crate) fn are_arriving(&self) -> bool {
        !self.arriving.queue.is_empty()
    }

    /// Whether rows were taken in this turn.
    #[inline]
    pub(crate) fn have_arrived(&self) -> bool {
        self.arriving.rows_taken > 0
    }

    /// What is here of one part of a table's keys.
    pub(crate) fn data(&self, part: LoadedId) -> Option<&LoadedData> {
        match part.home {
            None => self.own(part.table),
            Some(home) => self.elsewhere.data(part.table, home),
        }
    }

    #[inline]
    pub(crate) fn data_mut(&mut self, part: LoadedId) -> Option<&mut LoadedData> {
        self.split(part).map(|(data, ..)| data)
    }

    /// What is here of a part of a table's keys, beside those that are told when more is to come.
    #[inline]
    fn split(&mut self, part: LoadedId) -> Option<(&mut LoadedData, &mut Waits, &mut Persistence)> {
        let data = match part.home {
            None => self.own.get_mut(part.table.0 as usize)?.as_deref_mut(),
            Some(home) => self.elsewhere.data_mut(part.table, home),
        };
        Some((data?, &mut self.waits, &mut self.persistence))
    }

    /// Tells whoever a part came from that the changes of a range are of no interest any more.
    pub(crate) fn unfollow(&mut self, part: LoadedId, range: KeyRange) {
        if let Some((data, waits, _)) = self.split(part) {
            data.provider.unfollow(range, waits);
        }
    }
}

impl BaseData {
    /// Checks L1, and that loads under way are filed as what they are.
    pub(crate) fn check_loads(&self) {
        let mut loads = 0;
        let own = self.loads.own_tables().into_iter().map(LoadedId::own);
        for part in own.chain(self.loads.elsewhere.parts()) {
            let data = self.loads.data(part).expect("what is named is there");
            for (range, load) in data.under_way.iter() {
                assert_eq!(data.ranges.gaps(&range), core::slice::from_ref(&range), "L1");
                assert_eq!(self.loads.waits.load(load.fetch), Some((part, &*range.first)));
                loads += 1;
            }
        }
        assert_eq!(loads, self.loads.waits.loads());
    }
}
