//! A home and a follower, and what goes from one to the other.

use headwater_base::Shard;
use headwater_cluster::{Event, Hub};

pub(crate) const HOME: Shard = Shard(0);
pub(crate) const FOLLOWER: Shard = Shard(1);

/// Brings everything that `from` has to say to `to`, which does not look at it yet.
pub(crate) fn bring((from, me): (&mut Hub, Shard), to: &mut Hub) {
    from.take_packets().into_iter().for_each(|(_, packet)| to.receive(me, packet));
}

/// Has the other side hear what one has to say; what it is told.
pub(crate) fn tell(from: (&mut Hub, Shard), to: &mut Hub) -> Vec<Event> {
    bring(from, to);
    to.take_events()
}
