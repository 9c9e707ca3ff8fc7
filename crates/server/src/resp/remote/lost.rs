//! Other shards in processes of their own, to which the connection is lost, or there is one again.
//!
//! What was under way is told to be lost, once: requests of clients here are answered that nobody knows what has become of them,
//! sessions that stood for clients there end, and what the two have told each other of keys is void on either side. Requests that come while
//! there is no connection wait for the next owner for a while ([`Departures`](crate::shards::Departures)), and are refused then. With the next connection both begin anew.
//!
//! # Invariants
//! - O1. A request is answered `CLUSTERDOWN` once where its answer cannot come any more: what was asked over one connection is never answered
//!   over the next ([`MessageBatch::connection`](crate::shards::MessageBatch)).
//! - O2. Locks of a coordinator that is lost are given back, and what it has prepared here is not done.

use super::form::ClientForm;
use crate::connection::ConnectionId;
use crate::connections::Connections;
use crate::log::event;
use crate::resp::ShardService;
use crate::resp::session::{Across, Session, Waiting};
use crate::shards::{KEPT_BYTES, KeptAsk, STALLED_MAX};
use headwater_base::{Millis, Shard, ShardRefusal};
use headwater_command::Reply;
use headwater_engine::EngineError;
use headwater_router::{Owner, answer_of};
use std::collections::HashSet;
use std::time::Instant;

/// What is answered to a request that was sent to a shard before the connection was lost.
fn unknown(at: Shard) -> Vec<u8> {
    let at = at.0;
    answer_of(|out| {
        out.error(
            "CLUSTERDOWN",
            format_args!(
                "the connection to shard {at} was lost: nobody knows whether this was executed there"
            ),
        );
    })
}

/// What is answered to a request that could not be sent.
fn unsent(at: Shard) -> Vec<u8> {
    let at = at.0;
    answer_of(|out| {
        out.error(
            "CLUSTERDOWN",
            format_args!("shard {at} has no owner that can be reached: nothing was executed there"),
        );
    })
}

impl ShardService {
    /// There is no connection to another shard any more, over which something was `heard` last at that moment; `None`: just now.
    #[cold]
    pub(super) fn lose_shard(
        &mut self,
        (with, heard): (Shard, Option<Instant>),
        connections: &mut Connections<Session>,
    ) {
        let now = Millis(self.time.uptime);
        let Some(shards) = &mut self.others.shards else { return };
        let silent = shards.outbox.lines.silence(with, now.0);
        let ago = heard.map_or(0, |heard| heard.elapsed().as_millis() as u64);
        let silent = silent.unwrap_or(ago);
        if !shards.outbox.set_connected(with, false) {
            return;
        }
        event!(warn, "shards", "lost", shard = with.0, "there is no connection to the shard");
        shards.peers.lost(with, now, silent);
        shards.departures.lose(with, now.0);
        let kept = shards.departures.kept.iter().filter(|kept| kept.to == with);
        let kept: HashSet<(ConnectionId, u64)> = kept.map(|kept| (kept.session, kept.id)).collect();
        if with == Shard(0) {
            shards.comparison.lose();
        }
        let of_other = shards.remote_sessions.extract_if(|origin, _| origin.shard == with);
        of_other.for_each(|(_, id)| connections.kill(id));
        self.give_back_locks_of(with, connections);
        self.node.lose_remote(with);
        let with_requests = connections.iter().filter(|it| it.session.pending_requests().is_some());
        let answer = unknown(with);
        for id in with_requests.map(|it| it.id).collect::<Vec<_>>() {
            let Some(connection) = connections.get_mut(id) else { continue };
            let mut form = ClientForm::of(&connection.session);
            if let Some(pending) = connection.session.pending() {
                let is_kept = |of: u64| kept.contains(&(id, of));
                pending.lost(with, &answer, is_kept, &mut form);
            }
            if matches!(connection.session.waiting.as_deref(), Some(Waiting::Request(_))) {
                // It may have asked the shard for something that is no request.
                connections.wake(id);
            }
            self.answers_came(id, connections);
        }
        self.lose_watches(with);
        self.lose_copies(with, connections);
        self.pushes.wake_watchers(connections);
    }

    /// O2.
    fn give_back_locks_of(&mut self, with: Shard, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.others.shards else { return };
        for transaction in shards.locks.of_coordinator(with) {
            let Some(shards) = &mut self.others.shards else { return };
            shards.lock_waits.remove(&transaction);
            let prepared = shards.prepared.remove(&transaction);
            prepared.iter().flatten().for_each(|request| self.unprepare(request));
            self.others.unlock(Owner::Transaction(transaction), connections);
        }
    }

    /// There is a connection to another shard.
    #[cold]
    pub(super) fn find_shard(&mut self, with: Shard) {
        let now = Millis(self.time.uptime);
        let Some(shards) = &mut self.others.shards else { return };
        shards.outbox.set_connected(with, true);
        shards.peers.found(with, now);
        shards.send_kept(with);
        event!(info, "shards", "found", shard = with.0, "there is a connection to the shard");
        self.find_watches(with);
        self.find_copies(with);
        self.tell_definitions(with);
    }

    /// A shard of this process does not go on: who waits for what it would answer is told. It executes that when it does. A transaction that has begun
    /// runs to its end all the same.
    #[cold]
    fn give_up_waits(&mut self, at: Shard, is_new: bool, connections: &mut Connections<Session>) {
        if is_new {
            event!(
                error,
                "shards",
                "stalled",
                shard = at.0,
                "the shard has had no turn for a minute: who waits for it is told"
            );
        }
        let refusal = |what: &str| {
            let text =
                format!("shard {} has not gone on for {} s: {what}", at.0, STALLED_MAX / 1000);
            ShardRefusal { code: String::from("BUSY"), text }
        };
        let answer = |refusal: &ShardRefusal| {
            answer_of(|out| out.error(&refusal.code, format_args!("{}", refusal.text)))
        };
        let nothing = refusal("nothing was executed");
        let (unknown, undone) =
            (answer(&refusal("nobody knows whether this is executed there")), answer(&nothing));
        let with_requests = connections.iter().filter(|it| it.session.pending_requests().is_some());
        for id in with_requests.map(|it| it.id).collect::<Vec<_>>() {
            let Some(connection) = connections.get_mut(id) else { continue };
            let mut form = ClientForm::of(&connection.session);
            let Session { across: Across::Client(pending), waiting, .. } = &mut connection.session
            else {
                continue;
            };
            let mut coordinated = match waiting.as_deref_mut() {
                Some(Waiting::Coordinated(it)) => Some(it).filter(|it| it.may_be_given_up()),
                _ => None,
            };
            let inner = coordinated.is_some().then_some(&*undone);
            if pending.give_up(at, &unknown, inner, &mut form)
                && let Some(coordinated) = &mut coordinated
            {
                coordinated.give_up(&undone);
            }
            self.answers_came(id, connections);
        }
        self.refuse_crowded(at, &nothing, connections);
        if let Some(shards) = &self.others.shards
            && at != shards.me
        {
            self.node.engine_mut().fail_loads_of(at, &nothing);
        }
        self.refuse_watches(at, &nothing);
        self.pushes.wake_watchers(connections);
    }

    /// Has requests fail that wait until a shard has read what was written to it.
    fn refuse_crowded(
        &mut self,
        at: Shard,
        why: &ShardRefusal,
        connections: &mut Connections<Session>,
    ) {
        let Some(shards) = &mut self.others.shards else { return };
        for (id, _) in shards.crowded.extract_if(.., |(_, crowded)| *crowded == at) {
            let Some(connection) = connections.get_mut(id) else { continue };
            // It may have gone on by itself, and wait for something else.
            let session = &connection.session;
            let is_parked = session.memcached.as_deref().is_some_and(|it| it.parked);
            if is_parked || matches!(session.waiting.as_deref(), Some(Waiting::Request(_))) {
                self.waits.failures.insert(id, EngineError::OfHome(why.clone()));
                connections.wake(id);
            }
        }
    }

    /// Answers what could not be sent, and has loads fail whose home is lost for long; or has nobody wait for a shard that does not go on.
    #[inline]
    pub(super) fn look_at_lost(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.others.shards else { return };
        let now = self.time.uptime;
        if !shards.outbox.are_apart() && shards.stalls.is_due(now) {
            let transport = shards.outbox.transport();
            let turns = (0..transport.shards()).map(|at| transport.looked(Shard(at)));
            for (at, is_new) in shards.stalls.look(now, turns) {
                self.give_up_waits(at, is_new, connections);
            }
            return;
        }
        if shards.outbox.are_apart() {
            shards.peers.give_up_loads(self.node.engine_mut(), Millis(self.time.uptime));
            if !shards.departures.kept.is_empty() {
                self.answer_unsent(connections);
            }
        }
    }

    #[cold]
    fn answer_unsent(&mut self, connections: &mut Connections<Session>) {
        let now = self.time.uptime;
        let Some(shards) = &mut self.others.shards else { return };
        let departures = &mut shards.departures;
        let mut bytes = 0;
        let (keeps, refused) =
            core::mem::take(&mut departures.kept).into_iter().partition(|kept| {
                bytes += kept.frame.len();
                bytes <= KEPT_BYTES && departures.keeps(kept.to, now)
            });
        departures.kept = keeps;
        let refused: Vec<KeptAsk> = refused;
        for KeptAsk { to: at, session, id, .. } in refused {
            let Some(connection) = connections.get_mut(session) else { continue };
            let mut form = ClientForm::of(&connection.session);
            if let Some(pending) = connection.session.pending() {
                pending.came((at, id), &unsent(at), Vec::new(), &mut form);
            }
            self.answers_came(session, connections);
        }
    }
}
