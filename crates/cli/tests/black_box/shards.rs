//! Several shards answer as one: the same random requests, pipelined, to a server of one shard and to one of
//! several.
//!
//! `HEADWATER_SHARDS_ROUNDS=1000` compares more often; `HEADWATER_SHARDS_SEED=7` begins with another seed.

use crate::support::{PATIENCE, Server, number_from, request};
use redis::{Connection, Parser, Value, cmd};
use std::io::{BufReader, Write};
use std::net::TcpStream;

/// Random numbers from a seed (SplitMix64).
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }

    fn key(&mut self) -> String {
        let number = self.below(6);
        match self.below(4) {
            0 => format!("k{number}"),
            1 => format!("{{tag{}}}{number}", number % 2),
            2 => format!("u|{}|{number}", self.of(&["ann", "bob", "cy", "dee"])),
            _ => format!("v|{}|{}|{number}", self.of(&["ann", "bob", "cy"]), self.below(3)),
        }
    }

    fn bound(&mut self) -> String {
        match self.below(5) {
            0 => String::new(),
            1 => self.of(&["u|", "v|", "k", "u|ann|", "u|bob|", "v|ann|1|", "v}"]).to_owned(),
            _ => self.key(),
        }
    }

    /// A request, and whether the order of its answer's elements is open.
    fn request(&mut self) -> (Vec<String>, bool) {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mut list: Vec<String> = match self.below(24) {
            0..4 => return (vec!["GET".to_owned(), self.key()], false),
            4..8 => vec!["SET".to_owned(), self.key(), self.below(100).to_string()],
            8 => vec!["INCR".to_owned(), self.key()],
            9 => vec!["APPEND".to_owned(), self.key(), "7".to_owned()],
            10..12 => {
                let name = self.of(&["MGET", "DEL", "EXISTS", "UNLINK", "TOUCH"]).to_owned();
                let keys = (0..=self.below(4)).map(|_| self.key());
                [name].into_iter().chain(keys.collect::<Vec<_>>()).collect()
            }
            12 => {
                let pairs: Vec<_> =
                    (0..=self.below(3)).flat_map(|at| [self.key(), at.to_string()]).collect();
                [String::from("MSET")].into_iter().chain(pairs).collect()
            }
            13..17 => {
                let mut list = match self.below(2) {
                    0 => vec!["RANGE".to_owned(), self.bound(), self.bound()],
                    _ => vec!["PREFIX".to_owned(), self.bound()],
                };
                if self.below(2) == 0 {
                    list.push("REV".to_owned());
                }
                if self.below(2) == 0 {
                    list.extend(["LIMIT".to_owned(), self.below(8).to_string()]);
                }
                let answer = self.of(&["", "KEYS", "VALUES", "COUNT"]);
                if !answer.is_empty() {
                    list.push(answer.to_owned());
                }
                list
            }
            17 => vec!["RANGE.DEL".to_owned(), self.bound(), self.bound()],
            18 => words(&["DBSIZE"]),
            19 => return (words(&["KEYS", self.of(&["*", "u|*", "k?"])]), true),
            20 => words(&[self.of(&["PING", "TIME x", "NOSUCH", "CLIENT GETNAME"])]),
            21 => vec!["VERIFY".to_owned(), self.bound(), self.bound()],
            22 => vec!["TYPE".to_owned(), self.key()],
            _ => vec!["STRLEN".to_owned(), self.key()],
        };
        if list.len() == 1 {
            list = list[0].split(' ').map(str::to_owned).collect();
        }
        (list, false)
    }

    /// A request that one shard of those of its keys could not answer alone.
    fn request_over_shards(&mut self) -> Vec<String> {
        let name = self.of(&["RENAME", "RENAMENX", "COPY", "COPY", "MSETNX", "LCS", "PEXPIREAT"]);
        let mut words = vec![name.to_owned(), self.key()];
        match name {
            "COPY" if self.below(2) == 0 => words.extend([self.key(), "REPLACE".to_owned()]),
            "MSETNX" => {
                words.push(self.below(100).to_string());
                for _ in 0..self.below(3) {
                    words.extend([self.key(), self.below(100).to_string()]);
                }
            }
            "LCS" => words.extend([self.key(), self.of(&["LEN", "IDX"]).to_owned()]),
            // Far away, so that what has an expiry keeps it.
            "PEXPIREAT" => words.push("4102444800000".to_owned()),
            _ => words.push(self.key()),
        }
        words
    }

    /// A request, or some in a transaction.
    fn requests(&mut self) -> Vec<(Vec<String>, bool)> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let alone = |words: Vec<String>| vec![(words, false)];
        match self.below(16) {
            0..9 => vec![self.request()],
            9..11 => alone(self.request_over_shards()),
            11 => alone(vec!["PEXPIRETIME".to_owned(), self.key()]),
            12 => alone(["WATCH".to_owned(), self.key(), self.key()].to_vec()),
            13 => alone(words(&[self.of(&["UNWATCH", "EXEC", "DISCARD"])])),
            _ => {
                let mut all = alone(words(&["MULTI"]));
                for _ in 0..self.below(6) {
                    all.push(match self.below(4) {
                        0 => (self.request_over_shards(), false),
                        _ => self.request(),
                    });
                }
                // The order within the answer is not compared where it is open.
                all.retain(|(_, any_order)| !any_order);
                let end = if self.below(8) == 0 { "DISCARD" } else { "EXEC" };
                all.push((words(&[end]), false));
                all
            }
        }
    }
}

/// A connection that sends requests at once and reads the answers to all of them.
pub(crate) struct Pipe {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    parser: Parser,
}

impl Pipe {
    pub(crate) fn new(server: &Server, protocol: u8) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        let mut pipe = Self { stream, reader, parser: Parser::new() };
        pipe.run(&[vec!["HELLO".to_owned(), protocol.to_string()]]);
        pipe
    }

    pub(crate) fn run(&mut self, requests: &[Vec<String>]) -> Vec<Value> {
        let mut bytes = Vec::new();
        for words in requests {
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            bytes.extend(request(&words));
        }
        self.stream.write_all(&bytes).unwrap();
        let mut answer = |_| self.parser.parse_value(&mut self.reader).unwrap();
        requests.iter().map(&mut answer).collect()
    }
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Array(mut elements) => {
            elements.sort_by_key(|element| format!("{element:?}"));
            Value::Array(elements)
        }
        other => other,
    }
}

/// Asks two servers the same, and compares the answers.
pub(crate) fn answer_alike(one: &Server, three: &Server, seeds: std::ops::Range<u64>) {
    compare(one, three, seeds, true);
}

/// The same without watched keys, which count as changed where their partition moves.
pub(crate) fn answer_alike_unwatched(one: &Server, three: &Server, seeds: std::ops::Range<u64>) {
    compare(one, three, seeds, false);
}

fn compare(one: &Server, three: &Server, seeds: std::ops::Range<u64>, watches: bool) {
    for seed in seeds {
        let mut draws = Draws(seed);
        let protocol = 2 + (seed % 2) as u8;
        // Several connections, so that clients of all shards ask.
        let mut pipes: Vec<_> =
            (0..3).map(|_| (Pipe::new(one, protocol), Pipe::new(three, protocol))).collect();
        pipes[0].0.run(&[vec!["FLUSHALL".to_owned()]]);
        pipes[0].1.run(&[vec!["FLUSHALL".to_owned()]]);
        for _ in 0..12 {
            let batch = (0..=draws.below(12)).flat_map(|_| draws.requests());
            let batch: Vec<_> = batch.filter(|(words, _)| watches || words[0] != "WATCH").collect();
            let requests: Vec<_> = batch.iter().map(|(words, _)| words.clone()).collect();
            let at = draws.below(3) as usize;
            let (expected, answers) = (pipes[at].0.run(&requests), pipes[at].1.run(&requests));
            for (((words, any_order), expected), answer) in batch.iter().zip(expected).zip(answers)
            {
                let order = |value| if *any_order { sorted(value) } else { value };
                assert_eq!(order(answer), order(expected), "seed {seed}: {words:?}");
            }
        }
    }
}

/// A server of one shard and one of three, both with the joins.
pub(crate) fn joined_servers() -> (Server, Server) {
    joined(Server::start(&["--shards", "1"]), Server::start(&["--shards", "3"]))
}

fn joined(one: Server, three: Server) -> (Server, Server) {
    for server in [&one, &three] {
        let mut client = server.client(3);
        for (name, spec) in JOINS {
            let _: Value = cmd("JOIN.ADD").arg(name).arg(spec).query(&mut client).unwrap();
        }
    }
    (one, three)
}

/// Asks two servers with the joins the same, and compares the answers.
pub(crate) fn joined_alike(one: &Server, three: &Server, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut draws = Draws(seed);
        let mut pipes = (Pipe::new(one, 3), Pipe::new(three, 3));
        let flush = [vec!["FLUSHALL".to_owned()]];
        pipes.0.run(&flush);
        pipes.1.run(&flush);
        for _ in 0..15 {
            let requests: Vec<_> =
                (0..=draws.below(10)).flat_map(|_| joined_requests(&mut draws)).collect();
            let (expected, answers) = (pipes.0.run(&requests), pipes.1.run(&requests));
            for ((words, expected), answer) in requests.iter().zip(expected).zip(answers) {
                assert_eq!(answer, expected, "seed {seed}: {words:?} of {requests:?}");
            }
        }
    }
}

#[test]
fn several_shards_answer_as_one() {
    answer_alike(&Server::start(&[]), &Server::start(&["--shards", "3"]), seeds(60));
}

/// A key of the tables that the joins read.
pub(crate) fn source_key(draws: &mut Draws) -> String {
    let people = ["ann", "bob", "cy", "dee", "eve"];
    let (one, other) = (draws.of(&people), draws.of(&people));
    match draws.below(3) {
        0 => format!("s|{one}|{other}"),
        1 => format!("p|{one}|{:02}", draws.below(20)),
        _ => format!("vote|{one}|{}|{other}", draws.below(3)),
    }
}

/// A request to what the joins read or give.
fn joined_request(draws: &mut Draws) -> Vec<String> {
    let person = draws.of(&["ann", "bob", "cy", "dee", "eve"]);
    let table = draws.of(&["t", "karma", "page", "hot", "busy", "s", "p", "vote"]);
    let words: Vec<String> = match draws.below(16) {
        0..7 => vec!["SET".into(), source_key(draws), draws.below(50).to_string()],
        7 => vec!["DEL".into(), source_key(draws), source_key(draws)],
        8..11 => vec!["PREFIX".into(), format!("{table}|{person}|")],
        11 => vec!["PREFIX".into(), format!("{table}|"), "REV".into(), "LIMIT".into(), "5".into()],
        12 => vec!["GET".into(), format!("karma|{person}")],
        13 => vec!["RANGE".into(), format!("{table}|b"), String::new(), "LIMIT".into(), "9".into()],
        14 => vec!["VERIFY".into(), format!("{table}|"), format!("{table}}}")],
        _ => vec!["RANGE.DEL".into(), format!("p|{person}|05"), format!("p|{person}|12")],
    };
    words
}

/// A request to that, or some in a transaction, or one over keys that may live on several shards.
fn joined_requests(draws: &mut Draws) -> Vec<Vec<String>> {
    let person = draws.of(&["ann", "bob", "cy", "dee", "eve"]);
    match draws.below(8) {
        0 => {
            let requests: Vec<_> = (0..draws.below(7)).map(|_| joined_request(draws)).collect();
            let ends = |word: &str| [vec![word.to_owned()]].into_iter();
            ends("MULTI").chain(requests).chain(ends("EXEC")).collect()
        }
        1 => {
            let name = draws.of(&["RENAME", "RENAMENX", "COPY", "LCS", "MSETNX"]);
            // What joins give can be read, and is refused where it would be written.
            let mut key = || match draws.below(4) {
                0 => format!("karma|{person}"),
                _ => source_key(draws),
            };
            let (one, other) = (key(), key());
            vec![match name {
                "MSETNX" => vec![name.to_owned(), one, "1".into(), other, "2".into()],
                _ => vec![name.to_owned(), one, other],
            }]
        }
        _ => vec![joined_request(draws)],
    }
}

/// What begins each replayable test: `HEADWATER_SHARDS_ROUNDS` and `HEADWATER_SHARDS_SEED`, or these.
pub(crate) fn seeds(rounds: u64) -> core::ops::Range<u64> {
    let first = number_from("HEADWATER_SHARDS_SEED", 1);
    first..first + number_from("HEADWATER_SHARDS_ROUNDS", rounds)
}

/// Joins whose sources live elsewhere than their outputs; joins over joins; aggregates.
pub(crate) const JOINS: [(&str, &str); 5] = [
    ("timeline", "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"),
    ("karma", "karma|<author> = count vote|<author>|<id>|<voter>"),
    ("page", "page|<voter>|<author> = check vote|<author>|<id>|<voter> copy karma|<author>"),
    ("hot", "hot|<id>|<author> = count vote|<author>|<id>|<voter>"),
    ("busy", "busy|<user> = pull count t|<user>|<time>|<poster>"),
];

#[test]
fn joins_over_several_shards_show_what_a_client_wrote() {
    let (one, three) = joined_servers();
    joined_alike(&one, &three, seeds(60));
    // What one shard refuses no shard has.
    let mut client = three.client(3);
    let () = cmd("SET").arg("odd|x").arg(1).query(&mut client).unwrap();
    let mut odd = cmd("JOIN.ADD");
    odd.arg("odd").arg("odd|<a> = count p|<a>|<b>");
    let refused = odd.query::<Value>(&mut client).unwrap_err().to_string();
    assert!(refused.contains("1 key") || refused.contains("existing"), "{refused}");
    let _: i64 = cmd("DEL").arg("odd|x").query(&mut client).unwrap();
    let _: Value = odd.query(&mut client).unwrap();
    // Nor does a join go that some shard would not have replaced.
    let () = cmd("SET").arg("even|x").arg(1).query(&mut client).unwrap();
    let mut even = cmd("JOIN.ADD");
    even.arg("odd").arg("even|<a> = count p|<a>|<b>").arg("REPLACE");
    even.query::<Value>(&mut client).unwrap_err();
    let () = cmd("SET").arg("p|zoe|1").arg(1).query(&mut client).unwrap();
    let count: Option<i64> = cmd("GET").arg("odd|zoe").query(&mut client).unwrap();
    assert_eq!(count, Some(1));
    let _: i64 = cmd("DEL").arg("even|x").query(&mut client).unwrap();
    let _: Value = even.query(&mut client).unwrap();
    let count: Option<i64> = cmd("GET").arg("even|zoe").query(&mut client).unwrap();
    assert_eq!(count, Some(1));
}

/// In slices, executions end where rows give nothing but outputs of other homes, among other places.
#[test]
fn joins_over_several_shards_are_computed_in_slices_as_well() {
    let sliced = |shards| {
        Server::with_config(&format!("[listen]\nshards = {shards}\n[clients]\nslice-rows = 2\n"))
    };
    let (one, three) = joined(sliced(1), sliced(3));
    joined_alike(&one, &three, seeds(60));
}

#[test]
fn what_places_keys_is_declared_by_all_shards_or_by_none() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(3);
    let () = cmd("SET").arg("g|a|x").arg(1).query(&mut client).unwrap();
    let mut set = cmd("TABLE.SET");
    set.arg("g").arg("BOUNDARY").arg(2);
    let refused = set.query::<Value>(&mut client).unwrap_err().to_string();
    assert!(refused.contains("the boundary of table 'g' says where its keys live"), "{refused}");
    // Every shard still looks for them where they are.
    let names: Vec<String> = (0..30).map(|name| format!("g|a|{name}")).collect();
    for mut client in clients(&server) {
        for name in &names {
            let () = cmd("SET").arg(name).arg(1).query(&mut client).unwrap();
        }
        let count: i64 = cmd("EXISTS").arg(&names).query(&mut client).unwrap();
        assert_eq!(count, 30);
    }
    let size: i64 = cmd("DBSIZE").query(&mut client).unwrap();
    assert_eq!(size, 31);
    let () = cmd("FLUSHALL").query(&mut client).unwrap();
    let () = set.query(&mut client).unwrap();
    for mut client in clients(&server) {
        for name in &names {
            let () = cmd("SET").arg(name).arg(1).query(&mut client).unwrap();
        }
    }
    let size: i64 = cmd("DBSIZE").query(&mut client).unwrap();
    assert_eq!(size, 30);
}

/// Connections to a server of three shards; between them, each shard has one.
fn clients(server: &Server) -> Vec<Connection> {
    (0..6).map(|_| server.client(3)).collect()
}

#[test]
fn a_scan_meets_every_key_once() {
    let server = Server::start(&["--shards", "3"]);
    let mut client = server.client(2);
    for number in 0..300 {
        let () = cmd("SET").arg(format!("key:{number}")).arg(number).query(&mut client).unwrap();
    }
    let (mut cursor, mut seen) = (0u64, Vec::<String>::new());
    loop {
        let (next, keys): (u64, Vec<String>) =
            cmd("SCAN").arg(cursor).arg("COUNT").arg(7).query(&mut client).unwrap();
        seen.extend(keys);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    seen.sort();
    let mut expected: Vec<String> = (0..300).map(|number| format!("key:{number}")).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn transactions_run_where_their_keys_live() {
    let server = Server::start(&["--shards", "3"]);
    for (at, client) in clients(&server).iter_mut().enumerate() {
        let key = format!("{{t{at}}}a");
        let other = format!("{{t{at}}}b");
        let done: (String, i64, String) = redis::pipe()
            .atomic()
            .cmd("SET")
            .arg(&key)
            .arg(1)
            .cmd("INCRBY")
            .arg(&key)
            .arg(4)
            .cmd("GET")
            .arg(&key)
            .query(client)
            .unwrap();
        assert_eq!(done, ("OK".to_owned(), 5, "5".to_owned()));
        // A watched key that another client changes.
        let () = cmd("WATCH").arg(&key).query(client).unwrap();
        let () = cmd("SET").arg(&key).arg("changed").query(&mut server.client(2)).unwrap();
        let none: Value =
            redis::pipe().atomic().cmd("SET").arg(&other).arg(1).query(client).unwrap();
        assert_eq!(none, Value::Nil);
        let gone: Option<String> = cmd("GET").arg(&other).query(client).unwrap();
        assert_eq!(gone, None);
    }
    let mut client = server.client(3);
    let () = cmd("MULTI").query(&mut client).unwrap();
    for at in 0..6 {
        let queued: String =
            cmd("SET").arg(format!("{{t{at}}}a")).arg(0).query(&mut client).unwrap();
        assert_eq!(queued, "QUEUED");
    }
    let done: Vec<String> = cmd("EXEC").query(&mut client).unwrap();
    assert_eq!(done, ["OK"; 6]);
    let set: String = cmd("GET").arg("{t0}a").query(&mut client).unwrap();
    assert_eq!(set, "0");
}

#[test]
fn messages_reach_the_clients_of_all_shards() {
    let server = Server::start(&["--shards", "3"]);
    let mut listeners = clients(&server);
    let mut hearing: Vec<_> = listeners
        .iter_mut()
        .map(|client| {
            let mut hearing = client.as_pubsub();
            hearing.subscribe("news").unwrap();
            hearing
        })
        .collect();
    let mut speaker = server.client(2);
    let heard: i64 = cmd("PUBLISH").arg("news").arg("one").query(&mut speaker).unwrap();
    assert_eq!(heard, 6);
    // From within a transaction, at whichever shard it runs.
    for at in 0..3 {
        let key = format!("{{p{at}}}");
        let mut both = redis::pipe();
        both.atomic().cmd("SET").arg(key).arg(1).cmd("PUBLISH").arg("news").arg(at);
        let _: Value = both.query(&mut speaker).unwrap();
    }
    for hearing in &mut hearing {
        let mut texts: Vec<String> =
            (0..4).map(|_| hearing.get_message().unwrap().get_payload().unwrap()).collect();
        // Those of transactions come from the shards that ran them.
        texts[1..].sort();
        assert_eq!(texts, ["one", "0", "1", "2"]);
    }
    let counts: (String, i64) =
        cmd("PUBSUB").arg("NUMSUB").arg("news").query(&mut speaker).unwrap();
    assert_eq!(counts, ("news".to_owned(), 6));
}

#[test]
fn all_clients_are_seen_from_each_shard_and_numbered_once() {
    let server = Server::start(&["--shards", "3"]);
    let mut all = clients(&server);
    let mut numbers: Vec<u64> =
        all.iter_mut().map(|client| cmd("CLIENT").arg("ID").query(client).unwrap()).collect();
    let shards: std::collections::BTreeSet<u64> = numbers.iter().map(|number| number % 3).collect();
    assert_eq!(shards.len(), 3, "each shard has some of them: {numbers:?}");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 6);
    for client in &mut all {
        // A request to each shard, so that there are connections that stand for this client.
        for at in 0..20 {
            let () = cmd("SET").arg(at).arg(at).query(client).unwrap();
        }
        let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
        assert_eq!(list.lines().count(), 6, "{list}");
    }
    let info: String = cmd("INFO").query(&mut all[0]).unwrap();
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    assert_eq!(
        (field("connected_clients:"), field("db0:")),
        ("6".into(), "keys=20,expires=0,avg_ttl=0".into())
    );
    let victim: u64 = cmd("CLIENT").arg("ID").query(&mut all[1]).unwrap();
    let killed: i64 = cmd("CLIENT").arg("KILL").arg("ID").arg(victim).query(&mut all[0]).unwrap();
    assert_eq!(killed, 1);
    assert!(cmd("PING").query::<Value>(&mut all[1]).is_err());
}

#[test]
fn a_command_counts_once_however_many_shards_have_a_part_in_it() {
    let count = |shards: &str| {
        let server = Server::start(&["--shards", shards]);
        let client = &mut server.client(2);
        for number in 0..20 {
            let _: () = cmd("SET").arg(format!("k{number}")).arg(number).query(client).unwrap();
        }
        let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
        let _: Value = cmd("MGET").arg(&keys).query(client).unwrap();
        let _: Value = cmd("RANGE").arg("").arg("").query(client).unwrap();
        let _: Value = cmd("DBSIZE").query(client).unwrap();
        for keys in [["{a}1", "{a}2"], ["k1", "k2"], ["k3", "k4"]] {
            let pipe = redis::pipe().atomic().incr(keys[0], 1).incr(keys[1], 1).clone();
            let _: Value = pipe.query(client).unwrap();
        }
        let _: Value = cmd("RENAME").arg("k5").arg("k6").query(client).unwrap();
        let info: String = cmd("INFO").arg("commandstats").query(client).unwrap();
        let lines = info.lines().filter(|line| !line.contains("cmdstat_client"));
        // Which shard serves the client says in which order they come.
        // How long they took is another question.
        let counts = |line: &str| {
            let figures = line.split(',').filter(|figure| !figure.starts_with("usec"));
            figures.collect::<Vec<_>>().join(",")
        };
        let mut lines: Vec<String> = lines.map(counts).collect();
        lines.sort();
        lines
    };
    assert_eq!(count("3"), count("1"));
}

#[test]
fn no_shards_at_all_are_refused() {
    let output = crate::support::program().args(["serve", "--shards", "0"]).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains("shards is 0 (allowed: 1 to"), "{said}");
}
