//! A client whose socket an I/O thread serves, as the loop sees it: something to read from and to write to that never waits.
//!
//! What was written to it is to the loop as what the system has taken of a socket: it is on its way, and is sent also where the loop ends the
//! connection then, unless the client was to be ended at once.
//!
//! # Invariants
//! - I1. At most [`INPUT_WINDOW`] bytes of a client are on their way to the loop or kept here: the I/O thread reads no further ones before
//!   it is told that these were taken.
//! - I2. At most [`OUTPUT_WINDOW`] bytes are on their way to a client: the relay takes no further ones before the I/O thread has reported
//!   that it sent some.

use super::message::{ClientState, IoOrder, IoOrders, IoReport};
use super::{INPUT_WINDOW, OUTPUT_WINDOW};
use crate::connection_id::ConnectionId;
use std::io::{self, ErrorKind, IoSlice, Read, Write};

/// The loop's side of a client's socket.
#[derive(Debug)]
pub(crate) struct Relay {
    client: ConnectionId,
    /// Which I/O thread has the socket.
    thread: usize,
    descriptor: i32,
    is_encrypted: bool,
    /// What the client has sent and nobody has read is behind the first `read` bytes.
    received: Vec<u8>,
    read: usize,
    /// Bytes that were read, and that the I/O thread does not know to be taken.
    untold: usize,
    /// Bytes for the client that are not known to be sent.
    in_flight: usize,
    /// The I/O thread was asked to give the socket back: nothing more is written to it here.
    comes_back: bool,
    state: ClientState,
}

impl Relay {
    pub(super) fn new(
        client: ConnectionId,
        thread: usize,
        (descriptor, is_encrypted): (i32, bool),
    ) -> Self {
        Self {
            client,
            thread,
            descriptor,
            is_encrypted,
            received: Vec::new(),
            read: 0,
            untold: 0,
            in_flight: 0,
            comes_back: false,
            state: ClientState::Open,
        }
    }

    pub(super) fn client(&self) -> ConnectionId {
        self.client
    }

    #[inline]
    pub(super) fn thread(&self) -> usize {
        self.thread
    }

    /// The number of the I/O thread, from 1.
    pub(crate) fn number(&self) -> usize {
        self.thread + 1
    }

    /// The number of the socket's descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Whether the I/O thread encrypts what the client is sent.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Has the I/O thread give the socket back; whether that is new.
    pub(super) fn ask_back(&mut self, orders: &mut IoOrders) -> bool {
        let is_new = !core::mem::replace(&mut self.comes_back, true);
        if is_new {
            orders.all.push(IoOrder::GiveBack(self.client));
        }
        is_new
    }

    /// What the client has sent and nobody has read.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.received[self.read..]
    }

    /// Memory that it takes here and on its way to the client.
    #[inline]
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.received.capacity() + self.in_flight
    }

    /// Takes what the I/O thread tells; `bytes`: what the client has sent. How many bytes it was sent. `spare` gives the room that is needed.
    #[inline]
    pub(super) fn hear(&mut self, report: &IoReport, bytes: &[u8], spare: &mut Vec<u8>) -> usize {
        if !bytes.is_empty() {
            if self.received.capacity() == 0 {
                core::mem::swap(&mut self.received, spare);
            }
            self.received.extend_from_slice(bytes);
        }
        self.in_flight = self.in_flight.saturating_sub(report.sent);
        self.state = report.state;
        if report.state == ClientState::Broken {
            self.in_flight = 0;
        }
        report.sent
    }

    /// Gives back the room for bytes, if there are none.
    #[inline]
    pub(super) fn give_room(&mut self, spare: &mut Vec<u8>) {
        if self.read == self.received.len() {
            let mut room = core::mem::take(&mut self.received);
            self.read = 0;
            room.clear();
            if room.capacity() > spare.capacity() && room.capacity() <= INPUT_WINDOW {
                *spare = room;
            }
        }
    }

    /// Tells the I/O thread that bytes were taken, where that does not go with an answer anyway and it may wait for it.
    #[inline]
    pub(super) fn tell_taken(&mut self, orders: &mut IoOrders) {
        if self.untold >= INPUT_WINDOW / 2 {
            let (client, end) = (self.client, orders.bytes.len());
            let taken = core::mem::take(&mut self.untold);
            orders.all.push(IoOrder::Send { client, taken, end });
        }
    }
}

impl Read for Relay {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.received[self.read..];
        if rest.is_empty() {
            return match self.state {
                ClientState::Open | ClientState::GivenBack => Err(ErrorKind::WouldBlock.into()),
                ClientState::Ended | ClientState::Broken => Ok(0),
            };
        }
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.read += count;
        self.untold += count;
        Ok(count)
    }
}

/// Writes to a client, with the next batch for its I/O thread.
pub(crate) struct RelayWriter<'w> {
    relay: &'w mut Relay,
    orders: &'w mut IoOrders,
}

impl<'w> RelayWriter<'w> {
    pub(super) fn new(relay: &'w mut Relay, orders: &'w mut IoOrders) -> Self {
        Self { relay, orders }
    }
}

impl RelayWriter<'_> {
    /// How much may be written now.
    fn room(&self) -> io::Result<usize> {
        if self.relay.state == ClientState::Broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        match OUTPUT_WINDOW.saturating_sub(self.relay.in_flight) {
            room if room > 0 && !self.relay.comes_back => Ok(room),
            _ => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// So many bytes were added to the batch.
    fn wrote(&mut self, count: usize) {
        let Relay { client, untold, in_flight, .. } = self.relay;
        *in_flight += count;
        let end = self.orders.bytes.len();
        match self.orders.all.last_mut() {
            Some(IoOrder::Send { client: of, end: last, .. }) if of == client => *last = end,
            _ => {
                let taken = core::mem::take(untold);
                self.orders.all.push(IoOrder::Send { client: *client, taken, end });
            }
        }
    }
}

impl Write for RelayWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let room = self.room()?;
        let mut count = 0;
        for slice in slices {
            let part = &slice[..slice.len().min(room - count)];
            self.orders.bytes.extend_from_slice(part);
            count += part.len();
            if count == room {
                break;
            }
        }
        self.wrote(count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
