//! Tasks whose effects are at another shard: when messages are sent, what comes of answers, and that every part is done, once, over
//! crashes of the process at any moment. Both shards end together then, each with what its journal was told in whole batches.

mod common;

use common::{Draws, Shared, pattern};
use headwater_base::{Millis, Placement, Shard};
use headwater_flows::{
    Action, Definition, Flows, Journal, Memory, Operation, Outcome, Output, RemoteEffect,
    RemoteEffects, RemoteMessage, RemoteRead, RemoteRequest, RemoteResponse, RemoteTask, Task,
};
use std::collections::{BTreeMap, VecDeque};

fn definition() -> Definition {
    let action = Action::Publish { channel: b"c".to_vec() };
    Definition { workers: 3, ..Definition::new(pattern("p|<who>|<id>"), action) }
}

/// How often each part of each record's task was carried out.
type Effects = BTreeMap<(u64, Vec<u8>), u32>;

/// One shard: its flows, and what of its journal and its effects would survive.
struct Side {
    flows: Flows,
    remote: RemoteEffects,
    journal: Shared,
    effects: Effects,
    /// Batches that the store was told, with what each of them leaves there; the first one is durable.
    batches: VecDeque<(u64, Memory, Effects)>,
    told: u64,
}

impl Side {
    fn new() -> Self {
        let journal = Shared::default();
        let mut side = Self {
            flows: Flows::new(Box::new(journal.clone()), 1),
            remote: RemoteEffects::new(true),
            journal,
            effects: BTreeMap::new(),
            batches: VecDeque::new(),
            told: 0,
        };
        side.install();
        side.end_batch();
        side
    }

    fn install(&mut self) {
        self.flows.add("f", definition(), String::from("words")).unwrap();
    }

    fn end_batch(&mut self) {
        self.told += 1;
        let journal = self.journal.0.borrow().clone();
        self.batches.push_back((self.told, journal, self.effects.clone()));
        self.remote.end_batch(&self.flows, self.told, self.batches[0].0);
    }

    /// The store has half of the batches that it has been told.
    fn sync(&mut self) {
        self.batches.drain(..self.batches.len() / 2);
    }

    fn sync_all(&mut self) {
        self.end_batch();
        self.batches.drain(..self.batches.len() - 1);
        self.end_batch();
    }

    fn crash(&mut self) {
        self.batches.truncate(1);
        let (_, journal, effects) = &self.batches[0];
        self.journal.0.borrow_mut().clone_from(journal);
        self.effects.clone_from(effects);
        self.flows = Flows::new(Box::new(self.journal.clone()), 1);
        self.remote = RemoteEffects::new(true);
        self.install();
    }

    /// Asks the other shard to carry out a task, in two parts.
    fn ask(&mut self, task: Task) {
        let remote = self.remote.describe(&self.flows, &task, Shard(0)).unwrap();
        let placement = &Placement::even(2);
        let parts = vec![(Shard(1), put(&["a", "b"]))];
        self.remote.request_effects(&mut self.flows, (task, remote), parts, (&[], placement), None);
    }

    /// Does the parts of a task, but those that it has done; of others it may do the first one alone.
    fn carry_out(&mut self, task: &RemoteTask, effect: &RemoteEffect, only_first: bool) -> Outcome {
        let RemoteEffect::Put { outputs, .. } = effect else { unreachable!("none is asked for") };
        let seen = self.flows.seen(task);
        for Output { check, .. } in outputs {
            if seen.as_ref().is_none_or(|seen| seen < check) {
                *self.effects.entry((task.position, check.clone())).or_default() += 1;
                self.flows.note_seen(task, check);
                if only_first {
                    return Outcome::Waits;
                }
            }
        }
        Outcome::Done
    }

    /// Carries out what is asked next.
    fn serve(&mut self, only_first: bool) {
        if let Some((from, number, request)) = self.remote.next_request() {
            let RemoteRequest::Effect(task, effect) = request else { unreachable!("not asked") };
            let outcome = self.carry_out(&task, &effect, only_first);
            self.remote.respond(from, number, RemoteResponse::Effect(outcome));
        }
    }

    /// The connection to the other shard is lost, with what is under way.
    fn lose(&mut self, with: u16, now: Millis) {
        for (task, outcome) in self.remote.lost(&self.flows, Shard(with)) {
            self.flows.finish(&task, outcome, now);
        }
    }

    fn receive(&mut self, from: u16, message: RemoteMessage, now: Millis) {
        if let Some((task, outcome)) = self.remote.receive(&self.flows, Shard(from), message, 0) {
            self.flows.finish(&task, outcome, now);
        }
    }
}

fn put(checks: &[&str]) -> RemoteEffect {
    let output = |check: &&str| Output {
        check: check.as_bytes().to_vec(),
        key: format!("t|{check}|1").into_bytes(),
    };
    RemoteEffect::Put { value: None, outputs: checks.iter().map(output).collect() }
}

#[test]
fn parts_are_done_once_over_crashes() {
    for seed in 0..40 {
        let draws = &mut Draws(seed);
        let (mut from, mut to) = (Side::new(), Side::new());
        let (mut asked, mut answered) = (VecDeque::new(), VecDeque::new());
        let mut now = Millis(1000);
        let mut rounds = 0;
        let finished = loop {
            rounds += 1;
            let calm = rounds > 3000;
            match draws.below(if calm { 9 } else { 13 }) {
                0 => from.end_batch(),
                1 => to.end_batch(),
                2 => [&mut from, &mut to][draws.below(2) as usize].sync(),
                3 | 4 => {
                    now.0 += 1;
                    if let Some(task) = from.flows.start(now) {
                        from.ask(task);
                    }
                }
                5 | 6 => to.serve(draws.below(4) == 0),
                7 => {
                    asked.extend(from.remote.take_messages());
                    if let Some((_, message)) = asked.pop_front() {
                        to.receive(0, message, now);
                    }
                }
                8 => {
                    answered.extend(to.remote.take_messages());
                    if let Some((_, message)) = answered.pop_front() {
                        from.receive(1, message, now);
                    }
                }
                9..=11 => {
                    now.0 += 1;
                    let key = format!("p|w{}|{}", draws.below(3), draws.below(5));
                    from.flows.append(now, Operation::Set, key.as_bytes(), b"");
                }
                _ if draws.below(8) == 0 => {
                    asked.clear();
                    answered.clear();
                    now.0 += 1;
                    if draws.below(2) == 0 {
                        from.crash();
                        to.crash();
                    } else {
                        from.lose(1, now);
                        to.lose(0, now);
                    }
                }
                _ => {}
            }
            if calm && from.flows.reports()[0].backlog == 0 {
                break from.flows.reports()[0].clone();
            }
            assert!(rounds < 200_000, "seed {seed}: it does not end");
        };
        assert_eq!((finished.running, finished.failures), (0, 0), "seed {seed}");
        let end = from.journal.end();
        let part = |at, check: &str| ((at, check.as_bytes().to_vec()), 1);
        let done = (0..end).flat_map(|at| [part(at, "a"), part(at, "b")]);
        assert!(to.effects.clone().into_iter().eq(done), "seed {seed}");
        // What is done for good is forgotten with the next one. How far the cursor had come may be known of an earlier batch first.
        from.sync_all();
        from.sync_all();
        from.flows.append(now, Operation::Set, b"p|w|last", b"");
        let task = from.flows.start(now).unwrap();
        let remote = from.remote.describe(&from.flows, &task, Shard(0)).unwrap();
        assert_eq!(remote.below, end);
        to.carry_out(&remote, &put(&["a"]), false);
        let mut states = 0;
        to.journal.states(b"h", &mut |_, _| states += 1);
        assert!(end > 300 && states < 100, "seed {seed}: {states} are kept of {end}");
    }
}

/// A shard with a task, which was begun.
fn begun() -> (Side, Task) {
    let mut side = Side::new();
    side.flows.append(Millis(1), Operation::Set, b"p|a|1", b"");
    let task = side.flows.start(Millis(2)).unwrap();
    (side, task)
}

#[test]
fn nothing_is_sent_before_the_store_has_its_cause() {
    let (mut side, task) = begun();
    side.ask(task.clone());
    assert!(side.remote.take_messages().is_empty());
    side.end_batch();
    assert!(side.remote.take_messages().is_empty() && side.remote.is_waiting(), "not durable");
    side.sync();
    side.end_batch();
    assert_eq!(side.remote.take_messages().len(), 1);
    assert!(!side.remote.is_waiting());
    // What is done counts as done for good when that is durable.
    side.flows.finish(&task, Outcome::Done, Millis(3));
    side.flows.append(Millis(3), Operation::Set, b"p|a|1", b"");
    let next = side.flows.start(Millis(3)).unwrap();
    let below = |side: &Side| side.remote.describe(&side.flows, &next, Shard(0)).unwrap().below;
    side.end_batch();
    assert_eq!(below(&side), 0);
    side.sync_all();
    assert_eq!(below(&side), 1);
    // What was done is answered when it is durable; what was not, at once.
    side.remote.respond(Shard(1), 7, RemoteResponse::Effect(Outcome::Done));
    side.remote.respond(Shard(1), 8, RemoteResponse::Effect(Outcome::Waits));
    let refused = RemoteMessage::Response(8, RemoteResponse::Effect(Outcome::Waits));
    assert_eq!(side.remote.take_messages(), [(Shard(1), refused)]);
    side.sync_all();
    let done = RemoteMessage::Response(7, RemoteResponse::Effect(Outcome::Done));
    assert_eq!(side.remote.take_messages(), [(Shard(1), done)]);
}

/// Answers the requests under way, which are numbered as they come.
fn answer(side: &mut Side, outcomes: &[Outcome]) -> Vec<(Task, Outcome)> {
    side.sync_all();
    let mut ended = Vec::new();
    for ((to, message), outcome) in side.remote.take_messages().into_iter().zip(outcomes) {
        let RemoteMessage::Request(number, _) = message else { panic!("{message:?}") };
        let answer = RemoteMessage::Response(number, RemoteResponse::Effect(outcome.clone()));
        ended.extend(side.remote.receive(&side.flows, to, answer, 0));
    }
    ended
}

#[test]
fn a_task_ends_when_all_have_answered_as_the_worst_of_them_says() {
    let placement = &Placement::even(3);
    let failed = || Outcome::Failed(String::from("no"));
    for (answers, mark, expected) in [
        ([Outcome::Done, Outcome::Done], None, Outcome::Done),
        ([Outcome::Done, Outcome::Done], Some(b"m".to_vec()), Outcome::Further(b"m".to_vec())),
        ([Outcome::Waits, Outcome::Done], Some(b"m".to_vec()), Outcome::Waits),
        ([failed(), Outcome::Waits], None, failed()),
        ([Outcome::Waits, failed()], None, failed()),
    ] {
        let (mut side, task) = begun();
        let remote = side.remote.describe(&side.flows, &task, Shard(0)).unwrap();
        let parts = vec![(Shard(1), put(&["a"])), (Shard(2), put(&["b"]))];
        let own = [Output { check: Vec::new(), key: b"t|own|1".to_vec() }];
        let (all, own) = ((task.clone(), remote), (&own[..], placement));
        side.remote.request_effects(&mut side.flows, all, parts, own, mark);
        // Its keys stay where they are until it is done.
        for key in [&b"t|a|1"[..], b"t|b|1", b"t|own|1"] {
            assert!(side.remote.concern(&side.flows, placement.partition(key)));
        }
        assert!(!side.remote.concern(&side.flows, placement.partition(b"t|c|1")));
        assert_eq!(answer(&mut side, &answers), [(task, expected)]);
        let is_done = answers == [Outcome::Done, Outcome::Done];
        assert_eq!(side.remote.concern(&side.flows, placement.partition(b"t|a|1")), !is_done);
    }
}

#[test]
fn what_a_lost_shard_was_asked_is_asked_again_when_the_others_have_answered() {
    let (mut side, task) = begun();
    let remote = side.remote.describe(&side.flows, &task, Shard(0)).unwrap();
    let parts = vec![(Shard(1), put(&["a"])), (Shard(2), put(&["b"]))];
    let (all, placement) = ((task.clone(), remote), &Placement::even(3));
    side.remote.request_effects(&mut side.flows, all, parts, (&[], placement), None);
    side.sync_all();
    let messages = side.remote.take_messages();
    assert_eq!(side.remote.lost(&side.flows, Shard(1)), []);
    assert_eq!(side.remote.lost(&side.flows, Shard(1)), [], "that is told once");
    let [_, (to, RemoteMessage::Request(number, _))] = messages[..] else {
        panic!("{messages:?}");
    };
    let answer = |shard, outcome| {
        (Shard(shard), RemoteMessage::Response(number, RemoteResponse::Effect(outcome)))
    };
    // An answer of the connection that is lost counts no more.
    let (from, message) = answer(1, Outcome::Done);
    assert_eq!(side.remote.receive(&side.flows, from, message, 0), None);
    let (from, message) = answer(to.0, Outcome::Done);
    assert_eq!(side.remote.receive(&side.flows, from, message, 0), Some((task, Outcome::Waits)));
    // What another shard has asked is asked again by itself.
    let read = RemoteRead { home: Shard(0), version: 0, range: (vec![1], vec![2]), limit: None };
    let request = RemoteMessage::Request(9, RemoteRequest::Read(read.clone()));
    side.remote.receive(&side.flows, Shard(1), request.clone(), 0);
    side.remote.lost(&side.flows, Shard(1));
    assert!(!side.remote.has_requests());
    let unsent = RemoteResponse::Read(read, Err(Outcome::Waits));
    assert_eq!(request.unsent(), Some(RemoteMessage::Response(9, unsent)));
}

#[test]
fn keys_are_found_under_one_placement() {
    let read = RemoteRead {
        home: Shard(1),
        version: 5,
        range: (b"s|a".to_vec(), b"s|b".to_vec()),
        limit: None,
    };
    for (version, answer, expected) in [
        (5, Ok(vec![b"s|a|1".to_vec()]), Outcome::Again),
        (6, Ok(vec![b"s|a|1".to_vec()]), Outcome::Waits),
        (6, Err(Outcome::Failed(String::from("no"))), Outcome::Waits),
        (5, Err(Outcome::Failed(String::from("no"))), Outcome::Failed(String::from("no"))),
    ] {
        let (mut side, task) = begun();
        side.remote.request_keys(&mut side.flows, task.clone(), vec![read.clone()]);
        let [(to, RemoteMessage::Request(number, _))] = side.remote.take_messages()[..] else {
            panic!("reads are asked for at once");
        };
        assert_eq!(to, Shard(1));
        let answer = RemoteResponse::Read(read.clone(), answer);
        let answer = RemoteMessage::Response(number, answer);
        let ended = side.remote.receive(&side.flows, to, answer, version);
        let found = side.remote.take_found(&(task.flow.clone(), task.record.position));
        assert_eq!(found.contains_key(&read), expected == Outcome::Again);
        assert_eq!(ended, Some((task, expected)));
    }
}

#[test]
fn requests_that_wait_for_data_let_others_go_first() {
    let mut side = Side::new();
    let read = |at| {
        let range = (vec![at], vec![at + 1]);
        RemoteRequest::Read(RemoteRead { home: Shard(0), version: 0, range, limit: None })
    };
    for number in [1, 2] {
        let request = RemoteMessage::Request(number, read(number as u8));
        assert_eq!(side.remote.receive(&side.flows, Shard(1), request, 0), None);
    }
    let (from, number, first) = side.remote.next_request().unwrap();
    side.remote.postpone(from, number, first);
    assert_eq!(side.remote.next_request(), Some((Shard(1), 2, read(2))));
    assert!(!side.remote.has_requests() && side.remote.is_waiting());
    side.remote.retry();
    assert_eq!(side.remote.next_request(), Some((Shard(1), 1, read(1))));
    assert!(!side.remote.is_waiting());
}

#[test]
fn what_was_seen_is_of_one_record_one_replay_and_one_flow() {
    let mut side = Side::new();
    let task = |position, at, replays| RemoteTask {
        flow: String::from("f"),
        words: 0,
        origin: Shard(1),
        position,
        at: Millis(at),
        replays,
        below: 0,
    };
    side.flows.note_seen(&task(7, 100, 0), b"x");
    assert_eq!(side.flows.seen(&task(7, 100, 0)).as_deref(), Some(&b"x"[..]));
    assert_eq!(side.flows.seen(&task(8, 100, 0)), None);
    // Another record at its place, after one was lost; and a replay.
    assert_eq!(side.flows.seen(&task(7, 101, 0)), None);
    assert_eq!(side.flows.seen(&task(7, 100, 1)), None);
    assert_eq!(side.flows.seen(&RemoteTask { origin: Shard(2), ..task(7, 100, 0) }), None);
    // What is done for good is forgotten, once there is enough of it.
    side.flows.note_seen(&RemoteTask { below: 100, ..task(200, 100, 0) }, b"");
    assert_eq!(side.flows.seen(&task(7, 100, 0)), None);
    assert!(side.flows.seen(&task(200, 100, 0)).is_some());
    assert!(!side.flows.knows(&task(200, 100, 0)), "its words are others");
    side.flows.remove("f");
    side.install();
    assert_eq!(side.flows.seen(&task(200, 100, 0)), None);
}

#[test]
fn tasks_under_way_elsewhere_take_up_no_worker_and_keep_the_order() {
    let mut side = Side::new();
    for id in 0..5 {
        for _ in 0..2 {
            side.flows.append(Millis(1), Operation::Set, format!("p|a|{id}").as_bytes(), b"");
        }
    }
    let mut away = Vec::new();
    while let Some(task) = side.flows.start(Millis(2)) {
        side.ask(task.clone());
        away.push(task);
    }
    // The first of each key: more than there are workers.
    assert_eq!(away.iter().map(|task| task.record.position).collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
    assert_eq!(side.flows.reports()[0].running, 5);
    let is_pending = |side: &mut Side, key: &[u8]| side.flows.pending(&|other| other == key);
    assert!(is_pending(&mut side, b"p|a|4") && !is_pending(&mut side, b"p|a|9"));
    side.flows.finish(&away[0], Outcome::Done, Millis(3));
    assert!(is_pending(&mut side, b"p|a|0"), "there is another one");
    let next = side.flows.start(Millis(3)).unwrap();
    assert_eq!((next.record.position, side.flows.reports()[0].running), (1, 5));
    side.flows.finish(&next, Outcome::Done, Millis(3));
    assert!(!is_pending(&mut side, b"p|a|0"));
    // One that waited goes on from where it was.
    side.flows.finish(&away[1], Outcome::Again, Millis(3));
    assert_eq!(side.flows.start(Millis(3)).unwrap().record.position, 2);
}
