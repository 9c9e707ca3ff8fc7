//! The interface for programs over HTTP (`/v1`): keys, ranges, live queries, rights, origins and nonsense, with one shard and with several.

use crate::http::address;
use crate::support::{PATIENCE, Server};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}: {}", self.head, self.body.escape_ascii()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(other, value)| other.eq_ignore_ascii_case(name).then_some(value))
    }

    /// Asserts that it is a problem of this status, and gives its code.
    #[track_caller]
    fn problem(&self, status: u16) -> String {
        let shown = self.body.escape_ascii();
        assert_eq!(self.status, status, "{shown}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{shown}");
        let json = self.json();
        assert_eq!(json["status"], status);
        json["code"].as_str().unwrap().to_owned()
    }
}

/// Asks the HTTP port of a server, with these further lines in the head.
pub(crate) fn ask(server: &Server, line: &str, lines: &[&str], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address(server)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = format!("{line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", address(server));
    let takes_body = line.starts_with("PUT") || line.starts_with("POST");
    if takes_body && !lines.iter().any(|line| line.starts_with("Content-Length")) {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    lines.iter().for_each(|line| head += &format!("{line}\r\n"));
    head += "\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // It may be refused before its body is taken.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let body = bytes.split_off(end);
    let head = String::from_utf8(bytes).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body }
}

pub(crate) fn get(server: &Server, target: &str) -> Answer {
    ask(server, &format!("GET {target}"), &[], b"")
}

fn put(server: &Server, target: &str, value: &[u8]) -> Answer {
    ask(server, &format!("PUT {target}"), &[], value)
}

/// Events as they come.
pub(crate) struct Events {
    reader: BufReader<TcpStream>,
}

/// One event: its name, its id if it has one, and its data.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

impl Events {
    pub(crate) fn begin(server: &Server, query: &str, lines: &[&str]) -> Self {
        Self::begin_at(address(server), query, lines)
    }

    /// Those of a server or node that speaks HTTP there.
    pub(crate) fn begin_at(address: &str, query: &str, lines: &[&str]) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        write!(stream, "GET /v1/watch?{query} HTTP/1.1\r\nHost: {address}\r\n{lines}\r\n").unwrap();
        let mut events = Self { reader: BufReader::new(stream) };
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(events.reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        events
    }

    /// The next line of the stream, out of its chunks; `None`: it is over.
    fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            // A chunk's length ends as no line of an event does, and so does the chunk itself.
            match line.strip_suffix("\r\n") {
                Some("0") => return None,
                Some(_) => {}
                None => return Some(line.trim_end_matches('\n').to_owned()),
            }
        }
    }

    /// The next event; `None`: the stream is over.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let mut event = Event { name: String::new(), id: None, data: Value::Null };
        loop {
            let line = self.line()?;
            if let Some(name) = line.strip_prefix("event: ") {
                name.clone_into(&mut event.name);
            } else if let Some(id) = line.strip_prefix("id: ") {
                event.id = Some(id.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                // Of a stream that was cut the last line may be no JSON.
                event.data = serde_json::from_str(data).ok()?;
            } else if line.is_empty() && !event.name.is_empty() {
                return Some(event);
            }
        }
    }

    /// Applies events to a copy until one has this name.
    fn until(&mut self, name: &str, copy: &mut Copy) -> Event {
        loop {
            let event = self.next().expect("it goes on");
            copy.apply(&event);
            if event.name == name {
                return event;
            }
        }
    }
}

/// A copy of a range.
#[derive(Default, PartialEq, Debug)]
struct Copy {
    entries: std::collections::BTreeMap<String, Value>,
    last_id: String,
}

impl Copy {
    fn apply(&mut self, event: &Event) {
        let key = |data: &Value| data["key"].to_string();
        match event.name.as_str() {
            "resync" => self.entries.clear(),
            "snapshot" => {
                for entry in event.data["entries"].as_array().unwrap() {
                    self.entries.insert(key(entry), entry["value"].clone());
                }
            }
            "change" if event.data["op"] == "set" => {
                self.entries.insert(key(&event.data), event.data["value"].clone());
            }
            "change" => drop(self.entries.remove(&key(&event.data))),
            _ => {}
        }
        if let Some(id) = &event.id {
            self.last_id.clone_from(id);
        }
    }
}

/// Servers with one shard and with three.
fn servers(more: &[&str]) -> impl Iterator<Item = Server> {
    ["1", "3"].into_iter().map(move |shards| {
        let first = ["--http-port", "0", "--shards", shards];
        Server::start(&[&first, more].concat())
    })
}

fn set(server: &Server, key: &str, value: &str) {
    let () = redis::cmd("SET").arg(key).arg(value).query(&mut server.client(3)).unwrap();
}

fn run(server: &Server, words: &[&str]) {
    let _: redis::Value =
        redis::cmd(words[0]).arg(&words[1..]).query(&mut server.client(3)).unwrap();
}

#[test]
fn keys_are_written_read_and_removed() {
    for server in servers(&[]) {
        assert_eq!(get(&server, "/v1/keys/a%7Cb").problem(404), "NOT_FOUND");
        assert_eq!(put(&server, "/v1/keys/a%7Cb", b"one").status, 204);
        let answer = get(&server, "/v1/keys/a%7Cb");
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"one"[..]));
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("headwater-ttl-ms"), None);
        // Any bytes, in keys and in values, also where they look like protocol.
        let value: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
        for key in ["%00%ff%0d%0a", "%2e%2e", "x/y//z%2f", "%f0%9f%8c%8a", "a+b"] {
            assert_eq!(put(&server, &format!("/v1/keys/{key}"), &value).status, 204, "{key}");
            let answer = get(&server, &format!("/v1/keys/{key}"));
            assert!(answer.status == 200 && answer.body == value, "{key}");
            let again = get(&server, &format!("/v1/keys?key={}", key.replace('+', "%2B")));
            assert!(again.body == value, "{key}");
            let head = ask(&server, &format!("HEAD /v1/keys/{key}"), &[], b"");
            assert_eq!((head.status, head.header("content-length")), (200, Some("3000000")));
            assert_eq!(ask(&server, &format!("DELETE /v1/keys/{key}"), &[], b"").status, 204);
            assert_eq!(
                ask(&server, &format!("DELETE /v1/keys/{key}"), &[], b"").problem(404),
                "NOT_FOUND"
            );
        }
        assert_eq!(put(&server, "/v1/keys/t?ttl=100", b"").status, 204);
        let life = get(&server, "/v1/keys/t");
        let millis: u64 = life.header("headwater-ttl-ms").unwrap().parse().unwrap();
        assert!((90_000..=100_000).contains(&millis) && life.body.is_empty());
        assert_eq!(put(&server, "/v1/keys/t?if=absent", b"x").problem(412), "IF");
        assert_eq!(put(&server, "/v1/keys/t?if=present&keepttl", b"x").status, 204);
        assert!(get(&server, "/v1/keys/t").header("headwater-ttl-ms").is_some());
        run(&server, &["JOIN.ADD", "tl", "t|<u>|<time>|<p> = check s|<u>|<p> copy p|<p>|<time>"]);
        set(&server, "s|ann|bob", "1");
        set(&server, "p|bob|0100", "Hi");
        assert_eq!(get(&server, "/v1/keys/t%7Cann%7C0100%7Cbob").body, b"Hi");
        assert_eq!(put(&server, "/v1/keys/t%7Cann%7C0100%7Cbob", b"x").problem(409), "JOINED");
        run(&server, &["STREAM.APPEND", "stream", "bytes"]);
        assert_eq!(get(&server, "/v1/keys/stream").problem(409), "WRONGTYPE");
    }
}

#[test]
fn ranges_come_in_pages() {
    for server in servers(&[]) {
        let mut client = server.client(3);
        for number in 0..25 {
            let () = redis::cmd("SET")
                .arg(format!("p|{number:02}"))
                .arg(number)
                .query(&mut client)
                .unwrap();
        }
        let () = redis::cmd("SET").arg(b"q|\xff\x00").arg(b"\x00\x01").query(&mut client).unwrap();
        for rev in ["", "&rev=1"] {
            let mut link = format!("/v1/range?prefix=p%7C&limit=10{rev}");
            let (mut keys, mut pages) = (Vec::new(), 0);
            loop {
                let page = get(&server, &link).json();
                for entry in page["entries"].as_array().unwrap() {
                    keys.push(entry["key"].as_str().unwrap().to_owned());
                }
                pages += 1;
                match page["next"].as_str() {
                    Some(next) => next.clone_into(&mut link),
                    None => break,
                }
            }
            let mut expected: Vec<String> =
                (0..25).map(|number| format!("p|{number:02}")).collect();
            if !rev.is_empty() {
                expected.reverse();
            }
            assert_eq!((keys, pages), (expected, 3));
        }
        let page = get(&server, "/v1/range?first=p%7C23&last=&keys=1&limit=2").json();
        assert_eq!(page["keys"], json!(["p|23", "p|24"]));
        let page = get(&server, page["next"].as_str().unwrap()).json();
        assert_eq!(page, json!({ "keys": [{ "base64": "cXz/AA==" }], "next": null }));
        let page = get(&server, "/v1/range?prefix=p%7C&limit=1&stale=86400000").json();
        assert!(page["next"].as_str().unwrap().contains("&stale=86400000"), "{page}");
        let page = get(&server, page["next"].as_str().unwrap()).json();
        assert_eq!(page["entries"][0]["key"], "p|01");
        for accepted in ["0", "1"] {
            let path = format!("/v1/range?prefix=p%7C&count&stale={accepted}");
            assert_eq!(get(&server, &path).json()["count"], 25);
        }
        let page = get(&server, "/v1/range?prefix=q%7C").json();
        let entry = json!({ "key": { "base64": "cXz/AA==" }, "value": { "base64": "AAE=" } });
        assert_eq!(page["entries"], json!([entry]));
        let page = get(&server, "/v1/range?prefix=p%7C&values&limit=3&rev").json();
        assert_eq!(page["values"], json!(["24", "23", "22"]));
        assert_eq!(get(&server, "/v1/range?prefix=p%7C&count").json(), json!({ "count": 25 }));
        // A page of long values ends sooner, and one that is longer is told by its length.
        for number in 0..10 {
            assert_eq!(
                put(&server, &format!("/v1/keys/long{number}"), &[b'x'; 200_000]).status,
                204
            );
        }
        assert_eq!(put(&server, "/v1/keys/longer", &vec![b'x'; 1 << 20]).status, 204);
        let mut link = String::from("/v1/range?prefix=long");
        let mut sizes = Vec::new();
        while let Value::Object(page) = get(&server, &link).json() {
            sizes.push(page["entries"].as_array().unwrap().len());
            let Some(next) = page["next"].as_str() else {
                assert_eq!(page["entries"].as_array().unwrap().last().unwrap()["omitted"], 1 << 20);
                break;
            };
            next.clone_into(&mut link);
        }
        assert_eq!(sizes, [6, 5]);
    }
}

#[test]
fn nonsense_is_answered_with_what_is_allowed() {
    for server in servers(&[]) {
        for target in [
            "/v1/range",
            "/v1/range?prefix=a&first=b",
            "/v1/range?prefix=%",
            "/v1/range?prefix=%zz",
            "/v1/range?prefix=a&limit=0",
            "/v1/range?prefix=a&limit=-1",
            "/v1/range?prefix=a&limit=10001",
            "/v1/range?prefix=a&limit=1e9",
            "/v1/range?prefix=a&rev=perhaps",
            "/v1/range?prefix=a&stale=-1",
            "/v1/range?prefix=a&stale=86400001",
            "/v1/range?prefix=a&keys&values",
            "/v1/range?prefix=a&prefix=b",
            "/v1/range?prefix=a&%00=1",
            "/v1/range?prefix=a&offset=1",
            "/v1/keys/a?b=c",
            "/v1/keys",
            "/v1/keys/%G0",
            "/v1/explain",
            "/v1/explain?key=a&prefix=b",
            "/v1/verify?key=a",
            "/v1/watch",
            "/v1/watch?prefix=a&limit=3",
            "/v1/info?sections=1",
            "/v1/joins?x",
            "/v1/log?lines=0",
        ] {
            let answer = get(&server, target);
            assert_eq!(answer.problem(400), "BAD_REQUEST", "{target}");
            assert!(answer.json()["allowed"].is_string(), "{target}");
        }
        let allowed = get(&server, "/v1/explain").json()["allowed"].to_string();
        assert!(allowed.contains("key;") && allowed.contains("prefix"), "{allowed}");
        assert_eq!(
            put(&server, &format!("/v1/keys/{}", "k".repeat(1025)), b"x").problem(400),
            "ERR"
        );
        // The empty key is a plain key, as SET says.
        assert_eq!(put(&server, "/v1/keys/", b"x").status, 204);
        assert_eq!(get(&server, "/v1/keys/").body, b"x");
        assert_eq!(get(&server, "/v1/watch?first=b&last=a").problem(400), "ERR");
        assert_eq!(get(&server, "/v1/nothing").problem(404), "NOT_FOUND");
        assert_eq!(get(&server, "/v1").problem(404), "NOT_FOUND");
        assert_eq!(ask(&server, "PATCH /v1/keys/a", &[], b"").problem(405), "METHOD");
        assert_eq!(ask(&server, "DELETE /v1/range?prefix=a", &[], b"").problem(405), "METHOD");
        let chunked = ["Transfer-Encoding: chunked", "Content-Length-Not: 0"];
        assert_eq!(ask(&server, "PUT /v1/keys/a", &chunked, b"0\r\n\r\n").status / 100, 4);
        let long = ["Content-Length: 100000000000"];
        assert_eq!(ask(&server, "PUT /v1/keys/a", &long, b"x").problem(413), "BODY");
        let longer = put(&server, "/v1/keys/a", &vec![b'x'; (64 << 20) + 1]);
        assert_eq!(longer.problem(413), "ERR");
        for bad in ["ttl=0", "ttl=x", "ttl=1&ttl-ms=1", "ttl=1&keepttl", "if=maybe", "nx"] {
            assert_eq!(
                put(&server, &format!("/v1/keys/a?{bad}"), b"x").problem(400),
                "BAD_REQUEST"
            );
        }
        assert_eq!(
            ask(&server, "GET /v1/range?prefix=a", &["Content-Length: 3"], b"abc").problem(413),
            "BODY"
        );
        // A value of which only a part comes is never written.
        let mut socket = crate::support::Socket::new(TcpStream::connect(address(&server)).unwrap());
        socket.send(
            b"PUT /v1/keys/part HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc",
        );
        socket.end_sending();
        let _ = socket.rest();
        assert_eq!(get(&server, "/v1/keys/part").problem(404), "NOT_FOUND");
        let json = "Content-Type: application/json";
        let post =
            |body: &str, kind: &str| ask(&server, "POST /v1/joins", &[kind], body.as_bytes());
        assert_eq!(post("{}", "Content-Type: text/plain").problem(415), "BODY");
        for body in [
            "",
            "{",
            "[]",
            "{}",
            "{\"name\":1,\"spec\":\"\"}",
            "{\"name\":\"a\",\"spec\":\"b\",\"x\":1}",
        ] {
            assert_eq!(post(body, json).problem(400), "BAD_REQUEST", "{body}");
        }
        assert_eq!(post("{\"name\":\"a\",\"spec\":\"nonsense\"}", json).problem(400), "ERR");
        assert_eq!(post(&" ".repeat(100_000), json).problem(413), "BODY");
    }
}

#[test]
fn a_copy_is_kept_by_events_and_taken_up_again() {
    for server in servers(&[]) {
        run(&server, &["JOIN.ADD", "tl", "t|<u>|<time>|<p> = check s|<u>|<p> copy p|<p>|<time>"]);
        set(&server, "s|ann|bob", "1");
        for number in 0..1200 {
            set(&server, &format!("p|bob|{number:04}"), &format!("post {number}"));
        }
        let mut copy = Copy::default();
        let mut events = Events::begin(&server, "prefix=t%7Cann%7C", &[]);
        let live = events.until("live", &mut copy);
        assert_eq!((copy.entries.len(), Some(&copy.last_id)), (1200, live.id.as_ref()));
        set(&server, "p|bob|9999", "new \u{1f30a}\n\"quoted\"");
        let change = events.until("change", &mut copy);
        assert_eq!(
            change.data,
            json!({ "op": "set", "key": "t|ann|9999|bob", "value": "new \u{1f30a}\n\"quoted\"" })
        );
        run(&server, &["DEL", "p|bob|0000"]);
        let change = events.until("change", &mut copy);
        assert_eq!(change.data, json!({ "op": "del", "key": "t|ann|0000|bob" }));
        // The connection is lost; what happens meanwhile is told when it is taken up again.
        drop(events);
        let kept = copy.last_id.clone();
        set(&server, "p|bob|9998", "missed");
        run(&server, &["DEL", "p|bob|0001"]);
        let header = format!("Last-Event-ID: {kept}");
        let mut events = Events::begin(&server, "prefix=t%7Cann%7C", &[&header]);
        assert_eq!(events.next().unwrap().name, "live");
        let missed = [events.until("change", &mut copy), events.until("change", &mut copy)];
        assert_eq!(
            missed.map(|event| event.data["key"].clone()),
            ["t|ann|9998|bob", "t|ann|0001|bob"]
        );
        assert_eq!(copy.entries.len(), 1200);
        drop(events);
        // By the query as well, and what cannot be gone on from is read again.
        let mut events =
            Events::begin(&server, &format!("prefix=t%7Cann%7C&from={}", copy.last_id), &[]);
        assert_eq!(events.next().unwrap().name, "live");
        run(&server, &["FLUSHALL"]);
        set(&server, "s|ann|bob", "1");
        set(&server, "p|bob|0500", "after");
        let event = events.until("resync", &mut copy);
        assert_eq!(event.id.as_deref(), Some(""));
        loop {
            events.until("live", &mut copy);
            if copy.entries.len() == 1 {
                break;
            }
            // The posts may come after the snapshot that was read.
            while copy.entries.is_empty()
                && events.next().inspect(|event| copy.apply(event)).is_some()
            {}
            if copy.entries.len() == 1 && !copy.last_id.is_empty() {
                break;
            }
        }
        assert_eq!(copy.entries.values().next(), Some(&json!("after")));
        drop(events);
        let mut events = Events::begin(&server, "prefix=t%7Cann%7C&from=0123456789abcdef-7", &[]);
        let mut copy = Copy::default();
        events.until("resync", &mut copy);
        events.until("live", &mut copy);
        assert_eq!(copy.entries.len(), 1);
        assert_eq!(get(&server, "/v1/watch?prefix=a&from=%0a").problem(400), "BAD_REQUEST");
    }
}

#[test]
fn who_watches_hears_that_the_connection_is_alive() {
    let server = Server::with_config(
        "[listen]\nhttp-port = 0\nshards = 1\n[http]\nhttp-heartbeat-milliseconds = 20\nhttp-watches-max = 1\n",
    );
    let mut events = Events::begin(&server, "prefix=a", &[]);
    assert_eq!(events.next().unwrap().name, "live");
    for _ in 0..3 {
        assert_eq!(events.line().unwrap(), ":");
        assert_eq!(events.line().unwrap(), "");
    }
    let refused = get(&server, "/v1/watch?prefix=a");
    assert_eq!(refused.problem(503), "WATCHES");
    assert!(refused.header("retry-after").is_some());
    drop(events);
    // Its place is free when the server has noticed.
    while get(&server, "/v1/watch?first=b&last=a").problem_or_busy() == "WATCHES" {}
}

impl Answer {
    fn problem_or_busy(&self) -> String {
        self.json()["code"].as_str().unwrap().to_owned()
    }
}

#[test]
fn who_does_not_read_is_cut_and_costs_a_buffer() {
    for shards in [1, 3] {
        let server = Server::with_config(&format!(
            "[listen]\nhttp-port = 0\nshards = {shards}\n[http]\nhttp-milliseconds-max = 300\n[clients]\nwatch-output-bytes-max = 100000\n"
        ));
        let mut slow = Events::begin(&server, "prefix=p%7C", &[]);
        let mut quick = Events::begin(&server, "prefix=p%7C", &[]);
        let mut copy = Copy::default();
        quick.until("live", &mut copy);
        let reads = std::thread::spawn(move || {
            while !copy.entries.contains_key("\"p|end\"") {
                let event = quick.next().expect("who reads is served to the end");
                copy.apply(&event);
            }
        });
        let before = server.memory_bytes("VmRSS:");
        let mut client = server.client(3);
        let value = "x".repeat(10_000);
        // As long as it takes until what the system holds for the slow one is full, and it is ended.
        let watching = |client: &mut redis::Connection| {
            let list: String = redis::cmd("CLIENT").arg("LIST").query(client).unwrap();
            list.matches(" name=http ").count()
        };
        let mut number = 0;
        while watching(&mut client) > 1 {
            for _ in 0..100 {
                number += 1;
                let value = format!("{number} {value}");
                let () = redis::cmd("SET").arg("p|key").arg(value).query(&mut client).unwrap();
            }
        }
        let () = redis::cmd("SET").arg("p|end").arg("").query(&mut client).unwrap();
        reads.join().unwrap();
        // The slow one is ended: what was on its way comes, and then the end.
        let mut told = 0;
        while let Some(event) = slow.next() {
            told += event.data.to_string().len();
        }
        assert!(told < 25_000_000 && number > 100, "{told} {number}");
        let after = server.memory_bytes("VmRSS:");
        assert!(after < before + (20 << 20), "{before} {after}");
    }
}

fn basic(user: &str, password: &str) -> String {
    use std::fmt::Write;
    // Base64 by hand: three bytes give four letters.
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes = format!("{user}:{password}").into_bytes();
    let mut out = String::from("Authorization: Basic ");
    for three in bytes.chunks(3) {
        let number = three.iter().fold(0_u32, |all, &byte| all << 8 | u32::from(byte))
            << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = char::from(LETTERS[(number >> (18 - 6 * at) & 63) as usize]);
            let _ = write!(out, "{}", if at <= three.len() { letter } else { '=' });
        }
    }
    out
}

#[test]
fn rights_are_those_of_the_user() {
    for server in servers(&["--requirepass", "master"]) {
        let url = format!("redis://:master@127.0.0.1:{}/?protocol=resp3", server.port);
        let mut admin = redis::Client::open(url).unwrap().get_connection().unwrap();
        let mut run = |words: &[&str]| {
            let _: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query(&mut admin).unwrap();
        };
        run(&[
            "ACL",
            "SETUSER",
            "ann",
            "on",
            ">secret",
            "~cart|*",
            "%R~t|<user>|*",
            "+@read",
            "+@write",
            "+@connection",
        ]);
        run(&["SET", "t|ann|1", "mine"]);
        run(&["SET", "t|bob|1", "his"]);
        let ann = basic("ann", "secret");
        let as_ann = |line: &str, body: &[u8]| ask(&server, line, &[&ann], body);
        for target in [
            "/v1/keys/t%7Cann%7C1",
            "/v1/range?prefix=a",
            "/v1/watch?prefix=a",
            "/v1/info",
            "/v1/log",
        ] {
            let answer = get(&server, target);
            assert_eq!(answer.problem(401), "NOAUTH", "{target}");
            assert!(answer.header("www-authenticate").unwrap().starts_with("Basic "));
        }
        let answer = ask(&server, "GET /v1/user", &["Headwater-Request: 1"], b"");
        assert!(answer.header("www-authenticate").unwrap().starts_with("X-Basic "));
        for wrong in ["ann:wrong", "nobody:secret"] {
            let (user, password) = wrong.split_once(':').unwrap();
            let answer = ask(&server, "GET /v1/user", &[&basic(user, password)], b"");
            assert_eq!(answer.problem(401), "WRONGPASS");
        }
        for nonsense in ["Bearer master", "Basic !", "Basic YW5u", "Basic", "Digest x"] {
            let header = format!("Authorization: {nonsense}");
            assert_eq!(ask(&server, "GET /v1/user", &[&header], b"").problem(401), "NOAUTH");
        }
        assert_eq!(ask(&server, "GET /v1/user", &[&ann, &ann], b"").problem(401), "NOAUTH");
        assert_eq!(
            ask(&server, "GET /v1/user", &[&basic("", "master")], b"").json()["user"],
            "default"
        );
        assert_eq!(as_ann("GET /v1/user", b"").problem(403), "NOPERM");
        assert_eq!(as_ann("GET /v1/keys/t%7Cann%7C1", b"").body, b"mine");
        assert_eq!(as_ann("GET /v1/keys/t%7Cbob%7C1", b"").problem(403), "NOPERM");
        assert_eq!(as_ann("PUT /v1/keys/t%7Cann%7C1", b"x").problem(403), "NOPERM");
        assert_eq!(as_ann("PUT /v1/keys/cart%7C1", b"x").status, 204);
        assert_eq!(as_ann("GET /v1/range?prefix=t%7C", b"").problem(403), "NOPERM");
        assert_eq!(as_ann("GET /v1/range?prefix=t%7Cann%7C", b"").status, 200);
        assert_eq!(as_ann("GET /v1/watch?prefix=t%7C", b"").problem(403), "NOPERM");
        assert_eq!(as_ann("GET /v1/info", b"").problem(403), "NOPERM");
        assert_eq!(as_ann("GET /v1/log", b"").problem(403), "NOPERM");
        assert_eq!(as_ann("GET /v1/explain?key=t%7Cbob%7C1", b"").problem(403), "NOPERM");
        let join = ["Content-Type: application/json", &ann];
        let body = b"{\"name\":\"x\",\"spec\":\"x|<a> = copy t|<a>\"}";
        assert_eq!(ask(&server, "POST /v1/joins", &join, body).problem(403), "NOPERM");
        assert_eq!(as_ann("DELETE /v1/joins/x", b"").problem(404), "ERR");
        // A watch ends with the right to it, before anything more is told.
        let mut events = Events::begin(&server, "prefix=t%7Cann%7C", &[&ann]);
        let mut copy = Copy::default();
        events.until("live", &mut copy);
        run(&["SET", "t|ann|2", "told"]);
        events.until("change", &mut copy);
        run(&["ACL", "SETUSER", "ann", "resetkeys"]);
        run(&["SET", "t|ann|3", "untold"]);
        let event = events.next().unwrap();
        assert_eq!((event.name.as_str(), event.id.as_deref()), ("end", Some("")));
        assert_eq!(events.next(), None);
        assert_eq!(as_ann("GET /v1/keys/t%7Cann%7C1", b"").problem(403), "NOPERM");
        run(&["ACL", "DELUSER", "ann"]);
        assert_eq!(as_ann("GET /v1/keys/cart%7C1", b"").problem(401), "WRONGPASS");
    }
}

#[test]
fn pages_of_other_origins_are_refused_unless_they_are_named() {
    let server = Server::with_config(
        "[listen]\nhttp-port = 0\nshards = 1\n[http]\nhttp-origins = [\"https://app.example\"]\n",
    );
    let own = format!("Origin: http://{}", address(&server));
    assert_eq!(ask(&server, "PUT /v1/keys/a", &[&own], b"x").status, 204);
    for bad in [
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "https://app.example.evil",
        "http://app.example",
    ] {
        let origin = format!("Origin: {bad}");
        for line in [
            "GET /v1/keys/a",
            "PUT /v1/keys/a",
            "DELETE /v1/keys/a",
            "GET /v1/watch?prefix=a",
            "POST /v1/joins",
        ] {
            let answer = ask(&server, line, &[&origin], b"evil");
            assert_eq!(answer.problem(403), "ORIGIN", "{bad} {line}");
            assert_eq!(answer.header("access-control-allow-origin"), None);
        }
        let asks = [&*origin, "Access-Control-Request-Method: PUT"];
        assert_eq!(ask(&server, "OPTIONS /v1/keys/a", &asks, b"").problem(403), "ORIGIN");
    }
    let cross = ["Sec-Fetch-Site: cross-site"];
    assert_eq!(ask(&server, "DELETE /v1/keys/a", &cross, b"").problem(403), "ORIGIN");
    let good = "Origin: https://app.example";
    let answer = ask(&server, "GET /v1/keys/a", &[good], b"");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"x"[..]));
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    assert!(answer.header("vary").unwrap().contains("origin"));
    let asks = [
        good,
        "Access-Control-Request-Method: PUT",
        "Access-Control-Request-Headers: authorization",
    ];
    let answer = ask(&server, "OPTIONS /v1/keys/a", &asks, b"");
    assert_eq!(answer.status, 204);
    assert!(answer.header("access-control-allow-methods").unwrap().contains("PUT"));
    assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));
    // A name that leads here from elsewhere.
    let mut socket = crate::support::Socket::new(TcpStream::connect(address(&server)).unwrap());
    socket.send(b"DELETE /v1/keys/a HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(socket.rest().starts_with(b"HTTP/1.1 421 "));
    assert_eq!(get(&server, "/v1/keys/a").status, 200);
}

#[test]
fn joins_are_explained_verified_listed_and_changed() {
    for server in servers(&[]) {
        let json = "Content-Type: application/json";
        let spec = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
        let body = json!({ "name": "tl", "spec": spec }).to_string();
        let answer = ask(&server, "POST /v1/joins", &[json], body.as_bytes());
        assert_eq!(answer.json()["spec"], spec);
        set(&server, "s|ann|bob", "1");
        set(&server, "p|bob|0100", "Hi");
        assert_eq!(
            get(&server, "/v1/range?prefix=t%7Cann%7C&values").json()["values"],
            json!(["Hi"])
        );
        let explained = get(&server, "/v1/explain?key=t%7Cann%7C0100%7Cbob").json().to_string();
        assert!(explained.contains("check s|<user>|<poster>"), "{explained}");
        assert_eq!(get(&server, "/v1/verify?prefix=t%7C").json(), json!({ "differences": [] }));
        let joins = get(&server, "/v1/joins").json();
        assert_eq!((&joins[0]["name"], &joins[0]["spec"]), (&json!("tl"), &json!(spec)));
        assert!(joins[0]["fills"].as_u64().unwrap() >= 1, "{joins}");
        assert_eq!(joins[0]["outputs"], 1, "{joins}");
        let shards = get(&server, "/v1/shards").json();
        let clients = shards.as_array().unwrap().iter().map(|it| it["clients"].as_u64().unwrap());
        assert!(
            clients.sum::<u64>() >= 1 && shards[0]["partitions"].as_u64() > Some(0),
            "{shards}"
        );
        let tables = get(&server, "/v1/tables").json();
        assert!(tables.as_array().unwrap().iter().any(|table| table["name"] == "p"), "{tables}");
        assert_eq!(get(&server, "/v1/sources").json(), json!([]));
        run(&server, &["FLOW.ADD", "news", "ON", "n|<id>", "PUBLISH", "channel"]);
        assert_eq!(get(&server, "/v1/flows").json()[0]["name"], "news");
        let info = get(&server, "/v1/info").json();
        assert!(info["server"]["headwater_version"].is_string(), "{info}");
        assert_eq!(info["flows"]["flow_news"]["backlog"], "0");
        assert!(get(&server, "/v1/info?section=memory").json().get("server").is_none());
        assert_eq!(get(&server, "/v1/user").json(), json!({ "user": "default" }));
        assert_eq!(ask(&server, "DELETE /v1/joins/tl", &[], b"").status, 204);
        assert_eq!(ask(&server, "DELETE /v1/joins/tl", &[], b"").status, 404);
        let described = get(&server, "/v1/openapi.json").json();
        let routes = include_str!("../../../server/src/http/api.rs").split(".route(\"/v1/").skip(1);
        let routes: Vec<&str> = routes.filter_map(|it| it.split('"').next()).collect();
        assert!(routes.len() > 15, "{routes:?}");
        for path in routes {
            // The empty key, what answers that there is nothing, and the description itself are not described.
            let path = path.replace("{*key}", "{key}");
            if !path.ends_with('/') && path != "{*rest}" && path != "openapi.json" {
                assert!(described["paths"][format!("/v1/{path}")].is_object(), "{path}");
            }
        }
    }
}

fn try_join(server: &Server, spec: &str, lines: &[&str]) -> Answer {
    let body = json!({ "spec": spec }).to_string();
    let lines = [&["Content-Type: application/json"], lines].concat();
    ask(server, "POST /v1/joins/try", &lines, body.as_bytes())
}

#[test]
fn a_join_is_tried_before_it_is_installed() {
    for server in servers(&[]) {
        for (user, poster) in [("ann", "bob"), ("ann", "eve"), ("bob", "eve")] {
            set(&server, &format!("s|{user}|{poster}"), "1");
        }
        for number in 0..20 {
            set(&server, &format!("p|bob|{number:02}"), &format!("post {number}"));
            set(&server, &format!("vote|ann|1|u{number}"), &number.to_string());
        }
        set(&server, "p|eve|07", "Eve's");
        // What a trial tells is what the join then gives.
        for (spec, prefix) in [
            ("t|<u>|<time>|<p> = check s|<u>|<p> copy p|<p>|<time>", "t"),
            ("karma|<a> = count vote|<a>|<id>|<voter>", "karma"),
            ("sum|<a> = sum vote|<a>|<id>|<voter>", "sum"),
            ("top|<v:number:desc>|<voter> = index vote|<a>|<id>|<voter> as <v>", "top"),
            ("pulled|<u>|<p> = pull copy s|<u>|<p>", "pulled"),
        ] {
            let told = try_join(&server, spec, &[]).json();
            assert_eq!(told["complete"], true, "{spec}: {told}");
            assert_eq!(get(&server, "/v1/joins").json(), json!([]), "nothing is installed");
            run(&server, &["JOIN.ADD", "tried", spec]);
            let given = get(&server, &format!("/v1/range?prefix={prefix}%7C&limit=10")).json();
            assert_eq!(told["entries"], given["entries"], "{spec}");
            assert!(!told["entries"].as_array().unwrap().is_empty(), "{spec}");
            run(&server, &["JOIN.DROP", "tried"]);
        }
        let answer = try_join(&server, "t|<u>|<time> = chek s|<u>|<p> copy p|<p>|<time>", &[]);
        assert_eq!((answer.problem(400).as_str(), &answer.json()["at"]), ("JOIN", &json!(15)));
        // Installing it is refused in the same place, and the text is not repeated.
        for spec in
            ["t|<u>|<time> = chek s|<u>|<p> copy p|<p>|<time>", "t|<u>|<time>\n = chek s|<u>|<p>"]
        {
            let body = json!({ "name": "wrong", "spec": spec }).to_string();
            let answer = ask(
                &server,
                "POST /v1/joins",
                &["Content-Type: application/json"],
                body.as_bytes(),
            );
            let at = spec.find("chek").unwrap();
            assert_eq!((answer.problem(400).as_str(), &answer.json()["at"]), ("ERR", &json!(at)));
            let detail = answer.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains("`chek`") && !detail.contains('^'), "{detail}");
            assert!(!detail.contains("<u>"), "{detail}");
        }
        // It must get along with the others, and may read what they give.
        run(&server, &["JOIN.ADD", "karma", "karma|<a> = count vote|<a>|<id>|<voter>"]);
        let told = try_join(&server, "board|<k>|<a> = copy karma|<a> as <k>", &[]);
        assert!(told.status == 200 || told.status == 400, "{}", told.json());
        let told = try_join(&server, "best|<a> = copy karma|<a>", &[]).json();
        assert_eq!(told["entries"], json!([{ "key": "best|ann", "value": "20" }]));
        let answer = try_join(&server, "vote|<a>|x|<b> = copy karma|<a> check s|<a>|<b>", &[]);
        assert_eq!(answer.problem(400), "JOIN");
        assert!(answer.json()["detail"].as_str().unwrap().contains("own output"));
        for (body, what) in [("{\"spec\":\"\",\"limit\":0}", "limit"), ("{\"limit\":1}", "spec")] {
            let answer = ask(
                &server,
                "POST /v1/joins/try",
                &["Content-Type: application/json"],
                body.as_bytes(),
            );
            assert_eq!(answer.problem(400), "BAD_REQUEST");
            assert!(answer.json()["detail"].as_str().unwrap().contains(what));
        }
        // Of very many keys a part is looked at, and that is told.
        let mut client = server.client(3);
        for first in 0..6 {
            let pairs: Vec<(String, u32)> =
                (0..1000).map(|at| (format!("m|a|{first}{at:03}"), 1)).collect();
            let () = redis::cmd("MSET").arg(&pairs).query(&mut client).unwrap();
        }
        let told = try_join(&server, "n|<a> = count m|<a>|<b>", &[]).json();
        assert_eq!(
            (&told["complete"], &told["looked_at"]),
            (&json!(false), &json!(5000)),
            "{told}"
        );
        // Who may not read the sources is told nothing of them.
        run(&server, &["ACL", "SETUSER", "ann", "on", ">secret", "~p|*", "+@read", "+@connection"]);
        let ann = basic("ann", "secret");
        assert_eq!(try_join(&server, "x|<a>|<b> = copy s|<a>|<b>", &[&ann]).problem(403), "NOPERM");
        assert_eq!(try_join(&server, "x|<a>|<b> = copy p|<a>|<b>", &[&ann]).status, 200);
    }
}

#[test]
fn the_page_and_the_log_are_served() {
    let mut command = crate::support::program();
    command.args(["serve", "--port", "0", "--http-port", "0", "--shards", "1"]);
    command.env("HEADWATER_LOG_LEVEL", "info").stderr(std::process::Stdio::null());
    let server = Server::spawn(command);
    let page = get(&server, "/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && policy.contains("script-src 'self'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    let text = String::from_utf8(page.body).unwrap();
    for part in text.split(['"']).filter(|part| part.starts_with("/page/")) {
        let file = get(&server, part);
        assert_eq!(
            (file.status, file.header("x-content-type-options")),
            (200, Some("nosniff")),
            "{part}"
        );
    }
    assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("<style"));
    let lines = get(&server, "/v1/log").json();
    assert!(lines["lines"].to_string().contains("clients are accepted"), "{lines}");
    assert_eq!(get(&server, "/v1/log?lines=1").json()["lines"].as_array().unwrap().len(), 1);
    assert_eq!(get(&server, "/page/nothing.js").status, 404);
    assert_eq!(ask(&server, "POST /", &[], b"").status, 405);
}
