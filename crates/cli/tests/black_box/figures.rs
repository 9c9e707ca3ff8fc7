//! The figures that a server tells of itself mean what they say, with one shard and with several.

use crate::http::get;
use crate::pausing::number_of;
use crate::support::{PATIENCE, Server, request};
use redis::{Connection, Value, cmd};
use std::collections::BTreeMap;
use std::time::Instant;

fn section(client: &mut Connection, name: &str) -> BTreeMap<String, String> {
    let text: String = cmd("INFO").arg(name).query(client).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn number(client: &mut Connection, part: &str, name: &str) -> u64 {
    let all = section(client, part);
    all.get(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {all:?}"))
}

/// The numbers of a line such as `calls=1,usec=2`.
fn facts(client: &mut Connection, part: &str, name: &str) -> BTreeMap<String, f64> {
    let all = section(client, part);
    let Some(line) = all.get(name) else { return BTreeMap::new() };
    let facts = line.split(',').filter_map(|fact| fact.split_once('='));
    facts.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

fn command(client: &mut Connection, name: &str) -> [f64; 3] {
    let facts = facts(client, "commandstats", &format!("cmdstat_{name}"));
    ["calls", "rejected_calls", "failed_calls"]
        .map(|fact| facts.get(fact).copied().unwrap_or_default())
}

fn errors(client: &mut Connection, code: &str) -> f64 {
    let facts = facts(client, "errorstats", &format!("errorstat_{code}"));
    facts.get("count").copied().unwrap_or_default()
}

fn servers() -> [Server; 2] {
    ["1", "3"].map(|shards| Server::start(&["--shards", shards, "--memcached-port", "0"]))
}

fn key(at: usize) -> String {
    format!("k|{at}|x")
}

fn refused(client: &mut Connection, words: &[&str]) -> String {
    let mut all = cmd(words[0]);
    words[1..].iter().for_each(|word| {
        all.arg(word);
    });
    format!("{}", all.query::<Value>(client).unwrap_err())
}

/// Sections with the names of their lines, in order.
fn shape(text: &str) -> Vec<&str> {
    let name = |line| str::split_once(line, ':').map_or(line, |(name, _)| name);
    text.lines().filter(|line| !line.is_empty()).map(name).collect()
}

#[test]
fn info_looks_alike_with_any_number_of_shards() {
    let mut shapes = Vec::new();
    for server in servers() {
        let client = &mut server.client(3);
        let _: () = cmd("TABLE.SET").arg(&["a:b", "BOUNDARY", "1"]).query(client).unwrap();
        let _: Value =
            cmd("JOIN.ADD").arg(&["x:y", "out|<a> = count in|<a>|<b>"]).query(client).unwrap();
        for at in 0..9 {
            let _: () = cmd("SET").arg(format!("in|{at}|x")).arg("v").query(client).unwrap();
            let _: () = cmd("SET")
                .arg(format!("a:b|{at}"))
                .arg("v")
                .arg("PX")
                .arg(1)
                .query(client)
                .unwrap();
        }
        let began = Instant::now();
        while number(client, "stats", "expired_keys") < 9 {
            assert!(began.elapsed() < PATIENCE, "they should expire");
        }
        let engine = section(client, "engine");
        let all: String = cmd("INFO").query(client).unwrap();
        let everything: String = cmd("INFO").arg("everything").query(client).unwrap();
        let parts: Vec<&str> = all.split("# ").collect();
        for part in ["Stats", "Engine"] {
            let part = parts.iter().find(|it| it.starts_with(part)).unwrap();
            assert!(part.contains("expired_keys:9\r\n"), "{part}");
        }
        assert_eq!(engine["expired_keys"], "9");
        assert_eq!(number(client, "joins", "joins"), 1);
        assert!(section(client, "joins").contains_key(r"join_x\x3ay"), "{all}");
        let tables = section(client, "tables");
        let names: Vec<&str> = tables.keys().map(String::as_str).collect();
        let expected = [r"table_a\x3ab", "table_in", "table_out", "tables"];
        assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
        assert_eq!(number(client, "tables", "tables") as usize, names.len() - 1);
        let boundary = facts(client, "tables", r"table_a\x3ab")["boundary"];
        assert_eq!(boundary, 1.0);
        assert!(number(client, "memory", "used_memory_unaccounted") < 1 << 40);
        // What several shards say to one another, one has nobody to say it to.
        let own = |text: &str| -> Vec<String> {
            shape(text)
                .into_iter()
                .filter(|name| !name.starts_with("shards_") && !name.starts_with("latency_"))
                .map(str::to_owned)
                .collect()
        };
        shapes.push((own(&all), own(&everything)));
    }
    assert_eq!(shapes[0], shapes[1]);
}

#[test]
fn counting_begins_anew_for_what_was_evicted_as_well() {
    for server in servers() {
        let client = &mut server.client(3);
        let mut items = server.memcached();
        for reset in ["RESP", "memcached"] {
            for at in 0..9 {
                let _: () =
                    cmd("SET").arg(key(at)).arg("v").arg("PX").arg(1).query(client).unwrap();
            }
            let began = Instant::now();
            while number(client, "stats", "expired_keys") < 9 {
                assert!(began.elapsed() < PATIENCE, "they should expire");
            }
            items.send(b"stats\r\n");
            let told = String::from_utf8(items.until(b"END\r\n")).unwrap();
            assert!(told.contains("STAT reclaimed 9\r\n"), "{told}");
            if reset == "RESP" {
                let _: () = cmd("CONFIG").arg("RESETSTAT").query(client).unwrap();
            } else {
                items.send(b"stats reset\r\n");
                items.expect(b"RESET\r\n");
            }
            items.send(b"stats\r\n");
            let told = String::from_utf8(items.until(b"END\r\n")).unwrap();
            assert!(told.contains("STAT reclaimed 0\r\n"), "{told}");
        }
    }
}

#[test]
fn who_waits_in_a_stream_is_listed_as_waiting_in_the_order_of_clients() {
    for server in servers() {
        let client = &mut server.client(3);
        let mut readers: Vec<_> = (0..6).map(|_| server.socket()).collect();
        for (at, reader) in readers.iter_mut().enumerate() {
            let log = format!("log{at}");
            reader.send(&request(&[b"STREAM.READ", log.as_bytes(), b"0", b"9", b"BLOCK", b"0"]));
        }
        let mut list = || -> String { cmd("CLIENT").arg("LIST").query(client).unwrap() };
        let began = Instant::now();
        while list().matches(" flags=b ").count() < readers.len() {
            assert!(began.elapsed() < PATIENCE, "all should wait:\n{}", list());
        }
        let told = list();
        assert_eq!(told.matches(" flags=N ").count(), 1, "{told}");
        let ids = told.lines().map(|line| {
            let id = line.strip_prefix("id=").unwrap().split(' ').next().unwrap();
            id.parse::<u64>().unwrap()
        });
        assert!(ids.is_sorted(), "{told}");
    }
}

#[test]
fn what_a_client_queues_and_watches_is_in_its_memory() {
    for server in servers() {
        let (client, mut other) = (&mut server.client(3), server.socket());
        let field = |client: &mut Connection, name: &str| -> u64 {
            let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
            let line = list.lines().find(|line| line.contains(" multi=1 ")).unwrap_or_default();
            let field = line.split(' ').find_map(|field| field.strip_prefix(&format!("{name}=")));
            field.unwrap_or_else(|| panic!("{list}")).parse().unwrap()
        };
        let long = vec![b'x'; 100_000];
        other.send(&request(&[b"MULTI"]));
        other.expect(b"+OK\r\n");
        other.send(&request(&[b"SET", b"k", &long]));
        other.expect(b"+QUEUED\r\n");
        assert!(field(client, "multi-mem") >= 100_000);
        assert!(field(client, "tot-mem") >= field(client, "multi-mem"));
    }
}

#[test]
fn lookups_are_hits_and_misses() {
    for server in servers() {
        let client = &mut server.client(3);
        let before = ["keyspace_hits", "keyspace_misses"].map(|it| number(client, "stats", it));
        assert_eq!(before, [0, 0]);
        for at in 0..6 {
            let _: () = cmd("SET").arg(key(at)).arg("v").query(client).unwrap();
        }
        for at in 0..9 {
            let _: Value = cmd("GET").arg(key(at)).query(client).unwrap();
        }
        let all: Vec<String> = (0..9).map(key).collect();
        let _: Value = cmd("MGET").arg(&all).query(client).unwrap();
        let _: Value = cmd("EXISTS").arg(key(0)).arg("none").query(client).unwrap();
        let _: Value = cmd("TTL").arg("none").query(client).unwrap();
        let _: Value = cmd("GETDEL").arg(key(0)).query(client).unwrap();
        // What writes looks nothing up.
        let _: Value = cmd("INCR").arg("count").query(client).unwrap();
        let after = ["keyspace_hits", "keyspace_misses"].map(|it| number(client, "stats", it));
        assert_eq!(after, [6 + 6 + 1 + 1, 3 + 3 + 1 + 1]);
        let _: () = cmd("CONFIG").arg("RESETSTAT").query(client).unwrap();
        assert_eq!(number(client, "stats", "keyspace_hits"), 0);
    }
}

#[test]
fn metrics_count_requests_and_errors_as_info_does() {
    for shards in ["1", "3"] {
        let server =
            Server::start(&["--shards", shards, "--memcached-port", "0", "--http-port", "0"]);
        let client = &mut server.client(3);
        for at in 0..9 {
            let _: () = cmd("SET").arg(key(at)).arg("v").query(client).unwrap();
        }
        let all: Vec<String> = (0..9).map(key).collect();
        let _: Value = cmd("MGET").arg(&all).query(client).unwrap();
        (0..4).for_each(|at| _ = refused(client, &["INCR", &key(at)]));
        let mut other = server.memcached();
        other.send(b"get k\r\nincr none x\r\n");
        other.expect(b"END\r\n");
        other.until(b"\r\n");
        let told = |name: &str| {
            let answer = get(&server, "GET /metrics");
            let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|number| number.parse::<f64>().ok()).unwrap_or_else(|| panic!("{answer}"))
                as u64
        };
        let before = ["requests", "errors"].map(|name| told(&format!("headwater_{name}_total")));
        let stats = section(client, "stats");
        let [requests, errors] = ["total_commands_processed", "total_error_replies"]
            .map(|name| stats[name].parse::<u64>().unwrap());
        assert_eq!(before[1], errors);
        // INFO is one more, before or behind its own answer.
        assert!([before[0], before[0] + 1].contains(&requests), "{before:?}, {requests}");
        assert_eq!(told("headwater_requests_total"), before[0] + 1);
        assert_eq!(errors, 5);
    }
}

#[test]
fn commands_that_are_refused_and_that_fail_are_told_apart() {
    for server in servers() {
        let client = &mut server.client(3);
        let _: () = cmd("SET").arg("text").arg("no number").query(client).unwrap();
        for at in 0..5 {
            let _: () = cmd("SET").arg(key(at)).arg("no number").query(client).unwrap();
            refused(client, &["INCR", &key(at)]);
        }
        refused(client, &["GET"]);
        refused(client, &["SET", "a", "b", "NONSENSE"]);
        refused(client, &["NOSUCH"]);
        // Every shard has a part in it, and it is one error.
        refused(client, &["CONFIG", "SET", "nosuch", "1"]);
        assert_eq!(command(client, "incr"), [5.0, 0.0, 5.0]);
        assert_eq!(command(client, "get"), [0.0, 1.0, 0.0]);
        assert_eq!(command(client, "set"), [7.0, 0.0, 1.0]);
        assert_eq!(command(client, "config|set"), [1.0, 0.0, 1.0]);
        assert_eq!(errors(client, "ERR"), 9.0);
        let mut other = server.client(3);
        let _: () = cmd("ACL")
            .arg(&["SETUSER", "ann", "on", "nopass", "+get", "~*"])
            .query(client)
            .unwrap();
        let _: () = cmd("AUTH").arg(&["ann", "x"]).query(&mut other).unwrap();
        refused(&mut other, &["SET", "a", "b"]);
        assert_eq!(command(client, "set"), [7.0, 1.0, 1.0]);
        assert_eq!(errors(client, "NOPERM"), 1.0);
        refused(&mut server.client(3), &["EXEC"]);
        let sum = section(client, "errorstats").len();
        assert_eq!(sum, 2, "ERR and NOPERM");
        assert_eq!(number(client, "stats", "total_error_replies"), 11);
        let _: () = cmd("CONFIG").arg("RESETSTAT").query(client).unwrap();
        assert_eq!(section(client, "errorstats").len(), 0);
    }
}

#[test]
fn a_transaction_counts_each_of_its_commands() {
    for server in servers() {
        let client = &mut server.client(3);
        let mut pipe = redis::pipe();
        pipe.atomic();
        for at in 0..6 {
            pipe.cmd("SET").arg(key(at)).arg("x");
            pipe.cmd("INCR").arg(key(at));
        }
        let _ = pipe.query::<Value>(client);
        assert_eq!(command(client, "set"), [6.0, 0.0, 0.0]);
        assert_eq!(command(client, "incr"), [6.0, 0.0, 6.0]);
        assert_eq!(errors(client, "ERR"), 6.0);
        assert_eq!(command(client, "exec"), [1.0, 0.0, 0.0]);
    }
}

#[test]
fn times_are_told_of_all_shards_together() {
    for server in servers() {
        let client = &mut server.client(3);
        for at in 0..30 {
            let _: () = cmd("SET").arg(key(at)).arg("v").query(client).unwrap();
        }
        let _: () = cmd("DEBUG").arg("SLEEP").arg("0.05").query(client).unwrap();
        let slept = facts(client, "commandstats", "cmdstat_debug|sleep");
        assert!(slept["usec"] >= 50_000.0 && slept["usec_per_call"] >= 50_000.0, "{slept:?}");
        let set = facts(client, "commandstats", "cmdstat_set");
        let mean = set["usec"] / set["calls"];
        assert!((set["usec_per_call"] - mean).abs() < 0.01, "{set:?}");
        let spread = facts(client, "latencystats", "latency_percentiles_usec_debug|sleep");
        assert!(spread["p50"] >= 50_000.0 && spread["p99.9"] >= spread["p50"], "{spread:?}");
        type Histogram = BTreeMap<String, BTreeMap<String, Value>>;
        let told: Histogram =
            cmd("LATENCY").arg(&["HISTOGRAM", "set", "debug", "nosuch"]).query(client).unwrap();
        assert_eq!(told.keys().collect::<Vec<_>>(), ["debug|sleep", "set"]);
        assert_eq!(told["set"]["calls"], Value::Int(30));
        let Value::Map(steps) = &told["set"]["histogram_usec"] else { panic!("{told:?}") };
        assert_eq!(steps.last().unwrap().1, Value::Int(30), "they are added up");
        let _: () = cmd("CONFIG").arg("RESETSTAT").query(client).unwrap();
        let told: Histogram = cmd("LATENCY").arg(&["HISTOGRAM", "set"]).query(client).unwrap();
        assert!(told.is_empty());
        // What all shards do together is one request.
        let _: Value = cmd("CLIENT").arg("LIST").query(client).unwrap();
        let _: Value = cmd("PING").query(client).unwrap();
        let told: Histogram =
            cmd("LATENCY").arg(&["HISTOGRAM", "client|list"]).query(client).unwrap();
        assert_eq!(told["client|list"]["calls"], Value::Int(1), "{told:?}");
        let words: String = cmd("LATENCY").arg("DOCTOR").query(client).unwrap();
        assert!(!words.is_empty());
        let mut set = |name: &str, value: &str| -> redis::RedisResult<()> {
            cmd("CONFIG").arg(&["SET", name, value]).query(client)
        };
        set("latency-tracking-info-percentiles", "0 25.50 100.0").unwrap();
        let error = set("latency-tracking-info-percentiles", "50 101").unwrap_err().to_string();
        assert!(error.contains("CONFIG SET failed") && error.contains("'101'"), "{error}");
        set("latency-tracking", "no").unwrap();
        let _: () = cmd("SET").arg("k").arg("v").query(client).unwrap();
        let told: Histogram = cmd("LATENCY").arg(&["HISTOGRAM", "set"]).query(client).unwrap();
        assert!(told.is_empty());
        let _: () = cmd("CONFIG").arg(&["SET", "latency-tracking", "yes"]).query(client).unwrap();
        let _: () = cmd("SET").arg("k").arg("v").query(client).unwrap();
        // What comes next ends the run that it belongs to.
        let _: () = cmd("PING").query(client).unwrap();
        let spread = facts(client, "latencystats", "latency_percentiles_usec_set");
        assert_eq!(spread.keys().collect::<Vec<_>>(), ["p0", "p100", "p25.5"]);
    }
}

/// What CLIENT LIST tells of a client by its name.
fn told_of(client: &mut Connection, name: &str) -> BTreeMap<String, String> {
    let list: String = cmd("CLIENT").arg("LIST").query(client).unwrap();
    let has_name = |line: &&str| line.contains(&format!(" name={name} "));
    let line = list.lines().find(has_name).unwrap_or_else(|| panic!("no {name} in {list}"));
    let fields = line.split(' ').filter_map(|field| field.split_once('='));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn what_a_client_does_and_watches_is_told() {
    for server in servers() {
        let client = &mut server.client(2);
        let mut other = server.socket();
        other.send(b"CLIENT SETNAME other\r\n");
        other.expect(b"+OK\r\n");
        let before = told_of(client, "other");
        assert_eq!(before["watch"], "0");
        other.send(b"WATCH a b c\r\nWATCH a\r\nECHO 1\r\n");
        other.expect(b"+OK\r\n+OK\r\n$1\r\n1\r\n");
        let after = told_of(client, "other");
        assert_eq!(after["watch"], "3");
        let grown = |name: &str| {
            let number = |fields: &BTreeMap<String, String>| fields[name].parse::<u64>().unwrap();
            number(&after) - number(&before)
        };
        let figures = ["tot-cmds", "tot-net-in", "tot-net-out"].map(grown);
        assert_eq!(figures, [3, 13 + 9 + 8, 5 + 5 + 7]);
        let clients = section(client, "clients");
        assert_eq!((&*clients["watching_clients"], &*clients["total_watched_keys"]), ("1", "3"));
        // More than it may watch: all or none.
        let _: () = cmd("CONFIG").arg(&["SET", "watched-keys-max", "4"]).query(client).unwrap();
        other.send(b"WATCH d e\r\nWATCH d a\r\n");
        other.expect(b"-ERR more than 4 watched keys (watched-keys-max)\r\n+OK\r\n");
        assert_eq!(told_of(client, "other")["watch"], "4");
        // Those that have been there for so long are ended: no one has for an hour.
        let mut kill = |age: &str| cmd("CLIENT").arg(&["KILL", "MAXAGE", age]).query::<i64>(client);
        assert_eq!(kill("3600"), Ok(0));
        for (age, why) in [("0", "greater than 0"), ("x", "not an integer")] {
            assert!(kill(age).unwrap_err().to_string().contains(why), "{age}");
        }
        std::thread::sleep(std::time::Duration::from_millis(1100));
        assert_eq!(kill("1"), Ok(1));
        other.expect_end(b"");
    }
}

#[test]
fn bytes_are_those_of_clients() {
    for server in servers() {
        let client = &mut server.client(2);
        let _: () = cmd("CONFIG").arg("RESETSTAT").query(client).unwrap();
        let mut sockets: Vec<_> = (0..6).map(|_| server.socket()).collect();
        let (asked, answer) = (request(&[b"ECHO", &[b'x'; 1000]]), 1000 + 9);
        for socket in &mut sockets {
            socket.send(&asked);
            socket.take(answer);
        }
        let (sent, told) = (6 * asked.len() as u64, 6 * answer as u64);
        let of = |client: &mut Connection, name: &str| number(client, "stats", name);
        // What this client says itself is some hundred bytes.
        let input = of(client, "total_net_input_bytes");
        assert!((sent..sent + 500).contains(&input), "{input}, {sent}");
        let output = of(client, "total_net_output_bytes");
        assert!((told..told + 16_000).contains(&output), "{output}, {told}");
        assert!(of(client, "total_reads_processed") >= 6);
        assert!(of(client, "total_writes_processed") >= 6);
        let rates = section(client, "stats");
        for name in ["instantaneous_input_kbps", "instantaneous_output_kbps"] {
            assert!(rates[name].parse::<f64>().is_ok(), "{rates:?}");
        }
        let time = number(client, "server", "server_time_usec");
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
        assert!(time <= now && now - time < 3_600_000_000, "{time}");
        assert_eq!(number(client, "cluster", "cluster_enabled"), 0);
    }
}

#[test]
fn a_clients_line_tells_of_its_own_request() {
    for server in servers() {
        let mut socket = server.socket();
        socket.send(&request(&[b"CLIENT", b"LIST"]));
        let _length = socket.until(b"\r\n");
        let line = String::from_utf8(socket.until(b"\n")).unwrap();
        for fact in ["qbuf=26 ", "argv-mem=10 ", "multi-mem=0 ", "obl=0 oll=0 omem=0 ", "events=r "]
        {
            assert!(line.contains(fact), "{fact} in {line}");
        }
    }
}

#[test]
fn words_are_those_of_redis() {
    for server in servers() {
        let client = &mut server.client(3);
        let _: () = cmd("SET").arg("k").arg("v").query(client).unwrap();
        for (words, text) in [
            (&["CLIENT", "CACHING", "maybe"][..], "CLIENT CACHING can be called only when"),
            (&["SETRANGE", "k", "4294967296", "x"], "string exceeds maximum allowed size"),
            (&["CLIENT", "KILL", "USER", "nosuch"], "No such user 'nosuch'"),
            (&["OBJECT", "IDLETIME", "k"], "the time of a key's last use is not kept"),
        ] {
            let told = refused(client, words);
            assert!(told.contains(text), "{told}");
        }
        type Flags = Vec<(String, Vec<String>)>;
        let asked = ["GETKEYSANDFLAGS", "RENAME", "a", "b"];
        let told: Flags = cmd("COMMAND").arg(&asked).query(client).unwrap();
        let flags = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let expected = [
            (String::from("a"), flags(&["RW", "access", "delete"])),
            (String::from("b"), flags(&["OW", "update"])),
        ];
        assert_eq!(told, expected);
    }
}

#[test]
fn metrics_have_the_same_figures() {
    let server = Server::start(&["--shards", "3", "--http-port", "0"]);
    let client = &mut server.client(3);
    for at in 0..6 {
        let _: () = cmd("SET").arg(key(at)).arg("v").query(client).unwrap();
        refused(client, &["INCR", &key(at)]);
    }
    for at in 0..6 {
        let _: Value = cmd("GET").arg(key(2 * at)).query(client).unwrap();
    }
    let answer = get(&server, "GET /metrics");
    for line in [
        "headwater_lookup_hits_total 3.0",
        "headwater_lookup_misses_total 3.0",
        "headwater_error_replies_total{code=\"ERR\"} 6.0",
        "headwater_commands_total{command=\"incr\"} 6.0",
    ] {
        assert!(answer.lines().any(|other| other == line), "{line} is not in\n{answer}");
    }
    for name in
        ["command_seconds_total{command=\"set\"}", "received_bytes_total", "sent_bytes_total"]
    {
        assert!(answer.contains(&format!("\nheadwater_{name} ")), "{name} is not in\n{answer}");
    }
}

/// Keys that three shards do not have alone.
const MANY: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

#[test]
fn failures_of_what_several_shards_do_as_one_are_those_of_the_command() {
    for server in servers() {
        let client = &mut server.client(2);
        for key in MANY {
            let () = cmd("STREAM.APPEND").arg(format!("s{key}")).arg("x").query(client).unwrap();
            let () = cmd("SET").arg(format!("v{key}")).arg("x").query(client).unwrap();
        }
        let () = cmd("CONFIG").arg("RESETSTAT").query(client).unwrap();
        for key in MANY {
            let requests: [&[&str]; 4] = [
                &["RENAME", &format!("no{key}"), &format!("new{key}")],
                &["RENAMENX", &format!("no{key}"), &format!("new{key}")],
                &["BITOP", "AND", "to", &format!("s{key}"), &format!("v{key}")],
                &["LCS", &format!("v{key}"), &format!("s{key}")],
            ];
            for words in requests {
                cmd(words[0]).arg(&words[1..]).query::<Value>(client).unwrap_err();
            }
        }
        let all = MANY.len() as f64;
        for name in ["rename", "renamenx", "bitop", "lcs"] {
            assert_eq!(command(client, name), [all, 0.0, all], "{name}");
        }
        assert_eq!(command(client, "get"), [0.0; 3], "nobody has sent one");
        assert_eq!((errors(client, "ERR"), errors(client, "WRONGTYPE")), (2.0 * all, 2.0 * all));
        assert_eq!(number(client, "stats", "total_error_replies"), 4 * MANY.len() as u64);
        // Those of a transaction are counted as well.
        let mut transaction = redis::pipe();
        transaction.atomic();
        for key in MANY {
            transaction.cmd("GET").arg(format!("s{key}"));
        }
        transaction.query::<Value>(client).unwrap_err();
        assert_eq!(command(client, "get"), [all, 0.0, all]);
        assert_eq!(errors(client, "WRONGTYPE"), 3.0 * all);
    }
}

/// The slow commands, oldest first: their words, and the peer and the name of who sent them.
fn slow(client: &mut Connection) -> Vec<(Vec<String>, String, String)> {
    type Entry = (u64, u64, u64, Vec<String>, String, String);
    let all: Vec<Entry> = cmd("SLOWLOG").arg("GET").arg(-1).query(client).unwrap();
    all.into_iter().rev().map(|(_, _, _, words, peer, name)| (words, peer, name)).collect()
}

/// Has every command from now on be a slow one.
fn note_all_as_slow(client: &mut Connection) -> redis::RedisResult<()> {
    cmd("CONFIG").arg("SET").arg("slowlog-log-slower-than").arg(0).query(client)
}

#[test]
fn slow_commands_are_those_that_clients_have_sent() {
    for server in servers() {
        let client = &mut server.client(2);
        let () = cmd("CLIENT").arg("SETNAME").arg("me").query(client).unwrap();
        let info: String = cmd("CLIENT").arg("INFO").query(client).unwrap();
        let own = info.split(' ').find_map(|word| word.strip_prefix("addr=")).unwrap().to_owned();
        note_all_as_slow(client).unwrap();
        let () = cmd("SLOWLOG").arg("RESET").query(client).unwrap();
        let mut sent = Vec::new();
        for key in MANY {
            for request in [
                format!("SET k{key} v"),
                format!("RENAME k{key} other{key}"),
                format!("BITOP AND to{key} other{key} none{key} k{key}"),
            ] {
                let words: Vec<String> = request.split(' ').map(str::to_owned).collect();
                let () = cmd(&words[0]).arg(&words[1..]).query(client).unwrap();
                sent.push(words);
            }
        }
        let found = slow(client);
        let found = found.into_iter().filter(|(words, ..)| words[0] != "SLOWLOG");
        let expected = sent.iter().map(|words| (words.clone(), own.clone(), "me".to_owned()));
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        // Another name, for requests that others execute as well.
        let () = cmd("CLIENT").arg("SETNAME").arg("another").query(client).unwrap();
        let () = cmd("SLOWLOG").arg("RESET").query(client).unwrap();
        for key in MANY {
            let () = cmd("SET").arg(key).arg(key).query(client).unwrap();
        }
        let () = cmd("MGET").arg(&MANY).query::<Value>(client).map(drop).unwrap();
        let mut transaction = redis::pipe();
        transaction.atomic();
        for key in MANY {
            transaction.cmd("GET").arg(key);
        }
        let () = transaction.query::<Value>(client).map(drop).unwrap();
        let found = slow(client);
        for (words, peer, name) in &found {
            assert_eq!((&**peer, &**name), (&*own, "another"), "{words:?}");
        }
        let count = |name: &str| found.iter().filter(|(words, ..)| words[0] == name).count();
        assert_eq!(count("SET"), MANY.len());
        assert!(count("MGET") > 0 && count("EXEC") + count("GET") > 0, "{found:?}");
        let refused = cmd("CONFIG")
            .arg("SET")
            .arg("slowlog-log-slower-than")
            .arg(-2)
            .query::<()>(client)
            .unwrap_err();
        assert!(refused.to_string().contains("allowed: -1"), "{refused}");
    }
}

#[test]
fn who_waits_is_not_slow_and_its_failure_counts() {
    for server in servers() {
        let client = &mut server.client(2);
        note_all_as_slow(client).unwrap();
        let () = cmd("CONFIG").arg("RESETSTAT").query(client).unwrap();
        let () = cmd("SLOWLOG").arg("RESET").query(client).unwrap();
        for key in MANY {
            let mut reader = server.socket();
            let id = number_of(&mut reader);
            let words: [&[u8]; 6] = [b"STREAM.READ", key.as_bytes(), b"0", b"9", b"BLOCK", b"0"];
            reader.send(&request(&words));
            let began = Instant::now();
            let mut unblock =
                || cmd("CLIENT").arg("UNBLOCK").arg(id).arg("ERROR").query::<u64>(client).unwrap();
            while unblock() == 0 {
                assert!(began.elapsed() < PATIENCE, "it should wait");
            }
            reader.expect(b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
        }
        let all = MANY.len() as f64;
        assert_eq!(command(client, "stream.read"), [all, 0.0, all]);
        assert_eq!(errors(client, "UNBLOCKED"), all);
        let reads = slow(client).into_iter().filter(|(words, ..)| words[0] == "STREAM.READ");
        assert_eq!(reads.count(), 0, "it was not executed while it waited");
    }
}
