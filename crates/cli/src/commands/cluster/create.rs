//! `headwater cluster create`: what a cluster needs at NATS is made, and looked at as a node does when it starts.

use super::servers::ClusterChoice;
use crate::output::show;
use std::io::Write;
use std::process::ExitCode;

/// Arguments of `headwater cluster create`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many shards the cluster has, for good: each has an owner of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    shards: u32,
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl Args {
    /// Makes it, and says what is there.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let created = self.cluster.connect()?.create(self.shards)?;
        for warning in created.warnings {
            writeln!(std::io::stderr(), "headwater: {warning}")?;
        }
        for name in created.there {
            show(format!("{name}: it is there\n").as_bytes())?;
        }
        show(b"nodes can be started\n")?;
        Ok(ExitCode::SUCCESS)
    }
}
