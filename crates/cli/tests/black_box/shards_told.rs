//! What clients of several shards are told: random writes by several clients, and clients that keep copies of
//! ranges as `docs/watch.md` says, which lose their connections and do not keep up.
//!
//! `HEADWATER_SHARDS_ROUNDS=1000` tries more often; `HEADWATER_SHARDS_SEED=7` begins with another seed.

use crate::shards::{Draws, JOINS, seeds, source_key};
use crate::support::{PATIENCE, Server, TempFile, request};
use redis::{Parser, PushKind, Value, cmd};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Ranges within a group, and over several.
const RANGES: &[(&str, &str)] = &[
    ("t|ann|", "t|ann}"),
    ("t|bob|", "t|bob}"),
    ("p|cy|", "p|cy}"),
    ("p|dee|05", "p|dee|12"),
    ("t|", "t}"),
    ("p|", "t}"),
    ("karma|", "karma}"),
    ("page|", "page}"),
    ("a", "z"),
];

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        Value::SimpleString(text) => text.clone().into_bytes(),
        other => panic!("{other:?} is no text"),
    }
}

fn pairs(value: Value) -> Pairs {
    let Value::Map(pairs) = value else { panic!("{value:?} is no map") };
    pairs.iter().map(|(key, value)| (bytes(key), bytes(value))).collect()
}

/// A RESP3 connection that tells answers from messages.
struct Line {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    parser: Parser,
    told: VecDeque<(PushKind, Vec<Value>)>,
}

impl Line {
    fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = Self { stream, reader, parser: Parser::new(), told: VecDeque::new() };
        line.ask(&["HELLO", "3"]);
        line
    }

    fn send(&mut self, requests: &[Vec<String>]) {
        let mut all = Vec::new();
        for words in requests {
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            all.extend(request(&words));
        }
        self.stream.write_all(&all).unwrap();
    }

    /// The next answer. What is told before it is in `told`.
    fn answer(&mut self) -> Value {
        loop {
            match self.parser.parse_value(&mut self.reader).unwrap() {
                Value::Push { kind, data } => self.told.push_back((kind, data)),
                answer => return answer,
            }
        }
    }

    fn ask(&mut self, words: &[&str]) -> Value {
        self.send(&[words.iter().map(|&word| word.to_owned()).collect()]);
        self.answer()
    }
}

/// A client that keeps a copy of a range.
struct Watcher {
    line: Line,
    range: (&'static str, &'static str),
    id: i64,
    position: String,
    copy: Pairs,
    /// It has to read the range again.
    lost: bool,
    /// How many changes it was told of, and how often it had to read again.
    counts: [u64; 2],
}

impl Watcher {
    fn new(server: &Server, range: (&'static str, &'static str)) -> Self {
        let (line, copy) = (Line::new(server), Pairs::new());
        let (position, counts) = (String::new(), [0; 2]);
        let mut watcher = Self { line, range, id: 0, position, copy, lost: true, counts };
        watcher.begin(&[]);
        watcher
    }

    fn begin(&mut self, from: &[&str]) {
        let (first, last) = self.range;
        let answer = self.line.ask(&[&["RANGE.WATCH", first, last], from].concat());
        let Value::Array(parts) = &answer else { panic!("{answer:?}") };
        let [Value::Int(id), position] = &parts[..] else { panic!("{answer:?}") };
        self.id = *id;
        self.position = String::from_utf8(bytes(position)).unwrap();
        self.settle();
    }

    /// Loses its connection, and comes back.
    fn come_back(&mut self, server: &Server) {
        self.line = Line::new(server);
        let position = self.position.clone();
        self.begin(&["FROM", &position]);
    }

    /// Applies what it was told.
    fn apply(&mut self) {
        for (kind, data) in core::mem::take(&mut self.line.told) {
            assert_eq!(data[0], Value::Int(self.id), "{kind:?} {data:?}");
            if kind == PushKind::Other("range-resync".to_owned()) {
                self.lost = true;
                self.counts[1] += 1;
                continue;
            }
            assert_eq!(kind, PushKind::Other("range-change".to_owned()));
            self.position = String::from_utf8(bytes(&data[1])).unwrap();
            self.counts[0] += 1;
            match &bytes(&data[2])[..] {
                b"set" => _ = self.copy.insert(bytes(&data[3]), bytes(&data[4])),
                _ => _ = self.copy.remove(&bytes(&data[3])),
            }
        }
    }

    fn read(&self) -> Vec<String> {
        ["RANGE", self.range.0, self.range.1].map(str::to_owned).to_vec()
    }

    /// Takes all that has come, and reads the range again if that is asked of it.
    fn settle(&mut self) {
        self.line.ask(&["PING"]);
        self.apply();
        while core::mem::take(&mut self.lost) {
            self.line.send(&[self.read()]);
            let answer = self.line.answer();
            self.apply();
            self.copy = pairs(answer);
        }
    }

    /// Writes and reads at once, and takes each read as its copy.
    fn pipeline(&mut self, draws: &mut Draws) {
        let requests: Vec<_> = (0..=draws.below(8))
            .map(|_| if draws.below(3) == 0 { self.read() } else { write(draws) })
            .collect();
        self.line.send(&requests);
        for words in requests {
            let answer = self.line.answer();
            self.apply();
            if words[0] == "RANGE" {
                self.copy = pairs(answer);
            }
        }
    }
}

/// A write.
fn write(draws: &mut Draws) -> Vec<String> {
    match draws.below(40) {
        0..30 => vec!["SET".into(), source_key(draws), draws.below(100).to_string()],
        30..37 => vec!["DEL".into(), source_key(draws), source_key(draws)],
        37 => vec!["SET".into(), source_key(draws), "short".into(), "PX".into(), "5".into()],
        38 => vec!["RANGE.DEL".into(), "p|b".into(), "p|d".into()],
        _ => vec!["MSET".into(), source_key(draws), "1".into(), source_key(draws), "2".into()],
    }
}

fn add_joins(server: &Server) {
    let mut client = server.client(3);
    for (name, spec) in &JOINS[..4] {
        let _: Value = cmd("JOIN.ADD").arg(name).arg(spec).query(&mut client).unwrap();
    }
}

/// Waits until `is_so`, which may fail as long as messages are on their way.
#[track_caller]
fn eventually(what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(why) = is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: {why}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn copies_of_ranges_become_what_the_ranges_are() {
    let config = TempFile::new("[clients]\nwatch-output-bytes-max = 100000\n");
    let path = config.path.to_str().unwrap();
    let server = Server::start(&["--config", path, "--shards", "3"]);
    add_joins(&server);
    let mut reader = Line::new(&server);
    let mut counts = [0; 2];
    for seed in seeds(25) {
        let mut draws = Draws(seed);
        reader.ask(&["FLUSHALL"]);
        let mut writers: Vec<_> = (0..3).map(|_| Line::new(&server)).collect();
        let mut watchers: Vec<_> = (0..5)
            .map(|_| Watcher::new(&server, RANGES[draws.below(RANGES.len() as u64) as usize]))
            .collect();
        // Two that share a range, and one that does not keep up.
        watchers.push(Watcher::new(&server, watchers[0].range));
        let floods = draws.below(12) == 0;
        if floods {
            watchers[0] = Watcher::new(&server, ("p|", "t}"));
        }
        for _ in 0..12 {
            let at = draws.below(3) as usize;
            let requests: Vec<_> = (0..=draws.below(10)).map(|_| write(&mut draws)).collect();
            writers[at].send(&requests);
            match draws.below(30) {
                0..6 => watchers[1].pipeline(&mut draws),
                6..12 => watchers[2].pipeline(&mut draws),
                12..17 => watchers[3].come_back(&server),
                17..20 => watchers[4].come_back(&server),
                20 => _ = reader.ask(&["FLUSHALL"]),
                21 => {
                    let (name, spec) = JOINS[0];
                    reader.ask(&["JOIN.DROP", name]);
                    reader.ask(&["JOIN.ADD", name, spec]);
                }
                _ => watchers[draws.below(6) as usize].settle(),
            }
            requests.iter().for_each(|_| _ = writers[at].answer());
        }
        if floods {
            let value = "x".repeat(60_000);
            for number in 0..300 {
                let key = format!("p|{}|{number:03}", ["ann", "bob", "cy"][number % 3]);
                writers[number % 3].ask(&["SET", &key, &value]);
            }
        }
        for watcher in &mut watchers {
            (0..2).for_each(|at| counts[at] += watcher.counts[at]);
            eventually(&format!("seed {seed}, {:?}", watcher.range), || {
                watcher.settle();
                let now = reader.ask(&["RANGE", watcher.range.0, watcher.range.1]);
                let now = pairs(now);
                let differ = |one: &Pairs, other: &Pairs| -> Vec<String> {
                    let is_other =
                        |(key, value): &(&Vec<u8>, &Vec<u8>)| other.get(*key) != Some(value);
                    let keys = one.iter().filter(is_other).map(|(key, _)| key);
                    keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
                };
                let copy = &watcher.copy;
                if *copy == now {
                    return Ok(());
                }
                Err(format!("copy: {:?}, now: {:?}", differ(copy, &now), differ(&now, copy)))
            });
        }
    }
    assert!(counts[0] > 5 * counts[1], "{counts:?}: they are told of changes, not to read again");
    // Nothing is left of those who are gone.
    let mut client = server.client(2);
    eventually("watches", || {
        let info: redis::InfoDict = cmd("INFO").arg("stats").query(&mut client).unwrap();
        match info.get::<u64>("range_watches") {
            Some(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// A client that keeps copies of what it reads, until it is told that they count no longer.
struct Cache {
    line: Line,
    copies: BTreeMap<String, Option<Vec<u8>>>,
    /// What it is told of besides what it reads: all keys with this prefix.
    prefix: Option<&'static str>,
    counts: [u64; 2],
}

/// A key that clients read: of the tables that joins read or give.
fn any_key(draws: &mut Draws) -> String {
    let people = ["ann", "bob", "cy", "dee", "eve"];
    let (one, other) = (draws.of(&people), draws.of(&people));
    match draws.below(5) {
        0 => format!("karma|{one}"),
        1 => format!("t|{one}|{:02}|{other}", draws.below(20)),
        2 => format!("page|{one}|{other}"),
        _ => source_key(draws),
    }
}

impl Cache {
    fn new(server: &Server, draws: &mut Draws) -> Self {
        let mut line = Line::new(server);
        let prefix = match draws.below(3) {
            0 => Some(["p|", "karma|", ""][draws.below(3) as usize]),
            _ => None,
        };
        let ok = match prefix {
            Some(prefix) => line.ask(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", prefix]),
            None => line.ask(&["CLIENT", "TRACKING", "ON"]),
        };
        assert_eq!(ok, Value::Okay);
        Self { line, copies: BTreeMap::new(), prefix, counts: [0; 2] }
    }

    /// Drops the copies of which it is told.
    fn apply(&mut self) {
        for (kind, data) in core::mem::take(&mut self.line.told) {
            assert_eq!(kind, PushKind::Invalidate, "{data:?}");
            match &data[0] {
                Value::Nil => {
                    self.copies.clear();
                    self.counts[1] += 1;
                }
                Value::Array(keys) => {
                    for key in keys {
                        self.copies.remove(&String::from_utf8(bytes(key)).unwrap());
                        self.counts[0] += 1;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Keeps what a read gave.
    fn keep(&mut self, words: &[String], answer: Value) {
        let values = match (words[0].as_str(), answer) {
            ("GET", value) => vec![value],
            ("MGET", Value::Array(values)) => values,
            _ => return,
        };
        for (key, value) in words[1..].iter().zip(values) {
            if self.prefix.is_none_or(|prefix| key.starts_with(prefix)) {
                let value = (value != Value::Nil).then(|| bytes(&value));
                self.copies.insert(key.clone(), value);
            }
        }
    }

    /// Reads and writes at once.
    fn pipeline(&mut self, draws: &mut Draws) {
        let request = |draws: &mut Draws| -> Vec<String> {
            match draws.below(8) {
                0..4 => vec!["GET".into(), any_key(draws)],
                4..6 => vec!["MGET".into(), any_key(draws), any_key(draws), any_key(draws)],
                _ => write(draws),
            }
        };
        let requests: Vec<_> = (0..=draws.below(10)).map(|_| request(draws)).collect();
        self.line.send(&requests);
        for words in &requests {
            let answer = self.line.answer();
            self.apply();
            self.keep(words, answer);
        }
    }
}

#[test]
fn copies_of_keys_are_what_the_keys_are_or_are_told_of() {
    let server = Server::start(&["--shards", "3"]);
    add_joins(&server);
    let mut reader = Line::new(&server);
    let mut counts = [0; 2];
    for seed in seeds(25) {
        let mut draws = Draws(seed);
        reader.ask(&["FLUSHALL"]);
        let mut writers: Vec<_> = (0..3).map(|_| Line::new(&server)).collect();
        let mut caches: Vec<_> = (0..4).map(|_| Cache::new(&server, &mut draws)).collect();
        for _ in 0..20 {
            let (at, cache) = (draws.below(3) as usize, draws.below(4) as usize);
            let requests: Vec<_> = (0..=draws.below(8)).map(|_| write(&mut draws)).collect();
            writers[at].send(&requests);
            match draws.below(40) {
                0 => _ = reader.ask(&["FLUSHALL"]),
                1 => {
                    let (name, spec) = JOINS[1];
                    reader.ask(&["JOIN.DROP", name]);
                    reader.ask(&["JOIN.ADD", name, spec]);
                }
                _ => caches[cache].pipeline(&mut draws),
            }
            requests.iter().for_each(|_| _ = writers[at].answer());
        }
        for cache in &mut caches {
            eventually(&format!("seed {seed}"), || {
                cache.line.ask(&["PING"]);
                cache.apply();
                for (key, copy) in &cache.copies {
                    let now = match reader.ask(&["GET", key]) {
                        Value::Nil => None,
                        value => Some(bytes(&value)),
                    };
                    if *copy != now {
                        return Err(format!("{key} ({:?}): {copy:?}, but {now:?}", cache.prefix));
                    }
                }
                Ok(())
            });
            (0..2).for_each(|at| counts[at] += cache.counts[at]);
        }
    }
    assert!(counts[0] > 5 * counts[1], "{counts:?}: they are told of keys, not of all");
}
