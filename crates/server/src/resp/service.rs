//! The service as the loop sees it.

use super::session::Waiting;
use super::{Flow, Session, ShardService, Turn};
use crate::arrival::Arrival;
use crate::connection::{Connection, ConnectionId, Phase};
use crate::connections::Connections;
use crate::handover::Inherited;
use crate::keeping::EmbeddedStore;
use crate::service::{
    Bounds, DurableWrites, Handover, Served, Service, SocketNews, Stopped, Time, WARMED_MAX,
};
use crate::shards::{ShardMessage, Shards};
use crate::wire_protocol::WireProtocol;
use headwater_base::Millis;
use headwater_engine::{Effect, Value, ValueRef};
use headwater_protocol::resp::peek_key;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

impl ShardService {
    /// One connection's turn.
    fn serve_turn(&mut self, mut work: Turn<'_>) -> Served {
        if !self.keeps_rights(&mut work) {
            return Served { consumed: 0, stopped: Stopped::Closing };
        }
        if (self.waits.exclusive.is_some() || self.waits.quiesces)
            && self.waits.must_be_blocked(work.connection)
        {
            self.waits.blocked_sessions.push(work.connection.id);
            return Served { consumed: 0, stopped: Stopped::Parked };
        }
        self.before_request(&mut work);
        self.post_news(&mut work);
        if work.connection.session.is_remote() {
            return self.serve_remote(work);
        }
        if work.connection.session.memcached.is_some() {
            return self.serve_memcached(work);
        }
        if let Some(waiting) = work.connection.session.waiting.take() {
            let before = work.out.len();
            let flow = self.resume(*waiting, &mut work);
            Self::keep_order(before, &mut work);
            self.pushes.tell_own(&mut work);
            match flow {
                Flow::Next => {}
                Flow::Parked => return Served { consumed: 0, stopped: Self::parked(&mut work) },
                Flow::Close => return Served { consumed: 0, stopped: Stopped::Closing },
            }
            if work.connection.is_unplugged() {
                return Served { consumed: 0, stopped: Stopped::Closing };
            }
            if self.waits.quiesces && self.waits.must_be_blocked(work.connection) {
                // What it was allowed to go on with is done.
                self.waits.blocked_sessions.push(work.connection.id);
                return Served { consumed: 0, stopped: Stopped::Parked };
            }
        }
        let mut parser = match work.connection.session.parser.take() {
            Some(parser) => *parser,
            None => core::mem::take(&mut self.parsers.parser),
        };
        let served = self.batch(&mut parser, &mut work);
        self.tell_watchers(&mut work);
        if self.pushes.serves_others {
            self.post_copies();
        }
        self.defer(&mut work);
        if served.stopped == Stopped::Incomplete && served.consumed < work.input.len() {
            work.connection.session.parser = Some(Box::new(parser));
        } else {
            self.parsers.parser = parser;
        }
        served
    }
}

impl Service for ShardService {
    type Session = Session;

    fn bounds(&self) -> Bounds {
        self.settings.bounds
    }

    fn opened(&mut self, _id: ConnectionId, door: WireProtocol) -> Session {
        self.figures.stats.connections += 1;
        let memcached = match door {
            WireProtocol::Resp => None,
            WireProtocol::Memcached => Some(Box::default()),
        };
        let mut session = Session { memcached, ..Session::default() };
        self.admission.let_in(&mut session);
        session
    }

    #[inline]
    fn is_stranger(session: &Session) -> bool {
        !session.authenticated
    }

    fn strangers_max(&self) -> usize {
        let shards = self.others.shards.as_ref().map_or(1, |it| usize::from(it.outbox.shards()));
        (self.settings.config.doors.clients_unauthenticated_max / shards).max(1)
    }

    fn is_late(&self, connection: &Connection<Session>, now: u64) -> bool {
        let most = self.settings.config.doors.login_seconds_max.saturating_mul(1000);
        let is_stranger = !connection.session.authenticated && !connection.is_remote();
        let from = connection.since.max(connection.session.login_from);
        most > 0 && is_stranger && now > from + most
    }

    fn clients_max_for(&self, peer: SocketAddr) -> usize {
        Self::clients_max_for(self, peer)
    }

    fn turns_away(&mut self, peer: SocketAddr, door: WireProtocol) -> Option<&'static [u8]> {
        let refusal = self.is_protected_from(peer, door)?;
        self.figures.stats.connections_refused += 1;
        Some(refusal)
    }

    fn turn(&mut self, time: Time, clients_bytes: usize) {
        self.time = time;
        self.look_in_time(clients_bytes);
        self.bound.share_with_clients_of_others(clients_bytes);
        self.figures.stats.sample(time.uptime);
        self.node.engine_mut().hold_expiries(self.stores.log_is_silent());
        self.node.advance(time.wall);
        self.node.engine_mut().pass_time(Millis(time.uptime));
        self.node.go_on();
        if let Some(keeping) = &mut self.stores.keeping {
            keeping.look_for_failure();
        }
        self.flush_in_time();
        self.notice();
    }

    #[inline]
    fn moved(&mut self, clients_bytes: usize) {
        self.look_if_due(clients_bytes);
        self.bound.share_with_clients_of_others(clients_bytes);
    }

    #[inline]
    fn serve(&mut self, work: Turn<'_>) -> Served {
        let served = self.serve_turn(work);
        self.figures.stats.times.rest();
        served
    }

    #[inline]
    fn received(&mut self, bytes: usize) {
        self.figures.stats.reads += 1;
        self.figures.stats.received_bytes += bytes as u64;
    }

    #[inline]
    fn sent(&mut self, bytes: usize) {
        self.figures.stats.writes += 1;
        self.figures.stats.sent_bytes += bytes as u64;
    }

    fn set_waker(&mut self, waker: Arc<mio::Waker>) {
        if let Some(shards) = &self.others.shards {
            shards.outbox.set_waker(waker.clone());
        }
        self.stores.hub.inbox.set_waker(waker);
    }

    fn set_registry(&mut self, registry: &mio::Registry, first: usize) -> io::Result<()> {
        match &mut self.others.shards {
            Some(shards) if shards.outbox.are_apart() => {
                shards.outbox.set_registry(registry.try_clone()?, first);
            }
            _ => {}
        }
        Ok(())
    }

    fn socket_news(&mut self, at: usize, news: SocketNews) {
        if let Some(shards) = &mut self.others.shards {
            shards.outbox.lines.news(at, news);
        }
    }

    fn numbers(&self) -> (u64, u64) {
        let of = |shards: &Shards| (u64::from(shards.me.0) + 1, u64::from(shards.outbox.shards()));
        self.others.shards.as_deref().map_or((1, 1), of)
    }

    fn clients(&self, own: usize) -> usize {
        let elsewhere = |shards: &Shards| shards.outbox.clients_elsewhere();
        own + self.others.shards.as_deref().map_or(0, elsewhere)
    }

    fn clients_changed(&mut self, own: usize, has_arrived: bool) {
        let Some(shards) = &mut self.others.shards else { return };
        shards.outbox.set_clients(own);
        if has_arrived {
            shards.outbox.has_arrived();
        }
    }

    fn hand_on(&mut self, arrival: Arrival) -> Option<Arrival> {
        let Some(shards) = &mut self.others.shards else { return Some(arrival) };
        if shards.outbox.are_apart() {
            return Some(arrival);
        }
        let to = shards.outbox.least_busy();
        if to == shards.me {
            return Some(arrival);
        }
        let arrival = Arrival { is_handed: true, ..arrival };
        shards.outbox.to(to).messages.push(ShardMessage::Client(arrival));
        None
    }

    fn take_clients(&mut self) -> Vec<Arrival> {
        let mut clients = core::mem::take(&mut self.admission.new_clients);
        if self.may_accept() {
            for arrival in self.admission.entrance.arrivals.take() {
                clients.extend(self.hand_on(arrival));
            }
        }
        clients
    }

    fn identified(&mut self, session: &mut Session, name: String, peer: SocketAddr) {
        session.certificate = Some(name.into());
        self.admission.log_in_certified(session, peer);
    }

    fn reload(&mut self) {
        self.reload_all();
    }

    #[inline]
    fn collect(&mut self, connection: &mut Connection<Session>, out: &mut Vec<u8>) {
        // Who has lost its rights is not told what it asked before.
        if connection.phase == Phase::Killed || !connection.session.authenticated {
            return;
        }
        if let Some(pending) = connection.session.pending() {
            pending.collect(out);
        }
    }

    #[inline]
    fn expects(&self, session: &Session) -> bool {
        session.authenticated && session.expects()
    }

    fn hung_up(&mut self, connection: &mut Connection<Session>) {
        let (Some(shards), Some(pending)) = (&mut self.others.shards, connection.session.pending())
        else {
            return;
        };
        for at in pending.used() {
            let message = ShardMessage::HungUp { session: connection.id };
            shards.outbox.to(at).messages.push(message);
        }
    }

    #[inline]
    fn is_behind(&self, connection: &mut Connection<Session>) -> bool {
        connection.is_remote() && self.others.is_behind_with_replies(connection)
    }

    fn take_remote_answers(&mut self, connection: &mut Connection<Session>) {
        let write = self.durable_writes().last;
        self.others.post_replies(connection, write);
    }

    fn forget_remote_answers(&mut self, connection: &mut Connection<Session>) {
        self.others.forget_replies(connection);
    }

    fn wake(&mut self, connections: &mut Connections<Session>) {
        self.renew_rights_of_all(connections);
        self.begin_later_rounds();
        self.bound.gauge.begin_command();
        self.take_late_loads();
        self.take_messages(connections);
        self.compare_definitions();
        self.lapse_locks(connections);
        self.end_overdue_waits(connections);
        self.begin_redoing();
        self.send_deferred(connections);
        self.others.wake_crowded(connections);
        self.wake_late(connections);
        self.take_news(connections);
        self.run_flows(connections);
        self.node.engine_mut().poll_functions();
        self.answer_probes(connections);
        self.tell_all_watchers(connections);
        loop {
            let effects = self.take_effects();
            self.others.wake_settled(self.time.uptime, connections);
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    Effect::Wake(ticket) => match self.waits.tickets.remove(&ticket) {
                        Some(id) => connections.wake(id),
                        None => self.go_on_watching(ticket, None, connections),
                    },
                    Effect::Fail { ticket, error } => {
                        if let Some(id) = self.waits.tickets.remove(&ticket) {
                            self.waits.failures.insert(id, error);
                            connections.wake(id);
                        } else {
                            self.go_on_watching(ticket, Some(&error), connections);
                        }
                    }
                    Effect::Load { fetch, source, range, portion } => {
                        self.ask_load(fetch, &source, &range, portion);
                    }
                    Effect::Unfollow { source, range } => self.stores.hub.unfollow(&source, &range),
                    Effect::LoadFrom { .. }
                    | Effect::ResumeFrom { .. }
                    | Effect::UnfollowAt { .. } => {
                        unreachable!("shards deal with it among themselves")
                    } // Nothing lives elsewhere without a placement.
                }
            }
        }
        self.tell_all_watchers(connections);
        self.tell_trackers(connections);
        self.tell_keyspace_events(connections);
        self.look_at_quiescing(connections);
        if self.waits.exclusive.is_none() && !self.waits.quiesces {
            for id in self.waits.blocked_sessions.drain(..) {
                connections.wake(id);
            }
        }
    }

    #[inline]
    fn durable_writes(&self) -> DurableWrites {
        let keeping = self.stores.keeping.as_ref();
        let writes = keeping.map_or_else(DurableWrites::default, EmbeddedStore::durable_writes);
        #[cfg(test)]
        let writes = crate::replicated::simulated::gate(writes);
        writes
    }

    #[inline]
    fn may_accept(&self) -> bool {
        !self.others.is_redoing()
    }

    fn may_sleep(&mut self) -> bool {
        self.others.shards.as_ref().is_none_or(|shards| shards.outbox.may_sleep())
    }

    fn awoke(&mut self) {
        if let Some(shards) = &self.others.shards {
            shards.outbox.awoke();
        }
    }

    #[inline]
    fn end_turn(&mut self) {
        self.look_at_records();
        self.look_at_memory_share();
        if let Some(keeping) = &self.stores.keeping {
            self.node.end_turn();
            let told = keeping.end_turn();
            self.end_flow_batch(told);
        }
    }

    #[inline]
    fn send_messages(&mut self) {
        let writes = self.durable_writes();
        if let Some(shards) = &mut self.others.shards {
            shards.post_packets(writes.last);
            shards.outbox.send(&writes);
        }
    }

    fn settle(&mut self) {
        if let Some(keeping) = &self.stores.keeping {
            keeping.settle();
        }
    }

    fn is_idle(&self, connection: &Connection<Session>, now: u64) -> bool {
        let most = self.settings.config.clients.idle_seconds_max.saturating_mul(1000);
        let session = &connection.session;
        let may_be_silent = session.is_subscriber()
            || session.monitors
            || session.is_waiting()
            || connection.is_remote();
        most > 0 && !may_be_silent && now > connection.heard + most
    }

    fn output_bytes_max(&self, session: &Session) -> usize {
        if session.subscriptions.is_some() || session.monitors {
            self.settings.lowered.clients.pubsub_output_bytes_max
        } else {
            self.settings.lowered.clients.output_bytes_max
        }
    }

    fn session_bytes(session: &Session) -> usize {
        session.bytes()
    }

    fn clients_bytes_max(&self) -> usize {
        self.bound.clients_bytes_max
    }

    #[inline]
    fn warm(&self, inputs: &[&[u8]]) {
        let mut keys: [&[u8]; WARMED_MAX] = [&[]; WARMED_MAX];
        let mut count = 0;
        for key in inputs.iter().take(WARMED_MAX).filter_map(|input| peek_key(input)) {
            keys[count] = key;
            count += 1;
        }
        if count > 1 {
            self.node.engine().warm(&keys[..count]);
        }
    }

    #[inline]
    fn takes_over(&mut self, bytes: usize) {
        self.bound.gauge.take_over(|| bytes);
    }

    fn make_room_to_read(&mut self, bytes: usize) {
        // Others are served, and nobody waits for a store.
        self.bound.gauge.begin_postponable(0);
        // Where there is none, they are of the reserve: too much ends clients.
        self.make_room_to_take(bytes);
    }

    fn may_end(session: &Session) -> bool {
        session.may_end()
    }

    fn outlives_client(session: &Session) -> bool {
        session.coordinates() || session.is_within_exec()
    }

    #[inline]
    fn gives_slices(session: &Session) -> bool {
        session.is_sending()
    }

    fn evicted_client(&mut self) {
        self.figures.stats.clients_evicted += 1;
    }

    fn no_owner(&self, session: &Session) -> Vec<u8> {
        let shard = self.settings.config.cluster.shard();
        let text = match session.memcached {
            Some(_) => format!(
                "SERVER_ERROR the cluster is down: this node's lease of shard {shard} is too old\r\n"
            ),
            None => format!(
                "-CLUSTERDOWN this node's lease of shard {shard} is too old: is there a quorum of the NATS servers?\r\n"
            ),
        };
        text.into_bytes()
    }

    fn refusal(&mut self, door: WireProtocol) -> &'static [u8] {
        self.figures.stats.connections_refused += 1;
        door.too_many_clients()
    }

    fn value(&self, value: ValueRef) -> Value<'_> {
        self.node.engine().held(value)
    }

    fn release(&mut self, value: ValueRef) {
        self.node.engine_mut().release(value);
    }

    fn closed(&mut self, connection: &mut Connection<Session>) {
        let id = connection.id;
        if let Some(shards) = &mut self.others.shards {
            shards.departures.kept.retain(|kept| kept.session != id);
        }
        self.pushes.forget_subscriptions(id, &mut connection.session);
        self.forget_monitor(id, &mut connection.session);
        self.forget_introduced(connection);
        self.forget_backup(id, &mut connection.session);
        self.forget_range_watches(&mut connection.session);
        self.forget_watches(&mut connection.session);
        self.forget_tracking(id, &mut connection.session);
        // Its place among those that wait for locks lapses when it is its turn.
        self.end_block(id.number);
        if let Some(Waiting::Shards(_, wait, deadline)) = connection.session.waiting.as_deref() {
            self.forget_wait(id, *wait, *deadline);
        } else if let Some(Waiting::Blocked(blocked)) = connection.session.waiting.as_deref() {
            self.forget_blocked(id, blocked);
        } else if connection.session.is_waiting() {
            self.stores.hub.forget(id);
            if let Some(Waiting::Data(postponed)) = connection.session.waiting.as_deref() {
                self.node.engine_mut().forget_ticket(postponed.ticket);
                self.waits.blocking.forget(id);
            } else if let Some(Waiting::Sending(sending)) = connection.session.waiting.as_deref() {
                self.node.engine_mut().forget_ticket(sending.ticket);
            }
            self.waits.tickets.retain(|_, waiting| *waiting != id);
        }
        self.waits.failures.remove(&id);
        if self.waits.exclusive == Some(id) {
            self.waits.exclusive = None;
            self.end_transaction();
        }
        self.forget_asker(connection);
        let write = self.durable_writes().last;
        self.others.part(id, &mut connection.session, write);
    }

    fn is_over(&self, session: &Session) -> bool {
        match session.waiting.as_deref() {
            Some(Waiting::Blocked(_)) => true,
            Some(Waiting::Data(postponed)) => postponed.reads,
            _ => false,
        }
    }

    fn deadline(&self) -> Option<u64> {
        self.next_deadline()
    }

    fn stopping(&self) -> Option<&'static str> {
        let leaves = self.stores.keeping.as_ref().is_some_and(EmbeddedStore::leaves);
        match (self.stopping, leaves) {
            (true, _) => Some("SHUTDOWN"),
            (false, true) => Some("drained"),
            (false, false) => None,
        }
    }

    fn stopped(&mut self) {
        let writes = self.durable_writes();
        self.others.stop_all(&writes);
    }

    fn hands_over(&self) -> bool {
        self.replica().is_some()
    }

    fn awaits_owners(&self) -> bool {
        self.others.shards.as_ref().is_some_and(|it| it.departures.awaits_owners())
    }

    fn begins_to_rest(&mut self) {
        self.close_doors();
        if let Some(shards) = &mut self.others.shards {
            shards.leave();
        }
    }

    fn may_be_asked(&self) -> bool {
        self.others
            .shards
            .as_ref()
            .is_some_and(|it| it.departures.awaits() || it.outbox.has_unsent())
    }

    fn is_busy(&self, session: &Session) -> bool {
        session.is_underway()
    }

    fn begins_to_part(&self) {
        if let Some(replica) = self.replica() {
            replica.keep_clients();
        }
    }

    fn part_with(&self, connection: &Connection<Session>) -> Option<Handover> {
        self.state_of(connection)
    }

    fn leave(&mut self, left: Inherited) {
        if let Some(replica) = self.replica() {
            replica.leave(left);
        }
    }
}
