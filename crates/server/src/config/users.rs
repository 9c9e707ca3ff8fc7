//! Users of the configuration file.

use serde::{Deserialize, Serialize};

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
