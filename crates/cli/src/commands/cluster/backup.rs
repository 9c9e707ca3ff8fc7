//! `headwater cluster backup`: the newest state of each shard, in a folder.

use super::servers::ClusterChoice;
use super::table::size;
use crate::output::show;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `headwater cluster backup`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A new folder for the backup, or an empty one
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// An older backup: parts that are the same are not written again, but linked to its files
    #[arg(long, value_name = "DIR")]
    older: Option<PathBuf>,
    /// How long the snapshot of a shard may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    within: u64,
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl Args {
    /// Takes the backup, and says how large it is.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let within = Duration::from_secs(self.within);
        let taken = self.cluster.connect()?.backup(&self.to, self.older.as_deref(), within)?;
        let (to, shards, all) = (self.to.display(), taken.shards, size(taken.bytes.all));
        let written = match &self.older {
            Some(older) => {
                format!(", {} of it not in {}", size(taken.bytes.written), older.display())
            }
            None => String::new(),
        };
        show(format!("{to}: {all} of {shards} shard(s){written}\n").as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
