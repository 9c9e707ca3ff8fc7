//! How the NATS servers of a cluster are reached, as flags and a configuration file say it: what `serve` and `cluster` have in common.

use headwater_server::Config;
use headwater_server::cluster::ClusterAdmin;
use std::path::PathBuf;

/// The NATS servers of a cluster.
#[derive(Clone, clap::Args)]
pub(crate) struct ServersArgs {
    /// The cluster whose log these NATS servers keep; with commas between
    #[arg(long, value_name = "URLS", env = "HEADWATER_CLUSTER", hide_env_values = true)]
    cluster: Option<String>,
    /// Name of the cluster [default: headwater]
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Monitoring address of a NATS server, as http://host:8222; to be given for each
    #[arg(long, value_name = "URL")]
    nats_monitoring: Vec<String>,
    /// How many NATS servers keep the log [default: 3]
    #[arg(long, value_name = "NUMBER")]
    cluster_replicas: Option<usize>,
    /// Go on with NATS servers that may lose what they have acknowledged when power fails
    #[arg(long)]
    unsafe_sync: bool,
}

impl ServersArgs {
    /// Puts the flags that were given into `config`.
    pub(crate) fn apply(self, config: &mut Config) {
        let cluster = &mut config.cluster;
        if let Some(urls) = self.cluster {
            cluster.cluster_nats = urls;
        }
        if let Some(name) = self.cluster_name {
            cluster.cluster_name = name;
        }
        cluster.cluster_monitoring.extend(self.nats_monitoring);
        if let Some(replicas) = self.cluster_replicas {
            cluster.cluster_replicas = replicas;
        }
        cluster.cluster_unsafe_sync |= self.unsafe_sync;
    }
}

/// The cluster that a subcommand is about.
#[derive(Clone, clap::Args)]
pub(crate) struct ClusterChoice {
    /// Read settings from this file, those of its section "cluster" (see headwater.example.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    servers: ServersArgs,
}

impl ClusterChoice {
    /// Connects to its servers.
    pub(crate) fn connect(self) -> anyhow::Result<ClusterAdmin> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        self.servers.apply(&mut config);
        Ok(ClusterAdmin::connect(&config)?)
    }
}
