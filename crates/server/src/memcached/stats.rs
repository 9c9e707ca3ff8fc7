//! `stats`: the state of the server in memcached's names, as far as they mean something here.
//!
//! There are no slabs: all items are in one class, so that tools which add classes up are right. What memcached counts of parts
//! that are not there (crawlers, moves between its lists, pages of slabs) never happens, and is 0; what it tells that is not known
//! here is left out rather than made up.

use super::details::DELIMITERS;
use super::encoder;
use crate::connection::Phase;
use crate::resp::{ShardService, Turn};
use core::fmt::Display;
use headwater_base::memory::Meter;
use headwater_command::items::{Counted, Written};
use headwater_protocol::memcached::{Encoder, VERSION, Words};

/// A page of memcached's slabs, in bytes.
const PAGE_BYTES: u64 = 1 << 20;

/// What memcached counts of parts that are not there.
const NEVER: [&str; 29] = [
    "listen_disabled_num",
    "time_in_listen_disabled_us",
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "lru_crawler_running",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "malloc_fails",
    "log_worker_dropped",
    "log_worker_written",
    "log_watcher_skipped",
    "log_watcher_sent",
    "log_watchers",
    "slab_global_page_pool",
    "crawler_reclaimed",
    "crawler_items_checked",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "lru_bumps_dropped",
];

/// What is counted since the start, or since `stats reset`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(super) get_hits: u64,
    pub(super) get_misses: u64,
    pub(super) sets: u64,
    pub(super) flushes: u64,
    pub(super) invoked: u64,
    pub(super) metas: u64,
    pub(super) touch_hits: u64,
    pub(super) touch_misses: u64,
    /// Touches that read the value as well (`gat`), counted apart.
    pub(super) gat_hits: u64,
    pub(super) gat_misses: u64,
    pub(super) too_large: u64,
    pub(super) no_memory: u64,
    pub(super) yields: u64,
    pub(super) logins: u64,
    pub(super) login_errors: u64,
    delete_hits: u64,
    delete_misses: u64,
    incr_hits: u64,
    incr_misses: u64,
    decr_hits: u64,
    decr_misses: u64,
    cas_hits: u64,
    cas_misses: u64,
    cas_badval: u64,
}

impl Counts {
    /// Keys that were read, and those that were not there.
    pub(crate) fn lookups(&self) -> (u64, u64) {
        (self.get_hits + self.gat_hits, self.get_misses + self.gat_misses)
    }

    /// Keys whose lifetime was to be changed by `touch` or `gat`, and those that were not there.
    fn touches(&self) -> (u64, u64) {
        (self.touch_hits + self.gat_hits, self.touch_misses + self.gat_misses)
    }

    /// A value was to be stored; `compared`: over a version that was seen.
    #[inline]
    pub(super) fn stored(&mut self, compared: bool, written: Written) {
        if compared {
            let counter = match written {
                Written::Done(_) => &mut self.cas_hits,
                Written::Changed => &mut self.cas_badval,
                Written::Missing | Written::Refused => &mut self.cas_misses,
            };
            *counter += 1;
        }
    }

    /// An item was to be removed.
    pub(super) fn deleted(&mut self, done: bool) {
        let counter = if done { &mut self.delete_hits } else { &mut self.delete_misses };
        *counter += 1;
    }

    /// An item was to be counted up or down.
    pub(super) fn counted(&mut self, down: bool, counted: &Counted) {
        let hit = match counted {
            Counted::Done { made, .. } => !made,
            Counted::Missing => false,
            // It was there, and is as it was.
            Counted::NotNumber | Counted::Changed => return,
        };
        let counter = match (down, hit) {
            (false, true) => &mut self.incr_hits,
            (false, false) => &mut self.incr_misses,
            (true, true) => &mut self.decr_hits,
            (true, false) => &mut self.decr_misses,
        };
        *counter += 1;
    }
}

/// Writes statistics one by one.
struct Told<'o>(Encoder<'o>);

impl Told<'_> {
    fn all<T: Display>(&mut self, numbers: impl IntoIterator<Item = (&'static str, T)>) {
        for (name, number) in numbers {
            self.0.stat(name, &number);
        }
    }
}

impl ShardService {
    /// Counts from 0 again: CONFIG RESETSTAT, and `stats reset`.
    pub(crate) fn reset_counters(&mut self) {
        self.figures.stats.reset();
        self.node.engine_mut().reset_counters();
        self.node.reset_lookups();
        self.memcached.counts = Counts::default();
    }

    /// `stats` of some kind.
    pub(super) fn memcached_stats(&mut self, mut words: Words<'_>, work: &mut Turn<'_>) {
        match words.next() {
            None => self.stats_general(work),
            Some(b"reset") => {
                self.memcached.details.reset();
                self.reset_counters();
                encoder(work).line("RESET");
            }
            Some(b"settings") => self.stats_settings(work),
            Some(b"items") => self.stats_items(work),
            Some(b"slabs") => self.stats_slabs(work),
            Some(b"sizes") => {
                let mut out = encoder(work);
                out.stat("sizes_status", &"disabled");
                out.end();
            }
            Some(b"conns") => stats_connections(work),
            Some(b"detail") => self.stats_detail(words.next(), work),
            Some(_) => self.figures.memcached_refused("ERROR", work),
        }
    }

    fn stats_general(&self, work: &mut Turn<'_>) {
        let counts = self.memcached.counts;
        let engine = self.node.engine();
        let stats = engine.stats();
        let evicted = engine.evicted();
        let (touch_hits, touch_misses) = counts.touches();
        let (time, open) = (work.time, work.peers.open());
        let usage = |at| crate::resp::cpu_seconds(at);
        let limit = self.bound.gauge.bound().unwrap_or(0);
        let mut told = Told(encoder(work));
        told.all([("pid", u64::from(std::process::id()))]);
        told.all([("uptime", time.uptime / 1000), ("time", time.wall.0 / 1000)]);
        told.all([("version", VERSION)]);
        told.all([("headwater_version", env!("CARGO_PKG_VERSION"))]);
        told.all([("pointer_size", usize::BITS)]);
        told.all([
            ("rusage_user", format!("{:.6}", usage(11))),
            ("rusage_system", format!("{:.6}", usage(12))),
        ]);
        told.all([
            ("max_connections", self.settings.bounds.clients_max as u64),
            ("curr_connections", open as u64),
            ("total_connections", self.figures.stats.connections),
            ("rejected_connections", self.figures.stats.connections_refused),
            ("connection_structures", open as u64),
            ("cmd_get", counts.get_hits + counts.get_misses),
            ("cmd_set", counts.sets),
            ("cmd_flush", counts.flushes),
            ("cmd_touch", touch_hits + touch_misses),
            ("cmd_meta", counts.metas),
            ("cmd_invoke", counts.invoked),
            ("get_hits", counts.get_hits),
            ("get_misses", counts.get_misses),
            // Who comes too late finds nothing.
            ("get_expired", 0),
            ("get_flushed", 0),
            ("delete_misses", counts.delete_misses),
            ("delete_hits", counts.delete_hits),
            ("incr_misses", counts.incr_misses),
            ("incr_hits", counts.incr_hits),
            ("decr_misses", counts.decr_misses),
            ("decr_hits", counts.decr_hits),
            ("cas_misses", counts.cas_misses),
            ("cas_hits", counts.cas_hits),
            ("cas_badval", counts.cas_badval),
            ("touch_hits", touch_hits),
            ("touch_misses", touch_misses),
            ("store_too_large", counts.too_large),
            ("store_no_memory", counts.no_memory),
            ("auth_cmds", counts.logins),
            ("auth_errors", counts.login_errors),
            ("bytes_read", self.figures.stats.received_bytes),
            ("bytes_written", self.figures.stats.sent_bytes),
            ("limit_maxbytes", limit as u64),
            ("accepting_conns", 1),
            ("threads", 1),
            ("conn_yields", counts.yields),
            ("hash_bytes", stats.index_bytes),
            ("bytes", stats.key_bytes + stats.value_bytes),
            ("curr_items", stats.keys),
            ("total_items", counts.sets),
            ("evictions", evicted.keys),
            ("reclaimed", stats.expired),
        ]);
        told.all(NEVER.iter().map(|name| (*name, 0)));
        told.0.end();
    }

    fn stats_settings(&self, work: &mut Turn<'_>) {
        let config = &self.settings.lowered;
        let yes = |yes| if yes { "yes" } else { "no" };
        let evicts = self.node.engine().eviction_policy().order.is_some();
        let bind: Vec<String> = config.listen.bind.iter().map(ToString::to_string).collect();
        let numbers = [
            ("maxbytes", self.bound.gauge.bound().unwrap_or(0) as u64),
            ("maxconns", self.settings.bounds.clients_max as u64),
            ("tcpport", u64::from(work.connection.local.port())),
            ("udpport", 0),
            ("verbosity", 0),
            ("oldest", 0),
            ("num_threads", self.bound.gauge.shards() as u64),
            ("reqs_per_event", self.settings.bounds.turn_requests_max as u64),
            ("item_size_max", config.limits.value_bytes_max as u64),
            ("idle_timeout", config.clients.idle_seconds_max),
            ("slab_automove", 0),
            ("num_threads_per_udp", 0),
        ];
        let prefix_ends: String = DELIMITERS.iter().collect();
        let mut told = Told(encoder(work));
        told.all(numbers);
        told.all([
            ("inter", bind.join(",").as_str()),
            ("evictions", if evicts { "on" } else { "off" }),
            ("domain_socket", "NULL"),
            ("shutdown_command", "no"),
            ("cas_enabled", "yes"),
            ("binding_protocol", "ascii"),
            ("auth_enabled_sasl", "no"),
            ("auth_enabled_ascii", yes(self.admission.needs_password())),
            ("flush_enabled", "yes"),
            ("dump_enabled", "no"),
            ("detail_enabled", yes(self.memcached.details.is_on())),
            ("stat_key_prefix", prefix_ends.as_str()),
            ("maxconns_fast", "yes"),
            ("slab_reassign", "no"),
            ("lru_crawler", "no"),
            ("lru_maintainer_thread", "no"),
            ("lru_segmented", "no"),
            ("temp_lru", "no"),
            ("track_sizes", "no"),
            ("ssl_enabled", yes(config.tls.tls_memcached_port.number().is_some())),
        ]);
        told.0.end();
    }

    fn stats_items(&self, work: &mut Turn<'_>) {
        let engine = self.node.engine();
        let stats = engine.stats();
        let numbers = [
            ("items:1:number", stats.keys),
            ("items:1:number_hot", 0),
            ("items:1:number_warm", 0),
            ("items:1:number_cold", stats.keys),
            // Nobody keeps in which order items were used.
            ("items:1:age", 0),
            ("items:1:evicted_time", 0),
            ("items:1:mem_requested", stats.key_bytes + stats.value_bytes),
            ("items:1:evicted", engine.evicted().keys),
            ("items:1:outofmemory", self.memcached.counts.no_memory),
            ("items:1:reclaimed", stats.expired),
            ("items:1:tailrepairs", 0),
            ("items:1:crawler_reclaimed", 0),
            ("items:1:crawler_items_checked", 0),
            ("items:1:lrutail_reflocked", 0),
            ("items:1:moves_to_cold", 0),
            ("items:1:moves_to_warm", 0),
            ("items:1:moves_within_lru", 0),
            ("items:1:direct_reclaims", 0),
        ];
        let mut told = Told(encoder(work));
        // A class without items is not told. With several shards, that is known when all have answered.
        if stats.keys > 0 || self.others.shards.is_some() {
            told.all(numbers);
        }
        told.0.end();
    }

    fn stats_slabs(&self, work: &mut Turn<'_>) {
        let engine = self.node.engine();
        let (stats, counts) = (engine.stats(), self.memcached.counts);
        let used = self.bound.gauge.used() as u64;
        let requested = stats.key_bytes + stats.value_bytes;
        // Items have as many blocks as they need: one of their average size stands for a chunk.
        let chunk = (requested / stats.keys.max(1)).max(1);
        let mut told = Told(encoder(work));
        told.all([
            ("1:chunk_size", chunk),
            ("1:chunks_per_page", (PAGE_BYTES / chunk).max(1)),
            ("1:total_pages", used.div_ceil(PAGE_BYTES)),
            ("1:total_chunks", stats.keys),
            ("1:used_chunks", stats.keys),
            ("1:free_chunks", 0),
            ("1:free_chunks_end", 0),
            ("1:mem_requested", requested),
            ("1:get_hits", counts.get_hits),
            ("1:cmd_set", counts.sets),
            ("1:delete_hits", counts.delete_hits),
            ("1:incr_hits", counts.incr_hits),
            ("1:decr_hits", counts.decr_hits),
            ("1:cas_hits", counts.cas_hits),
            ("1:cas_badval", counts.cas_badval),
            ("1:touch_hits", counts.touches().0),
            ("active_slabs", 1),
            ("total_malloced", used),
        ]);
        told.0.end();
    }
}

fn stats_connections(work: &mut Turn<'_>) {
    let now = work.time.uptime;
    let mut lines = Vec::new();
    let all = work.peers.iter().chain([&*work.connection]);
    for other in all.filter(|other| !other.is_remote()) {
        let descriptor = other.descriptor();
        lines.push((format!("{descriptor}:addr"), format!("tcp:{}", other.peer)));
        lines.push((format!("{descriptor}:listen_addr"), format!("tcp:{}", other.local)));
        let waits = other.session.is_waiting() || other.phase == Phase::Parked;
        let state = match other.id == work.connection.id {
            true => "conn_parse_cmd",
            false if other.unsent() > 0 => "conn_mwrite",
            false if waits => "conn_waiting",
            false => "conn_read",
        };
        lines.push((format!("{descriptor}:state"), String::from(state)));
        let idle = (now - other.heard) / 1000;
        lines.push((format!("{descriptor}:secs_since_last_cmd"), idle.to_string()));
    }
    let mut out = encoder(work);
    for (name, value) in lines {
        out.stat(&name, &value);
    }
    out.end();
}
