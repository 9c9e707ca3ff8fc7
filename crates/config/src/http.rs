//! What clients of the HTTP port may take up.

use serde::{Deserialize, Serialize};

/// The least that a request's head over HTTP may be limited to: the library reads in buffers of this size.
pub(super) const HTTP_HEADER_BYTES_MIN: usize = 8 << 10;

/// What clients of the HTTP port may take up, and by which names it may be asked.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Http {
    /// Connections at once; where all are in use, the one that has said nothing for longest makes room.
    pub http_clients_max: usize,
    /// Longest head of a request, in bytes.
    pub http_header_bytes_max: usize,
    /// How long the head of a request may take to come, and an answer to be taken, in milliseconds.
    pub http_milliseconds_max: u64,
    /// What must be shown for `/metrics`, as a bearer token or as a password; empty: nothing.
    pub http_token: String,
    /// The file whose first line is that token.
    pub http_token_file: String,
    /// Names that requests may give as `Host` besides addresses and `localhost`; `*`: any.
    pub http_hosts: Vec<String>,
    /// Clients that may watch ranges over HTTP at once.
    pub http_watches_max: usize,
    /// How often those are told that the connection is alive, in milliseconds.
    pub http_heartbeat_milliseconds: u64,
    /// Origins whose pages may ask, besides the server's own; `*`: any.
    pub http_origins: Vec<String>,
}

impl Http {
    /// Whether each origin can be one.
    pub(super) fn check_origins(&self) -> Result<(), super::ConfigError> {
        for origin in &self.http_origins {
            let place = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            let is_place = |it: &str| {
                let it = it.trim_end_matches('/');
                !it.is_empty()
                    && !it.contains(|it: char| "/?#@*".contains(it) || it.is_whitespace())
            };
            if origin != "*" && !place.is_some_and(is_place) {
                let allowed = "allowed: *, or a scheme and a host: https://app.example";
                let text = format!("http-origins has '{}' ({allowed})", origin.escape_default());
                return Err(super::ConfigError(text));
            }
        }
        Ok(())
    }
}

impl Default for Http {
    fn default() -> Self {
        Self {
            http_clients_max: 64,
            http_header_bytes_max: HTTP_HEADER_BYTES_MIN,
            http_milliseconds_max: 5000,
            http_token: String::new(),
            http_token_file: String::new(),
            http_hosts: Vec::new(),
            http_watches_max: 32,
            http_heartbeat_milliseconds: 15_000,
            http_origins: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Http;

    #[test]
    fn what_is_no_origin_is_refused() {
        let check = |origin: &str| {
            Http { http_origins: vec![origin.to_owned()], ..Http::default() }
                .check_origins()
                .is_ok()
        };
        for good in ["*", "https://app.example", "http://127.0.0.1:8000", "https://app.example/"] {
            assert!(check(good), "{good}");
        }
        for bad in
            ["", "app.example", "https://", "https://*.example", "https://a/b", "ftp://a", "null"]
        {
            assert!(!check(bad), "{bad}");
        }
    }
}
