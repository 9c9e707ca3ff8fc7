//! What several shards do for a client of this one as one step ([`headwater_router::Transaction`]): transactions whose keys live on
//! several, commands that name keys of several, and reads of several that show one moment.
//!
//! The client's session waits from step to step. What has begun goes on to its end, whatever becomes of the client. The
//! answer goes out when it is whole; what the client is told meanwhile goes behind it.

use super::asks::MOVED;
use super::locks::{LOCK_WAIT_MAX, queue_of};
use super::{after_of, copies_of, pending_of};
use crate::resp::errors::is_refusal;
use crate::resp::parts::{Figures, OtherShards};
use crate::resp::session::{Queue, Waiting};
use crate::resp::slowlog::Told;
use crate::resp::{Flow, NotAllowed, ShardService, Turn, encoder};
use headwater_command::{Args, Command, Flags, OwnedArgs, Reply, Spec};
use headwater_engine::EngineError;
use headwater_protocol::resp::{decode, find};
use headwater_router::{
    Answer, AskHeader, Budget, Finished, Inner, Item, ItemAnswer, Next, Plan, Program, Step, Token,
    Transaction,
};
use std::collections::{BTreeMap, VecDeque};

/// What a session waits in, step by step.
#[derive(Debug)]
pub(crate) struct Coordinated {
    transaction: Transaction,
    /// The requests, in order.
    requests: Vec<OwnedArgs>,
    /// They are those of an EXEC, whose answer is an array.
    is_exec: bool,
    /// Those that the user may not send any more, by their places.
    refused: BTreeMap<usize, NotAllowed>,
    /// It has watched keys.
    watches: bool,
    /// The client has waited for it: nobody else counts what comes of it, and how long it took.
    has_waited: bool,
    /// When it began, in microseconds.
    begun: u64,
    /// Its number among those of which shards keep records, once they do.
    number: Option<u64>,
    /// Answers to those that the session has executed itself.
    own: VecDeque<Vec<u8>>,
}

/// Whether a shard says that keys have got other homes.
fn is_moved(error: &[u8]) -> bool {
    let token = Answer::whole(error).map(|answer| answer.token());
    matches!(token, Some(Token::Error { code: MOVED, .. }))
}

impl Coordinated {
    /// Whether nothing of it was executed, or will be once it is given up: after a crash the rest of it would be done where a shard has a record of it.
    pub(crate) fn may_be_given_up(&self) -> bool {
        self.transaction.may_be_given_up() && self.number.is_none()
    }

    /// Has it go no further, where that may be ([`Transaction::give_up`]).
    pub(crate) fn give_up(&mut self, error: &[u8]) {
        self.transaction.give_up(error);
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let requests = self.requests.iter().map(OwnedArgs::reserved_bytes);
        let own = self.own.iter().map(Vec::capacity);
        size_of::<Self>() + self.transaction.bytes() + requests.sum::<usize>() + own.sum::<usize>()
    }
}

impl ShardService {
    /// A plan of one command, which is one step.
    pub(super) fn plan_of(
        &mut self,
        (spec, command, args): (&Spec, &Command<'_>, Args<'_>),
        reads: bool,
    ) -> Option<Plan> {
        let derived = self.may_be_derived(command, args, spec);
        let id = self.others.shards.as_mut()?.next_transaction();
        let mut plan = Plan::new(id, LOCK_WAIT_MAX);
        plan.add(self.node.engine().placement()?, (spec, command, args), derived, true);
        plan.reads = reads;
        Some(if reads { plan } else { plan.prepared(args.at(0)) })
    }

    /// A plan of a transaction's requests.
    pub(super) fn plan_of_queue(&mut self, queue: &Queue) -> Option<Plan> {
        let id = self.others.shards.as_mut()?.next_transaction();
        let mut plan = Plan::new(id, LOCK_WAIT_MAX);
        for (at, request) in queue.requests.iter().enumerate() {
            if queue.refused.contains_key(&at) {
                // The session answers it: no shard is asked.
                plan.items.push(Item::Here);
                continue;
            }
            let args = request.args();
            // They were found, and read, when they were queued.
            let Ok(spec) = find(args) else { continue };
            let Ok(command) = decode(spec, args) else { continue };
            let derived =
                !spec.flags.has(Flags::ADMIN) && self.may_be_derived(&command, args, spec);
            plan.add(self.node.engine().placement()?, (spec, &command, args), derived, false);
        }
        let (bytes, denies_oom, stores) = (queue.bytes as u64, queue.denies_oom, queue.stores);
        plan.budget = Budget { bytes, denies_oom, stores };
        Some(plan)
    }

    /// Has a plan carried out.
    pub(super) fn coordinate(
        &mut self,
        plan: Plan,
        requests: Vec<OwnedArgs>,
        is_exec: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        self.coordinate_rest(plan, (requests, BTreeMap::new()), is_exec, work)
    }

    /// As [`ShardService::coordinate`], where some of the requests are refused.
    pub(super) fn coordinate_rest(
        &mut self,
        mut plan: Plan,
        (requests, refused): (Vec<OwnedArgs>, BTreeMap<usize, NotAllowed>),
        is_exec: bool,
        work: &mut Turn<'_>,
    ) -> Flow {
        self.record_plan(&mut plan);
        let Some(shards) = &self.others.shards else { return Flow::Next };
        pending_of(&mut work.connection.session, shards).begin_answer();
        let watches = !plan.watches_at.is_empty();
        let coordinated = Box::new(Coordinated {
            transaction: Transaction::new(plan),
            requests,
            is_exec,
            refused,
            watches,
            has_waited: false,
            begun: self.figures.clock.now(),
            number: None,
            own: VecDeque::new(),
        });
        let flow = self.take_steps(coordinated, Vec::new(), work);
        Self::end_coordinated(flow, work);
        flow
    }

    /// The answer is whole, unless it waits on.
    pub(in crate::resp) fn end_coordinated(flow: Flow, work: &mut Turn<'_>) {
        if flow != Flow::Parked
            && let Some(pending) = work.connection.session.pending()
        {
            pending.end_answer(work.out);
        }
    }

    /// Goes on with it, where all have answered what they were asked.
    pub(in crate::resp) fn go_on_coordinating(
        &mut self,
        coordinated: Box<Coordinated>,
        work: &mut Turn<'_>,
    ) -> Flow {
        let session = &mut work.connection.session;
        if let Some(pending) = session.pending()
            && !pending.is_done()
        {
            // Something else has woken it.
            pending.blocks = true;
            session.waiting = Some(Box::new(Waiting::Coordinated(coordinated)));
            return Flow::Parked;
        }
        let answers = session.pending().map(|pending| pending.take_inner()).unwrap_or_default();
        self.take_steps(coordinated, answers, work)
    }

    fn take_steps(
        &mut self,
        mut coordinated: Box<Coordinated>,
        mut answers: Vec<Inner>,
        work: &mut Turn<'_>,
    ) -> Flow {
        loop {
            let Some(placement) = self.node.engine().placement() else { return Flow::Next };
            match coordinated.transaction.next(placement, &answers) {
                Next::Ask(steps) if steps.is_empty() => answers = Vec::new(),
                Next::Now(at) => {
                    let before = work.out.len();
                    self.execute_own(&coordinated.requests[at], work);
                    coordinated.own.push_back(work.out.split_off(before));
                    answers = Vec::new();
                }
                Next::Ask(steps) => {
                    for step in &steps {
                        let record = self.record_of(&mut coordinated, step);
                        self.ask_step(step, record, work);
                    }
                    let session = &mut work.connection.session;
                    if let Some(pending) = session.pending() {
                        pending.blocks = true;
                    }
                    coordinated.has_waited = true;
                    session.waiting = Some(Box::new(Waiting::Coordinated(coordinated)));
                    return Flow::Parked;
                }
                Next::Finished(finished) => {
                    if let (Some(number), Some(shards)) = (coordinated.number, &self.others.shards)
                    {
                        shards.outbox.transport().recorded().close(number);
                    }
                    return self.finish(&mut coordinated, finished, work);
                }
            }
        }
    }

    /// Executes a request of a transaction that is the session's own.
    fn execute_own(&mut self, request: &OwnedArgs, work: &mut Turn<'_>) -> Flow {
        let Ok(spec) = find(request.args()) else { return Flow::Next };
        self.waits.executing_queue = true;
        let done = self.execute(spec, request.args(), work);
        self.waits.executing_queue = false;
        done
    }

    /// Asks a shard (this one, too) for something whose answer is not the client's.
    fn ask_step(&mut self, step: &Step, record: Option<(u64, Vec<u8>)>, work: &mut Turn<'_>) {
        let recorded = record.as_ref().map_or(0, |(_, record)| record.len());
        self.make_room_to_pass(step.ask.bytes() + recorded);
        let placement = self.placement_digest();
        let user = step.ask.borrow(|ask| self.asker_for(ask, work.connection.id));
        let Some(shards) = &mut self.others.shards else { return };
        let session = &mut work.connection.session;
        let after = if step.kind.reads() { after_of(session, shards) } else { Vec::new() };
        let (copies, no_evict) = (copies_of(session), session.no_evict);
        let id = pending_of(session, shards).expect_inner(step.at, step.kind);
        let wants_digests = true;
        let header =
            AskHeader { id, copies, wants_digests, no_evict, placement, after, record, user };
        step.ask.borrow(|ask| shards.ask(step.at, work.connection.id, &header, ask));
    }

    /// What the shard of a step is to keep with it, with the transaction's number, which it gets with the first such step: all locks are
    /// its own then.
    fn record_of(&self, coordinated: &mut Coordinated, step: &Step) -> Option<(u64, Vec<u8>)> {
        let (placement, shards) = (self.node.engine().placement()?, self.others.shards.as_ref()?);
        let record = coordinated.transaction.record_of(placement, step)?;
        let begin = || shards.outbox.transport().recorded().begin();
        Some((*coordinated.number.get_or_insert_with(begin), record))
    }

    /// Keys have got other homes since it was planned: nothing was executed, and it is planned once more.
    #[cold]
    fn begin_anew(&mut self, coordinated: &mut Coordinated, work: &mut Turn<'_>) -> Flow {
        if coordinated.is_exec && coordinated.watches {
            // A key that is watched counts as changed when it gets another home.
            self.unwatch_remote(work);
            encoder(work).null_array();
            return Flow::Next;
        }
        if coordinated.is_exec {
            let mut queue = queue_of(&coordinated.requests, self.node.engine().now());
            queue.refused = core::mem::take(&mut coordinated.refused);
            let Some(plan) = self.plan_of_queue(&queue) else { return Flow::Next };
            return self.coordinate_rest(plan, (queue.requests, queue.refused), true, work);
        }
        let Some(request) = coordinated.requests.first() else { return Flow::Next };
        let args = request.args();
        find(args).map_or(Flow::Next, |spec| self.carry_out(spec, args, work))
    }

    /// Answers.
    fn finish(
        &mut self,
        coordinated: &mut Coordinated,
        finished: Finished,
        work: &mut Turn<'_>,
    ) -> Flow {
        let mut flow = Flow::Next;
        let is_done = matches!(finished, Finished::Done(_));
        if coordinated.is_exec {
            self.forget_watches(&mut work.connection.session);
        }
        if let Some(pending) = work.connection.session.pending() {
            // What was answered before.
            pending.collect(work.out);
        }
        match finished {
            Finished::Done(answers) => {
                if coordinated.is_exec {
                    encoder(work).array(answers.len());
                }
                let all = answers.iter().zip(&coordinated.requests).enumerate();
                for (at, (answer, request)) in all {
                    if let Some(why) = coordinated.refused.get(&at) {
                        self.refuse_queued(why, request.args(), work);
                        continue;
                    }
                    let is_elsewhere = !matches!(answer, ItemAnswer::Here | ItemAnswer::Own);
                    if coordinated.is_exec
                        && is_elsewhere
                        && let Ok(spec) = find(request.args())
                    {
                        self.figures.stats.count(spec.id);
                    }
                    let before = work.out.len();
                    match answer {
                        ItemAnswer::Typed(bytes) => {
                            Answer::whole(bytes)
                                .into_iter()
                                .for_each(|answer| answer.replay(&mut encoder(work)));
                        }
                        ItemAnswer::Merged(merge, parts) => {
                            let parts = parts.iter();
                            let parts: Vec<_> = parts
                                .filter_map(|(shard, part)| Some((*shard, Answer::whole(part)?)))
                                .collect();
                            merge.write(&parts, &mut encoder(work));
                        }
                        ItemAnswer::Lcs(left, right, how) => {
                            self.node.lcs_of(left, right, *how, &mut encoder(work));
                        }
                        ItemAnswer::Here => {
                            if self.execute_own(request, work) == Flow::Close {
                                flow = Flow::Close;
                            }
                        }
                        ItemAnswer::Own => {
                            let answer = coordinated.own.pop_front().unwrap_or_default();
                            work.out.extend_from_slice(&answer);
                        }
                    }
                    let counts = coordinated.is_exec || coordinated.has_waited;
                    if is_elsewhere && counts && is_refusal(before, work) {
                        self.figures.note_late_failure(Some(request.args()), before, work);
                    }
                }
            }
            Finished::Changed => encoder(work).null_array(),
            Finished::Taken => encoder(work).integer(0),
            Finished::InTheWay(keys) => {
                let error = EngineError::KeysInTheWay(keys);
                let before = work.out.len();
                encoder(work).error(error.code(), format_args!("{error}"));
                self.figures.note_refused(coordinated, before, work);
            }
            Finished::Refused(error) if is_moved(&error) => {
                return self.begin_anew(coordinated, work);
            }
            Finished::Refused(error) => {
                let before = work.out.len();
                Answer::whole(&error)
                    .into_iter()
                    .for_each(|error| error.replay(&mut encoder(work)));
                self.figures.note_refused(coordinated, before, work);
            }
        }
        self.note_slow_coordinated(coordinated, work);
        if coordinated.is_exec && !is_done {
            // Not all have looked at what they watch.
            self.unwatch_remote(work);
        } else if coordinated.is_exec
            && let Some(pending) = work.connection.session.pending()
        {
            pending.end_watches();
        }
        if let Some(tracks) = work.connection.session.tracking.as_deref_mut() {
            // CLIENT CACHING was about it.
            tracks.caching = false;
        }
        flow
    }
}

impl ShardService {
    /// Has SLOWLOG know of a command that the client has waited for, if it took long; of a transaction's requests nobody knows how long each took, so EXEC stands for
    /// all of them.
    fn note_slow_coordinated(&mut self, coordinated: &Coordinated, work: &Turn<'_>) {
        if !coordinated.has_waited {
            return;
        }
        let Some(took) = self.figures.clock.since(coordinated.begun) else { return };
        if coordinated.is_exec {
            let told = Told { name: "exec", keys: 0 };
            self.note_slow_words(took, false, &told, Some(&[b"EXEC"]), work);
        } else if let Some(request) = coordinated.requests.first()
            && let Ok(spec) = find(request.args())
        {
            self.note_slow(took, spec, request.args(), work);
        }
    }
}

impl Figures {
    /// What is coordinated was refused as a whole, and the refusal is behind the first `before` bytes. Where the client has not waited, whoever executes the request
    /// counts that.
    fn note_refused(&mut self, coordinated: &Coordinated, before: usize, work: &Turn<'_>) {
        if coordinated.has_waited {
            let request = coordinated.requests.first().filter(|_| !coordinated.is_exec);
            self.note_late_failure(request.map(OwnedArgs::args), before, work);
        }
    }
}

impl OtherShards {
    /// Steps of one command, between which others go on.
    pub(super) fn plan_of_steps(&mut self, program: Program) -> Option<Plan> {
        Some(Plan::of_steps(self.shards.as_mut()?.next_transaction(), program))
    }
}
