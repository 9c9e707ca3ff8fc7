//! Keyspace events: what is done to keys, told on channels as Redis tells it.
//!
//! The engine of a key's home lists what is done to it; between turns its shard publishes that, to its own listeners and to those
//! of other shards. So whoever listens is told of one key's events in their order, and may be told before or after the answer to
//! the command.
//!
//! # Cost
//! Where nobody asks for events, a write looks at one flag. Else each event is published once or twice.

use super::{Session, ShardService};
use crate::connections::Connections;
use headwater_config::EventChannels;

/// There is one database.
const DATABASE: &str = "0";

impl ShardService {
    /// Lists what is done to keys as the settings say.
    pub(super) fn apply_keyspace_events(&mut self) {
        let channels = self.settings.lowered.observe.notify_keyspace_events.parse();
        self.pushes.event_channels = channels.unwrap_or_default();
        self.node.engine_mut().set_keyspace_events(self.pushes.event_channels.kinds());
    }

    /// Between turns: publishes what was done to keys.
    pub(super) fn tell_keyspace_events(&mut self, connections: &mut Connections<Session>) {
        if !self.node.engine().has_keyspace_events() {
            return;
        }
        let EventChannels { by_key, by_event, .. } = self.pushes.event_channels;
        let is_heard = self.pushes.channels.counts() != (0, 0);
        for event in self.node.engine_mut().take_keyspace_events() {
            if !is_heard {
                continue;
            }
            let (word, key) = (event.word.as_bytes(), &*event.key);
            if by_key {
                let channel = [b"__keyspace@", DATABASE.as_bytes(), b"__:", key].concat();
                self.publish_from_flow(&channel, word, connections);
                self.others.publish_elsewhere(&channel, word);
            }
            if by_event {
                let channel = [b"__keyevent@", DATABASE.as_bytes(), b"__:", word].concat();
                self.publish_from_flow(&channel, key, connections);
                self.others.publish_elsewhere(&channel, key);
            }
        }
    }
}
