//! Making what a cluster needs at NATS, before its first node starts.

use super::{ClusterAdmin, ClusterError};
use headwater_jetstream::CreateReport;

impl ClusterAdmin {
    /// Makes the bucket and the streams where there are none, and sees whether the servers are such that nodes start with them.
    ///
    /// # Errors
    /// They are not: a sentence for each thing that is wrong, a line each.
    pub fn create(&self) -> Result<ClusterCreated, ClusterError> {
        let CreateReport { there, wrong, away } = self.nats.create(1);
        if wrong.is_empty() {
            return Ok(ClusterCreated { there, warnings: away });
        }
        Err(ClusterError(wrong.join("\n")))
    }
}

/// What a cluster has at NATS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterCreated {
    /// What is there now: the bucket, and streams.
    pub there: Vec<String>,
    /// Servers that could not be asked whether they sync each message: a sentence for each.
    pub warnings: Vec<String>,
}
