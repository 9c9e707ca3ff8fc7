//! Programs of several versions in one cluster: nodes beside what others, later or earlier ones, would have said and written.

use crate::cluster::{ALL, Cluster, NODES, Node, ask, read, servers, text};
use crate::cluster_commands::{all_heard, node_of, operate, status};
use crate::cluster_refusals::refused;
use crate::nats_servers::{Servers, free_ports};
use crate::support::{PATIENCE, program};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const BUCKET: &str = "HW_headwater_owners";

/// A client of NATS that knows no more than these tests need.
pub(crate) struct Nats(BufReader<TcpStream>);

impl Nats {
    pub(crate) fn connect(servers: &Servers) -> Self {
        let urls = servers.urls(&ALL);
        let address = urls.split(',').next().unwrap().strip_prefix("nats://").unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut it = Self(BufReader::new(stream));
        it.line("INFO");
        it.say(b"CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB answers 1\r\n");
        it
    }

    fn say(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The next line that begins with this word.
    fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "no {word}");
            if line.starts_with(word) {
                return line.trim_end().to_owned();
            }
            if line.starts_with("PING") {
                self.say(b"PONG\r\n");
            }
        }
    }

    pub(crate) fn publish(&mut self, subject: &str, bytes: &[u8]) {
        let head = format!("PUB {subject} {}\r\n", bytes.len());
        self.say(&[head.as_bytes(), bytes, b"\r\nPING\r\n"].concat());
        self.line("PONG");
    }

    /// The value of a key of the bucket; `None`: there is no such key.
    fn key(&mut self, key: &str) -> Option<String> {
        let subject = format!("$JS.API.DIRECT.GET.KV_{BUCKET}.$KV.{BUCKET}.{key}");
        let (head, value) = self.ask(&subject);
        (!head.contains("404")).then(|| String::from_utf8(value).unwrap())
    }

    /// The newest message of a stream for a subject, with its number.
    pub(crate) fn last(&mut self, stream: &str, subject: &str) -> (u64, Vec<u8>) {
        let (head, value) = self.ask(&format!("$JS.API.DIRECT.GET.{stream}.{subject}"));
        let found = head.lines().find_map(|line| line.strip_prefix("Nats-Sequence: "));
        (found.unwrap_or_else(|| panic!("{head}")).parse().unwrap(), value)
    }

    /// The format of the last record of the first shard's log, and whether its payload is compressed.
    fn last_record(&mut self) -> (u8, bool) {
        let (_, record) = self.last("HW_headwater_0", "HW.headwater.0");
        assert_eq!((&record[..4], record[5]), (&b"HWLR"[..], 0));
        (record[4], record[7] == 1)
    }

    /// What is answered: its head, and what is behind that.
    fn ask(&mut self, subject: &str) -> (String, Vec<u8>) {
        self.say(format!("PUB {subject} answers 0\r\n\r\n").as_bytes());
        let line = self.line("HMSG answers");
        let mut numbers = line.rsplit(' ').map(|number| number.parse::<usize>().unwrap());
        let (all, head) = (numbers.next().unwrap(), numbers.next().unwrap());
        let mut bytes = vec![0; all];
        self.0.read_exact(&mut bytes).unwrap();
        let value = bytes.split_off(head);
        (String::from_utf8(bytes).unwrap(), value)
    }

    fn set_key(&mut self, key: &str, value: &str) {
        self.publish(&format!("$KV.{BUCKET}.{key}"), value.as_bytes());
    }
}

/// The warning of different programs.
fn warned(status: &Value) -> Option<&str> {
    let warnings = status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    warnings.into_iter().find(|warning| warning.contains("different programs"))
}

#[test]
fn programs_are_shown_where_they_differ_and_one_that_shares_no_format_is_refused() {
    let Some(mut cluster) = Cluster::start() else { return };
    let formats = json!("records 1-2, links 4, snapshots 1");
    let found = status(&cluster, "all is well", |status, is_well| is_well && all_heard(status));
    for at in 0..NODES {
        let node = node_of(&found, at);
        assert_eq!((&node["program"], &node["formats"]), (&json!(VERSION), &formats), "{found:#}");
    }
    assert_eq!(warned(&found), None);

    // As if a node that stands by were of a later version, which tells more than this one knows.
    let owner = cluster.owner();
    let (newer, third) = ((owner + 1) % NODES, (owner + 2) % NODES);
    let key = format!("formats.node{newer}");
    let mut nats = Nats::connect(&cluster.nats);
    let told = nats.key(&key).expect("it has announced what it reads");
    let later = told.replace(VERSION, "99.0.0").replace("records 1 2", "records 1 3");
    nats.set_key(&key, &format!("{later}orbits 7 8\n"));
    let found = status(&cluster, "it differs", |status, _| warned(status).is_some());
    let mut others = [owner, third];
    others.sort_unstable();
    let [one, other] = others;
    let expected = format!(
        "nodes run different programs ({VERSION} with records 1-2, links 4, snapshots 1 at node{one}, node{other}; 99.0.0 with records 1-3, links 4, snapshots 1 at node{newer}): upgrade the others, and the newest formats are not written before all nodes read them"
    );
    assert!(warned(&found).unwrap().starts_with(&expected), "{found:#}");
    let told = operate(&cluster, "status");
    assert!(told.is_well && told.out.contains(&format!("warning: {expected}")), "{}", told.out);
    ask(&mut cluster.client(third), "SET k|a 1").unwrap();

    // It reads nothing any more that this program reads: who is there goes on, and who comes is refused.
    nats.set_key(&key, &later.replace("records 1 3", "records 3 4"));
    let folder = tempfile::tempdir().unwrap();
    let urls = cluster.nats.urls(&ALL);
    let refused = refused(&cluster.nats, &urls, "late", &[], folder.path());
    let why = format!(
        "this program reads formats 1 to 2 of the cluster's records, and node 'node{newer}' (99.0.0) reads formats 3 to 4: upgrade by way of a version that reads both"
    );
    assert!(refused.contains(&why) && refused.contains("event=\"stopped\""), "{refused}");
    ask(&mut cluster.client(third), "SET k|a 2").unwrap();

    // What a node has announced is forgotten with it.
    cluster.end(newer, Signal::TERM);
    let removed = operate(&cluster, &format!("remove node{newer}"));
    assert!(removed.is_well, "{}", removed.out);
    assert_eq!(nats.key(&key), None);
    // A node that was removed and begins again announces its formats anew.
    cluster.begin(newer);
    let found = status(&cluster, "it has announced", |status, _| {
        let node = node_of(status, newer);
        node["program"] == *VERSION && node["heard"] == true
    });
    assert_eq!(node_of(&found, newer)["formats"], formats);
}

/// As while a cluster is upgraded: one node has yet to be.
#[test]
fn a_node_that_reads_older_formats_works_beside_others_that_read_them_as_well() {
    let Some(mut cluster) = Cluster::start() else { return };
    status(&cluster, "all is well", |status, is_well| is_well && all_heard(status));
    let owner = cluster.owner();
    let (older, third) = ((owner + 1) % NODES, (owner + 2) % NODES);
    let key = format!("formats.node{older}");
    let mut nats = Nats::connect(&cluster.nats);
    let told = nats.key(&key).expect("it has announced what it reads");
    let earlier = told.replace(VERSION, "0.0.1").replace("links 4 4", "links 3 4");
    nats.set_key(&key, &earlier.replace("records 1 2", "records 1 1"));
    let found = status(&cluster, "it differs", |status, _| warned(status).is_some());
    let expected = format!("0.0.1 with records 1, links 3-4, snapshots 1 at node{older}");
    assert!(warned(&found).unwrap().contains(&expected), "{found:#}");
    let long = "time-of-water-".repeat(200);
    // An owner that has written the newer format before it heard of this goes on with it.
    ask(&mut cluster.client(owner), &format!("SET k|long {long}")).unwrap();
    let (format, _) = nats.last_record();
    for at in 0..NODES {
        ask(&mut cluster.client(at), &format!("SET k|{at} {at}")).unwrap();
        ask(&mut cluster.client(at), &format!("SET k|long {long}")).unwrap();
        assert_eq!(nats.last_record(), (format, format == 2));
    }
    // A node that begins meanwhile has it for one of its own.
    cluster.end(third, Signal::TERM);
    cluster.begin(third);
    let found = status(&cluster, "it is back", |status, _| {
        all_heard(status) && node_of(status, third)["program"] == *VERSION
    });
    assert!(warned(&found).unwrap().contains(&expected), "{found:#}");
    // Whichever of them is the next owner has all, and takes more.
    cluster.end(owner, Signal::KILL);
    cluster.owner_after(owner);
    for at in [older, third] {
        for key in 0..NODES {
            let client = &mut cluster.client(at);
            assert_eq!(text(&read(&cluster, at, client, &format!("GET k|{key}"))), key.to_string());
        }
        assert_eq!(text(&read(&cluster, at, &mut cluster.client(at), "GET k|long")), long);
        ask(&mut cluster.client(at), &format!("SET n|{at} 7")).unwrap();
    }
    // When all are upgraded, and those that are gone are removed, the newer format is written.
    nats.set_key(&key, &told);
    cluster.begin(owner);
    let began = Instant::now();
    while nats.last_record() != (2, true) {
        assert!(began.elapsed() < PATIENCE, "{:?}", nats.last_record());
        ask(&mut cluster.client(third), &format!("SET k|long {long}")).unwrap();
        sleep(Duration::from_millis(50));
    }
}

/// Waits until a log has a text; the line.
pub(crate) fn until_logged(log: &Path, what: &str) -> String {
    let began = Instant::now();
    loop {
        let logged = fs::read_to_string(log).unwrap_or_default();
        if let Some(line) = logged.lines().find(|line| line.contains(what)) {
            return line.to_owned();
        }
        assert!(began.elapsed() < PATIENCE, "no {what}: {logged}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_record_of_a_newer_format_stops_whoever_reads_it_with_a_sentence() {
    let Some(mut cluster) = Cluster::start() else { return };
    let owner = cluster.owner();
    let reader = (owner + 1) % NODES;
    ask(&mut cluster.client(owner), "SET k|a 1").unwrap();
    assert_eq!(text(&read(&cluster, reader, &mut cluster.client(reader), "GET k|a")), "1");
    cluster.end(reader, Signal::TERM);
    // As an owner of a later version has it: nothing but magic and format is where this one looks for it.
    let mut nats = Nats::connect(&cluster.nats);
    nats.publish("HW.headwater.0", b"HWLR\x03\x00and all else as it likes");
    let log = cluster.folder.path().join("stopped.log");
    let mut sentences = Vec::new();
    for _ in 0..2 {
        // A file that a process has written to is not another one's.
        let _there = fs::remove_file(&log);
        let mut command = cluster.command(reader);
        command.arg("--log-file").arg(&log);
        let mut node = Node::start(command);
        let line = until_logged(&log, "event=\"stopped\"");
        assert_eq!(node.child.wait().unwrap().code(), Some(1));
        let (_, sentence) = line.split_once("message ").unwrap_or_else(|| panic!("{line}"));
        sentences.push(sentence.split('"').next().unwrap().to_owned());
    }
    let sentence = &sentences[0];
    assert!(sentence.contains("of stream HW_headwater_0 cannot be read: it has format 3, and this version of Headwater reads formats 1 to 2"), "{sentence}");
    assert_eq!(sentences[0], sentences[1], "however often it is started");
    let folder = cluster.folder.path().join(format!("node{reader}"));
    assert!(folder.join("headwater-data").exists() && !folder.join("discarded").exists());
}

/// The greeting of shard 0 to shard 1, whose program reads these formats of messages.
fn greeting(oldest: u16, newest: Option<u16>) -> Vec<u8> {
    let mut bytes = b"HWLK".to_vec();
    bytes.extend(oldest.to_le_bytes());
    bytes.extend(9_u32.to_le_bytes());
    bytes.extend(b"headwater");
    bytes.extend([&0_u16.to_le_bytes()[..], &1_u64.to_le_bytes(), &1_u16.to_le_bytes()].concat());
    bytes.extend([7; 32]);
    bytes.extend(newest.map(u16::to_le_bytes).into_iter().flatten());
    bytes
}

/// What the owner of shard 1 answers, and whether it waits for more.
fn greeted(address: (&str, u16), greeting: &[u8]) -> (Vec<u8>, bool) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&(greeting.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(greeting).unwrap();
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut answer = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut answer).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    (answer, stream.read(&mut len).is_err())
}

#[test]
fn an_owner_takes_programs_that_share_a_format_of_messages_and_says_why_it_takes_no_other() {
    let Some((nats, _turn)) = servers("always") else { return };
    let [port] = free_ports(1)[..] else { panic!("one port") };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("node.log");
    let mut command = program();
    command.args(["serve", "--shards", "2", "--cluster-shard", "1", "--node", "n1"]);
    command.args(["--port", &port.to_string(), "--advertise", &format!("127.0.0.1:{port}")]);
    command.args(["--cluster", &nats.urls(&ALL)]).arg("--data").arg(folder.path().join("n1"));
    for url in nats.monitoring() {
        command.args(["--nats-monitoring", &url]);
    }
    command.args(["--log-level", "info"]).arg("--log-file").arg(&log);
    let mut node = Node::start(command);
    until_logged(&log, "event=\"linked\"");
    let links = ("127.0.0.1", port + 10_000);
    // One of the same version, and later ones that go on reading what it reads.
    for newest in [None, Some(5), Some(60_000)] {
        let (answer, waits) = greeted(links, &greeting(4, newest));
        assert_eq!((&answer[..6], answer.len()), (&b"HWLK\x04\x00"[..], 6 + 8 + 32 + 32));
        assert!(waits, "it waits for the proof: {newest:?}");
    }
    // Programs that share no format with this one are told which it reads, and the connection ends.
    for (formats, told) in
        [((5, Some(9)), "formats 5 to 9"), ((3, None), "format 3 alone"), ((6, None), "format 6")]
    {
        let (answer, waits) = greeted(links, &greeting(formats.0, formats.1));
        assert_eq!(&answer[..6], b"HWLK\x04\x00");
        assert!(!waits, "{formats:?}");
        let why = format!("its program reads {told}");
        let line = until_logged(&log, &why);
        assert!(line.contains("event=\"link_refused\""), "{line}");
        assert!(line.contains("messages between shards, and this one format 4 alone"), "{line}");
    }
    node.signal(Signal::TERM);
    node.child.wait().unwrap();
}
