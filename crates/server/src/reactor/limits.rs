//! Clients that are ended: they have hung up, are idle, take no replies, or take too much memory.

use super::Reactor;
use crate::connection::{Connection, Phase};
use crate::log::event;
use crate::service::Service;

impl<S: Service> Reactor<S> {
    /// The client sends no more: it may still take what is pending.
    pub(super) fn linger(&mut self, connection: &mut Connection<S::Session>) -> bool {
        connection.phase = Phase::Closing;
        let expects = self.service.expects(&connection.session);
        if expects {
            self.service.hung_up(connection);
        }
        expects || connection.unsent() > 0
    }

    /// Ends the connections that take most, of those that take more than `least` bytes, until all together take what they may
    /// with so many `bytes` more.
    ///
    /// Where those that may not be ended (within a transaction over several shards, or by `CLIENT NO-EVICT`) take too much by themselves, to end
    /// all others would not help: they are spared where they take no more than half of what all may.
    #[cold]
    pub(super) fn end_largest_beyond(&mut self, bytes: usize, least: usize) {
        loop {
            let most = self.service.clients_bytes_max();
            let all = self.connections.bytes().saturating_add(bytes);
            if all <= most {
                return;
            }
            let others = self.connections.bytes_of_those(S::may_end);
            if others <= most / 2 && all - others > most {
                return;
            }
            let Some(slot) = self.connections.largest(S::may_end) else { return };
            let Some(mut connection) = self.connections.take(slot) else { return };
            if connection.counted_bytes < least {
                self.connections.put(connection);
                return;
            }
            self.service.evicted_client();
            connection.phase = Phase::Killed;
            let (peer, bytes) = (&connection.peer, connection.counted_bytes);
            event!(warn, "clients", "client_evicted", %peer, bytes, "a client was ended: all together take too much memory");
            self.end(connection);
        }
    }

    /// Ends the clients that have been here longest without logging in, where there are too many: who only connects keeps nobody
    /// else out.
    pub(super) fn end_oldest_strangers(&mut self) {
        let most = self.service.strangers_max();
        if self.strangers.len() <= most {
            return;
        }
        let connections = &self.connections;
        self.strangers
            .retain(|(_, id)| connections.get(*id).is_some_and(|it| S::is_stranger(&it.session)));
        while self.strangers.len() > most
            && let Some((_, oldest)) = self.strangers.pop_front()
            && let Some(connection) = self.connections.take(oldest.slot)
        {
            let peer = &connection.peer;
            event!(warn, "clients", "strangers_max", %peer, most, "a client was ended: too many have not logged in");
            self.end(connection);
        }
    }

    /// Ends connections that are idle or stuck for too long.
    pub(super) fn check_all(&mut self) {
        self.checked = self.time.uptime;
        let now = self.time.uptime;
        let stuck_max = self.service.bounds().output_stuck_max;
        let late: Vec<usize> = self
            .connections
            .iter()
            .filter(|connection| {
                let stuck = connection.unsent() > 0 && stuck_max > 0;
                let (stuck, idle) = (
                    stuck && now > connection.taken + stuck_max,
                    self.service.is_idle(connection, now),
                );
                let peer = &connection.peer;
                if stuck {
                    event!(info, "clients", "client_stuck", %peer, "a client takes no replies: it was ended");
                } else if idle {
                    event!(debug, "clients", "client_idle", %peer, "a client was silent for too long: it was ended");
                }
                let late = self.service.is_late(connection, now);
                if late {
                    event!(info, "clients", "login_late", %peer, "a client did not log in in time: it was ended");
                }
                stuck || idle || late
            })
            .map(|connection| connection.id.slot)
            .collect();
        for slot in late {
            if let Some(mut connection) = self.connections.take(slot) {
                connection.phase = Phase::Killed;
                self.end(connection);
            }
        }
    }
}
