//! `headwater cluster create`: what a cluster needs at NATS is made, and looked at as a node does when it starts.

use super::servers::ClusterChoice;
use std::io::Write;
use std::process::ExitCode;

/// Arguments of `headwater cluster create`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl Args {
    /// Makes it, and says what is there.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let created = self.cluster.connect()?.create()?;
        for warning in created.warnings {
            writeln!(std::io::stderr(), "headwater: {warning}")?;
        }
        let mut out = std::io::stdout();
        for name in created.there {
            writeln!(out, "{name}: it is there")?;
        }
        writeln!(out, "nodes can be started")?;
        Ok(ExitCode::SUCCESS)
    }
}
