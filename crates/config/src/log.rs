//! What is logged, and where.

use serde::{Deserialize, Serialize};

/// What is logged, and where.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Logging {
    /// The least level that is logged, and those of single targets.
    pub log_level: String,
    /// `text` or `json`.
    pub log_format: String,
    /// The file; empty: standard error.
    pub log_file: String,
    /// Lines of one kind within a minute; what comes beyond them is counted.
    pub log_repeats_max: u64,
    /// The process that each line names, where several write to one place; empty: none. No setting.
    #[serde(skip)]
    pub process: String,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            log_level: String::from("info"),
            log_format: String::from("text"),
            log_file: String::new(),
            log_repeats_max: 20,
            process: String::new(),
        }
    }
}
