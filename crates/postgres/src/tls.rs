//! Encrypted connections.
//!
//! As with `libpq`, `require` alone keeps a listener out, not somebody who answers in the server's place: only
//! `verify-ca` and `verify-full` know whom they speak to. A certificate that the file holds itself is trusted whatever it says
//! of being an authority, as that of a server that signed its own often does.

use crate::socket::Socket;
use crate::url::Encryption;
use crate::wire::Error;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme, StreamOwned,
};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// An encrypted stream.
#[derive(Debug)]
pub(crate) struct Encrypted {
    stream: StreamOwned<ClientConnection, Socket>,
}

/// What is asked of a server's certificate.
#[derive(Debug)]
struct Check {
    provider: Arc<CryptoProvider>,
    /// Who must have signed it; none: anybody may have.
    roots: Option<Roots>,
    /// Whether it must be for the host.
    name: bool,
}

/// The certificates of a file.
#[derive(Debug)]
struct Roots {
    verifier: Arc<WebPkiServerVerifier>,
    all: Vec<CertificateDer<'static>>,
}

/// A longer file is none of certificates.
const ROOTS_BYTES_MAX: u64 = 4 << 20;

/// Encrypts a connection to `host`.
///
/// # Errors
/// The files of certificates cannot be read, or the server is not who it should be.
pub(crate) fn encrypt(
    mut socket: Socket,
    host: &str,
    how: &Encryption,
) -> Result<Encrypted, Error> {
    let odd = |error: &dyn std::fmt::Display| Error::broken(format!("encryption: {error}"));
    let provider = Arc::new(ring::default_provider());
    let (roots, name) = match how {
        Encryption::Verify { roots, name } => (Some(trusted(roots, &provider)?), *name),
        Encryption::Off | Encryption::Prefer | Encryption::Require => (None, false),
    };
    let check = Check { provider: Arc::clone(&provider), roots, name };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| odd(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check))
        .with_no_client_auth();
    let host = ServerName::try_from(host.to_owned()).map_err(|error| odd(&error))?;
    let mut connection =
        ClientConnection::new(Arc::new(config), host).map_err(|error| odd(&error))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(|error| odd(&error))?;
    }
    Ok(Encrypted { stream: StreamOwned::new(connection, socket) })
}

/// What checks that a certificate was signed by one of those in a file, or is one of them.
fn trusted(path: &str, provider: &Arc<CryptoProvider>) -> Result<Roots, Error> {
    let wrong = |why: &dyn std::fmt::Display| Error::broken(format!("sslrootcert {path}: {why}"));
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(&error))?;
    file.take(ROOTS_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > ROOTS_BYTES_MAX {
        return Err(wrong(&format!("it holds more than {ROOTS_BYTES_MAX} bytes")));
    }
    let (mut store, mut all) = (RootCertStore::empty(), Vec::new());
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        store.add(certificate.clone()).map_err(|error| wrong(&error))?;
        all.push(certificate);
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone())
        .build()
        .map_err(|error| wrong(&error))?;
    Ok(Roots { verifier, all })
}

/// Whether a certificate was refused only because it says that it is an authority. Its dates were looked at before that.
fn is_authority(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(other) if other.0.to_string() == "CaUsedAsEndEntity")
}

impl ServerCertVerifier for Check {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verifier.verify_server_cert(certificate, between, host, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(error))
                if is_authority(&error) && roots.all.contains(certificate) =>
            {
                if self.name {
                    verify_server_name(&ParsedCertificate::try_from(certificate)?, host)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl Encrypted {
    pub(crate) fn socket(&self) -> &Socket {
        self.stream.get_ref()
    }
}

impl Read for Encrypted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.read(bytes)
    }
}

impl Write for Encrypted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
