//! The loop without sockets and clocks: somebody else says when it has its turns, what time it is, and what clients have sent.

use super::Reactor;
use crate::connection::{Connection, ConnectionId};
use crate::resp::ShardService;
use crate::service::SocketNews;
use crate::service::{Service, Time};
use crate::simulated::ServerEnd;
use crate::wire_protocol::WireProtocol;
use std::net::SocketAddr;

impl<S: Service> Reactor<S> {
    /// Has a turn at this time, with news of these clients.
    pub(crate) fn simulate_turn(&mut self, time: Time, clients: &[(ConnectionId, bool)]) {
        self.simulate_beginning(time, clients);
        self.simulate_rest();
    }

    /// Has the rest of a turn.
    fn simulate_rest(&mut self) {
        self.go_on();
        self.end_turn();
    }

    /// Has a turn as far as what clients have sent.
    fn simulate_beginning(&mut self, time: Time, clients: &[(ConnectionId, bool)]) {
        self.time = time;
        self.service.turn(time, self.connections.bytes());
        self.begin_turn();
        for &(id, ended) in clients {
            if self.connections.get(id).is_some() {
                self.hear_of(
                    id.slot,
                    SocketNews { readable: true, ended, writable: true, ..SocketNews::default() },
                );
            }
        }
    }

    /// Takes a client in.
    pub(crate) fn simulate_client(&mut self, pipe: ServerEnd, peer: SocketAddr) -> ConnectionId {
        self.simulate_client_of(WireProtocol::Resp, pipe, peer)
    }

    /// The same, of a client that speaks this.
    pub(crate) fn simulate_client_of(
        &mut self,
        protocol: WireProtocol,
        pipe: ServerEnd,
        peer: SocketAddr,
    ) -> ConnectionId {
        let id = self.connections.next_id();
        let session = self.service.opened(id, protocol);
        let mut connection =
            Box::new(Connection::within(id, pipe, peer, session, self.time.uptime));
        self.connections.count(&mut connection, 0);
        self.connections.put(connection);
        id
    }

    /// Its end begins: what is under way comes to its end, and nothing new is executed.
    pub(crate) fn simulate_coming_to_rest(&mut self) {
        self.rests = true;
        self.service.begins_to_rest();
    }

    /// Whether something is under way, or may be asked by others.
    pub(crate) fn simulate_is_underway(&self) -> bool {
        self.is_underway(false) || self.service.may_be_asked()
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

impl Reactor<ShardService> {
    /// Has a turn that ends where this shard waits for all others to move a partition: the message that asks for it is the last that is there.
    pub(crate) fn simulate_call(&mut self, time: Time, clients: &[(ConnectionId, bool)]) {
        self.simulate_beginning(time, clients);
        self.service.take_messages(&mut self.connections);
    }

    /// Does its part in a phase of a move, which all begin when all have ended the one before; whether there is another one.
    pub(crate) fn simulate_move_phase(&mut self) -> bool {
        let mut part = self.service.others.move_part.take().expect("it moves a partition");
        let goes_on = self.service.take_move_phase(&mut part);
        self.service.others.move_part = Some(part);
        goes_on
    }

    /// Leaves the barrier, and has the rest of its turn.
    pub(crate) fn simulate_end_of_move(&mut self) {
        let part = self.service.others.move_part.take().expect("it moves a partition");
        self.service.leave_barrier(part, &mut self.connections);
        self.simulate_rest();
    }
}
