//! The bench alone, until the program `headwater` has it.

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    workload: headwater_bench::Workload,
}

fn main() -> anyhow::Result<()> {
    headwater_bench::run(&Cli::parse().workload)
}
