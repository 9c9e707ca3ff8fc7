//! `headwater demo`: a server with a real follower graph, generated posts, the timeline
//! join, a front page and real stories by their votes, and commands to try on it; or, with `--cluster`, three nodes that hold the same.
//!
//! The graph is SNAP's wiki-Vote (see data/graphs/SOURCES.md), unless `--graph` names another.

mod cluster;
mod data;

use super::serve::{ListenArgs, say_others, say_ready};
use anyhow::Context;
use data::DataArgs;
use headwater_server::{Config, Server, ShardCount, log};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// A machine is to bear a process for each, three times.
const SHARDS_MAX: i64 = 12;

/// Flags of `headwater demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Start three NATS servers and three nodes on this machine instead, in a temporary folder: a cluster, of which parts can be killed
    #[arg(long)]
    cluster: bool,
    /// With --cluster: how many shards the nodes divide the data into, each with an owner of its own [default: 1]
    #[arg(long, value_name = "NUMBER", requires = "cluster", value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
    shards: Option<u16>,
    /// With --cluster: the program nats-server, if it is not on the path
    #[arg(long, value_name = "PATH", env = "HEADWATER_NATS_SERVER")]
    nats_server: Option<PathBuf>,
}

impl Args {
    /// Loads, says what to try, and serves until SIGTERM, SIGINT or SHUTDOWN.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut config = Config::default();
        // Everything is loaded into one engine before the start.
        config.listen.shards = ShardCount::Number(1);
        // What it shows is told on standard output: a log beside it is only what went wrong.
        config.log.log_level = String::from("warn");
        if self.cluster {
            let shards = self.shards.unwrap_or(1);
            return cluster::run(self.listen, &self.data, (self.nats_server, shards));
        }
        self.listen.apply(&mut config);
        log::start(&config.log)?;
        let mut server = Server::bind(config)?;
        let loaded = self.data.load(server.engine_mut())?;
        let addresses = server.addresses();
        let port = addresses.first().context("no address")?.port();
        let mut out = std::io::stdout().lock();
        out.write_all(loaded.summary.as_bytes())?;
        if let Some(tour) = loaded.tour {
            write!(out, "{}", tour.text(port))?;
        }
        drop(out);
        say_others(&server)?;
        say_ready(&addresses)?;
        server.run().context("serving")?;
        Ok(ExitCode::SUCCESS)
    }
}
