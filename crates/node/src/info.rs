//! What INFO and MEMORY STATS tell about data.

use crate::node::Node;
use alloc::string::String;
use core::fmt::Write;
use headwater_command::Reply;
use headwater_command::number::unsigned;
use headwater_engine::{Engine, Stats};

/// The parts of INFO that a node tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InfoSection {
    /// Keys and expiries.
    Keyspace,
    /// What is derived and how much work that was.
    Engine,
    /// The installed joins with their counters.
    Joins,
    /// The tables with their sizes.
    Tables,
    /// The modules of functions with their calls.
    Functions,
}

impl InfoSection {
    /// Every section, in the order that INFO shows them.
    pub const ALL: [Self; 5] =
        [Self::Keyspace, Self::Engine, Self::Joins, Self::Tables, Self::Functions];

    /// The section's title; INFO takes it in any mixture of cases.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Keyspace => "Keyspace",
            Self::Engine => "Engine",
            Self::Joins => "Joins",
            Self::Tables => "Tables",
            Self::Functions => "Functions",
        }
    }
}

impl Node {
    /// Appends the lines of one section of INFO, its title first, each with its line end. `stats` are the engine's, which cost a walk
    /// through all tables: one for all sections.
    pub fn write_info(&self, section: InfoSection, stats: &Stats, out: &mut String) {
        let written = write_section(&self.engine, section, stats, out);
        debug_assert!(written.is_ok(), "a String takes all text");
    }
}

/// What the data takes, by kind, in bytes, with the names that INFO and MEMORY STATS give the kinds.
#[must_use]
pub fn memory_kinds(engine: &Engine, stats: &Stats) -> [(&'static str, u64); 7] {
    let values = engine.value_memory();
    let spare = (values.taken as u64).saturating_sub(stats.value_bytes + values.untouched as u64);
    [
        ("values", stats.value_bytes),
        ("values_spare", spare),
        ("keys", stats.key_bytes),
        ("index", stats.index_bytes),
        ("updaters", stats.updater_bytes),
        ("status_ranges", stats.status_range_bytes),
        ("streams", stats.stream_bytes),
    ]
}

fn write_section(
    engine: &Engine,
    section: InfoSection,
    stats: &Stats,
    out: &mut String,
) -> core::fmt::Result {
    write!(out, "# {}\r\n", section.title())?;
    match section {
        InfoSection::Keyspace => {
            if stats.keys > 0 {
                let (keys, expires) = (stats.keys, stats.keys_with_expiry);
                write!(out, "db0:keys={keys},expires={expires},avg_ttl=0\r\n")?;
            }
        }
        InfoSection::Engine => {
            let numbers = [
                ("groups", stats.groups),
                ("expired_keys", stats.expired),
                ("streams", stats.streams),
                ("spilled_values", stats.spilled_values),
                ("spilled_bytes", stats.spilled_bytes),
                ("updaters", stats.updaters),
                ("updater_targets", stats.updater_targets),
                ("status_ranges", stats.status_ranges),
            ];
            for (title, number) in numbers.into_iter().chain(stats.counters.iter().copied()) {
                write!(out, "{}:{number}\r\n", Field(title))?;
            }
        }
        InfoSection::Joins => {
            let joins = engine.joins();
            write!(out, "joins:{}\r\n", joins.len())?;
            for join in joins {
                write!(out, "join_{}:", LineName(join.name.as_bytes()))?;
                write_list(&join.counters, out)?;
            }
        }
        InfoSection::Functions => {
            let reports = engine.functions();
            write!(out, "functions:{}\r\n", reports.len())?;
            for report in reports {
                write!(out, "function_{}:", LineName(report.name.as_bytes()))?;
                write_list(&crate::functions::numbers(&report), out)?;
            }
        }
        InfoSection::Tables => {
            let tables = engine.tables();
            write!(out, "tables:{}\r\n", tables.len())?;
            for table in tables {
                let kind = if table.named { "table_" } else { "unnamed_table" };
                write!(out, "{kind}{}:", LineName(&table.name))?;
                let numbers = [
                    ("boundary", table.boundary as u64),
                    ("keys", table.keys),
                    ("groups", table.groups),
                    ("key_bytes", table.key_bytes),
                    ("index_bytes", table.index_bytes),
                    ("value_bytes", table.value_bytes),
                ];
                write_list(&numbers, out)?;
            }
        }
    }
    Ok(())
}

/// What clients have named, as part of a line's name, which the first `:` ends.
#[derive(Clone, Copy, Debug)]
pub struct LineName<'n>(pub &'n [u8]);

impl core::fmt::Display for LineName<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let is_plain =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        if self.0.iter().all(is_plain)
            && let Ok(plain) = core::str::from_utf8(self.0)
        {
            return f.write_str(plain);
        }
        for (at, part) in self.0.split(|byte| *byte == b':').enumerate() {
            f.write_str(if at > 0 { r"\x3a" } else { "" })?;
            write!(f, "{}", part.escape_ascii())?;
        }
        Ok(())
    }
}

/// A title with `_` between its words, whatever stands there.
struct Field(&'static str);

impl core::fmt::Display for Field {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if !self.0.contains([' ', '-']) {
            return f.write_str(self.0);
        }
        for letter in self.0.chars() {
            f.write_char(if matches!(letter, ' ' | '-') { '_' } else { letter })?;
        }
        Ok(())
    }
}

fn write_list(numbers: &[(&'static str, u64)], out: &mut String) -> core::fmt::Result {
    for (at, (title, number)) in numbers.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        // Not by a format: there may be a hundred thousand such lines.
        out.push_str(comma);
        write!(out, "{}", Field(title))?;
        out.push('=');
        out.push_str(core::str::from_utf8(unsigned(*number).as_bytes()).unwrap_or_default());
    }
    out.write_str("\r\n")
}

pub(crate) fn memory_stats(engine: &Engine, reply: &mut impl Reply) {
    let stats = engine.stats();
    let kinds = memory_kinds(engine, &stats);
    let keys = stats.keys;
    let total: u64 = kinds.iter().map(|(_, bytes)| bytes).sum();
    reply.map(3 + kinds.len());
    let numbers = [
        ("keys.count", keys),
        ("keys.bytes-per-key", total / keys.max(1)),
        ("dataset.bytes", total),
    ];
    for (title, number) in numbers {
        reply.bulk(title.as_bytes());
        reply.integer(number as i64);
    }
    for (kind, bytes) in kinds {
        reply.bulk(alloc::format!("{kind}.bytes").as_bytes());
        reply.integer(bytes as i64);
    }
}
