//! Packets under way.

use crate::faults::{Cut, Faults};
use headwater_base::Shard;
use headwater_cluster::{Item, Message};
use headwater_model::rng::Rng;
use headwater_node::Packet;
use std::collections::BTreeMap;

/// The longest that a packet is under way, in milliseconds.
const LATEST: usize = 20;

/// Packets by the moment of their arrival.
#[derive(Default)]
pub(crate) struct Network {
    under_way: BTreeMap<(u64, u64), (Shard, Shard, Packet)>,
    /// When the last packet of a link arrives.
    last: BTreeMap<(Shard, Shard), u64>,
    sent: u64,
}

impl Network {
    /// What of interest a packet says.
    pub(crate) fn is_about(packet: &Packet) -> Option<&'static str> {
        match &packet.message {
            Message::Loaded { answer: Ok(pairs), .. } if !pairs.is_empty() => {
                Some("keys loaded from shards")
            }
            Message::Changes { items, .. } => {
                let is_reset = |item: &Item| matches!(item, Item::Reset(_));
                Some(if items.iter().any(is_reset) { "resets told" } else { "changes told" })
            }
            Message::Unfollow { .. } => Some("ranges unfollowed"),
            Message::Resumed { changes: None, .. } => Some("ranges not resumed"),
            Message::Resumed { changes: Some(changes), .. } if changes.is_empty() => {
                Some("ranges resumed as they were")
            }
            Message::Resumed { .. } => Some("ranges resumed with changes"),
            _ => None,
        }
    }

    /// Sends a packet, which may be struck by a fault.
    pub(crate) fn send(
        &mut self,
        rng: &mut Rng,
        faults: &Faults,
        now: u64,
        (from, to): (Shard, Shard),
        mut packet: Packet,
    ) {
        if let Some(cut) = faults.cut
            && rng.chance(40)
        {
            leave_out(cut, &mut packet.message);
        }
        if rng.below(1000) < faults.lost {
            return;
        }
        if rng.below(1000) < faults.twice {
            self.put(rng, faults, now, (from, to), packet.clone());
        }
        self.put(rng, faults, now, (from, to), packet);
    }

    fn put(
        &mut self,
        rng: &mut Rng,
        faults: &Faults,
        now: u64,
        (from, to): (Shard, Shard),
        packet: Packet,
    ) {
        let mut at = now + 1 + rng.below(LATEST) as u64;
        let last = self.last.entry((from, to)).or_default();
        if rng.below(1000) >= faults.early {
            at = at.max(*last);
            *last = at;
        }
        self.sent += 1;
        self.under_way.insert((at, self.sent), (from, to, packet));
    }

    /// The next packet that has arrived by `now`, unless its receiver is stopped.
    pub(crate) fn arrived(
        &mut self,
        now: u64,
        stopped: impl Fn(Shard) -> bool,
    ) -> Option<(Shard, Shard, Packet)> {
        let due = self.under_way.range(..=(now, u64::MAX));
        let key = due.filter(|(_, (_, to, _))| !stopped(*to)).map(|(&key, _)| key).next()?;
        self.under_way.remove(&key)
    }

    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }
}

/// Has a message not say what it was to say.
fn leave_out(what: Cut, message: &mut Message) {
    match (what, message) {
        (Cut::Changes, Message::Changes { items, .. }) => {
            items.pop_if(|item| matches!(item, Item::Change(_)));
        }
        (Cut::Resets, Message::Changes { items, .. }) => {
            items.retain(|item| matches!(item, Item::Change(_)));
        }
        (Cut::Unfollows, message @ Message::Unfollow { .. }) => *message = Message::Pong,
        (Cut::Resumed, Message::Resumed { changes: Some(changes), .. }) => drop(changes.pop()),
        (Cut::Pairs, Message::Loaded { answer: Ok(pairs), .. }) => drop(pairs.pop()),
        (
            Cut::Positions,
            Message::Loaded { position, .. }
            | Message::Resumed { position, .. }
            | Message::Changes { position, .. }
            | Message::Synced { position, .. },
        ) => position.0 += 100,
        _ => {}
    }
}
