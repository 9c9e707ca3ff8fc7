//! Requests that other shards execute, and requests that are executed for clients of other shards.
//!
//! What becomes of each request, and in which order they are executed, [`headwater_router::course`] decides; this brings it together with
//! sessions.

mod asks;
mod coordinate;
mod definitions;
mod form;
mod locks;
mod lost;
mod messages;
mod moves;
mod partitions;
mod positions;
mod quiesce;
mod recorded;
mod redoing;
mod sharding;
mod sources;
mod transactions;

use super::session::{Across, Answering, Session, Waiting};
use super::{Flow, Form, ShardService, Turn, encoder};
use crate::connections::Connections;
use crate::resp::parts::OtherShards;
use crate::shards::Shards;
use headwater_base::Shard;
use headwater_command::table::KeyArgs;
use headwater_command::{
    Args, Command, Connection, Data, Flags, Id, OwnedArgs, Ranges, Reply, Sharding, Spec,
    Transaction, table,
};
use headwater_engine::Effect;
use headwater_node::Positions;
use headwater_protocol::resp::{decode, find};
use headwater_router::{
    Ask, AskHeader, Copies, Course, Kind, Merge, Pending, Request, Scattered, Situation, answer_of,
    course,
};

pub(crate) use coordinate::Coordinated;
pub(crate) use form::ClientForm;
pub(crate) use locks::{LockTurn, LockWait, locked_for_long};
#[cfg(test)]
pub(crate) use moves::MovePart;
pub(crate) use redoing::Redoing;

/// Why what names keys of several shards in processes of their own is refused.
const DIVIDED: &str = "Keys in request don't hash to the same slot: they are of several shards, which are in processes of their own";

impl ShardService {
    /// Executes a request elsewhere, or at several shards, if that is where its keys live. `None`: it
    /// is to be executed here.
    #[inline]
    pub(super) fn execute_remote(
        &mut self,
        spec: &'static Spec,
        command: &Command<'_>,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Option<Flow> {
        self.others.shards.as_ref()?;
        if self.waits.executing_queue || work.connection.session.is_remote() {
            return self.await_writes(spec, command, args, work);
        }
        if matches!(command, Command::Transaction(_)) {
            return self.transact_remote(spec, command, args, work);
        }
        if let Some(flow) = self.sourced_remote(command, args, work) {
            return Some(flow);
        }
        if spec.id == Id::Reset && work.connection.session.expects() {
            // What comes behind it is another session's.
            return Some(wait_for_answers(Some(args), work));
        }
        if let Command::Connection(Connection::ClientTracking(asked)) = command
            && let Some(flow) = self.find_redirect(asked, args, work)
        {
            return Some(flow);
        }
        let shards = self.others.shards.as_ref()?;
        let situation = Situation {
            me: shards.me,
            placement: self.node.engine().placement()?,
            pending: work.connection.session.pending_requests(),
            apart: shards.outbox.are_apart(),
            is_crowded: &|at| shards.outbox.is_crowded(at, 0),
            may_derive: &|| self.may_be_derived(command, args, spec),
        };
        match course(&situation, spec, command, args) {
            Course::Here => None,
            Course::HereBehindWrites => self.await_writes(spec, command, args, work),
            Course::Blocked => Some(wait_for_answers(Some(args), work)),
            Course::Crowded(at) => Some(self.others.wait_for_others_to_read(at, args, work)),
            Course::At(at, kind) => {
                self.ask(at, (spec, args), kind, false, work);
                Some(Flow::Next)
            }
            Course::Parts { merge, parts, kind } => {
                // What all shards do is one request, of this one.
                if spec.keys == KeyArgs::NONE {
                    self.figures.stats.times.count();
                }
                Some(self.ask_all(spec, kind, merge, &parts, args, work))
            }
            Course::Divided => {
                let before = work.out.len();
                encoder(work).error("CROSSSLOT", format_args!("{DIVIDED}"));
                self.figures.note_error(before, work);
                Some(Flow::Next)
            }
            Course::Read => {
                let plan = self.plan_of((spec, command, args), true)?;
                Some(self.coordinate(plan, vec![OwnedArgs::of(args)], false, work))
            }
            Course::Step => {
                let plan = self.plan_of((spec, command, args), false)?;
                Some(self.coordinate(plan, vec![OwnedArgs::of(args)], false, work))
            }
            Course::Steps(program) => {
                let plan = self.others.plan_of_steps(program)?;
                Some(self.coordinate(plan, vec![OwnedArgs::of(args)], false, work))
            }
        }
    }

    /// Whether a command may concern keys that joins give. One that writes, too: it is refused, but whether the key is there may come
    /// first (`SET … NX`, `EXPIRE`).
    pub(super) fn may_be_derived(
        &self,
        command: &Command<'_>,
        args: Args<'_>,
        spec: &Spec,
    ) -> bool {
        let engine = self.node.engine();
        match command {
            Command::Data(Data::Ranges(Ranges::Prefix { prefix, .. })) => engine.may_derive(prefix),
            Command::Data(Data::Ranges(_)) => !spec.flags.has(Flags::WRITE),
            Command::Data(Data::Functions(_)) => true,
            Command::Sharding(Sharding::Wait { .. }) => true,
            _ => {
                let mut keys = spec.keys.positions(args.len()).filter_map(|at| args.get(at));
                keys.any(|key| engine.may_derive(key))
            }
        }
    }

    /// Whether EXEC looks at what joins may give: by keys that are watched here, or by what it executes.
    fn exec_reads_derived(&self, session: &Session) -> bool {
        let engine = self.node.engine();
        let is_derived = |request: &OwnedArgs| {
            let args = request.args();
            find(args).is_ok_and(|spec| self.may_derive(spec, args))
        };
        session.watched.keys().any(|key| engine.may_derive(key))
            || session.queue.iter().any(|queue| queue.requests.iter().any(is_derived))
    }

    /// [`Self::may_be_derived`], of a request that is yet to be decoded.
    pub(super) fn may_derive(&self, spec: &'static Spec, args: Args<'_>) -> bool {
        decode(spec, args).is_ok_and(|command| self.may_be_derived(&command, args, spec))
    }

    /// What the requests of a transaction name with `AT`, together.
    fn positions_of_queue(&self, session: &Session) -> Option<Positions> {
        let requests = session.queue.iter().flat_map(|queue| &queue.requests);
        let named = requests.filter_map(|request| {
            let args = request.args();
            self.named_positions(&decode(find(args).ok()?, args).ok()?)
        });
        named.reduce(|mut all, more| {
            all.merge(&more);
            all
        })
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
        let is_read = match command {
            Command::Data(_) => true,
            Command::Transaction(Transaction::Watch { .. }) => true,
            Command::Transaction(Transaction::Exec) => {
                self.exec_reads_derived(&work.connection.session)
            }
            _ => false,
        };
        let is_exec = matches!(command, Command::Transaction(Transaction::Exec));
        if !is_read || !is_exec && !self.may_be_derived(command, args, spec) {
            return None;
        }
        let named = match is_exec {
            true => self.positions_of_queue(&work.connection.session),
            false => self.named_positions(command),
        };
        let is_part = work.connection.session.remote().is_some_and(|it| it.part.is_some());
        let waits_in_vain = self.others.are_apart() || self.waits.queue_was_late;
        if self.waits.executing_queue && !is_part && waits_in_vain {
            // EXEC has waited for what was written before it. What it has written itself is told to other processes once it is safe, with its end, so waiting for
            // that here would be in vain; and an EXEC of which a command has waited for too long holds this shard up no longer.
            return None;
        }
        // Within EXEC, too: what was written before in it may come by way of other shards.
        let wait = self.await_positions(named.as_ref(), work)?;
        work.connection.session.waiting =
            Some(Box::new(Waiting::Shards(OwnedArgs::of(args), wait, None)));
        Some(Flow::Parked)
    }

    /// The effects of what was done; those that concern other shards are dealt with.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        match &mut self.others.shards {
            None => self.node.engine_mut().take_effects(),
            Some(shards) => {
                let mut told = Vec::new();
                let effects = shards.peers.turn_notifying(self.node.engine_mut(), &mut told);
                self.sort_told(told);
                effects
            }
        }
    }

    /// The digest of the placement by which requests are sent.
    #[inline]
    pub(crate) fn placement_digest(&self) -> u64 {
        self.node.engine().placement().map_or(0, |placement| placement.digest())
    }

    /// Has another shard execute a request.
    pub(super) fn ask(
        &mut self,
        at: Shard,
        (spec, args): (&'static Spec, Args<'_>),
        kind: Kind,
        silent: bool,
        work: &mut Turn<'_>,
    ) {
        self.ask_whole(at, &Ask::Command(spec, args), (kind, silent), work);
    }

    /// Has another shard do something whose answer is the client's.
    pub(super) fn ask_whole(
        &mut self,
        at: Shard,
        ask: &Ask<'_>,
        (kind, silent): (Kind, bool),
        work: &mut Turn<'_>,
    ) {
        self.introduce(work);
        let placement = self.placement_digest();
        let user = self.asker_for(ask, work.connection.id);
        let Some(shards) = &mut self.others.shards else { return };
        let session = &mut work.connection.session;
        let after = if kind.reads() { after_of(session, shards) } else { Vec::new() };
        let (copies, no_evict) = (copies_of(session), session.no_evict);
        let silent = silent || session.answering != Answering::On;
        let id = pending_of(session, shards).expect(at, kind, silent);
        let header =
            AskHeader { id, copies, no_evict, placement, after, user, ..AskHeader::default() };
        shards.ask(at, work.connection.id, &header, ask);
    }

    /// Has a shard execute a part of the last request of several parts.
    fn ask_part(&mut self, at: Shard, kind: Kind, ask: &Ask<'_>, work: &mut Turn<'_>) {
        self.introduce(work);
        let placement = self.placement_digest();
        let user = self.asker_for(ask, work.connection.id);
        let Some(shards) = &mut self.others.shards else { return };
        let session = &mut work.connection.session;
        let after = if kind.reads() { after_of(session, shards) } else { Vec::new() };
        let (copies, no_evict) = (copies_of(session), session.no_evict);
        let id = pending_of(session, shards).expect_part(at);
        let header =
            AskHeader { id, copies, no_evict, placement, after, user, ..AskHeader::default() };
        shards.ask(at, work.connection.id, &header, ask);
    }

    /// Has several shards execute parts of a request.
    fn ask_all(
        &mut self,
        spec: &'static Spec,
        kind: Kind,
        merge: Merge,
        parts: &[(Shard, Request)],
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let Some(shards) = &self.others.shards else { return Flow::Next };
        let me = shards.me;
        let mut scattered = Scattered::new(merge, kind);
        scattered.silent = work.connection.session.answering != Answering::On;
        // This shard's own part first.
        let mut own = None;
        let mut told = Vec::new();
        let mut flow = Flow::Next;
        // Figures are of one moment if nothing else is under way; and what is declared is so
        // everywhere before anything else of this client is executed.
        let mut blocks = spec.flags.has(Flags::ADMIN) || spec.id == Id::Wait;
        if let Some((_, request)) = parts.iter().find(|(at, _)| *at == me) {
            match self.execute_part(request.args(args).args(), work) {
                Ok((answer, ended)) => {
                    own = Some(answer);
                    flow = ended;
                    told = core::mem::take(&mut work.connection.session.behind_answer);
                }
                // Its data is not here: it is asked by message, and what follows waits for it.
                Err(()) => blocks = true,
            }
        }
        let Some(shards) = &self.others.shards else { return Flow::Next };
        pending_of(&mut work.connection.session, shards).expect_scattered(scattered);
        for (at, request) in parts {
            match own.take_if(|_| *at == me) {
                Some(answer) => {
                    if let Some(pending) = work.connection.session.pending() {
                        pending.own_part(answer);
                    }
                }
                None => {
                    let request = request.args(args);
                    let Ok(spec) = find(request.args()) else { continue };
                    self.ask_part(*at, kind, &Ask::Command(spec, request.args()), work);
                }
            }
        }
        if !told.is_empty() {
            // What it publishes to itself goes behind the answer.
            work.connection.session.put_behind(None, &[&told]);
        }
        self.collect_own(work);
        if !work.connection.session.expects() {
            return flow;
        }
        if blocks && flow == Flow::Next { wait_for_answers(None, work) } else { flow }
    }

    /// Takes what is complete, where only this shard had a part.
    pub(crate) fn collect_own(&mut self, work: &mut Turn<'_>) {
        let mut form = ClientForm::of(&work.connection.session);
        if let Some(pending) = work.connection.session.pending() {
            pending.advance(&mut form);
            if pending.is_done() {
                pending.collect(work.out);
            }
        }
    }

    /// Answers with OK once every shard has taken what was sent before.
    pub(super) fn answer_when_all_heard(&mut self, work: &mut Turn<'_>) {
        let Some(shards) = &self.others.shards else { return };
        let (me, count) = (shards.me, shards.outbox.shards());
        let mut scattered = Scattered::new(Merge::Same, Kind::Plain);
        scattered.silent = work.connection.session.answering != Answering::On;
        if self.waits.executing_queue {
            // Within EXEC it is an element of its answer, and what follows waits as that does.
            encoder(work).ok();
            return;
        }
        pending_of(&mut work.connection.session, shards).expect_scattered(scattered);
        if let Some(pending) = work.connection.session.pending() {
            pending.own_part(answer_of(|out| out.ok()));
        }
        // It is answered with OK, and does nothing.
        let nothing: OwnedArgs = [&b"SELECT"[..], b"0"].into_iter().collect();
        let Some(spec) = table::lookup(b"select") else { return };
        for at in (0..count).map(Shard).filter(|at| *at != me) {
            self.ask_part(at, Kind::Plain, &Ask::Command(spec, nothing.args()), work);
        }
    }

    /// Executes this shard's part of a request; its answer, unless it would have to wait.
    fn execute_part(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Result<(Vec<u8>, Flow), ()> {
        let Ok(spec) = find(args) else { return Err(()) };
        let out = core::mem::take(work.out);
        let form = core::mem::replace(&mut work.connection.session.form, Form::Typed);
        let queue = core::mem::replace(&mut self.waits.executing_queue, true);
        let flow = self.carry_out(spec, args, work);
        self.waits.executing_queue = queue;
        work.connection.session.form = form;
        let answer = core::mem::replace(work.out, out);
        if flow == Flow::Parked {
            self.forget_waiting(work);
            return Err(());
        }
        Ok((answer, flow))
    }

    /// What a session waits for is asked for in another way.
    pub(crate) fn forget_waiting(&mut self, work: &mut Turn<'_>) {
        let id = work.connection.id;
        let waiting = work.connection.session.waiting.take();
        work.connection.session.awaiting = None;
        if let Some(Waiting::Shards(_, wait, deadline)) = waiting.as_deref() {
            self.forget_wait(id, *wait, *deadline);
        }
        self.stores.hub.forget(id);
        self.waits.tickets.retain(|_, waiting| *waiting != id);
    }

    /// Keeps the order of answers: what was written behind `before` goes behind what others have yet to answer.
    #[inline]
    pub(crate) fn keep_order(before: usize, work: &mut Turn<'_>) {
        if work.connection.session.waiting.is_none() {
            // Whatever it awaited, its request goes no further.
            work.connection.session.awaiting = None;
        }
        if let Some(pending) = work.connection.session.pending()
            && !pending.is_done()
            && work.out.len() > before
        {
            pending.expect_own(&work.out[before..]);
            work.out.truncate(before);
        }
    }
}

impl OtherShards {
    /// Has a session wait, where so many bytes wait for one of these shards that nothing should be written to it;
    /// whether it has to. Its request begins anew then.
    pub(crate) fn lets_others_read(
        &mut self,
        mut at: &mut dyn Iterator<Item = Shard>,
        work: &Turn<'_>,
    ) -> bool {
        let Some(shards) = &mut self.shards else { return false };
        let (me, outbox) = (shards.me, &shards.outbox);
        let crowded = Iterator::find(&mut at, |at| *at != me && outbox.is_crowded(*at, 0));
        shards.crowded.extend(crowded.map(|at| (work.connection.id, at)));
        crowded.is_some()
    }

    /// Lets a request wait until another shard has read what was written to it.
    #[cold]
    fn wait_for_others_to_read(&mut self, at: Shard, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        if let Some(shards) = &mut self.shards {
            shards.crowded.push((work.connection.id, at));
        }
        work.connection.session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
        Flow::Parked
    }

    /// Wakes the sessions that waited for that, each as soon as its own shard has.
    pub(super) fn wake_crowded(&mut self, connections: &mut Connections<Session>) {
        let Some(shards) = &mut self.shards else { return };
        let outbox = &shards.outbox;
        shards.crowded.retain(|(id, at)| {
            let waits = outbox.is_crowded(*at, 0);
            if !waits {
                connections.wake(*id);
            }
            waits
        });
    }

    /// Whether a session waits for that.
    pub(super) fn is_any_crowded(&self) -> bool {
        self.shards.as_ref().is_some_and(|shards| !shards.crowded.is_empty())
    }

    /// [`Shards::tells_of_process`], of the only shard that there is as well.
    pub(in crate::resp) fn tells_of_process(&self) -> bool {
        self.shards.as_ref().is_none_or(|shards| shards.tells_of_process())
    }

    /// Whether the other shards are in processes of their own.
    #[inline]
    pub(in crate::resp) fn are_apart(&self) -> bool {
        self.shards.as_ref().is_some_and(|shards| shards.outbox.are_apart())
    }

    /// Whether so many replies wait for the shard of this client that no further ones should be made.
    #[cold]
    pub(super) fn is_behind_with_replies(
        &self,
        connection: &mut crate::connection::Connection<Session>,
    ) -> bool {
        let Across::Remote(remote) = &connection.session.across else { return false };
        let origin = remote.origin;
        let bytes = connection.answers().map_or(0, |answers| answers.len());
        let Some(shards) = &self.shards else { return false };
        origin.shard != shards.me && shards.outbox.is_crowded(origin.shard, bytes)
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
}

/// How a client keeps copies of what it reads.
pub(crate) fn copies_of(session: &Session) -> Copies {
    session.tracking.as_ref().map_or(Copies::None, |tracks| tracks.copies())
}

/// How far each shard must have come before it reads what is derived for a session; nothing, where that is no matter.
pub(crate) fn after_of(session: &Session, shards: &Shards) -> Vec<u64> {
    if session.positions == Positions::default() {
        return Vec::new();
    }
    (0..shards.outbox.shards()).map(|at| session.positions.get(Shard(at)).0).collect()
}

/// What other shards do for a session.
pub(crate) fn pending_of<'s>(session: &'s mut Session, shards: &Shards) -> &'s mut Pending {
    if !matches!(session.across, Across::Client(_)) {
        let mut pending = Pending::new(shards.me, shards.outbox.shards());
        pending.strict = shards.outbox.are_apart();
        session.across = Across::Client(Box::new(pending));
    }
    match &mut session.across {
        Across::Client(pending) => pending,
        Across::Nothing | Across::Remote(_) => unreachable!("it was just put there"),
    }
}

/// Lets a session wait until everything is answered; then it goes on with this request.
pub(super) fn wait_for_answers(args: Option<Args<'_>>, work: &mut Turn<'_>) -> Flow {
    let session = &mut work.connection.session;
    if let Some(args) = args {
        session.waiting = Some(Box::new(Waiting::Request(OwnedArgs::of(args))));
    }
    if let Some(pending) = session.pending() {
        pending.blocks = true;
    }
    Flow::Parked
}
