//! Packets under way.

use crate::faults::Faults;
use headwater_base::Shard;
use headwater_cluster::Message;
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
    /// Sends a packet, which may be struck by a fault.
    pub(crate) fn send(
        &mut self,
        rng: &mut Rng,
        faults: &Faults,
        now: u64,
        (from, to): (Shard, Shard),
        mut packet: Packet,
    ) {
        if let Message::Changes { items, .. } = &mut packet.message
            && faults.cut > rng.below(1000)
        {
            items.pop();
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
