//! Certificates for servers that are measured over TLS: an authority of the run's own, and one certificate that it has signed.

use anyhow::{Context, Result, bail};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The files of one server.
#[derive(Clone, Debug)]
pub struct Files {
    authority: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Files {
    /// Where they are in a folder.
    #[must_use]
    pub fn within(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        Self {
            authority: file("authority.crt"),
            certificate: file("server.crt"),
            key: file("server.key"),
        }
    }

    /// Has `openssl` make them: keys of elliptic curves, as servers have them today.
    ///
    /// # Errors
    /// `openssl` is not installed, or fails.
    pub fn make(&self) -> Result<()> {
        let authority_key = self.authority.with_extension("key");
        let begin = || {
            let mut openssl = Command::new("openssl");
            openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
            openssl.args(["-nodes", "-days", "2"]);
            openssl
        };
        let mut authority = begin();
        authority.args(["-subj", "/CN=bench", "-addext", "basicConstraints=critical,CA:TRUE"]);
        authority.arg("-keyout").arg(&authority_key).arg("-out").arg(&self.authority);
        let mut own = begin();
        own.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
        own.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        own.arg("-CAkey").arg(&authority_key).arg("-CA").arg(&self.authority);
        own.arg("-keyout").arg(&self.key).arg("-out").arg(&self.certificate);
        for mut openssl in [authority, own] {
            let made = openssl.stdin(Stdio::null()).output().context("openssl does not start")?;
            if !made.status.success() {
                bail!("openssl failed:\n{}", String::from_utf8_lossy(&made.stderr));
            }
        }
        Ok(())
    }

    /// What a client needs that trusts the authority.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn client(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.authority)?)?;
        let settings = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(settings))
    }
}
