//! `headwater cluster drain`: a node gives up what it owns, and owns nothing until that is undone.

use super::servers::ClusterChoice;
use headwater_server::cluster::DrainWish;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `headwater cluster drain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The node
    node: String,
    /// Let the node own again
    #[arg(long, conflicts_with_all = ["force", "within"])]
    undo: bool,
    /// Drain it also where no other node is left that could own the data
    #[arg(long)]
    force: bool,
    /// How long the node may take to give up what it owns, and others to take it
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    within: u64,
    #[command(flatten)]
    cluster: ClusterChoice,
}

impl Args {
    /// Drains the node, or ends that, and says what has become of what it owned.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let node = &self.node;
        let admin = self.cluster.connect()?;
        let mut out = std::io::stdout();
        if self.undo {
            match admin.undrain(node)? {
                true => writeln!(out, "{node} may own again")?,
                false => writeln!(out, "{node} was not drained")?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        let wish = DrainWish { force: self.force, within: Duration::from_secs(self.within) };
        let outcome = admin.drain(node, wish)?;
        let was = if outcome.before { "was drained before" } else { "is drained" };
        if outcome.shards.is_empty() {
            writeln!(out, "{node} {was}, and owns nothing")?;
        }
        for (shard, owner) in &outcome.shards {
            match owner {
                Some(owner) => writeln!(out, "{node} {was}: {owner} owns shard {shard} now")?,
                None => writeln!(out, "{node} {was}: nobody owns shard {shard} now")?,
            }
        }
        writeln!(out, "`headwater cluster drain {node} --undo` lets it own again")?;
        Ok(ExitCode::SUCCESS)
    }
}
