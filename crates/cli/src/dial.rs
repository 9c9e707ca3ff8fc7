//! Where a server is, and how it is talked to: in the clear, or encrypted.

use anyhow::{Context, bail, ensure};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where systems keep the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Encryption, as flags say it.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// Talk TLS
    #[arg(long)]
    tls: bool,
    /// Trust the authorities of this PEM file, not those of the system
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Show the certificate of this PEM file
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The name that the server's certificate must have, if not that of the host
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
}

/// A server, and who talks to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) encrypted: bool,
}

impl Place {
    /// Reads `redis[s]://[[user]:password@]host[:port]`; what it does not say is as in `other`.
    pub(crate) fn of_url(url: &str, other: &Self) -> anyhow::Result<Self> {
        let (scheme, rest) = url.split_once("://").context("the URL has no ://")?;
        let encrypted = match scheme.to_ascii_lowercase().as_str() {
            "redis" | "valkey" => other.encrypted,
            "rediss" | "valkeys" => true,
            _ => bail!("the URL begins neither with redis:// nor with rediss://"),
        };
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        ensure!(matches!(database, "" | "0"), "there is one database, 0");
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let mut found = Self { encrypted, ..other.clone() };
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            found.user = Some(plain(user)?).filter(|user| !user.is_empty()).or(found.user);
            found.password =
                Some(plain(password)?).filter(|word| !word.is_empty()).or(found.password);
        }
        let ends_host = |at: &usize| !place[*at..].contains(']');
        let (host, port) = match place.rfind(':').filter(ends_host) {
            Some(at) => (&place[..at], Some(&place[at + 1..])),
            None => (place, None),
        };
        if !host.is_empty() {
            found.host = plain(host.trim_start_matches('[').trim_end_matches(']'))?;
        }
        if let Some(port) = port {
            found.port = port.parse().with_context(|| format!("'{port}' is no port"))?;
        }
        Ok(found)
    }
}

/// Text of a URL without its `%` signs.
fn plain(text: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.context("the URL has a % without two digits")?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).context("the URL is no text")
}

/// A connection to a server.
pub(crate) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// What the bytes go through.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Encrypted(stream) => stream.get_ref(),
        }
    }

    /// Connects.
    pub(crate) fn connect(place: &Place, tls: &TlsArgs) -> anyhow::Result<Self> {
        let Place { host, port, .. } = place;
        let socket = TcpStream::connect((host.as_str(), *port))
            .with_context(|| format!("could not connect to {host}:{port}"))?;
        socket.set_nodelay(true)?;
        if !place.encrypted {
            return Ok(Self::Plain(socket));
        }
        let name = tls.sni.clone().unwrap_or_else(|| host.clone());
        let name = ServerName::try_from(name).context("the name of the server")?;
        let session = ClientConnection::new(Arc::new(tls.settings()?), name)?;
        let mut stream = Box::new(StreamOwned::new(session, socket));
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).context("TLS")?;
        }
        Ok(Self::Encrypted(stream))
    }
}

impl TlsArgs {
    /// Whether it was asked for.
    pub(crate) fn is_on(&self) -> bool {
        self.tls
    }

    fn settings(&self) -> anyhow::Result<ClientConfig> {
        let found = || SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|file| file.exists());
        let trusted = self.cacert.clone().or_else(found);
        let trusted = trusted.context("no authorities are known: name some with --cacert")?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(&trusted)?);
        ensure!(!roots.is_empty(), "{} has no authority", trusted.display());
        let settings = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let (Some(own), Some(key)) = (&self.cert, &self.key) else {
            return Ok(settings.with_no_client_auth());
        };
        // What the library says of a key is not told: it is never to quote one.
        let read = PrivateKeyDer::from_pem_file(key).ok();
        let key = read.with_context(|| format!("{} has no key (PEM)", key.display()))?;
        Ok(settings.with_client_auth_cert(certificates(own)?, key)?)
    }
}

fn certificates(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    all.with_context(|| format!("{} cannot be read as certificates", file.display()))
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(bytes),
            Self::Encrypted(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn urls_name_places() {
        let other = Place {
            host: String::from("127.0.0.1"),
            port: 7379,
            user: None,
            password: None,
            encrypted: false,
        };
        let read = |url: &str| {
            let place = Place::of_url(url, &other).map_err(|error| error.to_string())?;
            let of = |text: Option<String>| text.unwrap_or_default();
            let Place { host, port, user, password, encrypted } = place;
            Ok::<_, String>(format!("{host} {port} '{}' '{}' {encrypted}", of(user), of(password)))
        };
        for (url, place) in [
            ("redis://db", "db 7379 '' '' false"),
            ("rediss://db:7/0", "db 7 '' '' true"),
            ("rediss://ann:a%40b@db", "db 7379 'ann' 'a@b' true"),
            ("redis://:pw@[::1]:9", "::1 9 '' 'pw' false"),
            ("redis://[::1]", "::1 7379 '' '' false"),
            ("redis://", "127.0.0.1 7379 '' '' false"),
        ] {
            assert_eq!(read(url).unwrap(), place, "{url}");
        }
        for wrong in ["db:7", "http://db", "redis://db/1", "redis://db:x", "redis://a%4@db"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
