//! The engine: what it is made of, and its sizes.

use crate::base_data::BaseData;
use crate::ending::Ending;
use crate::functions::Calls;
use crate::group_note::GroupNote;
use crate::memory::{Evicted, Memory};
use crate::notifications::Notifications;
use crate::reads::Reads;
use crate::report::{Counters, Stats, TableReport};
use crate::scratch::Scratch;
use crate::stopwatch::Timing;
use crate::views::Views;
use alloc::rc::Rc;
use alloc::vec::Vec;
use headwater_base::hash::Secret;
use headwater_base::{Limits, Millis};
use headwater_store::{Store, Table, TableId};

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
    /// All keys, base data and outputs alike.
    pub(crate) store: Store<GroupNote>,
    pub(crate) base: BaseData,
    pub(crate) views: Views,
    pub(crate) reads: Reads,
    pub(crate) notifications: Notifications,
    pub(crate) calls: Calls,
    pub(crate) memory: Memory,
    pub(crate) counters: Counters,
    pub(crate) timing: Timing,
    /// When the operation under way ends; `None`: when it is done.
    pub(crate) ending: Option<Rc<Ending>>,
    pub(crate) scratch: Scratch,
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
            base: BaseData::new(secret),
            views: Views::new(secret),
            reads: Reads::default(),
            notifications: Notifications::new(secret),
            calls: Calls::default(),
            memory: Memory::new(secret, draws),
            counters: Counters::default(),
            timing: Timing::default(),
            ending: None,
            scratch: Scratch::default(),
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
            keys_with_expiry: self.base.expiries.len() as u64,
            expired: self.counters.expired,
            value_bytes: self.store.pool.bytes() as u64,
            updaters: self.views.updaters.len() as u64,
            updater_targets: self.views.updaters.targets() as u64,
            updater_bytes: self.views.updaters.bytes() as u64,
            status_ranges: self.views.statuses.len() as u64,
            status_range_bytes: self.views.status_range_bytes() as u64,
            streams: self.base.streams.len() as u64,
            stream_bytes: (self.base.streams.bytes() + self.base.spilling.bytes()) as u64,
            spilled_values: self.base.spilled.len() as u64,
            spilled_bytes: self.base.spilling.disk_bytes(),
            ..Stats::default()
        };
        stats.index_bytes = (self.base.expiries.bytes()
            + self.notifications.marks.bytes()
            + self.memory.bytes()
            + self.notifications.follows.bytes()
            + self.reads.long_reads.bytes()
            + self.reads.listings.bytes()
            + self.base.spilled.bytes()) as u64;
        let choices = self.views.catalog.iter().filter_map(|(_, join)| join.choices.as_ref());
        stats.index_bytes += choices.map(|choices| choices.bytes() as u64).sum::<u64>();
        let layers = self.views.catalog.iter().filter(|(_, join)| join.is_layered());
        let layers = layers.map(|(_, join)| self.store.table(join.layer));
        for table in self.store.tables().map(|(_, table)| table) {
            stats.keys += table.sizes().keys as u64;
            stats.count(table);
        }
        stats.keys -= self.base.replica_count() as u64;
        layers.for_each(|layer| stats.count(layer));
        let counters = &self.counters;
        stats.counters = alloc::vec![
            ("executions", counters.executions),
            ("rows_read", counters.rows_read),
            ("readers_told", counters.readers_told),
            ("fan_outs_noted", counters.fan_outs_noted),
            ("fan_outs_deep", counters.fan_outs_deep),
            ("ranges_gathered", counters.ranges_gathered),
            ("folds_gathered", counters.folds_gathered),
            ("ranges_resumed", counters.ranges_resumed),
            ("ranges_not_resumed", counters.ranges_not_resumed),
            ("tables_visited", self.store.visited()),
            ("joins_compared", self.views.catalog.compared.get()),
            ("updates_applied", counters.updates),
            ("updates_in_place", counters.updates_in_place),
            ("checks_logged", counters.checks_logged),
            ("upstreams_refreshed", counters.upstreams_refreshed),
            ("checks_applied", counters.checks_applied),
            ("folds_stale", counters.folds_stale),
            ("invalidations", counters.invalidations),
            ("values_not_numbers", counters.not_numbers),
            ("values_unreadable", counters.unreadable),
            ("outputs_too_long", counters.outputs_too_long),
            ("compactions", self.memory.compactions),
            ("values_not_mapped", counters.not_mapped),
            ("chunks_evicted", self.memory.evicted.chunks),
            ("chunks_spilled", self.base.spilling.chunks.puts),
            ("chunks_spill_refused", self.base.spilling.chunks.refusals),
            ("chunks_spill_read", self.base.spilling.chunks.gets),
            ("chunks_spill_lost", self.base.spilling.chunks.losses),
            ("values_spilled", self.base.spilling.values.puts),
            ("values_spill_refused", self.base.spilling.values.refusals),
            ("values_spill_read", self.base.spilling.values.gets),
            ("values_spill_lost", self.base.spilling.values.losses),
        ];
        stats
    }

    /// Sets the counters of work back to zero.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
        self.memory.evicted = Evicted::default();
        for id in self.views.catalog.ids() {
            let join = self.views.catalog.join_mut(id);
            join.counters = crate::report::JoinCounters::default();
            if let Some(choices) = &mut join.choices {
                (choices.computed, choices.let_go, choices.kept_again) = (0, 0, 0);
            }
        }
    }

    /// The table of a name, if it exists; an empty name is the unnamed one's.
    #[must_use]
    pub fn table(&self, name: &[u8]) -> Option<TableReport> {
        let id = match name {
            [] => Some(Store::<GroupNote>::UNNAMED),
            _ => self.store.find(&[name, b"|"].concat()),
        };
        id.map(|id| self.report(id, self.store.table(id)))
    }

    fn report(&self, id: TableId, table: &Table<GroupNote>) -> TableReport {
        TableReport { keys: self.own_keys(id) as u64, ..report(table) }
    }

    /// The tables that exist, the unnamed one included, in order of their names.
    #[must_use]
    pub fn tables(&self) -> Vec<TableReport> {
        self.store.tables().map(|(id, table)| self.report(id, table)).collect()
    }
}

impl Stats {
    /// Adds what a table takes.
    fn count(&mut self, table: &Table<GroupNote>) {
        self.groups += table.group_count() as u64;
        self.key_bytes += table.sizes().key_bytes as u64;
        self.index_bytes += index_bytes(table) as u64;
    }
}

/// Bytes of a table beyond its keys' text and its values.
fn index_bytes(table: &Table<GroupNote>) -> usize {
    let sizes = table.sizes();
    sizes.page_bytes.saturating_sub(sizes.key_bytes) + table.directory_bytes()
}

fn report(table: &Table<GroupNote>) -> TableReport {
    let sizes = table.sizes();
    let prefix = table.prefix();
    TableReport {
        name: prefix.strip_suffix(b"|").unwrap_or(prefix).to_vec(),
        boundary: table.boundary(),
        named: !prefix.is_empty(),
        keys: sizes.keys as u64,
        groups: table.group_count() as u64,
        key_bytes: sizes.key_bytes as u64,
        index_bytes: index_bytes(table) as u64,
        value_bytes: sizes.value_bytes as u64,
    }
}
