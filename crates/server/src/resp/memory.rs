//! INFO memory and MEMORY STATS: where the resident memory of the process is.
//!
//! The parts add up to what the system reports: what the data takes by kind, clients, what the server
//! had before the first command, what the allocator needs besides, and what is none of these.
//!
//! With several shards the figures of all are added up: the first one tells what is of the process, and the others take
//! what they account for off the first one's rest.

use super::info::line;
use super::{ShardService, Turn, encoder};
use crate::memory::{CommonShare, Sample};
use core::fmt::Write;
use headwater_base::memory::Meter;
use headwater_command::Reply;
use headwater_command::number::Human;
use headwater_engine::Stats;
use headwater_node::memory_kinds;

/// The parts, each with its name and bytes.
struct Parts {
    sample: Sample,
    all: Vec<(&'static str, i64)>,
    dataset: u64,
    clients: [u64; 2],
    /// This shard tells what is of the whole process.
    of_process: bool,
}

impl Parts {
    /// A figure of the process: one shard tells it.
    fn of_process(&self, bytes: usize) -> u64 {
        if self.of_process { bytes as u64 } else { 0 }
    }
}

impl ShardService {
    fn parts(&self, stats: &Stats, work: &Turn<'_>) -> Parts {
        let sample = self.bound.memory_sample();
        let of_process = self.bound.gauge.common().is_none_or(CommonShare::is_first);
        let mut all = memory_kinds(self.node.engine(), stats).to_vec();
        let dataset = all.iter().map(|(_, bytes)| bytes).sum();
        let mut clients = [0; 2];
        for other in work.peers.iter().chain([&*work.connection]) {
            let bytes = other.counted_bytes as u64;
            clients[usize::from(other.session.is_subscriber())] += bytes;
        }
        let [normal, listening] = clients;
        // Their memories are the system's, beside the allocator.
        let functions = self.node.engine().functions();
        let functions = functions.iter().map(|report| report.memory_bytes).sum();
        all.extend([
            ("clients", normal + listening),
            ("tracking", self.pushes.tracking.bytes() as u64),
            ("functions", functions),
        ]);
        if of_process {
            // The program's pages count as far as they are resident now: some that were so at the start may have been dropped.
            let empty = self.bound.gauge.at_start(self.bound.at_start);
            all.push(("startup", (empty + sample.files) as u64));
            all.push(("allocator", sample.beside_allocated() as u64));
        } else {
            all.extend([("startup", 0), ("allocator", 0)]);
        }
        let mut all: Vec<_> = all.iter().map(|&(name, bytes)| (name, bytes as i64)).collect();
        let accounted: i64 = all.iter().map(|(_, bytes)| bytes).sum();
        let resident = if of_process { sample.resident as i64 } else { 0 };
        let rest = resident - accounted;
        all.push(("unaccounted", if self.bound.gauge.shards() == 1 { rest.max(0) } else { rest }));
        Parts { sample, all, dataset, clients, of_process }
    }

    pub(super) fn write_memory(&self, stats: &Stats, work: &Turn<'_>, out: &mut String) {
        let parts = self.parts(stats, work);
        let Parts { sample, all, dataset, clients: [normal, listening], .. } = parts;
        let bound = self.bound.gauge.bound().unwrap_or(0);
        let (resident, peak) = (sample.resident, self.bound.gauge.peak().max(sample.resident));
        out.push_str("# Memory\r\n");
        for (name, bytes) in [
            ("used_memory", sample.allocated),
            ("used_memory_rss", resident),
            ("used_memory_peak", peak),
            ("used_memory_dataset", dataset as usize),
            ("maxmemory", bound),
        ] {
            line(out, name, bytes);
            line(out, &format!("{name}_human"), Human(bytes));
        }
        line(out, "maxmemory_policy", &self.settings.config.memory.policy);
        line(
            out,
            "maxmemory_used",
            self.bound.gauge.bound().map_or(0, |_| self.bound.gauge.used()),
        );
        let ratio = resident as f64 / sample.allocated.max(1) as f64;
        line(out, "mem_fragmentation_ratio", format_args!("{ratio:.2}"));
        line(out, "mem_fragmentation_bytes", resident.saturating_sub(sample.allocated));
        line(out, "mem_allocator", "jemalloc");
        line(out, "allocator_allocated", sample.allocated);
        line(out, "allocator_active", sample.active);
        line(out, "allocator_resident", sample.held);
        line(out, "mem_clients_normal", normal);
        line(out, "mem_clients_pubsub", listening);
        for (name, bytes) in all {
            // Writing to a String cannot fail.
            let _ = write!(out, "used_memory_{name}:{bytes}\r\n");
        }
    }

    pub(super) fn memory_stats(&self, work: &mut Turn<'_>) {
        let stats = self.node.engine().stats();
        let parts = self.parts(&stats, work);
        let one = |bytes: usize| parts.of_process(bytes);
        let Parts { sample, ref all, dataset, clients: [normal, listening], .. } = parts;
        let (keys, shards) = (stats.keys, self.bound.gauge.shards() as u64);
        let numbers = [
            ("peak.allocated", one(self.bound.gauge.peak().max(sample.resident))),
            ("total.allocated", one(sample.allocated)),
            ("startup.allocated", one(self.bound.at_start.resident)),
            ("clients.normal", normal),
            ("clients.pubsub", listening),
            ("keys.count", keys),
            // Together they say the mean of all shards.
            ("keys.bytes-per-key", dataset / keys.max(1) / shards),
            ("dataset.bytes", dataset),
            ("allocator.allocated", one(sample.allocated)),
            ("allocator.active", one(sample.active)),
            ("allocator.resident", one(sample.held)),
            ("process.resident", one(sample.resident)),
        ];
        let mut out = encoder(work);
        out.map(numbers.len() + all.len());
        for (name, number) in numbers {
            out.bulk(name.as_bytes());
            out.integer(number as i64);
        }
        for (name, bytes) in all {
            out.bulk(format!("{name}.bytes").as_bytes());
            out.integer(*bytes);
        }
    }
}
