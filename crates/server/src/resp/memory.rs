//! INFO memory and MEMORY STATS: where the resident memory of the process is.
//!
//! The parts add up to what the system reports: what the data takes by kind, clients, what the server
//! had before the first command, what the allocator needs besides, and what is none of these.

use super::info::line;
use super::{Resp, Turn, encoder};
use crate::memory::{Human, Sample};
use core::fmt::Write;
use headwater_base::memory::Meter;
use headwater_command::Reply;
use headwater_node::memory_kinds;

/// The parts, each with its name and bytes.
struct Parts {
    sample: Sample,
    all: Vec<(&'static str, u64)>,
    dataset: u64,
    clients: [u64; 2],
}

impl Resp {
    fn parts(&self, work: &Turn<'_>) -> Parts {
        let sample = self.memory_sample();
        let mut all = memory_kinds(self.node.engine()).to_vec();
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
        // What was there at the start counts as far as it was touched then.
        let beside = |sample: Sample| sample.held.saturating_sub(sample.allocated);
        let files = sample.files.saturating_sub(self.at_start.files);
        all.extend([
            ("clients", normal + listening),
            ("tracking", self.tracking.bytes() as u64),
            ("functions", functions),
            ("startup", (self.at_start.resident + files) as u64),
            ("allocator", beside(sample).saturating_sub(beside(self.at_start)) as u64),
        ]);
        let accounted: u64 = all.iter().map(|(_, bytes)| bytes).sum();
        all.push(("unaccounted", (sample.resident as u64).saturating_sub(accounted)));
        Parts { sample, all, dataset, clients }
    }

    pub(super) fn write_memory(&self, work: &Turn<'_>, out: &mut String) {
        let Parts { sample, all, dataset, clients: [normal, listening], .. } = self.parts(work);
        let bound = self.gauge.bound().unwrap_or(0);
        let (resident, peak) = (sample.resident, self.gauge.peak().max(sample.resident));
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
        line(out, "maxmemory_policy", &self.config.memory.policy);
        line(out, "maxmemory_used", self.gauge.bound().map_or(0, |_| self.gauge.used()));
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
        let Parts { sample, all, dataset, clients: [normal, listening] } = self.parts(work);
        let keys = self.node.engine().key_count();
        let numbers = [
            ("peak.allocated", self.gauge.peak().max(sample.resident) as u64),
            ("total.allocated", sample.allocated as u64),
            ("startup.allocated", self.at_start.resident as u64),
            ("clients.normal", normal),
            ("clients.pubsub", listening),
            ("keys.count", keys),
            ("keys.bytes-per-key", dataset / keys.max(1)),
            ("dataset.bytes", dataset),
            ("allocator.allocated", sample.allocated as u64),
            ("allocator.active", sample.active as u64),
            ("allocator.resident", sample.held as u64),
            ("process.resident", sample.resident as u64),
        ];
        let mut out = encoder(work);
        out.map(numbers.len() + all.len());
        for (name, number) in numbers {
            out.bulk(name.as_bytes());
            out.integer(number as i64);
        }
        for (name, bytes) in all {
            out.bulk(format!("{name}.bytes").as_bytes());
            out.integer(bytes as i64);
        }
    }
}
