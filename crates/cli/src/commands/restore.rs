//! `headwater restore`: a folder of data out of a backup.

use crate::output::show;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `headwater restore`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of the backup
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The folder of data that is made: a new one, or an empty one
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl Args {
    /// Restores, and says how to go on.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let restored = headwater_server::backup::restore(&self.from, &self.data);
        let restored = restored.map_err(anyhow::Error::msg)?;
        let (data, keys, shards) = (self.data.display(), restored.keys, restored.shards);
        let told = format!(
            "{data}: {keys} keys; start it with headwater serve --data {data} --shards {shards}{}\n",
            if restored.plain_keys > 0 { " --data-plain yes" } else { "" }
        );
        show(told.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
