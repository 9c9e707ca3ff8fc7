//! Times at which all shards hold: one leads, and what it does then is one step for everybody.
//!
//! A shard whose clients want a partition moved waits for its turn, and then asks all to hold: new requests of clients
//! wait, and what other shards execute for them is done. When all hold, no request is on its way
//! between shards. Then the partition moves ([`super::moves`]), and all are released.
//!
//! # Invariants
//! - N1. While a shard holds, its clients' requests wait in `held`; what other shards ask goes on.
//! - N2. A shard says that it holds once, when nothing that it has asked of others can be executed later: all is
//!   answered, but for reads that wait at the end of a stream, which does not move and is not read before the release.
//!   No transaction is under way at it.
//! - N3. Between two times at which it holds, those that it has held have a turn.
//!
//! # Cost
//! Nothing where nobody wants it, but for a look at a flag in each turn. Each shard writes three letters and looks at
//! all of its connections.

use crate::connection::Connection;
use crate::connections::Connections;
use crate::resp::Resp;
use crate::resp::session::{Across, Session};
use crate::shards::{Hold, Leading, Letter, Moving, Stays};
use headwater_base::Shard;

/// How long all may take until they hold, in milliseconds: then it is given up.
const HOLD_MAX: u64 = 1000;

impl Resp {
    /// Has a partition moved while all hold, when its turn has come.
    pub(super) fn want(&mut self, moving: Moving) {
        let Some(shards) = &mut self.shards else { return };
        shards.holding.wants.push_back(moving);
        if !shards.holding.enlisted {
            shards.holding.enlisted = true;
            if shards.post.turns().enlist(shards.me) {
                self.have_all_hold();
            }
        }
    }

    /// It is this shard's turn: it asks all to hold.
    pub(super) fn have_all_hold(&mut self) {
        let now = self.time.uptime;
        let Some(shards) = &mut self.shards else { return };
        let holding = &mut shards.holding;
        let Some(moving) = holding.wants.pop_front() else { return self.end_turn_to_hold() };
        holding.led += 1;
        let (number, deadline) = (holding.led, now + HOLD_MAX);
        let missing = (0..shards.post.shards()).map(Shard).collect();
        holding.leading = Some(Leading { number, missing, deadline, moving });
        if self.keeping.is_some()
            && let Some(placement) = self.node.engine().placement()
            && let Some(leading) = &mut shards.holding.leading
        {
            // Finding keys on disk takes its time, in which requests go on.
            leading.deadline = u64::MAX;
            let partition = moving.partition;
            let from = placement.home_of(partition);
            shards.post.to(from).letters.push(Letter::Survey { partition });
            return;
        }
        for at in (0..shards.post.shards()).map(Shard) {
            shards.post.to(at).letters.push(Letter::Hold { number });
        }
    }

    /// The keys that are to move are found: all are asked to hold.
    pub(super) fn surveyed(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        let Some(leading) = &mut shards.holding.leading else { return };
        leading.deadline = self.time.uptime + HOLD_MAX;
        let number = leading.number;
        for at in (0..shards.post.shards()).map(Shard) {
            shards.post.to(at).letters.push(Letter::Hold { number });
        }
    }

    /// Another shard, or this one, asks this one to hold.
    pub(super) fn begin_to_hold(&mut self, leader: Shard, number: u64) {
        let held = !self.held.is_empty() && self.exclusive.is_none();
        let Some(shards) = &mut self.shards else { return };
        let hold = Hold { leader, number, told: false };
        if held {
            // N3
            shards.holding.deferred.push(hold);
        } else {
            shards.holding.holds.push(hold);
            self.holding = true;
        }
    }

    /// Begins to hold where others had to have a turn first (N3).
    pub(in crate::resp) fn begin_deferred(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        for Hold { leader, number, .. } in core::mem::take(&mut shards.holding.deferred) {
            self.begin_to_hold(leader, number);
        }
    }

    /// Says that this shard holds, if it does (N2), and gives up what takes too long.
    pub(in crate::resp) fn look_at_holds(&mut self, connections: &mut Connections<Session>) {
        self.tell_surveyed();
        let Some(shards) = &mut self.shards else { return };
        let holding = &mut shards.holding;
        if self.exclusive.is_none() && holding.holds.iter().any(|hold| !hold.told) {
            let is_drained = |connection: &Connection<Session>| match &connection.session.across {
                Across::Client(pending) => {
                    pending.is_drained() && !connection.session.coordinates()
                }
                Across::Nothing | Across::Remote(_) => true,
            };
            let known = holding.undrained.and_then(|id| connections.get(id));
            if known.is_none_or(is_drained) {
                let found = connections.iter().find(|connection| !is_drained(connection));
                holding.undrained = found.map(|connection| connection.id);
                if found.is_none() {
                    for hold in holding.holds.iter_mut().filter(|hold| !hold.told) {
                        hold.told = true;
                        let letter = Letter::Held { number: hold.number };
                        shards.post.to(hold.leader).letters.push(letter);
                    }
                }
            }
        }
        let is_late = holding.leading.as_ref().is_some_and(|leading| {
            !leading.missing.is_empty() && leading.deadline <= self.time.uptime
        });
        if is_late {
            self.give_up_holding(connections);
        }
    }

    /// Not all hold in time: nothing is done.
    #[cold]
    fn give_up_holding(&mut self, connections: &mut Connections<Session>) {
        let text = "requests to other shards are not answered yet: try again";
        let Some(shards) = &mut self.shards else { return };
        if let Some(moving) = shards.holding.leading.as_ref().map(|leading| leading.moving) {
            self.end_move(moving, Some(Stays::For(String::from(text))), connections);
        }
        self.release_all();
    }

    /// A shard holds.
    pub(super) fn holds(
        &mut self,
        shard: Shard,
        number: u64,
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &mut self.shards else { return };
        let Some(leading) = &mut shards.holding.leading else { return };
        if leading.number != number || !leading.missing.remove(&shard) {
            return;
        }
        if leading.missing.is_empty() {
            let moving = leading.moving;
            self.have_all_meet(moving, connections);
        }
    }

    /// This shard has led: all go on.
    pub(super) fn release_all(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        let me = shards.me;
        for at in (0..shards.post.shards()).map(Shard).filter(|at| *at != me) {
            shards.post.to(at).letters.push(Letter::Release);
        }
        self.release(me);
        self.end_turn_to_hold();
    }

    /// The next one may have all hold.
    pub(super) fn end_turn_to_hold(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        let (me, holding) = (shards.me, &mut shards.holding);
        holding.leading = None;
        holding.enlisted = !holding.wants.is_empty();
        match shards.post.turns().end(me, holding.enlisted) {
            Some(next) if next == me => self.have_all_hold(),
            Some(next) => shards.post.to(next).letters.push(Letter::Turn),
            None => {}
        }
    }

    /// Requests of clients go on, as far as this leader goes.
    pub(super) fn release(&mut self, leader: Shard) {
        let Some(shards) = &mut self.shards else { return };
        let holding = &mut shards.holding;
        holding.holds.retain(|hold| hold.leader != leader);
        holding.deferred.retain(|hold| hold.leader != leader);
        self.holding = !holding.holds.is_empty();
        if holding.surveyed_by == Some(leader) {
            holding.surveyed_by = None;
            self.end_survey();
        }
    }

    /// Whether a connection's requests must wait: another one executes a transaction, or this shard holds (N1).
    #[cold]
    pub(in crate::resp) fn must_be_held(&self, connection: &Connection<Session>) -> bool {
        if let Some(owner) = self.exclusive {
            return owner != connection.id;
        }
        // Others may wait for who has a lock, or waits for one.
        let session = &connection.session;
        self.holding && !session.is_remote() && !session.coordinates() && !session.is_locked()
    }
}
