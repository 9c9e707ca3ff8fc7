//! Users of the configuration file.

use super::{Config, ConfigError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A user.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its rules, as ACL SETUSER takes them, with spaces between.
    pub rules: String,
    /// Whoever shows a certificate of this name is logged in as this user; empty: nobody.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub certificate: String,
}

/// Who defined something that is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeptOwner {
    /// What it is: `join`, `flow` or `module`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The user.
    pub owner: String,
}

impl Config {
    /// Whether users are said in one place, each once; their rules are read where the server begins.
    pub(super) fn check_users(&self) -> Result<(), ConfigError> {
        if !self.listen.aclfile.is_empty() && !self.users.is_empty() {
            return Err(ConfigError(String::from(
                "users are in the aclfile, or in [[user]] of this file (allowed: one of the two)",
            )));
        }
        let mut seen = BTreeSet::new();
        match self.users.iter().find(|user| !seen.insert(&*user.name)) {
            None => Ok(()),
            Some(twice) => Err(ConfigError(format!(
                "Duplicate user '{}' found: [[user]] names it twice (allowed: once, with all of its rules)",
                twice.name
            ))),
        }
    }
}
