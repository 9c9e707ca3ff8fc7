//! The bytes of a connection between shards: as they are, or in TLS, where each side shows a certificate of the cluster's authority.
//!
//! Who dials checks that the certificate is that of the address which the owner's node has told; who accepts, that it is one of the authority.
//! That each is a shard of the cluster they prove inside ([`super::handshake`]).

use rustls::ServerConfig;
use rustls::client::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What both sides of a connection write and read.
pub(super) trait LinkBytes: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> LinkBytes for T {}

/// A connection.
pub(super) enum LinkStream {
    /// Its bytes are what is said.
    Bare(TcpStream),
    /// They are encrypted.
    Secured(Box<dyn LinkBytes>),
}

impl LinkStream {
    fn bytes(self: Pin<&mut Self>) -> Pin<&mut dyn LinkBytes> {
        match self.get_mut() {
            Self::Bare(stream) => Pin::new(stream),
            Self::Secured(stream) => Pin::new(&mut **stream),
        }
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.bytes().poll_read(context, into)
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bytes().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes().poll_shutdown(context)
    }
}

/// How connections are secured.
#[derive(Clone, Debug)]
pub(crate) struct LinkSecurity {
    /// For those that this shard dials.
    pub(crate) dials: Arc<ClientConfig>,
    /// For those that it accepts.
    pub(crate) accepts: Arc<ServerConfig>,
}

/// The host of an address.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// A connection to the owner at this address.
pub(super) async fn dial(
    security: Option<&LinkSecurity>,
    address: &str,
    stream: TcpStream,
) -> io::Result<LinkStream> {
    let Some(security) = security else { return Ok(LinkStream::Bare(stream)) };
    let name = ServerName::try_from(host_of(address).to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(security.dials.clone());
    Ok(LinkStream::Secured(Box::new(connector.connect(name, stream).await?)))
}

/// A connection that somebody has dialled.
pub(super) async fn accept(
    security: Option<&LinkSecurity>,
    stream: TcpStream,
) -> io::Result<LinkStream> {
    let Some(security) = security else { return Ok(LinkStream::Bare(stream)) };
    let acceptor = TlsAcceptor::from(security.accepts.clone());
    Ok(LinkStream::Secured(Box::new(acceptor.accept(stream).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_what_certificates_name() {
        for (address, host) in
            [("n1.example:17379", "n1.example"), ("10.0.0.1:1", "10.0.0.1"), ("[::1]:17379", "::1")]
        {
            assert_eq!(host_of(address), host);
            ServerName::try_from(host).unwrap();
        }
    }
}
