//! Tasks that another shard carries out, over crashes of the process at any moment: both shards end together, each with what
//! its journal was told in whole batches. Every part is done, once, and what is kept about that does not grow.

mod common;

use common::{Draws, Shared, pattern};
use headwater_base::{Millis, Shard};
use headwater_flows::{
    Action, Definition, Flows, Handed, Journal, Memory, Operation, Outcome, Task,
};
use std::collections::{BTreeMap, VecDeque};

fn definition() -> Definition {
    let action = Action::Publish { channel: b"c".to_vec() };
    Definition { workers: 3, ..Definition::new(pattern("p|<who>|<id>"), action) }
}

/// One shard: its flows, and what of its journal and its effects would survive.
struct Side {
    flows: Flows,
    journal: Shared,
    effects: BTreeMap<(u64, u8), u32>,
    committed: (Memory, BTreeMap<(u64, u8), u32>),
}

impl Side {
    fn new() -> Self {
        let journal = Shared::default();
        let flows = Flows::new(Box::new(journal.clone()), 1);
        let mut side = Self {
            flows,
            journal,
            effects: BTreeMap::new(),
            committed: (Memory::default(), BTreeMap::new()),
        };
        side.install();
        side.commit();
        side
    }

    fn install(&mut self) {
        self.flows.add("f", definition(), String::from("words")).unwrap();
    }

    fn commit(&mut self) {
        self.committed = (self.journal.0.borrow().clone(), self.effects.clone());
    }

    fn crash(&mut self) {
        *self.journal.0.borrow_mut() = self.committed.0.clone();
        self.effects = self.committed.1.clone();
        self.flows = Flows::new(Box::new(self.journal.clone()), 1);
        self.install();
    }

    /// Does the part of a task, unless it has: two effects, of which it may do the first one alone.
    fn carry_out(&mut self, handed: &Handed, only_first: bool) -> Outcome {
        let seen = self.flows.seen(handed);
        for part in [b'a', b'b'] {
            if seen.as_deref().is_none_or(|seen| seen < &[part][..]) {
                *self.effects.entry((handed.position, part)).or_default() += 1;
                self.flows.note_seen(handed, &[part]);
                if only_first {
                    return Outcome::Waits;
                }
            }
        }
        Outcome::Done
    }
}

/// What is on its way, with what must be committed first: `true`, when it is.
type Way<T> = VecDeque<(bool, T)>;

#[test]
fn parts_are_done_once_over_crashes() {
    for seed in 0..40 {
        let draws = &mut Draws(seed);
        let (mut from, mut to) = (Side::new(), Side::new());
        let mut asked: Way<(Task, Handed)> = Way::new();
        let mut answered: Way<(Task, Outcome)> = Way::new();
        let (mut now, mut safe) = (Millis(1000), 0);
        let mut rounds = 0;
        let finished = loop {
            rounds += 1;
            let calm = rounds > 1500;
            match draws.below(if calm { 7 } else { 11 }) {
                0 | 1 => {
                    from.commit();
                    safe = from.flows.cursor("f").unwrap();
                    asked.iter_mut().for_each(|(is_safe, _)| *is_safe = true);
                }
                2 => {
                    to.commit();
                    answered.iter_mut().for_each(|(is_safe, _)| *is_safe = true);
                }
                3 => {
                    now.0 += 1;
                    if let Some(task) = from.flows.start(now) {
                        let handed = from.flows.handed(&task, Shard(0), safe).unwrap();
                        from.flows.hand_over(&task);
                        asked.push_back((false, (task, handed)));
                    }
                }
                4 | 5 => {
                    if let Some((task, handed)) =
                        asked.pop_front_if(|(is_safe, _)| *is_safe).map(|it| it.1)
                    {
                        let outcome = to.carry_out(&handed, draws.below(4) == 0);
                        answered.push_back((outcome != Outcome::Done, (task, outcome)));
                    }
                }
                6 => {
                    if let Some((_, (task, outcome))) =
                        answered.pop_front_if(|(is_safe, _)| *is_safe)
                    {
                        from.flows.finish(&task, outcome, now);
                    }
                }
                7..=9 => {
                    now.0 += 1;
                    let key = format!("p|w{}|{}", draws.below(3), draws.below(5));
                    from.flows.append(now, Operation::Set, key.as_bytes(), b"");
                }
                _ if draws.below(8) == 0 => {
                    from.crash();
                    to.crash();
                    asked.clear();
                    answered.clear();
                    safe = from.flows.cursor("f").unwrap();
                    now.0 += 1;
                }
                _ => {}
            }
            if calm && asked.is_empty() && answered.is_empty() {
                let report = &from.flows.reports()[0];
                if report.backlog == 0 {
                    break report.clone();
                }
            }
            assert!(rounds < 200_000, "seed {seed}: it does not end");
        };
        assert_eq!((finished.running, finished.failures), (0, 0), "seed {seed}");
        let end = from.journal.end();
        let done: Vec<_> = (0..end).flat_map(|at| [((at, b'a'), 1), ((at, b'b'), 1)]).collect();
        assert!(to.effects.clone().into_iter().eq(done), "seed {seed}");
        // What is done for good is forgotten with the next one.
        from.flows.append(now, Operation::Set, b"p|w|last", b"");
        let task = from.flows.start(now).unwrap();
        let handed = from.flows.handed(&task, Shard(0), end).unwrap();
        to.carry_out(&handed, false);
        let mut states = 0;
        to.journal.states(b"h", &mut |_, _| states += 1);
        assert!(end > 300 && states < 100, "seed {seed}: {states} are kept of {end}");
    }
}

#[test]
fn what_was_seen_is_of_one_record_one_replay_and_one_flow() {
    let mut side = Side::new();
    let handed = |position, at, replays| Handed {
        flow: String::from("f"),
        words: 0,
        origin: Shard(1),
        position,
        at: Millis(at),
        replays,
        below: 0,
    };
    side.flows.note_seen(&handed(7, 100, 0), b"x");
    assert_eq!(side.flows.seen(&handed(7, 100, 0)).as_deref(), Some(&b"x"[..]));
    assert_eq!(side.flows.seen(&handed(8, 100, 0)), None);
    // Another record at its place, after one was lost; and a replay.
    assert_eq!(side.flows.seen(&handed(7, 101, 0)), None);
    assert_eq!(side.flows.seen(&handed(7, 100, 1)), None);
    assert_eq!(side.flows.seen(&Handed { origin: Shard(2), ..handed(7, 100, 0) }), None);
    // What is done for good is forgotten, once there is enough of it.
    side.flows.note_seen(&Handed { below: 100, ..handed(200, 100, 0) }, b"");
    assert_eq!(side.flows.seen(&handed(7, 100, 0)), None);
    assert!(side.flows.seen(&handed(200, 100, 0)).is_some());
    assert!(!side.flows.knows(&handed(200, 100, 0)), "its words are others");
    side.flows.remove("f");
    side.install();
    assert_eq!(side.flows.seen(&handed(200, 100, 0)), None);
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
        side.flows.hand_over(&task);
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
