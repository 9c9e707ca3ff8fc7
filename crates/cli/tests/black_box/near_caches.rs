//! Near caches: clients that keep what any reading command gave them until they are told that it counts no longer, beside
//! random writes. No copy of which such a client was not told is another one than the server's answer.
//!
//! `HEADWATER_SHARDS_ROUNDS=1000` tries more often; `HEADWATER_SHARDS_SEED=7` begins with another seed.

use crate::shards::{Draws, JOINS, seeds, source_key};
use crate::shards_told::{Line, Pairs, add_joins, bytes, eventually, pairs, write};
use crate::support::Server;
use redis::{PushKind, Value, cmd};
use std::collections::BTreeMap;

/// What clients ask to be told: the words behind `CLIENT TRACKING ON`, and the prefix of the keys of which they keep copies.
const WAYS: &[(&str, Option<&str>)] = &[
    ("", None),
    ("NOLOOP", None),
    ("OPTIN", None),
    ("OPTOUT", None),
    ("BCAST", Some("")),
    ("BCAST PREFIX t|", Some("t|")),
    ("BCAST NOLOOP PREFIX page|", Some("page|")),
    ("BCAST PREFIX t|ann| PREFIX p|", Some("t|ann|")),
    ("BCAST PREFIX karma|", Some("karma|")),
    ("BCAST PREFIX busy|", Some("busy|")),
    ("BCAST PREFIX lately|", Some("lately|")),
];

/// How often a key may expire between what a client is told and what another one reads.
const TRIES: usize = 10;

/// A client that keeps copies of what it reads, until it is told that they count no longer.
struct Cache {
    line: Line,
    words: &'static str,
    /// The prefix of the keys that it is told of; for clients that track by prefixes.
    prefix: Option<&'static str>,
    copies: BTreeMap<String, Option<Vec<u8>>>,
    /// Copies of whole ranges, by their bounds: told of any key in it, it counts no longer.
    ranges: BTreeMap<(String, String), Pairs>,
    /// How many keys it was told of, and how often it was told of all.
    counts: [u64; 2],
}

/// A key that clients read: of the tables that joins read or give.
fn any_key(draws: &mut Draws) -> String {
    let people = ["ann", "bob", "cy", "dee", "eve"];
    let (one, other) = (draws.of(&people), draws.of(&people));
    match draws.below(8) {
        0 => format!("karma|{one}"),
        1..3 => format!("t|{one}|{:02}|{other}", draws.below(20)),
        3 => format!("page|{one}|{other}"),
        4 => format!("busy|{one}"),
        5 => format!("lately|{one}"),
        _ => source_key(draws),
    }
}

fn any_table(draws: &mut Draws) -> &str {
    draws.of(&["t", "t", "karma", "page", "hot", "busy", "lately", "p", "s"])
}

/// A request that reads. All that it gives is pairs, or the values of its keys.
fn read(draws: &mut Draws) -> Vec<String> {
    let person = draws.of(&["ann", "bob", "cy", "dee", "eve"]);
    match draws.below(12) {
        0..3 => vec!["GET".into(), any_key(draws)],
        3..5 => vec!["MGET".into(), any_key(draws), any_key(draws), any_key(draws)],
        5..8 => vec!["PREFIX".into(), format!("{}|{person}", any_table(draws))],
        8 => vec!["PREFIX".into(), format!("{}|", any_table(draws))],
        9 => vec!["RANGE".into(), format!("{}|{person}|", any_table(draws)), "u".into()],
        10 => {
            let words = ["PREFIX", "t|", "REV", "LIMIT", "3"];
            words.iter().map(|&word| word.to_owned()).collect()
        }
        _ => vec!["GETRANGE".into(), any_key(draws), "0".into(), "-1".into()],
    }
}

impl Cache {
    fn new(server: &Server, draws: &mut Draws) -> Self {
        let mut line = Line::new(server);
        let (words, prefix) = WAYS[draws.below(WAYS.len() as u64) as usize];
        let begin = ["CLIENT", "TRACKING", "ON"].into_iter().chain(words.split_whitespace());
        assert_eq!(line.ask(&begin.collect::<Vec<_>>()), Value::Okay);
        let (copies, ranges) = (BTreeMap::new(), BTreeMap::new());
        Self { line, words, prefix, copies, ranges, counts: [0; 2] }
    }

    /// Drops the copies of which it is told.
    fn apply(&mut self) {
        for (kind, data) in core::mem::take(&mut self.line.told) {
            assert_eq!(kind, PushKind::Invalidate, "{data:?}");
            match &data[0] {
                Value::Nil => {
                    self.copies.clear();
                    self.ranges.clear();
                    self.counts[1] += 1;
                }
                Value::Array(keys) => {
                    for key in keys {
                        self.drop_key(&String::from_utf8(bytes(key)).unwrap());
                        self.counts[0] += 1;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn drop_key(&mut self, key: &str) {
        self.copies.remove(key);
        self.ranges.retain(|(first, last), _| {
            key < first.as_str() || (!last.is_empty() && key >= last.as_str())
        });
    }

    /// Keeps what a read gave.
    fn keep(&mut self, words: &[String], answer: Value, wanted: bool) {
        let values = match (words[0].as_str(), answer) {
            ("GET", value) => vec![value],
            // The command gives nothing for a key that is not there.
            ("GETRANGE", value) if !bytes(&value).is_empty() => vec![value],
            ("MGET", Value::Array(values)) => values,
            ("RANGE" | "PREFIX", value) => return self.keep_range(words, pairs(value)),
            _ => return self.forget_own(words),
        };
        for (key, value) in words[1..].iter().zip(values) {
            if self.prefix.map_or(wanted, |prefix| key.starts_with(prefix)) {
                let value = (value != Value::Nil).then(|| bytes(&value));
                self.copies.insert(key.clone(), value);
            }
        }
    }

    fn keep_range(&mut self, words: &[String], all: Pairs) {
        // Who is not told by prefixes is not told of what no command has named.
        let Some(prefix) = self.prefix else { return };
        let mut inside = Pairs::new();
        for (key, value) in all {
            let key = String::from_utf8(key).unwrap();
            if key.starts_with(prefix) {
                inside.insert(key.clone().into_bytes(), value.clone());
                self.copies.insert(key, Some(value));
            }
        }
        if words[0] == "PREFIX" && words.len() == 2 && words[1].starts_with(prefix) {
            let last = String::from_utf8(headwater_base::prefix_end(words[1].as_bytes())).unwrap();
            self.ranges.insert((words[1].clone(), last), inside);
        }
    }

    /// Drops the copies of what this client wrote itself: with NOLOOP it is not told of that.
    fn forget_own(&mut self, words: &[String]) {
        if self.words.contains("NOLOOP") && words[0] != "RANGE.DEL" {
            let step = if words[0] == "MSET" { 2 } else { 1 };
            let keys = words[1..].iter().step_by(step);
            keys.take(if words[0] == "SET" { 1 } else { 9 }).for_each(|key| self.drop_key(key));
        }
    }

    /// Reads and writes at once, some of it in a transaction.
    fn pipeline(&mut self, draws: &mut Draws) {
        let word = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let mut requests: Vec<Vec<String>> = Vec::new();
        for _ in 0..=draws.below(8) {
            if self.words.starts_with("OPT") && draws.below(2) == 0 {
                let yes = if self.words == "OPTIN" { "YES" } else { "NO" };
                requests.push(word(&["CLIENT", "CACHING", yes]));
            }
            let of_groups = |draws: &mut Draws| match draws.below(4) {
                0 => write(draws),
                _ => read(draws),
            };
            requests.push(of_groups(draws));
        }
        let transaction = draws.below(4) == 0 && !self.words.starts_with("OPT");
        if transaction {
            // All of one group: a transaction has one home.
            let person = draws.of(&["ann", "bob"]);
            requests = vec![
                word(&["GET", &format!("t|{person}|05|bob")]),
                word(&["PREFIX", &format!("t|{person}|")]),
                word(&["MGET", &format!("t|{person}|06|cy"), &format!("t|{person}|07|dee")]),
            ];
            requests.insert(0, word(&["MULTI"]));
            requests.push(word(&["EXEC"]));
        }
        self.line.send(&requests);
        let mut wanted = self.words != "OPTIN";
        let mut queued: Vec<Vec<String>> = Vec::new();
        for words in &requests {
            let answer = self.line.answer();
            self.apply();
            if words[0] == "CLIENT" {
                wanted = !wanted;
                continue;
            }
            match (words[0].as_str(), answer) {
                ("MULTI", _) => {}
                ("EXEC", Value::Array(answers)) => {
                    assert_eq!(answers.len(), queued.len());
                    for (words, answer) in core::mem::take(&mut queued).iter().zip(answers) {
                        self.keep(words, answer, wanted);
                    }
                }
                ("EXEC", answer) => assert!(matches!(answer, Value::ServerError(_)), "{answer:?}"),
                (_, Value::SimpleString(_)) if transaction => queued.push(words.clone()),
                (_, Value::ServerError(_)) => self.forget_own(words),
                (_, answer) => self.keep(words, answer, wanted),
            }
            wanted = self.words != "OPTIN";
        }
    }

    /// The copies that are other ones than what the server answers.
    fn stale(&mut self, reader: &mut Line) -> Result<(), String> {
        self.line.ask(&["PING"]);
        self.apply();
        let gets: Vec<_> = self.copies.keys().map(|key| vec!["GET".into(), key.clone()]).collect();
        reader.send(&gets);
        let mut stale = Vec::new();
        for (key, copy) in &self.copies {
            let now = match reader.answer() {
                Value::Nil => None,
                value => Some(bytes(&value)),
            };
            if *copy != now {
                stale.push(format!("{key}: {copy:?}, but {now:?}"));
            }
        }
        for ((first, last), copy) in &self.ranges {
            let now = pairs(reader.ask(&["RANGE", first, last]));
            if *copy != now {
                stale.push(format!("{first}..{last}: {copy:?}, but {now:?}"));
            }
        }
        if stale.is_empty() { Ok(()) } else { Err(format!("({:?}) {stale:?}", self.words)) }
    }
}

/// Runs random reads and writes against a server, with some bytes written between that have others evicted; `at_once`:
/// whether clients have been told of a write when it is answered. How many keys they were told of, and how often of all.
fn no_copy_is_stale(server: &Server, rounds: u64, filler: usize, at_once: bool) -> [u64; 2] {
    add_joins(server);
    let mut reader = Line::new(server);
    for (name, spec) in [
        JOINS[4],
        ("lately", "lately|<author> = snapshot 1000 count vote|<author>|<id>|<voter>"),
        ("best", "karma|<author>|best = max vote|<author>|<id>|<voter>"),
    ] {
        let _spec = reader.ask(&["JOIN.ADD", name, spec]);
    }
    let mut counts = [0; 2];
    for seed in seeds(rounds) {
        let mut draws = Draws(seed);
        reader.ask(&["FLUSHALL"]);
        let mut writers: Vec<_> = (0..2).map(|_| Line::new(server)).collect();
        let mut caches: Vec<_> = (0..5).map(|_| Cache::new(server, &mut draws)).collect();
        for _ in 0..30 {
            let (at, cache) = (draws.below(2) as usize, draws.below(5) as usize);
            let requests: Vec<_> = (0..=draws.below(6)).map(|_| write(&mut draws)).collect();
            writers[at].send(&requests);
            match draws.below(60) {
                0 => _ = reader.ask(&["FLUSHALL"]),
                1 => {
                    let (name, spec) = JOINS[1];
                    reader.ask(&["JOIN.DROP", name]);
                    reader.ask(&["JOIN.ADD", name, spec]);
                }
                2 => caches[cache] = Cache::new(server, &mut draws),
                3 if filler > 0 => {
                    for number in 0..100 {
                        reader.ask(&["SET", &format!("filler:{number}"), &"x".repeat(filler)]);
                    }
                }
                _ => caches[cache].pipeline(&mut draws),
            }
            requests.iter().for_each(|_| _ = writers[at].answer());
            if at_once {
                for cache in &mut caches {
                    // What expires between the two looks is seen by the next ones.
                    let seen = (0..TRIES).map(|_| cache.stale(&mut reader)).find(Result::is_ok);
                    let last = seen.unwrap_or_else(|| cache.stale(&mut reader));
                    last.unwrap_or_else(|stale| panic!("seed {seed}: {stale}"));
                }
            }
        }
        for cache in &mut caches {
            eventually(&format!("seed {seed}"), || cache.stale(&mut reader));
            (0..2).for_each(|at| counts[at] += cache.counts[at]);
        }
    }
    counts
}

#[test]
fn no_copy_of_what_was_read_is_stale() {
    let counts = no_copy_is_stale(&Server::start(&[]), 20, 0, true);
    assert!(counts[0] > 5 * counts[1], "{counts:?}: they are told of keys, not of all");
}

#[test]
fn no_copy_is_stale_where_others_make_room() {
    let server = Server::start(&["--memory", "32mb", "--memory-policy", "allkeys-lru"]);
    let counts = no_copy_is_stale(&server, 10, 400_000, true);
    assert!(counts[0] > 5 * counts[1], "{counts:?}: they are told of keys, not of all");
    let mut client = server.client(2);
    let info: redis::InfoDict = cmd("INFO").arg("stats").query(&mut client).unwrap();
    let evicted = ["evicted_keys", "evicted_ranges"].map(|name| info.get::<u64>(name).unwrap());
    assert!(
        evicted.iter().all(|&evicted| evicted > 0),
        "{evicted:?}: keys and ranges were evicted"
    );
}

#[test]
fn no_copy_of_what_several_shards_gave_stays_stale() {
    let counts = no_copy_is_stale(&Server::start(&["--shards", "3"]), 20, 0, false);
    assert!(counts[0] > 3 * counts[1], "{counts:?}: they are told of keys, not of all");
}
