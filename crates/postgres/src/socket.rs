//! The stream below a connection: a socket of either family, bare or encrypted.

use crate::tls;
use crate::url::Target;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The socket below a connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) fn open(target: &Target) -> io::Result<Self> {
        if target.host.starts_with('/') {
            let path = format!("{}/.s.PGSQL.{}", target.host, target.port);
            return UnixStream::connect(path).map(Self::Unix);
        }
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        for address in target.terms.addresses(&target.host, target.port)? {
            match TcpStream::connect_timeout(&address, target.patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    pub(crate) fn patience(&self, patience: Duration) -> io::Result<()> {
        // Zero would mean for ever.
        let patience = Some(patience.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience))
            }
        }
    }
}

impl Socket {
    fn set_nonblocking(&self, to: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(to),
            Self::Unix(stream) => stream.set_nonblocking(to),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket, bare or encrypted.
#[derive(Debug)]
pub(crate) enum Stream {
    Bare(Socket),
    Encrypted(Box<tls::Encrypted>),
}

impl Stream {
    pub(crate) fn socket(&self) -> &Socket {
        match self {
            Self::Bare(socket) => socket,
            Self::Encrypted(stream) => stream.socket(),
        }
    }

    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Bare(socket) => socket.read(bytes),
            Self::Encrypted(stream) => stream.read(bytes),
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Bare(socket) => socket.write_all(bytes),
            Self::Encrypted(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Whether nothing has come that nobody asked for, such as the end: what is sent now can be answered.
    pub(crate) fn is_quiet(&mut self) -> bool {
        if self.socket().set_nonblocking(true).is_err() {
            return false;
        }
        let read = self.read(&mut [0; 1]);
        let quiet = matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.socket().set_nonblocking(false).is_ok() && quiet
    }
}
