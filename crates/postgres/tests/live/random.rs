//! Random work on the database beside random loads, while connections are cut and the server ends in all manners: after
//! that, every followed range equals its table, and at no time did a key go back or a transaction show in part.

use crate::model::{Stand, Stops, connect};
use crate::server::Server;
use fastrand::Rng;
use headwater_base::KeyRange;
use headwater_base::source::Portion;
use headwater_postgres::Postgres;
use headwater_postgres::wire::{Connection, Error};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const POSTERS: [&str; 6] = ["ann", "bob", "b|b", "{", "ÿ", "al"];
const GROUPS: u64 = 4;
const MEMBERS: u64 = 8;
/// Loads, and transactions of the database, that a history has at least.
const EVENTS_MIN: usize = 100;

/// How long the workload goes on.
fn length() -> Duration {
    let seconds = std::env::var("HEADWATER_PG_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(8))
}

fn schema(server: &Server) {
    let mut sql = "CREATE TABLE posts (poster text, time int, tweet text, other text, PRIMARY KEY (poster, time)); \
         CREATE TABLE amounts (grp smallint, id smallint, amount bigint, PRIMARY KEY (grp, id)); \
         CREATE TABLE unheard (id int);"
        .to_owned();
    for group in 0..GROUPS {
        for id in 0..MEMBERS {
            sql.push_str(&format!("INSERT INTO amounts VALUES ({group}, {id}, 0);"));
        }
    }
    server.run(&sql);
}

/// One client of the database.
struct Client<'a> {
    server: &'a Server,
    random: Rng,
    versions: &'a AtomicU64,
    number: usize,
    lively: bool,
}

impl Client<'_> {
    fn work(&mut self, done: &AtomicBool) {
        let mut connection: Option<Connection> = None;
        while !done.load(Ordering::Relaxed) {
            let Some(open) = &mut connection else {
                connection = Connection::open(&self.server.target(), false).ok();
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let sql = self.transaction();
            let ended: Result<(), Error> = open.query(&sql, |_, _| {});
            if let Err(error) = ended
                && (error.is_broken() || open.query("ROLLBACK", |_, _| {}).is_err())
            {
                connection = None;
            }
            if !self.lively {
                std::thread::sleep(Duration::from_micros(self.random.u64(0..3000)));
            }
        }
    }

    fn transaction(&mut self) -> String {
        let steps = self.random.usize(1..5);
        let steps: Vec<_> = (0..steps).map(|_| self.step()).collect();
        let end = if self.random.u8(..10) == 0 { "ROLLBACK" } else { "COMMIT" };
        format!("BEGIN; {}; {end}", steps.join("; "))
    }

    fn step(&mut self) -> String {
        let random = &mut self.random;
        // Each client has its own times, so versions of a key grow in the order of its transactions.
        let time = random.i32(-12..12) * 4 + self.number as i32;
        let poster = POSTERS[random.usize(..POSTERS.len())];
        let row = format!("poster = '{poster}' AND time = {time}");
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        match random.u8(..24) {
            0..8 => {
                let pad = if random.u8(..6) == 0 { random.usize(..9000) } else { 3 };
                format!(
                    "INSERT INTO posts VALUES ('{poster}', {time}, 'v{version} ' || \
                     (SELECT string_agg(md5(n::text), '') FROM generate_series(0, {pad}) n), '') \
                     ON CONFLICT (poster, time) DO UPDATE SET tweet = EXCLUDED.tweet"
                )
            }
            8..10 => format!("DELETE FROM posts WHERE {row}"),
            10..12 => format!("UPDATE posts SET other = 'o{version}' WHERE {row}"),
            12..14 => {
                let other = random.i32(-12..12) * 4 + self.number as i32;
                let to = POSTERS[random.usize(..POSTERS.len())];
                format!(
                    "DELETE FROM posts WHERE poster = '{to}' AND time = {other} AND NOT ({row}); \
                     UPDATE posts SET poster = '{to}', time = {other}, tweet = 'v{version} moved' WHERE {row}"
                )
            }
            14 => format!(
                "SAVEPOINT s; UPDATE posts SET tweet = 'v0 undone' WHERE {row}; ROLLBACK TO s; \
                 UPDATE posts SET tweet = 'v{version} kept' WHERE {row}; RELEASE s"
            ),
            15 => format!("INSERT INTO unheard VALUES ({time})"),
            _ => {
                let (group, amount) = (random.u64(..GROUPS), random.i64(1..100));
                let (a, b) = (random.u64(..MEMBERS), random.u64(..MEMBERS));
                format!(
                    "UPDATE amounts SET amount = amount - {amount} WHERE grp = {group} AND id = {a}; \
                     UPDATE amounts SET amount = amount + {amount} WHERE grp = {group} AND id = {b}"
                )
            }
        }
    }
}

/// What is asked for of some range; amounts come to zero where all of a group is there.
fn some_load(random: &mut Rng) -> (KeyRange, Portion) {
    let mut range = some_range(random);
    let mut portion = Portion::default();
    if range.first.starts_with(b"p|") && random.bool() {
        portion.rows = Some(random.u64(1..6));
        portion.reverse = random.bool();
        if random.u8(..4) == 0 {
            range = KeyRange::prefix(b"p|");
        }
    }
    (range, portion)
}

/// Ranges that are asked for: never two over the same keys.
fn some_range(random: &mut Rng) -> KeyRange {
    let escaped = ["ann", "bob", "b{}b", "{{", "ÿ", "al"];
    let poster = escaped[random.usize(..escaped.len())];
    match random.u8(..6) {
        0 | 1 => KeyRange::prefix(format!("a|{:05}|", random.u64(..GROUPS)).as_bytes()),
        2 => KeyRange::prefix(format!("p|{poster}|").as_bytes()),
        3 => KeyRange::prefix(&format!("p|{poster}").as_bytes()[..3]),
        4 => {
            let time = random.i32(0..48);
            KeyRange::new(
                format!("p|{poster}|{time:010}").as_bytes(),
                format!("p|{poster}|{:010}", time + random.i32(1..20)).as_bytes(),
            )
        }
        _ => KeyRange::point(format!("p|{poster}|{:010}", random.i32(0..48)).as_bytes()),
    }
}

/// Everything in the tables, as keys.
fn truth(server: &Server) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut connection = server.connect();
    let mut all = BTreeMap::new();
    let time = |text: &str| {
        let time: i64 = text.parse().unwrap();
        if time < 0 { format!("-{:010}", 9_999_999_999 + time) } else { format!("{time:010}") }
    };
    let posts = connection.query("SELECT poster, time, tweet FROM posts", |_, row| {
        let [poster, at, tweet] = [0, 1, 2].map(|at| row[at].unwrap());
        let poster = poster.replace('{', "{{").replace('|', "{}");
        all.insert(format!("p|{poster}|{}", time(at)).into_bytes(), tweet.as_bytes().to_vec());
    });
    posts.unwrap();
    let amounts = connection.query("SELECT grp, id, amount FROM amounts", |_, row| {
        let [group, id, amount] = [0, 1, 2].map(|at| row[at].unwrap());
        all.insert(format!("a|{group:0>5}|{id:0>5}").into_bytes(), amount.as_bytes().to_vec());
    });
    amounts.unwrap();
    all
}

fn compare(server: &Server, source: &mut Postgres, stand: &Stand) {
    stand.wait_up();
    stand.catch_up(source);
    stand.wait("loads", |model| model.is_idle().then_some(()));
    stand.catch_up(source);
    let truth = truth(server);
    let model = stand.lock();
    assert!(model.wrong.is_none(), "{:?}", model.wrong);
    let expected: BTreeMap<_, _> = truth
        .into_iter()
        .filter(|(key, _)| model.loaded.iter().any(|range| range.contains(key)))
        .collect();
    let show = |key: &Vec<u8>| String::from_utf8_lossy(key).into_owned();
    for (key, value) in &expected {
        let here = model.keys.get(key).map(|value| show(&value[..value.len().min(30)].to_vec()));
        let there = show(&value[..value.len().min(30)].to_vec());
        assert_eq!(model.keys.get(key), Some(value), "{}: {here:?} is not {there}", show(key));
    }
    let more = model.keys.keys().find(|key| !expected.contains_key(*key));
    assert!(more.is_none(), "{} is gone from the database", show(more.unwrap()));
}

/// What happens to the server meanwhile.
fn disturb(server: &Server, random: &mut Rng, restarts: bool) {
    match random.u8(..6) {
        0 if restarts => {
            server.kill();
            server.launch();
        }
        1 if restarts => {
            server.stop();
            server.launch();
        }
        2 | 3 => server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_replication"),
        _ => server.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE application_name = 'headwater' AND pid <> pg_backend_pid() AND random() < 0.5",
        ),
    }
}

fn history(seed: u64, options: &[(&str, &str)], disturbed: bool, lively: bool) {
    let Some(server) = Server::start(&[]) else { return };
    schema(&server);
    let mut random = Rng::with_seed(seed);
    let (mut source, stand) = connect(&server.url(), options);
    let posts = [("table", "posts"), ("key", "poster, time"), ("value", "tweet")];
    let amounts = [("table", "amounts"), ("key", "grp, id"), ("value", "amount")];
    stand.declare(&mut source, b"p|", &posts).unwrap();
    stand.declare(&mut source, b"a|", &amounts).unwrap();
    stand.wait_up();
    let (done, versions) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(1));
    let mut loads = 0_usize;
    std::thread::scope(|scope| {
        for number in 0..3 {
            let random = Rng::with_seed(random.u64(..));
            let (server, versions, done) = (&server, &versions, Arc::clone(&done));
            let mut client = Client { server, random, versions, number, lively };
            scope.spawn(move || client.work(&done));
        }
        let _stops = Stops(&done);
        let begun = Instant::now();
        let mut next = Duration::from_millis(500);
        // On a slow machine it takes longer until there were enough of both.
        let is_enough = |loads: usize| loads > EVENTS_MIN && stand.lock().transactions > EVENTS_MIN;
        while begun.elapsed() < length() || (!is_enough(loads) && begun.elapsed() < 10 * length()) {
            if random.u8(..3) == 0 {
                stand.unfollow(&mut source, random.usize(..1000));
            } else {
                let (range, portion) = some_load(&mut random);
                loads += usize::from(stand.ask_portion(&mut source, &range, portion).is_some());
            }
            if disturbed && begun.elapsed() > next {
                next += Duration::from_millis(random.u64(100..2500));
                disturb(&server, &mut random, true);
            }
            if stand.lock().wrong.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        }
    });
    compare(&server, &mut source, &stand);
    let facts = headwater_base::source::Source::facts(&source);
    let model = stand.lock();
    eprintln!("{loads} loads, {} transactions; {facts:?}", model.transactions);
    assert!(loads > EVENTS_MIN && model.transactions > EVENTS_MIN);
}

#[test]
fn followed_ranges_equal_their_tables() {
    history(1, &[], false, false);
}

#[test]
fn followed_ranges_equal_their_tables_under_load() {
    history(2, &[("slot", "kept")], false, true);
}

#[test]
fn nothing_is_lost_where_the_slot_goes_with_the_connection() {
    history(3, &[("slot", "temporary")], true, false);
}

#[test]
fn nothing_is_lost_where_the_slot_is_kept() {
    history(4, &[("slot", "kept")], true, false);
}

#[test]
fn large_transactions_are_loaded_again() {
    history(5, &[("transaction-bytes-max", "2000")], false, false);
}

#[test]
fn nothing_is_lost_where_triggers_tell_of_changes() {
    history(6, &[("follow", "triggers")], true, false);
}
