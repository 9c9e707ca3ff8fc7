//! The folder of a node that stands by: a copy of the cluster's log, which no server uses yet.

use super::{folder_of, options};
use crate::config::{Config, ConfigError};
use headwater_base::Shard;
use headwater_base::source::{News, Sink};
use headwater_keep::{Feed, LogMark, Store};
use std::sync::Arc;

/// Nobody, whom a copy that is only written has to tell.
struct Nobody;

impl Sink for Nobody {
    fn tell(&self, _: News) -> bool {
        false
    }
}

/// Opens the folder of the settings as a copy of a log, which is applied to it.
///
/// # Errors
/// It cannot be opened, or is no copy; the text says why.
pub(crate) fn open_copy(config: &Config) -> Result<Store, ConfigError> {
    let path = &config.data.data_dir;
    let text = |why: &dyn std::fmt::Display| ConfigError(format!("data-dir '{path}': {why}"));
    let folder = folder_of(path.as_ref(), Shard(0), 1).map_err(|why| text(&why))?;
    let opened = Store::open_with(
        &folder,
        options(config, 1),
        Feed::Follows,
        Arc::new(Nobody),
        Box::new(|| {}),
    );
    opened.map(|(store, _)| store).map_err(|why| text(&why))
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
    let path = &config.data.data_dir;
    let text = format!(
        "data-dir '{path}': it ends at {has:?} of the log, and was to end at {followed:?}: start the node again, and it reads what is missing"
    );
    Err(ConfigError(text))
}
