//! Random histories of writes, tasks that succeed, fail or go on, and crashes: a process that ends
//! at any moment, of which the journal is what was told to it in whole batches.
//!
//! What must hold for each flow, after all is done: every write that concerns it has had its effect
//! (those whose tasks died excepted), exactly once where effect and completion are one batch; and the effects on
//! one key came in the order of the writes. A write has a greater sequence number than all before it, also than those that a
//! crash took back.

mod common;

use common::{Draws, Shared, pattern};
use headwater_base::{Limits, Millis};
use headwater_flows::{
    Action, Backoff, Definition, Flows, Journal, Memory, Operation, Outcome, Task, WhenFull,
};
use headwater_pattern::Join;
use std::collections::BTreeMap;

/// By flow and position: the key, and how often its effect was seen.
type Effects = BTreeMap<(String, u64), (Vec<u8>, u32)>;

struct World {
    flows: Flows,
    journal: Shared,
    /// What the last commit holds.
    committed: (Memory, Effects),
    effects: Effects,
    /// The order in which effects on a key came.
    order: BTreeMap<(String, Vec<u8>), Vec<u64>>,
    /// Writes of which a flow must have the effect, by position.
    written: BTreeMap<u64, Vec<u8>>,
    running: Vec<Task>,
    now: Millis,
    /// The greatest sequence number of a write so far, be it lost since.
    sequence: u64,
}

fn definitions(attempts: u32) -> [(&'static str, Definition); 2] {
    let publish = || Action::Publish { channel: b"news".to_vec() };
    let backoff = Backoff { first_ms: 10, most_ms: 100 };
    let all = Definition {
        workers: 3,
        attempts_max: attempts,
        backoff,
        ..Definition::new(pattern("p|<who>|<id>"), publish())
    };
    let some = Definition { workers: 1, ..Definition { on: pattern("p|ann|<id>"), ..all.clone() } };
    [("all", all), ("some", some)]
}

impl World {
    fn new() -> Self {
        let journal = Shared::default();
        let flows = Flows::new(Box::new(journal.clone()), 1);
        let mut world = Self {
            flows,
            committed: (Memory::default(), Effects::new()),
            journal,
            effects: Effects::new(),
            order: BTreeMap::new(),
            written: BTreeMap::new(),
            running: Vec::new(),
            now: Millis(1000),
            sequence: 0,
        };
        world.install();
        world.commit();
        world
    }

    fn install(&mut self) {
        for (name, definition) in definitions(u32::MAX) {
            self.flows.add(name, definition, String::new()).unwrap();
        }
    }

    fn commit(&mut self) {
        self.committed = (self.journal.0.borrow().clone(), self.effects.clone());
    }

    /// The process ends; what was not committed is gone.
    fn crash(&mut self) {
        *self.journal.0.borrow_mut() = self.committed.0.clone();
        self.effects = self.committed.1.clone();
        let end = self.journal.end();
        self.written.retain(|position, _| *position < end);
        self.running.clear();
        // A process begins later than the last one ended.
        self.now = Millis(self.now.0 + 1);
        self.flows = Flows::new(Box::new(self.journal.clone()), 1);
        self.install();
    }

    fn write(&mut self, draws: &mut Draws) {
        let who = ["ann", "bob", "cat"][draws.below(3) as usize];
        let key = format!("p|{who}|{}", draws.below(4)).into_bytes();
        let position = self.journal.end();
        let operation = Operation::ALL[draws.below(3) as usize];
        assert!(self.flows.append(self.now, operation, &key, b"value"));
        assert!(!self.flows.append(self.now, operation, b"q|1", b"value"));
        self.written.insert(position, key);
        let mut sequence = 0;
        self.journal.read(position, 1, &mut |record| sequence = record.sequence);
        assert!(sequence > self.sequence, "F5: {sequence} comes behind {}", self.sequence);
        self.sequence = sequence;
    }

    fn finish(&mut self, draws: &mut Draws, fails: u64) {
        if self.running.is_empty() {
            return;
        }
        let at = draws.below(self.running.len() as u64) as usize;
        let task = self.running.swap_remove(at);
        let outcome = match draws.below(100) {
            chance if chance < fails => Outcome::Failed(String::from("no")),
            chance if chance < fails + 10 => {
                let mut mark = task.mark.clone();
                mark.push(b'x');
                Outcome::Further(mark)
            }
            _ => Outcome::Done,
        };
        if outcome == Outcome::Done {
            let of = (task.flow.clone(), task.record.position);
            self.effects.entry(of).or_insert((task.record.key.clone(), 0)).1 += 1;
            let key = (task.flow.clone(), task.record.key.clone());
            self.order.entry(key).or_default().push(task.record.position);
        }
        self.flows.finish(&task, outcome, self.now);
    }

    fn start(&mut self) -> bool {
        let Some(task) = self.flows.start(self.now) else { return false };
        let same = |other: &&Task| other.flow == task.flow && other.record.key == task.record.key;
        assert!(self.running.iter().find(same).is_none(), "F2: two tasks of one key run");
        self.running.push(task);
        true
    }

    fn settle(&mut self, draws: &mut Draws) {
        loop {
            while self.start() {}
            if self.running.is_empty() {
                match self.flows.next_deadline() {
                    Some(at) => self.now = self.now.max(at),
                    None => break,
                }
            }
            self.finish(draws, 0);
        }
    }

    fn check(&mut self) {
        for (name, definition) in definitions(1) {
            for (position, key) in &self.written {
                let seen = self.effects.get(&(name.to_string(), *position)).map_or(0, |(_, n)| *n);
                let right = u32::from(definition.on.matches(key));
                assert_eq!(seen, right, "{name}: the effect of {position}");
            }
        }
        for report in self.flows.reports() {
            assert_eq!((report.backlog, report.lag, report.running), (0, 0, 0), "{report:?}");
        }
        self.journal.0.borrow_mut().release(0);
        assert_eq!(self.journal.first(), self.journal.end(), "F4: nothing is kept for nobody");
    }
}

#[test]
fn every_write_has_its_effect_once_however_the_process_ends() {
    for seed in 0..600 {
        let draws = &mut Draws(seed);
        let mut world = World::new();
        for _ in 0..120 {
            match draws.below(20) {
                0..=5 => world.write(draws),
                6..=10 => drop(world.start()),
                11..=15 => world.finish(draws, 20),
                16 => world.now = Millis(world.now.0 + draws.below(80)),
                17 | 18 => world.commit(),
                _ => world.crash(),
            }
        }
        world.settle(draws);
        world.check();
    }
}

#[test]
fn effects_on_one_key_come_in_the_order_of_its_writes() {
    for seed in 0..200 {
        let draws = &mut Draws(seed ^ 0xabcd);
        let mut world = World::new();
        for _ in 0..150 {
            match draws.below(10) {
                0..=3 => world.write(draws),
                4..=6 => drop(world.start()),
                7 | 8 => world.finish(draws, 30),
                _ => world.now = Millis(world.now.0 + draws.below(80)),
            }
        }
        world.settle(draws);
        world.check();
        for (of, positions) in &world.order {
            assert!(positions.is_sorted(), "{of:?}: {positions:?}");
        }
    }
}

#[test]
fn a_task_that_fails_too_often_is_dead_and_can_be_tried_again() {
    let journal = Shared::default();
    let mut flows = Flows::new(Box::new(journal.clone()), 1);
    let [(_, definition), _] = definitions(3);
    flows.add("f", definition.clone(), String::from("text")).unwrap();
    flows.append(Millis(1), Operation::Set, b"p|ann|1", b"one");
    flows.append(Millis(2), Operation::Set, b"p|ann|1", b"two");
    let mut now = Millis(10);
    for attempt in 1..=3 {
        let task = flows.start(now).expect("its rest is over");
        assert_eq!((task.attempt, &*task.record.value), (attempt, &b"one"[..]));
        assert_eq!(flows.start(now), None, "the next one of its key waits");
        flows.finish(&task, Outcome::Failed(format!("no {attempt}")), now);
        if attempt < 3 {
            assert_eq!(flows.start(now), None, "it rests");
            now = flows.next_deadline().expect("its rest ends");
        }
    }
    // A restart knows the dead.
    let mut flows = Flows::new(Box::new(journal.clone()), 1);
    flows.add("f", definition, String::from("text")).unwrap();
    let dead: Vec<_> = flows.dead("f").unwrap().values().cloned().collect();
    assert_eq!((dead.len(), dead[0].attempts, dead[0].error.as_str()), (1, 3, "no 3"));
    let task = flows.start(now).expect("the one behind is free");
    assert_eq!(&*task.record.value, b"two");
    let two = task.record.sequence;
    let refused = flows.retry("f", Some(0), false, now).unwrap().unwrap_err();
    assert!(refused.0.contains("'p|ann|1' has been done or waits"), "{}", refused.0);
    flows.finish(&task, Outcome::Done, now);
    // What was done since would be hidden; a restart knows that, too.
    let mut flows = Flows::new(Box::new(journal.clone()), 1);
    let [(_, definition), _] = definitions(3);
    flows.add("f", definition, String::from("text")).unwrap();
    assert!(flows.dead("f").unwrap()[&0].overtaken);
    assert_eq!(flows.retry("f", None, false, now), Some(Ok(0)));
    assert!(flows.retry("f", Some(0), false, now).unwrap().is_err());
    assert_eq!(flows.retry("f", Some(0), true, now), Some(Ok(1)));
    let task = flows.start(now).expect("it is tried once more");
    assert_eq!((task.attempt, &*task.record.value), (1, &b"one"[..]));
    assert!(task.record.sequence < two, "it is the old write still");
    flows.finish(&task, Outcome::Done, now);
    assert_eq!(flows.reports()[0].backlog, 0);
    assert_eq!(journal.first(), journal.end());
    assert_eq!(flows.discard("f", Some(0)), Some(0));
    assert_eq!(flows.discard("g", None), None);
}

#[test]
fn dead_tasks_are_tried_again_in_the_order_of_their_writes() {
    let mut flows = Flows::new(Box::<Memory>::default(), 1);
    let [(_, definition), _] = definitions(1);
    flows.add("f", definition, String::new()).unwrap();
    let now = Millis(5);
    for value in ["1", "2", "3"] {
        flows.append(now, Operation::Set, b"p|ann|1", value.as_bytes());
    }
    let mut values = Vec::new();
    let mut run = |flows: &mut Flows, outcome: &Outcome| {
        values.clear();
        while let Some(task) = flows.start(now) {
            values.push(String::from_utf8(task.record.value.clone()).unwrap());
            flows.finish(&task, outcome.clone(), now);
        }
        values.join(" ")
    };
    let failed = Outcome::Failed(String::from("no"));
    assert_eq!(run(&mut flows, &failed), "1 2 3");
    // One that is tried again holds back none that is newer, and those that are older.
    assert_eq!(flows.retry("f", Some(1), false, now), Some(Ok(1)));
    assert!(flows.retry("f", Some(0), false, now).unwrap().is_err());
    assert_eq!(flows.retry("f", Some(2), false, now), Some(Ok(1)));
    assert_eq!(run(&mut flows, &failed), "2 3");
    assert_eq!(flows.retry("f", None, false, now), Some(Ok(3)));
    assert_eq!(run(&mut flows, &Outcome::Done), "1 2 3");
}

#[test]
fn a_slow_flow_holds_up_no_other_and_a_full_one_says_so() {
    let mut flows = Flows::new(Box::<Memory>::default(), 1);
    let [(_, definition), _] = definitions(3);
    let full = Definition { backlog_max: 5, ..definition.clone() };
    let oldest = Definition { when_full: WhenFull::DropOldest, ..full.clone() };
    flows.add("slow", full, String::new()).unwrap();
    flows.add("fast", definition, String::new()).unwrap();
    flows.add("loses", oldest, String::new()).unwrap();
    flows.pause("slow", true);
    flows.pause("loses", true);
    let now = Millis(5);
    for id in 0..5 {
        let key = format!("p|ann|{id}");
        flows.append(now, Operation::Set, key.as_bytes(), b"");
    }
    let full: Vec<_> = flows
        .limiting()
        .filter(|(_, definition, backlog)| *backlog >= definition.backlog_max)
        .map(|(name, _, backlog)| (name, backlog))
        .collect();
    assert_eq!(full, [("slow", 5)]);
    flows.append(now, Operation::Set, b"p|bob|9", b"");
    let mut done = 0;
    while let Some(task) = flows.start(now) {
        assert_eq!(task.flow, "fast");
        flows.finish(&task, Outcome::Done, now);
        done += 1;
    }
    assert_eq!(done, 6);
    let reports = flows.reports();
    let of = |name: &str| reports.iter().find(|report| report.name == name).unwrap();
    assert_eq!((of("slow").backlog, of("fast").backlog), (6, 0));
    assert_eq!((of("loses").backlog, of("loses").dropped), (5, 1));
    assert_eq!(of("slow").oldest, Some(now));
    flows.pause("slow", false);
    assert_eq!(flows.start(now).unwrap().flow, "slow");
}

#[test]
fn flows_that_would_cause_themselves_are_refused() {
    let mut flows = Flows::new(Box::<Memory>::default(), 1);
    let fan = |from: &str, to: &str| {
        let join = Join::parse(&format!("{to} = copy {from}"), &Limits::default()).unwrap();
        Definition::new(pattern(from), Action::Fanout(join))
    };
    flows.add("ab", fan("a|<x>", "b|<x>"), String::new()).unwrap();
    flows.add("bc", fan("b|<x>", "c|<x>"), String::new()).unwrap();
    let refusal = flows.add("ca", fan("c|<x>", "a|<x>"), String::new()).unwrap_err();
    assert!(refusal.0.contains("ca -> ab -> bc -> ca"), "{}", refusal.0);
    let refusal = flows.add("aa", fan("d|<x>", "d|<x>"), String::new()).unwrap_err();
    assert!(refusal.0.contains("aa -> aa"), "{}", refusal.0);
    flows.add("cd", fan("c|<x>", "d|<x>"), String::new()).unwrap();
    assert!(flows.add("ab", fan("x|<x>", "y|<x>"), String::new()).is_err());
}

#[test]
fn a_flow_can_be_replayed_as_far_as_the_journal_reaches() {
    let mut flows = Flows::new(Box::<Memory>::default(), 1);
    flows.retain(3);
    let [(_, definition), _] = definitions(3);
    flows.add("f", definition, String::new()).unwrap();
    let now = Millis(1);
    for id in 0..6 {
        flows.append(now, Operation::Set, format!("p|ann|{id}").as_bytes(), b"");
        let task = flows.start(now).unwrap();
        flows.finish(&task, Outcome::Done, now);
    }
    assert!(flows.replay("f", 2, 0).is_err());
    assert_eq!(flows.replay("f", 4, 0), Ok(2));
    let mut again = Vec::new();
    while let Some(task) = flows.start(now) {
        again.push(task.record.position);
        flows.finish(&task, Outcome::Done, now);
    }
    assert_eq!(again, [4, 5]);
    assert!(flows.replay("g", 4, 0).is_err());
}
