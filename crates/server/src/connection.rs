//! One client's socket with what could not be parsed or sent yet.
//!
//! Requests are read into, and replies encoded into, buffers that all connections share; a
//! connection owns bytes only while a request is incomplete or the client does not take its
//! replies. An idle connection therefore holds no buffer at all.
//!
//! # Invariants
//! - C1. `output` is older than anything encoded since.
//! - C2. While `write_blocked`, the kernel has refused bytes and will report the socket as
//!   writable, or as much is on its way through an I/O thread as may be, which will report what it has sent: there is no point in trying before.

pub(crate) use crate::connection_id::ConnectionId;
use crate::io_threads::{IoOutbox, Relay};
use crate::output::Output;
use crate::service::Service;
use crate::tls::{ClientStream, InnerStream, STREAM_BYTES, TlsStream};
use core::net::SocketAddr;
use headwater_engine::ValueRef;
use headwater_protocol::Held;
use mio::event::Source;
use mio::net::TcpStream;
use std::io::{ErrorKind, Read, Write};

/// Why nothing of a connection's input is executed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Requests are executed as they come.
    Open,
    /// A command waits for data; what follows waits behind it.
    Parked,
    /// No more is read; the connection ends when its output is sent.
    Closing,
    /// The connection ends at once.
    Killed,
}

/// What reading came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// So many bytes.
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The client has ended the connection, or it broke.
    End,
}

/// Where a connection's replies go.
enum Wire {
    /// To a client.
    Socket(TcpStream),
    /// To a client, encrypted.
    Encrypted(Box<TlsStream>),
    /// To a thread of this process, which speaks for a client.
    Inner(Box<InnerStream>),
    /// To a client, whose socket an I/O thread has.
    Relay(Box<Relay>),
    /// To the shard that has the client, with its next batch of messages.
    Shard(Vec<u8>),
    /// Nowhere: the client has gone, and what it has begun is brought to its end.
    Nowhere,
    /// To a client within this process, without a socket.
    #[cfg(test)]
    Pipe(crate::simulated::ServerEnd),
}

impl Wire {
    fn of(stream: ClientStream) -> Self {
        match stream {
            ClientStream::Bare(socket) => Self::Socket(socket),
            ClientStream::Encrypted(stream) => Self::Encrypted(stream),
            ClientStream::Inner(inner) => Self::Inner(inner),
        }
    }
}

/// One client's connection, or that of a client of another shard.
pub(crate) struct Connection<S> {
    /// Its name.
    pub(crate) id: ConnectionId,
    /// What the service knows of the client.
    pub(crate) session: S,
    /// The client's address.
    pub(crate) peer: SocketAddr,
    /// The address at which the client was accepted.
    pub(crate) local: SocketAddr,
    /// When it was accepted, in milliseconds of the server's life.
    pub(crate) since: u64,
    /// When the client was heard last.
    pub(crate) heard: u64,
    /// When the client last took bytes while some were pending.
    pub(crate) taken: u64,
    /// What keeps it from going on.
    pub(crate) phase: Phase,
    /// Bytes of an incomplete request, or of requests that cannot be executed yet.
    pub(crate) input: Vec<u8>,
    /// How many bytes of `input` are filled.
    pub(crate) input_filled: usize,
    /// `input` may hold a complete request, or the session a command to run again.
    pub(crate) runnable: bool,
    /// The socket may have more bytes.
    pub(crate) readable: bool,
    /// The client has sent its last byte.
    pub(crate) ended: bool,
    /// It is in the list of connections that want another turn.
    pub(crate) queued: bool,
    /// It is in the list of connections to which others wrote.
    pub(crate) dirty: bool,
    /// It is in the list of connections whose output waits for writes to be safe.
    pub(crate) awaits_durable: bool,
    /// It is told that nobody may be answered, and waits for nothing.
    pub(crate) turned_away: bool,
    /// So many bytes of its next output are refusals, which show nothing that waits, if they are all of it.
    pub(crate) refused: usize,
    /// The number of the last write of a request of its own; 0 where nothing is said to be safe.
    pub(crate) wrote: u64,
    /// Bytes that it took when it was counted last.
    pub(crate) counted_bytes: usize,
    /// Bytes that the client has sent.
    pub(crate) received_bytes: u64,
    /// Bytes that it was sent.
    pub(crate) sent_bytes: u64,
    wire: Wire,
    output: Output,
    /// Bytes that the wire has taken and not sent: what is encrypted goes out whole.
    unflushed: usize,
    write_blocked: bool,
}

impl<S> Connection<S> {
    /// A connection that was just accepted.
    pub(crate) fn new(
        id: ConnectionId,
        stream: ClientStream,
        (peer, local): (SocketAddr, SocketAddr),
        session: S,
        now: u64,
    ) -> Self {
        Self::over(Wire::of(stream), id, (peer, local), session, now)
    }

    /// That of a client whose socket an I/O thread has.
    pub(crate) fn relayed(
        id: ConnectionId,
        relay: Relay,
        (peer, local): (SocketAddr, SocketAddr),
        session: S,
        now: u64,
    ) -> Self {
        Self::over(Wire::Relay(Box::new(relay)), id, (peer, local), session, now)
    }

    /// The connection of a client of another shard: its requests and replies are messages between shards.
    pub(crate) fn remote(id: ConnectionId, session: S, now: u64) -> Self {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Self::over(Wire::Shard(Vec::new()), id, (nowhere, nowhere), session, now)
    }

    /// The connection of a client within this process.
    #[cfg(test)]
    pub(crate) fn within(
        id: ConnectionId,
        pipe: crate::simulated::ServerEnd,
        peer: SocketAddr,
        session: S,
        now: u64,
    ) -> Self {
        Self::over(Wire::Pipe(pipe), id, (peer, peer), session, now)
    }

    fn over(
        wire: Wire,
        id: ConnectionId,
        (peer, local): (SocketAddr, SocketAddr),
        session: S,
        now: u64,
    ) -> Self {
        Self {
            id,
            session,
            peer,
            local,
            since: now,
            heard: now,
            taken: now,
            phase: Phase::Open,
            input: Vec::new(),
            input_filled: 0,
            runnable: false,
            readable: false,
            ended: false,
            queued: false,
            dirty: false,
            awaits_durable: false,
            turned_away: false,
            refused: 0,
            wrote: 0,
            counted_bytes: 0,
            received_bytes: 0,
            sent_bytes: 0,
            wire,
            output: Output::default(),
            unflushed: 0,
            write_blocked: false,
        }
    }

    /// The socket, to register or deregister it; a client of another shard has none here.
    pub(crate) fn source(&mut self) -> Option<&mut dyn Source> {
        match &mut self.wire {
            Wire::Socket(socket) => Some(socket),
            Wire::Encrypted(stream) => Some(stream.socket()),
            Wire::Inner(inner) => Some(&mut inner.socket),
            _ => None,
        }
    }

    /// Takes its socket, for an I/O thread to have it; `None`: it has none of its own, or something waits to be sent.
    pub(crate) fn take_stream(&mut self) -> Option<ClientStream> {
        if self.unsent() > 0 {
            return None;
        }
        match core::mem::replace(&mut self.wire, Wire::Nowhere) {
            Wire::Socket(socket) => Some(ClientStream::Bare(socket)),
            Wire::Encrypted(stream) => Some(ClientStream::Encrypted(stream)),
            other => {
                self.wire = other;
                None
            }
        }
    }

    /// Has something stand for its socket, which an I/O thread has from now on.
    pub(crate) fn put_relay(&mut self, relay: Relay) {
        self.wire = Wire::Relay(Box::new(relay));
    }

    /// Has its socket again; what was sent before stays to be read.
    pub(crate) fn put_stream(&mut self, stream: ClientStream) {
        if let Wire::Relay(relay) = &self.wire
            && !relay.unread().is_empty()
        {
            self.input.truncate(self.input_filled);
            self.input.extend_from_slice(relay.unread());
            self.input_filled = self.input.len();
            self.runnable = true;
        }
        self.wire = Wire::of(stream);
        (self.readable, self.write_blocked) = (true, false);
    }

    /// Which I/O thread has its socket; 0: the thread that executes.
    pub(crate) fn io_thread(&self) -> usize {
        if let Wire::Relay(relay) = &self.wire { relay.number() } else { 0 }
    }

    /// What stands for its socket, which an I/O thread has.
    #[inline]
    pub(crate) fn relay(&mut self) -> Option<&mut Relay> {
        match &mut self.wire {
            Wire::Relay(relay) => Some(relay),
            _ => None,
        }
    }

    /// Whether what it sends is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        match &self.wire {
            Wire::Encrypted(_) => true,
            Wire::Relay(relay) => relay.is_encrypted(),
            _ => false,
        }
    }

    /// Bytes that its wire takes besides a socket.
    #[inline]
    pub(crate) fn wire_bytes(&self) -> usize {
        let kept = if let Wire::Relay(relay) = &self.wire { relay.reserved_bytes() } else { 0 };
        kept + if self.is_encrypted() { STREAM_BYTES } else { 0 }
    }

    /// Whether it is that of a client of another shard, or of one that has gone.
    #[inline]
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.wire, Wire::Shard(_) | Wire::Nowhere)
    }

    /// Whether its client has gone, and what it has begun is brought to its end.
    pub(crate) fn is_unplugged(&self) -> bool {
        matches!(self.wire, Wire::Nowhere)
    }

    /// The client has gone, and what it has begun goes on.
    pub(crate) fn unplug(&mut self) {
        self.wire = Wire::Nowhere;
        self.unflushed = 0;
        self.output = Output::default();
        self.input = Vec::new();
        (self.input_filled, self.readable) = (0, false);
        // Whatever it waited for: it looks itself.
        (self.phase, self.runnable) = (Phase::Open, true);
    }

    /// Replies for the shard that has the client.
    pub(crate) fn answers(&mut self) -> Option<&mut Vec<u8>> {
        match &mut self.wire {
            Wire::Shard(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Takes requests that came from another shard.
    pub(crate) fn take_requests(&mut self, bytes: &[u8]) {
        self.input.truncate(self.input_filled);
        self.input.extend_from_slice(bytes);
        self.input_filled = self.input.len();
        self.runnable = true;
    }

    /// The number of its descriptor.
    pub(crate) fn descriptor(&self) -> i32 {
        match &self.wire {
            Wire::Socket(socket) => std::os::fd::AsRawFd::as_raw_fd(socket),
            Wire::Encrypted(stream) => stream.descriptor(),
            Wire::Inner(inner) => std::os::fd::AsRawFd::as_raw_fd(&inner.socket),
            Wire::Relay(relay) => relay.descriptor(),
            _ => -1,
        }
    }

    /// Bytes of replies that the client has not taken.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        self.output.unsent() + self.unflushed
    }

    /// Memory reserved for input and output.
    pub(crate) fn reserved_bytes(&self) -> (usize, usize) {
        (self.input.capacity(), self.output.reserved_bytes())
    }

    /// The pending output, for messages that others send to this client.
    pub(crate) fn pending(&mut self) -> &mut Vec<u8> {
        self.output.end()
    }

    /// Reads what is there, at most `into.len()` bytes.
    #[inline]
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Received {
        match &mut self.wire {
            Wire::Socket(socket) => receive(socket, into, &mut self.readable, self.ended),
            Wire::Encrypted(stream) => {
                receive_encrypted(stream, into, &mut self.readable, self.ended)
            }
            Wire::Inner(inner) => receive(&mut inner.socket, into, &mut self.readable, self.ended),
            Wire::Relay(relay) => receive(&mut **relay, into, &mut self.readable, self.ended),
            #[cfg(test)]
            Wire::Pipe(pipe) => receive(pipe, into, &mut self.readable, self.ended),
            _ => Received::Nothing,
        }
    }

    /// The bytes that `input` is going to have when more is read behind those that it has; `None`: they fit as it is.
    pub(crate) fn grows_to(&self) -> Option<usize> {
        const STEP: usize = 64 << 10;
        let filled = self.input_filled;
        // By a quarter, and no more than that: old and new are there at once for a moment.
        (self.input.len() < filled + STEP / 2).then_some(filled + filled / 4 + STEP)
    }

    /// Reads behind the bytes that `input` has. It grows only as bytes come, whatever length
    /// the client has announced.
    pub(crate) fn receive_more(&mut self) -> Received {
        let filled = self.input_filled;
        if let Some(bytes) = self.grows_to() {
            self.input.reserve_exact(bytes - self.input.len());
            self.input.resize(bytes, 0);
        }
        let into = &mut self.input[filled..];
        let received = match &mut self.wire {
            Wire::Socket(socket) => receive(socket, into, &mut self.readable, self.ended),
            Wire::Encrypted(stream) => {
                receive_encrypted(stream, into, &mut self.readable, self.ended)
            }
            Wire::Inner(inner) => receive(&mut inner.socket, into, &mut self.readable, self.ended),
            Wire::Relay(relay) => receive(&mut **relay, into, &mut self.readable, self.ended),
            #[cfg(test)]
            Wire::Pipe(pipe) => receive(pipe, into, &mut self.readable, self.ended),
            _ => Received::Nothing,
        };
        if let Received::Bytes(count) = received {
            self.input_filled += count;
        }
        received
    }

    /// Tells that the socket can take bytes again.
    pub(crate) fn writable(&mut self) {
        self.write_blocked = false;
    }

    /// Whether a part of its output waits for writes to be safe.
    #[inline]
    pub(crate) fn is_gated(&self) -> bool {
        self.output.is_gated()
    }

    /// What waited for writes to be safe waits no longer.
    pub(crate) fn give_up_waiting(&mut self) {
        self.output.open_gates(u64::MAX);
    }

    /// Sends what is pending and then `out` with the values `held` in it, as far as the client
    /// takes it and it tells of safe writes alone, and leaves both empty. `false`: the connection broke.
    #[inline]
    pub(crate) fn send(
        &mut self,
        out: &mut Vec<u8>,
        held: &mut Held,
        (service, relays): (&mut impl Service, &mut IoOutbox),
        now: u64,
    ) -> bool {
        let writes = service.durable_writes();
        if self.output.is_gated() && !writes.withheld {
            self.output.open_gates(writes.durable);
        }
        // What is told to other shards waits where it is handed over. What is refused while nothing becomes safe is told before it does.
        let refuses = core::mem::take(&mut self.refused) == out.len() && !writes.withheld;
        let shows_nothing = (out.is_empty() || refuses) && held.is_empty();
        let tells_here = !(self.turned_away || self.is_remote() || shows_nothing);
        if tells_here && writes.is_waited_for() {
            if self.output.is_empty() {
                self.taken = now;
            }
            self.output.add_gated(out, held, writes.last);
            return self.send_pending(service, relays, now);
        }
        if !self.output.is_empty() || !held.is_empty() || self.unflushed > 0 {
            self.output.add(out, held, 0);
            return self.send_pending(service, relays, now);
        }
        if out.is_empty() {
            return true;
        }
        self.taken = now;
        // The common case: everything goes out in one call.
        let written = match &mut self.wire {
            Wire::Socket(socket) => socket.write(out),
            Wire::Encrypted(stream) => {
                let written = stream.write(out);
                self.unflushed = stream.unflushed();
                written
            }
            Wire::Inner(inner) => inner.socket.write(out),
            Wire::Relay(relay) => relays.writer(relay).write(out),
            Wire::Shard(answers) => answers.write(out),
            Wire::Nowhere => Ok(out.len()),
            #[cfg(test)]
            Wire::Pipe(pipe) => pipe.write(out),
        };
        let count = match written {
            Ok(count) => {
                if !self.is_remote() {
                    service.sent(count);
                    self.sent_bytes += count as u64;
                }
                if count == out.len() {
                    out.clear();
                    return true;
                }
                count
            }
            Err(error) if may_retry(&error) => 0,
            Err(_) => return false,
        };
        self.output.add(out, held, count);
        self.send_pending(service, relays, now)
    }

    /// Sends what is pending, as far as the client takes it. `false`: the connection broke.
    fn send_pending(
        &mut self,
        service: &mut impl Service,
        relays: &mut IoOutbox,
        now: u64,
    ) -> bool {
        while !self.write_blocked && (self.output.may_send() || self.unflushed > 0) {
            let before = self.output.unsent();
            let written = match &mut self.wire {
                Wire::Socket(socket) => self.output.write(socket, service),
                Wire::Encrypted(stream) => {
                    // What was taken before goes first, also where nothing follows it.
                    let written = match stream.flush() {
                        Ok(()) if self.output.may_send() => self.output.write(stream, service),
                        other => other,
                    };
                    self.unflushed = stream.unflushed();
                    written
                }
                Wire::Inner(inner) => self.output.write(&mut inner.socket, service),
                Wire::Relay(relay) => self.output.write(&mut relays.writer(relay), service),
                Wire::Shard(answers) => self.output.write(answers, service),
                Wire::Nowhere => self.output.write(&mut std::io::sink(), service),
                #[cfg(test)]
                Wire::Pipe(pipe) => self.output.write(pipe, service),
            };
            match written {
                Ok(()) => {
                    self.taken = now;
                    if !self.is_remote() {
                        let count = before - self.output.unsent();
                        service.sent(count);
                        self.sent_bytes += count as u64;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.write_blocked = true,
                Err(error) if may_retry(&error) => {}
                Err(_) => return false,
            }
        }
        self.output.trim();
        true
    }

    /// Takes the values that the client will not get any more, to be released.
    pub(crate) fn take_held(&mut self) -> impl Iterator<Item = ValueRef> {
        self.output.take_held()
    }
}

/// As [`receive`]; what is decrypted and did not fit is there without news from the socket.
fn receive_encrypted(
    stream: &mut TlsStream,
    into: &mut [u8],
    readable: &mut bool,
    ended: bool,
) -> Received {
    let received = receive(stream, into, readable, ended);
    *readable |= stream.has_more();
    received
}

fn may_retry(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// One read. A read that does not fill `into` has emptied the socket: the next bytes are
/// reported anew, so no further read is needed to learn that there are none.
#[inline]
fn receive(socket: &mut impl Read, into: &mut [u8], readable: &mut bool, ended: bool) -> Received {
    loop {
        match socket.read(into) {
            Ok(0) => return Received::End,
            Ok(count) => {
                *readable = ended || count == into.len();
                return Received::Bytes(count);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                *readable = false;
                return Received::Nothing;
            }
            Err(_) => return Received::End,
        }
    }
}
