//! Requests that other shards execute, and requests that are executed for clients of other shards.
//!
//! # Order
//! A client's requests to one shard are executed in their order. Requests to different shards may be
//! executed at the same time, but for what is derived: it is read only when the client's earlier writes at other shards
//! are done, and a client's later writes wait until it was read. So a client's pipeline gives the answers that it would give
//! request by request.

mod between;
mod commands;
mod handover;
mod holding;
mod lead;
mod letters;
mod moves;
mod sources;
mod transactions;

use super::session::{Afar, Answering, Session, Waiting};
use super::tracking::Copies;
use super::{Flow, Resp, Turn, encoder};
use crate::connections::Connections;
use crate::service::Door;
use crate::shards::{Front, Gather, Kind, Letter, Merge, Route, Shards, Voice, route};
use headwater_base::Shard;
use headwater_command::{
    Args, Command, Connection, Data, Flags, Id, OwnedArgs, Ranges, Reply, Sharding, Spec,
};
use headwater_engine::Effect;
use headwater_node::Positions;
use headwater_protocol::resp::{ReplyCutter, find};
use mio::net::TcpStream;
use std::net::SocketAddr;

pub(crate) use lead::Lead;

const CROSS_SLOT: &str = "Keys in request don't hash to the same slot: they live on several shards \
     (keys of one group, or plain keys with one {tag}, live together)";

/// A client that another shard accepted.
pub(super) type Client = (TcpStream, SocketAddr, Door);

impl Resp {
    /// Executes a request elsewhere, or at several shards, if that is where its keys live. `None`: it
    /// is to be executed here.
    #[inline]
    pub(super) fn execute_afar(
        &mut self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        let shards = self.shards.as_ref()?;
        let me = shards.me;
        if self.executing_queue || matches!(work.connection.session.afar, Afar::Back(_)) {
            return self.await_writes(spec, command, args, work);
        }
        if matches!(command, Command::Transaction(_)) {
            return self.transact_afar(spec, command, args, work);
        }
        if let Some(flow) = self.sourced_afar(command, args, work) {
            return Some(flow);
        }
        if spec.id == Id::Reset && work.connection.session.expects() {
            // What comes behind it is another session's.
            return Some(hold(Some(args), work));
        }
        if let Command::Connection(Connection::ClientTracking(asked)) = command
            && let Some(flow) = self.find_redirect(asked, args, work)
        {
            return Some(flow);
        }
        let route = route(self.node.engine().placement()?, spec, command, args);
        let kind = if spec.flags.has(Flags::WRITE) {
            let calls = matches!(command, Command::Data(Data::Functions(_)));
            if calls { Kind::Both } else { Kind::Write }
        } else if spec.id == Id::StreamRead {
            Kind::Stream
        } else if matches!(route, Route::At(_) | Route::Parts { .. })
            && self.may_be_derived(command, args, spec)
        {
            Kind::Derived
        } else {
            Kind::Plain
        };
        let at = match &route {
            Route::At(at) => Some(*at),
            _ => None,
        };
        if let Some(front) = work.connection.session.front()
            && (front.is_full() || front.must_wait(kind, at))
        {
            return Some(hold(Some(args), work));
        }
        if self.is_crowded(&route, me) {
            return Some(self.wait_for_others_to_read(args, work));
        }
        match route {
            Route::Here => None,
            Route::At(at) if at == me => self.await_writes(spec, command, args, work),
            Route::At(at) => {
                if kind.reads() {
                    self.ask_after(at, work);
                }
                self.ask(at, args, kind, false, work);
                Some(Flow::Next)
            }
            Route::Parts { merge, parts } => {
                if kind.reads() {
                    parts.iter().for_each(|(at, _)| self.ask_after(*at, work));
                }
                Some(self.ask_all(spec, kind, merge, &parts, args, work))
            }
            Route::Several if !self.leading => {
                if work.connection.session.expects() {
                    return Some(hold(Some(args), work));
                }
                Some(self.lead_request(args, work))
            }
            Route::Several => {
                self.stats.errors += 1;
                encoder(work).error("CROSSSLOT", format_args!("{CROSS_SLOT}"));
                Some(Flow::Next)
            }
        }
    }

    /// Whether so many bytes wait for a shard that this goes to that it should wait.
    fn is_crowded(&self, route: &Route, me: Shard) -> bool {
        let Some(shards) = &self.shards else { return false };
        let is = |at: Shard| at != me && shards.post.is_crowded(at, 0);
        match route {
            Route::At(at) => is(*at),
            Route::Parts { parts, .. } => parts.iter().any(|(at, _)| is(*at)),
            Route::Here | Route::Several => false,
        }
    }

    /// Has a session wait, where so many bytes wait for a shard (`None`: for any), that nothing should be written to it;
    /// whether it has to. Its request begins anew then.
    pub(crate) fn lets_others_read(&mut self, at: Option<Shard>, work: &Turn<'_>) -> bool {
        let Some(shards) = &mut self.shards else { return false };
        let crowded = match at {
            Some(at) => at != shards.me && shards.post.is_crowded(at, 0),
            None => shards.post.is_any_crowded(),
        };
        if crowded {
            shards.crowded.push(work.connection.id);
        }
        crowded
    }

    /// Lets a request wait until other shards have read what was written to them.
    #[cold]
    fn wait_for_others_to_read(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        if let Some(shards) = &mut self.shards {
            shards.crowded.push(work.connection.id);
        }
        work.connection.session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
        Flow::Parked
    }

    /// Wakes the sessions that waited for that.
    pub(super) fn wake_crowded(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.shards else { return };
        if !shards.crowded.is_empty() && !shards.post.is_any_crowded() {
            shards.crowded.drain(..).for_each(|id| connections.wake(id));
        }
    }

    /// Whether a session waits for that.
    pub(super) fn is_any_crowded(&self) -> bool {
        self.shards.as_ref().is_some_and(|shards| !shards.crowded.is_empty())
    }

    /// Whether so many replies wait for the shard of this client that no further ones should be made.
    #[cold]
    pub(super) fn is_behind_with_replies(
        &self,
        connection: &mut crate::connection::Connection<Session>,
    ) -> bool {
        let Afar::Back(origin) = connection.session.afar else { return false };
        let bytes = connection.mail().map_or(0, |mail| mail.len());
        let Some(shards) = &self.shards else { return false };
        origin.shard != shards.me && shards.post.is_crowded(origin.shard, bytes)
    }

    /// Whether a reading command may concern keys that joins give.
    fn may_be_derived(&self, command: &Command<'_>, args: Args<'_>, spec: &Spec) -> bool {
        let engine = self.node.engine();
        match command {
            Command::Data(Data::Ranges(Ranges::Prefix { prefix, .. })) => engine.may_derive(prefix),
            Command::Data(Data::Ranges(_) | Data::Functions(_)) => true,
            Command::Sharding(Sharding::Wait { .. }) => true,
            _ => {
                let mut keys = spec.keys.positions(args.len()).filter_map(|at| args.get(at));
                keys.any(|key| engine.may_derive(key))
            }
        }
    }

    /// Lets a request that reads what is derived wait until what is here shows the client's writes
    /// elsewhere. `None`: it does.
    fn await_writes(
        &mut self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        if let Command::Sharding(Sharding::Wait { millis, .. }) = command {
            return self.await_all(*millis, args, work);
        }
        let is_read = !spec.flags.has(Flags::WRITE) && matches!(command, Command::Data(_));
        if !is_read || !self.may_be_derived(command, args, spec) {
            return None;
        }
        self.read_after(command, work);
        let shards = self.shards.as_mut()?;
        let session = &mut work.connection.session;
        let wait = shards.peers.wait(self.node.engine(), &session.positions)?;
        shards.waits.insert(wait, work.connection.id);
        session.waiting = Some(Box::new(Waiting::Shards(OwnedArgs::of(args), wait, None)));
        Some(Flow::Parked)
    }

    /// Notes that a session has written here.
    #[inline]
    pub(super) fn wrote(&mut self, spec: &Spec, session: &mut Session) {
        if spec.flags.has(Flags::WRITE)
            && let Some(shards) = &mut self.shards
        {
            let position = shards.peers.stamp();
            session.positions.reach(shards.me, position);
        }
    }

    /// Tells a shard what the next request of a session must show.
    pub(crate) fn ask_after(&mut self, at: Shard, work: &Turn<'_>) {
        let Some(shards) = &mut self.shards else { return };
        let positions = work.connection.session.positions.clone();
        if positions == Positions::default() {
            return;
        }
        let session = work.connection.id;
        shards.post.to(at).letters.push(Letter::After { session, positions });
    }

    /// The effects of what was done; those that concern other shards are dealt with.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        match &mut self.shards {
            None => self.node.engine_mut().take_effects(),
            Some(shards) => {
                let mut told = Vec::new();
                let effects = shards.peers.turn_notifying(self.node.engine_mut(), &mut told);
                self.sort_told(told);
                effects
            }
        }
    }

    /// Wakes the sessions whose writes elsewhere are shown here now.
    pub(super) fn wake_settled(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.shards else { return };
        for wait in shards.peers.take_settled() {
            if let Some(id) = shards.waits.remove(&wait) {
                connections.wake(id);
            }
        }
    }

    /// Has another shard execute a request.
    pub(super) fn ask(
        &mut self,
        at: Shard,
        args: Args<'_>,
        kind: Kind,
        silent: bool,
        work: &mut Turn<'_>,
    ) {
        self.make_room_to_pass(args.bytes());
        let Some(shards) = &mut self.shards else { return };
        let id = work.connection.id;
        let session = &mut work.connection.session;
        let voice = voice_of(session, self.leading);
        shards.request(at, id, voice, args);
        let silent = silent || session.answering != Answering::On;
        front_of(session, shards).expect(at, kind, silent);
    }

    /// Has several shards execute parts of a request.
    fn ask_all(
        &mut self,
        spec: &'static Spec,
        kind: Kind,
        merge: Merge,
        parts: &[(Shard, crate::shards::Request)],
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let Some(me) = self.shards.as_ref().map(|shards| shards.me) else { return Flow::Next };
        // Figures are of one moment if nothing else is under way; and what is declared is so
        // everywhere before anything else of this client is executed.
        let mut gather = Gather::new(merge, parts.iter().map(|(at, _)| *at).collect(), kind);
        gather.silent = work.connection.session.answering != Answering::On;
        let mut own = None;
        for (at, request) in parts {
            let request = request.args(args);
            if *at == me {
                own = Some(request);
                continue;
            }
            let Some(shards) = &mut self.shards else { continue };
            let session = &work.connection.session;
            let voice = voice_of(session, self.leading);
            shards.request(*at, work.connection.id, voice, request.args());
        }
        let mut holds = spec.flags.has(Flags::ADMIN) || spec.id == Id::Wait;
        let mut flow = Flow::Next;
        if let Some(request) = own {
            match self.execute_part(request.args(), work) {
                Ok((reply, ended)) => {
                    // What the client is told beside its answer comes before it.
                    let pushed = pushed_len(&reply);
                    let (pushes, reply) = reply.split_at(pushed);
                    if pushed > 0 && !work.connection.session.put_behind(None, &[pushes]) {
                        work.out.extend_from_slice(pushes);
                    }
                    gather.take(me, reply);
                    flow = ended;
                }
                Err(()) => {
                    // Its data is not here: it waits as a request by mail, and what follows waits
                    // for it.
                    let Some(shards) = &mut self.shards else { return Flow::Next };
                    let session = &work.connection.session;
                    let voice = voice_of(session, self.leading);
                    shards.request(me, work.connection.id, voice, request.args());
                    holds = true;
                }
            }
        }
        let Some(shards) = &self.shards else { return Flow::Next };
        let version = work.connection.session.version;
        let front = front_of(&mut work.connection.session, shards);
        front.expect_gather(gather);
        front.advance(version);
        if front.is_done() {
            front.collect(work.out);
            return flow;
        }
        if holds && flow == Flow::Next { hold(None, work) } else { flow }
    }

    /// Answers with OK once every shard has taken what was posted before.
    pub(super) fn answer_when_all_heard(&mut self, work: &mut Turn<'_>) {
        let Some(shards) = &mut self.shards else { return };
        let me = shards.me;
        let all: Vec<Shard> = (0..shards.post.shards()).map(Shard).collect();
        let mut gather = Gather::new(Merge::Same, all.clone(), Kind::Plain);
        gather.silent = work.connection.session.answering != Answering::On;
        gather.take(me, b"+OK\r\n");
        let (voice, id) = (voice_of(&work.connection.session, self.leading), work.connection.id);
        // It is answered with OK, and does nothing.
        let nothing: OwnedArgs = [&b"SELECT"[..], b"0"].into_iter().collect();
        for at in all.into_iter().filter(|&at| at != me) {
            shards.request(at, id, voice, nothing.args());
        }
        front_of(&mut work.connection.session, shards).expect_gather(gather);
    }

    /// Executes this shard's part of a request; its reply, unless it would have to wait.
    fn execute_part(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Result<(Vec<u8>, Flow), ()> {
        let Ok(spec) = find(args) else { return Err(()) };
        let out = core::mem::take(work.out);
        let before = core::mem::replace(&mut work.connection.session.whole_replies, true);
        let queue = core::mem::replace(&mut self.executing_queue, true);
        let flow = self.carry_out(spec, args, work);
        self.executing_queue = queue;
        work.connection.session.whole_replies = before;
        let reply = core::mem::replace(work.out, out);
        if flow == Flow::Parked {
            self.forget_waiting(work);
            return Err(());
        }
        Ok((reply, flow))
    }

    /// What a session waits for is asked for in another way.
    pub(crate) fn forget_waiting(&mut self, work: &mut Turn<'_>) {
        let id = work.connection.id;
        let waiting = work.connection.session.waiting.take();
        if let Some(Waiting::Shards(_, wait, deadline)) = waiting.as_deref() {
            self.forget_wait(id, *wait, *deadline);
        }
        self.hub.forget(id);
        self.tickets.retain(|_, waiting| *waiting != id);
    }

    /// Keeps the order of answers: what was written behind `before` goes behind what others have yet to answer.
    #[inline]
    pub(crate) fn keep_order(before: usize, work: &mut Turn<'_>) {
        if let Some(front) = work.connection.session.front()
            && !front.is_done()
            && work.out.len() > before
        {
            front.expect_own(&work.out[before..]);
            work.out.truncate(before);
        }
    }
}

/// How many bytes of messages come before a reply.
fn pushed_len(reply: &[u8]) -> usize {
    let (mut pushed, mut cutter) = (0, ReplyCutter::default());
    while reply.get(pushed) == Some(&b'>')
        && let Some(length) = cutter.cut(&reply[pushed..])
    {
        pushed += length;
    }
    pushed
}

/// How a client wants its answers.
fn voice_of(session: &Session, in_transaction: bool) -> Voice {
    let Session { version, blob_errors, .. } = *session;
    let copies = session.tracking.as_ref().map_or(Copies::None, |tracks| tracks.copies());
    let memcached = session.memcached.is_some();
    Voice { version, blob_errors, memcached, copies, in_transaction }
}

/// What other shards do for a session.
pub(crate) fn front_of<'s>(session: &'s mut Session, shards: &Shards) -> &'s mut Front {
    if !matches!(session.afar, Afar::Front(_)) {
        let wrapped = session.memcached.is_some();
        session.afar = Afar::Front(Box::new(Front::new(shards.me, shards.post.shards(), wrapped)));
    }
    match &mut session.afar {
        Afar::Front(front) => front,
        Afar::None | Afar::Back(_) => unreachable!("it was just put there"),
    }
}

/// Lets a session wait until everything is answered; then it goes on with this request.
pub(super) fn hold(args: Option<Args<'_>>, work: &mut Turn<'_>) -> Flow {
    let session = &mut work.connection.session;
    if let Some(args) = args {
        session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
    }
    if let Some(front) = session.front() {
        front.holds = true;
    }
    Flow::Parked
}
