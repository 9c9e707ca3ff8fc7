//! Listening, and clients that come.

use super::Reactor;
use crate::arrival::Arrival;
use crate::connection::Connection;
use crate::log::event;
use crate::memory::CLIENT_BYTES;
use crate::service::Service;
use crate::tls::ClientStream;
use crate::wire_protocol::WireProtocol;
use mio::net::TcpListener;
use mio::{Interest, Token};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::Duration;

/// Connections accepted in one turn.
const ACCEPTS: usize = 256;
/// A client that takes more than so many bytes makes way for a new one.
const LARGE_CLIENT: usize = 16 * CLIENT_BYTES;

impl<S: Service> Reactor<S> {
    /// Accepts what has come, on all listeners.
    pub(super) fn accept(&mut self) {
        self.accepting = false;
        for at in 0..self.listeners.len() {
            for taken in 0.. {
                if taken == ACCEPTS {
                    self.accepting = true;
                    break;
                }
                let (listener, door) = &self.listeners[at];
                match listener.accept() {
                    Ok((socket, peer)) => {
                        let arrival = Arrival::new(ClientStream::Bare(socket), peer, *door);
                        if let Some(arrival) = self.service.hand_on(arrival) {
                            self.admit(arrival);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        event!(warn, "clients", "accept_failed", error = %error.kind(), "no client can be accepted");
                        // No descriptor is free: try again in the next turn, which comes
                        // after a wait.
                        self.accepting = true;
                        break;
                    }
                }
            }
        }
    }

    /// Serves a client from now on, or refuses it.
    pub(super) fn admit(&mut self, arrival: Arrival) {
        let is_handed = arrival.is_handed;
        self.take_or_refuse(arrival);
        self.service.clients_changed(self.connections.open(), is_handed);
    }

    fn take_or_refuse(&mut self, arrival: Arrival) {
        let Arrival { mut stream, peer, door, number, .. } = arrival;
        if let Some(text) = self.service.turns_away(peer, door) {
            stream.refuse(text);
            return;
        }
        // One that takes far more than others makes way for who has asked for nothing yet.
        self.end_largest_beyond(CLIENT_BYTES, LARGE_CLIENT);
        let bytes = self.connections.bytes().saturating_add(CLIENT_BYTES);
        if self.service.clients(self.connections.open()) >= self.service.clients_max_for(peer)
            || bytes > self.service.clients_bytes_max()
        {
            event!(warn, "clients", "client_refused", %peer, "a client was refused: there are clients-max of them, or they take clients-bytes-max");
            stream.refuse(self.service.refusal(door));
            return;
        }
        let socket = stream.tcp();
        let local = socket.and_then(|it| it.local_addr().ok()).unwrap_or(peer);
        if let Some(socket) = socket {
            let _ = socket.set_nodelay(true);
            if self.tcp_keepalive_seconds > 0 {
                use rustix::net::sockopt;
                let idle = Duration::from_secs(self.tcp_keepalive_seconds.into());
                let _ = sockopt::set_socket_keepalive(socket, true);
                let _ = sockopt::set_tcp_keepidle(socket, idle);
            }
        }
        let id = self.connections.next_id();
        let thread = match &stream {
            // Its other end is within the process, and no packets are made of it.
            ClientStream::Inner(_) => None,
            _ => self.io.choose(self.connections.open() - 1),
        };
        if thread.is_none() {
            let token = Token(self.first_connection() + id.slot);
            let both = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(stream.source(), token, both).is_err() {
                self.connections.ended(id, false);
                return;
            }
        }
        let mut session = self.service.opened(id, door);
        if let Some(name) = stream.certificate() {
            self.service.identified(&mut session, name, peer);
        }
        let (now, addresses) = (self.time.uptime, (peer, local));
        let mut connection = Box::new(match thread {
            None => Connection::new(id, stream, addresses, session, now),
            Some(thread) => {
                let relay = self.io.hand_on(thread, id, stream);
                Connection::relayed(id, relay, addresses, session, now)
            }
        });
        self.connections.count(&mut connection, 0);
        if connection.is_encrypted() && thread.is_none() {
            // What came with the end of the handshake is here, and no news of it will come.
            connection.readable = true;
            connection.queued = true;
            self.queue.push(id);
        }
        let is_stranger = S::is_stranger(&connection.session);
        self.connections.put(connection);
        if is_stranger {
            // One that another shard has accepted may come here after younger ones.
            let at = self.strangers.partition_point(|(other, _)| *other < number);
            self.strangers.insert(at, (number, id));
            self.end_oldest_strangers();
        }
    }
}

/// The same sockets for another thread: there is one queue of those who connect, and whichever thread has time takes the next.
pub(super) fn again(
    listeners: &[(TcpListener, WireProtocol)],
) -> io::Result<Vec<(TcpListener, WireProtocol)>> {
    let again = |(listener, door): &(TcpListener, WireProtocol)| {
        let descriptor = listener.as_fd().try_clone_to_owned()?;
        Ok((TcpListener::from_std(std::net::TcpListener::from(descriptor)), *door))
    };
    listeners.iter().map(again).collect()
}
