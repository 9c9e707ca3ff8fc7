//! Replies that wait until the writes they may tell of are safe.
//!
//! While they wait, the requests that follow are executed: one sync then serves all of them. A reply may tell of
//! every write that was done before it, by whichever client, so it waits for the last one.

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
            self.give_turn(id.slot, Some(id.number), |connection| {
                connection.waits_for_safety = false;
            });
            // Nobody may learn of a write that failed; whoever waits for such a reply learns that much.
            if safety.failed
                && self.connections.get_mut(id).is_some_and(|connection| connection.is_gated())
                && let Some(connection) = self.connections.take(id.slot)
            {
                self.end(connection);
            }
        }
    }
}
