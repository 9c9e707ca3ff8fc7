//! Encrypted connections.

use crate::url::Encryption;
use crate::wire::{Error, Socket};
use std::io::{self, Read, Write};

/// An encrypted stream.
#[derive(Debug)]
pub(crate) struct Encrypted {
    socket: Socket,
}

pub(crate) fn encrypt(_socket: Socket, _host: &str, _how: &Encryption) -> Result<Encrypted, Error> {
    Err(Error::broken("encrypted connections are not supported"))
}

impl Encrypted {
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl Read for Encrypted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.read(bytes)
    }
}

impl Write for Encrypted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
