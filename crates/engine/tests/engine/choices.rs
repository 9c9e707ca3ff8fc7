//! `auto` joins: what they keep, what they compute, and that this costs about as little as the better of `push` and `pull`.

use headwater_engine::{Engine, Expiry, Follower, RangeOptions, Settings, Value};
use headwater_workload::Rng;
use std::collections::VecDeque;

/// Whom each user follows.
const FOLLOWEES: usize = 20;
const POSTERS: usize = 100;
/// Posts of each poster before anything is measured.
const POSTS: usize = 3;

fn set(engine: &mut Engine, key: &str, value: &str) {
    engine.set(key.as_bytes(), value.as_bytes(), Expiry::Never).expect("a base key");
}

fn counter(engine: &Engine, name: &str) -> u64 {
    let stats = engine.stats();
    stats.counters.iter().find(|(counter, _)| *counter == name).expect("a counter").1
}

fn reported(engine: &Engine, name: &str) -> u64 {
    let report = engine.join_report("timeline").expect("it is installed");
    report.counters.iter().find(|(counter, _)| *counter == name).expect("a counter").1
}

fn prefix(engine: &mut Engine, prefix: &str) -> Vec<String> {
    let last = headwater_base::prefix_end(prefix.as_bytes());
    let mut keys = Vec::new();
    let each = &mut |key: &[u8], _: Value<'_>| {
        keys.push(String::from_utf8(key.to_vec()).expect("text"));
    };
    engine.range(prefix.as_bytes(), &last, RangeOptions::default(), each).expect("all is here");
    keys
}

/// How `range` came about, as far as the choice goes.
fn choice(engine: &Engine, prefix: &str) -> String {
    let range = headwater_base::KeyRange::prefix(prefix.as_bytes());
    let lines = engine.explain(&range);
    lines.iter().find(|line| line.title == "choice").expect("a choice").text.clone()
}

/// Users whose timelines a join of this mode gives.
struct Site {
    engine: Engine,
    rng: Rng,
    time: usize,
    times: Vec<VecDeque<usize>>,
}

impl Site {
    fn new(mode: &str, users: usize) -> Self {
        let mut engine = Engine::new(Settings::default());
        let join = format!(
            "t|<user>|<time>|<poster> = {mode} check s|<user>|<poster> copy p|<poster>|<time>"
        );
        engine.join_add("timeline", &join, false).expect("a join");
        let mut site =
            Self { engine, rng: Rng::new(3), time: 0, times: vec![VecDeque::new(); POSTERS] };
        for user in 0..users {
            for step in 0..FOLLOWEES {
                let poster = (user * 7 + step * 5) % POSTERS;
                set(&mut site.engine, &format!("s|{user:03}|{poster:02}"), "1");
            }
        }
        for poster in 0..POSTERS * POSTS {
            site.post(poster % POSTERS);
        }
        site
    }

    /// A poster's newest posts are kept, so that timelines stay as long as they are.
    fn post(&mut self, poster: usize) {
        self.time += 1;
        set(&mut self.engine, &format!("p|{poster:02}|{:07}", self.time), "Hi");
        let times = &mut self.times[poster];
        times.push_back(self.time);
        if times.len() > POSTS {
            let oldest = times.pop_front().expect("there are some");
            let key = format!("p|{poster:02}|{oldest:07}");
            assert!(self.engine.remove(key.as_bytes()).expect("a base key"));
        }
    }

    /// Whatever a user follows is his, in every mode.
    fn read(&mut self, user: usize) {
        let keys = prefix(&mut self.engine, &format!("t|{user:03}|"));
        assert_eq!(keys.len(), FOLLOWEES * POSTS);
    }

    /// Rows that computations have visited, and changes that were applied to what is kept.
    fn cost(&self) -> u64 {
        counter(&self.engine, "rows_read") + counter(&self.engine, "updates_applied")
    }
}

/// The cost of rounds in which as many posts are written as `posts` says, on average, and users of each kind read as often.
fn cost(mode: &str, kinds: &[(usize, f64)], posts: f64, rounds: usize) -> u64 {
    let users: usize = kinds.iter().map(|(users, _)| users).sum();
    let mut site = Site::new(mode, users);
    for _ in 0..rounds {
        let whole = posts as usize;
        for _ in 0..whole + usize::from(site.rng.unit() < posts - whole as f64) {
            let poster = site.rng.index(POSTERS);
            site.post(poster);
        }
        let mut first = 0;
        for &(users, often) in kinds {
            for user in first..first + users {
                if site.rng.unit() < often {
                    site.read(user);
                }
            }
            first += users;
        }
    }
    site.engine.check_invariants();
    site.cost()
}

#[test]
fn what_is_chosen_costs_about_as_much_as_the_better_of_both() {
    let mut wrong = String::new();
    // A post concerns a fifth of the users.
    for posts in [0.1, 1.0, 10.0, 100.0, 400.0, 1600.0] {
        let kinds = [(10, 0.2)];
        let rounds = if posts > 100.0 { 250 } else { 500 };
        let [push, pull, auto] =
            ["push", "pull", "auto"].map(|mode| cost(mode, &kinds, posts, rounds));
        if auto as f64 > push.min(pull) as f64 * 1.05 {
            wrong += &format!("{posts} posts a round: push {push}, pull {pull}, auto {auto}\n");
        }
    }
    assert!(wrong.is_empty(), "more than 5 % beyond the better of both:\n{wrong}");
}

#[test]
fn among_users_who_come_often_and_seldom_it_is_better_than_both() {
    let kinds = [(10, 1.0), (90, 0.004)];
    let [push, pull, auto] = ["push", "pull", "auto"].map(|mode| cost(mode, &kinds, 8.0, 1500));
    assert!((auto as f64) < push.min(pull) as f64 * 0.8, "push {push}, pull {pull}, auto {auto}");
}

#[test]
fn what_is_read_no_more_is_let_go_and_what_is_read_often_is_kept_again() {
    let mut site = Site::new("auto", 1);
    site.read(0);
    assert!(choice(&site.engine, "t|000|").starts_with("kept: "));
    let whole = counter(&site.engine, "rows_read") as usize;
    for post in 0..50 * whole {
        site.post(post % POSTERS);
    }
    assert_eq!(reported(&site.engine, "ranges_let_go"), 1);
    let updates = counter(&site.engine, "updates_applied") as usize;
    assert!((whole..=4 * whole).contains(&updates), "{updates} changes for {whole} rows");
    assert_eq!(reported(&site.engine, "outputs"), 0, "what is not kept takes no memory");
    assert!(choice(&site.engine, "t|000|").starts_with("computed by each read"));

    site.read(0);
    assert_eq!(reported(&site.engine, "outputs"), 0, "it is stored nowhere");
    assert_eq!(reported(&site.engine, "reads_computed"), 1);
    for _ in 0..4 {
        site.read(0);
    }
    assert_eq!(reported(&site.engine, "ranges_kept_again"), 1);
    assert_eq!(reported(&site.engine, "outputs"), (FOLLOWEES * POSTS) as u64);
    let before = counter(&site.engine, "rows_read");
    site.read(0);
    assert_eq!(counter(&site.engine, "rows_read"), before, "it is read as it is kept");
    site.engine.check_invariants();
}

#[test]
fn what_is_followed_or_read_by_other_joins_stays() {
    for by_join in [false, true] {
        let mut site = Site::new("auto", 1);
        if by_join {
            let count = "n|<user> = count t|<user>|<time>|<poster>";
            site.engine.join_add("count", count, false).expect("it counts as push");
            site.engine.get(b"n|000").expect("all is here");
        } else {
            let range = headwater_base::KeyRange::prefix(b"t|000|");
            site.engine.follow(&range, Follower(1)).expect("it counts as push");
        }
        for post in 0..20_000 {
            site.post(post % POSTERS);
        }
        assert_eq!(reported(&site.engine, "ranges_let_go"), 0);
        assert_eq!(reported(&site.engine, "outputs"), (FOLLOWEES * POSTS) as u64);
        site.engine.check_invariants();
    }
}

#[test]
fn most_who_were_read_once_have_others_computed_from_their_first_read_on() {
    let mut site = Site::new("auto", 200);
    for user in 0..100 {
        site.read(user);
        for post in 0..1000 {
            site.post(post % POSTERS);
        }
    }
    let let_go = reported(&site.engine, "ranges_let_go");
    assert!((4..50).contains(&let_go), "{let_go} of 100 were kept at first");
    assert_eq!(reported(&site.engine, "reads_computed"), 100 - let_go);
    assert!(choice(&site.engine, "t|150|").starts_with("computed by the first reads"));
}

#[test]
fn a_write_lets_go_of_a_part_of_many_ranges() {
    const USERS: usize = 800;
    let mut site = Site::new("auto", USERS);
    for user in 0..USERS {
        site.read(user);
    }
    // All follow the one who posts.
    for user in 0..USERS {
        set(&mut site.engine, &format!("s|{user:03}|99"), "1");
        prefix(&mut site.engine, &format!("t|{user:03}|"));
    }
    let mut most = 0;
    for _ in 0..2_000 {
        let before = reported(&site.engine, "ranges_let_go");
        site.post(99);
        most = most.max(reported(&site.engine, "ranges_let_go") - before);
    }
    // The rest goes by turns, of which nobody need wait for one.
    assert!(!site.engine.goes_on());
    for _ in 0..USERS {
        site.engine.go_on();
    }
    assert_eq!(reported(&site.engine, "ranges_let_go"), USERS as u64);
    assert!(most < 20, "one write let {most} ranges go");
    assert_eq!(reported(&site.engine, "updater_targets"), 0);
}
