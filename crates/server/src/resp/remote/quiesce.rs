//! Rounds in which all shards quiesce: one coordinates, and what it does then is one step for everybody.
//!
//! A shard whose clients want a partition moved, or a backup begun, waits for its turn, and then asks all shards to quiesce: new requests of clients
//! are blocked, and what shards execute for one another comes to its end. When all are quiescent, no request is on its way
//! between shards. Then the partition moves ([`super::moves`]), or the backup begins ([`crate::resp::backups`]), and requests go on.
//!
//! # Invariants
//! - N1. While a shard quiesces, requests of its clients wait in `blocked_sessions`; what other shards ask goes on.
//! - N2. A shard says once in a round that it is quiescent: when nothing that it has asked of others can be executed later. All is
//!   answered then, but for reads that wait at the end of a stream, which does not move and is not read in the round.
//!   No transaction is under way at it.
//! - N3. Between two rounds, sessions that were blocked in the first have a turn.
//!
//! # Cost
//! Nothing where nobody wants a step, but for a look at a flag in each turn. Each shard writes three messages a round, and looks at
//! all of its connections.

use crate::connection::Connection;
use crate::connections::Connections;
use crate::resp::ShardService;
use crate::resp::parts::OtherShards;
use crate::resp::parts::Waits;
use crate::resp::session::{Across, Session};
use crate::shards::{
    CommonStep, MoveRefusal, QuiesceRequest, QuiesceRound, ShardMessage, WantedStep,
};
use headwater_base::Shard;

/// How long shards may take to become quiescent, in milliseconds: then the round is given up.
const QUIESCE_MAX: u64 = 1000;

impl ShardService {
    /// Has something done by all shards, when this shard's turn to coordinate has come.
    pub(in crate::resp) fn want_step(&mut self, wanted: WantedStep) {
        let Some(shards) = &mut self.others.shards else { return };
        shards.quiescing.wanted.push_back(wanted);
        if !shards.quiescing.is_in_line {
            shards.quiescing.is_in_line = true;
            if shards.outbox.turns().enlist(shards.me) {
                self.begin_round();
            }
        }
    }

    /// It is this shard's turn to coordinate: a round begins.
    pub(super) fn begin_round(&mut self) {
        let now = self.time.uptime;
        let Some(shards) = &mut self.others.shards else { return };
        let quiescing = &mut shards.quiescing;
        let Some(wanted) = quiescing.wanted.pop_front() else { return self.end_round() };
        quiescing.rounds += 1;
        let (number, deadline) = (quiescing.rounds, now + QUIESCE_MAX);
        let missing = (0..shards.outbox.shards()).map(Shard).collect();
        quiescing.round = Some(QuiesceRound { number, missing, deadline, wanted });
        if let CommonStep::Move { partition, .. } = wanted.step
            && self.stores.keeping.is_some()
            && let Some(placement) = self.node.engine().placement()
            && let Some(round) = &mut shards.quiescing.round
        {
            // Finding keys on disk takes its time, in which requests go on.
            round.deadline = u64::MAX;
            let from = placement.home_of(partition);
            shards.outbox.to(from).messages.push(ShardMessage::FindKeys { partition });
            return;
        }
        self.others.quiesce_all();
    }

    /// The keys that are to move are found.
    pub(super) fn keys_found(&mut self) {
        let deadline = self.time.uptime + QUIESCE_MAX;
        let shards = self.others.shards.as_mut();
        if let Some(round) = shards.and_then(|shards| shards.quiescing.round.as_mut()) {
            round.deadline = deadline;
            self.others.quiesce_all();
        }
    }

    /// Another shard, or this one, asks this one to quiesce.
    pub(super) fn begin_quiescing(&mut self, coordinator: Shard, number: u64) {
        let has_blocked = !self.waits.blocked_sessions.is_empty() && self.waits.exclusive.is_none();
        let Some(shards) = &mut self.others.shards else { return };
        let request = QuiesceRequest { coordinator, number, is_answered: false };
        if has_blocked {
            // N3
            shards.quiescing.later.push(request);
        } else {
            shards.quiescing.requests.push(request);
            self.waits.quiesces = true;
        }
    }

    /// Begins rounds before which blocked sessions had to have a turn (N3).
    pub(in crate::resp) fn begin_later_rounds(&mut self) {
        let Some(shards) = &mut self.others.shards else { return };
        for QuiesceRequest { coordinator, number, .. } in
            core::mem::take(&mut shards.quiescing.later)
        {
            self.begin_quiescing(coordinator, number);
        }
    }

    /// Says that this shard is quiescent, if it is (N2), and gives up a round that takes too long.
    pub(in crate::resp) fn look_at_quiescing(&mut self, connections: &mut Connections<Session>) {
        self.tell_keys_found();
        let Some(shards) = &mut self.others.shards else { return };
        let quiescing = &mut shards.quiescing;
        if self.waits.exclusive.is_none() && quiescing.requests.iter().any(|it| !it.is_answered) {
            let is_drained = |connection: &Connection<Session>| match &connection.session.across {
                Across::Client(pending) => {
                    pending.is_drained() && !connection.session.coordinates()
                }
                Across::Nothing | Across::Remote(_) => true,
            };
            let known = quiescing.undrained.and_then(|id| connections.get(id));
            if known.is_none_or(is_drained) {
                let found = connections.iter().find(|connection| !is_drained(connection));
                quiescing.undrained = found.map(|connection| connection.id);
                if found.is_none() {
                    for request in quiescing.requests.iter_mut().filter(|it| !it.is_answered) {
                        request.is_answered = true;
                        let message = ShardMessage::Quiescent { number: request.number };
                        shards.outbox.to(request.coordinator).messages.push(message);
                    }
                }
            }
        }
        let is_late = quiescing
            .round
            .as_ref()
            .is_some_and(|round| !round.missing.is_empty() && round.deadline <= self.time.uptime);
        if is_late {
            self.give_up_round(connections);
        }
    }

    /// Not all shards are quiescent in time: nothing is done.
    #[cold]
    fn give_up_round(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.others.shards else { return };
        if let Some(round) = &shards.quiescing.round {
            let missing: Vec<String> = round.missing.iter().map(|at| at.0.to_string()).collect();
            let text = format!(
                "requests of shard {} to others are not answered yet, after {QUIESCE_MAX} ms: try again",
                missing.join(", ")
            );
            let wanted = round.wanted;
            self.end_step(wanted, Some(MoveRefusal::For(text)), connections);
        }
        self.resume_all();
    }

    /// A shard is quiescent.
    pub(super) fn is_quiescent(
        &mut self,
        shard: Shard,
        number: u64,
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &mut self.others.shards else { return };
        let Some(round) = &mut shards.quiescing.round else { return };
        if round.number != number || !round.missing.remove(&shard) {
            return;
        }
        if round.missing.is_empty() {
            let wanted = round.wanted;
            match wanted.step {
                CommonStep::Move { partition, to } => {
                    self.move_in_step(wanted, partition, to, connections);
                }
                CommonStep::BeginBackup => self.others.back_up_in_step(),
            }
        }
    }

    /// Tells the client of this shard that wanted a step how it went.
    pub(in crate::resp) fn end_step(
        &mut self,
        wanted: WantedStep,
        refusal: Option<MoveRefusal>,
        connections: &mut Connections<Session>,
    ) {
        if let Some(why) = refusal {
            if wanted.step == CommonStep::BeginBackup {
                self.backup_refused(wanted.client);
            }
            if connections.get_mut(wanted.client).is_some() {
                self.waits.failures.insert(wanted.client, why.into());
            }
        }
        connections.wake(wanted.client);
    }

    /// The round that this shard coordinates is over, and nothing was done: requests go on everywhere.
    pub(super) fn resume_all(&mut self) {
        let all = self.others.all();
        let Some(shards) = &mut self.others.shards else { return };
        let me = shards.me;
        for at in all {
            shards.outbox.to(at).messages.push(ShardMessage::Resume);
        }
        self.end_quiescing(me);
        self.end_round();
    }

    /// The next shard may coordinate.
    pub(in crate::resp) fn end_round(&mut self) {
        let Some(shards) = &mut self.others.shards else { return };
        let (me, quiescing) = (shards.me, &mut shards.quiescing);
        quiescing.round = None;
        quiescing.is_in_line = !quiescing.wanted.is_empty();
        match shards.outbox.turns().end(me, quiescing.is_in_line) {
            Some(next) if next == me => self.begin_round(),
            Some(next) => shards.outbox.to(next).messages.push(ShardMessage::MayQuiesce),
            None => {}
        }
    }

    /// Requests of clients go on, as far as this coordinator's round goes.
    pub(in crate::resp) fn end_quiescing(&mut self, coordinator: Shard) {
        let Some(shards) = &mut self.others.shards else { return };
        let quiescing = &mut shards.quiescing;
        quiescing.requests.retain(|request| request.coordinator != coordinator);
        quiescing.later.retain(|request| request.coordinator != coordinator);
        self.waits.quiesces = !quiescing.requests.is_empty();
        if quiescing.keys_wanted_by == Some(coordinator) {
            quiescing.keys_wanted_by = None;
            self.stores.end_survey();
        }
    }
}

impl OtherShards {
    /// Asks all shards to quiesce.
    fn quiesce_all(&mut self) {
        let Some(shards) = &mut self.shards else { return };
        let Some(number) = shards.quiescing.round.as_ref().map(|round| round.number) else {
            return;
        };
        for at in (0..shards.outbox.shards()).map(Shard) {
            shards.outbox.to(at).messages.push(ShardMessage::Quiesce { number });
        }
    }
}

impl Waits {
    /// Whether a connection's requests must wait: another one executes a transaction, or this shard quiesces (N1).
    #[cold]
    pub(in crate::resp) fn must_be_blocked(&self, connection: &Connection<Session>) -> bool {
        if let Some(owner) = self.exclusive {
            return owner != connection.id;
        }
        // Others may wait for a session that has a lock, or waits for one.
        let session = &connection.session;
        self.quiesces && !session.is_remote() && !session.coordinates() && !session.is_locked()
    }
}
