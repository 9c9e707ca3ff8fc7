//! What several shards do as one step for everybody: transactions whose keys live on several, and commands that name keys of
//! several.
//!
//! The client's shard coordinates. It locks the partitions concerned, one shard after the other; where a shard would refuse its
//! part, or a watched key has changed, all locks are given back and nothing was done. Then the shards execute their parts,
//! each as a transaction of its own, and give their locks back behind the last of it. Since all have locked before any has
//! executed, whoever sees one part at one shard waits at the others until theirs is done.
//!
//! Where a request depends on what another one did elsewhere (a value that goes to another key, or what is derived from a key
//! that was written), it belongs to a later *round*. A transaction of several rounds locks all of its shards' partitions.
//!
//! What only reads, at several shards, needs no lock in most cases: its parts are read at once, and each shard tells the
//! *digests* of the transactions that it has executed together with each other one. Where two shards tell different ones, a
//! transaction came between the parts, and they are read once more under locks.
//!
//! # Invariants
//! - R1. Locks are asked for in the order of the shards' numbers, and none is asked for while a part is executed: no two
//!   transactions wait for each other.
//! - R2. Nothing is executed anywhere before all shards have locked and agreed.

use crate::answer::{Answer, answer_of};
use crate::ask::{Ask, Budget, Requests};
use crate::locks::{LockSet, TransactionId};
use crate::merge::Merge;
use crate::objections::objection;
use crate::pending::{Inner, Kind};
use crate::program::{Combine, Goes, Program, Step, StepAsk};
use crate::record::{Place, Recording};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use headwater_base::{Placement, Shard};
use headwater_command::{LcsAnswer, OwnedArgs, Reply, table};

/// One request of a transaction.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// The client's session executes it itself, when all others are done.
    Here,
    /// The client's session executes it itself, and what comes behind it depends on that: which channels it listens to, what
    /// it keeps copies of.
    Now,
    /// Shards execute their parts of it, and how their answers make up one.
    Parts {
        /// How.
        merge: Merge,
        /// What each executes.
        parts: Vec<(Shard, OwnedArgs)>,
        /// What it does.
        kind: Kind,
    },
    /// It has steps.
    Program(Program),
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Names the transaction.
    pub id: TransactionId,
    /// Its requests.
    pub items: Vec<Item>,
    /// What is locked at each shard; `None`: nothing, since its steps need not be one.
    pub locks: Option<BTreeMap<Shard, LockSet>>,
    /// It only reads: locks are not taken at first.
    pub reads: bool,
    /// The shards that watch keys for the client.
    pub watches_at: BTreeSet<Shard>,
    /// Requests that must be refused, if at all, before anything is executed; by shard.
    pub prepare: BTreeMap<Shard, Requests>,
    /// The homes of the keys of what is prepared, in the order in which the client has named them.
    pub order: Vec<Shard>,
    /// What each shard's part needs.
    pub budget: Budget,
    /// Milliseconds that each lock may take.
    pub wait: u64,
    /// What shards that keep data write down of it, where several do.
    pub recording: Option<Recording>,
}

/// How a request of a transaction is answered.
#[derive(Clone, PartialEq, Debug)]
pub enum ItemAnswer {
    /// The session executes it now.
    Here,
    /// The session has executed it, and has the answer ([`Next::Now`]).
    Own,
    /// So.
    Typed(Vec<u8>),
    /// With what several shards' answers make up.
    Merged(Merge, Vec<(Shard, Vec<u8>)>),
    /// With what two values have in common.
    Lcs(Vec<u8>, Vec<u8>, LcsAnswer),
}

/// How a transaction ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Finished {
    /// All of it was executed.
    Done(Vec<ItemAnswer>),
    /// A watched key had changed: nothing was executed.
    Changed,
    /// So many keys are in the way of what was to be declared: nothing was.
    InTheWay(u64),
    /// A key that must not be there is: nothing was executed.
    Taken,
    /// A shard refused its part with this error: nothing was executed.
    Refused(Vec<u8>),
}

/// How a transaction goes on.
#[derive(Clone, PartialEq, Debug)]
pub enum Next {
    /// The session executes this request of its own, keeps the answer, and goes on.
    Now(usize),
    /// These are asked; their answers are wanted together, in their order.
    Ask(Vec<Step>),
    /// It is over.
    Finished(Finished),
}

#[derive(Clone, PartialEq, Debug)]
enum State {
    Begin,
    /// Parts are read without locks.
    Reading(Round),
    /// The shards before this one in `locked` have locked.
    Locking,
    Executing(Round),
    Stepping,
    Aborting(Finished),
}

/// Which answers belong to which requests: by shard, in order, the place of the request and that of its part.
#[derive(Clone, PartialEq, Debug, Default)]
struct Round {
    asked: Vec<(Shard, Vec<(usize, usize)>)>,
    last: bool,
}

/// A transaction under way. [`Transaction::next`] says what to ask, and is called again with the answers.
#[derive(Clone, PartialEq, Debug)]
pub struct Transaction {
    plan: Plan,
    state: State,
    /// The shards that were asked to lock.
    locked: Vec<Shard>,
    /// What a shard has against its part, and how soon that is told.
    refusal: Option<(usize, Vec<u8>)>,
    /// Keys in the way, as the shards that locked have counted them.
    in_the_way: u64,
    /// The first request that was not executed.
    next: usize,
    /// How far it has come.
    place: Place,
    /// Whether the answers to the last steps are arrays of one.
    wrapped: Vec<bool>,
    /// The answers of the parts that are there, by request and part.
    parts: BTreeMap<(usize, usize), Vec<u8>>,
    answers: Vec<ItemAnswer>,
    /// Something of it was asked for that changes something.
    has_written: bool,
    /// It does not go on: this error is its answer.
    given_up: Option<Vec<u8>>,
}

impl Transaction {
    /// A transaction that has not begun.
    #[must_use]
    pub fn new(mut plan: Plan) -> Self {
        let behind = plan.items.iter_mut().rev();
        for item in behind.take_while(|item| matches!(item, Item::Here | Item::Now)) {
            // Nothing elsewhere depends on it.
            *item = Item::Here;
        }
        if plan.needs_rounds()
            && let Some(locks) = &mut plan.locks
            && plan.items.len() > 1
        {
            locks.values_mut().for_each(|set| *set = LockSet::All);
        }
        let (locked, parts) = (Vec::new(), BTreeMap::new());
        let (in_the_way, next, answers, wrapped) = (0, 0, Vec::new(), Vec::new());
        let state = State::Begin;
        let (refusal, place, has_written, given_up) = (None, Place::default(), false, None);
        Self {
            plan,
            state,
            locked,
            refusal,
            in_the_way,
            next,
            place,
            wrapped,
            parts,
            answers,
            has_written,
            given_up,
        }
    }

    /// Memory that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let request = |request: &OwnedArgs| request.reserved_bytes() + size_of::<OwnedArgs>();
        let items = self.plan.items.iter().map(|item| match item {
            Item::Here | Item::Now => 0,
            Item::Parts { parts, .. } => parts.iter().map(|(_, part)| request(part)).sum(),
            Item::Program(_) => size_of::<Program>(),
        });
        let prepared = self.plan.prepare.values().flatten().map(request);
        size_of::<Self>()
            + items.sum::<usize>()
            + prepared.sum::<usize>()
            + self.parts.values().map(|part| part.capacity() + size_of::<Vec<u8>>()).sum::<usize>()
    }

    /// How far it has come.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Whether what was asked last are values that are put together.
    pub(crate) fn is_reading(&self) -> bool {
        let reads = |item: &Item| {
            matches!(item, Item::Program(Program::Combine { step: Combine::Put, .. }))
        };
        matches!(self.state, State::Stepping) && self.plan.items.get(self.next).is_some_and(reads)
    }

    /// Whether nothing of it has changed anything, or will where it is given up: an error may stand for what a shard does not answer.
    #[must_use]
    pub fn may_be_given_up(&self) -> bool {
        !self.has_written
    }

    /// Has it go no further, where that may be: it gives its locks back, and is answered with this error.
    pub fn give_up(&mut self, error: &[u8]) {
        self.given_up = Some(error.to_vec());
    }

    /// Whether it waits for locks.
    pub(crate) fn is_locking(&self) -> bool {
        matches!(self.state, State::Locking)
    }

    /// What the shard of a step that [`Transaction::next`] has just given is to keep together with what the step writes there,
    /// where a crash must leave all of the transaction or nothing.
    #[must_use]
    pub fn record_of(&self, placement: &Placement, step: &Step) -> Option<Vec<u8>> {
        let recording = self.plan.recording.as_ref()?;
        let is_step = |program: &Program| {
            let carries = matches!(
                program,
                Program::Carry { .. } | Program::Combine { .. } | Program::Checked { .. }
            );
            carries && matches!(step.ask, StepAsk::Put { .. } | StepAsk::Whole(Ask::Execute { .. }))
        };
        let is_recorded = match &self.state {
            // Whoever has given something to others, and goes on, knows what that was.
            State::Executing(_) if self.plan.items.len() > 1 && self.plan.needs_rounds() => true,
            State::Executing(round) => {
                let mut own = round.asked.iter().filter(|(shard, _)| *shard == step.at);
                own.any(|(_, parts)| parts.iter().any(|part| recording.parts.contains(part)))
            }
            State::Stepping => match self.plan.items.get(self.next) {
                Some(Item::Program(program)) => is_step(program),
                _ => false,
            },
            _ => false,
        };
        is_recorded
            .then(|| recording.write(&self.plan.items, (self.place, self.next), placement, step))
    }

    /// Its requests, of which some may have to be executed by the session.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.plan.items
    }

    /// What comes next, where `answers` are those to what was asked last, in order.
    pub fn next(&mut self, placement: &Placement, answers: &[Inner]) -> Next {
        let given_up = self.given_up.take();
        match (core::mem::replace(&mut self.state, State::Begin), given_up) {
            (State::Aborting(finished), _) => Next::Finished(finished),
            (_, Some(error)) => self.abort(Finished::Refused(error)),
            (state, None) => self.next_in(state, placement, answers),
        }
    }

    fn next_in(&mut self, state: State, placement: &Placement, answers: &[Inner]) -> Next {
        match state {
            State::Begin if self.plan.reads => {
                let (round, steps) = self.round(None);
                self.state = State::Reading(round);
                Next::Ask(steps)
            }
            State::Begin if self.plan.locks.is_none() => self.go_on(placement),
            State::Begin => self.lock_next(placement),
            State::Reading(round) => {
                if shows_one_moment(answers) {
                    self.take(round, answers);
                    return self.go_on(placement);
                }
                self.plan.reads = false;
                self.next = 0;
                self.lock_next(placement)
            }
            State::Locking => {
                let answer = answers.first().and_then(|inner| Answer::whole(&inner.answer));
                if !self.plan.prepare.is_empty()
                    && let Some((rank, error)) = answer.and_then(|answer| self.objection(answer))
                {
                    // What another one has against it may come first.
                    if self.refusal.as_ref().is_none_or(|(first, _)| rank < *first) {
                        self.refusal = Some((rank, error.bytes().to_vec()));
                    }
                    return self.lock_next(placement);
                }
                match answer {
                    Some(answer) if answer.is_error() => {
                        self.abort(Finished::Refused(answer.bytes().to_vec()))
                    }
                    Some(answer) if answer.is_nothing() => self.abort(Finished::Changed),
                    Some(answer) if answer == truth(&answer_of(|out| out.boolean(true))) => {
                        self.abort(Finished::Taken)
                    }
                    answer => {
                        let keys = answer.and_then(Answer::integer).unwrap_or(0);
                        self.in_the_way += u64::try_from(keys).unwrap_or(0);
                        self.lock_next(placement)
                    }
                }
            }
            State::Executing(round) => {
                self.take(round, answers);
                self.go_on(placement)
            }
            State::Stepping => {
                if let Some(recording) = &mut self.plan.recording {
                    let told = answers.iter().map(|inner| inner.answer.clone());
                    recording.decided.insert(self.place, told.collect());
                }
                let answers = answers.iter().filter_map(|inner| Answer::whole(&inner.answer));
                let answers: Vec<_> = answers.zip(&self.wrapped).map(unwrapped).collect();
                self.step(placement, &answers)
            }
            State::Aborting(finished) => Next::Finished(finished),
        }
    }

    /// What the shard that was asked last to lock has against its part.
    fn objection<'a>(&self, answer: Answer<'a>) -> Option<(usize, Answer<'a>)> {
        objection(answer, *self.locked.last()?, &self.plan.order)
    }

    fn lock_next(&mut self, placement: &Placement) -> Next {
        let Some(locks) = &self.plan.locks else { return self.go_on(placement) };
        let last = self.locked.last().copied();
        let Some((&at, set)) =
            locks.iter().find(|(shard, _)| last.is_none_or(|last| **shard > last))
        else {
            return match (self.refusal.take(), self.in_the_way) {
                (Some((_, refusal)), _) => self.abort(Finished::Refused(refusal)),
                (None, 0) => self.go_on(placement),
                (None, keys) => self.abort(Finished::InTheWay(keys)),
            };
        };
        self.locked.push(at);
        self.state = State::Locking;
        let ask = Ask::Lock {
            transaction: self.plan.id,
            set: set.clone(),
            watches: self.plan.watches_at.contains(&at),
            wait: self.plan.wait,
            budget: self.plan.budget,
            prepare: self.plan.prepare.get(&at).cloned().unwrap_or_default(),
        };
        // It may look at what joins give.
        Next::Ask([Step { at, kind: Kind::Derived, ask: StepAsk::Whole(ask) }].into())
    }

    /// Gives all locks back: nothing was executed.
    fn abort(&mut self, finished: Finished) -> Next {
        let release = |&at: &Shard| {
            let prepared = self.plan.prepare.get(&at).cloned().unwrap_or_default();
            let ask = Ask::Release { transaction: self.plan.id, prepared };
            Step { at, kind: Kind::Plain, ask: StepAsk::Whole(ask) }
        };
        let steps: Vec<_> = self.locked.iter().map(release).collect();
        self.state = State::Aborting(finished);
        Next::Ask(steps)
    }

    /// Executes what comes next.
    fn go_on(&mut self, placement: &Placement) -> Next {
        if let Some(Item::Program(_)) = self.plan.items.get(self.next) {
            return self.step(placement, &[]);
        }
        if let Some(Item::Now) = self.plan.items.get(self.next) {
            self.next += 1;
            self.has_written = true;
            self.answers.push(ItemAnswer::Own);
            self.state = State::Executing(Round::default());
            return Next::Now(self.next - 1);
        }
        let is_over = self.next == self.plan.items.len();
        if is_over && self.locked.is_empty() {
            return Next::Finished(Finished::Done(core::mem::take(&mut self.answers)));
        }
        let (round, steps) = self.round(self.plan.locks.as_ref().map(|_| self.plan.id));
        if round.last {
            self.locked.clear();
        }
        self.state = State::Executing(round);
        Next::Ask(steps)
    }

    /// Takes the next step of the program that is next.
    fn step(&mut self, placement: &Placement, answers: &[Answer<'_>]) -> Next {
        let Some(Item::Program(program)) = self.plan.items.get_mut(self.next) else {
            return self.go_on(placement);
        };
        let goes = program.next(placement, answers);
        self.wrapped.clear();
        let answer = match goes {
            Goes::Ask(steps) => {
                let item = self.next as u32;
                let before = if self.place.item == item { self.place.step } else { 0 };
                self.place = Place { item, step: before + 1 };
                self.state = State::Stepping;
                self.has_written |= steps.iter().any(|step| step.kind.writes());
                return Next::Ask(steps.into_iter().map(|step| self.under_locks(step)).collect());
            }
            Goes::Answer(answer) => ItemAnswer::Typed(answer),
            Goes::Lcs(left, right, how) => ItemAnswer::Lcs(left, right, how),
        };
        self.answers.push(answer);
        self.next += 1;
        self.go_on(placement)
    }

    /// A command of a transaction passes its locks.
    fn under_locks(&mut self, step: Step) -> Step {
        let Step { at, kind, ask } = step;
        let locks = self.plan.locks.as_ref();
        let ask = match (locks, ask) {
            (Some(locks), StepAsk::Command(_, request)) => {
                self.wrapped.push(true);
                StepAsk::Whole(Ask::Execute {
                    transaction: self.plan.id,
                    shards: locks.keys().copied().collect(),
                    last: false,
                    requests: [request].into(),
                })
            }
            (_, StepAsk::Prepare(request)) => {
                self.wrapped.push(false);
                StepAsk::Whole(Ask::Lock {
                    transaction: self.plan.id,
                    set: LockSet::All,
                    watches: false,
                    wait: self.plan.wait,
                    budget: Budget::default(),
                    prepare: [request].into(),
                })
            }
            (_, ask) => {
                self.wrapped.push(false);
                ask
            }
        };
        Step { at, kind, ask }
    }

    /// The next round: requests up to one that depends on them. `None`: without locks, which one request has at most that has a
    /// part at each shard.
    fn round(&mut self, transaction: Option<TransactionId>) -> (Round, Vec<Step>) {
        let from = self.next;
        self.place = Place { item: from as u32, step: 0 };
        self.next = self.plan.end_of_round(from);
        let mut by_shard: BTreeMap<Shard, (Requests, Vec<(usize, usize)>)> = BTreeMap::new();
        let last = self.next == self.plan.items.len();
        if last && transaction.is_some() {
            // Whoever has locked is to give it back.
            by_shard.extend(self.locked.iter().map(|&shard| (shard, Default::default())));
        }
        for (at, item) in self.plan.items.iter().enumerate().take(self.next).skip(from) {
            let Item::Parts { parts, kind, .. } = item else { continue };
            self.has_written |= kind.writes();
            for (place, (shard, request)) in parts.iter().enumerate() {
                if request.args().is_empty() {
                    // A crash has left this part.
                    continue;
                }
                let (requests, places) = by_shard.entry(*shard).or_default();
                requests.push(request.clone());
                places.push((at, place));
            }
        }
        let shards: Vec<Shard> =
            self.plan.locks.iter().flat_map(|locks| locks.keys().copied()).collect();
        let mut round = Round { asked: Vec::new(), last };
        let mut steps = Vec::new();
        for (at, (requests, places)) in by_shard {
            round.asked.push((at, places));
            let ask = match transaction {
                Some(transaction) => {
                    Ask::Execute { transaction, shards: shards.clone(), last, requests }
                }
                None => {
                    steps.extend(requests.into_iter().filter_map(|request| {
                        let spec = table::lookup(request.args().get(0)?)?;
                        Some(Step { at, kind: Kind::Derived, ask: StepAsk::Command(spec, request) })
                    }));
                    continue;
                }
            };
            steps.push(Step { at, kind: Kind::Both, ask: StepAsk::Whole(ask) });
        }
        (round, steps)
    }

    /// Takes the answers of a round.
    fn take(&mut self, round: Round, answers: &[Inner]) {
        for ((_, places), inner) in round.asked.iter().zip(answers) {
            let answer = Answer::whole(&inner.answer);
            // A read without locks is a command, and answered as one.
            let alone = answer.filter(|answer| answer.is_error() || self.plan.reads);
            let mut list = answer.map(Answer::list).unwrap_or_default().into_iter();
            for place in places {
                // A shard that could execute nothing says so for all.
                let part = alone.or_else(|| list.next()).map(|part| part.bytes().to_vec());
                self.parts.insert(*place, part.unwrap_or_else(|| answer_of(|out| out.null())));
            }
        }
        for at in self.answers.len()..self.next {
            let answer = match &self.plan.items[at] {
                Item::Here => ItemAnswer::Here,
                Item::Program(_) | Item::Now => break,
                Item::Parts { merge, parts, .. } => {
                    let own = parts.iter().enumerate();
                    let mut own: Vec<(Shard, Vec<u8>)> = own
                        .filter_map(|(place, (shard, _))| {
                            Some((*shard, self.parts.remove(&(at, place))?))
                        })
                        .collect();
                    match own.pop() {
                        Some((_, part)) if parts.len() == 1 => ItemAnswer::Typed(part),
                        last => {
                            own.extend(last);
                            ItemAnswer::Merged(merge.clone(), own)
                        }
                    }
                }
            };
            self.answers.push(answer);
        }
        self.parts.clear();
    }
}

/// The answer of a command, which may have come as an array of one.
fn unwrapped<'a>((answer, wrapped): (Answer<'a>, &bool)) -> Answer<'a> {
    match wrapped {
        true => answer.list().first().copied().unwrap_or(answer),
        false => answer,
    }
}

fn truth(bytes: &[u8]) -> Answer<'_> {
    Answer::whole(bytes).unwrap_or_else(|| unreachable!("it was just written"))
}

/// Whether no transaction of two of these shards came between their parts.
fn shows_one_moment(answers: &[Inner]) -> bool {
    let digest =
        |inner: &Inner, other: Shard| inner.digests.get(usize::from(other.0)).copied().unwrap_or(0);
    answers.iter().enumerate().all(|(at, one)| {
        let others = answers[at + 1..].iter();
        let mut others = others.filter(|other| other.from != one.from);
        others.all(|other| digest(one, other.from) == digest(other, one.from))
    })
}
