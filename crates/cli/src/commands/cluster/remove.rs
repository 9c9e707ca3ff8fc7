//! `headwater cluster remove`: a node that has ended is forgotten.

use super::servers::ClusterChoice;
use crate::output::show;
use std::process::ExitCode;

/// Arguments of `headwater cluster remove`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The node, which must have ended
    node: String,
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl Args {
    /// Forgets it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        self.cluster.connect()?.remove(&self.node)?;
        show(format!("{} is forgotten\n", self.node).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
