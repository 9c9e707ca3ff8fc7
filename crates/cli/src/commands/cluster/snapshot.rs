//! `headwater cluster snapshot`: the owner stores a snapshot now.

use super::servers::ClusterChoice;
use super::table::size;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `headwater cluster snapshot`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of the only shard to take a snapshot of [default: all shards]
    #[arg(long, value_name = "NUMBER")]
    shard: Option<u32>,
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
        let admin = self.cluster.connect()?;
        let all = admin.shards()?;
        let wanted = self.shard.map_or(all, |shard| vec![shard]);
        for shard in wanted {
            match admin.snapshot(shard, within)? {
                Some(snapshot) => {
                    let (sequence, bytes) = (snapshot.sequence, size(snapshot.bytes));
                    writeln!(out, "shard {shard}: snapshot up to {sequence} of the log, {bytes}")?;
                }
                None => writeln!(out, "shard {shard}: there is no data yet, and so no snapshot")?,
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
