//! One request: found, admitted, decoded, executed.

use super::owners::{is_explanation, is_for_user};
use super::session::{Answering, Postponed, Waiting};
use super::{Flow, ShardService, Turn, encoder, is_refusal};
use crate::handover::greeting;
use crate::log::event;
use crate::memory::STORE_LOOK;
use headwater_command::{Args, Command, Data, Flags, Id, Keys, OwnedArgs, Reply, Spec};
use headwater_engine::{EngineError, Ticket};
use headwater_node::Outcome;
use headwater_protocol::resp::{Refusal, Version, decode, find};

impl ShardService {
    /// Executes one request, or queues or refuses it.
    #[inline]
    pub(super) fn request(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        if self.admission.entrance.renames.is_empty() {
            self.request_named(args, work)
        } else {
            self.request_renamed(args, work)
        }
    }

    /// As [`ShardService::request`], by the name that the command has in the table.
    #[inline]
    pub(super) fn request_named(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        let spec = match find(args) {
            Ok(spec) => spec,
            Err(refusal) => return self.not_found(&refusal, work),
        };
        if self.admission.registry.version() != self.admission.seen.version
            && !self.keeps_rights(work)
        {
            return Flow::Close;
        }
        let session = &mut work.connection.session;
        session.last_command = spec.full_name;
        session.commands += 1;
        let plain = session.unrestricted
            && session.queue.is_none()
            && !session.is_subscriber()
            && session.answering == Answering::On;
        if plain { self.execute(spec, args, work) } else { self.admit(spec, args, work) }
    }

    /// Refuses a request that is no command.
    #[cold]
    pub(super) fn not_found(&mut self, refusal: &Refusal<'_>, work: &mut Turn<'_>) -> Flow {
        if let Refusal::UnknownCommand(args) = refusal
            && is_http(*args)
        {
            return foreign(work);
        }
        if let Refusal::UnknownCommand(args) = refusal
            && greeting::is_request(*args)
            && let Some(flow) = self.take_over(*args, work)
        {
            return flow;
        }
        if let Some(queue) = &mut work.connection.session.queue {
            queue.broken = true;
        }
        self.waits.end_caching(None, &mut work.connection.session);
        self.answered(work, |service, work| {
            let before = work.out.len();
            refusal.write(&mut encoder(work));
            service.figures.note_rejected(refusal.spec(), before, work);
            Flow::Next
        })
    }

    /// Executes a request of a session in which not everything is allowed, or not at once.
    fn admit(&mut self, spec: &'static Spec, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        if !work.connection.session.watches.is_empty() {
            self.tell_watchers(work);
        }
        self.answered(work, |service, work| {
            let before = work.out.len();
            let session = &mut work.connection.session;
            if !session.authenticated && !is_before_authentication(spec.id) {
                if let Some(queue) = &mut session.queue {
                    queue.broken = true;
                }
                encoder(work).error("NOAUTH", format_args!("Authentication required."));
                service.figures.note_rejected(Some(spec), before, work);
                return Flow::Next;
            }
            if !session.unrestricted
                && !is_before_authentication(spec.id)
                && !service.is_allowed(spec, args, work)
            {
                service.discard_for_refusal(spec.id, before, work);
                service.figures.note_rejected(Some(spec), before, work);
                service.waits.end_caching(Some(spec), &mut work.connection.session);
                return Flow::Next;
            }
            let session = &mut work.connection.session;
            if session.queue.is_some() && !is_never_queued(spec.id) {
                let flow = service.enqueue(spec, args, work);
                if is_refusal(before, work) {
                    service.figures.note_rejected(Some(spec), before, work);
                }
                return flow;
            }
            if session.is_subscriber()
                && session.version == Version::Resp2
                && !is_for_subscribers(spec.id)
            {
                let name = spec.full_name;
                let watches = !session.watches.is_empty();
                let also = if watches { "RANGE.WATCH / RANGE.UNWATCH / " } else { "" };
                encoder(work).error(
                    "ERR",
                    format_args!(
                        "Can't execute '{name}': only {also}(P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / \
                         QUIT / RESET are allowed in this context"
                    ),
                );
                service.figures.note_rejected(Some(spec), before, work);
                service.waits.end_caching(Some(spec), &mut work.connection.session);
                return Flow::Next;
            }
            service.execute(spec, args, work)
        })
    }

    /// Runs one request and takes its answer back if the client wants none.
    pub(super) fn answered(
        &mut self,
        work: &mut Turn<'_>,
        run: impl FnOnce(&mut Self, &mut Turn<'_>) -> Flow,
    ) -> Flow {
        let before = work.out.len();
        let answering = work.connection.session.answering;
        if answering == Answering::SkipNext {
            work.connection.session.answering = Answering::Skip;
        }
        let flow = run(self, work);
        if flow == Flow::Parked {
            if work.connection.session.answering != Answering::On {
                take_back(work, before);
            }
            // It will be run again from here.
            work.connection.session.answering = answering;
            return flow;
        }
        match work.connection.session.answering {
            Answering::On => {}
            Answering::Off | Answering::SkipNext => take_back(work, before),
            Answering::Skip => {
                take_back(work, before);
                work.connection.session.answering = Answering::On;
            }
        }
        // What it publishes to itself, whether it wants answers or not.
        if !work.connection.session.behind_answer.is_empty() {
            work.out.append(&mut work.connection.session.behind_answer);
        }
        flow
    }

    /// Decodes and executes a request that is admitted.
    #[inline]
    pub(super) fn execute(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        // What other shards ask was counted where its client is, but for what a transaction has queued that they execute whole.
        let session = &work.connection.session;
        if !session.is_remote() || self.waits.executing_queue && !session.in_transaction() {
            self.figures.stats.count(spec.id);
        }
        self.figures.stats.times.enter(spec.id);
        let before = work.out.len();
        let flow = self.run_once(spec, args, true, work);
        if flow != Flow::Parked {
            self.note_outcome(spec, args, before, work);
        }
        flow
    }

    /// As [`ShardService::execute`], what is a part of a command that was counted, or is tried again.
    pub(super) fn carry_out(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        work: &mut Turn<'_>,
    ) -> Flow {
        self.figures.stats.times.enter(spec.id);
        let before = work.out.len();
        let flow = self.run_once(spec, args, false, work);
        if flow != Flow::Parked {
            self.note_outcome(spec, args, before, work);
        }
        flow
    }

    fn run_once(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        is_first: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        let command = match decode(spec, args) {
            Ok(command) => command,
            Err(refusal) => {
                // As in Redis, where arguments are looked at by the command itself.
                self.show_new((spec, is_first), args, work);
                refusal.write(&mut encoder(work));
                self.waits.end_caching(Some(spec), &mut work.connection.session);
                return Flow::Next;
            }
        };
        if spec.flags.has(Flags::ADMIN)
            && let Err(text) = self.check_reach(&command, work.connection)
        {
            encoder(work).error("ERR", format_args!("{text}"));
            return Flow::Next;
        }
        self.show_new((spec, is_first), args, work);
        if self.waits.pause.is_on(self.time.uptime)
            && let Some(flow) = self.wait_for_pause((spec, is_first), args, work)
        {
            return flow;
        }
        self.note_who_asks(spec, work);
        if let Some(flow) = self.admit_length(spec, args, work) {
            return flow;
        }
        if self.others.shards.is_some()
            && let Some(flow) = self.execute_remote(spec, &command, args, work)
        {
            self.waits.end_caching(Some(spec), &mut work.connection.session);
            return flow;
        }
        if is_first && !self.is_part_of_all(spec, &command, args, work) {
            self.figures.stats.times.count();
        }
        if let Some(flow) = self.wait_for_locks(spec, &command, args, work) {
            return flow;
        }
        if let Err(flow) = self.admission(spec, args, &command, work) {
            if flow == Flow::Next {
                self.figures.stats.is_rejected = true;
                self.waits.end_caching(Some(spec), &mut work.connection.session);
            }
            return flow;
        }
        if !self.may_write(spec, args, work) {
            self.figures.stats.is_rejected = true;
            self.waits.end_caching(Some(spec), &mut work.connection.session);
            return Flow::Next;
        }
        let before = work.out.len();
        let flow = match &command {
            Command::Data(Data::Keys(Keys::MemoryStats)) => {
                self.memory_stats(work);
                Flow::Next
            }
            Command::Data(data @ Data::Flows(_)) => match self.execute_data(spec, data, work) {
                Outcome::Done => self.flows_answered(),
                outcome => self.go_on_with(outcome, data, args, work),
            },
            Command::Data(data) if self.concerns_sources(data) => {
                self.execute_sourced(spec, data, args, work)
            }
            Command::Data(data) => match self.execute_data(spec, data, work) {
                Outcome::Done => Flow::Next,
                outcome => self.go_on_with(outcome, data, args, work),
            },
            Command::Connection(command) => self.connection(command, work),
            Command::PubSub(command) => self.pub_sub(command, work),
            Command::RangeWatch(command) => self.range_watch(command, args, work),
            Command::Transaction(command) => self.transaction(command, args, work),
            Command::Cluster(command) => self.cluster(spec, command, args, work),
            Command::Sharding(command) => self.sharding(command, args, work),
            Command::Server(command) => self.server(command, args, work),
            Command::Acl(command) => self.acl(command, work),
            Command::Sources(command) => self.sources(command, args, work),
            Command::Help(container) => {
                headwater_command::describe::help(container, &mut encoder(work));
                Flow::Next
            }
        };
        if self.others.shards.is_some() && flow == Flow::Next {
            self.others.wrote(spec, &mut work.connection.session);
        }
        let may_define = spec.flags.has(Flags::ADMIN);
        if may_define && flow == Flow::Next && !is_refusal(before, work) {
            self.defined(&command);
            self.note_definition(spec, &command, work);
        }
        if self.pushes.tracking.is_on() {
            // What is sent in slices was read at this moment.
            let is_read = flow != Flow::Parked || work.connection.session.is_sending();
            self.track(spec, args, is_read, work);
        }
        let lap = self.figures.clock.lap();
        if let Some(lap) = lap
            && !work.connection.session.is_blocked()
            && !work.connection.session.is_step()
        {
            self.note_slow(lap, spec, args, work);
        }
        flow
    }

    /// Notes for whom a command is, where its answer depends on that.
    fn note_who_asks(&mut self, spec: &'static Spec, work: &mut Turn<'_>) {
        if self.others.shards.is_some() && is_for_user(spec) {
            self.note_asker(work);
        }
        if is_explanation(spec.id) {
            self.explain_to_user(spec, &work.connection.session);
        }
    }

    /// Lets the session wait for `ticket`, to run the request again then.
    #[cold]
    pub(super) fn park(&mut self, ticket: Ticket, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        self.waits.tickets.insert(ticket, work.connection.id);
        if self.bound.gauge.gains_soon() {
            // Nobody tells when a store has given memory back.
            self.waits
                .blocking
                .add_deadline(Some(self.time.uptime + STORE_LOOK), work.connection.id);
        }
        let since = self.waits.running_since.take().unwrap_or(self.time.uptime);
        let reads = find(args).is_ok_and(|spec| spec.flags.has(Flags::READONLY));
        let postponed = Postponed { request: OwnedArgs::of(args), ticket, since, reads };
        work.connection.session.waiting = Some(Box::new(Waiting::Data(postponed)));
        Flow::Parked
    }

    /// Goes on with what a session waited in.
    #[cold]
    pub(super) fn resume(&mut self, waiting: Waiting, work: &mut Turn<'_>) -> Flow {
        self.figures.clock.begin();
        let failure = self.waits.failures.remove(&work.connection.id);
        if let Waiting::Coordinated(coordinated) = waiting {
            let flow =
                self.answered(work, |service, work| service.go_on_coordinating(coordinated, work));
            Self::end_coordinated(flow, work);
            return flow;
        }
        if let Some(error) = &failure {
            let before = work.out.len();
            encoder(work).error(error.code(), format_args!("{error}"));
            self.figures.note_late_failure(waiting.request(), before, work);
            self.stores.hub.forget_named(work.connection.id);
        }
        if let Waiting::Exec { .. } | Waiting::Sending(_) = waiting {
            return self.answered(work, |service, work| match waiting {
                Waiting::Exec { queue, next } => {
                    service.run_queue(queue, next + usize::from(failure.is_some()), work)
                }
                Waiting::Sending(sending) => service.go_on_sending(sending, work),
                _ => Flow::Next,
            });
        }
        match waiting {
            Waiting::Request(_) | Waiting::Data(_) | Waiting::Shards(..) | Waiting::Locked(_)
                if failure.is_some() =>
            {
                // Between MULTI and EXEC, EXEC alone waits.
                if work.connection.session.queue.is_some() {
                    self.discard(work);
                }
                Flow::Next
            }
            Waiting::Request(request) => self.run_again(&request, work),
            Waiting::Data(postponed) => self.go_on(&postponed, work),
            Waiting::Shards(request, wait, deadline) => {
                self.resume_shards((request, wait, deadline), work)
            }
            Waiting::Blocked(blocked) => self.resume_blocked(blocked, work),
            Waiting::Locked(request) => self.resume_locked(request, work),
            Waiting::Asked(frame) => self.resume_asked(&frame, failure.as_ref(), work),
            Waiting::Coordinated(_) | Waiting::Exec { .. } | Waiting::Sending(_) => Flow::Next,
            Waiting::Watch(id) => self.answered(work, |service, work| {
                service.answer_watch(id, work);
                Flow::Next
            }),
        }
    }

    /// Executes a request from its start whose data has come, or whose next slice it is.
    fn go_on(&mut self, postponed: &Postponed, work: &mut Turn<'_>) -> Flow {
        self.waits.tickets.remove(&postponed.ticket);
        let most = self.settings.config.clients.command_milliseconds_max;
        // What has begun to remove keys ends when all of them are gone.
        let may_end = !self.node.engine().is_removing(postponed.ticket);
        if most > 0 && may_end && self.time.uptime >= postponed.since + most {
            self.node.engine_mut().forget_ticket(postponed.ticket);
            if work.connection.session.queue.is_some() {
                self.discard(work);
            }
            return self.answered(work, |service, work| {
                let before = work.out.len();
                service.refuse_late(most, work);
                service.figures.note_late_failure(Some(postponed.request.args()), before, work);
                Flow::Next
            });
        }
        self.node.engine_mut().resume(postponed.ticket);
        self.waits.running_since = Some(postponed.since);
        let flow = self.run_again(&postponed.request, work);
        // It may have been refused before the engine heard of it.
        self.node.engine_mut().end_slice();
        self.waits.running_since = None;
        flow
    }

    /// Refuses to go on with a command that has taken longer than it may.
    pub(super) fn refuse_late(&mut self, most: u64, work: &mut Turn<'_>) {
        let error = EngineError::TookTooLong { milliseconds: most };
        encoder(work).error(error.code(), format_args!("{error}"));
    }

    /// Executes a request that has waited, from its start.
    pub(super) fn run_again(&mut self, request: &OwnedArgs, work: &mut Turn<'_>) -> Flow {
        let args = request.args();
        match find(args) {
            // It was admitted when it came, and is not queued now; its user may have lost a right meanwhile.
            Ok(spec) => self.answered(work, |service, work| {
                let before = work.out.len();
                let session = &mut work.connection.session;
                if session.unrestricted {
                    session.queue.iter_mut().for_each(|queue| queue.refused.clear());
                } else if !service.is_allowed(spec, args, work) {
                    service.discard_for_refusal(spec.id, before, work);
                    service.note_outcome(spec, args, before, work);
                    return Flow::Next;
                }
                service.carry_out(spec, args, work)
            }),
            Err(refusal) => self.not_found(&refusal, work),
        }
    }
}

/// Whether what is no command is a line of a request over HTTP: its first one, or the header that follows it in any case.
fn is_http(args: Args<'_>) -> bool {
    let is = |word: &[u8]| args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(word));
    let last = args.len().checked_sub(1).and_then(|at| args.get(at));
    is(b"post") || is(b"host:") || last.is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// Ends a connection over which HTTP is spoken. A web page may have its visitor's browser send a request to this port; the lines
/// of its body would otherwise be executed, each as a command.
#[cold]
pub(crate) fn foreign(work: &Turn<'_>) -> Flow {
    let peer = &work.connection.peer;
    event!(warn, "clients", "http_refused", %peer, "HTTP on a port where it is not spoken, perhaps from a web page: the connection is ended");
    Flow::Close
}

/// Takes back what was answered behind the first `before` bytes.
pub(super) fn take_back(work: &mut Turn<'_>, before: usize) {
    work.out.truncate(before);
    work.held.cut(before);
}

/// Commands that a client may send before it has given the password.
fn is_before_authentication(id: Id) -> bool {
    matches!(id, Id::Auth | Id::Hello | Id::Quit | Id::Reset)
}

/// Commands that act at once between MULTI and EXEC.
fn is_never_queued(id: Id) -> bool {
    matches!(id, Id::Multi | Id::Exec | Id::Discard | Id::Watch | Id::Quit | Id::Reset)
}

/// Commands that a RESP2 client may send while it listens to channels or watches ranges.
fn is_for_subscribers(id: Id) -> bool {
    matches!(
        id,
        Id::Subscribe
            | Id::Unsubscribe
            | Id::PSubscribe
            | Id::PUnsubscribe
            | Id::SSubscribe
            | Id::SUnsubscribe
            | Id::RangeWatch
            | Id::RangeUnwatch
            | Id::Ping
            | Id::Quit
            | Id::Reset
    )
}
