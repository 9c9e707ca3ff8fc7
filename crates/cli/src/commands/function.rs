//! `headwater fn`: begins, builds and tests projects of functions.

mod build;
mod cases;
mod new;
mod test;

use clap::Subcommand;
use std::process::ExitCode;

/// Flags of `headwater fn`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Begin a project: a function that counts, and cases that test it
    New(new::Args),
    /// Build a project, or a source file, into a module
    Build(build::Args),
    /// Run a module against cases, in the server's own host
    Test(test::Args),
}

impl Args {
    /// Does it; the exit code says whether all cases passed.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::New(args) => args.run(),
            Command::Build(args) => args.run(),
            Command::Test(args) => args.run(),
        }
    }
}
