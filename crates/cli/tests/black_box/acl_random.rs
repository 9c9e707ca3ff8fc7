//! Two users with rights that change, who do what they like: nobody ever sees or changes a byte that it may not.
//!
//! Each value is a word of its own. After each request the words of its answer, and of all that was pushed before it, are compared
//! with what the user may read at that time; and what has changed, with what it may write. They ask over both protocols, and define
//! joins and flows of their own: what these give is nobody's while their owner may not give it.
//!
//! `HEADWATER_ACL_STEPS` says how many requests each of four trials makes.

use crate::acl::ask;
use crate::support::{Server, Socket, number_from, request};
use redis::{Connection, Value, from_redis_value};
use std::collections::{BTreeMap, BTreeSet};

/// A function that replies the value.
const ECHO: &str = r#"(module
    (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
    (memory 1)
    (func (export "call") (result i32)
        (drop (call $reply_value (i32.const 0) (i32.const 1000))) (i32.const 0)))"#;

/// Tables of base keys, and those that joins give: output, source. A flow copies `a` to `w`. The two users have joins give `x` and `y`, and a
/// flow write `z`, for as long as they like.
const BASE: [&str; 3] = ["a", "b", "c"];
const JOINS: [(&str, &str); 3] = [("t", "a"), ("u", "b"), ("v", "t")];
const TABLES: [&str; 10] = ["a", "b", "c", "t", "u", "v", "w", "x", "y", "z"];
/// What the users define: its name and what it writes.
const OWN: [(&str, &str); 3] = [("x", "x"), ("y", "y"), ("g", "z")];
const USERS: [&str; 2] = ["ann", "bob"];

/// A generator that is the same in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }

    fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }

    fn key(&mut self) -> String {
        let (table, owner) = (*self.of(&TABLES), *self.of(&USERS));
        format!("{table}|{owner}|{}", self.below(3))
    }
}

/// What a user may do: tables that it may read and write; of some tables, its own keys alone.
#[derive(Default, Debug)]
struct Rights {
    read: BTreeSet<String>,
    write: BTreeSet<String>,
}

impl Rights {
    fn draw(draws: &mut Draws, user: &str) -> (Self, Vec<String>) {
        let (mut rights, mut rules) = (Self::default(), Vec::new());
        for table in TABLES {
            let own = draws.below(4) == 0;
            let (prefix, pattern) = if own {
                (format!("{table}|{user}|"), format!("{table}|<user>|*"))
            } else {
                (format!("{table}|"), format!("{table}|*"))
            };
            let kind = [0, 1, 2, 3, 3][draws.below(5)];
            if kind == 1 || kind == 3 {
                rights.read.insert(prefix.clone());
            }
            if kind == 2 || kind == 3 {
                rights.write.insert(prefix);
            }
            rules.extend(match kind {
                1 => Some(format!("%R~{pattern}")),
                2 => Some(format!("%W~{pattern}")),
                3 => Some(format!("~{pattern}")),
                _ => None,
            });
        }
        (rights, rules)
    }

    fn has(of: &BTreeSet<String>, key: &str) -> bool {
        of.iter().any(|prefix| key.starts_with(prefix.as_str()))
    }

    /// Whether it may give away what `source` has as `output`.
    fn may_define(&self, source: &str, output: &str) -> bool {
        Self::has(&self.read, &format!("{source}|"))
            && Self::has(&self.write, &format!("{output}|"))
    }
}

/// What a user has defined: its owner, and the table that it reads.
type Owned = BTreeMap<&'static str, (usize, &'static str)>;

type Dump = BTreeMap<String, String>;

fn dump(admin: &mut Connection) -> Dump {
    let mut all = Dump::new();
    for table in TABLES {
        // What is refused to everybody nobody sees.
        let Ok(pairs) = ask(admin, &["PREFIX", &format!("{table}|")]) else { continue };
        let pairs: Vec<String> = from_redis_value(pairs).unwrap();
        all.extend(pairs.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())));
    }
    all
}

/// The values in an answer: each is `w`, a number, and `z`.
fn words_of(bytes: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut words = BTreeSet::new();
    for part in text.split('w').skip(1) {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        if !digits.is_empty() && part[digits.len()..].starts_with('z') {
            words.insert(format!("w{digits}z"));
        }
    }
    words
}

/// Defines joins and a flow, whose owner is `owner`, and the function.
fn define(server: &Server, admin: &mut Connection) {
    let mut owner = crate::acl::client_of(server, "owner");
    for (output, source) in JOINS {
        let spec = format!("{output}|<user>|<n> = copy {source}|<user>|<n>");
        ask(&mut owner, &["JOIN.ADD", output, &spec]).unwrap();
    }
    let flow = ["f", "ON", "a|<user>|<n>", "FANOUT", "w|<user>|<n> = copy a|<user>|<n>"];
    ask(&mut owner, &[&["FLOW.ADD"], &flow[..]].concat()).unwrap();
    let module = wat::parse_str(ECHO).unwrap();
    redis::cmd("FN.LOAD").arg("e").arg(module).exec(admin).unwrap();
}

/// Waits until a flow has nothing to do, unless it is refused.
fn settle(admin: &mut Connection, flow: &str) {
    let begun = std::time::Instant::now();
    loop {
        let facts = ask(admin, &["FLOW.INFO", flow]).unwrap();
        let mut facts: BTreeMap<String, Value> = from_redis_value(facts).unwrap();
        let refused: String = from_redis_value(facts.remove("refused").unwrap()).unwrap();
        if facts["backlog"] == Value::Int(0) || !refused.is_empty() {
            return;
        }
        assert!(begun.elapsed() < crate::support::PATIENCE, "the flow does not end: {facts:?}");
        std::thread::yield_now();
    }
}

struct Client {
    socket: Socket,
    asked: u32,
}

impl Client {
    fn new(server: &Server, user: &str) -> Self {
        let mut client = Self { socket: server.socket(), asked: 0 };
        let told = client.ask(&[vec![
            b"HELLO".to_vec(),
            b"3".to_vec(),
            b"AUTH".to_vec(),
            user.as_bytes().to_vec(),
            b"pw".to_vec(),
        ]]);
        assert!(told.windows(5).any(|it| it == b"proto"), "{}", told.escape_ascii());
        client
    }

    /// The bytes that come until requests are answered, pushes among them; `None`: the connection was ended.
    fn try_ask(&mut self, requests: &[Vec<Vec<u8>>]) -> Option<Vec<u8>> {
        self.asked += 1;
        let mark = format!("end-{}-", self.asked);
        let mut bytes = Vec::new();
        for words in requests {
            bytes.extend(request(&words.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        }
        bytes.extend(request(&[b"ECHO", mark.as_bytes()]));
        self.socket.try_send(&bytes).ok()?;
        let mut got = Vec::new();
        let mark = format!("{mark}\r\n").into_bytes();
        while !got.ends_with(&mark) {
            let mut byte = [0];
            std::io::Read::read_exact(self.socket.stream(), &mut byte).ok()?;
            got.push(byte[0]);
        }
        Some(got)
    }

    fn ask(&mut self, requests: &[Vec<Vec<u8>>]) -> Vec<u8> {
        self.try_ask(requests).expect("the connection goes on")
    }
}

fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// A request, or several of a transaction; values are new words.
fn draw_request(draws: &mut Draws, next: &mut u32) -> Vec<Vec<Vec<u8>>> {
    let (one, two) = (draws.key(), draws.key());
    let (table, owner) = (*draws.of(&TABLES), *draws.of(&USERS));
    *next += 1;
    let value = format!("w{next}z");
    let (prefix, narrow) = (format!("{table}|"), format!("{table}|{owner}|"));
    let text = match draws.below(37) {
        0 | 1 => format!("GET {one}"),
        2 => format!("MGET {one} {two}"),
        3..=5 => format!("SET {one} {value}"),
        6 => format!("SET {one} {value} GET"),
        7 => format!("GETSET {one} {value}"),
        8 => format!("GETDEL {one}"),
        9 => format!("RENAME {one} {two}"),
        10 => format!("COPY {one} {two} REPLACE"),
        11 => format!("DEL {one} {two}"),
        12 => format!("APPEND {one} {value}"),
        13 => format!("PREFIX {prefix}"),
        14 => format!("PREFIX {narrow}"),
        15 => format!("RANGE {one} {two}"),
        16 => format!("RANGE {narrow} {narrow}}} REV VALUES"),
        17 => format!("EXPLAIN {one}"),
        18 => format!("VERIFY {prefix} {prefix}}}"),
        19 => format!("SCAN 0 MATCH {narrow}* COUNT 1000"),
        20 => format!("KEYS {prefix}*"),
        21 => format!("RANGE.WATCH {narrow} {narrow}}}"),
        22 => format!("CLIENT TRACKING ON BCAST PREFIX {prefix}"),
        23 => format!("RANGE.DEL {narrow} {narrow}}}"),
        24 => format!("GETRANGE {one} 0 -1"),
        25 | 26 => format!("FN.CALL e {one} p"),
        27 => format!("FN.CALL e {one} UPDATE p"),
        28 => format!("FN.RANGE e {narrow} {narrow}}} p"),
        29 => format!("MSET {one} {value} {two} {value}"),
        30 => format!("EXPLAIN.RANGE {narrow} {narrow}}}"),
        31 => String::from("CLIENT TRACKING ON"),
        33 => format!("DUMP {one}"),
        34 => format!("BITOP AND {one} {two}"),
        35 => format!("BITFIELD {one} GET u8 0"),
        32 => {
            let (watch, get) = (format!("WATCH {one} {two}"), format!("MGET {one} {two}"));
            let call = format!("FN.CALL e {one} p");
            let all = [&*watch, "MULTI", &get, &call, "EXEC", "UNWATCH"];
            return all.iter().map(|text| words(text)).collect();
        }
        _ => {
            let (first, second) = (format!("GET {one}"), format!("SET {two} {value} GET"));
            return ["MULTI", &first, &second, "EXEC"].iter().map(|text| words(text)).collect();
        }
    };
    vec![words(&text)]
}

/// The same over memcached's protocol: what is sent.
fn draw_items(draws: &mut Draws, next: &mut u32) -> String {
    let (one, two) = (draws.key(), draws.key());
    *next += 1;
    let value = format!("w{next}z");
    match draws.below(6) {
        0 => format!("get {one} {two}\r\n"),
        1 => format!("gat 1000 {one}\r\n"),
        2 => format!("mg {one} v\r\n"),
        3 => format!("set {one} 0 0 {}\r\n{value}\r\n", value.len()),
        4 => format!("append {one} 0 0 {}\r\n{value}\r\n", value.len()),
        _ => format!("delete {one}\r\n"),
    }
}

/// What a connection of its own is answered.
fn over_memcached(server: &Server, user: &str, text: &str) -> Vec<u8> {
    let mut socket = server.memcached();
    socket.send(format!("set x 0 0 {}\r\n{user} pw\r\n", user.len() + 3).as_bytes());
    socket.expect(b"STORED\r\n");
    socket.send(format!("{text}mn\r\n").as_bytes());
    socket.until(b"MN\r\n")
}

/// What a definition of a user's own writes.
fn output_of(name: &str) -> &'static str {
    OWN.iter().find(|it| it.0 == name).unwrap().1
}

/// A definition of a user's own, or its end: its words, and what is known if it is not refused.
fn draw_definition(draws: &mut Draws, owned: &Owned) -> (&'static str, &'static str, Vec<String>) {
    let (name, output) = *draws.of(&OWN);
    let source = owned.get(name).map_or_else(|| *draws.of(&BASE), |(_, source)| source);
    let copy = format!("{output}|<user>|<n> = copy {source}|<user>|<n>");
    let (kind, is_flow) = if name == "g" { ("FLOW", true) } else { ("JOIN", false) };
    let verb = if owned.contains_key(name) { "DROP" } else { "ADD" };
    let mut words = vec![format!("{kind}.{verb}"), name.to_owned()];
    if verb == "ADD" && is_flow {
        words.extend([String::from("ON"), format!("{source}|<user>|<n>"), String::from("FANOUT")]);
    }
    if verb == "ADD" {
        words.push(copy);
    }
    (name, source, words)
}

/// How often something was looked at.
#[derive(Default, Debug)]
struct Counts {
    seen: u32,
    refused: u32,
    changed: u32,
    defined: u32,
    withheld: u32,
}

/// A server with its users, and what is known of them.
struct Trial {
    seed: u64,
    server: Server,
    admin: Connection,
    draws: Draws,
    /// The number of the last word.
    next: u32,
    rights: Vec<Rights>,
    clients: Vec<Client>,
    owned: Owned,
    counts: Counts,
}

/// What one request has done.
struct Step {
    at: usize,
    requests: Vec<Vec<Vec<u8>>>,
    answer: Vec<u8>,
    before: Dump,
    after: Dump,
    /// What was defined before.
    had: Owned,
}

impl Step {
    fn shown(&self, seed: u64) -> String {
        let texts: Vec<_> = self.requests.iter().map(|words| words.join(&b' ')).collect();
        let text = String::from_utf8_lossy(&texts.join(&b';')).into_owned();
        format!("seed {seed}: {} sends {text:?}", USERS[self.at])
    }

    /// Whether a value was, or is, under a key that may be read.
    fn has(&self, word: &str, rights: &Rights) -> bool {
        let mut entries = self.before.iter().chain(&self.after);
        entries.any(|(key, value)| value.contains(word) && Rights::has(&rights.read, key))
    }
}

/// Grants of everything, as the owner of the joins has them.
fn grants() -> Vec<String> {
    TABLES.iter().map(|table| format!("~{table}|*")).collect()
}

impl Trial {
    fn begin(seed: u64, shards: &str) -> Self {
        let server = Server::start(&["--shards", shards, "--memcached-port", "0"]);
        let admin = server.client(2);
        let draws = Draws(0x9e37_79b9_7f4a_7c15 ^ seed);
        let (rights, clients, owned) = (Vec::new(), Vec::new(), Owned::new());
        let counts = Counts::default();
        let mut trial =
            Self { seed, server, admin, draws, next: 0, rights, clients, owned, counts };
        // Who need not log in over memcached's protocol cannot.
        ask(&mut trial.admin, &["ACL", "SETUSER", "default", "off"]).unwrap();
        trial.set("owner", &grants());
        define(&trial.server, &mut trial.admin);
        for table in BASE {
            for user in USERS {
                trial.next += 1;
                let (key, value) = (format!("{table}|{user}|0"), format!("w{}z", trial.next));
                ask(&mut trial.admin, &["SET", &key, &value]).unwrap();
            }
        }
        for user in USERS {
            let (drawn, rules) = Rights::draw(&mut trial.draws, user);
            trial.set(user, &rules);
            trial.rights.push(drawn);
            trial.clients.push(Client::new(&trial.server, user));
        }
        trial
    }

    fn set(&mut self, user: &str, rules: &[String]) {
        let words = ["ACL", "SETUSER", user, "on", ">pw", "+@all", "resetkeys"];
        let words: Vec<&str> = words.into_iter().chain(rules.iter().map(String::as_str)).collect();
        assert_eq!(ask(&mut self.admin, &words).unwrap(), Value::Okay);
    }

    fn change_rights(&mut self) {
        // What was pushed before belongs to the rights before.
        self.clients.iter_mut().for_each(|client| _ = client.try_ask(&[]));
        let at = self.draws.below(2);
        let (drawn, rules) = Rights::draw(&mut self.draws, USERS[at]);
        self.set(USERS[at], &rules);
        self.rights[at] = drawn;
        // Those of whose joins they are change, too.
        let all = grants();
        let from = usize::from(self.draws.below(3) == 0);
        self.set("owner", &all[from..]);
    }

    /// Waits until flows have nothing to do.
    fn settle(&mut self) {
        settle(&mut self.admin, "f");
        if self.owned.contains_key("g") {
            settle(&mut self.admin, "g");
        }
    }

    /// A request of one of them; `None`: it had tracked or heard what it may no longer, and was ended.
    fn step(&mut self) -> Option<Step> {
        let at = self.draws.below(2);
        self.settle();
        let mut before = dump(&mut self.admin);
        let had = self.owned.clone();
        let (requests, answer) = match self.draws.below(10) {
            0 => {
                let text = draw_items(&mut self.draws, &mut self.next);
                let answer = over_memcached(&self.server, USERS[at], &text);
                (vec![vec![text.into_bytes()]], Some(answer))
            }
            1 | 2 => self.change_definition(at, &mut before),
            _ => {
                let requests = draw_request(&mut self.draws, &mut self.next);
                let answer = self.clients[at].try_ask(&requests);
                (requests, answer)
            }
        };
        let Some(answer) = answer else {
            self.clients[at] = Client::new(&self.server, USERS[at]);
            return None;
        };
        self.settle();
        let after = dump(&mut self.admin);
        Some(Step { at, requests, answer, before, after, had })
    }

    /// Has a user define something, or drop it: only whose rights reach as far can.
    fn change_definition(
        &mut self,
        at: usize,
        before: &mut Dump,
    ) -> (Vec<Vec<Vec<u8>>>, Option<Vec<u8>>) {
        let (name, source, words) = draw_definition(&mut self.draws, &self.owned);
        let output = output_of(name);
        // A join's output has no keys of clients.
        if !self.owned.contains_key(name) {
            let (first, last) = (format!("{output}|"), format!("{output}}}"));
            ask(&mut self.admin, &["RANGE.DEL", &first, &last]).unwrap();
            before.retain(|key, _| !key.starts_with(&first));
        }
        let requests = vec![words.into_iter().map(String::into_bytes).collect()];
        let answer = self.clients[at].try_ask(&requests);
        let asked = if name == "g" { "FLOW.INFO" } else { "JOIN.INFO" };
        let is_there = ask(&mut self.admin, &[asked, name]).is_ok();
        if is_there != self.owned.contains_key(name) {
            let own = &self.rights[at];
            assert!(own.may_define(source, output), "{name} by {}: {own:?}", USERS[at]);
            self.counts.defined += 1;
            if self.owned.remove(name).is_none() {
                self.owned.insert(name, (at, source));
            }
        }
        (requests, answer)
    }

    /// What an owner may no longer give is nobody's, not even the administrator's.
    fn check_withheld(&mut self) {
        for (name, (owner, source)) in &self.owned {
            let output = output_of(name);
            if *name != "g" && !self.rights[*owner].may_define(source, output) {
                let told = ask(&mut self.admin, &["PREFIX", &format!("{output}|")]).unwrap_err();
                assert!(told.to_string().contains("is refused"), "{name}: {told}");
                self.counts.withheld += 1;
            }
        }
    }

    fn check_answer(&mut self, step: &Step) {
        let sent = words_of(&step.requests.concat().join(&b' '));
        for word in words_of(&step.answer) {
            let may = sent.iter().any(|sent| sent.contains(&word))
                || step.has(&word, &self.rights[step.at]);
            let shown = step.shown(self.seed);
            assert!(may, "{shown}, and sees {word}: {}", step.answer.escape_ascii());
            self.counts.seen += 1;
        }
        self.counts.refused += u32::from(step.answer.windows(6).any(|it| it == b"NOPERM"));
    }

    fn check_changes(&mut self, step: &Step) {
        let own = &self.rights[step.at];
        // What joins give changes with what they read; what a flow writes, by its owner's right.
        let is_given = |name: &str| step.had.contains_key(name) || self.owned.contains_key(name);
        let flow_may = step.had.get("g").or(self.owned.get("g"));
        let flow_may = flow_may.is_some_and(|(owner, of)| self.rights[*owner].may_define(of, "z"));
        let free = ["x", "y", "z"].into_iter();
        let free = free.filter(|it| if *it == "z" { !flow_may } else { !is_given(it) });
        let tables: Vec<&str> = BASE.into_iter().chain(free).collect();
        for key in step.before.keys().chain(step.after.keys()) {
            let (before, after) = (step.before.get(key), step.after.get(key));
            if before != after && tables.contains(&key.split('|').next().unwrap_or_default()) {
                assert!(
                    Rights::has(&own.write, key),
                    "{}, and changes {key} from {before:?} to {after:?}: {own:?}, {}",
                    step.shown(self.seed),
                    step.answer.escape_ascii()
                );
                self.counts.changed += 1;
            }
        }
    }

    /// The other one is told of what it may read alone.
    fn check_pushed(&mut self, step: &Step) {
        let other = 1 - step.at;
        let Some(pushed) = self.clients[other].try_ask(&[]) else {
            self.clients[other] = Client::new(&self.server, USERS[other]);
            return;
        };
        for word in words_of(&pushed) {
            let may = step.has(&word, &self.rights[other]);
            assert!(may, "{}, and {} hears {word}", step.shown(self.seed), USERS[other]);
            self.counts.seen += 1;
        }
    }
}

#[test]
fn nobody_sees_or_changes_what_it_may_not() {
    let steps = number_from("HEADWATER_ACL_STEPS", 800);
    for (seed, shards) in [(1, "1"), (2, "3"), (3, "1"), (4, "3")] {
        let mut trial = Trial::begin(seed, shards);
        for _ in 0..steps {
            if trial.draws.below(12) == 0 {
                trial.change_rights();
            }
            let Some(step) = trial.step() else { continue };
            trial.check_withheld();
            trial.check_answer(&step);
            trial.check_changes(&step);
            trial.check_pushed(&step);
        }
        let Counts { seen, refused, changed, defined, withheld } = trial.counts;
        let one_in = |many: u64| (steps / many) as u32;
        assert!(seen > one_in(15) && refused > one_in(15), "{seen} {refused}");
        assert!(changed > one_in(30) && withheld > one_in(30), "{changed} {withheld}");
        assert!(defined > one_in(150), "{defined}");
    }
}
