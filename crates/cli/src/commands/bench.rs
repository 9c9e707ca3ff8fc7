//! `headwater bench`: Headwater side by side with other systems; see `docs/bench.md`.

use std::process::ExitCode;

/// What to measure, and against what.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    workload: headwater_bench::Workload,
}

impl Args {
    /// Measures, prints the table, and writes the files that were asked for.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        headwater_bench::run(&self.workload)?;
        Ok(ExitCode::SUCCESS)
    }
}
