//! What is told at the end: a table, JSON and an SVG plot, all from the same [`Report`].

pub mod json;
pub mod plot;
pub mod svg;
pub mod table;

use crate::measure::Run;
use crate::measure::stats::{Spread, spread};
use anyhow::{Context, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// The system that the others are compared with.
pub const BASE: &str = "headwater";

/// All runs of a workload.
#[derive(Clone, Debug)]
pub struct Report {
    /// The workload's name.
    pub workload: &'static str,
    /// The settings that all cases share.
    pub params: Map<String, Value>,
    /// What was measured: one case, or several of a matrix.
    pub cases: Vec<Case>,
    /// What else was measured around the only case, each with the name of its phase; none in most workloads.
    pub phases: Vec<Case>,
}

/// Runs that are compared with one another.
#[derive(Clone, Debug)]
pub struct Case {
    /// What sets it apart, for people; empty where there is only one.
    pub name: String,
    /// The settings of this case.
    pub params: Map<String, Value>,
    /// Its runs, in the order in which they were done.
    pub runs: Vec<Run>,
}

/// The figures of one system in one case.
#[derive(Clone, Copy, Debug)]
pub struct CaseMetrics {
    /// Server CPU seconds.
    pub server_cpu_s: Spread,
    /// Generator CPU seconds.
    pub generator_cpu_s: Spread,
    /// Wall seconds.
    pub wall_s: Spread,
    /// Peak resident bytes.
    pub rss_bytes_max: Spread,
    /// Operations.
    pub operations: Spread,
    /// Whether all runs were verified.
    pub verified: bool,
}

/// Peer ÷ Headwater, per operation.
#[derive(Clone, Copy, Debug)]
pub struct Ratios {
    /// Of server CPU: of the medians, with the range over the pairs.
    pub server_cpu: Spread,
    /// Of server and generator CPU together.
    pub total_cpu: Spread,
    /// Of wall time.
    pub wall: Spread,
    /// Of peak resident memory.
    pub rss: Spread,
}

impl Case {
    /// The systems, in the order in which they first ran.
    #[must_use]
    pub fn systems(&self) -> Vec<&'static str> {
        let mut found = Vec::new();
        for run in &self.runs {
            if !found.contains(&run.system) {
                found.push(run.system);
            }
        }
        found
    }

    fn of<'a>(&'a self, system: &'a str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.system == system)
    }

    /// The medians of one system; `None` where it did not run.
    #[must_use]
    pub fn figures(&self, system: &str) -> Option<CaseMetrics> {
        let over = |figure: fn(&Run) -> f64| spread(self.of(system).map(figure));
        Some(CaseMetrics {
            server_cpu_s: over(|run| run.server_cpu_s)?,
            generator_cpu_s: over(|run| run.generator_cpu_s)?,
            wall_s: over(|run| run.wall_s)?,
            rss_bytes_max: over(|run| run.rss_bytes_max as f64)?,
            operations: over(|run| run.operations as f64)?,
            verified: self.of(system).all(|run| run.verified),
        })
    }

    /// How `peer` compares with Headwater; `None` where one of them did not run.
    #[must_use]
    pub fn ratios(&self, peer: &str) -> Option<Ratios> {
        let ratio = |figure: fn(&Run) -> f64| -> Option<Spread> {
            let median = |system| Some(spread(self.of(system).map(figure))?.median);
            let pairs = self.of(peer).filter_map(|run| {
                let base = self.of(BASE).find(|base| base.pair == run.pair)?;
                Some(figure(run) / figure(base))
            });
            Some(Spread { median: median(peer)? / median(BASE)?, ..spread(pairs)? })
        };
        Some(Ratios {
            server_cpu: ratio(|run| run.server_cpu_s / run.operations as f64)?,
            total_cpu: ratio(|run| {
                (run.server_cpu_s + run.generator_cpu_s) / run.operations as f64
            })?,
            wall: ratio(|run| run.wall_s / run.operations as f64)?,
            rss: ratio(|run| run.rss_bytes_max as f64)?,
        })
    }
}

impl Report {
    /// What was measured in `cases`, without phases around it.
    #[must_use]
    pub fn new(workload: &'static str, params: Map<String, Value>, cases: Vec<Case>) -> Self {
        Self { workload, params, cases, phases: Vec::new() }
    }

    /// Whether every run was verified.
    #[must_use]
    pub fn verified(&self) -> bool {
        self.cases.iter().chain(&self.phases).flat_map(|case| &case.runs).all(|run| run.verified)
    }
}

/// Writes a file that was asked for.
///
/// # Errors
/// It cannot be written; the message names it.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file of JSON that was asked for.
///
/// # Errors
/// As for [`write`].
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<()> {
    write(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn run(system: &'static str, pair: usize, cpu: f64) -> Run {
        Run {
            system,
            pair,
            server_cpu_s: cpu,
            generator_cpu_s: 1.0,
            wall_s: 2.0 * cpu,
            rss_bytes_max: (cpu * 1e6) as u64,
            operations: 1_000,
            verified: true,
        }
    }

    pub(crate) fn report() -> Report {
        let runs = vec![
            run("headwater", 1, 1.0),
            run("valkey", 1, 6.0),
            run("headwater", 2, 2.0),
            run("valkey", 2, 8.0),
            run("headwater", 3, 1.5),
            run("valkey", 3, 7.5),
        ];
        let case = Case { name: String::new(), params: Map::new(), runs };
        let params = Map::from_iter([(String::from("seed"), Value::from(1))]);
        Report::new("twip", params, vec![case])
    }

    #[test]
    fn ratios_are_peer_over_headwater_of_the_medians() {
        let report = report();
        let ratios = report.cases[0].ratios("valkey").unwrap();
        assert_eq!(ratios.server_cpu.median, 5.0);
        assert_eq!((ratios.server_cpu.least, ratios.server_cpu.greatest), (4.0, 6.0));
        assert!((ratios.total_cpu.median - 8.5 / 2.5).abs() < 1e-9);
        assert!(report.cases[0].ratios("redis").is_none());
    }

    #[test]
    fn ratios_count_per_operation() {
        let mut report = report();
        for run in report.cases[0].runs.iter_mut().filter(|run| run.system == "valkey") {
            run.operations = 500;
        }
        assert_eq!(report.cases[0].ratios("valkey").unwrap().server_cpu.median, 10.0);
    }
}
