//! What a connection goes over: a socket, or TLS over one.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};

/// One end of a connection; its clones are the same one.
#[derive(Clone, Debug)]
pub enum Stream {
    /// In the clear.
    Plain(Arc<TcpStream>),
    /// Encrypted. Nobody ever waits for the lock: a connection belongs to one thread.
    Encrypted(Arc<Mutex<StreamOwned<ClientConnection, TcpStream>>>),
}

impl Stream {
    /// Encrypts a connection to a server of this machine.
    ///
    /// # Errors
    /// The server is not who it should be, or speaks no TLS.
    pub fn encrypt(mut socket: TcpStream, settings: Arc<ClientConfig>) -> io::Result<Self> {
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let mut session = ClientConnection::new(settings, name).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        Ok(Self::Encrypted(Arc::new(Mutex::new(StreamOwned::new(session, socket)))))
    }

    /// Calls `each` with the socket below.
    pub(super) fn with_socket<T>(&self, each: impl FnOnce(&TcpStream) -> T) -> T {
        match self {
            Self::Plain(socket) => each(socket),
            Self::Encrypted(stream) => {
                each(&stream.lock().unwrap_or_else(PoisonError::into_inner).sock)
            }
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => (&**socket).read(bytes),
            Self::Encrypted(stream) => {
                stream.lock().unwrap_or_else(PoisonError::into_inner).read(bytes)
            }
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => (&**socket).write(bytes),
            Self::Encrypted(stream) => {
                stream.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Encrypted(stream) => {
                stream.lock().unwrap_or_else(PoisonError::into_inner).flush()
            }
        }
    }
}
