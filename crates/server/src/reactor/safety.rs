//! Replies that wait until the writes they may tell of are safe.
//!
//! While they wait, the requests that follow are executed: one sync then serves all of them. A reply may tell of
//! every write that was done before it, by whichever client, so it waits for the last one.
//!
//! When the store has failed, those clients are disconnected whose own writes are not safe: they learn by it that they were
//! not acknowledged. Everybody else gets the replies that have waited, which say nothing that the same request would not be
//! told now, and goes on.

use super::Reactor;
use crate::connection::{Connection, ConnectionId};
use crate::service::Service;

/// The connections whose output has gates.
#[derive(Default)]
pub(super) struct UnsafeReplies {
    connections: Vec<ConnectionId>,
    /// What was safe when they were looked at last.
    seen: u64,
}

impl UnsafeReplies {
    #[cold]
    pub(super) fn add<S>(&mut self, connection: &mut Connection<S>) {
        if !connection.waits_for_safety {
            connection.waits_for_safety = true;
            self.connections.push(connection.id);
        }
    }
}

impl<S: Service> Reactor<S> {
    /// Sends the replies whose writes have become safe, and lets those clients go on.
    #[inline]
    pub(super) fn send_safe_replies(&mut self) {
        if !self.unsafe_replies.connections.is_empty() {
            self.look_at_unsafe_replies();
        }
    }

    fn look_at_unsafe_replies(&mut self) {
        let safety = self.service.safety();
        if safety.safe == self.unsafe_replies.seen && !safety.failed {
            return;
        }
        self.unsafe_replies.seen = safety.safe;
        for id in core::mem::take(&mut self.unsafe_replies.connections) {
            let waits = self.connections.get_mut(id);
            if safety.failed
                && waits.is_some_and(|connection| connection.wrote > safety.safe)
                && let Some(connection) = self.connections.take(id.slot)
            {
                self.end(connection);
                continue;
            }
            self.give_turn(id.slot, Some(id.number), |connection| {
                connection.waits_for_safety = false;
                if safety.failed {
                    connection.give_up_waiting();
                }
            });
        }
    }
}
