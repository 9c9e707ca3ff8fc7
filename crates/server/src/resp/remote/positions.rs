//! Requests that wait until what is here shows what was done at other shards.

use crate::connections::Connections;
use crate::resp::parts::OtherShards;
use crate::resp::session::Session;
use crate::resp::{ShardService, Turn};
use crate::shards::{Awaiting, POSITIONS_WAIT_MAX};
use headwater_base::ShardRefusal;
use headwater_engine::EngineError;
use headwater_node::{Positions, WaitId};

impl ShardService {
    /// Lets a session wait until what is here shows what it has seen, or done, elsewhere, and what its request names. `None`: it
    /// does.
    pub(crate) fn await_positions(
        &mut self,
        named: Option<&Positions>,
        work: &mut Turn<'_>,
    ) -> Option<WaitId> {
        let shards = self.others.shards.as_mut()?;
        let session = &mut work.connection.session;
        let both = named.map(|named| {
            let mut both = session.positions.clone();
            both.merge(named);
            both
        });
        let after = both.as_ref().unwrap_or(&session.positions);
        let Some(wait) = shards.peers.wait(self.node.engine(), after) else {
            session.awaiting = None;
            return None;
        };
        let begun = Awaiting { since: self.time.uptime, asked: 0 };
        let awaiting = session.awaiting.get_or_insert(begun);
        awaiting.asked = awaiting.asked.saturating_add(1);
        // Where that has gone on for too long, the wait is ended before the next turn.
        shards.waits.insert(wait, work.connection.id, Some(*awaiting));
        Some(wait)
    }

    /// What this shard has said to others about data.
    #[cfg(test)]
    pub(crate) fn packets_sent(&self) -> u64 {
        self.others.shards.as_ref().map_or(0, |shards| shards.peers.sent().packets)
    }

    /// Has requests fail that have waited for too long.
    pub(in crate::resp) fn end_overdue_waits(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.others.shards else { return };
        while let Some((wait, id)) = shards.waits.take_overdue(self.time.uptime) {
            let silent = shards.peers.awaited(wait);
            shards.peers.forget(wait);
            let now = self.time.uptime;
            let is_late = |it: &Awaiting| it.since + POSITIONS_WAIT_MAX <= now;
            let Some(connection) = connections.get_mut(id) else { continue };
            // It may have gone on by itself, and wait for something else.
            if !connection.session.awaiting.as_ref().is_some_and(is_late) {
                continue;
            }
            connection.session.awaiting = None;
            let executes = self.waits.exclusive == Some(id);
            self.waits.queue_was_late |= executes;
            let shards: Vec<String> = silent.iter().map(|shard| shard.0.to_string()).collect();
            let what = if executes { "of this command " } else { "" };
            let text = format!(
                "what this request is to show of shard {} has not come within {POSITIONS_WAIT_MAX} ms: nothing {what}was executed",
                shards.join(", "),
            );
            let refusal = ShardRefusal { code: String::from("TRYAGAIN"), text };
            self.waits.failures.insert(id, EngineError::OfHome(refusal));
            connections.wake(id);
        }
    }
}

impl OtherShards {
    /// Wakes the sessions whose writes elsewhere are shown here now, or whose homes are to be asked again.
    pub(in crate::resp) fn wake_settled(
        &mut self,
        now: u64,
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &mut self.shards else { return };
        for wait in shards.peers.take_settled() {
            if let Some(id) = shards.waits.settled(wait, now) {
                connections.wake(id);
            }
        }
        while let Some(id) = shards.waits.take_due(now) {
            connections.wake(id);
        }
    }
}
