//! `headwater cluster`: what those who operate a cluster ask of it.
//!
//! The subcommands speak to the cluster's NATS servers, with the settings of `headwater serve --cluster`, and need no node.

mod backup;
mod create;
mod drain;
mod remove;
mod restore;
mod servers;
mod snapshot;
mod status;
mod table;

pub(crate) use servers::ServersArgs;

use std::process::ExitCode;

/// Arguments of `headwater cluster`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Say who owns the data, how its log and its nodes do, and what is wrong. Exits with 1 where something is.
    Status(status::Args),
    /// Have a node give up what it owns, and own nothing until that is undone.
    Drain(drain::Args),
    /// Forget a node that has ended.
    Remove(remove::Args),
    /// Have the owners of shards store a snapshot of the data now.
    Snapshot(snapshot::Args),
    /// Make what the cluster needs at NATS, and say everything that is wrong there. What is there already stays.
    Create(create::Args),
    /// Have the owners of shards store snapshots, and write them into a folder as a backup.
    Backup(backup::Args),
    /// Fill a new, empty cluster with a backup.
    Restore(restore::Args),
}

impl Args {
    /// Does it; the exit code where that is not an error.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Status(args) => args.run(),
            Action::Drain(args) => args.run(),
            Action::Remove(args) => args.run(),
            Action::Snapshot(args) => args.run(),
            Action::Create(args) => args.run(),
            Action::Backup(args) => args.run(),
            Action::Restore(args) => args.run(),
        }
    }
}
