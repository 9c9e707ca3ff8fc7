//! A blocking TCP connection with an output buffer and a reader that lends slices of its
//! buffer.
//!
//! # Cost
//! One `write` per flush, one `read` per 256 KiB of replies at best. A slice that was lent is
//! copied by nobody unless the caller does.

use super::bad;
use super::stream::Stream;
use anyhow::{Context, Result};
use rustls::ClientConfig;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How much is read at once; a larger reply grows the buffer.
const BUFFER_BYTES: usize = 256 * 1024;
/// A server that says nothing for so long while it is loaded is taken for dead.
const LOADING_MAX: Duration = Duration::from_secs(600);
/// The same while it is measured.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A loader waits for replies when so many bytes of requests were sent without reading any.
const LOAD_BYTES: usize = 64 * 1024;

/// The replies of one connection.
#[derive(Debug)]
pub struct Input<R = Stream> {
    stream: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Input<R> {
    /// A reader over `stream` with an empty buffer.
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    /// What is read from.
    pub fn stream(&mut self) -> &mut R {
        &mut self.stream
    }

    /// Waits for more bytes behind those that are buffered.
    fn more(&mut self) -> io::Result<()> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.end == self.buffer.len() {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            } else {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        let read = loop {
            match self.stream.read(&mut self.buffer[self.end..]) {
                // The handler of the signal decides what it means.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the server has not answered for too long",
                    ));
                }
                read => break read?,
            }
        };
        if read == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            ));
        }
        self.end += read;
        MOVED.fetch_add(read as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The next line without its `\r\n`.
    ///
    /// # Errors
    /// The connection ends or fails.
    #[inline]
    pub fn line(&mut self) -> io::Result<&[u8]> {
        let mut looked_at = 0;
        loop {
            let waiting = &self.buffer[self.start + looked_at..self.end];
            if let Some(at) = waiting.iter().position(|&byte| byte == b'\n') {
                let first = self.start;
                let last = first + looked_at + at;
                self.start = last + 1;
                let line = &self.buffer[first..last];
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            looked_at += waiting.len();
            self.more()?;
        }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// The connection ends or fails.
    #[inline]
    pub fn take(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.end - self.start < count {
            self.more()?;
        }
        let first = self.start;
        self.start += count;
        Ok(&self.buffer[first..self.start])
    }

    /// The next byte, which stays.
    ///
    /// # Errors
    /// The connection ends or fails.
    #[inline]
    pub fn peek(&mut self) -> io::Result<u8> {
        while self.end == self.start {
            self.more()?;
        }
        Ok(self.buffer[self.start])
    }

    /// The next `count` bytes, which are data, and the `\r\n` behind them.
    ///
    /// # Errors
    /// The connection ends or fails, or the data does not end where it should.
    #[inline]
    pub fn data(&mut self, count: usize) -> io::Result<&[u8]> {
        match self.take(count + 2)?.split_last_chunk::<2>() {
            Some((data, b"\r\n")) => Ok(data),
            _ => Err(bad(format!("a datum of {count} bytes is not followed by a line's end"))),
        }
    }
}

/// Bytes that all connections have sent and received.
static MOVED: AtomicU64 = AtomicU64::new(0);

/// Bytes that this process' connections have sent and received so far.
#[must_use]
pub fn moved_bytes() -> u64 {
    MOVED.load(Ordering::Relaxed)
}

/// One connection: what is to be sent, and the replies.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// The replies.
    pub input: Input,
    /// What the next [`Connection::flush`] sends.
    pub out: Vec<u8>,
}

impl Connection {
    /// Connects to a port of this machine.
    ///
    /// # Errors
    /// Nothing listens there.
    pub fn open(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOADING_MAX))?;
        stream.set_write_timeout(Some(LOADING_MAX))?;
        Ok(Self::over(Stream::Plain(Arc::new(stream))))
    }

    /// The same over TLS.
    ///
    /// # Errors
    /// Nothing listens there, or nobody who is trusted.
    pub fn open_encrypted(port: u16, settings: Arc<ClientConfig>) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOADING_MAX))?;
        stream.set_write_timeout(Some(LOADING_MAX))?;
        Ok(Self::over(Stream::encrypt(stream, settings)?))
    }

    fn over(stream: Stream) -> Self {
        let input = Input::new(stream.clone());
        Self { stream, input, out: Vec::with_capacity(BUFFER_BYTES) }
    }

    /// Takes the server for dead sooner from now on: it is loaded, and has only short answers
    /// to give.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn hurry(&self) -> io::Result<()> {
        self.stream.with_socket(|socket| {
            socket.set_read_timeout(Some(SILENCE_MAX))?;
            socket.set_write_timeout(Some(SILENCE_MAX))
        })
    }

    /// Sends what was written.
    ///
    /// # Errors
    /// The connection fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.stream.flush()?;
        MOVED.fetch_add(self.out.len() as u64, Ordering::Relaxed);
        self.out.clear();
        Ok(())
    }
}

/// Sends many requests with few waits: writes, and reads the replies in between.
pub struct Loader<'c> {
    /// The connection; write requests into its `out`, then call [`Loader::sent`].
    pub connection: &'c mut Connection,
    skip: fn(&mut Input) -> io::Result<()>,
    pending: usize,
}

impl<'c> Loader<'c> {
    /// A loader whose replies are read, and dropped, by `skip`.
    pub fn new(connection: &'c mut Connection, skip: fn(&mut Input) -> io::Result<()>) -> Self {
        Self { connection, skip, pending: 0 }
    }

    /// Notes that the requests written so far bring `replies` more replies.
    ///
    /// # Errors
    /// The connection fails, or the server refuses a request.
    pub fn sent(&mut self, replies: usize) -> Result<()> {
        self.pending += replies;
        if self.connection.out.len() >= LOAD_BYTES { self.drain() } else { Ok(()) }
    }

    fn drain(&mut self) -> Result<()> {
        self.connection.flush()?;
        for _ in 0..core::mem::take(&mut self.pending) {
            (self.skip)(&mut self.connection.input).context("while loading")?;
        }
        Ok(())
    }

    /// Sends the rest and waits for all replies.
    ///
    /// # Errors
    /// As for [`Loader::sent`].
    pub fn finish(mut self) -> Result<()> {
        self.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time, as a slow network does.
    pub(crate) struct Drops<'a>(pub(crate) &'a [u8], pub(crate) usize);

    impl Read for Drops<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(into.len());
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn lines_and_data_survive_any_cut() {
        let text = b"$5\r\nhello\r\n:1\r\n";
        for drop in 1..text.len() {
            let mut input = Input::new(Drops(text, drop));
            assert_eq!(input.line().unwrap(), b"$5");
            assert_eq!(input.data(5).unwrap(), b"hello");
            assert_eq!(input.peek().unwrap(), b':');
            assert_eq!(input.line().unwrap(), b":1");
            assert_eq!(input.line().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_reply_larger_than_the_buffer_is_read_whole() {
        let mut text = vec![b'x'; 3 * BUFFER_BYTES];
        text.extend_from_slice(b"\r\nnext\n");
        let mut input = Input::new(Drops(&text, 100_000));
        assert_eq!(input.data(3 * BUFFER_BYTES).unwrap().len(), 3 * BUFFER_BYTES);
        assert_eq!(input.line().unwrap(), b"next");
    }

    #[test]
    fn data_of_the_wrong_length_is_refused() {
        let mut input = Input::new(&b"hello\r\n"[..]);
        assert!(input.data(4).is_err());
    }
}
