//! Listening, and clients that come.

use super::Reactor;
use crate::connection::Connection;
use crate::log::event;
use crate::memory::CLIENT_BYTES;
use crate::service::{Service, WireProtocol};
use crate::tls::ClientStream;
use mio::net::TcpListener;
use mio::{Interest, Token};
use rustix::net::{AddressFamily, SocketFlags};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

/// Connections accepted in one turn.
const ACCEPTS: usize = 256;
/// Connections that may wait to be accepted at one socket.
const LISTEN_BACKLOG: i32 = 1024;
/// A client that takes more than so many bytes makes way for a new one.
const LARGE_CLIENT: usize = 16 * CLIENT_BYTES;
const SOCKET_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

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
                let door = *door;
                match listener.accept() {
                    Ok((socket, peer)) => {
                        let stream = ClientStream::Bare(socket);
                        if let Some(stream) = self.service.hand_on(stream, peer, door) {
                            self.admit(stream, peer, door);
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

    pub(super) fn admit(&mut self, mut stream: ClientStream, peer: SocketAddr, door: WireProtocol) {
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
        let socket = stream.socket();
        let _ = socket.set_nodelay(true);
        if self.tcp_keepalive_seconds > 0 {
            use rustix::net::sockopt;
            let idle = Duration::from_secs(self.tcp_keepalive_seconds.into());
            let _ = sockopt::set_socket_keepalive(&*socket, true);
            let _ = sockopt::set_tcp_keepidle(&*socket, idle);
        }
        let local = socket.local_addr().unwrap_or(peer);
        let id = self.connections.next_id();
        let token = Token(self.first_connection() + id.slot);
        let both = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(socket, token, both).is_err() {
            self.connections.ended(id, false);
            return;
        }
        let mut session = self.service.opened(id, door);
        if let Some(name) = stream.certificate() {
            self.service.identified(&mut session, name, peer);
        }
        let now = self.time.uptime;
        let mut connection = Box::new(Connection::new(id, stream, (peer, local), session, now));
        self.connections.count(&mut connection, 0);
        if connection.is_encrypted() {
            // What came with the end of the handshake is here, and no news of it will come.
            connection.readable = true;
            connection.queued = true;
            self.queue.push(id);
        }
        let is_stranger = S::is_stranger(&connection.session);
        self.connections.put(connection);
        if is_stranger {
            self.strangers.push_back(id);
            self.end_oldest_strangers();
        }
    }
}

/// Whether nobody listens at an address: sockets that are shared could be so with another process, which would get some of the
/// clients.
pub(super) fn check_free(address: SocketAddr) -> io::Result<()> {
    use rustix::net::{self, SocketType, sockopt};
    let socket = net::socket_with(family_of(address), SocketType::STREAM, SOCKET_FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(net::bind(&socket, &address)?)
}

fn family_of(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A socket that listens; several may be `shared`, one of each thread, between which the system shares
/// out who connects.
pub(super) fn listen(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    use rustix::net::{self, SocketType, sockopt};
    if !shared {
        return TcpListener::bind(address);
    }
    let socket = net::socket_with(family_of(address), SocketType::STREAM, SOCKET_FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(TcpListener::from_std(std::net::TcpListener::from(socket)))
}
