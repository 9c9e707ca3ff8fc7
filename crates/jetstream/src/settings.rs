//! Where the servers are, and how they are spoken to.

use crate::snapshots::SnapshotNames;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How a cluster's servers are reached.
#[derive(Clone, Default)]
pub struct JetStreamSettings {
    /// Servers, with commas between: `nats://a:4222,nats://b:4222`; a user and a password, or a token, may stand before the
    /// host of the first, and are used for all.
    pub servers: String,
    /// The name of the cluster, which is part of the names of its streams.
    pub cluster: String,
    /// A file with NATS credentials.
    pub credentials: Option<PathBuf>,
    /// A file with the certificates that the servers' are signed by.
    pub tls_ca: Option<PathBuf>,
    /// Files with this node's certificate and its key.
    pub tls_identity: Option<(PathBuf, PathBuf)>,
    /// Whether TLS is used where a server does not ask for it.
    pub tls_required: bool,
    /// The monitoring addresses of all servers: `http://a:8222`.
    pub monitoring: Vec<String>,
    /// Starts with servers that lose what they have acknowledged when power fails.
    pub unsafe_sync: bool,
    /// How many servers keep each stream.
    pub replicas: usize,
    /// How long a start waits for servers that do not answer, or have no quorum; `None`: without end.
    pub start: Option<Duration>,
}

/// Without the servers, whose URLs may have passwords.
impl fmt::Debug for JetStreamSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamSettings").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// Why nothing begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JetStreamError(pub String);

impl fmt::Display for JetStreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JetStreamError {}

impl JetStreamSettings {
    /// The stream of a shard's log.
    #[must_use]
    pub fn stream(&self, shard: u32) -> String {
        format!("HW_{}_{shard}", self.cluster)
    }

    /// The subject that the stream of a shard's log stores.
    #[must_use]
    pub fn subject(&self, shard: u32) -> String {
        format!("HW.{}.{shard}", self.cluster)
    }

    /// Where the snapshots of a shard are.
    pub(crate) fn snapshots(&self, shard: u32) -> SnapshotNames {
        let log = self.stream(shard);
        let (stream, prefix) = (format!("{log}_snapshots"), self.subject(shard) + ".snapshots");
        SnapshotNames { log, stream, prefix, replicas: self.replicas }
    }

    /// The bucket of nodes and owners.
    #[must_use]
    pub fn bucket(&self) -> String {
        format!("HW_{}_owners", self.cluster)
    }

    /// Whether all names can be those of streams.
    ///
    /// # Errors
    /// The name of the cluster cannot be.
    pub fn check(&self) -> Result<(), JetStreamError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let name = &self.cluster;
        if name.is_empty() || name.len() > 32 || !name.chars().all(fits) {
            return Err(JetStreamError(format!(
                "'{name}' cannot name a cluster: up to 32 letters, digits and hyphens can"
            )));
        }
        Ok(())
    }
}
