//! The figures that `/metrics` tells: those of INFO that grow or move.
//!
//! With several shards the first one is asked; it has the others tell theirs by message, and adds them up. So a sign of
//! life is one of all threads.

use super::ShardService;
use super::session::Session;
use super::stats::all_specs;
use crate::connections::Connections;
use crate::http::{Kind, Metric, Probe, Vitals};
use crate::replicated::{LEASE_AGE, LeaseStats, owner_metric};
use crate::resp::parts::Figures;
use crate::resp::parts::Stores;
use crate::shards::ShardMessage;
use crate::wire_protocol::listen_at;
use headwater_base::Shard;
use headwater_base::source::Health;
use headwater_config::ConfigError;
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;

/// Figures that are of the process: the first shard tells them.
const OF_PROCESS: [&str; 3] = ["uptime_seconds", "memory_bound_bytes", "memory_resident_bytes"];

/// Those who wait for the figures of all shards.
pub(super) struct Probing {
    probes: Vec<Probe>,
    /// What has been told.
    metrics: Vec<Metric>,
    /// Shards that have yet to tell theirs.
    missing: u16,
}

impl ShardService {
    /// Answers those who ask over HTTP how the server does.
    pub(super) fn answer_probes(&mut self, connections: &Connections<Session>) {
        let mut probes = self.figures.probes.take();
        if probes.is_empty() {
            return;
        }
        if let Some(probing) = &mut self.figures.probing {
            // They are told what the others are about to tell. Who asked before may have lost patience.
            probing.probes.retain(Probe::is_waited_for);
            probing.probes.append(&mut probes);
            return;
        }
        let metrics = self.metrics(connections.open());
        let unready = self.stores.unready();
        let Some(shards) = &mut self.others.shards else {
            answer_all(probes, &Vitals { metrics, unready });
            return;
        };
        let (me, all) = (shards.me, shards.outbox.of_process());
        let mut missing = 0;
        for to in all.filter(|to| *to != me) {
            shards.outbox.to(to).messages.push(ShardMessage::AskFigures);
            missing += 1;
        }
        if missing == 0 {
            answer_all(probes, &Vitals { metrics, unready });
            return;
        }
        self.figures.probing = Some(Probing { probes, metrics, missing });
    }

    /// Tells another shard the figures of this one.
    pub(super) fn tell_figures(&mut self, to: Shard, clients: usize) {
        let mut metrics = self.metrics(clients);
        metrics.retain(|metric| !OF_PROCESS.contains(&metric.name.as_str()));
        let Some(shards) = &mut self.others.shards else { return };
        shards.outbox.to(to).messages.push(ShardMessage::Figures(metrics));
    }

    /// Speaks HTTP on this port, with the socket that listens there already, if one of these does.
    pub(crate) fn serve_http(
        &self,
        port: u16,
        open: &mut Vec<TcpListener>,
    ) -> Result<SocketAddr, ConfigError> {
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let listener = listen_at(address, open).map_err(|error| error.to_string());
        let served = listener.and_then(|it| {
            let proofs = (None, self.admission.registry.clone());
            let ways = (self.admission.entrance.arrivals.clone(), self.stores.hub.inbox.bell());
            self.leave_open(it.as_fd());
            let closes = self.closes();
            self.figures.probes.serve(it, &self.settings.config.http, proofs, ways, closes)
        });
        served.map_err(|error| ConfigError(format!("http-port {port}: {error}")))
    }

    fn metrics(&mut self, clients: usize) -> Vec<Metric> {
        use Kind::{Counter, Gauge};
        let stats = self.node.engine().stats();
        let evicted = self.node.engine().evicted();
        let mut metrics = Vec::new();
        let mut one = |name: &str, help, kind, value: u64| {
            metrics.push(Metric::one(name, help, kind, value as f64));
        };
        one("uptime_seconds", "Since the start", Gauge, self.time.uptime / 1000);
        one("clients", "Clients that are connected", Gauge, clients as u64);
        one("connections", "Connections accepted", Counter, self.figures.stats.connections);
        one(
            "connections_refused",
            "Connections refused",
            Counter,
            self.figures.stats.connections_refused,
        );
        one(
            "clients_evicted",
            "Clients ended for their memory",
            Counter,
            self.figures.stats.clients_evicted,
        );
        one(
            "writes_without_room",
            "Writes refused for want of memory",
            Counter,
            self.figures.stats.no_room,
        );
        // Those by name and by code begin with the first of each, which what Prometheus calls a rate leaves out: these count all.
        let requests = self.figures.stats.commands() + self.memcached.counts.requests;
        one("requests", "Commands executed, of Redis and memcached", Counter, requests);
        one("errors", "Replies that were errors", Counter, self.figures.stats.errors_all());
        one(
            "received_bytes",
            "Bytes that clients sent",
            Counter,
            self.figures.stats.received_bytes,
        );
        one("sent_bytes", "Bytes that clients were sent", Counter, self.figures.stats.sent_bytes);
        let lookups = self.node.lookups();
        let (hits, misses) = self.memcached.counts.lookups();
        let help = "Keys that reading commands looked up and found";
        one("lookup_hits", help, Counter, lookups.hits + hits);
        let help = "Keys that reading commands looked up in vain";
        one("lookup_misses", help, Counter, lookups.misses + misses);
        one("keys", "Keys stored or materialized", Gauge, stats.keys);
        one("expired_keys", "Keys whose time was over", Counter, stats.expired);
        one("evicted_keys", "Keys evicted", Counter, evicted.keys);
        one("evicted_ranges", "Materialized ranges evicted", Counter, evicted.ranges);
        one("evicted_loaded_ranges", "Loaded ranges evicted", Counter, evicted.loaded);
        one("status_ranges", "Materialized ranges", Gauge, stats.status_ranges);
        one("updaters", "Updaters", Gauge, stats.updaters);
        one("groups", "Groups of keys", Gauge, stats.groups);
        for (name, number) in self.pushes.watching.counts() {
            let kind = if name.ends_with("_sent") { Counter } else { Gauge };
            one(name, "Watches of ranges", kind, number);
        }
        if let Some(bound) = self.bound.gauge.bound() {
            one("memory_bound_bytes", "What the process may take", Gauge, bound as u64);
        }
        let resident = self.bound.memory_sample().resident;
        one("memory_resident_bytes", "What the process takes", Gauge, resident as u64);
        let labelled =
            |name: &str, help, kind, samples| Metric { name: name.to_owned(), help, kind, samples };
        let kinds = headwater_node::memory_kinds(self.node.engine(), &stats);
        let kinds =
            kinds.iter().map(|(kind, bytes)| (vec![("kind", (*kind).to_owned())], *bytes as f64));
        metrics.push(labelled("data_bytes", "Memory of data, by kind", Gauge, kinds.collect()));
        let work = stats
            .counters
            .iter()
            .map(|(what, count)| (vec![("what", (*what).to_owned())], *count as f64));
        metrics.push(labelled("work", "What the engine has done", Counter, work.collect()));
        let commands = all_specs().filter_map(|spec| {
            let calls = self.figures.stats.calls(spec).executed;
            (calls != 0).then(|| (vec![("command", spec.full_name.to_owned())], calls as f64))
        });
        metrics.push(labelled("commands", "Commands, by name", Counter, commands.collect()));
        let seconds = all_specs().filter_map(|spec| {
            let micros = self.figures.stats.times.micros(spec.id);
            (micros > 0)
                .then(|| (vec![("command", spec.full_name.to_owned())], micros as f64 / 1e6))
        });
        let help = "Time that commands took, by name";
        metrics.push(labelled("command_seconds", help, Counter, seconds.collect()));
        let errors = self.figures.stats.errors_by_code();
        let errors = errors.map(|(code, count)| (vec![("code", code.to_owned())], count as f64));
        let help = "Errors in the protocol of Redis, by code";
        metrics.push(labelled("error_replies", help, Counter, errors.collect()));
        let tables = self.node.engine().tables();
        let keys = tables.iter().map(|table| {
            (vec![("table", table.name.escape_ascii().to_string())], table.keys as f64)
        });
        metrics.push(labelled("table_keys", "Keys of a table", Gauge, keys.collect()));
        self.source_metrics(&mut metrics);
        self.stores.data_metrics(&mut metrics);
        self.link_metrics(&mut metrics);
        self.flow_metrics(&mut metrics);
        metrics
    }

    /// How this shard of a cluster is linked to the others.
    fn link_metrics(&self, metrics: &mut Vec<Metric>) {
        let Some(shards) = &self.others.shards else { return };
        if !shards.outbox.are_apart() {
            return;
        }
        let linked = shards.outbox.others().map(|other| (other.0, !shards.outbox.is_lost(other)));
        let help = "Whether there is a connection to the owner of another shard";
        metrics.push(by_shard("cluster_link_up", help, linked));
        let refused = shards.outbox.transport().refused() as f64;
        let help = "Messages of other shards that were refused, or came twice";
        metrics.push(Metric::one("cluster_messages_refused", help, Kind::Counter, refused));
    }

    fn source_metrics(&self, metrics: &mut Vec<Metric>) {
        if !self.others.tells_of_process() {
            // The sources are the process's: one shard tells of them.
            return;
        }
        let of = |name: &str| vec![("source", name.to_owned())];
        let sources = self.stores.hub.list();
        let up = sources
            .iter()
            .map(|source| (of(&source.name), f64::from(u8::from(source.health == Health::Up))));
        metrics.push(Metric {
            name: String::from("source_up"),
            help: "Whether a source answers",
            kind: Kind::Gauge,
            samples: up.collect(),
        });
        let mut facts: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for source in &sources {
            for (title, text) in self.stores.hub.facts(&source.name) {
                if let Ok(number) = text.parse::<f64>() {
                    facts.entry(title).or_default().push((of(&source.name), number));
                }
            }
        }
        for (title, samples) in facts {
            let name = format!("source_{}", title.replace('-', "_"));
            let help = "A fact of a source, as SOURCE.INFO tells it";
            metrics.push(Metric { name, help, kind: Kind::Gauge, samples });
        }
    }

    fn flow_metrics(&mut self, metrics: &mut Vec<Metric>) {
        let now = self.node.engine().now();
        let mut facts: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for report in self.node.flow_reports() {
            for (title, number) in headwater_node::flow_facts(&report, now) {
                let mut labels = vec![("flow", report.name.clone())];
                // What is no amount is told of each shard.
                if let Some(shards) = &self.others.shards
                    && matches!(title, "paused" | "cursor" | "oldest-pending-ms")
                {
                    labels.push(("shard", shards.me.0.to_string()));
                }
                facts.entry(title).or_default().push((labels, number as f64));
            }
        }
        for (title, samples) in facts {
            let grows = matches!(title, "done" | "failures" | "dropped");
            metrics.push(Metric {
                name: format!("flow_{}", title.replace('-', "_")),
                help: "A fact of a flow, as FLOW.INFO tells it",
                kind: if grows { Kind::Counter } else { Kind::Gauge },
                samples,
            });
        }
    }
}

impl Figures {
    /// Another shard has told its figures.
    pub(super) fn add_figures(&mut self, figures: Vec<Metric>) {
        let Some(mut probing) = self.probing.take() else { return };
        add_all(&mut probing.metrics, figures);
        probing.missing = probing.missing.saturating_sub(1);
        if probing.missing > 0 {
            self.probing = Some(probing);
        } else {
            // Shards of one process have no lease that could be over.
            answer_all(probing.probes, &Vitals { metrics: probing.metrics, unready: None });
        }
    }
}

/// Why an owner is not ready whose lease is too old.
const NO_LEASE: &str = "the node owns its shard and could not renew the lease in time: it answers nothing until it can";

impl Stores {
    /// Why clients should not be sent here now, if they should not.
    fn unready(&self) -> Option<String> {
        let replica = self.keeping.as_ref()?.replica()?;
        (!replica.may_answer()).then(|| String::from(NO_LEASE))
    }

    /// The embedded store.
    fn data_metrics(&self, metrics: &mut Vec<Metric>) {
        use Kind::{Counter, Gauge};
        let Some(keeping) = &self.keeping else { return };
        let refused = keeping.refusal().is_some();
        let (_, _, facts) = keeping.facts();
        if let Some(lease) = keeping.lease() {
            lease_metrics(&lease, metrics);
        }
        for (name, help, kind, value) in [
            ("store_writes_refused", "Whether writes are refused", Gauge, u64::from(refused)),
            ("store_position", "Operations told", Counter, facts.position),
            ("store_safe_position", "Operations that are safe", Counter, facts.durable),
            ("store_pending_bytes", "Bytes to be written", Gauge, facts.pending_bytes),
            ("store_disk_bytes", "Bytes on disk", Gauge, facts.disk_bytes),
            ("store_batches", "Batches written", Counter, facts.batches),
            ("store_syncs", "Syncs of the disk", Counter, facts.syncs),
            ("store_sync_microseconds", "Time of all syncs", Counter, facts.sync_micros),
            ("store_loads", "Ranges loaded", Counter, facts.loads),
            ("store_loads_failed", "Loads that failed", Counter, facts.loads_failed),
            ("store_loaded_keys", "Keys loaded", Counter, facts.loaded_keys),
            ("store_loaded_bytes", "Bytes loaded", Counter, facts.loaded_bytes),
        ] {
            metrics.push(Metric::one(name, help, kind, value as f64));
        }
    }
}

/// What is known of the lease of a shard, of its log, and of the other shards' owners.
fn lease_metrics(lease: &LeaseStats, metrics: &mut Vec<Metric>) {
    metrics.push(owner_metric(lease.shard, lease.answers_millis > 0));
    for (name, help, value) in [
        ("cluster_epoch", "The epoch in which this node owns the shard", lease.epoch),
        (
            "cluster_lease_milliseconds",
            "How long this node may answer without another renewal of its lease",
            lease.answers_millis,
        ),
        ("cluster_lease_age_milliseconds", LEASE_AGE, lease.age_millis),
        (
            "cluster_unacknowledged_bytes",
            "Bytes that the cluster's log has not acknowledged",
            lease.unacknowledged_bytes,
        ),
        (
            "cluster_unacknowledged_records",
            "Records that the cluster's log has not acknowledged",
            lease.unacknowledged_records,
        ),
        ("cluster_log_bytes", "Bytes of the cluster's log, of one copy", lease.log_bytes),
        ("cluster_snapshots_taken", "Snapshots that this owner has stored", lease.snapshots_taken),
        (
            "cluster_snapshots_failed",
            "Snapshots that this owner has failed to store",
            lease.snapshots_failed,
        ),
    ] {
        metrics.push(Metric::one(name, help, Kind::Gauge, value as f64));
    }
    if let Some(part) = lease.nats_left {
        let help = "Part of its room that the fullest NATS server has left";
        metrics.push(Metric::one("cluster_nats_room_left_ratio", help, Kind::Gauge, part));
    }
    let owned = lease.others.iter().map(|(shard, owned)| (*shard, *owned));
    metrics.push(by_shard(
        "cluster_shard_owned",
        "Whether another shard has an owner, as far as this one knows",
        owned,
    ));
}

/// A figure that is so or not for each of some shards.
fn by_shard(name: &str, help: &'static str, shards: impl Iterator<Item = (u16, bool)>) -> Metric {
    let sample =
        |(shard, is): (u16, bool)| (vec![("shard", shard.to_string())], f64::from(u8::from(is)));
    let (name, samples) = (name.to_owned(), shards.map(sample).collect());
    Metric { name, help, kind: Kind::Gauge, samples }
}

/// Tells the figures to all who wait for them.
fn answer_all(probes: Vec<Probe>, vitals: &Vitals) {
    for probe in probes {
        probe.answer(vitals.clone());
    }
}

/// Adds figures up that have one name and the same labels.
fn add_all(all: &mut Vec<Metric>, figures: Vec<Metric>) {
    for figure in figures {
        let Some(metric) = all.iter_mut().find(|metric| metric.name == figure.name) else {
            all.push(figure);
            continue;
        };
        // There are as many as tables and joins.
        let known = metric.samples.iter().enumerate().map(|(at, (labels, _))| (labels.clone(), at));
        let known: HashMap<_, _> = known.collect();
        for (labels, value) in figure.samples {
            match known.get(&labels) {
                Some(&at) => metric.samples[at].1 += value,
                None => metric.samples.push((labels, value)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_shards_are_added_up_by_their_labels() {
        let of = |samples: &[(&str, f64)]| Metric {
            name: String::from("table_keys"),
            help: "",
            kind: Kind::Gauge,
            samples: samples
                .iter()
                .map(|(table, keys)| (vec![("table", (*table).to_owned())], *keys))
                .collect(),
        };
        let mut all = vec![of(&[("a", 1.0), ("b", 2.0)])];
        let other = Metric::one("keys", "", Kind::Gauge, 5.0);
        add_all(&mut all, vec![of(&[("b", 3.0), ("c", 4.0)]), other.clone()]);
        assert_eq!(all, [of(&[("a", 1.0), ("b", 5.0), ("c", 4.0)]), other]);
    }
}
