//! The text of INFO for all shards, from the texts of each.

use crate::answer::Answer;
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use headwater_command::number::Human;

/// Numbers that are not added up: they are of the process, or no amounts.
const NOT_ADDED: &[&str] = &[
    "redis_version",
    "headwater_version",
    "server_time_usec",
    "cluster_enabled",
    "arch_bits",
    "process_id",
    "tcp_port",
    "uptime_in_seconds",
    "uptime_in_days",
    "hz",
    "lru_clock",
    "maxclients",
    "maxmemory",
    "used_memory",
    "used_memory_rss",
    "used_memory_peak",
    "maxmemory_used",
    "mem_fragmentation_bytes",
    "used_memory_overhead",
    "total_system_memory",
    "allocator_allocated",
    "allocator_active",
    "allocator_resident",
    "used_cpu_sys",
    "used_cpu_user",
    "mem_fragmentation_ratio",
    "data_enabled",
    "data_sync_usec_last",
    "data_sync_usec_mean",
    "loading",
    "async_loading",
    "shards",
    "pubsub_channels",
    "pubsub_patterns",
    "tracking_total_prefixes",
];

/// Numbers within a line of which the greatest counts.
const MOST: [&str; 2] = ["paused", "oldest-pending-ms"];

struct Line<'a> {
    name: &'a str,
    value: String,
    /// The line that comes behind this one.
    behind: Option<usize>,
}

/// Lines in their order, of which one can be put behind any other. There are as many as joins and tables.
#[derive(Default)]
struct Lines<'a> {
    all: Vec<Line<'a>>,
    named: BTreeMap<&'a str, usize>,
    first: Option<usize>,
}

impl<'a> Lines<'a> {
    /// Puts a line behind another one, or before all; says where it is.
    fn put(&mut self, before: Option<usize>, name: &'a str, value: &str) -> usize {
        let at = self.all.len();
        let place = match before {
            Some(before) => &mut self.all[before].behind,
            None => &mut self.first,
        };
        let behind = place.replace(at);
        self.all.push(Line { name, value: value.to_owned(), behind });
        self.named.insert(name, at);
        at
    }
}

/// The first text, with the numbers of all added up, also within `keys=1,expires=2`. A section or a line that the
/// first lacks is put where the others have it, behind what comes before.
pub(super) fn merged(replies: &[Answer<'_>]) -> String {
    let texts: Vec<String> = replies
        .iter()
        .map(|reply| String::from_utf8_lossy(reply.text().unwrap_or_default()).into_owned())
        .collect();
    let mut lines = Lines::default();
    for text in &texts {
        // Behind which line one that is missing goes.
        let mut at = None;
        for line in text.lines() {
            let (name, value) = match line.split_once(':') {
                Some((name, value)) if !line.starts_with('#') => (name, value),
                _ if line.is_empty() => continue,
                _ => (line, ""),
            };
            at = Some(match lines.named.get(name) {
                Some(&found) => {
                    if !NOT_ADDED.contains(&name) && !core::ptr::eq(text, &texts[0]) {
                        let before = &mut lines.all[found].value;
                        *before = added(before, value);
                    }
                    found
                }
                None => lines.put(at, name, value),
            });
        }
    }
    let human = lines.named.get("used_memory_dataset").map(|&at| &lines.all[at].value);
    if let Some(bytes) = human.and_then(|bytes| bytes.parse().ok())
        && let Some(&at) = lines.named.get("used_memory_dataset_human")
    {
        lines.all[at].value = Human(bytes).to_string();
    }
    for line in lines.all.iter_mut().filter(|line| line.name.starts_with("cmdstat_")) {
        line.value = with_mean(&line.value);
    }
    let mut merged = String::new();
    let mut next = lines.first;
    while let Some(Line { name, value, behind }) = next.map(|at| &lines.all[at]) {
        next = *behind;
        if name.starts_with('#') {
            if !merged.is_empty() {
                merged.push_str("\r\n");
            }
            merged += &format!("{name}\r\n");
        } else if !(name.starts_with("cmdstat_") && is_part_of_others(value)) {
            merged += &format!("{name}:{value}\r\n");
        }
    }
    merged
}

/// Whether a line of COMMANDSTATS is about a command that nobody has called: shards have executed it as a part of other ones.
fn is_part_of_others(value: &str) -> bool {
    value.starts_with("calls=0,") && value.ends_with(",rejected_calls=0,failed_calls=0")
}

/// A line of COMMANDSTATS, with the mean that its sums have.
fn with_mean(value: &str) -> String {
    const MEAN: &str = "usec_per_call";
    let number = |wanted: &str| {
        let mut parts = value.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| *name == wanted).and_then(|(_, number)| number.parse::<f64>().ok())
    };
    let (Some(calls), Some(micros)) = (number("calls"), number("usec")) else {
        return value.to_owned();
    };
    let parts = value.split(',').map(|part| match part.split_once('=') {
        Some((MEAN, _)) => format!("{MEAN}={:.2}", micros / calls.max(1.0)),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(",")
}

fn added(one: &str, other: &str) -> String {
    if let (Ok(one), Ok(other)) = (one.parse::<i64>(), other.parse::<i64>()) {
        return (one + other).to_string();
    }
    if let (Ok(one), Ok(other)) = (one.parse::<f64>(), other.parse::<f64>()) {
        return format!("{:.2}", one + other);
    }
    if !one.contains('=') {
        // What is not well with one shard is not well.
        return if one == "ok" { other.to_owned() } else { one.to_owned() };
    }
    let others: Vec<(&str, &str)> =
        other.split(',').filter_map(|part| part.split_once('=')).collect();
    // A place in one shard's journal says nothing of all.
    let parts = one.split(',').filter(|part| !part.starts_with("cursor="));
    let parts = parts.map(|part| {
        let Some((name, value)) = part.split_once('=') else { return part.to_owned() };
        match others.iter().find(|(other, _)| *other == name) {
            Some((_, other)) if MOST.contains(&name) => {
                let most = value.parse::<u64>().ok().max(other.parse().ok());
                format!("{name}={}", most.unwrap_or(0))
            }
            Some((_, other)) => format!("{name}={}", added(value, other)),
            None => part.to_owned(),
        }
    });
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::answer_of;
    use headwater_command::Reply;

    #[test]
    fn amounts_are_added_up_and_facts_are_not() {
        let bulk = |text: &str| answer_of(|out| out.verbatim(*b"txt", text.as_bytes()));
        let one = bulk(
            "# Server\r\ntcp_port:7\r\n\r\n# Stats\r\nhits:2\r\nmode:x\r\nstatus:ok\r\n\r\n# Keyspace\r\n",
        );
        let two = bulk(
            "# Server\r\ntcp_port:7\r\n\r\n# Stats\r\nhits:3\r\nmode:x\r\nstatus:err\r\n\r\n# Keyspace\r\ndb0:keys=2,expires=1\r\n",
        );
        let stats = |calls: i64, usec: i64, mean: &str| {
            bulk(&format!(
                "# Commandstats\r\ncmdstat_get:calls={calls},usec={usec},usec_per_call={mean}\r\n\
                 # Stats\r\nkbps:1.25\r\nserver_time_usec:7\r\n"
            ))
        };
        let parts = [stats(4, 10, "2.50"), stats(-1, 2, "2.00")];
        assert_eq!(
            merged(&parts.each_ref().map(|part| Answer::whole(part).unwrap())),
            "# Commandstats\r\ncmdstat_get:calls=3,usec=12,usec_per_call=4.00\r\n\r\n\
             # Stats\r\nkbps:2.50\r\nserver_time_usec:7\r\n"
        );
        let three = bulk("# Keyspace\r\ndb0:keys=5,expires=0\r\n");
        assert_eq!(
            merged(&[&one, &two, &three].map(|part| Answer::whole(part).unwrap())),
            "# Server\r\ntcp_port:7\r\n\r\n# Stats\r\nhits:5\r\nmode:x\r\nstatus:err\r\n\r\n# Keyspace\r\n\
             db0:keys=7,expires=1\r\n"
        );
    }
}
