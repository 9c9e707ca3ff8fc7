//! Making what a cluster needs at NATS, before its first node starts.

use super::{ClusterAdmin, ClusterError};
use crate::replicated::SHARDS_KEY;
use headwater_jetstream::CreateReport;
use headwater_log::Revision;
use std::fmt::Display;

fn other_number(has: impl Display, shards: u32) -> ClusterError {
    ClusterError(format!("the cluster has {has} shards, and was to have {shards} (allowed: {has})"))
}

impl ClusterAdmin {
    /// Makes the bucket and the streams where there are none, and sees whether the servers are such that nodes start with them.
    ///
    /// # Errors
    /// Nodes would not start with the servers, or the cluster has another number of shards: a sentence for each thing that is wrong, a line each.
    pub fn create(&self, shards: u32) -> Result<ClusterCreated, ClusterError> {
        if let Ok(known) = self.view()
            && let Some(count) = known.count.filter(|count| *count != shards)
        {
            return Err(other_number(count, shards));
        }
        let CreateReport { there, wrong, away } = self.nats.create(shards);
        if !wrong.is_empty() {
            return Err(ClusterError(wrong.join("\n")));
        }
        self.change(SHARDS_KEY, |revision, value| {
            let number = shards.to_string();
            match value {
                _ if revision == Revision(0) => Ok(Some(number.into_bytes())),
                value if value == number.as_bytes() => Ok(None),
                value => Err(other_number(value.escape_ascii(), shards)),
            }
        })?;
        Ok(ClusterCreated { there, warnings: away })
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
