//! A crash cuts the log of each shard somewhere; what the records in them say is done at the next start. Each transaction is then there as a
//! whole, or not at all, and a crash meanwhile changes nothing of that.
//!
//! Each shard is a map with a log of batches. A history is drawn from its seed: `HEADWATER_ROUTER_SEED=7` repeats one,
//! `HEADWATER_ROUTER_SEEDS=100000` runs more.

mod draws;

use draws::Draws;
use headwater_base::{Millis, Placement, Shard};
use headwater_command::{OwnedArgs, Reply};
use headwater_protocol::resp::{decode, find};
use headwater_router::{
    Ask, Inner, Next, Place, Plan, PutValue, RecordedStep, Redo, Step, Transaction, TransactionId,
    answer_of,
};
use std::collections::{BTreeMap, BTreeSet};

const SHARDS: u16 = 3;
const KEYS: usize = 9;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

impl Draws {
    fn key(&mut self) -> String {
        format!("k|{}", self.below(KEYS))
    }
}

/// What a shard has written at once.
#[derive(Clone, Default)]
struct Batch {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    record: Option<(u64, Vec<u8>)>,
    /// When it was written, in steps that were asked together.
    round: usize,
}

/// One shard.
#[derive(Clone, Default)]
struct Home {
    keys: Map,
    log: Vec<Batch>,
    batch: Batch,
}

impl Home {
    fn set(&mut self, key: &[u8], value: Option<&[u8]>) {
        let value = value.map(<[u8]>::to_vec);
        self.batch.changes.push((key.to_vec(), value.clone()));
        match value {
            Some(value) => drop(self.keys.insert(key.to_vec(), value)),
            None => drop(self.keys.remove(key)),
        }
    }

    fn number(&self, key: &[u8]) -> i64 {
        let text = self.keys.get(key).and_then(|value| std::str::from_utf8(value).ok());
        text.map_or(0, |text| text.parse().unwrap_or(0))
    }

    /// Executes a command, and answers.
    fn execute(&mut self, request: &OwnedArgs, out: &mut impl Reply) {
        let args = request.args();
        let keys = args.from(1);
        match args.at(0) {
            b"INCRBY" => {
                let by: i64 = std::str::from_utf8(args.at(2)).unwrap().parse().unwrap();
                let sum = self.number(args.at(1)) + by;
                self.set(args.at(1), Some(sum.to_string().as_bytes()));
                out.integer(sum);
            }
            b"MSET" | b"SET" => {
                keys.pairs().for_each(|(key, value)| self.set(key, Some(value)));
                out.ok();
            }
            b"MSETNX" => {
                let done = keys.pairs().all(|(key, _)| !self.keys.contains_key(key));
                keys.pairs().filter(|_| done).for_each(|(key, value)| self.set(key, Some(value)));
                out.integer(i64::from(done));
            }
            b"DEL" => {
                let count = keys.iter().filter(|key| self.keys.contains_key(*key)).count();
                keys.iter().for_each(|key| self.set(key, None));
                out.integer(count as i64);
            }
            name @ (b"COPY" | b"RENAME") => {
                let value = self.keys.get(args.at(1)).cloned();
                let Some(value) = value else { return out.integer(0) };
                let leaves = name == b"RENAME";
                if leaves || !self.keys.contains_key(args.at(2)) {
                    if leaves {
                        self.set(args.at(1), None);
                    }
                    self.set(args.at(2), Some(&value));
                }
                out.integer(1);
            }
            b"BITOP" => {
                let values = args.from(3).iter().filter_map(|key| self.keys.get(key));
                let made = values.fold(Vec::new(), |sum: Vec<u8>, value| {
                    let at = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
                    let len = sum.len().max(value.len());
                    (0..len).map(|byte| at(&sum, byte) ^ at(value, byte)).collect()
                });
                let made = Some(&*made).filter(|made| !made.is_empty());
                self.set(args.at(2), made);
                out.integer(made.map_or(0, <[u8]>::len) as i64);
            }
            b"GET" => match self.keys.get(args.at(1)) {
                Some(value) => out.bulk(value),
                None => out.null(),
            },
            name => panic!("{}", name.escape_ascii()),
        }
    }

    /// Does what it is asked, in one batch with the record.
    fn take(&mut self, ask: &Ask<'_>, record: Option<(u64, Vec<u8>)>, round: usize) -> Vec<u8> {
        let answer = match ask {
            Ask::Lock { prepare, .. } => {
                let is_taken = |request: &OwnedArgs| {
                    let args = request.args();
                    args.at(0) == b"MSETNX"
                        && args.from(1).pairs().any(|(key, _)| self.keys.contains_key(key))
                };
                let taken = prepare.iter().any(is_taken);
                answer_of(|out| if taken { out.boolean(true) } else { out.ok() })
            }
            Ask::Execute { requests, .. } => answer_of(|out| {
                out.array(requests.len());
                requests.iter().for_each(|request| self.execute(request, out));
            }),
            Ask::Carry { key, .. } => answer_of(|out| match self.keys.get(*key) {
                Some(value) => {
                    out.array(3);
                    out.bulk(value);
                    out.integer(-1);
                    out.integer(0);
                }
                None => out.null(),
            }),
            Ask::Put(PutValue { key, value, if_absent, .. }) => {
                if *if_absent && self.keys.contains_key(*key) {
                    return answer_of(|out| out.integer(0));
                }
                self.set(key, Some(value));
                answer_of(|out| out.ok())
            }
            Ask::Release { .. } => answer_of(|out| out.ok()),
            other => panic!("{other:?}"),
        };
        let batch = Batch { record, round, ..core::mem::take(&mut self.batch) };
        if !batch.changes.is_empty() || batch.record.is_some() {
            self.log.push(batch);
        }
        answer
    }

    /// As its log leaves it where only so many batches of it are there.
    fn cut(&self, len: usize) -> Self {
        let mut home = Self { log: self.log[..len].to_vec(), ..Self::default() };
        for (key, value) in home.log.iter().flat_map(|batch| &batch.changes) {
            match value {
                Some(value) => drop(home.keys.insert(key.clone(), value.clone())),
                None => drop(home.keys.remove(key)),
            }
        }
        home
    }
}

/// All shards.
#[derive(Clone)]
struct World {
    placement: Placement,
    homes: Vec<Home>,
    round: usize,
}

impl World {
    fn new() -> Self {
        let homes = vec![Home::default(); usize::from(SHARDS)];
        Self { placement: Placement::even(SHARDS), homes, round: 0 }
    }

    fn all(&self) -> Map {
        self.homes.iter().flat_map(|home| home.keys.clone()).collect()
    }

    fn plan(&self, number: u64, requests: &[OwnedArgs]) -> Plan {
        let id = TransactionId { coordinator: Shard(0), number };
        let mut plan = Plan::new(id, 1);
        for request in requests {
            let args = request.args();
            let spec = find(args).ok().unwrap();
            let command = decode(spec, args).ok().unwrap();
            plan.add(&self.placement, (spec, &command, args), false, requests.len() == 1);
        }
        if let [request] = requests {
            plan = plan.prepared(request.args().at(0));
        }
        plan.record(&self.placement, Millis(1), |args| args.at(0) != b"GET");
        plan
    }

    fn ask(&mut self, number: u64, steps: Vec<RecordedStep>) -> Vec<Inner> {
        self.round += 1;
        let (round, homes) = (self.round, &mut self.homes);
        let answers = steps.into_iter().map(|(Step { at, ask, .. }, record)| {
            let record = record.map(|record| (number, record));
            let answer = ask.borrow(|ask| homes[usize::from(at.0)].take(ask, record, round));
            Inner { from: at, answer, digests: Vec::new() }
        });
        answers.collect()
    }

    fn execute(&mut self, number: u64, requests: &[OwnedArgs]) {
        let mut transaction = Transaction::new(self.plan(number, requests));
        let mut answers = Vec::new();
        while let Next::Ask(steps) = transaction.next(&self.placement, &answers) {
            let recorded = steps.into_iter().map(|step| {
                let record = transaction.record_of(&self.placement, &step);
                (step, record)
            });
            let recorded = recorded.collect();
            answers = self.ask(number, recorded);
        }
    }

    fn cut(&self, mut len: impl FnMut(&Home) -> usize) -> Self {
        let homes = self.homes.iter().map(|home| home.cut(len(home))).collect();
        Self { placement: self.placement.clone(), homes, round: self.round }
    }

    /// The furthest records of each transaction.
    fn records(&self) -> BTreeMap<u64, BTreeMap<Shard, Vec<u8>>> {
        let mut found: BTreeMap<u64, BTreeMap<Shard, Vec<u8>>> = BTreeMap::new();
        for (at, home) in self.homes.iter().enumerate() {
            for (number, record) in home.log.iter().filter_map(|batch| batch.record.clone()) {
                let of = found.entry(number).or_default();
                let before = of.insert(Shard(at as u16), record.clone());
                let places =
                    [before.as_deref(), Some(&record[..])].map(|it| it.and_then(Place::of_record));
                assert!(places[0] <= places[1], "they come in their order");
            }
        }
        found
    }

    /// Does what is missing; how many transactions there were of which something was.
    fn redo(&mut self) -> usize {
        let mut count = 0;
        for (number, records) in self.records() {
            let id = TransactionId { coordinator: Shard(0), number };
            let redo = Redo::new(id, &records, [].into_iter(), &self.placement, 1);
            let mut redo = redo.expect("records are what was written");
            if redo.is_done() {
                continue;
            }
            count += 1;
            let mut answers = Vec::new();
            loop {
                let steps = redo.next(answers).expect("nobody refuses");
                if steps.is_empty() {
                    break;
                }
                answers = self.ask(number, steps);
            }
        }
        count
    }
}

fn request(words: &[&str]) -> OwnedArgs {
    words.iter().map(|word| word.as_bytes()).collect()
}

/// One request of a transaction; `plain`: its part at each shard depends on nothing that is elsewhere.
fn drawn(draws: &mut Draws, plain: bool, number: u64) -> OwnedArgs {
    let [one, two, three] = [(); 3].map(|()| draws.key());
    let value = (number * 100 + draws.below(100) as u64).to_string();
    match draws.below(if plain { 4 } else { 9 }) {
        0 => request(&["INCRBY", &one, &value]),
        1 => request(&["MSET", &one, &value, &two, "1", &three, "2"]),
        2 => request(&["DEL", &one, &two]),
        3 => request(&["SET", &one, &value]),
        4 => request(&["COPY", &one, &two]),
        5 => request(&["RENAME", &one, &two]),
        6 => request(&["MSETNX", &one, &value, &two, &value]),
        7 => request(&["BITOP", "XOR", &one, &two, &three]),
        _ => request(&["GET", &one]),
    }
}

fn history(draws: &mut Draws, plain: bool) -> Vec<Vec<OwnedArgs>> {
    let count = 2 + draws.below(8) as u64;
    let transaction = |number| {
        let len = 1 + draws.below(4);
        let mut requests: Vec<_> = (0..len).map(|_| drawn(draws, plain, number)).collect();
        if plain {
            // What one shard alone writes, nobody else knows of.
            requests.extend([0, 1].map(|key| request(&["INCRBY", &format!("k|{key}"), "1"])));
        }
        // It is its own copy.
        requests.retain(|it| it.args().at(0) == b"MSET" || it.args().get(1) != it.args().get(2));
        requests
    };
    (0..count).map(transaction).collect()
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("HEADWATER_ROUTER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADWATER_ROUTER_SEEDS").unwrap_or(3000),
    }
}

/// A crash of the process: what was asked before anybody's answers were known is there.
#[test]
fn a_crash_leaves_what_was_before_a_transaction_or_behind_it() {
    let (mut unfinished, mut lost_again) = (0, 0);
    for seed in seeds() {
        let mut draws = Draws(seed);
        let (mut world, mut states) = (World::new(), Vec::new());
        for (number, requests) in history(&mut draws, false).iter().enumerate() {
            states.push((world.round, world.all()));
            world.execute(number as u64, requests);
        }
        states.push((world.round, world.all()));
        let round = draws.below(world.round + 1);
        let mut found = world.cut(|home| {
            let whole = home.log.iter().filter(|batch| batch.round < round).count();
            let last = home.log.iter().filter(|batch| batch.round == round).count();
            whole + if last > 0 { draws.below(last + 1) } else { 0 }
        });
        let crashed = found.clone();
        unfinished += found.redo();
        let all = found.all();
        let at = states.iter().filter(|(begins, _)| *begins < round).count().max(1);
        let (before, behind) = (&states[at - 1].1, &states[at.min(states.len() - 1)].1);
        assert!(all == *before || all == *behind, "seed {seed}: {all:?}, {before:?}, {behind:?}");
        assert_eq!(found.redo(), 0, "seed {seed}: it is done");
        // What was done since may be lost again.
        let lens: Vec<usize> = crashed.homes.iter().map(|home| home.log.len()).collect();
        let mut lens = lens.into_iter();
        let mut again = found.cut(|home| {
            let len = lens.next().unwrap();
            len + draws.below(home.log.len() - len + 1)
        });
        lost_again += again.redo();
        assert_eq!(again.all(), all, "seed {seed}");
    }
    assert!(unfinished > 0 && lost_again > 0, "{unfinished} {lost_again}");
}

/// A failure of the machine, where each shard may lose any number of its last batches.
#[test]
fn logs_that_end_anywhere_leave_each_transaction_as_a_whole_or_not_at_all() {
    let mut unfinished = 0;
    for seed in seeds() {
        let mut draws = Draws(seed);
        let (mut world, history) = (World::new(), history(&mut draws, true));
        for (number, requests) in history.iter().enumerate() {
            world.execute(number as u64, requests);
        }
        let mut found = world.cut(|home| draws.below(home.log.len() + 1));
        let survive: BTreeSet<u64> = found.records().into_keys().collect();
        unfinished += found.redo();
        let mut expected = World::new();
        for (number, requests) in history.iter().enumerate() {
            if survive.contains(&(number as u64)) {
                expected.execute(number as u64, requests);
            }
        }
        assert_eq!(found.all(), expected.all(), "seed {seed}");
        assert_eq!(found.redo(), 0, "seed {seed}");
    }
    assert!(unfinished > 0);
}

#[test]
fn a_value_was_carried_to_where_its_key_lived_then() {
    let mut world = World::new();
    world.execute(0, &[request(&["SET", "k|0", "1"])]);
    world.execute(1, &[request(&["RENAME", "k|0", "k|1"])]);
    for key in [&b"k|0"[..], b"k|1"] {
        let to = Shard((world.placement.home(key).0 + 1) % SHARDS);
        world.placement.assign(world.placement.partition(key), to);
    }
    assert_eq!(world.redo(), 0, "all is done");
}

#[test]
fn a_record_that_is_cut_is_none() {
    let mut world = World::new();
    let requests = [request(&["SET", "k|0", "1"]), request(&["RENAME", "k|0", "k|1"])];
    let others = (1..KEYS).map(|key| request(&["SET", &format!("k|{key}"), "2"]));
    world.execute(0, &requests.into_iter().chain(others).collect::<Vec<_>>());
    let records = world.records();
    for (shard, record) in &records[&0] {
        for end in 0..record.len() {
            let cut = BTreeMap::from([(*shard, record[..end].to_vec())]);
            let id = TransactionId { coordinator: Shard(0), number: 0 };
            let redo = Redo::new(id, &cut, [].into_iter(), &world.placement, 1);
            assert!(redo.is_none(), "{end} bytes");
        }
    }
}
