//! What a shard has said to others, in numbers.

use crate::message::{Item, Message};
use alloc::vec::Vec;
use headwater_base::source::{Change, Pair};

/// What a shard has sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Messages.
    pub packets: u64,
    /// Loads that were asked for.
    pub loads: u64,
    /// Changes of keys, one for each follower.
    pub changes: u64,
    /// Bytes of the keys and values in changes and in answers to loads.
    pub bytes: u64,
}

impl Sent {
    pub(crate) fn count(&mut self, message: &Message) {
        self.packets += 1;
        match message {
            Message::Load { .. } => self.loads += 1,
            Message::Changes { items, .. } => {
                for item in items {
                    if let Item::Change(Change { key, value }) = item {
                        self.changes += 1;
                        self.bytes += (key.len() + value.as_ref().map_or(0, Vec::len)) as u64;
                    }
                }
            }
            Message::Resumed { changes: Some(changes), .. } => {
                let bytes = |change: &Change| {
                    (change.key.len() + change.value.as_ref().map_or(0, Vec::len)) as u64
                };
                self.bytes += changes.iter().map(bytes).sum::<u64>();
            }
            Message::Loaded { answer: Ok(pairs), .. } => {
                let bytes = |pair: &Pair| (pair.key.len() + pair.value.len()) as u64;
                self.bytes += pairs.iter().map(bytes).sum::<u64>();
            }
            _ => {}
        }
    }
}
