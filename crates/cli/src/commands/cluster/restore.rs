//! `headwater cluster restore`: a new, empty cluster is filled with a backup.

use super::servers::ClusterChoice;
use super::table::size;
use crate::output::show;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `headwater cluster restore`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of the backup
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl Args {
    /// Restores, and says how to go on.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let restored = self.cluster.connect()?.restore(&self.from)?;
        let (keys, bytes) = (restored.keys, size(restored.bytes));
        let shards = match restored.shards {
            1 => String::new(),
            shards => format!(" of {shards} shards"),
        };
        let told = format!(
            "{keys} keys, {bytes}{shards}: start nodes with empty folders, and they load it\n"
        );
        show(told.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
