//! The same requests to a real `redis-server` and to a node through the RESP codecs: answers
//! must be equal byte for byte, in RESP2 and in RESP3. Skipped, with a message, where no
//! `redis-server` is installed.
//!
//! `tests/node/redis/*.script` hold the requests, one a line as `redis-cli` would take it; `#` starts a
//! comment. Only what Redis and Headwater should answer alike belongs there.

use headwater_base::Millis;
use headwater_command::{Command, Reply, describe};
use headwater_node::{Node, Outcome, Settings};
use headwater_protocol::resp::{Encoder, Limits, Parsed, RequestParser, Version, decode, find};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A `redis-server` of our own that ends with the test.
struct Redis {
    process: Child,
    /// Holds its socket: a file cannot be taken by another test meanwhile, as a port can.
    folder: tempfile::TempDir,
}

impl Redis {
    /// `None` where it is not installed.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let process = std::process::Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "socket"])
            .args(["--save", "", "--appendonly", "no", "--databases", "1"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        Some(Self { process, folder })
    }

    fn connect(&self) -> BufReader<UnixStream> {
        for _ in 0..200 {
            if let Ok(stream) = UnixStream::connect(self.folder.path().join("socket")) {
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                return BufReader::new(stream);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("redis-server does not listen");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Reads one answer, with everything nested in it, as it is on the wire.
fn read_answer(stream: &mut BufReader<UnixStream>, answer: &mut Vec<u8>) {
    let start = answer.len();
    stream.read_until(b'\n', answer).expect("an answer in time");
    let line = String::from_utf8_lossy(&answer[start..]).trim_end().to_owned();
    let number: i64 = line.get(1..).and_then(|text| text.parse().ok()).unwrap_or(-1);
    match line.as_bytes().first() {
        Some(b'$' | b'=' | b'!') if number >= 0 => {
            let mut body = vec![0; number as usize + 2];
            stream.read_exact(&mut body).unwrap();
            answer.extend_from_slice(&body);
        }
        Some(b'*' | b'~' | b'>') => (0..number).for_each(|_| read_answer(stream, answer)),
        Some(b'%') => (0..2 * number).for_each(|_| read_answer(stream, answer)),
        _ => {}
    }
}

/// The node's answer to the request; `None` where it is the server's to give.
fn node_answer(node: &mut Node, request: &[u8], version: Version) -> Option<Vec<u8>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    node.advance(Millis(now.as_millis() as u64));
    let mut parser = RequestParser::new();
    let parsed = parser.parse(request, &Limits::for_values(64 << 20));
    assert_eq!(parsed, Parsed::Request { consumed: request.len() });
    let args = parser.args(request);
    let mut out = Vec::new();
    let mut reply = Encoder::new(&mut out, version);
    match find(args).and_then(|spec| decode(spec, args)) {
        Err(refusal) => refusal.write(&mut reply),
        Ok(Command::Data(data)) => assert_eq!(node.execute(&data, &mut reply), Outcome::Done),
        Ok(Command::Server(headwater_command::Server::CommandGetKeys { request })) => {
            describe::command_getkeys(request, false, &mut reply);
        }
        Ok(_) => reply.simple("the server's"),
    }
    (out != b"+the server's\r\n").then_some(out)
}

/// The request of one script line, as a client library would send it.
fn request_of(line: &str) -> Option<Vec<u8>> {
    let inline = format!("{line}\r\n").into_bytes();
    let mut parser = RequestParser::new();
    let parsed = parser.parse(&inline, &Limits::for_values(1 << 20));
    let Parsed::Request { .. } = parsed else { return None };
    let args = parser.args(&inline);
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter() {
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    Some(request)
}

#[expect(clippy::print_stderr, reason = "a skipped comparison must be seen")]
fn start_for(what: &str) -> Option<Redis> {
    let redis = Redis::start();
    if redis.is_none() {
        eprintln!("SKIPPED: redis-server is not installed; {what} was not compared with it");
    }
    redis
}

fn compare(script: &str, name: &str) {
    let Some(redis) = start_for(name) else { return };
    let mut differences = Vec::new();
    for version in [Version::Resp2, Version::Resp3] {
        let mut stream = redis.connect();
        if version == Version::Resp3 {
            stream.get_mut().write_all(b"HELLO 3\r\nFLUSHALL\r\n").unwrap();
            read_answer(&mut stream, &mut Vec::new());
            read_answer(&mut stream, &mut Vec::new());
        }
        let mut node = Node::new(Settings::default());
        let lines = script.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
        for (at, line) in lines {
            let Some(request) = request_of(line) else { continue };
            let Some(ours) = node_answer(&mut node, &request, version) else {
                panic!("{name}:{}: {line}: not a node's command", at + 1);
            };
            stream.get_mut().write_all(&request).unwrap();
            let mut theirs = Vec::new();
            read_answer(&mut stream, &mut theirs);
            if ours != theirs {
                let (ours, theirs) = (ours.escape_ascii(), theirs.escape_ascii());
                differences.push(format!(
                    "{name}:{} {version:?}: {line}\n  ours   {ours}\n  theirs {theirs}",
                    at + 1
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn strings_are_answered_as_redis_does() {
    compare(include_str!("redis/strings.script"), "strings.script");
}

#[test]
fn numbers_are_answered_as_redis_does() {
    compare(include_str!("redis/numbers.script"), "numbers.script");
}

#[test]
fn keys_are_answered_as_redis_does() {
    compare(include_str!("redis/keys.script"), "keys.script");
}

#[test]
fn bits_are_answered_as_redis_does() {
    compare(include_str!("redis/bits.script"), "bits.script");
}

#[test]
fn expiry_is_answered_as_redis_does() {
    compare(include_str!("redis/expiry.script"), "expiry.script");
}

#[test]
fn refusals_have_the_words_of_redis() {
    compare(include_str!("redis/refusals.script"), "refusals.script");
}

/// The end of what begins an answer at `at`, in lines: an array has as many as its elements have.
fn end_of(lines: &[&str], at: usize) -> usize {
    match lines[at].split_at(1) {
        ("*", count) => {
            (0..count.parse().expect("a count")).fold(at + 1, |at, _| end_of(lines, at))
        }
        ("$", _) => at + 2,
        _ => at + 1,
    }
}

/// What the descriptions of a command and of its subcommands say of arity, flags, first, last and step, tips and key specifications, by
/// name.
fn parts_of_description(answer: &[u8]) -> BTreeMap<String, Vec<String>> {
    let text = String::from_utf8_lossy(answer);
    let lines: Vec<&str> = text.split("\r\n").collect();
    let mut all = BTreeMap::new();
    note_parts(&lines, 1, &mut all);
    all
}

fn note_parts(lines: &[&str], start: usize, all: &mut BTreeMap<String, Vec<String>>) {
    let mut at = start + 1;
    let mut parts = Vec::new();
    for _ in 0..9 {
        let end = end_of(lines, at);
        parts.push(lines[at..end].join(" "));
        at = end;
    }
    let subcommands = lines[at][1..].parse().expect("the number of subcommands");
    at += 1;
    for _ in 0..subcommands {
        note_parts(lines, at, all);
        at = end_of(lines, at);
    }
    // Categories are ours. Redis has notes of what options do besides, which nobody here reads.
    parts.remove(6);
    parts[7..].iter_mut().filter(|keys| keys.contains(" notes ")).for_each(String::clear);
    all.insert(parts.remove(0), parts);
}

#[test]
fn commands_are_described_as_redis_does() {
    // Valkey has the first, from its version 9.0 on. Of scripts those are known alone that have one key, at a known place. Monitors
    // are refused within MULTI when they are queued, in Redis when they are executed. Channels of SPUBLISH are no keys here: any shard
    // serves each of them.
    let elsewhere = [
        "delifeq",
        "eval",
        "evalsha",
        "eval_ro",
        "evalsha_ro",
        "monitor",
        "ssubscribe",
        "sunsubscribe",
        "spublish",
    ];
    let Some(redis) = start_for("the command table") else { return };
    let mut differences = Vec::new();
    let mut stream = redis.connect();
    stream.get_mut().write_all(b"INFO server\r\n").unwrap();
    let mut version = Vec::new();
    read_answer(&mut stream, &mut version);
    // Later ones have further tips.
    let has_tips = String::from_utf8_lossy(&version).contains("redis_version:7.0.");
    for spec in headwater_command::table::SPECS {
        if spec.since.starts_with("0.") || elsewhere.contains(&spec.name) {
            continue;
        }
        let names: headwater_command::OwnedArgs = [spec.name.as_bytes()].into_iter().collect();
        let mut ours = Vec::new();
        describe::command_info(names.args(), &mut Encoder::new(&mut ours, Version::Resp2));
        stream.get_mut().write_all(format!("COMMAND INFO {}\r\n", spec.name).as_bytes()).unwrap();
        let mut theirs = Vec::new();
        read_answer(&mut stream, &mut theirs);
        let theirs = parts_of_description(&theirs);
        for (name, ours) in parts_of_description(&ours) {
            // What has no such subcommand is not compared; what has notes is compared without its keys. Some subcommands take more here, or
            // are taken while data is loaded.
            let Some(theirs) = theirs.get(&name) else { continue };
            let first = if name.contains('|') { 2 } else { 0 };
            let keys = usize::from(theirs.last().is_some_and(String::is_empty));
            let end = if has_tips { theirs.len() - keys } else { 5 };
            if ours[first..end] != theirs[first..end] {
                differences.push(format!("{name}\n  ours   {ours:?}\n  theirs {theirs:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
