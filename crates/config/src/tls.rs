//! Encryption: where it is spoken, by which certificate, and who may come in.

use super::{Config, ConfigError, OptionalPort};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Encryption of clients' connections.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tls {
    /// The port for RESP over TLS, on the addresses of `bind`.
    pub tls_port: OptionalPort,
    /// The port for memcached's protocol over TLS, on the same addresses.
    pub tls_memcached_port: OptionalPort,
    /// The port for HTTP over TLS, on the same addresses.
    pub tls_http_port: OptionalPort,
    /// The server's certificate and those between it and its authority; PEM.
    pub tls_cert_file: String,
    /// The key of that certificate; PEM.
    pub tls_key_file: String,
    /// Who may vouch for clients; PEM.
    pub tls_ca_cert_file: String,
    /// What authorities have revoked; PEM. Empty: nothing.
    pub tls_crl_file: String,
    /// Whether clients must have a certificate.
    pub tls_auth_clients: ClientCertificates,
    /// Whether the name in a client's certificate logs it in as the user of that name.
    pub tls_auth_clients_user: CertificateUser,
    /// The versions of TLS that are spoken, with spaces between; empty: all.
    pub tls_protocols: String,
    /// How long a handshake may take, in milliseconds.
    pub tls_handshake_milliseconds_max: u64,
}

/// Whether clients must have a certificate of an authority that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCertificates {
    /// Who has none is not let in.
    #[default]
    Yes,
    /// Who has one must have a good one.
    Optional,
    /// None is asked for.
    No,
}

/// Whether certificates name users.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
pub enum CertificateUser {
    /// Those that `[[user]]` says.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// The name in the certificate is the user's.
    #[serde(rename = "CN")]
    CommonName,
}

impl fmt::Display for CertificateUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::CommonName => "CN",
        })
    }
}

impl FromStr for ClientCertificates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "yes" => Ok(Self::Yes),
            "optional" => Ok(Self::Optional),
            "no" => Ok(Self::No),
            _ => Err(String::from("argument(s) must be one of the following: no, yes, optional")),
        }
    }
}

impl fmt::Display for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::Optional => "optional",
            Self::No => "no",
        })
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            tls_port: OptionalPort::Off,
            tls_memcached_port: OptionalPort::Off,
            tls_http_port: OptionalPort::Off,
            tls_cert_file: String::new(),
            tls_key_file: String::new(),
            tls_ca_cert_file: String::new(),
            tls_crl_file: String::new(),
            tls_auth_clients: ClientCertificates::default(),
            tls_auth_clients_user: CertificateUser::default(),
            tls_protocols: String::from("TLSv1.2 TLSv1.3"),
            tls_handshake_milliseconds_max: 10_000,
        }
    }
}

impl Tls {
    /// Whether it is spoken anywhere.
    #[must_use]
    pub fn is_on(&self) -> bool {
        let ports = [self.tls_port, self.tls_memcached_port, self.tls_http_port];
        ports.iter().any(|port| port.number().is_some())
    }
}

impl Config {
    /// Whether clients can show the certificates that are to log them in.
    fn check_certified(&self) -> Result<(), ConfigError> {
        let tls = &self.tls;
        let shown = tls.is_on() && tls.tls_auth_clients != ClientCertificates::No;
        let refuse = |what: &str| {
            let text = format!(
                "{what} needs certificates of clients (a tls-port, and tls-auth-clients = \"yes\" or \"optional\")"
            );
            Err(ConfigError(text))
        };
        if tls.tls_auth_clients_user != CertificateUser::Off && !shown {
            return refuse("tls-auth-clients-user");
        }
        let mut named = self.users.iter().filter(|user| !user.certificate.is_empty());
        if let Some(user) = named.clone().next()
            && !shown
        {
            return refuse(&format!("user '{}': certificate", user.name));
        }
        let mut seen = std::collections::BTreeSet::new();
        match named.find(|user| !seen.insert(&user.certificate)) {
            None => Ok(()),
            Some(user) => Err(ConfigError(format!(
                "user '{}': another user has the certificate '{}' (allowed: one user for each)",
                user.name, user.certificate
            ))),
        }
    }

    /// Whether what is said of encryption goes together; files are looked at where they are loaded.
    pub(super) fn check_tls(&self) -> Result<(), ConfigError> {
        let tls = &self.tls;
        if self.listen.port.number().is_none() && tls.tls_port.number().is_none() {
            let text = "port is off, and so is tls-port (allowed: one of them on)";
            return Err(ConfigError(String::from(text)));
        }
        self.check_certified()?;
        if !tls.is_on() {
            return Ok(());
        }
        for (name, file) in
            [("tls-cert-file", &tls.tls_cert_file), ("tls-key-file", &tls.tls_key_file)]
        {
            if file.is_empty() {
                return Err(ConfigError(format!(
                    "{name} is not set, which TLS needs (a PEM file)"
                )));
            }
        }
        tls_versions(&tls.tls_protocols).map_err(ConfigError)?;
        if tls.tls_auth_clients != ClientCertificates::No && tls.tls_ca_cert_file.is_empty() {
            return Err(ConfigError(format!(
                "tls-auth-clients is {}, which needs tls-ca-cert-file (a PEM file of those who may vouch for clients); \
                 \"no\" asks clients for no certificate",
                tls.tls_auth_clients
            )));
        }
        Ok(())
    }
}

/// A version of TLS that may be spoken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// The versions that `tls-protocols` names; all of them where it names none, as in Redis.
///
/// # Errors
/// It names something else.
pub fn tls_versions(text: &str) -> Result<Vec<TlsVersion>, String> {
    let of = |word: &str| match word.to_ascii_lowercase().as_str() {
        "tlsv1.2" => Ok(TlsVersion::Tls12),
        "tlsv1.3" => Ok(TlsVersion::Tls13),
        _ => Err(format!("tls-protocols names '{word}' (allowed: TLSv1.2, TLSv1.3)")),
    };
    let versions = text.split_whitespace().map(of).collect::<Result<Vec<_>, _>>()?;
    Ok(if versions.is_empty() { vec![TlsVersion::Tls12, TlsVersion::Tls13] } else { versions })
}
