//! `headwater cluster snapshot`: the owner stores a snapshot now.

use super::servers::ClusterChoice;
use super::table::size;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// The one shard that a cluster has.
const SHARD: u32 = 0;

/// Arguments of `headwater cluster snapshot`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    within: u64,
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl Args {
    /// Waits until the snapshot is named, and says up to where it goes.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let within = Duration::from_secs(self.within);
        let mut out = std::io::stdout();
        match self.cluster.connect()?.snapshot(SHARD, within)? {
            Some(snapshot) => {
                let (sequence, bytes) = (snapshot.sequence, size(snapshot.bytes));
                writeln!(out, "shard {SHARD}: snapshot up to {sequence} of the log, {bytes}")?;
            }
            None => writeln!(out, "shard {SHARD}: there is no data yet, and so no snapshot")?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
