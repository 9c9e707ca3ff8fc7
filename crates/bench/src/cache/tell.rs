//! What came out: a table and JSON.
//!
//! JSON: `{"workload": "cache", "params": {…}, "cases": [{"memory_bytes", "runs": [{"system",
//! "policy", "pair", "limit_bytes", "rss_bytes_max", "level", "reads", "hits", "hit_ratio",
//! "byte_hit_ratio", "server_cpu_s", "generator_cpu_s", "wall_s", "verified"}], "best":
//! {system: {"policy", "hit_ratio", "byte_hit_ratio"}}}]}`.

use super::replay::Found;
use crate::measure::stats::spread;
use crate::report::{self, table::rows};
use anyhow::{Result, bail};
use core::fmt::Write as _;
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::path::Path;

/// How a server's resident memory compares with what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// It is the same, within 2 %.
    Equal,
    /// Everything fits into less.
    Fits,
    /// It is not: no limit was found, or memory varies from run to run.
    Off,
}

impl Level {
    /// The level of a measured run, after that of the trial.
    #[must_use]
    pub fn after(self, rss_bytes: u64, target: u64, tolerance: f64) -> Self {
        let most = target as f64 * (1.0 + tolerance);
        let least = target as f64 * (1.0 - tolerance);
        match self {
            Self::Fits if rss_bytes as f64 <= most => Self::Fits,
            _ if (least..=most).contains(&(rss_bytes as f64)) => Self::Equal,
            _ => Self::Off,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Fits => "fits",
            Self::Off => "OFF",
        }
    }
}

/// One measured run.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The system's name.
    pub system: &'static str,
    /// Its policy.
    pub policy: String,
    /// Which round the run belongs to, from 1.
    pub pair: usize,
    /// The limit that the server was given.
    pub limit_bytes: u64,
    /// Its peak resident memory.
    pub rss_bytes_max: u64,
    /// How that compares with what was asked for.
    pub level: Level,
    /// Hits.
    pub found: Found,
    /// User and system CPU seconds of the server.
    pub server_cpu_s: f64,
    /// The same of the generator.
    pub generator_cpu_s: f64,
    /// Seconds from the first request to the last reply.
    pub wall_s: f64,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct CacheReport {
    /// The settings.
    pub params: Map<String, Value>,
    /// Runs by the resident memory that was asked for.
    pub cases: Vec<(u64, Vec<Entry>)>,
}

/// The runs of one system with one policy.
fn groups(entries: &[Entry]) -> Vec<Vec<&Entry>> {
    let mut groups: Vec<Vec<&Entry>> = Vec::new();
    for entry in entries {
        let same = |group: &&mut Vec<&Entry>| {
            group[0].system == entry.system && group[0].policy == entry.policy
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(entry),
            None => groups.push(vec![entry]),
        }
    }
    groups
}

fn median(group: &[&Entry], figure: impl Fn(&Entry) -> f64) -> f64 {
    spread(group.iter().map(|entry| figure(entry))).map_or(0.0, |spread| spread.median)
}

fn ratio(group: &[&Entry]) -> f64 {
    median(group, |entry| entry.found.ratio())
}

/// Of each system, in the order in which they ran, the group with the best hit ratio.
fn best(entries: &[Entry]) -> Vec<Vec<&Entry>> {
    let mut best: Vec<Vec<&Entry>> = Vec::new();
    for group in groups(entries) {
        match best.iter_mut().find(|known| known[0].system == group[0].system) {
            Some(known) if ratio(known) < ratio(&group) => *known = group,
            Some(_) => {}
            None => best.push(group),
        }
    }
    best
}

impl CacheReport {
    /// Prints the table and writes the file.
    ///
    /// # Errors
    /// The file cannot be written, or a value was wrong.
    pub fn tell(&self, path: Option<&Path>) -> Result<()> {
        std::io::stdout().lock().write_all(self.table().as_bytes())?;
        if let Some(path) = path {
            report::write_json(path, &self.json())?;
        }
        let mut entries = self.cases.iter().flat_map(|(_, entries)| entries);
        if entries.any(|entry| entry.found.wrong > 0) {
            bail!("at least one run gave wrong values; its figures mean nothing");
        }
        Ok(())
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let name = self.params.get("trace").and_then(Value::as_str).unwrap_or_default();
        for (target, entries) in &self.cases {
            let target = *target as f64 / 1e6;
            let _ = writeln!(text, "\ncache {name}: {target:.1} MB resident");
            let head = [
                "system",
                "policy",
                "hits %",
                "bytes %",
                "memory MB",
                "level",
                "limit MB",
                "server CPU s",
                "µs CPU/read",
                "verified",
            ];
            let mut grid = vec![head.map(String::from).to_vec()];
            for group in groups(entries) {
                let reads = median(&group, |entry| entry.found.reads as f64).max(1.0);
                let cpu = median(&group, |entry| entry.server_cpu_s);
                // The worst of all runs counts.
                let level = group.iter().map(|entry| entry.level).find(|l| *l == Level::Off);
                let right = group.iter().all(|entry| entry.found.wrong == 0);
                grid.push(vec![
                    String::from(group[0].system),
                    group[0].policy.clone(),
                    format!("{:.2}", 100.0 * ratio(&group)),
                    format!("{:.2}", 100.0 * median(&group, |entry| entry.found.byte_ratio())),
                    format!("{:.1}", median(&group, |entry| entry.rss_bytes_max as f64) / 1e6),
                    String::from(level.unwrap_or(group[0].level).name()),
                    format!("{:.1}", group[0].limit_bytes as f64 / 1e6),
                    format!("{cpu:.3}"),
                    format!("{:.3}", cpu / reads * 1e6),
                    String::from(if right { "yes" } else { "NO" }),
                ]);
            }
            rows(&mut text, &grid);
            let best = best(entries);
            if let Some((own, peers)) =
                best.split_first().filter(|(own, _)| own[0].system == report::BASE)
            {
                for peer in peers {
                    let points = 100.0 * (ratio(own) - ratio(peer));
                    let (system, policy) = (peer[0].system, &peer[0].policy);
                    let _ = writeln!(
                        text,
                        "headwater {} - {system} {policy}: {points:+.2} points",
                        own[0].policy
                    );
                }
            }
        }
        text
    }

    fn json(&self) -> Value {
        let cases = self.cases.iter().map(|(target, entries)| {
            let best: Map<String, Value> = best(entries)
                .into_iter()
                .map(|group| {
                    let figures = json!({
                        "policy": group[0].policy,
                        "hit_ratio": ratio(&group),
                        "byte_hit_ratio": median(&group, |entry| entry.found.byte_ratio()),
                    });
                    (String::from(group[0].system), figures)
                })
                .collect();
            let runs: Vec<Value> = entries.iter().map(run).collect();
            json!({"memory_bytes": target, "runs": runs, "best": best})
        });
        let cases: Vec<Value> = cases.collect();
        json!({"workload": "cache", "params": self.params, "cases": cases})
    }
}

fn run(entry: &Entry) -> Value {
    json!({
        "system": entry.system,
        "policy": entry.policy,
        "pair": entry.pair,
        "limit_bytes": entry.limit_bytes,
        "rss_bytes_max": entry.rss_bytes_max,
        "level": entry.level.name(),
        "reads": entry.found.reads,
        "hits": entry.found.hits,
        "hit_ratio": entry.found.ratio(),
        "byte_hit_ratio": entry.found.byte_ratio(),
        "server_cpu_s": entry.server_cpu_s,
        "generator_cpu_s": entry.generator_cpu_s,
        "wall_s": entry.wall_s,
        "verified": entry.found.wrong == 0,
        "refused": entry.found.refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(system: &'static str, policy: &str, pair: usize, hits: u64) -> Entry {
        Entry {
            system,
            policy: String::from(policy),
            pair,
            limit_bytes: 900,
            rss_bytes_max: 1000,
            level: Level::Equal,
            found: Found {
                reads: 100,
                hits,
                bytes: 10_000,
                bytes_hit: hits * 50,
                wrong: 0,
                refused: 0,
            },
            server_cpu_s: 1.0,
            generator_cpu_s: 1.0,
            wall_s: 2.0,
        }
    }

    #[test]
    fn the_best_policy_of_each_system_is_compared() {
        let mut entries = Vec::new();
        for pair in 1..=3 {
            entries.push(entry("headwater", "allkeys-lru", pair, 60));
            entries.push(entry("headwater", "allkeys-cost", pair, 70 + pair as u64));
            entries.push(entry("valkey", "allkeys-lfu", pair, 69));
            entries.push(entry("valkey", "allkeys-lru", pair, 50));
        }
        let told = CacheReport { params: Map::new(), cases: vec![(1000, entries)] };
        let table = told.table();
        let line = "headwater allkeys-cost - valkey allkeys-lfu: +3.00 points";
        assert!(table.lines().any(|found| found == line), "{table}");
        let json = told.json();
        assert_eq!(json["cases"][0]["best"]["valkey"]["policy"], "allkeys-lfu");
        assert_eq!(json["cases"][0]["runs"].as_array().unwrap().len(), 12);
        assert_eq!(json["cases"][0]["best"]["headwater"]["hit_ratio"], json!(0.72));
    }

    #[test]
    fn memory_that_is_off_is_told() {
        assert_eq!(Level::Equal.after(1019, 1000, 0.02), Level::Equal);
        assert_eq!(Level::Equal.after(1021, 1000, 0.02), Level::Off);
        assert_eq!(Level::Equal.after(900, 1000, 0.02), Level::Off);
        assert_eq!(Level::Fits.after(900, 1000, 0.02), Level::Fits);
        assert_eq!(Level::Fits.after(1100, 1000, 0.02), Level::Off);
    }
}
