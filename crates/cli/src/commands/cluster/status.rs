//! `headwater cluster status`: how a cluster does, as tables or as JSON.

use super::servers::ClusterChoice;
use super::table::{size, table};
use crate::output::show;
use headwater_server::cluster::{ClusterStatus, NodeStatus, ShardStatus};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Arguments of `headwater cluster status`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterChoice,
    /// Write it as one object of JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Shows it; the exit code says whether all is well.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let status = self.cluster.connect().and_then(|admin| Ok(admin.status()?));
        let status = match status {
            Ok(status) => status,
            Err(why) if self.json => {
                // Who reads JSON reads no text beside it.
                let problems =
                    serde_json::json!({ "quorum": false, "problems": [format!("{why:#}")] });
                show(format!("{problems}\n").as_bytes())?;
                return Ok(ExitCode::FAILURE);
            }
            Err(why) => return Err(why),
        };
        if self.json {
            show(format!("{}\n", serde_json::to_string_pretty(&status)?).as_bytes())?;
        } else {
            show(shown(&status).as_bytes())?;
        }
        let is_well = status.problems.is_empty();
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn words<const N: usize>(words: [&str; N]) -> [String; N] {
    words.map(str::to_owned)
}

fn yes_or_no(is_so: bool) -> String {
    String::from(if is_so { "yes" } else { "no" })
}

fn shard_row(shard: &ShardStatus) -> [String; 7] {
    let none = || String::from("-");
    let log = shard.log.as_ref();
    let servers = |log: &headwater_server::cluster::LogStatus| {
        let server = |server: &headwater_server::cluster::ServerStatus| {
            let note = match (server.leads, server.heard) {
                (true, _) => " (leads)",
                (false, true) => "",
                (false, false) => " (away)",
            };
            format!("{}{note}", server.server)
        };
        log.servers.iter().map(server).collect::<Vec<_>>().join(", ")
    };
    [
        shard.shard.to_string(),
        shard.owner.clone().unwrap_or_else(none),
        shard.address.clone().unwrap_or_else(none),
        shard.epoch.to_string(),
        log.map_or_else(none, |log| format!("{} to {}, {}", log.first, log.last, size(log.bytes))),
        log.map_or_else(none, servers),
        shard.snapshot.map_or_else(none, |snapshot| {
            format!("{}, {}", snapshot.sequence, size(snapshot.bytes))
        }),
    ]
}

fn node_row(node: &NodeStatus) -> [String; 6] {
    let shards: Vec<String> = node.owns.iter().map(|shard| format!("shard {shard}")).collect();
    let owns = if shards.is_empty() { String::from("-") } else { shards.join(", ") };
    let (heard, drained) = (yes_or_no(node.heard), yes_or_no(node.drained));
    [node.node.clone(), node.address.clone(), node.shard.to_string(), heard, drained, owns]
}

/// The tables, and what is wrong behind them.
fn shown(status: &ClusterStatus) -> String {
    let head = words(["SHARD", "OWNER", "ADDRESS", "EPOCH", "LOG", "KEPT BY", "SNAPSHOT"]);
    let shards: Vec<_> = [head].into_iter().chain(status.shards.iter().map(shard_row)).collect();
    let head = words(["NODE", "ADDRESS", "SHARD", "HEARD", "DRAINED", "OWNS"]);
    let nodes: Vec<_> = [head].into_iter().chain(status.nodes.iter().map(node_row)).collect();
    let quorum = if status.quorum { "there is a quorum" } else { "there is no quorum" };
    let mut text = format!("cluster {}: {quorum}\n", status.cluster);
    // What is written into a string is written.
    _ = write!(text, "\n{}\n{}", table(&shards), table(&nodes));
    for (kind, sentences) in [("problem", &status.problems), ("warning", &status.warnings)] {
        for sentence in sentences {
            _ = write!(text, "\n{kind}: {sentence}");
        }
    }
    if text.ends_with('\n') { text } else { text + "\n" }
}
