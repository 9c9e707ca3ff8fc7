//! The engine: what it is made of, and its sizes.

use crate::catalog::Catalog;
use crate::expiry::Expiries;
use crate::fan_out::FanOuts;
use crate::flush::Discarded;
use crate::follow::Follows;
use crate::functions::Calls;
use crate::gaps::AHEAD_MIN;
use crate::gather::Gathering;
use crate::in_the_way::InTheWay;
use crate::keyspace::KeyspaceEvents;
use crate::listing::Listings;
use crate::loads::Loads;
use crate::long_reads::LongReads;
use crate::maintain::Changed;
use crate::marks::Marks;
use crate::memory::Memory;
use crate::noted::Notes;
use crate::removal::Removals;
use crate::report::{Counters, Stats, TableReport};
use crate::shards::Placed;
use crate::slice::Slices;
use crate::snapshots::Window;
use crate::spill::{SpilledValues, Spilling};
use crate::status::{GroupNote, StatusId, Statuses};
use crate::streams::Streams;
use crate::updaters::{Target, UpdaterId, Updaters};
use crate::watches::Watches;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use headwater_base::hash::Secret;
use headwater_base::{KeyRange, Limits, Millis};
use headwater_pool::ValueRef;
use headwater_store::{Store, Table};

/// What an engine is made with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Bounds on keys, values and joins.
    pub limits: Limits,
    /// What the hashes of keys depend on; random in a server, fixed in tests.
    pub secret: Secret,
    /// Seeds what is drawn by chance (keys of RANDOMKEY, candidates of eviction); it may come to light by what was drawn.
    pub draws: u64,
}

/// One shard's keys, joins and everything derived.
///
/// Time is an input: call [`Engine::advance`] before the operations that happen then.
/// Every read sees all earlier writes in every view.
#[derive(Debug)]
pub struct Engine {
    pub(crate) settings: Settings,
    pub(crate) now: Millis,
    pub(crate) store: Store<GroupNote>,
    pub(crate) catalog: Catalog,
    pub(crate) updaters: Updaters,
    pub(crate) statuses: Statuses,
    /// Snapshot ranges in the order in which their time ends.
    pub(crate) snapshots: BTreeSet<(Millis, StatusId)>,
    /// The snapshot that is being computed.
    pub(crate) window: Option<Window>,
    pub(crate) expiries: Expiries,
    /// Ranges that are removed in slices.
    pub(crate) removals: Removals,
    /// What was there before everything was removed.
    pub(crate) discarded: Discarded,
    pub(crate) marks: Marks,
    pub(crate) watches: Watches,
    pub(crate) streams: Streams,
    pub(crate) spilling: Spilling,
    pub(crate) spilled: SpilledValues,
    /// How long an operation may take before others go first.
    pub(crate) slices: Slices,
    /// How many outputs beyond what was asked for are few (G1).
    pub(crate) growth: usize,
    /// Changes that large fan-outs have yet to bring to some ranges.
    pub(crate) fan_outs: FanOuts,
    /// Reads that are given in slices.
    pub(crate) long_reads: LongReads,
    pub(crate) listings: Listings,
    pub(crate) in_the_way: InTheWay,
    /// Ranges that are being gathered.
    pub(crate) gatherings: BTreeMap<StatusId, Gathering>,
    /// Base data that lives elsewhere.
    pub(crate) loads: Loads,
    pub(crate) notes: Notes,
    pub(crate) events: KeyspaceEvents,
    pub(crate) follows: Follows,
    /// Where keys live, if not all here.
    pub(crate) placed: Option<Box<Placed>>,
    pub(crate) calls: Calls,
    /// Changes of outputs that joins have yet to be told of; empty between operations.
    pub(crate) queue: VecDeque<Changed>,
    /// A write is being applied: no execution is under way.
    pub(crate) writing: bool,
    pub(crate) counters: Counters,
    pub(crate) memory: Memory,
    /// Joins are computed from base keys alone, for VERIFY.
    pub(crate) from_scratch: bool,
    /// Values that a merged read has handed out.
    pub(crate) row_holds: Vec<ValueRef>,
    pub(crate) key_room: Vec<u8>,
    /// Room for a row of a source with a lens.
    pub(crate) row_room: Vec<u8>,
    pub(crate) output_room: Vec<u8>,
    pub(crate) entry_room: Vec<u8>,
    pub(crate) updater_room: Vec<UpdaterId>,
    pub(crate) prefix_room: Vec<u8>,
    pub(crate) range_room: Option<KeyRange>,
    pub(crate) target_room: Vec<Target>,
}

impl Engine {
    /// An engine without keys, joins or tables.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let (secret, draws) = (settings.secret, settings.draws);
        Self {
            settings,
            now: Millis(0),
            store: Store::new(secret),
            catalog: Catalog::default(),
            updaters: Updaters::new(secret),
            statuses: Statuses::default(),
            snapshots: BTreeSet::new(),
            window: None,
            expiries: Expiries::new(secret),
            removals: Removals::default(),
            discarded: Discarded::default(),
            marks: Marks::new(secret),
            watches: Watches::default(),
            streams: Streams::default(),
            spilling: Spilling::default(),
            spilled: SpilledValues::default(),
            slices: Slices::default(),
            growth: AHEAD_MIN,
            fan_outs: FanOuts::default(),
            long_reads: LongReads::default(),
            listings: Listings::default(),
            in_the_way: InTheWay::default(),
            gatherings: BTreeMap::new(),
            loads: Loads::default(),
            notes: Notes::default(),
            events: KeyspaceEvents::default(),
            follows: Follows::default(),
            placed: None,
            calls: Calls::default(),
            queue: VecDeque::new(),
            writing: false,
            counters: Counters::default(),
            memory: Memory::new(secret, draws),
            from_scratch: false,
            row_holds: Vec::new(),
            key_room: Vec::new(),
            row_room: Vec::new(),
            output_room: Vec::new(),
            entry_room: Vec::new(),
            updater_room: Vec::new(),
            prefix_room: Vec::new(),
            range_room: None,
            target_room: Vec::new(),
        }
    }

    /// The bounds in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.settings.limits
    }

    /// Changes the bounds for what is written from now on. The key length stays within
    /// [`Limits::KEY_BYTES_CEILING`].
    pub fn set_limits(&mut self, limits: Limits) {
        self.settings.limits = limits;
        let max = &mut self.settings.limits.key_bytes_max;
        *max = (*max).min(Limits::KEY_BYTES_CEILING);
    }

    /// The moment given last to [`Engine::advance`].
    #[must_use]
    pub fn now(&self) -> Millis {
        self.now
    }

    /// Sizes and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            keys: self.key_count(),
            keys_with_expiry: self.expiries.len() as u64,
            expired: self.counters.expired,
            value_bytes: self.store.pool.bytes() as u64,
            updaters: self.updaters.len() as u64,
            updater_targets: self.updaters.targets() as u64,
            updater_bytes: self.updaters.bytes() as u64,
            status_ranges: self.statuses.len() as u64,
            status_range_bytes: self.statuses.bytes() as u64,
            streams: self.streams.len() as u64,
            stream_bytes: (self.streams.bytes() + self.spilling.bytes()) as u64,
            spilled_values: self.spilled.len() as u64,
            spilled_bytes: self.spilling.disk_bytes(),
            ..Stats::default()
        };
        stats.index_bytes = (self.expiries.bytes()
            + self.marks.bytes()
            + self.memory.bytes()
            + self.follows.bytes()
            + self.long_reads.bytes()
            + self.listings.bytes()
            + self.spilled.bytes()) as u64;
        let layers = self.catalog.iter().filter(|(_, join)| join.is_layered());
        let layers = layers.map(|(_, join)| self.store.table(join.layer));
        for table in self.store.tables().map(|(_, table)| table).chain(layers) {
            let report = report(table);
            stats.groups += report.groups;
            stats.key_bytes += report.key_bytes;
            stats.index_bytes += report.index_bytes;
        }
        let counters = &self.counters;
        stats.counters = alloc::vec![
            ("executions", counters.executions),
            ("rows_read", counters.rows_read),
            ("readers_told", counters.readers_told),
            ("fan_outs_noted", counters.fan_outs_noted),
            ("fan_outs_deep", counters.fan_outs_deep),
            ("ranges_gathered", counters.ranges_gathered),
            ("folds_gathered", counters.folds_gathered),
            ("joins_compared", self.catalog.compared.get()),
            ("updates_applied", counters.updates),
            ("updates_in_place", counters.updates_in_place),
            ("checks_logged", counters.checks_logged),
            ("checks_applied", counters.checks_applied),
            ("folds_stale", counters.folds_stale),
            ("invalidations", counters.invalidations),
            ("values_not_numbers", counters.not_numbers),
            ("values_unreadable", counters.unreadable),
            ("compactions", self.memory.compactions),
            ("values_not_mapped", counters.not_mapped),
            ("chunks_evicted", self.memory.evicted.chunks),
            ("chunks_spilled", self.spilling.chunks.puts),
            ("chunks_spill_refused", self.spilling.chunks.refusals),
            ("chunks_spill_read", self.spilling.chunks.gets),
            ("chunks_spill_lost", self.spilling.chunks.losses),
            ("values_spilled", self.spilling.values.puts),
            ("values_spill_refused", self.spilling.values.refusals),
            ("values_spill_read", self.spilling.values.gets),
            ("values_spill_lost", self.spilling.values.losses),
        ];
        stats
    }

    /// Sets the counters of work back to zero.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
        for id in self.catalog.ids() {
            self.catalog.join_mut(id).counters = crate::report::JoinCounters::default();
        }
    }

    /// The tables that exist, the unnamed one included, in order of their names.
    #[must_use]
    pub fn tables(&self) -> Vec<TableReport> {
        self.store
            .tables()
            .map(|(id, table)| TableReport { keys: self.own_keys(id) as u64, ..report(table) })
            .collect()
    }
}

fn report(table: &Table<GroupNote>) -> TableReport {
    let sizes = table.sizes();
    let prefix = table.prefix();
    let pages = sizes.page_bytes.saturating_sub(sizes.key_bytes);
    TableReport {
        name: prefix.strip_suffix(b"|").unwrap_or(prefix).to_vec(),
        boundary: table.boundary(),
        named: !prefix.is_empty(),
        keys: sizes.keys as u64,
        groups: table.group_count() as u64,
        key_bytes: sizes.key_bytes as u64,
        index_bytes: (pages + table.directory_bytes()) as u64,
        value_bytes: sizes.value_bytes as u64,
    }
}
