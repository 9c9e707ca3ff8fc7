//! Runs that take turns: A B A B …, each on a server of its own, each measured alike.

use crate::measure::{Clock, Run};
use crate::peer::{Server, System, stop};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

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
    pub fn of(server: &Server, work: impl FnOnce() -> Result<u64>) -> Result<Self> {
        let start = Clock::now(server.cpu()?);
        let operations = work().with_context(|| format!("the server printed: {}", server.log()))?;
        let (server_cpu_s, generator_cpu_s, wall_s) = Clock::now(server.cpu()?).since(&start);
        let rss_bytes_max = server.rss_max()?;
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
