//! The log: which events there are, that nothing of what clients store is in them, and that files can be rotated.

use crate::support::{PATIENCE, Server, request};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What must be in no log.
const SECRET: &str = "S3cretBytes";

/// A log file of a test.
struct Log {
    folder: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("headwater.log")
    }

    fn read(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap_or_default()
    }

    /// Starts a server that logs there.
    fn server(&self, arguments: &[&str]) -> Server {
        let path = self.path();
        let own = ["--log-file", path.to_str().unwrap(), "--log-level", "info"];
        // What the test says goes last, but for the level, which may be named once.
        let own = if arguments.contains(&"--log-level") { &own[..2] } else { &own[..] };
        Server::start(&[own, arguments].concat())
    }

    /// Waits for a line of this event.
    fn until(&self, event: &str) -> String {
        until(&self.path(), event)
    }
}

/// The lines of an event: its name is in text and in JSON in quotes.
fn lines(text: &str, event: &str) -> Vec<String> {
    let of = [format!("event=\"{event}\""), format!("\"event\":\"{event}\"")];
    let is = |line: &&str| of.iter().any(|name| line.contains(name));
    text.lines().filter(is).map(str::to_owned).collect()
}

fn until(path: &Path, event: &str) -> String {
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if let Some(line) = lines(&text, event).pop() {
            return line;
        }
        assert!(began.elapsed() < PATIENCE, "no {event} in\n{text}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A field of a line of text.
fn field<'l>(line: &'l str, name: &str) -> &'l str {
    let at = line.find(&format!(" {name}=")).unwrap_or_else(|| panic!("{name} is not in {line}"));
    let rest = &line[at + name.len() + 2..];
    rest.split([' ', '\n']).next().unwrap()
}

#[test]
fn each_event_is_told_once_and_no_secret_ever() {
    let log = Log::new();
    let data = log.folder.path().join("data");
    let config = format!(
        "[listen]\nrequirepass = \"{SECRET}\"\nmemcached-port = 0\nhttp-port = 0\nshards = 1\n\
         [clients]\nclients-max = 3\n[observe]\nslowlog-microseconds-min = 0\n\
         [[flow]]\nname = \"posts\"\non = \"q|<id>\"\npost = \"http://127.0.0.1:1/{SECRET}\"\n\
         max-attempts = 1\n"
    );
    let file = crate::support::TempFile::new(&config);
    let server =
        log.server(&["--config", file.path.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    let mut socket = server.socket();
    socket.send(&request(&[b"AUTH", format!("wrong{SECRET}").as_bytes()]));
    socket.until(b"\r\n");
    socket.send(&request(&[b"AUTH", SECRET.as_bytes()]));
    socket.expect(b"+OK\r\n");
    let mut client = move |words: &[&str]| {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        socket.send(&request(&words));
        socket.until(b"\r\n");
    };
    // A wrong word in every place where one may be quoted.
    client(&["SET", &format!("k|{SECRET}"), SECRET]);
    client(&["MSET", "a", SECRET, SECRET, "b"]);
    client(&[SECRET, SECRET]);
    client(&["JOIN.ADD", "x", SECRET]);
    client(&["CONFIG", "SET", "requirepass", &format!("new{SECRET}")]);
    client(&["CONFIG", "SET", "maxclients", "2"]);
    client(&["CONFIG", "SET", "nothing", SECRET]);
    client(&["SOURCE.ADD", "shop", "postgres", &format!("postgres://u:{SECRET}@127.0.0.1:1/x")]);
    client(&["SET", "q|1", SECRET]);
    // One too many, by the second connection of two.
    let mut memcached = server.memcached();
    memcached.send(format!("set x 0 0 {}\r\nuser {SECRET}x\r\n", SECRET.len() + 6).as_bytes());
    memcached.until(b"\r\n");
    let mut third = server.socket();
    assert!(third.rest().starts_with(b"-ERR max number"));
    memcached.send(format!("POST /{SECRET} HTTP/1.1\r\n").as_bytes());
    memcached.expect_end(b"");
    for event in ["dead_letter", "source_down", "http_refused", "client_refused"] {
        log.until(event);
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let text = log.read();
    for (event, count) in [
        ("started", 1),
        ("listening", 3),
        ("auth_failed", 2),
        ("client_refused", 1),
        ("http_refused", 1),
        ("source_added", 1),
        ("dead_letter", 1),
        ("settings_changed", 2),
        ("ending", 1),
        ("ended", 1),
    ] {
        assert_eq!(lines(&text, event).len(), count, "{event} in\n{text}");
    }
    let started = &lines(&text, "started")[0];
    for told in ["requirepass=(hidden)", "clients-max=3", "slowlog-microseconds-min=0"] {
        assert!(started.contains(told), "{told} is not in {started}");
    }
    assert!(!started.contains("idle-seconds-max"), "it is as always: {started}");
    let slow: Vec<String> = lines(&text, "slow_command");
    let mset = slow.iter().find(|line| line.contains("command=\"mset\"")).expect("a slow MSET");
    assert_eq!(field(mset, "keys"), "2");
    assert!(text.contains("reason=\"SIGTERM\""), "{text}");
    assert!(!text.contains(SECRET) && !text.contains("k|"), "{text}");
}

#[test]
fn hup_begins_a_new_file() {
    let log = Log::new();
    let server = log.server(&[]);
    log.until("started");
    let old = log.folder.path().join("old.log");
    for _ in 0..2 {
        std::fs::rename(log.path(), &old).unwrap();
        server.signal(Signal::HUP);
        log.until("log_reopened");
        assert!(lines(&std::fs::read_to_string(&old).unwrap(), "ending").is_empty());
    }
    let mut socket = server.socket();
    socket.send(b"PING\r\nSHUTDOWN\r\n");
    socket.expect_end(b"+PONG\r\n");
    assert_eq!(server.wait().code(), Some(0));
    let text = log.read();
    assert!(lines(&text, "shutdown_asked").len() == 1 && text.contains("reason=\"SHUTDOWN\""));
    assert_eq!(lines(&text, "ended").len(), 1, "{text}");
}

#[test]
fn hup_does_not_end_a_server_without_a_file() {
    let server = Server::start(&[]);
    server.signal(Signal::HUP);
    let mut socket = server.socket();
    socket.send(b"PING\r\n");
    socket.expect(b"+PONG\r\n");
}

/// However often a client does something, it makes few lines; what is left out is counted, to the last one.
#[test]
fn what_is_repeated_is_counted_instead() {
    const ATTEMPTS: u64 = 500;
    const MOST: u64 = 5;
    let log = Log::new();
    let config = format!(
        "[log]\nlog-repeats-max = {MOST}\n[listen]\nrequirepass = \"x\"\nshards = 1\n[doors]\nlogin-failures-max = 0\n"
    );
    let file = crate::support::TempFile::new(&config);
    let server = log.server(&["--config", file.path.to_str().unwrap()]);
    let mut socket = server.socket();
    for _ in 0..ATTEMPTS {
        socket.send(b"AUTH y\r\n");
        socket.until(b"\r\n");
    }
    server.signal(Signal::INT);
    assert_eq!(server.wait().code(), Some(0));
    let text = log.read();
    let told = lines(&text, "auth_failed").len() as u64;
    let left_out = lines(&text, "left_out");
    let left_out: Vec<_> =
        left_out.iter().filter(|line| line.contains("\"auth_failed\"")).collect();
    let count: u64 = left_out.iter().map(|line| field(line, "count").parse::<u64>().unwrap()).sum();
    assert_eq!(told + count, ATTEMPTS, "{text}");
    // A slow machine may need more than one minute.
    assert!(told <= MOST * (left_out.len() as u64 + 1) && !left_out.is_empty(), "{text}");
}

#[test]
fn levels_change_at_run_time_under_both_names() {
    let log = Log::new();
    let server = log.server(&["--log-level", "warn", "--log-format", "json"]);
    let mut socket = server.socket();
    let mut config = |text: &str, expected: &str| {
        socket.send(format!("CONFIG {text}\r\n").as_bytes());
        socket.expect(expected.as_bytes());
    };
    config("GET log-level", "*2\r\n$9\r\nlog-level\r\n$4\r\nwarn\r\n");
    config("GET loglevel", "*2\r\n$8\r\nloglevel\r\n$7\r\nwarning\r\n");
    config("SET timeout 100", "+OK\r\n");
    config("SET loglevel notice", "+OK\r\n");
    config("GET log-level", "*2\r\n$9\r\nlog-level\r\n$6\r\nnotice\r\n");
    config("SET timeout 200", "+OK\r\n");
    config("SET log-level info,server=error", "+OK\r\n");
    config("SET timeout 300", "+OK\r\n");
    config("SET loglevel verbose", "+OK\r\n");
    config("GET loglevel", "*2\r\n$8\r\nloglevel\r\n$7\r\nverbose\r\n");
    config("SET timeout 400", "+OK\r\n");
    socket.send(
        b"CONFIG SET loglevel loud\r\nCONFIG SET log-file /tmp/x\r\nCONFIG SET log-format text\r\n",
    );
    let refused = String::from_utf8(socket.until(b"\r\n")).unwrap();
    assert!(refused.contains("'loud' is no level; allowed: error, warn"), "{refused}");
    for _ in 0..2 {
        let refused = String::from_utf8(socket.until(b"\r\n")).unwrap();
        assert!(refused.contains("can't set immutable config"), "{refused}");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let text = log.read();
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object on a line")).collect();
    assert!(events.iter().all(|it| it["timestamp"].is_string() && it["target"].is_string()));
    let changed = events.iter().filter(|it| it["event"] == "settings_changed");
    let changed: Vec<&str> = changed.map(|it| it["changed"].as_str().unwrap()).collect();
    let timeouts = changed.iter().filter(|text| text.starts_with("idle-seconds-max"));
    let expected = ["idle-seconds-max=200", "idle-seconds-max=400"];
    assert_eq!(timeouts.copied().collect::<Vec<_>>(), expected, "{text}");
}

#[test]
fn memory_that_is_short_is_told_when_it_begins() {
    let log = Log::new();
    let server = log.server(&["--memory", "64mb", "--memory-policy", "allkeys-lru"]);
    let mut socket = server.socket();
    let value = vec![b'v'; 100_000];
    let mut set = |number: usize| {
        socket.send(&request(&[b"SET", format!("{number}").as_bytes(), &value]));
        socket.until(b"\r\n")
    };
    for number in 0..1000 {
        assert_eq!(set(number), b"+OK\r\n");
    }
    log.until("evictions_begin");
    let mut other = server.socket();
    other.send(b"CONFIG SET maxmemory-policy noeviction\r\n");
    other.expect(b"+OK\r\n");
    let refused = (0..2000).filter(|number| set(1000 + number).starts_with(b"-OOM")).count();
    assert!(refused > 10, "{refused}");
    log.until("no_room");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let text = log.read();
    for event in ["evictions_begin", "no_room"] {
        assert_eq!(lines(&text, event).len(), 1, "{event} in\n{text}");
    }
}

/// Nobody reads what the server writes to standard error, which is full: it goes on all the same.
#[test]
fn a_reader_that_sleeps_holds_nobody_up() {
    let mut command = crate::support::program();
    command.args(["serve", "--port", "0", "--shards", "1", "--log-level", "info"]);
    command.args(["--config", "/dev/stdin"]).stdin(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let config = "[log]\nlog-repeats-max = 1000000\n[listen]\nrequirepass = \"x\"\n";
    let server = Server::spawn_with_input(command, config);
    let mut socket = server.socket();
    // More lines than a pipe and the queue hold.
    for _ in 0..5000 {
        socket.send(b"AUTH y\r\n");
        socket.until(b"\r\n");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}
