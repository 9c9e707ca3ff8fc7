//! One client's socket, as an I/O thread has it.

use super::{INPUT_WINDOW, OUTPUT_WINDOW};
use crate::connection_id::ConnectionId;
use crate::tls::ClientStream;
use std::io::{self, ErrorKind, Read, Write};

/// A client's socket, and what is on its way through it.
pub(super) struct Client {
    pub(super) id: ConnectionId,
    pub(super) stream: ClientStream,
    /// The socket may have more bytes.
    pub(super) readable: bool,
    /// The client has sent its last byte, which may still be unread.
    pub(super) hung_up: bool,
    /// The loop was told of `hung_up`.
    pub(super) has_told_hang_up: bool,
    /// The client's last byte was read.
    pub(super) has_ended: bool,
    /// The loop was told of `has_ended`.
    pub(super) has_told_end: bool,
    /// The socket takes no more bytes for now.
    pub(super) blocked: bool,
    /// Bytes that were read and that the loop has not taken (I1).
    pub(super) untaken: usize,
    /// What the client is to be sent is behind the first `written` bytes.
    pub(super) output: Vec<u8>,
    pub(super) written: usize,
    /// Bytes that the client was sent and the loop was not told of.
    pub(super) unreported: usize,
    /// The loop wants the socket back.
    pub(super) goes_back: bool,
    /// The client is in the thread's list of those that are looked at in the next turn.
    pub(super) touched: bool,
    /// The client is in the list of those of which nothing is read before the loop has taken what was read.
    pub(super) is_held_back: bool,
    /// The client is in the list of those that were sent bytes of which the loop was not told.
    pub(super) is_late: bool,
}

impl Client {
    /// A client whose socket is registered.
    pub(super) fn new(id: ConnectionId, stream: ClientStream) -> Self {
        Self {
            id,
            // What came with the end of a handshake is here, and no news of it will come.
            readable: stream.is_encrypted(),
            stream,
            hung_up: false,
            has_told_hang_up: false,
            has_ended: false,
            has_told_end: false,
            blocked: false,
            untaken: 0,
            output: Vec::new(),
            written: 0,
            unreported: 0,
            goes_back: false,
            touched: false,
            is_held_back: false,
            is_late: false,
        }
    }

    /// Whether it was sent all that it was to be sent.
    pub(super) fn is_sent(&self) -> bool {
        self.output.is_empty() && self.stream.unflushed() == 0
    }

    /// Whether more may be read from it (I1).
    pub(super) fn may_read(&self) -> bool {
        !self.has_ended && self.untaken < INPUT_WINDOW
    }

    /// Whether the loop is to be told of it, though it has sent nothing.
    pub(super) fn must_report(&self) -> bool {
        // Where it may not be read, its end is told of by itself: what waits for it may be of no use any more.
        let has_gone = self.hung_up && !self.has_told_hang_up && !self.may_read();
        has_gone || self.has_ended && !self.has_told_end || self.unreported >= OUTPUT_WINDOW / 2
    }

    /// Reads what is there; `None`: nothing.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(into) {
                Ok(count) => {
                    // A read that is not full has emptied the socket: more is reported anew, but for the end.
                    self.readable = self.hung_up || count == into.len() || self.stream.has_more();
                    return Ok(Some(count));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.readable = self.stream.has_more();
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends bytes behind those that wait, as far as the client takes them; `false`: the connection broke.
    pub(super) fn send(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        if self.output.is_empty() && !self.blocked && !self.write(&mut rest) {
            return false;
        }
        if !rest.is_empty() {
            // What was sent is not kept behind what was not.
            self.output.drain(..core::mem::take(&mut self.written));
            self.output.extend_from_slice(rest);
        }
        true
    }

    /// Sends what waits, as far as the client takes it; `false`: the connection broke.
    pub(super) fn flush(&mut self) -> bool {
        if self.blocked {
            return true;
        }
        if self.output.is_empty() {
            return self.flush_encrypted();
        }
        let output = core::mem::take(&mut self.output);
        let mut rest = &output[self.written..];
        let alive = self.write(&mut rest);
        let unsent = rest.len();
        if unsent > 0 {
            (self.written, self.output) = (output.len() - unsent, output);
        } else {
            self.written = 0;
        }
        alive
    }

    /// Sends what was taken to be encrypted and is not sent yet.
    pub(super) fn flush_encrypted(&mut self) -> bool {
        if self.stream.unflushed() == 0 {
            return true;
        }
        match self.stream.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.blocked = true;
                true
            }
            other => other.is_ok(),
        }
    }

    /// Writes bytes, as far as the client takes them, and shortens them by those; `false`: the connection broke.
    pub(super) fn write(&mut self, bytes: &mut &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return false,
                Ok(count) => {
                    *bytes = &bytes[count..];
                    self.unreported += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return true;
                }
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_was_sent_is_not_kept_however_slowly_the_client_takes_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        // So little is on its way in the system that something is always left here.
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 16 << 10).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&peer, 64 << 10).unwrap();
        let stream = ClientStream::Bare(mio::net::TcpStream::from_std(socket));
        let mut client = Client::new(ConnectionId { slot: 0, number: 1 }, stream);
        let (mut sent, mut taken, mut most) = (0u64, 0u64, 0);
        let mut into = vec![0; 16 << 10];
        while taken < 4 << 20 {
            let room = OUTPUT_WINDOW - (client.output.len() - client.written);
            let bytes: Vec<u8> = (sent..sent + room as u64).map(|at| at as u8).collect();
            assert!(client.send(&bytes));
            sent += room as u64;
            let count = peer.read(&mut into).unwrap();
            assert!(into[..count].iter().zip(taken..).all(|(byte, at)| *byte == at as u8));
            taken += count as u64;
            client.blocked = false;
            assert!(client.flush());
            most = most.max(client.output.capacity());
        }
        assert!((OUTPUT_WINDOW..=4 * OUTPUT_WINDOW).contains(&most), "{most}");
    }
}
