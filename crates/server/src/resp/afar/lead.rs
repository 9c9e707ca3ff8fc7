//! What concerns several shards at once, as one step for everybody: transactions whose keys live on several, and the
//! commands that name keys of several and cannot be divided.
//!
//! The client's shard leads. It has all hold ([`super::holding`]); then it executes the requests one after the other, each
//! where its keys live, as ever, while nobody else's are. The answers make up one, which goes out when it is whole.
//! When everything is answered, the next client is led, or all are released.
//!
//! What has begun goes on to its end, whatever becomes of the client. Its replies tell of writes that are safe where they
//! were made, as those of any other request do.
//!
//! # Cost
//! Besides the hold: a turn of both loops for each request that depends on what another one did.

use crate::resp::bound::QueueRoom;
use crate::resp::session::{Queue, Waiting};
use crate::resp::{Flow, Resp, Turn, encoder, front_of};
use crate::shards::{Kind, Next, Program, Route, Step, Want, route, words};
use headwater_base::Shard;
use headwater_command::{Args, OwnedArgs, Reply};
use headwater_engine::{EngineError, Stop};
use headwater_protocol::resp::{Encoder, decode, find, integer};

/// What a session executes while all hold.
#[derive(Debug)]
pub(crate) struct Lead {
    queue: Box<Queue>,
    /// Its request was counted when it came: it is no transaction's.
    is_counted: bool,
    stage: Stage,
    /// The first request that was not executed.
    next: usize,
    /// All hold.
    pub(in crate::resp) begun: bool,
    /// Not all hold in time.
    pub(super) refused: bool,
    /// The connection is to end behind the answer.
    closes: bool,
}

#[derive(Debug)]
enum Stage {
    /// Watched keys are to be looked at.
    Watches,
    /// Other shards were asked whether theirs have changed.
    Asked { changed: bool },
    /// Requests are executed.
    Requests,
    /// The next one is, step by step.
    Steps(Program),
}

impl Lead {
    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.queue.bytes
    }
}

impl Resp {
    /// Executes a request whose keys live on several shards, when all hold.
    #[cold]
    pub(super) fn lead_request(&mut self, args: Args<'_>, work: &mut Turn<'_>) -> Flow {
        let request = OwnedArgs::of(args);
        let bytes = request.reserved_bytes() + size_of::<OwnedArgs>();
        let queue = Queue { requests: vec![request], bytes, ..Queue::default() };
        self.lead(Box::new(queue), false, work)
    }

    /// Executes a transaction, when all hold; nothing of the session is under way.
    pub(super) fn lead(&mut self, queue: Box<Queue>, is_exec: bool, work: &mut Turn<'_>) -> Flow {
        let stage = if is_exec { Stage::Watches } else { Stage::Requests };
        let (begun, refused, closes) = (false, false, false);
        let is_counted = !is_exec;
        let lead = Lead { queue, is_counted, stage, next: 0, begun, refused, closes };
        work.connection.session.waiting = Some(Box::new(Waiting::Lead(Box::new(lead))));
        self.want(Want::Lead(work.connection.id));
        Flow::Parked
    }

    /// Goes on with what all hold for.
    pub(in crate::resp) fn go_on_leading(
        &mut self,
        mut lead: Box<Lead>,
        failure: Option<&EngineError>,
        work: &mut Turn<'_>,
    ) -> Flow {
        if lead.refused {
            self.stats.errors += 1;
            self.unwatch_afar(work);
            self.forget_watches(&mut work.connection.session);
            let text = "other shards are busy: nothing was executed, try again";
            encoder(work).error("TRYAGAIN", format_args!("{text}"));
            return Flow::Next;
        }
        if !lead.begun {
            // Whatever woke it, its turn has not come.
            work.connection.session.waiting = Some(Box::new(Waiting::Lead(lead)));
            return Flow::Parked;
        }
        let Some(shards) = &self.shards else { return Flow::Next };
        front_of(&mut work.connection.session, shards).begin_answer();
        if let Some(error) = failure {
            let mut answer = Vec::new();
            let version = work.connection.session.version;
            Encoder::new(&mut answer, version).error(error.code(), format_args!("{error}"));
            self.answer_led(&answer, work);
            lead.next += 1;
        }
        self.leading = true;
        let is_done = self.take_steps(&mut lead, work);
        self.leading = false;
        if !is_done {
            work.connection.session.waiting = Some(Box::new(Waiting::Lead(lead)));
            return Flow::Parked;
        }
        if let Some(front) = work.connection.session.front() {
            front.end_answer();
            front.collect(work.out);
        }
        self.lead_next(work.peers);
        if lead.closes { Flow::Close } else { Flow::Next }
    }

    /// Does what can be done now; whether everything is done.
    fn take_steps(&mut self, lead: &mut Lead, work: &mut Turn<'_>) -> bool {
        loop {
            match &mut lead.stage {
                Stage::Watches => {
                    let Some(changed) = self.look_at_watched(work) else { return false };
                    lead.stage = Stage::Asked { changed };
                }
                Stage::Asked { changed } => {
                    if self.must_answer_first(work) {
                        return false;
                    }
                    let replies = take_inner(work);
                    let changed = *changed || replies.iter().any(|reply| integer(reply) != Some(0));
                    if !self.begins_queue(changed, &lead.queue, work) {
                        return true;
                    }
                    lead.stage = Stage::Requests;
                }
                Stage::Requests if lead.next == lead.queue.requests.len() => {
                    return !self.must_answer_first(work);
                }
                Stage::Requests => {
                    let args = lead.queue.requests[lead.next].args();
                    match self.execute_led(args, lead.is_counted, work) {
                        Led::Done => lead.next += 1,
                        Led::Closes => {
                            lead.next += 1;
                            lead.closes = true;
                        }
                        Led::Sent => {
                            lead.next += 1;
                            return false;
                        }
                        Led::Waits => return false,
                        Led::InSteps(program) => lead.stage = Stage::Steps(program),
                    }
                }
                Stage::Steps(program) => {
                    if self.must_answer_first(work) {
                        return false;
                    }
                    if self.step(program, work) {
                        lead.stage = Stage::Requests;
                        lead.next += 1;
                    }
                }
            }
        }
    }

    /// Whether others have yet to answer; then the session is woken when they have.
    fn must_answer_first(&self, work: &mut Turn<'_>) -> bool {
        let Some(front) = work.connection.session.front() else { return false };
        let must = !front.is_done();
        front.holds = must;
        must
    }

    /// Whether a watched key of this shard has changed, and asks the others; all watches end. `None`: keys must be loaded first.
    fn look_at_watched(&mut self, work: &mut Turn<'_>) -> Option<bool> {
        let mut changed = false;
        for (key, count) in &work.connection.session.watched {
            match self.node.engine_mut().watched(key) {
                Ok(now) => changed |= now != *count,
                Err(Stop::Wait(ticket)) => {
                    self.tickets.insert(ticket, work.connection.id);
                    return None;
                }
                Err(Stop::Failed(_)) => changed = true,
            }
        }
        self.forget_watches(&mut work.connection.session);
        let watches_at = work.connection.session.front().map(|front| front.end_watches());
        for at in watches_at.unwrap_or_default() {
            let request = [words::CHANGED].into_iter().collect();
            self.ask_inner(Step { at, kind: Kind::Plain, request }, work);
        }
        Some(changed)
    }

    /// Begins the answer of a transaction; `false`: that is all of it, since nothing is executed.
    fn begins_queue(&mut self, changed: bool, queue: &Queue, work: &mut Turn<'_>) -> bool {
        let out = core::mem::take(work.out);
        let begins = !changed && self.room_for_queue(queue, false, work) == QueueRoom::IsThere;
        if changed {
            encoder(work).null_array();
        } else if begins {
            encoder(work).array(queue.requests.len());
        }
        let answer = core::mem::replace(work.out, out);
        self.answer_led(&answer, work);
        begins
    }

    /// Executes the next request.
    fn execute_led(&mut self, args: Args<'_>, is_counted: bool, work: &mut Turn<'_>) -> Led {
        // It was found when it came, and commands do not go away.
        let Ok(spec) = find(args) else { return Led::Done };
        if let Ok(command) = decode(spec, args)
            && let Some(placement) = self.node.engine().placement()
            && route(placement, spec, &command, args) == Route::Several
            && let Some(program) = Program::of(&command, args)
        {
            if !is_counted {
                self.stats.count(spec.id);
            }
            return Led::InSteps(program);
        }
        let out = core::mem::take(work.out);
        let whole = core::mem::replace(&mut work.connection.session.whole_replies, true);
        let flow = if is_counted {
            self.carry_out(spec, args, work)
        } else {
            self.execute(spec, args, work)
        };
        work.connection.session.whole_replies = whole;
        let answer = core::mem::replace(work.out, out);
        self.answer_led(&answer, work);
        match flow {
            Flow::Next => Led::Done,
            Flow::Close => Led::Closes,
            // It is executed again from its start, or it was sent and what follows waits.
            Flow::Parked if work.connection.session.waiting.take().is_some() => Led::Waits,
            Flow::Parked => Led::Sent,
        }
    }

    /// Puts an answer of this shard's own behind what others have yet to answer.
    fn answer_led(&mut self, answer: &[u8], work: &mut Turn<'_>) {
        let Some(shards) = &self.shards else { return };
        front_of(&mut work.connection.session, shards).answer(answer);
    }

    /// Takes the next step of a command, with the replies to the last one; whether it is answered.
    fn step(&mut self, program: &mut Program, work: &mut Turn<'_>) -> bool {
        let replies = take_inner(work);
        let Some(placement) = self.node.engine().placement() else { return true };
        match program.next(placement, &replies) {
            Next::Ask(steps) => {
                for step in steps {
                    self.ask_inner(step, work);
                }
                return false;
            }
            Next::Answer(answer) => {
                self.stats.errors += u64::from(headwater_protocol::resp::is_error(&answer));
                self.answer_led(&answer, work);
            }
            Next::Lcs(left, right, how) => {
                let mut answer = Vec::new();
                let mut reply = Encoder::new(&mut answer, work.connection.session.version);
                self.node.lcs_of(&left, &right, how, &mut reply);
                self.answer_led(&answer, work);
            }
        }
        true
    }

    /// Asks a shard (this one, too) for something whose reply is not the client's.
    fn ask_inner(&mut self, step: Step, work: &mut Turn<'_>) {
        let Step { at, kind, request } = step;
        self.make_room_to_pass(request.args().bytes());
        if kind == Kind::Derived {
            self.ask_after(at, work);
        }
        let voice = super::voice_of(&work.connection.session, self.leading);
        let Some(shards) = &mut self.shards else { return };
        shards.request(at, work.connection.id, voice, request.args());
        front_of(&mut work.connection.session, shards).expect_inner(at, kind);
    }
}

/// What became of a request.
enum Led {
    /// It is answered, or will be.
    Done,
    /// So, and the connection is to end.
    Closes,
    /// It will be answered, and what follows waits for that.
    Sent,
    /// It waits, and is to be executed again.
    Waits,
    /// It is executed step by step.
    InSteps(Program),
}

fn take_inner(work: &mut Turn<'_>) -> Vec<Vec<u8>> {
    work.connection.session.front().map(|front| front.take_inner()).unwrap_or_default()
}

/// Each shard once.
pub(super) fn distinct(homes: impl Iterator<Item = Shard>) -> Vec<Shard> {
    let mut homes: Vec<_> = homes.collect();
    homes.sort_unstable();
    homes.dedup();
    homes
}
