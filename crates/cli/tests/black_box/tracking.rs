//! CLIENT TRACKING through bare sockets, in both versions of the protocol, step by step beside a real `redis-server` where
//! one is installed, and by itself where Redis has nothing alike.

use crate::support::{PATIENCE, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A client that tells what it is answered and what it is told besides.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    id: String,
    marks: u64,
    /// Between MULTI and EXEC, where whatever it sends is queued.
    queues: bool,
}

impl Client {
    pub(crate) fn connect(port: u16, version: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client =
            Self { stream: BufReader::new(stream), id: String::new(), marks: 0, queues: false };
        client.send(&["HELLO", version]);
        client.read();
        client.send(&["CLIENT", "ID"]);
        client.id = client.read()[1..].trim_end().to_owned();
        client
    }

    fn send(&mut self, words: &[&str]) {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.stream.get_mut().write_all(&crate::support::request(&words)).unwrap();
    }

    /// One answer or message, with everything nested in it.
    fn read(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        let number: i64 = line[1..].trim_end().parse().unwrap_or(-1);
        let nested = match line.as_bytes()[0] {
            b'$' | b'=' if number >= 0 => {
                let mut body = vec![0; number as usize + 2];
                self.stream.read_exact(&mut body).unwrap();
                line += &String::from_utf8_lossy(&body);
                0
            }
            b'*' | b'~' | b'>' => number,
            b'%' => 2 * number,
            _ => 0,
        };
        (0..nested).for_each(|_| line += &self.read());
        line
    }

    /// All that has come until now.
    pub(crate) fn come(&mut self) -> Vec<String> {
        if self.queues {
            return Vec::new();
        }
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        self.send(&["PING", &mark]);
        let mut all = Vec::new();
        loop {
            let one = self.read();
            if one.contains(&mark) {
                return all;
            }
            all.push(one);
        }
    }

    pub(crate) fn ask(&mut self, words: &str) -> Vec<String> {
        self.send(&words.split(' ').collect::<Vec<_>>());
        self.queues = words == "MULTI" || (self.queues && words != "EXEC");
        if self.queues { vec![self.read()] } else { self.come() }
    }

    /// What it is told of these keys.
    fn told(keys: &[&str]) -> String {
        let keys: String = keys.iter().map(|key| format!("${}\r\n{key}\r\n", key.len())).collect();
        let count = keys.matches('$').count();
        format!(">2\r\n$10\r\ninvalidate\r\n*{count}\r\n{keys}")
    }
}

/// A `redis-server` of our own that ends with the test.
struct Redis(Child, u16);

impl Redis {
    fn start() -> Option<Self> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
        let child = command.stdout(Stdio::null()).spawn().ok()?;
        let redis = Self(child, port);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < PATIENCE, "redis-server does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Some(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Who says what: `3` and `w` speak RESP3, `2` and `s` RESP2. `{s}` is the number of client `s`.
const STEPS: &[&str] = &[
    // What may be asked for, and what not.
    "3 CLIENT TRACKINGINFO",
    "3 CLIENT GETREDIR",
    "2 CLIENT TRACKINGINFO",
    "3 CLIENT CACHING YES",
    "3 CLIENT TRACKING maybe",
    "3 CLIENT TRACKING ON foo",
    "3 CLIENT TRACKING ON REDIRECT x",
    "3 CLIENT TRACKING ON REDIRECT 999999",
    "3 CLIENT TRACKING ON REDIRECT {s} REDIRECT {s}",
    "3 CLIENT TRACKING ON PREFIX a",
    "3 CLIENT TRACKING ON BCAST PREFIX a PREFIX ab",
    "3 CLIENT TRACKING ON BCAST OPTIN",
    "3 CLIENT TRACKING ON OPTIN OPTOUT",
    "3 CLIENT TRACKING",
    "3 CLIENT GETREDIR x",
    // Each write of what was read, once.
    "3 CLIENT TRACKING ON",
    "3 CLIENT TRACKINGINFO",
    "3 CLIENT GETREDIR",
    "w MSET a 1 b 2 c 3",
    "3 MGET a b missing",
    "w SET a 2",
    "w SET a 3",
    "w DEL b c",
    "w SET missing 1",
    "3 GET a",
    "w APPEND a x",
    "3 EXISTS a",
    "w EXPIRE a 100",
    "3 STRLEN a",
    "w PERSIST a",
    "3 TTL a",
    "w RENAME a {a}d",
    "3 GET {a}d",
    "w GETDEL {a}d",
    // Its own writes, behind their answers; in a transaction behind all of them.
    "3 GET own",
    "3 SET own 1",
    "3 GET own",
    "3 SET own 2",
    "3 MULTI",
    "3 GET own",
    "3 SET own 3",
    "3 GET own",
    "3 EXEC",
    "w SET own 4",
    "3 GET own",
    "3 FLUSHALL",
    "3 GET own",
    "w FLUSHALL",
    "w SET own 5",
    // Not its own writes.
    "3 CLIENT TRACKING ON NOLOOP",
    "3 CLIENT TRACKINGINFO",
    "3 GET own",
    "3 SET own 6",
    "w SET own 7",
    "3 GET own",
    "w SET own 8",
    "3 CLIENT TRACKING OFF",
    "3 GET own",
    "w SET own 9",
    // By choice.
    "3 CLIENT TRACKING ON OPTIN",
    "3 CLIENT TRACKING ON OPTOUT",
    "3 CLIENT CACHING maybe",
    "3 CLIENT CACHING NO",
    "3 GET own",
    "w SET own 1",
    "3 CLIENT CACHING YES",
    "3 CLIENT TRACKINGINFO",
    "3 GET own",
    "3 CLIENT TRACKINGINFO",
    "w SET own 2",
    "3 CLIENT CACHING YES",
    "3 PING",
    "3 GET own",
    "w SET own 3",
    "3 CLIENT CACHING YES",
    "3 MULTI",
    "3 GET own",
    "3 GET {own}other",
    "3 EXEC",
    "w MSET own 4 {own}other 4",
    "3 GET own",
    "w SET own 5",
    "3 CLIENT TRACKING OFF",
    "3 CLIENT TRACKING ON OPTOUT",
    "3 CLIENT CACHING YES",
    "3 CLIENT CACHING NO",
    "3 CLIENT TRACKINGINFO",
    "3 GET own",
    "3 GET {own}other",
    "w MSET own 6 {own}other 6",
    "3 CLIENT TRACKING OFF",
    // All keys of some prefixes.
    "3 CLIENT TRACKING ON BCAST PREFIX p PREFIX q",
    "3 CLIENT TRACKING ON BCAST PREFIX pq",
    "3 CLIENT TRACKING ON",
    "3 CLIENT TRACKING ON BCAST PREFIX r",
    "3 CLIENT TRACKINGINFO",
    "w SET p1 x",
    "w MSET p2 x {own}other x q1 x p1 x",
    "w DEL p1 p2 nothing",
    "3 SET p3 x",
    "w FLUSHALL",
    "3 CLIENT TRACKING OFF",
    "3 CLIENT TRACKING ON BCAST NOLOOP",
    "3 CLIENT TRACKINGINFO",
    "3 SET p4 x",
    "w SET p5 x",
    "3 RESET",
    "3 CLIENT TRACKINGINFO",
    "w SET p5 y",
    "3 HELLO 3",
    // To another client.
    "2 CLIENT TRACKING ON REDIRECT {s}",
    "2 CLIENT GETREDIR",
    "2 CLIENT TRACKINGINFO",
    "2 MGET a b",
    "w SET a 1",
    "s SUBSCRIBE __redis__:invalidate",
    "w SET b 1",
    "2 GET a",
    "w SET a 2",
    "2 GET a",
    "w FLUSHALL",
    "3 CLIENT TRACKING ON REDIRECT {s}",
    "3 GET a",
    "w SET a 3",
    "2 CLIENT TRACKING OFF",
    "2 CLIENT TRACKING ON",
    "2 GET a",
    "w SET a 4",
    "2 CLIENT TRACKING OFF",
    "3 GET a",
    "w CLIENT KILL ID {s}",
    "w SET a 5",
    "3 CLIENT TRACKINGINFO",
    "3 GET a",
    "w SET a 6",
];

/// What clients are told, without what several shards may do in another way: the order and the sizes of messages about keys.
#[derive(PartialEq, Debug, Default)]
struct Seen {
    /// Answers, and other messages.
    rest: Vec<String>,
    /// Keys that count no longer, as often as they were told.
    keys: Vec<String>,
    /// None does.
    all: bool,
}

impl Seen {
    fn add(&mut self, text: String) {
        let Some((head, keys)) = text.split_once("invalidate\r\n") else {
            self.rest.push(text);
            return;
        };
        let keys: Vec<&str> = keys.split("\r\n").skip(1).collect();
        self.all |= keys.len() <= 1;
        let keys = keys.chunks_exact(2).map(|key| format!("{} {}", &head[..1], key[1]));
        self.keys.extend(keys);
        self.keys.sort();
    }

    /// Whether it is what is wanted, or more: each shard says by itself that nothing counts, and somebody who listens only
    /// when a write was answered may still be told of it.
    fn is(&self, wanted: &Self) -> bool {
        let count = |keys: &[String], key| keys.iter().filter(|other| *other == key).count();
        self.rest == wanted.rest
            && wanted.keys.iter().all(|key| count(&self.keys, key) >= count(&wanted.keys, key))
            && (self.all || !wanted.all)
    }
}

/// The clients that have a part in the steps, and the number of the one that others are redirected to.
struct Side {
    clients: [Option<Client>; 4],
    listener: String,
}

const NAMES: [&str; 4] = ["3", "w", "2", "s"];

impl Side {
    fn new(port: u16) -> Self {
        let clients = ["3", "3", "2", "2"].map(|version| Some(Client::connect(port, version)));
        let listener = clients[3].as_ref().map(|client| client.id.clone()).unwrap_or_default();
        Self { clients, listener }
    }

    /// Takes a step: what each client is answered and told.
    fn take(&mut self, step: &str) -> Vec<(&'static str, Vec<String>)> {
        let (who, words) = step.split_once(' ').unwrap();
        let who = NAMES.iter().position(|name| *name == who).unwrap();
        let text = words.replace("{s}", &self.listener);
        let one = self.clients[who].as_mut().unwrap();
        let mut answer = one.ask(&text);
        let is_named = |text: &&mut String| text.contains("redir");
        answer.iter_mut().filter(is_named).for_each(|text| self.name(text));
        let mut come = vec![(NAMES[who], answer)];
        if words.starts_with("CLIENT KILL") {
            self.clients[3] = None;
        }
        come.extend(self.come());
        come.retain(|_| !words.starts_with("HELLO"));
        if words.contains("GETREDIR") {
            come.iter_mut().flat_map(|(_, all)| all).for_each(|text| self.name(text));
        }
        come
    }

    /// The number of the one that others are redirected to is another one on each side.
    fn name(&self, text: &mut String) {
        *text = text.replace(&format!(":{}\r\n", self.listener), ":{s}\r\n");
    }

    /// What each client is told meanwhile.
    fn come(&mut self) -> Vec<(&'static str, Vec<String>)> {
        let each = self.clients.iter_mut().zip(NAMES);
        let come = each.filter_map(|(client, name)| Some((name, client.as_mut()?.come())));
        let mut come: Vec<_> = come.collect();
        let about = come.iter_mut().flat_map(|(_, all)| all);
        about.filter(|text| text.contains("redir")).for_each(|text| self.name(text));
        come
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped comparison must be seen")]
fn clients_are_told_as_by_redis() {
    let Some(redis) = Redis::start() else {
        eprintln!("SKIPPED: redis-server is not installed; tracking was not compared with it");
        return;
    };
    let server = Server::start(&[]);
    let (mut one, mut other) = (Side::new(redis.1), Side::new(server.port));
    let mut wrong = Vec::new();
    for step in STEPS {
        let (wanted, found) = (one.take(step), other.take(step));
        if found != wanted {
            wrong.push(format!("{step}\n  {found:?}\n  {wanted:?}"));
        }
    }
    assert!(wrong.is_empty(), "the server and redis-server differ:\n{}", wrong.join("\n"));
}

#[test]
fn clients_of_several_shards_are_told_as_by_one() {
    let (server, shards) = (Server::start(&["--shards", "1"]), Server::start(&["--shards", "3"]));
    // Each time the clients are at other shards.
    for _ in 0..3 {
        let (mut one, mut other) = (Side::new(server.port), Side::new(shards.port));
        let _moves_the_next_ones_on = Client::connect(shards.port, "3");
        one.take("w FLUSHALL");
        other.take("w FLUSHALL");
        for step in STEPS {
            let mut seen = [(); 4].map(|()| Seen::default());
            let mut wanted = [(); 4].map(|()| Seen::default());
            let add = |all: &mut [Seen; 4], come: Vec<(&'static str, Vec<String>)>| {
                for (name, texts) in come {
                    let at = NAMES.iter().position(|other| *other == name).unwrap();
                    texts.into_iter().for_each(|text| all[at].add(text));
                }
            };
            add(&mut wanted, one.take(step));
            add(&mut seen, other.take(step));
            let began = Instant::now();
            while !seen.iter().zip(&wanted).all(|(seen, wanted)| seen.is(wanted)) {
                assert!(began.elapsed() < PATIENCE, "{step}\n  {seen:?}\n  {wanted:?}");
                std::thread::sleep(std::time::Duration::from_millis(2));
                add(&mut seen, other.come());
            }
        }
    }
}

#[test]
fn keys_that_expire_or_make_room_are_told() {
    let config = "[clients]\ntracking-table-keys-max = 100\n";
    let server = Server::with_config(config);
    let [mut client, mut writer] = [3, 3].map(|_| Client::connect(server.port, "3"));
    client.ask("CLIENT TRACKING ON");
    writer.ask("SET short x PX 30");
    client.send(&["GET", "short"]);
    client.read();
    // Nobody asks for it any more.
    assert_eq!(client.read(), Client::told(&["short"]));
    for number in 0..150 {
        client.send(&["GET", &format!("key-{number}")]);
    }
    let told = client.come().iter().filter(|it| it.contains("invalidate")).count();
    assert_eq!(told, 50);
    let info = client.ask("INFO").join("");
    for line in
        ["tracking_clients:1\r\n", "tracking_total_keys:100\r\n", "tracking_total_prefixes:0\r\n"]
    {
        assert!(info.contains(line), "{line} is not in {info}");
    }
    client.ask("CLIENT TRACKING OFF");
    assert!(client.ask("INFO").join("").contains("tracking_total_keys:0\r\n"));
}

#[test]
fn writes_by_other_ways_are_told() {
    let server = Server::start(&["--memcached-port", "0"]);
    let mut client = Client::connect(server.port, "3");
    client.ask("CLIENT TRACKING ON");
    client.ask("GET k");
    let mut memcached = server.memcached();
    memcached.send(b"set k 0 0 1\r\nx\r\n");
    memcached.expect(b"STORED\r\n");
    assert_eq!(client.read(), Client::told(&["k"]));
    client.send(&["FLOW.ADD", "f", "ON", "a|<x>", "COPY", "b|<x> = copy a|<x>"]);
    client.come();
    client.ask("GET b|1");
    Client::connect(server.port, "3").ask("SET a|1 x");
    assert_eq!(client.read(), Client::told(&["b|1"]));
    // What keys are is another thing now.
    client.send(&["JOIN.ADD", "n", "n|<x> = count c|<x>|<y>"]);
    let come = client.come();
    assert_eq!(come.last().unwrap(), ">2\r\n$10\r\ninvalidate\r\n_\r\n");
}

#[test]
fn derived_keys_are_told_when_what_they_come_from_changes() {
    let server = Server::start(&[]);
    let [mut client, mut broad, mut writer] = [3, 3, 3].map(|_| Client::connect(server.port, "3"));
    for (name, spec) in [
        ("karma", "karma|<a> = count vote|<a>|<id>"),
        ("best", "best|<a> = copy karma|<a>"),
        ("t", "t|<u>|<time>|<p> = check s|<u>|<p> copy p|<p>|<time>"),
        ("now", "now|<a> = pull count vote|<a>|<id>"),
    ] {
        writer.send(&["JOIN.ADD", name, spec]);
        writer.come();
    }
    for key in ["vote|ann|1", "s|ann|bob", "p|bob|100", "p|liz|200"] {
        writer.ask(&format!("SET {key} x"));
    }
    client.ask("CLIENT TRACKING ON NOLOOP");
    broad.ask("CLIENT TRACKING ON BCAST PREFIX t|");
    let read = ["karma|ann", "best|ann", "t|ann|100|bob", "t|ann|200|liz", "t|eve|100|bob"];
    let both = |client: &mut Client, broad: &mut Client| {
        let words = format!("MGET {}", read.join(" "));
        assert_eq!((client.ask(&words).len(), broad.ask(&words).len()), (1, 1));
    };
    // What is told of a write: each key once, and nothing to those who have not read it since.
    for (write, told) in [
        ("SET vote|ann|2 x", &["best|ann", "karma|ann"][..]),
        ("SET vote|bob|1 x", &[]),
        ("SET p|bob|100 other", &["t|ann|100|bob"]),
        ("APPEND p|bob|100 more", &["t|ann|100|bob"]),
        // Nobody reads the timeline, and yet.
        ("SET s|ann|liz x", &["t|ann|200|liz"]),
        ("DEL s|ann|bob", &["t|ann|100|bob"]),
        ("SET s|eve|bob x", &["t|eve|100|bob"]),
        ("DEL p|bob|100", &["t|eve|100|bob"]),
        ("DEL vote|ann|1 vote|ann|2", &["best|ann", "karma|ann"]),
    ] {
        both(&mut client, &mut broad);
        writer.ask(write);
        let mut come = client.come();
        come.sort();
        let wanted: Vec<String> = told.iter().map(|key| Client::told(&[key])).collect();
        assert_eq!(come, wanted, "{write}");
        let under: Vec<&str> = told.iter().copied().filter(|key| key.starts_with("t|")).collect();
        let wanted = if under.is_empty() { vec![] } else { vec![Client::told(&under)] };
        assert_eq!(broad.come(), wanted, "{write}");
        writer.ask("SET p|nobody|1 x");
        assert_eq!((client.come(), broad.come()), (vec![], vec![]));
    }
    // What follows from a client's own write is not its own.
    both(&mut client, &mut broad);
    let come = client.ask("SET vote|ann|3 x");
    assert_eq!(come.len(), 3, "{come:?}");
    // Nobody maintains what a pull join gives.
    assert_eq!(client.ask("GET now|ann"), ["$1\r\n1\r\n".to_owned(), Client::told(&["now|ann"])]);
    both(&mut client, &mut broad);
    writer.ask("FLUSHALL");
    let all = [">2\r\n$10\r\ninvalidate\r\n_\r\n"];
    assert_eq!((client.come(), broad.come()), (vec![all[0].to_owned()], vec![all[0].to_owned()]));
    assert_eq!(writer.ask("VERIFY a z"), ["*0\r\n"]);
}
