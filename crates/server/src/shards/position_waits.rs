//! Sessions that wait until what is here shows what was done at other shards.
//!
//! The homes are asked where they stand. One that has not come as far as the session wants to see says so at once, and is asked again, after
//! a pause that grows: no client has been given a position that its shard has not come to, but it may name one.

use crate::connection::ConnectionId;
use headwater_node::WaitId;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// How long a request waits for that, in milliseconds.
pub(crate) const POSITIONS_WAIT_MAX: u64 = 10_000;
/// No pause is longer, in milliseconds.
const PAUSE_MAX: u64 = 100;

/// How long a request has waited, and how often it was asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Awaiting {
    /// Since when, in milliseconds of the server's life.
    pub(crate) since: u64,
    /// How often the homes have been asked.
    pub(crate) asked: u32,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    session: ConnectionId,
    deadline: Option<u64>,
    asked: u32,
}

/// Sessions that wait.
#[derive(Debug, Default)]
pub(crate) struct PositionWaits {
    waiters: HashMap<WaitId, Waiter>,
    /// Those with a deadline, by that.
    deadlines: BTreeSet<(u64, WaitId)>,
    /// Sessions whose homes are asked again at a moment, in order.
    later: VecDeque<(u64, ConnectionId)>,
}

impl PositionWaits {
    /// A session waits: for so long at most as goes with what it awaits; without that, its own deadline ends the wait.
    pub(crate) fn insert(
        &mut self,
        wait: WaitId,
        session: ConnectionId,
        awaiting: Option<Awaiting>,
    ) {
        let deadline = awaiting.map(|awaiting| awaiting.since + POSITIONS_WAIT_MAX);
        let asked = awaiting.map_or(1, |awaiting| awaiting.asked);
        self.deadlines.extend(deadline.map(|at| (at, wait)));
        self.waiters.insert(wait, Waiter { session, deadline, asked });
    }

    /// A wait is over; whose it was.
    pub(crate) fn remove(&mut self, wait: WaitId) -> Option<ConnectionId> {
        let waiter = self.waiters.remove(&wait)?;
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, wait));
        }
        Some(waiter.session)
    }

    /// The homes have told where they stand: who goes on now. Whoever has asked several times goes on after a pause.
    pub(crate) fn settled(&mut self, wait: WaitId, now: u64) -> Option<ConnectionId> {
        let asked = self.waiters.get(&wait)?.asked;
        let session = self.remove(wait)?;
        if asked <= 2 {
            return Some(session);
        }
        let at = now + u64::from(asked).min(PAUSE_MAX);
        let place = self.later.partition_point(|(other, _)| *other <= at);
        self.later.insert(place, (at, session));
        None
    }

    /// The next session whose pause is over.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<ConnectionId> {
        self.later.front().filter(|(at, _)| *at <= now)?;
        self.later.pop_front().map(|(_, session)| session)
    }

    /// The next wait that has lasted for too long, which is over by that, and whose it was.
    pub(crate) fn take_overdue(&mut self, now: u64) -> Option<(WaitId, ConnectionId)> {
        let (_, wait) = *self.deadlines.first().filter(|(at, _)| *at <= now)?;
        Some((wait, self.remove(wait)?))
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Option<u64> {
        let overdue = self.deadlines.first().map(|(at, _)| *at);
        let later = self.later.front().map(|(at, _)| *at);
        overdue.into_iter().chain(later).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64) -> ConnectionId {
        ConnectionId { slot: 1, number }
    }

    #[test]
    fn who_asks_again_and_again_pauses_and_comes_to_an_end() {
        let mut waits = PositionWaits::default();
        let awaiting = |asked| Some(Awaiting { since: 1000, asked });
        waits.insert(WaitId(1), session(1), awaiting(1));
        assert_eq!(waits.next(), Some(11_000));
        assert_eq!(waits.settled(WaitId(1), 1001), Some(session(1)));
        assert_eq!((waits.settled(WaitId(1), 1001), waits.next()), (None, None));
        waits.insert(WaitId(2), session(1), awaiting(7));
        waits.insert(WaitId(3), session(2), awaiting(900));
        assert_eq!(waits.settled(WaitId(3), 1002), None);
        assert_eq!(waits.settled(WaitId(2), 1003), None);
        assert_eq!((waits.next(), waits.take_due(1009)), (Some(1010), None));
        assert_eq!(waits.take_due(1010), Some(session(1)));
        assert_eq!((waits.take_due(1101), waits.take_due(1102)), (None, Some(session(2))));
        // One without a deadline stays.
        waits.insert(WaitId(4), session(3), None);
        waits.insert(WaitId(5), session(4), awaiting(8));
        assert_eq!(waits.take_overdue(10_999), None);
        assert_eq!(waits.take_overdue(11_000), Some((WaitId(5), session(4))));
        assert_eq!((waits.take_overdue(u64::MAX), waits.next()), (None, None));
        assert_eq!(waits.remove(WaitId(4)), Some(session(3)));
    }
}
