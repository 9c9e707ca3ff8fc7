//! Mutated bytes of a server that is none, through connecting, querying and reading the log.
//!
//! What must hold for any bytes: no panic, an end, and memory in proportion to what was received. The address space of this process
//! is bounded, so that an allocation by a length that was only announced ends it. Each round depends on its
//! number alone: set `HEADWATER_FUZZ_FIRST` and `HEADWATER_FUZZ_ROUNDS` to run other or more rounds.

use headwater_postgres::output::{Message, message, relation_of};
use headwater_postgres::terms::Terms;
use headwater_postgres::url::{Encryption, Target};
use headwater_postgres::wire::Connection;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Once;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// What the process may map besides what it has when a test begins.
const ROOM: u64 = 1 << 30;

/// SplitMix64: small, and the same everywhere.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Has an allocation of more than [`ROOM`] end the process.
fn bound_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let here = line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10;
        let limit = Rlimit { current: Some(here + ROOM), ..getrlimit(Resource::As) };
        setrlimit(Resource::As, limit).unwrap();
    });
}

/// A message with its head.
fn framed(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = (body.len() as u32 + 4).to_be_bytes();
    [&[tag][..], &length, &body].concat()
}

/// What the plugin sends.
fn changes() -> Vec<Vec<u8>> {
    let columns: &[u8] = b"\0\x02t\0\0\0\x03bobt\0\0\0\x02hi";
    let id: &[u8] = b"\0\0\x40\x01";
    [
        &[&b"B"[..], &[7; 16], b"\0\0\x02\xf1"][..],
        &[
            b"R",
            id,
            b"public\0posts\0d\0\x02",
            b"\x01poster\0\0\0\0\x19\xff\xff\xff\xff",
            b"\0tweet\0\0\0\0\x19\xff\xff\xff\xff",
        ],
        &[b"I", id, b"N", columns],
        &[b"U", id, b"K", columns, b"N", b"\0\x03nut\0\0\0\x01x"],
        &[b"U", id, b"N", columns],
        &[b"D", id, b"O", columns],
        &[b"T", b"\0\0\0\x02\0", id, id],
        &[b"C\0", &[8; 24]],
        &[b"Y", id, b"public\0mood\0"],
    ]
    .iter()
    .map(|parts| parts.concat())
    .collect()
}

/// Whole conversations of servers.
fn conversations() -> Vec<Vec<u8>> {
    let ready = framed(b'Z', &[b"I"]);
    let greeting = [
        framed(b'R', &[&[0; 4]]),
        framed(b'S', &[b"server_version\x0017.2\0"]),
        framed(b'K', &[&[1; 8]]),
        ready.clone(),
    ]
    .concat();
    let rows = [
        framed(b'T', &[b"\0\x01a\0", &[0; 18]]),
        framed(b'D', &[b"\0\x03\0\0\0\x02hi\xff\xff\xff\xff\0\0\0\0"]),
        framed(b'A', &[&[0; 4], b"channel\0text\0"]),
        framed(b'C', &[b"SELECT 1\0"]),
        ready.clone(),
    ]
    .concat();
    let refused =
        [framed(b'E', &[b"SERROR\0C42P01\0Mrelation \"x\" does not exist\0\0"]), ready.clone()]
            .concat();
    let mut log = framed(b'W', &[&[0; 3]]);
    for change in changes() {
        log.extend(framed(b'd', &[b"w", &[9; 24], &change]));
    }
    log.extend(framed(b'd', &[b"k", &[9; 16], b"\x01"]));
    let scram = [
        framed(b'R', &[b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"]),
        framed(b'R', &[b"\0\0\0\x0br=abc,s=QSXCR+Q6sek8bf92,i=4096"]),
        framed(b'R', &[b"\0\0\0\x0bv=rmF9pqV8S7suAoZWja4dJRkFsKQ="]),
        framed(b'R', &[b"\0\0\0\x0cv=rmF9pqV8S7suAoZWja4dJRkFsKQ="]),
    ]
    .concat();
    vec![
        [&greeting[..], &rows, &log].concat(),
        [&greeting[..], &refused, &log].concat(),
        [&greeting[..], &rows, &framed(b'c', &[])].concat(),
        scram,
        [&framed(b'R', &[b"\0\0\0\x05salt"])[..], &greeting].concat(),
        [&framed(b'R', &[b"\0\0\0\x03"])[..], &greeting].concat(),
    ]
}

fn mutate(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], draws: &mut Draws) {
    const WORDS: &[&[u8]] = &[
        b"\0",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x3f\xff\xff\xff",
        b"\0\0\0\x04",
        b"\0\0\0\x03",
        b"\xff\xff",
        b"R",
        b"D",
        b"E",
        b"Z",
        b"W",
        b"d",
        b"w",
        b"k",
        b"N",
        b"t",
        b"u",
        b"n",
        b"\xc3",
        b"i=4294967295",
        b"i=0",
        b"r=",
        b",",
    ];
    for _ in 0..1 + draws.below(5) {
        let at = draws.below(bytes.len() + 1);
        let until = (at + draws.below(12)).min(bytes.len());
        match draws.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
            1 => drop(bytes.drain(at..until)),
            2 => drop(bytes.splice(at..at, draws.one(WORDS).iter().copied())),
            3 => drop(bytes.splice(at..until, draws.one(WORDS).iter().copied())),
            4 => drop(bytes.splice(at..at, draws.one(corpus).iter().copied())),
            _ => bytes.truncate(at),
        }
    }
}

/// What a message holds, so that all of it is looked at.
fn weight(message: &Message<'_>) -> usize {
    match message {
        Message::Relation(relation) => relation.columns.len(),
        Message::Insert { new, .. } => new.0.len(),
        Message::Update { old, new, .. } => {
            new.0.len() + old.as_ref().map_or(0, |old| old.tuple.0.len())
        }
        Message::Delete { old, .. } => old.tuple.0.len(),
        Message::Truncate { relations } => relations.len(),
        Message::Begin { .. } | Message::Commit { .. } | Message::Other => 0,
    }
}

/// A message of the log holds no more than its bytes can say.
fn check(bytes: &[u8]) {
    let _ = relation_of(bytes);
    if let Some(message) = message(bytes) {
        assert!(weight(&message) <= bytes.len(), "more columns than bytes");
    }
}

#[test]
fn any_message_of_the_log_is_read_or_refused() {
    bound_memory();
    let corpus = changes();
    for change in &corpus {
        assert!(message(change).is_some(), "the corpus is right: {}", change.escape_ascii());
        for cut in 0..change.len() {
            check(&change[..cut]);
        }
    }
    let first = setting("HEADWATER_FUZZ_FIRST", 0);
    for round in first..first + setting("HEADWATER_FUZZ_ROUNDS", 20_000) {
        let mut draws = Draws(round);
        let mut bytes = draws.one(&corpus).clone();
        mutate(&mut bytes, &corpus, &mut draws);
        let outcome = std::panic::catch_unwind(|| check(&bytes));
        assert!(outcome.is_ok(), "round {round}: {}", bytes.escape_ascii());
    }
}

/// Says what it is given to each client, whatever that says, and hangs up when the client does.
fn serve(listener: &UnixListener, says: &Receiver<Vec<u8>>) {
    for bytes in says {
        let Ok((mut stream, _)) = listener.accept() else { return };
        speak(&mut stream, &bytes);
    }
}

fn speak(stream: &mut UnixStream, bytes: &[u8]) {
    let mut reader = stream.try_clone().unwrap();
    // A client that says much is not to wait for us, nor we for it.
    let listen = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = listen.join();
}

/// Does what a source does with a server.
fn converse(target: &Target) {
    let Ok(mut connection) = Connection::open(target, true) else { return };
    let _ = connection.rows("SELECT 1");
    if connection.copy_both("START_REPLICATION").is_err() {
        return;
    }
    let until = Instant::now() + Duration::from_secs(60);
    while let Ok(Some(piece)) = connection.piece(until) {
        if let (Some(b'w'), Some(change)) = (piece.first(), piece.get(25..)) {
            check(change);
        }
        let _ = connection.has_more();
    }
}

fn target(folder: &Path) -> Target {
    Target {
        others: Vec::new(),
        host: folder.to_str().unwrap().to_owned(),
        port: 5432,
        user: "u".to_owned(),
        password: "p".to_owned(),
        passfile: String::new(),
        database: "d".to_owned(),
        encryption: Encryption::Off,
        application: "fuzz".to_owned(),
        patience: Duration::from_secs(60),
        options: Vec::new(),
        terms: Terms::default(),
    }
}

#[test]
fn any_server_is_understood_or_refused() {
    bound_memory();
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
    let (say, says): (Sender<Vec<u8>>, _) = channel();
    let server = std::thread::spawn(move || serve(&listener, &says));
    let target = target(folder.path());
    let corpus = conversations();
    say.send(corpus[0].clone()).unwrap();
    let mut connection = Connection::open(&target, true).expect("the corpus greets");
    assert_eq!(connection.rows("SELECT 1").unwrap()[0][0].as_deref(), Some("hi"));
    drop(connection);
    let first = setting("HEADWATER_FUZZ_FIRST", 0);
    for round in first..first + setting("HEADWATER_FUZZ_ROUNDS", 2000) {
        let mut draws = Draws(round);
        let mut bytes = draws.one(&corpus).clone();
        if draws.below(8) > 0 {
            mutate(&mut bytes, &corpus, &mut draws);
        }
        say.send(bytes.clone()).unwrap();
        let outcome = std::panic::catch_unwind(|| converse(&target));
        assert!(outcome.is_ok(), "round {round}: {}", bytes.escape_ascii());
    }
    drop(say);
    server.join().unwrap();
}

/// How often a proof is to be made anew is the server's word: it cannot keep a thread busy for minutes.
#[test]
fn a_proof_that_would_take_minutes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&framed(b'R', &[b"\0\0\0\x0aSCRAM-SHA-256\0\0"])).unwrap();
        let mut heard = Vec::new();
        let nonce = loop {
            let mut bytes = [0; 512];
            let count = stream.read(&mut bytes).unwrap();
            heard.extend_from_slice(&bytes[..count]);
            let text = String::from_utf8_lossy(&heard).into_owned();
            if let Some((_, nonce)) = text.split_once(",r=") {
                break nonce.to_owned();
            }
        };
        let first = format!("r={nonce}more,s=QSXCR+Q6sek8bf92,i=4294967295");
        stream.write_all(&framed(b'R', &[b"\0\0\0\x0b", first.as_bytes()])).unwrap();
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let error = Connection::open(&target(folder.path()), false).unwrap_err();
    assert!(error.message.contains("4294967295") && error.message.contains("allowed"), "{error}");
    server.join().unwrap();
}

/// A server that greets, if it does, and then says the same for ever.
fn endless(folder: &Path, greets: bool, says: Vec<u8>) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(folder.join(".s.PGSQL.5432")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = stream.try_clone().unwrap();
        let listens = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        if greets {
            let ready = [framed(b'R', &[&[0; 4]]), framed(b'Z', &[b"I"])].concat();
            stream.write_all(&ready).unwrap();
        }
        let many = says.repeat((64 << 10) / says.len() + 1);
        while stream.write_all(&many).is_ok() {}
        drop(listens.join());
    })
}

#[test]
fn a_server_that_never_ends_is_given_up_with_a_reason() {
    bound_memory();
    let row = framed(b'D', &[b"\0\x01\0\0\0\x02hi"]);
    let notice = framed(b'N', &[b"SNOTICE\0Mhear, hear\0\0"]);
    let long = [&b"D"[..], &(900_u32 << 20).to_be_bytes(), &[7; 100]].concat();
    for (greets, says, why) in [
        (false, notice.clone(), "greeting"),
        (false, long.clone(), "allowed"),
        (true, notice.clone(), "does not come to its end"),
        (true, row, "does not come to its end"),
        (true, long, "allowed"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let server = endless(folder.path(), greets, says);
        let target = Target { patience: Duration::from_millis(50), ..target(folder.path()) };
        let outcome = Connection::open(&target, false).and_then(|mut connection| {
            connection.set_message_bytes_max(1 << 20);
            connection.query("SELECT 1", |_, _| {})
        });
        let error = outcome.unwrap_err();
        assert!(error.message.contains(why), "{error}, not {why}");
        server.join().unwrap();
    }
    // What is collected, and not taken row by row, is bounded by its bytes.
    let folder = tempfile::tempdir().unwrap();
    let row = framed(b'D', &[b"\0\x01\0\0\x10\0", &[b'x'; 4096]]);
    let server = endless(folder.path(), true, row);
    let patient = Target { patience: Duration::from_secs(60), ..target(folder.path()) };
    let mut connection = Connection::open(&patient, false).unwrap();
    let error = connection.rows("SELECT 1").unwrap_err();
    assert!(error.is_broken() && error.message.contains("more than 8388608 bytes"), "{error}");
    drop(connection);
    server.join().unwrap();
    // Words beside the log are none of it.
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = stream.try_clone().unwrap();
        let listens = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        let begins = [framed(b'R', &[&[0; 4]]), framed(b'Z', &[b"I"]), framed(b'W', &[&[0; 3]])];
        stream.write_all(&begins.concat()).unwrap();
        while stream.write_all(&notice.repeat(1000)).is_ok() {}
        drop(listens.join());
    });
    let mut connection = Connection::open(&target(folder.path()), true).unwrap();
    connection.copy_both("START_REPLICATION").unwrap();
    assert_eq!(connection.piece(Instant::now() + Duration::from_millis(50)), Ok(None));
    drop(connection);
    server.join().unwrap();
}
