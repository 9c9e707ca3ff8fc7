//! The subcommands: one file each, which holds its arguments (`Args`) and `Args::run`.

mod backup;
mod bench;
mod check;
mod cli;
mod cluster;
mod config;
mod demo;
mod function;
mod manual;
mod processes;
mod restore;
mod serve;

use clap::Subcommand;
use std::process::ExitCode;

/// What the program can do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the server.
    Serve(Box<serve::Args>),
    /// Run the server with a real follower graph, posts and a timeline join loaded.
    Demo(demo::Args),
    /// Talk to a running server.
    Cli(cli::Args),
    /// Look after a cluster: its nodes, its snapshots, its streams.
    Cluster(cluster::Args),
    /// Write the state of a running server into a folder.
    Backup(backup::Args),
    /// Make a folder of data out of a backup.
    Restore(restore::Args),
    /// Check the engine with random histories against an oracle.
    Check(check::Args),
    /// Begin, build and test functions that run next to the data.
    #[command(name = "fn")]
    Function(function::Args),
    /// Look at a configuration file without starting a server.
    Config(config::Args),
    /// Write completions for a shell.
    Completions(manual::CompletionArgs),
    /// Write the manual's pages.
    Man(manual::ManualArgs),
    /// Measure speed and memory, beside other systems.
    Bench(bench::Args),
}

impl Command {
    /// Does it; the exit code where that is not an error.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Serve(args) => args.run(),
            Self::Demo(args) => args.run(),
            Self::Cli(args) => args.run(),
            Self::Cluster(args) => args.run(),
            Self::Backup(args) => args.run(),
            Self::Restore(args) => args.run(),
            Self::Check(args) => args.run(),
            Self::Function(args) => args.run(),
            Self::Config(args) => args.run(),
            Self::Completions(args) => args.run(),
            Self::Man(args) => args.run(),
            Self::Bench(args) => args.run(),
        }
    }
}
