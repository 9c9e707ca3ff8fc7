//! Servers of one and of three shards over sources that hold the same: what they answer, request for request.

use crate::Server;
use crate::sources::scripted::Handle;
use headwater_base::KeyRange;
use headwater_base::source::Change;
use headwater_config::Config;
use headwater_protocol::resp::ReplyCutter;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

const JOINS: &str = r#"
[[join]]
name = "timeline"
spec = "t|<u>|<c>|<p> = check s|<u>|<p> copy p|<p>|<c>"

[[join]]
name = "posts"
spec = "k|<p> = count p|<p>|<c>"

[[join]]
name = "top"
spec = "top|<u>|<p> = check s|<u>|<p> copy k|<p>"
"#;

struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Client {
    fn of(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, bytes: Vec::new() }
    }

    fn send(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
        self.stream.write_all(request.as_bytes()).unwrap();
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.send(words);
        let mut cutter = ReplyCutter::default();
        loop {
            if let Some(len) = cutter.cut(&self.bytes) {
                let rest = self.bytes.split_off(len);
                let reply = std::mem::replace(&mut self.bytes, rest);
                return String::from_utf8(reply).unwrap().replace("\r\n", " ").trim().to_owned();
            }
            let mut more = [0; 4096];
            let count = self.stream.read(&mut more).unwrap();
            assert!(count > 0, "the server has ended at {words:?}");
            self.bytes.extend_from_slice(&more[..count]);
        }
    }
}

/// A server with its clients, one at each shard.
struct Site {
    clients: Vec<Client>,
    thread: Option<JoinHandle<()>>,
}

impl Site {
    fn new(shards: u16, text: &str) -> Self {
        let text = format!("[listen]\nport = 0\nshards = {shards}\n{text}");
        let (said, hears) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let server = Server::bind(toml::from_str::<Config>(&text).unwrap()).unwrap();
            said.send(server.addresses()[0]).unwrap();
            server.run().unwrap();
        });
        let address = hears.recv().unwrap();
        let clients = (0..shards).map(|_| Client::of(address)).collect();
        Self { clients, thread: Some(thread) }
    }

    fn ask(&mut self, draw: u64, words: &[&str]) -> String {
        let at = draw as usize % self.clients.len();
        self.clients[at].ask(words)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.clients[0].send(&["SHUTDOWN", "NOSAVE"]);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn who(&mut self) -> String {
        format!("u{}", self.below(6))
    }

    fn key(&mut self) -> String {
        match self.below(3) {
            0 => format!("s|{}|{}", self.who(), self.who()),
            _ => format!("p|{}|{}", self.who(), self.below(5)),
        }
    }

    fn range(&mut self) -> String {
        let table = ["t", "p", "s", "k", "top"][self.below(5) as usize];
        match self.below(3) {
            0 => format!("{table}|"),
            1 => format!("{table}|{}", self.who()),
            _ => format!("{table}|{}|", self.who()),
        }
    }
}

/// Both servers, over sources that commit the same.
struct Both {
    one: Site,
    three: Site,
    sources: [Handle; 2],
    random: Random,
    fails: bool,
    values: u64,
}

impl Both {
    fn new(seed: u64) -> Self {
        let url = |shards: u16| format!("scripted://{seed}/{shards}");
        let site = |shards: u16| {
            let url = url(shards);
            let table = |name: &str, more: &str| {
                format!("[[table]]\nname = \"{name}\"\nsource = \"db\"\nkey = [\"x\"]\n{more}\n")
            };
            let (posts, subs) = (table("p", "boundary = 1\nwrite-through = true"), table("s", ""));
            let source =
                format!("[[source]]\nname = \"db\"\nkind = \"scripted\"\nurl = \"{url}\"\n");
            Site::new(shards, &format!("{source}{posts}{subs}{JOINS}"))
        };
        let (one, three) = (site(1), site(3));
        let sources = [1, 3].map(|shards| Handle::of(&url(shards)));
        Self { one, three, sources, random: Random(seed), fails: false, values: 0 }
    }

    /// What both answer.
    fn ask(&mut self, words: &[&str]) -> String {
        self.ask_all(&[words]).pop().unwrap()
    }

    /// What both answer to requests of one client.
    fn ask_all(&mut self, all: &[&[&str]]) -> Vec<String> {
        let draw = self.random.next();
        let is_failure = |reply: &String| {
            reply.starts_with("-SOURCE") && reply.contains("'db'") && reply.contains("broken")
        };
        loop {
            let [one, three] = [&mut self.one, &mut self.three]
                .map(|site| all.iter().map(|words| site.ask(draw, words)).collect::<Vec<_>>());
            if !one.iter().chain(&three).any(is_failure) {
                assert_eq!(one, three, "{all:?}");
                return one;
            }
            if self.fails {
                return one;
            }
            // A load that was asked for while the source failed is answered late.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values)
    }

    fn commit(&mut self) {
        let mut changes = Vec::new();
        for _ in 0..=self.random.below(3) {
            let key = self.random.key().into_bytes();
            let value = (self.random.below(4) > 0).then(|| self.value().into_bytes());
            changes.push(Change { key, value });
        }
        self.sources.iter().for_each(|source| source.commit(changes.clone()));
    }

    fn write(&mut self) {
        let post = |random: &mut Random| format!("p|{}|{}", random.who(), random.below(5));
        let (a, b) = (post(&mut self.random), post(&mut self.random));
        let value = self.value();
        match self.random.below(3) {
            0 => self.ask(&["SET", &a, &value]),
            1 => self.ask(&["MSET", &a, &value, &b, &value]),
            _ => self.ask(&["DEL", &a, &b]),
        };
    }

    /// Reads as of all that was committed.
    fn read(&mut self) {
        let position = self.ask(&["SOURCE.POSITION", "db"]);
        let position = position.split(' ').next_back().unwrap().to_owned();
        let prefix = self.random.range();
        let more: &[&str] = match self.random.below(5) {
            0 => &["REV", "LIMIT", "3"],
            1 => &["COUNT"],
            2 => &["KEYS"],
            _ => &[],
        };
        let words = [&["PREFIX", &prefix, "AT", &position], more].concat();
        // One client goes on: what it reads without AT is no older.
        let key = format!("k|{}", self.random.who());
        let timeline = format!("t|{}|", self.random.who());
        let (keys, range) = (["MGET", &key, "p|u1|1"], ["PREFIX", &timeline]);
        self.ask_all(&[&words, &keys, &range]);
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..14 => self.commit(),
            14..18 if !self.fails => self.write(),
            18 => drop(self.ask(&["FLUSHALL"])),
            19 => {
                let range =
                    KeyRange::prefix(if self.random.below(2) > 0 { b"p|" } else { b"s|u1" });
                self.sources.iter().for_each(|source| source.reset(range.clone()));
            }
            20 => {
                self.fails = !self.fails;
                self.sources.iter().for_each(|source| source.fail(self.fails));
            }
            21..23 => {
                let key = self.random.key();
                let home = self.three.ask(0, &["SHARD.HOME", &key]);
                let partition = home.split(' ').nth(3).unwrap().trim_start_matches(':').to_owned();
                let to = self.random.below(3).to_string();
                let moved = self.three.ask(0, &["SHARD.MOVE", &partition, &to]);
                assert!(moved == "+OK" || moved.ends_with("try again"), "{moved}");
            }
            _ => self.read(),
        }
    }
}

#[test]
fn three_shards_answer_what_one_answers() {
    let rounds = std::env::var("HEADWATER_SOURCES_ROUNDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..rounds.unwrap_or(3) {
        let mut both = Both::new(seed);
        // Nobody has come to a position at which nothing has happened.
        both.commit();
        (0..250).for_each(|_| both.step());
        both.fails = false;
        both.sources.iter().for_each(|source| source.fail(false));
        for _ in 0..20 {
            both.read();
        }
    }
}

#[test]
fn a_source_is_the_same_at_all_shards() {
    let mut site = Site::new(3, "");
    assert_eq!(site.ask(1, &["SOURCE.ADD", "db", "scripted", "scripted://all"]), "+OK");
    let again = site.ask(2, &["SOURCE.ADD", "db", "scripted", "scripted://other"]);
    assert!(again.contains("named 'db' already"), "{again}");
    for at in 0..3 {
        assert!(site.ask(at, &["SOURCE.LIST"]).contains("scripted://all"));
    }
    // Keys of one home: only that shard can know of them.
    assert_eq!(site.ask(0, &["SET", "p|u1|1", "old"]), "+OK");
    let set = ["TABLE.SET", "p", "SOURCE", "db", "KEY", "x", "WRITE", "THROUGH"];
    for at in 0..3 {
        let refused = site.ask(at, &set);
        assert!(refused.contains("holds 1 keys"), "{refused}");
    }
    for who in 0..9 {
        // None has it.
        assert_eq!(site.ask(who, &["SET", &format!("p|u{who}|1"), "mine"]), "+OK");
        assert_eq!(site.ask(who, &["DEL", &format!("p|u{who}|1")]), ":1");
    }
    let refused = site.ask(0, &["TABLE.SET", "p", "SOURCE", "db", "TABLE", "nothing"]);
    assert_eq!(refused, "-ERR source 'db': no such table");
    let joined = site.ask(0, &["JOIN.ADD", "posts", "k|<p> = count p|<p>|<c>"]);
    assert!(joined.starts_with('*'), "{joined}");
    assert_eq!(site.ask(0, &["GET", "k|u3"]), "$-1");
    assert_eq!(site.ask(1, &set), "*2 $8 warnings *0");
    let kept = site.ask(2, &["SOURCE.DROP", "db"]);
    assert_eq!(kept, "-ERR source 'db' keeps tables: p");
    let written =
        site.ask(2, &["MSET", "p|u1|1", "a", "p|u2|1", "b", "p|u3|1", "c", "p|u3|2", "d"]);
    assert_eq!(written, "+OK");
    // Who has written sees it, wherever; what was computed before the table had a source is not believed.
    assert_eq!(site.ask(2, &["GET", "k|u3"]), "$1 2");
    assert_eq!(site.ask(2, &["DEL", "p|u1|1", "p|u3|2"]), ":2");
    assert_eq!(site.ask(2, &["PREFIX", "p|", "KEYS"]), "*2 $6 p|u2|1 $6 p|u3|1");
    let mixed = site.ask(0, &["MSET", "p|u1|1", "a", "q", "b", "r", "c"]);
    assert!(mixed.contains("one of these keys is elsewhere"), "{mixed}");
    let wrong = site.ask(1, &["PREFIX", "p|", "AT", "db:x"]);
    assert_eq!(wrong, "-ERR a position is like #7");
    assert_eq!(site.ask(1, &["PREFIX", "p|", "COUNT", "AT", "#2"]), ":2");
    let info = site.ask(0, &["SOURCE.INFO", "db"]);
    for fact in ["$4 keys $1 2 ", "position $2 #2", "tables $1 p", "mood $4 good"] {
        assert!(info.contains(fact), "{fact}: {info}");
    }
    assert_eq!(info.matches("mood").count(), 1);
    let info = site.ask(1, &["INFO", "sources"]);
    assert!(info.contains("keys=2,") && info.contains("mood=good"), "{info}");
    // A position that nothing reaches is waited for, and refused once.
    assert_eq!(site.ask(0, &["CONFIG", "SET", "source-milliseconds-max", "50"]), "+OK");
    let late = site.ask(0, &["PREFIX", "p|", "AT", "#99"]);
    assert!(late.starts_with("-SOURCE") && late.contains("not reached"), "{late}");
    assert_eq!(site.ask(0, &["PING"]), "+PONG");
    assert_eq!(site.ask(0, &["TABLE.SET", "p", "SOURCE", ""]), "+OK");
    assert_eq!(site.ask(1, &["SET", "p|u2|1", "mine"]), "+OK");
    assert_eq!(site.ask(1, &["PREFIX", "p|"]), "*2 $6 p|u2|1 $4 mine");
    assert_eq!(site.ask(1, &["SOURCE.DROP", "db"]), "+OK");
    assert_eq!(site.ask(2, &["SOURCE.LIST"]), "*0");
    // Another one of that name begins at its own positions.
    assert_eq!(site.ask(1, &["SOURCE.ADD", "db", "scripted", "scripted://new"]), "+OK");
    let late = site.ask(0, &["PREFIX", "p|", "AT", "#2"]);
    assert!(late.contains("not reached"), "{late}");
}
