//! `headwater check`: random histories of operations, run on the engine and on an oracle that
//! recomputes everything from the base data; a failing history is shrunk and printed as a
//! golden script.

use anyhow::ensure;
use headwater_model::check::{Kind, Plan, check};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::process::ExitCode;

/// Flags of `headwater check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Histories to run, each from a seed of its own [default: 20000; 1 with --seed]
    #[arg(long, value_name = "NUMBER")]
    seeds: Option<u64>,
    /// The first seed
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Threads to run them on [default: one per processor]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Histories in which sources keep tables and answer late, out of order, or with an error
    #[arg(long)]
    sources: bool,
    /// Long histories at a memory bound, with streams and a disk to spill to
    #[arg(long, conflicts_with = "sources")]
    long: bool,
    /// Histories over an embedded store, in which the process is killed and begins again
    #[arg(long, conflicts_with_all = ["sources", "long"])]
    crashes: bool,
    /// Print the history of the seed instead of running it
    #[arg(long, requires = "seed")]
    show: bool,
    /// Stop after so many failures
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    most: usize,
}

impl Args {
    /// Runs the histories; the exit code says whether all agree.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (kind, flag) = match (self.sources, self.long, self.crashes) {
            (true, ..) => (Kind::Sources, " --sources"),
            (_, true, _) => (Kind::Long, " --long"),
            (_, _, true) => (Kind::Crashes, " --crashes"),
            _ => (Kind::Plain, ""),
        };
        let out = &mut std::io::stdout();
        if let Some(seed) = self.seed.filter(|_| self.show) {
            write!(out, "{}", headwater_model::history::script(&kind.history(seed)))?;
            return Ok(ExitCode::SUCCESS);
        }
        ensure!(self.most > 0, "--most must be at least 1");
        let seeds = self.seeds.unwrap_or(if self.seed.is_some() { 1 } else { 20_000 });
        let threads = match self.threads {
            Some(threads) => threads,
            None => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} histories, {eta} left");
        let bar = ProgressBar::new(seeds).with_style(style?);
        let plan = Plan::engine(kind, self.seed.unwrap_or(0), seeds, threads);
        let found = check(&plan, self.most, &mut |done| bar.set_position(done));
        bar.finish_and_clear();
        for failure in &found {
            writeln!(out, "{failure}")?;
        }
        if found.is_empty() {
            writeln!(out, "{seeds} histories agree with the oracle")?;
            return Ok(ExitCode::SUCCESS);
        }
        let first = found[0].seed;
        writeln!(out, "again: headwater check --seed {first}{flag}")?;
        Ok(ExitCode::FAILURE)
    }
}
