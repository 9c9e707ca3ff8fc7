//! The loop without sockets and clocks: somebody else says when it has its turns, what time it is, and what clients have sent.

use super::{News, Reactor};
use crate::connection::{Connection, ConnectionId};
use crate::service::{Door, Service, Time};
use crate::simulated::ServerEnd;
use std::net::SocketAddr;

impl<S: Service> Reactor<S> {
    /// Has a turn at this time, with news of these clients.
    pub(crate) fn simulate_turn(&mut self, time: Time, clients: &[(ConnectionId, bool)]) {
        self.time = time;
        self.service.turn(time, self.connections.bytes());
        self.begin_turn();
        for &(id, ended) in clients {
            if self.connections.get(id).is_some() {
                self.hear_of(id.slot, News { readable: true, ended, writable: true });
            }
        }
        self.go_on();
        self.end_turn();
    }

    /// Takes a client in.
    pub(crate) fn simulate_client(&mut self, pipe: ServerEnd, peer: SocketAddr) -> ConnectionId {
        let id = self.connections.next_id();
        let session = self.service.opened(id, Door::Resp);
        let mut connection =
            Box::new(Connection::within(id, pipe, peer, session, self.time.uptime));
        self.connections.count(&mut connection, 0);
        self.connections.put(connection);
        id
    }

    /// Whether clients may come.
    pub(crate) fn is_open(&self) -> bool {
        self.service.may_accept()
    }

    /// Whether something goes on without anybody's doing.
    pub(crate) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.connections.any_dirty()
    }
}
