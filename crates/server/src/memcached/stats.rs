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
use headwater_command::Reply;
use headwater_command::items::{Counted, Statistics, Written};
use headwater_protocol::memcached::{Encoder, VERSION, Words};
use headwater_router::{Answer, Merge, answer_of};
use std::borrow::Cow;

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

/// A statistic of one shard.
enum StatValue {
    /// An amount, which is added up where several shards have one.
    Amount(u64),
    /// It is the same for all, or the first one's is told.
    Same(String),
}

/// Statistics by their names.
#[derive(Default)]
struct StatLines(Vec<(&'static str, StatValue)>);

impl StatLines {
    fn amounts(&mut self, numbers: impl IntoIterator<Item = (&'static str, u64)>) {
        self.0.extend(numbers.into_iter().map(|(name, number)| (name, StatValue::Amount(number))));
    }

    fn same<T: Display>(&mut self, texts: impl IntoIterator<Item = (&'static str, T)>) {
        self.0.extend(
            texts.into_iter().map(|(name, text)| (name, StatValue::Same(text.to_string()))),
        );
    }

    fn write(&self, out: &mut impl Reply) {
        out.map(self.0.len());
        for (name, value) in &self.0 {
            out.bulk(name.as_bytes());
            match value {
                StatValue::Amount(number) => out.integer(*number as i64),
                StatValue::Same(text) => out.bulk(text.as_bytes()),
            }
        }
    }
}

/// What `stats` asks with these words; `None`: nothing that several shards would have to be asked for.
pub(super) fn statistics_of(mut words: Words<'_>) -> Option<Statistics> {
    Some(match (words.next(), words.next()) {
        (None, _) => Statistics::General,
        (Some(b"reset"), _) => Statistics::Reset,
        (Some(b"items"), _) => Statistics::Items,
        (Some(b"slabs"), _) => Statistics::Memory,
        (Some(b"sizes"), _) => Statistics::Sizes,
        (Some(b"conns"), _) => Statistics::Connections,
        (Some(b"detail"), Some(b"on")) => Statistics::CountPrefixes(true),
        (Some(b"detail"), Some(b"off")) => Statistics::CountPrefixes(false),
        (Some(b"detail"), Some(b"dump")) => Statistics::Prefixes,
        _ => return None,
    })
}

/// How the statistics of several shards become one answer.
pub(super) fn merge_of(which: Statistics) -> Merge {
    match which {
        Statistics::General
        | Statistics::Items
        | Statistics::Memory
        | Statistics::Sizes
        | Statistics::Prefixes => Merge::Figures,
        Statistics::Connections => Merge::Concat,
        Statistics::CountPrefixes(_) | Statistics::Reset => Merge::Same,
    }
}

/// How many items there are: a class without any is not told of.
const CLASS_ITEMS: &[u8] = b"items:1:number";

/// A name, a text or a number.
fn told(answer: Answer<'_>) -> Cow<'_, str> {
    match answer.integer() {
        Some(number) => Cow::Owned(number.to_string()),
        None => String::from_utf8_lossy(answer.text().unwrap_or_default()),
    }
}

/// Writes statistics, or that something was done, as a client reads it.
pub(super) fn write_statistics(answer: Answer<'_>, out: &mut Encoder<'_>) {
    let Some((_, list)) = answer.elements() else {
        return out.line(&String::from_utf8_lossy(answer.text().unwrap_or_default()));
    };
    if list.first().is_some_and(|first| first.elements().is_some()) {
        // Each row: its name, and figures, with what they are called.
        for row in list {
            let words: Vec<_> = row.list().into_iter().skip(1).map(told).collect();
            out.line(&format!("PREFIX {}", words.join(" ")));
        }
        return out.end();
    }
    if let [name, number, ..] = &list[..]
        && name.text() == Some(CLASS_ITEMS)
        && number.integer() == Some(0)
    {
        return out.end();
    }
    for line in list.chunks_exact(2) {
        out.stat(&told(line[0]), &told(line[1]));
    }
    out.end();
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
    pub(super) fn memcached_stats(&mut self, words: Words<'_>, work: &mut Turn<'_>) {
        let Some(which) = statistics_of(words) else {
            match words.into_iter().next() {
                Some(b"settings") => self.stats_settings(work),
                Some(b"detail") => self
                    .figures
                    .memcached_refused("CLIENT_ERROR usage: stats detail on|off|dump", work),
                _ => self.figures.memcached_refused("ERROR", work),
            }
            return;
        };
        let answer = answer_of(|out| self.statistics(which, work, out));
        if let Some(answer) = Answer::whole(&answer) {
            write_statistics(answer, &mut encoder(work));
        }
    }

    /// Answers with this shard's statistics, or changes what is counted.
    pub(super) fn statistics(&mut self, which: Statistics, work: &Turn<'_>, out: &mut impl Reply) {
        let mut lines = StatLines::default();
        match which {
            Statistics::General => self.stats_general(work, &mut lines),
            Statistics::Items => self.stats_items(&mut lines),
            Statistics::Memory => self.stats_slabs(&mut lines),
            Statistics::Sizes => lines.same([("sizes_status", "disabled")]),
            Statistics::Connections => return write_connections(work, out),
            Statistics::Prefixes => return self.memcached.details.write(out),
            Statistics::CountPrefixes(on) => {
                self.memcached.details.turn(on);
                return out.ok();
            }
            Statistics::Reset => {
                self.memcached.details.reset();
                self.reset_counters();
                return out.simple("RESET");
            }
        }
        lines.write(out);
    }

    fn stats_general(&self, work: &Turn<'_>, lines: &mut StatLines) {
        let counts = self.memcached.counts;
        let engine = self.node.engine();
        let stats = engine.stats();
        let evicted = engine.evicted();
        let (touch_hits, touch_misses) = counts.touches();
        let (time, open) = (work.time, work.peers.open());
        let usage = |at| crate::resp::cpu_seconds(at);
        let limit = self.bound.gauge.bound().unwrap_or(0);
        lines.same([
            ("pid", u64::from(std::process::id())),
            ("uptime", time.uptime / 1000),
            ("time", time.wall.0 / 1000),
        ]);
        lines.same([("version", VERSION), ("headwater_version", env!("CARGO_PKG_VERSION"))]);
        lines.same([("pointer_size", usize::BITS)]);
        lines.same([
            ("rusage_user", format!("{:.6}", usage(11))),
            ("rusage_system", format!("{:.6}", usage(12))),
        ]);
        lines.same([
            ("max_connections", self.settings.bounds.clients_max as u64),
            ("limit_maxbytes", limit as u64),
            ("accepting_conns", 1),
            // Every shard has flushed as often.
            ("cmd_flush", counts.flushes),
        ]);
        lines.amounts([
            ("curr_connections", open as u64),
            ("total_connections", self.figures.stats.connections),
            ("rejected_connections", self.figures.stats.connections_refused),
            ("connection_structures", open as u64),
            ("cmd_get", counts.get_hits + counts.get_misses),
            ("cmd_set", counts.sets),
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
            ("threads", 1),
            ("conn_yields", counts.yields),
            ("hash_bytes", stats.index_bytes),
            ("bytes", stats.key_bytes + stats.value_bytes),
            ("curr_items", stats.keys),
            ("total_items", counts.sets),
            ("evictions", evicted.keys),
            ("reclaimed", stats.expired),
        ]);
        lines.amounts(NEVER.iter().map(|name| (*name, 0)));
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
        let mut lines = StatLines::default();
        lines.amounts(numbers);
        lines.same([
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
        let answer = answer_of(|out| lines.write(out));
        if let Some(answer) = Answer::whole(&answer) {
            write_statistics(answer, &mut encoder(work));
        }
    }

    fn stats_items(&self, lines: &mut StatLines) {
        let engine = self.node.engine();
        let stats = engine.stats();
        lines.amounts([
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
        ]);
    }

    fn stats_slabs(&self, lines: &mut StatLines) {
        let engine = self.node.engine();
        let (stats, counts) = (engine.stats(), self.memcached.counts);
        let used = self.bound.gauge.used() as u64;
        let requested = stats.key_bytes + stats.value_bytes;
        // Items have as many blocks as they need: one of their average size stands for a chunk.
        let chunk = (requested / stats.keys.max(1)).max(1);
        // Averages and what is of the process are told once, as the first shard has them.
        lines.same([
            ("1:chunk_size", chunk),
            ("1:chunks_per_page", (PAGE_BYTES / chunk).max(1)),
            ("1:total_pages", used.div_ceil(PAGE_BYTES)),
        ]);
        lines.amounts([
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
        ]);
        lines.same([("active_slabs", 1), ("total_malloced", used)]);
    }
}

fn write_connections(work: &Turn<'_>, out: &mut impl Reply) {
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
    out.array(2 * lines.len());
    for (name, value) in lines {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::details::{Details, ItemUse};
    use super::*;
    use headwater_base::Shard;
    use headwater_protocol::Held;

    fn told(merge: &Merge, parts: &[Vec<u8>]) -> String {
        let parts = parts.iter().map(|part| (Shard(0), Answer::whole(part).unwrap()));
        let parts: Vec<_> = parts.collect();
        let merged = answer_of(|out| merge.write(&parts, out));
        let (mut out, mut held) = (Vec::new(), Held::default());
        let mut encoder = Encoder::new(&mut out, &mut held, usize::MAX);
        write_statistics(Answer::whole(&merged).unwrap(), &mut encoder);
        String::from_utf8(out).unwrap()
    }

    fn lines(same: &'static str, amounts: &[(&'static str, u64)]) -> Vec<u8> {
        let mut lines = StatLines::default();
        lines.same([("version", same)]);
        lines.amounts(amounts.iter().copied());
        answer_of(|out| lines.write(out))
    }

    #[test]
    fn amounts_are_added_up_and_what_is_the_same_is_told_once() {
        let parts = [lines("1", &[("cmd_get", 2)]), lines("1", &[("cmd_get", 3)])];
        let both = told(&Merge::Figures, &parts);
        assert_eq!(both, "STAT version 1\r\nSTAT cmd_get 5\r\nEND\r\n");
        let class = |items| {
            let mut lines = StatLines::default();
            lines.amounts([("items:1:number", items), ("items:1:age", 0)]);
            answer_of(|out| lines.write(out))
        };
        assert_eq!(told(&Merge::Figures, &[class(0), class(0)]), "END\r\n");
        let one = told(&Merge::Figures, &[class(0), class(1)]);
        assert_eq!(one, "STAT items:1:number 1\r\nSTAT items:1:age 0\r\nEND\r\n");
    }

    #[test]
    fn what_has_a_prefix_is_added_up_under_it() {
        let shard = |rows: &[(&str, ItemUse)]| {
            let mut details = Details::default();
            details.turn(true);
            rows.iter().for_each(|(key, used)| details.count(key.as_bytes(), *used));
            answer_of(|out| details.write(out))
        };
        let parts = [
            shard(&[("a:1", ItemUse::Write), ("a:1", ItemUse::Read { hit: true })]),
            shard(&[]),
            shard(&[("a:2", ItemUse::Write), ("b:1", ItemUse::Remove)]),
        ];
        assert_eq!(
            told(&Merge::Figures, &parts),
            "PREFIX a get 1 hit 1 set 2 del 0\r\nPREFIX b get 0 hit 0 set 0 del 1\r\nEND\r\n"
        );
        assert_eq!(told(&Merge::Figures, &[shard(&[]), shard(&[])]), "END\r\n");
    }

    #[test]
    fn what_was_done_is_said_in_a_word() {
        let done = answer_of(|out| out.simple("RESET"));
        assert_eq!(told(&Merge::Same, &[done.clone(), done]), "RESET\r\n");
        assert_eq!(told(&Merge::Same, &[answer_of(|out| out.ok())]), "OK\r\n");
    }
}
