//! Long histories at a memory bound: thousands of writes of values of all sizes, to keys that rise as those of queues and
//! timelines do, to few that are hot, and to random ones, with streams beside them.
//!
//! What the bound is, what goes there, and whether there is a disk are the history's first operations; they may change
//! on the way.

use crate::equipped::STREAMS;
use crate::history::{Op, Until};
use crate::join::Join;
use crate::rng::Rng;

const POLICIES: [&str; 9] = [
    "noeviction",
    "allkeys-lru",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-cost",
    "allkeys-random",
    "volatile-lru",
    "volatile-ttl",
    "volatile-random",
];
const BOUNDS: [usize; 6] = [100 << 10, 200 << 10, 400 << 10, 1 << 20, 2 << 20, 5 << 20];
const JOINS: [(&str, &str); 7] = [
    ("timeline", "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"),
    ("posts", "n|<poster> = count p|<poster>|<time>"),
    ("sum", "sum|<a> = sum v|<a>|<b>"),
    ("best", "best|<a> = max v|<a>|<b>"),
    ("by", "by|<b>|<a> = copy v|<a>|<b>"),
    ("asked", "asked|<user>|<time> = pull check s|<user>|<poster> copy p|<poster>|<time>"),
    ("marks", "m|<poster>|<time> = copy p|<poster>|<time>"),
];
/// Tables that no join reads, in which keys rise.
const RISING: [&str; 3] = ["q", "log", "stack"];
const CHUNK_BYTES: usize = 256 << 10;

/// What the keys of one history are made from.
struct World {
    bound: usize,
    joins: Vec<(&'static str, &'static str)>,
    /// How long a component of some keys is.
    long: usize,
    /// The next number, and the first one left, of each rising table.
    rising: [(u64, u64); 3],
    /// The one of them that grows most, and how often of a hundred times its last keys go and not the first ones.
    favourite: usize,
    tail: usize,
    time: u64,
    users: usize,
    /// How many keys are written without order.
    spread: usize,
    /// Bytes of values, mostly.
    sizes: [usize; 4],
    expires: usize,
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        let bound = *rng.pick(&BOUNDS);
        let mut joins: Vec<_> = JOINS.into_iter().filter(|_| rng.chance(35)).collect();
        rng.shuffle(&mut joins);
        Self {
            bound,
            joins,
            long: if rng.chance(40) { 20 + rng.below(900) } else { 0 },
            rising: [(0, 0); 3],
            favourite: rng.below(3),
            tail: *rng.pick(&[10, 50, 95]),
            time: 1000,
            users: 2 + rng.below(12),
            spread: *rng.pick(&[20, 200, 2000]),
            sizes: *rng.pick(&[[60, 25, 12, 3], [97, 2, 1, 0], [10, 60, 28, 2], [70, 0, 0, 30]]),
            expires: *rng.pick(&[0, 10, 60]),
        }
    }

    /// A value: mostly of the sizes of this history.
    fn value(&self, rng: &mut Rng) -> Vec<u8> {
        let len = match rng.weighted(&self.sizes) {
            0 => 1 + rng.below(40),
            1 => 100 + rng.below(1000),
            2 => 1000 + rng.below(8000),
            _ => 8000 + rng.below(92_000),
        };
        bytes(rng, len.min(self.bound / 6))
    }

    fn user(&self, rng: &mut Rng) -> String {
        // The few first ones more often.
        let most = 1 + rng.below(self.users);
        format!("u{}", rng.below(most))
    }

    fn rising_key(&self, table: usize, number: u64) -> Vec<u8> {
        let rest = "x".repeat(self.long);
        match table {
            // One that shares nothing with its neighbours beyond the table, one in groups, and one in text order.
            0 => format!("q|{number:08}{rest}"),
            1 => format!("log|{}|{number:06}", number / 100),
            _ => format!("stack|{rest}{number:05}"),
        }
        .into_bytes()
    }

    /// A key of any kind that may hold something.
    fn key(&self, rng: &mut Rng) -> Vec<u8> {
        match rng.weighted(&[30, 40, 10, 10, 10]) {
            0 => {
                let table = rng.below(3);
                let (next, first) = self.rising[table];
                let near = rng.below((next - first + 2) as usize) as u64;
                self.rising_key(table, first + near)
            }
            1 => self.spread_key(rng),
            2 => format!("p|{}|{}", self.user(rng), 1000 + rng.below((self.time - 990) as usize))
                .into_bytes(),
            3 => format!("v|{}|{}", self.user(rng), rng.below(40)).into_bytes(),
            _ => stream(rng),
        }
    }

    fn spread_key(&self, rng: &mut Rng) -> Vec<u8> {
        let most = 1 + rng.below(self.spread);
        let number = rng.below(most);
        match number % 7 {
            0 => format!("k{number}"),
            1 => format!("w|{}|{number}", number % 5),
            2 if self.long > 0 => format!("w|{number}|{}", "y".repeat(self.long)),
            _ => format!("k|{number}"),
        }
        .into_bytes()
    }

    fn until(&self, rng: &mut Rng) -> Until {
        if rng.chance(self.expires) {
            return Until::In(*rng.pick(&[1, 50, 400, 5000, 100_000]));
        }
        if rng.chance(4) { Until::Keep } else { Until::Ever }
    }

    /// A key at the end of a rising table, or one from an end of it is removed.
    fn rise(&mut self, rng: &mut Rng, all: &mut Vec<Op>, removes: usize) {
        let table = if rng.chance(70) { self.favourite } else { rng.below(3) };
        let (next, first) = self.rising[table];
        if rng.chance(removes) && next > first {
            // A queue gives its first ones, a stack its last ones. Where a few come and a few go at the end, its last page
            // is made and left again and again.
            let many = 1 + rng.below(3) as u64;
            for _ in 0..many.min(next - first) {
                let (next, first) = &mut self.rising[table];
                let at = if rng.chance(self.tail) {
                    *next -= 1;
                    *next
                } else {
                    *first += 1;
                    *first - 1
                };
                all.push(Op::Remove { key: self.rising_key(table, at) });
            }
            return;
        }
        for _ in 0..1 + rng.below(4) {
            let number = self.rising[table].0;
            self.rising[table].0 += 1;
            let (value, until) = (self.value(rng), self.until(rng));
            all.push(Op::Set { key: self.rising_key(table, number), value, until });
        }
    }

    fn joined(&mut self, rng: &mut Rng) -> Op {
        let (user, poster) = (self.user(rng), self.user(rng));
        let set = |key: String, value: Vec<u8>| Op::Set {
            key: key.into_bytes(),
            value,
            until: Until::Ever,
        };
        match rng.weighted(&[45, 15, 5, 30, 5]) {
            0 => {
                self.time += 1;
                let len = [3, 20, 200, 900][rng.weighted(&[20, 40, 30, 10])];
                let text = bytes(rng, len);
                set(format!("p|{poster}|{}", self.time), text)
            }
            1 => set(format!("s|{user}|{poster}"), b"1".to_vec()),
            2 => Op::Remove { key: format!("s|{user}|{poster}").into_bytes() },
            3 => {
                let number = format!("{}.{}", rng.below(100), rng.below(10)).into_bytes();
                set(format!("v|{user}|{}", rng.below(40)), number)
            }
            _ => Op::Remove { key: format!("v|{user}|{}", rng.below(40)).into_bytes() },
        }
    }

    fn of_stream(&self, rng: &mut Rng) -> Op {
        let (key, at) = (stream(rng), rng.bits() >> 1);
        match rng.weighted(&[50, 28, 8, 6, 3, 3, 2, 2]) {
            0 => {
                let len = match rng.weighted(&[10, 40, 40, 10]) {
                    0 => 0,
                    1 => rng.below(300),
                    2 => rng.below(20_000),
                    _ => CHUNK_BYTES - 5000 + rng.below(10_000),
                };
                Op::StreamAppend { key, tail: bytes(rng, len.min(self.bound / 4)) }
            }
            1 => Op::StreamRead { key, at, count: *rng.pick(&[1, 100, 10_000, 1 << 40]) },
            2 => Op::StreamTrim { key, at },
            3 => Op::StreamInfo { key },
            4 => Op::Remove { key },
            5 => Op::Copy { from: key, to: stream(rng), replace: rng.chance(70) },
            6 => Op::Rename { from: key, to: stream(rng) },
            _ => Op::Expire { key, after: Some(*rng.pick(&[10, 1000])) },
        }
    }

    fn read(&self, rng: &mut Rng) -> Op {
        let whole = |prefix: String, reverse, limit| {
            let first = prefix.into_bytes();
            let last = headwater_base::prefix_end(&first);
            Op::Range { first, last, reverse, limit }
        };
        let limit = rng.chance(50).then(|| 1 + rng.below(30) as u64);
        let reverse = rng.chance(30);
        match rng.below(9) {
            0..=2 => whole(format!("t|{}|", self.user(rng)), reverse, limit),
            3 => whole(format!("p|{}|", self.user(rng)), reverse, limit),
            4 => whole(String::from(*rng.pick(&["n|", "sum|", "best|", "m|"])), reverse, limit),
            5 => whole(format!("by|{}|", rng.below(40)), reverse, limit),
            6 => whole(format!("{}|", rng.pick(&RISING)), reverse, limit),
            7 => whole(format!("asked|{}|", self.user(rng)), reverse, limit),
            _ => whole(String::from(*rng.pick(&["k|", "w|1|", "k", "v|u0|"])), reverse, limit),
        }
    }

    fn install(&self, rng: &mut Rng) -> Op {
        let (name, text) = *rng.pick(&JOINS);
        let join = Join::parse(text).expect("joins are well formed");
        Op::JoinAdd { name: String::from(name), join, replace: rng.chance(30) }
    }

    fn seldom(&mut self, rng: &mut Rng) -> Op {
        match rng.weighted(&[20, 10, 10, 4, 10, 5, 10, 10, 10, 5, 1, 5]) {
            0 => Op::ScanStep { count: 1 + rng.below(200) },
            1 => Op::Compact { keys: 1 + rng.below(500) },
            2 => Op::Verify { first: Vec::new(), last: Vec::new() },
            3 => Op::Bound { bytes: self.bound * (50 + rng.below(100)) / 100, policy: policy(rng) },
            4 | 5 => Op::Watch { key: self.key(rng) },
            6 => self.install(rng),
            7 => Op::JoinDrop { name: String::from(rng.pick(&JOINS).0) },
            8 => {
                let first = self.key(rng);
                let last = headwater_base::prefix_end(&first[..first.len() - rng.below(2)]);
                Op::RemoveRange { first, last }
            }
            9 => Op::Evict { draw: rng.below(1000) as u64, count: 1 + rng.below(5) as u64 },
            10 => Op::Flush,
            _ => Op::TableSet {
                name: rng.pick(&["t", "p", "q", "w", "log"]).as_bytes().to_vec(),
                boundary: rng.below(3),
            },
        }
    }

    /// Something that reads what it writes, or writes several keys.
    fn compound(&self, rng: &mut Rng) -> Op {
        match rng.below(6) {
            0 => Op::Incr { key: format!("num|{}", rng.below(50)).into_bytes(), by: 3 },
            1 => Op::Append { key: self.spread_key(rng), tail: self.value(rng) },
            2 => {
                Op::Copy { from: self.key(rng), to: self.spread_key(rng), replace: rng.chance(80) }
            }
            3 => Op::Rename { from: self.spread_key(rng), to: self.spread_key(rng) },
            4 => {
                let pair = |rng: &mut Rng| (self.spread_key(rng), self.value(rng));
                Op::SetAll { pairs: (0..2 + rng.below(4)).map(|_| pair(rng)).collect() }
            }
            _ => Op::RemoveAll { keys: (0..2 + rng.below(4)).map(|_| self.key(rng)).collect() },
        }
    }
}

fn policy(rng: &mut Rng) -> &'static str {
    POLICIES[rng.below(POLICIES.len())]
}

fn stream(rng: &mut Rng) -> Vec<u8> {
    [STREAMS, b"|", &[*rng.pick(b"abcdef")]].concat()
}

/// Bytes that can be told from others.
fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let seed = rng.bits().to_le_bytes().map(|byte| b'a' + byte % 26);
    (0..len).map(|at| seed[at % 8].wrapping_add((at / 8 % 7) as u8)).collect()
}

/// What a history does for a while, in so many parts: rising keys, keys without order, what joins read, streams, reads of
/// keys, reads of ranges, commands of several keys, time, what is seldom.
const PHASES: [[usize; 9]; 5] = [
    [30, 20, 15, 6, 12, 3, 5, 3, 1],
    [70, 5, 5, 1, 8, 2, 2, 3, 1],
    [5, 40, 5, 3, 30, 2, 10, 4, 1],
    [5, 5, 50, 2, 5, 5, 3, 2, 2],
    [5, 10, 5, 55, 10, 2, 5, 4, 2],
];

/// The history that belongs to `seed`: one to four thousand operations.
#[must_use]
pub fn history(seed: u64) -> Vec<Op> {
    let rng = &mut Rng::new(seed ^ 0x6c6f_6e67);
    let mut world = World::new(rng);
    let mut all = vec![Op::Bound { bytes: world.bound, policy: policy(rng) }];
    if rng.chance(40) {
        all.push(Op::Spill { bytes: (world.bound * *rng.pick(&[1, 2, 10])) as u64 });
    }
    for name in ["t", "p", "q", "w"] {
        if rng.chance(50) {
            all.push(Op::TableSet { name: name.as_bytes().to_vec(), boundary: rng.below(3) });
        }
    }
    let joins = world.joins.iter().map(|(name, text)| Op::JoinAdd {
        name: String::from(*name),
        join: Join::parse(text).expect("joins are well formed"),
        replace: false,
    });
    all.extend(joins);
    let end = 1000 + rng.below(3000);
    let crashes = *rng.pick(&[0, 0, 200]);
    // Watches cost the oracle a look at everything after each write: they are short.
    let mut watched_until = usize::MAX;
    while all.len() < end {
        let (phase, removes) = (*rng.pick(&PHASES), *rng.pick(&[2, 20, 45, 60]));
        let until = all.len() + 100 + rng.below(400);
        while all.len() < until {
            let op = match rng.weighted(&phase) {
                0 => {
                    world.rise(rng, &mut all, removes);
                    continue;
                }
                1 => {
                    let (value, until) = (world.value(rng), world.until(rng));
                    Op::Set { key: world.spread_key(rng), value, until }
                }
                2 => world.joined(rng),
                3 => world.of_stream(rng),
                4 => Op::Get { key: world.key(rng) },
                5 => world.read(rng),
                6 => world.compound(rng),
                7 => Op::Advance { millis: *rng.pick(&[1, 20, 300, 3000]) },
                _ if rng.below(1000) < crashes => Op::Crash,
                _ => world.seldom(rng),
            };
            if matches!(op, Op::Watch { .. }) {
                watched_until = all.len() + 6;
            }
            all.push(op);
            if all.len() > watched_until {
                all.extend([Op::Watched, Op::Unwatch]);
                watched_until = usize::MAX;
            }
        }
    }
    all
}
