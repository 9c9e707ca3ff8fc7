//! One client's socket, bare or encrypted, as the loop uses it: it reads and writes without waiting.
//!
//! # Invariants
//! - T1. What a write has taken is sent, or `is_unflushed` says that it is not: then the kernel has refused bytes, and will report the
//!   socket as writable.
//! - T2. After a read that did not fill its buffer, either the socket is empty and nothing is left here, or `has_more` is set.
//!
//! # Cost
//! A read of the socket for each read of the loop, and what decrypting costs; nothing is allocated but what the library
//! keeps of a record that is incomplete.

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use rustls::{InvalidMessage, ServerConnection};
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, Read, Write};

/// Bytes of the buffer that all connections of a thread read what is encrypted into.
const READ_BYTES: usize = 64 << 10;
/// Less is not read at once: a record's head is longer.
const READ_BYTES_MIN: usize = 1 << 10;
/// What an encrypted connection takes besides a bare one: keys and states, and a buffer for what is incomplete.
pub(crate) const STREAM_BYTES: usize = 8 << 10;

thread_local! {
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// A client's socket.
#[derive(Debug)]
pub(crate) enum ClientStream {
    /// What is sent is what is on the wire.
    Bare(TcpStream),
    /// It is encrypted, and the handshake is over.
    Encrypted(Box<TlsStream>),
    /// It belongs to a thread of this process, which speaks for a client.
    Inner(Box<InnerStream>),
}

/// The server's end of a connection within the process, on which a thread speaks for a client of another protocol.
#[derive(Debug)]
pub(crate) struct InnerStream {
    /// The socket.
    pub(crate) socket: UnixStream,
    /// What the client's certificate calls it, if it has shown one.
    pub(crate) certificate: Option<String>,
}

impl ClientStream {
    /// The socket, to set options of TCP, if it has any.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Bare(socket) => Some(socket),
            Self::Encrypted(stream) => Some(&stream.socket),
            Self::Inner(_) => None,
        }
    }

    /// The socket, to register it.
    pub(crate) fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Bare(socket) => socket,
            Self::Encrypted(stream) => &mut stream.socket,
            Self::Inner(inner) => &mut inner.socket,
        }
    }

    /// The number of its descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        match self {
            Self::Bare(socket) => std::os::fd::AsRawFd::as_raw_fd(socket),
            Self::Encrypted(stream) => stream.descriptor(),
            Self::Inner(inner) => std::os::fd::AsRawFd::as_raw_fd(&inner.socket),
        }
    }

    /// Whether what is sent is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Encrypted(_))
    }

    /// What the client's certificate calls it, if it has shown one.
    pub(crate) fn certificate(&self) -> Option<String> {
        match self {
            Self::Bare(_) => None,
            Self::Encrypted(stream) => stream.certificate(),
            Self::Inner(inner) => inner.certificate.clone(),
        }
    }

    /// Says something to a client that is not let in; whether it is read is its own affair.
    pub(crate) fn refuse(&mut self, text: &[u8]) {
        let _ = self.write(text);
    }

    /// Whether what is decrypted is here, and no news of it will come.
    pub(crate) fn has_more(&self) -> bool {
        matches!(self, Self::Encrypted(stream) if stream.has_more())
    }

    /// Bytes that were taken to be encrypted and are not sent.
    pub(crate) fn unflushed(&self) -> usize {
        if let Self::Encrypted(stream) = self { stream.unflushed() } else { 0 }
    }
}

impl Read for ClientStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Bare(socket) => socket.read(into),
            Self::Encrypted(stream) => stream.read(into),
            Self::Inner(inner) => inner.socket.read(into),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Bare(socket) => socket.write(bytes),
            Self::Encrypted(stream) => stream.write(bytes),
            Self::Inner(inner) => inner.socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Bare(_) | Self::Inner(_) => Ok(()),
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}

/// An encrypted connection.
pub(crate) struct TlsStream {
    socket: TcpStream,
    tls: ServerConnection,
    /// Bytes that were read and that the library has yet to take.
    kept: Vec<u8>,
    /// Bytes that it was given last, while they are not sent.
    unflushed: usize,
    has_more: bool,
    /// The client sends no more.
    ended: bool,
    /// What came first was no TLS.
    is_foreign: bool,
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl TlsStream {
    /// A connection whose handshake begins.
    pub(super) fn new(socket: TcpStream, tls: ServerConnection) -> Self {
        Self {
            socket,
            tls,
            kept: Vec::new(),
            unflushed: 0,
            has_more: false,
            ended: false,
            is_foreign: false,
        }
    }

    /// Goes on with the handshake as far as the client lets it; whether it is over.
    pub(super) fn shake(&mut self) -> io::Result<bool> {
        loop {
            let blocked = match self.flush_tls() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                other => other.map(|()| false)?,
            };
            if !self.tls.is_handshaking() {
                return Ok(!blocked);
            }
            let mut socket = &self.socket;
            match self.tls.read_tls(&mut socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if let Err(error) = self.tls.process_new_packets() {
                // The client is told why, if it takes it, and if it speaks TLS at all.
                self.is_foreign = error == InvalidMessage::InvalidContentType.into();
                if !self.is_foreign {
                    let _ = self.flush_tls();
                }
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }

    /// The socket, to register it.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// The number of its descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.socket)
    }

    fn certificate(&self) -> Option<String> {
        super::name::of(self.tls.peer_certificates()?.first()?)
    }

    /// Whether there is more to read without news from the socket.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Bytes that were taken to be sent and are not.
    #[inline]
    pub(crate) fn unflushed(&self) -> usize {
        self.unflushed
    }

    /// Takes what is decrypted.
    fn take_plain(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.tls.reader().read(&mut into[filled..]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Decrypts these bytes into the buffer; what goes beyond it is kept.
    fn decrypt(&mut self, bytes: &[u8], into: &mut [u8]) -> io::Result<usize> {
        let (mut rest, mut filled) = (bytes, 0);
        while !rest.is_empty() && !self.ended {
            let before = rest.len();
            // It takes nothing while it has too much that is decrypted, and after the client's last word.
            let taken = self.tls.read_tls(&mut rest);
            if let Err(error) = self.tls.process_new_packets() {
                self.ended = true;
                let _ = self.flush_tls();
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
            let plain = self.take_plain(&mut into[filled..])?;
            filled += plain;
            if rest.len() == before && plain == 0 {
                if filled < into.len() {
                    // Nothing is in its way but what it is.
                    self.ended = true;
                    taken?;
                }
                break;
            }
        }
        if !self.ended {
            self.kept = rest.to_vec();
        }
        Ok(filled)
    }

    /// Reads what is there, as far as it fits.
    fn fill(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = self.take_plain(into)?;
        self.has_more = true;
        while filled < into.len() && !self.ended {
            if !self.kept.is_empty() {
                let kept = std::mem::take(&mut self.kept);
                filled += self.decrypt(&kept, &mut into[filled..])?;
                continue;
            }
            let most = (into.len() - filled).clamp(READ_BYTES_MIN, READ_BYTES);
            let (count, plain) = READ.with_borrow_mut(|buffer| {
                loop {
                    match self.socket.read(&mut buffer[..most]) {
                        Ok(0) => {
                            self.ended = true;
                            break Ok((0, 0));
                        }
                        Ok(count) => {
                            let plain = self.decrypt(&buffer[..count], &mut into[filled..])?;
                            break Ok((count, plain));
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok((0, 0)),
                        Err(_) if filled > 0 => {
                            self.ended = true;
                            break Ok((0, 0));
                        }
                        Err(error) => break Err(error),
                    }
                }
            })?;
            filled += plain;
            // A read that is not full has emptied the socket: more is reported anew.
            if count < most {
                break;
            }
        }
        // Answers to what has come: keys that change, and the like.
        match self.flush_tls() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        // What fits nowhere is looked for again.
        self.has_more = self.ended || filled == into.len() || !self.kept.is_empty();
        Ok(filled)
    }

    /// Sends what is encrypted, as far as the client takes it.
    fn flush_tls(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.unflushed = self.unflushed.max(1);
                    return Err(error);
                }
            }
        }
        self.unflushed = 0;
        Ok(())
    }

    /// Encrypts by `write` when all that came before is sent, and sends as much as the client takes.
    fn encrypt(
        &mut self,
        write: impl FnOnce(&mut rustls::Writer<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.flush_tls()?;
        let count = write(&mut self.tls.writer())?;
        self.unflushed = count;
        match self.flush_tls() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.fill(into)? {
            0 if self.ended => Ok(0),
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encrypt(|writer| writer.write(bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.encrypt(|writer| writer.write_vectored(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_tls()
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if self.is_foreign {
            return;
        }
        // Who is told that this is the end knows that nothing was cut off. Whether it is taken is the client's affair.
        self.tls.send_close_notify();
        let _ = self.flush_tls();
    }
}
