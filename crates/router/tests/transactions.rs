//! Transactions over several shards, with a network that delays and mixes, and clients at the same time: whatever is seen is the
//! state between two transactions.
//!
//! Each shard is a map with the locks of this crate; what goes between them are the bytes of this crate's requests. A history is drawn from its
//! seed: `HEADWATER_ROUTER_SEED=7` repeats one, `HEADWATER_ROUTER_SEEDS=100000` runs more.

mod draws;

use draws::Draws;
use headwater_base::{Placement, Shard};
use headwater_command::{ArgVec, OwnedArgs, Reply};
use headwater_protocol::resp::{decode, find};
use headwater_router::{
    Answer, Ask, AskHeader, Finished, Frames, Inner, ItemAnswer, LockSet, Locks, Next, Owner, Plan,
    Step, Transaction, answer_of, lock_set, write_answer, write_ask,
};
use std::collections::{BTreeMap, VecDeque};

const ACCOUNTS: usize = 7;
const EACH: i64 = 100;

fn account(number: usize) -> String {
    format!("acct|a{number}")
}

fn request(words: &[&str]) -> OwnedArgs {
    words.iter().map(|word| word.as_bytes()).collect()
}

/// A request that waits at a shard.
struct Waiting {
    client: usize,
    owner: Owner,
    frame: Vec<u8>,
}

/// One shard.
struct Home {
    me: Shard,
    keys: BTreeMap<Vec<u8>, i64>,
    locks: Locks,
    waiting: Vec<Waiting>,
    digests: Vec<u64>,
    /// Names what waits without being a transaction.
    waits: u64,
}

impl Home {
    /// Executes a command, and answers.
    fn execute(&mut self, args: &OwnedArgs, out: &mut impl Reply) {
        let args = args.args();
        let number = |at: usize| std::str::from_utf8(args.at(at)).unwrap().parse::<i64>().unwrap();
        match args.at(0) {
            b"INCRBY" => {
                let value = self.keys.entry(args.at(1).to_vec()).or_default();
                *value += number(2);
                out.integer(*value);
            }
            b"GET" => out.integer(self.keys[args.at(1)]),
            b"MGET" => {
                out.array(args.len() - 1);
                args.from(1).iter().for_each(|key| out.integer(self.keys[key]));
            }
            b"MSET" => {
                for (key, value) in args.from(1).pairs() {
                    let value = std::str::from_utf8(value).unwrap().parse().unwrap();
                    self.keys.insert(key.to_vec(), value);
                }
                out.ok();
            }
            name => panic!("{name:?}"),
        }
    }

    /// Takes a request; its answer, unless it waits.
    fn take(
        &mut self,
        placement: &Placement,
        client: usize,
        frame: &[u8],
    ) -> Vec<(usize, Vec<u8>)> {
        let mut spans = ArgVec::new();
        let (header, ask) = Frames::of(frame).next_ask(&mut spans).expect("it is a request");
        let mut answers = Vec::new();
        let answer = match ask {
            Ask::Command(spec, args) => {
                let set = lock_set(placement, spec, args);
                if self.locks.blocks(&set) {
                    self.waits += 1;
                    let owner = Owner::Session(self.waits);
                    assert!(!self.locks.request(owner, set));
                    self.waiting.push(Waiting { client, owner, frame: frame.to_vec() });
                    return answers;
                }
                let args = OwnedArgs::of(args);
                answer_of(|out| self.execute(&args, out))
            }
            Ask::Lock { transaction, ref set, .. } => {
                let owner = Owner::Transaction(transaction);
                let granted = self.locks.is_granted(owner);
                if !granted.unwrap_or_else(|| self.locks.request(owner, set.clone())) {
                    self.waiting.push(Waiting { client, owner, frame: frame.to_vec() });
                    return answers;
                }
                answer_of(|out| out.ok())
            }
            Ask::Execute { transaction, ref shards, last, ref requests } => {
                assert_eq!(self.locks.is_granted(Owner::Transaction(transaction)), Some(true));
                let answer = answer_of(|out| {
                    out.array(requests.len());
                    requests.iter().for_each(|request| self.execute(request, out));
                });
                if last {
                    for shard in shards.iter().filter(|shard| **shard != self.me) {
                        self.digests[usize::from(shard.0)] ^= transaction.digest();
                    }
                    answers = self.release(placement, Owner::Transaction(transaction));
                }
                answer
            }
            Ask::Release { transaction, .. } => {
                // One that was given up may wait still.
                let owner = Owner::Transaction(transaction);
                self.waiting.retain(|waiting| waiting.owner != owner);
                answers = self.release(placement, owner);
                answer_of(|out| out.ok())
            }
            other => panic!("{other:?}"),
        };
        let mut told = Vec::new();
        write_answer(header.id, 0, &self.digests, &answer, &mut told);
        answers.push((client, told));
        answers
    }

    /// Gives a lock back: who gets theirs by that goes on.
    fn release(&mut self, placement: &Placement, owner: Owner) -> Vec<(usize, Vec<u8>)> {
        let mut answers = Vec::new();
        for granted in self.locks.release(owner) {
            let at = self.waiting.iter().position(|waiting| waiting.owner == granted).unwrap();
            let Waiting { client, owner, frame } = self.waiting.remove(at);
            if let Owner::Session(_) = owner {
                // It is executed now, before whoever comes next.
                let mut spans = ArgVec::new();
                let (header, ask) = Frames::of(&frame).next_ask(&mut spans).unwrap();
                let Ask::Command(_, args) = ask else { panic!("only commands wait so") };
                let args = OwnedArgs::of(args);
                let answer = answer_of(|out| self.execute(&args, out));
                let mut told = Vec::new();
                write_answer(header.id, 0, &self.digests, &answer, &mut told);
                answers.push((client, told));
                answers.extend(self.release(placement, owner));
            } else {
                answers.extend(self.take(placement, client, &frame));
            }
        }
        answers
    }
}

/// One client, with what it does now.
struct Client {
    shard: Shard,
    transaction: Option<Transaction>,
    /// What was asked and is not answered: ids, in order.
    asked: Vec<(Shard, u64)>,
    answers: BTreeMap<u64, Inner>,
    is_transfer: bool,
    done: usize,
    given_up: usize,
}

struct World {
    placement: Placement,
    homes: Vec<Home>,
    clients: Vec<Client>,
    /// Messages on their way, by sender and receiver; each way keeps its order.
    ways: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    draws: Draws,
    last_id: u64,
    transactions: u64,
}

/// From whom or to whom a message goes: shards first, then clients.
impl World {
    fn new(seed: u64) -> Self {
        let mut draws = Draws(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let shards = 2 + draws.below(4) as u16;
        let placement = Placement::even(shards);
        let home = |me: u16| Home {
            me: Shard(me),
            keys: BTreeMap::new(),
            locks: Locks::default(),
            waiting: Vec::new(),
            digests: vec![0; usize::from(shards)],
            waits: 0,
        };
        let mut homes: Vec<Home> = (0..shards).map(home).collect();
        for number in 0..ACCOUNTS {
            let key = account(number).into_bytes();
            homes[usize::from(placement.home(&key).0)].keys.insert(key, EACH);
        }
        let clients = (0..4)
            .map(|number| Client {
                shard: Shard(number % shards),
                transaction: None,
                asked: Vec::new(),
                answers: BTreeMap::new(),
                is_transfer: false,
                done: 0,
                given_up: 0,
            })
            .collect();
        let ways = BTreeMap::new();
        Self { placement, homes, clients, ways, draws, last_id: 0, transactions: 0 }
    }

    /// Has a client begin something.
    fn begin(&mut self, client: usize) {
        self.transactions += 1;
        let id = headwater_router::TransactionId {
            coordinator: self.clients[client].shard,
            number: self.transactions,
        };
        let mut plan = Plan::new(id, 1000);
        let all: Vec<String> = (0..ACCOUNTS).map(account).collect();
        let is_transfer = self.draws.below(2) == 0;
        let reads = !is_transfer && self.draws.below(2) == 0;
        let requests: Vec<OwnedArgs> = if is_transfer {
            let (from, to) = (self.draws.below(ACCOUNTS), self.draws.below(ACCOUNTS));
            let amount = (1 + self.draws.below(20)).to_string();
            let less = format!("-{amount}");
            vec![
                request(&["INCRBY", &account(from), &less]),
                request(&["INCRBY", &account(to), &amount]),
            ]
        } else if reads || self.draws.below(2) == 0 {
            let words: Vec<&str> =
                ["MGET"].into_iter().chain(all.iter().map(String::as_str)).collect();
            vec![request(&words)]
        } else {
            all.iter().map(|key| request(&["GET", key])).collect()
        };
        for request in &requests {
            let args = request.args();
            let spec = find(args).ok().unwrap();
            let command = decode(spec, args).ok().unwrap();
            plan.add(&self.placement, (spec, &command, args), false, requests.len() == 1);
        }
        plan.reads = reads;
        self.clients[client].transaction = Some(Transaction::new(plan));
        self.clients[client].is_transfer = is_transfer;
        self.go_on(client, &[]);
    }

    fn go_on(&mut self, client: usize, answers: &[Inner]) {
        let mut transaction = self.clients[client].transaction.take().unwrap();
        let mut next = transaction.next(&self.placement, answers);
        while matches!(&next, Next::Ask(steps) if steps.is_empty()) {
            next = transaction.next(&self.placement, &[]);
        }
        match next {
            Next::Ask(steps) => {
                for Step { at, ask, .. } in steps {
                    self.last_id += 1;
                    let header = AskHeader { id: self.last_id, ..AskHeader::default() };
                    let mut frame = Vec::new();
                    ask.borrow(|ask| write_ask(&header, ask, &mut frame));
                    self.clients[client].asked.push((at, self.last_id));
                    let way = (self.homes.len() + client, usize::from(at.0));
                    self.ways.entry(way).or_default().push_back(frame);
                }
                self.clients[client].transaction = Some(transaction);
            }
            Next::Finished(Finished::Done(answers)) => self.look(client, answers),
            Next::Now(_) => panic!("no request is the session's own"),
            Next::Finished(Finished::Refused(error)) if error == given_up() => {
                self.clients[client].given_up += 1;
            }
            Next::Finished(other) => panic!("{other:?}"),
        }
    }

    /// What a client reads is all of it or nothing.
    fn look(&mut self, client: usize, answers: Vec<ItemAnswer>) {
        self.clients[client].done += 1;
        if self.clients[client].is_transfer {
            return;
        }
        let sum = |bytes: &[u8]| -> i64 {
            let answer = Answer::whole(bytes).unwrap();
            match answer.integer() {
                Some(number) => number,
                None => answer.list().iter().map(|it| it.integer().unwrap()).sum(),
            }
        };
        let total: i64 = answers
            .iter()
            .map(|answer| match answer {
                ItemAnswer::Typed(bytes) => sum(bytes),
                ItemAnswer::Merged(merge, parts) => {
                    let parts: Vec<_> = parts
                        .iter()
                        .map(|(shard, part)| (*shard, Answer::whole(part).unwrap()))
                        .collect();
                    sum(&answer_of(|out| merge.write(&parts, out)))
                }
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(total, ACCOUNTS as i64 * EACH);
    }

    /// Delivers some message; `false`: there is none.
    fn deliver(&mut self) -> bool {
        let full: Vec<(usize, usize)> =
            self.ways.iter().filter(|(_, way)| !way.is_empty()).map(|(way, _)| *way).collect();
        if full.is_empty() {
            return false;
        }
        let way = full[self.draws.below(full.len())];
        let message = self.ways.get_mut(&way).and_then(VecDeque::pop_front).unwrap();
        let shards = self.homes.len();
        if way.1 < shards {
            let answers = self.homes[way.1].take(&self.placement, way.0 - shards, &message);
            for (client, answer) in answers {
                self.ways.entry((way.1, shards + client)).or_default().push_back(answer);
            }
            return true;
        }
        let client = way.1 - shards;
        let frame = Frames::of(&message).next_answer().unwrap();
        let inner = Inner {
            from: Shard(way.0 as u16),
            answer: frame.answer.to_vec(),
            digests: frame.digests,
        };
        let is_wanted = self.clients[client].asked.iter().any(|(_, id)| *id == frame.id);
        if is_wanted && !self.clients[client].answers.contains_key(&frame.id) {
            self.clients[client].answers.insert(frame.id, inner);
            self.go_on_when_answered(client);
        }
        true
    }

    /// A shard that a client waits for does not answer, as far as it knows: the answers come later.
    fn give_up(&mut self, client: usize) {
        let Client { transaction: Some(transaction), asked, answers, .. } =
            &mut self.clients[client]
        else {
            return;
        };
        let missing = asked.iter().find(|(_, id)| !answers.contains_key(id));
        let Some(&(at, _)) = missing.filter(|_| transaction.may_be_given_up()) else { return };
        transaction.give_up(&given_up());
        for (_, id) in asked.iter().filter(|(shard, _)| *shard == at) {
            let inner = Inner { from: at, answer: given_up(), digests: Vec::new() };
            answers.entry(*id).or_insert(inner);
        }
        self.go_on_when_answered(client);
    }

    fn go_on_when_answered(&mut self, client: usize) {
        if self.clients[client].asked.len() == self.clients[client].answers.len() {
            let asked = std::mem::take(&mut self.clients[client].asked);
            let mut answers = std::mem::take(&mut self.clients[client].answers);
            let answers: Vec<Inner> =
                asked.iter().map(|(_, id)| answers.remove(id).unwrap()).collect();
            self.go_on(client, &answers);
        }
    }
}

/// What is answered where a shard does not answer.
fn given_up() -> Vec<u8> {
    answer_of(|out| out.error("BUSY", format_args!("it does not go on")))
}

/// How many transactions were given up.
fn run(seed: u64) -> usize {
    let mut world = World::new(seed);
    for _ in 0..400 {
        let client = world.draws.below(world.clients.len());
        let is_idle = world.clients[client].transaction.is_none();
        if is_idle && world.draws.below(3) == 0 {
            world.begin(client);
        } else if seed.is_multiple_of(2) && world.draws.below(30) == 0 {
            world.give_up(client);
        } else {
            world.deliver();
        }
    }
    while world.deliver() {}
    // Nobody waits for ever, and nothing stays locked.
    assert!(world.clients.iter().all(|client| client.transaction.is_none()));
    assert!(world.homes.iter().all(|home| home.locks.is_empty() && home.waiting.is_empty()));
    assert!(world.clients.iter().map(|client| client.done).sum::<usize>() > 10);
    let total: i64 = world.homes.iter().flat_map(|home| home.keys.values()).sum();
    assert_eq!(total, ACCOUNTS as i64 * EACH);
    world.clients.iter().map(|client| client.given_up).sum()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn what_is_seen_is_the_state_between_two_transactions() {
    if let Some(seed) = number("HEADWATER_ROUTER_SEED") {
        run(seed);
        return;
    }
    let mut given_up = 0;
    for seed in 0..number("HEADWATER_ROUTER_SEEDS").unwrap_or(2000) {
        let done = std::panic::catch_unwind(|| run(seed));
        assert!(done.is_ok(), "HEADWATER_ROUTER_SEED={seed}");
        given_up += done.unwrap_or(0);
    }
    assert!(given_up > 100, "{given_up}");
}

#[test]
fn sets_without_partitions_in_common_do_not_wait() {
    let mut locks = Locks::default();
    let placement = Placement::even(3);
    let of = |key: &str| LockSet::of([placement.partition(key.as_bytes())].into_iter());
    assert!(locks.request(Owner::Session(1), of("a")) && locks.request(Owner::Session(2), of("b")));
}
