//! `cargo run --release -p headwater-engine --example maintenance -- [--users 20000] [--mean 40] [--seed 7]`
//!
//! What maintenance costs: nanoseconds per operation of a Twip (timelines as one cache join) on
//! one engine, without a server around it, in the CPU time of its one thread. Sizes before and
//! after are compared where a step takes back what another did.

use core::fmt::Arguments;
use core::fmt::Write as _;
use headwater_engine::{Engine, Expiry, RangeOptions, Settings, TableOptions};
use headwater_workload::{Graph, Rng};
use rustix::time::{ClockId, clock_gettime};
use std::io::{Write as _, stdout};
use std::time::Duration;

const TIMELINE: &str = "t|<user>|<time:10>|<poster> = \
                        check s|<user>|<poster> copy p|<poster>|<time:10>";

/// An engine, and rooms for the keys of its next operation.
struct Twip {
    engine: Engine,
    first: String,
    last: String,
}

impl Twip {
    fn new() -> Self {
        let mut engine = Engine::new(Settings::default());
        for table in ["t", "s", "p"] {
            let options = TableOptions { boundary: Some(1), ..TableOptions::default() };
            engine.table_set(table.as_bytes(), &options).expect("a table");
        }
        engine.join_add("timeline", TIMELINE, false).expect("a join");
        Self { engine, first: String::new(), last: String::new() }
    }

    fn set(&mut self, key: Arguments<'_>, value: &[u8]) {
        self.first.clear();
        let _ = self.first.write_fmt(key);
        self.engine.set(self.first.as_bytes(), value, Expiry::Never).expect("a base key");
    }

    fn remove(&mut self, key: Arguments<'_>) {
        self.first.clear();
        let _ = self.first.write_fmt(key);
        self.engine.remove(self.first.as_bytes()).expect("a base key");
    }

    /// How many posts a user's timeline has from `time` on.
    fn timeline(&mut self, user: &str, time: u64) -> u64 {
        self.first.clear();
        self.last.clear();
        let _ = write!(self.first, "t|{user}|{time:010}");
        let _ = write!(self.last, "t|{user}}}");
        let (first, last) = (self.first.as_bytes(), self.last.as_bytes());
        self.engine.range(first, last, RangeOptions::default(), &mut |_, _| {}).expect("no source")
    }
}

/// Prints what `count` operations took.
fn report(step: &str, count: usize, took: Duration) {
    let each = took.as_nanos() as f64 / count.max(1) as f64;
    let _ = writeln!(stdout(), "{step:<44} {count:>9} x {each:>9.0} ns");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, otherwise: u64| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let (users, mean) = (number("--users", 20_000) as usize, number("--mean", 40) as f64);
    let seed = number("--seed", 7);
    let graph = Graph::generate(users, mean, seed);
    let names: Vec<String> = (0..users as u32).map(|user| graph.user_name(user)).collect();
    let posters = graph.posters();
    let mut rng = Rng::new(seed);
    let mut twip = Twip::new();
    let text = [b'x'; 100];
    let mut time = 0;

    let start = cpu_time();
    for (user, follows) in graph.follows.iter().enumerate() {
        for &followee in follows {
            twip.set(format_args!("s|{}|{}", names[user], names[followee as usize]), b"1");
        }
    }
    report("SET of a subscription, nobody logged in", graph.edges(), cpu_time() - start);

    // A user who posts now and then has some posts when others log in.
    let start = cpu_time();
    for _ in 0..users {
        time += 1;
        let poster = posters.draw(&mut rng);
        twip.set(format_args!("p|{}|{time:010}", names[poster]), &text);
    }
    report("SET of a post, nobody logged in", users, cpu_time() - start);

    let active = users * 7 / 10;
    let mut shown = 0;
    let start = cpu_time();
    for name in &names[..active] {
        shown += twip.timeline(name, 0);
    }
    let took = cpu_time() - start;
    report("login: first read of a timeline", active, took);
    let spans: usize = graph.follows[..active].iter().map(Vec::len).sum();
    report("  per followee", spans, took);
    assert!(shown > 0, "timelines show posts");

    let stats = twip.engine.stats();
    let start = cpu_time();
    let posts = 2_000;
    for _ in 0..posts {
        time += 1;
        let poster = posters.draw(&mut rng);
        twip.set(format_args!("p|{}|{time:010}", names[poster]), &text);
    }
    let took = cpu_time() - start;
    let copies = twip.engine.stats().keys - stats.keys - posts as u64;
    report("post, copied to followers", posts, took);
    report("  per copy", copies as usize, took);

    let start = cpu_time();
    let reads = 200_000;
    for _ in 0..reads {
        let user = rng.index(active);
        twip.timeline(&names[user], time);
    }
    report("incremental check read", reads, cpu_time() - start);

    // New subscriptions: in each round one for each user.
    let rounds: Vec<Vec<u32>> = (0..5u32)
        .map(|round| {
            let fresh = |user: usize| loop {
                let followee = posters.draw(&mut rng) as u32;
                let follows = &graph.follows[user];
                // Rounds differ, so that none takes up what another has made.
                if followee % 5 == round
                    && followee != user as u32
                    && follows.binary_search(&followee).is_err()
                {
                    return followee;
                }
            };
            (0..active).map(fresh).collect()
        })
        .collect();
    subscribe(&mut twip, &names, &rounds, time);
}

/// Subscribes and reads, unsubscribes and reads, round by round, then reads after all rounds.
fn subscribe(twip: &mut Twip, names: &[String], rounds: &[Vec<u32>], time: u64) {
    let before = twip.engine.stats();
    let count = rounds.iter().map(Vec::len).sum();
    let mut took = [Duration::ZERO; 4];
    for round in rounds {
        let start = cpu_time();
        for (user, &followee) in round.iter().enumerate() {
            twip.set(format_args!("s|{}|{}", names[user], names[followee as usize]), b"1");
        }
        took[0] += cpu_time() - start;
        took[1] += read_all(twip, &names[..round.len()], time);
    }
    for round in rounds {
        let start = cpu_time();
        for (user, &followee) in round.iter().enumerate() {
            twip.remove(format_args!("s|{}|{}", names[user], names[followee as usize]));
        }
        took[2] += cpu_time() - start;
        took[3] += read_all(twip, &names[..round.len()], time);
    }
    report("SET of a subscription", count, took[0]);
    report("read after one new subscription", count, took[1]);
    report("DEL of a subscription", count, took[2]);
    report("read after one ended subscription", count, took[3]);
    let after = twip.engine.stats();
    assert_eq!(after.updater_targets, before.updater_targets, "all was taken back");
    assert_eq!(after.keys, before.keys, "all was taken back");

    let start = cpu_time();
    for round in rounds {
        for (user, &followee) in round.iter().enumerate() {
            twip.set(format_args!("s|{}|{}", names[user], names[followee as usize]), b"1");
        }
    }
    report("SET of one of several subscriptions", count, cpu_time() - start);
    report(
        "  and the read after them, for each",
        count,
        read_all(twip, &names[..rounds[0].len()], time),
    );
}

/// Reads each timeline, and gives how long it took.
fn read_all(twip: &mut Twip, names: &[String], time: u64) -> Duration {
    let start = cpu_time();
    for name in names {
        twip.timeline(name, time);
    }
    cpu_time() - start
}

/// How long this thread has run: what other programs do to a busy machine is left out.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
