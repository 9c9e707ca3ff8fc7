//! Who may come in, how often that may be tried, and what the server reaches at clients' word.

use super::{Config, ConfigError};
use headwater_base::connect::Allowed;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Who may come in, and what is kept from those who are.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Doors {
    /// Without a password, clients of other machines are refused.
    pub protected_mode: bool,
    /// A client that has not logged in for so long is ended; 0: never.
    pub login_seconds_max: u64,
    /// Wrong passwords of one address in a row, before those that follow are not looked at for a while; 0: any.
    pub login_failures_max: u32,
    /// After so long, one of them is forgotten, in milliseconds.
    pub login_failure_milliseconds: u64,
    /// Clients that have not logged in, at once; where there are more, the oldest is ended.
    pub clients_unauthenticated_max: usize,
    /// Connections that are kept for clients of this machine.
    pub clients_reserved: usize,
    /// Who may use DEBUG.
    pub enable_debug_command: DebugCommand,
    /// Commands that have another name, each as `OLD NEW`, or none, as `OLD`.
    pub rename_command: Vec<String>,
}

/// Where the server connects to at clients' word.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Connect {
    /// The places that clients may name in SOURCE.ADD and FLOW.ADD, each as `host:port`.
    pub connect_allow: Vec<String>,
    /// The certificates (PEM) that sources' URLs trust where they name no file of them.
    pub source_certificates: String,
    /// A password may be sent to a database in the clear.
    pub source_clear_passwords: bool,
}

/// Who may use DEBUG.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DebugCommand {
    /// Nobody.
    #[default]
    No,
    /// Clients of this machine.
    Local,
    /// Everybody.
    Yes,
}

impl FromStr for DebugCommand {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "no" => Ok(Self::No),
            "local" => Ok(Self::Local),
            "yes" => Ok(Self::Yes),
            _ => Err(format!("'{text}' (allowed: no, local, yes)")),
        }
    }
}

impl fmt::Display for DebugCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "no",
            Self::Local => "local",
            Self::Yes => "yes",
        })
    }
}

impl Default for Doors {
    fn default() -> Self {
        Self {
            protected_mode: true,
            login_seconds_max: 30,
            login_failures_max: 10,
            login_failure_milliseconds: 1000,
            clients_unauthenticated_max: 1000,
            clients_reserved: 8,
            enable_debug_command: DebugCommand::default(),
            rename_command: Vec::new(),
        }
    }
}

impl Connect {
    /// The rules for places.
    ///
    /// # Errors
    /// One of them is none.
    pub fn allowed(&self) -> Result<Allowed, ConfigError> {
        let rules = self.connect_allow.iter().map(String::as_str);
        Allowed::parse(rules).map_err(|why| ConfigError(format!("connect-allow: {why}")))
    }
}

impl Config {
    /// Whether other machines can connect, and everybody there would be let in.
    #[must_use]
    pub fn is_open_to_all(&self) -> bool {
        self.listen.requirepass.is_empty() && self.listen.bind.iter().any(|it| !it.is_loopback())
    }

    /// Whether what is said of doors goes together.
    pub(super) fn check_doors(&self) -> Result<(), ConfigError> {
        self.connect.allowed()?;
        for (name, file, both) in [
            ("requirepass", &self.listen.requirepass_file, !self.listen.requirepass.is_empty()),
            ("http-token", &self.http.http_token_file, !self.http.http_token.is_empty()),
        ] {
            let read = self.secrets_read;
            if both && !file.is_empty() && !read {
                return Err(ConfigError(format!("{name} and {name}-file are set (allowed: one)")));
            }
        }
        let https = self.tls.tls_http_port.number().is_some();
        let asks = self.tls.tls_auth_clients == super::ClientCertificates::Yes
            || !self.http.http_token.is_empty()
            || !self.http.http_token_file.is_empty();
        if https && !asks && self.listen.bind.iter().any(|it| !it.is_loopback()) {
            let text = "tls-http-port lets other machines in, which needs http-token, or tls-auth-clients = \"yes\"";
            return Err(ConfigError(String::from(text)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn the_configuration_to_copy_is_one() {
        let page = include_str!("../../../docs/security-network.md");
        let block = page.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```"));
        let config = Config::parse(block.expect("a block").0).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert!(config.tls.is_on() && config.listen.port.number().is_none());
        let allowed = config.connect.allowed().unwrap();
        assert!(allowed.names("a.hooks.internal", 443) && !allowed.names("db.internal", 443));
    }

    #[test]
    fn what_is_no_rule_is_named_at_the_start() {
        let config = Config::parse("[connect]\nconnect-allow = [\"db\"]\n").unwrap();
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("connect-allow: 'db' is no place"), "{error}");
    }
}
