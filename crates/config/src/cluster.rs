//! The cluster that this server is a node of.

use super::{Config, ConfigError, NodeShards};
use serde::{Deserialize, Serialize};

/// How long the name of a node may be, and what says its shard in the name of one of its processes.
const NAME_MAX: usize = 64;
const SHARD_SUFFIX_MAX: usize = "/255".len();
/// Where a node listens for the owners of other shards: so much above its clients' port, as Redis Cluster's bus does.
pub(crate) const LINK_PORT_OFFSET: u16 = 10_000;

/// The port for the owners of other shards beside this one for clients.
#[must_use]
pub fn link_port(port: u16) -> Option<u16> {
    port.checked_add(LINK_PORT_OFFSET)
}

fn advertised_port(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

/// Where the owner of a shard that clients reach at `address` is reached by those of other shards.
#[must_use]
pub fn link_address(address: &str) -> Option<String> {
    let (host, _) = address.rsplit_once(':')?;
    Some(format!("{host}:{}", link_port(advertised_port(address)?)?))
}

/// How a node finds its cluster, and is found.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cluster {
    /// URLs of the NATS servers, with commas between; empty: there is no cluster.
    pub cluster_nats: String,
    /// The name of the cluster.
    pub cluster_name: String,
    /// The name of this node.
    pub cluster_node: String,
    /// Where the other nodes reach this one's port: `host:port`.
    pub cluster_advertise: String,
    /// The shards that this node stands by for, or owns.
    pub cluster_shard: NodeShards,
    /// Whether nodes that are for several shards come to own equally many.
    pub cluster_balance: bool,
    /// The monitoring addresses of all NATS servers.
    pub cluster_monitoring: Vec<String>,
    /// How many NATS servers keep each log.
    pub cluster_replicas: usize,
    /// When the log has so many bytes, and as many as the last snapshot, a snapshot is taken, and the log purged below it; 0: never.
    pub cluster_snapshot_bytes: u64,
    /// How long the start waits for NATS servers that do not answer or have no quorum, in seconds; 0: without end.
    pub cluster_start_seconds: u64,
    /// Whether servers are taken that may lose what they have acknowledged.
    pub cluster_unsafe_sync: bool,
    /// A file with NATS credentials; empty: none.
    pub cluster_credentials: String,
    /// A file with the certificates that those of the NATS servers are signed by; empty: the system's.
    pub cluster_ca_cert_file: String,
    /// A file with the certificate that this node shows to NATS; empty: none.
    pub cluster_cert_file: String,
    /// A file with the key of that certificate.
    pub cluster_key_file: String,
    /// Whether the connections between owners of shards are encrypted, with these certificates.
    pub cluster_link_tls: bool,
    /// For so many seconds others should own the shard: a process for it has ended by an error just now. No setting.
    #[serde(skip)]
    pub recovers_seconds: u64,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            cluster_nats: String::new(),
            cluster_name: String::from("headwater"),
            cluster_node: String::new(),
            cluster_advertise: String::new(),
            cluster_shard: NodeShards::All,
            cluster_balance: true,
            cluster_monitoring: Vec::new(),
            cluster_replicas: 3,
            cluster_snapshot_bytes: 256 << 20,
            cluster_start_seconds: 0,
            cluster_unsafe_sync: false,
            cluster_credentials: String::new(),
            cluster_ca_cert_file: String::new(),
            cluster_cert_file: String::new(),
            cluster_key_file: String::new(),
            cluster_link_tls: false,
            recovers_seconds: 0,
        }
    }
}

impl Cluster {
    /// The shard that this process is for; the first one, where the node has a process for each.
    #[must_use]
    pub fn shard(&self) -> u16 {
        match self.cluster_shard {
            NodeShards::All => 0,
            NodeShards::One(shard) => shard,
        }
    }

    /// What reaching the NATS servers needs.
    pub fn check_servers(&self) -> Result<(), ConfigError> {
        let refuse = |text: &str| Err(ConfigError(String::from(text)));
        if self.cluster_nats.is_empty() {
            return refuse(
                "cluster-nats (--cluster, HEADWATER_CLUSTER) must name the NATS servers, as nats://a:4222,nats://b:4222,nats://c:4222",
            );
        }
        if !(1..=5).contains(&self.cluster_replicas) {
            return refuse("cluster-replicas is out of its bounds (allowed: 1 to 5)");
        }
        if self.cluster_cert_file.is_empty() != self.cluster_key_file.is_empty() {
            return refuse("cluster-cert-file and cluster-key-file go together");
        }
        if self.cluster_link_tls
            && (self.cluster_cert_file.is_empty() || self.cluster_ca_cert_file.is_empty())
        {
            return refuse(
                "cluster-link-tls needs cluster-ca-cert-file, cluster-cert-file and cluster-key-file",
            );
        }
        Ok(())
    }
}

impl Config {
    /// Whether this server is a node of a cluster.
    #[must_use]
    pub fn is_clustered(&self) -> bool {
        !self.cluster.cluster_nats.is_empty()
    }

    /// The shard that this process has for itself, in a cluster of several.
    #[must_use]
    pub fn shard_apart(&self) -> Option<u16> {
        let is_apart = self.is_clustered() && self.listen.shards.number() > 1;
        is_apart.then_some(self.cluster.shard())
    }

    /// What a node of a cluster needs.
    pub(super) fn check_cluster(&self) -> Result<(), ConfigError> {
        if !self.is_clustered() {
            return Ok(());
        }
        let cluster = &self.cluster;
        let refuse = |text: &str| Err(ConfigError(String::from(text)));
        let name = &cluster.cluster_node;
        // What is behind a slash in the name of a process says its shard.
        let is_process = !self.log.process.is_empty();
        let may_be = |byte: u8| byte.is_ascii_graphic() && (is_process || byte != b'/');
        let most = if is_process { NAME_MAX + SHARD_SUFFIX_MAX } else { NAME_MAX };
        if name.is_empty() || name.len() > most || !name.bytes().all(may_be) {
            return refuse(
                "cluster-node (--node) must name this node: up to 64 printable characters without spaces and slashes",
            );
        }
        if !matches!(advertised_port(&cluster.cluster_advertise), Some(1..)) {
            return refuse(
                "cluster-advertise (--advertise) must say where other nodes reach this one, as host:port",
            );
        }
        if self.data.data_dir.is_empty() {
            return refuse(
                "a node of a cluster needs data-dir (--data): a folder for its copy of the data",
            );
        }
        cluster.check_servers()?;
        let shards = self.listen.shards.number();
        if cluster.shard() >= shards {
            let (shard, most) = (cluster.shard(), shards - 1);
            return Err(ConfigError(format!(
                "cluster-shard (--cluster-shard) is {shard}, and the cluster has {shards} shards (--shards; allowed: 0 to {most}, or all)"
            )));
        }
        if self.listen.port.number().is_none_or(|port| port == 0) {
            return refuse(
                "a node of a cluster needs a port of its own choice (allowed: 1 to 65535)",
            );
        }
        if shards > 1 {
            self.check_links()?;
        }
        Ok(())
    }

    /// What a node needs to be reached by the owners of other shards.
    fn check_links(&self) -> Result<(), ConfigError> {
        let ports = [self.listen.port.number(), advertised_port(&self.cluster.cluster_advertise)];
        if ports.into_iter().flatten().any(|port| link_port(port).is_none()) {
            let most = u16::MAX - LINK_PORT_OFFSET;
            return Err(ConfigError(format!(
                "in a cluster of several shards, nodes reach each other at their port and {LINK_PORT_OFFSET} (allowed for --port and in --advertise: 1 to {most})"
            )));
        }
        Ok(())
    }
}
