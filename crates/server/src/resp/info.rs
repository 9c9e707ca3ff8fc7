//! INFO: the state of the server as text that people and monitoring tools read.

use super::connect::REDIS_VERSION;
use super::stats::{Calls, all_specs};
use super::{ShardService, Turn, encoder};
use crate::resp::parts::Figures;
use core::cell::OnceCell;
use core::fmt::Write;
use headwater_command::{Args, Reply};
use headwater_config::Percentiles;
use headwater_engine::Stats;
use headwater_node::{InfoSection, LineName};

/// The sections, in order; those not shown unless asked for come with `false`.
const SECTIONS: [(&str, bool); 18] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("commandstats", false),
    ("errorstats", true),
    ("latencystats", false),
    ("cluster", true),
    ("engine", true),
    ("joins", true),
    ("tables", true),
    ("sources", true),
    ("flows", true),
    ("functions", true),
    ("shards", true),
];

impl ShardService {
    /// INFO: the sections named, or the usual ones.
    pub(super) fn info(&mut self, sections: Args<'_>, work: &mut Turn<'_>) {
        let named =
            |wanted: &str| sections.iter().any(|name| name.eq_ignore_ascii_case(wanted.as_bytes()));
        let everything = named("all") || named("everything");
        let usual = sections.is_empty() || named("default");
        let wanted = |name: &str, is_usual: bool| everything || (usual && is_usual) || named(name);
        let (mut text, stats) = (String::new(), OnceCell::new());
        for (name, is_usual) in SECTIONS.into_iter().chain([("keyspace", true)]) {
            if wanted(name, is_usual) {
                self.write_section(name, &stats, work, &mut text);
            }
        }
        encoder(work).verbatim(*b"txt", text.as_bytes());
    }

    /// Appends a section. What the engine tells of all tables is asked for once, by the first section that has some of it.
    fn write_section(
        &mut self,
        name: &str,
        stats: &OnceCell<Stats>,
        work: &Turn<'_>,
        out: &mut String,
    ) {
        if !out.is_empty() {
            out.push_str("\r\n");
        }
        match name {
            "server" => self.write_server(work, out),
            "clients" => self.write_clients(work, out),
            "memory" => {
                let stats = stats.get_or_init(|| self.node.engine().stats());
                self.write_memory(stats, work, out);
            }
            "persistence" => self.stores.write_persistence(out),
            "stats" => {
                let stats = stats.get_or_init(|| self.node.engine().stats());
                self.write_stats(stats, out);
            }
            "replication" => {
                out.push_str("# Replication\r\n");
                line(out, "role", "master");
                line(out, "connected_slaves", 0);
                line(out, "master_replid", &self.figures.stats.run_id);
                line(out, "master_repl_offset", 0);
            }
            "cpu" => write_cpu(out),
            "commandstats" => self.figures.write_command_stats(out),
            "errorstats" => {
                out.push_str("# Errorstats\r\n");
                for (code, count) in self.figures.stats.errors_by_code() {
                    line(out, &format!("errorstat_{code}"), format_args!("count={count}"));
                }
            }
            "latencystats" => self.write_latency_stats(out),
            "cluster" => {
                out.push_str("# Cluster\r\n");
                line(out, "cluster_enabled", u8::from(self.stores.is_clustered()));
                self.write_node(out);
            }
            "flows" => self.write_flows(out),
            "sources" => self.write_sources(out),
            "shards" => self.write_shards(out),
            of_data => {
                let section = match of_data {
                    "engine" => InfoSection::Engine,
                    "joins" => InfoSection::Joins,
                    "functions" => InfoSection::Functions,
                    "tables" => InfoSection::Tables,
                    _ => InfoSection::Keyspace,
                };
                let stats = stats.get_or_init(|| self.node.engine().stats());
                self.node.write_info(section, stats, out);
            }
        }
    }

    /// The shards know one another's times: one tells of them.
    fn write_latency_stats(&self, out: &mut String) {
        out.push_str("# Latencystats\r\n");
        if !self.others.tells_of_process() {
            return;
        }
        let Percentiles(percents) = self.settings.config.observe.percentiles();
        for spec in all_specs() {
            let Some(spread) = self.figures.stats.times.all.of(spec.id) else { continue };
            let micros = |percent| spread.percentile(percent) as f64 / 1000.0;
            let facts: Vec<String> = percents
                .iter()
                .map(|&percent| format!("p{percent}={:.3}", micros(percent)))
                .collect();
            line(out, &format!("latency_percentiles_usec_{}", spec.full_name), facts.join(","));
        }
    }

    fn write_flows(&mut self, out: &mut String) {
        out.push_str("# Flows\r\n");
        let now = self.node.engine().now();
        for report in self.node.flow_reports() {
            let facts = headwater_node::flow_facts(&report, now);
            let facts: Vec<String> =
                facts.iter().map(|(title, number)| format!("{title}={number}")).collect();
            let name = LineName(report.name.as_bytes());
            line(out, &format!("flow_{name}"), facts.join(","));
        }
    }

    fn write_sources(&self, out: &mut String) {
        out.push_str("# Sources\r\n");
        // The sources are the process's: one shard tells of them, the others of what they have.
        let own = self.others.tells_of_process();
        let is_amount = |title: &str| matches!(title, "ranges-loaded" | "ranges-loading" | "keys");
        let names: Vec<String> =
            self.stores.hub.list().into_iter().map(|source| source.name).collect();
        for name in names {
            let facts = self.source_facts(&name).unwrap_or_default();
            let facts: Vec<String> = facts
                .iter()
                .filter(|(title, _)| title != "name" && (own || is_amount(title)))
                .map(|(title, text)| format!("{title}={}", text.replace(['\r', '\n'], " ")))
                .collect();
            let name = LineName(name.as_bytes());
            line(out, &format!("source_{name}"), facts.join(","));
        }
    }

    /// What the shards say to one another, and hold of one another.
    fn write_shards(&self, out: &mut String) {
        out.push_str("# Shards\r\n");
        let count = self.others.shards.as_ref().map_or(1, |shards| shards.outbox.shards());
        line(out, "shards", count);
        let Some(shards) = &self.others.shards else { return };
        let (outbox, sent) = (shards.outbox.sent(), shards.peers.sent());
        let remote = self.node.engine().remote();
        for (name, number) in [
            ("shards_requests_forwarded", outbox.requests),
            ("shards_batches_sent", outbox.batches),
            ("shards_messages_sent", outbox.messages),
            ("shards_message_bytes_sent", outbox.bytes),
            ("shards_messages_refused", shards.outbox.transport().refused()),
            ("shards_packets_sent", sent.packets),
            ("shards_loads_sent", sent.loads),
            ("shards_changes_sent", sent.changes),
            ("shards_data_bytes_sent", sent.bytes),
            ("shards_replicas", remote.replicas),
            ("shards_replica_bytes", remote.replica_bytes),
            ("shards_ranges_followed", remote.loaded),
        ] {
            line(out, name, number);
        }
    }

    fn write_server(&self, work: &Turn<'_>, out: &mut String) {
        let uptime = work.time.uptime / 1000;
        out.push_str("# Server\r\n");
        line(out, "redis_version", REDIS_VERSION);
        line(out, "headwater_version", env!("CARGO_PKG_VERSION"));
        line(out, "redis_mode", self.stores.mode());
        line(out, "os", std::env::consts::OS);
        line(out, "arch_bits", usize::BITS);
        line(out, "multiplexing_api", "epoll");
        line(out, "process_id", std::process::id());
        line(out, "run_id", &self.figures.stats.run_id);
        line(out, "tcp_port", work.connection.local.port());
        line(out, "server_time_usec", work.time.wall.0 * 1000);
        line(out, "uptime_in_seconds", uptime);
        line(out, "uptime_in_days", uptime / (24 * 3600));
        let has_io_threads = self.settings.config.listen.io_threads > 1;
        line(out, "io_threads_active", u8::from(has_io_threads));
    }

    fn write_clients(&self, work: &Turn<'_>, out: &mut String) {
        let sessions = || {
            let own = core::iter::once(&*work.connection);
            work.peers.iter().chain(own)
        };
        let subscribers = sessions().filter(|other| other.session.subscriptions.is_some()).count();
        let watched = sessions().map(|other| other.session.watched_keys());
        let (watchers, watched) = watched
            .filter(|count| *count > 0)
            .fold((0, 0), |(clients, keys), count| (clients + 1, keys + count));
        let waiting = sessions().filter(|other| other.session.waiting.is_some()).count();
        let largest = |part: fn((usize, usize)) -> usize| {
            sessions().map(|other| part(other.reserved_bytes())).max().unwrap_or(0)
        };
        out.push_str("# Clients\r\n");
        line(out, "connected_clients", work.peers.open());
        line(out, "maxclients", self.settings.bounds.clients_max);
        line(out, "client_recent_max_input_buffer", largest(|(input, _)| input));
        line(out, "client_recent_max_output_buffer", largest(|(_, output)| output));
        line(out, "blocked_clients", waiting);
        line(out, "pubsub_clients", subscribers);
        line(out, "watching_clients", watchers);
        line(out, "total_watched_keys", watched);
        line(out, "tracking_clients", self.pushes.tracking.counts()[0]);
    }

    fn write_stats(&self, engine: &Stats, out: &mut String) {
        let (channels, patterns) = self.pushes.channels.counts();
        out.push_str("# Stats\r\n");
        line(out, "total_connections_received", self.figures.stats.connections);
        let commands = self.figures.stats.commands() + self.memcached.counts.requests;
        line(out, "total_commands_processed", commands);
        line(out, "instantaneous_ops_per_sec", self.figures.stats.rate);
        line(out, "total_net_input_bytes", self.figures.stats.received_bytes);
        line(out, "total_net_output_bytes", self.figures.stats.sent_bytes);
        for (name, rate) in ["input", "output"].iter().zip(self.figures.stats.byte_rates) {
            let kilobytes = format_args!("{:.2}", rate as f64 / 1024.0);
            line(out, &format!("instantaneous_{name}_kbps"), kilobytes);
        }
        line(out, "rejected_connections", self.figures.stats.connections_refused);
        line(out, "expired_keys", engine.expired);
        let evicted = self.node.engine().evicted();
        line(out, "evicted_keys", evicted.keys);
        line(out, "evicted_ranges", evicted.ranges);
        line(out, "evicted_loaded_ranges", evicted.loaded);
        line(out, "evicted_clients", self.figures.stats.clients_evicted);
        let lookups = self.node.lookups();
        let (item_hits, item_misses) = self.memcached.counts.lookups();
        line(out, "keyspace_hits", lookups.hits + item_hits);
        line(out, "keyspace_misses", lookups.misses + item_misses);
        line(out, "pubsub_channels", channels);
        line(out, "pubsub_patterns", patterns);
        line(out, "pubsubshard_channels", self.pushes.channels.shard_channels());
        let [_, keys, copies, prefixes] = self.pushes.tracking.counts();
        line(out, "tracking_total_keys", keys);
        line(out, "tracking_total_items", copies);
        line(out, "tracking_total_prefixes", prefixes);
        for (name, number) in self.pushes.watching.counts() {
            line(out, name, number);
        }
        line(out, "total_error_replies", self.figures.stats.errors_all());
        line(out, "total_reads_processed", self.figures.stats.reads);
        line(out, "total_writes_processed", self.figures.stats.writes);
        let names = ["auth", "cmd", "key", "channel"];
        for (name, denied) in names.iter().zip(self.figures.stats.denied) {
            line(out, &format!("acl_access_denied_{name}"), denied);
        }
    }
}

impl Figures {
    fn write_command_stats(&self, out: &mut String) {
        out.push_str("# Commandstats\r\n");
        for spec in all_specs() {
            let Calls { executed, rejected, failed } = self.stats.calls(spec);
            let micros = self.stats.times.micros(spec.id);
            if executed == 0 && rejected == 0 && failed == 0 && micros == 0 {
                continue;
            }
            let mean = micros as f64 / executed.max(1) as f64;
            let name = format!("cmdstat_{}", spec.full_name);
            let facts = format_args!(
                "calls={executed},usec={micros},usec_per_call={mean:.2},rejected_calls={rejected},\
                 failed_calls={failed}"
            );
            line(out, &name, facts);
        }
    }
}

pub(super) fn line(out: &mut String, name: &str, value: impl core::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{name}:{value}\r\n");
}

/// Time that the process used, in seconds: 11 is the user's, 12 the system's, as `/proc/self/stat` counts its
/// fields from behind the program's name, which may hold anything.
pub(crate) fn cpu_seconds(field: usize) -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().nth(field).and_then(|ticks| ticks.parse::<f64>().ok());
    ticks.unwrap_or(0.0) / rustix::param::clock_ticks_per_second() as f64
}

fn write_cpu(out: &mut String) {
    out.push_str("# CPU\r\n");
    line(out, "used_cpu_sys", format_args!("{:.6}", cpu_seconds(12)));
    line(out, "used_cpu_user", format_args!("{:.6}", cpu_seconds(11)));
}
