//! Runs that take turns: A B A B …, each on a server of its own, each measured alike.

use crate::measure::{Clock, Run};
use crate::peer::{Measured, System, stop};
use crate::report::{Case, Report};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};

/// Lets each system have its turn, `pairs` times.
///
/// # Errors
/// A run fails; the message says which.
pub fn take_turns<T>(
    systems: &[System],
    pairs: usize,
    mut one: impl FnMut(System, usize, &Progress) -> Result<T>,
) -> Result<Vec<T>> {
    let mut results = Vec::new();
    for pair in 1..=pairs {
        for &system in systems {
            stop::check()?;
            let progress = Progress::new(system, pair, pairs);
            let result = one(system, pair, &progress);
            progress.bar.finish_and_clear();
            // An interruption closes connections: it is the cause, not what it caused.
            stop::check()?;
            results.push(result.with_context(|| format!("{} (pair {pair})", system.name()))?);
        }
    }
    Ok(results)
}

/// Tells where a run is; on a terminal only.
#[derive(Debug)]
pub struct Progress {
    /// The bar of the phase.
    pub bar: ProgressBar,
    prefix: String,
}

impl Progress {
    /// A bar for one system.
    #[must_use]
    pub fn new(system: System, pair: usize, pairs: usize) -> Self {
        let bar = ProgressBar::new(0);
        let style = "{prefix:>28} {bar:30} {pos}/{len} {per_sec} {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let prefix = format!("{} {pair}/{pairs}", system.name());
        bar.set_prefix(prefix.clone());
        Self { bar, prefix }
    }

    /// Starts a phase of `length` steps.
    pub fn phase(&self, what: &str, length: u64) {
        self.bar.set_prefix(format!("{} {what}", self.prefix));
        self.bar.set_length(length);
        self.bar.set_position(0);
        self.bar.reset_eta();
        self.bar.tick();
    }
}

/// What a measured phase cost, before anything was verified.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    server_cpu_s: f64,
    generator_cpu_s: f64,
    wall_s: f64,
    rss_bytes_max: u64,
    operations: u64,
}

impl Cost {
    /// Measures `work`, which gives the number of its operations.
    ///
    /// # Errors
    /// The work fails, or the server is gone; then what it printed is shown.
    pub fn of(server: &dyn Measured, work: impl FnOnce() -> Result<u64>) -> Result<Self> {
        let start = Clock::now(server.cpu_used()?);
        let printed = || format!("the server printed: {}", server.printed());
        let operations = work().with_context(printed)?;
        let (server_cpu_s, generator_cpu_s, wall_s) = Clock::now(server.cpu_used()?).since(&start);
        let rss_bytes_max = server.resident_max()?;
        Ok(Self { server_cpu_s, generator_cpu_s, wall_s, rss_bytes_max, operations })
    }

    /// The run that cost this.
    #[must_use]
    pub fn run(self, system: System, pair: usize, verified: bool) -> Run {
        Run {
            system: system.name(),
            pair,
            server_cpu_s: self.server_cpu_s,
            generator_cpu_s: self.generator_cpu_s,
            wall_s: self.wall_s,
            rss_bytes_max: self.rss_bytes_max,
            operations: self.operations,
            verified,
        }
    }
}

/// What each phase of one system's turn cost.
#[derive(Clone, Debug)]
pub struct PhasedRun {
    /// Everything is brought into the server that is there before the run. Its operations are what is brought.
    pub load: Run,
    /// What is read once before the run, if anything is.
    pub warm: Option<Run>,
    /// The run itself.
    pub run: Run,
}

impl PhasedRun {
    /// The turn whose phases cost this.
    #[must_use]
    pub fn of(
        system: System,
        pair: usize,
        verified: bool,
        (load, warm, run): (Cost, Option<Cost>, Cost),
    ) -> Self {
        let phase = |cost: Cost| cost.run(system, pair, verified);
        Self { load: phase(load), warm: warm.map(phase), run: phase(run) }
    }

    /// All phases together. Its operations are those of the run.
    fn whole(&self) -> Run {
        let phases =
            || [Some(&self.load), self.warm.as_ref(), Some(&self.run)].into_iter().flatten();
        Run {
            server_cpu_s: phases().map(|phase| phase.server_cpu_s).sum(),
            generator_cpu_s: phases().map(|phase| phase.generator_cpu_s).sum(),
            wall_s: phases().map(|phase| phase.wall_s).sum(),
            ..self.run.clone()
        }
    }
}

/// The report of a workload whose systems do some of the work while they are loaded: the run is what is
/// compared first; loading, warming and the whole stand beside it.
#[must_use]
pub fn phased(workload: &'static str, params: Map<String, Value>, turns: &[PhasedRun]) -> Report {
    let case =
        |name: &str, runs: Vec<Run>| Case { name: name.to_owned(), params: Map::new(), runs };
    let of =
        |phase: fn(&PhasedRun) -> Option<Run>| turns.iter().filter_map(phase).collect::<Vec<_>>();
    let phases = [
        case("load", of(|turn| Some(turn.load.clone()))),
        case("warm", of(|turn| turn.warm.clone())),
        case("whole", of(|turn| Some(turn.whole()))),
    ];
    Report {
        workload,
        params,
        cases: vec![case("run", of(|turn| Some(turn.run.clone())))],
        phases: phases.into_iter().filter(|phase| !phase.runs.is_empty()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::run;

    #[test]
    fn the_whole_is_the_sum_of_its_phases_over_the_operations_of_the_run() {
        let turn = |system, warm: bool| PhasedRun {
            load: Run { operations: 7, ..run(system, 1, 2.0) },
            warm: warm.then(|| run(system, 1, 0.5)),
            run: run(system, 1, 1.0),
        };
        let told = phased("twip", Map::new(), &[turn("headwater", false), turn("valkey", false)]);
        let names =
            |report: &Report| report.phases.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&told), ["load", "whole"]);
        let told = phased("twip", Map::new(), &[turn("headwater", true)]);
        assert_eq!(names(&told), ["load", "warm", "whole"]);
        let whole = &told.phases[2].runs[0];
        assert_eq!((whole.server_cpu_s, whole.wall_s, whole.operations), (3.5, 7.0, 1_000));
        assert_eq!(told.cases[0].runs[0].server_cpu_s, 1.0);
    }
}
