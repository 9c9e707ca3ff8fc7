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
        }
    }
}
