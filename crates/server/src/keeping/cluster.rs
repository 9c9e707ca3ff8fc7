//! The store of a node of a cluster: a copy of the log, which a server uses where the node owns the shard.

use super::options::options;
use super::{EmbeddedStore, USER, folder_of};
use crate::replicated::{LeaseStats, ReplicaEnd};
use headwater_base::Shard;
use headwater_base::source::{News, Sink};
use headwater_config::{Config, ConfigError};
use headwater_keep::{Feed, LogMark, Store};
use std::path::PathBuf;
use std::sync::Arc;

/// What the store of a node that stands by gathers until it writes a table, at most, where memory has a bound.
const COPY_TABLE_BYTES: u64 = 2 << 20;

/// An owner may give out so many bits' worth of versions within its epoch.
const EPOCH_SHIFT: u32 = 40;

/// Nobody, whom a copy that is only written has to tell.
pub(super) struct Nobody;

impl Sink for Nobody {
    fn tell(&self, _: News) -> bool {
        false
    }
}

fn described(config: &Config, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("data-dir '{}': {why}", config.data.data_dir))
}

/// Where the copy of the shard's log is.
///
/// # Errors
/// The folder is divided among shards.
pub(crate) fn copy_folder(config: &Config) -> Result<PathBuf, ConfigError> {
    let (shard, shards) = (Shard(config.cluster.shard()), config.listen.shards.number());
    let folder = folder_of(config.data.data_dir.as_ref(), shard, shards);
    folder.map_err(|why| described(config, &why))
}

/// Opens the folder of the settings as a copy of a log, which is applied to it.
///
/// # Errors
/// It cannot be opened, or is no copy; the text says why.
pub(crate) fn open_copy(config: &Config) -> Result<Store, ConfigError> {
    let folder = copy_folder(config)?;
    let mut options = options(config, 1);
    if config.memory.bound().is_some() {
        // What owns shards may take what this leaves.
        options.table_bytes = options.table_bytes.min(COPY_TABLE_BYTES);
    }
    let opened =
        Store::open_with(&folder, options, Feed::Follows, Arc::new(Nobody), Box::new(|| {}));
    opened.map(|(store, _)| store).map_err(|why| described(config, &why))
}

/// Has the settings say which users clients have set, as this copy has them.
///
/// # Errors
/// They cannot be read.
pub(crate) fn read_users(copy: &Store, config: &mut Config) -> Result<(), String> {
    let all = copy.definitions()?.into_iter().filter(|it| it.kind == USER);
    config.kept_users = all.map(|it| (it.name, it.text)).collect();
    Ok(())
}

/// Whether the folder ends where the log was followed to.
///
/// # Errors
/// It does not: something could not be written.
pub(crate) fn check_copy(config: &Config, followed: Option<LogMark>) -> Result<(), ConfigError> {
    let has = open_copy(config)?.log_mark();
    if has == followed {
        return Ok(());
    }
    let text = format!(
        "it ends at {has:?} of the log, and was to end at {followed:?}: start the node again, and it reads what is missing"
    );
    Err(described(config, &text))
}

impl EmbeddedStore {
    /// Why writes are refused, if that is the log's doing.
    #[inline]
    pub(super) fn log_refusal(&self) -> Option<Arc<str>> {
        self.replica.as_ref()?.refusal()
    }

    /// Whether the log takes nothing, so that even what comes by itself waits: expiries, and what flows have done.
    #[inline]
    pub(crate) fn log_is_silent(&self) -> bool {
        self.replica.as_ref().is_some_and(ReplicaEnd::is_silent)
    }

    /// What begins the error of a write that is refused: clients of clusters ask again where it is the log's doing.
    pub(crate) fn refusal_code(&self) -> &'static str {
        let is_logs = self.log_refusal().is_some() || self.store.refuses_for_log();
        if is_logs { "CLUSTERDOWN" } else { "MISCONF" }
    }

    /// The last operation told, where what leaves the server must wait until it survives.
    pub(crate) fn awaited_operation(&self) -> Option<u64> {
        let last = self.store.told().0;
        (self.replica.is_some() && last > self.survives()).then_some(last)
    }

    /// How many loads are answered, or will be without the log's doing.
    #[cfg(test)]
    pub(crate) fn loads_answered(&self) -> u64 {
        self.store.loads_answered()
    }

    /// What is known of this node's lease, where it is one of a cluster.
    pub(crate) fn lease(&self) -> Option<LeaseStats> {
        self.replica.as_ref().map(ReplicaEnd::facts)
    }

    /// Whether the server is to end, because its node gives the shard up.
    pub(crate) fn leaves(&self) -> bool {
        self.replica.as_ref().is_some_and(ReplicaEnd::leaves)
    }

    /// What is known of the cluster that this node belongs to, if it does.
    pub(crate) fn replica(&self) -> Option<&ReplicaEnd> {
        self.replica.as_ref()
    }

    /// What versions for compare-and-set begin with, so that those of two owners differ.
    pub(crate) fn version_floor(&self) -> u64 {
        self.replica.as_ref().map_or(0, |replica| replica.epoch() << EPOCH_SHIFT)
    }
}
