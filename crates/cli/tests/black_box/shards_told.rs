//! What clients that watch ranges of several shards are told: random writes by several clients, and clients that keep
//! copies of ranges as `docs/watch.md` says, which lose their connections and do not keep up.
//!
//! `HEADWATER_SHARDS_ROUNDS=1000` tries more often; `HEADWATER_SHARDS_SEED=7` begins with another seed.

use crate::shards::{Draws, JOINS, seeds, source_key};
use crate::support::{PATIENCE, Server, TempFile, request};
use redis::{Parser, PushKind, Value, cmd};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub(crate) type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

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

/// The bytes of a text.
pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        Value::SimpleString(text) => text.clone().into_bytes(),
        other => panic!("{other:?} is no text"),
    }
}

/// The pairs of a range.
pub(crate) fn pairs(value: Value) -> Pairs {
    let Value::Map(pairs) = value else { panic!("{value:?} is no map") };
    pairs.iter().map(|(key, value)| (bytes(key), bytes(value))).collect()
}

/// A RESP3 connection that tells answers from messages.
pub(crate) struct Line {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    parser: Parser,
    /// What it was told besides answers.
    pub(crate) told: VecDeque<(PushKind, Vec<Value>)>,
}

impl Line {
    pub(crate) fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = Self { stream, reader, parser: Parser::new(), told: VecDeque::new() };
        line.ask(&["HELLO", "3"]);
        line
    }

    pub(crate) fn send(&mut self, requests: &[Vec<String>]) {
        let mut all = Vec::new();
        for words in requests {
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            all.extend(request(&words));
        }
        self.stream.write_all(&all).unwrap();
    }

    /// The next answer. What is told before it is in `told`.
    pub(crate) fn answer(&mut self) -> Value {
        loop {
            match self.parser.parse_value(&mut self.reader).unwrap() {
                Value::Push { kind, data } => self.told.push_back((kind, data)),
                answer => return answer,
            }
        }
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> Value {
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
pub(crate) fn write(draws: &mut Draws) -> Vec<String> {
    match draws.below(40) {
        0..30 => vec!["SET".into(), source_key(draws), draws.below(100).to_string()],
        30..37 => vec!["DEL".into(), source_key(draws), source_key(draws)],
        37 => vec!["SET".into(), source_key(draws), "short".into(), "PX".into(), "5".into()],
        38 => vec!["RANGE.DEL".into(), "p|b".into(), "p|d".into()],
        _ => vec!["MSET".into(), source_key(draws), "1".into(), source_key(draws), "2".into()],
    }
}

/// Installs joins.
pub(crate) fn add_joins(server: &Server) {
    let mut client = server.client(3);
    for (name, spec) in &JOINS[..4] {
        let _: Value = cmd("JOIN.ADD").arg(name).arg(spec).query(&mut client).unwrap();
    }
}

/// Waits until `is_so`, which may fail as long as messages are on their way.
#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> Result<(), String>) {
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
