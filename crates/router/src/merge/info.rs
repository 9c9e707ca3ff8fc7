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

/// Numbers of which the greatest counts, of lines and within them: what is the same everywhere, and the worst.
const MOST: [&str; 5] = [
    "paused",
    "oldest-pending-ms",
    "boundary",
    "client_recent_max_input_buffer",
    "client_recent_max_output_buffer",
];

/// How many lines begin with any of these: shards may have the same things, or each its own.
const COUNTS: [(&str, &[&str]); 3] = [
    ("joins", &["join_"]),
    ("tables", &["table_", "unnamed_table"]),
    ("functions", &["function_"]),
];

/// A section, and a line's name in it: sections may have lines of the same name. A title has none.
type Place<'a> = (&'a str, Option<&'a str>);

struct Line<'a> {
    place: Place<'a>,
    value: String,
    /// The line that comes behind this one.
    behind: Option<usize>,
}

/// Lines in their order, of which one can be put behind any other. There are as many as joins and tables.
#[derive(Default)]
struct Lines<'a> {
    all: Vec<Line<'a>>,
    placed: BTreeMap<Place<'a>, usize>,
    first: Option<usize>,
}

impl<'a> Lines<'a> {
    /// Puts a line behind another one, or before all; says where it is.
    fn put(&mut self, before: Option<usize>, place: Place<'a>, value: &str) -> usize {
        let at = self.all.len();
        let link = match before {
            Some(before) => &mut self.all[before].behind,
            None => &mut self.first,
        };
        let behind = link.replace(at);
        self.all.push(Line { place, value: value.to_owned(), behind });
        self.placed.insert(place, at);
        at
    }

    fn value(&mut self, section: &'static str, name: &'static str) -> Option<&mut String> {
        let at = *self.placed.get(&(section, Some(name)))?;
        Some(&mut self.all[at].value)
    }

    /// What the sums of lines have to agree with.
    fn round_off(&mut self) {
        if let Some(bytes) = self.value("# Memory", "used_memory_dataset").map(|it| it.parse())
            && let (Ok(bytes), Some(human)) =
                (bytes, self.value("# Memory", "used_memory_dataset_human"))
        {
            *human = Human(bytes).to_string();
        }
        // What others account for is taken off the first one's rest, and was perhaps counted a moment apart.
        if let Some(rest) = self.value("# Memory", "used_memory_unaccounted")
            && rest.starts_with('-')
        {
            *rest = "0".to_owned();
        }
        let mut counted: BTreeMap<Place<'a>, usize> = BTreeMap::new();
        for Line { place: (section, name), value, .. } in &mut self.all {
            let Some(name) = *name else { continue };
            if name.starts_with("cmdstat_") {
                *value = with_mean(value);
            }
            let of = |(_, starts): &&(_, &[&str])| starts.iter().any(|it| name.starts_with(it));
            if let Some((count, _)) = COUNTS.iter().find(of) {
                *counted.entry((*section, Some(*count))).or_default() += 1;
            }
        }
        for (place, count) in counted {
            if let Some(&at) = self.placed.get(&place) {
                self.all[at].value = count.to_string();
            }
        }
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
        let mut section = "";
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (name, value) = if line.starts_with('#') {
                section = line;
                (None, "")
            } else {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                (Some(name), value)
            };
            at = Some(match lines.placed.get(&(section, name)) {
                Some(&found) => {
                    let is_amount = name.is_some_and(|name| !NOT_ADDED.contains(&name));
                    if is_amount && !core::ptr::eq(text, &texts[0]) {
                        let before = &mut lines.all[found].value;
                        *before = together(name.unwrap_or_default(), before, value);
                    }
                    found
                }
                None => lines.put(at, (section, name), value),
            });
        }
    }
    lines.round_off();
    let mut merged = String::new();
    let mut next = lines.first;
    while let Some(Line { place: (section, name), value, behind }) = next.map(|at| &lines.all[at]) {
        next = *behind;
        match name {
            None => {
                if !merged.is_empty() {
                    merged.push_str("\r\n");
                }
                merged += &format!("{section}\r\n");
            }
            Some(name) if name.starts_with("cmdstat_") && is_part_of_others(value) => {}
            Some(name) => merged += &format!("{name}:{value}\r\n"),
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

/// What two shards say of what has this name.
fn together(name: &str, one: &str, other: &str) -> String {
    if MOST.contains(&name) {
        let most = one.parse::<u64>().ok().max(other.parse().ok());
        return most.unwrap_or(0).to_string();
    }
    if let (Ok(one), Ok(other)) = (one.parse::<i64>(), other.parse::<i64>()) {
        return (one + other).to_string();
    }
    if let (Ok(one), Ok(other)) = (one.parse::<f64>(), other.parse::<f64>()) {
        return format!("{:.2}", one + other);
    }
    if !one.contains('=') {
        // What is not well with one shard is not well.
        return if matches!(one, "ok" | "") { other.to_owned() } else { one.to_owned() };
    }
    let others: Vec<(&str, &str)> =
        other.split(',').filter_map(|part| part.split_once('=')).collect();
    // A place in one shard's journal says nothing of all.
    let parts = one.split(',').filter(|part| !part.starts_with("cursor="));
    let parts = parts.map(|part| {
        let Some((name, value)) = part.split_once('=') else { return part.to_owned() };
        match others.iter().find(|(other, _)| *other == name) {
            Some((_, other)) => format!("{name}={}", together(name, value, other)),
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
    #[test]
    fn lines_of_one_name_in_two_sections_are_two_lines() {
        let shard = |expired: i64, keys: &str| {
            answer_of(|out| {
                let text = format!(
                    "# Stats\r\nexpired_keys:{expired}\r\n\r\n# Engine\r\nexpired_keys:{expired}\r\nupdaters:1\r\n\r\n\
                     # Keyspace\r\n{keys}"
                );
                out.verbatim(*b"txt", text.as_bytes());
            })
        };
        let parts = [shard(1, ""), shard(2, "db0:keys=2,expires=0\r\n")];
        assert_eq!(
            merged(&parts.each_ref().map(|part| Answer::whole(part).unwrap())),
            "# Stats\r\nexpired_keys:3\r\n\r\n# Engine\r\nexpired_keys:3\r\nupdaters:2\r\n\r\n\
             # Keyspace\r\ndb0:keys=2,expires=0\r\n"
        );
    }

    #[test]
    fn what_shards_have_in_common_is_counted_once_and_the_greatest_is_told() {
        let shard = |text: &str| answer_of(|out| out.verbatim(*b"txt", text.as_bytes()));
        let parts = [
            shard(
                "# Clients\r\nclient_recent_max_input_buffer:7\r\n\r\n# Memory\r\n\
                 used_memory_unaccounted:5\r\n\r\n# Joins\r\njoins:1\r\njoin_j:hits=1\r\n\r\n\
                 # Tables\r\ntables:1\r\ntable_t:boundary=2,keys=3\r\n",
            ),
            shard(
                "# Clients\r\nclient_recent_max_input_buffer:9\r\n\r\n# Memory\r\n\
                 used_memory_unaccounted:-8\r\n\r\n# Joins\r\njoins:1\r\njoin_j:hits=2\r\n\r\n\
                 # Tables\r\ntables:2\r\ntable_t:boundary=2,keys=4\r\nunnamed_table:boundary=0,keys=1\r\n",
            ),
        ];
        assert_eq!(
            merged(&parts.each_ref().map(|part| Answer::whole(part).unwrap())),
            "# Clients\r\nclient_recent_max_input_buffer:9\r\n\r\n# Memory\r\nused_memory_unaccounted:0\r\n\r\n\
             # Joins\r\njoins:1\r\njoin_j:hits=3\r\n\r\n\
             # Tables\r\ntables:2\r\ntable_t:boundary=2,keys=7\r\nunnamed_table:boundary=0,keys=1\r\n"
        );
    }
}
