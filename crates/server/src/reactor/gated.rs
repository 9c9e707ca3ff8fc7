//! Replies that wait until the writes they may show are durable.
//!
//! While they wait, the requests that follow are executed: one sync then serves all of them. A reply may show
//! every write that was done before it, by whichever client, so it waits for the last one.
//!
//! When the store has failed, those clients are disconnected whose own writes are not durable: they learn by it that they were
//! not acknowledged. Everybody else gets the replies that have waited, which say nothing that the same request would not be
//! told now, and goes on.

use super::Reactor;
use crate::connection::{Connection, ConnectionId, Phase};
use crate::service::Service;

/// The connections whose output has gates.
#[derive(Default)]
pub(super) struct GatedReplies {
    connections: Vec<ConnectionId>,
    /// What was durable when they were looked at last.
    seen: u64,
    /// Whether everything was withheld then.
    withheld: bool,
    /// Since when everything is withheld, by the loop's clock in milliseconds.
    withheld_since: Option<u64>,
}

/// How long replies are withheld, in milliseconds: then their clients are disconnected, and ask elsewhere.
const WITHHELD_MAX: u64 = 5000;

impl GatedReplies {
    /// Keeps a connection in mind, of whose output a part waits here, or where it is handed over to another shard.
    #[inline]
    pub(super) fn note<S>(&mut self, connection: &mut Connection<S>, waits_there: bool) {
        if connection.is_gated() || waits_there {
            self.add(connection);
        }
    }

    #[cold]
    fn add<S>(&mut self, connection: &mut Connection<S>) {
        if !connection.awaits_durable {
            connection.awaits_durable = true;
            self.connections.push(connection.id);
        }
    }
}

impl<S: Service> Reactor<S> {
    /// Sends the replies whose writes have become durable, and lets those clients go on.
    #[inline]
    pub(super) fn send_durable_replies(&mut self) {
        if !self.gated_replies.connections.is_empty() {
            self.look_at_gated_replies();
        }
    }

    /// Ends the connections whose replies may not go out: what became of their requests is not known.
    #[cold]
    fn end_gated(&mut self) {
        for id in core::mem::take(&mut self.gated_replies.connections) {
            if self.connections.get_mut(id).is_some()
                && let Some(connection) = self.connections.take(id.slot)
            {
                self.end_untold(connection);
            }
        }
    }

    /// Ends a connection whose client is not to be told what waits.
    fn end_untold(&mut self, mut connection: Box<Connection<S::Session>>) {
        if connection.is_remote() {
            self.service.forget_remote_answers(&mut connection);
        }
        self.end(connection);
    }

    /// Tells a client that nobody may be answered now, and ends its connection: what it asks for is not executed. Where replies wait, or are
    /// to come from other shards, nothing may overtake them: it would be read as theirs. `false`: it is to end now.
    #[cold]
    pub(super) fn turn_away(&mut self, connection: &mut Connection<S::Session>) -> bool {
        if connection.is_gated() || self.service.is_busy(&connection.session) {
            return false;
        }
        let mut read = core::mem::take(&mut self.read);
        // What is not read would have the system reset the connection before the client has read why.
        let _unread = connection.receive(&mut read);
        self.read = read;
        self.out.extend_from_slice(&self.service.no_owner(&connection.session));
        connection.turned_away = true;
        connection.phase = Phase::Closing;
        self.send(connection) && connection.unsent() > 0
    }

    fn look_at_gated_replies(&mut self) {
        let writes = self.service.durable_writes();
        let now = self.time.uptime;
        let since = writes.withheld.then(|| self.gated_replies.withheld_since.unwrap_or(now));
        self.gated_replies.withheld_since = since;
        if since.is_some_and(|since| now.saturating_sub(since) >= WITHHELD_MAX) {
            return self.end_gated();
        }
        let released = core::mem::replace(&mut self.gated_replies.withheld, writes.withheld);
        if writes.withheld
            || (writes.durable == self.gated_replies.seen && !writes.failed && !released)
        {
            return;
        }
        self.gated_replies.seen = writes.durable;
        for id in core::mem::take(&mut self.gated_replies.connections) {
            let waits = self.connections.get_mut(id);
            if writes.failed
                && waits.is_some_and(|connection| connection.wrote > writes.durable)
                && let Some(connection) = self.connections.take(id.slot)
            {
                self.end_untold(connection);
                continue;
            }
            self.give_turn(id.slot, Some(id.number), |connection| {
                connection.awaits_durable = false;
                if writes.failed {
                    connection.give_up_waiting();
                }
            });
        }
    }
}
