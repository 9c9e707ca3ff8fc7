//! Certificates and keys from files, and loading them anew while the server runs.
//!
//! Whatever is loaded is looked at as a whole, and takes the place of what was there only when all of it is good: a file that
//! cannot be read leaves what was there. Connections that are there keep what they began with.

use crate::log::event;
use headwater_config::{ClientCertificates, Cluster, Tls, TlsVersion, tls_versions};
use rustls::client::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

/// A longer file is none of certificates.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What new connections begin with, for all shards; nothing before it was loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates(Arc<Mutex<Option<Arc<ServerConfig>>>>);

impl Certificates {
    /// What a connection that comes now begins with.
    pub(crate) fn current(&self) -> Option<Arc<ServerConfig>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loads the files that the settings name; on an error, which names the setting, all stays as it was.
    pub(crate) fn load(&self, settings: &Tls) -> Result<(), String> {
        let loaded = read(settings)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
        Ok(())
    }

    /// Loads them anew because of SIGHUP, and tells how that went.
    pub(crate) fn reload(&self, settings: &Tls) {
        match self.load(settings) {
            Ok(()) => {
                event!(info, "server", "tls_reloaded", "SIGHUP: certificates were loaded anew");
            }
            Err(why) => {
                event!(
                    error,
                    "server",
                    "tls_reload_failed",
                    why,
                    "SIGHUP: the certificates that were there stay"
                );
            }
        }
    }
}

/// The versions that `tls-protocols` names, as the library calls them.
fn versions(text: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let of = |version| match version {
        TlsVersion::Tls12 => &TLS12,
        TlsVersion::Tls13 => &TLS13,
    };
    Ok(tls_versions(text)?.into_iter().map(of).collect())
}

fn refuse(setting: &str, file: &str, why: &dyn Display) -> String {
    format!("{setting} '{file}': {why}")
}

fn bytes_of(setting: &str, path: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| refuse(setting, path, &error))?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| refuse(setting, path, &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(setting, path, &format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn certificates(setting: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = bytes_of(setting, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| refuse(setting, path, &error))?;
    if all.is_empty() {
        return Err(refuse(setting, path, &"it has no certificate (PEM)"));
    }
    Ok(all)
}

fn revocations(
    setting: &str,
    path: &str,
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let bytes = bytes_of(setting, path)?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|error| refuse(setting, path, &error))?;
    if all.is_empty() {
        return Err(refuse(setting, path, &"it has no list of revoked certificates (PEM)"));
    }
    Ok(all)
}

fn key_of(setting: &str, path: &str) -> Result<PrivateKeyDer<'static>, String> {
    // What the library says of a key is not told: it is never to quote one.
    PrivateKeyDer::from_pem_slice(&bytes_of(setting, path)?)
        .map_err(|_| refuse(setting, path, &"it has no key (PEM, without a password)"))
}

fn authorities(setting: &str, path: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(setting, path)? {
        roots.add(authority).map_err(|error| refuse(setting, path, &error))?;
    }
    Ok(roots)
}

/// What the connections between the nodes of a cluster begin with: those that one dials, and those that it accepts.
///
/// # Errors
/// A file cannot be used; the text names the setting.
pub(crate) fn between_nodes(
    cluster: &Cluster,
) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), String> {
    let provider = Arc::new(ring::default_provider());
    let (name, path) = ("cluster-cert-file", &*cluster.cluster_cert_file);
    let own = certificates(name, path)?;
    let key = key_of("cluster-key-file", &cluster.cluster_key_file)?;
    let (authority, of) = ("cluster-ca-cert-file", &*cluster.cluster_ca_cert_file);
    let roots = Arc::new(authorities(authority, of)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let verifier = verifier.build().map_err(|error| refuse(authority, of, &error))?;
    let unusable = |error: rustls::Error| refuse(name, path, &error);
    let accepts = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.clone(), key.clone_key())
        .map_err(unusable)?;
    let dials = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unusable)?
        .with_root_certificates(roots)
        .with_client_auth_cert(own, key)
        .map_err(unusable)?;
    Ok((Arc::new(dials), Arc::new(accepts)))
}

fn read(settings: &Tls) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let own = certificates("tls-cert-file", &settings.tls_cert_file)?;
    let key = key_of("tls-key-file", &settings.tls_key_file)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions(&settings.tls_protocols)?)
        .map_err(|error| format!("tls-protocols: {error}"))?;
    let builder = if settings.tls_auth_clients == ClientCertificates::No {
        builder.with_no_client_auth()
    } else {
        let (name, path) = ("tls-ca-cert-file", &settings.tls_ca_cert_file);
        let roots = authorities(name, path)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = match &settings.tls_crl_file {
            path if path.is_empty() => verifier,
            path => verifier
                .with_crls(revocations("tls-crl-file", path)?)
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status(),
        };
        let verifier = match settings.tls_auth_clients {
            ClientCertificates::Optional => verifier.allow_unauthenticated(),
            _ => verifier,
        };
        let verifier = verifier.build().map_err(|error| match settings.tls_crl_file.as_str() {
            "" => refuse(name, path, &error),
            lists => refuse("tls-crl-file", lists, &error),
        })?;
        builder.with_client_cert_verifier(verifier)
    };
    let made = builder.with_single_cert(own, key);
    made.map(Arc::new).map_err(|error| refuse("tls-cert-file", &settings.tls_cert_file, &error))
}
